//! The planner as a part of a server.
//!
//! Owns: parsing goals, the view of a plan, one plan at a time, the prices that a node shows. Must not know: the model
//! (`cairn_plan`), anything of the node.

#![forbid(unsafe_code)]

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::plans::{
    PlanControl, PlanCost, PlanDesign, PlanFile, PlanGoals, PlanMiss, PlanPrices, PlanRate,
    PlanTemplateAsk, PlanView, StoragePrice, StoragePrices,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::env::Env;
use cairn_plan::catalog::Catalog;
use cairn_plan::deploy::{DeployOptions, Format, render};
use cairn_plan::deployable::is_region;
use cairn_plan::design::{Design, Product};
use cairn_plan::goal::{Goal, Workload};
use cairn_plan::page;
use cairn_plan::prices::Day;
use cairn_plan::reliability::Availability;
use cairn_plan::report::{Evaluation, PlanReport, Protocol, Throughput};
use cairn_plan::units::{Bytes, Rate, Usd, parse_growth, parse_latency_ms, parse_share};
use futures_util::future::{Either, select};

/// Maximum time that a plan waits for earlier ones.
const PATIENCE: Duration = Duration::from_secs(10);
const REGION_DEFAULT: &str = "us-east-1";

fn invalid(message: impl std::fmt::Display) -> ControlError {
    ControlError::new(ErrorKind::Invalid, message.to_string())
}

/// A value of a small set of words.
fn word<T: Copy>(key: &str, value: &str, known: &[(&str, T)]) -> Result<T, ControlError> {
    let found = known.iter().find(|(name, _)| *name == value);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        invalid(format!(
            "{key}: \"{value}\" is not one of {}",
            names.join(", ")
        ))
    })
}

fn goal(goals: &PlanGoals) -> Result<Goal, ControlError> {
    let given = |wanted: &str| goals.0.iter().find(|(key, _)| *key == wanted);
    let Some((_, capacity)) = given("capacity") else {
        return Err(invalid("capacity is missing: how much must it hold?")
            .hint("for example capacity=200TiB"));
    };
    let of = |key: &str, error: &dyn std::fmt::Display| invalid(format!("{key}: {error}"));
    let capacity = Bytes::parse(capacity).map_err(|error| of("capacity", &error))?;
    let mut goal = Goal::capacity(capacity, REGION_DEFAULT);
    goal.protocols = Vec::new();
    for (key, value) in &goals.0 {
        let number = || {
            let parsed = value.parse::<u64>();
            parsed.map_err(|_| invalid(format!("{key}: \"{value}\" is not a number")))
        };
        let small = || {
            let parsed = value.parse::<u32>();
            parsed.map_err(|_| invalid(format!("{key}: \"{value}\" is not a number")))
        };
        let rate = || Rate::parse(value).map_err(|error| of(key, &error));
        match *key {
            "read" => goal.read_mb_s = Some(rate()?),
            "write" => goal.write_mb_s = Some(rate()?),
            "iops" => goal.iops = Some(number()?),
            "write-iops" => goal.write_iops = Some(number()?),
            "latency" => {
                let latency = parse_latency_ms(value).map_err(|error| of(key, &error))?;
                goal.latency_ms = Some(latency);
            }
            "clients" => goal.clients = Some(small()?),
            "protocols" => {
                let known = [
                    ("nfs", Protocol::Nfs),
                    ("smb", Protocol::Smb),
                    ("s3", Protocol::S3),
                    ("iscsi", Protocol::Iscsi),
                ];
                let names = value.split(',').map(str::trim);
                let all = names.map(|name| word(key, name, &known));
                goal.protocols = all.collect::<Result<_, _>>()?;
            }
            "survive" => goal.survive = small()?,
            "namespaces" => goal.namespaces = small()?,
            "availability" => {
                let known = [
                    ("single", Availability::Single),
                    ("node", Availability::Node),
                    ("zone", Availability::Zone),
                ];
                goal.availability = word(key, value, &known)?;
            }
            "host" => goal.host = Some(value.clone()),
            "region" => goal.region.clone_from(value),
            "budget" => {
                let budget = Usd::parse_per_month(value).map_err(|error| of(key, &error))?;
                goal.budget_month_usd = Some(budget);
            }
            "hot" => {
                let share = parse_share(value).map_err(|error| of(key, &error))?;
                goal.hot_share = Some(share);
            }
            "growth" => {
                goal.growth_per_year = parse_growth(value).map_err(|error| of(key, &error))?;
            }
            "years" => goal.years = small()?,
            "workload" => goal.workload = word(key, value, &Workload::ALL)?,
            "include-planned" => {
                goal.include_planned = word(key, value, &[("true", true), ("false", false)])?;
            }
            _ => {}
        }
    }
    Ok(goal)
}

fn catalog(now_seconds: i64) -> Catalog {
    let mut catalog = Catalog::embedded();
    catalog.today = Some(Day::from_unix_seconds(now_seconds));
    catalog
}

fn report(goals: &PlanGoals, now_seconds: i64) -> Result<PlanReport, ControlError> {
    let goal = goal(goals)?;
    cairn_plan::plan(&catalog(now_seconds), &goal).map_err(invalid)
}

fn rate(throughput: &Throughput) -> PlanRate {
    let steady = throughput.sustained().bytes_s();
    PlanRate {
        steady: steady as u64,
        burst: throughput.burst_mb_s.bytes_s().max(steady) as u64,
        known: throughput.sustained_known().words().to_owned(),
        limited_by: throughput.bottleneck.name.clone(),
    }
}

fn protocol_name(protocol: &Protocol) -> String {
    match protocol {
        Protocol::Nfs => "NFS",
        Protocol::Smb => "SMB",
        Protocol::S3 => "S3",
        Protocol::Iscsi => "iSCSI",
        Protocol::Lustre => "Lustre",
    }
    .to_owned()
}

fn is_cairn(evaluation: &Evaluation) -> bool {
    evaluation.design.product == Product::Cairn
}

fn view(report: &PlanReport) -> PlanView {
    let designs = report.ranking.fits.iter().map(|fit| {
        let evaluation = &fit.evaluation;
        let (performance, cost) = (&evaluation.performance, &evaluation.cost);
        let costs = cost.items.iter().map(|item| PlanCost {
            words: item.words.clone(),
            count: item.count,
            month_usd: item.month_usd.0,
        });
        PlanDesign {
            rank: fit.rank as u64,
            name: evaluation.name.clone(),
            is_cairn: is_cairn(evaluation),
            needs: evaluation.needs.clone(),
            why: fit.why.clone(),
            usable_bytes: evaluation.capacity.usable_bytes.value.get() as u64,
            raw_bytes: evaluation.capacity.raw_bytes.value.get() as u64,
            read: rate(&performance.seq_read),
            write: rate(&performance.seq_write),
            read_iops: performance.random_read.steady_iops as u64,
            write_iops: performance.random_write.steady_iops as u64,
            month_usd: cost.month_usd.0,
            year_usd: cost.year_usd.0,
            month_per_usable_tib_usd: cost.month_per_usable_tib_usd.0,
            costs: costs.collect(),
            without: cost.without.clone(),
            survives: evaluation.survives_words.clone(),
            protocols: evaluation.protocols.iter().map(protocol_name).collect(),
            notes: evaluation.notes.clone(),
            growth: fit.growth.clone(),
        }
    });
    let misses = report.ranking.misses.iter().map(|miss| PlanMiss {
        name: miss.evaluation.name.clone(),
        is_cairn: is_cairn(&miss.evaluation),
        why: miss.broken.words.clone(),
        month_usd: miss.evaluation.cost.month_usd.0,
    });
    let collision = report.ranking.collision.as_ref();
    PlanView {
        prices: PlanPrices {
            region: report.prices.region.clone(),
            date: report.prices.date.clone(),
            source: report.prices.source.clone(),
            stale: report.prices.stale.clone(),
        },
        candidates: report.ranking.candidates as u64,
        designs: designs.collect(),
        misses: misses.collect(),
        collision: collision.map(|collision| collision.words.clone()),
    }
}

/// The design of a rank, if it can be deployed.
fn deployable(report: &PlanReport, rank: usize) -> Result<&Design, ControlError> {
    let fits = &report.ranking.fits;
    let fit = fits.iter().find(|fit| fit.rank == rank).ok_or_else(|| {
        invalid(format!(
            "no design for these goals has rank {rank}; the number of designs is {}",
            fits.len()
        ))
    })?;
    let design = &fit.evaluation.design;
    if !is_region(&design.region) {
        let message = format!(
            "\"{}\" is not a region: nothing can be deployed there",
            design.region
        );
        return Err(invalid(message));
    }
    Ok(design)
}

fn template(ask: &PlanTemplateAsk, now_seconds: i64) -> Result<PlanFile, ControlError> {
    let format: Format = ask.format.parse().map_err(invalid)?;
    let report = report(&ask.goals, now_seconds)?;
    let design = deployable(&report, ask.rank)?;
    let mut options = DeployOptions::default();
    if !report.goal.protocols.is_empty() {
        options.protocols.clone_from(&report.goal.protocols);
    }
    let rendered = render(design, &options, format).map_err(invalid)?;
    Ok(PlanFile {
        name: rendered.file_name,
        kind: "text/plain; charset=utf-8",
        content: rendered.content,
    })
}

/// The planner of one server.
pub struct Planner {
    env: Env,
    /// Held while a plan is computed.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Planner {
    /// The planner as the admin API asks it. `env` gives the day, for the age of prices.
    pub fn start(env: &Env) -> Arc<dyn PlanControl> {
        Arc::new(Self {
            env: env.clone(),
            turn: Arc::default(),
        })
    }

    /// Computes on a thread that may be busy, one plan at a time, also if the caller is gone: plans must not take the
    /// processors from clients.
    async fn planning<T: Send + 'static>(
        &self,
        plan: impl FnOnce(i64) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let turn = pin!(Arc::clone(&self.turn).lock_owned());
        let too_long = self.env.clock.sleep(PATIENCE);
        let Either::Left((turn, _)) = select(turn, too_long).await else {
            let message = "the planner is busy with other requests";
            return Err(ControlError::new(ErrorKind::Unavailable, message).hint("try again"));
        };
        let now_seconds = self.env.clock.now().seconds;
        let planned = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            plan(now_seconds)
        })
        .await;
        planned.map_err(|error| {
            ControlError::new(
                ErrorKind::Internal,
                format!("planning was interrupted: {error}"),
            )
        })?
    }
}

impl PlanControl for Planner {
    fn plan(&self, goals: PlanGoals) -> Answer<'_, PlanView> {
        Box::pin(self.planning(move |now| Ok(view(&report(&goals, now)?))))
    }

    fn plan_report(&self, goals: PlanGoals) -> Answer<'_, PlanFile> {
        Box::pin(self.planning(move |now| {
            let report = report(&goals, now)?;
            Ok(PlanFile {
                name: "plan.html",
                kind: "text/html; charset=utf-8",
                content: page::html(&report),
            })
        }))
    }

    fn plan_template(&self, ask: PlanTemplateAsk) -> Answer<'_, PlanFile> {
        Box::pin(self.planning(move |now| template(&ask, now)))
    }
}

/// The embedded price list.
pub struct EmbeddedPrices;

impl StoragePrices for EmbeddedPrices {
    fn s3(&self, region: &str, bytes: u64) -> Option<StoragePrice> {
        static PRICES: LazyLock<Catalog> = LazyLock::new(Catalog::embedded);
        let book = PRICES.prices.book(region).ok()?;
        let prices = book.s3().ok()?;
        let cents = 100.0 * prices.month(bytes as f64 / f64::from(1 << 30)).0;
        let date = prices.date.clone().unwrap_or_else(|| book.date.clone());
        Some(StoragePrice {
            month_usd_cents: cents.round() as u64,
            date,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_SECONDS: i64 = 1_700_000_000;

    fn goals(pairs: &[(&'static str, &str)]) -> PlanGoals {
        let all = pairs.iter().map(|(key, value)| (*key, (*value).to_owned()));
        PlanGoals(all.collect())
    }

    #[test]
    fn designs_are_ranked_and_deployed() {
        let wanted = goals(&[
            ("capacity", "50TiB"),
            ("survive", "2"),
            ("protocols", "nfs, s3"),
        ]);
        let plan = view(&report(&wanted, NOW_SECONDS).unwrap());
        assert!(plan.collision.is_none());
        let first = &plan.designs[0];
        assert_eq!(first.rank, 1);
        assert!(first.usable_bytes >= 50 << 40, "{first:?}");
        let sum: f64 = first.costs.iter().map(|cost| cost.month_usd).sum();
        assert!((sum - first.month_usd).abs() < 0.01 * sum, "{first:?}");
        let cairn = plan.designs.iter().find(|design| design.is_cairn);
        let cairn = cairn.expect("a design of Cairn");
        let ask = PlanTemplateAsk {
            goals: wanted.clone(),
            rank: cairn.rank as usize,
            format: "terraform".to_owned(),
        };
        let file = template(&ask, NOW_SECONDS).unwrap();
        assert_eq!(file.name, "cairn.tf");
        assert!(file.content.contains("us-east-1"));
        let none = PlanTemplateAsk { rank: 1000, ..ask };
        assert!(template(&none, NOW_SECONDS).is_err());
    }

    #[test]
    fn what_is_no_goal_is_said() {
        for (key, value, part) in [
            ("capacity", "200", "capacity"),
            ("read", "fast", "read"),
            ("years", "-1", "years"),
            ("years", "4000000000", "years"),
            ("protocols", "ftp", "nfs, smb, s3, iscsi"),
            ("workload", "games", "streaming"),
            ("region", "mars", "mars"),
        ] {
            let mut wanted = goals(&[("capacity", "50TiB")]);
            wanted.0.retain(|(known, _)| *known != key);
            wanted.0.push((key, value.to_owned()));
            let error = report(&wanted, NOW_SECONDS).expect_err(value);
            assert!(error.to_string().contains(part), "{key}={value}: {error}");
        }
        assert!(report(&goals(&[]), NOW_SECONDS).is_err());
    }

    #[test]
    fn what_aws_has_a_price_for_has_a_cost() {
        let tib = 1_u64 << 40;
        let price = EmbeddedPrices.s3("us-east-1", tib).expect("a price");
        // 0.023 USD for each GiB.
        assert_eq!(price.month_usd_cents, 2355);
        assert_eq!(price.date.len(), "2026-03-03".len());
        assert_eq!(EmbeddedPrices.s3("mars", tib), None);
    }
}
