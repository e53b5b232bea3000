//! A report in words for a terminal and as Markdown.
//!
//! Owns: how figures read. Must not know: terminals (the width is given), colours, HTML.

use std::fmt::Write as _;

use crate::check::{Checked, Violation};
use crate::design::{Design, Product};
use crate::rank::{KEPT, SOLD};
use crate::reliability::Availability;
use crate::report::{
    Broken, Evaluation, Figure, Fit, Known, PlanReport, PriceStamp, Throughput, Variant,
};
use crate::rules::{RULES, Rule, RuleId};
use crate::units::{Rate, number, thousands};
use crate::validate::Validation;
use crate::whatif::Comparison;

/// A table: headings, and rows of as many cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Between two columns.
const GAP: usize = 2;
/// A column of words is not made narrower than this, nor one of short cells at all.
const COLUMN_WIDTH_MIN: usize = 8;

impl Table {
    /// Columns side by side in at most `width` characters; cells that are too long go on in the next line.
    pub fn plain(&self, width: usize) -> String {
        let rows: Vec<&[String]> = self.rows.iter().map(Vec::as_slice).collect();
        let headings: Vec<String> = self.headings.iter().map(|it| (*it).to_owned()).collect();
        let widths = self.widths(width);
        let mut text = String::new();
        for row in std::iter::once(headings.as_slice()).chain(rows) {
            let cells: Vec<Vec<String>> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| wrap(cell, *width))
                .collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for index in 0..height {
                let mut line = String::new();
                for (cell, width) in cells.iter().zip(&widths) {
                    let part = cell.get(index).map_or("", String::as_str);
                    let _ = write!(line, "{part:<width$}{:GAP$}", "");
                }
                text += line.trim_end();
                text.push('\n');
            }
        }
        text
    }

    /// As wide as their cells, until that is too wide: then the widest give way first.
    fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.headings.iter().map(|it| it.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let gaps = GAP * widths.len().saturating_sub(1);
        // Words that would have to be cut count as much as their column may have.
        let least: Vec<usize> = (0..widths.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                let words = cells.flat_map(|cell| cell.split_whitespace());
                let longest = words.map(|word| word.chars().count()).max().unwrap_or(0);
                longest.max(COLUMN_WIDTH_MIN).min(widths[column])
            })
            .collect();
        for bound in [&least, &vec![1; widths.len()]] {
            while widths.iter().sum::<usize>() + gaps > width {
                let widest = (0..widths.len())
                    .filter(|column| widths[*column] > bound[*column])
                    .max_by_key(|column| widths[*column]);
                match widest {
                    Some(column) => widths[column] -= 1,
                    None => break,
                }
            }
        }
        widths
    }

    pub fn markdown(&self) -> String {
        let escape = |cell: &str| cell.replace('|', "\\|").replace('\n', " ");
        let mut text = format!("| {} |\n", self.headings.join(" | "));
        text += &format!("|{}\n", "---|".repeat(self.headings.len()));
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }
}

/// Breaks words into lines of at most `width`, at spaces where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let indent = text.len() - text.trim_start().len();
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent.min(width - 1));
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let mut word = word;
        let used = line.chars().count();
        if !is_empty && used + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        // A word longer than a line is cut.
        loop {
            let room = width.saturating_sub(line.chars().count()).max(1);
            let Some((end, _)) = word.char_indices().nth(room) else {
                break;
            };
            line += &word[..end];
            word = &word[end..];
            lines.push(std::mem::take(&mut line));
        }
        line += word;
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// Breaks the lines of a text that are longer than `width`; what follows is indented as the line was.
pub fn fold(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.chars().count() <= width {
            out += line;
            out.push('\n');
            continue;
        }
        let indent = line
            .chars()
            .take_while(|it| *it == ' ')
            .count()
            .min(width / 2);
        for (index, part) in wrap(line.trim_start(), width - indent).iter().enumerate() {
            if index > 0 || !part.is_empty() {
                let _ = writeln!(out, "{:indent$}{part}", "");
            }
        }
    }
    out
}

/// Such as `Cairn single NFS server`: what it is, without its sizes.
pub fn short_name(design: &Design) -> String {
    let name = design.name();
    let (what, sizes) = name.split_once(": ").unwrap_or((&name, ""));
    let storage = ["gp3", "st1", "instance-store disk"]
        .into_iter()
        .find(|kind| sizes.contains(kind));
    match storage {
        Some(storage) => format!("{what} ({storage})"),
        None => what.to_owned(),
    }
}

pub fn ids(rules: &[RuleId]) -> String {
    let ids: Vec<&str> = rules.iter().map(|rule| rule.as_str()).collect();
    ids.join(", ")
}

fn pair(steady: Rate, burst: Rate) -> String {
    if burst.mb_s() > steady.mb_s() * 1.001 {
        format!("{steady} ({burst} burst)")
    } else {
        steady.to_string()
    }
}

fn iops(steady: f64, burst: f64) -> String {
    let text = |value: f64| thousands(&format!("{value:.0}"));
    if burst > steady * 1.001 {
        format!("{} ({} burst)", text(steady), text(burst))
    } else {
        text(steady)
    }
}

/// Such as `; 900 to 1,050 MB/s`; nothing where there is no range.
fn between<T: Copy + PartialEq>(range: [T; 2], value: T, text: impl Fn(T) -> String) -> String {
    if range == [value, value] {
        return String::new();
    }
    format!("; {} to {}", text(range[0]), text(range[1]))
}

/// How a rate is known, with its range.
fn known_rate(of: &Throughput) -> String {
    let mut words = format!(
        "{}{}",
        of.known.words(),
        between(of.range_mb_s, of.steady_mb_s, |it| it.to_string())
    );
    if let Some(measured) = of.measured_mb_s {
        let _ = write!(words, "; a paper measured {measured} of this design");
    }
    words
}

fn known<T: Copy + PartialEq + std::fmt::Display>(of: &Figure<T>) -> String {
    let range = of.range.map_or_else(String::new, |range| {
        between(range, of.value, |it| it.to_string())
    });
    format!("{}{range}", of.known.words())
}

/// One line on where the prices are from.
pub fn prices(stamp: &PriceStamp) -> String {
    let mut words = format!(
        "Prices: {}, {} ({}).",
        stamp.region, stamp.date, stamp.source
    );
    if !stamp.stale.is_empty() {
        words += &format!(
            " Older than a year: {}; `cairn plan prices update` makes a new list.",
            stamp.stale.join(", ")
        );
    }
    words
}

/// Everything about one design, a line per figure.
pub fn evaluation(it: &Evaluation) -> Table {
    let performance = &it.performance;
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut row =
        |name: &str, value: String, from: String| rows.push([name.to_owned(), value, from]);
    row(
        "capacity",
        format!(
            "{} usable of {} raw ({}%)",
            it.capacity.usable_bytes.value,
            it.capacity.raw_bytes.value,
            number(it.capacity.usable_percent)
        ),
        ids(&it.capacity.usable_bytes.rules),
    );
    for (name, of) in [
        ("sequential read", &performance.seq_read),
        ("sequential write", &performance.seq_write),
    ] {
        row(
            name,
            pair(of.steady_mb_s, of.burst_mb_s),
            ids(&of.bottleneck.rules),
        );
        row("  known as", known_rate(of), String::new());
        row(
            "  limited by",
            format!("{}: {}", of.bottleneck.name, of.bottleneck.words),
            String::new(),
        );
    }
    for (name, of) in [
        ("random read IOPS", &performance.random_read),
        ("random write IOPS", &performance.random_write),
    ] {
        row(
            name,
            format!(
                "{}, {}{}",
                iops(of.steady_iops, of.burst_iops),
                of.known.words(),
                between(of.range_iops, of.steady_iops, |it| thousands(&format!(
                    "{it:.0}"
                )))
            ),
            ids(&of.bottleneck.rules),
        );
    }
    if let (Some(cached), Some(when)) = (&performance.cached_read_mb_s, &performance.cached_when) {
        row(
            "cached read",
            format!("{} {when}; {}", cached.value, known(cached)),
            ids(&cached.rules),
        );
    }
    if let Some(credit) = &performance.credit {
        row(
            "burst lasts",
            format!(
                "{} hours from a full bucket of {} ({})",
                number(credit.burst_s / 3600.0),
                credit.bucket_bytes,
                credit.name
            ),
            ids(&credit.rules),
        );
    }
    let cost = &it.cost;
    row(
        "cost",
        format!(
            "{} an hour, {} a month, {} a year, {} in 3 years",
            cost.hour_usd, cost.month_usd, cost.year_usd, cost.three_years_usd
        ),
        ids(&cost.rules),
    );
    let reserved: Vec<String> = [
        cost.reserved_year_usd
            .map(|usd| format!("{usd} for a year")),
        cost.reserved_three_years_usd
            .map(|usd| format!("{usd} for 3 years")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !reserved.is_empty() {
        row("reserved", reserved.join(", "), String::new());
    }
    row(
        "cost per unit",
        format!(
            "{} a month per usable TiB, {} per MB/s",
            cost.month_per_usable_tib_usd, cost.month_per_mb_s_usd
        ),
        String::new(),
    );
    for item in &cost.items {
        row(
            "  of it",
            format!(
                "{} x {}: {} a month (price of {}{})",
                number(item.count),
                item.words,
                item.month_usd,
                item.price_date,
                if item.price_stale {
                    ", older than a year"
                } else {
                    ""
                }
            ),
            String::new(),
        );
    }
    if !cost.without.is_empty() {
        row("  without", cost.without.join("; "), String::new());
    }
    row(
        "survives",
        it.survives_words.clone(),
        ids(&it.survives.rules),
    );
    row(
        "loss",
        it.reliability.loss_words.clone(),
        ids(&it.reliability.rules),
    );
    row("outage", it.reliability.outage_words.clone(), String::new());
    row(
        "goes on without",
        match it.reliability.availability {
            Availability::Single => "nothing: it stops with its one server",
            Availability::Node => "any one node; not its zone",
            Availability::Zone => "any one zone",
        }
        .to_owned(),
        String::new(),
    );
    if !it.available {
        row(
            "available",
            format!("no: needs {}, which is planned", it.needs.join(" and ")),
            "cairn.features".to_owned(),
        );
    }
    for note in &it.notes {
        row("note", note.clone(), String::new());
    }
    Table {
        headings: vec!["", "figure", "rules"],
        rows: rows.into_iter().map(Vec::from).collect(),
    }
}

/// Below this there is no room for a column of rules.
const RULES_WIDTH_MIN: usize = 100;

/// An evaluation for a terminal.
fn evaluation_plain(it: &Evaluation, width: usize) -> String {
    let mut table = evaluation(it);
    if width < RULES_WIDTH_MIN {
        table.headings.pop();
        for row in &mut table.rows {
            match row.pop() {
                Some(rules) if !rules.is_empty() => row[1] += &format!(" [{rules}]"),
                _ => {}
            }
        }
    }
    table.plain(width)
}

/// What stands before a figure that is extrapolated.
const EXTRAPOLATED: &str = "~";
pub const SUMMARY_WORDS: &str = "Rates are steady; cached: reads of what a cache holds. ~ is \
     extrapolated: nobody has measured it at this size. * is what a paper measured of this very design.";

/// The mark at a figure that is not arithmetic on documented ones.
fn marked(figure: String, known: Known) -> String {
    match known {
        Known::Extrapolated => format!("{EXTRAPOLATED}{figure}"),
        Known::Measured => format!("{figure}*"),
        Known::Documented | Known::Derived => figure,
    }
}

/// What summaries say of rates, as `text` writes them: reads that no cache answers, cached reads, writes.
pub fn rates(it: &Evaluation, text: impl Fn(Rate) -> String) -> [String; 3] {
    let performance = &it.performance;
    let sustained = |of: &Throughput| marked(text(of.sustained()), of.sustained_known());
    [
        sustained(performance.uncached()),
        performance
            .cached_read_mb_s
            .as_ref()
            .map_or_else(|| "-".to_owned(), |it| marked(text(it.value), it.known)),
        sustained(&performance.seq_write),
    ]
}

fn summary(report: &PlanReport) -> Table {
    Table {
        headings: vec![
            "#", "design", "usable", "read", "cached", "write", "month", "per TiB", "survives",
            "today",
        ],
        rows: report
            .ranking
            .fits
            .iter()
            .map(|fit| {
                let it = &fit.evaluation;
                let [read, cached, write] = rates(it, |rate| rate.to_string());
                vec![
                    fit.rank.to_string(),
                    it.name.clone(),
                    it.capacity.usable_bytes.value.to_string(),
                    read,
                    cached,
                    write,
                    it.cost.month_usd.to_string(),
                    it.cost.month_per_usable_tib_usd.to_string(),
                    it.survives.value.to_string(),
                    if it.available { "yes" } else { "planned" }.to_owned(),
                ]
            })
            .collect(),
    }
}

/// The summary for a terminal: each design's name on a line of its own, its figures below, so that both
/// have room.
fn summary_plain(report: &PlanReport, width: usize) -> String {
    const INDENT: usize = 4;
    let mb_s = |rate: Rate| thousands(&format!("{:.0}", rate.mb_s().round()));
    let figures = Table {
        headings: vec![
            "usable", "read", "cached", "write", "month", "per TiB", "survives", "today",
        ],
        rows: report
            .ranking
            .fits
            .iter()
            .map(|fit| {
                let it = &fit.evaluation;
                let [read, cached, write] = rates(it, mb_s);
                vec![
                    it.capacity.usable_bytes.value.to_string(),
                    read,
                    cached,
                    write,
                    format!("${}", thousands(&format!("{:.0}", it.cost.month_usd.0))),
                    format!(
                        "${}",
                        thousands(&format!("{:.0}", it.cost.month_per_usable_tib_usd.0))
                    ),
                    it.survives.value.to_string(),
                    if it.available { "yes" } else { "planned" }.to_owned(),
                ]
            })
            .collect(),
    }
    .plain(width.saturating_sub(INDENT));
    let mut lines = figures.lines();
    let mut text = format!("{:INDENT$}{}\n", "", lines.next().unwrap_or_default());
    for (line, fit) in lines.zip(&report.ranking.fits) {
        let name = format!("{}. {}", fit.rank, fit.evaluation.name);
        text += &fold(&name, width);
        let _ = writeln!(text, "{:INDENT$}{line}", "");
        if let Some(words) = variants(fit) {
            let folded = fold(&words, width.saturating_sub(INDENT));
            for line in folded.lines() {
                let _ = writeln!(text, "{:INDENT$}{line}", "");
            }
        }
    }
    text + &fold(&format!("In MB/s. {SUMMARY_WORDS}"), width)
}

/// The difference of a near-twin: often the instance alone.
fn differs(design: &Design, twin: &Variant) -> String {
    let words = twin.design.shape.words();
    let (Some((own, _)), Some((other, _))) = (design.shape.machine(), twin.design.shape.machine())
    else {
        return words;
    };
    match design.shape.words().replace(own, other) == words {
        true => other.to_owned(),
        false => words,
    }
}

/// The near-twins of a design in one line; `None`: it has none.
pub fn variants(fit: &Fit) -> Option<String> {
    let twins: Vec<String> = fit
        .variants
        .iter()
        .map(|it| {
            format!(
                "{} at {}",
                differs(&fit.evaluation.design, it),
                it.month_usd
            )
        })
        .collect();
    (!twins.is_empty()).then(|| format!("or {}", twins.join("; or ")))
}

fn missed(report: &PlanReport) -> Table {
    Table {
        headings: vec!["what does not fit", "the limit that it breaks", "rules"],
        rows: report
            .ranking
            .misses
            .iter()
            .map(|miss| {
                vec![
                    miss.evaluation.name.clone(),
                    missed_goal(&miss.broken),
                    ids(&miss.broken.rules),
                ]
            })
            .collect(),
    }
}

/// The goal as its flag, and how it is missed.
fn missed_goal(it: &Broken) -> String {
    match it.goal {
        SOLD | KEPT => it.words.clone(),
        flag => format!("--{flag}: {}", it.words),
    }
}

fn details(report: &PlanReport) -> Vec<(String, String, Table)> {
    report
        .ranking
        .fits
        .iter()
        .map(|fit| {
            (
                format!("{}. {}", fit.rank, fit.evaluation.name),
                reasons(fit),
                evaluation(&fit.evaluation),
            )
        })
        .collect()
}

/// Why it ranks there, its near-twins and its growth.
pub fn reasons(fit: &Fit) -> String {
    let twins = variants(fit).map_or_else(String::new, |it| format!(" {}.", capital(&it)));
    format!("{}.{twins} Growth: {}.", capital(&fit.why), fit.growth)
}

fn capital(words: &str) -> String {
    let mut chars = words.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// The report for a terminal: the ranking, then each design that fits (the first `details_count`), then
/// what does not.
pub fn terminal(report: &PlanReport, details_count: usize, width: usize) -> String {
    let mut text = format!(
        "{} designs looked at. {}\n\n",
        thousands(&report.ranking.candidates.to_string()),
        prices(&report.prices)
    );
    if let Some(collision) = &report.ranking.collision {
        let _ = writeln!(text, "Nothing fits: {}.\n", collision.words);
    } else {
        text += &summary_plain(report, width);
        text.push('\n');
        let fits = report.ranking.fits.iter().take(details_count);
        for ((title, why, _), fit) in details(report).into_iter().zip(fits) {
            let table = evaluation_plain(&fit.evaluation, width);
            let _ = writeln!(text, "{title}\n{why}\n{table}");
        }
        let why: Vec<String> = report
            .ranking
            .fits
            .iter()
            .skip(details_count)
            .map(|fit| {
                format!(
                    "{}. {}. Growth: {}.",
                    fit.rank,
                    capital(&fit.why),
                    fit.growth
                )
            })
            .collect();
        if !why.is_empty() {
            let _ = writeln!(text, "{}\n", why.join("\n"));
        }
    }
    text += &missed_plain(report);
    text += &unpriced(report);
    fold(&text, width)
}

/// What does not fit, for a terminal: a paragraph each.
fn missed_plain(report: &PlanReport) -> String {
    if report.ranking.misses.is_empty() {
        return String::new();
    }
    let mut text = "What does not fit:\n".to_owned();
    for miss in &report.ranking.misses {
        let rules = match ids(&miss.broken.rules) {
            rules if rules.is_empty() => rules,
            rules => format!(" ({rules})"),
        };
        let _ = writeln!(
            text,
            "- {}\n    {}{rules}",
            miss.evaluation.name,
            missed_goal(&miss.broken)
        );
    }
    text
}

fn unpriced(report: &PlanReport) -> String {
    let gaps = &report.ranking.unpriced;
    if gaps.is_empty() {
        return String::new();
    }
    /// Gaps named before they are only counted.
    const NAMED_COUNT_MAX: usize = 6;
    let named: Vec<&str> = gaps
        .iter()
        .take(NAMED_COUNT_MAX)
        .map(String::as_str)
        .collect();
    let more = match gaps.len() - named.len() {
        0 => String::new(),
        count => format!(" and {count} more (--output json has all)"),
    };
    format!(
        "\nLeft out, because the price list has no price: {}{more}.\n",
        named.join(", ")
    )
}

/// The whole report as Markdown.
pub fn markdown(report: &PlanReport) -> String {
    let goal = serde_json::to_string(&report.goal).unwrap_or_default();
    let mut text = format!(
        "# Storage plan\n\nGoal: `{goal}`\n\n{} designs looked at. {}\n\n",
        thousands(&report.ranking.candidates.to_string()),
        prices(&report.prices)
    );
    if let Some(collision) = &report.ranking.collision {
        let _ = writeln!(text, "**Nothing fits**: {}.\n", collision.words);
    } else {
        let _ = writeln!(
            text,
            "## What fits\n\n{}\n{SUMMARY_WORDS}\n",
            summary(report).markdown()
        );
        for (title, why, table) in details(report) {
            let _ = writeln!(text, "### {title}\n\n{why}\n\n{}", table.markdown());
        }
    }
    let _ = writeln!(
        text,
        "## What does not fit\n\n{}",
        missed(report).markdown()
    );
    text += &unpriced(report);
    let mut used: Vec<RuleId> = Vec::new();
    for fit in &report.ranking.fits {
        used.extend(rules_of(&fit.evaluation));
    }
    for miss in &report.ranking.misses {
        used.extend(&miss.broken.rules);
    }
    let rules: Vec<&Rule> = RULES
        .iter()
        .filter(|rule| used.contains(&rule.id))
        .collect();
    let _ = writeln!(text, "## Rules\n\n{}", explain(&rules).markdown());
    text
}

/// Every rule that a number of this evaluation cites.
pub fn rules_of(it: &Evaluation) -> Vec<RuleId> {
    let performance = &it.performance;
    let mut rules: Vec<RuleId> = Vec::new();
    rules.extend(&it.capacity.raw_bytes.rules);
    rules.extend(&it.capacity.usable_bytes.rules);
    for bottleneck in [
        &performance.seq_read.bottleneck,
        &performance.seq_read.bottleneck_burst,
        &performance.seq_write.bottleneck,
        &performance.seq_write.bottleneck_burst,
        &performance.random_read.bottleneck,
        &performance.random_write.bottleneck,
    ] {
        rules.extend(&bottleneck.rules);
        rules.extend(bottleneck.limits.iter().map(|limit| limit.rule));
    }
    if let Some(cached) = &performance.cached_read_mb_s {
        rules.extend(&cached.rules);
    }
    if let Some(credit) = &performance.credit {
        rules.extend(&credit.rules);
    }
    rules.extend(&it.cost.rules);
    rules.extend(&it.survives.rules);
    rules.extend(&it.reliability.rules);
    rules
}

/// How what a rule says is known, with its range and why it has it.
fn known_rule(rule: &Rule) -> String {
    let [least, most] = rule.id.spread();
    let why = match rule.id.spread_words() {
        "" => String::new(),
        why if least == most => format!(" ({why})"),
        why => format!(", {least} to {most} times the figure ({why})"),
    };
    format!("{}{why}", rule.id.known().words())
}

/// Rules in words and formulas, each with its source.
pub fn explain(rules: &[&Rule]) -> Table {
    Table {
        headings: vec!["rule", "in words", "formula", "source", "known as"],
        rows: rules
            .iter()
            .map(|rule| {
                vec![
                    rule.id.to_string(),
                    rule.words.to_owned(),
                    rule.formula.to_owned(),
                    rule.source.to_owned(),
                    known_rule(rule),
                ]
            })
            .collect(),
    }
}

/// Rules for a terminal: a paragraph per rule.
pub fn explain_plain(rules: &[&Rule], width: usize) -> String {
    let mut text = String::new();
    for rule in rules {
        let _ = writeln!(text, "{}\n    {}", rule.id, rule.words);
        if !rule.formula.is_empty() {
            let _ = writeln!(text, "    {}", rule.formula);
        }
        let _ = writeln!(text, "    Source: {}", rule.source);
        let _ = writeln!(text, "    Known as: {}", known_rule(rule));
    }
    fold(&text, width)
}

/// Two designs, a figure a line.
pub fn comparison(it: &Comparison) -> Table {
    let figures = |it: &Evaluation| -> Vec<(&'static str, f64, String)> {
        let performance = &it.performance;
        let rate = |rate: Rate| (rate.mb_s(), rate.to_string());
        let row = |name, (value, text): (f64, String)| (name, value, text);
        vec![
            row(
                "usable",
                (
                    it.capacity.usable_bytes.value.get(),
                    it.capacity.usable_bytes.value.to_string(),
                ),
            ),
            row(
                "raw",
                (
                    it.capacity.raw_bytes.value.get(),
                    it.capacity.raw_bytes.value.to_string(),
                ),
            ),
            row(
                "sequential read, steady",
                rate(performance.seq_read.steady_mb_s),
            ),
            row(
                "sequential read, burst",
                rate(performance.seq_read.burst_mb_s),
            ),
            row(
                "sequential write, steady",
                rate(performance.seq_write.steady_mb_s),
            ),
            row(
                "sequential write, burst",
                rate(performance.seq_write.burst_mb_s),
            ),
            row(
                "random read IOPS",
                (
                    performance.random_read.steady_iops,
                    iops(performance.random_read.steady_iops, 0.0),
                ),
            ),
            row(
                "random write IOPS",
                (
                    performance.random_write.steady_iops,
                    iops(performance.random_write.steady_iops, 0.0),
                ),
            ),
            row(
                "cost a month",
                (it.cost.month_usd.0, it.cost.month_usd.to_string()),
            ),
            row(
                "cost in 3 years",
                (
                    it.cost.three_years_usd.0,
                    it.cost.three_years_usd.to_string(),
                ),
            ),
            row(
                "per usable TiB a month",
                (
                    it.cost.month_per_usable_tib_usd.0,
                    it.cost.month_per_usable_tib_usd.to_string(),
                ),
            ),
            row(
                "per MB/s a month",
                (
                    it.cost.month_per_mb_s_usd.0,
                    it.cost.month_per_mb_s_usd.to_string(),
                ),
            ),
            row(
                "failures survived",
                (f64::from(it.survives.value), it.survives_words.clone()),
            ),
            row(
                "read limited by",
                (0.0, performance.seq_read.bottleneck.name.clone()),
            ),
            row(
                "write limited by",
                (0.0, performance.seq_write.bottleneck.name.clone()),
            ),
            row(
                "works today",
                (
                    0.0,
                    if it.available {
                        "yes".to_owned()
                    } else {
                        format!("needs {}", it.needs.join(" and "))
                    },
                ),
            ),
        ]
    };
    let rows = figures(&it.before)
        .into_iter()
        .zip(figures(&it.after))
        .map(|((name, before, left), (_, after, right))| {
            let change = if before > 0.0 && (after - before).abs() > before * 1e-6 {
                format!("{:+.1}%", (after / before - 1.0) * 100.0)
            } else {
                String::new()
            };
            vec![name.to_owned(), left, right, change]
        })
        .collect();
    Table {
        headings: vec!["", "A", "B", "change"],
        rows,
    }
}

/// Predicted beside published.
pub fn validation(it: &Validation) -> Table {
    Table {
        headings: vec![
            "family",
            "what",
            "published",
            "predicted",
            "error",
            "rules",
            "note",
        ],
        rows: it
            .rows
            .iter()
            .map(|row| {
                let value =
                    |value: f64| format!("{} {}", number((value * 10.0).round() / 10.0), row.unit);
                let miss = if row.missed { " MISS" } else { "" };
                vec![
                    row.family.to_owned(),
                    row.what.clone(),
                    value(row.published),
                    value(row.predicted),
                    format!("{:+.1}%{miss}", row.error * 100.0),
                    ids(&row.rules),
                    row.note.clone(),
                ]
            })
            .collect(),
    }
}

/// A validation for a terminal: the rows by family, and below them what is known of the misses.
pub fn validation_plain(it: &Validation, width: usize) -> String {
    let table = validation(it);
    let mut text = String::new();
    let mut notes = String::new();
    for family in &it.families {
        let rows: Vec<Vec<String>> = table
            .rows
            .iter()
            .filter(|row| row[0] == family.family)
            .map(|row| row[1..5].to_vec())
            .collect();
        let part = Table {
            headings: vec!["", "published", "predicted", "error"],
            rows,
        };
        let _ = writeln!(text, "{}\n{}", capital(family.family), part.plain(width));
    }
    for row in it.rows.iter().filter(|row| !row.note.is_empty()) {
        let _ = writeln!(notes, "- {}: {}.", row.what, row.note);
    }
    let missed: usize = it.families.iter().map(|family| family.missed).sum();
    let _ = writeln!(
        text,
        "{}\n{missed} of {} rows miss: their error is more than {}%.\n\n{notes}",
        validation_families(it).plain(width),
        it.rows.len(),
        number(crate::validate::WORST_ERROR_MAX * 100.0)
    );
    fold(text.trim_end(), width)
}

/// Median and worst error of each family.
pub fn validation_families(it: &Validation) -> Table {
    let percent = |value: f64| format!("{:.1}%", value * 100.0);
    Table {
        headings: vec![
            "family",
            "rows",
            "missed",
            "median error",
            "worst error",
            "median <= 10%, worst <= 25%",
        ],
        rows: it
            .families
            .iter()
            .map(|family| {
                vec![
                    family.family.to_owned(),
                    family.rows.to_string(),
                    family.missed.to_string(),
                    percent(family.median),
                    percent(family.worst),
                    if family.holds { "yes" } else { "no" }.to_owned(),
                ]
            })
            .collect(),
    }
}

/// What `check` found, for people.
pub fn checked(it: &Checked, width: usize) -> String {
    let mut text = format!("{}\n", it.name);
    match &it.unknown {
        Some(why) => {
            let _ = writeln!(text, "breaks no rule, and has no figures: {why}");
        }
        None if it.violations.is_empty() => text += "keeps every rule\n",
        None => {}
    }
    for violation in &it.violations {
        let _ = writeln!(
            text,
            "breaks {}: {} ({})",
            violation.rule,
            violation.words,
            violation.rule.rule().source
        );
    }
    if let Some(nearest) = &it.nearest_name {
        let _ = writeln!(text, "nearest that passes: {nearest}");
    }
    for note in &it.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if let Some(found) = &it.evaluation {
        text.push('\n');
        text += &evaluation_plain(found, width);
    }
    if let Some(stamp) = &it.prices {
        let _ = writeln!(text, "\n{}", prices(stamp));
    }
    fold(&text, width)
}

/// The rules that a design breaks, a line each.
pub fn broken(of: &str, violations: &[Violation]) -> String {
    let mut text = String::new();
    for violation in violations {
        let _ = writeln!(
            text,
            "{of} breaks {}: {} ({})",
            violation.rule,
            violation.words,
            violation.rule.rule().source
        );
    }
    text
}

/// `Product` as written in configurations.
pub fn product(product: Product) -> &'static str {
    match product {
        Product::Vendor => "vendor",
        Product::Cairn => "cairn",
    }
}
