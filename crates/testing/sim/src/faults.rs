//! Faults of disks, as data, and their execution.
//!
//! Owns: the rule or event of a simulated disk for each fault. Must not know: the faults that a scenario may have
//! (`scenario`), the reaction of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::crc32c;
use cairn_base::env::{BoxFuture, Clock};
use cairn_testkit::{Fault as DiskFault, FaultRule, ManualClock, MemDisk, OpKind, Pace, Rng};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::exec::Trace;

/// An event or a period of trouble on one disk in one life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub disk: usize,
    /// It strikes after this many operations of the disk (of the kinds that it can strike) in this life.
    pub after: u64,
    /// Decides details: which bit, where.
    pub pick: u64,
    pub kind: FaultKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    ReadFails {
        times: u64,
    },
    /// As [`FaultKind::ReadFails`], on shards, counted from the start of background work.
    WorkReadFails {
        times: u64,
    },
    WriteFails {
        times: u64,
    },
    /// Fails after a part was written.
    WriteTorn,
    /// The dirty bytes are dropped, and the next sync succeeds.
    SyncFails {
        times: u64,
    },
    /// One bit, in a read.
    FlipRead,
    /// One bit, at rest.
    FlipAtRest,
    MisdirectRead,
    /// Reads return older contents.
    StaleRead {
        times: u64,
    },
    LoseWrite {
        times: u64,
    },
    MisdirectWrite,
    /// Every operation fails from then on.
    Dead,
    Slow {
        ms: u64,
        times: u64,
    },
    Hang {
        ms: u64,
    },
    /// No file can be created.
    Full {
        times: u64,
    },
    /// No write has space, anywhere.
    FullWrites {
        times: u64,
    },
    /// One bit, in a write.
    FlipWrite,
    /// As [`FaultKind::SyncFails`], on shards only.
    ShardSyncFails {
        times: u64,
    },
    /// As [`FaultKind::FlipAtRest`], in a shard, when background work begins.
    WorkFlipAtRest,
    /// A sync of a folder fails.
    FolderSyncFails {
        times: u64,
    },
    /// The wall clock steps.
    ClockStep {
        seconds: i64,
    },
}

impl FaultKind {
    /// All kinds, by name.
    pub const NAMES: [&str; 21] = [
        "read_fails",
        "work_read_fails",
        "write_fails",
        "write_torn",
        "sync_fails",
        "shard_sync_fails",
        "folder_sync_fails",
        "flip_read",
        "flip_write",
        "flip_at_rest",
        "work_flip_at_rest",
        "misdirect_read",
        "stale_read",
        "lose_write",
        "misdirect_write",
        "dead",
        "slow",
        "hang",
        "full",
        "full_writes",
        "clock_step",
    ];

    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::ReadFails { .. } => "read_fails",
            FaultKind::WorkReadFails { .. } => "work_read_fails",
            FaultKind::WriteFails { .. } => "write_fails",
            FaultKind::WriteTorn => "write_torn",
            FaultKind::SyncFails { .. } => "sync_fails",
            FaultKind::ShardSyncFails { .. } => "shard_sync_fails",
            FaultKind::WorkFlipAtRest => "work_flip_at_rest",
            FaultKind::FolderSyncFails { .. } => "folder_sync_fails",
            FaultKind::FlipRead => "flip_read",
            FaultKind::FlipWrite => "flip_write",
            FaultKind::FlipAtRest => "flip_at_rest",
            FaultKind::MisdirectRead => "misdirect_read",
            FaultKind::StaleRead { .. } => "stale_read",
            FaultKind::LoseWrite { .. } => "lose_write",
            FaultKind::MisdirectWrite => "misdirect_write",
            FaultKind::Dead => "dead",
            FaultKind::Slow { .. } => "slow",
            FaultKind::Hang { .. } => "hang",
            FaultKind::Full { .. } => "full",
            FaultKind::FullWrites { .. } => "full_writes",
            FaultKind::ClockStep { .. } => "clock_step",
        }
    }
}

/// Number of strikes of each kind of fault.
#[derive(Clone, Default)]
pub struct Fired(Arc<Mutex<BTreeMap<&'static str, Arc<AtomicU64>>>>);

impl Fired {
    fn counter(&self, kind: &FaultKind) -> Arc<AtomicU64> {
        self.0.lock().entry(kind.name()).or_default().clone()
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.0.lock();
        let counts = counters.iter();
        counts
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// An event after a number of operations of the disk.
#[derive(Clone, Copy)]
enum Event {
    Remember,
    FlipAtRest { pick: u64, only_data: bool },
    Slow { ms: u64, times: u64 },
    StepClock { seconds: i64 },
}

struct PaceState {
    rng: Rng,
    op_count: u64,
    events: Vec<(u64, Event, Arc<AtomicU64>)>,
    slow: (u64, u64),
}

/// Durations of one disk's operations, and events between them.
struct DiskPace {
    index: usize,
    is_paced: bool,
    is_uneven: bool,
    removals: Arc<AtomicU64>,
    clock: ManualClock,
    trace: Trace,
    disk: Arc<MemDisk>,
    state: Mutex<PaceState>,
}

/// Inputs for arming the faults of one disk in one life.
pub struct Arming {
    pub index: usize,
    /// Silent faults strike shards only, not the metadata.
    pub only_data: bool,
    pub is_paced: bool,
    pub is_uneven: bool,
    /// Counts deletions of shards.
    pub removals: Arc<AtomicU64>,
    pub fired: Fired,
    pub seed: u64,
    pub clock: ManualClock,
    pub trace: Trace,
}

/// A fault that waits for background work.
pub struct AtWork {
    disk: Arc<MemDisk>,
    what: AtWorkWhat,
    fired: Arc<AtomicU64>,
}

enum AtWorkWhat {
    Rule(FaultRule),
    Flip { pick: u64 },
}

impl AtWork {
    pub fn arm(&self) {
        match &self.what {
            AtWorkWhat::Rule(rule) => self.disk.inject_counted(rule.clone(), self.fired.clone()),
            AtWorkWhat::Flip { pick } => {
                let flipped = self.disk.flip_some_bit("shards/", *pick);
                self.fired
                    .fetch_add(u64::from(flipped.is_some()), Ordering::Relaxed);
            }
        }
    }
}

/// The faults that are armed when background work begins.
pub fn at_work(disks: &[Arc<MemDisk>], faults: &[Fault], fired: &Fired) -> Vec<AtWork> {
    let waiting = faults.iter().filter_map(|fault| {
        let what = match fault.kind {
            FaultKind::WorkReadFails { times } => AtWorkWhat::Rule(FaultRule {
                kind: Some(OpKind::Read),
                name_part: "shards/".to_owned(),
                skip: fault.after,
                times,
                fault: DiskFault::Io,
            }),
            FaultKind::WorkFlipAtRest => AtWorkWhat::Flip { pick: fault.pick },
            _ => return None,
        };
        Some(AtWork {
            disk: disks.get(fault.disk)?.clone(),
            what,
            fired: fired.counter(&fault.kind),
        })
    });
    waiting.collect()
}

/// Arms the faults of this disk.
pub fn arm(disk: &Arc<MemDisk>, faults: &[Fault], arming: Arming) {
    let Arming {
        index,
        only_data,
        is_paced,
        is_uneven,
        removals,
        fired,
        seed,
        clock,
        trace,
    } = arming;
    let mut events = Vec::new();
    for fault in faults.iter().filter(|fault| fault.disk == index) {
        let rule = |kind: Option<OpKind>, times: u64, what: DiskFault| FaultRule {
            kind,
            name_part: if only_data { "shards/" } else { "" }.to_owned(),
            skip: fault.after,
            times,
            fault: what,
        };
        let counter = fired.counter(&fault.kind);
        let inject = |rule: FaultRule| disk.inject_counted(rule, counter.clone());
        let pick = fault.pick;
        let blocks = 1 + pick % 600;
        match fault.kind {
            FaultKind::ReadFails { times } => {
                inject(rule(Some(OpKind::Read), times, DiskFault::Io));
            }
            FaultKind::WorkReadFails { .. } | FaultKind::WorkFlipAtRest => {}
            FaultKind::WriteFails { times } => {
                let kind = write_kind(pick);
                inject(rule(Some(kind), times, DiskFault::Io));
            }
            FaultKind::WriteTorn => {
                inject(rule(None, 1, DiskFault::Torn { seed: pick }));
            }
            FaultKind::SyncFails { times } => {
                inject(rule(Some(OpKind::Sync), times, DiskFault::Io));
            }
            FaultKind::ShardSyncFails { times } => {
                inject(FaultRule {
                    name_part: "shards/".to_owned(),
                    ..rule(Some(OpKind::Sync), times, DiskFault::Io)
                });
            }
            FaultKind::FolderSyncFails { times } => {
                inject(rule(Some(OpKind::SyncFolder), times, DiskFault::Io));
            }
            FaultKind::FlipWrite => {
                inject(rule(None, 1, DiskFault::FlipWrite { bit: pick }));
            }
            FaultKind::FlipRead => {
                inject(rule(None, 1, DiskFault::FlipRead { bit: pick }));
            }
            FaultKind::MisdirectRead => {
                inject(rule(None, 1, DiskFault::MisdirectRead { blocks }));
            }
            FaultKind::StaleRead { times } => {
                events.push((fault.after / 2, Event::Remember, Arc::default()));
                inject(rule(None, times, DiskFault::StaleRead));
            }
            FaultKind::LoseWrite { times } => {
                inject(rule(None, times, DiskFault::LoseWrite));
            }
            FaultKind::MisdirectWrite => {
                inject(rule(None, 1, DiskFault::MisdirectWrite { blocks }));
            }
            FaultKind::Dead => inject(rule(None, u64::MAX, DiskFault::Io)),
            FaultKind::Full { times } => {
                inject(rule(Some(OpKind::Create), times, DiskFault::Full));
            }
            FaultKind::FullWrites { times } => {
                for kind in [OpKind::Write, OpKind::WriteDurable, OpKind::SetLen] {
                    inject(rule(Some(kind), times, DiskFault::Full));
                }
            }
            FaultKind::FlipAtRest => {
                events.push((fault.after, Event::FlipAtRest { pick, only_data }, counter));
            }
            FaultKind::Slow { ms, times } => {
                events.push((fault.after, Event::Slow { ms, times }, counter));
            }
            FaultKind::Hang { ms } => {
                events.push((fault.after, Event::Slow { ms, times: 1 }, counter));
            }
            FaultKind::ClockStep { seconds } => {
                events.push((fault.after, Event::StepClock { seconds }, counter));
            }
        }
    }
    disk.pace_with(Arc::new(DiskPace {
        index,
        is_paced,
        is_uneven,
        removals,
        clock,
        trace,
        disk: disk.clone(),
        state: Mutex::new(PaceState {
            rng: Rng::new(seed),
            op_count: 0,
            events,
            slow: (0, 0),
        }),
    }));
}

fn write_kind(pick: u64) -> OpKind {
    if pick & 1 == 0 {
        OpKind::Write
    } else {
        OpKind::WriteDurable
    }
}

impl DiskPace {
    fn play(&self, event: Event, fired: &AtomicU64, state: &mut PaceState) {
        let mut has_struck = true;
        match event {
            Event::Remember => self.disk.remember(),
            Event::FlipAtRest { pick, only_data } => {
                let part = if only_data { "shards/" } else { "" };
                let flipped = self.disk.flip_some_bit(part, pick);
                tracing::debug!(disk = self.index, ?flipped, "a bit is flipped at rest");
                has_struck = flipped.is_some();
            }
            Event::Slow { ms, times } => state.slow = (ms, times),
            Event::StepClock { seconds } => self.clock.step_wall(seconds),
        }
        fired.fetch_add(u64::from(has_struck), Ordering::Relaxed);
    }

    /// Duration of this moment of an operation.
    fn delay(&self, state: &mut PaceState) -> Duration {
        let (ms, times) = state.slow;
        if times > 0 {
            state.slow = (ms, times - 1);
            return Duration::from_millis(ms);
        }
        if self.is_uneven && state.rng.below(48) == 0 {
            return Duration::from_micros(1000 + state.rng.below(40_000));
        }
        match state.rng.below(4) {
            0 => Duration::from_micros(10 + state.rng.below(400)),
            1 => Duration::from_micros(1 + state.rng.below(20)),
            _ => Duration::ZERO,
        }
    }
}

impl Pace for DiskPace {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        self.trace.note_text(name);
        self.trace.note(&[self.index as u64, kind as u64]);
        if matches!(kind, OpKind::Rename | OpKind::Remove) && name.starts_with("shards/") {
            self.removals.fetch_add(1, Ordering::Relaxed);
        }
        let delay = {
            let mut state = self.state.lock();
            state.op_count += 1;
            // Every operation pauses twice.
            let now = state.op_count / 2;
            let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut state.events)
                .into_iter()
                .partition(|(at, ..)| *at <= now);
            state.events = later;
            for (_, event, fired) in due {
                self.play(event, &fired, &mut state);
            }
            if !self.is_paced && state.slow.1 == 0 {
                return None;
            }
            self.delay(&mut state)
        };
        (!delay.is_zero()).then(|| self.clock.sleep(delay))
    }

    fn touch(&self, offset: u64, len_bytes: u64, written: &[u8]) {
        self.trace
            .note(&[offset, len_bytes, u64::from(crc32c(written))]);
    }
}
