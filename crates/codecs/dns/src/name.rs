//! Names: `files.example.com`.
//!
//! Owns: what may be one, their bytes. Must not know: messages.

use std::fmt;
use std::str::FromStr;

/// Longest name on the wire, with the lengths of its labels and the empty label at its end. Source: RFC 1035, section 2.3.4.
pub const NAME_LEN_BYTES_MAX: usize = 255;
/// Longest label.
pub const LABEL_LEN_BYTES_MAX: usize = 63;

/// A name with one label at least, in lower case: names are compared without regard to case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Why a text is no name of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    Empty,
    /// A label is empty or longer than [`LABEL_LEN_BYTES_MAX`].
    Label,
    /// It has another character than letters, digits and hyphens, or a label begins or ends with a hyphen.
    Character,
    TooLong,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::Label => "each part between dots has 1 to 63 characters",
            Self::Character => {
                "its parts have letters, digits and hyphens, and begin and end with no hyphen"
            }
            Self::TooLong => "it is longer than 253 characters",
        })
    }
}

impl std::error::Error for NameError {}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of these labels, which may have any bytes. `None` if they are no host name, and so no name that anybody has.
    pub(crate) fn of_labels(labels: &[&[u8]]) -> Option<Self> {
        let labels: Option<Vec<&str>> = labels
            .iter()
            .map(|label| {
                std::str::from_utf8(label)
                    .ok()
                    .filter(|it| !it.contains('.'))
            })
            .collect();
        labels?.join(".").parse().ok()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameError;

    /// Reads a name of a host, with or without the dot at its end.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        // Each dot stands for a length; the first label has one, too, and the end is a byte.
        if text.len() + 2 > NAME_LEN_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        for label in text.split('.') {
            if !(1..=LABEL_LEN_BYTES_MAX).contains(&label.len()) {
                return Err(NameError::Label);
            }
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            if !label.bytes().all(fits) || label.starts_with('-') || label.ends_with('-') {
                return Err(NameError::Character);
            }
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_or_refused() {
        let long = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
        let cases: &[(&str, Result<&str, NameError>)] = &[
            ("files.example.com", Ok("files.example.com")),
            ("Files.Example.COM.", Ok("files.example.com")),
            ("files", Ok("files")),
            ("4.example", Ok("4.example")),
            (&long, Ok(&long)),
            (&format!("{long}a"), Err(NameError::TooLong)),
            ("", Err(NameError::Empty)),
            (".", Err(NameError::Empty)),
            ("a..b", Err(NameError::Label)),
            (&"a".repeat(64), Err(NameError::Label)),
            ("a_b", Err(NameError::Character)),
            ("-a.b", Err(NameError::Character)),
            ("a-.b", Err(NameError::Character)),
            ("ä.b", Err(NameError::Character)),
            ("*.b", Err(NameError::Character)),
        ];
        for (text, want) in cases {
            let got = text.parse::<Name>();
            let got = got.as_ref().map(Name::as_str).map_err(|error| *error);
            assert_eq!(got, *want, "{text}");
        }
    }
}
