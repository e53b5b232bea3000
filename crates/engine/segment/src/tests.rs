//! The whole store on simulated disks.

mod damage;
mod domains;
mod encrypted;
mod fence;
mod media;
mod moves;
mod moves_damaged;
mod overdue;
mod scrub;
mod space;
mod summary;
mod together;
mod world;
mod write_read;
