//! Answers the admin API.
//!
//! Owns: the view or change for each request. The modules own the views for people and scripts, and the suggestion in
//! each refusal.

mod disks;
mod nodes;
mod overview;
mod refusals;
mod volumes;

use std::sync::Arc;

use cairn_admin::api::{
    AdminView, AuthorityView, BalanceView, CacheAdd, CacheList, CacheView, ClusterView, DiskAdd,
    DiskPlace, DiskReplace, DiskView, ErrorKind, ExportView, NfsView, RebuildView, ScrubReport,
    ScrubSchedule, ScrubScheduleSet, ScrubStart, ScrubView, SpreadSet, SpreadView, Status,
    TicketCreate, TicketView, VolumeAddressSet, VolumeChange, VolumeCloneCreate, VolumeCreate,
    VolumeList, VolumeView,
};
use cairn_admin::list_query::ListQuery;
use cairn_admin::{Answer, Control, ControlError};
use cairn_config::{ClientNet, ExportRule, Maintenance, MediaChoice, VolumeName};

use crate::balance;
use crate::classes;
use crate::convert;
use crate::extras::Extras;
use crate::node::NodeCore;

pub(crate) use nodes::{MAP_SEEN_MAX, map_seen, no_cluster};
pub(crate) use overview::percent;
pub(crate) use refusals::{no_room, refusal};

use nodes::authority_now;
use volumes::export_view;

pub struct Controller {
    pub inner: Arc<NodeCore>,
    pub nfs: NfsView,
    pub admin: AdminView,
    pub extras: Extras,
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
        Box::pin(self.add_disk(add))
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
        Box::pin(self.replace_disk(disk, by))
    }

    fn disk_retry(&self, disk: String) -> Answer<'_, DiskView> {
        Box::pin(async move {
            self.require_own_disk(&disk)?;
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
            Err(error.hint("`cairn scrub start` starts a scrub"))
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
            // A pass over all names finds them. It yields, but its reads of the metadata may wait for a disk, and a
            // thread of the server must not.
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
        Box::pin(self.back_cluster_up())
    }

    fn cluster_ticket(&self, create: TicketCreate) -> Answer<'_, TicketView> {
        Box::pin(self.make_ticket(create))
    }

    fn cluster_authority(&self) -> Answer<'_, AuthorityView> {
        Box::pin(async move {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            authority_now(cluster).await
        })
    }

    fn cluster_authority_rotate(&self) -> Answer<'_, AuthorityView> {
        Box::pin(self.rotate_authority())
    }

    fn node_drain(&self, node: String, draining: bool) -> Answer<'_, ClusterView> {
        Box::pin(self.drain_node(node, draining))
    }

    fn node_maintenance(&self, node: String, seconds: u64) -> Answer<'_, ClusterView> {
        Box::pin(self.maintain_node(node, seconds))
    }

    fn node_weight(&self, node: String, weight: u32) -> Answer<'_, ClusterView> {
        Box::pin(self.weigh_node(node, weight))
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
        Box::pin(self.replace_node(node, by))
    }

    fn node_remove(&self, node: String) -> Answer<'_, ()> {
        Box::pin(self.remove_node(node))
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

    fn jobs(&self) -> Option<&dyn cairn_admin::jobs::JobControl> {
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
        self.extras.plans.as_deref()
    }

    fn users(&self) -> Option<&dyn cairn_admin::users::UserControl> {
        Some(self)
    }

    fn audit(&self) -> Option<&dyn cairn_admin::audit::AuditControl> {
        Some(self)
    }

    fn benchmarks(&self) -> Option<&dyn cairn_admin::benchmarks::BenchmarkControl> {
        let benchmarks = self.extras.benchmarks.as_deref()?;
        Some(benchmarks)
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
