//! The whole store on simulated disks.

mod damage;
mod domains;
mod fence;
mod overdue;
mod moves;
mod moves_damaged;
mod scrub;
mod space;
mod summary;
mod world;
mod write_read;
