//! MOUNT: how a client gets the first file handle (RFC 1813, appendix I; version 1: RFC 1094,
//! appendix A).
//!
//! Owns: the messages of program 100005, versions 3 and 1. They differ only in what MNT returns.
//! Must not know: exports, who may mount.

use std::num::NonZeroU32;

use cairn_codec_rpc::{
    Array, Decode, DecodeError, Encode, List, Opaque, Reader, Writer, xdr_enum, xdr_struct,
};

use crate::v3::FileHandle;

pub const PROGRAM: u32 = 100_005;
pub const VERSION_1: u32 = 1;
pub const VERSION_3: u32 = 3;

/// Longest path of an export (MNTPATHLEN).
pub const PATH_LEN_BYTES_MAX: u32 = 1024;
/// Longest name of a client or group (MNTNAMLEN).
pub const NAME_LEN_BYTES_MAX: u32 = 255;
/// Most authentication flavors in one answer.
pub const AUTH_FLAVOR_COUNT_MAX: u32 = 16;
/// A file handle of version 1 (NFS version 2) has exactly this length.
pub const HANDLE_V1_LEN_BYTES: usize = 32;

pub type DirPath<'a> = Opaque<'a, PATH_LEN_BYTES_MAX>;
pub type HostName<'a> = Opaque<'a, NAME_LEN_BYTES_MAX>;

xdr_enum! {
    /// The procedures, the same in both versions; names are those of the metrics.
    pub enum Procedure: "MOUNT procedure" {
        Null = 0 => "null",
        Mount = 1 => "mnt",
        Dump = 2 => "dump",
        Unmount = 3 => "umnt",
        UnmountAll = 4 => "umntall",
        Export = 5 => "export",
    }
}

xdr_enum! {
    /// Why MNT failed: `mountstat3` without `MNT3_OK`.
    pub enum MountError: "mountstat3" {
        Perm = 1 => "MNT3ERR_PERM",
        NoEnt = 2 => "MNT3ERR_NOENT",
        Io = 5 => "MNT3ERR_IO",
        Access = 13 => "MNT3ERR_ACCES",
        NotDir = 20 => "MNT3ERR_NOTDIR",
        Inval = 22 => "MNT3ERR_INVAL",
        NameTooLong = 63 => "MNT3ERR_NAMETOOLONG",
        NotSupp = 10004 => "MNT3ERR_NOTSUPP",
        ServerFault = 10006 => "MNT3ERR_SERVERFAULT",
    }
}

/// Why MNT of version 1 failed: an errno of UNIX, which `MountError` has the numbers of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountErrno(pub NonZeroU32);

impl From<MountError> for MountErrno {
    fn from(error: MountError) -> Self {
        Self(NonZeroU32::new(error.number()).expect("no variant is 0"))
    }
}

impl Encode for MountErrno {
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.0.get());
    }
}

impl Decode<'_> for MountErrno {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let value = from.u32()?;
        let errno = NonZeroU32::new(value).ok_or(DecodeError::BadValue {
            what: "errno",
            value,
        })?;
        Ok(Self(errno))
    }
}

/// The arguments of a call, in either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Null,
    Mount(DirPath<'a>),
    Dump,
    Unmount(DirPath<'a>),
    UnmountAll,
    Export,
}

impl<'a> Call<'a> {
    pub fn decode(procedure: Procedure, from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Mount => Self::Mount(from.get()?),
            Procedure::Dump => Self::Dump,
            Procedure::Unmount => Self::Unmount(from.get()?),
            Procedure::UnmountAll => Self::UnmountAll,
            Procedure::Export => Self::Export,
        })
    }

    pub fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Mount(_) => Procedure::Mount,
            Self::Dump => Procedure::Dump,
            Self::Unmount(_) => Procedure::Unmount,
            Self::UnmountAll => Procedure::UnmountAll,
            Self::Export => Procedure::Export,
        }
    }
}

impl Encode for Call<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null | Self::Dump | Self::UnmountAll | Self::Export => {}
            Self::Mount(path) | Self::Unmount(path) => to.put(path),
        }
    }
}

xdr_struct! {
    /// `mountres3_ok`.
    pub struct MountOk {
        pub handle: FileHandle,
        /// Numbers of `AuthFlavor` that the server takes for this export, best first.
        pub auth_flavors: Array<u32, AUTH_FLAVOR_COUNT_MAX>,
    }
}

xdr_struct! {
    /// A mount as DUMP lists it.
    #[derive(Copy)]
    pub struct MountEntry<'a> {
        pub host: HostName<'a>,
        pub path: DirPath<'a>,
    }
}

xdr_struct! {
    /// An export as EXPORT lists it.
    pub struct ExportEntry<'a> {
        pub path: DirPath<'a>,
        /// Who may mount it; everyone if empty.
        pub groups: List<HostName<'a>>,
    }
}

/// The results of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    Null,
    /// Version 3.
    Mount(Result<MountOk, MountError>),
    /// Version 1.
    MountV1(Result<[u8; HANDLE_V1_LEN_BYTES], MountErrno>),
    Dump(List<MountEntry<'a>>),
    Unmount,
    UnmountAll,
    Export(List<ExportEntry<'a>>),
}

impl<'a> Reply<'a> {
    /// `version` is 3, or what version 1 says is read.
    pub fn decode(
        version: u32,
        procedure: Procedure,
        from: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Mount if version == VERSION_3 => Self::Mount(Decode::decode(from)?),
            Procedure::Mount => Self::MountV1(Decode::decode(from)?),
            Procedure::Dump => Self::Dump(Decode::decode(from)?),
            Procedure::Unmount => Self::Unmount,
            Procedure::UnmountAll => Self::UnmountAll,
            Procedure::Export => Self::Export(Decode::decode(from)?),
        })
    }

    pub fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Mount(_) | Self::MountV1(_) => Procedure::Mount,
            Self::Dump(_) => Procedure::Dump,
            Self::Unmount => Procedure::Unmount,
            Self::UnmountAll => Procedure::UnmountAll,
            Self::Export(_) => Procedure::Export,
        }
    }
}

impl Encode for Reply<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null | Self::Unmount | Self::UnmountAll => {}
            Self::Mount(result) => to.put(result),
            Self::MountV1(result) => to.put(result),
            Self::Dump(mounts) => to.put(mounts),
            Self::Export(exports) => to.put(exports),
        }
    }
}

#[cfg(test)]
mod tests;
