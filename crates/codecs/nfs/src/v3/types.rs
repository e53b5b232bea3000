//! The data types that the procedures share (RFC 1813, sections 2.5 and 2.6).
//!
//! Owns: handles, names, attributes, times, status codes and their limits on the wire.
//! Must not know: which limits the server has. A name longer than a server takes can be decoded, so
//! that the answer is `NameTooLong` and not a broken call.

use std::fmt;
use std::hash::{Hash, Hasher};

use cairn_codec_rpc::{Decode, DecodeError, Encode, Opaque, Reader, Writer, xdr_enum, xdr_struct};

/// Longest file handle (NFS3_FHSIZE).
pub const HANDLE_LEN_BYTES_MAX: u32 = 64;
/// Longest name that is decoded; servers refuse shorter ones by themselves.
pub const NAME_DECODE_LEN_BYTES_MAX: u32 = 4096;
/// Longest target of a symbolic link that is decoded.
pub const PATH_DECODE_LEN_BYTES_MAX: u32 = 8192;
/// Longest payload of a READ or WRITE.
pub const DATA_LEN_BYTES_MAX: u32 = 1 << 20;
/// [`FileAttr`] on the wire.
pub const FILE_ATTR_LEN_BYTES: usize = 84;

/// A name of a directory entry: any bytes.
pub type Name<'a> = Opaque<'a, NAME_DECODE_LEN_BYTES_MAX>;
/// The target of a symbolic link: any bytes.
pub type Path<'a> = Opaque<'a, PATH_DECODE_LEN_BYTES_MAX>;
/// Contents of a file.
pub type Data<'a> = Opaque<'a, DATA_LEN_BYTES_MAX>;

/// Changes whenever a server may have lost unstable writes (`writeverf3`).
pub type WriteVerifier = [u8; 8];
/// Names the client's attempt at an exclusive create (`createverf3`).
pub type CreateVerifier = [u8; 8];
/// Says whether directory cookies are still good (`cookieverf3`).
pub type CookieVerifier = [u8; 8];

/// What names a file to the client: up to 64 bytes that only the server understands (`nfs_fh3`).
#[derive(Clone, Copy)]
pub struct FileHandle {
    len_bytes: u8,
    bytes: [u8; HANDLE_LEN_BYTES_MAX as usize],
}

impl FileHandle {
    /// `None` if there are more than [`HANDLE_LEN_BYTES_MAX`] bytes.
    #[inline]
    pub fn new(handle: &[u8]) -> Option<Self> {
        let mut bytes = [0; HANDLE_LEN_BYTES_MAX as usize];
        bytes.get_mut(..handle.len())?.copy_from_slice(handle);
        Some(Self {
            len_bytes: handle.len() as u8,
            bytes,
        })
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len_bytes)]
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for FileHandle {}

impl Hash for FileHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileHandle(")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.opaque(self.as_bytes());
    }
}

impl Decode<'_> for FileHandle {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = from.opaque(HANDLE_LEN_BYTES_MAX)?;
        Self::new(bytes).ok_or(DecodeError::TooLong {
            len_bytes: bytes.len() as u32,
            len_bytes_max: HANDLE_LEN_BYTES_MAX,
        })
    }
}

xdr_enum! {
    /// Why a procedure failed: `nfsstat3` without `NFS3_OK` (RFC 1813, section 2.6).
    pub enum ErrorStatus: "nfsstat3" {
        Perm = 1 => "NFS3ERR_PERM",
        NoEnt = 2 => "NFS3ERR_NOENT",
        Io = 5 => "NFS3ERR_IO",
        NxIo = 6 => "NFS3ERR_NXIO",
        Access = 13 => "NFS3ERR_ACCES",
        Exist = 17 => "NFS3ERR_EXIST",
        XDev = 18 => "NFS3ERR_XDEV",
        NoDev = 19 => "NFS3ERR_NODEV",
        NotDir = 20 => "NFS3ERR_NOTDIR",
        IsDir = 21 => "NFS3ERR_ISDIR",
        Inval = 22 => "NFS3ERR_INVAL",
        FBig = 27 => "NFS3ERR_FBIG",
        NoSpc = 28 => "NFS3ERR_NOSPC",
        RoFs = 30 => "NFS3ERR_ROFS",
        MLink = 31 => "NFS3ERR_MLINK",
        NameTooLong = 63 => "NFS3ERR_NAMETOOLONG",
        NotEmpty = 66 => "NFS3ERR_NOTEMPTY",
        DQuot = 69 => "NFS3ERR_DQUOT",
        Stale = 70 => "NFS3ERR_STALE",
        Remote = 71 => "NFS3ERR_REMOTE",
        BadHandle = 10001 => "NFS3ERR_BADHANDLE",
        NotSync = 10002 => "NFS3ERR_NOT_SYNC",
        BadCookie = 10003 => "NFS3ERR_BAD_COOKIE",
        NotSupp = 10004 => "NFS3ERR_NOTSUPP",
        TooSmall = 10005 => "NFS3ERR_TOOSMALL",
        ServerFault = 10006 => "NFS3ERR_SERVERFAULT",
        BadType = 10007 => "NFS3ERR_BADTYPE",
        JukeBox = 10008 => "NFS3ERR_JUKEBOX",
    }
}

xdr_enum! {
    /// `ftype3`.
    pub enum FileType: "ftype3" {
        Regular = 1 => "NF3REG",
        Directory = 2 => "NF3DIR",
        BlockDevice = 3 => "NF3BLK",
        CharDevice = 4 => "NF3CHR",
        Symlink = 5 => "NF3LNK",
        Socket = 6 => "NF3SOCK",
        Fifo = 7 => "NF3FIFO",
    }
}

xdr_enum! {
    /// `stable_how`: what must be on stable storage before a WRITE is answered. Ordered by strength.
    pub enum StableHow: "stable_how" {
        Unstable = 0 => "UNSTABLE",
        DataSync = 1 => "DATA_SYNC",
        FileSync = 2 => "FILE_SYNC",
    }
}

/// `nfstime3`. From a client the nanoseconds may be a second or more: the server checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NfsTime {
    /// Since 1970.
    pub seconds: u32,
    pub nanos: u32,
}

impl Encode for NfsTime {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.u64(u64::from(self.seconds) << 32 | u64::from(self.nanos));
    }
}

impl Decode<'_> for NfsTime {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            seconds: from.u32()?,
            nanos: from.u32()?,
        })
    }
}

xdr_struct! {
    /// `specdata3`.
    #[derive(Copy, Default)]
    pub struct DeviceNumber {
        pub major: u32,
        pub minor: u32,
    }
}

/// `fattr3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAttr {
    pub file_type: FileType,
    /// Permission bits with set-uid, set-gid and sticky.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub device: DeviceNumber,
    pub fsid: u64,
    pub fileid: u64,
    pub atime: NfsTime,
    pub mtime: NfsTime,
    pub ctime: NfsTime,
}

/// Most replies carry attributes: they are laid out on the stack and appended at once.
impl Encode for FileAttr {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let words = [
            pair(self.mode, self.nlink),
            pair(self.uid, self.gid),
            self.size_bytes,
            self.used_bytes,
            pair(self.device.major, self.device.minor),
            self.fsid,
            self.fileid,
            pair(self.atime.seconds, self.atime.nanos),
            pair(self.mtime.seconds, self.mtime.nanos),
            pair(self.ctime.seconds, self.ctime.nanos),
        ];
        let mut bytes = [0; FILE_ATTR_LEN_BYTES];
        let (head, rest) = bytes.split_at_mut(4);
        head.copy_from_slice(&self.file_type.number().to_be_bytes());
        for (to, word) in rest.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        to.raw(&bytes);
    }
}

impl Decode<'_> for FileAttr {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            file_type: from.get()?,
            mode: from.get()?,
            nlink: from.get()?,
            uid: from.get()?,
            gid: from.get()?,
            size_bytes: from.get()?,
            used_bytes: from.get()?,
            device: from.get()?,
            fsid: from.get()?,
            fileid: from.get()?,
            atime: from.get()?,
            mtime: from.get()?,
            ctime: from.get()?,
        })
    }
}

/// `post_op_attr`: attributes after the operation, if they could be had.
pub type PostOpAttr = Option<FileAttr>;
/// `post_op_fh3`.
pub type PostOpHandle = Option<FileHandle>;

xdr_struct! {
    /// `wcc_attr`: what a client compares to see whether others changed the file.
    #[derive(Copy)]
    pub struct WccAttr {
        pub size_bytes: u64,
        pub mtime: NfsTime,
        pub ctime: NfsTime,
    }
}

xdr_struct! {
    /// `wcc_data`: attributes just before and just after a change.
    #[derive(Copy, Default)]
    pub struct WccData {
        pub before: Option<WccAttr>,
        pub after: PostOpAttr,
    }
}

/// How SETATTR and the makers set a time (`set_atime`, `set_mtime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    #[default]
    Keep,
    /// To the server's clock.
    ServerTime,
    ClientTime(NfsTime),
}

impl Encode for SetTime {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Keep => to.u32(0),
            Self::ServerTime => to.u32(1),
            Self::ClientTime(time) => {
                to.u32(2);
                to.put(time);
            }
        }
    }
}

impl Decode<'_> for SetTime {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ServerTime),
            2 => from.get().map(Self::ClientTime),
            value => Err(DecodeError::BadValue {
                what: "time_how",
                value,
            }),
        }
    }
}

xdr_struct! {
    /// `sattr3`: attributes to set; `None` and `Keep` leave them.
    #[derive(Copy, Default)]
    pub struct SetAttributes {
        pub mode: Option<u32>,
        pub uid: Option<u32>,
        pub gid: Option<u32>,
        pub size_bytes: Option<u64>,
        pub atime: SetTime,
        pub mtime: SetTime,
    }
}

xdr_struct! {
    /// `diropargs3`: a name in a directory. Also the arguments of LOOKUP, REMOVE and RMDIR.
    #[derive(Copy)]
    pub struct DirOp<'a> {
        pub dir: FileHandle,
        pub name: Name<'a>,
    }
}

/// Bits of ACCESS (RFC 1813, section 3.3.4).
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}

/// Bits of [`super::FsInfoOk::properties`] (RFC 1813, section 3.3.19).
pub mod property {
    /// Hard links.
    pub const LINK: u32 = 0x01;
    /// Symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF says the same for every file.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times as exactly as `time_delta` says.
    pub const CAN_SET_TIME: u32 = 0x10;
}
