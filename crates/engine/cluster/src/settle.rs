//! Transactions whose outcome is known in the end.
//!
//! Owns: repeating a transaction of unknown outcome until it is settled.
//! Must not know: what the keys mean.
//!
//! To read that a change is not there settles nothing: the transaction may still be under way. To send it again does,
//! if it compares the revision of a key that it puts. The store then does at most one of the copies, and once another
//! transaction has put that key, none of them ever again. Where the key is compared as absent, that holds until somebody
//! deletes it: such a transaction must do no harm when it is done late.

use std::time::Duration;

use cairn_base::Backoff;
use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};

use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, ErrorKind, Key, KeyRange, Op, Outcome, Txn,
    TxnReply,
};

/// How long to wait before a transaction is sent again, at first and at most.
const RETRY_WAIT: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// What tells a transaction's own work from that of others: the value that it alone puts under `key`.
///
/// The transaction compares `key`'s revision. The value has a random number in it, unless it makes no difference who put
/// it: a node that adds one disk twice is told twice that it is there.
#[derive(Clone, Debug)]
pub struct Mark {
    pub key: Key,
    pub value: Vec<u8>,
}

/// How a transaction ended for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    Done(TxnReply),
    /// It is not in force and never will be: it was refused, or somebody has overtaken it. This is what its `otherwise`
    /// read, and then the entry of the mark's key.
    Refused(TxnReply),
    /// It was done, but the reply was lost and with it what `then` read. The entry is the mark's.
    DoneUnseen(Entry),
}

/// Does a transaction and settles its outcome.
///
/// It goes on for as long as `patience`. If even then nobody knows ([`Unsettled::Unknown`]), the caller must not
/// acknowledge anything that rests on it; it calls again with the same transaction, or gives up what it owns.
pub async fn transact_settled(
    coordinator: &dyn Coordinator,
    env: &Env,
    mut txn: Txn,
    mark: &Mark,
    patience: Duration,
) -> Result<Settled, Unsettled> {
    assert!(compares_revision_of(&txn, &mark.key) || planted::is(Bug::LogChangeComparesEpochOnly));
    assert!(txn.then.iter().any(|op| puts(op, mark)));
    txn.otherwise.push(KeyRange::One(mark.key.clone()));
    let deadline = env.clock.boottime().saturating_add(patience);
    let mut pauses = RETRY_WAIT;
    let mut maybe_done = false;
    loop {
        let error = match coordinator.transact(txn.clone()).await {
            Outcome::Done(reply) => return Ok(Settled::Done(reply)),
            Outcome::Refused(reply) => {
                let found = reply.reads.last().and_then(|read| read.first());
                return Ok(match found {
                    Some(entry) if entry.value == mark.value => Settled::DoneUnseen(entry.clone()),
                    _ => Settled::Refused(reply),
                });
            }
            Outcome::Failed(error) if error.kind() == ErrorKind::Retry => error,
            Outcome::Failed(error) => return Err(Unsettled::new(maybe_done, error)),
            Outcome::Unknown(error) => {
                maybe_done = true;
                error
            }
        };
        if maybe_done && planted::is(Bug::UnknownTakenAsRefused) {
            return Ok(Settled::Refused(TxnReply {
                revision: crate::Revision::ABSENT,
                reads: Vec::new(),
            }));
        }
        if maybe_done && planted::is(Bug::UnknownTakenAsDone) {
            return Ok(Settled::Done(TxnReply {
                revision: crate::Revision::ABSENT,
                reads: vec![Vec::new(); txn.then.len()],
            }));
        }
        if env.clock.boottime() >= deadline {
            return Err(Unsettled::new(maybe_done, error));
        }
        env.clock.sleep(pauses.pause()).await;
    }
}

/// Why a transaction is not settled as done or refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsettled {
    #[error(transparent)]
    NotDone(CoordinatorError),
    #[error("it is unknown whether a change of the cluster map was made: {0}")]
    Unknown(CoordinatorError),
}

impl Unsettled {
    fn new(maybe_done: bool, error: CoordinatorError) -> Self {
        if maybe_done {
            Self::Unknown(error)
        } else {
            Self::NotDone(error)
        }
    }
}

fn compares_revision_of(txn: &Txn, wanted: &Key) -> bool {
    txn.when.iter().any(|compare| match compare {
        Compare::Modified(key, _) => key == wanted,
        Compare::Created(key, revision) => key == wanted && revision.0 == 0,
        _ => false,
    })
}

fn puts(op: &Op, mark: &Mark) -> bool {
    matches!(op, Op::Put { key, value, .. } if *key == mark.key && *value == mark.value)
}
