//! Scenarios: everything that a run depends on, as plain data that follows from a seed.
//!
//! Owns: the draws, their chances, and staying within the failures that the engine promises to survive. Must not know:
//! the engine beyond its settings, the execution of faults.

pub use cairn_formats::settings::Protection;
use cairn_testkit::{Crash, Rng};
use serde::{Deserialize, Serialize};

use crate::exec::Picking;
use crate::faults::{Fault, FaultKind};

/// One run: a pool, and its events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub seed: u64,
    pub shape: Shape,
    pub lives: Vec<Life>,
}

/// The kind of trouble in a scenario. It determines the guarantees of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Crashes only: every operation succeeds, every byte survives with M disks gone.
    Crashes,
    /// Also disks that run full: operations may be refused for that.
    Full,
    /// Also up to M disks that fail and lie in any way: nothing is lost, reads succeed.
    BadDisks,
    /// Errors of up to M disks, or of the only one, none of them silent: operations may fail, acknowledged data
    /// survives.
    Errors,
    /// More than M disks with corrupt data: reads may fail, and never return other bytes.
    Beyond,
}

/// The pool, the volume, and the load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    pub trouble: Trouble,
    pub disk_count: usize,
    pub disk_mib: u64,
    pub protection: Protection,
    /// Records of 16 KiB instead of up to 1 MiB.
    pub small_records: bool,
    pub compress: bool,
    pub dirty_kib: u64,
    pub log_file_kib: u64,
    pub log_kib_max: u64,
    pub cache_kib: u64,
    pub client_count: usize,
    pub picking: Picking,
    pub has_threads: bool,
    /// Clients mostly write and commit, and mostly to one file.
    pub is_data_heavy: bool,
    /// Whether disk operations take time.
    pub is_paced: bool,
    /// Disks with the trouble.
    pub bad_disks: Vec<usize>,
    /// Sometimes a disk operation takes very much longer than others.
    #[serde(default)]
    pub is_uneven: bool,
    /// Clients change owners, too.
    #[serde(default)]
    pub has_owners: bool,
    /// Each start has the log forget the earlier ones.
    #[serde(default)]
    pub forgets_starts: bool,
    /// Time to wait for a lost disk before its shards are rebuilt.
    #[serde(default)]
    pub rebuild_delay_ms: u64,
    #[serde(default)]
    pub takes_snapshots: bool,
    #[serde(default)]
    pub sets_quotas: bool,
    /// Directories get and lose policies, and data is converted to them.
    #[serde(default)]
    pub sets_policies: bool,
    /// Clients also write depending on present contents.
    #[serde(default)]
    pub compares: bool,
    /// Clients put objects, too.
    #[serde(default)]
    pub puts: bool,
    /// The volume is encrypted.
    #[serde(default)]
    pub is_encrypted: bool,
    /// Clients write many files so small that the metadata holds their bytes.
    #[serde(default)]
    pub has_tiny_files: bool,
    /// Reads use a read cache, which is untrusted.
    #[serde(default)]
    pub has_read_cache: bool,
    /// Bytes that are in a record are not written again, and clients write equal bytes repeatedly.
    #[serde(default)]
    pub dedupes: Dedupes,
    /// Cold data goes to an object store, and comes back.
    #[serde(default)]
    pub tiers: Tiers,
    /// Scenarios from before this field play as before.
    #[serde(default)]
    pub space: Space,
}

/// The object store for cold data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiers {
    pub trouble: TierTrouble,
    /// Interval at which the volume looks for cold data.
    pub interval_ms: u64,
}

/// Faults of the object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierTrouble {
    /// There is no store.
    #[default]
    None,
    /// No faults, but sometimes slow.
    Sound,
    /// It is away, silent or slow, loses answers, corrupts and loses uploads, corrupts downloads, and lists late:
    /// nothing is lost, and reads may fail.
    Flaky,
    /// It also loses objects that it had accepted and returned: reads of those fail, and no others.
    Loses,
}

impl TierTrouble {
    pub fn misbehaves(self) -> bool {
        matches!(self, Self::Flaky | Self::Loses)
    }

    /// One in this many requests fails.
    pub fn one_in(self) -> u64 {
        match self {
            Self::None | Self::Sound => u64::MAX,
            Self::Flaky => 12,
            Self::Loses => 40,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dedupes {
    #[default]
    Off,
    On,
    Verify,
}

/// How segments come and go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Space {
    /// Size of a shard.
    pub shard_kib: u64,
    /// Number of files of deleted shards that are kept for new ones.
    pub recycled_files_max: usize,
    pub gc_interval_ms: u64,
    pub gc_garbage_percent: u64,
    /// As on a server: a fourth of the reserve may be garbage.
    pub gc_is_lazy: bool,
    pub gc_seal_idle_ms: u64,
    /// Clients overwrite present data, and read it meanwhile.
    pub is_overwriting: bool,
}

/// From a start to the next crash or stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Life {
    /// Operations of each client.
    pub op_count: u32,
    /// Longest pause between two operations of a client.
    pub pause_ms_max: u64,
    pub faults: Vec<Fault>,
    /// Time without clients at the end, if there is no crash before.
    pub idle_seconds: u64,
    pub end: End,
    /// Before it begins, also check which data is readable without these disks.
    pub without: Vec<usize>,
    /// Background work, in addition to the unfinished work of earlier lives.
    #[serde(default)]
    pub work: Option<Work>,
}

/// Work on the pool's disks while clients work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    pub kind: WorkKind,
    /// Decides the disk, among those that the promises allow.
    pub pick: u64,
    /// The power goes just after this many steps of moves and deletions of shards since the work began, instead of
    /// after operations of clients.
    pub power_off_after: Option<u32>,
    /// It begins when clients have begun this many operations: the data written by then moves.
    #[serde(default)]
    pub after_ops: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// A disk is drained and removed; a new one takes its place, or none if the others are enough.
    Drain { has_spare: bool },
    /// A disk is missing from the start on: its shards are rebuilt from the others.
    Rebuild {
        has_spare: bool,
        /// The disk was not declared lost for good, and the next life has it again, unchanged.
        comes_back: bool,
    },
    /// All shards and all records are checked and repaired.
    Scrub,
    /// A new disk takes logs and metadata, and no data.
    Journal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// This many steps of the executor after the clients began this many operations; at the end of the idle time if
    /// there are fewer. With 0 operations the start itself is cut off.
    Crash {
        after_ops: u32,
        then_steps: u64,
        keep: Keep,
        /// Later, at the worst moment: when a shard is deleted while some change of the metadata is not durable yet.
        #[serde(default)]
        at_removal: bool,
    },
    Close,
}

/// The unsynced data that a crash leaves; see [`Crash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    Nothing,
    Everything,
    Random,
}

impl Keep {
    pub fn mode(self) -> Crash {
        match self {
            Keep::Nothing => Crash::LoseUnsynced,
            Keep::Everything => Crash::KeepUnsynced,
            Keep::Random => Crash::Random,
        }
    }
}

impl Shape {
    /// Number of disks that may be lost.
    pub fn tolerated(&self) -> usize {
        self.tolerated_of(self.disk_count)
    }

    /// Number of disks that may be lost without loss of data that is written while the pool has `disk_count` disks.
    pub fn tolerated_of(&self, disk_count: usize) -> usize {
        match self.protection {
            Protection::Default => match disk_count {
                0 | 1 => 0,
                2 => 1,
                _ => 2,
            },
            Protection::None => 0,
            Protection::Plus(losses) => usize::from(losses),
            Protection::Mirror(copies) => usize::from(copies).saturating_sub(1),
        }
    }

    /// Copies of the metadata in a pool of `disk_count` disks, as a server keeps them.
    pub fn metadata_copies(&self, disk_count: usize) -> usize {
        let of_pool = match disk_count {
            0 | 1 => 0,
            2 => 1,
            _ => 2,
        };
        1 + self.tolerated_of(disk_count).max(of_pool)
    }

    /// Whether all acknowledged data survives without any set of M disks that includes those with the trouble.
    pub fn promises_losses(&self) -> bool {
        let is_promised = matches!(
            self.trouble,
            Trouble::Crashes | Trouble::BadDisks | Trouble::Full
        );
        is_promised && self.tolerated() > 0
    }
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x005e_ed0f_ca12_2026);
        let mut shape = draw_shape(&mut rng);
        // Random numbers of their own, so that a seed keeps its other draws.
        shape.space = draw_space(&mut Rng::new(seed ^ 0x9a7b_a9e5), &shape);
        shape.compares = Rng::new(seed ^ 0x6c75_6e73).below(4) == 0;
        shape.puts = Rng::new(seed ^ 0x7075_7473).below(3) == 0;
        let mut aim = Rng::new(seed ^ 0x2b7e_1516);
        let rebuilds_past_errors = aim.below(8) == 0 && shape.tolerated() > 1;
        if rebuilds_past_errors {
            aim_at_rebuild(&mut aim, &mut shape);
        }
        let mut more = Rng::new(seed ^ 0x1df3_c04b);
        shape.is_uneven = shape.is_paced && more.below(3) == 0;
        let life_count = 2 + rng.below(3);
        let mut lives: Vec<Life> = (0..life_count)
            .map(|index| draw_life(&mut rng, &shape, index + 1 == life_count))
            .collect();
        for life in &mut lives {
            if let End::Crash { at_removal, .. } = &mut life.end {
                *at_removal = more.below(4) == 0;
            }
        }
        let mut kinds = Rng::new(seed ^ 0x0f1b_77d3);
        shape.has_owners = kinds.coin();
        for life in &mut lives {
            life.faults.extend(draw_newer(&mut kinds, &shape));
        }
        let mut work = Rng::new(seed ^ 0x6d0f_e5a1);
        if work.coin() {
            let mut begins = Rng::new(seed ^ 0x35c1_8e2d);
            aim_at_work(&mut begins, &mut shape);
            for (index, life) in lives.iter_mut().enumerate() {
                life.work = draw_work(&mut work, &shape);
                let Some(drawn) = &mut life.work else {
                    // It continues the work of the previous life.
                    if let End::Crash { at_removal, .. } = &mut life.end {
                        *at_removal = begins.coin();
                    }
                    continue;
                };
                drawn.after_ops = draw_begin(&mut begins, life.op_count, &shape, index == 0);
                let drawn = *drawn;
                life.faults
                    .extend(draw_beside(&mut work, &shape, drawn.kind));
                // After a rewrite the old segment is deleted: that is the worst moment.
                if let End::Crash { at_removal, .. } = &mut life.end
                    && drawn.power_off_after.is_none()
                {
                    *at_removal = work.below(3) != 0;
                }
            }
        }
        if let [before, life, ..] = lives.as_mut_slice()
            && rebuilds_past_errors
        {
            run_to_its_end(&shape, before);
            run_to_its_end(&shape, life);
            draw_rebuild_past_errors(&mut aim, &shape, life);
        }
        let mut starts = Rng::new(seed ^ 0x7c0a_551e);
        shape.forgets_starts = starts.below(4) == 0;
        if shape.forgets_starts {
            aim_at_starts(&mut starts, &mut lives);
        }
        let mut aims = Rng::new(seed ^ 0x5d0e_93a7);
        for life in &mut lives {
            aim_at_syncs(&mut aims, &shape, life);
            if !rebuilds_past_errors {
                aim_at_scrubs(&mut aims, &shape, life);
            }
        }
        let mut delays = Rng::new(seed ^ 0x41d8_70b3);
        shape.rebuild_delay_ms = one_of(&mut delays, &[0, 0, 0, 1500]);
        shape.takes_snapshots = Rng::new(seed ^ 0x5a45_b075).coin();
        shape.sets_quotas = Rng::new(seed ^ 0x90a7_a5e7).coin();
        // No seed that finds a hard planted bug: those seeds keep their runs.
        shape.sets_policies = Rng::new(seed ^ 0x7086_bacb).below(3) == 0;
        shape.is_encrypted = Rng::new(seed ^ 0x6b65_7973).below(4) == 0;
        // Again none of those seeds.
        shape.has_tiny_files = Rng::new(seed ^ 0x7469_6e91_6d1a).below(3) == 0;
        shape.has_read_cache = Rng::new(seed ^ 0x6361_6368).below(3) == 0;
        shape.dedupes = match Rng::new(seed ^ 0x6465_6475).below(8) {
            0 | 1 => Dedupes::On,
            2 => Dedupes::Verify,
            _ => Dedupes::Off,
        };
        aim_at_tiers(&mut Rng::new(seed ^ TIERS_PICK), &mut shape);
        Self { seed, shape, lives }
    }

    /// Whether all sets of disks that may be lost are taken away after the last life.
    pub fn has_all_sets(&self) -> bool {
        self.shape.promises_losses() && Rng::new(self.seed ^ 0x0a11_5e75).below(10) == 0
    }

    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.lives.iter().flat_map(|life| &life.faults)
    }
}

/// No seed that finds a hard planted bug has tiers: those seeds keep their runs.
const TIERS_PICK: u64 = 0x7473_c0cf;

/// One in four has an object store. Then segments are small, and sealed early, so that some are cold.
fn aim_at_tiers(rng: &mut Rng, shape: &mut Shape) {
    if rng.below(4) != 0 {
        return;
    }
    shape.tiers = Tiers {
        trouble: one_of(
            rng,
            &[
                TierTrouble::Sound,
                TierTrouble::Flaky,
                TierTrouble::Flaky,
                TierTrouble::Loses,
            ],
        ),
        interval_ms: one_of(rng, &[20, 200, 2000]),
    };
    shape.is_data_heavy |= rng.coin();
    shape.space.gc_interval_ms = shape.space.gc_interval_ms.clamp(50, 500);
    shape.space.gc_seal_idle_ms = one_of(rng, &[50, 500, 3000]);
    if shape.small_records {
        shape.space.shard_kib = one_of(rng, &[64, 128, 512]);
    }
}

/// The power goes while the journal of the previous life is rewritten into the log.
fn aim_at_starts(rng: &mut Rng, lives: &mut [Life]) {
    for life in lives.iter_mut().skip(1) {
        let is_chosen = rng.coin() && life.work.is_none();
        if let End::Crash {
            after_ops,
            then_steps,
            at_removal: false,
            ..
        } = &mut life.end
            && is_chosen
        {
            *after_ops = 0;
            *then_steps = rng.below(60);
        }
    }
}

fn draw_shape(rng: &mut Rng) -> Shape {
    let disk_count = one_of(rng, &[1, 1, 2, 3, 4, 6, 6]);
    let protection = match rng.below(4) {
        0 if disk_count >= 2 => Protection::Mirror(2),
        1 if disk_count >= 3 => Protection::Plus(1),
        2 if disk_count == 1 => Protection::None,
        _ => Protection::Default,
    };
    let trouble = one_of(
        rng,
        &[
            Trouble::Crashes,
            Trouble::Crashes,
            Trouble::Crashes,
            Trouble::Full,
            Trouble::BadDisks,
            Trouble::BadDisks,
            Trouble::Errors,
            Trouble::Beyond,
        ],
    );
    let log_file_kib = one_of(rng, &[512, 1024]);
    let mut shape = Shape {
        trouble,
        disk_count,
        disk_mib: one_of(rng, &[64, 96, 512]),
        protection,
        small_records: rng.coin(),
        compress: rng.coin(),
        dirty_kib: one_of(rng, &[1 << 10, 64 << 10, 256 << 10]),
        log_file_kib,
        log_kib_max: log_file_kib * one_of(rng, &[2, 6, 512]),
        cache_kib: one_of(rng, &[0, 64, 4096]),
        client_count: 1 + rng.below(4) as usize,
        picking: one_of(rng, &[Picking::Uniform, Picking::Priority]),
        has_threads: rng.coin(),
        is_data_heavy: rng.below(3) == 0,
        is_paced: rng.below(4) != 0,
        is_uneven: false,
        has_owners: false,
        forgets_starts: false,
        rebuild_delay_ms: 0,
        takes_snapshots: false,
        sets_quotas: false,
        sets_policies: false,
        compares: false,
        puts: false,
        is_encrypted: false,
        has_tiny_files: false,
        has_read_cache: false,
        dedupes: Dedupes::Off,
        tiers: Tiers::default(),
        bad_disks: Vec::new(),
        space: Space::default(),
    };
    if shape.trouble == Trouble::BadDisks && shape.tolerated() == 0 {
        shape.trouble = Trouble::Crashes;
    }
    if shape.trouble != Trouble::Full && shape.disk_mib < 512 && shape.disk_count < 3 {
        // Enough that sparse segments of a few lives do not fill it.
        shape.disk_mib = 128;
    }
    let bad_count = match shape.trouble {
        // The log has fewer copies while a disk has no space for it: the full disks are the ones to lose.
        Trouble::Errors | Trouble::Full => shape.tolerated().max(1),
        Trouble::BadDisks => 1 + rng.below(shape.tolerated() as u64) as usize,
        Trouble::Beyond => (shape.tolerated() + 1).min(disk_count),
        _ => 0,
    };
    shape.bad_disks = draw_disks(rng, disk_count, bad_count, &[]);
    shape
}

impl Default for Space {
    /// As on a server, except for the size of the disks.
    fn default() -> Self {
        Self {
            shard_kib: 4096,
            recycled_files_max: 8,
            gc_interval_ms: 2000,
            gc_garbage_percent: 25,
            gc_is_lazy: true,
            gc_seal_idle_ms: 60_000,
            is_overwriting: false,
        }
    }
}

fn draw_space(rng: &mut Rng, shape: &Shape) -> Space {
    if rng.below(3) == 0 {
        return Space::default();
    }
    // The largest record must fit.
    let shard_kib: &[u64] = match shape.small_records {
        true => &[64, 128, 512],
        false => &[1536, 2048],
    };
    Space {
        shard_kib: one_of(rng, shard_kib),
        recycled_files_max: one_of(rng, &[0, 1, 8]),
        gc_interval_ms: one_of(rng, &[1, 5, 50, 500]),
        gc_garbage_percent: one_of(rng, &[0, 2, 10, 25]),
        gc_is_lazy: false,
        gc_seal_idle_ms: one_of(rng, &[1, 100, 3000, 60_000]),
        is_overwriting: rng.coin(),
    }
}

/// `count` disks, those in `first` before others.
fn draw_disks(rng: &mut Rng, disk_count: usize, count: usize, first: &[usize]) -> Vec<usize> {
    let mut chosen = first.to_vec();
    chosen.truncate(count);
    while chosen.len() < count {
        let disk = rng.below(disk_count as u64) as usize;
        if !chosen.contains(&disk) {
            chosen.push(disk);
        }
    }
    chosen.sort_unstable();
    chosen
}

fn draw_life(rng: &mut Rng, shape: &Shape, is_last: bool) -> Life {
    let op_count = 5 + rng.below(40) as u32;
    let all_ops = op_count * shape.client_count as u32;
    let end = if !is_last && rng.below(8) == 0 {
        End::Close
    } else {
        End::Crash {
            after_ops: match rng.below(8) {
                0 => 0,
                1 => all_ops * 2,
                _ => 1 + rng.below(u64::from(all_ops)) as u32,
            },
            then_steps: one_of(rng, &[0, 3, 20, 100, 400, 1500]) + rng.below(50),
            keep: one_of(
                rng,
                &[Keep::Nothing, Keep::Everything, Keep::Random, Keep::Random],
            ),
            at_removal: false,
        }
    };
    let without = if shape.promises_losses() && rng.coin() {
        draw_disks(rng, shape.disk_count, shape.tolerated(), &shape.bad_disks)
    } else {
        Vec::new()
    };
    let faults = draw_faults(rng, shape);
    Life {
        op_count,
        pause_ms_max: one_of(rng, &[0, 5, 300, 3000]),
        faults,
        idle_seconds: one_of(rng, &[0, 1, 5, 130]),
        end,
        without,
        work: None,
    }
}

fn draw_work(rng: &mut Rng, shape: &Shape) -> Option<Work> {
    if rng.below(3) == 0 {
        return None;
    }
    // Without a spare, segments with a shard on every disk are rewritten.
    let has_spare = rng.coin();
    let kind = match rng.below(8) {
        0..3 => WorkKind::Drain { has_spare },
        3..7 if shape.tolerated() > 0 => WorkKind::Rebuild {
            has_spare,
            comes_back: rng.below(3) == 0,
        },
        3 => WorkKind::Drain { has_spare },
        _ => WorkKind::Scrub,
    };
    let pick = rng.u64();
    let kind = match kind {
        // Keeps all later draws as they were without this kind.
        WorkKind::Scrub if pick & 1 == 1 => WorkKind::Journal,
        kind => kind,
    };
    Some(Work {
        kind,
        pick,
        power_off_after: rng.coin().then(|| {
            let within = one_of(rng, &[4, 8, 30]);
            1 + rng.below(within) as u32
        }),
        after_ops: 0,
    })
}

/// Background work needs data on the disks, in full segments.
fn aim_at_work(rng: &mut Rng, shape: &mut Shape) {
    if rng.below(3) == 0 {
        return;
    }
    shape.is_data_heavy = true;
    shape.client_count = shape.client_count.max(2);
    // Disks without delays let the power go between one step and the next, where no other work is in progress.
    if rng.coin() {
        (shape.is_paced, shape.is_uneven) = (false, false);
    }
    // With as few disks as the protection needs, protection is lower while one is lost.
    if shape.trouble == Trouble::Crashes && rng.below(4) == 0 {
        (shape.disk_count, shape.protection) = one_of(
            rng,
            &[
                (2, Protection::Mirror(2)),
                (3, Protection::Default),
                (4, Protection::Plus(1)),
            ],
        );
        shape.disk_mib = shape.disk_mib.max(128);
    }
    if rng.coin() {
        shape.small_records = true;
        shape.space.shard_kib = one_of(rng, &[64, 128]);
    }
}

/// Number of client operations after which work begins: in a new pool, when it has some data.
fn draw_begin(rng: &mut Rng, op_count: u32, shape: &Shape, is_first: bool) -> u32 {
    let all_ops = u64::from(op_count) * shape.client_count as u64;
    match is_first || rng.coin() {
        true => (all_ops / 4 + rng.below(all_ops / 2 + 1)) as u32,
        false => 0,
    }
}

/// The only disk fails to sync data of clients: nothing else can be lost by that.
fn aim_at_syncs(rng: &mut Rng, shape: &Shape, life: &mut Life) {
    if shape.trouble != Trouble::Errors || shape.tolerated() > 0 || rng.coin() {
        return;
    }
    let within = one_of(rng, &[2, 6, 20]);
    life.faults.push(Fault {
        disk: one_of(rng, &shape.bad_disks),
        after: rng.below(within),
        pick: 0,
        kind: FaultKind::ShardSyncFails {
            times: 1 + rng.below(2),
        },
    });
}

/// A scrub meets corruption, usually only such that existed when it began: then it has to leave none.
fn aim_at_scrubs(rng: &mut Rng, shape: &Shape, life: &mut Life) {
    let is_aimed = matches!(shape.trouble, Trouble::BadDisks | Trouble::Beyond);
    if !is_aimed || life.work.is_none() || rng.below(3) != 0 {
        return;
    }
    life.work = life.work.map(|work| Work {
        kind: WorkKind::Scrub,
        power_off_after: None,
        ..work
    });
    if rng.below(3) != 0 {
        life.faults.clear();
        run_to_its_end(shape, life);
    }
    for _ in 0..1 + rng.below(4) {
        life.faults.push(Fault {
            disk: one_of(rng, &shape.bad_disks),
            after: 0,
            pick: rng.u64(),
            kind: FaultKind::WorkFlipAtRest,
        });
    }
}

fn draw_faults(rng: &mut Rng, shape: &Shape) -> Vec<Fault> {
    let mut faults = Vec::new();
    if rng.below(8) == 0 {
        let seconds = rng.below(200_000) as i64 - 100_000;
        faults.push(Fault {
            disk: 0,
            after: rng.below(200),
            pick: 0,
            kind: FaultKind::ClockStep { seconds },
        });
    }
    let count = rng.below(4);
    for _ in 0..count {
        let (disk, kind) = match shape.trouble {
            Trouble::Crashes => continue,
            Trouble::Full => {
                let times = one_of(rng, &[1, 3, 40]);
                (one_of(rng, &shape.bad_disks), FaultKind::Full { times })
            }
            Trouble::BadDisks => (one_of(rng, &shape.bad_disks), draw_any(rng)),
            Trouble::Errors => (one_of(rng, &shape.bad_disks), draw_loud(rng)),
            Trouble::Beyond => {
                let kind = match rng.below(3) {
                    0 => FaultKind::FlipRead,
                    1 => FaultKind::FlipAtRest,
                    _ => FaultKind::MisdirectRead,
                };
                (one_of(rng, &shape.bad_disks), kind)
            }
        };
        let within = one_of(rng, &[4, 12, 40, 400]);
        faults.push(Fault {
            disk,
            after: rng.below(within),
            pick: rng.u64(),
            kind,
        });
    }
    faults
}

/// Reads that fail while shards are rebuilt from others. Bytes that no others have would be given up.
fn draw_beside(rng: &mut Rng, shape: &Shape, kind: WorkKind) -> Option<Fault> {
    let is_bad = matches!(shape.trouble, Trouble::BadDisks | Trouble::Errors);
    let is_bad = is_bad && shape.tolerated() > 0;
    let is_drawn = match kind {
        WorkKind::Rebuild { .. } => true,
        WorkKind::Drain { .. } => rng.coin(),
        WorkKind::Scrub | WorkKind::Journal => false,
    };
    if !is_bad || !is_drawn {
        return None;
    }
    let within = one_of(rng, &[4, 16]);
    Some(Fault {
        disk: one_of(rng, &shape.bad_disks),
        after: rng.below(within),
        pick: rng.u64(),
        kind: FaultKind::WorkReadFails {
            times: one_of(rng, &[1, 2, 12]),
        },
    })
}

/// One disk with trouble among those that may be lost, so that another one may be lost while it fails; and many shards
/// to rebuild.
fn aim_at_rebuild(rng: &mut Rng, shape: &mut Shape) {
    shape.trouble = Trouble::BadDisks;
    shape.bad_disks = draw_disks(rng, shape.disk_count, 1, &[]);
    shape.is_data_heavy = true;
    shape.small_records = true;
    shape.space.shard_kib = one_of(rng, &[64, 128]);
}

/// With a crash at the end of the idle time.
fn run_to_its_end(shape: &Shape, life: &mut Life) {
    if let End::Crash { after_ops, .. } = &mut life.end {
        *after_ops = 2 * life.op_count * shape.client_count as u32;
    }
    life.idle_seconds = life.idle_seconds.max(5);
}

/// A rebuild some of whose sources are unreadable. By chance alone that is drawn in one of some hundred seeds.
fn draw_rebuild_past_errors(rng: &mut Rng, shape: &Shape, life: &mut Life) {
    let kind = WorkKind::Rebuild {
        has_spare: true,
        comes_back: false,
    };
    life.work = Some(Work {
        kind,
        pick: rng.u64(),
        power_off_after: None,
        after_ops: 0,
    });
    let faults = [(); 2]
        .iter()
        .filter_map(|()| draw_beside(rng, shape, kind));
    life.faults.extend(faults);
}

/// Kinds that were added later, so that seeds keep their earlier faults.
fn draw_newer(rng: &mut Rng, shape: &Shape) -> Option<Fault> {
    if rng.below(3) != 0 || shape.bad_disks.is_empty() {
        return None;
    }
    let folder_sync_fails = FaultKind::FolderSyncFails {
        times: 1 + rng.below(2),
    };
    let full_writes = FaultKind::FullWrites {
        times: one_of(rng, &[1, 3, 40]),
    };
    let kind = match (shape.trouble, rng.below(3)) {
        (Trouble::Crashes | Trouble::Beyond, _) => return None,
        (Trouble::Full, _) | (Trouble::BadDisks, 0) => full_writes,
        (Trouble::Errors, _) | (Trouble::BadDisks, 1) => folder_sync_fails,
        (Trouble::BadDisks, _) => FaultKind::FlipWrite,
    };
    let within = one_of(rng, &[4, 12, 40, 400]);
    Some(Fault {
        disk: one_of(rng, &shape.bad_disks),
        after: rng.below(within),
        pick: rng.u64(),
        kind,
    })
}

/// Errors that are not silent.
fn draw_loud(rng: &mut Rng) -> FaultKind {
    match rng.below(6) {
        0 => FaultKind::ReadFails {
            times: 1 + rng.below(3),
        },
        1 => FaultKind::WriteFails {
            times: 1 + rng.below(3),
        },
        2 => FaultKind::WriteTorn,
        3 => FaultKind::Hang {
            ms: 1 + rng.below(90_000),
        },
        _ => FaultKind::SyncFails {
            times: 1 + rng.below(2),
        },
    }
}

fn draw_any(rng: &mut Rng) -> FaultKind {
    match rng.below(12) {
        0 => FaultKind::FlipRead,
        1 | 2 => FaultKind::FlipAtRest,
        3 => FaultKind::MisdirectRead,
        4 => FaultKind::StaleRead {
            times: 1 + rng.below(20),
        },
        5 => FaultKind::LoseWrite {
            times: 1 + rng.below(5),
        },
        6 => FaultKind::MisdirectWrite,
        7 => FaultKind::Dead,
        8 => FaultKind::Slow {
            ms: 1 + rng.below(500),
            times: 1 + rng.below(200),
        },
        _ => draw_loud(rng),
    }
}
