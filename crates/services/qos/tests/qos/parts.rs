//! Parts of a volume have rates of their own, and hold up nobody else.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_formats::settings::PartLimit;
use cairn_qos::{Client, Limits, Operation, Part, PartRates};

use crate::world::{World, class, near, steady};

const TEN: Duration = Duration::from_secs(10);
const MB: u64 = 1_000_000;

fn limit(part: &str, throughput: u64) -> PartLimit {
    PartLimit {
        part: part.parse().unwrap(),
        throughput: Some(throughput),
        read_throughput: None,
        write_throughput: None,
        iops: None,
    }
}

fn set(world: &mut World, volume: Option<u64>, parts: &[PartLimit]) {
    let mut limits = match volume {
        Some(rate) => Limits::of(&class("a"), &steady(rate), None),
        None => Limits::default(),
    };
    limits.parts = parts.iter().map(PartRates::from).collect();
    world.set_limits(BTreeMap::from([(VolumeId(1), limits)]));
}

fn load(world: &mut World, client: Client, window: usize) -> usize {
    let at = world.load(1, "", Operation::write(64 << 10), window);
    world.loads[at].client = client;
    at
}

fn address(text: &str) -> Client {
    Client::address(text.parse::<IpAddr>().unwrap())
}

/// The limited one waits in front of others of the same client, whose rate is the volume's.
#[test]
fn a_part_has_its_rate_and_the_same_client_gets_all_else() {
    let mut world = World::default();
    set(&mut world, Some(100 * MB), &[limit("lun/db", 10 * MB)]);
    let host = address("10.0.0.7");
    let slow = load(&mut world, host.of(Part::lun("db")), 256);
    let fast = load(&mut world, host.of(Part::lun("logs")), 16);
    let got = world.run(TEN);
    near(got[slow] as f64, 10.0 * 10.0 * MB as f64, 3.0);
    near(got[fast] as f64, 10.0 * 90.0 * MB as f64, 3.0);
}

/// Who asks for many parts, or from many addresses, gets no more turns than who asks for one.
#[test]
fn parts_without_limits_are_no_reason_for_more_turns() {
    let mut world = World::default();
    set(&mut world, Some(100 * MB), &[limit("lun/other", 10 * MB)]);
    let many = Client::named("many");
    let loads: Vec<usize> = (0..8)
        .map(|number| {
            let from = Some(IpAddr::from([10, 0, 0, number]));
            let part = Part::bucket(&number.to_string());
            load(&mut world, many.from(from).of(part), 16)
        })
        .collect();
    let one = load(&mut world, Client::named("one"), 16);
    let got = world.run(TEN);
    near(got[one] as f64, 10.0 * 50.0 * MB as f64, 3.0);
    let all: u64 = loads.iter().map(|load| got[*load]).sum();
    near(all as f64, 10.0 * 50.0 * MB as f64, 3.0);
}

/// What waits already when a limit comes has it, too.
#[test]
fn a_new_limit_holds_for_what_waits() {
    let mut world = World::default();
    set(&mut world, Some(10 * MB), &[]);
    let lun = load(&mut world, address("10.0.0.7").of(Part::lun("db")), 1024);
    world.run(Duration::from_secs(1));
    set(&mut world, Some(1000 * MB), &[limit("lun/db", 20 * MB)]);
    let got = world.run(Duration::from_secs(1));
    near(got[lun] as f64, 20.0 * MB as f64, 15.0);
}

/// Also where the volume has no class.
#[test]
fn a_bucket_of_that_name_is_another_part() {
    let mut world = World::default();
    set(
        &mut world,
        None,
        &[limit("lun/db", 10 * MB), limit("bucket/db", 20 * MB)],
    );
    let lun = load(&mut world, address("10.0.0.7").of(Part::lun("db")), 16);
    let bucket = load(&mut world, Client::named("key").of(Part::bucket("db")), 16);
    let got = world.run(TEN);
    near(got[lun] as f64, 10.0 * 10.0 * MB as f64, 3.0);
    near(got[bucket] as f64, 10.0 * 20.0 * MB as f64, 3.0);
}

/// All clients of a network share its rate, and those of a smaller one inside have that, too.
#[test]
fn networks_hold_their_clients_together() {
    let mut world = World::default();
    let limits = [
        limit("clients/10.0.0.0/8", 30 * MB),
        limit("clients/10.1.0.0/16", 5 * MB),
    ];
    set(&mut world, Some(1000 * MB), &limits);
    let inner = load(&mut world, address("10.1.0.1"), 16);
    let mapped = load(&mut world, address("::ffff:10.1.0.2"), 16);
    let outer = load(
        &mut world,
        Client::named("key").from(Some("10.2.0.1".parse().unwrap())),
        16,
    );
    let other = load(&mut world, address("192.168.0.1"), 256);
    let got = world.run(TEN);
    near(
        (got[inner] + got[mapped]) as f64,
        10.0 * 5.0 * MB as f64,
        3.0,
    );
    near(got[outer] as f64, 10.0 * 25.0 * MB as f64, 3.0);
    near(got[other] as f64, 10.0 * 970.0 * MB as f64, 3.0);
}

/// A change is in force at once, and debt stays: setting a limit again and again gives nothing away.
#[test]
fn changes_hold_and_forgive_nothing() {
    let mut world = World::default();
    set(&mut world, None, &[limit("lun/db", 10 * MB)]);
    let lun = load(&mut world, address("10.0.0.7").of(Part::lun("db")), 16);
    world.run(Duration::from_secs(1));
    let mut got = 0;
    for _ in 0..100 {
        set(
            &mut world,
            None,
            &[limit("bucket/x", MB), limit("lun/db", 20 * MB)],
        );
        got += world.run(Duration::from_millis(50))[lun];
        set(&mut world, None, &[limit("lun/db", 10 * MB)]);
        got += world.run(Duration::from_millis(50))[lun];
    }
    near(got as f64, 10.0 * 15.0 * MB as f64, 5.0);
    let report = world.scheduler.report(VolumeId(1), world.now).unwrap();
    near(report.parts[0].0, 15.0 * MB as f64, 20.0);
}
