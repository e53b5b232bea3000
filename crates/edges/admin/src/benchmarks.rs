//! Benchmarks that a server runs on itself: the JSON, what the API and a node ask of them, and what they ask of a node.
//! A server may be built without them.

use std::sync::Arc;

use cairn_base::env::{BoxFuture, Env};
use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::{Answer, ControlError};
use crate::entries::Entry;
use crate::plans::PlanFile;

/// Longest line of a run as it is kept, in bytes.
pub const BENCHMARK_LINE_LEN_BYTES_MAX: usize = 256 << 10;
/// Runs that one report shows.
pub const BENCHMARK_REPORT_RUNS_MAX: usize = 8;

/// A benchmark to run: the four corners (sequential and random, read and write) for about a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkStart {
    /// The volume for the benchmark's files, which are removed at the end.
    #[schema(value_type = String, example = "main", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volume: VolumeName,
    /// Total size of all files in bytes, 16 MiB to 4 GiB; by default 256 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16777216, maximum = 4294967296u64)]
    pub working_set_bytes: Option<u64>,
    /// Seconds for each of the four corners, 1 to 60; by default 11.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 60)]
    pub phase_seconds: Option<u64>,
}

/// One figure of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkFigure {
    #[schema(example = "sequential read")]
    pub title: String,
    pub value: f64,
    /// `MB/s` (10^6) or `ops/s`.
    #[schema(example = "MB/s")]
    pub unit: String,
    /// The rate until all written data was stable; left out for reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<f64>,
    /// Median and 99th percentile of the latency of single requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p50_microseconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p99_microseconds: Option<f64>,
    /// Requests that failed.
    pub errors: u64,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkView {
    pub id: u64,
    pub started_seconds: i64,
    pub seconds: u64,
    #[schema(example = "main")]
    pub volume: String,
    pub working_set_bytes: u64,
    /// Why the result is partial; left out for a complete result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// Empty if the run ended before it measured anything.
    pub figures: Vec<BenchmarkFigure>,
}

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BenchmarkProgress {
    #[schema(example = "main")]
    pub volume: String,
    pub started_seconds: i64,
    pub working_set_bytes: u64,
    /// Name of the current phase.
    #[schema(example = "random read, depth 16")]
    pub phase: String,
    /// Number of the current phase, from 1.
    pub phase_number: u64,
    pub phase_count: u64,
    /// Whether the run is still writing files for the phase, which is not yet timed.
    pub is_preparing: bool,
    /// Completed share of the phase, if known.
    pub phase_percent: u64,
    /// Rates over the last two seconds.
    pub bytes_per_second: f64,
    pub operations_per_second: f64,
    /// Mean latency over the last two seconds; left out without requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_microseconds: Option<f64>,
    /// Whether the run is stopping: it ends once its files are removed.
    pub is_stopping: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BenchmarkList {
    /// The running benchmark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<BenchmarkProgress>,
    /// Stored runs, newest first.
    pub runs: Vec<BenchmarkView>,
    /// Why runs cannot be written to disk now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A published figure of another system on other hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BenchmarkPublished {
    #[schema(example = "sequential read")]
    pub title: String,
    pub value: f64,
    /// The value is a lower limit.
    pub at_least: bool,
    #[schema(example = "MB/s")]
    pub unit: String,
    pub system: String,
    pub hardware: String,
    pub source: String,
    pub date: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BenchmarkPublishedList {
    /// Grouped by figure, the highest first.
    pub figures: Vec<BenchmarkPublished>,
}

/// The notes of runs, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkEntry {
    pub id: u64,
    pub at_seconds: i64,
    pub noted: BenchmarkNoted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BenchmarkNoted {
    /// Files are written to this volume from now on.
    Began {
        volume: String,
        working_set_bytes: u64,
    },
    /// They are removed.
    Ended {
        run: Box<BenchmarkView>,
        /// As `cairn bench` writes it to a file; null if nothing was measured.
        result: serde_json::Value,
    },
}

impl Entry for BenchmarkEntry {
    const LINE_LEN_BYTES_MAX: usize = BENCHMARK_LINE_LEN_BYTES_MAX;

    fn id(&self) -> u64 {
        self.id
    }

    fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    fn at_seconds(&self) -> i64 {
        self.at_seconds
    }
}

/// What a node does about benchmarks.
pub trait BenchmarkControl: Send + Sync {
    fn benchmarks(&self) -> Answer<'_, BenchmarkList>;
    /// Begins one, unless one runs or there is too little room.
    fn benchmark_start(&self, start: BenchmarkStart) -> Answer<'_, BenchmarkProgress>;
    /// Ends the one that runs: what was measured is kept.
    fn benchmark_stop(&self) -> Answer<'_, ()>;
    /// The result of a run as a file of `cairn bench`.
    fn benchmark_result(&self, id: u64) -> Answer<'_, PlanFile>;
    /// A page of some runs.
    fn benchmark_report(&self, ids: Vec<u64>) -> Answer<'_, PlanFile>;
    fn benchmarks_published(&self) -> Answer<'_, BenchmarkPublishedList>;
}

/// What a node asks of its benchmarks when it starts and ends.
pub trait BenchmarkRunner: BenchmarkControl {
    /// Loads the kept runs, and begins to remove the files of a run that a crash broke off.
    fn begin(self: Arc<Self>) -> BoxFuture<()>;
    /// Stops the run, and waits for a limited time until its files are removed.
    fn stop(self: Arc<Self>) -> BoxFuture<()>;
}

/// Space of a pool that matters to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchmarkRoom {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Bytes that must stay free, so that deletions and rebuilds work.
    pub reserve_bytes: u64,
}

/// What benchmarks ask of the node that they measure.
pub trait BenchmarkHost: Send + Sync {
    fn env(&self) -> &Env;
    /// Whether the node ends.
    fn is_stopping(&self) -> bool;
    fn room(&self) -> BenchmarkRoom;
    /// Refuses a volume that the pool does not have.
    fn require_volume(&self, volume: &VolumeName) -> Result<(), ControlError>;
    /// The address and port at which clients on this machine reach NFS.
    fn nfs(&self) -> (String, u16);
    /// Loads the notes of earlier runs from the disks.
    fn load_notes(&self) -> BoxFuture<()>;
    /// Adds a note, which gets its id. Fails if no disk has it in time: then it is written with the next one.
    fn note(&self, note: BenchmarkEntry) -> BoxFuture<Result<(), String>>;
    /// Shows the notes, newest first, until `look` returns false.
    fn look_at_notes(&self, look: &mut dyn FnMut(&BenchmarkEntry) -> bool);
    /// Why notes cannot be written to disk now.
    fn notes_problem(&self) -> Option<String>;
}
