//! The values of the state machine: what is asked, what is answered, what is held.
//!
//! Owns: these types. Must not know: what follows from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};
use cairn_formats::metadata::{
    Key, LeaseBits, LeaseStyle, LockMode, LockProtocol, RangeStyle, ShareBits,
};

use crate::limits::Limit;
use crate::matrix::Use;
use crate::range::{ByteRange, Held};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

number!(
    /// A client of the volume. Given anew when the client restarts; not used again in the owner's term.
    ClientId
);
number!(
    /// An open of a file. Only opens that deny something have the same number with the next owner.
    OpenId
);
number!(
    /// A delegation, oplock or lease of a file.
    LeaseId
);
number!(
    /// A request that waits. The next owner of the volume does not know it.
    WaiterId
);
number!(
    /// A change that is under way between `prepare` and `commit` or `abort`.
    OpId
);

/// The time, which the caller reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Since any moment, of a clock that never goes back: for leases and deadlines.
    pub ms: u64,
    /// For people who read lists.
    pub wall: Timestamp,
}

/// Who a client is, across its lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientIdentity {
    pub protocol: LockProtocol,
    /// 1 to [`cairn_formats::metadata::LOCK_NAME_LEN_BYTES_MAX`] bytes, as the protocol has them.
    pub name: Bytes,
}

/// Who holds ranges, opens or leases: a process, an open owner, a lock owner, an SMB handle, or the key of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub client: ClientId,
    /// How its ranges go together.
    pub style: RangeStyle,
    /// At most [`cairn_formats::metadata::LOCK_NAME_LEN_BYTES_MAX`] bytes, as the protocol has them.
    pub name: Bytes,
}

/// What a request for a lock does when it meets a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It is denied.
    No,
    /// It waits, and is granted by a [`Notice::Granted`]: NLM, SMB.
    Queue {
        /// Refuse it if it would wait for itself.
        detects_deadlock: bool,
    },
    /// It is denied, and has a place in the queue while it asks again: NFSv4. A [`Notice::Available`] says when it would succeed.
    Polled,
}

/// What clients, the file service and operators want.
#[derive(Clone, Debug)]
pub enum Request {
    /// Locks a range, or changes the mode of what the owner has there.
    Lock {
        owner: Owner,
        ino: Ino,
        range: ByteRange,
        mode: LockMode,
        waiting: Waiting,
    },
    /// Whether [`Request::Lock`] would meet a lock of somebody else.
    Test {
        owner: Owner,
        ino: Ino,
        range: ByteRange,
        mode: LockMode,
    },
    Unlock {
        owner: Owner,
        ino: Ino,
        range: ByteRange,
    },
    /// Ends the waiting of a request for a lock.
    Cancel {
        owner: Owner,
        ino: Ino,
        range: ByteRange,
        mode: LockMode,
    },
    /// Opens a file, or adds to the open that the owner has.
    Open {
        owner: Owner,
        ino: Ino,
        access: ShareBits,
        deny: ShareBits,
    },
    /// Takes access and denial of an open back to these, which are parts of what it has.
    Downgrade {
        client: ClientId,
        ino: Ino,
        open: OpenId,
        access: ShareBits,
        deny: ShareBits,
    },
    /// Ends an open, and releases all ranges that these owners have in the file.
    Close {
        client: ClientId,
        ino: Ino,
        open: OpenId,
        owners: Vec<Owner>,
    },
    /// Whether something may be done that needs no open here. What it does is over when it is asked again.
    Check {
        /// Who does it, if it is a client with locks.
        by: Option<Owner>,
        ino: Ino,
        what: Use,
        /// The data that is read or written.
        range: Option<ByteRange>,
    },
    /// Gives a lease if nothing speaks against it.
    GrantLease {
        owner: Owner,
        ino: Ino,
        level: LeaseBits,
        style: LeaseStyle,
    },
    /// The holder keeps `left` of its lease.
    ReturnLease {
        client: ClientId,
        ino: Ino,
        lease: LeaseId,
        left: LeaseBits,
    },
    /// A client is there, in the life that `verifier` names. Another life of it ends, with all it had.
    Confirm {
        identity: ClientIdentity,
        verifier: [u8; 8],
        /// How long it may be silent; 0 if it need not say that it is there.
        lease_ms: u32,
    },
    /// A client began the life that `verifier` names, and has nothing in it so far (NSM). What it had in another one ends.
    Restarted {
        identity: ClientIdentity,
        verifier: [u8; 8],
    },
    /// Ends what somebody has: by the client that goes for good, or by an operator.
    Release(Release),
    /// The file is being removed; its records go with it.
    Remove { ino: Ino },
}

/// The locks to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The client with all it has.
    Client(ClientId),
    /// Everything in a file.
    File(Ino),
    /// One range, open, lease or waiting request, by its number in the list.
    Item { ino: Ino, number: u64 },
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is done, and nothing had to be made durable.
    Done(Answer),
    /// Its records are to be made durable; then `commit` answers. Or `abort`.
    Write(Write),
    /// It did nothing. Prepare it again when that is over.
    Wait(Pause),
}

/// Records for one batch of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an operation that is neither committed nor aborted holds up others for ever"]
pub struct Write {
    pub op: OpId,
    pub deltas: Vec<Delta>,
}

/// A record that is put, or deleted if there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    pub key: Key,
    pub value: Option<Bytes>,
}

/// Why a request is to be prepared again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// When this operation is committed or aborted.
    Op(OpId),
    /// When the leases of the file give way, which is at `until_ms` at the latest. An edge may tell its client to come again.
    Recall { until_ms: u64 },
    /// When clients had time to open again what they had open with the last owner.
    Reclaim { until_ms: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Locked,
    Unlocked,
    /// No lock is in the way.
    Free,
    /// Somebody else has, or waits for, what excludes the request.
    Denied(Conflict),
    /// A notice will come.
    Queued(WaiterId),
    Cancelled,
    /// There was no such request: it was granted, or never came.
    NotWaiting,
    Opened {
        open: OpenId,
        access: ShareBits,
        deny: ShareBits,
    },
    Downgraded,
    Closed,
    Allowed,
    Leased {
        lease: LeaseId,
        level: LeaseBits,
    },
    /// Something speaks against a lease now.
    NotLeased,
    Returned,
    Client {
        client: ClientId,
        /// Whether it was there in this life already.
        was_known: bool,
    },
    Released,
}

/// What excludes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub owner: Arc<Owner>,
    pub kind: ConflictKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    Range {
        range: ByteRange,
        mode: LockMode,
    },
    /// A request that waits, and came first.
    Waiter {
        range: ByteRange,
        mode: LockMode,
    },
    Share {
        access: ShareBits,
        deny: ShareBits,
    },
}

/// Why a request did nothing, and would do nothing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the lock would wait for a lock of its own owner; release one of them")]
    Deadlock,
    #[error("there are as many {limit} as allowed ({max}); release some, or raise the limit")]
    Limit { limit: Limit, max: u64 },
    #[error(
        "the volume does not know the client: its lease is over or it was released; connect anew"
    )]
    UnknownClient,
    #[error("the client has no such open of the file")]
    UnknownOpen,
    #[error("the client has no such lease of the file")]
    UnknownLease,
    #[error("no such lock, open, lease or waiting request in the file")]
    UnknownItem,
    #[error("the owner has no lock of exactly this range")]
    NotLocked,
    #[error("an open or lease can be taken back to a part of what it has only")]
    NotPart,
    #[error("a name of a client or owner is empty or longer than 1024 bytes")]
    BadName,
    #[error("the owner belongs to another client")]
    OtherClient,
    #[error("a lease needs the right to keep data that was read")]
    BadLevel,
    #[error("an operator released the request")]
    Released,
    #[error("the file was removed")]
    Removed,
    #[error("the volume is not served by this node any more; ask its owner")]
    Closed,
}

/// What the caller does beside answering: in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Operations that follow. Each is made durable and committed, or aborted, as those of requests are.
    pub writes: Vec<Write>,
    /// What clients are told.
    pub notices: Vec<Notice>,
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A request that waited has its lock.
    Granted {
        waiter: WaiterId,
        owner: Arc<Owner>,
        ino: Ino,
        range: ByteRange,
        mode: LockMode,
    },
    /// A request that polls would succeed now.
    Available {
        waiter: WaiterId,
        owner: Arc<Owner>,
        ino: Ino,
        range: ByteRange,
        mode: LockMode,
    },
    /// A request that waited never gets its lock.
    Refused {
        waiter: WaiterId,
        owner: Arc<Owner>,
        ino: Ino,
        refusal: Refusal,
    },
    /// The holder is to go down to `left`.
    Recall {
        client: ClientId,
        ino: Ino,
        lease: LeaseId,
        left: LeaseBits,
        until_ms: u64,
    },
    /// A range, an open or a lease was taken away.
    Revoked {
        client: ClientId,
        ino: Ino,
        number: u64,
    },
    /// A client and all it had is gone.
    ClientGone {
        client: ClientId,
        reason: GoneReason,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneReason {
    /// It was silent for longer than its lease, and was in somebody's way.
    Expired,
    /// It began another life.
    Restarted,
    /// It said so, or an operator did.
    Released,
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub identity: ClientIdentity,
    pub verifier: [u8; 8],
    pub lease_ms: u32,
    pub since: Timestamp,
    pub renewed_ms: u64,
    /// Where it has something, and how much.
    pub files: BTreeMap<Ino, usize>,
    pub items: usize,
    /// Operations that change something of it.
    pub pending: Vec<OpId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct File {
    /// Those with ranges.
    pub owners: Vec<OwnerRanges>,
    pub range_count: usize,
    pub opens: Vec<Open>,
    pub leases: Vec<Lease>,
    /// By number, which is the order in which they came.
    pub waiters: Vec<Waiter>,
    /// Operations that change something here.
    pub pending: Vec<OpId>,
}

#[derive(Clone, Debug)]
pub(crate) struct OwnerRanges {
    pub owner: Arc<Owner>,
    pub held: Vec<Held>,
}

#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub number: u64,
    pub owner: Arc<Owner>,
    pub access: ShareBits,
    pub deny: ShareBits,
    pub since: Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub number: u64,
    pub owner: Arc<Owner>,
    pub level: LeaseBits,
    pub style: LeaseStyle,
    pub since: Timestamp,
    pub recalled: Option<Recalled>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Recalled {
    pub left: LeaseBits,
    pub until_ms: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub number: u64,
    pub owner: Arc<Owner>,
    pub range: ByteRange,
    pub mode: LockMode,
    pub since: Timestamp,
    /// Of one that polls: when its place is lost.
    pub polled_until_ms: Option<u64>,
    /// Whether it was told that it would succeed.
    pub is_told: bool,
}

/// One thing that an operation leaves in a file.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Ranges {
        owner: Arc<Owner>,
        after: Vec<Held>,
    },
    Open {
        number: u64,
        owner: Arc<Owner>,
        after: Option<Open>,
    },
    Lease {
        number: u64,
        owner: Arc<Owner>,
        after: Option<Lease>,
    },
}

impl Change {
    pub fn owner(&self) -> &Arc<Owner> {
        match self {
            Self::Ranges { owner, .. } | Self::Open { owner, .. } | Self::Lease { owner, .. } => {
                owner
            }
        }
    }
}

/// An operation under way.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub files: BTreeMap<Ino, Vec<Change>>,
    /// A client that goes, with the reason.
    pub client_gone: Option<(ClientId, GoneReason)>,
    pub client_new: Option<(ClientId, Client)>,
    /// Nothing else happens in this file meanwhile, and nobody waits there afterwards.
    pub file_cleared: Option<(Ino, Refusal)>,
    /// The request that waited, and gets its lock by this. It has its place again if this is aborted.
    pub waiter: Option<(Ino, Waiter)>,
    /// Whether its client hears of the lock by a notice, and not by the answer.
    pub is_grant: bool,
    /// Whom to tell of what is taken away.
    pub revoked: Vec<Notice>,
    pub answer: Answer,
}

impl Op {
    pub fn new(answer: Answer) -> Self {
        Self {
            files: BTreeMap::new(),
            client_gone: None,
            client_new: None,
            file_cleared: None,
            waiter: None,
            is_grant: false,
            revoked: Vec::new(),
            answer,
        }
    }

    pub fn with(mut self, ino: Ino, change: Change) -> Self {
        self.files.entry(ino).or_default().push(change);
        self
    }

    pub fn changes_of(&self, ino: Ino) -> &[Change] {
        self.files.get(&ino).map_or(&[], Vec::as_slice)
    }
}
