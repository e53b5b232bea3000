//! Why bytes were refused.

/// Why bytes could not be decoded. The peer must send something else; trying again cannot help,
/// except for `Truncated` where the caller holds only the first bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the message ends too early")]
    Truncated,
    #[error("a field of {len_bytes} bytes is longer than its limit of {len_bytes_max}")]
    TooLong { len_bytes: u32, len_bytes_max: u32 },
    #[error("a list has more than {count_max} items")]
    TooMany { count_max: u32 },
    #[error("{value} is not a {what}")]
    BadValue { what: &'static str, value: u32 },
    #[error("{len_bytes} bytes follow the message")]
    Trailing { len_bytes: usize },
    /// The peer and we disagree about where records begin: close the connection.
    #[error("a record of {len_bytes} bytes or more is longer than the limit of {len_bytes_max}")]
    RecordTooLong { len_bytes: u64, len_bytes_max: u32 },
    #[error("a record has more than {count_max} fragments")]
    TooManyFragments { count_max: u32 },
}
