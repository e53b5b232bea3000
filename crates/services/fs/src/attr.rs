//! Attributes: getattr, setattr, access, and the size of files.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, Timestamp, View};
use cairn_meta::{InodeKind, InodeRecord, Key, Owner, Ticket};

use crate::kernel::{
    Change, Extent, ExtentChange, Inode, State, Why, fold_journal, owner_of, usage_of,
};
use crate::perm::{
    EXECUTE, MODE_MASK, MODE_SET_GID, READ, WRITE, granted, require, require_data,
    without_privilege_bits,
};
use crate::types::*;
use crate::volume::{Fs, FsView, VolumeCore};

/// Approximate number of extents that one step of cutting a file removes.
const CUT_EXTENTS_MAX: usize = 4096;
/// Attempts to cut a file while other callers cut it apart concurrently.
const CUT_ATTEMPTS_MAX: usize = 100;

/// The result of one attempt to set attributes.
enum AttrSet {
    Done(Wcc, Ticket),
    /// Nothing was changed: the file has too many extents for one batch, and is shortened in steps first.
    ShortenFirst,
}

/// Whether a change of a file's size fits one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resized {
    Done,
    /// The change has not touched the file.
    TooManyExtents,
}

impl FsView {
    pub async fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        let found = self
            .shared
            .reading(|| self.shared.attr_of(self.view, ino))
            .await;
        self.shared.settle(found).await
    }

    /// Returns the attributes as they will be when all pending changes are durable. Only for callers that watch the
    /// volume itself: a client must not see them.
    pub fn attr_under_way(&self, ino: Ino) -> Result<Attr, FsError> {
        self.shared.attr_of(self.view, ino).map(|(attr, _)| attr)
    }

    /// Returns the bits of `wanted` (access bits of RFC 1813, section 3.3.4) that `who` has.
    pub async fn access(
        &self,
        who: &Credentials,
        ino: Ino,
        wanted: u32,
    ) -> Result<(u32, Attr), FsError> {
        let found = self
            .shared
            .reading(|| self.shared.access_of(who, self.view, ino, wanted))
            .await;
        self.shared.settle(found).await
    }

    pub async fn read_link(&self, _who: &Credentials, ino: Ino) -> Result<(Bytes, Attr), FsError> {
        let found = self
            .shared
            .reading(|| self.shared.symlink_of(self.view, ino))
            .await;
        self.shared.settle(found).await
    }
}

impl Fs {
    /// Changes all attributes in `set`, or none. With `guard_ctime`, only if the change time still has that value.
    pub async fn set_attr(
        &self,
        who: &Credentials,
        ino: Ino,
        set: SetAttr,
        guard_ctime: Option<Timestamp>,
    ) -> Result<Wcc, FsError> {
        let shared = &self.shared;
        let inode = shared.reading(|| shared.inode(ino)).await?;
        let mut guard_ctime = guard_ctime;
        if let Some(size_bytes) = set.size_bytes
            && self.is_keeping()
        {
            let (is_other, ctime) = {
                let state = inode.lock();
                (state.record.size_bytes != size_bytes, state.record.ctime)
            };
            // A caller with a guard does not mean the change time that the first steps of this change set.
            if is_other
                && guard_ctime.is_none_or(|guard| guard == ctime)
                && let Some(began) = self.keep_before_change(who, ino).await?
                && guard_ctime == Some(began.before)
            {
                guard_ctime = Some(began.after);
            }
        }
        let mut done = Err(FsError::TryLater);
        for _ in 0..CUT_ATTEMPTS_MAX {
            let changed = || shared.set_attr_of(who, &inode, set, guard_ctime);
            match shared.reading(changed).await {
                Ok(AttrSet::Done(wcc, ticket)) => done = Ok((wcc, ticket)),
                Err(error) => done = Err(error),
                Ok(AttrSet::ShortenFirst) => {
                    shared.shorten(&inode, set.size_bytes.unwrap_or(0)).await?;
                    // The guard is checked by now; the steps towards the size are part of this change.
                    guard_ctime = None;
                    continue;
                }
            }
            break;
        }
        shared.settle(done).await
    }
}

impl Fs {
    /// Retains a file: nobody may change or remove it until that time, in seconds since 1970; 0 ends the retention.
    /// Durable on return. The caller checks whether the retention may be shortened.
    pub async fn retain(&self, ino: Ino, until_seconds: u64) -> Result<(), FsError> {
        let shared = &self.shared;
        let retain = || shared.retain(ino, InodeKind::Regular, until_seconds);
        let done = shared.reading(retain).await;
        shared.settle(done).await
    }

    /// Holds a directory and all its ancestors, or releases them: held directories keep their names and places, since
    /// a move of a directory would move the retained files in it. Files in them, and their attributes, can be changed
    /// as before. Durable on return.
    pub async fn hold_directories(&self, ino: Ino, is_held: bool) -> Result<(), FsError> {
        let shared = &self.shared;
        let until_seconds = if is_held { u64::MAX } else { 0 };
        let retain = || shared.retain(ino, InodeKind::Directory, until_seconds);
        let done = shared.reading(retain).await;
        shared.settle(done).await
    }
}

impl VolumeCore {
    fn retain(
        &self,
        ino: Ino,
        kind: InodeKind,
        until_seconds: u64,
    ) -> Result<((), Ticket), FsError> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        state.require_live()?;
        if state.record.kind != kind {
            return Err(FsError::NotSupported);
        }
        if state.record.retained_until_seconds == until_seconds {
            return Ok(((), state.ticket()));
        }
        self.require_serving()?;
        let mut change = self.begin_change(state);
        let mut edit = change.edit(ino);
        edit.record().retained_until_seconds = until_seconds;
        edit.touch_ctime(self.now());
        Ok(((), change.commit().ticket))
    }

    fn attr_of(&self, view: View, ino: Ino) -> Result<(Attr, Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        state.require_live()?;
        Ok((state.attr(ino), state.shown()))
    }

    fn access_of(
        &self,
        who: &Credentials,
        view: View,
        ino: Ino,
        wanted: u32,
    ) -> Result<((u32, Attr), Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
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
        Ok(((allowed & wanted, state.attr(ino)), state.shown()))
    }

    fn symlink_of(&self, view: View, ino: Ino) -> Result<((Bytes, Attr), Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        state.require_live()?;
        if state.record.kind != InodeKind::Symlink {
            return Err(FsError::Invalid);
        }
        let target = state.record.symlink_target.clone();
        Ok(((target, state.attr(ino)), state.shown()))
    }

    fn set_attr_of(
        &self,
        who: &Credentials,
        inode: &Arc<Inode>,
        set: SetAttr,
        guard_ctime: Option<Timestamp>,
    ) -> Result<AttrSet, FsError> {
        let ino = inode.ino;
        let state = inode.lock();
        state.require_live()?;
        if guard_ctime.is_some_and(|ctime| ctime != state.record.ctime) {
            return Err(FsError::NotSync);
        }
        check_set_attr(who, &state, &set)?;
        let before = state.pre_attr();
        if set == SetAttr::default() {
            return Ok(AttrSet::Done(state.wcc(ino, before), state.ticket()));
        }
        self.require_serving()?;
        state.require_changeable(self.now())?;
        let owner = owner_of(&state.record);
        let new_owner = Owner {
            uid: set.uid.unwrap_or(owner.uid),
            gid: set.gid.unwrap_or(owner.gid),
            ..owner
        };
        // Root may give a file to any user, as on other systems.
        if new_owner != owner && !who.is_root() {
            let bytes = state.record.used_bytes;
            self.require_quota(new_owner, Some(owner), 1, bytes)?;
        }
        let now = self.now();
        let mut change = self.begin_change(state);
        if let Some(size_bytes) = set.size_bytes
            && self.resize(&mut change, ino, size_bytes)? == Resized::TooManyExtents
        {
            return Ok(AttrSet::ShortenFirst);
        }
        let mut edit = change.edit(ino);
        if let Some(size_bytes) = set.size_bytes {
            if size_bytes != before.size_bytes {
                edit.touch_mtime(now);
            }
            if !who.is_root() {
                let record = edit.record();
                record.mode = without_privilege_bits(record.mode);
            }
        }
        apply_set_attr(who, edit.record(), &set, now);
        if new_owner != owner && !planted::is(Bug::ChownNotCharged) {
            let usage = usage_of(&edit.state.record);
            edit.batch.charge(owner, -usage);
            edit.batch.charge(new_owner, usage);
            self.sync_pending(edit.state);
        }
        // An exclusive create ends with the SETATTR that follows it.
        edit.record().exclusive_verifier = None;
        edit.touch_ctime(now);
        change.answer(who, ino);
        let done = change.commit();
        Ok(AttrSet::Done(done.of(ino).wcc(ino, before), done.ticket))
    }

    /// Sets the size of a regular file as a part of a change. On an error, the change has not touched the file.
    fn resize(
        &self,
        change: &mut Change<'_>,
        ino: Ino,
        size_bytes: u64,
    ) -> Result<Resized, FsError> {
        if size_bytes > FILE_LEN_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        let state = change.of(ino);
        let is_cut = size_bytes < state.record.size_bytes;
        let cut = match is_cut && state.record.used_bytes > 0 {
            false => None,
            true => match self.extents_to_cut(ino, state, size_bytes)? {
                Some(cut) => Some(cut),
                None => return Ok(Resized::TooManyExtents),
            },
        };
        change.edit(ino);
        if let Some(cut) = cut {
            change.put_extents(Why::Changed, ino, cut);
            change.edit(ino).state.extents.forget_from(size_bytes);
        }
        let mut edit = change.edit(ino);
        if is_cut {
            if !planted::is(Bug::CutForgetsDirty) {
                self.discard_dirty(edit.state, size_bytes);
            }
            if !planted::is(Bug::CutForgetsJournal) {
                fold_journal(ino, edit.state, &(size_bytes..u64::MAX), edit.batch);
            }
        }
        edit.record().size_bytes = size_bytes;
        edit.state.stable_size_bytes = size_bytes;
        edit.state.sequence += 1;
        Ok(Resized::Done)
    }

    /// Drops dirty data from `size_bytes` on, both in memory and in flights.
    pub(crate) fn discard_dirty(&self, state: &mut State, size_bytes: u64) {
        let cleared = state.dirty.clear(size_bytes..u64::MAX);
        for flight in &mut state.flights {
            flight.cut(size_bytes);
        }
        state.fresh.remove(size_bytes..u64::MAX);
        self.sync_pending(state);
        self.dirty.add(cleared);
    }

    /// The change that removes the extents of a file past `size_bytes`; `None` if they are too many for one batch.
    fn extents_to_cut(
        &self,
        ino: Ino,
        state: &State,
        size_bytes: u64,
    ) -> Result<Option<ExtentChange>, FsError> {
        let (from, to) = extents_between(ino, size_bytes, state.record.size_bytes);
        let mut past: Vec<Extent> = Vec::new();
        self.scan_extents(View::Live, &from, &to, |extent| {
            past.push(extent);
            past.len() <= 2 * CUT_EXTENTS_MAX
        })?;
        if past.len() > 2 * CUT_EXTENTS_MAX {
            return Ok(None);
        }
        let mut map = self.extent_map();
        map.load(0..u64::MAX, past);
        let mut change = ExtentChange::default();
        map.clear(size_bytes..u64::MAX, &mut change);
        Ok(Some(change))
    }

    /// Cuts a file that has very many extents down towards `size_bytes`. Each step removes extents from the end and
    /// leaves a smaller file, so no step holds the file's lock for long.
    async fn shorten(&self, inode: &Arc<Inode>, size_bytes: u64) -> Result<(), FsError> {
        let ino = inode.ino;
        let (mut from, to) = extents_between(ino, size_bytes, inode.lock().record.size_bytes);
        let mut starts = Vec::new();
        loop {
            let (mut count, mut last) = (0usize, None);
            self.scan_extents(View::Live, &from, &to, |extent| {
                if count == CUT_EXTENTS_MAX {
                    starts.push(extent.start);
                    return false;
                }
                count += 1;
                last = Some(extent.end);
                true
            })?;
            match last {
                Some(end) if count == CUT_EXTENTS_MAX => from = Key::extent(ino, end).successor(),
                _ => break,
            }
            // This thread serves other tasks, too.
            tokio::task::yield_now().await;
        }
        let mut ticket = None;
        for start in starts.into_iter().rev() {
            if let Some(before) = ticket.take() {
                self.outcome(before).await?;
            }
            let state = inode.lock();
            state.require_live()?;
            self.require_serving()?;
            if state.record.size_bytes <= start {
                continue;
            }
            let mut change = self.begin_change(state);
            if self.resize(&mut change, ino, start)? == Resized::TooManyExtents {
                // Other callers added extents meanwhile; the caller begins again.
                return Ok(());
            }
            // A replay of older journal entries must see that they no longer tell the size.
            change.edit(ino).touch_ctime(self.now());
            ticket = Some(change.commit().ticket);
        }
        Ok(())
    }
}

/// The keys of the extents that hold bytes from `start` to the end of the file. Without that end, a scan would step
/// over all keys that earlier steps deleted.
fn extents_between(ino: Ino, start: u64, file_end: u64) -> (Key, Key) {
    let (from, _) = Key::extents_past(ino, start);
    (from, Key::extent(ino, file_end).successor())
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
fn apply_set_attr(who: &Credentials, record: &mut InodeRecord, set: &SetAttr, now: Timestamp) {
    let is_dir = record.kind == InodeKind::Directory;
    if set.uid.is_some() || set.gid.is_some() {
        record.uid = set.uid.unwrap_or(record.uid);
        record.gid = set.gid.unwrap_or(record.gid);
        // The new owner did not ask for these bits.
        if !is_dir {
            record.mode = without_privilege_bits(record.mode);
        }
    }
    if let Some(mode) = set.mode {
        record.mode = mode & MODE_MASK;
        if !is_dir && !who.is_root() && !who.in_group(record.gid) {
            record.mode &= !MODE_SET_GID;
        }
    }
    let time = |set: SetTime, old: Timestamp| match set {
        SetTime::Keep => old,
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    record.atime = time(set.atime, record.atime);
    record.mtime = time(set.mtime, record.mtime);
}
