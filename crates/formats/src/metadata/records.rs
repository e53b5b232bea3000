//! The values of the key space: typed records and their bytes.
//!
//! Owns: the byte layout of every value (docs/reference/formats/metadata.md). Pure: no I/O, no clock.
//! Must not know: keys, the log, which rules of POSIX the fields follow.
//!
//! The first byte of a value is its version; a value of a version above the known one is refused,
//! because guessing would be data loss. Integers are big-endian.

use bytes::Bytes;
use cairn_base::{
    Branch, DiskId, Epoch, Generation, Ino, LogPosition, Media, TierId, Timestamp, VolumeId, crc32c,
};

use super::fields::{Fields, put_time, put_u16, put_u32, put_u64};
use super::keys::{KeyError, NAME_LEN_BYTES_MAX};
use crate::pointer::{RecordPointer, decode_pointer, encode_pointer};
use crate::settings::Protection;

/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_LEN_BYTES_MAX: usize = 4095;
/// Most disks in a segment: 16 data and 4 parity shards.
pub const SEGMENT_DISK_COUNT_MAX: usize = 20;

/// The version of every value: its first byte.
pub(super) const VERSION: u8 = 1;

/// Why bytes are not the record they should be. The damage was there when the checksums of log and
/// state were made, so this is a newer version or a bug, never a flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("a {record} record of version {version} was written by a newer version of Cairn")]
    Version { record: &'static str, version: u8 },
    #[error("a {record} record is malformed at its field {field}")]
    Malformed {
        record: &'static str,
        field: &'static str,
    },
    #[error("damaged key: {0}")]
    Key(#[from] KeyError),
    #[error(
        "damaged extent {start}..{end} of inode {ino}: there are {room_len_bytes} bytes where it says"
    )]
    ExtentImpossible {
        ino: Ino,
        start: u64,
        end: u64,
        room_len_bytes: u32,
    },
}

/// What an inode is. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum InodeKind {
    Regular = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    BlockDevice = 6,
    CharDevice = 7,
}

impl InodeKind {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::BlockDevice,
            7 => Self::CharDevice,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    pub kind: InodeKind,
    /// Permission bits with set-uid, set-gid and sticky.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    /// Bytes of the file that are in extents.
    pub used_bytes: u64,
    /// What these take in segments, before parity.
    pub stored_bytes: u64,
    pub device_major: u32,
    pub device_minor: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// The directory that it was made in or moved to; 0 for what has no name yet.
    pub parent: Ino,
    /// The sequence number of its entry there: what leads from an inode to its name. Of a file with several names that may
    /// be one that is gone, so who follows it looks whether the entry names this inode. 0 for the root.
    pub cookie: u64,
    /// Names in this directory, without `.` and `..`.
    pub entry_count: u64,
    /// The sequence number that the next entry of this directory gets.
    pub cookie_next: u64,
    /// Goes into file handles with the inode number.
    pub generation: u64,
    /// Of an exclusive CREATE (RFC 1813, section 3.3.8).
    pub exclusive_verifier: Option<[u8; 8]>,
    /// At most [`SYMLINK_LEN_BYTES_MAX`] bytes.
    pub symlink_target: Bytes,
    /// Service level and protection by number; 0 is the volume's own.
    pub policy: u8,
    /// Bytes of the names of its extended attributes, each with a NUL; 0 when it has none.
    pub xattr_names_len_bytes: u32,
    /// The directory with a quota that it counts in; 0 is the volume.
    pub tree: Ino,
    /// It is a previous version of a file: nobody can change its bytes.
    pub is_frozen: bool,
    /// Until then, in seconds since 1970, nobody can change or remove it; 0 if it is free, `u64::MAX` without end.
    pub retained_until_seconds: u64,
}

/// What an inode record has beside its fixed part. The numbers are part of the format.
const INODE_HAS_VERIFIER: u8 = 1;
const INODE_HAS_XATTRS: u8 = 2;
const INODE_HAS_TREE: u8 = 4;
const INODE_HAS_COOKIE: u8 = 8;
const INODE_IS_FROZEN: u8 = 16;
const INODE_IS_RETAINED: u8 = 32;
const INODE_PARTS: u8 = INODE_HAS_VERIFIER
    | INODE_HAS_XATTRS
    | INODE_HAS_TREE
    | INODE_HAS_COOKIE
    | INODE_IS_FROZEN
    | INODE_IS_RETAINED;

impl InodeRecord {
    /// An inode of `kind` with all else zero or empty.
    pub fn new(kind: InodeKind) -> Self {
        Self {
            kind,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            used_bytes: 0,
            stored_bytes: 0,
            device_major: 0,
            device_minor: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            parent: Ino(0),
            cookie: 0,
            entry_count: 0,
            cookie_next: 0,
            generation: 0,
            exclusive_verifier: None,
            symlink_target: Bytes::new(),
            policy: 0,
            xattr_names_len_bytes: 0,
            tree: Ino(0),
            is_frozen: false,
            retained_until_seconds: 0,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        assert!(self.symlink_target.len() <= SYMLINK_LEN_BYTES_MAX);
        let mut out = Vec::with_capacity(128 + self.symlink_target.len());
        out.push(VERSION);
        out.push(self.kind as u8);
        out.push(self.policy);
        put_u32(&mut out, self.mode);
        put_u32(&mut out, self.nlink);
        put_u32(&mut out, self.uid);
        put_u32(&mut out, self.gid);
        put_u64(&mut out, self.size_bytes);
        put_u64(&mut out, self.used_bytes);
        put_u64(&mut out, self.stored_bytes);
        put_u32(&mut out, self.device_major);
        put_u32(&mut out, self.device_minor);
        put_time(&mut out, self.atime);
        put_time(&mut out, self.mtime);
        put_time(&mut out, self.ctime);
        put_u64(&mut out, self.parent.0);
        put_u64(&mut out, self.entry_count);
        put_u64(&mut out, self.cookie_next);
        put_u64(&mut out, self.generation);
        let mut has = 0;
        if self.exclusive_verifier.is_some() {
            has |= INODE_HAS_VERIFIER;
        }
        if self.xattr_names_len_bytes > 0 {
            has |= INODE_HAS_XATTRS;
        }
        if self.tree.0 > 0 {
            has |= INODE_HAS_TREE;
        }
        if self.cookie > 0 {
            has |= INODE_HAS_COOKIE;
        }
        if self.is_frozen {
            has |= INODE_IS_FROZEN;
        }
        if self.retained_until_seconds > 0 {
            has |= INODE_IS_RETAINED;
        }
        out.push(has);
        if let Some(verifier) = self.exclusive_verifier {
            out.extend_from_slice(&verifier);
        }
        if self.xattr_names_len_bytes > 0 {
            put_u32(&mut out, self.xattr_names_len_bytes);
        }
        if self.tree.0 > 0 {
            put_u64(&mut out, self.tree.0);
        }
        if self.cookie > 0 {
            put_u64(&mut out, self.cookie);
        }
        if self.retained_until_seconds > 0 {
            put_u64(&mut out, self.retained_until_seconds);
        }
        put_u16(&mut out, self.symlink_target.len() as u16);
        out.extend_from_slice(&self.symlink_target);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("inode", bytes)?;
        let mut record = Self {
            kind: InodeKind::from_u8(fields.u8("kind")?).ok_or(fields.malformed("kind"))?,
            policy: fields.u8("policy")?,
            mode: fields.u32("mode")?,
            nlink: fields.u32("nlink")?,
            uid: fields.u32("uid")?,
            gid: fields.u32("gid")?,
            size_bytes: fields.u64("size")?,
            used_bytes: fields.u64("used")?,
            stored_bytes: fields.u64("stored")?,
            device_major: fields.u32("device")?,
            device_minor: fields.u32("device")?,
            atime: fields.time("atime")?,
            mtime: fields.time("mtime")?,
            ctime: fields.time("ctime")?,
            parent: Ino(fields.u64("parent")?),
            cookie: 0,
            entry_count: fields.u64("entry count")?,
            cookie_next: fields.u64("next cookie")?,
            generation: fields.u64("generation")?,
            exclusive_verifier: None,
            symlink_target: Bytes::new(),
            xattr_names_len_bytes: 0,
            tree: Ino(0),
            is_frozen: false,
            retained_until_seconds: 0,
        };
        let has = fields.u8("parts")?;
        if has & !INODE_PARTS != 0 {
            return Err(fields.malformed("parts"));
        }
        record.is_frozen = has & INODE_IS_FROZEN != 0;
        if has & INODE_HAS_VERIFIER != 0 {
            record.exclusive_verifier = Some(fields.array("verifier")?);
        }
        if has & INODE_HAS_XATTRS != 0 {
            record.xattr_names_len_bytes = fields.u32("xattr names")?;
            if record.xattr_names_len_bytes == 0 {
                return Err(fields.malformed("xattr names"));
            }
        }
        if has & INODE_HAS_TREE != 0 {
            record.tree = Ino(fields.u64("tree")?);
            if record.tree.0 == 0 {
                return Err(fields.malformed("tree"));
            }
        }
        if has & INODE_HAS_COOKIE != 0 {
            record.cookie = fields.u64("cookie")?;
            if record.cookie == 0 {
                return Err(fields.malformed("cookie"));
            }
        }
        if has & INODE_IS_RETAINED != 0 {
            record.retained_until_seconds = fields.u64("retention")?;
            if record.retained_until_seconds == 0 {
                return Err(fields.malformed("retention"));
            }
        }
        let len = fields.u16("target")? as usize;
        if len > SYMLINK_LEN_BYTES_MAX {
            return Err(fields.malformed("target"));
        }
        record.symlink_target = Bytes::copy_from_slice(fields.take(len, "target")?);
        fields.end()?;
        Ok(record)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirentRecord {
    pub ino: Ino,
    pub kind: InodeKind,
    /// The sequence number of the entry's cookie key.
    pub cookie: u64,
}

impl DirentRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18);
        out.push(VERSION);
        out.push(self.kind as u8);
        put_u64(&mut out, self.ino.0);
        put_u64(&mut out, self.cookie);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("dirent", bytes)?;
        let record = Self {
            kind: InodeKind::from_u8(fields.u8("kind")?).ok_or(fields.malformed("kind"))?,
            ino: Ino(fields.u64("ino")?),
            cookie: fields.u64("cookie")?,
        };
        fields.end()?;
        Ok(record)
    }
}

/// A request that changed something, so that it is known when it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// Tells requests apart; the edge defines its content.
    pub id: [u8; REQUEST_ID_LEN_BYTES],
    /// Counts them over the life of the volume.
    pub sequence: u64,
    /// The inode that was made, changed or removed.
    pub ino: Ino,
}

/// Bytes that tell requests apart.
pub const REQUEST_ID_LEN_BYTES: usize = 32;

impl RequestRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17 + REQUEST_ID_LEN_BYTES);
        out.push(VERSION);
        out.extend_from_slice(&self.id);
        put_u64(&mut out, self.sequence);
        put_u64(&mut out, self.ino.0);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("request", bytes)?;
        let record = Self {
            id: fields.array("id")?,
            sequence: fields.u64("sequence")?,
            ino: Ino(fields.u64("ino")?),
        };
        fields.end()?;
        Ok(record)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieRecord {
    pub ino: Ino,
    pub kind: InodeKind,
    /// 1 to [`NAME_LEN_BYTES_MAX`] bytes without NUL.
    pub name: Bytes,
}

impl CookieRecord {
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.name.len() <= NAME_LEN_BYTES_MAX);
        let mut out = Vec::with_capacity(10 + self.name.len());
        out.push(VERSION);
        out.push(self.kind as u8);
        put_u64(&mut out, self.ino.0);
        out.extend_from_slice(&self.name);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("cookie", bytes)?;
        let kind = InodeKind::from_u8(fields.u8("kind")?).ok_or(fields.malformed("kind"))?;
        let ino = Ino(fields.u64("ino")?);
        let name = fields.rest;
        if name.is_empty() || name.len() > NAME_LEN_BYTES_MAX || name.contains(&0) {
            return Err(fields.malformed("name"));
        }
        let name = Bytes::copy_from_slice(name);
        Ok(Self { ino, kind, name })
    }
}

/// Where bytes `start..end` of a file are; the end is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    pub start: u64,
    pub place: ExtentPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentPlace {
    Record {
        record: RecordPointer,
        /// In the file bytes of the record, before compression.
        offset_in_record: u32,
    },
    /// Here, at most [`INLINE_LEN_BYTES_MAX`] of them.
    Inline(Bytes),
}

/// Most bytes of a file in one extent of its own. Why so many: `docs/design/data.md`.
pub const INLINE_LEN_BYTES_MAX: usize = 128;

const IN_RECORD: u8 = 0;
const INLINE: u8 = 1;

impl ExtentPlace {
    /// How many bytes of a file there are from its offset on.
    pub fn room_len_bytes(&self) -> u32 {
        match self {
            Self::Record {
                record,
                offset_in_record,
            } => record.file_len_bytes.saturating_sub(*offset_in_record),
            Self::Inline(bytes) => bytes.len() as u32,
        }
    }

    /// What `len_bytes` of a file in it take as stored, before parity.
    pub fn stored_len_bytes(&self, len_bytes: u64) -> u64 {
        match self {
            Self::Record { record, .. } => {
                let stored = u64::from(record.location.len_bytes);
                let whole = u64::from(record.file_len_bytes).max(1);
                stored.saturating_mul(len_bytes).div_ceil(whole)
            }
            Self::Inline(_) => len_bytes,
        }
    }
}

impl ExtentRecord {
    /// Panics on inline bytes that are none, or too many.
    pub fn encode(&self) -> Vec<u8> {
        match &self.place {
            ExtentPlace::Record {
                record,
                offset_in_record,
            } => {
                let mut out = Vec::with_capacity(48 + 4 * record.checksums.len());
                out.push(VERSION);
                out.push(IN_RECORD);
                put_u64(&mut out, self.start);
                put_u32(&mut out, *offset_in_record);
                encode_pointer(record, &mut out);
                out
            }
            ExtentPlace::Inline(bytes) => {
                assert!((1..=INLINE_LEN_BYTES_MAX).contains(&bytes.len()));
                let mut out = Vec::with_capacity(14 + bytes.len());
                out.push(VERSION);
                out.push(INLINE);
                put_u64(&mut out, self.start);
                put_u32(&mut out, crc32c(bytes));
                out.extend_from_slice(bytes);
                out
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("extent", bytes)?;
        let kind = fields.u8("kind")?;
        let start = fields.u64("start")?;
        let place = match kind {
            IN_RECORD => {
                let offset_in_record = fields.u32("offset in record")?;
                let decoded = decode_pointer(fields.rest);
                let (record, rest) = decoded.map_err(|_| fields.malformed("pointer"))?;
                fields.rest = rest;
                fields.end()?;
                if offset_in_record > record.file_len_bytes {
                    return Err(fields.malformed("offset in record"));
                }
                ExtentPlace::Record {
                    record,
                    offset_in_record,
                }
            }
            INLINE => {
                let checksum = fields.u32("checksum")?;
                let bytes = fields.rest;
                if !(1..=INLINE_LEN_BYTES_MAX).contains(&bytes.len()) {
                    return Err(fields.malformed("bytes"));
                }
                if crc32c(bytes) != checksum {
                    return Err(fields.malformed("checksum"));
                }
                ExtentPlace::Inline(Bytes::copy_from_slice(bytes))
            }
            _ => return Err(fields.malformed("kind")),
        };
        Ok(Self { start, place })
    }
}

/// Where the bytes of a segment are that is on no disk any more: in an object of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    pub tier: TierId,
    /// Random, and part of the object's key: no key is ever written twice.
    pub nonce: u128,
    /// All of the object, its trailer included.
    pub object_len_bytes: u64,
    /// Stored bytes that extents named when it was sent.
    pub sent_live_bytes: u64,
}

/// A protection of [`Protection::number`]; 0 is none of its own.
pub(super) fn protection_of(number: u8) -> Option<Option<Protection>> {
    match number {
        0 => Some(None),
        number => Protection::of_number(number).map(Some),
    }
}

/// A segment as the volume's metadata knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Data and parity shards of its code.
    pub data: u8,
    pub parity: u8,
    /// The disk of each shard, data first; at most [`SEGMENT_DISK_COUNT_MAX`].
    pub disks: Vec<DiskId>,
    pub shard_len_bytes: u64,
    pub sealed: bool,
    /// The epoch it was made in.
    pub epoch: Epoch,
    /// Stored bytes and records that extents still name. Changed by deltas only.
    pub live_bytes: u64,
    pub live_records: u64,
    /// If it is in a tier. Then it has no disks, and `shard_len_bytes` is the share of each data shard in the object.
    pub remote: Option<RemoteSegment>,
    /// The day (since 1970) on which clients used it last, as far as that was noted; 0: it was not yet.
    pub used_day: u32,
    /// The device class that it is to be on, if that matters.
    pub media: Option<Media>,
    /// The protection that it asks for, if not that of the volume.
    pub protection: Option<Protection>,
}

impl SegmentRecord {
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.disks.len() <= SEGMENT_DISK_COUNT_MAX);
        let mut out = Vec::with_capacity(40 + 16 * self.disks.len());
        out.push(VERSION);
        out.push(self.data);
        out.push(self.parity);
        out.push(u8::from(self.sealed));
        put_u64(&mut out, self.shard_len_bytes);
        put_u64(&mut out, self.epoch.0);
        put_u64(&mut out, self.live_bytes);
        put_u64(&mut out, self.live_records);
        out.push(self.disks.len() as u8);
        for disk in &self.disks {
            out.extend_from_slice(&disk.0.to_be_bytes());
        }
        put_u32(&mut out, self.used_day);
        out.push(self.media.map_or(0, Media::number));
        out.push(self.protection.map_or(0, Protection::number));
        match &self.remote {
            None => out.push(0),
            Some(remote) => {
                out.push(1);
                put_u32(&mut out, remote.tier.0);
                out.extend_from_slice(&remote.nonce.to_be_bytes());
                put_u64(&mut out, remote.object_len_bytes);
                put_u64(&mut out, remote.sent_live_bytes);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("segment", bytes)?;
        let data = fields.u8("data")?;
        let parity = fields.u8("parity")?;
        let sealed = fields.bool("sealed")?;
        let shard_len_bytes = fields.u64("shard length")?;
        let epoch = Epoch(fields.u64("epoch")?);
        let live_bytes = fields.u64("live bytes")?;
        let live_records = fields.u64("live records")?;
        let count = fields.u8("disks")? as usize;
        if count > SEGMENT_DISK_COUNT_MAX {
            return Err(fields.malformed("disks"));
        }
        let mut disks = Vec::with_capacity(count);
        for _ in 0..count {
            disks.push(DiskId(u128::from_be_bytes(fields.array("disks")?)));
        }
        let used_day = fields.u32("used day")?;
        let media = Media::of_number(fields.u8("media")?).ok_or(fields.malformed("media"))?;
        let protection = protection_of(fields.u8("protection")?);
        let protection = protection.ok_or(fields.malformed("protection"))?;
        let remote = match fields.bool("remote")? {
            false => None,
            true => Some(RemoteSegment {
                tier: TierId(fields.u32("tier")?),
                nonce: u128::from_be_bytes(fields.array("nonce")?),
                object_len_bytes: fields.u64("object length")?,
                sent_live_bytes: fields.u64("live bytes sent")?,
            }),
        };
        if remote.is_some() && !disks.is_empty() {
            return Err(fields.malformed("remote"));
        }
        fields.end()?;
        Ok(Self {
            remote,
            used_day,
            media,
            protection,
            data,
            parity,
            disks,
            shard_len_bytes,
            sealed,
            epoch,
            live_bytes,
            live_records,
        })
    }
}

/// A snapshot of a volume. Its generation, the last one that it shows, is in its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// A valid name of a file.
    pub name: Bytes,
    pub taken: Timestamp,
    /// It cannot be deleted.
    pub is_locked: bool,
    /// Nobody sees it any more, and what only it held is being freed.
    pub is_deleted: bool,
    /// The volume is to become what it shows, before anybody sees the volume again.
    pub is_restoring: bool,
    /// The schedule that took it, which deletes it in its time; empty for one taken by hand.
    pub schedule: Bytes,
    /// Counters of the live view when it was taken.
    pub inodes: u64,
    pub file_bytes: u64,
    /// The group that it is taken with, as long as it is not known that all volumes of the group have theirs: nobody sees it
    /// before. 0: none, or that is known.
    pub undecided_group: u64,
    /// Whose it is.
    pub branch: Branch,
    /// Those that began from it. It cannot be deleted as long as there are any.
    pub clones: Vec<CloneRecord>,
}

/// Most clones of one snapshot.
pub const CLONE_COUNT_MAX: usize = 1024;

/// A branch that began from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRecord {
    pub branch: Branch,
    pub volume: VolumeId,
    /// Nobody sees it any more, and what only it had is being freed.
    pub is_deleted: bool,
    /// No inode that it began with has this number or one above.
    pub ino_mark: u64,
    /// Inodes without a name that the snapshot counts, and their bytes: the branch has none of them.
    pub nameless_inodes: u64,
    pub nameless_bytes: u64,
}

impl SnapshotRecord {
    /// Panics on names longer than [`NAME_LEN_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.name.len().max(self.schedule.len()) <= NAME_LEN_BYTES_MAX);
        let mut out = Vec::with_capacity(48 + self.name.len() + self.schedule.len());
        out.push(VERSION);
        out.push(u8::from(self.is_locked));
        out.push(u8::from(self.is_deleted));
        out.push(u8::from(self.is_restoring));
        put_time(&mut out, self.taken);
        put_u64(&mut out, self.inodes);
        put_u64(&mut out, self.file_bytes);
        put_u64(&mut out, self.undecided_group);
        for text in [&self.name, &self.schedule] {
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
        out.extend_from_slice(&self.branch.0.to_be_bytes());
        out.extend_from_slice(&(self.clones.len() as u16).to_be_bytes());
        for clone in &self.clones {
            out.extend_from_slice(&clone.branch.0.to_be_bytes());
            out.extend_from_slice(&clone.volume.0.to_be_bytes());
            out.push(u8::from(clone.is_deleted));
            put_u64(&mut out, clone.ino_mark);
            put_u64(&mut out, clone.nameless_inodes);
            put_u64(&mut out, clone.nameless_bytes);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("snapshot", bytes)?;
        let is_locked = fields.bool("locked")?;
        let is_deleted = fields.bool("deleted")?;
        let is_restoring = fields.bool("restoring")?;
        let taken = fields.time("taken")?;
        let inodes = fields.u64("inodes")?;
        let file_bytes = fields.u64("file bytes")?;
        let undecided_group = fields.u64("group")?;
        let name_len = usize::from(fields.u8("name")?);
        let name = fields.take(name_len, "name")?;
        let schedule_len = usize::from(fields.u8("schedule")?);
        let schedule = fields.take(schedule_len, "schedule")?;
        let branch = Branch(fields.u16("branch")?);
        let clone_count = usize::from(fields.u16("clones")?);
        if clone_count > CLONE_COUNT_MAX {
            return Err(fields.malformed("clones"));
        }
        let mut clones = Vec::with_capacity(clone_count);
        for _ in 0..clone_count {
            clones.push(CloneRecord {
                branch: Branch(fields.u16("clone")?),
                volume: VolumeId(fields.u32("clone")?),
                is_deleted: fields.bool("clone")?,
                ino_mark: fields.u64("clone")?,
                nameless_inodes: fields.u64("clone")?,
                nameless_bytes: fields.u64("clone")?,
            });
        }
        fields.end()?;
        let is_good = !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
        if !is_good || is_deleted && (is_locked || is_restoring) {
            return Err(fields.malformed("name"));
        }
        let is_clone = |clone: &CloneRecord| {
            !clone.branch.is_main() && clone.branch <= Branch::LAST && clone.branch != branch
        };
        if branch > Branch::LAST || !clones.iter().all(is_clone) || is_deleted && clone_count > 0 {
            return Err(fields.malformed("clones"));
        }
        Ok(Self {
            name: Bytes::copy_from_slice(name),
            taken,
            is_locked,
            is_deleted,
            is_restoring,
            schedule: Bytes::copy_from_slice(schedule),
            inodes,
            file_bytes,
            undecided_group,
            branch,
            clones,
        })
    }
}

/// How far the state has come; written with every group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppliedRecord {
    pub position: LogPosition,
    /// The term that wrote the record at `position`.
    pub epoch: Epoch,
    pub term: u64,
}

impl AppliedRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(25);
        out.push(VERSION);
        put_u64(&mut out, self.position.0);
        put_u64(&mut out, self.epoch.0);
        put_u64(&mut out, self.term);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("applied", bytes)?;
        let record = Self {
            position: LogPosition(fields.u64("position")?),
            epoch: Epoch(fields.u64("epoch")?),
            term: fields.u64("term")?,
        };
        fields.end()?;
        Ok(record)
    }
}

/// The volume's counters, as absolute values at one log position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountersRecord {
    /// That changes are made in. Taking a snapshot ends it.
    pub generation: Generation,
    pub inodes: u64,
    pub file_bytes: u64,
    /// That extents of the live view and of the history name.
    pub stored_bytes: u64,
    /// The part of these that the history names.
    pub history_bytes: u64,
    /// No inode number at or above this was ever given out.
    pub ino_reserved: u64,
    /// No segment id at or above this was ever given out.
    pub segment_reserved: u64,
    /// No branch at or above this was ever made.
    pub branch_next: u16,
}

impl CountersRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(57);
        out.push(VERSION);
        put_u64(&mut out, self.generation.0);
        put_u64(&mut out, self.inodes);
        put_u64(&mut out, self.file_bytes);
        put_u64(&mut out, self.stored_bytes);
        put_u64(&mut out, self.history_bytes);
        put_u64(&mut out, self.ino_reserved);
        put_u64(&mut out, self.segment_reserved);
        out.extend_from_slice(&self.branch_next.to_be_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("counters", bytes)?;
        let record = Self {
            generation: Generation(fields.u64("generation")?),
            inodes: fields.u64("inodes")?,
            file_bytes: fields.u64("file bytes")?,
            stored_bytes: fields.u64("stored bytes")?,
            history_bytes: fields.u64("history bytes")?,
            ino_reserved: fields.u64("inode mark")?,
            segment_reserved: fields.u64("segment mark")?,
            branch_next: fields.u16("branch mark")?,
        };
        fields.end()?;
        // There are always more to give out.
        if record.ino_reserved.max(record.segment_reserved) > u64::MAX / 2 {
            return Err(fields.malformed("mark"));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::check::{check, check_open};
    use crate::pointer::{Codec, Location};
    use proptest::prelude::*;

    fn inode() -> InodeRecord {
        InodeRecord {
            mode: 0o644,
            size_bytes: u64::MAX,
            mtime: Timestamp::new(-1, 999_999_999),
            exclusive_verifier: Some(*b"verifier"),
            symlink_target: Bytes::from_static(b"../x"),
            ..InodeRecord::new(InodeKind::Symlink)
        }
    }

    fn extent() -> ExtentRecord {
        let record = RecordPointer {
            location: Location {
                segment: cairn_base::SegmentId(9),
                stripe_block: 1,
                unit_blocks: 2,
                offset_bytes: 3,
                len_bytes: 40_000,
            },
            codec: Codec::Raw,
            file_len_bytes: 40_000,
            checksums: vec![1, 2],
            encryption: None,
        };
        ExtentRecord {
            start: 5,
            place: ExtentPlace::Record {
                record,
                offset_in_record: 7,
            },
        }
    }

    fn inline(len: usize) -> ExtentRecord {
        ExtentRecord {
            start: 5,
            place: ExtentPlace::Inline(vec![0xa5; len].into()),
        }
    }

    #[test]
    fn bytes_in_an_extent_are_bounded_and_checked() {
        for len in [1, 2, INLINE_LEN_BYTES_MAX] {
            let stored = inline(len).encode();
            assert_eq!(ExtentRecord::decode(&stored), Ok(inline(len)));
            for at in 0..stored.len() {
                let mut flipped = stored.clone();
                flipped[at] ^= 0x20;
                // The start has no checksum of its own, as of any extent.
                let is_start = (2..10).contains(&at);
                let found = ExtentRecord::decode(&flipped);
                assert_eq!(found.is_err(), !is_start, "{len} {at}");
            }
        }
        let refused = |bytes: &[u8]| {
            let mut stored = vec![VERSION, INLINE];
            put_u64(&mut stored, 5);
            put_u32(&mut stored, crc32c(bytes));
            stored.extend_from_slice(bytes);
            ExtentRecord::decode(&stored)
        };
        let malformed = RecordError::Malformed {
            record: "extent",
            field: "bytes",
        };
        assert_eq!(refused(&[]), Err(malformed));
        assert_eq!(refused(&[1; INLINE_LEN_BYTES_MAX + 1]), Err(malformed));
    }

    fn segment() -> SegmentRecord {
        SegmentRecord {
            data: 1,
            parity: 1,
            disks: vec![DiskId(1), DiskId(u128::MAX)],
            shard_len_bytes: 1 << 26,
            sealed: true,
            epoch: Epoch(3),
            live_bytes: 4,
            live_records: 5,
            remote: None,
            used_day: 20_000,
            media: Some(Media::Ssd),
            protection: Some(Protection::Mirror(3)),
        }
    }

    fn remote_segment() -> SegmentRecord {
        SegmentRecord {
            disks: Vec::new(),
            remote: Some(RemoteSegment {
                tier: TierId(3),
                nonce: u128::MAX - 1,
                object_len_bytes: 1 << 27,
                sent_live_bytes: 1 << 26,
            }),
            ..segment()
        }
    }

    #[test]
    fn records_are_read_back_or_refused() {
        let with_xattrs = InodeRecord {
            xattr_names_len_bytes: 7,
            ..inode()
        };
        let plain = InodeRecord::new(InodeKind::Regular);
        let in_tree = InodeRecord {
            tree: Ino(12),
            cookie: 14,
            stored_bytes: 13,
            ..inode()
        };
        let kept = InodeRecord {
            is_frozen: true,
            retained_until_seconds: 1,
            ..in_tree.clone()
        };
        for inode in [inode(), with_xattrs, plain, in_tree, kept] {
            check(&inode, inode.encode(), InodeRecord::decode);
        }
        check(&extent(), extent().encode(), ExtentRecord::decode);
        check(&inline(9), inline(9).encode(), ExtentRecord::decode);
        for segment in [segment(), remote_segment()] {
            check(&segment, segment.encode(), SegmentRecord::decode);
        }
        let dirent = DirentRecord {
            ino: Ino(1),
            kind: InodeKind::Fifo,
            cookie: 2,
        };
        check(&dirent, dirent.encode(), DirentRecord::decode);
        let request = RequestRecord {
            id: [7; REQUEST_ID_LEN_BYTES],
            sequence: 1,
            ino: Ino(2),
        };
        check(&request, request.encode(), RequestRecord::decode);
        let cookie = CookieRecord {
            ino: Ino(1),
            kind: InodeKind::Regular,
            name: Bytes::from_static(b"name"),
        };
        check_open(&cookie, cookie.encode(), CookieRecord::decode);
        let applied = AppliedRecord {
            position: LogPosition(1),
            epoch: Epoch(2),
            term: 3,
        };
        check(&applied, applied.encode(), AppliedRecord::decode);
        let counters = CountersRecord {
            generation: Generation::FIRST,
            inodes: 1,
            file_bytes: 2,
            stored_bytes: 3,
            history_bytes: 2,
            ino_reserved: 4,
            segment_reserved: 5,
            branch_next: 3,
        };
        check(&counters, counters.encode(), CountersRecord::decode);
        let snapshot = SnapshotRecord {
            name: Bytes::from_static(b"daily.0"),
            taken: Timestamp::new(5, 6),
            is_locked: true,
            is_deleted: false,
            is_restoring: true,
            schedule: Bytes::from_static(b"daily"),
            inodes: 7,
            file_bytes: 8,
            undecided_group: 9,
            branch: Branch(1),
            clones: vec![CloneRecord {
                branch: Branch(2),
                volume: VolumeId(9),
                is_deleted: true,
                ino_mark: 77,
                nameless_inodes: 2,
                nameless_bytes: 5000,
            }],
        };
        check(&snapshot, snapshot.encode(), SnapshotRecord::decode);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(0u8.., 0..200), versioned: bool) {
            if let (true, Some(first)) = (versioned, bytes.first_mut()) {
                *first = VERSION;
            }
            let _ = InodeRecord::decode(&bytes);
            let _ = DirentRecord::decode(&bytes);
            let _ = CookieRecord::decode(&bytes);
            let _ = RequestRecord::decode(&bytes);
            let _ = ExtentRecord::decode(&bytes);
            let _ = SegmentRecord::decode(&bytes);
            let _ = AppliedRecord::decode(&bytes);
            let _ = CountersRecord::decode(&bytes);
            let _ = SnapshotRecord::decode(&bytes);
        }
    }
}
