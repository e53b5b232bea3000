//! The pool's tiers: added, opened, removed; what of a volume goes to one; what deleted volumes left there.
//!
//! Owns: the order of these changes. Must not know: what is behind a tier's address (the host does), which segments go
//! there (`fs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{PoolId, TierId, VolumeId};
use cairn_formats::pool_file::{ChangeError, PoolState, PoolTier, PoolVolume, VolumeTiering};
use cairn_formats::settings::{TierName, Tiering, VolumeName};
use cairn_fs::{TierChoice, TierPolicy, TieringSettings};
use cairn_segment::{TierStats, TierStore};
use futures_util::future::{Either, select};
use parking_lot::Mutex;

use crate::pool::{ChangeFailure, Pool, VolumeService};
use crate::truth::SaveError;

/// Objects of a deleted volume are looked for again for so long: what was on its way when it was deleted may come late.
const DELETING_MIN: Duration = Duration::from_secs(180);

/// A tier that does not answer is waited for no longer than this while it is opened, added or removed.
const PATIENCE: Duration = Duration::from_secs(15);

type Opening = BoxFuture<Result<Arc<dyn HostTier>, String>>;

/// A tier as the host opens it.
pub trait HostTier: Send + Sync + 'static {
    fn store(&self) -> Arc<dyn TierStore>;
    /// Makes the place this pool's. Fails if it is another's.
    fn claim(&self) -> BoxFuture<Result<(), String>>;
    /// Gives the place back.
    fn release(&self) -> BoxFuture<Result<(), String>>;
}

/// Tiers that are open, and those that are not.
#[derive(Default)]
pub(crate) struct Tiers {
    open: Mutex<BTreeMap<TierId, Arc<dyn HostTier>>>,
    /// Those that were not opened in time: it goes on, and no second time beside it.
    opening: Mutex<BTreeMap<TierId, Opening>>,
    troubles: Mutex<BTreeMap<TierId, String>>,
    /// Since when nothing was found of deleted volumes.
    gone_since: Mutex<BTreeMap<(TierId, VolumeId), Duration>>,
}

/// How a tier is.
#[derive(Clone, Debug)]
pub struct TierStatus {
    pub tier: PoolTier,
    pub stats: TierStats,
    /// Why it cannot be used, or what went wrong last.
    pub trouble: Option<String>,
    pub volumes: Vec<TierVolume>,
}

/// A volume that names a tier.
#[derive(Clone, Debug)]
pub struct TierVolume {
    /// The volume whose store it is.
    pub store: VolumeId,
    pub name: VolumeName,
    pub tiering: VolumeTiering,
    /// `None`: it is not served.
    pub status: Option<cairn_fs::TieringStatus>,
}

pub(crate) fn tier_policy(tiering: Option<&VolumeTiering>) -> Option<TierPolicy> {
    let tiering = tiering?;
    let filter = &tiering.filter;
    Some(TierPolicy {
        tier: tiering.tier,
        filter: (!filter.is_all()).then(|| Arc::new(filter.clone())),
        choice: match tiering.policy {
            Tiering::None => TierChoice::None,
            Tiering::SnapshotOnly => TierChoice::SnapshotOnly {
                cooling_days: tiering.cooling_days.days(),
            },
            Tiering::Auto => TierChoice::Auto {
                cooling_days: tiering.cooling_days.days(),
            },
            Tiering::All => TierChoice::All,
        },
    })
}

impl Pool {
    /// What a volume is opened with; how often it looks the host says.
    pub(crate) fn tiering_settings(
        &self,
        volume: &PoolVolume,
        of_host: &TieringSettings,
    ) -> TieringSettings {
        TieringSettings {
            pool: self.state().tier_owner(),
            policy: tier_policy(volume.tiering.as_ref()),
            pace: Some(Arc::clone(&self.tier_pace)),
            interval: of_host.interval,
            trouble_pause: of_host.trouble_pause,
        }
    }

    /// Opens the tiers that are not open, and forgets those that another node removed. One that cannot be opened is reported,
    /// and tried again by [`Self::tend_tiers`].
    pub async fn open_tiers(&self) {
        let state = self.state();
        let is_gone = |id: &TierId| state.tier_of(*id).is_none();
        let open: Vec<TierId> = self.tiers.open.lock().keys().copied().collect();
        for id in open.into_iter().filter(is_gone) {
            // One that is being added is claimed, opened, and listed last: it is not among these.
            self.store.forget_tier(id);
            self.tiers.open.lock().remove(&id);
        }
        self.tiers.troubles.lock().retain(|id, _| !is_gone(id));
        for tier in &state.tiers {
            if self.tiers.open.lock().contains_key(&tier.id) {
                continue;
            }
            let before = self.tiers.opening.lock().remove(&tier.id);
            let opening = before.unwrap_or_else(|| self.host.open_tier(state.tier_owner(), tier));
            let opened = match select(opening, self.env.clock.sleep(PATIENCE)).await {
                Either::Left((opened, _)) => opened,
                Either::Right(((), opening)) => {
                    self.tiers.opening.lock().insert(tier.id, opening);
                    Err(silent())
                }
            };
            match opened {
                Ok(opened) => self.take_tier(tier.id, opened),
                Err(why) => {
                    let before = self.tiers.troubles.lock().insert(tier.id, why.clone());
                    if before.as_ref() != Some(&why) {
                        tracing::error!(tier = %tier.name, why, "this tier cannot be used; what is in it cannot be read");
                    }
                }
            }
        }
    }

    fn take_tier(&self, id: TierId, opened: Arc<dyn HostTier>) {
        self.store.use_tier(id, opened.store());
        self.tiers.troubles.lock().remove(&id);
        self.tiers.open.lock().insert(id, opened);
    }

    /// Opens what could not be opened before, sees what is there again, and deletes what deleted volumes left. To be called now and then.
    pub async fn tend_tiers(&self) {
        self.open_tiers().await;
        self.leave_empty_tiers().await;
        let state = self.state();
        for tier in &state.tiers {
            self.store.check_tier(tier.id).await;
        }
        for tier in &state.tiers {
            for volume in &tier.deleting {
                self.delete_left(tier, *volume).await;
            }
        }
    }

    /// In a cluster only the owner of a volume knows what of it is in a tier: if that is nothing, and nothing is to be there, it
    /// takes the tier's name off the volume, and any node can remove the tier.
    async fn leave_empty_tiers(&self) {
        if self.seats.is_none() {
            return;
        }
        for volume in &self.state().volumes {
            let Some(tiering) = &volume.tiering else {
                continue;
            };
            let Some(VolumeService::Serving(fs)) = self.service(volume.id) else {
                continue;
            };
            if tiering.policy != Tiering::None
                || !matches!(fs.has_nothing_in_tiers().await, Ok(true))
            {
                continue;
            }
            let id = volume.id;
            let forgotten = self.tiers_change(move |state| {
                match state.store_mut(id) {
                    Some(store) if store.tiering.as_ref() == Some(tiering) => store.tiering = None,
                    _ => {}
                }
                Ok(())
            });
            if let Err(error) = forgotten.await {
                tracing::debug!(volume = %volume.name, %error, "the volume still names a tier in which it has nothing");
            }
        }
    }

    async fn delete_left(&self, tier: &PoolTier, volume: VolumeId) {
        // Two disks that went on without one another may have given one id to two volumes.
        let state = self.state();
        if state.volumes.iter().any(|listed| listed.id == volume) {
            return;
        }
        let now = self.env.clock.monotonic();
        match self.store.delete_volume_objects(tier.id, volume).await {
            Ok(0) => {}
            Ok(objects) => {
                tracing::info!(tier = %tier.name, %volume, objects, "objects of a deleted volume are deleted");
                let mut gone = self.tiers.gone_since.lock();
                gone.remove(&(tier.id, volume));
                return;
            }
            Err(error) => {
                tracing::debug!(tier = %tier.name, %volume, %error, "objects of a deleted volume are not deleted yet");
                return;
            }
        }
        let since = *self
            .tiers
            .gone_since
            .lock()
            .entry((tier.id, volume))
            .or_insert(now);
        if now.saturating_sub(since) < DELETING_MIN {
            return;
        }
        let id = tier.id;
        let forgotten = self.tiers_change(move |state| {
            for tier in state.tiers.iter_mut().filter(|tier| tier.id == id) {
                tier.deleting.retain(|deleting| *deleting != volume);
            }
            Ok(())
        });
        match forgotten.await {
            Ok(()) => drop(self.tiers.gone_since.lock().remove(&(id, volume))),
            Err(error) => tracing::warn!(%error, "the pool's state was not saved"),
        }
    }

    async fn tiers_change(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), ChangeFailure>,
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        change(&mut state)?;
        self.save(&mut tried, &mut state).await
    }

    /// What a host does with a tier, unless that takes too long: the lock of all changes is held meanwhile.
    async fn in_time<T>(&self, work: BoxFuture<Result<T, String>>) -> Result<T, ChangeFailure> {
        match select(work, self.env.clock.sleep(PATIENCE)).await {
            Either::Left((done, _)) => done.map_err(ChangeFailure::Impossible),
            Either::Right(_) => Err(ChangeFailure::Impossible(silent())),
        }
    }

    /// Adds a tier, whose place must be nobody's.
    pub async fn tier_add(
        &self,
        name: TierName,
        url: String,
        credentials_file: Option<String>,
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let now = self.env.clock.now();
        let id = state.add_tier(name.clone(), url, credentials_file, now)?;
        let Some(tier) = state.tier_of(id) else {
            return Err(ChangeError::NoTier(name).into());
        };
        let opened = self
            .in_time(self.host.open_tier(state.tier_owner(), tier))
            .await?;
        // Claimed before it is listed: a crash in between leaves a claim that this pool makes again.
        self.in_time(opened.claim()).await?;
        match self.save(&mut tried, &mut state).await {
            Err(error @ ChangeFailure::Save(SaveError::Conflict(_))) => {
                // Another node gave this number to another tier: nobody else will make this claim.
                if let Err(why) = self.in_time(opened.release()).await {
                    tracing::warn!(tier = %name, %why, "the mark of this pool stays there; delete cairn-tier.json by hand");
                }
                return Err(error);
            }
            saved => saved?,
        }
        self.take_tier(id, opened);
        tracing::info!(tier = %name, "tier added");
        Ok(())
    }

    /// Removes a tier that nothing is in.
    pub async fn tier_remove(&self, name: &TierName) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let tier = state.tier(name)?.clone();
        let refuse = |why: String| Err(ChangeFailure::Impossible(why));
        let volumes: Vec<PoolVolume> = state.stores_in_tier(tier.id).cloned().collect();
        if self.seats.is_some()
            && let Some(volume) = volumes.first()
        {
            let volume_name = &state.head_of(volume).name;
            return refuse(format!(
                "volume \"{volume_name}\" names tier \"{name}\"; `cairn volume set {volume_name} --tiering none` brings its data back, and its owner takes the name off when nothing is there any more; `cairn tier status {name}` at that node shows how far that is"
            ));
        }
        for volume in &volumes {
            let tiering = volume.tiering.as_ref();
            let is_none = tiering.is_some_and(|it| it.policy == Tiering::None);
            let volume_name = &state.head_of(volume).name;
            if !is_none {
                return refuse(format!(
                    "tier \"{name}\" is in use by volume \"{volume_name}\"; `cairn volume set {volume_name} --tiering none` brings its data back, `cairn tier status {name}` shows how far that is"
                ));
            }
            let Some(VolumeService::Serving(fs)) = self.service(volume.id) else {
                return refuse(format!(
                    "volume \"{volume_name}\" is not served, so nobody knows what of it is in tier \"{name}\""
                ));
            };
            let nothing = fs.has_nothing_in_tiers().await;
            let nothing = nothing.map_err(|error| ChangeFailure::Engine(error.to_string()))?;
            if !nothing {
                return refuse(format!(
                    "data of volume \"{volume_name}\" is still in tier \"{name}\", or being deleted there; it comes back by itself, `cairn tier status {name}` shows how far that is"
                ));
            }
        }
        if !tier.deleting.is_empty() {
            return refuse(format!(
                "objects of {} deleted volumes are still being deleted in tier \"{name}\"; try again in some minutes",
                tier.deleting.len()
            ));
        }
        for volume in volumes {
            if let Some(store) = state.store_mut(volume.id) {
                store.tiering = None;
            }
        }
        state.tiers.retain(|it| it.id != tier.id);
        // Who opens tiers closes it once it is not listed.
        let opened = self.tiers.open.lock().get(&tier.id).cloned();
        self.save(&mut tried, &mut state).await?;
        self.store.forget_tier(tier.id);
        self.tiers.troubles.lock().remove(&tier.id);
        drop(tried);
        self.tiers.open.lock().remove(&tier.id);
        if let Some(opened) = opened
            && let Err(why) = self.in_time(opened.release()).await
        {
            tracing::warn!(tier = %name, %why, "the mark of this pool stays where the tier was; delete cairn-tier.json there by hand");
        }
        tracing::info!(tier = %name, "tier removed");
        Ok(())
    }

    /// Whether the store of a volume may have its `tiering` instead of what it has. The volume has the id of the store, and the
    /// name of who speaks for it.
    pub(crate) async fn check_tiering(
        &self,
        state: &PoolState,
        before: Option<&VolumeTiering>,
        volume: &PoolVolume,
    ) -> Result<(), ChangeFailure> {
        if volume.tiering.as_ref() == before {
            return Ok(());
        }
        let refuse = |why: String| Err(ChangeFailure::Impossible(why));
        let name = &volume.name;
        let Some(tiering) = &volume.tiering else {
            return refuse(format!(
                "a volume names its tier as long as that is there: `cairn volume set {name} --tiering none` brings its data back"
            ));
        };
        let Some(before) = before.filter(|before| before.tier != tiering.tier) else {
            return Ok(());
        };
        let earlier = state.tier_of(before.tier);
        let earlier = earlier.map_or_else(|| before.tier.to_string(), |it| it.name.to_string());
        let nothing = match self.service(volume.id) {
            // The owner may be another node by the time that this is known.
            _ if self.seats.is_some() => false,
            Some(VolumeService::Serving(fs)) if before.policy == Tiering::None => fs
                .has_nothing_in_tiers()
                .await
                .map_err(|error| ChangeFailure::Engine(error.to_string()))?,
            _ => false,
        };
        match nothing {
            true => Ok(()),
            false => refuse(format!(
                "volume \"{name}\" has data in tier \"{earlier}\"; bring it back first: `cairn volume set {name} --tiering none`, and see `cairn tier status {earlier}`"
            )),
        }
    }

    /// Tiers, and what is in them.
    pub fn tier_statuses(&self) -> Vec<TierStatus> {
        let state = self.state();
        let tiers = state.tiers.iter();
        tiers.map(|tier| self.tier_status(&state, tier)).collect()
    }

    fn tier_status(&self, state: &PoolState, tier: &PoolTier) -> TierStatus {
        let volumes = state.stores_in_tier(tier.id).filter_map(|volume| {
            let status = match self.service(volume.id) {
                Some(VolumeService::Serving(fs)) => Some(fs.tiering_status()),
                _ => None,
            };
            Some(TierVolume {
                store: volume.id,
                name: state.head_of(volume).name.clone(),
                tiering: volume.tiering.clone()?,
                status,
            })
        });
        let trouble = self.tiers.troubles.lock().get(&tier.id).cloned();
        TierStatus {
            tier: tier.clone(),
            stats: self.store.tier_stats(tier.id).unwrap_or_default(),
            trouble: trouble.or_else(|| self.store.tier_error(tier.id)),
            volumes: volumes.collect(),
        }
    }
}

fn silent() -> String {
    format!("it does not answer within {} s", PATIENCE.as_secs())
}

/// What a host without tiers answers.
pub(crate) fn no_tiers(
    _pool: PoolId,
    tier: &PoolTier,
) -> BoxFuture<Result<Arc<dyn HostTier>, String>> {
    let why = format!("this program cannot use {}", tier.url);
    Box::pin(std::future::ready(Err(why)))
}
