//! Why a server cannot start, or a change of the pool cannot be saved.

use std::net::SocketAddr;
use std::path::PathBuf;

use cairn_base::disk::DiskError;
use cairn_shard::ShardError;

use crate::assemble::AssembleError;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The folders are not what this server may use; an operator has to decide.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Another process has the disk; `pid` is `None` when it did not say which.
    #[error("{disk} is in use by {}; stop it first", holder(*.pid))]
    InUse { disk: String, pid: Option<u32> },
    #[error("{0}")]
    Disk(#[from] DiskError),
    #[error("{0}")]
    Shard(#[from] ShardError),
    #[error("saving the pool file: {needed} disks have to have it, {saved} took it: {detail}")]
    Save {
        needed: usize,
        saved: usize,
        detail: String,
    },
    #[error("listening for {what} on {address}: {source}{hint}")]
    Listen {
        what: &'static str,
        address: SocketAddr,
        source: std::io::Error,
        hint: String,
    },
    #[error("the admin token at {path}: {why}")]
    Token { path: PathBuf, why: String },
    #[error("making the volume \"{name}\": {why}")]
    FirstVolume { name: String, why: String },
    #[error("starting the NFS server: {0}")]
    Nfs(String),
    #[error("starting threads: {0}")]
    Runtime(std::io::Error),
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// What a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeErrorKind {
    /// Fix how the server is started.
    Refused,
    /// A disk, a port or the system failed.
    Failed,
}

impl NodeError {
    pub fn kind(&self) -> NodeErrorKind {
        match self {
            Self::Assemble(_) | Self::Token { .. } => NodeErrorKind::Refused,
            // It may have ended when it is tried again, which a service manager does.
            Self::InUse { .. }
            | Self::Disk(_)
            | Self::Shard(_)
            | Self::Save { .. }
            | Self::Listen { .. }
            | Self::FirstVolume { .. }
            | Self::Nfs(_)
            | Self::Runtime(_)
            | Self::Metrics(_) => NodeErrorKind::Failed,
        }
    }
}
