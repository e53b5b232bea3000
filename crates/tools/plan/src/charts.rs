//! The numbers behind the charts of a report.
//!
//! Owns: which charts there are and their values. Must not know: how they are drawn.

use crate::catalog::Catalog;
use crate::credit::simulate;
use crate::design::{Design, Product, Shape};
use crate::evaluate::evaluate;
use crate::goal::Goal;
use crate::report::{Chart, ChartKind, Evaluation, Ranking, Series};
use crate::rules::{self, RuleId};
use crate::units::{Bytes, Rate};
use crate::whatif::{Change, apply};

/// Lines of the charts over capacity.
const SERIES_COUNT_MAX: usize = 6;
/// Nodes at most in the chart over nodes.
const CHART_NODES_MAX: u32 = 18;
/// Points of the charts over capacity and time.
const POINT_COUNT: usize = 60;

/// The charts of a ranking.
pub fn charts(catalog: &Catalog, goal: &Goal, ranking: &Ranking) -> Vec<Chart> {
    // What fits and can be had; planned designs only where they were asked for.
    let shown: Vec<&Evaluation> = ranking
        .fits
        .iter()
        .map(|fit| &fit.evaluation)
        .filter(|it| it.available || goal.include_planned)
        .collect();
    let mut charts = Vec::new();
    charts.extend(throughput_by_nodes(catalog, &shown));
    charts.extend(cost_by_capacity(catalog, goal, &shown));
    if let Some(credit) = shown.iter().find(|it| it.performance.credit.is_some()) {
        charts.extend(credit_over_time(credit));
    }
    if let Some(first) = shown.first() {
        charts.extend(sensitivity(catalog, first));
    }
    charts
}

/// A line needs two points side by side: what has fewer is not drawn.
fn is_line(y: &[Option<f64>]) -> bool {
    y.windows(2).any(|pair| pair.iter().all(Option::is_some))
}

/// The best cluster of the ranking with other numbers of nodes; `None`: no cluster is shown.
fn throughput_by_nodes(catalog: &Catalog, shown: &[&Evaluation]) -> Option<Chart> {
    let base = shown
        .iter()
        .map(|it| &it.design)
        .find(|design| matches!(design.shape, Shape::Cluster(_)))?;
    let of = &catalog.designs.cluster;
    let (least, most) = match base.product {
        Product::Vendor => (of.nodes_min, of.nodes_max),
        Product::Cairn => (3, CHART_NODES_MAX),
    };
    let mut x = Vec::new();
    let (mut read, mut write, mut cached) = (Vec::new(), Vec::new(), Vec::new());
    for nodes in least..=most {
        let Some(design) = with_nodes(base, nodes) else {
            continue;
        };
        if !crate::check::violations(catalog, &design).is_empty() {
            continue;
        }
        let Ok(it) = evaluate(catalog, &design) else {
            continue;
        };
        x.push(f64::from(nodes));
        // The figures of the table.
        read.push(Some(it.performance.uncached().sustained().mb_s()));
        write.push(Some(it.performance.seq_write.sustained().mb_s()));
        cached.push(
            it.performance
                .cached_read_mb_s
                .map(|rate| rate.value.mb_s()),
        );
    }
    let series: Vec<Series> = [("read", read), ("write", write), ("cached", cached)]
        .into_iter()
        .filter(|(_, y)| is_line(y))
        .map(|(name, y)| Series {
            name: name.to_owned(),
            y,
        })
        .collect();
    (!series.is_empty()).then(|| Chart {
        id: "throughput-by-nodes",
        title: "Throughput against nodes".to_owned(),
        words: format!("{} with other numbers of nodes, steady", base.name()),
        x_label: "nodes".to_owned(),
        y_label: "MB/s".to_owned(),
        kind: ChartKind::Line,
        x,
        x_names: Vec::new(),
        series,
        rules: vec![
            rules::EBS_INSTANCE,
            rules::PARITY_WRITE,
            rules::NETWORK_CLUSTER,
        ],
    })
}

fn with_nodes(base: &Design, nodes: u32) -> Option<Design> {
    let Shape::Cluster(it) = &base.shape else {
        return None;
    };
    let more = i32::try_from(nodes).ok()? - i32::try_from(it.nodes).ok()?;
    let mut design = apply(base, &[Change::Nodes(more)]).ok()?;
    // Three nodes cannot hold two of parity beside more than one of data; 1+2 is what follows.
    if let Shape::Cluster(it) = &mut design.shape {
        it.protection.parity = it.protection.parity.min(nodes.saturating_sub(1));
    }
    Some(design)
}

/// Cost of the cheapest design of each kind at other capacities: what each shown design would cost
/// scaled by whole steps of itself.
fn cost_by_capacity(catalog: &Catalog, goal: &Goal, shown: &[&Evaluation]) -> Option<Chart> {
    let most = goal.capacity_planned().tib() * 3.0;
    let x: Vec<f64> = (1..=POINT_COUNT)
        .map(|step| most * step as f64 / POINT_COUNT as f64)
        .collect();
    let mut series: Vec<Series> = Vec::new();
    for it in shown {
        let name = crate::text::short_name(&it.design);
        if series.len() == SERIES_COUNT_MAX || series.iter().any(|other| other.name == name) {
            continue;
        }
        let y: Vec<Option<f64>> = x
            .iter()
            .map(|tib| cost_at(catalog, goal, it, Bytes::from_tib(*tib)))
            .collect();
        if is_line(&y) {
            series.push(Series { name, y });
        }
    }
    (!series.is_empty()).then(|| Chart {
        id: "cost-by-capacity",
        title: "Cost against capacity".to_owned(),
        words:
            "each design grown by its own steps (volumes' size, nodes, systems) until it holds the \
                capacity; a line ends where its design does"
                .to_owned(),
        x_label: "usable TiB".to_owned(),
        y_label: "USD a month".to_owned(),
        kind: ChartKind::Line,
        x,
        x_names: Vec::new(),
        series,
        rules: vec![
            rules::COST_INSTANCE,
            rules::COST_VOLUME,
            rules::COST_SERVICE,
        ],
    })
}

/// At the goal's capacity, and as far as it goes, a design costs what the table says.
fn cost_at(catalog: &Catalog, goal: &Goal, it: &Evaluation, capacity: Bytes) -> Option<f64> {
    const SLACK: f64 = 1e-9;
    let (least, most) = (goal.capacity_planned(), it.capacity.usable_bytes.value);
    let of_table = capacity.get() >= least.get() * (1.0 - SLACK)
        && capacity.get() <= most.get() * (1.0 + SLACK);
    if of_table {
        return Some(it.cost.month_usd.0);
    }
    cost_of(catalog, it, capacity)
}

/// What a design costs when it is scaled to hold `capacity`; `None` where it cannot be.
fn cost_of(catalog: &Catalog, it: &Evaluation, capacity: Bytes) -> Option<f64> {
    let factor = capacity.get() / it.capacity.usable_bytes.value.get();
    let design = crate::whatif::scaled(catalog, &it.design, factor)?;
    if !crate::check::violations(catalog, &design).is_empty() {
        return None;
    }
    let scaled = evaluate(catalog, &design).ok()?;
    (scaled.capacity.usable_bytes.value.get() >= capacity.get() * 0.999)
        .then_some(scaled.cost.month_usd.0)
}

fn credit_over_time(it: &Evaluation) -> Option<Chart> {
    let credit = it.performance.credit.as_ref()?;
    let total_s = (credit.burst_s * 2.0).min(7.0 * 86_400.0);
    let step_s = total_s / POINT_COUNT as f64;
    let samples = simulate(credit, |_| credit.burst_mb_s, step_s, POINT_COUNT);
    let flat = |rate: Rate| vec![Some(rate.mb_s()); samples.len()];
    let series = |name: &str, y| Series {
        name: name.to_owned(),
        y,
    };
    Some(Chart {
        id: "credit-over-time",
        title: "Burst and baseline over time".to_owned(),
        words: format!(
            "{}: all it can do from a full bucket of {} ({})",
            it.name, credit.bucket_bytes, credit.name
        ),
        x_label: "hours".to_owned(),
        y_label: "MB/s".to_owned(),
        kind: ChartKind::Line,
        x: samples.iter().map(|it| it.time_s / 3600.0).collect(),
        x_names: Vec::new(),
        series: vec![
            series(
                "delivered",
                samples.iter().map(|it| Some(it.rate.mb_s())).collect(),
            ),
            series("burst", flat(credit.burst_mb_s)),
            series("baseline", flat(credit.baseline_mb_s)),
        ],
        rules: credit.rules.clone(),
    })
}

/// What single changes of the best design do to cost, read and write, in percent.
fn sensitivity(catalog: &Catalog, it: &Evaluation) -> Option<Chart> {
    let changes: Vec<(String, Design)> = crate::whatif::neighbours(catalog, &it.design);
    let mut names = Vec::new();
    let (mut cost, mut read, mut write) = (Vec::new(), Vec::new(), Vec::new());
    let percent = |before: f64, after: f64| {
        Some(((after / before.max(f64::MIN_POSITIVE) - 1.0) * 1000.0).round() / 10.0)
    };
    for (name, design) in changes {
        // What cannot be had is no change to consider.
        if !crate::check::violations(catalog, &design).is_empty() {
            continue;
        }
        let Ok(after) = evaluate(catalog, &design) else {
            continue;
        };
        names.push(name);
        cost.push(percent(it.cost.month_usd.0, after.cost.month_usd.0));
        let rate = |of: &Evaluation| of.performance.uncached().sustained().mb_s();
        read.push(percent(rate(it), rate(&after)));
        let rate = |of: &Evaluation| of.performance.seq_write.sustained().mb_s();
        write.push(percent(rate(it), rate(&after)));
    }
    let series = |name: &str, y| Series {
        name: name.to_owned(),
        y,
    };
    let rules: Vec<RuleId> = it.performance.seq_write.bottleneck.rules.clone();
    (!names.is_empty()).then(|| Chart {
        id: "sensitivity",
        title: "What one change does".to_owned(),
        words: format!("{}: change of cost and steady rates in percent", it.name),
        x_label: "change".to_owned(),
        y_label: "percent".to_owned(),
        kind: ChartKind::Bars,
        x: (0..names.len()).map(|index| index as f64).collect(),
        x_names: names,
        series: vec![
            series("cost", cost),
            series("sequential read", read),
            series("sequential write", write),
        ],
        rules,
    })
}
