//! An object store for cold data, beside the clients of a volume. Offload and promote must not change the answers to
//! clients, and every object belongs to a segment or is known to be unneeded.
//!
//! Owns: when policies change and days pass; the expected objects, and the data that is unreadable without them. Must
//! not know: which segments go, the faults of the store (`object_store`).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{Ino, SegmentId};
use cairn_formats::pool_file::VolumeTiering;
use cairn_formats::settings::{CoolingDays, TierFilter, Tiering};
use cairn_fs::{Fs, FsError};
use cairn_meta::{ExtentPlace, ExtentRecord, Key, KeyKind};
use cairn_pool::{ChangeFailure, Pool};
use cairn_segment::{ObjectId, Pace};
use cairn_testkit::{ManualClock, Rng};

use crate::client;
use crate::judge::Judge;
use crate::object_store::{LifeStore, SimStore};
use crate::scenario::Trouble;
use crate::world::{VOLUME, WHO, World};

const TIER_NAME: &str = "cold";
const VOLUME_NAME: &str = "main";
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_millis(400);
const DAY_SECONDS: i64 = 24 * 3600;
/// Pause before a store that was away is asked again.
const AWAY_MAX: Duration = Duration::from_secs(6);
/// Interval of the check whether the store is empty, and its longest duration.
const EMPTY_LOOK_PAUSE: Duration = Duration::from_secs(5);
const EMPTY_LOOKS_MAX: u32 = 240;

fn name<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no name"))
}

/// Adds the tier, or opens it if that failed at the start.
pub(crate) async fn begin(world: &World, store: &LifeStore, is_first: bool) -> Result<(), String> {
    store.disarm();
    if !is_first {
        world.pool.tend_tiers().await;
        return Ok(());
    }
    add(&world.pool).await?;
    let set = set_policy(&world.pool, Tiering::All, TierFilter::default()).await;
    set.map_err(|error| error.to_string())
}

/// Makes the object store a tier of the pool.
pub(crate) async fn add(pool: &Pool) -> Result<(), String> {
    let url = "s3://simulated".to_owned();
    let added = pool.tier_add(name(TIER_NAME)?, url, None).await;
    added.map_err(|error| error.to_string())
}

pub(crate) async fn set_policy(
    pool: &Pool,
    policy: Tiering,
    filter: TierFilter,
) -> Result<(), ChangeFailure> {
    let tier = pool.state().tiers.first().map(|tier| tier.id);
    let volume = name(VOLUME_NAME).map_err(ChangeFailure::Impossible)?;
    let cooling = "2".parse::<CoolingDays>().unwrap_or_default();
    let tiering = tier.map(|tier| VolumeTiering {
        tier,
        policy,
        cooling_days: cooling,
        filter,
    });
    let set = pool.volume_set(&volume, |volume| volume.tiering = tiering);
    set.await
}

/// Changes policies and lets days pass in one life, like a client.
pub(crate) struct Tierer {
    pub life: Arc<client::Life>,
    pub judge: Arc<Judge>,
    pub pool: Arc<Pool>,
    pub env: Env,
    pub clock: ManualClock,
    pub rng: Rng,
}

impl Tierer {
    pub async fn run(mut self, step_count: u64) {
        for _ in 0..step_count {
            let goes_on = self.life.pause(&self.env, &mut self.rng, PAUSE_MAX);
            if !goes_on.await {
                break;
            }
            if let Err(error) = self.step().await {
                self.life.fail(error);
            }
        }
        self.life.client_is_done();
    }

    async fn step(&mut self) -> Result<(), String> {
        match self.rng.below(10) {
            0 => self.set(Tiering::None).await,
            1..3 => self.set(Tiering::All).await,
            3 => self.set(Tiering::Auto).await,
            4 => self.set(Tiering::SnapshotOnly).await,
            5..8 => {
                self.clock.step_wall(3 * DAY_SECONDS);
                Ok(())
            }
            8 => {
                self.pool.tend_tiers().await;
                Ok(())
            }
            _ => self.verify().await,
        }
    }

    /// Half of the time for some files only: by name, which renames change, by size, or by files that were unchanged
    /// for days.
    fn filter(&mut self) -> Result<TierFilter, String> {
        let files = ["any", "n[024]", "n[135]", "*1,?2"];
        let mut filter = TierFilter::default();
        match self.rng.below(8) {
            0..3 => {
                let files = files.get(self.rng.below(4) as usize).unwrap_or(&"any");
                filter.files = name(files)?;
            }
            3 => filter.min_size = name("16KiB")?,
            4 => filter.min_age = name("2d")?,
            _ => {}
        }
        Ok(filter)
    }

    async fn set(&mut self, policy: Tiering) -> Result<(), String> {
        let filter = match policy {
            Tiering::All | Tiering::Auto => self.filter()?,
            Tiering::None | Tiering::SnapshotOnly => TierFilter::default(),
        };
        match set_policy(&self.pool, policy, filter).await {
            Err(error)
                if self.life.shape.trouble == Trouble::Crashes && !self.life.is_reopening() =>
            {
                Err(format!("setting the policy {policy}: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks objects like `cairn tier check`.
    async fn verify(&self) -> Result<(), String> {
        let Some(fs) = self.judge.fs() else {
            return Ok(());
        };
        let pace = Pace::new(self.env.clock.clone(), 0);
        match fs.verify_tier(SegmentId(0), &pace).await {
            Ok((_, Some(error), _)) if !self.life.may_tier_fail() => {
                Err(format!("an object is not what it should be: {error}"))
            }
            _ => Ok(()),
        }
    }
}

/// Objects of segments, and those that are noted as unneeded.
fn known(fs: &Fs) -> Result<(BTreeSet<ObjectId>, BTreeSet<ObjectId>), String> {
    let object = |segment, nonce| ObjectId {
        volume: VOLUME,
        segment,
        nonce,
    };
    let all = fs.meta().segments().into_iter();
    let used = all.filter_map(|(id, record)| Some(object(id, record.remote?.nonce)));
    let used = used.collect();
    let mut noted = BTreeSet::new();
    let (from, to) = Key::unused_objects();
    let visit = |key: &[u8], _: &[u8], _| {
        if let Ok(KeyKind::UnusedObject { segment, nonce, .. }) = KeyKind::parse(key) {
            noted.insert(object(segment, nonce));
        }
        ControlFlow::Continue(())
    };
    let scanned = fs.meta().live().scan_with(&from, &to, visit);
    scanned.map_err(|error| format!("scanning the metadata: {error}"))?;
    Ok((used, noted))
}

/// A part of a file.
type Part = (Ino, u64, Vec<u8>);

/// Exactly the data in lost objects is unreadable. Returns the readable parts.
async fn check_lost(fs: &Fs, store: &LifeStore) -> Result<Vec<Part>, String> {
    let mut extents = Vec::new();
    let (from, to) = Key::all_extents();
    let visit = |key: &[u8], value: &[u8], _| {
        if let (Ok(KeyKind::Extent { ino, end_offset }), Ok(extent)) =
            (KeyKind::parse(key), ExtentRecord::decode(value))
        {
            // Data in the metadata itself does not depend on objects.
            let segment = match extent.place {
                ExtentPlace::Record { record, .. } => Some(record.location.segment),
                ExtentPlace::Inline(_) => None,
            };
            extents.push((ino, extent.start..end_offset, segment));
        }
        ControlFlow::Continue(())
    };
    let scanned = fs.meta().live().scan_with(&from, &to, visit);
    scanned.map_err(|error| format!("scanning the metadata: {error}"))?;
    let is_lost = |segment: Option<SegmentId>| {
        let object = segment.and_then(|segment| {
            let remote = fs
                .meta()
                .segment(segment)
                .and_then(|record| record.remote)?;
            Some(ObjectId {
                volume: VOLUME,
                segment,
                nonce: remote.nonce,
            })
        });
        object.is_some_and(|object| store.store.is_lost(&object))
    };
    let mut parts = Vec::new();
    for (ino, range, segment) in extents {
        let was_lost = is_lost(segment);
        let len = (range.end - range.start) as u32;
        match fs.read(&WHO, ino, range.start, len).await {
            Ok(read) => parts.push((ino, range.start, read.parts.concat())),
            Err(FsError::Io(_)) if was_lost || is_lost(segment) => {}
            // It was deleted, and is being removed.
            Err(FsError::Stale | FsError::NotFound) => {}
            Err(error) => {
                return Err(format!(
                    "bytes {range:?} of inode {ino}, of which no object is lost: {error}"
                ));
            }
        }
    }
    Ok(parts)
}

/// Checks the contents of the object store when clients are done; returns the number of lost objects. The store has no
/// faults from then on.
pub(crate) async fn check(
    env: &Env,
    world: &World,
    store: &LifeStore,
    judge: &Judge,
) -> Result<u64, String> {
    store.disarm();
    env.clock.sleep(AWAY_MAX).await;
    let Some(fs) = judge.fs().filter(|fs| !judge.has_stopped(fs)) else {
        return Ok(0);
    };
    let mut missed = 0;
    if store.store.has_lost() {
        let (used, _) = known(&fs)?;
        missed = used.iter().filter(|id| store.store.is_lost(id)).count() as u64;
        // Errors of disks come beside those of the store.
        let parts = match judge.is_trouble_excused() {
            true => Vec::new(),
            false => check_lost(&fs, store).await?,
        };
        store.store.put_back();
        for (ino, start, bytes) in parts {
            let again = fs.read(&WHO, ino, start, bytes.len() as u32).await;
            let again = again.map_err(|error| format!("inode {ino} at byte {start}: {error}"))?;
            if again.parts.concat() != bytes {
                return Err(format!("inode {ino} at byte {start} changed by itself"));
            }
        }
    }
    check_objects(&fs, &store.store)?;
    check_shards(world, &fs, judge)?;
    Ok(missed)
}

/// Each object belongs to a segment, or is noted; and every object that segments name exists.
pub(crate) fn check_objects(fs: &Fs, store: &SimStore) -> Result<(), String> {
    let there: BTreeSet<ObjectId> = store.objects().into_iter().collect();
    let (used, noted) = known(fs)?;
    if let Some(id) = used.iter().find(|id| !there.contains(id)) {
        return Err(format!("{id:?} is a segment's, and is gone"));
    }
    let mut unknown = there
        .iter()
        .filter(|id| !used.contains(id) && !noted.contains(id));
    if let Some(id) = unknown.next() {
        return Err(format!("{id:?} is nobody's, and nobody knows of it"));
    }
    if let Some(id) = used.intersection(&noted).next() {
        return Err(format!("{id:?} is a segment's, and noted to be nobody's"));
    }
    match store.written_max() {
        0 | 1 => Ok(()),
        times => Err(format!("an object was written {times} times")),
    }
}

/// According to the segment store, segments in the object store are on no disk.
fn check_shards(world: &World, fs: &Fs, judge: &Judge) -> Result<(), String> {
    if judge.is_trouble_excused() {
        return Ok(());
    }
    for info in world.segments.segments(VOLUME) {
        let record = fs.meta().segment(info.id);
        if info.remote.is_some() && record.is_some_and(|record| record.remote != info.remote) {
            return Err(format!("segment {} is read where it is not", info.id));
        }
    }
    Ok(())
}

/// All data comes back, or the volume is deleted: nothing is left in the store, and the tier can be removed.
pub(crate) async fn end(
    env: &Env,
    world: &World,
    store: &LifeStore,
    ends_volume: bool,
) -> Result<(), String> {
    let pool = &world.pool;
    if ends_volume {
        let deleted = pool.volume_delete(&name(VOLUME_NAME)?, true).await;
        deleted.map_err(|error| format!("deleting the volume: {error}"))?;
    } else {
        let set = set_policy(pool, Tiering::None, TierFilter::default()).await;
        set.map_err(|error| format!("setting the last policy: {error}"))?;
    }
    for _ in 0..EMPTY_LOOKS_MAX {
        pool.tend_tiers().await;
        if ends_volume {
            let state = pool.state();
            if state.tiers.iter().all(|tier| tier.deleting.is_empty()) {
                return removed(pool, store).await;
            }
        } else {
            let nothing = world.fs.has_nothing_in_tiers().await;
            if nothing.map_err(|error| format!("looking for objects: {error}"))? {
                return removed(pool, store).await;
            }
            let trouble = world.fs.tiering_status().trouble;
            if trouble.is_some_and(|why| why.contains("no room")) {
                return Ok(());
            }
        }
        env.clock.sleep(EMPTY_LOOK_PAUSE).await;
    }
    let status = world.fs.tiering_status();
    Err(format!("data does not leave the object store: {status:?}"))
}

async fn removed(pool: &Pool, store: &LifeStore) -> Result<(), String> {
    let left = store.store.objects();
    if !left.is_empty() {
        return Err(format!("objects are left for ever: {left:?}"));
    }
    let removed = pool.tier_remove(&name(TIER_NAME)?).await;
    removed.map_err(|error| format!("removing the tier: {error}"))
}
