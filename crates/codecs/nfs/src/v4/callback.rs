//! CB_COMPOUND: what the server calls at the client over the back channel (RFC 8881, section 20; RFC 7862, section
//! 16).
//!
//! Owns: the callback operations with their arguments and results.
//! Must not know: when something is recalled, over which connection.

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer, xdr_enum, xdr_struct};

use super::attr::Fattr;
use super::bitmap::Bitmap;
use super::compound::{
    Arguments, CompoundFault, MINOR_VERSIONS, OP_COUNT_MAX, Ops, Tag, operations,
};
use super::open::Delegation;
use super::reply::{Outcome, Reply};
use super::seq::Items;
use super::status::{ErrorStatus, Status};
use super::types::*;

/// The version of the callback program. Its number is the client's choice.
pub const CALLBACK_VERSION: u32 = 1;
/// CB_COMPOUND; CB_NULL is 0.
pub const CALLBACK_PROCEDURE_COMPOUND: u32 = 1;

xdr_enum! {
    /// `nfs_cb_opnum4`; names are those of the metrics.
    pub enum CbOp: "nfs_cb_opnum4" {
        GetAttr = 3 => "cb_getattr",
        Recall = 4 => "cb_recall",
        LayoutRecall = 5 => "cb_layoutrecall",
        Notify = 6 => "cb_notify",
        PushDeleg = 7 => "cb_push_deleg",
        RecallAny = 8 => "cb_recall_any",
        RecallableObjAvail = 9 => "cb_recallable_obj_avail",
        RecallSlot = 10 => "cb_recall_slot",
        Sequence = 11 => "cb_sequence",
        WantsCancelled = 12 => "cb_wants_cancelled",
        NotifyLock = 13 => "cb_notify_lock",
        NotifyDeviceId = 14 => "cb_notify_deviceid",
        Offload = 15 => "cb_offload",
        /// Only in results: in place of a number that is no operation.
        Illegal = 10044 => "cb_illegal",
    }
}

impl CbOp {
    /// The operation with this number in this minor version, 1 or 2.
    pub fn of_version(minor_version: u32, number: u32) -> Option<Self> {
        Self::from_u32(number).filter(|op| *op != Self::Offload || minor_version >= 2)
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbGetAttrArgs<'a> {
        pub file: Handle<'a>,
        pub attr_request: Bitmap,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbRecallArgs<'a> {
        pub state_id: StateId,
        /// The file will be cut to length 0: there is no need to send back what is dirty.
        pub truncate: bool,
        pub file: Handle<'a>,
    }
}

xdr_struct! {
    /// `layoutrecall_file4`.
    #[derive(Copy)]
    pub struct LayoutRecallFile<'a> {
        pub file: Handle<'a>,
        pub offset: u64,
        pub len_bytes: u64,
        pub state_id: StateId,
    }
}

xdr_union! {
    /// `layoutrecall4`.
    #[derive(Copy)]
    pub enum LayoutRecall<'a>: "layoutrecall_type4" {
        File(LayoutRecallFile<'a>) = 1,
        Fsid(Fsid) = 2,
        All = 3,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbLayoutRecallArgs<'a> {
        pub layout_type: LayoutType,
        pub io_mode: LayoutIoMode,
        pub changed: bool,
        pub recall: LayoutRecall<'a>,
    }
}

xdr_struct! {
    /// `notify4`: the values are as long as they say, and not decoded further.
    #[derive(Copy)]
    pub struct Notification<'a> {
        pub mask: Bitmap,
        pub values: Body<'a>,
    }
}

/// `notify4<>`.
pub type Notifications<'a> = Items<'a, Notification<'a>, SHORT_COUNT_MAX>;

xdr_struct! {
    pub struct CbNotifyArgs<'a> {
        pub state_id: StateId,
        pub file: Handle<'a>,
        pub changes: Notifications<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbPushDelegArgs<'a> {
        pub file: Handle<'a>,
        pub delegation: Delegation<'a>,
    }
}

/// Bits of [`RecallAnyArgs::type_mask`] (RFC 8881, section 20.6).
pub mod recall_any {
    pub const READ_DELEGATION: u32 = 0;
    pub const WRITE_DELEGATION: u32 = 1;
    pub const DIR_DELEGATION: u32 = 2;
    pub const FILE_LAYOUT: u32 = 3;
    pub const BLOCK_LAYOUT: u32 = 4;
}

xdr_struct! {
    /// The arguments of CB_RECALL_ANY and of CB_RECALLABLE_OBJ_AVAIL.
    #[derive(Copy)]
    pub struct RecallAnyArgs {
        pub objects_to_keep: u32,
        /// Bits by [`recall_any`].
        pub type_mask: Bitmap,
    }
}

xdr_struct! {
    /// `referring_call4`.
    #[derive(Copy)]
    pub struct ReferringCall {
        pub sequence_id: u32,
        pub slot_id: u32,
    }
}

xdr_struct! {
    /// `referring_call_list4`: calls whose replies the client must have before it believes this callback.
    pub struct ReferringCalls<'a> {
        pub session_id: SessionId,
        pub calls: Items<'a, ReferringCall, SHORT_COUNT_MAX>,
    }
}

xdr_struct! {
    pub struct CbSequenceArgs<'a> {
        pub session_id: SessionId,
        pub sequence_id: u32,
        pub slot_id: u32,
        pub highest_slot_id: u32,
        pub cache_this: bool,
        pub referring_calls: Items<'a, ReferringCalls<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbSequenceOk {
        pub session_id: SessionId,
        pub sequence_id: u32,
        pub slot_id: u32,
        pub highest_slot_id: u32,
        pub target_highest_slot_id: u32,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbWantsCancelledArgs {
        pub contended: bool,
        pub resourced: bool,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbNotifyLockArgs<'a> {
        pub file: Handle<'a>,
        pub owner: StateOwner<'a>,
    }
}

/// How a copy ended (`offload_info4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadInfo {
    Done(WriteResponse),
    Failed {
        status: ErrorStatus,
        copied_bytes: u64,
    },
}

impl Encode for OffloadInfo {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Done(response) => {
                to.put(&Status::Ok(()));
                to.put(response);
            }
            Self::Failed {
                status,
                copied_bytes,
            } => {
                to.put(status);
                to.put(copied_bytes);
            }
        }
    }
}

impl Decode<'_> for OffloadInfo {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match from.get::<Status>()? {
            Ok(()) => Self::Done(from.get()?),
            Err(status) => Self::Failed {
                status,
                copied_bytes: from.get()?,
            },
        })
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct CbOffloadArgs<'a> {
        pub file: Handle<'a>,
        pub state_id: StateId,
        pub info: OffloadInfo,
    }
}

operations! {
    /// A callback with its arguments.
    args CbArgs,
    /// A callback with its result.
    results CbResult,
    numbers CbOp,
    {
        GetAttr(CbGetAttrArgs<'a>) -> Reply<Fattr<'a>>,
        Recall(CbRecallArgs<'a>) -> Reply<()>,
        LayoutRecall(CbLayoutRecallArgs<'a>) -> Reply<()>,
        Notify(CbNotifyArgs<'a>) -> Reply<()>,
        PushDeleg(CbPushDelegArgs<'a>) -> Reply<()>,
        RecallAny(RecallAnyArgs) -> Reply<()>,
        RecallableObjAvail(RecallAnyArgs) -> Reply<()>,
        // The highest slot that the client should use.
        RecallSlot(u32) -> Reply<()>,
        Sequence(CbSequenceArgs<'a>) -> Reply<CbSequenceOk>,
        WantsCancelled(CbWantsCancelledArgs) -> Reply<()>,
        NotifyLock(CbNotifyLockArgs<'a>) -> Reply<()>,
        NotifyDeviceId(Notifications<'a>) -> Reply<()>,
        Offload(CbOffloadArgs<'a>) -> Reply<()>,
    }
}

/// `CB_COMPOUND4args` up to the operations.
#[derive(Clone, Debug)]
pub struct CbCompound<'a> {
    pub tag: Tag<'a>,
    pub minor_version: u32,
    /// Of version 4.0; later 0.
    pub callback_ident: u32,
    /// At most [`OP_COUNT_MAX`].
    pub op_count: u32,
    from: Reader<'a>,
}

impl<'a> CbCompound<'a> {
    /// Reads the arguments of the procedure CB_COMPOUND.
    pub fn decode(args: &'a [u8]) -> Result<Self, CompoundFault<'a>> {
        let mut from = Reader::new(args);
        let tag = from.get()?;
        let minor_version = from.u32()?;
        let refused = |status| Err(CompoundFault::Refused { tag, status });
        if !MINOR_VERSIONS.contains(&minor_version) {
            return refused(ErrorStatus::MinorVersMismatch);
        }
        let callback_ident = from.u32()?;
        let op_count = from.u32()?;
        if op_count > OP_COUNT_MAX {
            return refused(ErrorStatus::TooManyOps);
        }
        Ok(Self {
            tag,
            minor_version,
            callback_ident,
            op_count,
            from,
        })
    }

    /// The operations from the first on.
    pub fn ops(&self) -> Ops<'a, CbArgs<'a>> {
        Ops::new(self.minor_version, self.op_count, self.from.clone())
    }
}

/// Writes `CB_COMPOUND4args` of version 4.1 or later.
pub fn encode_callback(to: &mut Writer<'_>, tag: &[u8], minor_version: u32, ops: &[CbArgs<'_>]) {
    to.opaque(tag);
    to.u32(minor_version);
    to.u32(0);
    to.u32(u32::try_from(ops.len()).expect("operations fit 32 bits"));
    ops.iter().for_each(|op| to.put(op));
}
