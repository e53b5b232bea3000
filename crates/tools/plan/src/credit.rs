//! Burst credit over time: a bucket that is full at first, filled at the baseline, spent by what is used.
//!
//! Owns: the simulation. Must not know: where buckets are.

use crate::report::Credit;
use crate::units::Rate;

/// Steps at most of one simulation.
pub const STEP_COUNT_MAX: usize = 100_000;

/// One step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub time_s: f64,
    pub rate: Rate,
    /// The credit left in the bucket, 0 to 1.
    pub left: f64,
}

/// The rate delivered over time to a use of `demand(time_s)`.
///
/// In each step the bucket earns the baseline, and gives what is used: up to the burst while it has
/// something, the baseline after that.
pub fn simulate(
    credit: &Credit,
    demand: impl Fn(f64) -> Rate,
    step_s: f64,
    steps: usize,
) -> Vec<Sample> {
    simulate_from(credit, 1.0, demand, step_s, steps)
}

/// Simulates a bucket of which a `part`, 0 to 1, is left at first.
pub fn simulate_from(
    credit: &Credit,
    part: f64,
    demand: impl Fn(f64) -> Rate,
    step_s: f64,
    steps: usize,
) -> Vec<Sample> {
    let capacity = credit.bucket_bytes.get();
    // The bucket is filled at what is earned: the baseline; full bursts drain it in `burst_s`.
    let gain = if credit.burst_s > 0.0 {
        credit.burst_mb_s.bytes_s() - capacity / credit.burst_s
    } else {
        credit.baseline_mb_s.bytes_s()
    };
    let mut left = capacity * part.clamp(0.0, 1.0);
    (0..steps.min(STEP_COUNT_MAX))
        .map(|step| {
            let time_s = step as f64 * step_s;
            let wanted = demand(time_s).bytes_s().min(credit.burst_mb_s.bytes_s());
            let affordable = gain + left / step_s;
            let given = wanted
                .min(affordable)
                .max(wanted.min(credit.baseline_mb_s.bytes_s()));
            left = (left + (gain - given) * step_s).clamp(0.0, capacity);
            Sample {
                time_s,
                rate: Rate::from_bytes_s(given),
                left: if capacity > 0.0 { left / capacity } else { 0.0 },
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    fn credit(baseline: f64, burst: f64, seconds: f64) -> Credit {
        Credit {
            name: "test".to_owned(),
            baseline_mb_s: Rate::from_mb_s(baseline),
            burst_mb_s: Rate::from_mb_s(burst),
            bucket_bytes: Bytes::new((burst - baseline) * 1e6 * seconds),
            burst_s: seconds,
            rules: Vec::new(),
        }
    }

    #[test]
    fn burst_lasts_as_long_as_the_bucket_then_the_baseline() {
        let credit = credit(72.0, 300.0, 1800.0);
        let full = |_| Rate::from_mb_s(1e9);
        let samples = simulate(&credit, full, 10.0, 400);
        for sample in &samples {
            let want = if sample.time_s < 1800.0 { 300.0 } else { 72.0 };
            assert!(
                (sample.rate.mb_s() - want).abs() < 1e-6,
                "at {} s {}",
                sample.time_s,
                sample.rate.mb_s()
            );
        }
    }

    #[test]
    fn half_a_bucket_lasts_half_as_long() {
        let credit = credit(100.0, 200.0, 100.0);
        let samples = simulate_from(&credit, 0.5, |_| Rate::from_mb_s(1e9), 1.0, 100);
        let burst = samples.iter().filter(|it| it.rate.mb_s() > 150.0).count();
        assert_eq!(burst, 50);
    }

    #[test]
    fn idle_time_earns_burst_back() {
        let credit = credit(100.0, 200.0, 100.0);
        // Used for 200 s, idle for 50, used again: 50 s x 100 MB/s earned last 50 s at 200.
        let demand = |time: f64| {
            Rate::from_mb_s(if (200.0..250.0).contains(&time) {
                0.0
            } else {
                200.0
            })
        };
        let samples = simulate(&credit, demand, 1.0, 400);
        let at = |second: usize| samples[second].rate.mb_s().round();
        assert_eq!(
            [at(0), at(99), at(101), at(210), at(255), at(298), at(302)],
            [200.0, 200.0, 100.0, 0.0, 200.0, 200.0, 100.0]
        );
    }

    proptest::proptest! {
        #[test]
        fn never_more_than_the_burst_nor_the_bucket(
            baseline in 1.0..1000.0_f64, times in 1.0..20.0_f64, seconds in 1.0..5000.0_f64
        ) {
            let credit = credit(baseline, baseline * times, seconds);
            let samples = simulate(&credit, |_| Rate::from_mb_s(1e9), 10.0, 1000);
            let sum: f64 = samples.iter().map(|it| it.rate.bytes_s() * 10.0).sum();
            let most = credit.bucket_bytes.get() + baseline * 1e6 * 10_000.0;
            proptest::prop_assert!(sum <= most * 1.000_001 + credit.burst_mb_s.bytes_s() * 10.0);
            for sample in samples {
                proptest::prop_assert!(sample.rate.mb_s() <= credit.burst_mb_s.mb_s() * 1.000_001);
                proptest::prop_assert!(sample.rate.mb_s() >= baseline * 0.999_999);
            }
        }
    }
}
