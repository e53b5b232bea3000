//! Disks come and go while the pool is served.
//!
//! Owns: joining, draining and leaving, and what each of these requires.
//! Must not know: what a disk was before it was ready to join, what becomes of it afterwards; how data is moved
//! (`rebuild` sees to that once the state says what is wanted), and what volumes keep there beside it (`metadata`).
//!
//! A change is one saving of the state. What has to follow it is found again after a restart.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::disk::{Disk, DiskError, DiskSpace};
use cairn_base::domain::Survives;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, DiskRole, Media};
use cairn_fs::Fs;
use cairn_meta::Preference;
use cairn_shard::{ShardDisk, ShardErrorKind, ShardSettings, probe_unopened};
use futures_util::future::{Either, join_all, select};

use crate::planner::{self, Standing};
use crate::pool::{ChangeFailure, Pool, VolumeService};
use crate::table::{Condition, Table};
use cairn_formats::pool_file::{PoolDisk, PoolState, PoolVolume};
use cairn_formats::settings::MediaChoice;

/// A disk that is taken back takes and gives back something so often before.
const RETRY_PROBES: usize = 3;
/// How often, with [`RETRY_PAUSE`] between, a change waits for operations that began on the disk just before.
const RETRY_PAUSES_MAX: usize = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// As what a disk joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    New(DiskRole, Option<Media>),
    /// In the role, and of the kind, of a disk that leaves.
    Replacing(DiskId),
}

/// Whether a step of a change goes on when it cannot be had without loss of redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    No,
    /// The disk's data is rebuilt from the others.
    Yes,
}

fn impossible<T>(why: String) -> Result<T, ChangeFailure> {
    Err(ChangeFailure::Impossible(why))
}

impl Pool {
    /// Makes a disk that is ready for it a member; one that it replaces leaves. `disk` is blank, and watched.
    pub async fn join(
        &self,
        disk: Arc<dyn Disk>,
        settings: ShardSettings,
        place: Joining,
    ) -> Result<DiskId, ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let id = self.take_in(&mut tried, disk, settings, place).await?;
        drop(tried);
        self.after_a_change().await;
        Ok(id)
    }

    async fn take_in(
        &self,
        tried: &mut u64,
        disk: Arc<dyn Disk>,
        settings: ShardSettings,
        place: Joining,
    ) -> Result<DiskId, ChangeFailure> {
        let mut state = PoolState::clone(&self.state());
        let (role, media, replaces) = match place {
            Joining::New(role, media) => (role, media, None),
            Joining::Replacing(old) => match state.disk_mut(old) {
                Some(member) => (member.role, member.media, Some(old)),
                None => return Err(ChangeFailure::NoDisk(old.to_string())),
            },
        };
        let disk = self.watch.over(disk);
        let label = disk.label().to_owned();
        let id = DiskId(self.env.entropy.u128());
        let now = self.env.clock.now();
        let pool = state.pool;
        let begin = async {
            ShardDisk::format(Arc::clone(&disk), pool, id, now).await?;
            ShardDisk::open(Arc::clone(&disk), pool, settings).await
        };
        let hang_after = self.watch.hang_after();
        let begun = match select(Box::pin(begin), self.env.clock.sleep(hang_after)).await {
            Either::Left((begun, _)) => begun,
            Either::Right(_) => return impossible(no_answer_of(&label, hang_after)),
        };
        let opened = begun.map_err(|error| match error.kind() {
            ShardErrorKind::Full => ChangeFailure::NoRoom(error.to_string()),
            _ => ChangeFailure::Engine(error.to_string()),
        })?;
        let mut member = PoolDisk::new(id, label, now);
        member.by_label = true;
        member.role = role;
        member.media = media;
        if let Some(seats) = &self.seats {
            member.node = seats.node();
        }
        let is_early = planted::is(Bug::DiskUsedBeforeItIsMember);
        state.disks.push(member);
        if let Some(old) = replaces.and_then(|old| state.disk_mut(old)) {
            old.draining = true;
            old.replaced = true;
        }
        // It is to have the state that names it.
        self.change_table(|table| table.put(Arc::clone(&opened)));
        if is_early {
            self.change_table(|table| table.state = Arc::new(state.clone()));
            self.after_joining(&opened, id).await;
            self.env.clock.sleep(Duration::from_secs(1)).await;
        }
        if let Err(error) = self.save(tried, &mut state).await {
            self.change_table(|table| table.take(id));
            return Err(error);
        }
        self.after_joining(&opened, id).await;
        tracing::info!(disk = opened.label(), %id, "a disk joined the pool");
        Ok(id)
    }

    async fn after_joining(&self, opened: &Arc<ShardDisk>, id: DiskId) {
        self.tell_of_disks();
        for fs in self.serving_all() {
            let disk = Arc::clone(opened.disk());
            fs.meta().log().add_disk(id, disk, self.preference(id));
        }
    }

    fn preference(&self, id: DiskId) -> Preference {
        match self.table().is_journal(id) {
            true => Preference::First,
            false => Preference::Last,
        }
    }

    fn tell_of_disks(&self) {
        let members = self.state().disks.len();
        self.host.disks_changed(&self.disks(), members);
    }

    fn new_data_survives(&self) -> Survives {
        self.store.code_survives(self.store.default_code())
    }

    /// A disk leaves. Whether its node has others is easily overlooked, and what is survived in disks does not tell.
    fn tell_of_nodes(&self, before: Survives) {
        let after = self.new_data_survives();
        if after.nodes < before.nodes {
            tracing::warn!(
                before = before.nodes,
                after = after.nodes,
                "data survives the loss of fewer nodes now"
            );
        }
    }

    /// Starts to move everything off a disk, or stops that.
    pub async fn drain(&self, words: &str, draining: bool) -> Result<DiskId, ChangeFailure> {
        let disk = self.find_disk(words)?;
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        if draining && !disk.draining {
            self.require_room(&state, disk.id)?;
        }
        if let Some(entry) = state.disk_mut(disk.id) {
            entry.draining = draining;
            entry.replaced &= draining;
        }
        let before = self.new_data_survives();
        self.save(&mut tried, &mut state).await?;
        if !draining {
            self.let_keep_metadata(disk.id);
        }
        drop(tried);
        self.tell_of_nodes(before);
        tracing::info!(disk = disk.label, draining, "draining");
        self.after_a_change().await;
        Ok(disk.id)
    }

    /// Takes a disk back that was faulted, without a restart: it must have answered all that it was ever asked, and take and give
    /// back what it is asked to now. It is reopened, as at a start; a holder of the old one finds nothing there any more.
    /// What it missed it is given before it counts ([`Self::make_returned_good`]). Metadata that failed there stays away until the
    /// next start. In a cluster this is asked of the node that has the disk; the others hear of it as of any news of its disks.
    ///
    /// Fails with `Impossible` if the disk is not there, is used already, or does not work. One call at a time.
    pub async fn retry(
        &self,
        words: &str,
        settings: ShardSettings,
    ) -> Result<DiskId, ChangeFailure> {
        let member = self.find_disk(words)?;
        let (id, label) = (member.id, member.label);
        let old = self.require_out(id, &label)?;
        // Before the change begins: until this disk has answered nothing else could be changed.
        let opened = self.open_anew(&old, &label, settings).await?;
        let mut tried = self.begin_change().await?;
        let still = match self.require_out(id, &label) {
            Ok(still) => still,
            Err(left) => {
                self.watch.let_go(opened.disk(), "it left the pool");
                return Err(left);
            }
        };
        assert!(Arc::ptr_eq(&still, &old), "one call at a time");
        let mut state = PoolState::clone(&self.state());
        if let Some(entry) = state.disk_mut(id) {
            // Before anything is put on it, so that it is missed when it is gone again.
            entry.holds_nothing = false;
        }
        if let Err(error) = self.save(&mut tried, &mut state).await {
            self.watch
                .let_go(opened.disk(), "the pool's state was not saved");
            return Err(error);
        }
        // Until it has proven itself, which is looked at a moment later.
        opened.set_silent(true);
        self.change_table(|table| table.take_back(Arc::clone(&opened)));
        self.watch.note_taken(id);
        // It has an older state.
        if let Err(error) = self.save(&mut tried, &mut state).await {
            tracing::warn!(%error, "a disk that was taken back lacks the pool's state");
        }
        self.tell_of_disks();
        for fs in self.serving_all() {
            let log = fs.meta().log();
            let table = self.table();
            if table.takes_metadata(id, Some(fs.volume())) && log.primary_disk() != id {
                log.add_disk(id, Arc::clone(opened.disk()), self.preference(id));
            }
        }
        self.sweep_all();
        drop(tried);
        tracing::info!(disk = opened.label(), %id, "a disk is back in use");
        self.after_a_change().await;
        Ok(id)
    }

    /// A disk of this server that was put out; fails with what it is instead.
    fn require_out(&self, id: DiskId, label: &str) -> Result<Arc<ShardDisk>, ChangeFailure> {
        let table = self.table();
        let Some(disk) = table.disk(id) else {
            return impossible(format!(
                "disk {label} is missing: attach it, and restart the server"
            ));
        };
        if table.condition(id) != Condition::Failed {
            return impossible(format!(
                "disk {label} is in use; an unresponsive or failing disk counts again by itself once it has proven that it works"
            ));
        }
        Ok(Arc::clone(disk))
    }

    /// Opens the shards of a disk that was put out once more, if it works.
    async fn open_anew(
        &self,
        old: &Arc<ShardDisk>,
        label: &str,
        settings: ShardSettings,
    ) -> Result<Arc<ShardDisk>, ChangeFailure> {
        let unanswered = || {
            format!("disk {label} has not answered all earlier operations: try again once it has")
        };
        let disk = match self.watch.anew(old.disk()) {
            Some(disk) if disk.is_idle() => disk,
            // Operations under way may land at any time, on newer bytes.
            _ => return impossible(unanswered()),
        };
        let hang_after = self.watch.hang_after();
        let failed = |error: &dyn std::fmt::Display| {
            ChangeFailure::Impossible(format!("disk {label} does not work: {error}"))
        };
        // The old one is still read as a last resort, and stays if this comes to nothing.
        let proving = async {
            for _ in 0..RETRY_PROBES {
                probe_unopened(&*disk).await?;
            }
            Ok::<(), DiskError>(())
        };
        match select(Box::pin(proving), self.env.clock.sleep(hang_after)).await {
            Either::Left((proven, _)) => proven.map_err(|error| failed(&error))?,
            Either::Right(_) => return impossible(no_answer_of(label, hang_after)),
        }
        self.watch.let_go(old.disk(), "it was reopened");
        let mut pauses = 0;
        while !disk.is_idle() {
            pauses += 1;
            if pauses > RETRY_PAUSES_MAX {
                return impossible(unanswered());
            }
            self.env.clock.sleep(RETRY_PAUSE).await;
        }
        let begin = ShardDisk::open(Arc::clone(&disk), self.state().pool, settings);
        let opened = match select(Box::pin(begin), self.env.clock.sleep(hang_after)).await {
            Either::Left((opened, _)) => opened.map_err(|error| failed(&error))?,
            Either::Right(_) => return impossible(no_answer_of(label, hang_after)),
        };
        if opened.id() != old.id() {
            return impossible(format!("{label} now contains another disk"));
        }
        opened.continue_from(old);
        Ok(opened)
    }

    /// Gives disks that are well again what they missed, at the pace of a rebuild; also what they missed before this start, or under the
    /// owner before this one. Until then they count as lost.
    pub async fn make_returned_good(&self) {
        self.store.look_for_missed(&self.rebuild.pace).await;
        let table = self.table();
        let is_well =
            |id: &DiskId| table.works(*id) && !table.is_silent(*id) && !table.is_failing(*id);
        let members = table.state.disks.iter().map(|disk| disk.id);
        let well: Vec<DiskId> = members.filter(is_well).collect();
        self.sweep_returned(&table, &well);
        let lacking = well.into_iter().filter(|id| self.store.lacks_some(*id));
        // All at a time: one of them that hangs again holds up no other.
        let each = lacking.map(|id| async move {
            if self.is_stopping() {
                return;
            }
            let left = self.store.make_good(id, &self.rebuild.pace).await;
            tracing::info!(disk = %id, left, "a disk got the writes that it missed while it was unresponsive or failing");
        });
        join_all(each).await;
    }

    /// Has volumes of this node give up the shards that they rebuilt elsewhere in place of those on disks of other nodes that had failed, and are
    /// `well` again: their nodes do not know what that is. Of its own disks a node does so when it takes one back.
    fn sweep_returned(&self, table: &Table, well: &[DiskId]) {
        let mut failed = self.failed_elsewhere.lock();
        let elsewhere = table.state.disks.iter().map(|disk| disk.id);
        let elsewhere = elsewhere.filter(|id| !table.is_here(*id));
        let has_failed = |id: &DiskId| {
            let disk = table.service(*id);
            disk.is_some_and(|disk| disk.health().failed)
        };
        failed.extend(elsewhere.filter(has_failed));
        let is_back = |id: &DiskId| well.contains(id) && self.store.can_be_written(*id);
        let is_any_back = failed.iter().any(is_back);
        failed.retain(|id| table.member(*id).is_some() && !is_back(id));
        drop(failed);
        if is_any_back {
            self.sweep_all();
        }
    }

    /// Deletes, in the background, what no volume of this node refers to. One that is only read leaves all as it is.
    fn sweep_all(&self) {
        let serving = self.serving_all().into_iter();
        for fs in serving.filter(|fs| fs.read_only().is_none()) {
            self.sweep(fs.volume());
        }
    }

    /// Says that a disk of a node that is away is lost for good: its data is rebuilt. Its node may start with an empty folder
    /// in its place.
    pub async fn replace_later(&self, words: &str) -> Result<DiskId, ChangeFailure> {
        let disk = self.find_disk(words)?;
        let mut tried = self.begin_change().await?;
        if self.table().is_here(disk.id) {
            return impossible(format!("disk {} belongs to this server", disk.label));
        }
        let mut state = PoolState::clone(&self.state());
        if let Some(entry) = state.disk_mut(disk.id) {
            entry.draining = true;
            entry.replaced = true;
        }
        self.save(&mut tried, &mut state).await?;
        drop(tried);
        tracing::info!(
            disk = disk.label,
            "a missing disk is lost for good, and another disk replaces it"
        );
        self.after_a_change().await;
        Ok(disk.id)
    }

    /// Says what kind of device a disk is. Data that is to live on this kind, or on the one that it was said to be, moves.
    pub async fn set_media(
        &self,
        words: &str,
        media: Option<Media>,
    ) -> Result<DiskId, ChangeFailure> {
        let disk = self.find_disk(words)?;
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        if let Some(entry) = state.disk_mut(disk.id) {
            entry.media = media;
        }
        self.save(&mut tried, &mut state).await?;
        drop(tried);
        let kind = MediaChoice::from(media);
        tracing::info!(disk = disk.label, media = %kind, "device class of a disk set");
        self.after_a_change().await;
        Ok(disk.id)
    }

    /// Whether data can be put on disks of a kind at all.
    pub fn require_media(&self, choice: MediaChoice) -> Result<(), ChangeFailure> {
        match choice.kind() {
            Some(kind) if !self.store.has_media(kind) => Err(ChangeFailure::NoMedia(kind)),
            _ => Ok(()),
        }
    }

    /// Whether the pool can do without a disk: enough others for every volume's protection, and room.
    fn require_room(&self, state: &PoolState, id: DiskId) -> Result<(), ChangeFailure> {
        let standings = self.standings();
        let is_journal = state
            .disks
            .iter()
            .any(|it| it.id == id && !it.role.is_data());
        let takes_over = |disk: &&PoolDisk| {
            let is_fine = standings.get(&disk.id) == Some(&Standing::Fine);
            disk.id != id && is_fine && (is_journal || disk.role.is_data())
        };
        if !state.disks.iter().any(|disk| takes_over(&disk)) {
            return impossible("there is no other working disk: add one first".to_owned());
        }
        self.require_protection(state, id)?;
        match self.room_to_leave(&[id], None).lack() {
            None => Ok(()),
            Some(lack) => impossible(format!(
                "the other disks lack space for its data: {lack}. Add a disk or delete data first"
            )),
        }
    }

    /// Whether what is on a disk that works finds room once a new one with this space is there in its place. Of one that
    /// is lost, or leaves already, as much as possible is better than nothing: what is missing is told while that goes
    /// on.
    pub fn require_room_beside(
        &self,
        old: DiskId,
        new: impl FnOnce() -> Result<DiskSpace, ChangeFailure>,
    ) -> Result<(), ChangeFailure> {
        if self.standings().get(&old) != Some(&Standing::Fine) {
            return Ok(());
        }
        let joining = self
            .store
            .disk_room(DiskId(self.env.entropy.u128()), new()?);
        match self.room_to_leave(&[old], Some(joining)).lack() {
            None => Ok(()),
            Some(lack) => impossible(format!(
                "of what is on the disk that is to be replaced, {lack}: give a larger one, add another or delete \
                 data first"
            )),
        }
    }

    /// Whether there are enough disks for every volume's protection without this one, and without draining ones. A
    /// volume for which there are not can take no data at all, also where nothing was written to it yet.
    fn require_protection(&self, state: &PoolState, id: DiskId) -> Result<(), ChangeFailure> {
        for volume in &state.volumes {
            for wanted in volume.settings.protections() {
                let code = self.store.code_for_without(wanted, &[id]);
                code.map_err(|error| {
                    let name = &state.head_of(volume).name;
                    let of = match wanted == volume.settings.protection {
                        true => format!("volume {name}"),
                        false => format!("directories of volume {name}, or data written there"),
                    };
                    ChangeFailure::Impossible(format!("{of}: {error}"))
                })?;
            }
        }
        Ok(())
    }

    /// Takes a disk out of the pool; returns it, if it is there.
    pub async fn leave(
        &self,
        words: &str,
        force: Force,
    ) -> Result<Option<Arc<ShardDisk>>, ChangeFailure> {
        let disk = self.find_disk(words)?;
        if let Some(seats) = &self.seats {
            if force == Force::Yes {
                return impossible(
                    "in a cluster, drain a disk before you remove it, even a lost disk: `cairn disk drain`"
                        .to_owned(),
                );
            }
            // The change of the state that follows lets it go on its node.
            let removed = seats.remove_disk(disk.id).await;
            return removed.map(|()| None).map_err(ChangeFailure::Impossible);
        }
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let has_others =
            |of: &[PoolDisk]| of.iter().any(|it| it.id != disk.id && it.role.is_data());
        if !has_others(&state.disks) {
            return impossible("it is the only disk with data".to_owned());
        }
        self.require_all_served()?;
        self.require_found(&state, disk.id)?;
        // Before it counts as one that leaves: data is laid out without it from then on.
        self.require_dispensable(&state, &disk, force)?;
        let before = self.new_data_survives();
        // From here on nothing new is put on it.
        self.change_table(|table| table.set_leaving(disk.id, true));
        let taken_out = self.take_out(&mut tried, &mut state, &disk, force).await;
        if let Err(failure) = taken_out {
            self.keep(disk.id).await;
            return Err(failure);
        }
        let gone = self.change_table(|table| table.take(disk.id));
        self.tell_of_disks();
        self.tell_of_nodes(before);
        drop(tried);
        tracing::info!(disk = disk.label, "a disk left the pool");
        Ok(gone)
    }

    /// Takes a draining disk out of the state, if nothing is on it that is nowhere else.
    async fn take_out(
        &self,
        tried: &mut u64,
        state: &mut PoolState,
        disk: &PoolDisk,
        force: Force,
    ) -> Result<(), ChangeFailure> {
        self.require_nothing_on_its_way().await?;
        self.require_dispensable(state, disk, force)?;
        if !planted::is(Bug::DiskForgottenWithMetadata)
            && let Err(why) = self.metadata_off(disk.id).await
        {
            return impossible(why);
        }
        // It may have taken long. What of volumes were closed meanwhile it passed over.
        self.require_all_served()?;
        state.remove_disk(disk.id);
        self.save(tried, state).await
    }

    /// Waits for what was on its way to a disk when it began to leave: segments being made are known then, and a shard
    /// whose move is being made durable is in the metadata. Moves that come later find that the disk leaves.
    async fn require_nothing_on_its_way(&self) -> Result<(), ChangeFailure> {
        self.store.placements_done().await;
        if self.commits_done().await {
            return Ok(());
        }
        impossible(
            "the new place of a shard is not durable yet: the disk with a volume's metadata does not answer, or there \
             is no space for its log; see `cairn status`, and try again"
                .to_owned(),
        )
    }

    /// Whether nothing is on a disk that is nowhere else, and the pool can do without it.
    fn require_dispensable(
        &self,
        state: &PoolState,
        disk: &PoolDisk,
        force: Force,
    ) -> Result<(), ChangeFailure> {
        let shards = match planted::is(Bug::DiskForgottenWhileNeeded) {
            true => 0,
            false => self.shards_on(disk.id),
        };
        self.require_all_served()?;
        if shards > 0 && force == Force::No {
            return impossible(format!(
                "{shards} shards are on it: drain it first (`cairn disk drain`), or with --force have them rebuilt from the others"
            ));
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
        self.change_table(|table| table.set_leaving(id, false));
        let table = self.table();
        if table.is_draining(id) {
            return;
        }
        self.let_keep_metadata(id);
        // Metadata may have been on its way to one disk more.
        for fs in self.serving_all() {
            let mut volumes = table.state.volumes.iter();
            if let Some(volume) = volumes.find(|volume| volume.id == fs.volume()) {
                self.set_copies(&fs, &volume.settings).await;
            }
        }
    }

    /// Volumes may keep metadata on a disk again that was to leave, unless it did not work for that.
    pub(crate) fn let_keep_metadata(&self, id: DiskId) {
        for fs in self.serving_all() {
            let mut disks = self.meta_disks(Some(fs.volume())).into_iter();
            if let Some((_, disk)) = disks.find(|(disk, _)| *disk == id)
                && !fs.meta().log().keeps_on_disk(id)
            {
                fs.meta().log().add_disk(id, disk, self.preference(id));
            }
        }
    }

    /// Whether it is known what all volumes have on disks. Asked after that was looked at, and again after whatever was
    /// waited for since: a pool that ends may close its volumes at any time, and nothing is anywhere then, it seems.
    /// Closed ones do not come back, so those that are all there now were there before.
    pub(crate) fn require_all_served(&self) -> Result<(), ChangeFailure> {
        self.require_running()?;
        let state = self.state();
        let is_served = |volume: &&PoolVolume| {
            matches!(self.service(volume.id), Some(VolumeService::Serving(_)))
        };
        match state.volumes.iter().find(|volume| !is_served(volume)) {
            None => Ok(()),
            Some(volume) => impossible(format!(
                "volume {} is not served, so it is unknown whether the volume needs this disk",
                state.head_of(volume).name
            )),
        }
    }

    /// Whether the next start would find the pool without a disk.
    fn require_found(&self, state: &PoolState, id: DiskId) -> Result<(), ChangeFailure> {
        let table = self.table();
        let Some(gone) = table.member(id) else {
            return Ok(());
        };
        // One that is lost may be found empty.
        let is_other = |disk: &&PoolDisk| disk.id != id && table.works(disk.id);
        let others: Vec<&PoolDisk> = state.disks.iter().filter(is_other).collect();
        let found = self.host.may_forget(gone, &others);
        found.map_err(ChangeFailure::Impossible)
    }

    /// Whether everything that is on a disk could be had from the others.
    pub fn require_rebuildable(&self, id: DiskId) -> Result<(), ChangeFailure> {
        self.require_all_served()?;
        let standings = self.standings();
        for fs in self.serving_all() {
            let at_stake = self
                .store
                .segments_at_stake(fs.volume(), |disk| disk != id, |_| 0);
            let Some(segments) = at_stake else {
                return impossible(format!(
                    "it is unknown whether volume {} needs this disk, because the volume is being opened: try again in a moment",
                    fs.name()
                ));
            };
            let is_lost = |info: &&_| !planner::is_rebuildable(info, id, &standings);
            if let Some(info) = segments.iter().find(is_lost) {
                return impossible(format!(
                    "volume {} has data that cannot be read without this disk (segment {}): drain the disk instead",
                    fs.name(),
                    info.id
                ));
            }
        }
        self.require_all_served()
    }

    /// Writes down that nothing on a lost disk is needed. Says what is in the way, if anything is.
    pub(crate) async fn note_empty(&self, id: DiskId) -> Result<(), String> {
        let text = |error: ChangeFailure| error.to_string();
        let mut tried = self.begin_change().await.map_err(text)?;
        self.require_nothing_on_its_way().await.map_err(text)?;
        // Looked at again: it may have taken long, and something may have been put there meanwhile.
        let seen = self.observe(&[]);
        let disk = seen.disks.iter().find(|disk| disk.id == id);
        let is_lost = disk.is_some_and(|disk| !disk.works);
        if !is_lost || !planner::is_empty(&seen, id) {
            return Ok(());
        }
        self.require_all_served().map_err(text)?;
        let mut state = PoolState::clone(&self.state());
        let Some(member) = state.disk_mut(id) else {
            return Ok(());
        };
        member.holds_nothing = true;
        let label = member.label.clone();
        self.save(&mut tried, &mut state).await.map_err(text)?;
        tracing::info!(disk = label, "no data of this lost disk is needed any more");
        Ok(())
    }

    /// Keeps volumes' metadata on enough disks, closes segments that touch a disk that leaves, or were begun with fewer
    /// disks, and has the data moved.
    pub async fn after_a_change(&self) {
        for fs in self.serving_all() {
            if self.set_copies_of(&fs).await.is_err() {
                return;
            }
            self.store.seal_all(fs.volume()).await;
        }
        self.rebuild.wake();
    }

    /// Nobody changes the volume's settings meanwhile.
    async fn set_copies_of(&self, fs: &Fs) -> Result<(), ChangeFailure> {
        let _changes = self.begin_change().await?;
        let state = self.state();
        if let Some(volume) = state.volumes.iter().find(|it| it.id == fs.volume()) {
            self.set_copies(fs, &volume.settings).await;
        }
        Ok(())
    }
}

/// Why a folder or disk is not waited for any longer.
pub fn no_answer_of(label: &str, time: Duration) -> String {
    format!(
        "{label} did not answer within {} s; see whether the disk works, then try again",
        time.as_secs()
    )
}
