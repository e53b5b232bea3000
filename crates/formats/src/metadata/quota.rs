//! Quotas of a volume: whom they are about, what they limit, and their usage.
//!
//! Owns: the bytes of these (docs/reference/formats/metadata.md). Pure: no I/O, no clock.
//! Must not know: when a limit refuses something, how usage is counted.

use bytes::Bytes;
use cairn_base::Ino;

use super::fields::{Fields, put_u16, put_u64};
use super::records::{RecordError, VERSION};

/// Longest path that is kept with the quota of a directory, in bytes.
pub const QUOTA_PATH_LEN_BYTES_MAX: usize = 4096;

/// Whose usage a quota is about. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QuotaKind {
    /// All that is in the tree.
    Tree = 0,
    User = 1,
    Group = 2,
    /// Each user without a quota of their own.
    DefaultUser = 3,
    DefaultGroup = 4,
}

impl QuotaKind {
    pub(super) fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Tree,
            1 => Self::User,
            2 => Self::Group,
            3 => Self::DefaultUser,
            4 => Self::DefaultGroup,
            _ => return None,
        })
    }
}

/// Names a quota and its usage: everything in a tree, or the share of a user or group there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaKey {
    /// The directory at its top; 0 is the volume.
    pub tree: Ino,
    pub kind: QuotaKind,
    /// Of the user or group; 0 for the other kinds.
    pub id: u32,
}

/// Counts that quotas limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageRecord {
    /// Files, directories, links and all else that has an inode.
    pub inodes: u64,
    /// Bytes of files, without holes.
    pub file_bytes: u64,
    /// What these take after compression, before parity.
    pub stored_bytes: u64,
}

impl UsageRecord {
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(25);
        out.push(VERSION);
        put_u64(&mut out, self.inodes);
        put_u64(&mut out, self.file_bytes);
        put_u64(&mut out, self.stored_bytes);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("usage", bytes)?;
        let record = Self {
            inodes: fields.u64("inodes")?,
            file_bytes: fields.u64("file bytes")?,
            stored_bytes: fields.u64("stored bytes")?,
        };
        fields.end()?;
        Ok(record)
    }
}

/// Three limits on one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimit {
    /// Never passed.
    pub hard: Option<u64>,
    /// Passed for the time of grace at most.
    pub soft: Option<u64>,
    /// Passing it is reported, and nothing else.
    pub advisory: Option<u64>,
}

impl QuotaLimit {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// How far the inodes of a tree are counted there. The numbers are part of the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TreeState {
    /// All of them.
    #[default]
    Counted = 0,
    /// Those that were there before the quota are being found.
    Counting = 1,
    /// It has no quota any more, and its inodes go to the tree around it.
    Leaving = 2,
}

impl TreeState {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Counted,
            1 => Self::Counting,
            2 => Self::Leaving,
            _ => return None,
        })
    }
}

/// A quota. That of [`QuotaKind::Tree`] is there, without limits perhaps, as long as the tree is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaRecord {
    pub bytes: QuotaLimit,
    pub files: QuotaLimit,
    /// `bytes` are those stored, after compression.
    pub is_physical: bool,
    pub grace_seconds: u64,
    pub state: TreeState,
    /// The tree around it; 0 is the volume.
    pub parent: Ino,
    /// Where the directory was when the quota was set: at most [`QUOTA_PATH_LEN_BYTES_MAX`] bytes.
    pub path: Bytes,
}

const IS_PHYSICAL: u8 = 1;

impl QuotaRecord {
    /// Whether it limits or reports nothing.
    pub fn is_unlimited(&self) -> bool {
        self.bytes.is_none() && self.files.is_none()
    }

    /// Panics on a path that is too long.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.path.len() <= QUOTA_PATH_LEN_BYTES_MAX);
        let mut out = Vec::with_capacity(70 + self.path.len());
        out.push(VERSION);
        out.push(self.state as u8);
        out.push(if self.is_physical { IS_PHYSICAL } else { 0 });
        for limit in [&self.bytes, &self.files] {
            for at in [limit.hard, limit.soft, limit.advisory] {
                out.push(u8::from(at.is_some()));
                put_u64(&mut out, at.unwrap_or(0));
            }
        }
        put_u64(&mut out, self.grace_seconds);
        put_u64(&mut out, self.parent.0);
        put_u16(&mut out, self.path.len() as u16);
        out.extend_from_slice(&self.path);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("quota", bytes)?;
        let state = TreeState::from_u8(fields.u8("state")?).ok_or(fields.malformed("state"))?;
        let flags = fields.u8("flags")?;
        if flags & !IS_PHYSICAL != 0 {
            return Err(fields.malformed("flags"));
        }
        let mut limits = [QuotaLimit::default(); 2];
        for limit in &mut limits {
            for at in [&mut limit.hard, &mut limit.soft, &mut limit.advisory] {
                let is_set = fields.bool("limit")?;
                let value = fields.u64("limit")?;
                if !is_set && value != 0 {
                    return Err(fields.malformed("limit"));
                }
                *at = is_set.then_some(value);
            }
        }
        let grace_seconds = fields.u64("grace")?;
        let parent = Ino(fields.u64("parent")?);
        let len = usize::from(fields.u16("path")?);
        if len > QUOTA_PATH_LEN_BYTES_MAX {
            return Err(fields.malformed("path"));
        }
        let path = Bytes::copy_from_slice(fields.take(len, "path")?);
        fields.end()?;
        let [bytes, files] = limits;
        Ok(Self {
            bytes,
            files,
            is_physical: flags & IS_PHYSICAL != 0,
            grace_seconds,
            state,
            parent,
            path,
        })
    }
}

/// Since when soft limits are passed, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraceRecord {
    pub bytes_since: Option<u64>,
    pub files_since: Option<u64>,
}

impl GraceRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(19);
        out.push(VERSION);
        for since in [self.bytes_since, self.files_since] {
            out.push(u8::from(since.is_some()));
            put_u64(&mut out, since.unwrap_or(0));
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("grace", bytes)?;
        let mut record = Self::default();
        for since in [&mut record.bytes_since, &mut record.files_since] {
            let is_set = fields.bool("since")?;
            let value = fields.u64("since")?;
            if !is_set && value != 0 {
                return Err(fields.malformed("since"));
            }
            *since = is_set.then_some(value);
        }
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
        let usage = UsageRecord {
            inodes: 1,
            file_bytes: u64::MAX,
            stored_bytes: 3,
        };
        check(&usage, usage.encode(), UsageRecord::decode);
        let quota = QuotaRecord {
            bytes: QuotaLimit {
                hard: Some(10 << 40),
                soft: Some(0),
                advisory: None,
            },
            files: QuotaLimit {
                advisory: Some(u64::MAX),
                ..QuotaLimit::default()
            },
            is_physical: true,
            grace_seconds: 7 * 24 * 60 * 60,
            state: TreeState::Leaving,
            parent: Ino(9),
            path: Bytes::from_static(b"/home/anna"),
        };
        check(&quota, quota.encode(), QuotaRecord::decode);
        let grace = GraceRecord {
            bytes_since: Some(1_700_000_000),
            files_since: None,
        };
        check(&grace, grace.encode(), GraceRecord::decode);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(0u8..4, 0..120), versioned: bool) {
            if let (true, Some(first)) = (versioned, bytes.first_mut()) {
                *first = VERSION;
            }
            let _ = UsageRecord::decode(&bytes);
            let _ = QuotaRecord::decode(&bytes);
            let _ = GraceRecord::decode(&bytes);
        }
    }
}
