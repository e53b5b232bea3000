//! Latency objectives: whether the requests of a volume are answered as soon as its class says.
//!
//! Owns: which requests count for an objective, over which stretches of time, when an objective is met.
//! Must not know: why requests are slow, and who makes way for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A goal is met while at most one of so many requests takes longer.
pub const GOAL_ONE_LATE_OF: u64 = 100;
/// An objective is judged by the requests that were answered in so long.
const WINDOW: Duration = Duration::from_secs(10);
/// With fewer requests than this a window goes on, up to its longest.
const REQUESTS_MIN: u64 = 100;
const WINDOW_MAX: Duration = Duration::from_secs(60);

/// Requests that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub all: u64,
    /// Of these, what took longer than the goal.
    pub late: u64,
}

impl Answered {
    fn since(self, before: Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            late: self.late.saturating_sub(before.late),
        }
    }

    /// Of fewer than [`GOAL_ONE_LATE_OF`] requests one may be late.
    fn meets_goal(self) -> bool {
        self.late <= self.all.div_ceil(GOAL_ONE_LATE_OF)
    }
}

/// How a volume stands with its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoalReport {
    pub goal: Duration,
    /// Since there is a goal.
    pub answered: Answered,
    /// In the last stretch of time that is over; `None`: none is yet.
    pub last: Option<Answered>,
}

impl GoalReport {
    /// `None`: not known yet.
    pub fn is_met(&self) -> Option<bool> {
        self.last.map(Answered::meets_goal)
    }
}

/// Counted where requests are answered, by any thread.
#[derive(Default)]
pub(crate) struct Counts {
    /// 0: there is no goal.
    goal_ns: AtomicU64,
    all: AtomicU64,
    late: AtomicU64,
}

impl Counts {
    pub fn goal(&self) -> Option<Duration> {
        match self.goal_ns.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    pub fn set_goal(&self, goal: Option<Duration>) {
        let nanos = goal.map_or(0, |goal| {
            u64::try_from(goal.as_nanos()).unwrap_or(u64::MAX).max(1)
        });
        self.goal_ns.store(nanos, Ordering::Relaxed);
    }

    pub fn add(&self, took: Duration) {
        let Some(goal) = self.goal() else { return };
        // The late one first: a reader never sees more late ones than there are.
        if took > goal {
            self.late.fetch_add(1, Ordering::Release);
        }
        self.all.fetch_add(1, Ordering::Release);
    }

    pub fn answered(&self) -> Answered {
        let late = self.late.load(Ordering::Acquire);
        let all = self.all.load(Ordering::Acquire);
        Answered { all, late }
    }
}

/// The stretch of time that a goal is judged by.
pub(crate) struct Window {
    goal: Duration,
    /// When there was a goal, and what had been answered by then.
    first: Answered,
    began: Duration,
    before: Answered,
    last: Option<Answered>,
}

impl Window {
    pub fn new(goal: Duration, answered: Answered, now: Duration) -> Self {
        Self {
            goal,
            first: answered,
            began: now,
            before: answered,
            last: None,
        }
    }

    pub fn goal(&self) -> Duration {
        self.goal
    }

    /// Whether the goal was met in the stretch of time that ends now, if one does.
    pub fn look(&mut self, answered: Answered, now: Duration) -> Option<bool> {
        let (is_for, since) = (now.saturating_sub(self.began), answered.since(self.before));
        if is_for < WINDOW || since.all < REQUESTS_MIN && is_for < WINDOW_MAX {
            return None;
        }
        (self.began, self.before, self.last) = (now, answered, Some(since));
        Some(since.meets_goal())
    }

    pub fn report(&self, answered: Answered) -> GoalReport {
        GoalReport {
            goal: self.goal,
            answered: answered.since(self.first),
            last: self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: Duration = Duration::from_millis(2);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_of_a_hundred_may_be_late() {
        // Answered, of these late, met.
        for (all, late, want) in [
            (0, 0, true),
            (1, 1, true),
            (5, 2, false),
            (100, 1, true),
            (100, 2, false),
            (1000, 10, true),
            (1000, 11, false),
        ] {
            assert_eq!(Answered { all, late }.meets_goal(), want, "{late} of {all}");
        }
    }

    #[test]
    fn what_takes_longer_than_the_goal_is_late() {
        let counts = Counts::default();
        counts.add(at(100));
        assert_eq!(counts.answered(), Answered::default(), "there is no goal");
        counts.set_goal(Some(GOAL));
        counts.add(GOAL);
        counts.add(GOAL + Duration::from_nanos(1));
        assert_eq!(counts.answered(), Answered { all: 2, late: 1 });
        counts.set_goal(None);
        assert_eq!(counts.goal(), None);
    }

    #[test]
    fn few_requests_are_looked_at_for_longer() {
        let mut answered = Answered { all: 70, late: 70 };
        let mut window = Window::new(GOAL, answered, at(100));
        assert_eq!(window.report(answered).is_met(), None);
        answered.all += 1000;
        assert_eq!(window.look(answered, at(109)), None);
        assert_eq!(window.look(answered, at(110)), Some(true));
        answered.all += 99;
        answered.late += 3;
        assert_eq!(window.look(answered, at(125)), None, "too few");
        answered.all += 1;
        assert_eq!(window.look(answered, at(126)), Some(false));
        assert_eq!(window.look(answered, at(185)), None, "none at all");
        assert_eq!(window.look(answered, at(186)), Some(true));
        let report = window.report(answered);
        assert_eq!((report.goal, report.is_met()), (GOAL, Some(true)));
        assert_eq!(report.answered, Answered { all: 1100, late: 3 });
    }
}
