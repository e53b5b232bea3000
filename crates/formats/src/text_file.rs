//! A small file of JSON under a line that says what it is: `MAGIC VERSION CHECKSUM`. It holds its content twice
//! (see `copies`).
//!
//! Owns: the first line, the checksum, the padding of a copy.
//! Must not know: what the JSON says.

use cairn_base::{crc32c, crc32c_append};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::copies::{self, COPY_ALIGN_BYTES, Picked};

/// The first line is not longer than this, in bytes.
const HEAD_LEN_BYTES_MAX: usize = 64;
const CHECKSUM_LEN_BYTES: usize = 8;

/// Why bytes are not such a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextFileError {
    #[error("it is {len_bytes} bytes long, which no such file is")]
    Length { len_bytes: u64 },
    #[error("it does not begin as such a file does")]
    Magic,
    /// The checksum is right, so this is no damage.
    #[error("it has version {found}, this program knows {known}; use a newer program")]
    Version { found: u32, known: u32 },
    #[error("its checksum does not match")]
    Checksum,
    #[error("its content makes no sense: {0}")]
    Content(String),
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// Which of the two copies counts. One of another version decides: a newer program wrote the file.
pub fn pick<T: PartialEq>(
    copies: [Result<T, TextFileError>; 2],
    version: impl Fn(&T) -> u64,
) -> Result<Picked<T, TextFileError>, TextFileError> {
    let is_version = |why: &TextFileError| matches!(why, TextFileError::Version { .. });
    let differ = || TextFileError::Content("its two copies differ".to_owned());
    copies::pick(copies, version, is_version, differ)
}

/// Applies `decode` to the copies in the bytes of a whole file.
pub(crate) fn decode_file<T: PartialEq>(
    file: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, TextFileError>,
    version: impl Fn(&T) -> u64,
) -> Result<Picked<T, TextFileError>, TextFileError> {
    let len_bytes = file.len() as u64;
    let copies = copies::split(file).ok_or(TextFileError::Length { len_bytes })?;
    pick(copies.map(decode), version)
}

/// The bytes of a file.
pub(crate) fn encode_file(magic: &str, version: u32, json: &str) -> Vec<u8> {
    copies::twice(encode_copy(magic, version, json))
}

/// A copy: the line, the JSON, spaces, a line feed. The checksum is of all but itself and the line feed behind it.
pub(crate) fn encode_copy(magic: &str, version: u32, json: &str) -> Vec<u8> {
    let name = format!("{magic} {version} ");
    let head_len_bytes = name.len() + CHECKSUM_LEN_BYTES + 1;
    let len_bytes = (head_len_bytes + json.len() + 1).next_multiple_of(COPY_ALIGN_BYTES);
    let mut body = Vec::with_capacity(len_bytes - head_len_bytes);
    body.extend_from_slice(json.as_bytes());
    body.resize(len_bytes - head_len_bytes - 1, b' ');
    body.push(b'\n');
    let checksum = crc32c_append(crc32c(name.as_bytes()), &body);
    let mut copy = format!("{name}{checksum:08x}\n").into_bytes();
    copy.append(&mut body);
    assert!(copy.len() == len_bytes);
    copy
}

/// What follows the first line of a copy. Magic, version and checksum have the same place in every version.
fn open_copy<'a>(copy: &'a [u8], magic: &str, known: u32) -> Result<&'a [u8], TextFileError> {
    let newline = copy
        .iter()
        .take(HEAD_LEN_BYTES_MAX)
        .position(|byte| *byte == b'\n')
        .ok_or(TextFileError::Magic)?;
    let (head, rest) = copy.split_at_checked(newline).ok_or(TextFileError::Magic)?;
    let body = rest.get(1..).ok_or(TextFileError::Magic)?;
    let head = std::str::from_utf8(head).map_err(|_| TextFileError::Magic)?;
    let (name, checksum) = head.rsplit_once(' ').ok_or(TextFileError::Magic)?;
    let (found_magic, version) = name.split_once(' ').ok_or(TextFileError::Magic)?;
    if found_magic != magic {
        return Err(TextFileError::Magic);
    }
    let computed = crc32c_append(crc32c(format!("{name} ").as_bytes()), body);
    if checksum != format!("{computed:08x}") {
        return Err(TextFileError::Checksum);
    }
    // Only now: a version that a checksum does not vouch for is damage, and not a newer program's.
    let found = version.parse::<u32>().map_err(|_| TextFileError::Magic)?;
    if found != known {
        return Err(TextFileError::Version { found, known });
    }
    Ok(body)
}

pub(crate) fn decode_copy<T: DeserializeOwned>(
    copy: &[u8],
    magic: &str,
    version: u32,
) -> Result<T, TextFileError> {
    let json = open_copy(copy, magic, version)?;
    serde_json::from_slice(json).map_err(|error| TextFileError::Content(error.to_string()))
}

/// The JSON of a value whose every field is a string, a number, or a list of them.
pub(crate) fn json_of(value: &impl Serialize, is_pretty: bool) -> String {
    let json = if is_pretty {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    // JSON can say all of these.
    json.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_blocks_and_any_flipped_bit_is_damage() {
        for json_len in [2, 4096 - 25, 4096 - 24, 4096 - 23, 5000] {
            let json = format!("\"{}\"", "x".repeat(json_len - 2));
            let copy = encode_copy("cairn-test", 1, &json);
            assert!(copy.len().is_multiple_of(COPY_ALIGN_BYTES));
            let want = Ok("x".repeat(json_len - 2));
            assert_eq!(decode_copy(&copy, "cairn-test", 1), want, "{json_len}");
            for bit in 0..copy.len() * 8 {
                let mut bad = copy.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let read = decode_copy::<String>(&bad, "cairn-test", 1);
                let is_damage = matches!(read, Err(TextFileError::Magic | TextFileError::Checksum));
                assert!(is_damage, "{json_len}, bit {bit}: {read:?}");
            }
        }
    }

    #[test]
    fn another_version_counts_only_if_the_checksum_is_right() {
        let copy = encode_copy("cairn-test", 2, "\"\"");
        let newer = TextFileError::Version { found: 2, known: 1 };
        let read = decode_copy::<String>(&copy, "cairn-test", 1);
        assert_eq!(read, Err(newer));
        let text = String::from_utf8(copy).unwrap();
        let flipped = text.replacen("cairn-test 2", "cairn-test 3", 1);
        let read = decode_copy::<String>(flipped.as_bytes(), "cairn-test", 1);
        assert_eq!(read, Err(TextFileError::Checksum));
    }
}
