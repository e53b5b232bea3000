//! Attributes (RFC 8881, section 5; RFC 7862, section 12; RFC 8276, section 8.2).
//!
//! Owns: the number, type and direction of each attribute; `fattr4` in both directions; which masks are refused
//! with which status.
//! Must not know: which attributes a server has. The caller gives that set.
//!
//! The values of an `fattr4` have no lengths: they follow one another in the order of their bits. A
//! reader that does not know one attribute cannot find the next.

use cairn_codec_rpc::{DecodeError, Encode, Opaque, Reader, Writer, xdr_struct};

use super::attr_types::*;
use super::bitmap::Bitmap;
use super::seq::Items;
use super::status::{ErrorStatus, Status};
use super::types::*;

/// Whether a client may get an attribute, set it, or both: the column "Acc" of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrAccess {
    Get,
    Set,
    GetSet,
}

macro_rules! attributes {
    ($($(#[$meta:meta])* $attr:ident($type:ty) = $number:literal, $text:literal, $access:ident;)*) => {
        /// An attribute that this codec knows, by its bit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Attr {
            $($(#[$meta])* $attr = $number,)*
        }

        impl Attr {
            /// Every attribute, in the order of their bits.
            pub const ALL: &[Self] = &[$(Self::$attr,)*];

            pub const fn from_bit(bit: u32) -> Option<Self> {
                match bit {
                    $($number => Some(Self::$attr),)*
                    _ => None,
                }
            }

            /// The name, as in the RFC.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$attr => $text,)*
                }
            }

            pub const fn access(self) -> AttrAccess {
                match self {
                    $(Self::$attr => AttrAccess::$access,)*
                }
            }
        }

        /// The value of one attribute.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum AttrValue<'a> {
            $($(#[$meta])* $attr($type),)*
        }

        impl<'a> AttrValue<'a> {
            pub const fn attr(&self) -> Attr {
                match self {
                    $(Self::$attr(_) => Attr::$attr,)*
                }
            }

            /// Reads the value of `attr`.
            pub fn decode(attr: Attr, from: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(match attr {
                    $(Attr::$attr => Self::$attr(from.get()?),)*
                })
            }
        }

        /// Without the number of the attribute, which the mask says.
        impl Encode for AttrValue<'_> {
            fn encode(&self, to: &mut Writer<'_>) {
                match self {
                    $(Self::$attr(value) => to.put(value),)*
                }
            }
        }
    };
}

attributes! {
    SupportedAttrs(Bitmap) = 0, "supported_attrs", Get;
    Type(FileType) = 1, "type", Get;
    /// Bits of [`handle_expiry`].
    FhExpireType(u32) = 2, "fh_expire_type", Get;
    Change(u64) = 3, "change", Get;
    Size(u64) = 4, "size", GetSet;
    LinkSupport(bool) = 5, "link_support", Get;
    SymlinkSupport(bool) = 6, "symlink_support", Get;
    NamedAttr(bool) = 7, "named_attr", Get;
    Fsid(Fsid) = 8, "fsid", Get;
    UniqueHandles(bool) = 9, "unique_handles", Get;
    /// In seconds.
    LeaseTime(u32) = 10, "lease_time", Get;
    /// Why READDIR has no other attributes of an entry.
    RdattrError(Status) = 11, "rdattr_error", Get;
    Acl(Aces<'a>) = 12, "acl", GetSet;
    /// Bits of [`acl_support`].
    AclSupport(u32) = 13, "aclsupport", Get;
    Archive(bool) = 14, "archive", GetSet;
    CanSetTime(bool) = 15, "cansettime", Get;
    CaseInsensitive(bool) = 16, "case_insensitive", Get;
    CasePreserving(bool) = 17, "case_preserving", Get;
    ChownRestricted(bool) = 18, "chown_restricted", Get;
    FileHandle(Handle<'a>) = 19, "filehandle", Get;
    FileId(u64) = 20, "fileid", Get;
    FilesAvail(u64) = 21, "files_avail", Get;
    FilesFree(u64) = 22, "files_free", Get;
    FilesTotal(u64) = 23, "files_total", Get;
    FsLocations(FsLocations<'a>) = 24, "fs_locations", Get;
    Hidden(bool) = 25, "hidden", GetSet;
    Homogeneous(bool) = 26, "homogeneous", Get;
    MaxFileSize(u64) = 27, "maxfilesize", Get;
    MaxLink(u32) = 28, "maxlink", Get;
    MaxName(u32) = 29, "maxname", Get;
    MaxRead(u64) = 30, "maxread", Get;
    MaxWrite(u64) = 31, "maxwrite", Get;
    MimeType(Text<'a>) = 32, "mimetype", GetSet;
    Mode(u32) = 33, "mode", GetSet;
    NoTrunc(bool) = 34, "no_trunc", Get;
    NumLinks(u32) = 35, "numlinks", Get;
    Owner(Text<'a>) = 36, "owner", GetSet;
    OwnerGroup(Text<'a>) = 37, "owner_group", GetSet;
    QuotaAvailHard(u64) = 38, "quota_avail_hard", Get;
    QuotaAvailSoft(u64) = 39, "quota_avail_soft", Get;
    QuotaUsed(u64) = 40, "quota_used", Get;
    RawDev(DeviceNumber) = 41, "rawdev", Get;
    SpaceAvail(u64) = 42, "space_avail", Get;
    SpaceFree(u64) = 43, "space_free", Get;
    SpaceTotal(u64) = 44, "space_total", Get;
    SpaceUsed(u64) = 45, "space_used", Get;
    System(bool) = 46, "system", GetSet;
    TimeAccess(NfsTime) = 47, "time_access", Get;
    TimeAccessSet(SetTime) = 48, "time_access_set", Set;
    TimeBackup(NfsTime) = 49, "time_backup", GetSet;
    TimeCreate(NfsTime) = 50, "time_create", GetSet;
    TimeDelta(NfsTime) = 51, "time_delta", Get;
    TimeMetadata(NfsTime) = 52, "time_metadata", Get;
    TimeModify(NfsTime) = 53, "time_modify", Get;
    TimeModifySet(SetTime) = 54, "time_modify_set", Set;
    MountedOnFileId(u64) = 55, "mounted_on_fileid", Get;
    DirNotifDelay(NfsTime) = 56, "dir_notif_delay", Get;
    DirentNotifDelay(NfsTime) = 57, "dirent_notif_delay", Get;
    Dacl(Acl41<'a>) = 58, "dacl", GetSet;
    Sacl(Acl41<'a>) = 59, "sacl", GetSet;
    ChangePolicy(ChangePolicy) = 60, "change_policy", Get;
    FsStatus(FsStatus<'a>) = 61, "fs_status", Get;
    FsLayoutTypes(Items<'a, LayoutType, SHORT_COUNT_MAX>) = 62, "fs_layout_type", Get;
    LayoutHint(LayoutHint<'a>) = 63, "layout_hint", Set;
    LayoutTypes(Items<'a, LayoutType, SHORT_COUNT_MAX>) = 64, "layout_type", Get;
    LayoutBlkSize(u32) = 65, "layout_blksize", Get;
    LayoutAlignment(u32) = 66, "layout_alignment", Get;
    FsLocationsInfo(FsLocationsInfo<'a>) = 67, "fs_locations_info", Get;
    MdsThreshold(Items<'a, ThresholdItem<'a>, SHORT_COUNT_MAX>) = 68, "mdsthreshold", Get;
    RetentionGet(RetentionGet) = 69, "retention_get", Get;
    RetentionSet(RetentionSet) = 70, "retention_set", Set;
    RetentionEventGet(RetentionGet) = 71, "retentevt_get", Get;
    RetentionEventSet(RetentionSet) = 72, "retentevt_set", Set;
    RetentionHold(u64) = 73, "retention_hold", GetSet;
    ModeSetMasked(ModeMasked) = 74, "mode_set_masked", Set;
    SuppAttrExclCreat(Bitmap) = 75, "suppattr_exclcreat", Get;
    /// Bits of [`charset_cap`].
    FsCharsetCap(u32) = 76, "fs_charset_cap", Get;
    CloneBlkSize(u32) = 77, "clone_blksize", Get;
    SpaceFreed(u64) = 78, "space_freed", Get;
    ChangeAttrType(ChangeAttrType) = 79, "change_attr_type", Get;
    SecLabel(SecLabel<'a>) = 80, "sec_label", GetSet;
    XattrSupport(bool) = 82, "xattr_support", Get;
}

impl Attr {
    /// The attributes that can be got.
    pub const GETTABLE: Bitmap = Self::set_of(AttrAccess::Set);
    /// The attributes that can be set.
    pub const SETTABLE: Bitmap = Self::set_of(AttrAccess::Get);
    /// The attributes that every server has (RFC 8881, section 5.6).
    pub const REQUIRED: Bitmap = Bitmap::of(&[
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        Self::FileHandle.bit(),
        75,
    ]);

    pub const fn bit(self) -> u32 {
        self as u32
    }

    /// The set of `attrs`.
    pub const fn mask(attrs: &[Self]) -> Bitmap {
        let mut mask = Bitmap::EMPTY;
        let mut index = 0;
        while index < attrs.len() {
            mask = mask.with(attrs[index].bit());
            index += 1;
        }
        mask
    }

    /// Every attribute whose access is not `other`.
    const fn set_of(other: AttrAccess) -> Bitmap {
        let mut mask = Bitmap::EMPTY;
        let mut index = 0;
        while index < Self::ALL.len() {
            let attr = Self::ALL[index];
            if attr.access() as u32 != other as u32 {
                mask = mask.with(attr.bit());
            }
            index += 1;
        }
        mask
    }
}

xdr_struct! {
    /// `fattr4`: which attributes, and their values one after the other. The values are read by [`Fattr::values`].
    #[derive(Copy, Default)]
    pub struct Fattr<'a> {
        pub mask: Bitmap,
        pub encoded: Body<'a>,
    }
}

/// Why attributes from a client are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttrFault {
    #[error("attribute {bit} is not supported")]
    Unsupported { bit: u32 },
    /// The attribute cannot be set, or cannot be compared, or contradicts another one.
    #[error("attribute {} cannot be used here", .attr.name())]
    Misused { attr: Attr },
    #[error("the attributes cannot be decoded: {0}")]
    Malformed(#[from] DecodeError),
}

impl AttrFault {
    /// The status for the client.
    pub fn status(&self) -> ErrorStatus {
        match self {
            Self::Unsupported { .. } => ErrorStatus::AttrNotSupp,
            Self::Misused { .. } => ErrorStatus::Inval,
            Self::Malformed(_) => ErrorStatus::BadXdr,
        }
    }
}

/// Where attributes are given to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetIn<'m> {
    SetAttr,
    /// CREATE, and OPEN that creates unchecked or guarded.
    Create,
    /// OPEN with `EXCLUSIVE4_1`: only what the server says in `suppattr_exclcreat`.
    ExclusiveCreate {
        allowed: &'m Bitmap,
    },
}

impl<'a> Fattr<'a> {
    /// The values in the order of their bits. An attribute that is not known, or damage, is the last item; so are
    /// bytes that follow the values.
    pub fn values(&self) -> AttrValues<'a> {
        AttrValues {
            mask: self.mask,
            next_bit: 0,
            from: Reader::new(self.encoded.0),
            ended: false,
        }
    }

    /// The values that SETATTR, CREATE or OPEN shall set, all of which were read once.
    ///
    /// Fails with `Unsupported` for what `supported` lacks (RFC 8881, section 18.30.4), with `Misused` for what
    /// cannot be set (section 5.5), for a mode beside `mode_set_masked` and for the latter in a creation (section
    /// 6.2.5), and for what an exclusive creation does not take (section 18.16.3).
    pub fn to_set(
        &self,
        supported: &Bitmap,
        place: SetIn<'_>,
    ) -> Result<KnownValues<'a>, AttrFault> {
        self.check(supported, &Attr::SETTABLE)?;
        let masked = self.mask.contains(Attr::ModeSetMasked.bit());
        if masked && (place != SetIn::SetAttr || self.mask.contains(Attr::Mode.bit())) {
            return Err(AttrFault::Misused {
                attr: Attr::ModeSetMasked,
            });
        }
        if let SetIn::ExclusiveCreate { allowed } = place {
            self.check(supported, allowed)?;
        }
        self.known()
    }

    /// The values that VERIFY or NVERIFY compares, all of which were read once.
    ///
    /// Fails with `Unsupported` for what `supported` lacks, and with `Misused` for `rdattr_error` and for what can
    /// only be set (RFC 8881, sections 18.15.4 and 18.31.4).
    pub fn to_compare(&self, supported: &Bitmap) -> Result<KnownValues<'a>, AttrFault> {
        let comparable = Attr::GETTABLE.minus(&Attr::mask(&[Attr::RdattrError]));
        self.check(supported, &comparable)?;
        self.known()
    }

    fn check(&self, supported: &Bitmap, usable: &Bitmap) -> Result<(), AttrFault> {
        let known = supported.and(&Attr::GETTABLE.or(&Attr::SETTABLE));
        if let Some(bit) = self.mask.minus(&known).iter().next() {
            return Err(AttrFault::Unsupported { bit });
        }
        match self.mask.minus(usable).iter().find_map(Attr::from_bit) {
            Some(attr) => Err(AttrFault::Misused { attr }),
            None => Ok(()),
        }
    }

    fn known(&self) -> Result<KnownValues<'a>, AttrFault> {
        self.values().try_for_each(|value| value.map(drop))?;
        Ok(KnownValues(self.values()))
    }
}

/// Checks what a GETATTR or READDIR asks for: it is `Misused` to ask for what can only be set (RFC 8881, section
/// 5.5). What a server does not have, it leaves out.
pub fn check_requested(requested: &Bitmap) -> Result<(), AttrFault> {
    let set_only = requested.and(&Attr::SETTABLE.minus(&Attr::GETTABLE));
    match set_only.iter().find_map(Attr::from_bit) {
        Some(attr) => Err(AttrFault::Misused { attr }),
        None => Ok(()),
    }
}

/// Reads the values of an [`Fattr`].
#[derive(Clone, Debug)]
pub struct AttrValues<'a> {
    mask: Bitmap,
    next_bit: u32,
    from: Reader<'a>,
    ended: bool,
}

impl<'a> AttrValues<'a> {
    fn take(&mut self, bit: u32) -> Result<AttrValue<'a>, AttrFault> {
        let attr = Attr::from_bit(bit).ok_or(AttrFault::Unsupported { bit })?;
        Ok(AttrValue::decode(attr, &mut self.from)?)
    }
}

impl<'a> Iterator for AttrValues<'a> {
    type Item = Result<AttrValue<'a>, AttrFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let value = match self.mask.next_from(self.next_bit) {
            Some(bit) => {
                self.next_bit = bit + 1;
                self.take(bit)
            }
            None => {
                self.ended = true;
                self.from.finish().err().map(|error| Err(error.into()))?
            }
        };
        self.ended |= value.is_err();
        Some(value)
    }
}

/// The values of an [`Fattr`] that was checked: reading them cannot fail any more.
#[derive(Clone, Debug)]
pub struct KnownValues<'a>(AttrValues<'a>);

impl<'a> Iterator for KnownValues<'a> {
    type Item = AttrValue<'a>;

    fn next(&mut self) -> Option<AttrValue<'a>> {
        self.0.next()?.ok()
    }
}

/// Writes an `fattr4` of the attributes of `mask` that this codec knows, in the order of their bits.
///
/// `value_of` gives the value of each; giving that of another is a bug, and panics.
pub fn encode_fattr<'v>(
    to: &mut Writer<'_>,
    mask: &Bitmap,
    mut value_of: impl FnMut(Attr) -> AttrValue<'v>,
) {
    let mask = mask.and(&Attr::GETTABLE.or(&Attr::SETTABLE));
    to.put(&mask);
    let len_offset = to.len_bytes();
    to.u32(0);
    for attr in mask.iter().filter_map(Attr::from_bit) {
        let value = value_of(attr);
        assert_eq!(value.attr(), attr, "a value for the attribute asked for");
        to.put(&value);
    }
    let len_bytes = to.len_bytes() - len_offset - 4;
    let len_bytes = u32::try_from(len_bytes).expect("attributes fit 32 bits");
    to.patch_u32(len_offset, len_bytes);
}

/// The values of an `fattr4` and their mask, for a client that makes one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FattrBuf {
    mask: Bitmap,
    encoded: Vec<u8>,
}

impl FattrBuf {
    /// `values` in any order. Of two for one attribute the later is taken.
    pub fn new(values: &[AttrValue<'_>]) -> Self {
        let mut made = Self::default();
        for attr in Attr::ALL {
            if let Some(value) = values.iter().rfind(|value| value.attr() == *attr) {
                made.mask.insert(attr.bit());
                Writer::new(&mut made.encoded).put(value);
            }
        }
        made
    }

    pub fn as_fattr(&self) -> Fattr<'_> {
        Fattr {
            mask: self.mask,
            encoded: Opaque(&self.encoded),
        }
    }
}
