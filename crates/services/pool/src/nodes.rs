//! Nodes of the pool: what each has of a volume, and whether the others can do without it.
//!
//! Owns: the numbers in which a refusal is told.
//! Must not know: how nodes agree, who decides that one leaves (`owner`).

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::units::format_size;
use cairn_base::{DiskId, NodeId, VolumeId};
use cairn_formats::pool_file::{PoolDisk, PoolState};

use crate::planner::Standing;
use crate::pool::{ChangeFailure, Pool};

/// What a node has of a volume's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnNode {
    /// Shards, each of another segment or with others of the same one.
    pub shards: u64,
    pub bytes: u64,
}

fn impossible<T>(why: String) -> Result<T, ChangeFailure> {
    Err(ChangeFailure::Impossible(why))
}

/// The disks of a node.
fn disks_of(state: &PoolState, node: NodeId) -> Vec<DiskId> {
    let members = state.disks.iter().filter(|disk| disk.node == node);
    members.map(|disk| disk.id).collect()
}

impl Pool {
    /// What each node has of a volume that is served here. `None` if it is not, or is being opened.
    pub fn on_nodes(&self, volume: VolumeId) -> Option<BTreeMap<NodeId, OnNode>> {
        self.store.shard_counts(volume)?;
        let state = self.state();
        let nodes: BTreeMap<DiskId, NodeId> = state
            .disks
            .iter()
            .map(|disk| (disk.id, disk.node))
            .collect();
        let mut found: BTreeMap<NodeId, OnNode> = BTreeMap::new();
        for segment in self.store.segments(volume) {
            for node in segment.disks.iter().filter_map(|disk| nodes.get(disk)) {
                let on_node = found.entry(*node).or_default();
                on_node.shards += 1;
                on_node.bytes += segment.shard_len_bytes;
            }
        }
        Some(found)
    }

    /// Whether the pool can do without all disks of a node: enough nodes for what each volume survives now, and room.
    /// `on_it_bytes`: what all volumes have there, those of other owners included, as far as that is known.
    pub fn require_without_node(
        &self,
        node: NodeId,
        on_it_bytes: u64,
    ) -> Result<(), ChangeFailure> {
        let state = self.state();
        let leaving = disks_of(&state, node);
        let standings = self.standings();
        let stays = |disk: &&PoolDisk| disk.node != node && !disk.draining;
        let works = |disk: &&PoolDisk| standings.get(&disk.id) == Some(&Standing::Fine);
        if !state.disks.iter().filter(stays).any(|disk| works(&disk)) {
            return impossible(
                "no other node has a working disk that stays: let another node join first"
                    .to_owned(),
            );
        }
        let nodes: BTreeSet<NodeId> = state.disks.iter().filter(stays).map(|it| it.node).collect();
        self.require_redundancy(&state, &leaving, nodes.len())?;
        let staying: BTreeSet<DiskId> = state
            .disks
            .iter()
            .filter(stays)
            .filter(works)
            .map(|disk| disk.id)
            .collect();
        let space = self.store.space().disks.into_iter();
        let free_bytes: u64 = space
            .filter(|disk| staying.contains(&disk.disk))
            .map(|disk| disk.free_bytes.saturating_sub(disk.reserve_bytes))
            .sum();
        if on_it_bytes > free_bytes {
            return impossible(format!(
                "{} of data are on it, and the disks that stay have {} free beside their reserve: add a node or a disk, \
                 or delete data first",
                format_size(on_it_bytes),
                format_size(free_bytes)
            ));
        }
        match self.room_to_leave(&leaving, None).lack() {
            None => Ok(()),
            Some(lack) => impossible(format!(
                "the other nodes lack space for its data: {lack}. Add a node or a disk, or delete data first"
            )),
        }
    }

    /// Whether what is written then survives as much as what is written now.
    fn require_redundancy(
        &self,
        state: &PoolState,
        leaving: &[DiskId],
        nodes_staying: usize,
    ) -> Result<(), ChangeFailure> {
        let asked = state.volumes.iter().flat_map(|volume| {
            let protections = volume.settings.protections();
            protections.map(move |wanted| (volume, wanted))
        });
        for (volume, wanted) in asked {
            let name = &state.head_of(volume).name;
            let failed = |error: cairn_segment::SegmentError| {
                ChangeFailure::Impossible(format!("volume {name}: {error}"))
            };
            let after = self
                .store
                .survives_without(wanted, leaving)
                .map_err(failed)?;
            // Too few disks for it already: then it does not get worse.
            let Ok(before) = self.store.survives_without(wanted, &[]) else {
                continue;
            };
            if after.nodes < before.nodes {
                return impossible(format!(
                    "volume {name} survives the loss of any {} of its nodes, and would survive that of {}: {nodes_staying} \
                     nodes would stay, and its protection needs {} at least. Let another node join first (`cairn node \
                     replace`), or ask for less: `cairn volume set {name} --protection`",
                    before.nodes,
                    after.nodes,
                    before.nodes + 1
                ));
            }
        }
        Ok(())
    }
}
