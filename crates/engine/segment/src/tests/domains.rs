//! Pools on several nodes: the placement of new segments, moves and rebuilds.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::domain::Survives;
use cairn_base::{DiskId, NodeId};
use cairn_testkit::Rng;

use super::moves::unpaced;
use super::world::*;
use crate::*;

/// A pool of nodes with two disks each: 1 and 2 on the first, and so on.
async fn on_nodes(node_count: usize, seed: u64) -> World {
    let world = World::new(2 * node_count, seed).await;
    set_members(&world, &[], &[]);
    world
}

fn node_of(disk: DiskId) -> NodeId {
    NodeId(disk.0.div_ceil(2))
}

/// Tells the store which disks are draining, and which are missing.
fn set_members(world: &World, draining: &[u128], lost: &[u128]) {
    let before = world.store.members();
    let ids = (1..=world.disks.len() as u128).map(DiskId);
    let members: Vec<Member> = ids
        .map(|id| Member {
            id,
            node: node_of(id),
            media: None,
            role: match draining.contains(&id.0) {
                true => Role::Draining,
                false => Role::Staying,
            },
            disk: before.disk(id).filter(|_| !lost.contains(&id.0)).cloned(),
        })
        .collect();
    world.store.set_members(&members);
}

async fn fill(world: &World, rng: &mut Rng) -> Vec<Written> {
    let code = world.store.default_code();
    let mut all = Vec::new();
    for _ in 0..4 {
        let records = [1 << 20, 300_000].map(|len| data(rng, len, false, true));
        all.extend(world.append_ok(code, records.to_vec()).await);
        world.store.seal_all(VOLUME).await;
    }
    all
}

/// Moves all shards off these disks. Returns how many moved, and how many had no target.
async fn move_off(world: &World, from: &[u128]) -> (usize, usize) {
    let (mut moved, mut refused) = (0, 0);
    for info in world.store.segments(VOLUME) {
        for (index, disk) in (0..).zip(&info.disks) {
            if !from.contains(&disk.0) {
                continue;
            }
            let at = ShardAt {
                volume: VOLUME,
                segment: info.id,
                index,
            };
            match world.store.move_shard(at, &unpaced()).await {
                Ok(shard) => {
                    shard.finish().await;
                    moved += 1;
                }
                Err(MoveError::NoTarget) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    (moved, refused)
}

/// Numbers of nodes that the segments survive.
fn nodes_survived(world: &World) -> BTreeSet<usize> {
    let segments = world.store.segments(VOLUME);
    let survives = segments.iter().map(|info| world.store.survives(info));
    survives.map(|survives| survives.nodes).collect()
}

fn shards_on(world: &World, disks: &[u128]) -> usize {
    let segments = world.store.segments(VOLUME);
    let all = segments.iter().flat_map(|info| info.disks.iter());
    all.filter(|disk| disks.contains(&disk.0)).count()
}

#[test]
fn each_shard_has_a_node_of_its_own_and_keeps_that() {
    block_on(async {
        let world = on_nodes(5, 1).await;
        assert_eq!(world.store.default_code(), code(3, 2));
        assert_eq!(world.store.node_count(), 5);
        let two = Survives { disks: 2, nodes: 2 };
        assert_eq!(world.store.code_survives(code(3, 2)), two);
        let written = fill(&world, &mut Rng::new(1)).await;
        let segment_count = world.store.segments(VOLUME).len();
        assert_eq!(nodes_survived(&world), [2].into());

        // Shards on a draining disk go to the other disk of its node.
        set_members(&world, &[1], &[]);
        let on_first = shards_on(&world, &[1]);
        assert!(on_first > 0, "chosen so that there is something to move");
        assert_eq!(move_off(&world, &[1]).await, (on_first, 0));
        assert_eq!(shards_on(&world, &[2]), segment_count);
        assert_eq!(nodes_survived(&world), [2].into());
        world.check(&written).await;

        // The whole node drains: on any other node two shards would fail together.
        set_members(&world, &[1, 2], &[]);
        assert_eq!(move_off(&world, &[2]).await, (0, segment_count));
        assert_eq!(nodes_survived(&world), [2].into());
        assert_eq!(world.store.default_code(), code(2, 2));

        // The node is lost: a shard anywhere is better than none.
        set_members(&world, &[], &[1, 2]);
        assert_eq!(nodes_survived(&world), [1].into());
        assert_eq!(move_off(&world, &[2]).await, (segment_count, 0));
        assert_eq!(nodes_survived(&world), [1].into());
        world.check(&written).await;
    });
}

#[test]
fn a_lost_node_makes_new_segments_narrower() {
    block_on(async {
        let world = on_nodes(4, 2).await;
        let wanted = world.store.default_code();
        assert_eq!(wanted, code(2, 2));
        let all = world.store.usable(wanted);
        set_members(&world, &[], &[7, 8]);
        assert_eq!(world.store.default_code(), wanted, "it may come back");
        let written = fill(&world, &mut Rng::new(2)).await;
        let segments = world.store.segments(VOLUME);
        let codes: Vec<_> = segments.iter().map(|info| info.code).collect();
        assert!(codes.iter().all(|it| *it == code(1, 2)), "{codes:?}");
        assert_eq!(nodes_survived(&world), [2].into());
        // Half of four nodes, then a third of three.
        let left = world.store.usable(wanted);
        assert_eq!(left.total_bytes, all.total_bytes / 2);
        // With two nodes left it survives as many disks as before, and a node.
        set_members(&world, &[], &[5, 6, 7, 8]);
        let more = fill_with(&world, wanted, &mut Rng::new(3)).await;
        let last = world.store.segments(VOLUME);
        let last = last.iter().max_by_key(|info| info.id).expect("one");
        assert_eq!(last.code, wanted);
        let survives = Survives { disks: 2, nodes: 1 };
        assert_eq!(world.store.survives(last), survives);
        world.check(&written).await;
        world.check(&more).await;
    });
}

async fn fill_with(world: &World, code: cairn_erasure::Code, rng: &mut Rng) -> Vec<Written> {
    let records = vec![data(rng, 300_000, false, true)];
    world.append_ok(code, records).await
}

/// On one node disks count, whatever the id of the node.
#[test]
fn one_node_is_as_it_was() {
    block_on(async {
        let world = World::new(6, 3).await;
        let before = (world.store.default_code(), world.store.usable(code(4, 2)));
        let disks = world.store.members();
        let members: Vec<Member> = disks
            .all()
            .map(|disk| Member {
                id: disk.id(),
                node: NodeId(77),
                media: None,
                role: Role::Staying,
                disk: Some(Arc::clone(disk)),
            })
            .collect();
        world.store.set_members(&members);
        let after = (world.store.default_code(), world.store.usable(code(4, 2)));
        assert_eq!(before, after);
        assert_eq!(world.store.node_count(), 1);
        assert_eq!(world.store.code_survives(before.0).nodes, 0);
    });
}
