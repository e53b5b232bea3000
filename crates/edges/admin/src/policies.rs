//! The JSON of policies of directories, and what the API asks of a node for them.

use cairn_config::{AccessPattern, Compression, Dedupe, MediaChoice, Protection, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// The policy of a directory for data of files below it. A setting that is left out is inherited from the nearest parent
/// directory that has it, or from the volume.
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
    /// Device class: any, hdd, ssd or nvme.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "ssd", pattern = "^(any|hdd|ssd|nvme)$")]
    pub media: Option<MediaChoice>,
    /// none, +1n to +4n, 2x to 5x, or default: how many lost disks the data survives.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "3x", pattern = r"^(default|none|\+[1-4]n|[2-5]x)$")]
    pub protection: Option<Protection>,
}

/// A policy to set; it replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySet {
    /// The directory's path from the root of the volume.
    #[schema(
        max_length = 4096,
        pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"
    )]
    pub path: String,
    pub policy: PolicySettings,
}

/// The effective policy for data that is written in a directory now.
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

/// A directory's own policy, and the effective one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    pub volume: String,
    /// The directory's path from the root of the volume, which is `/`.
    pub path: String,
    /// The directory's own policy; empty if it has none.
    pub policy: PolicySettings,
    pub in_force: PolicyInForce,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyList {
    pub policies: Vec<PolicyView>,
}

/// The data to convert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyStart {
    /// A directory's path from the root of the volume; `/` is the whole volume.
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

/// The progress of the conversion of existing data, or the result of the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyView {
    pub volume: String,
    /// The current path of the directory whose files are converted; `null` if it no longer exists.
    pub path: Option<String>,
    pub state: ApplyState,
    /// Start and end in seconds since 1970; the end is `null` while the conversion runs.
    pub began_seconds: u64,
    pub ended_seconds: Option<u64>,
    /// Visited inodes of the whole volume, and their number at the start.
    pub inodes: u64,
    pub inodes_all: u64,
    /// Visited files below the directory.
    pub files: u64,
    /// Bytes of these files, without holes.
    pub seen_bytes: u64,
    /// Bytes that were rewritten, because they were stored differently.
    pub rewritten_bytes: u64,
    /// Bytes that were deduplicated.
    pub shared_bytes: u64,
    /// Stored bytes of the replaced records, and of the new records; after compression, before parity.
    pub stored_bytes_before: u64,
    pub stored_bytes_after: u64,
    /// Parts of files that could not be read, or that clients changed meanwhile; the conversion left these unchanged.
    pub left: u64,
    /// Why the conversion is waiting; the server retries.
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
