//! Until when an owner may rely on its lease.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_cluster::memory::Fault;
use cairn_cluster::{
    Coordinator, Key, KeyRange, LeaseSettings, LeaseState, MemoryCoordinator, Op, Outcome,
    OwnedLease, Txn,
};
use cairn_testkit::{ManualClock, TestWorld};

use crate::stores::{World, within};

const TTL: Duration = Duration::from_secs(10);
/// The lease's time without the margin for clocks that differ.
const VALID: Duration = Duration::from_millis(9500);
const MS: Duration = Duration::from_millis(1);

struct Leased {
    memory: MemoryCoordinator,
    clock: ManualClock,
    lease: OwnedLease,
}

impl Leased {
    async fn new() -> Self {
        let TestWorld { env, clock } = TestWorld::new(1);
        let memory = MemoryCoordinator::new(env.clone());
        let coordinator = memory.client("owner");
        let lease = OwnedLease::grant(env, coordinator, LeaseSettings::new(TTL))
            .await
            .unwrap();
        Self {
            memory,
            clock,
            lease,
        }
    }

    /// Lets time pass in small steps, so that a task that waits for a moment sees it.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(100);
        let mut left = time;
        while left > Duration::ZERO {
            let by = step.min(left);
            self.clock.advance(by);
            left -= by;
            settle().await;
        }
    }

    fn state(&self) -> LeaseState {
        *self.lease.subscribe().borrow()
    }
}

/// Lets all tasks that can go on do so.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    let leased = Leased::new().await;
    leased.pass(TTL * 10).await;
    assert!(leased.lease.is_valid());
    assert_eq!(leased.state(), LeaseState::Alive);
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_is_over_before_the_store_ends_it_and_the_owner_is_warned() {
    let leased = Leased::new().await;
    leased.memory.set_reachable("owner", false);
    // (passed in all, valid, state)
    let mut passed = Duration::ZERO;
    for (at, valid, state) in [
        (VALID - TTL / 4 - MS, true, LeaseState::Alive),
        (VALID - TTL / 4 + 100 * MS, true, LeaseState::Ending),
        (VALID - MS, true, LeaseState::Ending),
        (VALID, false, LeaseState::Over),
    ] {
        leased.pass(at - passed).await;
        passed = at;
        assert_eq!(leased.lease.is_valid(), valid, "after {at:?}");
        assert_eq!(leased.state(), state, "after {at:?}");
    }
    leased.memory.set_reachable("owner", true);
    leased.pass(TTL).await;
    assert!(!leased.lease.is_valid(), "over is over");
}

/// The machine sleeps: no timer fires, and still the lease is over.
async fn check_suspended() -> Result<(), &'static str> {
    let leased = Leased::new().await;
    leased.clock.suspend(VALID);
    if leased.lease.is_valid() {
        return Err("valid after a suspension that was longer than the lease");
    }
    // The store's own clock did not count it, so that a renewal would succeed.
    leased.pass(TTL).await;
    if leased.lease.is_valid() {
        return Err("over and then valid again");
    }
    Ok(())
}

/// The reply to a renewal is on its way for a while: the store may have counted from its beginning.
async fn check_slow_reply() -> Result<(), &'static str> {
    let leased = Leased::new().await;
    leased.memory.hold("owner", true);
    leased.pass(TTL / 3 + 100 * MS).await;
    let request = leased.memory.held()[0].id;
    leased.memory.step(request);
    let taken_at = TTL / 3 + 100 * MS;
    leased.pass(Duration::from_secs(3)).await;
    leased.memory.step(request);
    settle().await;
    let valid_until = leased.lease.valid_until().expect("still valid");
    if valid_until > taken_at + VALID {
        return Err("valid for longer than the store promised");
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_counts_suspended_time() {
    assert_eq!(check_suspended().await, Ok(()));
    planted::plant(Some(Bug::OwnerGoesOnAfterLease));
    let found = check_suspended().await;
    planted::plant(None);
    assert!(found.is_err());
}

#[tokio::test]
async fn a_lease_counts_from_when_its_renewal_was_sent() {
    assert_eq!(check_slow_reply().await, Ok(()));
    planted::plant(Some(Bug::LeaseCountedFromReply));
    let found = check_slow_reply().await;
    planted::plant(None);
    assert!(found.is_err());
}

#[tokio::test]
async fn a_reply_that_comes_after_the_end_brings_nothing_back() {
    let leased = Leased::new().await;
    leased.pass(TTL / 3).await;
    leased.memory.hold("owner", true);
    leased.pass(TTL / 3).await;
    leased.clock.advance(TTL);
    leased.memory.step_all();
    settle().await;
    assert!(!leased.lease.is_valid());
    assert_eq!(leased.state(), LeaseState::Over);
}

#[tokio::test]
async fn one_failed_renewal_is_made_up_for() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::LoseRequest] {
        let leased = Leased::new().await;
        leased.memory.plant("owner", fault);
        leased.pass(TTL * 2).await;
        assert!(leased.lease.is_valid(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_lease_that_the_store_ended_is_over_at_the_next_renewal() {
    let leased = Leased::new().await;
    leased.memory.lose_lease(leased.lease.id());
    leased.pass(TTL / 3 + 100 * MS).await;
    assert_eq!(leased.state(), LeaseState::Over);
    assert!(!leased.lease.is_valid());
}

#[tokio::test]
async fn a_revoked_or_dropped_lease_is_not_renewed() {
    let leased = Leased::new().await;
    let (id, view) = (leased.lease.id(), leased.lease.view());
    let client = leased.memory.client("other");
    leased.lease.revoke().await.unwrap();
    assert!(!view.is_valid());
    assert!(client.keep_alive(id).await.is_err());

    let leased = Leased::new().await;
    let id = leased.lease.id();
    let client = leased.memory.client("other");
    drop(leased.lease);
    for _ in 0..100 {
        leased.clock.advance(TTL / 50);
        settle().await;
    }
    assert!(client.keep_alive(id).await.is_err());
}

#[tokio::test]
async fn a_lease_of_etcd_is_renewed_and_ends() {
    let Some(world) = World::etcd().await else {
        return;
    };
    let coordinator: Arc<dyn Coordinator> = Arc::clone(&world.coordinator);
    // A machine that does not run this process for so long ends it as well.
    let settings = LeaseSettings::new(TTL);
    let lease = OwnedLease::grant(world.env.clone(), coordinator, settings)
        .await
        .unwrap();
    let first = lease.valid_until().unwrap();
    // It is renewed past its first end.
    let mut until = first;
    within(async {
        while until < first + TTL {
            world.env.clock.sleep(Duration::from_millis(50)).await;
            until = lease.valid_until().expect("it is renewed in time");
        }
    })
    .await;
    world.coordinator.revoke_lease(lease.id()).await.unwrap();
    let mut state = lease.subscribe();
    within(state.wait_for(|state| *state == LeaseState::Over))
        .await
        .unwrap();
    assert!(!lease.is_valid());
}

#[tokio::test]
async fn without_a_quorum_nobody_is_answered_and_no_lease_ends_before_there_is_one_again() {
    for keeps_leases in [true, false] {
        let TestWorld { env, clock } = TestWorld::new(1);
        let memory = MemoryCoordinator::new(env);
        let (holder, other) = (memory.client("holder"), memory.client("other"));
        let lease = holder.grant_lease(TTL).await.unwrap().id;
        let key = Key::new("/leased");
        let put = Txn {
            then: vec![Op::put_leased(key.clone(), Vec::new(), lease)],
            ..Txn::default()
        };
        assert!(matches!(holder.transact(put).await, Outcome::Done(_)));
        memory.lose_quorum();
        clock.advance(TTL * 2);
        let renewal = holder.keep_alive(lease);
        let reading = tokio::spawn(other.range(KeyRange::One(key)));
        settle().await;
        assert!(!reading.is_finished());
        memory.regain_quorum(keeps_leases);
        memory.step_all();
        let is_there = reading.await.unwrap().unwrap().one().is_some();
        assert_eq!(
            (is_there, renewal.await.is_ok()),
            (keeps_leases, keeps_leases)
        );
    }
}
