//! The keys of a consensus store with their history, and its leases.
//!
//! Owns: etcd's rules for revisions, transactions, leases and compaction, as a pure state machine.
//! Must not know: clients, requests, clocks; the time comes with each call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::{
    Change, Compare, CoordinatorError, Entry, Key, KeyRange, LeaseGrant, LeaseId, Op, Outcome,
    RangeReply, Revision, Txn, TxnReply,
};

/// The shortest lease that etcd grants with its default election timeout of 1 s.
const LEASE_TTL_MIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(super) struct Store {
    revision: Revision,
    entries: BTreeMap<Key, Entry>,
    /// All changes since `compacted`, in their order.
    history: Vec<(Revision, Change)>,
    /// Changes up to and with this revision are forgotten.
    compacted: Revision,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
    incarnation: u64,
}

#[derive(Clone)]
struct Lease {
    ttl: Duration,
    ends: Duration,
}

/// A saved state of the store.
#[derive(Clone)]
pub struct Backup(Store);

/// What a watcher has to see.
pub(super) enum WatchEvents {
    Nothing,
    Changes {
        revision: Revision,
        changes: Vec<Change>,
    },
    Compacted,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            // As etcd's, whose first change has revision 2.
            revision: Revision(1),
            entries: BTreeMap::new(),
            history: Vec::new(),
            compacted: Revision(0),
            leases: BTreeMap::new(),
            next_lease: 1,
            incarnation: 0,
        }
    }
}

impl Store {
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn range(&self, range: &KeyRange) -> RangeReply {
        RangeReply {
            revision: self.revision,
            entries: self.read(range),
        }
    }

    fn read(&self, range: &KeyRange) -> Vec<Entry> {
        match range {
            KeyRange::One(key) => self.entries.get(key).cloned().into_iter().collect(),
            KeyRange::Prefix(prefix) => self
                .entries
                .range(Key::new(prefix.clone())..)
                .take_while(|(key, _)| range.contains(key))
                .map(|(_, entry)| entry.clone())
                .collect(),
        }
    }

    pub fn transact(&mut self, txn: Txn) -> Outcome {
        if let Some(error) = self.refusal(&txn) {
            return Outcome::Failed(error);
        }
        if !txn.when.iter().all(|compare| self.holds(compare)) {
            return Outcome::Refused(TxnReply {
                revision: self.revision,
                reads: txn.otherwise.iter().map(|range| self.read(range)).collect(),
            });
        }
        let next = self.revision.next();
        let changes_before = self.history.len();
        let mut reads = Vec::new();
        for op in txn.then {
            match op {
                Op::Get(range) => reads.push(self.read(&range)),
                Op::Put { key, value, lease } => self.put(key, value, lease, next),
                Op::Delete(range) => {
                    for entry in self.read(&range) {
                        self.delete(&entry.key, next);
                    }
                }
            }
        }
        // A transaction that changed nothing has no revision of its own.
        if self.history.len() > changes_before {
            self.revision = next;
        }
        Outcome::Done(TxnReply {
            revision: self.revision,
            reads,
        })
    }

    /// What etcd refuses whatever the conditions are, or once they hold.
    fn refusal(&self, txn: &Txn) -> Option<CoordinatorError> {
        let deletes = |key: &Key| {
            txn.then
                .iter()
                .any(|op| matches!(op, Op::Delete(range) if range.contains(key)))
        };
        let mut put = BTreeSet::new();
        for op in &txn.then {
            if let Op::Put { key, .. } = op
                && (!put.insert(key) || deletes(key))
            {
                return Some(CoordinatorError::Other(format!(
                    "duplicate key given in a transaction: {key}"
                )));
            }
        }
        if !txn.when.iter().all(|compare| self.holds(compare)) {
            return None;
        }
        txn.then.iter().find_map(|op| match op {
            Op::Put {
                lease: Some(lease), ..
            } if !self.leases.contains_key(lease) => Some(CoordinatorError::LeaseNotFound(*lease)),
            _ => None,
        })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let entry = |key| self.entries.get(key);
        match compare {
            Compare::Value(key, value) => entry(key).is_some_and(|entry| entry.value == *value),
            Compare::Modified(key, revision) => {
                entry(key).map_or(Revision::ABSENT, |entry| entry.modified) == *revision
            }
            Compare::Created(key, revision) => {
                entry(key).map_or(Revision::ABSENT, |entry| entry.created) == *revision
            }
            Compare::Version(key, version) => {
                entry(key).map_or(0, |entry| entry.version) == *version
            }
            Compare::Lease(key, lease) => entry(key).and_then(|entry| entry.lease) == *lease,
        }
    }

    fn put(&mut self, key: Key, value: Vec<u8>, lease: Option<LeaseId>, revision: Revision) {
        let before = self.entries.get(&key);
        let entry = Entry {
            key: key.clone(),
            value,
            created: before.map_or(revision, |entry| entry.created),
            modified: revision,
            version: before.map_or(1, |entry| entry.version + 1),
            lease,
        };
        self.history.push((revision, Change::Put(entry.clone())));
        self.entries.insert(key, entry);
    }

    fn delete(&mut self, key: &Key, revision: Revision) {
        if self.entries.remove(key).is_some() {
            let key = key.clone();
            self.history
                .push((revision, Change::Deleted { key, revision }));
        }
    }

    pub fn grant(&mut self, ttl: Duration, now: Duration) -> LeaseGrant {
        // etcd counts whole seconds.
        let ttl = Duration::from_secs(ttl.as_millis().div_ceil(1000) as u64).max(LEASE_TTL_MIN);
        let id = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.leases.insert(
            id,
            Lease {
                ttl,
                ends: now + ttl,
            },
        );
        LeaseGrant { id, ttl }
    }

    pub fn keep_alive(
        &mut self,
        id: LeaseId,
        now: Duration,
    ) -> Result<LeaseGrant, CoordinatorError> {
        let lease = self
            .leases
            .get_mut(&id)
            .ok_or(CoordinatorError::LeaseNotFound(id))?;
        lease.ends = now + lease.ttl;
        Ok(LeaseGrant { id, ttl: lease.ttl })
    }

    pub fn revoke(&mut self, id: LeaseId) {
        if self.leases.remove(&id).is_none() {
            return;
        }
        let of_lease = |entry: &&Entry| entry.lease == Some(id);
        let keys: Vec<Key> = self
            .entries
            .values()
            .filter(of_lease)
            .map(|entry| entry.key.clone())
            .collect();
        if keys.is_empty() {
            return;
        }
        self.revision = self.revision.next();
        for key in keys {
            self.delete(&key, self.revision);
        }
    }

    /// Ends the leases whose time is over.
    pub fn expire(&mut self, now: Duration) {
        let over: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.ends <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            self.revoke(id);
        }
    }

    /// As etcd under a new leader, which does not know when each was renewed last.
    pub fn begin_leases_anew(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.ends = now + lease.ttl;
        }
    }

    pub fn next_expiry(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends).min()
    }

    pub fn compact(&mut self, revision: Revision) {
        let revision = revision.min(self.revision);
        if revision > self.compacted {
            self.compacted = revision;
            self.history.retain(|(of, _)| *of > revision);
        }
    }

    /// The changes of these keys from one revision to another, both included.
    pub fn changes(&self, range: &KeyRange, from: Revision, to: Revision) -> WatchEvents {
        if from <= self.compacted {
            return WatchEvents::Compacted;
        }
        let mut revision = None;
        let mut changes = Vec::new();
        for (of, change) in &self.history {
            let key = match change {
                Change::Put(entry) => &entry.key,
                Change::Deleted { key, .. } => key,
            };
            if (from..=to).contains(of) && range.contains(key) {
                revision = Some(*of);
                changes.push(change.clone());
            }
        }
        match revision {
            None => WatchEvents::Nothing,
            Some(revision) => WatchEvents::Changes { revision, changes },
        }
    }

    pub fn backup(&self) -> Backup {
        Backup(self.clone())
    }

    pub fn restore(&mut self, backup: &Backup, now: Duration) {
        let incarnation = self.incarnation + 1;
        // A lease id that somebody still holds must not come to mean another lease.
        let next_lease = self.next_lease;
        *self = backup.0.clone();
        self.incarnation = incarnation;
        self.next_lease = next_lease;
        self.begin_leases_anew(now);
    }
}
