//! The JSON of what clients do now, and what the API asks of a node for it.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActivityProtocol {
    Nfs,
    Iscsi,
    S3,
}

impl ActivityProtocol {
    /// As people write it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Nfs => "NFS",
            Self::Iscsi => "iSCSI",
            Self::S3 => "S3",
        }
    }
}

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationActivity {
    pub protocol: ActivityProtocol,
    /// A procedure of NFS, a command of SCSI, a method of HTTP.
    #[schema(example = "read")]
    pub operation: String,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// From the request to its reply; of SCSI commands, from when they began; of S3, to the beginning of the answer. `null`: none
    /// was answered yet.
    pub latency_mean_microseconds: Option<f64>,
    /// The longest of this time.
    pub latency_max_microseconds: Option<f64>,
}

/// One of the clients that do most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientActivity {
    /// An address; of iSCSI, the initiator's name.
    #[schema(example = "10.0.0.7")]
    pub client: String,
    pub protocol: ActivityProtocol,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// It may do more: what it did before it was among those that do most was not counted.
    pub lower_bound: bool,
}

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    File,
    /// What is done with names in it, and its listing.
    Directory,
    Lun,
    /// An object, or a bucket.
    Object,
}

/// One of the files, LUNs and objects for which most is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileActivity {
    pub kind: FileKind,
    /// The path from the root of the volume; the LUN's name; bucket and key. `null`: it has no name any more.
    #[schema(example = "/home/ann/video.mkv")]
    pub name: Option<String>,
    /// Its number, unless it is an object.
    pub inode: Option<u64>,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// There may be more: what was done before it was among these was not counted.
    pub lower_bound: bool,
}

/// What clients do with a volume now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityView {
    #[schema(example = "main")]
    pub volume: String,
    /// Over how long the rates are: the last 5 to 10 seconds.
    pub seconds: f64,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// All kinds that there were, the most frequent first.
    pub operations: Vec<OperationActivity>,
    /// Up to 20, those that move most first. An operation counts as 4 KiB at least.
    pub clients: Vec<ClientActivity>,
    /// There are others, which do less.
    pub has_more_clients: bool,
    /// Up to 20, in the same order.
    pub files: Vec<FileActivity>,
    pub has_more_files: bool,
}

/// What clients do with one volume, all together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeActivity {
    #[schema(example = "main")]
    pub volume: String,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityList {
    pub volumes: Vec<VolumeActivity>,
}

/// What a node knows of what clients do.
pub trait ActivityControl: Send + Sync {
    fn activity(&self, volume: VolumeName) -> Answer<'_, ActivityView>;
    /// Of the volumes that are served here.
    fn activities(&self) -> Answer<'_, ActivityList>;
}
