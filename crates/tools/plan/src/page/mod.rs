//! The report as one HTML page that is readable offline.
//!
//! Owns: its structure, its content security policy. Must not know: how figures come about.
//!
//! [`Page`] takes markup only as literals of this program; whatever else is printed is escaped.

mod markup;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::report::{Chart, ChartKind, Evaluation, PlanReport};
use crate::rules::{RULES, Rule, RuleId};
use crate::text;
use crate::units::{number, thousands};
use markup::{Page, json_in_script};

// The library and the basic style are those of the benchmark's pages: one copy, one look.
const CHART_LIBRARY: &str = include_str!("../../../bench/assets/uplot/uPlot.iife.min.js");
const CHART_STYLE: &str = include_str!("../../../bench/assets/uplot/uPlot.min.css");
const CHART_LICENCE: &str = include_str!("../../../bench/assets/uplot/LICENSE");
const BASE_STYLE: &str = include_str!("../../../bench/assets/page.css");
const CHART_SCRIPT: &str = include_str!("../../../bench/assets/charts.js");
const PAGE_SCRIPT: &str = include_str!("../../assets/page.js");
const PAGE_STYLE: &str = include_str!("../../assets/page.css");
/// Rows of a chart's table; lines have more points than one wants to read.
const CHART_ROW_COUNT_MAX: usize = 24;

/// One self-contained page, to be written into a file. It fetches nothing, runs no script but its own,
/// and says in words and tables whatever it draws.
pub fn html(report: &PlanReport) -> String {
    let mut page = Page::default();
    head(&mut page);
    page.raw("<body>\n");
    header(&mut page, report);
    page.raw("<main>\n");
    collision(&mut page, report);
    ranking(&mut page, report);
    charts(&mut page, report);
    for fit in &report.ranking.fits {
        let title = format!("{}. {}", fit.rank, fit.evaluation.name);
        design(&mut page, &title, &text::reasons(fit), &fit.evaluation);
    }
    misses(&mut page, report);
    unpriced(&mut page, report);
    rules(&mut page, report);
    page.raw("</main>\n");
    scripts(&mut page, report);
    page.raw("</body>\n</html>\n");
    page.into_text()
}

fn head(page: &mut Page) {
    page.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; ");
    page.raw("base-uri 'none'; form-action 'none'; script-src");
    for script in [CHART_LIBRARY, CHART_SCRIPT, PAGE_SCRIPT] {
        page.raw(" 'sha256-");
        page.text(&BASE64_STANDARD.encode(Sha256::digest(script)));
        page.raw("'");
    }
    page.raw("\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.raw("<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"cairn plan\">\n");
    page.raw("<title>Storage plan</title>\n<style>\n");
    page.raw(CHART_STYLE);
    page.raw(BASE_STYLE);
    page.raw(PAGE_STYLE);
    page.raw("</style>\n</head>\n");
}

/// The goals, a line each.
fn goals(report: &PlanReport) -> Vec<(&'static str, String)> {
    let goal = &report.goal;
    let mut lines = vec![("capacity", format!("{} usable", goal.capacity_bytes))];
    let mut line = |name, value: Option<String>| lines.extend(value.map(|value| (name, value)));
    line("read", goal.read_mb_s.map(|it| it.to_string()));
    line("write", goal.write_mb_s.map(|it| it.to_string()));
    line(
        "random reads",
        goal.iops
            .map(|it| format!("{} IOPS", thousands(&it.to_string()))),
    );
    line("clients", goal.clients.map(|it| it.to_string()));
    line("failures survived", Some(goal.survive.to_string()));
    line(
        "budget",
        goal.budget_month_usd.map(|it| format!("{it} a month")),
    );
    line(
        "hot",
        goal.hot_share.map(|it| format!("{}%", number(it * 100.0))),
    );
    if goal.growth_per_year > 0.0 {
        let growth = format!(
            "{}% a year, {} years",
            number(goal.growth_per_year * 100.0),
            goal.years
        );
        line("growth", Some(growth));
    }
    line("region", Some(goal.region.clone()));
    lines
}

fn header(page: &mut Page, report: &PlanReport) {
    page.raw("<header>\n<h1>Storage plan</h1>\n<dl class=\"goals\">\n");
    for (name, value) in goals(report) {
        page.element("<div><dt>", name, "</dt>");
        page.element("<dd>", &value, "</dd></div>\n");
    }
    page.raw("</dl>\n");
    let looked_at = thousands(&report.ranking.candidates.to_string());
    let words = format!(
        "{looked_at} designs looked at. {}",
        text::prices(&report.prices)
    );
    page.element("<p class=\"quiet\">", &words, "</p>\n</header>\n");
}

fn collision(page: &mut Page, report: &PlanReport) {
    if let Some(collision) = &report.ranking.collision {
        page.raw("<section class=\"warning\" role=\"note\">\n<h2>Nothing fits</h2>\n");
        page.element("<p>", &format!("{}.", sentence(&collision.words)), "</p>\n");
        if let Some(nearest) = &collision.nearest {
            let words = format!(
                "The nearest is {}: {}.",
                nearest.evaluation.name, nearest.broken.words
            );
            page.element("<p>", &words, "</p>\n");
        }
        page.raw("</section>\n");
    }
}

const RANKING: [(&str, bool); 10] = [
    ("", true),
    ("design", false),
    ("usable", true),
    ("read", true),
    ("cached", true),
    ("write", true),
    ("a month", true),
    ("per TiB", true),
    ("survives", true),
    ("today", false),
];

fn ranking(page: &mut Page, report: &PlanReport) {
    let fits = &report.ranking.fits;
    if fits.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>What fits</h2>\n<div class=\"ranking\">\n");
    page.table_start("What fits, best first", &RANKING);
    for fit in fits {
        let it = &fit.evaluation;
        page.raw(if fit.rank == 1 {
            "<tr class=\"best\">"
        } else {
            "<tr>"
        });
        page.element("<td class=\"number\">", &fit.rank.to_string(), "</td>");
        page.element("<th scope=\"row\">", &it.name, "");
        if let Some(words) = text::variants(fit) {
            page.element("<span class=\"twins quiet\">", &words, "</span>");
        }
        page.raw("</th>");
        let [read, cached, write] = text::rates(it, |rate| rate.to_string());
        let values = [
            it.capacity.usable_bytes.value.to_string(),
            read,
            cached,
            write,
            it.cost.month_usd.to_string(),
            it.cost.month_per_usable_tib_usd.to_string(),
            it.survives.value.to_string(),
        ];
        // On narrow screens each value has the name of its column before it.
        for (value, (name, _)) in values.iter().zip(RANKING.iter().skip(2)) {
            page.element("<td class=\"number\" data-name=\"", name, "\">");
            page.element("", value, "</td>");
        }
        match it.available {
            true => page.raw("<td class=\"short\" data-name=\"today\">yes</td>"),
            false => page.raw(
                "<td class=\"short\" data-name=\"today\"><span class=\"mark\">planned</span></td>",
            ),
        }
        page.raw("</tr>\n");
    }
    page.table_end();
    page.element("<p class=\"quiet\">", text::SUMMARY_WORDS, "</p>\n");
    page.raw("</div>\n</section>\n");
}

fn charts(page: &mut Page, report: &PlanReport) {
    if report.charts.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>Charts</h2>\n<div class=\"charts\">\n");
    let lines = report.charts.iter().filter(|it| it.kind == ChartKind::Line);
    for (drawn, chart) in lines.enumerate() {
        page.element("<figure>\n<figcaption>", &chart.title, "</figcaption>\n");
        page.element(
            "<p class=\"quiet\">",
            &format!("{}.", sentence(&chart.words)),
            "</p>\n",
        );
        page.element(
            "<div class=\"chart\" role=\"img\" aria-label=\"",
            &chart.title,
            "; the table below has the same figures\"",
        );
        page.element(" data-chart=\"", &drawn.to_string(), "\"></div>\n");
        page.raw("<details><summary>As a table</summary>\n");
        line_table(page, chart);
        page.raw("</details>\n");
        page.element(
            "<p class=\"quiet rules\">Rules: ",
            &text::ids(&chart.rules),
            "</p>\n</figure>\n",
        );
    }
    page.raw("</div>\n");
    for chart in report.charts.iter().filter(|it| it.kind == ChartKind::Bars) {
        page.element("<h3>", &chart.title, "</h3>\n");
        page.element(
            "<p class=\"quiet\">",
            &format!("{}.", sentence(&chart.words)),
            "</p>\n",
        );
        bars(page, chart);
        page.element(
            "<p class=\"quiet rules\">Rules: ",
            &text::ids(&chart.rules),
            "</p>\n",
        );
    }
    page.raw("</section>\n");
}

fn line_table(page: &mut Page, chart: &Chart) {
    let mut columns = vec![(chart.x_label.as_str(), true)];
    let names: Vec<String> = chart
        .series
        .iter()
        .map(|series| format!("{}, {}", series.name, chart.y_label))
        .collect();
    columns.extend(names.iter().map(|name| (name.as_str(), true)));
    page.table_start(&chart.title, &columns);
    let step = chart.x.len().div_ceil(CHART_ROW_COUNT_MAX).max(1);
    for (index, x) in chart.x.iter().enumerate() {
        // The last point is where it ends: it is always told.
        if index % step != 0 && index + 1 != chart.x.len() {
            continue;
        }
        page.element(
            "<tr><th scope=\"row\" class=\"number\">",
            &number(*x),
            "</th>",
        );
        for series in &chart.series {
            let value = series.y.get(index).copied().flatten();
            page.element(
                "<td class=\"number\">",
                &value.map_or("–".to_string(), rounded),
                "</td>",
            );
        }
        page.raw("</tr>\n");
    }
    page.table_end();
}

/// Three digits that count, or all before the point.
fn rounded(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => thousands(&format!("{value:.0}")),
        _ => number(value),
    }
}

/// Bars that go both ways from zero, each with its number: a table is the chart.
fn bars(page: &mut Page, chart: &Chart) {
    let longest = chart
        .series
        .iter()
        .flat_map(|series| series.y.iter().flatten())
        .filter(|value| value.is_finite())
        .fold(0.0_f64, |longest, value| longest.max(value.abs()));
    let mut columns = vec![(chart.x_label.as_str(), false)];
    let names: Vec<String> = chart
        .series
        .iter()
        .map(|series| format!("{}, {}", series.name, chart.y_label))
        .collect();
    columns.extend(names.iter().map(|name| (name.as_str(), false)));
    page.raw("<div class=\"both-ways\">\n");
    page.table_start(&chart.title, &columns);
    for (index, name) in chart.x_names.iter().enumerate() {
        page.element("<tr><th scope=\"row\">", name, "</th>");
        for (at, series) in chart.series.iter().enumerate() {
            let value = series
                .y
                .get(index)
                .copied()
                .flatten()
                .filter(|value| value.is_finite());
            let Some(value) = value else {
                page.raw("<td>–</td>");
                continue;
            };
            let sign = if value > 0.0 { "+" } else { "" };
            page.element("<td>", &format!("{sign}{}", number(value)), "");
            page.element(
                "<span class=\"way c",
                &(at % COLOUR_COUNT).to_string(),
                "\">",
            );
            // Half of the width is for each way.
            let width = if longest > 0.0 {
                value.abs() / longest * 50.0
            } else {
                0.0
            };
            let left = if value < 0.0 { 50.0 - width } else { 50.0 };
            page.element("<span style=\"left:", &format!("{left:.2}"), "%;");
            page.element("width:", &format!("{width:.2}"), "%\"></span></span></td>");
        }
        page.raw("</tr>\n");
    }
    page.table_end();
    page.raw("</div>\n");
}

/// As many as the styles have.
const COLOUR_COUNT: usize = 6;

fn design(page: &mut Page, title: &str, words: &str, it: &Evaluation) {
    page.element("<section>\n<h2>", title, "</h2>\n");
    page.element("<p>", words, "</p>\n");
    if !it.available {
        let needs = format!("needs {}, which is planned", it.needs.join(" and "));
        page.element(
            "<p><span class=\"mark\">not in this version</span> ",
            &needs,
            "</p>\n",
        );
    }
    let table = text::evaluation(it);
    let columns: Vec<(&str, bool)> = table
        .headings
        .iter()
        .map(|heading| (*heading, false))
        .collect();
    page.raw("<div class=\"figures\">\n");
    page.table_start(title, &columns);
    for row in &table.rows {
        for (index, cell) in row.iter().enumerate() {
            match index {
                0 if cell.starts_with(' ') => {
                    page.element("<tr class=\"sub\"><th scope=\"row\">", cell.trim(), "</th>")
                }
                0 => page.element("<tr><th scope=\"row\">", cell, "</th>"),
                1 => page.element("<td>", cell, "</td>"),
                _ => page.element("<td class=\"rules\">", cell, "</td>"),
            }
        }
        page.raw("</tr>\n");
    }
    page.table_end();
    page.raw("</div>\n</section>\n");
}

fn misses(page: &mut Page, report: &PlanReport) {
    if report.ranking.misses.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>What does not fit</h2>\n");
    let columns = [
        ("design", false),
        ("the limit that it breaks", false),
        ("goal", false),
        ("rules", false),
    ];
    page.table_start("What does not fit", &columns);
    for miss in &report.ranking.misses {
        page.element("<tr><th scope=\"row\">", &miss.evaluation.name, "</th>");
        page.element("<td>", &miss.broken.words, "</td>");
        page.element("<td class=\"short\">", miss.broken.goal, "</td>");
        page.element(
            "<td class=\"rules\">",
            &text::ids(&miss.broken.rules),
            "</td></tr>\n",
        );
    }
    page.table_end();
    page.raw("</section>\n");
}

/// Designs that nobody could price are neither fits nor misses.
fn unpriced(page: &mut Page, report: &PlanReport) {
    let gaps = &report.ranking.unpriced;
    if gaps.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>What has no price</h2>\n");
    page.element(
        "<p>Left out, because the price list has no price: ",
        &gaps.join(", "),
        ".</p>\n</section>\n",
    );
}

/// Every rule that is named on the page.
fn rules(page: &mut Page, report: &PlanReport) {
    let mut used: Vec<RuleId> = Vec::new();
    for fit in &report.ranking.fits {
        used.extend(text::rules_of(&fit.evaluation));
    }
    for miss in &report.ranking.misses {
        used.extend(&miss.broken.rules);
    }
    for chart in &report.charts {
        used.extend(&chart.rules);
    }
    let known: Vec<&Rule> = RULES
        .iter()
        .filter(|rule| used.contains(&rule.id))
        .collect();
    if known.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>Rules</h2>\n<dl>\n");
    for rule in known {
        page.element("<dt><code>", rule.id.as_str(), "</code></dt>\n");
        page.element("<dd>", &sentence(rule.words), "");
        if !rule.formula.is_empty() {
            page.element("<br><code>", rule.formula, "</code>");
        }
        page.element("<br><span class=\"source\">", rule.source, "</span></dd>\n");
    }
    page.raw("</dl>\n</section>\n");
}

fn sentence(words: &str) -> String {
    let mut characters = words.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}

/// What `page.js` draws.
#[derive(Serialize)]
struct Drawing<'a> {
    x_label: &'a str,
    y_label: &'a str,
    x: &'a [f64],
    lines: Vec<Line<'a>>,
    /// Few points are shown as points.
    points: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    y: &'a [Option<f64>],
}

const POINT_COUNT_SHOWN_MAX: usize = 30;

fn scripts(page: &mut Page, report: &PlanReport) {
    let drawings: Vec<Drawing<'_>> = report
        .charts
        .iter()
        .filter(|chart| chart.kind == ChartKind::Line)
        .map(|chart| Drawing {
            x_label: &chart.x_label,
            y_label: &chart.y_label,
            x: &chart.x,
            lines: chart
                .series
                .iter()
                .map(|series| Line {
                    name: &series.name,
                    y: &series.y,
                })
                .collect(),
            points: chart.x.len() <= POINT_COUNT_SHOWN_MAX,
        })
        .collect();
    page.raw(
        "<noscript><p>Charts need JavaScript; the tables have the same figures.</p></noscript>\n",
    );
    page.raw("<script id=\"chart-data\" type=\"application/json\">");
    // Numbers and strings always are JSON: what is not finite becomes null, which is no point.
    let json = serde_json::to_string(&drawings).unwrap_or_else(|_| "[]".to_string());
    page.escaped(&json_in_script(&json));
    page.raw("</script>\n<!-- uPlot, which draws the charts:\n");
    page.text(CHART_LICENCE);
    page.raw("-->\n");
    for script in [CHART_LIBRARY, CHART_SCRIPT, PAGE_SCRIPT] {
        page.raw("<script>");
        page.raw(script);
        page.raw("</script>\n");
    }
}
