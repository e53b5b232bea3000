//! The program `cairn` from the outside. One binary, so that it is linked once.

mod bench;
mod plan;
mod server;
