//! Leases: delegations, oplocks, how they are given and how they give way.
//!
//! Owns: recalls and their deadlines. Must not know: which use breaks what, which is the matrix's; records.
//!
//! ```text
//!            grant                 recall                 return, in part
//!   (none) ---------> given ---------------> recalled ------------------> given, of less
//!     ^                 |                        |
//!     |     return      |    return, deadline    |
//!     +-----------------+------------------------+
//! ```

use std::sync::Arc;

use cairn_base::Ino;
use cairn_formats::metadata::{LeaseBits, LeaseStyle, LockMode, ShareBits};

use crate::limits::lease_len_bytes;
use crate::matrix::Use;
use crate::model::{
    Answer, Change, ClientId, Effects, File, Lease, LeaseId, Notice, Now, Op, OpId, Owner, Pause,
    Recalled, Refusal, Step,
};
use crate::opens::without_style;
use crate::state::Locks;

impl Locks {
    /// Makes leases of other clients give way to a use. `None` if none is in its way.
    pub(crate) fn recall(
        &mut self,
        now: Now,
        ino: Ino,
        client: Option<ClientId>,
        what: Use,
        effects: &mut Effects,
    ) -> Option<Pause> {
        let file = self.files.get(&ino)?;
        let is_in_the_way = |lease: &Lease| {
            Some(lease.owner.client) != client
                && what.leaves(lease.level, lease.style) != lease.level
        };
        let leases = file.leases.iter().filter(|lease| is_in_the_way(lease));
        let numbers: Vec<u64> = leases.map(|lease| lease.number).collect();
        let granting = self.pending_change(file, ino, |change| match change {
            Change::Lease { after, .. } => after.as_ref().is_some_and(is_in_the_way),
            _ => false,
        });
        let mut pause = granting.map(Pause::Op);
        for number in numbers {
            let one = self.recall_one(now, (ino, number), what, effects);
            pause = pause.or(one);
        }
        pause
    }

    fn recall_one(
        &mut self,
        now: Now,
        (ino, number): (Ino, u64),
        what: Use,
        effects: &mut Effects,
    ) -> Option<Pause> {
        let lease = self.lease(ino, number)?.clone();
        if let Some(op) = self.busy(ino, &lease.owner) {
            return Some(Pause::Op(op));
        }
        if self.is_silent(now, lease.owner.client) {
            let op = self.expire(now, lease.owner.client, effects);
            return Some(Pause::Op(op));
        }
        match lease.recalled {
            Some(recalled) if recalled.until_ms <= now.ms => {
                let op = self.revoke_overdue(now, ino, number, effects);
                Some(op.map_or(Pause::Recall { until_ms: now.ms }, Pause::Op))
            }
            Some(Recalled { until_ms, .. }) => Some(Pause::Recall { until_ms }),
            None => {
                let until_ms = now.ms.saturating_add(self.limits.recall_ms);
                let left = what.leaves(lease.level, lease.style);
                self.recalls.insert((until_ms, ino, number));
                let leases = self.file_mut(ino).leases.iter_mut();
                for lease in leases.filter(|lease| lease.number == number) {
                    lease.recalled = Some(Recalled { left, until_ms });
                }
                effects.notices.push(Notice::Recall {
                    client: lease.owner.client,
                    ino,
                    lease: LeaseId(number),
                    left,
                    until_ms,
                });
                Some(Pause::Recall { until_ms })
            }
        }
    }

    fn lease(&self, ino: Ino, number: u64) -> Option<&Lease> {
        let mut leases = self.files.get(&ino)?.leases.iter();
        leases.find(|lease| lease.number == number)
    }

    /// Takes away a lease that was not returned in time.
    pub(crate) fn revoke_overdue(
        &mut self,
        now: Now,
        ino: Ino,
        number: u64,
        effects: &mut Effects,
    ) -> Option<OpId> {
        let lease = self.lease(ino, number)?.clone();
        if let Some(op) = self.busy(ino, &lease.owner) {
            return Some(op);
        }
        // A holder that does not answer has nothing any more: it may not know that it has less.
        let mut op = Op::new(Answer::Released).with(
            ino,
            Change::Lease {
                number,
                owner: Arc::clone(&lease.owner),
                after: None,
            },
        );
        op.revoked.push(Notice::Revoked {
            client: lease.owner.client,
            ino,
            number,
        });
        match self.begin(now, op, effects) {
            Step::Write(write) => {
                let op = write.op;
                effects.writes.push(write);
                Some(op)
            }
            Step::Done(_) | Step::Wait(_) => None,
        }
    }

    pub(crate) fn grant_lease(
        &mut self,
        now: Now,
        owner: Owner,
        ino: Ino,
        (level, style): (LeaseBits, LeaseStyle),
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        if !level.has(LeaseBits::READ) {
            return Err(Refusal::BadLevel);
        }
        let owner = self.shared_owner(ino, without_style(owner))?;
        if let Some(op) = self.enter_file(now, ino, &owner)? {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let client = owner.client;
        let is_other = |other: &Owner| other.client != client;
        let mut before = None;
        if let Some(file) = self.files.get(&ino) {
            // What others are about to have may speak against it.
            let pending =
                self.pending_change(file, ino, |change: &Change| is_other(change.owner()));
            if let Some(op) = pending {
                return Ok(Step::Wait(Pause::Op(op)));
            }
            before = file
                .leases
                .iter()
                .find(|lease| *lease.owner == *owner)
                .cloned();
            if !may_have_lease(file, level, is_other) {
                return Ok(Step::Done(Answer::NotLeased));
            }
        }
        let is_giving_way = before
            .as_ref()
            .is_some_and(|lease| lease.recalled.is_some());
        if is_giving_way || self.reclaiming_until(now).is_some() {
            return Ok(Step::Done(Answer::NotLeased));
        }
        let had = before.as_ref().map_or(LeaseBits::NONE, |lease| lease.level);
        if had.has(level) {
            let number = before.as_ref().map_or(0, |lease| lease.number);
            let lease = LeaseId(number);
            return Ok(Step::Done(Answer::Leased { lease, level: had }));
        }
        let number = match &before {
            Some(lease) => lease.number,
            None => self.new_number(),
        };
        let lease = Lease {
            number,
            owner: Arc::clone(&owner),
            level: level.with(had),
            style,
            since: before.as_ref().map_or(now.wall, |lease| lease.since),
            recalled: None,
        };
        if before.is_none() {
            self.check_opens(ino, owner.client, lease_len_bytes(&lease))?;
        }
        let answer = Answer::Leased {
            lease: LeaseId(number),
            level: lease.level,
        };
        let change = Change::Lease {
            number,
            owner,
            after: Some(lease),
        };
        Ok(self.begin(now, Op::new(answer).with(ino, change), effects))
    }

    pub(crate) fn return_lease(
        &mut self,
        now: Now,
        client: ClientId,
        (ino, lease): (Ino, LeaseId),
        left: LeaseBits,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        self.enter(now, client)?;
        let before = self.lease(ino, lease.0);
        let before = before.filter(|lease| lease.owner.client == client);
        let before = before.ok_or(Refusal::UnknownLease)?.clone();
        if let Some(op) = self.busy(ino, &before.owner) {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        if !before.level.has(left) {
            return Err(Refusal::NotPart);
        }
        // More than was asked for is kept only until the deadline.
        let recalled = before.recalled.filter(|recalled| !recalled.left.has(left));
        if before.level == left {
            return Ok(Step::Done(Answer::Returned));
        }
        let after = left.has(LeaseBits::READ).then(|| Lease {
            level: left,
            recalled,
            ..before.clone()
        });
        let change = Change::Lease {
            number: lease.0,
            owner: before.owner,
            after,
        };
        Ok(self.begin(now, Op::new(Answer::Returned).with(ino, change), effects))
    }
}

/// Whether what others have in a file leaves room for a lease of this level.
fn may_have_lease(file: &File, level: LeaseBits, is_other: impl Fn(&Owner) -> bool) -> bool {
    let is_exclusive = level.has(LeaseBits::WRITE);
    let opens = file.opens.iter().filter(|open| is_other(&open.owner));
    let leases = file.leases.iter().filter(|lease| is_other(&lease.owner));
    let owners = file.owners.iter().filter(|of| is_other(&of.owner));
    let waits = file.waiters.iter().any(|waiter| is_other(&waiter.owner));
    let mut ranges = owners.flat_map(|of| &of.held);
    let (mut opens, mut leases) = (opens, leases);
    let is_open =
        opens.any(|open| is_exclusive || open.access.has(ShareBits::WRITE) || !open.deny.is_none());
    let is_leased = leases.any(|lease| is_exclusive || lease.level.has(LeaseBits::WRITE));
    let is_locked = ranges.any(|held| is_exclusive || held.mode == LockMode::Exclusive);
    !(waits || is_open || is_leased || is_locked)
}
