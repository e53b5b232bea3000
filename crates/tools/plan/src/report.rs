//! What the planner says: figures with the rules they follow from, a ranking, and what charts show.
//!
//! Owns: the JSON schema `cairn-plan/1` (docs/guide/planner.md has it field by field).
//! Must not know: how figures come about, or how they are written for people.

use serde::Serialize;

use crate::design::Design;
use crate::goal::Goal;
use crate::reliability::Reliability;
use crate::rules::RuleId;
use crate::units::{Bytes, Rate, Usd};

/// Name and version of the JSON schema.
pub const SCHEMA: &str = "cairn-plan/1";

/// The whole answer to `cairn plan`.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    pub goal: Goal,
    pub prices: PriceStamp,
    pub ranking: Ranking,
    pub charts: Vec<Chart>,
}

/// Where prices are from; in every output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PriceStamp {
    pub region: String,
    /// `2023-05-01`: when the prices were taken.
    pub date: String,
    pub source: String,
    /// Which of the prices are older than a year, each with its date.
    pub stale: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// How many designs were looked at.
    pub candidates: usize,
    /// Best first: the best of each family and product, then further ones.
    pub fits: Vec<Fit>,
    /// What does not fit, each with the one limit that it breaks; the nearest of each family first.
    pub misses: Vec<Miss>,
    /// When nothing fits: which goals collide, and the nearest design that is feasible.
    pub collision: Option<Collision>,
    /// What the price list has no price for: designs with it were left out.
    pub unpriced: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    /// 1 is the best.
    pub rank: usize,
    pub evaluation: Evaluation,
    /// Why it ranks below the one before it; of the first: why it is first.
    pub why: String,
    /// How it grows by its next step; with growth asked for, what that costs when it is bought as needed.
    pub growth: String,
    /// A line for each year of the growth asked for; empty without.
    pub growth_years: Vec<GrowthYear>,
    /// Near-twins that fit, too: the same kind of design at about the same cost.
    pub variants: Vec<Variant>,
}

/// One year of growth: what has to be there at its end, and what the year costs when no more is bought.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthYear {
    /// From 1.
    pub year: u32,
    pub needed_bytes: Bytes,
    pub usable_bytes: Bytes,
    pub month_usd: Usd,
    pub year_usd: Usd,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    pub name: String,
    pub design: Design,
    pub month_usd: Usd,
}

#[derive(Clone, Debug, Serialize)]
pub struct Miss {
    pub evaluation: Evaluation,
    pub broken: Broken,
}

/// The limit that a design breaks, the furthest from being kept.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// Which goal, such as `write`.
    pub goal: &'static str,
    /// Such as `writes 1.2 GB/s of the 2 GB/s asked for: limited by EBS bandwidth`.
    pub words: String,
    pub rules: Vec<RuleId>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Collision {
    /// Two goals that no design meets together, or one that none meets.
    pub goals: Vec<&'static str>,
    pub words: String,
    /// The design nearest to the goals.
    pub nearest: Option<Box<Miss>>,
}

/// What a design holds, does and costs.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    pub name: String,
    pub design: Design,
    /// `false`: needs what this version of Cairn does not have, see `needs`.
    pub available: bool,
    pub needs: Vec<String>,
    pub capacity: Capacity,
    pub performance: Performance,
    pub cost: Cost,
    pub protocols: Vec<Protocol>,
    /// Failures (of nodes, disks or systems) that lose no data; in words with what fails.
    pub survives: Figure<u32>,
    pub survives_words: String,
    pub reliability: Reliability,
    /// Sentences that a buyer must know: caches, data lost at stop, contradictions in a source.
    pub notes: Vec<String>,
}

/// A number with the rules it follows from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure<T> {
    pub value: T,
    pub known: Known,
    /// Least and most; `None`: the value is exact.
    pub range: Option<[T; 2]>,
    pub rules: Vec<RuleId>,
}

/// How a figure is known; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// Measured in this configuration.
    Measured,
    /// The vendor or a standard says so.
    Documented,
    /// Arithmetic of what is documented.
    Derived,
    /// Measured elsewhere or smaller, or assumed: nobody has seen it at this size.
    Extrapolated,
}

impl Known {
    pub fn words(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Documented => "documented",
            Self::Derived => "derived",
            Self::Extrapolated => "extrapolated",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Capacity {
    pub raw_bytes: Figure<Bytes>,
    pub usable_bytes: Figure<Bytes>,
    pub usable_percent: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Performance {
    pub seq_read: Throughput,
    pub seq_write: Throughput,
    pub random_read: Iops,
    pub random_write: Iops,
    /// Reads of data that a cache holds; `cached_when` says when that is.
    pub cached_read_mb_s: Option<Figure<Rate>>,
    pub cached_when: Option<String>,
    /// Reads that no cache answers, where `seq_read` is of a cache.
    pub uncached_read: Option<Throughput>,
    /// How much the cache holds.
    pub cache_bytes: Option<Figure<Bytes>>,
    /// Burst and baseline over time, where credits run out.
    pub credit: Option<Credit>,
}

impl Performance {
    /// Of what has no cache that counts, and no credit that runs out.
    pub fn without_cache(
        seq_read: Throughput,
        seq_write: Throughput,
        random_read: Iops,
        random_write: Iops,
    ) -> Self {
        Self {
            seq_read,
            seq_write,
            random_read,
            random_write,
            cached_read_mb_s: None,
            cached_when: None,
            uncached_read: None,
            cache_bytes: None,
            credit: None,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    pub steady_mb_s: Rate,
    pub burst_mb_s: Rate,
    /// How the steady figure is known, and its least and most.
    pub known: Known,
    pub range_mb_s: [Rate; 2],
    /// What a paper measured of exactly this configuration.
    pub measured_mb_s: Option<Rate>,
    /// What holds the steady figure down.
    pub bottleneck: Bottleneck,
    pub bottleneck_burst: Bottleneck,
}

#[derive(Clone, Debug, Serialize)]
pub struct Iops {
    pub steady_iops: f64,
    pub burst_iops: f64,
    /// How the steady figure is known, and its least and most.
    pub known: Known,
    pub range_iops: [f64; 2],
    pub bottleneck: Bottleneck,
}

impl Throughput {
    /// What fit is judged on: the model's steady figure, or what was measured of this very configuration
    /// where that is more.
    pub fn sustained(&self) -> Rate {
        let measured = self.measured_mb_s.unwrap_or(Rate::ZERO);
        if measured.mb_s() > self.steady_mb_s.mb_s() {
            measured
        } else {
            self.steady_mb_s
        }
    }

    /// How [`Self::sustained`] is known.
    pub fn sustained_known(&self) -> Known {
        match self.measured_mb_s {
            Some(measured) if measured.mb_s() > self.steady_mb_s.mb_s() => Known::Measured,
            _ => self.known,
        }
    }
}

impl Performance {
    /// Reads that no cache answers.
    pub fn uncached(&self) -> &Throughput {
        self.uncached_read.as_ref().unwrap_or(&self.seq_read)
    }
}

/// The lowest of the limits, and all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Bottleneck {
    /// Such as `EBS bandwidth of the instance`.
    pub name: String,
    /// The numbers that make it so.
    pub words: String,
    pub rules: Vec<RuleId>,
    /// All limits of this figure, lowest first, in its unit (MB/s or IOPS).
    pub limits: Vec<Limit>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    pub name: String,
    /// MB/s of a throughput, IOPS of random work.
    pub value: f64,
    /// Least and most that it may be.
    pub range: [f64; 2],
    pub known: Known,
    pub words: String,
    pub rule: RuleId,
}

/// A bucket of credits: full at first, filled at the baseline, emptied at the burst.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Credit {
    /// Where it is, such as `st1 volumes`.
    pub name: String,
    pub baseline_mb_s: Rate,
    pub burst_mb_s: Rate,
    pub bucket_bytes: Bytes,
    /// How long a full bucket lasts at full burst.
    pub burst_s: f64,
    pub rules: Vec<RuleId>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub hour_usd: Usd,
    pub month_usd: Usd,
    pub year_usd: Usd,
    pub three_years_usd: Usd,
    /// With instances reserved, where the price is known; whole term.
    pub reserved_year_usd: Option<Usd>,
    pub reserved_three_years_usd: Option<Usd>,
    pub month_per_usable_tib_usd: Usd,
    /// Per MB/s of the steady sequential read and write, whichever is lower.
    pub month_per_mb_s_usd: Usd,
    pub items: Vec<CostItem>,
    pub rules: Vec<RuleId>,
    /// What the price list has no price for (software, support): said, never guessed.
    pub without: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CostItem {
    pub words: String,
    pub count: f64,
    pub month_usd: Usd,
    /// When its price was taken; `no date` where nobody says.
    pub price_date: String,
    /// The price is older than a year, or nobody says how old.
    pub price_stale: bool,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    Nfs,
    Smb,
    S3,
    Iscsi,
    Lustre,
}

/// A chart with the numbers it is drawn from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chart {
    /// `throughput-by-nodes`, `cost-by-capacity`, `credit-over-time` or `sensitivity`.
    pub id: &'static str,
    pub title: String,
    /// One sentence: what to see in it and what it holds for.
    pub words: String,
    pub x_label: String,
    pub y_label: String,
    pub kind: ChartKind,
    /// Numbers, or the places of `x_names`.
    pub x: Vec<f64>,
    /// Names of the places of a bar chart; empty for lines.
    pub x_names: Vec<String>,
    pub series: Vec<Series>,
    pub rules: Vec<RuleId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChartKind {
    Line,
    Bars,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    pub name: String,
    /// `None`: no such design there.
    pub y: Vec<Option<f64>>,
}
