//! The result of a benchmark, as it is kept in a file (docs/guide/bench.md has the schema in words).
//!
//! Owns: the JSON schema and its version, adding up clients, what is derived from samples.
//! Must not know: engines, suites, how results are shown.

mod compact;
mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::read::{LoadError, RESULT_LEN_BYTES_MAX, load, parse};
use crate::plan::{DataPattern, Phase};

/// The version of the schema. A reader takes this one and the older ones it knows, no newer ones.
pub const SCHEMA: &str = "cairn-bench/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub schema: String,
    /// `four-corners`, `iozone`, `ior`, `metadata`; of a foreign program for imported results.
    pub suite: String,
    /// For charts; the target unless the user says otherwise.
    pub label: String,
    /// RFC 3339, UTC.
    pub started: String,
    pub cairn_version: String,
    /// Why this is not all that was asked for; absent when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    pub target: TargetInfo,
    pub clients: Vec<ClientInfo>,
    /// Absent in imported results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataPattern>,
    /// How caches were treated before reads, in words.
    pub cache: String,
    /// What the user asked for, as flags and values.
    pub parameters: BTreeMap<String, String>,
    pub phases: Vec<PhaseResult>,
    /// The figures that the suite is about.
    pub summary: Vec<Figure>,
    /// What a reader must know to judge the figures, each a sentence.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Throughput and credit over time, of a volume in a class with bursts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<CreditCurve>,
    /// Where the server had the bytes from, and what keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<ReadsOf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// `nfs`, `path`, or `imported`.
    pub kind: String,
    /// As the user wrote it.
    pub text: String,
    /// Of a path: type, source and options of the mount it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    pub name: String,
    pub machine: Machine,
    /// `cairn-nfs 0.1.0`, `fio-3.33`.
    pub engine: String,
    /// Why its part is missing or not whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub kernel: String,
    pub os: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    pub name: String,
    /// Absent in imported results that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Requests that succeeded; for READDIR entries.
    pub operations: u64,
    pub bytes: u64,
    pub errors: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// From the start of the first worker to the end of the last request that counts.
    pub foreground_seconds: f64,
    /// From the start of the first worker until everything written is stable; equal to the foreground for reads.
    pub drained_seconds: f64,
    /// CPU time of the load itself, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_cpu_seconds: Option<f64>,
    pub workers: Vec<WorkerResult>,
    /// Over all workers, by time; the sum of `operations` is that of the phase.
    pub samples: Vec<Sample>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// What to give the engine to run this again (a fio job file).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_file: Option<String>,
    /// Why it ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

impl PhaseResult {
    /// A phase that did nothing, and why.
    pub fn nothing(phase: &Phase, reason: String) -> Self {
        Self {
            name: phase.name.clone(),
            phase: Some(phase.clone()),
            operations: 0,
            bytes: 0,
            errors: 0,
            first_error: None,
            foreground_seconds: 0.0,
            drained_seconds: 0.0,
            load_cpu_seconds: None,
            workers: Vec::new(),
            samples: Vec::new(),
            latency: None,
            job_file: None,
            partial: Some(reason),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerResult {
    /// Place in [`RunResult::clients`].
    pub client: usize,
    pub operations: u64,
    pub bytes: u64,
    /// Until its last request, with its fsync if that is in the clock.
    pub seconds: f64,
}

/// Counts of one interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its start, from the start of the phase.
    pub at_seconds: f64,
    pub seconds: f64,
    pub operations: u64,
    pub bytes: u64,
}

/// The latency of single requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub min_us: f64,
    pub mean_us: f64,
    pub max_us: f64,
    /// Pairs of percentile and microseconds, rising, from 0 to 100.
    pub percentiles_us: Vec<(f64, f64)>,
    /// The histogram of nanoseconds in HDR's V2 format with deflate, base64; to be merged. Absent when
    /// only percentiles are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// One figure of the summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// `sequential read`
    pub title: String,
    pub value: f64,
    /// `MB/s` (10^6) or `ops/s`
    pub unit: String,
    /// The value when everything was stable; absent for reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<f64>,
    /// The phase it is from.
    pub phase: String,
}

/// Credit for bursts over time: what the server said, and what a model says. Times are from the start of the first stretch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreditCurve {
    /// `read`, `write`
    pub title: String,
    /// The limit that it is about: `read-throughput`.
    pub limit: String,
    pub class: String,
    pub baseline_bytes_per_second: u64,
    pub burst_bytes_per_second: u64,
    pub credit_max_bytes: u64,
    /// When full speed was asked for: the phases, whose samples say what was delivered.
    pub stretches: Vec<Stretch>,
    /// By the server, rising in time.
    pub samples: Vec<CreditSample>,
    /// Credit by the planner's model, which begins with the credit of the first sample.
    pub model: Vec<CreditModel>,
    /// By how much the sum of what was delivered differed from the model's, at most, of all that it delivers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation_percent: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// The name of its phase.
    pub phase: String,
    pub at_seconds: f64,
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreditSample {
    pub at_seconds: f64,
    pub credit_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreditModel {
    pub at_seconds: f64,
    pub bytes_per_second: f64,
    pub credit_bytes: f64,
}

/// Where a server had the bytes of reads from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadsOf {
    /// Read caches that were in use.
    pub cache_count: u64,
    pub cache_bytes: u64,
    /// What the server keeps of data in its memory, at most.
    pub memory_bytes: u64,
    pub passes: Vec<ReadsOfPhase>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadsOfPhase {
    pub phase: String,
    pub from_cache_bytes: u64,
    pub from_disks_bytes: u64,
}
