//! Operations of parallel NFS (RFC 8881, sections 18.40 to 18.44; RFC 7862, sections 15.6 and 15.7).
//!
//! No server of ours gives layouts. The arguments are decoded all the same: without them the next operation of
//! the COMPOUND cannot be found.

use cairn_codec_rpc::xdr_struct;

use super::bitmap::Bitmap;
use super::op::Op;
use super::reply::ReplyOr;
use super::seq::Items;
use super::status::{ErrorStatus, Status};
use super::types::*;

xdr_struct! {
    #[derive(Copy)]
    pub struct GetDeviceInfoArgs {
        pub device_id: DeviceId,
        pub layout_type: LayoutType,
        pub max_count_bytes: u32,
        pub notify_types: Bitmap,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct GetDeviceInfoOk<'a> {
        pub layout_type: LayoutType,
        pub address: Body<'a>,
        pub notifications: Bitmap,
    }
}

/// The results of GETDEVICEINFO; with `TooSmall`, how many bytes are needed.
pub type GetDeviceInfoReply<'a> =
    ReplyOr<GetDeviceInfoOk<'a>, u32, { ErrorStatus::TooSmall as u32 }>;

xdr_struct! {
    #[derive(Copy)]
    pub struct GetDeviceListArgs {
        pub layout_type: LayoutType,
        pub device_count_max: u32,
        pub cookie: u64,
        pub cookie_verifier: Verifier,
    }
}

xdr_struct! {
    pub struct GetDeviceListOk<'a> {
        pub cookie: u64,
        pub cookie_verifier: Verifier,
        pub device_ids: Items<'a, DeviceId, SHORT_COUNT_MAX>,
        pub eof: bool,
    }
}

xdr_struct! {
    /// `layoutupdate4`.
    #[derive(Copy)]
    pub struct LayoutUpdate<'a> {
        pub layout_type: LayoutType,
        pub body: Body<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct LayoutCommitArgs<'a> {
        pub offset: u64,
        pub len_bytes: u64,
        pub reclaim: bool,
        pub state_id: StateId,
        pub last_write_offset: Option<u64>,
        pub time_modify: Option<NfsTime>,
        pub update: LayoutUpdate<'a>,
    }
}

/// The size of the file, if LAYOUTCOMMIT changed it (`newsize4`).
pub type NewSize = Option<u64>;

xdr_struct! {
    #[derive(Copy)]
    pub struct LayoutGetArgs {
        pub signal_available: bool,
        pub layout_type: LayoutType,
        pub io_mode: LayoutIoMode,
        pub offset: u64,
        pub len_bytes: u64,
        pub len_bytes_min: u64,
        pub state_id: StateId,
        pub max_count_bytes: u32,
    }
}

xdr_struct! {
    /// `layout4`.
    #[derive(Copy)]
    pub struct Layout<'a> {
        pub offset: u64,
        pub len_bytes: u64,
        pub io_mode: LayoutIoMode,
        pub layout_type: LayoutType,
        pub body: Body<'a>,
    }
}

xdr_struct! {
    pub struct LayoutGetOk<'a> {
        pub return_on_close: bool,
        pub state_id: StateId,
        pub layouts: Items<'a, Layout<'a>, SHORT_COUNT_MAX>,
    }
}

/// The results of LAYOUTGET; with `LayoutTryLater`, whether the server will say when.
pub type LayoutGetReply<'a> =
    ReplyOr<LayoutGetOk<'a>, bool, { ErrorStatus::LayoutTryLater as u32 }>;

xdr_struct! {
    /// `layoutreturn_file4`.
    #[derive(Copy)]
    pub struct LayoutReturnFile<'a> {
        pub offset: u64,
        pub len_bytes: u64,
        pub state_id: StateId,
        pub body: Body<'a>,
    }
}

xdr_union! {
    /// `layoutreturn4`.
    #[derive(Copy)]
    pub enum LayoutReturn<'a>: "layoutreturn_type4" {
        File(LayoutReturnFile<'a>) = 1,
        Fsid = 2,
        All = 3,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct LayoutReturnArgs<'a> {
        pub reclaim: bool,
        pub layout_type: LayoutType,
        pub io_mode: LayoutIoMode,
        pub what: LayoutReturn<'a>,
    }
}

xdr_struct! {
    /// `device_error4` of version 4.2.
    #[derive(Copy)]
    pub struct DeviceError {
        pub device_id: DeviceId,
        pub status: Status,
        pub op: Op,
    }
}

xdr_struct! {
    pub struct LayoutErrorArgs<'a> {
        pub offset: u64,
        pub len_bytes: u64,
        pub state_id: StateId,
        pub errors: Items<'a, DeviceError, SHORT_COUNT_MAX>,
    }
}

xdr_struct! {
    /// `io_info4` of version 4.2.
    #[derive(Copy)]
    pub struct IoInfo {
        pub count: u64,
        pub len_bytes: u64,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct LayoutStatsArgs<'a> {
        pub offset: u64,
        pub len_bytes: u64,
        pub state_id: StateId,
        pub read: IoInfo,
        pub write: IoInfo,
        pub device_id: DeviceId,
        pub update: LayoutUpdate<'a>,
    }
}
