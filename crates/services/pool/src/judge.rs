//! The one judge of disks: which disks are taken out of use, and why.
//!
//! Owns: the verdict on each disk, a pure function of the evidence on all of them.
//! Must not know: where the evidence comes from ([`crate::watch`] and `shard` count it), how a verdict is carried out.
//!
//! The data path stops using a disk at its first errors: it suspects the disk. The judge confirms or withdraws the
//! suspicion. Disks that fail at the same time share a cause, such as a controller, a cable or the host's memory. The
//! judge keeps such disks while the cause may pass.

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
/// Errors of several disks have a cause in common if they are within so many looks,
const RECENT_LOOKS: usize = 10;
/// and so many on each: a single one is nothing to go by.
const RECENT_ERRORS_MIN: u64 = 2;
/// A disk that fails is faulted after so many looks in a row: those that suffer with it have shown it by then.
const SETTLE_LOOKS: u32 = 3;
/// A cause in common may pass within so many looks.
const SHARED_LOOKS: u32 = 60;
/// A disk that is suspected is cleared after [`RECENT_LOOKS`] without an error and with so many answers.
const CALM_OPS_MIN: u64 = 4;

/// The evidence on one disk. Counts are since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    /// An operation has waited longer than the hang limit.
    pub hangs: bool,
    /// Answered operations, and their total time.
    pub ops: u64,
    pub nanos: u64,
    /// Failed operations among `ops`: on data, metadata, the pool file, and probes.
    pub errors: u64,
    /// The data path avoids the disk for now, after many errors in a row.
    pub is_suspect: bool,
    /// The disk is out of use already.
    pub is_out: bool,
}

/// The judge's decision on one disk. Texts are reasons for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No change: the disk stays in use, or stays out of use.
    Stays,
    /// The disk has a fault and stays in use for now.
    Spared(String),
    /// The suspicion is withdrawn.
    Cleared,
    /// The disk goes out of use. Its data is read only as a last resort.
    Out(String),
    /// The disk gets no more operations at all, because each one would hang.
    /// The disk gets no more operations at all, because each one would hang.
    GivenUp(String),
}

/// The evidence of the last looks at one disk.
#[derive(Clone, Debug, Default)]
pub struct History {
    slow_looks: u32,
    /// Operations and their total nanoseconds, for each of the last looks.
    ops: VecDeque<(u64, u64)>,
    /// Errors at each of the last looks, without those that several disks had together.
    errors: VecDeque<u64>,
    /// All errors, and successful operations, at each of the last looks.
    recent: VecDeque<(u64, u64)>,
    /// Looks in a row at which the disk failed alone; looks since it began to fail together with other disks.
    failing_looks: u32,
    shared_looks: u32,
}

/// Appends `value`, and keeps the last `count_max` values.
fn push<T>(values: &mut VecDeque<T>, value: T, count_max: usize) {
    values.push_back(value);
    if values.len() > count_max {
        values.pop_front();
    }
}

impl History {
    fn note(&mut self, seen: &Evidence) {
        push(&mut self.ops, (seen.ops, seen.nanos), SLOW_WINDOW);
        push(&mut self.errors, seen.errors, ERRORS_LOOKS);
        let good = seen.ops.saturating_sub(seen.errors);
        push(&mut self.recent, (seen.errors, good), RECENT_LOOKS);
    }

    /// The mean time of recent operations, if there were at least [`SLOW_OPS_MIN`].
    fn mean(&self) -> Option<Duration> {
        let ops: u64 = self.ops.iter().map(|(ops, _)| ops).sum();
        let nanos = self.ops.iter().map(|(_, nanos)| nanos);
        let nanos = nanos.fold(0, |sum: u64, nanos| sum.saturating_add(*nanos));
        let mean = nanos.checked_div(ops)?;
        (ops >= SLOW_OPS_MIN).then(|| Duration::from_nanos(mean))
    }

    fn error_count(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Whether the disk had recent errors that other disks may share.
    fn suffers(&self, seen: &Evidence) -> bool {
        let errors: u64 = self.recent.iter().map(|(errors, _)| errors).sum();
        !seen.is_out && (seen.is_suspect || errors >= RECENT_ERRORS_MIN)
    }

    /// Whether the disk answered enough operations lately, all without error.
    fn is_calm(&self) -> bool {
        let good: u64 = self.recent.iter().map(|(_, good)| good).sum();
        let is_clean = self.recent.iter().all(|(errors, _)| *errors == 0);
        is_clean && self.recent.len() >= RECENT_LOOKS && good >= CALM_OPS_MIN
    }
}

/// A disk's state before the pool's redundancy is considered.
enum Opinion {
    Fine,
    Calm,
    /// The disk is out of use, and operations on it hang.
    OutAndHangs,
    Hangs,
    Slow(Duration),
    /// Operations fail: the reason, and how many other disks fail at the same time.
    Fails(String, usize),
}

/// Judges all disks. `spare` is how many disks can go out of use while all data stays readable. Without a spare or another
/// disk, operations wait even for an unresponsive disk: no other disk could answer, and a pause of all disks (a controller,
/// a network) must not take them out of use.
pub fn judge(
    evidence: &[Evidence],
    histories: &mut [History],
    mut spare: usize,
    hang_after: Duration,
) -> Vec<Verdict> {
    let spare_before = spare;
    for (seen, history) in evidence.iter().zip(&mut *histories) {
        history.note(seen);
    }
    let means: Vec<Option<Duration>> = histories.iter().map(History::mean).collect();
    let both = evidence.iter().zip(&*histories);
    let suffering = both.filter(|(seen, history)| history.suffers(seen)).count();
    let mut left = evidence.iter().filter(|seen| !seen.is_out).count();
    let mut verdicts = Vec::with_capacity(evidence.len());
    for (index, (seen, history)) in evidence.iter().zip(&mut *histories).enumerate() {
        let opinion = opinion_of(
            seen,
            history,
            means[index],
            median(&means, index),
            suffering,
        );
        let can_go = left > 1 && spare > 0;
        let verdict = match opinion {
            Opinion::Fine => Verdict::Stays,
            Opinion::Calm => {
                *history = History::default();
                Verdict::Cleared
            }
            // Writers that still use a failed disk, such as that of the pool file, must not wait for it for ever.
            Opinion::OutAndHangs => {
                Verdict::GivenUp("it failed earlier, and gives no answer now".to_owned())
            }
            Opinion::Hangs if can_go => Verdict::GivenUp(format!(
                "an operation got no answer within {} s",
                hang_after.as_secs()
            )),
            Opinion::Hangs => Verdict::Spared(format!(
                "an operation has had no answer for {} s; it keeps waiting, because no other disk has the data",
                hang_after.as_secs()
            )),
            Opinion::Slow(mean) if can_go => Verdict::GivenUp(format!(
                "its operations take {} ms, more than {SLOW_FACTOR} times as long as on the other disks",
                mean.as_millis()
            )),
            Opinion::Slow(_) => Verdict::Stays,
            Opinion::Fails(why, others) => {
                let can_all_go = can_go && others < spare_before;
                fails(seen, history, &why, others, can_go, can_all_go)
            }
        };
        // A disk that is out of use already needs no spare.
        if matches!(verdict, Verdict::Out(_) | Verdict::GivenUp(_)) && !seen.is_out {
            spare = spare.saturating_sub(1);
            left -= 1;
        }
        verdicts.push(verdict);
    }
    verdicts
}

/// The median of the other disks' means.
fn median(means: &[Option<Duration>], without: usize) -> Option<Duration> {
    let others = means.iter().enumerate();
    let others = others.filter(|(other, _)| *other != without);
    let mut others: Vec<Duration> = others.filter_map(|(_, mean)| *mean).collect();
    others.sort_unstable();
    others.get(others.len() / 2).copied()
}

fn opinion_of(
    seen: &Evidence,
    history: &mut History,
    mean: Option<Duration>,
    median: Option<Duration>,
    suffering: usize,
) -> Opinion {
    let is_slow = match (mean, median) {
        (Some(mean), Some(median)) => mean > SLOW_MIN && mean > median * SLOW_FACTOR,
        // Without other disks to compare with, or without operations, a disk stays as slow as it was.
        _ => history.slow_looks > 0 && seen.ops == 0,
    };
    history.slow_looks = if is_slow { history.slow_looks + 1 } else { 0 };
    if seen.is_out {
        return match seen.hangs {
            true => Opinion::OutAndHangs,
            false => Opinion::Fine,
        };
    }
    if seen.hangs {
        return Opinion::Hangs;
    }
    if history.slow_looks >= SLOW_LOOKS {
        return Opinion::Slow(mean.unwrap_or_default());
    }
    if seen.is_suspect && history.is_calm() {
        return Opinion::Calm;
    }
    let suffers = history.suffers(seen);
    let others = suffering - usize::from(suffers);
    if suffers && others > 0 {
        // Shared errors never count against this disk, even after the other disks recover.
        history.errors.clear();
        history.failing_looks = 0;
        let why = format!(
            "operations fail on it and on {others} other {} at the same time; check what they share: controller, \
             cable, power, the host",
            if others == 1 { "disk" } else { "disks" }
        );
        return Opinion::Fails(why, others);
    }
    let errors = history.error_count();
    let had_company = history.shared_looks > 0;
    if !suffers {
        history.shared_looks = 0;
    }
    if errors < ERRORS_MAX && !seen.is_suspect {
        history.failing_looks = 0;
        return Opinion::Fine;
    }
    // The other disks have recovered: this disk gets time to recover as well.
    let errors_now = history.recent.back().map_or(0, |(errors, _)| *errors);
    if had_company && errors_now == 0 {
        history.failing_looks = 0;
        return Opinion::Fails("operations failed on several disks at once".to_owned(), 0);
    }
    history.failing_looks += 1;
    let why = match errors >= ERRORS_MAX {
        true => format!("{errors} operations failed within {ERRORS_LOOKS} s"),
        false => "too many operations failed one after the other".to_owned(),
    };
    Opinion::Fails(why, 0)
}

/// The verdict on a disk that fails together with `others` other disks. `can_go`: this disk may go out of use;
/// `can_all_go`: all of them may.
fn fails(
    seen: &Evidence,
    history: &mut History,
    why: &str,
    others: usize,
    can_go: bool,
    can_all_go: bool,
) -> Verdict {
    if others > 0 {
        history.shared_looks += 1;
        // The shared cause does not pass. If data stays readable without all of these disks, they count as failed one by one.
        return match history.shared_looks > SHARED_LOOKS && can_all_go {
            true => Verdict::Out(format!("{why}; the errors do not stop")),
            false => Verdict::Spared(why.to_owned()),
        };
    }
    if history.failing_looks < SETTLE_LOOKS {
        return match seen.is_suspect {
            true => Verdict::Spared(why.to_owned()),
            false => Verdict::Stays,
        };
    }
    match can_go {
        true => Verdict::Out(why.to_owned()),
        false => Verdict::Spared(format!(
            "{why}; it stays in use, because some data cannot be read without it"
        )),
    }
}

#[cfg(test)]
mod tests;
