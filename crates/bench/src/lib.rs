//! Load on a server, through the client that everything else uses.
//!
//! Owns: workloads, their data, counting and timing them.
//! Must not know: servers and how they are started, other load generators, how results are shown.

pub mod load;
