//! The program `cairn` from the outside. One binary, so that it is linked once.

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "plan")]
mod plan;
mod server;
