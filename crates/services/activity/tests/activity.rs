//! Volumes in use, on a clock that moves by hand.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use cairn_activity::{
    Activities, Activity, COUNTER_COUNT, Client, Done, File, FileName, Operation, Protocol, Report,
    SHOWN_COUNT_MAX, TURN, Who, Work,
};
use cairn_base::{Ino, VolumeId};
use cairn_testkit::{ManualClock, TestWorld};

const READ: Operation = Operation {
    protocol: Protocol::Nfs,
    number: 6,
    name: "read",
};
const LOOKUP: Operation = Operation {
    protocol: Protocol::Nfs,
    number: 3,
    name: "lookup",
};

struct World {
    clock: ManualClock,
    all: Arc<Activities>,
    activity: Arc<Activity>,
}

impl World {
    fn new() -> Self {
        let world = TestWorld::new(1);
        let all = Activities::new(&world.env);
        let activity = all.of(VolumeId(1));
        Self {
            clock: world.clock,
            all,
            activity,
        }
    }

    /// As the task does it.
    fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.all.look();
    }

    fn report(&self) -> Report {
        self.activity.report()
    }

    fn read(&self, client: &Client, ino: u64, len_bytes: u64, took: Duration) {
        self.activity.note(&Done {
            operation: READ,
            client,
            file: Some(&File::inode(Ino(ino))),
            work: Work {
                read_bytes: len_bytes,
                ..Work::ONE
            },
            latency: Some(took),
        });
    }

    fn lookup(&self, client: &Client, ino: u64) {
        self.activity.note(&Done {
            operation: LOOKUP,
            client,
            file: Some(&File::inode(Ino(ino))),
            work: Work::ONE,
            latency: Some(Duration::from_micros(20)),
        });
    }
}

fn client(number: u32) -> Client {
    let address = Ipv4Addr::from_bits(0x0a00_0000 + number);
    Client::address(Protocol::Nfs, IpAddr::V4(address))
}

fn inode(ino: u64) -> FileName {
    FileName::Inode(Ino(ino))
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn what_clients_do_is_told_by_operation_client_and_file() {
    let world = World::new();
    let (busy, idle) = (client(1), client(2));
    for _ in 0..10 {
        world.read(&busy, 7, 65536, 2 * MILLISECOND);
    }
    world.read(&idle, 8, 4096, 12 * MILLISECOND);
    world.lookup(&idle, 1);
    world.advance(2 * MILLISECOND);
    let report = world.report();
    assert_eq!(report.span, 2 * MILLISECOND);
    let total = Work {
        operations: 12,
        read_bytes: 10 * 65536 + 4096,
        written_bytes: 0,
    };
    assert_eq!(report.total, total);
    assert_eq!(world.activity.total(), (total, 2 * MILLISECOND));
    let shown = report.operations.iter();
    let shown = shown.map(|it| (it.operation, it.work.operations, it.latency_max.unwrap()));
    let shown: Vec<_> = shown.collect();
    let took = Duration::from_micros(20);
    assert_eq!(
        shown,
        [(READ, 11, 12 * MILLISECOND), (LOOKUP, 1, took)],
        "those with the most first"
    );
    let mean = report.operations[0].latency_mean.unwrap();
    assert_eq!(mean, Duration::from_nanos(32_000_000 / 11));
    let clients: Vec<_> = report.clients.rows.iter().map(|row| &row.key).collect();
    assert_eq!(clients, [&busy, &idle]);
    let files = report.files.rows.iter();
    let files: Vec<_> = files.map(|row| row.key.name.clone()).collect();
    assert_eq!(files, [inode(7), inode(1), inode(8)]);
    assert!(!report.clients.has_others && !report.files.has_others);
    let mut rows = report.files.rows.iter();
    assert!(rows.all(|row| !row.is_lower_bound));
}

#[test]
fn what_is_over_is_gone_after_two_turns() {
    let world = World::new();
    let client = client(1);
    let look = |want: u64, seconds: u64| {
        let report = world.report();
        assert_eq!(report.total.operations, want);
        assert_eq!(report.span, Duration::from_secs(seconds));
        assert_eq!(report.clients.rows.is_empty(), want == 0);
        assert_eq!(report.operations.is_empty(), want == 0);
    };
    world.read(&client, 7, 1, MILLISECOND);
    world.advance(TURN);
    look(1, 5);
    world.read(&client, 7, 1, MILLISECOND);
    world.advance(Duration::from_secs(3));
    look(2, 8);
    world.advance(Duration::from_secs(2));
    look(1, 5);
    world.advance(TURN);
    look(0, 5);
    // Counters that were not looked at for long are as empty as others.
    world.read(&client, 7, 1, MILLISECOND);
    (0..20).for_each(|_| world.advance(TURN));
    look(0, 5);
    world.read(&client, 7, 1, MILLISECOND);
    look(1, 5);
}

#[test]
fn a_stretch_that_nobody_ended_is_told_as_long_as_it_was() {
    let world = World::new();
    world.read(&client(1), 7, 1000, MILLISECOND);
    world.clock.advance(Duration::from_secs(60));
    let report = world.report();
    assert_eq!(report.total.operations, 1);
    assert_eq!(report.span, Duration::from_secs(60));
}

#[test]
fn of_many_the_busiest_are_told_and_that_there_are_others() {
    let world = World::new();
    let busy = client(0);
    for number in 0..20_000 {
        world.read(
            &client(number % 5000 + 1),
            100 + u64::from(number),
            4096,
            MILLISECOND,
        );
        if number % 10 == 0 {
            world.read(&busy, 7, 1 << 20, MILLISECOND);
        }
    }
    let report = world.report();
    assert_eq!(report.total.operations, 22_000, "all are counted there");
    assert_eq!(report.operations[0].work, report.total);
    for (rows, has_others) in [
        (report.clients.rows.len(), report.clients.has_others),
        (report.files.rows.len(), report.files.has_others),
    ] {
        assert_eq!(rows, SHOWN_COUNT_MAX);
        assert!(has_others);
    }
    let first = &report.clients.rows[0];
    assert_eq!(first.key, busy);
    assert_eq!(first.work.operations, 2000);
    assert!(!first.is_lower_bound, "it was there from the beginning");
    assert!(report.clients.rows[1].is_lower_bound);
    assert_eq!(report.files.rows[0].key.name, inode(7));
}

#[test]
fn all_of_some_are_told_with_all_that_they_did() {
    let world = World::new();
    for number in 0..COUNTER_COUNT as u32 {
        (0..=number).for_each(|_| world.lookup(&client(number), 1));
    }
    let report = world.report();
    assert!(report.clients.has_others, "twenty are shown");
    let rows = report.clients.rows.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.work.operations, row.is_lower_bound))
        .collect();
    let first = COUNTER_COUNT as u64;
    assert_eq!(rows[0], (first, false));
    assert_eq!(rows.last(), Some(&(first - 19, false)));
}

#[test]
fn threads_count_side_by_side_and_nothing_is_lost() {
    const THREADS: u32 = 12;
    const COUNT: u64 = 20_000;
    let world = World::new();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let world = &world;
            scope.spawn(move || {
                let client = client(number % 3);
                for _ in 0..COUNT {
                    world.read(&client, 7, 10, MILLISECOND);
                }
            });
        }
        (0..100).for_each(|_| drop(world.report()));
    });
    let report = world.report();
    let all = u64::from(THREADS) * COUNT;
    assert_eq!(report.total.operations, all);
    assert_eq!(report.files.rows[0].work.read_bytes, 10 * all);
    assert_eq!(report.clients.rows.len(), 3);
    let mut rows = report.clients.rows.iter();
    assert!(rows.all(|row| row.work.operations == all / 3));
}

#[test]
fn volumes_are_counted_apart_and_forgotten() {
    let world = World::new();
    world.lookup(&client(1), 1);
    assert_eq!(world.all.of(VolumeId(2)).report().total, Work::default());
    assert_eq!(world.all.of(VolumeId(1)).report().total, Work::ONE);
    world.all.retain(|volume| volume == VolumeId(2));
    assert_eq!(world.all.of(VolumeId(1)).report().total, Work::default());
}

#[test]
fn names_are_of_bounded_length() {
    let long = "\u{e4}".repeat(1000);
    let File { name, .. } = File::object("b", &long);
    let FileName::Object(name) = name else {
        panic!("{name:?}")
    };
    assert!(name.len() < 300 && name.starts_with("b/\u{e4}"), "{name}");
    assert_ne!(
        File::object("b", &long),
        File::object("b", &format!("{long}x"))
    );
    let Who::Named(name) = Client::named(Protocol::Iscsi, &long).who else {
        panic!("it has a name")
    };
    assert!(name.len() < 300);
}

#[test]
fn parts_of_a_request_are_no_operations() {
    let world = World::new();
    let client = Client::address(Protocol::S3, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let part = |operations: u64, latency: Option<Duration>| {
        world.activity.note(&Done {
            operation: Operation {
                protocol: Protocol::S3,
                number: 0,
                name: "GET",
            },
            client: &client,
            file: Some(&File::object("b", "k")),
            work: Work {
                operations,
                read_bytes: if operations == 0 { 100 } else { 0 },
                written_bytes: 0,
            },
            latency,
        });
    };
    part(0, None);
    let report = world.report();
    assert_eq!(report.operations[0].latency_mean, None);
    assert_eq!(report.operations[0].latency_max, None);
    part(1, Some(MILLISECOND));
    part(0, None);
    let report = world.report();
    assert_eq!(report.total.operations, 1);
    assert_eq!(report.total.read_bytes, 200);
    assert_eq!(report.operations[0].latency_mean, Some(MILLISECOND));
}
