//! Which node gets a volume next.
//!
//! Owns: the order in which nodes stand in line, from the map alone. Must not know: what this node does about it, and when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{LogPosition, NodeId, Timestamp, VolumeId};
use cairn_cluster::map::MapView;

use crate::balance::{rank, takes};
use crate::reach::cuts;

/// How nodes stand in line for a volume: the first takes it. Those that all reach come before those that some do not.
/// Only those that are alive, take volumes, and have the volume's key, if it has one. `place`: where it should go for the
/// load's sake.
pub(super) fn line(
    view: &MapView,
    volume: VolumeId,
    today: Timestamp,
    place: Option<NodeId>,
) -> Vec<NodeId> {
    let alive = view.alive.iter();
    let can_open = alive.filter(|(_, record)| !record.value.locked.contains(&volume));
    let there = can_open.map(|(node, _)| *node);
    let mut nodes: Vec<NodeId> = there.filter(|node| takes(view, *node, today)).collect();
    let state = view.volumes.get(&volume);
    // Of a node that is replaced, the one that takes its place.
    let heir = state.and_then(|state| {
        let owner = state.owner.as_ref()?.value.node;
        view.nodes.get(&owner)?.value.replaced_by
    });
    let preferred = state.and_then(|state| state.preferred);
    let preferred = preferred.filter(|node| nodes.contains(node)).or(heir);
    nodes.sort_by_cached_key(|node| {
        let is_preferred = preferred == Some(*node);
        let is_place = place == Some(*node);
        let rank = Reverse(rank(volume, *node));
        (cuts(view, *node), !is_preferred, !is_place, rank, *node)
    });
    nodes
}

/// How far the copy of a volume's state goes that counts; `None`: there is none.
pub(super) fn copied_through(view: &MapView, id: VolumeId) -> Option<LogPosition> {
    let state = view.volumes.get(&id)?;
    Some(state.log.log.state.as_ref()?.applied)
}

/// The node that is to get a volume from its owner at once: where an operator wants it to be, or since all of the owner's disks
/// leave, for example.
pub(super) fn wanted_at(
    view: &MapView,
    id: VolumeId,
    today: Timestamp,
    owner: NodeId,
) -> Option<NodeId> {
    let line = line(view, id, today, None);
    let first = line.first().copied()?;
    let preferred = view.volumes.get(&id).and_then(|state| state.preferred);
    let is_preferred = first != owner && preferred == Some(first);
    (is_preferred || !line.contains(&owner)).then_some(first)
}

/// Volumes that `me` is about to get, each with how far the copy of the state goes that it should have before.
pub(super) fn coming(
    view: &MapView,
    today: Timestamp,
    me: NodeId,
) -> BTreeMap<VolumeId, LogPosition> {
    // Most stay: who stands in line for them all is not asked.
    let staying = view.alive.keys().filter(|node| takes(view, **node, today));
    let staying: BTreeSet<NodeId> = staying.copied().collect();
    let of_others = view.volumes.iter().filter_map(|(id, state)| {
        let owner = state.owner.as_ref()?.value.node;
        let alive = view.alive.get(&owner);
        let stays = alive.is_some_and(|alive| !alive.value.locked.contains(id));
        let stays = stays && staying.contains(&owner) && state.preferred != Some(me);
        (owner != me && !stays).then_some((*id, owner))
    });
    let coming = of_others.filter(|(id, owner)| wanted_at(view, *id, today, *owner) == Some(me));
    let through = coming.filter_map(|(id, _)| Some((id, copied_through(view, id)?)));
    through.collect()
}
