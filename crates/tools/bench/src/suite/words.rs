//! Durations and dates as people write them.

use std::time::{Duration, SystemTime};

use cairn_base::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a duration: write a number with ms, s, m or h, such as 60s or 1.5m")]
pub struct DurationError {
    text: String,
}

/// Longest duration that is taken: beyond a year somebody has mistyped.
const DURATION_SECONDS_MAX: f64 = 366.0 * 24.0 * 3600.0;

/// Reads `60s`, `500ms`, `1.5m`, `1h`; a number alone is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError {
        text: text.chars().take(40).collect(),
    };
    let trimmed = text.trim();
    let unit_at = trimmed
        .find(|char: char| !(char.is_ascii_digit() || char == '.'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(unit_at);
    let scale = match unit.trim() {
        "ms" => 0.001,
        "" | "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(error()),
    };
    let number: f64 = number.parse().map_err(|_| error())?;
    let seconds = number * scale;
    if !seconds.is_finite() || seconds > DURATION_SECONDS_MAX {
        return Err(error());
    }
    Ok(Duration::from_secs_f64(seconds))
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
    use super::*;

    #[test]
    fn durations_are_read_or_refused() {
        let cases = [
            ("60s", Some(60_000)),
            ("60", Some(60_000)),
            ("500ms", Some(500)),
            ("1.5m", Some(90_000)),
            (" 2 h ", Some(7_200_000)),
            ("0s", Some(0)),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
            ("1.2.3s", None),
            ("9e9s", None),
            ("99999999999999999999999h", None),
        ];
        for (text, want) in cases {
            let got = parse_duration(text)
                .ok()
                .map(|duration| duration.as_millis() as u64);
            assert_eq!(got, want, "{text}");
        }
    }

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
