//! Times as other programs print them.
//!
//! Owns: between the C library's text, seconds and RFC 3339. Must not know: files.

use std::time::{Duration, UNIX_EPOCH};

use cairn_base::time::rfc3339_utc;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Seconds since 1970 in UTC, to the second; none later than the year 9999.
pub(super) fn rfc3339(unix_seconds: u64) -> String {
    let since = Duration::from_secs(unix_seconds.min(253_402_300_799));
    rfc3339_utc(UNIX_EPOCH + since)
}

/// `Thu Mar 30 16:09:19 2023`, of a zone that is not told.
pub(super) fn from_ctime(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let (_weekday, month, day, clock, year) = (
        words.next()?,
        words.next()?,
        words.next()?,
        words.next()?,
        words.next()?,
    );
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let day: u8 = day.parse().ok().filter(|day| (1..=31).contains(day))?;
    let year: u16 = year
        .parse()
        .ok()
        .filter(|year| (1970..=9999).contains(year))?;
    let mut clock = clock.split(':').map(|part| part.parse::<u8>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if hour > 23 || minute > 59 || second > 60 || clock.next().is_some() {
        return None;
    }
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_709_210_096), "2024-02-29T12:34:56Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
        let cases = [
            ("Thu Mar 30 16:09:19 2023", Some("2023-03-30T16:09:19Z")),
            ("Wed Jan  4 01:02:03 2004", Some("2004-01-04T01:02:03Z")),
            ("Wed Foo  4 01:02:03 2004", None),
            ("Wed Jan 44 01:02:03 2004", None),
            ("Wed Jan  4 01:02 2004", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(from_ctime(text).as_deref(), want, "{text}");
        }
    }
}
