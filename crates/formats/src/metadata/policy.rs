//! Policies of directories: what they say, and how far existing data follows them.
//!
//! Owns: the bytes of these values (docs/reference/formats/metadata.md). Pure: no I/O, no clock.
//! Must not know: what lies below a directory, how data is rewritten.

use cairn_base::{Ino, Media};

use super::fields::{Fields, put_u64};
use super::records::{RecordError, VERSION, protection_of};
use crate::settings::{AccessPattern, Compression, Dedupe, MediaChoice, Protection};

/// What a directory says about data of files below it. What it leaves open is said by the next directory above it that
/// does, or by the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyRecord {
    pub compression: Option<Compression>,
    pub dedupe: Option<Dedupe>,
    pub access_pattern: Option<AccessPattern>,
    /// The device class that it lives on.
    pub media: Option<MediaChoice>,
    /// How many disks it may lose.
    pub protection: Option<Protection>,
}

/// The byte of a level of zstd: this and the level, 1 to 19.
const ZSTD: u8 = 16;

fn compression_byte(compression: Option<Compression>) -> u8 {
    match compression {
        None => 0,
        Some(Compression::None) => 1,
        Some(Compression::Lz4) => 2,
        Some(Compression::Auto) => 3,
        Some(Compression::Zstd(level)) => ZSTD.saturating_add(level),
    }
}

fn compression_of(byte: u8) -> Option<Option<Compression>> {
    Some(match byte {
        0 => None,
        1 => Some(Compression::None),
        2 => Some(Compression::Lz4),
        3 => Some(Compression::Auto),
        byte => Some(Compression::zstd(byte.checked_sub(ZSTD)?)?),
    })
}

impl PolicyRecord {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What holds below a directory that says `self`, in one where `around` holds.
    pub fn within(&self, around: &Self) -> Self {
        Self {
            compression: self.compression.or(around.compression),
            dedupe: self.dedupe.or(around.dedupe),
            access_pattern: self.access_pattern.or(around.access_pattern),
            media: self.media.or(around.media),
            protection: self.protection.or(around.protection),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let dedupe = match self.dedupe {
            None => 0,
            Some(Dedupe::Off) => 1,
            Some(Dedupe::On) => 2,
            Some(Dedupe::Verify) => 3,
        };
        let access_pattern = match self.access_pattern {
            None => 0,
            Some(AccessPattern::Concurrent) => 1,
            Some(AccessPattern::Streaming) => 2,
            Some(AccessPattern::Random) => 3,
        };
        let media = match self.media {
            None => 0,
            Some(choice) => 1 + choice.kind().map_or(0, Media::number),
        };
        vec![
            VERSION,
            compression_byte(self.compression),
            dedupe,
            access_pattern,
            media,
            self.protection.map_or(0, Protection::number),
        ]
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("policy", bytes)?;
        let compression = compression_of(fields.u8("compression")?);
        let compression = compression.ok_or(fields.malformed("compression"))?;
        let dedupe = match fields.u8("dedupe")? {
            0 => None,
            1 => Some(Dedupe::Off),
            2 => Some(Dedupe::On),
            3 => Some(Dedupe::Verify),
            _ => return Err(fields.malformed("dedupe")),
        };
        let access_pattern = match fields.u8("access pattern")? {
            0 => None,
            1 => Some(AccessPattern::Concurrent),
            2 => Some(AccessPattern::Streaming),
            3 => Some(AccessPattern::Random),
            _ => return Err(fields.malformed("access pattern")),
        };
        let media = match fields.u8("media")? {
            0 => None,
            number => {
                let kind = Media::of_number(number - 1).ok_or(fields.malformed("media"))?;
                Some(MediaChoice::from(kind))
            }
        };
        let protection = protection_of(fields.u8("protection")?);
        let protection = protection.ok_or(fields.malformed("protection"))?;
        fields.end()?;
        Ok(Self {
            compression,
            dedupe,
            access_pattern,
            media,
            protection,
        })
    }
}

/// How a conversion of existing data stands. The numbers are part of the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ApplyState {
    #[default]
    Running = 1,
    Done = 2,
    Cancelled = 3,
}

impl ApplyState {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Running,
            2 => Self::Done,
            3 => Self::Cancelled,
            _ => return None,
        })
    }
}

/// The conversion of existing data to what policies say: the one that is under way, or the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyRecord {
    pub state: ApplyState,
    /// The directory whose files are converted.
    pub dir: Ino,
    /// Files up to here are converted; of this one the bytes below `at_offset`.
    pub at: Ino,
    pub at_offset: u64,
    /// Inodes from here on were made after it began, and follow their policy anyway.
    pub end: Ino,
    /// In seconds since 1970; 0 while it is running.
    pub began_seconds: u64,
    pub ended_seconds: u64,
    /// Inodes of the volume that were looked at, and how many there were at its beginning.
    pub inodes: u64,
    pub inodes_all: u64,
    /// Files below the directory that were looked at.
    pub files: u64,
    /// Their bytes, without holes.
    pub seen_bytes: u64,
    /// Of these, the bytes that were rewritten.
    pub rewritten_bytes: u64,
    /// Of these, the bytes that refer to records that were there.
    pub shared_bytes: u64,
    /// What the written records and those in their place took, after compression and before parity.
    pub stored_bytes_before: u64,
    pub stored_bytes_after: u64,
    /// Parts of files that could not be read, or that clients or collections changed meanwhile.
    pub left: u64,
}

impl ApplyRecord {
    fn numbers(&self) -> [u64; 15] {
        [
            self.dir.0,
            self.at.0,
            self.at_offset,
            self.end.0,
            self.began_seconds,
            self.ended_seconds,
            self.inodes,
            self.inodes_all,
            self.files,
            self.seen_bytes,
            self.rewritten_bytes,
            self.shared_bytes,
            self.stored_bytes_before,
            self.stored_bytes_after,
            self.left,
        ]
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + 8 * 15);
        out.push(VERSION);
        out.push(self.state as u8);
        for number in self.numbers() {
            put_u64(&mut out, number);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("apply", bytes)?;
        let state = ApplyState::from_u8(fields.u8("state")?).ok_or(fields.malformed("state"))?;
        let record = Self {
            state,
            dir: Ino(fields.u64("directory")?),
            at: Ino(fields.u64("at")?),
            at_offset: fields.u64("at offset")?,
            end: Ino(fields.u64("end")?),
            began_seconds: fields.u64("began")?,
            ended_seconds: fields.u64("ended")?,
            inodes: fields.u64("inodes")?,
            inodes_all: fields.u64("all inodes")?,
            files: fields.u64("files")?,
            seen_bytes: fields.u64("seen")?,
            rewritten_bytes: fields.u64("rewritten")?,
            shared_bytes: fields.u64("shared")?,
            stored_bytes_before: fields.u64("stored before")?,
            stored_bytes_after: fields.u64("stored after")?,
            left: fields.u64("left")?,
        };
        fields.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::check::check;
    use proptest::prelude::*;

    #[test]
    fn records_are_read_back_or_refused() {
        let compressions = [
            None,
            Some(Compression::None),
            Some(Compression::Lz4),
            Some(Compression::Auto),
            Some(Compression::Zstd(1)),
            Some(Compression::Zstd(19)),
        ];
        for compression in compressions {
            let policy = PolicyRecord {
                compression,
                dedupe: Some(Dedupe::Verify),
                access_pattern: Some(AccessPattern::Random),
                media: Some(MediaChoice::Hdd),
                protection: None,
            };
            check(&policy, policy.encode(), PolicyRecord::decode);
        }
        for protection in Protection::ALL {
            let policy = PolicyRecord {
                protection: Some(protection),
                ..PolicyRecord::default()
            };
            check(&policy, policy.encode(), PolicyRecord::decode);
        }
        let nothing = PolicyRecord::default();
        check(&nothing, nothing.encode(), PolicyRecord::decode);
        let apply = ApplyRecord {
            state: ApplyState::Cancelled,
            dir: Ino(9),
            at: Ino(10),
            at_offset: 4096,
            end: Ino(u64::MAX),
            left: 1,
            ..ApplyRecord::default()
        };
        check(&apply, apply.encode(), ApplyRecord::decode);
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        let cases: &[(&str, [u8; 6])] = &[
            ("compression", [VERSION, 4, 0, 0, 0, 0]),
            ("level 0 of zstd", [VERSION, ZSTD, 0, 0, 0, 0]),
            ("level 20 of zstd", [VERSION, ZSTD + 20, 0, 0, 0, 0]),
            ("dedupe", [VERSION, 0, 4, 0, 0, 0]),
            ("access pattern", [VERSION, 0, 0, 4, 0, 0]),
            ("media", [VERSION, 0, 0, 0, 5, 0]),
            ("parity 5", [VERSION, 0, 0, 0, 0, 16 + 5]),
            ("one mirror", [VERSION, 0, 0, 0, 0, 32 + 1]),
        ];
        for (name, bytes) in cases {
            assert!(PolicyRecord::decode(bytes).is_err(), "{name}");
        }
    }

    #[test]
    fn the_nearest_directory_that_says_something_is_heard() {
        let around = PolicyRecord {
            compression: Some(Compression::Lz4),
            dedupe: Some(Dedupe::On),
            access_pattern: None,
            media: Some(MediaChoice::Any),
            protection: Some(Protection::Mirror(2)),
        };
        let inner = PolicyRecord {
            compression: Some(Compression::None),
            ..PolicyRecord::default()
        };
        let want = PolicyRecord {
            compression: Some(Compression::None),
            ..around
        };
        assert_eq!(inner.within(&around), want);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(0u8..4, 0..130), versioned: bool) {
            if let (true, Some(first)) = (versioned, bytes.first_mut()) {
                *first = VERSION;
            }
            let _ = PolicyRecord::decode(&bytes);
            let _ = ApplyRecord::decode(&bytes);
        }
    }
}
