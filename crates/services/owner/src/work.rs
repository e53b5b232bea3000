//! What clients do with a volume, on average over minutes.
//!
//! Owns: the average, and when it differs so much from what was told that it is told again.
//! Must not know: how work is measured, to whom it is told.

use std::time::Duration;

use cairn_cluster::map::WorkRecord;

/// What happened so long ago counts about a third of what happens now.
const HORIZON: Duration = Duration::from_secs(120);
/// Less than this, a second, is none: operations, and bytes.
const OPERATIONS_LEAST: u64 = 8;
const BYTES_LEAST: u64 = 64 << 10;

/// The average of one volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average {
    at: Duration,
    operations: f64,
    bytes: f64,
}

impl Average {
    /// Begins with what the owner before told.
    pub fn new(now: Duration, told: WorkRecord) -> Self {
        Self {
            at: now,
            operations: told.operations_per_second as f64,
            bytes: told.bytes_per_second as f64,
        }
    }

    /// Adds what is measured now, which has been so since the last time.
    pub fn add(&mut self, now: Duration, measured: WorkRecord) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        let new = 1.0 - (-passed / HORIZON.as_secs_f64()).exp();
        self.operations += (measured.operations_per_second as f64 - self.operations) * new;
        self.bytes += (measured.bytes_per_second as f64 - self.bytes) * new;
    }

    /// What to tell now: as it was told, unless a number has more than doubled, or is less than half.
    pub fn told(&self, before: WorkRecord) -> WorkRecord {
        WorkRecord {
            operations_per_second: told(
                before.operations_per_second,
                self.operations as u64,
                OPERATIONS_LEAST,
            ),
            bytes_per_second: told(before.bytes_per_second, self.bytes as u64, BYTES_LEAST),
        }
    }
}

fn told(before: u64, now: u64, least: u64) -> u64 {
    let is_about = now >= before / 2 && now <= before.saturating_mul(2).max(2 * least);
    match is_about {
        true => before,
        false => rounded(now, least),
    }
}

/// The power of two below a number; 0 of one that is hardly any.
fn rounded(number: u64, least: u64) -> u64 {
    match number < least {
        true => 0,
        false => 1 << number.ilog2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_again_when_it_has_doubled_or_halved() {
        for (before, now, want) in [
            (0, 0, 0),
            (0, 16, 0),
            (0, 17, 16),
            (0, 1000, 512),
            (512, 1000, 512),
            (512, 1024, 512),
            (512, 1025, 1024),
            (512, 256, 512),
            (512, 255, 128),
            (16, 7, 0),
            (8, 4, 8),
            (8, 3, 0),
            (0, u64::MAX, 1 << 63),
            (1 << 63, u64::MAX, 1 << 63),
        ] {
            assert_eq!(told(before, now, OPERATIONS_LEAST), want, "{before} {now}");
        }
    }

    #[test]
    fn it_follows_what_is_measured_within_minutes() {
        let busy = WorkRecord {
            operations_per_second: 1000,
            bytes_per_second: 100 << 20,
        };
        let mut average = Average::new(Duration::ZERO, WorkRecord::default());
        let mut told = WorkRecord::default();
        let mut changes = 0;
        for second in 1..=600 {
            average.add(Duration::from_secs(second), busy);
            let next = average.told(told);
            changes += usize::from(next != told);
            told = next;
        }
        assert_eq!(told.operations_per_second, 512);
        assert_eq!(told.bytes_per_second, 64 << 20);
        // Both numbers, from the least on, each time they doubled.
        assert!(changes <= 20, "{changes}");
        for second in 601..=2400 {
            average.add(Duration::from_secs(second), WorkRecord::default());
            told = average.told(told);
        }
        assert_eq!(told, WorkRecord::default());
        // One look after a long time is as good as many.
        average.add(Duration::from_secs(9000), busy);
        assert_eq!(average.told(told).operations_per_second, 512);
    }
}
