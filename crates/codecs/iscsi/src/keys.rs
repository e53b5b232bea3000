//! Text: `key=value` pairs, each ended by a NUL (RFC 7143, section 6.1).

/// Most bytes of one request's text, over all its PDUs.
pub const KEYS_LEN_BYTES_MAX: usize = 16 << 10;
/// Most pairs of one request.
pub const KEYS_COUNT_MAX: usize = 96;
const KEY_LEN_BYTES_MAX: usize = 63;
/// Longest name of an initiator or target (RFC 7143, section 4.2.7.1).
const NAME_LEN_BYTES_MAX: usize = 223;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("text that is not UTF-8, or does not end with a NUL")]
    Malformed,
    #[error("a pair without \"=\", or with a key that cannot be one")]
    NoKey,
    #[error("{0} is given twice")]
    Twice(String),
    #[error("too many pairs")]
    TooMany,
}

/// Pairs in the order in which they came. No key comes twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pairs: Vec<(String, String)>,
}

impl Keys {
    pub fn parse(text: &[u8]) -> Result<Self, KeyError> {
        let mut keys = Self::default();
        if text.len() > KEYS_LEN_BYTES_MAX {
            return Err(KeyError::TooMany);
        }
        // Some initiators leave the last NUL out; others add more of them.
        for pair in text.split(|byte| *byte == 0) {
            if pair.is_empty() {
                continue;
            }
            let pair = std::str::from_utf8(pair).map_err(|_| KeyError::Malformed)?;
            let (key, value) = pair.split_once('=').ok_or(KeyError::NoKey)?;
            if key.is_empty() || key.len() > KEY_LEN_BYTES_MAX {
                return Err(KeyError::NoKey);
            }
            if keys.get(key).is_some() {
                return Err(KeyError::Twice(key.to_owned()));
            }
            if keys.pairs.len() == KEYS_COUNT_MAX {
                return Err(KeyError::TooMany);
            }
            keys.pairs.push((key.to_owned(), value.to_owned()));
        }
        Ok(keys)
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Adds a pair; a key may be there more than once in what a target says (SendTargets).
    pub fn push(&mut self, key: &str, value: impl Into<String>) {
        self.pairs.push((key.to_owned(), value.into()));
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (key, value) in &self.pairs {
            text.extend(key.as_bytes());
            text.push(b'=');
            text.extend(value.as_bytes());
            text.push(0);
        }
        text
    }
}

/// Whether a text can be an iSCSI name: `iqn.`, `eui.` or `naa.`, of characters that need no folding (RFC 3722).
pub fn is_iscsi_name(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte);
    let has_type = ["iqn.", "eui.", "naa."]
        .iter()
        .any(|kind| name.starts_with(kind));
    has_type && name.len() > 4 && name.len() <= NAME_LEN_BYTES_MAX && name.bytes().all(is_plain)
}
