//! Checksums of objects that come in parts (S3 User Guide, "Checking object integrity").
//!
//! Owns: what the checksum of the whole is, from those of its parts. Must not know: where parts are kept.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// Which checksum an upload is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadChecksum {
    /// `crc32`, `crc32c`, `crc64nvme`, `sha1` or `sha256`.
    pub algorithm: String,
    /// It is that of the parts' checksums, not of all bytes.
    pub is_composite: bool,
}

fn crc(algorithm: &str) -> Option<(CrcAlgorithm, usize)> {
    match algorithm {
        "crc32" => Some((CrcAlgorithm::Crc32IsoHdlc, 4)),
        "crc32c" => Some((CrcAlgorithm::Crc32Iscsi, 4)),
        "crc64nvme" => Some((CrcAlgorithm::Crc64Nvme, 8)),
        _ => None,
    }
}

/// The last bytes of a number, the highest first.
fn text(value: u64, len: usize) -> String {
    let bytes = value.to_be_bytes();
    STANDARD.encode(&bytes[bytes.len() - len..])
}

/// Whether a client means this checksum of a whole. Clients leave out the count of parts behind a composite one: minio-go does.
pub(crate) fn is_meant(given: &str, whole: &str, part_count: usize) -> bool {
    let count = format!("-{part_count}");
    given == whole || whole.strip_suffix(count.as_str()) == Some(given)
}

impl UploadChecksum {
    /// The checksum of the whole, from those of its parts, in base64, and their lengths. `None`: one of them is none.
    pub fn of_parts(&self, parts: &[(&str, u64)]) -> Option<String> {
        let raw = |text: &str| STANDARD.decode(text).ok();
        if !self.is_composite {
            let (algorithm, len) = crc(&self.algorithm)?;
            let mut whole: Option<u64> = None;
            for (part, len_bytes) in parts {
                let raw = raw(part).filter(|raw| raw.len() == len)?;
                let part = raw.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                whole = Some(match whole {
                    None => part,
                    Some(before) => crc_fast::checksum_combine(algorithm, before, part, *len_bytes),
                });
            }
            return Some(text(whole?, len));
        }
        let mut all = Vec::new();
        for (part, _) in parts {
            all.extend(raw(part)?);
        }
        let sum = match self.algorithm.as_str() {
            "sha1" => STANDARD.encode(Sha1::digest(&all)),
            "sha256" => STANDARD.encode(Sha256::digest(&all)),
            other => {
                let (algorithm, len) = crc(other)?;
                text(crc_fast::checksum(algorithm, &all), len)
            }
        };
        Some(format!("{sum}-{}", parts.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(algorithm: &str, is_composite: bool) -> UploadChecksum {
        UploadChecksum {
            algorithm: algorithm.to_owned(),
            is_composite,
        }
    }

    /// Of bytes themselves, as who sends a part makes it.
    fn sum(algorithm: &str, bytes: &[u8]) -> String {
        match algorithm {
            "sha1" => STANDARD.encode(Sha1::digest(bytes)),
            "sha256" => STANDARD.encode(Sha256::digest(bytes)),
            other => {
                let (algorithm, len) = crc(other).unwrap();
                text(crc_fast::checksum(algorithm, bytes), len)
            }
        }
    }

    #[test]
    fn the_whole_has_the_checksum_of_all_its_bytes() {
        let (first, second, third) = (vec![7; 1000], vec![9; 17], vec![1; 333]);
        let all = [&first[..], &second, &third].concat();
        for algorithm in ["crc32", "crc32c", "crc64nvme"] {
            let sums = [&first, &second, &third].map(|part| sum(algorithm, part));
            let parts = [
                (sums[0].as_str(), 1000),
                (sums[1].as_str(), 17),
                (sums[2].as_str(), 333),
            ];
            let whole = of(algorithm, false).of_parts(&parts);
            assert_eq!(whole, Some(sum(algorithm, &all)), "{algorithm}");
        }
        // The usual check value, which tells how the bytes lie.
        assert_eq!(sum("crc32", b"123456789"), "y/Q5Jg==");
        assert_eq!(of("sha256", false).of_parts(&[("aaaa", 1)]), None);
        assert_eq!(of("crc32", false).of_parts(&[]), None);
    }

    #[test]
    fn a_composite_is_meant_with_and_without_its_count() {
        for (given, whole, want) in [
            ("y/Q5Jg==-2", "y/Q5Jg==-2", true),
            ("y/Q5Jg==", "y/Q5Jg==-2", true),
            ("y/Q5Jg==-3", "y/Q5Jg==-2", false),
            ("x/Q5Jg==", "y/Q5Jg==-2", false),
            ("y/Q5Jg==", "y/Q5Jg==", true),
            ("y/Q5Jg==-2", "y/Q5Jg==", false),
            ("", "y/Q5Jg==-2", false),
        ] {
            assert_eq!(is_meant(given, whole, 2), want, "{given} {whole}");
        }
    }

    #[test]
    fn a_composite_is_made_of_the_checksums() {
        for algorithm in ["crc32", "crc32c", "sha1", "sha256"] {
            let sums = [b"first", b"other"].map(|part| sum(algorithm, part));
            let raw = sums.each_ref().map(|sum| STANDARD.decode(sum).unwrap());
            let want = format!("{}-2", sum(algorithm, &raw.concat()));
            let parts = [(sums[0].as_str(), 5), (sums[1].as_str(), 5)];
            let got = of(algorithm, true).of_parts(&parts);
            assert_eq!(got, Some(want), "{algorithm}");
        }
        assert_eq!(of("crc32", true).of_parts(&[("no base64!", 1)]), None);
        assert_eq!(of("md4", true).of_parts(&[("aaaa", 1)]), None);
    }
}
