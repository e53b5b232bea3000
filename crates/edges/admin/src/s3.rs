//! The JSON of buckets and access keys, and what the API asks of a node for them.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// Longest note of an access key, and longest prefix that one is for, in characters.
pub const NOTE_CHARS_MAX: usize = 4096;
pub const PREFIX_CHARS_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketView {
    pub name: String,
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    /// The directory below the volume's root when the bucket was made.
    pub path: String,
    pub created_seconds: i64,
    /// `enabled` or `suspended`; absent: no versions were ever kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versioning: Option<String>,
    /// Versions are kept of what changes over NFS, too, while versioning is enabled: of each file one in so many seconds at most
    /// while it is changed again and again. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs_versions_seconds: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketList {
    pub buckets: Vec<BucketView>,
}

/// A bucket to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BucketCreate {
    #[schema(
        min_length = 3,
        max_length = 63,
        pattern = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"
    )]
    pub name: String,
    #[schema(value_type = String, example = "main", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volume: VolumeName,
    /// The directory that it is, which may be there; one of the bucket's name if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: Option<String>,
    /// Whose the directories are that are made.
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
}

/// What to change of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BucketSet {
    /// Whether versions are kept of what changes over NFS. Versioning must be enabled for that.
    pub nfs_versions: bool,
    /// Changes of a file within so many seconds are one; 1 to 86400 [default: as it is, or 60].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400)]
    pub nfs_versions_seconds: Option<u32>,
}

/// What an access key may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PermissionView {
    #[schema(
        min_length = 3,
        max_length = 63,
        pattern = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"
    )]
    pub bucket: String,
    /// Only what begins with it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 1024)]
    pub prefix: String,
}

/// An access key; the secret is told once, when it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessKeyView {
    pub id: String,
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub read_only: bool,
    /// Empty: all buckets of the volume.
    pub only: Vec<PermissionView>,
    pub note: String,
    pub created_seconds: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessKeyList {
    pub keys: Vec<AccessKeyView>,
}

/// An access key to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessKeyCreate {
    #[schema(value_type = String, example = "main", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volume: VolumeName,
    pub uid: u32,
    pub gid: u32,
    #[serde(default)]
    pub groups: Vec<u32>,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub only: Vec<PermissionView>,
    #[serde(default)]
    #[schema(max_length = 4096)]
    pub note: String,
}

/// What a node does with buckets and access keys.
pub trait S3Control: Send + Sync {
    fn buckets(&self) -> Answer<'_, Vec<BucketView>>;
    fn bucket_create(&self, create: BucketCreate) -> Answer<'_, BucketView>;
    fn bucket_set(&self, name: String, set: BucketSet) -> Answer<'_, BucketView>;
    /// With `keep` the directory stays as it is.
    fn bucket_delete(&self, name: String, keep: bool) -> Answer<'_, ()>;
    fn access_keys(&self) -> Answer<'_, Vec<AccessKeyView>>;
    fn access_key_create(&self, create: AccessKeyCreate) -> Answer<'_, AccessKeyView>;
    fn access_key_revoke(&self, id: String) -> Answer<'_, ()>;
}
