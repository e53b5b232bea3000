//! The shell: who waits is told, also when limits go, and a volume without limits asks nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_qos::{Client, Limits, Operation, Shaper};
use cairn_testkit::TestWorld;

use crate::world::{class, steady};

const VOLUME: VolumeId = VolumeId(1);

fn limits(bytes_per_second: u64) -> BTreeMap<VolumeId, Limits> {
    let limits = Limits::of(&class("a"), &steady(bytes_per_second), None);
    BTreeMap::from([(VOLUME, limits)])
}

/// Lets tasks run until they wait for time.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_waits_is_told_when_its_time_comes() {
    let world = TestWorld::new(1);
    let shaper = Shaper::new(&world.env);
    shaper.tend(&world.env);
    let client = Client::named("x");
    let (gate, other) = (shaper.gate(VOLUME), shaper.gate(VolumeId(2)));
    // Nothing is limited, and nothing is counted.
    assert!(gate.admit(client, Operation::read(1 << 40)).is_none());
    assert_eq!(shaper.report(VOLUME), None);

    shaper.set(limits(1_000_000));
    assert!(gate.is_limited() && !other.is_limited());
    assert!(gate.admit(client, Operation::read(1_100_000)).is_none());
    let pass = gate.admit(client, Operation::read(1_000_000));
    let waits = tokio::spawn(pass.expect("the bucket is in debt"));
    settle().await;
    world.clock.advance(Duration::from_millis(990));
    settle().await;
    assert!(!waits.is_finished(), "not before its time");
    assert!(other.admit(client, Operation::read(1 << 40)).is_none());
    world.clock.advance(Duration::from_millis(20));
    settle().await;
    assert!(waits.is_finished());
    let report = shaper.report(VOLUME).unwrap();
    assert_eq!(
        (report.waiting, report.delayed, report.operations),
        (0, 1, 2)
    );
    assert!(report.delayed_time >= Duration::from_millis(990));

    // A higher rate is for those who wait already.
    let waits = tokio::spawn(gate.admit(client, Operation::write(1 << 20)).unwrap());
    settle().await;
    shaper.set(limits(1_000_000_000));
    settle().await;
    world.clock.advance(Duration::from_millis(1010));
    settle().await;
    assert!(waits.is_finished());

    // Without limits nobody waits any more.
    shaper.set(limits(1_000_000));
    assert!(gate.admit(client, Operation::write(1 << 30)).is_none());
    let waits = tokio::spawn(gate.admit(client, Operation::write(1)).unwrap());
    settle().await;
    assert!(!waits.is_finished());
    shaper.set(BTreeMap::new());
    settle().await;
    assert!(waits.is_finished() && !gate.is_limited());
    assert!(gate.admit(client, Operation::write(1 << 30)).is_none());
}

#[tokio::test]
async fn who_gives_up_gives_its_place_to_others() {
    let world = TestWorld::new(1);
    let shaper = Shaper::new(&world.env);
    shaper.tend(&world.env);
    shaper.set(limits(1_000_000));
    let gate = shaper.gate(VOLUME);
    let client = Client::named("x");
    assert!(gate.admit(client, Operation::read(1_100_000)).is_none());
    let given_up = gate.admit(client, Operation::read(1 << 30));
    let waits = tokio::spawn(gate.admit(client, Operation::read(1)).unwrap());
    drop(given_up);
    settle().await;
    world.clock.advance(Duration::from_millis(1010));
    settle().await;
    assert!(waits.is_finished());
    assert_eq!(shaper.report(VOLUME).unwrap().waiting, 0);
}

/// A goal that was missed and is gone keeps nobody waiting: work went on resting for it.
#[tokio::test]
async fn a_goal_is_missed_met_and_taken_away() {
    let world = TestWorld::new(1);
    let shaper = Shaper::new(&world.env);
    let gate = shaper.gate(VOLUME);
    assert_eq!(shaper.look_at_goals(), Some(false), "there is none");
    assert!(gate.timed().is_none());
    let goal = |millis| {
        let limits = Limits {
            latency_goal: Some(Duration::from_millis(millis)),
            ..Limits::default()
        };
        BTreeMap::from([(VOLUME, limits)])
    };
    let answer = |millis| {
        let timed = gate.timed().unwrap();
        world.clock.advance(Duration::from_millis(millis));
        timed.answered();
    };
    shaper.set(goal(10));
    assert_eq!(shaper.look_at_goals(), None, "not known yet");
    // An unanswered request does not count.
    drop(gate.timed());
    (0..98).for_each(|_| answer(10));
    (0..2).for_each(|_| answer(11));
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(shaper.look_at_goals(), Some(true));
    let report = shaper.goal(VOLUME).unwrap();
    assert_eq!((report.answered.all, report.answered.late), (100, 2));
    assert_eq!(report.is_met(), Some(false));
    // An equal objective goes on, another one begins anew.
    shaper.set(goal(10));
    assert_eq!(shaper.goal(VOLUME), Some(report));
    shaper.set(goal(20));
    assert_eq!(shaper.goal(VOLUME).unwrap().is_met(), None);
    (0..100).for_each(|_| answer(11));
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(shaper.look_at_goals(), Some(false));
    shaper.set(BTreeMap::new());
    assert_eq!((shaper.goal(VOLUME), gate.has_goal()), (None, false));
    assert_eq!(shaper.look_at_goals(), Some(false));
}

#[tokio::test]
async fn while_memory_is_short_all_requests_with_data_wait() {
    let world = TestWorld::new(3);
    let shaper = Shaper::new(&world.env);
    let client = Client::named("x");
    let gates = [shaper.gate(VOLUME), shaper.gate(VolumeId(2))];
    shaper.pause(true);
    let mut waiting = Vec::new();
    for gate in &gates {
        // What flushes data carries none, and frees memory.
        assert!(gate.admit(client, Operation::other()).is_none());
        for operation in [Operation::read(1), Operation::write(1)] {
            let pass = gate.admit(client, operation).expect("it waits");
            waiting.push(tokio::spawn(pass));
        }
    }
    // One that gives up is in nobody's way.
    drop(gates[0].admit(client, Operation::write(1)));
    settle().await;
    assert!(waiting.iter().all(|waits| !waits.is_finished()));
    // Said again, it changes nothing.
    shaper.pause(true);
    settle().await;
    assert!(waiting.iter().all(|waits| !waits.is_finished()));
    shaper.pause(false);
    for waits in waiting {
        waits.await.expect("it goes on");
    }
    assert!(gates[0].admit(client, Operation::write(1)).is_none());
}

#[tokio::test]
async fn who_waits_for_its_turn_does_not_wait_for_memory_as_well() {
    let world = TestWorld::new(4);
    let shaper = Shaper::new(&world.env);
    shaper.tend(&world.env);
    let client = Client::named("x");
    let gate = shaper.gate(VOLUME);
    shaper.set(limits(1_000_000));
    assert!(gate.admit(client, Operation::read(1_100_000)).is_none());
    shaper.pause(true);
    let turn = gate.admit(client, Operation::read(1_000)).expect("a debt");
    let turn = tokio::spawn(turn);
    settle().await;
    world.clock.advance(Duration::from_secs(5));
    settle().await;
    assert!(turn.is_finished());
    // One whose turn it is does.
    let pass = gate.admit(client, Operation::read(1_000)).expect("a pause");
    let waits = tokio::spawn(pass);
    settle().await;
    assert!(!waits.is_finished());
    shaper.pause(false);
    waits.await.expect("it goes on");
}
