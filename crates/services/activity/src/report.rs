//! The report of a volume: the parts of all threads together.
//!
//! Owns: how counts are added up, which are lower bounds, which rows come first. Must not know: locks, threads.

use std::time::Duration;

use crate::counts::{Client, Counts, File, Operation, OperationCounts, Work};
use crate::sketch::Sketch;

/// Clients, and files, that are told of.
pub const SHOWN_COUNT_MAX: usize = 20;

/// One of the busiest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<K> {
    pub key: K,
    pub work: Work,
    /// It may have done more, before it was among the busiest.
    pub is_lower_bound: bool,
}

/// The busiest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top<K> {
    pub rows: Vec<Row<K>>,
    /// There are others, which do less.
    pub has_others: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationReport {
    pub operation: Operation,
    pub work: Work,
    /// `None`: of none of them the end was seen.
    pub latency_mean: Option<Duration>,
    pub latency_max: Option<Duration>,
}

/// What clients did in a stretch of time.
#[derive(Clone, Debug)]
pub struct Report {
    pub span: Duration,
    pub total: Work,
    /// Those with the most first.
    pub operations: Vec<OperationReport>,
    pub clients: Top<Client>,
    pub files: Top<File>,
}

/// Adds up what several threads counted.
#[derive(Default)]
pub(crate) struct Sum {
    operations: Vec<OperationCounts>,
    clients: Joined<Client>,
    files: Joined<File>,
}

impl Sum {
    pub fn add(&mut self, counts: &Counts) {
        for counted in &counts.operations {
            let mut known = self.operations.iter_mut();
            match known.find(|known| known.is_of(counted.operation)) {
                Some(known) => known.join(counted),
                None => self.operations.push(*counted),
            }
        }
        self.clients.add(&counts.clients);
        self.files.add(&counts.files);
    }

    pub fn report(self, span: Duration) -> Report {
        let mut total = Work::default();
        let mut operations: Vec<_> = self
            .operations
            .iter()
            .map(|counts| {
                total.add(counts.work);
                let mean = counts.latency_sum_ns.checked_div(counts.timed);
                let mean = mean.map(Duration::from_nanos);
                OperationReport {
                    operation: counts.operation,
                    work: counts.work,
                    latency_mean: mean,
                    latency_max: mean.map(|_| Duration::from_nanos(counts.latency_max_ns)),
                }
            })
            .collect();
        operations.sort_by_key(|it| (std::cmp::Reverse(it.work.operations), it.operation));
        Report {
            span,
            total,
            operations,
            clients: self
                .clients
                .top(|client| (client.protocol, client.who.clone())),
            files: self.files.top(|file| file.name.clone()),
        }
    }
}

/// Counters of several sketches under one key.
struct Joined<K> {
    rows: Vec<JoinedRow<K>>,
    /// Sketches in which a key may have lost its counter.
    incomplete: usize,
}

struct JoinedRow<K> {
    row: Row<K>,
    /// Of these, those that have the key.
    incomplete: usize,
}

impl<K> Default for Joined<K> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            incomplete: 0,
        }
    }
}

impl<K: Eq + Clone> Joined<K> {
    fn add(&mut self, sketch: &Sketch<K, Work>) {
        let incomplete = usize::from(!sketch.is_complete());
        self.incomplete += incomplete;
        for counter in sketch.counters() {
            let is_lower_bound = counter.error > 0;
            // At most some hundred, when somebody looks.
            let mut known = self.rows.iter_mut();
            match known.find(|known| known.row.key == *counter.key) {
                Some(known) => {
                    known.row.work.add(*counter.value);
                    known.row.is_lower_bound |= is_lower_bound;
                    known.incomplete += incomplete;
                }
                None => self.rows.push(JoinedRow {
                    row: Row {
                        key: counter.key.clone(),
                        work: *counter.value,
                        is_lower_bound,
                    },
                    incomplete,
                }),
            }
        }
    }

    fn top<O: Ord>(self, order: impl Fn(&K) -> O) -> Top<K> {
        let incomplete = self.incomplete;
        let rows = self.rows.into_iter().map(|known| Row {
            // A sketch that does not have it may have had it.
            is_lower_bound: known.row.is_lower_bound || known.incomplete < incomplete,
            ..known.row
        });
        let mut rows: Vec<_> = rows.collect();
        // By sure counts: a counter that was just taken over says nothing of its key yet.
        rows.sort_by_cached_key(|row| (std::cmp::Reverse(row.work.weight()), order(&row.key)));
        let has_others = incomplete > 0 || rows.len() > SHOWN_COUNT_MAX;
        rows.truncate(SHOWN_COUNT_MAX);
        Top { rows, has_others }
    }
}
