//! What can be wrong with certificates and with the folder that has them.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error("{} is missing; {hint}", path.display())]
    Missing { path: PathBuf, hint: &'static str },
    #[error("{} is damaged: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    #[error(
        "{} has format {found}, this program reads {known}; use the program that wrote it, or a newer one",
        path.display()
    )]
    Format {
        path: PathBuf,
        found: u64,
        known: u32,
    },
    #[error("{} already belongs to a node of a cluster", path.display())]
    Exists { path: PathBuf },
    #[error("{} is in use by process {pid}; stop that process first", path.display())]
    Busy { path: PathBuf, pid: String },
    #[error("{}: {problem}", path.display())]
    Unsafe { path: PathBuf, problem: String },
    #[error(
        "this node does not have the key of the cluster's CA (ca.key in its cluster folder); other nodes of the cluster have it"
    )]
    NoKey,
    #[error(
        "no node with the key of the cluster's CA answers: {0}; check that these nodes run, and that this node reaches them"
    )]
    NoIssuer(String),
    #[error(
        "the certificate of this node cannot be used ({problem}: {}), and this node lacks the CA's key to make another. \
         Check the clock; else move the cluster folder aside, make a ticket on another node (`cairn cluster token`), and join with \
         it and --takes-over and this node's name",
        path.display()
    )]
    Rejoin { path: PathBuf, problem: String },
    #[error("a certificate: {0}")]
    Certificate(String),
    #[error("{what} {value:?}: {problem}")]
    Invalid {
        what: &'static str,
        value: String,
        problem: &'static str,
    },
}

impl TrustError {
    pub(crate) fn file(path: &Path, problem: impl ToString) -> Self {
        Self::File {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }

    pub(crate) fn damaged(path: &Path, problem: impl ToString) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }

    pub(crate) fn certificate(problem: impl ToString) -> Self {
        Self::Certificate(problem.to_string())
    }
}
