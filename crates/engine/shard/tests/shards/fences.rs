//! Who may change the shards of a volume: an old owner may not, whatever it tries and however late it comes.

use std::sync::Arc;

use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_base::{Epoch, NodeId, VolumeId};
use cairn_remote::{Connection, Dial, Identity, Peer, PeerSettings, ServeSettings, Server};
use cairn_shard::{
    Copied, HiddenId, ShardDisk, ShardError, ShardErrorKind, ShardName, ShardService, ShardWrite,
};
use cairn_testkit::{MemDisk, OpKind, Pace, Recorder, test_env};
use tokio::sync::Semaphore;

use crate::common::{CAPACITY, POOL, block_on, crashes, fill, footer_of, mem_disk, name, open};

const OLD: Epoch = Epoch(3);
const NEW: Epoch = Epoch(4);
const VOLUME: VolumeId = VolumeId(1);

fn write(offset: u64, byte: u8) -> Vec<ShardWrite> {
    vec![ShardWrite {
        offset,
        parts: vec![fill(4096, byte)],
    }]
}

fn promise_file() -> String {
    format!("shard-promises/{:08x}", VOLUME.0)
}

/// Where the disk is for those who use it.
#[derive(Clone, Copy, Debug)]
enum Way {
    Local,
    Remote,
}

const WAYS: [Way; 2] = [Way::Local, Way::Remote];

/// A disk as it is used, here or over a connection, and what must live for that.
struct Reached {
    shards: Arc<ShardDisk>,
    disk: Arc<dyn ShardService>,
    _peer: Option<Peer>,
}

struct Duplex(Arc<Server>);

impl Dial for Duplex {
    fn dial(&self) -> BoxFuture<std::io::Result<Connection>> {
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(self.0.clone().serve(Connection::new(far)));
        Box::pin(std::future::ready(Ok(Connection::new(near))))
    }
}

async fn reach(shards: Arc<ShardDisk>, way: Way) -> Reached {
    let Way::Remote = way else {
        return Reached {
            disk: shards.clone(),
            shards,
            _peer: None,
        };
    };
    let own = |node| Identity {
        cluster: POOL,
        node: NodeId(node),
    };
    let served: Vec<Arc<dyn ShardService>> = vec![shards.clone()];
    let settings = ServeSettings::default();
    let server = Server::new(test_env(), own(2), settings, Arc::new(served), Arc::new(()));
    let dial = Arc::new(Duplex(server));
    let settings = PeerSettings::default();
    let peer = Peer::start(test_env(), own(1), NodeId(2), "two", dial, settings);
    peer.connected().await;
    Reached {
        shards,
        disk: peer.disks().remove(0),
        _peer: Some(peer),
    }
}

async fn fence(shards: &Arc<dyn ShardService>, epoch: Epoch) -> Result<(), ShardError> {
    ShardService::fence(shards.clone(), VOLUME, epoch).await
}

async fn append(
    shards: &Arc<dyn ShardService>,
    epoch: Epoch,
    shard: ShardName,
    byte: u8,
) -> Result<(), ShardError> {
    ShardService::append(shards.clone(), epoch, shard, write(0, byte)).await
}

/// A disk with a shard of the old owner, whose first block is 1.
async fn owned_by(disk: Arc<MemDisk>, way: Way) -> (Reached, ShardName) {
    let reached = reach(open(disk).await, way).await;
    let shards = &reached.disk;
    let shard = name(VOLUME.0, 1, 0);
    let made = ShardService::create(shards.clone(), OLD, shard, CAPACITY, 0).await;
    made.expect("created");
    append(shards, OLD, shard, 1).await.expect("appended");
    (reached, shard)
}

async fn open_here(disk: Arc<MemDisk>) -> Arc<dyn ShardService> {
    open(disk).await
}

async fn owned(disk: Arc<MemDisk>) -> (Arc<dyn ShardService>, ShardName) {
    let (reached, shard) = owned_by(disk, Way::Local).await;
    (reached.disk, shard)
}

/// All that changes something, by name, as an owner of `epoch`.
async fn changes(
    shards: &Arc<dyn ShardService>,
    other: &Arc<dyn ShardService>,
    shard: ShardName,
    hidden: HiddenId,
    epoch: Epoch,
) -> Vec<(&'static str, Result<(), ShardError>)> {
    let service: &dyn ShardService = &**shards;
    let next = name(VOLUME.0, 2, 0);
    let footer = footer_of(shard, &fill(4096, 1));
    let mark = service.list(VOLUME).await.expect("listed").mark;
    let copied = service.copy_from(epoch, hidden, &**other, 0..4096, &[]);
    vec![
        (
            "create",
            ShardService::create(shards.clone(), epoch, next, CAPACITY, 0).await,
        ),
        ("append", append(shards, epoch, shard, 2).await),
        ("repair", service.repair(epoch, shard, write(0, 2)).await),
        (
            "create hidden",
            service
                .create_hidden(epoch, shard, CAPACITY, 0)
                .await
                .map(drop),
        ),
        (
            "fill",
            service.fill(epoch, hidden, write(0, 2).remove(0)).await,
        ),
        ("copy", copied.await.map(drop)),
        (
            "seal hidden",
            service.seal_hidden(epoch, hidden, footer.clone()).await,
        ),
        ("publish", service.publish(epoch, hidden).await),
        ("discard", service.discard(epoch, hidden).await),
        (
            "seal",
            ShardService::seal(shards.clone(), epoch, footer)
                .await
                .map(drop),
        ),
        (
            "remove",
            ShardService::remove(&**shards, epoch, shard).await,
        ),
        (
            "sweep",
            service
                .sweep(epoch, VOLUME, vec![shard], mark)
                .await
                .map(drop),
        ),
        ("fence", fence(shards, epoch).await),
    ]
}

/// Which of the changes of the old owner were not refused.
async fn passed(
    shards: &Arc<dyn ShardService>,
    shard: ShardName,
    hidden: HiddenId,
) -> Vec<&'static str> {
    let (other, _) = owned(mem_disk()).await;
    let mut passed = Vec::new();
    for (verb, result) in changes(shards, &other, shard, hidden, OLD).await {
        match result {
            Err(error @ ShardError::Fenced { .. }) => {
                assert_eq!(error.kind(), ShardErrorKind::Fenced);
                let ShardError::Fenced {
                    epoch, promised, ..
                } = error
                else {
                    unreachable!();
                };
                assert_eq!((epoch, promised), (OLD, NEW), "{verb}");
            }
            _ => passed.push(verb),
        }
    }
    passed
}

async fn first_byte(shards: &Arc<dyn ShardService>, shard: ShardName) -> u8 {
    let read = ShardService::read(&**shards, shard, 0, 4096).await;
    read.expect("what was acknowledged before stays")[0]
}

#[test]
fn an_old_owner_changes_nothing_also_after_a_restart() {
    for way in WAYS {
        block_on(async {
            let disk = mem_disk();
            let (reached, shard) = owned_by(disk.clone(), way).await;
            let shards = reached.disk.clone();
            let hidden = ShardService::create_hidden(&*shards, OLD, shard, CAPACITY, 0).await;
            let hidden = hidden.expect("made");
            fence(&shards, NEW).await.expect("promised");
            assert_eq!(passed(&shards, shard, hidden).await, [""; 0]);
            assert_eq!(first_byte(&shards, shard).await, 1);
            let health = reached.shards.health();
            assert_eq!(
                (health.write_errors, health.failed),
                (0, false),
                "no error of the disk"
            );
            // What the old owner had not published is gone with it.
            let files = disk.file_names();
            assert!(!files.iter().any(|file| file.starts_with("rebuild/")));
            for (mode, seed) in crashes() {
                let again = reach(open(disk.crash(mode, seed)).await, way).await;
                let again = &again.disk;
                assert_eq!(passed(again, shard, hidden).await, [""; 0], "{mode:?}");
                assert_eq!(first_byte(again, shard).await, 1, "{mode:?}");
                append(again, NEW, shard, 9).await.expect("the new owner");
            }
        });
    }
}

#[test]
fn planted_mistakes_let_an_old_owner_pass() {
    for way in WAYS {
        block_on(async {
            let cases = [
                (Bug::EpochIgnoredInRemove, "remove"),
                (Bug::EpochIgnoredInRepair, "repair"),
            ];
            for (bug, verb) in cases {
                let (reached, shard) = owned_by(mem_disk(), way).await;
                let shards = reached.disk.clone();
                let hidden = ShardService::create_hidden(&*shards, OLD, shard, CAPACITY, 0).await;
                let hidden = hidden.expect("made");
                fence(&shards, NEW).await.expect("promised");
                planted::plant(Some(bug));
                let passed = passed(&shards, shard, hidden).await;
                planted::plant(None);
                assert_eq!(passed, [verb], "{bug:?}");
            }
        });
    }
}

/// Whether some power cut after the answer loses the promise.
async fn is_promise_lost() -> bool {
    let disk = mem_disk();
    let (shards, shard) = owned(disk.clone()).await;
    let recorder = Recorder::new(std::slice::from_ref(&disk));
    // The first one makes the file anew, the second one writes over it.
    let mut answered = Vec::new();
    for epoch in [Epoch(4), Epoch(5)] {
        fence(&shards, epoch).await.expect("promised");
        answered.push((recorder.op_count(), epoch));
    }
    let mut is_lost = false;
    for index in 0..=recorder.op_count() {
        for (mode, seed) in crashes() {
            let again = open_here(recorder.crash_at(index, mode, seed).remove(0)).await;
            let before = answered.iter().rev().find(|(at, _)| *at <= index);
            let promised = before.map_or(OLD, |(_, epoch)| *epoch);
            let lower = Epoch(promised.0 - 1);
            let refused = append(&again, lower, shard, 7).await;
            is_lost |= !matches!(refused, Err(ShardError::Fenced { .. }));
            // Nobody was told of a later one; the next owner is served.
            fence(&again, Epoch(6)).await.expect("a newer owner");
            append(&again, Epoch(6), shard, 8).await.expect("appended");
        }
    }
    is_lost
}

#[test]
fn a_promise_that_was_answered_survives_a_power_cut() {
    block_on(async {
        assert!(!is_promise_lost().await);
        planted::plant(Some(Bug::PromiseNotSynced));
        let is_lost = is_promise_lost().await;
        planted::plant(None);
        assert!(is_lost, "the planted mistake");
    });
}

#[test]
fn damaged_copies_of_a_promise() {
    block_on(async {
        for (bits, works) in [
            (vec![100], true),
            (vec![4096 + 100], true),
            (vec![100, 4096 + 100], false),
        ] {
            let disk = mem_disk();
            let (shards, shard) = owned(disk.clone()).await;
            fence(&shards, NEW).await.expect("promised");
            let again = disk.crash(crashes()[0].0, 1);
            for offset in &bits {
                again.flip_bit(&promise_file(), *offset, 3);
            }
            let shards = open_here(again.clone()).await;
            let old = append(&shards, OLD, shard, 7).await.unwrap_err();
            let new = append(&shards, NEW, shard, 7).await;
            if works {
                assert_eq!(old.kind(), ShardErrorKind::Fenced, "{bits:?}");
                new.expect("one copy is enough");
            } else {
                // Nobody knows what was promised: not even the right one changes anything.
                let is_damaged =
                    |error: &ShardError| matches!(error, ShardError::DamagedPromise { .. });
                assert!(
                    is_damaged(&old) && is_damaged(&new.unwrap_err()),
                    "{bits:?}"
                );
            }
            // The next owner is asked for anew, and both copies are whole again.
            fence(&shards, Epoch(5)).await.expect("promised");
            append(&shards, Epoch(5), shard, 7).await.expect("appended");
            let file = again.file_bytes(&promise_file()).expect("there");
            let picked = cairn_formats::shard::promise::decode_promise(&file).expect("whole");
            assert_eq!(
                (picked.value.epoch, picked.bad),
                (Epoch(5), None),
                "{bits:?}"
            );
        }
    });
}

/// Lets all tasks run until each waits for something: there are few hops between any two of them.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Writes wait for a permit.
struct HeldWrites(Arc<Semaphore>);

impl Pace for HeldWrites {
    fn pause(&self, kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
        let gate = self.0.clone();
        let wait = async move { drop(gate.acquire().await) };
        (kind == OpKind::Write).then(|| Box::pin(wait) as BoxFuture<()>)
    }
}

#[test]
fn a_fence_waits_for_what_an_old_owner_has_under_way_and_nothing_begins_behind_it() {
    for way in WAYS {
        block_on(async {
            let disk = mem_disk();
            let (reached, shard) = owned_by(disk.clone(), way).await;
            let shards = reached.disk.clone();
            let gate = Arc::new(Semaphore::new(0));
            disk.pace_with(Arc::new(HeldWrites(gate.clone())));
            let late = tokio::spawn({
                let shards = shards.clone();
                async move { append(&shards, OLD, shard, 2).await }
            });
            settle().await;
            let fencing = tokio::spawn({
                let shards = shards.clone();
                async move { fence(&shards, NEW).await }
            });
            settle().await;
            assert!(!fencing.is_finished() && !late.is_finished());
            let behind = append(&shards, OLD, shard, 3).await;
            assert!(
                matches!(behind, Err(ShardError::Fenced { .. })),
                "{behind:?}"
            );
            gate.add_permits(1);
            fencing.await.expect("no panic").expect("promised");
            assert!(late.is_finished(), "it ended before the answer");
            late.await.expect("no panic").expect("as it was begun");
            assert_eq!(first_byte(&shards, shard).await, 2);
        });
    }
}

#[test]
fn a_full_disk_promises_and_can_be_emptied() {
    block_on(async {
        let disk = MemDisk::new("small", 1 << 20);
        let (shards, shard) = owned(disk.clone()).await;
        let mut made = 0;
        while ShardService::create(
            shards.clone(),
            OLD,
            name(VOLUME.0, 10 + made, 0),
            64 << 10,
            0,
        )
        .await
        .is_ok()
        {
            made += 1;
        }
        fence(&shards, NEW).await.expect("promised");
        ShardService::remove(&*shards, NEW, shard)
            .await
            .expect("removed");
    });
}

#[test]
fn a_sweep_leaves_alone_what_was_published_since_its_list() {
    for way in WAYS {
        block_on(async {
            let (reached, shard) = owned_by(mem_disk(), way).await;
            let shards = reached.disk.clone();
            let service: &dyn ShardService = &*shards;
            let (source, _) = owned(mem_disk()).await;
            let list = service.list(VOLUME).await.expect("listed");
            assert_eq!(list.names, [shard]);
            // A move that deletes what a crash left there, and brings the shard.
            service.remove(OLD, shard).await.expect("removed");
            let hidden = service
                .create_hidden(OLD, shard, CAPACITY, 0)
                .await
                .expect("made");
            let copied = service.copy_from(OLD, hidden, &*source, 0..4096, &[]).await;
            assert!(matches!(copied, Ok(Copied::Whole(_))));
            service.publish(OLD, hidden).await.expect("published");
            let swept = service.sweep(OLD, VOLUME, list.names, list.mark).await;
            let swept = swept.expect("swept");
            assert_eq!((swept.removed, swept.kept), (0, 1));
            let list = service.list(VOLUME).await.expect("listed");
            let swept = service.sweep(OLD, VOLUME, list.names, list.mark).await;
            assert_eq!(
                swept.expect("swept").removed,
                1,
                "nobody published it since"
            );
        });
    }
}

/// Connections of other nodes outlive a disk that is reopened, and so do the numbers that they were given.
#[test]
fn a_disk_that_is_opened_anew_gives_no_number_twice() {
    block_on(async {
        let memory = mem_disk();
        let (reached, shard) = owned_by(memory.clone(), Way::Local).await;
        let before: &ShardDisk = &reached.shards;
        let hidden = ShardService::create_hidden(before, OLD, shard, CAPACITY, 0).await;
        let hidden = hidden.expect("made");
        let list = ShardService::list(before, VOLUME).await.expect("listed");
        let anew = open(memory).await;
        anew.continue_from(before);
        let service: &dyn ShardService = &*anew;
        service.remove(OLD, shard).await.expect("removed");
        let other = service.create_hidden(OLD, shard, CAPACITY, 0).await;
        let other = other.expect("made");
        assert_ne!(other.number, hidden.number);
        assert!(service.publish(OLD, hidden).await.is_err(), "it is gone");
        let (source, _) = owned(mem_disk()).await;
        let copied = service.copy_from(OLD, other, &*source, 0..4096, &[]).await;
        assert!(matches!(copied, Ok(Copied::Whole(_))));
        service.publish(OLD, other).await.expect("published");
        let swept = service.sweep(OLD, VOLUME, list.names, list.mark).await;
        let swept = swept.expect("swept");
        assert_eq!((swept.removed, swept.kept), (0, 1), "the list is older");
        let list = service.list(VOLUME).await.expect("listed");
        let swept = service.sweep(OLD, VOLUME, list.names, list.mark).await;
        assert_eq!(swept.expect("swept").removed, 1);
    });
}

#[test]
fn checksums_are_compared_where_the_shard_is() {
    for way in WAYS {
        block_on(async {
            let (reached, shard) = owned_by(mem_disk(), way).await;
            let shards = reached.disk.clone();
            let service: &dyn ShardService = &*shards;
            let unit = cairn_shard::CHECKSUM_UNIT_BYTES;
            let second = unit..2 * unit;
            let parts = vec![fill(unit, 1), fill(unit, 2), fill(4096, 3)];
            let sums: Vec<u32> = parts.iter().map(|part| cairn_base::crc32c(part)).collect();
            let writes = vec![ShardWrite { offset: 0, parts }];
            let appended = ShardService::append(shards.clone(), OLD, shard, writes).await;
            appended.expect("appended");
            let len = 2 * unit + 4096;
            let wrong = [sums[0], sums[1] ^ 1, sums[2]];
            for (sums, damaged) in [
                (&sums[..], vec![]),
                (&wrong[..], vec![second.clone()]),
                (&wrong[..1], vec![]),
            ] {
                let read = service
                    .read_checked(shard, 0..len, sums)
                    .await
                    .expect("read");
                assert_eq!(read.damaged, damaged);
                assert_eq!(read.bytes.len() as u64, len);
            }
            let read = service.read_checked(shard, unit..len, &wrong[1..]).await;
            assert_eq!(read.expect("read").damaged, [second]);
        });
    }
}
