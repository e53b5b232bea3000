//! The page: one HTML file that works offline.
//!
//! Owns: its structure, its content security policy. Must not know: what the tables and charts mean.
//!
//! [`Page`] takes markup only as literals of this program; whatever else is printed is escaped.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use super::chart::{Chart, ChartKind, time_table};
use super::credit;
use super::published::published;
use super::table::{Column, Row, RowKind, Table};
use super::text;
use super::view::{TOPIC_COUNT_MAX, Topic, View, about, phases};
use crate::result::RunResult;

const CHART_LIBRARY: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const CHART_STYLE: &str = include_str!("../../assets/uplot/uPlot.min.css");
const CHART_LICENCE: &str = include_str!("../../assets/uplot/LICENSE");
const CHART_SCRIPT: &str = include_str!("../../assets/charts.js");
const PAGE_SCRIPT: &str = include_str!("../../assets/page.js");
const PAGE_STYLE: &str = include_str!("../../assets/page.css");

/// One self-contained page of results, to be written into a file. It fetches nothing, runs no script but
/// its own, and says in words and tables whatever it draws.
pub fn html(results: &[RunResult]) -> String {
    let view = View::new(results);
    let mut page = Page::default();
    let mut charts = Vec::new();
    head(&mut page, &view);
    page.raw("<body>\n");
    header(&mut page, &view);
    page.raw("<main>\n");
    warnings(&mut page, &view);
    notes(&mut page, &view);
    summary(&mut page, &view);
    credits(&mut page, &view, &mut charts);
    passes(&mut page, &view);
    // A topic that is charted above is not charted again.
    let topics = view.topics.iter().filter(|topic| !topic.is_of_burst());
    for topic in topics.take(TOPIC_COUNT_MAX) {
        topic_section(&mut page, &view, topic, &mut charts);
    }
    if view.topics.len() > TOPIC_COUNT_MAX {
        page.raw("<p>There are charts of the first ");
        page.text(&TOPIC_COUNT_MAX.to_string());
        page.raw(" figures; the others are in the tables.</p>\n");
    }
    comparisons(&mut page, &view);
    runs(&mut page, &view);
    words(&mut page);
    page.raw("</main>\n");
    scripts(&mut page, &charts);
    page.raw("</body>\n</html>\n");
    page.out
}

/// HTML that is being written.
#[derive(Default)]
struct Page {
    out: String,
}

impl Page {
    /// Markup. Only what is compiled in has this lifetime, so no text of a result gets here.
    fn raw(&mut self, markup: &'static str) {
        self.out.push_str(markup);
    }

    fn text(&mut self, text: &str) {
        text::push_html(&mut self.out, text);
    }

    /// Text in an element without attributes.
    fn element(&mut self, open: &'static str, text: &str, close: &'static str) {
        self.raw(open);
        self.text(text);
        self.raw(close);
    }

    /// A table, in a frame that scrolls by itself on narrow screens. `what` is for those who hear it.
    fn table(&mut self, what: &str, table: &Table) {
        let has_bars = table.rows.iter().any(|row| row.bar.is_some());
        self.raw("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
        self.text(what);
        self.raw("\"><table>\n<thead><tr>");
        for column in &table.columns {
            self.raw(if column.is_number {
                "<th scope=\"col\" class=\"number\">"
            } else {
                "<th scope=\"col\">"
            });
            self.text(&column.title);
            self.raw("</th>");
        }
        self.raw("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            self.raw(match row.kind {
                RowKind::Plain => "<tr>",
                RowKind::Best => "<tr class=\"best\">",
                RowKind::Partial => "<tr class=\"partial\">",
            });
            let first_number = table.columns.iter().position(|column| column.is_number);
            for (index, (cell, column)) in row.cells.iter().zip(&table.columns).enumerate() {
                self.cell(cell, column, index, row);
                if has_bars && Some(index) == first_number {
                    // The bar is part of the cell, so that it stays with its number everywhere.
                    let Some(length) = row.bar else { continue };
                    self.out.truncate(self.out.len() - "</td>".len());
                    self.bar(length, row.result);
                    self.raw("</td>");
                }
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody>\n</table></div>\n");
    }

    fn cell(&mut self, cell: &str, column: &Column, index: usize, row: &Row) {
        let (open, close) = match (index, column.is_number) {
            (0, true) => ("<th scope=\"row\" class=\"number\">", "</th>"),
            (0, false) => ("<th scope=\"row\">", "</th>"),
            (_, true) => ("<td class=\"number\">", "</td>"),
            (_, false) => ("<td>", "</td>"),
        };
        self.raw(open);
        if let (0, Some(result)) = (index, row.result) {
            self.raw(square(result));
        }
        self.text(cell);
        // Not by colour alone.
        if index == 0 && row.kind == RowKind::Partial {
            self.raw(" <span class=\"mark\">partial</span>");
        }
        self.raw(close);
    }

    /// `length` is a part of the longest one.
    fn bar(&mut self, length: f64, result: Option<usize>) {
        let percent = if length.is_finite() {
            (length * 100.0).clamp(0.0, 100.0)
        } else {
            0.0
        };
        self.raw("<span class=\"bar");
        if let Some(result) = result {
            self.raw(" c");
            self.text(&(result % SQUARES.len()).to_string());
        }
        self.raw("\"><span style=\"width:");
        self.text(&format!("{percent:.2}"));
        self.raw("%\"></span></span>");
    }

    /// A chart, and its table behind a click.
    fn chart(&mut self, title: &str, chart: Chart, table: &Table, charts: &mut Vec<Chart>) {
        self.raw("<figure>\n<figcaption>");
        self.text(title);
        self.raw("</figcaption>\n<div class=\"chart\" role=\"img\" aria-label=\"");
        self.text(title);
        self.raw("; the table below has the same figures\" data-chart=\"");
        self.text(&charts.len().to_string());
        self.raw("\"></div>\n<details><summary>As a table</summary>\n");
        self.table(title, table);
        self.raw("</details>\n</figure>\n");
        charts.push(chart);
    }
}

fn head(page: &mut Page, view: &View<'_>) {
    page.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; ");
    page.raw("base-uri 'none'; form-action 'none'; script-src");
    for script in [CHART_LIBRARY, CHART_SCRIPT, PAGE_SCRIPT] {
        page.raw(" 'sha256-");
        page.out
            .push_str(&BASE64_STANDARD.encode(Sha256::digest(script)));
        page.raw("'");
    }
    page.raw("\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.raw("<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"cairn bench report\">\n");
    page.element("<title>", &title(view), "</title>\n");
    page.raw("<style>\n");
    page.raw(CHART_STYLE);
    page.raw(PAGE_STYLE);
    page.raw("</style>\n</head>\n");
}

fn title(view: &View<'_>) -> String {
    match view.labels.as_slice() {
        [] => "Benchmark".to_string(),
        [one] => format!("Benchmark of {one}"),
        many => format!("Benchmarks of {}", many.join(", ")),
    }
}

fn header(page: &mut Page, view: &View<'_>) {
    page.raw("<header>\n");
    page.element("<h1>", &title(view), "</h1>\n");
    if view.results.is_empty() {
        page.raw("<p>There are no results to show.</p>\n");
    }
    page.raw("<ul class=\"runs\">\n");
    for (index, (result, label)) in view.results.iter().zip(&view.labels).enumerate() {
        page.raw("<li>");
        page.raw(square(index));
        page.element("<b>", label, "</b>");
        page.text(&format!(
            " {} on {}, {}",
            result.suite, result.target.text, result.started
        ));
        if result.partial.is_some() {
            page.raw(" <span class=\"mark\">partial</span>");
        }
        page.raw("</li>\n");
    }
    page.raw("</ul>\n</header>\n");
}

/// The coloured square of a result. As many as `page.js` and `page.css` have colours.
const SQUARES: [&str; 6] = [
    "<i class=\"square c0\"></i>",
    "<i class=\"square c1\"></i>",
    "<i class=\"square c2\"></i>",
    "<i class=\"square c3\"></i>",
    "<i class=\"square c4\"></i>",
    "<i class=\"square c5\"></i>",
];

fn square(result: usize) -> &'static str {
    SQUARES
        .get(result % SQUARES.len())
        .copied()
        .unwrap_or_default()
}

fn warnings(page: &mut Page, view: &View<'_>) {
    let warnings = view.warnings();
    if warnings.is_empty() {
        return;
    }
    page.raw("<section class=\"warning\" role=\"note\">\n<h2>Not all is here</h2>\n");
    page.raw("<p>Figures of these runs are of what was done before they ended or failed.</p>\n");
    by_result(page, view, warnings);
    page.raw("</section>\n");
}

fn notes(page: &mut Page, view: &View<'_>) {
    let notes = view.notes();
    if notes.is_empty() {
        return;
    }
    page.raw("<section class=\"notes\">\n<h2>To judge the figures</h2>\n");
    by_result(page, view, notes);
    page.raw("</section>\n");
}

fn by_result(page: &mut Page, view: &View<'_>, all: Vec<(String, Vec<String>)>) {
    for (label, sentences) in all {
        if view.results.len() > 1 && !label.is_empty() {
            page.element("<h3>", &label, "</h3>\n");
        }
        page.raw("<ul>\n");
        for sentence in sentences {
            page.element("<li>", &sentence, "</li>\n");
        }
        page.raw("</ul>\n");
    }
}

fn summary(page: &mut Page, view: &View<'_>) {
    let table = view.summary();
    if table.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>Summary</h2>\n");
    page.raw("<div class=\"summary\">\n");
    page.table("Summary", &table);
    page.raw("</div>\n");
    page.raw("</section>\n");
}

fn comparisons(page: &mut Page, view: &View<'_>) {
    let comparisons = view.comparisons();
    if comparisons.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>Beside published figures</h2>\n<p>The published systems had other hardware, other ");
    page.raw("clients and other settings, which are named; so these bars say where a figure stands, not who is ");
    page.raw("faster.</p>\n");
    for comparison in comparisons {
        let title = format!(
            "{}, {}",
            comparison.workload.title(),
            comparison.workload.unit()
        );
        page.element("<h3>", &title, "</h3>\n");
        page.raw("<div class=\"published\">\n");
        page.table(&title, &comparison.table);
        page.raw("</div>\n");
    }
    page.raw("<details><summary>How the published figures were measured</summary>\n<dl>\n");
    for paper in &published().paper {
        page.element(
            "<dt>",
            &format!("{}: {}, {}", paper.system, paper.title, paper.date),
            "</dt>\n",
        );
        page.element("<dd>", &paper.method, "</dd>\n");
    }
    page.raw("</dl>\n</details>\n</section>\n");
}

fn topic_section(page: &mut Page, view: &View<'_>, topic: &Topic<'_>, charts: &mut Vec<Chart>) {
    let title = format!("{}, {}", capitalised(&topic.title), topic.unit);
    page.raw("<section>\n");
    page.element("<h2>", &title, "</h2>\n");
    page.table(&title, &view.topic_table(topic));
    page.raw("<div class=\"charts\">\n");
    let sweeps = if topic.is_repeated {
        Vec::new()
    } else {
        view.sweeps(topic)
    };
    if let Some(chart) = Chart::depth(view, &sweeps, &topic.unit) {
        let table = view.sweep_table(&sweeps, &topic.unit);
        page.chart(&format!("{title}, by depth"), chart, &table, charts);
    }
    if let Some(chart) = Chart::time(view, topic) {
        page.chart(
            &format!("{title}, over time"),
            chart,
            &time_table(view, topic),
            charts,
        );
    }
    if !topic.is_repeated
        && let Some(chart) = Chart::latency(view, topic)
    {
        debug_assert_eq!(chart.kind, ChartKind::Latency);
        let title = format!("{}, latency by percentile", capitalised(&topic.title));
        page.chart(&title, chart, &view.latency_table(topic), charts);
    }
    page.raw("</div>\n</section>\n");
}

/// Throughput and credit of volumes with bursts.
fn credits(page: &mut Page, view: &View<'_>, charts: &mut Vec<Chart>) {
    let curves = credit::curves(view);
    if curves.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>Bursts and credit</h2>\n<p>A volume gets its burst while it has credit, and its baseline ");
    page.raw("after that; what it leaves of the baseline is earned back. The lines of the paper are its figures with the ");
    page.raw("baseline of this volume, in its proportions. It does not say how long its credit lasts, so they change when ");
    page.raw("the planner's model does.</p>\n");
    for curve in curves {
        page.element("<h3>", &curve.title, "</h3>\n");
        page.table(&curve.title, &curve.figures);
        page.raw("<div class=\"charts\">\n");
        for (what, chart) in [("throughput", curve.rate), ("credit left", curve.left)] {
            if let Some(chart) = chart {
                let title = format!("{}, {what} over time", curve.title);
                page.chart(&title, chart, &curve.over_time, charts);
            }
        }
        page.raw("</div>\n");
    }
    page.raw("</section>\n");
}

/// Repeated reads, and where a server had them from.
fn passes(page: &mut Page, view: &View<'_>) {
    let table = credit::passes(view);
    if table.is_empty() {
        return;
    }
    page.raw("<section>\n<h2>Reads and the read cache</h2>\n<p>One set of bytes, read again and again. Parts are of the bytes ");
    page.raw("that clients read; disks may read more than that. A read cache keeps what is read a second time.</p>\n");
    page.table("Reads and the read cache", &table);
    page.element("<p>Published: ", &credit::published_gain(), "</p>\n");
    page.raw("</section>\n");
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}

/// The runs, with all phases and the values needed to run them again.
fn runs(page: &mut Page, view: &View<'_>) {
    for (result, label) in view.results.iter().zip(&view.labels) {
        page.raw("<section>\n");
        page.element("<h2>Run: ", label, "</h2>\n");
        page.raw("<div class=\"about\">\n");
        page.table(&format!("About {label}"), &about(result));
        page.raw("</div>\n");
        let title = format!("All {} phases", result.phases.len());
        page.element("<h3>", &title, "</h3>\n");
        page.table(&format!("{title} of {label}"), &phases(result));
        for phase in &result.phases {
            if let Some(job_file) = &phase.job_file {
                page.element(
                    "<details><summary>To run “",
                    &phase.name,
                    "” again</summary>\n",
                );
                page.element("<pre>", job_file, "</pre></details>\n");
            }
        }
        page.raw("</section>\n");
    }
}

fn words(page: &mut Page) {
    page.raw("<section>\n<h2>Words</h2>\n<dl>\n");
    page.raw("<dt>foreground</dt><dd>The clock stops when the last request that counts is answered.</dd>\n");
    page.raw("<dt>drained</dt><dd>The clock stops when everything written is on stable storage (COMMIT, fsync).</dd>\n");
    page.raw("<dt>MB/s</dt><dd>10<sup>6</sup> bytes a second; KiB, MiB and GiB are powers of 1024.</dd>\n");
    page.raw("<dt>depth</dt><dd>Requests in flight of each worker.</dd>\n");
    page.raw("<dt>p99</dt><dd>99% of the requests took no longer.</dd>\n");
    page.raw("</dl>\n</section>\n");
}

fn scripts(page: &mut Page, charts: &[Chart]) {
    page.raw(
        "<noscript><p>Charts need JavaScript; the tables have the same figures.</p></noscript>\n",
    );
    page.raw("<script id=\"chart-data\" type=\"application/json\">");
    // Charts are finite numbers and strings, which always are JSON.
    let json = serde_json::to_string(charts).unwrap_or_else(|_| "[]".to_string());
    page.out.push_str(&text::json_in_script(&json));
    page.raw("</script>\n<!-- uPlot, which draws the charts:\n");
    page.text(CHART_LICENCE);
    page.raw("-->\n");
    for script in [CHART_LIBRARY, CHART_SCRIPT, PAGE_SCRIPT] {
        page.raw("<script>");
        page.raw(script);
        page.raw("</script>\n");
    }
}
