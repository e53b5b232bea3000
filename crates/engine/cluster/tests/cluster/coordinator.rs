//! What every store must do: one table of tests, run against both.

use std::time::{Duration, Instant};

use cairn_cluster::{
    Change, Compare, CoordinatorError, Key, KeyRange, LeaseId, Op, Outcome, Revision, Txn,
    WatchEvent,
};

use crate::stores::{World, next, on_both, within};

fn key(text: &str) -> Key {
    Key::new(text)
}

fn put(text: &str, value: &str) -> Op {
    Op::put(key(text), value.into())
}

fn then(ops: Vec<Op>) -> Txn {
    Txn {
        then: ops,
        ..Txn::default()
    }
}

#[tokio::test]
async fn both_stores_do_the_same() {
    on_both(|world| async move {
        let world = &*world;
        revisions_and_versions_grow(world).await;
        a_prefix_ends_where_it_should(world).await;
        conditions_hold_or_do_not(world).await;
        a_refused_transaction_reads_and_changes_nothing(world).await;
        a_transaction_reads_what_it_has_put(world).await;
        what_changes_nothing_has_no_revision(world).await;
        a_key_is_changed_once_in_a_transaction(world).await;
        what_is_too_large_is_refused(world).await;
        a_lease_takes_its_keys_with_it(world).await;
        a_lease_that_ended_is_not_found(world).await;
        a_renewed_lease_stays(world).await;
        a_watch_sees_the_past_and_then_what_comes(world).await;
        a_watch_that_lost_history_reads_again(world).await;
    })
    .await;
}

async fn revisions_and_versions_grow(world: &World) {
    let first = world.put("/r/a", "1").await;
    let second = world.put("/r/a", "2").await;
    assert_eq!(second, first.next(), "{}", world.name);
    let reply = world
        .coordinator
        .range(KeyRange::One(key("/r/a")))
        .await
        .unwrap();
    assert_eq!(reply.revision, second);
    let entry = reply.one().unwrap();
    assert_eq!(
        (entry.created, entry.modified, entry.version),
        (first, second, 2)
    );
    assert_eq!(entry.lease, None);
    world.done(then(vec![Op::delete(key("/r/a"))])).await;
    assert_eq!(world.value("/r/a").await, None);
    let again = world.put("/r/a", "3").await;
    let entry = world
        .coordinator
        .range(KeyRange::One(key("/r/a")))
        .await
        .unwrap()
        .one()
        .unwrap();
    assert_eq!((entry.created, entry.version), (again, 1), "{}", world.name);
}

async fn a_prefix_ends_where_it_should(world: &World) {
    for name in ["/p/a", "/p/b/c", "/p0", "/p"] {
        world.put(name, "x").await;
    }
    let reply = world
        .coordinator
        .range(KeyRange::Prefix("/p/".to_owned()))
        .await
        .unwrap();
    let keys: Vec<_> = reply
        .entries
        .iter()
        .map(|entry| entry.key.as_str())
        .collect();
    assert_eq!(keys, ["/p/a", "/p/b/c"], "{}", world.name);
}

async fn conditions_hold_or_do_not(world: &World) {
    let lease = world
        .coordinator
        .grant_lease(Duration::from_secs(600))
        .await
        .unwrap()
        .id;
    let created = world.put("/c/there", "1").await;
    let reply = world
        .done(then(vec![Op::put_leased(
            key("/c/there"),
            "2".into(),
            lease,
        )]))
        .await;
    let modified = reply.revision;
    let (there, not) = (key("/c/there"), key("/c/not"));
    let cases = [
        (Compare::Value(there.clone(), "2".into()), true),
        (Compare::Value(there.clone(), "1".into()), false),
        (Compare::Value(not.clone(), Vec::new()), false),
        (Compare::Modified(there.clone(), modified), true),
        (Compare::Modified(there.clone(), created), false),
        (Compare::Modified(not.clone(), Revision::ABSENT), true),
        (Compare::Modified(not.clone(), created), false),
        (Compare::Created(there.clone(), created), true),
        (Compare::Created(there.clone(), modified), false),
        (Compare::absent(there.clone()), false),
        (Compare::absent(not.clone()), true),
        (Compare::Version(there.clone(), 2), true),
        (Compare::Version(there.clone(), 1), false),
        (Compare::Version(not.clone(), 0), true),
        (Compare::Lease(there.clone(), Some(lease)), true),
        (
            Compare::Lease(there.clone(), Some(LeaseId(lease.0 + 1))),
            false,
        ),
        (Compare::Lease(there, None), false),
        (Compare::Lease(not, None), true),
    ];
    for (compare, want) in cases {
        let txn = Txn {
            when: vec![compare.clone()],
            ..Txn::default()
        };
        let done = matches!(world.coordinator.transact(txn).await, Outcome::Done(_));
        assert_eq!(done, want, "{}: {compare:?}", world.name);
    }
    world.coordinator.revoke_lease(lease).await.unwrap();
}

async fn a_refused_transaction_reads_and_changes_nothing(world: &World) {
    let before = world.put("/f/a", "1").await;
    let txn = Txn {
        when: vec![
            Compare::Value(key("/f/a"), "1".into()),
            Compare::absent(key("/f/a")),
        ],
        then: vec![put("/f/b", "2")],
        otherwise: vec![
            KeyRange::One(key("/f/b")),
            KeyRange::Prefix("/f/".to_owned()),
        ],
    };
    let Outcome::Refused(reply) = world.coordinator.transact(txn).await else {
        panic!("{}: one condition does not hold", world.name);
    };
    assert_eq!(reply.revision, before);
    assert_eq!(reply.read_one(0), None);
    assert_eq!(reply.read_one(1).unwrap().value, b"1");
    assert_eq!(world.value("/f/b").await, None);
}

async fn a_transaction_reads_what_it_has_put(world: &World) {
    let reply = world
        .done(then(vec![
            Op::get(key("/t/a")),
            put("/t/a", "1"),
            Op::get(key("/t/a")),
            put("/t/b", "2"),
        ]))
        .await;
    assert_eq!(reply.reads.len(), 2, "{}", world.name);
    assert_eq!(reply.read_one(0), None);
    let read = reply.read_one(1).unwrap();
    assert_eq!(read.value, b"1");
    assert_eq!(read.modified, reply.revision);
    let both = world
        .coordinator
        .range(KeyRange::Prefix("/t/".to_owned()))
        .await
        .unwrap();
    assert!(
        both.entries
            .iter()
            .all(|entry| entry.modified == reply.revision)
    );
}

async fn what_changes_nothing_has_no_revision(world: &World) {
    let before = world.put("/n/a", "1").await;
    let reply = world
        .done(then(vec![Op::delete(key("/n/none")), Op::get(key("/n/a"))]))
        .await;
    assert_eq!(reply.revision, before, "{}", world.name);
}

async fn a_key_is_changed_once_in_a_transaction(world: &World) {
    let prefix = KeyRange::Prefix("/o/".to_owned());
    for ops in [
        vec![put("/o/a", "1"), put("/o/a", "2")],
        vec![put("/o/a", "1"), Op::delete(key("/o/a"))],
        vec![Op::Delete(prefix), put("/o/a", "1")],
    ] {
        let outcome = world.coordinator.transact(then(ops.clone())).await;
        assert!(
            matches!(outcome, Outcome::Failed(_)),
            "{}: {ops:?}: {outcome:?}",
            world.name
        );
        assert_eq!(world.value("/o/a").await, None);
    }
}

async fn what_is_too_large_is_refused(world: &World) {
    let many = |count: usize| then((0..count).map(|i| put(&format!("/l/{i}"), "x")).collect());
    let long = |len: usize| then(vec![Op::put(key("/l/long"), vec![b'x'; len])]);
    let cases = [
        ("most operations", many(128), true),
        ("one more", many(129), false),
        ("most bytes", long(1024 * 1024 - 7), true),
        ("one more", long(1024 * 1024 - 6), false),
    ];
    for (name, txn, want) in cases {
        let outcome = world.coordinator.transact(txn).await;
        match outcome {
            Outcome::Done(_) => assert!(want, "{}: {name}", world.name),
            Outcome::Failed(CoordinatorError::TooLarge(_)) => {
                assert!(!want, "{}: {name}", world.name);
            }
            other => panic!("{}: {name}: {other:?}", world.name),
        }
    }
    world
        .done(then(vec![Op::Delete(KeyRange::Prefix("/l/".to_owned()))]))
        .await;
}

async fn a_lease_takes_its_keys_with_it(world: &World) {
    // On a busy machine the steps before its end may take seconds.
    let ttl = Duration::from_secs(10);
    let grant = world.coordinator.grant_lease(ttl).await.unwrap();
    assert!(grant.ttl >= ttl, "{}", world.name);
    let lease = grant.id;
    let leased = |name: &str| Op::put_leased(key(name), "x".into(), lease);
    let made = world
        .done(then(vec![
            leased("/e/a"),
            leased("/e/b"),
            leased("/e/kept"),
        ]))
        .await;
    let after = world.put("/e/kept", "without a lease").await;
    let mut watcher = world.watch("/e/", after.next());
    world.pass(grant.ttl);
    let WatchEvent::Changes { changes, .. } = next(&mut *watcher).await else {
        panic!("{}: nothing was compacted", world.name);
    };
    let deleted: Vec<_> = changes
        .iter()
        .map(|change| match change {
            Change::Deleted { key, revision } => (key.as_str(), *revision),
            Change::Put(entry) => panic!("{}: {entry:?}", world.name),
        })
        .collect();
    assert_eq!(deleted.len(), 2, "{}: at once", world.name);
    assert!(
        deleted
            .iter()
            .all(|(_, revision)| *revision > made.revision)
    );
    assert_eq!(
        deleted[0].1, deleted[1].1,
        "{}: at one revision",
        world.name
    );
    assert_eq!(world.value("/e/kept").await.unwrap(), "without a lease");
}

async fn a_lease_that_ended_is_not_found(world: &World) {
    let lease = world
        .coordinator
        .grant_lease(Duration::from_secs(600))
        .await
        .unwrap()
        .id;
    let leased = || then(vec![Op::put_leased(key("/g/a"), "x".into(), lease)]);
    world.done(leased()).await;
    world.coordinator.revoke_lease(lease).await.unwrap();
    assert_eq!(world.value("/g/a").await, None, "{}", world.name);
    let ended = CoordinatorError::LeaseNotFound(lease);
    assert_eq!(
        world.coordinator.keep_alive(lease).await,
        Err(ended.clone()),
        "{}",
        world.name
    );
    assert_eq!(
        world.coordinator.transact(leased()).await,
        Outcome::Failed(ended)
    );
    assert_eq!(
        world.coordinator.revoke_lease(lease).await,
        Ok(()),
        "{}: again",
        world.name
    );
}

async fn a_renewed_lease_stays(world: &World) {
    within(async { while !stays_while_it_is_renewed(world).await {} }).await;
}

/// False: this process or etcd took so long that the lease may have ended between two steps.
async fn stays_while_it_is_renewed(world: &World) -> bool {
    let begun = Instant::now();
    let grant = world
        .coordinator
        .grant_lease(Duration::from_secs(2))
        .await
        .unwrap();
    let is_late = |since: Instant| world.name != "memory" && since.elapsed() >= grant.ttl;
    let leased = Op::put_leased(key("/k/a"), "x".into(), grant.id);
    let made = world.coordinator.transact(then(vec![leased])).await;
    if is_late(begun) {
        return false;
    }
    assert!(matches!(made, Outcome::Done(_)), "{}: {made:?}", world.name);
    // It lives for its time at least from when it is asked for.
    let mut asked = begun;
    // On etcd, longer than the lease would live by itself: each renewal has a shorter one that ends meanwhile.
    for _ in 0..2 {
        let before = std::mem::replace(&mut asked, Instant::now());
        let renewed = within(world.coordinator.keep_alive(grant.id)).await;
        if is_late(before) {
            return false;
        }
        assert_eq!(renewed.as_ref(), Ok(&grant), "{}", world.name);
        a_while_passes(world, grant.ttl * 2 / 3).await;
        let value = world.value("/k/a").await;
        if is_late(asked) {
            return false;
        }
        assert_eq!(value.as_deref(), Some("x"), "{}", world.name);
    }
    assert!(world.name == "memory" || begun.elapsed() > grant.ttl);
    world.coordinator.revoke_lease(grant.id).await.unwrap();
    true
}

/// Passes time by the store's own clock, without a fixed sleep for the one in memory.
async fn a_while_passes(world: &World, time: Duration) {
    match world.name {
        "memory" => world.pass(time),
        // There is no event for "not ended": time itself is what is tested.
        _ => world.env.clock.sleep(time).await,
    }
}

async fn a_watch_sees_the_past_and_then_what_comes(world: &World) {
    let first = world.put("/w/a", "1").await;
    world.put("/other", "x").await;
    world
        .done(then(vec![put("/w/b", "2"), Op::delete(key("/w/a"))]))
        .await;
    let mut watcher = world.watch("/w/", first);
    let mut seen = Vec::new();
    let mut last = first;
    while seen.len() < 3 {
        let WatchEvent::Changes { revision, changes } = next(&mut *watcher).await else {
            panic!("{}: nothing was compacted", world.name);
        };
        last = revision;
        seen.extend(changes);
    }
    let describe = |change: &Change| match change {
        Change::Put(entry) => format!("put {} at {}", entry.key, entry.modified.0 - first.0),
        Change::Deleted { key, revision } => format!("deleted {key} at {}", revision.0 - first.0),
    };
    let mut seen: Vec<_> = seen.iter().map(describe).collect();
    // Within a revision, etcd has no order.
    seen[1..].sort();
    assert_eq!(
        seen,
        ["put /w/a at 0", "deleted /w/a at 2", "put /w/b at 2"],
        "{}",
        world.name
    );
    assert_eq!(last.0, first.0 + 2);

    let waits = async { next(&mut *watcher).await };
    let (event, put) = tokio::join!(waits, world.put("/w/c", "3"));
    let WatchEvent::Changes { revision, changes } = event else {
        panic!("{}: nothing was compacted", world.name);
    };
    assert_eq!((revision, changes.len()), (put, 1), "{}", world.name);
}

async fn a_watch_that_lost_history_reads_again(world: &World) {
    let first = world.put("/x/gone", "1").await;
    world.done(then(vec![Op::delete(key("/x/gone"))])).await;
    world.put("/x/there", "2").await;
    let last = world.put("/x/later", "3").await;
    world.compact(last).await;
    let mut watcher = world.watch("/x/", first);
    let WatchEvent::Reset(reply) = next(&mut *watcher).await else {
        panic!("{}: history was lost", world.name);
    };
    let keys: Vec<_> = reply
        .entries
        .iter()
        .map(|entry| entry.key.as_str())
        .collect();
    assert_eq!(keys, ["/x/later", "/x/there"], "{}", world.name);
    let put = world.put("/x/new", "4").await;
    let WatchEvent::Changes { revision, .. } = next(&mut *watcher).await else {
        panic!("{}: it goes on from what was read", world.name);
    };
    assert_eq!(revision, put, "{}", world.name);
}
