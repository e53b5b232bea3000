//! The duration of a disk's operations in the cluster, and their entries in the trace.
//!
//! Owns: the time of each operation. Must not know: its purpose.

use std::time::Duration;

use cairn_base::crc32c;
use cairn_base::env::{BoxFuture, Clock};
use cairn_testkit::{ManualClock, OpKind, Pace, Rng};
use parking_lot::Mutex;

use crate::exec::Trace;

/// Durations of a disk's operations.
pub struct DiskPace {
    index: u64,
    is_uneven: bool,
    clock: ManualClock,
    trace: Trace,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    /// Duration of the next operations.
    slow: Duration,
    slow_times: u64,
}

impl DiskPace {
    /// `index`: of the disk, among all.
    pub fn new(index: u64, is_uneven: bool, clock: ManualClock, trace: Trace, seed: u64) -> Self {
        Self {
            index,
            is_uneven,
            clock,
            trace,
            state: Mutex::new(State {
                rng: Rng::new(seed),
                slow: Duration::ZERO,
                slow_times: 0,
            }),
        }
    }

    /// Makes the next `times` operations take `by`.
    pub fn slow_down(&self, by: Duration, times: u64) {
        let mut state = self.state.lock();
        (state.slow, state.slow_times) = (by, times);
    }
}

impl Pace for DiskPace {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        self.trace.note_text(name);
        self.trace.note(&[self.index, kind as u64]);
        let delay = {
            let State {
                rng,
                slow,
                slow_times,
            } = &mut *self.state.lock();
            if *slow_times > 0 {
                *slow_times -= 1;
                *slow
            } else if self.is_uneven && rng.below(48) == 0 {
                Duration::from_micros(1000 + rng.below(40_000))
            } else {
                match rng.below(4) {
                    0 => Duration::from_micros(10 + rng.below(400)),
                    1 => Duration::from_micros(1 + rng.below(20)),
                    _ => return None,
                }
            }
        };
        Some(self.clock.sleep(delay))
    }

    fn touch(&self, offset: u64, len_bytes: u64, written: &[u8]) {
        self.trace
            .note(&[offset, len_bytes, u64::from(crc32c(written))]);
    }
}
