//! The JSON of the API. Byte counts are whole numbers of bytes; times are seconds since 1970 UTC.

use cairn_config::{
    AccessPattern, ClassChoice, Compression, CoolingDays, Dedupe, ExportRule, FilePatterns,
    MaintenanceWindow, MediaChoice, MinAge, Protection, ScrubEvery, SizeLimit, TierName, Tiering,
    VolumeName,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::warnings::WarningView;

/// Why a request was not done, for programs. The text beside it is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request makes no sense: fix it.
    Invalid,
    /// No token, or not this server's.
    Unauthorized,
    /// Known, but without the right to do it.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The state of things forbids it; the hint says what to do first.
    Conflict,
    /// Too often: wait for as long as `Retry-After` says.
    TooMany,
    /// Not now: try again.
    Unavailable,
    /// A disk failed or Cairn has a bug; the server's log says more.
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

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// How the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All disks serve and data is protected as set.
    Healthy,
    /// All is well, but a lost disk would be lost data: there is only one, or one copy.
    NoRedundancy,
    /// Everything is served; some protection is lost.
    Degraded,
    /// Something cannot be served.
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
    /// One line for people: how data is protected, and what is wrong.
    pub summary: String,
    /// What needs attention, the worst first. Empty: nothing needs to be done.
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
    /// How new data of a volume with the default protection is stored: "4+2", "3 mirrors".
    pub protection: String,
    /// Disks that can be lost now without losing such data: those that are lost already are not among them.
    pub disk_failures_tolerated: u32,
    /// Nodes that can be lost, instead of those disks, without losing such data or a volume's metadata. Only if the pool
    /// has disks on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_failures_tolerated: Option<u32>,
    /// Drives that bear the disks, and how many of them can be lost now without losing such data. Only where several disks are on
    /// one drive, which are lost together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_failures_tolerated: Option<u32>,
    /// Raw bytes of the disks that are there. Disks on one file system have its space once.
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Raw bytes kept back, so that deleting and rebuilding work on a full pool.
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
    /// What the process has now.
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
    /// It does not answer, or did not a moment ago: nothing new is put on it where others are enough, and it counts as lost.
    Unresponsive,
    /// Writes to it fail, as on a file system that is read-only, or failed a moment ago. It counts as lost; what is on it is read.
    Failing,
    /// It works again, and is given what it missed. It counts as lost until it has that.
    Returning,
    /// Not there at start.
    Missing,
    /// There, but it failed too often, hung or was too slow: no longer used.
    Failed,
    /// It leaves: its data is moved to other disks.
    Draining,
    /// Nothing is on it any more; it can be removed.
    Drained,
}

impl DiskState {
    /// Whether it is not counted on: as far as protection goes it is not there.
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
    /// What kind of device it is, as far as somebody said: hdd, ssd or nvme; else any.
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
    /// Shards that the volumes have on it.
    pub shards: u64,
    /// Volumes whose log is written to it, of those that this server serves.
    pub logs: u64,
    /// Volumes whose metadata is worked with on it, of those that this server serves.
    pub states: u64,
    /// What is wrong with it, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What a disk of the pool is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskRole {
    /// Data; and metadata, where there are too few journal disks.
    #[default]
    Data,
    /// Logs and metadata of volumes, and nothing else: for disks that are faster than the others.
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
    /// What kind of device it is: hdd, ssd or nvme; any says nothing.
    #[schema(value_type = String, example = "nvme", pattern = "^(any|hdd|ssd|nvme)$")]
    #[serde(default)]
    pub media: MediaChoice,
    /// Take it although it was a disk of Cairn's, and delete what is on it.
    #[serde(default)]
    pub wipe: bool,
    /// Make the folder if it does not exist. The folder that it is in has to be there.
    #[serde(default)]
    pub create: bool,
}

/// What a folder of the server's machine is on, which is to become a disk: to be looked at before it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskPlace {
    /// Where it is, with links followed.
    pub path: String,
    /// Whether the folder is there. What else is said of it is of the folder that it would be in then.
    pub exists: bool,
    /// What is mounted there: "/dev/sdb1".
    pub device: String,
    /// The kind of file system: "xfs".
    pub file_system: String,
    /// Where that is mounted; "/" is the file system of the machine itself.
    pub mount_point: String,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Disks of the pool on this server that are on the same drive: they are lost together.
    pub shares_with: Vec<String>,
}

/// A disk that takes the place of another, in its role and of its kind: an empty folder, by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskReplace {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    /// Take it although it was a disk of Cairn's, and delete what is on it.
    #[serde(default)]
    pub wipe: bool,
    /// Make the folder if it does not exist. The folder that it is in has to be there.
    #[serde(default)]
    pub create: bool,
}

/// How a read cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    Ok,
    /// It is used once it is open.
    Opening,
    /// It could not be opened, and is not used.
    NotOpen,
    /// It failed, and is tried again within a minute.
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

/// A folder on a faster disk, in which a server keeps what is read often. Nothing is lost with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    pub id: String,
    pub path: String,
    /// What it takes of its disk at most.
    pub size_bytes: u64,
    pub state: CacheState,
    /// Pieces that could not be read since the server started.
    pub errors: u64,
    /// Why it is not open, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheList {
    pub caches: Vec<CacheView>,
    /// Where the server had what was read from, since it started.
    #[serde(default)]
    pub reads: CacheReads,
}

/// Where reads of all volumes that a server serves came from, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheReads {
    /// Bytes that a read cache had.
    pub cache_bytes: u64,
    /// Bytes that were read from disks of the pool.
    pub disk_bytes: u64,
    /// Records that were in memory, and those that were not.
    pub memory_hits: u64,
    pub memory_misses: u64,
}

/// A read cache to make, in a folder by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheAdd {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    /// What it may take of that disk, at least 256 MiB.
    #[schema(minimum = 268435456)]
    pub size_bytes: u64,
    /// Make the folder if it does not exist. The folder that it is in has to be there.
    #[serde(default)]
    pub create: bool,
}

/// Bytes of a volume on disks, protection included, that are to live on one kind of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaBytes {
    /// The kind that is asked for.
    #[schema(value_type = String, example = "ssd")]
    pub wanted: MediaChoice,
    /// The kind that they are on now. What is elsewhere moves as soon as there is room.
    #[schema(value_type = String, example = "ssd")]
    pub on: MediaChoice,
    pub bytes: u64,
}

/// What to change about a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// Move its data to the other disks, or stop doing that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// What kind of device it is: hdd, ssd or nvme; any says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "nvme", pattern = "^(any|hdd|ssd|nvme)$")]
    pub media: Option<MediaChoice>,
}

/// Moving and rebuilding of shards from draining disks or are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebuildView {
    /// Whether something is being moved now.
    pub running: bool,
    /// Bytes per second that are moved at most; 0: no limit.
    pub rate_bytes_per_second: u64,
    /// Shards that still are on draining disks, or were on disks that are given up.
    pub shards_left: u64,
    pub bytes_left: u64,
    /// Done since the server started.
    pub shards_moved: u64,
    pub segments_rewritten: u64,
    pub moved_bytes: u64,
    /// Bytes that were begun with, part by part: also those of shards that are not whole yet, or are made anew.
    #[serde(default)]
    pub worked_bytes: u64,
    /// Bytes that could not be had from anywhere.
    pub lost_bytes: u64,
    pub errors: u64,
    /// Time that the rest takes at the speed of the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Shards that cannot be read where they should be, by how many more their segment can lose: those
    /// with the least come first.
    pub shards_missing: u64,
    /// Why it does not go on, if it does not.
    pub problems: Vec<String>,
}

/// How fast shards are moved and rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildRate {
    /// 0: no limit.
    pub rate_bytes_per_second: u64,
}

/// Where the moving of data to emptier disks stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpreadStage {
    /// All disks of a kind are about equally full.
    #[default]
    Even,
    Moving,
    /// An operator paused it.
    Paused,
    /// It waits for the maintenance window.
    Resting,
    /// Disks are away, or data has to move for other reasons first.
    Waiting,
    /// Disks are not equally full, and the node that answers has no shard that would be as safe elsewhere.
    Settled,
}

/// Data that moves to emptier disks, after disks or nodes were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpreadView {
    pub stage: SpreadStage,
    /// Whether an operator paused it, on all nodes of a cluster.
    pub paused: bool,
    /// When the maintenance window opens that it waits for. Left out: it does not wait for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until_seconds: Option<i64>,
    /// The share in use of the emptiest disk and of the fullest, in thousandths: of the kind of disks that are furthest apart.
    pub least_permille: u64,
    pub most_permille: u64,
    /// Bytes that disks have above the mean share of their kind.
    pub excess_bytes: u64,
    /// Moved since the server started, of the volumes that the node that answers serves.
    pub moved_bytes: u64,
}

/// Whether data moves to emptier disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpreadSet {
    /// In a cluster on all nodes. Shards that are just moving are moved to their end.
    pub paused: bool,
}

/// Where a scrub stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubStage {
    /// None was ever started.
    #[default]
    Never,
    Running,
    /// Stopped by `pause`; goes on with `start`.
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

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    pub cluster: String,
    pub id: String,
    /// The node that answers.
    pub node: String,
    /// Whether that one has a lease, without which it owns no volume.
    pub has_lease: bool,
    pub nodes: Vec<ClusterNodeView>,
    pub volumes: Vec<ClusterVolumeView>,
    pub survives: ClusterSurvives,
    pub etcd: ClusterEtcdView,
    /// What needs attention, as in the status of the node that answers: the worst first. Empty: nothing needs to be done.
    pub warnings: Vec<WarningView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNodeView {
    pub id: String,
    pub name: String,
    /// Where other nodes reach it.
    pub internal: String,
    /// Where clients reach it.
    pub external: String,
    /// Whether its lease lives.
    pub alive: bool,
    /// Whether the node that answers reaches it.
    pub connected: bool,
    /// Whether it insists on encryption between nodes. Two nodes that do not have none between them.
    pub internal_encryption: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub disks: Vec<ClusterDiskView>,
    /// How far it is on its way out of the cluster, if it is to leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<NodeDrainView>,
    /// For how much longer it is meant to be away, if it is in maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_seconds: Option<u64>,
    /// Its part of the load beside others; left out: 100, as usual. With 0 it owns no volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Who owns how much of the cluster's load, and which volumes should move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceView {
    pub nodes: Vec<BalanceNode>,
    /// In the order in which they would be made. Empty: the load is spread as evenly as it gets.
    pub moves: Vec<BalanceMove>,
    /// The move that was made just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<BalanceMove>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceNode {
    pub name: String,
    pub weight: u32,
    /// Whether it takes volumes now: it is there, stays, is not in maintenance, has disks and a weight.
    pub takes: bool,
    /// Volumes that it owns.
    pub volumes: usize,
    /// Open volumes that its memory limit holds, if it is there and tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_max: Option<u32>,
    /// Its load, in percent of what it would be if all was spread by weights alone. An open volume is load, and so is what clients
    /// do.
    pub load_percent: u64,
    /// What clients do with its volumes, on average over some minutes, as owners told last.
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
    /// Its owner does more work.
    Work,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceShare {
    pub volumes: usize,
    /// In percent of what it would be if all was spread by weights alone.
    pub load_percent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceMove {
    pub volume: String,
    /// The nodes' names.
    pub from: String,
    pub to: String,
    pub reason: BalanceReason,
    /// What clients do with it.
    pub operations_per_second: u64,
    pub bytes_per_second: u64,
    pub from_before: BalanceShare,
    pub from_after: BalanceShare,
    pub to_before: BalanceShare,
    pub to_after: BalanceShare,
}

/// What keeps a node that is to leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDrainView {
    /// Nothing is on it any more: it can be removed.
    pub done: bool,
    /// The name of the node that takes its place. It is removed by itself then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Segments with data on its disks, as owners of volumes told last.
    pub segments_left: u64,
    /// Of these, what is on its disks.
    pub bytes_left: u64,
    /// Left out as long as nobody can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Volumes that it owns still.
    pub volumes_owned: Vec<String>,
    /// Volumes that have something on its disks still, be it only a part of their log.
    pub volumes_left: Vec<String>,
    /// Whether it runs a member of etcd still.
    pub etcd_member: bool,
    /// Why it does not go on, if it does not.
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
    /// The name of the node that owns it; nobody does while it is taken over.
    pub owner: Option<String>,
    pub epoch: u64,
    /// Copies of the changes and the metadata that a new owner needs, on nodes that are there: one less than that many nodes may
    /// go without a loss.
    pub log_copies: usize,
    /// Copies that it should have.
    #[serde(default)]
    pub log_copies_wanted: usize,
    /// Why nodes that tried could not take it over, while nobody owns it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Copies of the metadata's state on other nodes than the owner.
    pub state_copies: usize,
    /// The address that follows its owner, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<VolumeAddressView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAddressView {
    /// With the length of its prefix: 10.0.0.9/24.
    pub address: String,
    /// The interface that it is put on; left out: that in its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Why the owner does not have it; only the owner knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAddressSet {
    /// With the length of its prefix: 10.0.0.9/24.
    #[schema(min_length = 9, max_length = 64)]
    pub address: String,
    /// The interface that it is put on, of this name on each node; left out: that in its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 15, pattern = r"^[!-.0-~]+$")]
    pub interface: Option<String>,
}

/// What may be lost next, whichever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterSurvives {
    /// Nodes that may go without a loss of data.
    pub data_nodes: usize,
    /// Nodes that may go so that the others go on serving all volumes.
    pub service_nodes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEtcdView {
    /// Whether the nodes run it themselves.
    pub own: bool,
    pub members: Vec<ClusterEtcdMember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEtcdMember {
    pub name: String,
    pub url: String,
    /// Why it does not count: it does not answer, or says that it is not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// Whether all that it has moves to other nodes.
    pub draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeMaintenance {
    /// For so many seconds from now on the node is meant to be away. 0: it is back.
    #[schema(maximum = 604800)]
    pub seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeWeight {
    /// Its part of the load beside others: 100 is usual, 1000 the most. With 0 it owns no volume.
    #[schema(maximum = 1000)]
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeReplace {
    /// The name of the node that takes its place: one that has joined.
    #[schema(min_length = 1, max_length = 255)]
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMove {
    /// The name of the node that is to own the volume; left out: whichever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketCreate {
    /// How long it can be used: 1 to 86,400.
    pub valid_seconds: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterBackup {
    /// The copy, to be written to a file as it is. It has hashes of passwords and tokens: keep it where nobody else can read it.
    pub copy: String,
}

/// Shows none of it.
impl std::fmt::Debug for ClusterBackup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterBackup(..)")
    }
}

/// Which authority certificates of nodes are of, and how far another one has taken its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// The authority of the certificate of the node that answers: SHA-256 of its own certificate, as hexadecimal digits.
    pub authority: String,
    /// The rotation that runs, or the last one; none was ever begun if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<AuthorityRotation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityRotation {
    pub phase: AuthorityPhase,
    pub begun_seconds: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<i64>,
    /// The authority that goes, as above.
    pub old: String,
    /// The one that takes its place, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// The nodes that this phase waits for.
    pub waits_for: Vec<AuthorityWait>,
    /// What keeps the node that answers from its next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What all nodes do now, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityPhase {
    /// A node makes the new authority.
    Make,
    /// All nodes come to trust both.
    Trust,
    /// All nodes get certificates of the new one.
    Renew,
    /// All nodes drop the old one.
    Drop,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityWait {
    /// The node's name.
    pub node: String,
    /// It is not there, and nothing goes on without it until it is, or is removed.
    pub away: bool,
    /// What it has to do.
    pub what: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TicketView {
    /// Lets one node join. A secret.
    pub ticket: String,
}

/// Shows no secret.
impl std::fmt::Debug for TicketView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketView(..)")
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubStart {
    /// Bytes per second from now on; 0: no limit. What is left out stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_second: Option<u64>,
    /// Begin anew also when one is under way.
    #[serde(default)]
    pub restart: bool,
}

/// The timer of scrubs and the maintenance window: what is left out is not there any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubScheduleSet {
    /// How long after the beginning of a scrub the next one begins by itself: hours or days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d", pattern = "^(([1-9][0-9]{0,3}|[1-3][0-9]{4}|4[0-2][0-9]{3}|43[0-8][0-9]{2}|439[01][0-9]|43920)h|([1-9][0-9]{0,2}|1[0-7][0-9]{2}|18[0-2][0-9]|1830)d)$")]
    pub every: Option<ScrubEvery>,
    /// Days and times of the week, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "sat:22:00-06:00", max_length = 1024, pattern = "^((daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?),)*(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?):([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)(,((daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?),)*(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?):([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00))*$")]
    pub window: Option<MaintenanceWindow>,
}

/// The timer of scrubs and the maintenance window, of a server or of all nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubSchedule {
    /// Left out: no scrub begins by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d")]
    pub every: Option<ScrubEvery>,
    /// Left out: there is none, and nothing waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "sat:22:00-06:00")]
    pub window: Option<MaintenanceWindow>,
    /// Whether the window is open now; also without one.
    pub is_open: bool,
    /// When it opens. Left out: it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_seconds: Option<i64>,
    /// When it closes. Left out: it is closed, or never closes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closes_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubView {
    pub stage: ScrubStage,
    /// It began by itself, as its schedule says.
    #[serde(default)]
    pub by_schedule: bool,
    /// It waits for the maintenance window, which opens then. Left out: it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until_seconds: Option<i64>,
    /// When the next one begins by itself: in a cluster the first of its nodes. Left out: none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_seconds: Option<i64>,
    pub started_seconds: i64,
    /// 0 while it is not done.
    pub finished_seconds: i64,
    pub rate_bytes_per_second: u64,
    /// Bytes read so far, and about how many it will be.
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// At the speed so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    pub shards: u64,
    pub records: u64,
    /// Bytes of shards that were wrong or could not be read, and those of them that were written anew.
    pub wrong_bytes: u64,
    pub repaired_bytes: u64,
    pub shards_rebuilt: u64,
    pub shards_sealed: u64,
    /// Shards on disks that are away, which were not looked at.
    pub shards_away: u64,
    /// Places in files that cannot be read any more; `report` names them.
    pub damaged: u64,
    /// Failures of the scrub itself.
    pub errors: u64,
    /// Nodes of the cluster that do not answer: what they read is not in these numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<crate::joined::SilentNode>,
}

/// Bytes of a file that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubDamage {
    pub volume: String,
    pub inode: u64,
    /// All its names, from the root of the volume; none if it has none any more. Bytes that are not
    /// UTF-8 are shown as U+FFFD.
    pub paths: Vec<String>,
    pub start: u64,
    pub end: u64,
    pub detail: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubReport {
    pub scrub: ScrubView,
    /// What was found and is still there, by volume and file.
    pub damaged: Vec<ScrubDamage>,
    /// Places beyond those, for which there was no room in the list.
    pub damaged_more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    pub id: u32,
    #[schema(value_type = String, example = "main")]
    pub name: VolumeName,
    #[schema(value_type = String, example = "+2n")]
    pub protection: Protection,
    /// What the protection means on this pool now: "4+2", "2 mirrors", "1 copy, NO REDUNDANCY".
    pub layout: String,
    pub disk_failures_tolerated: u32,
    /// Nodes that can be lost, instead of those disks, without losing its data or metadata. Only if the pool has disks on
    /// several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_failures_tolerated: Option<u32>,
    #[schema(value_type = String, example = "500 GiB")]
    pub size_limit: SizeLimit,
    /// Up to where the size limit grows by itself as the volume fills.
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
    /// The kind of disks that its data is to live on, unless a directory says another.
    #[schema(value_type = String, example = "ssd")]
    #[serde(default)]
    pub media: MediaChoice,
    /// Where data is that is to live on a kind of disks, if there is such. Not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media_bytes: Vec<MediaBytes>,
    /// Other protections that directories have, or data that was written there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directory_protections: Vec<DirectoryProtection>,
    /// The class of service, or none.
    #[schema(value_type = String, example = "gold")]
    #[serde(default)]
    pub class: ClassChoice,
    /// Where its cold data goes, if it goes anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiering: Option<VolumeTieringView>,
    /// What it uses of its class, if it has one and is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<crate::classes::RatesView>,
    pub created_seconds: i64,
    /// Whether it is served; if not, `problem` says why.
    pub serving: bool,
    /// In a cluster, the name of the node that owns it, if that is another one than was asked. What it uses that one tells; if it
    /// does not, `problem` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Bytes that its files hold.
    pub used_bytes: u64,
    /// Bytes that its files could hold, as `df` shows.
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub inodes: u64,
    /// Those that can be seen, and the bytes, as stored and before parity, that snapshots alone hold.
    pub snapshots: u64,
    pub snapshot_bytes: u64,
    /// Room, as stored and before parity, that nothing lives in any more: of data that was overwritten or deleted,
    #[serde(default)]
    pub garbage_bytes: u64,
    /// and what of it is being given back now. When nobody has written for a minute that is more.
    #[serde(default)]
    pub freeing_bytes: u64,
    /// Bytes of files that were in records already and were not written again, since the node that owns it was started.
    #[serde(default)]
    pub deduplicated_bytes: u64,
    pub exported: bool,
    /// Whether its bytes are encrypted.
    #[serde(default)]
    pub encryption: crate::keys::EncryptionView,
    /// What it began from, if it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<VolumeOrigin>,
}

/// A protection that directories of a volume have, or data that was written below them when they had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryProtection {
    #[schema(value_type = String, example = "3x")]
    pub protection: Protection,
    /// What it means on this pool now.
    pub layout: String,
    pub disk_failures_tolerated: u32,
}

/// What of a volume goes to a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeTieringView {
    /// The name of the tier.
    pub tier: String,
    #[schema(value_type = String, example = "auto")]
    pub policy: Tiering,
    #[schema(value_type = String, example = "31")]
    pub cooling_days: CoolingDays,
    /// Of files with such names,
    #[schema(value_type = String, example = "*.mp4,*.fastq.gz")]
    #[serde(default)]
    pub files: FilePatterns,
    /// of this size or more,
    #[schema(value_type = String, example = "1 MiB")]
    #[serde(default)]
    pub min_size: SizeLimit,
    /// that were not changed for so long.
    #[schema(value_type = String, example = "30d")]
    #[serde(default)]
    pub min_age: MinAge,
    /// Bytes of its data that are there.
    pub remote_bytes: u64,
}

/// What a clone of a volume began from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeOrigin {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    /// A snapshot of that volume, which stays as long as there are clones of it.
    pub snapshot: String,
    /// That volume is deleted: only what its clones need is left of it. There may be another of its name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

impl std::fmt::Display for VolumeOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suffix = if self.deleted { " (deleted)" } else { "" };
        write!(f, "{}@{}{suffix}", self.volume, self.snapshot)
    }
}

/// A clone of a whole volume to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCloneCreate {
    #[schema(value_type = String, example = "projects-test", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: VolumeName,
    /// The snapshot that it begins with; left out: the volume as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub snapshot: Option<String>,
}

/// A volume to make; what is left out has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    #[schema(value_type = String, example = "projects", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: VolumeName,
    /// Encrypt its bytes, which can never be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypt: bool,
    #[serde(flatten)]
    pub settings: VolumeChange,
}

/// Settings of a volume to change; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// default, none, +1n to +4n, 2x to 5x. A change is for data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "+2n", pattern = r"^(default|none|\+[1-4]n|[2-5]x)$")]
    pub protection: Option<Protection>,
    /// none, or a size such as 500GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "500GiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    pub size_limit: Option<SizeLimit>,
    /// none, or the size up to which the size limit grows by itself as the volume fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2TiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    pub autogrow: Option<SizeLimit>,
    /// concurrent, streaming or random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "streaming", pattern = "^(concurrent|streaming|random)$")]
    pub access_pattern: Option<AccessPattern>,
    /// none, lz4, zstd or zstd:LEVEL. A change is for data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "lz4", pattern = "^(none|off|lz4|auto|zstd(:(1[0-9]|[1-9]))?)$")]
    pub compression: Option<Compression>,
    /// off, on (what has the same hash is the same) or verify (it is read and compared first). A change is for data written
    /// from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "on", pattern = "^(off|on|verify)$")]
    pub dedupe: Option<Dedupe>,
    /// any, or hdd, ssd, nvme: the kind of disks that data written from then on is to live on.
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
    /// none (what is in the tier comes back), auto (what nobody used for the cooling time goes there) or all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "auto", pattern = "^(none|snapshot-only|auto|all)$")]
    pub tiering: Option<Tiering>,
    /// 2 to 183.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "31", pattern = "^([2-9]|[1-9][0-9]|1[0-7][0-9]|18[0-3])$")]
    pub cooling_days: Option<CoolingDays>,
    /// any, or patterns with commas between them: data of files goes to the tier one of which matches their names. With
    /// `tiering` auto or all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "*.mp4,*.fastq.gz", min_length = 1, max_length = 1024)]
    pub tier_files: Option<FilePatterns>,
    /// none, or the least size of such files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1MiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    pub tier_min_size: Option<SizeLimit>,
    /// none, or for how long such files must not have been changed, such as 12h or 30d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d", pattern = "^(none|([1-9][0-9]{0,4}|[1-7][0-9]{5}|8[0-6][0-9]{4}|87[0-7][0-9]{3}|878[0-3][0-9]{2}|878400)h|([1-9][0-9]{0,3}|[12][0-9]{4}|3[0-5][0-9]{3}|36[0-5][0-9]{2}|36600)d)$")]
    pub tier_min_age: Option<MinAge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// By name.
    pub volumes: Vec<VolumeView>,
    /// How many there are with such names, on all pages.
    pub total: usize,
    /// The `after` of the next page; left out with the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    pub disks: Vec<DiskView>,
}

/// Who may mount a volume. Without rules nobody may.
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

/// Rules to put in force: each replaces the rule that has the same client, if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSet {
    pub rules: Vec<ExportRule>,
}

/// What a server writes to its ready file, for scripts and for `cairn` commands on its machine.
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
    /// With HTTPS: the certificates by which the server is known, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    pub volumes: Vec<VolumeName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsReady {
    pub address: String,
    pub port: u16,
}
