//! Why a request failed, as it goes over the wire: the errors of shards and disks, one for one.

use cairn_base::disk::DiskError;
use cairn_base::{DiskId, Epoch, PoolId, VolumeId};
use cairn_formats::shard::name::ShardName;

use crate::fields::variants;

/// Why bytes on a disk are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatFault {
    Truncated {},
    Magic {},
    Version { found: u32, newest: u32 },
    Checksum {},
    Field { name: String },
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    NotFound {
        disk: String,
        shard: ShardName,
    },
    Exists {
        disk: String,
        shard: ShardName,
    },
    Disk {
        error: DiskError,
    },
    WrongPool {
        disk: String,
        found: PoolId,
        wanted: PoolId,
    },
    NotFormatted {
        disk: String,
    },
    AlreadyFormatted {
        disk: String,
        id: DiskId,
        pool: PoolId,
    },
    DamagedIdentity {
        disk: String,
        reason: FormatFault,
    },
    DamagedFooter {
        disk: String,
        shard: ShardName,
        reason: FormatFault,
    },
    BadRange {
        disk: String,
        shard: ShardName,
        what: String,
        offset: u64,
        len_bytes: u64,
    },
    BadRequest {
        disk: String,
        what: String,
        reason: FormatFault,
    },
    Fenced {
        disk: String,
        volume: VolumeId,
        epoch: Epoch,
        promised: Epoch,
    },
    DamagedPromise {
        disk: String,
        volume: VolumeId,
        reason: FormatFault,
    },
    Late {
        disk: String,
        what: String,
    },
    SyncLost {
        disk: String,
        shard: ShardName,
    },
    Unreachable {
        disk: String,
        what: String,
        reason: String,
    },
}

variants!(FormatFault, "format error" {
    1 => Truncated {},
    2 => Magic {},
    3 => Version { found, newest },
    4 => Checksum {},
    5 => Field { name },
});

variants!(Fault, "error" {
    1 => NotFound { disk, shard },
    2 => Exists { disk, shard },
    3 => Disk { error },
    4 => WrongPool { disk, found, wanted },
    5 => NotFormatted { disk },
    6 => AlreadyFormatted { disk, id, pool },
    7 => DamagedIdentity { disk, reason },
    8 => DamagedFooter { disk, shard, reason },
    9 => BadRange { disk, shard, what, offset, len_bytes },
    10 => BadRequest { disk, what, reason },
    11 => Fenced { disk, volume, epoch, promised },
    12 => DamagedPromise { disk, volume, reason },
    13 => Late { disk, what },
    14 => SyncLost { disk, shard },
    15 => Unreachable { disk, what, reason },
});
