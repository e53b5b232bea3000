//! Previous contents of files, kept before clients change or remove them.
//!
//! Owns: below which directories contents are kept, when a change of a file begins, and that the previous content is
//! kept with the change or before it. Must not know: where contents are kept and under which names; a [`Keeper`] does
//! (the versions of objects use it).
//!
//! A removed file moves, in the batch of the change that takes its name. For a file whose bytes change, a copy is
//! made that shares them. The batch that names the copy also begins the change: it gives the file another
//! modification time. So no content is kept twice: after a crash, either the change has begun or nothing is kept.
//! Further changes of the bytes belong to the first one for a while, so that contents which existed only for a moment
//! are not kept.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, Ino, Timestamp};
use cairn_meta::{
    CookieRecord, DirentRecord, InodeKind, InodeRecord, Key, KeyKind, SpaceDelta, UsageDelta,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::data::JOURNAL_WRITE_BYTES_MAX;
use crate::hidden::HIDDEN;
use crate::kernel::{Change, Edit, Inode, Locked, Metadata, State, meta_error, owner_of};
use crate::namespace::{DirChange, check_new_name};
use crate::perm::{WRITE, require_data};
use crate::room::METADATA_BYTES;
use crate::types::*;
use crate::unnamed::{Expected, Keeping as Kept, Placing};
use crate::volume::{Fs, ROOT, VolumeCore};
use crate::xattr::{XattrValues, check_xattr};

/// Attributes of the hidden folder that name the directories below which contents are kept.
const OF_DIRECTORY: &[u8] = b"user.keeps.";
/// How long a change waits for the keeper of a volume that was just opened.
const KEEPER_WAIT: Duration = Duration::from_secs(10);
/// Maximum depth of directories.
const DEPTH_MAX: usize = 4096;
/// Attempts to keep the content of a file that other clients change concurrently.
const ATTEMPTS_MAX: usize = 100;
/// Prefix of the name that a client gives a file which it removes while it has it open; a number in hexadecimal follows.
const SILLY: &[u8] = b".nfs";
const SILLY_LEN: usize = 28;
const WHO: Credentials = Credentials::ROOT;

/// Decides where kept contents go.
pub trait Keeper: Send + Sync {
    /// The place for the content of the file with this path below a directory; `None`: it is not kept. `removes`:
    /// nothing has the name after the change.
    fn place(
        &self,
        directory: Ino,
        path: Vec<Arc<[u8]>>,
        there: Attr,
        removes: bool,
    ) -> BoxFuture<Result<Option<KeptPlace>, FsError>>;

    /// The place was not needed.
    fn give_up(&self, directory: Ino, path: Vec<Arc<[u8]>>) -> BoxFuture<()>;
}

/// The place for the content of a file.
pub struct KeptPlace {
    pub dir: Ino,
    pub name: Vec<u8>,
    /// An empty file that is made there, too.
    pub marker: Option<Marker>,
    /// Held until the change is made, so that the facts behind the choice of the place stay true.
    pub turn: Box<dyn Any + Send + Sync>,
}

/// A file without bytes.
pub struct Marker {
    pub name: Vec<u8>,
    pub mtime: Timestamp,
    pub xattrs: Vec<(Vec<u8>, Bytes)>,
}

/// The directories below which contents are kept, and their keeper.
pub(crate) struct Keeping {
    is_active: AtomicBool,
    /// Each with the time for which changes belong to the first of them.
    directories: RwLock<BTreeMap<Ino, Duration>>,
    keeper: Mutex<Option<Weak<dyn Keeper>>>,
    keeper_came: Notify,
}

impl Keeping {
    /// Reads the directories. Changes of files wait until the keeper is set.
    pub fn open(meta: &Metadata, values: &XattrValues) -> Result<Self, FsError> {
        let mut directories = BTreeMap::new();
        let mut failed = None;
        let (from, to) = Key::xattrs(HIDDEN);
        let visit = |key: &[u8], value: &[u8], _: Generation| {
            if let Ok(KeyKind::Xattr { name, .. }) = KeyKind::parse(key)
                && let Some(number) = name.strip_prefix(OF_DIRECTORY)
            {
                let value = values.read(HIDDEN, name, &Bytes::copy_from_slice(value));
                match value.map(|value| parse(number, &value)) {
                    Ok(Some((dir, during))) => drop(directories.insert(dir, during)),
                    Ok(None) => {
                        let name = String::from_utf8_lossy(name);
                        failed = Some(FsError::Io(format!(
                            "the attribute {name} of the hidden folder is damaged"
                        )));
                    }
                    Err(error) => failed = Some(error),
                }
            }
            ControlFlow::Continue(())
        };
        let live = meta.live();
        live.scan_with(&from, &to, visit).map_err(meta_error)?;
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Self {
            is_active: AtomicBool::new(!directories.is_empty()),
            directories: RwLock::new(directories),
            keeper: Mutex::new(None),
            keeper_came: Notify::new(),
        })
    }

    /// The whole cost of a change in a volume that keeps no contents.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }
}

/// Decodes a directory and its time from an attribute; the value begins with the version that all attributes have.
fn parse(number: &[u8], value: &[u8]) -> Option<(Ino, Duration)> {
    let number = std::str::from_utf8(number).ok()?;
    let seconds = std::str::from_utf8(value).ok()?;
    let seconds: u32 = seconds.parse().ok()?;
    let ino = u64::from_str_radix(number, 16).ok()?;
    Some((Ino(ino), Duration::from_secs(seconds.into())))
}

fn attribute_of(dir: Ino) -> Vec<u8> {
    [OF_DIRECTORY, format!("{:016x}", dir.0).as_bytes()].concat()
}

/// Whether this is the name of a file that its client has removed already.
pub(crate) fn is_silly(name: &[u8]) -> bool {
    let number = name.strip_prefix(SILLY);
    number.is_some_and(|number| name.len() == SILLY_LEN && number.iter().all(u8::is_ascii_hexdigit))
}

/// The treatment of the file that a change takes a name from.
#[derive(Clone, Copy)]
pub(crate) enum Keep<'a> {
    /// The file is removed.
    No,
    /// The content may have to be kept: then nothing is changed, and the file is returned.
    Ask,
    /// The file goes to the prepared place, if it has not changed since.
    There(&'a Prepared),
}

/// A file, and the place for its content.
pub(crate) struct Prepared {
    ino: Ino,
    ctime: Timestamp,
    place: Option<KeptPlace>,
    /// The content is kept already: the file has other names, or gets one.
    is_kept: bool,
    directory: Ino,
    path: Vec<Arc<[u8]>>,
}

/// A file to keep before a change is made.
pub(crate) struct KeepRequest {
    pub inode: Arc<Inode>,
    pub dir: Ino,
    pub name: Vec<u8>,
    /// Nothing has the name after the change.
    pub removes: bool,
    /// The file gets another name, and stays the same file.
    pub stays: bool,
}

/// A change of names.
pub(crate) enum Changed<T> {
    Done(T),
    /// Not made yet: this file is to be kept first.
    Keep(KeepRequest),
}

/// A path below a directory.
type KeptPath = Option<(Ino, Vec<Arc<[u8]>>)>;
type Beginnings<'a> = Pin<Box<dyn Future<Output = Result<Option<Began>, FsError>> + Send + 'a>>;

/// The change times of a file before and after the beginning of a change.
pub(crate) struct Began {
    pub before: Timestamp,
    pub after: Timestamp,
}

/// The change of a file that begins when the copy of its content gets a name.
pub(crate) struct Beginning<'a> {
    pub inode: &'a Arc<Inode>,
    pub ctime: Timestamp,
    pub sequence: u64,
    pub until: Duration,
}

impl Fs {
    /// Starts or ends keeping the content of files below a directory before they are changed or removed. Changes
    /// within the time belong to the same change of a file. Durable on return.
    pub async fn keep_below(&self, dir: Ino, during: Option<Duration>) -> Result<(), FsError> {
        let keeping = &self.shared.keeping;
        if keeping.directories.read().get(&dir).copied() == during {
            return Ok(());
        }
        let hidden = self.make_hidden_folder().await?;
        let name = attribute_of(dir);
        match during {
            Some(during) => {
                let value = during.as_secs().to_string();
                self.set_xattr(&WHO, hidden, &name, value.as_bytes(), XattrMode::Any)
                    .await?;
            }
            None => match self.remove_xattr(&WHO, hidden, &name).await {
                Ok(_) | Err(FsError::NoAttribute) => {}
                Err(error) => return Err(error),
            },
        }
        let mut directories = keeping.directories.write();
        match during {
            Some(during) => directories.insert(dir, during),
            None => directories.remove(&dir),
        };
        let is_active = !directories.is_empty();
        keeping.is_active.store(is_active, Ordering::Release);
        Ok(())
    }

    /// The directories below which contents are kept.
    pub fn kept_below(&self) -> BTreeMap<Ino, Duration> {
        self.shared.keeping.directories.read().clone()
    }

    /// Sets the keeper, which is used as long as it exists.
    pub fn set_keeper(&self, keeper: Weak<dyn Keeper>) {
        let keeping = &self.shared.keeping;
        *keeping.keeper.lock() = Some(keeper);
        keeping.keeper_came.notify_waiters();
    }

    /// Keeps the content of a file before a change, if its directory asks for that and a change begins. Returns the
    /// change times before and after the beginning, if there is one.
    pub(crate) async fn keep_before_change(
        &self,
        who: &Credentials,
        ino: Ino,
    ) -> Result<Option<Began>, FsError> {
        match self.is_keeping() {
            true => self.keep_if_wanted(who, ino).await,
            false => Ok(None),
        }
    }

    /// Boxed: kept contents are written by the same functions, which then keep nothing again.
    fn keep_if_wanted<'a>(&'a self, who: &'a Credentials, ino: Ino) -> Beginnings<'a> {
        Box::pin(async move {
            let shared = &self.shared;
            let inode = shared.reading(|| shared.inode(ino)).await?;
            {
                let state = inode.lock();
                // The change itself reports that the caller may not make it.
                let may_change = state.require_live().is_ok()
                    && state.record.kind == InodeKind::Regular
                    && require_data(who, state.guarded(), WRITE).is_ok()
                    && state.require_changeable(shared.now()).is_ok();
                if !may_change || shared.is_in_change(&state) {
                    return Ok(None);
                }
            }
            let path = shared.reading(|| shared.kept_path_of(&inode)).await?;
            match path {
                Some((directory, path)) => {
                    shared.keep_content(&inode, directory, &path, false).await
                }
                None => Ok(None),
            }
        })
    }

    /// A file that was just made is being changed. If that cannot be noted, its first content is kept, too.
    pub(crate) async fn note_made(&self, dir: Ino, ino: Ino) {
        if !self.is_keeping() {
            return;
        }
        let shared = &self.shared;
        let find = || match shared.kept_directory(dir)? {
            Some(directory) => Ok(Some((directory, shared.inode(ino)?))),
            None => Ok(None),
        };
        if let Ok(Some((directory, inode))) = shared.reading(find).await {
            inode.lock().change_until = shared.change_until(directory);
        }
    }
}

impl VolumeCore {
    fn is_in_change(&self, state: &State) -> bool {
        self.env.clock.monotonic() < state.change_until
    }

    fn change_until(&self, directory: Ino) -> Duration {
        let during = self.keeping.directories.read().get(&directory).copied();
        let now = self.env.clock.monotonic();
        now.saturating_add(during.unwrap_or_default())
    }

    /// The nearest directory, from `dir` upwards, below which contents are kept.
    pub(crate) fn kept_directory(&self, dir: Ino) -> Result<Option<Ino>, FsError> {
        let mut at = dir;
        if !dir.branch().is_main() {
            // A clone keeps no contents.
            return Ok(None);
        }
        for _ in 0..DEPTH_MAX {
            if at == HIDDEN {
                break;
            }
            if self.keeping.directories.read().contains_key(&at) {
                return Ok(Some(at));
            }
            if at == ROOT {
                break;
            }
            at = self.inode(at)?.lock().record.parent;
        }
        Ok(None)
    }

    /// As [`Self::kept_directory`], with the path from there.
    fn kept_path(&self, dir: Ino, name: &[u8]) -> Result<KeptPath, FsError> {
        let Some(directory) = self.kept_directory(dir)? else {
            return Ok(None);
        };
        let mut path: Vec<Arc<[u8]>> = vec![name.into()];
        let mut at = dir;
        while at != directory && path.len() < DEPTH_MAX {
            let inode = self.inode(at)?;
            let (parent, cookie) = {
                let state = inode.lock();
                (state.record.parent, state.record.cookie)
            };
            // Another task is moving directories.
            let name = self.name_of(parent, at, cookie)?;
            path.push(name.ok_or(FsError::TryLater)?);
            at = parent;
        }
        path.reverse();
        Ok(Some((directory, path)))
    }

    /// As [`Self::kept_path`], for a file by the name that its inode records. The name that a client gives a removed
    /// file that it has open does not count.
    fn kept_path_of(&self, inode: &Inode) -> Result<KeptPath, FsError> {
        let (parent, cookie) = {
            let state = inode.lock();
            (state.record.parent, state.record.cookie)
        };
        match self.kept_directory(parent) {
            // The directory of its first name is gone.
            Ok(None) | Err(FsError::Stale) => return Ok(None),
            Ok(Some(_)) => {}
            Err(error) => return Err(error),
        }
        match self.name_of(parent, inode.ino, cookie)? {
            Some(name) if !is_silly(&name) => self.kept_path(parent, &name),
            _ => Ok(None),
        }
    }

    /// The name of an inode in a directory.
    fn name_of(&self, dir: Ino, ino: Ino, cookie: u64) -> Result<Option<Arc<[u8]>>, FsError> {
        let live = self.meta.live();
        let stored = live.get(&Key::cookie(dir, cookie)).map_err(meta_error)?;
        let entry = stored.map(|bytes| CookieRecord::decode(&bytes)).transpose();
        let entry = entry.map_err(|error| meta_error(error.into()))?;
        if let Some(entry) = entry.filter(|entry| entry.ino == ino) {
            return Ok(Some(entry.name.as_ref().into()));
        }
        // No place was noted, or that name is gone and the inode has others.
        let mut found = None;
        let (from, to) = Key::dirents_after(dir, b"", true);
        let visit = |key: &[u8], value: &[u8], _: Generation| match (
            KeyKind::parse(key),
            DirentRecord::decode(value),
        ) {
            (Ok(KeyKind::Dirent { name, .. }), Ok(entry)) if entry.ino == ino => {
                found = Some(name.into());
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        live.scan_with(&from, &to, visit).map_err(meta_error)?;
        Ok(found)
    }

    /// The keeper; soon after the opening of the volume it may not be set yet.
    async fn keeper(&self) -> Result<Arc<dyn Keeper>, FsError> {
        for is_last in [false, true] {
            let came = self.keeping.keeper_came.notified();
            let keeper = self.keeping.keeper.lock().as_ref().and_then(Weak::upgrade);
            match keeper {
                Some(keeper) => return Ok(keeper),
                None if is_last => break,
                None => {}
            }
            if !self.tasks.pause(KEEPER_WAIT, came).await {
                return Err(FsError::Fenced);
            }
        }
        Err(FsError::TryLater)
    }

    /// Keeps a copy of a file's content, with which a change of the file begins; does nothing during a change, unless
    /// `always`.
    async fn keep_content(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        directory: Ino,
        path: &[Arc<[u8]>],
        always: bool,
    ) -> Result<Option<Began>, FsError> {
        let keeper = self.keeper().await?;
        for _ in 0..ATTEMPTS_MAX {
            let (attr, sequence) = {
                let state = inode.lock();
                if state.require_live().is_err() || !always && self.is_in_change(&state) {
                    return Ok(None);
                }
                (state.attr(inode.ino), state.sequence)
            };
            let placed = keeper.place(directory, path.to_vec(), attr, false);
            let copied = match placed.await {
                Ok(Some(place)) => {
                    self.keep_copy(inode, directory, &attr, sequence, &place)
                        .await
                }
                Ok(None) => {
                    inode.lock().change_until = self.change_until(directory);
                    return Ok(None);
                }
                Err(error) => Err(error),
            };
            match copied {
                Ok(after) => {
                    return Ok(Some(Began {
                        before: attr.ctime,
                        after,
                    }));
                }
                // The file was changed meanwhile, or another task removed the empty target folder.
                Err(FsError::NotSync | FsError::Exists | FsError::Stale | FsError::NotFound) => {}
                Err(error) => {
                    keeper.give_up(directory, path.to_vec()).await;
                    return Err(error);
                }
            }
        }
        Err(FsError::TryLater)
    }

    async fn keep_copy(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        directory: Ino,
        attr: &Attr,
        sequence: u64,
        place: &KeptPlace,
    ) -> Result<Timestamp, FsError> {
        let fs = Fs::of(self);
        let mut file = fs.make_unnamed(&WHO)?;
        if attr.size_bytes <= JOURNAL_WRITE_BYTES_MAX {
            let read = fs.read(&WHO, attr.ino, 0, attr.size_bytes as u32).await?;
            if u64::from(read.count_bytes) != attr.size_bytes {
                return Err(FsError::NotSync);
            }
            file.append(read.parts.concat().into()).await?;
        } else {
            match file.share(&fs, attr.ino, 0..attr.size_bytes).await {
                Err(FsError::Invalid) => return Err(FsError::NotSync),
                shared => shared?,
            }
        }
        let mut xattrs = Vec::new();
        for name in fs.xattr_list(&WHO, attr.ino).await? {
            match fs.xattr(&WHO, attr.ino, &name).await {
                Ok(value) => xattrs.push((name, value)),
                Err(FsError::NoAttribute) => return Err(FsError::NotSync),
                Err(error) => return Err(error),
            }
        }
        let xattrs: Vec<(&[u8], Bytes)> = xattrs
            .iter()
            .map(|(name, value)| (&name[..], value.clone()))
            .collect();
        let placing = Placing {
            dir: place.dir,
            name: &place.name,
            expected: Expected::Nothing,
            set: SetAttr {
                mode: Some(attr.mode),
                uid: Some(attr.uid),
                gid: Some(attr.gid),
                atime: SetTime::To(attr.atime),
                mtime: SetTime::To(attr.mtime),
                ..SetAttr::default()
            },
            xattrs: &xattrs,
        };
        let beginning = Beginning {
            inode,
            ctime: attr.ctime,
            sequence,
            until: self.change_until(directory),
        };
        file.place_beginning(&WHO, &placing, &beginning).await
    }

    /// Finds the place for a file, and makes all its bytes durable: the kept content must be complete.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        wanted: &KeepRequest,
    ) -> Result<Prepared, FsError> {
        let KeepRequest { inode, .. } = wanted;
        let path = self.reading(|| self.kept_path(wanted.dir, &wanted.name));
        let Some((directory, path)) = path.await? else {
            // The file is gone.
            let state = inode.lock();
            return Ok(Prepared {
                ino: inode.ino,
                ctime: state.record.ctime,
                place: None,
                is_kept: true,
                directory: ROOT,
                path: Vec::new(),
            });
        };
        let keeper = self.keeper().await?;
        if !planted::is(Bug::KeptWithoutItsBytes) {
            self.commit(inode).await?;
        }
        let is_kept = wanted.stays || inode.lock().record.nlink > 1;
        if is_kept {
            self.keep_content(inode, directory, &path, true).await?;
        }
        let attr = {
            let state = inode.lock();
            state.attr(inode.ino)
        };
        let ctime = attr.ctime;
        let place = match wanted.removes || !is_kept {
            true => {
                keeper
                    .place(directory, path.clone(), attr, wanted.removes)
                    .await?
            }
            false => None,
        };
        Ok(Prepared {
            ino: inode.ino,
            ctime,
            place,
            is_kept,
            directory,
            path,
        })
    }

    /// The prepared place is not needed.
    pub(crate) async fn give_up(&self, prepared: Option<Prepared>) {
        if let Some(prepared) = prepared.filter(|prepared| prepared.place.is_some())
            && let Ok(keeper) = self.keeper().await
        {
            let Prepared {
                directory,
                path,
                place,
                ..
            } = prepared;
            drop(place);
            keeper.give_up(directory, path).await;
        }
    }

    /// Makes a change of names. Prepares a place for the file that the change removes, as often as needed.
    pub(crate) async fn change_keeping<T>(
        self: &Arc<Self>,
        is_keeping: bool,
        mut change: impl FnMut(Keep<'_>) -> Result<Changed<T>, FsError>,
    ) -> Result<T, FsError> {
        let mut prepared: Option<Prepared> = None;
        for _ in 0..ATTEMPTS_MAX {
            let keep = match &prepared {
                Some(prepared) => Keep::There(prepared),
                None if is_keeping => Keep::Ask,
                None => Keep::No,
            };
            let wanted = match self.reading(|| change(keep)).await {
                Ok(Changed::Done(done)) => return Ok(done),
                Ok(Changed::Keep(wanted)) => wanted,
                Err(error) => {
                    self.give_up(prepared).await;
                    return Err(error);
                }
            };
            // Releases the turn before it is taken again.
            drop(prepared.take());
            prepared = Some(self.prepare(&wanted).await?);
        }
        self.give_up(prepared).await;
        Err(FsError::TryLater)
    }

    /// What becomes of a locked file whose name a change takes away.
    pub(crate) fn plan_keeping<'a>(
        &self,
        keep: Keep<'a>,
        is_wanted: bool,
        inode: &Arc<Inode>,
        folder: Option<&Arc<Inode>>,
        locked: &Locked<'_>,
    ) -> Result<KeepPlan<'a>, FsError> {
        let state = locked.of(inode.ino);
        if !is_wanted || state.record.kind != InodeKind::Regular {
            return Ok(KeepPlan::KeepNothing);
        }
        match keep {
            Keep::No => Ok(KeepPlan::KeepNothing),
            Keep::There(prepared)
                if prepared.ino == inode.ino
                    && prepared.ctime == state.record.ctime
                    && (planted::is(Bug::KeptWithoutItsBytes)
                        || !state.has_unstable_up_to(u64::MAX)) =>
            {
                let ready = self.ready(prepared, inode, folder, locked)?;
                Ok(ready.map_or(KeepPlan::PrepareFirst, |ready| {
                    KeepPlan::KeepAt(prepared, ready)
                }))
            }
            Keep::Ask | Keep::There(_) => Ok(KeepPlan::PrepareFirst),
        }
    }

    /// The folder that a prepared file goes to.
    pub(crate) fn folder_of(&self, keep: Keep<'_>) -> Result<Option<Arc<Inode>>, FsError> {
        match keep {
            Keep::There(Prepared {
                place: Some(place), ..
            }) => match self.inode(place.dir) {
                Ok(inode) => Ok(Some(inode)),
                // The folder was empty, and another task removed it: the place is prepared again.
                Err(FsError::Stale) => Ok(None),
                Err(error) => Err(error),
            },
            _ => Ok(None),
        }
    }

    /// Moves a locked file to the place where it is kept from now on, unchangeable. The caller removes its former name.
    pub(crate) fn move_to_kept(
        &self,
        there: Ino,
        (dir, name): (Ino, &[u8]),
        tree: Option<Ino>,
        change: &mut Change<'_>,
    ) {
        let now = self.now();
        let cookie = DirChange { dir, change }.add(name, there, InodeKind::Regular);
        change.edit(dir).touch_mtime(now);
        let mut edit = change.edit(there);
        if let Some(tree) = tree {
            self.move_to_tree(&mut edit, tree);
            self.sync_pending(edit.state);
        }
        // If this is made a current file again, its content counts as the one before its next change.
        edit.state.change_until = Duration::ZERO;
        let record = edit.record();
        record.is_frozen = true;
        (record.parent, record.cookie) = (dir, cookie);
        edit.touch_ctime(now);
    }

    /// Whether the prepared place is still right; `None`: it has to be prepared again.
    fn ready(
        &self,
        prepared: &Prepared,
        there: &Arc<Inode>,
        folder: Option<&Arc<Inode>>,
        locked: &Locked<'_>,
    ) -> Result<Option<Ready>, FsError> {
        let Some(place) = &prepared.place else {
            return Ok(Some(Ready::default()));
        };
        let Some(folder) = folder else {
            return Ok(None);
        };
        if locked.of(folder.ino).require_dir().is_err() {
            return Ok(None);
        }
        let mut ready = Ready {
            moves: !prepared.is_kept,
            ..Ready::default()
        };
        if ready.moves {
            let name = (place.dir, place.name.as_slice());
            match self.require_keeping(&WHO, there, name.0, name.1, locked) {
                Ok(tree) => ready.tree = tree,
                Err(FsError::Exists | FsError::Stale | FsError::NotDirectory) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if let Some(marker) = &place.marker {
            if self.dirent(place.dir, &marker.name)?.is_some() {
                return Ok(None);
            }
            self.require_pool_space(METADATA_BYTES)?;
            let record = self.marker_record(place.dir, marker, locked)?;
            ready.marker = Some(self.new_inode(self.meta.allocate_ino(), record));
        }
        Ok(Some(ready))
    }

    fn marker_record(
        &self,
        dir: Ino,
        marker: &Marker,
        locked: &Locked<'_>,
    ) -> Result<InodeRecord, FsError> {
        let mut record = InodeRecord::new(InodeKind::Regular);
        (record.mode, record.nlink, record.parent) = (0o644, 1, dir);
        record.tree = self.quotas.inherited(&locked.of(dir).record);
        self.require_quota(owner_of(&record), None, 1, 0)?;
        check_new_name(&marker.name)?;
        for (name, value) in &marker.xattrs {
            record.xattr_names_len_bytes += check_xattr(name, value)?;
        }
        let now = self.now();
        (record.atime, record.mtime, record.ctime) = (now, marker.mtime, now);
        Ok(record)
    }

    /// Keeps the file that is planned to be kept, as a part of the change.
    pub(crate) fn carry_out<'a>(
        &self,
        plan: &'a KeepPlan<'_>,
        there: Ino,
        change: &mut Change<'a>,
    ) {
        let KeepPlan::KeepAt(prepared, ready) = plan else {
            return;
        };
        let Some(place) = &prepared.place else {
            return;
        };
        let dir = place.dir;
        if ready.moves {
            self.move_to_kept(there, (dir, &place.name), ready.tree, change);
        }
        if let (Some(marker), Some(inode)) = (&place.marker, &ready.marker) {
            let ino = inode.ino;
            let cookie = DirChange { dir, change }.add(&marker.name, ino, InodeKind::Regular);
            change.edit(dir).touch_mtime(self.now());
            let mut edit = change.make(inode);
            edit.record().cookie = cookie;
            let Edit { state, batch, .. } = edit;
            batch.charge(owner_of(&state.record), UsageDelta::ONE_INODE);
            for (name, value) in &marker.xattrs {
                let stored = self.xattr_values.stored(ino, name, value);
                batch.put(Key::xattr(ino, name), stored);
            }
            batch.space(SpaceDelta {
                inodes: 1,
                ..SpaceDelta::default()
            });
        }
    }

    /// Prepares to keep the file whose name a file without a name is about to take.
    pub(crate) async fn prepare_replaced(
        self: &Arc<Self>,
        dir: Ino,
        name: &[u8],
    ) -> Result<Replaced, FsError> {
        enum There {
            NotWanted,
            Nothing,
            Inode(Arc<Inode>),
        }
        let find = || {
            if self.kept_directory(dir)?.is_none() || is_silly(name) {
                return Ok(There::NotWanted);
            }
            let inode = match self.dirent(dir, name)? {
                Some(entry) => self.named(&entry)?,
                None => None,
            };
            Ok(inode.map_or(There::Nothing, There::Inode))
        };
        let inode = match self.reading(find).await? {
            There::NotWanted => return Ok(Replaced::Anything),
            There::Nothing => return Ok(Replaced::Nothing),
            There::Inode(inode) => inode,
        };
        if inode.lock().record.kind != InodeKind::Regular {
            return Ok(Replaced::Anything);
        }
        let wanted = KeepRequest {
            inode,
            dir,
            name: name.to_vec(),
            removes: false,
            stays: false,
        };
        Ok(Replaced::Kept(Box::new(self.prepare(&wanted).await?)))
    }
}

/// The expected state of the name that a file without a name takes.
pub(crate) enum Replaced {
    /// Any file, without a check.
    Anything,
    Nothing,
    Kept(Box<Prepared>),
}

impl Prepared {
    pub fn expected(&self) -> Expected {
        Expected::This {
            ino: self.ino,
            ctime: self.ctime,
        }
    }

    pub fn keeping(&self) -> Kept<'_> {
        let place = self.place.as_ref().filter(|_| !self.is_kept);
        Kept {
            replaced: place.map(|place| (place.dir, place.name.as_slice())),
            ..Kept::default()
        }
    }
}

/// What becomes of a file whose name a change takes away.
pub(crate) enum KeepPlan<'a> {
    /// It is not kept.
    KeepNothing,
    /// It is kept at the prepared place.
    KeepAt(&'a Prepared, Ready),
    /// The place has to be prepared first, and nothing may be changed.
    PrepareFirst,
}

impl KeepPlan<'_> {
    /// Whether the file moves, and keeps its bytes.
    pub fn moves(&self) -> bool {
        matches!(self, Self::KeepAt(_, ready) if ready.moves)
    }
}

/// The facts that were checked before anything is changed.
#[derive(Default)]
pub(crate) struct Ready {
    moves: bool,
    tree: Option<Ino>,
    /// The marker, which is in no table yet.
    marker: Option<Arc<Inode>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_read_as_they_were_written() {
        let name = attribute_of(Ino(0x2a));
        let number = name.strip_prefix(OF_DIRECTORY).unwrap();
        let read = Some((Ino(0x2a), Duration::from_secs(60)));
        assert_eq!(parse(number, b"60"), read);
        for (number, value) in [
            (&b"2a"[..], &b""[..]),
            (b"2a", b""),
            (b"2a", b"-1"),
            (b"2a", b"4294967296"),
            (b"", b"1"),
            (b"\xff", b"1"),
            (b"123456789abcdef01", b"1"),
        ] {
            assert_eq!(parse(number, value), None, "{number:?} {value:?}");
        }
    }

    #[test]
    fn names_of_removed_files_are_known() {
        for (name, want) in [
            (&b".nfs0000000000a1b2c300000001"[..], true),
            (b".nfs0000000000a1b2c30000001", false),
            (b".nfs0000000000a1b2c30000000x", false),
            (b"nfs00000000000a1b2c300000001", false),
            (b".nfs", false),
        ] {
            assert_eq!(is_silly(name), want, "{name:?}");
        }
    }
}
