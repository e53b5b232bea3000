//! A volume's locks with a log of their own, and short words for requests.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_base::{Epoch, Ino, Timestamp};
use cairn_formats::metadata::Key;
use cairn_locks::{
    Answer, ByteRange, ClientId, ClientIdentity, Delta, Effects, Entry, EntryKind, Filter, Limits,
    LockMode, LockProtocol, Locks, Notice, Now, OpId, Owner, RangeStyle, Refusal, Request, Step,
    Waiting, Write,
};

pub const FILE: Ino = Ino(10);
pub const LEASE_MS: u32 = 1000;

/// Answers at once: each operation is durable as soon as it is prepared.
pub struct World {
    pub locks: Locks,
    pub log: BTreeMap<Key, Bytes>,
    pub limits: Limits,
    pub now: Now,
    pub notices: Vec<Notice>,
}

impl World {
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Self {
        let now = Now {
            ms: 5000,
            wall: Timestamp::new(100, 0),
        };
        let locks = Locks::restore(limits, Epoch(1), now, []).expect("there is nothing");
        Self {
            locks,
            log: BTreeMap::new(),
            limits,
            now,
            notices: Vec::new(),
        }
    }

    pub fn wait_ms(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.wall.seconds += 1;
    }

    /// A client with a lease, in its first life.
    pub fn client(&mut self, name: &str) -> ClientId {
        self.client_in(name, LockProtocol::Nfs4, 1, LEASE_MS)
    }

    /// One without a lease.
    pub fn nlm_client(&mut self, name: &str) -> ClientId {
        self.client_in(name, LockProtocol::Nlm, 1, 0)
    }

    pub fn client_in(
        &mut self,
        name: &str,
        protocol: LockProtocol,
        life: u8,
        lease_ms: u32,
    ) -> ClientId {
        let request = Request::Confirm {
            identity: identity(name, protocol),
            verifier: [life; 8],
            lease_ms,
        };
        match self.ask(request) {
            Ok(Answer::Client { client, .. }) => client,
            other => panic!("{other:?}"),
        }
    }

    /// One step; what follows by itself is done.
    pub fn try_once(&mut self, request: Request) -> Result<Step, Refusal> {
        let mut effects = Effects::default();
        let step = self.locks.prepare(self.now, request, &mut effects);
        let step = match step {
            Ok(Step::Write(write)) => {
                let answer = self.commit(write, &mut effects);
                Ok(Step::Done(answer))
            }
            other => other,
        };
        self.follow(effects);
        step
    }

    /// Asks until operations that it waits for are over. Panics if it waits for time.
    pub fn ask(&mut self, request: Request) -> Result<Answer, Refusal> {
        for _ in 0..100 {
            match self.try_once(request.clone())? {
                Step::Done(answer) => return Ok(answer),
                Step::Wait(cairn_locks::Pause::Op(_)) => {}
                other => panic!("{request:?} became {other:?}"),
            }
        }
        panic!("{request:?} waits for ever");
    }

    pub fn tick(&mut self) {
        let mut effects = Effects::default();
        self.locks.tick(self.now, &mut effects);
        self.follow(effects);
    }

    fn commit(&mut self, write: Write, effects: &mut Effects) -> Answer {
        write_to(&mut self.log, write.deltas);
        self.locks
            .commit(self.now, write.op, effects)
            .expect("it is open")
    }

    pub fn follow(&mut self, mut effects: Effects) {
        loop {
            self.notices.append(&mut effects.notices);
            let Some(write) = effects.writes.pop() else {
                break;
            };
            self.commit(write, &mut effects);
        }
        self.check();
    }

    /// The state that durable records give is the state that is there.
    pub fn check(&self) {
        self.locks.assert_consistent();
        assert_eq!(self.locks.records(), self.log);
        let restored = self.restored();
        restored.assert_consistent();
        assert_eq!(restored.records(), self.log);
        let of = |locks: &Locks| -> Vec<Entry> {
            let all = locks.list(self.now, Filter::default(), None, usize::MAX);
            let is_durable = |entry: &Entry| match entry.kind {
                EntryKind::Waiter { .. } => false,
                EntryKind::Open { deny, .. } => !deny.is_none(),
                EntryKind::Range { .. } | EntryKind::Lease { .. } => true,
            };
            let mut entries = all.entries;
            entries.retain(is_durable);
            for entry in &mut entries {
                // Time and recalls begin anew.
                entry.is_silent = false;
                if let EntryKind::Lease { recalled_to, .. } = &mut entry.kind {
                    *recalled_to = None;
                }
            }
            entries
        };
        assert_eq!(of(&restored), of(&self.locks));
    }

    /// The locks as the next owner has them.
    pub fn restored(&self) -> Locks {
        let records = self
            .log
            .iter()
            .map(|(key, value)| (key.as_bytes(), &value[..]));
        Locks::restore(self.limits, Epoch(2), self.now, records).expect("records are whole")
    }

    /// The volume gets another owner.
    pub fn take_over(&mut self) {
        self.locks = self.restored();
        self.check();
    }

    pub fn list(&self) -> Vec<Entry> {
        let page = self
            .locks
            .list(self.now, Filter::default(), None, usize::MAX);
        page.entries
    }
}

pub fn write_to(log: &mut BTreeMap<Key, Bytes>, deltas: Vec<Delta>) {
    for Delta { key, value } in deltas {
        match value {
            Some(value) => {
                log.insert(key, value);
            }
            None => {
                let before = log.remove(&key);
                assert!(before.is_some(), "a record is deleted that is not there");
            }
        }
    }
}

pub fn identity(name: &str, protocol: LockProtocol) -> ClientIdentity {
    ClientIdentity {
        protocol,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

pub fn owner(client: ClientId, name: &str) -> Owner {
    Owner {
        client,
        style: RangeStyle::Replace,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

pub fn smb_handle(client: ClientId, name: &str) -> Owner {
    Owner {
        style: RangeStyle::Exact,
        ..owner(client, name)
    }
}

pub fn range(first: u64, last: u64) -> ByteRange {
    ByteRange::new(first, last).expect("it is one")
}

pub fn lock(owner: &Owner, (first, last): (u64, u64), mode: LockMode, waiting: Waiting) -> Request {
    Request::Lock {
        owner: owner.clone(),
        ino: FILE,
        range: range(first, last),
        mode,
        waiting,
    }
}

pub fn unlock(owner: &Owner, (first, last): (u64, u64)) -> Request {
    Request::Unlock {
        owner: owner.clone(),
        ino: FILE,
        range: range(first, last),
    }
}

pub fn test(owner: &Owner, (first, last): (u64, u64), mode: LockMode) -> Request {
    Request::Test {
        owner: owner.clone(),
        ino: FILE,
        range: range(first, last),
        mode,
    }
}

pub const QUEUE: Waiting = Waiting::Queue {
    detects_deadlock: true,
};

pub fn is_denied(answer: &Result<Answer, Refusal>) -> bool {
    matches!(answer, Ok(Answer::Denied(_)))
}

/// Ops that a test keeps under way.
pub fn op_of(step: &Result<Step, Refusal>) -> Option<OpId> {
    match step {
        Ok(Step::Write(write)) => Some(write.op),
        _ => None,
    }
}
