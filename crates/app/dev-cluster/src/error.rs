//! Why something with the cluster did not work.

use std::path::Path;

/// Messages are whole: what failed, on what, and what to try.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It makes sense, and is not possible as things are.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: something was being done with a path.
    pub fn io(doing: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let what = format!("{doing} {}", path.display());
        move |source| Self::Io { what, source }
    }
}
