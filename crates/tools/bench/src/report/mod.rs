//! Pages of results: one HTML file that needs nothing else, and Markdown.
//!
//! Owns: which tables and charts are made of results, how they look, the published figures beside them.
//! Must not know: how results came about, files, the time of day.
//!
//! Everything in a result is input: labels, phase names, job files and errors may come from anybody, so
//! no text of theirs reaches a page unescaped ([`html`] cannot print it any other way), and the page's
//! policy lets no script run but the two that are built in.

mod chart;
mod credit;
mod html;
mod markdown;
mod published;
mod table;
mod text;
mod view;

pub use self::html::html;
pub use self::markdown::markdown;
pub use self::published::{PublishedLine, published_lines};
