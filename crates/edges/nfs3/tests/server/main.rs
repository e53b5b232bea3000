//! The server over sockets, on real volumes.

mod common;
mod forwarding;
mod procedures;
mod security;
mod streams;
