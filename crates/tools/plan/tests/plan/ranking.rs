//! Rankings: order, reasons, misses, collisions, bad input; and that thousands of designs take no time.

use std::time::{Duration, Instant};

use cairn_plan::candidates::candidates;
use cairn_plan::catalog::Catalog;
use cairn_plan::check::{self, violations};
use cairn_plan::design::{Design, Family, Product, Shape, Storage};
use cairn_plan::evaluate::evaluate;
use cairn_plan::goal::{Goal, Workload};
use cairn_plan::prices::PriceList;
use cairn_plan::rank::{rank, rank_designs};
use cairn_plan::reliability::Availability;
use cairn_plan::report::{PlanReport, Protocol, Ranking};
use cairn_plan::units::{Bytes, Rate, Usd};
use cairn_plan::validate::paper_cluster;
use cairn_plan::whatif::{Change, whatif};
use proptest::prelude::*;

fn goal(capacity: &str) -> Goal {
    let mut goal = Goal::capacity(Bytes::parse(capacity).unwrap(), "us-east-1");
    goal.protocols = Vec::new();
    goal
}

fn ranked(goal: &Goal) -> Ranking {
    rank(&Catalog::embedded(), goal).unwrap()
}

#[test]
fn what_fits_meets_every_goal_and_what_does_not_names_one_limit() {
    let mut goal = goal("200TiB");
    goal.read_mb_s = Some(Rate::parse("6GB/s").unwrap());
    goal.write_mb_s = Some(Rate::parse("2GB/s").unwrap());
    goal.survive = 2;
    let ranking = ranked(&goal);
    assert!(ranking.fits.len() > 3 && ranking.candidates > 10_000);
    for fit in &ranking.fits {
        let it = &fit.evaluation;
        assert!(
            it.capacity.usable_bytes.value >= goal.capacity_bytes,
            "{}",
            it.name
        );
        assert!(
            it.performance.seq_read.steady_mb_s.mb_s() >= 6000.0 - 1e-6,
            "{}",
            it.name
        );
        assert!(
            it.performance.seq_write.steady_mb_s.mb_s() >= 2000.0 - 1e-6,
            "{}",
            it.name
        );
        assert!(it.survives.value >= 2, "{}", it.name);
        assert!(!fit.why.is_empty() && !fit.growth.is_empty());
        assert!(!it.performance.seq_write.bottleneck.rules.is_empty());
    }
    let costs: Vec<(bool, f64)> = ranking
        .fits
        .iter()
        .map(|fit| (!fit.evaluation.available, fit.evaluation.cost.month_usd.0))
        .collect();
    assert!(costs.is_sorted_by(|left, right| left <= right), "{costs:?}");
    assert!(
        ranking
            .misses
            .iter()
            .all(|miss| !miss.broken.words.is_empty())
    );
}

#[test]
fn planned_designs_come_after_those_that_work_unless_asked_for() {
    let mut goal = goal("100TiB");
    goal.survive = 1;
    goal.protocols = vec![Protocol::Smb];
    let today = ranked(&goal);
    let (works, planned): (Vec<_>, Vec<_>) =
        today.fits.iter().partition(|fit| fit.evaluation.available);
    assert!(today.fits[0].evaluation.available && !planned.is_empty());
    assert!(works.iter().all(|fit| fit.evaluation.needs.is_empty()));
    for fit in planned {
        let it = &fit.evaluation;
        assert_eq!(it.design.product, Product::Cairn, "{}", it.name);
        assert!(it.needs.contains(&"SMB".to_owned()), "{}", it.name);
    }
    goal.include_planned = true;
    let both = ranked(&goal);
    let costs: Vec<f64> = both
        .fits
        .iter()
        .map(|fit| fit.evaluation.cost.month_usd.0)
        .collect();
    assert!(costs.is_sorted(), "{costs:?}");
}

/// The paper's rules of thumb, as consequences: (capacity, read, clients), and whether one server of
/// the paper fits.
#[test]
fn rules_of_thumb_decide_and_are_shown() {
    let cases = [
        ("small", "20TiB", "0.5GB/s", 8, None),
        ("too large", "48TiB", "0.5GB/s", 8, Some("capacity")),
        ("too fast", "20TiB", "1.5GB/s", 8, Some("read")),
        ("too many", "20TiB", "0.5GB/s", 32, Some("clients")),
    ];
    for (name, capacity, read, clients, broken) in cases {
        let mut goal = goal(capacity);
        goal.read_mb_s = Some(Rate::parse(read).unwrap());
        goal.clients = Some(clients);
        // The paper's server joins its volumes: it keeps nothing when one of them fails.
        goal.survive = 0;
        let ranking = ranked(&goal);
        let is_paper_server = Design::is_paper_server;
        let fits = ranking
            .fits
            .iter()
            .any(|fit| is_paper_server(&fit.evaluation.design));
        assert_eq!(fits, broken.is_none(), "{name}");
        if let Some(broken) = broken {
            let miss = ranking
                .misses
                .iter()
                .find(|miss| is_paper_server(&miss.evaluation.design))
                .unwrap();
            assert_eq!(miss.broken.goal, broken, "{name}: {}", miss.broken.words);
            assert!(
                miss.broken.words.contains("rule of thumb"),
                "{name}: {}",
                miss.broken.words
            );
        }
        let first = &ranking.fits[0];
        if broken.is_none() {
            assert_eq!(
                first.evaluation.design.shape.family(),
                Family::NfsServer,
                "{name}"
            );
            assert!(
                first.why.contains("rules of thumb"),
                "{name}: {}",
                first.why
            );
        }
    }
}

#[test]
fn goals_that_collide_are_named_with_the_nearest_design() {
    let mut cheap = goal("200TiB");
    cheap.budget_month_usd = Some(Usd(100.0));
    let mut fast = goal("1TiB");
    fast.read_mb_s = Some(Rate::parse("2GB/s").unwrap());
    fast.budget_month_usd = Some(Usd(300.0));
    let mut fastest = goal("1TiB");
    fastest.read_mb_s = Some(Rate::parse("1000GB/s").unwrap());
    let huge = goal("500PiB");
    let cases = [
        ("no money", cheap, vec!["capacity", "budget"]),
        ("fast and cheap", fast, vec!["read", "budget"]),
        ("faster than any", fastest, vec!["read"]),
        ("beyond every design", huge, vec!["capacity"]),
    ];
    for (name, goal, wanted) in cases {
        let ranking = ranked(&goal);
        assert!(ranking.fits.is_empty(), "{name}");
        let collision = ranking.collision.unwrap();
        assert_eq!(collision.goals, wanted, "{name}: {}", collision.words);
        assert!(collision.nearest.is_some(), "{name}");
    }
}

#[test]
fn bad_goals_and_regions_are_refused_in_a_sentence() {
    let catalog = Catalog::embedded();
    let mut growth = goal("1TiB");
    growth.growth_per_year = 0.3;
    let mut far = goal("1TiB");
    far.years = 11;
    let mut nobody = goal("1TiB");
    nobody.clients = Some(0);
    let mut typo = goal("1TiB");
    typo.region = "us-esat-1".to_owned();
    let mut unpriced = goal("1TiB");
    unpriced.region = "ap-south-1".to_owned();
    let mut nothing = goal("1TiB");
    nothing.capacity_bytes = Bytes::ZERO;
    let cases = [
        ("growth without years", growth, "--years"),
        ("too far", far, "10"),
        ("no clients", nobody, "--clients"),
        ("typing error", typo, "us-east-1"),
        ("no prices", unpriced, "--prices"),
        ("nothing", nothing, "--capacity"),
    ];
    for (name, goal, want) in cases {
        let error = rank(&catalog, &goal).unwrap_err().to_string();
        assert!(error.contains(want), "{name}: {error}");
    }
}

/// A fifth of a file system is read cache: it counts for data that it holds. 24 TiB are 24,576 GiB, five
/// steps of 6,000 GiB; 900 MB/s at 12 for each 1,000 GiB are 75,000 GiB, thirteen steps.
#[test]
fn a_read_cache_counts_for_what_it_holds() {
    let mut goal = goal("24TiB");
    goal.read_mb_s = Some(Rate::parse("900MB/s").unwrap());
    let gib = |goal: &Goal| {
        let ranking = ranked(goal);
        let fit = ranking
            .fits
            .into_iter()
            .find(|fit| fit.evaluation.name.starts_with("FSx for Lustre"));
        fit.map(|fit| fit.evaluation.capacity.usable_bytes.value.gib().round())
    };
    assert_eq!(gib(&goal), Some(78_000.0), "from disks");
    goal.hot_share = Some(0.2);
    assert_eq!(gib(&goal), Some(30_000.0), "from the cache");
    goal.hot_share = Some(0.5);
    assert_eq!(
        gib(&goal),
        Some(66_000.0),
        "from a cache that holds the half"
    );
}

#[test]
fn growth_is_planned_to_its_end() {
    let mut goal = goal("100TiB");
    goal.growth_per_year = 0.3;
    goal.years = 3;
    let ranking = ranked(&goal);
    for fit in &ranking.fits {
        assert!(fit.evaluation.capacity.usable_bytes.value.tib() >= 219.7 - 1e-6);
        assert!(fit.growth.contains("full after"), "{}", fit.growth);
    }
}

/// Three years at 30 % a year: what is bought as needed never costs more, ends at the whole, and holds each
/// year's data.
#[test]
fn growth_is_bought_when_it_is_needed() {
    let mut goal = goal("100TiB");
    goal.growth_per_year = 0.3;
    goal.years = 3;
    let ranking = ranked(&goal);
    assert!(ranking.fits.len() > 3);
    let mut saved = 0;
    for fit in &ranking.fits {
        let it = &fit.evaluation;
        let (all, name) = (it.cost.month_usd.0, &it.name);
        assert_eq!(fit.growth_years.len(), 3, "{name}");
        for (year, of) in (1..).zip(&fit.growth_years) {
            assert_eq!(of.year, year, "{name}");
            let needed = goal.capacity_after(year);
            assert!(of.usable_bytes.get() >= needed.get() * 0.999_999, "{name}");
            assert!(of.month_usd.0 <= all + 1e-6, "{name}: {of:?}");
            assert!((of.year_usd.0 - of.month_usd.0 * 12.0).abs() < 1e-6);
        }
        let costs: Vec<f64> = fit.growth_years.iter().map(|it| it.month_usd.0).collect();
        assert!(costs.is_sorted(), "{name}: {costs:?}");
        saved += usize::from(costs[0] < all * 0.9);
        assert!(
            fit.growth.contains("bought when needed: year 1 "),
            "{}",
            fit.growth
        );
    }
    // Volumes and services grow by the TiB.
    assert!(saved >= 3, "{saved} of {}", ranking.fits.len());
    goal.growth_per_year = 0.0;
    assert!(
        ranked(&goal)
            .fits
            .iter()
            .all(|fit| fit.growth_years.is_empty())
    );
}

#[test]
fn near_twins_are_folded_into_one_line() {
    let ranking = ranked(&goal("20TiB"));
    let folded: Vec<_> = ranking
        .fits
        .iter()
        .filter(|fit| !fit.variants.is_empty())
        .collect();
    assert!(!folded.is_empty());
    for fit in folded {
        let it = &fit.evaluation;
        let mut instances = vec![it.design.shape.machine().unwrap().0];
        for twin in &fit.variants {
            let name = twin.design.shape.machine().unwrap().0;
            assert!(!instances.contains(&name), "{}", twin.name);
            instances.push(name);
            assert_eq!(twin.design.shape.family(), it.design.shape.family());
            let times = twin.month_usd.0 / it.cost.month_usd.0;
            assert!((1.0 - 1e-9..=1.15).contains(&times), "{times}");
        }
    }
}

/// A host of 25 Gb/s reads 3,125 MB/s of an array that has 20,000; its price is in the array's.
#[test]
fn one_host_bounds_the_array_that_it_reads_and_is_priced() {
    let catalog = Catalog::embedded();
    let mut goal = goal("20TiB");
    goal.clients = Some(1);
    goal.protocols = vec![Protocol::Iscsi];
    goal.read_mb_s = Some(Rate::parse("4GB/s").unwrap());
    let array = |goal: &Goal| {
        let fits = rank(&catalog, goal).unwrap().fits;
        let found = fits
            .into_iter()
            .find(|fit| fit.evaluation.name.contains("ONTAP"));
        found.map(|fit| fit.evaluation)
    };
    let without = array(&goal).unwrap();
    assert!(without.cost.without.iter().any(|it| it.contains("--host")));
    goal.host = Some("m5dn.8xlarge".to_owned());
    assert!(array(&goal).is_none(), "4 GB/s are more than 25 Gb/s");
    goal.read_mb_s = Some(Rate::parse("3GB/s").unwrap());
    let it = array(&goal).unwrap();
    assert!(it.name.contains("host m5dn.8xlarge"), "{}", it.name);
    assert!(it.performance.seq_read.steady_mb_s.mb_s() <= 3125.0 + 1e-6);
    let host = it
        .cost
        .items
        .iter()
        .find(|item| item.words.contains("m5dn.8xlarge"));
    assert!((host.unwrap().month_usd.0 - 2.176 * 730.0).abs() < 1e-6);
    assert!(violations(&catalog, &it.design).is_empty());
    goal.host = Some("m5dn.9xlarge".to_owned());
    let error = rank(&catalog, &goal).unwrap_err().to_string();
    assert!(error.contains("m5dn.8xlarge"), "{error}");
}

/// 10 TiB are 10,240 GiB: EFS in one zone at 0.16 USD, S3 at 0.023 USD.
#[test]
fn elastic_storage_is_there_to_compare() {
    let mut goal = goal("10TiB");
    let found = |goal: &Goal, name: &str| {
        let fits = ranked(goal).fits;
        fits.into_iter()
            .map(|fit| fit.evaluation)
            .find(|it| it.name.starts_with(name))
    };
    let efs = found(&goal, "Amazon EFS").unwrap();
    assert!(
        (efs.cost.month_usd.0 - 10_240.0 * 0.16).abs() < 1e-6,
        "{}",
        efs.cost.month_usd
    );
    // 50 MiB/s for each TiB stored, reads thrice that.
    let mib_s = |rate: Rate| rate.mib_s().round();
    assert_eq!(mib_s(efs.performance.seq_write.steady_mb_s), 500.0);
    assert_eq!(mib_s(efs.performance.seq_read.steady_mb_s), 1500.0);
    assert_eq!(efs.reliability.availability, Availability::Node);
    assert!(found(&goal, "Amazon S3").is_none(), "files are meant");
    goal.protocols = vec![Protocol::S3];
    let s3 = found(&goal, "Amazon S3").unwrap();
    assert!(
        (s3.cost.month_usd.0 - 10_240.0 * 0.023).abs() < 1e-6,
        "{}",
        s3.cost.month_usd
    );
    goal.protocols = vec![Protocol::Nfs];
    goal.availability = Availability::Zone;
    goal.write_mb_s = Some(Rate::from_mib_s(600.0));
    let regional = found(&goal, "Amazon EFS").unwrap();
    assert!(
        regional.name.contains("600 MiB/s provisioned"),
        "{}",
        regional.name
    );
    // 100 MiB/s are over what 10 TiB include.
    let month = 10_240.0 * 0.30 + 100.0 * 6.0;
    assert!(
        (regional.cost.month_usd.0 - month).abs() < 1e-6,
        "{}",
        regional.cost.month_usd
    );
    goal.clients = Some(1);
    let misses = ranked(&goal).misses;
    let miss = misses
        .iter()
        .find(|miss| miss.evaluation.name.starts_with("Amazon EFS"));
    assert_eq!(miss.unwrap().broken.goal, "clients");
}

/// Charts show what fits today, with the figures of the table, and no line without points.
#[test]
fn charts_agree_with_the_table() {
    let catalog = Catalog::embedded();
    for (capacity, include_planned) in [("100TiB", false), ("100TiB", true), ("10TiB", false)] {
        let mut goal = goal(capacity);
        goal.include_planned = include_planned;
        let report = cairn_plan::plan(&catalog, &goal).unwrap();
        let shown: Vec<_> = report
            .ranking
            .fits
            .iter()
            .map(|fit| &fit.evaluation)
            .collect();
        for chart in &report.charts {
            assert!(!chart.series.is_empty(), "{}", chart.id);
            for series in &chart.series {
                let drawn = series.y.windows(2).any(|it| it.iter().all(Option::is_some));
                assert!(
                    drawn || chart.id == "sensitivity",
                    "{}: {}",
                    chart.id,
                    series.name
                );
            }
        }
        let cost = report
            .charts
            .iter()
            .find(|it| it.id == "cost-by-capacity")
            .unwrap();
        for series in &cost.series {
            let it = shown
                .iter()
                .find(|it| cairn_plan::text::short_name(&it.design) == series.name)
                .unwrap();
            assert!(it.available || include_planned, "{}", it.name);
            let tib = goal.capacity_planned().tib();
            let at = cost.x.iter().position(|x| (x - tib).abs() < 1e-6).unwrap();
            assert_eq!(series.y[at], Some(it.cost.month_usd.0), "{}", it.name);
        }
        if let Some(nodes) = report
            .charts
            .iter()
            .find(|it| it.id == "throughput-by-nodes")
        {
            let it = shown
                .iter()
                .find(|it| matches!(it.design.shape, Shape::Cluster(_)))
                .unwrap();
            let Shape::Cluster(cluster) = &it.design.shape else {
                unreachable!("it was found as a cluster")
            };
            let at = nodes
                .x
                .iter()
                .position(|x| *x == f64::from(cluster.nodes))
                .unwrap();
            let read = it.performance.uncached().sustained().mb_s();
            assert_eq!(nodes.series[0].y[at], Some(read), "{}", it.name);
        }
    }
}

#[test]
fn random_work_goes_by_the_cost_of_an_operation() {
    let mut goal = goal("10TiB");
    goal.workload = Workload::Database;
    let ranking = ranked(&goal);
    let it = &ranking.fits[0].evaluation;
    assert!(
        it.performance.random_write.steady_iops > 1000.0,
        "{}",
        it.name
    );
    assert!(
        ranking.fits[0].why.contains("random operation"),
        "{}",
        ranking.fits[0].why
    );
}

/// (workload, what is asked for besides 10 TiB, what leads, what misses which goal)
#[test]
fn random_work_is_bounded_by_latency_hosts_and_cost() {
    for workload in [Workload::Random, Workload::Metadata, Workload::Database] {
        let mut goal = goal("10TiB");
        goal.workload = workload;
        let ranking = ranked(&goal);
        let least = ranking
            .fits
            .iter()
            .filter(|fit| fit.evaluation.available)
            .map(|fit| fit.evaluation.cost.month_usd.0)
            .fold(f64::INFINITY, f64::min);
        let first = &ranking.fits[0].evaluation;
        assert!(first.name.contains("gp3"), "{}", first.name);
        assert!(first.cost.month_usd.0 <= 2.0 * least, "{}", first.name);
        for fit in &ranking.fits {
            let name = &fit.evaluation.name;
            assert!(!name.contains("st1") && !name.contains("Lustre"), "{name}");
            assert!(!name.contains("SAN array"), "{name}");
        }
        let missed = |name: &str| {
            let miss = ranking
                .misses
                .iter()
                .find(|miss| miss.evaluation.name.contains(name));
            miss.map(|miss| miss.broken.goal)
        };
        assert_eq!(missed("ONTAP"), Some("clients"));
        assert_eq!(missed("Lustre"), Some("latency"));
    }
    // What nobody states a figure for does not pass a latency that was asked for.
    let mut goal = goal("5TiB");
    goal.survive = 0;
    goal.latency_ms = Some(0.9);
    let names: Vec<String> = ranked(&goal)
        .fits
        .into_iter()
        .map(|fit| fit.evaluation.name)
        .collect();
    assert!(names.is_empty(), "{names:?}");
    goal.latency_ms = Some(2.0);
    goal.write_iops = Some(5_000);
    goal.survive = 1;
    let ranking = ranked(&goal);
    for fit in &ranking.fits {
        assert!(fit.evaluation.performance.random_write.steady_iops >= 5_000.0);
    }
    assert!(!ranking.fits.is_empty());
}

#[test]
fn what_is_lost_and_how_long_it_is_out_is_said() {
    let mut goal = goal("10TiB");
    let first = ranked(&goal).fits.remove(0);
    assert!(
        first.evaluation.survives.value >= 1,
        "{}",
        first.evaluation.name
    );
    goal.survive = 0;
    goal.protocols = vec![Protocol::Nfs];
    let ranking = ranked(&goal);
    for fit in &ranking.fits {
        let it = &fit.evaluation.reliability;
        assert!(!it.loss_words.is_empty() && !it.outage_words.is_empty());
    }
    let store = ranking
        .fits
        .iter()
        .find(|fit| fit.evaluation.name.contains("instance-store"))
        .unwrap();
    let words = &store.evaluation.reliability.loss_words;
    assert!(
        words.contains("all is lost") && words.contains("stops"),
        "{words}"
    );
    goal.survive = 1;
    goal.availability = Availability::Node;
    goal.protocols = Vec::new();
    for fit in ranked(&goal).fits {
        let it = &fit.evaluation;
        assert!(
            it.reliability.availability >= Availability::Node,
            "{}",
            it.name
        );
    }
}

#[test]
fn gaps_in_prices_leave_designs_out_and_are_named() {
    let mut catalog = Catalog::embedded();
    let list = PriceList::parse(
        "t",
        "version = 1\n[[region]]\nname = \"us-east-1\"\ndate = \"2026-01-01\"\nsource = \"t\"\n\
         [region.ec2_usd_per_hour]\n\"d2.8xlarge\" = 5.52\n[region.ebs.st1]\nusd_per_unit_month = 0.045\n",
    )
    .unwrap();
    catalog.prices = catalog.prices.with(list);
    let ranking = rank(&catalog, &goal("10TiB")).unwrap();
    assert!(
        ranking
            .unpriced
            .iter()
            .any(|gap| gap.contains("m5dn.12xlarge")),
        "{:?}",
        ranking.unpriced
    );
    assert!(
        ranking
            .fits
            .iter()
            .all(|fit| fit.evaluation.name.contains("d2.8xlarge"))
    );
}

#[test]
fn ten_thousand_candidates_take_less_than_a_second() {
    let catalog = Catalog::embedded();
    let goal = goal("200TiB");
    let designs: Vec<Design> = candidates(&catalog, &goal)
        .into_iter()
        .take(10_000)
        .collect();
    assert_eq!(designs.len(), 10_000);
    // Other tests run beside it, and the machine may do something else meanwhile: the best of some runs says what it takes.
    const ROUNDS_MAX: usize = 30;
    const ENOUGH: Duration = Duration::from_secs(1);
    let mut took = Duration::MAX;
    for _ in 0..ROUNDS_MAX {
        let start = Instant::now();
        let ranking = rank_designs(&catalog, &goal, &designs).unwrap();
        took = took.min(start.elapsed());
        assert!(ranking.candidates > 0);
        if took < ENOUGH {
            break;
        }
    }
    println!("10,000 candidates ranked in {took:?}");
    assert!(took < ENOUGH, "{took:?}");
}

#[test]
fn a_report_is_json_of_the_documented_schema_and_can_be_read_back_as_a_design() {
    let catalog = Catalog::embedded();
    let mut goal = goal("50TiB");
    goal.survive = 2;
    let report: PlanReport = cairn_plan::plan(&catalog, &goal).unwrap();
    let text = serde_json::to_string(&report).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "cairn-plan/1");
    assert_eq!(json["goal"]["capacity_bytes"], 50_u64 << 40);
    assert_eq!(json["prices"]["region"], "us-east-1");
    for (rank, fit) in report.ranking.fits.iter().enumerate() {
        let design = check::design_of_rank("plan.json", &text, rank + 1).unwrap();
        let again = evaluate(&catalog, &design).unwrap();
        let close = |left: f64, right: f64| (left - right).abs() <= right.abs() * 1e-6;
        assert!(
            close(again.cost.month_usd.0, fit.evaluation.cost.month_usd.0),
            "{}",
            again.name
        );
    }
    let ids: Vec<&str> = report.charts.iter().map(|chart| chart.id).collect();
    assert_eq!(&ids[..2], ["throughput-by-nodes", "cost-by-capacity"]);
    assert!(ids.contains(&"sensitivity"));
    for chart in &report.charts {
        for series in &chart.series {
            assert_eq!(
                series.y.len(),
                chart.x.len(),
                "{}: {}",
                chart.id,
                series.name
            );
        }
    }
}

#[test]
fn configurations_are_checked_and_the_nearest_that_passes_is_named() {
    let catalog = Catalog::embedded();
    let config = |nodes: u32, volumes: u32, tib: &str, instance: &str| {
        format!(
            "product = \"vendor\"\nregion = \"us-east-1\"\n[shape]\nfamily = \"cluster\"\nnodes = {nodes}\n\
             instance = \"{instance}\"\nstorage = {{ storage = \"ebs\", volumes = {volumes}, volume = \
             {{ volume_type = \"gp3\", size_bytes = \"{tib}\" }} }}\nprotection = {{ data = {}, parity = 2 }}\n",
            nodes - 2
        )
    };
    let cases = [
        ("passes", config(6, 12, "14.2TiB", "m5dn.12xlarge"), vec![]),
        (
            "too large",
            config(6, 12, "15TiB", "m5dn.12xlarge"),
            vec!["cluster.ssd.size", "cluster.ssd.raw"],
        ),
        (
            "count",
            config(6, 11, "4TiB", "m5dn.12xlarge"),
            vec!["cluster.ssd.volumes"],
        ),
        (
            "nodes",
            config(7, 12, "4TiB", "m5dn.12xlarge"),
            vec!["cluster.nodes"],
        ),
        (
            "instance",
            config(6, 12, "4TiB", "m5.12xlarge"),
            vec!["cluster.instance"],
        ),
    ];
    for (name, text, wanted) in cases {
        let config = check::parse("t.toml", &text).unwrap();
        let checked = check::check(&catalog, &config);
        let broken: Vec<&str> = checked
            .violations
            .iter()
            .map(|it| it.rule.as_str())
            .collect();
        assert_eq!(broken, wanted, "{name}");
        assert_eq!(checked.nearest.is_some(), !wanted.is_empty(), "{name}");
        if let Some(nearest) = &checked.nearest {
            assert!(violations(&catalog, nearest).is_empty(), "{name}");
        }
    }
    // Of this level only some have a price; one without is no advice.
    let level = "product = \"vendor\"\nregion = \"us-east-1\"\n[shape]\nfamily = \"parallel-fs\"\nkind = \"lustre\"\n\
                 level = \"persistent-13\"\ncapacity_bytes = \"12TiB\"\nssd_read_cache = true\n";
    let config = check::parse("t.toml", level).unwrap();
    let nearest = check::check(&catalog, &config).nearest.unwrap();
    assert!(evaluate(&catalog, &nearest).is_ok(), "{nearest:?}");
    let nodes = "product = \"vendor\"\nregion = \"us-east-1\"\n".to_owned()
        + &["12xlarge", "12xlarge", "16xlarge", "12xlarge"]
            .map(|size| {
                format!(
                    "[[node]]\ninstance = \"m5dn.{size}\"\nstorage = \"ebs\"\nvolumes = 5\n\
                     volume = {{ volume_type = \"gp3\", size_bytes = \"2TiB\" }}\n"
                )
            })
            .concat();
    let checked = check::check(&catalog, &check::parse("t.toml", &nodes).unwrap());
    assert_eq!(checked.violations.len(), 1);
    assert!(
        checked.violations[0].words.contains("node 3 differs"),
        "{}",
        checked.violations[0].words
    );
    for text in [
        "",
        "{",
        "product = 3",
        "product = \"vendor\"\nregion = \"x\"\n[shape]\nfamily = \"boat\"\n",
    ] {
        assert!(check::parse("t.toml", text).is_err(), "{text}");
    }
}

#[test]
fn what_if_changes_one_thing() {
    let catalog = Catalog::embedded();
    let base = paper_cluster("us-east-1");
    let Shape::Cluster(of_base) = &base.shape else {
        unreachable!("the paper's is a cluster")
    };
    assert_eq!((of_base.nodes, of_base.protection.data), (6, 4));
    let cases = [
        ("a node less", Change::Nodes(-1), "3+2"),
        ("st1 for gp3", Change::VolumeType("st1".to_owned()), "st1"),
        (
            "larger instance",
            Change::Instance("m5dn.24xlarge".to_owned()),
            "m5dn.24xlarge",
        ),
        (
            "larger volumes",
            Change::VolumeSize(Bytes::from_tib(4.0)),
            "4 TiB",
        ),
        ("faster volumes", Change::VolumeMibS(300), "300 MiB/s"),
        ("fewer volumes", Change::Volumes(6), "6 x gp3"),
    ];
    for (name, change, want) in cases {
        let comparison = whatif(&catalog, &base, &[change]).unwrap();
        assert!(
            comparison.after.name.contains(want),
            "{name}: {}",
            comparison.after.name
        );
        assert_ne!(comparison.before.design, comparison.after.design, "{name}");
    }
    let twice = whatif(
        &catalog,
        &base,
        &[Change::Instance("m5dn.24xlarge".to_owned())],
    )
    .unwrap();
    let write = |it: &cairn_plan::report::Evaluation| it.performance.seq_write.steady_mb_s.mb_s();
    // 12 x 145 MiB/s a node are the limit then, no longer the instance.
    assert!(write(&twice.after) > write(&twice.before) * 1.2);
    assert_eq!(twice.after.performance.seq_write.bottleneck.name, "volumes");
    let errors = [
        whatif(&catalog, &base, &[Change::Nodes(-6)])
            .unwrap_err()
            .to_string(),
        whatif(
            &catalog,
            &base,
            &[Change::Instance("m5dn.13xlarge".to_owned())],
        )
        .unwrap_err()
        .to_string(),
        whatif(&catalog, &base, &[Change::Level("extreme".to_owned())])
            .unwrap_err()
            .to_string(),
    ];
    for (error, want) in errors
        .iter()
        .zip(["leave none", "m5dn.12xlarge", "service level"])
    {
        assert!(error.contains(want), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    /// More of anything asked for never costs less.
    #[test]
    fn asking_for_more_never_costs_less(tib in 1u32..400, more in 1u32..400, survive in 0u32..3) {
        let catalog = Catalog::embedded();
        let cost = |tib: u32| {
            let mut goal = goal(&format!("{tib}TiB"));
            goal.survive = survive;
            goal.include_planned = true;
            rank(&catalog, &goal).unwrap().fits.first().map(|fit| fit.evaluation.cost.month_usd.0)
        };
        if let (Some(less), Some(more)) = (cost(tib), cost(tib + more)) {
            // Steps of sizes differ between goals: a design made for the larger one may fit the smaller
            // one better than those made for it, but by no more than a step.
            prop_assert!(more >= less * 0.8, "{less} for {tib}, {more}");
        }
    }
}

/// Evaluated figures are finite, and within their limits.
#[test]
fn figures_are_finite_and_within_their_limits() {
    /// Every so many of the candidates: all families come up, and it takes no time.
    const STEP: usize = 37;
    let catalog = Catalog::embedded();
    let designs = candidates(&catalog, &goal("100TiB"));
    for design in designs.iter().step_by(STEP) {
        let Ok(it) = evaluate(&catalog, design) else {
            continue;
        };
        let performance = &it.performance;
        for rate in [&performance.seq_read, &performance.seq_write] {
            assert!(rate.steady_mb_s.mb_s().is_finite() && rate.steady_mb_s.mb_s() > 0.0);
            assert!(rate.burst_mb_s >= rate.steady_mb_s, "{}", it.name);
            for limit in &rate.bottleneck.limits {
                assert!(
                    rate.steady_mb_s.mb_s() <= limit.value * 1.000_001,
                    "{}",
                    it.name
                );
                assert!(!limit.words.is_empty(), "{}", it.name);
            }
        }
        assert!(it.capacity.usable_bytes.value <= it.capacity.raw_bytes.value);
        assert!(it.cost.month_usd.0.is_finite() && it.cost.month_usd.0 > 0.0);
        if let Shape::NfsServer(server) = &design.shape
            && matches!(server.storage, Storage::InstanceStore { .. })
        {
            assert_eq!(it.survives.value, 0, "{}", it.name);
        }
    }
}
