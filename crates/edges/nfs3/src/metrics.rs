//! Counters of the server.
//!
//! Owns: what is counted, and the names under which Prometheus sees it.
//! Must not know: connections, requests.
//!
//! Each thread counts in memory of its own with plain loads and stores: a request pays a few
//! nanoseconds, no lock and no cache line that another core writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_codec_nfs::v3::{ErrorStatus, Procedure};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Latency buckets end at 8 us, 16 us, and so on up to 2^BUCKET_LAST us, about 8 s.
const BUCKET_FIRST_LOG2: u32 = 3;
const BUCKET_COUNT: usize = 21;
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

/// A struct of values of one type, each with the name and the help of its metric.
macro_rules! metrics {
    ($(#[$meta:meta])* pub struct $struct:ident of $type:ty {
        $($field:ident = $name:literal: $help:literal,)*
    }) => {
        $(#[$meta])*
        pub struct $struct {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl $struct {
            fn rows(&self) -> Vec<(&'static str, &'static str, &$type)> {
                vec![$(($name, $help, &self.$field),)*]
            }
        }
    };
}

metrics! {
    /// Things that happen rarely; counted by whoever sees them.
    #[derive(Default)]
    pub struct Events of AtomicU64 {
        connections_accepted = "cairn_nfs_connections_accepted_total":
            "Connections that were let in",
        connections_refused = "cairn_nfs_connections_refused_total":
            "Connections over the limits",
        connections_broken = "cairn_nfs_connections_broken_total":
            "Connections closed because of what came in over them",
        connections_stalled = "cairn_nfs_connections_stalled_total":
            "Connections closed because half a request or unread replies made no progress",
        requests_denied = "cairn_nfs_requests_denied_total":
            "Requests with credentials that are not taken, or for volumes not exported to them",
        requests_garbage = "cairn_nfs_requests_garbage_total":
            "Requests whose arguments could not be read",
        requests_unknown = "cairn_nfs_requests_unknown_total":
            "Requests for programs, versions or procedures that are not served",
        requests_other = "cairn_nfs_requests_other_total":
            "MOUNT, NLM, PORTMAP and rpcbind requests",
        duplicates_answered = "cairn_nfs_duplicates_answered_total":
            "Requests sent again and answered from memory",
        locks_refused = "cairn_nfs_locks_refused_total":
            "Locks that clients asked for and did not get: they are not supported",
    }
}

impl Events {
    pub fn count(event: &AtomicU64) {
        event.fetch_add(1, Ordering::Relaxed);
    }
}

metrics! {
    /// Values that are asked for when metrics are read.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Gauges of u64 {
        connections = "cairn_nfs_connections": "Connections",
        connections_max = "cairn_nfs_connections_max": "Limit of connections",
        held_bytes = "cairn_nfs_held_bytes": "Payloads and replies in memory",
        held_bytes_max = "cairn_nfs_held_bytes_max": "Limit of payloads and replies in memory",
        duplicates = "cairn_nfs_duplicates": "Replies kept for requests sent again",
        duplicates_max = "cairn_nfs_duplicates_max": "Limit of replies kept",
        duplicate_bytes = "cairn_nfs_duplicate_bytes": "Size of the replies kept",
        mounts = "cairn_nfs_mounts": "Mounts remembered",
        mounts_max = "cairn_nfs_mounts_max": "Limit of mounts remembered",
    }
}

type GaugeSource = Box<dyn Fn() -> Gauges + Send + Sync>;

pub struct Metrics {
    threads: Vec<ThreadCounts>,
    pub events: Events,
}

impl Metrics {
    pub fn new(thread_count: usize) -> Self {
        Self {
            threads: (0..thread_count).map(|_| ThreadCounts::default()).collect(),
            events: Events::default(),
        }
    }

    /// Counts a request that was answered. Only for the thread of this number.
    pub fn request(
        &self,
        thread: usize,
        procedure: Procedure,
        elapsed: Duration,
        error: Option<ErrorStatus>,
    ) {
        let Some(thread) = self.threads.get(thread) else {
            return;
        };
        let counts = &thread.procedures[procedure.number() as usize];
        let nanos = elapsed.as_nanos() as u64;
        counts.latency[bucket(nanos)].add(1);
        counts.latency_sum_ns.add(nanos);
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
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    // The logarithm, rounded up.
    let log2 = u64::BITS - (micros - 1).leading_zeros();
    (log2.saturating_sub(BUCKET_FIRST_LOG2) as usize).min(BUCKET_COUNT)
}

/// Shows [`Metrics`] to Prometheus.
pub struct MetricsCollector {
    metrics: Arc<Metrics>,
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

impl MetricsCollector {
    pub fn new(metrics: Arc<Metrics>, gauges: GaugeSource) -> Self {
        let desc = |(name, help): (&str, &str), labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
                .expect("the names of metrics are valid")
        };
        let mut descs = vec![desc(REQUESTS, &["procedure"]), desc(ERRORS, &["status"])];
        let no_gauges = Gauges::default();
        let counters = Self::counters(&metrics).into_iter();
        let gauge_rows = no_gauges.rows().into_iter();
        descs.extend(counters.map(|(name, help, _)| desc((name, help), &[])));
        descs.extend(gauge_rows.map(|(name, help, _)| desc((name, help), &[])));
        Self {
            metrics,
            gauges,
            descs,
        }
    }

    fn counters(metrics: &Metrics) -> Vec<(&'static str, &'static str, u64)> {
        let read = metrics.sum(|thread| &thread.read_bytes);
        let written = metrics.sum(|thread| &thread.written_bytes);
        let mut rows = vec![
            (
                "cairn_nfs_read_bytes_total",
                "Bytes that READ returned",
                read,
            ),
            (
                "cairn_nfs_written_bytes_total",
                "Bytes that WRITE took",
                written,
            ),
        ];
        let events = metrics.events.rows().into_iter();
        rows.extend(events.map(|(name, help, event)| (name, help, event.load(Ordering::Relaxed))));
        rows
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
                    let micros = 1u64 << (BUCKET_FIRST_LOG2 as usize + at);
                    bucket.set_upper_bound(micros as f64 / 1e6);
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
        family(REQUESTS, MetricType::HISTOGRAM, metrics.collect())
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
        family(ERRORS, MetricType::COUNTER, metrics)
    }
}

impl Collector for MetricsCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = vec![self.latencies()];
        let errors = self.errors();
        if !errors.get_metric().is_empty() {
            families.push(errors);
        }
        for (name, help, value) in Self::counters(&self.metrics) {
            let mut metric = Metric::default();
            metric.set_counter(counter(value));
            families.push(family((name, help), MetricType::COUNTER, vec![metric]));
        }
        for (name, help, value) in (self.gauges)().rows() {
            let mut gauge = prometheus::proto::Gauge::default();
            gauge.set_value(*value as f64);
            let mut metric = Metric::default();
            metric.set_gauge(gauge);
            families.push(family((name, help), MetricType::GAUGE, vec![metric]));
        }
        families
    }
}

fn labelled(name: &str, value: &str) -> Metric {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    Metric::from_label(vec![label])
}

fn counter(value: u64) -> prometheus::proto::Counter {
    let mut counter = prometheus::proto::Counter::default();
    counter.set_value(value as f64);
    counter
}

fn family((name, help): (&str, &str), kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
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
        let metrics = Arc::new(Metrics::new(2));
        let registry = prometheus::Registry::new();
        let gauges = Box::new(|| Gauges {
            connections: 3,
            ..Gauges::default()
        });
        let collector = MetricsCollector::new(Arc::clone(&metrics), gauges);
        registry.register(Box::new(collector)).unwrap();
        let micros = Duration::from_micros;
        metrics.request(0, Procedure::Lookup, micros(10), Some(ErrorStatus::NoEnt));
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
            "cairn_nfs_connections 3",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
