//! The planner as its users see it.

mod configurations;
mod goals;
mod page;
mod papers;
mod properties;
mod ranking;
mod templates;
