//! The words of the file service: plain values that every protocol translates at its edge.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_BYTES_MAX: usize = 255;
/// The name under which each directory shows its snapshots. No entry can have it: it would hide them.
pub const SNAPSHOTS_NAME: &[u8] = b".snapshot";
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_LEN_BYTES_MAX: usize = 4095;
/// Most hard links to a file, and most that a directory shows. A directory with more of them, one for each directory in it,
/// shows one link, which programs that count on links read as "not counted" (ext4's `dir_nlink`, btrfs).
pub const LINK_COUNT_MAX: u32 = 65_000;
/// One past the last byte a file can hold: 8 EiB - 1, as `off_t` has it.
pub const FILE_LEN_BYTES_MAX: u64 = i64::MAX as u64;
/// Most bytes one `read` returns and one `write` takes.
pub const TRANSFER_LEN_BYTES_MAX: u32 = 1 << 20;

/// Longest name of an extended attribute, its namespace (`user.`) included, in bytes.
pub const XATTR_NAME_LEN_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_LEN_BYTES_MAX: usize = 64 << 10;
/// Most bytes that the names of one inode's extended attributes take, each with a NUL.
pub const XATTR_LIST_LEN_BYTES_MAX: usize = 64 << 10;

/// Extended attributes of files in folders of the hidden folder whose names begin so say who may use the file. They are as they
/// are now after a restore of the volume, whatever the snapshot has; a file that comes back has none.
pub const XATTR_ACCESS_PREFIX: &[u8] = b"user.access.";

/// Who asks. Squashing has been applied by the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// By which request, if it may be sent again and must not be done twice.
    pub request: Option<RequestId>,
}

/// Tells a request from all others that may be under way; what is in it is the edge's.
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

/// What an inode is.
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
    /// Hard links; 1 of a directory with more than [`LINK_COUNT_MAX`].
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

/// How CREATE treats a name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// Use the file that is there (and apply a size of 0), else create.
    Unchecked(SetAttr),
    /// Fail with `Exists`.
    Guarded(SetAttr),
    /// Succeed on a file made with the same verifier (RFC 1813, section 3.3.8).
    Exclusive([u8; 8]),
}

/// How setting an extended attribute treats one of that name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Make it or replace it.
    #[default]
    Any,
    /// Fail with `Exists` if it is there.
    Create,
    /// Fail with `NoAttribute` if it is not.
    Replace,
}

/// What `mknod` makes.
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

/// How durable a write must be before it is answered (Rule 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// May live in memory until COMMIT.
    Unstable,
    /// On stable storage, with what is needed to read it back.
    Stable,
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub wcc: Wcc,
    pub count_bytes: u32,
    /// Whether the bytes are stable; may be true although `Unstable` was asked for.
    pub stable: bool,
}

/// The answer to a read: `parts`, one after the other, are the bytes.
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

/// How much there is in a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    pub inodes: u64,
    /// Bytes of files in extents.
    pub file_bytes: u64,
}

/// What statfs reports about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub total_inodes: u64,
    pub free_inodes: u64,
}

/// Why an operation failed; each edge maps this to its protocol in one `match`.
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
    /// POSIX EXDEV: it would come to, or be linked from, another directory with a quota.
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
    /// Bytes are damaged beyond repair, or a disk failed. The text is for the log.
    #[error("I/O error: {0}")]
    Io(String),
    /// Not now: what is needed is on disks, or in a tier, that do not answer. Nothing is lost as far as is known, so the
    /// client should try again. The text is for the log.
    #[error("cannot be reached now: {0}")]
    Unreachable(String),
    /// Not now: the server is short of a resource; the client should try again.
    #[error("try again later")]
    TryLater,
    /// The volume is being taken away from this node or is stopping.
    #[error("the volume is not served here any more")]
    Fenced,
    /// A clone began with this inode and has to take it over first. Nobody but [`crate::Fs`] itself sees it.
    #[error("try again later")]
    NotOwn(Ino),
}
