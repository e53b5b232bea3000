//! An owner that lost its volume, and disks that do not confirm that they refuse it.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{DiskId, Epoch, SegmentId};
use cairn_shard::ShardName;
use cairn_testkit::{OpKind, Pace as DiskPace, Rng, TestWorld};
use tokio::sync::Semaphore;

use super::world::*;
use crate::*;

const NEXT: Epoch = Epoch(EPOCH.0 + 1);

fn allocate(first: u64) -> Arc<dyn Fn() -> SegmentId + Send + Sync> {
    let next = std::sync::atomic::AtomicU64::new(first);
    Arc::new(move || SegmentId(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
}

fn unpaced() -> Pace {
    Pace::new(TestWorld::new(1).env.clock, 0)
}

/// The store of another process on these disks, as of now.
fn successor(world: &World) -> Arc<SegmentStore> {
    let env = TestWorld::new(77).env;
    let none: Vec<Arc<cairn_shard::ShardDisk>> = Vec::new();
    let store = SegmentStore::new(env, world.settings.clone(), none, Vec::new());
    let members = world.store.members();
    let members: Vec<Member> = members
        .all()
        .map(|disk| Member {
            id: disk.id(),
            media: None,
            node: cairn_base::NodeId::ONLY,
            role: Role::Staying,
            disk: Some(disk.clone()),
        })
        .collect();
    store.set_members(&members);
    store
}

async fn settle() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
}

fn is_fenced<T: std::fmt::Debug>(result: &Result<T, SegmentError>) -> bool {
    matches!(result, Err(SegmentError::Fenced { epoch, promised, .. }) if (*epoch, *promised) == (EPOCH, NEXT))
}

#[test]
fn the_volume_of_an_old_owner_ends_and_loses_nothing() {
    block_on(async {
        let mut rng = Rng::new(5);
        let world = World::new(7, 24).await;
        let sealed = vec![data(&mut rng, 300_000, false, true)];
        let mut written = world.append_ok(code(4, 2), sealed).await;
        world.store.seal_all(VOLUME).await;
        let info = world.store.segments(VOLUME).remove(0);
        let open = vec![data(&mut rng, 300_000, false, true)];
        written.extend(world.append_ok(code(4, 2), open).await);
        let known = world.store.segments(VOLUME);

        let next = successor(&world);
        let opened = next.open_volume(VOLUME, NEXT, allocate(1000), known);
        opened.await.expect("opened");

        // Into an open segment; a refused write is not retried on other disks.
        let late = vec![(data(&mut rng, 5000, false, true), Compression::None)];
        let retries = world.store.stats().append_retries;
        let refused = world.append(code(4, 2), Stream::Mixed, late.clone()).await;
        assert!(matches!(&refused, Err(error) if error.kind() == ErrorKind::Fenced));
        assert_eq!(world.store.stats().append_retries, retries);
        // From here on it does not even ask.
        let refused = world
            .append(code(4, 2), Stream::File(1), late.clone())
            .await;
        assert!(matches!(&refused, Err(error) if error.kind() == ErrorKind::Fenced));
        assert!(is_fenced(&world.store.sweep(VOLUME).await));
        assert!(is_fenced(&world.store.remove(VOLUME, info.id).await));
        let at = ShardAt {
            volume: VOLUME,
            segment: info.id,
            index: 0,
        };
        assert!(world.store.move_shard(at, &unpaced()).await.is_err());
        world.store.seal_all(VOLUME).await;

        for disk in world.store.members().all() {
            let health = disk.health();
            assert_eq!((health.write_errors, health.failed), (0, false));
        }
        assert_eq!(next.segments(VOLUME).len(), 2);
        for written in &written {
            let read = next.read(VOLUME, &written.pointer, 0..written.data.len() as u32);
            assert!(read.await.expect("read").concat() == written.data);
        }
        let encoded = vec![encode_record(vec![late[0].0.clone()], Compression::None)];
        let appended = next.append(VOLUME, code(4, 2), Stream::Mixed, encoded);
        appended.await.expect("the new owner writes");
        // Segments that the old owner reopened are refused, too.
        let again = world
            .store
            .open_volume(VOLUME, EPOCH, allocate(2000), Vec::new());
        assert!(is_fenced(&again.await));
    });
}

/// Any step may be the first in which an old owner learns of its end.
#[test]
fn each_step_of_an_old_owner_ends_its_volume() {
    block_on(async {
        for step in ["sweep", "move", "remove", "repair", "scrub", "seal"] {
            let mut rng = Rng::new(6);
            let world = World::new(7, 6).await;
            let records = vec![data(&mut rng, 300_000, false, true)];
            let written = world.append_ok(code(4, 2), records).await;
            if step != "seal" {
                world.store.seal_all(VOLUME).await;
            }
            let info = world.store.segments(VOLUME).remove(0);
            let (disk, file) = world.shard_file(info.id, 1);
            let orphan = "shards/00000007/00000000000000ff.00";
            if matches!(step, "repair" | "scrub") {
                world.disks[disk].flip_bit(&file, 10, 1);
            }
            if step == "sweep" {
                use cairn_base::disk::{Disk, OpenMode};
                let mode = OpenMode::CreateNew { len_bytes: 4096 };
                let made = world.disks[0].open(orphan, mode).await;
                drop(made.expect("made"));
            }
            let before: Vec<Vec<String>> =
                world.disks.iter().map(|disk| disk.file_names()).collect();
            let bytes = world.disks[disk].file_bytes(&file);
            let next = successor(&world);
            let opened = next.open_volume(VOLUME, NEXT, allocate(1000), vec![info.clone()]);
            opened.await.expect("opened");

            let store = &world.store;
            match step {
                "sweep" => drop(store.sweep(VOLUME).await),
                "move" => {
                    let at = ShardAt {
                        volume: VOLUME,
                        segment: info.id,
                        index: 0,
                    };
                    drop(store.move_shard(at, &unpaced()).await);
                }
                "remove" => drop(store.remove(VOLUME, info.id).await),
                "repair" => {
                    let pointer = &written[0].pointer;
                    let read = store.read(VOLUME, pointer, 0..written[0].data.len() as u32);
                    assert!(read.await.expect("decoded").concat() == written[0].data);
                    store.repairs_done().await;
                }
                "scrub" => drop(store.scrub_segment(VOLUME, info.id, &unpaced()).await),
                _ => store.seal_all(VOLUME).await,
            }
            let late = vec![(data(&mut rng, 5000, false, true), Compression::None)];
            let asked: u64 = world.disks.iter().map(|disk| disk.stats().writes).sum();
            let refused = world.append(code(1, 0), Stream::Rewrite, late).await;
            assert!(
                matches!(&refused, Err(error) if error.kind() == ErrorKind::Fenced),
                "{step}"
            );
            let asked_now: u64 = world.disks.iter().map(|disk| disk.stats().writes).sum();
            assert_eq!(asked, asked_now, "{step}: no disk is asked any more");
            let after: Vec<Vec<String>> =
                world.disks.iter().map(|disk| disk.file_names()).collect();
            let shards = |all: Vec<Vec<String>>| -> Vec<String> {
                let names = all.into_iter().flatten();
                names
                    .filter(|name| !name.starts_with("shard-promises/"))
                    .collect()
            };
            assert_eq!(
                shards(before),
                shards(after),
                "{step}: nothing came or went"
            );
            assert!(
                bytes == world.disks[disk].file_bytes(&file),
                "{step}: nor changed"
            );
        }
    });
}

/// Durable writes of a disk wait for a permit.
struct Held(Arc<Semaphore>);

impl DiskPace for Held {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let gate = self.0.clone();
        let wait = async move { drop(gate.acquire().await) };
        let is_held = kind == OpKind::WriteDurable && name.starts_with("shard-promises/");
        is_held.then(|| Box::pin(wait) as BoxFuture<()>)
    }
}

#[test]
fn a_disk_that_does_not_promise_is_away_until_it_has() {
    block_on(async {
        let mut rng = Rng::new(7);
        let world = World::new(6, 26).await;
        let records = vec![data(&mut rng, 300_000, false, true)];
        let written = world.append_ok(code(4, 2), records).await;
        world.store.seal_all(VOLUME).await;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[2].pace_with(Arc::new(Held(gate.clone())));
        let silent = DiskId(3);

        let store = world.store.clone();
        let known = store.segments(VOLUME);
        let opening =
            tokio::spawn(
                async move { store.open_volume(VOLUME, NEXT, allocate(1000), known).await },
            );
        settle().await;
        assert!(!opening.is_finished());
        // Twice the checks of one deadline.
        for _ in 0..2 {
            world
                .clock
                .advance(world.settings.write_deadline / 2 + Duration::from_millis(1));
            settle().await;
        }
        assert!(opening.is_finished(), "it holds nobody up");
        opening.await.expect("no panic").expect("opened");
        assert!(world.store.healthy_disk(silent).is_none());
        // The disk is read and gets no writes; nothing is given up because of it.
        world.check(&written).await;
        let records = vec![data(&mut rng, 300_000, false, true)];
        let more = world.append_ok(code(4, 2), records).await;
        let info = world
            .store
            .segment(VOLUME, more[0].pointer.location.segment);
        let info = info.expect("known");
        assert!(!info.disks.contains(&silent) && info.code == code(3, 2));
        assert_eq!(world.store.sweep(VOLUME).await.expect("swept").errors, 1);

        gate.add_permits(1);
        settle().await;
        assert!(
            world.store.healthy_disk(silent).is_some(),
            "it has answered"
        );
        assert_eq!(world.store.sweep(VOLUME).await.expect("swept").errors, 0);
    });
}

#[test]
fn a_disk_that_cannot_promise_yet_is_asked_again() {
    block_on(async {
        let world = World::new(3, 8).await;
        world.disks[0].fail_nth(OpKind::WriteDurable, 0, cairn_testkit::Fault::Io);
        let opened = world
            .store
            .open_volume(VOLUME, NEXT, allocate(1000), Vec::new());
        opened.await.expect("opened");
        // The task that retries asked again at once.
        settle().await;
        world.clock.advance(Duration::from_secs(2));
        settle().await;
        assert!(world.store.healthy_disk(DiskId(1)).is_some());
    });
}

#[test]
fn a_disk_that_joins_is_asked_for_all_volumes() {
    block_on(async {
        let world = World::new(3, 28).await;
        let old = world.restart(world.disks.clone(), &[2], Vec::new()).await;
        let opened = old
            .store
            .open_volume(VOLUME, NEXT, allocate(1000), Vec::new());
        opened.await.expect("opened");
        let joining = world.store.disk(DiskId(3)).expect("there");
        old.store.disk_join(joining.clone());
        settle().await;
        let late = joining.fence(VOLUME, EPOCH).await;
        assert!(late.is_err_and(|error| error.kind() == cairn_shard::ShardErrorKind::Fenced));
    });
}

/// A faulted disk of another node may recover by itself, and keeps its handle for the nodes that use it.
#[test]
fn a_disk_that_had_failed_when_a_volume_was_opened_is_asked_when_it_is_back() {
    block_on(async {
        let world = World::new(3, 30).await;
        let back = world.store.disk(DiskId(3)).expect("there");
        back.state().fail();
        let opened = world
            .store
            .open_volume(VOLUME, NEXT, allocate(1000), Vec::new());
        opened.await.expect("opened");
        settle().await;
        world.clock.advance(Duration::from_secs(2));
        settle().await;
        back.state().set(cairn_shard::DiskHealth::default(), 0);
        let usable = |store: &SegmentStore| store.healthy_disk(DiskId(3)).is_some();
        assert!(!usable(&world.store), "it has not promised yet");
        world.clock.advance(Duration::from_secs(2));
        settle().await;
        assert!(usable(&world.store));
        let late = back.fence(VOLUME, EPOCH).await;
        assert!(late.is_err_and(|error| error.kind() == cairn_shard::ShardErrorKind::Fenced));
    });
}

#[test]
fn a_pool_too_full_to_promise_has_no_room_and_is_not_broken() {
    block_on(async {
        let mut rng = Rng::new(10);
        let world = World::new(1, 10).await;
        let disk = &world.disks[0];
        disk.inject(cairn_testkit::FaultRule {
            kind: Some(OpKind::WriteDurable),
            name_part: "shard-promises/".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: cairn_testkit::Fault::Full,
        });
        let opened = world
            .store
            .open_volume(VOLUME, NEXT, allocate(1000), Vec::new());
        opened.await.expect("opened");
        let mut record = || vec![(data(&mut rng, 1 << 16, false, true), Compression::None)];
        let refused = world.append(code(1, 0), Stream::Mixed, record()).await;
        let refused = refused.map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::NoSpace));
        assert!(world.store.has_working_disk());

        disk.clear_faults();
        settle().await;
        world.clock.advance(Duration::from_secs(2));
        settle().await;
        let written = world.append(code(1, 0), Stream::Mixed, record()).await;
        world.check(&written.expect("there is room again")).await;
    });
}

/// They are shards, but of no segment: the owner of the metadata decides about them.
#[test]
fn a_sweep_leaves_files_of_log_and_state_alone() {
    block_on(async {
        let world = World::new(11, 22).await;
        world.store.sweep(VOLUME).await.expect("swept");
        let disk = world.store.members().all().next().expect("a disk").clone();
        let unknown = ShardName {
            volume: VOLUME,
            segment: SegmentId(77),
            index: 0,
        };
        let kept = [ShardName::of_state(VOLUME, 1), ShardName::of_log(VOLUME, 1)];
        for name in kept.into_iter().chain([unknown]) {
            let made = disk.clone().create(EPOCH, name, 4096, 0);
            made.await.expect("made");
        }
        let swept = world.store.sweep(VOLUME).await.expect("swept");
        assert_eq!(swept.shards_removed, 1);
        let left = disk.list(VOLUME).await.expect("listed");
        assert_eq!(left.names, kept);
        // They are deleted with the volume.
        let swept = world
            .store
            .remove_volume(VOLUME, &Arc::new(unpaced()))
            .await;
        assert_eq!(swept.errors, 0);
        let left = disk.list(VOLUME).await.expect("listed");
        assert_eq!(left.names, []);
    });
}
