//! Objects of a bucket: put, looked at, read, copied, deleted, listed.
//!
//! Owns: that an object replaces another in one step, that directories come and go with the objects below them, when a
//! record still tells the truth about a file.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::{
    Attr, Credentials, Expected, FileKind, FsError, NamesPage, Placing, SetAttr, SetTime,
    TRANSFER_LEN_BYTES_MAX, XattrMode,
};

use crate::listing::{self, Listed, ListedObject, Listing, Tree, Wanted};
use crate::path::KeyPath;
use crate::records::{BucketRecord, ObjectError, ObjectRecord, decode, encode};
use crate::staging::Staged;
use crate::volume::Objects;

/// What an object has beside its bytes.
pub(crate) const OF_OBJECT: &[u8] = b"user.s3.object";
/// A directory that is there only because of what is below it.
const OF_DIRECTORY: &[u8] = b"user.s3.made";
/// Directories may be removed by others while an object is on its way into them.
const ATTEMPTS_MAX: usize = 16;
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
}

impl Condition {
    fn holds(&self, there: Option<&ObjectInfo>) -> bool {
        let etag = there.map(ObjectInfo::etag);
        let is = |wanted: &String| match &etag {
            Some(etag) => wanted == "*" || wanted == etag,
            None => false,
        };
        (self.if_match.is_empty() || self.if_match.iter().any(is))
            && !self.if_none_match.iter().any(is)
            && !(self.absent && there.is_some())
    }

    fn is_free(&self) -> bool {
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
    /// What was put with its bytes, if they are still those.
    pub record: Option<ObjectRecord>,
    /// It is a directory that was put.
    pub is_directory: bool,
}

impl ObjectInfo {
    /// Without quotes. Of a file that was not put, or was changed since, it is no MD5, and looks like none.
    pub fn etag(&self) -> String {
        match &self.record {
            Some(record) => record.etag.clone(),
            None => etag_of_file(&self.attr),
        }
    }

    pub fn size_bytes(&self) -> u64 {
        match self.is_directory {
            true => 0,
            false => self.attr.size_bytes,
        }
    }
}

/// Changes with the file: its number, length and times. The dash is what tells clients that it is no MD5.
fn etag_of_file(attr: &Attr) -> String {
    let time = attr.mtime;
    format!(
        "{:016x}{:x}{:08x}{:x}-0",
        attr.ino.0, time.seconds, time.nanos, attr.size_bytes
    )
}

/// What was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub etag: String,
}

/// The directory of a key, and its place there.
struct Place {
    dir: Ino,
    path: KeyPath,
}

impl Bucket {
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    async fn turn(&self, key: &str, alone: bool) -> crate::volume::Turn<'_> {
        let directory = self.record.directory;
        self.objects.turn_of(directory, key, alone).await
    }

    /// Begins an object.
    pub async fn stage(&self, who: &Credentials) -> Result<Staged, ObjectError> {
        Staged::begin(&self.objects, who, self.record.directory).await
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
        let who = staged.who().clone();
        if path.is_directory {
            if staged.len_bytes() > 0 {
                return Err(ObjectError::Invalid(
                    "a key that ends with a slash is a directory, which has no bytes".to_owned(),
                ));
            }
            drop(staged);
            return self
                .publish_directory(&who, key, &path, record, condition)
                .await;
        }
        let mut file = staged.whole().await?;
        let mtime = self.objects.env.clock.now();
        let record = record.of_file(file.len_bytes(), mtime);
        let set = SetAttr {
            mode: Some(OBJECT_MODE),
            mtime: SetTime::To(mtime),
            ..SetAttr::default()
        };
        let xattrs = [(OF_OBJECT, Bytes::from(encode(&record)?))];
        let _turn = self.turn(key, !condition.is_free()).await;
        let mut attempts = 0;
        loop {
            // Also somebody with a file system's client may come between this look and the change: then it is looked again.
            let expected = match condition.is_free() {
                true => Expected::Anything,
                false => match self.found(&who, &path).await? {
                    there if !condition.holds(there.as_ref()) => {
                        return Err(ObjectError::Precondition);
                    }
                    Some(there) => Expected::This {
                        ino: there.ino,
                        ctime: there.attr.ctime,
                    },
                    None => Expected::Nothing,
                },
            };
            let dir = self.make_parents(&who, &path).await?;
            let placing = Placing {
                dir,
                name: path.name(),
                expected,
                set,
                xattrs: &xattrs,
            };
            match file.place(&who, &placing).await {
                Ok(_) => return Ok(Published { etag: record.etag }),
                Err(FsError::Exists | FsError::NotSync) if attempts < ATTEMPTS_MAX => attempts += 1,
                // What is there is no object.
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
        if !condition.holds(there.as_ref()) {
            return Err(ObjectError::Precondition);
        }
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
        Ok(Published { etag: record.etag })
    }

    /// The directory that an object is to be in, made as far as it is not there.
    async fn make_parents(&self, who: &Credentials, path: &KeyPath) -> Result<Ino, ObjectError> {
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
    async fn place(&self, who: &Credentials, key: &str) -> Result<Option<Place>, ObjectError> {
        let path = KeyPath::parse(key.as_bytes())?;
        let dir = self.directory_of(who, &path).await?;
        Ok(dir.map(|dir| Place { dir, path }))
    }

    async fn directory_of(
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

    async fn found(
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
            true => self.info(attr).await,
            false => Ok(None),
        }
    }

    /// `None`: a directory that was not put.
    async fn info(&self, attr: Attr) -> Result<Option<ObjectInfo>, ObjectError> {
        let is_directory = attr.kind == FileKind::Directory;
        let record = self.record_of(attr.ino).await?;
        let record = match is_directory {
            true if record.is_none() => return Ok(None),
            true => record,
            false => record.filter(|record| record.is_of(&attr)),
        };
        Ok(Some(ObjectInfo {
            ino: attr.ino,
            attr,
            record,
            is_directory,
        }))
    }

    async fn record_of(&self, ino: Ino) -> Result<Option<ObjectRecord>, ObjectError> {
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

    /// Changes what an object has beside its bytes.
    pub async fn change_record(
        &self,
        who: &Credentials,
        key: &str,
        change: impl FnOnce(&mut ObjectRecord) + Send,
    ) -> Result<(), ObjectError> {
        let _turn = self.turn(key, true).await;
        let info = self.object(who, key).await?;
        let etag = info.etag();
        let mut record = info.record.unwrap_or_else(|| ObjectRecord {
            etag,
            ..ObjectRecord::default()
        });
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
    ) -> Result<(), ObjectError> {
        self.remove(who, key, condition).await?;
        self.prune(who, key).await;
        Ok(())
    }

    /// Removes an object, and leaves it to [`Self::prune`] to remove directories above it.
    pub async fn remove(
        &self,
        who: &Credentials,
        key: &str,
        condition: &Condition,
    ) -> Result<(), ObjectError> {
        let _turn = self.turn(key, !condition.is_free()).await;
        let Some(Place { dir, path }) = self.place(who, key).await? else {
            return match condition.holds(None) {
                true => Ok(()),
                false => Err(ObjectError::Precondition),
            };
        };
        let there = self.found(who, &path).await?;
        if !condition.holds(there.as_ref()) {
            return Err(ObjectError::Precondition);
        }
        let Some(info) = there else { return Ok(()) };
        let fs = self.objects.fs();
        let removed = match info.is_directory {
            true => {
                fs.remove_xattr(who, info.ino, OF_OBJECT).await?;
                match fs.remove_dir(who, dir, path.name()).await {
                    // It stays for what is below it.
                    Err(FsError::NotEmpty) => {
                        let noted = fs.set_xattr(who, info.ino, OF_DIRECTORY, b"1", XattrMode::Any);
                        noted.await.map(|_| ())
                    }
                    removed => removed.map(|_| ()),
                }
            }
            false => fs.remove(who, dir, path.name()).await.map(|_| ()),
        };
        match removed {
            Ok(()) | Err(FsError::NotFound | FsError::Stale) => Ok(()),
            Err(error) => Err(error.into()),
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
        let tree = Directories {
            objects: &self.objects,
            who,
        };
        let limit = limit.min(LIST_COUNT_MAX);
        if limit == 0 {
            return Ok(Listing {
                entries: Vec::new(),
                next: None,
            });
        }
        let wanted = Wanted {
            prefix: prefix.as_bytes(),
            delimiter: delimiter.as_bytes(),
            after: after.as_bytes(),
            limit,
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
                    let attr = match self.objects.fs().attr(object.ino).await {
                        Ok(attr) => attr,
                        // It went meanwhile.
                        Err(FsError::Stale) => continue,
                        Err(error) => return Err(error.into()),
                    };
                    let Some(info) = self.info(attr).await? else {
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

/// Names need not be text; S3's keys must be.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Directories<'a> {
    objects: &'a Objects,
    who: &'a Credentials,
}

impl Tree for Directories<'_> {
    async fn names_after(
        &self,
        dir: Ino,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<NamesPage, FsError> {
        let fs = self.objects.fs();
        match fs.names_after(self.who, dir, after, inclusive, limit).await {
            // What the key's user may not see is not there.
            Err(FsError::AccessDenied) => Ok(NamesPage {
                entries: Vec::new(),
                eof: true,
            }),
            page => page,
        }
    }

    async fn directory(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
        match self.objects.fs().child(self.who, dir, name).await {
            Ok(Some((ino, FileKind::Directory))) => Ok(Some(ino)),
            Ok(_) | Err(FsError::AccessDenied | FsError::NameTooLong) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn is_object(&self, dir: Ino) -> Result<bool, FsError> {
        let fs = self.objects.fs();
        match fs.xattr(&Credentials::ROOT, dir, OF_OBJECT).await {
            Ok(_) => Ok(true),
            Err(FsError::NoAttribute | FsError::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
