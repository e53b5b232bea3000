//! Decides how much garbage is too much, and which segments are rewritten for it; the decision is plain data.
//!
//! Owns: the policy of garbage collection. Must not know: how segments are found or rewritten.
//!
//! Garbage is room in sealed segments that no live record takes. It may be a share of the live bytes. Above that
//! share segments are rewritten until garbage is clearly below it, so that each pass over the extents, which finds
//! the live records, gives back a good part of all garbage. The share shrinks as the pool fills. The segments with
//! the best ratio of gain to cost come first. The gain is the room that a rewrite gives back, times how long it will
//! stay free (old data is likely to stay unchanged); the cost is the bytes that are read and written (Rosenblum and
//! Ousterhout, 1992).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use cairn_base::SegmentId;
use cairn_meta::SegmentUsage;

/// Segments that one pass rewrites at most, and the number of candidates that a survey keeps.
pub(crate) const CANDIDATES_MAX: usize = 4096;
/// While so much of the pool is free, the full share of garbage is allowed, in percent.
const ROOMY_PERCENT: u64 = 20;
/// When nothing is free, garbage may still be this share of the live bytes, in percent: to have less would cost many
/// times the gain.
const TIGHT_GARBAGE_PERCENT: u64 = 5;
/// Rewriting goes on until garbage is this share of the allowed amount, in percent.
const ENOUGH_PERCENT: u64 = 75;
/// Garbage is urgent above the allowed amount and this share of the live bytes, in percent.
const PATIENCE_PERCENT: u64 = 10;
/// While less of the pool is free, garbage is urgent as well, in percent.
const PRESSED_PERCENT: u64 = 5;
/// The part of the live bytes that one pass moves at most: the extra space that it needs meanwhile.
const PASS_LIVE_PART: u64 = 8;
/// Live bytes that one pass may always move.
const PASS_LIVE_BYTES_MIN: u64 = 64 << 20;
/// The part of the free room that one pass may take, in percent; clients take some of the room meanwhile.
const ROOM_PERCENT: u64 = 75;
/// A pass becomes smaller when its remaining work would take more than this part of the remaining room, in percent.
const NARROW_PERCENT: u64 = 90;
/// A volume without writes for so long is idle, and is packed more tightly: no writer waits for that, and others can
/// use the room.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// In an idle volume garbage may be at most this share of the live bytes, in percent,
const IDLE_GARBAGE_PERCENT: u64 = 20;
/// plus so many bytes,
const IDLE_GARBAGE_BYTES: u64 = 128 << 20;
/// or plus an equal part of this amount, where there are many volumes,
const IDLE_GARBAGE_OF_ALL_BYTES: u64 = 256 << 20;
/// but never less than this.
const IDLE_GARBAGE_BYTES_MIN: u64 = 8 << 20;
/// An idle volume without anything to give back is surveyed again after so long: a survey visits all segments.
const IDLE_REST: Duration = Duration::from_secs(300);
/// It is surveyed earlier when so much garbage came from deletions, which write nothing.
const IDLE_NEWS_BYTES: u64 = 16 << 20;
/// While nobody changes a volume, its log is cut after pauses that grow by this factor,
const QUIET_PAUSE_FACTOR: u32 = 4;
/// up to this pause.
const QUIET_PAUSE_MAX: Duration = Duration::from_secs(6 * 3600);
/// Bytes that may be moved for each byte that was written or deleted.
const MOVED_PER_CHANGED_BYTE: u64 = 8;
/// A rewrite gives back at least this part of the room that it empties.
const GAIN_PART: u64 = 16;
/// Minimum cost of a copy of small records: a block on each data shard.
const BLOCK_BYTES: u64 = 4096;
const DATA_SHARDS_MAX: u64 = 16;

/// Room in the pool, in bytes of data under the volume's erasure code.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The room that garbage collection may fill, with the reserve.
    pub rewrite_bytes: u64,
}

/// Limits on the amount of garbage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Above this amount segments are rewritten,
    pub allowed_bytes: u64,
    /// down to this amount;
    pub enough_bytes: u64,
    /// above this amount writers wait for the collector.
    pub urgent_bytes: u64,
    /// Space is so short that garbage is urgent at any amount.
    pub is_pressed: bool,
}

impl Limits {
    /// Allows `garbage_percent` of the live bytes plus `garbage_bytes`, while there is room.
    pub fn of(live_bytes: u64, room: Room, garbage_percent: u64, garbage_bytes: u64) -> Self {
        let roomy_bytes = percent(room.total_bytes, ROOMY_PERCENT).max(1);
        let free_bytes = room.free_bytes.min(roomy_bytes);
        let scaled = |most: u64| part(most, free_bytes, roomy_bytes);
        let least = TIGHT_GARBAGE_PERCENT.min(garbage_percent);
        let share =
            percent(live_bytes, least) + scaled(percent(live_bytes, garbage_percent - least));
        let allowed_bytes = share.saturating_add(scaled(garbage_bytes));
        Self {
            allowed_bytes,
            enough_bytes: percent(allowed_bytes, ENOUGH_PERCENT),
            urgent_bytes: allowed_bytes.saturating_add(percent(live_bytes, PATIENCE_PERCENT)),
            is_pressed: room.free_bytes < percent(room.total_bytes, PRESSED_PERCENT),
        }
    }

    /// Bytes that clients may write until garbage is urgent, if all of them become garbage.
    pub fn credit_bytes(&self, garbage_bytes: u64) -> u64 {
        match self.is_pressed && garbage_bytes > self.allowed_bytes {
            true => 0,
            false => self.urgent_bytes.saturating_sub(garbage_bytes),
        }
    }

    /// The urgency, from 0 (no more urgent than other work) to 1.
    pub fn urgency(&self, garbage_bytes: u64) -> f64 {
        let over = garbage_bytes.saturating_sub(self.allowed_bytes) as f64;
        let patience = self.urgent_bytes.saturating_sub(self.allowed_bytes).max(1) as f64;
        match self.is_pressed && garbage_bytes > self.allowed_bytes {
            true => 1.0,
            false => (over / patience).min(1.0),
        }
    }
}

/// The garbage that an idle volume, one of so many volumes, may have: in percent of the live bytes, and in bytes
/// beside. The arguments are the usual amounts.
pub(crate) fn idle_garbage(
    garbage_percent: u64,
    garbage_bytes: u64,
    volume_count: usize,
) -> (u64, u64) {
    let each = IDLE_GARBAGE_OF_ALL_BYTES / volume_count.max(1) as u64;
    let most = each.clamp(IDLE_GARBAGE_BYTES_MIN, IDLE_GARBAGE_BYTES);
    (
        garbage_percent.min(IDLE_GARBAGE_PERCENT),
        garbage_bytes.min(most),
    )
}

/// Tracks how long a volume had no writes.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// The flushed bytes at the last change, and the time of that change.
    last: Option<(u64, Duration)>,
    rests_until: Duration,
    /// The amount of garbage at the beginning of the rest.
    rests_with: u64,
    /// The next rest after stuck segments: twice as long each time, until some garbage is given back.
    stuck_rest: Duration,
}

impl Idle {
    /// Whether to pack the volume more tightly; `flushed_bytes` counts from the start on.
    pub fn look(&mut self, flushed_bytes: u64, garbage_bytes: u64, now: Duration) -> bool {
        match self.last {
            Some((last_bytes, since)) if last_bytes == flushed_bytes => {
                if garbage_bytes >= self.rests_with.saturating_add(IDLE_NEWS_BYTES) {
                    self.rests_until = self.rests_until.min(now);
                    self.stuck_rest = Duration::ZERO;
                }
                now.saturating_sub(since) >= IDLE_AFTER && now >= self.rests_until
            }
            _ => {
                self.last = Some((flushed_bytes, now));
                self.rests_until = now;
                self.stuck_rest = Duration::ZERO;
                false
            }
        }
    }

    /// No more of this garbage can be given back for now. `stuck`: some segments cannot be emptied for so long, and
    /// may be after that. They may be stuck for as long as a disk is away, so the rest doubles each time.
    pub fn rest(&mut self, garbage_bytes: u64, stuck: Option<Duration>, now: Duration) {
        if garbage_bytes.saturating_add(IDLE_NEWS_BYTES) <= self.rests_with {
            self.stuck_rest = Duration::ZERO;
        }
        let rest = stuck.map_or(IDLE_REST, |stuck| self.stuck_rest.max(stuck).min(IDLE_REST));
        self.stuck_rest = stuck.map_or(Duration::ZERO, |_| rest * 2);
        self.rests_until = now.saturating_add(rest);
        self.rests_with = garbage_bytes;
    }
}

/// Tracks how long a volume had no change at all, of its metadata included.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    last_change: Option<u64>,
    /// The time of the next cut of the log, and the pause after it.
    next: Duration,
    pause: Duration,
}

impl Quiet {
    /// Whether to cut the log of a quiet volume now; `change` is the number of the last change. The pauses grow: a
    /// disk may have had no room for the copy of the state that a cut needs.
    pub fn is_due(&mut self, change: u64, now: Duration) -> bool {
        if self.last_change != Some(change) {
            self.last_change = Some(change);
            self.pause = IDLE_AFTER;
            self.next = now.saturating_add(self.pause);
            return false;
        }
        let is_due = now >= self.next;
        if is_due {
            self.pause = (self.pause * QUIET_PAUSE_FACTOR).min(QUIET_PAUSE_MAX);
            self.next = now.saturating_add(self.pause);
        }
        is_due
    }
}

/// The budget of bytes to move. Written and deleted bytes add to it, so a pool that cannot be packed more tightly is
/// not packed again and again.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    bytes: u64,
    /// Live, flushed and moved bytes at the last survey.
    last: Option<(u64, u64, u64)>,
}

impl Budget {
    /// Updates the budget after a survey of all segments; `flushed_bytes` and `moved_bytes` count from the start on.
    pub fn update(&mut self, live_bytes: u64, flushed_bytes: u64, moved_bytes: u64) -> u64 {
        let bytes = match self.last {
            // The first time, all live bytes: the earlier budget is unknown.
            None => live_bytes,
            Some((live, flushed, moved)) => {
                let changed = live_bytes.abs_diff(live) + flushed_bytes.saturating_sub(flushed);
                let earned = changed.saturating_mul(MOVED_PER_CHANGED_BYTE);
                let spent = moved_bytes.saturating_sub(moved);
                self.bytes.saturating_add(earned).saturating_sub(spent)
            }
        };
        self.bytes = bytes.min(live_bytes.saturating_mul(2));
        self.last = Some((live_bytes, flushed_bytes, moved_bytes));
        self.bytes
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    part(of, percent, 100)
}

fn part(of: u64, numerator: u64, denominator: u64) -> u64 {
    let part = u128::from(of) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// A segment that could be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    score: u64,
    /// Among equal scores, the older segment wins.
    id: Reverse<SegmentId>,
    data_bytes: u64,
    live_bytes: u64,
}

/// A survey of all segments of a volume.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Of all segments, open ones too.
    pub live_bytes: u64,
    /// Room in sealed segments with live records that these records do not take.
    pub garbage_bytes: u64,
    /// The best candidates; the worst of them is on top.
    candidates: BinaryHeap<Reverse<Candidate>>,
}

impl Survey {
    /// Adds one segment; `newest` is the number of the newest segment.
    pub fn add(&mut self, usage: &SegmentUsage, newest: SegmentId) {
        // Segments in a tier take no room on disks: `tiering` handles them.
        if usage.is_remote {
            return;
        }
        self.live_bytes += usage.live_bytes;
        let garbage_bytes = usage.sparse_bytes();
        self.garbage_bytes += garbage_bytes;
        if garbage_bytes == 0 {
            return;
        }
        self.candidates.push(Reverse(Candidate {
            score: score(usage, newest),
            id: Reverse(usage.id),
            data_bytes: usage.data_bytes,
            live_bytes: usage.live_bytes,
        }));
        if self.candidates.len() > CANDIDATES_MAX {
            self.candidates.pop();
        }
    }

    /// Chooses the segments to rewrite now; none if that gives nothing back. `is_free` tells whether a segment may be
    /// rewritten at all.
    pub fn choose(
        self,
        limits: &Limits,
        room: Room,
        budget_bytes: u64,
        mut is_free: impl FnMut(SegmentId) -> bool,
    ) -> Vec<SegmentId> {
        if self.garbage_bytes <= limits.allowed_bytes {
            return Vec::new();
        }
        // The copies exist before their sources are deleted.
        let room_bytes = percent(room.rewrite_bytes, ROOM_PERCENT);
        // At least one segment: in a small volume each may have more than a pass usually moves.
        let first_max = room_bytes.min(budget_bytes);
        let live_max = (self.live_bytes / PASS_LIVE_PART)
            .max(PASS_LIVE_BYTES_MIN)
            .min(first_max);
        let wanted_bytes = self.garbage_bytes - limits.enough_bytes;
        let mut candidates: Vec<Candidate> =
            self.candidates.into_iter().map(|Reverse(it)| it).collect();
        candidates.sort_unstable_by_key(|candidate| Reverse(*candidate));
        let mut chosen = Vec::new();
        let (mut live_bytes, mut data_bytes) = (0, 0);
        for candidate in candidates {
            if data_bytes - live_bytes >= wanted_bytes {
                break;
            }
            let most = match chosen.is_empty() {
                true => first_max,
                false => live_max,
            };
            if live_bytes + candidate.live_bytes > most || !is_free(candidate.id.0) {
                continue;
            }
            live_bytes += candidate.live_bytes;
            data_bytes += candidate.data_bytes;
            chosen.push(candidate.id.0);
        }
        let copied_bytes = live_bytes + DATA_SHARDS_MAX * BLOCK_BYTES;
        if data_bytes.saturating_sub(copied_bytes) < (data_bytes / GAIN_PART).max(1) {
            return Vec::new();
        }
        chosen
    }
}

/// In the middle of a pass: returns the segments (given with their live bytes) that must wait for another pass,
/// because clients took the room for their copies. Otherwise the pass would end with much copied, no segment emptied,
/// and no room left to copy with.
pub(crate) fn narrow(mut left: Vec<(SegmentId, u64)>, rewrite_bytes: u64) -> Vec<SegmentId> {
    let mut live_bytes: u64 = left.iter().map(|(_, live_bytes)| live_bytes).sum();
    if live_bytes <= percent(rewrite_bytes, NARROW_PERCENT) {
        return Vec::new();
    }
    // The segments that need least until they are empty stay.
    left.sort_unstable_by_key(|(id, live_bytes)| (*live_bytes, *id));
    let room_bytes = percent(rewrite_bytes, ROOM_PERCENT);
    let mut waiting = Vec::new();
    while let Some((id, bytes)) = left.pop_if(|_| live_bytes > room_bytes) {
        live_bytes -= bytes;
        waiting.push(id);
    }
    waiting
}

/// The ratio of gain to cost of a rewrite; higher is better.
fn score(usage: &SegmentUsage, newest: SegmentId) -> u64 {
    let garbage_bytes = usage.data_bytes.saturating_sub(usage.live_bytes);
    let age = 1 + u64::from((newest.0.saturating_sub(usage.id.0) + 1).ilog2());
    part(
        garbage_bytes.saturating_mul(age),
        1 << 20,
        usage.data_bytes + usage.live_bytes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn usage(id: u64, data_bytes: u64, live_bytes: u64) -> SegmentUsage {
        SegmentUsage {
            id: SegmentId(id),
            data_bytes,
            protected_bytes: data_bytes,
            live_bytes,
            live_records: live_bytes.div_ceil(4096),
            sealed: true,
            is_remote: false,
            used_day: 0,
        }
    }

    fn survey(all: &[SegmentUsage]) -> Survey {
        let newest = all.iter().map(|usage| usage.id).max().unwrap_or_default();
        let mut survey = Survey::default();
        all.iter().for_each(|usage| survey.add(usage, newest));
        survey
    }

    #[test]
    fn less_garbage_is_allowed_as_the_pool_fills() {
        let gib = 1 << 30;
        let cases = [
            // (live, total, free) -> (allowed, pressed)
            (100 * gib, 1000 * gib, 900 * gib, 25 * gib + 8, false),
            (100 * gib, 1000 * gib, 200 * gib, 25 * gib + 8, false),
            (100 * gib, 1000 * gib, 100 * gib, 15 * gib + 4, false),
            (100 * gib, 1000 * gib, 49 * gib, 99 * gib / 10 + 1, true),
            (100 * gib, 1000 * gib, 0, 5 * gib, true),
            (0, 1000 * gib, 500 * gib, 8, false),
            (0, 0, 0, 0, false),
        ];
        for (live_bytes, total_bytes, free_bytes, want, is_pressed) in cases {
            let room = Room {
                total_bytes,
                free_bytes,
                rewrite_bytes: free_bytes,
            };
            let limits = Limits::of(live_bytes, room, 25, 8);
            let near = limits.allowed_bytes.abs_diff(want) <= 2;
            assert!(near, "{room:?}: {limits:?}, want {want}");
            assert_eq!(limits.is_pressed, is_pressed, "{room:?}");
        }
    }

    #[test]
    fn a_volume_is_idle_when_nobody_wrote_for_a_while() {
        let mut idle = Idle::default();
        // Flushed bytes, time, and whether the volume is idle.
        let looks = [
            (0, 0, false),
            (0, 59, false),
            (0, 60, true),
            (0, 100, true),
            (1, 101, false),
            (1, 160, false),
            (1, 161, true),
        ];
        for (flushed_bytes, seconds, want) in looks {
            let got = idle.look(flushed_bytes, 0, Duration::from_secs(seconds));
            assert_eq!(got, want, "after {seconds} s");
        }
        let at = Duration::from_secs;
        idle.rest(100 * MIB, None, at(170));
        assert!(!idle.look(1, 100 * MIB, at(469)), "it rests");
        assert!(idle.look(1, 100 * MIB, at(470)));
        assert!(!idle.look(2, 100 * MIB, at(480)));
        assert!(idle.look(2, 100 * MIB, at(540)), "it rests no more");
        idle.rest(100 * MIB, Some(at(30)), at(550));
        assert!(!idle.look(2, 100 * MIB, at(579)));
        assert!(idle.look(2, 100 * MIB, at(580)), "what was stuck is free");
        for (rest, seconds) in [
            (60, 1000),
            (120, 2000),
            (240, 3000),
            (300, 4000),
            (300, 5000),
        ] {
            idle.rest(100 * MIB, Some(at(30)), at(seconds));
            assert!(!idle.look(2, 100 * MIB, at(seconds + rest - 1)), "{rest} s");
            assert!(idle.look(2, 100 * MIB, at(seconds + rest)), "{rest} s");
        }
        // Some of the garbage was given back after all.
        idle.rest(50 * MIB, Some(at(30)), at(6000));
        assert!(idle.look(2, 50 * MIB, at(6030)));
        // Snapshots and files are deleted meanwhile.
        idle.rest(100 * MIB, None, at(7000));
        assert!(!idle.look(2, 100 * MIB + IDLE_NEWS_BYTES - 1, at(7001)));
        assert!(idle.look(2, 100 * MIB + IDLE_NEWS_BYTES, at(7002)));
    }

    #[test]
    fn the_log_of_a_quiet_volume_is_cut_later_and_later() {
        let mut quiet = Quiet::default();
        // Number of the last change, time, and whether to cut the log.
        let looks = [
            (7, 0, false),
            (7, 59, false),
            (7, 60, true),
            (7, 61, false),
            (7, 299, false),
            (7, 300, true),
            (7, 1259, false),
            (7, 1260, true),
            (8, 1261, false),
            (8, 1320, false),
            (8, 1321, true),
            (8, 1322, false),
        ];
        for (change, seconds, want) in looks {
            let got = quiet.is_due(change, Duration::from_secs(seconds));
            assert_eq!(got, want, "after {seconds} s");
        }
        // A week.
        let seconds = (2000..600_000).map(Duration::from_secs);
        let count = seconds.filter(|now| quiet.is_due(8, *now)).count();
        assert!((20..40).contains(&count), "{count}");
    }

    /// Whatever the size of a small volume's segments: one after the other is emptied until there is little garbage.
    #[test]
    fn segments_of_a_small_volume_are_not_too_large_to_be_emptied() {
        let room = Room {
            total_bytes: 100_000 * MIB,
            free_bytes: 90_000 * MIB,
            rewrite_bytes: 90_000 * MIB,
        };
        for (data_mib, live_mib, count) in [(256, 85, 3), (256, 128, 8), (1024, 300, 2)] {
            let mut all: Vec<SegmentUsage> = (1..=count)
                .map(|id| usage(id, data_mib * MIB, live_mib * MIB))
                .collect();
            let mut rounds = 0;
            loop {
                let survey = survey(&all);
                let (percent, bytes) = idle_garbage(25, 1 << 40, 1);
                let limits = Limits::of(survey.live_bytes, room, percent, bytes);
                let garbage_bytes = survey.garbage_bytes;
                if garbage_bytes <= limits.allowed_bytes {
                    break;
                }
                let chosen = survey.choose(&limits, room, u64::MAX, |_| true);
                assert!(!chosen.is_empty(), "{garbage_bytes} of {limits:?}");
                let moved: u64 = all
                    .extract_if(.., |usage| chosen.contains(&usage.id))
                    .map(|usage| usage.live_bytes)
                    .sum();
                all.push(usage(1000 + rounds, moved, moved));
                rounds += 1;
            }
            assert!(rounds <= count, "{rounds}");
        }
    }

    /// 1.2 times the live bytes plus 1 GiB: with three copies, garbage takes three times its bytes.
    #[test]
    fn an_idle_volume_has_little_garbage_whatever_the_reserve_is() {
        let gib = 1 << 30;
        let room = Room {
            total_bytes: 1000 * gib,
            free_bytes: 900 * gib,
            rewrite_bytes: 900 * gib,
        };
        for (live_bytes, reserve_part) in [(gib / 4, 5 * gib), (100 * gib, 5 * gib), (0, 0)] {
            let usual = Limits::of(live_bytes, room, 25, reserve_part);
            let (percent, bytes) = idle_garbage(25, reserve_part, 1);
            let idle = Limits::of(live_bytes, room, percent, bytes);
            assert!(idle.allowed_bytes <= live_bytes / 5 + gib / 3, "{idle:?}");
            assert!(idle.allowed_bytes <= usual.allowed_bytes, "{idle:?}");
        }
        // A volume that allows less garbage is not given more.
        assert_eq!(idle_garbage(5, 10, 1), (5, 10));
        // Many volumes together do not have much more.
        for (volumes, want) in [(0, 128), (1, 128), (2, 128), (4, 64), (1000, 8)] {
            let (_, bytes) = idle_garbage(25, 1 << 40, volumes);
            assert_eq!(bytes, want * MIB, "{volumes} volumes");
        }
    }

    #[test]
    fn the_emptiest_go_first_and_the_old_before_the_young() {
        let room = Room {
            total_bytes: 10_000 * MIB,
            free_bytes: 5_000 * MIB,
            rewrite_bytes: 5_000 * MIB,
        };
        type Case<'a> = (&'a str, &'a [SegmentUsage], u64, &'a [u64]);
        let full = |id| usage(id, 16 * MIB, 16 * MIB);
        let cases: &[Case] = &[
            (
                "little garbage",
                &[usage(1, 16 * MIB, 15 * MIB), full(2)],
                25,
                &[],
            ),
            (
                "no more than enough",
                &[
                    usage(1, 16 * MIB, 9 * MIB),
                    usage(2, 16 * MIB, 2 * MIB),
                    full(3),
                    full(4),
                ],
                25,
                &[2],
            ),
            (
                "as empty, and old",
                &[
                    usage(1000, 16 * MIB, 8 * MIB),
                    usage(1, 16 * MIB, 8 * MIB),
                    full(1001),
                ],
                25,
                &[1, 1000],
            ),
            ("nothing to gain", &[usage(1, 16 << 10, 100)], 0, &[]),
        ];
        for (name, all, garbage_percent, want) in cases {
            let survey = survey(all);
            let limits = Limits::of(survey.live_bytes, room, *garbage_percent, 0);
            let chosen = survey.choose(&limits, room, u64::MAX, |_| true);
            let want: Vec<SegmentId> = want.iter().map(|id| SegmentId(*id)).collect();
            assert_eq!(chosen, want, "{name}");
        }
    }

    #[test]
    fn a_pass_needs_no_more_room_than_there_is() {
        let all: Vec<_> = (1..100).map(|id| usage(id, 16 * MIB, 8 * MIB)).collect();
        let survey = survey(&all);
        let room = Room {
            total_bytes: 2000 * MIB,
            free_bytes: 10 * MIB,
            rewrite_bytes: 25 * MIB,
        };
        let limits = Limits::of(survey.live_bytes, room, 25, 0);
        let mut refused = Some(SegmentId(1));
        let chosen = survey.choose(&limits, room, u64::MAX, |id| {
            refused.take_if(|it| *it == id).is_none()
        });
        assert_eq!(chosen, [SegmentId(2), SegmentId(3)]);
    }

    #[test]
    fn a_pass_becomes_smaller_when_its_room_is_taken() {
        type Case<'a> = (&'a str, &'a [(u64, u64)], u64, &'a [u64]);
        let cases: &[Case] = &[
            ("nothing to do", &[], 0, &[]),
            ("enough", &[(1, 50), (2, 40)], 100, &[]),
            ("a little less", &[(1, 50), (2, 41)], 100, &[1]),
            (
                "the nearly empty stay",
                &[(1, 5), (2, 60), (3, 10)],
                40,
                &[2],
            ),
            ("empty already", &[(1, 0), (2, 60)], 0, &[2]),
            ("no room", &[(1, 5), (2, 60)], 0, &[2, 1]),
        ];
        for (name, left, rewrite_bytes, want) in cases {
            let left = left.iter().map(|(id, live)| (SegmentId(*id), *live));
            let waiting = narrow(left.collect(), *rewrite_bytes);
            let want: Vec<SegmentId> = want.iter().map(|id| SegmentId(*id)).collect();
            assert_eq!(waiting, want, "{name}");
        }
    }

    #[test]
    fn what_changes_earns_what_may_be_moved() {
        let mut budget = Budget::default();
        // (live, flushed, moved) -> budget
        let steps = [
            ((1000, 500, 0), 1000),
            ((1000, 500, 900), 100),
            ((1000, 500, 1100), 0),
            ((1000, 510, 1100), 80),
            ((990, 510, 1100), 160),
            ((990, 5000, 1100), 1980),
        ];
        for ((live, flushed, moved), want) in steps {
            assert_eq!(
                budget.update(live, flushed, moved),
                want,
                "{live} {flushed} {moved}"
            );
        }
    }

    /// Random overwrites of ten times the data, one record at a time: the used space stays within its limit, and so
    /// do the bytes that are written for it.
    #[test]
    fn random_overwrites_stay_within_their_bounds() {
        const RECORDS: usize = 40_000;
        const PER_SEGMENT: usize = 256;
        let record_bytes = 16 << 10;
        let room = Room {
            total_bytes: 100_000 * MIB,
            free_bytes: 50_000 * MIB,
            rewrite_bytes: 50_000 * MIB,
        };
        let mut rng = cairn_testkit::Rng::new(7);
        let mut place = vec![0_u64; RECORDS];
        let mut segments: Vec<Vec<usize>> = vec![Vec::new()];
        let mut live = vec![0_u64];
        let (mut written, mut moved, mut used_max) = (0_usize, 0_usize, 0_usize);
        let put = |record: usize,
                   place: &mut Vec<u64>,
                   segments: &mut Vec<Vec<usize>>,
                   live: &mut Vec<u64>| {
            if segments
                .last()
                .is_some_and(|last| last.len() == PER_SEGMENT)
            {
                segments.push(Vec::new());
                live.push(0);
            }
            let last = segments.len() as u64 - 1;
            segments[last as usize].push(record);
            live[last as usize] += 1;
            place[record] = last;
        };
        for record in 0..RECORDS {
            put(record, &mut place, &mut segments, &mut live);
        }
        while written < 10 * RECORDS {
            for _ in 0..PER_SEGMENT {
                let record = rng.below(RECORDS as u64) as usize;
                live[place[record] as usize] -= 1;
                put(record, &mut place, &mut segments, &mut live);
                written += 1;
            }
            let mut survey = Survey::default();
            let newest = SegmentId(segments.len() as u64 - 1);
            for id in 0..newest.0 {
                if live[id as usize] > 0 {
                    let data_bytes = PER_SEGMENT as u64 * record_bytes;
                    survey.add(
                        &usage(id, data_bytes, live[id as usize] * record_bytes),
                        newest,
                    );
                }
            }
            let limits = Limits::of(RECORDS as u64 * record_bytes, room, 25, 0);
            for victim in survey.choose(&limits, room, u64::MAX, |_| true) {
                for record in std::mem::take(&mut segments[victim.0 as usize]) {
                    if place[record] == victim.0 {
                        live[victim.0 as usize] -= 1;
                        put(record, &mut place, &mut segments, &mut live);
                        moved += 1;
                    }
                }
            }
            let used = live.iter().filter(|live| **live > 0).count() * PER_SEGMENT;
            used_max = used_max.max(used);
        }
        let used = used_max as f64 / RECORDS as f64;
        let amplification = (written + moved) as f64 / written as f64;
        assert!(used < 1.35, "{used}");
        assert!(amplification < 3.2, "{amplification}");
    }
}
