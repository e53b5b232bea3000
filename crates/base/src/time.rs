//! Points in time as files record them.

use serde::{Deserialize, Serialize};

/// Wall-clock time since 1970-01-01 UTC, to the nanosecond; before that `seconds` is negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    pub seconds: i64,
    /// 0..1_000_000_000.
    pub nanos: u32,
}

impl Timestamp {
    pub const fn new(seconds: i64, nanos: u32) -> Self {
        Self { seconds, nanos }
    }

    /// The next representable instant: keeps a change time growing when the clock stands still.
    pub fn successor(self) -> Self {
        if self.nanos >= 999_999_999 {
            Self::new(self.seconds.saturating_add(1), 0)
        } else {
            Self::new(self.seconds, self.nanos + 1)
        }
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self::new(after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                let nanos = before.subsec_nanos();
                let seconds = -(before.as_secs() as i64);
                if nanos == 0 {
                    Self::new(seconds, 0)
                } else {
                    Self::new(seconds - 1, 1_000_000_000 - nanos)
                }
            }
        }
    }
}
