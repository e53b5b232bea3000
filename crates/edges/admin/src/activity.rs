//! What clients do now: JSON, routes, and what they ask of a node.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, absent, endpoints, get};
use crate::server::Table;

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
    /// Mean time from request to reply; for SCSI from the start of the command; for S3 to the start of the answer. `null`: no
    /// answer yet.
    pub latency_mean_microseconds: Option<f64>,
    /// The longest such time.
    pub latency_max_microseconds: Option<f64>,
}

/// One of the busiest clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientActivity {
    /// The client's address; for iSCSI, the initiator's name.
    #[schema(example = "10.0.0.7")]
    pub client: String,
    pub protocol: ActivityProtocol,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// Whether the figures are lower bounds: operations from before the client was among the busiest are not counted.
    pub lower_bound: bool,
}

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    File,
    /// A directory: operations on its names, and listings.
    Directory,
    Lun,
    /// An object, or a bucket.
    Object,
}

/// One of the busiest files, LUNs and objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileActivity {
    pub kind: FileKind,
    /// The path from the root of the volume, the LUN's name, or bucket and key. `null`: the file has no name now.
    #[schema(example = "/home/ann/video.mkv")]
    pub name: Option<String>,
    /// The inode number; left out for objects.
    pub inode: Option<u64>,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// Whether the figures are lower bounds: operations from before the file was among the busiest are not counted.
    pub lower_bound: bool,
}

/// Live metrics of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityView {
    #[schema(example = "main")]
    pub volume: String,
    /// Period of the rates: the last 5 to 10 seconds.
    pub seconds: f64,
    pub operations_per_second: f64,
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    /// Operations by kind, the most frequent first.
    pub operations: Vec<OperationActivity>,
    /// Up to 20 clients, those with most bytes first. An operation counts as at least 4 KiB.
    pub clients: Vec<ClientActivity>,
    /// Whether there are further, less busy clients.
    pub has_more_clients: bool,
    /// Up to 20 files, in the order of clients.
    pub files: Vec<FileActivity>,
    pub has_more_files: bool,
}

/// Live metrics of a volume, as totals of all clients.
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

endpoints! {
    /// Live metrics of each volume; in a cluster, the volumes of all nodes.
    ACTIVITY_LIST: Endpoint<(), (), ActivityList> = get("/api/v1/activity").list("volumes", &["volume"]).of_all_nodes();

    /// Live metrics of a volume: by operation, and for the busiest clients and files.
    ACTIVITY_SHOW: Endpoint<VolumeName, (), ActivityView> = get("/api/v1/volumes/{name}/activity");

}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn ActivityControl>(|node| {
            node.activity()
                .ok_or_else(|| absent("this server does not count what clients do"))
        })
        .on(ACTIVITY_LIST, |node, (), ()| node.activities())
        .on(ACTIVITY_SHOW, |node, volume, ()| node.activity(volume));
}
