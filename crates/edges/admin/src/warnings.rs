//! The JSON of what an operator should know now.
//!
//! Owns: the names of warnings, by which programs know them. The texts beside them are for people and may change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::events::Severity;

/// Which warning it is.
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

/// One thing that an operator should know now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarningView {
    pub kind: WarningKind,
    /// `error`: something is not served or not readable. `warning`: a failure is survived and has to be mended. `info`: it is
    /// as somebody wanted it.
    pub severity: Severity,
    /// What it is about: `volume main`, `node two`, `disk /srv/disk1`, `pool`.
    #[schema(example = "volume main")]
    pub subject: String,
    /// The names that it is about, if it is about some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// How much of it there is: segments, places, bytes, copies, members that are well, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How much of it there should be, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
    /// For people, in a sentence.
    pub message: String,
    /// What to do next.
    pub next: String,
}

impl std::fmt::Display for WarningView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.message, self.next)
    }
}
