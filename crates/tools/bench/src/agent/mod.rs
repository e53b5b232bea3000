//! Several machines in one run: agents that do what a coordinator says, over HTTP.
//!
//! Owns: the protocol between them, starting all clients together, what happens when one is lost.
//! Must not know: suites, how a phase is done, how a token is kept.
//!
//! A holder of the token can have files written and removed with the rights of the agent's user,
//! and nothing is encrypted: agents belong into a network of their own.

mod cluster;
// For the fuzzer, which reads these messages as both sides do.
#[doc(hidden)]
pub mod protocol;
mod server;
mod session;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::engine::{Engine, EngineError};
use crate::suite::Target;

pub use cluster::{Cluster, ClusterError};
pub use protocol::{AGENT_PORT_DEFAULT, PROTOCOL};
pub use server::{AgentServer, Authorize, CONNECTIONS_MAX};

/// Makes the engine for a target.
pub type EngineFactory = Arc<dyn Fn(&Target) -> Result<Box<dyn Engine>, EngineError> + Send + Sync>;
