//! The disks of the pool as the store knows them: there, missing, draining.
//!
//! Owns: which disks may be read, which may be given new shards, how many new data is laid out for.
//! Must not know: why a disk leaves, who decides it, the pool file.
//! A list never changes: a change puts another one in its place, so a reader sees one or the other.

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
    /// Of those that are not on the only node there is.
    nodes: FxHashMap<DiskId, NodeId>,
    /// Read, and given no new shards.
    draining: FxHashSet<DiskId>,
    /// Given no shards at all.
    journals: FxHashSet<DiskId>,
    /// What kind of device they are, of those of which it is known.
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

    /// Where a disk is; one that nobody named is on the only node.
    pub fn domain(&self, disk: DiskId) -> DomainPath {
        let node = self.nodes.get(&disk).copied().unwrap_or(NodeId::ONLY);
        DomainPath { node, disk }
    }

    pub fn missing(&self) -> &[DiskId] {
        &self.missing
    }

    /// Whether new shards may be put on a disk, as far as its role goes.
    pub fn takes_shards(&self, id: DiskId) -> bool {
        !self.draining.contains(&id) && !self.journals.contains(&id)
    }

    pub fn media(&self, id: DiskId) -> Option<Media> {
        self.media.get(&id).copied()
    }

    /// Whether it is known of any disk what kind of device it is.
    pub fn has_media(&self) -> bool {
        !self.media.is_empty()
    }

    /// Whether a disk is what data is to live on that asks for `media`.
    pub fn is_of(&self, id: DiskId, media: Option<Media>) -> bool {
        media.is_none() || self.media(id) == media
    }

    pub fn is_journal(&self, id: DiskId) -> bool {
        self.journals.contains(&id)
    }

    /// Disks, there or not, that are to stay, as if some of them left.
    pub fn staying(&self, without: &[DiskId]) -> Topology {
        let ids = self.disks.keys().chain(&self.missing);
        let stays = |id: &&DiskId| self.takes_shards(**id) && !without.contains(id);
        ids.filter(stays).map(|id| self.domain(*id).node).collect()
    }

    /// A number for which disks are to stay, where, and of which kind: it is another one when that changes.
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

    /// Where every disk is, there or not.
    pub fn domains(&self) -> impl Iterator<Item = DomainPath> {
        let ids = self.disks.keys().chain(&self.missing);
        ids.map(|id| self.domain(*id))
    }
}

/// What becomes of a disk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// New shards are put on it.
    Staying,
    /// It is read, and given no new shards.
    Draining,
    /// It is given no shards, and its room is not for them.
    Journal,
}

/// A disk of the pool, as the pool sees it.
#[derive(Clone)]
pub struct Member {
    pub id: DiskId,
    /// The node that has it: what fails with it.
    pub node: NodeId,
    pub role: Role,
    pub media: Option<Media>,
    /// `None` if it is not there.
    pub disk: Option<Arc<dyn ShardService>>,
}

impl SegmentStore {
    /// Takes over the pool's table of disks. Segments that are open on a disk that drains now are left by their next
    /// append; what is on a disk that is no member any more is lost.
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

    /// Which losses, of disks and of nodes, a segment survives from now on.
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

    /// Takes a disk into the pool, or back into it; new shards may be put on it from now on.
    pub fn disk_join(self: &Arc<Self>, disk: Arc<dyn ShardService>) {
        let id = disk.id();
        self.change_members(|members| {
            members.missing.retain(|missing| *missing != id);
            members.draining.remove(&id);
            members.disks.insert(id, disk.clone());
        });
        self.fence_joined(&disk);
    }

    /// Puts nothing new on a disk any more (`draining`), or again. Segments that are open on it are
    /// left by their next append.
    pub fn disk_draining(&self, id: DiskId, draining: bool) {
        self.change_members(|members| {
            if draining {
                members.draining.insert(id);
            } else {
                members.draining.remove(&id);
            }
        });
    }

    /// Forgets a disk: whatever still is on it is lost.
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
            // It leaves already, or is none of them.
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
