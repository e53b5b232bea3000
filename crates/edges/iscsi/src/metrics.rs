//! What Prometheus gets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use crate::portal::PortalCore;
use crate::unit::Durations;

/// All numbers of the iSCSI server, as they are when asked for.
pub struct IscsiCollector {
    shared: Arc<PortalCore>,
    descriptions: Vec<Desc>,
}

const FAMILIES: &[(&str, &str, MetricType)] = &[
    (
        "cairn_iscsi_connections",
        "Connections of initiators",
        MetricType::GAUGE,
    ),
    (
        "cairn_iscsi_connections_max",
        "Limit of connections",
        MetricType::GAUGE,
    ),
    (
        "cairn_iscsi_connections_accepted_total",
        "Connections accepted",
        MetricType::COUNTER,
    ),
    (
        "cairn_iscsi_connections_refused_total",
        "Connections over the limits",
        MetricType::COUNTER,
    ),
    (
        "cairn_iscsi_connections_broken_total",
        "Connections closed because of invalid requests",
        MetricType::COUNTER,
    ),
    (
        "cairn_iscsi_logins_refused_total",
        "Logins refused",
        MetricType::COUNTER,
    ),
    (
        "cairn_iscsi_held_bytes",
        "Bytes held for commands under way",
        MetricType::GAUGE,
    ),
    (
        "cairn_iscsi_held_bytes_max",
        "Limit of bytes held for commands",
        MetricType::GAUGE,
    ),
    (
        "cairn_iscsi_unsent_bytes",
        "Bytes of answers that initiators have not received yet",
        MetricType::GAUGE,
    ),
    (
        "cairn_iscsi_unsent_bytes_max",
        "Limit of bytes of answers that initiators have not received yet",
        MetricType::GAUGE,
    ),
    ("cairn_iscsi_sessions", "Sessions", MetricType::GAUGE),
    (
        "cairn_iscsi_connections_passed",
        "Connections forwarded to the owners of volumes",
        MetricType::GAUGE,
    ),
];
const OF_LUN: &[(&str, &str, MetricType)] = &[
    (
        "cairn_lun_commands_total",
        "Commands of a LUN by kind",
        MetricType::COUNTER,
    ),
    (
        "cairn_lun_bytes_total",
        "Bytes read from and written to a LUN",
        MetricType::COUNTER,
    ),
    (
        "cairn_lun_errors_total",
        "Commands that failed with a medium or server error",
        MetricType::COUNTER,
    ),
    (
        "cairn_lun_tasks",
        "Commands of a LUN under way",
        MetricType::GAUGE,
    ),
    (
        "cairn_lun_command_duration_seconds",
        "Latency of a LUN's commands, from complete data to answer",
        MetricType::HISTOGRAM,
    ),
];

impl IscsiCollector {
    pub fn new(shared: Arc<PortalCore>) -> prometheus::Result<Self> {
        let mut descriptions = Vec::new();
        for (name, help, _) in FAMILIES {
            descriptions.push(Desc::new(
                (*name).to_owned(),
                (*help).to_owned(),
                Vec::new(),
                HashMap::new(),
            )?);
        }
        for (name, help, _) in OF_LUN {
            let labels = match *name {
                "cairn_lun_commands_total"
                | "cairn_lun_bytes_total"
                | "cairn_lun_command_duration_seconds" => {
                    vec!["volume", "lun", "kind"]
                }
                _ => vec!["volume", "lun"],
            };
            let labels = labels.into_iter().map(str::to_owned).collect();
            descriptions.push(Desc::new(
                (*name).to_owned(),
                (*help).to_owned(),
                labels,
                HashMap::new(),
            )?);
        }
        Ok(Self {
            shared,
            descriptions,
        })
    }
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let mut metric = Metric::default();
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    metric.set_label(labels.iter().map(pair).collect());
    metric
}

fn metric(kind: MetricType, value: u64, labels: &[(&str, &str)]) -> Metric {
    let mut metric = labelled(labels);
    match kind {
        MetricType::COUNTER => {
            let mut counter = Counter::default();
            counter.set_value(value as f64);
            metric.set_counter(counter);
        }
        _ => {
            let mut gauge = Gauge::default();
            gauge.set_value(value as f64);
            metric.set_gauge(gauge);
        }
    }
    metric
}

fn histogram(durations: &Durations, labels: &[(&str, &str)]) -> Metric {
    let (bounds, total, seconds) = durations.cumulative();
    let bucket = |(bound, count): (f64, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(bounds.into_iter().map(bucket).collect());
    histogram.set_sample_count(total);
    histogram.set_sample_sum(seconds);
    let mut of = labelled(labels);
    of.set_histogram(histogram);
    of
}

fn family((name, help, kind): &(&str, &str, MetricType), metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name((*name).to_owned());
    family.set_help((*help).to_owned());
    family.set_field_type(*kind);
    family.set_metric(metrics);
    family
}

impl Collector for IscsiCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let shared = &self.shared;
        let values = [
            shared.connection_count() as u64,
            shared.settings.connection_count_max as u64,
            shared.accepted_count.load(Ordering::Relaxed),
            shared.turned_away_count.load(Ordering::Relaxed),
            shared.broken_count.load(Ordering::Relaxed),
            shared.refused_count.load(Ordering::Relaxed),
            shared.held_bytes.load(Ordering::Relaxed) as u64,
            shared.settings.held_bytes_max as u64,
            shared.unsent_bytes.load(Ordering::Relaxed) as u64,
            shared.settings.unsent_bytes_max as u64,
            shared.targets.sessions().len() as u64,
            shared.passed_count.load(Ordering::Relaxed) as u64,
        ];
        let simple = FAMILIES.iter().zip(values);
        let mut families: Vec<MetricFamily> = simple
            .map(|(of, value)| family(of, vec![metric(of.2, value, &[])]))
            .collect();
        let mut of_luns: [Vec<Metric>; 5] = Default::default();
        for target in shared.targets.all() {
            let volume = target.san.fs().name().to_owned();
            for unit in target.units() {
                let (lun, counters) = (unit.lun(), &unit.counters);
                let labels = [("lun", lun.name.as_str()), ("volume", volume.as_str())];
                let [commands, bytes, errors, tasks, durations] = &mut of_luns;
                let with = |kind| [("kind", kind), labels[0], labels[1]];
                let count =
                    |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
                for (kind, counter) in [
                    ("read", &counters.reads),
                    ("write", &counters.writes),
                    ("other", &counters.other),
                ] {
                    commands.push(metric(MetricType::COUNTER, count(counter), &with(kind)));
                }
                for (kind, counter) in [
                    ("read", &counters.read_bytes),
                    ("write", &counters.written_bytes),
                ] {
                    bytes.push(metric(MetricType::COUNTER, count(counter), &with(kind)));
                }
                for (kind, took) in [
                    ("read", &counters.read_durations),
                    ("write", &counters.write_durations),
                ] {
                    durations.push(histogram(took, &with(kind)));
                }
                errors.push(metric(
                    MetricType::COUNTER,
                    count(&counters.errors),
                    &labels,
                ));
                tasks.push(metric(MetricType::GAUGE, unit.task_count() as u64, &labels));
            }
        }
        for (of, metrics) in OF_LUN.iter().zip(of_luns) {
            if !metrics.is_empty() {
                families.push(family(of, metrics));
            }
        }
        families
    }
}
