//! Numbers of all nodes of a cluster, in one.
//!
//! Owns: how the values of several nodes become one. Must not know: how nodes are asked, what a number is about.

use std::collections::BTreeMap;

use crate::live::{HistoryAcross, HistorySeries, HistoryView, LiveNumber};

/// Numbers of single disks and volumes in one answer about now: it must not grow with the number of nodes.
const OF_ONE_MAX: usize = 512;

impl HistoryAcross {
    /// `None` of none. The values are in the order of the nodes, that of the one that was asked first.
    fn one_of(self, values: &[f64]) -> Option<f64> {
        let first = *values.first()?;
        Some(match self {
            Self::Sum => values.iter().sum(),
            Self::Greatest => values.iter().copied().fold(first, f64::max),
            Self::Mean => values.iter().sum::<f64>() / values.len() as f64,
            Self::Any => first,
        })
    }
}

/// The numbers of several nodes in one list: in the order of the first node, and then what only others have. Of single disks and
/// volumes the first 512.
pub(crate) fn numbers<'a>(nodes: impl IntoIterator<Item = &'a [LiveNumber]>) -> Vec<LiveNumber> {
    let mut order: Vec<&LiveNumber> = Vec::new();
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut of_one_count = 0;
    for number in nodes.into_iter().flatten() {
        if let Some(known) = values.get_mut(number.name.as_str()) {
            known.push(number.value);
            continue;
        }
        if number.name.contains(':') {
            of_one_count += 1;
            if of_one_count > OF_ONE_MAX {
                continue;
            }
        }
        order.push(number);
        values.insert(&number.name, vec![number.value]);
    }
    let in_one = order.into_iter().filter_map(|number| {
        let values = values.get(number.name.as_str())?;
        Some(LiveNumber {
            value: number.across.one_of(values)?,
            ..number.clone()
        })
    });
    in_one.collect()
}

/// The history of several nodes in one, in the steps of the first.
pub(crate) fn history(own: HistoryView, others: &[HistoryView]) -> HistoryView {
    let series = own.series.iter().map(|of_own| {
        let mut of_nodes = vec![(&own, of_own)];
        of_nodes.extend(others.iter().filter_map(|view| {
            let mut series = view.series.iter();
            Some((view, series.find(|it| it.name == of_own.name)?))
        }));
        // A node that never had a series does not know how it is summed up.
        let mut knowing = of_nodes.iter().map(|(_, series)| *series);
        let knows = |series: &&HistorySeries| series.values.iter().any(Option::is_some);
        let model = knowing.find(knows).unwrap_or(of_own);
        let values = (0..own.steps).map(|step| {
            let at = own.time_of(step);
            let known: Vec<f64> = of_nodes
                .iter()
                .filter_map(|(view, series)| view.value_at(series, at))
                .collect();
            model.across.one_of(&known)
        });
        HistorySeries {
            name: of_own.name.clone(),
            kind: model.kind,
            across: model.across,
            values: values.collect(),
        }
    });
    HistoryView {
        series: series.collect(),
        ..own
    }
}

impl HistoryView {
    fn time_of(&self, step: u64) -> i64 {
        let into = step.saturating_mul(self.step_seconds);
        self.from_seconds.saturating_add_unsigned(into)
    }

    /// The value of the step that a time lies in.
    fn value_at(&self, series: &HistorySeries, at: i64) -> Option<f64> {
        let into = u64::try_from(at.checked_sub(self.from_seconds)?).ok()?;
        let step = into.checked_div(self.step_seconds)?;
        *series.values.get(usize::try_from(step).ok()?)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::HistoryKind;

    fn number(name: &str, value: f64, across: HistoryAcross) -> LiveNumber {
        LiveNumber {
            name: name.to_owned(),
            value,
            across,
        }
    }

    #[test]
    fn numbers_of_now_become_one() {
        use HistoryAcross::{Any, Greatest, Mean, Sum};
        let one = [
            number("rate", 1.0, Sum),
            number("latency", 5.0, Greatest),
            number("hits", 90.0, Mean),
            number("space", 7.0, Any),
        ];
        let two = [
            number("latency", 9.0, Greatest),
            number("rate", 2.0, Sum),
            number("space", 8.0, Any),
            number("volume:two", 3.0, Any),
            number("hits", 10.0, Mean),
        ];
        let want = [
            number("rate", 3.0, Sum),
            number("latency", 9.0, Greatest),
            number("hits", 50.0, Mean),
            number("space", 7.0, Any),
            number("volume:two", 3.0, Any),
        ];
        assert_eq!(numbers([&one[..], &two]), want);
        assert_eq!(numbers([&one[..]]), one);
        assert_eq!(numbers([&[][..], &one]), one);
        let many: Vec<LiveNumber> = (0..2 * OF_ONE_MAX)
            .map(|index| number(&format!("volume:{index}"), 1.0, Any))
            .collect();
        assert_eq!(numbers([&many[..], &one]).len(), OF_ONE_MAX + one.len());
    }

    fn view(
        from_seconds: i64,
        step_seconds: u64,
        series: &[(&str, &[Option<f64>])],
    ) -> HistoryView {
        let series = series.iter().map(|(name, values)| HistorySeries {
            name: (*name).to_owned(),
            kind: match values.iter().any(Option::is_some) {
                true => HistoryKind::Mean,
                false => HistoryKind::Last,
            },
            across: match *name {
                "latency" => HistoryAcross::Greatest,
                _ => HistoryAcross::Sum,
            },
            values: values.to_vec(),
        });
        let series: Vec<HistorySeries> = series.collect();
        HistoryView {
            from_seconds,
            step_seconds,
            steps: series
                .first()
                .map_or(0, |series| series.values.len() as u64),
            series,
            silent: Vec::new(),
        }
    }

    #[test]
    fn histories_become_one_step_by_step() {
        let own = view(
            100,
            10,
            &[
                ("rate", &[Some(1.0), None, None, Some(4.0)]),
                ("latency", &[Some(5.0), None, None, Some(1.0)]),
                ("theirs", &[None; 4]),
            ],
        );
        // Its clock is a step ahead, and it knows more.
        let ahead = view(
            110,
            10,
            &[
                ("theirs", &[Some(8.0), None, Some(9.0), Some(10.0)]),
                ("rate", &[Some(2.0), None, Some(5.0), Some(6.0)]),
                ("latency", &[Some(2.0), None, Some(3.0), None]),
            ],
        );
        let coarse = view(0, 120, &[("rate", &[Some(100.0), Some(200.0)])]);
        let all = history(own.clone(), &[ahead, coarse]);
        let want = view(
            100,
            10,
            &[
                (
                    "rate",
                    &[Some(101.0), Some(102.0), Some(200.0), Some(209.0)],
                ),
                ("latency", &[Some(5.0), Some(2.0), None, Some(3.0)]),
                ("theirs", &[None, Some(8.0), None, Some(9.0)]),
            ],
        );
        assert_eq!(all, want);
        assert_eq!(history(own.clone(), &[]), own);
        // What nobody sends by mistake.
        let without_steps = view(100, 0, &[("rate", &[Some(1.0)])]);
        assert_eq!(history(own.clone(), &[without_steps]), own);
    }
}
