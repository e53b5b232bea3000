//! NLM, the lock manager beside NFS version 3: what a client sends when a program locks a file
//! (RFC 1813, appendix II, for version 4; X/Open XNFS for 1 and 3).
//!
//! Owns: the calls of program 100021 that a client makes and waits for, and their results.
//! Must not know: which locks there are.
//!
//! Absent: GRANTED, which goes from server to client when a lock that was waited for is free; the
//! `_MSG` and `_RES` procedures, which say the same in two calls and which no client of today sends
//! first; version 2, which never was in use.

use cairn_codec_rpc::{DecodeError, Encode, Opaque, Reader, Writer, xdr_enum, xdr_struct};

use crate::v3::HANDLE_LEN_BYTES_MAX;

pub const PROGRAM: u32 = 100_021;
/// TEST to UNLOCK, with offsets of 32 bits: for NFS version 2.
pub const VERSION_1: u32 = 1;
/// Version 1 with shares.
pub const VERSION_3: u32 = 3;
/// Version 3 with offsets of 64 bits: for NFS version 3.
pub const VERSION_4: u32 = 4;

/// Longest cookie or owner (MAXNETOBJ_SZ).
pub const OBJECT_LEN_BYTES_MAX: u32 = 1024;
/// Longest name of a client (LM_MAXSTRLEN).
pub const NAME_LEN_BYTES_MAX: u32 = 1024;

/// What only the client can read: the cookie of a call, the owner of a lock.
pub type Object<'a> = Opaque<'a, OBJECT_LEN_BYTES_MAX>;
pub type ClientName<'a> = Opaque<'a, NAME_LEN_BYTES_MAX>;
/// A file handle of the version of NFS that goes with this version of NLM.
pub type Handle<'a> = Opaque<'a, HANDLE_LEN_BYTES_MAX>;

xdr_enum! {
    /// The procedures that a client calls and waits for.
    pub enum Procedure: "NLM procedure" {
        Null = 0 => "null",
        Test = 1 => "test",
        Lock = 2 => "lock",
        Cancel = 3 => "cancel",
        Unlock = 4 => "unlock",
        Share = 20 => "share",
        Unshare = 21 => "unshare",
        /// A lock that the server does not watch over: it stays when the client restarts.
        UnmonitoredLock = 22 => "nm_lock",
        /// The client has restarted: whatever it held is free.
        FreeAll = 23 => "free_all",
    }
}

impl Procedure {
    /// The procedure with this number in that version of the protocol.
    pub fn of_version(version: u32, number: u32) -> Option<Self> {
        Self::from_u32(number).filter(|it| *it < Self::Share || version >= VERSION_3)
    }
}

xdr_enum! {
    /// How a call ended; `nlm4_stats` has more of them, these are those of all versions.
    pub enum Status: "nlm_stats" {
        Granted = 0 => "LCK_GRANTED",
        Denied = 1 => "LCK_DENIED",
        DeniedNoLocks = 2 => "LCK_DENIED_NOLOCKS",
        Blocked = 3 => "LCK_BLOCKED",
        DeniedGracePeriod = 4 => "LCK_DENIED_GRACE_PERIOD",
    }
}

xdr_enum! {
    /// What a share does, or what it denies to others (`fsh_access`, `fsh_mode`).
    pub enum ShareRight: "share right" {
        None = 0 => "none",
        Read = 1 => "read",
        Write = 2 => "write",
        ReadWrite = 3 => "read_write",
    }
}

/// The bytes that a lock covers. A length of 0 reaches to the end of the file, wherever that will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Versions 1 and 3.
    Narrow { offset: u32, len_bytes: u32 },
    /// Version 4.
    Wide { offset: u64, len_bytes: u64 },
}

impl Range {
    fn decode(version: u32, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match version {
            VERSION_4 => Self::Wide {
                offset: from.get()?,
                len_bytes: from.get()?,
            },
            _ => Self::Narrow {
                offset: from.get()?,
                len_bytes: from.get()?,
            },
        })
    }
}

impl Encode for Range {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Narrow { offset, len_bytes } => {
                to.put(offset);
                to.put(len_bytes);
            }
            Self::Wide { offset, len_bytes } => {
                to.put(offset);
                to.put(len_bytes);
            }
        }
    }
}

/// `nlm_lock`: who wants which bytes of which file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    pub client: ClientName<'a>,
    pub file: Handle<'a>,
    pub owner: Object<'a>,
    /// `svid`: the process, as the client numbers it; the bits of a signed number.
    pub process: u32,
    pub range: Range,
}

impl<'a> Lock<'a> {
    fn decode(version: u32, from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            client: from.get()?,
            file: from.get()?,
            owner: from.get()?,
            process: from.get()?,
            range: Range::decode(version, from)?,
        })
    }
}

impl Encode for Lock<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.put(&self.client);
        to.put(&self.file);
        to.put(&self.owner);
        to.put(&self.process);
        to.put(&self.range);
    }
}

/// `nlm_lockargs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockArgs<'a> {
    pub cookie: Object<'a>,
    /// To wait for the lock if another has it.
    pub block: bool,
    pub exclusive: bool,
    pub lock: Lock<'a>,
    /// The client had it before the server restarted.
    pub reclaim: bool,
    /// How often the client has restarted, as its NSM counts; the bits of a signed number.
    pub state: u32,
}

impl<'a> LockArgs<'a> {
    fn decode(version: u32, from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            cookie: from.get()?,
            block: from.get()?,
            exclusive: from.get()?,
            lock: Lock::decode(version, from)?,
            reclaim: from.get()?,
            state: from.get()?,
        })
    }
}

impl Encode for LockArgs<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.put(&self.cookie);
        to.put(&self.block);
        to.put(&self.exclusive);
        to.put(&self.lock);
        to.put(&self.reclaim);
        to.put(&self.state);
    }
}

xdr_struct! {
    /// `nlm_shareargs`: a whole file opened as DOS does.
    pub struct ShareArgs<'a> {
        pub cookie: Object<'a>,
        pub client: ClientName<'a>,
        pub file: Handle<'a>,
        pub owner: Object<'a>,
        pub denied: ShareRight,
        pub wanted: ShareRight,
        pub reclaim: bool,
    }
}

xdr_struct! {
    /// `nlm_notify`.
    pub struct Notice<'a> {
        pub client: ClientName<'a>,
        /// As in [`LockArgs`].
        pub state: u32,
    }
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Null,
    Test {
        cookie: Object<'a>,
        exclusive: bool,
        lock: Lock<'a>,
    },
    Lock(LockArgs<'a>),
    Cancel {
        cookie: Object<'a>,
        block: bool,
        exclusive: bool,
        lock: Lock<'a>,
    },
    Unlock {
        cookie: Object<'a>,
        lock: Lock<'a>,
    },
    Share(ShareArgs<'a>),
    Unshare(ShareArgs<'a>),
    UnmonitoredLock(LockArgs<'a>),
    FreeAll(Notice<'a>),
}

impl<'a> Call<'a> {
    pub fn decode(
        version: u32,
        procedure: Procedure,
        from: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Test => Self::Test {
                cookie: from.get()?,
                exclusive: from.get()?,
                lock: Lock::decode(version, from)?,
            },
            Procedure::Lock => Self::Lock(LockArgs::decode(version, from)?),
            Procedure::Cancel => Self::Cancel {
                cookie: from.get()?,
                block: from.get()?,
                exclusive: from.get()?,
                lock: Lock::decode(version, from)?,
            },
            Procedure::Unlock => Self::Unlock {
                cookie: from.get()?,
                lock: Lock::decode(version, from)?,
            },
            Procedure::Share => Self::Share(from.get()?),
            Procedure::Unshare => Self::Unshare(from.get()?),
            Procedure::UnmonitoredLock => Self::UnmonitoredLock(LockArgs::decode(version, from)?),
            Procedure::FreeAll => Self::FreeAll(from.get()?),
        })
    }
}

impl Encode for Call<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Null => {}
            Self::Test {
                cookie,
                exclusive,
                lock,
            } => {
                to.put(cookie);
                to.put(exclusive);
                to.put(lock);
            }
            Self::Lock(args) | Self::UnmonitoredLock(args) => to.put(args),
            Self::Cancel {
                cookie,
                block,
                exclusive,
                lock,
            } => {
                to.put(cookie);
                to.put(block);
                to.put(exclusive);
                to.put(lock);
            }
            Self::Unlock { cookie, lock } => {
                to.put(cookie);
                to.put(lock);
            }
            Self::Share(args) | Self::Unshare(args) => to.put(args),
            Self::FreeAll(notice) => to.put(notice),
        }
    }
}

xdr_struct! {
    /// What LOCK, CANCEL and UNLOCK return, and TEST unless it is `Denied`: then the holder of the
    /// lock would follow, which a server without locks never has to say.
    #[derive(Copy)]
    pub struct Outcome<'a> {
        /// That of the call.
        pub cookie: Object<'a>,
        pub status: Status,
    }
}

xdr_struct! {
    /// What SHARE and UNSHARE return.
    #[derive(Copy)]
    pub struct ShareOutcome<'a> {
        pub cookie: Object<'a>,
        pub status: Status,
        /// Means nothing; the bits of a signed number.
        pub sequence: u32,
    }
}

#[cfg(test)]
mod tests;
