//! The reasons why a server cannot start, or a change of the pool cannot be saved.

use std::net::SocketAddr;
use std::path::PathBuf;

use cairn_base::disk::DiskError;
use cairn_shard::ShardError;

use cairn_pool::open::OpenError;
use cairn_pool::{AssembleError, ChangeFailure};

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// This server may not use the folders, or too few of them are there.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Another process has the disk; `pid` is `None` if that process left no number.
    #[error("{disk} is in use by {}; stop it first", holder(*.pid))]
    InUse { disk: String, pid: Option<u32> },
    #[error("{0}")]
    Disk(#[from] DiskError),
    #[error("{0}")]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Change(#[from] ChangeFailure),
    #[error("listening for {what} on {address}: {source}{hint}")]
    Listen {
        what: &'static str,
        address: SocketAddr,
        source: std::io::Error,
        hint: String,
    },
    /// The file has no token, or this user may not use it.
    #[error("the admin token at {path}: {why}")]
    Token { path: PathBuf, why: String },
    /// Its disk does not return the contents of the file, or does not take it.
    #[error("the admin token at {path}: {why}")]
    TokenDisk { path: PathBuf, why: String },
    #[error("the state folder {path}: {why}")]
    StateFolder { path: PathBuf, why: String },
    #[error(
        "{secrets} would be on data disk {disk}, where anyone with the disk can read it: choose another place (--token-file, \
         --state-dir)"
    )]
    SecretOnDisk { secrets: PathBuf, disk: PathBuf },
    #[error(
        "the key that signs file handles is not available: {0}. Give the server its master key (--master-key-file, \
         --master-key-command), or put the file handle-key-POOL of the state folder of the server that had these disks before \
         into this one's"
    )]
    HandleKey(String),
    #[error(
        "no pool is created while the server's master keys cannot be read, because its secrets would be unencrypted on the disks: {0}. \
         Fix that (master_key_file, master_key_command), or remove the master key from the configuration"
    )]
    NoMasterKey(String),
    #[error("creating volume \"{name}\": {why}")]
    FirstVolume { name: String, why: String },
    #[error("the cluster: {0}")]
    Cluster(String),
    #[error(
        "this node, {node}, was removed from cluster {cluster}. To use the machine again, let it join as a new node: remove \
         {folder}, run `cairn cluster join`, and give it empty folders"
    )]
    Removed {
        node: String,
        cluster: String,
        folder: String,
    },
    #[error(
        "node {node} already runs: {other} has its place in the cluster, and this is {own}. One of the two cluster folders is a \
         copy: stop the other server if it is the wrong one; else let this machine join as a node of its own (remove its \
         folder, then `cairn cluster join`)"
    )]
    Twin {
        node: String,
        own: String,
        other: String,
    },
    #[error(
        "the folders {folders} are empty, and the cluster knows this node's disks {disks} there: mount them and start again. \
         If a disk is lost for good, replace it through another node (`cairn disk replace DISK FOLDER`), and start again"
    )]
    EmptyFolders { folders: String, disks: String },
    #[error(
        "the folders {folders} are empty, and this server remembers pool {pool} there, with the disks {disks}: mount their \
         drives and start again. No new pool is made in its place. If that pool is gone for good, remove {file}, and start \
         again to make a new one"
    )]
    PoolAway {
        pool: String,
        disks: String,
        folders: String,
        file: String,
    },
    #[error(
        "{folders} does not exist: check its name, and that its drive is mounted. To create it, and a new pool in it, \
         start with --create (or `create = true` in the configuration, or CAIRN_CREATE=true)"
    )]
    NoFolder { folders: String },
    #[error("the disks {folders} are {why}")]
    OthersDisks { folders: String, why: String },
    #[error("starting the NFS server: {0}")]
    Nfs(String),
    #[error("starting the S3 server: {0}")]
    S3(String),
    #[error("the admin API: {0}; check admin_certificate and admin_key, or admin_self_signed")]
    Certificate(String),
    #[error("log-in by an OpenID provider: {0}")]
    Oidc(#[from] cairn_oidc::OidcError),
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

impl From<OpenError> for NodeError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Assemble(error) => error.into(),
            OpenError::Disk(error) => error.into(),
            OpenError::Shard(error) => error.into(),
        }
    }
}

/// The remedy of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeErrorKind {
    /// Change how the server is started: another attempt with the same settings fails again.
    Refused,
    /// A disk, a port or the system failed. Another attempt may succeed.
    Failed,
}

impl NodeError {
    pub fn kind(&self) -> NodeErrorKind {
        match self {
            Self::Assemble(error) => match error {
                AssembleError::Foreign { .. }
                | AssembleError::Newer { .. }
                | AssembleError::TwoPools { .. }
                | AssembleError::NotAMember { .. }
                | AssembleError::Twice { .. } => NodeErrorKind::Refused,
                // Drives may be attached after the server starts, also the one with the only readable pool file; and
                // a drive may fail to answer once.
                AssembleError::Unusable { .. }
                | AssembleError::NoPoolFile
                | AssembleError::TooManyMissing { .. } => NodeErrorKind::Failed,
            },
            Self::Token { .. }
            | Self::StateFolder { .. }
            | Self::SecretOnDisk { .. }
            | Self::OthersDisks { .. }
            | Self::Removed { .. }
            | Self::Twin { .. }
            | Self::EmptyFolders { .. }
            | Self::NoFolder { .. }
            | Self::Oidc(_)
            | Self::S3(_)
            | Self::Certificate(_) => NodeErrorKind::Refused,
            // It may have ended at the next attempt, which a service manager makes. Drives may be attached after the
            // server starts.
            Self::InUse { .. }
            | Self::PoolAway { .. }
            | Self::TokenDisk { .. }
            | Self::HandleKey(_)
            | Self::NoMasterKey(_)
            | Self::Disk(_)
            | Self::Shard(_)
            | Self::Change(_)
            | Self::Listen { .. }
            | Self::FirstVolume { .. }
            | Self::Cluster(_)
            | Self::Nfs(_)
            | Self::Runtime(_)
            | Self::Metrics(_) => NodeErrorKind::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use cairn_base::DiskId;
    use cairn_pool::truth::SaveError;

    use super::*;

    /// A service manager repeats a failed start, and not a refused one.
    #[test]
    fn what_may_pass_by_itself_is_tried_again() {
        use NodeErrorKind::{Failed, Refused};
        let text = || "text".to_owned();
        let cases: Vec<(NodeError, NodeErrorKind)> = vec![
            (
                AssembleError::Foreign {
                    label: text(),
                    example: text(),
                }
                .into(),
                Refused,
            ),
            (
                AssembleError::Unusable {
                    label: text(),
                    why: text(),
                }
                .into(),
                Failed,
            ),
            (
                AssembleError::Newer {
                    label: text(),
                    found: 4,
                    known: 3,
                }
                .into(),
                Refused,
            ),
            (
                AssembleError::TwoPools {
                    first: text(),
                    first_label: text(),
                    second: text(),
                    second_label: text(),
                }
                .into(),
                Refused,
            ),
            (
                AssembleError::NotAMember {
                    label: text(),
                    pool: text(),
                    members: text(),
                }
                .into(),
                Refused,
            ),
            (
                AssembleError::Twice {
                    first: text(),
                    second: text(),
                    id: DiskId(1),
                }
                .into(),
                Refused,
            ),
            (AssembleError::NoPoolFile.into(), Failed),
            (
                AssembleError::TooManyMissing {
                    needed: 2,
                    members: 3,
                    present: 1,
                    missing: text(),
                }
                .into(),
                Failed,
            ),
            (
                NodeError::InUse {
                    disk: text(),
                    pid: None,
                },
                Failed,
            ),
            (
                ChangeFailure::Save(SaveError::Disks {
                    needed: 2,
                    saved: 1,
                    detail: text(),
                    is_full: false,
                })
                .into(),
                Failed,
            ),
            (
                NodeError::Token {
                    path: PathBuf::new(),
                    why: text(),
                },
                Refused,
            ),
            (
                NodeError::TokenDisk {
                    path: PathBuf::new(),
                    why: text(),
                },
                Failed,
            ),
            (
                NodeError::OthersDisks {
                    folders: text(),
                    why: text(),
                },
                Refused,
            ),
            (
                NodeError::Removed {
                    node: text(),
                    cluster: text(),
                    folder: text(),
                },
                Refused,
            ),
            (
                NodeError::Twin {
                    node: text(),
                    own: text(),
                    other: text(),
                },
                Refused,
            ),
            (
                NodeError::EmptyFolders {
                    folders: text(),
                    disks: text(),
                },
                Refused,
            ),
            (NodeError::NoFolder { folders: text() }, Refused),
            (
                NodeError::PoolAway {
                    pool: text(),
                    disks: text(),
                    folders: text(),
                    file: text(),
                },
                Failed,
            ),
            (NodeError::Nfs(text()), Failed),
            (NodeError::S3(text()), Refused),
            (NodeError::Certificate(text()), Refused),
            (NodeError::Runtime(io::ErrorKind::Other.into()), Failed),
        ];
        for (error, want) in cases {
            assert_eq!(error.kind(), want, "{error:?}");
        }
    }
}
