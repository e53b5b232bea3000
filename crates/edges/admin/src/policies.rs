//! Policies of directories: JSON, routes, and what they ask of a node.

use cairn_config::{AccessPattern, Compression, Dedupe, MediaChoice, Protection, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::ErrorDetail;
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, DIRECTORY, DIRECTORY_CHARS_MAX, Endpoint, Parameters, Url, UrlParts, absent,
    any_text, delete, endpoints, get, post, put,
};
use crate::server::Table;

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

endpoints! {
    /// Lists the directories of a volume that have a policy.
    POLICY_LIST: Endpoint<VolumeName, (), PolicyList> = get("/api/v1/volumes/{name}/policies").list("policies", &["path"]);

    /// Sets or replaces the policy of a directory. It applies to data written from then on.
    POLICY_SET: Endpoint<VolumeName, PolicySet, PolicyView> = put("/api/v1/volumes/{name}/policies");

    /// Shows a directory's own settings and the effective ones.
    POLICY_SHOW: Endpoint<(VolumeName, DirectoryPath), (), PolicyView> = get("/api/v1/volumes/{name}/policy");

    /// Removes the policy of a directory. Existing data stays as it is stored.
    POLICY_CLEAR: Endpoint<(VolumeName, DirectoryPath), (), ()> = delete("/api/v1/volumes/{name}/policy");

    /// Shows the progress of the conversion of existing data, or the result of the last one.
    APPLY_SHOW: Endpoint<VolumeName, (), ApplyView> = get("/api/v1/volumes/{name}/policy/apply");

    /// Starts to convert existing data to its policies, in the background. The conversion continues after a restart.
    APPLY_START: Endpoint<VolumeName, ApplyStart, ApplyView> = post("/api/v1/volumes/{name}/policy/apply");

    /// Cancels the running conversion. Converted data stays converted.
    APPLY_CANCEL: Endpoint<VolumeName, (), ()> = delete("/api/v1/volumes/{name}/policy/apply");

}

/// A directory of a volume, by its path; without one the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPath(pub String);

impl Argument for DirectoryPath {
    fn describe(to: &mut Parameters) {
        let path = any_text().max_length(Some(DIRECTORY_CHARS_MAX));
        to.in_query("path", path.pattern(Some(DIRECTORY)));
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(&["path"])?;
        let path = query.values("path").last().map(str::to_owned);
        Ok(Self(path.unwrap_or_else(|| "/".to_owned())))
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask("path", &self.0);
        Ok(())
    }
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn PolicyControl>(|node| {
            node.policies()
                .ok_or_else(|| absent("this server has no policies"))
        })
        .on(POLICY_LIST, |node, volume, ()| node.policies(volume))
        .on(POLICY_SET, |node, volume, set| node.policy_set(volume, set))
        .on(POLICY_SHOW, |node, (volume, DirectoryPath(path)), ()| {
            node.policy(volume, path)
        })
        .on(POLICY_CLEAR, |node, (volume, DirectoryPath(path)), ()| {
            node.policy_clear(volume, path)
        })
        .on(APPLY_SHOW, |node, volume, ()| node.apply(volume))
        .on(APPLY_START, |node, volume, start| {
            node.apply_start(volume, start)
        })
        .on(APPLY_CANCEL, |node, volume, ()| node.apply_cancel(volume));
}
