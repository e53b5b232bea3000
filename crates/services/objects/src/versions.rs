//! Versions of objects.
//!
//! Owns: what versions are called and in which order they come, where those are that were replaced or deleted, what is the
//! latest. Must not know: requests.
//!
//! The latest version is the file at the key's path, put there by any protocol. A replaced file moves, in the same step, below
//! a folder that no name leads to. The directories of the bucket are there again as far as they are needed, and each key is
//! one of them, with a file for each version: the newest comes first. Names of versions begin with a byte that no key has,
//! so that they never meet those of keys below. There nobody can change them.
//!
//! A folder lets in whom the directory lets in that it is for; when that is gone, whom it let in: it has a note of owner and mode.
//! Another directory that takes its name opens nothing of it, unless it is the same owner's.

use std::pin::Pin;

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};
use cairn_fs::perm::{self, Guarded};
use cairn_fs::{
    Attr, Credentials, Expected, FileKind, FsError, Placing, SetAttr, SetTime, Unchanged,
    XattrMode, access,
};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrival;
use crate::bucket::{ATTEMPTS_MAX, Bucket, Condition, OF_OBJECT, ObjectInfo, may_read};
use crate::path::KeyPath;
use crate::records::{ObjectError, ObjectRecord, VERSION, encode};
use crate::volume::Objects;

/// What a version is called that was put while the bucket kept none.
pub const NO_VERSION: &str = "null";
/// Keys are UTF-8, so that no part of one begins so.
const MARK: u8 = 0xff;
/// On a folder: a [`FolderRecord`].
const OF_FOLDER: &[u8] = b"user.s3.directory";
/// Ends the name of the version that is called [`NO_VERSION`].
const NO_VERSION_END: u8 = b'n';
/// Hexadecimal digits of a version's number.
const NUMBER_LEN: usize = 32;
const PAGE_COUNT: usize = 256;
const WHO: Credentials = Credentials::ROOT;

/// Whether a bucket keeps what is replaced or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Versioning {
    Enabled,
    /// What it has stays. New objects are all the version that is called [`NO_VERSION`].
    Suspended,
}

/// A version that is not the latest object: its number, and whether it is called [`NO_VERSION`] all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionName {
    number: String,
    is_null: bool,
}

impl VersionName {
    pub(crate) fn new(number: String, is_null: bool) -> Self {
        Self { number, is_null }
    }

    /// That of a name in a key's folder; `None` for directories of keys below.
    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name.strip_prefix(&[MARK])?).ok()?;
        let (number, end) = text.split_at_checked(NUMBER_LEN)?;
        let is_null = end.as_bytes() == [NO_VERSION_END];
        (Self::is_number(number) && (end.is_empty() || is_null))
            .then(|| Self::new(number.to_owned(), is_null))
    }

    pub(crate) fn file_name(&self) -> Vec<u8> {
        let mut name = vec![MARK];
        name.extend_from_slice(self.number.as_bytes());
        name.extend(self.is_null.then_some(NO_VERSION_END));
        name
    }

    /// Whether a version can be called so.
    pub(crate) fn is_number(id: &str) -> bool {
        id.len() == NUMBER_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Where the names after it begin: it and the same with its end are one version.
    fn past(&self) -> Vec<u8> {
        let mut name = vec![MARK];
        name.extend_from_slice(self.number.as_bytes());
        name.push(NO_VERSION_END + 1);
        name
    }

    pub(crate) fn id(&self) -> String {
        match self.is_null {
            true => NO_VERSION.to_owned(),
            false => self.number.clone(),
        }
    }
}

/// Numbers of later times come first.
fn number(first: u64, rest: u64) -> String {
    format!("{first:016x}{rest:016x}")
}

fn before(time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    let nanos = seconds.saturating_mul(1_000_000_000);
    !nanos.saturating_add(u64::from(time.nanos))
}

fn first_of(number: &str) -> Option<u64> {
    u64::from_str_radix(number.get(..16)?, 16).ok()
}

type Removing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What became of an object that was to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The version that went, or the marker that came; `None`: the bucket has no versions.
    pub version_id: Option<String>,
    /// It is a delete marker.
    pub is_marker: bool,
}

/// What comes with a new version.
#[derive(Default)]
pub(crate) struct Step {
    /// Its number; `None`: it is called [`NO_VERSION`].
    pub version_id: Option<String>,
    /// The folder and the name there of what it replaces, if that is kept.
    pub keep: Option<(Ino, Vec<u8>)>,
}

impl Bucket {
    pub fn versioning(&self) -> Option<Versioning> {
        self.record.settings.versioning
    }

    /// The number of a file that is an object; `None`: it is called [`NO_VERSION`]. `record` is what was put with its bytes.
    pub(crate) fn number_of(&self, record: Option<&ObjectRecord>, attr: &Attr) -> Option<String> {
        let since = self.record.settings.versioned_since_seconds?;
        match record {
            Some(record) => record.version_id.clone(),
            // Somebody else made it or changed it: its bytes are a version of their own.
            None if attr.kind == FileKind::Regular && attr.mtime.seconds >= since => {
                Some(number(before(attr.mtime), attr.ino.0))
            }
            None => None,
        }
    }

    /// The folder with previous versions of a key, if there is one for `who`; and of the directory above it.
    async fn kept_with_above(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<Option<(Ino, Pair)>, ObjectError> {
        let mut at = self.pair().await?;
        let mut above = at;
        for part in path.parts() {
            above = at;
            at = match self.objects.enter(who, at, part).await {
                Ok(next) if next.kept.is_some() => next,
                Ok(_) | Err(FsError::Stale) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
        }
        Ok(at.kept.map(|kept| (kept, above)))
    }

    pub(crate) async fn kept_folder(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<Option<Ino>, ObjectError> {
        let found = self.kept_with_above(who, path).await?;
        Ok(found.map(|(folder, _)| folder))
    }

    pub(crate) async fn make_kept_folder(&self, path: &KeyPath) -> Result<Ino, ObjectError> {
        let mut attempts = 0;
        'again: loop {
            let root = self.objects.kept_of(self.record.directory, true).await?;
            let mut dir = root.ok_or(FsError::Stale)?;
            let mut live = Some(self.record.directory);
            for (index, part) in path.parts().iter().enumerate() {
                let made = async {
                    let made = self.objects.make_folder(dir, part, 0o777).await?;
                    // The last is the key's own.
                    if index < path.parents().len() {
                        live = self.objects.follow(live, part, made).await?;
                    }
                    Ok::<_, ObjectError>(made)
                };
                dir = match made.await {
                    Ok(ino) => ino,
                    // The last version of another key went, and its directories with it.
                    Err(ObjectError::Fs(FsError::Stale | FsError::NotFound))
                        if attempts < ATTEMPTS_MAX =>
                    {
                        attempts += 1;
                        continue 'again;
                    }
                    Err(error) => return Err(error),
                };
            }
            return Ok(dir);
        }
    }

    /// Versions in a key's folder from a name on, the newest first.
    async fn kept_from(
        &self,
        folder: Ino,
        from: &[u8],
        limit: usize,
    ) -> Result<(Vec<(VersionName, Ino)>, bool), ObjectError> {
        let fs = self.objects.fs();
        let page = match fs.names_after(&WHO, folder, from, true, limit).await {
            Ok(page) => page,
            Err(FsError::Stale) => return Ok((Vec::new(), false)),
            Err(error) => return Err(error.into()),
        };
        let versions = page
            .entries
            .iter()
            .filter_map(|entry| Some((VersionName::parse(&entry.name)?, entry.ino)));
        Ok((versions.collect(), !page.eof))
    }

    async fn newest_kept(&self, folder: Ino) -> Result<Option<(VersionName, Ino)>, ObjectError> {
        let (mut versions, _) = self.kept_from(folder, &[MARK], 1).await?;
        Ok(versions.pop())
    }

    async fn all_kept(&self, folder: Ino) -> Result<Vec<(VersionName, Ino)>, ObjectError> {
        let mut all = Vec::new();
        let mut from = vec![MARK];
        loop {
            let (versions, is_more) = self.kept_from(folder, &from, PAGE_COUNT).await?;
            let Some((last, _)) = versions.last() else {
                return Ok(all);
            };
            from = last.past();
            all.extend(versions);
            if !is_more {
                return Ok(all);
            }
        }
    }

    async fn kept_version(
        &self,
        folder: Ino,
        id: &str,
    ) -> Result<Option<(VersionName, Ino)>, ObjectError> {
        if id == NO_VERSION {
            let all = self.all_kept(folder).await?;
            return Ok(all.into_iter().find(|(name, _)| name.is_null));
        }
        if !VersionName::is_number(id) {
            return Ok(None);
        }
        let name = VersionName::new(id.to_owned(), false);
        let fs = self.objects.fs();
        match fs.child(&WHO, folder, &name.file_name()).await {
            Ok(found) => Ok(found.map(|(ino, _)| (name, ino))),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A number that comes before those of all that is there.
    pub(crate) async fn next_number(
        &self,
        there: Option<&ObjectInfo>,
        folder: Option<Ino>,
    ) -> Result<String, ObjectError> {
        let env = &self.objects.env;
        let mut first = before(env.clock.now());
        let mut newest = Vec::new();
        if let Some(there) = there {
            newest.extend(self.name_of(there).map(|name| name.number));
        }
        if let Some(folder) = folder {
            let kept = self.newest_kept(folder).await?;
            newest.extend(kept.map(|(name, _)| name.number));
        }
        for number in newest {
            // The clock was set back, or stands still.
            if let Some(of_newest) = first_of(&number) {
                first = first.min(of_newest.saturating_sub(1));
            }
        }
        Ok(number(first, env.entropy.u64()))
    }

    /// What the latest object is called when it is kept.
    fn name_of(&self, there: &ObjectInfo) -> Option<VersionName> {
        let number_of = self.number_of(there.record.as_ref(), &there.attr);
        let is_null = number_of.is_none();
        let number = number_of.unwrap_or_else(|| number(before(there.attr.mtime), there.ino.0));
        (!there.is_directory).then(|| VersionName::new(number, is_null))
    }

    /// A name for the latest object that no kept version has: a file that came while no versions were kept may be the second.
    pub(crate) async fn free_name_of(
        &self,
        there: &ObjectInfo,
        folder: Ino,
    ) -> Result<Option<VersionName>, ObjectError> {
        let Some(mut name) = self.name_of(there) else {
            return Ok(None);
        };
        if name.is_null && self.kept_version(folder, NO_VERSION).await?.is_some() {
            name.is_null = false;
        }
        // A snapshot's file that was brought back is the same version twice.
        let fs = self.objects.fs();
        while fs.child(&WHO, folder, &name.file_name()).await?.is_some() {
            let first = first_of(&name.number).unwrap_or_default();
            name.number = number(first, self.objects.env.entropy.u64());
        }
        Ok(Some(name))
    }

    /// What comes with a new object at the place of `there`. The turn of the key is held alone.
    pub(crate) async fn step(
        &self,
        path: &KeyPath,
        there: Option<&ObjectInfo>,
    ) -> Result<Step, ObjectError> {
        let Some(versioning) = self.versioning() else {
            return Ok(Step::default());
        };
        let is_enabled = versioning == Versioning::Enabled;
        let kept = there.filter(|there| is_enabled || there.has_number());
        let folder = match kept {
            Some(_) => Some(self.make_kept_folder(path).await?),
            None => self.kept_folder(&WHO, path).await?,
        };
        let version_id = match is_enabled {
            true => Some(self.next_number(there, folder).await?),
            false => None,
        };
        let name = match (kept, folder) {
            (Some(there), Some(folder)) => self.free_name_of(there, folder).await?,
            _ => None,
        };
        let keep = folder.zip(name.map(|name| name.file_name()));
        Ok(Step { version_id, keep })
    }

    /// Takes away what is called [`NO_VERSION`] and was replaced by another of that name.
    pub(crate) async fn drop_replaced_null(
        &self,
        path: &KeyPath,
        but: Option<Ino>,
    ) -> Result<(), ObjectError> {
        let Some(folder) = self.kept_folder(&WHO, path).await? else {
            return Ok(());
        };
        for (name, ino) in self.all_kept(folder).await? {
            if name.is_null && Some(ino) != but {
                self.remove_kept(folder, &name).await?;
            }
        }
        self.prune_kept(path).await;
        Ok(())
    }

    /// Refuses who may not take away what is called [`NO_VERSION`] and is kept, before something else is called so.
    pub(crate) async fn require_null_removable(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<(), ObjectError> {
        let Some((folder, above)) = self.kept_with_above(&WHO, path).await? else {
            return Ok(());
        };
        for (name, ino) in self.all_kept(folder).await? {
            if name.is_null
                && let Some(info) = self.kept_info(who, &name, ino).await?
            {
                self.require_unsticky(who, above, &info).await?;
            }
        }
        Ok(())
    }

    /// In a sticky directory only its owner, and whose a version is, take that away: in the one that is there, and in the one that
    /// it was kept for.
    async fn require_unsticky(
        &self,
        who: &Credentials,
        above: Pair,
        version: &ObjectInfo,
    ) -> Result<(), ObjectError> {
        let mut directories = Vec::new();
        if let Some(live) = above.live {
            match self.objects.fs().attr(live).await {
                Ok(attr) => directories.push(FolderRecord::of(&attr)),
                // It went meanwhile.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(kept) = above.kept {
            let record = self.objects.record_of_folder(kept).await?;
            directories.extend(record.filter(|record| Some(record.directory) != above.live));
        }
        let owner_uid = version.owner_uid();
        match directories
            .iter()
            .all(|directory| directory.lets_remove(who, owner_uid))
        {
            true => Ok(()),
            false => Err(FsError::NotOwner.into()),
        }
    }

    async fn remove_kept(&self, folder: Ino, name: &VersionName) -> Result<(), ObjectError> {
        let fs = self.objects.fs();
        match fs.remove(&WHO, folder, &name.file_name()).await {
            Ok(_) | Err(FsError::NotFound | FsError::Stale) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes folders of previous versions that are empty.
    pub(crate) async fn prune_kept(&self, path: &KeyPath) {
        let fs = self.objects.fs();
        let Ok(Some((root, base))) = self.objects.kept_with_parent(self.record.directory).await
        else {
            return;
        };
        let mut above = vec![(root, base.1)];
        let mut dir = base.0;
        for part in path.parts() {
            match fs.child(&WHO, dir, part).await {
                Ok(Some((ino, FileKind::Directory))) => {
                    above.push((dir, part.to_vec()));
                    dir = ino;
                }
                _ => break,
            }
        }
        while let Some((dir, name)) = above.pop() {
            if fs.remove_dir(&WHO, dir, &name).await.is_err() {
                return;
            }
        }
    }

    /// Refuses who may not remove names where the key is, or was when a version of it was kept, or would be.
    pub(crate) async fn require_write(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<(), ObjectError> {
        let objects = &self.objects;
        let mut at = self.pair().await?;
        let mut last = self.record.directory;
        for part in path.parents() {
            let next = objects.enter(who, at, part).await?;
            if next.live.is_none() && next.kept.is_none() {
                break;
            }
            at = next;
            last = at.live.unwrap_or(last);
        }
        let may_write = match at.live {
            Some(_) => true,
            None => objects.folder_lets(who, at, WRITE | EXECUTE).await?,
        };
        match objects.fs().access(who, last, access::MODIFY).await? {
            (0, _) => Err(FsError::AccessDenied.into()),
            _ if !may_write => Err(FsError::AccessDenied.into()),
            _ => Ok(()),
        }
    }

    /// The bucket's directory, and the folder with versions for it.
    pub(crate) async fn pair(&self) -> Result<Pair, ObjectError> {
        let directory = self.record.directory;
        Ok(Pair {
            live: Some(directory),
            kept: self.objects.kept_of(directory, false).await?,
        })
    }

    /// Puts a marker in the place of an object, which is kept.
    pub(crate) async fn mark_deleted(
        &self,
        who: &Credentials,
        key: &str,
        versioning: Versioning,
        condition: &Condition,
    ) -> Result<Removed, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        let _turn = self.turn(key, true).await;
        let there = self.found(who, &path).await?;
        if !condition.holds(there.as_ref()) {
            return Err(ObjectError::Precondition);
        }
        self.require_write(who, &path).await?;
        let is_null = versioning == Versioning::Suspended;
        if is_null {
            self.require_null_removable(who, &path).await?;
        }
        let folder = self.make_kept_folder(&path).await?;
        let number = self.next_number(there.as_ref(), Some(folder)).await?;
        let marker = VersionName::new(number, is_null);
        let old = match &there {
            Some(there) if is_null && !there.has_number() => None,
            Some(there) => self.free_name_of(there, folder).await?,
            None => None,
        };
        // The marker comes first. If the server ends between the two steps, there is an object, and a marker
        // that says nothing, of a request that was not answered.
        let ino = self.place_marker(who, folder, &marker).await?;
        if there.is_some() {
            // Who asks for a condition gets what it was looked at for, or nothing.
            let only = there.as_ref().map(ObjectInfo::unchanged);
            let only = only.filter(|_| !condition.is_free());
            let moved = self.put_away(who, &path, folder, old.as_ref(), only).await;
            if let Err(error) = moved {
                self.remove_kept(folder, &marker).await?;
                self.prune_kept(&path).await;
                return Err(error);
            }
        }
        if is_null {
            self.drop_replaced_null(&path, Some(ino)).await?;
        }
        Ok(Removed {
            version_id: Some(marker.id()),
            is_marker: true,
        })
    }

    async fn place_marker(
        &self,
        who: &Credentials,
        folder: Ino,
        name: &VersionName,
    ) -> Result<Ino, ObjectError> {
        let (now, record) = self.marker_record(who.uid)?;
        let name = name.file_name();
        // Who deletes to get below a quota must be able to.
        let mut file = self.objects.fs().make_unnamed_near(&WHO, folder).await?;
        let placing = Placing {
            dir: folder,
            name: &name,
            expected: Expected::Nothing,
            set: SetAttr {
                mtime: SetTime::To(now),
                ..SetAttr::default()
            },
            xattrs: &[(OF_OBJECT, record)],
        };
        Ok(file.place(&WHO, &placing).await?.ino)
    }

    /// What a marker has beside its bytes, of which there are none, and its time.
    pub(crate) fn marker_record(&self, uid: u32) -> Result<(Timestamp, Bytes), ObjectError> {
        let now = self.objects.env.clock.now();
        let record = ObjectRecord {
            is_marker: true,
            marked_by: Some(uid),
            version: VERSION,
            ..ObjectRecord::default()
        };
        let record = record.of_file(0, now);
        Ok((now, Bytes::from(encode(&record)?)))
    }

    /// Takes the latest object from its place: to the versions, under a name, or for good.
    async fn put_away(
        &self,
        who: &Credentials,
        path: &KeyPath,
        folder: Ino,
        to: Option<&VersionName>,
        only: Option<Unchanged>,
    ) -> Result<(), ObjectError> {
        let fs = self.objects.fs();
        let Some(dir) = self.directory_of(who, path).await? else {
            return Ok(());
        };
        let moved = match (to, only) {
            (Some(to), only) => {
                let (from, to) = ((dir, path.name()), to.file_name());
                fs.move_version_if(who, from, (folder, &to), true, only)
                    .await
            }
            (None, Some(only)) => {
                let removed = fs.remove_unchanged(who, dir, path.name(), only);
                removed.await.map(|_| ())
            }
            (None, None) => fs.remove(who, dir, path.name()).await.map(|_| ()),
        };
        match moved {
            Ok(()) | Err(FsError::NotFound | FsError::Stale) => Ok(()),
            Err(FsError::NotSync) => Err(ObjectError::Precondition),
            Err(error) => Err(error.into()),
        }
    }

    /// Brings the newest of the versions back to the key's place, if it is an object.
    async fn bring_back(
        &self,
        who: &Credentials,
        path: &KeyPath,
        folder: Ino,
        newest: Option<(VersionName, Ino)>,
    ) -> Result<bool, ObjectError> {
        let Some((name, ino)) = newest else {
            return Ok(false);
        };
        if self
            .kept_info(who, &name, ino)
            .await?
            .is_none_or(|info| info.is_marker)
        {
            return Ok(false);
        }
        let dir = self.make_parents(who, path).await?;
        let from = name.file_name();
        let moved = self
            .objects
            .fs()
            .move_version(who, (folder, &from), (dir, path.name()), false);
        match moved.await {
            Ok(()) => Ok(true),
            // There are keys below it by now: it stays with the versions, and no object is the latest.
            Err(FsError::IsDirectory) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes one version for good; if it was the latest, the one before it is that again. That there is none is fine.
    /// Directories that are there only for it go, too.
    pub async fn delete_version(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        bypass: bool,
        arrival: &Arrival,
    ) -> Result<Removed, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        let removed = {
            let due = arrival.due().await?;
            let _turn = self.turn(key, true).await;
            let removed = self.remove_version(who, &path, id, bypass).await?;
            // Nothing that is on its way replaces, or would be, a version that has a number.
            if id == NO_VERSION {
                due.done();
            }
            removed
        };
        self.prune_kept(&path).await;
        self.prune(who, key).await;
        Ok(removed)
    }

    async fn remove_version(
        &self,
        who: &Credentials,
        path: &KeyPath,
        id: &str,
        bypass: bool,
    ) -> Result<Removed, ObjectError> {
        let there = self.found(who, path).await?;
        let kept = self.kept_with_above(who, path).await?;
        let folder = kept.map(|(folder, _)| folder);
        let removed = |is_marker| Removed {
            version_id: Some(id.to_owned()),
            is_marker,
        };
        let newest = match folder {
            Some(folder) => self.newest_kept(folder).await?,
            None => None,
        };
        // A lock is taken off only for who may remove what it is on.
        self.require_write(who, path).await?;
        if let Some(there) = there.filter(|there| there.id() == id) {
            let above = Pair {
                live: self.directory_of(who, path).await?,
                kept: None,
            };
            self.require_unsticky(who, above, &there).await?;
            self.unlock(&there, bypass).await?;
            // It takes the place in one step.
            let is_back = match folder {
                Some(folder) => self.bring_back(who, path, folder, newest).await?,
                None => false,
            };
            if !is_back && let Some(dir) = self.directory_of(who, path).await? {
                match self.objects.fs().remove(who, dir, path.name()).await {
                    Ok(_) | Err(FsError::NotFound | FsError::Stale) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(removed(false));
        }
        let Some((folder, above)) = kept else {
            return Ok(removed(false));
        };
        let Some((name, ino)) = self.kept_version(folder, id).await? else {
            return Ok(removed(false));
        };
        let may_write = self.objects.folder_lets(who, above, WRITE | EXECUTE);
        if !may_write.await? {
            return Err(FsError::AccessDenied.into());
        }
        let info = self.kept_info(who, &name, ino).await?;
        let is_marker = info.as_ref().is_some_and(|info| info.is_marker);
        if let Some(info) = &info {
            self.require_unsticky(who, above, info).await?;
            self.unlock(info, bypass).await?;
        }
        let is_latest = newest.is_some_and(|(newest, _)| newest == name);
        if is_marker && is_latest && self.found(who, path).await?.is_none() {
            let (mut next, _) = self.kept_from(folder, &name.past(), 1).await?;
            self.bring_back(who, path, folder, next.pop()).await?;
        }
        self.remove_kept(folder, &name).await?;
        Ok(removed(is_marker))
    }

    /// Removes a version that was replaced, or a marker, for good; the key's turn is held alone. It is not the latest object.
    pub(crate) async fn remove_replaced(
        &self,
        who: &Credentials,
        path: &KeyPath,
        id: &str,
    ) -> Result<(), ObjectError> {
        let Some((folder, above)) = self.kept_with_above(who, path).await? else {
            return Ok(());
        };
        let Some((name, ino)) = self.kept_version(folder, id).await? else {
            return Ok(());
        };
        self.require_write(who, path).await?;
        let may_write = self.objects.folder_lets(who, above, WRITE | EXECUTE);
        if !may_write.await? {
            return Err(FsError::AccessDenied.into());
        }
        if let Some(info) = self.kept_info(who, &name, ino).await? {
            self.require_unsticky(who, above, &info).await?;
            self.unlock(&info, false).await?;
        }
        self.remove_kept(folder, &name).await
    }

    /// A version that is kept; `None` if it went meanwhile.
    async fn kept_info(
        &self,
        who: &Credentials,
        name: &VersionName,
        ino: Ino,
    ) -> Result<Option<ObjectInfo>, ObjectError> {
        let attr = match self.objects.fs().attr(ino).await {
            Ok(attr) => attr,
            Err(FsError::Stale) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let record = self.record_of(ino).await?;
        let record = record.filter(|record| record.is_of(&attr));
        Ok(Some(ObjectInfo {
            ino,
            is_marker: record.as_ref().is_some_and(|record| record.is_marker),
            is_readable: may_read(who, &attr),
            attr,
            record,
            is_directory: false,
            version_id: Some(name.id()),
        }))
    }

    /// One version of an object, which may be a marker.
    pub async fn version(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
    ) -> Result<ObjectInfo, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        // Also tells whether the directories let the user in.
        let there = self.found(who, &path).await?;
        if let Some(there) = there.filter(|there| there.id() == id) {
            return Ok(there);
        }
        if let Some(folder) = self.kept_folder(who, &path).await?
            && let Some((name, ino)) = self.kept_version(folder, id).await?
            && let Some(info) = self.kept_info(who, &name, ino).await?
        {
            return Ok(info);
        }
        Err(ObjectError::NoVersion)
    }

    /// The number of the marker that is the latest version of a key without an object.
    pub async fn latest_marker(
        &self,
        who: &Credentials,
        key: &str,
    ) -> Result<Option<String>, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        let folder = match self.kept_folder(who, &path).await {
            Err(ObjectError::Fs(FsError::AccessDenied)) => None,
            folder => folder?,
        };
        if let Some(folder) = folder
            && let Some((name, ino)) = self.newest_kept(folder).await?
            && let Some(info) = self.kept_info(who, &name, ino).await?
            && info.is_marker
        {
            return Ok(Some(name.id()));
        }
        Ok(None)
    }

    /// Up to `limit` versions of a key from its files, the newest first, from the one after `after` on: one of its versions,
    /// there or gone.
    pub(crate) async fn versions_of(
        &self,
        who: &Credentials,
        live: Option<Ino>,
        folder: Option<Ino>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, ObjectError> {
        let mut versions = Vec::new();
        if let Some(ino) = live {
            match self.objects.fs().attr(ino).await {
                Ok(attr) => versions.extend(self.info(who, attr).await?),
                Err(FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let is_live = |after: &&str| versions.iter().any(|live| live.id() == *after);
        let after = match (after, after.filter(is_live)) {
            (None, _) => None,
            (Some(_), Some(_)) => {
                versions.clear();
                None
            }
            (Some(after), None) => {
                versions.clear();
                Some(after)
            }
        };
        let Some(folder) = folder else {
            return Ok(versions);
        };
        let mut from = match after {
            None => vec![MARK],
            Some(NO_VERSION) => match self.kept_version(folder, NO_VERSION).await? {
                Some((name, _)) => name.past(),
                None => return Ok(versions),
            },
            Some(after) if VersionName::is_number(after) => {
                VersionName::new(after.to_owned(), false).past()
            }
            Some(_) => return Ok(versions),
        };
        while versions.len() < limit {
            let count = (limit - versions.len()).min(PAGE_COUNT);
            let (page, is_more) = self.kept_from(folder, &from, count).await?;
            let Some((last, _)) = page.last() else { break };
            from = last.past();
            for (name, ino) in page {
                versions.extend(self.kept_info(who, &name, ino).await?);
            }
            if !is_more {
                break;
            }
        }
        Ok(versions)
    }
}

/// A directory of a bucket, and the folder with previous versions of what is, or was, in it.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub live: Option<Ino>,
    pub kept: Option<Ino>,
}

/// Which directory a folder of versions is for, and whom that lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FolderRecord {
    pub directory: Ino,
    pub uid: u32,
    pub gid: u32,
    /// Its rights and the sticky bit.
    pub mode: u32,
}

/// Of three bits of a mode.
pub(crate) const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

impl FolderRecord {
    fn of(attr: &Attr) -> Self {
        Self {
            directory: attr.ino,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode & (perm::MODE_STICKY | 0o777),
        }
    }

    /// Whether somebody who may write in the directory may remove there what is this user's.
    fn lets_remove(&self, who: &Credentials, owner_uid: u32) -> bool {
        let of = |kind, mode, uid| Guarded {
            kind,
            mode,
            uid,
            gid: self.gid,
        };
        let directory = of(FileKind::Directory, self.mode, self.uid);
        let version = of(FileKind::Regular, 0, owner_uid);
        perm::require_unsticky(who, directory, version).is_ok()
    }

    /// As a directory of this mode would.
    fn lets(&self, who: &Credentials, wanted: u32) -> bool {
        let is_in_group = who.gid == self.gid || who.groups.contains(&self.gid);
        let bits = match (who.uid == self.uid, is_in_group) {
            (true, _) => self.mode >> 6,
            (false, true) => self.mode >> 3,
            (false, false) => self.mode,
        };
        who.is_root() || bits & wanted == wanted
    }

    /// The note of a folder that had `self` when `now` has the directory's name. Another owner's directory opens nothing.
    fn followed_by(self, now: Self) -> Self {
        match self.directory == now.directory || self.uid == now.uid {
            true => now,
            false => self,
        }
    }
}

impl Objects {
    async fn record_of_folder(&self, folder: Ino) -> Result<Option<FolderRecord>, FsError> {
        match self.fs.xattr(&WHO, folder, OF_FOLDER).await {
            // Nobody but the server can write there. What it cannot read lets nobody in.
            Ok(value) => Ok(Some(serde_json::from_slice(&value).unwrap_or(
                FolderRecord {
                    directory: Ino(0),
                    uid: 0,
                    gid: 0,
                    mode: 0,
                },
            ))),
            // A key's own, or one that was made before there were such records.
            Err(FsError::NoAttribute | FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the folder of a pair lets somebody in, as far as it has a say in that: its directory is gone, or is another one.
    pub(crate) async fn folder_lets(
        &self,
        who: &Credentials,
        pair: Pair,
        wanted: u32,
    ) -> Result<bool, FsError> {
        let Some(kept) = pair.kept else {
            return Ok(true);
        };
        let record = self.record_of_folder(kept).await?;
        let lets =
            |record: FolderRecord| Some(record.directory) == pair.live || record.lets(who, wanted);
        Ok(record.is_none_or(lets))
    }

    /// The entry below a pair by a name, for users whom both the present directory and the former one let in.
    pub(crate) async fn enter(
        &self,
        who: &Credentials,
        at: Pair,
        name: &[u8],
    ) -> Result<Pair, FsError> {
        let directory = |found: Option<(Ino, FileKind)>| {
            let found = found.filter(|(_, kind)| *kind == FileKind::Directory);
            found.map(|(ino, _)| ino)
        };
        let live = match at.live {
            Some(dir) => match self.fs.child(who, dir, name).await {
                Ok(found) => directory(found),
                // It went meanwhile.
                Err(FsError::Stale) => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        let is_let = self.folder_lets(who, at, EXECUTE).await?;
        let kept = match at.kept {
            Some(dir) if is_let => directory(self.fs.child(&WHO, dir, name).await?),
            // A former folder that refuses does not hide the present one.
            Some(_) if at.live.is_none() => return Err(FsError::AccessDenied),
            _ => None,
        };
        Ok(Pair { live, kept })
    }

    /// Notes on a folder whom the directory lets in that it is for; returns that. `above` is the directory that has it.
    async fn follow(
        &self,
        above: Option<Ino>,
        name: &[u8],
        folder: Ino,
    ) -> Result<Option<Ino>, FsError> {
        let Some(above) = above else { return Ok(None) };
        let read = async {
            match self.fs.child(&WHO, above, name).await? {
                Some((live, FileKind::Directory)) => self.fs.attr(live).await.map(Some),
                _ => Ok(None),
            }
        };
        let attr = match read.await {
            Ok(Some(attr)) => attr,
            // It went meanwhile.
            Ok(None) | Err(FsError::Stale) => return Ok(None),
            Err(error) => return Err(error),
        };
        let has = self.record_of_folder(folder).await?;
        let now = FolderRecord::of(&attr);
        let wanted = has.map_or(now, |has| has.followed_by(now));
        if has != Some(wanted) {
            let value = serde_json::to_vec(&wanted).map_err(|_| FsError::Invalid)?;
            self.fs
                .set_xattr(&WHO, folder, OF_FOLDER, &value, XattrMode::Any)
                .await?;
        }
        Ok(Some(attr.ino))
    }

    /// The folder for versions of a bucket's objects, by the bucket's directory.
    pub(crate) async fn kept_of(
        &self,
        directory: Ino,
        make: bool,
    ) -> Result<Option<Ino>, ObjectError> {
        let name = format!("{:016x}", directory.0);
        let Some(versions) = self.versions(make).await? else {
            return Ok(None);
        };
        match make {
            true => Ok(Some(
                self.make_folder(versions, name.as_bytes(), 0o777).await?,
            )),
            false => match self.fs.child(&WHO, versions, name.as_bytes()).await? {
                Some((ino, _)) => Ok(Some(ino)),
                None => Ok(None),
            },
        }
    }

    /// The folder for versions of a bucket's objects, with its parent folder and its name there.
    async fn kept_with_parent(
        &self,
        directory: Ino,
    ) -> Result<Option<(Ino, (Ino, Vec<u8>))>, ObjectError> {
        let name = format!("{:016x}", directory.0).into_bytes();
        let versions = self.versions(false).await?;
        let kept = self.kept_of(directory, false).await?;
        Ok(versions.zip(kept.map(|kept| (kept, name))))
    }

    /// Removes versions of buckets whose directory is gone: nobody can ask for them any more. Retained versions stay.
    pub(crate) async fn remove_stray_versions(&self) -> Result<(), ObjectError> {
        let Some(versions) = self.versions(false).await? else {
            return Ok(());
        };
        let mut after = Vec::new();
        loop {
            let page = self
                .fs
                .names_after(&WHO, versions, &after, false, PAGE_COUNT)
                .await?;
            for entry in &page.entries {
                after = entry.name.to_vec();
                let number = std::str::from_utf8(&entry.name).ok();
                let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
                let Some(number) = number else { continue };
                if matches!(self.fs.attr(Ino(number)).await, Err(FsError::Stale)) {
                    self.remove_tree(versions, &entry.name, entry.ino).await;
                }
            }
            if page.eof {
                return Ok(());
            }
        }
    }

    /// Removes what can be removed of a folder and all that is in it.
    fn remove_tree<'a>(&'a self, parent: Ino, name: &'a [u8], dir: Ino) -> Removing<'a> {
        Box::pin(async move {
            let mut after = Vec::new();
            while let Ok(page) = self
                .fs
                .names_after(&WHO, dir, &after, false, PAGE_COUNT)
                .await
            {
                for entry in &page.entries {
                    after = entry.name.to_vec();
                    if entry.kind == FileKind::Directory {
                        self.remove_tree(dir, &entry.name, entry.ino).await;
                    } else if let Err(error) = self.fs.remove(&WHO, dir, &entry.name).await {
                        tracing::debug!(%error, "a version of a bucket that is gone stays");
                    }
                }
                if page.eof {
                    break;
                }
            }
            if let Err(error) = self.fs.remove_dir(&WHO, parent, name).await {
                tracing::debug!(%error, "versions of a bucket that is gone stay");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_let_in_whom_their_directory_lets_in() {
        let who = |uid, gid, groups: &[u32]| Credentials {
            uid,
            gid,
            groups: groups.to_vec(),
            request: None,
        };
        let of = |directory, uid, mode| FolderRecord {
            directory: Ino(directory),
            uid,
            gid: 100,
            mode,
        };
        let (owner, member, other) = (who(3000, 1, &[]), who(1, 2, &[100]), who(2000, 1, &[]));
        for (mode, wanted, lets) in [
            (0o700, READ | WRITE | EXECUTE, [true, false, false]),
            (0o750, READ | EXECUTE, [true, true, false]),
            (0o750, WRITE, [true, false, false]),
            (0o711, EXECUTE, [true, true, true]),
            (0o711, READ, [true, false, false]),
            // The owner is not one of the others.
            (0o077, READ, [false, true, true]),
        ] {
            let record = of(7, 3000, mode);
            let got = [&owner, &member, &other].map(|who| record.lets(who, wanted));
            assert_eq!(got, lets, "{mode:o} {wanted}");
            assert!(record.lets(&who(0, 0, &[]), wanted));
        }
        // In a sticky one, whose the version is or the directory is.
        for (mode, of_version, lets) in [
            (0o777, 1, [true, true, true]),
            (0o1777, 1, [true, true, false]),
            (0o1777, 2000, [true, false, true]),
        ] {
            let record = of(7, 3000, mode);
            let got = [&owner, &member, &other].map(|who| record.lets_remove(who, of_version));
            assert_eq!(got, lets, "{mode:o} {of_version}");
            assert!(record.lets_remove(&who(0, 0, &[]), of_version));
        }
        let was = of(7, 3000, 0o700);
        // Its mode was changed, it has another owner, or the owner made it anew.
        for now in [of(7, 3000, 0o755), of(7, 2000, 0o755), of(8, 3000, 0o755)] {
            assert_eq!(was.followed_by(now), now);
        }
        assert_eq!(was.followed_by(of(8, 2000, 0o777)), was);
    }

    #[test]
    fn later_versions_come_first_and_names_are_read_back() {
        let at = |seconds, nanos| number(before(Timestamp::new(seconds, nanos)), 7);
        assert!(at(10, 1) < at(10, 0) && at(10, 0) < at(9, 999_999_999));
        assert!(at(0, 0) < at(-5, 0) || at(0, 0) == at(-5, 0));
        for is_null in [false, true] {
            let name = VersionName::new(at(1, 2), is_null);
            assert_eq!(VersionName::parse(&name.file_name()), Some(name.clone()));
            assert!(std::str::from_utf8(&name.file_name()).is_err());
            assert_eq!(name.id() == NO_VERSION, is_null);
        }
        for name in [&b""[..], b"a", b"\xff", b"\xff00", b"\xffzz"] {
            assert_eq!(VersionName::parse(name), None);
        }
    }
}
