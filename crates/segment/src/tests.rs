//! The whole store on simulated disks.

mod damage;
mod moves;
mod scrub;
mod space;
mod world;
mod write_read;
