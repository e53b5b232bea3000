//! Operations of version 4.2: space, copies, holes (RFC 7862, section 15), and extended attributes (RFC 8276,
//! section 8.4).

use cairn_codec_rpc::{xdr_enum, xdr_struct};

use super::bitmap::Bitmap;
use super::reply::ReplyOr;
use super::seq::Items;
use super::status::{ErrorStatus, Status};
use super::types::*;

/// Longest value of an extended attribute that is decoded; servers refuse shorter ones by themselves.
pub const XATTR_VALUE_DECODE_LEN_BYTES_MAX: u32 = DATA_LEN_BYTES_MAX;

xdr_struct! {
    /// The arguments of ALLOCATE and DEALLOCATE.
    #[derive(Copy)]
    pub struct SpaceArgs {
        pub state_id: StateId,
        pub offset: u64,
        pub len_bytes: u64,
    }
}

xdr_struct! {
    /// From the file of the saved filehandle to that of the current one.
    #[derive(Copy)]
    pub struct CloneArgs {
        pub from_state_id: StateId,
        pub to_state_id: StateId,
        pub from_offset: u64,
        pub to_offset: u64,
        /// 0: to the end of the source.
        pub len_bytes: u64,
    }
}

xdr_struct! {
    /// From the file of the saved filehandle to that of the current one.
    pub struct CopyArgs<'a> {
        pub from_state_id: StateId,
        pub to_state_id: StateId,
        pub from_offset: u64,
        pub to_offset: u64,
        /// 0: to the end of the source.
        pub len_bytes: u64,
        pub requirements: CopyRequirements,
        /// Where the source is; none: on this server.
        pub source_servers: Items<'a, NetLoc<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_struct! {
    /// `copy_requirements4`: what a client asks for, or what a server does.
    #[derive(Copy, Default)]
    pub struct CopyRequirements {
        /// Bytes are copied in order.
        pub consecutive: bool,
        /// The reply comes after the copy.
        pub synchronous: bool,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CopyOk {
        pub response: WriteResponse,
        pub requirements: CopyRequirements,
    }
}

/// The results of COPY; with `OffloadNoReqs`, what the server could do.
pub type CopyReply = ReplyOr<CopyOk, CopyRequirements, { ErrorStatus::OffloadNoReqs as u32 }>;

xdr_struct! {
    #[derive(Copy)]
    pub struct CopyNotifyArgs<'a> {
        pub state_id: StateId,
        pub destination_server: NetLoc<'a>,
    }
}

xdr_struct! {
    pub struct CopyNotifyOk<'a> {
        pub lease_time: NfsTime,
        pub state_id: StateId,
        pub source_servers: Items<'a, NetLoc<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct OffloadStatusOk {
        pub count_bytes: u64,
        /// How it ended, if it did. Decoded from `nfsstat4<1>`.
        pub complete: Option<Status>,
    }
}

/// Bits of IO_ADVISE (`IO_ADVISE_type4`; RFC 7862, section 15.5).
pub mod io_advise {
    pub const NORMAL: u32 = 0;
    pub const SEQUENTIAL: u32 = 1;
    pub const SEQUENTIAL_BACKWARDS: u32 = 2;
    pub const RANDOM: u32 = 3;
    pub const WILL_NEED: u32 = 4;
    pub const WILL_NEED_OPPORTUNISTIC: u32 = 5;
    pub const DONT_NEED: u32 = 6;
    pub const NO_REUSE: u32 = 7;
    pub const READ: u32 = 8;
    pub const WRITE: u32 = 9;
    pub const INIT_PROXIMITY: u32 = 10;
}

xdr_struct! {
    #[derive(Copy)]
    pub struct IoAdviseArgs {
        pub state_id: StateId,
        pub offset: u64,
        /// 0: to the end of the file.
        pub len_bytes: u64,
        /// Bits by [`io_advise`].
        pub hints: Bitmap,
    }
}

xdr_union! {
    /// A part of a READ_PLUS (`read_plus_content`).
    #[derive(Copy)]
    pub enum ReadPlusContent<'a>: "data_content4" {
        Data(PlacedData<'a>) = 0,
        Hole(Hole) = 1,
    }
}

xdr_struct! {
    /// `data4`.
    #[derive(Copy)]
    pub struct PlacedData<'a> {
        pub offset: u64,
        pub data: Data<'a>,
    }
}

xdr_struct! {
    /// `data_info4`.
    #[derive(Copy)]
    pub struct Hole {
        pub offset: u64,
        pub len_bytes: u64,
    }
}

xdr_struct! {
    pub struct ReadPlusOk<'a> {
        pub eof: bool,
        pub contents: Items<'a, ReadPlusContent<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_enum! {
    /// `data_content4`: what SEEK looks for.
    pub enum SeekWhat: "data_content4" {
        Data = 0 => "NFS4_CONTENT_DATA",
        Hole = 1 => "NFS4_CONTENT_HOLE",
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SeekArgs {
        pub state_id: StateId,
        pub offset: u64,
        pub what: SeekWhat,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SeekOk {
        pub eof: bool,
        pub offset: u64,
    }
}

xdr_struct! {
    /// `app_data_block4`: a pattern that is repeated (RFC 7862, section 8.1).
    #[derive(Copy)]
    pub struct AppDataBlock<'a> {
        pub offset: u64,
        pub block_len_bytes: u64,
        pub block_count: u64,
        /// Where in a block its number stands; all ones: nowhere.
        pub block_number_offset: u64,
        pub first_block_number: u32,
        /// Where in a block the pattern stands.
        pub pattern_offset: u64,
        pub pattern: Data<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct WriteSameArgs<'a> {
        pub state_id: StateId,
        pub stable: StableHow,
        pub block: AppDataBlock<'a>,
    }
}

/// `xattrkey4`.
pub type XattrName<'a> = Name<'a>;
/// `xattrvalue4`.
pub type XattrValue<'a> = cairn_codec_rpc::Opaque<'a, XATTR_VALUE_DECODE_LEN_BYTES_MAX>;

xdr_enum! {
    /// `setxattr_option4`.
    pub enum SetXattrOption: "setxattr_option4" {
        Either = 0 => "SETXATTR4_EITHER",
        Create = 1 => "SETXATTR4_CREATE",
        Replace = 2 => "SETXATTR4_REPLACE",
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SetXattrArgs<'a> {
        pub option: SetXattrOption,
        pub name: XattrName<'a>,
        pub value: XattrValue<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct ListXattrsArgs {
        /// Of the last reply; 0 to begin.
        pub cookie: u64,
        /// Most bytes of [`ListXattrsOk`] on the wire.
        pub max_count_bytes: u32,
    }
}

xdr_struct! {
    pub struct ListXattrsOk<'a> {
        pub cookie: u64,
        pub names: Items<'a, XattrName<'a>, { cairn_codec_rpc::xdr::LIST_COUNT_MAX }>,
        pub eof: bool,
    }
}
