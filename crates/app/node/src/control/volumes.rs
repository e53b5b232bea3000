//! Volumes: their views, and how they are made and changed.
//!
//! Owns: the views, and the checks before a change. Must not know: how volumes are kept or served.

use std::collections::BTreeMap;

use cairn_admin::api::ErrorKind;
use cairn_admin::cluster::ClusterView;
use cairn_admin::list_query::ListQuery;
use cairn_admin::volumes::{
    DirectoryProtection, MediaBytes, VolumeAddressSet, VolumeChange, VolumeCloneCreate,
    VolumeControl, VolumeCreate, VolumeList, VolumeOrigin, VolumeSettingsView, VolumeTieringView,
    VolumeView,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::{Media, VolumeId};
use cairn_cluster::MapError;
use cairn_config::{CoolingDays, MediaChoice, TierFilter, Tiering, VolumeName, VolumeSettings};
use cairn_formats::pool_file::{PoolVolume, VolumeTiering};

use super::overview::counted;
use super::refusals::not_found;
use super::{Controller, no_cluster, refusal};
use crate::keys::encryption_view;
use crate::node::VolumeService;
use crate::{address_pools, addresses, classes, cluster_view, convert};

impl Controller {
    pub(super) async fn move_volume(
        &self,
        name: VolumeName,
        to: Option<String>,
    ) -> Result<VolumeView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let state = self.inner.pool.state();
        let volume = state.volume(&name).map_err(|error| refusal(error.into()))?;
        let node = match &to {
            Some(node) => Some(cluster.node_named(node).map_err(not_found)?),
            None => None,
        };
        // Volumes in one store have one owner.
        let store = state.store_of(volume).id;
        let view = cluster.member.view();
        let there = node.and_then(|node| view.alive.get(&node));
        if there.is_some_and(|there| there.value.locked.contains(&store)) {
            let to = to.unwrap_or_default();
            let why = format!(
                "node {to} cannot open volume {name}: it lacks the volume's master key, or the volume's key was erased"
            );
            return Err(ControlError::new(ErrorKind::Conflict, why).hint(format!(
                "give that node the master keys that the other nodes have (`cairn key list`); volume {name} stays where it is"
            )));
        }
        let set = cluster.member.map().set_preferred(store, node).await;
        set.map_err(|error| ControlError::new(ErrorKind::Unavailable, error.to_string()))?;
        self.volume_now(&name).await
    }

    pub(super) async fn set_volume_address(
        &self,
        name: VolumeName,
        address: Option<VolumeAddressSet>,
    ) -> Result<ClusterView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let state = self.inner.pool.state();
        let volume = state.volume(&name).map_err(|error| refusal(error.into()))?;
        let invalid = |why: String| ControlError::new(ErrorKind::Invalid, why);
        let conflict = |why: String| ControlError::new(ErrorKind::Conflict, why);
        let record = match &address {
            None => None,
            Some(set) => {
                let parsed = addresses::parse(&set.address, set.interface.as_deref());
                Some(parsed.map_err(invalid)?)
            }
        };
        if let Some(record) = &record
            && let Some(node) = cluster_view::node_at(&cluster.member.view(), record.address)
        {
            let why = format!(
                "{} is an address of node {node}, which stays there: choose one that nobody has",
                record.address
            );
            return Err(conflict(why));
        }
        let map = cluster.member.map();
        let store = state.store_of(volume).id;
        if let Some(record) = &record {
            address_pools::wait_until_left(cluster, record.address).await;
        }
        let set = map.set_address(store, record.as_ref()).await;
        set.map_err(|error| match error {
            MapError::Exists { .. } => {
                let address = record.as_ref().map(|record| record.address);
                let by = address
                    .and_then(|it| address_pools::why_of_no_volume(&cluster.member.view(), it));
                conflict(by.unwrap_or_else(|| {
                    "another volume has this address: choose one that nobody has".to_owned()
                }))
            }
            error => ControlError::new(ErrorKind::Unavailable, error.to_string()),
        })?;
        self.cluster_after(cluster).await
    }

    pub(super) async fn make_volume(
        &self,
        create: VolumeCreate,
    ) -> Result<VolumeView, ControlError> {
        if create.settings.has_tiering() {
            let message = "what of a volume goes to a tier is set when the volume is there";
            return Err(ControlError::new(ErrorKind::Invalid, message).hint(
                "make it without, then `cairn volume set VOLUME --tier TIER --tiering auto`",
            ));
        }
        self.require_media(create.settings.media)?;
        let mut settings = VolumeSettings::default();
        create.settings.apply(&mut settings);
        if create.encrypt {
            // Reads the newest key that a file or a command has by now.
            self.inner.keys.look().await;
        }
        let class = create.settings.class.as_ref();
        let class = class.and_then(|class| class.name().cloned());
        self.inner
            .pool
            .volume_create(&create.name, settings, Vec::new(), class, create.encrypt)
            .await
            .map_err(refusal)?;
        // So that a new volume has its credit from the first request on.
        classes::read_all(&self.inner).await;
        self.volume_now(&create.name).await
    }

    pub(super) async fn change_volume(
        &self,
        name: VolumeName,
        change: VolumeChange,
    ) -> Result<VolumeView, ControlError> {
        let tiering = self.tiering_change(&name, &change)?;
        self.require_media(change.media)?;
        self.inner
            .pool
            .volume_set(&name, |volume| {
                volume.tiering = tiering.or_else(|| volume.tiering.take());
                change.apply(&mut volume.settings);
                if let Some(class) = &change.class {
                    volume.class = class.name().cloned();
                }
            })
            .await
            .map_err(refusal)?;
        // So that the reply has it.
        classes::read_all(&self.inner).await;
        self.volume_now(&name).await
    }

    /// Refuses a device class that no disk has.
    pub(crate) fn require_media(&self, choice: Option<MediaChoice>) -> Result<(), ControlError> {
        let required = self.inner.pool.require_media(choice.unwrap_or_default());
        required.map_err(refusal)
    }

    /// Volumes outside of the page cost only a comparison of their names.
    pub(super) async fn volume_page(&self, query: &ListQuery) -> VolumeList {
        let pool = self.inner.pool.state();
        let cut = query.cut(
            pool.all_volumes()
                .map(|volume| (volume.name.as_str(), volume)),
        );
        let mut volumes = Vec::with_capacity(cut.items.len());
        for (_, volume) in cut.items {
            volumes.push(self.volume_view(volume).await);
        }
        VolumeList {
            volumes,
            total: cut.total,
            next_after: cut.next_after,
        }
    }

    pub(super) async fn volume_now(&self, name: &VolumeName) -> Result<VolumeView, ControlError> {
        let pool = self.inner.pool.state();
        match pool.volume(name) {
            Ok(volume) => {
                let mut view = self.volume_view(volume).await;
                // This needs a survey of all segments, which a list of volumes leaves out.
                let store = pool.store_of(volume).id;
                view.media_bytes = media_bytes(self.inner.pool.store.media_bytes(store));
                Ok(view)
            }
            Err(error) => Err(refusal(error.into())),
        }
    }

    /// The error for a volume that is not served here: another node has it and gets the request, or no node does yet.
    pub(crate) fn not_here(&self, id: VolumeId, name: &VolumeName) -> ControlError {
        let unavailable = |message| ControlError::new(ErrorKind::Unavailable, message);
        let not_open = || {
            let why = unavailable(format!("volume {name} is not open yet; try again"));
            match self.inner.pool.service(id) {
                Some(VolumeService::Failed(_)) => why,
                _ => why.passing(),
            }
        };
        // The caller searched among the volumes with LUNs and buckets.
        if self.inner.pool.state().clone_of(id).is_some()
            && let Some(VolumeService::Serving(_)) = self.inner.pool.service(id)
        {
            let why = format!("volume {name} is a clone: it has no LUNs and no buckets yet");
            return ControlError::new(ErrorKind::Conflict, why)
                .hint("`cairn lun clone` makes clones of LUNs");
        }
        let Some(cluster) = &self.inner.cluster else {
            return not_open();
        };
        match (cluster.member.owner(id), self.inner.owner_name(id)) {
            (Some(owner), Some(Ok(node))) if owner != cluster.member.node() => unavailable(
                format!("node {node} has volume {name}"),
            )
            .hint(format!(
                "ask that node, with --server; `cairn volume move {name}` has another node own it"
            ))
            .at(owner),
            _ => not_open(),
        }
    }

    /// The change of the tier settings of a volume; `None`: no change.
    pub(super) fn tiering_change(
        &self,
        name: &VolumeName,
        change: &VolumeChange,
    ) -> Result<Option<VolumeTiering>, ControlError> {
        if !change.has_tiering() {
            return Ok(None);
        }
        let state = self.inner.pool.state();
        let volume = state.volume(name).map_err(|error| refusal(error.into()))?;
        let volume = state.headed_by(volume.id).unwrap_or(volume);
        let tier = match (&change.tier, &volume.tiering) {
            (Some(tier), _) => state.tier(tier).map_err(|error| refusal(error.into()))?.id,
            (None, Some(tiering)) => tiering.tier,
            (None, None) => {
                let message = format!("volume \"{name}\" has no tier yet");
                return Err(ControlError::new(ErrorKind::Conflict, message)
                    .hint("name one: --tier NAME; `cairn tier list` shows those that there are"));
            }
        };
        let mut tiering = volume.tiering.clone().unwrap_or_else(|| VolumeTiering {
            tier,
            policy: Tiering::default(),
            cooling_days: CoolingDays::default(),
            filter: TierFilter::default(),
        });
        tiering.tier = tier;
        tiering.policy = change.tiering.unwrap_or(tiering.policy);
        tiering.cooling_days = change.cooling_days.unwrap_or(tiering.cooling_days);
        let filter = &mut tiering.filter;
        if let Some(files) = &change.tier_files {
            filter.files = files.clone();
        }
        filter.min_size = change.tier_min_size.unwrap_or(filter.min_size);
        filter.min_age = change.tier_min_age.unwrap_or(filter.min_age);
        if tiering.policy == Tiering::SnapshotOnly && !filter.is_all() {
            let message = "with snapshot-only what files have stays on the disks, so it cannot be for certain files";
            return Err(ControlError::new(ErrorKind::Invalid, message).hint(
                "say auto or all, or drop what is said of files: --tier-files any --tier-min-size none --tier-min-age none",
            ));
        }
        Ok(Some(tiering))
    }

    /// The protections of a volume's directories that differ from its own.
    pub(super) fn directory_protections(
        &self,
        settings: &VolumeSettings,
    ) -> Vec<DirectoryProtection> {
        let others = settings.directory_protections.iter();
        let view = |protection| {
            let code = self.inner.pool.store.code_for(protection);
            DirectoryProtection {
                protection,
                layout: match &code {
                    Ok(code) => convert::layout(*code),
                    Err(error) => error.to_string(),
                },
                disk_failures_tolerated: code.map_or(0, |code| u32::from(code.parity())),
            }
        };
        others.map(view).collect()
    }

    pub(super) async fn volume_view(&self, volume: &PoolVolume) -> VolumeView {
        let inner = &self.inner;
        let pool = inner.pool.state();
        // Numbers that a clone shares with all others in its store.
        let store = pool.store_of(volume);
        let is_head = pool.head_of(store).id == volume.id;
        let state = self.volume_state(&pool, volume);
        let code = inner.pool.store.code_for(store.settings.protection);
        let mut view = VolumeView {
            id: volume.id.0,
            name: volume.name.clone(),
            settings: VolumeSettingsView::of(
                &volume.settings,
                &store.settings,
                volume.class.as_ref(),
            ),
            layout: match &code {
                Ok(code) => convert::layout(*code),
                Err(error) => error.to_string(),
            },
            disk_failures_tolerated: code.map_or(0, |code| u32::from(code.parity())),
            node_failures_tolerated: inner.pool.nodes_tolerated(store).map(counted),
            media_bytes: Vec::new(),
            directory_protections: self.directory_protections(&store.settings),
            tiering: store.tiering.as_ref().filter(|_| is_head).map(|tiering| {
                let tier = pool.tier_of(tiering.tier);
                VolumeTieringView {
                    tier: tier
                        .map_or_else(|| tiering.tier.to_string(), |tier| tier.name.to_string()),
                    policy: tiering.policy,
                    cooling_days: tiering.cooling_days,
                    files: tiering.filter.files.clone(),
                    min_size: tiering.filter.min_size,
                    min_age: tiering.filter.min_age,
                    remote_bytes: match inner.pool.service(volume.id) {
                        Some(VolumeService::Serving(fs)) => fs.tiering_status().remote_bytes,
                        _ => 0,
                    },
                }
            }),
            rates: None,
            created_seconds: volume.created.seconds,
            serving: state.serving,
            owner: state.owner,
            problem: state.problem,
            used_bytes: 0,
            total_bytes: 0,
            free_bytes: 0,
            inodes: 0,
            snapshots: 0,
            snapshot_bytes: 0,
            garbage_bytes: 0,
            freeing_bytes: 0,
            deduplicated_bytes: 0,
            exported: !volume.exports.is_empty(),
            encryption: encryption_view(store, &inner.keys.known()),
            clone_of: inner.pool.origin_of(volume).map(|origin| VolumeOrigin {
                volume: origin.volume,
                snapshot: origin.snapshot,
                deleted: origin.is_deleted,
            }),
        };
        if let Some(VolumeService::Serving(fs)) = inner.pool.service(volume.id) {
            let (counts, counters) = (fs.counts(), fs.meta().counters());
            view.used_bytes = counts.file_bytes;
            view.rates = inner
                .shaper
                .report(volume.id)
                .map(|report| convert::rates(&report, inner.shaper.goal(volume.id), volume));
            view.inodes = counts.inodes;
            view.snapshots = fs.snapshot_count();
            // Counted for the whole store, and shown for the volume that represents it.
            if is_head {
                view.snapshot_bytes = counters.history_bytes;
                let backlog = fs.gc_backlog();
                view.garbage_bytes = backlog.garbage_bytes();
                view.freeing_bytes = backlog.bytes();
                let past = inner.pool.past_totals_of(store.id).deduplicated_bytes;
                view.deduplicated_bytes = past + fs.stats().deduplicated_bytes;
            }
            if let Ok(space) = fs.space().await {
                view.total_bytes = space.total_bytes;
                view.free_bytes = space.free_bytes;
            }
        }
        view
    }
}

impl VolumeControl for Controller {
    fn volume_list(&self, query: ListQuery) -> Answer<'_, VolumeList> {
        Box::pin(async move { Ok(self.volume_page(&query).await) })
    }

    fn volume_show(&self, name: VolumeName) -> Answer<'_, VolumeView> {
        Box::pin(async move { self.volume_now(&name).await })
    }

    fn volume_create(&self, create: VolumeCreate) -> Answer<'_, VolumeView> {
        Box::pin(self.make_volume(create))
    }

    fn volume_clone(&self, source: VolumeName, clone: VolumeCloneCreate) -> Answer<'_, VolumeView> {
        Box::pin(async move {
            self.clone_volume(&source, &clone).await?;
            classes::read_all(&self.inner).await;
            self.volume_now(&clone.name).await
        })
    }

    fn volume_set(&self, name: VolumeName, change: VolumeChange) -> Answer<'_, VolumeView> {
        Box::pin(self.change_volume(name, change))
    }

    fn volume_delete(&self, name: VolumeName, force: bool) -> Answer<'_, ()> {
        Box::pin(async move {
            self.require_store_here(&name)?;
            let pool = &self.inner.pool;
            pool.volume_delete(&name, force).await.map_err(refusal)
        })
    }

    fn volume_move(&self, name: VolumeName, to: Option<String>) -> Answer<'_, VolumeView> {
        Box::pin(self.move_volume(name, to))
    }

    fn volume_address(
        &self,
        name: VolumeName,
        address: Option<VolumeAddressSet>,
    ) -> Answer<'_, ClusterView> {
        Box::pin(self.set_volume_address(name, address))
    }
}

fn media_bytes(known: Option<BTreeMap<(Media, Option<Media>), u64>>) -> Vec<MediaBytes> {
    let each = known.into_iter().flatten();
    let view = each.map(|((wanted, on), bytes)| MediaBytes {
        wanted: Some(wanted).into(),
        on: on.into(),
        bytes,
    });
    view.collect()
}
