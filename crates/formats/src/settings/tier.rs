//! Tiers, and what of a volume goes to one.
//!
//! Owns: the words, their limits. Must not know: what is behind an address, when a segment is cold.

use std::fmt;
use std::str::FromStr;

use cairn_base::words::{WordError, serde_as_word, word_enum};

/// Longest name of a tier, in bytes.
pub const TIER_NAME_LEN_BYTES_MAX: usize = 63;
/// Most tiers of a pool.
pub const TIERS_MAX: usize = 16;
/// Longest address of a tier, and longest path of a file with credentials, in bytes.
pub const TIER_URL_LEN_BYTES_MAX: usize = 1024;
/// Days without use after which data may be cold, and what they are unless a volume says something else.
pub const COOLING_DAYS_MIN: u16 = 2;
pub const COOLING_DAYS_MAX: u16 = 183;
pub const COOLING_DAYS_DEFAULT: u16 = 31;

/// The name of a tier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierName(String);

impl TierName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for TierName {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if super::is_plain_name(text, TIER_NAME_LEN_BYTES_MAX) {
            return Ok(Self(text.to_owned()));
        }
        Err(WordError::new(
            text,
            "the name of a tier",
            "1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit",
        ))
    }
}

serde_as_word!(TierName);

word_enum!(
    /// What of a volume's data goes to its tier.
    #[derive(Default)]
    Tiering, "what goes to a tier", "none, snapshot-only, auto or all" {
        /// Nothing, and what is there comes back.
        #[default]
        None = "none",
        /// What snapshots alone have, and nobody used for the cooling time.
        SnapshotOnly = "snapshot-only",
        /// What nobody used for the cooling time.
        Auto = "auto",
        /// Everything, as soon as it takes no more writes.
        All = "all",
    }
);

/// How many days data must not have been used to be cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoolingDays(u16);

impl CoolingDays {
    pub fn days(self) -> u16 {
        self.0
    }
}

impl Default for CoolingDays {
    fn default() -> Self {
        Self(COOLING_DAYS_DEFAULT)
    }
}

impl fmt::Display for CoolingDays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

impl FromStr for CoolingDays {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text.parse::<u16>() {
            Ok(days) if (COOLING_DAYS_MIN..=COOLING_DAYS_MAX).contains(&days) => Ok(Self(days)),
            _ => Err(WordError::new(
                text,
                "a cooling time",
                "2 to 183, in days without use",
            )),
        }
    }
}

serde_as_word!(CoolingDays);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_or_refused() {
        let good = |text: &str| text.parse::<CoolingDays>().map(CoolingDays::days).ok();
        let days = [
            ("2", Some(2)),
            ("183", Some(183)),
            ("1", None),
            ("184", None),
            ("-2", None),
            ("2.5", None),
            ("", None),
            ("99999999999", None),
        ];
        for (text, want) in days {
            assert_eq!(good(text), want, "{text:?}");
        }
        let policies = [
            ("none", Some(Tiering::None)),
            ("auto", Some(Tiering::Auto)),
            ("all", Some(Tiering::All)),
            ("snapshot-only", Some(Tiering::SnapshotOnly)),
            ("snapshots", None),
            ("ALL", None),
        ];
        for (text, want) in policies {
            assert_eq!(text.parse::<Tiering>().ok(), want, "{text:?}");
        }
        for (text, want) in [("cold", true), ("a/b", false), ("", false), ("..", false)] {
            assert_eq!(text.parse::<TierName>().is_ok(), want, "{text:?}");
        }
    }
}
