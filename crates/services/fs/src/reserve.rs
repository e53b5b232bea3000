//! Files whose space is set aside: what others write leaves them what they need yet.
//!
//! Owns: which files these are, how much each of them needs, and that it is so over a restart. Must not know: what a LUN is.
//!
//! A file needs the bytes of its size that it does not have. As long as there are snapshots it needs all of them again: each
//! byte that is overwritten stays for a snapshot. So a snapshot is refused for which there is no room beside that. A reserved
//! file shares its records with no other, which would keep them as a snapshot does.
//!
//! What is overwritten is garbage until it is collected: as much as there may be of that in the volume is set aside, too.
//!
//! What all volumes of a server need is in [`crate::DirtyBudget`], in bytes on disks, and is taken off what each of them finds free. Only
//! the file itself may use it. Quotas count it as pending.
//!
//! Where others fill the same disks, they leave it free as well ([`Claims`](crate::Claims)). More is promised in this order: there is
//! room for it, others leave it free from now on, there still is room, it is kept. What others had acknowledged before is in their
//! memory, and taken off what is free.

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
use crate::inode::Inode;
use crate::quota::owner_of;
use crate::types::{Credentials, FsError, XattrMode};
use crate::volume::{Fs, VolumeCore, meta_error};

/// Of the hidden folder: version, then the number of each file and its bytes, u64 each.
const KEY: &[u8] = b"user.reserved";
const VERSION: u8 = 1;
/// Files of one volume.
pub const RESERVED_FILES_MAX: usize = 4000;
/// What is set aside beside the files of a volume, and as much as there may be garbage in it: what is overwritten is garbage until
/// it is collected, which takes a while and comes in whole segments.
const SLACK_BYTES: u64 = 64 << 20;
/// After a snapshot began all bytes are needed again for so long, whether or not it is there yet.
const SNAPSHOT_COMES_MILLIS: u64 = 60_000;

/// What is set aside for one file.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// Its size, of which it needs what it does not have.
    bytes: AtomicU64,
    /// What it does not have of them; changed under the file's lock.
    left: AtomicU64,
    /// What it was counted with when others were told last.
    told: AtomicU64,
}

impl Reserved {
    fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicU64::new(bytes),
            left: AtomicU64::new(bytes),
            told: AtomicU64::new(0),
        })
    }

    /// Follows a change of what the file has; returns what it does not have.
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

/// Files that ask for space, and what each has.
type Files = BTreeMap<Ino, (Arc<Inode>, Arc<Reserved>)>;

/// The reserved files of a volume.
#[derive(Default)]
pub(crate) struct Reservations {
    files: RwLock<Files>,
    /// One change at a time.
    turn: tokio::sync::Mutex<()>,
    /// What the files come to need, while that is not sure yet; 0: nothing more. Changed by who has the turn.
    claimed: AtomicU64,
    /// Until then all bytes are needed, on the monotonic clock.
    whole_until_millis: AtomicU64,
    /// What others were told last that is set aside for garbage of these files.
    slack_told: AtomicU64,
}

/// Has [`Reservations::claimed`] count for as long as it is there.
struct Claimed<'a>(&'a Reservations);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.claimed.store(0, Ordering::Relaxed);
    }
}

/// Bytes on disks that so many bytes of files take under a code.
fn on_disks(bytes: u64, code: Code) -> u64 {
    let taken = u128::from(bytes) * u128::from(code.total()) / u128::from(code.data());
    u64::try_from(taken).unwrap_or(u64::MAX)
}

/// Bytes of files under a code for which so many bytes on disks are taken.
fn of_files(bytes_on_disks: u64, code: Code) -> u64 {
    let taken = u128::from(bytes_on_disks) * u128::from(code.data());
    u64::try_from(taken.div_ceil(u128::from(code.total()))).unwrap_or(u64::MAX)
}

impl Fs {
    /// Sets space aside for a regular file of the volume itself, as many bytes as it may come to have, or changes how many. Durable
    /// when answered.
    ///
    /// [`FsError::NoSpace`] and [`FsError::QuotaExceeded`]: there is not so much, beside what is set aside for others;
    /// [`FsError::NotSupported`] in a clone of a volume, and for another kind of file; [`FsError::Unreachable`]: others who fill the
    /// disks cannot be told now.
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
        // Counted until the file itself is.
        let _room = shared.room_of(owner, more)?;
        shared.note_reserved(&inode, Some(reserved));
        if let Err(error) = self.keep_reservations().await {
            shared.note_reserved(&inode, before);
            return Err(error);
        }
        Ok(())
    }

    /// Sets nothing aside for a file any more. The file may be gone.
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

    /// The bytes that are set aside for a file, what it has of them included; 0: none.
    pub fn reserved_bytes(&self, ino: Ino) -> u64 {
        let files = self.shared.reservations.files.read();
        let found = files.get(&ino);
        found.map_or(0, |(_, reserved)| reserved.bytes.load(Ordering::Relaxed))
    }

    /// Bytes on disks that files of this volume may take yet of what is set aside for them, or is about to be.
    pub fn reserved_on_disks(&self) -> u64 {
        // Without a code nothing is written.
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
    /// Takes up what was kept, before anything is served.
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
                // It was removed, and nobody came to say so.
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

    /// Whether bytes that are overwritten stay: there are snapshots, or what is left of them, or one comes.
    fn keeps_what_is_overwritten(&self) -> bool {
        let now = self.env.clock.monotonic().as_millis();
        let until = self.reservations.whole_until_millis.load(Ordering::Relaxed);
        now < u128::from(until)
            || self.meta.snapshot_count() > 0
            || !self.meta.deleted_snapshots().is_empty()
    }

    /// Says what reserved files of this volume need, for all volumes of the server. `code`: that of the volume.
    pub(crate) fn tell_reserved(&self, code: Code) {
        let claimed = self.reservations.claimed.load(Ordering::Relaxed);
        let needed = self.needed_bytes().max(claimed);
        self.dirty.set_reserved(on_disks(needed, code));
    }

    /// What the reserved files of this volume need, and what may be garbage of them; 0: there are none.
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

    /// Counts so many more bytes as set aside, until what this returns is dropped, and has others leave them free. Whoever calls it
    /// has the turn.
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

    /// What overwriting reserved files may take before it comes back.
    fn slack_bytes(&self) -> u64 {
        let live_bytes = self.meta.segment_totals().live_bytes;
        let allowed_bytes = self.limits(live_bytes).0.allowed_bytes;
        allowed_bytes.saturating_add(SLACK_BYTES)
    }

    /// Room under a code, without what is set aside.
    pub(crate) fn usable(&self, code: Code) -> UsableSpace {
        let mut usable = self.segments.usable(code);
        let unflushed = self.dirty.budget().unflushed_bytes();
        let taken = self.reserved_under(code).saturating_add(unflushed);
        usable.free_bytes = usable.free_bytes.saturating_sub(taken);
        usable
    }

    /// What is set aside for files of all volumes, as bytes of files under a code.
    pub(crate) fn reserved_under(&self, code: Code) -> u64 {
        of_files(self.dirty.budget().reserved_bytes(), code)
    }

    /// Refuses to set so many more bytes aside if they are not there.
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

    /// Refuses a snapshot after which reserved files could not be overwritten as a whole.
    pub(crate) async fn require_room_for_snapshot(&self) -> Result<(), FsError> {
        if self.reservations.files.read().is_empty() {
            return Ok(());
        }
        let _turn = self.reservations.turn.lock().await;
        let more = self.needed_more_when_kept();
        self.require_unreserved(more)?;
        let _claimed = self.claim(more).await?;
        self.require_unreserved(0)?;
        // Others must not take it before the snapshot is there.
        let now = u64::try_from(self.env.clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let until = now.saturating_add(SNAPSHOT_COMES_MILLIS);
        let whole_until = &self.reservations.whole_until_millis;
        whole_until.fetch_max(until, Ordering::Relaxed);
        self.forget_space();
        Ok(())
    }

    /// How much more the reserved files need once what is overwritten stays.
    fn needed_more_when_kept(&self) -> u64 {
        let files = self.reservations.files.read();
        let is_kept = self.keeps_what_is_overwritten();
        let more = files.values().map(|(_, reserved)| {
            let needed = reserved.needed_bytes(true);
            needed - reserved.needed_bytes(is_kept).min(needed)
        });
        more.fold(0, u64::saturating_add)
    }

    /// Whether a write to a reserved file may begin. It uses what is set aside for it; what is garbage yet comes back, and
    /// is waited for: [`FsError::TryLater`].
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
        // Never less than what is set aside.
        assert_eq!(of_files(1, code), 1);
        assert_eq!(of_files(u64::MAX, Code::new(1, 0).unwrap()), u64::MAX);
    }
}
