//! IOzone's report of throughput mode (`-t`, or `-l` and `-u`).
//!
//! Owns: its lines. Must not know: the other formats.
//!
//! Source: IOzone's `iozone.c`, `throughput_test`; its kilobytes are 1024 bytes.

use std::collections::BTreeMap;

use super::{ImportError, Imported, Lines, Names, phase, rounded, size, time};
use crate::result::{Figure, PhaseResult, RunResult, WorkerResult};

const CHILDREN: &str = "Children see throughput for";
const KIB: f64 = 1024.0;

/// One test: the lines from `Children see` to the next.
#[derive(Default)]
struct Test {
    processes: u64,
    /// `initial writers`
    title: String,
    children_kib: f64,
    min_kib: Option<f64>,
    max_kib: Option<f64>,
    avg_kib: Option<f64>,
    min_xfer_kib: Option<f64>,
    /// KiB and KiB/s of each child, with `-C`.
    children: Vec<(f64, f64)>,
    /// It printed operations (`-O`).
    in_operations: bool,
}

pub(super) fn import(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let lines = Lines { name };
    let mut parameters = BTreeMap::new();
    let mut version = "IOzone".to_owned();
    let mut tests: Vec<Test> = Vec::new();
    for (line, number) in text.lines().zip(1u64..) {
        let line = line.trim();
        let units = Units {
            lines: &lines,
            number,
            record_bytes: record_bytes(&parameters),
        };
        if let Some(rest) = line.strip_prefix(CHILDREN) {
            if tests.len() >= super::PHASE_COUNT_MAX {
                return Err(lines.error(number, "fewer results", line));
            }
            tests.push(begin(&units, rest)?);
        } else if let Some(rest) = line.strip_prefix("Version $Revision:") {
            version = format!("IOzone {}", rest.trim().trim_end_matches('$').trim());
        } else if let Some(test) = tests.last_mut() {
            follow(&units, line, test)?;
        } else {
            head(line, &mut parameters);
        }
    }
    if tests.is_empty() {
        return Err(ImportError::Empty {
            name: name.to_owned(),
            expected: format!("lines {CHILDREN:?}, which IOzone prints in throughput mode (-t)"),
        });
    }
    let record_bytes = record_bytes(&parameters).unwrap_or(0);
    let mut names = Names::default();
    let mut phases = Vec::new();
    let mut summary = Vec::new();
    for test in &tests {
        let phase = test.phase(record_bytes, &mut names);
        summary.extend(test.figures(&phase.name, record_bytes));
        phases.push(phase);
    }
    let started = parameters
        .get("run began")
        .and_then(|text| time::from_ctime(text));
    let imported = Imported {
        suite: "IOzone",
        engine: version,
        clients: Vec::new(),
        target: "unknown".to_owned(),
        started,
        parameters,
        phases,
        summary,
        notes: vec![
            "Imported from IOzone: the throughput is that which the children see; bytes and seconds are worked out \
             from it and from the least that a process has moved (min xfer)."
                .to_owned(),
        ],
    };
    Ok(imported.into_result(name))
}

fn record_bytes(parameters: &BTreeMap<String, String>) -> Option<u64> {
    size(parameters.get("record size")?).filter(|bytes| *bytes > 0)
}

/// What the numbers of one line are in.
struct Units<'a> {
    lines: &'a Lines<'a>,
    number: u64,
    record_bytes: Option<u64>,
}

impl Units<'_> {
    fn error(&self, expected: impl Into<String>, found: &str) -> ImportError {
        self.lines.error(self.number, expected, found)
    }

    /// `301113.50 kB/sec` or, with `-O`, `294.00 ops/sec`, as KiB.
    fn kib(&self, value: &str, per: &str) -> Result<f64, ImportError> {
        let mut words = value.split_whitespace();
        let (figure, unit) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let unit = unit.strip_suffix(per).unwrap_or_default().to_lowercase();
        let factor = match (unit.as_str(), self.record_bytes) {
            ("kb" | "kbytes", _) => 1.0,
            ("ops", Some(bytes)) => bytes as f64 / KIB,
            ("ops", None) => {
                return Err(self.error("a \"Record Size\" before operations", value.trim()));
            }
            _ => {
                let expected = format!("a number and kB{per} or ops{per}");
                return Err(self.error(expected, value.trim()));
            }
        };
        Ok(self.lines.number(self.number, "the throughput", figure)? * factor)
    }
}

/// `  8 initial writers  =  301113.50 kB/sec`
fn begin(units: &Units, rest: &str) -> Result<Test, ImportError> {
    let expected = "\"N TEST = NUMBER kB/sec\" after \"Children see throughput for\"";
    let (what, value) = rest
        .split_once('=')
        .ok_or_else(|| units.error(expected, rest))?;
    let mut words = what.split_whitespace();
    let processes = words
        .next()
        .and_then(|count| count.parse().ok())
        .filter(|count| *count > 0);
    let title: Vec<&str> = words.collect();
    match (processes, title.is_empty()) {
        (Some(processes), false) => Ok(Test {
            processes,
            title: title.join(" "),
            children_kib: units.kib(value, "/sec")?,
            in_operations: value.contains("ops"),
            ..Test::default()
        }),
        _ => Err(units.error(expected, rest)),
    }
}

/// A line under `Children see`.
fn follow(units: &Units, line: &str, test: &mut Test) -> Result<(), ImportError> {
    let Some((what, value)) = line.split_once('=') else {
        return Ok(());
    };
    let what = what.trim();
    if what.starts_with("Min throughput per") {
        test.min_kib = Some(units.kib(value, "/sec")?);
    } else if what.starts_with("Max throughput per") {
        test.max_kib = Some(units.kib(value, "/sec")?);
    } else if what.starts_with("Avg throughput per") {
        test.avg_kib = Some(units.kib(value, "/sec")?);
    } else if what == "Min xfer" {
        test.min_xfer_kib = Some(units.kib(value, "")?);
    } else if what.starts_with("Child[") {
        // `Child[0] xfer count =  131072.00 kB, Throughput =  301113.50 kB/sec`
        let expected = "\"NUMBER kB, Throughput = NUMBER kB/sec\"";
        let (moved, rate) = value
            .split_once(',')
            .ok_or_else(|| units.error(expected, line))?;
        let (_, rate) = rate
            .split_once('=')
            .ok_or_else(|| units.error(expected, line))?;
        if test.children.len() as u64 >= test.processes {
            return Err(units.error(format!("{} children", test.processes), line));
        }
        test.children
            .push((units.kib(moved, "")?, units.kib(rate, "/sec")?));
    }
    Ok(())
}

/// Reads the parameters above the first test.
fn head(line: &str, parameters: &mut BTreeMap<String, String>) {
    let heads = [
        ("Record Size", "record size"),
        ("File size set to", "file size"),
        ("Command line used:", "command line"),
        ("Run began:", "run began"),
        ("Throughput test with", "throughput test with"),
    ];
    for (start, key) in heads {
        if let Some(value) = line.strip_prefix(start) {
            parameters
                .entry(key.to_owned())
                .or_insert_with(|| value.trim().to_owned());
        }
    }
    // `Each process writes a 131072 kByte file in 1024 kByte records`, which every version prints.
    if let Some((_, records)) = line.split_once(" file in ")
        && line.starts_with("Each process writes")
        && let Some(number) = records.split_whitespace().next()
    {
        let key = "record size".to_owned();
        parameters
            .entry(key)
            .or_insert_with(|| format!("{number} kB"));
    }
    if line.starts_with("Include fsync") || line.starts_with("Include close") {
        parameters
            .entry(line.to_owned())
            .or_insert_with(|| "yes".to_owned());
    }
}

impl Test {
    fn phase(&self, record_bytes: u64, names: &mut Names) -> PhaseResult {
        let kib = match self.children.is_empty() {
            true => self.min_xfer_kib.unwrap_or_default() * self.processes as f64,
            false => self.children.iter().map(|(moved, _)| moved).sum(),
        };
        let seconds = if self.children_kib > 0.0 {
            kib / self.children_kib
        } else {
            0.0
        };
        let bytes = rounded(kib * KIB);
        let operations = bytes.checked_div(record_bytes).unwrap_or_default();
        // A report with several counts of processes has the same test for each.
        let name = names.own(format!("{} {}", self.processes, self.title), " ");
        let mut result = phase(name, operations, bytes, seconds);
        result.workers = self
            .children
            .iter()
            .map(|(moved, rate)| {
                let bytes = rounded(moved * KIB);
                WorkerResult {
                    client: 0,
                    operations: bytes.checked_div(record_bytes).unwrap_or_default(),
                    bytes,
                    seconds: if *rate > 0.0 { moved / rate } else { 0.0 },
                }
            })
            .collect();
        result
    }

    /// In what IOzone was told to print.
    fn figures(&self, phase: &str, record_bytes: u64) -> Vec<Figure> {
        let (divisor, unit) = match self.in_operations {
            true => (record_bytes.max(1) as f64, "ops/s"),
            false => (1e6, "MB/s"),
        };
        let figure = |title: String, kib: f64| Figure {
            title,
            value: kib * KIB / divisor,
            unit: unit.to_owned(),
            drained: None,
            phase: phase.to_owned(),
        };
        let each = [
            ("min", self.min_kib),
            ("max", self.max_kib),
            ("avg", self.avg_kib),
        ];
        let each = each
            .into_iter()
            .filter_map(|(word, kib)| Some(figure(format!("{phase}, {word} per process"), kib?)));
        std::iter::once(figure(phase.to_owned(), self.children_kib))
            .chain(each)
            .collect()
    }
}
