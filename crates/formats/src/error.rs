//! Why bytes are not what they should be.

/// Why bytes are not a valid file of this program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("it is cut short")]
    Truncated,
    #[error("it does not begin with the magic number")]
    Magic,
    #[error("its version is {found}, this program knows up to {newest}; use a newer program")]
    Version { found: u32, newest: u32 },
    #[error("its checksum does not match")]
    Checksum,
    #[error("its {0} makes no sense")]
    Field(&'static str),
}
