//! The planner as its users see it.

mod configurations;
mod goals;
mod huge;
mod page;
mod papers;
mod properties;
mod ranking;
mod templates;
