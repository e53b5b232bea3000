//! PORTMAP version 2: which port a program listens on (RFC 1833, section 3).
//!
//! Owns: the messages of program 100000, version 2.
//! Must not know: what is registered. CALLIT (procedure 5) is absent on purpose: forwarding calls
//! for others hides who calls and amplifies traffic, so it is answered as unavailable.

use crate::{Decode, DecodeError, Encode, List, Reader, Writer, xdr_enum, xdr_struct};

/// PORTMAP and rpcbind.
pub const PROGRAM: u32 = 100_000;
pub const VERSION: u32 = 2;
/// The port where clients expect it.
pub const PORT: u16 = 111;

/// Protocol numbers of IP, in [`Mapping::protocol`].
pub const PROTOCOL_TCP: u32 = 6;
pub const PROTOCOL_UDP: u32 = 17;

xdr_enum! {
    pub enum Procedure: "PORTMAP procedure" {
        Null = 0 => "null",
        Set = 1 => "set",
        Unset = 2 => "unset",
        GetPort = 3 => "getport",
        Dump = 4 => "dump",
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct Mapping {
        pub program: u32,
        pub version: u32,
        pub protocol: u32,
        /// Not used in GETPORT.
        pub port: u32,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Null,
    Set(Mapping),
    Unset(Mapping),
    GetPort(Mapping),
    Dump,
}

impl Call {
    pub fn decode(procedure: Procedure, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Set => Self::Set(from.get()?),
            Procedure::Unset => Self::Unset(from.get()?),
            Procedure::GetPort => Self::GetPort(from.get()?),
            Procedure::Dump => Self::Dump,
        })
    }

    pub fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Set(_) => Procedure::Set,
            Self::Unset(_) => Procedure::Unset,
            Self::GetPort(_) => Procedure::GetPort,
            Self::Dump => Procedure::Dump,
        }
    }
}

impl Encode for Call {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null | Self::Dump => {}
            Self::Set(mapping) | Self::Unset(mapping) | Self::GetPort(mapping) => to.put(mapping),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Null,
    Set(bool),
    Unset(bool),
    /// 0: not registered.
    GetPort(u32),
    Dump(List<Mapping>),
}

impl Reply {
    pub fn decode(procedure: Procedure, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Set => Self::Set(from.get()?),
            Procedure::Unset => Self::Unset(from.get()?),
            Procedure::GetPort => Self::GetPort(from.get()?),
            Procedure::Dump => Self::Dump(List::decode(from)?),
        })
    }
}

impl Encode for Reply {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null => {}
            Self::Set(done) | Self::Unset(done) => to.put(done),
            Self::GetPort(port) => to.put(port),
            Self::Dump(mappings) => to.put(mappings),
        }
    }
}

#[cfg(test)]
mod tests;
