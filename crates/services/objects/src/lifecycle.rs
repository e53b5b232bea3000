//! Objects and uploads that go by themselves.
//!
//! Owns: when it is looked for them, that only what a rule means goes, and only as the bucket's owner may. Must not know: what
//! rules say (`settings`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::jobs::{Job, Next, Step, StepResult};
use cairn_base::{Backoff, Ino};
use cairn_fs::{Credentials, FileKind, FsError};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::arrivals::Facet;
use crate::bucket::{Bucket, Condition, Directories, ObjectInfo};
use crate::listing::{Names, Tree, Walk};
use crate::path::KeyPath;
use crate::records::ObjectError;
use crate::settings::LifecycleRule;
use crate::version_listing::Both;
use crate::volume::Objects;

/// It is looked so often, and whenever a rule changes.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Versions of one key that are looked at together.
const PAGE_COUNT: usize = 1000;
/// Versions of one key that go in one turn of it: requests for the key wait for that.
const TURN_COUNT: usize = 100;

impl Objects {
    /// Looks after all buckets, for as long as the volume is served here.
    pub(crate) fn tend_lifecycles(self: &Arc<Self>) {
        let lifecycles = Lifecycles {
            objects: Arc::downgrade(self),
            changed: self.changed.subscribe(),
            is_over: false,
        };
        Job::every("object-lifecycles", INTERVAL)
            .of(self.fs.name())
            .from_now()
            // An hour is a long pause already.
            .retry(Backoff::new(INTERVAL, INTERVAL))
            .start(&self.env, lifecycles);
    }

    /// Removes what is to go now, and what is left of uploads that went; returns how many objects and uploads went. What cannot
    /// be looked at or removed stays, and keeps no other.
    pub async fn expire(self: &Arc<Self>) -> Result<(u64, u64), ObjectError> {
        let mut gone = Gone::default();
        gone.note("uploads that went", self.remove_leftovers().await)?;
        let strays = self.remove_stray_versions().await;
        gone.note("versions of buckets that went", strays)?;
        for (name, record) in self.buckets() {
            let rules = &record.settings.lifecycle;
            if rules.iter().any(|rule| rule.is_enabled) {
                let expired = self.expire_bucket(&name, &mut gone).await;
                gone.note(&name, expired)?;
            }
        }
        let Gone {
            objects,
            uploads,
            stay_count,
            first,
        } = gone;
        if let Some((what, error)) = first {
            let volume = self.fs.name();
            tracing::warn!(
                volume, stay_count, what, %error,
                "lifecycle rules could not check or remove some objects; the next run retries"
            );
        }
        Ok((objects, uploads))
    }

    async fn expire_bucket(
        self: &Arc<Self>,
        name: &str,
        gone: &mut Gone,
    ) -> Result<(), ObjectError> {
        let bucket = self.bucket(name)?;
        let Some(owner) = bucket.owner().await? else {
            return Ok(());
        };
        let objects = bucket.expire_objects(&owner, gone).await;
        gone.note(name, objects)?;
        let versions = bucket.expire_versions(&owner, gone).await;
        gone.note(name, versions)?;
        bucket.expire_uploads(&owner, gone).await
    }
}

/// What went, and what stays although it may be its time.
#[derive(Default)]
struct Gone {
    objects: u64,
    uploads: u64,
    stay_count: u64,
    /// The first of those that stay, and why.
    first: Option<(String, ObjectError)>,
}

impl Gone {
    /// Goes on after an error of one of many. One that is of the whole volume ends it.
    fn note(&mut self, what: &str, done: Result<(), ObjectError>) -> Result<(), ObjectError> {
        let Err(error) = done else { return Ok(()) };
        match &error {
            ObjectError::Fs(of_fs) if is_of_volume(of_fs) => return Err(error),
            // It went or was changed meanwhile, is locked, or is not the owner's to remove.
            ObjectError::NoBucket(_)
            | ObjectError::NoObject
            | ObjectError::NoVersion
            | ObjectError::NoUpload
            | ObjectError::Precondition
            | ObjectError::Late
            | ObjectError::Unordered
            | ObjectError::Locked(_)
            | ObjectError::Fs(
                FsError::NotFound | FsError::Stale | FsError::AccessDenied | FsError::NotOwner,
            ) => {}
            _ => {
                self.stay_count += 1;
                self.first.get_or_insert((what.to_owned(), error));
            }
        }
        Ok(())
    }
}

/// Whether nothing of the volume can be read or changed here any more.
pub(crate) fn is_of_volume(error: &FsError) -> bool {
    matches!(error, FsError::Fenced)
}

struct Lifecycles {
    objects: Weak<Objects>,
    changed: watch::Receiver<()>,
    /// The volume is not served here any more.
    is_over: bool,
}

impl Step for Lifecycles {
    async fn step(&mut self) -> StepResult {
        let Some(objects) = self.objects.upgrade().filter(|_| !self.is_over) else {
            return Ok(Next::End);
        };
        // A rule that is set from here on is looked at again.
        self.changed.mark_unchanged();
        let (expired, aborted) = objects.expire().await.map_err(|error| error.to_string())?;
        if (expired, aborted) != (0, 0) {
            let volume = objects.fs.name();
            tracing::info!(volume, expired, aborted, "lifecycle rules were followed");
        }
        Ok(Next::Period)
    }

    async fn woken(&mut self) {
        self.is_over = self.changed.changed().await.is_err();
    }
}

/// Directories of which those that cannot be read count as empty, so that the others are looked at.
struct Tolerant<T> {
    tree: T,
    /// Why the first of them could not be read.
    failed: Mutex<Option<FsError>>,
}

impl<T> Tolerant<T> {
    fn new(tree: T) -> Self {
        Self {
            tree,
            failed: Mutex::new(None),
        }
    }

    /// `None`: it could not be read.
    fn read<V>(&self, read: Result<V, FsError>) -> Result<Option<V>, FsError> {
        match read {
            Ok(value) => Ok(Some(value)),
            // It went meanwhile, which the walk knows; or there is nothing to be read.
            Err(error @ (FsError::Stale | FsError::NotFound)) => Err(error),
            Err(error) if is_of_volume(&error) => Err(error),
            Err(error) => {
                self.failed.lock().get_or_insert(error);
                Ok(None)
            }
        }
    }

    fn failed(self) -> Result<(), ObjectError> {
        match self.failed.into_inner() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

impl<T: Tree + Sync> Tree for Tolerant<T> {
    type Directory = T::Directory;
    type File = T::File;

    async fn names_after(
        &self,
        dir: T::Directory,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<Names<T::Directory, T::File>, FsError> {
        let page = self.tree.names_after(dir, after, inclusive, limit).await;
        let none = Names {
            entries: Vec::new(),
            eof: true,
        };
        Ok(self.read(page)?.unwrap_or(none))
    }

    async fn directory(
        &self,
        dir: T::Directory,
        name: &[u8],
    ) -> Result<Option<T::Directory>, FsError> {
        let found = self.tree.directory(dir, name).await;
        Ok(self.read(found)?.flatten())
    }

    async fn own(&self, dir: T::Directory) -> Result<Option<T::File>, FsError> {
        let found = self.tree.own(dir).await;
        Ok(self.read(found)?.flatten())
    }
}

impl Bucket {
    /// The bucket as it is set now: rules may have been taken away, and versions be kept, since it was looked at.
    fn as_set_now(&self) -> Result<Self, ObjectError> {
        let bucket = self.objects.bucket(&self.name)?;
        match bucket.record.directory == self.record.directory {
            true => Ok(bucket),
            false => Err(ObjectError::NoBucket(self.name.clone())),
        }
    }

    async fn expire_objects(&self, who: &Credentials, gone: &mut Gone) -> Result<(), ObjectError> {
        let tree = Tolerant::new(Directories {
            objects: &self.objects,
            who,
        });
        let mut walk = Walk::new(&tree, self.record.directory);
        walk.seek(b"", true).await?;
        while let Some(found) = walk.next().await? {
            // A name that is no text is no key of S3.
            let Ok(key) = String::from_utf8(found.key) else {
                continue;
            };
            match self.expire_object(who, &key, found.file).await {
                Ok(is_gone) => gone.objects += u64::from(is_gone),
                Err(error) => gone.note(&key, Err(error))?,
            }
        }
        drop(walk);
        tree.failed()
    }

    async fn expire_object(
        &self,
        who: &Credentials,
        key: &str,
        file: Ino,
    ) -> Result<bool, ObjectError> {
        // A look that costs little first: most objects stay.
        let attr = self.objects.fs().attr(file).await?;
        let size_bytes = match attr.kind {
            FileKind::Directory => 0,
            _ => attr.size_bytes,
        };
        let now = self.now_seconds();
        let may_end = |rule: &LifecycleRule| rule.ends(key, size_bytes, attr.mtime.seconds, now);
        if !self.record.settings.lifecycle.iter().any(may_end) {
            return Ok(false);
        }
        let bucket = self.as_set_now()?;
        let info = bucket.object(who, key).await?;
        let now = bucket.now_seconds();
        let ends = |rule: &LifecycleRule| {
            rule.ends(key, info.size_bytes(), info.attr.mtime.seconds, now)
                && rule.is_for(info.record.as_ref())
        };
        if !bucket.record.settings.lifecycle.iter().any(ends) {
            return Ok(false);
        }
        // Only what was judged goes. Who puts it or changes it meanwhile, over NFS too, keeps it.
        let this = Condition {
            unchanged: Some(info.unchanged()),
            ..Condition::default()
        };
        let arrival = bucket.arrive(key, Facet::Judged);
        bucket.delete(who, key, &this, &arrival).await?;
        Ok(true)
    }

    /// Removes versions that were replaced long ago, and markers that are alone.
    async fn expire_versions(&self, who: &Credentials, gone: &mut Gone) -> Result<(), ObjectError> {
        if self.versioning().is_none() || !self.record.settings.lifecycle.iter().any(is_of_versions)
        {
            return Ok(());
        }
        let tree = Tolerant::new(Both::new(&self.objects, who));
        let mut walk = Walk::new(&tree, self.pair().await?);
        walk.seek(b"", true).await?;
        while let Some(found) = walk.next().await? {
            let Ok(key) = String::from_utf8(found.key) else {
                continue;
            };
            // Replaced versions lie there, and markers do.
            let mut has_more = found.file.kept.is_some();
            while has_more {
                let before = gone.objects;
                let expired = self.expire_versions_of(who, &key, gone).await;
                has_more = expired.is_ok() && gone.objects - before >= TURN_COUNT as u64;
                gone.note(&key, expired)?;
            }
        }
        drop(walk);
        tree.failed()
    }

    /// Judges versions of a key in the turn in which they go: nothing is put to the key or deleted meanwhile.
    async fn expire_versions_of(
        &self,
        who: &Credentials,
        key: &str,
        gone: &mut Gone,
    ) -> Result<(), ObjectError> {
        let is_about = |rule: &LifecycleRule| is_of_versions(rule) && key.starts_with(&rule.prefix);
        let bucket = self.as_set_now()?;
        if !bucket.record.settings.lifecycle.iter().any(is_about) {
            return Ok(());
        }
        let path = KeyPath::parse(key.as_bytes())?;
        let before = gone.objects;
        let arrival = bucket.arrive(key, Facet::Judged);
        {
            let due = arrival.due().await?;
            let _turn = bucket.turn(key, true).await;
            bucket.expire_in_turn(who, key, &path, gone).await?;
            if gone.objects > before {
                due.done();
            }
        }
        if gone.objects > before {
            bucket.prune_kept(&path).await;
            bucket.prune(who, key).await;
        }
        Ok(())
    }

    async fn expire_in_turn(
        &self,
        who: &Credentials,
        key: &str,
        path: &KeyPath,
        gone: &mut Gone,
    ) -> Result<(), ObjectError> {
        let rules = &self.record.settings.lifecycle;
        let now = self.now_seconds();
        // Also tells whether the directories let the owner in.
        let live = self.found(who, path).await?.map(|there| there.ino);
        let folder = self.kept_folder(who, path).await?;
        let mut after: Option<String> = None;
        // When the version before was put, and how many that were replaced stay.
        let (mut newer, mut noncurrent) = (None, 0);
        let mut count = 0;
        loop {
            let page = self.versions_of(who, live, folder, after.as_deref(), PAGE_COUNT);
            let page = page.await?;
            let Some(last) = page.last().map(|last| last.id().to_owned()) else {
                return Ok(());
            };
            let is_alone = after.is_none() && page.len() == 1;
            for version in page {
                let is_first = after.is_none() && newer.is_none();
                let is_latest = is_first && (live == Some(version.ino) || version.is_marker);
                let is_due = match is_latest {
                    true => {
                        version.is_marker
                            && is_alone
                            && rules.iter().any(|rule| rule.ends_marker(key))
                    }
                    false => {
                        let replaced = newer.unwrap_or(version.attr.mtime.seconds);
                        ends_version(rules, key, &version, replaced, noncurrent, now)
                    }
                };
                let mut is_gone = false;
                if is_due {
                    let removed = self.remove_replaced(who, path, version.id()).await;
                    is_gone = removed.is_ok();
                    gone.note(key, removed)?;
                }
                noncurrent += u32::from(!is_latest && !is_gone);
                newer = Some(version.attr.mtime.seconds);
                gone.objects += u64::from(is_gone);
                count += usize::from(is_gone);
                if count >= TURN_COUNT {
                    return Ok(());
                }
            }
            after = Some(last);
        }
    }

    /// Of any user: they are to be objects where the owner may remove objects. When an upload began never changes, so its
    /// age can be judged before.
    async fn expire_uploads(
        &self,
        owner: &Credentials,
        gone: &mut Gone,
    ) -> Result<(), ObjectError> {
        let rules = &self.record.settings.lifecycle;
        if rules.iter().all(|rule| rule.abort_days.is_none()) {
            return Ok(());
        }
        for (id, folder) in self.upload_folders().await? {
            match self.expire_upload(owner, &id, folder).await {
                Ok(is_gone) => gone.uploads += u64::from(is_gone),
                Err(error) => gone.note(&id, Err(error))?,
            }
        }
        Ok(())
    }

    async fn expire_upload(
        &self,
        owner: &Credentials,
        id: &str,
        folder: Ino,
    ) -> Result<bool, ObjectError> {
        let Some(upload) = self.info_of(folder).await? else {
            return Ok(false);
        };
        if upload.directory != self.record.directory {
            return Ok(false);
        }
        let bucket = self.as_set_now()?;
        let now = bucket.now_seconds();
        let is_over = |rule: &LifecycleRule| rule.aborts(&upload.key, upload.created_seconds, now);
        if !bucket.record.settings.lifecycle.iter().any(is_over) {
            return Ok(false);
        }
        let path = KeyPath::parse(upload.key.as_bytes())?;
        bucket.require_write(owner, &path).await?;
        let who = &Credentials::ROOT;
        bucket.abort_upload(who, &upload.key, id).await?;
        Ok(true)
    }
}

/// Whether a rule is about versions that were replaced, or about markers.
fn is_of_versions(rule: &LifecycleRule) -> bool {
    rule.is_enabled && (rule.noncurrent_days.is_some() || rule.lone_markers)
}

/// Whether a version is to go that was replaced then, with so many newer ones that were and stay.
fn ends_version(
    rules: &[LifecycleRule],
    key: &str,
    version: &ObjectInfo,
    replaced_seconds: i64,
    newer: u32,
    now_seconds: i64,
) -> bool {
    rules.iter().any(|rule| {
        let size_bytes = version.size_bytes();
        rule.ends_version(key, size_bytes, replaced_seconds, newer, now_seconds)
            && rule.is_for(version.record.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::{Entry, NameTarget};

    /// Three directories with a file each; the second of them cannot be read.
    struct Broken;

    impl Tree for Broken {
        type Directory = u32;
        type File = u32;

        async fn names_after(
            &self,
            dir: u32,
            after: &[u8],
            _: bool,
            _: usize,
        ) -> Result<Names<u32, u32>, FsError> {
            let entry = |name: &str, named| Entry {
                name: Arc::from(name.as_bytes()),
                named,
            };
            let entries = match dir {
                _ if !after.is_empty() => Vec::new(),
                0 => vec![
                    entry("a", NameTarget::Directory(1)),
                    entry("b", NameTarget::Directory(2)),
                    entry("c", NameTarget::Directory(3)),
                ],
                2 => return Err(FsError::Io("damaged".to_owned())),
                dir => vec![entry("file", NameTarget::File(dir))],
            };
            Ok(Names { entries, eof: true })
        }

        async fn directory(&self, _: u32, _: &[u8]) -> Result<Option<u32>, FsError> {
            Ok(None)
        }

        async fn own(&self, dir: u32) -> Result<Option<u32>, FsError> {
            match dir {
                3 => Err(FsError::Io("damaged".to_owned())),
                _ => Ok(None),
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_keeps_no_other() {
        let tree = Tolerant::new(Broken);
        let mut walk = Walk::new(&tree, 0);
        walk.seek(b"", true).await.unwrap();
        let mut keys = Vec::new();
        while let Some(found) = walk.next().await.unwrap() {
            keys.push(String::from_utf8(found.key).unwrap());
        }
        drop(walk);
        assert_eq!(keys, ["a/file", "c/file"]);
        assert!(tree.failed().is_err());
        let mut whole = Walk::new(&Broken, 0);
        whole.seek(b"", true).await.unwrap();
        whole.next().await.unwrap().unwrap();
        assert!(
            whole.next().await.is_err(),
            "without it the walk ends there"
        );
    }

    #[test]
    fn only_what_is_of_the_whole_volume_ends_the_loop() {
        let mut gone = Gone::default();
        for error in [
            ObjectError::Precondition,
            ObjectError::NoObject,
            FsError::AccessDenied.into(),
        ] {
            assert_eq!(gone.note("a", Err(error)), Ok(()));
        }
        assert_eq!(gone.stay_count, 0);
        let damaged = ObjectError::Damaged("an upload".to_owned(), "no JSON".to_owned());
        for error in [damaged, FsError::Io("damaged".to_owned()).into()] {
            assert_eq!(gone.note("b", Err(error)), Ok(()));
        }
        assert_eq!(gone.stay_count, 2);
        let fenced: ObjectError = FsError::Fenced.into();
        assert_eq!(gone.note("c", Err(fenced.clone())), Err(fenced));
    }
}
