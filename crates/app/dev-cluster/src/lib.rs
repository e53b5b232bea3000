//! A whole cluster on one machine, for laptops and tests: real processes of the same program, a real etcd, and where
//! root allows it a network namespace for each node.
//!
//! Owns: which processes run, where, on what network, and what is done to them.
//! Must not know: what nodes say to one another. A cluster is made by the commands that users call on real machines.
//!
//! `up` runs a cluster in the foreground. Other commands act through `cluster.json` ([`state`]) and the processes
//! themselves ([`actions`]), whether that foreground process is there or not.

#![forbid(unsafe_code)]

pub mod actions;
mod commands;
mod error;
pub mod faults;
mod form;
mod forward;
pub mod layout;
mod netns;
mod process;
pub mod state;
mod up;

pub use error::Error;
pub use form::add;
pub use state::Store;
pub use up::{Isolation, Settings, up};
