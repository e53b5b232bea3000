//! Disks over connections in memory, and connections that break.

mod breaks;
mod common;
mod hostile;
mod same;
mod slow;
