//! The volumes of a run: each with its own clients, model and owners, all on shared disks.
//!
//! Owns: the list of volumes, their creation and deletion, the parts of each. Must not know: the expected contents of a
//! volume (`terms`), events at nodes.
//!
//! A volume that is made late, or one whose log is behind, reuses files of other volumes: of the log, of the state, of
//! segments. So the words that clients write name their volume, too: each volume has its own tags.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Clock};
use cairn_base::{Epoch, VolumeId};
use cairn_formats::settings::VolumeName;
use cairn_pool::Pool;
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use super::failure::FirstFailure;
use super::run::Cluster;
use super::scenario::{ClusterScenario, VolumePlan};
use super::terms::Terms;
use crate::model::Tag;
use crate::object_store::LifeStore;
use crate::world::volume_settings;

/// Longest wait for a change: it exceeds the duration of all events.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(600);
const CHANGE_LOOK: Duration = Duration::from_millis(200);
/// An operator asks another node after this time without an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);
/// More words than the clients of one volume write in a run.
const TAGS_OF_VOLUME: Tag = 1 << 26;
pub const VOLUMES_MAX: usize = 8;
const _: () = assert!((TAGS_OF_VOLUME as u64) * (VOLUMES_MAX as u64) < 1 << 32);

/// One volume, and its own parts.
pub struct Volume {
    /// Index in the scenario.
    pub nth: usize,
    pub name: VolumeName,
    pub plan: VolumePlan,
    pub terms: Arc<Terms>,
    /// Set when it is made.
    id: OnceLock<VolumeId>,
    /// Its deletion has begun.
    is_deleted: AtomicBool,
}

impl Volume {
    /// `None` before it is made.
    pub fn id(&self) -> Option<VolumeId> {
        self.id.get().copied()
    }

    /// It is made, and its deletion has not begun.
    pub fn is_there(&self) -> bool {
        self.id.get().is_some() && !self.is_deleted.load(Ordering::Relaxed)
    }
}

/// All volumes of a run, including future and deleted ones.
pub struct Volumes(Vec<Arc<Volume>>);

/// Name of the first volume, which uses the object store.
const FIRST_NAME: &str = "main";

impl Volumes {
    pub fn new(
        scenario: &ClusterScenario,
        objects: Option<&Arc<LifeStore>>,
        failure: &Arc<FirstFailure>,
        mut seed: impl FnMut() -> u64,
    ) -> Self {
        let all = scenario.volumes.iter().enumerate().take(VOLUMES_MAX);
        let all = all.filter_map(|(nth, plan)| {
            let name = match nth {
                0 => FIRST_NAME.to_owned(),
                _ => format!("more{nth}"),
            };
            let terms = Terms::new(
                name.clone(),
                scenario.shape.clone(),
                plan.load,
                objects.filter(|_| nth == 0).cloned(),
                1 + TAGS_OF_VOLUME * nth as Tag,
                failure.clone(),
                seed(),
            );
            Some(Arc::new(Volume {
                nth,
                name: name.parse().ok()?,
                plan: *plan,
                terms,
                id: OnceLock::new(),
                is_deleted: AtomicBool::new(false),
            }))
        });
        Self(all.collect())
    }

    pub fn all(&self) -> &[Arc<Volume>] {
        &self.0
    }

    pub fn named(&self, name: &VolumeName) -> Option<&Arc<Volume>> {
        self.0.iter().find(|volume| volume.name == *name)
    }

    /// The epoch in which the newest owner of a volume serves.
    pub fn epoch_last(&self, id: VolumeId) -> Option<Epoch> {
        let mut all = self.0.iter();
        let volume = all.find(|volume| volume.id() == Some(id))?;
        Some(volume.terms.epoch_last())
    }

    /// The volumes that exist now.
    pub fn there(&self) -> Vec<Arc<Volume>> {
        let there = self.0.iter().filter(|volume| volume.is_there());
        there.cloned().collect()
    }

    /// The target of an event that was drawn for the volume of this number.
    pub fn struck(&self, nth: usize) -> Option<Arc<Volume>> {
        let there = self.there();
        let named = there.iter().find(|volume| volume.nth == nth);
        named
            .or_else(|| there.get(nth % there.len().max(1)))
            .cloned()
    }
}

impl Cluster {
    /// Makes and deletes volumes at their times, counted from now on.
    pub(super) fn plan_volumes(self: &Arc<Self>) {
        for volume in self.volumes.all() {
            if volume.plan.made_at_ms.is_none() && volume.plan.lives_ms.is_none() {
                continue;
            }
            let (cluster, volume) = (Arc::clone(self), volume.clone());
            self.spawn_under_way(async move {
                if let Err(error) = cluster.follow_plan(&volume).await {
                    cluster.failure.note(error);
                }
            });
        }
    }

    async fn follow_plan(self: &Arc<Self>, volume: &Arc<Volume>) -> Result<(), String> {
        let clock = &self.env.clock;
        if let Some(at_ms) = volume.plan.made_at_ms {
            clock.sleep(Duration::from_millis(at_ms)).await;
            self.make(volume).await?;
            self.volumes_made_late.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(lives_ms) = volume.plan.lives_ms {
            clock.sleep(Duration::from_millis(lives_ms)).await;
            self.delete(volume).await?;
            self.volumes_deleted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has a node make a volume; returns when etcd lists it.
    pub(super) async fn make(self: &Arc<Self>, volume: &Arc<Volume>) -> Result<(), String> {
        let (name, settings) = (volume.name.clone(), volume_settings(self.shape()));
        tracing::info!(%name, "MAKES A VOLUME");
        let ask = move |pool: Arc<Pool>| -> BoxFuture<Result<(), String>> {
            let (name, settings) = (name.clone(), settings);
            Box::pin(async move {
                let made = pool.volume_create(&name, settings, Vec::new(), None, false);
                made.await.map_err(|error| error.to_string())
            })
        };
        let is_listed = || self.rules.id_of(&volume.name).is_some();
        self.insist(
            &format!("volume {} is not made", volume.name),
            is_listed,
            ask,
        )
        .await?;
        if let Some(id) = self.rules.id_of(&volume.name) {
            tracing::info!(name = %volume.name, %id, "A VOLUME IS MADE");
            // The only place that sets it.
            let _ = volume.id.set(id);
        }
        Ok(())
    }

    /// Has a node delete a volume; returns when etcd does not list it any more.
    async fn delete(self: &Arc<Self>, volume: &Arc<Volume>) -> Result<(), String> {
        let name = volume.name.clone();
        tracing::info!(%name, "DELETES A VOLUME");
        // From now on its clients' answers are not checked, except that no earlier owner may answer.
        volume.is_deleted.store(true, Ordering::Relaxed);
        volume.terms.delete();
        if let Some(id) = volume.id() {
            self.promises.forget(id);
        }
        let ask = move |pool: Arc<Pool>| -> BoxFuture<Result<(), String>> {
            let name = name.clone();
            Box::pin(async move {
                let deleted = pool.volume_delete(&name, true);
                deleted.await.map_err(|error| error.to_string())
            })
        };
        let is_gone = || self.rules.id_of(&volume.name).is_none();
        self.insist(&format!("volume {} stays", volume.name), is_gone, ask)
            .await
    }

    /// Asks one node after the other until etcd shows the result, as an operator would. A request runs in the process
    /// of the node, and ends with it.
    async fn insist(
        self: &Arc<Self>,
        what: &str,
        is_so: impl Fn() -> bool,
        ask: impl Fn(Arc<Pool>) -> BoxFuture<Result<(), String>>,
    ) -> Result<(), String> {
        let since = self.clock.monotonic();
        let mut why = "no node runs".to_owned();
        while !is_so() {
            if self.clock.monotonic().saturating_sub(since) >= CHANGE_WAIT_MAX {
                return Err(format!("{what}: {why}"));
            }
            let index = self.rng.lock().below(self.scenario.node_count as u64) as usize;
            if let Some(process) = self.process(index) {
                let (sender, answer) = oneshot::channel();
                let asked = ask(process.pool.clone());
                let work = async move { drop(sender.send(asked.await)) };
                process.env.spawner.spawn("operator", Box::pin(work));
                drop(process);
                match select(answer, self.env.clock.sleep(ANSWER_WAIT_MAX)).await {
                    Either::Left((Ok(Ok(())), _)) => {}
                    Either::Left((Ok(Err(error)), _)) => why = error,
                    Either::Left((Err(_), _)) => why = format!("node {index} ended"),
                    Either::Right(_) => why = format!("node {index} does not answer"),
                }
            }
            self.env.clock.sleep(CHANGE_LOOK).await;
        }
        Ok(())
    }
}
