//! The JSON that is of no feature alone: errors, the status, the ready file. Byte counts are whole numbers of bytes; times are seconds since
//! 1970 UTC.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::disks::DiskView;
use crate::volumes::VolumeView;
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
