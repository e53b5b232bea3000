//! The one judge of disks: which are not used any more, and why.
//!
//! Owns: the verdict on each disk, a pure function of the evidence on all of them.
//! Must not know: where the evidence comes from ([`crate::watch`] and `shard` count it), what follows from a verdict.
//!
//! Who meets an error in the data path stops using the disk at once. That is a suspicion, not a verdict: here it is
//! either confirmed, or withdrawn. What several disks suffer from at the same time has a cause that they share, such as
//! a controller, a cable or the host's memory, and none of them is to be put out for it while it may pass.

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
/// A disk that fails is put out after so many looks in a row: those that suffer with it have shown it by then.
const SETTLE_LOOKS: u32 = 3;
/// A cause in common may pass within so many looks.
const SHARED_LOOKS: u32 = 60;
/// A disk that is suspected is cleared after [`RECENT_LOOKS`] without an error and with so many answers.
const CALM_OPS_MIN: u64 = 4;

/// What is known of a disk, since the last look where it is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    /// An operation has had no answer for too long.
    pub hangs: bool,
    /// Operations that had an answer, and what they took together.
    pub ops: u64,
    pub nanos: u64,
    /// Of these, those that failed: of data, of metadata, of the pool file, of probes.
    pub errors: u64,
    /// Who reads and writes data does not use it for now: many errors came in a row.
    pub is_suspect: bool,
    /// It is out already.
    pub is_out: bool,
}

/// What becomes of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing new: it is used, or it is out and stays so.
    Stays,
    /// Something is wrong with it, and it is not put out for now. Why, in words for the operator.
    Spared(String),
    /// The suspicion is withdrawn.
    Cleared,
    /// It is not used any more. What it has is read as a last resort.
    Out(String),
    /// Nothing at all is asked of it any more: it keeps those waiting who ask.
    GivenUp(String),
}

/// What was seen of one disk before.
#[derive(Clone, Debug, Default)]
pub struct History {
    slow_looks: u32,
    /// Operations, and what they took, of the last looks.
    ops: VecDeque<(u64, u64)>,
    /// Errors of the last looks, but for those with a cause in common.
    errors: VecDeque<u64>,
    /// All errors, and operations that went well, of the last looks.
    recent: VecDeque<(u64, u64)>,
    /// Looks in a row at which it failed by itself, and since it began to fail together with others.
    failing_looks: u32,
    shared_looks: u32,
}

/// Puts `value` behind the last ones, of which `count_max` are kept.
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

    /// How long operations took of late, if there were enough of them.
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

    /// Whether there were errors just now that others may have, too.
    fn suffers(&self, seen: &Evidence) -> bool {
        let errors: u64 = self.recent.iter().map(|(errors, _)| errors).sum();
        !seen.is_out && (seen.is_suspect || errors >= RECENT_ERRORS_MIN)
    }

    /// Whether it has answered for a while, and always well.
    fn is_calm(&self) -> bool {
        let good: u64 = self.recent.iter().map(|(_, good)| good).sum();
        let is_clean = self.recent.iter().all(|(errors, _)| *errors == 0);
        is_clean && self.recent.len() >= RECENT_LOOKS && good >= CALM_OPS_MIN
    }
}

/// What is thought of a disk by itself.
enum Opinion {
    Fine,
    Calm,
    /// It failed, and keeps those waiting now who ask it nevertheless.
    OutAndHangs,
    Hangs,
    Slow(Duration),
    /// It fails, why, and with how many of the others.
    Fails(String, usize),
}

/// Judges all disks. `spare`: disks that may be put out and data be had without them. When there are no more of them,
/// or there is no other disk, also one without an answer is waited for: nobody else could answer, and what holds up all
/// disks for a while, as a controller or a network does, must not put them out.
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
            // What waits for it although it failed before, such as the pool file, must not do so for ever.
            Opinion::OutAndHangs => Verdict::GivenUp("it failed, and has no answer now".to_owned()),
            Opinion::Hangs if can_go => Verdict::GivenUp(format!(
                "an operation had no answer after {} s",
                hang_after.as_secs()
            )),
            Opinion::Hangs => Verdict::Spared(format!(
                "an operation has had no answer for {} s; it is waited for, because no other disk could answer",
                hang_after.as_secs()
            )),
            Opinion::Slow(mean) if can_go => Verdict::GivenUp(format!(
                "its operations take {} ms, more than {SLOW_FACTOR} times those of the others",
                mean.as_millis()
            )),
            Opinion::Slow(_) => Verdict::Stays,
            Opinion::Fails(why, others) => {
                let can_all_go = can_go && others < spare_before;
                fails(seen, history, &why, others, can_go, can_all_go)
            }
        };
        // One that is out already takes nothing more.
        if matches!(verdict, Verdict::Out(_) | Verdict::GivenUp(_)) && !seen.is_out {
            spare = spare.saturating_sub(1);
            left -= 1;
        }
        verdicts.push(verdict);
    }
    verdicts
}

/// The mean of the others in the middle.
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
        // Nothing to compare, or nothing done: neither better nor worse.
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
        // These errors do not count against it, also not when the others are well again.
        history.errors.clear();
        history.failing_looks = 0;
        let why = format!(
            "operations fail on it and on {others} other {} at the same time; look at what they share: controller, \
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
    // The others are well again: it gets the time to be so, too.
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

/// The verdict on a disk on which operations fail, as on so many others. `can_go`: it may be put out; `can_all_go`: also
/// together with the others.
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
        // It does not pass. Where data can be had without all of them, they are as bad as single ones.
        return match history.shared_looks > SHARED_LOOKS && can_all_go {
            true => Verdict::Out(format!("{why}, and that does not pass")),
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
            "{why}; it is not put out, because there is data that could not be had without it"
        )),
    }
}

#[cfg(test)]
mod tests;
