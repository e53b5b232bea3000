//! Versions of files that others than S3 change or remove, for buckets that want them.
//!
//! Owns: which buckets want them, what such a version is called, that a marker comes with a removal. Must not know: how a file is
//! kept with the change (`fs` does that).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::Ino;
use cairn_base::env::BoxFuture;
use cairn_fs::{Attr, Credentials, FsError, Keeper, KeptPlace, Marker};

use crate::arrivals::Facet;
use crate::bucket::Bucket;
use crate::path::KeyPath;
use crate::records::ObjectError;
use crate::versions::Versioning;
use crate::volume::Objects;

/// Changes of a file within this time are one, unless the bucket says otherwise.
pub const NFS_VERSIONS_SECONDS_DEFAULT: u32 = 60;
/// What it can say.
pub const NFS_VERSIONS_SECONDS: std::ops::RangeInclusive<u32> = 1..=24 * 60 * 60;

/// Tells `fs` where contents go, as long as the objects of the volume are served.
pub(crate) struct BucketKeeper(Weak<Objects>);

impl BucketKeeper {
    pub fn new(objects: &Arc<Objects>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(objects)))
    }
}

impl Keeper for BucketKeeper {
    fn place(
        &self,
        directory: Ino,
        path: Vec<Arc<[u8]>>,
        there: Attr,
        removes: bool,
    ) -> BoxFuture<Result<Option<KeptPlace>, FsError>> {
        let objects = self.0.upgrade();
        Box::pin(async move {
            let objects = objects.ok_or(FsError::TryLater)?;
            let place = objects.place_of_file(directory, &path, there, removes);
            place.await.map_err(|error| match error {
                ObjectError::Fs(error) => error,
                error => FsError::Io(format!("a version of a file cannot be kept: {error}")),
            })
        })
    }

    fn give_up(&self, directory: Ino, path: Vec<Arc<[u8]>>) -> BoxFuture<()> {
        let objects = self.0.upgrade();
        Box::pin(async move {
            if let Some(objects) = objects
                && let Some(bucket) = objects.keeping_bucket(directory)
                && let Some((_, path)) = key_of(&path)
            {
                bucket.prune_kept(&path).await;
            }
        })
    }
}

/// The key of a path below a bucket's directory; `None`: no S3 client could name it.
fn key_of(path: &[Arc<[u8]>]) -> Option<(String, KeyPath)> {
    let key = String::from_utf8(path.join(&b'/')).ok()?;
    let parsed = KeyPath::parse(key.as_bytes()).ok()?;
    Some((key, parsed))
}

impl Objects {
    /// The bucket of a directory that wants versions of what others change there.
    fn keeping_bucket(self: &Arc<Self>, directory: Ino) -> Option<Bucket> {
        let buckets = self.buckets().into_iter();
        let mut of_directory = buckets.filter(|(_, record)| record.directory == directory);
        let (name, record) = of_directory.find(|(_, record)| record.settings.keeps_changes())?;
        Some(Bucket {
            objects: Arc::clone(self),
            name,
            record,
        })
    }

    async fn place_of_file(
        self: &Arc<Self>,
        directory: Ino,
        path: &[Arc<[u8]>],
        there: Attr,
        removes: bool,
    ) -> Result<Option<KeptPlace>, ObjectError> {
        let Some((key, path)) = key_of(path) else {
            return Ok(None);
        };
        let turn = self.owned_turn_of(directory, &key).await;
        let Some(bucket) = self.keeping_bucket(directory) else {
            return Ok(None);
        };
        let Some(there) = bucket.info(&Credentials::ROOT, there).await? else {
            return Ok(None);
        };
        let dir = bucket.make_kept_folder(&path).await?;
        let Some(name) = bucket.free_name_of(&there, dir).await? else {
            return Ok(None);
        };
        let marker = match removes {
            true => Some(bucket.marker_after(&there, dir).await?),
            false => None,
        };
        Ok(Some(KeptPlace {
            dir,
            name: name.file_name(),
            marker,
            turn: Box::new(turn),
        }))
    }

    /// Has `fs` keep what buckets want. It asks for each place then, so what it knows of may be more than is wanted.
    pub(crate) async fn follow_keeping(&self) -> Result<(), FsError> {
        let mut wanted: BTreeMap<Ino, Duration> = BTreeMap::new();
        for record in self.buckets().into_values() {
            let settings = &record.settings;
            if let Some(seconds) = settings.nfs_versions_seconds
                && settings.keeps_changes()
            {
                let during = Duration::from_secs(seconds.into());
                // Of two buckets of one directory.
                let shorter = wanted.entry(record.directory).or_insert(during);
                *shorter = during.min(*shorter);
            }
        }
        for dir in self.fs.kept_below().into_keys() {
            if !wanted.contains_key(&dir) {
                self.fs.keep_below(dir, None).await?;
            }
        }
        for (dir, during) in wanted {
            self.fs.keep_below(dir, Some(during)).await?;
        }
        Ok(())
    }

    /// Keeps versions of what others than S3 change or remove below a bucket, at most one in so many seconds of each file that is
    /// changed again and again; `None`: no more. Durable when answered, and it holds from then on.
    pub async fn set_nfs_versions(
        self: &Arc<Self>,
        name: &str,
        seconds: Option<u32>,
    ) -> Result<Bucket, ObjectError> {
        let arrival = self.arrive_bucket(name, Facet::NfsVersions);
        let due = arrival.due().await?;
        let _turn = self.change_turn().await;
        let mut record = self.bucket(name)?.record;
        if let Some(seconds) = seconds {
            if record.settings.versioning != Some(Versioning::Enabled) {
                return Err(ObjectError::NoVersioning(name.to_owned()));
            }
            if !NFS_VERSIONS_SECONDS.contains(&seconds) {
                return Err(ObjectError::Invalid(format!(
                    "changes of a file within {} to {} seconds can be one, not within {seconds}",
                    NFS_VERSIONS_SECONDS.start(),
                    NFS_VERSIONS_SECONDS.end()
                )));
            }
        }
        record.settings.nfs_versions_seconds = seconds;
        self.keep_bucket(name, record).await?;
        due.done();
        self.settings_changed();
        self.bucket(name)
    }
}

impl Bucket {
    /// What says that an object was removed.
    async fn marker_after(
        &self,
        there: &crate::ObjectInfo,
        folder: Ino,
    ) -> Result<Marker, ObjectError> {
        let number = self.next_number(Some(there), Some(folder)).await?;
        let (mtime, record) = self.marker_record(there.attr.uid)?;
        Ok(Marker {
            name: crate::versions::VersionName::new(number, false).file_name(),
            mtime,
            xattrs: vec![(crate::bucket::OF_OBJECT.to_vec(), record)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_clients_could_name_has_a_key() {
        let long = "x".repeat(255);
        let deep = vec![long.as_bytes(); 5];
        for (parts, want) in [
            (vec![&b"a"[..]], Some("a")),
            (vec![b"a", "\u{e9}".as_bytes()], Some("a/\u{e9}")),
            (vec![b"a", b"\xff00"], None),
            (deep, None),
        ] {
            let path: Vec<Arc<[u8]>> = parts.into_iter().map(Arc::from).collect();
            assert_eq!(key_of(&path).map(|(key, _)| key).as_deref(), want);
        }
    }
}
