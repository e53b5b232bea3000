//! The kernel of a volume: what is in memory of its inodes, and the one way to change what is stored of them.
//!
//! Owns: inodes and their table, dirty data, extents in memory and in batches, the flush queue, the requests that
//! changes answer, locks of several inodes, and [`Change`], which stores changed inodes and gives them the ticket that
//! readers wait for. Must not know: any feature. Names, quotas, policies, snapshots, garbage collection and all others
//! stand on it, and nothing here imports them.
//!
//! Features cannot do the following, because the fields are private to this module:
//!
//! - submit a batch. They commit a [`Change`]; [`Kernel::commit_bare`] takes batches that touch no inode in memory, and
//!   [`Metadata::commit_unopened`] those from before the volume is open.
//! - set the tickets of an inode ([`State::ticket`], [`State::changed`]). Only the end of a change does.
//! - write the record of an inode. [`Edit::record`] does, in a change, which then stores the record. Unstable writes and
//!   access times, which need not be durable, have functions of their own ([`State::note_written`],
//!   [`State::note_atime`]).
//! - change one of several locked inodes outside of a change. [`Locked`] only reads.

/// An assertion that walks over a whole change. It runs in tests and in the simulator, and costs nothing in the
/// product.
macro_rules! assert_in_tests {
    ($condition:expr, $($why:tt)+) => {
        if cairn_base::planted::CAN_BE_PLANTED {
            assert!($condition, $($why)+);
        }
    };
}

mod accounts;
mod branches;
mod budget;
mod change;
mod dirty;
mod errors;
mod extent_batch;
mod extents;
mod inode;
mod loading;
mod locked;
mod lookup;
mod metadata;
mod queue;
mod ranges;
mod requests;
mod table;
#[cfg(test)]
mod tests;
mod usage;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use bytes::Bytes;
use cairn_base::env::Env;
use cairn_base::{Generation, Ino, SegmentId, Timestamp, VolumeId};
use cairn_meta::{Batch, Fold, InodeRecord, JournalEntry, KeyKind, Ticket};
use cairn_segment::SegmentStore;

pub(crate) use accounts::{CachedPolicy, Charged, Domain, Domains, Limits, QuotaNotices, Reserved};
pub(crate) use branches::{Branches, MARK_VERSION, TURNS};
pub use budget::{Claims, DirtyBudget};
pub(crate) use budget::{DirtyAccount, NO_SPACE_PATIENCE};
pub(crate) use change::{Change, Commit, Committed, Edit, Record, Shown, UndoWhen};
pub(crate) use dirty::{Load, Run, has_bytes_in};
pub(crate) use errors::{meta_error, segment_error, stored_kind};
pub(crate) use extent_batch::Why;
pub(crate) use extents::{
    Ahead, Extent, ExtentChange, ExtentContent, ExtentCount, ExtentMap, RecordExtent,
};
pub(crate) use inode::{FlightResult, Inode, State, kind_of};
pub(crate) use loading::parse_extent;
pub(crate) use locked::{Guard, Locked};
pub(crate) use metadata::Metadata;
pub use requests::REQUESTS_KEPT;
pub(crate) use usage::{of_volume, owner_of, usage_of};

use self::queue::FlushQueue;
use self::requests::Requests;
use self::table::InodeTable;
use crate::tasks::Tasks;
use crate::types::{FsError, RequestId};

/// The root directory of every volume.
pub const ROOT: Ino = Ino(1);
/// Inodes of snapshots in memory.
const SNAPSHOT_INODES_MAX: usize = 8 << 10;

type SnapshotInodes = quick_cache::sync::Cache<
    (Generation, Ino),
    Arc<Inode>,
    quick_cache::UnitWeighter,
    rustc_hash::FxBuildHasher,
>;

/// The kernel of an open volume.
pub(crate) struct Kernel {
    pub env: Env,
    pub volume: VolumeId,
    /// To read it. The kernel submits.
    pub meta: Metadata,
    pub segments: Arc<SegmentStore>,
    pub branches: Branches,
    pub dirty: DirtyAccount,
    pub tasks: Arc<Tasks>,
    inodes: InodeTable,
    /// Inodes as snapshots show them.
    snapshot_inodes: SnapshotInodes,
    extent_count: ExtentCount,
    /// The limit; it may change while the volume is open.
    extents_max: AtomicUsize,
    /// Bytes in memory that do not replace stored ones, of the store's own volume ([`State::fresh`]).
    fresh_bytes: AtomicI64,
    queue: FlushQueue,
    requests: Requests,
}

/// Limits of what is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLimits {
    pub inodes_max: usize,
    pub extents_max: usize,
}

/// What a batch is about that touches no inode in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    /// Records of segments: sealed, placed, removed, used, in a tier.
    Segments,
    /// Versions that only snapshots show.
    History,
    /// Quotas, their graces and trees.
    Quotas,
    /// Policies of directories, and the conversion to them.
    Policies,
    /// The mark of an orphan that is gone.
    Orphans,
    /// Inodes that a branch takes over or loses, none of which it has in memory; and the mark of a deleted volume.
    Branches,
    /// The hidden folder, which is made.
    Hidden,
    /// What a planted bug submits.
    Planted,
}

impl Kernel {
    pub fn open(
        env: Env,
        volume: VolumeId,
        meta: Metadata,
        segments: Arc<SegmentStore>,
        dirty: Arc<DirtyBudget>,
        limits: MemoryLimits,
    ) -> Result<Self, FsError> {
        let requests = Requests::open(&env, &meta).map_err(meta_error)?;
        let branches = Branches::open(&meta).map_err(meta_error)?;
        meta.begin();
        let of_snapshots = SNAPSHOT_INODES_MAX.min(limits.inodes_max.max(16));
        Ok(Self {
            tasks: Arc::new(Tasks::new(env.clone())),
            env,
            volume,
            meta,
            segments,
            branches,
            dirty: DirtyAccount::new(dirty),
            inodes: InodeTable::new(limits.inodes_max),
            snapshot_inodes: SnapshotInodes::with(
                of_snapshots,
                of_snapshots as u64,
                quick_cache::UnitWeighter,
                rustc_hash::FxBuildHasher,
                Default::default(),
            ),
            extent_count: ExtentCount::default(),
            extents_max: AtomicUsize::new(limits.extents_max),
            fresh_bytes: AtomicI64::new(0),
            queue: FlushQueue::default(),
            requests,
        })
    }

    /// Submits a batch that touches no inode in memory. Nothing in memory has to follow.
    pub fn commit_bare(&self, about: Bare, batch: Batch) -> Ticket {
        assert_in_tests!(self.touches_no_inode(about, &batch), "{about:?}");
        let (ticket, _) = self.meta.submit_in(batch);
        // It would count as durable at once.
        assert!(ticket > Ticket::NONE);
        ticket
    }

    /// As [`Self::commit_bare`], for a batch that refers to records of others in these segments. `None`, and nothing is
    /// changed, if one of the segments has no live record any more.
    pub fn commit_bare_sharing(
        &self,
        about: Bare,
        batch: Batch,
        segments: &[SegmentId],
    ) -> Option<Ticket> {
        assert_in_tests!(self.touches_no_inode(about, &batch), "{about:?}");
        let submitted = match segments.is_empty() {
            true => Some(self.meta.submit_in(batch)),
            false => self.meta.submit_sharing_in(batch, segments),
        };
        let ticket = submitted.map(|(ticket, _)| ticket);
        assert!(ticket.is_none_or(|ticket| ticket > Ticket::NONE));
        ticket
    }

    /// Whether memory has none of the inodes whose records or extents a batch changes. A walk over all keys.
    fn touches_no_inode(&self, about: Bare, batch: &Batch) -> bool {
        about == Bare::Planted
            || batch.keys().all(|key| match key.kind() {
                Ok(KeyKind::Inode(ino)) => !self.inodes.has(ino),
                Ok(KeyKind::Extent { ino, .. }) => !self.inodes.has(ino) || about == Bare::Branches,
                Ok(_) => true,
                Err(_) => false,
            })
    }

    /// An inode with a record that the metadata does not have yet. It is in no table.
    pub fn new_inode(&self, ino: Ino, record: InodeRecord) -> Arc<Inode> {
        Inode::new(ino, State::new(record, self.no_extents()))
    }

    /// Adds an inode to the table before the metadata has it: it gets its name later, or never.
    pub fn add_unstored(&self, inode: Arc<Inode>) {
        assert!(inode.view.is_live());
        assert!(inode.lock().ticket == Ticket::NONE);
        self.inodes.insert(inode);
    }

    /// Calls `visit` with each inode in memory, without a lock of the table.
    pub fn visit_inodes(&self, visit: impl FnMut(&Arc<Inode>)) {
        self.inodes.visit(visit);
    }

    /// The number of inodes in memory, and of those that were evicted.
    pub fn inode_counts(&self) -> (u64, u64) {
        (self.inodes.len() as u64, self.inodes.evicted())
    }

    pub fn extents_in_memory(&self) -> usize {
        self.extent_count.get()
    }

    pub fn set_memory_limits(&self, limits: MemoryLimits) {
        self.inodes.set_inodes_max(limits.inodes_max);
        self.extents_max
            .store(limits.extents_max, Ordering::Relaxed);
    }

    /// Bytes in memory that will add to what files of the store's own volume use.
    pub fn fresh_bytes(&self) -> u64 {
        u64::try_from(self.fresh_bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Follows a change of the bytes of an inode that are counted so. Called under its lock.
    pub fn count_fresh(&self, state: &mut State, counted_bytes: u64) {
        let before = std::mem::replace(&mut state.fresh_counted_bytes, counted_bytes);
        let delta = counted_bytes as i64 - before as i64;
        if delta != 0 {
            self.fresh_bytes.fetch_add(delta, Ordering::Relaxed);
        }
    }

    /// The inode that a request made, changed or removed before the volume was opened here.
    pub fn made_before(&self, request: &RequestId) -> Option<Ino> {
        self.requests.made_before(&self.env, request)
    }

    pub fn now(&self) -> Timestamp {
        self.env.clock.now()
    }

    /// Checked before a change. A change in memory while the volume closes may be refused afterwards, and other
    /// clients would see it until then. Likewise in a read-only volume.
    pub fn require_serving(&self) -> Result<(), FsError> {
        self.require_open()?;
        match self.meta.read_only() {
            Some(_) => Err(FsError::NoSpace),
            None => Ok(()),
        }
    }

    /// Fails if the volume is closing, which ends reads, too.
    pub fn require_open(&self) -> Result<(), FsError> {
        match self.tasks.is_stopping() {
            true => Err(FsError::Fenced),
            false => Ok(()),
        }
    }

    /// Waits until `ticket` is durable.
    pub async fn durable(&self, ticket: Ticket) -> Result<(), FsError> {
        if self.meta.is_durable(ticket) {
            return Ok(());
        }
        self.meta.durable(ticket).await.map_err(meta_error)
    }

    /// As [`Self::durable`], for a reply to a client. If the metadata fails meanwhile, this waits until the volume is
    /// opened again, and returns whether the change took effect: a client that is told "not now" repeats it, and
    /// would find that its name exists, or is gone. No task that the closing of the volume waits for may call this.
    pub async fn outcome(&self, ticket: Ticket) -> Result<(), FsError> {
        if self.meta.is_durable(ticket) {
            return Ok(());
        }
        self.meta.outcome(ticket).await.map_err(meta_error)
    }

    /// Ends an operation: a success waits for its own submission, or for the last one that it reports on. A refusal
    /// may rest on a change that is visible and not yet durable (a name that "exists", for example), so it waits for
    /// all.
    pub async fn settle<T>(&self, done: Result<(T, Ticket), FsError>) -> Result<T, FsError> {
        match done {
            Ok((value, ticket)) => {
                if !self.meta.is_durable(ticket) {
                    // Boxed, as few operations wait: otherwise the future of each would have the room for it.
                    Box::pin(self.outcome(ticket)).await?;
                }
                Ok(value)
            }
            Err(error) => {
                Box::pin(self.outcome(self.meta.last_ticket())).await?;
                Err(error)
            }
        }
    }
}

/// The flush queue.
impl Kernel {
    /// Puts an inode that differs from the metadata into the flush queue.
    pub fn enqueue(&self, inode: &Arc<Inode>, state: &mut State) {
        // What a snapshot shows never changes.
        assert!(inode.view.is_live());
        if !state.queued {
            state.queued = true;
            state.dirty_since = self.env.clock.monotonic();
            self.queue.put(Arc::clone(inode));
        }
    }

    pub fn queue(&self) -> &FlushQueue {
        &self.queue
    }
}

/// The entry of the journal for bytes of a file, with the attributes that the file has now.
fn journal_entry(state: &State, ino: Ino, offset: u64, data: Bytes) -> JournalEntry {
    JournalEntry {
        position: Default::default(),
        ino,
        offset,
        data,
        // The journal fills this in.
        encryption: None,
        size_bytes: state.stable_size_bytes,
        mtime: state.record.mtime,
        ctime: state.record.ctime,
        mode: state.record.mode,
    }
}

/// Journaled bytes in a range that newer bytes replace must not come back after a crash.
pub(crate) fn fold_journal(ino: Ino, state: &State, range: &Range<u64>, batch: &mut Batch) {
    if state.journal_last.0 > 0 {
        batch.fold(Fold {
            ino,
            start: range.start,
            end: range.end,
            through: state.journal_last,
        });
    }
}
