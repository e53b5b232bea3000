//! Byte quantities as people write them.

/// Why a byte quantity was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a size: write a number with B, KiB, MiB, GiB, TiB, PiB (or kB, MB, GB, TB, PB), such as 10GiB"
)]
pub struct SizeError {
    pub text: String,
}

const UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("pib", 1 << 50),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("pb", 1_000_000_000_000_000),
];

/// Reads `10GiB`, `1.5 TiB`, `500MB` or `4096` (bytes) into bytes. Case does not matter.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let refuse = || SizeError {
        text: text.to_owned(),
    };
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = if unit.is_empty() {
        1
    } else {
        UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| *factor)
            .ok_or_else(refuse)?
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(refuse);
    }
    let bytes = number.parse::<f64>().map_err(|_| refuse())? * factor as f64;
    if bytes.is_finite() && bytes < u64::MAX as f64 {
        Ok(bytes.round() as u64)
    } else {
        Err(refuse())
    }
}

/// Writes bytes with a binary unit and at most two decimals: `1.5 GiB`, `4 KiB`, `17 B`.
pub fn format_size(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut index = 0;
    while value >= 1024.0 && index + 1 < NAMES.len() {
        value /= 1024.0;
        index += 1;
    }
    let mut number = format!("{value:.2}");
    if number.contains('.') {
        number.truncate(number.trim_end_matches('0').trim_end_matches('.').len());
    }
    format!("{number} {}", NAMES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_or_refused() {
        let cases: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4 KiB", Some(4096)),
            ("1.5GiB", Some(3 << 29)),
            ("500MB", Some(500_000_000)),
            ("16PiB", Some(16 << 50)),
            ("16384PiB", None),
            ("", None),
            ("-1", None),
            ("10 GiBs", None),
            ("ten", None),
            ("1.2.3", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_size(text).ok(), *want, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_written() {
        let cases: &[(u64, &str)] = &[
            (0, "0 B"),
            (17, "17 B"),
            (4096, "4 KiB"),
            (3 << 29, "1.5 GiB"),
            (10 << 40, "10 TiB"),
        ];
        for (bytes, want) in cases {
            assert_eq!(format_size(*bytes), *want);
        }
    }
}
