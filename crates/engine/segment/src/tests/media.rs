//! Segments that ask for a device class.

use std::sync::Arc;

use cairn_base::{DiskId, Media, NodeId};
use cairn_testkit::Rng;

use super::world::{VOLUME, World, block_on, code, data};
use crate::{Compression, Member, Pace, Placing, Role, SegmentInfo, ShardAt, Stream};

const SSD: Option<Media> = Some(Media::Ssd);

/// Tells the store that these disks are ssd, and the others hdd.
fn name_media(world: &World, ssd: &[u128]) {
    let disks = world.store.members();
    let members: Vec<Member> = disks
        .all()
        .map(|disk| Member {
            id: disk.id(),
            node: NodeId::ONLY,
            media: match ssd.contains(&disk.id().0) {
                true => SSD,
                false => Some(Media::Hdd),
            },
            role: Role::Staying,
            disk: Some(Arc::clone(disk)),
        })
        .collect();
    world.store.set_members(&members);
}

async fn append(world: &World, media: Option<Media>, len: usize) -> SegmentInfo {
    let mut rng = Rng::new(len as u64);
    let record = world.encode(vec![data(&mut rng, len, false, true)], Compression::None);
    let placing = Placing {
        code: code(4, 2),
        media,
        protection: None,
    };
    let appended = world
        .store
        .append(VOLUME, placing, Stream::Mixed, vec![record])
        .await;
    let appended = appended.expect("it is appended");
    appended.segments[0].clone()
}

fn on(info: &SegmentInfo, ssd: &[u128]) -> usize {
    let is_on = |disk: &&DiskId| ssd.contains(&disk.0);
    info.disks.iter().filter(is_on).count()
}

#[test]
fn segments_are_on_the_kind_that_is_asked_for() {
    block_on(async {
        let world = World::new(9, 7).await;
        let ssd = [1, 2, 3, 4];
        name_media(&world, &ssd);
        let wanted = append(&world, SSD, 100_000).await;
        assert_eq!((wanted.media, on(&wanted, &ssd)), (SSD, wanted.disks.len()));
        // As many losses as anywhere; there are fewer disks for data.
        assert_eq!(wanted.code, code(2, 2));
        let any = append(&world, None, 100_001).await;
        assert_eq!((any.media, any.code), (None, code(4, 2)));
        // Two classes are two segments, and each stream continues in its own.
        let again = append(&world, SSD, 100_002).await;
        assert_eq!(again.id, wanted.id);
        assert_ne!(any.id, wanted.id);
        let bytes = world.store.media_bytes(VOLUME).expect("it is open");
        let kinds: Vec<_> = bytes.keys().copied().collect();
        assert_eq!(kinds, [(Media::Ssd, SSD)]);
    });
}

/// See `cairn_base::planted`: with two disks of the class a segment there would survive the loss of one.
#[test]
fn protection_comes_before_the_kind() {
    use cairn_base::planted::{Bug, plant};
    block_on(async {
        for bug in [None, Some(Bug::MediaBeforeProtection)] {
            let world = World::new(6, 8).await;
            name_media(&world, &[1, 2]);
            plant(bug);
            let info = append(&world, SSD, 100_000).await;
            plant(None);
            let is_safe = info.code == code(4, 2);
            assert_eq!(is_safe, bug.is_none(), "{info:?}");
            assert_eq!(info.media, SSD);
        }
    });
}

#[test]
fn shards_move_to_the_kind_when_disks_are_named() {
    block_on(async {
        let world = World::new(8, 9).await;
        name_media(&world, &[1]);
        let info = append(&world, SSD, 300_000).await;
        world.store.seal_all(VOLUME).await;
        assert!(info.disks.len() > 4, "one disk of the kind is too few");
        let at_stake = |world: &World| {
            let found = world.store.segments_at_stake(VOLUME, |_| true, |_| 0);
            found.expect("it is open").len()
        };
        assert_eq!(at_stake(&world), 1);
        let ssd = [1, 2, 3, 4, 5, 6, 7];
        name_media(&world, &ssd);
        let pace = Pace::new(Arc::new(world.clock.clone()), 0);
        loop {
            let now = world.store.segment(VOLUME, info.id).expect("it is there");
            let room = world.store.move_room();
            let len_bytes = now.shard_len_bytes;
            let shards = room.misplaced_shards(&now.disks, now.code, len_bytes, now.media);
            let Some(index) = shards.first() else {
                assert_eq!(on(&now, &ssd), now.disks.len());
                break;
            };
            let at = ShardAt {
                volume: VOLUME,
                segment: info.id,
                index: *index,
            };
            let moved = world.store.move_shard(at, &pace).await.expect("it moves");
            moved.finish().await;
        }
        assert_eq!(at_stake(&world), 0);
    });
}
