//! Clients, sessions and state ids (RFC 8881, sections 18.33 to 18.38, 18.46 to 18.48, 18.50 and 18.51).

use cairn_codec_rpc::{Groups, Opaque, xdr_enum, xdr_struct};

use super::bitmap::Bitmap;
use super::seq::Items;
use super::status::Status;
use super::types::*;

xdr_struct! {
    /// AUTH_SYS for the back channel (`authsys_parms`; RFC 5531, appendix A).
    pub struct CallbackSys<'a> {
        pub stamp: u32,
        pub machine_name: Opaque<'a, 255>,
        pub uid: u32,
        pub gid: u32,
        pub groups: Groups,
    }
}

xdr_struct! {
    /// `gss_cb_handles4`.
    #[derive(Copy)]
    pub struct CallbackGss<'a> {
        pub service: GssService,
        pub handle_from_server: Text<'a>,
        pub handle_from_client: Text<'a>,
    }
}

xdr_union! {
    /// How the server shall sign its callbacks (`callback_sec_parms4`).
    pub enum CallbackSecurity<'a>: "flavor of callbacks" {
        None = 0,
        Sys(CallbackSys<'a>) = 1,
        Gss(CallbackGss<'a>) = 6,
    }
}

/// `callback_sec_parms4<>`.
pub type CallbackSecurities<'a> = Items<'a, CallbackSecurity<'a>, SHORT_COUNT_MAX>;

xdr_struct! {
    pub struct BackchannelCtlArgs<'a> {
        pub callback_program: u32,
        pub security: CallbackSecurities<'a>,
    }
}

xdr_enum! {
    /// `channel_dir_from_client4`.
    pub enum ChannelFromClient: "channel_dir_from_client4" {
        Fore = 1 => "CDFC4_FORE",
        Back = 2 => "CDFC4_BACK",
        ForeOrBoth = 3 => "CDFC4_FORE_OR_BOTH",
        BackOrBoth = 7 => "CDFC4_BACK_OR_BOTH",
    }
}

xdr_enum! {
    /// `channel_dir_from_server4`.
    pub enum ChannelFromServer: "channel_dir_from_server4" {
        Fore = 1 => "CDFS4_FORE",
        Back = 2 => "CDFS4_BACK",
        Both = 3 => "CDFS4_BOTH",
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct BindConnToSessionArgs {
        pub session_id: SessionId,
        pub direction: ChannelFromClient,
        pub use_rdma: bool,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct BindConnToSessionOk {
        pub session_id: SessionId,
        pub direction: ChannelFromServer,
        pub use_rdma: bool,
    }
}

/// Bits of EXCHANGE_ID (RFC 8881, section 18.35; RFC 7862, section 14.1).
pub mod exchange_flag {
    pub const SUPP_MOVED_REFER: u32 = 0x0000_0001;
    pub const SUPP_MOVED_MIGR: u32 = 0x0000_0002;
    /// Of version 4.2.
    pub const SUPP_FENCE_OPS: u32 = 0x0000_0004;
    pub const BIND_PRINC_STATEID: u32 = 0x0000_0100;
    pub const USE_NON_PNFS: u32 = 0x0001_0000;
    pub const USE_PNFS_MDS: u32 = 0x0002_0000;
    pub const USE_PNFS_DS: u32 = 0x0004_0000;
    pub const MASK_PNFS: u32 = 0x0007_0000;
    /// In arguments: update a record that is confirmed.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// In results: the record is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;

    /// The bits that arguments may have; others are answered `Inval`.
    pub const ARGUMENTS_41: u32 =
        SUPP_MOVED_REFER | SUPP_MOVED_MIGR | BIND_PRINC_STATEID | MASK_PNFS | UPD_CONFIRMED_REC_A;
    /// As `ARGUMENTS_41`, of version 4.2.
    pub const ARGUMENTS_42: u32 = ARGUMENTS_41 | SUPP_FENCE_OPS;
}

xdr_struct! {
    /// `client_owner4`: the client by its own name, and which of its lives this is.
    #[derive(Copy)]
    pub struct ClientOwner<'a> {
        pub verifier: Verifier,
        pub owner: OwnerName<'a>,
    }
}

xdr_struct! {
    /// `state_protect_ops4`: bitmaps by number of operation.
    #[derive(Copy)]
    pub struct StateProtectOps {
        pub must_enforce: Bitmap,
        pub must_allow: Bitmap,
    }
}

xdr_struct! {
    /// `ssv_sp_parms4`.
    pub struct SsvParams<'a> {
        pub ops: StateProtectOps,
        /// Object ids, as DER.
        pub hash_algorithms: Items<'a, Text<'a>, SHORT_COUNT_MAX>,
        /// Object ids, as DER.
        pub encryption_algorithms: Items<'a, Text<'a>, SHORT_COUNT_MAX>,
        pub window: u32,
        pub gss_handle_count: u32,
    }
}

xdr_union! {
    /// `state_protect4_a`.
    pub enum StateProtect<'a>: "state_protect_how4" {
        None = 0,
        MachineCredential(StateProtectOps) = 1,
        Ssv(SsvParams<'a>) = 2,
    }
}

xdr_struct! {
    pub struct ExchangeIdArgs<'a> {
        pub owner: ClientOwner<'a>,
        /// Bits of [`exchange_flag`].
        pub flags: u32,
        pub state_protect: StateProtect<'a>,
        pub implementation: Option<ImplId<'a>>,
    }
}

xdr_struct! {
    /// `ssv_prot_info4`.
    pub struct SsvInfo<'a> {
        pub ops: StateProtectOps,
        /// Index into the client's list.
        pub hash_algorithm_index: u32,
        /// Index into the client's list.
        pub encryption_algorithm_index: u32,
        pub ssv_len_bytes: u32,
        pub window: u32,
        pub gss_handles: Items<'a, Text<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_union! {
    /// `state_protect4_r`.
    pub enum StateProtected<'a>: "state_protect_how4" {
        None = 0,
        MachineCredential(StateProtectOps) = 1,
        Ssv(SsvInfo<'a>) = 2,
    }
}

xdr_struct! {
    /// `server_owner4`. Servers with equal major ids share connections and sessions as section 2.10.5 says.
    #[derive(Copy)]
    pub struct ServerOwner<'a> {
        pub minor_id: u64,
        pub major_id: OwnerName<'a>,
    }
}

xdr_struct! {
    pub struct ExchangeIdOk<'a> {
        pub client_id: ClientId,
        /// Of the first CREATE_SESSION.
        pub sequence_id: u32,
        /// Bits of [`exchange_flag`].
        pub flags: u32,
        pub state_protect: StateProtected<'a>,
        pub server_owner: ServerOwner<'a>,
        pub server_scope: OwnerName<'a>,
        pub implementation: Option<ImplId<'a>>,
    }
}

xdr_struct! {
    /// `channel_attrs4`: what a channel of a session takes.
    #[derive(Copy, Default)]
    pub struct ChannelAttrs {
        pub header_pad_len_bytes: u32,
        pub request_len_bytes_max: u32,
        pub response_len_bytes_max: u32,
        pub cached_response_len_bytes_max: u32,
        /// Most operations of a COMPOUND.
        pub op_count_max: u32,
        /// Slots.
        pub request_count_max: u32,
        pub rdma_ird: Option<u32>,
    }
}

/// Bits of CREATE_SESSION (RFC 8881, section 18.36).
pub mod create_session_flag {
    /// The reply cache survives a restart of the server.
    pub const PERSIST: u32 = 0x1;
    /// The connection becomes a back channel as well.
    pub const CONN_BACK_CHAN: u32 = 0x2;
    pub const CONN_RDMA: u32 = 0x4;
}

xdr_struct! {
    pub struct CreateSessionArgs<'a> {
        pub client_id: ClientId,
        pub sequence_id: u32,
        /// Bits of [`create_session_flag`].
        pub flags: u32,
        pub fore_channel: ChannelAttrs,
        pub back_channel: ChannelAttrs,
        pub callback_program: u32,
        pub security: CallbackSecurities<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CreateSessionOk {
        pub session_id: SessionId,
        pub sequence_id: u32,
        /// Bits of [`create_session_flag`].
        pub flags: u32,
        pub fore_channel: ChannelAttrs,
        pub back_channel: ChannelAttrs,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SequenceArgs {
        pub session_id: SessionId,
        pub sequence_id: u32,
        pub slot_id: u32,
        pub highest_slot_id: u32,
        /// Whether the reply shall be kept for a retry.
        pub cache_this: bool,
    }
}

/// Bits of [`SequenceOk::status_flags`] (RFC 8881, section 18.46).
pub mod sequence_status {
    pub const CB_PATH_DOWN: u32 = 0x0001;
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
    pub const ADMIN_STATE_REVOKED: u32 = 0x0020;
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x0040;
    pub const LEASE_MOVED: u32 = 0x0080;
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x0100;
    pub const CB_PATH_DOWN_SESSION: u32 = 0x0200;
    pub const BACKCHANNEL_FAULT: u32 = 0x0400;
    pub const DEVID_CHANGED: u32 = 0x0800;
    pub const DEVID_DELETED: u32 = 0x1000;
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SequenceOk {
        pub session_id: SessionId,
        pub sequence_id: u32,
        pub slot_id: u32,
        /// The highest slot that the server has.
        pub highest_slot_id: u32,
        /// The highest slot that the client should use.
        pub target_highest_slot_id: u32,
        /// Bits of [`sequence_status`].
        pub status_flags: u32,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct SetSsvArgs<'a> {
        pub ssv: Text<'a>,
        pub digest: Text<'a>,
    }
}

/// The argument of TEST_STATEID.
pub type StateIds<'a> = Items<'a, StateId, STATE_ID_COUNT_MAX>;
/// The result of TEST_STATEID: a status for each, in order.
pub type StateIdStatuses<'a> = Items<'a, Status, STATE_ID_COUNT_MAX>;
