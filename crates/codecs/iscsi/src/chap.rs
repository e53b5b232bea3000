//! CHAP: proving to know a secret (RFC 1994, and RFC 7143 section 12.1.3).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq as _;

/// Longest challenge that is taken (RFC 7143, section 12.1.3).
pub const CHAP_CHALLENGE_LEN_BYTES_MAX: usize = 1024;
/// Longest secret that can be set.
pub const CHAP_SECRET_LEN_BYTES_MAX: usize = 255;

/// The hash that an answer is made with. Strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChapHash {
    Sha3_256,
    Sha256,
    Sha1,
    Md5,
}

impl ChapHash {
    /// By its number in CHAP_A (IANA, PPP authentication algorithms).
    pub fn numbered(number: &str) -> Option<Self> {
        match number.trim() {
            "5" => Some(Self::Md5),
            "6" => Some(Self::Sha1),
            "7" => Some(Self::Sha256),
            "8" => Some(Self::Sha3_256),
            _ => None,
        }
    }

    pub fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
            Self::Sha3_256 => 8,
        }
    }

    /// The first of a list in CHAP_A that is known: the initiator's choice.
    pub fn first_of(list: &str) -> Option<Self> {
        list.split(',').find_map(Self::numbered)
    }

    /// Bytes of an answer, and of our challenges.
    pub fn len_bytes(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3_256 => 32,
        }
    }
}

/// The answer to a challenge.
pub fn chap_response(hash: ChapHash, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
    fn digest<D: sha2::Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        let mut digest = D::new();
        digest.update([id]);
        digest.update(secret);
        digest.update(challenge);
        digest.finalize().to_vec()
    }
    match hash {
        ChapHash::Md5 => digest::<md5::Md5>(id, secret, challenge),
        ChapHash::Sha1 => digest::<sha1::Sha1>(id, secret, challenge),
        ChapHash::Sha256 => digest::<sha2::Sha256>(id, secret, challenge),
        ChapHash::Sha3_256 => digest::<sha3::Sha3_256>(id, secret, challenge),
    }
}

/// Compares without telling by its time where the difference is.
pub fn same_bytes(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

/// A binary value in text: `0x` and hexadecimal digits, or `0b` and base64 (RFC 7143, section 6.1).
pub fn binary_of_text(text: &str, len_bytes_max: usize) -> Option<Vec<u8>> {
    let (kind, digits) = text.split_at_checked(2)?;
    let bytes = match kind {
        "0x" | "0X" => {
            if digits.len() > 2 * len_bytes_max
                || !digits.bytes().all(|digit| digit.is_ascii_hexdigit())
            {
                return None;
            }
            // An odd number of digits leaves the first byte half.
            let padded = format!("{}{digits}", if digits.len() % 2 == 0 { "" } else { "0" });
            let pairs = (0..padded.len()).step_by(2);
            let bytes = pairs.map(|at| u8::from_str_radix(padded.get(at..at + 2)?, 16).ok());
            bytes.collect::<Option<Vec<u8>>>()?
        }
        "0b" | "0B" => {
            if digits.len() > 2 * len_bytes_max {
                return None;
            }
            STANDARD.decode(digits).ok()?
        }
        _ => return None,
    };
    (bytes.len() <= len_bytes_max).then_some(bytes)
}

pub fn text_of_binary(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}
