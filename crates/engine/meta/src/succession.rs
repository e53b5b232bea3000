//! The consecutive stores of one volume in one process.
//!
//! Owns: reporting the outcome of changes to callers whose store ended, once its successor has recovered the log. Must
//! not know: why a store ended, who opens the next one, the purpose of changes.
//!
//! A store may end during a log write: it fails because its state is corrupt, or is abandoned because a disk does not
//! answer. Then it is unknown whether the log will have that group. The successor finds out: a change took effect if
//! its position lies below the start of the term that follows the change's term.

use std::sync::{Arc, Weak};

use cairn_base::LogPosition;
use parking_lot::Mutex;

use crate::progress::Progress;
use cairn_formats::metadata::log::Term;

/// Outlives the stores of a volume; each is opened with a clone of it. See [`crate::MetaSettings::succession`].
#[derive(Clone, Default)]
pub struct Succession(Arc<Mutex<Stores>>);

#[derive(Default)]
struct Stores {
    /// Stores with changes whose outcome is open.
    unsettled: Vec<(Term, Weak<Progress>)>,
    has_ended: bool,
}

impl Succession {
    /// Ends the succession: no store follows, and no caller waits for one any more.
    pub fn end(&self) {
        let unsettled = {
            let mut stores = self.0.lock();
            stores.has_ended = true;
            std::mem::take(&mut stores.unsettled)
        };
        for progress in unsettled.iter().filter_map(|(_, store)| store.upgrade()) {
            progress.expect_no_outcome();
        }
    }

    /// Notes that a store has begun its term.
    pub(crate) fn enter(&self, term: Term, progress: &Arc<Progress>) {
        let mut stores = self.0.lock();
        stores
            .unsettled
            .retain(|(_, store)| store.strong_count() > 0);
        if stores.has_ended {
            progress.expect_no_outcome();
            return;
        }
        progress.expect_outcome();
        stores.unsettled.push((term, Arc::downgrade(progress)));
    }

    /// Notes that a successor has begun a term, the last of `history`, on enough disks that no other history can count
    /// any more.
    pub(crate) fn settle(&self, history: &[Term]) {
        let unsettled = std::mem::take(&mut self.0.lock().unsettled);
        for (term, store) in unsettled {
            if let Some(progress) = store.upgrade() {
                progress.settle(next_start(history, &term));
            }
        }
    }
}

/// Start of the term after `term`. `None` if it is unknown: the history took another branch, or begins later.
fn next_start(history: &[Term], term: &Term) -> Option<LogPosition> {
    let is_same = |other: &&Term| other.epoch == term.epoch && other.nonce == term.nonce;
    let mut terms = history.iter().skip_while(|other| !is_same(other));
    terms.nth(1).map(|next| next.start)
}

impl std::fmt::Debug for Succession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Succession").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_base::Epoch;

    #[test]
    fn the_start_of_the_next_term_is_found_if_the_history_went_through_the_term() {
        let term = |epoch, nonce, start| Term {
            epoch: Epoch(epoch),
            nonce,
            start: LogPosition(start),
        };
        let history = [term(1, 10, 1), term(2, 20, 5), term(4, 40, 9)];
        let cases = [
            ("followed at once", term(1, 10, 1), Some(5)),
            ("followed by a later epoch", term(2, 20, 5), Some(9)),
            ("the last", term(4, 40, 9), None),
            ("another branch", term(2, 21, 5), None),
            ("not in it", term(3, 30, 5), None),
        ];
        for (name, ended, want) in cases {
            let found = next_start(&history, &ended);
            assert_eq!(found, want.map(LogPosition), "{name}");
        }
    }
}
