//! The published figures of five systems.
//!
//! Owns: `data/published.toml`. Must not know: results.

use std::sync::LazyLock;

use serde::Deserialize;

use super::view::in_unit;
use crate::plan::{Direction, Order};

static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
    // The text is part of the program; a test reads it.
    toml::from_str(include_str!("../../data/published.toml"))
        .expect("data/published.toml is well-formed")
});

/// All published figures.
pub(super) fn published() -> &'static Published {
    &PUBLISHED
}

/// A published figure, with what must be said beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedLine {
    /// `sequential read`, as figures of the four corners are called.
    pub title: String,
    pub value: f64,
    /// The value is a lower limit.
    pub at_least: bool,
    /// `MB/s` or `ops/s`.
    pub unit: &'static str,
    pub system: &'static str,
    pub hardware: &'static str,
    pub source: &'static str,
    pub date: &'static str,
}

/// All published figures, those of one workload after the other, the highest first.
pub fn published_lines() -> Vec<PublishedLine> {
    let lines = published().figure.iter().filter_map(|figure| {
        let mut papers = published().paper.iter();
        let paper = papers.find(|paper| paper.id == figure.paper)?;
        let unit = figure.workload.unit();
        Some(PublishedLine {
            title: figure.workload.title().to_lowercase(),
            value: in_unit(figure.value, &figure.unit, unit)?,
            at_least: figure.at_least,
            unit,
            system: &paper.system,
            hardware: &figure.hardware,
            source: &paper.title,
            date: &paper.date,
        })
    });
    let mut lines: Vec<PublishedLine> = lines.collect();
    lines.sort_by(|one, other| {
        let by_title = one.title.cmp(&other.title);
        by_title.then(other.value.total_cmp(&one.value))
    });
    lines
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    pub paper: Vec<Paper>,
    pub figure: Vec<PublishedFigure>,
    pub burst: Vec<PublishedBurst>,
    pub cache_gain: CacheGain,
}

/// What a volume delivers while it has credit, and without.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedBurst {
    /// `read` or `write`, as curves are called.
    pub direction: String,
    pub paper: String,
    pub hardware: String,
    pub expected_burst_mb_s: f64,
    pub expected_baseline_mb_s: f64,
    pub measured_burst_mb_s: f64,
    pub measured_baseline_mb_s: f64,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test that compares"))]
    pub fact: String,
}

/// Reads of a volume with a read cache and without.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheGain {
    pub paper: String,
    pub hardware: String,
    pub tib: f64,
    pub without_baseline_mb_s_per_tib: f64,
    pub without_burst_mb_s_per_tib: f64,
    pub with_baseline_mb_s: f64,
    pub with_burst_mb_s: f64,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test that compares"))]
    pub fact_level: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test that compares"))]
    pub fact: String,
}

impl CacheGain {
    /// How many times as fast reads are with the cache: at the baseline, in a burst.
    pub fn times(&self) -> [f64; 2] {
        [
            self.with_baseline_mb_s / (self.tib * self.without_baseline_mb_s_per_tib),
            self.with_burst_mb_s / (self.tib * self.without_burst_mb_s_per_tib),
        ]
    }
}

/// What a paper is called beside its figures.
pub(super) fn source(id: &str) -> String {
    let paper = published().paper.iter().find(|paper| paper.id == id);
    paper.map_or_else(String::new, |paper| {
        format!("{}: {}, {}", paper.system, paper.title, paper.date)
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paper {
    pub id: String,
    pub system: String,
    pub title: String,
    pub date: String,
    pub method: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedFigure {
    pub workload: Workload,
    pub value: f64,
    /// The value is a lower limit.
    #[serde(default)]
    pub at_least: bool,
    pub unit: String,
    pub paper: String,
    pub hardware: String,
    /// Where the collection of facts has it, as a JSON pointer.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test that compares"))]
    pub fact: String,
}

/// What papers publish figures of.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Workload {
    SequentialRead,
    SequentialWrite,
    RandomRead,
    RandomWrite,
}

impl Workload {
    pub const ALL: [Self; 4] = [
        Self::SequentialRead,
        Self::SequentialWrite,
        Self::RandomRead,
        Self::RandomWrite,
    ];

    pub fn of(order: Order, direction: Direction) -> Self {
        match (order, direction) {
            (Order::Sequential, Direction::Read) => Self::SequentialRead,
            (Order::Sequential, Direction::Write) => Self::SequentialWrite,
            (Order::Random, Direction::Read) => Self::RandomRead,
            (Order::Random, Direction::Write) => Self::RandomWrite,
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::SequentialRead => "Sequential read",
            Self::SequentialWrite => "Sequential write",
            Self::RandomRead => "Random read",
            Self::RandomWrite => "Random write",
        }
    }

    /// What it is compared by.
    pub fn unit(self) -> &'static str {
        match self {
            Self::SequentialRead | Self::SequentialWrite => "MB/s",
            Self::RandomRead | Self::RandomWrite => "ops/s",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::path::Path;

    use super::*;
    use crate::report::view::in_unit;

    #[test]
    fn all_figures_are_lines_the_highest_of_each_workload_first() {
        let lines = published_lines();
        assert_eq!(lines.len(), published().figure.len());
        for two in lines.windows(2) {
            let [one, other] = two else { continue };
            assert!(
                one.title < other.title || one.value >= other.value,
                "{two:?}"
            );
        }
    }

    #[test]
    fn every_figure_has_its_paper_and_a_unit_that_compares() {
        let published = published();
        for figure in &published.figure {
            assert!(
                published.paper.iter().any(|paper| paper.id == figure.paper),
                "{figure:?}"
            );
            assert!(
                in_unit(figure.value, &figure.unit, figure.workload.unit()).is_some(),
                "{figure:?}"
            );
        }
        for paper in &published.paper {
            assert!(
                published
                    .figure
                    .iter()
                    .any(|figure| figure.paper == paper.id),
                "{}",
                paper.id
            );
        }
    }

    /// The facts are beside the repository, not in it, where it is built for review.
    #[test]
    fn figures_are_those_of_the_facts() {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
        let path = Path::new(&package).join("../../../../shared/facts/cloud-storage.json");
        let Ok(text) = std::fs::read_to_string(&path) else {
            // Past the harness, which keeps what a passing test prints.
            let _ = writeln!(
                io::stderr(),
                "published figures not compared: nothing at {}",
                path.display()
            );
            return;
        };
        let facts: serde_json::Value = serde_json::from_str(&text).unwrap();
        for figure in &published().figure {
            let value = match facts.pointer(&figure.fact) {
                Some(serde_json::Value::Number(number)) => number.as_f64(),
                // "over 1,000,000 below 1 ms average"
                Some(serde_json::Value::String(text)) if figure.at_least => text
                    .strip_prefix("over ")
                    .and_then(|text| text.split(' ').next())
                    .and_then(|number| number.replace(',', "").parse().ok()),
                _ => None,
            };
            assert_eq!(value, Some(figure.value), "{figure:?}");
        }
        let fact = |base: &str, field: &str| {
            let value = facts.pointer(&format!("{base}/{field}"));
            value.and_then(serde_json::Value::as_f64)
        };
        for burst in &published().burst {
            for (kind, of, value) in [
                ("expected", "burst", burst.expected_burst_mb_s),
                ("expected", "baseline", burst.expected_baseline_mb_s),
                ("measured", "burst", burst.measured_burst_mb_s),
                ("measured", "baseline", burst.measured_baseline_mb_s),
            ] {
                let field = format!("{kind}/{}_{of}_mb_s", burst.direction);
                assert_eq!(fact(&burst.fact, &field), Some(value), "{field}");
            }
            assert!(!source(&burst.paper).is_empty(), "{burst:?}");
        }
        let gain = &published().cache_gain;
        for (base, field, value) in [
            (&gain.fact, "capacity_tib", gain.tib),
            (
                &gain.fact,
                "expected/read_baseline_mb_s",
                gain.with_baseline_mb_s,
            ),
            (&gain.fact, "expected/read_burst_mb_s", gain.with_burst_mb_s),
            (&gain.fact_level, "4", gain.without_baseline_mb_s_per_tib),
            (&gain.fact_level, "5", gain.without_burst_mb_s_per_tib),
        ] {
            assert_eq!(fact(base, field), Some(value), "{field}");
        }
        println!(
            "compared {} figures with {}",
            published().figure.len(),
            path.display()
        );
    }
}
