//! Answers the admin API.
//!
//! Owns: which part of the node answers for which feature. The modules own the views and changes of one feature each, and the suggestion
//! in each refusal.

mod caches;
mod disks;
mod exports;
mod nodes;
mod overview;
mod refusals;
mod repair;
mod volumes;

use std::sync::Arc;

use cairn_admin::api::{AdminView, ErrorKind, NfsView, Status};
use cairn_admin::{Answer, Control, ControlError};

use crate::extras::Extras;
use crate::node::NodeCore;

pub(crate) use nodes::{MAP_SEEN_MAX, map_seen, no_cluster};
pub(crate) use overview::percent;
pub(crate) use refusals::{no_room, refusal};

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

    fn metrics(&self) -> Answer<'_, String> {
        Box::pin(async {
            let families = self.inner.registry.gather();
            prometheus::TextEncoder::new()
                .encode_to_string(&families)
                .map_err(|error| ControlError::new(ErrorKind::Internal, error.to_string()))
        })
    }

    fn volumes(&self) -> &(dyn cairn_admin::volumes::VolumeControl + 'static) {
        self
    }

    fn exports(&self) -> &(dyn cairn_admin::exports::ExportControl + 'static) {
        self
    }

    fn disks(&self) -> &(dyn cairn_admin::disks::DiskControl + 'static) {
        self
    }

    fn caches(&self) -> &(dyn cairn_admin::caches::CacheControl + 'static) {
        self
    }

    fn rebuilds(&self) -> &(dyn cairn_admin::rebuild::RebuildControl + 'static) {
        self
    }

    fn spreads(&self) -> &(dyn cairn_admin::spread::SpreadControl + 'static) {
        self
    }

    fn scrubs(&self) -> &(dyn cairn_admin::scrub::ScrubControl + 'static) {
        self
    }

    fn cluster(&self) -> &(dyn cairn_admin::cluster::ClusterControl + 'static) {
        self
    }

    fn balances(&self) -> &(dyn cairn_admin::balance::BalanceControl + 'static) {
        self
    }

    fn san(&self) -> Option<&(dyn cairn_admin::san::SanControl + 'static)> {
        Some(self)
    }

    fn s3(&self) -> Option<&(dyn cairn_admin::s3::S3Control + 'static)> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&(dyn cairn_admin::snapshots::SnapshotControl + 'static)> {
        Some(self)
    }

    fn policies(&self) -> Option<&(dyn cairn_admin::policies::PolicyControl + 'static)> {
        Some(self)
    }

    fn activity(&self) -> Option<&(dyn cairn_admin::activity::ActivityControl + 'static)> {
        Some(self)
    }

    fn quotas(&self) -> Option<&(dyn cairn_admin::quotas::QuotaControl + 'static)> {
        Some(self)
    }

    fn jobs(&self) -> Option<&(dyn cairn_admin::jobs::JobControl + 'static)> {
        Some(self)
    }

    fn keys(&self) -> Option<&(dyn cairn_admin::keys::KeyControl + 'static)> {
        Some(self)
    }

    fn address_pools(
        &self,
    ) -> Option<&(dyn cairn_admin::address_pools::AddressPoolControl + 'static)> {
        let control: &(dyn cairn_admin::address_pools::AddressPoolControl + 'static) = self;
        self.inner.cluster.as_ref().map(|_| control)
    }

    fn tiers(&self) -> Option<&(dyn cairn_admin::tiers::TierControl + 'static)> {
        Some(self)
    }

    fn classes(&self) -> Option<&(dyn cairn_admin::classes::ClassControl + 'static)> {
        Some(self)
    }

    fn plans(&self) -> Option<&(dyn cairn_admin::plans::PlanControl + 'static)> {
        self.extras.plans.as_deref()
    }

    fn users(&self) -> Option<&(dyn cairn_admin::users::UserControl + 'static)> {
        Some(self)
    }

    fn audit(&self) -> Option<&(dyn cairn_admin::audit::AuditControl + 'static)> {
        Some(self)
    }

    fn benchmarks(&self) -> Option<&(dyn cairn_admin::benchmarks::BenchmarkControl + 'static)> {
        let benchmarks = self.extras.benchmarks.as_deref()?;
        Some(benchmarks)
    }

    fn events(&self) -> Option<&(dyn cairn_admin::events::EventControl + 'static)> {
        Some(self)
    }

    fn live(&self) -> Option<&(dyn cairn_admin::live::LiveControl + 'static)> {
        Some(self)
    }
}
