//! Results of other programs as results of ours: fio's JSON, IOR's text and JSON, IOzone's text.
//!
//! Owns: telling the formats apart, what an imported result says of itself.
//! Must not know: how the programs are run, how results are shown.

mod fio;
mod ior;
mod iozone;
#[cfg(test)]
mod tests;
mod time;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::result::{ClientInfo, Figure, Machine, PhaseResult, RunResult, SCHEMA, TargetInfo};

/// fio's `json+` of a thousand jobs is about 60 MiB.
pub const IMPORT_LEN_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Phases of one imported file.
const PHASE_COUNT_MAX: usize = 10_000;
/// In whatever unit: MiB/s, KiB, seconds.
const NUMBER_MAX: f64 = 1e15;
/// Of a line in an error.
const SHOWN_CHARS_MAX: usize = 80;

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("reading {path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("{name} is longer than {IMPORT_LEN_BYTES_MAX} bytes")]
    TooLong { name: String },
    #[error(
        "{name} is not a result that can be read; it takes fio's JSON (--output-format=json+), IOR's text \
         or JSON, and IOzone's text of throughput mode (-t)"
    )]
    Unknown { name: String },
    #[error("{name} is {what}; {hint}")]
    Other {
        name: String,
        what: &'static str,
        hint: &'static str,
    },
    #[error("{name}, line {line}: expected {expected}, found {found:?}")]
    Line {
        name: String,
        /// Counted from 1.
        line: u64,
        expected: String,
        found: String,
    },
    #[error("{name} has no results: expected {expected}")]
    Empty { name: String, expected: String },
}

/// Reads a file of another program.
pub fn import_file(path: &Path) -> Result<RunResult, ImportError> {
    let name = path.display().to_string();
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?
            .take(IMPORT_LEN_BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| ImportError::Read {
        path: name.clone(),
        error,
    })?;
    if bytes.len() as u64 > IMPORT_LEN_BYTES_MAX {
        return Err(ImportError::TooLong { name });
    }
    import(&String::from_utf8_lossy(&bytes), &name)
}

/// Reads the output of another program. `name` is for errors, and for the label.
pub fn import(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let has = |wanted: &str| {
        text.lines()
            .any(|line| line.trim_start().starts_with(wanted))
    };
    if text.contains("\"fio version\"") {
        fio::import(text, name)
    } else if text.contains("\"cairn-bench/") {
        Err(ImportError::Other {
            name: name.to_owned(),
            what: "already a result of cairn bench",
            hint: "show it with: cairn bench report",
        })
    } else if ior::json_start(text).is_some() {
        ior::import_json(text, name)
    } else if text.contains("MPI Coordinated Test of Parallel I/O")
        || has("Max Write:")
        || has("Max Read:")
    {
        ior::import_text(text, name)
    } else if has("Iozone:") || has("Children see throughput") {
        iozone::import(text, name)
    } else if has("fio-") {
        Err(ImportError::Other {
            name: name.to_owned(),
            what: "fio's output for people",
            hint: "run fio with --output-format=json+",
        })
    } else {
        Err(ImportError::Unknown {
            name: name.to_owned(),
        })
    }
}

/// What the formats have found.
struct Imported {
    /// The program.
    suite: &'static str,
    /// The program and its version.
    engine: String,
    /// Of machines; one at least is shown.
    clients: Vec<String>,
    target: String,
    /// RFC 3339, if the program says.
    started: Option<String>,
    parameters: BTreeMap<String, String>,
    phases: Vec<PhaseResult>,
    summary: Vec<Figure>,
    notes: Vec<String>,
}

impl Imported {
    fn into_result(mut self, name: &str) -> RunResult {
        if self.started.is_none() {
            self.notes
                .push("The file does not say when it was run.".to_owned());
        }
        if self.clients.is_empty() {
            self.clients.push("unknown".to_owned());
        }
        let engine = self.engine;
        let client = |name: String| ClientInfo {
            name,
            machine: Machine::default(),
            engine: engine.clone(),
            failed: None,
        };
        let errors: u64 = self
            .phases
            .iter()
            .map(|phase| phase.errors)
            .fold(0, u64::saturating_add);
        RunResult {
            schema: SCHEMA.to_owned(),
            suite: self.suite.to_owned(),
            label: Path::new(name).file_stem().map_or_else(
                || name.to_owned(),
                |stem| stem.to_string_lossy().into_owned(),
            ),
            started: self.started.unwrap_or_else(|| time::rfc3339(0)),
            cairn_version: env!("CARGO_PKG_VERSION").to_owned(),
            partial: (errors > 0).then(|| format!("{} reports errors", self.suite)),
            target: TargetInfo {
                kind: "imported".to_owned(),
                text: self.target,
                mount: None,
            },
            clients: self.clients.into_iter().map(client).collect(),
            data: None,
            cache: "not known: imported".to_owned(),
            parameters: self.parameters,
            phases: self.phases,
            summary: self.summary,
            notes: self.notes,
            credits: Vec::new(),
            reads: None,
        }
    }
}

/// A phase of which only the whole is known.
fn phase(name: String, operations: u64, bytes: u64, seconds: f64) -> PhaseResult {
    PhaseResult {
        name,
        phase: None,
        operations,
        bytes,
        errors: 0,
        first_error: None,
        foreground_seconds: seconds,
        drained_seconds: seconds,
        load_cpu_seconds: None,
        workers: Vec::new(),
        samples: Vec::new(),
        latency: None,
        job_file: None,
        partial: None,
    }
}

/// Gives each phase of one file a name of its own: figures refer to phases by their names.
#[derive(Default)]
struct Names {
    /// Under how many a name was asked for; 1 of those that came of the numbering.
    taken: HashMap<String, u64>,
}

impl Names {
    /// `name`, or with `before_number` and the next number that makes it another than all before.
    fn own(&mut self, name: String, before_number: &str) -> String {
        let mut count = self.taken.get(&name).copied().unwrap_or_default();
        let mut own = name.clone();
        while self.taken.contains_key(&own) {
            count += 1;
            own = format!("{name}{before_number}{count}");
        }
        self.taken.insert(name, count.max(1));
        self.taken.entry(own.clone()).or_insert(1);
        own
    }
}

/// The errors of one file.
struct Lines<'a> {
    name: &'a str,
}

impl Lines<'_> {
    fn error(&self, line: u64, expected: impl Into<String>, found: &str) -> ImportError {
        ImportError::Line {
            name: self.name.to_owned(),
            line,
            expected: expected.into(),
            found: found.chars().take(SHOWN_CHARS_MAX).collect(),
        }
    }

    /// A number that a measurement can give.
    fn number(&self, line: u64, what: &str, text: &str) -> Result<f64, ImportError> {
        match text.parse::<f64>() {
            Ok(number) if is_measured(number) => Ok(number),
            _ => Err(self.error(line, format!("a number for {what}"), text)),
        }
    }

    fn json(&self, first_line: u64, text: &str, error: &serde_json::Error) -> ImportError {
        let at = text
            .lines()
            .nth(error.line().saturating_sub(1))
            .unwrap_or_default();
        let line = first_line.saturating_add(error.line().saturating_sub(1) as u64);
        self.error(line, format!("JSON ({error})"), at.trim())
    }

    fn room(&self, phases: &[PhaseResult], line: u64) -> Result<(), ImportError> {
        match phases.len() < PHASE_COUNT_MAX {
            true => Ok(()),
            false => Err(self.error(
                line,
                format!("at most {PHASE_COUNT_MAX} results"),
                "one more",
            )),
        }
    }
}

/// Not negative, and so far from the end that products of a few of them are finite.
fn is_measured(number: f64) -> bool {
    (0.0..=NUMBER_MAX).contains(&number)
}

/// A count from a product of measured numbers; what is too large is the largest.
fn rounded(value: f64) -> u64 {
    // `as` saturates, and turns what is no number into 0.
    value.round() as u64
}

/// A size as these programs write it: `4k`, `1 MiB`, `262144`. Their k is 1024.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: f64 = number.parse().ok()?;
    let unit = unit.trim().to_ascii_lowercase();
    let factor: f64 = match unit
        .strip_suffix("ib")
        .or(unit.strip_suffix('b'))
        .unwrap_or(&unit)
    {
        "" | "bytes" => 1.0,
        "k" => 1024.0,
        "m" => 1024.0 * 1024.0,
        "g" => 1024.0 * 1024.0 * 1024.0,
        "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * factor;
    (bytes < i64::MAX as f64).then(|| rounded(bytes))
}
