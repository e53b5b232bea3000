//! When a scrub begins by itself, and when it rests: the timer and the maintenance window of the pool.
//!
//! Owns: what a look at the clock leads to. Must not know: when a window is open (`formats`), how a scrub goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::{Timestamp, VolumeId};
use cairn_formats::pool_file::PoolState;
use cairn_formats::scrub_file::{ScrubStage, ScrubState};
use cairn_formats::settings::Maintenance;

use crate::pool::{ChangeFailure, Pool};

/// The volumes of a cluster's node are those that it keeps when they have been the same for so long.
const SETTLED: Duration = Duration::from_secs(10);

/// The decision on the scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// It stays as it is: none is due, one that an operator began goes on, one that an operator paused does not.
    Nothing,
    Begin,
    /// It was begun by the timer, and the window is closed.
    Rest,
    GoOn,
}

fn act(state: &ScrubState, maintenance: &Maintenance, now: Timestamp) -> Act {
    match state.stage {
        ScrubStage::Never | ScrubStage::Done => {
            let next = maintenance.next_scrub(last_begun(state, now), now);
            match next.is_some_and(|next| next <= now) {
                true => Act::Begin,
                false => Act::Nothing,
            }
        }
        ScrubStage::Running if !state.by_schedule => Act::Nothing,
        ScrubStage::Running if maintenance.is_open(now) => Act::GoOn,
        ScrubStage::Running => Act::Rest,
        ScrubStage::Paused => Act::Nothing,
    }
}

/// When the last scrub began, by itself or by hand. A time to come is that of a clock that was wrong.
fn last_begun(state: &ScrubState, now: Timestamp) -> Option<Timestamp> {
    let begun = Timestamp::new(state.started_seconds, 0);
    (state.stage != ScrubStage::Never && begun <= now).then_some(begun)
}

/// When the next scrub begins by itself: `None` if none will. A paused one has to be ended first.
pub(super) fn next(
    state: &ScrubState,
    maintenance: &Maintenance,
    now: Timestamp,
) -> Option<Timestamp> {
    match state.stage {
        ScrubStage::Paused => None,
        ScrubStage::Never | ScrubStage::Running | ScrubStage::Done => {
            maintenance.next_scrub(last_begun(state, now), now)
        }
    }
}

/// For how long a scrub that begins by itself could have begun, and has not. `None` also where that is not known: before the first
/// one nobody notes since when it is due.
pub(super) fn overdue(
    state: &ScrubState,
    maintenance: &Maintenance,
    now: Timestamp,
) -> Option<Duration> {
    let every = maintenance.scrub_every?;
    if state.stage != ScrubStage::Done {
        return None;
    }
    let begun = last_begun(state, now)?;
    let due = Timestamp::new(begun.seconds.saturating_add(every.seconds()), begun.nanos);
    let window = maintenance.window.as_ref();
    let due = window.map_or(due, |window| window.next_open(due));
    let late = now.seconds.saturating_sub(due.seconds);
    let late = u64::try_from(late).ok().filter(|late| *late > 0);
    late.map(Duration::from_secs)
}

/// Whether a scrub that begins now finds the volumes that it is to read. A node of a cluster has them some time after its start:
/// one that began before would be done at once, and the next would be due long after.
fn has_its_volumes(pool: &Pool) -> bool {
    let now = pool.env.clock.monotonic();
    let volumes: BTreeSet<VolumeId> = pool.services().into_keys().collect();
    let mut served = pool.scrub.served.lock();
    if served.0 != volumes {
        *served = (volumes, now);
    }
    let is_settled = pool.seats.is_none() || now.saturating_sub(served.1) >= SETTLED;
    !served.0.is_empty() && is_settled
}

/// Begins a scrub that is due, has one rest, or lets it go on.
pub(super) async fn look(pool: &Arc<Pool>) {
    let now = pool.env.clock.now();
    let maintenance = pool.state().maintenance.clone();
    let scrub = &pool.scrub;
    let has_its_volumes = has_its_volumes(pool);
    let is_changed = {
        let mut state = scrub.state.lock();
        if scrub.is_ending.load(Ordering::Acquire) {
            return;
        }
        match act(&state, &maintenance, now) {
            Act::Nothing => false,
            Act::Begin if !has_its_volumes => false,
            Act::Begin => {
                pool.scrub_begin(&mut state, None, now.seconds);
                state.by_schedule = true;
                scrub.set_resting(&state, false);
                tracing::info!("a scrub begins, as its schedule says");
                true
            }
            Act::Rest => {
                let rests_now = !scrub.is_resting();
                scrub.set_resting(&state, true);
                if rests_now {
                    // Its speed is measured anew when it goes on.
                    *scrub.since.lock() = None;
                    tracing::info!("the scrub rests until the maintenance window opens");
                }
                rests_now
            }
            Act::GoOn => {
                if scrub.is_resting() {
                    tracing::info!("the maintenance window is open: the scrub goes on");
                }
                scrub.set_resting(&state, false);
                false
            }
        }
    };
    if is_changed {
        super::save(pool).await;
        scrub.wake.wake();
    }
}

impl Pool {
    /// Sets when the pool's own work is done and how often a scrub begins; in a cluster of all nodes.
    ///
    /// Fails as any change of the pool's state does. A scrub that rests goes on within a second if the window is open now.
    pub async fn set_maintenance(&self, maintenance: Maintenance) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        state.maintenance = maintenance;
        self.save(&mut tried, &mut state).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-28, a Saturday, 00:00 UTC.
    const SATURDAY: i64 = 1_795_824_000;
    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    #[test]
    fn the_timer_begins_what_is_due_and_holds_only_what_it_began() {
        use ScrubStage::{Done, Never, Paused, Running};
        let (closed, open) = (SATURDAY + 12 * HOUR, SATURDAY + 23 * HOUR);
        let week = Some("7d".parse().unwrap());
        let night = Some("sat:22:00-06:00".parse().unwrap());
        let set = |scrub_every, window| Maintenance {
            scrub_every,
            window,
            spread_paused: false,
        };
        let both = set(week, night.clone());
        let cases = [
            (
                "nothing is set",
                Maintenance::default(),
                Never,
                false,
                open,
                Act::Nothing,
            ),
            (
                "no timer",
                set(None, night.clone()),
                Never,
                false,
                open,
                Act::Nothing,
            ),
            (
                "no window",
                set(week, None),
                Never,
                false,
                closed,
                Act::Begin,
            ),
            (
                "the first, closed",
                both.clone(),
                Never,
                false,
                closed,
                Act::Nothing,
            ),
            (
                "the first, open",
                both.clone(),
                Never,
                false,
                open,
                Act::Begin,
            ),
            (
                "due, closed",
                both.clone(),
                Done,
                true,
                closed,
                Act::Nothing,
            ),
            ("due, open", both.clone(), Done, false, open, Act::Begin),
            (
                "begun by the timer, closed",
                both.clone(),
                Running,
                true,
                closed,
                Act::Rest,
            ),
            (
                "begun by the timer, open",
                both.clone(),
                Running,
                true,
                open,
                Act::GoOn,
            ),
            (
                "the window was taken away",
                set(week, None),
                Running,
                true,
                closed,
                Act::GoOn,
            ),
            (
                "begun by hand, closed",
                both.clone(),
                Running,
                false,
                closed,
                Act::Nothing,
            ),
            (
                "begun by hand, open",
                both.clone(),
                Running,
                false,
                open,
                Act::Nothing,
            ),
            ("paused", both, Paused, true, open, Act::Nothing),
        ];
        for (name, maintenance, stage, by_schedule, now, want) in cases {
            let state = ScrubState {
                stage,
                by_schedule,
                started_seconds: SATURDAY - 7 * DAY,
                ..ScrubState::default()
            };
            assert_eq!(
                act(&state, &maintenance, Timestamp::new(now, 0)),
                want,
                "{name}"
            );
        }
        let state = ScrubState {
            stage: Done,
            started_seconds: SATURDAY - DAY,
            ..ScrubState::default()
        };
        let at = |seconds| Timestamp::new(seconds, 0);
        let timer = set(week, night);
        assert_eq!(act(&state, &timer, at(open)), Act::Nothing, "not due yet");
        assert_eq!(
            next(&state, &timer, at(open)),
            Some(at(SATURDAY + 7 * DAY + 22 * HOUR))
        );
        let ahead = ScrubState {
            started_seconds: open + 3650 * DAY,
            ..state
        };
        assert_eq!(
            act(&ahead, &timer, at(open)),
            Act::Begin,
            "the clock was wrong"
        );
    }
    #[test]
    fn a_scrub_is_late_from_when_it_could_have_begun() {
        use ScrubStage::{Done, Never, Paused, Running};
        let week = Some("7d".parse().unwrap());
        let night = Some("sat:22:00-06:00".parse().unwrap());
        let set = |scrub_every, window| Maintenance {
            scrub_every,
            window,
            spread_paused: false,
        };
        let hours = |hours: i64| Some(Duration::from_secs((hours * HOUR).unsigned_abs()));
        let (timer, both) = (set(week, None), set(week, night.clone()));
        // The last one began a week before this Saturday.
        let cases = [
            ("no timer", set(None, night), Done, 900, None),
            ("not due", timer.clone(), Done, -1, None),
            ("just due", timer.clone(), Done, 0, None),
            ("late", timer.clone(), Done, 12, hours(12)),
            (
                "due, and the window is closed",
                both.clone(),
                Done,
                21,
                None,
            ),
            (
                "the window opened an hour ago",
                both.clone(),
                Done,
                23,
                hours(1),
            ),
            ("and was not used", both.clone(), Done, 22 + 48, hours(48)),
            (
                "since when the first is due nobody knows",
                both.clone(),
                Never,
                900,
                None,
            ),
            ("it runs", both.clone(), Running, 900, None),
            ("somebody paused it", both, Paused, 900, None),
        ];
        for (name, maintenance, stage, hour, want) in cases {
            let state = ScrubState {
                stage,
                started_seconds: SATURDAY - 7 * DAY,
                ..ScrubState::default()
            };
            let now = Timestamp::new(SATURDAY + hour * HOUR, 0);
            assert_eq!(overdue(&state, &maintenance, now), want, "{name}");
        }
    }
}
