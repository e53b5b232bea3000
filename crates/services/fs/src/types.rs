//! The types of the file service: plain values that every protocol translates at its edge.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_BYTES_MAX: usize = 255;
/// The name under which each directory shows its snapshots. No entry can have it: it would hide them.
pub const SNAPSHOTS_NAME: &[u8] = b".snapshot";
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_LEN_BYTES_MAX: usize = 4095;
/// Maximum number of hard links to a file, and the most that a directory shows. A directory with more links, one for
/// each directory in it, shows one link, which programs that use the count read as "not counted" (ext4's `dir_nlink`,
/// btrfs).
pub const LINK_COUNT_MAX: u32 = 65_000;
/// One past the last byte a file can hold: 8 EiB - 1, as `off_t` has it.
pub const FILE_LEN_BYTES_MAX: u64 = i64::MAX as u64;
/// Maximum number of bytes that one `read` returns and one `write` takes.
pub const TRANSFER_LEN_BYTES_MAX: u32 = 1 << 20;

/// Longest name of an extended attribute with its namespace (`user.`), in bytes.
pub const XATTR_NAME_LEN_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_LEN_BYTES_MAX: usize = 64 << 10;
/// Maximum size of the names of one inode's extended attributes, each with a NUL, in bytes.
pub const XATTR_LIST_LEN_BYTES_MAX: usize = 64 << 10;

/// Prefix of extended attributes that hold access rules of a file in a folder of the hidden folder. A rollback of the
/// volume leaves them as they are now, whatever the snapshot has; a file that the rollback puts back has none.
pub const XATTR_ACCESS_PREFIX: &[u8] = b"user.access.";

/// The user of a request. The edge has applied squashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The request, if it may be repeated and must not be done twice.
    pub request: Option<RequestId>,
}

/// Distinguishes a request from all others that may be in progress; the edge decides on its contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub [u8; 32]);

impl std::fmt::Debug for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequestId({:02x?})", &self.0)
    }
}

impl Credentials {
    pub const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        request: None,
    };

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    BlockDevice,
    CharDevice,
}

/// Attributes of an inode at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky: 0..=0o7777.
    pub mode: u32,
    /// Hard links; 1 for a directory with more than [`LINK_COUNT_MAX`].
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    /// Bytes of the file that are allocated (holes are not).
    pub used_bytes: u64,
    pub device_major: u32,
    pub device_minor: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

/// The attributes that weak cache consistency compares (RFC 1813, section 2.6, wcc_attr).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreAttr {
    pub size_bytes: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl From<&Attr> for PreAttr {
    fn from(attr: &Attr) -> Self {
        Self {
            size_bytes: attr.size_bytes,
            mtime: attr.mtime,
            ctime: attr.ctime,
        }
    }
}

/// An inode's attributes just before and just after a change, taken under its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wcc {
    pub before: PreAttr,
    pub after: Attr,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    #[default]
    Keep,
    /// The server's clock.
    Now,
    To(Timestamp),
}

/// Attributes to change; `None` and `Keep` leave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

/// How CREATE treats an existing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// Use an existing file (and apply a size of 0), otherwise create one.
    Unchecked(SetAttr),
    /// Fail with `Exists`.
    Guarded(SetAttr),
    /// Succeed on a file made with the same verifier (RFC 1813, section 3.3.8).
    Exclusive([u8; 8]),
}

/// How setting an extended attribute treats an existing one of that name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Make it or replace it.
    #[default]
    Any,
    /// Fail with `Exists` if it exists.
    Create,
    /// Fail with `NoAttribute` if it does not exist.
    Replace,
}

/// The types that `mknod` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    Fifo,
    Socket,
    BlockDevice { major: u32, minor: u32 },
    CharDevice { major: u32, minor: u32 },
}

/// Access bits as in RFC 1813, section 3.3.4.
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}

/// How durable a write must be before it is acknowledged (Rule 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// May live in memory until COMMIT.
    Unstable,
    /// On stable storage, with all metadata that a read needs.
    Stable,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub wcc: Wcc,
    pub count_bytes: u32,
    /// Whether the bytes are stable; may be true although `Unstable` was asked for.
    pub stable: bool,
}

/// The result of a read: `parts`, one after the other, are the bytes.
#[derive(Clone, Debug)]
pub struct ReadData {
    pub attr: Attr,
    pub parts: Vec<Bytes>,
    pub count_bytes: u32,
    pub eof: bool,
}

/// An inode that was made or found.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub attr: Attr,
    pub dir: Wcc,
}

#[derive(Clone, Debug)]
pub struct DirEntry {
    pub ino: Ino,
    pub name: Arc<[u8]>,
    /// Names the place after this entry; stays valid while the directory changes and across restarts.
    pub cookie: u64,
    pub attr: Option<Attr>,
}

/// A page of a directory. `.` and `..` come first, with cookies 1 and 2.
#[derive(Clone, Debug)]
pub struct DirPage {
    pub dir: Attr,
    pub entries: Vec<DirEntry>,
    pub eof: bool,
}

/// The number of inodes and bytes in a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    pub inodes: u64,
    /// Bytes of files in extents.
    pub file_bytes: u64,
}

/// The space of a volume, as statfs reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub total_inodes: u64,
    pub free_inodes: u64,
}

/// The reason why an operation failed; each edge maps this to its protocol in one `match`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("the name exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    /// POSIX EPERM: only an owner or root may.
    #[error("operation not permitted")]
    NotOwner,
    /// POSIX EACCES: the mode bits forbid it.
    #[error("permission denied")]
    AccessDenied,
    #[error("name too long")]
    NameTooLong,
    #[error("invalid argument")]
    Invalid,
    #[error("no space left")]
    NoSpace,
    #[error("quota exceeded")]
    QuotaExceeded,
    /// POSIX EXDEV: the inode would move to, or be linked from, another directory with a quota.
    #[error("another directory with a quota: copy it there")]
    CrossTree,
    #[error("read-only")]
    ReadOnly,
    #[error("the handle names a file that was removed")]
    Stale,
    #[error("directory not empty")]
    NotEmpty,
    #[error("too many links")]
    TooManyLinks,
    #[error("file too large")]
    FileTooLarge,
    /// READDIR with a cookie that this directory never gave.
    #[error("bad cookie")]
    BadCookie,
    /// SETATTR guard: the change time differs.
    #[error("the file changed since")]
    NotSync,
    #[error("not supported on this kind of file")]
    NotSupported,
    /// POSIX ENODATA: no extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// POSIX E2BIG: the value of an extended attribute is too long.
    #[error("attribute value too large")]
    AttributeTooLarge,
    /// Bytes are corrupt beyond repair, or a disk failed. The text is for the log.
    #[error("I/O error: {0}")]
    Io(String),
    /// The needed disks, or the tier, do not answer now. No data is known to be lost, so the client should try again.
    /// The text is for the log.
    #[error("cannot be reached now: {0}")]
    Unreachable(String),
    /// The server is short of a resource now; the client should try again.
    #[error("try again later")]
    TryLater,
    /// The volume is moving away from this node or is stopping.
    #[error("the volume is not served here any more")]
    Fenced,
    /// A clone inherited this inode and has to take it over first. Only [`crate::Fs`] itself sees this error.
    #[error("try again later")]
    NotOwn(Ino),
}
