//! The JSON of policies of directories, and what the API asks of a node for them.

use cairn_config::{AccessPattern, Compression, Dedupe, MediaChoice, Protection, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// What a directory says about data of files below it; what it leaves out is said by the next directory above it that does,
/// or by the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySettings {
    /// none (or off), lz4, zstd, zstd:LEVEL or auto.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "zstd:3", pattern = "^(none|off|lz4|auto|zstd(:(1[0-9]|[1-9]))?)$")]
    pub compression: Option<Compression>,
    /// off, on or verify.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "on", pattern = "^(off|on|verify)$")]
    pub dedupe: Option<Dedupe>,
    /// concurrent, streaming or random.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "streaming", pattern = "^(concurrent|streaming|random)$")]
    pub access_pattern: Option<AccessPattern>,
    /// any, hdd, ssd or nvme: the kind of disks that it lives on.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "ssd", pattern = "^(any|hdd|ssd|nvme)$")]
    pub media: Option<MediaChoice>,
    /// none, +1n to +4n, 2x to 5x, or default: how many disks may be lost.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "3x", pattern = r"^(default|none|\+[1-4]n|[2-5]x)$")]
    pub protection: Option<Protection>,
}

/// A policy to set, in the place of one that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySet {
    /// From the root of the volume.
    #[schema(
        max_length = 4096,
        pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"
    )]
    pub path: String,
    pub policy: PolicySettings,
}

/// What holds for data that is written in a directory now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyInForce {
    #[schema(value_type = String, example = "zstd:3")]
    pub compression: Compression,
    #[schema(value_type = String, example = "on")]
    pub dedupe: Dedupe,
    #[schema(value_type = String, example = "streaming")]
    pub access_pattern: AccessPattern,
    #[schema(value_type = String, example = "ssd")]
    pub media: MediaChoice,
    #[schema(value_type = String, example = "+2n")]
    pub protection: Protection,
}

/// What a directory says, and what holds there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    pub volume: String,
    /// From the root of the volume, which is `/`.
    pub path: String,
    /// What the directory says itself; nothing if it has no policy.
    pub policy: PolicySettings,
    pub in_force: PolicyInForce,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyList {
    pub policies: Vec<PolicyView>,
}

/// Whose data is to be converted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyStart {
    /// A directory, from the root of the volume; `/` is all of it.
    #[schema(
        max_length = 4096,
        pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"
    )]
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ApplyState {
    Running,
    Done,
    Cancelled,
}

impl ApplyState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How the conversion of existing data stands that is under way, or how the last one ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyView {
    pub volume: String,
    /// The directory whose files are converted, where it is now; `null` if it is not there any more.
    pub path: Option<String>,
    pub state: ApplyState,
    /// In seconds since 1970; the end is `null` while it is running.
    pub began_seconds: u64,
    pub ended_seconds: Option<u64>,
    /// Inodes of the whole volume that were looked at, of so many at the beginning.
    pub inodes: u64,
    pub inodes_all: u64,
    /// Files below the directory that were looked at.
    pub files: u64,
    /// Their bytes, without holes,
    pub seen_bytes: u64,
    /// those that were written anew, because they were stored in another way,
    pub rewritten_bytes: u64,
    /// and those that refer to the same bytes elsewhere now.
    pub shared_bytes: u64,
    /// What the records took that were replaced, and what those take that were written; after compression, before parity.
    pub stored_bytes_before: u64,
    pub stored_bytes_after: u64,
    /// Parts of files that could not be read, or changed meanwhile: they are as they were, or as clients wrote them.
    pub left: u64,
    /// Why it does not go on just now; it is tried again.
    pub waits_for: Option<String>,
}

/// What a node does with policies of directories.
pub trait PolicyControl: Send + Sync {
    fn policies(&self, volume: VolumeName) -> Answer<'_, PolicyList>;
    fn policy(&self, volume: VolumeName, path: String) -> Answer<'_, PolicyView>;
    fn policy_set(&self, volume: VolumeName, set: PolicySet) -> Answer<'_, PolicyView>;
    fn policy_clear(&self, volume: VolumeName, path: String) -> Answer<'_, ()>;
    fn apply(&self, volume: VolumeName) -> Answer<'_, ApplyView>;
    fn apply_start(&self, volume: VolumeName, start: ApplyStart) -> Answer<'_, ApplyView>;
    fn apply_cancel(&self, volume: VolumeName) -> Answer<'_, ()>;
}
