//! Which clients may use which volumes, and as whom. Every protocol edge that serves files asks here.
//!
//! Owns: the table of exported volumes, export rules, squashing, file handles and the check of them.
//! Must not know: any protocol's procedures and status codes, connections, configuration files, what is in a volume.

#![forbid(unsafe_code)]

mod handle;
mod rules;
mod table;
mod users;

pub use handle::{BadHandle, HANDLE_LEN_BYTES, Handle, HandleKey, Target};
pub use rules::{ANONYMOUS_ID, ClientRule, Squash};
pub use table::{
    Export, ExportTable, Exports, FailedVolume, Grant, Object, PeerView, Refusal, Volume,
};
pub use users::{Users, caller, user};
