//! Classes of service: what rate a volume gets, by its size.
//!
//! Owns: what a class says, what of it makes no sense, the classes that are there from the beginning.
//! Must not know: how a rate is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use cairn_base::serde_as_word;
use cairn_base::words::WordError;
use serde::{Deserialize, Serialize};

/// Longest name of a class, in bytes.
pub const CLASS_NAME_LEN_BYTES_MAX: usize = 63;
/// Most classes of a pool beside those that are built in.
pub const CLASSES_MAX: usize = 256;
/// Highest rate that can be asked for, in bytes or operations per second.
pub const RATE_MAX: u64 = 1 << 50;
/// Least rates that a volume can have: with less no client would get on.
pub const BYTES_PER_SECOND_MIN: u64 = 1 << 10;
pub const OPERATIONS_PER_SECOND_MIN: u64 = 1;
/// A burst is at most so many times the baseline.
pub const BURST_TIMES_MAX: u32 = 1000;
/// A full credit lasts for at most so long at the full burst.
pub const CREDIT_SECONDS_MAX: u64 = 30 * 24 * 3600;
/// How long it lasts unless a class says something else.
pub const CREDIT_SECONDS_DEFAULT: u64 = 1800;
/// Latency objectives, in microseconds: a server that is near answers no request sooner, and clients give up later.
pub const LATENCY_GOAL_US_MIN: u64 = 50;
pub const LATENCY_GOAL_US_MAX: u64 = 60_000_000;
/// Rates by size are for so many bytes of it.
const TIB: u128 = 1 << 40;

/// The name of a class; `none` is no name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassName(String);

/// What takes a volume out of its class.
pub const NO_CLASS: &str = "none";

/// The class of the server's own work: rebuilds, scrubs, collection, moves to and from tiers. No volume is in it.
pub const INTERNAL_CLASS: &str = "internal";

impl ClassName {
    pub fn internal() -> Self {
        Self(INTERNAL_CLASS.to_owned())
    }

    pub fn is_internal(&self) -> bool {
        self.0 == INTERNAL_CLASS
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ClassName {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if super::is_plain_name(text, CLASS_NAME_LEN_BYTES_MAX) && text != NO_CLASS {
            return Ok(Self(text.to_owned()));
        }
        Err(WordError::new(
            text,
            "the name of a class",
            "1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit, and not \"none\"",
        ))
    }
}

serde_as_word!(ClassName);

/// The class of a volume, or that it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClassChoice {
    #[default]
    None,
    Class(ClassName),
}

impl From<Option<ClassName>> for ClassChoice {
    fn from(class: Option<ClassName>) -> Self {
        class.map_or(Self::None, Self::Class)
    }
}

impl ClassChoice {
    pub fn name(&self) -> Option<&ClassName> {
        match self {
            Self::None => None,
            Self::Class(name) => Some(name),
        }
    }
}

impl fmt::Display for ClassChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad(NO_CLASS),
            Self::Class(name) => name.fmt(f),
        }
    }
}

impl FromStr for ClassChoice {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text {
            NO_CLASS => Ok(Self::None),
            name => name.parse().map(Self::Class),
        }
    }
}

serde_as_word!(ClassChoice);

/// A rate: so much for each TiB of a volume's size, and so much beside that. Above it there is a burst for as long as
/// credit lasts, which is earned at the rate and spent above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSpec {
    #[serde(default)]
    pub per_tib: u64,
    #[serde(default)]
    pub fixed: u64,
    /// The burst in thousandths of the rate; 1000 is none.
    #[serde(default = "no_burst")]
    pub burst_permille: u32,
    /// How long a full credit lasts at the full burst.
    #[serde(default)]
    pub credit_seconds: u64,
}

fn no_burst() -> u32 {
    1000
}

impl RateSpec {
    pub fn per_tib(per_tib: u64) -> Self {
        Self {
            per_tib,
            fixed: 0,
            burst_permille: no_burst(),
            credit_seconds: 0,
        }
    }

    /// The rate of a volume of this size; one without a size has none by the TiB.
    pub fn rate(&self, size_bytes: Option<u64>) -> u64 {
        let by_size = u128::from(self.per_tib) * u128::from(size_bytes.unwrap_or(0)) / TIB;
        u64::try_from(by_size)
            .unwrap_or(u64::MAX)
            .saturating_add(self.fixed)
            .min(RATE_MAX)
    }

    fn problem(&self, what: &str) -> Option<String> {
        if self.per_tib == 0 && self.fixed == 0 {
            return Some(format!("{what} of zero would stop every client"));
        }
        if self.per_tib > RATE_MAX || self.fixed > RATE_MAX {
            return Some(format!("{what} is above the most there can be, {RATE_MAX}"));
        }
        if self.burst_permille < 1000 {
            return Some(format!(
                "the burst of {what} is below its baseline: write a factor of 1x or more"
            ));
        }
        if self.burst_permille > BURST_TIMES_MAX * 1000 {
            return Some(format!("the burst of {what} is above {BURST_TIMES_MAX}x"));
        }
        if self.burst_permille > 1000 && self.credit_seconds == 0 {
            return Some(format!(
                "{what} has a burst that no credit lasts for: give it one of a second or more"
            ));
        }
        if self.credit_seconds > CREDIT_SECONDS_MAX {
            return Some(format!("the credit of {what} lasts for more than 30 days"));
        }
        None
    }
}

/// What volumes of a class get. Each limit is one for each volume, but for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassSpec {
    /// Bytes per second, read and written together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<RateSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_throughput: Option<RateSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_throughput: Option<RateSpec>,
    /// Operations per second of any kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<RateSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<RateSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<RateSpec>,
    /// Bytes per second of each client of a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_throughput: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_iops: Option<u64>,
    /// Bytes per second of all volumes of the class together, on each node. What some of them do not use, the others may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_throughput: Option<u64>,
    /// How soon a request is to be answered once it may begin, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_goal_us: Option<u64>,
}

impl ClassSpec {
    /// The limits on one volume, with what they are of.
    pub fn rates(&self) -> [(&'static str, Option<&RateSpec>); 6] {
        [
            ("throughput", self.throughput.as_ref()),
            ("read-throughput", self.read_throughput.as_ref()),
            ("write-throughput", self.write_throughput.as_ref()),
            ("iops", self.iops.as_ref()),
            ("read-iops", self.read_iops.as_ref()),
            ("write-iops", self.write_iops.as_ref()),
        ]
    }

    pub fn latency_goal(&self) -> Option<Duration> {
        self.latency_goal_us.map(Duration::from_micros)
    }

    /// Whether a volume needs a size to be in it.
    pub fn needs_size(&self) -> bool {
        let mut rates = self.rates().into_iter().filter_map(|(_, rate)| rate);
        rates.any(|rate| rate.per_tib > 0)
    }

    /// What makes no sense about it, as the class of the server's own work.
    pub fn problem_of_internal(&self) -> Option<String> {
        let alone = Self {
            total_throughput: self.total_throughput,
            ..Self::default()
        };
        match *self == alone {
            false => Some(
                "it is for the work of the server itself, and takes total-throughput alone"
                    .to_owned(),
            ),
            true if self.total_throughput.is_none() => None,
            true => self.problem(),
        }
    }

    /// What makes no sense about it.
    pub fn problem(&self) -> Option<String> {
        let plain = [
            ("client-throughput", self.client_throughput),
            ("client-iops", self.client_iops),
            ("total-throughput", self.total_throughput),
        ];
        let has_rate = self.rates().iter().any(|(_, rate)| rate.is_some());
        let has_plain = plain.iter().any(|(_, rate)| rate.is_some());
        if !has_rate && !has_plain && self.latency_goal_us.is_none() {
            return Some("it limits nothing: give it a rate, or a latency objective".to_owned());
        }
        let allowed = LATENCY_GOAL_US_MIN..=LATENCY_GOAL_US_MAX;
        if let Some(goal) = self.latency_goal_us.filter(|goal| !allowed.contains(goal)) {
            return Some(format!(
                "a latency-goal of {goal} microseconds cannot be kept: write one from 50us to 60s"
            ));
        }
        for (what, rate) in self.rates() {
            if let Some(problem) = rate.and_then(|rate| rate.problem(what)) {
                return Some(problem);
            }
        }
        for (what, rate) in plain {
            let is_bytes = what != "client-iops";
            match rate {
                Some(0) => return Some(format!("{what} of zero would stop every client")),
                Some(rate) if rate > RATE_MAX => {
                    return Some(format!("{what} is above the most there can be, {RATE_MAX}"));
                }
                Some(rate) if is_bytes && rate < BYTES_PER_SECOND_MIN => {
                    return Some(format!(
                        "{what} is below the least there can be, {BYTES_PER_SECOND_MIN} bytes per second"
                    ));
                }
                _ => {}
            }
        }
        None
    }

    /// Why a volume of this size cannot be in it.
    pub fn problem_of_size(&self, size_bytes: Option<u64>) -> Option<String> {
        if self.needs_size() && size_bytes.is_none() {
            return Some(
                "its rate goes by the volume's size, and the volume has none: set one with --quota"
                    .to_owned(),
            );
        }
        for (what, rate) in self.rates() {
            let Some(rate) = rate.map(|rate| rate.rate(size_bytes)) else {
                continue;
            };
            let (least, unit) = match what.ends_with("iops") {
                true => (OPERATIONS_PER_SECOND_MIN, "operations"),
                false => (BYTES_PER_SECOND_MIN, "bytes"),
            };
            if rate < least {
                return Some(format!(
                    "its {what} comes to {rate} {unit} per second at the volume's size, and {least} is the least: set a \
                     larger size"
                ));
            }
        }
        None
    }
}

/// The classes that are there from the beginning, and cannot be changed: those of the papers, in bytes per second.
pub fn built_in() -> &'static BTreeMap<ClassName, ClassSpec> {
    static BUILT_IN: std::sync::OnceLock<BTreeMap<ClassName, ClassSpec>> =
        std::sync::OnceLock::new();
    BUILT_IN.get_or_init(|| {
        let levels = [("standard", 16), ("premium", 64), ("extreme", 128)].map(|(name, kb_s)| {
            let spec = ClassSpec {
                throughput: Some(RateSpec::per_tib(kb_s_per_gb(kb_s))),
                ..ClassSpec::default()
            };
            (name, spec)
        });
        // Baseline and burst of reads and of writes, in MB/s per TiB of 1,000 GiB.
        let bursting = [
            ("persistent-12", (12, 80), (12, 50)),
            ("persistent-12-cache", (40, 380), (12, 50)),
            ("persistent-40", (40, 250), (40, 150)),
            ("persistent-40-cache", (150, 1300), (40, 150)),
        ]
        .map(|(name, read, write)| {
            let spec = ClassSpec {
                read_throughput: Some(bursts(read)),
                write_throughput: Some(bursts(write)),
                ..ClassSpec::default()
            };
            (name, spec)
        });
        let all = levels.into_iter().chain(bursting);
        all.filter_map(|(name, spec)| Some((name.parse().ok()?, spec)))
            .collect()
    })
}

/// What KB/s per GB are in bytes per second per TiB.
fn kb_s_per_gb(kb_s: u64) -> u64 {
    (u128::from(kb_s) * TIB / 1_000_000) as u64
}

fn bursts((baseline, burst): (u64, u64)) -> RateSpec {
    RateSpec {
        per_tib: baseline * 1_024_000,
        fixed: 0,
        burst_permille: (burst * 1000).div_ceil(baseline) as u32,
        credit_seconds: CREDIT_SECONDS_DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_papers_rates_come_out() {
        // Class, size in GiB, MB/s of reads and writes together or of each, baseline and burst.
        type Case = (&'static str, u64, [Option<(u64, u64)>; 3]);
        let cases: &[Case] = &[
            // 1 TB is 931.32 GiB.
            ("standard", 931, [Some((15, 15)), None, None]),
            (
                "persistent-12",
                6000,
                [None, Some((72, 480)), Some((72, 300))],
            ),
            (
                "persistent-12-cache",
                6000,
                [None, Some((240, 2280)), Some((72, 300))],
            ),
            (
                "persistent-40",
                1800,
                [None, Some((72, 450)), Some((72, 270))],
            ),
        ];
        for (name, gib, want) in cases {
            let spec = built_in()[&name.parse().unwrap()];
            let rates = [spec.throughput, spec.read_throughput, spec.write_throughput];
            let got = rates.map(|rate| {
                let rate = rate?;
                let base = rate.rate(Some(gib * GIB));
                let burst = base * u64::from(rate.burst_permille) / 1000;
                Some((base / 1_000_000, burst / 1_000_000))
            });
            assert_eq!(got, *want, "{name}");
        }
        assert_eq!(built_in().len(), 7);
        assert!(built_in().values().all(|spec| spec.problem().is_none()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let rate = RateSpec::per_tib(1 << 20);
        let with = |rate: RateSpec| ClassSpec {
            throughput: Some(rate),
            ..ClassSpec::default()
        };
        let client = |rate| ClassSpec {
            client_throughput: Some(rate),
            ..ClassSpec::default()
        };
        let goal = |microseconds| ClassSpec {
            latency_goal_us: Some(microseconds),
            ..ClassSpec::default()
        };
        let cases: &[(&str, ClassSpec, Option<&str>)] = &[
            ("a rate", with(rate), None),
            ("nothing", ClassSpec::default(), Some("limits nothing")),
            ("zero", with(RateSpec::per_tib(0)), Some("of zero")),
            (
                "a burst below the baseline",
                with(RateSpec {
                    burst_permille: 999,
                    ..rate
                }),
                Some("below its baseline"),
            ),
            (
                "a burst without credit",
                with(RateSpec {
                    burst_permille: 2000,
                    ..rate
                }),
                Some("no credit"),
            ),
            (
                "a burst with credit",
                with(RateSpec {
                    burst_permille: 2000,
                    credit_seconds: 1,
                    ..rate
                }),
                None,
            ),
            (
                "too much",
                with(RateSpec::per_tib(RATE_MAX + 1)),
                Some("above the most"),
            ),
            ("no rate of clients", client(0), Some("of zero")),
            (
                "too little of clients",
                client(1023),
                Some("below the least"),
            ),
            ("clients", client(1024), None),
            ("a goal alone", goal(50), None),
            ("no time at all", goal(0), Some("from 50us")),
            ("for ever", goal(LATENCY_GOAL_US_MAX + 1), Some("to 60s")),
        ];
        for (name, spec, want) in cases {
            let problem = spec.problem();
            match want {
                None => assert_eq!(problem, None, "{name}"),
                Some(want) => assert!(problem.unwrap().contains(want), "{name}"),
            }
        }
        assert!(
            with(rate)
                .problem_of_size(None)
                .unwrap()
                .contains("--quota")
        );
        assert!(with(rate).problem_of_size(Some(GIB - 1)).is_some());
        assert_eq!(with(rate).problem_of_size(Some(GIB)), None);
        assert_eq!(client(1 << 20).problem_of_size(None), None);
    }

    #[test]
    fn names_are_read_or_refused() {
        for (text, want) in [
            ("gold", true),
            ("persistent-12", true),
            ("none", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(text.parse::<ClassName>().is_ok(), want, "{text:?}");
        }
        assert_eq!("none".parse(), Ok(ClassChoice::None));
        assert!("no ne".parse::<ClassChoice>().is_err());
    }
}
