//! Buckets and access keys: JSON, routes, and what they ask of a node.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{
    Endpoint, absent, create, delete, endpoints, get, patch, switches, text, texts_in_path,
};
use crate::server::Table;

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

endpoints! {
    /// Lists all buckets of all volumes.
    BUCKET_LIST: Endpoint<(), (), BucketList> = get("/api/v1/buckets").list("buckets", &["name"]).of_all_nodes();

    /// Creates a bucket on a new or existing directory.
    BUCKET_CREATE: Endpoint<(), BucketCreate, BucketView> = create("/api/v1/buckets");

    /// Changes a bucket, except settings that belong to S3 clients.
    BUCKET_SET: Endpoint<BucketName, BucketSet, BucketView> = patch("/api/v1/buckets/{bucket}");

    /// Deletes an empty bucket and its directory; with `keep=true` deletes only the bucket and keeps the directory.
    BUCKET_DELETE: Endpoint<(BucketName, Keep), (), ()> = delete("/api/v1/buckets/{bucket}");

    /// Lists all access keys of all volumes, without their secrets.
    KEY_LIST: Endpoint<(), (), AccessKeyList> = get("/api/v1/s3/keys").list("keys", &["id"]).of_all_nodes();

    /// Creates an access key. Only this answer has its secret.
    KEY_CREATE: Endpoint<(), AccessKeyCreate, AccessKeyView> = create("/api/v1/s3/keys");

    /// Revokes an access key, at once. 409 with the kind `conflict`: the volume has no room to store that. The key is refused until the server
    /// restarts or another node takes over the volume; repeat the request once the volume has room.
    KEY_REVOKE: Endpoint<AccessKeyId, (), ()> = delete("/api/v1/s3/keys/{id}");

}

texts_in_path! {
    /// A bucket, by its name.
    BucketName, text(3, 63).pattern(Some("^[a-z0-9][a-z0-9.-]*[a-z0-9]$")), "no bucket has the name in the path";
    /// An access key, by its id.
    AccessKeyId, text(1, 128), "no access key has the id in the path";
}

switches! {
    /// Keep the directory of the bucket.
    Keep = "keep";
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn S3Control>(|node| {
            node.s3()
                .ok_or_else(|| absent("this server has no buckets"))
        })
        .on(BUCKET_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(BucketList {
                    buckets: node.buckets().await?,
                })
            })
        })
        .on(BUCKET_CREATE, |node, (), create| node.bucket_create(create))
        .on(BUCKET_SET, |node, BucketName(name), set| {
            node.bucket_set(name, set)
        })
        .on(BUCKET_DELETE, |node, (BucketName(name), Keep(keep)), ()| {
            node.bucket_delete(name, keep)
        })
        .on(KEY_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(AccessKeyList {
                    keys: node.access_keys().await?,
                })
            })
        })
        .on(KEY_CREATE, |node, (), create| {
            node.access_key_create(create)
        })
        .on(KEY_REVOKE, |node, AccessKeyId(id), ()| {
            node.access_key_revoke(id)
        });
}
