//! What people set, as types that cannot be wrong.
//!
//! Owns: the server's settings (each is a flag and a key of the config file, see [`Settings`]),
//! their defaults and limits, how the memory limit is divided, and the words for the settings of
//! volumes and exports that the CLI, the REST API and the pool file share.
//! Must not know: how anything is done with them; it opens no file and no socket.

#![forbid(unsafe_code)]

mod declare;
mod documents;
mod file;
mod memory;
mod oidc;
mod problem;
mod server;

pub use cairn_base::words::WordError;
pub use cairn_formats::settings::*;
pub use documents::{config_file, settings_page};
pub use file::{CONFIG_FILE_LEN_BYTES_MAX, parse_file};
pub use memory::{
    MEMORY_LIMIT_BYTES_DEFAULT, MEMORY_LIMIT_BYTES_MIN, MemoryBudget, VOLUME_BYTES_MIN,
};
pub use oidc::{Oidc, OidcSettings, is_safe_url};
pub use problem::{ConfigError, Problem, nearest};
pub use server::{
    AdminTls, Config, DATA_FOLDERS_MAX, DiskIo, KeySource, LISTEN_ADMIN_DEFAULT,
    LISTEN_ISCSI_DEFAULT, LISTEN_NFS_DEFAULT, LISTEN_S3_DEFAULT, LogFormat, Settings, Size,
    THREADS_MAX,
};
