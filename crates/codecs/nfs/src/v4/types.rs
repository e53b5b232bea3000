//! The data types that the operations share (RFC 8881, section 3; RFC 7862 for those of version 4.2).
//!
//! Owns: handles, names, state ids, session ids, owners, times, and their limits on the wire.
//! Must not know: which limits the server has. A name longer than a server takes can be decoded, so
//! that the answer is `NameTooLong` and not `BadXdr`.

use cairn_codec_rpc::{Decode, DecodeError, Encode, Opaque, Reader, Writer, xdr_enum, xdr_struct};

pub use crate::v3::{
    DATA_LEN_BYTES_MAX, Data, DeviceNumber, NAME_DECODE_LEN_BYTES_MAX, Name,
    PATH_DECODE_LEN_BYTES_MAX, StableHow, WriteVerifier,
};

/// Longest file handle (NFS4_FHSIZE).
pub const HANDLE_LEN_BYTES_MAX: u32 = 128;
/// Longest owner, and longest id or scope of a server (NFS4_OPAQUE_LIMIT).
pub const OPAQUE_LEN_BYTES_MAX: u32 = 1024;
/// Longest tag, user, address, GSS handle or key that is decoded. The RFC has no limit for them.
pub const TEXT_LEN_BYTES_MAX: u32 = 1024;
/// Longest list of attribute values, layout body or notification that is decoded.
pub const BODY_LEN_BYTES_MAX: u32 = 1 << 16;
/// Most state ids of one TEST_STATEID.
pub const STATE_ID_COUNT_MAX: u32 = 1 << 16;
/// Most items of the arrays that are short: security flavors, servers, algorithms, layouts.
pub const SHORT_COUNT_MAX: u32 = 1024;

/// A file handle (`nfs_fh4`): up to 128 bytes that only the server understands.
pub type Handle<'a> = Opaque<'a, HANDLE_LEN_BYTES_MAX>;
/// The target of a symbolic link (`linktext4`).
pub type LinkText<'a> = Opaque<'a, PATH_DECODE_LEN_BYTES_MAX>;
/// An owner of opens or locks, or a client, by its own name.
pub type OwnerName<'a> = Opaque<'a, OPAQUE_LEN_BYTES_MAX>;
/// A `utf8string` that is no file name. Nothing promises UTF-8.
pub type Text<'a> = Opaque<'a, TEXT_LEN_BYTES_MAX>;
/// Bytes whose form a layout type, a label format or a notification defines.
pub type Body<'a> = Opaque<'a, BODY_LEN_BYTES_MAX>;

/// `verifier4`.
pub type Verifier = [u8; 8];
/// `deviceid4`.
pub type DeviceId = [u8; 16];
/// `layouttype4`. A number: other RFCs add types, and an unknown one is answered `UnknownLayoutType`.
pub type LayoutType = u32;

/// A `newtype` over something that has a codec.
macro_rules! xdr_newtype {
    ($(#[$meta:meta])* pub struct $name:ident(pub $type:ty);) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $type);

        impl Encode for $name {
            #[inline]
            fn encode(&self, to: &mut Writer<'_>) {
                to.put(&self.0);
            }
        }

        impl Decode<'_> for $name {
            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                from.get().map(Self)
            }
        }
    };
}

xdr_newtype! {
    /// `clientid4`: names a client to the server that gave it.
    pub struct ClientId(pub u64);
}

xdr_newtype! {
    /// `sessionid4`.
    pub struct SessionId(pub [u8; 16]);
}

/// `stateid4`: names an open, a set of locks, a delegation, a layout or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    /// Counts the changes of the state, from 1 on. 0 in a request stands for the newest.
    pub seqid: u32,
    pub other: [u8; 12],
}

impl StateId {
    /// No open is meant: for READ, WRITE and SETATTR (RFC 8881, section 8.2.3).
    pub const ANONYMOUS: Self = Self {
        seqid: 0,
        other: [0; 12],
    };
    /// As `ANONYMOUS`, but a READ may pass what denies it.
    pub const READ_BYPASS: Self = Self {
        seqid: u32::MAX,
        other: [0xff; 12],
    };
    /// The state id that an operation before this one in the COMPOUND returned.
    pub const CURRENT: Self = Self {
        seqid: 1,
        other: [0; 12],
    };
    /// Never valid: answered `BadStateId`.
    pub const INVALID: Self = Self {
        seqid: u32::MAX,
        other: [0; 12],
    };

    /// Which special state id this is; `None` for one that the server may have given.
    pub fn special(&self) -> Option<SpecialStateId> {
        if self.other != [0; 12] && self.other != [0xff; 12] {
            return None;
        }
        Some(match *self {
            Self::ANONYMOUS => SpecialStateId::Anonymous,
            Self::READ_BYPASS => SpecialStateId::ReadBypass,
            Self::CURRENT => SpecialStateId::Current,
            _ => SpecialStateId::Invalid,
        })
    }
}

/// The meaning of a state id of all zeros or all ones (RFC 8881, section 8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialStateId {
    Anonymous,
    ReadBypass,
    Current,
    /// [`StateId::INVALID`] and everything else that is reserved: answered `BadStateId`.
    Invalid,
}

impl Encode for StateId {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.seqid);
        to.fixed(&self.other);
    }
}

impl Decode<'_> for StateId {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            seqid: from.u32()?,
            other: from.get()?,
        })
    }
}

/// `nfstime4`. From a client the nanoseconds may be a second or more: the server answers `Inval`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NfsTime {
    /// Since 1970; negative before.
    pub seconds: i64,
    pub nanos: u32,
}

impl Encode for NfsTime {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.u64(self.seconds as u64);
        to.u32(self.nanos);
    }
}

impl Decode<'_> for NfsTime {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            seconds: from.u64()? as i64,
            nanos: from.u32()?,
        })
    }
}

/// A signed word (`int32_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Int32(pub i32);

impl Encode for Int32 {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.0 as u32);
    }
}

impl Decode<'_> for Int32 {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.u32().map(|word| Self(word as i32))
    }
}

/// A union whose discriminant is an enumeration: the numbers, and what follows each of them.
/// Other numbers are refused.
macro_rules! xdr_union {
    ($(#[$meta:meta])* pub enum $name:ident<$life:lifetime>: $what:literal {
        $($(#[$variant_meta:meta])* $variant:ident $(($type:ty))? = $number:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name<$life> {
            $($(#[$variant_meta])* $variant $(($type))?,)*
        }

        impl<$life> cairn_codec_rpc::Encode for $name<$life> {
            fn encode(&self, to: &mut cairn_codec_rpc::Writer<'_>) {
                $crate::v4::types::xdr_union!(@encode self, to, { $($variant $(($type))? = $number,)* })
            }
        }

        impl<$life> cairn_codec_rpc::Decode<$life> for $name<$life> {
            fn decode(
                from: &mut cairn_codec_rpc::Reader<$life>,
            ) -> Result<Self, cairn_codec_rpc::DecodeError> {
                $crate::v4::types::xdr_union!(
                    @decode from, $what, { $($variant $(($type))? = $number,)* })
            }
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident: $what:literal {
        $($(#[$variant_meta:meta])* $variant:ident $(($type:ty))? = $number:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant $(($type))?,)*
        }

        impl cairn_codec_rpc::Encode for $name {
            fn encode(&self, to: &mut cairn_codec_rpc::Writer<'_>) {
                $crate::v4::types::xdr_union!(@encode self, to, { $($variant $(($type))? = $number,)* })
            }
        }

        impl cairn_codec_rpc::Decode<'_> for $name {
            fn decode(
                from: &mut cairn_codec_rpc::Reader<'_>,
            ) -> Result<Self, cairn_codec_rpc::DecodeError> {
                $crate::v4::types::xdr_union!(
                    @decode from, $what, { $($variant $(($type))? = $number,)* })
            }
        }
    };
    (@encode $self:ident, $to:ident, { $($variant:ident $(($type:ty))? = $number:literal,)* }) => {
        match $self {
            $(Self::$variant $(($crate::v4::types::xdr_union!(@bind body, $type)))? => {
                $to.u32($number);
                $($to.put::<$type>(body);)?
            })*
        }
    };
    (@decode $from:ident, $what:literal, { $($variant:ident $(($type:ty))? = $number:literal,)* }) => {
        match $from.u32()? {
            $($number => Ok(Self::$variant $(($from.get::<$type>()?))?),)*
            value => Err(cairn_codec_rpc::DecodeError::BadValue { what: $what, value }),
        }
    };
    (@bind $body:ident, $type:ty) => { $body };
}
pub(super) use xdr_union;

xdr_union! {
    /// How SETATTR and the makers set a time (`settime4`).
    #[derive(Copy)]
    pub enum SetTime: "time_how4" {
        /// To the server's clock.
        ServerTime = 0,
        ClientTime(NfsTime) = 1,
    }
}

xdr_enum! {
    /// `nfs_ftype4`.
    pub enum FileType: "nfs_ftype4" {
        Regular = 1 => "NF4REG",
        Directory = 2 => "NF4DIR",
        BlockDevice = 3 => "NF4BLK",
        CharDevice = 4 => "NF4CHR",
        Symlink = 5 => "NF4LNK",
        Socket = 6 => "NF4SOCK",
        Fifo = 7 => "NF4FIFO",
        AttrDir = 8 => "NF4ATTRDIR",
        NamedAttr = 9 => "NF4NAMEDATTR",
    }
}

xdr_struct! {
    /// `fsid4`.
    #[derive(Copy, Default, Hash)]
    pub struct Fsid {
        pub major: u64,
        pub minor: u64,
    }
}

xdr_struct! {
    /// `change_info4`: the change attribute of a directory before and after an operation.
    #[derive(Copy, Default)]
    pub struct ChangeInfo {
        /// Whether nothing else changed the directory between the two.
        pub atomic: bool,
        pub before: u64,
        pub after: u64,
    }
}

xdr_struct! {
    /// `state_owner4`: who opened or locked. From a client the id is ignored: the session says it
    /// (RFC 8881, section 18.16.3).
    #[derive(Copy, Default)]
    pub struct StateOwner<'a> {
        pub client_id: ClientId,
        pub owner: OwnerName<'a>,
    }
}

xdr_enum! {
    /// `nfs_lock_type4`.
    pub enum LockType: "nfs_lock_type4" {
        Read = 1 => "READ_LT",
        Write = 2 => "WRITE_LT",
        /// As `Read`, from a client that waits and asks again.
        ReadWait = 3 => "READW_LT",
        /// As `Write`, from a client that waits and asks again.
        WriteWait = 4 => "WRITEW_LT",
    }
}

impl LockType {
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteWait)
    }

    /// Whether the client waits, so that a CB_NOTIFY_LOCK helps it.
    pub fn waits(self) -> bool {
        matches!(self, Self::ReadWait | Self::WriteWait)
    }
}

xdr_struct! {
    /// `netaddr4`: a network id and a universal address (RFC 5665).
    #[derive(Copy, Default)]
    pub struct NetAddr<'a> {
        pub netid: Text<'a>,
        pub address: Text<'a>,
    }
}

xdr_union! {
    /// `netloc4`: where a server is, for copies between servers (RFC 7862, section 15.3).
    #[derive(Copy)]
    pub enum NetLoc<'a>: "netloc_type4" {
        Name(Text<'a>) = 1,
        Url(Text<'a>) = 2,
        Address(NetAddr<'a>) = 3,
    }
}

xdr_struct! {
    /// `nfs_impl_id4`: which software this is. For people only (RFC 8881, section 18.35.3).
    #[derive(Copy)]
    pub struct ImplId<'a> {
        pub domain: Text<'a>,
        pub name: Text<'a>,
        pub date: NfsTime,
    }
}

xdr_struct! {
    /// `write_response4` of version 4.2: how far a COPY or WRITE_SAME came (RFC 7862, section 15.2).
    #[derive(Copy)]
    pub struct WriteResponse {
        /// Names the rest of the work, if it goes on after the reply.
        pub callback_id: Option<StateId>,
        pub count_bytes: u64,
        pub committed: StableHow,
        pub verifier: WriteVerifier,
    }
}

xdr_enum! {
    /// `layoutiomode4`.
    pub enum LayoutIoMode: "layoutiomode4" {
        Read = 1 => "LAYOUTIOMODE4_READ",
        ReadWrite = 2 => "LAYOUTIOMODE4_RW",
        Any = 3 => "LAYOUTIOMODE4_ANY",
    }
}

xdr_enum! {
    /// `rpc_gss_svc_t` (RFC 2203).
    pub enum GssService: "rpc_gss_svc_t" {
        None = 1 => "RPC_GSS_SVC_NONE",
        Integrity = 2 => "RPC_GSS_SVC_INTEGRITY",
        Privacy = 3 => "RPC_GSS_SVC_PRIVACY",
    }
}
