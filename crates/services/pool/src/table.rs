//! The one table of the pool's disks: who is a member, in which role, whether it is there, and what is wrong with it.
//!
//! Owns: what is believed of each disk. The lists that `segment` and `meta` work with follow from it.
//! Must not know: how a disk is watched, who decides that it leaves, how the table is kept.
//!
//! A table never changes: a change puts another one in its place, so that a reader sees one or the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_base::disk::DiskSpace;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, DiskRole, NodeId, VolumeId};
use cairn_segment::{Member, Role};
use cairn_shard::{ShardDisk, ShardService};

use crate::assemble::Missing;
use cairn_formats::pool_file::{PoolDisk, PoolState};

#[derive(Clone)]
pub struct Table {
    /// The pool as it was saved last.
    pub state: Arc<PoolState>,
    /// The disks that are open, also draining ones, ones that failed, and one that is about to join.
    there: BTreeMap<DiskId, Arc<ShardDisk>>,
    /// Members on other nodes that can be reached. Their own nodes judge them.
    remote: BTreeMap<DiskId, Arc<dyn ShardService>>,
    /// Why members are not there.
    missing: BTreeMap<DiskId, String>,
    /// Disks that were put out, and why. Nothing is written to them before the next start, unless they are taken back.
    out: BTreeMap<DiskId, String>,
    /// Disks that are being removed, though the state does not say so yet.
    leaving: BTreeSet<DiskId>,
    /// Disks on which metadata failed, and how: not used until the next start for that of the volume that is damaged
    /// there, or for any where the disk fails.
    avoided: BTreeMap<(DiskId, Option<VolumeId>), String>,
    /// Nodes that are meant to be away: data of their disks is not rebuilt meanwhile.
    awaited: BTreeSet<NodeId>,
}

/// The verdict on a disk. One judge decides ([`crate::judge`]), and it is kept here; errors in a row (`shard`)
/// only raise a suspicion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is read and written.
    Works,
    /// It is there, and so many errors came in a row that it is neither written, nor read but as a last resort, until
    /// it is judged.
    Suspect,
    /// It is there, and nothing is asked of it before the next start, or before it is taken back.
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
            remote: BTreeMap::new(),
            missing: missing
                .iter()
                .map(|entry| (entry.disk.id, entry.why.clone()))
                .collect(),
            out: BTreeMap::new(),
            leaving: BTreeSet::new(),
            avoided: BTreeMap::new(),
            awaited: BTreeSet::new(),
        }
    }

    /// Nodes that are meant to be away.
    pub fn awaited(&self) -> &BTreeSet<NodeId> {
        &self.awaited
    }

    pub fn set_awaited(&mut self, nodes: BTreeSet<NodeId>) {
        self.awaited = nodes;
    }

    pub fn is_awaited(&self, node: NodeId) -> bool {
        self.awaited.contains(&node)
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

    /// A disk as those use it who own volumes, wherever it is.
    pub fn service(&self, id: DiskId) -> Option<Arc<dyn ShardService>> {
        let here = self.there.get(&id).map(|disk| Arc::clone(disk) as _);
        here.or_else(|| self.remote.get(&id).cloned())
    }

    /// The room of a disk, wherever it is, if that is known.
    pub fn space(&self, id: DiskId) -> Option<DiskSpace> {
        self.service(id)?.space().ok()
    }

    /// Whether it is a disk of this process.
    pub fn is_here(&self, id: DiskId) -> bool {
        self.there.contains_key(&id)
    }

    pub fn member(&self, id: DiskId) -> Option<&PoolDisk> {
        self.state.disks.iter().find(|member| member.id == id)
    }

    pub fn condition(&self, id: DiskId) -> Condition {
        match (self.service(id), self.member(id)) {
            (Some(_), _) if self.out.contains_key(&id) => Condition::Failed,
            (Some(disk), _) if disk.is_avoided() => Condition::Suspect,
            (Some(_), _) => Condition::Works,
            (None, Some(_)) => Condition::Missing,
            (None, None) => Condition::Unknown,
        }
    }

    pub fn works(&self, id: DiskId) -> bool {
        self.condition(id) == Condition::Works
    }

    /// Whether a disk does not answer, or has not proven since that it does.
    pub fn is_silent(&self, id: DiskId) -> bool {
        self.service(id).is_some_and(|disk| disk.is_silent())
    }

    /// Whether changes of a disk fail, or it has not proven since that it takes them.
    pub fn is_failing(&self, id: DiskId) -> bool {
        let disk = self.service(id);
        disk.is_some_and(|disk| disk.state().is_failing())
    }

    /// Why a member is not there.
    pub fn why_missing(&self, id: DiskId) -> Option<&str> {
        self.missing.get(&id).map(String::as_str)
    }

    /// Why a disk was put out.
    pub fn why_out(&self, id: DiskId) -> Option<&str> {
        self.out.get(&id).map(String::as_str)
    }

    /// Whether everything on a disk has to go. Not asked of one whose removal is only being tried.
    pub fn is_draining(&self, id: DiskId) -> bool {
        self.member(id).is_some_and(|member| member.draining)
    }

    pub fn is_journal(&self, id: DiskId) -> bool {
        self.member(id)
            .is_some_and(|member| member.role == DiskRole::Journal)
    }

    /// Members that stay, there or not.
    pub fn staying_count(&self) -> usize {
        let members = self.state.disks.iter();
        members.filter(|member| !member.draining).count()
    }

    /// Nodes with members that stay, there or not.
    pub fn staying_node_count(&self) -> usize {
        let staying = self.state.disks.iter().filter(|member| !member.draining);
        let nodes: BTreeSet<NodeId> = staying.map(|member| member.node).collect();
        nodes.len()
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
            _ if member.role == DiskRole::Journal && !planted::is(Bug::JournalDiskTakesData) => {
                Role::Journal
            }
            _ => Role::Staying,
        };
        let members = self.state.disks.iter().map(|member| Member {
            id: member.id,
            node: member.node,
            role: role(member),
            media: member.media,
            disk: self.service(member.id),
        });
        members.collect()
    }

    /// Puts a disk out; who holds it open (`segment`, scrub) finds that there at once.
    pub(crate) fn put_out(&mut self, id: DiskId, why: String) {
        if let Some(disk) = self.there.get(&id) {
            disk.mark_failed();
            self.out.entry(id).or_insert(why);
        }
    }

    pub(crate) fn put(&mut self, disk: Arc<ShardDisk>) {
        self.missing.remove(&disk.id());
        self.there.insert(disk.id(), disk);
    }

    /// Takes a disk back that was faulted. It was reopened: holders of the old one have no part in it.
    pub(crate) fn take_back(&mut self, disk: Arc<ShardDisk>) {
        self.out.remove(&disk.id());
        self.put(disk);
    }

    /// The disks of other nodes that can be reached now.
    pub(crate) fn set_remote(&mut self, disks: BTreeMap<DiskId, Arc<dyn ShardService>>) {
        self.remote = disks;
    }

    /// Whether these are the disks of other nodes that are known to be reached.
    pub(crate) fn has_remote(&self, disks: &BTreeMap<DiskId, Arc<dyn ShardService>>) -> bool {
        let same = |(one, other): (&Arc<dyn ShardService>, &Arc<dyn ShardService>)| {
            Arc::ptr_eq(one, other)
        };
        self.remote.keys().eq(disks.keys()) && self.remote.values().zip(disks.values()).all(same)
    }

    /// Returns the disk, if it was there.
    pub(crate) fn take(&mut self, id: DiskId) -> Option<Arc<ShardDisk>> {
        self.missing.remove(&id);
        self.out.remove(&id);
        self.leaving.remove(&id);
        self.remote.remove(&id);
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

#[cfg(test)]
mod tests {
    use cairn_base::disk::Disk;
    use cairn_base::{PoolId, Timestamp};
    use cairn_formats::testing::example_pool;
    use cairn_shard::ShardSettings;
    use cairn_testkit::MemDisk;

    use super::*;

    /// Errors raise a suspicion, which can be withdrawn; a verdict stays, whatever the disk does then.
    #[tokio::test]
    async fn a_suspicion_is_no_verdict() {
        let state = Arc::new(example_pool(3));
        let (pool, id) = (PoolId(1), state.disks[0].id);
        let memory = MemDisk::new("disk", 64 << 20);
        let disk: Arc<dyn Disk> = Arc::clone(&memory) as Arc<dyn Disk>;
        let made = ShardDisk::format(Arc::clone(&disk), pool, id, Timestamp::default());
        made.await.unwrap();
        let settings = ShardSettings::default();
        let errors_max = settings.errors_in_a_row_max;
        let disk = ShardDisk::open(disk, pool, settings).await.unwrap();
        let mut table = Table::new(Arc::clone(&state), [Arc::clone(&disk)], &[]);
        let seen = |table: &Table| (table.condition(id), table.takes_metadata(id, None));
        assert_eq!(seen(&table), (Condition::Works, true));
        assert_eq!(table.condition(state.disks[1].id), Condition::Missing);
        memory.fail_all();
        for _ in 0..errors_max {
            assert!(disk.probe().await.is_err());
        }
        assert_eq!(seen(&table), (Condition::Suspect, false));
        assert!(disk.is_avoided() && !disk.health().failed);
        disk.clear_suspicion();
        assert_eq!(seen(&table), (Condition::Works, true));
        table.put_out(id, "for a test".to_owned());
        table.put_out(id, "for another reason".to_owned());
        assert_eq!(seen(&table), (Condition::Failed, false));
        assert_eq!(table.why_out(id), Some("for a test"), "the first counts");
        assert!(disk.health().failed, "those who hold it find that there");
        disk.clear_suspicion();
        assert!(disk.is_avoided());
        assert_eq!(seen(&table), (Condition::Failed, false));
        // A disk that is no member any more is not judged.
        assert!(table.take(id).is_some());
        table.put_out(id, "too late".to_owned());
        assert_eq!(table.why_out(id), None);
    }
}
