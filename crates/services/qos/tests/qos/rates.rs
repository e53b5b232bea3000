//! Rates hold for any client and any amount; turns are fair; idle rate is lent, and once.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_formats::settings::{ClassSpec, RateSpec};
use cairn_qos::Operation;
use proptest::prelude::*;

use crate::world::{World, near, steady};

const TEN: Duration = Duration::from_secs(10);
const MB: u64 = 1_000_000;

/// Rates hold within 3% over 10 s, from 1 MB/s on, also if the task that looks is late.
#[test]
fn rates_hold() {
    for rate in [MB, 20 * MB, 500 * MB, 5000 * MB, 40_000 * MB] {
        for late_ms in [0, 3, 40] {
            for (size, window) in [(4096, 8), (64 << 10, 1), (64 << 10, 64), (1 << 20, 256)] {
                // One request more or less is what it is measured with.
                if size * 40 > rate * 10 / 3 || (rate > 500 * MB && size < 64 << 10) {
                    continue;
                }
                let mut world = World {
                    late: Duration::from_millis(late_ms),
                    ..World::default()
                };
                world.set(&[("a", steady(rate))]);
                world.load(1, "x", Operation::read(size), window);
                world.load(1, "y", Operation::write(size), window);
                let got: u64 = world.run(TEN).iter().sum();
                near(got as f64 / 10.0, rate as f64, 3.0);
            }
        }
    }
}

#[test]
fn volumes_without_limits_and_other_volumes_are_not_slowed() {
    let mut world = World::default();
    world.set(&[("a", steady(MB)), ("b", steady(100 * MB))]);
    world.load(1, "x", Operation::write(1 << 20), 256);
    world.load(2, "x", Operation::write(64 << 10), 16);
    let got = world.run(TEN);
    near(got[1] as f64, 1000.0 * MB as f64, 3.0);
    // There is nothing to wait for where nothing is limited.
    assert!(world.scheduler.admit(
        cairn_base::VolumeId(9),
        cairn_qos::Client::named("x"),
        Operation::read(u64::MAX / 2),
        world.now
    ));
}

/// One with 256 requests under way gets no more than one with 2, as long as that one always has one waiting.
#[test]
fn clients_of_a_volume_take_turns() {
    let mut world = World::default();
    world.set(&[("a", steady(20 * MB))]);
    world.load(1, "greedy", Operation::read(1 << 20), 256);
    world.load(1, "modest", Operation::read(64 << 10), 2);
    let got = world.run(TEN);
    near(got[0] as f64, got[1] as f64, 12.0);
    near((got[0] + got[1]) as f64, 200.0 * MB as f64, 3.0);
}

#[test]
fn each_client_has_its_own_limit() {
    let mut world = World::default();
    let spec = ClassSpec {
        client_throughput: Some(5 * MB),
        ..steady(100 * MB)
    };
    world.set(&[("a", spec)]);
    for client in ["x", "y", "z"] {
        world.load(1, client, Operation::read(64 << 10), 8);
    }
    for got in world.run(TEN) {
        near(got as f64, 50.0 * MB as f64, 3.0);
    }
}

/// Reads at their limit do not hold up writes of the same client, and the other way round; names cost no bytes.
#[test]
fn reads_and_writes_have_limits_of_their_own() {
    let rate = |fixed| {
        Some(RateSpec {
            fixed,
            ..RateSpec::per_tib(0)
        })
    };
    let spec = ClassSpec {
        read_throughput: rate(10 * MB),
        write_throughput: rate(40 * MB),
        iops: rate(20_000),
        ..ClassSpec::default()
    };
    let mut world = World::default();
    world.set(&[("a", spec)]);
    world.load(1, "x", Operation::read(64 << 10), 32);
    world.load(1, "x", Operation::write(64 << 10), 32);
    world.load(1, "x", Operation::other(), 32);
    let got = world.run(TEN);
    near(got[0] as f64, 100.0 * MB as f64, 3.0);
    near(got[1] as f64, 400.0 * MB as f64, 3.0);
    let operations: u64 = world.loads.iter().map(|load| load.operations).sum();
    near(operations as f64, 200_000.0, 3.0);
}

/// The idle part of a class's total is lent; all together never get more; and who comes back gets its own at once.
#[test]
fn idle_rate_is_lent_and_never_promised_twice() {
    let spec = ClassSpec {
        total_throughput: Some(40 * MB),
        ..steady(20 * MB)
    };
    let mut world = World::default();
    world.set(&[("a", spec), ("a", spec)]);
    world.load(1, "x", Operation::read(64 << 10), 32);
    let alone = world.run(TEN);
    near(alone[0] as f64, 400.0 * MB as f64, 3.0);
    world.load(2, "y", Operation::read(64 << 10), 32);
    let both = world.run(TEN);
    near(both[0] as f64, 200.0 * MB as f64, 3.0);
    near(both[1] as f64, 200.0 * MB as f64, 3.0);
}

/// Where more was sold than there is, each has its part of what there is.
#[test]
fn a_total_below_the_sum_is_shared_in_proportion() {
    let small = ClassSpec {
        total_throughput: Some(30 * MB),
        ..steady(20 * MB)
    };
    let large = ClassSpec {
        total_throughput: Some(30 * MB),
        ..steady(40 * MB)
    };
    let mut world = World::default();
    world.set(&[("a", small), ("a", large)]);
    world.load(1, "x", Operation::read(64 << 10), 32);
    world.load(2, "y", Operation::read(64 << 10), 32);
    let got = world.run(TEN);
    near(got[0] as f64, 100.0 * MB as f64, 4.0);
    near(got[1] as f64, 200.0 * MB as f64, 4.0);
}

/// Another rate acts at once, up and down and away, also for those that wait already.
#[test]
fn a_change_acts_at_once() {
    let mut world = World::default();
    world.set(&[("a", steady(MB))]);
    world.load(1, "x", Operation::write(1 << 20), 128);
    world.run(TEN);
    world.set(&[("a", steady(100 * MB))]);
    let faster = world.run(TEN);
    near(faster[0] as f64, 1000.0 * MB as f64, 3.0);
    world.set(&[("a", steady(10 * MB))]);
    let slower = world.run(TEN);
    near(slower[0] as f64, 100.0 * MB as f64, 3.0);
    let waiting = world.scheduler.waiting();
    assert!(waiting > 0);
    let before = world.loads[0].operations;
    world.set_limits(BTreeMap::new());
    assert_eq!(world.loads[0].operations - before, waiting as u64);
}

/// Who gave up costs neither a turn nor memory.
#[test]
fn those_who_gave_up_are_forgotten() {
    let mut world = World::default();
    world.set(&[("a", steady(MB))]);
    let gone = world.load(1, "x", Operation::write(1 << 20), 256);
    world.run(Duration::from_secs(2));
    world.leave(gone);
    world.load(1, "y", Operation::write(64 << 10), 4);
    let got = world.run(TEN);
    near(got[1] as f64, 10.0 * MB as f64, 15.0);
    assert!(
        world.scheduler.waiting() <= 4,
        "{}",
        world.scheduler.waiting()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Over any time, for any clients: no more than the rate and what may be made up for; and with enough asked, no less.
    #[test]
    fn no_more_and_no_less(
        rate in MB..200 * MB,
        sizes in proptest::collection::vec(4096u64..1 << 20, 1..5),
        window in 1usize..40,
        late_ms in 0u64..50,
        seconds in 3u64..20,
    ) {
        let mut world = World { late: Duration::from_millis(late_ms), ..World::default() };
        world.set(&[("a", steady(rate))]);
        for (index, size) in sizes.iter().enumerate() {
            let operation = match index % 2 {
                0 => Operation::read(*size),
                _ => Operation::write(*size),
            };
            world.load(1, &index.to_string(), operation, window);
        }
        let begun = world.now;
        let got: u64 = world.run(Duration::from_secs(seconds)).iter().sum();
        let passed = (world.now - begun).as_secs_f64();
        let largest = *sizes.iter().max().unwrap() as f64;
        let most = rate as f64 * (passed + cairn_qos::SLACK.as_secs_f64()) + largest;
        prop_assert!(got as f64 <= most * 1.000_001, "{} > {}", got, most);
        // The last look may have been just before the next was due.
        let least = rate as f64 * (passed - 0.06) - largest;
        prop_assert!(got as f64 >= least, "{} < {}", got, least);
    }

    /// However many volumes of a class there are, all together stay below its total.
    #[test]
    fn a_total_is_never_exceeded(
        total in 5 * MB..100 * MB,
        rates in proptest::collection::vec(MB..100 * MB, 1..6),
        seconds in 2u64..10,
    ) {
        let mut world = World::default();
        let specs: Vec<_> = rates
            .iter()
            .map(|rate| ("a", ClassSpec { total_throughput: Some(total), ..steady(*rate) }))
            .collect();
        world.set(&specs);
        for index in 0..rates.len() {
            world.load(index as u32 + 1, "x", Operation::write(64 << 10), 16);
        }
        let got: u64 = world.run(Duration::from_secs(seconds)).iter().sum();
        let passed = world.now.as_secs_f64();
        let most = total as f64 * (passed + cairn_qos::SLACK.as_secs_f64()) + 65536.0;
        prop_assert!(got as f64 <= most);
        // Idle rate is lent, so nothing of it is lost.
        prop_assert!(got as f64 >= total as f64 * (passed - 0.01) - 65536.0);
    }
}
