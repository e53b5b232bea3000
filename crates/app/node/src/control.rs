//! Answers the admin API.
//!
//! Owns: the views that people and scripts see, and what each refusal suggests to do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::api::{
    AdminView, AuthorityView, BalanceView, CacheAdd, CacheList, CacheView, ClusterView,
    DirectoryProtection, DiskAdd, DiskPlace, DiskReplace, DiskRole, DiskState, DiskView, ErrorKind,
    ExportView, MediaBytes, MemoryView, NfsView, PoolView, RebuildView, ScrubReport, ScrubSchedule,
    ScrubScheduleSet, ScrubStart, ScrubView, SpreadSet, SpreadView, Status, TicketCreate,
    TicketView, VolumeAddressSet, VolumeChange, VolumeCloneCreate, VolumeCreate, VolumeList,
    VolumeOrigin, VolumeTieringView, VolumeView,
};
use cairn_admin::list_query::ListQuery;
use cairn_admin::{Answer, Control, ControlError};
use cairn_base::domain::Losses;
use cairn_base::{DiskId, Media, NodeId, Timestamp, VolumeId};
use cairn_cluster::MapError;
use cairn_cluster::map::{NodeRecord, TOKEN_SECONDS_MAX, WEIGHT_MAX, WEIGHT_NORMAL};
use cairn_config::{
    ClassChoice, ClientNet, CoolingDays, ExportRule, Maintenance, MediaChoice, Protection,
    TierFilter, Tiering, VolumeName, VolumeSettings,
};
use cairn_segment::DiskStatus;

use crate::address_pools;
use crate::addresses;
use crate::balance;
use crate::classes;
use crate::cluster::ClusterNode;
use crate::cluster::rotation::BeginError;
use crate::cluster_view;
use crate::convert;
use crate::keys::encryption_view;
use crate::node::{ChangeFailure, Inner, VolumeService};
use cairn_formats::encryption::VolumeEncryption;
use cairn_formats::pool_file::{ChangeError, PoolDisk, PoolState, PoolVolume, VolumeTiering};
use cairn_pool::health::{FREE_PERCENT_LOW, Judgement, LostDisk, LowVolume, Observed, judge};
use cairn_pool::joining::Allowed;
use cairn_pool::truth::SaveError;
use cairn_pool::warning::DiskLoss;

/// A node is in maintenance for a week at most: data that is not rebuilt for longer is better moved.
const MAINTENANCE_SECONDS_MAX: u64 = 7 * 24 * 3600;

pub struct Controller {
    pub inner: Arc<Inner>,
    pub nfs: NfsView,
    pub admin: AdminView,
}

impl Control for Controller {
    fn status(&self) -> Answer<'_, Status> {
        Box::pin(async { Ok(self.status_now().await) })
    }

    fn disks(&self) -> Answer<'_, Vec<DiskView>> {
        Box::pin(async { Ok(self.disk_views()) })
    }

    fn disk_place(&self, path: String) -> Answer<'_, DiskPlace> {
        Box::pin(async move { self.inner.disk_place(&path).await.map_err(refusal) })
    }

    fn disk_add(&self, add: DiskAdd) -> Answer<'_, DiskView> {
        Box::pin(async move {
            self.require_node_stays()?;
            let added = self
                .inner
                .disk_add(
                    &add.path,
                    Allowed {
                        wipe: add.wipe,
                        create: add.create,
                    },
                    convert::role(add.role),
                    add.media.kind(),
                )
                .await;
            self.disk_now(added.map_err(refusal)?)
        })
    }

    fn disk_drain(&self, disk: String, draining: bool) -> Answer<'_, DiskView> {
        Box::pin(async move {
            let changed = self.inner.pool.drain(&disk, draining).await;
            self.disk_now(changed.map_err(refusal)?)
        })
    }

    fn disk_media(&self, disk: String, media: MediaChoice) -> Answer<'_, DiskView> {
        Box::pin(async move {
            let changed = self.inner.pool.set_media(&disk, media.kind()).await;
            self.disk_now(changed.map_err(refusal)?)
        })
    }

    fn disk_remove(&self, disk: String, force: bool) -> Answer<'_, ()> {
        Box::pin(async move {
            let removed = self.inner.disk_remove(&disk, force).await;
            removed.map_err(refusal)
        })
    }

    fn disk_replace(&self, disk: String, by: DiskReplace) -> Answer<'_, DiskView> {
        Box::pin(async move {
            if let Some(lost) = self.lost_elsewhere(&disk)? {
                let noted = self.inner.pool.replace_later(&lost.to_string()).await;
                return self.disk_now(noted.map_err(refusal)?);
            }
            self.require_node_stays()?;
            let allowed = Allowed {
                wipe: by.wipe,
                create: by.create,
            };
            let added = self.inner.disk_replace(&disk, &by.path, allowed).await;
            self.disk_now(added.map_err(refusal)?)
        })
    }

    fn disk_retry(&self, disk: String) -> Answer<'_, DiskView> {
        Box::pin(async move {
            let retried = self.inner.disk_retry(&disk).await;
            self.disk_now(retried.map_err(refusal)?)
        })
    }

    fn caches(&self) -> Answer<'_, CacheList> {
        Box::pin(async { Ok(self.inner.cache_list()) })
    }

    fn cache_add(&self, add: CacheAdd) -> Answer<'_, CacheView> {
        Box::pin(async move { self.inner.cache_add(&add).await.map_err(refusal) })
    }

    fn cache_remove(&self, cache: String) -> Answer<'_, ()> {
        Box::pin(async move { self.inner.cache_remove(&cache).await.map_err(refusal) })
    }

    fn rebuild(&self) -> Answer<'_, RebuildView> {
        Box::pin(async { Ok(convert::rebuild(self.inner.pool.rebuild_status())) })
    }

    fn rebuild_rate(&self, rate_bytes_per_second: u64) -> Answer<'_, RebuildView> {
        Box::pin(async move {
            self.inner.pool.rebuild.set_rate(rate_bytes_per_second);
            Ok(convert::rebuild(self.inner.pool.rebuild_status()))
        })
    }

    fn scrub(&self) -> Answer<'_, ScrubView> {
        Box::pin(async { Ok(convert::scrub(self.inner.pool.scrub_progress())) })
    }

    fn scrub_start(&self, start: ScrubStart) -> Answer<'_, ScrubView> {
        Box::pin(async move {
            let rate = start.rate_bytes_per_second;
            self.inner.pool.scrub_start(rate, start.restart).await;
            Ok(convert::scrub(self.inner.pool.scrub_progress()))
        })
    }

    fn spread(&self) -> Answer<'_, SpreadView> {
        Box::pin(async { Ok(convert::spread(self.inner.pool.spread_status())) })
    }

    fn spread_set(&self, set: SpreadSet) -> Answer<'_, SpreadView> {
        Box::pin(async move {
            let changed = self.inner.pool.set_spread_paused(set.paused).await;
            changed.map_err(refusal)?;
            self.spread().await
        })
    }

    fn scrub_pause(&self) -> Answer<'_, ScrubView> {
        Box::pin(async {
            if self.inner.pool.scrub_pause().await {
                return Ok(convert::scrub(self.inner.pool.scrub_progress()));
            }
            let error = ControlError::new(ErrorKind::Conflict, "no scrub runs");
            Err(error.hint("`cairn scrub start` starts one"))
        })
    }

    fn scrub_schedule(&self) -> Answer<'_, ScrubSchedule> {
        Box::pin(async {
            let now = self.inner.env.clock.now();
            let state = self.inner.pool.state();
            Ok(convert::scrub_schedule(&state.maintenance, now))
        })
    }

    fn scrub_schedule_set(&self, set: ScrubScheduleSet) -> Answer<'_, ScrubSchedule> {
        Box::pin(async move {
            let maintenance = Maintenance {
                scrub_every: set.every,
                window: set.window,
                ..self.inner.pool.state().maintenance.clone()
            };
            let changed = self.inner.pool.set_maintenance(maintenance).await;
            changed.map_err(refusal)?;
            self.scrub_schedule().await
        })
    }

    fn scrub_report(&self) -> Answer<'_, ScrubReport> {
        Box::pin(async {
            let pool = Arc::clone(&self.inner.pool);
            // Names are found by a pass over all of them. It yields, but its reads of the metadata may wait for a
            // disk, and a thread of the server must not.
            let runtime = tokio::runtime::Handle::current();
            let look = move || runtime.block_on(pool.damaged_places());
            let found = tokio::task::spawn_blocking(look).await;
            let found =
                found.map_err(|error| ControlError::new(ErrorKind::Internal, error.to_string()))?;
            let places = found.places.into_iter();
            Ok(ScrubReport {
                scrub: convert::scrub(self.inner.pool.scrub_progress()),
                damaged: places.map(convert::damaged_place).collect(),
                damaged_more: found.more,
            })
        })
    }

    fn volumes(&self, query: ListQuery) -> Answer<'_, VolumeList> {
        Box::pin(async move { Ok(self.volume_page(&query).await) })
    }

    fn volume(&self, name: VolumeName) -> Answer<'_, VolumeView> {
        Box::pin(async move { self.volume_now(&name).await })
    }

    fn cluster(&self) -> Answer<'_, ClusterView> {
        Box::pin(async {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            Ok(self.cluster_now(cluster).await)
        })
    }

    fn cluster_backup(&self) -> Answer<'_, String> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            let copy = cluster.backup().await;
            let copy = copy.map_err(|why| ControlError::new(ErrorKind::Unavailable, why))?;
            let text = String::from_utf8(copy.encode());
            text.map_err(|error| ControlError::new(ErrorKind::Internal, error.to_string()))
        })
    }

    fn cluster_ticket(&self, create: TicketCreate) -> Answer<'_, TicketView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            if !(1..=TOKEN_SECONDS_MAX).contains(&create.valid_seconds) {
                let seconds = create.valid_seconds;
                let why = format!(
                    "a ticket cannot be valid for {seconds} s: from 1 s to {TOKEN_SECONDS_MAX} s (24 h)"
                );
                return Err(ControlError::new(ErrorKind::Invalid, why)
                    .hint("make a ticket shortly before a node joins with it"));
            }
            self.require_guarded()?;
            let valid_for = Duration::from_secs(create.valid_seconds);
            let ticket = cluster.ticket(valid_for).await;
            let ticket = ticket.map_err(|why| ControlError::new(ErrorKind::Unavailable, why))?;
            Ok(TicketView {
                ticket: ticket.to_string(),
            })
        })
    }

    fn cluster_authority(&self) -> Answer<'_, AuthorityView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            authority_now(cluster).await
        })
    }

    fn cluster_authority_rotate(&self) -> Answer<'_, AuthorityView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            self.require_guarded()?;
            let begun = cluster.rotate_authority().await;
            begun.map_err(|error| match error {
                BeginError::Refused(why) => ControlError::new(ErrorKind::Conflict, why),
                BeginError::Failed(why) => ControlError::new(ErrorKind::Unavailable, why),
            })?;
            authority_now(cluster).await
        })
    }

    fn node_drain(&self, node: String, draining: bool) -> Answer<'_, ClusterView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            let record = cluster.record_named(&node).map_err(not_found)?;
            if draining && !record.draining {
                let bytes = cluster_view::bytes_on(&cluster.member.view(), record.id);
                let can = self.inner.pool.require_without_node(record.id, bytes);
                can.map_err(refusal)?;
            }
            // One that another node takes the place of goes on being replaced.
            let replaced_by = record.replaced_by.filter(|_| draining);
            self.set_draining(cluster, &record, draining, replaced_by)
                .await
        })
    }

    fn node_maintenance(&self, node: String, seconds: u64) -> Answer<'_, ClusterView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            let record = cluster.record_named(&node).map_err(not_found)?;
            let conflict = |why: String| ControlError::new(ErrorKind::Conflict, why);
            if seconds > MAINTENANCE_SECONDS_MAX {
                let why = format!("{seconds} seconds are too long: at most a week");
                return Err(conflict(why).hint("`cairn node drain` has a node leave"));
            }
            if seconds > 0 && record.draining {
                return Err(conflict(format!("node {node} is to leave"))
                    .hint("`cairn node drain --cancel` has it stay"));
            }
            let now = self.inner.env.clock.now().seconds;
            let until = i64::try_from(seconds).ok();
            let until = until.filter(|seconds| *seconds > 0);
            let until = until.map(|seconds| Timestamp::new(now.saturating_add(seconds), 0));
            self.require_guarded()?;
            let map = cluster.member.map();
            let set = map.set_node_maintenance(record.id, until).await;
            set.map_err(|error| conflict(error.to_string()).hint("try again"))?;
            self.cluster_after(cluster).await
        })
    }

    fn node_weight(&self, node: String, weight: u32) -> Answer<'_, ClusterView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            let record = cluster.record_named(&node).map_err(not_found)?;
            if weight > WEIGHT_MAX {
                let why = format!("a weight of {weight} is too large: at most {WEIGHT_MAX}");
                return Err(ControlError::new(ErrorKind::Invalid, why).hint(format!(
                    "{WEIGHT_NORMAL} is the usual one; only the proportions of the nodes' weights count"
                )));
            }
            self.require_guarded()?;
            let map = cluster.member.map();
            let set = map.set_node_weight(record.id, weight).await;
            set.map_err(|error| {
                ControlError::new(ErrorKind::Conflict, error.to_string()).hint("try again")
            })?;
            self.cluster_after(cluster).await
        })
    }

    fn balance(&self) -> Answer<'_, BalanceView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            Ok(balance::of(&self.inner, cluster))
        })
    }

    fn balance_step(&self) -> Answer<'_, BalanceView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            balance::step(&self.inner, cluster).await
        })
    }

    fn node_replace(&self, node: String, by: String) -> Answer<'_, ClusterView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            let old = cluster.record_named(&node).map_err(not_found)?;
            let new = cluster.record_named(&by).map_err(not_found)?;
            let conflict = |why: String| ControlError::new(ErrorKind::Conflict, why);
            let view = cluster.member.view();
            if old.id == new.id {
                return Err(conflict(format!("node {by} cannot take its own place")));
            }
            if new.draining {
                return Err(conflict(format!("node {by} is to leave, too")));
            }
            if !view.alive.contains_key(&new.id) {
                return Err(conflict(format!("node {by} does not run: start it first")));
            }
            let mut disks = view.disks.values().map(|disk| &disk.value);
            if !disks.any(|disk| disk.node == new.id && !disk.draining) {
                let why = format!("node {by} has no disk that stays: add one first");
                return Err(conflict(why));
            }
            // Of one that is lost, as much as possible is better than nothing: what is missing is told while that goes on.
            if !old.draining && view.alive.contains_key(&old.id) {
                let bytes = cluster_view::bytes_on(&view, old.id);
                let can = self.inner.pool.require_without_node(old.id, bytes);
                can.map_err(refusal)?;
            }
            self.set_draining(cluster, &old, true, Some(new.id)).await
        })
    }

    fn node_remove(&self, node: String) -> Answer<'_, ()> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            let record = cluster.record_named(&node).map_err(not_found)?;
            self.require_guarded()?;
            let removed = cluster.remove_node(&record).await;
            removed.map_err(|why| {
                ControlError::new(ErrorKind::Conflict, why)
                    .hint("`cairn node list` shows what keeps a node that drains")
            })
        })
    }

    fn volume_move(&self, name: VolumeName, to: Option<String>) -> Answer<'_, VolumeView> {
        Box::pin(async move {
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
                    "node {to} cannot open volume {name}: it has no master key for it, or the key was erased"
                );
                return Err(ControlError::new(ErrorKind::Conflict, why).hint(format!(
                    "give that node the master keys of the others, and see what it has with `cairn key list`; volume {name} \
                     stays where it is"
                )));
            }
            let set = cluster.member.map().set_preferred(store, node).await;
            set.map_err(|error| ControlError::new(ErrorKind::Unavailable, error.to_string()))?;
            self.volume_now(&name).await
        })
    }

    fn volume_address(
        &self,
        name: VolumeName,
        address: Option<VolumeAddressSet>,
    ) -> Answer<'_, ClusterView> {
        Box::pin(async move {
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
        })
    }

    fn volume_create(&self, create: VolumeCreate) -> Answer<'_, VolumeView> {
        Box::pin(async move {
            if says_of_tiers(&create.settings) {
                let message = "what of a volume goes to a tier is set when the volume is there";
                return Err(ControlError::new(ErrorKind::Invalid, message).hint(
                    "make it without, then `cairn volume set VOLUME --tier TIER --tiering auto`",
                ));
            }
            self.require_media(create.settings.media)?;
            let mut settings = VolumeSettings::default();
            apply(&create.settings, &mut settings);
            if create.encrypt {
                // The newest, which is what a file or a command has by now.
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
        })
    }

    fn volume_clone(&self, source: VolumeName, clone: VolumeCloneCreate) -> Answer<'_, VolumeView> {
        Box::pin(async move {
            self.clone_volume(&source, &clone).await?;
            classes::read_all(&self.inner).await;
            self.volume_now(&clone.name).await
        })
    }

    fn volume_set(&self, name: VolumeName, change: VolumeChange) -> Answer<'_, VolumeView> {
        Box::pin(async move {
            let tiering = self.tiering_change(&name, &change)?;
            self.require_media(change.media)?;
            self.inner
                .pool
                .volume_set(&name, |volume| {
                    volume.tiering = tiering.or_else(|| volume.tiering.take());
                    apply(&change, &mut volume.settings);
                    if let Some(class) = &change.class {
                        volume.class = class.name().cloned();
                    }
                })
                .await
                .map_err(refusal)?;
            // So that the answer has it.
            classes::read_all(&self.inner).await;
            self.volume_now(&name).await
        })
    }

    fn volume_delete(&self, name: VolumeName, force: bool) -> Answer<'_, ()> {
        Box::pin(async move {
            self.require_store_here(&name)?;
            let pool = &self.inner.pool;
            pool.volume_delete(&name, force).await.map_err(refusal)
        })
    }

    fn exports(&self) -> Answer<'_, Vec<ExportView>> {
        Box::pin(async {
            let pool = self.inner.pool.state();
            Ok(pool.all_volumes().map(export_view).collect())
        })
    }

    fn export_set(&self, volume: VolumeName, rules: Vec<ExportRule>) -> Answer<'_, ExportView> {
        Box::pin(async move {
            self.inner
                .pool
                .exports_change(|pool| pool.set_rules(&volume, &rules))
                .await
                .map_err(refusal)?;
            self.export_now(&volume)
        })
    }

    fn export_remove(&self, volume: VolumeName, clients: Vec<ClientNet>) -> Answer<'_, ExportView> {
        Box::pin(async move {
            self.inner
                .pool
                .exports_change(|pool| pool.remove_rules(&volume, &clients))
                .await
                .map_err(refusal)?;
            self.export_now(&volume)
        })
    }

    fn san(&self) -> Option<&dyn cairn_admin::san::SanControl> {
        Some(self)
    }

    fn s3(&self) -> Option<&dyn cairn_admin::s3::S3Control> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn cairn_admin::snapshots::SnapshotControl> {
        Some(self)
    }

    fn policies(&self) -> Option<&dyn cairn_admin::policies::PolicyControl> {
        Some(self)
    }

    fn activity(&self) -> Option<&dyn cairn_admin::activity::ActivityControl> {
        Some(self)
    }

    fn quotas(&self) -> Option<&dyn cairn_admin::quotas::QuotaControl> {
        Some(self)
    }

    fn keys(&self) -> Option<&dyn cairn_admin::keys::KeyControl> {
        Some(self)
    }

    fn address_pools(&self) -> Option<&dyn cairn_admin::address_pools::AddressPoolControl> {
        let control: &dyn cairn_admin::address_pools::AddressPoolControl = self;
        self.inner.cluster.as_ref().map(|_| control)
    }

    fn tiers(&self) -> Option<&dyn cairn_admin::tiers::TierControl> {
        Some(self)
    }

    fn classes(&self) -> Option<&dyn cairn_admin::classes::ClassControl> {
        Some(self)
    }

    fn plans(&self) -> Option<&dyn cairn_admin::plans::PlanControl> {
        Some(self)
    }

    fn users(&self) -> Option<&dyn cairn_admin::users::UserControl> {
        Some(self)
    }

    fn audit(&self) -> Option<&dyn cairn_admin::audit::AuditControl> {
        Some(self)
    }

    fn benchmarks(&self) -> Option<&dyn cairn_admin::benchmarks::BenchmarkControl> {
        Some(self)
    }

    fn events(&self) -> Option<&dyn cairn_admin::events::EventControl> {
        Some(self)
    }

    fn live(&self) -> Option<&dyn cairn_admin::live::LiveControl> {
        Some(self)
    }

    fn metrics(&self) -> Answer<'_, String> {
        Box::pin(async {
            let families = self.inner.registry.gather();
            prometheus::TextEncoder::new()
                .encode_to_string(&families)
                .map_err(|error| ControlError::new(ErrorKind::Internal, error.to_string()))
        })
    }
}

/// How a volume is, without what it has.
pub struct VolumeState {
    pub id: VolumeId,
    pub name: VolumeName,
    pub protection: Protection,
    pub serving: bool,
    pub owner: Option<String>,
    pub problem: Option<String>,
}

impl Controller {
    /// What lets somebody in, and who is a node, nodes with a member of etcd alone write: such a one is asked for that, and looks
    /// itself at what the administrator shows.
    pub(crate) fn require_guarded(&self) -> Result<(), ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(());
        };
        let unavailable = |why: String| ControlError::new(ErrorKind::Unavailable, why);
        match cluster.keeper_elsewhere().map_err(unavailable)? {
            None => Ok(()),
            Some(keeper) => {
                let why = "this node runs no member of etcd, and only nodes that do change this";
                Err(unavailable(why.to_owned()).at(keeper))
            }
        }
    }

    /// A node that leaves takes no new disks.
    fn require_node_stays(&self) -> Result<(), ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(());
        };
        let view = cluster.member.view();
        match view.nodes.get(&cluster.member.node()) {
            Some(record) if record.value.draining => {
                let name = &record.value.name;
                let why = format!("node {name} is to leave the cluster, and takes no new disks");
                Err(ControlError::new(ErrorKind::Conflict, why)
                    .hint(format!("`cairn node drain {name} --cancel` lets it stay")))
            }
            _ => Ok(()),
        }
    }

    /// Has a node drain, or not, and waits until this node knows it.
    async fn set_draining(
        &self,
        cluster: &ClusterNode,
        node: &NodeRecord,
        draining: bool,
        replaced_by: Option<NodeId>,
    ) -> Result<ClusterView, ControlError> {
        let map = cluster.member.map();
        if (node.draining, node.replaced_by) != (draining, replaced_by) {
            self.require_guarded()?;
            let set = map.set_node_draining(node.id, draining, replaced_by).await;
            set.map_err(|error| ControlError::new(ErrorKind::Conflict, error.to_string()))?;
        }
        self.cluster_after(cluster).await
    }

    /// The cluster as it is after a change that this node made.
    async fn cluster_after(&self, cluster: &ClusterNode) -> Result<ClusterView, ControlError> {
        map_seen(cluster).await;
        Ok(self.cluster_now(cluster).await)
    }

    /// The cluster as this node sees it now.
    async fn cluster_now(&self, cluster: &ClusterNode) -> ClusterView {
        cluster.look_at_etcd().await;
        cluster_view::of(&self.inner, cluster, self.judged())
    }

    fn judged(&self) -> Judgement {
        let pool = self.inner.pool.state();
        let volumes = self.volume_states(&pool);
        judge(&self.observed(&pool, &self.disk_views(), &volumes))
    }

    /// The state of everything, as `cairn status` shows it.
    pub async fn status_now(&self) -> Status {
        Status {
            volumes: self.volume_page(&ListQuery::default()).await.volumes,
            ..self.overview()
        }
    }

    /// The same without what is told of each volume: it is looked at every few seconds, also where there are thousands of them.
    pub fn overview(&self) -> Status {
        let inner = &self.inner;
        let pool = inner.pool.state();
        let disks = self.disk_views();
        let volumes: Vec<VolumeState> = self.volume_states(&pool);
        let space = inner.pool.store.space();
        let Judgement {
            health,
            summary,
            protection,
            warnings,
            ..
        } = judge(&self.observed(&pool, &disks, &volumes));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: inner.uptime().as_secs(),
            health: convert::health(health),
            summary,
            warnings: crate::warnings::views(&warnings),
            pool: PoolView {
                id: pool.pool.to_string(),
                created_seconds: pool.created.seconds,
                protection: convert::layout(inner.pool.store.default_code()),
                disk_failures_tolerated: counted(protection.disks),
                node_failures_tolerated: inner.pool.nodes_tolerated_by_all().map(counted),
                devices: protection.devices.map(|(devices, _)| counted(devices)),
                device_failures_tolerated: protection
                    .devices
                    .map(|(_, survived)| counted(survived)),
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                reserve_bytes: space.reserve_bytes,
            },
            nfs: self.nfs.clone(),
            admin: self.admin.clone(),
            memory: self.memory(),
            disks,
            volumes: Vec::new(),
        }
    }

    /// How all volumes are, in the order of their names.
    pub fn volume_states(&self, pool: &PoolState) -> Vec<VolumeState> {
        let volumes = pool.all_volumes();
        let mut states: Vec<_> = volumes
            .map(|volume| self.volume_state(pool, volume))
            .collect();
        states.sort_by(|one, other| one.name.cmp(&other.name));
        states
    }

    /// How a volume is: what a look at all of them takes.
    fn volume_state(&self, pool: &PoolState, volume: &PoolVolume) -> VolumeState {
        let inner = &self.inner;
        let mut state = VolumeState {
            id: volume.id,
            name: volume.name.clone(),
            protection: pool.store_of(volume).settings.protection,
            serving: false,
            owner: None,
            problem: None,
        };
        match inner.pool.service(volume.id) {
            Some(VolumeService::Serving(fs)) => {
                // Its clients are told to try again later, until it is opened again.
                state.problem = fs.meta().failure().map(|failure| {
                    format!(
                        "its metadata failed: {failure}; if it is not opened on other disks within a minute, see \
                         whether the disk works, and start the server anew"
                    )
                });
                if fs.is_deleted() {
                    state.problem = Some(
                        "it was deleted, and an older copy of the pool's state lists it: delete it again".to_owned(),
                    );
                }
                state.serving = state.problem.is_none();
            }
            Some(VolumeService::Failed(why)) => state.problem = Some(why),
            None if is_erased(pool.store_of(volume)) => {
                state.problem = inner.pool.key_trouble(pool.store_of(volume));
            }
            None => match inner.owner_name(volume.id) {
                Some(Ok(name)) => {
                    state.serving = true;
                    state.owner = Some(name);
                }
                Some(Err(why)) => {
                    state.problem = Some(match inner.pool.key_trouble(volume) {
                        None => why,
                        // One of several nodes that could serve it, and this may be what is in the way on all.
                        Some(trouble) => format!("{why}; on this node {trouble}"),
                    });
                }
                None => state.problem = Some("it is being opened or deleted".to_owned()),
            },
        }
        state
    }

    fn observed(&self, pool: &PoolState, disks: &[DiskView], volumes: &[VolumeState]) -> Observed {
        let inner = &self.inner;
        let code = inner.pool.store.default_code();
        let space = inner.pool.store.space();
        let lost = disks.iter().filter_map(|disk| {
            let loss = match disk.state {
                DiskState::Ok | DiskState::Draining | DiskState::Drained => return None,
                DiskState::Unresponsive => DiskLoss::Unresponsive,
                DiskState::Failing => DiskLoss::Failing,
                DiskState::Returning => DiskLoss::Returning,
                DiskState::Failed => DiskLoss::Failed,
                DiskState::Missing => DiskLoss::Missing,
            };
            Some(LostDisk {
                label: disk.label.clone(),
                loss,
                why: disk.problem.clone().unwrap_or_default(),
            })
        });
        let holds_nothing = |disk: &&DiskView| {
            let is_lost = disk.state.is_lost();
            let mut members = pool.disks.iter();
            is_lost
                && members.any(|member| member.holds_nothing && member.id.to_string() == disk.id)
        };
        let disks_lost_empty = disks.iter().filter(holds_nothing).count();
        let lost_ids: Vec<&str> = disks
            .iter()
            .filter(|disk| disk.state.is_lost())
            .filter(|disk| !holds_nothing(disk))
            .map(|disk| disk.id.as_str())
            .collect();
        let lost_members = pool.disks.iter();
        let lost_members =
            lost_members.filter(|member| lost_ids.contains(&member.id.to_string().as_str()));
        let losses: Losses = lost_members.map(PoolDisk::domain).collect();
        let troubled = disks.iter().filter_map(|disk| match disk.state {
            DiskState::Ok | DiskState::Draining | DiskState::Drained => {
                let problem = disk.problem.as_deref()?;
                Some((disk.label.clone(), problem.to_owned()))
            }
            DiskState::Unresponsive
            | DiskState::Failing
            | DiskState::Returning
            | DiskState::Failed
            | DiskState::Missing => None,
        });
        let cluster = inner.cluster.as_ref();
        let cluster = cluster.map(|cluster| cluster_view::observed(inner, cluster));
        // That nobody owns a volume is a warning of its own, which says why.
        let without_owner = |name: &VolumeName| {
            let cluster = cluster.as_ref();
            cluster.is_some_and(|cluster| {
                let mut free = cluster.without_owner.iter();
                free.any(|(volume, _)| *volume == name.to_string())
            })
        };
        let failed = volumes
            .iter()
            .filter(|volume| !volume.serving && !without_owner(&volume.name));
        // One that was erased has no key for ever, and does not wait for one.
        let waits_for_key = |volume: &&VolumeState| {
            let mut all = pool.all_volumes();
            let found = all.find(|other| other.id == volume.id);
            let store = found.map(|volume| pool.store_of(volume));
            store.is_some_and(|store| !is_erased(store) && inner.pool.key_trouble(store).is_some())
        };
        let (keys_away, failed): (Vec<&VolumeState>, Vec<&VolumeState>) =
            failed.partition(waits_for_key);
        let told = |volumes: Vec<&VolumeState>| -> Vec<(String, String)> {
            let each = volumes.into_iter().map(|volume| {
                let why = volume.problem.clone().unwrap_or_default();
                (volume.name.to_string(), why)
            });
            each.collect()
        };
        let low = |volume: &PoolVolume| {
            let limit_bytes = volume.settings.size_limit.bytes()?;
            let VolumeService::Serving(fs) = inner.pool.service(volume.id)? else {
                return None;
            };
            let free_bytes = limit_bytes.saturating_sub(fs.counts().file_bytes);
            let free_percent = percent(free_bytes, limit_bytes).unwrap_or(0);
            (free_percent < FREE_PERCENT_LOW && !volume.is_deleted).then(|| LowVolume {
                volume: volume.name.to_string(),
                limit_bytes,
                free_percent,
            })
        };
        let volumes_low: Vec<LowVolume> = pool.volumes.iter().filter_map(low).collect();
        let mut by_drive: BTreeMap<String, usize> = BTreeMap::new();
        if inner.cluster.is_none() {
            let there = inner.pool.disks();
            let there = there.iter().filter(|disk| !disk.health().failed);
            for drive in there.filter_map(|disk| disk.disk().device()) {
                for name in &drive.drives {
                    *by_drive.entry(name.clone()).or_default() += 1;
                }
            }
        }
        let tiers_away = crate::tiers::troubles(inner);
        let tiers_away = tiers_away
            .into_iter()
            .filter_map(|(tier, trouble)| Some((tier, trouble?)));
        let degraded =
            pool.volumes
                .iter()
                .filter_map(|volume| match inner.pool.service(volume.id) {
                    // Of one that is only read it is said why nothing is written.
                    Some(VolumeService::Serving(fs))
                        if fs.read_only().is_none() && fs.meta().stats().is_degraded() =>
                    {
                        Some(pool.head_of(volume).name.to_string())
                    }
                    _ => None,
                });
        let read_only = pool.volumes.iter().filter_map(|volume| {
            let VolumeService::Serving(fs) = inner.pool.service(volume.id)? else {
                return None;
            };
            let why = fs.read_only()?.to_owned();
            Some((pool.head_of(volume).name.to_string(), why))
        });
        let unprotected = volumes
            .iter()
            .filter(|volume| volume.protection == Protection::None && pool.disks.len() > 1)
            .map(|volume| volume.name.to_string());
        let asks_for_none = |volume: &&PoolVolume| {
            let asked = volume.settings.directory_protections;
            asked.contains(Protection::None) && pool.disks.len() > 1
        };
        let directories_unprotected = pool.volumes.iter().filter(asks_for_none);
        let directories_unprotected =
            directories_unprotected.map(|volume| pool.head_of(volume).name.to_string());
        let working = disks
            .iter()
            .filter(|disk| !matches!(disk.state, DiskState::Failed | DiskState::Missing));
        let is_named = |disk: &&DiskView| {
            let label = Path::new(&disk.label);
            inner.named.iter().any(|place| place == label)
        };
        let named = working.clone().filter(is_named).count();
        Observed {
            // In a cluster the map says which disks there are, and a start that finds none of its own makes no pool.
            disks_named: (named < working.count() && inner.cluster.is_none()).then_some(named),
            disk_count: pool.disks.len(),
            disks_lost: lost.collect(),
            disks_lost_empty,
            disks_troubled: troubled.collect(),
            tolerated: usize::from(code.parity()),
            node_count: inner.pool.store.node_count(),
            nodes_tolerated: inner.pool.nodes_tolerated_by_all().unwrap_or(0),
            nodes_lost: losses.nodes,
            layout: convert::layout(code),
            volumes_failed: told(failed),
            volumes_read_only: read_only.collect(),
            keys_away: told(keys_away),
            secrets_unwrapped: inner.pool.secrets_trouble(),
            volumes_low,
            tiers_away: tiers_away.collect(),
            disks_by_drive: by_drive.into_values().collect(),
            is_full: space.total_bytes > 0 && space.free_bytes <= space.reserve_bytes,
            memory_bytes: Some((resident_bytes(), inner.config.memory_limit_bytes)),
            scrub_overdue: inner.pool.scrub_overdue(),
            volumes_degraded: degraded.collect(),
            volumes_unprotected: unprotected.collect(),
            directories_unprotected: directories_unprotected.collect(),
            narrow_segments: inner.pool.narrow_segments(),
            single_segments: inner.pool.single_segments(),
            segments_short: inner.pool.segments_short(),
            damaged_places: inner.pool.scrub.damaged(),
            lost_bytes: inner
                .pool
                .rebuild_lost_bytes()
                .saturating_sub(inner.pool.scrub.lost_bytes_known()),
            damaged_reads: inner.pool.store.damaged_places(),
            free_percent: percent(space.free_bytes, space.total_bytes),
            caches: crate::read_cache::warnings(inner),
            cluster,
        }
    }

    fn memory(&self) -> MemoryView {
        let inner = &self.inner;
        let dirty_bytes = inner
            .pool
            .services()
            .values()
            .map(|service| match service {
                VolumeService::Serving(fs) => fs.stats().dirty_memory_bytes,
                VolumeService::Failed(_) => 0,
            })
            .sum();
        MemoryView {
            limit_bytes: inner.config.memory_limit_bytes,
            resident_bytes: resident_bytes(),
            record_cache_limit_bytes: inner.budget.record_cache_bytes,
            record_cache_bytes: inner.pool.store.stats().cache_bytes,
            dirty_limit_bytes: inner.budget.dirty_bytes,
            dirty_bytes,
            metadata_limit_bytes: inner.budget.metadata_bytes,
            rest_bytes: inner.budget.rest_bytes,
        }
    }

    fn disk_views(&self) -> Vec<DiskView> {
        let pool = self.inner.pool.state();
        let statuses = self.inner.pool.store.disk_status();
        let shards = self.inner.pool.shards_by_disk();
        let (mut logs, mut states) = (BTreeMap::new(), BTreeMap::new());
        for fs in self.inner.pool.serving_all() {
            *states.entry(fs.meta().log().primary_disk()).or_insert(0) += 1;
            for disk in fs.meta().stats().log_disks {
                *logs.entry(disk).or_insert(0) += 1;
            }
        }
        let of = |counts: &BTreeMap<DiskId, u64>, disk| counts.get(&disk).copied().unwrap_or(0);
        let view = |disk: &DiskStatus| {
            let shards = shards.get(&disk.id).copied().unwrap_or(0);
            DiskView {
                logs: of(&logs, disk.id),
                states: of(&states, disk.id),
                ..self.disk_view(disk, &pool, shards)
            }
        };
        let mut views: Vec<DiskView> = statuses.iter().map(view).collect();
        views.sort_by(|left, right| left.label.cmp(&right.label));
        views
    }

    /// The disk that words mean, if another node has it that does not run: nobody else can say that it is lost for good.
    fn lost_elsewhere(&self, words: &str) -> Result<Option<DiskId>, ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(None);
        };
        let disk = self.inner.pool.find_disk(words).map_err(refusal)?;
        if disk.node == cluster.member.node() {
            return Ok(None);
        }
        let view = cluster.member.view();
        if !view.alive.contains_key(&disk.node) {
            return Ok(Some(disk.id));
        }
        let name = view.nodes.get(&disk.node).map(|node| &node.value.name);
        let name = name.map_or_else(|| disk.node.to_string(), Clone::clone);
        let why = format!("disk {} is one of node {name}, which runs", disk.label);
        Err(ControlError::new(ErrorKind::Conflict, why)
            .hint("ask that node: `cairn disk replace` with its --server"))
    }

    fn disk_now(&self, id: DiskId) -> Result<DiskView, ControlError> {
        let id = id.to_string();
        let mut views = self.disk_views().into_iter();
        views
            .find(|view| view.id == id)
            .ok_or_else(|| ControlError::new(ErrorKind::Internal, "the disk is not there any more"))
    }

    fn disk_view(&self, disk: &DiskStatus, pool: &PoolState, shards: u64) -> DiskView {
        let member = pool.disks.iter().find(|member| member.id == disk.id);
        let label = match member {
            Some(member) if disk.label.is_empty() => member.label.clone(),
            _ => disk.label.clone(),
        };
        let is_draining = member.is_some_and(|member| member.draining);
        let table = self.inner.pool.table();
        let watched = || self.inner.pool.watch.problem(table.disk(disk.id)?.disk());
        // What lets it be removed.
        let is_let_go = || match &self.inner.cluster {
            Some(cluster) => cluster.member.view().is_left(disk.id),
            None => shards == 0 && self.inner.pool.is_let_go(disk.id),
        };
        let (state, problem) = match disk.state {
            cairn_segment::DiskState::Healthy if !is_draining => (DiskState::Ok, None),
            cairn_segment::DiskState::Healthy if !is_let_go() => (DiskState::Draining, None),
            cairn_segment::DiskState::Healthy => (DiskState::Drained, None),
            cairn_segment::DiskState::Unresponsive => {
                let why = "an operation has had no answer";
                (DiskState::Unresponsive, Some(why.to_owned()))
            }
            cairn_segment::DiskState::Returning => {
                let why = "it is given what was written while it did not take it";
                (DiskState::Returning, Some(why.to_owned()))
            }
            cairn_segment::DiskState::Failing => {
                let disk = table.disk(disk.id);
                let why = disk.and_then(|disk| self.inner.pool.watch.change_error(disk.disk()));
                let why = why.unwrap_or_else(|| "operations fail".to_owned());
                (DiskState::Failing, Some(why))
            }
            cairn_segment::DiskState::Missing => {
                let why = table.why_missing(disk.id).map(str::to_owned);
                (DiskState::Missing, why)
            }
            cairn_segment::DiskState::Failed => {
                (DiskState::Failed, table.why_out(disk.id).map(str::to_owned))
            }
        };
        let problem = problem
            .or_else(watched)
            .or_else(|| self.inner.pool.metadata_problem(disk.id));
        DiskView {
            id: disk.id.to_string(),
            label,
            role: match table.is_journal(disk.id) {
                true => DiskRole::Journal,
                false => DiskRole::Data,
            },
            media: table.member(disk.id).and_then(|it| it.media).into(),
            state,
            total_bytes: disk.total_bytes,
            free_bytes: disk.free_bytes,
            read_errors: disk.read_errors,
            write_errors: disk.write_errors,
            full_errors: disk.full_errors,
            checksum_errors: disk.checksum_errors,
            shards,
            logs: 0,
            states: 0,
            problem,
        }
    }

    /// Whether data can be put on disks of a kind that is asked for.
    pub(crate) fn require_media(&self, choice: Option<MediaChoice>) -> Result<(), ControlError> {
        let required = self.inner.pool.require_media(choice.unwrap_or_default());
        required.map_err(refusal)
    }

    /// A volume that is not on the page costs its name.
    async fn volume_page(&self, query: &ListQuery) -> VolumeList {
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

    async fn volume_now(&self, name: &VolumeName) -> Result<VolumeView, ControlError> {
        let pool = self.inner.pool.state();
        match pool.volume(name) {
            Ok(volume) => {
                let mut view = self.volume_view(volume).await;
                // A look at all of its segments, which a list of volumes can do without.
                let store = pool.store_of(volume).id;
                view.media_bytes = media_bytes(self.inner.pool.store.media_bytes(store));
                Ok(view)
            }
            Err(error) => Err(refusal(error.into())),
        }
    }

    /// Why a volume is not served here: another node has it, and is asked instead, or nobody yet.
    pub(crate) fn not_here(&self, id: VolumeId, name: &VolumeName) -> ControlError {
        let unavailable = |message| ControlError::new(ErrorKind::Unavailable, message);
        let not_open = || {
            let why = unavailable(format!("volume {name} is not open yet; try again"));
            match self.inner.pool.service(id) {
                Some(VolumeService::Failed(_)) => why,
                _ => why.passing(),
            }
        };
        // Whoever looked for it looked among those with LUNs and buckets.
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

    fn export_now(&self, name: &VolumeName) -> Result<ExportView, ControlError> {
        let pool = self.inner.pool.state();
        pool.volume(name)
            .map(export_view)
            .map_err(|error| refusal(error.into()))
    }

    /// What of a volume is to go to a tier; `None`: nothing is said of that.
    fn tiering_change(
        &self,
        name: &VolumeName,
        change: &VolumeChange,
    ) -> Result<Option<VolumeTiering>, ControlError> {
        if !says_of_tiers(change) {
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

    /// What directories of a volume have instead of its protection.
    fn directory_protections(&self, settings: &VolumeSettings) -> Vec<DirectoryProtection> {
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

    async fn volume_view(&self, volume: &PoolVolume) -> VolumeView {
        let inner = &self.inner;
        let pool = inner.pool.state();
        // What a clone shares with all others in its store.
        let store = pool.store_of(volume);
        let is_head = pool.head_of(store).id == volume.id;
        let state = self.volume_state(&pool, volume);
        let code = inner.pool.store.code_for(store.settings.protection);
        let mut view = VolumeView {
            id: volume.id.0,
            name: volume.name.clone(),
            protection: store.settings.protection,
            layout: match &code {
                Ok(code) => convert::layout(*code),
                Err(error) => error.to_string(),
            },
            disk_failures_tolerated: code.map_or(0, |code| u32::from(code.parity())),
            node_failures_tolerated: inner.pool.nodes_tolerated(store).map(counted),
            size_limit: volume.settings.size_limit,
            autogrow: volume.settings.autogrow,
            access_pattern: store.settings.access_pattern,
            compression: store.settings.compression,
            dedupe: store.settings.dedupe,
            media: store.settings.media,
            media_bytes: Vec::new(),
            directory_protections: self.directory_protections(&store.settings),
            class: match &volume.class {
                Some(class) => ClassChoice::Class(class.clone()),
                None => ClassChoice::None,
            },
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
            // Counted for the whole store, and told of the volume that speaks for it.
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

fn is_erased(store: &PoolVolume) -> bool {
    matches!(store.encryption, Some(VolumeEncryption::Erased(_)))
}

/// A change of the map is seen by the node that made it in milliseconds.
pub(crate) const MAP_SEEN_MAX: Duration = Duration::from_secs(3);

fn not_found(why: String) -> ControlError {
    ControlError::new(ErrorKind::NotFound, why)
}

/// Waits until this node sees what it changed in the map. What is shown may be a moment old: that is no reason to fail.
pub(crate) async fn map_seen(cluster: &ClusterNode) {
    let written = cluster.member.map().written();
    let mut views = cluster.member.views();
    let seen = views.wait_for(|view| view.revision >= written);
    let _ = tokio::time::timeout(MAP_SEEN_MAX, seen).await;
}

async fn authority_now(cluster: &ClusterNode) -> Result<AuthorityView, ControlError> {
    let progress = cluster.authority().await;
    let progress = progress.map_err(|why| ControlError::new(ErrorKind::Unavailable, why))?;
    Ok(cluster_view::authority(&progress))
}

pub(crate) fn no_cluster() -> ControlError {
    ControlError::new(ErrorKind::NotFound, "this server is in no cluster")
        .hint("make one with `cairn cluster init`, or join one with `cairn cluster join`")
}

fn export_view(volume: &PoolVolume) -> ExportView {
    ExportView {
        volume: volume.name.clone(),
        rules: volume.exports.clone(),
    }
}

/// Whether a change says what goes to a tier.
fn says_of_tiers(change: &VolumeChange) -> bool {
    change.tier.is_some()
        || change.tiering.is_some()
        || change.cooling_days.is_some()
        || change.tier_files.is_some()
        || change.tier_min_size.is_some()
        || change.tier_min_age.is_some()
}

fn apply(change: &VolumeChange, settings: &mut VolumeSettings) {
    if let Some(protection) = change.protection {
        settings.protection = protection;
    }
    if let Some(size_limit) = change.size_limit {
        settings.size_limit = size_limit;
        if size_limit.is_none() {
            settings.autogrow = size_limit;
        }
    }
    if let Some(autogrow) = change.autogrow {
        settings.autogrow = autogrow;
    }
    if let Some(access_pattern) = change.access_pattern {
        settings.access_pattern = access_pattern;
    }
    if let Some(compression) = change.compression {
        settings.compression = compression;
    }
    if let Some(dedupe) = change.dedupe {
        settings.dedupe = dedupe;
    }
    if let Some(media) = change.media {
        settings.media = media;
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

pub(crate) fn refusal(failure: ChangeFailure) -> ControlError {
    let message = failure.to_string();
    match failure {
        ChangeFailure::Refused(ChangeError::NotFound(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn volume list` shows all volumes")
        }
        ChangeFailure::Refused(ChangeError::NoRule { .. }) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn export list` shows all rules")
        }
        ChangeFailure::Refused(ChangeError::Exists(_)) => {
            ControlError::new(ErrorKind::Conflict, message).hint("choose another name")
        }
        ChangeFailure::Refused(ChangeError::SharesKey { .. }) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("delete those first; all clones of a volume have its key")
        }
        ChangeFailure::Refused(
            ChangeError::TooManyVolumes | ChangeError::TooManyRules | ChangeError::TooLong { .. },
        ) => ControlError::new(ErrorKind::Conflict, message)
            .hint("delete one that is not needed first"),
        ChangeFailure::Refused(ChangeError::NoClass(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn class list` shows all classes")
        }
        ChangeFailure::Refused(ChangeError::ClassExists(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("`cairn class set` changes it; or choose another name")
        }
        ChangeFailure::Refused(ChangeError::ClassBuiltIn(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("`cairn class create` makes one of another name")
        }
        ChangeFailure::Refused(ChangeError::ClassInUse { .. }) => {
            ControlError::new(ErrorKind::Conflict, message).hint(
                "give them another one first: `cairn volume set VOLUME --class CLASS`, or `--class none`",
            )
        }
        ChangeFailure::Refused(ChangeError::NoTier(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn tier list` shows all tiers")
        }
        ChangeFailure::Refused(ChangeError::TierExists(_)) => {
            ControlError::new(ErrorKind::Conflict, message).hint("choose another name")
        }
        ChangeFailure::Refused(ChangeError::TooManyTiers) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("`cairn tier remove` removes one that nothing is in")
        }
        ChangeFailure::Refused(ChangeError::NoUser(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn user list` shows all users")
        }
        ChangeFailure::Refused(ChangeError::UserExists(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("`cairn user set` and `cairn user password` change it; or choose another name")
        }
        ChangeFailure::Refused(ChangeError::UserChanged(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("look at what it is now, and try again")
        }
        ChangeFailure::Refused(ChangeError::NoLimit { .. }) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn limit list VOLUME` shows all limits of a volume")
        }
        ChangeFailure::Refused(ChangeError::TooManyClasses | ChangeError::TooManyLimits | ChangeError::TooManyUsers) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("delete one that is not needed first")
        }
        ChangeFailure::Refused(
            ChangeError::ClassProblem { .. }
            | ChangeError::ClassOfVolume { .. }
            | ChangeError::LimitProblem { .. },
        ) => ControlError::new(ErrorKind::Invalid, message),
        ChangeFailure::Exported(name) => ControlError::new(ErrorKind::Conflict, message).hint(
            format!("remove its export first (`cairn export remove {name}`), or use --force"),
        ),
        ChangeFailure::NoMedia(kind) => ControlError::new(ErrorKind::Conflict, message).hint(format!(
            "`cairn disk add FOLDER --media {kind}` adds one; `cairn disk set DISK --media {kind}` says that one is"
        )),
        ChangeFailure::NoDisk(_) => ControlError::new(ErrorKind::NotFound, message)
            .hint("`cairn disk list` shows all disks"),
        ChangeFailure::Impossible(_) => ControlError::new(ErrorKind::Conflict, message),
        ChangeFailure::Save(SaveError::Conflict(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("look at what there is now, and decide again")
        }
        ChangeFailure::Save(_) | ChangeFailure::Engine(_) => {
            tracing::error!(%message, "a change of the pool failed");
            ControlError::new(ErrorKind::Internal, message)
                .hint("`cairn disk list` shows how the disks are; the server's log says more")
        }
    }
}

fn counted(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(crate) fn percent(part: u64, whole: u64) -> Option<u64> {
    let hundredths = u128::from(part) * 100;
    hundredths
        .checked_div(u128::from(whole))
        .and_then(|percent| u64::try_from(percent).ok())
}

/// What the process has in memory now, in bytes; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else {
        return 0;
    };
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|text| text.parse::<u64>().ok());
    pages
        .unwrap_or(0)
        .saturating_mul(rustix::param::page_size() as u64)
}
