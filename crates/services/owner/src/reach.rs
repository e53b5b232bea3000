//! Who reaches whom, by the nodes' own words in their signs of life, and which node could serve a volume better.
//!
//! Owns: when a node tells of those that it does not reach, the comparison of nodes.
//! Must not know: how a volume moves, what a segment is.
//!
//! A node may have a lease and reach no other node: etcd is on another network, or some ways alone are cut. What such a node
//! owns would stand still for as long as the cut lasts, although others could serve it.

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{NodeId, VolumeId};
use cairn_cluster::map::MapView;

/// What a node does not reach is told once it has lasted for so long, and told to be over as late.
const TELL_AFTER: Duration = Duration::from_millis(300);

/// What this node tells of whom it does not reach.
#[derive(Default)]
pub(crate) struct Reach {
    told: BTreeSet<NodeId>,
    /// The set of nodes that is not told yet, and since when it is so.
    changed: Option<(BTreeSet<NodeId>, Duration)>,
}

impl Reach {
    /// The nodes to tell of, if that is due.
    pub fn due(&mut self, now: Duration, unreached: BTreeSet<NodeId>) -> Option<BTreeSet<NodeId>> {
        if unreached == self.told {
            self.changed = None;
            return None;
        }
        match &self.changed {
            Some((known, since)) if *known == unreached => {
                let is_due = now.saturating_sub(*since) >= TELL_AFTER;
                is_due.then_some(unreached)
            }
            _ => {
                self.changed = Some((unreached, now));
                None
            }
        }
    }

    pub fn note_told(&mut self, unreached: BTreeSet<NodeId>) {
        self.told = unreached;
        self.changed = None;
    }
}

/// What a node lacks to serve a volume. Less is better, the first difference counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lack {
    /// Copies of the log below the volume's least number: without them nothing is written.
    pub log_copies: usize,
    /// Parts of the data that it could not read.
    pub segments: u64,
    /// Nodes that do not reach it: their clients wait.
    pub blind_nodes: usize,
}

/// Nodes with a sign of life that a node reaches by its own word, itself among them.
fn reached(view: &MapView, node: NodeId) -> BTreeSet<NodeId> {
    let unreached = view.alive.get(&node).map(|alive| &alive.value.unreached);
    let is_reached = |other: &NodeId| unreached.is_some_and(|unreached| !unreached.contains(other));
    view.alive.keys().copied().filter(is_reached).collect()
}

/// How many nodes with a sign of life do not reach a node, by their own word.
fn blind_nodes(view: &MapView, node: NodeId) -> usize {
    let others = view.alive.iter().filter(|(other, _)| **other != node);
    let blind = others.filter(|(_, alive)| alive.value.unreached.contains(&node));
    blind.count()
}

/// In how many ways a node and the others with a sign of life do not reach one another: nodes that have none stand first in
/// any line.
pub(crate) fn cuts(view: &MapView, node: NodeId) -> usize {
    let unreached = view.alive.len() - reached(view, node).len();
    unreached + blind_nodes(view, node)
}

/// What a volume needs of the node that serves it.
pub(crate) struct Needs<Unreadable> {
    /// Copies of its log, each on another node, without which nothing is written.
    pub log_copies: usize,
    /// How many parts of its data cannot be read from the disks of some nodes.
    pub unreadable: Unreadable,
}

pub(crate) fn lack(
    view: &MapView,
    node: NodeId,
    needs: &Needs<impl Fn(&BTreeSet<NodeId>) -> u64>,
) -> Lack {
    let reached = reached(view, node);
    let has_disk = |node: &&NodeId| {
        let mut disks = view.disks.values();
        disks.any(|disk| disk.value.node == **node && !disk.value.draining)
    };
    let with_disks = reached.iter().filter(has_disk).count();
    Lack {
        log_copies: needs.log_copies.saturating_sub(with_disks),
        segments: (needs.unreadable)(&reached),
        blind_nodes: match planted::is(Bug::BlindNodesDoNotCount) {
            true => 0,
            false => blind_nodes(view, node),
        },
    }
}

/// Of the nodes in `line` the one that lacks least to serve a volume, if it lacks less than its owner does; with that, what
/// the owner lacks.
pub(crate) fn better(
    view: &MapView,
    owner: NodeId,
    line: &[NodeId],
    needs: &Needs<impl Fn(&BTreeSet<NodeId>) -> u64>,
) -> Option<(NodeId, Lack)> {
    // Without a look at all segments: nearly always.
    if cuts(view, owner) == 0 {
        return None;
    }
    let own = lack(view, owner, needs);
    let others = line.iter().filter(|node| **node != owner);
    let others = others.map(|node| (lack(view, *node, needs), *node));
    let (least, node) = others.min_by_key(|(lack, _)| *lack)?;
    (least < own).then_some((node, own))
}

/// Volumes for which another node has been better for a while.
#[derive(Default)]
pub(crate) struct Outdone(std::collections::BTreeMap<VolumeId, Duration>);

impl Outdone {
    /// Whether it has been so for `long_enough`, now that another node is better, or is not.
    pub fn note(
        &mut self,
        now: Duration,
        id: VolumeId,
        is_outdone: bool,
        long_enough: Duration,
    ) -> bool {
        if !is_outdone {
            self.0.remove(&id);
            return false;
        }
        let since = *self.0.entry(id).or_insert(now);
        now.saturating_sub(since) >= long_enough
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskId, DiskRole, Timestamp};
    use cairn_cluster::Revision;
    use cairn_cluster::map::{AliveRecord, DiskRecord, ProcessNonce, Versioned};

    use super::*;

    fn known<T>(value: T) -> Versioned<T> {
        let revision = Revision::ABSENT;
        Versioned { revision, value }
    }

    /// So many nodes with a disk each, all with a sign of life, and pairs of them that do not reach one another.
    fn view(count: u128, cuts: &[(u128, u128)]) -> MapView {
        let mut view = MapView::default();
        let now = Timestamp::new(1, 0);
        for number in 1..=count {
            let cut = cuts.iter().filter_map(|(one, other)| match number {
                _ if number == *one => Some(NodeId(*other)),
                _ if number == *other => Some(NodeId(*one)),
                _ => None,
            });
            let alive = AliveRecord {
                unreached: cut.collect(),
                ..AliveRecord::new(NodeId(number), ProcessNonce(number), now)
            };
            let disk = DiskRecord {
                id: DiskId(number),
                node: NodeId(number),
                label: String::new(),
                role: DiskRole::Data,
                media: None,
                draining: false,
                replaced: false,
                added: now,
            };
            view.alive.insert(NodeId(number), known(alive));
            view.disks.insert(DiskId(number), known(disk));
        }
        view
    }

    #[test]
    fn who_can_serve_better_gets_the_volume() {
        // How many nodes, which cuts, of how many nodes each part of the data needs one shard, who owns, who is better.
        type Case = (u128, &'static [(u128, u128)], usize, u128, Option<u128>);
        let cases: &[Case] = &[
            // All is well.
            (3, &[], 1, 1, None),
            // The owner reaches nobody.
            (3, &[(1, 2), (1, 3)], 1, 1, Some(2)),
            // It reaches some and could go on, but others do not reach it; the third reaches all.
            (3, &[(1, 2)], 1, 1, Some(3)),
            (3, &[(1, 2)], 1, 3, None),
            (3, &[(2, 3)], 1, 1, None),
            // It cannot read what it serves; the others can.
            (6, &[(1, 2), (1, 3), (1, 4)], 4, 1, Some(5)),
            // Nobody can: it stays where most reach it.
            (4, &[(1, 3), (1, 4), (2, 3), (2, 4)], 3, 1, None),
            // A node that reaches nobody makes no other one better.
            (4, &[(4, 1), (4, 2), (4, 3)], 2, 1, None),
        ];
        for (count, cuts, data, owner, want) in cases {
            let view = view(*count, cuts);
            let line: Vec<NodeId> = (1..=*count).map(NodeId).collect();
            let needs = Needs {
                log_copies: 2,
                unreadable: |reached: &BTreeSet<NodeId>| u64::from(reached.len() < *data),
            };
            let found = better(&view, NodeId(*owner), &line, &needs).map(|(node, _)| node);
            assert_eq!(
                found,
                want.map(NodeId),
                "{count} nodes, cuts {cuts:?}, owner {owner}"
            );
        }
    }

    #[test]
    fn nodes_that_do_not_count_are_noticed() {
        let test: fn() = who_can_serve_better_gets_the_volume;
        assert!(planted::is_noticed_by(Bug::BlindNodesDoNotCount, test));
    }

    #[test]
    fn what_is_not_reached_is_told_when_it_lasts() {
        let mut reach = Reach::default();
        let set = |nodes: &[u128]| nodes.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        let ms = Duration::from_millis;
        // When, who is not reached, and what is told then.
        type Step = (u64, &'static [u128], Option<&'static [u128]>);
        let steps: &[Step] = &[
            (0, &[], None),
            (100, &[2], None),
            // It was only a moment.
            (200, &[], None),
            (300, &[2], None),
            (500, &[2, 3], None),
            (799, &[2, 3], None),
            (800, &[2, 3], Some(&[2, 3])),
            (900, &[2, 3], None),
            (1000, &[], None),
            (1300, &[], Some(&[])),
        ];
        for (at, unreached, want) in steps {
            let due = reach.due(ms(*at), set(unreached));
            assert_eq!(due, want.map(set), "at {at}");
            if let Some(due) = due {
                reach.note_told(due);
            }
        }
    }
}
