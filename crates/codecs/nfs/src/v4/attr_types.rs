//! The types of attributes that are more than a number or a flag (RFC 8881, sections 3.3, 5, 6 and 11;
//! RFC 7862, section 12.2).

use cairn_codec_rpc::{xdr_enum, xdr_struct};

use super::bitmap::Bitmap;
use super::seq::Items;
use super::types::*;

xdr_struct! {
    /// `nfsace4`: one entry of an access control list (RFC 8881, section 6.2.1).
    #[derive(Copy)]
    pub struct Ace<'a> {
        /// Allow, deny, audit or alarm: one of [`ace_type`].
        pub ace_type: u32,
        pub flags: u32,
        pub access_mask: u32,
        pub who: Text<'a>,
    }
}

/// Values of [`Ace::ace_type`].
pub mod ace_type {
    pub const ALLOW: u32 = 0;
    pub const DENY: u32 = 1;
    pub const AUDIT: u32 = 2;
    pub const ALARM: u32 = 3;
}

/// `nfsace4<>`.
pub type Aces<'a> = Items<'a, Ace<'a>, SHORT_COUNT_MAX>;

xdr_struct! {
    /// `nfsacl41` (RFC 8881, section 6.2.2).
    pub struct Acl41<'a> {
        pub flags: u32,
        pub aces: Aces<'a>,
    }
}

/// `pathname4`: the names from the root on.
pub type PathName<'a> = Items<'a, Name<'a>, SHORT_COUNT_MAX>;

xdr_struct! {
    /// `fs_location4`.
    pub struct FsLocation<'a> {
        pub servers: Items<'a, Text<'a>, SHORT_COUNT_MAX>,
        pub root_path: PathName<'a>,
    }
}

xdr_struct! {
    /// `fs_locations4` (RFC 8881, section 11.16).
    pub struct FsLocations<'a> {
        pub fs_root: PathName<'a>,
        pub locations: Items<'a, FsLocation<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_struct! {
    /// `fs_locations_server4` (RFC 8881, section 11.17.1).
    #[derive(Copy)]
    pub struct FsLocationsServer<'a> {
        pub currency: Int32,
        /// Flags, classes, ranks and orders, a byte each.
        pub info: Text<'a>,
        pub server: Text<'a>,
    }
}

xdr_struct! {
    /// `fs_locations_item4`.
    pub struct FsLocationsItem<'a> {
        pub entries: Items<'a, FsLocationsServer<'a>, SHORT_COUNT_MAX>,
        pub root_path: PathName<'a>,
    }
}

xdr_struct! {
    /// `fs_locations_info4` (RFC 8881, section 11.17).
    pub struct FsLocationsInfo<'a> {
        pub flags: u32,
        pub valid_for_seconds: Int32,
        pub fs_root: PathName<'a>,
        pub items: Items<'a, FsLocationsItem<'a>, SHORT_COUNT_MAX>,
    }
}

xdr_enum! {
    /// `fs4_status_type` (RFC 8881, section 11.18).
    pub enum FsStatusType: "fs4_status_type" {
        Fixed = 1 => "STATUS4_FIXED",
        Updated = 2 => "STATUS4_UPDATED",
        Versioned = 3 => "STATUS4_VERSIONED",
        Writable = 4 => "STATUS4_WRITABLE",
        Referral = 5 => "STATUS4_REFERRAL",
    }
}

xdr_struct! {
    /// `fs4_status`.
    pub struct FsStatus<'a> {
        pub absent: bool,
        pub status_type: FsStatusType,
        pub source: Text<'a>,
        pub current: Text<'a>,
        pub age_seconds: Int32,
        pub version: NfsTime,
    }
}

xdr_struct! {
    /// `change_policy4` (RFC 8881, section 5.8.2.5).
    #[derive(Copy)]
    pub struct ChangePolicy {
        pub major: u64,
        pub minor: u64,
    }
}

xdr_struct! {
    /// `layouthint4`.
    pub struct LayoutHint<'a> {
        pub layout_type: LayoutType,
        pub body: Body<'a>,
    }
}

xdr_struct! {
    /// `threshold_item4` (RFC 8881, section 5.12.6).
    pub struct ThresholdItem<'a> {
        pub layout_type: LayoutType,
        pub hint_set: Bitmap,
        pub hints: Body<'a>,
    }
}

xdr_struct! {
    /// `retention_get4` (RFC 8881, section 5.13).
    #[derive(Copy)]
    pub struct RetentionGet {
        /// All ones: for ever.
        pub duration_seconds: u64,
        pub begin_time: Option<NfsTime>,
    }
}

xdr_struct! {
    /// `retention_set4`.
    #[derive(Copy)]
    pub struct RetentionSet {
        pub enable: bool,
        pub duration_seconds: Option<u64>,
    }
}

xdr_struct! {
    /// `mode_masked4` (RFC 8881, section 6.2.5).
    #[derive(Copy)]
    pub struct ModeMasked {
        pub value: u32,
        /// The bits that change.
        pub mask: u32,
    }
}

xdr_enum! {
    /// `change_attr_type4`: how the change attribute moves (RFC 7862, section 12.2.3).
    pub enum ChangeAttrType: "change_attr_type4" {
        MonotonicIncr = 0 => "NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR",
        VersionCounter = 1 => "NFS4_CHANGE_TYPE_IS_VERSION_COUNTER",
        VersionCounterNoPnfs = 2 => "NFS4_CHANGE_TYPE_IS_VERSION_COUNTER_NOPNFS",
        TimeMetadata = 3 => "NFS4_CHANGE_TYPE_IS_TIME_METADATA",
        Undefined = 4 => "NFS4_CHANGE_TYPE_IS_UNDEFINED",
    }
}

xdr_struct! {
    /// `sec_label4` (RFC 7862, section 12.2.4).
    #[derive(Copy)]
    pub struct SecLabel<'a> {
        /// Which format of labels.
        pub format: u32,
        pub policy: u32,
        pub data: Body<'a>,
    }
}

/// Bits of the attribute `fh_expire_type` (RFC 8881, section 5.8.1.3).
pub mod handle_expiry {
    pub const PERSISTENT: u32 = 0;
    pub const NO_EXPIRE_WITH_OPEN: u32 = 0x1;
    pub const VOLATILE_ANY: u32 = 0x2;
    pub const VOLATILE_MIGRATION: u32 = 0x4;
    pub const VOLATILE_RENAME: u32 = 0x8;
}

/// Bits of the attribute `aclsupport` (RFC 8881, section 6.2.1.2).
pub mod acl_support {
    pub const ALLOW: u32 = 0x1;
    pub const DENY: u32 = 0x2;
    pub const AUDIT: u32 = 0x4;
    pub const ALARM: u32 = 0x8;
}

/// Bits of the attribute `fs_charset_cap` (RFC 8881, section 14.4).
pub mod charset_cap {
    pub const CONTAINS_NON_UTF8: u32 = 0x1;
    pub const ALLOWS_ONLY_UTF8: u32 = 0x2;
}
