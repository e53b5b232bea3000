//! The cluster's map and its stores, against a store in memory and a real etcd.

mod coordinator;
mod etcd_faults;
mod leases;
mod map;
mod memory;
mod owners;
mod stores;
