//! One phase of several clients as one result.
//!
//! Owns: which figures add up and which do not. Must not know: how clients are reached.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::latency;
use crate::result::{PhaseResult, Sample};
use crate::samples::Samples;

/// The results of clients that began a phase together, as one. Counts add up; the time is that of
/// the slowest; workers stay apart, each with the client it says. Of none: a result of nothing.
pub fn merge_phase(parts: Vec<PhaseResult>) -> PhaseResult {
    let sum = |of: fn(&PhaseResult) -> u64| parts.iter().map(of).fold(0, u64::saturating_add);
    let longest = |of: fn(&PhaseResult) -> f64| parts.iter().map(of).fold(0.0, f64::max);
    let foreground_seconds = longest(|it| it.foreground_seconds);
    // As much CPU time as is known says nothing when some of it is not.
    let cpu: Option<f64> = parts.iter().map(|it| it.load_cpu_seconds).sum();
    let partial: BTreeSet<&str> = parts
        .iter()
        .filter_map(|it| it.partial.as_deref())
        .collect();
    let job_files: BTreeSet<&str> = parts
        .iter()
        .filter_map(|it| it.job_file.as_deref())
        .collect();
    let joined = |texts: BTreeSet<&str>, between: &str| {
        (!texts.is_empty()).then(|| texts.into_iter().collect::<Vec<_>>().join(between))
    };
    let latencies = parts.iter().filter_map(|it| it.latency.as_ref());
    PhaseResult {
        name: parts.first().map(|it| it.name.clone()).unwrap_or_default(),
        phase: parts.iter().find_map(|it| it.phase.clone()),
        operations: sum(|it| it.operations),
        bytes: sum(|it| it.bytes),
        errors: sum(|it| it.errors),
        first_error: parts.iter().find_map(|it| it.first_error.clone()),
        foreground_seconds,
        drained_seconds: longest(|it| it.drained_seconds),
        load_cpu_seconds: cpu.filter(|_| !parts.is_empty()),
        workers: parts.iter().flat_map(|it| it.workers.clone()).collect(),
        samples: merge_samples(&parts, foreground_seconds),
        latency: latency::merge(latencies),
        job_file: joined(job_files, "\n# another client\n"),
        partial: joined(partial, "; "),
    }
}

fn merge_samples(parts: &[PhaseResult], end_seconds: f64) -> Vec<Sample> {
    let mut with_samples = parts.iter().filter(|it| !it.samples.is_empty());
    match (with_samples.next(), with_samples.next()) {
        (None, _) => Vec::new(),
        (Some(only), None) => only.samples.clone(),
        _ => {
            let mut samples = Samples::default();
            parts.iter().for_each(|it| samples.add_list(&it.samples));
            let end = Duration::try_from_secs_f64(end_seconds).unwrap_or_default();
            samples.to_list(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::result::WorkerResult;

    /// A request: nanoseconds it took, milliseconds at its end, bytes.
    type Request = (u64, u64, u64);

    fn result(client: usize, requests: &[Request]) -> PhaseResult {
        let mut histogram = latency::histogram();
        let mut samples = Samples::default();
        for (ns, at_ms, bytes) in requests {
            histogram.saturating_record(*ns);
            samples.add(Duration::from_millis(*at_ms), 1, *bytes);
        }
        let end_ms = requests.iter().map(|it| it.1).max().unwrap_or_default();
        let end = Duration::from_millis(end_ms);
        let operations = requests.len() as u64;
        let bytes = requests.iter().map(|it| it.2).sum();
        let seconds = end.as_secs_f64();
        PhaseResult {
            name: "seq-read".to_owned(),
            phase: None,
            operations,
            bytes,
            errors: 1,
            first_error: None,
            foreground_seconds: seconds,
            drained_seconds: seconds + 1.0,
            load_cpu_seconds: Some(0.5),
            workers: vec![WorkerResult {
                client,
                operations,
                bytes,
                seconds,
            }],
            samples: samples.to_list(end),
            latency: latency::latency(&histogram),
            job_file: None,
            partial: (client == 1).then(|| "it was stopped".to_owned()),
        }
    }

    #[test]
    fn what_does_not_add_up_is_kept() {
        let merged = merge_phase(vec![result(0, &[(1, 1000, 1)]), result(1, &[(2, 3000, 2)])]);
        assert_eq!(
            (merged.foreground_seconds, merged.drained_seconds),
            (3.0, 4.0)
        );
        assert_eq!((merged.errors, merged.load_cpu_seconds), (2, Some(1.0)));
        assert_eq!(merged.partial.as_deref(), Some("it was stopped"));
        let clients: Vec<usize> = merged.workers.iter().map(|it| it.client).collect();
        assert_eq!(clients, [0, 1]);
        let one = result(0, &[(1, 1000, 1)]);
        assert_eq!(merge_phase(vec![one.clone()]), one);
        let none = merge_phase(Vec::new());
        assert_eq!(
            (none.operations, none.latency, none.load_cpu_seconds),
            (0, None, None)
        );
        let unknown = PhaseResult {
            load_cpu_seconds: None,
            ..one.clone()
        };
        assert_eq!(merge_phase(vec![one, unknown]).load_cpu_seconds, None);
    }

    proptest! {
        #[test]
        fn clients_add_up(
            clients in prop::collection::vec(
                prop::collection::vec((1..10_000_000_000u64, 0..500_000u64, 0..1000u64), 0..50),
                1..5,
            ),
        ) {
            let parts = clients.iter().enumerate();
            let parts: Vec<_> = parts.map(|(client, requests)| result(client, requests)).collect();
            let merged = merge_phase(parts);
            let all = result(0, &clients.concat());
            let sum: u64 = merged.samples.iter().map(|it| it.operations).sum();
            prop_assert_eq!(sum, merged.operations);
            let sum: u64 = merged.samples.iter().map(|it| it.bytes).sum();
            prop_assert_eq!(sum, merged.bytes);
            prop_assert_eq!(merged.operations, all.operations);
            prop_assert_eq!(merged.bytes, all.bytes);
            prop_assert_eq!(merged.foreground_seconds, all.foreground_seconds);
            prop_assert_eq!(merged.latency, all.latency);
        }
    }
}
