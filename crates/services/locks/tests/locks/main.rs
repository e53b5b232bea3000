//! The locks of a volume against their rules, and against models that are too simple to be wrong.

mod clients;
mod leases;
mod queue;
mod ranges;
mod shares;
mod under_way;
mod world;
