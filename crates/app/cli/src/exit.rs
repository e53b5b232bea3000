//! How a command ends.

use std::process::ExitCode;

use cairn_admin::ClientError;
use cairn_admin::api::ErrorKind;

use crate::print::{self, note};

/// Why a command did not do what it was asked, with what to try.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    hint: Option<String>,
}

/// Numbers are exit codes; `cairn --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    Failed = 1,
    Usage = 2,
    Unreachable = 3,
    Refused = 4,
}

impl Failure {
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Refused, message)
    }

    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Unreachable, message)
    }

    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn print(&self) {
        note!("cairn: {}", self.message);
        if let Some(hint) = &self.hint {
            note!("       {hint}");
        }
    }

    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.kind as u8)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        // Words of a server, with names in them that its clients chose: one line.
        let message = print::name(&error.to_string()).into_owned();
        match error {
            ClientError::Unreachable { .. } => Self::new(FailureKind::Unreachable, message).hint(
                "is the server running? Start it with `cairn serve --data DIR`, or name another with --server URL",
            ),
            ClientError::Certificates(_) => Self::new(FailureKind::Usage, message)
                .hint("--ca takes a file with PEM certificates"),
            ClientError::NotUnderstood { .. } => Self::new(FailureKind::Unreachable, message)
                .hint("check --server: it is the admin address, not the NFS address"),
            ClientError::Refused(detail) => {
                let kind = match detail.kind {
                    ErrorKind::Invalid => FailureKind::Usage,
                    ErrorKind::Unauthorized
                    | ErrorKind::Forbidden
                    | ErrorKind::TooMany
                    | ErrorKind::NotSupported
                    | ErrorKind::Conflict => FailureKind::Refused,
                    ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::Internal => {
                        FailureKind::Failed
                    }
                };
                Self {
                    kind,
                    message,
                    hint: match detail.kind {
                        ErrorKind::Unauthorized => Some(
                            "give the server's token with --token-file PATH or in CAIRN_TOKEN (the server prints at start \
                             where its token is), or a user's name with --login"
                                .to_owned(),
                        ),
                        _ => detail.hint.map(|hint| print::name(&hint).into_owned()),
                    },
                }
            }
        }
    }
}
