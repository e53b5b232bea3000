//! Nodes with real certificates on real sockets of this machine, by clocks that the tests move.

mod certificates;
mod clear;
mod common;
mod etcd;
mod folders;
mod hostile;
mod issuing;
mod joining;
mod joining_hostile;
mod limits;
mod nodes;
mod raw;
mod renewal;
mod rotation;
