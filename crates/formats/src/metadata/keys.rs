//! The key-space table: every kind of key a volume has, how it is written, how it is read.
//!
//! Owns: tags, field order, range ends. Must not know: what the values hold, the log, RocksDB.
//!
//! A key is a tag byte, then its fields, integers big-endian so that byte order is number order,
//! names ended by 0x00 (a name never holds NUL, so `a` sorts before `ab` and no key is the prefix
//! of another).
//!
//! The newest version of a key stands at the key itself. The value of a key that snapshots see begins with the
//! generation in which that version was born ([`super::versions`]). The first change of a version that a snapshot sees
//! moves it to a history key, and adds a dead key, by which it is found when the snapshot goes.
//!
//! | tag | key | value | versions |
//! |---|---|---|---|
//! | 0x01 | applied | [`super::records::AppliedRecord`] | no: generation 0 |
//! | 0x02 | counters | [`super::records::CountersRecord`] | no |
//! | 0x03 | lineage | 8 random bytes, made with each state that starts a line of files | no |
//! | 0x10 | inode: ino u64 | [`super::records::InodeRecord`] | yes |
//! | 0x11 | dirent: dir u64, name, 0x00 | [`super::records::DirentRecord`] | yes |
//! | 0x12 | cookie: dir u64, seq u64 | [`super::records::CookieRecord`] | yes |
//! | 0x13 | extent: ino u64, end offset u64 | [`super::records::ExtentRecord`] | yes |
//! | 0x14 | xattr: ino u64, name, 0x00 | the bytes of the attribute after a version byte | yes |
//! | 0x15 | acl: ino u64 (reserved) | | yes |
//! | 0x16 | orphan: ino u64 | a version byte | yes |
//! | 0x17 | gone: ino u64 | a version byte: what a branch had from its beginning is removed there | yes |
//! | 0x20 | segment: id u64 | [`super::records::SegmentRecord`] | no |
//! | 0x21 | snapshot: generation u64 | [`super::records::SnapshotRecord`] | no |
//! | 0x22 | quota: tree u64, kind u8, id u32 | [`super::quota::QuotaRecord`] | no |
//! | 0x23 | dedupe: hash, 32 bytes (reserved) | | yes |
//! | 0x24 | sharer: segment u64, ino u64, start u64, end u64 | a version byte | no |
//! | 0x25 | request: slot u16 | [`super::records::RequestRecord`] | no |
//! | 0x26 | usage: tree u64, kind u8, id u32 | [`super::quota::UsageRecord`] | no |
//! | 0x27 | grace: tree u64, kind u8, id u32 | [`super::quota::GraceRecord`] | no |
//! | 0x28 | policy: directory u64 | [`super::policy::PolicyRecord`] | no |
//! | 0x29 | apply | [`super::policy::ApplyRecord`] | no |
//! | 0x2a | unused object: tier u32, segment u64, nonce u128 | a version byte | no |
//! | 0x2b | lock client: number u64 | [`super::locks::LockClientRecord`] | no |
//! | 0x2c | lock range: ino u64, number u64 | [`super::locks::LockRangeRecord`] | no |
//! | 0x2d | share denial: ino u64, number u64 | [`super::locks::LockShareRecord`] | no |
//! | 0x2e | lock lease: ino u64, number u64 | [`super::locks::LockLeaseRecord`] | no |
//! | 0x30 | history: the key, generation of death u64 | what the key held, with its generation of birth | no |
//! | 0x31 | dead: generation of death u64, of birth u64, the key | a version byte | no |
//!
//! Tags 0x01 to 0x0f, 0x20, 0x21, 0x26, 0x30 and 0x31 are written by the store alone.

use std::fmt;

use cairn_base::{Branch, Generation, Ino, SegmentId, TierId};
use smallvec::SmallVec;

use super::quota::{QuotaKey, QuotaKind};

/// Longest name in a key (directory entries, extended attributes), in bytes.
pub const NAME_LEN_BYTES_MAX: usize = 255;
/// Longest key, in bytes: a mark of an entry of a directory in the history.
pub const KEY_LEN_BYTES_MAX: usize = 1 + 2 * GENERATION_LEN_BYTES + 1 + 8 + NAME_LEN_BYTES_MAX + 1;
/// Bytes of a generation in a key.
pub const GENERATION_LEN_BYTES: usize = 8;

const TAG_APPLIED: u8 = 0x01;
const TAG_COUNTERS: u8 = 0x02;
const TAG_LINEAGE: u8 = 0x03;
const TAG_INODE: u8 = 0x10;
const TAG_DIRENT: u8 = 0x11;
const TAG_COOKIE: u8 = 0x12;
const TAG_EXTENT: u8 = 0x13;
const TAG_XATTR: u8 = 0x14;
const TAG_ACL: u8 = 0x15;
const TAG_ORPHAN: u8 = 0x16;
const TAG_GONE: u8 = 0x17;
const TAG_SEGMENT: u8 = 0x20;
const TAG_SNAPSHOT: u8 = 0x21;
const TAG_QUOTA: u8 = 0x22;
const TAG_DEDUPE: u8 = 0x23;
const TAG_SHARER: u8 = 0x24;
const TAG_REQUEST: u8 = 0x25;
const TAG_USAGE: u8 = 0x26;
const TAG_GRACE: u8 = 0x27;
const TAG_POLICY: u8 = 0x28;
const TAG_APPLY: u8 = 0x29;
const TAG_UNUSED_OBJECT: u8 = 0x2a;
const TAG_LOCK_CLIENT: u8 = 0x2b;
const TAG_LOCK_RANGE: u8 = 0x2c;
const TAG_LOCK_SHARE: u8 = 0x2d;
const TAG_LOCK_LEASE: u8 = 0x2e;
const TAG_HISTORY: u8 = 0x30;
const TAG_DEAD: u8 = 0x31;

/// A key of the ordered key space. Ordered as the state orders it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; 32]>);

/// What a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind<'a> {
    Applied,
    Counters,
    Lineage,
    Inode(Ino),
    Dirent {
        dir: Ino,
        name: &'a [u8],
    },
    Cookie {
        dir: Ino,
        seq: u64,
    },
    Extent {
        ino: Ino,
        end_offset: u64,
    },
    Xattr {
        ino: Ino,
        name: &'a [u8],
    },
    Acl(Ino),
    Orphan(Ino),
    Gone(Ino),
    Segment(SegmentId),
    Snapshot(Generation),
    Quota(QuotaKey),
    Usage(QuotaKey),
    Grace(QuotaKey),
    /// What a directory says about data below it.
    Policy(Ino),
    /// The conversion of existing data to that.
    Apply,
    /// An object in a tier that no segment refers to: it is being written, or to be deleted.
    UnusedObject {
        tier: TierId,
        segment: SegmentId,
        nonce: u128,
    },
    Dedupe(&'a [u8; 32]),
    /// Extents of `ino` that end in `start < end offset <= end` refer to records in `segment` that were written for
    /// others, or did.
    Sharer {
        segment: SegmentId,
        ino: Ino,
        start: u64,
        end: u64,
    },
    /// A place for one of the last requests that changed something.
    Request(u16),
    /// A client that may have locks, by its number.
    LockClient(u64),
    /// A locked range of a file. Ranges, denials and leases have numbers of one sequence.
    LockRange {
        ino: Ino,
        number: u64,
    },
    /// An open that denies something to others.
    LockShare {
        ino: Ino,
        number: u64,
    },
    /// A delegation, oplock or lease.
    LockLease {
        ino: Ino,
        number: u64,
    },
    /// `key` held this until `death`.
    History {
        key: &'a [u8],
        death: Generation,
    },
    /// `key` held until `death` a value that was born in `birth`.
    Dead {
        death: Generation,
        birth: Generation,
        key: &'a [u8],
    },
}

/// Why bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} bytes with tag {tag:#04x} are not a key of this version")]
pub struct KeyError {
    pub tag: u8,
    pub len_bytes: usize,
}

impl Key {
    pub fn inode(ino: Ino) -> Self {
        Self::of_u64(TAG_INODE, ino.0)
    }

    /// The entry `name` of directory `dir`. Panics on a name that is empty, holds NUL or is
    /// longer than [`NAME_LEN_BYTES_MAX`]: the file service refuses those long before.
    pub fn dirent(dir: Ino, name: &[u8]) -> Self {
        Self::of_name(TAG_DIRENT, dir, name)
    }

    /// The entries of directory `dir` whose names come after `name`, or from it on if `inclusive`, in the order of their
    /// bytes. `name` is any bytes without NUL, also such that no name can be.
    pub fn dirents_after(dir: Ino, name: &[u8], inclusive: bool) -> (Self, Self) {
        let (mut from, to) = Self::all_of(TAG_DIRENT, dir.0);
        from.0.extend_from_slice(name);
        if !inclusive {
            // Past the entry of that name, which ends with a NUL.
            from.0.extend_from_slice(&[0, 0]);
        }
        (from, to)
    }

    pub fn cookie(dir: Ino, seq: u64) -> Self {
        Self::of_two_u64(TAG_COOKIE, dir.0, seq)
    }

    /// The extent of `ino` that ends just before byte `end_offset` of the file.
    pub fn extent(ino: Ino, end_offset: u64) -> Self {
        Self::of_two_u64(TAG_EXTENT, ino.0, end_offset)
    }

    /// Panics as [`Self::dirent`] does.
    pub fn xattr(ino: Ino, name: &[u8]) -> Self {
        Self::of_name(TAG_XATTR, ino, name)
    }

    /// Reserved for access control lists.
    pub fn acl(ino: Ino) -> Self {
        Self::of_u64(TAG_ACL, ino.0)
    }

    /// An inode without a name that is still open, or whose bytes are still being freed.
    pub fn orphan(ino: Ino) -> Self {
        Self::of_u64(TAG_ORPHAN, ino.0)
    }

    /// An inode of a branch that what the branch began from has, and the branch has no more.
    pub fn gone(ino: Ino) -> Self {
        Self::of_u64(TAG_GONE, ino.0)
    }

    /// Written by the store alone (`Batch::put_segment`); read segments with `MetaStore::segment`.
    pub fn segment(id: SegmentId) -> Self {
        Self::of_u64(TAG_SEGMENT, id.0)
    }

    /// Written by the store alone.
    pub fn snapshot(generation: Generation) -> Self {
        Self::of_u64(TAG_SNAPSHOT, generation.0)
    }

    pub fn quota(of: QuotaKey) -> Self {
        Self::of_quota(TAG_QUOTA, of)
    }

    /// The usage of a quota, or the usage it would have if there were one. Written by the store alone (`Batch::charge`).
    pub fn usage(of: QuotaKey) -> Self {
        Self::of_quota(TAG_USAGE, of)
    }

    /// Since when soft limits of a quota are passed.
    pub fn grace(of: QuotaKey) -> Self {
        Self::of_quota(TAG_GRACE, of)
    }

    pub fn all_quotas() -> (Self, Self) {
        (Self::with_tag(TAG_QUOTA), Self::with_tag(TAG_DEDUPE))
    }

    pub fn all_usages() -> (Self, Self) {
        (Self::with_tag(TAG_USAGE), Self::with_tag(TAG_GRACE))
    }

    pub fn all_graces() -> (Self, Self) {
        (
            Self::with_tag(TAG_GRACE),
            Self::with_tag(TAG_GRACE.saturating_add(1)),
        )
    }

    /// What a directory says about data of files below it.
    pub fn policy(dir: Ino) -> Self {
        Self::of_u64(TAG_POLICY, dir.0)
    }

    pub fn all_policies() -> (Self, Self) {
        (Self::with_tag(TAG_POLICY), Self::with_tag(TAG_APPLY))
    }

    /// The conversion of existing data to what policies say.
    pub fn apply() -> Self {
        Self::with_tag(TAG_APPLY)
    }

    /// See [`KeyKind::UnusedObject`].
    pub fn unused_object(tier: TierId, segment: SegmentId, nonce: u128) -> Self {
        let mut key = Self::with_tag(TAG_UNUSED_OBJECT);
        key.0.extend_from_slice(&tier.0.to_be_bytes());
        key.0.extend_from_slice(&segment.0.to_be_bytes());
        key.0.extend_from_slice(&nonce.to_be_bytes());
        key
    }

    pub fn unused_objects() -> (Self, Self) {
        (
            Self::with_tag(TAG_UNUSED_OBJECT),
            Self::with_tag(TAG_UNUSED_OBJECT.saturating_add(1)),
        )
    }

    fn of_quota(tag: u8, of: QuotaKey) -> Self {
        let mut key = Self::of_u64(tag, of.tree.0);
        key.0.push(of.kind as u8);
        key.0.extend_from_slice(&of.id.to_be_bytes());
        key
    }

    /// Reserved for deduplication.
    pub fn dedupe(hash: &[u8; 32]) -> Self {
        let mut key = Self::with_tag(TAG_DEDUPE);
        key.0.extend_from_slice(hash);
        key
    }

    /// See [`KeyKind::Sharer`].
    pub fn sharer(segment: SegmentId, ino: Ino, start: u64, end: u64) -> Self {
        let mut key = Self::of_two_u64(TAG_SHARER, segment.0, ino.0);
        key.0.extend_from_slice(&start.to_be_bytes());
        key.0.extend_from_slice(&end.to_be_bytes());
        key
    }

    /// Those of one segment.
    pub fn sharers(segment: SegmentId) -> (Self, Self) {
        Self::all_of(TAG_SHARER, segment.0)
    }

    /// A place for one of the last requests that changed something.
    pub fn request(slot: u16) -> Self {
        let mut key = Self::with_tag(TAG_REQUEST);
        key.0.extend_from_slice(&slot.to_be_bytes());
        key
    }

    pub fn requests() -> (Self, Self) {
        (
            Self::with_tag(TAG_REQUEST),
            Self::with_tag(TAG_REQUEST.saturating_add(1)),
        )
    }

    pub fn lock_client(number: u64) -> Self {
        Self::of_u64(TAG_LOCK_CLIENT, number)
    }

    pub fn lock_range(ino: Ino, number: u64) -> Self {
        Self::of_two_u64(TAG_LOCK_RANGE, ino.0, number)
    }

    /// An open that denies something to others.
    pub fn lock_share(ino: Ino, number: u64) -> Self {
        Self::of_two_u64(TAG_LOCK_SHARE, ino.0, number)
    }

    pub fn lock_lease(ino: Ino, number: u64) -> Self {
        Self::of_two_u64(TAG_LOCK_LEASE, ino.0, number)
    }

    /// All clients, ranges, denials and leases, in this order: clients come before what they have.
    pub fn all_locks() -> (Self, Self) {
        (
            Self::with_tag(TAG_LOCK_CLIENT),
            Self::with_tag(TAG_LOCK_LEASE.saturating_add(1)),
        )
    }

    /// Where the version is that `key` held until it was changed in generation `death`.
    pub fn history(key: &Key, death: Generation) -> Self {
        let mut history = Self::history_of(key.as_bytes());
        history.0.extend_from_slice(&death.0.to_be_bytes());
        history
    }

    /// Where the versions of `key`, which may be a bound of a range, begin.
    pub fn history_of(key: &[u8]) -> Self {
        let mut history = Self::with_tag(TAG_HISTORY);
        history.0.extend_from_slice(key);
        history
    }

    /// The versions of all keys.
    pub fn all_history() -> (Self, Self) {
        (
            Self::with_tag(TAG_HISTORY),
            Self::with_tag(TAG_HISTORY.saturating_add(1)),
        )
    }

    /// The mark of a version in the history.
    pub fn dead(key: &Key, death: Generation, birth: Generation) -> Self {
        let mut dead = Self::dead_from(death, birth);
        dead.0.extend_from_slice(key.as_bytes());
        dead
    }

    /// Where the marks of versions begin that died in `death` and were born in `birth`.
    pub fn dead_from(death: Generation, birth: Generation) -> Self {
        Self::of_two_u64(TAG_DEAD, death.0, birth.0)
    }

    /// The marks of all versions that died in a generation with `first <= death <= last`.
    pub fn dead_between(first: Generation, last: Generation) -> (Self, Self) {
        let to = match last.0.checked_add(1) {
            Some(next) => Self::of_u64(TAG_DEAD, next),
            None => Self::with_tag(TAG_DEAD.saturating_add(1)),
        };
        (Self::of_u64(TAG_DEAD, first.0), to)
    }

    pub fn all_snapshots() -> (Self, Self) {
        (
            Self::with_tag(TAG_SNAPSHOT),
            Self::with_tag(TAG_SNAPSHOT.saturating_add(1)),
        )
    }

    pub fn applied() -> Self {
        Self::with_tag(TAG_APPLIED)
    }

    pub fn counters() -> Self {
        Self::with_tag(TAG_COUNTERS)
    }

    pub fn lineage() -> Self {
        Self::with_tag(TAG_LINEAGE)
    }

    /// All entries of `dir` by name: `from <= key < to`.
    pub fn dirents(dir: Ino) -> (Self, Self) {
        Self::all_of(TAG_DIRENT, dir.0)
    }

    /// The entries of every directory.
    pub fn all_dirents() -> (Self, Self) {
        (
            Self::with_tag(TAG_DIRENT),
            Self::with_tag(TAG_DIRENT.saturating_add(1)),
        )
    }

    /// The cookies of `dir` whose sequence number is above `seq`.
    pub fn cookies_after(dir: Ino, seq: u64) -> (Self, Self) {
        let (all, to) = Self::all_of(TAG_COOKIE, dir.0);
        let from = seq.checked_add(1).map(|first| Self::cookie(dir, first));
        // After the last number there is nothing: an empty range.
        (from.unwrap_or_else(|| to.clone()).max(all), to)
    }

    /// The cookies of every directory.
    pub fn all_cookies() -> (Self, Self) {
        (
            Self::with_tag(TAG_COOKIE),
            Self::with_tag(TAG_COOKIE.saturating_add(1)),
        )
    }

    /// The extents of `ino` that hold bytes at or past `offset`: those whose end is above it.
    pub fn extents_past(ino: Ino, offset: u64) -> (Self, Self) {
        let (all, to) = Self::all_of(TAG_EXTENT, ino.0);
        let from = offset.checked_add(1).map(|end| Self::extent(ino, end));
        (from.unwrap_or_else(|| to.clone()).max(all), to)
    }

    pub fn xattrs(ino: Ino) -> (Self, Self) {
        Self::all_of(TAG_XATTR, ino.0)
    }

    pub fn orphans() -> (Self, Self) {
        (
            Self::with_tag(TAG_ORPHAN),
            Self::with_tag(TAG_ORPHAN.saturating_add(1)),
        )
    }

    pub fn inodes() -> (Self, Self) {
        (
            Self::with_tag(TAG_INODE),
            Self::with_tag(TAG_INODE.saturating_add(1)),
        )
    }

    /// The extents of every inode.
    pub fn all_extents() -> (Self, Self) {
        (
            Self::with_tag(TAG_EXTENT),
            Self::with_tag(TAG_EXTENT.saturating_add(1)),
        )
    }

    pub fn all_segments() -> (Self, Self) {
        (
            Self::with_tag(TAG_SEGMENT),
            Self::with_tag(TAG_SEGMENT.saturating_add(1)),
        )
    }

    /// All keys of a branch that have versions, in ranges: one for each kind, and for the store's own volume two: its inodes are
    /// numbered from both ends.
    pub fn of_branch(branch: Branch) -> impl Iterator<Item = (Self, Self)> {
        (TAG_INODE..=TAG_GONE).flat_map(move |tag| Self::of_branch_with(tag, branch))
    }

    /// The inodes of a branch, in ranges.
    pub fn inodes_of(branch: Branch) -> impl Iterator<Item = (Self, Self)> {
        Self::of_branch_with(TAG_INODE, branch)
    }

    fn of_branch_with(tag: u8, branch: Branch) -> impl Iterator<Item = (Self, Self)> {
        let first = move |branch: u16| Self::of_u64(tag, Ino(0).in_branch(Branch(branch)).0);
        let from_the_end = (first(Branch::LAST.0 + 1), Self::with_tag(tag + 1));
        let numbered = (first(branch.0), first(branch.0.saturating_add(1)));
        let from_the_end = branch.is_main().then_some(from_the_end);
        [numbered].into_iter().chain(from_the_end)
    }

    /// The orphans of a branch.
    pub fn orphans_of(branch: Branch) -> (Self, Self) {
        let first = |branch: u16| Self::orphan(Ino(0).in_branch(Branch(branch)));
        (first(branch.0), first(branch.0.saturating_add(1)))
    }

    /// The whole key space.
    pub fn everything() -> (Self, Self) {
        (Self::with_tag(0), Self::with_tag(u8::MAX))
    }

    /// The smallest key after this one in any range that holds valid keys.
    pub fn successor(&self) -> Self {
        let mut next = self.clone();
        next.0.push(0);
        next
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// What this key names.
    pub fn kind(&self) -> Result<KeyKind<'_>, KeyError> {
        KeyKind::parse(&self.0)
    }

    /// Whether the store alone may write it.
    pub fn is_internal(&self) -> bool {
        self.0.first().is_none_or(|tag| {
            *tag < TAG_INODE
                || matches!(*tag, TAG_SEGMENT | TAG_SNAPSHOT | TAG_USAGE)
                || *tag >= TAG_HISTORY
        })
    }

    /// Whether snapshots see old versions of it. Its value in the state begins with the generation of its birth.
    pub fn is_versioned(&self) -> bool {
        is_versioned(&self.0)
    }

    /// A key from bytes that may be anything.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyError> {
        KeyKind::parse(bytes)?;
        Ok(Self(SmallVec::from_slice(bytes)))
    }

    fn with_tag(tag: u8) -> Self {
        let mut bytes = SmallVec::new();
        bytes.push(tag);
        Self(bytes)
    }

    fn of_u64(tag: u8, field: u64) -> Self {
        let mut key = Self::with_tag(tag);
        key.0.extend_from_slice(&field.to_be_bytes());
        key
    }

    fn of_two_u64(tag: u8, first: u64, second: u64) -> Self {
        let mut key = Self::of_u64(tag, first);
        key.0.extend_from_slice(&second.to_be_bytes());
        key
    }

    fn of_name(tag: u8, ino: Ino, name: &[u8]) -> Self {
        assert!(!name.is_empty());
        assert!(name.len() <= NAME_LEN_BYTES_MAX);
        assert!(!name.contains(&0));
        let mut key = Self::of_u64(tag, ino.0);
        key.0.extend_from_slice(name);
        key.0.push(0);
        key
    }

    fn all_of(tag: u8, field: u64) -> (Self, Self) {
        let to = match field.checked_add(1) {
            Some(next) => Self::of_u64(tag, next),
            None => Self::with_tag(tag.saturating_add(1)),
        };
        (Self::of_u64(tag, field), to)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Ok(kind) => kind.fmt(f),
            Err(_) => write!(f, "Key({:02x?})", self.as_bytes()),
        }
    }
}

impl KeyError {
    fn of(bytes: &[u8]) -> Self {
        Self {
            tag: bytes.first().copied().unwrap_or(0),
            len_bytes: bytes.len(),
        }
    }
}

impl<'a> KeyKind<'a> {
    /// Reads a key. Any bytes are allowed as input; all but exactly one key are refused.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, KeyError> {
        Self::parse_fields(bytes).ok_or_else(|| KeyError::of(bytes))
    }

    fn parse_fields(bytes: &'a [u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let kind = match *tag {
            TAG_APPLIED => rest.is_empty().then_some(Self::Applied)?,
            TAG_COUNTERS => rest.is_empty().then_some(Self::Counters)?,
            TAG_LINEAGE => rest.is_empty().then_some(Self::Lineage)?,
            TAG_INODE => Self::Inode(Ino(only_u64(rest)?)),
            TAG_DIRENT => {
                let (dir, name) = u64_and_name(rest)?;
                let dir = Ino(dir);
                Self::Dirent { dir, name }
            }
            TAG_COOKIE => {
                let (dir, seq) = two_u64(rest)?;
                let dir = Ino(dir);
                Self::Cookie { dir, seq }
            }
            TAG_EXTENT => {
                let (ino, end_offset) = two_u64(rest)?;
                let ino = Ino(ino);
                Self::Extent { ino, end_offset }
            }
            TAG_XATTR => {
                let (ino, name) = u64_and_name(rest)?;
                let ino = Ino(ino);
                Self::Xattr { ino, name }
            }
            TAG_ACL => Self::Acl(Ino(only_u64(rest)?)),
            TAG_ORPHAN => Self::Orphan(Ino(only_u64(rest)?)),
            TAG_GONE => Self::Gone(Ino(only_u64(rest)?)),
            TAG_SEGMENT => Self::Segment(SegmentId(only_u64(rest)?)),
            TAG_SNAPSHOT => Self::Snapshot(Generation(only_u64(rest)?)),
            TAG_QUOTA => Self::Quota(quota_key(rest)?),
            TAG_USAGE => Self::Usage(quota_key(rest)?),
            TAG_GRACE => Self::Grace(quota_key(rest)?),
            TAG_POLICY => Self::Policy(Ino(only_u64(rest)?)),
            TAG_APPLY => rest.is_empty().then_some(Self::Apply)?,
            TAG_UNUSED_OBJECT => {
                let (tier, rest) = rest.split_first_chunk::<4>()?;
                let (segment, nonce) = rest.split_first_chunk::<8>()?;
                Self::UnusedObject {
                    tier: TierId(u32::from_be_bytes(*tier)),
                    segment: SegmentId(u64::from_be_bytes(*segment)),
                    nonce: u128::from_be_bytes(nonce.try_into().ok()?),
                }
            }
            TAG_DEDUPE => Self::Dedupe(rest.try_into().ok()?),
            TAG_SHARER => {
                let (segment, rest) = rest.split_first_chunk::<8>()?;
                let (ino, rest) = rest.split_first_chunk::<8>()?;
                let (start, end) = two_u64(rest)?;
                Self::Sharer {
                    segment: SegmentId(u64::from_be_bytes(*segment)),
                    ino: Ino(u64::from_be_bytes(*ino)),
                    start,
                    end,
                }
            }
            TAG_REQUEST => Self::Request(u16::from_be_bytes(rest.try_into().ok()?)),
            TAG_LOCK_CLIENT => Self::LockClient(only_u64(rest)?),
            TAG_LOCK_RANGE => {
                let (ino, number) = two_u64(rest)?;
                let ino = Ino(ino);
                Self::LockRange { ino, number }
            }
            TAG_LOCK_SHARE => {
                let (ino, number) = two_u64(rest)?;
                let ino = Ino(ino);
                Self::LockShare { ino, number }
            }
            TAG_LOCK_LEASE => {
                let (ino, number) = two_u64(rest)?;
                let ino = Ino(ino);
                Self::LockLease { ino, number }
            }
            TAG_HISTORY => {
                let (key, death) = rest.split_last_chunk::<GENERATION_LEN_BYTES>()?;
                let death = Generation(u64::from_be_bytes(*death));
                Self::History {
                    key: versioned(key)?,
                    death,
                }
            }
            TAG_DEAD => {
                let (death, rest) = rest.split_first_chunk::<GENERATION_LEN_BYTES>()?;
                let (birth, key) = rest.split_first_chunk::<GENERATION_LEN_BYTES>()?;
                Self::Dead {
                    death: Generation(u64::from_be_bytes(*death)),
                    birth: Generation(u64::from_be_bytes(*birth)),
                    key: versioned(key)?,
                }
            }
            _ => return None,
        };
        Some(kind)
    }
}

/// As [`Key::is_versioned`], of the bytes of a key.
pub fn is_versioned(key: &[u8]) -> bool {
    key.first()
        .is_some_and(|tag| (TAG_INODE..=TAG_GONE).contains(tag) || *tag == TAG_DEDUPE)
}

/// The branch of a key that has versions.
pub fn branch_of(key: &[u8]) -> Branch {
    match key.split_first() {
        Some((tag, rest)) if (TAG_INODE..=TAG_GONE).contains(tag) => {
            let ino = rest.first_chunk::<8>();
            ino.map_or(Branch::MAIN, |ino| Ino(u64::from_be_bytes(*ino)).branch())
        }
        _ => Branch::MAIN,
    }
}

/// A key that has versions; not one of history, so that this goes no deeper.
fn versioned(key: &[u8]) -> Option<&[u8]> {
    (is_versioned(key) && KeyKind::parse(key).is_ok()).then_some(key)
}

fn quota_key(bytes: &[u8]) -> Option<QuotaKey> {
    let (tree, rest) = bytes.split_first_chunk::<8>()?;
    let (kind, id) = rest.split_first()?;
    Some(QuotaKey {
        tree: Ino(u64::from_be_bytes(*tree)),
        kind: QuotaKind::from_u8(*kind)?,
        id: u32::from_be_bytes(id.try_into().ok()?),
    })
}

fn only_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn two_u64(bytes: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*first), only_u64(second)?))
}

fn u64_and_name(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (first, name) = bytes.split_first_chunk::<8>()?;
    let (nul, name) = name.split_last()?;
    let is_name =
        *nul == 0 && !name.is_empty() && name.len() <= NAME_LEN_BYTES_MAX && !name.contains(&0);
    is_name.then_some((u64::from_be_bytes(*first), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_as_what_they_name() {
        let hash = [7; 32];
        let (inode, dedupe) = (Key::inode(Ino(7)), Key::dedupe(&hash));
        let user = QuotaKey {
            tree: Ino(8),
            kind: QuotaKind::User,
            id: 1000,
        };
        let cases = [
            (Key::inode(Ino(1)), KeyKind::Inode(Ino(1))),
            (
                Key::dirent(Ino(2), b"a"),
                KeyKind::Dirent {
                    dir: Ino(2),
                    name: b"a",
                },
            ),
            (
                Key::cookie(Ino(2), 9),
                KeyKind::Cookie {
                    dir: Ino(2),
                    seq: 9,
                },
            ),
            (
                Key::extent(Ino(3), u64::MAX),
                KeyKind::Extent {
                    ino: Ino(3),
                    end_offset: u64::MAX,
                },
            ),
            (
                Key::xattr(Ino(3), b"user.x"),
                KeyKind::Xattr {
                    ino: Ino(3),
                    name: b"user.x",
                },
            ),
            (Key::acl(Ino(4)), KeyKind::Acl(Ino(4))),
            (Key::orphan(Ino(5)), KeyKind::Orphan(Ino(5))),
            (Key::gone(Ino(5)), KeyKind::Gone(Ino(5))),
            (Key::segment(SegmentId(6)), KeyKind::Segment(SegmentId(6))),
            (
                Key::snapshot(Generation(2)),
                KeyKind::Snapshot(Generation(2)),
            ),
            (Key::request(77), KeyKind::Request(77)),
            (Key::quota(user), KeyKind::Quota(user)),
            (Key::usage(user), KeyKind::Usage(user)),
            (Key::grace(user), KeyKind::Grace(user)),
            (Key::policy(Ino(7)), KeyKind::Policy(Ino(7))),
            (Key::apply(), KeyKind::Apply),
            (
                Key::unused_object(TierId(2), SegmentId(6), 9),
                KeyKind::UnusedObject {
                    tier: TierId(2),
                    segment: SegmentId(6),
                    nonce: 9,
                },
            ),
            (Key::lock_client(5), KeyKind::LockClient(5)),
            (
                Key::lock_range(Ino(3), 6),
                KeyKind::LockRange {
                    ino: Ino(3),
                    number: 6,
                },
            ),
            (
                Key::lock_share(Ino(3), 7),
                KeyKind::LockShare {
                    ino: Ino(3),
                    number: 7,
                },
            ),
            (
                Key::lock_lease(Ino(3), u64::MAX),
                KeyKind::LockLease {
                    ino: Ino(3),
                    number: u64::MAX,
                },
            ),
            (Key::dedupe(&hash), KeyKind::Dedupe(&hash)),
            (
                Key::sharer(SegmentId(6), Ino(3), 4096, 8192),
                KeyKind::Sharer {
                    segment: SegmentId(6),
                    ino: Ino(3),
                    start: 4096,
                    end: 8192,
                },
            ),
            (
                Key::history(&inode, Generation(9)),
                KeyKind::History {
                    key: inode.as_bytes(),
                    death: Generation(9),
                },
            ),
            (
                Key::dead(&dedupe, Generation(9), Generation(3)),
                KeyKind::Dead {
                    death: Generation(9),
                    birth: Generation(3),
                    key: dedupe.as_bytes(),
                },
            ),
            (Key::applied(), KeyKind::Applied),
            (Key::counters(), KeyKind::Counters),
            (Key::lineage(), KeyKind::Lineage),
        ];
        for (key, want) in &cases {
            assert_eq!(key.kind().as_ref(), Ok(want));
            assert!(key.as_bytes().len() <= KEY_LEN_BYTES_MAX);
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let once = Key::history(&Key::inode(Ino(1)), Generation(2));
        let twice = Key::history(&once, Generation(3));
        let dead = Key::dead_from(Generation(1), Generation(1));
        let cases: &[(&str, &[u8])] = &[
            ("empty", b""),
            ("unknown tag", &[0x7f, 0]),
            ("inode short", &[TAG_INODE, 0, 0, 0, 0, 0, 0, 1]),
            ("inode long", &[TAG_INODE, 0, 0, 0, 0, 0, 0, 0, 1, 1]),
            ("empty name", &[TAG_DIRENT, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
            (
                "name not ended",
                &[TAG_DIRENT, 0, 0, 0, 0, 0, 0, 0, 1, b'a'],
            ),
            (
                "NUL in name",
                &[TAG_DIRENT, 0, 0, 0, 0, 0, 0, 0, 1, b'a', 0, b'b', 0],
            ),
            ("short hash", &[TAG_DEDUPE, 1, 2, 3]),
            (
                "unknown kind of quota",
                &[TAG_QUOTA, 0, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0, 1],
            ),
            ("policy short", &[TAG_POLICY, 0, 0, 0, 1]),
            ("apply with more", &[TAG_APPLY, 0]),
            ("unused object cut", &[TAG_UNUSED_OBJECT; 28]),
            ("unused object with more", &[TAG_UNUSED_OBJECT; 30]),
            ("lock client cut", &[TAG_LOCK_CLIENT; 8]),
            ("lock range cut", &[TAG_LOCK_RANGE; 16]),
            ("lock lease with more", &[TAG_LOCK_LEASE; 18]),
            ("counters with more", &[TAG_COUNTERS, 0]),
            (
                "history of counters",
                &[TAG_HISTORY, TAG_COUNTERS, 0, 0, 0, 0, 0, 0, 0, 1],
            ),
            ("history of history", twice.as_bytes()),
            (
                "history without a key",
                &[TAG_HISTORY, 0, 0, 0, 0, 0, 0, 0, 1],
            ),
            ("dead without a key", dead.as_bytes()),
        ];
        for (name, bytes) in cases {
            assert!(Key::parse(bytes).is_err(), "{name}");
        }
    }

    #[test]
    fn ranges_hold_what_they_say() {
        let within = |(from, to): (Key, Key), key: Key| from <= key && key < to;
        assert!(within(Key::dirents(Ino(1)), Key::dirent(Ino(1), b"\xff")));
        assert!(within(
            Key::dirents(Ino(u64::MAX)),
            Key::dirent(Ino(u64::MAX), b"a")
        ));
        assert!(!within(Key::dirents(Ino(1)), Key::dirent(Ino(2), b"a")));
        assert!(within(
            Key::cookies_after(Ino(1), 4),
            Key::cookie(Ino(1), 5)
        ));
        assert!(!within(
            Key::cookies_after(Ino(1), 4),
            Key::cookie(Ino(1), 4)
        ));
        let (from, to) = Key::cookies_after(Ino(1), u64::MAX);
        assert!(from >= to);
        assert!(!within(
            Key::extents_past(Ino(1), 10),
            Key::extent(Ino(1), 10)
        ));
        assert!(within(
            Key::extents_past(Ino(1), 10),
            Key::extent(Ino(1), 11)
        ));
        assert!(within(Key::extents_past(Ino(1), 0), Key::extent(Ino(1), 1)));
        assert!(within(
            Key::sharers(SegmentId(4)),
            Key::sharer(SegmentId(4), Ino(u64::MAX), u64::MAX, u64::MAX)
        ));
        assert!(within(Key::orphans(), Key::orphan(Ino(u64::MAX))));
        assert!(within(Key::all_locks(), Key::lock_client(0)));
        assert!(within(
            Key::all_locks(),
            Key::lock_lease(Ino(u64::MAX), u64::MAX)
        ));
        assert!(!within(
            Key::all_locks(),
            Key::history(&Key::inode(Ino(1)), Generation(1))
        ));
        assert!(Key::lock_client(u64::MAX) < Key::lock_range(Ino(0), 0));
        assert!(within(Key::inodes(), Key::inode(Ino(0))));
    }

    #[test]
    fn keys_of_a_branch_are_in_its_ranges() {
        let (one, two) = (Branch(1), Branch(2));
        let within = |branch: Branch, key: &Key| {
            let mut ranges = Key::of_branch(branch);
            ranges.any(|(from, to)| from <= *key && *key < to)
        };
        for (ino, want) in [
            (Ino(1), Branch::MAIN),
            (Ino(u64::MAX - 1), Branch::MAIN),
            (Ino(u64::MAX), Branch::MAIN),
            (Ino(1).in_branch(one), one),
            (Ino(u64::MAX - 1).in_branch(one), one),
            (Ino(1).in_branch(two), two),
            (Ino(1).in_branch(Branch::LAST), Branch::LAST),
        ] {
            for key in [
                Key::inode(ino),
                Key::dirent(ino, b"a"),
                Key::extent(ino, 9),
                Key::gone(ino),
            ] {
                for branch in [Branch::MAIN, one, two, Branch::LAST] {
                    assert_eq!(within(branch, &key), branch == want, "{key:?}");
                }
                assert_eq!(branch_of(key.as_bytes()), want, "{key:?}");
            }
        }
        let of_main = Key::of_branch(Branch::MAIN).any(|(from, to)| {
            let other = Key::segment(SegmentId(1));
            from <= other && other < to
        });
        assert!(!of_main, "what has no versions is of no branch");
        assert_eq!(branch_of(Key::dedupe(&[0x11; 32]).as_bytes()), Branch::MAIN);
    }

    #[test]
    fn names_sort_as_bytes_and_history_as_its_keys() {
        let (short, long) = (Key::dirent(Ino(1), b"a"), Key::dirent(Ino(1), b"a\x01"));
        assert!(short < long);
        assert!(Key::history(&short, Generation(9)) < Key::history(&long, Generation(1)));
        assert!(Key::history(&short, Generation(1)) < Key::history(&short, Generation(2)));
        let (first, last) = (Generation(3), Generation(4));
        let within = |death| {
            let (from, to) = Key::dead_between(first, last);
            let key = Key::dead(&short, Generation(death), Generation(1));
            from <= key && key < to
        };
        assert_eq!([2, 3, 4, 5].map(within), [false, true, true, false]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(0u8.., 0..300)) {
            if let Ok(key) = Key::parse(&bytes) {
                assert_eq!(key.as_bytes(), bytes);
            }
        }
    }
}
