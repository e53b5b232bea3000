//! Objects and uploads that go by themselves.
//!
//! Owns: when it is looked for them, that only what a rule means goes, and only as the bucket's owner may. Must not know: what
//! rules say (`settings`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_fs::{Credentials, FsError};

use crate::bucket::{Bucket, Condition};
use crate::listing::{Listed, ListedObject};
use crate::path::KeyPath;
use crate::records::ObjectError;
use crate::settings::LifecycleRule;
use crate::version_listing::{ListedVersion, VersionsWanted};
use crate::volume::Objects;

/// It is looked so often, and whenever a rule changes.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Of a page that is looked at.
const PAGE_COUNT: usize = 1000;

impl Objects {
    /// Looks after all buckets, for as long as the volume is served here.
    pub(crate) fn tend_lifecycles(self: &Arc<Self>) {
        let objects = Arc::downgrade(self);
        let task = async move { tend(objects).await };
        let spawner = &self.env.spawner;
        spawner.spawn("objects: lifecycle", Box::pin(task));
    }

    /// Removes what is to go now, and what is left of uploads that went; returns how many objects and uploads went.
    pub async fn expire(self: &Arc<Self>) -> Result<(u64, u64), ObjectError> {
        self.remove_leftovers().await?;
        self.remove_stray_versions().await?;
        let (mut objects, mut uploads) = (0, 0);
        for (name, record) in self.buckets() {
            let rules = &record.settings.lifecycle;
            if rules.iter().any(|rule| rule.is_enabled) {
                let bucket = self.bucket(&name)?;
                let Some(owner) = bucket.owner().await? else {
                    continue;
                };
                objects += bucket.expire_objects(&owner).await?;
                objects += bucket.expire_versions(&owner).await?;
                uploads += bucket.expire_uploads(&owner).await?;
            }
        }
        Ok((objects, uploads))
    }
}

async fn tend(objects: Weak<Objects>) {
    loop {
        let (clock, changed) = match objects.upgrade() {
            Some(objects) => {
                match objects.expire().await {
                    Ok((0, 0)) => {}
                    Ok((expired, aborted)) => {
                        let volume = objects.fs.name();
                        tracing::info!(volume, expired, aborted, "lifecycle rules were followed");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "lifecycle rules were not followed; they are the next time");
                    }
                }
                (Arc::clone(&objects.env.clock), objects.changed.subscribe())
            }
            None => return,
        };
        let mut changed = changed;
        let pause = clock.sleep(INTERVAL);
        tokio::select! {
            // The volume is not served here any more.
            ended = changed.changed() => if ended.is_err() {
                return;
            },
            () = pause => {}
        }
    }
}

/// The rules by which an object is to go, but for its tags.
fn ending<'a>(
    rules: &'a [LifecycleRule],
    object: &ListedObject,
    now: i64,
) -> Vec<&'a LifecycleRule> {
    let (size, put) = (object.size_bytes, object.mtime.seconds);
    let ends = |rule: &&LifecycleRule| rule.ends(&object.key, size, put, now);
    rules.iter().filter(ends).collect()
}

/// Whether something stays because the bucket's owner may not change it.
fn is_another_s(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::Fs(FsError::AccessDenied | FsError::NotOwner)
    )
}

/// The version that was looked at before.
struct Seen {
    version: ListedVersion,
    /// How many that were replaced are there up to it.
    noncurrent: u32,
    /// No other of its key came before it.
    is_alone: bool,
}

impl Bucket {
    async fn expire_objects(&self, who: &Credentials) -> Result<u64, ObjectError> {
        let rules = &self.record.settings.lifecycle;
        let mut count = 0;
        let mut after = String::new();
        loop {
            let page = self.list(who, "", "", &after, PAGE_COUNT).await?;
            let now = self.objects.env.clock.now().seconds;
            for entry in page.entries {
                let Listed::Object(object) = entry else {
                    continue;
                };
                let ends = ending(rules, &object, now);
                if ends.is_empty() {
                    continue;
                }
                let info = match self.object(who, &object.key).await {
                    Ok(info) => info,
                    Err(ObjectError::NoObject) => continue,
                    Err(error) if is_another_s(&error) => continue,
                    Err(error) => return Err(error),
                };
                let record = info.record.as_ref();
                if !ends.iter().any(|rule| rule.is_for(record)) {
                    continue;
                }
                // Not one that was put since.
                let this = Condition {
                    if_match: vec![info.etag()],
                    ..Condition::default()
                };
                match self.delete(who, &object.key, &this).await {
                    Ok(_) => count += 1,
                    Err(ObjectError::Precondition) => {}
                    Err(error) if is_another_s(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            match page.next {
                Some(next) => after = next,
                None => return Ok(count),
            }
        }
    }

    /// Removes versions that were replaced long ago, and markers that are alone.
    async fn expire_versions(&self, who: &Credentials) -> Result<u64, ObjectError> {
        let rules = &self.record.settings.lifecycle;
        let is_about = |rule: &LifecycleRule| rule.noncurrent_days.is_some() || rule.lone_markers;
        if self.versioning().is_none() || !rules.iter().any(is_about) {
            return Ok(0);
        }
        let mut count = 0;
        let mut at: (String, Option<String>) = Default::default();
        let mut seen: Option<Seen> = None;
        loop {
            let wanted = VersionsWanted {
                after: &at.0,
                after_version: at.1.as_deref(),
                limit: PAGE_COUNT,
                ..VersionsWanted::default()
            };
            let page = self.list_versions(who, wanted).await?;
            let now = self.objects.env.clock.now().seconds;
            for entry in page.entries {
                let Listed::Object(version) = entry else {
                    continue;
                };
                let newer = match seen.take() {
                    Some(newer) if newer.version.key == version.key => Some(newer),
                    Some(last) => {
                        count += self.expire_marker(who, &last).await?;
                        None
                    }
                    None => None,
                };
                let (replaced, noncurrent) = match &newer {
                    Some(newer) => (newer.version.mtime.seconds, newer.noncurrent),
                    None => (version.mtime.seconds, 0),
                };
                let mut is_gone = false;
                if !version.is_latest {
                    let ends = |rule: &&LifecycleRule| {
                        let size = version.size_bytes;
                        rule.ends_version(&version.key, size, replaced, noncurrent, now)
                    };
                    let ends: Vec<_> = rules.iter().filter(ends).collect();
                    is_gone = self.expire_version(who, &version, &ends).await?;
                    count += u64::from(is_gone);
                }
                seen = Some(Seen {
                    noncurrent: noncurrent + u32::from(!version.is_latest && !is_gone),
                    is_alone: newer.is_none(),
                    version,
                });
            }
            match page.next {
                Some(next) => at = next,
                None => break,
            }
        }
        if let Some(last) = seen {
            count += self.expire_marker(who, &last).await?;
        }
        Ok(count)
    }

    async fn expire_version(
        &self,
        who: &Credentials,
        version: &ListedVersion,
        ends: &[&LifecycleRule],
    ) -> Result<bool, ObjectError> {
        let (key, id) = (&version.key, &version.version_id);
        if ends.is_empty() {
            return Ok(false);
        }
        let record = match self.version(who, key, id).await {
            Ok(info) => info.record,
            Err(ObjectError::NoVersion) => return Ok(false),
            Err(error) if is_another_s(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        if !ends.iter().any(|rule| rule.is_for(record.as_ref())) {
            return Ok(false);
        }
        match self.delete_version(who, key, id, false).await {
            Ok(_) => Ok(true),
            Err(ObjectError::Locked(_)) => Ok(false),
            Err(error) if is_another_s(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the last version of a key if it is a marker and there is no other.
    async fn expire_marker(&self, who: &Credentials, last: &Seen) -> Result<u64, ObjectError> {
        let Seen { version, .. } = last;
        let rules = &self.record.settings.lifecycle;
        let is_lone = version.is_marker && version.is_latest && last.is_alone;
        if !is_lone || !rules.iter().any(|rule| rule.ends_marker(&version.key)) {
            return Ok(0);
        }
        let (key, id) = (&version.key, &version.version_id);
        match self.delete_version(who, key, id, false).await {
            Ok(_) => Ok(1),
            Err(error) if is_another_s(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Whoever sends them: they are to be objects where the owner may remove objects.
    async fn expire_uploads(&self, owner: &Credentials) -> Result<u64, ObjectError> {
        let rules = &self.record.settings.lifecycle;
        if rules.iter().all(|rule| rule.abort_days.is_none()) {
            return Ok(0);
        }
        let who = &Credentials::ROOT;
        let now = self.objects.env.clock.now().seconds;
        let mut count = 0;
        for (id, upload) in self.uploads(who, "").await? {
            let is_over =
                |rule: &LifecycleRule| rule.aborts(&upload.key, upload.created_seconds, now);
            if rules.iter().any(is_over) {
                let path = KeyPath::parse(upload.key.as_bytes())?;
                match self.require_write(owner, &path).await {
                    Ok(()) => {}
                    Err(error) if is_another_s(&error) => continue,
                    Err(error) => return Err(error),
                }
                match self.abort_upload(who, &upload.key, &id).await {
                    Ok(()) => count += 1,
                    Err(ObjectError::NoUpload) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(count)
    }
}
