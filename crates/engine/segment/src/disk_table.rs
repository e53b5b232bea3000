//! The disks of the pool as the store knows them: present, missing, draining.
//!
//! Owns: which disks may be read, which may get new shards, the number of disks that new data is laid out for. Must not
//! know: why a disk leaves, who decides it, the pool file. A list never changes: a change replaces it, so a reader sees
//! the old or the new one.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use cairn_base::domain::{DomainPath, Survives, survives};
use cairn_base::{DiskId, Media, NodeId};
use cairn_shard::ShardService;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::placement::Topology;
use crate::store::SegmentStore;
use crate::types::SegmentInfo;

#[derive(Clone, Default)]
pub(crate) struct Members {
    disks: FxHashMap<DiskId, Arc<dyn ShardService>>,
    missing: Vec<DiskId>,
    /// Nodes of the disks, except for those on the only node.
    nodes: FxHashMap<DiskId, NodeId>,
    /// Disks that are read and get no new shards.
    draining: FxHashSet<DiskId>,
    /// Disks that get no shards at all.
    journals: FxHashSet<DiskId>,
    /// Device classes, of the disks whose class is known.
    media: FxHashMap<DiskId, Media>,
}

impl Members {
    pub fn new(disks: Vec<Arc<dyn ShardService>>, missing: Vec<DiskId>) -> Self {
        Self {
            disks: disks.into_iter().map(|disk| (disk.id(), disk)).collect(),
            missing,
            nodes: FxHashMap::default(),
            draining: FxHashSet::default(),
            journals: FxHashSet::default(),
            media: FxHashMap::default(),
        }
    }

    pub fn disk(&self, id: DiskId) -> Option<&Arc<dyn ShardService>> {
        self.disks.get(&id)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn ShardService>> {
        self.disks.values()
    }

    /// Failure domain of a disk; a disk without a known node is on the only node.
    pub fn domain(&self, disk: DiskId) -> DomainPath {
        let node = self.nodes.get(&disk).copied().unwrap_or(NodeId::ONLY);
        DomainPath { node, disk }
    }

    pub fn missing(&self) -> &[DiskId] {
        &self.missing
    }

    /// Whether the role of a disk allows new shards.
    pub fn takes_shards(&self, id: DiskId) -> bool {
        !self.draining.contains(&id) && !self.journals.contains(&id)
    }

    pub fn media(&self, id: DiskId) -> Option<Media> {
        self.media.get(&id).copied()
    }

    /// Whether the device class of any disk is known.
    pub fn has_media(&self) -> bool {
        !self.media.is_empty()
    }

    /// Whether a disk has the device class `media`, or no class is wanted.
    pub fn is_of(&self, id: DiskId, media: Option<Media>) -> bool {
        media.is_none() || self.media(id) == media
    }

    pub fn is_journal(&self, id: DiskId) -> bool {
        self.journals.contains(&id)
    }

    /// The disks, present or not, that stay in the pool, without some of them.
    pub fn staying(&self, without: &[DiskId]) -> Topology {
        let ids = self.disks.keys().chain(&self.missing);
        let stays = |id: &&DiskId| self.takes_shards(**id) && !without.contains(id);
        ids.filter(stays).map(|id| self.domain(*id).node).collect()
    }

    /// Identifies the set of staying disks with their nodes and classes: it changes when they do.
    pub fn layout(&self) -> u64 {
        let ids = self.disks.keys().chain(&self.missing);
        let mut all: Vec<(DiskId, NodeId, bool, Option<Media>)> = ids
            .map(|id| {
                let (node, stays) = (self.domain(*id).node, self.takes_shards(*id));
                (*id, node, stays, self.media(*id))
            })
            .collect();
        all.sort_unstable();
        let mut hasher = FxHasher::default();
        all.hash(&mut hasher);
        hasher.finish()
    }

    /// Failure domains of all disks, present or not.
    pub fn domains(&self) -> impl Iterator<Item = DomainPath> {
        let ids = self.disks.keys().chain(&self.missing);
        ids.map(|id| self.domain(*id))
    }
}

/// Role of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It gets new shards.
    Staying,
    /// It is read, and gets no new shards.
    Draining,
    /// It gets no shards, and its room does not count for them.
    Journal,
}

/// A disk of the pool, as the pool sees it.
#[derive(Clone)]
pub struct Member {
    pub id: DiskId,
    /// The node of the disk: its failure domain.
    pub node: NodeId,
    pub role: Role,
    pub media: Option<Media>,
    /// `None` if the disk is missing.
    pub disk: Option<Arc<dyn ShardService>>,
}

impl SegmentStore {
    /// Replaces the table of disks by the pool's. Open segments on a disk that is draining now are retired by their
    /// next append. Shards on a disk that is no member any more are lost.
    pub fn set_members(self: &Arc<Self>, members: &[Member]) {
        let before = self.members();
        let is_missing = |member: &&Member| member.disk.is_none();
        let of_role = |role: Role| {
            let its = members.iter().filter(move |member| member.role == role);
            its.map(|member| member.id)
        };
        self.change_members(|table| {
            *table = Members {
                disks: members
                    .iter()
                    .filter_map(|member| Some((member.id, member.disk.clone()?)))
                    .collect(),
                missing: members.iter().filter(is_missing).map(|it| it.id).collect(),
                nodes: members.iter().map(|it| (it.id, it.node)).collect(),
                draining: of_role(Role::Draining).collect(),
                journals: of_role(Role::Journal).collect(),
                media: members
                    .iter()
                    .filter_map(|it| Some((it.id, it.media?)))
                    .collect(),
            };
        });
        let is_new = |disk: &&Arc<dyn ShardService>| {
            let known = before.disk(disk.id());
            known.is_none_or(|known| !Arc::ptr_eq(known, disk))
        };
        let disks = members.iter().filter_map(|member| member.disk.as_ref());
        disks
            .filter(is_new)
            .for_each(|disk| self.fence_joined(disk));
    }

    /// Losses of disks and of nodes that a segment survives from now on.
    pub fn survives(&self, info: &SegmentInfo) -> Survives {
        let members = self.members();
        let works = |disk: &&DiskId| self.healthy_disk(**disk).is_some();
        let there = info.disks.iter().filter(works);
        let places: Vec<DomainPath> = there.map(|disk| members.domain(*disk)).collect();
        match places.len().checked_sub(usize::from(info.code.data())) {
            Some(spare) => survives(&places, spare),
            None => Survives::default(),
        }
    }

    /// Adds a disk to the pool, or takes it back; it may get new shards from now on.
    pub fn disk_join(self: &Arc<Self>, disk: Arc<dyn ShardService>) {
        let id = disk.id();
        self.change_members(|members| {
            members.missing.retain(|missing| *missing != id);
            members.draining.remove(&id);
            members.disks.insert(id, disk.clone());
        });
        self.fence_joined(&disk);
    }

    /// Stops (`draining`) or resumes placing shards on a disk. Open segments on it are retired by their next append.
    pub fn disk_draining(&self, id: DiskId, draining: bool) {
        self.change_members(|members| {
            if draining {
                members.draining.insert(id);
            } else {
                members.draining.remove(&id);
            }
        });
    }

    /// Forgets a disk: the shards on it are lost.
    pub fn disk_forget(&self, id: DiskId) {
        self.change_members(|members| {
            members.missing.retain(|missing| *missing != id);
            members.draining.remove(&id);
            members.disks.remove(&id);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_is_counted_once() {
        let id = DiskId;
        let mut members = Members::new(Vec::new(), vec![id(1), id(2), id(3)]);
        members.draining.insert(id(3));
        let cases = [
            (vec![], 2),
            (vec![id(1)], 1),
            (vec![id(1), id(2)], 0),
            // It is draining already, or not in the pool.
            (vec![id(3)], 2),
            (vec![id(4)], 2),
        ];
        for (without, want) in cases {
            assert_eq!(members.staying(&without).disk_count(), want, "{without:?}");
        }
        members.nodes.insert(id(1), NodeId(7));
        assert_eq!(members.staying(&[]).node_count(), 2);
        assert_eq!(members.staying(&[id(1)]).node_count(), 1);
    }
}
