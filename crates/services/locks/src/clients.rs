//! Clients: their lives, and what is taken away.
//!
//! Owns: when a client with all it has goes, and what operators release. Must not know: conflicts, records.
//!
//! ```text
//!              confirm                 silent for longer than its lease
//!   unknown ------------> there <------------------------------------> silent
//!      ^                    |           any request, or renewal           |
//!      |  another life,     |                                             | in somebody's way, or
//!      |  release           |                                             | its room is needed
//!      +--------------------+---------------------------------------------+
//! ```

use std::sync::Arc;

use cairn_base::Ino;
use cairn_formats::metadata::LOCK_NAME_LEN_BYTES_MAX;

use crate::limits::Limit;
use crate::model::{
    Answer, Change, Client, ClientId, ClientIdentity, Effects, File, GoneReason, Notice, Now, Op,
    Pause, Refusal, Step, WaiterId,
};
use crate::state::{Locks, check, removals};

impl Locks {
    pub(crate) fn confirm(
        &mut self,
        now: Now,
        identity: ClientIdentity,
        verifier: [u8; 8],
        lease_ms: u32,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        if identity.name.is_empty() || identity.name.len() > LOCK_NAME_LEN_BYTES_MAX {
            return Err(Refusal::BadName);
        }
        if let Some(op) = self.confirming.get(&identity) {
            return Ok(Step::Wait(Pause::Op(*op)));
        }
        let before = self.identities.get(&identity).copied();
        if let Some(id) = before {
            if let Some(op) = self.enter(now, id)? {
                return Ok(Step::Wait(Pause::Op(op)));
            }
            if self
                .clients
                .get(&id)
                .is_some_and(|client| client.verifier == verifier)
            {
                return Ok(Step::Done(Answer::Client {
                    client: id,
                    was_known: true,
                }));
            }
            let pending = self
                .clients
                .get(&id)
                .and_then(|client| client.pending.first());
            if let Some(op) = pending {
                return Ok(Step::Wait(Pause::Op(*op)));
            }
        } else {
            let bytes = 2 * identity.name.len() + 512;
            let has = self.clients.len() + self.confirming.len();
            check(Limit::Clients, has + 1, self.limits.clients_max)?;
            self.check_memory(bytes)?;
        }
        let id = ClientId(self.new_number());
        let client = Client {
            identity,
            verifier,
            lease_ms,
            since: now.wall,
            renewed_ms: now.ms,
            files: Default::default(),
            items: 0,
            pending: Vec::new(),
        };
        let answer = Answer::Client {
            client: id,
            was_known: false,
        };
        let mut op = match before {
            Some(before) => self.dropping(before, GoneReason::Restarted, answer),
            None => Op::new(answer),
        };
        op.client_new = Some((id, client));
        Ok(self.begin(now, op, effects))
    }

    pub(crate) fn restarted(
        &mut self,
        now: Now,
        identity: &ClientIdentity,
        verifier: [u8; 8],
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        if let Some(op) = self.confirming.get(identity) {
            return Ok(Step::Wait(Pause::Op(*op)));
        }
        let known = self.identities.get(identity).copied();
        // A notification that comes again, after the client has locked in its new life, ends nothing.
        let old = known.filter(|id| {
            let client = self.clients.get(id);
            client.is_some_and(|client| client.verifier != verifier)
        });
        let Some(id) = old else {
            return Ok(Step::Done(Answer::Released));
        };
        Ok(self.drop_client(now, id, (GoneReason::Restarted, Answer::Released), effects))
    }

    pub(crate) fn drop_client(
        &mut self,
        now: Now,
        id: ClientId,
        (reason, answer): (GoneReason, Answer),
        effects: &mut Effects,
    ) -> Step {
        let pending = self
            .clients
            .get(&id)
            .and_then(|client| client.pending.first());
        if let Some(op) = pending {
            return Step::Wait(Pause::Op(*op));
        }
        let op = self.dropping(id, reason, answer);
        self.begin(now, op, effects)
    }

    /// Gives up silent clients, and waits for the first of them.
    pub(crate) fn expire_all(
        &mut self,
        now: Now,
        clients: Vec<ClientId>,
        effects: &mut Effects,
    ) -> Step {
        let mut ops = Vec::with_capacity(clients.len());
        for client in clients {
            ops.push(self.expire(now, client, effects));
        }
        match ops.first() {
            Some(op) => Step::Wait(Pause::Op(*op)),
            None => Step::Done(Answer::Released),
        }
    }

    /// Takes everything in a file away from everybody.
    pub(crate) fn clear_file(
        &mut self,
        now: Now,
        ino: Ino,
        why: Refusal,
        effects: &mut Effects,
    ) -> Step {
        let Some(file) = self.files.get(&ino) else {
            return Step::Done(Answer::Released);
        };
        if let Some(op) = file.pending.first() {
            return Step::Wait(Pause::Op(*op));
        }
        let mut op = Op::new(Answer::Released);
        op.file_cleared = Some((ino, why));
        for change in removals(file, |_| true) {
            if why == Refusal::Released {
                op.revoked.extend(revoked(ino, file, &change));
            }
            op = op.with(ino, change);
        }
        self.begin(now, op, effects)
    }

    pub(crate) fn release_item(
        &mut self,
        now: Now,
        ino: Ino,
        number: u64,
        effects: &mut Effects,
    ) -> Result<Step, Refusal> {
        if let Some(waiter) = self.take_waiter(ino, number) {
            effects.notices.push(Notice::Refused {
                waiter: WaiterId(number),
                owner: waiter.owner,
                ino,
                refusal: Refusal::Released,
            });
            self.pump(now, ino, None, effects);
            self.tidy(ino);
            return Ok(Step::Done(Answer::Released));
        }
        let change = self.files.get(&ino).and_then(|file| item(file, number));
        let change = change.ok_or(Refusal::UnknownItem)?;
        if let Some(op) = self.busy(ino, change.owner()) {
            return Ok(Step::Wait(Pause::Op(op)));
        }
        let mut op = Op::new(Answer::Released);
        op.revoked.push(Notice::Revoked {
            client: change.owner().client,
            ino,
            number,
        });
        Ok(self.begin(now, op.with(ino, change), effects))
    }
}

/// What takes away one range, open or lease.
fn item(file: &File, number: u64) -> Option<Change> {
    for of in &file.owners {
        if of.held.iter().any(|held| held.number == number) {
            let left = of.held.iter().filter(|held| held.number != number);
            return Some(Change::Ranges {
                owner: Arc::clone(&of.owner),
                after: left.copied().collect(),
            });
        }
    }
    let is_it = |change: &Change| match change {
        Change::Ranges { .. } => false,
        Change::Open { number: other, .. } | Change::Lease { number: other, .. } => {
            *other == number
        }
    };
    removals(file, |_| true).find(is_it)
}

/// What holders are told when an operator takes it away.
fn revoked(ino: Ino, file: &File, change: &Change) -> Vec<Notice> {
    let client = change.owner().client;
    let notice = |number| Notice::Revoked {
        client,
        ino,
        number,
    };
    match change {
        Change::Open { number, .. } | Change::Lease { number, .. } => vec![notice(*number)],
        Change::Ranges { owner, .. } => {
            let of = file.owners.iter().filter(|of| of.owner == *owner);
            let held = of.flat_map(|of| &of.held);
            held.map(|held| notice(held.number)).collect()
        }
    }
}
