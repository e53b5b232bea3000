//! Disks come and go while the pool is served.
//!
//! Owns: adding, draining, removing and replacing of disks, what each of these requires, moving a
//! volume's metadata off a disk, opening a volume again whose metadata failed with its disk.
//! Must not know: how data is moved; `rebuild` sees to that once the pool file says what is wanted.
//!
//! A change is one writing of the pool file. What has to follow it is found again after a restart.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::{DiskId, VolumeId};
use cairn_config::{DATA_FOLDERS_MAX, VolumeSettings};
use cairn_fs::Fs;
use cairn_meta::MetaError;
use cairn_shard::ShardDisk;
use futures_util::future::{Either, select};
use tokio::runtime::Handle;

use crate::assemble::Content;
use crate::convert;
use crate::disks::{Folder, is_half_wiped, is_still_there, open_disk, shard_settings, wipe};
use crate::node::{ChangeFailure, Inner, MetaDisks, VolumeService};
use crate::pool::{PoolDisk, PoolState, PoolVolume};
use crate::rebuild::Standing;
use crate::watch::HANG_AFTER;

/// The beginning of an id must be so long to stand for it.
const ID_DIGITS_MIN: usize = 4;
/// A volume whose metadata is on a disk that fails may take so long to close before it is left behind.
const CLOSE_MAX: Duration = Duration::from_secs(15);
/// How often it is looked whether the disk with the metadata that somebody waits for works.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(1);
/// What a volume that is left behind began to write past the disks, to their folders, is there after so long.
const ABANDON_PAUSE: Duration = Duration::from_secs(1);
/// A folder that is to become a disk must answer within so long.
const FOLDER_ANSWER_MAX: Duration = HANG_AFTER;
/// And be emptied within so long.
const WIPE_MAX: Duration = Duration::from_secs(600);
/// A volume that cannot be opened is tried again after so long, and then after twice as long each time,
const OPEN_PAUSE: Duration = Duration::from_secs(10);
/// but no less often than this.
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(600);
/// and this often until the next start: each time may cost one of the hundred terms that a log can name.
const OPEN_TRIES_MAX: u32 = 10;
/// What it began to write to disks is waited for, if it must be, a little longer than until they are given up.
const QUIET_MAX: Duration = HANG_AFTER.saturating_add(Duration::from_secs(5));

/// When a volume that could not be opened is tried again.
pub struct OpenAgain {
    at: Duration,
    pause: Duration,
    tries_left: u32,
}

impl OpenAgain {
    fn new(now: Duration) -> Self {
        Self {
            at: now + OPEN_PAUSE,
            pause: OPEN_PAUSE,
            tries_left: OPEN_TRIES_MAX,
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        self.tries_left > 0 && self.at <= now
    }

    fn note_failure(&mut self, now: Duration) {
        self.tries_left = self.tries_left.saturating_sub(1);
        self.pause = (self.pause * 2).min(OPEN_PAUSE_MAX);
        self.at = now + self.pause;
    }
}

impl Inner {
    pub fn disks(&self) -> Vec<Arc<ShardDisk>> {
        self.disks.read().clone()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The disk that the beginning of an id means.
    pub fn find_disk(&self, words: &str) -> Result<PoolDisk, ChangeFailure> {
        let pool = self.pool.load();
        let is_meant = |disk: &&PoolDisk| disk.id.to_string().starts_with(words);
        let mut found = pool.disks.iter().filter(is_meant);
        match (found.next(), found.next()) {
            (Some(disk), None) if words.len() >= ID_DIGITS_MIN => Ok(disk.clone()),
            _ => Err(ChangeFailure::NoDisk(words.to_owned())),
        }
    }

    /// What is done with a folder that is no disk yet, past everything that would notice that it hangs. It is given
    /// up after a while, for nobody else can change anything meanwhile.
    async fn answer_of<T: Send + 'static>(
        &self,
        folder: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ChangeFailure> {
        let done = self.within_time(folder, tokio::task::spawn_blocking(work));
        done.await?.map_err(|error| {
            ChangeFailure::Engine(format!("looking at {folder} broke off: {error}"))
        })
    }

    async fn within_time<T>(
        &self,
        folder: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, ChangeFailure> {
        self.within(FOLDER_ANSWER_MAX, folder, work).await
    }

    async fn within<T>(
        &self,
        time: Duration,
        folder: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, ChangeFailure> {
        match select(std::pin::pin!(work), self.env.clock.sleep(time)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => Err(ChangeFailure::Impossible(format!(
                "{folder} did not answer within {} s; see whether the disk works, then try again",
                time.as_secs()
            ))),
        }
    }

    /// Takes an empty folder into the pool.
    pub async fn disk_add(
        self: &Arc<Self>,
        path: &str,
        wipe_it: bool,
    ) -> Result<DiskId, ChangeFailure> {
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.pool.load());
        let id = self
            .take_in(&mut tried, &mut state, path, wipe_it, None)
            .await?;
        drop(tried);
        self.after_a_change().await;
        Ok(id)
    }

    /// Puts a new disk into the place of another, which leaves.
    pub async fn disk_replace(
        self: &Arc<Self>,
        words: &str,
        path: &str,
        wipe_it: bool,
    ) -> Result<DiskId, ChangeFailure> {
        let old = self.find_disk(words)?;
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.pool.load());
        let id = self
            .take_in(&mut tried, &mut state, path, wipe_it, Some(old.id))
            .await?;
        self.store.disk_leaving(old.id, true);
        drop(tried);
        self.after_a_change().await;
        Ok(id)
    }

    /// Makes a folder a disk, and a member; the one that it replaces leaves.
    async fn take_in(
        &self,
        tried: &mut u64,
        state: &mut PoolState,
        path: &str,
        wipe_it: bool,
        replaces: Option<DiskId>,
    ) -> Result<DiskId, ChangeFailure> {
        let impossible = |why: String| Err(ChangeFailure::Impossible(why));
        if !Path::new(path).is_absolute() {
            return impossible(format!(
                "\"{path}\" is not a path from the root of the server"
            ));
        }
        if state.disks.len() >= DATA_FOLDERS_MAX {
            return impossible(format!("a pool has at most {DATA_FOLDERS_MAX} disks"));
        }
        let given = PathBuf::from(path);
        let given = self
            .answer_of(path, move || given.canonicalize().unwrap_or(given))
            .await?;
        for disk in self.disks() {
            let label = given.display();
            match disk.disk().folder() {
                Some(folder) if folder == given && !disk.health().failed => {
                    return impossible(format!("{label} is a disk of the pool already"));
                }
                // Emptying the one would empty the other.
                Some(folder)
                    if folder != given
                        && (given.starts_with(folder) || folder.starts_with(&given)) =>
                {
                    return impossible(format!(
                        "{label} and the disk {} are one in the other; give a folder beside it",
                        folder.display()
                    ));
                }
                _ => {}
            }
        }
        let (config, runtime) = (self.config.clone(), Handle::current());
        let look = move || runtime.block_on(Folder::look(&given, &config));
        let folder = self.answer_of(path, look).await??;
        let label = folder.label();
        let (config, at) = (self.config.clone(), folder.path.clone());
        let open = move || open_disk(&at, &config);
        let disk: Arc<dyn Disk> = match (folder.content, folder.disk) {
            (Content::Absent | Content::Blank, Some(disk)) => disk,
            (Content::Absent | Content::Blank, None) => self.answer_of(path, open).await??,
            (Content::Disk { identity, state }, _)
                if identity.is_none() && state.is_none() && !is_half_wiped(&folder.path) =>
            {
                return impossible(format!(
                    "{label} is not empty, and nothing in it says that it was a disk of Cairn's; give an empty folder"
                ));
            }
            (Content::Disk { identity, .. }, disk) if wipe_it => {
                let member = identity.filter(|found| {
                    let is_it = |disk: &PoolDisk| disk.id == found.disk;
                    found.pool == state.pool && state.disks.iter().any(is_it)
                });
                match member.map(|member| member.disk) {
                    Some(id) if replaces != Some(id) => {
                        return impossible(format!(
                            "{label} is disk {id} of this pool: start the server anew to use it again, or replace it"
                        ));
                    }
                    // Not used, and perhaps the only place of something nevertheless.
                    Some(id) => self.require_rebuildable(id)?,
                    None => {}
                }
                // Held open meanwhile, so that nobody else takes it: also when it takes longer than anybody waits.
                let (at, held) = (folder.path.clone(), disk.clone());
                let wiping = tokio::task::spawn_blocking(move || {
                    let wiped = wipe(&at);
                    drop(held);
                    wiped
                });
                match self.within(WIPE_MAX, path, wiping).await? {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        return impossible(format!("{label} cannot be wiped: {error}"));
                    }
                    Err(error) => return impossible(format!("wiping {label} broke off: {error}")),
                }
                drop(disk);
                self.answer_of(path, open).await??
            }
            (Content::Disk { .. }, _) => {
                return impossible(format!(
                    "{label} was a disk of Cairn's; if nobody needs what is on it any more, use --wipe"
                ));
            }
            (Content::Foreign { example }, _) => {
                return impossible(format!(
                    "{label} has files that are not Cairn's ({example}); give an empty folder"
                ));
            }
            (Content::Unusable(why), _) => {
                return impossible(format!("{label} cannot be used: {why}"));
            }
        };
        let disk = self.watched(disk);
        let id = DiskId(self.env.entropy.u128());
        let now = self.env.clock.now();
        let failed = |error: &dyn std::fmt::Display| ChangeFailure::Engine(error.to_string());
        let pool = state.pool;
        let settings = shard_settings(&self.config);
        let begin = async {
            ShardDisk::format(Arc::clone(&disk), pool, id, now).await?;
            ShardDisk::open(Arc::clone(&disk), pool, settings).await
        };
        let begun = self.within_time(path, begin).await?;
        let opened = begun.map_err(|error| failed(&error))?;
        let mut member = PoolDisk::new(id, label, now);
        member.by_label = true;
        state.disks.push(member);
        if let Some(old) = replaces.and_then(|old| state.disk_mut(old)) {
            old.leaving = true;
            old.replaced = true;
        }
        self.disks.write().push(Arc::clone(&opened));
        if let Err(error) = self.save(tried, state).await {
            self.disks.write().retain(|disk| disk.id() != id);
            return Err(error);
        }
        self.store.disk_join(Arc::clone(&opened));
        for fs in self.serving_all() {
            fs.meta().add_disk(id, Arc::clone(opened.disk()));
        }
        tracing::info!(disk = opened.label(), %id, "a disk joined the pool");
        Ok(id)
    }

    /// Starts to move everything off a disk, or stops that.
    pub async fn disk_drain(
        self: &Arc<Self>,
        words: &str,
        draining: bool,
    ) -> Result<DiskId, ChangeFailure> {
        let disk = self.find_disk(words)?;
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.pool.load());
        if draining && !disk.leaving {
            self.require_room(&state, disk.id)?;
        }
        if let Some(entry) = state.disk_mut(disk.id) {
            entry.leaving = draining;
            entry.replaced &= draining;
        }
        self.save(&mut tried, &mut state).await?;
        self.store.disk_leaving(disk.id, draining);
        if !draining && let Some(there) = self.disks().iter().find(|there| there.id() == disk.id) {
            for fs in self.serving_all() {
                fs.meta().add_disk(disk.id, Arc::clone(there.disk()));
            }
        }
        drop(tried);
        tracing::info!(disk = disk.label, draining, "draining");
        self.after_a_change().await;
        Ok(disk.id)
    }

    /// Whether the pool can do without a disk: enough others for every volume's protection, and room.
    fn require_room(&self, state: &PoolState, id: DiskId) -> Result<(), ChangeFailure> {
        let standings = self.standings();
        let fine =
            |disk: &&PoolDisk| disk.id != id && standings.get(&disk.id) == Some(&Standing::Fine);
        if !state.disks.iter().any(|disk| fine(&disk)) {
            let why = "there is no other disk that works: add one first".to_owned();
            return Err(ChangeFailure::Impossible(why));
        }
        let was_leaving = self.store.is_disk_leaving(id);
        self.store.disk_leaving(id, true);
        let codes = state.volumes.iter().map(|volume| {
            self.store
                .code_for(convert::protection(volume.settings.protection))
                .map_err(|error| format!("volume {}: {error}", volume.name))
        });
        let codes: Result<Vec<_>, String> = codes.collect();
        let (needed_bytes, room_bytes) = self.room_to_leave(id);
        self.store.disk_leaving(id, was_leaving);
        codes.map_err(ChangeFailure::Impossible)?;
        if needed_bytes > room_bytes {
            return Err(ChangeFailure::Impossible(format!(
                "what is on it takes {} on the other disks, and {} are free there beside the reserve: \
                 add a disk or delete data first",
                cairn_base::units::format_size(needed_bytes),
                cairn_base::units::format_size(room_bytes)
            )));
        }
        Ok(())
    }

    /// Takes a disk out of the pool, and empties its folder.
    pub async fn disk_remove(
        self: &Arc<Self>,
        words: &str,
        force: bool,
    ) -> Result<(), ChangeFailure> {
        let gone = self.leave(words, force).await?;
        self.empty(gone).await;
        Ok(())
    }

    /// Takes a disk out of the pool; returns it, if it is there.
    async fn leave(
        self: &Arc<Self>,
        words: &str,
        force: bool,
    ) -> Result<Option<Arc<ShardDisk>>, ChangeFailure> {
        let disk = self.find_disk(words)?;
        let impossible = |why: String| Err(ChangeFailure::Impossible(why));
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.pool.load());
        if state.disks.len() == 1 {
            return impossible("it is the only disk".to_owned());
        }
        self.require_all_served()?;
        self.require_named(&state, disk.id)?;
        // From here on nothing new is put on it.
        self.store.disk_leaving(disk.id, true);
        let taken_out = self.take_out(&mut tried, &mut state, &disk, force).await;
        if let Err(failure) = taken_out {
            self.keep(disk.id);
            return Err(failure);
        }
        self.store.disk_forget(disk.id);
        let gone = {
            let mut disks = self.disks.write();
            let gone = disks.iter().find(|there| there.id() == disk.id).cloned();
            disks.retain(|there| there.id() != disk.id);
            gone
        };
        self.missing
            .write()
            .retain(|entry| entry.disk.id != disk.id);
        drop(tried);
        tracing::info!(disk = disk.label, "a disk left the pool");
        self.after_a_change().await;
        Ok(gone)
    }

    /// Empties the folder of a disk that left, so that it is taken for an empty one, and not for a disk of this pool.
    /// Nobody watches it any more, so nothing else may wait for this.
    async fn empty(&self, gone: Option<Arc<ShardDisk>>) {
        let Some(gone) = gone else { return };
        let Some(folder) = gone.disk().folder().map(Path::to_owned) else {
            return;
        };
        let label = gone.label();
        if gone.health().failed {
            tracing::warn!(disk = label, "the removed disk failed; it is left alone");
            return;
        }
        match self
            .within_time(label, is_still_there(&gone, &folder))
            .await
        {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    disk = label,
                    "what is in the folder now is not the disk that was removed; it is left alone"
                );
                return;
            }
            Err(error) => {
                tracing::warn!(disk = label, %error, "the removed disk is left alone");
                return;
            }
        }
        // What is still on its way there would make names anew behind the wiping.
        self.watch.let_go(gone.disk());
        let wiped = tokio::task::spawn_blocking(move || wipe(&folder)).await;
        if let Ok(Err(error)) = wiped {
            tracing::warn!(disk = label, %error, "the removed disk was not emptied");
        }
    }

    /// Takes a disk that leaves out of the pool file, if nothing is on it that is nowhere else.
    async fn take_out(
        self: &Arc<Self>,
        tried: &mut u64,
        state: &mut PoolState,
        disk: &PoolDisk,
        force: bool,
    ) -> Result<(), ChangeFailure> {
        let impossible = |why: String| Err(ChangeFailure::Impossible(why));
        // What was on its way there when it began to leave: segments being made are known then, and a shard
        // whose move is being made durable is in the metadata. Moves that come later find that it leaves.
        self.store.placements_done().await;
        drop(self.rebuild.commits.lock().await);
        let shards = self.shards_by_disk().get(&disk.id).copied().unwrap_or(0);
        if shards > 0 && !force {
            return impossible(format!(
                "{shards} shards are on it: drain it first (`cairn disk drain`), or with --force have them rebuilt from the others"
            ));
        }
        if shards > 0 {
            self.require_rebuildable(disk.id)?;
            self.require_room(state, disk.id)?;
        }
        if let Err(why) = self.metadata_off(disk.id).await {
            return impossible(why);
        }
        state.remove_disk(disk.id);
        self.save(tried, state).await
    }

    /// A disk that was to be removed stays: things are put on it again, unless it is drained.
    fn keep(&self, id: DiskId) {
        let pool = self.pool.load();
        let leaving = pool.disks.iter().any(|disk| disk.id == id && disk.leaving);
        self.store.disk_leaving(id, leaving);
        if leaving {
            return;
        }
        if let Some(there) = self.disks().iter().find(|there| there.id() == id) {
            for fs in self.serving_all() {
                if !fs.meta().keeps_on_disk(id) {
                    fs.meta().add_disk(id, Arc::clone(there.disk()));
                }
            }
        }
    }

    fn require_all_served(&self) -> Result<(), ChangeFailure> {
        let pool = self.pool.load();
        let is_served = |volume: &&PoolVolume| {
            matches!(self.service(volume.id), Some(VolumeService::Serving(_)))
        };
        match pool.volumes.iter().find(|volume| !is_served(volume)) {
            None => Ok(()),
            Some(volume) => Err(ChangeFailure::Impossible(format!(
                "volume {} is not served, so nobody knows whether it needs this disk",
                volume.name
            ))),
        }
    }

    /// Whether the next start would find the pool without a disk: on a folder of those that the configuration names.
    /// Where it finds only empty ones it makes a new pool.
    fn require_named(&self, state: &PoolState, id: DiskId) -> Result<(), ChangeFailure> {
        let is_named = |disk: &PoolDisk| {
            let label = Path::new(&disk.label);
            self.named.iter().any(|place| place == label)
        };
        let (mut gone, mut others) = (false, Vec::new());
        for disk in &state.disks {
            match disk.id == id {
                true => gone = is_named(disk),
                false => others.push(disk),
            }
        }
        if !gone || others.iter().any(|disk| is_named(disk)) {
            return Ok(());
        }
        let labels: Vec<&str> = others.iter().map(|disk| disk.label.as_str()).collect();
        Err(ChangeFailure::Impossible(format!(
            "it is the last one of those that `data` in the configuration or --data names, and the next start would \
             make a new pool there: name {} instead, and start the server anew",
            labels.join(", ")
        )))
    }

    /// Whether everything that is on a disk could be had from the others.
    fn require_rebuildable(&self, id: DiskId) -> Result<(), ChangeFailure> {
        self.require_all_served()?;
        let standings = self.standings();
        let is_there = |disk: &&DiskId| {
            **disk != id
                && matches!(
                    standings.get(disk),
                    Some(Standing::Fine | Standing::Leaving)
                )
        };
        for fs in self.serving_all() {
            for info in self.store.segments(fs.volume()) {
                let others = info.disks.iter().filter(is_there).count();
                if info.disks.contains(&id) && others < usize::from(info.code.data()) {
                    return Err(ChangeFailure::Impossible(format!(
                        "volume {} has data that could not be had without it (segment {}): drain it instead",
                        fs.name(),
                        info.id
                    )));
                }
            }
        }
        Ok(())
    }

    /// A replaced disk with nothing on it leaves by itself. Says what is in the way, if anything is.
    pub async fn finish_replaced(self: &Arc<Self>, id: DiskId) -> Option<String> {
        let is_replaced = self
            .pool
            .load()
            .disks
            .iter()
            .any(|disk| disk.id == id && disk.replaced);
        if !is_replaced {
            return None;
        }
        match self.leave(&id.to_string(), false).await {
            Ok(gone) => {
                // A disk that was replaced may take long for that, or never end it.
                let inner = Arc::clone(self);
                let task = async move { inner.empty(gone).await };
                self.env.spawner.spawn("empty disk", Box::pin(task));
                None
            }
            Err(error) => Some(format!("the replaced disk {id} stays: {error}")),
        }
    }

    /// Keeps a volume's metadata on enough disks, closes segments that touch one that leaves, or were begun with fewer
    /// disks, and has the data moved.
    async fn after_a_change(self: &Arc<Self>) {
        let pool = self.pool.load_full();
        for fs in self.serving_all() {
            let settings = pool.volumes.iter().find(|volume| volume.id == fs.volume());
            if let Some(volume) = settings {
                self.set_copies(&fs, &volume.settings).await;
            }
            self.store.seal_all(fs.volume()).await;
        }
        self.rebuild.wake();
    }

    pub fn serving_all(&self) -> Vec<Fs> {
        let services = self.volumes.read();
        let serving = services.values().filter_map(|service| match service {
            VolumeService::Serving(fs) => Some(fs.clone()),
            VolumeService::Failed(_) => None,
        });
        serving.collect()
    }

    /// Sees to it that no volume needs a disk for its metadata. Says what is in the way, if anything is.
    pub async fn metadata_off(&self, id: DiskId) -> Result<(), String> {
        for fs in self.serving_all() {
            if fs.meta().primary_disk() == id {
                self.move_state(&fs, id).await?;
            }
            // It may have been opened again.
            if let Some(VolumeService::Serving(fs)) = self.service(fs.volume()) {
                self.retire(&fs, id).await?;
            }
        }
        Ok(())
    }

    /// Keeps nothing of a volume's metadata on a disk any more on which its state is not.
    async fn retire(&self, fs: &Fs, id: DiskId) -> Result<(), String> {
        if !fs.meta().uses_disk(id) {
            return Ok(());
        }
        self.change_metadata(fs, fs.meta().retire_disk(id)).await?;
        // Not one more any longer.
        let pool = self.pool.load_full();
        if let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) {
            self.set_copies(fs, &volume.settings).await;
        }
        Ok(())
    }

    /// Opens a volume with its state on a disk that stays, instead of this one.
    async fn move_state(&self, fs: &Fs, id: DiskId) -> Result<(), String> {
        // It may be none of those that leave, but about to be removed.
        let others = |mut disks: MetaDisks| {
            disks.retain(|(disk, _)| *disk != id);
            disks
        };
        if others(self.meta_disks()).is_empty() {
            let name = fs.name();
            return Err(format!(
                "metadata of volume {name} stays on the disk: no other one works that does not leave, too"
            ));
        }
        let mut disks = others(self.all_meta_disks());
        let mut left = Vec::new();
        // Of a disk that failed nothing can be had; the others have what it had.
        if self.metadata_trouble(fs).is_none() {
            let pool = self.pool.load_full();
            for leaving in pool.disks.iter().filter(|disk| disk.leaving) {
                if leaving.id != id {
                    self.retire(fs, leaving.id).await?;
                }
            }
            let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) else {
                return Ok(());
            };
            // The disk still has one of the copies, and the others have all that is wanted without it: also of what
            // is changed from here on until the volume is closed.
            let copies = self.metadata_copies(&volume.settings) + 1;
            let copied = async {
                fs.meta().set_copies(copies).await?;
                fs.meta().ship().await
            };
            self.change_metadata(fs, copied).await?;
            // One that failed for the metadata alone is not up to date, and nothing on it says so.
            let stats = fs.meta().stats();
            disks = others(self.meta_disks());
            disks.retain(|(disk, _)| !stats.failed_disks.contains(disk));
            if !disks.iter().any(|(disk, _)| stats.log_disks.contains(disk)) {
                let name = fs.name();
                return Err(format!(
                    "metadata of volume {name} stays on the disk: it could be copied to no other one"
                ));
            }
            // It is told that the log goes on without it.
            left = self.all_meta_disks();
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
                "metadata of volume {name} stays on the disk: {error}"
            )),
            None => Err(format!(
                "metadata of volume {name} stays on the disk: the disk of its state does not answer"
            )),
        }
    }

    /// Waits for work that needs a volume's metadata, but not for ever where that is on a disk which may never
    /// answer: `None` then, and the work is given up.
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
            if self.metadata_trouble(fs).is_some() {
                let now = clock.monotonic();
                if now >= *until.get_or_insert(now + CLOSE_MAX) {
                    return None;
                }
            }
        }
    }

    /// Has a volume's metadata kept on as many disks as its settings want, not counting those that leave: as long as
    /// some of it is on them, nothing tells which disks have the copies. The status says if copies are missing;
    /// they are made when there is space.
    pub async fn set_copies(&self, fs: &Fs, settings: &VolumeSettings) {
        let pool = self.pool.load();
        let leaving = pool.disks.iter().filter(|disk| disk.leaving);
        let leaving = leaving
            .filter(|disk| fs.meta().keeps_on_disk(disk.id))
            .count();
        drop(pool);
        let set = fs
            .meta()
            .set_copies(self.metadata_copies(settings) + leaving);
        if let Some(Err(error)) = self.while_it_works(fs, set).await {
            tracing::warn!(volume = fs.name(), %error, "the metadata does not have its copies yet");
        }
    }

    /// Closes a volume and opens it with its metadata on `disks`, and not on those that it left. Clients wait meanwhile: they are told to try
    /// again later. The write verifier changes, so they send again what was not committed.
    ///
    /// The caller holds the changes, so that no volume is opened twice at a time.
    async fn reopen(&self, fs: &Fs, disks: MetaDisks, left: MetaDisks) -> Result<(), String> {
        let pool = self.pool.load_full();
        let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) else {
            return Ok(());
        };
        let closed = self.while_it_works(fs, fs.close()).await;
        match closed {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(volume = %volume.name, %error, "the volume did not close cleanly; it is recovered");
            }
            None => {
                // Something of it waits for a disk that may never answer. Whatever it may still do, nobody
                // hears of it, and it puts nothing on the disks.
                tracing::error!(volume = %volume.name, "the volume does not close; it is left behind, and recovered from the log");
                fs.abandon();
                self.wait_until_quiet().await;
            }
        }
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
        self.volumes.write().insert(volume.id, service);
        self.apply_exports(&pool);
        result
    }

    /// Waits until what was asked of the disks that are used before now is done, or they are not used any more:
    /// what a volume that is left behind began to write could else land on what is written in its place.
    async fn wait_until_quiet(&self) {
        let since = self.env.clock.monotonic();
        loop {
            self.env.clock.sleep(ABANDON_PAUSE).await;
            let now = self.env.clock.monotonic();
            let disks = self.all_meta_disks().into_iter();
            let mut is_quiet = disks.map(|(_, disk)| self.watch.is_quiet(&disk, since));
            // The last disk is waited for when it hangs, but not here.
            if is_quiet.all(|quiet| quiet) || now.saturating_sub(since) > QUIET_MAX {
                return;
            }
        }
    }

    /// Whether a volume is served by this one still, and not by another that was opened since.
    fn is_current(&self, fs: &Fs) -> bool {
        match self.service(fs.volume()) {
            Some(VolumeService::Serving(now)) => Arc::ptr_eq(now.meta(), fs.meta()),
            Some(VolumeService::Failed(_)) | None => false,
        }
    }

    /// Why the metadata of a volume cannot be worked with where it is, if that is so.
    fn metadata_trouble(&self, fs: &Fs) -> Option<String> {
        if let Some(failure) = fs.meta().failure() {
            return Some(failure.to_string());
        }
        let primary = fs.meta().primary_disk();
        let disks = self.disks();
        let disk = disks.iter().find(|disk| disk.id() == primary)?;
        let why = || self.watch.problem(disk.disk());
        let failed = disk.health().failed;
        failed.then(|| why().unwrap_or_else(|| "the disk fails".to_owned()))
    }

    /// What metadata met on a disk, if it is not kept there any more for that.
    pub fn metadata_problem(&self, id: DiskId) -> Option<String> {
        if let Some(why) = self.avoided.lock().get(&id) {
            return Some(format!("it is not used for metadata any more: {why}"));
        }
        let failed = |fs: &Fs| fs.meta().stats().failed_disks.contains(&id);
        let fs = self.serving_all().into_iter().find(failed)?;
        Some(format!(
            "metadata of volume {} could not be written there; it is not until the next start",
            fs.name()
        ))
    }

    /// Opens volumes again whose metadata failed, or is on a disk that did.
    pub async fn reopen_failed(&self) {
        for fs in self.serving_all() {
            if self.metadata_trouble(&fs).is_none() {
                continue;
            }
            let _changes = self.changes.lock().await;
            // Another change may have opened it meanwhile.
            let Some(why) = self.metadata_trouble(&fs).filter(|_| self.is_current(&fs)) else {
                continue;
            };
            let primary = fs.meta().primary_disk();
            let others = self.all_meta_disks().iter().any(|(id, _)| *id != primary);
            if !others {
                continue;
            }
            tracing::error!(volume = fs.name(), disk = %primary, why, "metadata failed; opening the volume on other disks");
            self.avoided.lock().insert(primary, why);
            // What is in the way was logged, and the status says it.
            let _ = self
                .reopen(&fs, self.all_meta_disks(), Vec::new())
                .await;
        }
    }

    /// Tries volumes again that could not be opened: what was in the way may be gone.
    pub async fn open_failed(&self) {
        let is_failed = |id| matches!(self.service(id), Some(VolumeService::Failed(_)));
        let now = || self.env.clock.monotonic();
        let due: Vec<VolumeId> = {
            let pool = self.pool.load();
            let ids = pool.volumes.iter().map(|volume| volume.id);
            let failed: Vec<VolumeId> = ids.filter(|id| is_failed(*id)).collect();
            let mut again = self.open_again.lock();
            again.retain(|id, _| failed.contains(id));
            let now = now();
            let is_due = |id: &VolumeId| {
                let first = || OpenAgain::new(now);
                again.entry(*id).or_insert_with(first).is_due(now)
            };
            failed.into_iter().filter(is_due).collect()
        };
        for id in due {
            let _changes = self.changes.lock().await;
            let pool = self.pool.load_full();
            // It may have been deleted meanwhile.
            let Some(volume) = pool.volumes.iter().find(|volume| volume.id == id) else {
                continue;
            };
            if !is_failed(id) || self.is_stopping() {
                continue;
            }
            let disks = self.all_meta_disks();
            let opened = self.open_volume(volume, pool.volumes.len(), disks, Vec::new());
            match opened.await {
                Ok(fs) => {
                    tracing::info!(volume = %volume.name, "this volume is served now");
                    self.volumes.write().insert(id, VolumeService::Serving(fs));
                    self.open_again.lock().remove(&id);
                    self.apply_exports(&pool);
                }
                Err(why) => {
                    tracing::warn!(volume = %volume.name, %why, "this volume is still not served");
                    self.volumes.write().insert(id, VolumeService::Failed(why));
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
}
