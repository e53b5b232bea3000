//! Counts over time, in a bounded number of intervals.
//!
//! Owns: the width of intervals, making them wider, adding up those of several threads or clients.
//! Must not know: what was done.
//!
//! An interval is open at its start and closed at its end, so that what is done at the very end of a
//! phase does not begin one without length.

use std::time::Duration;

use crate::result::Sample;

/// Intervals of one phase; when it lasts longer they become twice as wide.
pub const SAMPLE_COUNT_MAX: usize = 1024;
/// The width of intervals of a phase of up to 256 seconds.
pub const SAMPLE_WIDTH_MIN: Duration = Duration::from_millis(250);

/// Counters by time since the start of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    width_ns: u64,
    counts: Vec<Count>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    operations: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.operations = self.operations.saturating_add(other.operations);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            width_ns: nanos(SAMPLE_WIDTH_MIN),
            counts: Vec::new(),
        }
    }
}

impl Samples {
    /// Counts what was done `at` this time since the start.
    pub fn add(&mut self, at: Duration, operations: u64, bytes: u64) {
        let index = self.reach(nanos(at));
        if let Some(count) = self.counts.get_mut(index) {
            count.add(Count { operations, bytes });
        }
    }

    /// Adds the counters of the same phase from elsewhere.
    pub fn merge(&mut self, mut other: Self) {
        while self.width_ns < other.width_ns {
            self.widen();
        }
        while other.width_ns < self.width_ns {
            other.widen();
        }
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), Count::default());
        }
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            count.add(more);
        }
    }

    /// All intervals from the start to `end`; the last one ends there. None of a phase that never began.
    pub fn to_list(&self, end: Duration) -> Vec<Sample> {
        if self.counts.is_empty() && end.is_zero() {
            return Vec::new();
        }
        let mut whole = self.clone();
        whole.add(end, 0, 0);
        let end_ns = nanos(end).max(1);
        let starts = (0..).map(|index: u64| index.saturating_mul(whole.width_ns));
        let lists = whole.counts.iter().zip(starts);
        lists
            .map(|(count, start_ns)| {
                let stop_ns = start_ns.saturating_add(whole.width_ns);
                // Only when something is later than the end is there an interval behind it.
                let stop_ns = if start_ns < end_ns {
                    stop_ns.min(end_ns)
                } else {
                    stop_ns
                };
                Sample {
                    at_seconds: start_ns as f64 / 1e9,
                    seconds: (stop_ns - start_ns) as f64 / 1e9,
                    operations: count.operations,
                    bytes: count.bytes,
                }
            })
            .collect()
    }

    /// Adds what [`Self::to_list`], or another program, made. Each interval counts where its middle
    /// is, so that those of one width stay what they are.
    pub fn add_list(&mut self, list: &[Sample]) {
        let longest = list.iter().map(|it| it.seconds).fold(0.0, f64::max);
        while self.width_ns < nanos(seconds(longest)) && self.width_ns < u64::MAX / 2 {
            self.widen();
        }
        for sample in list {
            let middle = seconds(sample.at_seconds + sample.seconds / 2.0);
            self.add(middle, sample.operations, sample.bytes);
        }
    }

    /// The interval of a time, with room made for it.
    fn reach(&mut self, at_ns: u64) -> usize {
        loop {
            let index = at_ns.saturating_sub(1) / self.width_ns;
            match usize::try_from(index) {
                Ok(index) if index < SAMPLE_COUNT_MAX => {
                    if index >= self.counts.len() {
                        self.counts.resize(index + 1, Count::default());
                    }
                    return index;
                }
                _ => self.widen(),
            }
        }
    }

    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let pairs = self.counts.chunks(2).map(|pair| {
            let mut sum = Count::default();
            pair.iter().for_each(|count| sum.add(*count));
            sum
        });
        self.counts = pairs.collect();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Of what may be no time at all: nonsense is 0.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(list: &[Sample]) -> (u64, u64) {
        let operations = list.iter().map(|it| it.operations).sum();
        (operations, list.iter().map(|it| it.bytes).sum())
    }

    #[test]
    fn an_hour_fits_and_the_end_has_a_length() {
        let mut samples = Samples::default();
        for second in 0..=3600 {
            samples.add(Duration::from_secs(second), 1, 10);
        }
        let list = samples.to_list(Duration::from_secs(3600));
        assert_eq!(list.len(), 900);
        assert_eq!(sums(&list), (3601, 36010));
        assert!(list.iter().all(|it| it.seconds == 4.0));
        let last = list.last().expect("many");
        assert_eq!(last.at_seconds + last.seconds, 3600.0);
        // A phase that ended inside of an interval, and one that did nothing.
        let mut samples = Samples::default();
        samples.add(Duration::from_millis(300), 2, 0);
        let list = samples.to_list(Duration::from_millis(600));
        let seconds: Vec<f64> = list.iter().map(|it| it.seconds).collect();
        assert_eq!(seconds, [0.25, 0.25, 0.1]);
        assert!(Samples::default().to_list(Duration::ZERO).is_empty());
    }

    #[test]
    fn nonsense_from_elsewhere_is_counted_somewhere() {
        let mut samples = Samples::default();
        for at_seconds in [f64::NAN, f64::INFINITY, -1.0, 1e30, 1e12] {
            samples.add_list(&[Sample {
                at_seconds,
                seconds: f64::NAN,
                operations: 1,
                bytes: 1,
            }]);
        }
        assert_eq!(sums(&samples.to_list(Duration::from_secs(1))), (5, 5));
    }

    proptest! {
        /// However they are split over clients and whenever they become wider: nothing is lost, and
        /// together they are what one would have counted.
        #[test]
        fn merging_is_counting_together(
            done in prop::collection::vec((0..2000u64, 0..100u64, 0..3usize), 1..200),
        ) {
            let mut together = Samples::default();
            let mut apart = vec![Samples::default(); 3];
            for (at_seconds, operations, client) in &done {
                let at = Duration::from_secs(*at_seconds);
                together.add(at, *operations, operations * 2);
                apart[*client].add(at, *operations, operations * 2);
            }
            let end = Duration::from_secs(2000);
            let mut merged = Samples::default();
            let mut from_lists = Samples::default();
            for part in apart {
                from_lists.add_list(&part.to_list(end));
                merged.merge(part);
            }
            together.add(end, 0, 0);
            merged.add(end, 0, 0);
            prop_assert_eq!(merged.to_list(end), together.to_list(end));
            prop_assert_eq!(sums(&from_lists.to_list(end)), sums(&together.to_list(end)));
        }
    }
}
