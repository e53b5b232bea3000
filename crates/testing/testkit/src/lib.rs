//! Simulated surroundings for the tests of every crate.
//!
//! Owns: an in-memory [`MemDisk`] that loses power, tears writes and fails on request, a [`Recorder`] that rebuilds
//! disks as of any operation, a clock that the test moves, seeded randomness, and free ports. All but the ports follows
//! from seeds: equal calls give equal bytes. Must not know: segments, metadata, files, protocols. Used as a
//! dev-dependency only.

#![forbid(unsafe_code)]

mod content;
mod env;
mod mem_disk;
mod ports;
mod record;
mod rng;
mod state;
#[cfg(test)]
mod tests;

pub use env::{ManualClock, SeededEntropy, TestWorld, test_env};
pub use mem_disk::{DiskSnapshot, DiskStats, Fault, FaultRule, MemDisk, OpKind, Pace};
pub use ports::free_ports;
pub use record::Recorder;
pub use rng::Rng;
pub use state::Crash;
