//! Who may have a range: what is in the way, who came first, who waits for whom.
//!
//! Owns: the verdict on a request for a range, the order of those who wait, the search for deadlocks, grants.
//! Must not know: how records are made, shares and leases beyond asking for them.
//! Invariant: a request never passes one that came before, overlaps it and conflicts with it. The one exception: they would wait for
//! each other.

use std::sync::Arc;

use cairn_base::Ino;
use cairn_formats::metadata::{LockMode, RangeStyle};
use rustc_hash::FxHashSet;

use crate::limits::{Limit, RANGE_LEN_BYTES, owner_ranges_len_bytes};
use crate::matrix::{Use, modes_conflict};
use crate::model::{
    Answer, Change, ClientId, Conflict, ConflictKind, Effects, Notice, Now, Op, OpId, Owner, Pause,
    Refusal, Step, Waiter, WaiterId,
};
use crate::range::{ByteRange, find_overlap, locked};
use crate::state::{Locks, check};

/// A request for a range.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub owner: Arc<Owner>,
    pub ino: Ino,
    pub range: ByteRange,
    pub mode: LockMode,
}

/// Everything that is in the way of one.
#[derive(Default)]
pub(crate) struct Obstacles {
    /// Owners of ranges that conflict, whose clients are there.
    pub holders: Vec<Arc<Owner>>,
    /// The first of their ranges, or of the requests that came before.
    pub first: Option<Conflict>,
    /// Clients with such ranges that are silent.
    pub silent: Vec<ClientId>,
    /// An operation that takes such a range.
    pub pending: Option<OpId>,
    /// Owners of requests that came before.
    pub earlier: Vec<Arc<Owner>>,
}

pub(crate) enum Verdict {
    Free,
    /// An operation under way decides.
    Pending(OpId),
    /// Silent clients must go first.
    Silent(Vec<ClientId>),
    Blocked(Blockers),
}

/// Whom a request has to wait for.
pub(crate) struct Blockers {
    /// What a denial names.
    pub conflict: Conflict,
    pub holders: Vec<Arc<Owner>>,
    pub earlier: Vec<Arc<Owner>>,
}

/// Which edges of the graph of waiting owners count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edges {
    /// From who waits to who holds: a circle of these never ends by itself.
    Holders,
    /// And to who came before, which is a rule of ours.
    All,
}

impl Locks {
    /// The obstacles of `wanted`; of requests, those that came before number `place`.
    fn obstacles(&self, now: Now, wanted: &Wanted, place: Option<u64>) -> Obstacles {
        let mut found = Obstacles::default();
        let Some(file) = self.files.get(&wanted.ino) else {
            return found;
        };
        let is_own = |owner: &Owner| *owner == *wanted.owner;
        let conflicts = |owner: &Owner, held| {
            // Ranges of the style `Exact` conflict with the owner's own.
            if is_own(owner) && owner.style == RangeStyle::Replace {
                return None;
            }
            let conflicts = |mode| modes_conflict(mode, wanted.mode);
            find_overlap(held, owner.style, wanted.range, |held| conflicts(held.mode))
        };
        for of in &file.owners {
            let Some(held) = conflicts(&of.owner, &of.held) else {
                continue;
            };
            if self.is_silent(now, of.owner.client) {
                found.silent.push(of.owner.client);
                continue;
            }
            found.holders.push(Arc::clone(&of.owner));
            found.first.get_or_insert_with(|| Conflict {
                owner: Arc::clone(&of.owner),
                kind: ConflictKind::Range {
                    range: held.range,
                    mode: held.mode,
                },
            });
        }
        for id in &file.pending {
            for change in self.ops[id].changes_of(wanted.ino) {
                if let Change::Ranges { owner, after } = change
                    && conflicts(owner, after).is_some()
                {
                    found.pending = Some(*id);
                }
            }
        }
        let before = file
            .waiters
            .iter()
            .take_while(|waiter| place.is_none_or(|place| waiter.number < place));
        for waiter in before {
            let is_in_the_way = !is_own(&waiter.owner)
                && waiter.range.overlaps(wanted.range)
                && modes_conflict(waiter.mode, wanted.mode)
                && waiter
                    .polled_until_ms
                    .is_none_or(|until_ms| now.ms < until_ms)
                && !self.is_silent(now, waiter.owner.client);
            if is_in_the_way {
                found.earlier.push(Arc::clone(&waiter.owner));
                found.first.get_or_insert_with(|| Conflict {
                    owner: Arc::clone(&waiter.owner),
                    kind: ConflictKind::Waiter {
                        range: waiter.range,
                        mode: waiter.mode,
                    },
                });
            }
        }
        found
    }

    pub(crate) fn verdict(&self, now: Now, wanted: &Wanted, place: Option<u64>) -> Verdict {
        let found = self.obstacles(now, wanted, place);
        let Obstacles {
            holders,
            first,
            silent,
            pending,
            earlier,
        } = found;
        if holders.is_empty() {
            if !silent.is_empty() {
                return Verdict::Silent(silent);
            }
            if let Some(op) = pending {
                return Verdict::Pending(op);
            }
            // Who came first waits, perhaps through others, for this owner: without this exception both would wait for ever.
            if earlier.is_empty() || self.is_circle(now, &earlier, &wanted.owner, Edges::All) {
                return Verdict::Free;
            }
        }
        Verdict::Blocked(Blockers {
            conflict: first.expect("holders or earlier requests have set it"),
            holders,
            earlier,
        })
    }

    /// The range or operation in the way of a lock, without regard to those who wait for it.
    pub(crate) fn tested(&self, now: Now, wanted: &Wanted) -> Step {
        // Nobody has the number 0, so nobody came before.
        let found = self.obstacles(now, wanted, Some(0));
        match (found.first, found.pending) {
            (Some(conflict), _) => Step::Done(Answer::Denied(conflict)),
            (None, Some(op)) => Step::Wait(Pause::Op(op)),
            (None, None) => Step::Done(Answer::Free),
        }
    }

    /// Whether one of `from` waits, perhaps through others, for `me`.
    pub(crate) fn is_circle(
        &self,
        now: Now,
        from: &[Arc<Owner>],
        me: &Owner,
        edges: Edges,
    ) -> bool {
        let mut open = from.to_vec();
        let mut seen: FxHashSet<Arc<Owner>> = FxHashSet::default();
        while let Some(owner) = open.pop() {
            if *owner == *me {
                return true;
            }
            if seen.len() >= self.limits.deadlock_owners_max || !seen.insert(Arc::clone(&owner)) {
                continue;
            }
            for (ino, number) in self.waiting.get(&owner).map_or(&[][..], Vec::as_slice) {
                let Some((_, wanted)) = self.waiter(*ino, *number) else {
                    continue;
                };
                let found = self.obstacles(now, &wanted, Some(*number));
                open.extend(found.holders);
                if edges == Edges::All {
                    open.extend(found.earlier);
                }
            }
        }
        false
    }

    fn waiter(&self, ino: Ino, number: u64) -> Option<(&Waiter, Wanted)> {
        let waiters = &self.files.get(&ino)?.waiters;
        let at = waiters.binary_search_by_key(&number, |waiter| waiter.number);
        let waiter = &waiters[at.ok()?];
        let wanted = Wanted {
            owner: Arc::clone(&waiter.owner),
            ino,
            range: waiter.range,
            mode: waiter.mode,
        };
        Some((waiter, wanted))
    }

    /// The number of the waiting request of the same owner for the same.
    pub(crate) fn place_of(&self, wanted: &Wanted) -> Option<u64> {
        let mut waiters = self.files.get(&wanted.ino)?.waiters.iter();
        let found = waiters.find(|waiter| {
            *waiter.owner == *wanted.owner
                && waiter.range == wanted.range
                && waiter.mode == wanted.mode
        });
        found.map(|waiter| waiter.number)
    }

    /// Puts a request into the queue, or keeps it there.
    pub(crate) fn wait(
        &mut self,
        now: Now,
        wanted: &Wanted,
        is_polled: bool,
        place: Option<u64>,
    ) -> Result<WaiterId, Refusal> {
        let polled_until_ms = is_polled.then(|| now.ms.saturating_add(self.limits.polled_ms));
        if let Some(number) = place {
            let file = self.file_mut(wanted.ino);
            let waiters = file.waiters.iter_mut();
            for waiter in waiters.filter(|waiter| waiter.number == number) {
                waiter.polled_until_ms = polled_until_ms;
                waiter.is_told = false;
            }
            return Ok(WaiterId(number));
        }
        let waiters = self
            .files
            .get(&wanted.ino)
            .map_or(0, |file| file.waiters.len());
        check(
            Limit::FileWaiters,
            waiters + 1,
            self.limits.file_waiters_max,
        )?;
        check(
            Limit::VolumeWaiters,
            self.waiter_count + 1,
            self.limits.volume_waiters_max,
        )?;
        let number = self.number_next;
        let waiter = Waiter {
            number,
            owner: Arc::clone(&wanted.owner),
            range: wanted.range,
            mode: wanted.mode,
            since: now.wall,
            polled_until_ms,
            is_told: false,
        };
        self.check_client(
            wanted.owner.client,
            1,
            crate::limits::waiter_len_bytes(&waiter),
        )?;
        self.number_next += 1;
        self.add_waiter(wanted.ino, waiter);
        Ok(WaiterId(number))
    }

    /// The operation that locks a range, unless that changes nothing or is more than allowed.
    pub(crate) fn locking(&mut self, now: Now, wanted: &Wanted) -> Result<Option<Op>, Refusal> {
        let Wanted {
            owner,
            ino,
            range,
            mode,
        } = wanted;
        let held = self.held(*ino, owner);
        let mut number_next = self.number_next;
        let after = locked(held, owner.style, *range, *mode, now.wall, &mut number_next);
        if after == held {
            return Ok(None);
        }
        let more = after.len().saturating_sub(held.len());
        self.check_ranges(*ino, owner, more)?;
        self.number_next = number_next;
        let change = Change::Ranges {
            owner: Arc::clone(owner),
            after,
        };
        Ok(Some(Op::new(Answer::Locked).with(*ino, change)))
    }

    /// Whether an owner may have `more` ranges in a file.
    pub(crate) fn check_ranges(&self, ino: Ino, owner: &Owner, more: usize) -> Result<(), Refusal> {
        if more == 0 {
            return Ok(());
        }
        let has = self.files.get(&ino).map_or(0, |file| file.range_count);
        // Operations under way count as if they were done.
        let pending = self.files.get(&ino).map_or(0, |file| file.pending.len());
        check(
            Limit::FileRanges,
            has + 2 * pending + more,
            self.limits.file_ranges_max,
        )?;
        // With the entry of an owner that had none here.
        let bytes = owner_ranges_len_bytes(owner) + more * RANGE_LEN_BYTES;
        self.check_client(owner.client, more, bytes)
    }

    /// Grants what can be granted in a file, in the order in which it was asked for, but for request `except`.
    pub(crate) fn pump(&mut self, now: Now, ino: Ino, except: Option<u64>, effects: &mut Effects) {
        let waiters = match self.files.get(&ino) {
            Some(file) if !file.waiters.is_empty() => &file.waiters,
            _ => return,
        };
        let numbers: Vec<u64> = waiters.iter().map(|waiter| waiter.number).collect();
        for number in numbers {
            if except != Some(number) {
                self.try_waiter(now, ino, number, effects);
            }
        }
    }

    pub(crate) fn pump_all(&mut self, now: Now, effects: &mut Effects) {
        let places = self.waiting.values().flatten();
        let inos: std::collections::BTreeSet<Ino> = places.map(|(ino, _)| *ino).collect();
        for ino in inos {
            self.pump(now, ino, None, effects);
            self.tidy(ino);
        }
    }

    fn try_waiter(&mut self, now: Now, ino: Ino, number: u64, effects: &mut Effects) {
        let Some((waiter, wanted)) = self.waiter(ino, number) else {
            return;
        };
        let polled_until_ms = waiter.polled_until_ms;
        if polled_until_ms.is_some_and(|until_ms| until_ms <= now.ms) {
            self.take_waiter(ino, number);
            return;
        }
        if self.is_silent(now, wanted.owner.client) || self.busy(ino, &wanted.owner).is_some() {
            return;
        }
        match self.verdict(now, &wanted, Some(number)) {
            Verdict::Blocked(_) | Verdict::Pending(_) => {}
            Verdict::Silent(clients) => {
                for client in clients {
                    self.expire(now, client, effects);
                }
            }
            Verdict::Free if polled_until_ms.is_some() => self.tell(now, &wanted, number, effects),
            Verdict::Free => {
                let what = Use::of_lock(wanted.mode);
                let client = Some(wanted.owner.client);
                if self.recall(now, ino, client, what, effects).is_none() {
                    self.grant(now, &wanted, number, effects);
                }
            }
        }
    }

    /// Tells a client that polls, once, and keeps its place for a moment.
    fn tell(&mut self, now: Now, wanted: &Wanted, number: u64, effects: &mut Effects) {
        let until_ms = now.ms.saturating_add(self.limits.polled_free_ms);
        let waiters = self.file_mut(wanted.ino).waiters.iter_mut();
        for waiter in waiters.filter(|waiter| waiter.number == number && !waiter.is_told) {
            waiter.is_told = true;
            waiter.polled_until_ms = waiter.polled_until_ms.map(|before| before.min(until_ms));
            effects.notices.push(Notice::Available {
                waiter: WaiterId(number),
                owner: Arc::clone(&waiter.owner),
                ino: wanted.ino,
                range: wanted.range,
                mode: wanted.mode,
            });
        }
    }

    fn grant(&mut self, now: Now, wanted: &Wanted, number: u64, effects: &mut Effects) {
        let op = self.locking(now, wanted);
        let Some(waiter) = self.take_waiter(wanted.ino, number) else {
            return;
        };
        match op {
            Ok(op) => {
                let mut op = op.unwrap_or_else(|| Op::new(Answer::Locked));
                op.waiter = Some((wanted.ino, waiter));
                op.is_grant = true;
                if let Step::Write(write) = self.begin(now, op, effects) {
                    effects.writes.push(write);
                }
            }
            Err(refusal) => effects.notices.push(Notice::Refused {
                waiter: WaiterId(number),
                owner: waiter.owner,
                ino: wanted.ino,
                refusal,
            }),
        }
    }
}
