//! The one table of the pool's disks: who is a member, in which role, whether it is there, and what is wrong with it.
//!
//! Owns: what is believed of each disk. The lists that `segment` and `meta` work with follow from it.
//! Must not know: how a disk is watched, who decides that it leaves, how the table is kept.
//!
//! A table never changes: a change puts another one in its place, so that a reader sees one or the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, VolumeId};
use cairn_segment::{Member, Role};
use cairn_shard::ShardDisk;

use crate::assemble::Missing;
use cairn_formats::pool_file::{PoolDisk, PoolState};

#[derive(Clone)]
pub struct Table {
    /// The pool as it was saved last.
    pub state: Arc<PoolState>,
    /// The disks that are open, also draining ones, ones that failed, and one that is about to join.
    there: BTreeMap<DiskId, Arc<ShardDisk>>,
    /// Why members are not there.
    missing: BTreeMap<DiskId, String>,
    /// Disks that are being removed, though the state does not say so yet.
    leaving: BTreeSet<DiskId>,
    /// Disks on which metadata failed, and how: not used until the next start for that of the volume that is damaged
    /// there, or for any where the disk fails.
    avoided: BTreeMap<(DiskId, Option<VolumeId>), String>,
}

/// What is to be thought of a disk. All that judges disks ends here: their errors (`shard`), how they answer
/// ([`crate::watch`]), and whether the start found them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is read and written.
    Works,
    /// It is there, and nothing is asked of it before the next start.
    Failed,
    /// It is a member, and the start did not find it.
    Missing,
    /// It is no disk of the pool.
    Unknown,
}

impl Table {
    pub fn new(
        state: Arc<PoolState>,
        there: impl IntoIterator<Item = Arc<ShardDisk>>,
        missing: &[Missing],
    ) -> Self {
        Self {
            state,
            there: there.into_iter().map(|disk| (disk.id(), disk)).collect(),
            missing: missing
                .iter()
                .map(|entry| (entry.disk.id, entry.why.clone()))
                .collect(),
            leaving: BTreeSet::new(),
            avoided: BTreeMap::new(),
        }
    }

    /// All disks that are open, in the order of the pool's members; one that is about to join comes last.
    pub fn disks(&self) -> Vec<Arc<ShardDisk>> {
        let members = self.state.disks.iter().map(|member| member.id);
        let listed = members.filter_map(|id| self.there.get(&id));
        let joining = self
            .there
            .values()
            .filter(|disk| self.member(disk.id()).is_none());
        listed.chain(joining).cloned().collect()
    }

    pub fn disk(&self, id: DiskId) -> Option<&Arc<ShardDisk>> {
        self.there.get(&id)
    }

    pub fn member(&self, id: DiskId) -> Option<&PoolDisk> {
        self.state.disks.iter().find(|member| member.id == id)
    }

    pub fn condition(&self, id: DiskId) -> Condition {
        match (self.there.get(&id), self.member(id)) {
            (Some(disk), _) if disk.health().failed => Condition::Failed,
            (Some(_), _) => Condition::Works,
            (None, Some(_)) => Condition::Missing,
            (None, None) => Condition::Unknown,
        }
    }

    pub fn works(&self, id: DiskId) -> bool {
        self.condition(id) == Condition::Works
    }

    /// Why a member is not there.
    pub fn why_missing(&self, id: DiskId) -> Option<&str> {
        self.missing.get(&id).map(String::as_str)
    }

    /// Whether everything on a disk has to go. Not asked of one whose removal is only being tried.
    pub fn is_draining(&self, id: DiskId) -> bool {
        self.member(id).is_some_and(|member| member.draining)
    }

    /// Members that stay, there or not.
    pub fn staying_count(&self) -> usize {
        let members = self.state.disks.iter();
        members.filter(|member| !member.draining).count()
    }

    /// Whether metadata of a volume, or of a new one, may be kept on a disk.
    pub fn takes_metadata(&self, id: DiskId, volume: Option<VolumeId>) -> bool {
        let is_avoided = self.avoided.contains_key(&(id, None))
            || (volume.is_some() && self.avoided.contains_key(&(id, volume)));
        self.works(id) && !is_avoided
    }

    /// Why metadata is not kept on a disk that works otherwise.
    pub fn why_avoided(&self, id: DiskId) -> Option<(Option<VolumeId>, &str)> {
        let mut avoided = self.avoided.iter().filter(|((disk, _), _)| *disk == id);
        let ((_, volume), why) = avoided.next()?;
        Some((*volume, why))
    }

    /// What `segment` is to know of the disks.
    pub fn roles(&self) -> Vec<Member> {
        let is_told = !planted::is(Bug::DrainingDiskTakesData);
        let role = |member: &PoolDisk| match self.leaving.contains(&member.id) || member.draining {
            true if is_told => Role::Draining,
            _ => Role::Staying,
        };
        let members = self.state.disks.iter().map(|member| Member {
            id: member.id,
            role: role(member),
            disk: self.there.get(&member.id).cloned(),
        });
        members.collect()
    }

    pub(crate) fn put(&mut self, disk: Arc<ShardDisk>) {
        self.missing.remove(&disk.id());
        self.there.insert(disk.id(), disk);
    }

    /// Returns the disk, if it was there.
    pub(crate) fn take(&mut self, id: DiskId) -> Option<Arc<ShardDisk>> {
        self.missing.remove(&id);
        self.leaving.remove(&id);
        self.there.remove(&id)
    }

    pub(crate) fn set_leaving(&mut self, id: DiskId, is_leaving: bool) {
        match is_leaving {
            true => self.leaving.insert(id),
            false => self.leaving.remove(&id),
        };
    }

    pub(crate) fn avoid(&mut self, id: DiskId, volume: Option<VolumeId>, why: String) {
        self.avoided.insert((id, volume), why);
    }
}
