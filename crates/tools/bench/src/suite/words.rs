//! Durations as people write them.

use std::time::Duration;

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
}
