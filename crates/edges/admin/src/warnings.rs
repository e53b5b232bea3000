//! The JSON of what an operator should know now.
//!
//! Owns: the names of warnings, by which programs know them. The texts beside them are for people and may change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::events::Severity;

/// Kind of a warning.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    VolumeNotServed,
    VolumeReadOnly,
    VolumeWithoutOwner,
    NoLease,
    EtcdNoQuorum,
    EtcdUnreachable,
    EtcdMemberDown,
    EtcdPlain,
    NodeAway,
    NodeUnreached,
    DiskMissing,
    DiskFailed,
    DiskTroubled,
    OneDisk,
    SharedDevice,
    AtTheLimit,
    SegmentsUnreadable,
    SegmentsShort,
    SegmentsNarrow,
    SegmentsSingle,
    PlacesDamaged,
    BytesLost,
    ReadsDamaged,
    MetadataShort,
    LogCopiesFew,
    AddressNotHere,
    KeyMissing,
    MapKeyDamaged,
    FolderLow,
    VolumesMany,
    Maintenance,
    VolumeUnprotected,
    DirectoriesUnprotected,
    DisksUnnamed,
    SpaceLow,
    PoolFull,
    VolumeFull,
    VolumeLow,
    KeyAway,
    SecretsUnwrapped,
    TierAway,
    MemoryOver,
    ScrubOverdue,
    ReadCacheUnused,
}

/// A problem that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarningView {
    pub kind: WarningKind,
    /// `error`: something is not served or not readable. `warning`: redundancy covers a failure, which needs repair. `info`: an
    /// intended state.
    pub severity: Severity,
    /// The object of the warning: `volume main`, `node two`, `disk /srv/disk1`, `pool`.
    #[schema(example = "volume main")]
    pub subject: String,
    /// Names of the objects, if the warning has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// The current amount: segments, places, bytes, copies, healthy members, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The wanted amount, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
    /// The problem in a sentence, for people.
    pub message: String,
    /// The next step for an operator.
    pub next: String,
}

impl std::fmt::Display for WarningView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.message, self.next)
    }
}
