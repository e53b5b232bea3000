//! Reports in Markdown, for issues, commits and terminals.
//!
//! Owns: its structure. Must not know: what the tables mean.

use super::credit;
use super::table::{RowKind, Table};
use super::text;
use super::view::{View, about, hardware};
use crate::result::RunResult;

/// Results as Markdown: what is partial, the summary, sweeps, published figures, and what was run.
pub fn markdown(results: &[RunResult]) -> String {
    let view = View::new(results);
    let mut out = String::from("# Benchmark\n\n");
    if results.is_empty() {
        out.push_str("There are no results to show.\n");
    }
    for (label, warnings) in view.warnings() {
        for warning in warnings {
            out.push_str(&format!(
                "> **{}**: {}\n",
                text::markdown(&label),
                text::markdown(&warning)
            ));
        }
        out.push_str(
            ">\n> Figures of this run are of what was done before it ended or failed.\n\n",
        );
    }
    push_section(&mut out, "Summary", &view.summary());
    for curve in credit::curves(&view) {
        push_section(&mut out, &curve.title, &curve.figures);
        push_section(&mut out, "Over time", &curve.over_time);
    }
    let passes = credit::passes(&view);
    push_section(&mut out, "Reads and the read cache", &passes);
    if !passes.is_empty() {
        out.push_str(&format!(
            "Published: {}\n\n",
            text::markdown(&credit::published_gain())
        ));
    }
    for topic in view.topics.iter().filter(|topic| !topic.is_repeated) {
        let sweeps = view.sweeps(topic);
        if !sweeps.is_empty() {
            let title = format!("{} by depth", topic.title);
            push_section(&mut out, &title, &view.sweep_table(&sweeps, &topic.unit));
        }
    }
    for comparison in view.comparisons() {
        let title = format!(
            "{} beside published figures of other hardware",
            comparison.workload.title()
        );
        push_section(&mut out, &title, &comparison.table);
    }
    for (result, label) in results.iter().zip(&view.labels) {
        out.push_str(&format!("## Run: {}\n\n", text::markdown(label)));
        out.push_str(&format!("{}\n\n", text::markdown(&hardware(result))));
        for note in &result.notes {
            out.push_str(&format!("- {}\n", text::markdown(note)));
        }
        if !result.notes.is_empty() {
            out.push('\n');
        }
        push_table(&mut out, &about(result));
    }
    out
}

fn push_section(out: &mut String, title: &str, table: &Table) {
    if table.is_empty() {
        return;
    }
    out.push_str(&format!("## {}\n\n", text::markdown(title)));
    push_table(out, table);
}

fn push_table(out: &mut String, table: &Table) {
    let titles = table
        .columns
        .iter()
        .map(|column| text::markdown(&column.title));
    push_row(out, titles);
    let rules = table
        .columns
        .iter()
        .map(|column| if column.is_number { "---:" } else { "---" });
    push_row(out, rules.map(String::from));
    for row in &table.rows {
        let cells = row.cells.iter().map(|cell| text::markdown(cell));
        push_row(
            out,
            cells.map(|cell| match row.kind {
                RowKind::Best if !cell.trim().is_empty() => format!("**{}**", cell.trim()),
                _ => cell,
            }),
        );
    }
    out.push('\n');
}

fn push_row(out: &mut String, cells: impl Iterator<Item = String>) {
    out.push('|');
    for cell in cells {
        out.push_str(&format!(" {cell} |"));
    }
    out.push('\n');
}
