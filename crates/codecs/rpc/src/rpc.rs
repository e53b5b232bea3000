//! ONC RPC version 2: the headers of calls and replies, and the two simple credentials.
//!
//! Owns: `rpc_msg` of RFC 5531, section 9, without the arguments and results that follow;
//! AUTH_NONE and AUTH_SYS (appendix A).
//! Must not know: programs, who may do what.

use std::ops::Deref;

use crate::{Decode, DecodeError, Encode, Opaque, Reader, Writer, xdr_enum};

/// The only version of the RPC protocol that is spoken.
pub const RPC_VERSION: u32 = 2;
/// Longest body of a credential or verifier (RFC 5531, section 8.2).
pub const AUTH_BODY_LEN_BYTES_MAX: u32 = 400;
/// Longest machine name in AUTH_SYS.
pub const MACHINE_NAME_LEN_BYTES_MAX: u32 = 255;
/// Most supplementary groups in AUTH_SYS.
pub const GROUP_COUNT_MAX: usize = 16;
/// Longest header of a call: six words, two credentials.
pub const CALL_HEADER_LEN_BYTES_MAX: usize = 24 + 2 * (8 + AUTH_BODY_LEN_BYTES_MAX as usize);
/// Header of a successful reply with an empty verifier: see [`encode_success`].
pub const SUCCESS_HEADER_LEN_BYTES: usize = 24;

const MESSAGE_CALL: u32 = 0;
const MESSAGE_REPLY: u32 = 1;
const REPLY_ACCEPTED: u32 = 0;
const REPLY_DENIED: u32 = 1;

xdr_enum! {
    /// The flavors we know. Others are numbers in [`OpaqueAuth::flavor`].
    pub enum AuthFlavor: "auth_flavor" {
        None = 0 => "AUTH_NONE",
        Sys = 1 => "AUTH_SYS",
    }
}

xdr_enum! {
    /// Why a credential was refused (RFC 5531, section 9, `auth_stat`).
    pub enum AuthStatus: "auth_stat" {
        BadCredential = 1 => "AUTH_BADCRED",
        RejectedCredential = 2 => "AUTH_REJECTEDCRED",
        BadVerifier = 3 => "AUTH_BADVERF",
        RejectedVerifier = 4 => "AUTH_REJECTEDVERF",
        TooWeak = 5 => "AUTH_TOOWEAK",
        InvalidResponse = 6 => "AUTH_INVALIDRESP",
        Failed = 7 => "AUTH_FAILED",
        KerberosGeneric = 8 => "AUTH_KERB_GENERIC",
        TimeExpired = 9 => "AUTH_TIMEEXPIRE",
        TicketFile = 10 => "AUTH_TKT_FILE",
        Decode = 11 => "AUTH_DECODE",
        NetAddress = 12 => "AUTH_NET_ADDR",
        GssCredentialProblem = 13 => "RPCSEC_GSS_CREDPROBLEM",
        GssContextProblem = 14 => "RPCSEC_GSS_CTXPROBLEM",
    }
}

/// A credential or verifier as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpaqueAuth<'a> {
    pub flavor: u32,
    /// At most [`AUTH_BODY_LEN_BYTES_MAX`].
    pub body: &'a [u8],
}

impl OpaqueAuth<'_> {
    /// AUTH_NONE, which is also the verifier of AUTH_SYS.
    pub const NONE: Self = Self {
        flavor: AuthFlavor::None.number(),
        body: &[],
    };
}

impl<'a> OpaqueAuth<'a> {
    /// The body must come from [`AuthSys::to_body`].
    pub fn sys(body: &'a [u8]) -> Self {
        Self {
            flavor: AuthFlavor::Sys.number(),
            body,
        }
    }

    /// The part of the body that identifies the caller: the same in a call and its retransmission. An AUTH_SYS body begins with
    /// a stamp of 4 bytes (RFC 5531, appendix A), which Linux before 4.20 changes each time.
    pub fn caller(&self) -> &'a [u8] {
        match AuthFlavor::from_u32(self.flavor) {
            Some(AuthFlavor::Sys) => self.body.get(4..).unwrap_or_default(),
            Some(AuthFlavor::None) | None => self.body,
        }
    }

    /// What the credential says; an AUTH_SYS body that cannot be read is `BadCredential`.
    pub fn credential(&self) -> Result<Credential<'a>, AuthStatus> {
        match AuthFlavor::from_u32(self.flavor) {
            // Some clients send a body with AUTH_NONE; RFC 5531, section 10.1 calls it undefined.
            Some(AuthFlavor::None) => Ok(Credential::None),
            Some(AuthFlavor::Sys) => AuthSys::from_body(self.body)
                .map(Credential::Sys)
                .map_err(|_| AuthStatus::BadCredential),
            None => Ok(Credential::Other(self.flavor)),
        }
    }
}

impl Encode for OpaqueAuth<'_> {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.flavor);
        to.opaque(self.body);
    }
}

impl<'a> Decode<'a> for OpaqueAuth<'a> {
    #[inline]
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            flavor: from.u32()?,
            body: from.opaque(AUTH_BODY_LEN_BYTES_MAX)?,
        })
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    None,
    Sys(AuthSys<'a>),
    /// A flavor we do not know.
    Other(u32),
}

/// AUTH_SYS: what the client's kernel says about its user (RFC 5531, appendix A).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    pub stamp: u32,
    pub machine_name: Opaque<'a, MACHINE_NAME_LEN_BYTES_MAX>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Groups,
}

impl<'a> AuthSys<'a> {
    /// Reads the body of a credential; all of it must be used.
    pub fn from_body(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(body);
        let sys = Self {
            stamp: from.get()?,
            machine_name: from.get()?,
            uid: from.get()?,
            gid: from.get()?,
            groups: from.get()?,
        };
        from.finish()?;
        Ok(sys)
    }

    /// The body of a credential, at most [`AUTH_BODY_LEN_BYTES_MAX`]. A machine name beyond its
    /// limit is cut: it is a label that nothing depends on.
    pub fn to_body(&self) -> Vec<u8> {
        let name = self.machine_name.0;
        let name = name
            .get(..MACHINE_NAME_LEN_BYTES_MAX as usize)
            .unwrap_or(name);
        let mut body = Vec::with_capacity(AUTH_BODY_LEN_BYTES_MAX as usize);
        let mut to = Writer::new(&mut body);
        to.u32(self.stamp);
        to.opaque(name);
        to.u32(self.uid);
        to.u32(self.gid);
        to.put(&self.groups);
        body
    }
}

const _: () = assert!(
    4 + 4 + (MACHINE_NAME_LEN_BYTES_MAX as usize).next_multiple_of(4) + 12 + 4 * GROUP_COUNT_MAX
        <= AUTH_BODY_LEN_BYTES_MAX as usize
);

/// Supplementary groups, at most [`GROUP_COUNT_MAX`], kept without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    count: usize,
    /// Zero from `count` on.
    gids: [u32; GROUP_COUNT_MAX],
}

impl Groups {
    /// `None` if there are more than fit.
    pub fn new(gids: &[u32]) -> Option<Self> {
        let mut groups = Self::default();
        groups.gids.get_mut(..gids.len())?.copy_from_slice(gids);
        groups.count = gids.len();
        Some(groups)
    }
}

impl Deref for Groups {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.gids[..self.count]
    }
}

impl Encode for Groups {
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.count as u32);
        for gid in self.iter() {
            to.u32(*gid);
        }
    }
}

impl Decode<'_> for Groups {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = from.u32()? as usize;
        let mut groups = Self::default();
        let gids = groups.gids.get_mut(..count).ok_or(DecodeError::TooMany {
            count_max: GROUP_COUNT_MAX as u32,
        })?;
        for gid in gids {
            *gid = from.u32()?;
        }
        groups.count = count;
        Ok(groups)
    }
}

/// The header of a call; the arguments follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: OpaqueAuth<'a>,
    pub verifier: OpaqueAuth<'a>,
}

impl Encode for CallHeader<'_> {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        for word in [
            self.xid,
            MESSAGE_CALL,
            RPC_VERSION,
            self.program,
            self.version,
            self.procedure,
        ] {
            to.u32(word);
        }
        to.put(&self.credential);
        to.put(&self.verifier);
    }
}

/// What arrived where a call was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    Call(CallHeader<'a>),
    /// Not a call that can be served, but one that can be answered: with this.
    Refused {
        xid: u32,
        rejection: Rejection,
    },
}

/// Reads the header of a call. An error means that there is nobody to answer: a reply instead of a
/// call, or bytes cut off (also when `from` holds only the first bytes of a record:
/// [`CALL_HEADER_LEN_BYTES_MAX`] of them are always enough).
#[inline]
pub fn decode_call<'a>(from: &mut Reader<'a>) -> Result<Incoming<'a>, DecodeError> {
    let xid = from.u32()?;
    let message = from.u32()?;
    if message != MESSAGE_CALL {
        return Err(DecodeError::BadValue {
            what: "call (msg_type)",
            value: message,
        });
    }
    let refused = |rejection| Ok(Incoming::Refused { xid, rejection });
    if from.u32()? != RPC_VERSION {
        return refused(Rejection::RpcMismatch {
            low: RPC_VERSION,
            high: RPC_VERSION,
        });
    }
    let (program, version, procedure) = (from.u32()?, from.u32()?, from.u32()?);
    let credential = match from.get() {
        Err(DecodeError::TooLong { .. }) => {
            return refused(Rejection::Auth(AuthStatus::BadCredential));
        }
        other => other?,
    };
    let verifier = match from.get() {
        Err(DecodeError::TooLong { .. }) => {
            return refused(Rejection::Auth(AuthStatus::BadVerifier));
        }
        other => other?,
    };
    Ok(Incoming::Call(CallHeader {
        xid,
        program,
        version,
        procedure,
        credential,
        verifier,
    }))
}

/// How a call that was let in ended (RFC 5531, section 9, `accepted_reply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptStatus {
    /// The results follow.
    Success,
    ProgramUnavailable,
    ProgramMismatch {
        low: u32,
        high: u32,
    },
    ProcedureUnavailable,
    GarbageArgs,
    SystemError,
}

impl Encode for AcceptStatus {
    fn encode(&self, to: &mut Writer<'_>) {
        match *self {
            Self::Success => to.u32(0),
            Self::ProgramUnavailable => to.u32(1),
            Self::ProgramMismatch { low, high } => {
                to.u32(2);
                to.u32(low);
                to.u32(high);
            }
            Self::ProcedureUnavailable => to.u32(3),
            Self::GarbageArgs => to.u32(4),
            Self::SystemError => to.u32(5),
        }
    }
}

impl Decode<'_> for AcceptStatus {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match from.u32()? {
            0 => Self::Success,
            1 => Self::ProgramUnavailable,
            2 => Self::ProgramMismatch {
                low: from.u32()?,
                high: from.u32()?,
            },
            3 => Self::ProcedureUnavailable,
            4 => Self::GarbageArgs,
            5 => Self::SystemError,
            value => {
                return Err(DecodeError::BadValue {
                    what: "accept_stat",
                    value,
                });
            }
        })
    }
}

/// Why a call was not let in (RFC 5531, section 9, `rejected_reply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    RpcMismatch { low: u32, high: u32 },
    Auth(AuthStatus),
}

impl Encode for Rejection {
    fn encode(&self, to: &mut Writer<'_>) {
        match *self {
            Self::RpcMismatch { low, high } => {
                to.u32(0);
                to.u32(low);
                to.u32(high);
            }
            Self::Auth(status) => {
                to.u32(1);
                to.put(&status);
            }
        }
    }
}

impl Decode<'_> for Rejection {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match from.u32()? {
            0 => Self::RpcMismatch {
                low: from.u32()?,
                high: from.u32()?,
            },
            1 => Self::Auth(from.get()?),
            value => {
                return Err(DecodeError::BadValue {
                    what: "reject_stat",
                    value,
                });
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    Accepted {
        verifier: OpaqueAuth<'a>,
        status: AcceptStatus,
    },
    Denied(Rejection),
}

/// The header of a reply; after `Success` the results follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader<'a> {
    pub xid: u32,
    pub body: ReplyBody<'a>,
}

impl ReplyHeader<'_> {
    /// An accepted call, answered without a verifier.
    pub fn accepted(xid: u32, status: AcceptStatus) -> Self {
        Self {
            xid,
            body: ReplyBody::Accepted {
                verifier: OpaqueAuth::NONE,
                status,
            },
        }
    }

    pub fn denied(xid: u32, rejection: Rejection) -> Self {
        Self {
            xid,
            body: ReplyBody::Denied(rejection),
        }
    }
}

impl Encode for ReplyHeader<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.xid);
        to.u32(MESSAGE_REPLY);
        match &self.body {
            ReplyBody::Accepted { verifier, status } => {
                to.u32(REPLY_ACCEPTED);
                to.put(verifier);
                to.put(status);
            }
            ReplyBody::Denied(rejection) => {
                to.u32(REPLY_DENIED);
                to.put(rejection);
            }
        }
    }
}

impl<'a> Decode<'a> for ReplyHeader<'a> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let xid = from.u32()?;
        let message = from.u32()?;
        if message != MESSAGE_REPLY {
            return Err(DecodeError::BadValue {
                what: "reply (msg_type)",
                value: message,
            });
        }
        let body = match from.u32()? {
            REPLY_ACCEPTED => ReplyBody::Accepted {
                verifier: from.get()?,
                status: from.get()?,
            },
            REPLY_DENIED => ReplyBody::Denied(from.get()?),
            value => {
                return Err(DecodeError::BadValue {
                    what: "reply_stat",
                    value,
                });
            }
        };
        Ok(Self { xid, body })
    }
}

/// The header that nearly every reply has: accepted, AUTH_NONE, success. In one append.
#[inline]
pub fn encode_success(to: &mut Writer<'_>, xid: u32) {
    let mut header = [0; SUCCESS_HEADER_LEN_BYTES];
    header[..4].copy_from_slice(&xid.to_be_bytes());
    header[7] = MESSAGE_REPLY as u8;
    to.raw(&header);
}

#[cfg(test)]
mod tests;
