//! Snapshots in the store: groups with moved values, names and locks, recovery.

use cairn_base::{Branch, Generation, View};

use super::*;
use crate::{NewSnapshot, SnapshotError};

fn new(name: &'static str) -> NewSnapshot {
    NewSnapshot {
        name: Bytes::from(name),
        taken: Timestamp::new(1, 2),
        schedule: Bytes::new(),
        undecided_group: 0,
    }
}

async fn put(store: &MetaStore, value: &'static [u8]) {
    let mut batch = Batch::new();
    batch.put(Key::inode(Ino(5)), value);
    store.durable(store.submit(batch)).await.expect("durable");
}

async fn take(store: &MetaStore, name: &'static str) -> Generation {
    let (generation, ticket) = store.take_snapshot(new(name)).expect("is taken");
    store.applied(ticket).await.expect("is applied");
    generation
}

fn seen(store: &MetaStore, generation: Generation) -> Option<Bytes> {
    let view = store.view(View::Snapshot(generation)).expect("is seen");
    view.get(&Key::inode(Ino(5))).expect("reads")
}

/// Both batches used to be merged into one group, and the history got the value at its old place.
#[test]
fn a_value_that_is_moved_and_then_replaced_is_history_as_it_was_moved() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        put(&store, b"old place").await;
        let first = take(&store, "first").await;
        let mut moved = Batch::new();
        moved.put_moved(Key::inode(Ino(5)), first, &b"new place"[..]);
        let mut replaced = Batch::new();
        replaced.put(Key::inode(Ino(5)), &b"other"[..]);
        // No other task runs between them.
        store.submit(moved);
        let last = store.submit(replaced);
        store.applied(last).await.expect("applied");
        assert_eq!(seen(&store, first).as_deref(), Some(&b"new place"[..]));
        let live = store.live().get(&Key::inode(Ino(5))).expect("reads");
        assert_eq!(live.as_deref(), Some(&b"other"[..]));
        store.close().await.expect("closes");
    });
}

/// Puts before and after a snapshot, without a wait, are on their own side of it.
#[test]
fn a_snapshot_cuts_a_group() {
    block_on(async {
        let world = TestWorld::new(2);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        let submit = |value: &'static [u8]| {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(5)), value);
            store.submit(batch)
        };
        submit(b"before");
        let (first, _) = store.take_snapshot(new("first")).expect("is taken");
        submit(b"between");
        let (second, _) = store.take_snapshot(new("second")).expect("is taken");
        store.applied(submit(b"after")).await.expect("applied");
        assert_eq!(seen(&store, first).as_deref(), Some(&b"before"[..]));
        assert_eq!(seen(&store, second).as_deref(), Some(&b"between"[..]));
        store.close().await.expect("closes");
    });
}

fn number_at(view: Option<Bytes>) -> u64 {
    let bytes = view.expect("is there");
    u64::from_be_bytes(bytes[..].try_into().expect("eight bytes"))
}

/// A writer puts each number into one store and then into the other: no number is in the second's snapshot alone.
#[test]
fn snapshots_of_two_stores_are_of_one_instant() {
    use std::sync::atomic::{AtomicBool, Ordering};
    const ROUNDS: usize = 50;
    const NAMES: [&str; 2] = ["first", "second"];
    block_on(async {
        let world = TestWorld::new(4);
        let (one, other) = (Pool::new(1), Pool::new(1));
        let stores = [
            create(&world, 1, one.present()).await,
            create(&world, 1, other.present()).await,
        ];
        let put = |store: &MetaStore, number: u64| {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(5)), number.to_be_bytes().to_vec());
            store.submit(batch)
        };
        for store in &stores {
            store.durable(put(store, 0)).await.expect("durable");
        }
        for round in 0..ROUNDS {
            // In either order, as two callers may name them.
            let named = [round % 2, 1 - round % 2].map(|at| (&*stores[at], Branch::MAIN));
            let ended = AtomicBool::new(false);
            let begun = AtomicBool::new(false);
            let last = number_at(stores[0].live().get(&Key::inode(Ino(5))).expect("reads"));
            let taken = std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in last + 1..last + 5000 {
                        put(&stores[0], number);
                        put(&stores[1], number);
                        begun.store(true, Ordering::Release);
                        if ended.load(Ordering::Acquire) {
                            return;
                        }
                    }
                });
                while !begun.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let taken = MetaStore::take_snapshots(&named, &new(NAMES[round % 2]));
                ended.store(true, Ordering::Release);
                taken
            });
            let taken = taken.expect("are taken");
            let mut numbers = Vec::new();
            for ((store, _), (generation, ticket)) in named.iter().zip(taken) {
                store.applied(ticket).await.expect("applied");
                numbers.push(number_at(seen(store, generation)));
                let gone = store.change_snapshot(generation, |record| record.is_deleted = true);
                store
                    .applied(gone.expect("is deleted"))
                    .await
                    .expect("applied");
            }
            let (first, second) = match round % 2 {
                0 => (numbers[0], numbers[1]),
                _ => (numbers[1], numbers[0]),
            };
            assert!(
                first == second || first == second + 1,
                "{first} and {second}"
            );
        }
        // All or none: a name that one store has is refused, and the other store gets no snapshot then.
        take(&stores[1], "mine").await;
        let both = [0, 1].map(|at| (&*stores[at], Branch::MAIN));
        let refused = MetaStore::take_snapshots(&both, &new("mine"));
        assert_eq!(refused.map(drop), Err((1, SnapshotError::Exists)));
        assert_eq!(stores[0].snapshot_count(), 0);
        let twice = MetaStore::take_snapshots(&[both[0], both[0]], &new("twice"));
        assert!(matches!(twice, Err((_, SnapshotError::Exists))));
        for store in stores {
            store.close().await.expect("closes");
        }
    });
}

#[test]
fn a_start_finds_snapshots_with_their_names_and_locks() {
    block_on(async {
        let world = TestWorld::new(3);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        put(&store, b"one").await;
        let first = take(&store, "first").await;
        put(&store, b"two").await;
        let second = take(&store, "second").await;
        put(&store, b"three").await;
        let taken = store.take_snapshot(new("first"));
        assert_eq!(taken.map(drop), Err(SnapshotError::Exists));
        let lock = store.change_snapshot(first, |record| record.is_locked = true);
        lock.expect("is locked");
        let delete = || store.change_snapshot(first, |record| record.is_deleted = true);
        assert_eq!(delete(), Err(SnapshotError::Locked));
        let rename = |to: &'static [u8]| {
            store.change_snapshot(second, |record| record.name = Bytes::from_static(to))
        };
        assert_eq!(rename(b"first"), Err(SnapshotError::Exists));
        assert_eq!(rename(b"a/b"), Err(SnapshotError::BadName));
        let renamed = rename(b"last").expect("is renamed");
        store.durable(renamed).await.expect("durable");
        store.abort().await;
        drop(store);

        let (store, _) = open(&world, 1, pool.present()).await;
        let found: Vec<_> = store
            .snapshots()
            .into_iter()
            .map(|(at, record)| (at, record.name, record.is_locked))
            .collect();
        let want = [
            (first, Bytes::from("first"), true),
            (second, Bytes::from("last"), false),
        ];
        assert_eq!(found, want);
        assert_eq!(seen(&store, first).as_deref(), Some(&b"one"[..]));
        assert_eq!(seen(&store, second).as_deref(), Some(&b"two"[..]));
        let delete = |at| store.change_snapshot(at, |record| record.is_deleted = true);
        let deleted = delete(second).expect("is deleted");
        assert!(store.view(View::Snapshot(second)).is_err());
        store.applied(deleted).await.expect("applied");
        assert_eq!(store.versions_of(second, None, 10).expect("reads").len(), 1);
        // Without the other snapshot, the first one alone holds these versions.
        assert_eq!(store.versions_of(first, None, 10).expect("reads").len(), 2);
        let removed = store.remove_snapshot(first);
        assert_eq!(removed, Err(SnapshotError::NotFound), "it is not deleted");
        store.close().await.expect("closes");
    });
}

#[test]
fn what_is_submitted_while_the_store_is_held_becomes_durable_when_nobody_holds_it() {
    block_on(async {
        let world = TestWorld::new(5);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        put(&store, b"before").await;
        let submit = |value: &'static [u8]| {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(5)), value);
            store.submit(batch)
        };
        let (first, second) = (store.hold(), store.hold());
        let ticket = submit(b"held");
        let read = store.live().get(&Key::inode(Ino(5))).expect("reads");
        assert_eq!(read.as_deref(), Some(&b"held"[..]), "readers see it");
        for held in [first, second] {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(!store.is_durable(ticket));
            assert!(held.is_kept());
            drop(held);
        }
        store.durable(ticket).await.expect("durable");
        // A store that closes does not wait for the hold.
        let held = store.hold();
        let ticket = submit(b"last");
        let (durable, closed) = tokio::join!(store.durable(ticket), store.close());
        durable.expect("durable");
        closed.expect("closes");
        assert!(!held.is_kept());
    });
}
