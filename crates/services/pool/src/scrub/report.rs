//! The report of a scrub: how far it is, and what it found.
//!
//! Must not know: how a scrub runs.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::{Ino, Timestamp, VolumeId};
use cairn_formats::scrub_file::{Damage, ScrubStage};
use cairn_formats::settings::Maintenance;
use cairn_fs::Fs;

use super::{Scrub, extent_of, timer};
use crate::pool::{Pool, VolumeService};

/// How far a scrub is, and what it counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubProgress {
    pub stage: ScrubStage,
    /// It began by itself.
    pub by_schedule: bool,
    /// Since 1970 UTC: when the maintenance window opens that it waits for. `None`: it does not wait.
    pub rests_until_seconds: Option<i64>,
    /// Since 1970 UTC: when the next one begins by itself, if one will.
    pub next_seconds: Option<i64>,
    pub started_seconds: i64,
    pub finished_seconds: i64,
    pub rate_bytes_per_second: u64,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub seconds_left: Option<u64>,
    pub shards: u64,
    pub records: u64,
    pub wrong_bytes: u64,
    pub repaired_bytes: u64,
    pub shards_rebuilt: u64,
    pub shards_sealed: u64,
    pub shards_away: u64,
    pub damaged: u64,
    pub errors: u64,
}

/// A place of a file that is damaged beyond repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    pub volume: String,
    pub inode: u64,
    /// All names of the file, from the root of the volume, as bytes.
    pub paths: Vec<Vec<u8>>,
    pub start: u64,
    pub end: u64,
    pub detail: String,
}

/// What a scrub found and is still there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamagedPlaces {
    pub places: Vec<DamagedPlace>,
    /// Beyond those that are remembered.
    pub more: u64,
}

impl Scrub {
    /// How far it is at `now`, by the monotonic clock and by that of the day, with `total_bytes` in the pool.
    fn progress(
        &self,
        (now, today): (Duration, Timestamp),
        maintenance: &Maintenance,
        total_bytes: u64,
    ) -> ScrubProgress {
        let state = self.state.lock();
        let window = maintenance.window.as_ref();
        let rests_until = window.filter(|_| self.is_resting());
        let since = *self.since.lock();
        let done_bytes = match state.stage {
            // Less than is left, which is counted when the step is done.
            ScrubStage::Running | ScrubStage::Paused => {
                let left = total_bytes.saturating_sub(state.done_bytes);
                state.done_bytes + self.step_bytes().min(left)
            }
            ScrubStage::Never | ScrubStage::Done => state.done_bytes,
        };
        let total_bytes = match state.stage {
            ScrubStage::Running | ScrubStage::Paused => total_bytes.max(done_bytes),
            ScrubStage::Never => total_bytes,
            ScrubStage::Done => done_bytes,
        };
        let seconds_left = since.and_then(|(since, before)| {
            let elapsed = now.checked_sub(since)?.as_secs_f64();
            let done = done_bytes.checked_sub(before).filter(|done| *done > 0)?;
            let left = (total_bytes - done_bytes) as f64;
            Some((left * elapsed / done as f64) as u64)
        });
        ScrubProgress {
            stage: state.stage,
            by_schedule: state.by_schedule,
            rests_until_seconds: rests_until.map(|window| window.next_open(today).seconds),
            next_seconds: timer::next(&state, maintenance, today).map(|next| next.seconds),
            started_seconds: state.started_seconds,
            finished_seconds: state.finished_seconds,
            rate_bytes_per_second: self.pace.bytes_per_second(),
            done_bytes,
            total_bytes,
            seconds_left: seconds_left.filter(|_| state.stage == ScrubStage::Running),
            shards: state.shards,
            records: state.records,
            wrong_bytes: state.wrong_bytes,
            repaired_bytes: state.repaired_bytes,
            shards_rebuilt: state.shards_rebuilt,
            shards_sealed: state.shards_sealed,
            shards_away: state.shards_away,
            damaged: state.damages.len() as u64 + state.damages_more,
            errors: state.errors,
        }
    }
}

impl Pool {
    pub fn scrub_progress(&self) -> ScrubProgress {
        let total_bytes = self.scrub_total_bytes();
        let now = (self.env.clock.monotonic(), self.env.clock.now());
        let state = self.state();
        let mut progress = self.scrub.progress(now, &state.maintenance, total_bytes);
        // A node that owns nothing begins none.
        let has_volumes = !self.services().is_empty();
        progress.next_seconds = progress.next_seconds.filter(|_| has_volumes);
        progress
    }

    /// For how long a scrub that begins by itself could have begun here, and has not.
    pub fn scrub_overdue(&self) -> Option<Duration> {
        let has_volumes = !self.services().is_empty();
        let (pool, now) = (self.state(), self.env.clock.now());
        let state = self.scrub.state.lock();
        timer::overdue(&state, &pool.maintenance, now).filter(|_| has_volumes)
    }

    /// Shards of all segments, and once more the records in them.
    fn scrub_total_bytes(&self) -> u64 {
        let mut total_bytes = 0;
        let services = self.services();
        for (id, service) in services {
            if let VolumeService::Serving(fs) = service {
                let segments = self.store.segments(id);
                let shards = segments
                    .iter()
                    .map(|info| info.shard_len_bytes * u64::from(info.code.total()));
                total_bytes += shards.sum::<u64>() + fs.meta().counters().stored_bytes;
            }
        }
        total_bytes
    }

    /// Damage that was found and is still there. Reads the metadata of all volumes with damage.
    pub async fn damaged_places(&self) -> DamagedPlaces {
        let (damages, more) = {
            let state = self.scrub.state.lock();
            (state.damages.clone(), state.damages_more)
        };
        let mut by_volume: BTreeMap<VolumeId, Vec<Damage>> = BTreeMap::new();
        for damage in damages {
            by_volume.entry(damage.volume).or_default().push(damage);
        }
        let mut places = Vec::new();
        for (volume, damages) in by_volume {
            let fs = match self.service(volume) {
                Some(VolumeService::Serving(fs)) => Some(fs),
                Some(VolumeService::Failed(_)) => None,
                // Deleted.
                None => continue,
            };
            let name = {
                let pool = self.state();
                let settings = pool.volumes.iter().find(|one| one.id == volume);
                settings.map(|volume| pool.head_of(volume).name.to_string())
            };
            places.extend(places_of_volume(&name.unwrap_or_default(), fs, damages).await);
        }
        DamagedPlaces { places, more }
    }
}

/// Of a volume that is not served all that was found is told, without names.
async fn places_of_volume(
    name: &str,
    fs: Option<Fs>,
    mut damages: Vec<Damage>,
) -> Vec<DamagedPlace> {
    damages.sort_by_key(|damage| (damage.inode, damage.start));
    let mut paths = BTreeMap::new();
    match fs {
        Some(fs) => {
            // What cannot be asked now is rather told than left out.
            damages.retain(|damage| fs.is_still_there(&extent_of(damage)).unwrap_or(true));
            let mut inos: Vec<Ino> = damages.iter().map(|damage| Ino(damage.inode)).collect();
            inos.dedup();
            match fs.paths_of(&inos).await {
                Ok(found) => paths = found,
                Err(error) => {
                    tracing::warn!(%error, "the names of damaged files cannot be read");
                }
            }
        }
        None => {
            for damage in &mut damages {
                damage
                    .detail
                    .push_str("; its names are not known, for the volume is not served");
            }
        }
    }
    damages
        .into_iter()
        .map(|damage| DamagedPlace {
            volume: name.to_owned(),
            inode: damage.inode,
            paths: paths
                .get(&Ino(damage.inode))
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            start: damage.start,
            end: damage.end,
            detail: damage.detail,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_damaged_file_is_told_while_its_volume_is_not_served() {
        let damages = vec![Damage {
            volume: VolumeId(1),
            inode: 9,
            start: 0,
            end: 4096,
            segment: 2,
            detail: "two shards are gone".to_owned(),
        }];
        let told = places_of_volume("scratch", None, damages.clone()).await;
        assert_eq!(told.len(), damages.len());
        assert!(told.iter().all(|one| one.volume == "scratch"
            && one.paths.is_empty()
            && one.detail.ends_with("the volume is not served")));
    }

    /// At the speed since it began, or went on after a start or a pause; what the step under way did counts.
    #[tokio::test]
    async fn the_time_left_follows_from_the_speed_so_far() {
        const TOTAL: u64 = 1000;
        let running = ScrubStage::Running;
        // Stage, done when it began here, done by steps that ended, done by the step under way, seconds that took.
        type Case<'a> = (&'a str, (ScrubStage, u64, u64, u64, u64), Option<u64>);
        let cases: &[Case] = &[
            ("from the start", (running, 0, 200, 0, 20), Some(80)),
            ("in a step", (running, 0, 100, 100, 20), Some(80)),
            ("in the first step", (running, 0, 0, 250, 20), Some(60)),
            ("went on", (running, 500, 600, 0, 10), Some(40)),
            ("nothing is known yet", (running, 500, 500, 0, 10), None),
            ("at once", (running, 0, 100, 0, 0), Some(0)),
            ("all is done", (running, 0, TOTAL, 0, 10), Some(0)),
            (
                "more than there is now",
                (running, 0, 2 * TOTAL, 0, 10),
                Some(0),
            ),
            ("paused", (ScrubStage::Paused, 0, 200, 0, 20), None),
            ("over", (ScrubStage::Done, 0, TOTAL, 0, 20), None),
        ];
        for (name, (stage, before, done, step, seconds), want) in cases {
            let world = cairn_testkit::TestWorld::new(1);
            let scrub = Scrub::new(cairn_segment::Pace::new(world.env.clock.clone(), 0));
            world.clock.advance(Duration::from_secs(100));
            *scrub.since.lock() = Some((world.env.clock.monotonic(), *before));
            {
                let mut state = scrub.state.lock();
                (state.stage, state.done_bytes) = (*stage, *done);
            }
            drop(scrub.pace.spend(*step).await);
            world.clock.advance(Duration::from_secs(*seconds));
            let now = (world.env.clock.monotonic(), world.env.clock.now());
            let seen = scrub.progress(now, &Maintenance::default(), TOTAL);
            assert_eq!(seen.seconds_left, *want, "{name}");
            assert_eq!(seen.done_bytes, done + step, "{name}");
        }
        // Nothing went on here yet.
        let world = cairn_testkit::TestWorld::new(1);
        let scrub = Scrub::new(cairn_segment::Pace::new(world.env.clock.clone(), 0));
        scrub.state.lock().stage = running;
        assert_eq!(
            scrub
                .progress(
                    (Duration::from_secs(1), Timestamp::default()),
                    &Maintenance::default(),
                    TOTAL
                )
                .seconds_left,
            None
        );
    }
}
