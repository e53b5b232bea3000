//! Scenarios of a cluster: everything that a run depends on, as plain data that follows from a seed.
//!
//! Owns: the draws, their chances, and staying within the failures that a cluster promises to survive. Must not know:
//! how a scenario is played.

use cairn_testkit::Rng;
use serde::{Deserialize, Serialize};

use super::aimed;
use super::calls::{CallPlan, Moment};
use super::promises::Verb;
use super::terms::Load;
use crate::exec::Picking;
use crate::scenario::{Dedupes, Keep, Protection, Shape, Space, TierTrouble, Tiers, Trouble};

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterScenario {
    pub seed: u64,
    pub node_count: usize,
    pub disks_per_node: usize,
    pub shape: Shape,
    /// The first volume exists all the time.
    pub volumes: Vec<VolumePlan>,
    /// Clients that talk to any node.
    pub calls: Option<CallPlan>,
    /// The clock of each node: seconds per million of the world's.
    pub rates: Vec<u32>,
    /// Times count from the moment when the initial volumes are served.
    pub events: Vec<Event>,
    pub end: Ending,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub at_ms: u64,
    /// The volume whose owner and log devices are targets.
    pub volume: usize,
    pub what: What,
}

/// One volume: its clients, and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumePlan {
    pub load: Load,
    /// Time of its creation; `None`: before any event.
    pub made_at_ms: Option<u64>,
    /// It is deleted this long after its creation, or after the first event.
    pub lives_ms: Option<u64>,
}

impl VolumePlan {
    /// A volume that exists all the time.
    pub fn lasting(load: Load) -> Self {
        Self {
            load,
            made_at_ms: None,
            lives_ms: None,
        }
    }
}

/// Target of an event; the owner is that of the event's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The present owner.
    Owner,
    /// The node this many places after the owner, cyclically.
    Behind(usize),
    /// The owner according to etcd, which does not serve yet during a takeover.
    Holder,
    /// The node whose disk begins the awaited operation, or that has the call; the owner, if there is none.
    AtWork,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The power goes, and no peer hears that connections end; or the process is killed.
    Crash {
        who: Who,
        keep: Keep,
        with_power: bool,
        down_ms: u64,
    },
    /// The process is stopped after this many more steps, and its clock goes on, or the machine is suspended. Data from
    /// others waits until it resumes.
    Pause {
        who: Who,
        machine: bool,
        steps: u64,
        ms: u64,
    },
    /// The next node that serves the volume is suspended soon after it begins to.
    PauseNext {
        after_ms: u64,
        ms: u64,
    },
    /// No data gets from a node to another, or in both directions.
    Cut {
        who: Who,
        from: usize,
        both: bool,
        ms: u64,
    },
    /// No data gets to any node, or from any.
    CutOff {
        who: Who,
        hears: bool,
        is_heard: bool,
        ms: u64,
    },
    /// All connections between two nodes break.
    Break {
        who: Who,
        other: usize,
    },
    /// All data from and to a node is late.
    Slow {
        who: Who,
        by_ms: u64,
        ms: u64,
    },
    /// Data that a node sends over some of its connections for calls is this late, and over others as usual.
    StallCalls {
        who: Who,
        ms: u64,
    },
    /// etcd refuses a node.
    EtcdAway {
        who: Who,
        ms: u64,
    },
    /// Requests of a node to etcd are late, and so are the answers; some are lost.
    EtcdLate {
        who: Who,
        by_ms: u64,
        ms: u64,
    },
    /// Requests of a node to etcd are done at once, and all answers come together when this ends.
    EtcdMute {
        who: Who,
        ms: u64,
    },
    /// No node gets an answer from etcd.
    EtcdStops {
        ms: u64,
    },
    /// Most members of etcd are gone: it sends no answers and no events, and no lease ends. Then they are back, and
    /// leases restart, or the expired ones end.
    EtcdNoQuorum {
        keeps_leases: bool,
        ms: u64,
    },
    /// The next requests of a node to etcd are done, or not, and it gets no answer.
    EtcdUnknown {
        who: Who,
        done: bool,
        count: u32,
    },
    /// etcd ends a node's lease.
    LoseLease {
        who: Who,
    },
    ClockJump {
        who: Who,
        seconds: i64,
    },
    /// All operations of a disk fail for a while.
    DiskDead {
        who: Who,
        pick: u64,
        ms: u64,
    },
    /// Some operations of a disk fail.
    DiskErrors {
        who: Who,
        pick: u64,
        times: u64,
    },
    /// Some operations of a disk take long.
    DiskSlow {
        who: Who,
        pick: u64,
        by_ms: u64,
        times: u64,
    },
    /// Some reads of a disk's data return a wrong bit.
    DiskFlips {
        who: Who,
        pick: u64,
        times: u64,
    },
    /// The disks of a node, or all disks, become full except for some room; `None`: until everything has recovered and
    /// is served.
    Fill {
        who: Option<Who>,
        room_kib: u64,
        ms: Option<u64>,
    },
    /// An operator moves a volume.
    Give,
    /// The nodes with disks of the open part of the log lose their power, or their processes are killed: all of them,
    /// or all but one, counted from after the owner.
    CrashMembers {
        but: Option<usize>,
        keep: Keep,
        with_power: bool,
        down_ms: u64,
    },
    /// Data from the owner to one of these nodes does not arrive.
    CutMember {
        nth: usize,
        ms: u64,
    },
    /// The owner's connections to one of these nodes break.
    BreakMember {
        nth: usize,
    },
    /// Some operations of the disks of these nodes take long.
    SlowMembers {
        by_ms: u64,
        times: u64,
    },
    /// The next node that serves the volume loses its power soon after it begins to.
    CrashNext {
        after_ms: u64,
        down_ms: u64,
    },
    /// After `skip` transactions of a node, etcd does all of the next ones, or none, and sends no answer.
    EtcdForgets {
        who: Who,
        done: bool,
        skip: u32,
        count: u32,
    },
    /// A node and all others but one do not hear of one another.
    CutFromAllBut {
        who: Who,
        but: usize,
        ms: u64,
    },
    /// One after the other, with a delay in milliseconds before each.
    Row {
        steps: Vec<(u64, What)>,
    },
    /// An event at the moment when a call of a client that talks to any node is at a place, after some such calls.
    WhenCall {
        moment: Moment,
        skip: u64,
        then: Box<What>,
    },
    /// An event at the moment when a disk begins an operation for another node, after some such operations.
    When {
        verb: Verb,
        skip: u64,
        then: Box<What>,
    },
}

impl What {
    pub fn name(&self) -> &'static str {
        match self {
            What::Crash {
                with_power: true, ..
            } => "crash_power",
            What::Crash { .. } => "crash_process",
            What::Pause { machine: true, .. } => "suspend",
            What::Pause { .. } => "pause",
            What::PauseNext { .. } => "pause_next",
            What::Cut { both: true, .. } => "cut_both",
            What::Cut { .. } => "cut_one_way",
            What::CutOff {
                hears: false,
                is_heard: false,
                ..
            } => "cut_off",
            What::CutOff { .. } => "cut_off_one_way",
            What::Break { .. } => "break",
            What::Slow { .. } => "slow",
            What::StallCalls { .. } => "stall_calls",
            What::EtcdAway { .. } => "etcd_away",
            What::EtcdLate { .. } => "etcd_late",
            What::EtcdMute { .. } => "etcd_mute",
            What::EtcdStops { .. } => "etcd_stops",
            What::EtcdNoQuorum {
                keeps_leases: true, ..
            } => "etcd_no_quorum",
            What::EtcdNoQuorum { .. } => "etcd_no_quorum_leases_end",
            What::EtcdUnknown { .. } => "etcd_unknown",
            What::LoseLease { .. } => "lose_lease",
            What::ClockJump { .. } => "clock_jump",
            What::DiskDead { .. } => "disk_dead",
            What::DiskErrors { .. } => "disk_errors",
            What::DiskSlow { .. } => "disk_slow",
            What::DiskFlips { .. } => "disk_flips",
            What::Fill { who: None, .. } => "fill_all",
            What::Fill { .. } => "fill",
            What::Give => "give",
            What::CrashMembers { but: None, .. } => "crash_members",
            What::CrashMembers { .. } => "crash_members_but_one",
            What::CutMember { .. } => "cut_member",
            What::BreakMember { .. } => "break_member",
            What::SlowMembers { .. } => "slow_members",
            What::CrashNext { .. } => "crash_next",
            What::EtcdForgets { .. } => "etcd_forgets",
            What::CutFromAllBut { .. } => "cut_from_all_but",
            What::Row { .. } => "row",
            What::WhenCall { .. } => "when_call",
            What::When { .. } => "when",
        }
    }

    pub const NAMES: [&str; 39] = [
        "crash_power",
        "crash_process",
        "suspend",
        "pause",
        "pause_next",
        "cut_both",
        "cut_one_way",
        "cut_off",
        "cut_off_one_way",
        "break",
        "slow",
        "stall_calls",
        "etcd_away",
        "etcd_late",
        "etcd_mute",
        "etcd_stops",
        "etcd_no_quorum",
        "etcd_no_quorum_leases_end",
        "etcd_unknown",
        "lose_lease",
        "clock_jump",
        "disk_dead",
        "disk_errors",
        "disk_slow",
        "disk_flips",
        "fill_all",
        "fill",
        "give",
        "crash_members",
        "crash_members_but_one",
        "cut_member",
        "break_member",
        "slow_members",
        "crash_next",
        "etcd_forgets",
        "cut_from_all_but",
        "row",
        "when_call",
        "when",
    ];
}

/// The last event, after recovery and before the final check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The owner closes the volume, and another node takes it over.
    Give,
    /// The owner loses its power.
    CrashOwner,
    /// All nodes lose their power at once, and come back.
    CrashAll,
    /// Nodes are lost for good, with all their data, with or without the owner.
    Lose { count: usize, owner: bool },
    /// The owner is lost for good, then nodes with copies of its state, then others.
    LoseCopies { count: usize },
}

pub(super) fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

impl ClusterScenario {
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0c10_57e2_0a11_2026);
        let node_count = one_of(&mut rng, &[3, 3, 4, 4, 5, 6]);
        let disks_per_node = one_of(&mut rng, &[1, 1, 2]);
        let mut shape = draw_shape(&mut rng, node_count * disks_per_node);
        // Random numbers of their own, so that a seed keeps its other draws.
        shape.puts = Rng::new(seed ^ 0x7075_7473).below(3) == 0;
        let load = Load {
            client_count: 1 + rng.below(4) as u32,
            op_count: 400,
            pause_ms_max: one_of(&mut rng, &[50, 200, 600]),
        };
        let volume_count = one_of(&mut rng, &[1, 2, 2, 2, 3, 3, 4]);
        let is_steady = rng.coin();
        let rates = (0..node_count)
            .map(|_| match is_steady {
                true => 1_000_000,
                // Two rates differ by less than a lease allows for.
                false => 980_000 + rng.below(40_000) as u32,
            })
            .collect();
        let events = draw_events(&mut rng, node_count, volume_count);
        let span_ms = events.last().map_or(0, |event| event.at_ms);
        let volumes = draw_volumes(&mut rng, load, volume_count, span_ms);
        let lose = if node_count == 3 { 1 } else { 2 };
        let end = match rng.below(8) {
            0 => Ending::Give,
            1 => Ending::CrashOwner,
            2 => Ending::CrashAll,
            _ => Ending::Lose {
                count: lose,
                owner: rng.below(4) != 0,
            },
        };
        let mut scenario = Self {
            seed,
            node_count,
            disks_per_node,
            shape,
            volumes,
            calls: None,
            rates,
            events,
            end,
        };
        aim_at_tiers(&mut scenario.shape, seed);
        // In half of the runs events are aimed.
        let mut rng = Rng::new(seed ^ 0x0a13_ed00_2026_1126);
        if rng.coin() {
            aimed::aim(&mut scenario, rng);
        }
        aimed::aim_at_calls(&mut scenario, seed);
        aimed::aim_at_late_calls(&mut scenario, seed);
        aimed::aim_at_queues(&mut scenario, seed);
        aimed::aim_at_lone_rules(&mut scenario, seed);
        scenario
    }
}

/// No seed that finds a hard planted bug has tiers: those seeds keep their runs.
const TIERS_PICK: u64 = 0x7473_c0d3;

/// One in four has an object store. Then segments are small, and sealed early, so that some are cold.
fn aim_at_tiers(shape: &mut Shape, seed: u64) {
    let mut rng = Rng::new(seed ^ TIERS_PICK);
    if rng.below(4) != 0 {
        return;
    }
    shape.tiers = Tiers {
        trouble: one_of(&mut rng, &[TierTrouble::Sound, TierTrouble::Flaky]),
        interval_ms: one_of(&mut rng, &[20, 200, 1000]),
    };
    shape.is_data_heavy = true;
    shape.space.gc_interval_ms = shape.space.gc_interval_ms.min(500);
    shape.space.gc_seal_idle_ms = one_of(&mut rng, &[50, 300, 1000]);
    if shape.small_records {
        shape.space.shard_kib = one_of(&mut rng, &[64, 128, 256]);
    }
}

impl ClusterScenario {
    /// A quiet cluster of `node_count` nodes, with one disk each, whose owner loses its power in the end.
    pub fn of_takeover(seed: u64, node_count: usize) -> Self {
        let mut scenario = Self::from_seed(seed);
        scenario.node_count = node_count;
        scenario.disks_per_node = 1;
        scenario.shape.disk_count = node_count;
        scenario.shape.rebuild_delay_ms = 600_000;
        scenario.shape.tiers = Tiers::default();
        scenario.volumes = vec![VolumePlan::lasting(Load {
            client_count: 2,
            op_count: 200,
            pause_ms_max: 20,
        })];
        scenario.rates = vec![1_000_000; node_count];
        scenario.calls = None;
        scenario.events = Vec::new();
        scenario.end = Ending::CrashOwner;
        scenario
    }
}

fn draw_shape(rng: &mut Rng, disk_count: usize) -> Shape {
    let log_file_kib = one_of(rng, &[512, 1024]);
    Shape {
        trouble: Trouble::Errors,
        disk_count,
        disk_mib: 1024,
        protection: Protection::Default,
        small_records: rng.coin(),
        compress: rng.coin(),
        dirty_kib: one_of(rng, &[256, 2048]),
        log_file_kib,
        log_kib_max: log_file_kib * one_of(rng, &[2, 4, 16]),
        cache_kib: one_of(rng, &[0, 1024]),
        client_count: 0,
        picking: one_of(rng, &[Picking::Uniform, Picking::Priority]),
        has_threads: rng.coin(),
        is_data_heavy: rng.below(4) == 0,
        is_paced: true,
        bad_disks: Vec::new(),
        is_uneven: rng.below(3) == 0,
        has_owners: true,
        forgets_starts: rng.below(4) == 0,
        rebuild_delay_ms: one_of(rng, &[5_000, 30_000, 600_000]),
        takes_snapshots: false,
        sets_quotas: false,
        sets_policies: false,
        compares: false,
        puts: false,
        is_encrypted: false,
        has_tiny_files: false,
        has_read_cache: false,
        tiers: Tiers::default(),
        dedupes: Dedupes::Off,
        space: Space {
            shard_kib: one_of(rng, &[256, 1024]),
            recycled_files_max: one_of(rng, &[0, 4]),
            gc_interval_ms: one_of(rng, &[500, 3000]),
            gc_garbage_percent: 25,
            gc_is_lazy: false,
            gc_seal_idle_ms: one_of(rng, &[500, 10_000]),
            is_overwriting: rng.coin(),
        },
    }
}

/// The first volume exists all the time. Some of the others are made during events, and some are deleted then. They
/// have fewer clients, so that a run does not take much longer than one with a single volume.
fn draw_volumes(rng: &mut Rng, first: Load, count: usize, span_ms: u64) -> Vec<VolumePlan> {
    let mut volumes = vec![VolumePlan::lasting(first)];
    while volumes.len() < count {
        let load = Load {
            client_count: 1 + rng.below(2) as u32,
            op_count: first.op_count / 2,
            pause_ms_max: first.pause_ms_max,
        };
        let made_at_ms = rng.coin().then(|| rng.below(span_ms + 1));
        let is_deleted = rng.below(4) == 0;
        volumes.push(VolumePlan {
            load,
            made_at_ms,
            lives_ms: is_deleted.then(|| 500 + rng.below(span_ms + 1)),
        });
    }
    volumes
}

/// Number of kinds that [`draw_what`] draws.
const KINDS: u64 = 24;

fn draw_events(rng: &mut Rng, node_count: usize, volume_count: usize) -> Vec<Event> {
    let count = 2 + rng.below(9);
    // A run prefers some kinds, so that they coincide.
    let lean: Vec<u64> = (0..3).map(|_| rng.below(KINDS)).collect();
    let mut at_ms = 0;
    let mut events: Vec<Event> = (0..count)
        .map(|_| {
            at_ms += match rng.below(4) {
                0 => rng.below(400),
                1 => rng.below(3000),
                _ => rng.below(9000),
            };
            let kind = match rng.coin() {
                true => one_of(rng, &lean),
                false => rng.below(KINDS),
            };
            Event {
                at_ms,
                volume: rng.below(volume_count as u64) as usize,
                what: draw_what(rng, kind, node_count),
            }
        })
        .collect();
    events.sort_by_key(|event| event.at_ms);
    events
}

fn draw_what(rng: &mut Rng, kind: u64, node_count: usize) -> What {
    let others = node_count as u64 - 1;
    let who = match rng.below(2) {
        0 => Who::Owner,
        _ => Who::Behind(1 + rng.below(others) as usize),
    };
    let from = 1 + rng.below(others) as usize;
    let short_ms = 100 + rng.below(3000);
    let long_ms = 1000 + rng.below(12_000);
    let ms = if rng.coin() { short_ms } else { long_ms };
    let keep = one_of(rng, &[Keep::Nothing, Keep::Everything, Keep::Random]);
    let pick = rng.u64();
    match kind {
        0..3 => What::Crash {
            who,
            keep,
            with_power: true,
            down_ms: long_ms,
        },
        3 => What::Crash {
            who,
            keep: Keep::Everything,
            with_power: false,
            down_ms: short_ms,
        },
        4 => What::Pause {
            who,
            machine: true,
            steps: 0,
            ms: pause_ms(rng),
        },
        5 | 6 => What::Pause {
            who,
            machine: false,
            steps: rng.below(400),
            ms: pause_ms(rng),
        },
        7 => What::Cut {
            who,
            from,
            both: rng.coin(),
            ms,
        },
        8 | 9 => {
            let (hears, is_heard) = one_of(rng, &[(false, false), (true, false), (false, true)]);
            What::CutOff {
                who,
                hears,
                is_heard,
                ms,
            }
        }
        10 if rng.coin() => What::PauseNext {
            after_ms: one_of(rng, &[0, 10, 100, 1000]),
            ms: long_ms,
        },
        10 => What::Break { who, other: from },
        11 => What::Slow {
            who,
            by_ms: one_of(rng, &[20, 300, 700, 1500]),
            ms,
        },
        12 => What::EtcdAway { who, ms },
        13 => What::EtcdLate {
            who,
            by_ms: one_of(rng, &[100, 1000, 3000]),
            ms,
        },
        14 => match rng.coin() {
            true => What::EtcdStops { ms },
            false => What::EtcdUnknown {
                who,
                done: rng.coin(),
                count: 1 + rng.below(3) as u32,
            },
        },
        15 => What::LoseLease { who },
        16 => match rng.below(3) {
            0 => What::ClockJump {
                who,
                seconds: rng.below(7200) as i64 - 3600,
            },
            _ => What::Give,
        },
        17 => What::DiskDead { who, pick, ms },
        18 => What::DiskErrors {
            who,
            pick,
            times: 1 + rng.below(6),
        },
        19 | 20 => What::DiskSlow {
            who,
            pick,
            by_ms: one_of(rng, &[200, 700, 3000]),
            times: 1 + rng.below(8),
        },
        21 => What::Fill {
            who: rng.coin().then_some(who),
            room_kib: one_of(rng, &[0, 64, 1500]),
            ms: Some(2 * ms),
        },
        22 => What::EtcdNoQuorum {
            keeps_leases: rng.coin(),
            ms: quorum_ms(rng),
        },
        _ => What::When {
            verb: one_of(rng, &Verb::ALL),
            skip: rng.below(40),
            then: Box::new(What::Pause {
                who: one_of(rng, &[Who::Owner, Who::AtWork, Who::AtWork]),
                machine: rng.below(4) == 0,
                steps: rng.below(60),
                ms: pause_ms(rng),
            }),
        },
    }
}

/// A process is suspended for a tenth of a second to a minute; each power of two is equally likely.
pub(super) fn pause_ms(rng: &mut Rng) -> u64 {
    let about_ms = 100 << rng.below(10);
    (about_ms + rng.below(about_ms)).min(60_000)
}

/// etcd has no quorum for 5 s to a minute.
pub(super) fn quorum_ms(rng: &mut Rng) -> u64 {
    let about_ms = 5000 << rng.below(4);
    (about_ms + rng.below(about_ms)).min(60_000)
}
