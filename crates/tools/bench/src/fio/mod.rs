//! The real fio: finding it, its job files, running it, what it prints.
//!
//! Owns: everything that knows fio's options and its JSON.
//! Must not know: what files a run has, suites, how results are kept.

pub mod find;
pub mod job;
pub mod output;
pub mod run;
