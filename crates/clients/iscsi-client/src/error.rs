//! What can go wrong, said so that the reader knows what to try.

use std::io;
use std::net::SocketAddr;

use cairn_codec_iscsi::login_status;
use cairn_codec_scsi::{SenseSeen, Status, code};

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("the name {host} cannot be resolved: {error}")]
    Resolve { host: String, error: io::ErrorKind },
    #[error("no connection to {address}: {error}; does the target run, and is the port right?")]
    Unreachable {
        address: SocketAddr,
        error: io::ErrorKind,
    },
    #[error("the secret file {path} cannot be read: {error}")]
    SecretFile { path: String, error: io::ErrorKind },
    #[error("the target refuses the login: {}", describe_login(*status))]
    Refused { status: u16 },
    #[error(
        "the target does not prove that it knows its secret, or asks for what we do not have: {0}"
    )]
    Authentication(&'static str),
    #[error("what the target says makes no sense: {0}")]
    Nonsense(&'static str),
    #[error("the connection is lost: {0}")]
    Lost(io::ErrorKind),
    #[error("the session is closed")]
    Closed,
    #[error("a command failed: {}", describe_sense(*status, *sense))]
    Command {
        status: u8,
        sense: Option<SenseSeen>,
    },
    #[error("{0} bytes at {1} are not whole blocks of {2} bytes")]
    Unaligned(usize, u64, u32),
}

impl Error {
    /// Whether the target did answer the command.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Command { .. } | Self::Unaligned(..))
    }

    /// Whether the target takes the command later: BUSY or TASK SET FULL. It has done nothing of it.
    pub fn is_busy(&self) -> bool {
        let statuses = [Status::Busy as u8, Status::TaskSetFull as u8];
        matches!(self, Self::Command { status, .. } if statuses.contains(status))
    }

    /// The sense key and code of a command that failed.
    pub fn sense(&self) -> Option<SenseSeen> {
        match self {
            Self::Command { sense, .. } => *sense,
            _ => None,
        }
    }
}

/// Source: RFC 7143, section 11.13.5.
fn describe_login(status: u16) -> String {
    let words = match status {
        login_status::AUTHENTICATION_FAILED => {
            "it does not know the initiator's name, or the secret is wrong or missing; is the LUN mapped to a group with the name? \
             give ?user=NAME&secret-file=FILE"
        }
        login_status::FORBIDDEN => "this initiator may not use the target; give ?initiator=NAME",
        login_status::NOT_FOUND => {
            "it has no target of that name for this initiator; is the LUN mapped to a group with its name?"
        }
        login_status::TOO_MANY_CONNECTIONS => "there are too many connections",
        login_status::UNAVAILABLE => "it is not available now; try later",
        login_status::OUT_OF_RESOURCES => "it has too much to do; try later",
        _ => return format!("status {status:#06x}"),
    };
    words.to_owned()
}

/// Source: SPC-4, annex F.
fn describe_sense(status: u8, sense: Option<SenseSeen>) -> String {
    let Some(sense) = sense else {
        return match status {
            0x08 => "the target is busy".to_owned(),
            0x18 => "the LUN is reserved for another initiator".to_owned(),
            0x28 => "the target takes no more commands now".to_owned(),
            _ => format!("status {status:#04x}"),
        };
    };
    let words = match sense.code {
        code::SPACE_ALLOCATION_FAILED => "there is no space left for it",
        code::WRITE_PROTECTED | code::SOFTWARE_WRITE_PROTECTED => "it is write-protected",
        code::LBA_OUT_OF_RANGE => "it is past the end of the LUN",
        code::LUN_NOT_SUPPORTED => "there is no such LUN for this initiator",
        code::BECOMING_READY => "it is not ready yet; try later",
        code::OFFLINE => "it is offline",
        code::UNRECOVERED_READ => "the data cannot be read",
        code::WRITE_ERROR => "the data cannot be written",
        code::INVALID_OPCODE => "it does not know the command",
        code::MISCOMPARE => "what is there is something else",
        _ => "",
    };
    let numbers = format!(
        "sense key {:#x}, code {:02x}/{:02x}",
        sense.key, sense.code.0, sense.code.1
    );
    match words {
        "" => numbers,
        words => format!("{words} ({numbers})"),
    }
}
