//! This node as a member of a cluster.
//!
//! Owns: the map as it is followed, the pool's disks and state that follow from it, the node's lease while there is one.
//! Must not know: sockets, certificates, folders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, Epoch, NodeId, VolumeId};
use cairn_cluster::map::{MapView, Process};
use cairn_cluster::{ClusterMap, Coordinator, LeaseSettings, MapError, OwnedLease};
use cairn_formats::pool_file::{PoolState, PoolVolume};
use cairn_meta::{Copies, MetaSettings, MetaStore, Recovered, VolumeLog};
use cairn_pool::{Pool, PoolLogDisks, SeatFuture, Seats};
use cairn_remote::{Identity, PeerSettings};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::peers::{Dials, PeerStatus, PeerTable};
use crate::state::pool_state;
use crate::takeover::{Node, Protection, TakeoverError};

/// How often it is looked which nodes can be reached.
const PEERS_LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct MemberSettings {
    pub lease: LeaseSettings,
    pub peers: PeerSettings,
    /// How long a disk is waited for in a takeover that no other can stand in for.
    pub patience: Duration,
}

impl Default for MemberSettings {
    fn default() -> Self {
        Self {
            lease: LeaseSettings::new(Duration::from_secs(3)),
            peers: PeerSettings::default(),
            patience: Duration::from_secs(3),
        }
    }
}

/// A lease, and the process that has it.
#[derive(Clone)]
pub(crate) struct Held {
    pub process: Process,
    pub lease: Arc<OwnedLease>,
}

pub struct ClusterMember {
    pub(crate) env: Env,
    pub(crate) map: ClusterMap,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) own: Identity,
    pub(crate) settings: MemberSettings,
    pub peers: Arc<PeerTable>,
    views: watch::Sender<Arc<MapView>>,
    pool: OnceLock<Weak<Pool>>,
    held: Mutex<Option<Held>>,
    /// The epochs of volumes that were taken, to give them up.
    epochs: Mutex<BTreeMap<VolumeId, (Process, Epoch)>>,
    /// Volumes that somebody wants another node to have.
    asked: Mutex<BTreeSet<VolumeId>>,
    asked_notify: Notify,
    stopping: AtomicBool,
    stop_notify: Notify,
    ended: watch::Sender<bool>,
}

impl ClusterMember {
    pub fn new(
        env: Env,
        map: ClusterMap,
        coordinator: Arc<dyn Coordinator>,
        own: Identity,
        settings: MemberSettings,
        dials: Arc<dyn Dials>,
    ) -> Arc<Self> {
        let peers = PeerTable::new(env.clone(), own, settings.peers.clone(), dials);
        Arc::new(Self {
            env,
            map,
            coordinator,
            own,
            settings,
            peers,
            views: watch::Sender::default(),
            pool: OnceLock::new(),
            held: Mutex::default(),
            epochs: Mutex::default(),
            asked: Mutex::default(),
            asked_notify: Notify::new(),
            stopping: AtomicBool::new(false),
            stop_notify: Notify::new(),
            ended: watch::Sender::new(false),
        })
    }

    pub fn node(&self) -> NodeId {
        self.own.node
    }

    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// The map as it is known now.
    pub fn view(&self) -> Arc<MapView> {
        self.views.borrow().clone()
    }

    pub fn views(&self) -> watch::Receiver<Arc<MapView>> {
        self.views.subscribe()
    }

    pub fn peer_status(&self) -> Vec<PeerStatus> {
        self.peers.status()
    }

    /// Whether this node may answer for the volumes that it owns: until when, its lease says.
    pub fn lease_is_valid(&self) -> bool {
        let held = self.held.lock();
        held.as_ref().is_some_and(|held| held.lease.is_valid())
    }

    /// Who owns a volume, as far as this node knows.
    pub fn owner(&self, volume: VolumeId) -> Option<NodeId> {
        let view = self.views.borrow();
        let owner = view.volumes.get(&volume)?.owner.as_ref()?;
        Some(owner.value.node)
    }

    /// Asks for a volume of this node to be given to others.
    pub fn ask_to_give(&self, volume: VolumeId) {
        self.asked.lock().insert(volume);
        self.asked_notify.notify_one();
    }

    pub(crate) fn asked_to_give(&self) -> BTreeSet<VolumeId> {
        std::mem::take(&mut self.asked.lock())
    }

    pub(crate) async fn asked(&self) {
        self.asked_notify.notified().await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) async fn stopped(&self) {
        self.stop_notify.notified().await;
    }

    pub(crate) fn hold(&self, held: Option<Held>) {
        *self.held.lock() = held;
    }

    pub(crate) fn process(&self) -> Option<Process> {
        self.held.lock().as_ref().map(|held| held.process)
    }

    /// Reads the map, once, before the pool is made of it. `before` has what this node knows of its own disks.
    pub async fn first_state(&self, before: &PoolState) -> Result<PoolState, MapError> {
        let mut follower = self.map.follow().await?;
        let view = follower.view();
        let state = pool_state(&view, before, self.own.node);
        self.peers.follow(&view);
        self.views.send_replace(Arc::new(view));
        Ok(state)
    }

    /// Begins to follow the map and to own volumes; ends with [`Self::stop`].
    pub fn start(self: &Arc<Self>, pool: &Arc<Pool>) {
        // Only here.
        let _ = self.pool.set(Arc::downgrade(pool));
        let spawner = self.env.spawner.clone();
        let follow = Arc::clone(self).follow_map(Arc::clone(pool));
        spawner.spawn("cluster map", Box::pin(follow));
        let look = Arc::clone(self).look_at_peers(Arc::clone(pool));
        spawner.spawn("peers", Box::pin(look));
        let (member, pool) = (Arc::clone(self), Arc::clone(pool));
        let own = async move {
            Arc::clone(&member).own_volumes(pool).await;
            member.ended.send_replace(true);
        };
        spawner.spawn("ownership", Box::pin(own));
    }

    /// Closes the volumes that this node owns and lets others have them.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop_notify.notify_waiters();
        self.asked_notify.notify_one();
        let mut ended = self.ended.subscribe();
        // The sender is in `self`.
        let _ = ended.wait_for(|ended| *ended).await;
        self.peers.stop();
    }

    async fn follow_map(self: Arc<Self>, pool: Arc<Pool>) {
        loop {
            let mut follower = loop {
                if self.is_stopping() {
                    return;
                }
                match self.map.follow().await {
                    Ok(follower) => break follower,
                    Err(error) => {
                        tracing::warn!(%error, "the cluster's map cannot be read");
                        self.env.clock.sleep(Duration::from_secs(1)).await;
                    }
                }
            };
            loop {
                let view = Arc::new(follower.view());
                let state = pool_state(&view, &pool.state(), self.own.node);
                self.peers.follow(&view);
                let before = self.views.send_replace(view);
                if self.owners_differ(&before) {
                    pool.publish();
                }
                pool.refresh(state).await;
                tokio::select! {
                    () = follower.changed() => {}
                    () = self.stopped() => {}
                }
                if self.is_stopping() {
                    return;
                }
            }
        }
    }

    fn owners_differ(&self, before: &MapView) -> bool {
        let owners = |view: &MapView| -> Vec<(VolumeId, Option<NodeId>)> {
            let volumes = view.volumes.iter();
            volumes
                .map(|(id, state)| (*id, state.owner.as_ref().map(|owner| owner.value.node)))
                .collect()
        };
        owners(before) != owners(&self.views.borrow())
    }

    async fn look_at_peers(self: Arc<Self>, pool: Arc<Pool>) {
        // Until the last volume is closed: closing needs to know which disks there are.
        while !*self.ended.borrow() {
            pool.set_remote_disks(self.peers.disks(&self.view()));
            self.env.clock.sleep(PEERS_LOOK).await;
        }
    }

    /// Gives a volume up that this node owns and does not serve any more.
    pub(crate) async fn give_up(&self, volume: VolumeId) {
        let taken = self.epochs.lock().remove(&volume);
        let Some((process, epoch)) = taken else {
            return;
        };
        if let Err(error) = self.map.give_up_as(volume, process, epoch).await {
            tracing::debug!(%volume, %error, "the volume is free at the latest when this node's lease ends");
        }
    }

    async fn take_over(
        &self,
        volume: &PoolVolume,
        settings: MetaSettings,
        disks: Vec<(DiskId, Arc<dyn cairn_base::disk::Disk>)>,
    ) -> Result<(Arc<MetaStore>, Recovered), String> {
        let pool = self.pool.get().and_then(Weak::upgrade);
        let pool = pool.ok_or_else(|| "this node is starting".to_owned())?;
        let process = self.process().filter(|_| self.lease_is_valid());
        let process = process.ok_or_else(|| "this node has no lease".to_owned())?;
        let wanted = settings.copies;
        let node = Node {
            env: self.env.clone(),
            map: self.map.clone(),
            process,
            log_disks: Arc::new(PoolLogDisks::new(self.own.node, &pool)),
            disks,
        };
        let protection = Protection {
            copies: Copies::new(wanted, VolumeLog::copies_least(wanted)),
            patience: self.settings.patience,
        };
        let taken = node.take_over(volume.id, Epoch(0), protection, settings);
        let epochs = &self.epochs;
        let note = |epoch| epochs.lock().insert(volume.id, (process, epoch));
        match taken.await {
            Ok((meta, recovered)) => {
                note(meta.epoch());
                Ok((meta, recovered))
            }
            Err(error) => {
                if let TakeoverError::Metadata { epoch, .. } = &error {
                    note(*epoch);
                    // Another node may reach what this one does not.
                    self.give_up(volume.id).await;
                }
                Err(error.to_string())
            }
        }
    }
}

impl Seats for ClusterMember {
    fn take<'a>(
        &'a self,
        volume: &'a PoolVolume,
        settings: MetaSettings,
        disks: cairn_pool::MetaDisks,
    ) -> SeatFuture<'a, Result<(Arc<MetaStore>, Recovered), String>> {
        Box::pin(self.take_over(volume, settings, disks))
    }
}
