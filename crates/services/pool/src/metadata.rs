//! Moves volumes' metadata between disks while the pool is served.
//!
//! Owns: the steps in which a volume's metadata leaves a disk, opening a volume again whose metadata failed with its
//! disk, or that could not be opened.
//! Must not know: why a disk leaves; how the metadata makes its copies.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, LogPosition, VolumeId};
use cairn_formats::pool_file::PoolVolume;
use cairn_formats::settings::VolumeSettings;
use cairn_fs::Fs;
use cairn_meta::{MetaError, Preference};
use futures_util::future::{Either, join_all, select};

use crate::planner::copies_of_metadata;
use crate::pool::{MetaDisks, Pool, VolumeService};
use crate::table::Condition;

/// A volume whose metadata is on a disk that fails may take so long to close before it is left behind.
pub(crate) const CLOSE_MAX: Duration = Duration::from_secs(15);
/// What closing may take once all that clients wrote is durable, while they wait for the next owner.
pub(crate) const TIDY_MAX: Duration = Duration::from_secs(1);
/// A state that could not be had on another disk stays where it is for so long: each try costs clients a pause.
const STAYED_REST: Duration = Duration::from_secs(3600);
/// How often it is looked whether the disk with the metadata that somebody waits for works.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(1);
/// What a volume that is left behind began to write past the disks, to their folders, is there after so long.
const ABANDON_PAUSE: Duration = Duration::from_secs(1);
/// A volume that cannot be opened is tried again after so long, and then after twice as long each time,
const OPEN_PAUSE: Duration = Duration::from_secs(10);
/// but no less often than this.
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(600);
/// and this often until the next start: each time may cost one of the hundred terms that a log can name.
const OPEN_TRIES_MAX: u32 = 10;
/// But where room came on a disk that had too little, it is tried after so long, and then after twice as long each time,
const ROOM_PAUSE: Duration = Duration::from_millis(250);
/// but no less often than this,
const ROOM_PAUSE_MAX: Duration = Duration::from_secs(2);
/// and this often until the next start, for the same reason.
const ROOM_TRIES_MAX: u32 = 20;
/// What it began to write to disks is waited for, if it must be, so much longer than until they are given up.
const IDLE_AFTER_HANG: Duration = Duration::from_secs(5);

/// So many volumes are opened again at a time.
const OPEN_CONCURRENCY: usize = 4;

/// When a volume that could not be opened is tried again.
pub struct OpenAgain {
    at: Duration,
    pause: Duration,
    tries_left: u32,
    /// How long it waits when room comes on a disk that had too little.
    room_pause: Duration,
    room_tries_left: u32,
}

impl OpenAgain {
    fn new(now: Duration) -> Self {
        Self {
            at: now + OPEN_PAUSE,
            pause: OPEN_PAUSE,
            tries_left: OPEN_TRIES_MAX,
            room_pause: ROOM_PAUSE,
            room_tries_left: ROOM_TRIES_MAX,
        }
    }

    /// One that is to be tried now.
    pub(crate) fn due(now: Duration) -> Self {
        Self {
            at: now,
            ..Self::new(now)
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        self.tries_left > 0 && self.at <= now
    }

    /// There is room on a disk that had too little, which may have been in the way.
    fn note_room(&mut self, now: Duration) {
        let Some(tries_left) = self.room_tries_left.checked_sub(1) else {
            return;
        };
        self.room_tries_left = tries_left;
        self.tries_left = self.tries_left.max(1);
        self.at = self.at.min(now + self.room_pause);
        self.room_pause = (self.room_pause * 2).min(ROOM_PAUSE_MAX);
    }

    /// It was not tried, because nothing has changed that was in the way. So none of its terms is used up, however often room
    /// comes that is too little.
    fn put_off(&mut self, now: Duration) {
        self.room_tries_left = ROOM_TRIES_MAX.min(self.room_tries_left + 1);
        self.pause = (self.pause * 2).min(OPEN_PAUSE_MAX);
        self.at = now + self.pause;
    }

    fn note_failure(&mut self, now: Duration) {
        self.tries_left = self.tries_left.saturating_sub(1);
        self.pause = (self.pause * 2).min(OPEN_PAUSE_MAX);
        self.at = now + self.pause;
    }
}

fn ids(disks: &MetaDisks) -> Vec<DiskId> {
    disks.iter().map(|(id, _)| *id).collect()
}

impl Pool {
    /// Sees to it that no volume needs a disk for its metadata. Says what is in the way, if anything is.
    pub(crate) async fn metadata_off(&self, id: DiskId) -> Result<(), String> {
        for fs in self.serving_all() {
            self.metadata_of_volume_off(&fs, id).await?;
        }
        Ok(())
    }

    pub(crate) async fn metadata_of_volume_off(&self, fs: &Fs, id: DiskId) -> Result<(), String> {
        if fs.meta().log().primary_disk() == id {
            let mut others = ids(&self.meta_disks(Some(fs.volume())));
            others.retain(|disk| *disk != id);
            // In a cluster copies of the state are on other nodes, and none on this one.
            match self.seats.is_some() && self.metadata_trouble(fs).is_none() && !others.is_empty()
            {
                true => self.state_from_copy(fs, &others).await?,
                false => self.move_state(fs, id, None).await?,
            }
        }
        // It may have been opened again.
        if let Some(VolumeService::Serving(fs)) = self.service(fs.volume()) {
            self.retire(&fs, id).await?;
        }
        Ok(())
    }

    /// Keeps nothing of a volume's metadata on a disk any more on which its state is not.
    async fn retire(&self, fs: &Fs, id: DiskId) -> Result<(), String> {
        if !fs.meta().log().uses_disk(id) {
            return Ok(());
        }
        self.change_metadata(fs, fs.meta().log().retire_disk(id))
            .await?;
        // Not one more any longer.
        let pool = self.state();
        if let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) {
            self.set_copies(fs, &volume.settings).await;
        }
        Ok(())
    }

    /// Opens a volume with its state on a disk of a faster kind, if there is one with room.
    pub(crate) async fn state_to_faster(&self, fs: &Fs) -> Result<(), String> {
        let better = self.better_for_state(fs);
        if better.is_empty() {
            return Ok(());
        }
        let volume = fs.volume();
        match self.seats {
            Some(_) => self.state_from_copy(fs, &better).await?,
            None => self.state_from_mirror(fs, &better).await?,
        }
        // A copy elsewhere may have been newer. It is not tried at once again: each time costs clients a pause.
        match self.service(volume) {
            Some(VolumeService::Serving(fs))
                if !better.contains(&fs.meta().log().primary_disk()) =>
            {
                let name = fs.name();
                Err(format!(
                    "the metadata of volume {name} could not move to a faster disk; the server retries"
                ))
            }
            _ => Ok(()),
        }
    }

    /// On one server: the disks of `to` get a copy of log and state first, as all that has copies does.
    async fn state_from_mirror(&self, fs: &Fs, to: &[DiskId]) -> Result<(), String> {
        let from = fs.meta().log().primary_disk();
        for (id, disk) in self.meta_disks(Some(fs.volume())) {
            if to.contains(&id) {
                fs.meta().log().add_disk(id, disk, Preference::First);
            }
        }
        let moved = self.move_state(fs, from, Some(to)).await;
        // It is not left for good.
        self.let_keep_metadata(from);
        if let Some(VolumeService::Serving(fs)) = self.service(fs.volume()) {
            let pool = self.state();
            if let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) {
                self.set_copies(&fs, &volume.settings).await;
            }
        }
        moved
    }

    /// In a cluster: the volume is opened as a new owner would open it, from the copy of its state that the list names, with the
    /// log from there on. The copy is fetched while the volume is served. What the former disk had of it is discarded when the
    /// volume is opened next.
    async fn state_from_copy(&self, fs: &Fs, to: &[DiskId]) -> Result<(), String> {
        let (id, name) = (fs.volume(), fs.name().to_owned());
        let now = self.env.clock.monotonic();
        let stayed = self.state_stayed.lock().get(&id).copied();
        if stayed.is_some_and(|at| now.saturating_sub(at) < STAYED_REST) {
            return Err(format!(
                "metadata of volume {name} stays on its disk: it could not be had on another one; see whether that has space for it. \
                 It is tried again an hour later"
            ));
        }
        // The newer the copy, the less is replayed while clients wait.
        self.change_metadata(fs, fs.meta().ship()).await?;
        let stats = fs.meta().stats();
        let mut copies = stats.states.iter().skip(1);
        let has_copy = copies.any(|copy| copy.position.0 + 1 >= stats.log_start.0);
        if !has_copy && stats.log_start > LogPosition(1) {
            return Err(format!(
                "the metadata of volume {name} stays on its disk: no other disk has a copy from which to open it"
            ));
        }
        let mut disks = Vec::new();
        let there = self.meta_disks(Some(id));
        for disk in to {
            let found = there.iter().find(|(id, _)| id == disk);
            disks.extend(found.map(|(id, disk)| (*id, Arc::clone(disk))));
        }
        let fetched = self.change_metadata(fs, fs.meta().fetch_copy(disks.clone()));
        if let Err(why) = fetched.await {
            self.state_stayed.lock().insert(id, now);
            return Err(why);
        }
        tracing::info!(
            volume = name,
            "opening the volume with its metadata on another disk"
        );
        let Err(why) = self.reopen(fs, disks, Vec::new()).await else {
            self.state_stayed.lock().remove(&id);
            return Ok(());
        };
        // Clients wait: it is served again where it was.
        self.state_stayed.lock().insert(id, now);
        let before = self.all_meta_disks(Some(id));
        self.open_closed(fs, before, Vec::new()).await?;
        Err(format!(
            "the metadata of volume {name} stays on its disk: {why}"
        ))
    }

    /// Opens a volume with its state on a disk that stays, instead of this one; on one of `to`, if that is given.
    async fn move_state(&self, fs: &Fs, id: DiskId, to: Option<&[DiskId]>) -> Result<(), String> {
        // It may be none of draining ones, but about to be removed.
        let others = |mut disks: MetaDisks| {
            disks.retain(|(disk, _)| *disk != id);
            disks
        };
        let volume_id = Some(fs.volume());
        if others(self.meta_disks(volume_id)).is_empty() {
            let name = fs.name();
            return Err(format!(
                "the metadata of volume {name} stays on the disk: there is no other working disk that stays"
            ));
        }
        let mut disks = others(self.all_meta_disks(volume_id));
        let mut left = Vec::new();
        // Of a disk that failed nothing can be had; the others have what it had.
        if self.metadata_trouble(fs).is_none() {
            let pool = self.state();
            for draining in pool.disks.iter().filter(|disk| disk.draining) {
                if draining.id != id {
                    self.retire(fs, draining.id).await?;
                }
            }
            let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) else {
                return Ok(());
            };
            // The disk still has one of the copies, and the others have all that is wanted without it: also of what
            // is changed from here on until the volume is closed.
            let copies = self.metadata_copies(&volume.settings) + 1;
            let is_early = planted::is(Bug::StateMovedBeforeItIsCopied);
            let copied = async {
                if is_early {
                    return Ok(());
                }
                fs.meta().log().set_copies(copies).await?;
                fs.meta().ship().await
            };
            self.change_metadata(fs, copied).await?;
            let stats = fs.meta().stats();
            disks = others(self.meta_disks(volume_id));
            disks.retain(|(disk, _)| !stats.failed_disks.contains(disk));
            let enough = to.map_or_else(|| ids(&disks), <[DiskId]>::to_vec);
            if !stats.is_all_on(&enough) && !is_early {
                let name = fs.name();
                return Err(format!(
                    "metadata of volume {name} stays on the disk: it could be copied to no other one; see whether \
                     they have space for it"
                ));
            }
            // It is told that the log goes on without it.
            left = self.all_meta_disks(volume_id);
            left.retain(|(disk, _)| *disk == id);
        }
        tracing::info!(volume = fs.name(), "opening the volume on other disks");
        self.reopen(fs, disks, left).await
    }

    /// A change of where metadata is that a disk may hold up.
    async fn change_metadata(
        &self,
        fs: &Fs,
        change: impl Future<Output = Result<(), MetaError>> + Send,
    ) -> Result<(), String> {
        let name = fs.name();
        match self.while_it_works(fs, change).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(format!(
                "the metadata of volume {name} stays on the disk: {error}"
            )),
            None => Err(format!(
                "metadata of volume {name} stays on the disk: the disk of its state does not answer, or there is no \
                 space for its log"
            )),
        }
    }

    /// Waits for work that needs a volume's metadata, but not for ever where that is on a disk which may never
    /// answer, or its log finds no space, which only another change may make: `None` then, and the work is given up.
    pub async fn while_it_works<T>(
        &self,
        fs: &Fs,
        work: impl Future<Output = T> + Send,
    ) -> Option<T> {
        let clock = &self.env.clock;
        let mut work = Box::pin(work);
        let mut until = None;
        loop {
            match select(work, clock.sleep(TROUBLE_INTERVAL)).await {
                Either::Left((done, _)) => return Some(done),
                Either::Right((_, rest)) => work = rest,
            }
            if self.metadata_trouble(fs).is_none() && !fs.meta().is_full() {
                until = None;
                continue;
            }
            let now = clock.monotonic();
            if now >= *until.get_or_insert(now + CLOSE_MAX) {
                return None;
            }
        }
    }

    /// Has a volume's metadata kept on as many disks as its settings want, not counting draining ones: as long as
    /// some of it is on them, nothing tells which disks have the copies. The status says if copies are missing;
    /// they are made when there is space.
    pub(crate) async fn set_copies(&self, fs: &Fs, settings: &VolumeSettings) {
        if let Err(why) = self.try_to_set_copies(fs, settings).await {
            tracing::warn!(
                volume = fs.name(),
                why,
                "copies of the metadata are missing"
            );
        }
    }

    pub(crate) async fn try_to_set_copies(
        &self,
        fs: &Fs,
        settings: &VolumeSettings,
    ) -> Result<(), String> {
        let set = fs
            .meta()
            .log()
            .set_copies(self.copies_to_keep(fs, settings));
        match self.while_it_works(fs, set).await {
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// So many copies of a volume's metadata are kept, those on draining disks included.
    pub(crate) fn copies_to_keep(&self, fs: &Fs, settings: &VolumeSettings) -> usize {
        if self.seats.is_some() {
            // The list of log and state tells which disks have the copies, and those of draining ones are made again elsewhere.
            return self.metadata_copies(settings);
        }
        let state = self.state();
        let draining = state.disks.iter().filter(|disk| disk.draining);
        let on_leaving = draining.filter(|disk| fs.meta().log().keeps_on_disk(disk.id));
        copies_of_metadata(self.metadata_copies(settings), on_leaving.count())
    }

    /// Closes a volume and opens it with its metadata on `disks`, and not on those that it left. Clients wait meanwhile: they are told to try
    /// again later. The write verifier changes, so they send again what was not committed.
    ///
    /// The caller holds the changes, so that no volume is opened twice at a time.
    async fn reopen(&self, fs: &Fs, disks: MetaDisks, left: MetaDisks) -> Result<(), String> {
        if !self.close_or_leave(fs).await {
            self.wait_until_idle().await;
        }
        self.open_closed(fs, disks, left).await
    }

    /// Closes a volume that is opened again; says whether it did close. One that does not is left behind, and what it
    /// began is waited for before it is opened.
    async fn close_or_leave(&self, fs: &Fs) -> bool {
        match self.while_it_works(fs, fs.close()).await {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::warn!(volume = fs.name(), %error, "the volume did not close cleanly; it is recovered");
                true
            }
            None => {
                // Something of it waits for a disk that may never answer. Whatever it may still do, nobody
                // hears of it, and it puts nothing on the disks.
                tracing::error!(
                    volume = fs.name(),
                    "the volume does not close; it is abandoned, and recovered from the log"
                );
                fs.abandon();
                false
            }
        }
    }

    async fn open_closed(&self, fs: &Fs, disks: MetaDisks, left: MetaDisks) -> Result<(), String> {
        let pool = self.state();
        let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) else {
            return Ok(());
        };
        let count = pool.volumes.len();
        let opened = self.open_volume(volume, count, disks, left).await;
        let (service, result) = match opened {
            Ok(fs) => (VolumeService::Serving(fs), Ok(())),
            Err(why) => {
                tracing::error!(volume = %volume.name, %why, "this volume is not served");
                let told = format!("volume {} could not be opened again: {why}", volume.name);
                (VolumeService::Failed(why), Err(told))
            }
        };
        self.set_service(volume.id, Some(service));
        self.follow_listed(volume).await;
        self.publish();
        result
    }

    /// Waits until what was asked of the disks that are used before now is done, or they are not used any more:
    /// what a volume that is left behind began to write could else land on what is written in its place.
    pub(crate) async fn wait_until_idle(&self) {
        let since = self.env.clock.monotonic();
        loop {
            self.env.clock.sleep(ABANDON_PAUSE).await;
            let now = self.env.clock.monotonic();
            let disks = self.all_meta_disks(None).into_iter();
            let mut is_idle = disks.map(|(_, disk)| self.watch.is_idle(&disk, since));
            // The last disk is waited for when it hangs, but not here.
            if is_idle.all(|idle| idle)
                || now.saturating_sub(since) > self.watch.hang_after() + IDLE_AFTER_HANG
            {
                return;
            }
        }
    }

    /// Why the metadata of a volume cannot be worked with where it is, if that is so.
    pub fn metadata_trouble(&self, fs: &Fs) -> Option<String> {
        if let Some(failure) = fs.meta().failure() {
            return Some(failure.to_string());
        }
        let table = self.table();
        let primary = fs.meta().log().primary_disk();
        let has_failed = table.condition(primary) == Condition::Failed;
        let why = || {
            table
                .why_out(primary)
                .unwrap_or("the disk fails")
                .to_owned()
        };
        has_failed.then(why)
    }

    /// What metadata met on a disk, if it is not kept there any more for that.
    pub fn metadata_problem(&self, id: DiskId) -> Option<String> {
        if let Some((volume, why)) = self.table().why_avoided(id) {
            let of = volume.map_or(String::new(), |volume| format!(" of volume {volume}"));
            return Some(format!("it no longer holds metadata{of}: {why}"));
        }
        let failed = |fs: &Fs| fs.meta().stats().failed_disks.contains(&id);
        let fs = self.serving_all().into_iter().find(failed)?;
        Some(format!(
            "metadata of volume {} could not be written to the disk, which gets none of it until the next start",
            fs.name()
        ))
    }

    /// Opens volumes again whose metadata failed, or is on a disk that did.
    pub async fn reopen_failed(&self) {
        let in_trouble = |fs: &Fs| self.metadata_trouble(fs).is_some();
        if !self.serving_all().iter().any(in_trouble) {
            return;
        }
        let _changes = self.changes().await;
        let mut failed = Vec::new();
        for fs in self.serving_all() {
            let Some(why) = self.metadata_trouble(&fs) else {
                continue;
            };
            let primary = fs.meta().log().primary_disk();
            let mut others = self.all_meta_disks(Some(fs.volume()));
            others.retain(|(id, _)| *id != primary);
            // It could not even be opened there: one that was just added has nothing of it yet.
            if !fs.meta().stats().is_all_on(&ids(&others)) {
                continue;
            }
            tracing::error!(volume = fs.name(), disk = %primary, why, "metadata failed; opening the volume on other disks");
            let is_damaged = fs
                .meta()
                .failure()
                .is_some_and(|failure| failure.is_damage());
            let volume = is_damaged.then(|| fs.volume());
            self.change_table(|table| table.avoid(primary, volume, why));
            failed.push(fs);
        }
        // All at a time: each may wait for the one disk that they have in common, and all their clients with it.
        let closed = join_all(failed.iter().map(|fs| self.close_or_leave(fs))).await;
        if closed.contains(&false) {
            self.wait_until_idle().await;
        }
        for some in failed.chunks(OPEN_CONCURRENCY) {
            let opening = some.iter().map(|fs| {
                let disks = self.all_meta_disks(Some(fs.volume()));
                self.open_closed(fs, disks, Vec::new())
            });
            // The obstacle was logged, and the status says it.
            let _ = join_all(opening).await;
        }
    }

    /// There is room on a disk that had too little: volumes that could not be opened are tried soon.
    pub(crate) fn open_failed_soon(&self, now: Duration) {
        let pool = self.state();
        let ids = pool.volumes.iter().map(|volume| volume.id);
        let failed: Vec<VolumeId> = ids.filter(|id| self.waits_to_open(*id)).collect();
        let mut again = self.open_again.lock();
        for id in failed {
            let first = || OpenAgain::new(now);
            again.entry(id).or_insert_with(first).note_room(now);
        }
    }

    /// Whether a volume could not be opened, or only to be read.
    fn waits_to_open(&self, id: VolumeId) -> bool {
        match self.service(id) {
            Some(VolumeService::Serving(fs)) => fs.read_only().is_some(),
            Some(VolumeService::Failed(_)) => true,
            None => false,
        }
    }

    /// Tries volumes again that could not be opened, or only to be read: what was in the way may be gone.
    pub async fn open_failed(&self) {
        let now = || self.env.clock.monotonic();
        let due: Vec<VolumeId> = {
            let pool = self.state();
            let failed = pool.volumes.iter();
            let failed = failed.filter(|volume| self.waits_to_open(volume.id));
            let failed: Vec<&PoolVolume> = failed.collect();
            // One without its key costs none of its tries.
            let can_be_opened = |volume: &&&PoolVolume| self.key_trouble(volume).is_none();
            let unlocked = failed.iter().filter(can_be_opened);
            let unlocked: Vec<VolumeId> = unlocked.map(|volume| volume.id).collect();
            let mut again = self.open_again.lock();
            again.retain(|id, _| failed.iter().any(|volume| volume.id == *id));
            let now = now();
            let is_due = |id: &VolumeId| {
                let first = || OpenAgain::new(now);
                again.entry(*id).or_insert_with(first).is_due(now)
            };
            unlocked.into_iter().filter(is_due).collect()
        };
        for id in due {
            let _changes = self.changes().await;
            let pool = self.state();
            // It may have been deleted meanwhile.
            let Some(volume) = pool.volumes.iter().find(|volume| volume.id == id) else {
                continue;
            };
            if !self.waits_to_open(id) || self.is_stopping() {
                continue;
            }
            if let Some(VolumeService::Serving(fs)) = self.service(id) {
                // Where its state is on a disk that failed, another copy may be read at least.
                if self.metadata_trouble(&fs).is_none() && !self.has_room_to_open() {
                    // Its readers would have to wait for nothing.
                    if let Some(again) = self.open_again.lock().get_mut(&id) {
                        again.put_off(now());
                    }
                    continue;
                }
                // A reader may wait for a disk that never answers, and all changes of the pool wait for this.
                if !self.close_or_leave(&fs).await {
                    self.wait_until_idle().await;
                }
            }
            let disks = self.all_meta_disks(Some(id));
            let opened = self.open_volume(volume, pool.volumes.len(), disks, Vec::new());
            match opened.await {
                Ok(fs) if fs.read_only().is_some() => {
                    self.set_service(id, Some(VolumeService::Serving(fs)));
                    if let Some(again) = self.open_again.lock().get_mut(&id) {
                        again.note_failure(now());
                    }
                    self.publish();
                }
                Ok(fs) => {
                    tracing::info!(volume = %volume.name, "this volume is served now");
                    self.set_service(id, Some(VolumeService::Serving(fs)));
                    self.open_again.lock().remove(&id);
                    self.publish();
                }
                Err(why) => {
                    tracing::warn!(volume = %volume.name, %why, "this volume is still not served");
                    let before = self.set_service(id, Some(VolumeService::Failed(why)));
                    if matches!(before, Some(VolumeService::Serving(_))) {
                        self.publish();
                    }
                    if let Some(again) = self.open_again.lock().get_mut(&id) {
                        again.note_failure(now());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_tried_again_later_and_later_and_not_for_ever() {
        let seconds = |now: u64| Duration::from_secs(now);
        let mut again = OpenAgain::new(seconds(0));
        let mut tries = Vec::new();
        for now in (0..10_000).map(seconds) {
            if again.is_due(now) {
                tries.push(now.as_secs());
                again.note_failure(now);
            }
        }
        let want = [10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030];
        assert_eq!(tries, want);
    }

    #[test]
    fn a_volume_that_is_read_waits_longer_and_loses_no_try_while_nothing_changes() {
        let mut again = OpenAgain::new(Duration::ZERO);
        let mut looks = Vec::new();
        for now in (0..2000).map(Duration::from_secs) {
            if again.is_due(now) {
                looks.push(now.as_secs());
                again.put_off(now);
            }
        }
        assert_eq!(looks, [10, 30, 70, 150, 310, 630, 1230, 1830]);
        assert_eq!(again.tries_left, OPEN_TRIES_MAX);
        // Room that is too little, again and again.
        for now in (2000..2000 + 3 * u64::from(ROOM_TRIES_MAX)).map(Duration::from_secs) {
            again.note_room(now);
            assert!(again.is_due(now + ROOM_PAUSE_MAX), "room came");
            again.put_off(now);
        }
    }

    #[test]
    fn where_room_came_a_volume_is_tried_within_seconds() {
        let mut again = OpenAgain::new(Duration::ZERO);
        for nth in 0..ROOM_TRIES_MAX {
            let now = Duration::from_secs(1000 * u64::from(nth));
            again.note_failure(now);
            assert!(!again.is_due(now + ROOM_PAUSE_MAX), "{now:?}");
            again.note_room(now);
            assert!(!again.is_due(now), "{now:?}");
            assert!(again.is_due(now + ROOM_PAUSE_MAX), "{now:?}");
        }
        let now = Duration::from_secs(1_000_000);
        again.note_failure(now);
        again.note_room(now);
        assert!(!again.is_due(now + ROOM_PAUSE_MAX), "not for ever");
    }
}
