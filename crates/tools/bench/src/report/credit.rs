//! Bursts and read caches: what a server said of itself, as tables and charts.
//!
//! Owns: the tables beside the charts over time, the paper's figures in the proportions of a run.
//! Must not know: HTML, Markdown, the chart library.

use super::chart::{Chart, ChartKind, Line, POINT_COUNT_MAX, fewer};
use super::published::{PublishedBurst, published, source};
use super::table::{RowKind, Table, numbers, words};
use super::text;
use super::view::{View, rate};
use crate::result::{CreditCurve, RunResult, Sample};
use crate::suite::{burst, read_cache};

/// Curves that a page shows.
const CURVE_COUNT_MAX: usize = 32;
/// Rows of the table beside a chart.
const ROW_COUNT_MAX: usize = 40;

/// One curve of one result, with what is drawn of it.
pub(super) struct CurveFigures {
    pub title: String,
    pub figures: Table,
    pub rate: Option<Chart>,
    pub left: Option<Chart>,
    /// Both charts in a few rows.
    pub over_time: Table,
}

/// All curves of all results.
pub(super) fn curves(view: &View<'_>) -> Vec<CurveFigures> {
    let all = view.results.iter().zip(&view.labels);
    let all =
        all.flat_map(|(result, label)| result.credits.iter().map(move |it| (result, label, it)));
    all.take(CURVE_COUNT_MAX)
        .map(|(result, label, curve)| shown(result, label, curve))
        .collect()
}

fn shown(result: &RunResult, label: &str, curve: &CreditCurve) -> CurveFigures {
    let samples = burst::delivered(result, curve);
    let paper = published()
        .burst
        .iter()
        .find(|it| it.direction == curve.title);
    CurveFigures {
        title: format!(
            "{label}: {} at full speed, class {}, {}",
            curve.title, curve.class, curve.limit
        ),
        figures: figures(label, curve, &samples, paper),
        rate: rate_chart(curve, &samples, paper),
        left: left_chart(curve),
        over_time: over_time(curve, &samples),
    }
}

fn mb_s(bytes_per_second: u64) -> f64 {
    bytes_per_second as f64 / 1e6
}

fn unknown() -> String {
    text::UNKNOWN.to_owned()
}

/// What the class gives, what was measured, and what the paper has of its volume.
fn figures(
    label: &str,
    curve: &CreditCurve,
    samples: &[Sample],
    paper: Option<&PublishedBurst>,
) -> Table {
    let mut table = Table::new([
        words("Whose"),
        numbers("baseline, MB/s"),
        numbers("burst, MB/s"),
        numbers("burst / baseline"),
        numbers("first burst lasted"),
        numbers("most of a difference from the model"),
        words("Hardware, source"),
    ]);
    let mut push = |kind,
                    who: String,
                    baseline: Option<f64>,
                    burst: Option<f64>,
                    lasted: String,
                    off: String,
                    from: String| {
        let times = burst.zip(baseline.filter(|it| *it > 0.0));
        let shown = |value: Option<f64>| value.map_or_else(unknown, text::number);
        table.push(
            kind,
            [
                who,
                shown(baseline),
                shown(burst),
                shown(times.map(|(burst, baseline)| burst / baseline)),
                lasted,
                off,
                from,
            ],
        );
    };
    let found = burst::read_off(curve, samples);
    push(
        RowKind::Best,
        format!("{label}: measured"),
        found.baseline,
        found.burst,
        found
            .burst_seconds
            .map_or_else(|| "longer than it was measured".to_owned(), text::seconds),
        curve
            .deviation_percent
            .map_or_else(unknown, |percent| format!("{}%", text::number(percent))),
        "this run".to_owned(),
    );
    push(
        RowKind::Plain,
        format!("class {}, by the planner's model", curve.class),
        Some(mb_s(curve.baseline_bytes_per_second)),
        Some(mb_s(curve.burst_bytes_per_second)),
        modelled_end(curve).map_or_else(|| "longer than it was measured".to_owned(), text::seconds),
        unknown(),
        format!("a full credit is {}", text::bytes(curve.credit_max_bytes)),
    );
    if let Some(paper) = paper {
        let from = format!("{}; {}", paper.hardware, source(&paper.paper));
        for (what, baseline, burst) in [
            (
                "expected",
                paper.expected_baseline_mb_s,
                paper.expected_burst_mb_s,
            ),
            (
                "measured",
                paper.measured_baseline_mb_s,
                paper.measured_burst_mb_s,
            ),
        ] {
            push(
                RowKind::Plain,
                format!("the paper: {what}"),
                Some(baseline),
                Some(burst),
                unknown(),
                unknown(),
                from.clone(),
            );
        }
    }
    table
}

/// When the model's first burst ends.
fn modelled_end(curve: &CreditCurve) -> Option<f64> {
    let first = curve.stretches.first()?;
    let until = first.at_seconds + first.seconds;
    let mut model = curve.model.iter().filter(|it| it.at_seconds < until);
    model
        .find(|it| !is_burst(curve, it.bytes_per_second))
        .map(|it| it.at_seconds)
}

fn is_burst(curve: &CreditCurve, bytes_per_second: f64) -> bool {
    let sum = curve.baseline_bytes_per_second as f64 + curve.burst_bytes_per_second as f64;
    bytes_per_second >= sum / 2.0
}

/// The paper's volume with the baseline of this one: its burst while the model has one, its baseline after that.
fn in_proportion(
    curve: &CreditCurve,
    paper: &PublishedBurst,
    burst: f64,
    baseline: f64,
) -> Vec<(f64, f64)> {
    let scale = mb_s(curve.baseline_bytes_per_second) / paper.expected_baseline_mb_s;
    let idle = curve.baseline_bytes_per_second as f64 / 2.0;
    let points = curve.model.iter().map(|it| {
        let value = match it.bytes_per_second {
            rate if is_burst(curve, rate) => burst,
            rate if rate < idle => 0.0,
            _ => baseline,
        };
        (it.at_seconds, value * scale)
    });
    points.collect()
}

fn rate_chart(
    curve: &CreditCurve,
    samples: &[Sample],
    paper: Option<&PublishedBurst>,
) -> Option<Chart> {
    // With room for the ends of pauses, which must not be left out.
    let samples = fewer(samples, POINT_COUNT_MAX / 2);
    let measured = samples.iter().filter(|it| it.seconds > 0.0).map(|it| {
        (
            it.at_seconds + it.seconds / 2.0,
            it.bytes as f64 / 1e6 / it.seconds,
        )
    });
    // Nothing was asked for in a pause.
    let pauses = curve.stretches.windows(2).filter_map(|two| match two {
        [before, after] => Some([
            (before.at_seconds + before.seconds, 0.0),
            (after.at_seconds, 0.0),
        ]),
        _ => None,
    });
    let mut measured: Vec<(f64, f64)> = measured.chain(pauses.flatten()).collect();
    measured.sort_by(|one, other| one.0.total_cmp(&other.0));
    let model = curve
        .model
        .iter()
        .map(|it| (it.at_seconds, it.bytes_per_second / 1e6));
    let mut lines = vec![
        Line::few("measured", measured.into_iter()),
        Line::few("the planner's model", model),
    ];
    if let Some(paper) = paper {
        for (name, burst, baseline) in [
            (
                "expected by the paper, in proportion",
                paper.expected_burst_mb_s,
                paper.expected_baseline_mb_s,
            ),
            (
                "measured by the paper, in proportion",
                paper.measured_burst_mb_s,
                paper.measured_baseline_mb_s,
            ),
        ] {
            let points = in_proportion(curve, paper, burst, baseline);
            lines.push(Line::few(name, points.into_iter()));
        }
    }
    Chart::new(
        ChartKind::Time,
        "MB/s",
        lines.into_iter().flatten().collect(),
    )
}

fn left_chart(curve: &CreditCurve) -> Option<Chart> {
    let told = curve.samples.iter();
    let told = told.map(|it| (it.at_seconds, it.credit_bytes as f64 / 1e6));
    let model = curve
        .model
        .iter()
        .map(|it| (it.at_seconds, it.credit_bytes / 1e6));
    let lines = [
        Line::few("as the server tells", told),
        Line::few("the planner's model", model),
    ];
    Chart::new(ChartKind::Time, "MB", lines.into_iter().flatten().collect())
}

fn over_time(curve: &CreditCurve, samples: &[Sample]) -> Table {
    let mut table = Table::new([
        numbers("at"),
        numbers("measured, MB/s"),
        numbers("model, MB/s"),
        numbers("credit, MB"),
        numbers("model, MB"),
    ]);
    let step = curve.samples.len().div_ceil(ROW_COUNT_MAX).max(1);
    for told in curve.samples.iter().step_by(step) {
        let at = told.at_seconds;
        let mut samples = samples.iter().filter(|it| it.seconds > 0.0);
        let sample = samples.find(|it| it.at_seconds <= at && at < it.at_seconds + it.seconds);
        let model = curve.model.iter().rev().find(|it| it.at_seconds <= at);
        let shown = |value: Option<f64>| value.map_or_else(unknown, text::number);
        table.push(
            RowKind::Plain,
            [
                text::seconds((at * 10.0).round() / 10.0),
                shown(sample.map(|it| it.bytes as f64 / 1e6 / it.seconds)),
                shown(model.map(|it| it.bytes_per_second / 1e6)),
                shown(Some(told.credit_bytes as f64 / 1e6)),
                shown(model.map(|it| it.credit_bytes / 1e6)),
            ],
        );
    }
    table
}

/// Passes over the same bytes, and where a server had them from; empty where nobody knows.
pub(super) fn passes(view: &View<'_>) -> Table {
    let mut table = Table::new([
        words("Pass"),
        numbers("MB/s"),
        numbers("times the first"),
        numbers("from the read cache"),
        numbers("from disks"),
        numbers("from the server's memory"),
    ]);
    let mut bars = Vec::new();
    for (place, (result, label)) in view.results.iter().zip(&view.labels).enumerate() {
        let Some(reads) = &result.reads else { continue };
        let first = result.phases.first().and_then(|phase| rate(phase, "MB/s"));
        let what = match reads.cache_count {
            0 => "no read cache".to_owned(),
            _ => format!("read cache of {}", text::bytes(reads.cache_bytes)),
        };
        for phase in &result.phases {
            let Some(now) = rate(phase, "MB/s") else {
                continue;
            };
            let pass = reads.passes.iter().find(|it| it.phase == phase.name);
            let shares = pass.and_then(|pass| read_cache::shares(phase, pass));
            let share = |at: usize| {
                let share = shares.and_then(|it| it.get(at).copied());
                share.map_or_else(unknown, |it| format!("{}%", text::number(it)))
            };
            let times = first.filter(|first| *first > 0.0).map(|first| now / first);
            table.push(
                RowKind::Plain,
                [
                    format!("{label}, {what}: {}", phase.name),
                    text::number(now),
                    times.map_or_else(unknown, text::number),
                    share(0),
                    share(1),
                    share(2),
                ],
            );
            bars.push((now, place));
        }
    }
    let longest = bars.iter().map(|it| it.0).fold(f64::MIN_POSITIVE, f64::max);
    for (row, (value, place)) in table.rows.iter_mut().zip(bars) {
        row.bar = Some(value / longest);
        row.result = Some(place);
    }
    table
}

/// What the paper's cache gives, in a sentence.
pub(super) fn published_gain() -> String {
    let gain = &published().cache_gain;
    let [baseline, burst] = gain.times().map(text::number);
    format!(
        "{}: reads are {baseline} times as fast with the cache at the baseline, and {burst} times in a burst ({}).",
        gain.hardware,
        source(&gain.paper)
    )
}
