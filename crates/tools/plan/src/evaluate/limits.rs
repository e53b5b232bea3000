//! Limits of a figure, and the lowest of them: the bottleneck.

use crate::report::{Bottleneck, Iops, Known, Limit, Throughput};
use crate::rules::RuleId;
use crate::units::{Rate, number};

/// How much of an evaluation is made: thousands are only compared, and need no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Figures,
    Words,
}

impl Detail {
    /// These words, or none.
    pub fn words(self, words: impl FnOnce() -> String) -> String {
        match self {
            Self::Figures => String::new(),
            Self::Words => words(),
        }
    }
}

/// All limits of one figure; rates in MB/s, random work in operations per second.
#[derive(Clone, Debug)]
pub struct Limits(Vec<Limit>, Detail);

impl Limits {
    pub fn new(detail: Detail) -> Self {
        Self(Vec::with_capacity(4), detail)
    }

    pub fn rate(&mut self, name: &str, rate: Rate, rule: RuleId, words: impl FnOnce() -> String) {
        self.iops(name, rate.mb_s(), rule, words);
    }

    pub fn iops(&mut self, name: &str, value: f64, rule: RuleId, words: impl FnOnce() -> String) {
        let [least, most] = rule.spread();
        let range = [value * least, value * most];
        self.known(name, value, range, rule.known(), rule, words);
    }

    /// A limit whose range and provenance are not those of its rule.
    pub fn known(
        &mut self,
        name: &str,
        value: f64,
        range: [f64; 2],
        known: Known,
        rule: RuleId,
        words: impl FnOnce() -> String,
    ) {
        let (name, words) = (self.1.words(|| name.to_owned()), self.1.words(words));
        self.0.push(Limit {
            name,
            value,
            range,
            known,
            words,
            rule,
        });
    }

    /// All limits multiplied by a factor: more servers, parity.
    pub fn times(mut self, factor: f64, why: impl Fn() -> String) -> Self {
        if factor != 1.0 {
            for limit in &mut self.0 {
                limit.value *= factor;
                limit.range = limit.range.map(|end| end * factor);
                limit.known = match limit.known {
                    // A figure that was measured once is not known of so many.
                    Known::Measured => Known::Extrapolated,
                    known => known.max(Known::Derived),
                };
                if self.1 == Detail::Words {
                    limit.words = format!("{} {}", limit.words, why());
                }
            }
        }
        self
    }

    pub fn with(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn lowest(&self) -> f64 {
        self.0
            .iter()
            .map(|limit| limit.value)
            .fold(f64::INFINITY, f64::min)
    }

    /// Least and most of the lowest limit.
    fn range(&self) -> [f64; 2] {
        [0, 1].map(|end| {
            self.0
                .iter()
                .map(|limit| limit.range[end])
                .fold(f64::INFINITY, f64::min)
        })
    }

    /// As badly as the worst known of the limits that may be the lowest.
    fn worst_known(&self, also: &[RuleId]) -> Known {
        let [_, most] = self.range();
        self.0
            .iter()
            .filter(|limit| limit.range[0] < most * (1.0 + 1e-9))
            .map(|limit| limit.known)
            .chain(also.iter().map(|rule| rule.known()))
            .max()
            .unwrap_or(Known::Extrapolated)
    }

    /// `also`: rules that apply to all the limits, such as parity.
    fn bottleneck(mut self, unit: &str, also: &[RuleId]) -> Bottleneck {
        self.0
            .sort_by(|left, right| left.value.total_cmp(&right.value));
        let Some(first) = self.0.first() else {
            return Bottleneck {
                name: "nothing known".to_owned(),
                words: String::new(),
                rules: Vec::new(),
                limits: Vec::new(),
            };
        };
        let mut rules = vec![first.rule];
        rules.extend(also.iter().filter(|rule| **rule != first.rule));
        if self.1 == Detail::Figures {
            return Bottleneck {
                name: String::new(),
                words: String::new(),
                rules,
                limits: Vec::new(),
            };
        }
        let next = self.0.get(1).map(|next| {
            format!(
                "; next is {} with {} {unit}",
                next.name,
                number(next.value.round())
            )
        });
        Bottleneck {
            name: first.name.clone(),
            words: format!(
                "{} = {} {unit}{}",
                first.words,
                number(first.value.round()),
                next.unwrap_or_default()
            ),
            rules,
            limits: self.0,
        }
    }
}

pub fn throughput(steady: Limits, burst: Limits, also: &[RuleId]) -> Throughput {
    Throughput {
        steady_mb_s: Rate::from_mb_s(steady.lowest()),
        burst_mb_s: Rate::from_mb_s(burst.lowest().max(steady.lowest())),
        known: steady.worst_known(also),
        range_mb_s: steady.range().map(Rate::from_mb_s),
        measured_mb_s: None,
        bottleneck: steady.bottleneck("MB/s", also),
        bottleneck_burst: burst.bottleneck("MB/s", also),
    }
}

pub fn iops(steady: Limits, burst: Limits, also: &[RuleId]) -> Iops {
    Iops {
        steady_iops: steady.lowest().floor(),
        burst_iops: burst.lowest().max(steady.lowest()).floor(),
        known: steady.worst_known(also),
        range_iops: steady.range().map(f64::floor),
        bottleneck: steady.bottleneck("IOPS", also),
    }
}
