//! What an object's key is as a path.
//!
//! A key is cut at its slashes. `a/b/c` is the file `c` in the directory `a/b`; `a/b/` is the directory itself, which a client
//! made on purpose. What no path can be is refused, and not rewritten: files and objects have the same names, both ways.

use cairn_fs::SNAPSHOTS_NAME;

use crate::KEY_LEN_BYTES_MAX;

/// Longest part of a key between two slashes, in bytes: that of a name.
const PART_LEN_BYTES_MAX: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the key is empty")]
    Empty,
    #[error("the key is longer than {KEY_LEN_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "a part of the key between two slashes is longer than {PART_LEN_BYTES_MAX} bytes, the limit of a file name"
    )]
    PartTooLong,
    #[error("the key begins with a slash or has two slashes in a row, which is not allowed")]
    EmptyPart,
    #[error("a part of the key is `.` or `..`, which cannot be a file name")]
    Dots,
    #[error("a part of the key is `.snapshot`, which is reserved for snapshots in each directory")]
    Snapshots,
    #[error("the key contains a NUL, which a file name cannot")]
    Nul,
}

fn check_part(part: &[u8]) -> Result<(), PathError> {
    match part {
        b"" => Err(PathError::EmptyPart),
        b"." | b".." => Err(PathError::Dots),
        part if part == SNAPSHOTS_NAME => Err(PathError::Snapshots),
        part if part.contains(&0) => Err(PathError::Nul),
        part if part.len() > PART_LEN_BYTES_MAX => Err(PathError::PartTooLong),
        _ => Ok(()),
    }
}

/// A key as a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath {
    parts: Vec<Vec<u8>>,
    /// The key ended with a slash.
    pub is_directory: bool,
}

impl KeyPath {
    pub fn parse(key: &[u8]) -> Result<Self, PathError> {
        if key.is_empty() {
            return Err(PathError::Empty);
        }
        if key.len() > KEY_LEN_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        let is_directory = key.ends_with(b"/");
        let path = key.strip_suffix(b"/").unwrap_or(key);
        let part = |part: &[u8]| check_part(part).map(|()| part.to_vec());
        let parts = path.split(|byte| *byte == b'/').map(part);
        Ok(Self {
            parts: parts.collect::<Result<_, _>>()?,
            is_directory,
        })
    }

    /// Refuses a pattern that no key is like, in which `*` stands for any bytes and `?` for one: who denies by it denies nothing.
    pub fn check_pattern(pattern: &str) -> Result<(), PathError> {
        let pattern = pattern.as_bytes();
        if pattern.is_empty() {
            return Err(PathError::Empty);
        }
        let least_len = pattern.iter().filter(|byte| **byte != b'*').count();
        if least_len > KEY_LEN_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        if pattern.contains(&0) {
            return Err(PathError::Nul);
        }
        let path = pattern.strip_suffix(b"/").unwrap_or(pattern);
        let is_plain = |part: &&[u8]| !part.iter().any(|byte| b"*?".contains(byte));
        // A part with a star can be many, or a part of one.
        let mut parts = path.split(|byte| *byte == b'/').filter(is_plain);
        parts.try_for_each(check_part)
    }

    /// All of them, from the bucket down.
    pub fn parts(&self) -> &[Vec<u8>] {
        &self.parts
    }

    /// The directories above it, from the bucket down.
    pub fn parents(&self) -> &[Vec<u8>] {
        match self.parts.split_last() {
            Some((_, parents)) => parents,
            None => &[],
        }
    }

    /// Its own name.
    pub fn name(&self) -> &[u8] {
        self.parts.last().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_no_key_is_like_are_refused() {
        let long = "x".repeat(PART_LEN_BYTES_MAX + 1);
        let star = format!("{}*", "x/".repeat(KEY_LEN_BYTES_MAX));
        for (pattern, want) in [
            ("*", Ok(())),
            ("a", Ok(())),
            ("a/", Ok(())),
            ("a/*", Ok(())),
            ("*/../*x?", Err(PathError::Dots)),
            ("a/.*/b", Ok(())),
            ("a/?./b", Ok(())),
            ("", Err(PathError::Empty)),
            ("/", Err(PathError::EmptyPart)),
            ("/x", Err(PathError::EmptyPart)),
            ("/*", Err(PathError::EmptyPart)),
            ("*//x", Err(PathError::EmptyPart)),
            ("a//", Err(PathError::EmptyPart)),
            ("../x", Err(PathError::Dots)),
            ("a/./*", Err(PathError::Dots)),
            ("*/.snapshot/*", Err(PathError::Snapshots)),
            ("a*\0", Err(PathError::Nul)),
            (long.as_str(), Err(PathError::PartTooLong)),
            (star.as_str(), Err(PathError::TooLong)),
        ] {
            assert_eq!(KeyPath::check_pattern(pattern), want, "{pattern:?}");
            // A pattern without a star is a key, or none.
            if !pattern.contains(['*', '?']) {
                assert_eq!(KeyPath::parse(pattern.as_bytes()).map(drop), want);
            }
        }
    }

    #[test]
    fn keys_are_paths_or_refused() {
        let long = "x".repeat(256);
        let longest = vec![b'x'; 255];
        for (key, want) in [
            ("a", Ok((0, "a", false))),
            ("a/b/c", Ok((2, "c", false))),
            ("a/b/", Ok((1, "b", true))),
            ("a b/é.txt", Ok((1, "é.txt", false))),
            ("...", Ok((0, "...", false))),
            ("", Err(PathError::Empty)),
            ("/", Err(PathError::EmptyPart)),
            ("/a", Err(PathError::EmptyPart)),
            ("a//b", Err(PathError::EmptyPart)),
            ("a//", Err(PathError::EmptyPart)),
            (".", Err(PathError::Dots)),
            ("a/../b", Err(PathError::Dots)),
            (".snapshot", Err(PathError::Snapshots)),
            ("a/.snapshot/", Err(PathError::Snapshots)),
            ("a/.snapshot/b", Err(PathError::Snapshots)),
            (".snapshots", Ok((0, ".snapshots", false))),
            ("a\0", Err(PathError::Nul)),
            (&long, Err(PathError::PartTooLong)),
        ] {
            let got = KeyPath::parse(key.as_bytes());
            let got = got.as_ref().map(|path| {
                let name = std::str::from_utf8(path.name()).unwrap();
                (path.parents().len(), name, path.is_directory)
            });
            assert_eq!(got, want.as_ref().copied(), "{key:?}");
        }
        assert!(KeyPath::parse(&longest).is_ok());
        assert_eq!(KeyPath::parse(&[b'x'; 1025]), Err(PathError::TooLong));
    }

    proptest::proptest! {
        /// Any bytes are a path or refused, and a path is the key again.
        #[test]
        fn any_bytes_are_taken_or_refused(key in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40), slashes: bool) {
            let key: Vec<u8> = match slashes {
                true => key.iter().map(|byte| if byte % 4 == 0 { b'/' } else { *byte }).collect(),
                false => key,
            };
            if let Ok(path) = KeyPath::parse(&key) {
                let mut parts: Vec<&[u8]> = path.parents().iter().map(Vec::as_slice).collect();
                parts.push(path.name());
                if path.is_directory {
                    parts.push(b"");
                }
                proptest::prop_assert_eq!(parts.join(&b'/'), key);
            }
        }
    }
}
