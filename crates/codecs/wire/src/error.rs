//! Why bytes were refused.

/// Why bytes are not a frame. The sender cannot be understood any more: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the frame ends too early")]
    Truncated,
    #[error("the frame does not begin with the magic number")]
    Magic,
    #[error("the frame has version {found}, this program knows {known}; use the same version")]
    Version { found: u16, known: u16 },
    #[error("the checksum of the frame's {0} does not match")]
    Checksum(&'static str),
    #[error("the frame's {what} of {len_bytes} bytes is longer than its limit of {len_bytes_max}")]
    TooLong {
        what: &'static str,
        len_bytes: u64,
        len_bytes_max: u64,
    },
    #[error("{code} is not a {what}")]
    Unknown { what: &'static str, code: u8 },
    #[error("the message's {0} makes no sense")]
    Field(&'static str),
    #[error("{len_bytes} bytes follow the message")]
    Trailing { len_bytes: u64 },
}
