//! The scrub file of a disk: where the last scrub stands, and what it found. Layout: docs/reference/formats/pool.md.
//!
//! Owns: the state as plain data, its limits, its encoding.
//! Must not know: I/O, and how a scrub goes.

use std::collections::BTreeSet;

use cairn_base::{PoolId, VolumeId};
use serde::{Deserialize, Serialize};

use crate::copies::Picked;
use crate::text_file::{TextFileError, decode_copy, decode_file, encode_file, json_of};

const MAGIC: &str = "cairn-scrub";
/// Of the format.
const FORMAT_VERSION: u32 = 1;
/// The file, which is two copies of the state, is not longer than this, in bytes.
pub const SCRUB_FILE_LEN_BYTES_MAX: u64 = 16 << 20;
/// Most damaged places that are remembered; more are counted.
pub const DAMAGES_MAX: usize = 10_000;
/// Most segments that are remembered to be rewritten; more are for the next scrub.
pub const REWRITES_MAX: usize = 10_000;
/// No count that is true comes near this, and whatever is added to one that is below fits.
pub const COUNT_MAX: u64 = 1 << 62;

/// Where a scrub stands in one volume: first its segments in order, then its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    pub volume: VolumeId,
    /// The last segment that is done.
    pub segment: u64,
    /// The last segment to check: segments may be made faster than a scrub checks them, and it must end.
    pub segment_last: Option<u64>,
    /// All segments are done; of the records, those up to this place.
    pub records: Option<(u64, u64)>,
    /// All segments are done; of the inodes, those up to this one.
    pub inode_last: Option<u64>,
}

/// Bytes `start..end` of a file that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Damage {
    pub volume: VolumeId,
    pub inode: u64,
    pub start: u64,
    pub end: u64,
    pub segment: u64,
    pub detail: String,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubStage {
    /// None was ever started.
    #[default]
    Never,
    Running,
    /// Stopped by the operator; goes on from there.
    Paused,
    Done,
}

/// The progress and results of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubState {
    pub pool: PoolId,
    /// Grows with every writing; of several copies the highest counts.
    pub version: u64,
    pub stage: ScrubStage,
    /// Set by the operator; else the config's.
    pub rate_bytes_per_second: Option<u64>,
    /// It began by itself, and rests while the maintenance window is closed. An operator who starts it ends that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_schedule: bool,
    pub started_seconds: i64,
    pub finished_seconds: i64,
    pub done_bytes: u64,
    pub volumes_done: Vec<VolumeId>,
    pub cursor: Option<Cursor>,
    pub shards: u64,
    pub records: u64,
    pub wrong_bytes: u64,
    pub repaired_bytes: u64,
    pub shards_rebuilt: u64,
    pub shards_sealed: u64,
    pub shards_away: u64,
    pub errors: u64,
    /// Segments of the volume that it is in whose records have to be rewritten.
    pub rewrites: BTreeSet<u64>,
    pub damages: Vec<Damage>,
    pub damages_more: u64,
}

impl ScrubState {
    fn check(&self) -> Result<(), TextFileError> {
        let refuse = |what: &str| Err(TextFileError::Content(what.to_owned()));
        let counts = [
            self.version,
            self.done_bytes,
            self.shards,
            self.records,
            self.wrong_bytes,
            self.repaired_bytes,
            self.shards_rebuilt,
            self.shards_sealed,
            self.shards_away,
            self.errors,
            self.damages_more,
        ];
        if counts.iter().any(|count| *count > COUNT_MAX) {
            return refuse("a count that cannot be");
        }
        if self.damages.len() > DAMAGES_MAX {
            return refuse("too many damaged places");
        }
        if self.rewrites.len() > REWRITES_MAX {
            return refuse("too many segments to be rewritten");
        }
        if self.damages.iter().any(|damage| damage.start > damage.end) {
            return refuse("a damaged place that ends before it begins");
        }
        Ok(())
    }
}

/// The bytes of a scrub file: two copies of the state.
pub fn encode_scrub(state: &ScrubState) -> Vec<u8> {
    encode_file(MAGIC, FORMAT_VERSION, &json_of(state, false))
}

/// Reads one of the two copies in a scrub file.
pub fn decode_scrub_copy(copy: &[u8]) -> Result<ScrubState, TextFileError> {
    let state: ScrubState = decode_copy(copy, MAGIC, FORMAT_VERSION)?;
    state.check()?;
    Ok(state)
}

/// Reads a whole scrub file.
pub fn decode_scrub(file: &[u8]) -> Result<Picked<ScrubState, TextFileError>, TextFileError> {
    decode_file(file, decode_scrub_copy, |state| state.version)
}
