//! Messages of every kind, made from numbers.

use std::ops::Range;

use bytes::Bytes;
use cairn_base::disk::{DiskError, DiskSpace};
use cairn_base::{DiskId, Epoch, NodeId, PoolId, SegmentId, VolumeId};
use cairn_formats::shard::footer::{FooterStripe, ShardFooter};
use cairn_formats::shard::name::ShardName;

use crate::{
    Copied, DiskReport, Fault, FormatFault, Hello, Hidden, Limits, Message, RecycledCount, Reply,
    Request, ShardRange, Welcome,
};

/// Kinds of messages that [`message`] makes.
pub const MESSAGE_KINDS: u64 = 6 + REQUEST_KINDS + REPLY_KINDS;
/// Kinds of errors that a failed reply may have.
pub const FAULT_KINDS: u64 = 21;
const REQUEST_KINDS: u64 = 20;
const REPLY_KINDS: u64 = 10;
const FORMAT_FAULT_KINDS: u64 = 5;
/// Most bytes of one place of a payload that is made here.
const PLACE_LEN_BYTES_MAX: u64 = 64;

/// Numbers that look random: SplitMix64.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit.max(1)
    }

    /// Small ones and the edges are as likely as any others.
    fn any(&mut self) -> u64 {
        let word = self.word();
        match self.below(4) {
            0 => word % 16,
            1 => u64::MAX - word % 2,
            _ => word,
        }
    }

    fn wide(&mut self) -> u128 {
        (u128::from(self.any()) << 64) | u128::from(self.any())
    }

    fn short(&mut self) -> u32 {
        self.any() as u32
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn text(&mut self) -> String {
        let letters = ['a', '/', 'ü', '雪', ' ', '1'];
        let count = self.below(12);
        (0..count)
            .map(|_| letters[self.below(letters.len() as u64) as usize])
            .collect()
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| item(self)).collect()
    }

    fn name(&mut self) -> ShardName {
        ShardName {
            volume: VolumeId(self.short()),
            segment: SegmentId(self.any()),
            index: self.any() as u8,
        }
    }

    fn hidden(&mut self) -> Hidden {
        Hidden {
            name: self.name(),
            number: self.any(),
        }
    }

    fn epoch(&mut self) -> Epoch {
        Epoch(self.any())
    }

    fn place(&mut self) -> ShardRange {
        ShardRange {
            offset: self.any(),
            len_bytes: self.below(PLACE_LEN_BYTES_MAX) as u32,
        }
    }

    fn ranges(&mut self) -> Vec<Range<u64>> {
        self.list(|from| {
            let (one, other) = (from.any(), from.any());
            one.min(other)..one.max(other)
        })
    }

    fn footer(&mut self) -> ShardFooter {
        ShardFooter {
            name: self.name(),
            data_shards: self.any() as u8,
            parity_shards: self.any() as u8,
            epoch: self.epoch(),
            data_len_bytes: self.any(),
            stripes: self.list(|from| FooterStripe {
                start_block: from.short(),
                unit_blocks: from.short() as u16,
            }),
            checksums: self.list(Self::short),
            summary: self.list(|from| from.any() as u8),
        }
    }

    fn format_fault(&mut self) -> FormatFault {
        match self.below(FORMAT_FAULT_KINDS) {
            0 => FormatFault::Truncated {},
            1 => FormatFault::Magic {},
            2 => FormatFault::Version {
                found: self.short(),
                newest: self.short(),
            },
            3 => FormatFault::Checksum {},
            _ => FormatFault::Field { name: self.text() },
        }
    }

    /// An error; of each kind below [`FAULT_KINDS`] there is one.
    pub fn fault(&mut self, kind: u64) -> Fault {
        let disk = self.text();
        let io = |error| Fault::Disk { error };
        match kind % FAULT_KINDS {
            0 => Fault::NotFound {
                disk,
                shard: self.name(),
            },
            1 => Fault::Exists {
                disk,
                shard: self.name(),
            },
            2 => Fault::WrongPool {
                disk,
                found: PoolId(self.wide()),
                wanted: PoolId(self.wide()),
            },
            3 => Fault::NotFormatted { disk },
            4 => Fault::AlreadyFormatted {
                disk,
                id: DiskId(self.wide()),
                pool: PoolId(self.wide()),
            },
            5 => Fault::DamagedIdentity {
                disk,
                reason: self.format_fault(),
            },
            6 => Fault::DamagedFooter {
                disk,
                shard: self.name(),
                reason: self.format_fault(),
            },
            7 => Fault::BadRange {
                disk,
                shard: self.name(),
                what: self.text(),
                offset: self.any(),
                len_bytes: self.any(),
            },
            8 => Fault::BadRequest {
                disk,
                what: self.text(),
                reason: self.format_fault(),
            },
            9 => Fault::Fenced {
                disk,
                volume: VolumeId(self.short()),
                epoch: self.epoch(),
                promised: self.epoch(),
            },
            10 => Fault::DamagedPromise {
                disk,
                volume: VolumeId(self.short()),
                reason: self.format_fault(),
            },
            11 => Fault::Late {
                disk,
                what: self.text(),
            },
            12 => Fault::SyncLost {
                disk,
                shard: self.name(),
            },
            13 => Fault::Unreachable {
                disk,
                what: self.text(),
                reason: self.text(),
            },
            14 => io(DiskError::NotFound {
                disk,
                name: self.text(),
            }),
            15 => io(DiskError::Exists {
                disk,
                name: self.text(),
            }),
            16 => io(DiskError::Full {
                disk,
                what: self.text(),
            }),
            17 => io(DiskError::NoDescriptor {
                disk,
                what: self.text(),
            }),
            18 => io(DiskError::Io {
                disk,
                what: self.text(),
                detail: self.text(),
            }),
            19 => io(DiskError::Short {
                disk,
                name: self.text(),
                len_bytes: self.any(),
                wanted_bytes: self.any(),
            }),
            _ => io(DiskError::InUse {
                disk,
                pid: self.flag().then(|| self.short()),
            }),
        }
    }

    fn any_fault(&mut self) -> Fault {
        let kind = self.word();
        self.fault(kind)
    }

    fn report(&mut self) -> DiskReport {
        DiskReport {
            disk: DiskId(self.wide()),
            label: self.text(),
            read_errors: self.any(),
            write_errors: self.any(),
            full_errors: self.any(),
            checksum_errors: self.any(),
            suspect: self.flag(),
            failed: self.flag(),
            silent: self.flag(),
            failing: self.flag(),
            writes_answered: self.any(),
            space: match self.flag() {
                true => Ok(DiskSpace {
                    total_bytes: self.any(),
                    free_bytes: self.any(),
                }),
                false => Err(self.any_fault()),
            },
            recycled_bytes: self.any(),
            recycled: self.list(|from| RecycledCount {
                capacity_bytes: from.any(),
                count: from.short(),
            }),
        }
    }

    fn request(&mut self, kind: u64) -> Request {
        match kind {
            0 => Request::Probe {},
            1 => Request::PrepareRecycled {
                count: self.short(),
                capacity_bytes: self.any(),
            },
            2 => Request::ReleaseRecycled {},
            3 => Request::Fence {
                volume: VolumeId(self.short()),
                epoch: self.epoch(),
            },
            4 => Request::Create {
                epoch: self.epoch(),
                name: self.name(),
                capacity_bytes: self.any(),
                kept_bytes: self.any(),
            },
            5 => Request::Append {
                epoch: self.epoch(),
                name: self.name(),
                places: self.list(Self::place),
            },
            6 => Request::Seal {
                epoch: self.epoch(),
                footer: self.footer(),
            },
            7 => Request::Stat { name: self.name() },
            8 => Request::Read {
                name: self.name(),
                place: self.place(),
            },
            9 => Request::ReadChecked {
                name: self.name(),
                place: self.place(),
                checksums: self.list(Self::short),
            },
            10 => Request::Repair {
                epoch: self.epoch(),
                name: self.name(),
                places: self.list(Self::place),
            },
            11 => Request::CreateHidden {
                epoch: self.epoch(),
                name: self.name(),
                capacity_bytes: self.any(),
                kept_bytes: self.any(),
            },
            12 => Request::Fill {
                epoch: self.epoch(),
                hidden: self.hidden(),
                place: self.place(),
            },
            13 => Request::CopyFrom {
                epoch: self.epoch(),
                hidden: self.hidden(),
                node: NodeId(self.wide()),
                disk: DiskId(self.wide()),
                place: self.place(),
                checksums: self.list(Self::short),
            },
            14 => Request::SealHidden {
                epoch: self.epoch(),
                hidden: self.hidden(),
                footer: self.footer(),
            },
            15 => Request::Publish {
                epoch: self.epoch(),
                hidden: self.hidden(),
            },
            16 => Request::Discard {
                epoch: self.epoch(),
                hidden: self.hidden(),
            },
            17 => Request::Remove {
                epoch: self.epoch(),
                name: self.name(),
            },
            18 => Request::List {
                volume: VolumeId(self.short()),
                after: self.flag().then(|| self.name()),
            },
            _ => Request::Sweep {
                epoch: self.epoch(),
                volume: VolumeId(self.short()),
                names: self.list(Self::name),
                mark: self.any(),
            },
        }
    }

    fn reply(&mut self, kind: u64) -> Reply {
        match kind {
            0 => Reply::Failed {
                fault: self.any_fault(),
            },
            1 => Reply::Done {},
            2 => Reply::Sealed {
                file_len_bytes: self.any(),
            },
            3 => Reply::Stat {
                file_len_bytes: self.any(),
                footer: match self.below(3) {
                    0 => Ok(None),
                    1 => Ok(Some(self.footer())),
                    _ => Err(self.any_fault()),
                },
                is_unsealed: self.flag(),
            },
            4 => Reply::Bytes {
                len_bytes: self.below(PLACE_LEN_BYTES_MAX) as u32,
            },
            5 => Reply::Checked {
                len_bytes: self.below(PLACE_LEN_BYTES_MAX) as u32,
                damaged: self.ranges(),
            },
            6 => Reply::Made {
                hidden: self.hidden(),
            },
            7 => Reply::Copied {
                copied: match self.below(4) {
                    0 => Copied::Whole {
                        checksums: self.list(Self::short),
                    },
                    1 => Copied::Damaged {
                        ranges: self.ranges(),
                    },
                    2 => Copied::Unread {
                        fault: self.any_fault(),
                    },
                    _ => Copied::NoWay {},
                },
            },
            8 => Reply::Listed {
                names: self.list(Self::name),
                mark: self.any(),
                promised: self.epoch(),
                has_more: self.flag(),
            },
            _ => Reply::Swept {
                removed: self.any(),
                kept: self.any(),
                errors: self.any(),
            },
        }
    }

    /// A message with its id and payload; of each kind below [`MESSAGE_KINDS`] there is one.
    pub fn message(&mut self, kind: u64) -> (u64, Message, Vec<Bytes>) {
        let message = match kind % MESSAGE_KINDS {
            0 => Message::Hello(Hello {
                version_min: self.short() as u16,
                version_max: self.short() as u16,
                cluster: PoolId(self.wide()),
                from: NodeId(self.wide()),
                to: NodeId(self.wide()),
            }),
            1 => Message::Welcome(Welcome {
                version: self.short() as u16,
                cluster: PoolId(self.wide()),
                node: NodeId(self.wide()),
                limits: Limits {
                    requests_max: self.short(),
                    bytes_max: self.any(),
                },
                disks: self.list(Self::report),
            }),
            2 => Message::Goodbye {
                reason: self.text(),
            },
            3 => Message::State {
                disks: self.list(Self::report),
            },
            4 => Message::Note {
                disk: DiskId(self.wide()),
                checksum_errors: self.short(),
            },
            5 => Message::Ping {},
            kind if kind < 6 + REQUEST_KINDS => Message::Request {
                disk: DiskId(self.wide()),
                request: self.request(kind - 6),
            },
            kind => Message::Reply(self.reply(kind - 6 - REQUEST_KINDS)),
        };
        let id = match message.has_id() {
            true => self.any().max(1),
            false => 0,
        };
        let lens = match &message {
            Message::Request {
                request: Request::Append { places, .. } | Request::Repair { places, .. },
                ..
            } => places.iter().map(|place| place.len_bytes.into()).collect(),
            other => vec![other.payload_len_bytes().unwrap_or(0)],
        };
        let part = |len_bytes| (0..len_bytes).map(|_| self.word() as u8).collect();
        let payload = lens.into_iter().map(part).collect();
        (id, message, payload)
    }
}
