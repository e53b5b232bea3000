//! What holds of every advice, whatever is asked for: never below the goal, never what `check` refuses, never
//! dearer than another of the same design, and never dearer because less was asked for.

use cairn_plan::candidates::candidates;
use cairn_plan::catalog::Catalog;
use cairn_plan::check::violations;
use cairn_plan::design::{Design, Storage};
use cairn_plan::evaluate::{Detail, evaluate_with};
use cairn_plan::goal::Goal;
use cairn_plan::rank::rank;
use cairn_plan::reliability::Availability;
use cairn_plan::report::{Evaluation, Fit, Protocol, Ranking};
use cairn_plan::units::{Bytes, Rate, Usd};
use proptest::prelude::*;

/// Amounts that differ by less are the same money.
const CENT: f64 = 0.01;

/// A ranking takes a second: cases are few unless `PROPTEST_CASES` asks for more, and what fails is made smaller in a few steps.
fn config(cases: u32) -> ProptestConfig {
    const SHRINK_STEPS_MAX: u32 = 6;
    let asked = std::env::var("PROPTEST_CASES");
    let asked = asked.ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        max_shrink_iters: SHRINK_STEPS_MAX,
        ..ProptestConfig::with_cases(asked.unwrap_or(cases))
    }
}

/// What a buyer may ask for; steps, so that goals collide with the sizes of what is sold.
#[derive(Clone, Debug)]
struct Asked {
    half_tib: u32,
    read_mb_s: Option<u32>,
    write_mb_s: Option<u32>,
    iops: Option<u32>,
    write_iops: Option<u32>,
    survive: u32,
    node: bool,
    clients: Option<u32>,
    nfs: bool,
    budget: Option<u32>,
}

impl Asked {
    fn goal(&self) -> Goal {
        let rate = |mb_s: Option<u32>| mb_s.map(|it| Rate::from_mb_s(f64::from(it)));
        Goal {
            read_mb_s: rate(self.read_mb_s),
            write_mb_s: rate(self.write_mb_s),
            iops: self.iops.map(u64::from),
            write_iops: self.write_iops.map(u64::from),
            survive: self.survive,
            availability: match self.node {
                true => Availability::Node,
                false => Availability::Single,
            },
            clients: self.clients,
            protocols: match self.nfs {
                true => vec![Protocol::Nfs],
                false => Vec::new(),
            },
            budget_month_usd: self.budget.map(|it| Usd(f64::from(it))),
            ..Goal::capacity(Bytes::from_tib(f64::from(self.half_tib) / 2.0), "us-east-1")
        }
    }

    /// This goal with less asked for, in every way in which that can be.
    fn loosened(&self) -> Vec<(&'static str, Self)> {
        let less = |it: Option<u32>| it.map(|it| it / 2).filter(|it| *it > 0);
        let base = || self.clone();
        vec![
            (
                "capacity",
                Self {
                    half_tib: (self.half_tib * 2 / 3).max(1),
                    ..base()
                },
            ),
            (
                "capacity by a step",
                Self {
                    half_tib: (self.half_tib - 1).max(1),
                    ..base()
                },
            ),
            (
                "read",
                Self {
                    read_mb_s: less(self.read_mb_s),
                    ..base()
                },
            ),
            (
                "write",
                Self {
                    write_mb_s: less(self.write_mb_s),
                    ..base()
                },
            ),
            (
                "iops",
                Self {
                    iops: less(self.iops),
                    ..base()
                },
            ),
            (
                "write-iops",
                Self {
                    write_iops: less(self.write_iops),
                    ..base()
                },
            ),
            (
                "survive",
                Self {
                    survive: self.survive.saturating_sub(1),
                    ..base()
                },
            ),
            (
                "availability",
                Self {
                    node: false,
                    ..base()
                },
            ),
            (
                "protocols",
                Self {
                    nfs: false,
                    ..base()
                },
            ),
            (
                "budget",
                Self {
                    budget: None,
                    ..base()
                },
            ),
        ]
    }
}

prop_compose! {
    fn asked()(
        half_tib in 1u32..600,
        read_mb_s in prop::option::of(1u32..4000),
        write_mb_s in prop::option::of(1u32..2000),
        iops in prop::option::weighted(0.3, 1u32..60_000),
        write_iops in prop::option::weighted(0.3, 1u32..20_000),
        survive in 0u32..3,
        node in prop::bool::weighted(0.2),
        clients in prop::option::of(1u32..64),
        nfs in any::<bool>(),
        budget in prop::option::weighted(0.3, 100u32..40_000),
    ) -> Asked {
        Asked { half_tib, read_mb_s, write_mb_s, iops, write_iops, survive, node, clients, nfs, budget }
    }
}

/// The least that anything costs that fits and can be had.
fn least(ranking: &Ranking) -> Option<f64> {
    ranking
        .fits
        .iter()
        .filter(|fit| fit.evaluation.available)
        .map(|fit| fit.evaluation.cost.month_usd.0)
        .min_by(f64::total_cmp)
}

/// Held against the goal once more, by the figures that are shown.
fn meets(goal: &Goal, it: &Evaluation) -> bool {
    let performance = &it.performance;
    let rate = |wanted: Option<Rate>, got: Rate| got.mb_s() >= wanted.unwrap_or_default().mb_s();
    let count = |wanted: Option<u64>, got: f64| got >= wanted.unwrap_or(0) as f64;
    it.capacity.usable_bytes.value.get() >= goal.capacity_planned().get() * (1.0 - 1e-9)
        && rate(goal.read_mb_s, performance.uncached().sustained())
        && rate(goal.write_mb_s, performance.seq_write.sustained())
        && count(goal.iops, performance.random_read.steady_iops)
        && count(goal.write_iops, performance.random_write.steady_iops)
        && it.survives.value >= goal.survive
        && it.reliability.availability >= goal.availability
        && goal.protocols.iter().all(|it_| it.protocols.contains(it_))
        && goal
            .budget_month_usd
            .is_none_or(|most| it.cost.month_usd.0 <= most.0 + CENT)
}

/// The storage of a design, as far as it makes another design of it.
fn sort(design: &Design) -> String {
    let storage = match design.shape.machine() {
        None => String::new(),
        Some((_, Storage::InstanceStore { .. })) => "local".to_owned(),
        Some((_, Storage::Ebs { volume, .. })) => volume.volume_type.clone(),
    };
    let name = design.name();
    let maker = name.split(':').next().unwrap_or_default();
    format!("{maker} {storage} {}", design.is_paper_server())
}

fn checked(catalog: &Catalog, goal: &Goal, fit: &Fit) -> Result<(), TestCaseError> {
    let it = &fit.evaluation;
    prop_assert!(
        meets(goal, it) || !it.available,
        "{} is below its goal",
        it.name
    );
    let broken = violations(catalog, &it.design);
    prop_assert!(broken.is_empty(), "{} is refused: {broken:?}", it.name);
    for variant in &fit.variants {
        let broken = violations(catalog, &variant.design);
        prop_assert!(broken.is_empty(), "{} is refused: {broken:?}", variant.name);
        prop_assert!(
            variant.month_usd.0 >= it.cost.month_usd.0 - CENT,
            "{}",
            variant.name
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn what_fits_meets_its_goal_and_passes_check(asked in asked()) {
        let catalog = Catalog::embedded();
        let goal = asked.goal();
        let ranking = rank(&catalog, &goal).unwrap();
        prop_assert_eq!(ranking.fits.is_empty(), ranking.collision.is_some());
        for fit in &ranking.fits {
            checked(&catalog, &goal, fit)?;
        }
    }
}

proptest! {
    #![proptest_config(config(4))]

    /// Another of the same design that meets the goal, too, is never cheaper.
    #[test]
    fn none_costs_more_than_another_of_the_same_design(asked in asked()) {
        let catalog = Catalog::embedded();
        let goal = asked.goal();
        let ranking = rank(&catalog, &goal).unwrap();
        let shown: Vec<(String, f64)> = ranking
            .fits
            .iter()
            .filter(|fit| fit.evaluation.available)
            .map(|fit| (sort(&fit.evaluation.design), fit.evaluation.cost.month_usd.0))
            .collect();
        for design in candidates(&catalog, &goal) {
            let Some((_, cost)) = shown.iter().find(|(kind, _)| *kind == sort(&design)) else {
                continue;
            };
            let Ok(other) = evaluate_with(&catalog, &design, Detail::Figures) else {
                continue;
            };
            let cheaper = other.cost.month_usd.0 < cost - CENT;
            let paper = design.is_paper_server();
            prop_assert!(!cheaper || paper || !meets(&goal, &other) || !other.available,
                "{} costs {}, {cost} is shown", design.name(), other.cost.month_usd);
        }
    }

}

/// Who asks for less never pays more.
fn looser_never_costs_more(asked: &Asked) -> Result<(), TestCaseError> {
    let catalog = Catalog::embedded();
    let Some(cost) = least(&rank(&catalog, &asked.goal()).unwrap()) else {
        return Ok(());
    };
    for (what, looser) in asked.loosened() {
        let now = least(&rank(&catalog, &looser.goal()).unwrap());
        prop_assert!(
            now.is_some_and(|now| now <= cost + CENT),
            "{cost} a month; with less {what} {now:?}"
        );
    }
    Ok(())
}

proptest! {
    // Eleven rankings each.
    #![proptest_config(config(2))]

    #[test]
    fn a_looser_goal_never_costs_more(asked in asked()) {
        looser_never_costs_more(&asked)?;
    }
}

/// Surviving one failure cost more than surviving two: the designs that are cheaper were not among those looked at.
#[test]
fn a_looser_goal_never_costs_more_with_many_designs() {
    let asked = Asked {
        half_tib: 455,
        read_mb_s: Some(2946),
        write_mb_s: Some(232),
        iops: Some(55_150),
        write_iops: Some(4_100),
        survive: 2,
        node: false,
        clients: None,
        nfs: false,
        budget: None,
    };
    looser_never_costs_more(&asked).unwrap();
}

/// The paper's server is for less than 48 TiB: one with more is refused, however little is asked of it.
#[test]
fn the_papers_server_is_never_larger_than_its_rule() {
    let catalog = Catalog::embedded();
    let mut goal = Goal::capacity(Bytes::from_tib(0.5), "us-east-1");
    (goal.iops, goal.survive) = (Some(1565), 0);
    for fit in &rank(&catalog, &goal).unwrap().fits {
        checked(&catalog, &goal, fit).unwrap();
    }
}
