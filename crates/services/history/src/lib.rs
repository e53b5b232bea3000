//! Numbers over time, in a folder of bounded size.
//!
//! Owns: the files, what they look like, how long values are kept, that what is older has fewer of them, how values
//! of a span are put together. A crash loses values that were not flushed; a torn row at the end of a file is left out.
//! Must not know: what the numbers are about, which folder it is, the time of day.

#![forbid(unsafe_code)]

pub mod format;
mod store;
#[cfg(test)]
mod tests;

pub use format::{Kind, Row, Series, Table};
pub use store::{Answer, HistoryError, Query, Settings, Store};
