//! The whole store on simulated disks.

mod damage;
mod space;
mod world;
mod write_read;
