//! NFS workloads: so many connections, each with so many requests in flight on a file or folder of
//! its own, until so much is done.
//!
//! Owns: what each workload sends, names of files, when the clock starts and stops.
//! Must not know: which server answers, how the report is printed.
//!
//! Names, data and the order of random offsets are those of the C program `nfsload`, so
//! that one can read what the other wrote, and rates can be compared.

mod job;
mod report;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use cairn_nfs_client::{Error, NfsUrl};

use crate::drive::{self, Course, DriveError, Settle};
use crate::engine::Control;

pub use report::Report;

use job::LoadPlan;

pub const CONNECTION_COUNT_MAX: usize = 64;
/// Requests in flight on one connection.
pub const DEPTH_MAX: usize = 256;
/// The word that is checked by `verify` has so many bytes.
pub const BLOCK_LEN_BYTES_MIN: u64 = 8;
/// A server that is silent for so long has failed.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Buffers of all connections together.
pub const BUFFER_BYTES_MAX: u64 = 4 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Writes each connection's file from its front to its end.
    SeqWrite,
    SeqRead,
    /// Reads blocks at random until the time is over.
    RandRead,
    RandWrite,
    /// Makes empty files, each connection in a directory of its own.
    Create,
    /// Attributes of the files of `Create`, by name.
    Stat,
    /// Removes the files of `Create`.
    Unlink,
    /// Makes files of one request each, stable when answered, in a directory for each connection.
    FileWrite,
    /// Looks each file of `FileWrite` up and reads it.
    FileRead,
}

impl Workload {
    pub const ALL: [Self; 9] = [
        Self::SeqWrite,
        Self::SeqRead,
        Self::RandRead,
        Self::RandWrite,
        Self::Create,
        Self::Stat,
        Self::Unlink,
        Self::FileWrite,
        Self::FileRead,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::SeqWrite => "seqwrite",
            Self::SeqRead => "seqread",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
            Self::FileWrite => "filewrite",
            Self::FileRead => "fileread",
        }
    }

    pub fn is_write(self) -> bool {
        matches!(self, Self::SeqWrite | Self::RandWrite)
    }

    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite)
    }

    /// Whether it is about names, not data.
    pub fn is_names(self) -> bool {
        matches!(self, Self::Create | Self::Stat | Self::Unlink)
    }

    /// Whether each connection has many files, in a directory.
    pub fn is_in_directory(self) -> bool {
        self.is_names() || matches!(self, Self::FileWrite | Self::FileRead)
    }

    /// Whether it makes its directory.
    pub fn makes_directory(self) -> bool {
        matches!(self, Self::Create | Self::FileWrite)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        let found = Self::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| LoadError::UnknownWorkload(text.to_owned()))
    }
}

/// What to do and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSettings {
    pub workload: Workload,
    /// Each has one file, or one directory, of its own.
    pub connection_count: usize,
    /// Requests in flight on each connection.
    pub depth: usize,
    /// Bytes of each request.
    pub block_len_bytes: u64,
    /// Bytes of each file.
    pub file_len_bytes: u64,
    /// Files of each connection, where it has a directory.
    pub file_count: u64,
    /// `FileRead` takes the files in an order of chance.
    pub shuffle: bool,
    /// When a random workload ends.
    pub time: Duration,
    /// Writes end with COMMIT, inside the clock.
    pub commit: bool,
    /// Each write is FILE_SYNC.
    pub sync: bool,
    /// `SeqWrite` writes a pattern that depends on the place, `SeqRead` checks it.
    pub verify: bool,
    /// `Create`, `Stat` and `Unlink` look the directory up by name each time, and the file as well
    /// after making it, as libnfs does; otherwise each is one call.
    pub walk: bool,
}

impl LoadSettings {
    pub fn new(workload: Workload) -> Self {
        Self {
            workload,
            connection_count: 4,
            depth: 16,
            block_len_bytes: 1 << 20,
            file_len_bytes: 256 << 20,
            file_count: 2000,
            shuffle: false,
            time: Duration::from_secs(10),
            commit: true,
            sync: false,
            verify: false,
            walk: true,
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let limit = |what, min, max| Err(LoadError::Setting { what, min, max });
        if !(1..=CONNECTION_COUNT_MAX).contains(&self.connection_count) {
            return limit("the number of connections", 1, CONNECTION_COUNT_MAX as u64);
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return limit("the depth", 1, DEPTH_MAX as u64);
        }
        if self.workload.is_names() {
            return Ok(());
        }
        let buffers = (self.connection_count * self.depth) as u64;
        let largest = match self.workload.is_in_directory() {
            true => BUFFER_BYTES_MAX / buffers,
            false => self.file_len_bytes.min(BUFFER_BYTES_MAX / buffers),
        };
        if !(BLOCK_LEN_BYTES_MIN..=largest).contains(&self.block_len_bytes) {
            return limit("the bytes of a request", BLOCK_LEN_BYTES_MIN, largest);
        }
        if self.verify && !self.block_len_bytes.is_multiple_of(BLOCK_LEN_BYTES_MIN) {
            return Err(LoadError::NotWords(self.block_len_bytes));
        }
        Ok(())
    }

    fn block_count(&self) -> u64 {
        self.file_len_bytes / self.block_len_bytes
    }
}

/// Why there is no report at all. Requests that fail are counted in the report instead.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "there is no workload `{0}`; there are seqwrite, seqread, randread, randwrite, create, stat, unlink, filewrite and fileread"
    )]
    UnknownWorkload(String),
    #[error("{what} must be from {min} to {max}")]
    Setting {
        what: &'static str,
        min: u64,
        max: u64,
    },
    #[error("to verify, requests must be a multiple of {BLOCK_LEN_BYTES_MIN} bytes, not {0}")]
    NotWords(u64),
    #[error("the server takes at most {len_bytes_max} bytes in a request, not {len_bytes}")]
    BlockTooLarge { len_bytes: u64, len_bytes_max: u32 },
    #[error("connecting to {url}: {error}")]
    Connect {
        url: String,
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("preparing {name}: {error}")]
    Prepare { name: String, error: Error },
    #[error("starting a thread for the load: {0}")]
    Thread(io::Error),
}

impl From<DriveError> for LoadError {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Connect { url, error } => Self::Connect { url, error },
            DriveError::Thread(error) => Self::Thread(error),
        }
    }
}

/// Connects, runs the workload below the place that `url` names, and reports.
///
/// Blocks; must not be called from a task of an asynchronous runtime.
pub fn run(url: &NfsUrl, settings: &LoadSettings) -> Result<Report, LoadError> {
    settings.check()?;
    let workload = settings.workload;
    let course = Course {
        job_count: settings.connection_count,
        connection_count: settings.connection_count,
        depth: settings.depth,
        in_flight_max: settings.depth,
        reply_timeout: REPLY_TIMEOUT,
        ramp: Duration::ZERO,
        runtime: workload.is_random().then_some(settings.time),
        settle: match workload.is_write() && settings.commit {
            true => Settle::InClock,
            false => Settle::Never,
        },
        errors_in_row_max: u64::MAX,
        quiet: false,
    };
    let outcome = drive::drive(url, &LoadPlan { settings }, &course, &Control::default())?;
    Ok(Report::new(outcome.tally, outcome.foreground))
}
