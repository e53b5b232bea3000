//! What the API asks of a node.

use std::future::Future;
use std::pin::Pin;

use cairn_base::NodeId;
use cairn_config::{ClientNet, ExportRule, MediaChoice, VolumeName};

use crate::api::{
    AuthorityView, BalanceView, CacheAdd, CacheList, CacheView, ClusterView, DiskAdd, DiskPlace,
    DiskReplace, DiskView, ErrorBody, ErrorDetail, ErrorKind, ExportView, RebuildView, ScrubReport,
    ScrubSchedule, ScrubScheduleSet, ScrubStart, ScrubView, SpreadSet, SpreadView, Status,
    TicketCreate, TicketView, VolumeAddressSet, VolumeChange, VolumeCloneCreate, VolumeCreate,
    VolumeList, VolumeView,
};
use crate::list_query::ListQuery;

/// A failed request, as it is answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    pub kind: ErrorKind,
    pub message: String,
    /// What to try.
    pub hint: Option<String>,
    /// The node that has what the request is about.
    pub at: Option<NodeId>,
    /// Nothing was done, for what the request is about moves to another node, or is being opened: soon there is an answer.
    pub is_passing: bool,
}

impl ControlError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            at: None,
            is_passing: false,
        }
    }

    /// Another node can answer; the request is forwarded to it.
    pub fn at(mut self, node: NodeId) -> Self {
        self.at = Some(node);
        self
    }

    /// The obstacle passes by itself: nodes of a cluster try again for a while before they tell the client.
    pub fn passing(mut self) -> Self {
        self.is_passing = true;
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<ControlError> for ErrorBody {
    fn from(error: ControlError) -> Self {
        Self {
            error: ErrorDetail {
                kind: error.kind,
                message: error.message,
                hint: error.hint,
            },
        }
    }
}

pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ControlError>> + Send + 'a>>;

/// A node, as the API needs it. Changes are durable when they are answered; each runs to its end
/// even when the client that asked for it has gone.
pub trait Control: Send + Sync + 'static {
    fn status(&self) -> Answer<'_, Status>;
    fn disks(&self) -> Answer<'_, Vec<DiskView>>;
    /// What a folder is on that is to become a disk.
    fn disk_place(&self, path: String) -> Answer<'_, DiskPlace>;
    /// Takes a folder into the pool as a new disk.
    fn disk_add(&self, add: DiskAdd) -> Answer<'_, DiskView>;
    /// Moves the data of a disk to others, or stops that. A disk is named by its id, or by as
    /// much of the beginning of that as is its alone.
    fn disk_drain(&self, disk: String, draining: bool) -> Answer<'_, DiskView>;
    /// Says what kind of device a disk is.
    fn disk_media(&self, disk: String, media: MediaChoice) -> Answer<'_, DiskView>;
    /// Takes a disk out of the pool: one with nothing on it, or with `force` one whose data the others have.
    fn disk_remove(&self, disk: String, force: bool) -> Answer<'_, ()>;
    /// Puts a new disk into the place of one, which is drained, or rebuilt if it is lost, and removed.
    fn disk_replace(&self, disk: String, by: DiskReplace) -> Answer<'_, DiskView>;
    /// Takes a disk back that is not used any more, if it works.
    fn disk_retry(&self, disk: String) -> Answer<'_, DiskView>;
    /// The read caches of the node that answers.
    fn caches(&self) -> Answer<'_, CacheList>;
    fn cache_add(&self, add: CacheAdd) -> Answer<'_, CacheView>;
    /// `cache` is its whole id.
    fn cache_remove(&self, cache: String) -> Answer<'_, ()>;
    fn rebuild(&self) -> Answer<'_, RebuildView>;
    /// Bytes per second; 0 for no limit.
    fn rebuild_rate(&self, rate_bytes_per_second: u64) -> Answer<'_, RebuildView>;
    fn spread(&self) -> Answer<'_, SpreadView>;
    fn spread_set(&self, set: SpreadSet) -> Answer<'_, SpreadView>;
    fn scrub(&self) -> Answer<'_, ScrubView>;
    fn scrub_start(&self, start: ScrubStart) -> Answer<'_, ScrubView>;
    fn scrub_pause(&self) -> Answer<'_, ScrubView>;
    fn scrub_report(&self) -> Answer<'_, ScrubReport>;
    /// The timer of scrubs and the maintenance window.
    fn scrub_schedule(&self) -> Answer<'_, ScrubSchedule>;
    /// Replaces both; with nothing in it both are gone.
    fn scrub_schedule_set(&self, set: ScrubScheduleSet) -> Answer<'_, ScrubSchedule>;
    fn volumes(&self, query: ListQuery) -> Answer<'_, VolumeList>;
    fn volume(&self, name: VolumeName) -> Answer<'_, VolumeView>;
    fn volume_create(&self, create: VolumeCreate) -> Answer<'_, VolumeView>;
    /// Makes a volume that begins as another one, or one of its snapshots, and shares its bytes.
    fn volume_clone(&self, source: VolumeName, clone: VolumeCloneCreate) -> Answer<'_, VolumeView>;
    fn volume_set(&self, name: VolumeName, change: VolumeChange) -> Answer<'_, VolumeView>;
    /// Removes a volume with all its data; an exported one only with `force`.
    fn volume_delete(&self, name: VolumeName, force: bool) -> Answer<'_, ()>;
    fn exports(&self) -> Answer<'_, Vec<ExportView>>;
    fn export_set(&self, volume: VolumeName, rules: Vec<ExportRule>) -> Answer<'_, ExportView>;
    /// Removes the rules of these clients; all rules when none is named.
    fn export_remove(&self, volume: VolumeName, clients: Vec<ClientNet>) -> Answer<'_, ExportView>;
    /// The cluster that the node is in.
    fn cluster(&self) -> Answer<'_, ClusterView>;
    /// A copy of the cluster's map, as text.
    fn cluster_backup(&self) -> Answer<'_, String>;
    /// Which authority certificates of nodes are of, and how far another one has taken its place.
    fn cluster_authority(&self) -> Answer<'_, AuthorityView>;
    /// Has another authority take the place of the present one; shows the rotation that runs, if one does.
    fn cluster_authority_rotate(&self) -> Answer<'_, AuthorityView>;
    /// A ticket for one more node.
    fn cluster_ticket(&self, create: TicketCreate) -> Answer<'_, TicketView>;
    /// Moves all that a node has to other nodes, or stops that.
    fn node_drain(&self, node: String, draining: bool) -> Answer<'_, ClusterView>;
    /// Says for how long a node is meant to be away: its volumes move first, and nothing on it is rebuilt. 0: it is back.
    fn node_maintenance(&self, node: String, seconds: u64) -> Answer<'_, ClusterView>;
    /// Says which part of the load a node has beside others.
    fn node_weight(&self, node: String, weight: u32) -> Answer<'_, ClusterView>;
    /// Who owns how much of the load, and which volumes should move.
    fn balance(&self) -> Answer<'_, BalanceView>;
    /// Makes the first of these moves.
    fn balance_step(&self) -> Answer<'_, BalanceView>;
    /// Has another node take the place of one, which is lost or drains.
    fn node_replace(&self, node: String, by: String) -> Answer<'_, ClusterView>;
    /// Takes a drained node out of the cluster.
    fn node_remove(&self, node: String) -> Answer<'_, ()>;
    /// Has another node own a volume, as long as that one can.
    fn volume_move(&self, name: VolumeName, to: Option<String>) -> Answer<'_, VolumeView>;
    /// Has an address follow a volume's owner; `None`: none any more.
    fn volume_address(
        &self,
        name: VolumeName,
        address: Option<VolumeAddressSet>,
    ) -> Answer<'_, ClusterView>;
    /// What the node does with LUNs, if it has any.
    fn san(&self) -> Option<&dyn crate::san::SanControl> {
        None
    }
    /// What the node does with buckets, if it has any.
    fn s3(&self) -> Option<&dyn crate::s3::S3Control> {
        None
    }
    /// What the node does with master keys, if it has any.
    fn keys(&self) -> Option<&dyn crate::keys::KeyControl> {
        None
    }
    /// What the node does with snapshots, if it has any.
    fn snapshots(&self) -> Option<&dyn crate::snapshots::SnapshotControl> {
        None
    }
    /// What the node does with policies of directories, if it has any.
    fn policies(&self) -> Option<&dyn crate::policies::PolicyControl> {
        None
    }
    /// What the node does with quotas, if it has any.
    fn quotas(&self) -> Option<&dyn crate::quotas::QuotaControl> {
        None
    }
    /// The node's background jobs, if it has any.
    fn jobs(&self) -> Option<&dyn crate::jobs::JobControl> {
        None
    }
    /// What the node knows of what clients do, if it counts that.
    fn activity(&self) -> Option<&dyn crate::activity::ActivityControl> {
        None
    }
    /// What the node does with classes of service, if it has any.
    fn classes(&self) -> Option<&dyn crate::classes::ClassControl> {
        None
    }
    /// What the node does with address pools, if it is in a cluster.
    fn address_pools(&self) -> Option<&dyn crate::address_pools::AddressPoolControl> {
        None
    }
    /// What the node does with tiers, if it has any.
    fn tiers(&self) -> Option<&dyn crate::tiers::TierControl> {
        None
    }
    /// What the node does with the planner, if it has it.
    fn plans(&self) -> Option<&dyn crate::plans::PlanControl> {
        None
    }
    /// What the node does about users, if it has any.
    fn users(&self) -> Option<&dyn crate::users::UserControl> {
        None
    }
    /// What the node does about the audit log, if it keeps one.
    fn audit(&self) -> Option<&dyn crate::audit::AuditControl> {
        None
    }
    /// What the node does about benchmarks of itself, if it runs any.
    fn benchmarks(&self) -> Option<&dyn crate::benchmarks::BenchmarkControl> {
        None
    }
    /// What the node tells about what happened, if it keeps that.
    fn events(&self) -> Option<&dyn crate::events::EventControl> {
        None
    }
    /// What the node tells about numbers over time, if it keeps any.
    fn live(&self) -> Option<&dyn crate::live::LiveControl> {
        None
    }
    /// The metrics in Prometheus's text format.
    fn metrics(&self) -> Answer<'_, String>;
}
