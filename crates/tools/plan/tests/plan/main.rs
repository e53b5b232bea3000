//! The planner as its users see it.

mod page;
mod papers;
mod ranking;
mod templates;
