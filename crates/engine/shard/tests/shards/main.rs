//! Shards on simulated and on real disks.

mod common;
mod crash;
mod errors;
mod fences;
mod identity;
mod life;
mod model;
mod recycled;
mod space;
