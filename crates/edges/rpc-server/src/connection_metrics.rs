//! Counters of connections and of calls that reach no program.
//!
//! Owns: what is counted, and the names under which Prometheus sees it.
//! Must not know: connections, programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::metric_families::Row;

/// A struct of values of one type, each with the end of the name and the help of its metric.
macro_rules! metrics {
    ($(#[$meta:meta])* pub struct $struct:ident of $type:ty {
        $($field:ident = $name:literal: $help:literal,)*
    }) => {
        $(#[$meta])*
        pub struct $struct {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl $struct {
            fn fields(&self) -> Vec<(&'static str, &'static str, &$type)> {
                vec![$(($name, $help, &self.$field),)*]
            }
        }
    };
}

metrics! {
    /// Rare events; counted where they are seen.
    #[derive(Default)]
    pub struct Events of AtomicU64 {
        connections_accepted = "connections_accepted_total":
            "Connections that were accepted",
        connections_refused = "connections_refused_total":
            "Connections over the limits",
        connections_broken = "connections_broken_total":
            "Connections closed because of what came in over them",
        connections_stalled = "connections_stalled_total":
            "Connections closed because half a request or unread replies made no progress",
        connections_ended = "connections_ended_total":
            "Connections closed because calls in them may be old: the lease ended, or the process stood still",
        requests_denied = "requests_denied_total":
            "Requests with credentials that are not accepted, or for volumes that the client may not use",
        requests_garbage = "requests_garbage_total":
            "Requests whose arguments could not be read",
        requests_unknown = "requests_unknown_total":
            "Requests for programs, versions or procedures that are not served",
        requests_other = "requests_other_total":
            "MOUNT, NLM, PORTMAP and rpcbind requests",
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
        connections = "connections": "Connections",
        connections_max = "connections_max": "Limit of connections",
        held_bytes = "held_bytes": "Payloads and replies in memory",
        held_bytes_max = "held_bytes_max": "Limit of payloads and replies in memory",
    }
}

/// The counters of one server.
#[derive(Default)]
pub struct ConnectionMetrics {
    pub events: Events,
}

type GaugeSource = Box<dyn Fn() -> Gauges + Send + Sync>;

/// Shows [`ConnectionMetrics`] to Prometheus.
pub struct ConnectionCollector {
    /// What all names begin with.
    prefix: String,
    metrics: Arc<ConnectionMetrics>,
    gauges: GaugeSource,
    descs: Vec<Desc>,
}

impl ConnectionCollector {
    /// The metrics of the server called `name`.
    pub fn new(name: &str, metrics: Arc<ConnectionMetrics>, gauges: GaugeSource) -> Self {
        let mut collector = Self {
            prefix: format!("cairn_{name}_"),
            metrics,
            gauges,
            descs: Vec::new(),
        };
        let rows = collector.counters().into_iter();
        let rows = rows.chain(collector.gauges(&Gauges::default()));
        collector.descs = rows.map(|row| row.desc()).collect();
        collector
    }

    fn counters(&self) -> Vec<Row> {
        let fields = self.metrics.events.fields().into_iter();
        let rows = fields.map(|(name, help, event)| {
            let name = format!("{}{name}", self.prefix);
            Row::new(name, help, event.load(Ordering::Relaxed))
        });
        rows.collect()
    }

    fn gauges(&self, gauges: &Gauges) -> Vec<Row> {
        let fields = gauges.fields().into_iter();
        let rows = fields
            .map(|(name, help, value)| Row::new(format!("{}{name}", self.prefix), help, *value));
        rows.collect()
    }
}

impl Collector for ConnectionCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counters = self.counters().into_iter().map(Row::counter);
        let gauges = self.gauges(&(self.gauges)()).into_iter().map(Row::gauge);
        counters.chain(gauges).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_shown() {
        let metrics = Arc::new(ConnectionMetrics::default());
        let registry = prometheus::Registry::new();
        let gauges = Box::new(|| Gauges {
            connections: 3,
            ..Gauges::default()
        });
        let collector = ConnectionCollector::new("test", Arc::clone(&metrics), gauges);
        registry.register(Box::new(collector)).unwrap();
        Events::count(&metrics.events.requests_denied);
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for line in [
            "cairn_test_requests_denied_total 1",
            "cairn_test_requests_other_total 0",
            "cairn_test_connections 3",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
