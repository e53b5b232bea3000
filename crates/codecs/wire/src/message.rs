//! Messages. A connection begins with a hello of the side that opened it and a welcome. Then requests and replies cross each
//! other in any order, and the serving side reports the state of its disks now and then.

use std::ops::Range;

use cairn_base::disk::DiskSpace;
use cairn_base::{DiskId, Epoch, NodeId, PoolId, VolumeId};
use cairn_formats::shard::footer::ShardFooter;
use cairn_formats::shard::name::ShardName;

use crate::WireError;
use crate::fault::Fault;
use crate::fields::{Fields, Part, parts, variants};

/// The version of messages that this program speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// The message in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of the side that opened the connection.
    Hello(Hello),
    /// The answer to it.
    Welcome(Welcome),
    /// The last message; the connection ends with it.
    Goodbye {
        reason: String,
    },
    /// How all disks that are served are now.
    State {
        disks: Vec<DiskReport>,
    },
    /// Wrong bytes were read from a disk.
    Note {
        disk: DiskId,
        checksum_errors: u32,
    },
    /// The side that opened the connection is still there.
    Ping {},
    Request {
        disk: DiskId,
        request: Request,
    },
    Reply(Reply),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version_min: u16,
    pub version_max: u16,
    /// The pool of the cluster; disks of another one are none of ours.
    pub cluster: PoolId,
    /// Who says hello.
    pub from: NodeId,
    /// Who is expected to hear it.
    pub to: NodeId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version of all messages from now on.
    pub version: u16,
    pub cluster: PoolId,
    pub node: NodeId,
    pub limits: Limits,
    pub disks: Vec<DiskReport>,
}

/// Most requests and bytes under way for one disk on one connection. A sender of more is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub requests_max: u32,
    /// Of payloads and of the bytes that replies will have.
    pub bytes_max: u64,
}

/// How a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskReport {
    pub disk: DiskId,
    pub label: String,
    pub read_errors: u64,
    pub write_errors: u64,
    pub full_errors: u64,
    pub checksum_errors: u64,
    pub suspect: bool,
    pub failed: bool,
    pub silent: bool,
    /// Changes of it fail.
    pub failing: bool,
    pub writes_answered: u64,
    pub space: Result<DiskSpace, Fault>,
    pub recycled_bytes: u64,
    pub recycled: Vec<RecycledCount>,
}

/// How many files are kept for new shards of one capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecycledCount {
    pub capacity_bytes: u64,
    pub count: u32,
}

/// Where a part of the payload belongs in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRange {
    pub offset: u64,
    pub len_bytes: u32,
}

/// Names a shard that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hidden {
    pub name: ShardName,
    pub number: u64,
}

/// A verb of a disk's shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Probe {},
    PrepareRecycled {
        count: u32,
        capacity_bytes: u64,
    },
    ReleaseRecycled {},
    Fence {
        volume: VolumeId,
        epoch: Epoch,
    },
    Create {
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        /// So much has to stay free beside it.
        kept_bytes: u64,
    },
    /// The payload: the bytes of each place.
    Append {
        epoch: Epoch,
        name: ShardName,
        places: Vec<ShardRange>,
    },
    Seal {
        epoch: Epoch,
        footer: ShardFooter,
    },
    Stat {
        name: ShardName,
    },
    Read {
        name: ShardName,
        place: ShardRange,
    },
    ReadChecked {
        name: ShardName,
        place: ShardRange,
        checksums: Vec<u32>,
    },
    /// The payload: the bytes of each place.
    Repair {
        epoch: Epoch,
        name: ShardName,
        places: Vec<ShardRange>,
    },
    CreateHidden {
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        /// So much has to stay free beside it.
        kept_bytes: u64,
    },
    /// The payload: the bytes of the place.
    Fill {
        epoch: Epoch,
        hidden: Hidden,
        place: ShardRange,
    },
    /// The bytes come from the named disk, not from the client.
    CopyFrom {
        epoch: Epoch,
        hidden: Hidden,
        node: NodeId,
        disk: DiskId,
        place: ShardRange,
        checksums: Vec<u32>,
    },
    SealHidden {
        epoch: Epoch,
        hidden: Hidden,
        footer: ShardFooter,
    },
    Publish {
        epoch: Epoch,
        hidden: Hidden,
    },
    Discard {
        epoch: Epoch,
        hidden: Hidden,
    },
    Remove {
        epoch: Epoch,
        name: ShardName,
    },
    /// Names behind `after`, as many as one reply may have.
    List {
        volume: VolumeId,
        after: Option<ShardName>,
    },
    Sweep {
        epoch: Epoch,
        volume: VolumeId,
        names: Vec<ShardName>,
        mark: u64,
    },
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Failed {
        fault: Fault,
    },
    Done {},
    Sealed {
        file_len_bytes: u64,
    },
    Stat {
        file_len_bytes: u64,
        footer: Result<Option<ShardFooter>, Fault>,
        is_unsealed: bool,
    },
    /// The payload: as many bytes.
    Bytes {
        len_bytes: u32,
    },
    /// The payload: as many bytes.
    Checked {
        len_bytes: u32,
        damaged: Vec<Range<u64>>,
    },
    Made {
        hidden: Hidden,
    },
    Copied {
        copied: Copied,
    },
    Listed {
        names: Vec<ShardName>,
        mark: u64,
        promised: Epoch,
        /// There are more behind the last one.
        has_more: bool,
    },
    Swept {
        removed: u64,
        kept: u64,
        errors: u64,
    },
}

/// What became of a copy from another disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    Whole {
        checksums: Vec<u32>,
    },
    Damaged {
        ranges: Vec<Range<u64>>,
    },
    Unread {
        fault: Fault,
    },
    /// The disk that was asked to copy has no way to the other one; nothing is written.
    NoWay {},
}

parts!(Hello { version_min, version_max, cluster, from, to } at least 52);
parts!(Welcome { version, cluster, node, limits, disks } at least 50);
parts!(Limits { requests_max, bytes_max } at least 12);
parts!(DiskReport {
    disk, label, read_errors, write_errors, full_errors, checksum_errors, suspect, failed, silent, failing,
    writes_answered, space, recycled_bytes, recycled,
} at least 71);
parts!(RecycledCount { capacity_bytes, count } at least 12);
parts!(ShardRange { offset, len_bytes } at least 12);
parts!(Hidden { name, number } at least 21);

variants!(Request, "request" {
    1 => Probe {},
    2 => PrepareRecycled { count, capacity_bytes },
    3 => ReleaseRecycled {},
    4 => Fence { volume, epoch },
    5 => Create { epoch, name, capacity_bytes, kept_bytes },
    6 => Append { epoch, name, places },
    7 => Seal { epoch, footer },
    8 => Stat { name },
    9 => Read { name, place },
    10 => ReadChecked { name, place, checksums },
    11 => Repair { epoch, name, places },
    12 => CreateHidden { epoch, name, capacity_bytes, kept_bytes },
    13 => Fill { epoch, hidden, place },
    14 => CopyFrom { epoch, hidden, node, disk, place, checksums },
    15 => SealHidden { epoch, hidden, footer },
    16 => Publish { epoch, hidden },
    17 => Discard { epoch, hidden },
    18 => Remove { epoch, name },
    19 => List { volume, after },
    20 => Sweep { epoch, volume, names, mark },
});

variants!(Reply, "reply" {
    1 => Failed { fault },
    2 => Done {},
    3 => Sealed { file_len_bytes },
    4 => Stat { file_len_bytes, footer, is_unsealed },
    5 => Bytes { len_bytes },
    6 => Checked { len_bytes, damaged },
    7 => Made { hidden },
    8 => Copied { copied },
    9 => Listed { names, mark, promised, has_more },
    10 => Swept { removed, kept, errors },
});

variants!(Copied, "end of a copy" {
    1 => Whole { checksums },
    2 => Damaged { ranges },
    3 => Unread { fault },
    4 => NoWay {},
});

impl Request {
    /// Bytes that a good reply has; what a copy pulls counts, too.
    pub fn reply_len_bytes(&self) -> u64 {
        match self {
            Self::Read { place, .. }
            | Self::ReadChecked { place, .. }
            | Self::CopyFrom { place, .. } => place.len_bytes.into(),
            _ => 0,
        }
    }

    /// Bytes of the payload; `None`: more than can be.
    pub fn payload_len_bytes(&self) -> Option<u64> {
        match self {
            Self::Append { places, .. } | Self::Repair { places, .. } => {
                let lens = places.iter().map(|place| u64::from(place.len_bytes));
                lens.reduce(u64::saturating_add).or(Some(0))
            }
            Self::Fill { place, .. } => Some(place.len_bytes.into()),
            _ => Some(0),
        }
    }
}

impl Message {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Welcome(_) => 2,
            Self::Goodbye { .. } => 3,
            Self::State { .. } => 4,
            Self::Note { .. } => 5,
            Self::Ping {} => 6,
            Self::Request { .. } => 7,
            Self::Reply(_) => 8,
        }
    }

    /// Requests and replies have an id, and nothing else has one.
    pub(crate) fn has_id(&self) -> bool {
        matches!(self, Self::Request { .. } | Self::Reply(_))
    }

    pub(crate) fn payload_len_bytes(&self) -> Option<u64> {
        match self {
            Self::Request { request, .. } => request.payload_len_bytes(),
            Self::Reply(Reply::Bytes { len_bytes } | Reply::Checked { len_bytes, .. }) => {
                Some((*len_bytes).into())
            }
            _ => Some(0),
        }
    }

    pub(crate) fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.put(to),
            Self::Welcome(welcome) => welcome.put(to),
            Self::Goodbye { reason } => reason.put(to),
            Self::State { disks } => disks.put(to),
            Self::Note {
                disk,
                checksum_errors,
            } => {
                disk.put(to);
                checksum_errors.put(to);
            }
            Self::Ping {} => {}
            Self::Request { disk, request } => {
                disk.put(to);
                request.put(to);
            }
            Self::Reply(reply) => reply.put(to),
        }
    }

    pub(crate) fn take(kind: u8, from: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            1 => Self::Hello(Part::take(from)?),
            2 => Self::Welcome(Part::take(from)?),
            3 => Self::Goodbye {
                reason: Part::take(from)?,
            },
            4 => Self::State {
                disks: Part::take(from)?,
            },
            5 => Self::Note {
                disk: Part::take(from)?,
                checksum_errors: Part::take(from)?,
            },
            6 => Self::Ping {},
            7 => Self::Request {
                disk: Part::take(from)?,
                request: Part::take(from)?,
            },
            8 => Self::Reply(Part::take(from)?),
            code => {
                return Err(WireError::Unknown {
                    what: "kind of frame",
                    code,
                });
            }
        })
    }
}
