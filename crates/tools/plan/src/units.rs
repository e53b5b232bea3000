//! Quantities as types: bytes, rates, money, shares; read from text with their unit, never without.
//!
//! Owns: what a unit is worth, and how quantities are read and written. TiB is never TB, MiB/s never
//! MB/s, Gb/s never GB/s: the type holds one unit, and text must name its own.
//! Must not know: what is measured.

use serde::{Deserialize, Serialize};

pub const KIB: f64 = 1024.0;
pub const MIB: f64 = 1024.0 * 1024.0;
pub const GIB: f64 = 1024.0 * MIB;
pub const TIB: f64 = 1024.0 * GIB;

/// Hours of a month as the price calculator of the cloud counts them.
pub const HOURS_PER_MONTH: f64 = 730.0;
/// Hours of a month of 30.4 days, as the NFS paper of 2016 counts them.
pub const HOURS_PER_MONTH_2016: f64 = 729.6;

/// No quantity that anyone plans with is larger; keeps sums far away from what a float cannot hold.
const VALUE_MAX: f64 = 1e21;

/// Why a quantity was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("\"{text}\" has no unit: write {expected}")]
    NoUnit {
        text: String,
        expected: &'static str,
    },
    #[error("\"{text}\" is negative: write {expected}")]
    Negative {
        text: String,
        expected: &'static str,
    },
    #[error("\"{text}\" is not {what}: write {expected}")]
    NotUnderstood {
        text: String,
        what: &'static str,
        expected: &'static str,
    },
}

/// Splits `12.5TiB` into 12.5 and `TiB`; refuses what is no number, negative or has no unit.
fn split<'a>(
    text: &'a str,
    what: &'static str,
    expected: &'static str,
) -> Result<(f64, &'a str), UnitError> {
    let trimmed = text.trim();
    let not_understood = || UnitError::NotUnderstood {
        text: trimmed.to_owned(),
        what,
        expected,
    };
    if trimmed.starts_with('-') {
        return Err(UnitError::Negative {
            text: trimmed.to_owned(),
            expected,
        });
    }
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    // A comma groups thousands, as in 1,000; never a decimal comma, which would read as another number.
    if number.contains(',') && !grouped(number) {
        return Err(not_understood());
    }
    let value: f64 = number
        .replace(',', "")
        .parse()
        .map_err(|_| not_understood())?;
    if !value.is_finite() || value > VALUE_MAX {
        return Err(not_understood());
    }
    let unit = unit.trim();
    if unit.is_empty() {
        return Err(UnitError::NoUnit {
            text: trimmed.to_owned(),
            expected,
        });
    }
    Ok((value, unit))
}

fn grouped(number: &str) -> bool {
    let whole = number.split('.').next().unwrap_or_default();
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    !number
        .split('.')
        .nth(1)
        .is_some_and(|rest| rest.contains(','))
        && (1..=3).contains(&first.len())
        && groups.all(|group| group.len() == 3)
}

/// Reads a number with one of the units of `table`, each with its factor to the base unit.
fn in_base_unit(
    text: &str,
    what: &'static str,
    expected: &'static str,
    table: &[(&str, f64)],
) -> Result<f64, UnitError> {
    let (value, unit) = split(text, what, expected)?;
    table
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, factor)| value * factor)
        .ok_or_else(|| UnitError::NotUnderstood {
            text: text.trim().to_owned(),
            what,
            expected,
        })
}

/// Three decimals are enough in JSON, and keep it readable.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Writes a number with as many decimals as it needs, at most two.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = text
        .split_once('.')
        .map_or((text, None), |(w, r)| (w, Some(r)));
    let grouped = thousands(whole);
    match rest {
        Some(rest) => format!("{grouped}.{rest}"),
        None => grouped,
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(whole: &str) -> String {
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{sign}{text}")
}

/// An amount of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Bytes(f64);

impl Bytes {
    pub const ZERO: Self = Self(0.0);
    const EXPECTED: &'static str = "an amount with its unit, such as 200TiB or 500GB";
    const UNITS: [(&'static str, f64); 12] = [
        ("KiB", KIB),
        ("MiB", MIB),
        ("GiB", GIB),
        ("TiB", TIB),
        ("PiB", 1024.0 * TIB),
        ("kB", 1e3),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("PB", 1e15),
        ("B", 1.0),
    ];

    pub fn new(bytes: f64) -> Self {
        Self(bytes)
    }

    pub fn from_tib(tib: f64) -> Self {
        Self(tib * TIB)
    }

    pub fn from_gib(gib: f64) -> Self {
        Self(gib * GIB)
    }

    pub fn from_gb(gb: f64) -> Self {
        Self(gb * 1e9)
    }

    /// Reads `200TiB`. The case of a unit counts: `Tb` would be bits.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let what = "an amount of bytes";
        in_base_unit(text, what, Self::EXPECTED, &Self::UNITS).map(Self)
    }

    pub fn get(self) -> f64 {
        self.0
    }

    pub fn tib(self) -> f64 {
        self.0 / TIB
    }

    pub fn gib(self) -> f64 {
        self.0 / GIB
    }

    pub fn gb(self) -> f64 {
        self.0 / 1e9
    }

    pub fn times(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }

    /// In the unit it is round in: disks are sold in TB, volumes in TiB.
    pub fn tb_or_tib(self) -> String {
        let is_round = |value: f64| (value * 10.0 - (value * 10.0).round()).abs() < 1e-6;
        if self.0 >= TIB / 2.0 && is_round(self.tib()) {
            format!("{} TiB", number(self.tib()))
        } else if self.0 >= 1e12 && is_round(self.0 / 1e12) {
            format!("{} TB", number(self.0 / 1e12))
        } else if self.0 < 1e12 && self.0 >= 1e9 && is_round(self.gb()) && !is_round(self.gib()) {
            format!("{} GB", number(self.gb()))
        } else {
            self.to_string()
        }
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (value, unit) = match self.0 {
            bytes if bytes >= TIB => (bytes / TIB, "TiB"),
            bytes if bytes >= GIB => (bytes / GIB, "GiB"),
            bytes if bytes >= MIB => (bytes / MIB, "MiB"),
            bytes => (bytes, "B"),
        };
        write!(out, "{} {unit}", number(value))
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Whole bytes; all that is planned stays far below 2^63.
        serializer.serialize_u64(self.0.max(0.0).round() as u64)
    }
}

/// A number of bytes, or text with its unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum BytesText {
    Count(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match BytesText::deserialize(deserializer)
            .map_err(|_| serde::de::Error::custom(format!("expected {}", Self::EXPECTED)))?
        {
            BytesText::Count(bytes) => Ok(Self(bytes as f64)),
            BytesText::Text(text) => Self::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// Bytes per second. In JSON: MB/s, 1,000,000 bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(f64);

impl Rate {
    pub const ZERO: Self = Self(0.0);
    const EXPECTED: &'static str = "a rate with its unit: MB/s, GB/s, MiB/s, GiB/s (bytes) or Mb/s, Gb/s (bits), such as 6GB/s";
    const UNITS: [(&'static str, f64); 10] = [
        ("kB/s", 1e3),
        ("MB/s", 1e6),
        ("GB/s", 1e9),
        ("TB/s", 1e12),
        ("KiB/s", KIB),
        ("MiB/s", MIB),
        ("GiB/s", GIB),
        ("TiB/s", TIB),
        ("Mb/s", 1e6 / 8.0),
        ("Gb/s", 1e9 / 8.0),
    ];

    pub fn from_mb_s(mb_s: f64) -> Self {
        Self(mb_s * 1e6)
    }

    pub fn from_mib_s(mib_s: f64) -> Self {
        Self(mib_s * MIB)
    }

    /// Bits on a wire.
    pub fn from_gbit_s(gbit_s: f64) -> Self {
        Self(gbit_s * 1e9 / 8.0)
    }

    pub fn from_bytes_s(bytes_s: f64) -> Self {
        Self(bytes_s)
    }

    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let what = "a rate";
        in_base_unit(text, what, Self::EXPECTED, &Self::UNITS).map(Self)
    }

    pub fn bytes_s(self) -> f64 {
        self.0
    }

    pub fn mb_s(self) -> f64 {
        self.0 / 1e6
    }

    pub fn mib_s(self) -> f64 {
        self.0 / MIB
    }

    pub fn gbit_s(self) -> f64 {
        self.0 * 8.0 / 1e9
    }

    pub fn times(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }

    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.mb_s() {
            mb_s if mb_s >= 10_000.0 => write!(out, "{} GB/s", number(mb_s / 1000.0)),
            mb_s if mb_s >= 100.0 => write!(out, "{} MB/s", number(mb_s.round())),
            mb_s => write!(out, "{} MB/s", number(mb_s)),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(rounded(self.mb_s()))
    }
}

/// A number is MB/s, as it is written; text names its unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum RateText {
    MbS(f64),
    Text(String),
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rate = match RateText::deserialize(deserializer)
            .map_err(|_| serde::de::Error::custom(format!("expected {}", Self::EXPECTED)))?
        {
            RateText::MbS(mb_s) => Self::from_mb_s(mb_s),
            RateText::Text(text) => Self::parse(&text).map_err(serde::de::Error::custom)?,
        };
        if rate.0.is_finite() && rate.0 >= 0.0 {
            Ok(rate)
        } else {
            Err(serde::de::Error::custom(format!(
                "expected {}",
                Self::EXPECTED
            )))
        }
    }
}

/// US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Usd(pub f64);

impl Usd {
    const EXPECTED: &'static str = "dollars per month, such as 5000USD/month or 2.5USD/hour";

    /// Reads a budget into dollars per month: `5000USD/month`, `60000USD/year`, `2.5USD/hour`.
    pub fn parse_per_month(text: &str) -> Result<Self, UnitError> {
        let what = "a budget";
        let table = [
            ("USD/month", 1.0),
            ("USD/year", 1.0 / 12.0),
            ("USD/hour", HOURS_PER_MONTH),
        ];
        in_base_unit(text, what, Self::EXPECTED, &table).map(Self)
    }

    pub fn times(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }

    /// To whole cents, halves away from zero, as invoices are.
    pub fn cents(self) -> i64 {
        // The tiny sum brings what is a half in decimals, but below it in binary, to the half.
        (self.0 * 100.0 + 1e-7).round() as i64
    }
}

impl std::ops::Add for Usd {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::iter::Sum for Usd {
    fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
        Self(values.map(|usd| usd.0).sum())
    }
}

impl std::fmt::Display for Usd {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cents = self.cents();
        let whole = thousands(&(cents / 100).to_string());
        write!(out, "${whole}.{:02}", (cents % 100).abs())
    }
}

impl Serialize for Usd {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.0 * 1e4).round() / 1e4)
    }
}

/// Reads `20%` into 0.2; refuses more than 100 %.
pub fn parse_share(text: &str) -> Result<f64, UnitError> {
    const EXPECTED: &str = "a share in percent, such as 20%";
    percent(text, "a share", EXPECTED, "%", 100.0)
}

/// Reads `1ms` into 1 and `500us` into 0.5: milliseconds, more than none.
pub fn parse_latency_ms(text: &str) -> Result<f64, UnitError> {
    const EXPECTED: &str = "a time above 0, such as 1ms or 500us";
    let value = in_base_unit(text, "a latency", EXPECTED, &[("us", 0.001), ("ms", 1.0)])?;
    if value > 0.0 {
        Ok(value)
    } else {
        Err(UnitError::NotUnderstood {
            text: text.to_owned(),
            what: "a latency",
            expected: EXPECTED,
        })
    }
}

/// Reads `30%/year` into 0.3.
pub fn parse_growth(text: &str) -> Result<f64, UnitError> {
    const EXPECTED: &str = "growth in percent a year, such as 30%/year, at most 1000%/year";
    percent(text, "growth", EXPECTED, "%/year", 1000.0)
}

fn percent(
    text: &str,
    what: &'static str,
    expected: &'static str,
    unit: &str,
    max_percent: f64,
) -> Result<f64, UnitError> {
    let value = in_base_unit(text, what, expected, &[(unit, 0.01)])?;
    if value * 100.0 <= max_percent {
        Ok(value)
    } else {
        Err(UnitError::NotUnderstood {
            text: text.trim().to_owned(),
            what,
            expected,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Ok`: the value in bytes or bytes per second; `Err`: a word that the message must have.
    fn check(name: &str, got: Result<f64, UnitError>, want: Result<f64, &str>) {
        match (got, want) {
            (Ok(got), Ok(want)) => {
                assert!((got - want).abs() < 1e-6 * want.max(1.0), "{name}: {got}")
            }
            (Err(error), Err(word)) => {
                assert!(error.to_string().contains(word), "{name}: {error}");
            }
            (got, want) => panic!("{name}: {got:?}, not {want:?}"),
        }
    }

    #[test]
    fn quantities_are_read_with_their_unit_or_refused() {
        let bytes = |text| Bytes::parse(text).map(Bytes::get);
        let rate = |text| Rate::parse(text).map(Rate::bytes_s);
        let cases = [
            ("TiB", bytes("200TiB"), Ok(200.0 * 1_099_511_627_776.0)),
            ("TB", bytes("200 TB"), Ok(200e12)),
            ("thousands", bytes("1,000GB"), Ok(1e12)),
            ("fraction", bytes("14.2TiB"), Ok(14.2 * TIB)),
            ("no unit", bytes("200"), Err("no unit")),
            ("negative", bytes("-1TiB"), Err("negative")),
            ("bits are no bytes", bytes("1Tb"), Err("such as 200TiB")),
            ("a rate is no amount", bytes("1GB/s"), Err("such as 200TiB")),
            ("decimal comma", bytes("1,5TiB"), Err("such as 200TiB")),
            ("no number", bytes("TiB"), Err("such as 200TiB")),
            ("two points", bytes("1.2.3TiB"), Err("such as 200TiB")),
            (
                "too much",
                bytes("999999999999999999999999999TiB"),
                Err("such as 200TiB"),
            ),
            ("GB/s", rate("6GB/s"), Ok(6e9)),
            ("Gb/s", rate("48Gb/s"), Ok(6e9)),
            ("MiB/s", rate("4500MiB/s"), Ok(4500.0 * MIB)),
            ("no unit of a rate", rate("6"), Err("no unit")),
            ("amount, not rate", rate("6GB"), Err("MiB/s")),
            ("negative rate", rate("-6GB/s"), Err("negative")),
            ("share", parse_share("20%"), Ok(0.2)),
            ("share of all", parse_share("100%"), Ok(1.0)),
            ("more than all", parse_share("101%"), Err("percent")),
            ("share without unit", parse_share("0.2"), Err("no unit")),
            ("growth", parse_growth("30%/year"), Ok(0.3)),
            ("growth without time", parse_growth("30%"), Err("30%/year")),
            (
                "budget",
                Usd::parse_per_month("5,000USD/month").map(|usd| usd.0),
                Ok(5000.0),
            ),
            (
                "budget a year",
                Usd::parse_per_month("12000 USD/year").map(|usd| usd.0),
                Ok(1000.0),
            ),
            (
                "budget without time",
                Usd::parse_per_month("5000USD").map(|usd| usd.0),
                Err("5000USD/month"),
            ),
        ];
        for (name, got, want) in cases {
            check(name, got, want);
        }
    }

    #[test]
    fn quantities_are_written_as_people_read_them() {
        let cases = [
            (Bytes::from_tib(335.0).to_string(), "335 TiB"),
            (Bytes::from_tib(14.2).tb_or_tib(), "14.2 TiB"),
            (Bytes::from_gb(2000.0).tb_or_tib(), "2 TB"),
            (Bytes::from_gb(900.0).tb_or_tib(), "900 GB"),
            (Rate::from_mb_s(1187.5).to_string(), "1,188 MB/s"),
            (Rate::from_mb_s(93.75).to_string(), "93.75 MB/s"),
            (Rate::from_gbit_s(300.0).to_string(), "37.5 GB/s"),
            (Usd(1_234_567.895).to_string(), "$1,234,567.90"),
            (Usd(0.005).to_string(), "$0.01"),
            (thousands("-1234"), "-1,234"),
        ];
        for (got, want) in cases {
            assert_eq!(got, want);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,20}") {
            let _ = (Bytes::parse(&text), Rate::parse(&text), Usd::parse_per_month(&text));
            let _ = (parse_share(&text), parse_growth(&text));
        }

        #[test]
        fn tib_and_tb_never_mix(count in 1u32..100_000) {
            let tib = Bytes::parse(&format!("{count}TiB")).unwrap();
            let tb = Bytes::parse(&format!("{count}TB")).unwrap();
            proptest::prop_assert!((tib.get() / tb.get() - 1.099_511_627_776).abs() < 1e-9);
        }
    }
}
