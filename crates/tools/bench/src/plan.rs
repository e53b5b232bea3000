//! What a benchmark does, phase by phase, whatever does it.
//!
//! Owns: the words for workloads, their limits.
//! Must not know: engines, results, suites.

use serde::{Deserialize, Serialize};

/// Workers of one phase on one client.
pub const JOB_COUNT_MAX: u32 = 1024;
/// Requests in flight of one worker.
pub const DEPTH_MAX: u32 = 1024;
/// Bytes of one request.
pub const REQUEST_LEN_BYTES_MAX: u64 = 256 << 20;
/// Length of [`Phase::fileset`].
pub const FILESET_LEN_BYTES_MAX: usize = 32;
/// Length of [`Phase::name`].
pub const PHASE_NAME_LEN_BYTES_MAX: usize = 128;
/// Files of one worker in a phase of names.
pub const FILES_PER_WORKER_MAX: u64 = 100_000_000;
/// Ramp and runtime together.
pub const RUNTIME_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// One thing that is measured. The phases of a plan run one after the other; a phase may use the
/// files of those before it in the same [`Phase::fileset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Unique in a plan, for people: `seq-read depth 64`.
    pub name: String,
    /// Phases of one file set work on the same files. `[a-z0-9-]`, up to 32 bytes.
    pub fileset: String,
    /// Workers on each client, each with a file or folder, or a part of a shared one.
    pub jobs: u32,
    /// Requests in flight of each worker.
    pub depth: u32,
    pub work: Work,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Work {
    Data(DataWork),
    Names(NamesWork),
    Objects(ObjectsWork),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataWork {
    pub direction: Direction,
    pub order: Order,
    /// Bytes of each request.
    pub request_bytes: u64,
    pub layout: Layout,
    /// A worker reads what the worker so many places after it wrote (modulo all workers of all
    /// clients), so that no client reads what it has in its cache; 0: its own.
    pub reorder: u32,
    pub end: End,
    /// Writes end with COMMIT or fsync. The clock of the drained figure stops after it, whatever
    /// this says of the foreground figure.
    pub fsync: Fsync,
    /// Bypasses the cache of a mounted client (O_DIRECT); our own NFS client has none.
    pub direct: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    Sequential,
    /// Uniformly random requests, aligned to the length of a request.
    Random,
}

/// Where the bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "files", rename_all = "kebab-case")]
pub enum Layout {
    /// Each worker has a file of so many bytes.
    PerWorker { bytes: u64 },
    /// One file: segment after segment, in each the block of worker 0, 1, ... of all clients, as IOR
    /// lays it out.
    Shared { block_bytes: u64, segments: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "when", rename_all = "kebab-case")]
pub enum End {
    /// When each worker has been through its bytes once.
    Whole,
    /// After the time; what is done during the ramp before it does not count. Sequential work
    /// starts over at the end of the file.
    After { ramp_ms: u64, runtime_ms: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fsync {
    /// Inside the clock (IOzone `-e`).
    InClock,
    /// After the clock of the foreground figure has stopped.
    After,
    /// Each request is stable when it is answered (O_SYNC, FILE_SYNC).
    EachRequest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesWork {
    pub operation: NamesOperation,
    /// Files of each worker.
    pub files: u64,
    /// All workers of all clients in one directory, or one each.
    pub one_directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamesOperation {
    Create,
    Stat,
    /// Lists the whole directory; an operation is an entry.
    Readdir,
    Rename,
    Unlink,
}

/// Objects of S3, each written and read whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsWork {
    pub operation: ObjectsOperation,
    /// Bytes of each object.
    pub object_bytes: u64,
    /// Objects of each worker.
    pub objects: u64,
    /// After a time: each worker begins again, or takes objects in an order of chance.
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectsOperation {
    Put,
    Get,
    /// Lists all objects of the worker in pages of 1,000; an operation is an entry.
    List,
    /// Of ten requests, seven read and three overwrite.
    Mixed,
    Delete,
    /// 1,000 keys in a request; an operation is a key.
    DeleteMany,
}

/// A phase or data pattern that no engine can do, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("phase \"{phase}\": {problem}")]
pub struct PhaseError {
    pub phase: String,
    pub problem: String,
}

impl Phase {
    /// Bytes that the files of one worker have; 0 for names.
    ///
    /// Fails when it does not fit into 64 bits, as [`Self::check`] says.
    pub fn bytes_per_worker(&self) -> Option<u64> {
        match &self.work {
            Work::Names(_) => Some(0),
            Work::Objects(work) => work.object_bytes.checked_mul(work.objects),
            Work::Data(data) => match data.layout {
                Layout::PerWorker { bytes } => Some(bytes),
                Layout::Shared {
                    block_bytes,
                    segments,
                } => block_bytes.checked_mul(segments),
            },
        }
    }

    /// Refuses what is beyond the limits; phases may come over the network.
    pub fn check(&self) -> Result<(), PhaseError> {
        self.problem().map_or(Ok(()), |problem| {
            Err(PhaseError {
                phase: self.name.chars().take(PHASE_NAME_LEN_BYTES_MAX).collect(),
                problem,
            })
        })
    }

    fn problem(&self) -> Option<String> {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if self.name.is_empty() || self.name.len() > PHASE_NAME_LEN_BYTES_MAX {
            return Some(format!(
                "its name must have 1 to {PHASE_NAME_LEN_BYTES_MAX} bytes"
            ));
        }
        let fileset = self.fileset.as_bytes();
        if !(1..=FILESET_LEN_BYTES_MAX).contains(&fileset.len())
            || !fileset.iter().all(|byte| is_word(*byte))
        {
            return Some(format!(
                "its file set must have 1 to {FILESET_LEN_BYTES_MAX} of a-z, 0-9 and '-'"
            ));
        }
        if !(1..=JOB_COUNT_MAX).contains(&self.jobs) {
            return Some(format!("there must be 1 to {JOB_COUNT_MAX} jobs"));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Some(format!("the depth must be 1 to {DEPTH_MAX}"));
        }
        match &self.work {
            Work::Data(data) => self.data_problem(data),
            Work::Names(names) => (!(1..=FILES_PER_WORKER_MAX).contains(&names.files))
                .then(|| format!("there must be 1 to {FILES_PER_WORKER_MAX} files of each job")),
            Work::Objects(work) => objects_problem(work),
        }
    }

    fn data_problem(&self, data: &DataWork) -> Option<String> {
        if !(1..=REQUEST_LEN_BYTES_MAX).contains(&data.request_bytes) {
            return Some(format!(
                "a request must have 1 to {REQUEST_LEN_BYTES_MAX} bytes"
            ));
        }
        let unit = match data.layout {
            Layout::PerWorker { bytes } => bytes,
            Layout::Shared { block_bytes, .. } => block_bytes,
        };
        if unit == 0 || unit % data.request_bytes != 0 {
            return Some(format!(
                "{unit} bytes are not a whole number of requests of {} bytes",
                data.request_bytes
            ));
        }
        if self.bytes_per_worker().is_none_or(|bytes| bytes == 0) {
            return Some("there must be 1 segment at least, and not more than fit".to_owned());
        }
        end_problem(data.end)
    }
}

fn end_problem(end: End) -> Option<String> {
    match end {
        End::Whole => None,
        End::After {
            ramp_ms,
            runtime_ms,
        } => {
            let total = ramp_ms.saturating_add(runtime_ms);
            (runtime_ms == 0 || total > RUNTIME_MS_MAX)
                .then(|| "the time to run must be above 0, and below a week".to_owned())
        }
    }
}

fn objects_problem(work: &ObjectsWork) -> Option<String> {
    if !(1..=FILES_PER_WORKER_MAX).contains(&work.objects) {
        return Some(format!(
            "there must be 1 to {FILES_PER_WORKER_MAX} objects of each job"
        ));
    }
    if !(1..=REQUEST_LEN_BYTES_MAX).contains(&work.object_bytes) {
        return Some(format!(
            "an object must have 1 to {REQUEST_LEN_BYTES_MAX} bytes"
        ));
    }
    end_problem(work.end)
}

/// The bytes that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPattern {
    /// How much of each block compresses away; 0 is incompressible.
    pub compressible_percent: u8,
    /// How many of the blocks are copies of others; 0 is unique.
    pub dedupe_percent: u8,
    pub seed: u64,
}
