//! The balance of a cluster's load: the load of each node, the moves to make, and one move.
//!
//! Owns: the view of a balance, how one volume is moved for it. Must not know: when a load is balanced (`cairn_owner`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_activity::Activities;
use cairn_admin::ControlError;
use cairn_admin::api::ErrorKind;
use cairn_admin::balance::{BalanceMove, BalanceNode, BalanceReason, BalanceShare, BalanceView};
use cairn_base::{NodeId, VolumeId};
use cairn_cluster::map::{MapView, WorkRecord};
use cairn_owner::{Loads, Meter, Move, Reason, Share, Tolerance};

use crate::cluster::ClusterNode;
use crate::node::NodeCore;

/// Maximum time until another node serves a moved volume.
const MOVED_MAX: Duration = Duration::from_secs(30);

/// The activity of clients on the volumes that are served here.
pub struct Measured(pub Arc<Activities>);

impl Meter for Measured {
    fn work(&self, volume: VolumeId) -> WorkRecord {
        let (work, span) = self.0.of(volume).total();
        let seconds = span.as_secs_f64();
        if seconds <= 0.0 {
            return WorkRecord::default();
        }
        let each = |count: u64| (count as f64 / seconds) as u64;
        WorkRecord {
            operations_per_second: each(work.operations),
            bytes_per_second: each(work.read_bytes.saturating_add(work.written_bytes)),
        }
    }
}

fn name_of(view: &MapView, node: NodeId) -> String {
    match view.nodes.get(&node) {
        Some(record) => record.value.name.clone(),
        None => node.to_string(),
    }
}

fn shown_share(share: Share) -> BalanceShare {
    BalanceShare {
        volumes: share.volumes,
        load_percent: share.load_percent,
    }
}

fn shown_move(view: &MapView, loads: &Loads, made: &Move) -> BalanceMove {
    let state = view.volumes.get(&made.volume);
    let mut volumes = loads.volumes.iter();
    let work = volumes.find(|volume| volume.volume == made.volume);
    let work = work.map(|volume| volume.work).unwrap_or_default();
    let ([from_before, from_after], [to_before, to_after]) = (made.from_share, made.to_share);
    BalanceMove {
        volume: state.map_or_else(
            || made.volume.to_string(),
            |state| state.record.value.head().to_owned(),
        ),
        from: name_of(view, made.from),
        to: name_of(view, made.to),
        reason: match made.reason {
            Reason::Memory => BalanceReason::Memory,
            Reason::Count => BalanceReason::Count,
            Reason::Work => BalanceReason::Work,
        },
        operations_per_second: work.operations_per_second,
        bytes_per_second: work.bytes_per_second,
        from_before: shown_share(from_before),
        from_after: shown_share(from_after),
        to_before: shown_share(to_before),
        to_after: shown_share(to_after),
    }
}

/// The present load of each node, and the moves to make.
pub fn of(inner: &NodeCore, cluster: &ClusterNode) -> BalanceView {
    let view = cluster.member.view();
    let loads = Loads::of(&view, inner.env.clock.now());
    let shares = loads.shares();
    let mut work: BTreeMap<NodeId, WorkRecord> = BTreeMap::new();
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for volume in &loads.volumes {
        let Some(owner) = volume.owner else { continue };
        let sum = work.entry(owner).or_default();
        sum.operations_per_second += volume.work.operations_per_second;
        sum.bytes_per_second += volume.work.bytes_per_second;
        *counts.entry(owner).or_default() += 1;
    }
    let mut nodes: Vec<BalanceNode> = view
        .nodes
        .values()
        .map(|record| {
            let record = &record.value;
            let alive = view.alive.get(&record.id);
            let work = work.get(&record.id).copied().unwrap_or_default();
            BalanceNode {
                name: record.name.clone(),
                weight: record.weight,
                takes: shares.contains_key(&record.id),
                volumes: counts.get(&record.id).copied().unwrap_or(0),
                volumes_max: alive.and_then(|alive| alive.value.volumes_max),
                load_percent: shares.get(&record.id).map_or(0, |share| share.load_percent),
                operations_per_second: work.operations_per_second,
                bytes_per_second: work.bytes_per_second,
            }
        })
        .collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    let moves = loads.moves(Tolerance::None);
    BalanceView {
        nodes,
        moves: moves
            .iter()
            .map(|made| shown_move(&view, &loads, made))
            .collect(),
        moved: None,
    }
}

/// Makes the first of the moves, and returns the moves that are left then.
pub async fn step(inner: &NodeCore, cluster: &ClusterNode) -> Result<BalanceView, ControlError> {
    let view = cluster.member.view();
    let loads = Loads::of(&view, inner.env.clock.now());
    let Some(next) = loads.next_move(Tolerance::None) else {
        return Ok(of(inner, cluster));
    };
    let shown = shown_move(&view, &loads, &next);
    let unavailable = |why: String| ControlError::new(ErrorKind::Unavailable, why);
    let map = cluster.member.map();
    // Set for the time of the move: the volume stays there afterwards, unless the load changes.
    let wanted = map.set_preferred(next.volume, Some(next.to)).await;
    wanted.map_err(|error| unavailable(error.to_string()))?;
    let has_moved = has_moved(cluster, next.volume, next.to).await;
    let cleared = map.set_preferred(next.volume, None).await;
    cleared.map_err(|error| {
        unavailable(error.to_string()).hint(format!(
            "volume {0} is placed on node {1} now; after `cairn volume move {0}` any node may own it",
            shown.volume, shown.to
        ))
    })?;
    if !has_moved {
        let why = format!(
            "volume {} did not move to node {} within {} s",
            shown.volume,
            shown.to,
            MOVED_MAX.as_secs()
        );
        return Err(unavailable(why)
            .hint("`cairn cluster status` shows the volume's owner, and why nodes could not take the volume"));
    }
    let written = map.written();
    let mut views = cluster.member.views();
    let seen = views.wait_for(|view| view.revision >= written);
    // The shown state may be a moment old: that is no reason to fail.
    let _ = tokio::time::timeout(crate::control::MAP_SEEN_MAX, seen).await;
    Ok(BalanceView {
        moved: Some(shown),
        ..of(inner, cluster)
    })
}

/// Whether a node serves a volume in time: it owns the volume, and has opened a log of its own.
async fn has_moved(cluster: &ClusterNode, volume: VolumeId, to: NodeId) -> bool {
    let mut views = cluster.member.views();
    let is_there = views.wait_for(|view| {
        view.volumes.get(&volume).is_some_and(|state| {
            let owner = state.owner.as_ref().map(|owner| &owner.value);
            let open = state.log.log.open();
            let by_owner = owner.filter(|owner| owner.node == to);
            by_owner.is_some_and(|owner| open.is_some_and(|open| open.id.epoch == owner.epoch))
        })
    });
    let waited = tokio::time::timeout(MOVED_MAX, is_there).await;
    waited.is_ok_and(|seen| seen.is_ok())
}
