//! Records the operations of several disks, to rebuild the disks as of any moment.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::mem_disk::MemDisk;
use crate::rng::Rng;
use crate::state::{Crash, Op, State};

/// The mutating operations of a set of disks, in one order, from a known start.
///
/// A crash test runs its workload once, and notes [`Recorder::op_count`] at each acknowledgement. Then, for each
/// `index` in `0..=op_count()`, it takes the disks from [`Recorder::crash_at`], recovers from them, and expects
/// everything acknowledged by `index`.
pub struct Recorder {
    disks: Vec<Recorded>,
    log: Mutex<Vec<Entry>>,
    /// The last point replayed, so that going forward through all points takes linear time.
    replay: Mutex<Replay>,
}

struct Recorded {
    label: String,
    capacity_bytes: u64,
    start: State,
}

#[derive(Clone)]
struct Entry {
    disk_index: usize,
    /// Number of operations that had taken effect when this one was issued.
    issued: usize,
    name: String,
    op: Op,
}

struct Replay {
    op_count: usize,
    states: Vec<State>,
}

impl Recorder {
    /// Starts recording `disks` from their present contents. Each disk can be recorded once.
    pub fn new(disks: &[Arc<MemDisk>]) -> Arc<Recorder> {
        let recorded = |disk: &Arc<MemDisk>| {
            let (label, capacity_bytes) = disk.label_and_capacity();
            Recorded {
                label,
                capacity_bytes,
                start: disk.state(),
            }
        };
        let recorded: Vec<_> = disks.iter().map(recorded).collect();
        let replay = Replay {
            op_count: 0,
            states: recorded.iter().map(|disk| disk.start.clone()).collect(),
        };
        let recorder = Arc::new(Recorder {
            disks: recorded,
            log: Mutex::new(Vec::new()),
            replay: Mutex::new(replay),
        });
        for (index, disk) in disks.iter().enumerate() {
            disk.record_to(Arc::clone(&recorder), index);
        }
        recorder
    }

    /// Number of operations that have taken effect.
    pub fn op_count(&self) -> usize {
        self.log.lock().len()
    }

    /// Describes operation `index`, for messages.
    pub fn describe(&self, index: usize) -> String {
        let Some(entry) = self.log.lock().get(index).cloned() else {
            return "the end of the recording".to_owned();
        };
        let label = &self.disks[entry.disk_index].label;
        let name = &entry.name;
        match &entry.op {
            Op::Create { len_bytes, .. } => format!("{label}: create {name} of {len_bytes} B"),
            Op::Remove { .. } => format!("{label}: remove {name}"),
            Op::Rename { to, .. } => format!("{label}: rename {name} to {to}"),
            Op::SyncFolder { .. } => format!("{label}: sync folder \"{name}\""),
            Op::Write {
                offset,
                bytes,
                durable,
                ..
            } => {
                let how = if *durable { "durably write" } else { "write" };
                format!("{label}: {how} {} B at {offset} of {name}", bytes.len())
            }
            Op::SetLen { len_bytes, .. } => format!("{label}: resize {name} to {len_bytes} B"),
            Op::Sync { .. } => format!("{label}: sync {name}"),
            Op::SyncFailed { .. } => format!("{label}: failing sync of {name}"),
        }
    }

    /// The disks after a power loss just before operation `index`, in the order given to [`Recorder::new`]. With
    /// [`Crash::Random`] the operations that were in progress then (`index` itself, and others if the disks yield) may
    /// have reached the disks in part.
    ///
    /// Panics if `index` is above [`Recorder::op_count`].
    pub fn crash_at(&self, index: usize, mode: Crash, seed: u64) -> Vec<Arc<MemDisk>> {
        let mut states = self.replay_to(index);
        let mut rng = Rng::new(seed);
        if mode == Crash::Random {
            for entry in self.log.lock().iter().skip(index) {
                // Only operations issued by then, as far as the log is ordered by effect.
                if entry.issued <= index && rng.coin() {
                    states[entry.disk_index].apply_unfinished(&entry.op);
                }
            }
        }
        let crash = |(disk, state): (&Recorded, State)| {
            let state = state.crash(mode, disk.capacity_bytes, &mut rng);
            MemDisk::from_state(disk.label.clone(), disk.capacity_bytes, state)
        };
        self.disks.iter().zip(states).map(crash).collect()
    }

    pub(crate) fn push(&self, disk_index: usize, issued: usize, name: &str, op: Op) {
        self.log.lock().push(Entry {
            disk_index,
            issued,
            name: name.to_owned(),
            op,
        });
    }

    fn replay_to(&self, index: usize) -> Vec<State> {
        let mut replay = self.replay.lock();
        if index < replay.op_count {
            replay.op_count = 0;
            replay.states = self.disks.iter().map(|disk| disk.start.clone()).collect();
        }
        let log = self.log.lock();
        assert!(index <= log.len(), "operation {index} was recorded");
        for entry in &log[replay.op_count..index] {
            replay.states[entry.disk_index].apply(&entry.op);
        }
        replay.op_count = index;
        replay.states.clone()
    }
}
