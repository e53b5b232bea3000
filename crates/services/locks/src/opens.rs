//! Opens: share reservations, and what is done with a file without an open here.
//!
//! Owns: which opens exclude each other, what stops an access. Must not know: the order of requests for ranges, records.

use std::sync::Arc;

use cairn_base::Ino;
use cairn_formats::metadata::{RangeStyle, ShareBits};

use crate::limits::{Limit, open_len_bytes};
use crate::matrix::{Use, range_stops_data, shares_conflict};
use crate::model::{
    Answer, Change, ClientId, Conflict, ConflictKind, Effects, File, Now, Op, OpId, Open, OpenId,
    Owner, Pause, Refusal, Step,
};
use crate::range::{ByteRange, Held, find_overlap};
use crate::state::{Locks, check};

/// What speaks against an open or an access.
enum Shared {
    Free,
    Wait(Pause),
    Conflict(Conflict),
}

impl Locks {
    pub(crate) fn open(
        &mut self,
        now: Now,
        owner: Owner,
        ino: Ino,
        (access, deny): (ShareBits, ShareBits),
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        let owner = self.shared_owner(ino, without_style(owner))?;
        if let Some(op) = self.enter_file(now, ino, &owner)? {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let opens = self.files.get(&ino).map_or(&[][..], |file| &file.opens);
        let before = opens.iter().find(|open| *open.owner == *owner).cloned();
        let (had_access, had_deny) = before
            .as_ref()
            .map_or_else(Default::default, |open| (open.access, open.deny));
        let (access, deny) = (access.with(had_access), deny.with(had_deny));
        if !had_deny.has(deny)
            && let Some(until_ms) = self.reclaiming_until(now)
        {
            return Ok(Step::Wait(Pause::Reclaim { until_ms }));
        }
        let mut uses = Vec::with_capacity(3);
        uses.extend(access.has(ShareBits::WRITE).then_some(Use::OpenWrite));
        uses.extend((!access.has(ShareBits::WRITE)).then_some(Use::OpenRead));
        uses.extend((!deny.is_none()).then_some(Use::OpenDeny));
        for what in uses {
            if let Some(pause) = self.recall(now, ino, Some(owner.client), what, effects) {
                return Ok(Step::Wait(pause));
            }
        }
        let is_other = |other: &Owner| *other != *owner;
        match self.shares(now, ino, owner.client, (access, deny), is_other, effects) {
            Shared::Free => {}
            Shared::Wait(pause) => return Ok(Step::Wait(pause)),
            Shared::Conflict(conflict) => return Ok(Step::Done(Answer::Denied(conflict))),
        }
        let number = match &before {
            Some(open) => open.number,
            None => self.new_number(),
        };
        let open = Open {
            number,
            owner: Arc::clone(&owner),
            access,
            deny,
            since: before.as_ref().map_or(now.wall, |open| open.since),
        };
        if before.is_none() {
            self.check_opens(ino, owner.client, open_len_bytes(&open))?;
        }
        let answer = Answer::Opened {
            open: OpenId(number),
            access,
            deny,
        };
        let change = Change::Open {
            number,
            owner,
            after: Some(open),
        };
        Ok(self.begin(now, Op::new(answer).with(ino, change), effects))
    }

    /// Whether opens of others exclude these accesses and denials.
    fn shares(
        &mut self,
        now: Now,
        ino: Ino,
        client: ClientId,
        wanted: (ShareBits, ShareBits),
        is_other: impl Fn(&Owner) -> bool,
        effects: &mut Effects,
    ) -> Shared {
        let Some(file) = self.files.get(&ino) else {
            return Shared::Free;
        };
        let conflicts = |open: &Open| {
            is_other(&open.owner) && shares_conflict(wanted, (open.access, open.deny))
        };
        let (mut silent, mut conflict) = (Vec::new(), None);
        for open in file.opens.iter().filter(|open| conflicts(open)) {
            if self.is_silent(now, open.owner.client) {
                silent.push(open.owner.client);
            } else {
                let (access, deny) = (open.access, open.deny);
                conflict = Some(Conflict {
                    owner: Arc::clone(&open.owner),
                    kind: ConflictKind::Share { access, deny },
                });
            }
        }
        let pending = self.pending_change(file, ino, |change| match change {
            Change::Open { after, .. } => after.as_ref().is_some_and(&conflicts),
            _ => false,
        });
        match (conflict, pending) {
            (Some(conflict), _) => {
                // Its holder may have closed it already, and keep it in memory.
                match self.recall(now, ino, Some(client), Use::ShareConflict, effects) {
                    Some(pause) => Shared::Wait(pause),
                    None => Shared::Conflict(conflict),
                }
            }
            (None, _) if !silent.is_empty() => match self.expire_all(now, silent, effects) {
                Step::Wait(pause) => Shared::Wait(pause),
                Step::Done(_) | Step::Write(_) => Shared::Free,
            },
            (None, Some(op)) => Shared::Wait(Pause::Op(op)),
            (None, None) => Shared::Free,
        }
    }

    /// An operation under way that leaves something in the file for which `is_in_the_way` holds.
    pub(crate) fn pending_change(
        &self,
        file: &File,
        ino: Ino,
        is_in_the_way: impl Fn(&Change) -> bool,
    ) -> Option<OpId> {
        let mut pending = file.pending.iter();
        let found = pending.find(|id| self.ops[id].changes_of(ino).iter().any(&is_in_the_way));
        found.copied()
    }

    pub(crate) fn check_opens(
        &self,
        ino: Ino,
        client: ClientId,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let has = self.files.get(&ino).map_or(0, |file| {
            file.opens.len() + file.leases.len() + file.pending.len()
        });
        check(Limit::FileOpens, has + 1, self.limits.file_opens_max)?;
        self.check_client(client, 1, bytes)
    }

    /// The open of a client, by its number.
    fn open_of(&self, client: ClientId, (ino, open): (Ino, OpenId)) -> Result<&Open, Refusal> {
        let opens = self.files.get(&ino).map_or(&[][..], |file| &file.opens);
        let mut opens = opens.iter();
        let found = opens.find(|other| other.number == open.0 && other.owner.client == client);
        found.ok_or(Refusal::UnknownOpen)
    }

    pub(crate) fn downgrade(
        &mut self,
        now: Now,
        client: ClientId,
        (ino, open): (Ino, OpenId),
        (access, deny): (ShareBits, ShareBits),
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        self.enter(now, client)?;
        let before = self.open_of(client, (ino, open))?.clone();
        if let Some(op) = self.busy(ino, &before.owner) {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        if !before.access.has(access) || !before.deny.has(deny) {
            return Err(Refusal::NotPart);
        }
        if (before.access, before.deny) == (access, deny) {
            return Ok(Step::Done(Answer::Downgraded));
        }
        let change = Change::Open {
            number: open.0,
            owner: Arc::clone(&before.owner),
            after: Some(Open {
                access,
                deny,
                ..before
            }),
        };
        Ok(self.begin(now, Op::new(Answer::Downgraded).with(ino, change), effects))
    }

    pub(crate) fn close_open(
        &mut self,
        now: Now,
        client: ClientId,
        (ino, open): (Ino, OpenId),
        owners: Vec<Owner>,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        self.enter(now, client)?;
        let owner = Arc::clone(&self.open_of(client, (ino, open))?.owner);
        if owners.iter().any(|owner| owner.client != client) {
            return Err(Refusal::OtherClient);
        }
        let busy = self.busy(ino, &owner);
        let busy = busy.or_else(|| owners.iter().find_map(|owner| self.busy(ino, owner)));
        if let Some(op) = busy {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let mut op = Op::new(Answer::Closed);
        for owner in owners {
            let Some(of) = self.owner_ranges(ino, &owner) else {
                continue;
            };
            let owner = Arc::clone(&of.owner);
            // One that is named twice is released once.
            if op
                .changes_of(ino)
                .iter()
                .any(|change| *change.owner() == owner)
            {
                continue;
            }
            let after = Vec::new();
            op = op.with(ino, Change::Ranges { owner, after });
        }
        let op = op.with(
            ino,
            Change::Open {
                number: open.0,
                owner,
                after: None,
            },
        );
        Ok(self.begin(now, op, effects))
    }

    pub(crate) fn check_use(
        &mut self,
        now: Now,
        by: Option<Owner>,
        ino: Ino,
        (what, range): (Use, Option<ByteRange>),
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        let client = by.as_ref().map(|owner| owner.client);
        if let Some(client) = client {
            self.enter(now, client)?;
        }
        if let Some(pause) = self.recall(now, ino, client, what, effects) {
            return Ok(Step::Wait(pause));
        }
        let needs = what.row().needs;
        // Which open of its client a call belongs to is not known: NFSv3 has none.
        let is_other = |other: &Owner| Some(other.client) != client;
        let nobody = ClientId(0);
        let asked = (needs, ShareBits::NONE);
        match self.shares(now, ino, client.unwrap_or(nobody), asked, is_other, effects) {
            Shared::Free => {}
            Shared::Wait(pause) => return Ok(Step::Wait(pause)),
            Shared::Conflict(conflict) => return Ok(Step::Done(Answer::Denied(conflict))),
        }
        Ok(match range {
            Some(range) => self.check_data(now, by.as_ref(), ino, (what, range), effects),
            None => Step::Done(Answer::Allowed),
        })
    }

    /// Whether mandatory ranges stop the reading or writing of data.
    fn check_data(
        &mut self,
        now: Now,
        by: Option<&Owner>,
        ino: Ino,
        (what, range): (Use, ByteRange),
        effects: &mut Effects,
    ) -> Step {
        let Some(file) = self.files.get(&ino) else {
            return Step::Done(Answer::Allowed);
        };
        let is_write = what.row().needs.has(ShareBits::WRITE);
        let stops = |owner: &Owner, held: &[Held]| {
            let is_own = by == Some(owner);
            let stops = |mode| range_stops_data(mode, owner.style, is_own, is_write);
            find_overlap(held, owner.style, range, |held| stops(held.mode)).copied()
        };
        let mut silent = Vec::new();
        for of in &file.owners {
            let Some(held) = stops(&of.owner, &of.held) else {
                continue;
            };
            if self.is_silent(now, of.owner.client) {
                silent.push(of.owner.client);
                continue;
            }
            return Step::Done(Answer::Denied(Conflict {
                owner: Arc::clone(&of.owner),
                kind: ConflictKind::Range {
                    range: held.range,
                    mode: held.mode,
                },
            }));
        }
        let pending = self.pending_change(file, ino, |change| match change {
            Change::Ranges { owner, after } => stops(owner, after).is_some(),
            _ => false,
        });
        match pending {
            _ if !silent.is_empty() => self.expire_all(now, silent, effects),
            Some(op) => Step::Wait(Pause::Op(op)),
            None => Step::Done(Answer::Allowed),
        }
    }

    /// Until when clients may still open again what the owner before knew.
    pub(crate) fn reclaiming_until(&self, now: Now) -> Option<u64> {
        let is_open = !self.reclaiming.is_empty() && now.ms < self.reclaim_until_ms;
        is_open.then_some(self.reclaim_until_ms)
    }
}

/// The owner of an open or a lease: their records have no style, for it says something of ranges only.
pub(crate) fn without_style(owner: Owner) -> Owner {
    Owner {
        style: RangeStyle::Replace,
        ..owner
    }
}
