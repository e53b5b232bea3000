//! Failed log-ins, as the audit log has them: one entry a minute at most, with how many there were.
//!
//! Owns: which of them are one entry. Must not know: who tried, where entries are kept, the time of day.
//!
//! The first one is an entry at once. Those of the minute after it are counted and become one entry at its end, of the user and
//! the address that most of them have. So unauthorized clients cannot push out entries of changes, and nothing of theirs goes uncounted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::audit::AuditEntry;

/// How long failures are counted for one entry.
pub(crate) const FAILURES_EVERY: Duration = Duration::from_secs(60);
/// Pairs of user and address that are told apart within that time.
const PAIRS_MAX: usize = 256;

/// What becomes of a failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It is an entry now, and the caller asks for a summary after [`FAILURES_EVERY`].
    Now(Box<AuditEntry>),
    /// It will be counted in a summary.
    Later,
}

#[derive(Default)]
pub(crate) struct Failures {
    /// A minute has begun, and somebody will ask for its summary.
    is_counting: bool,
    count: u64,
    /// How many there are of each pair of user and address, and the last of them.
    of: BTreeMap<(String, String), (u64, AuditEntry)>,
}

impl Failures {
    pub fn add(&mut self, entry: AuditEntry) -> Noted {
        if !std::mem::replace(&mut self.is_counting, true) {
            return Noted::Now(Box::new(entry));
        }
        self.count += 1;
        let pair = (entry.user.clone(), entry.address.clone());
        if self.of.len() < PAIRS_MAX || self.of.contains_key(&pair) {
            let (count, last) = self.of.entry(pair).or_insert_with(|| (0, entry.clone()));
            *count += 1;
            *last = entry;
        }
        Noted::Later
    }

    /// The entry of a minute that ends, and another minute begins; `None`: nothing failed in it, and none begins.
    pub fn summary(&mut self) -> Option<AuditEntry> {
        let of = std::mem::take(&mut self.of).into_values();
        let count = std::mem::take(&mut self.count);
        let most = of.max_by_key(|(count, _)| *count);
        self.is_counting = most.is_some();
        most.map(|(_, entry)| AuditEntry {
            count: (count > 1).then_some(count),
            ..entry
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(user: &str, address: &str) -> AuditEntry {
        AuditEntry {
            id: 0,
            at_seconds: 7,
            user: user.to_owned(),
            via: "nothing".to_owned(),
            address: address.to_owned(),
            method: "POST".to_owned(),
            path: "/api/v1/session".to_owned(),
            status: 401,
            count: None,
            node: None,
        }
    }

    #[test]
    fn each_minute_has_one_entry_and_all_are_counted() {
        let mut failures = Failures::default();
        let first = failure("alice", "10.0.0.1");
        assert_eq!(
            failures.add(first.clone()),
            Noted::Now(Box::new(first.clone()))
        );
        assert_eq!(failures.add(first.clone()), Noted::Later);
        assert_eq!(
            failures.summary(),
            Some(first.clone()),
            "one is no number of them"
        );
        // Still a minute of which somebody will ask.
        let bob = failure("bob", "10.0.0.2");
        for _ in 0..3 {
            assert_eq!(failures.add(bob.clone()), Noted::Later);
        }
        assert_eq!(failures.add(first.clone()), Noted::Later);
        let summary = failures.summary().unwrap();
        assert_eq!((&*summary.user, summary.count), ("bob", Some(4)));
        assert_eq!(failures.summary(), None);
        assert!(matches!(failures.add(first), Noted::Now(_)));
    }

    #[test]
    fn a_flood_takes_bounded_memory_and_is_counted() {
        let mut failures = Failures::default();
        let count = 10 * PAIRS_MAX as u64;
        for number in 0..=count {
            failures.add(failure("?", &format!("address {number}")));
            assert!(failures.of.len() <= PAIRS_MAX);
        }
        assert_eq!(failures.summary().unwrap().count, Some(count));
    }
}
