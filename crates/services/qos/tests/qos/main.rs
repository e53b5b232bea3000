//! Rates, fairness, lending and credit in simulated time.

mod credit;
mod parts;
mod rates;
mod shell;
mod world;
