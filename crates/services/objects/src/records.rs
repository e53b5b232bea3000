//! Records of buckets, keys, objects and uploads, and how they are written (docs/reference/formats/objects.md).

use std::collections::BTreeMap;

use cairn_base::{Ino, Timestamp};
use cairn_codec_s3::PolicyError;
use cairn_fs::{Attr, Credentials, FsError, KeptSecret, SecretError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checksums::UploadChecksum;
use crate::locks::Retention;
use crate::path::PathError;
use crate::settings::BucketSettings;

/// Of every record.
pub(crate) const VERSION: u32 = 1;
const BUCKET_NAME_LEN: std::ops::RangeInclusive<usize> = 3..=63;

/// Why something about objects was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("there is no bucket {0}")]
    NoBucket(String),
    #[error("there is no object with that key")]
    NoObject,
    #[error("that version is a delete marker, which has no data")]
    Marker,
    #[error("the object has no version with that id")]
    NoVersion,
    #[error("{0}")]
    Locked(&'static str),
    #[error(
        "the bucket has no object lock; object lock is enabled at creation, or on a bucket with versioning"
    )]
    NoLock,
    #[error("bucket {0} has no versioning, so it cannot keep versions of changes over NFS")]
    NoVersioning(String),
    #[error("there is no upload with that id")]
    NoUpload,
    #[error("there is no access key {0}")]
    NoAccessKey(String),
    #[error("bucket {0} exists")]
    BucketExists(String),
    #[error(
        "directory {0} belongs to another user, so this access key cannot create a bucket on it"
    )]
    NotOwner(String),
    #[error("bucket {0} is not empty")]
    BucketNotEmpty(String),
    #[error("{0}")]
    Path(#[from] PathError),
    /// `a` beside `a/b`.
    #[error(
        "a part of the key is an object, which cannot contain keys; or other keys are below this key, which therefore cannot be an object"
    )]
    InTheWay,
    #[error("the object does not meet the condition of the request")]
    Precondition,
    #[error("a newer request changed the object during this request")]
    Late,
    /// Nothing of it is done: it may be one of those that are [`Self::Late`].
    #[error(
        "too many other objects changed during this request to know whether newer requests changed this one"
    )]
    Unordered,
    #[error("a part is missing, or differs from the uploaded part")]
    WrongPart,
    #[error("the checksum of the request does not match the parts")]
    Checksum,
    #[error("the parts are not in ascending order")]
    PartOrder,
    #[error("a part before the last is smaller than 5 MiB")]
    PartTooSmall,
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("{0}")]
    Invalid(String),
    #[error("the secret of access key {id} cannot be used: {error}")]
    Secret { id: String, error: SecretError },
    /// A key that was revoked is in its volume still: see [`crate::Barred`].
    #[error(
        "access key {id} is refused by this server from now on, but this is not stored ({error}): the key is valid again if the server restarts, or another node takes over the volume, before the volume takes changes"
    )]
    RevokedHere { id: String, error: FsError },
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("the volume's record of {0} cannot be read: {1}")]
    Damaged(String, String),
}

/// A bucket: a directory that has a name for S3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRecord {
    pub version: u32,
    pub directory: Ino,
    /// The path of the directory when the bucket was made, for people.
    pub path: String,
    pub created_seconds: i64,
    #[serde(default)]
    pub settings: BucketSettings,
}

/// What a key may do with a bucket, or with what begins with a prefix in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    pub bucket: String,
    #[serde(default)]
    pub prefix: String,
}

/// A pair of an access key's name and its secret, for a user of the volume.
///
/// The secret itself is kept, and no digest of it: the check of a signature makes the same signature (AWS Signature
/// Version 4). With a master key it is wrapped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    pub version: u32,
    pub secret: KeptSecret,
    pub uid: u32,
    pub gid: u32,
    #[serde(default)]
    pub groups: Vec<u32>,
    #[serde(default)]
    pub read_only: bool,
    /// Empty: all buckets of the volume, and it may make and delete buckets.
    #[serde(default)]
    pub only: Vec<Permission>,
    #[serde(default)]
    pub note: String,
    pub created_seconds: i64,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey")
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .field("read_only", &self.read_only)
            .field("only", &self.only)
            .finish_non_exhaustive()
    }
}

impl AccessKey {
    pub fn credentials(&self) -> Credentials {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            request: None,
        }
    }

    /// Whether it may use what begins with `prefix` in a bucket.
    pub fn may_use(&self, bucket: &str, prefix: &str) -> bool {
        let is_in = |only: &Permission| only.bucket == bucket && prefix.starts_with(&only.prefix);
        self.only.is_empty() || self.only.iter().any(is_in)
    }

    /// Whether it may use anything of a bucket.
    pub fn may_see(&self, bucket: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only.bucket == bucket)
    }
}

/// What an object has beside its bytes. It holds as long as the file is what was put.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    pub version: u32,
    /// Without quotes: the MD5 of the bytes; for an upload in parts that of the parts' MD5s, and their count.
    pub etag: String,
    pub size_bytes: u64,
    pub mtime_seconds: i64,
    pub mtime_nanos: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Other headers that are given back: `cache-control` and the like.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// By algorithm, in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checksums: BTreeMap<String, String>,
    /// The checksums are of the parts' checksums.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_composite: bool,
    /// Everybody may read it (the ACL `public-read`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_read: bool,
    /// Lengths of the parts, if it came in parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u64>,
    /// The number of the upload that it was completed of: a client that completes it again is told of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// Its number, if the bucket kept versions when it was put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// It is no object: it says that there is none any more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_marker: bool,
    /// The user who put a marker there, whose it is; the file of one is root's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marked_by: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// It stays, whatever its retention says.
    #[serde(default, skip_serializing_if = "is_false")]
    pub legal_hold: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ObjectRecord {
    /// Notes which file it is about.
    pub(crate) fn of_file(self, size_bytes: u64, mtime: Timestamp) -> Self {
        Self {
            version: VERSION,
            size_bytes,
            mtime_seconds: mtime.seconds,
            mtime_nanos: mtime.nanos,
            ..self
        }
    }

    pub(crate) fn mtime(&self) -> Timestamp {
        Timestamp::new(self.mtime_seconds, self.mtime_nanos)
    }

    /// Whether the file's bytes are still those that were put.
    pub(crate) fn is_of(&self, attr: &Attr) -> bool {
        self.size_bytes == attr.size_bytes && self.mtime() == attr.mtime
    }
}

/// An upload in parts that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadInfo {
    pub version: u32,
    /// The directory that objects of the bucket are below: a bucket can be deleted and made again.
    pub directory: Ino,
    pub bucket: String,
    pub key: String,
    pub uid: u32,
    pub created_seconds: i64,
    pub object: ObjectRecord,
    /// What the object is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<UploadChecksum>,
}

/// What a part has beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartRecord {
    pub etag: String,
    /// By algorithm, in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checksums: BTreeMap<String, String>,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartInfo {
    pub number: u32,
    pub size_bytes: u64,
    pub etag: String,
    pub checksums: BTreeMap<String, String>,
    pub mtime: Timestamp,
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, ObjectError> {
    serde_json::to_vec(record)
        .map_err(|error| ObjectError::Invalid(format!("this cannot be kept: {error}")))
}

pub(crate) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ObjectError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ObjectError::Damaged(what.to_owned(), error.to_string()))
}

/// Checks the name of a bucket (S3 User Guide, "Bucket naming rules").
pub(crate) fn check_bucket_name(name: &str) -> Result<(), ObjectError> {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let bytes = name.as_bytes();
    let fits = BUCKET_NAME_LEN.contains(&bytes.len())
        && bytes.iter().copied().all(is_plain)
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && !name.contains("..")
        && name.parse::<std::net::Ipv4Addr>().is_err();
    match fits {
        true => Ok(()),
        false => Err(ObjectError::Invalid(format!(
            "\"{name}\" is no name of a bucket: 3 to 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::locks::LockMode;
    use crate::settings::{CorsRule, DefaultRetention, LifecycleRule, ObjectLock, Website};
    use crate::versions::{FolderRecord, Versioning};

    const DOCS: &str = include_str!("../../../../docs/reference/formats/objects.md");

    /// The example under a heading of the page, and the tables under it.
    fn documented(heading: &str) -> (Value, &'static str) {
        let (_, section) = DOCS
            .split_once(&format!("\n## {heading}\n"))
            .unwrap_or_else(|| panic!("the page has no heading {heading}"));
        let section = section.split("\n## ").next().unwrap_or_default();
        let (_, behind) = section.split_once("```json\n").expect("no example");
        let (example, tables) = behind.split_once("```").expect("the example has no end");
        let example = serde_json::from_str(example).expect("the example is no JSON");
        (example, tables)
    }

    /// Whether the tables have each field of an example. Several fields can share a row.
    fn check_fields(name: &str, example: &Value, tables: &str) {
        let first_cells = tables.lines().filter_map(|line| line.split('|').nth(1));
        let named: Vec<&str> = first_cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect();
        let fields = example.as_object().expect("the example is no object");
        for field in fields.keys().filter(|field| *field != "version") {
            let is_named = named.contains(&field.as_str());
            assert!(is_named, "{name}: no row for {field}");
        }
    }

    /// The page's example is `full`, which has a value in each field, and the page has a row for each of these.
    #[track_caller]
    fn check_page<T>(heading: &str, full: &T)
    where
        T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let (example, tables) = documented(heading);
        let written: Value = serde_json::from_slice(&encode(full).unwrap()).unwrap();
        assert_eq!(written, example, "{heading}: other than on the page");
        let read: T = decode(heading, example.to_string().as_bytes()).unwrap();
        assert_eq!(read, *full, "{heading}");
        check_fields(heading, &example, tables);
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    fn full_settings() -> BucketSettings {
        BucketSettings {
            public_read: true,
            tags: map(&[("team", "archive")]),
            policy: Some(r#"{"Statement":[]}"#.to_owned()),
            cors: vec![CorsRule {
                id: Some("web".to_owned()),
                origins: vec!["https://*.example.org".to_owned()],
                methods: vec!["GET".to_owned()],
                headers: vec!["x-amz-*".to_owned()],
                exposed: vec!["ETag".to_owned()],
                max_age_seconds: Some(600),
            }],
            lifecycle: vec![LifecycleRule {
                id: Some("old".to_owned()),
                is_enabled: true,
                prefix: "logs/".to_owned(),
                tags: map(&[("keep", "no")]),
                larger_than_bytes: Some(1),
                smaller_than_bytes: Some(1 << 20),
                days: Some(30),
                date_seconds: None,
                abort_days: Some(7),
                noncurrent_days: Some(90),
                noncurrent_kept: Some(3),
                lone_markers: true,
            }],
            versioning: Some(Versioning::Enabled),
            versioned_since_seconds: Some(1_795_644_400),
            nfs_versions_seconds: Some(60),
            lock: Some(ObjectLock {
                default: Some(DefaultRetention {
                    mode: LockMode::Governance,
                    days: 365,
                    in_years: true,
                }),
            }),
            website: Some(Website {
                index: "index.html".to_owned(),
                error: Some("404.html".to_owned()),
                redirect_host: Some("www.example.org".to_owned()),
                redirect_protocol: Some("https".to_owned()),
            }),
        }
    }

    fn full_object() -> ObjectRecord {
        ObjectRecord {
            version: VERSION,
            etag: "9b2cf535f27731c974343645a3985328-2".to_owned(),
            size_bytes: 5_242_881,
            mtime_seconds: 1_795_644_390,
            mtime_nanos: 5,
            content_type: Some("image/png".to_owned()),
            headers: map(&[("cache-control", "no-store")]),
            meta: map(&[("camera", "one")]),
            tags: map(&[("keep", "yes")]),
            checksums: map(&[("crc32c", "yZRlqg==-2")]),
            is_composite: true,
            public_read: true,
            parts: vec![5_242_880, 1],
            upload_id: Some("00112233445566778899aabbccddeeff".to_owned()),
            version_id: Some("e7160f2c3b5a0000ffffffff00000001".to_owned()),
            is_marker: true,
            marked_by: Some(1000),
            retention: Some(Retention {
                mode: LockMode::Compliance,
                until_seconds: 1_827_180_390,
            }),
            legal_hold: true,
        }
    }

    #[test]
    fn records_are_written_as_their_page_says() {
        let bucket = BucketRecord {
            version: VERSION,
            directory: Ino(4711),
            path: "/projects/photos".to_owned(),
            created_seconds: 1_795_644_390,
            settings: full_settings(),
        };
        check_page("Bucket", &bucket);
        let (example, tables) = documented("Bucket");
        check_fields("settings", &example["settings"], tables);
        let key = AccessKey {
            version: VERSION,
            secret: KeptSecret::Readable("readable".to_owned()),
            uid: 1000,
            gid: 100,
            groups: vec![27],
            read_only: true,
            only: vec![Permission {
                bucket: "photos".to_owned(),
                prefix: "2026/".to_owned(),
            }],
            note: "backup".to_owned(),
            created_seconds: 1_795_644_390,
        };
        check_page("Access key", &key);
        check_page("Object", &full_object());
        let upload = UploadInfo {
            version: VERSION,
            directory: Ino(4711),
            bucket: "photos".to_owned(),
            key: "2026/one.png".to_owned(),
            uid: 1000,
            created_seconds: 1_795_644_390,
            object: ObjectRecord {
                content_type: Some("image/png".to_owned()),
                ..ObjectRecord::default()
            },
            checksum: Some(UploadChecksum {
                algorithm: "crc32c".to_owned(),
                is_composite: true,
            }),
        };
        check_page("Upload", &upload);
        let part = PartRecord {
            etag: "9e107d9d372bb6826bd81d3542a419d6".to_owned(),
            checksums: map(&[("crc32c", "yZRlqg==")]),
        };
        check_page("Part", &part);
        let folder = FolderRecord {
            directory: Ino(4711),
            uid: 1000,
            gid: 100,
            mode: 0o1777,
        };
        check_page("Directory of versions", &folder);
    }

    /// The page says "left out" of a field exactly if an object without it is written without it.
    #[test]
    fn the_page_says_what_is_left_out_of_an_object() {
        let (example, tables) = documented("Object");
        let written = serde_json::to_value(ObjectRecord::default()).unwrap();
        for field in example.as_object().unwrap().keys() {
            let name = format!("`{field}`");
            let is_row = |line: &&str| {
                let first = line.split('|').nth(1);
                first.is_some_and(|cell| cell.contains(&name))
            };
            let row = tables.lines().find(is_row).unwrap_or_default();
            let said = row.to_lowercase().contains("left out");
            assert_eq!(said, written.get(field).is_none(), "{field}: {row}");
        }
    }

    #[test]
    fn bucket_names_are_those_of_s3() {
        for (name, want) in [
            ("abc", true),
            ("my-bucket.2", true),
            ("ab", false),
            ("Abc", false),
            ("a_b", false),
            ("-abc", false),
            ("abc-", false),
            ("a..b", false),
            ("192.168.0.1", false),
        ] {
            assert_eq!(check_bucket_name(name).is_ok(), want, "{name}");
        }
        assert!(check_bucket_name(&"a".repeat(63)).is_ok());
        assert!(check_bucket_name(&"a".repeat(64)).is_err());
    }

    #[test]
    fn a_key_may_use_what_it_was_made_for() {
        let key = |only: &[(&str, &str)]| AccessKey {
            version: VERSION,
            secret: KeptSecret::Readable("hidden".to_owned()),
            uid: 1,
            gid: 1,
            groups: Vec::new(),
            read_only: false,
            only: only
                .iter()
                .map(|(bucket, prefix)| Permission {
                    bucket: (*bucket).to_owned(),
                    prefix: (*prefix).to_owned(),
                })
                .collect(),
            note: String::new(),
            created_seconds: 0,
        };
        assert!(key(&[]).may_use("any", ""));
        let one = key(&[("a", "x/")]);
        assert!(one.may_use("a", "x/y") && one.may_see("a"));
        assert!(!one.may_use("a", "x") && !one.may_use("b", "x/") && !one.may_see("b"));
        assert!(!format!("{one:?}").contains("hidden"));
    }
}
