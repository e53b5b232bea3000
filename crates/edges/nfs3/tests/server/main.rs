//! The server over sockets, on real volumes.

mod common;
mod procedures;
mod security;
mod streams;
