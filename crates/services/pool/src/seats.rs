//! Volumes of a pool that several nodes share: each has one owner at a time, and this node has some of them.
//!
//! Owns: the seam through which a volume comes to this node ([`Seats`]), opening and leaving it, the disks that logs may be
//! on, the disks of other nodes in the table, and the pool's state as other nodes changed it.
//! Must not know: who should own a volume and why, how nodes agree, how a disk of another node is reached.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, NodeId, VolumeId};
use cairn_formats::pool_file::{PoolState, PoolVolume};
use cairn_fs::Fs;
use cairn_meta::{LogDisks, MetaSettings, MetaStore, Recovered};
use cairn_shard::ShardService;

use futures_util::future::{Either, select};

use crate::metadata::{CLOSE_MAX, TIDY_MAX};
use crate::pool::{MetaDisks, Pool, VolumeService};
use crate::state_places::Kind;

pub type SeatFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How volumes come to this node.
pub trait Seats: Send + Sync + 'static {
    /// Takes a volume over: from here on no earlier owner changes anything of it, and all that was acknowledged is there.
    /// `disks` are this node's own, for its copy of the state. An error says why that is not possible now.
    fn take<'a>(
        &'a self,
        volume: &'a PoolVolume,
        settings: MetaSettings,
        disks: MetaDisks,
    ) -> SeatFuture<'a, Result<(Arc<MetaStore>, Recovered), String>>;

    /// Gets this node ready to take a volume over that another one is about to give to it, so that clients wait for less. Ends
    /// before a [`Self::take`] of the volume begins. An error says why that is not possible now.
    fn prepare<'a>(
        &'a self,
        volume: &'a PoolVolume,
        settings: MetaSettings,
        disks: MetaDisks,
    ) -> SeatFuture<'a, Result<(), String>>;

    /// This node.
    fn node(&self) -> NodeId;

    /// Whether a volume was deleted, for certain, and what is left of it may go.
    fn is_deleted(&self, volume: VolumeId) -> SeatFuture<'_, bool>;

    /// Which of these volumes in a store were deleted, for certain; of the one that it was made for, whether that was.
    fn deleted_in_store(
        &self,
        store: VolumeId,
        volumes: Vec<VolumeId>,
    ) -> SeatFuture<'_, Vec<VolumeId>>;

    /// Takes a draining disk out of the pool, if the owners of all volumes say that they have nothing on it.
    fn remove_disk(&self, disk: DiskId) -> SeatFuture<'_, Result<(), String>>;
}

/// How a volume is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// All is written, so that the next owner has little to do.
    Close,
    /// At once: another node may own it already. Acknowledged changes are safe.
    Abandon,
}

impl Pool {
    /// Serves a volume that this node is to own.
    pub async fn own(&self, id: VolumeId) -> Result<(), String> {
        if self.wait_until_restored(id).await {
            // It was not served for that alone.
            if let Some(VolumeService::Serving(_)) = self.service(id) {
                return Ok(());
            }
        }
        let state = self.state();
        let volume = state.volumes.iter().find(|volume| volume.id == id);
        let volume = volume.ok_or_else(|| format!("there is no volume {id}"))?;
        let disks = self.all_meta_disks(Some(id));
        if disks.is_empty() {
            return Err("this node has no working disk".to_owned());
        }
        let count = state.volumes.len();
        let fs = self.open_volume(volume, count, disks, Vec::new()).await?;
        if self.is_stopping() {
            fs.abandon();
            return Err("this node is stopping".to_owned());
        }
        self.set_service(id, Some(VolumeService::Serving(fs)));
        if !planted::is(Bug::ListedWhileOpeningNotFollowed) {
            self.follow_listed(volume).await;
        }
        self.publish();
        Ok(())
    }

    /// Gets ready to own a volume that another node is about to give to this one.
    pub async fn prepare(&self, id: VolumeId) -> Result<(), String> {
        let state = self.state();
        let volume = state.volumes.iter().find(|volume| volume.id == id);
        let (Some(seats), Some(volume)) = (&self.seats, volume) else {
            return Err(format!("there is no volume {id}"));
        };
        let disks = self.all_meta_disks(Some(id));
        let copies = self.metadata_copies(&volume.settings);
        let count = state.volumes.len();
        let settings = self.host.meta_settings(volume, copies, count);
        seats.prepare(volume, settings, disks).await
    }

    /// Has other nodes have all of a volume's metadata that is there now, before one of them gets the volume.
    pub async fn ship(&self, id: VolumeId) -> Result<(), String> {
        let Some(VolumeService::Serving(fs)) = self.service(id) else {
            return Ok(());
        };
        match self.while_it_works(&fs, fs.meta().ship()).await {
            Some(shipped) => shipped.map_err(|error| error.to_string()),
            None => Err("the disk of its state does not answer".to_owned()),
        }
    }

    /// Stops serving a volume.
    pub async fn disown(&self, id: VolumeId, how: Leave) {
        self.disown_before(id, how, std::future::pending()).await;
    }

    /// Stops serving a volume. Closing it may last until `over`, when this node loses the volume: then the volume is abandoned.
    pub async fn disown_before(&self, id: VolumeId, how: Leave, over: impl Future<Output = ()>) {
        let service = self.set_service(id, None);
        self.publish();
        if let Some(VolumeService::Serving(fs)) = service {
            match how {
                Leave::Abandon => fs.abandon(),
                Leave::Close => self.close_or_abandon(&fs, over).await,
            }
        }
        self.end_succession(id);
    }

    /// Has durable what clients wrote, within [`CLOSE_MAX`]. The rest of closing saves the next owner a replay of the log: it may
    /// take [`TIDY_MAX`], for clients wait meanwhile, and a disk that hangs may take longer.
    async fn close_or_abandon(&self, fs: &Fs, over: impl Future<Output = ()>) {
        let volume = fs.name();
        let over = pin!(over);
        let patience = select(self.env.clock.sleep(CLOSE_MAX), over);
        let writing = Box::pin(fs.end_writing());
        let patience = match select(writing, patience).await {
            Either::Left((Ok(()), patience)) => patience,
            Either::Left((Err(error), _)) => {
                tracing::warn!(volume, %error, "the volume did not close cleanly; the next owner recovers it");
                return fs.abandon();
            }
            // Too few disks answer for what is still to be written; nothing of it was acknowledged.
            Either::Right((ended, _)) => {
                let why = match ended {
                    Either::Left(_) => "it takes too long",
                    Either::Right(_) => "this node's lease has expired",
                };
                tracing::warn!(
                    volume,
                    why,
                    "the volume does not close; the next owner recovers it"
                );
                return fs.abandon();
            }
        };
        let patience = select(self.env.clock.sleep(TIDY_MAX), patience);
        match select(Box::pin(fs.close()), patience).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(error), _)) => {
                tracing::warn!(volume, %error, "the volume did not close cleanly; the next owner recovers it");
            }
            Either::Right(_) => {
                tracing::info!(
                    volume,
                    "client writes are durable, but closing the volume waits for a disk; the next owner recovers the volume"
                );
                fs.abandon();
            }
        }
    }

    /// Takes over the pool's state as other nodes changed it, unless it was read before a change of this node
    /// (`is_current`). Deleted volumes are not served any more.
    pub async fn refresh(self: &Arc<Self>, state: PoolState, is_current: impl FnOnce() -> bool) {
        let changes = self.changes().await;
        let before = self.state();
        if !is_current() {
            return;
        }
        let state = PoolState {
            version: before.version,
            ..state
        };
        if *before == state {
            return;
        }
        let disks_changed = before.disks != state.disks;
        let state = Arc::new(state);
        let is_member = |id: DiskId| state.disks.iter().any(|disk| disk.id == id);
        let own = self.disks().into_iter().map(|disk| disk.id());
        // One that is about to join is none yet.
        let was_member = |id: &DiskId| before.disks.iter().any(|disk| disk.id == *id);
        let removed: Vec<DiskId> = own.filter(|id| was_member(id) && !is_member(*id)).collect();
        self.change_table(|table| table.state = Arc::clone(&state));
        drop(changes);
        if before.tiers != state.tiers {
            // One may be a directory that hangs, and nothing else waits for that.
            let pool = Arc::clone(self);
            let task = async move { pool.open_tiers().await };
            self.env.spawner.spawn("tiers", Box::pin(task));
        }
        for id in removed {
            let gone = self.change_table(|table| table.take(id));
            tracing::info!(disk = %id, "a disk left the pool");
            self.host.disk_left(gone);
        }
        let is_gone = |id: &VolumeId| !state.volumes.iter().any(|volume| volume.id == *id);
        for id in self.services().into_keys().filter(is_gone) {
            self.disown(id, Leave::Abandon).await;
            let pool = Arc::clone(self);
            let task = async move {
                // A volume that is not listed need not be deleted.
                let seats = pool.seats.clone();
                let is_deleted = match &seats {
                    Some(seats) => seats.is_deleted(id).await,
                    None => false,
                };
                if is_deleted {
                    pool.remove_files(id).await;
                }
            };
            self.env.spawner.spawn("deleted volume", Box::pin(task));
        }
        for volume in &state.volumes {
            if before.clones != state.clones
                && let Some(VolumeService::Serving(fs)) = self.service(volume.id)
            {
                self.delete_leftovers(&fs).await;
            }
            let mut was = before.volumes.iter();
            if let Some(was) = was.find(|was| was.id == volume.id) {
                self.follow_listed(was).await;
            }
        }
        self.publish();
        if disks_changed {
            self.after_a_change().await;
        }
    }

    /// Whether a volume that is served here has nothing on a disk that drains, and will have nothing there.
    pub async fn has_left(&self, volume: VolumeId, disk: DiskId) -> bool {
        if !self.table().is_draining(disk) {
            return false;
        }
        // Shards on their way there when it began to drain are known then.
        self.store.placements_done().await;
        if !self.commits_done().await {
            return false;
        }
        let Some(VolumeService::Serving(fs)) = self.service(volume) else {
            return false;
        };
        let Some(counts) = self.store.shard_counts(volume) else {
            return false;
        };
        let has_shards = counts.iter().any(|(id, count)| *id == disk && *count > 0);
        let is_noted = !fs.meta().segments_on(disk).is_empty();
        !has_shards && !is_noted && !fs.meta().log().uses_disk(disk)
    }

    /// Has the disks of other nodes that can be reached used from now on, and no others.
    pub fn set_remote_disks(&self, disks: BTreeMap<DiskId, Arc<dyn ShardService>>) {
        if self.table().has_remote(&disks) {
            return;
        }
        self.change_table(|table| table.set_remote(disks));
        self.rebuild.wake();
    }

    /// Has the disks of these nodes waited for, however long they are away.
    pub fn set_awaited_nodes(&self, nodes: BTreeSet<NodeId>) {
        if *self.table().awaited() == nodes {
            return;
        }
        self.change_table(|table| table.set_awaited(nodes));
        self.rebuild.wake();
    }
}

/// The disks that logs and copies of states of the pool's volumes can be on.
pub struct PoolLogDisks {
    own: NodeId,
    pool: Weak<Pool>,
}

impl PoolLogDisks {
    pub fn new(own: NodeId, pool: &Arc<Pool>) -> Self {
        Self {
            own,
            pool: Arc::downgrade(pool),
        }
    }
}

impl LogDisks for PoolLogDisks {
    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>> {
        self.pool.upgrade()?.table().service(id)
    }

    /// This node's own first: one copy takes no way. Of these and of the others the faster kinds come first, then those with
    /// most space.
    fn choices(&self) -> Vec<(NodeId, Arc<dyn ShardService>)> {
        let Some(pool) = self.pool.upgrade() else {
            return Vec::new();
        };
        let table = pool.table();
        let staying = table.state.disks.iter().filter(|member| !member.draining);
        let there = staying.filter_map(|member| {
            let works = table.works(member.id);
            let disk = table.service(member.id).filter(|_| works)?;
            Some((member, disk))
        });
        let mut there: Vec<_> = there.collect();
        there.sort_by_cached_key(|(member, disk)| {
            let space = disk.space().ok();
            let kind = Kind::of(member).with_room(|| space);
            let free = std::cmp::Reverse(space.map_or(0, |space| space.free_bytes));
            (member.node != self.own, kind, free, disk.id())
        });
        let there = there.into_iter();
        there.map(|(member, disk)| (member.node, disk)).collect()
    }
}
