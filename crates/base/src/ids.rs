//! Ids and ordinals. Each is its own type, so that two of them cannot be swapped.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id_u64 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id_u64!(
    /// Names one inode of a volume for ever; numbers are never reused.
    Ino
);
id_u64!(
    /// Names one segment of a volume for ever; numbers are never reused.
    SegmentId
);
id_u64!(
    /// A place in a volume's commit log: 1 is the first entry, 0 is "before all".
    LogPosition
);
id_u64!(
    /// The number of a snapshot interval of a volume; keys carry the one they were written in.
    Generation
);
id_u64!(
    /// The number of an ownership term of a volume; it only grows (Rule 4).
    Epoch
);

/// A volume in the store of another that it was cloned from; 0 is the volume that the store was made for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Branch(pub u16);

impl Branch {
    pub const MAIN: Self = Self(0);
    /// Numbers above are none: inodes that are numbered from the end belong to no clone.
    pub const LAST: Self = Self(0x7fff);

    pub fn is_main(self) -> bool {
        self == Self::MAIN
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Bits of an inode's number that say which inode of its branch it is; those above name the branch.
const INO_BITS: u32 = 48;
const INO_MASK: u64 = (1 << INO_BITS) - 1;

impl Ino {
    /// The branch that it belongs to.
    pub const fn branch(self) -> Branch {
        let branch = (self.0 >> INO_BITS) as u16;
        match branch <= Branch::LAST.0 {
            true => Branch(branch),
            false => Branch::MAIN,
        }
    }

    /// The inode that takes its place in another branch, which began as a copy of this one's.
    pub const fn in_branch(self, branch: Branch) -> Self {
        let low = self.0 & INO_MASK;
        // Those that are numbered from the end are so in the store's own volume.
        if branch.0 == 0 && low > INO_MASK / 2 {
            return Self(low | !INO_MASK);
        }
        Self(low | (branch.0 as u64) << INO_BITS)
    }
}

impl Generation {
    /// The interval that a new volume starts in.
    pub const FIRST: Self = Self(1);
}

/// Names one volume of a pool for ever; numbers are never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct VolumeId(pub u32);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Names one tier of a pool for ever: an object store that cold segments are kept in; numbers are never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TierId(pub u32);

impl fmt::Display for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

macro_rules! id_u128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(text, 16).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id_u128!(
    /// Names one disk for ever: random, written into its identity file.
    DiskId
);
id_u128!(
    /// Names one pool for ever: random, made at its first start.
    PoolId
);
id_u128!(
    /// Names one node of a cluster for ever.
    NodeId
);

impl NodeId {
    /// Of a pool that is not part of a cluster.
    pub const ONLY: Self = Self(0);
}
