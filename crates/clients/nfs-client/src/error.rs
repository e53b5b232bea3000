//! What can go wrong, said so that the reader knows what to try.
//!
//! Owns: the crate's one error type and the few kinds that callers act on.
//! Must not know: how messages are shown.

use std::io;
use std::net::SocketAddr;

use cairn_codec_nfs::mount::MountError;
use cairn_codec_nfs::v3::ErrorStatus;
use cairn_codec_rpc::{AcceptStatus, DecodeError, Rejection};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the name {host} cannot be resolved: {error}")]
    Resolve { host: String, error: io::Error },
    #[error("no connection to {address}: {error}; does the server run, and is the port right?")]
    Unreachable {
        address: SocketAddr,
        error: io::Error,
    },
    #[error("{address} answers {name} requests at no TCP port; give ?port= and ?mountport=")]
    NotRegistered {
        address: SocketAddr,
        name: &'static str,
    },
    #[error("the server exports nothing at {path}; {}", describe_exports(exports))]
    ExportNotFound { path: String, exports: Vec<String> },
    #[error("the server does not let us mount {path}: {}", reason.name())]
    MountRefused { path: String, reason: MountError },
    #[error("{procedure} was sent {transmissions} times to {address} and never answered")]
    NoReply {
        procedure: &'static str,
        address: SocketAddr,
        transmissions: u32,
    },
    #[error("the connection is closed")]
    Closed,
    #[error("the server did not carry out {procedure}: {reason}")]
    Rejected {
        procedure: &'static str,
        reason: Rejected,
    },
    #[error("the answer to {procedure} makes no sense: {error}")]
    BadReply {
        procedure: &'static str,
        error: DecodeError,
    },
    #[error("the answer to {procedure} makes no sense: {reason}")]
    Inconsistent {
        procedure: &'static str,
        reason: &'static str,
    },
    #[error("{procedure}: {}", describe_status(*status))]
    Status {
        procedure: &'static str,
        status: ErrorStatus,
    },
    #[error("{0}")]
    Path(PathProblem),
    #[error("the server lost unstable data {rounds} times in a row and never kept it")]
    NeverStable { rounds: u32 },
}

/// How an RPC server refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("{0:?}")]
    Accept(AcceptStatus),
    #[error("{0:?}")]
    Denied(Rejection),
}

/// Why a path leads nowhere, found on our side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    #[error("the link {0} leads to an absolute path, which only a mount could follow")]
    AbsoluteLink(String),
    #[error("more than {0} symbolic links in one path")]
    TooManyLinks(u32),
    #[error("the path leads above the export")]
    AboveRoot,
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The server cannot be reached or does not answer: try later, or another address.
    Unreachable,
    /// Nothing there under that name.
    NotFound,
    /// Something is there already.
    Exists,
    /// The server says no to this user.
    Denied,
    /// No space, or over the quota.
    Full,
    /// The request itself is wrong.
    Invalid,
    /// The server failed, or does not keep to the protocol.
    Server,
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. }
            | Self::Resolve { .. }
            | Self::NoReply { .. }
            | Self::NotRegistered { .. }
            | Self::Closed => ErrorKind::Unreachable,
            Self::ExportNotFound { .. } => ErrorKind::NotFound,
            Self::MountRefused { .. } => ErrorKind::Denied,
            Self::Path(_) => ErrorKind::Invalid,
            Self::Rejected {
                reason: Rejected::Denied(Rejection::Auth(_)),
                ..
            } => ErrorKind::Denied,
            Self::Rejected { .. }
            | Self::BadReply { .. }
            | Self::Inconsistent { .. }
            | Self::NeverStable { .. } => ErrorKind::Server,
            Self::Status { status, .. } => status_kind(*status),
        }
    }

    /// The server's status, if it answered with one.
    pub fn status(&self) -> Option<ErrorStatus> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

fn describe_exports(exports: &[String]) -> String {
    match exports {
        [] => "it lists no exports for this client".to_owned(),
        exports => format!("its exports are {}", exports.join(", ")),
    }
}

/// The status in words, with what to try where there is something; one line per status.
fn describe_status(status: ErrorStatus) -> &'static str {
    match status {
        ErrorStatus::Perm => "only the owner may do that",
        ErrorStatus::NoEnt => "no such file or directory",
        ErrorStatus::Io => "the server could not read or write its disks",
        ErrorStatus::NxIo => "no such device",
        ErrorStatus::Access => "permission denied",
        ErrorStatus::Exist => "it exists already",
        ErrorStatus::XDev => {
            "the two are not on the same volume, or not in the same directory with a quota: copy it"
        }
        ErrorStatus::NoDev => "the device does not do that",
        ErrorStatus::NotDir => "not a directory",
        ErrorStatus::IsDir => "it is a directory",
        ErrorStatus::Inval => "the server finds an argument invalid",
        ErrorStatus::FBig => "the file would be too large",
        ErrorStatus::NoSpc => "no space left on the volume",
        ErrorStatus::RoFs => "the volume or its export is read-only",
        ErrorStatus::MLink => "too many hard links",
        ErrorStatus::NameTooLong => "the name is too long",
        ErrorStatus::NotEmpty => "the directory is not empty",
        ErrorStatus::DQuot => "over the quota",
        ErrorStatus::Stale => "the file has been removed meanwhile",
        ErrorStatus::Remote => "too many levels of remote paths",
        ErrorStatus::BadHandle => "the server does not take its own file handle",
        ErrorStatus::NotSync => "the file has been changed meanwhile",
        ErrorStatus::BadCookie => "the directory was changed too much to go on listing; try again",
        ErrorStatus::NotSupp => "the server cannot do that",
        ErrorStatus::TooSmall => "the buffer is too small for the server",
        ErrorStatus::ServerFault => "the server has an internal error; see its log",
        ErrorStatus::BadType => "the server does not support files of that type",
        ErrorStatus::JukeBox => "the server says try later, and did so for too long",
    }
}

fn status_kind(status: ErrorStatus) -> ErrorKind {
    match status {
        ErrorStatus::NoEnt | ErrorStatus::Stale => ErrorKind::NotFound,
        ErrorStatus::Exist | ErrorStatus::NotEmpty => ErrorKind::Exists,
        ErrorStatus::Perm | ErrorStatus::Access | ErrorStatus::RoFs => ErrorKind::Denied,
        ErrorStatus::NoSpc | ErrorStatus::DQuot => ErrorKind::Full,
        ErrorStatus::XDev
        | ErrorStatus::NotDir
        | ErrorStatus::IsDir
        | ErrorStatus::Inval
        | ErrorStatus::FBig
        | ErrorStatus::MLink
        | ErrorStatus::NameTooLong
        | ErrorStatus::NotSync
        | ErrorStatus::NotSupp
        | ErrorStatus::BadType => ErrorKind::Invalid,
        ErrorStatus::Io
        | ErrorStatus::NxIo
        | ErrorStatus::NoDev
        | ErrorStatus::Remote
        | ErrorStatus::BadHandle
        | ErrorStatus::BadCookie
        | ErrorStatus::TooSmall
        | ErrorStatus::ServerFault
        | ErrorStatus::JukeBox => ErrorKind::Server,
    }
}
