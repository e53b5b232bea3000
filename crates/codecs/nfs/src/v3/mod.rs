//! NFS version 3: program 100003 (RFC 1813, section 3).
//!
//! Owns: the procedures, and calls and replies as one enum each.
//!
//! [`Call`] and [`Reply`] are what any call and any reply carries.
//! READ replies and WRITE calls have a form in which the payload is not copied:
//! [`encode_read_head`], [`encode_write_head`], [`decode_write_prefix`], [`decode_read_prefix`].

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer, xdr_enum};

mod args;
pub mod readdir;
mod results;
#[cfg(test)]
mod tests;
mod types;

pub use args::*;
pub use readdir::{Entry, EntryPlus, ReadDirOk, ReadDirPlusOk};
pub use results::*;
pub use types::*;

pub const PROGRAM: u32 = 100_003;
pub const VERSION: u32 = 3;
/// The port where clients expect it.
pub const PORT: u16 = 2049;

xdr_enum! {
    /// The procedures; names are those of the metrics.
    pub enum Procedure: "NFS procedure" {
        Null = 0 => "null",
        GetAttr = 1 => "getattr",
        SetAttr = 2 => "setattr",
        Lookup = 3 => "lookup",
        Access = 4 => "access",
        ReadLink = 5 => "readlink",
        Read = 6 => "read",
        Write = 7 => "write",
        Create = 8 => "create",
        MkDir = 9 => "mkdir",
        SymLink = 10 => "symlink",
        MkNod = 11 => "mknod",
        Remove = 12 => "remove",
        RmDir = 13 => "rmdir",
        Rename = 14 => "rename",
        Link = 15 => "link",
        ReadDir = 16 => "readdir",
        ReadDirPlus = 17 => "readdirplus",
        FsStat = 18 => "fsstat",
        FsInfo = 19 => "fsinfo",
        PathConf = 20 => "pathconf",
        Commit = 21 => "commit",
    }
}

/// One side of the conversation: an enum with what each procedure that is not NULL carries.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($procedure:ident($body:ty),)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name<'a> {
            Null,
            $($procedure($body),)*
        }

        impl<'a> $name<'a> {
            /// Reads what `procedure` carries. What follows it is left in `from`.
            pub fn decode(
                procedure: Procedure,
                from: &mut Reader<'a>,
            ) -> Result<Self, DecodeError> {
                Ok(match procedure {
                    Procedure::Null => Self::Null,
                    $(Procedure::$procedure => Self::$procedure(Decode::decode(from)?),)*
                })
            }

            pub fn procedure(&self) -> Procedure {
                match self {
                    Self::Null => Procedure::Null,
                    $(Self::$procedure(_) => Procedure::$procedure,)*
                }
            }
        }

        impl Encode for $name<'_> {
            fn encode(&self, to: &mut Writer<'_>) {
                match self {
                    Self::Null => {}
                    $(Self::$procedure(body) => to.put(body),)*
                }
            }
        }
    };
}

/// One line per procedure that has arguments gives both enums and their codecs.
macro_rules! messages {
    ($($procedure:ident($args:ty) -> $reply:ty,)*) => {
        message! {
            /// The arguments of a call.
            Call { $($procedure($args),)* }
        }
        message! {
            /// The results of a call.
            Reply { $($procedure($reply),)* }
        }
    };
}

impl Call<'_> {
    /// The handle of the object or directory that the call is about, which comes first. NULL has none.
    pub fn object(&self) -> Option<&FileHandle> {
        Some(match self {
            Self::Null => return None,
            Self::GetAttr(object)
            | Self::ReadLink(object)
            | Self::FsStat(object)
            | Self::FsInfo(object)
            | Self::PathConf(object) => object,
            Self::SetAttr(args) => &args.object,
            Self::Lookup(place) | Self::Remove(place) | Self::RmDir(place) => &place.dir,
            Self::Access(args) => &args.object,
            Self::Read(args) => &args.file,
            Self::Write(args) => &args.head.file,
            Self::Create(args) => &args.place.dir,
            Self::MkDir(args) => &args.place.dir,
            Self::SymLink(args) => &args.place.dir,
            Self::MkNod(args) => &args.place.dir,
            Self::Rename(args) => &args.from.dir,
            Self::Link(args) => &args.file,
            Self::ReadDir(args) => &args.dir,
            Self::ReadDirPlus(args) => &args.dir,
            Self::Commit(args) => &args.file,
        })
    }
}

messages! {
    GetAttr(FileHandle) -> GetAttrReply,
    SetAttr(SetAttrArgs) -> SetAttrReply,
    Lookup(DirOp<'a>) -> LookupReply,
    Access(AccessArgs) -> AccessReply,
    ReadLink(FileHandle) -> ReadLinkReply<'a>,
    Read(ReadArgs) -> ReadReply<'a>,
    Write(WriteArgs<'a>) -> WriteReply,
    Create(CreateArgs<'a>) -> MakeReply,
    MkDir(MkDirArgs<'a>) -> MakeReply,
    SymLink(SymLinkArgs<'a>) -> MakeReply,
    MkNod(MkNodArgs<'a>) -> MakeReply,
    Remove(DirOp<'a>) -> RemoveReply,
    RmDir(DirOp<'a>) -> RemoveReply,
    Rename(RenameArgs<'a>) -> RenameReply,
    Link(LinkArgs<'a>) -> LinkReply,
    ReadDir(ReadDirArgs) -> ReadDirReply<'a>,
    ReadDirPlus(ReadDirPlusArgs) -> ReadDirPlusReply<'a>,
    FsStat(FileHandle) -> FsStatReply,
    FsInfo(FileHandle) -> FsInfoReply,
    PathConf(FileHandle) -> PathConfReply,
    Commit(CommitArgs) -> CommitReply,
}
