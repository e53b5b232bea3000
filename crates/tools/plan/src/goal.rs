//! What the buyer wants.
//!
//! Owns: the goals and which of them contradict each other before any design is looked at.
//! Must not know: designs.

use serde::Serialize;

use crate::deployable::COUNT_MAX;
use crate::reliability::Availability;
use crate::report::Protocol;
use crate::units::{Bytes, Rate, Usd, number};

/// What a design has to meet. Fields left out are no limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Usable, today.
    pub capacity_bytes: Bytes,
    /// Sequential, steady, all clients together.
    pub read_mb_s: Option<Rate>,
    pub write_mb_s: Option<Rate>,
    /// Random reads of 4 KiB per second.
    pub iops: Option<u64>,
    /// Random writes of 4 KiB per second.
    pub write_iops: Option<u64>,
    /// Of one random operation, at most, in milliseconds.
    pub latency_ms: Option<f64>,
    pub clients: Option<u32>,
    pub protocols: Vec<Protocol>,
    /// Failures (of disks, volumes or nodes) that must lose no data; 0: a loss is accepted.
    pub survive: u32,
    /// Name spaces at most that the data may be divided into.
    pub namespaces: u32,
    /// What the service has to work through.
    pub availability: Availability,
    /// Instance type of the one host of a SAN array: bounds what it reads, and is priced.
    pub host: Option<String>,
    pub region: String,
    pub budget_month_usd: Option<Usd>,
    /// Share of the data that is read often: what a cache has to hold.
    pub hot_share: Option<f64>,
    /// Growth of the capacity, per year: 0.3 is 30 %.
    pub growth_per_year: f64,
    pub years: u32,
    pub workload: Workload,
    /// Rank designs that need what this version of Cairn does not have with the others.
    pub include_planned: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Large files, read and written in order.
    #[default]
    Streaming,
    Random,
    /// Many small files and directory operations.
    Metadata,
    Database,
    /// Written once, seldom read.
    Archive,
}

impl Workload {
    pub const ALL: [(&'static str, Self); 5] = [
        ("streaming", Self::Streaming),
        ("random", Self::Random),
        ("metadata", Self::Metadata),
        ("database", Self::Database),
        ("archive", Self::Archive),
    ];

    /// Whether what is stored has to be there after a stop of all servers at once: nobody can make it again.
    pub fn outlives_servers(self) -> bool {
        matches!(self, Self::Archive | Self::Database)
    }
}

/// Failures that a goal survives unless it says otherwise: one disk or volume.
pub const SURVIVE_DEFAULT: u32 = 1;

/// Random work, metadata and databases are no use on what seeks for each operation: single-digit
/// milliseconds are what general-purpose volumes are documented for.
pub const LATENCY_RANDOM_MS: f64 = 10.0;

/// Years at most that a plan looks ahead.
pub const YEARS_MAX: u32 = 10;

/// Most bytes that are stored, at the end of the growth: a zettabyte.
const CAPACITY_MAX_BYTES: f64 = 1e21;
/// What all clients together read or write at most: a petabyte per second.
const RATE_MAX_BYTES_S: f64 = 1e15;
/// Random operations per second at most.
const IOPS_MAX: u64 = 1_000_000_000_000;
/// Failures to be survived, name spaces and growth (of 100 percent) at most.
const SURVIVE_MAX: u32 = 1000;
const NAMESPACES_MAX: u32 = COUNT_MAX;
const GROWTH_MAX: f64 = 100.0;

/// Why goals cannot be planned for, whatever the designs are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    #[error("--capacity 0 stores nothing: give the usable capacity, such as 200TiB")]
    NoCapacity,
    #[error("--years {years} is more than the {YEARS_MAX} that a plan looks ahead")]
    TooFar { years: u32 },
    #[error("--growth without --years says not for how long: add --years 3, or leave out --growth")]
    GrowthWithoutYears,
    #[error(
        "--namespaces 0 leaves the data no place: give 1, or how many separate name spaces will do"
    )]
    NoNamespaces,
    #[error("{flag} {given} is more than anyone plans with: give {most} at most")]
    TooMuch {
        flag: &'static str,
        given: String,
        most: String,
    },
    #[error("--clients 0 contradicts any use: leave it out, or give how many clients mount it")]
    NoClients,
}

impl Goal {
    /// A goal of this capacity and nothing else.
    pub fn capacity(capacity: Bytes, region: &str) -> Self {
        Self {
            capacity_bytes: capacity,
            read_mb_s: None,
            write_mb_s: None,
            iops: None,
            write_iops: None,
            latency_ms: None,
            clients: None,
            protocols: vec![Protocol::Nfs],
            survive: SURVIVE_DEFAULT,
            namespaces: 1,
            availability: Availability::default(),
            host: None,
            region: region.to_owned(),
            budget_month_usd: None,
            hot_share: None,
            growth_per_year: 0.0,
            years: 0,
            workload: Workload::default(),
            include_planned: false,
        }
    }

    /// What one random operation may take: as asked for, or what random work needs to be any use.
    pub fn latency_bound_ms(&self) -> Option<f64> {
        self.latency_ms.or(match self.workload {
            Workload::Random | Workload::Metadata | Workload::Database => Some(LATENCY_RANDOM_MS),
            Workload::Streaming | Workload::Archive => None,
        })
    }

    pub fn check(&self) -> Result<(), GoalError> {
        if self.capacity_bytes.get() <= 0.0 {
            return Err(GoalError::NoCapacity);
        }
        if self.years > YEARS_MAX {
            return Err(GoalError::TooFar { years: self.years });
        }
        if self.growth_per_year > 0.0 && self.years == 0 {
            return Err(GoalError::GrowthWithoutYears);
        }
        if self.namespaces == 0 {
            return Err(GoalError::NoNamespaces);
        }
        if self.clients == Some(0) {
            return Err(GoalError::NoClients);
        }
        self.check_bounds()
    }

    /// Whether all numbers are such as somebody plans with. Beyond them sums lose what they are about.
    fn check_bounds(&self) -> Result<(), GoalError> {
        let bounded = |flag, given: f64, most: f64, words: &dyn Fn(f64) -> String| {
            // NaN is not within any bound.
            match given <= most {
                true => Ok(()),
                false => Err(GoalError::TooMuch {
                    flag,
                    given: words(given),
                    most: words(most),
                }),
            }
        };
        let bytes = |bytes: f64| Bytes::new(bytes).to_string();
        let rate = |bytes_s: f64| Rate::from_bytes_s(bytes_s).to_string();
        let percent = |share: f64| format!("{}%/year", number(share * 100.0));
        let plain = number;
        let of_rate = |rate: Option<Rate>| rate.unwrap_or_default().bytes_s();
        let of_iops = |iops: Option<u64>| iops.unwrap_or(0) as f64;
        bounded("--growth", self.growth_per_year, GROWTH_MAX, &percent)?;
        bounded(
            "--capacity",
            self.capacity_planned().get(),
            CAPACITY_MAX_BYTES,
            &bytes,
        )?;
        bounded("--read", of_rate(self.read_mb_s), RATE_MAX_BYTES_S, &rate)?;
        bounded("--write", of_rate(self.write_mb_s), RATE_MAX_BYTES_S, &rate)?;
        bounded("--iops", of_iops(self.iops), IOPS_MAX as f64, &plain)?;
        bounded(
            "--write-iops",
            of_iops(self.write_iops),
            IOPS_MAX as f64,
            &plain,
        )?;
        bounded(
            "--survive",
            f64::from(self.survive),
            f64::from(SURVIVE_MAX),
            &plain,
        )?;
        bounded(
            "--namespaces",
            f64::from(self.namespaces),
            f64::from(NAMESPACES_MAX),
            &plain,
        )
    }

    /// The capacity needed after `years` of growth.
    pub fn capacity_after(&self, years: u32) -> Bytes {
        self.capacity_bytes
            .times((1.0 + self.growth_per_year).powi(years.min(YEARS_MAX) as i32))
    }

    /// The capacity a design has to hold: at the end of the growth.
    pub fn capacity_planned(&self) -> Bytes {
        self.capacity_after(self.years)
    }
}
