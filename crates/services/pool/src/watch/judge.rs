//! Which disks are not used any more.
//!
//! Owns: the judgement, from what was seen of all disks.

use std::collections::VecDeque;
use std::time::Duration;

/// A disk is slow if its operations take so many times as long as those of the others, and so long...
const SLOW_FACTOR: u32 = 10;
const SLOW_MIN: Duration = Duration::from_millis(100);
/// ... for so many looks in a row, each over the time since so many looks before, with so many operations: the
/// slower a disk is, the fewer of them there are, on the others, too, that wait for it.
const SLOW_LOOKS: u32 = 30;
const SLOW_WINDOW: usize = 10;
const SLOW_OPS_MIN: u64 = 4;
/// So many errors within as many looks are too many, also if operations between them succeed.
const ERRORS_MAX: u64 = 32;
const ERRORS_LOOKS: usize = 60;

/// How a disk did since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    pub hangs: bool,
    pub ops: u64,
    pub nanos: u64,
    pub errors: u64,
    /// It is out already.
    pub out: bool,
}

/// Puts `value` behind the last ones, of which `count_max` are kept.
fn push<T>(values: &mut VecDeque<T>, value: T, count_max: usize) {
    values.push_back(value);
    if values.len() > count_max {
        values.pop_front();
    }
}

/// What was seen of one disk before.
#[derive(Clone, Debug, Default)]
pub struct History {
    slow_looks: u32,
    /// Operations, and what they took, of the last looks.
    ops: VecDeque<(u64, u64)>,
    /// Of the last looks.
    errors: VecDeque<u64>,
}

impl History {
    /// How long operations took of late, if there were enough of them.
    fn mean(&self) -> Option<Duration> {
        let ops: u64 = self.ops.iter().map(|(ops, _)| ops).sum();
        let nanos = self.ops.iter().map(|(_, nanos)| nanos);
        let nanos = nanos.fold(0, |sum: u64, nanos| sum.saturating_add(*nanos));
        let mean = nanos.checked_div(ops)?;
        (ops >= SLOW_OPS_MIN).then(|| Duration::from_nanos(mean))
    }
}

/// Decides which disks are not used any more, and why. `spare`: disks that may be put out and data be had without them.
/// When there are no more of them, or there is no other disk, also one without an answer is waited for: nobody else
/// could answer, and what holds up all disks for a while, as a controller or a network does, must not put them out.
pub fn judge(
    looks: &[Look],
    histories: &mut [History],
    mut spare: usize,
    hang_after: Duration,
) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut left = looks.iter().filter(|look| !look.out).count();
    for (look, history) in looks.iter().zip(&mut *histories) {
        push(&mut history.ops, (look.ops, look.nanos), SLOW_WINDOW);
        push(&mut history.errors, look.errors, ERRORS_LOOKS);
    }
    let all_means: Vec<Option<Duration>> = histories.iter().map(History::mean).collect();
    for (index, (look, history)) in looks.iter().zip(&mut *histories).enumerate() {
        let others = all_means.iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        let mut means: Vec<Duration> = others.filter_map(|(_, mean)| *mean).collect();
        means.sort_unstable();
        let median = means.get(means.len() / 2).copied();
        let mean = history.mean();
        let is_slow = match (mean, median) {
            (Some(mean), Some(median)) => mean > SLOW_MIN && mean > median * SLOW_FACTOR,
            // Nothing to compare, or nothing done: neither better nor worse.
            _ => history.slow_looks > 0 && look.ops == 0,
        };
        history.slow_looks = if is_slow { history.slow_looks + 1 } else { 0 };
        let errors: u64 = history.errors.iter().sum();
        let why = if look.out && !look.hangs {
            continue;
        } else if look.out {
            // What waits for it although it failed before, such as the pool file, must not do so for ever.
            out.push((index, "it failed, and has no answer now".to_owned()));
            continue;
        } else if left <= 1 || spare == 0 {
            continue;
        } else if look.hangs {
            format!(
                "an operation had no answer after {} s",
                hang_after.as_secs()
            )
        } else if history.slow_looks >= SLOW_LOOKS {
            let took = mean.unwrap_or_default().as_millis();
            format!(
                "its operations take {took} ms, more than {SLOW_FACTOR} times those of the others"
            )
        } else if errors >= ERRORS_MAX {
            format!("{errors} operations failed within {ERRORS_LOOKS} s")
        } else {
            continue;
        };
        spare = spare.saturating_sub(1);
        left -= 1;
        out.push((index, why));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Look = Look {
        hangs: false,
        ops: 100,
        nanos: 100 * 1_000_000,
        errors: 0,
        out: false,
    };

    #[test]
    fn what_hangs_is_slow_or_fails_is_put_out() {
        let slow = Look {
            nanos: 100 * 200_000_000,
            ..QUICK
        };
        // Those who write to both wait for the one.
        let few = |millis: u64| Look {
            ops: 1,
            nanos: millis * 1_000_000,
            ..QUICK
        };
        let slow_as_all = slow;
        let failing = Look { errors: 1, ..QUICK };
        let hangs = Look {
            hangs: true,
            ops: 0,
            nanos: 0,
            ..QUICK
        };
        let idle = Look {
            ops: 0,
            nanos: 0,
            ..QUICK
        };
        // Looks at the disks, how often, disks to spare; which are out then.
        type Case<'a> = (&'a str, Vec<Look>, u32, usize, &'a [usize]);
        let cases: Vec<Case> = vec![
            ("all well", vec![QUICK; 6], 100, 2, &[]),
            ("one hangs", vec![QUICK, hangs, QUICK], 1, 2, &[1]),
            ("one hangs, one to spare", vec![QUICK, hangs], 1, 1, &[1]),
            ("one hangs, none to spare", vec![QUICK, hangs], 1, 0, &[]),
            ("all of six hang", vec![hangs; 6], 1, 2, &[0, 1]),
            (
                "slow for a moment",
                vec![slow, QUICK, QUICK],
                SLOW_LOOKS - 1,
                2,
                &[],
            ),
            (
                "slow for long",
                vec![slow, QUICK, QUICK],
                SLOW_LOOKS,
                2,
                &[0],
            ),
            (
                "slow, none to spare",
                vec![slow, QUICK, QUICK],
                SLOW_LOOKS,
                0,
                &[],
            ),
            (
                "so slow that little is done",
                vec![few(600), few(5), few(5)],
                SLOW_LOOKS + SLOW_OPS_MIN as u32 - 1,
                2,
                &[0],
            ),
            ("all slow", vec![slow_as_all; 4], 100, 2, &[]),
            ("alone", vec![slow], 100, 2, &[]),
            ("alone and hangs", vec![hangs], 1, 0, &[]),
            (
                "the last one hangs",
                vec![Look { out: true, ..QUICK }, hangs],
                1,
                0,
                &[],
            ),
            ("all hang", vec![hangs; 3], 1, 2, &[0, 1]),
            ("idle", vec![idle; 3], 100, 2, &[]),
            ("some errors", vec![failing, QUICK], 31, 2, &[]),
            ("many errors", vec![failing, QUICK], 32, 2, &[0]),
            (
                "out already",
                vec![Look { out: true, ..QUICK }, QUICK],
                1,
                2,
                &[],
            ),
            (
                "out, and hangs now",
                vec![Look { out: true, ..hangs }, QUICK],
                1,
                0,
                &[0],
            ),
            (
                "two to put out, one to spare",
                vec![slow, slow, QUICK, QUICK, QUICK],
                SLOW_LOOKS,
                1,
                &[0],
            ),
        ];
        for (name, looks, times, spare, want) in cases {
            let mut histories = vec![History::default(); looks.len()];
            let mut out = Vec::new();
            for _ in 0..times {
                out = judge(&looks, &mut histories, spare, Duration::from_secs(30));
            }
            let got: Vec<usize> = out.iter().map(|(index, _)| *index).collect();
            assert_eq!(got, want, "{name}: {out:?}");
        }
    }
}
