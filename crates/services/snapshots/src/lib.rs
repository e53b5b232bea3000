//! Snapshots that are taken by themselves.
//!
//! Owns: what a schedule says, when a snapshot is due, which are deleted because newer ones are enough, and that all of that
//! lies in the volume itself, so that whoever opens it next goes on.
//! Must not know: who sets schedules, how a snapshot is taken (`fs`), when it is looked whether one is due.

#![forbid(unsafe_code)]

mod keeper;
mod schedule;

pub use keeper::{Done, ScheduleFailure, Schedules, keep, schedules, set_schedules};
pub use schedule::{
    KEEP_MAX, SCHEDULE_COUNT_MAX, SCHEDULE_NAME_LEN_BYTES_MAX, Schedule, ScheduleError, parse, text,
};
