//! Names of shards, and of the files that hold them.

use std::fmt;

use cairn_base::{SegmentId, VolumeId};

/// Names one shard of a pool for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardName {
    pub volume: VolumeId,
    pub segment: SegmentId,
    /// Which shard of the segment: 0.. for data, then parity.
    pub index: u8,
}

/// Segments never get such ids: these name files of the volume's log.
const LOG_BIT: u64 = 1 << 63;
/// Nor these: without [`LOG_BIT`] they name parts of copies of the volume's state.
const STATE_BIT: u64 = 1 << 62;

/// Numbers of log files and of parts of the state are below this.
pub const FILE_NUMBER_END: u64 = STATE_BIT;

/// The kind of content of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShardKind {
    Segment,
    /// A file of the volume's log, with its number.
    Log(u64),
    /// A part of a copy of the volume's state, with its number.
    State(u64),
}

impl ShardName {
    /// The file of an ensemble of the volume's log, the same on all its disks. `ensemble` is below [`FILE_NUMBER_END`].
    pub fn of_log(volume: VolumeId, ensemble: u64) -> Self {
        Self {
            volume,
            segment: SegmentId(LOG_BIT | ensemble),
            index: 0,
        }
    }

    /// A part of a copy of the volume's state, the same on all its disks. `number` is below [`FILE_NUMBER_END`].
    pub fn of_state(volume: VolumeId, number: u64) -> Self {
        Self {
            volume,
            segment: SegmentId(STATE_BIT | number),
            index: 0,
        }
    }

    pub fn kind(&self) -> ShardKind {
        let id = self.segment.0;
        match (id & LOG_BIT != 0, id & STATE_BIT != 0) {
            (true, _) => ShardKind::Log(id & !LOG_BIT),
            (false, true) => ShardKind::State(id & !STATE_BIT),
            (false, false) => ShardKind::Segment,
        }
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ShardKind::Log(number) => write!(f, "{}/log {number:x}", self.volume),
            ShardKind::State(number) => write!(f, "{}/state {number:x}", self.volume),
            ShardKind::Segment => write!(f, "{}/{}.{}", self.volume, self.segment, self.index),
        }
    }
}

/// Empty files named after the volumes that have, or had, shards here: a disk cannot list folders.
pub const VOLUMES_FOLDER: &str = "shard-volumes";

/// Shards that are being rebuilt; what a crash leaves here is removed at the next start.
pub const HIDDEN_FOLDER: &str = "rebuild";

/// `number` tells those apart that are made of one shard at a time: each is filled by somebody else.
pub fn hidden_path(name: ShardName, number: u64) -> String {
    format!(
        "{HIDDEN_FOLDER}/{:08x}.{:016x}.{:02}.{number:x}",
        name.volume.0, name.segment.0, name.index
    )
}

pub fn shards_folder(volume: VolumeId) -> String {
    format!("shards/{:08x}", volume.0)
}

pub fn shard_path(name: ShardName) -> String {
    let folder = shards_folder(name.volume);
    format!("{folder}/{:016x}.{:02}", name.segment.0, name.index)
}

/// Reads the last part of a shard's path; `None` for any other file.
pub fn parse_shard(volume: VolumeId, file_name: &str) -> Option<ShardName> {
    let (segment, index) = file_name.split_once('.')?;
    let name = ShardName {
        volume,
        segment: SegmentId(u64::from_str_radix(segment, 16).ok()?),
        index: index.parse().ok()?,
    };
    // Only the one way in which we write it: signs, capitals and lengths of others are not ours.
    (shard_path(name).rsplit('/').next() == Some(file_name)).then_some(name)
}

pub fn volume_path(volume: VolumeId) -> String {
    format!("{VOLUMES_FOLDER}/{:08x}", volume.0)
}

pub fn parse_volume(file_name: &str) -> Option<VolumeId> {
    let volume = VolumeId(u32::from_str_radix(file_name, 16).ok()?);
    (format!("{:08x}", volume.0) == file_name).then_some(volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_in_the_shard() {
        let volume = VolumeId(10);
        for number in [0, 1, FILE_NUMBER_END - 1] {
            let log = ShardName::of_log(volume, number);
            let state = ShardName::of_state(volume, number);
            assert_eq!(log.kind(), ShardKind::Log(number));
            assert_eq!(state.kind(), ShardKind::State(number));
            for name in [log, state] {
                let path = shard_path(name);
                let file_name = path.rsplit('/').next().unwrap_or_default();
                assert_eq!(parse_shard(volume, file_name), Some(name));
            }
        }
        let segment = ShardName {
            volume,
            segment: SegmentId(FILE_NUMBER_END - 1),
            index: 3,
        };
        assert_eq!(segment.kind(), ShardKind::Segment);
    }

    #[test]
    fn file_names_are_read_or_refused() {
        let shard = |segment, index| ShardName {
            volume: VolumeId(10),
            segment: SegmentId(segment),
            index,
        };
        let cases: &[(&str, Option<ShardName>)] = &[
            ("00000000000000ff.03", Some(shard(255, 3))),
            ("ffffffffffffffff.255", Some(shard(u64::MAX, 255))),
            ("00000000000000FF.03", None),
            ("00000000000000ff.3", None),
            ("00000000000000ff.003", None),
            ("00000000000000ff.256", None),
            ("0ff.03", None),
            ("+0000000000000ff.03", None),
            ("00000000000000ff", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_shard(VolumeId(10), text), *want, "{text:?}");
        }
        assert_eq!(
            shard_path(shard(255, 3)),
            "shards/0000000a/00000000000000ff.03"
        );
        assert_eq!(parse_volume("0000000a"), Some(VolumeId(10)));
        assert_eq!(parse_volume("a"), None);
    }
}
