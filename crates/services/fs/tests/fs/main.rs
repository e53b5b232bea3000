//! The file service as its users see it. One binary, so that the engine is linked once.

mod ahead;
mod bounds;
mod clones;
mod dedupe;
mod diff;
mod durability;
mod encrypted;
mod folders;
mod inline;
mod keep;
mod limit;
mod links;
mod model;
mod policy;
mod quota;
mod requests;
mod revert;
mod rewrite;
mod share;
mod shown;
mod snapshots;
mod space;
mod tiering;
mod unnamed;
mod views;
mod world;
