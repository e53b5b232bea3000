//! The JSON of tiers, and what the API asks of a node for them.

use cairn_config::{CoolingDays, FilePatterns, MinAge, SizeLimit, TierName, Tiering, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// A tier to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierAdd {
    #[schema(value_type = String, example = "cold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: TierName,
    /// s3://BUCKET/PREFIX?region=NAME, az://CONTAINER/PREFIX?account=NAME, gs://BUCKET/PREFIX, each with &endpoint=URL if need
    /// be, or file:///PATH. No credentials.
    #[schema(
        example = "s3://archive/cairn?region=eu-west-1",
        min_length = 1,
        max_length = 1024
    )]
    pub url: String,
    /// A file on the server with the credentials, which its owner alone can read; left out: the environment of the server,
    /// or the machine's own identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, pattern = r"^/")]
    pub credentials_file: Option<String>,
}

/// A tier, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierView {
    #[schema(value_type = String, example = "cold")]
    pub name: TierName,
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<String>,
    pub created_seconds: i64,
    /// Whether it answers; if not, `problem` says why.
    pub working: bool,
    /// What went wrong last, if nothing went right since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Objects with data, and the bytes of data in them.
    pub objects: u64,
    pub bytes: u64,
    /// What of these bytes is still in use.
    pub live_bytes: u64,
    /// What they would take on the disks, parity and copies included.
    pub saved_bytes: u64,
    /// What the bytes cost in a month at the list price of S3 Standard in the region of the address, in US cents, without
    /// requests and traffic; left out where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month_cents: Option<u64>,
    /// When that price was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "2026-03-03")]
    pub price_date: Option<String>,
    /// Objects that nothing refers to, which are to be deleted.
    pub unused_objects: u64,
    /// Deleted volumes whose objects are being deleted.
    pub deleted_volumes: u64,
    /// Requests since the server was started, and those of them that failed.
    pub reads: u64,
    pub writes: u64,
    pub deletes: u64,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Answers that were not what was written.
    pub wrong: u64,
    pub volumes: Vec<TierVolumeView>,
}

/// A volume that has, or had, data in a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierVolumeView {
    #[schema(value_type = String, example = "main")]
    pub name: VolumeName,
    #[schema(value_type = String, example = "auto")]
    pub tiering: Tiering,
    #[schema(value_type = String, example = "31")]
    pub cooling_days: CoolingDays,
    /// Of files with such names, of this size or more, that were not changed for so long.
    #[schema(value_type = String, example = "*.mp4,*.fastq.gz")]
    #[serde(default)]
    pub files: FilePatterns,
    #[schema(value_type = String, example = "1 MiB")]
    #[serde(default)]
    pub min_size: SizeLimit,
    #[schema(value_type = String, example = "30d")]
    #[serde(default)]
    pub min_age: MinAge,
    /// Whether it is served here; if not, the numbers are not known.
    pub serving: bool,
    /// In a cluster, the name of the node that owns it, if that is another one: that one knows the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub objects: u64,
    pub bytes: u64,
    pub live_bytes: u64,
    /// Segments that went there, and parts of files that came back for being read again and again, since it was opened.
    pub sent_segments: u64,
    pub promoted_parts: u64,
    /// Bytes that were copied into segments of cold data since it was opened, because their files go and others stay.
    #[serde(default)]
    pub gathered_bytes: u64,
    /// Segments that could not be sent or brought back lately.
    pub resting_segments: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierList {
    pub tiers: Vec<TierView>,
}

/// Where a check of a tier goes on; left out: it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierCheck {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "main", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volume: Option<VolumeName>,
    /// The number of a segment of that volume.
    #[serde(default)]
    pub segment: u64,
}

/// What a step of a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierChecked {
    /// Bytes that were read and are what was written.
    pub bytes: u64,
    /// What is wrong, missing, or could not be read.
    pub problems: Vec<String>,
    /// What to send next; left out: that was all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<TierCheck>,
}

/// What a node does with tiers.
pub trait TierControl: Send + Sync {
    fn tiers(&self) -> Answer<'_, Vec<TierView>>;
    fn tier(&self, name: TierName) -> Answer<'_, TierView>;
    fn tier_add(&self, add: TierAdd) -> Answer<'_, TierView>;
    /// Removes one that nothing is in.
    fn tier_remove(&self, name: TierName) -> Answer<'_, ()>;
    /// Reads an object that is in it, and compares it with its checksums.
    fn tier_check(&self, name: TierName, from: TierCheck) -> Answer<'_, TierChecked>;
}
