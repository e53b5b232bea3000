//! Files with reserved space: the writes of others leave them the space that they still need.
//!
//! Owns: which files have a reservation, how much each of them needs, and that this survives a restart. Must not
//! know: LUNs.
//!
//! A file needs the bytes of its size that it does not have. As long as there are snapshots, it needs all bytes
//! again: each overwritten byte stays for a snapshot. So a snapshot is refused if there is no room for that. A
//! reserved file shares its records with no other file, since the other would keep them as a snapshot does.
//!
//! Overwritten bytes are garbage until they are collected: the reservation includes as much as the allowed garbage of
//! the volume.
//!
//! The needs of all volumes of a server are in [`crate::DirtyBudget`], in bytes on disks, and are subtracted from the
//! free space that each of them sees. Only the file itself may use its reservation. Quotas count it as pending.
//!
//! Where other nodes fill the same disks, they leave it free as well ([`Claims`](crate::Claims)). A larger
//! reservation is granted in this order: there is room for it, the other nodes leave it free from now on, there still
//! is room, it is stored. Bytes that other nodes had acknowledged before are in their memory, and are subtracted from
//! the free space.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use cairn_base::Ino;
use cairn_erasure::Code;
use cairn_meta::InodeKind;
use cairn_segment::UsableSpace;
use parking_lot::RwLock;

use crate::hidden::HIDDEN;
use crate::kernel::{Inode, Reserved, meta_error, owner_of};
use crate::types::{Credentials, FsError, XattrMode};
use crate::volume::{Fs, VolumeCore};

/// An attribute of the hidden folder: version, then the number of each file and its bytes, u64 each.
const KEY: &[u8] = b"user.reserved";
const VERSION: u8 = 1;
/// Maximum number of reserved files of one volume.
pub const RESERVED_FILES_MAX: usize = 4000;
/// Reserved beside the bytes of the files and the allowed garbage: overwritten bytes are garbage until they are
/// collected, which takes a while and comes in whole segments.
const SLACK_BYTES: u64 = 64 << 20;
/// After a snapshot began, all bytes are needed again for so long, whether or not it exists yet.
const SNAPSHOT_COMES_MILLIS: u64 = 60_000;

impl Reserved {
    fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicU64::new(bytes),
            left: AtomicU64::new(bytes),
            told: AtomicU64::new(0),
        })
    }

    /// Follows a change of the file's used bytes; returns the part that it does not have.
    pub fn follow(&self, used_bytes: u64, is_removed: bool) -> u64 {
        let left = match is_removed {
            true => 0,
            false => self
                .bytes
                .load(Ordering::Relaxed)
                .saturating_sub(used_bytes),
        };
        self.left.store(left, Ordering::Relaxed);
        left
    }

    fn needed_bytes(&self, is_kept: bool) -> u64 {
        match is_kept {
            true => self.bytes.load(Ordering::Relaxed),
            false => self.left.load(Ordering::Relaxed),
        }
    }
}

/// Reserved files, and the state of each.
type Files = BTreeMap<Ino, (Arc<Inode>, Arc<Reserved>)>;

/// The reserved files of a volume.
#[derive(Default)]
pub(crate) struct Reservations {
    files: RwLock<Files>,
    /// Held by one change at a time.
    turn: tokio::sync::Mutex<()>,
    /// The need of a change that is not certain yet; 0: there is none. Changed by the holder of the turn.
    claimed: AtomicU64,
    /// Until this time, on the monotonic clock, all bytes are needed.
    whole_until_millis: AtomicU64,
    /// The reservation for garbage of these files at the last report to the budget.
    slack_told: AtomicU64,
}

/// Counts in [`Reservations::claimed`] until it is dropped.
struct Claimed<'a>(&'a Reservations);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.claimed.store(0, Ordering::Relaxed);
    }
}

/// Bytes on disks that so many bytes of files take under an erasure code.
fn on_disks(bytes: u64, code: Code) -> u64 {
    let taken = u128::from(bytes) * u128::from(code.total()) / u128::from(code.data());
    u64::try_from(taken).unwrap_or(u64::MAX)
}

/// Bytes of files under an erasure code that take so many bytes on disks.
fn of_files(bytes_on_disks: u64, code: Code) -> u64 {
    let taken = u128::from(bytes_on_disks) * u128::from(code.data());
    u64::try_from(taken.div_ceil(u128::from(code.total()))).unwrap_or(u64::MAX)
}

impl Fs {
    /// Reserves space for a regular file of the volume itself: as many bytes as the file may have. Also changes a
    /// reservation. Durable on return.
    ///
    /// [`FsError::NoSpace`] and [`FsError::QuotaExceeded`]: there is not enough space beside the reservations of
    /// others; [`FsError::NotSupported`] in a clone of a volume, and for another kind of file;
    /// [`FsError::Unreachable`]: another node that fills the disks cannot be reached now.
    pub async fn reserve(&self, ino: Ino, bytes: u64) -> Result<(), FsError> {
        let shared = &self.shared;
        if !self.branch().is_main() {
            return Err(FsError::NotSupported);
        }
        let _turn = shared.reservations.turn.lock().await;
        shared.require_serving()?;
        let inode = shared.reading(|| shared.inode(ino)).await?;
        let (owner, used_bytes, before) = {
            let state = inode.lock();
            state.require_live()?;
            if state.record.kind != InodeKind::Regular {
                return Err(FsError::NotSupported);
            }
            let before = state.reserved.clone();
            (owner_of(&state.record), state.record.used_bytes, before)
        };
        if before.is_none() && shared.reservations.files.read().len() >= RESERVED_FILES_MAX {
            return Err(FsError::TooManyLinks);
        }
        let is_kept = shared.keeps_what_is_overwritten();
        let reserved = Reserved::new(bytes);
        reserved.follow(used_bytes, false);
        let needed = |reserved: &Arc<Reserved>| reserved.needed_bytes(is_kept);
        let more = needed(&reserved).saturating_sub(before.as_ref().map_or(0, needed));
        let is_first = shared.reservations.files.read().is_empty();
        let slack = if is_first { shared.slack_bytes() } else { 0 };
        let more_in_all = more.saturating_add(slack);
        shared.require_unreserved(more_in_all)?;
        let _claimed = shared.claim(more_in_all).await?;
        shared.require_unreserved(0)?;
        // Counted until the file's own reservation counts.
        let _room = shared.room_of(owner, more)?;
        shared.note_reserved(&inode, Some(reserved));
        if let Err(error) = self.keep_reservations().await {
            shared.note_reserved(&inode, before);
            return Err(error);
        }
        Ok(())
    }

    /// Ends the reservation of a file. The file may be gone.
    pub async fn unreserve(&self, ino: Ino) -> Result<(), FsError> {
        let _turn = self.shared.reservations.turn.lock().await;
        let known = self.shared.reservations.files.read().get(&ino).cloned();
        let Some((inode, _)) = known else {
            return Ok(());
        };
        self.shared.require_serving()?;
        self.shared.note_reserved(&inode, None);
        self.keep_reservations().await
    }

    /// The bytes reserved for a file, with those that it has; 0: none.
    pub fn reserved_bytes(&self, ino: Ino) -> u64 {
        let files = self.shared.reservations.files.read();
        let found = files.get(&ino);
        found.map_or(0, |(_, reserved)| reserved.bytes.load(Ordering::Relaxed))
    }

    /// Bytes on disks that files of this volume may still take from their reservations, or from those that are being
    /// made.
    pub fn reserved_on_disks(&self) -> u64 {
        // Without an erasure code nothing is written.
        if let Ok(code) = self.shared.code() {
            self.shared.tell_reserved(code);
        }
        self.shared.dirty.reserved_bytes()
    }

    async fn keep_reservations(&self) -> Result<(), FsError> {
        let mut value = vec![VERSION];
        for (ino, (_, reserved)) in self.shared.reservations.files.read().iter() {
            value.extend(ino.0.to_le_bytes());
            value.extend(reserved.bytes.load(Ordering::Relaxed).to_le_bytes());
        }
        let hidden = self.make_hidden_folder().await?;
        self.set_xattr(&Credentials::ROOT, hidden, KEY, &value, XattrMode::Any)
            .await?;
        Ok(())
    }
}

impl VolumeCore {
    /// Loads the stored reservations, before anything is served.
    pub(crate) fn load_reservations(&self) -> Result<(), FsError> {
        let hidden = match self.own_inode(HIDDEN) {
            Ok(_) => HIDDEN,
            Err(FsError::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let key = cairn_meta::Key::xattr(hidden, KEY);
        let Some(stored) = self.meta.live().get(&key).map_err(meta_error)? else {
            return Ok(());
        };
        let value = self.xattr_values.read(hidden, KEY, &stored)?;
        for (ino, bytes) in decode(value)? {
            match self.own_inode(ino) {
                Ok(inode) => self.note_reserved(&inode, Some(Reserved::new(bytes))),
                // The file was removed, and nobody ended its reservation.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn note_reserved(&self, inode: &Arc<Inode>, reserved: Option<Arc<Reserved>>) {
        let mut state = inode.lock();
        let mut files = self.reservations.files.write();
        match &reserved {
            Some(reserved) if !state.removed => {
                files.insert(inode.ino, (Arc::clone(inode), Arc::clone(reserved)));
            }
            _ => {
                files.remove(&inode.ino);
            }
        }
        drop(files);
        state.reserved = reserved;
        self.sync_pending(&mut state);
        drop(state);
        self.forget_space();
    }

    pub(crate) fn is_reserved(&self, ino: Ino) -> bool {
        self.reservations.files.read().contains_key(&ino)
    }

    /// Whether overwritten bytes stay: there are snapshots, or remains of them, or one is being taken.
    fn keeps_what_is_overwritten(&self) -> bool {
        let now = self.env.clock.monotonic().as_millis();
        let until = self.reservations.whole_until_millis.load(Ordering::Relaxed);
        now < u128::from(until)
            || self.meta.snapshot_count() > 0
            || !self.meta.deleted_snapshots().is_empty()
    }

    /// Reports the needs of this volume's reserved files to the budget of all volumes of the server. `code`: the
    /// volume's erasure code.
    pub(crate) fn tell_reserved(&self, code: Code) {
        let claimed = self.reservations.claimed.load(Ordering::Relaxed);
        let needed = self.needed_bytes().max(claimed);
        self.dirty.set_reserved(on_disks(needed, code));
    }

    /// The need of this volume's reserved files and of their garbage; 0: there are none.
    fn needed_bytes(&self) -> u64 {
        let files = self.reservations.files.read();
        match files.is_empty() {
            true => 0,
            false => {
                let is_kept = self.keeps_what_is_overwritten();
                let needed = files.values().map(|(_, reserved)| {
                    let needed = reserved.needed_bytes(is_kept);
                    reserved.told.store(needed, Ordering::Relaxed);
                    needed
                });
                let slack = self.slack_bytes();
                let told = &self.reservations.slack_told;
                told.store(slack, Ordering::Relaxed);
                needed.fold(slack, u64::saturating_add)
            }
        }
    }

    /// Counts so many more bytes as reserved until the returned guard is dropped, and makes other nodes leave them
    /// free. The caller holds the turn.
    async fn claim(&self, more: u64) -> Result<Claimed<'_>, FsError> {
        let code = self.code()?;
        let needed = self.needed_bytes().saturating_add(more);
        let reservations = &self.reservations;
        reservations.claimed.store(needed, Ordering::Relaxed);
        let claimed = Claimed(reservations);
        if let Some(claims) = self.dirty.budget().claims() {
            let told = claims.claim(self.volume, on_disks(needed, code));
            told.await?;
        }
        Ok(claimed)
    }

    /// The space that overwrites of reserved files may take until it is collected.
    fn slack_bytes(&self) -> u64 {
        let live_bytes = self.meta.segment_totals().live_bytes;
        let allowed_bytes = self.limits(live_bytes).0.allowed_bytes;
        allowed_bytes.saturating_add(SLACK_BYTES)
    }

    /// Room under an erasure code, without reservations.
    pub(crate) fn usable(&self, code: Code) -> UsableSpace {
        let mut usable = self.segments.usable(code);
        let unflushed = self.dirty.budget().unflushed_bytes();
        let taken = self.reserved_under(code).saturating_add(unflushed);
        usable.free_bytes = usable.free_bytes.saturating_sub(taken);
        usable
    }

    /// Reservations for files of all volumes, as bytes of files under an erasure code.
    pub(crate) fn reserved_under(&self, code: Code) -> u64 {
        of_files(self.dirty.budget().reserved_bytes(), code)
    }

    /// Refuses to reserve so many more bytes if there is no room.
    fn require_unreserved(&self, more: u64) -> Result<(), FsError> {
        let code = self.code()?;
        self.tell_reserved(code);
        let budget = self.dirty.budget();
        let pending = budget.bytes().saturating_add(budget.unflushed_bytes());
        let wanted = self.reserved_under(code).saturating_add(more);
        let wanted = wanted.saturating_add(pending);
        match self.segments.usable(code).free_bytes < wanted {
            true => Err(FsError::NoSpace),
            false => Ok(()),
        }
    }

    /// Refuses a snapshot after which reserved files could not be overwritten completely.
    pub(crate) async fn require_room_for_snapshot(&self) -> Result<(), FsError> {
        if self.reservations.files.read().is_empty() {
            return Ok(());
        }
        let _turn = self.reservations.turn.lock().await;
        let more = self.needed_more_when_kept();
        self.require_unreserved(more)?;
        let _claimed = self.claim(more).await?;
        self.require_unreserved(0)?;
        // Other writers must not take the space before the snapshot exists.
        let now = u64::try_from(self.env.clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let until = now.saturating_add(SNAPSHOT_COMES_MILLIS);
        let whole_until = &self.reservations.whole_until_millis;
        whole_until.fetch_max(until, Ordering::Relaxed);
        self.forget_space();
        Ok(())
    }

    /// The additional need of the reserved files once overwritten bytes stay.
    fn needed_more_when_kept(&self) -> u64 {
        let files = self.reservations.files.read();
        let is_kept = self.keeps_what_is_overwritten();
        let more = files.values().map(|(_, reserved)| {
            let needed = reserved.needed_bytes(true);
            needed - reserved.needed_bytes(is_kept).min(needed)
        });
        more.fold(0, u64::saturating_add)
    }

    /// Checks whether a write to a reserved file may begin. It uses the file's reservation. If that is still garbage,
    /// it comes back later: [`FsError::TryLater`].
    pub(crate) fn require_reserved_space(
        &self,
        reserved: &Reserved,
        len_bytes: u64,
    ) -> Result<(), FsError> {
        if !self.meta.is_full() {
            let space = self.pool_space();
            let own = reserved.told.load(Ordering::Relaxed);
            let pending = self.dirty.budget().bytes().saturating_add(len_bytes);
            let slack = self.reservations.slack_told.load(Ordering::Relaxed);
            let others = space
                .reserved_bytes
                .saturating_sub(own.saturating_add(slack));
            if space.free_bytes_beside >= pending.saturating_add(others) {
                return Ok(());
            }
            self.gc_wake.notify_one();
            let totals = self.meta.segment_totals();
            let allowed_bytes = self.limits(totals.live_bytes).0.allowed_bytes;
            let garbage_bytes =
                totals.dead_bytes + totals.sparse_bytes.saturating_sub(allowed_bytes);
            if garbage_bytes > 0 && self.segments.has_working_disk() {
                return Err(FsError::TryLater);
            }
        }
        self.require_pool_space(len_bytes)
    }
}

fn decode(mut value: Bytes) -> Result<Vec<(Ino, u64)>, FsError> {
    let damaged = || FsError::Io("what is kept of reserved files cannot be read".to_owned());
    if value.is_empty() || value.get_u8() != VERSION || !value.len().is_multiple_of(16) {
        return Err(damaged());
    }
    let mut files = Vec::new();
    while value.has_remaining() {
        let ino = Ino(value.get_u64_le());
        files.push((ino, value.get_u64_le()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_or_refused() {
        let mut good = vec![VERSION];
        good.extend(7_u64.to_le_bytes());
        good.extend(9_u64.to_le_bytes());
        assert_eq!(decode(good.clone().into()), Ok(vec![(Ino(7), 9)]));
        assert_eq!(decode(vec![VERSION].into()), Ok(Vec::new()));
        let mut short = good.clone();
        short.pop();
        let mut newer = good;
        newer[0] = 2;
        for bytes in [Vec::new(), short, newer] {
            assert!(decode(bytes.into()).is_err());
        }
    }

    #[test]
    fn bytes_on_disks_are_those_of_all_shards() {
        let code = Code::new(4, 2).unwrap();
        assert_eq!(on_disks(4096, code), 6144);
        assert_eq!(of_files(6144, code), 4096);
        // Never less than the reservation.
        assert_eq!(of_files(1, code), 1);
        assert_eq!(of_files(u64::MAX, Code::new(1, 0).unwrap()), u64::MAX);
    }
}
