//! Counters of calls that are forwarded to the owners of volumes.
//!
//! Owns: what is counted, by volume, and the names under which Prometheus sees it.
//! Must not know: how calls are forwarded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_exports::Exports;
use cairn_rpc_server::metric_families::{counter, desc, family, labelled};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Gauge, Histogram, Metric, MetricFamily, MetricType};

use crate::procedure_metrics::{BUCKET_COUNT, bucket, bucket_seconds};

/// Times, in the buckets of all latencies.
#[derive(Default)]
struct Times {
    /// By bucket; the last has no upper bound.
    counts: [AtomicU64; BUCKET_COUNT + 1],
    sum_ns: AtomicU64,
}

impl Times {
    fn note(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    fn histogram(&self) -> Histogram {
        let mut cumulative = 0;
        let mut buckets = Vec::with_capacity(BUCKET_COUNT);
        for (at, count) in self.counts.iter().enumerate() {
            cumulative += count.load(Ordering::Relaxed);
            if at < BUCKET_COUNT {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bucket_seconds(at));
                bucket.set_cumulative_count(cumulative);
                buckets.push(bucket);
            }
        }
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(cumulative);
        histogram.set_sample_sum(self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9);
        histogram
    }
}

/// Counters of one volume's calls.
#[derive(Default)]
pub struct PassedCounts {
    answered: Times,
    held: Times,
    held_now: AtomicU64,
    unanswered: AtomicU64,
}

impl PassedCounts {
    /// A call was answered by the owner, so long after it was sent there.
    pub fn note_answered(&self, took: Duration) {
        self.answered.note(took);
    }

    /// A call was not answered in time: the client comes later, or sends it again.
    pub fn note_unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call that waits for an owner, for as long as this is there.
pub struct WaitingCall {
    counts: Arc<PassedCounts>,
    since: tokio::time::Instant,
    until: Option<tokio::time::Instant>,
}

impl WaitingCall {
    pub fn new(counts: &Arc<PassedCounts>, since: tokio::time::Instant) -> Self {
        counts.held_now.fetch_add(1, Ordering::Relaxed);
        Self {
            counts: Arc::clone(counts),
            since,
            until: None,
        }
    }

    /// It has waited until then.
    pub fn end_at(mut self, until: tokio::time::Instant) {
        self.until = Some(until);
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.counts.held_now.fetch_sub(1, Ordering::Relaxed);
        let until = self.until.unwrap_or_else(tokio::time::Instant::now);
        self.counts
            .held
            .note(until.saturating_duration_since(self.since));
    }
}

/// Of all volumes that calls were passed on for.
#[derive(Default)]
pub struct ForwardMetrics(Mutex<BTreeMap<VolumeId, Arc<PassedCounts>>>);

impl ForwardMetrics {
    pub fn of(&self, volume: VolumeId) -> Arc<PassedCounts> {
        Arc::clone(self.0.lock().entry(volume).or_default())
    }
}

const ANSWERED: (&str, &str) = (
    "cairn_nfs_forwarded_duration_seconds",
    "NFS calls forwarded to the volume's owner, by volume: from forwarding to reply",
);
const HELD: (&str, &str) = (
    "cairn_nfs_held_duration_seconds",
    "Waits of NFS calls for an owner of the volume, by volume",
);
const HELD_NOW: (&str, &str) = (
    "cairn_nfs_held_calls",
    "NFS calls that wait for an owner of the volume, by volume",
);
const UNANSWERED: (&str, &str) = (
    "cairn_nfs_forwarded_unanswered_total",
    "NFS calls without an owner's answer in time, by volume: clients were told to retry, or send the calls again",
);

/// Shows [`ForwardMetrics`] to Prometheus, of volumes that are exported still.
pub struct ForwardCollector {
    metrics: Arc<ForwardMetrics>,
    exports: Arc<Exports>,
    descs: Vec<Desc>,
}

impl ForwardCollector {
    pub fn new(metrics: Arc<ForwardMetrics>, exports: Arc<Exports>) -> Self {
        let all = [ANSWERED, HELD, HELD_NOW, UNANSWERED];
        Self {
            metrics,
            exports,
            descs: all.map(|(name, help)| desc(name, help, &["volume"])).into(),
        }
    }

    fn family(
        &self,
        (name, help): (&str, &str),
        kind: MetricType,
        volumes: &[(String, Arc<PassedCounts>)],
        set: impl Fn(&mut Metric, &PassedCounts),
    ) -> MetricFamily {
        let metrics = volumes.iter().map(|(volume, counts)| {
            let mut metric = labelled("volume", volume);
            set(&mut metric, counts);
            metric
        });
        family(name, help, kind, metrics.collect())
    }
}

impl Collector for ForwardCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let table = self.exports.current();
        let counted = self.metrics.0.lock().clone();
        let volumes: Vec<(String, Arc<PassedCounts>)> = table
            .exports()
            .iter()
            .filter_map(|export| {
                let counts = counted.get(&export.volume.id())?;
                Some((export.volume.name().to_owned(), Arc::clone(counts)))
            })
            .collect();
        if volumes.is_empty() {
            return Vec::new();
        }
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        vec![
            self.family(
                ANSWERED,
                MetricType::HISTOGRAM,
                &volumes,
                |metric, counts| {
                    metric.set_histogram(counts.answered.histogram());
                },
            ),
            self.family(HELD, MetricType::HISTOGRAM, &volumes, |metric, counts| {
                metric.set_histogram(counts.held.histogram());
            }),
            self.family(HELD_NOW, MetricType::GAUGE, &volumes, |metric, counts| {
                let mut gauge = Gauge::default();
                gauge.set_value(of(&counts.held_now) as f64);
                metric.set_gauge(gauge);
            }),
            self.family(
                UNANSWERED,
                MetricType::COUNTER,
                &volumes,
                |metric, counts| {
                    metric.set_counter(counter(of(&counts.unanswered)));
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn held_calls_are_counted_while_and_after_they_wait() {
        let metrics = ForwardMetrics::default();
        let counts = metrics.of(VolumeId(1));
        let held = WaitingCall::new(&counts, tokio::time::Instant::now());
        assert_eq!(counts.held_now.load(Ordering::Relaxed), 1);
        assert_eq!(counts.held.histogram().get_sample_count(), 0);
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(held);
        assert_eq!(counts.held_now.load(Ordering::Relaxed), 0);
        let histogram = counts.held.histogram();
        assert_eq!(histogram.get_sample_count(), 1);
        assert!((histogram.get_sample_sum() - 2.0).abs() < 1e-9);
        assert!(Arc::ptr_eq(&counts, &metrics.of(VolumeId(1))));
    }
}
