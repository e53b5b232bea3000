//! Objects of a bucket: put, looked at, read, copied, deleted, listed.
//!
//! Owns: that an object replaces another in one step, that directories come and go with the objects below them, when a
//! record still tells the truth about a file.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::perm::{self, Guarded};
use cairn_fs::{
    Attr, Credentials, Expected, FileKind, FsError, Keeping, Placing, SetAttr, SetTime,
    TRANSFER_LEN_BYTES_MAX, Unchanged, Unnamed, XattrMode,
};

use crate::arrivals::{Arrival, Facet, Ticket};
use crate::listing::{
    self, Entry, ListRequest, Listed, ListedObject, Listing, NameTarget, Names, Tree,
};
use crate::path::KeyPath;
use crate::records::{BucketRecord, ObjectError, ObjectRecord, decode, encode};
use crate::staging::Staged;
use crate::versions::{NO_VERSION, Removed, Versioning};
use crate::volume::Objects;

/// What an object has beside its bytes.
pub(crate) const OF_OBJECT: &[u8] = b"user.s3.object";
/// A directory that is there only because of what is below it.
const OF_DIRECTORY: &[u8] = b"user.s3.made";
/// Directories may be removed by others while an object is on its way into them.
pub(crate) const ATTEMPTS_MAX: usize = 16;
/// Of a new object; whose it is, says the access key.
const OBJECT_MODE: u32 = 0o644;
/// Of a page of a listing.
const LIST_COUNT_MAX: usize = 1000;

/// What must hold of the object that is there for a change to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// There is none.
    pub absent: bool,
    /// Its ETag, without quotes, is one of these; `*` is any.
    pub if_match: Vec<String>,
    /// Its ETag is none of these.
    pub if_none_match: Vec<String>,
    /// It is this file, as it was when somebody looked at it.
    pub unchanged: Option<Unchanged>,
}

impl Condition {
    pub(crate) fn holds(&self, there: Option<&ObjectInfo>) -> bool {
        let etag = there.map(ObjectInfo::etag);
        let is = |wanted: &String| match &etag {
            Some(etag) => wanted == "*" || wanted == etag,
            None => false,
        };
        (self.if_match.is_empty() || self.if_match.iter().any(is))
            && !self.if_none_match.iter().any(is)
            && !(self.absent && there.is_some())
            && (self.unchanged.is_none() || self.unchanged == there.map(ObjectInfo::unchanged))
    }

    /// Why something is not put in the place of what is there ("How to prevent object overwrites with conditional writes": who wants
    /// to replace an object that is not there is told that).
    pub(crate) fn check_put(&self, there: Option<&ObjectInfo>) -> Result<(), ObjectError> {
        match self.holds(there) {
            true => Ok(()),
            false if there.is_none() && !self.if_match.is_empty() => Err(ObjectError::NoObject),
            false => Err(ObjectError::Precondition),
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        *self == Self::default()
    }
}

/// A bucket, and the volume that it is in.
#[derive(Clone)]
pub struct Bucket {
    pub(crate) objects: Arc<Objects>,
    pub name: String,
    pub record: BucketRecord,
}

/// An object as it is now.
#[derive(Clone, Debug)]
pub struct ObjectInfo {
    pub ino: Ino,
    pub attr: Attr,
    /// The record that was put with its bytes, if they are still those.
    pub record: Option<ObjectRecord>,
    /// It is a directory that was put.
    pub is_directory: bool,
    /// `None`: the bucket keeps no versions.
    pub version_id: Option<String>,
    /// It is a version that says that there is no object.
    pub is_marker: bool,
    /// Whether who looked for it may read the file: who may not learns no digest of its bytes, and nothing that was put with them.
    pub is_readable: bool,
}

impl ObjectInfo {
    /// Without quotes. Of a file that was not put, or was changed since, or that may not be read, it is no MD5, and looks like none.
    pub fn etag(&self) -> String {
        match &self.record {
            Some(record) if self.is_readable => record.etag.clone(),
            _ => etag_of_file(&self.attr),
        }
    }

    /// The file as it is now, for a change that depends on it.
    pub(crate) fn unchanged(&self) -> Unchanged {
        Unchanged::of(&self.attr)
    }

    /// What its version is called.
    pub(crate) fn id(&self) -> &str {
        self.version_id.as_deref().unwrap_or(NO_VERSION)
    }

    /// Whose it is: of a marker, who put it there.
    pub(crate) fn owner_uid(&self) -> u32 {
        let record = self.record.as_ref().filter(|record| record.is_marker);
        let marked_by = record.and_then(|record| record.marked_by);
        marked_by.unwrap_or(self.attr.uid)
    }

    pub(crate) fn has_number(&self) -> bool {
        self.id() != NO_VERSION
    }

    pub fn size_bytes(&self) -> u64 {
        match self.is_directory {
            true => 0,
            false => self.attr.size_bytes,
        }
    }
}

/// Whether somebody may read the bytes of a file, by the rule of a read over NFS, and so what tells of them.
pub(crate) fn may_read(who: &Credentials, attr: &Attr) -> bool {
    let file = Guarded {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
    };
    perm::require_data(who, file, perm::READ).is_ok()
}

/// Changes with the file: its number, length and times. The dash is what tells clients that it is no MD5.
fn etag_of_file(attr: &Attr) -> String {
    let time = attr.mtime;
    format!(
        "{:016x}{:x}{:08x}{:x}-0",
        attr.ino.0, time.seconds, time.nanos, attr.size_bytes
    )
}

/// The object that was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub etag: String,
    /// `None`: the bucket keeps no versions.
    pub version_id: Option<String>,
}

/// Which of a bucket's keys are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeysWanted<'a> {
    pub prefix: &'a str,
    pub delimiter: &'a str,
    /// After this, which need be no key, or what an earlier page told as a prefix.
    pub after: &'a [u8],
    pub limit: usize,
    /// Only what XML can hold as it is (XML 1.0, section 2.2).
    pub is_plain: bool,
}

/// The directory of a key, and its place there.
struct KeyLocation {
    dir: Ino,
    path: KeyPath,
}

impl Bucket {
    /// The server's time, in seconds since 1970.
    pub fn now_seconds(&self) -> i64 {
        self.objects.env.clock.now().seconds
    }

    /// Whose it is: the owner of its directory. `None`: that is gone.
    pub async fn owner(&self) -> Result<Option<Credentials>, ObjectError> {
        match self.objects.fs().attr(self.record.directory).await {
            Ok(attr) => Ok(Some(Credentials {
                uid: attr.uid,
                gid: attr.gid,
                groups: Vec::new(),
                request: None,
            })),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it is this user's. Everything is root's.
    pub async fn is_of(&self, who: &Credentials) -> Result<bool, ObjectError> {
        let is = |owner: Credentials| owner.uid == who.uid;
        Ok(who.is_root() || self.owner().await?.is_some_and(is))
    }

    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    pub(crate) async fn turn(&self, key: &str, alone: bool) -> crate::volume::Turn<'_> {
        let directory = self.record.directory;
        self.objects.turn_of(directory, key, alone).await
    }

    /// A change of an object begins: its request counts as older than those that come later, also if it waits.
    pub fn arrive(&self, key: &str, facet: Facet) -> Arc<Arrival> {
        let directory = self.record.directory;
        Arc::new(self.objects.arrivals.of_object(directory, key, facet))
    }

    /// The arrival of a request that came earlier, for an object that it names now.
    pub fn arrived(&self, ticket: &Ticket, key: &str) -> Arc<Arrival> {
        Arc::new(ticket.of_object(self.record.directory, key, Facet::Whole))
    }

    /// Whether a change that was begun is of this object; not if the bucket was made again since then.
    pub fn is_meant_by(&self, arrival: &Arrival, key: &str) -> bool {
        arrival.is_of_object(self.record.directory, key)
    }

    /// Begins an object.
    pub async fn stage(
        &self,
        who: &Credentials,
        arrival: Arc<Arrival>,
    ) -> Result<Staged, ObjectError> {
        Staged::begin(&self.objects, who, self.record.directory, arrival).await
    }

    /// Gives a file its place: the object is there, whole and durable, when this is answered. `record` says what it has
    /// beside its bytes; its ETag is that of the bytes if it is empty.
    pub async fn publish(
        &self,
        key: &str,
        staged: Staged,
        mut record: ObjectRecord,
        condition: &Condition,
    ) -> Result<Published, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        if record.etag.is_empty() {
            record.etag = hex(&staged.md5().unwrap_or_default());
        }
        let (who, arrival) = (staged.who().clone(), staged.arrival());
        if path.is_directory {
            if staged.len_bytes() > 0 {
                return Err(ObjectError::Invalid(
                    "a key that ends with a slash is a directory, which has no bytes".to_owned(),
                ));
            }
            drop(staged);
            let due = arrival.due().await?;
            let put = self.publish_directory(&who, key, &path, record, condition);
            let put = put.await?;
            due.done();
            return Ok(put);
        }
        let mut file = staged.whole().await?;
        let mtime = self.objects.env.clock.now();
        let record = self
            .locked_by_default(record, mtime)
            .of_file(file.len_bytes(), mtime);
        let due = match arrival.due().await {
            // Both were under way at the same time: it is as if it had been done before the other one, which replaced it.
            Err(ObjectError::Late) if self.versioning().is_none() && condition.is_free() => {
                // Who may not change it is told so in any order.
                self.require_write(&who, &path).await?;
                return Ok(self.published(record));
            }
            due => due?,
        };
        let placed = self.place_object(&who, key, &path, &mut file, record, condition);
        let placed = placed.await;
        if placed.is_ok() {
            due.done();
        }
        if placed.is_err() && self.versioning().is_some() {
            // Folders were made for what it was to replace.
            self.prune_kept(&path).await;
        }
        placed
    }

    /// Gives a file that has all its bytes its name.
    async fn place_object(
        &self,
        who: &Credentials,
        key: &str,
        path: &KeyPath,
        file: &mut Unnamed,
        mut record: ObjectRecord,
        condition: &Condition,
    ) -> Result<Published, ObjectError> {
        let set = SetAttr {
            mode: Some(OBJECT_MODE),
            mtime: SetTime::To(record.mtime()),
            ..SetAttr::default()
        };
        let looks = self.versioning().is_some() || !condition.is_free();
        let _turn = self.turn(key, looks).await;
        let mut attempts = 0;
        loop {
            // Also somebody with a file system's client may come between this look and the change: then it is looked again.
            let there = match looks {
                true => self.found(who, path).await?,
                false => None,
            };
            condition.check_put(there.as_ref())?;
            let expected = match &there {
                _ if !looks => Expected::Anything,
                Some(there) => Expected::This {
                    ino: there.ino,
                    ctime: there.attr.ctime,
                },
                None => Expected::Nothing,
            };
            if self.versioning() == Some(Versioning::Suspended) {
                self.require_null_removable(who, path).await?;
            }
            let step = self.step(path, there.as_ref()).await?;
            record.version_id = step.version_id;
            let keep = step.keep.as_ref();
            let keeping = Keeping {
                replaced: keep.map(|(folder, name)| (*folder, name.as_slice())),
                retained_until_seconds: record.retained_until_seconds(),
            };
            let xattrs = [(OF_OBJECT, Bytes::from(encode(&record)?))];
            let dir = self.make_parents(who, path).await?;
            let placing = Placing {
                dir,
                name: path.name(),
                expected,
                set,
                xattrs: &xattrs,
            };
            match file.place_keeping(who, &placing, &keeping).await {
                Ok(_) => {
                    if self.versioning() == Some(Versioning::Suspended) {
                        self.drop_replaced_null(path, None).await?;
                    }
                    return Ok(self.published(record));
                }
                Err(FsError::Exists | FsError::NotSync) if attempts < ATTEMPTS_MAX => attempts += 1,
                // The file that is there is no object.
                Err(FsError::Exists | FsError::NotSync) if condition.absent => {
                    return Err(ObjectError::Precondition);
                }
                Err(FsError::Exists | FsError::NotSync | FsError::IsDirectory) => {
                    return Err(ObjectError::InTheWay);
                }
                // Who deleted the last object of the directory took it away.
                Err(FsError::Stale | FsError::NotFound) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn publish_directory(
        &self,
        who: &Credentials,
        key: &str,
        path: &KeyPath,
        record: ObjectRecord,
        condition: &Condition,
    ) -> Result<Published, ObjectError> {
        let _turn = self.turn(key, true).await;
        let there = self.found(who, path).await?;
        condition.check_put(there.as_ref())?;
        let fs = self.objects.fs();
        let mut attempts = 0;
        loop {
            let dir = self.make_parents(who, path).await?;
            let xattrs = [(OF_OBJECT, Bytes::from(encode(&record)?))];
            let made = self.objects.enter_or_make(who, dir, path.name(), &xattrs);
            let put = match made.await {
                Ok((_, true)) => break,
                Ok((ino, false)) => fs
                    .set_xattr(who, ino, OF_OBJECT, &encode(&record)?, XattrMode::Any)
                    .await
                    .map_err(ObjectError::from),
                Err(error) => Err(error),
            };
            match put {
                Ok(_) => break,
                Err(ObjectError::Fs(FsError::Stale | FsError::NotFound))
                    if attempts < ATTEMPTS_MAX =>
                {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.published(record))
    }

    fn published(&self, record: ObjectRecord) -> Published {
        let id = record.version_id.unwrap_or_else(|| NO_VERSION.to_owned());
        Published {
            etag: record.etag,
            version_id: self.versioning().map(|_| id),
        }
    }

    /// The directory that an object is to be in, made as far as it is not there.
    pub(crate) async fn make_parents(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<Ino, ObjectError> {
        let mut attempts = 0;
        'again: loop {
            let mut dir = self.record.directory;
            for part in path.parents() {
                let made = [(OF_DIRECTORY, Bytes::from_static(b"1"))];
                let entered = self.objects.enter_or_make(who, dir, part, &made).await;
                dir = match entered {
                    Ok((ino, _)) => ino,
                    Err(ObjectError::Fs(FsError::Stale))
                        if dir != self.record.directory && attempts < ATTEMPTS_MAX =>
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

    /// The directory of a key, if it is there.
    async fn place(
        &self,
        who: &Credentials,
        key: &str,
    ) -> Result<Option<KeyLocation>, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        let dir = self.directory_of(who, &path).await?;
        Ok(dir.map(|dir| KeyLocation { dir, path }))
    }

    pub(crate) async fn directory_of(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<Option<Ino>, ObjectError> {
        let mut dir = self.record.directory;
        for part in path.parents() {
            match self.objects.fs().child(who, dir, part).await {
                Ok(Some((ino, FileKind::Directory))) => dir = ino,
                Ok(_) => return Ok(None),
                // The bucket's own directory is gone.
                Err(FsError::Stale) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(dir))
    }

    pub(crate) async fn found(
        &self,
        who: &Credentials,
        path: &KeyPath,
    ) -> Result<Option<ObjectInfo>, ObjectError> {
        let Some(dir) = self.directory_of(who, path).await? else {
            return Ok(None);
        };
        let attr = match self.objects.fs().lookup(who, dir, path.name()).await {
            Ok((attr, _)) => attr,
            Err(FsError::NotFound | FsError::Stale) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_it = match attr.kind {
            FileKind::Regular => !path.is_directory,
            FileKind::Directory => path.is_directory,
            _ => false,
        };
        match is_it {
            true => self.info(who, attr).await,
            false => Ok(None),
        }
    }

    /// `None`: a directory that was not put.
    pub(crate) async fn info(
        &self,
        who: &Credentials,
        attr: Attr,
    ) -> Result<Option<ObjectInfo>, ObjectError> {
        let is_directory = attr.kind == FileKind::Directory;
        let record = self.record_of(attr.ino).await?;
        let record = match is_directory {
            true if record.is_none() => return Ok(None),
            true => record,
            false => record.filter(|record| record.is_of(&attr)),
        };
        let number = self.number_of(record.as_ref(), &attr);
        let id = number.unwrap_or_else(|| NO_VERSION.to_owned());
        Ok(Some(ObjectInfo {
            ino: attr.ino,
            attr,
            record,
            is_directory,
            version_id: self.versioning().map(|_| id),
            is_marker: false,
            is_readable: may_read(who, &attr),
        }))
    }

    pub(crate) async fn record_of(&self, ino: Ino) -> Result<Option<ObjectRecord>, ObjectError> {
        let fs = self.objects.fs();
        match fs.xattr(&Credentials::ROOT, ino, OF_OBJECT).await {
            // Anybody who may write to the file can put anything there; then the file says what it says itself.
            Ok(value) => Ok(decode("an object", &value).ok()),
            Err(FsError::NoAttribute | FsError::Stale) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn object(&self, who: &Credentials, key: &str) -> Result<ObjectInfo, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        let found = self.found(who, &path).await?;
        found.ok_or(ObjectError::NoObject)
    }

    /// Reads from an object, at most as much as one read brings.
    pub async fn read(
        &self,
        who: &Credentials,
        ino: Ino,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Vec<Bytes>, ObjectError> {
        let len = len_bytes.min(u64::from(TRANSFER_LEN_BYTES_MAX)) as u32;
        let read = self.objects.fs().read(who, ino, offset, len).await?;
        Ok(read.parts)
    }

    /// Changes what an object has beside its bytes: what `arrival` is of.
    pub async fn change_record(
        &self,
        who: &Credentials,
        key: &str,
        version: Option<&str>,
        arrival: &Arrival,
        change: impl FnOnce(&mut ObjectRecord) + Send,
    ) -> Result<ObjectInfo, ObjectError> {
        let due = arrival.due().await?;
        let _turn = self.turn(key, true).await;
        let info = self.object_or_version(who, key, version).await?;
        self.change_record_of(who, &info, change).await?;
        due.done();
        Ok(info)
    }

    /// The latest version of an object, or another one, for who may read its file; no marker. The record is for
    /// whom the bytes are for.
    pub async fn readable(
        &self,
        who: &Credentials,
        key: &str,
        version: Option<&str>,
    ) -> Result<ObjectInfo, ObjectError> {
        let info = self.object_or_version(who, key, version).await?;
        match info.is_readable {
            true => Ok(info),
            false => Err(FsError::AccessDenied.into()),
        }
    }

    /// The latest version of an object, or another one; no marker. For who changes it: [`Self::readable`] is for who is told of it.
    pub(crate) async fn object_or_version(
        &self,
        who: &Credentials,
        key: &str,
        version: Option<&str>,
    ) -> Result<ObjectInfo, ObjectError> {
        let info = match version {
            Some(id) => self.version(who, key, id).await?,
            None => self.object(who, key).await?,
        };
        match info.is_marker {
            true => Err(ObjectError::Marker),
            false => Ok(info),
        }
    }

    /// Changes the record of an object version. The caller holds the key's turn alone.
    pub(crate) async fn change_record_of(
        &self,
        who: &Credentials,
        info: &ObjectInfo,
        change: impl FnOnce(&mut ObjectRecord) + Send,
    ) -> Result<(), ObjectError> {
        let etag = info.etag();
        let given = ObjectRecord {
            etag,
            version_id: info.has_number().then(|| info.id().to_owned()),
            ..ObjectRecord::default()
        };
        let mut record = info.record.clone().unwrap_or(given);
        change(&mut record);
        if !info.is_directory {
            record = record.of_file(info.attr.size_bytes, info.attr.mtime);
        }
        let fs = self.objects.fs();
        fs.set_xattr(who, info.ino, OF_OBJECT, &encode(&record)?, XattrMode::Any)
            .await?;
        Ok(())
    }

    /// Removes an object; that there is none is fine. Directories that are there only for it go, too.
    pub async fn delete(
        &self,
        who: &Credentials,
        key: &str,
        condition: &Condition,
        arrival: &Arrival,
    ) -> Result<Removed, ObjectError> {
        let removed = self.remove(who, key, condition, arrival).await?;
        self.prune(who, key).await;
        Ok(removed)
    }

    /// Removes an object, and leaves it to [`Self::prune`] to remove directories above it. Where versions are kept, a marker
    /// takes its place; directories have none.
    pub async fn remove(
        &self,
        who: &Credentials,
        key: &str,
        condition: &Condition,
        arrival: &Arrival,
    ) -> Result<Removed, ObjectError> {
        let due = match arrival.due().await {
            Err(ObjectError::Late) if self.versioning().is_none() && condition.is_free() => {
                let path = KeyPath::parse(key.as_bytes())?;
                self.require_write(who, &path).await?;
                return Ok(Removed::default());
            }
            due => due?,
        };
        let removed = match self.versioning() {
            Some(versioning) if !key.ends_with('/') => {
                self.mark_deleted(who, key, versioning, condition).await?
            }
            _ => {
                self.remove_at_once(who, key, condition).await?;
                Removed::default()
            }
        };
        due.done();
        Ok(removed)
    }

    async fn remove_at_once(
        &self,
        who: &Credentials,
        key: &str,
        condition: &Condition,
    ) -> Result<(), ObjectError> {
        let _turn = self.turn(key, !condition.is_free()).await;
        let mut attempts = 0;
        loop {
            let Some(KeyLocation { dir, path }) = self.place(who, key).await? else {
                let path = KeyPath::parse(key.as_bytes())?;
                return match condition.holds(None) {
                    true => self.require_write(who, &path).await,
                    false => Err(ObjectError::Precondition),
                };
            };
            let there = self.found(who, &path).await?;
            if !condition.holds(there.as_ref()) {
                return Err(ObjectError::Precondition);
            }
            let Some(info) = there else {
                // A change on its way to this key is void after this deletion, so only a caller who may write here may say that.
                return self.require_write(who, &path).await;
            };
            let fs = self.objects.fs();
            let removed = match info.is_directory {
                true => {
                    fs.remove_xattr(who, info.ino, OF_OBJECT).await?;
                    match fs.remove_dir(who, dir, path.name()).await {
                        // It stays for what is below it.
                        Err(FsError::NotEmpty) => {
                            let noted =
                                fs.set_xattr(who, info.ino, OF_DIRECTORY, b"1", XattrMode::Any);
                            noted.await.map(|_| ())
                        }
                        removed => removed.map(|_| ()),
                    }
                }
                false if condition.is_free() => fs.remove(who, dir, path.name()).await.map(|_| ()),
                // Somebody with a file system's client may come between this look and the change.
                false => {
                    let only = info.unchanged();
                    let removed = fs.remove_unchanged(who, dir, path.name(), only);
                    removed.await.map(|_| ())
                }
            };
            match removed {
                Ok(()) | Err(FsError::NotFound | FsError::Stale) => return Ok(()),
                Err(FsError::NotSync) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(FsError::NotSync) => return Err(ObjectError::Precondition),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes directories above a key that are empty, and were made only for what was below them.
    pub async fn prune(&self, who: &Credentials, key: &str) {
        let Ok(path) = KeyPath::parse(key.as_bytes()) else {
            return;
        };
        let fs = self.objects.fs();
        let mut dirs = vec![self.record.directory];
        for part in path.parents() {
            let Some(last) = dirs.last() else { return };
            match fs.child(who, *last, part).await {
                Ok(Some((ino, FileKind::Directory))) => dirs.push(ino),
                _ => break,
            }
        }
        while let [.., above, dir] = dirs[..] {
            let name = &path.parents()[dirs.len() - 2];
            let is_made = fs
                .xattr(&Credentials::ROOT, dir, OF_DIRECTORY)
                .await
                .is_ok();
            let is_object = fs.xattr(&Credentials::ROOT, dir, OF_OBJECT).await.is_ok();
            // Not empty, or not for this key's user: it stays.
            if !is_made || is_object || fs.remove_dir(who, above, name).await.is_err() {
                return;
            }
            dirs.pop();
        }
    }

    /// A page of what is in the bucket.
    pub async fn list(
        &self,
        who: &Credentials,
        prefix: &str,
        delimiter: &str,
        after: &str,
        limit: usize,
    ) -> Result<Listing, ObjectError> {
        let wanted = KeysWanted {
            prefix,
            delimiter,
            after: after.as_bytes(),
            limit,
            is_plain: false,
        };
        self.list_keys(who, wanted).await
    }

    /// A page of the bucket's keys that may begin at any key.
    pub async fn list_keys(
        &self,
        who: &Credentials,
        wanted: KeysWanted<'_>,
    ) -> Result<Listing, ObjectError> {
        let tree = Directories {
            objects: &self.objects,
            who,
        };
        let KeysWanted {
            prefix,
            delimiter,
            after,
            is_plain,
            ..
        } = wanted;
        let limit = wanted.limit.min(LIST_COUNT_MAX);
        if limit == 0 {
            return Ok(Listing {
                entries: Vec::new(),
                next: None,
            });
        }
        let wanted = ListRequest {
            prefix: prefix.as_bytes(),
            delimiter: delimiter.as_bytes(),
            after,
            limit,
            is_plain,
        };
        let page = listing::page(&tree, self.record.directory, wanted).await;
        let (found, is_more) = match page {
            // The bucket's directory is gone.
            Err(FsError::Stale) => return Err(ObjectError::NoBucket(self.name.clone())),
            page => page?,
        };
        let mut next = None;
        let mut entries = Vec::new();
        for entry in found {
            match entry {
                Listed::Prefix(prefix) => {
                    next = Some(text(&prefix));
                    entries.push(Listed::Prefix(prefix));
                }
                Listed::Object(object) => {
                    next = Some(text(&object.key));
                    let attr = match self.objects.fs().attr(object.file).await {
                        Ok(attr) => attr,
                        // It went meanwhile.
                        Err(FsError::Stale) => continue,
                        Err(error) => return Err(error.into()),
                    };
                    let Some(info) = self.info(who, attr).await? else {
                        continue;
                    };
                    entries.push(Listed::Object(ListedObject {
                        key: text(&object.key),
                        size_bytes: info.size_bytes(),
                        mtime: info.attr.mtime,
                        etag: info.etag(),
                    }));
                }
            }
        }
        Ok(Listing {
            entries,
            next: next.filter(|_| is_more),
        })
    }
}

/// What a listing tells is text: names that are none are no keys, and left out by the walk.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) struct Directories<'a> {
    pub objects: &'a Objects,
    pub who: &'a Credentials,
}

impl Tree for Directories<'_> {
    type Directory = Ino;
    type File = Ino;

    async fn names_after(
        &self,
        dir: Ino,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<Names<Ino, Ino>, FsError> {
        let fs = self.objects.fs();
        let page = match fs.names_after(self.who, dir, after, inclusive, limit).await {
            // What the key's user may not see is not there.
            Err(FsError::AccessDenied) => {
                return Ok(Names {
                    entries: Vec::new(),
                    eof: true,
                });
            }
            page => page?,
        };
        let entries = page.entries.into_iter().map(|entry| Entry {
            named: match entry.kind {
                FileKind::Directory => NameTarget::Directory(entry.ino),
                FileKind::Regular => NameTarget::File(entry.ino),
                _ => NameTarget::Nothing,
            },
            name: entry.name,
        });
        Ok(Names {
            entries: entries.collect(),
            eof: page.eof,
        })
    }

    async fn directory(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
        match self.objects.fs().child(self.who, dir, name).await {
            Ok(Some((ino, FileKind::Directory))) => Ok(Some(ino)),
            Ok(_) | Err(FsError::AccessDenied | FsError::NameTooLong) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn own(&self, dir: Ino) -> Result<Option<Ino>, FsError> {
        let fs = self.objects.fs();
        match fs.xattr(&Credentials::ROOT, dir, OF_OBJECT).await {
            Ok(_) => Ok(Some(dir)),
            Err(FsError::NoAttribute | FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Timestamp;

    use super::*;

    fn attr(mode: u32) -> Attr {
        let now = Timestamp::new(7, 0);
        Attr {
            ino: Ino(5),
            kind: FileKind::Regular,
            mode,
            nlink: 1,
            uid: 1000,
            gid: 100,
            size_bytes: 3,
            used_bytes: 3,
            device_major: 0,
            device_minor: 0,
            atime: now,
            mtime: now,
            ctime: now,
        }
    }

    /// Short contents are found by their MD5: it is for who may read them, and so is a condition on it.
    #[test]
    fn the_digest_of_a_file_is_for_who_may_read_it() {
        let who = |uid, gid| Credentials {
            uid,
            gid,
            groups: Vec::new(),
            request: None,
        };
        let md5 = "900150983cd24fb0d6963f7d28e17f72";
        for (mode, [owner, member, other]) in [
            (0o644, [true, true, true]),
            (0o640, [true, true, false]),
            (0o600, [true, false, false]),
            // As over NFS: the owner may always, and who may execute a file has to read it.
            (0o000, [true, false, false]),
            (0o711, [true, true, true]),
        ] {
            let cases = [
                (who(1000, 1), owner),
                (who(1, 100), member),
                (who(1, 1), other),
                (who(0, 0), true),
            ];
            for (who, want) in cases {
                let attr = attr(mode);
                let info = ObjectInfo {
                    ino: attr.ino,
                    is_readable: may_read(&who, &attr),
                    attr,
                    record: Some(ObjectRecord {
                        etag: md5.to_owned(),
                        ..ObjectRecord::default()
                    }),
                    is_directory: false,
                    version_id: None,
                    is_marker: false,
                };
                assert_eq!(info.is_readable, want, "{mode:o} {who:?}");
                assert_eq!(info.etag() == md5, want, "{mode:o} {who:?}");
                assert!(
                    want || info.etag().contains('-'),
                    "no client takes it for an MD5"
                );
                let is_md5 = Condition {
                    if_match: vec![md5.to_owned()],
                    ..Condition::default()
                };
                assert_eq!(is_md5.holds(Some(&info)), want, "{mode:o} {who:?}");
            }
        }
    }
}
