//! The report of a run.
//!
//! Owns: the counters, and their sums over runs. Must not know: the places that count.

use std::collections::BTreeMap;

use crate::run::Verdict;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub verdict: Verdict,
    /// Hash of every step, of all disk operations and of all received bytes.
    pub trace: u64,
    pub counts: Counts,
}

/// Calls of clients that talk to any node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsCounted {
    pub answered: u64,
    /// Connections that clients made.
    pub turns: u64,
    /// Calls that owners began; some are repetitions.
    pub begun: u64,
}

impl CallsCounted {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.turns += other.turns;
        self.begun += other.begun;
    }
}

/// Counters of runs, over all volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub simulated_seconds: u64,
    pub sent_bytes: u64,
    pub volumes: u64,
    /// The part of these that were made during events.
    pub volumes_made_late: u64,
    pub volumes_deleted: u64,
    pub openings: u64,
    pub late_openings: u64,
    pub judged: u64,
    pub verified_bytes: u64,
    pub lost_changes: u64,
    pub lost_writes: u64,
    pub ops: u64,
    pub ops_refused: u64,
    pub late_answers: u64,
    pub segments_sent: u64,
    pub calls: CallsCounted,
    /// Nodes that were lost for good.
    pub nodes_lost: u64,
    /// Time from the loss of the owner in the end until the next one serves; 0 if the run ended otherwise.
    pub takeover_ms: u64,
    /// Number of events of each kind.
    pub events: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.steps += other.steps;
        self.simulated_seconds += other.simulated_seconds;
        self.sent_bytes += other.sent_bytes;
        self.volumes += other.volumes;
        self.volumes_made_late += other.volumes_made_late;
        self.volumes_deleted += other.volumes_deleted;
        self.openings += other.openings;
        self.late_openings += other.late_openings;
        self.judged += other.judged;
        self.verified_bytes += other.verified_bytes;
        self.lost_changes += other.lost_changes;
        self.lost_writes += other.lost_writes;
        self.ops += other.ops;
        self.ops_refused += other.ops_refused;
        self.late_answers += other.late_answers;
        self.segments_sent += other.segments_sent;
        self.calls.add(other.calls);
        self.nodes_lost += other.nodes_lost;
        self.takeover_ms = self.takeover_ms.max(other.takeover_ms);
        for (name, count) in &other.events {
            *self.events.entry(name).or_default() += count;
        }
    }
}
