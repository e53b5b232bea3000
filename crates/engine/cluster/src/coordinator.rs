//! What Cairn needs of a consensus store, with the semantics of etcd.
//!
//! Owns: keys, revisions, transactions, leases and watches as types, and what can go wrong with them.
//! Must not know: what the keys mean, gRPC.
//!
//! A store has one revision, which each change raises by one. All reads are linearizable.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use cairn_base::env::BoxFuture;

/// The most operations that one transaction may have on one side; etcd's default.
pub const TXN_OPS_MAX: usize = 128;
/// The most bytes that one transaction may carry; below etcd's default of 1.5 MiB for a request.
pub const TXN_LEN_BYTES_MAX: usize = 1024 * 1024;

/// A name in the store. Cairn's keys are text, so that an operator can read them with `etcdctl`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Numbers the states of the store; 0 is "no such key".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    pub const ABSENT: Self = Self(0);

    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Names one lease of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key with its value, as the store had it at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Key,
    pub value: Vec<u8>,
    pub created: Revision,
    pub modified: Revision,
    /// How often it was put since it was created; 1 after the first time.
    pub version: u64,
    /// The lease at whose end the key goes.
    pub lease: Option<LeaseId>,
}

/// Which keys are read or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    One(Key),
    /// All keys that begin with this text.
    Prefix(String),
}

impl KeyRange {
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Self::One(one) => one == key,
            Self::Prefix(prefix) => key.as_str().starts_with(prefix),
        }
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(key) => write!(f, "{key}"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// What one consistent reading found, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeReply {
    /// Of the whole store when it was read. A watch that goes on from here begins with the next one.
    pub revision: Revision,
    pub entries: Vec<Entry>,
}

impl RangeReply {
    /// The entry of a reading of one key.
    pub fn one(self) -> Option<Entry> {
        self.entries.into_iter().next()
    }
}

/// A condition of a transaction. A key that is not there has revision 0, version 0 and no lease; its value equals none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    Value(Key, Vec<u8>),
    Modified(Key, Revision),
    Created(Key, Revision),
    Version(Key, u64),
    Lease(Key, Option<LeaseId>),
}

impl Compare {
    pub fn absent(key: Key) -> Self {
        Self::Created(key, Revision::ABSENT)
    }
}

/// One step of a transaction. A transaction puts or deletes each key at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put {
        key: Key,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    },
    Delete(KeyRange),
    Get(KeyRange),
}

impl Op {
    pub fn put(key: Key, value: Vec<u8>) -> Self {
        Self::Put {
            key,
            value,
            lease: None,
        }
    }

    pub fn put_leased(key: Key, value: Vec<u8>, lease: LeaseId) -> Self {
        Self::Put {
            key,
            value,
            lease: Some(lease),
        }
    }

    pub fn get(key: Key) -> Self {
        Self::Get(KeyRange::One(key))
    }

    pub fn delete(key: Key) -> Self {
        Self::Delete(KeyRange::One(key))
    }
}

/// If all of `when` hold, all of `then` is done, else all of `otherwise`: at once, at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    pub when: Vec<Compare>,
    pub then: Vec<Op>,
    /// Only reads: a refused transaction has changed nothing.
    pub otherwise: Vec<KeyRange>,
}

impl Txn {
    /// Refuses what a store would refuse, before anything is sent.
    pub fn check(&self) -> Result<(), CoordinatorError> {
        let count = self
            .when
            .len()
            .max(self.then.len())
            .max(self.otherwise.len());
        if count > TXN_OPS_MAX {
            return Err(CoordinatorError::TooLarge(format!(
                "{count} operations in one transaction, above the limit of {TXN_OPS_MAX}"
            )));
        }
        let len_bytes: usize = self.then.iter().map(Op::len_bytes).sum();
        if len_bytes > TXN_LEN_BYTES_MAX {
            return Err(CoordinatorError::TooLarge(format!(
                "{len_bytes} bytes in one transaction, above the limit of {TXN_LEN_BYTES_MAX}"
            )));
        }
        Ok(())
    }
}

impl Op {
    fn len_bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.as_str().len() + value.len(),
            Self::Delete(_) | Self::Get(_) => 0,
        }
    }
}

/// What the branch that was taken read, one reply for each `Get` in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// Of the store after the transaction: what it put has this one as `modified`.
    pub revision: Revision,
    pub reads: Vec<Vec<Entry>>,
}

impl TxnReply {
    /// The entry that the `index`-th `Get`, of one key, found.
    pub fn read_one(&self, index: usize) -> Option<&Entry> {
        self.reads.get(index)?.first()
    }
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The conditions held, and `then` was done.
    Done(TxnReply),
    /// The conditions did not hold; this is what `otherwise` read.
    Refused(TxnReply),
    /// It may have been done, or may yet be: see [`crate::transact_settled`]. Until that is settled nothing that rests
    /// on it may be acknowledged.
    Unknown(CoordinatorError),
    /// It was not done and will not be.
    Failed(CoordinatorError),
}

/// A lease as the store granted or renewed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    pub id: LeaseId,
    /// The store may grant more than was asked for, never less.
    pub ttl: Duration,
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(Entry),
    Deleted { key: Key, revision: Revision },
}

/// What a watch delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// All changes up to `revision` that were not delivered yet, in their order; those of one revision are together.
    Changes {
        revision: Revision,
        changes: Vec<Change>,
    },
    /// Changes are missing: they were compacted away, or the store was replaced by an older copy. This is all that is
    /// there now. The watcher must compare it with what it knows; above all, keys may have gone.
    Reset(RangeReply),
}

/// A watch on a range of keys. It never ends by itself: it reconnects for as long as somebody asks for more.
pub trait Watcher: Send {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = WatchEvent> + Send + '_>>;
}

/// A consensus store.
pub trait Coordinator: Send + Sync + 'static {
    /// Reads keys in one consistent state of the store.
    fn range(&self, range: KeyRange) -> BoxFuture<Result<RangeReply, CoordinatorError>>;

    /// Does one transaction, at most once.
    fn transact(&self, txn: Txn) -> BoxFuture<Outcome>;

    /// Makes a lease that ends, with its keys, `ttl` after it was granted or last kept alive.
    fn grant_lease(&self, ttl: Duration) -> BoxFuture<Result<LeaseGrant, CoordinatorError>>;

    /// Renews a lease. [`CoordinatorError::LeaseNotFound`] means that it ended; it does not come back.
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<Result<LeaseGrant, CoordinatorError>>;

    /// Ends a lease now and deletes its keys. Fine if it ended already.
    fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<Result<(), CoordinatorError>>;

    /// Watches keys: the first change to be delivered is that of `from`, or a reset if it is gone.
    fn watch(&self, range: KeyRange, from: Revision) -> Box<dyn Watcher>;
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The store cannot be reached or is busy: try again later.
    Retry,
    /// An operator has to do something first.
    NeedsOperator,
    /// The named key or lease is not there (any more).
    NotFound,
    /// The request itself is wrong.
    BadRequest,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorError {
    #[error(
        "etcd cannot be reached: {0}; check that its members run and that the addresses are right"
    )]
    Unreachable(String),
    #[error("etcd did not answer within {} ms ({what})", after.as_millis())]
    TimedOut { what: String, after: Duration },
    #[error(
        "etcd has no leader: no majority of its members is connected ({0}); start the missing members"
    )]
    NoLeader(String),
    #[error("etcd at {endpoint} has version {version}, Cairn needs {wanted} or newer; upgrade it")]
    WrongVersion {
        endpoint: String,
        version: String,
        wanted: &'static str,
    },
    #[error(
        "the addresses of etcd lead to different clusters: {0}; name members of one cluster only"
    )]
    DifferentClusters(String),
    #[error(
        "etcd refuses changes because its space is used up ({0}); compact and defragment it, then `etcdctl alarm disarm`"
    )]
    NoSpace(String),
    #[error("etcd reports damaged data of a member ({0}); replace that member first")]
    Corrupt(String),
    #[error("etcd refuses this client: {0}; check user, password and certificates")]
    Refused(String),
    #[error("lease {0} has ended")]
    LeaseNotFound(LeaseId),
    #[error("the request is too large for etcd: {0}")]
    TooLarge(String),
    #[error("the settings for etcd are wrong: {0}")]
    BadSettings(String),
    #[error("etcd answered with an error: {0}")]
    Other(String),
}

impl CoordinatorError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable(_) | Self::TimedOut { .. } | Self::NoLeader(_) | Self::Other(_) => {
                ErrorKind::Retry
            }
            Self::WrongVersion { .. }
            | Self::DifferentClusters(_)
            | Self::NoSpace(_)
            | Self::Corrupt(_)
            | Self::Refused(_)
            | Self::BadSettings(_) => ErrorKind::NeedsOperator,
            Self::LeaseNotFound(_) => ErrorKind::NotFound,
            Self::TooLarge(_) => ErrorKind::BadRequest,
        }
    }
}
