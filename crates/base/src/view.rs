//! Which state of a volume is read: as it is now, or as a snapshot keeps it.
//!
//! Owns: the name of a view. Must not know: which snapshots there are, how old versions are kept.

use std::fmt;

use crate::Generation;

/// Which state of a volume a read sees. Changes are made in the live view only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// The volume as it is now.
    #[default]
    Live,
    /// The volume as it was at the end of this generation.
    Snapshot(Generation),
}

impl View {
    /// The view that a number names; see [`Self::number`].
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Live,
            generation => Self::Snapshot(Generation(generation)),
        }
    }

    /// 0 for the live view, the generation of a snapshot.
    pub fn number(self) -> u64 {
        match self {
            Self::Live => 0,
            Self::Snapshot(generation) => {
                assert!(generation >= Generation::FIRST);
                generation.0
            }
        }
    }

    pub fn is_live(self) -> bool {
        self == Self::Live
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Snapshot(generation) => write!(f, "snapshot {generation}"),
        }
    }
}
