//! One CA of the cluster takes the place of another.
//!
//! Owns: how far that is, what each node does next, when all go on to the next phase, and the transactions for it.
//! Must not know: what a certificate is, how a node comes to trust one.
//!
//! Nodes do each phase by themselves, and note it when they have: those with a member of etcd in the record, the others in a note of
//! their own, since the record says which CA all nodes trust, and they may not write it. Nodes with a member take notes into the
//! record. Whichever of them finds that all nodes of the map have done a phase, makes the record that of the next one. So nobody
//! leads, and the death of any node stops nothing that does not need this very node.
//! At each moment every node of the map trusts the CA that the certificate of every other one is of: nobody shows a certificate of
//! the new one before all trust it, and nobody ceases to trust the old one while somebody has a certificate of it. A node that joins
//! writes the record again as it is, so that no phase ends between its coming and that it is seen.

use std::collections::BTreeSet;

use cairn_base::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::values::{Value, Versioned, decode, encode};
use super::{ClusterMap, MapError, Process};
use crate::coordinator::{Compare, KeyRange, Op, Revision, Txn};

/// Of a certificate as PEM; one of a CA has less than 1 KiB.
const PEM_LEN_BYTES_MAX: usize = 8 << 10;

/// What all nodes do now, one after the other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotationPhase {
    /// A node makes the new CA.
    Make,
    /// All nodes come to trust it beside the old one; those that are to have its key get that.
    Trust,
    /// All nodes get a certificate of it.
    Renew,
    /// All nodes cease to trust the old one, and delete its key.
    Drop,
    Done,
}

/// How far it is, or the last time that it was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationRecord {
    pub phase: RotationPhase,
    pub begun: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// The certificate of the old CA, as PEM.
    pub old_pem: String,
    /// That of the new one, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_pem: Option<String>,
    /// Nodes that have the key of the new one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with_key: BTreeSet<NodeId>,
    /// Nodes that have done what the phase asks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<NodeId>,
}

impl Value for RotationRecord {
    const WHAT: &'static str = "the rotation of the authority";

    fn problem(&self) -> Option<String> {
        let mut pems = std::iter::once(&self.old_pem).chain(&self.new_pem);
        if pems.any(|pem| pem.len() > PEM_LEN_BYTES_MAX) {
            return Some("a certificate is far too long".to_owned());
        }
        if self.new_pem.as_ref() == Some(&self.old_pem) {
            return Some("an authority takes its own place".to_owned());
        }
        match (self.phase, &self.new_pem) {
            (RotationPhase::Make, Some(_)) => {
                Some("the new authority is there before it is made".to_owned())
            }
            (RotationPhase::Make, None) | (_, Some(_)) => None,
            (_, None) => Some("there is no new authority".to_owned()),
        }
    }
}

/// What a node that may not write the record says that it has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationNote {
    pub node: NodeId,
    /// Of which record: its phase, and the certificate of the new CA.
    pub phase: RotationPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_pem: Option<String>,
    /// Whether it has the key of the new CA.
    pub has_key: bool,
}

impl Value for RotationNote {
    const WHAT: &'static str = "what a node has done of the rotation of the authority";
}

impl RotationNote {
    pub fn of(record: &RotationRecord, node: NodeId, has_key: bool) -> Self {
        Self {
            node,
            phase: record.phase,
            new_pem: record.new_pem.clone(),
            has_key,
        }
    }

    /// Whether a record of its phase does not have it yet.
    pub fn is_missed_by(&self, record: &RotationRecord) -> bool {
        let is_of = (self.phase, &self.new_pem) == (record.phase, &record.new_pem);
        let is_in = record.done.contains(&self.node)
            && record.with_key.contains(&self.node) == self.has_key;
        is_of && !is_in
    }
}

/// What a node has of the two CAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationOwn {
    pub trusts_old: bool,
    pub trusts_new: bool,
    pub has_new_key: bool,
    /// Certificates that it issues and asks for are of the new one.
    pub prefers_new: bool,
    pub has_new_certificate: bool,
    /// Its member of etcd began after what the node trusts changed last: etcd reads that when it starts. So is a node without one.
    pub is_member_current: bool,
}

/// What a node does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Makes the new CA, and says so in the record.
    Make,
    /// Trusts the new one beside the old one.
    Trust,
    /// Gets the key of the new one.
    FetchKey,
    /// Has its certificates be of the new one.
    Prefer,
    /// Gets one.
    Renew,
    /// Trusts the old one no more.
    Distrust,
    /// Waits until its member of etcd has started again.
    AwaitMember,
    /// Notes in the record that it has done what the phase asks.
    Note,
}

impl RotationRecord {
    pub fn begin(old_pem: String, now: Timestamp) -> Self {
        Self {
            phase: RotationPhase::Make,
            begun: now,
            ended: None,
            old_pem,
            new_pem: None,
            with_key: BTreeSet::new(),
            done: BTreeSet::new(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.phase != RotationPhase::Done
    }

    /// After a node has made the new CA.
    pub fn made(&self, new_pem: String, by: NodeId) -> Self {
        Self {
            phase: RotationPhase::Trust,
            new_pem: Some(new_pem),
            with_key: BTreeSet::from([by]),
            done: BTreeSet::new(),
            ..self.clone()
        }
    }

    /// After a node has done what the phase asks.
    pub fn noted(&self, node: NodeId, has_key: bool) -> Self {
        let mut next = self.clone();
        next.done.insert(node);
        match has_key {
            true => next.with_key.insert(node),
            false => next.with_key.remove(&node),
        };
        next
    }

    /// After another machine has become a node: it has nothing of what the earlier one had.
    pub fn without(&self, node: NodeId) -> Self {
        let mut next = self.clone();
        next.done.remove(&node);
        next.with_key.remove(&node);
        next
    }

    /// The nodes that the phase waits for. `holders`: those that are to have keys of CAs.
    pub fn awaited(
        &self,
        nodes: &BTreeSet<NodeId>,
        holders: &BTreeSet<NodeId>,
    ) -> BTreeSet<NodeId> {
        let lacks_key = |node: &NodeId| {
            let is_asked = self.phase == RotationPhase::Trust && holders.contains(node);
            is_asked && !self.with_key.contains(node)
        };
        let is_awaited = |node: &&NodeId| !self.done.contains(*node) || lacks_key(node);
        match self.phase {
            RotationPhase::Make | RotationPhase::Done => BTreeSet::new(),
            _ => nodes.iter().filter(is_awaited).copied().collect(),
        }
    }

    /// The record of the next phase, if this one is over: all nodes of the map have done what it asks.
    pub fn advanced(
        &self,
        nodes: &BTreeSet<NodeId>,
        holders: &BTreeSet<NodeId>,
        now: Timestamp,
    ) -> Option<Self> {
        // The nodes that had the key of the new one are gone, and nobody has a certificate of it: another one is made.
        let is_lost = self.phase == RotationPhase::Trust
            && self.with_key.intersection(nodes).next().is_none();
        if is_lost {
            return Some(Self {
                phase: RotationPhase::Make,
                new_pem: None,
                with_key: BTreeSet::new(),
                done: BTreeSet::new(),
                ..self.clone()
            });
        }
        if nodes.is_empty() || !self.awaited(nodes, holders).is_empty() {
            return None;
        }
        let phase = match self.phase {
            RotationPhase::Make | RotationPhase::Done => return None,
            RotationPhase::Trust => RotationPhase::Renew,
            RotationPhase::Renew => RotationPhase::Drop,
            RotationPhase::Drop => RotationPhase::Done,
        };
        Some(Self {
            phase,
            done: BTreeSet::new(),
            ended: (phase == RotationPhase::Done).then_some(now),
            ..self.clone()
        })
    }

    /// The record after a node has done what `seen` asks (`note`: which one, and whether it has the key of the new CA), and that of the
    /// next phase if that was all. Nothing if there is another one by now, or nothing changes.
    pub fn after(
        &self,
        seen: &Self,
        note: Option<(NodeId, bool)>,
        (nodes, holders): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
        now: Timestamp,
    ) -> Option<Self> {
        if (self.phase, &self.new_pem) != (seen.phase, &seen.new_pem) {
            return None;
        }
        let noted = match note {
            Some((node, has_key)) => self.noted(node, has_key),
            None => self.clone(),
        };
        let next = noted.advanced(nodes, holders, now).unwrap_or(noted);
        (next != *self).then_some(next)
    }

    /// What a node does next, if it is its turn. `makes`: it is the one that makes CAs.
    pub fn step(
        &self,
        node: NodeId,
        is_holder: bool,
        makes: bool,
        own: RotationOwn,
    ) -> Option<RotationStep> {
        let is_noted = self.done.contains(&node)
            && (self.phase != RotationPhase::Trust
                || own.has_new_key == self.with_key.contains(&node));
        let note = (!is_noted).then_some(RotationStep::Note);
        match self.phase {
            RotationPhase::Make => makes.then_some(RotationStep::Make),
            RotationPhase::Trust if !own.trusts_new => Some(RotationStep::Trust),
            RotationPhase::Trust if is_holder && !own.has_new_key => Some(RotationStep::FetchKey),
            RotationPhase::Trust if !own.is_member_current => Some(RotationStep::AwaitMember),
            RotationPhase::Trust => note,
            RotationPhase::Renew if !own.trusts_new => Some(RotationStep::Trust),
            RotationPhase::Renew if !own.prefers_new => Some(RotationStep::Prefer),
            RotationPhase::Renew if !own.has_new_certificate => Some(RotationStep::Renew),
            RotationPhase::Renew if !own.is_member_current => Some(RotationStep::AwaitMember),
            RotationPhase::Renew => note,
            // It would cut itself off.
            RotationPhase::Drop if !own.trusts_new => None,
            RotationPhase::Drop if !own.prefers_new => Some(RotationStep::Prefer),
            RotationPhase::Drop if !own.has_new_certificate => Some(RotationStep::Renew),
            RotationPhase::Done if !own.has_new_certificate => None,
            RotationPhase::Drop | RotationPhase::Done if own.trusts_old => {
                Some(RotationStep::Distrust)
            }
            RotationPhase::Done => None,
            RotationPhase::Drop if !own.is_member_current => Some(RotationStep::AwaitMember),
            RotationPhase::Drop => note,
        }
    }
}

impl ClusterMap {
    /// The rotation that runs, or the last one.
    pub async fn rotation(&self) -> Result<Option<Versioned<RotationRecord>>, MapError> {
        self.read_one(self.keys().rotation()).await
    }

    /// Replaces it; `replaced` as [`Self::rotation`] returned it. Tokens go where nodes begin to show certificates of the new CA: the
    /// tickets that have them name the old one.
    pub async fn set_rotation(
        &self,
        replaced: Option<&Versioned<RotationRecord>>,
        record: &RotationRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().rotation();
        let before = replaced.map(|there| there.value.phase);
        let mut txn = Txn::default();
        if record.phase == RotationPhase::Renew && before != Some(RotationPhase::Renew) {
            txn.then.push(Op::Delete(self.keys().tokens()));
        }
        let revision = replaced.map_or(Revision::ABSENT, |there| there.revision);
        self.write(key.clone(), revision, record, txn)
            .await?
            .or_changed(key, RotationRecord::WHAT)
    }

    /// What nodes that may not write the record have noted. A value that cannot be read is none: its node alone is held up.
    pub async fn rotation_notes(&self) -> Result<Vec<RotationNote>, MapError> {
        let reply = self.read(self.keys().rotation_notes()).await?;
        let notes = reply.entries.iter().filter_map(|entry| {
            let note = decode::<RotationNote>(entry).ok()?.value;
            (self.keys().rotation_note(note.node) == entry.key).then_some(note)
        });
        Ok(notes.collect())
    }

    /// Has a note of a node be there for as long as its process lives, in place of any that there is.
    pub async fn note_rotation(
        &self,
        process: Process,
        note: &RotationNote,
    ) -> Result<(), MapError> {
        let key = self.keys().rotation_note(process.node);
        let found = self.read(KeyRange::One(key.clone())).await?.one();
        let replaced = found.map_or(Revision::ABSENT, |entry| entry.modified);
        let (lease, txn) = (Some(process.lease), Txn::default());
        let written = self.write_leased(key.clone(), replaced, note, lease, txn);
        written.await?.or_changed(key, RotationNote::WHAT)
    }

    /// What a transaction that adds a node has beside: it and the end of a phase exclude one another.
    pub(super) fn guard_rotation(
        &self,
        txn: &mut Txn,
        found: Option<&Versioned<RotationRecord>>,
        becomes: impl FnOnce(&RotationRecord) -> RotationRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().rotation();
        let Some(found) = found else {
            txn.when.push(Compare::absent(key));
            return Ok(());
        };
        let value = encode(&key, &becomes(&found.value))?;
        txn.when
            .push(Compare::Modified(key.clone(), found.revision));
        txn.then.push(Op::put(key, value));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
