//! Which clients may use which volumes, and as whom. Every protocol edge that serves files asks here.
//!
//! Owns: the table of exported volumes, export rules, squashing, the check of file handles.
//! Must not know: any protocol's procedures and status codes, connections, configuration files, what is in a volume.

#![forbid(unsafe_code)]

mod rules;
mod table;
mod users;

pub use cairn_formats::file_handle::{BadHandle, HANDLE_LEN_BYTES, Handle, HandleSigner, Target};
pub use rules::{ANONYMOUS_ID, ClientRule, Squash};
pub use table::{
    Export, ExportTable, Exports, FailedVolume, Grant, Object, PeerExports, Refusal, Volume,
    VolumeLocation,
};
pub use users::{Users, caller, user};
