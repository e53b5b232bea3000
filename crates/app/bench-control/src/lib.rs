//! Benchmarks that a server runs on one of its volumes.
//!
//! Owns: the one benchmark that may run, its room, its results. It removes the files of a benchmark, even after a crash.
//! Must not know: how load is made and measured (`cairn_bench`), how a node keeps notes ([`BenchmarkHost`]).
//!
//! The load comes by NFS over the loopback interface, from the client of `cairn bench nfs://...`. So the results are
//! those of a client without a network, with the load's own work on the server's processors.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_admin::api::ErrorKind;
use cairn_admin::benchmarks::{
    BenchmarkControl, BenchmarkEntry, BenchmarkFigure, BenchmarkHost, BenchmarkList,
    BenchmarkNoted, BenchmarkProgress, BenchmarkPublished, BenchmarkPublishedList, BenchmarkRoom,
    BenchmarkRunner, BenchmarkStart, BenchmarkView,
};
use cairn_admin::plans::PlanFile;
use cairn_admin::{Answer, ControlError};
use cairn_base::env::BoxFuture;
use cairn_base::time::rfc3339_utc;
use cairn_base::units::format_size;
use cairn_bench::engine::{Control, Engine, EngineError, Gate, RUN_FOLDER};
use cairn_bench::nfs_engine::NfsEngine;
use cairn_bench::plan::DataPattern;
use cairn_bench::report;
use cairn_bench::result::{Figure, RunResult, TargetInfo};
use cairn_bench::suite::{Job, Local, Observer, Plan, Target, four_corners, phase_ms, run};
use cairn_config::VolumeName;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

const WORKING_SET_BYTES_DEFAULT: u64 = 256 << 20;
const WORKING_SET_BYTES_MIN: u64 = 16 << 20;
const WORKING_SET_BYTES_MAX: u64 = 4 << 30;
const PHASE_SECONDS_DEFAULT: u64 = 11;
const PHASE_SECONDS_MAX: u64 = 60;
const RAMP: Duration = Duration::from_secs(2);
const JOBS: u32 = 2;
const DEPTH: u32 = 16;
/// A benchmark leaves at least so much of the pool free, in percent.
const FREE_PERCENT_MIN: u64 = 10;
/// Overwritten data takes room until it is collected, and so do copies or parity.
const ROOM_FACTOR: u64 = 6;
/// Samples that are kept of a phase.
const SAMPLES_MAX: usize = 60;
/// Interval at which the progress of a run and the free room are checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The number of checks that a rate is computed from.
const LOOKS_MAX: usize = 8;
/// Maximum time that the end of the server waits for a run to remove its files.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Interval of attempts to remove the files that a crash left.
const LEFTOVERS_INTERVAL: Duration = Duration::from_secs(5);

/// The place of the one run.
type Place = Arc<Mutex<Option<Arc<Running>>>>;

/// The benchmarks of one server.
pub struct Benchmarks {
    host: Arc<dyn BenchmarkHost>,
    place: Place,
}

/// A run.
struct Running {
    volume: String,
    working_set_bytes: u64,
    started_seconds: i64,
    control: Control,
    phase: Mutex<PhaseNow>,
    /// The reason why it is being stopped, if it is.
    stopped: Mutex<Option<String>>,
    /// True when the run has ended completely.
    ended: watch::Sender<bool>,
}

/// The present phase of a run.
#[derive(Default)]
struct PhaseNow {
    name: String,
    number: u64,
    count: u64,
    time: Duration,
    begun: Option<Instant>,
    looks: VecDeque<Look>,
}

/// The work done up to a moment.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    operations: u64,
    bytes: u64,
    latency_ns: u64,
}

impl PhaseNow {
    fn look(&mut self, now: Look, gate: Gate) {
        if self.begun.is_none() && gate == Gate::Begun {
            self.begun = Some(now.at);
            // The rate of writing the files is not part of the phase.
            self.looks.clear();
        }
        self.looks.push_back(now);
        if self.looks.len() > LOOKS_MAX {
            self.looks.pop_front();
        }
    }

    /// Bytes and operations per second, and the mean latency in microseconds.
    fn rates(&self) -> (f64, f64, Option<f64>) {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return (0.0, 0.0, None);
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        if seconds <= 0.0 {
            return (0.0, 0.0, None);
        }
        let operations = last.operations.saturating_sub(first.operations) as f64;
        let bytes = last.bytes.saturating_sub(first.bytes) as f64;
        let took_us = last.latency_ns.saturating_sub(first.latency_ns) as f64 / 1e3;
        let latency = (operations > 0.0 && took_us > 0.0).then(|| took_us / operations);
        (bytes / seconds, operations / seconds, latency)
    }

    fn percent(&self, now: Instant) -> u64 {
        let Some(begun) = self.begun else { return 0 };
        let done = now.duration_since(begun).as_millis() * 100;
        let percent = done.checked_div(self.time.as_millis()).unwrap_or(0);
        u64::try_from(percent).unwrap_or(100).min(100)
    }
}

impl Running {
    fn new(volume: &str, working_set_bytes: u64, started_seconds: i64) -> Arc<Self> {
        let (ended, _) = watch::channel(false);
        Arc::new(Self {
            volume: volume.to_owned(),
            working_set_bytes,
            started_seconds,
            control: Control::default(),
            phase: Mutex::default(),
            stopped: Mutex::default(),
            ended,
        })
    }

    /// The first reason is the reported one.
    fn stop(&self, why: &str) {
        self.stopped.lock().get_or_insert_with(|| why.to_owned());
        self.control.stop();
    }

    fn look(&self, at: Instant) {
        let (operations, bytes) = self.control.so_far();
        let now = Look {
            at,
            operations,
            bytes,
            latency_ns: self.control.took_so_far_ns(),
        };
        self.phase.lock().look(now, self.control.gate());
    }

    fn progress(&self) -> BenchmarkProgress {
        let phase = self.phase.lock();
        let (bytes_per_second, operations_per_second, latency_microseconds) = phase.rates();
        BenchmarkProgress {
            volume: self.volume.clone(),
            started_seconds: self.started_seconds,
            working_set_bytes: self.working_set_bytes,
            phase: phase.name.clone(),
            phase_number: phase.number,
            phase_count: phase.count,
            is_preparing: phase.begun.is_none(),
            phase_percent: phase.percent(Instant::now()),
            bytes_per_second,
            operations_per_second,
            latency_microseconds,
            is_stopping: self.control.is_stopped(),
        }
    }
}

/// The reports of the run.
struct Watcher(Arc<Running>);

impl Observer for Watcher {
    fn phase_begins(&mut self, index: usize, plan: &Plan, _: &Control) {
        let Some(step) = plan.steps.get(index) else {
            return;
        };
        *self.0.phase.lock() = PhaseNow {
            name: step.phase.name.clone(),
            number: index as u64 + 1,
            count: plan.steps.len() as u64,
            time: Duration::from_millis(phase_ms(&step.phase)),
            begun: None,
            looks: VecDeque::new(),
        };
    }

    fn phase_ends(&mut self, _: &cairn_bench::result::PhaseResult) {}

    fn warn(&mut self, message: &str) {
        tracing::warn!(
            volume = self.0.volume,
            message,
            "a benchmark of this server"
        );
    }
}

/// Frees the place of the one benchmark, however its thread ends.
struct TakenPlace {
    place: Place,
    running: Arc<Running>,
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        {
            let mut place = self.place.lock();
            let is_own = |one: &Arc<Running>| Arc::ptr_eq(one, &self.running);
            if place.as_ref().is_some_and(is_own) {
                *place = None;
            }
        }
        self.running.ended.send_replace(true);
    }
}

/// A benchmark writes nothing below this free space, in bytes.
fn floor_bytes(room: BenchmarkRoom) -> u64 {
    let low = room.total_bytes / 100 * FREE_PERCENT_MIN;
    low.max(room.reserve_bytes)
}

fn is_low(room: BenchmarkRoom) -> bool {
    room.free_bytes < floor_bytes(room)
}

fn has_room_for(room: BenchmarkRoom, working_set_bytes: u64) -> bool {
    let needed = working_set_bytes.checked_mul(ROOM_FACTOR);
    let needed = needed.and_then(|needed| needed.checked_add(floor_bytes(room)));
    needed.is_some_and(|needed| room.free_bytes >= needed)
}

fn conflict(message: String) -> ControlError {
    ControlError::new(ErrorKind::Conflict, message)
}

fn within(
    name: &str,
    value: u64,
    least: u64,
    most: u64,
    shown: fn(u64) -> String,
) -> Result<(), ControlError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let message = format!("{name} is {} to {}", shown(least), shown(most));
    Err(ControlError::new(ErrorKind::Invalid, message))
}

/// A run of the four corners, each for so long.
fn plan(working_set_bytes: u64, phase_seconds: u64) -> Result<Plan, ControlError> {
    let settings = four_corners::Settings {
        jobs: JOBS,
        working_set_bytes,
        runtime: Duration::from_secs(phase_seconds),
        ramp: RAMP,
        depths: vec![DEPTH],
        sequential_bytes: four_corners::SEQUENTIAL_BYTES_DEFAULT,
        random_bytes: four_corners::RANDOM_BYTES_DEFAULT,
        direct: true,
        sync: false,
    };
    let plan = four_corners::plan(&settings, 1);
    plan.map_err(|error| ControlError::new(ErrorKind::Invalid, error.to_string()))
}

impl Benchmarks {
    /// The benchmarks of a node, as it begins and stops them.
    pub fn start(host: Arc<dyn BenchmarkHost>) -> Arc<dyn BenchmarkRunner> {
        Arc::new(Self {
            host,
            place: Place::default(),
        })
    }

    /// The URL under which the server's own client mounts a volume.
    fn own_url(&self, volume: &str) -> String {
        let (address, port) = self.host.nfs();
        let address = match address.contains(':') {
            true => format!("[{address}]"),
            false => address,
        };
        format!("nfs://{address}:{port}/{volume}?uid=0&gid=0")
    }

    /// An engine on a volume, with the folder for its files.
    async fn engine(&self, volume: &str, bytes_needed: u64) -> Result<NfsEngine, EngineError> {
        let url = self.own_url(volume);
        let prepare = move || {
            let target = url.parse::<Target>();
            let Ok(Target::Nfs(url)) = target else {
                return Err(EngineError::Setting(format!("{url} is not an NFS address")));
            };
            let mut engine = NfsEngine::new(&url)?;
            engine.prepare(bytes_needed, true)?;
            Ok(engine)
        };
        let prepared = tokio::task::spawn_blocking(prepare).await;
        prepared.unwrap_or_else(|error| Err(EngineError::Engine(error.to_string())))
    }

    async fn begin_benchmark(
        &self,
        place: TakenPlace,
        phase_seconds: u64,
    ) -> Result<(), ControlError> {
        let host = &self.host;
        let running = &Arc::clone(&place.running);
        let bytes = running.working_set_bytes;
        let plan = plan(bytes, phase_seconds)?;
        let room = host.room();
        if !has_room_for(room, bytes) {
            let message = format!(
                "the pool has too little space for a benchmark on {} of files: {} are free, and a tenth of the pool must stay free",
                format_size(bytes),
                format_size(room.free_bytes)
            );
            return Err(
                conflict(message).hint("choose a smaller working set, delete data, or add a disk")
            );
        }
        let engine = self.engine(&running.volume, bytes).await;
        let engine = engine.map_err(|error| {
            conflict(error.to_string()).hint(format!(
                "the server measures itself as a client on this machine with the rights of root: `cairn export set {} \
                 --client {} --squash none` lets it in, and its files need room in the volume",
                running.volume, host.nfs().0
            ))
        })?;
        let began = BenchmarkNoted::Began {
            volume: running.volume.clone(),
            working_set_bytes: bytes,
        };
        note(&**host, running.started_seconds, began).await;
        let url = self.own_url(&running.volume);
        let job = Job {
            label: format!(
                "{}, {}",
                running.volume,
                rfc3339_utc(std::time::SystemTime::now())
            ),
            target: TargetInfo {
                kind: "nfs".to_owned(),
                text: url,
                mount: None,
            },
            pattern: DataPattern {
                compressible_percent: 0,
                dedupe_percent: 0,
                seed: host.env().entropy.u64(),
            },
            allow_files: true,
            keep: false,
            keep_caches: false,
        };
        let host_of_thread = Arc::downgrade(host);
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("benchmark".to_owned());
        let work = move || {
            let mut local = Local::new(Box::new(engine));
            let running = &place.running;
            let mut watcher = Watcher(Arc::clone(running));
            let result = run(&plan, &job, &mut local, &running.control, &mut watcher);
            if let Some(host) = host_of_thread.upgrade() {
                runtime.block_on(keep(&*host, running, result));
            }
            drop(place);
        };
        thread.spawn(work).map_err(|error| {
            let message = format!("starting a thread for the benchmark: {error}");
            ControlError::new(ErrorKind::Unavailable, message)
        })?;
        watch_over(host, running);
        Ok(())
    }

    fn taken(&self, running: &Arc<Running>) -> TakenPlace {
        TakenPlace {
            place: Arc::clone(&self.place),
            running: Arc::clone(running),
        }
    }
}

/// Checks the progress of a run, and stops it when room runs out.
fn watch_over(host: &Arc<dyn BenchmarkHost>, running: &Arc<Running>) {
    let clock = Arc::clone(&host.env().clock);
    let (host_weak, running) = (Arc::downgrade(host), Arc::clone(running));
    let watching = async move {
        while !*running.ended.borrow() {
            running.look(Instant::now());
            let Some(host) = host_weak.upgrade() else {
                running.stop("the server stopped");
                return;
            };
            if is_low(host.room()) {
                running.stop("the pool had too little space left");
            }
            drop(host);
            clock.sleep(LOOK_INTERVAL).await;
        }
    };
    host.env().spawner.spawn("benchmark", Box::pin(watching));
}

async fn note(host: &dyn BenchmarkHost, at_seconds: i64, noted: BenchmarkNoted) {
    let entry = BenchmarkEntry {
        id: 0,
        at_seconds,
        noted,
    };
    if let Err(error) = host.note(entry).await {
        tracing::error!(%error, "the result of a benchmark is on no disk yet; it is written with the next result");
    }
}

/// Keeps the results of a run.
async fn keep(host: &dyn BenchmarkHost, running: &Running, result: Result<RunResult, EngineError>) {
    let now_seconds = host.env().clock.now().seconds;
    let seconds = now_seconds.saturating_sub(running.started_seconds);
    let why = running.stopped.lock().clone();
    let mut view = BenchmarkView {
        id: 0,
        started_seconds: running.started_seconds,
        seconds: u64::try_from(seconds).unwrap_or(0),
        volume: running.volume.clone(),
        working_set_bytes: running.working_set_bytes,
        partial: None,
        figures: Vec::new(),
    };
    let result = match result {
        Ok(mut result) => {
            result.notes.push(
                "The load was made by the server's own process, over the loopback interface: the two share processors \
                 and memory, and there is no network."
                    .to_owned(),
            );
            if let (Some(partial), Some(why)) = (&mut result.partial, &why) {
                *partial = format!("{why}: {partial}");
            }
            result.compact(SAMPLES_MAX);
            view.partial.clone_from(&result.partial);
            view.figures = figures(&result);
            serde_json::to_value(&result).unwrap_or_default()
        }
        Err(error) => {
            view.partial = Some(match why {
                Some(why) => format!("{why}: nothing was measured"),
                None => error.to_string(),
            });
            serde_json::Value::Null
        }
    };
    let ended = BenchmarkNoted::Ended {
        run: Box::new(view),
        result,
    };
    note(host, now_seconds, ended).await;
}

fn figures(result: &RunResult) -> Vec<BenchmarkFigure> {
    let of = |figure: &Figure| {
        let mut phases = result.phases.iter();
        let phase = phases.find(|phase| phase.name == figure.phase);
        let latency = phase.and_then(|phase| phase.latency.as_ref());
        let percentile = |percent: f64| {
            let mut known = latency?.percentiles_us.iter();
            let (_, value) = known.find(|(known, _)| *known >= percent)?;
            Some(*value)
        };
        BenchmarkFigure {
            title: figure.title.clone(),
            value: figure.value,
            unit: figure.unit.clone(),
            drained: figure.drained,
            latency_p50_microseconds: percentile(50.0),
            latency_p99_microseconds: percentile(99.0),
            errors: phase.map_or(0, |phase| phase.errors),
        }
    };
    // Leaves out parts without any work.
    let measured = result.summary.iter().filter(|figure| figure.value > 0.0);
    measured.map(of).collect()
}

impl Benchmarks {
    /// Loads the kept results, and removes the files of a run that a crash of the server broke off.
    async fn load(self: Arc<Self>) {
        self.host.load_notes().await;
        let mut left = None;
        self.host.look_at_notes(&mut |last| {
            if let BenchmarkNoted::Began {
                volume,
                working_set_bytes,
            } = &last.noted
            {
                left = Some((volume.clone(), *working_set_bytes, last.at_seconds));
            }
            false
        });
        let Some((volume, working_set_bytes, started_seconds)) = left else {
            return;
        };
        let env = self.host.env().clone();
        let clock = env.clock;
        let benchmarks = Arc::downgrade(&self);
        let removing = async move {
            loop {
                let Some(benchmarks) = benchmarks.upgrade() else {
                    return;
                };
                if benchmarks.host.is_stopping() {
                    return;
                }
                let running = Running::new(&volume, working_set_bytes, started_seconds);
                if benchmarks.remove_leftovers(&running).await {
                    return;
                }
                drop(benchmarks);
                clock.sleep(LEFTOVERS_INTERVAL).await;
            }
        };
        env.spawner.spawn("benchmark leftovers", Box::pin(removing));
    }

    /// Removes the files of a broken-off run; returns whether that is done.
    async fn remove_leftovers(&self, running: &Arc<Running>) -> bool {
        let host = &self.host;
        {
            let mut place = self.place.lock();
            if place.is_some() {
                return false;
            }
            // No run begins in the folder while it is emptied.
            *place = Some(Arc::clone(running));
        }
        let place = self.taken(running);
        running.phase.lock().name = "removing files of an interrupted run".to_owned();
        let name: Result<VolumeName, _> = running.volume.parse();
        let is_there = name.is_ok_and(|name| host.require_volume(&name).is_ok());
        if is_there {
            let removed = match self.engine(&running.volume, 0).await {
                Ok(mut engine) => {
                    let removed = tokio::task::spawn_blocking(move || engine.clean_up()).await;
                    removed.unwrap_or_else(|error| Err(EngineError::Engine(error.to_string())))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                let folder = RUN_FOLDER;
                tracing::warn!(%error, volume = running.volume, folder, "files of an interrupted benchmark could not be removed; the server retries");
                return false;
            }
        }
        let view = BenchmarkView {
            id: 0,
            started_seconds: running.started_seconds,
            seconds: 0,
            volume: running.volume.clone(),
            working_set_bytes: running.working_set_bytes,
            partial: Some("the server stopped during the run; no result was kept".to_owned()),
            figures: Vec::new(),
        };
        let ended = BenchmarkNoted::Ended {
            run: Box::new(view),
            result: serde_json::Value::Null,
        };
        note(&**host, host.env().clock.now().seconds, ended).await;
        drop(place);
        true
    }

    /// Stops a run, and waits until its files are removed.
    async fn end(&self) {
        let running = self.place.lock().clone();
        let Some(running) = running else { return };
        running.stop("the server stopped");
        let mut ended = running.ended.subscribe();
        let waiting = tokio::time::timeout(STOP_MAX, ended.wait_for(|ended| *ended));
        if waiting.await.is_err() {
            tracing::warn!("a benchmark does not stop; the next start removes its files");
        }
    }

    fn result_of(&self, id: u64) -> Result<serde_json::Value, ControlError> {
        let mut found = None;
        self.host.look_at_notes(&mut |entry| {
            let is_it = entry.id == id;
            if let (true, BenchmarkNoted::Ended { result, .. }) = (is_it, &entry.noted) {
                found = Some(result.clone());
            }
            !is_it
        });
        match found {
            None => {
                let message = format!("there is no run {id}");
                Err(ControlError::new(ErrorKind::NotFound, message)
                    .hint("GET /api/v1/benchmarks lists the runs that are kept"))
            }
            Some(result) if result.is_null() => Err(conflict(
                "this run measured nothing, so it has no result".to_owned(),
            )),
            Some(result) => Ok(result),
        }
    }
}

impl BenchmarkRunner for Benchmarks {
    fn begin(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(self.load())
    }

    fn stop(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move { self.end().await })
    }
}

impl BenchmarkControl for Benchmarks {
    fn benchmarks(&self) -> Answer<'_, BenchmarkList> {
        Box::pin(async move {
            let running = self.place.lock().clone();
            let mut runs = Vec::new();
            self.host.look_at_notes(&mut |entry| {
                if let BenchmarkNoted::Ended { run, .. } = &entry.noted {
                    runs.push(BenchmarkView {
                        id: entry.id,
                        ..BenchmarkView::clone(run)
                    });
                }
                true
            });
            Ok(BenchmarkList {
                running: running.map(|running| running.progress()),
                runs,
                problem: self.host.notes_problem(),
            })
        })
    }

    fn benchmark_start(&self, start: BenchmarkStart) -> Answer<'_, BenchmarkProgress> {
        Box::pin(async move {
            let bytes = start.working_set_bytes.unwrap_or(WORKING_SET_BYTES_DEFAULT);
            let (least, most) = (WORKING_SET_BYTES_MIN, WORKING_SET_BYTES_MAX);
            within("working_set_bytes", bytes, least, most, format_size)?;
            let phase_seconds = start.phase_seconds.unwrap_or(PHASE_SECONDS_DEFAULT);
            within(
                "phase_seconds",
                phase_seconds,
                1,
                PHASE_SECONDS_MAX,
                |one| one.to_string(),
            )?;
            self.host.require_volume(&start.volume)?;
            let now_seconds = self.host.env().clock.now().seconds;
            let running = Running::new(start.volume.as_str(), bytes, now_seconds);
            {
                let mut place = self.place.lock();
                if let Some(other) = &*place {
                    let message =
                        format!("a benchmark is already running, on volume {}", other.volume);
                    return Err(conflict(message)
                        .hint("wait until it ends, or stop it with POST /api/v1/benchmarks/stop"));
                }
                *place = Some(Arc::clone(&running));
            }
            let taken = self.taken(&running);
            self.begin_benchmark(taken, phase_seconds).await?;
            Ok(running.progress())
        })
    }

    fn benchmark_stop(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let running = self.place.lock().clone();
            let running = running.ok_or_else(|| conflict("no benchmark runs".to_owned()))?;
            running.stop("an administrator stopped it");
            Ok(())
        })
    }

    fn benchmark_result(&self, id: u64) -> Answer<'_, PlanFile> {
        Box::pin(async move {
            let result = self.result_of(id)?;
            let content = serde_json::to_string_pretty(&result);
            Ok(PlanFile {
                name: "cairn-bench.json",
                kind: "application/json",
                content: content.unwrap_or_default() + "\n",
            })
        })
    }

    fn benchmark_report(&self, ids: Vec<u64>) -> Answer<'_, PlanFile> {
        Box::pin(async move {
            let results = ids.into_iter().map(|id| {
                let result: Result<RunResult, _> = serde_json::from_value(self.result_of(id)?);
                result.map_err(|error| {
                    let message = format!("another version wrote run {id}: {error}");
                    ControlError::new(ErrorKind::Internal, message)
                })
            });
            let results: Vec<RunResult> = results.collect::<Result<_, _>>()?;
            Ok(PlanFile {
                name: "cairn-bench.html",
                kind: "text/html; charset=utf-8",
                content: report::html(&results),
            })
        })
    }

    fn benchmarks_published(&self) -> Answer<'_, BenchmarkPublishedList> {
        Box::pin(async {
            let lines = report::published_lines().into_iter();
            let figures = lines.map(|line| BenchmarkPublished {
                title: line.title,
                value: line.value,
                at_least: line.at_least,
                unit: line.unit.to_owned(),
                system: line.system.to_owned(),
                hardware: line.hardware.to_owned(),
                source: line.source.to_owned(),
                date: line.date.to_owned(),
            });
            Ok(BenchmarkPublishedList {
                figures: figures.collect(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_looked_at_before_a_run_and_in_it() {
        const GIB: u64 = 1 << 30;
        let room = |free_bytes| BenchmarkRoom {
            total_bytes: 100 * GIB,
            free_bytes,
            reserve_bytes: GIB,
        };
        let floor = floor_bytes(room(0));
        assert!(floor > 9 * GIB && floor <= 10 * GIB);
        assert!(has_room_for(room(floor + 6 * GIB), GIB));
        assert!(!has_room_for(room(floor + 6 * GIB - 1), GIB));
        assert!(!is_low(room(floor)));
        assert!(is_low(room(floor - 1)));
        let reserved = BenchmarkRoom {
            reserve_bytes: 20 * GIB,
            ..room(19 * GIB)
        };
        assert!(is_low(reserved));
        assert!(!has_room_for(room(u64::MAX), u64::MAX));
    }

    #[test]
    fn rates_are_of_the_phase_and_of_its_last_looks() {
        let start = Instant::now();
        let look = |ms: u64, operations: u64| Look {
            at: start + Duration::from_millis(ms),
            operations,
            bytes: 4096 * operations,
            latency_ns: 50_000 * operations,
        };
        let mut phase = PhaseNow {
            time: Duration::from_secs(10),
            ..PhaseNow::default()
        };
        assert_eq!(phase.rates(), (0.0, 0.0, None));
        // Files are written.
        phase.look(look(0, 0), Gate::Open);
        phase.look(look(1000, 1_000_000), Gate::Open);
        assert_eq!(phase.percent(look(1000, 0).at), 0);
        // Then the clock runs.
        phase.look(look(2000, 1_000_000), Gate::Begun);
        assert_eq!(phase.rates(), (0.0, 0.0, None));
        phase.look(look(3000, 1_000_100), Gate::Begun);
        assert_eq!(phase.rates(), (409_600.0, 100.0, Some(50.0)));
        assert_eq!(phase.percent(look(7000, 0).at), 50);
        assert_eq!(phase.percent(look(70_000, 0).at), 100);
        for index in 0..100 {
            phase.look(look(3000 + 250 * index, 1_000_100), Gate::Begun);
        }
        assert_eq!(phase.rates(), (0.0, 0.0, None));
        assert_eq!(phase.looks.len(), LOOKS_MAX);
    }

    #[test]
    fn the_usual_run_takes_a_minute() {
        let plan = plan(WORKING_SET_BYTES_DEFAULT, PHASE_SECONDS_DEFAULT).unwrap();
        assert_eq!(plan.steps.len(), 4);
        assert_eq!(plan.timed_ms(), 52_000);
        assert_eq!(plan.bytes_needed, WORKING_SET_BYTES_DEFAULT);
    }
}
