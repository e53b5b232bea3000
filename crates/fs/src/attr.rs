//! Attributes: getattr, setattr, access, and the size of files.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};
use cairn_meta::{Batch, Fold, InodeKind, Key, Ticket};

use crate::extents::{Change, Extent};
use crate::inode::{Inode, State};
use crate::perm::{
    EXECUTE, MODE_MASK, MODE_SET_GID, READ, WRITE, granted, require, require_data,
    without_privilege_bits,
};
use crate::types::*;
use crate::volume::{Fs, Shared};

/// Extents that one step of cutting a file removes.
const CUT_EXTENTS_MAX: usize = 4096;

impl Fs {
    pub async fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        let inode = self.0.inode(ino)?;
        let state = inode.lock();
        state.require_live()?;
        Ok(state.attr(ino))
    }

    /// Which of the `wanted` access bits (RFC 1813, section 3.3.4) `who` has.
    pub async fn access(
        &self,
        who: &Credentials,
        ino: Ino,
        wanted: u32,
    ) -> Result<(u32, Attr), FsError> {
        let inode = self.0.inode(ino)?;
        let state = inode.lock();
        state.require_live()?;
        let has = granted(who, state.guarded());
        let is_dir = state.record.kind == InodeKind::Directory;
        let mut allowed = 0;
        if has & READ != 0 {
            allowed |= access::READ;
        }
        if has & WRITE != 0 {
            allowed |= access::MODIFY | access::EXTEND;
            if is_dir {
                allowed |= access::DELETE;
            }
        }
        if has & EXECUTE != 0 {
            allowed |= if is_dir {
                access::LOOKUP
            } else {
                access::EXECUTE
            };
        }
        Ok((allowed & wanted, state.attr(ino)))
    }

    pub async fn read_link(&self, _who: &Credentials, ino: Ino) -> Result<(Bytes, Attr), FsError> {
        let inode = self.0.inode(ino)?;
        let state = inode.lock();
        state.require_live()?;
        if state.record.kind != InodeKind::Symlink {
            return Err(FsError::Invalid);
        }
        Ok((state.record.symlink_target.clone(), state.attr(ino)))
    }

    /// Changes attributes, all or none. With `guard_ctime` only if the change time is still that.
    pub async fn set_attr(
        &self,
        who: &Credentials,
        ino: Ino,
        set: SetAttr,
        guard_ctime: Option<Timestamp>,
    ) -> Result<Wcc, FsError> {
        let inode = self.0.inode(ino)?;
        let done = self.0.set_attr_of(who, &inode, set, guard_ctime);
        self.0.settle(done).await
    }
}

impl Shared {
    fn set_attr_of(
        self: &Arc<Self>,
        who: &Credentials,
        inode: &Arc<Inode>,
        set: SetAttr,
        guard_ctime: Option<Timestamp>,
    ) -> Result<(Wcc, Ticket), FsError> {
        let mut state = inode.lock();
        state.require_live()?;
        if guard_ctime.is_some_and(|ctime| ctime != state.record.ctime) {
            return Err(FsError::NotSync);
        }
        check_set_attr(who, &state, &set)?;
        let before = state.pre_attr();
        if set == SetAttr::default() {
            return Ok((state.wcc(inode.ino, before), state.ticket));
        }
        let now = self.now();
        let mut batch = Batch::new();
        if let Some(size_bytes) = set.size_bytes {
            self.resize(inode, &mut state, size_bytes, &mut batch)?;
            if size_bytes != before.size_bytes {
                state.touch_mtime(now);
            }
            if !who.is_root() {
                state.record.mode = without_privilege_bits(state.record.mode);
            }
        }
        apply_set_attr(who, &mut state, &set, now);
        // An exclusive create ends with the SETATTR that follows it.
        state.record.exclusive_verifier = None;
        state.touch_ctime(now);
        batch.put(Key::inode(inode.ino), state.stored_record().encode());
        state.ticket = self.meta.submit(batch);
        Ok((state.wcc(inode.ino, before), state.ticket))
    }

    /// Sets the size of a locked regular file; what it takes goes into `batch`, or, where a file
    /// has too many extents for one, into batches before it that each leave a smaller file.
    fn resize(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        state: &mut State,
        size_bytes: u64,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        if size_bytes > FILE_LEN_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        if size_bytes < state.record.size_bytes {
            if state.record.used_bytes > 0 {
                self.cut_extents(inode, state, size_bytes, batch)?;
            }
            self.discard_dirty(state, size_bytes);
            if state.journal_last.0 > 0 {
                batch.fold(Fold {
                    ino: inode.ino,
                    start: size_bytes,
                    end: u64::MAX,
                    through: state.journal_last,
                });
            }
        }
        state.record.size_bytes = size_bytes;
        state.stable_size_bytes = size_bytes;
        Ok(())
    }

    /// Forgets dirty data from `size_bytes` on, in memory and on its way.
    pub(crate) fn discard_dirty(&self, state: &mut State, size_bytes: u64) {
        let freed = state.dirty.clear(size_bytes..u64::MAX);
        self.dirty.add(-(freed as i64));
        for flight in &mut state.flights {
            flight.limit = flight.limit.min(size_bytes);
        }
    }

    /// Removes the extents of `inode` past `size_bytes`, the last ones first.
    fn cut_extents(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        state: &mut State,
        size_bytes: u64,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        // First the places at which to cut, so that memory stays small for any number of extents.
        let (from, to) = Key::extents_past(inode.ino, size_bytes);
        let mut starts = Vec::new();
        let mut count = 0usize;
        self.scan_extents(&from, &to, |extent| {
            if count.is_multiple_of(CUT_EXTENTS_MAX) {
                starts.push(extent.start.max(size_bytes));
            }
            count += 1;
            true
        })?;
        while let Some(start) = starts.pop() {
            let (from, to) = Key::extents_past(inode.ino, start);
            let mut past: Vec<Extent> = Vec::new();
            self.scan_extents(&from, &to, |extent| {
                past.push(extent);
                true
            })?;
            let mut map = crate::extents::ExtentMap::empty();
            map.load(0, past);
            let mut change = Change::default();
            map.clear(start..u64::MAX, &mut change);
            if starts.is_empty() {
                self.change_extents(inode.ino, state, &change, batch);
            } else {
                let mut step = Batch::new();
                self.change_extents(inode.ino, state, &change, &mut step);
                state.record.size_bytes = start;
                state.stable_size_bytes = state.stable_size_bytes.min(start);
                step.put(Key::inode(inode.ino), state.stored_record().encode());
                state.ticket = self.meta.submit(step);
            }
        }
        state.extents.forget_from(size_bytes);
        Ok(())
    }
}

/// Whether `who` may change what `set` changes.
fn check_set_attr(who: &Credentials, state: &State, set: &SetAttr) -> Result<(), FsError> {
    let record = &state.record;
    let owner = who.is_root() || who.uid == record.uid;
    if set.mode.is_some() && !owner {
        return Err(FsError::NotOwner);
    }
    if let Some(uid) = set.uid
        && !who.is_root()
        && !(owner && uid == record.uid)
    {
        return Err(FsError::NotOwner);
    }
    if let Some(gid) = set.gid
        && !who.is_root()
        && !(owner && (gid == record.gid || who.in_group(gid)))
    {
        return Err(FsError::NotOwner);
    }
    if let Some(size_bytes) = set.size_bytes {
        match record.kind {
            InodeKind::Regular => {}
            InodeKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid),
        }
        require_data(who, state.guarded(), WRITE)?;
        if size_bytes > FILE_LEN_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
    }
    for time in [set.atime, set.mtime] {
        match time {
            SetTime::Keep => {}
            SetTime::Now if owner => {}
            SetTime::Now => require(who, state.guarded(), WRITE)?,
            SetTime::To(time) => {
                if !owner {
                    return Err(FsError::NotOwner);
                }
                if time.nanos >= 1_000_000_000 {
                    return Err(FsError::Invalid);
                }
            }
        }
    }
    Ok(())
}

/// Applies everything but the size.
fn apply_set_attr(who: &Credentials, state: &mut State, set: &SetAttr, now: Timestamp) {
    let is_dir = state.record.kind == InodeKind::Directory;
    if set.uid.is_some() || set.gid.is_some() {
        let record = &mut state.record;
        record.uid = set.uid.unwrap_or(record.uid);
        record.gid = set.gid.unwrap_or(record.gid);
        // Whoever it belongs to now did not ask for these.
        if !is_dir {
            record.mode = without_privilege_bits(record.mode);
        }
    }
    if let Some(mode) = set.mode {
        state.record.mode = mode & MODE_MASK;
        if !is_dir && !who.is_root() && !who.in_group(state.record.gid) {
            state.record.mode &= !MODE_SET_GID;
        }
    }
    let time = |set: SetTime, old: Timestamp| match set {
        SetTime::Keep => old,
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    state.record.atime = time(set.atime, state.record.atime);
    state.record.mtime = time(set.mtime, state.record.mtime);
}
