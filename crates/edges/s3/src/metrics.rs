//! Counters of S3, and their view in Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};

use crate::server::ServerCore;

#[derive(Default)]
pub struct Counters {
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Counters {
    pub fn received(&self, len_bytes: usize) {
        self.received_bytes
            .fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of objects, in both directions.
    pub fn moved_bytes(&self) -> u64 {
        let received = self.received_bytes.load(Ordering::Relaxed);
        received.wrapping_add(self.sent_bytes.load(Ordering::Relaxed))
    }

    pub fn sent(&self, len_bytes: usize) {
        self.sent_bytes
            .fetch_add(len_bytes as u64, Ordering::Relaxed);
    }
}

/// Requests by method and the first digit of their status.
pub const METHODS: [&str; 6] = ["GET", "PUT", "POST", "DELETE", "HEAD", "other"];
pub type Requests = [[AtomicU64; 5]; METHODS.len()];

pub struct S3Collector {
    shared: Arc<ServerCore>,
    requests: IntCounterVec,
    bytes: IntCounterVec,
    connections: IntGauge,
    turned_away: IntCounter,
    passed: IntCounter,
}

impl S3Collector {
    pub fn new(shared: Arc<ServerCore>) -> Result<Self, prometheus::Error> {
        let requests = Opts::new(
            "cairn_s3_requests_total",
            "S3 requests by method and class of the status",
        );
        let bytes = Opts::new(
            "cairn_s3_bytes_total",
            "Bytes of objects received and sent over S3",
        );
        Ok(Self {
            shared,
            requests: IntCounterVec::new(requests, &["method", "status"])?,
            bytes: IntCounterVec::new(bytes, &["direction"])?,
            connections: IntGauge::new("cairn_s3_connections", "Open S3 connections")?,
            turned_away: IntCounter::new(
                "cairn_s3_connections_refused_total",
                "S3 connections closed at once because there were too many",
            )?,
            passed: IntCounter::new(
                "cairn_s3_passed_requests_total",
                "S3 requests forwarded to the volume's owner",
            )?,
        })
    }
}

fn set(counter: &IntCounter, value: u64) {
    counter.reset();
    counter.inc_by(value);
}

impl Collector for S3Collector {
    fn desc(&self) -> Vec<&Desc> {
        let all = [
            self.requests.desc(),
            self.bytes.desc(),
            self.connections.desc(),
            self.turned_away.desc(),
            self.passed.desc(),
        ];
        all.concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (method, classes) in METHODS.iter().zip(&self.shared.requests) {
            for (class, count) in (1..).zip(classes) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let status = format!("{class}xx");
                    set(
                        &self.requests.with_label_values(&[method, status.as_str()]),
                        count,
                    );
                }
            }
        }
        let counters = &self.shared.metrics;
        let received = counters.received_bytes.load(Ordering::Relaxed);
        let sent = counters.sent_bytes.load(Ordering::Relaxed);
        set(&self.bytes.with_label_values(&["received"]), received);
        set(&self.bytes.with_label_values(&["sent"]), sent);
        let count = self.shared.crowd.count();
        self.connections
            .set(i64::try_from(count).unwrap_or(i64::MAX));
        set(
            &self.turned_away,
            self.shared.turned_away.load(Ordering::Relaxed),
        );
        set(&self.passed, self.shared.passed.load(Ordering::Relaxed));
        [
            self.requests.collect(),
            self.bytes.collect(),
            self.connections.collect(),
            self.turned_away.collect(),
            self.passed.collect(),
        ]
        .concat()
    }
}
