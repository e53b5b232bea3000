//! Locks, opens and leases of the files of one volume, for all protocols: one state machine.
//!
//! Owns: clients, byte ranges, share reservations, delegations and oplocks, their conflicts, the queues of those who wait, and
//! which small records of that are durable.
//! Must not know: protocols and their status codes, what files hold, the log, the network, what time it is.
//! Invariant: nothing is shown to anybody before its records are durable; and what is under way counts as taken.
//!
//! The design, the matrix of conflicts and the rules of each protocol: `docs/design/locks.md`.
//!
//! ```text
//!             prepare                     commit: the records are in the log
//!  request ----+--> Done(answer)     +--> the answer, notices, grants for those who waited
//!              +--> Write(records) --+
//!              +--> Wait             +--> abort: as if the request had never come
//!              +--> Refusal
//! ```

#![forbid(unsafe_code)]

mod clients;
mod leases;
mod limits;
mod list;
mod matrix;
mod model;
mod opens;
mod prepare;
mod queue;
mod range;
mod restore;
mod state;

pub use cairn_formats::metadata::{
    LeaseBits, LeaseStyle, LockMode, LockProtocol, RangeStyle, ShareBits,
};
pub use limits::{Limit, Limits};
pub use list::{Entry, EntryKind, Filter, ListCursor, Page};
pub use matrix::{RANGE_CONFLICTS, USES, Use, UseRow};
pub use model::{
    Answer, ClientId, ClientIdentity, Conflict, ConflictKind, Delta, Effects, GoneReason, LeaseId,
    Notice, Now, OpId, OpenId, Owner, Pause, Refusal, Release, Request, Step, WaiterId, Waiting,
    Write,
};
pub use range::{ByteRange, Held};
pub use restore::RestoreError;
pub use state::Locks;
