//! The planner as its users see it.

mod configurations;
mod page;
mod papers;
mod ranking;
mod templates;
