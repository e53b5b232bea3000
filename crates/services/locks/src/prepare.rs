//! What becomes of a request: the first step of each operation.
//!
//! Owns: the order in which a request is judged: client, operations under way, leases, conflicts, limits.
//! Must not know: how the queue is ordered, what records are made of.
//! Invariant: a request that waits or is refused has changed nothing but the lease of its client, its place in the queue, and recalls.

use std::sync::Arc;

use cairn_base::Ino;
use cairn_formats::metadata::{LOCK_NAME_LEN_BYTES_MAX, LockMode, RangeStyle};

use crate::matrix::Use;
use crate::model::{
    Answer, Change, Effects, GoneReason, Now, Op, OpId, Owner, Pause, Refusal, Release, Request,
    Step, Waiting,
};
use crate::queue::{Blockers, Edges, Verdict, Wanted};
use crate::range::{ByteRange, covers, unlocked};
use crate::state::Locks;

impl Locks {
    /// Judges a request. `effects` gets what has to be done beside it, whatever the result is.
    pub fn prepare(
        &mut self,
        now: Now,
        request: Request,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        match self.judge(now, request, effects) {
            Err(refusal @ Refusal::Limit { limit, .. }) if limit.is_of_volume() => {
                self.make_room(now, refusal, effects)
            }
            result => result,
        }
    }

    /// The courtesy to silent clients ends where others need their room.
    fn make_room(
        &mut self,
        now: Now,
        refusal: Refusal,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        let clients = self.clients.iter();
        let silent = clients.filter(|(id, _)| self.is_silent(now, **id));
        let oldest = silent.min_by_key(|(id, client)| (client.renewed_ms, **id));
        let id = *oldest.ok_or(refusal)?.0;
        Ok(self.expire_all(now, vec![id], effects))
    }

    fn judge(
        &mut self,
        now: Now,
        request: Request,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        match request {
            Request::Lock {
                owner,
                ino,
                range,
                mode,
                waiting,
            } => {
                let wanted = self.wanted(owner, ino, range, mode)?;
                self.lock(now, &wanted, waiting, effects)
            }
            Request::Test {
                owner,
                ino,
                range,
                mode,
            } => {
                let wanted = self.wanted(owner, ino, range, mode)?;
                self.test(now, &wanted, effects)
            }
            Request::Unlock { owner, ino, range } => {
                let wanted = self.wanted(owner, ino, range, LockMode::Shared)?;
                self.unlock(now, &wanted, effects)
            }
            Request::Cancel {
                owner,
                ino,
                range,
                mode,
            } => {
                let wanted = self.wanted(owner, ino, range, mode)?;
                self.cancel(now, &wanted, effects)
            }
            Request::Open {
                owner,
                ino,
                access,
                deny,
            } => self.open(now, owner, ino, (access, deny), effects),
            Request::Downgrade {
                client,
                ino,
                open,
                access,
                deny,
            } => self.downgrade(now, client, (ino, open), (access, deny), effects),
            Request::Close {
                client,
                ino,
                open,
                owners,
            } => self.close_open(now, client, (ino, open), owners, effects),
            Request::Check {
                by,
                ino,
                what,
                range,
            } => self.check_use(now, by, ino, (what, range), effects),
            Request::GrantLease {
                owner,
                ino,
                level,
                style,
            } => self.grant_lease(now, owner, ino, (level, style), effects),
            Request::ReturnLease {
                client,
                ino,
                lease,
                left,
            } => self.return_lease(now, client, (ino, lease), left, effects),
            Request::Confirm {
                identity,
                verifier,
                lease_ms,
            } => self.confirm(now, identity, verifier, lease_ms, effects),
            Request::Restarted { identity, verifier } => {
                self.restarted(now, &identity, verifier, effects)
            }
            Request::Release(Release::Client(id)) => {
                if !self.clients.contains_key(&id) {
                    return Err(Refusal::UnknownClient);
                }
                Ok(self.drop_client(now, id, (GoneReason::Released, Answer::Released), effects))
            }
            Request::Release(Release::File(ino)) => {
                Ok(self.clear_file(now, ino, Refusal::Released, effects))
            }
            Request::Release(Release::Item { ino, number }) => {
                self.release_item(now, ino, number, effects)
            }
            Request::Remove { ino } => Ok(self.clear_file(now, ino, Refusal::Removed, effects)),
        }
    }

    fn wanted(
        &self,
        owner: Owner,
        ino: Ino,
        range: ByteRange,
        mode: LockMode,
    ) -> Result<Wanted, Refusal> {
        Ok(Wanted {
            owner: self.shared_owner(ino, owner)?,
            ino,
            range,
            mode,
        })
    }

    /// The owner, in the memory that its ranges in the file have already.
    pub(crate) fn shared_owner(&self, ino: Ino, owner: Owner) -> Result<Arc<Owner>, Refusal> {
        if owner.name.len() > LOCK_NAME_LEN_BYTES_MAX {
            return Err(Refusal::BadName);
        }
        let known = self.owner_ranges(ino, &owner);
        Ok(known.map_or_else(|| Arc::new(owner), |of| Arc::clone(&of.owner)))
    }

    /// The client is there. Gives the operation after which the owner can change something in the file, if there is one.
    pub(crate) fn enter_file(
        &mut self,
        now: Now,
        ino: Ino,
        owner: &Owner,
    ) -> Result<Option<OpId>, Refusal> {
        let removing = self.enter(now, owner.client)?;
        Ok(removing.or_else(|| self.busy(ino, owner)))
    }

    /// An operation that changes what the owner has in the file, or all that the client or the file has.
    pub(crate) fn busy(&self, ino: Ino, owner: &Owner) -> Option<OpId> {
        let of_client = self.clients.get(&owner.client);
        let mut of_client = of_client.iter().flat_map(|client| &client.pending);
        let removing = of_client.find(|id| {
            let gone = self.ops[id].client_gone;
            gone.is_some_and(|(gone, _)| gone == owner.client)
        });
        let of_file = self.files.get(&ino);
        let mut of_file = of_file.iter().flat_map(|file| &file.pending);
        let changing = of_file.find(|id| {
            let op = &self.ops[id];
            let is_cleared = op.file_cleared.is_some_and(|(cleared, _)| cleared == ino);
            let mut changes = op.changes_of(ino).iter();
            is_cleared || changes.any(|change| **change.owner() == *owner)
        });
        removing.or(changing).copied()
    }

    fn lock(
        &mut self,
        now: Now,
        wanted: &Wanted,
        waiting: Waiting,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        if let Some(op) = self.enter_file(now, wanted.ino, &wanted.owner)? {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let place = self.place_of(wanted);
        let held = self.held(wanted.ino, &wanted.owner);
        let is_replacing = wanted.owner.style == RangeStyle::Replace;
        if !(is_replacing && covers(held, wanted.range, wanted.mode)) {
            let what = Use::of_lock(wanted.mode);
            let client = Some(wanted.owner.client);
            if let Some(pause) = self.recall(now, wanted.ino, client, what, effects) {
                return Ok(Step::Wait(pause));
            }
            match self.verdict(now, wanted, place) {
                Verdict::Free => {}
                Verdict::Pending(op) => return Ok(Step::Wait(Pause::Op(op))),
                Verdict::Silent(clients) => return Ok(self.expire_all(now, clients, effects)),
                Verdict::Blocked(blockers) => {
                    return self.blocked(now, wanted, (waiting, place), blockers, effects);
                }
            }
        }
        let op = self.locking(now, wanted)?;
        let waiter = place.and_then(|place| self.take_waiter(wanted.ino, place));
        let step = match op {
            Some(mut op) => {
                // It has its place again if this is aborted.
                op.waiter = waiter.map(|waiter| (wanted.ino, waiter));
                self.begin(now, op, effects)
            }
            None => {
                // It may have been in the way of others.
                self.pump(now, wanted.ino, None, effects);
                self.tidy(wanted.ino);
                Step::Done(Answer::Locked)
            }
        };
        Ok(step)
    }

    /// A request for a range that cannot be had now.
    fn blocked(
        &mut self,
        now: Now,
        wanted: &Wanted,
        (waiting, place): (Waiting, Option<u64>),
        blockers: Blockers,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        let Blockers {
            conflict,
            holders,
            earlier,
        } = blockers;
        let is_polled = match waiting {
            Waiting::No => return Ok(Step::Done(Answer::Denied(conflict))),
            Waiting::Polled => true,
            Waiting::Queue { .. } => false,
        };
        let detects_deadlock = waiting
            != Waiting::Queue {
                detects_deadlock: false,
            };
        if detects_deadlock && self.is_circle(now, &holders, &wanted.owner, Edges::Holders) {
            if let Some(place) = place {
                self.take_waiter(wanted.ino, place);
                self.pump(now, wanted.ino, None, effects);
                self.tidy(wanted.ino);
            }
            return Err(Refusal::Deadlock);
        }
        let waiter = self.wait(now, wanted, is_polled, place)?;
        let blockers = [holders, earlier].concat();
        if self.is_circle(now, &blockers, &wanted.owner, Edges::All) {
            // Somebody in the circle waits only because others came first, and may go ahead.
            self.pump_all(now, effects);
        }
        Ok(Step::Done(match is_polled {
            true => Answer::Denied(conflict),
            false => Answer::Queued(waiter),
        }))
    }

    fn test(&mut self, now: Now, wanted: &Wanted, effects: &mut Effects) -> Result<Step, Refusal> {
        if let Some(op) = self.enter_file(now, wanted.ino, &wanted.owner)? {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        // The holder of a delegation may have locks that this machine does not know.
        let what = Use::of_lock(wanted.mode);
        let client = Some(wanted.owner.client);
        if let Some(pause) = self.recall(now, wanted.ino, client, what, effects) {
            return Ok(Step::Wait(pause));
        }
        Ok(self.tested(now, wanted))
    }

    fn unlock(
        &mut self,
        now: Now,
        wanted: &Wanted,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        let Wanted { owner, ino, .. } = wanted;
        if let Some(op) = self.enter_file(now, *ino, owner)? {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let held = self.held(*ino, owner);
        let mut number_next = self.number_next;
        let after = unlocked(held, owner.style, wanted.range, &mut number_next);
        let after = after.ok_or(Refusal::NotLocked)?;
        if after == held {
            return Ok(Step::Done(Answer::Unlocked));
        }
        self.check_ranges(*ino, owner, after.len().saturating_sub(held.len()))?;
        self.number_next = number_next;
        let change = Change::Ranges {
            owner: Arc::clone(owner),
            after,
        };
        Ok(self.begin(now, Op::new(Answer::Unlocked).with(*ino, change), effects))
    }

    fn cancel(
        &mut self,
        now: Now,
        wanted: &Wanted,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        // Perhaps it is being granted; then it is to be unlocked afterwards.
        if let Some(op) = self.enter_file(now, wanted.ino, &wanted.owner)? {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let Some(place) = self.place_of(wanted) else {
            return Ok(Step::Done(Answer::NotWaiting));
        };
        self.take_waiter(wanted.ino, place);
        self.pump(now, wanted.ino, None, effects);
        self.tidy(wanted.ino);
        Ok(Step::Done(Answer::Cancelled))
    }
}
