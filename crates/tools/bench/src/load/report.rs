//! What a run of a workload comes to.
//!
//! Owns: rates. Must not know: what a request is.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::drive::Tally;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Requests that succeeded.
    pub operation_count: u64,
    pub error_count: u64,
    /// One of the errors.
    pub first_error: Option<String>,
    /// Of the data, not of what is around it.
    pub bytes: u64,
    /// From the start of the first connection to the end of the last, COMMIT included.
    pub elapsed: Duration,
    /// Nanoseconds of each request that succeeded.
    pub latency_ns: Histogram<u64>,
}

impl Report {
    pub(super) fn new(tally: Tally, elapsed: Duration) -> Self {
        Self {
            operation_count: tally.operation_count,
            error_count: tally.error_count,
            first_error: tally.first_error,
            bytes: tally.bytes,
            elapsed,
            latency_ns: tally.latency_ns,
        }
    }

    pub fn operations_per_second(&self) -> f64 {
        per_second(self.operation_count, self.elapsed)
    }

    /// 10^6 bytes a second.
    pub fn megabytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.elapsed) / 1e6
    }

    /// The latency that `percent` of the requests did not exceed, in microseconds.
    pub fn latency_us(&self, percent: f64) -> f64 {
        self.latency_ns.value_at_percentile(percent) as f64 / 1e3
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => count as f64 / time.as_secs_f64(),
    }
}
