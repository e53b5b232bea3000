//! What a bucket is set to.
//!
//! Owns: the settings, which are kept with the bucket, and what they say. Must not know: XML.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_codec_s3::Policy;
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrival;
use crate::locks::LockMode;
use crate::records::{ObjectError, ObjectRecord, encode};
use crate::versions::Versioning;
use crate::volume::Objects;

const DAY_SECONDS: i64 = 24 * 60 * 60;
/// Most bytes of a bucket's record: an extended attribute holds it.
const BUCKET_LEN_BYTES_MAX: usize = 60 << 10;
pub const CORS_RULE_COUNT_MAX: usize = 100;
pub const LIFECYCLE_RULE_COUNT_MAX: usize = 1000;

/// All of them; what is not set is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BucketSettings {
    /// Everybody may list it (the ACL `public-read`).
    #[serde(skip_serializing_if = "is_false")]
    pub public_read: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// As it was put; it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cors: Vec<CorsRule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lifecycle: Vec<LifecycleRule>,
    /// `None`: no versions were ever kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versioning: Option<Versioning>,
    /// Since when versions were kept at first, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versioned_since_seconds: Option<i64>,
    /// Versions are kept of what others than S3 change or remove, too, while they are of what S3 does; changes of a file within
    /// so many seconds are one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs_versions_seconds: Option<u32>,
    /// Versions can be locked; so they are kept, always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<ObjectLock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub website: Option<Website>,
}

/// What browsers are shown of a bucket: an index of each directory, or another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Website {
    /// The name that is shown of a directory.
    pub index: String,
    /// The key that is shown where there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect_host: Option<String>,
    /// `http` or `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect_protocol: Option<String>,
}

/// That versions can be locked, and how new ones are without being asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectLock {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultRetention>,
}

/// How long a new version is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultRetention {
    pub mode: LockMode,
    /// A year has 365.
    pub days: u32,
    /// It was told in years.
    #[serde(default)]
    pub in_years: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Which pages of other servers may use the bucket, in browsers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorsRule {
    pub id: Option<String>,
    /// With one star at most each.
    pub origins: Vec<String>,
    pub methods: Vec<String>,
    pub headers: Vec<String>,
    pub exposed: Vec<String>,
    pub max_age_seconds: Option<i32>,
}

/// Whether a text is like a pattern with at most one star.
fn is_like(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => {
            text.len() >= before.len() + after.len()
                && text.starts_with(before)
                && text.ends_with(after)
        }
    }
}

impl CorsRule {
    /// Whether a page of `origin` may send such a request.
    pub fn allows(&self, origin: &str, method: &str, headers: &[String]) -> bool {
        let is_header = |header: &String| {
            let header = header.to_ascii_lowercase();
            let is = |allowed: &String| is_like(&allowed.to_ascii_lowercase(), &header);
            self.headers.iter().any(is)
        };
        self.origins.iter().any(|allowed| is_like(allowed, origin))
            && self.methods.iter().any(|allowed| allowed == method)
            && headers.iter().all(is_header)
    }
}

/// When objects go by themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LifecycleRule {
    pub id: Option<String>,
    pub is_enabled: bool,
    pub prefix: String,
    /// All of them must be there.
    pub tags: BTreeMap<String, String>,
    pub larger_than_bytes: Option<u64>,
    pub smaller_than_bytes: Option<u64>,
    /// So long after they were put.
    pub days: Option<u32>,
    /// From then on.
    pub date_seconds: Option<i64>,
    /// Uploads that are not complete so long after they began.
    pub abort_days: Option<u32>,
    /// Versions so long after they were replaced.
    pub noncurrent_days: Option<u32>,
    /// But not so many of the newest of them.
    pub noncurrent_kept: Option<u32>,
    /// Markers without any version.
    pub lone_markers: bool,
}

impl LifecycleRule {
    /// Whether an object of this age is to go, by all but its tags.
    pub fn ends(&self, key: &str, size_bytes: u64, put_seconds: i64, now_seconds: i64) -> bool {
        let is_old = |days: u32| {
            now_seconds.saturating_sub(put_seconds) >= i64::from(days).saturating_mul(DAY_SECONDS)
        };
        self.is_enabled
            && key.starts_with(&self.prefix)
            && self.larger_than_bytes.is_none_or(|than| size_bytes > than)
            && self.smaller_than_bytes.is_none_or(|than| size_bytes < than)
            && (self.days.is_some_and(is_old)
                || self.date_seconds.is_some_and(|date| now_seconds >= date))
    }

    /// Whether a version is to go that was replaced then, with so many newer ones that were, too. By all but its tags.
    pub fn ends_version(
        &self,
        key: &str,
        size_bytes: u64,
        replaced_seconds: i64,
        newer: u32,
        now_seconds: i64,
    ) -> bool {
        let is_old = |days: u32| {
            let age = now_seconds.saturating_sub(replaced_seconds);
            age >= i64::from(days).saturating_mul(DAY_SECONDS)
        };
        self.is_enabled
            && key.starts_with(&self.prefix)
            && self.larger_than_bytes.is_none_or(|than| size_bytes > than)
            && self.smaller_than_bytes.is_none_or(|than| size_bytes < than)
            && self.noncurrent_kept.is_none_or(|kept| newer >= kept)
            && self.noncurrent_days.is_some_and(is_old)
    }

    /// Whether a marker is to go that no version is left of.
    pub fn ends_marker(&self, key: &str) -> bool {
        self.is_enabled && self.lone_markers && key.starts_with(&self.prefix)
    }

    /// Whether the tags are those it is for.
    pub fn is_for(&self, record: Option<&ObjectRecord>) -> bool {
        let has = |(key, value): (&String, &String)| {
            let tags = record.map(|record| &record.tags);
            tags.and_then(|tags| tags.get(key)) == Some(value)
        };
        self.tags.iter().all(has)
    }

    /// Whether an upload is given up.
    pub fn aborts(&self, key: &str, begun_seconds: i64, now_seconds: i64) -> bool {
        let is_old = |days: u32| {
            now_seconds.saturating_sub(begun_seconds) >= i64::from(days).saturating_mul(DAY_SECONDS)
        };
        self.is_enabled && key.starts_with(&self.prefix) && self.abort_days.is_some_and(is_old)
    }
}

impl BucketSettings {
    /// From now on versions are kept, or no more.
    pub fn keep_versions(&mut self, versioning: Versioning, now_seconds: i64) {
        self.versioning = Some(versioning);
        self.versioned_since_seconds.get_or_insert(now_seconds);
    }

    /// Whether versions are kept of what others than S3 change.
    pub fn keeps_changes(&self) -> bool {
        self.versioning == Some(Versioning::Enabled) && self.nfs_versions_seconds.is_some()
    }

    /// The policy, which could be read when it was put.
    pub fn policy(&self, bucket: &str) -> Result<Option<Policy>, ObjectError> {
        let text = self.policy.as_deref();
        Ok(text.map(|text| Policy::parse(text, bucket)).transpose()?)
    }
}

impl Objects {
    /// Changes a setting of a bucket: what `arrival` is of. Durable when answered; it holds from then on.
    pub async fn set_bucket(
        self: &Arc<Self>,
        name: &str,
        arrival: &Arrival,
        change: impl FnOnce(&mut BucketSettings) + Send,
    ) -> Result<(), ObjectError> {
        let due = arrival.due().await?;
        let _turn = self.change_turn().await;
        let mut record = self.bucket(name)?.record;
        change(&mut record.settings);
        if encode(&record)?.len() > BUCKET_LEN_BYTES_MAX {
            return Err(ObjectError::Invalid(format!(
                "the settings of a bucket have at most {BUCKET_LEN_BYTES_MAX} bytes in total"
            )));
        }
        self.keep_bucket(name, record).await?;
        due.done();
        self.settings_changed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_and_headers_are_like_patterns() {
        let rule = CorsRule {
            origins: vec![
                "https://*.example.org".to_owned(),
                "http://exact".to_owned(),
            ],
            methods: vec!["GET".to_owned()],
            headers: vec!["x-amz-*".to_owned(), "Content-Type".to_owned()],
            ..CorsRule::default()
        };
        let allows = |origin: &str, method: &str, headers: &[&str]| {
            let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
            rule.allows(origin, method, &headers)
        };
        assert!(allows("https://www.example.org", "GET", &[]));
        assert!(allows(
            "http://exact",
            "GET",
            &["X-Amz-Date", "content-type"]
        ));
        assert!(!allows("http://www.example.org", "GET", &[]));
        assert!(!allows("https://example.org", "GET", &[]));
        assert!(!allows("http://exact", "PUT", &[]));
        assert!(!allows("http://exact", "GET", &["authorization"]));
    }

    #[test]
    fn objects_go_when_their_time_has_come() {
        let rule = LifecycleRule {
            is_enabled: true,
            prefix: "logs/".to_owned(),
            larger_than_bytes: Some(10),
            days: Some(2),
            abort_days: Some(1),
            ..LifecycleRule::default()
        };
        let day = DAY_SECONDS;
        assert!(rule.ends("logs/a", 11, 0, 2 * day));
        assert!(!rule.ends("logs/a", 11, 0, 2 * day - 1));
        assert!(!rule.ends("other", 11, 0, 9 * day));
        assert!(!rule.ends("logs/a", 10, 0, 9 * day));
        assert!(rule.aborts("logs/a", 0, day) && !rule.aborts("logs/a", 1, day));
        let off = LifecycleRule {
            is_enabled: false,
            ..rule.clone()
        };
        assert!(!off.ends("logs/a", 11, 0, 9 * day) && !off.aborts("logs/a", 0, 9 * day));
        let dated = LifecycleRule {
            days: None,
            date_seconds: Some(100),
            ..rule
        };
        assert!(dated.ends("logs/a", 11, 99, 100) && !dated.ends("logs/a", 11, 0, 99));
        let tagged = LifecycleRule {
            tags: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
            ..dated
        };
        let record = |value: &str| ObjectRecord {
            tags: BTreeMap::from([("a".to_owned(), value.to_owned())]),
            ..ObjectRecord::default()
        };
        assert!(tagged.is_for(Some(&record("1"))));
        assert!(!tagged.is_for(Some(&record("2"))) && !tagged.is_for(None));
    }
}
