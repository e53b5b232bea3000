//! rpcbind versions 3 and 4: PORTMAP for any transport (RFC 1833, section 2).
//!
//! Owns: the messages of program 100000, versions 3 and 4, and universal addresses (RFC 5665).
//! Must not know: what is registered. CALLIT, BCAST and INDIRECT are absent for the reason given
//! in `portmap`; the address conversions, GETADDRLIST and GETSTAT because no known client asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{Decode, DecodeError, Encode, List, Opaque, Reader, Writer, xdr_enum, xdr_struct};

pub use crate::portmap::PROGRAM;
pub const VERSION_3: u32 = 3;
pub const VERSION_4: u32 = 4;

/// Longest network id, universal address or owner.
pub const TEXT_LEN_BYTES_MAX: u32 = 256;

/// Network ids (RFC 5665, section 5).
pub const NETID_TCP: &str = "tcp";
pub const NETID_TCP6: &str = "tcp6";

xdr_enum! {
    pub enum Procedure: "rpcbind procedure" {
        Null = 0 => "null",
        Set = 1 => "set",
        Unset = 2 => "unset",
        GetAddr = 3 => "getaddr",
        Dump = 4 => "dump",
        GetTime = 6 => "gettime",
        /// Version 4 only: like GETADDR, but never another version's address.
        GetVersAddr = 9 => "getversaddr",
    }
}

impl Procedure {
    /// The procedure with this number in that version of the protocol.
    pub fn of_version(version: u32, number: u32) -> Option<Self> {
        Self::from_u32(number).filter(|it| *it != Self::GetVersAddr || version == VERSION_4)
    }
}

/// A string of this protocol.
pub type Text<'a> = Opaque<'a, TEXT_LEN_BYTES_MAX>;

xdr_struct! {
    #[derive(Copy)]
    pub struct Mapping<'a> {
        pub program: u32,
        pub version: u32,
        pub netid: Text<'a>,
        /// A universal address: see [`parse_uaddr`].
        pub uaddr: Text<'a>,
        pub owner: Text<'a>,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Null,
    Set(Mapping<'a>),
    Unset(Mapping<'a>),
    GetAddr(Mapping<'a>),
    Dump,
    GetTime,
    GetVersAddr(Mapping<'a>),
}

impl<'a> Call<'a> {
    pub fn decode(procedure: Procedure, from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Set => Self::Set(from.get()?),
            Procedure::Unset => Self::Unset(from.get()?),
            Procedure::GetAddr => Self::GetAddr(from.get()?),
            Procedure::Dump => Self::Dump,
            Procedure::GetTime => Self::GetTime,
            Procedure::GetVersAddr => Self::GetVersAddr(from.get()?),
        })
    }

    pub fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Set(_) => Procedure::Set,
            Self::Unset(_) => Procedure::Unset,
            Self::GetAddr(_) => Procedure::GetAddr,
            Self::Dump => Procedure::Dump,
            Self::GetTime => Procedure::GetTime,
            Self::GetVersAddr(_) => Procedure::GetVersAddr,
        }
    }
}

impl Encode for Call<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null | Self::Dump | Self::GetTime => {}
            Self::Set(mapping)
            | Self::Unset(mapping)
            | Self::GetAddr(mapping)
            | Self::GetVersAddr(mapping) => to.put(mapping),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    Null,
    Set(bool),
    Unset(bool),
    /// Empty: not registered.
    GetAddr(Text<'a>),
    Dump(List<Mapping<'a>>),
    /// Seconds since 1970.
    GetTime(u32),
    GetVersAddr(Text<'a>),
}

impl<'a> Reply<'a> {
    pub fn decode(procedure: Procedure, from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Set => Self::Set(from.get()?),
            Procedure::Unset => Self::Unset(from.get()?),
            Procedure::GetAddr => Self::GetAddr(from.get()?),
            Procedure::Dump => Self::Dump(List::decode(from)?),
            Procedure::GetTime => Self::GetTime(from.get()?),
            Procedure::GetVersAddr => Self::GetVersAddr(from.get()?),
        })
    }
}

impl Encode for Reply<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null => {}
            Self::Set(done) | Self::Unset(done) => to.put(done),
            Self::GetAddr(uaddr) | Self::GetVersAddr(uaddr) => to.put(uaddr),
            Self::Dump(mappings) => to.put(mappings),
            Self::GetTime(seconds) => to.put(seconds),
        }
    }
}

/// An address as `h.h.h.h.p.p` or `x:x::x.p.p`, the last two numbers being the bytes of the port
/// (RFC 5665, section 5.2.3).
pub fn format_uaddr(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// Reads what [`format_uaddr`] writes; `None` for anything else.
pub fn parse_uaddr(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let ip = match host.parse::<Ipv4Addr>() {
        Ok(ip) => IpAddr::V4(ip),
        Err(_) => IpAddr::V6(host.parse::<Ipv6Addr>().ok()?),
    };
    let port = u16::from_be_bytes([parse_octet(high)?, parse_octet(low)?]);
    Some(SocketAddr::new(ip, port))
}

/// `u8::from_str` would take a sign.
fn parse_octet(text: &str) -> Option<u8> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests;
