//! What clients do with each volume now: operations, the busiest clients and the busiest files.
//!
//! Owns: the counts of an answered request, for how long they are kept, and how much memory that takes.
//! Must not know: any protocol but by its name, what a file is called, who may look.
//!
//! Counting is on the way of each request, so it waits for nobody: a thread has a part of the counters that no other uses, as
//! a rule. Nothing is allocated for a request, and no clock is read: a task ends each stretch of time. Requests of any number
//! of clients and files take the same memory ([`Sketch`]); a report says which of its numbers are lower bounds.

#![forbid(unsafe_code)]

mod activity;
mod counts;
mod report;
mod sketch;
mod turns;

pub use activity::{Activities, Activity, SHARD_COUNT};
pub use counts::{
    Client, Done, File, FileName, OPERATION_COUNT_MAX, Operation, Protocol, Who, Work,
};
pub use report::{OperationReport, Report, Row, SHOWN_COUNT_MAX, Top};
pub use sketch::{COUNTER_COUNT, Counter, Sketch};
pub use turns::TURN;
