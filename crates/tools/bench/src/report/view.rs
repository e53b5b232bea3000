//! What a report says about results, as tables, before it is known how it is shown.
//!
//! Owns: which figures are about the same thing, sweeps, rates, what must be said first.
//! Must not know: HTML, Markdown, the chart library.

use std::collections::BTreeSet;

use super::published::{Paper, PublishedFigure, Workload, published};
use super::table::{Row, RowKind, Table, numbers, words};
use super::text;
use crate::plan::{DataPattern, DataWork, End, Fsync, Layout, NamesWork, Phase, Work};
use crate::result::{ClientInfo, Latency, PhaseResult, RunResult};
use crate::suite::{burst, objects, read_cache};

/// The longest label; longer ones are cut.
const LABEL_CHARACTERS_MAX: usize = 60;
/// Figures that get a part of the page with charts of their own; more are only in the tables.
pub(super) const TOPIC_COUNT_MAX: usize = 64;
/// Published random figures are of requests of 4 KiB; those of up to this length are shown beside them.
const REQUEST_BYTES_COMPARED_MAX: u64 = 8 << 10;
/// Sentences on what is missing, of each result.
const WARNING_COUNT_MAX: usize = 12;
/// The percentiles that tables show.
pub(super) const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// Results and what they are called on the page.
pub(super) struct View<'a> {
    pub results: &'a [RunResult],
    /// As many as results, all different.
    pub labels: Vec<String>,
    pub topics: Vec<Topic<'a>>,
}

/// One figure of the summary, of all results that have it.
pub(super) struct Topic<'a> {
    pub title: String,
    pub unit: String,
    pub entries: Vec<Entry<'a>>,
    /// An earlier topic is of the same phases, and has their latencies and sweeps.
    pub is_repeated: bool,
}

pub(super) struct Entry<'a> {
    /// Place in [`View::results`].
    pub result: usize,
    pub value: f64,
    pub drained: Option<f64>,
    pub phase: Option<&'a PhaseResult>,
}

/// What the phases with one work and several depths came to.
pub(super) struct Sweep<'a> {
    pub result: usize,
    /// Rising by depth.
    pub points: Vec<(u32, &'a PhaseResult)>,
}

/// One's own figures among the published ones of the same workload.
pub(super) struct Comparison {
    pub workload: Workload,
    pub table: Table,
}

impl<'a> View<'a> {
    pub fn new(results: &'a [RunResult]) -> Self {
        Self {
            results,
            labels: labels(results),
            topics: topics(results),
        }
    }

    fn label(&self, result: usize) -> String {
        self.labels.get(result).cloned().unwrap_or_default()
    }

    /// What must be read before any figure.
    pub fn warnings(&self) -> Vec<(String, Vec<String>)> {
        let all = self.results.iter().zip(&self.labels);
        all.map(|(result, label)| (label.clone(), few(warnings(result))))
            .filter(|(_, warnings)| !warnings.is_empty())
            .collect()
    }

    /// Notes by result; first, under no label, those that all results share.
    pub fn notes(&self) -> Vec<(String, Vec<String>)> {
        let shared: Vec<String> = match self.results {
            [first, others @ ..] => {
                let is_shared =
                    |note: &&String| others.iter().all(|other| other.notes.contains(note));
                first.notes.iter().filter(is_shared).cloned().collect()
            }
            [] => Vec::new(),
        };
        let own = self
            .results
            .iter()
            .zip(&self.labels)
            .map(|(result, label)| {
                let notes = result.notes.iter().filter(|note| !shared.contains(note));
                (label.clone(), notes.cloned().collect())
            });
        let own: Vec<_> = own.collect();
        let all = std::iter::once((String::new(), shared)).chain(own);
        all.filter(|(_, notes)| !notes.is_empty()).collect()
    }

    /// Each figure of the summary, with a column for each result.
    pub fn summary(&self) -> Table {
        let of = |topic: &'_ Topic<'_>, result| {
            topic
                .entries
                .iter()
                .position(|entry| entry.result == result)
        };
        let mut table = Table::new([words("Figure")]);
        for (result, label) in self.labels.iter().enumerate() {
            let is_compared =
                |topic: &Topic<'_>| of(topic, 0).is_some() && of(topic, result).is_some();
            table.columns.push(numbers(match self.labels.first() {
                Some(first) if result > 0 && self.topics.iter().any(is_compared) => {
                    format!("{label} (× of {first})")
                }
                _ => label.clone(),
            }));
        }
        for topic in &self.topics {
            let of = |result| of(topic, result).and_then(|at| topic.entries.get(at));
            let first = of(0).map(|entry| entry.value).filter(|value| *value > 0.0);
            let mut cells = vec![format!("{}, {}", topic.title, topic.unit)];
            for result in 0..self.results.len() {
                let first = first.filter(|_| result > 0);
                cells.push(of(result).map_or_else(unknown, |entry| entry.rates(first)));
            }
            let is_partial = topic.entries.iter().any(Entry::is_partial);
            table.rows.push(Row {
                cells,
                kind: if is_partial {
                    RowKind::Partial
                } else {
                    RowKind::Plain
                },
                bar: None,
                result: None,
            });
        }
        table
    }

    /// One topic, with a row and a bar for each result.
    pub fn topic_table(&self, topic: &Topic<'_>) -> Table {
        let mut table = Table::new([
            words("Result"),
            numbers(&topic.unit),
            numbers("drained"),
            numbers("p50"),
            numbers("p99"),
            numbers("p99.9"),
            numbers("each worker: min, mean, max"),
            numbers("errors"),
            words("Load"),
        ]);
        let best = longest(topic.entries.iter().map(|entry| entry.value));
        for entry in &topic.entries {
            let phase = entry.phase;
            let latency = |percentile| {
                let latency = phase.and_then(|phase| phase.latency.as_ref());
                latency
                    .and_then(|latency| at_percentile(latency, percentile))
                    .map_or_else(unknown, text::microseconds)
            };
            let clients = self
                .results
                .get(entry.result)
                .map_or(0, |result| result.clients.len());
            table.push(
                if entry.is_partial() {
                    RowKind::Partial
                } else {
                    RowKind::Plain
                },
                [
                    self.label(entry.result),
                    text::number(entry.value),
                    entry.drained.map_or_else(unknown, text::number),
                    latency(50.0),
                    latency(99.0),
                    latency(99.9),
                    phase.map_or_else(unknown, |phase| spread(phase, &topic.unit)),
                    phase.map_or_else(unknown, |phase| text::count(phase.errors)),
                    phase
                        .and_then(|phase| phase.phase.as_ref())
                        .map_or_else(unknown, |phase| load(phase, clients)),
                ],
            );
            table.draw(entry.value / best, Some(entry.result));
        }
        table
    }

    /// Sweeps over the depth around the phases of a topic.
    pub fn sweeps(&self, topic: &Topic<'_>) -> Vec<Sweep<'a>> {
        topic
            .entries
            .iter()
            .filter_map(|entry| self.sweep(entry))
            .collect()
    }

    fn sweep(&self, entry: &Entry<'_>) -> Option<Sweep<'a>> {
        let asked = entry.phase?.phase.as_ref()?;
        let mut points: Vec<(u32, &PhaseResult)> = Vec::new();
        for phase in &self.results.get(entry.result)?.phases {
            let Some(other) = &phase.phase else { continue };
            let is_new = points.iter().all(|(depth, _)| *depth != other.depth);
            if other.work == asked.work && other.jobs == asked.jobs && is_new {
                points.push((other.depth, phase));
            }
        }
        points.sort_by_key(|(depth, _)| *depth);
        (points.len() > 1).then_some(Sweep {
            result: entry.result,
            points,
        })
    }

    /// One row for each depth of any of the sweeps; the highest of each result says so.
    pub fn sweep_table(&self, sweeps: &[Sweep<'_>], unit: &str) -> Table {
        let mut table = Table::new([numbers("Depth")]);
        let depths: BTreeSet<u32> = sweeps.iter().flat_map(Sweep::depths).collect();
        for sweep in sweeps {
            let label = self.label(sweep.result);
            table.columns.push(numbers(format!("{label}, {unit}")));
            table.columns.push(numbers("p50"));
            table.columns.push(numbers("p99"));
        }
        for depth in depths {
            let mut cells = vec![depth.to_string()];
            for sweep in sweeps {
                let phase = sweep
                    .points
                    .iter()
                    .find(|point| point.0 == depth)
                    .map(|point| point.1);
                let latency = |percentile| {
                    phase
                        .and_then(|phase| at_percentile(phase.latency.as_ref()?, percentile))
                        .map_or_else(unknown, text::microseconds)
                };
                let best = if sweep.best(unit) == Some(depth) {
                    "highest: "
                } else {
                    ""
                };
                cells.push(
                    phase
                        .and_then(|phase| rate(phase, unit))
                        .map_or_else(unknown, |rate| format!("{best}{}", text::number(rate))),
                );
                cells.push(latency(50.0));
                cells.push(latency(99.0));
            }
            table.rows.push(Row {
                cells,
                kind: RowKind::Plain,
                bar: None,
                result: None,
            });
        }
        table
    }

    /// Latencies of the phases of a topic.
    pub fn latency_table(&self, topic: &Topic<'_>) -> Table {
        let mut table = Table::new([words("Latency")]);
        let mut latencies = Vec::new();
        for entry in &topic.entries {
            if let Some(latency) = entry.phase.and_then(|phase| phase.latency.as_ref()) {
                table.columns.push(numbers(self.label(entry.result)));
                latencies.push(latency);
            }
        }
        if latencies.is_empty() {
            return table;
        }
        let mut row = |title: String, value: &dyn Fn(&Latency) -> Option<f64>| {
            let values = latencies.iter().map(|latency| value(latency));
            let cells = values.map(|value| value.map_or_else(unknown, text::microseconds));
            table.rows.push(Row {
                cells: std::iter::once(title).chain(cells).collect(),
                kind: RowKind::Plain,
                bar: None,
                result: None,
            });
        };
        row("min".into(), &|latency| Some(latency.min_us));
        row("mean".into(), &|latency| Some(latency.mean_us));
        for percentile in PERCENTILES {
            let title = if percentile < 100.0 {
                format!("p{percentile}")
            } else {
                "max".into()
            };
            row(title, &|latency| at_percentile(latency, percentile));
        }
        table
    }

    /// One's own figures and the published ones, the highest first.
    pub fn comparisons(&self) -> Vec<Comparison> {
        Workload::ALL
            .into_iter()
            .filter_map(|workload| self.comparison(workload))
            .collect()
    }

    fn comparison(&self, workload: Workload) -> Option<Comparison> {
        struct Bar {
            value: f64,
            kind: RowKind,
            result: Option<usize>,
            cells: [String; 4],
        }
        let mut bars = Vec::new();
        for topic in self
            .topics
            .iter()
            .filter(|topic| topic.workload() == Some(workload))
        {
            for entry in &topic.entries {
                let Some(value) = in_unit(entry.value, &topic.unit, workload.unit()) else {
                    continue;
                };
                let Some(result) = self.results.get(entry.result) else {
                    continue;
                };
                bars.push(Bar {
                    value,
                    kind: RowKind::Best,
                    result: Some(entry.result),
                    cells: [
                        format!("{}: {}", self.label(entry.result), topic.title),
                        hardware(result),
                        format!("{} {}", text::number(value), workload.unit()),
                        format!("this run, {}", result.started),
                    ],
                });
            }
        }
        if bars.is_empty() {
            return None;
        }
        for figure in published()
            .figure
            .iter()
            .filter(|figure| figure.workload == workload)
        {
            let value = in_unit(figure.value, &figure.unit, workload.unit())?;
            let paper = published()
                .paper
                .iter()
                .find(|paper| paper.id == figure.paper)?;
            bars.push(Bar {
                value,
                kind: RowKind::Plain,
                result: None,
                cells: published_cells(figure, paper, value),
            });
        }
        bars.sort_by(|one, other| other.value.total_cmp(&one.value));
        let best = longest(bars.iter().map(|bar| bar.value));
        let mut table = Table::new([
            words("System"),
            words("Hardware"),
            numbers(workload.unit()),
            words("Source"),
        ]);
        for bar in bars {
            table.push(bar.kind, bar.cells);
            table.draw(bar.value / best, bar.result);
        }
        Some(Comparison { workload, table })
    }
}

impl Entry<'_> {
    pub fn is_partial(&self) -> bool {
        self.phase
            .is_some_and(|phase| phase.partial.is_some() || phase.errors > 0)
    }

    /// The foreground figure, how much of the `first` one it is, and the drained one where it differs.
    fn rates(&self, first: Option<f64>) -> String {
        let value = text::number(self.value);
        let drained = self
            .drained
            .map(text::number)
            .filter(|drained| *drained != value);
        let times = first.map(|first| format!(" (×{})", text::number(self.value / first)));
        let drained = drained.map(|drained| format!(", drained {drained}"));
        value + &times.unwrap_or_default() + &drained.unwrap_or_default()
    }
}

impl Topic<'_> {
    /// Whether it is of a volume with bursts, whose charts have a part of the page of their own.
    pub fn is_of_burst(&self) -> bool {
        self.is_of_fileset(&[burst::SUITE])
    }

    fn is_of_fileset(&self, filesets: &[&str]) -> bool {
        let mut phases = self
            .entries
            .iter()
            .filter_map(|entry| entry.phase?.phase.as_ref());
        phases.any(|phase| filesets.contains(&phase.fileset.as_str()))
    }

    /// What published figures it may be shown beside: none for second passes over the same bytes.
    pub fn workload(&self) -> Option<Workload> {
        let title = self.title.to_lowercase();
        if ["rewrit", "re-writ", "reread", "re-read"]
            .iter()
            .any(|again| title.contains(again))
        {
            return None;
        }
        // Classes and caches are what these are about.
        if self.is_of_fileset(&[burst::SUITE, read_cache::SUITE]) {
            return None;
        }
        let phase = self
            .entries
            .iter()
            .find_map(|entry| entry.phase?.phase.as_ref());
        let workload = match phase.map(|phase| &phase.work) {
            Some(Work::Names(_) | Work::Objects(_)) => return None,
            Some(Work::Data(work)) => {
                let workload = Workload::of(work.order, work.direction);
                if workload.unit() == "ops/s" && work.request_bytes > REQUEST_BYTES_COMPARED_MAX {
                    return None;
                }
                workload
            }
            // Imported results may only say it in words.
            None => match (
                title.contains("random"),
                title.contains("read"),
                title.contains("writ"),
            ) {
                (false, true, false) => Workload::SequentialRead,
                (false, false, true) => Workload::SequentialWrite,
                (true, true, false) => Workload::RandomRead,
                (true, false, true) => Workload::RandomWrite,
                _ => return None,
            },
        };
        in_unit(1.0, &self.unit, workload.unit()).map(|_| workload)
    }
}

impl Sweep<'_> {
    fn depths(&self) -> impl Iterator<Item = u32> {
        self.points.iter().map(|(depth, _)| *depth)
    }

    /// The depth with the highest rate.
    fn best(&self, unit: &str) -> Option<u32> {
        let rates = self
            .points
            .iter()
            .filter_map(|(depth, phase)| Some((*depth, rate(phase, unit)?)));
        rates
            .max_by(|one, other| one.1.total_cmp(&other.1))
            .map(|(depth, _)| depth)
    }
}

fn unknown() -> String {
    text::UNKNOWN.to_string()
}

/// What bars are a part of; never 0.
fn longest(values: impl Iterator<Item = f64>) -> f64 {
    values
        .filter(|value| value.is_finite())
        .fold(f64::MIN_POSITIVE, f64::max)
}

/// Short, and different from each other: by suite where only that differs, else by a number.
fn labels(results: &[RunResult]) -> Vec<String> {
    let short = |result: &RunResult| {
        let label = result.label.trim();
        let label = if label.is_empty() { "unnamed" } else { label };
        text::shorten(label, LABEL_CHARACTERS_MAX)
    };
    let mut labels: Vec<String> = Vec::new();
    for result in results {
        let mut wanted = short(result);
        if results
            .iter()
            .filter(|other| short(other) == wanted)
            .count()
            > 1
        {
            wanted = text::shorten(&format!("{wanted}, {}", result.suite), LABEL_CHARACTERS_MAX);
        }
        let mut label = wanted.clone();
        for again in 2.. {
            if !labels.contains(&label) {
                break;
            }
            label = format!("{wanted} ({again})");
        }
        labels.push(label);
    }
    labels
}

fn topics(results: &[RunResult]) -> Vec<Topic<'_>> {
    let mut topics: Vec<Topic<'_>> = Vec::new();
    for (index, result) in results.iter().enumerate() {
        for (title, unit, entry) in entries(index, result) {
            let known = topics.iter_mut().find(|topic| {
                topic.title.eq_ignore_ascii_case(&title)
                    && topic.unit == unit
                    && topic.entries.last().is_none_or(|last| last.result != index)
            });
            match known {
                Some(topic) => topic.entries.push(entry),
                None => topics.push(Topic {
                    title,
                    unit,
                    entries: vec![entry],
                    is_repeated: false,
                }),
            }
        }
    }
    let mut seen = BTreeSet::new();
    for topic in &mut topics {
        let phases = topic
            .entries
            .iter()
            .map(|entry| (entry.result, entry.phase.map(|phase| phase.name.as_str())));
        topic.is_repeated = !seen.insert(phases.collect::<Vec<_>>());
    }
    topics
}

/// The figures of a result; one for each phase where it has no summary.
fn entries(index: usize, result: &RunResult) -> Vec<(String, String, Entry<'_>)> {
    let figures = result.summary.iter().map(|figure| {
        let entry = Entry {
            result: index,
            value: figure.value,
            drained: figure.drained,
            phase: result
                .phases
                .iter()
                .find(|phase| phase.name == figure.phase),
        };
        (figure.title.trim().to_string(), figure.unit.clone(), entry)
    });
    if !result.summary.is_empty() {
        return figures.collect();
    }
    let phases = result.phases.iter().filter_map(|phase| {
        let unit = unit_of(phase);
        let entry = Entry {
            result: index,
            value: rate(phase, unit)?,
            drained: drained_rate(phase, unit),
            phase: Some(phase),
        };
        Some((phase.name.trim().to_string(), unit.to_string(), entry))
    });
    phases.collect()
}

/// What a phase is measured by, where nobody says.
fn unit_of(phase: &PhaseResult) -> &'static str {
    match phase.phase.as_ref().map(|phase| &phase.work) {
        Some(Work::Data(work)) => Workload::of(work.order, work.direction).unit(),
        Some(Work::Names(_)) => "ops/s",
        Some(Work::Objects(work)) => objects::unit(work),
        None if phase.bytes > 0 => "MB/s",
        None => "ops/s",
    }
}

/// Bytes per second of a unit of throughput.
fn unit_bytes(unit: &str) -> Option<f64> {
    let bytes: u64 = match unit.trim_end_matches("/s").trim_end_matches("/sec") {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    Some(bytes as f64)
}

fn is_operations(unit: &str) -> bool {
    matches!(unit, "ops/s" | "IOPS")
}

/// A value in another unit, where the two measure the same.
pub(super) fn in_unit(value: f64, from: &str, to: &str) -> Option<f64> {
    if is_operations(from) && is_operations(to) {
        return Some(value);
    }
    Some(value * unit_bytes(from)? / unit_bytes(to)?)
}

/// The amount in the unit of a rate.
pub(super) fn amount(operations: u64, bytes: u64, unit: &str) -> Option<f64> {
    if is_operations(unit) {
        return Some(operations as f64);
    }
    Some(bytes as f64 / unit_bytes(unit)?)
}

/// The foreground rate of a phase; `None` for units that are no rates, and where no time was measured.
pub(super) fn rate(phase: &PhaseResult, unit: &str) -> Option<f64> {
    let amount = amount(phase.operations, phase.bytes, unit)?;
    (phase.foreground_seconds > 0.0).then(|| amount / phase.foreground_seconds)
}

fn drained_rate(phase: &PhaseResult, unit: &str) -> Option<f64> {
    let amount = amount(phase.operations, phase.bytes, unit)?;
    (phase.drained_seconds > phase.foreground_seconds).then(|| amount / phase.drained_seconds)
}

/// The latency that so many percent of the requests do not exceed.
pub(super) fn at_percentile(latency: &Latency, percentile: f64) -> Option<f64> {
    if percentile >= 100.0 {
        return Some(latency.max_us);
    }
    let pairs = &latency.percentiles_us;
    pairs
        .iter()
        .find(|pair| pair.0 >= percentile)
        .map(|pair| pair.1)
}

/// The slowest, mean and fastest worker.
fn spread(phase: &PhaseResult, unit: &str) -> String {
    let rates = phase.workers.iter().filter_map(|worker| {
        let amount = amount(worker.operations, worker.bytes, unit)?;
        (worker.seconds > 0.0).then(|| amount / worker.seconds)
    });
    let rates: Vec<f64> = rates.collect();
    if rates.is_empty() {
        return unknown();
    }
    let min = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    format!(
        "{}, {}, {}",
        text::number(min),
        text::number(mean),
        text::number(longest(rates.into_iter()))
    )
}

/// The first sentences; a server that was away may have failed every phase.
fn few(mut sentences: Vec<String>) -> Vec<String> {
    let more = sentences.len().saturating_sub(WARNING_COUNT_MAX);
    if more > 0 {
        sentences.truncate(WARNING_COUNT_MAX);
        sentences.push(format!(
            "… and {more} more: all phases are in a table below"
        ));
    }
    sentences
}

fn warnings(result: &RunResult) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(why) = &result.partial {
        warnings.push(format!("This result is partial: {why}"));
    }
    for ClientInfo { name, failed, .. } in &result.clients {
        if let Some(why) = failed {
            warnings.push(format!(
                "The part of client {name} is missing or not whole: {why}"
            ));
        }
    }
    for phase in &result.phases {
        if let Some(why) = &phase.partial {
            warnings.push(format!("“{}” ended early: {why}", phase.name));
        }
        if phase.errors > 0 {
            let first = phase.first_error.as_deref().unwrap_or("not kept");
            warnings.push(format!(
                "“{}” had {} failed requests; the first: {first}",
                phase.name,
                text::count(phase.errors)
            ));
        }
    }
    warnings
}

/// The machines of a result in a few words.
pub(super) fn hardware(result: &RunResult) -> String {
    let Some(client) = result.clients.first() else {
        return unknown();
    };
    let machine = machine(client);
    match result.clients.len() {
        1 => machine,
        many => format!("{many} clients; the first: {machine}"),
    }
}

fn machine(client: &ClientInfo) -> String {
    let machine = &client.machine;
    let mut parts = Vec::new();
    if machine.cpus > 0 {
        parts.push(format!("{} CPUs", machine.cpus));
    }
    if !machine.cpu.is_empty() {
        parts.push(machine.cpu.clone());
    }
    if machine.memory_bytes > 0 {
        parts.push(format!("{} memory", text::bytes(machine.memory_bytes)));
    }
    if parts.is_empty() {
        unknown()
    } else {
        parts.join(", ")
    }
}

fn published_cells(figure: &PublishedFigure, paper: &Paper, value: f64) -> [String; 4] {
    let over = if figure.at_least { "over " } else { "" };
    let unit = figure.workload.unit();
    let mut shown = format!("{over}{} {unit}", text::number(value));
    if figure.unit != unit {
        shown.push_str(&format!(
            " ({} {})",
            text::number(figure.value),
            figure.unit
        ));
    }
    [
        paper.system.clone(),
        figure.hardware.clone(),
        shown,
        format!("{}, {}", paper.title, paper.date),
    ]
}

/// `64 KiB, 2 clients × 4 jobs × depth 64`
fn load(phase: &Phase, clients: usize) -> String {
    let mut workers = String::new();
    if clients > 1 {
        workers.push_str(&format!("{clients} clients × "));
    }
    workers.push_str(&format!("{} jobs × depth {}", phase.jobs, phase.depth));
    match &phase.work {
        Work::Data(work) => format!("{}, {workers}", data_work(work)),
        Work::Objects(work) => format!(
            "{} objects of {} each, {workers}",
            text::count(work.objects),
            text::bytes(work.object_bytes)
        ),
        Work::Names(NamesWork {
            files,
            one_directory,
            ..
        }) => format!(
            "{} files each, {}, {workers}",
            text::count(*files),
            if *one_directory {
                "one directory"
            } else {
                "a directory each"
            }
        ),
    }
}

fn data_work(work: &DataWork) -> String {
    let mut words = vec![text::bytes(work.request_bytes)];
    words.push(match &work.layout {
        Layout::PerWorker { bytes } => format!("files of {}", text::bytes(*bytes)),
        Layout::Shared {
            block_bytes,
            segments,
        } => {
            format!(
                "one file, {} blocks of {}",
                text::count(*segments),
                text::bytes(*block_bytes)
            )
        }
    });
    match work.end {
        End::Whole => {}
        End::After {
            ramp_ms,
            runtime_ms,
        } => words.push(format!(
            "{} after a ramp of {}",
            text::seconds(runtime_ms as f64 / 1e3),
            text::seconds(ramp_ms as f64 / 1e3)
        )),
    }
    match work.fsync {
        Fsync::InClock if work.direction == crate::plan::Direction::Write => {
            words.push("fsync in the clock".into())
        }
        Fsync::EachRequest if work.direction == crate::plan::Direction::Write => {
            words.push("each request synchronous".into());
        }
        _ => {}
    }
    if work.direct {
        words.push("O_DIRECT".into());
    }
    if work.reorder > 0 {
        words.push(format!("reordered by {}", work.reorder));
    }
    words.join(", ")
}

/// Everything that a result says about itself, in pairs.
pub(super) fn about(result: &RunResult) -> Table {
    let mut table = Table::new([words("What"), words("Value")]);
    let mut row = |what: &str, value: String| {
        table.push(RowKind::Plain, [what.to_string(), value]);
    };
    row("suite", result.suite.clone());
    row(
        "target",
        format!("{} ({})", result.target.text, result.target.kind),
    );
    if let Some(mount) = &result.target.mount {
        row("mount", mount.clone());
    }
    row("started", result.started.clone());
    row("cairn", result.cairn_version.clone());
    for client in &result.clients {
        let kernel = [&client.machine.os, &client.machine.kernel]
            .map(|text| text.as_str())
            .join(", ");
        row(
            &format!("client {}", client.name),
            format!("{}; {kernel}; {}", machine(client), client.engine),
        );
    }
    row("caches", result.cache.clone());
    row("data", result.data.as_ref().map_or_else(unknown, data));
    for (name, value) in &result.parameters {
        row(&format!("parameter {name}"), value.clone());
    }
    table
}

fn data(pattern: &DataPattern) -> String {
    let kind = match (pattern.compressible_percent, pattern.dedupe_percent) {
        (0, 0) => "incompressible and unique".to_string(),
        (compressible, dedupe) => format!("{compressible}% compressible, {dedupe}% duplicate"),
    };
    format!("{kind}, seed {}", pattern.seed)
}

/// Every phase of a result, those too that no summary names.
pub(super) fn phases(result: &RunResult) -> Table {
    let mut table = Table::new([
        words("Phase"),
        numbers("MB/s"),
        numbers("ops/s"),
        numbers("drained MB/s"),
        numbers("p50"),
        numbers("p99"),
        numbers("operations"),
        numbers("bytes"),
        numbers("foreground"),
        numbers("drained"),
        numbers("load CPU"),
        numbers("errors"),
        words("Load"),
    ]);
    for phase in &result.phases {
        let latency = |percentile| {
            let latency = phase.latency.as_ref();
            latency
                .and_then(|latency| at_percentile(latency, percentile))
                .map_or_else(unknown, text::microseconds)
        };
        let has_bytes = phase.bytes > 0;
        table.push(
            match phase.partial.is_some() || phase.errors > 0 {
                true => RowKind::Partial,
                false => RowKind::Plain,
            },
            [
                phase.name.clone(),
                rate(phase, "MB/s")
                    .filter(|_| has_bytes)
                    .map_or_else(unknown, text::number),
                rate(phase, "ops/s").map_or_else(unknown, text::number),
                drained_rate(phase, "MB/s")
                    .filter(|_| has_bytes)
                    .map_or_else(unknown, text::number),
                latency(50.0),
                latency(99.0),
                text::count(phase.operations),
                text::bytes(phase.bytes),
                text::seconds(phase.foreground_seconds),
                text::seconds(phase.drained_seconds),
                phase.load_cpu_seconds.map_or_else(unknown, text::seconds),
                text::count(phase.errors),
                phase
                    .phase
                    .as_ref()
                    .map_or_else(unknown, |phase| load(phase, result.clients.len())),
            ],
        );
    }
    table
}
