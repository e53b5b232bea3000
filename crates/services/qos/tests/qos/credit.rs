//! Credit for bursts: the curve is that of the planner's model, and it is kept over restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_formats::settings::{ClassSpec, RateSpec, built_in};
use cairn_plan::credit::{Sample, simulate};
use cairn_plan::report::Credit;
use cairn_plan::units::{Bytes, Rate};
use cairn_qos::{Limits, Operation};

use crate::world::{World, class, near};

const VOLUME: VolumeId = VolumeId(1);
/// The paper's example is this much larger, and its credit lasts this much longer.
const SMALLER: u64 = 100;
const FASTER: u64 = 30;
const CREDIT: Duration = Duration::from_secs(1800 / FASTER);

/// A built-in class scaled down, for a file system of 6 TiB of the paper's.
fn scaled(name: &str) -> Limits {
    let mut spec: ClassSpec = built_in()[&class(name)];
    for rate in [&mut spec.read_throughput, &mut spec.write_throughput]
        .into_iter()
        .flatten()
    {
        rate.credit_seconds = CREDIT.as_secs();
    }
    let size_bytes = 6000 * (1 << 30) / SMALLER;
    Limits::of(&class(name), &spec, Some(size_bytes))
}

fn planned(baseline: f64, burst: f64) -> Credit {
    Credit {
        name: String::new(),
        baseline_mb_s: Rate::from_mb_s(baseline),
        burst_mb_s: Rate::from_mb_s(burst),
        bucket_bytes: Bytes::new((burst - baseline) * 1e6 * CREDIT.as_secs_f64()),
        burst_s: CREDIT.as_secs_f64(),
        rules: Vec::new(),
    }
}

/// Uses all there is, in `steps` of 5 s, but for those in which it is idle; says how much each step got, in MB/s.
fn curve(world: &mut World, load: usize, steps: usize, idle: std::ops::Range<usize>) -> Vec<f64> {
    let window = world.loads[load].window;
    let each = Duration::from_secs(5);
    let step = |number: usize, world: &mut World| {
        world.loads[load].window = match idle.contains(&number) {
            true => 0,
            false => window,
        };
        world.run(each)[load] as f64 / 5e6
    };
    (0..steps).map(|number| step(number, world)).collect()
}

/// 6 TiB of persistent-12 with a cache: 72 MB/s written and 240 read, bursts of 300 and 2,280 MB/s; all a hundredth. First
/// the burst, then the baseline, then idle, then the burst for as long as was earned.
#[test]
fn the_curve_is_that_of_the_planners_model() {
    let steps = 60;
    let idle = 30..40;
    for (operation, baseline, burst) in [
        (Operation::write(64 << 10), 0.72, 3.0),
        (Operation::read(64 << 10), 2.4, 22.8),
    ] {
        let mut world = World::default();
        world.set_limits(BTreeMap::from([(VOLUME, scaled("persistent-12-cache"))]));
        world
            .scheduler
            .restore(VOLUME, &BTreeMap::new(), Duration::ZERO);
        let load = world.load(1, "x", operation, 4);
        let got = curve(&mut world, load, steps, idle.clone());
        let demand = |time_s: f64| match idle.contains(&((time_s / 5.0) as usize)) {
            true => Rate::from_mb_s(0.0),
            false => Rate::from_mb_s(1e6),
        };
        let all = simulate(&planned(baseline, burst), demand, 5.0, steps);
        let (mut sum, mut sum_wanted) = (0.0, 0.0);
        for (number, (got, want)) in got.iter().zip(&all).enumerate() {
            sum += got;
            sum_wanted += want.rate.mb_s();
            near(sum, sum_wanted, 5.0);
            // In the step in which credit ends it is the sum alone that counts.
            let is_level = |other: &Sample| other.rate == want.rate;
            let around = [number.wrapping_sub(1), number + 1];
            let mut around = around.iter().filter_map(|other| all.get(*other));
            if !idle.contains(&number) && around.all(is_level) {
                near(*got, want.rate.mb_s(), 5.0);
            }
        }
        // It did burst, and it did end.
        near(got[1], burst, 5.0);
        near(got[25], baseline, 5.0);
        near(got[40], burst, 5.0);
    }
}

#[test]
fn credit_is_kept_over_restarts_and_earned_meanwhile() {
    let name = "write-throughput";
    let spec = ClassSpec {
        write_throughput: Some(RateSpec {
            fixed: 1_000_000,
            burst_permille: 4000,
            credit_seconds: 100,
            ..RateSpec::per_tib(0)
        }),
        ..ClassSpec::default()
    };
    let limits = || BTreeMap::from([(VOLUME, Limits::of(&class("a"), &spec, None))]);
    let mut world = World::default();
    world.set_limits(limits());
    assert_eq!(world.scheduler.without_credit(), [VOLUME]);
    assert_eq!(
        world.scheduler.credit(VOLUME, world.now),
        None,
        "not known yet"
    );
    world
        .scheduler
        .restore(VOLUME, &BTreeMap::new(), Duration::ZERO);
    assert!(world.scheduler.without_credit().is_empty());
    let full = world.scheduler.credit(VOLUME, world.now).unwrap()[name];
    near(full, 300e6, 0.1);
    world.load(1, "x", Operation::write(64 << 10), 8);
    world.run(Duration::from_secs(50));
    let left = world.scheduler.credit(VOLUME, world.now).unwrap()[name];
    near(left, 150e6, 1.0);
    let report = world.scheduler.report(VOLUME, world.now).unwrap();
    near(report.limits[0].now, 4e6, 5.0);
    near(report.limits[0].ends_in().unwrap().as_secs_f64(), 50.0, 5.0);

    let saved = BTreeMap::from([(name.to_owned(), left)]);
    // After so long, with so much of its credit.
    for (ago, want) in [(0, 150e6), (60, 210e6), (3600, 300e6)] {
        let mut next = World::default();
        next.set_limits(limits());
        // Nothing is given before it is known what there was.
        next.load(1, "x", Operation::write(64 << 10), 8);
        let got = next.run(Duration::from_secs(1));
        assert!(got[0] < 1_400_000, "{}", got[0]);
        next.leave(0);
        next.scheduler
            .restore(VOLUME, &saved, Duration::from_secs(ago));
        let credit = next.scheduler.credit(VOLUME, next.now).unwrap()[name];
        near(credit, want, 1.0);
    }
}

/// Another class keeps earned credit, as far as it has room; it does not fill it.
#[test]
fn another_class_is_no_way_to_credit() {
    let spec = |times: u32| ClassSpec {
        throughput: Some(RateSpec {
            fixed: 1_000_000,
            burst_permille: times * 1000,
            credit_seconds: 100,
            ..RateSpec::per_tib(0)
        }),
        ..ClassSpec::default()
    };
    let limits = |times| BTreeMap::from([(VOLUME, Limits::of(&class("a"), &spec(times), None))]);
    let mut world = World::default();
    world.set_limits(limits(4));
    world
        .scheduler
        .restore(VOLUME, &BTreeMap::new(), Duration::ZERO);
    world.load(1, "x", Operation::write(64 << 10), 8);
    world.run(Duration::from_secs(120));
    let credit =
        |world: &mut World| world.scheduler.credit(VOLUME, world.now).unwrap()["throughput"];
    assert!(credit(&mut world) < 1e6);
    world.set_limits(limits(8));
    assert!(credit(&mut world) < 1e6);
    world.set_limits(limits(2));
    assert!(credit(&mut world) < 1e6);
}
