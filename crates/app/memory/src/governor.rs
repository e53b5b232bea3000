//! What gives way near the memory limit: a decision ten times in a second, as plain data.
//!
//! Owns: how near is near, what gives way first, and how it comes back. Must not know: how memory is measured, what the caches are.
//!
//! Freed memory goes back first, since that costs clients least. Then caches shrink by what is too much. Where they are as small as
//! they get, less written data may wait for its flush, and at last callers wait before they bring more. They wait for half a
//! second at the most, and only while there is data on its way whose end frees memory: flushes need no caller, so that nothing
//! waits for itself, and a limit that the process cannot keep does not stop it.

use std::collections::VecDeque;
use std::time::Duration;

/// Between two looks.
pub const TICK: Duration = Duration::from_millis(100);

/// Parts of the limit, in permille. Below this caches grow again,
const CALM: u64 = 820;
/// to this they shrink,
const TARGET: u64 = 880;
/// and above this they have to.
const NEAR: u64 = 900;
/// From here on less data waits for its flush.
const HIGH: u64 = 960;
/// From here on callers wait.
const FULL: u64 = 980;

/// For so long, in ticks, there was room before caches grow.
const GROW_AFTER: u32 = 20;
/// Freed memory goes back alone, without smaller caches, at most once in so many ticks: what is kept all the time is in use.
const GIVE_BACK_ALONE_EVERY: u32 = 50;
/// Ticks between two such returns while memory is so short that less data may wait for its flush.
const GIVE_BACK_SHORT_EVERY: u32 = 5;
/// Caches shrink again after so many ticks, unless memory is so short: what they dropped may be in use for a moment.
const SETTLE_TICKS: u32 = 3;
/// In permille of what may wait for its flush: the least, and what it changes by in a tick.
const DIRTY_LEAST: u16 = 250;
const DIRTY_STEP: u16 = 50;
/// Callers wait for so many ticks, and then none does for so many.
const PAUSE_TICKS: u32 = 5;
const OPEN_TICKS: u32 = 2;
/// A part of the limit. With less on its way, waiting for it would free next to nothing.
const ON_ITS_WAY_LEAST: u64 = 20;
/// The process counts as beyond its limit when it was so at the last so many looks: two seconds.
const STEADY_TICKS: usize = 20;

/// What there is at one look, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// What the process has.
    pub resident_bytes: u64,
    /// What all caches together hold now.
    pub cache_bytes: u64,
    /// What they may have while memory is ample; it changes with the number of open volumes.
    pub cache_full_bytes: u64,
    /// What they have at the least.
    pub cache_least_bytes: u64,
    /// Data and requests on their way, which free their memory by themselves.
    pub on_its_way_bytes: u64,
}

/// The measures until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// What all caches together may have.
    pub cache_bytes: u64,
    /// How much of the data that may wait for its flush may do so, in permille.
    pub dirty_permille: u16,
    /// Whether callers with data, or who ask for some, wait.
    pub callers_wait: bool,
    /// Whether allocators give back what was freed, after caches have shrunk.
    pub give_back: bool,
}

/// Decides what gives way. Does nothing itself; its only time is the number of looks.
#[derive(Debug)]
pub struct Governor {
    limit_bytes: u64,
    /// What caches may have at most, if that is less than all.
    cap_bytes: Option<u64>,
    dirty_permille: u16,
    /// Looks since there was not enough room for caches to grow.
    calm_ticks: u32,
    /// Looks since freed memory went back.
    kept_ticks: u32,
    /// Looks since callers began to wait, or ceased to.
    callers_wait: bool,
    turn_ticks: u32,
    /// Of the last looks, the latest one last.
    resident: VecDeque<u64>,
}

impl Governor {
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            cap_bytes: None,
            dirty_permille: 1000,
            calm_ticks: 0,
            kept_ticks: GIVE_BACK_ALONE_EVERY,
            callers_wait: false,
            turn_ticks: OPEN_TICKS,
            resident: VecDeque::with_capacity(STEADY_TICKS),
        }
    }

    /// The least that the process had at the last looks, of two seconds; `None` before there were so many. A peak that ends by
    /// itself is not in it.
    pub fn steady_bytes(&self) -> Option<u64> {
        let is_whole = self.resident.len() == STEADY_TICKS;
        self.resident.iter().min().copied().filter(|_| is_whole)
    }

    /// To be called once every [`TICK`].
    pub fn look(&mut self, seen: MemorySample) -> Orders {
        if self.resident.len() == STEADY_TICKS {
            self.resident.pop_front();
        }
        self.resident.push_back(seen.resident_bytes);
        let give_back = self.decide_caches(seen);
        self.decide_dirty(seen);
        self.decide_callers(seen);
        let full = seen.cache_full_bytes.max(seen.cache_least_bytes);
        let cap = self.cap_bytes.unwrap_or(full);
        Orders {
            cache_bytes: cap.clamp(seen.cache_least_bytes, full),
            dirty_permille: self.dirty_permille,
            callers_wait: self.callers_wait,
            give_back,
        }
    }

    /// Returns whether freed memory is to go back.
    fn decide_caches(&mut self, seen: MemorySample) -> bool {
        self.kept_ticks = self.kept_ticks.saturating_add(1);
        if seen.resident_bytes <= self.part(NEAR) {
            self.grow_caches(seen);
            return false;
        }
        self.calm_ticks = 0;
        if self.kept_ticks < SETTLE_TICKS && seen.resident_bytes <= self.part(HIGH) {
            return false;
        }
        if self.kept_ticks <= GIVE_BACK_ALONE_EVERY {
            // It went back lately, and that was not enough.
            let excess = seen.resident_bytes - self.part(TARGET);
            let held = seen.cache_bytes.min(self.cap_bytes.unwrap_or(u64::MAX));
            let cap = held.saturating_sub(excess).max(seen.cache_least_bytes);
            self.cap_bytes = Some(cap);
            // At their least, caches free nothing more. What others free is given back once in a while.
            let every = match seen.resident_bytes > self.part(HIGH) {
                true => GIVE_BACK_SHORT_EVERY,
                false => GIVE_BACK_ALONE_EVERY,
            };
            if held <= seen.cache_least_bytes && self.kept_ticks < every {
                return false;
            }
        }
        self.kept_ticks = 0;
        true
    }

    fn grow_caches(&mut self, seen: MemorySample) {
        if seen.resident_bytes >= self.part(CALM) {
            self.calm_ticks = 0;
            return;
        }
        self.calm_ticks = self.calm_ticks.saturating_add(1);
        let Some(cap) = self.cap_bytes else { return };
        if self.calm_ticks < GROW_AFTER {
            return;
        }
        // A cache takes a while to fill, and is measured meanwhile.
        self.calm_ticks = 0;
        let room = self.part(TARGET) - seen.resident_bytes;
        let cap = cap.saturating_add(room / 2);
        self.cap_bytes = (cap < seen.cache_full_bytes).then_some(cap);
    }

    fn decide_dirty(&mut self, seen: MemorySample) {
        if seen.resident_bytes > self.part(HIGH) {
            let less = self.dirty_permille.saturating_sub(2 * DIRTY_STEP);
            self.dirty_permille = less.max(DIRTY_LEAST);
        } else if seen.resident_bytes < self.part(NEAR) {
            self.dirty_permille = (self.dirty_permille + DIRTY_STEP).min(1000);
        }
    }

    fn decide_callers(&mut self, seen: MemorySample) {
        self.turn_ticks = self.turn_ticks.saturating_add(1);
        let is_full = seen.resident_bytes > self.part(FULL);
        let helps = seen.on_its_way_bytes > self.limit_bytes / ON_ITS_WAY_LEAST;
        let wait = match self.callers_wait {
            true => is_full && helps && self.turn_ticks < PAUSE_TICKS,
            false => is_full && helps && self.turn_ticks >= OPEN_TICKS,
        };
        if wait != self.callers_wait {
            self.callers_wait = wait;
            self.turn_ticks = 0;
        }
    }

    fn part(&self, permille: u64) -> u64 {
        let part = u128::from(self.limit_bytes) * u128::from(permille) / 1000;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// At a limit of 1000 MiB, with caches that hold 400 of the 500 MiB that they may have.
    fn seen(resident: u64) -> MemorySample {
        MemorySample {
            resident_bytes: resident * MIB,
            cache_bytes: 400 * MIB,
            cache_full_bytes: 500 * MIB,
            cache_least_bytes: 50 * MIB,
            on_its_way_bytes: 0,
        }
    }

    fn governor() -> Governor {
        Governor::new(1000 * MIB)
    }

    fn ample() -> Orders {
        Orders {
            cache_bytes: 500 * MIB,
            dirty_permille: 1000,
            callers_wait: false,
            give_back: false,
        }
    }

    #[test]
    fn nothing_gives_way_while_there_is_room() {
        let mut governor = governor();
        for resident in [0, 500, 819, 821, 881, 900] {
            assert_eq!(governor.look(seen(resident)), ample(), "{resident}");
        }
    }

    #[test]
    fn freed_memory_goes_back_before_caches_shrink() {
        let mut governor = governor();
        let given_back = Orders {
            give_back: true,
            ..ample()
        };
        assert_eq!(governor.look(seen(901)), given_back);
        // That was enough.
        assert_eq!(governor.look(seen(850)), ample());
        // Soon after it would not be, once that has settled.
        let shrunk = Orders {
            cache_bytes: (400 - 30) * MIB,
            give_back: true,
            ..ample()
        };
        assert_eq!(governor.look(seen(910)), ample());
        assert_eq!(governor.look(seen(910)), shrunk);
        let held = MemorySample {
            cache_bytes: 370 * MIB,
            ..seen(905)
        };
        let caches = [0; SETTLE_TICKS as usize].map(|_| governor.look(held).cache_bytes / MIB);
        assert_eq!(caches, [370, 370, 370 - 25]);
        // Far too much: down to the least, and no further.
        assert_eq!(governor.look(seen(2000)).cache_bytes, 50 * MIB);
        assert_eq!(governor.look(seen(3000)).cache_bytes, 50 * MIB);
    }

    #[test]
    fn caches_grow_back_when_there_was_room_for_a_while() {
        let mut governor = governor();
        for _ in 0..SETTLE_TICKS {
            governor.look(seen(950));
        }
        let small = governor.look(seen(950)).cache_bytes;
        assert_eq!(small, 330 * MIB);
        // In between they stay as they are.
        for _ in 0..100 {
            assert_eq!(governor.look(seen(860)).cache_bytes, small);
        }
        for _ in 1..GROW_AFTER {
            assert_eq!(governor.look(seen(800)).cache_bytes, small);
        }
        let grown = governor.look(seen(800)).cache_bytes;
        assert_eq!(grown, small + 40 * MIB);
        for _ in 0..GROW_AFTER * 20 {
            governor.look(seen(800));
        }
        assert_eq!(governor.look(seen(800)), ample());
    }

    #[test]
    fn caches_never_have_more_than_is_theirs_for_so_many_volumes() {
        let mut governor = governor();
        for _ in 0..=SETTLE_TICKS {
            governor.look(seen(910));
        }
        let fewer = MemorySample {
            cache_full_bytes: 100 * MIB,
            ..seen(860)
        };
        assert_eq!(governor.look(fewer).cache_bytes, 100 * MIB);
    }

    #[test]
    fn less_data_waits_while_memory_is_short() {
        let mut governor = governor();
        let mut permille = |resident| governor.look(seen(resident)).dirty_permille;
        assert_eq!([permille(970), permille(970)], [900, 800]);
        assert_eq!([permille(930), permille(899)], [800, 850]);
        for _ in 0..20 {
            permille(970);
        }
        assert_eq!(permille(970), DIRTY_LEAST);
        for _ in 0..20 {
            permille(800);
        }
        assert_eq!(permille(800), 1000);
    }

    #[test]
    fn callers_wait_in_turns_and_only_for_what_is_on_its_way() {
        let mut governor = governor();
        let mut wait = |resident, on_its_way: u64| {
            let seen = MemorySample {
                on_its_way_bytes: on_its_way * MIB,
                ..seen(resident)
            };
            governor.look(seen).callers_wait
        };
        assert!(!wait(990, 50), "next to nothing is on its way");
        assert!(!wait(980, 200), "the limit is not reached");
        assert!(wait(990, 200));
        assert!(!wait(970, 200), "it was enough");
        let turns: Vec<bool> = (0..14).map(|_| wait(990, 200)).collect();
        let want = [0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0].map(|turn| turn == 1);
        assert_eq!(turns, want);
    }

    #[test]
    fn a_peak_is_not_what_the_process_has() {
        let mut governor = governor();
        assert_eq!(governor.steady_bytes(), None);
        for _ in 0..STEADY_TICKS {
            governor.look(seen(1100));
        }
        assert_eq!(governor.steady_bytes(), Some(1100 * MIB));
        governor.look(seen(700));
        for _ in 1..STEADY_TICKS {
            governor.look(seen(1200));
            assert_eq!(governor.steady_bytes(), Some(700 * MIB));
        }
        governor.look(seen(1200));
        assert_eq!(governor.steady_bytes(), Some(1200 * MIB));
    }

    /// A process: what it has beside caches, what it keeps of freed memory, and its caches, which take what they may.
    struct Process {
        others: u64,
        kept: u64,
        caches: u64,
    }

    impl Process {
        fn resident(&self) -> u64 {
            self.others + self.kept + self.caches
        }

        /// Does what was decided; caches that may grow do so by `growth` at most.
        fn obey(&mut self, orders: Orders, growth: u64) {
            let grown = self.caches.saturating_add(growth);
            let caches = grown.min(orders.cache_bytes);
            self.kept += self.caches.saturating_sub(caches);
            self.caches = caches;
            if orders.give_back {
                self.kept = 0;
            }
        }
    }

    proptest! {
        /// Whatever others have, and however much of it is freed and kept: as long as the limit has room for them, the
        /// process is below it soon and stays there, and what is free goes to caches.
        #[test]
        fn the_limit_is_kept(
            limit in 200_u64..4000,
            others_percent in 0_u64..85,
            kept_percent in 0_u64..60,
            growth in 1_u64..64,
        ) {
            let limit = limit * MIB;
            let (full, least) = (limit / 2, limit / 50);
            let others = limit / 100 * others_percent;
            let mut process = Process { others, kept: limit / 100 * kept_percent, caches: limit / 2 };
            let mut governor = Governor::new(limit);
            for tick in 0..2000 {
                let seen = MemorySample {
                    resident_bytes: process.resident(),
                    cache_bytes: process.caches,
                    cache_full_bytes: full,
                    cache_least_bytes: least,
                    on_its_way_bytes: 0,
                };
                let orders = governor.look(seen);
                prop_assert!((least..=full).contains(&orders.cache_bytes));
                prop_assert!((DIRTY_LEAST..=1000).contains(&orders.dirty_permille));
                process.obey(orders, growth * MIB / 10);
                // The excess at the beginning is gone; then only growth is to be caught up with.
                if tick > SETTLE_TICKS + 1 {
                    let most = governor.part(NEAR) + growth * MIB;
                    prop_assert!(process.resident() <= most, "{} {most} {tick}", process.resident());
                }
            }
            let could = governor.part(CALM).saturating_sub(others).min(full);
            prop_assert!(process.caches >= could / 2, "{} {could}", process.caches);
        }

        /// Of any readings: callers never wait for longer than their turn.
        #[test]
        fn nobody_waits_for_ever(readings in proptest::collection::vec((0_u64..3000, 0_u64..2000), 1..200)) {
            let mut governor = governor();
            let mut waited = 0;
            for (resident, on_its_way) in readings {
                let seen = MemorySample { on_its_way_bytes: on_its_way * MIB, ..seen(resident) };
                waited = match governor.look(seen).callers_wait {
                    true => waited + 1,
                    false => 0,
                };
                prop_assert!(waited <= PAUSE_TICKS);
            }
        }
    }
}
