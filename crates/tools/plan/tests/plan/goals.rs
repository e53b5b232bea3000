//! The corpus of goals (`corpus/goals.toml`): each gets the advice that a buyer needs; and what holds of
//! every advice, whatever the goal.

use std::collections::{BTreeMap, BTreeSet};

use cairn_plan::catalog::Catalog;
use cairn_plan::check::violations;
use cairn_plan::goal::{Goal, SURVIVE_DEFAULT, Workload};
use cairn_plan::rank::{namespaces, rank};
use cairn_plan::reliability::Availability;
use cairn_plan::report::{Protocol, Ranking};
use cairn_plan::units::{Bytes, Rate, Usd, parse_growth, parse_latency_ms, parse_share};
use serde::Deserialize;

/// With fewer the corpus was cut.
const CASE_COUNT_MIN: usize = 60;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    group: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    source: String,
    date: String,
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    goal: Asked,
    /// Words of the first design's name; empty: nothing fits.
    first: String,
    /// Words that no design that fits has in its name; of `a .. b` not both.
    #[serde(default)]
    never: Vec<String>,
    /// Words of a design's name, and the goal that it misses most.
    #[serde(default)]
    misses: BTreeMap<String, String>,
    /// When nothing fits: the goals that are named.
    #[serde(default)]
    collides: Vec<String>,
}

/// A goal as flags.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    capacity: String,
    read: Option<String>,
    write: Option<String>,
    iops: Option<u64>,
    write_iops: Option<u64>,
    latency: Option<String>,
    clients: Option<u32>,
    #[serde(default)]
    protocols: Vec<Protocol>,
    survive: Option<u32>,
    namespaces: Option<u32>,
    availability: Option<Availability>,
    budget: Option<String>,
    hot: Option<String>,
    growth: Option<String>,
    years: Option<u32>,
    workload: Option<String>,
    #[serde(default)]
    include_planned: bool,
}

impl Asked {
    fn goal(&self) -> Goal {
        let rate = |text: &Option<String>| text.as_ref().map(|it| Rate::parse(it).unwrap());
        let workload = self.workload.as_deref().unwrap_or("streaming");
        Goal {
            read_mb_s: rate(&self.read),
            write_mb_s: rate(&self.write),
            iops: self.iops,
            write_iops: self.write_iops,
            latency_ms: self
                .latency
                .as_ref()
                .map(|it| parse_latency_ms(it).unwrap()),
            clients: self.clients,
            protocols: self.protocols.clone(),
            survive: self.survive.unwrap_or(SURVIVE_DEFAULT),
            namespaces: self.namespaces.unwrap_or(1),
            availability: self.availability.unwrap_or_default(),
            budget_month_usd: self
                .budget
                .as_ref()
                .map(|it| Usd::parse_per_month(it).unwrap()),
            hot_share: self.hot.as_ref().map(|it| parse_share(it).unwrap()),
            growth_per_year: self
                .growth
                .as_ref()
                .map_or(0.0, |it| parse_growth(it).unwrap()),
            years: self.years.unwrap_or(0),
            workload: Workload::ALL
                .iter()
                .find(|(name, _)| *name == workload)
                .unwrap()
                .1,
            include_planned: self.include_planned,
            ..Goal::capacity(Bytes::parse(&self.capacity).unwrap(), "us-east-1")
        }
    }
}

#[test]
fn every_goal_gets_its_verdict() {
    let corpus: Corpus = toml::from_str(include_str!("../../corpus/goals.toml")).unwrap();
    let catalog = Catalog::embedded();
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for group in &corpus.group {
        assert!(!group.source.is_empty() && group.date.len() >= 4);
        for case in &group.case {
            assert!(names.insert(&case.name), "{} twice", case.name);
            let goal = case.goal.goal();
            let ranking = rank(&catalog, &goal).unwrap();
            let mut faults = verdict(case, &ranking);
            faults.extend(below(&catalog, &goal, &ranking));
            wrong.extend(faults.iter().map(|why| format!("{}: {why}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    assert!(names.len() >= CASE_COUNT_MIN, "{}", names.len());
}

/// Why the advice is wrong; empty: it is the expected one.
fn verdict(case: &Case, ranking: &Ranking) -> Vec<String> {
    let mut wrong = Vec::new();
    let first = ranking.fits.first().map(|fit| fit.evaluation.name.as_str());
    match (first, case.first.as_str()) {
        (None, "") => {}
        (None, want) => {
            let words = ranking.collision.as_ref().map(|it| it.words.clone());
            wrong.push(format!(
                "nothing fits, not {want}: {}",
                words.unwrap_or_default()
            ));
        }
        (Some(name), "") => wrong.push(format!("{name} fits, not nothing")),
        (Some(name), want) if !name.contains(want) => {
            wrong.push(format!("first is {name}, not {want}"));
        }
        _ => {}
    }
    for word in &case.never {
        for fit in &ranking.fits {
            if word
                .split(" .. ")
                .all(|part| fit.evaluation.name.contains(part))
            {
                wrong.push(format!("{} fits", fit.evaluation.name));
            }
        }
    }
    for (words, goal) in &case.misses {
        let mut missed = ranking
            .misses
            .iter()
            .filter(|miss| miss.evaluation.name.contains(words.as_str()))
            .map(|miss| miss.broken.goal);
        if !missed.any(|it| it == goal) {
            wrong.push(format!("{words} does not miss {goal}"));
        }
    }
    let collision = ranking.collision.as_ref();
    let collides: Vec<&str> = collision.map_or(Vec::new(), |it| it.goals.clone());
    if collides != case.collides {
        wrong.push(format!("collides: {collides:?}, not {:?}", case.collides));
    }
    wrong
}

/// What holds of every advice: nothing below its goal, nothing that `check` refuses, nothing withdrawn, and
/// each with its loss and its outage in words.
fn below(catalog: &Catalog, goal: &Goal, ranking: &Ranking) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut last = (false, 0.0);
    for fit in &ranking.fits {
        let it = &fit.evaluation;
        let performance = &it.performance;
        let mut holds = |what: &str, holds: bool| {
            if !holds {
                wrong.push(format!("{} is below its {what}", it.name));
            }
        };
        let slack = 1.0 - 1e-9;
        let capacity = it.capacity.usable_bytes.value.get();
        holds(
            "capacity",
            capacity >= goal.capacity_planned().get() * slack,
        );
        let write = performance.seq_write.steady_mb_s.mb_s();
        holds(
            "write",
            write >= goal.write_mb_s.unwrap_or_default().mb_s() * slack,
        );
        let cached = performance
            .cached_read_mb_s
            .as_ref()
            .filter(|_| goal.hot_share.is_some());
        let read = performance
            .seq_read
            .steady_mb_s
            .mb_s()
            .max(cached.map_or(0.0, |cached| cached.value.mb_s()));
        holds(
            "read",
            read >= goal.read_mb_s.unwrap_or_default().mb_s() * slack,
        );
        let iops = |asked: Option<u64>| asked.unwrap_or(0) as f64 * slack;
        holds(
            "iops",
            performance.random_read.steady_iops >= iops(goal.iops),
        );
        holds(
            "write-iops",
            performance.random_write.steady_iops >= iops(goal.write_iops),
        );
        holds("survive", it.survives.value >= goal.survive);
        holds(
            "availability",
            it.reliability.availability >= goal.availability,
        );
        holds("namespaces", namespaces(&it.design) <= goal.namespaces);
        let budget = goal.budget_month_usd.map_or(f64::INFINITY, |usd| usd.0);
        holds("budget", it.cost.month_usd.0 * slack <= budget);
        holds("words", !it.reliability.loss_words.is_empty());
        holds("words", !it.reliability.outage_words.is_empty());
        holds("sale", !it.name.contains("Cloud Volumes Service"));
        let refused = violations(catalog, &it.design);
        if !refused.is_empty() {
            wrong.push(format!("{} is refused: {}", it.name, refused[0].words));
        }
        let dearer =
            matches!(goal.workload, Workload::Streaming | Workload::Archive) || goal.iops.is_some();
        let next = (!(it.available || goal.include_planned), it.cost.month_usd.0);
        if dearer && next < last {
            wrong.push(format!("{} ranks behind what is dearer", it.name));
        }
        last = next;
    }
    wrong
}
