//! Shows the background jobs of this node: to the admin API and to Prometheus.
//!
//! Owns: the names of their metrics. Must not know: what jobs do, when they run (`cairn_base::jobs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::jobs::{JobControl, JobList, JobState, JobView};
use cairn_admin::{Answer, ControlError};
use cairn_base::jobs;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};

use crate::control::Controller;

fn view(job: jobs::JobView) -> JobView {
    let seconds = |time: Duration| time.as_secs_f64();
    let (state, held_because) = match job.state {
        jobs::JobState::Busy => (JobState::Busy, None),
        jobs::JobState::Waiting => (JobState::Waiting, None),
        jobs::JobState::Held(why) => (JobState::Held, Some(why.to_owned())),
        jobs::JobState::Failed => (JobState::Failed, None),
    };
    let (last_error, last_error_at) = job.last_error.unzip();
    JobView {
        name: job.name.to_owned(),
        subject: job.subject,
        state,
        held_because,
        period_seconds: seconds(job.period),
        steps: job.counts.steps,
        errors: job.counts.errors,
        panics: job.counts.panics,
        busy_seconds: seconds(job.counts.busy),
        last_began_seconds: job.last_began.map(|at| at.seconds),
        last_took_seconds: job.last_took.map(seconds),
        busy_for_seconds: job.busy_for.map(seconds),
        next_in_seconds: job.next_in.map(seconds),
        failed_in_row: job.failed_in_row,
        last_error,
        last_error_seconds: last_error_at.map(|at| at.seconds),
    }
}

impl JobControl for Controller {
    fn jobs(&self) -> Answer<'_, JobList> {
        Box::pin(async {
            let env = &self.inner.env;
            let jobs = env.jobs.view(&*env.clock).into_iter().map(view).collect();
            Ok::<_, ControlError>(JobList { jobs })
        })
    }
}

/// Shows the jobs of a node to Prometheus. The label is `name`: Prometheus itself uses `job`.
pub struct JobCollector {
    jobs: Arc<jobs::JobList>,
    clock: Arc<dyn cairn_base::env::Clock>,
    desc: Desc,
}

impl JobCollector {
    pub fn new(env: &cairn_base::env::Env) -> Result<Self, prometheus::Error> {
        Ok(Self {
            jobs: Arc::clone(&env.jobs),
            clock: Arc::clone(&env.clock),
            // The registry needs one to distinguish collectors; families describe themselves.
            desc: Desc::new(
                "cairn_background_jobs".to_owned(),
                "Background jobs".to_owned(),
                Vec::new(),
                HashMap::new(),
            )?,
        })
    }

    fn families(&self) -> Result<Vec<MetricFamily>, prometheus::Error> {
        type Counted = (&'static str, &'static str, fn(&jobs::JobCounts) -> f64);
        #[rustfmt::skip]
        let counted: [Counted; 4] = [
            ("cairn_background_job_steps_total", "Steps of background jobs that ended", |counts| counts.steps as f64),
            ("cairn_background_job_errors_total", "Steps of background jobs that failed", |counts| counts.errors as f64),
            ("cairn_background_job_panics_total", "Steps of background jobs that a bug of the server ended", |counts| counts.panics as f64),
            ("cairn_background_job_busy_seconds_total", "Time that the steps of background jobs took", |counts| counts.busy.as_secs_f64()),
        ];
        let counts = self.jobs.counts();
        let mut families = Vec::new();
        for (name, help, value) in counted {
            let counters = CounterVec::new(Opts::new(name, help), &["name"])?;
            for (job, counts) in &counts {
                counters.with_label_values(&[*job]).inc_by(value(counts));
            }
            families.extend(counters.collect());
        }
        let gauge = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["name"]);
        let busy = gauge(
            "cairn_background_job_busy",
            "Background jobs of this name that do a step now",
        )?;
        let failed = gauge(
            "cairn_background_job_failed",
            "Background jobs of this name whose last step failed",
        )?;
        for job in self.jobs.view(&*self.clock) {
            let is = |state: jobs::JobState| f64::from(u8::from(job.state == state));
            let label = [job.name];
            busy.with_label_values(&label).add(is(jobs::JobState::Busy));
            failed
                .with_label_values(&label)
                .add(is(jobs::JobState::Failed));
        }
        families.extend(busy.collect());
        families.extend(failed.collect());
        Ok(families)
    }
}

impl Collector for JobCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.families().unwrap_or_else(|error| {
            tracing::error!(%error, "the metrics of background jobs cannot be made");
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Tasks that are not jobs, by the reason.
    #[rustfmt::skip]
    const TASKS: &[(&str, &[&str])] = &[
        ("do something once, or until it succeeds", &[
            "S3 start", "a group of snapshots", "benchmark leftovers", "commit move", "damaged places", "deleted volume",
            "deleted volumes", "disk given up", "disk probe", "empty disk", "fence", "iscsi start", "late disk", "log-late",
            "log-prepare", "log-remove", "log-tell", "luns", "meta-quiet", "meta-read", "meta-ship", "meta-state", "objects",
            "pool file", "prepare volume", "read repair", "read-ahead", "second step", "segment append", "segment seal",
            "shard rebuild", "ship volume", "silent disk", "sweep", "take volume", "tiers",
        ]),
        ("state machines that live as long as a volume, a log, a lease, the links between nodes or a benchmark", &[
            "agree", "benchmark", "beats of an owner", "classes", "flush", "lease", "meta-commit", "ownership", "pulse",
        ]),
        ("follow the cluster map", &["admission", "cluster map", "nodes that may connect", "terms of nodes"]),
        ("serve or keep connections", &[
            "dns client", "dns tcp", "dns udp", "internal connection", "internal listener", "own stream", "peer",
            "peer writer", "serving a peer", "serving writer",
        ]),
    ];

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
    }

    /// The sources of the crates that a node is made of, without their tests.
    fn sources() -> Vec<String> {
        let crates = repository().join("crates");
        let layers = [
            "engine",
            "services",
            "edges",
            "app/node",
            "app/bench-control",
        ];
        let mut folders: Vec<PathBuf> = layers.iter().map(|layer| crates.join(layer)).collect();
        let mut sources = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() {
                    if !["tests", "examples", "benches"].contains(&name) {
                        folders.push(path);
                    }
                } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let tests = text.find("#[cfg(test)]\nmod tests");
                    let tests = tests.or_else(|| text.find("#[cfg(test)]\npub(crate) mod tests"));
                    sources.push(text[..tests.unwrap_or(text.len())].to_owned());
                }
            }
        }
        assert!(sources.len() > 300, "{}", sources.len());
        sources
    }

    /// The literal first arguments of calls that end so.
    fn first_arguments(sources: &[String], call: &str) -> BTreeSet<String> {
        let calls = sources.iter().flat_map(|text| text.split(call).skip(1));
        let literal = |after: &str| {
            let text = after.trim_start().strip_prefix('"')?;
            Some(text.split_once('"')?.0.to_owned())
        };
        calls.filter_map(literal).collect()
    }

    #[test]
    fn every_job_is_in_the_manual_and_no_other_job_is() {
        let manual = repository().join("docs/reference/admin.md");
        let manual = std::fs::read_to_string(manual).unwrap();
        let (_, section) = manual.split_once("### Background jobs\n").unwrap();
        let (section, _) = section.split_once("\n##").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let told: BTreeSet<String> = rows
            .map(|row| row.split_once('`').unwrap().0.to_owned())
            .collect();
        let made = first_arguments(&sources(), "every(");
        assert_eq!(told, made);
    }

    /// A new task is a job (`cairn_base::jobs`), which has a pause after errors and shows in the list, or it says here why not.
    #[test]
    fn every_task_is_a_job_or_has_a_reason_not_to_be_one() {
        let sources = sources();
        let mut made = first_arguments(&sources, "spawn(");
        made.extend(first_arguments(&sources, "spawn_thread("));
        let with_reason = TASKS.iter().flat_map(|(_, names)| names.iter());
        let with_reason: BTreeSet<String> = with_reason.map(|name| (*name).to_owned()).collect();
        assert_eq!(made, with_reason);
    }

    #[tokio::test]
    async fn metrics_have_the_counts_of_each_name() {
        let env = cairn_testkit::test_env();
        for subject in ["one", "other"] {
            let job = jobs::Job::every("fails", Duration::from_secs(5)).of(subject);
            job.from_now().start(&env, || {
                std::future::ready(Err::<(), _>("no room".to_owned()))
            });
        }
        let busy = jobs::Job::every("busy", Duration::from_secs(5)).from_now();
        busy.start(&env, std::future::pending::<()>);
        let are_done = || {
            let done = env.jobs.counts();
            done.get("fails").is_some_and(|counts| counts.errors == 2)
        };
        while !are_done() {
            tokio::task::yield_now().await;
        }
        let families = JobCollector::new(&env).unwrap().families().unwrap();
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&families)
            .unwrap();
        for line in [
            "cairn_background_job_steps_total{name=\"fails\"} 2",
            "cairn_background_job_errors_total{name=\"fails\"} 2",
            "cairn_background_job_panics_total{name=\"fails\"} 0",
            "cairn_background_job_steps_total{name=\"busy\"} 0",
            "cairn_background_job_failed{name=\"fails\"} 2",
            "cairn_background_job_busy{name=\"fails\"} 0",
            "cairn_background_job_busy{name=\"busy\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
