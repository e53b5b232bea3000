//! The machines of a run, and the processes on them.
//!
//! Owns: the part of a machine that outlives its process; starting, stopping, pausing and killing a process. Must not
//! know: the reason.

use std::sync::Arc;
use std::time::Duration;

use cairn_testkit::{Crash, MemDisk};
use parking_lot::Mutex;

use super::clock::NodeClock;
use super::node::{Process, Remains, Remembered, Start, node_id};
use super::pace::DiskPace;
use super::run::{Cluster, client_name, world_spawn};
use crate::exec::Group;

const LOOK: Duration = Duration::from_millis(500);

/// Of each process that was started: the number of its machine, and its parts.
pub(super) type AllRemains = Arc<Mutex<Vec<(usize, Remains)>>>;

/// A process that was started.
pub(super) struct Running {
    pub group: Group,
    pub process: Arc<Mutex<Option<Arc<Process>>>>,
}

pub(super) struct Machine {
    pub clock: NodeClock,
    pub disks: Vec<Arc<MemDisk>>,
    pub paces: Vec<Arc<DiskPace>>,
    high_water: Arc<Remembered>,
    was_started: bool,
    pub is_lost: bool,
    /// A disk had errors: the process must be restarted before it uses the disk again.
    pub is_stained: bool,
    pub running: Option<Running>,
    /// Number of pauses that have not ended.
    pauses: u32,
}

impl Machine {
    /// A machine that was never on.
    pub fn new(clock: NodeClock, disks: Vec<Arc<MemDisk>>) -> Self {
        Self {
            clock,
            disks,
            paces: Vec::new(),
            high_water: Arc::default(),
            was_started: false,
            is_lost: false,
            is_stained: false,
            running: None,
            pauses: 0,
        }
    }
}

impl Cluster {
    pub(super) fn start(self: &Arc<Self>, index: usize) {
        let mut machines = self.machines.lock();
        let machine = &mut machines[index];
        if machine.running.is_some() || machine.is_lost {
            return;
        }
        let (seed, pace_seed) = {
            let mut rng = self.rng.lock();
            (rng.u64(), rng.u64())
        };
        machine.paces = (0..)
            .zip(&machine.disks)
            .map(|(nth, disk)| {
                let pace = Arc::new(DiskPace::new(
                    (index * 16 + nth) as u64,
                    self.shape().is_uneven,
                    self.clock.clone(),
                    self.trace.clone(),
                    pace_seed ^ nth as u64,
                ));
                disk.pace_with(pace.clone());
                pace
            })
            .collect();
        let (group, env) = self.groups.add(Arc::new(machine.clock.clone()), seed);
        self.net.power_on(node_id(index));
        let start = Start {
            index,
            env: env.clone(),
            shape: self.shape().clone(),
            disks: machine.disks.clone(),
            is_new: !machine.was_started,
            coordinator: self.store.client(client_name(index)),
            high_water: machine.high_water.clone(),
            net: self.net.clone(),
            volumes: self.volumes.clone(),
            promises: self.promises.clone(),
            calls: self.calls.clone(),
            objects: self.objects.as_ref().map(|world| {
                let clock = self.env.clock.clone();
                world
                    .store
                    .seen(&env, clock, &self.trace, seed ^ 0x0b1e_c751)
            }),
        };
        machine.was_started = true;
        machine.is_stained = false;
        let process: Arc<Mutex<Option<Arc<Process>>>> = Arc::default();
        machine.running = Some(Running {
            group,
            process: process.clone(),
        });
        let (cluster, world) = (Arc::downgrade(self), self.env.clone());
        let remains = self.remains.clone();
        let starting = async move {
            match start.run().await {
                Ok(started) => {
                    remains.lock().push((index, started.remains()));
                    *process.lock() = Some(Arc::new(started));
                }
                Err(error) => {
                    tracing::warn!(index, error, "a node does not start");
                    // Like a supervisor, from outside, because this process is about to end.
                    let wait = world.clock.sleep(Duration::from_secs(1));
                    let again = async move {
                        wait.await;
                        if let Some(cluster) = cluster.upgrade()
                            && cluster.crash(index, Crash::KeepUnsynced, false, Some(group))
                        {
                            cluster.start(index);
                        }
                    };
                    world_spawn(&world, again);
                }
            }
        };
        env.spawner.spawn("start", Box::pin(starting));
    }

    /// False if it was down already, or if the running process is not `only`.
    pub(super) fn crash(
        &self,
        index: usize,
        mode: Crash,
        with_power: bool,
        only: Option<Group>,
    ) -> bool {
        let mut machines = self.machines.lock();
        let machine = &mut machines[index];
        let is_meant = |running: &Running| only.is_none_or(|group| running.group == group);
        if !machine.running.as_ref().is_some_and(is_meant) {
            return false;
        }
        let Some(running) = machine.running.take() else {
            return false;
        };
        machine.pauses = 0;
        machine.clock.resume();
        // The power first, then the tasks: code that runs when they are dropped must not reach a disk.
        let mut rng = self.rng.lock();
        machine.disks = machine
            .disks
            .iter()
            .map(|disk| disk.crash(mode, rng.u64()))
            .collect();
        drop(rng);
        self.net.down(node_id(index), with_power);
        self.groups.end(running.group);
        if let Some(objects) = &self.objects {
            objects.machine_is_gone();
        }
        true
    }

    pub(super) fn process(&self, index: usize) -> Option<Arc<Process>> {
        let machines = self.machines.lock();
        let running = machines[index].running.as_ref()?;
        running.process.lock().clone()
    }

    pub(super) async fn started(&self, index: usize) {
        while self.process(index).is_none() {
            self.env.clock.sleep(LOOK).await;
        }
    }

    pub(super) fn disk(&self, index: usize, pick: u64) -> Arc<MemDisk> {
        let mut machines = self.machines.lock();
        let machine = &mut machines[index];
        machine.is_stained = true;
        machine.disks[pick as usize % machine.disks.len()].clone()
    }

    pub(super) fn pause(self: &Arc<Self>, index: usize, with_machine: bool, steps: u64, ms: u64) {
        let group = {
            let mut machines = self.machines.lock();
            let machine = &mut machines[index];
            let Some(running) = &machine.running else {
                return;
            };
            machine.pauses += 1;
            if with_machine {
                machine.clock.suspend();
            }
            self.groups.pause_after(running.group, steps);
            running.group
        };
        self.later(ms, move |cluster| {
            let mut machines = cluster.machines.lock();
            let machine = &mut machines[index];
            let is_same = |running: &Running| running.group == group;
            if !machine.running.as_ref().is_some_and(is_same) {
                return;
            }
            machine.pauses -= 1;
            if machine.pauses == 0 {
                machine.clock.resume();
                cluster.groups.resume(group);
            }
        });
    }

    /// Other data fills the free space of a machine's disks, except for `room_bytes` on each.
    pub(super) fn fill(&self, index: usize, room_bytes: u64) {
        let total_bytes = self.shape().disk_mib << 20;
        for disk in &self.machines.lock()[index].disks {
            let free_bytes = total_bytes.saturating_sub(disk.used_bytes());
            disk.fill(free_bytes.saturating_sub(room_bytes));
        }
    }

    pub(super) fn make_room(&self, index: usize) {
        let machines = self.machines.lock();
        machines[index].disks.iter().for_each(|disk| disk.fill(0));
    }
}
