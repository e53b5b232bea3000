//! Files that get their name when all their bytes are there.
//!
//! Owns: regular files without a name, and the one batch that gives such a file its name, the replacement of another
//! file, its extended attributes and, if it is small, its bytes. Must not know: the caller (S3).
//!
//! Until its bytes are too many for the journal, a file without a name is in memory only. From then on the metadata
//! has it as an orphan: after a crash the reaper deletes it; while a task fills it, the reaper leaves it alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Ino, Timestamp};
use cairn_meta::{
    DirentRecord, InodeKind, InodeRecord, Key, Owner, SpaceDelta, Ticket, UsageDelta, root_tree,
};

use crate::data::JOURNAL_WRITE_BYTES_MAX;
use crate::keep::{Beginning, Replaced};
use crate::kernel::{
    Committed, Edit, Inode, Locked, Record, Run, Shown, State, of_volume, owner_of, usage_of,
};
use crate::namespace::{
    DirChange, NAME_ATTEMPTS_MAX, check_name, check_new_name, is_everywhere, new_record,
};
use crate::perm::{EXECUTE, WRITE, require, require_unsticky};
use crate::quota::{Room, VOLUME_TREE};
use crate::room::METADATA_BYTES;
use crate::types::*;
use crate::volume::{Fs, VolumeCore};
use crate::xattr::check_xattr;

/// Only the user that fills it sees it.
const MODE: u32 = 0o600;

/// The condition on the name that a file is about to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Anything but a directory; a file there is replaced.
    Anything,
    /// No file: otherwise [`FsError::Exists`].
    Nothing,
    /// This file, not changed since: otherwise [`FsError::NotSync`].
    This { ino: Ino, ctime: Timestamp },
}

/// The name that a file gets, and its attributes.
#[derive(Clone, Debug)]
pub struct Placing<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    pub expected: Expected,
    /// Attributes. The size is always the number of its bytes.
    pub set: SetAttr,
    /// Extended attributes, each name once.
    pub xattrs: &'a [(&'a [u8], Bytes)],
}

/// Further parts of a placing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping<'a> {
    /// The directory and name that a replaced file gets. It becomes a previous version there, which nobody can
    /// change; so even a retained file can be replaced.
    pub replaced: Option<(Ino, &'a [u8])>,
    /// Nobody may change or remove the new file until this time, in seconds since 1970; 0: no retention.
    pub retained_until_seconds: u64,
}

/// A regular file without a name. If it is dropped before it has one, it is deleted.
pub struct Unnamed {
    shared: Arc<VolumeCore>,
    inode: Arc<Inode>,
    who: Credentials,
    /// Whether a replaced file is kept if its directory asks for that.
    keeps: bool,
    len_bytes: u64,
    /// All its bytes, as long as they are few: they are stored with its name.
    small: Option<Bytes>,
    /// Whether the metadata has it.
    is_noted: bool,
    has_name: bool,
}

impl Fs {
    /// Makes a file without a name, for `who` to fill. It counts in the volume until it is placed.
    pub fn make_unnamed(&self, who: &Credentials) -> Result<Unnamed, FsError> {
        let branch = self.branch();
        let tree = match branch.is_main() {
            true => VOLUME_TREE,
            false => root_tree(branch),
        };
        self.make_unnamed_in(who, branch, tree, Ino(0))
    }

    /// Makes such a file for a directory: its bytes count there from the start.
    pub async fn make_unnamed_near(&self, who: &Credentials, dir: Ino) -> Result<Unnamed, FsError> {
        let shared = &self.shared;
        let inode = shared.reading(|| shared.inode(dir)).await?;
        let tree = shared.quotas.inherited(&inode.lock().record);
        self.make_unnamed_in(who, dir.branch(), tree, dir)
    }

    fn make_unnamed_in(
        &self,
        who: &Credentials,
        branch: Branch,
        tree: Ino,
        near: Ino,
    ) -> Result<Unnamed, FsError> {
        let shared = &self.shared;
        shared.require_serving()?;
        shared.require_pool_space(METADATA_BYTES)?;
        let mut record = InodeRecord::new(InodeKind::Regular);
        (record.uid, record.gid, record.mode, record.nlink) = (who.uid, who.gid, MODE, 0);
        record.tree = tree;
        shared.require_quota(owner_of(&record), None, 1, 0)?;
        let now = shared.now();
        (record.atime, record.mtime, record.ctime) = (now, now, now);
        let inode = shared.new_inode(shared.allocate_ino(branch), record);
        {
            let mut state = inode.lock();
            state.removed = false;
            state.near = near;
        }
        shared.add_unstored(inode.clone());
        Ok(Unnamed {
            shared: shared.clone(),
            inode,
            who: who.clone(),
            keeps: self.keeps(),
            len_bytes: 0,
            small: Some(Bytes::new()),
            is_noted: false,
            has_name: false,
        })
    }
}

impl Unnamed {
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// Bytes so far.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Appends bytes. They are durable when the file has its name.
    pub async fn append(&mut self, data: Bytes) -> Result<(), FsError> {
        if data.is_empty() {
            return Ok(());
        }
        let is_first = self.len_bytes == 0 && !self.is_noted;
        let at = self.len_bytes;
        if is_first && data.len() as u64 <= JOURNAL_WRITE_BYTES_MAX {
            self.len_bytes = data.len() as u64;
            self.small = Some(data);
            return Ok(());
        }
        self.spill().await?;
        let count = data.len() as u64;
        let fs = Fs::of(&self.shared);
        fs.write(&self.who, self.ino(), at, data, Stability::Unstable)
            .await?;
        self.len_bytes += count;
        Ok(())
    }

    /// The user that fills it.
    pub(crate) fn who(&self) -> &Credentials {
        &self.who
    }

    pub(crate) fn shared(&self) -> &Arc<VolumeCore> {
        &self.shared
    }

    /// Stores it in the metadata, so that other code may put bytes into it.
    pub(crate) async fn note(&mut self) -> Result<Arc<Inode>, FsError> {
        self.spill().await?;
        Ok(self.inode.clone())
    }

    /// The end of the bytes that other code put into it.
    pub(crate) fn set_len(&mut self, len_bytes: u64) {
        self.len_bytes = len_bytes;
    }

    /// Its bytes are too many to be stored with its name: from now on they are ordinary writes.
    async fn spill(&mut self) -> Result<(), FsError> {
        if !self.is_noted {
            self.shared.require_serving()?;
            let ino = self.inode.ino;
            let mut change = self.shared.begin_change(self.inode.lock());
            let mut edit = change.edit_quietly(ino);
            // The tree that it was made for may be gone.
            let tree = self.shared.quotas.inherited(&edit.state.record);
            edit.record().tree = tree;
            let Edit { state, batch, .. } = edit;
            batch.charge(owner_of(&state.record), UsageDelta::ONE_INODE);
            if !planted::is(Bug::OrphanForgotten) {
                batch.put(Key::orphan(ino), vec![1]);
            }
            let space = SpaceDelta {
                inodes: 1,
                ..SpaceDelta::default()
            };
            batch.space(of_volume(ino, space));
            change.store_first(ino);
            change.commit_within(ino.branch())?;
            self.is_noted = true;
        }
        if let Some(data) = self.small.clone() {
            if !data.is_empty() {
                let fs = Fs::of(&self.shared);
                fs.write(&self.who, self.ino(), 0, data, Stability::Unstable)
                    .await?;
            }
            self.small = None;
        }
        Ok(())
    }

    /// Gives it its name: one batch, durable on return. After an error it has no name, and can be placed again.
    ///
    /// `who` needs the rights for a rename to that name, and no more.
    pub async fn place(
        &mut self,
        who: &Credentials,
        placing: &Placing<'_>,
    ) -> Result<Attr, FsError> {
        if !self.keeps || !self.shared.keeping.is_active() {
            return self.place_keeping(who, placing, &Keeping::default()).await;
        }
        let shared = self.shared.clone();
        for _ in 0..NAME_ATTEMPTS_MAX {
            let replaced = shared.prepare_replaced(placing.dir, placing.name).await?;
            let found = match &replaced {
                Replaced::Anything => placing.expected,
                Replaced::Nothing => Expected::Nothing,
                Replaced::Kept(prepared) => prepared.expected(),
            };
            let is_any = placing.expected == Expected::Anything;
            let expected = match is_any {
                true => found,
                false => placing.expected,
            };
            let keeping = match &replaced {
                Replaced::Kept(prepared) if expected == found => prepared.keeping(),
                _ => Keeping::default(),
            };
            let placing = Placing {
                expected,
                ..placing.clone()
            };
            let placed = self.place_keeping(who, &placing, &keeping).await;
            match (placed, replaced) {
                // Another client changed the file at this name.
                (Err(FsError::Exists | FsError::NotSync), _) if is_any => {}
                (Err(error), Replaced::Kept(prepared)) => {
                    shared.give_up(Some(*prepared)).await;
                    return Err(error);
                }
                (placed, _) => return placed,
            }
        }
        Err(FsError::TryLater)
    }

    /// Gives it a name as an unchangeable copy of another file's present contents; a change of the other file begins
    /// with that. [`FsError::NotSync`] if another client changed the other file meanwhile. Returns the other file's
    /// change time.
    pub(crate) async fn place_beginning(
        &mut self,
        who: &Credentials,
        placing: &Placing<'_>,
        beginning: &Beginning<'_>,
    ) -> Result<Timestamp, FsError> {
        self.place_in(who, placing, &Keeping::default(), Some(beginning))
            .await?;
        let began = beginning.inode.lock().record.ctime;
        Ok(began)
    }

    /// Gives it its name as [`Self::place`] does; one batch also keeps the replaced file, or retains the new one.
    pub async fn place_keeping(
        &mut self,
        who: &Credentials,
        placing: &Placing<'_>,
        keeping: &Keeping<'_>,
    ) -> Result<Attr, FsError> {
        self.place_in(who, placing, keeping, None).await
    }

    async fn place_in(
        &mut self,
        who: &Credentials,
        placing: &Placing<'_>,
        keeping: &Keeping<'_>,
        beginning: Option<&Beginning<'_>>,
    ) -> Result<Attr, FsError> {
        check_name(placing.name)?;
        if let Some((_, name)) = keeping.replaced {
            check_new_name(name)?;
        }
        if is_everywhere(placing.name) {
            return Err(FsError::IsDirectory);
        }
        let mut xattrs_len_bytes = 0;
        let mut names_len_bytes = 0;
        for (name, value) in placing.xattrs {
            names_len_bytes += check_xattr(name, value)?;
            xattrs_len_bytes += value.len() as u64;
        }
        if names_len_bytes as usize > XATTR_LIST_LEN_BYTES_MAX {
            return Err(FsError::NoSpace);
        }
        self.shared
            .require_pool_space(METADATA_BYTES + xattrs_len_bytes)?;
        if planted::is(Bug::PutConditionLookedAtEarly)
            && placing.expected == Expected::Nothing
            && self.shared.dirent(placing.dir, placing.name)?.is_some()
        {
            return Err(FsError::Exists);
        }
        loop {
            let mut room = None;
            match &self.small {
                Some(data) if data.is_empty() => {}
                Some(data) => {
                    let range = 0..data.len() as u64;
                    room = Some(self.shared.admit_write(&self.inode, &range).await?);
                }
                None if planted::is(Bug::PutNamedBeforeItsBytes) => {}
                None => self.shared.commit(&self.inode).await?,
            }
            self.shared.meta.admit().await;
            let place = || {
                let shared = &self.shared;
                shared.place(who, self, placing, keeping, beginning, names_len_bytes)
            };
            let placed = self.shared.reading(place).await;
            drop(room);
            match placed {
                Ok(Placed::Done(attr, ticket)) => {
                    self.has_name = true;
                    return self.shared.settle(Ok((attr, ticket))).await;
                }
                // A snapshot is being taken: nothing goes into the journal.
                Ok(Placed::JournalIsClosed) => self.spill().await?,
                Err(error) => return self.shared.settle(Err(error)).await,
            }
        }
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if self.has_name {
            return;
        }
        let mut state = self.inode.lock();
        state.removed = true;
        self.shared.discard_dirty(&mut state, 0);
        drop(state);
        if self.is_noted && !planted::is(Bug::OrphanForgotten) {
            self.shared.add_orphan(self.inode.ino);
        }
    }
}

/// The result of one attempt to place a file.
enum Placed {
    Done(Attr, Ticket),
    /// Nothing was changed: the bytes cannot go into the journal with the name.
    JournalIsClosed,
}

impl VolumeCore {
    fn place(
        self: &Arc<Self>,
        who: &Credentials,
        file: &Unnamed,
        placing: &Placing<'_>,
        keeping: &Keeping<'_>,
        beginning: Option<&Beginning<'_>>,
        names_len_bytes: u32,
    ) -> Result<Placed, FsError> {
        let parent = self.inode(placing.dir)?;
        let kept_in = match keeping.replaced {
            Some((dir, _)) => Some(self.inode(dir)?),
            None => None,
        };
        for _ in 0..NAME_ATTEMPTS_MAX {
            {
                let state = parent.lock();
                state.require_dir()?;
                require(who, state.guarded(), EXECUTE)?;
            }
            let target = self.dirent(placing.dir, placing.name)?;
            let replaced = match &target {
                Some(entry) => match self.named(entry)? {
                    Some(inode) => Some(inode),
                    None => continue,
                },
                None => None,
            };
            let mut inodes = vec![&parent, &file.inode];
            inodes.extend(replaced.as_ref());
            inodes.extend(kept_in.as_ref());
            inodes.extend(beginning.map(|beginning| beginning.inode));
            let locked = Locked::all(&inodes);
            locked.of(placing.dir).require_dir()?;
            if self.dirent(placing.dir, placing.name)? != target {
                continue;
            }
            let place = FilePlacement {
                placing,
                keeping,
                beginning,
                names_len_bytes,
                target: target.as_ref(),
                replaced: replaced.as_ref(),
            };
            return self.place_locked(who, file, &place, locked);
        }
        Err(FsError::TryLater)
    }

    fn place_locked(
        self: &Arc<Self>,
        who: &Credentials,
        file: &Unnamed,
        place: &FilePlacement<'_>,
        locked: Locked<'_>,
    ) -> Result<Placed, FsError> {
        let Placing {
            dir,
            name,
            set,
            xattrs,
            ..
        } = *place.placing;
        let ino = file.inode.ino;
        self.require_placing(who, place, &locked)?;
        let kept = place.replaced.zip(place.keeping.replaced);
        locked.of(ino).require_live()?;
        let mut new = new_record(who, locked.of(dir), FileKind::Regular, set)?;
        new.tree = self.quotas.inherited(&locked.of(dir).record);
        let kept_tree = match kept {
            Some((there, (dir, name))) => self.require_keeping(who, there, dir, name, &locked)?,
            None => None,
        };
        let before = owner_of(&locked.of(ino).record);
        let owner = owner_of(&new);
        if owner != before {
            // The replaced file is removed by the same batch.
            let inodes = u64::from(place.replaced.is_none() || kept.is_some());
            let small = file.small.as_ref().map_or(0, |data| data.len() as u64);
            let bytes = locked.of(ino).record.used_bytes + small;
            self.require_quota(owner, Some(before), inodes, bytes)?;
        }
        self.require_serving()?;
        let data = file.small.as_ref().filter(|data| !data.is_empty());
        let gate = data.map(|_| self.snapshots.journal_gate());
        if gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            return Ok(Placed::JournalIsClosed);
        }

        let now = self.now();
        let mut change = self.begin_change(locked);
        match (place.replaced, kept) {
            (Some(there), Some((_, to))) => {
                self.move_to_kept(there.ino, to, kept_tree, &mut change);
            }
            // This can fail, so it comes before any change.
            (Some(there), None) => self.drop_link(&mut change, there.ino, now)?,
            (None, _) => {}
        }
        let mut into = DirChange {
            dir,
            change: &mut change,
        };
        let cookie = match place.target {
            Some(entry) => {
                into.replace(name, ino, InodeKind::Regular, entry.cookie);
                entry.cookie
            }
            None => into.add(name, ino, InodeKind::Regular),
        };
        change.edit(dir).touch_mtime(now);

        let mut edit = change.edit(ino);
        let Edit { state, batch, .. } = &mut edit;
        if file.is_noted {
            batch.charge(before, -usage_of(&state.record));
            batch.charge(owner, usage_of(&state.record));
            batch.delete(Key::orphan(ino));
        } else {
            batch.charge(owner, UsageDelta::ONE_INODE);
            let space = SpaceDelta {
                inodes: 1,
                ..SpaceDelta::default()
            };
            batch.space(of_volume(ino, space));
        }
        let record = edit.record();
        (record.uid, record.gid, record.mode) = (new.uid, new.gid, new.mode);
        record.tree = new.tree;
        (record.nlink, record.parent, record.cookie) = (1, dir, cookie);
        let time = |set: SetTime| match set {
            SetTime::Keep | SetTime::Now => now,
            SetTime::To(time) => time,
        };
        (record.atime, record.mtime) = (time(set.atime), time(set.mtime));
        record.xattr_names_len_bytes = place.names_len_bytes;
        record.retained_until_seconds = place.keeping.retained_until_seconds;
        record.is_frozen = place.beginning.is_some();
        edit.touch_ctime(now);
        for (name, value) in xattrs {
            let stored = self.xattr_values.stored(ino, name, value);
            edit.batch.put(Key::xattr(ino, name), stored);
        }
        if let Some(data) = data {
            edit.record().size_bytes = data.len() as u64;
            edit.state.stable_size_bytes = data.len() as u64;
            edit.state.sequence += 1;
            change.journal_written(ino, 0, data.clone(), true);
        }
        if !file.is_noted {
            change.store_first(ino);
        }
        if let Some(beginning) = place.beginning {
            let ino = beginning.inode.ino;
            let is_forgotten = planted::is(Bug::KeptWithoutBeginning);
            let stored = match is_forgotten {
                true => Record::Kept,
                false => Record::Stored,
            };
            let mut edit = change.touch(ino, Shown::ToAll, stored);
            edit.state.change_until = beginning.until;
            if !is_forgotten {
                edit.touch_mtime(now);
            }
        }
        let Committed {
            ticket, mut locked, ..
        } = change.commit();
        let state = locked.memory(ino);
        if let Some(data) = data {
            self.note_journaled(&file.inode, data, ticket, state);
        }
        Ok(Placed::Done(state.attr(ino), ticket))
    }

    /// Notes the bytes of a new file, which went into the journal with its name.
    fn note_journaled(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        data: &Bytes,
        ticket: Ticket,
        state: &mut State,
    ) {
        self.note_journal(1);
        let run = Run {
            data: data.clone(),
            journal: Some(ticket.0),
            sequence: state.sequence,
            buffer_len_bytes: data.len() as u64,
        };
        state.note_fresh(0..data.len() as u64, 0);
        self.dirty.add(state.dirty.insert(0, run));
        self.sync_pending(state);
        let written = &self.counters.written_bytes;
        written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.after_write(inode, state);
    }

    /// Checks whether a file may get the name, and replace the file that has it now.
    fn require_placing(
        &self,
        who: &Credentials,
        place: &FilePlacement<'_>,
        locked: &Locked<'_>,
    ) -> Result<(), FsError> {
        let Placing { dir, expected, .. } = *place.placing;
        require(who, locked.of(dir).guarded(), WRITE | EXECUTE)?;
        match (expected, place.replaced) {
            (Expected::Anything, _) | (Expected::Nothing, None) => {}
            (Expected::Nothing, Some(_)) if planted::is(Bug::PutConditionLookedAtEarly) => {}
            (Expected::Nothing, Some(_)) => return Err(FsError::Exists),
            (Expected::This { ino, ctime }, Some(there))
                if there.ino == ino && locked.of(ino).record.ctime == ctime => {}
            (Expected::This { .. }, _) => return Err(FsError::NotSync),
        }
        let is_kept = place.keeping.replaced.is_some();
        match place.replaced {
            Some(there) => {
                if !is_kept {
                    locked.of(there.ino).require_unretained(self.now())?;
                }
                let guard = locked.of(there.ino).guarded();
                require_unsticky(who, locked.of(dir).guarded(), guard)?;
                if guard.kind == FileKind::Directory {
                    return Err(FsError::IsDirectory);
                }
            }
            None => self.require_pool_space(METADATA_BYTES)?,
        }
        if let Some(beginning) = place.beginning {
            let state = locked.of(beginning.inode.ino);
            state.require_live()?;
            let is_same =
                state.sequence == beginning.sequence && state.record.ctime == beginning.ctime;
            if !is_same {
                return Err(FsError::NotSync);
            }
        }
        Ok(())
    }

    /// Checks whether a replaced file can be kept under another name; returns its new tree, if it changes trees.
    pub(crate) fn require_keeping(
        &self,
        who: &Credentials,
        there: &Arc<Inode>,
        dir: Ino,
        name: &[u8],
        locked: &Locked<'_>,
    ) -> Result<Option<Ino>, FsError> {
        locked.of(dir).require_dir()?;
        require(who, locked.of(dir).guarded(), WRITE | EXECUTE)?;
        if locked.of(there.ino).record.kind != InodeKind::Regular {
            return Err(FsError::NotSupported);
        }
        if self.dirent(dir, name)?.is_some() {
            return Err(FsError::Exists);
        }
        if !self.quotas.has_trees() {
            return Ok(None);
        }
        let tree = self.quotas.inherited(&locked.of(dir).record);
        let record = &locked.of(there.ino).record;
        if record.tree == tree {
            return Ok(None);
        }
        // The file would have names in two trees.
        if record.nlink > 1 {
            return Err(FsError::CrossTree);
        }
        let owner = owner_of(record);
        let new_owner = Owner { tree, ..owner };
        self.require_quota(new_owner, Some(owner), 1, record.used_bytes)?;
        Ok(Some(tree))
    }

    /// Admits bytes that are to be written to `range` of a file: waits for room, or fails if there is none.
    pub(crate) async fn admit_write(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        range: &Range<u64>,
    ) -> Result<Room, FsError> {
        let count_bytes = range.end - range.start;
        let more = crate::kernel::Load::of(count_bytes, 1);
        loop {
            // A write that came in after the last flush would be lost, and acknowledged with the old verifier.
            self.require_serving()?;
            let room = self.require_room(inode, range).await?;
            let reserved = inode.lock().reserved.clone();
            match reserved {
                Some(reserved) => self.require_reserved_space(&reserved, count_bytes)?,
                None => self.require_pool_space(count_bytes)?,
            }
            if self.dirty.admit(more).await {
                return Ok(room);
            }
            drop(room);
            // Otherwise it would wait for ever: the flush that should make room finds no space.
            if self.dirty.is_stuck(more, self.env.clock.monotonic()) {
                self.gc_wake.notify_one();
                return Err(FsError::NoSpace);
            }
        }
    }
}

struct FilePlacement<'a> {
    placing: &'a Placing<'a>,
    keeping: &'a Keeping<'a>,
    beginning: Option<&'a Beginning<'a>>,
    names_len_bytes: u32,
    target: Option<&'a DirentRecord>,
    replaced: Option<&'a Arc<Inode>>,
}
