//! The settings of a volume.

use std::fmt;
use std::str::FromStr;

use cairn_base::Media;
use cairn_base::units::{format_size, parse_size};
use serde::{Deserialize, Serialize};

use cairn_base::words::{WordError, serde_as_word, word_enum};

/// Longest name of a volume, in bytes.
pub const VOLUME_NAME_LEN_BYTES_MAX: usize = 63;

/// The name of a volume, also the path it is mounted by: `main` is `SERVER:/main`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

impl VolumeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for VolumeName {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if super::is_plain_name(text, VOLUME_NAME_LEN_BYTES_MAX) {
            Ok(Self(text.to_owned()))
        } else {
            Err(WordError::new(
                text,
                "a volume name",
                "1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit",
            ))
        }
    }
}

serde_as_word!(VolumeName);

/// How many disks data may lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// What suits the number of disks: mirrors up to three, then N+2.
    #[default]
    Default,
    /// One copy: a lost disk is lost data.
    None,
    /// Erasure coding with so many parity shards: 1 to 4.
    Plus(u8),
    /// So many copies: 2 to 5.
    Mirror(u8),
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::None => f.pad("none"),
            Self::Plus(parity) => f.pad(&format!("+{parity}n")),
            Self::Mirror(copies) => f.pad(&format!("{copies}x")),
        }
    }
}

impl FromStr for Protection {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text {
            "default" => Ok(Self::Default),
            "none" => Ok(Self::None),
            "+1n" => Ok(Self::Plus(1)),
            "+2n" => Ok(Self::Plus(2)),
            "+3n" => Ok(Self::Plus(3)),
            "+4n" => Ok(Self::Plus(4)),
            "2x" => Ok(Self::Mirror(2)),
            "3x" => Ok(Self::Mirror(3)),
            "4x" => Ok(Self::Mirror(4)),
            "5x" => Ok(Self::Mirror(5)),
            _ => Err(WordError::new(
                text,
                "a protection",
                "default, none, +1n to +4n (parity) or 2x to 5x (mirrors)",
            )),
        }
    }
}

serde_as_word!(Protection);

impl Protection {
    /// All there are.
    pub const ALL: [Self; 10] = [
        Self::Default,
        Self::None,
        Self::Plus(1),
        Self::Plus(2),
        Self::Plus(3),
        Self::Plus(4),
        Self::Mirror(2),
        Self::Mirror(3),
        Self::Mirror(4),
        Self::Mirror(5),
    ];

    /// A byte for formats, above 0: docs/reference/formats/metadata.md.
    pub fn number(self) -> u8 {
        match self {
            Self::Default => 1,
            Self::None => 2,
            Self::Plus(parity) => 16 | parity,
            Self::Mirror(copies) => 32 | copies,
        }
    }

    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.number() == number)
    }
}

/// Protections of which each is there or not.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Protections(u16);

impl Protections {
    fn bit(of: Protection) -> u16 {
        let place = Protection::ALL.iter().position(|it| *it == of);
        place.map_or(0, |place| 1 << place)
    }

    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    pub fn insert(&mut self, protection: Protection) {
        self.0 |= Self::bit(protection);
    }

    pub fn contains(&self, protection: Protection) -> bool {
        self.0 & Self::bit(protection) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Protection> {
        let all = Protection::ALL.into_iter();
        all.filter(move |it| self.contains(*it))
    }
}

impl FromIterator<Protection> for Protections {
    fn from_iter<T: IntoIterator<Item = Protection>>(all: T) -> Self {
        let mut these = Self::default();
        all.into_iter().for_each(|it| these.insert(it));
        these
    }
}

impl fmt::Debug for Protections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for Protections {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Protections {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Protection>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

word_enum!(
    /// How the files of a volume are mostly used.
    AccessPattern, "an access pattern", "concurrent, streaming or random" {
        /// Many clients and files, mixed sizes.
        Concurrent = "concurrent",
        /// Few large files, read and written from end to end.
        Streaming = "streaming",
        /// Small reads and writes all over large files.
        Random = "random",
    }
);

word_enum!(
    /// Whether bytes that the volume has already are written again.
    #[derive(Default)]
    Dedupe, "a deduplication", "off, on or verify" {
        #[default]
        Off = "off",
        /// What has the same hash is the same.
        On = "on",
        /// What has the same hash is read and compared first.
        Verify = "verify",
    }
);

word_enum!(
    /// The device class of a disk, or the class that data is to live on.
    #[derive(Default)]
    MediaChoice, "a device class", "any, hdd, ssd or nvme" {
        /// Whatever they are; of a disk: nobody has said what it is.
        #[default]
        Any = "any",
        Hdd = "hdd",
        Ssd = "ssd",
        Nvme = "nvme",
    }
);

impl MediaChoice {
    pub fn is_any(&self) -> bool {
        *self == Self::Any
    }

    /// The kind; `None`: any.
    pub fn kind(self) -> Option<Media> {
        match self {
            Self::Any => None,
            Self::Hdd => Some(Media::Hdd),
            Self::Ssd => Some(Media::Ssd),
            Self::Nvme => Some(Media::Nvme),
        }
    }
}

impl From<Option<Media>> for MediaChoice {
    fn from(kind: Option<Media>) -> Self {
        match kind {
            None => Self::Any,
            Some(Media::Hdd) => Self::Hdd,
            Some(Media::Ssd) => Self::Ssd,
            Some(Media::Nvme) => Self::Nvme,
        }
    }
}

impl Dedupe {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// How data is compressed before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    None,
    Lz4,
    /// A level from 1 to 19.
    Zstd(u8),
    /// lz4, or zstd where that saves clearly more: each record by a sample of it.
    Auto,
}

const ZSTD_LEVEL_DEFAULT: u8 = 3;
const ZSTD_LEVEL_MAX: u8 = 19;

impl Compression {
    /// zstd of a level, if there is that one.
    pub fn zstd(level: u8) -> Option<Self> {
        (1..=ZSTD_LEVEL_MAX)
            .contains(&level)
            .then_some(Self::Zstd(level))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Lz4 => f.pad("lz4"),
            Self::Zstd(level) => f.pad(&format!("zstd:{level}")),
            Self::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Compression {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let refuse = || {
            WordError::new(
                text,
                "a compression",
                "off (or none), lz4, zstd, zstd:1 to zstd:19 or auto",
            )
        };
        match text {
            "none" | "off" => Ok(Self::None),
            "lz4" => Ok(Self::Lz4),
            "auto" => Ok(Self::Auto),
            "zstd" => Ok(Self::Zstd(ZSTD_LEVEL_DEFAULT)),
            _ => {
                let level = text.strip_prefix("zstd:").ok_or_else(refuse)?;
                let level = level.parse::<u8>().map_err(|_| refuse())?;
                Self::zstd(level).ok_or_else(refuse)
            }
        }
    }
}

serde_as_word!(Compression);

/// The most bytes that the files of a volume may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SizeLimit {
    #[default]
    None,
    Bytes(u64),
}

impl SizeLimit {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            // Exact when it is read back; `format_size` rounds, so it serves only round numbers.
            Self::Bytes(bytes) => {
                let text = format_size(*bytes);
                if parse_size(&text) == Ok(*bytes) {
                    f.pad(&text)
                } else {
                    f.pad(&format!("{bytes} B"))
                }
            }
        }
    }
}

impl FromStr for SizeLimit {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if text == "none" {
            return Ok(Self::None);
        }
        match parse_size(text) {
            Ok(bytes) if bytes > 0 => Ok(Self::Bytes(bytes)),
            _ => Err(WordError::new(
                text,
                "a size limit",
                "none, or a size such as 500GiB",
            )),
        }
    }
}

serde_as_word!(SizeLimit);

/// What can be set on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSettings {
    pub protection: Protection,
    pub size_limit: SizeLimit,
    /// Up to where the size limit grows by itself as the volume fills.
    #[serde(default, skip_serializing_if = "SizeLimit::is_none")]
    pub autogrow: SizeLimit,
    pub access_pattern: AccessPattern,
    pub compression: Compression,
    #[serde(default, skip_serializing_if = "Dedupe::is_off")]
    pub dedupe: Dedupe,
    /// The device class that its data is to live on.
    #[serde(default, skip_serializing_if = "MediaChoice::is_any")]
    pub media: MediaChoice,
    /// What some of its directories ask for instead of `protection`, or data that was written below them still does.
    #[serde(default, skip_serializing_if = "Protections::is_empty")]
    pub directory_protections: Protections,
}

impl VolumeSettings {
    /// Why the growth settings of the size limit are refused; `None`: they are not.
    pub fn problem_of_autogrow(&self) -> Option<String> {
        match (self.autogrow, self.size_limit) {
            (SizeLimit::None, _) => None,
            (SizeLimit::Bytes(_), SizeLimit::None) => Some(
                "a volume without a size limit has nothing that could grow by itself: set a size limit as well"
                    .to_owned(),
            ),
            (SizeLimit::Bytes(bound), SizeLimit::Bytes(limit)) if bound < limit => Some(format!(
                "the volume is to grow by itself up to {}, which is less than its size limit of {}",
                self.autogrow, self.size_limit
            )),
            (SizeLimit::Bytes(_), SizeLimit::Bytes(_)) => None,
        }
    }

    /// All protections that some of its data asks for.
    pub fn protections(&self) -> impl Iterator<Item = Protection> {
        let others = self.directory_protections.iter();
        let own = self.protection;
        std::iter::once(own).chain(others.filter(move |it| *it != own))
    }
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self {
            protection: Protection::Default,
            size_limit: SizeLimit::None,
            autogrow: SizeLimit::None,
            access_pattern: AccessPattern::Concurrent,
            // Cheap enough to leave on: the probe gives up early on data that does not compress.
            compression: Compression::Lz4,
            dedupe: Dedupe::Off,
            media: MediaChoice::Any,
            directory_protections: Protections::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that is read, written and read again is the same; `None` means refused.
    fn check<T>(cases: &[(&str, Option<T>)])
    where
        T: FromStr + fmt::Display + fmt::Debug + PartialEq + Clone,
    {
        for (text, want) in cases {
            let got = text.parse::<T>().ok();
            assert_eq!(got, *want, "{text:?}");
            if let Some(value) = got {
                let again = value.to_string().parse::<T>().ok();
                assert_eq!(again.as_ref(), Some(&value), "{text:?} written as {value}");
            }
        }
    }

    #[test]
    fn words_are_read_or_refused() {
        check::<Protection>(&[
            ("default", Some(Protection::Default)),
            ("none", Some(Protection::None)),
            ("+1n", Some(Protection::Plus(1))),
            ("+4n", Some(Protection::Plus(4))),
            ("+5n", None),
            ("+0n", None),
            ("2x", Some(Protection::Mirror(2))),
            ("5x", Some(Protection::Mirror(5))),
            ("1x", None),
            ("6x", None),
            ("", None),
        ]);
        check::<Compression>(&[
            ("none", Some(Compression::None)),
            ("lz4", Some(Compression::Lz4)),
            ("zstd", Some(Compression::Zstd(3))),
            ("off", Some(Compression::None)),
            ("auto", Some(Compression::Auto)),
            ("zstd:1", Some(Compression::Zstd(1))),
            ("zstd:19", Some(Compression::Zstd(19))),
            ("zstd:20", None),
            ("zstd:0", None),
            ("zstd:-1", None),
            ("gzip", None),
        ]);
        check::<Dedupe>(&[
            ("off", Some(Dedupe::Off)),
            ("on", Some(Dedupe::On)),
            ("verify", Some(Dedupe::Verify)),
            ("none", None),
            ("", None),
        ]);
        check::<SizeLimit>(&[
            ("none", Some(SizeLimit::None)),
            ("10GiB", Some(SizeLimit::Bytes(10 << 30))),
            ("12345678901", Some(SizeLimit::Bytes(12_345_678_901))),
            ("0", None),
            ("much", None),
        ]);
        check::<AccessPattern>(&[
            ("concurrent", Some(AccessPattern::Concurrent)),
            ("streaming", Some(AccessPattern::Streaming)),
            ("random", Some(AccessPattern::Random)),
            ("Random", None),
        ]);
    }

    #[test]
    fn volume_names_are_read_or_refused() {
        let long = "v".repeat(64);
        let cases: &[(&str, bool)] = &[
            ("main", true),
            ("a", true),
            ("Team-1.home_2", true),
            (&long[..63], true),
            (&long, false),
            ("", false),
            (".", false),
            ("..", false),
            ("-x", false),
            ("a/b", false),
            ("a b", false),
            ("größe", false),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<VolumeName>().is_ok(), *want, "{text:?}");
        }
    }
}
