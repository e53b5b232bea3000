use cairn_admin::disks::DiskState;
use cairn_admin::scrub::ScrubStage;
use cairn_admin::warnings::WarningView;

use super::*;
use crate::events::seen::{Owner, SeenDisk, SeenNode, SeenVolume};

fn warning(kind: WarningKind, message: &str) -> WarningView {
    WarningView {
        kind,
        severity: Severity::Warning,
        subject: "pool".to_owned(),
        volume: None,
        node: None,
        disk: None,
        count: None,
        wanted: None,
        message: message.to_owned(),
        next: "wait".to_owned(),
    }
}

/// Observations come every second, and so do the ticks of the wall clock.
struct World {
    tracker: Tracker,
    seen: Observation,
    second: u64,
    kept: Vec<EventEntry>,
}

impl World {
    fn new() -> Self {
        let disk = |number: u32| SeenDisk {
            subject: format!("disk /srv/disk{number}"),
            state: DiskState::Ok,
            problem: None,
            checksum_errors: 0,
        };
        let seen = Observation {
            disks: (1..=3).map(disk).collect(),
            free_percent: Some(50),
            volumes: vec![SeenVolume {
                name: "main".to_owned(),
                problem: None,
                owner: Owner::Alone,
            }],
            ..Observation::default()
        };
        let mut world = Self {
            tracker: Tracker::default(),
            seen,
            second: 0,
            kept: Vec::new(),
        };
        assert_eq!(world.look(), [""; 0]);
        world
    }

    /// The messages of one observation, with stage and severity.
    fn look(&mut self) -> Vec<String> {
        self.second += 1;
        let now = Duration::from_secs(self.second);
        let now_seconds = i64::try_from(self.second).unwrap();
        let events = self.tracker.look(self.seen.clone(), now, now_seconds);
        self.kept.extend(events.iter().cloned());
        let shown = events.iter().map(|event| {
            let stage = format!("{:?}", event.stage).to_lowercase();
            format!("{stage} {}: {}", event.severity.as_str(), event.message)
        });
        shown.collect()
    }

    fn looks(&mut self, count: u32) -> Vec<String> {
        (0..count).flat_map(|_| self.look()).collect()
    }

    /// Restarts the server.
    fn restart(&mut self) {
        let now = Duration::from_secs(self.second);
        self.tracker = Tracker::new(self.kept.iter(), now);
    }
}

#[test]
fn a_condition_is_told_when_it_begins_and_when_it_ends() {
    let mut world = World::new();
    world.seen.disks[1].state = DiskState::Missing;
    world.seen.disks[1].problem = Some("its folder does not exist".to_owned());
    let begun = "began error: disk /srv/disk2 is missing: its folder does not exist";
    assert_eq!(world.looks(10), [begun]);
    assert!(world.kept[0].action.is_some());
    // A start does not report it a second time, and knows that it ended.
    world.restart();
    assert_eq!(world.looks(10), [""; 0]);
    world.restart();
    world.seen.disks[1].state = DiskState::Ok;
    world.seen.disks[1].problem = None;
    let back = "ended info: disk /srv/disk2 is back and used again";
    assert_eq!(world.looks(10), [back]);
    world.restart();
    assert_eq!(world.looks(10), [""; 0]);
}

#[test]
fn what_comes_and_goes_is_one_condition() {
    let mut world = World::new();
    for _ in 0..50 {
        world.seen.rebuild.running = !world.seen.rebuild.running;
        world.look();
    }
    assert_eq!(world.kept.len(), 1);
    world.seen.rebuild.running = false;
    let ended = "ended info: all data is in place: nothing is left to move";
    assert_eq!(world.looks(10), [ended]);
}

#[test]
fn a_drain_that_is_faster_than_a_look_is_told() {
    let mut world = World::new();
    world.seen.disks[1].state = DiskState::Drained;
    let began = "began info: disk /srv/disk2 is being drained: its data moves to the other disks";
    let ended = "ended info: disk /srv/disk2 is drained: it can be removed";
    assert_eq!(world.looks(10), [began, ended]);
    world.restart();
    assert_eq!(world.looks(10), [""; 0]);
}

#[test]
fn changes_are_told_in_their_words() {
    type Change = fn(&mut Observation);
    #[rustfmt::skip]
    let cases: &[(Change, &[&str])] = &[
        (|seen| seen.disks[0].state = DiskState::Draining,
            &["began info: disk /srv/disk1 is being drained: its data moves to the other disks"]),
        (|seen| seen.disks[0].state = DiskState::Drained,
            &["ended info: disk /srv/disk1 is drained: it can be removed"]),
        (|seen| drop(seen.disks.remove(0)), &["once info: disk /srv/disk1 left the pool"]),
        (|seen| seen.disks[0].problem = Some("it is slow".to_owned()),
            &["began warning: disk /srv/disk2 has a fault and stays in use: it is slow"]),
        (|seen| seen.disks[0].state = DiskState::Failed,
            &["began error: disk /srv/disk2 failed and is out of use: it is slow",
              "ended error: disk /srv/disk2 is out of use. Still true: disk /srv/disk2 failed and is out of use: it is slow"]),
        (|seen| seen.free_percent = Some(9), &["began warning: the pool is nearly full: 9% of its space is free"]),
        (|seen| seen.free_percent = Some(11), &[]),
        (|seen| seen.free_percent = Some(12), &["ended info: 12% of the pool's space is free again"]),
        (|seen| seen.is_full = true, &["began error: the pool is full: writes fail, reads and deletions work"]),
        (|seen| seen.is_full = false, &["ended info: the pool takes writes again"]),
        (|seen| seen.volumes[0].problem = Some("its log is not there".to_owned()),
            &["began error: volume main is not served: its log is not there"]),
        (|seen| seen.volumes.clear(), &["ended info: volume main is no longer there"]),
        (|seen| seen.schedules = vec![("two".to_owned(), Some("no space".to_owned()))],
            &["began warning: the snapshot schedule of volume two fails: no space; the server retries"]),
        (|seen| seen.schedules[0].1 = None, &["ended info: the snapshot schedule of volume two works again"]),
        (|seen| seen.tiers = vec![("cold".to_owned(), Some("403".to_owned()))],
            &["began warning: tier cold is not usable: 403; the server retries"]),
        (|seen| seen.tiers.clear(), &["ended info: tier cold is usable again"]),
        // Numbers in it change.
        (|seen| seen.warnings = vec![warning(WarningKind::SegmentsNarrow, "7 segments have less"), warning(WarningKind::DiskMissing, "x")],
            &["began warning: 7 segments have less"]),
        (|seen| seen.warnings = vec![warning(WarningKind::SegmentsNarrow, "few, but 12 segments, have less")], &[]),
        // Two of one subject are distinguished by their warnings.
        (|seen| seen.warnings.push(warning(WarningKind::SegmentsSingle, "7 segments have less")), &["began warning: 7 segments have less"]),
        (|seen| seen.warnings.truncate(1), &["ended info: resolved: 7 segments have less"]),
        (|seen| seen.warnings.clear(), &["ended info: resolved: 7 segments have less"]),
        (|seen| seen.scrub.stage = ScrubStage::Running, &["began info: a scrub reads and checks all data"]),
        (|seen| seen.scrub.repaired_bytes = 4096,
            &["once warning: the scrub repaired 4 KiB of damaged data"]),
        (|seen| { seen.scrub.stage = ScrubStage::Done; seen.scrub.wrong_bytes = 4096; },
            &["ended warning: the scrub is done: 4 KiB were damaged, of which 4 KiB were repaired; 0 places in files are damaged beyond repair"]),
    ];
    let mut world = World::new();
    for (change, want) in cases {
        change(&mut world.seen);
        assert_eq!(world.looks(12), *want);
        // The next start knows all of it.
        world.tracker.before = None;
        let before = std::mem::take(&mut world.tracker.open).into_keys();
        world.restart();
        let after = world.tracker.open.keys().cloned();
        assert_eq!(after.collect::<Vec<_>>(), before.collect::<Vec<_>>());
        assert_eq!(world.looks(12), [""; 0]);
    }
}

#[test]
fn a_scrub_that_is_faster_than_a_look_is_told_and_one_goes_on_over_a_start() {
    let mut world = World::new();
    world.seen.scrub.stage = ScrubStage::Done;
    (
        world.seen.scrub.started_seconds,
        world.seen.scrub.finished_seconds,
    ) = (7, 8);
    let began = "began info: a scrub reads and checks all data";
    let done = "ended info: the scrub is done: no damage";
    assert_eq!(world.looks(3), [began, done]);
    world.seen.scrub.stage = ScrubStage::Running;
    (
        world.seen.scrub.started_seconds,
        world.seen.scrub.finished_seconds,
    ) = (9, 0);
    assert_eq!(world.looks(10), [began]);
    world.restart();
    assert_eq!(world.looks(10), [""; 0]);
    world.seen.scrub.stage = ScrubStage::Paused;
    assert_eq!(
        world.looks(3),
        ["ended info: the scrub is paused after 0 B"]
    );
    world.seen.scrub.stage = ScrubStage::Running;
    assert_eq!(world.looks(3), [began]);
    world.seen.scrub.stage = ScrubStage::Done;
    world.seen.scrub.finished_seconds = 12;
    assert_eq!(world.looks(3), [done]);
}

#[test]
fn what_grows_is_told_at_once_and_then_every_minute() {
    let mut world = World::new();
    world.seen.disks[0].checksum_errors = 2;
    let first = world.look();
    assert_eq!(first.len(), 1);
    assert!(first[0].contains("2 reads of disk /srv/disk1"), "{first:?}");
    for _ in 0..130 {
        world.seen.disks[0].checksum_errors += 1;
        world.look();
    }
    assert_eq!(world.kept.len(), 3);
    assert!(world.kept[1].message.starts_with("60 reads"));
    // Those of the last minute come, too.
    world.looks(60);
    assert_eq!(world.kept.len(), 4);
    assert_eq!(world.looks(100), [""; 0]);
    // A corrupt read before the first observation counts.
    world.restart();
    world.tracker.before = None;
    world.seen.damaged_reads = 1;
    assert_eq!(world.look().len(), 2);
}

#[test]
fn takeovers_are_told_with_both_owners() {
    let mut world = World::new();
    let node = |name: &str, is_there| SeenNode {
        name: name.to_owned(),
        is_there,
    };
    world.seen.nodes = vec![node("one", true), node("two", true)];
    world.seen.volumes[0].owner = Owner::Node("one".to_owned());
    world.look();
    world.seen.nodes = vec![node("one", false), node("two", true)];
    world.seen.volumes[0].owner = Owner::Nobody;
    assert_eq!(world.looks(2), [""; 0]);
    world.seen.volumes[0].owner = Owner::Node("two".to_owned());
    assert_eq!(
        world.looks(10),
        [
            "once warning: the owner of volume main changed from node one to node two",
            "began warning: node one is away: its lease has expired"
        ]
    );
    world.seen.volumes[0].owner = Owner::Nobody;
    assert_eq!(
        world.looks(10),
        ["began error: no node owns volume main: it is not served"]
    );
    world.seen.volumes[0].owner = Owner::Node("two".to_owned());
    assert_eq!(world.looks(10), ["ended info: node two owns volume main"]);
}

#[test]
fn many_at_once_are_told_one_look_after_the_other() {
    let mut world = World::new();
    let volume = |number: u32| SeenVolume {
        name: format!("v{number}"),
        problem: Some("x".repeat(2000)),
        owner: Owner::Alone,
    };
    world.seen.volumes = (0..200).map(volume).collect();
    let told: Vec<usize> = (0..12).map(|_| world.look().len()).collect();
    assert!(told.iter().all(|count| *count <= EVENTS_OF_A_LOOK_MAX));
    assert_eq!(told.iter().sum::<usize>(), 200);
    let is_cut = |event: &EventEntry| event.message.chars().count() <= EVENT_MESSAGE_CHARS_MAX;
    assert!(world.kept.iter().all(is_cut));
}
