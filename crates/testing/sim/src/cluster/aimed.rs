//! Events at the worst moment: while a group is between its copies, while an owner repairs or removes, during a
//! takeover.
//!
//! Owns: the targets of events, and their chances. Must not know: the bug that a run should find.
//!
//! Runs of `scenario` strike at random times, and most of the time lies between two groups. Here clients hardly rest,
//! the log is small, so that the list of its parts changes often, and disks report when they begin an operation.

use cairn_testkit::Rng;

use super::calls::{CallPlan, Moment, Turning};
use super::promises::Verb;
use super::scenario::{
    ClusterScenario, Ending, Event, VolumePlan, What, Who, one_of, pause_ms, quorum_ms,
};
use super::terms::Load;
use crate::scenario::Keep;

/// The kinds of aim; one that is listed more often is drawn more often.
const AIMS: [fn(&mut Aim); 29] = [
    Aim::lease_lost,
    Aim::lease_lost,
    Aim::owner_paused,
    Aim::owner_paused,
    Aim::one_member_lacks,
    Aim::no_member,
    Aim::etcd_is_late,
    Aim::promise_and_power,
    Aim::wrong_reads,
    Aim::alone,
    Aim::alone,
    Aim::etcd_forgets,
    Aim::etcd_forgets,
    Aim::group_lost_on_its_way,
    Aim::paused_in_sweep,
    Aim::promise_forgotten,
    Aim::away_for_long,
    Aim::away_for_long,
    Aim::new_log_is_lost,
    Aim::new_log_is_lost,
    Aim::second_hand,
    Aim::second_hand,
    Aim::second_hand,
    Aim::all_at_once,
    Aim::all_at_once,
    Aim::deleted_in_a_takeover,
    Aim::stopped_with_calls,
    Aim::stopped_with_calls,
    Aim::quorum_lost,
];

/// Limit of the volumes of a run at a time.
const VOLUME_COUNT_MAX: usize = 4;

/// The events drawn so far.
struct Aim {
    rng: Rng,
    node_count: usize,
    at_ms: u64,
    events: Vec<Event>,
    volumes: Vec<VolumePlan>,
    /// The volume whose owner and log devices are targets.
    volume: usize,
    /// Nodes have two disks, lost shards are rebuilt at once, and nodes are lost in the end.
    has_two_disks: bool,
}

/// Makes an aimed run of a scenario.
pub fn aim(scenario: &mut ClusterScenario, mut rng: Rng) {
    let mut load = Load {
        client_count: 3 + rng.below(3) as u32,
        op_count: 250,
        pause_ms_max: one_of(&mut rng, &[0, 2, 6]),
    };
    if rng.below(6) == 0 {
        // Clients change hardly anything: an owner learns nothing from its disks.
        load.client_count = 1;
        load.pause_ms_max = 4000;
    }
    let count = scenario.volumes.len() as u32;
    for (nth, volume) in scenario.volumes.iter_mut().enumerate() {
        volume.load = load;
        if nth > 0 {
            // All volumes together keep the disks about as busy as one does alone.
            volume.load.client_count = 1 + load.client_count / (2 * count);
            volume.load.op_count = load.op_count / 2;
        }
    }
    let shape = &mut scenario.shape;
    shape.log_file_kib = one_of(&mut rng, &[384, 512]);
    shape.log_kib_max = shape.log_file_kib * one_of(&mut rng, &[2, 2, 4]);
    shape.rebuild_delay_ms = one_of(&mut rng, &[500, 5_000, 600_000]);
    shape.space.gc_interval_ms = one_of(&mut rng, &[100, 500]);
    shape.cache_kib = one_of(&mut rng, &[0, 0, 1024]);
    shape.space.gc_seal_idle_ms = 500;
    if rng.below(3) == 0 {
        scenario.disks_per_node = 2;
        shape.disk_count = scenario.node_count * 2;
    }
    let mut aim = Aim {
        rng,
        node_count: scenario.node_count,
        at_ms: 0,
        events: Vec::new(),
        volumes: std::mem::take(&mut scenario.volumes),
        volume: 0,
        has_two_disks: false,
    };
    for _ in 0..1 + aim.rng.below(2) {
        aim.volume = aim.rng.below(aim.volumes.len() as u64) as usize;
        let next = one_of(&mut aim.rng, &AIMS);
        next(&mut aim);
        aim.wait(1000, 6000);
    }
    scenario.events = std::mem::take(&mut aim.events);
    scenario.volumes = std::mem::take(&mut aim.volumes);
    // Events that were drawn for a longer run also fit into this one.
    let span_ms = aim.at_ms.max(1);
    for volume in scenario.volumes.iter_mut().skip(1) {
        volume.made_at_ms = volume.made_at_ms.map(|at_ms| at_ms % span_ms);
    }
    if aim.has_two_disks {
        scenario.disks_per_node = 2;
        scenario.shape.disk_count = scenario.node_count * 2;
        scenario.shape.rebuild_delay_ms = 500;
        scenario.end = Ending::Lose {
            count: if scenario.node_count == 3 { 1 } else { 2 },
            owner: aim.rng.coin(),
        };
    }
    if let Ending::Lose { count, .. } = scenario.end
        && aim.rng.coin()
    {
        scenario.end = Ending::LoseCopies { count };
    }
}

/// No seed that finds a hard planted bug has such clients: those seeds keep their runs.
const CALLS_PICK: u64 = 0xca11_000a;

/// In one of three runs clients talk to any node, and in most of those events happen while their calls are in flight.
pub fn aim_at_calls(scenario: &mut ClusterScenario, seed: u64) {
    let mut rng = Rng::new(seed ^ CALLS_PICK);
    if rng.below(3) != 0 {
        return;
    }
    scenario.calls = Some(CallPlan {
        turning: one_of(&mut rng, &[Turning::Numbered, Turning::WithAddress]),
        caller_count: 1 + rng.below(3) as u32,
        pause_ms_max: one_of(&mut rng, &[20, 100, 300]),
        has_two_addresses: false,
        long_in_16: 1,
        hears_late: false,
    });
    quiet(scenario);
    if rng.below(4) == 0 {
        return;
    }
    strike(scenario, rng, 2, |aim| aim.call_is_late());
}

/// No seed that finds planted bugs has such runs.
const LATE_PICK: u64 = 0x1a7e_0012;

/// The kinds of late calls; one that is listed more often is drawn more often.
const LATE: [fn(&mut Aim); 8] = [
    Aim::end_is_unheard,
    Aim::end_is_unheard,
    Aim::end_is_unheard,
    Aim::node_stands_still,
    Aim::node_stands_still,
    Aim::connection_stalls,
    Aim::owner_comes_back,
    Aim::killed_and_guarded,
];

fn draws_late_calls(rng: &mut Rng) -> bool {
    rng.below(8) == 0
}

/// Whether [`aim_at_late_calls`], [`aim_at_queues`] or [`aim_at_lone_rules`] changes the run of a seed.
pub fn has_late_calls(seed: u64) -> bool {
    draws_late_calls(&mut Rng::new(seed ^ LATE_PICK))
        || draws_queues(&mut Rng::new(seed ^ QUEUE_PICK))
        || draws_lone_rule(&mut Rng::new(seed ^ LONE_PICK))
}

/// In one of eight runs clients turn to another node as early as allowed, and continue there at once, while a call of
/// theirs is in flight for as long as possible. So each rule that keeps late calls out is the last one somewhere.
pub fn aim_at_late_calls(scenario: &mut ClusterScenario, seed: u64) {
    let mut rng = Rng::new(seed ^ LATE_PICK);
    if !draws_late_calls(&mut rng) {
        return;
    }
    let turnings = [
        Turning::Numbered,
        Turning::WithAddress,
        Turning::WithAddress,
        Turning::AfterSilence,
        Turning::AfterSilence,
    ];
    let turning = one_of(&mut rng, &turnings);
    scenario.calls = Some(CallPlan {
        turning,
        caller_count: 2 + rng.below(3) as u32,
        pause_ms_max: one_of(&mut rng, &[2, 10, 50]),
        has_two_addresses: turning != Turning::Numbered && rng.coin(),
        long_in_16: one_of(&mut rng, &[1, 1, 8]),
        hears_late: false,
    });
    quiet(scenario);
    strike(scenario, rng, 3, |aim| {
        let next = one_of(&mut aim.rng, &LATE);
        next(aim);
    });
}

/// No seed that finds planted bugs has such runs.
const QUEUE_PICK: u64 = 0x9e0e_0002;

fn draws_queues(rng: &mut Rng) -> bool {
    rng.below(16) == 0
}

/// In one of 16 runs clients connect to a suspended process. Their connections wait in its kernel, each with a call,
/// until long after the clients have turned to another node and continued there.
pub fn aim_at_queues(scenario: &mut ClusterScenario, seed: u64) {
    let mut rng = Rng::new(seed ^ QUEUE_PICK);
    if !draws_queues(&mut rng) {
        return;
    }
    let turnings = [
        Turning::WithAddress,
        Turning::AfterSilence,
        Turning::AfterSilence,
        Turning::AfterSilence,
    ];
    scenario.calls = Some(CallPlan {
        turning: one_of(&mut rng, &turnings),
        caller_count: 3 + rng.below(3) as u32,
        pause_ms_max: one_of(&mut rng, &[2, 10, 50]),
        has_two_addresses: rng.coin(),
        long_in_16: 1,
        hears_late: true,
    });
    quiet(scenario);
    strike(scenario, rng, 3, Aim::stands_still_with_a_queue);
}

/// No seed that finds planted bugs of other kinds has such runs: those seeds keep their runs.
const LONE_PICK: u64 = 0x10e0_0001;

fn draws_lone_rule(rng: &mut Rng) -> bool {
    rng.below(32) == 0
}

/// In one of 32 runs one rule alone keeps late calls out, and each event targets this rule: the way that clients turn,
/// the node, and the duration fit together. Runs of [`aim_at_late_calls`] and [`aim_at_queues`] draw these separately,
/// and they seldom fit.
pub fn aim_at_lone_rules(scenario: &mut ClusterScenario, seed: u64) {
    let mut rng = Rng::new(seed ^ LONE_PICK);
    if !draws_lone_rule(&mut rng) {
        return;
    }
    let kind = rng.below(3);
    let next: fn(&mut Aim) = match kind {
        0 => Aim::call_stalls_between_nodes,
        1 => Aim::owner_hears_no_end,
        _ => Aim::clients_come_to_a_standstill,
    };
    scenario.calls = Some(CallPlan {
        turning: match kind {
            1 => Turning::WithAddress,
            _ => Turning::AfterSilence,
        },
        caller_count: 3 + rng.below(3) as u32,
        pause_ms_max: one_of(&mut rng, &[2, 5, 10]),
        has_two_addresses: false,
        long_in_16: 1,
        hears_late: kind == 2,
    });
    quiet(scenario);
    strike(scenario, rng, 4, next);
}

/// The engine's clients are not under test here, and cost most of the steps.
fn quiet(scenario: &mut ClusterScenario) {
    for volume in &mut scenario.volumes {
        volume.load.client_count = 1;
        volume.load.op_count = volume.load.op_count.min(60);
        volume.load.pause_ms_max = volume.load.pause_ms_max.max(400);
    }
}

/// Adds events at calls of clients: `least`, and up to three more.
fn strike(scenario: &mut ClusterScenario, rng: Rng, least: u64, next: impl Fn(&mut Aim)) {
    let mut aim = Aim {
        rng,
        node_count: scenario.node_count,
        at_ms: 0,
        events: Vec::new(),
        volumes: Vec::new(),
        volume: 0,
        has_two_disks: false,
    };
    for _ in 0..least + aim.rng.below(3) {
        aim.wait(500, 2000);
        aim.volume = aim.rng.below(scenario.volumes.len() as u64) as usize;
        next(&mut aim);
        aim.wait(4000, 9000);
    }
    scenario.events = aim.events;
    for volume in scenario.volumes.iter_mut().skip(1) {
        volume.made_at_ms = None;
        volume.lives_ms = None;
    }
}

impl Aim {
    fn push_when_call(&mut self, moment: Moment, skip: u64, then: What) {
        let then = Box::new(then);
        self.push(What::WhenCall { moment, skip, then });
    }

    /// The term of a node ends while it has a call, and this node, or the owner, does not hear of that for a while.
    fn end_is_unheard(&mut self) {
        let skip = self.rng.below(20);
        let at_work = Who::AtWork;
        let by_ms = one_of(&mut self.rng, &[20, 40, 80, 150]);
        let slow = What::Slow {
            who: at_work,
            by_ms,
            ms: 2500,
        };
        if self.rng.below(4) != 0 {
            self.push_when_call(Moment::Read, skip, slow);
        }
        let deaf = match self.rng.below(5) {
            0 | 1 => Some(at_work),
            2 | 3 => Some(Who::Owner),
            _ => None,
        };
        if let Some(who) = deaf {
            let ms = self.ms(1200, 1000);
            self.push_when_call(Moment::Read, skip, What::EtcdAway { who, ms });
        }
        let lose = What::LoseLease { who: at_work };
        let wait_ms = one_of(&mut self.rng, &[0, 1, 3, 10, 100]);
        let steps = vec![(wait_ms, lose)];
        let moment = one_of(&mut self.rng, &[Moment::Read, Moment::Passed]);
        self.push_when_call(moment, skip, What::Row { steps });
    }

    /// A node is suspended with a call in its socket for nearly as long as its lease may last, and is slow after that.
    fn node_stands_still(&mut self) {
        let skip = self.rng.below(20);
        let who = Who::AtWork;
        let by_ms = one_of(&mut self.rng, &[30, 50, 70, 90]);
        self.push_when_call(
            Moment::Sent,
            skip,
            What::Slow {
                who,
                by_ms,
                ms: 6000,
            },
        );
        let pause = What::Pause {
            who,
            machine: self.rng.coin(),
            steps: 0,
            ms: self.ms(2300, 550),
        };
        self.push_when_call(Moment::Sent, skip, pause);
    }

    /// The clients of a node must reconnect, to it or to another one, and the process there is suspended. It resumes
    /// when they have given up.
    fn stands_still_with_a_queue(&mut self) {
        let skip = self.rng.below(20);
        let behind = 1 + self.rng.below(self.node_count as u64 - 1) as usize;
        let who = match self.rng.coin() {
            true => Who::AtWork,
            false => Who::Behind(behind),
        };
        let pause = What::Pause {
            who,
            machine: self.rng.below(4) == 0,
            steps: 0,
            ms: self.ms(6500, 8000),
        };
        let crash = What::Crash {
            who: Who::AtWork,
            keep: Keep::Everything,
            with_power: false,
            down_ms: self.ms(50, 300),
        };
        let steps = match who {
            // It is there again then, and its clients do not come before 2.5 s have passed.
            Who::AtWork => vec![(0, crash), (self.ms(1200, 1200), pause)],
            _ => vec![(0, pause), (self.ms(0, 1500), crash)],
        };
        self.push_when_call(Moment::Sent, skip, What::Row { steps });
    }

    /// Data that a node sends over some of its streams to owners arrives when its clients have continued elsewhere,
    /// after 3.7 s at the latest. Its heartbeats use other streams.
    fn call_stalls_between_nodes(&mut self) {
        // The first calls of a client open the stream.
        let skip = 4 + self.rng.below(20);
        let stall = What::StallCalls {
            who: Who::AtWork,
            ms: self.ms(4200, 2500),
        };
        self.push_when_call(Moment::Read, skip, stall);
    }

    /// The term of a node ends while its call is on its way to the owner. The client has its address at another node at
    /// once, and calls the owner through that one. The owner hears of the end only through the other node's streams,
    /// since etcd does not answer it.
    fn owner_hears_no_end(&mut self) {
        let skip = 4 + self.rng.below(20);
        let who = Who::AtWork;
        // Longer than a client takes to continue, and too short to make a heartbeat or a byte older than a second.
        let by_ms = one_of(&mut self.rng, &[150, 250, 400]);
        let slow = What::Slow {
            who,
            by_ms,
            ms: 2500,
        };
        let away = What::EtcdAway {
            who: Who::Owner,
            ms: self.ms(1200, 1000),
        };
        let wait_ms = one_of(&mut self.rng, &[0, 1, 3, 10]);
        let lose = What::Row {
            steps: vec![(wait_ms, What::LoseLease { who })],
        };
        // All three strike in the moment when a node has read one call.
        for what in [slow, away, lose] {
            self.push_when_call(Moment::Read, skip, what);
        }
    }

    /// A process is suspended, and the clients of another node, which is killed and stays away, connect to it: their
    /// connections and calls wait in the kernel of the process until they have continued elsewhere.
    fn clients_come_to_a_standstill(&mut self) {
        let skip = self.rng.below(20);
        let pause = What::Pause {
            who: self.behind(),
            machine: self.rng.below(4) == 0,
            steps: 0,
            // Clients come after 2.5 s and leave after another 3.7 s.
            ms: self.ms(7500, 4000),
        };
        let crash = What::Crash {
            who: Who::AtWork,
            keep: Keep::Everything,
            with_power: false,
            down_ms: self.ms(3000, 1000),
        };
        let steps = vec![(0, pause), (self.ms(0, 800), crash)];
        self.push_when_call(Moment::Sent, skip, What::Row { steps });
    }

    /// Packets of some connections between nodes are lost, and those of others are not.
    fn connection_stalls(&mut self) {
        let skip = self.rng.below(20);
        let stall = What::StallCalls {
            who: Who::AtWork,
            ms: self.ms(1500, 4500),
        };
        self.push_when_call(Moment::Read, skip, stall);
    }

    /// The owner releases the volume while it has a call, or another node has one for it, and soon gets it back.
    fn owner_comes_back(&mut self) {
        let skip = self.rng.below(20);
        let moment = one_of(&mut self.rng, &Moment::ALL);
        let mut steps = vec![(0, What::Give)];
        for _ in 0..1 + self.rng.below(2) {
            let wait_ms = self.ms(100, 2000);
            steps.push((wait_ms, What::Give));
        }
        let slow = What::Slow {
            who: Who::AtWork,
            by_ms: one_of(&mut self.rng, &[20, 100, 300]),
            ms: 5000,
        };
        if self.rng.coin() {
            steps.insert(0, (0, slow));
        }
        self.push_when_call(moment, skip, What::Row { steps });
    }

    /// A process with a call is killed, and its guardian ends its lease.
    fn killed_and_guarded(&mut self) {
        let skip = self.rng.below(20);
        let moment = one_of(&mut self.rng, &Moment::ALL);
        let who = Who::AtWork;
        let crash = What::Crash {
            who,
            keep: Keep::Everything,
            with_power: false,
            down_ms: self.ms(500, 3000),
        };
        let guard_ms = one_of(&mut self.rng, &[1, 5, 30, 100]);
        let steps = vec![(0, crash), (guard_ms, What::LoseLease { who })];
        self.push_when_call(moment, skip, What::Row { steps });
    }

    /// A call waits somewhere, while its client repeats it and the volume changes its owner.
    fn call_is_late(&mut self) {
        let moment = one_of(&mut self.rng, &Moment::ALL);
        let ms = match self.rng.below(3) {
            0 => self.ms(1300, 1600),
            1 => self.ms(2500, 4000),
            _ => self.ms(6000, 6000),
        };
        let pause = |who, steps| What::Pause {
            who,
            machine: false,
            steps,
            ms,
        };
        let steps = match self.rng.coin() {
            true => 0,
            false => self.rng.below(30),
        };
        let cut_off = |hears, is_heard| What::CutOff {
            who: Who::AtWork,
            hears,
            is_heard,
            ms,
        };
        let late = match self.rng.below(8) {
            0..3 => pause(Who::AtWork, steps),
            3 => pause(Who::Owner, steps),
            4 => cut_off(false, false),
            5 => cut_off(true, false),
            6 => What::Slow {
                who: Who::AtWork,
                by_ms: one_of(&mut self.rng, &[300, 700, 1500]),
                ms,
            },
            _ => What::EtcdAway {
                who: Who::AtWork,
                ms,
            },
        };
        let mut row = vec![(0, late)];
        for _ in 0..self.rng.below(3) {
            let wait_ms = match self.rng.below(3) {
                0 => self.ms(0, 50),
                _ => self.ms(800, 1500),
            };
            let what = match self.rng.below(5) {
                0 | 1 => What::Give,
                2 | 3 => What::LoseLease { who: Who::AtWork },
                _ => What::Crash {
                    who: Who::Owner,
                    keep: Keep::Random,
                    with_power: self.rng.coin(),
                    down_ms: self.ms(1000, 4000),
                },
            };
            row.push((wait_ms, what));
        }
        let then = Box::new(What::Row { steps: row });
        let skip = self.rng.below(20);
        self.push(What::WhenCall { moment, skip, then });
    }

    fn wait(&mut self, least_ms: u64, more_ms: u64) {
        self.at_ms += least_ms + self.rng.below(more_ms);
    }

    fn push(&mut self, what: What) {
        self.events.push(Event {
            at_ms: self.at_ms,
            volume: self.volume,
            what,
        });
    }

    fn push_when(&mut self, verb: Verb, skip: u64, then: What) {
        self.push(What::When {
            verb,
            skip,
            then: Box::new(then),
        });
    }

    fn ms(&mut self, least_ms: u64, more_ms: u64) -> u64 {
        least_ms + self.rng.below(more_ms)
    }

    fn behind(&mut self) -> Who {
        Who::Behind(1 + self.rng.below(self.node_count as u64 - 1) as usize)
    }

    /// Faults that make an owner repair, rebuild, remove and sweep.
    fn trouble(&mut self) {
        let who = self.behind();
        let ms = self.ms(600, 2500);
        let pick = self.rng.u64();
        let what = match self.rng.below(5) {
            0 => What::Crash {
                who,
                keep: Keep::Random,
                with_power: self.rng.coin(),
                down_ms: ms,
            },
            1 => What::DiskSlow {
                who,
                pick,
                by_ms: 700,
                times: 1 + self.rng.below(8),
            },
            2 => What::CutOff {
                who,
                hears: false,
                is_heard: false,
                ms,
            },
            3 => What::DiskDead { who, pick, ms },
            _ => return,
        };
        self.push(what);
        self.wait(0, 2500);
    }

    /// etcd ends the lease of an owner that is alive and busy, while its disks have work.
    fn lease_lost(&mut self) {
        self.trouble();
        for _ in 0..1 + self.rng.below(3) {
            self.wait(100, 900);
            if self.rng.coin() {
                let by_ms = one_of(&mut self.rng, &[30, 100, 300]);
                let times = 1 + self.rng.below(4);
                self.push(What::SlowMembers { by_ms, times });
            }
            let lose = What::LoseLease { who: Who::Owner };
            match self.rng.below(4) {
                0 => self.push(What::Give),
                1 => self.push(lose),
                _ => {
                    let verb = self.verb();
                    let skip = self.rng.below(20);
                    self.push_when(verb, skip, lose);
                }
            }
            self.wait(500, 1500);
        }
    }

    fn verb(&mut self) -> Verb {
        let verbs = [
            Verb::AppendLog,
            Verb::AppendLog,
            Verb::AppendLog,
            Verb::AppendData,
            Verb::Create,
            Verb::Seal,
            Verb::Repair,
            Verb::CreateHidden,
            Verb::CopyFrom,
            Verb::Publish,
            Verb::Remove,
            Verb::Sweep,
        ];
        one_of(&mut self.rng, &verbs)
    }

    /// The owner is suspended in the middle of work, and resumes when another one serves.
    fn owner_paused(&mut self) {
        self.trouble();
        for _ in 0..1 + self.rng.below(2) {
            self.wait(50, 800);
            let pause = What::Pause {
                who: Who::Owner,
                machine: self.rng.below(4) == 0,
                steps: self.rng.below(30),
                ms: self.ms(3200, 3500),
            };
            let verb = self.verb();
            let skip = self.rng.below(12);
            self.push_when(verb, skip, pause);
            self.wait(4000, 3000);
        }
    }

    /// One member of the log misses a group, and soon it is the only one that can be asked.
    fn one_member_lacks(&mut self) {
        self.wait(200, 1000);
        let nth = self.rng.below(2) as usize;
        let cause = match self.rng.below(3) {
            0 => What::BreakMember { nth },
            1 => What::CutMember { nth, ms: 9000 },
            _ => What::SlowMembers {
                by_ms: 4000,
                times: 1 + self.rng.below(3),
            },
        };
        match self.rng.coin() {
            true => self.push(cause),
            false => {
                let skip = self.rng.below(10);
                self.push_when(Verb::AppendLog, skip, cause);
            }
        }
        self.wait(5, 1500);
        let down_ms = self.ms(6000, 4000);
        let keep = one_of(&mut self.rng, &[Keep::Nothing, Keep::Everything]);
        self.push(What::CrashMembers {
            but: Some(nth),
            keep,
            with_power: true,
            down_ms,
        });
        self.wait(6000, 3000);
    }

    /// All members with the last group are away, and others are present.
    fn no_member(&mut self) {
        self.wait(200, 1500);
        let down_ms = self.ms(6000, 6000);
        let with_power = self.rng.below(3) != 0;
        self.push(What::CrashMembers {
            but: None,
            keep: Keep::Nothing,
            with_power,
            down_ms,
        });
        self.wait(6000, 4000);
    }

    /// The owner hears from no other node for longer than its lease, and perhaps late of its last renewal.
    fn alone(&mut self) {
        self.wait(200, 2500);
        let ms = self.ms(6000, 4000);
        let away = What::EtcdAway {
            who: Who::Owner,
            ms,
        };
        let cut = What::CutOff {
            who: Who::Owner,
            hears: false,
            is_heard: false,
            ms,
        };
        let mut steps = vec![(0, away)];
        if self.rng.coin() {
            steps.push((self.rng.below(500), cut));
        }
        if self.rng.coin() {
            // The last answer comes as late as possible.
            let mute_ms = self.ms(1000, 1500);
            let mute = What::EtcdMute {
                who: Who::Owner,
                ms: mute_ms,
            };
            steps[0].0 = mute_ms + 1;
            steps.insert(0, (0, mute));
        }
        if self.rng.coin() {
            // When the machine wakes up, its process does not hear that others went on.
            let pause = What::Pause {
                who: Who::Owner,
                machine: true,
                steps: 0,
                ms: self.ms(4500, 2000),
            };
            steps.push((self.rng.below(300), pause));
        }
        self.push(What::Row { steps });
        self.wait(9000, 4000);
    }

    /// An event that makes the owner change the list of the log's parts.
    fn new_part(&mut self) -> What {
        let nth = self.rng.below(2) as usize;
        match self.rng.below(4) {
            0 => What::CutMember { nth, ms: 3000 },
            1 => What::SlowMembers {
                by_ms: 2500,
                times: 1 + self.rng.below(3),
            },
            _ => What::BreakMember { nth },
        }
    }

    /// A change of the list of the log's parts is lost on its way to etcd or back, or is late, and soon another node
    /// must use the list in etcd.
    fn etcd_forgets(&mut self) {
        self.wait(200, 1500);
        let trouble = match self.rng.below(3) {
            0 => What::EtcdLate {
                who: Who::Owner,
                by_ms: one_of(&mut self.rng, &[500, 1500, 3000]),
                ms: 6000,
            },
            _ => What::EtcdForgets {
                who: Who::Owner,
                done: self.rng.coin(),
                skip: 0,
                count: 1 + self.rng.below(2) as u32,
            },
        };
        self.push(trouble);
        let cause = self.new_part();
        let skip = self.rng.below(10);
        self.push_when(Verb::AppendLog, skip, cause);
        self.wait(100, 2500);
        let last = match self.rng.below(4) {
            0 => What::LoseLease { who: Who::Owner },
            _ => What::Crash {
                who: Who::Owner,
                keep: Keep::Nothing,
                with_power: true,
                down_ms: self.ms(3000, 6000),
            },
        };
        self.push(last);
        self.wait(5000, 3000);
    }

    /// The list of the log's parts that a new owner wrote is lost on its way to etcd, and soon the new owner is lost.
    fn new_log_is_lost(&mut self) {
        self.wait(200, 1500);
        for by in 1..self.node_count {
            self.push(What::EtcdForgets {
                who: Who::Behind(by),
                done: false,
                skip: 1,
                count: 1,
            });
        }
        let after_ms = one_of(&mut self.rng, &[50, 200, 600, 1500]);
        let down_ms = self.ms(6000, 3000);
        self.push(What::CrashNext { after_ms, down_ms });
        let begin = match self.rng.coin() {
            true => What::Give,
            false => What::Crash {
                who: Who::Owner,
                keep: Keep::Random,
                with_power: true,
                down_ms: self.ms(1000, 3000),
            },
        };
        self.push(begin);
        self.wait(12_000, 4000);
    }

    /// The connection to one member of the log breaks while a group is on its way there; soon that is the only member
    /// left.
    fn group_lost_on_its_way(&mut self) {
        self.wait(200, 1500);
        let nth = self.rng.below(2) as usize;
        let crash = What::CrashMembers {
            but: Some(nth),
            keep: Keep::Nothing,
            with_power: true,
            down_ms: self.ms(6000, 4000),
        };
        let break_ms = one_of(&mut self.rng, &[0, 1, 2, 4]);
        let soon_ms = one_of(&mut self.rng, &[1, 3, 8, 20]);
        let steps = vec![(break_ms, What::BreakMember { nth }), (soon_ms, crash)];
        let skip = self.rng.below(40);
        self.push_when(Verb::AppendLog, skip, What::Row { steps });
        self.wait(8000, 4000);
    }

    /// A new owner is suspended while it sweeps unneeded files.
    fn paused_in_sweep(&mut self) {
        self.wait(300, 1500);
        let pause = What::Pause {
            who: Who::Owner,
            machine: false,
            steps: 0,
            ms: self.ms(3200, 2000),
        };
        // Shards on the nodes that are away are then unneeded.
        self.trouble();
        self.wait(1000, 2000);
        let skip = self.rng.below(3);
        self.push_when(Verb::Sweep, skip, pause);
        let begin = match self.rng.coin() {
            true => What::Give,
            false => What::Crash {
                who: Who::Owner,
                keep: Keep::Random,
                with_power: true,
                down_ms: self.ms(500, 1500),
            },
        };
        self.push(begin);
        self.wait(7000, 4000);
    }

    /// The one disk that an owner still reaches makes its promise to another node, and loses its power at once. The
    /// owner has not heard that it lost the volume, and the other node asks for no more promises.
    fn promise_forgotten(&mut self) {
        self.wait(300, 1500);
        let but = 1 + self.rng.below(self.node_count as u64 - 1) as usize;
        let ms = 7000;
        let owner = Who::Owner;
        self.push(What::EtcdAway { who: owner, ms });
        self.push(What::CutFromAllBut {
            who: owner,
            but,
            ms,
        });
        let crash = What::Crash {
            who: Who::Behind(but),
            keep: Keep::Nothing,
            with_power: true,
            down_ms: self.ms(30, 200),
        };
        let pause = What::Pause {
            who: Who::Holder,
            machine: false,
            steps: 0,
            ms: 6000,
        };
        let after_ms = one_of(&mut self.rng, &[1, 3, 10]);
        let steps = vec![(after_ms, pause), (0, crash)];
        let skip = self.rng.below(2);
        self.push_when(Verb::Fence, skip, What::Row { steps });
        self.push(What::LoseLease { who: owner });
        self.wait(9000, 4000);
    }

    /// A node is away for so long that the others rebuild its shards, and comes back.
    fn away_for_long(&mut self) {
        self.has_two_disks = true;
        self.wait(500, 3000);
        let who = self.behind();
        let down_ms = self.ms(15_000, 30_000);
        self.push(What::Crash {
            who,
            keep: Keep::Everything,
            with_power: true,
            down_ms,
        });
        self.wait(20_000, 30_000);
    }

    /// Many events happen between a request of a node to etcd and the answer.
    fn etcd_is_late(&mut self) {
        self.wait(100, 500);
        let by_ms = one_of(&mut self.rng, &[300, 1000, 2000, 3000]);
        let is_all = self.rng.coin();
        for by in 0..self.node_count {
            let who = match by {
                0 => Who::Owner,
                _ => Who::Behind(by),
            };
            if is_all || by == 0 {
                self.push(What::EtcdLate {
                    who,
                    by_ms,
                    ms: 6000,
                });
            }
        }
        if self.rng.coin() {
            let cause = self.new_part();
            self.push(cause);
        }
        if self.rng.coin() {
            let done = self.rng.coin();
            let count = 1 + self.rng.below(3) as u32;
            self.push(What::EtcdUnknown {
                who: Who::Owner,
                done,
                count,
            });
        }
        if self.rng.coin() {
            let after_ms = one_of(&mut self.rng, &[20, 100, 400, 1000]);
            let down_ms = self.ms(1000, 5000);
            self.push(What::CrashNext { after_ms, down_ms });
        }
        self.wait(300, 3000);
        let last = match self.rng.below(4) {
            0 => What::LoseLease { who: Who::Owner },
            1 => What::Give,
            2 => What::EtcdAway {
                who: Who::Owner,
                ms: 8000,
            },
            _ => What::Crash {
                who: Who::Owner,
                keep: Keep::Nothing,
                with_power: true,
                down_ms: self.ms(1000, 6000),
            },
        };
        self.push(last);
        self.wait(4000, 3000);
    }

    /// Disks that have promised lose their power while the earlier owner is suspended, or goes on.
    fn promise_and_power(&mut self) {
        self.wait(200, 800);
        let lose = match self.rng.coin() {
            true => What::LoseLease { who: Who::Owner },
            false => What::Pause {
                who: Who::Owner,
                machine: false,
                steps: 0,
                ms: self.ms(3200, 1500),
            },
        };
        let skip = self.rng.below(4);
        let crash = What::Crash {
            who: self.behind(),
            keep: Keep::Nothing,
            with_power: true,
            down_ms: self.ms(50, 600),
        };
        self.push_when(Verb::Fence, skip, crash);
        if self.rng.coin() {
            // The node that asked for the promise asks for no other.
            let after_ms = one_of(&mut self.rng, &[0, 5, 20, 100]);
            self.push(What::PauseNext { after_ms, ms: 7000 });
        }
        self.push(lose);
        self.wait(6000, 2000);
    }

    /// An owner that is just losing the volume reads around corrupt bytes of a disk and rewrites them.
    fn wrong_reads(&mut self) {
        self.wait(200, 1500);
        for _ in 0..2 {
            let who = self.behind();
            let pick = self.rng.u64();
            self.push(What::DiskFlips {
                who,
                pick,
                times: 60,
            });
        }
        let skip = self.rng.below(5);
        let pause_ms = self.ms(3200, 3000);
        let lose = match self.rng.coin() {
            true => What::LoseLease { who: Who::Owner },
            false => What::Pause {
                who: Who::Owner,
                machine: false,
                steps: 0,
                ms: pause_ms,
            },
        };
        self.push_when(Verb::Repair, skip, lose);
        self.wait(4000, 3000);
    }

    /// Adds another volume with few clients, unless there are many already. Returns the number of the last one.
    fn one_more_volume(&mut self) -> usize {
        if self.volumes.len() < VOLUME_COUNT_MAX {
            let mut load = self.volumes[0].load;
            load.client_count = 1 + self.rng.below(2) as u32;
            load.op_count /= 2;
            self.volumes.push(VolumePlan::lasting(load));
        }
        self.volumes.len() - 1
    }

    fn end_of_owner(&mut self) -> What {
        let down_ms = self.ms(1000, 5000);
        match self.rng.below(4) {
            0 => What::Give,
            1 => What::LoseLease { who: Who::Owner },
            _ => What::Crash {
                who: Who::Owner,
                keep: one_of(&mut self.rng, &[Keep::Nothing, Keep::Everything]),
                with_power: self.rng.coin(),
                down_ms,
            },
        }
    }

    /// A volume gets files of the log that another one had in a term with an equal number. The other has a new owner,
    /// or its log went on elsewhere, and soon this volume has a new owner, too.
    fn second_hand(&mut self) {
        self.wait(500, 2000);
        self.volume = 0;
        for _ in 0..1 + self.rng.below(2) {
            let end = self.end_of_owner();
            self.push(end);
            self.wait(4500, 3000);
        }
        self.volume = self.one_more_volume();
        self.volumes[self.volume].made_at_ms = Some(self.at_ms);
        self.wait(300, 4000);
        for _ in 0..1 + self.rng.below(3) {
            let end = self.end_of_owner();
            self.push(end);
            self.wait(5000, 3000);
        }
    }

    /// All volumes lose their owners in one moment, each in a different way.
    fn all_at_once(&mut self) {
        self.one_more_volume();
        self.wait(500, 3000);
        for _ in 0..1 + self.rng.below(2) {
            if self.rng.coin() {
                for volume in 0..self.volumes.len() {
                    self.volume = volume;
                    let by_ms = one_of(&mut self.rng, &[50, 200]);
                    let times = 2 + self.rng.below(8);
                    self.push(What::SlowMembers { by_ms, times });
                }
                self.wait(0, 60);
            }
            for volume in 0..self.volumes.len() {
                self.volume = volume;
                let end = self.end_of_owner();
                self.push(end);
                self.wait(0, 30);
            }
            self.wait(5000, 4000);
        }
    }

    /// A volume is deleted while another node takes it over, and other volumes reuse its files.
    fn deleted_in_a_takeover(&mut self) {
        let volume = self.one_more_volume();
        self.wait(1000, 3000);
        let begun_ms = self.at_ms;
        let wait_ms = one_of(&mut self.rng, &[0, 5, 100, 2000, 3500]);
        self.volumes[volume].made_at_ms = None;
        self.volumes[volume].lives_ms = Some(begun_ms + wait_ms);
        self.volume = volume;
        let end = self.end_of_owner();
        self.push(end);
        self.wait(3000, 2000);
        self.volume = 0;
        self.trouble();
        let end = self.end_of_owner();
        self.push(end);
        self.wait(5000, 3000);
    }

    /// A node with shards or a part of the log is suspended during a request of an owner, and resumes when the volume
    /// has another owner: the waiting requests are then done, or refused.
    fn stopped_with_calls(&mut self) {
        self.trouble();
        self.wait(100, 2000);
        let verb = self.verb();
        let skip = self.rng.below(20);
        let pause = What::Pause {
            who: one_of(&mut self.rng, &[Who::AtWork, Who::AtWork, Who::Owner]),
            machine: self.rng.below(4) == 0,
            steps: self.rng.below(40),
            ms: 2000 + pause_ms(&mut self.rng),
        };
        self.push_when(verb, skip, pause);
        self.wait(100, 1500);
        let end = self.end_of_owner();
        self.push(end);
        self.wait(5000, 20_000);
    }

    /// etcd has no quorum for long, while an owner changes its log or is lost, and is back when no node has a lease.
    fn quorum_lost(&mut self) {
        self.wait(500, 2500);
        let lost = What::EtcdNoQuorum {
            keeps_leases: self.rng.coin(),
            ms: quorum_ms(&mut self.rng),
        };
        match self.rng.coin() {
            true => self.push(lost),
            false => {
                let skip = self.rng.below(10);
                let part = self.new_part();
                let steps = vec![(0, part), (self.rng.below(30), lost)];
                self.push_when(Verb::AppendLog, skip, What::Row { steps });
            }
        }
        self.wait(0, 4000);
        if self.rng.coin() {
            let end = self.end_of_owner();
            self.push(end);
        }
        self.wait(8000, 15_000);
    }
}
