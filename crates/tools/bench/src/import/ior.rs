//! IOR's output: text of IOR 2.8 to 4, and JSON (`-O summaryFormat=JSON`).
//!
//! Owns: its words and tables. Must not know: the other formats.
//!
//! Source: IOR's `ior-output.c`, `PrintHeader`, `PrintTableHeader`, `PrintReducedResult`,
//! `PrintLongSummaryOneOperation`, of versions 3.0 to 4.1; `IOR.c` of 2.10, `ShowInfo`, `ReduceIterResults`,
//! `SummarizeResults`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ImportError, Imported, Lines, Names, is_measured, phase, rounded, size, time};
use crate::result::{Figure, PhaseResult, RunResult};

const MIB: f64 = 1024.0 * 1024.0;
const KIB: f64 = 1024.0;
const PARAMETER_COUNT_MAX: usize = 200;

/// What IOR 2 ends its lines with, for spreadsheets.
const LINE_ENDS: [&str; 2] = ["XXCEL", "EXCEL"];

/// One line of the table of results.
struct Row {
    access: String,
    bandwidth_mib: f64,
    /// None where it is not printed, or too short for the digits that are.
    seconds: Option<f64>,
    /// None where only the head tells it.
    transfer_bytes: Option<f64>,
    /// `iteration 0`
    which: String,
}

impl Row {
    fn phase(&self, name: String, asked: &IorHead) -> PhaseResult {
        let bandwidth = self.bandwidth_mib * MIB;
        // IOR's bandwidth is all bytes over the total time.
        let seconds = match (self.seconds, asked.bytes) {
            (Some(seconds), _) => seconds,
            (None, Some(bytes)) if bandwidth > 0.0 => bytes / bandwidth,
            _ => 0.0,
        };
        let bytes = bandwidth * seconds;
        let operations = match self.transfer_bytes.or(asked.transfer_bytes) {
            Some(transfer) if transfer > 0.0 => bytes / transfer,
            _ => 0.0,
        };
        phase(name, rounded(operations), rounded(bytes), seconds)
    }
}

/// What the head says for lines that do not.
struct IorHead {
    /// Of all tasks together.
    bytes: Option<f64>,
    transfer_bytes: Option<f64>,
}

impl IorHead {
    fn of(parameters: &BTreeMap<String, String>) -> Self {
        let bytes_of = |key: &str| Some(size(parameters.get(key)?)? as f64);
        Self {
            bytes: bytes_of("aggregate filesize"),
            transfer_bytes: bytes_of("xfersize"),
        }
    }
}

/// The phases, each with a name of its own: a file may hold several tests.
fn phases(rows: &[Row], asked: &IorHead) -> Vec<PhaseResult> {
    let mut names = Names::default();
    let mut phases = Vec::new();
    for row in rows {
        let name = names.own(format!("{} {}", row.access, row.which), " of test ");
        phases.push(row.phase(name, asked));
    }
    phases
}

/// The best iteration of each access, as IOR's `Max Write`.
fn best(rows: &[Row], phases: &[PhaseResult]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for access in ["write", "read"] {
        let of_access = rows
            .iter()
            .zip(phases)
            .filter(|(row, _)| row.access == access);
        let Some((row, phase)) = of_access
            .max_by(|(one, _), (other, _)| one.bandwidth_mib.total_cmp(&other.bandwidth_mib))
        else {
            continue;
        };
        figures.push(Figure {
            title: access.to_owned(),
            value: row.bandwidth_mib * MIB / 1e6,
            unit: "MB/s".to_owned(),
            drained: None,
            phase: phase.name.clone(),
        });
    }
    figures
}

fn finish(
    rows: &[Row],
    version: String,
    began: Option<&str>,
    parameters: BTreeMap<String, String>,
    name: &str,
) -> Result<RunResult, ImportError> {
    if rows.is_empty() {
        return Err(ImportError::Empty {
            name: name.to_owned(),
            expected: "a line of the table under \"access bw(MiB/s) ...\" for a write or a read"
                .to_owned(),
        });
    }
    let find = |keys: &[&str]| keys.iter().find_map(|key| parameters.get(*key));
    let target = find(&["test filename", "testFileName", "Path"])
        .map_or("unknown", String::as_str)
        .to_owned();
    // `Linux node038.example`
    let machine = find(&["Machine"]).and_then(|machine| machine.split_whitespace().nth(1));
    let started = began.and_then(time::from_ctime);
    let mut notes = vec![
        "Imported from IOR: times and bandwidths are from the first open to the last close of all tasks, with an \
         fsync only where IOR was given -e."
            .to_owned(),
    ];
    if started.is_some() {
        notes.push("IOR does not say in which time zone it started.".to_owned());
    }
    let phases = phases(rows, &IorHead::of(&parameters));
    let imported = Imported {
        suite: "IOR",
        engine: version,
        clients: machine.map(str::to_owned).into_iter().collect(),
        target,
        started,
        summary: best(rows, &phases),
        phases,
        parameters,
        notes,
    };
    Ok(imported.into_result(name))
}

pub(super) fn import_text(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let lines = Lines { name };
    let mut version = "IOR".to_owned();
    let mut parameters = BTreeMap::new();
    let mut tables = Tables::default();
    for (line, number) in text.lines().zip(1u64..) {
        if tables.take(&lines, number, line)? {
            continue;
        }
        if line.starts_with("IOR-") {
            let word = line.split_whitespace().next().unwrap_or_default();
            version = word.trim_end_matches(':').to_owned();
        } else if let Some((key, value)) = parameter(line)
            && parameters.len() < PARAMETER_COUNT_MAX
        {
            parameters.entry(key).or_insert(value);
        }
    }
    let began = parameters.get("Began").or(parameters.get("Run began"));
    let began = began.cloned();
    finish(&tables.best(), version, began.as_deref(), parameters, name)
}

/// The tables of a text: that of iterations, that of the summary, and the lines `Max Write` and `Max Read`.
#[derive(Default)]
struct Tables {
    columns: Option<Vec<String>>,
    summary_columns: Option<Vec<String>>,
    rows: Vec<Row>,
    summary_rows: Vec<Row>,
    max_rows: Vec<Row>,
}

impl Tables {
    /// Takes a line if it is of a table.
    fn take(&mut self, lines: &Lines, number: u64, line: &str) -> Result<bool, ImportError> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["access", ..] if words.contains(&"bw(MiB/s)") => {
                self.columns = Some(words.into_iter().map(str::to_owned).collect());
                // The next test of several has a table again after a summary.
                self.summary_columns = None;
            }
            ["Operation", ..] if line.contains("Max") && line.contains("(MiB)") => {
                // IOR 2 has a space in `Max (MiB)` and `Std Dev`.
                let line = line.replace(" (", "(").replace("Std Dev", "StdDev");
                self.summary_columns = Some(line.split_whitespace().map(str::to_owned).collect());
            }
            ["Max", access @ ("Write:" | "Read:"), figure, ..] => {
                self.max_rows.push(Row {
                    access: access.trim_end_matches(':').to_lowercase(),
                    bandwidth_mib: lines.number(number, "a bandwidth in MiB/sec", figure)?,
                    seconds: None,
                    transfer_bytes: None,
                    which: "best".to_owned(),
                });
            }
            ["write" | "read", .., last] => {
                let is_old = LINE_ENDS.contains(last);
                if is_old {
                    words.pop();
                }
                if let Some(columns) = &self.summary_columns {
                    // Of IOR 2 the line has more columns than the head, or fewer.
                    let table = Table::new(lines, number, columns, &words, !is_old)?;
                    self.summary_rows.push(table.summary_row()?);
                } else if let Some(columns) = &self.columns {
                    let table = Table::new(lines, number, columns, &words, true)?;
                    self.rows.push(table.row()?);
                } else {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
        let count = self
            .rows
            .len()
            .max(self.summary_rows.len())
            .max(self.max_rows.len());
        match count > super::PHASE_COUNT_MAX {
            true => Err(lines.error(number, "fewer results", line)),
            false => Ok(true),
        }
    }

    /// The table of iterations says most, `Max Write` and `Max Read` least.
    fn best(self) -> Vec<Row> {
        let tables = [self.rows, self.summary_rows, self.max_rows];
        tables
            .into_iter()
            .find(|rows| !rows.is_empty())
            .unwrap_or_default()
    }
}

/// `xfersize            : 1 MiB`; older versions have `=`.
fn parameter(line: &str) -> Option<(String, String)> {
    let (key, value) = line.split_once([':', '='])?;
    let (key, value) = (key.trim(), value.trim());
    let known = !key.is_empty() && key.len() <= 32 && !value.is_empty() && !key.starts_with("Max ");
    known.then(|| (key.to_owned(), value.to_owned()))
}

/// One line of a table, with the table's head.
struct Table<'a> {
    lines: &'a Lines<'a>,
    number: u64,
    columns: &'a [String],
    words: &'a [&'a str],
    /// The line has as many words as the head; else only the first are those of the head.
    same_count: bool,
}

impl<'a> Table<'a> {
    fn new(
        lines: &'a Lines<'a>,
        number: u64,
        columns: &'a [String],
        words: &'a [&'a str],
        same_count: bool,
    ) -> Result<Self, ImportError> {
        if same_count && columns.len() != words.len() {
            let expected = format!("{} columns", columns.len());
            return Err(lines.error(number, expected, &words.join(" ")));
        }
        Ok(Self {
            lines,
            number,
            columns,
            words,
            same_count,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column == name)
    }

    fn text(&self, name: &str) -> Result<&'a str, ImportError> {
        let place = self.columns.iter().position(|column| column == name);
        place
            .and_then(|place| self.words.get(place).copied())
            .ok_or_else(|| {
                let expected = format!("a column {name} in the table");
                self.lines
                    .error(self.number, expected, &self.columns.join(" "))
            })
    }

    fn figure(&self, name: &str) -> Result<f64, ImportError> {
        self.lines.number(self.number, name, self.text(name)?)
    }

    /// Seconds, if there are any to see.
    fn seconds(&self, name: &str) -> Result<Option<f64>, ImportError> {
        if !self.has(name) {
            return Ok(None);
        }
        Ok(Some(self.figure(name)?).filter(|seconds| *seconds > 0.0))
    }

    fn row(&self) -> Result<Row, ImportError> {
        Ok(Row {
            access: self.text("access")?.to_owned(),
            bandwidth_mib: self.figure("bw(MiB/s)")?,
            // IOR before 2.10 does not print it.
            seconds: self.seconds("total(s)")?,
            transfer_bytes: Some(self.figure("xfer(KiB)")? * KIB),
            which: format!("iteration {}", self.text("iter")?),
        })
    }

    fn summary_row(&self) -> Result<Row, ImportError> {
        Ok(Row {
            access: self.text("Operation")?.to_owned(),
            bandwidth_mib: self.figure("Mean(MiB)")?,
            seconds: self.seconds("Mean(s)")?,
            transfer_bytes: match self.same_count {
                true => Some(self.figure("xsize")?),
                false => None,
            },
            which: match self.same_count {
                true => format!("mean of {}", self.text("reps")?),
                false => "mean".to_owned(),
            },
        })
    }
}

/// Where the JSON begins: warnings and what starts the tasks may have printed lines before it.
pub(super) fn json_start(text: &str) -> Option<(usize, u64)> {
    let mut at = 0;
    for (line, number) in text.split_inclusive('\n').zip(1u64..) {
        if line.trim_start().starts_with('{') {
            let is_first = text.get(..at)?.trim().is_empty();
            return (is_first || text.contains("\"tests\"")).then_some((at, number));
        }
        at += line.len();
    }
    None
}

pub(super) fn import_json(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let lines = Lines { name };
    let (at, first_line) = json_start(text).unwrap_or((0, 1));
    let text = text.get(at..).unwrap_or_default();
    // What comes after the JSON is of other programs.
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let whole = match values.next() {
        Some(Ok(whole)) => whole,
        Some(Err(error)) => return Err(lines.json(first_line, text, &error)),
        None => Value::Null,
    };
    let Some(tests) = whole.get("tests").and_then(Value::as_array) else {
        return Err(ImportError::Unknown {
            name: name.to_owned(),
        });
    };
    let mut parameters = BTreeMap::new();
    let mut rows = Vec::new();
    for (test, test_index) in tests.iter().zip(0u64..) {
        for group in ["Parameters", "Options"] {
            let values = test.get(group).and_then(Value::as_object);
            for (key, value) in values.into_iter().flatten().take(PARAMETER_COUNT_MAX) {
                if let Some(value) = scalar(value) {
                    parameters.entry(key.clone()).or_insert(value);
                }
            }
        }
        // Where the results are has changed between versions.
        let results = test
            .get("Results")
            .or_else(|| test.get("Options")?.get("Results"));
        let results = results.and_then(Value::as_array).into_iter().flatten();
        // IOR 3.2 has a list for each iteration.
        let flat = results.flat_map(|result| match result {
            Value::Array(inner) => inner.as_slice(),
            one => std::slice::from_ref(one),
        });
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (result, index) in flat.zip(0u64..) {
            let at = format!("tests[{test_index}].Results[{index}]");
            let access = result.get("access").and_then(Value::as_str);
            let Some(access @ ("write" | "read")) = access else {
                continue;
            };
            if rows.len() >= super::PHASE_COUNT_MAX {
                return Err(lines.error(0, "fewer results", &at));
            }
            // JSON does not say which iteration a result is of.
            let iteration = counts.entry(access).or_default();
            rows.push(json_row(&lines, &at, result, access, *iteration)?);
            *iteration += 1;
        }
    }
    for key in ["Command line", "Machine", "Version"] {
        if let Some(value) = whole.get(key).and_then(scalar) {
            parameters.insert(key.to_owned(), value);
        }
    }
    let version = whole
        .get("Version")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let version = format!("IOR-{}", version.trim_start_matches("IOR-"));
    let began = whole.get("Began").and_then(Value::as_str);
    finish(&rows, version, began, parameters, name)
}

fn json_row(
    lines: &Lines,
    at: &str,
    result: &Value,
    access: &str,
    iteration: usize,
) -> Result<Row, ImportError> {
    let of = |key: &str| match result.get(key).and_then(Value::as_f64) {
        Some(number) if is_measured(number) => Ok(number),
        _ => {
            let found = result
                .get(key)
                .map_or_else(|| format!("{at} without it"), Value::to_string);
            Err(lines.error(0, format!("a number for {key} in {at}"), &found))
        }
    };
    Ok(Row {
        access: access.to_owned(),
        bandwidth_mib: of("bwMiB")?,
        // Four digits after the point are none for a short test.
        seconds: Some(of("totalTime")?).filter(|seconds| *seconds > 0.0),
        transfer_bytes: Some(of("xferKiB")? * KIB),
        which: format!("iteration {iteration}"),
    })
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
