//! What was done and how long it took.
//!
//! Owns: counters and the latency histogram of one connection, adding them up.
//! Must not know: what a request is.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 3600 * 1_000_000_000;
/// Latencies are kept to one part in a thousand.
const SIGNIFICANT_DIGITS: u8 = 3;

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
    /// Nanoseconds of each request, failed ones included.
    pub latency_ns: Histogram<u64>,
}

impl Report {
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

/// Counts for one connection, or the sum over several.
pub struct Tally {
    pub operation_count: u64,
    pub error_count: u64,
    pub first_error: Option<String>,
    pub bytes: u64,
    /// First start and last end.
    pub span: Option<(Instant, Instant)>,
    latency_ns: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let latency_ns = Histogram::new_with_max(LATENCY_NS_MAX, SIGNIFICANT_DIGITS);
        Self {
            operation_count: 0,
            error_count: 0,
            first_error: None,
            bytes: 0,
            span: None,
            latency_ns: latency_ns.expect("the limits of the histogram are in order"),
        }
    }
}

impl Tally {
    pub fn timed(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(ns);
    }

    pub fn done(&mut self, bytes: u64) {
        self.operation_count += 1;
        self.bytes += bytes;
    }

    pub fn failed(&mut self, error: impl ToString) {
        self.error_count += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    pub fn merge(&mut self, other: Self) {
        self.operation_count += other.operation_count;
        self.error_count += other.error_count;
        self.first_error = self.first_error.take().or(other.first_error);
        self.bytes += other.bytes;
        self.span = match (self.span, other.span) {
            (Some((start, end)), Some((other_start, other_end))) => {
                Some((start.min(other_start), end.max(other_end)))
            }
            (span, None) | (None, span) => span,
        };
        let merged = self.latency_ns.add(other.latency_ns);
        merged.expect("both histograms have the same limits");
    }

    pub fn report(self) -> Report {
        Report {
            operation_count: self.operation_count,
            error_count: self.error_count,
            first_error: self.first_error,
            bytes: self.bytes,
            elapsed: self.span.map_or(Duration::ZERO, |(start, end)| end - start),
            latency_ns: self.latency_ns,
        }
    }
}
