//! `cairn job`: background jobs of a server.

use cairn_admin::jobs::{JOB_LIST, JobState, JobView};
use clap::Subcommand;

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align};

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the background jobs of the server that answers: state, next step, errors
    List(ViewArgs),
}

pub fn job(command: &JobCommand) -> Result<(), Failure> {
    let JobCommand::List(args) = command;
    let client = access::client(&args.server)?;
    let list = client.ask(JOB_LIST, &())?;
    match args.json {
        true => print::json(&list),
        false => print::text(&jobs_text(&list.jobs)),
    }
}

fn jobs_text(jobs: &[JobView]) -> String {
    let columns = [
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("STEPS", Align::Right),
        ("ERRORS", Align::Right),
        ("LAST", Align::Right),
        ("NEXT", Align::Right),
        ("DETAILS", Align::Left),
    ];
    let rows = jobs.iter().map(|job| {
        let name = match &job.subject {
            Some(subject) => format!("{} ({})", job.name, print::name(subject)),
            None => job.name.clone(),
        };
        vec![
            name,
            job.state.as_str().to_owned(),
            job.steps.to_string(),
            job.errors.to_string(),
            shown(job.busy_for_seconds.or(job.last_took_seconds)),
            shown(job.next_in_seconds),
            details(job),
        ]
    });
    print::table(&columns, rows.collect())
}

/// Why a job does nothing, or the error that its next step may get over.
fn details(job: &JobView) -> String {
    let text = match job.state {
        JobState::Held => job.held_because.as_deref(),
        JobState::Failed => job.last_error.as_deref(),
        JobState::Busy | JobState::Waiting => None,
    };
    text.map(|text| print::name(text).into_owned())
        .unwrap_or_default()
}

/// A time in the unit in which it has at most four digits.
fn shown(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        Some(seconds) if seconds < 600.0 => format!("{seconds:.0} s"),
        Some(seconds) if seconds < 36_000.0 => format!("{:.0} min", seconds / 60.0),
        Some(seconds) => format!("{:.0} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_one_line() {
        let job = |name: &str, state| JobView {
            name: name.to_owned(),
            subject: None,
            state,
            held_because: None,
            period_seconds: 1.0,
            steps: 3,
            errors: 1,
            panics: 0,
            busy_seconds: 0.5,
            last_began_seconds: Some(1),
            last_took_seconds: Some(0.0123),
            busy_for_seconds: None,
            next_in_seconds: Some(599.6),
            failed_in_row: 0,
            last_error: Some("no\nroom".to_owned()),
            last_error_seconds: Some(1),
        };
        let jobs = [
            // An error that the job has got over is in the JSON alone.
            job("pool-file", JobState::Waiting),
            JobView {
                failed_in_row: 1,
                subject: Some("main".to_owned()),
                ..job("certificate", JobState::Failed)
            },
            JobView {
                held_because: Some("no scrub is under way".to_owned()),
                ..job("scrub", JobState::Held)
            },
            JobView {
                busy_for_seconds: Some(7200.0),
                next_in_seconds: None,
                ..job("rebuild", JobState::Busy)
            },
        ];
        let text = jobs_text(&jobs);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        let want = [
            "pool-file waiting 3 1 12 ms 600 s -",
            "certificate (main) failed 3 1 12 ms 600 s no\\nroom",
            "scrub held 3 1 12 ms 600 s no scrub is under way",
            "rebuild busy 3 1 120 min - -",
        ];
        let want: Vec<Vec<&str>> = want
            .iter()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines, want);
    }
}
