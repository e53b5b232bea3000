//! The simulator: the real engine, from the file service down, on simulated disks, clock and randomness.
//!
//! Owns: schedules, faults, the work of clients, the model that judges the surviving data. Must not know: how the
//! engine and the pool work. It has the view of a protocol, and sees the metadata's keys for the recount, the disks,
//! and the pool's next steps.
//!
//! A [`Scenario`] is plain data and follows from a seed; running it twice gives the same trace. It is
//! one thread: every task of the engine and every client is polled by [`exec::Executor`], which picks
//! among those that are ready by the seed. A scenario is a list of lives: start, check what survived
//! the last life, let clients work, crash or stop.

#![forbid(unsafe_code)]

pub mod bite;
pub mod bugs;
pub mod check;
pub mod client;
pub mod cluster;
mod driver;
pub mod exec;
pub mod faults;
mod holes;
mod judge;
pub mod model;
pub mod object_store;
mod policies;
pub mod pool;
mod quotas;
mod read_cache;
pub mod run;
pub mod scenario;
mod serving;
pub mod shrink;
mod snapshots;
mod tiers;
pub mod tree;
mod walk;
pub mod work;
pub mod world;

pub use run::{Report, Verdict, run};
pub use scenario::Scenario;
