//! What tests can do to the store in memory.

use std::time::Duration;

use cairn_cluster::memory::Fault;
use cairn_cluster::{
    Compare, CoordinatorError, Key, KeyRange, Mark, Op, Outcome, Revision, Settled, Txn,
    WatchEvent, transact_settled,
};
use cairn_testkit::TestWorld;

use crate::stores::{Kind, World, next};

fn put(value: &str) -> (Txn, Mark) {
    let mark = Mark {
        key: Key::new("/a"),
        value: value.into(),
    };
    let txn = Txn {
        when: vec![Compare::Modified(mark.key.clone(), Revision::ABSENT)],
        then: vec![Op::put(mark.key.clone(), mark.value.clone())],
        otherwise: Vec::new(),
    };
    (txn, mark)
}

#[tokio::test(start_paused = true)]
async fn faults_are_what_the_client_sees_of_them() {
    // (fault, outcome is known, it was done)
    for (fault, known, done) in [
        (Fault::Refuse, true, false),
        (Fault::LoseReply, false, true),
        (Fault::LoseRequest, false, false),
    ] {
        let world = World::memory();
        let Kind::Memory(memory, _) = &world.kind else {
            unreachable!()
        };
        memory.plant("test", fault);
        let outcome = world.coordinator.transact(put("1").0).await;
        assert_eq!(
            matches!(outcome, Outcome::Failed(_)),
            known,
            "{fault:?}: {outcome:?}"
        );
        assert_eq!(
            matches!(outcome, Outcome::Unknown(_)),
            !known,
            "{fault:?}: {outcome:?}"
        );
        assert_eq!(world.value("/a").await.is_some(), done, "{fault:?}");
    }
}

#[tokio::test]
async fn what_is_held_times_out_by_the_clock_and_may_be_done_later() {
    let world = World::memory();
    let Kind::Memory(memory, clock) = &world.kind else {
        unreachable!()
    };
    memory.hold("test", true);
    let outcome = world.coordinator.transact(put("1").0);
    clock.advance(Duration::from_secs(5));
    assert!(matches!(
        outcome.await,
        Outcome::Unknown(CoordinatorError::TimedOut { .. })
    ));
    memory.step_all();
    memory.hold("test", false);
    assert_eq!(world.value("/a").await.as_deref(), Some("1"));
}

/// A transaction of unknown outcome is settled, whatever became of its first copy.
#[tokio::test]
async fn an_unknown_outcome_is_settled() {
    for (fault, unseen) in [(Fault::LoseReply, true), (Fault::LoseRequest, false)] {
        let TestWorld { env, clock } = TestWorld::new(1);
        let memory = cairn_cluster::MemoryCoordinator::new(env.clone());
        let client = memory.client("test");
        memory.plant("test", fault);
        let (txn, mark) = put("1");
        let settle = transact_settled(&*client, &env, txn, &mark, Duration::from_secs(60));
        let time = async {
            loop {
                tokio::task::yield_now().await;
                clock.advance(Duration::from_millis(50));
            }
        };
        let settled = tokio::select! {
            settled = settle => settled.unwrap(),
            () = time => unreachable!("it goes on"),
        };
        assert_eq!(
            matches!(settled, Settled::DoneUnseen(_)),
            unseen,
            "{fault:?}"
        );
        assert_eq!(matches!(settled, Settled::Done(_)), !unseen, "{fault:?}");
        assert_eq!(memory.revision(), Revision(2), "{fault:?}: once");
    }
}

#[tokio::test]
async fn watches_see_what_the_test_lets_through() {
    let world = World::memory();
    let Kind::Memory(memory, _) = &world.kind else {
        unreachable!()
    };
    let first = world.put("/w/a", "1").await;
    memory.deliver_up_to(Some(first));
    world.put("/w/b", "2").await;
    let mut watcher = world.watch("/w/", first);
    let WatchEvent::Changes { changes, .. } = next(&mut *watcher).await else {
        panic!("nothing was compacted");
    };
    assert_eq!(changes.len(), 1);
    memory.deliver_up_to(None);
    let WatchEvent::Changes { changes, .. } = next(&mut *watcher).await else {
        panic!("nothing was compacted");
    };
    assert_eq!(changes.len(), 1);
}

#[tokio::test]
async fn a_watch_on_a_restored_store_reads_again() {
    let world = World::memory();
    let Kind::Memory(memory, _) = &world.kind else {
        unreachable!()
    };
    world.put("/w/a", "1").await;
    let backup = memory.backup();
    let last = world.put("/w/b", "2").await;
    let mut watcher = world.watch("/w/", last.next());
    memory.restore(&backup);
    let WatchEvent::Reset(reply) = next(&mut *watcher).await else {
        panic!("revisions went back");
    };
    assert_eq!(reply.entries.len(), 1);
    let reply = world
        .coordinator
        .range(KeyRange::One(Key::new("/w/b")))
        .await
        .unwrap();
    assert_eq!(reply.one(), None);
}
