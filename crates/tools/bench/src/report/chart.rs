//! The points of charts.
//!
//! Owns: making few points of many, and the JSON that `page.js` draws.
//! Must not know: HTML, the chart library.

use serde::Serialize;

use super::table::{RowKind, Table, numbers};
use super::text;
use super::view::{Sweep, Topic, View, amount, rate};
use crate::result::{Latency, Sample};

/// Points of one line. A screen shows no more, and an hour of samples stays a small page.
pub(super) const POINT_COUNT_MAX: usize = 600;
/// Rows of the table beside a chart over time.
const TIME_ROW_COUNT_MAX: usize = 40;
/// Up to where percentiles are drawn: of so many requests one is slower.
const REQUESTS_DRAWN_MAX: f64 = 1e7;

/// One chart; `page.js` has the counterpart.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Chart {
    pub kind: ChartKind,
    pub unit: String,
    pub lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ChartKind {
    /// x: seconds; y: rate in the unit.
    Time,
    /// x: of so many requests one is slower; y: microseconds. Both logarithmic.
    Latency,
    /// x: requests in flight, logarithmic; y: rate in the unit.
    Depth,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Line {
    pub label: String,
    /// Rising; as many as `y`.
    pub x: Vec<f64>,
    pub y: Vec<f64>,
}

impl Chart {
    /// The rate over time of the phases of a topic.
    pub fn time(view: &View<'_>, topic: &Topic<'_>) -> Option<Self> {
        let lines = topic.entries.iter().filter_map(|entry| {
            let samples = fewer(&entry.phase?.samples, POINT_COUNT_MAX);
            let points = samples.iter().filter_map(|sample| {
                let rate = amount(sample.operations, sample.bytes, &topic.unit)? / sample.seconds;
                Some((sample.at_seconds + sample.seconds / 2.0, rate))
            });
            Line::new(view.labels.get(entry.result)?, points)
        });
        Self::new(ChartKind::Time, &topic.unit, lines.collect())
    }

    /// The latencies of the phases of a topic.
    pub fn latency(view: &View<'_>, topic: &Topic<'_>) -> Option<Self> {
        let lines = topic.entries.iter().filter_map(|entry| {
            let latency = entry.phase?.latency.as_ref()?;
            Line::new(
                view.labels.get(entry.result)?,
                percentile_points(latency).into_iter(),
            )
        });
        Self::new(ChartKind::Latency, "µs", lines.collect())
    }

    /// The rate by depth.
    pub fn depth(view: &View<'_>, sweeps: &[Sweep<'_>], unit: &str) -> Option<Self> {
        let lines = sweeps.iter().filter_map(|sweep| {
            let points = sweep.points.iter();
            let points = points.filter_map(|(depth, phase)| {
                Some((f64::from((*depth).max(1)), rate(phase, unit)?))
            });
            Line::new(view.labels.get(sweep.result)?, points)
        });
        Self::new(ChartKind::Depth, unit, lines.collect())
    }

    pub fn new(kind: ChartKind, unit: &str, lines: Vec<Line>) -> Option<Self> {
        (!lines.is_empty()).then(|| Self {
            kind,
            unit: unit.to_string(),
            lines,
        })
    }
}

impl Line {
    /// As many of the points as a screen shows; `None` for what is no line.
    pub fn few(label: &str, points: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let points: Vec<_> = points.collect();
        let step = points.len().div_ceil(POINT_COUNT_MAX).max(1);
        Self::new(label, points.into_iter().step_by(step))
    }

    /// `None` for what is no line: fewer than two points.
    fn new(label: &str, points: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for (point_x, point_y) in points.filter(|point| point.0.is_finite() && point.1.is_finite())
        {
            // The library wants x to rise; samples of several clients may not.
            if x.last().is_none_or(|last| *last < point_x) {
                x.push(point_x);
                y.push(point_y);
            }
        }
        (x.len() > 1).then(|| Self {
            label: label.to_string(),
            x,
            y,
        })
    }
}

/// The table beside a chart over time: the same lines in a few rows.
pub(super) fn time_table(view: &View<'_>, topic: &Topic<'_>) -> Table {
    let mut table = Table::new([
        numbers("result"),
        numbers("from"),
        numbers("to"),
        numbers(&topic.unit),
    ]);
    if let Some(column) = table.columns.first_mut() {
        column.is_number = false;
    }
    let rows_max = (TIME_ROW_COUNT_MAX / topic.entries.len().max(1)).max(4);
    for entry in &topic.entries {
        let Some(phase) = entry.phase else { continue };
        for sample in fewer(&phase.samples, rows_max) {
            let Some(amount) = amount(sample.operations, sample.bytes, &topic.unit) else {
                continue;
            };
            table.push(
                RowKind::Plain,
                [
                    view.labels.get(entry.result).cloned().unwrap_or_default(),
                    text::seconds(sample.at_seconds),
                    text::seconds(sample.at_seconds + sample.seconds),
                    text::number(amount / sample.seconds),
                ],
            );
        }
    }
    table
}

/// The samples, merged into at most `count_max`: neighbours are added up. A last one that is much
/// shorter than the others goes into the one before, because its rate says little.
pub(super) fn fewer(samples: &[Sample], count_max: usize) -> Vec<Sample> {
    let group = samples.len().div_ceil(count_max.max(1)).max(1);
    let mut few: Vec<Sample> = samples.chunks(group).filter_map(sum).collect();
    if let [.., before, last] = few.as_slice()
        && last.seconds * 2.0 < before.seconds
        && let Some(both) = sum(&[*before, *last])
    {
        few.truncate(few.len() - 2);
        few.push(both);
    }
    few.retain(|sample| sample.seconds > 0.0);
    few
}

fn sum(samples: &[Sample]) -> Option<Sample> {
    let first = samples.first()?;
    Some(Sample {
        at_seconds: first.at_seconds,
        seconds: samples.iter().map(|sample| sample.seconds).sum(),
        operations: samples
            .iter()
            .fold(0, |sum, sample| sum.saturating_add(sample.operations)),
        bytes: samples
            .iter()
            .fold(0, |sum, sample| sum.saturating_add(sample.bytes)),
    })
}

/// Percentiles as (of so many requests one is slower, microseconds).
fn percentile_points(latency: &Latency) -> Vec<(f64, f64)> {
    let slower = |percentile: f64| 100.0 / (100.0 - percentile);
    let pairs = latency.percentiles_us.iter();
    let points: Vec<(f64, f64)> = pairs
        .filter(|(percentile, value)| (0.0..100.0).contains(percentile) && *value > 0.0)
        .map(|(percentile, value)| (slower(*percentile), *value))
        .filter(|(slower, _)| *slower <= REQUESTS_DRAWN_MAX)
        .collect();
    let step = points.len().div_ceil(POINT_COUNT_MAX).max(1);
    points.into_iter().step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(at_seconds: f64, seconds: f64, operations: u64) -> Sample {
        Sample {
            at_seconds,
            seconds,
            operations,
            bytes: operations * 10,
        }
    }

    #[test]
    fn a_short_last_sample_goes_into_the_one_before() {
        let samples = [
            sample(0.0, 1.0, 5),
            sample(1.0, 1.0, 6),
            sample(2.0, 0.1, 9),
        ];
        let few = fewer(&samples, 10);
        assert_eq!(few.len(), 2);
        assert_eq!(few[1].operations, 15);
        assert!((few[1].seconds - 1.1).abs() < 1e-9);
        assert_eq!(fewer(&samples[..2], 10), samples[..2]);
        assert_eq!(fewer(&[sample(0.0, 0.0, 5)], 10), []);
    }

    #[test]
    fn percentiles_become_a_rising_line() {
        let latency = Latency {
            count: 10,
            min_us: 0.0,
            mean_us: 1.0,
            max_us: 9.0,
            percentiles_us: vec![
                (0.0, 0.0),
                (50.0, 1.0),
                (90.0, 2.0),
                (99.999_999_9, 8.0),
                (100.0, 9.0),
            ],
            histogram: None,
        };
        let points = percentile_points(&latency);
        assert_eq!(points.len(), 2);
        assert!((points[1].0 - 10.0).abs() < 1e-9, "{points:?}");
    }

    proptest! {
        #[test]
        fn fewer_samples_hold_the_same_work(
            operations in proptest::collection::vec(0u64..1_000_000, 0..2_000),
            count_max in 1usize..700,
        ) {
            let samples: Vec<Sample> = operations.iter().enumerate().map(|(at, count)| sample(at as f64, 1.0, *count)).collect();
            let few = fewer(&samples, count_max);
            prop_assert!(few.len() <= count_max);
            prop_assert_eq!(few.iter().map(|sample| sample.operations).sum::<u64>(), operations.iter().sum::<u64>());
            prop_assert!(few.is_sorted_by(|before, after| before.at_seconds < after.at_seconds));
        }
    }
}
