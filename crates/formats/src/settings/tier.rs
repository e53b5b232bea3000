//! Tiers, and which data of a volume goes to one.
//!
//! Owns: the words, their limits. Must not know: the service behind an address, when a segment is cold.

use std::fmt;
use std::str::FromStr;

use cairn_base::words::{WordError, serde_as_word, word_enum};
use serde::{Deserialize, Serialize};

use super::{FilePatterns, SizeLimit, hours};

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
/// Most hours that files may have to be without a change: a hundred years.
const MIN_AGE_HOURS_MAX: u32 = 100 * 366 * 24;

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
        /// Nothing, and data in the tier comes back.
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

/// For how long a file must not have been changed, in hours; 0: that does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MinAge(u32);

impl MinAge {
    pub fn seconds(self) -> i64 {
        i64::from(self.0) * 3600
    }

    fn is_none(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for MinAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.pad("none"),
            hours => f.pad(&hours::written(hours)),
        }
    }
}

impl FromStr for MinAge {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let wanted = "none, or hours or days since the last change, such as 12h or 30d";
        if text == "none" {
            return Ok(Self(0));
        }
        match hours::parse(text) {
            Some(hours @ 1..=MIN_AGE_HOURS_MAX) => Ok(Self(hours)),
            _ => Err(WordError::new(text, "an age of files", wanted)),
        }
    }
}

serde_as_word!(MinAge);

/// Whose data goes to a tier: that of files to which all of it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierFilter {
    #[serde(default, skip_serializing_if = "FilePatterns::is_any")]
    pub files: FilePatterns,
    #[serde(default, skip_serializing_if = "has_no_minimum")]
    pub min_size: SizeLimit,
    #[serde(default, skip_serializing_if = "MinAge::is_none")]
    pub min_age: MinAge,
}

fn has_no_minimum(size: &SizeLimit) -> bool {
    *size == SizeLimit::None
}

impl TierFilter {
    /// Whether it applies to everything.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it applies to a file of this size that was changed so many seconds ago; `name` is asked for last.
    pub fn takes<E>(
        &self,
        size_bytes: u64,
        age_seconds: i64,
        name: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        if size_bytes < self.min_size.bytes().unwrap_or(0) {
            return Ok(false);
        }
        if !self.min_age.is_none() && age_seconds < self.min_age.seconds() {
            return Ok(false);
        }
        match self.files.is_any() {
            true => Ok(true),
            false => name(),
        }
    }
}

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
        let ages = [
            ("none", Some("none")),
            ("30d", Some("30d")),
            ("12h", Some("12h")),
            ("48h", Some("2d")),
            ("1h", Some("1h")),
            ("36600d", Some("36600d")),
            ("36601d", None),
            ("0d", None),
            ("0", None),
            ("-1d", None),
            ("1.5d", None),
            ("30", None),
            ("30m", None),
            ("4294967295d", None),
            ("d", None),
            ("", None),
        ];
        for (text, want) in ages {
            let age = text.parse::<MinAge>().ok().map(|age| age.to_string());
            assert_eq!(age.as_deref(), want, "{text:?}");
        }
        for (text, want) in [("cold", true), ("a/b", false), ("", false), ("..", false)] {
            assert_eq!(text.parse::<TierName>().is_ok(), want, "{text:?}");
        }
    }

    #[test]
    fn a_filter_takes_files_to_which_all_of_it_applies() {
        let filter = |files: &str, min_size: &str, min_age: &str| TierFilter {
            files: files.parse().unwrap(),
            min_size: min_size.parse().unwrap(),
            min_age: min_age.parse().unwrap(),
        };
        let day = 24 * 3600;
        let cases = [
            (filter("any", "none", "none"), "a.txt", 0, 0, true),
            (filter("any", "none", "none"), "a.txt", 0, -day, true),
            (filter("*.mp4", "none", "none"), "a.mp4", 0, 0, true),
            (filter("*.mp4", "none", "none"), "a.txt", 0, 0, false),
            (filter("*.mp4", "1MiB", "none"), "a.mp4", 1 << 20, 0, true),
            (
                filter("*.mp4", "1MiB", "none"),
                "a.mp4",
                (1 << 20) - 1,
                0,
                false,
            ),
            (filter("any", "none", "30d"), "a.mp4", 0, 30 * day, true),
            (
                filter("any", "none", "30d"),
                "a.mp4",
                0,
                30 * day - 1,
                false,
            ),
            (filter("any", "none", "1h"), "of the future", 0, -day, false),
            (
                filter("*.mp4", "1MiB", "30d"),
                "a.mp4",
                1 << 20,
                30 * day,
                true,
            ),
        ];
        for (filter, name, size_bytes, age_seconds, want) in cases {
            let matches = || Ok::<bool, ()>(filter.files.matches(name.as_bytes()));
            let takes = filter.takes(size_bytes, age_seconds, matches);
            assert_eq!(
                takes,
                Ok(want),
                "{filter:?} {name} {size_bytes} {age_seconds}"
            );
        }
        // Nobody is asked for a name that does not matter.
        let size = filter("*.mp4", "1MiB", "none");
        assert_eq!(size.takes(0, 0, || Err("asked")), Ok(false));
        assert_eq!(
            filter("any", "1MiB", "none").takes(1 << 20, 0, || Err("asked")),
            Ok(true)
        );
    }
}
