//! Classes of service: which request may begin when, so that each volume and client gets the rate of its class.
//!
//! Owns: rates and the credit for bursts, the order in which requests that wait may begin, what idle volumes of a class lend
//! to others; whether latency objectives are met.
//! Must not know: any protocol, what a request does, where classes and credits are kept.
//!
//! The numbers are pure: time comes in with each call ([`Scheduler`]). Around them are a lock, futures and one task that
//! looks when the next request is due ([`Shaper`]). Nothing is refused here: who wants more than its rate waits.

#![forbid(unsafe_code)]

mod bucket;
mod client;
mod goal;
mod limits;
mod scheduler;
mod shaper;

pub use bucket::{Bucket, Rate, SLACK};
pub use client::{Client, Part};
pub use goal::{Answered, GOAL_ONE_LATE_OF, GoalReport};
pub use limits::{DIMENSIONS, Dimension, Kind, Limits, Operation, PartRates, Rates};
pub use scheduler::{LimitReport, Report, Scheduler, Waiter};
pub use shaper::{Gate, Pass, Shaper, Timed};
