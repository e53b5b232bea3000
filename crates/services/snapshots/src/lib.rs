//! Snapshots that are taken by themselves, files and directories that are restored from one, and clones of them.
//!
//! Owns: what a schedule says, when a snapshot is due, which are deleted because newer ones are enough, and that all of that
//! lies in the volume itself, so that its next owner goes on; what comes with a file or directory that is restored;
//! lists of changes while they are read; the steps of a snapshot of volumes of several nodes.
//! Must not know: who asks, how a snapshot is taken and its bytes are shared (`fs`), when it is looked whether one is due.

#![forbid(unsafe_code)]

mod clone;
mod diff;
pub mod group;
mod keeper;
mod restore;
mod schedule;

pub use clone::{CloneFailure, clone};
pub use diff::{DIFF_IDLE_MAX, DIFF_PAGE_MAX, DIFFS_MAX, DiffFailure, DiffPage, Diffs};
pub use keeper::{
    AUTODELETE_PERCENT_MAX, Done, ScheduleFailure, Schedules, keep, schedules, set_autodelete,
    set_schedules,
};
pub use restore::{RestoreFailure, Restored, kept_name, restore};
pub use schedule::{
    KEEP_MAX, SCHEDULE_COUNT_MAX, SCHEDULE_NAME_LEN_BYTES_MAX, Schedule, ScheduleError, parse, text,
};
