//! Points in time as files record them, and as people read them.

use std::time::SystemTime;

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

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
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

/// `2026-11-21T08:19:20Z`. Source: RFC 3339, section 5.6.
pub fn rfc3339_utc(time: SystemTime) -> String {
    let seconds = Timestamp::from(time).seconds;
    let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day that is counted from 1970-01-01.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. Years there
/// begin in March, so that the leap day is the last; eras have 400 years.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_written() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_249_160, "2026-11-21T08:19:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, want) in cases {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(rfc3339_utc(time), want);
        }
    }
}
