//! What an operator should know now, as values.
//!
//! Owns: which warnings there are, how bad each is, in which order they are told.
//! Must not know: how a warning reads. The place that shows one makes its text.

use std::time::Duration;

/// How bad a warning is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Wanted as it is, and worth to be seen. The pool is healthy.
    Notice,
    /// A failure is survived, and has to be mended before the next one; or writes fail for want of room.
    Degraded,
    /// Something is not served or not readable now.
    Failed,
}

/// Why a member of the pool does not serve, or is not counted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskLoss {
    Missing,
    Failed,
    /// It does not answer now, or did not a moment ago.
    Unresponsive,
    /// It takes nothing now, or did not a moment ago.
    Failing,
    /// It works again, and lacks some of what was written meanwhile.
    Returning,
}

/// How a read cache is, if it is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheTrouble {
    LetAlone,
    Opening,
    NotOpen,
}

/// One thing that an operator should know now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A volume is not served, and there is a reason.
    VolumeNotServed {
        volume: String,
        why: String,
    },
    /// A volume is read, and nothing of it can be changed: its disks had no room for what an opening writes.
    VolumeReadOnly {
        volume: String,
        why: String,
    },
    /// No node owns a volume. Each node that tried to take it over, and why it could not.
    VolumeWithoutOwner {
        volume: String,
        tries: Vec<(String, String)>,
    },
    /// The node that answers owns nothing.
    NoLease,
    /// Fewer members of etcd are well than a majority. Nothing that the map has can be changed.
    EtcdNoQuorum {
        healthy: usize,
        members: usize,
    },
    /// No member of etcd answers the node that answers.
    EtcdUnreachable {
        why: String,
    },
    /// A member of etcd does not answer, or says that it is not well.
    EtcdMemberDown {
        member: String,
        why: String,
    },
    /// An operator allowed that etcd is asked without TLS at these addresses, which are not of this machine.
    EtcdPlain {
        addresses: Vec<String>,
    },
    NodeAway {
        node: String,
    },
    /// It has a lease, and the node that answers does not reach it.
    NodeUnreached {
        node: String,
        why: Option<String>,
    },
    DiskLost {
        disk: String,
        loss: DiskLoss,
        why: String,
    },
    /// A disk is used in spite of what is wrong with it.
    DiskTroubled {
        disk: String,
        why: String,
    },
    OneDisk,
    /// Several disks are on one drive. So many of the drives may be lost.
    SharedDevice {
        disks: usize,
        devices: usize,
        survived: usize,
    },
    AtTheLimit,
    /// Segments that cannot be read until disks are back.
    SegmentsUnreadable {
        count: u64,
    },
    /// Segments with lost shards that can be read and are not rebuilt yet.
    SegmentsShort {
        count: u64,
    },
    SegmentsNarrow {
        count: u64,
    },
    SegmentsSingle {
        count: u64,
    },
    PlacesDamaged {
        count: u64,
    },
    BytesLost {
        bytes: u64,
    },
    ReadsDamaged {
        count: u64,
    },
    MetadataShort {
        volume: String,
    },
    /// The newest changes of a volume have fewer copies on nodes that are there than they should have.
    LogCopiesFew {
        volume: String,
        copies: usize,
        wanted: usize,
    },
    /// The address that follows a volume is not on its owner.
    AddressNotHere {
        volume: String,
        address: String,
        why: String,
    },
    /// An address of a pool is not on a node that should have it.
    PoolAddressNotHere {
        pool: String,
        address: String,
        why: String,
    },
    /// A node cannot take an encrypted volume over.
    KeyMissing {
        node: String,
        volume: String,
    },
    MapKeyDamaged {
        key: String,
    },
    /// The file system with a node's cluster folder is nearly full: etcd stops when it is.
    FolderLow {
        node: String,
    },
    /// A node has more open volumes than its memory limit holds.
    VolumesMany {
        node: String,
        volumes: usize,
        most: usize,
    },
    /// A node is meant to be away for a while: nothing of it is rebuilt meanwhile.
    Maintenance {
        node: String,
        left: Duration,
    },
    VolumeUnprotected {
        volume: String,
    },
    DirectoriesUnprotected {
        volume: String,
    },
    /// A start finds the pool by so many of its disks only.
    DisksUnnamed {
        named: usize,
    },
    SpaceLow {
        percent: u64,
    },
    /// Writes fail in all volumes.
    PoolFull,
    /// A volume has reached its size limit, or will in a moment: writes fail.
    VolumeFull {
        volume: String,
        limit_bytes: u64,
    },
    /// So much is left to the size limit of a volume.
    VolumeLow {
        volume: String,
        limit_bytes: u64,
        percent: u64,
    },
    /// An encrypted volume is not served: its key cannot be had.
    KeyAway {
        volume: String,
        why: String,
    },
    /// No secret is set or made: the master key that they are to be wrapped with cannot be had.
    SecretsUnwrapped {
        why: String,
    },
    /// Data in a tier cannot be read, or cannot be put there.
    TierAway {
        tier: String,
        why: String,
    },
    /// The process has more memory than its limit.
    MemoryOver {
        resident_bytes: u64,
        limit_bytes: u64,
        /// What has most of it, in bytes, the largest first.
        largest: Vec<(&'static str, u64)>,
    },
    /// A scrub that begins by itself has been due for so long.
    ScrubOverdue {
        late: Duration,
    },
    ReadCacheUnused {
        cache: String,
        trouble: CacheTrouble,
        why: Option<String>,
    },
}

impl Warning {
    pub fn weight(&self) -> Weight {
        match self {
            Self::VolumeNotServed { .. }
            | Self::VolumeWithoutOwner { .. }
            | Self::NoLease
            | Self::KeyAway { .. }
            | Self::SegmentsUnreadable { .. } => Weight::Failed,
            Self::EtcdNoQuorum { .. }
            | Self::EtcdUnreachable { .. }
            | Self::EtcdMemberDown { .. }
            | Self::NodeAway { .. }
            | Self::NodeUnreached { .. }
            | Self::DiskLost { .. }
            | Self::DiskTroubled { .. }
            | Self::AtTheLimit
            | Self::SegmentsShort { .. }
            | Self::SegmentsNarrow { .. }
            | Self::SegmentsSingle { .. }
            | Self::PlacesDamaged { .. }
            | Self::BytesLost { .. }
            | Self::ReadsDamaged { .. }
            | Self::MetadataShort { .. }
            | Self::LogCopiesFew { .. }
            | Self::KeyMissing { .. }
            | Self::MapKeyDamaged { .. }
            | Self::FolderLow { .. }
            | Self::PoolFull
            | Self::VolumeReadOnly { .. }
            | Self::VolumeFull { .. }
            | Self::SecretsUnwrapped { .. }
            | Self::TierAway { .. }
            | Self::MemoryOver { .. }
            | Self::VolumesMany { .. } => Weight::Degraded,
            Self::OneDisk
            | Self::EtcdPlain { .. }
            | Self::AddressNotHere { .. }
            | Self::PoolAddressNotHere { .. }
            | Self::Maintenance { .. }
            | Self::VolumeUnprotected { .. }
            | Self::DirectoriesUnprotected { .. }
            | Self::DisksUnnamed { .. }
            | Self::SpaceLow { .. }
            | Self::SharedDevice { .. }
            | Self::VolumeLow { .. }
            | Self::ScrubOverdue { .. }
            | Self::ReadCacheUnused { .. } => Weight::Notice,
        }
    }
}
