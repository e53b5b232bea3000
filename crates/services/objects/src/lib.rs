//! Objects on files: a bucket is a directory of a volume, an object is a file.
//!
//! Owns: which buckets and keys there are and that they lie in the volume itself, what a key is as a path, the order of
//! listings, what an object has beside its bytes, the parts of uploads, and that an object is there whole or not at all.
//! Must not know: HTTP, signatures, XML.
//!
//! Everything acts with the user and group of the key on the modes of the files, so that files and objects have one truth
//! about rights. The next owner of the volume finds all of it.

#![forbid(unsafe_code)]

mod arrivals;
mod barred;
mod bucket;
mod checksums;
mod copy;
mod keeper;
mod lifecycle;
mod listing;
mod locks;
mod path;
mod records;
mod settings;
mod staging;
mod upload;
mod version_listing;
mod versions;
mod volume;

pub use arrivals::{Arrival, Facet, Ticket};
pub use barred::Barred;
pub use bucket::{Bucket, Condition, KeysWanted, ObjectInfo, Published};
pub use checksums::UploadChecksum;
pub use keeper::{NFS_VERSIONS_SECONDS, NFS_VERSIONS_SECONDS_DEFAULT};
pub use listing::{Listed, ListedObject, Listing, is_plain};
pub use locks::{LockMode, Retention};
pub use path::{KeyPath, PathError};
pub use records::{
    AccessKey, BucketRecord, ObjectError, ObjectRecord, PartInfo, Permission, UploadInfo,
};
pub use settings::{
    BucketSettings, CORS_RULE_COUNT_MAX, CorsRule, DefaultRetention, LIFECYCLE_RULE_COUNT_MAX,
    LifecycleRule, ObjectLock, Website,
};
pub use staging::Staged;
pub use upload::{Completion, StagedPart, WantedPart};
pub use version_listing::{ListedVersion, VersionListing, VersionsWanted};
pub use versions::{NO_VERSION, Removed, Versioning};
pub use volume::{KeySpec, Objects};

/// Longest key of an object, in bytes.
pub const KEY_LEN_BYTES_MAX: usize = 1024;
/// Buckets of one volume.
pub const BUCKET_COUNT_MAX: usize = 1000;
/// Access keys of one volume.
pub const ACCESS_KEY_COUNT_MAX: usize = 1000;
/// Parts of an upload are numbered from 1 to this.
pub const PART_NUMBER_MAX: u32 = 10_000;
/// Smallest part of an upload, but for the last.
pub const PART_LEN_BYTES_MIN: u64 = 5 << 20;
/// User metadata of an object: names and values together, in bytes.
pub const META_LEN_BYTES_MAX: usize = 2048;
pub const TAG_COUNT_MAX: usize = 10;
