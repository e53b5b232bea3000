//! Counts of requests and how long they took.
//!
//! Owns: counters, the latency histogram and the intervals of one thread, adding them up.
//! Must not know: what a request is.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::latency;
use crate::samples::Samples;

use super::Done;

/// Counts for the jobs of one thread, or the sum over several.
pub struct Tally {
    pub operation_count: u64,
    pub bytes: u64,
    pub error_count: u64,
    pub first_error: Option<String>,
    /// Nanoseconds of each request that succeeded.
    pub latency_ns: Histogram<u64>,
    pub samples: Samples,
    /// One for each job.
    pub workers: Vec<Worker>,
    pub cpu: Duration,
}

/// What one job did.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    /// Which of all jobs.
    pub index: usize,
    pub operation_count: u64,
    pub bytes: u64,
    /// When its last request was answered; with its data stable, if that is in the clock.
    pub end: Option<Instant>,
    /// When all its data was stable.
    pub drained: Option<Instant>,
}

impl Worker {
    pub fn new(index: usize) -> Self {
        Self {
            index,
            operation_count: 0,
            bytes: 0,
            end: None,
            drained: None,
        }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            operation_count: 0,
            bytes: 0,
            error_count: 0,
            first_error: None,
            latency_ns: latency::histogram(),
            samples: Samples::default(),
            workers: Vec::new(),
            cpu: Duration::ZERO,
        }
    }
}

impl Tally {
    /// A request of a worker of this thread that succeeded, answered at `end`, `at` so long after the
    /// clock began.
    pub fn done(&mut self, worker: usize, (end, at): (Instant, Duration), ns: u64, done: Done) {
        self.operation_count += done.operations;
        self.bytes += done.bytes;
        self.latency_ns.saturating_record(ns);
        self.samples.add(at, done.operations, done.bytes);
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.end = Some(end);
            worker.operation_count += done.operations;
            worker.bytes += done.bytes;
        }
    }

    pub fn failed(&mut self, error: impl ToString) {
        self.error_count += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    pub fn merge(&mut self, other: Self) {
        self.operation_count += other.operation_count;
        self.bytes += other.bytes;
        self.error_count += other.error_count;
        self.first_error = self.first_error.take().or(other.first_error);
        latency::add(&mut self.latency_ns, &other.latency_ns);
        self.samples.merge(other.samples);
        self.workers.extend(other.workers);
        self.cpu += other.cpu;
    }
}
