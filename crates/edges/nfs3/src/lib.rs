//! Serves volumes over NFS version 3, with MOUNT, PORTMAP, rpcbind, and an NLM that refuses locks.
//!
//! Owns: connections, calls, file handles, exports and squashing, the duplicate-request cache.
//! Must not know: how files are kept, other protocols, configuration files.
//!
//! A call goes `server` (which thread) → `connection` (socket, limits) → `intake` (bytes to records) →
//! `service` (program, credentials, handle) → `nfs3`, `pseudo`, `mount`, `nlm` or `portmap`, and comes
//! back as a `reply`.

mod busy_poll;
mod connection;
mod convert;
mod duplicate;
mod exports;
mod handle;
mod intake;
mod log_limit;
mod metrics;
mod mount;
mod nfs3;
mod nlm;
mod portmap;
mod pseudo;
mod reply;
mod server;
mod service;
mod settings;

pub use exports::{
    ANONYMOUS_ID, ClientRule, Export, ExportTable, Exports, FailedVolume, Grant, PeerView, Squash,
    Volume,
};
pub use handle::{BadHandle, HANDLE_LEN_BYTES, Handle, HandleKey, Target};
pub use intake::RECORD_LEN_BYTES_MAX;
pub use server::{Listeners, NfsServer, Running, ServeError};
pub use settings::Settings;
