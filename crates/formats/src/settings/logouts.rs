//! Sessions of the admin API that were ended before their time.
//!
//! Owns: that whatever was ended stays so until it would have ended by itself, in bounded memory.
//! Must not know: the form of a session's cookie, who may end which.
//!
//! A session is known by a random number, by whose it is, and by when it ends at the latest. Sessions that began earlier end
//! earlier: "all until now" is therefore said by the latest end that any of them can have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Sessions, and owners of sessions, that are remembered. Of more, those that end first are forgotten, and with them all
/// sessions that began no later are ended.
pub const LOGOUTS_MAX: usize = 1024;

/// The sessions that a log-out ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logout {
    /// One session, by its number. `ends_seconds`: at the latest, in seconds since 1970 UTC.
    Session { number: u64, ends_seconds: i64 },
    /// All sessions of somebody that end by then, in seconds since 1970 UTC.
    AllOf { whose: String, ends_seconds: i64 },
}

/// Log-outs that still matter. Times are in seconds since 1970 UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logouts {
    /// When each session would have ended by itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sessions: BTreeMap<u64, i64>,
    /// By whose they are: the latest end of sessions that have ended.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    all_of: BTreeMap<String, i64>,
    /// The latest end of all sessions, when the sessions of all users were ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    all_ending_by_seconds: i64,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Logouts {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a session has ended before its time.
    pub fn has(&self, number: u64, whose: &str, ends_seconds: i64) -> bool {
        let all_of = self.all_of.get(whose);
        self.all_ending_by_seconds >= ends_seconds
            || all_of.is_some_and(|ended| *ended >= ends_seconds)
            || self.sessions.contains_key(&number)
    }

    /// Notes a log-out, and forgets those of sessions that would have ended by themselves.
    pub fn add(&mut self, logout: Logout, now_seconds: i64) {
        match logout {
            Logout::Session {
                number,
                ends_seconds,
            } => raise(self.sessions.entry(number).or_default(), ends_seconds),
            Logout::AllOf {
                whose,
                ends_seconds,
            } => raise(self.all_of.entry(whose).or_default(), ends_seconds),
        }
        self.settle(now_seconds);
    }

    /// Ends what others ended as well.
    pub fn merge(&mut self, others: &Self, now_seconds: i64) {
        for (number, ends_seconds) in &others.sessions {
            raise(self.sessions.entry(*number).or_default(), *ends_seconds);
        }
        for (whose, ends_seconds) in &others.all_of {
            raise(self.all_of.entry(whose.clone()).or_default(), *ends_seconds);
        }
        raise(
            &mut self.all_ending_by_seconds,
            others.all_ending_by_seconds,
        );
        self.settle(now_seconds);
    }

    fn settle(&mut self, now_seconds: i64) {
        self.sessions.retain(|_, ends| *ends > now_seconds);
        self.all_of.retain(|_, ends| *ends > now_seconds);
        if self.all_ending_by_seconds <= now_seconds {
            self.all_ending_by_seconds = 0;
        }
        while self.sessions.len() > LOGOUTS_MAX {
            let first = self.sessions.iter().min_by_key(|(_, ends)| **ends);
            if let Some((number, ends)) = first.map(|(number, ends)| (*number, *ends)) {
                self.sessions.remove(&number);
                raise(&mut self.all_ending_by_seconds, ends);
            }
        }
        while self.all_of.len() > LOGOUTS_MAX {
            let first = self.all_of.iter().min_by_key(|(_, ends)| **ends);
            if let Some((whose, ends)) = first.map(|(whose, ends)| (whose.clone(), *ends)) {
                self.all_of.remove(&whose);
                raise(&mut self.all_ending_by_seconds, ends);
            }
        }
    }

    /// Whether there are no more than are remembered.
    pub fn fits(&self) -> bool {
        self.sessions.len() <= LOGOUTS_MAX && self.all_of.len() <= LOGOUTS_MAX
    }
}

fn raise(number: &mut i64, to: i64) {
    *number = (*number).max(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64, ends_seconds: i64) -> Logout {
        Logout::Session {
            number,
            ends_seconds,
        }
    }

    fn all_of(whose: &str, ends_seconds: i64) -> Logout {
        Logout::AllOf {
            whose: whose.to_owned(),
            ends_seconds,
        }
    }

    #[test]
    fn what_ended_stays_so_until_it_would_have_by_itself() {
        let mut logouts = Logouts::default();
        assert!(logouts.is_none() && !logouts.has(1, "alice", 500));
        logouts.add(session(1, 500), 100);
        logouts.add(all_of("bob", 400), 100);
        let cases = [
            (1, "alice", 500, true),
            // Whatever it was renewed to.
            (1, "alice", 600, true),
            (2, "alice", 500, false),
            (3, "bob", 400, true),
            (3, "bob", 401, false),
            (3, "alice", 400, false),
        ];
        for (number, whose, ends, want) in cases {
            assert_eq!(logouts.has(number, whose, ends), want, "{number} {whose}");
        }
        let text = serde_json::to_string(&logouts).unwrap();
        assert_eq!(serde_json::from_str::<Logouts>(&text).unwrap(), logouts);
        // An earlier end does not take a later one back.
        logouts.add(all_of("bob", 300), 100);
        assert!(logouts.has(3, "bob", 400));
        logouts.add(session(9, 600), 450);
        assert_eq!(logouts.all_of.len(), 0);
        logouts.add(session(9, 600), 550);
        assert_eq!(logouts.sessions.len(), 1);
        logouts.add(session(9, 600), 600);
        assert!(logouts.is_none());
    }

    /// Nothing that ended holds again because much more ended.
    #[test]
    fn what_is_forgotten_has_ended_all_the_same() {
        let mut logouts = Logouts::default();
        let count = 2 * LOGOUTS_MAX as u64;
        for number in 0..count {
            let ends = 1000 + i64::try_from(number).unwrap();
            logouts.add(session(number, ends), 0);
            logouts.add(all_of(&format!("user{number}"), ends), 0);
            assert!(logouts.fits());
        }
        for number in 0..count {
            let ends = 1000 + i64::try_from(number).unwrap();
            assert!(logouts.has(number, "", ends), "{number}");
            assert!(logouts.has(u64::MAX, &format!("user{number}"), ends));
        }
        let last = 1000 + i64::try_from(count).unwrap();
        assert!(!logouts.has(u64::MAX, "", last), "one that began later");
    }

    #[test]
    fn nodes_have_what_any_of_them_ended() {
        let (mut one, mut other) = (Logouts::default(), Logouts::default());
        one.add(session(1, 500), 0);
        one.add(all_of("bob", 300), 0);
        other.add(session(2, 500), 0);
        other.add(all_of("bob", 400), 0);
        let mut both = one.clone();
        both.merge(&other, 0);
        other.merge(&one, 0);
        assert_eq!(both, other);
        assert!(both.has(1, "", 500) && both.has(2, "", 500) && both.has(3, "bob", 400));
    }
}
