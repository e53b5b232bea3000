//! The metadata store as the rest of the crate sees it: everything can be read, and nothing can be submitted.
//!
//! Owns: which calls of the store exist for features, and the two gates beside [`super::Change`]: [`super::Kernel`]
//! submits batches that touch no inode in memory, and [`Metadata::commit_unopened`] those from before the volume is
//! open. Must not know: what batches contain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Branch, Epoch, Generation, Ino, LogPosition, SegmentId, View, VolumeId};
use cairn_meta::{
    Batch, CommitHold, DeadVersion, Durable, GoneSince, JournalPressure, Key, MetaError, MetaStore,
    MetaView, NewSnapshot, QuotaKey, SegmentRecord, SegmentTotals, SegmentUsage, SnapshotError,
    SnapshotRecord, Ticket, UsageRecord, VolumeCounters,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A handle on the metadata store of the volume. Clones are the same store.
#[derive(Clone)]
pub(crate) struct Metadata {
    store: Arc<MetaStore>,
    /// Inodes may be in memory: every batch goes through the kernel from then on.
    is_open: Arc<AtomicBool>,
}

/// Calls that pass on to the store, and change nothing in it.
macro_rules! pass_on {
    ($( $name:ident($($arg:ident: $of:ty),*) $(-> $out:ty)?; )*) => {
        impl Metadata {
            $(
                pub fn $name(&self, $($arg: $of),*) $(-> $out)? {
                    self.store.$name($($arg),*)
                }
            )*
        }
    };
}

pass_on! {
    epoch() -> Epoch;
    generation() -> Generation;
    live() -> MetaView<'_>;
    view(view: View) -> Result<MetaView<'_>, MetaError>;
    snapshots() -> Vec<(Generation, SnapshotRecord)>;
    snapshot_count() -> u64;
    deleted_snapshots() -> Vec<(Generation, SnapshotRecord)>;
    restoring() -> Option<(Generation, SnapshotRecord)>;
    dead_version(version: &DeadVersion) -> Result<Option<DeadVersion>, MetaError>;
    last_ticket() -> Ticket;
    last_change() -> Ticket;
    durable(ticket: Ticket) -> Durable;
    is_durable(ticket: Ticket) -> bool;
    is_full() -> bool;
    read_only() -> Option<&str>;
    counters() -> VolumeCounters;
    counts_of(branch: Branch) -> (u64, u64);
    is_tree_used(tree: Ino) -> bool;
    own_usage(key: &QuotaKey) -> UsageRecord;
    own_usages() -> Vec<(QuotaKey, UsageRecord)>;
    segment(id: SegmentId) -> Option<SegmentRecord>;
    segments() -> Vec<(SegmentId, SegmentRecord)>;
    segment_usage(from: SegmentId, max: usize) -> Vec<SegmentUsage>;
    segment_totals() -> SegmentTotals;
    dead_segments(max: usize) -> Vec<SegmentId>;
    remote_segments(from: SegmentId, max: usize) -> Vec<(SegmentId, SegmentRecord)>;
    unsealed_segments(from: SegmentId, max: usize) -> Vec<SegmentId>;
    journal_pressure() -> JournalPressure;
    journal_inodes(through: LogPosition) -> Vec<Ino>;
    batch_bytes_max() -> usize;
}

/// Numbers, which are never given out twice; and what only memory has.
impl Metadata {
    pub fn allocate_ino(&self) -> Ino {
        self.store.allocate_ino()
    }

    pub fn allocate_segment(&self) -> SegmentId {
        self.store.allocate_segment()
    }

    pub fn set_tree_parents(&self, parents: FxHashMap<Ino, Ino>) {
        self.store.set_tree_parents(parents);
    }

    /// See [`MetaStore::give_back_log`].
    pub fn give_back_log(&self) {
        self.store.give_back_log();
    }

    /// See [`MetaStore::hold`].
    pub fn hold(&self) -> CommitHold {
        self.store.hold()
    }
}

/// Reads.
impl Metadata {
    pub fn usages(&self, keys: impl Iterator<Item = QuotaKey>) -> SmallVec<[UsageRecord; 4]> {
        self.store.usages(keys)
    }

    pub fn find_usages(
        &self,
        max: usize,
        wanted: impl Fn(&QuotaKey) -> bool,
    ) -> Vec<(QuotaKey, UsageRecord)> {
        self.store.find_usages(max, wanted)
    }

    /// See [`MetaStore::versions_of`].
    pub fn versions_of(
        &self,
        generation: Generation,
        from: Option<&Key>,
        max: usize,
    ) -> Result<Vec<DeadVersion>, MetaError> {
        self.store.versions_of(generation, from, max)
    }

    /// See [`MetaStore::gone_since`].
    pub fn gone_since(
        &self,
        seen: Generation,
        up_to: Generation,
        span: (&Key, &Key),
        from: Option<&Key>,
        max: usize,
    ) -> Result<GoneSince, MetaError> {
        self.store.gone_since(seen, up_to, span, from, max)
    }

    /// See [`MetaStore::history`].
    pub fn history(
        &self,
        from: &Key,
        to: &Key,
        after: Option<(&Key, Generation)>,
        max: usize,
    ) -> Result<Vec<DeadVersion>, MetaError> {
        self.store.history(from, to, after, max)
    }

    /// See [`MetaStore::reading`].
    pub async fn reading<T, E>(&self, op: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        self.store.reading(op).await
    }

    pub async fn applied(&self, ticket: Ticket) -> Result<(), MetaError> {
        self.store.applied(ticket).await
    }

    pub async fn outcome(&self, ticket: Ticket) -> Result<(), MetaError> {
        self.store.outcome(ticket).await
    }

    pub async fn admit(&self) {
        self.store.admit().await;
    }
}

/// Changes of the list of snapshots and branches, which no batch can hold.
impl Metadata {
    pub fn take_snapshot(&self, new: NewSnapshot) -> Result<(Generation, Ticket), SnapshotError> {
        self.store.take_snapshot(new)
    }

    /// Takes snapshots of several stores at one instant; see [`MetaStore::take_snapshots`].
    pub fn take_snapshots(
        stores: &[(&Self, Branch)],
        new: &NewSnapshot,
    ) -> Result<Vec<(Generation, Ticket)>, (usize, SnapshotError)> {
        assert!(!stores.is_empty());
        let all = stores.iter();
        let all: Vec<_> = all.map(|(meta, branch)| (&*meta.store, *branch)).collect();
        let taken = MetaStore::take_snapshots(&all, new)?;
        // One for each store: a caller pairs them by their order.
        assert!(taken.len() == stores.len());
        Ok(taken)
    }

    pub fn change_snapshot(
        &self,
        generation: Generation,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> Result<Ticket, SnapshotError> {
        self.store.change_snapshot(generation, change)
    }

    pub fn remove_snapshot(&self, generation: Generation) -> Result<Ticket, SnapshotError> {
        self.store.remove_snapshot(generation)
    }

    pub fn begin_branch(
        &self,
        generation: Generation,
        volume: VolumeId,
        nameless: (u64, u64),
    ) -> Result<(Branch, Ticket), SnapshotError> {
        let begun = self.store.begin_branch(generation, volume, nameless)?;
        assert!(!begun.0.is_main());
        Ok(begun)
    }

    pub fn end_branch(&self, branch: Branch, is_freed: bool) -> Result<Ticket, SnapshotError> {
        assert!(!branch.is_main());
        self.store.end_branch(branch, is_freed)
    }
}

/// The ways into the store, and its end.
impl Metadata {
    pub fn new(store: Arc<MetaStore>) -> Self {
        Self {
            store,
            is_open: Arc::default(),
        }
    }

    /// The store itself, for [`crate::Fs::meta`] alone: other crates watch the store, and move its log.
    pub fn for_other_crates(&self) -> &Arc<MetaStore> {
        &self.store
    }

    pub async fn close(&self) -> Result<(), MetaError> {
        self.store.close().await
    }

    pub async fn abort(&self) {
        self.store.abort().await;
    }

    pub fn abandon(&self) {
        self.store.abandon();
    }

    /// Submits a batch while the volume is being made or opened: no inode is in memory yet, so no inode's ticket has
    /// to follow.
    pub fn commit_unopened(&self, batch: Batch) -> Ticket {
        assert!(!self.is_open.load(Ordering::Acquire));
        self.store.submit(batch)
    }

    /// From here on inodes may be in memory.
    pub(super) fn begin(&self) {
        let was_open = self.is_open.swap(true, Ordering::AcqRel);
        assert!(!was_open, "a volume is opened once");
    }

    pub(super) fn submit_in(&self, batch: Batch) -> (Ticket, Generation) {
        assert!(self.is_open.load(Ordering::Acquire));
        self.store.submit_in(batch)
    }

    /// `None`, and nothing is changed, if one of the segments has no live record.
    pub(super) fn submit_sharing_in(
        &self,
        batch: Batch,
        segments: &[SegmentId],
    ) -> Option<(Ticket, Generation)> {
        assert!(self.is_open.load(Ordering::Acquire));
        self.store.submit_sharing_in(batch, segments)
    }
}
