//! Addresses that follow volumes, or that nodes share: on an interface of this machine, announced to its neighbours, or moved by a program.
//!
//! Owns: the interface, the announcements, the hook, how long an address stays where nobody renews it.
//! Must not know: clusters, who owns which volume.

#![forbid(unsafe_code)]

mod frames;
mod hook;
mod interface;
mod keeper;
mod netlink;

pub use hook::{HOOK_MAX, Hook, HookAddress, HookError, Verb};
pub use interface::{Interface, InterfaceError};
pub use keeper::{
    KEPT_SECONDS, Keeper, Listening, Listens, PlacedAddress, Purpose, RENEWED_EVERY, WantedAddress,
};
