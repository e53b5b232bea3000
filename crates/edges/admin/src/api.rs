//! The JSON of the API. Byte counts are whole numbers of bytes; times are seconds since 1970 UTC.

use cairn_config::{
    AccessPattern, ClassChoice, Compression, CoolingDays, Dedupe, ExportRule, FilePatterns,
    MaintenanceWindow, MediaChoice, MinAge, Protection, ScrubEvery, SizeLimit, TierName, Tiering,
    VolumeName,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::warnings::WarningView;

/// Why a request failed, for programs. The message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is not valid: fix it.
    Invalid,
    /// The token is missing or wrong.
    Unauthorized,
    /// The user lacks the right to do this.
    Forbidden,
    /// The object does not exist.
    NotFound,
    /// The current state does not allow the request; the hint says what to do first.
    Conflict,
    /// Too many requests: wait as long as `Retry-After` says.
    TooMany,
    /// This server was built without the part that the request needs.
    NotSupported,
    /// Temporarily not possible: try again.
    Unavailable,
    /// A disk failed, or Cairn has a bug; the server's log has details.
    Internal,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    pub kind: ErrorKind,
    pub message: String,
    /// What to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// The health of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All disks serve, and all data has its protection.
    Healthy,
    /// Everything works, but the loss of a disk loses data: there is one disk, or one copy.
    NoRedundancy,
    /// Everything is served with less protection than it should have.
    Degraded,
    /// Some data cannot be served.
    Failed,
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Healthy => "healthy",
            Self::NoRedundancy => "NO REDUNDANCY",
            Self::Degraded => "DEGRADED",
            Self::Failed => "FAILED",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    pub health: Health,
    /// One line for people: the protection of data, and the problems.
    pub summary: String,
    /// Problems that need attention, the worst first. Empty: nothing needs to be done.
    pub warnings: Vec<WarningView>,
    pub pool: PoolView,
    pub nfs: NfsView,
    pub admin: AdminView,
    pub memory: MemoryView,
    pub disks: Vec<DiskView>,
    pub volumes: Vec<VolumeView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    pub id: String,
    pub created_seconds: i64,
    /// Layout of new data with the default protection: "4+2", "3 mirrors".
    pub protection: String,
    /// How many more disks can be lost now without loss of such data.
    pub disk_failures_tolerated: u32,
    /// How many nodes can be lost, instead of those disks, without loss of such data or of a volume's metadata. Only if the
    /// pool has disks on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_failures_tolerated: Option<u32>,
    /// Number of drives under the disks, and how many of them can be lost now without loss of such data. Only if several disks
    /// share a drive, and so are lost together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_failures_tolerated: Option<u32>,
    /// Raw bytes of all present disks. Disks that share a file system count its space once.
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Raw bytes reserved so that deletions and rebuilds work on a full pool.
    pub reserve_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NfsView {
    pub address: String,
    pub port: u16,
    pub rpcbind: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdminView {
    pub url: String,
}

/// The memory limit and its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryView {
    pub limit_bytes: u64,
    /// Memory that the process uses now.
    pub resident_bytes: u64,
    pub record_cache_limit_bytes: u64,
    pub record_cache_bytes: u64,
    pub dirty_limit_bytes: u64,
    pub dirty_bytes: u64,
    pub metadata_limit_bytes: u64,
    pub rest_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    Ok,
    /// Operations get no answer, now or a moment ago. The disk gets no new data if other disks are enough, and counts as lost.
    Unresponsive,
    /// Writes fail, now or a moment ago, as on a read-only file system. The disk counts as lost; its data is still read.
    Failing,
    /// The disk works again and receives the writes that it missed. It counts as lost until it has them.
    Returning,
    /// The disk was not found at the start.
    Missing,
    /// The disk is out of use: it failed too often, hung, or was too slow.
    Failed,
    /// Its data is being moved to other disks, so that it can be removed.
    Draining,
    /// The disk is empty, and can be removed.
    Drained,
}

impl DiskState {
    /// Whether protection counts the disk as lost.
    pub fn is_lost(self) -> bool {
        match self {
            Self::Ok | Self::Draining | Self::Drained => false,
            Self::Unresponsive | Self::Failing | Self::Returning | Self::Missing | Self::Failed => {
                true
            }
        }
    }
}

impl std::fmt::Display for DiskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unresponsive => "UNRESPONSIVE",
            Self::Failing => "FAILING",
            Self::Returning => "returning",
            Self::Missing => "MISSING",
            Self::Failed => "FAILED",
            Self::Draining => "draining",
            Self::Drained => "drained",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskView {
    pub id: String,
    /// Its folder.
    pub label: String,
    pub role: DiskRole,
    /// Device class: hdd, ssd or nvme; any if none is set.
    #[schema(value_type = String, example = "nvme")]
    #[serde(default)]
    pub media: MediaChoice,
    pub state: DiskState,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub full_errors: u64,
    pub checksum_errors: u64,
    /// Shards of all volumes on it.
    pub shards: u64,
    /// Volumes of this server whose log is written to it.
    pub logs: u64,
    /// Volumes of this server whose metadata state is in use on it.
    pub states: u64,
    /// The problem of the disk, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The role of a disk in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskRole {
    /// Data; also metadata if the pool has too few log devices.
    #[default]
    Data,
    /// Log device: only logs and metadata of volumes, for a disk that is faster than the others.
    Journal,
}

impl std::fmt::Display for DiskRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Journal => "journal",
        })
    }
}

/// A disk to add: an empty folder, by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskAdd {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    #[serde(default)]
    pub role: DiskRole,
    /// Device class: hdd, ssd, nvme, or any for none.
    #[schema(value_type = String, example = "nvme", pattern = "^(any|hdd|ssd|nvme)$")]
    #[serde(default)]
    pub media: MediaChoice,
    /// Accept a folder that was a Cairn disk, and delete its content.
    #[serde(default)]
    pub wipe: bool,
    /// Create the folder if it does not exist. Its parent folder must exist.
    #[serde(default)]
    pub create: bool,
}

/// The device of a folder on the server, for a check before the folder becomes a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskPlace {
    /// The path, with links resolved.
    pub path: String,
    /// Whether the folder exists. If not, the other fields describe its parent folder.
    pub exists: bool,
    /// The mounted device: "/dev/sdb1".
    pub device: String,
    /// The type of the file system: "xfs".
    pub file_system: String,
    /// The mount point; "/" is the root file system of the machine.
    pub mount_point: String,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Disks of this server on the same drive, which are lost together.
    pub shares_with: Vec<String>,
}

/// The replacement of a disk, with the same role and device class: an empty folder, by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskReplace {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    /// Accept a folder that was a Cairn disk, and delete its content.
    #[serde(default)]
    pub wipe: bool,
    /// Create the folder if it does not exist. Its parent folder must exist.
    #[serde(default)]
    pub create: bool,
}

/// The state of a read cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    Ok,
    /// The cache is being opened, and is in use once that is done.
    Opening,
    /// The cache could not be opened, and is not in use.
    NotOpen,
    /// The cache failed; the server retries it within a minute.
    LetAlone,
}

impl std::fmt::Display for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Opening => "opening",
            Self::NotOpen => "NOT OPEN",
            Self::LetAlone => "FAILING",
        })
    }
}

/// A read cache: a folder on a faster disk for data that is read often. Its loss loses no data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    pub id: String,
    pub path: String,
    /// Maximum size of the cache.
    pub size_bytes: u64,
    pub state: CacheState,
    /// Failed reads of the cache since the server started.
    pub errors: u64,
    /// Why the cache could not be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheList {
    pub caches: Vec<CacheView>,
    /// Sources of reads since the server started.
    #[serde(default)]
    pub reads: CacheReads,
}

/// Sources of the reads of all volumes of a server, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheReads {
    /// Bytes from a read cache.
    pub cache_bytes: u64,
    /// Bytes from disks of the pool.
    pub disk_bytes: u64,
    /// Records found in memory, and records not found there.
    pub memory_hits: u64,
    pub memory_misses: u64,
}

/// A read cache to create, in a folder by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheAdd {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    /// Maximum size of the cache, at least 256 MiB.
    #[schema(minimum = 268435456)]
    pub size_bytes: u64,
    /// Create the folder if it does not exist. Its parent folder must exist.
    #[serde(default)]
    pub create: bool,
}

/// Bytes of a volume on disks, protection included, whose policy asks for a device class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaBytes {
    /// The device class that the policy asks for.
    #[schema(value_type = String, example = "ssd")]
    pub wanted: MediaChoice,
    /// The device class of the disks that hold the bytes now. Bytes in another class move as soon as the wanted class has room.
    #[schema(value_type = String, example = "ssd")]
    pub on: MediaChoice,
    pub bytes: u64,
}

/// Changes of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// Drain the disk, or cancel its drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// Device class: hdd, ssd, nvme, or any for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "nvme", pattern = "^(any|hdd|ssd|nvme)$")]
    pub media: Option<MediaChoice>,
}

/// Moves and rebuilds of shards of draining and lost disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebuildView {
    /// Whether data is being moved or rebuilt now.
    pub running: bool,
    /// Rate limit in bytes per second; 0: no limit.
    pub rate_bytes_per_second: u64,
    /// Shards still to be moved from draining disks, or rebuilt from disks that are given up.
    pub shards_left: u64,
    pub bytes_left: u64,
    /// Work done since the server started.
    pub shards_moved: u64,
    pub segments_rewritten: u64,
    pub moved_bytes: u64,
    /// Processed bytes, including those of shards that are incomplete or being rebuilt.
    #[serde(default)]
    pub worked_bytes: u64,
    /// Bytes that could not be recovered from any disk.
    pub lost_bytes: u64,
    pub errors: u64,
    /// Estimate at the rate of the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Shards that are missing from their disks. Those whose segments survive the fewest further losses are rebuilt first.
    pub shards_missing: u64,
    /// Why there is no progress.
    pub problems: Vec<String>,
}

/// The rate limit of moves and rebuilds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildRate {
    /// 0: no limit.
    pub rate_bytes_per_second: u64,
}

/// The stage of the spread of data to emptier disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpreadStage {
    /// All disks of a device class are about equally full.
    #[default]
    Even,
    Moving,
    /// An operator paused it.
    Paused,
    /// The spread waits for the maintenance window.
    Resting,
    /// Disks are missing, or other data has to move first.
    Waiting,
    /// Disks are not equally full, but no shard of the answering node would be as safe elsewhere.
    Settled,
}

/// The spread of data to emptier disks, after disks or nodes were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpreadView {
    pub stage: SpreadStage,
    /// Whether an operator paused the spread, on all nodes of a cluster.
    pub paused: bool,
    /// When the awaited maintenance window opens. Left out: the spread waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until_seconds: Option<i64>,
    /// How full the emptiest and the fullest disk are, in thousandths, for the device class with the largest difference.
    pub least_permille: u64,
    pub most_permille: u64,
    /// Bytes on disks above the mean of their device class.
    pub excess_bytes: u64,
    /// Bytes that the answering node moved since its server started.
    pub moved_bytes: u64,
}

/// A request to pause or resume the spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpreadSet {
    /// Applies to all nodes of a cluster. Moves in progress are completed.
    pub paused: bool,
}

/// The stage of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubStage {
    /// No scrub was ever started.
    #[default]
    Never,
    Running,
    /// Paused by an operator; `start` resumes it.
    Paused,
    Done,
}

impl std::fmt::Display for ScrubStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Never => "never",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
        })
    }
}

/// A cluster, as seen by one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    pub cluster: String,
    pub id: String,
    /// The node that answers.
    pub node: String,
    /// Whether the answering node has a lease. Without a lease it owns no volume.
    pub has_lease: bool,
    pub nodes: Vec<ClusterNodeView>,
    pub volumes: Vec<ClusterVolumeView>,
    pub survives: ClusterSurvives,
    pub etcd: ClusterEtcdView,
    /// Problems that need attention, as in the answering node's status, the worst first. Empty: nothing needs to be done.
    pub warnings: Vec<WarningView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNodeView {
    pub id: String,
    pub name: String,
    /// Address for other nodes.
    pub internal: String,
    /// Address for clients.
    pub external: String,
    /// Whether the node has a lease.
    pub alive: bool,
    /// Whether the answering node reaches it.
    pub connected: bool,
    /// Whether the node requires encryption between nodes. Traffic between two nodes without this setting is not encrypted.
    pub internal_encryption: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub disks: Vec<ClusterDiskView>,
    /// Progress of the node's drain, if it is being drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<NodeDrainView>,
    /// Remaining seconds of the node's maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_seconds: Option<u64>,
    /// The node's share of the load; left out: 100, the default. A node with 0 owns no volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// The load of each node, and the moves that balance it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceView {
    pub nodes: Vec<BalanceNode>,
    /// Moves in the order in which they would be made. Empty: the load is balanced.
    pub moves: Vec<BalanceMove>,
    /// The move that was just made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<BalanceMove>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceNode {
    pub name: String,
    pub weight: u32,
    /// Whether the node takes volumes now: it is up, not draining, not in maintenance, and has disks and a weight above 0.
    pub takes: bool,
    /// Volumes that it owns.
    pub volumes: usize,
    /// How many open volumes the node's memory limit has room for, if the node reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_max: Option<u32>,
    /// The node's load, in percent of its share by weight. Open volumes and the work of clients are load.
    pub load_percent: u64,
    /// Work of clients on the node's volumes, averaged over some minutes.
    pub operations_per_second: u64,
    pub bytes_per_second: u64,
}

/// Why a volume should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BalanceReason {
    /// Its owner has more open volumes than its memory limit holds.
    Memory,
    /// Its owner has more volumes, by the nodes' weights.
    Count,
    /// Its owner has more work of clients.
    Work,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceShare {
    pub volumes: usize,
    /// The node's load, in percent of its share by weight.
    pub load_percent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceMove {
    pub volume: String,
    /// The nodes' names.
    pub from: String,
    pub to: String,
    pub reason: BalanceReason,
    /// Work of clients on the volume.
    pub operations_per_second: u64,
    pub bytes_per_second: u64,
    pub from_before: BalanceShare,
    pub from_after: BalanceShare,
    pub to_before: BalanceShare,
    pub to_after: BalanceShare,
}

/// What a draining node still has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDrainView {
    /// The node is empty, and can be removed.
    pub done: bool,
    /// The name of the replacement. The cluster then removes the drained node by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Segments with data on its disks, by the last reports of the volumes' owners.
    pub segments_left: u64,
    /// Bytes of these segments on its disks.
    pub bytes_left: u64,
    /// Left out while there is no estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Volumes that it still owns.
    pub volumes_owned: Vec<String>,
    /// Volumes with data, metadata or log files on its disks.
    pub volumes_left: Vec<String>,
    /// Whether it still runs an etcd member.
    pub etcd_member: bool,
    /// Why there is no progress.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterDiskView {
    pub id: String,
    pub label: String,
    /// ok, draining, unresponsive, failing, failed or missing.
    pub state: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolumeView {
    pub id: u32,
    pub name: String,
    /// The name of the owner; left out while the volume is being taken over.
    pub owner: Option<String>,
    pub epoch: u64,
    /// Copies of the log and metadata that a new owner needs, on nodes that are up. The volume survives the loss of one node less
    /// than this number.
    pub log_copies: usize,
    /// Copies that the log should have.
    #[serde(default)]
    pub log_copies_wanted: usize,
    /// While the volume has no owner: why nodes that tried could not take it over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Copies of the metadata state on nodes other than the owner.
    pub state_copies: usize,
    /// The address that follows the owner, if the volume has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<VolumeAddressView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAddressView {
    /// Address with prefix length: 10.0.0.9/24.
    pub address: String,
    /// The network interface; left out: the one in the address's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Why the owner does not hold the address; only the owner reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAddressSet {
    /// Address with prefix length: 10.0.0.9/24.
    #[schema(min_length = 9, max_length = 64)]
    pub address: String,
    /// The network interface, which has this name on each node; left out: the one in the address's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 15, pattern = r"^[!-.0-~]+$")]
    pub interface: Option<String>,
}

/// Further losses that the cluster survives, whichever nodes they hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterSurvives {
    /// How many nodes can be lost without loss of data.
    pub data_nodes: usize,
    /// How many nodes can be lost while the others still serve all volumes.
    pub service_nodes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEtcdView {
    /// Whether nodes of the cluster run etcd.
    pub own: bool,
    pub members: Vec<ClusterEtcdMember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEtcdMember {
    pub name: String,
    pub url: String,
    /// Why the member is not healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// Whether the node is drained.
    pub draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeMaintenance {
    /// Seconds of maintenance from now on. 0: maintenance ends.
    #[schema(maximum = 604800)]
    pub seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeWeight {
    /// The node's share of the load: 0 to 1000, by default 100. A node with 0 owns no volume.
    #[schema(maximum = 1000)]
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeReplace {
    /// The name of the replacement, a node that has joined.
    #[schema(min_length = 1, max_length = 255)]
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMove {
    /// The name of the new owner; left out: the cluster chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketCreate {
    /// Validity in seconds: 1 to 86,400.
    pub valid_seconds: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterBackup {
    /// The content of the copy, for a file. It contains hashes of passwords and tokens: keep it private.
    pub copy: String,
}

/// Hides the content.
impl std::fmt::Debug for ClusterBackup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterBackup(..)")
    }
}

/// The CA of the nodes' certificates, and the progress of its rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// The CA of the answering node's certificate: SHA-256 of the CA certificate, in hexadecimal digits.
    pub authority: String,
    /// The current rotation or the last one; left out if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<AuthorityRotation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityRotation {
    pub phase: AuthorityPhase,
    pub begun_seconds: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<i64>,
    /// Fingerprint of the old CA.
    pub old: String,
    /// Fingerprint of the new CA, once it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// The nodes that this phase waits for.
    pub waits_for: Vec<AuthorityWait>,
    /// Why the answering node cannot do its next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The phases of a rotation, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityPhase {
    /// A node creates the new CA.
    Make,
    /// All nodes begin to trust both CAs.
    Trust,
    /// All nodes get certificates from the new CA.
    Renew,
    /// All nodes drop the old CA.
    Drop,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityWait {
    /// The node's name.
    pub node: String,
    /// The node is away. The rotation waits until it is back or removed.
    pub away: bool,
    /// The step that the node has to do.
    pub what: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TicketView {
    /// The ticket, a secret with which one node can join.
    pub ticket: String,
}

/// Hides the ticket.
impl std::fmt::Debug for TicketView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketView(..)")
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubStart {
    /// Rate limit in bytes per second; 0: no limit; left out: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_second: Option<u64>,
    /// Restart from the beginning, even if a scrub is in progress.
    #[serde(default)]
    pub restart: bool,
}

/// The scrub schedule and the maintenance window; a field that is left out is cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubScheduleSet {
    /// Time from the start of one scrub to the start of the next, in hours or days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d", pattern = "^(([1-9][0-9]{0,3}|[1-3][0-9]{4}|4[0-2][0-9]{3}|43[0-8][0-9]{2}|439[01][0-9]|43920)h|([1-9][0-9]{0,2}|1[0-7][0-9]{2}|18[0-2][0-9]|1830)d)$")]
    pub every: Option<ScrubEvery>,
    /// Maintenance window: days and times of the week, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "sat:22:00-06:00", max_length = 1024, pattern = "^((daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?),)*(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?):([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)(,((daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?),)*(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?):([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00))*$")]
    pub window: Option<MaintenanceWindow>,
}

/// The scrub schedule and the maintenance window of a server, or of all nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubSchedule {
    /// Left out: there is no schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d")]
    pub every: Option<ScrubEvery>,
    /// Left out: there is no maintenance window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "sat:22:00-06:00")]
    pub window: Option<MaintenanceWindow>,
    /// Whether the window is open now; true without a window.
    pub is_open: bool,
    /// When the window opens. Left out: it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_seconds: Option<i64>,
    /// When the window closes. Left out: it is closed, or never closes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closes_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubView {
    pub stage: ScrubStage,
    /// Whether the schedule started this scrub.
    #[serde(default)]
    pub by_schedule: bool,
    /// When the awaited maintenance window opens. Left out: the scrub waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until_seconds: Option<i64>,
    /// When the schedule starts the next scrub, in a cluster on the first node. Left out: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_seconds: Option<i64>,
    pub started_seconds: i64,
    /// 0 until the scrub is done.
    pub finished_seconds: i64,
    pub rate_bytes_per_second: u64,
    /// Bytes read so far, and an estimate of the total.
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// Estimate at the rate so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    pub shards: u64,
    pub records: u64,
    /// Bytes of shards that were damaged or unreadable, and how many of them were repaired.
    pub wrong_bytes: u64,
    pub repaired_bytes: u64,
    pub shards_rebuilt: u64,
    pub shards_sealed: u64,
    /// Shards on missing disks, which were not checked.
    pub shards_away: u64,
    /// Unreadable places in files; `report` lists them.
    pub damaged: u64,
    /// Failures of the scrub itself.
    pub errors: u64,
    /// Nodes that do not answer; these numbers lack their part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<crate::joined::SilentNode>,
}

/// Unreadable bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubDamage {
    pub volume: String,
    pub inode: u64,
    /// All paths of the file from the root of the volume; empty if it has no name. Bytes that are not UTF-8 are shown as
    /// U+FFFD.
    pub paths: Vec<String>,
    pub start: u64,
    pub end: u64,
    pub detail: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubReport {
    pub scrub: ScrubView,
    /// Damage that was found and still exists, by volume and file.
    pub damaged: Vec<ScrubDamage>,
    /// Number of further places, beyond the list's limit.
    pub damaged_more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    pub id: u32,
    #[schema(value_type = String, example = "main")]
    pub name: VolumeName,
    #[schema(value_type = String, example = "+2n")]
    pub protection: Protection,
    /// Layout of the protection on the current pool: "4+2", "2 mirrors", "1 copy, NO REDUNDANCY".
    pub layout: String,
    pub disk_failures_tolerated: u32,
    /// How many nodes can be lost, instead of those disks, without loss of its data or metadata. Only if the pool has disks
    /// on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_failures_tolerated: Option<u32>,
    #[schema(value_type = String, example = "500 GiB")]
    pub size_limit: SizeLimit,
    /// Largest size to which the size limit grows automatically as the volume fills.
    #[schema(value_type = String, example = "2 TiB")]
    #[serde(default)]
    pub autogrow: SizeLimit,
    #[schema(value_type = String, example = "concurrent")]
    pub access_pattern: AccessPattern,
    #[schema(value_type = String, example = "lz4")]
    pub compression: Compression,
    #[schema(value_type = String, example = "off")]
    #[serde(default)]
    pub dedupe: Dedupe,
    /// Device class of its data, unless a directory's policy has another.
    #[schema(value_type = String, example = "ssd")]
    #[serde(default)]
    pub media: MediaChoice,
    /// Bytes whose policy asks for a device class, by the class that holds them. Not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media_bytes: Vec<MediaBytes>,
    /// Different protections of directories, or of data written there earlier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directory_protections: Vec<DirectoryProtection>,
    /// The class of service, or none.
    #[schema(value_type = String, example = "gold")]
    #[serde(default)]
    pub class: ClassChoice,
    /// The tier to which its cold data is offloaded, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiering: Option<VolumeTieringView>,
    /// Its use of its class, if it has a class and is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<crate::classes::RatesView>,
    pub created_seconds: i64,
    /// Whether it is served; otherwise `problem` says why.
    pub serving: bool,
    /// In a cluster: the name of the owner, if it is not the answering node. Usage comes from the owner; `problem` says if the
    /// owner does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Bytes of its files.
    pub used_bytes: u64,
    /// Bytes that its files could hold, as `df` shows.
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub inodes: u64,
    /// Number of visible snapshots, and the bytes (as stored, before parity) that only snapshots hold.
    pub snapshots: u64,
    pub snapshot_bytes: u64,
    /// Garbage: bytes (as stored, before parity) of data that was overwritten or deleted.
    #[serde(default)]
    pub garbage_bytes: u64,
    /// The part of the garbage that is being freed now; larger when no client has written for a minute.
    #[serde(default)]
    pub freeing_bytes: u64,
    /// Bytes that deduplication saved from being written, since the owner's server started.
    #[serde(default)]
    pub deduplicated_bytes: u64,
    pub exported: bool,
    /// The encryption of the volume.
    #[serde(default)]
    pub encryption: crate::keys::EncryptionView,
    /// The source of the volume, if it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<VolumeOrigin>,
}

/// A protection of directories of a volume, or of data that was written below them earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryProtection {
    #[schema(value_type = String, example = "3x")]
    pub protection: Protection,
    /// Layout of the protection on the current pool.
    pub layout: String,
    pub disk_failures_tolerated: u32,
}

/// Which data of a volume is offloaded to a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeTieringView {
    /// The name of the tier.
    pub tier: String,
    #[schema(value_type = String, example = "auto")]
    pub policy: Tiering,
    #[schema(value_type = String, example = "31")]
    pub cooling_days: CoolingDays,
    /// Only data of files whose names match,
    #[schema(value_type = String, example = "*.mp4,*.fastq.gz")]
    #[serde(default)]
    pub files: FilePatterns,
    /// that have at least this size,
    #[schema(value_type = String, example = "1 MiB")]
    #[serde(default)]
    pub min_size: SizeLimit,
    /// and were not changed for this long.
    #[schema(value_type = String, example = "30d")]
    #[serde(default)]
    pub min_age: MinAge,
    /// Bytes of the volume in the tier.
    pub remote_bytes: u64,
}

/// The source of a cloned volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeOrigin {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    /// The snapshot of that volume, which is kept while it has clones.
    pub snapshot: String,
    /// The source volume is deleted, except for data that its clones need. Its name may be in use again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

impl std::fmt::Display for VolumeOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suffix = if self.deleted { " (deleted)" } else { "" };
        write!(f, "{}@{}{suffix}", self.volume, self.snapshot)
    }
}

/// A volume clone to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCloneCreate {
    #[schema(value_type = String, example = "projects-test", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: VolumeName,
    /// The snapshot to clone; left out: the current state of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub snapshot: Option<String>,
}

/// A volume to create; a field that is left out has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    #[schema(value_type = String, example = "projects", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: VolumeName,
    /// Encrypt the volume's data; this cannot be changed later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypt: bool,
    #[serde(flatten)]
    pub settings: VolumeChange,
}

/// Settings of a volume to change; a field that is left out stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// default, none, +1n to +4n, 2x to 5x. A change applies to data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "+2n", pattern = r"^(default|none|\+[1-4]n|[2-5]x)$")]
    pub protection: Option<Protection>,
    /// none, or a size such as 500GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "500GiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    pub size_limit: Option<SizeLimit>,
    /// none, or the largest size to which the size limit grows automatically as the volume fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2TiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    pub autogrow: Option<SizeLimit>,
    /// concurrent, streaming or random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "streaming", pattern = "^(concurrent|streaming|random)$")]
    pub access_pattern: Option<AccessPattern>,
    /// none, lz4, zstd or zstd:LEVEL. A change applies to data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "lz4", pattern = "^(none|off|lz4|auto|zstd(:(1[0-9]|[1-9]))?)$")]
    pub compression: Option<Compression>,
    /// off, on (trust a 256-bit hash) or verify (read and compare first). A change applies to data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "on", pattern = "^(off|on|verify)$")]
    pub dedupe: Option<Dedupe>,
    /// Device class for data written from then on: any, hdd, ssd or nvme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "ssd", pattern = "^(any|hdd|ssd|nvme)$")]
    pub media: Option<MediaChoice>,
    /// none, or the name of a class of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "gold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub class: Option<ClassChoice>,
    /// The name of a tier, for cold data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub tier: Option<TierName>,
    /// none (data in the tier is promoted back), snapshot-only (cold data that only snapshots have is offloaded), auto (all cold
    /// data) or all (all data).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "auto", pattern = "^(none|snapshot-only|auto|all)$")]
    pub tiering: Option<Tiering>,
    /// Days without use after which data is cold, 2 to 183.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "31", pattern = "^([2-9]|[1-9][0-9]|1[0-7][0-9]|18[0-3])$")]
    pub cooling_days: Option<CoolingDays>,
    /// any, or name patterns separated by commas: with `tiering` auto or all, only data of matching files is offloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "*.mp4,*.fastq.gz", min_length = 1, max_length = 1024)]
    pub tier_files: Option<FilePatterns>,
    /// none, or the minimum size of such files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1MiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    pub tier_min_size: Option<SizeLimit>,
    /// none, or the minimum time since such files were changed, such as 12h or 30d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d", pattern = "^(none|([1-9][0-9]{0,4}|[1-7][0-9]{5}|8[0-6][0-9]{4}|87[0-7][0-9]{3}|878[0-3][0-9]{2}|878400)h|([1-9][0-9]{0,3}|[12][0-9]{4}|3[0-5][0-9]{3}|36[0-5][0-9]{2}|36600)d)$")]
    pub tier_min_age: Option<MinAge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// By name.
    pub volumes: Vec<VolumeView>,
    /// Number of matching volumes on all pages.
    pub total: usize,
    /// The `after` of the next page; left out on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    pub disks: Vec<DiskView>,
}

/// The clients that may mount a volume. Without rules no client may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportView {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub rules: Vec<ExportRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportList {
    pub exports: Vec<ExportView>,
}

/// Rules to set: each replaces the rule for the same client, if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSet {
    pub rules: Vec<ExportRule>,
}

/// The content of a server's ready file, for scripts and for `cairn` commands on its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyFile {
    pub pid: u32,
    /// The pool that it serves.
    pub pool: String,
    /// Its state folder, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<String>,
    pub nfs: NfsReady,
    pub admin: AdminView,
    /// The file with the token for the admin API.
    pub token_file: String,
    /// With HTTPS: the certificates to trust, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    pub volumes: Vec<VolumeName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsReady {
    pub address: String,
    pub port: u16,
}
