//! Results that are kept beside many others: shorter, and still whole.

use super::{RunResult, Sample};

impl RunResult {
    /// Makes it short: each phase has so many samples at most, whose sums stay, and latencies as percentiles alone.
    pub fn compact(&mut self, sample_count_max: usize) {
        for phase in &mut self.phases {
            let each = phase.samples.len().div_ceil(sample_count_max.max(1));
            if each > 1 {
                let chunks = phase.samples.chunks(each);
                phase.samples = chunks.filter_map(together).collect();
            }
            if let Some(latency) = &mut phase.latency {
                latency.histogram = None;
            }
            phase.job_file = None;
        }
        for curve in &mut self.credits {
            let each = |count: usize| count.div_ceil(sample_count_max.max(1)).max(1);
            let step = each(curve.samples.len());
            curve.samples = curve.samples.iter().step_by(step).copied().collect();
            let step = each(curve.model.len());
            curve.model = curve.model.iter().step_by(step).copied().collect();
        }
    }
}

/// Samples that follow one another as one.
fn together(samples: &[Sample]) -> Option<Sample> {
    let (first, last) = (samples.first()?, samples.last()?);
    Some(Sample {
        at_seconds: first.at_seconds,
        seconds: last.at_seconds + last.seconds - first.at_seconds,
        operations: samples.iter().map(|sample| sample.operations).sum(),
        bytes: samples.iter().map(|sample| sample.bytes).sum(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::result::{PhaseResult, parse};

    #[test]
    fn a_short_result_has_the_same_sums_and_is_a_result() {
        let text = include_str!("../../testdata/fio-3.33-json-plus.json");
        let mut result = crate::import::import(text, "fio").unwrap();
        let sums = |phase: &PhaseResult| -> (u64, u64, f64) {
            let samples = &phase.samples;
            (
                samples.iter().map(|sample| sample.operations).sum(),
                samples.iter().map(|sample| sample.bytes).sum(),
                samples.iter().map(|sample| sample.seconds).sum(),
            )
        };
        for phase in &mut result.phases {
            // One in each of the first intervals, and what is left in the last.
            let share = |whole: u64, index: u32| match index {
                0..100 => 1.min(whole / 101),
                _ => whole - 100 * 1.min(whole / 101),
            };
            let (operations, bytes) = (phase.operations, phase.bytes);
            let sample = |index: u32| Sample {
                at_seconds: f64::from(index) * 0.5,
                seconds: 0.5,
                operations: share(operations, index),
                bytes: share(bytes, index),
            };
            phase.samples = (0..101).map(sample).collect();
        }
        let before: Vec<_> = result.phases.iter().map(sums).collect();
        result.compact(10);
        assert!(result.phases.iter().all(|phase| phase.samples.len() <= 10));
        assert_eq!(result.phases.iter().map(sums).collect::<Vec<_>>(), before);
        let text = serde_json::to_vec(&result).unwrap();
        parse(Path::new("short"), &text).unwrap();
        assert!(together(&[]).is_none());
    }
}
