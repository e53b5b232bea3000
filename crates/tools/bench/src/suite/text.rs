//! Results as text.
//!
//! Owns: what all suites' reports have in common. Must not know: pages (crate module `report`).

use std::fmt::Write as _;

use super::table::{number, per_second, table};
use super::{burst, four_corners, ior, iozone, metadata, objects, read_cache};
use crate::result::{Latency, PhaseResult, RunResult};

/// The whole report.
pub fn text(result: &RunResult) -> String {
    let mut text = heading(result);
    text.push('\n');
    text.push_str(&match result.suite.as_str() {
        _ if result.phases.is_empty() => "nothing was measured\n".to_owned(),
        // Imported results may have the same names, but not the phases.
        _ if result.phases.iter().any(|phase| phase.phase.is_none()) => general(&result.phases),
        four_corners::SUITE => four_corners::text(&result.phases),
        iozone::SUITE => iozone::text(&result.phases),
        ior::SUITE => ior::text(&result.phases),
        metadata::SUITE => metadata::text(&result.phases),
        objects::SUITE => objects::text(&result.phases),
        burst::SUITE if !result.credits.is_empty() => burst::text(result),
        read_cache::SUITE => read_cache::text(result),
        _ => general(&result.phases),
    });
    text.push('\n');
    text.push_str(&summary(result));
    text.push_str(&remarks(result));
    harmless(&text)
}

fn heading(result: &RunResult) -> String {
    let mut lines = vec![
        format!("suite       {}", result.suite),
        format!("target      {}", result.target.text),
    ];
    if result.label != result.target.text {
        lines.push(format!("label       {}", result.label));
    }
    if let Some(mount) = &result.target.mount {
        lines.push(format!("mount       {mount}"));
    }
    lines.push(format!("started     {}", result.started));
    for client in &result.clients {
        let failed = client.failed.as_ref();
        let failed = failed.map_or(String::new(), |why| format!("  FAILED: {why}"));
        lines.push(format!(
            "client      {} ({}){failed}",
            client.name, client.engine
        ));
    }
    if let Some(data) = &result.data {
        lines.push(format!(
            "data        {}% compressible, {}% duplicate, seed {}",
            data.compressible_percent, data.dedupe_percent, data.seed
        ));
    }
    if !result.cache.is_empty() {
        lines.push(format!("caches      {}", result.cache));
    }
    let parameters: Vec<String> = result
        .parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !parameters.is_empty() {
        lines.push(format!("parameters  {}", parameters.join(" ")));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// For results of programs that have no report of their own here.
fn general(phases: &[PhaseResult]) -> String {
    let row = |result: &PhaseResult| {
        let latency = |micros: fn(&Latency) -> f64| {
            let latency = result.latency.as_ref();
            latency.map_or("-".to_owned(), |latency| number(micros(latency) / 1000.0))
        };
        vec![
            result.name.clone(),
            number(per_second(
                result.bytes as f64 / 1e6,
                result.foreground_seconds,
            )),
            number(per_second(
                result.operations as f64,
                result.foreground_seconds,
            )),
            latency(|latency| latency.mean_us),
            latency(|latency| percentile(latency, 99.0)),
            format!("{:.3}", result.foreground_seconds),
        ]
    };
    let rows: Vec<_> = phases.iter().map(row).collect();
    table(
        &["PHASE", "MB/s", "OPS/s", "MEAN ms", "P99 ms", "SECONDS"],
        &rows,
    )
}

fn summary(result: &RunResult) -> String {
    if result.summary.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = result
        .summary
        .iter()
        .map(|figure| {
            vec![
                figure.title.clone(),
                number(figure.value),
                figure.drained.map_or("-".to_owned(), number),
                figure.unit.clone(),
            ]
        })
        .collect();
    table(&["SUMMARY", "FOREGROUND", "DRAINED", "UNIT"], &rows)
}

fn remarks(result: &RunResult) -> String {
    let mut text = String::new();
    for phase in &result.phases {
        if phase.errors > 0 {
            let first = phase.first_error.as_deref().unwrap_or("unknown");
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{}: {} requests failed, the first: {first}",
                phase.name, phase.errors
            );
        }
    }
    for note in &result.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if let Some(why) = &result.partial {
        let _ = writeln!(text, "PARTIAL: {why}");
    }
    if text.is_empty() {
        return text;
    }
    format!("\n{text}")
}

/// One line on a phase, for progress: `read: 1234 MB/s, 19000 ops/s`.
pub fn phase_line(result: &PhaseResult) -> String {
    let mut parts = Vec::new();
    if result.bytes > 0 {
        let megabytes = result.bytes as f64 / 1e6;
        parts.push(format!(
            "{} MB/s",
            number(per_second(megabytes, result.foreground_seconds))
        ));
        if result.drained_seconds > result.foreground_seconds {
            parts.push(format!(
                "drained {} MB/s",
                number(per_second(megabytes, result.drained_seconds))
            ));
        }
    }
    parts.push(format!(
        "{} ops/s",
        number(per_second(
            result.operations as f64,
            result.foreground_seconds
        ))
    ));
    if let Some(latency) = &result.latency {
        parts.push(format!(
            "p99 {} ms",
            number(percentile(latency, 99.0) / 1000.0)
        ));
    }
    if result.errors > 0 {
        parts.push(format!("{} requests FAILED", result.errors));
    }
    if let Some(why) = &result.partial {
        parts.push(format!("PARTIAL: {why}"));
    }
    harmless(&format!("{}: {}", result.name, parts.join(", ")))
}

/// Microseconds at the smallest known percentile that is not below `percent`; NaN when none is known.
pub(super) fn percentile(latency: &Latency, percent: f64) -> f64 {
    latency
        .percentiles_us
        .iter()
        .find(|(known, _)| *known >= percent)
        .map_or(f64::NAN, |(_, micros)| *micros)
}

/// Control characters, which could move a terminal's cursor, become `?`: results come from others.
fn harmless(text: &str) -> String {
    text.chars()
        .map(|char| match char {
            '\n' | '\t' => char,
            char if char.is_control() => '?',
            char => char,
        })
        .collect()
}
