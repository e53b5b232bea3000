//! Counters of NFS requests.
//!
//! Owns: what is counted, and the names under which Prometheus sees it.
//! Must not know: connections, requests.
//!
//! Each thread counts in memory of its own with plain loads and stores: a request pays a few
//! nanoseconds, no lock and no cache line that another core writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_codec_nfs::v3::{ErrorStatus, Procedure};
use cairn_rpc_server::metric_families::{Row, counter, desc, family, labelled};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, MetricFamily, MetricType};

/// Latency buckets end at 8 us, 16 us, and so on up to 2^BUCKET_LAST us, about 8 s.
const BUCKET_FIRST_LOG2: u32 = 3;
pub const BUCKET_COUNT: usize = 21;
const PROCEDURE_COUNT: usize = Procedure::ALL.len();
const STATUS_COUNT: usize = ErrorStatus::ALL.len();

/// Written by one thread only, read by any.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, more: u64) {
        // Not `fetch_add`: there is one writer, so nothing can be lost.
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(more),
            Ordering::Relaxed,
        );
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct ProcedureCounts {
    /// By bucket; the last has no upper bound.
    latency: [Count; BUCKET_COUNT + 1],
    latency_sum_ns: Count,
}

/// What one thread counts.
#[derive(Default)]
#[repr(align(128))]
struct ThreadCounts {
    procedures: [ProcedureCounts; PROCEDURE_COUNT],
    errors: [Count; STATUS_COUNT],
    read_bytes: Count,
    written_bytes: Count,
}

/// Values that are asked for when metrics are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    pub duplicates: u64,
    pub duplicates_max: u64,
    pub duplicate_bytes: u64,
    pub mounts: u64,
    pub mounts_max: u64,
}

impl Gauges {
    fn rows(&self) -> Vec<Row> {
        vec![
            Row::new(
                "cairn_nfs_duplicates",
                "Replies kept for retransmitted requests",
                self.duplicates,
            ),
            Row::new(
                "cairn_nfs_duplicates_max",
                "Limit of replies kept",
                self.duplicates_max,
            ),
            Row::new(
                "cairn_nfs_duplicate_bytes",
                "Size of the replies kept",
                self.duplicate_bytes,
            ),
            Row::new("cairn_nfs_mounts", "Mounts remembered", self.mounts),
            Row::new(
                "cairn_nfs_mounts_max",
                "Limit of mounts remembered",
                self.mounts_max,
            ),
        ]
    }
}

type GaugeSource = Box<dyn Fn() -> Gauges + Send + Sync>;

pub struct ProcedureMetrics {
    threads: Vec<ThreadCounts>,
    /// These are rare, so all threads share them.
    duplicates_answered: AtomicU64,
    locks_refused: AtomicU64,
}

impl ProcedureMetrics {
    pub fn new(thread_count: usize) -> Self {
        Self {
            threads: (0..thread_count).map(|_| ThreadCounts::default()).collect(),
            duplicates_answered: AtomicU64::new(0),
            locks_refused: AtomicU64::new(0),
        }
    }

    /// Counts a request that was sent again and answered from memory.
    pub fn count_duplicate(&self) {
        self.duplicates_answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lock that was refused; returns how many there were.
    pub fn count_lock_refused(&self) -> u64 {
        self.locks_refused.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a request that was answered. Only for the thread of this number.
    pub fn request(
        &self,
        thread: usize,
        procedure: Procedure,
        elapsed: Duration,
        failure: Option<u32>,
    ) {
        let Some(thread) = self.threads.get(thread) else {
            return;
        };
        let counts = &thread.procedures[procedure.number() as usize];
        let nanos = elapsed.as_nanos() as u64;
        counts.latency[bucket(nanos)].add(1);
        counts.latency_sum_ns.add(nanos);
        let error = failure.and_then(ErrorStatus::from_u32);
        if let Some(index) = error.and_then(|error| ErrorStatus::ALL.binary_search(&error).ok()) {
            thread.errors[index].add(1);
        }
    }

    /// Only for the thread of this number.
    pub fn read(&self, thread: usize, len_bytes: usize) {
        if let Some(thread) = self.threads.get(thread) {
            thread.read_bytes.add(len_bytes as u64);
        }
    }

    /// Only for the thread of this number.
    pub fn written(&self, thread: usize, len_bytes: usize) {
        if let Some(thread) = self.threads.get(thread) {
            thread.written_bytes.add(len_bytes as u64);
        }
    }

    /// Requests answered so far.
    pub fn request_count(&self) -> u64 {
        let threads = self.threads.iter();
        let procedures = threads.flat_map(|thread| &thread.procedures);
        let counts = procedures.flat_map(|counts| &counts.latency);
        counts.fold(0, |sum, count| sum.wrapping_add(count.get()))
    }

    fn sum(&self, count: impl Fn(&ThreadCounts) -> &Count) -> u64 {
        let counts = self.threads.iter().map(|thread| count(thread).get());
        counts.fold(0, u64::wrapping_add)
    }
}

/// The first bucket whose upper bound is not below `nanos`.
pub fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    // The logarithm, rounded up.
    let log2 = u64::BITS - (micros - 1).leading_zeros();
    (log2.saturating_sub(BUCKET_FIRST_LOG2) as usize).min(BUCKET_COUNT)
}

/// The upper bound of a bucket.
pub fn bucket_seconds(at: usize) -> f64 {
    (1u64 << (BUCKET_FIRST_LOG2 as usize + at)) as f64 / 1e6
}

/// Shows [`ProcedureMetrics`] to Prometheus.
pub struct ProcedureCollector {
    metrics: Arc<ProcedureMetrics>,
    gauges: GaugeSource,
    descs: Vec<Desc>,
}

const REQUESTS: (&str, &str) = (
    "cairn_nfs_request_duration_seconds",
    "NFS requests by procedure: from the decoded request to its reply",
);
const ERRORS: (&str, &str) = (
    "cairn_nfs_errors_total",
    "NFS requests that failed, by status",
);

impl ProcedureCollector {
    pub fn new(metrics: Arc<ProcedureMetrics>, gauges: GaugeSource) -> Self {
        let labelled = |(name, help): (&str, &str), label: &str| desc(name, help, &[label]);
        let mut descs = vec![labelled(REQUESTS, "procedure"), labelled(ERRORS, "status")];
        let rows = Self::counters(&metrics).into_iter();
        let rows = rows.chain(Gauges::default().rows());
        descs.extend(rows.map(|row| row.desc()));
        Self {
            metrics,
            gauges,
            descs,
        }
    }

    fn counters(metrics: &ProcedureMetrics) -> Vec<Row> {
        vec![
            Row::new(
                "cairn_nfs_read_bytes_total",
                "Bytes that READ returned",
                metrics.sum(|thread| &thread.read_bytes),
            ),
            Row::new(
                "cairn_nfs_written_bytes_total",
                "Bytes that WRITE received",
                metrics.sum(|thread| &thread.written_bytes),
            ),
            Row::new(
                "cairn_nfs_duplicates_answered_total",
                "Retransmitted requests answered from memory",
                metrics.duplicates_answered.load(Ordering::Relaxed),
            ),
            Row::new(
                "cairn_nfs_locks_refused_total",
                "Lock requests refused, because locks are not supported",
                metrics.locks_refused.load(Ordering::Relaxed),
            ),
        ]
    }

    fn latencies(&self) -> MetricFamily {
        let metrics = Procedure::ALL.iter().map(|procedure| {
            let index = procedure.number() as usize;
            let mut cumulative = 0;
            let mut buckets = Vec::with_capacity(BUCKET_COUNT);
            for at in 0..=BUCKET_COUNT {
                cumulative += self
                    .metrics
                    .sum(|thread| &thread.procedures[index].latency[at]);
                if at < BUCKET_COUNT {
                    let mut bucket = Bucket::default();
                    bucket.set_upper_bound(bucket_seconds(at));
                    bucket.set_cumulative_count(cumulative);
                    buckets.push(bucket);
                }
            }
            let sum_ns = self
                .metrics
                .sum(|thread| &thread.procedures[index].latency_sum_ns);
            let mut histogram = Histogram::default();
            histogram.set_bucket(buckets);
            histogram.set_sample_count(cumulative);
            histogram.set_sample_sum(sum_ns as f64 / 1e9);
            let mut metric = labelled("procedure", procedure.name());
            metric.set_histogram(histogram);
            metric
        });
        let (name, help) = REQUESTS;
        family(name, help, MetricType::HISTOGRAM, metrics.collect())
    }

    fn errors(&self) -> MetricFamily {
        let counts = ErrorStatus::ALL.iter().enumerate().map(|(index, status)| {
            let count = self.metrics.sum(|thread| &thread.errors[index]);
            (status.name(), count)
        });
        let metrics = counts
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| {
                let mut metric = labelled("status", name);
                metric.set_counter(counter(count));
                metric
            })
            .collect();
        let (name, help) = ERRORS;
        family(name, help, MetricType::COUNTER, metrics)
    }
}

impl Collector for ProcedureCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = vec![self.latencies()];
        let errors = self.errors();
        if !errors.get_metric().is_empty() {
            families.push(errors);
        }
        let counters = Self::counters(&self.metrics).into_iter();
        families.extend(counters.map(Row::counter));
        let gauges = (self.gauges)().rows().into_iter();
        families.extend(gauges.map(Row::gauge));
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_buckets() {
        let cases: &[(u64, usize)] = &[
            (0, 0),
            (8_000, 0),
            (8_001, 1),
            (16_000, 1),
            (16_001, 2),
            (8_388_608_000, BUCKET_COUNT - 1),
            (8_388_608_001, BUCKET_COUNT),
            (u64::MAX, BUCKET_COUNT),
        ];
        for (nanos, want) in cases {
            assert_eq!(bucket(*nanos), *want, "{nanos} ns");
        }
    }

    #[test]
    fn everything_is_shown() {
        let metrics = Arc::new(ProcedureMetrics::new(2));
        let registry = prometheus::Registry::new();
        let gauges = Box::new(|| Gauges {
            mounts: 3,
            ..Gauges::default()
        });
        let collector = ProcedureCollector::new(Arc::clone(&metrics), gauges);
        registry.register(Box::new(collector)).unwrap();
        let micros = Duration::from_micros;
        metrics.request(
            0,
            Procedure::Lookup,
            micros(10),
            Some(ErrorStatus::NoEnt.number()),
        );
        metrics.request(1, Procedure::Lookup, micros(20), None);
        metrics.read(0, 100);
        metrics.read(1, 10);
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for line in [
            "cairn_nfs_request_duration_seconds_bucket{procedure=\"lookup\",le=\"0.000016\"} 1",
            "cairn_nfs_request_duration_seconds_count{procedure=\"lookup\"} 2",
            "cairn_nfs_errors_total{status=\"NFS3ERR_NOENT\"} 1",
            "cairn_nfs_read_bytes_total 110",
            "cairn_nfs_mounts 3",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
