//! Benchmarks: workloads on a mounted path or on a server, their results, and pages of them.
//!
//! Owns: workloads, their data, counting and timing them, the format of results.
//! Must not know: servers and how they are started.

#![forbid(unsafe_code)]

pub mod agent;
mod data;
mod drive;
pub mod engine;
pub mod fio;
pub mod import;
pub mod iscsi_engine;
pub mod latency;
pub mod load;
pub mod merge;
pub mod nfs_engine;
pub mod path_engine;
pub mod pattern;
pub mod plan;
pub mod report;
pub mod result;
pub mod s3_engine;
pub mod samples;
pub mod suite;
pub mod watch;
