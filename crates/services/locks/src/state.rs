//! The state of a volume's locks, and how operations change it.
//!
//! Owns: what is held, the operations under way, their records, the counts. Must not know: what is a conflict, who is next.
//! Invariant: what a client or file has is changed by one operation at a time. Counts and bytes are those of what is held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_formats::metadata::{
    Key, LockClientRecord, LockLeaseRecord, LockRangeRecord, LockShareRecord,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::limits::{
    CLIENT_FILE_LEN_BYTES, FILE_LEN_BYTES, Limit, Limits, client_len_bytes, lease_len_bytes,
    open_len_bytes, ranges_len_bytes, waiter_len_bytes,
};
use crate::model::{
    Answer, Change, Client, ClientId, ClientIdentity, Delta, Effects, File, GoneReason, Lease,
    Notice, Now, Op, OpId, Open, Owner, OwnerRanges, Refusal, Step, Waiter, WaiterId, Write,
};
use crate::range::Held;

/// The locks, opens and leases of one volume.
#[derive(Debug)]
pub struct Locks {
    pub(crate) limits: Limits,
    pub(crate) clients: FxHashMap<ClientId, Client>,
    pub(crate) identities: FxHashMap<ClientIdentity, ClientId>,
    /// Clients that are being made durable.
    pub(crate) confirming: FxHashMap<ClientIdentity, OpId>,
    pub(crate) files: BTreeMap<Ino, File>,
    /// Where each owner waits: file, and number of the request.
    pub(crate) waiting: FxHashMap<Arc<Owner>, Vec<(Ino, u64)>>,
    pub(crate) waiter_count: usize,
    /// Leases that were recalled: until when, file, number.
    pub(crate) recalls: BTreeSet<(u64, Ino, u64)>,
    pub(crate) ops: FxHashMap<OpId, Op>,
    op_next: u64,
    /// Of clients, ranges, opens, leases and waiting requests.
    pub(crate) number_next: u64,
    memory_bytes: usize,
    /// Clients that may have opens which the owner before knew, and this one does not.
    pub(crate) reclaiming: FxHashSet<ClientId>,
    pub(crate) reclaim_until_ms: u64,
    pub(crate) is_closed: bool,
}

impl Locks {
    /// The locks of a volume that has none. Numbers begin at `number_next`, at least 1.
    pub(crate) fn empty(limits: Limits, number_next: u64) -> Self {
        Self {
            limits,
            clients: FxHashMap::default(),
            identities: FxHashMap::default(),
            confirming: FxHashMap::default(),
            files: BTreeMap::new(),
            waiting: FxHashMap::default(),
            waiter_count: 0,
            recalls: BTreeSet::new(),
            ops: FxHashMap::default(),
            op_next: 1,
            number_next: number_next.max(1),
            memory_bytes: 0,
            reclaiming: FxHashSet::default(),
            reclaim_until_ms: 0,
            is_closed: false,
        }
    }

    /// Makes the operation visible: its records are durable. Fails with [`Refusal::Closed`] if the volume was closed meanwhile.
    ///
    /// Panics if there is no such operation: a bug of the caller.
    pub fn commit(&mut self, now: Now, op: OpId, effects: &mut Effects) -> Result<Answer, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        let op = self.unregister(op);
        Ok(self.apply(now, op, effects))
    }

    /// Forgets the operation: its records are not, and will not be, durable. A request that waited has its place again; it is
    /// granted at the next [`Self::tick`] or change of the file.
    ///
    /// Panics as [`Self::commit`] does.
    pub fn abort(&mut self, now: Now, op: OpId, effects: &mut Effects) {
        if self.is_closed {
            return;
        }
        let mut op = self.unregister(op);
        let taken = op.waiter.take();
        let number = taken.as_ref().map(|(_, waiter)| waiter.number);
        if let Some((ino, waiter)) = taken {
            self.add_waiter(ino, waiter);
        }
        for ino in op.files.into_keys() {
            self.pump(now, ino, number, effects);
            self.tidy(ino);
        }
        if let Some((ino, _)) = op.file_cleared {
            self.pump(now, ino, None, effects);
            self.tidy(ino);
        }
    }

    /// A client said that it is there. Fails with [`Refusal::UnknownClient`] if it has been given up.
    pub fn renew(&mut self, now: Now, client: ClientId) -> Result<(), Refusal> {
        self.enter(now, client).map(|_| ())
    }

    /// The client has opened again what it had open with the last owner (RECLAIM_COMPLETE).
    pub fn reclaimed(&mut self, client: ClientId) {
        self.reclaiming.remove(&client);
    }

    /// Looks for what time alone changes: leases that were not returned, clients that are silent and in somebody's way, polling
    /// requests that were given up. To be called about once a second.
    pub fn tick(&mut self, now: Now, effects: &mut Effects) {
        if self.is_closed {
            return;
        }
        let overdue: Vec<_> = self
            .recalls
            .iter()
            .take_while(|(until_ms, _, _)| *until_ms <= now.ms)
            .copied()
            .collect();
        for (_, ino, number) in overdue {
            self.revoke_overdue(now, ino, number, effects);
        }
        self.pump_all(now, effects);
    }

    /// The node does not own the volume any more, or stops. Records stay for the next owner; operations under way are over
    /// here, whatever became of their records.
    pub fn close(&mut self, effects: &mut Effects) {
        for (ino, file) in &self.files {
            for waiter in &file.waiters {
                effects.notices.push(Notice::Refused {
                    waiter: WaiterId(waiter.number),
                    owner: Arc::clone(&waiter.owner),
                    ino: *ino,
                    refusal: Refusal::Closed,
                });
            }
        }
        *self = Self::empty(self.limits, self.number_next);
        self.is_closed = true;
    }

    /// Bytes that clients, files, ranges, opens, leases and waiting requests take; an upper estimate.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes as u64
    }

    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Requests that wait.
    pub fn waiter_count(&self) -> usize {
        self.waiter_count
    }

    /// The client with this identity, if it is confirmed.
    pub fn client(&self, identity: &ClientIdentity) -> Option<ClientId> {
        self.identities.get(identity).copied()
    }

    /// All durable records, as they are without the operations under way.
    pub fn records(&self) -> BTreeMap<Key, Bytes> {
        let clients = self
            .clients
            .iter()
            .map(|(id, client)| client_put(*id, client));
        let in_files = self.files.iter().flat_map(|(ino, file)| {
            let ranges = file.owners.iter().flat_map(|of| {
                let put = |held| range_put(*ino, &of.owner, held);
                of.held.iter().map(put)
            });
            let shares = file.opens.iter().filter_map(|open| open_put(*ino, open));
            let leases = file.leases.iter().map(|lease| lease_put(*ino, lease));
            ranges.chain(shares).chain(leases)
        });
        clients.chain(in_files).collect()
    }

    /// Starts an operation, or does it at once if it has nothing to make durable.
    pub(crate) fn begin(&mut self, now: Now, op: Op, effects: &mut Effects) -> Step {
        let deltas = self.deltas(&op);
        if deltas.is_empty() {
            Step::Done(self.apply(now, op, effects))
        } else {
            Step::Write(self.register(op, deltas))
        }
    }

    fn register(&mut self, op: Op, deltas: Vec<Delta>) -> Write {
        let id = OpId(self.op_next);
        self.op_next += 1;
        let inos: Vec<Ino> = files_of(&op).collect();
        for ino in inos {
            self.file_mut(ino).pending.push(id);
        }
        for client in clients_of(&op) {
            if let Some(client) = self.clients.get_mut(&client) {
                client.pending.push(id);
            }
        }
        if let Some((_, client)) = &op.client_new {
            let before = self.confirming.insert(client.identity.clone(), id);
            assert!(before.is_none());
        }
        self.ops.insert(id, op);
        Write { op: id, deltas }
    }

    fn unregister(&mut self, id: OpId) -> Op {
        let op = self.ops.remove(&id).expect("the operation is under way");
        for ino in files_of(&op) {
            if let Some(file) = self.files.get_mut(&ino) {
                file.pending.retain(|other| *other != id);
            }
        }
        for client in clients_of(&op) {
            if let Some(client) = self.clients.get_mut(&client) {
                client.pending.retain(|other| *other != id);
            }
        }
        if let Some((_, client)) = &op.client_new {
            self.confirming.remove(&client.identity);
        }
        op
    }

    fn apply(&mut self, now: Now, op: Op, effects: &mut Effects) -> Answer {
        let mut touched: BTreeSet<Ino> = op.files.keys().copied().collect();
        for (ino, changes) in op.files {
            for change in changes {
                self.set(ino, change);
            }
        }
        if let Some((ino, refusal)) = op.file_cleared {
            touched.insert(ino);
            self.refuse_waiters(ino, refusal, effects);
        }
        if let Some((id, reason)) = op.client_gone {
            touched.extend(self.remove_client(id));
            effects
                .notices
                .push(Notice::ClientGone { client: id, reason });
        }
        if let Some((id, client)) = op.client_new {
            self.add_client(id, client);
        }
        effects.notices.extend(op.revoked);
        if let Some((ino, waiter)) = op.waiter
            && op.is_grant
        {
            effects.notices.push(Notice::Granted {
                waiter: WaiterId(waiter.number),
                owner: waiter.owner,
                ino,
                range: waiter.range,
                mode: waiter.mode,
            });
        }
        for ino in touched {
            self.pump(now, ino, None, effects);
            self.tidy(ino);
        }
        op.answer
    }

    /// The records that change when `op` is committed.
    fn deltas(&self, op: &Op) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let Some((id, client)) = &op.client_new {
            deltas.push(put(client_put(*id, client)));
        }
        for (ino, changes) in &op.files {
            for change in changes {
                self.deltas_of(*ino, change, &mut deltas);
            }
        }
        if let Some((id, _)) = op.client_gone {
            deltas.push(deleted(Key::lock_client(id.0)));
        }
        deltas
    }

    fn deltas_of(&self, ino: Ino, change: &Change, deltas: &mut Vec<Delta>) {
        match change {
            Change::Ranges { owner, after } => {
                let before = self.held(ino, owner);
                let kept: FxHashSet<u64> = after.iter().map(|held| held.number).collect();
                let old: FxHashMap<u64, &Held> =
                    before.iter().map(|held| (held.number, held)).collect();
                let gone = before.iter().filter(|held| !kept.contains(&held.number));
                deltas.extend(gone.map(|held| deleted(Key::lock_range(ino, held.number))));
                let new = after.iter();
                let new = new.filter(|held| old.get(&held.number).is_none_or(|old| *old != *held));
                deltas.extend(new.map(|held| put(range_put(ino, owner, held))));
            }
            Change::Open { number, after, .. } => {
                let was_durable = self.files.get(&ino).is_some_and(|file| {
                    let mut opens = file.opens.iter();
                    opens.any(|open| open.number == *number && !open.deny.is_none())
                });
                match after.as_ref().and_then(|open| open_put(ino, open)) {
                    Some(record) => deltas.push(put(record)),
                    None if was_durable => deltas.push(deleted(Key::lock_share(ino, *number))),
                    None => {}
                }
            }
            Change::Lease { number, after, .. } => deltas.push(match after {
                Some(lease) => put(lease_put(ino, lease)),
                None => deleted(Key::lock_lease(ino, *number)),
            }),
        }
    }

    /// What `owner` has locked in the file.
    pub(crate) fn held(&self, ino: Ino, owner: &Owner) -> &[Held] {
        let of = self.owner_ranges(ino, owner);
        of.map_or(&[], |of| of.held.as_slice())
    }

    pub(crate) fn owner_ranges(&self, ino: Ino, owner: &Owner) -> Option<&OwnerRanges> {
        let mut owners = self.files.get(&ino)?.owners.iter();
        owners.find(|of| *of.owner == *owner)
    }

    pub(crate) fn file_mut(&mut self, ino: Ino) -> &mut File {
        self.files.entry(ino).or_insert_with(|| {
            self.memory_bytes += FILE_LEN_BYTES;
            File::default()
        })
    }

    /// Forgets a file with nothing in it.
    pub(crate) fn tidy(&mut self, ino: Ino) {
        let is_empty = self.files.get(&ino).is_some_and(|file| {
            file.owners.is_empty()
                && file.opens.is_empty()
                && file.leases.is_empty()
                && file.waiters.is_empty()
                && file.pending.is_empty()
        });
        if is_empty {
            self.files.remove(&ino);
            self.memory_bytes -= FILE_LEN_BYTES;
        }
    }

    /// Sets what an operation leaves, and counts it.
    pub(crate) fn set(&mut self, ino: Ino, change: Change) {
        let client = change.owner().client;
        let file = self.file_mut(ino);
        let (items, bytes) = match change {
            Change::Ranges { owner, after } => set_ranges(file, owner, after),
            Change::Open { number, after, .. } => {
                let at = file.opens.iter().position(|open| open.number == number);
                set_item(&mut file.opens, at, after, open_len_bytes)
            }
            Change::Lease { number, after, .. } => {
                let at = file.leases.iter().position(|lease| lease.number == number);
                let recalled = at.and_then(|at| file.leases[at].recalled);
                let still = after.as_ref().and_then(|lease| lease.recalled);
                let counted = set_item(&mut file.leases, at, after, lease_len_bytes);
                if let Some(recalled) = recalled
                    && still.is_none()
                {
                    self.recalls.remove(&(recalled.until_ms, ino, number));
                }
                counted
            }
        };
        self.count(client, ino, items, bytes);
    }

    pub(crate) fn add_waiter(&mut self, ino: Ino, waiter: Waiter) {
        let bytes = waiter_len_bytes(&waiter) as isize;
        let (client, number) = (waiter.owner.client, waiter.number);
        let places = self.waiting.entry(Arc::clone(&waiter.owner)).or_default();
        places.push((ino, number));
        let file = self.file_mut(ino);
        let at = file.waiters.partition_point(|other| other.number < number);
        file.waiters.insert(at, waiter);
        self.waiter_count += 1;
        self.count(client, ino, 1, bytes);
    }

    pub(crate) fn take_waiter(&mut self, ino: Ino, number: u64) -> Option<Waiter> {
        let file = self.files.get_mut(&ino)?;
        let at = file
            .waiters
            .binary_search_by_key(&number, |waiter| waiter.number);
        let waiter = file.waiters.remove(at.ok()?);
        if let Some(places) = self.waiting.get_mut(&waiter.owner) {
            places.retain(|place| *place != (ino, number));
            if places.is_empty() {
                self.waiting.remove(&waiter.owner);
            }
        }
        self.waiter_count -= 1;
        let bytes = waiter_len_bytes(&waiter) as isize;
        self.count(waiter.owner.client, ino, -1, -bytes);
        Some(waiter)
    }

    fn refuse_waiters(&mut self, ino: Ino, refusal: Refusal, effects: &mut Effects) {
        let waiters = self.files.get(&ino).map_or(&[][..], |file| &file.waiters);
        let numbers: Vec<u64> = waiters.iter().map(|waiter| waiter.number).collect();
        for number in numbers {
            if let Some(waiter) = self.take_waiter(ino, number) {
                effects.notices.push(Notice::Refused {
                    waiter: WaiterId(number),
                    owner: waiter.owner,
                    ino,
                    refusal,
                });
            }
        }
    }

    pub(crate) fn add_client(&mut self, id: ClientId, client: Client) {
        self.memory_bytes += client_len_bytes(&client);
        let before = self.identities.insert(client.identity.clone(), id);
        assert!(before.is_none());
        let before = self.clients.insert(id, client);
        assert!(before.is_none());
    }

    /// Removes a client whose locks are gone, and its waiting requests. Gives the files where it waited.
    fn remove_client(&mut self, id: ClientId) -> Vec<Ino> {
        let files: Vec<Ino> = match self.clients.get(&id) {
            Some(client) => client.files.keys().copied().collect(),
            None => return Vec::new(),
        };
        for ino in &files {
            let waiters = self.files.get(ino).map_or(&[][..], |file| &file.waiters);
            let numbers: Vec<u64> = waiters
                .iter()
                .filter(|waiter| waiter.owner.client == id)
                .map(|waiter| waiter.number)
                .collect();
            for number in numbers {
                self.take_waiter(*ino, number);
            }
        }
        let client = self.clients.remove(&id).expect("it was there");
        assert_eq!(client.items, 0);
        assert!(client.pending.is_empty());
        self.identities.remove(&client.identity);
        self.reclaiming.remove(&id);
        self.memory_bytes -= client_len_bytes(&client);
        files
    }

    fn count(&mut self, id: ClientId, ino: Ino, items: isize, bytes: isize) {
        let mut bytes = bytes;
        let client = self
            .clients
            .get_mut(&id)
            .expect("what is held has a client");
        if items != 0 {
            let had = client.files.get(&ino).copied().unwrap_or(0);
            let has = had.checked_add_signed(items).expect("no less than nothing");
            client.items = client.items.checked_add_signed(items).expect("as above");
            match has {
                0 => client.files.remove(&ino),
                _ => client.files.insert(ino, has),
            };
            bytes += match (had, has) {
                (0, 1..) => CLIENT_FILE_LEN_BYTES as isize,
                (1.., 0) => -(CLIENT_FILE_LEN_BYTES as isize),
                _ => 0,
            };
        }
        let memory_bytes = self.memory_bytes.checked_add_signed(bytes);
        self.memory_bytes = memory_bytes.expect("no less than nothing");
    }

    /// An operation by which a client goes with all it has, and perhaps comes again. It has no operation under way.
    pub(crate) fn dropping(&self, id: ClientId, reason: GoneReason, answer: Answer) -> Op {
        let mut op = Op::new(answer);
        op.client_gone = Some((id, reason));
        let Some(client) = self.clients.get(&id) else {
            return op;
        };
        assert!(client.pending.is_empty());
        for ino in client.files.keys() {
            let Some(file) = self.files.get(ino) else {
                continue;
            };
            let changes: Vec<Change> = removals(file, |owner| owner.client == id).collect();
            if !changes.is_empty() {
                op.files.insert(*ino, changes);
            }
        }
        op
    }

    /// Gives up a silent client that is in somebody's way, and says which operation to wait for.
    pub(crate) fn expire(&mut self, now: Now, id: ClientId, effects: &mut Effects) -> OpId {
        let pending = self
            .clients
            .get(&id)
            .and_then(|client| client.pending.first());
        if let Some(op) = pending {
            return *op;
        }
        let op = self.dropping(id, GoneReason::Expired, Answer::Released);
        match self.begin(now, op, effects) {
            Step::Write(write) => {
                let op = write.op;
                effects.writes.push(write);
                op
            }
            Step::Done(_) | Step::Wait(_) => unreachable!("a client's record is deleted"),
        }
    }

    /// The client is there now. Gives the operation that removes it, if there is one.
    pub(crate) fn enter(&mut self, now: Now, id: ClientId) -> Result<Option<OpId>, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        let client = self.clients.get_mut(&id).ok_or(Refusal::UnknownClient)?;
        client.renewed_ms = client.renewed_ms.max(now.ms);
        let ops = &self.ops;
        let mut pending = client.pending.iter();
        let removes = |op: &&OpId| {
            ops.get(op)
                .is_some_and(|op| op.client_gone.is_some_and(|(gone, _)| gone == id))
        };
        Ok(pending.find(removes).copied())
    }

    /// Whether a client's lease is over.
    pub(crate) fn is_silent(&self, now: Now, id: ClientId) -> bool {
        self.clients.get(&id).is_none_or(|client| {
            client.lease_ms > 0
                && now.ms.saturating_sub(client.renewed_ms) >= u64::from(client.lease_ms)
        })
    }

    pub(crate) fn new_number(&mut self) -> u64 {
        let number = self.number_next;
        self.number_next += 1;
        number
    }

    /// Whether a client may have `more` things in the volume, that take `bytes`.
    pub(crate) fn check_client(
        &self,
        id: ClientId,
        more: usize,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let items = self.clients.get(&id).map_or(0, |client| client.items);
        check(
            Limit::ClientItems,
            items + more,
            self.limits.client_items_max,
        )?;
        self.check_memory(bytes + FILE_LEN_BYTES + CLIENT_FILE_LEN_BYTES)
    }

    pub(crate) fn check_memory(&self, more_bytes: usize) -> Result<(), Refusal> {
        let max = self.limits.memory_bytes_max;
        if (self.memory_bytes as u64).saturating_add(more_bytes as u64) > max {
            let limit = Limit::MemoryBytes;
            return Err(Refusal::Limit { limit, max });
        }
        Ok(())
    }

    /// Checks that all counts and lists agree, for tests and simulations. Panics if they do not.
    pub fn assert_consistent(&self) {
        let mut bytes: usize = self.clients.values().map(client_len_bytes).sum();
        let mut items: FxHashMap<ClientId, BTreeMap<Ino, usize>> = FxHashMap::default();
        let mut waiters = 0;
        let mut recalls = BTreeSet::new();
        for (ino, file) in &self.files {
            bytes += FILE_LEN_BYTES;
            let mut add = |owner: &Owner, count: usize| {
                let files = items.entry(owner.client).or_default();
                *files.entry(*ino).or_default() += count;
            };
            for of in &file.owners {
                assert!(!of.held.is_empty());
                bytes += ranges_len_bytes(&of.owner, &of.held);
                add(&of.owner, of.held.len());
            }
            let ranges: usize = file.owners.iter().map(|of| of.held.len()).sum();
            assert_eq!(file.range_count, ranges);
            for open in &file.opens {
                bytes += open_len_bytes(open);
                add(&open.owner, 1);
            }
            for lease in &file.leases {
                bytes += lease_len_bytes(lease);
                add(&lease.owner, 1);
                let recalled = lease.recalled;
                recalls.extend(recalled.map(|recalled| (recalled.until_ms, *ino, lease.number)));
            }
            for waiter in &file.waiters {
                bytes += waiter_len_bytes(waiter);
                add(&waiter.owner, 1);
                waiters += 1;
                assert!(self.waiting[&waiter.owner].contains(&(*ino, waiter.number)));
            }
            assert!(file.waiters.is_sorted_by_key(|waiter| waiter.number));
            for op in &file.pending {
                assert!(files_of(&self.ops[op]).any(|of| of == *ino));
            }
            let is_needed = ranges + file.opens.len() + file.leases.len() + file.waiters.len();
            assert!(is_needed + file.pending.len() > 0);
        }
        for (id, client) in &self.clients {
            let files = items.remove(id).unwrap_or_default();
            assert_eq!(client.files, files);
            assert_eq!(client.items, files.values().sum::<usize>());
            bytes += files.len() * CLIENT_FILE_LEN_BYTES;
            assert_eq!(self.identities.get(&client.identity), Some(id));
            for op in &client.pending {
                assert!(clients_of(&self.ops[op]).contains(id));
            }
        }
        assert!(items.is_empty());
        assert_eq!(self.identities.len(), self.clients.len());
        assert_eq!(self.waiter_count, waiters);
        assert_eq!(self.waiting.values().map(Vec::len).sum::<usize>(), waiters);
        assert_eq!(self.recalls, recalls);
        assert_eq!(self.memory_bytes, bytes);
    }
}

/// Fails if `count` is more than `max`.
pub(crate) fn check(limit: Limit, count: usize, max: usize) -> Result<(), Refusal> {
    match count > max {
        true => Err(Refusal::Limit {
            limit,
            max: max as u64,
        }),
        false => Ok(()),
    }
}

/// What takes away all that certain owners have in a file, but for requests that wait.
pub(crate) fn removals(
    file: &File,
    is_owner: impl Fn(&Owner) -> bool + Copy,
) -> impl Iterator<Item = Change> {
    let owners = file.owners.iter().filter(move |of| is_owner(&of.owner));
    let ranges = owners.map(|of| Change::Ranges {
        owner: Arc::clone(&of.owner),
        after: Vec::new(),
    });
    let opens = file.opens.iter().filter(move |open| is_owner(&open.owner));
    let opens = opens.map(|open| Change::Open {
        number: open.number,
        owner: Arc::clone(&open.owner),
        after: None,
    });
    let leases = file
        .leases
        .iter()
        .filter(move |lease| is_owner(&lease.owner));
    let leases = leases.map(|lease| Change::Lease {
        number: lease.number,
        owner: Arc::clone(&lease.owner),
        after: None,
    });
    ranges.chain(opens).chain(leases)
}

/// Gives by how much things and bytes grew.
fn set_ranges(file: &mut File, owner: Arc<Owner>, after: Vec<Held>) -> (isize, isize) {
    let at = file.owners.iter().position(|of| *of.owner == *owner);
    let before = at.map_or(&[][..], |at| &file.owners[at].held);
    let items = after.len() as isize - before.len() as isize;
    let bytes =
        ranges_len_bytes(&owner, &after) as isize - ranges_len_bytes(&owner, before) as isize;
    file.range_count = file
        .range_count
        .checked_add_signed(items)
        .expect("no less than nothing");
    match (at, after.is_empty()) {
        (Some(at), true) => {
            file.owners.swap_remove(at);
        }
        (Some(at), false) => file.owners[at].held = after,
        (None, true) => {}
        (None, false) => file.owners.push(OwnerRanges { owner, held: after }),
    }
    (items, bytes)
}

fn set_item<T>(
    all: &mut Vec<T>,
    at: Option<usize>,
    after: Option<T>,
    len_bytes: impl Fn(&T) -> usize,
) -> (isize, isize) {
    let before = at.map(|at| all.swap_remove(at));
    let count = |item: &Option<T>| {
        let bytes = item.as_ref().map_or(0, &len_bytes);
        (isize::from(item.is_some()), bytes as isize)
    };
    let (had, had_bytes) = count(&before);
    let (has, has_bytes) = count(&after);
    all.extend(after);
    (has - had, has_bytes - had_bytes)
}

fn files_of(op: &Op) -> impl Iterator<Item = Ino> {
    let cleared = op.file_cleared.map(|(ino, _)| ino);
    let cleared = cleared.filter(|ino| !op.files.contains_key(ino));
    op.files.keys().copied().chain(cleared)
}

fn clients_of(op: &Op) -> BTreeSet<ClientId> {
    let changes = op.files.values().flatten();
    let clients = changes.map(|change| change.owner().client);
    clients.chain(op.client_gone.map(|(id, _)| id)).collect()
}

fn put((key, value): (Key, Bytes)) -> Delta {
    Delta {
        key,
        value: Some(value),
    }
}

fn deleted(key: Key) -> Delta {
    Delta { key, value: None }
}

fn client_put(id: ClientId, client: &Client) -> (Key, Bytes) {
    let record = LockClientRecord {
        protocol: client.identity.protocol,
        verifier: client.verifier,
        lease_ms: client.lease_ms,
        since: client.since,
        name: client.identity.name.clone(),
    };
    (Key::lock_client(id.0), record.encode().into())
}

fn range_put(ino: Ino, owner: &Owner, held: &Held) -> (Key, Bytes) {
    let record = LockRangeRecord {
        client: owner.client.0,
        first: held.range.first(),
        last: held.range.last(),
        mode: held.mode,
        style: owner.style,
        since: held.since,
        owner: owner.name.clone(),
    };
    (Key::lock_range(ino, held.number), record.encode().into())
}

/// `None` for an open that denies nothing: it has no record.
fn open_put(ino: Ino, open: &Open) -> Option<(Key, Bytes)> {
    if open.deny.is_none() {
        return None;
    }
    let record = LockShareRecord {
        client: open.owner.client.0,
        access: open.access,
        deny: open.deny,
        since: open.since,
        owner: open.owner.name.clone(),
    };
    Some((Key::lock_share(ino, open.number), record.encode().into()))
}

fn lease_put(ino: Ino, lease: &Lease) -> (Key, Bytes) {
    let record = LockLeaseRecord {
        client: lease.owner.client.0,
        level: lease.level,
        style: lease.style,
        since: lease.since,
        owner: lease.owner.name.clone(),
    };
    (Key::lock_lease(ino, lease.number), record.encode().into())
}
