//! Names: lookup, create, link, remove, readdir. (Rename has a file of its own.)
//!
//! Owns: the order of checks (which error wins), the keys that each change writes. Every change submits one batch
//! under the locks of all inodes it touches.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, Timestamp, View};
use cairn_meta::{
    CookieRecord, DirentRecord, InodeKind, InodeRecord, Key, SpaceDelta, Ticket, UsageDelta,
};

use crate::keep::{Changed, Keep, KeepPlan, KeepRequest, is_silly};
use crate::kernel::{
    Change, Edit, Guard, Inode, Locked, Record, Shown, State, fold_journal, meta_error, of_volume,
    owner_of, stored_kind, usage_of,
};
use crate::perm::{EXECUTE, MODE_MASK, MODE_SET_GID, READ, WRITE, require, require_unsticky};
use crate::room::METADATA_BYTES;
use crate::types::*;
use crate::volume::{Fs, FsView, VolumeCore};
use crate::xattr::check_xattr;

/// READDIR cookies: 1 is `.`, 2 is `..`, entries begin here.
pub(crate) const COOKIE_FIRST: u64 = 3;
/// Attempts of an operation whose names change while it collects locks.
pub(crate) const NAME_ATTEMPTS_MAX: usize = 100;

/// Checks a name for a lookup or a removal.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_LEN_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.contains(&0) || name.contains(&b'/') {
        return Err(FsError::Invalid);
    }
    Ok(())
}

pub(crate) fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Whether every directory has this name, without an entry.
pub(crate) fn is_everywhere(name: &[u8]) -> bool {
    is_dot(name) || name == SNAPSHOTS_NAME
}

/// Checks a new name. A name that every directory has counts as taken.
pub(crate) fn check_new_name(name: &[u8]) -> Result<(), FsError> {
    check_name(name)?;
    match is_everywhere(name) {
        true => Err(FsError::Exists),
        false => Ok(()),
    }
}

/// A change to the entries of one directory, which is one of the locked inodes of a change.
pub(crate) struct DirChange<'c, 'a> {
    pub dir: Ino,
    pub change: &'c mut Change<'a>,
}

impl DirChange<'_, '_> {
    /// Adds a new name. Returns its cookie, which the caller also stores in the inode.
    pub fn add(&mut self, name: &[u8], ino: Ino, kind: InodeKind) -> u64 {
        let mut edit = self.change.edit(self.dir);
        let record = edit.record();
        let cookie = record.cookie_next;
        record.cookie_next += 1;
        record.entry_count += 1;
        self.replace(name, ino, kind, cookie);
        cookie
    }

    /// Points a name at an inode, under the cookie of the name: an existing name keeps its cookie.
    pub fn replace(&mut self, name: &[u8], ino: Ino, kind: InodeKind, cookie: u64) {
        let batch = self.change.edit(self.dir).batch;
        let dirent = DirentRecord { ino, kind, cookie };
        batch.put(Key::dirent(self.dir, name), dirent.encode());
        let entry = CookieRecord {
            ino,
            kind,
            name: Bytes::copy_from_slice(name),
        };
        batch.put(Key::cookie(self.dir, cookie), entry.encode());
    }

    pub fn remove(&mut self, name: &[u8], cookie: u64) {
        let mut edit = self.change.edit(self.dir);
        let record = edit.record();
        record.entry_count = record.entry_count.saturating_sub(1);
        edit.batch.delete(Key::dirent(self.dir, name));
        if planted::is(Bug::RemovalForgetsCookie) {
            return;
        }
        edit.batch.delete(Key::cookie(self.dir, cookie));
    }
}

/// The content of a new inode, beside its attributes.
#[derive(Clone)]
enum Content {
    Empty,
    Symlink(Bytes),
    Device {
        major: u32,
        minor: u32,
    },
    Exclusive([u8; 8]),
    /// Extended attributes, already checked, and the size of their names in the list.
    Xattrs(Vec<(Bytes, Bytes)>, u32),
}

impl FsView {
    /// Finds `name` in `dir`. Returns the attributes of the found inode, and those of the directory, unless the
    /// directory is being changed: otherwise each name that other clients make or remove would delay this call.
    pub async fn lookup(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
    ) -> Result<(Attr, Option<Attr>), FsError> {
        check_name(name)?;
        let found = self
            .shared
            .reading(|| self.shared.look_up(who, self.view, dir, name))
            .await;
        match found {
            Ok(Lookup::Found {
                attr,
                dir_attr,
                ticket,
            }) => self.shared.settle(Ok(((attr, dir_attr), ticket))).await,
            // Of the names that are being made or removed, only this one matters.
            Ok(Lookup::Nothing(ticket)) => {
                self.shared.outcome(ticket).await?;
                Err(FsError::NotFound)
            }
            Err(error) => self.shared.settle(Err(error)).await,
        }
    }

    /// Entries after `cookie` (0 is the start), at most `limit`, with attributes if requested.
    ///
    /// A user that may list a directory but not search it learns only names; entries then have no attributes, since a
    /// lookup would be refused.
    pub async fn read_dir(
        &self,
        who: &Credentials,
        dir: Ino,
        cookie: u64,
        limit: usize,
        with_attr: bool,
    ) -> Result<DirPage, FsError> {
        let shared = &self.shared;
        let page = shared.reading(|| shared.page_of(who, self.view, dir, cookie, limit));
        let (mut page, mut ticket, may_search) = match page.await {
            Ok(found) => found,
            Err(error) => return shared.settle(Err(error)).await,
        };
        if with_attr && may_search {
            for entry in &mut page.entries {
                let found = shared
                    .reading(|| shared.attr_of_entry(self.view, entry.ino))
                    .await;
                match found {
                    Ok((attr, shown)) => {
                        entry.attr = Some(attr);
                        ticket = ticket.max(shown);
                    }
                    // The entry was removed since: the client finds out by a lookup.
                    Err(FsError::Stale) => {}
                    // The other entries can be listed, and this one can be removed. A lookup of it reports the error;
                    // here each listing would log a line.
                    Err(FsError::Io(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        shared.settle(Ok((page, ticket))).await
    }
}

impl Fs {
    /// Makes or opens a regular file.
    pub async fn create(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        mode: CreateMode,
    ) -> Result<Made, FsError> {
        let shared = &self.shared;
        check_new_name(name)?;
        let parent = shared.reading(|| shared.inode(dir)).await?;
        for _ in 0..NAME_ATTEMPTS_MAX {
            let create = || shared.create_new(who, &parent, name, mode);
            let done = match shared.reading(create).await {
                Ok(CreateOutcome::Made(made, ticket)) => {
                    self.note_made(dir, made.attr.ino).await;
                    Ok((made, ticket))
                }
                Ok(CreateOutcome::Existing(ino)) => {
                    match self.open_existing(who, &parent, ino, mode).await {
                        // The file was removed meanwhile, so a new one can be made.
                        Err(FsError::Stale) => continue,
                        done => done,
                    }
                }
                Err(error) => Err(error),
            };
            return shared.settle(done).await;
        }
        Err(FsError::TryLater)
    }

    /// CREATE of an existing name.
    async fn open_existing(
        &self,
        who: &Credentials,
        parent: &Arc<Inode>,
        ino: Ino,
        mode: CreateMode,
    ) -> Result<(Made, Ticket), FsError> {
        let shared = &self.shared;
        let child = shared.reading(|| shared.inode(ino)).await?;
        let (kind, verifier) = {
            let state = child.lock();
            (state.record.kind, state.record.exclusive_verifier)
        };
        match mode {
            CreateMode::Guarded(_) => return Err(FsError::Exists),
            CreateMode::Exclusive(wanted) => {
                if kind != InodeKind::Regular || verifier != Some(wanted) {
                    return Err(FsError::Exists);
                }
            }
            CreateMode::Unchecked(set) => {
                if kind != InodeKind::Regular {
                    return Err(FsError::Exists);
                }
                // Of the attributes, only a size of zero applies to an existing file.
                if set.size_bytes == Some(0) {
                    let cut = SetAttr {
                        size_bytes: Some(0),
                        ..SetAttr::default()
                    };
                    self.set_attr(who, ino, cut, None).await?;
                }
            }
        }
        let (attr, ticket) = {
            let state = child.lock();
            (state.attr(ino), state.shown())
        };
        let dir = {
            let state = parent.lock();
            let before = state.pre_attr();
            (state.wcc(parent.ino, before), state.shown())
        };
        Ok((Made { attr, dir: dir.0 }, ticket.max(dir.1)))
    }

    pub async fn make_dir(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        set: SetAttr,
    ) -> Result<Made, FsError> {
        self.make_new(who, dir, name, FileKind::Directory, set, Content::Empty)
            .await
    }

    /// Makes a directory with extended attributes, in one step.
    pub async fn make_dir_with(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        set: SetAttr,
        xattrs: &[(&[u8], Bytes)],
    ) -> Result<Made, FsError> {
        let mut names_len_bytes = 0;
        for (name, value) in xattrs {
            names_len_bytes += check_xattr(name, value)?;
        }
        if names_len_bytes as usize > XATTR_LIST_LEN_BYTES_MAX {
            return Err(FsError::NoSpace);
        }
        let xattrs = xattrs.iter();
        let xattrs = xattrs.map(|(name, value)| (Bytes::copy_from_slice(name), value.clone()));
        let content = Content::Xattrs(xattrs.collect(), names_len_bytes);
        self.make_new(who, dir, name, FileKind::Directory, set, content)
            .await
    }

    pub async fn make_symlink(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        target: &[u8],
        set: SetAttr,
    ) -> Result<Made, FsError> {
        if target.len() > SYMLINK_LEN_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(FsError::Invalid);
        }
        let content = Content::Symlink(Bytes::copy_from_slice(target));
        self.make_new(who, dir, name, FileKind::Symlink, set, content)
            .await
    }

    pub async fn make_node(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        node: NodeKind,
        set: SetAttr,
    ) -> Result<Made, FsError> {
        let (kind, content) = match node {
            NodeKind::Fifo => (FileKind::Fifo, Content::Empty),
            NodeKind::Socket => (FileKind::Socket, Content::Empty),
            NodeKind::BlockDevice { major, minor } => {
                (FileKind::BlockDevice, Content::Device { major, minor })
            }
            NodeKind::CharDevice { major, minor } => {
                (FileKind::CharDevice, Content::Device { major, minor })
            }
        };
        if matches!(content, Content::Device { .. }) && !who.is_root() {
            return Err(FsError::NotOwner);
        }
        self.make_new(who, dir, name, kind, set, content).await
    }

    async fn make_new(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        set: SetAttr,
        content: Content,
    ) -> Result<Made, FsError> {
        let shared = &self.shared;
        check_new_name(name)?;
        let made = shared.reading(|| {
            let parent = shared.inode(dir)?;
            let state = parent.lock();
            state.require_dir()?;
            require(who, state.guarded(), EXECUTE)?;
            match shared.dirent(dir, name)? {
                Some(_) => Err(FsError::Exists),
                None => shared.make(who, state, name, kind, set, content.clone()),
            }
        });
        shared.settle(made.await).await
    }

    /// Removes a name of anything but a directory.
    pub async fn remove(&self, who: &Credentials, dir: Ino, name: &[u8]) -> Result<Wcc, FsError> {
        check_name(name)?;
        if is_dot(name) {
            return Err(FsError::Invalid);
        }
        self.remove_if(who, dir, name, None).await
    }

    /// Removes a file that has not changed since the caller read its state; otherwise fails with
    /// [`FsError::NotSync`], also if the name now belongs to another file.
    pub async fn remove_unchanged(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        only: Unchanged,
    ) -> Result<Wcc, FsError> {
        check_name(name)?;
        if is_dot(name) {
            return Err(FsError::Invalid);
        }
        self.remove_if(who, dir, name, Some(only)).await
    }

    async fn remove_if(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        only: Option<Unchanged>,
    ) -> Result<Wcc, FsError> {
        let remove = |keep: Keep<'_>| {
            let shared = &self.shared;
            shared.remove_name(who, (dir, name), false, keep, only)
        };
        let done = self.shared.change_keeping(self.is_keeping(), remove).await;
        self.shared.settle(done).await
    }

    /// Removes an empty directory.
    pub async fn remove_dir(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
    ) -> Result<Wcc, FsError> {
        check_name(name)?;
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        let remove = |keep: Keep<'_>| {
            let shared = &self.shared;
            shared.remove_name(who, (dir, name), true, keep, None)
        };
        let done = self.shared.change_keeping(false, remove).await;
        self.shared.settle(done).await
    }

    /// Gives an inode that is no directory one more name.
    pub async fn link(
        &self,
        who: &Credentials,
        ino: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<(Attr, Wcc), FsError> {
        check_new_name(name)?;
        let done = self
            .shared
            .reading(|| self.shared.add_link(who, ino, dir, name))
            .await;
        self.shared.settle(done).await
    }
}

/// A file in the state that a caller read. Each change of a file gives it a later change time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unchanged {
    pub ino: Ino,
    pub ctime: Timestamp,
}

impl Unchanged {
    pub fn of(attr: &Attr) -> Self {
        Self {
            ino: attr.ino,
            ctime: attr.ctime,
        }
    }

    pub(crate) fn is(self, ino: Ino, ctime: Timestamp) -> bool {
        self == Self { ino, ctime }
    }
}

/// The result of CREATE at its name.
#[expect(clippy::large_enum_variant, reason = "passed on once, by value")]
enum CreateOutcome {
    Made(Made, Ticket),
    Existing(Ino),
}

/// The result of a lookup, with the last change that it rests on.
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart at once, in one place"
)]
enum Lookup {
    Found {
        attr: Attr,
        /// `None` while the directory is being changed.
        dir_attr: Option<Attr>,
        ticket: Ticket,
    },
    Nothing(Ticket),
}

fn stale_is_not_found(error: FsError) -> FsError {
    match error {
        FsError::Stale => FsError::NotFound,
        other => other,
    }
}

impl VolumeCore {
    /// The inode of a name in a directory, if any.
    fn look_up(
        &self,
        who: &Credentials,
        view: View,
        dir: Ino,
        name: &[u8],
    ) -> Result<Lookup, FsError> {
        let parent = self.inode_in(view, dir)?;
        let (ino, dir_attr, ticket) = {
            let state = parent.lock();
            state.require_dir()?;
            require(who, state.guarded(), EXECUTE)?;
            let is_durable = self.meta.is_durable(state.shown());
            let attr = is_durable.then(|| state.attr(dir));
            match name {
                b"." => (dir, attr, state.changed()),
                b".." => (
                    state.record.parent.in_branch(dir.branch()),
                    attr,
                    state.changed(),
                ),
                _ => match self.dirent_with_ticket(view, dir, name)? {
                    (Some(entry), ticket) => (entry.ino, attr, ticket),
                    (None, ticket) => return Ok(Lookup::Nothing(ticket)),
                },
            }
        };
        let child = self.inode_in(view, ino).map_err(stale_is_not_found)?;
        let state = child.lock();
        let ticket = ticket.max(state.shown());
        let attr = state.attr(ino);
        Ok(Lookup::Found {
            attr,
            dir_attr,
            ticket,
        })
    }

    /// Returns a page without attributes of its entries; the last change that it rests on; whether there may be
    /// attributes.
    fn page_of(
        &self,
        who: &Credentials,
        view: View,
        dir: Ino,
        cookie: u64,
        limit: usize,
    ) -> Result<(DirPage, Ticket, bool), FsError> {
        let shared = self;
        let inode = shared.inode_in(view, dir)?;
        let (attr, parent, cookie_next, may_search) = {
            let state = inode.lock();
            state.require_dir()?;
            require(who, state.guarded(), READ)?;
            (
                state.attr(dir),
                state.record.parent.in_branch(dir.branch()),
                state.record.cookie_next,
                require(who, state.guarded(), EXECUTE).is_ok(),
            )
        };
        if cookie >= cookie_next.max(COOKIE_FIRST) {
            return Err(FsError::BadCookie);
        }
        let mut entries = Vec::new();
        for (number, name, ino) in [(1u64, b".".as_slice(), dir), (2, b"..", parent)] {
            if cookie < number && entries.len() < limit {
                entries.push(DirEntry {
                    ino,
                    name: name.into(),
                    cookie: number,
                    attr: None,
                });
            }
        }
        let room = limit - entries.len();
        let (view, stored_dir) = self.stored_at(view, dir)?;
        let (from, to) = Key::cookies_after(stored_dir, cookie.max(COOKIE_FIRST - 1));
        // One entry more than requested tells whether this is the end.
        let found = shared.meta.view(view);
        let found = found.and_then(|meta| meta.scan(&from, &to, room + 1));
        let found = found.map_err(meta_error)?;
        let has_dots = entries.last().map_or(cookie, |entry| entry.cookie) >= COOKIE_FIRST - 1;
        let eof = has_dots && found.len() <= room;
        for (key, value) in found.into_iter().take(room) {
            let record = CookieRecord::decode(&value).map_err(|error| meta_error(error.into()))?;
            let cairn_meta::KeyKind::Cookie { seq, .. } =
                key.kind().map_err(|error| meta_error(error.into()))?
            else {
                return Err(FsError::Io(format!(
                    "directory {dir}: a key that is no cookie"
                )));
            };
            entries.push(DirEntry {
                ino: record.ino.in_branch(dir.branch()),
                name: record.name.as_ref().into(),
                cookie: seq,
                attr: None,
            });
        }
        // After the entries were read: by then the ticket covers all changes in them.
        let ticket = inode.lock().shown();
        let page = DirPage {
            dir: attr,
            entries,
            eof,
        };
        Ok((page, ticket, may_search))
    }

    fn attr_of_entry(&self, view: View, ino: Ino) -> Result<(Attr, Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        Ok((state.attr(ino), state.shown()))
    }

    /// The inode of an entry; `None` if it was removed since the entry was read.
    pub(crate) fn named(&self, entry: &DirentRecord) -> Result<Option<Arc<Inode>>, FsError> {
        match self.inode(entry.ino) {
            Ok(inode) => Ok(Some(inode)),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The entry in the live view.
    pub fn dirent(&self, dir: Ino, name: &[u8]) -> Result<Option<DirentRecord>, FsError> {
        self.dirent_with_ticket(View::Live, dir, name)
            .map(|(entry, _)| entry)
    }

    pub(crate) fn dirent_with_ticket(
        &self,
        view: View,
        dir: Ino,
        name: &[u8],
    ) -> Result<(Option<DirentRecord>, Ticket), FsError> {
        let (view, stored_dir) = self.stored_at(view, dir)?;
        let key = Key::dirent(stored_dir, name);
        let found = self.meta.view(view);
        let found = found.and_then(|meta| meta.get_with_ticket(&key));
        let (stored, ticket) = found.map_err(meta_error)?;
        let entry = stored.map(|bytes| DirentRecord::decode(&bytes)).transpose();
        let mut entry = entry.map_err(|error| meta_error(error.into()))?;
        if let Some(entry) = &mut entry {
            entry.ino = entry.ino.in_branch(dir.branch());
        }
        Ok((entry, ticket))
    }

    /// Makes a regular file, unless the name exists.
    fn create_new(
        &self,
        who: &Credentials,
        parent: &Arc<Inode>,
        name: &[u8],
        mode: CreateMode,
    ) -> Result<CreateOutcome, FsError> {
        let dir = parent.ino;
        let state = parent.lock();
        state.require_dir()?;
        require(who, state.guarded(), EXECUTE)?;
        if let Some(entry) = self.dirent(dir, name)? {
            return Ok(CreateOutcome::Existing(entry.ino));
        }
        let (set, content) = match mode {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (set, Content::Empty),
            CreateMode::Exclusive(verifier) => (
                SetAttr {
                    mode: Some(0),
                    ..SetAttr::default()
                },
                Content::Exclusive(verifier),
            ),
        };
        self.make(who, state, name, FileKind::Regular, set, content)
            .map(|(made, ticket)| CreateOutcome::Made(made, ticket))
    }

    /// Makes an inode and its name in a directory, which is locked and has no such name.
    fn make(
        &self,
        who: &Credentials,
        parent: Guard<'_>,
        name: &[u8],
        kind: FileKind,
        set: SetAttr,
        content: Content,
    ) -> Result<(Made, Ticket), FsError> {
        require(who, parent.guarded(), WRITE | EXECUTE)?;
        self.require_serving()?;
        self.require_pool_space(METADATA_BYTES)?;
        if kind == FileKind::Directory {
            parent.require_room_for_link()?;
        }
        let mut record = new_record(who, &parent, kind, set)?;
        record.tree = self.quotas.inherited(&parent.record);
        self.require_quota(owner_of(&record), None, 1, 0)?;
        let now = self.now();
        let time = |set: SetTime| match set {
            SetTime::Keep | SetTime::Now => now,
            SetTime::To(time) => time,
        };
        (record.atime, record.mtime, record.ctime) = (time(set.atime), time(set.mtime), now);
        let mut xattrs = Vec::new();
        match content {
            Content::Empty => {}
            Content::Symlink(target) => {
                record.size_bytes = target.len() as u64;
                record.symlink_target = target;
            }
            Content::Device { major, minor } => {
                record.device_major = major;
                record.device_minor = minor;
            }
            Content::Exclusive(verifier) => record.exclusive_verifier = Some(verifier),
            Content::Xattrs(made, names_len_bytes) => {
                record.xattr_names_len_bytes = names_len_bytes;
                xattrs = made;
            }
        }
        let dir = parent.ino();
        record.parent = dir;
        if kind == FileKind::Regular {
            record.size_bytes = set.size_bytes.unwrap_or(0);
            if record.size_bytes > FILE_LEN_BYTES_MAX {
                return Err(FsError::FileTooLarge);
            }
        }

        let ino = self.allocate_ino(dir.branch());
        let before = parent.pre_attr();
        let owner = owner_of(&record);
        let inode = self.new_inode(ino, record);
        let mut change = self.begin_change(parent);
        let cookie = DirChange {
            dir,
            change: &mut change,
        }
        .add(name, ino, stored_kind(kind));
        let mut edit = change.edit(dir);
        if kind == FileKind::Directory {
            edit.record().nlink += 1;
        }
        edit.touch_mtime(now);
        let mut edit = change.make(&inode);
        edit.record().cookie = cookie;
        let batch = edit.batch;
        batch.charge(owner, UsageDelta::ONE_INODE);
        for (name, value) in xattrs {
            let stored = self.xattr_values.stored(ino, &name, &value);
            batch.put(Key::xattr(ino, &name), stored);
        }
        let space = SpaceDelta {
            inodes: 1,
            ..SpaceDelta::default()
        };
        batch.space(of_volume(ino, space));
        change.answer(who, ino);
        let done = change.commit();
        let made = Made {
            attr: done.of(ino).attr(ino),
            dir: done.of(dir).wcc(dir, before),
        };
        Ok((made, done.ticket))
    }

    fn remove_name(
        self: &Arc<Self>,
        who: &Credentials,
        (dir, name): (Ino, &[u8]),
        directory: bool,
        keep: Keep<'_>,
        only: Option<Unchanged>,
    ) -> Result<Changed<(Wcc, Ticket)>, FsError> {
        let parent = self.inode(dir)?;
        let is_wanted = match keep {
            Keep::No => false,
            Keep::Ask | Keep::There(_) => !is_silly(name) && self.kept_directory(dir)?.is_some(),
        };
        let folder = self.folder_of(keep)?;
        for _ in 0..NAME_ATTEMPTS_MAX {
            let (entry, looked_at) = {
                let state = parent.lock();
                state.require_dir()?;
                require(who, state.guarded(), EXECUTE)?;
                // Under the lock: a later change of a name changes the ticket, too.
                (self.dirent(dir, name)?, state.ticket())
            };
            let entry = entry.ok_or(FsError::NotFound)?;
            let Some(child) = self.named(&entry)? else {
                continue;
            };
            let mut inodes = vec![&parent, &child];
            inodes.extend(folder.as_ref());
            let locked = Locked::all(&inodes);
            locked.of(dir).require_dir()?;
            let is_as_it_was = locked.of(dir).ticket() == looked_at;
            if !is_as_it_was && self.dirent(dir, name)? != Some(entry) {
                continue;
            }
            require(who, locked.of(dir).guarded(), WRITE | EXECUTE)?;
            let (guard_dir, guard_child) =
                (locked.of(dir).guarded(), locked.of(child.ino).guarded());
            require_unsticky(who, guard_dir, guard_child)?;
            // Under the locks: nothing changes between this check and the removal.
            if only.is_some_and(|only| !only.is(child.ino, locked.of(child.ino).record.ctime)) {
                return Err(FsError::NotSync);
            }
            locked.of(child.ino).require_unretained(self.now())?;
            let is_dir = guard_child.kind == FileKind::Directory;
            match (directory, is_dir) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if locked.of(child.ino).record.entry_count > 0 => {
                    return Err(FsError::NotEmpty);
                }
                _ => {}
            }

            self.require_serving()?;
            let plan = self.plan_keeping(keep, is_wanted, &child, folder.as_ref(), &locked)?;
            if matches!(plan, KeepPlan::PrepareFirst) {
                return Ok(Changed::Keep(KeepRequest {
                    inode: child.clone(),
                    dir,
                    name: name.to_vec(),
                    removes: true,
                    stays: false,
                }));
            }
            let now = self.now();
            let before = locked.of(dir).pre_attr();
            let mut change = self.begin_change(locked);
            if !plan.moves() {
                // This can fail, so it comes before any change.
                self.drop_link(&mut change, child.ino, now)?;
            }
            self.carry_out(&plan, child.ino, &mut change);
            DirChange {
                dir,
                change: &mut change,
            }
            .remove(name, entry.cookie);
            let mut edit = change.edit(dir);
            if is_dir {
                let record = edit.record();
                record.nlink = record.nlink.saturating_sub(1);
            }
            edit.touch_mtime(now);
            change.answer(who, child.ino);
            let done = change.commit();
            return Ok(Changed::Done((done.of(dir).wcc(dir, before), done.ticket)));
        }
        Err(FsError::TryLater)
    }

    /// Takes one name from a locked inode (all names of a directory). An inode without a name is removed: at once if
    /// its extents fit the batch, otherwise by the reaper. On an error, the change has not touched it.
    pub(crate) fn drop_link(
        &self,
        change: &mut Change<'_>,
        ino: Ino,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let record = &change.of(ino).record;
        let is_dir = record.kind == InodeKind::Directory;
        if !is_dir && record.nlink > 1 {
            let mut edit = change.edit(ino);
            edit.touch_ctime(now);
            edit.record().nlink -= 1;
            return Ok(());
        }
        let goes_now = record.used_bytes == 0;
        if goes_now {
            self.drop_xattrs(change, ino)?;
        }
        let mut edit = change.edit(ino);
        edit.touch_ctime(now);
        edit.record().nlink = 0;
        let Edit { state, batch, .. } = edit;
        if is_dir {
            self.drop_tree(ino, batch);
            self.policies.drop_dir(ino, batch);
        }
        state.removed = true;
        state.attr_dirty = false;
        self.discard_dirty(state, 0);
        fold_journal(ino, state, &(0..u64::MAX), batch);
        if goes_now {
            batch.charge(owner_of(&state.record), -usage_of(&state.record));
            let space = SpaceDelta {
                inodes: -1,
                ..SpaceDelta::default()
            };
            batch.space(of_volume(ino, space));
            change.delete_inode(ino, Shown::ToAll);
        } else if !planted::is(Bug::OrphanForgotten) {
            batch.put(Key::orphan(ino), vec![1]);
            self.add_orphan(ino);
        }
        Ok(())
    }

    fn add_link(
        self: &Arc<Self>,
        who: &Credentials,
        ino: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<((Attr, Wcc), Ticket), FsError> {
        let child = self.inode(ino)?;
        let parent = self.inode(dir)?;
        let child_dir = {
            let state = child.lock();
            if state.record.kind == InodeKind::Directory {
                return Err(FsError::NotOwner);
            }
            state.record.parent
        };
        let is_other_tree = match self.is_other_tree(child_dir, dir) {
            // The directory of its first name may be gone; the inode itself records its tree.
            Err(FsError::Stale) => false,
            found => found?,
        };
        let locked = Locked::all(&[&parent, &child]);
        locked.of(ino).require_live()?;
        locked.of(dir).require_dir()?;
        require(who, locked.of(dir).guarded(), EXECUTE)?;
        if self.dirent(dir, name)?.is_some() {
            return Err(FsError::Exists);
        }
        require(who, locked.of(dir).guarded(), WRITE | EXECUTE)?;
        locked.of(ino).require_room_for_link()?;
        self.require_serving()?;
        self.require_pool_space(METADATA_BYTES)?;
        if is_other_tree {
            return Err(FsError::CrossTree);
        }
        let tree = self.quotas.inherited(&locked.of(dir).record);
        // While a tree is being counted, an inode may be in the tree and record another one.
        let is_elsewhere =
            self.quotas.is_counting() && tree != self.quotas.inherited(&locked.of(ino).record);
        let now = self.now();
        let kind = locked.of(ino).record.kind;
        let before = locked.of(dir).pre_attr();
        let mut change = self.begin_change(locked);
        DirChange {
            dir,
            change: &mut change,
        }
        .add(name, ino, kind);
        change.edit(dir).touch_mtime(now);
        let stored = match planted::is(Bug::LinkCountNotStored) {
            true => Record::Kept,
            false => Record::Stored,
        };
        let mut edit = change.touch(ino, Shown::ToAll, stored);
        edit.record().nlink += 1;
        edit.touch_ctime(now);
        if is_elsewhere {
            self.move_to_tree(&mut edit, tree);
            self.sync_pending(edit.state);
        }
        change.answer(who, ino);
        let done = change.commit();
        let attr = done.of(ino).attr(ino);
        Ok(((attr, done.of(dir).wcc(dir, before)), done.ticket))
    }
}

/// The attributes of a new inode in `parent`.
pub(crate) fn new_record(
    who: &Credentials,
    parent: &State,
    kind: FileKind,
    set: SetAttr,
) -> Result<InodeRecord, FsError> {
    let inherits = parent.record.mode & MODE_SET_GID != 0;
    let mut record = InodeRecord::new(stored_kind(kind));
    record.uid = who.uid;
    record.gid = if inherits { parent.record.gid } else { who.gid };
    if let Some(uid) = set.uid {
        if !who.is_root() && uid != who.uid {
            return Err(FsError::NotOwner);
        }
        record.uid = uid;
    }
    if let Some(gid) = set.gid {
        if !who.is_root() && !who.in_group(gid) && gid != record.gid {
            return Err(FsError::NotOwner);
        }
        record.gid = gid;
    }
    let default = match kind {
        FileKind::Directory => 0o755,
        FileKind::Symlink => 0o777,
        _ => 0o644,
    };
    record.mode = set.mode.unwrap_or(default) & MODE_MASK;
    match kind {
        FileKind::Directory => {
            record.nlink = 2;
            record.cookie_next = COOKIE_FIRST;
            if inherits {
                record.mode |= MODE_SET_GID;
            }
        }
        _ => {
            record.nlink = 1;
            if !who.is_root() && !who.in_group(record.gid) {
                record.mode &= !MODE_SET_GID;
            }
        }
    }
    Ok(record)
}
