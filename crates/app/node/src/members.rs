//! Disks come and go while the pool is served.
//!
//! Owns: adding, draining, removing and replacing of disks, what each of these requires.
//! Must not know: how data is moved; `rebuild` sees to that once the pool file says what is wanted, and `metadata` to
//! what volumes keep there beside it.
//!
//! A change is one writing of the pool file. What has to follow it is found again after a restart.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_config::DATA_FOLDERS_MAX;
use cairn_formats::pool_file::{PoolDisk, PoolState, PoolVolume};
use cairn_fs::Fs;
use cairn_shard::ShardDisk;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::MutexGuard;

use crate::assemble::Content;
use crate::convert;
use crate::disks::shard_settings;
use crate::folder::{Folder, is_half_wiped, is_still_there, open_disk, wipe};
use crate::node::{ChangeFailure, Inner, VolumeService};
use crate::rebuild::Standing;
use crate::token::TOKEN_NAME;
use crate::watch::HANG_AFTER;

/// The beginning of an id must be so long to stand for it.
const ID_DIGITS_MIN: usize = 4;
/// A folder that is to become a disk must answer within so long.
const FOLDER_ANSWER_MAX: Duration = HANG_AFTER;
/// And be emptied within so long.
const WIPE_MAX: Duration = Duration::from_secs(600);
/// So many folders at a time may not answer.
const UNANSWERED_MAX: usize = 4;

/// Work on folders that are no disks yet. Where one hangs its work was given up and keeps a thread until it does not any
/// more; of these there are few.
#[derive(Default)]
pub struct FolderWork(Mutex<Vec<(String, Weak<()>)>>);

impl FolderWork {
    /// What the work holds until its end. Refused where earlier work has not ended, of the same folder or of too many.
    fn begin(&self, folder: &str) -> Result<Arc<()>, ChangeFailure> {
        let mut under_way = self.0.lock();
        under_way.retain(|(_, work)| work.strong_count() > 0);
        let is_same = |(other, _): &(String, Weak<()>)| other == folder;
        let silent = match under_way.iter().find(|work| is_same(work)) {
            None if under_way.len() < UNANSWERED_MAX => {
                let work = Arc::new(());
                under_way.push((folder.to_owned(), Arc::downgrade(&work)));
                return Ok(work);
            }
            None => {
                let folders: Vec<&str> = under_way.iter().map(|(at, _)| at.as_str()).collect();
                folders.join(", ")
            }
            Some(_) => folder.to_owned(),
        };
        Err(ChangeFailure::Impossible(format!(
            "{silent} still does not answer an earlier try; see whether the disk works, then try again"
        )))
    }
}

impl Inner {
    pub fn disks(&self) -> Vec<Arc<ShardDisk>> {
        self.disks.read().clone()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Begins a change of the pool, which goes on alone until what this returns is dropped. None begins any more when
    /// the node stops: its volumes are closed then.
    pub async fn begin_change(&self) -> Result<MutexGuard<'_, u64>, ChangeFailure> {
        let tried = self.changes.lock().await;
        self.require_running()?;
        Ok(tried)
    }

    fn require_running(&self) -> Result<(), ChangeFailure> {
        match self.is_stopping() {
            false => Ok(()),
            true => Err(ChangeFailure::Impossible(
                "the server is stopping: try again when it has started anew".to_owned(),
            )),
        }
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
        self.work_within(FOLDER_ANSWER_MAX, folder, work).await
    }

    async fn work_within<T: Send + 'static>(
        &self,
        time: Duration,
        folder: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ChangeFailure> {
        let under_way = self.folder_work.begin(folder)?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(under_way);
            done
        });
        let done = self.within(time, folder, working).await?;
        done.map_err(|error| {
            ChangeFailure::Engine(format!("working with {folder} broke off: {error}"))
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
        let _joining = self.joining.lock().await;
        let disk = self.make_ready(path, wipe_it, None).await?;
        let mut tried = self.begin_change().await?;
        let id = self.take_in(&mut tried, disk, None).await?;
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
        let _joining = self.joining.lock().await;
        let old = self.find_disk(words)?;
        let disk = self.make_ready(path, wipe_it, Some(old.id)).await?;
        self.require_room_beside(&old, &disk).await?;
        let mut tried = self.begin_change().await?;
        let id = self.take_in(&mut tried, disk, Some(old.id)).await?;
        self.store.disk_draining(old.id, true);
        drop(tried);
        self.after_a_change().await;
        Ok(id)
    }

    /// Opens a folder that is to become a disk, emptied if need be.
    ///
    /// The caller holds the joining, without which nothing becomes a disk, but not the changes: emptying takes long,
    /// and volumes may have to be opened again meanwhile. What the checks find stays so: a disk that is not used is
    /// not used before the next start, and none leaves that what is on this one could not be had without.
    async fn make_ready(
        &self,
        path: &str,
        wipe_it: bool,
        replaces: Option<DiskId>,
    ) -> Result<Arc<dyn Disk>, ChangeFailure> {
        let state = self.pool.load_full();
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
        let content = match folder.content {
            // Whoever says that it may be wiped need not know what is in it.
            Content::Newer { identity, .. } => Content::Disk {
                identity,
                state: None,
            },
            content => content,
        };
        let disk: Arc<dyn Disk> = match (content, folder.disk) {
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
                    Some(id) => {
                        // No volume is opened anew meanwhile: the store knows no segments of one that is.
                        let _changes = self.begin_change().await?;
                        self.require_rebuildable(id)?;
                    }
                    None => {}
                }
                // Held open meanwhile, so that nobody else takes it: also when it takes longer than anybody waits.
                let (at, held) = (folder.path.clone(), disk.clone());
                let with_token = self.token.is_some();
                let wiping = move || {
                    let wiped = wipe(&at, with_token);
                    drop(held);
                    wiped
                };
                if let Err(error) = self.work_within(WIPE_MAX, path, wiping).await? {
                    return impossible(format!("{label} cannot be wiped: {error}"));
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
            (Content::Newer { .. }, _) => {
                return impossible(format!("{label} is a disk of a newer program"));
            }
            (Content::Unusable(why), _) => {
                return impossible(format!("{label} cannot be used: {why}"));
            }
        };
        Ok(disk)
    }

    /// Makes a folder that is ready a disk, and a member; the one that it replaces leaves.
    async fn take_in(
        &self,
        tried: &mut u64,
        disk: Arc<dyn Disk>,
        replaces: Option<DiskId>,
    ) -> Result<DiskId, ChangeFailure> {
        let mut state = PoolState::clone(&self.pool.load());
        if let Some(old) = replaces
            && state.disk_mut(old).is_none()
        {
            return Err(ChangeFailure::NoDisk(old.to_string()));
        }
        let disk = self.watched(disk);
        let label = disk.label().to_owned();
        let id = DiskId(self.env.entropy.u128());
        let now = self.env.clock.now();
        let failed = |error: &dyn std::fmt::Display| ChangeFailure::Engine(error.to_string());
        let pool = state.pool;
        let settings = shard_settings(&self.config, state.disks.len() + 1);
        let begin = async {
            ShardDisk::format(Arc::clone(&disk), pool, id, now).await?;
            ShardDisk::open(Arc::clone(&disk), pool, settings).await
        };
        let begun = self.within_time(&label, begin).await?;
        let opened = begun.map_err(|error| failed(&error))?;
        let mut member = PoolDisk::new(id, label, now);
        member.by_label = true;
        state.disks.push(member);
        if let Some(old) = replaces.and_then(|old| state.disk_mut(old)) {
            old.draining = true;
            old.replaced = true;
        }
        self.disks.write().push(Arc::clone(&opened));
        if let Err(error) = self.save(tried, &mut state).await {
            self.disks.write().retain(|disk| disk.id() != id);
            return Err(error);
        }
        self.share_descriptors();
        self.store.disk_join(Arc::clone(&opened));
        for fs in self.serving_all() {
            fs.meta().add_disk(id, Arc::clone(opened.disk()));
        }
        let folder = opened.disk().folder().map(Path::to_owned);
        if let (Some(token), Some(folder)) = (&self.token, folder) {
            for error in token.give(&self.env, &[folder.join(TOKEN_NAME)]).await {
                tracing::warn!(%error, "the next start gives the disk the token");
            }
        }
        tracing::info!(disk = opened.label(), %id, "a disk joined the pool");
        Ok(id)
    }

    /// All disks together keep no more files open than before one came, or left.
    fn share_descriptors(&self) {
        let count = self.pool.load().disks.len();
        for disk in self.disks() {
            disk.set_open_shards_max(shard_settings(&self.config, count).open_shards_max);
        }
    }

    /// Starts to move everything off a disk, or stops that.
    pub async fn disk_drain(
        self: &Arc<Self>,
        words: &str,
        draining: bool,
    ) -> Result<DiskId, ChangeFailure> {
        let disk = self.find_disk(words)?;
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.pool.load());
        if draining && !disk.draining {
            self.require_room(&state, disk.id)?;
        }
        if let Some(entry) = state.disk_mut(disk.id) {
            entry.draining = draining;
            entry.replaced &= draining;
        }
        self.save(&mut tried, &mut state).await?;
        self.store.disk_draining(disk.id, draining);
        if !draining {
            self.let_keep_metadata(disk.id);
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
        self.require_protection(state, id)?;
        match self.room_to_leave(id, None).lack() {
            None => Ok(()),
            Some(lack) => Err(ChangeFailure::Impossible(format!(
                "of what is on it, {lack}: add a disk or delete data first"
            ))),
        }
    }

    /// Whether what is on a disk that works finds room once a new one is there in its place. Of one that is lost, or
    /// leaves already, as much as possible is better than nothing: what is missing is told while that goes on.
    async fn require_room_beside(
        &self,
        old: &PoolDisk,
        new: &Arc<dyn Disk>,
    ) -> Result<(), ChangeFailure> {
        if self.standings().get(&old.id) != Some(&Standing::Fine) {
            return Ok(());
        }
        let (label, asked) = (new.label().to_owned(), Arc::clone(new));
        let space = self.answer_of(&label, move || asked.space()).await?;
        let space = space.map_err(|error| ChangeFailure::Engine(error.to_string()))?;
        let joining = self.store.disk_room(DiskId(self.env.entropy.u128()), space);
        match self.room_to_leave(old.id, Some(joining)).lack() {
            None => Ok(()),
            Some(lack) => Err(ChangeFailure::Impossible(format!(
                "of what is on the disk that is to be replaced, {lack}: give a larger one, add another or delete \
                 data first"
            ))),
        }
    }

    /// Whether there are enough disks for every volume's protection without this one, and without draining ones. A
    /// volume for which there are not can take no data at all, also where nothing was written to it yet.
    fn require_protection(&self, state: &PoolState, id: DiskId) -> Result<(), ChangeFailure> {
        for volume in &state.volumes {
            let protection = convert::protection(volume.settings.protection);
            self.store
                .code_for_without(protection, Some(id))
                .map_err(|error| {
                    ChangeFailure::Impossible(format!("volume {}: {error}", volume.name))
                })?;
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
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.pool.load());
        if state.disks.len() == 1 {
            return impossible("it is the only disk".to_owned());
        }
        self.require_all_served()?;
        self.require_named(&state, disk.id)?;
        // Before it counts as one that leaves: data is laid out without it from then on.
        self.require_dispensable(&state, &disk, force)?;
        // From here on nothing new is put on it.
        self.store.disk_draining(disk.id, true);
        let taken_out = self.take_out(&mut tried, &mut state, &disk, force).await;
        if let Err(failure) = taken_out {
            self.keep(disk.id).await;
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
        self.share_descriptors();
        drop(tried);
        tracing::info!(disk = disk.label, "a disk left the pool");
        // Before its folder is emptied: commands must find the token all the time.
        self.announce_token().await;
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
            tracing::warn!(
                disk = label,
                "the removed disk failed; it is left alone, and has the admin token still: see docs/reference/admin.md before somebody else gets it"
            );
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
        let with_token = self.token.is_some();
        let wiped = tokio::task::spawn_blocking(move || wipe(&folder, with_token)).await;
        if let Ok(Err(error)) = wiped {
            tracing::warn!(disk = label, %error, "the removed disk was not emptied");
        }
    }

    /// Takes a draining disk out of the pool file, if nothing is on it that is nowhere else.
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
        if !self.commits_done().await {
            return impossible(
                "the new place of a shard is not durable yet: the disk with a volume's metadata does not answer, or \
                 there is no space for its log; see `cairn status`, and try again"
                    .to_owned(),
            );
        };
        self.require_dispensable(state, disk, force)?;
        if let Err(why) = self.metadata_off(disk.id).await {
            return impossible(why);
        }
        // It may have taken long. What of volumes were closed meanwhile it passed over.
        self.require_all_served()?;
        state.remove_disk(disk.id);
        self.save(tried, state).await
    }

    /// Whether nothing is on a disk that is nowhere else, and the pool can do without it.
    fn require_dispensable(
        &self,
        state: &PoolState,
        disk: &PoolDisk,
        force: bool,
    ) -> Result<(), ChangeFailure> {
        let shards = self.shards_by_disk().get(&disk.id).copied().unwrap_or(0);
        self.require_all_served()?;
        if shards > 0 && !force {
            return Err(ChangeFailure::Impossible(format!(
                "{shards} shards are on it: drain it first (`cairn disk drain`), or with --force have them rebuilt from the others"
            )));
        }
        if shards == 0 {
            // Also of a disk that failed, and forced: while it is a member, data is written with fewer copies.
            return self.require_protection(state, disk.id);
        }
        self.require_rebuildable(disk.id)?;
        self.require_room(state, disk.id)
    }

    /// A disk that was to be removed stays: things are put on it again, unless it is drained.
    async fn keep(&self, id: DiskId) {
        let pool = self.pool.load_full();
        let draining = pool.disks.iter().any(|disk| disk.id == id && disk.draining);
        self.store.disk_draining(id, draining);
        if draining {
            return;
        }
        self.let_keep_metadata(id);
        // Metadata may have been on its way to one disk more.
        for fs in self.serving_all() {
            let volume = pool.volumes.iter().find(|volume| volume.id == fs.volume());
            if let Some(volume) = volume {
                self.set_copies(&fs, &volume.settings).await;
            }
        }
    }

    /// Volumes may keep metadata on a disk again that was to leave, unless it did not work for that.
    fn let_keep_metadata(&self, id: DiskId) {
        for fs in self.serving_all() {
            let mut disks = self.meta_disks(Some(fs.volume())).into_iter();
            if let Some((_, disk)) = disks.find(|(disk, _)| *disk == id)
                && !fs.meta().keeps_on_disk(id)
            {
                fs.meta().add_disk(id, disk);
            }
        }
    }

    /// Whether it is known what all volumes have on disks. Asked after that was looked at, and again after whatever was
    /// waited for since: a node that stops may close its volumes at any time, and nothing is anywhere then, it seems.
    /// Closed ones do not come back, so those that are all there now were there before.
    fn require_all_served(&self) -> Result<(), ChangeFailure> {
        self.require_running()?;
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
        let there = self.disks();
        let works = |disk: &PoolDisk| {
            let is_it = |there: &&Arc<ShardDisk>| there.id() == disk.id;
            there
                .iter()
                .find(is_it)
                .is_some_and(|there| !there.health().failed)
        };
        let gone = state.disks.iter().find(|disk| disk.id == id);
        // One that is lost may be found empty.
        let others = state
            .disks
            .iter()
            .filter(|disk| disk.id != id && works(disk));
        let others: Vec<&PoolDisk> = others.collect();
        if !gone.is_some_and(is_named) || others.iter().any(|disk| is_named(disk)) {
            return Ok(());
        }
        let labels: Vec<&str> = others.iter().map(|disk| disk.label.as_str()).collect();
        Err(ChangeFailure::Impossible(format!(
            "it is the last one that works of those that `data` in the configuration or --data names, and the next \
             start would make a new pool there: name {} instead, and start the server anew",
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
                    Some(Standing::Fine | Standing::Draining)
                )
        };
        for fs in self.serving_all() {
            if let Err(error) = self.store.segment_ids(fs.volume()) {
                return Err(ChangeFailure::Impossible(format!(
                    "nobody knows whether volume {} needs this disk ({error}): try again in a moment",
                    fs.name()
                )));
            }
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
        self.require_all_served()
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
        for fs in self.serving_all() {
            {
                // Nobody changes the settings meanwhile.
                let Ok(_changes) = self.begin_change().await else {
                    return;
                };
                let pool = self.pool.load_full();
                if let Some(volume) = pool.volumes.iter().find(|volume| volume.id == fs.volume()) {
                    self.set_copies(&fs, &volume.settings).await;
                }
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
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use cairn_base::real;
    use futures_util::future::join;

    use super::*;
    use crate::node::tests::{disk_paths, start};

    /// The stop closed the volumes while the removal waited, and then nothing seemed to be on the disk.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_stays_whose_removal_the_end_of_the_node_overtakes() {
        let root = tempfile::tempdir().expect("a folder");
        let inner = start(root.path(), real::env(Handle::current())).await;
        let id = inner.disks()[2].id().to_string();
        // A move whose new place is not durable yet.
        let moving = inner.rebuild.commits.clone().read_owned().await;
        let removing = Box::pin(inner.disk_remove(&id, true));
        let Either::Right((_, removing)) = select(removing, ready(())).await else {
            panic!("it does not wait");
        };
        let closing = Box::pin(inner.close_volumes());
        let Either::Right((_, closing)) = select(closing, ready(())).await else {
            panic!("it does not wait");
        };
        drop(moving);
        let (removed, ()) = join(removing, closing).await;
        let refused = removed.expect_err("the node stops");
        assert!(refused.to_string().contains("stopping"), "{refused}");
        assert_eq!(inner.pool.load().disks.len(), 3);
        let identity = disk_paths(root.path())[2].join(cairn_shard::IDENTITY_NAME);
        assert!(identity.exists());
        // Nor does any other change begin.
        let drained = inner.disk_drain(&id, true).await;
        assert!(drained.is_err_and(|error| error.to_string().contains("stopping")));
    }

    /// Each try took one of the few threads, until there were none for anything else.
    #[test]
    fn folders_that_hang_are_few() {
        let work = FolderWork::default();
        let first = work.begin("/a").expect("begins");
        let refused = work.begin("/a").expect_err("it is under way");
        assert!(refused.to_string().contains("/a "), "{refused}");
        let others = ["/b", "/c", "/d"].map(|folder| work.begin(folder).expect("begins"));
        let refused = work.begin("/e").expect_err("there are too many");
        assert!(refused.to_string().contains("/a, /b, /c, /d "), "{refused}");
        drop(first);
        let _fifth = work.begin("/e").expect("one has ended");
        drop(others);
        work.begin("/b").expect("it has ended");
    }
}
