//! The JSON of what changes: numbers of now, and those kept of before; and what the API asks of a node for them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{Health, MemoryView, PoolView};
use crate::control::Answer;
use crate::endpoint::{Endpoint, endpoints, get};
use crate::joined::SilentNode;
use crate::rebuild::RebuildView;
use crate::scrub::ScrubView;
use crate::warnings::WarningView;

/// Live metrics of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveView {
    /// The server's clock.
    pub now_seconds: i64,
    /// Changes when the server restarts.
    pub pid: u32,
    pub version: String,
    pub uptime_seconds: u64,
    pub health: Health,
    pub summary: String,
    pub warnings: Vec<WarningView>,
    pub pool: PoolView,
    pub memory: MemoryView,
    pub rebuild: RebuildView,
    pub scrub: ScrubView,
    pub disk_count: u64,
    /// Disks that are neither missing nor failed.
    pub disks_working: u64,
    pub volume_count: u64,
    /// The node's name in its cluster, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Parts that this server was built without: `plan`, `benchmarks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_parts: Vec<String>,
    /// The id of the latest event; changes with each new event.
    #[serde(default)]
    pub last_event_id: u64,
    /// Values of the last seconds, by series name. In a cluster, values of all nodes combined, unless the request names one node.
    /// All other fields are those of the answering node.
    pub numbers: Vec<LiveNumber>,
    /// Nodes that did not answer, whose values are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentNode>,
}

/// One server-sent event of the stream, as its fields are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveEvent {
    pub event: LiveEventKind,
    /// JSON: a `LiveView` in an event `live`, an `ErrorBody` in an event `problem`.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LiveEventKind {
    /// The server as it is.
    Live,
    /// Why it cannot be said how the server is; the stream goes on.
    Problem,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveNumber {
    pub name: String,
    pub value: f64,
    #[serde(default)]
    pub across: HistoryAcross,
}

/// How the values of several nodes become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryAcross {
    /// Their sum.
    #[default]
    Sum,
    /// The greatest: the slowest node's latency.
    Greatest,
    /// The mean of those that know one.
    Mean,
    /// Any: all nodes say the same, or one alone knows it.
    Any,
}

/// How several values of a series become one, when less is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    /// Their mean.
    Mean,
    /// The greatest.
    Max,
    /// The last.
    Last,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistorySeriesName {
    /// Ends with the unit, and with what it is about after a colon: `disk_free_bytes:ID`.
    #[schema(example = "nfs_read_bytes_per_second")]
    pub name: String,
    pub kind: HistoryKind,
    #[serde(default)]
    pub across: HistoryAcross,
}

/// The kept series. In a cluster `series` has the names of all nodes, and the rest is of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryList {
    pub series: Vec<HistorySeriesName>,
    /// What it takes on disk, and how much that may be.
    pub stored_bytes: u64,
    pub stored_bytes_max: u64,
    /// The first time of which anything is kept; `null` if nothing is yet.
    pub first_seconds: Option<i64>,
    /// The folder that it is in.
    pub folder: String,
    /// Why nothing is written at the moment, if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistorySeries {
    pub name: String,
    pub kind: HistoryKind,
    #[serde(default)]
    pub across: HistoryAcross,
    /// One for each step; `null` where nothing is known.
    pub values: Vec<Option<f64>>,
}

/// Values over time, in steps of the same length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryView {
    /// The beginning of the first step, a multiple of its length.
    pub from_seconds: i64,
    pub step_seconds: u64,
    pub steps: u64,
    /// In a cluster those of all nodes in one, unless one node's are asked for.
    pub series: Vec<HistorySeries>,
    /// Nodes that did not answer, whose values are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentNode>,
}

/// A mount that a client told of, and did not take back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountView {
    /// The client's address.
    pub client: String,
    #[schema(example = "/main")]
    pub path: String,
}

/// Mounts of NFS, as far as clients say: one that is gone without a word stays in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountList {
    /// Oldest first.
    pub mounts: Vec<MountView>,
}

endpoints! {
    /// Lists mounts, as reported by clients.
    MOUNT_LIST: Endpoint<(), (), MountList> = get("/api/v1/nfs/mounts").list("mounts", &["client", "path"]);
}

/// A question to the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    pub series: Vec<String>,
    pub from_seconds: i64,
    pub to_seconds: i64,
    /// Steps at most.
    pub points: u64,
}

/// What a node does about numbers over time.
pub trait LiveControl: Send + Sync {
    /// The server as it is now; a client that asks more often than every second may get an equal answer again.
    fn live(&self) -> Answer<'_, LiveView>;
    fn mounts(&self) -> Answer<'_, Vec<MountView>>;
    fn history_list(&self) -> Answer<'_, HistoryList>;
    fn history(&self, query: HistoryQuery) -> Answer<'_, HistoryView>;
}
