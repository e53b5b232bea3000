//! The planner: which storage design, how big, what it costs, what it will deliver.
//!
//! Owns: the model of designs, their limits and prices, and its data (`data/`).
//! Must not know: files, sockets, terminals, clocks, or anything of the engine. Text and values come
//! in, values and text go out.

#![forbid(unsafe_code)]

pub mod candidates;
pub mod catalog;
pub mod charts;
pub mod check;
pub mod credit;
pub mod deploy;
pub mod deployable;
pub mod design;
pub mod evaluate;
pub mod goal;
pub mod nearest;
pub mod offer;
pub mod page;
mod plan;
pub mod prices;
pub mod rank;
pub mod reliability;
pub mod report;
pub mod rules;
pub mod text;
pub mod units;
pub mod validate;
pub mod whatif;

pub use crate::plan::plan;
