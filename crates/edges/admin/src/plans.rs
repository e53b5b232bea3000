//! The JSON of the planner, and what the API asks of a node for it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::query::Query;

/// What is wanted of a design, as whoever asks wrote it: by key, those of `cairn plan` without the dashes.
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

    /// The goals of a query; an empty value is one that was left out.
    pub fn of(query: &Query) -> Self {
        let given = Self::KEYS.iter().filter_map(|key| {
            let value = query.values(key).find(|value| !value.trim().is_empty())?;
            Some((*key, value.trim().to_owned()))
        });
        Self(given.collect())
    }
}

/// Which design is to be deployed, and as what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTemplateAsk {
    pub goals: PlanGoals,
    /// Its rank for these goals; 1 is the best.
    pub rank: usize,
    /// The name of a format.
    pub format: String,
}

/// Designs that do what is wanted, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    pub prices: PlanPrices,
    /// Designs that were looked at.
    pub candidates: u64,
    pub designs: Vec<PlanDesign>,
    /// Designs that do not, each with the goal that it misses; the nearest ones first.
    pub misses: Vec<PlanMiss>,
    /// If nothing fits: which goals exclude each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanPrices {
    #[schema(example = "us-east-1")]
    pub region: String,
    /// When they were taken.
    #[schema(example = "2023-05-01")]
    pub date: String,
    pub source: String,
    /// Which of them are older than a year.
    pub stale: Vec<String>,
}

/// A design, with what it holds, does and costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanDesign {
    /// 1 is the best.
    pub rank: u64,
    pub name: String,
    /// Whether it is of Cairn, and not a vendor's product to compare with.
    pub is_cairn: bool,
    /// What it needs that this version of Cairn does not have; nothing if it works today.
    pub needs: Vec<String>,
    /// Why it ranks where it does.
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
    /// What is in no price.
    pub without: Vec<String>,
    pub survives: String,
    pub protocols: Vec<String>,
    /// What a buyer must know.
    pub notes: Vec<String>,
    /// How it grows.
    pub growth: String,
}

/// A sequential rate of all clients together, in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanRate {
    pub steady: u64,
    pub burst: u64,
    /// measured, documented, derived or extrapolated.
    pub known: String,
    /// What holds the steady rate down.
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

/// A file that whoever asks keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    pub name: &'static str,
    pub kind: &'static str,
    pub content: String,
}

/// What a node does with the planner.
pub trait PlanControl: Send + Sync {
    fn plan(&self, goals: PlanGoals) -> Answer<'_, PlanView>;
    /// The same as a page with charts.
    fn plan_report(&self, goals: PlanGoals) -> Answer<'_, PlanFile>;
    fn plan_template(&self, ask: PlanTemplateAsk) -> Answer<'_, PlanFile>;
}
