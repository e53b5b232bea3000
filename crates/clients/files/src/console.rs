//! Where commands print, and how they end.
//!
//! Owns: the two output streams, exit codes, turning errors into lines.
//! Must not know: what the commands do.

use std::io::{self, IsTerminal, Write};

use anyhow::Context as _;
use cairn_base::printable;
use cairn_nfs_client::{Client, ClientSettings, Error, ErrorKind, NfsUrl};

/// How a command ended. Of several parts that ended in different ways, the last of these counts:
/// only when all that failed was refused is the command refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Ok,
    /// The server says no to this user.
    Refused,
    /// The server cannot be reached, or does not answer.
    Unreachable,
    Failed,
    Usage,
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Refused => 4,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The command makes no sense as it was written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub String);

/// Standard output and standard error, or what a test has instead.
pub struct Console {
    pub out: Box<dyn Write + Send>,
    pub err: Box<dyn Write + Send>,
    /// Standard output is a terminal: names are made harmless to it.
    pub out_is_terminal: bool,
    /// Standard error is a terminal: progress may be shown.
    pub err_is_terminal: bool,
}

impl Console {
    /// That of the process.
    pub fn of_process() -> Self {
        Self {
            out: Box::new(io::BufWriter::with_capacity(64 << 10, io::stdout())),
            err: Box::new(io::stderr()),
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Prints why a command or a part of it failed.
    pub(crate) fn fail(&mut self, error: &anyhow::Error) -> Exit {
        if is_broken_pipe(error) {
            // The reader has seen enough, as in `cairn cat URL | head`.
            return Exit::Ok;
        }
        // With standard error gone there is nowhere left to complain to.
        let why = format!("{error:#}");
        let _ = writeln!(self.err, "cairn: {}", printable::one_line(&why));
        if error.is::<Usage>() {
            return Exit::Usage;
        }
        match error.downcast_ref::<Error>().map(Error::kind) {
            Some(ErrorKind::Unreachable) => Exit::Unreachable,
            Some(ErrorKind::Denied) => Exit::Refused,
            _ => Exit::Failed,
        }
    }

    /// Writes a line to standard output, of which a part is text that somebody chose.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.out, "{}", printable::one_line(line))
    }

    /// Flushes the output and says how a command ended.
    pub(crate) fn finish(&mut self, exit: Exit) -> Exit {
        match self.out.flush() {
            Ok(()) => exit,
            Err(error) => exit.max(self.fail(&error.into())),
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The URL that `text` is.
pub(crate) fn parse_url(text: &str) -> anyhow::Result<NfsUrl> {
    text.parse()
        .map_err(|error| Usage(format!("{text} is not an NFS URL: {error}")).into())
}

/// Connects to where `url` leads.
pub(crate) async fn connect(url: &NfsUrl, nconnect: u16) -> anyhow::Result<Client> {
    let settings = ClientSettings {
        nconnect,
        ..ClientSettings::default()
    };
    let client = Client::connect(url, settings).await;
    client.with_context(|| url.to_string())
}
