//! Arguments and results of the operations on files and directories (RFC 8881, section 18).
//!
//! The current and the saved filehandle are no arguments: the COMPOUND carries them from one operation to the next.

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer, xdr_enum, xdr_struct};

use super::attr::Fattr;
use super::bitmap::Bitmap;
use super::reply::{Outcome, ReplyOr};
use super::seq::{Chain, Items};
use super::status::{ErrorStatus, Status};
use super::types::*;

/// Bits of ACCESS (RFC 8881, section 18.1; RFC 8276, section 8.6).
pub mod access {
    pub const READ: u32 = 0x001;
    pub const LOOKUP: u32 = 0x002;
    pub const MODIFY: u32 = 0x004;
    pub const EXTEND: u32 = 0x008;
    pub const DELETE: u32 = 0x010;
    pub const EXECUTE: u32 = 0x020;
    pub const XATTR_READ: u32 = 0x040;
    pub const XATTR_WRITE: u32 = 0x080;
    pub const XATTR_LIST: u32 = 0x100;
}

xdr_struct! {
    #[derive(Copy)]
    pub struct AccessOk {
        /// The bits of [`access`] that the server can judge.
        pub supported: u32,
        pub access: u32,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CommitArgs {
        pub offset: u64,
        /// 0: to the end of the file.
        pub count_bytes: u32,
    }
}

xdr_union! {
    /// The object that CREATE makes (`createtype4`).
    #[derive(Copy)]
    pub enum CreateType<'a>: "nfs_ftype4" {
        /// OPEN makes regular files: answered `BadType`.
        Regular = 1,
        Directory = 2,
        BlockDevice(DeviceNumber) = 3,
        CharDevice(DeviceNumber) = 4,
        Symlink(LinkText<'a>) = 5,
        Socket = 6,
        Fifo = 7,
        /// Answered `BadType`.
        AttrDir = 8,
        /// Answered `BadType`.
        NamedAttr = 9,
    }
}

xdr_struct! {
    pub struct CreateArgs<'a> {
        pub kind: CreateType<'a>,
        pub name: Name<'a>,
        pub attributes: Fattr<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CreateOk {
        pub dir_change: ChangeInfo,
        pub attrs_set: Bitmap,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct ReadArgs {
        pub state_id: StateId,
        pub offset: u64,
        pub count_bytes: u32,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct ReadOk<'a> {
        pub eof: bool,
        pub data: Data<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct ReadDirArgs {
        /// Of the last entry seen; 0 to begin.
        pub cookie: u64,
        pub cookie_verifier: Verifier,
        /// Most bytes of names and cookies: a hint. 0 is none.
        pub dir_count_bytes: u32,
        /// Most bytes of [`ReadDirOk`] on the wire.
        pub max_count_bytes: u32,
        pub attr_request: Bitmap,
    }
}

xdr_struct! {
    /// `entry4`.
    #[derive(Copy)]
    pub struct Entry<'a> {
        /// Names the place after this entry. 0, 1 and 2 are reserved.
        pub cookie: u64,
        pub name: Name<'a>,
        pub attributes: Fattr<'a>,
    }
}

xdr_struct! {
    pub struct ReadDirOk<'a> {
        pub cookie_verifier: Verifier,
        pub entries: Chain<'a, Entry<'a>>,
        pub eof: bool,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct RenameArgs<'a> {
        /// In the directory of the saved filehandle.
        pub from: Name<'a>,
        /// In the directory of the current filehandle.
        pub to: Name<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct RenameOk {
        pub from_dir_change: ChangeInfo,
        pub to_dir_change: ChangeInfo,
    }
}

/// A flavor of RPC that a server takes for a file (`secinfo4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecInfo<'a> {
    /// AUTH_NONE, AUTH_SYS or another flavor, but not RPCSEC_GSS.
    Flavor(u32),
    Gss(GssInfo<'a>),
}

/// The flavor RPCSEC_GSS (RFC 2203).
pub const FLAVOR_GSS: u32 = 6;

xdr_struct! {
    /// `rpcsec_gss_info`.
    #[derive(Copy)]
    pub struct GssInfo<'a> {
        /// DER of the mechanism's object id.
        pub oid: Text<'a>,
        pub quality: u32,
        pub service: GssService,
    }
}

impl Encode for SecInfo<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Flavor(flavor) => to.u32(*flavor),
            Self::Gss(info) => {
                to.u32(FLAVOR_GSS);
                to.put(info);
            }
        }
    }
}

impl<'a> Decode<'a> for SecInfo<'a> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match from.u32()? {
            FLAVOR_GSS => from.get().map(Self::Gss),
            flavor => Ok(Self::Flavor(flavor)),
        }
    }
}

/// The results of SECINFO and SECINFO_NO_NAME.
pub type SecInfos<'a> = Items<'a, SecInfo<'a>, SHORT_COUNT_MAX>;

xdr_enum! {
    /// `secinfo_style4`: of which object SECINFO_NO_NAME asks (RFC 8881, section 18.45).
    pub enum SecInfoStyle: "secinfo_style4" {
        CurrentHandle = 0 => "SECINFO_STYLE4_CURRENT_FH",
        Parent = 1 => "SECINFO_STYLE4_PARENT",
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SetAttrArgs<'a> {
        /// The open that a change of the size needs.
        pub state_id: StateId,
        pub attributes: Fattr<'a>,
    }
}

/// SETATTR says which attributes it set even if it failed (RFC 8881, section 18.30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttrReply {
    pub status: Status,
    pub attrs_set: Bitmap,
}

impl Encode for SetAttrReply {
    fn encode(&self, to: &mut Writer<'_>) {
        to.put(&self.status);
        to.put(&self.attrs_set);
    }
}

impl Decode<'_> for SetAttrReply {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            status: from.get()?,
            attrs_set: from.get()?,
        })
    }
}

impl Outcome for SetAttrReply {
    fn status(&self) -> Status {
        self.status
    }

    fn failed(status: ErrorStatus) -> Self {
        Self {
            status: Err(status),
            attrs_set: Bitmap::EMPTY,
        }
    }
}

xdr_struct! {
    /// The arguments of WRITE but for the payload.
    #[derive(Copy)]
    pub struct WriteHead {
        pub state_id: StateId,
        pub offset: u64,
        pub stable: StableHow,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct WriteArgs<'a> {
        pub head: WriteHead,
        pub data: Data<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct WriteOk {
        pub count_bytes: u32,
        pub committed: StableHow,
        pub verifier: WriteVerifier,
    }
}

/// SETCLIENTID of version 4.0, which later versions answer `NotSupp` (RFC 7530, section 16.33).
pub mod v40 {
    use super::*;

    xdr_struct! {
        #[derive(Copy)]
        pub struct SetClientIdArgs<'a> {
            pub verifier: Verifier,
            pub owner: OwnerName<'a>,
            pub callback_program: u32,
            pub callback_address: NetAddr<'a>,
            pub callback_ident: u32,
        }
    }

    xdr_struct! {
        #[derive(Copy)]
        pub struct SetClientIdOk {
            pub client_id: ClientId,
            pub confirm: Verifier,
        }
    }

    xdr_struct! {
        #[derive(Copy)]
        pub struct SetClientIdConfirmArgs {
            pub client_id: ClientId,
            pub confirm: Verifier,
        }
    }

    /// The results of SETCLIENTID; with `ClIdInUse`, who uses the id.
    pub type SetClientIdReply<'a> =
        ReplyOr<SetClientIdOk, NetAddr<'a>, { ErrorStatus::ClIdInUse as u32 }>;

    xdr_struct! {
        #[derive(Copy)]
        pub struct OpenConfirmArgs {
            pub state_id: StateId,
            pub seqid: u32,
        }
    }
}
