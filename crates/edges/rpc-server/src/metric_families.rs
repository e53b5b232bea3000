//! Metrics in the form in which Prometheus collects them.
//!
//! Owns: making descriptions and families from names and values.
//! Must not know: what is counted.

use std::collections::HashMap;

use prometheus::core::Desc;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// A value with the name and the help of its metric.
pub struct Row {
    pub name: String,
    pub help: &'static str,
    pub value: u64,
}

impl Row {
    pub fn new(name: impl Into<String>, help: &'static str, value: u64) -> Self {
        Self {
            name: name.into(),
            help,
            value,
        }
    }

    pub fn desc(&self) -> Desc {
        desc(&self.name, self.help, &[])
    }

    pub fn counter(self) -> MetricFamily {
        let mut metric = Metric::default();
        metric.set_counter(counter(self.value));
        family(&self.name, self.help, MetricType::COUNTER, vec![metric])
    }

    pub fn gauge(self) -> MetricFamily {
        let mut gauge = Gauge::default();
        gauge.set_value(self.value as f64);
        let mut metric = Metric::default();
        metric.set_gauge(gauge);
        family(&self.name, self.help, MetricType::GAUGE, vec![metric])
    }
}

/// Describes a metric. The names are ours, so a wrong one is a bug.
pub fn desc(name: &str, help: &str, labels: &[&str]) -> Desc {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
        .expect("the names of metrics are valid")
}

pub fn labelled(name: &str, value: &str) -> Metric {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    Metric::from_label(vec![label])
}

pub fn counter(value: u64) -> Counter {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    counter
}

pub fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}
