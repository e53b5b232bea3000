//! IOR's output: text of IOR 3 and 4, and JSON (`-O summaryFormat=JSON`).
//!
//! Owns: its words and tables. Must not know: the other formats.
//!
//! Source: IOR's `ior-output.c`, `PrintHeader`, `PrintTableHeader`, `PrintReducedResult`,
//! `PrintLongSummaryOneOperation`, of versions 3.0 to 4.1.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ImportError, Imported, Lines, phase, rounded, time};
use crate::result::{Figure, PhaseResult, RunResult};

const MIB: f64 = 1024.0 * 1024.0;
const KIB: f64 = 1024.0;
const PARAMETER_COUNT_MAX: usize = 200;

/// One line of the table of results.
struct Row {
    access: String,
    bandwidth_mib: f64,
    seconds: f64,
    transfer_bytes: f64,
    iteration: String,
}

impl Row {
    fn phase(&self) -> PhaseResult {
        // IOR's bandwidth is all bytes over the total time.
        let bytes = self.bandwidth_mib * MIB * self.seconds;
        let operations = if self.transfer_bytes > 0.0 {
            bytes / self.transfer_bytes
        } else {
            0.0
        };
        let name = format!("{} iteration {}", self.access, self.iteration);
        phase(name, rounded(operations), rounded(bytes), self.seconds)
    }
}

/// The best iteration of each access, as IOR's `Max Write`.
fn best(rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for access in ["write", "read"] {
        let of_access = rows.iter().filter(|row| row.access == access);
        let Some(row) =
            of_access.max_by(|one, other| one.bandwidth_mib.total_cmp(&other.bandwidth_mib))
        else {
            continue;
        };
        figures.push(Figure {
            title: access.to_owned(),
            value: row.bandwidth_mib * MIB / 1e6,
            unit: "MB/s".to_owned(),
            drained: None,
            phase: row.phase().name,
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
    let imported = Imported {
        suite: "IOR",
        engine: version,
        clients: machine.map(str::to_owned).into_iter().collect(),
        target,
        started,
        phases: rows.iter().map(Row::phase).collect(),
        summary: best(rows),
        parameters,
        notes,
    };
    Ok(imported.into_result(name))
}

pub(super) fn import_text(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let lines = Lines { name };
    let mut version = "IOR".to_owned();
    let mut parameters = BTreeMap::new();
    let mut columns: Option<Vec<&str>> = None;
    let mut summary_columns: Option<Vec<&str>> = None;
    let mut rows = Vec::new();
    let mut summary_rows = Vec::new();
    for (line, number) in text.lines().zip(1u64..) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.first().copied(), &columns, &summary_columns) {
            (Some("access"), ..) if words.contains(&"bw(MiB/s)") => columns = Some(words),
            (Some("Operation"), ..) if words.contains(&"Max(MiB)") => summary_columns = Some(words),
            (Some("write" | "read"), _, Some(columns)) => {
                // Newer versions print less after the figures of a stonewall.
                if columns.len() != words.len() {
                    return Err(lines.error(number, format!("{} columns", columns.len()), line));
                }
                summary_rows.push(summary_row(&lines, number, columns, &words)?);
            }
            (Some("write" | "read"), Some(columns), None) => {
                if columns.len() != words.len() {
                    return Err(lines.error(number, format!("{} columns", columns.len()), line));
                }
                if rows.len() >= super::PHASE_COUNT_MAX {
                    return Err(lines.error(number, "fewer results", line));
                }
                rows.push(row(&lines, number, columns, &words)?);
            }
            (Some(first), ..) if first.starts_with("IOR-") => {
                version = first.trim_end_matches(':').to_owned();
            }
            _ => {
                if let Some((key, value)) = parameter(line)
                    && parameters.len() < PARAMETER_COUNT_MAX
                {
                    parameters.entry(key).or_insert(value);
                }
            }
        }
    }
    // The long table has the iterations; the short one only what they came to.
    let rows = if rows.is_empty() { summary_rows } else { rows };
    let began = parameters.get("Began").cloned();
    finish(&rows, version, began.as_deref(), parameters, name)
}

/// `xfersize            : 1 MiB`; older versions have `=`.
fn parameter(line: &str) -> Option<(String, String)> {
    let (key, value) = line.split_once([':', '='])?;
    let (key, value) = (key.trim(), value.trim());
    let known = !key.is_empty() && key.len() <= 32 && !value.is_empty() && !key.starts_with("Max ");
    known.then(|| (key.to_owned(), value.to_owned()))
}

fn column<'a>(
    lines: &Lines,
    number: u64,
    columns: &[&str],
    words: &[&'a str],
    name: &str,
) -> Result<&'a str, ImportError> {
    let place = columns.iter().position(|column| *column == name);
    place
        .and_then(|place| words.get(place).copied())
        .ok_or_else(|| {
            lines.error(
                number,
                format!("a column {name} in the table"),
                &columns.join(" "),
            )
        })
}

fn row(lines: &Lines, number: u64, columns: &[&str], words: &[&str]) -> Result<Row, ImportError> {
    let of = |name: &str| {
        let text = column(lines, number, columns, words, name)?;
        lines.number(number, name, text)
    };
    Ok(Row {
        access: column(lines, number, columns, words, "access")?.to_owned(),
        bandwidth_mib: of("bw(MiB/s)")?,
        seconds: of("total(s)")?,
        transfer_bytes: of("xfer(KiB)")? * KIB,
        iteration: column(lines, number, columns, words, "iter")?.to_owned(),
    })
}

fn summary_row(
    lines: &Lines,
    number: u64,
    columns: &[&str],
    words: &[&str],
) -> Result<Row, ImportError> {
    let of = |name: &str| {
        let text = column(lines, number, columns, words, name)?;
        lines.number(number, name, text)
    };
    Ok(Row {
        access: column(lines, number, columns, words, "Operation")?.to_owned(),
        bandwidth_mib: of("Mean(MiB)")?,
        seconds: of("Mean(s)")?,
        transfer_bytes: of("xsize")?,
        iteration: format!("mean of {}", column(lines, number, columns, words, "reps")?),
    })
}

pub(super) fn import_json(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let lines = Lines { name };
    let whole: Value = serde_json::from_str(text).map_err(|error| lines.json(1, text, &error))?;
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
        for (result, index) in results.zip(0u64..) {
            let at = format!("tests[{test_index}].Results[{index}]");
            let access = result
                .get("access")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if !matches!(access, "write" | "read") {
                continue;
            }
            if rows.len() >= super::PHASE_COUNT_MAX {
                return Err(lines.error(0, "fewer results", &at));
            }
            // JSON does not say which iteration a result is of.
            let iteration = rows
                .iter()
                .filter(|row: &&Row| row.access == access)
                .count();
            rows.push(json_row(&lines, &at, result, access, iteration)?);
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
        Some(number) if number.is_finite() && number >= 0.0 => Ok(number),
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
        seconds: of("totalTime")?,
        transfer_bytes: of("xferKiB")? * KIB,
        iteration: iteration.to_string(),
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
