//! The JSON of the planner, and what the API and a node ask of it. A server may be built without it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::query::Query;

/// Goals for a design, as in the request: the flags of `cairn plan` without dashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanGoals(pub Vec<(&'static str, String)>);

impl PlanGoals {
    pub const KEYS: &'static [&'static str] = &[
        "capacity",
        "read",
        "write",
        "iops",
        "write-iops",
        "latency",
        "clients",
        "protocols",
        "survive",
        "namespaces",
        "availability",
        "host",
        "region",
        "budget",
        "hot",
        "growth",
        "years",
        "workload",
        "include-planned",
    ];

    /// The goals of a query; an empty value counts as left out.
    pub fn of(query: &Query) -> Self {
        let given = Self::KEYS.iter().filter_map(|key| {
            let value = query.values(key).find(|value| !value.trim().is_empty())?;
            Some((*key, value.trim().to_owned()))
        });
        Self(given.collect())
    }
}

/// The design to deploy, and the format of the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTemplateAsk {
    pub goals: PlanGoals,
    /// The design's rank for these goals; 1 is the best.
    pub rank: usize,
    /// The name of a format.
    pub format: String,
}

/// Designs that meet the goals, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    pub prices: PlanPrices,
    /// Number of evaluated designs.
    pub candidates: u64,
    pub designs: Vec<PlanDesign>,
    /// Designs that miss a goal, each with that goal; the nearest ones first.
    pub misses: Vec<PlanMiss>,
    /// If nothing fits: which goals exclude each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanPrices {
    #[schema(example = "us-east-1")]
    pub region: String,
    /// Date of the prices.
    #[schema(example = "2023-05-01")]
    pub date: String,
    pub source: String,
    /// Prices that are older than a year.
    pub stale: Vec<String>,
}

/// A design, with its capacity, performance and cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanDesign {
    /// 1 is the best.
    pub rank: u64,
    pub name: String,
    /// Whether the design uses Cairn; otherwise it is another vendor's product, for comparison.
    pub is_cairn: bool,
    /// Features that the design needs and this version of Cairn lacks; left out if it works today.
    pub needs: Vec<String>,
    /// The reason for the rank.
    pub why: String,
    pub usable_bytes: u64,
    pub raw_bytes: u64,
    pub read: PlanRate,
    pub write: PlanRate,
    /// Random operations of 4 KiB per second, steady.
    pub read_iops: u64,
    pub write_iops: u64,
    pub month_usd: f64,
    pub year_usd: f64,
    pub month_per_usable_tib_usd: f64,
    pub costs: Vec<PlanCost>,
    /// Costs that the price does not include.
    pub without: Vec<String>,
    pub survives: String,
    pub protocols: Vec<String>,
    /// Caveats for a buyer.
    pub notes: Vec<String>,
    /// Ways to grow the design.
    pub growth: String,
}

/// A sequential rate of all clients together, in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanRate {
    pub steady: u64,
    pub burst: u64,
    /// measured, documented, derived or extrapolated.
    pub known: String,
    /// The bottleneck of the steady rate.
    pub limited_by: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanCost {
    pub words: String,
    pub count: f64,
    pub month_usd: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanMiss {
    pub name: String,
    pub is_cairn: bool,
    pub why: String,
    pub month_usd: f64,
}

/// A file for download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    pub name: &'static str,
    pub kind: &'static str,
    pub content: String,
}

/// What a node does with the planner.
pub trait PlanControl: Send + Sync {
    fn plan(&self, goals: PlanGoals) -> Answer<'_, PlanView>;
    /// The ranking as a page with charts.
    fn plan_report(&self, goals: PlanGoals) -> Answer<'_, PlanFile>;
    fn plan_template(&self, ask: PlanTemplateAsk) -> Answer<'_, PlanFile>;
}

/// The price of stored bytes for a month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoragePrice {
    pub month_usd_cents: u64,
    /// The day of the price, `2026-03-03`.
    pub date: String,
}

/// What a node asks of the planner to show the cost of data that it stores elsewhere.
pub trait StoragePrices: Send + Sync {
    /// `bytes` in S3 of an AWS region; `None`: the region has no known price.
    fn s3(&self, region: &str, bytes: u64) -> Option<StoragePrice>;
}
