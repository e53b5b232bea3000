//! The operations by number (RFC 8881, section 16.2; RFC 7863; RFC 8276, section 8.6).

use cairn_codec_rpc::xdr_enum;

xdr_enum! {
    /// `nfs_opnum4`; names are those of the metrics.
    pub enum Op: "nfs_opnum4" {
        Access = 3 => "access",
        Close = 4 => "close",
        Commit = 5 => "commit",
        Create = 6 => "create",
        DelegPurge = 7 => "delegpurge",
        DelegReturn = 8 => "delegreturn",
        GetAttr = 9 => "getattr",
        GetFh = 10 => "getfh",
        Link = 11 => "link",
        Lock = 12 => "lock",
        LockT = 13 => "lockt",
        LockU = 14 => "locku",
        Lookup = 15 => "lookup",
        LookupP = 16 => "lookupp",
        NVerify = 17 => "nverify",
        Open = 18 => "open",
        OpenAttr = 19 => "openattr",
        OpenConfirm = 20 => "open_confirm",
        OpenDowngrade = 21 => "open_downgrade",
        PutFh = 22 => "putfh",
        PutPubFh = 23 => "putpubfh",
        PutRootFh = 24 => "putrootfh",
        Read = 25 => "read",
        ReadDir = 26 => "readdir",
        ReadLink = 27 => "readlink",
        Remove = 28 => "remove",
        Rename = 29 => "rename",
        Renew = 30 => "renew",
        RestoreFh = 31 => "restorefh",
        SaveFh = 32 => "savefh",
        SecInfo = 33 => "secinfo",
        SetAttr = 34 => "setattr",
        SetClientId = 35 => "setclientid",
        SetClientIdConfirm = 36 => "setclientid_confirm",
        Verify = 37 => "verify",
        Write = 38 => "write",
        ReleaseLockOwner = 39 => "release_lockowner",
        BackchannelCtl = 40 => "backchannel_ctl",
        BindConnToSession = 41 => "bind_conn_to_session",
        ExchangeId = 42 => "exchange_id",
        CreateSession = 43 => "create_session",
        DestroySession = 44 => "destroy_session",
        FreeStateId = 45 => "free_stateid",
        GetDirDelegation = 46 => "get_dir_delegation",
        GetDeviceInfo = 47 => "getdeviceinfo",
        GetDeviceList = 48 => "getdevicelist",
        LayoutCommit = 49 => "layoutcommit",
        LayoutGet = 50 => "layoutget",
        LayoutReturn = 51 => "layoutreturn",
        SecInfoNoName = 52 => "secinfo_no_name",
        Sequence = 53 => "sequence",
        SetSsv = 54 => "set_ssv",
        TestStateId = 55 => "test_stateid",
        WantDelegation = 56 => "want_delegation",
        DestroyClientId = 57 => "destroy_clientid",
        ReclaimComplete = 58 => "reclaim_complete",
        Allocate = 59 => "allocate",
        Copy = 60 => "copy",
        CopyNotify = 61 => "copy_notify",
        Deallocate = 62 => "deallocate",
        IoAdvise = 63 => "io_advise",
        LayoutError = 64 => "layouterror",
        LayoutStats = 65 => "layoutstats",
        OffloadCancel = 66 => "offload_cancel",
        OffloadStatus = 67 => "offload_status",
        ReadPlus = 68 => "read_plus",
        Seek = 69 => "seek",
        WriteSame = 70 => "write_same",
        Clone = 71 => "clone",
        GetXattr = 72 => "getxattr",
        SetXattr = 73 => "setxattr",
        ListXattrs = 74 => "listxattrs",
        RemoveXattr = 75 => "removexattr",
        /// Only in results: in place of a number that is no operation.
        Illegal = 10044 => "illegal",
    }
}

/// Whether a version asks for an operation (RFC 8881, section 17; RFC 7862, section 13; RFC 8276, section 8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Required,
    /// RECOMMENDED or OPTIONAL: a server without it answers `NotSupp`.
    Optional,
    /// MUST NOT be implemented: answered `NotSupp`.
    Forbidden,
}

impl Op {
    /// The operation with this number in this minor version. An operation of a later version is none: it is
    /// answered `OpIllegal`, not `NotSupp` (RFC 8178, section 4.4.3).
    pub fn of_version(minor_version: u32, number: u32) -> Option<Self> {
        Self::from_u32(number).filter(|op| minor_version >= op.minor_version_min())
    }

    /// The first minor version that has it.
    pub fn minor_version_min(self) -> u32 {
        match self {
            Self::Illegal => 0,
            op if op >= Self::Allocate => 2,
            op if op >= Self::BackchannelCtl => 1,
            _ => 0,
        }
    }

    /// Whether minor version 1 or 2 asks for it.
    pub fn need(self, minor_version: u32) -> Need {
        match self {
            Self::OpenConfirm
            | Self::ReleaseLockOwner
            | Self::Renew
            | Self::SetClientId
            | Self::SetClientIdConfirm => Need::Forbidden,
            Self::GetDeviceList if minor_version >= 2 => Need::Forbidden,
            Self::DelegPurge
            | Self::DelegReturn
            | Self::GetDeviceInfo
            | Self::GetDeviceList
            | Self::GetDirDelegation
            | Self::LayoutCommit
            | Self::LayoutGet
            | Self::LayoutReturn
            | Self::Link
            | Self::OpenAttr
            | Self::ReadLink
            | Self::SecInfoNoName
            | Self::WantDelegation => Need::Optional,
            op if op >= Self::Allocate && op != Self::Illegal => Need::Optional,
            _ => Need::Required,
        }
    }
}
