//! fio's JSON.
//!
//! Owns: what its jobs and options mean as phases. Must not know: how its JSON is taken apart.

use std::collections::BTreeMap;

use super::{ImportError, Imported, Lines, Names, phase, size, time};
use crate::fio::output::{self, Document, Documents, Job, Side};
use crate::plan::{DataWork, Direction, End, Fsync, Layout, Order, Phase, Work};
use crate::result::{Figure, PhaseResult, RunResult, WorkerResult};

pub(super) fn import(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let lines = Lines { name };
    let document = last_document(text, &lines)?;
    if !document.version.starts_with("fio-3") {
        return Err(lines.error(1, "the JSON of fio 3.0 or newer", &document.version));
    }
    let clients = client_names(&document);
    let mut names = Names::default();
    let mut phases = Vec::new();
    let mut summary = Vec::new();
    for group in groups(&document) {
        for direction in [Direction::Write, Direction::Read] {
            let sides: Vec<(&Job, &Side)> = group
                .iter()
                .map(|job| (*job, side(job, direction)))
                .filter(|(_, side)| side.operations() > 0)
                .collect();
            if sides.is_empty() {
                continue;
            }
            lines.room(&phases, 1)?;
            let phase = phase_of(&document, &sides, direction, &clients, &mut names);
            summary.extend(figures(&phase));
            phases.push(phase);
        }
    }
    if phases.is_empty() {
        return Err(ImportError::Empty {
            name: name.to_owned(),
            expected: "a job that has read or written something".to_owned(),
        });
    }
    let started = document.timestamp.max(document.timestamp_ms / 1000);
    let imported = Imported {
        suite: "fio",
        engine: document.version.clone(),
        clients,
        target: target(&document),
        started: (started > 0).then(|| time::rfc3339(started)),
        parameters: document.global_options.clone(),
        phases,
        summary,
        notes: vec![
            "Imported from fio: the start is the time at which it printed its result; of writes both times are \
             fio's, which has an fsync in it only where the job says so."
                .to_owned(),
        ],
    };
    Ok(imported.into_result(name))
}

/// The last of several, as `--status-interval` makes them.
fn last_document(text: &str, lines: &Lines) -> Result<Document, ImportError> {
    let mut documents = Documents::new(text.as_bytes());
    let mut last = None;
    while let Ok(Some(found)) = documents.next_text() {
        last = Some(found);
    }
    // A file that somebody has formatted anew is one document.
    let (text, line) = last
        .as_ref()
        .map_or((text, 1), |found| (found.text.as_str(), found.line));
    serde_json::from_str(text).map_err(|error| lines.json(line, text, &error))
}

fn client_names(document: &Document) -> Vec<String> {
    let mut names: Vec<String> = document
        .jobs()
        .filter_map(|job| job.hostname.clone())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Jobs that ran together under one name.
fn groups(document: &Document) -> Vec<Vec<&Job>> {
    let mut groups: Vec<Vec<&Job>> = Vec::new();
    let mut places: BTreeMap<(i64, &str), usize> = BTreeMap::new();
    for job in document.jobs() {
        let place = *places
            .entry((job.groupid, &job.jobname))
            .or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(job),
            None => groups.push(vec![job]),
        }
    }
    groups
}

fn side(job: &Job, direction: Direction) -> &Side {
    match direction {
        Direction::Read => &job.read,
        Direction::Write => &job.write,
    }
}

fn phase_of(
    document: &Document,
    sides: &[(&Job, &Side)],
    direction: Direction,
    clients: &[String],
    names: &mut Names,
) -> PhaseResult {
    let first = sides.first().map(|(job, _)| *job);
    let verb = match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    };
    let job_name = first.map_or("", |job| job.jobname.as_str());
    let name = names.own(format!("{job_name} {verb}"), " ");
    let sum = |of: fn(&Side) -> u64| {
        sides
            .iter()
            .map(|(_, side)| of(side))
            .fold(0, u64::saturating_add)
    };
    let seconds = sides
        .iter()
        .map(|(_, side)| side.runtime)
        .max()
        .unwrap_or_default() as f64
        / 1e3;
    let mut result = phase(
        name,
        sum(Side::operations),
        sum(|side| side.io_bytes),
        seconds,
    );
    result.phase = first.and_then(|job| plan(document, job, direction, sides.len(), &result.name));
    let failed = sides.iter().filter(|(job, _)| job.error != 0);
    result.errors = failed.clone().count() as u64;
    result.first_error = failed
        .map(|(job, _)| std::io::Error::from_raw_os_error(job.error).to_string())
        .next();
    // With group_reporting one entry is the sum of many jobs.
    if result
        .phase
        .as_ref()
        .is_none_or(|plan| plan.jobs as usize == sides.len())
    {
        let client = |job: &Job| {
            clients
                .iter()
                .position(|name| Some(name) == job.hostname.as_ref())
        };
        result.workers = sides
            .iter()
            .map(|(job, side)| WorkerResult {
                client: client(job).unwrap_or_default(),
                operations: side.operations(),
                bytes: side.io_bytes,
                seconds: side.runtime as f64 / 1e3,
            })
            .collect();
    }
    let cpu: f64 = sides.iter().map(|(job, _)| job.cpu_seconds()).sum();
    result.load_cpu_seconds = (cpu > 0.0 && cpu.is_finite()).then_some(cpu);
    result.latency = output::latency(&sides.iter().map(|(_, side)| *side).collect::<Vec<_>>());
    result
}

/// The plan of a run, where its options can be told in our words.
fn plan(
    document: &Document,
    job: &Job,
    direction: Direction,
    entries: usize,
    name: &str,
) -> Option<Phase> {
    let option = |key: &str| {
        job.options
            .get(key)
            .or_else(|| document.global_options.get(key))
    };
    let flag = |key: &str| option(key).is_some_and(|value| value != "0");
    let number = |key: &str| option(key).map_or(Some(1), |value| value.parse::<u32>().ok());
    let rw = option("rw").or_else(|| option("readwrite"))?;
    let order = match rw.as_str() {
        "read" | "write" => Order::Sequential,
        "randread" | "randwrite" => Order::Random,
        _ => return None,
    };
    let request = option("bs")
        .or_else(|| option("blocksize"))
        .map_or("4k", String::as_str);
    let runtime_ms = option("runtime").and_then(|value| milliseconds(value));
    Some(Phase {
        name: name.to_owned(),
        fileset: "imported".to_owned(),
        jobs: number("numjobs")?.max(u32::try_from(entries).ok()?),
        depth: number("iodepth")?,
        work: Work::Data(DataWork {
            direction,
            order,
            request_bytes: size(request)?,
            layout: Layout::PerWorker {
                bytes: size(option("size").or_else(|| option("filesize"))?)?,
            },
            reorder: 0,
            end: match (flag("time_based"), runtime_ms) {
                (true, Some(runtime_ms)) => End::After {
                    ramp_ms: option("ramp_time")
                        .and_then(|value| milliseconds(value))
                        .unwrap_or(0),
                    runtime_ms,
                },
                _ => End::Whole,
            },
            fsync: match (flag("sync"), flag("end_fsync")) {
                (true, _) => Fsync::EachRequest,
                (false, true) => Fsync::InClock,
                (false, false) => Fsync::After,
            },
            direct: flag("direct"),
        }),
    })
}

/// Seconds unless there is a unit.
fn milliseconds(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn figures(phase: &PhaseResult) -> Vec<Figure> {
    if phase.foreground_seconds <= 0.0 {
        return Vec::new();
    }
    let figure = |value: f64, unit: &str| Figure {
        title: phase.name.clone(),
        value: value / phase.foreground_seconds,
        unit: unit.to_owned(),
        drained: None,
        phase: phase.name.clone(),
    };
    vec![
        figure(phase.bytes as f64 / 1e6, "MB/s"),
        figure(phase.operations as f64, "ops/s"),
    ]
}

fn target(document: &Document) -> String {
    let option = |key: &str| {
        let own = document.jobs().find_map(|job| job.options.get(key));
        own.or_else(|| document.global_options.get(key)).cloned()
    };
    option("directory")
        .or_else(|| option("filename"))
        .unwrap_or_else(|| "unknown".to_owned())
}
