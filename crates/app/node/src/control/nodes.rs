//! The cluster and its nodes: tickets, the CA, nodes that drain, are in maintenance or are replaced.
//!
//! Owns: the checks before such a change, and that its reply shows it. Must not know: how the map is kept.

use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::balance::{BalanceControl, BalanceView};
use cairn_admin::cluster::{
    AuthorityView, ClusterBackup, ClusterControl, ClusterView, NodeName, TicketCreate, TicketView,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::{NodeId, Timestamp};
use cairn_cluster::map::{NodeRecord, TOKEN_SECONDS_MAX, WEIGHT_MAX, WEIGHT_NORMAL};

use super::refusals::not_found;
use super::{Controller, refusal};
use crate::cluster::ClusterNode;
use crate::cluster::rotation::BeginError;
use crate::{balance, cluster_view};

/// The node that made a change of the map sees it within milliseconds.
pub(crate) const MAP_SEEN_MAX: Duration = Duration::from_secs(3);

/// Maximum time in maintenance, a week: data that is not rebuilt for longer should be moved.
const MAINTENANCE_SECONDS_MAX: u64 = 7 * 24 * 3600;

impl Controller {
    pub(super) async fn make_ticket(
        &self,
        create: TicketCreate,
    ) -> Result<TicketView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        if !(1..=TOKEN_SECONDS_MAX).contains(&create.valid_seconds) {
            let seconds = create.valid_seconds;
            let why = format!(
                "a ticket cannot be valid for {seconds} s: the limits are 1 s and {TOKEN_SECONDS_MAX} s (24 h)"
            );
            return Err(ControlError::new(ErrorKind::Invalid, why)
                .hint("create the ticket shortly before the node joins"));
        }
        self.require_guarded()?;
        let valid_for = Duration::from_secs(create.valid_seconds);
        let ticket = cluster.ticket(valid_for).await;
        let ticket = ticket.map_err(|why| ControlError::new(ErrorKind::Unavailable, why))?;
        Ok(TicketView {
            ticket: ticket.to_string(),
        })
    }

    pub(super) async fn rotate_authority(&self) -> Result<AuthorityView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        self.require_guarded()?;
        let begun = cluster.rotate_authority().await;
        begun.map_err(|error| match error {
            BeginError::Refused(why) => ControlError::new(ErrorKind::Conflict, why),
            BeginError::Failed(why) => ControlError::new(ErrorKind::Unavailable, why),
        })?;
        authority_now(cluster).await
    }

    pub(super) async fn back_cluster_up(&self) -> Result<String, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let copy = cluster.backup().await;
        let copy = copy.map_err(|why| ControlError::new(ErrorKind::Unavailable, why))?;
        let text = String::from_utf8(copy.encode());
        text.map_err(|error| ControlError::new(ErrorKind::Internal, error.to_string()))
    }

    pub(super) async fn drain_node(
        &self,
        node: String,
        draining: bool,
    ) -> Result<ClusterView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let record = cluster.record_named(&node).map_err(not_found)?;
        if draining && !record.draining {
            let bytes = cluster_view::bytes_on(&cluster.member.view(), record.id);
            let can = self.inner.pool.require_without_node(record.id, bytes);
            can.map_err(refusal)?;
        }
        // A node that is being replaced stays so.
        let replaced_by = record.replaced_by.filter(|_| draining);
        self.set_draining(cluster, &record, draining, replaced_by)
            .await
    }

    pub(super) async fn maintain_node(
        &self,
        node: String,
        seconds: u64,
    ) -> Result<ClusterView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let record = cluster.record_named(&node).map_err(not_found)?;
        let conflict = |why: String| ControlError::new(ErrorKind::Conflict, why);
        if seconds > MAINTENANCE_SECONDS_MAX {
            let why = format!("{seconds} seconds are too long: the limit is a week");
            return Err(conflict(why).hint("to remove a node, use `cairn node drain`"));
        }
        if seconds > 0 && record.draining {
            return Err(conflict(format!("node {node} is being drained"))
                .hint("`cairn node drain --cancel` stops the drain"));
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
    }

    pub(super) async fn weigh_node(
        &self,
        node: String,
        weight: u32,
    ) -> Result<ClusterView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let record = cluster.record_named(&node).map_err(not_found)?;
        if weight > WEIGHT_MAX {
            let why = format!("a weight of {weight} is too large: at most {WEIGHT_MAX}");
            return Err(ControlError::new(ErrorKind::Invalid, why).hint(format!(
                "{WEIGHT_NORMAL} is the default; only the ratio of the nodes' weights matters"
            )));
        }
        self.require_guarded()?;
        let map = cluster.member.map();
        let set = map.set_node_weight(record.id, weight).await;
        set.map_err(|error| {
            ControlError::new(ErrorKind::Conflict, error.to_string()).hint("try again")
        })?;
        self.cluster_after(cluster).await
    }

    pub(super) async fn replace_node(
        &self,
        node: String,
        by: String,
    ) -> Result<ClusterView, ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let old = cluster.record_named(&node).map_err(not_found)?;
        let new = cluster.record_named(&by).map_err(not_found)?;
        let conflict = |why: String| ControlError::new(ErrorKind::Conflict, why);
        let view = cluster.member.view();
        if old.id == new.id {
            return Err(conflict(format!("node {by} cannot replace itself")));
        }
        if new.draining {
            return Err(conflict(format!("node {by} is being drained as well")));
        }
        if !view.alive.contains_key(&new.id) {
            return Err(conflict(format!("node {by} is down: start it first")));
        }
        let mut disks = view.disks.values().map(|disk| &disk.value);
        if !disks.any(|disk| disk.node == new.id && !disk.draining) {
            let why = format!("node {by} has no disk that stays: add a disk first");
            return Err(conflict(why));
        }
        // For a lost node, as much as possible is better than nothing: the progress reports the missing data.
        if !old.draining && view.alive.contains_key(&old.id) {
            let bytes = cluster_view::bytes_on(&view, old.id);
            let can = self.inner.pool.require_without_node(old.id, bytes);
            can.map_err(refusal)?;
        }
        self.set_draining(cluster, &old, true, Some(new.id)).await
    }

    pub(super) async fn remove_node(&self, node: String) -> Result<(), ControlError> {
        let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
        let record = cluster.record_named(&node).map_err(not_found)?;
        self.require_guarded()?;
        let removed = cluster.remove_node(&record).await;
        removed.map_err(|why| {
            ControlError::new(ErrorKind::Conflict, why)
                .hint("`cairn node list` shows what a draining node still has")
        })
    }

    /// Only nodes with a member of etcd write the keys that admit clients and that define nodes: the request goes to
    /// such a node, which itself checks the administrator's credentials.
    pub(crate) fn require_guarded(&self) -> Result<(), ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(());
        };
        let unavailable = |why: String| ControlError::new(ErrorKind::Unavailable, why);
        match cluster.keeper_elsewhere().map_err(unavailable)? {
            None => Ok(()),
            Some(keeper) => {
                let why =
                    "this node runs no etcd member; only nodes with an etcd member can change this";
                Err(unavailable(why.to_owned()).at(keeper))
            }
        }
    }

    /// A leaving node takes no new disks.
    pub(super) fn require_node_stays(&self) -> Result<(), ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(());
        };
        let view = cluster.member.view();
        match view.nodes.get(&cluster.member.node()) {
            Some(record) if record.value.draining => {
                let name = &record.value.name;
                let why = format!("node {name} is being drained, and takes no new disks");
                Err(ControlError::new(ErrorKind::Conflict, why).hint(format!(
                    "`cairn node drain {name} --cancel` stops the drain"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Starts or ends the draining of a node, and waits until this node sees it.
    pub(super) async fn set_draining(
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

    /// The cluster after a change by this node.
    pub(super) async fn cluster_after(
        &self,
        cluster: &ClusterNode,
    ) -> Result<ClusterView, ControlError> {
        map_seen(cluster).await;
        Ok(self.cluster_now(cluster).await)
    }

    /// The cluster as this node sees it now.
    pub(super) async fn cluster_now(&self, cluster: &ClusterNode) -> ClusterView {
        cluster.look_at_etcd().await;
        cluster_view::of(&self.inner, cluster, self.judged())
    }
}

/// Waits until this node sees its change of the map. The shown state may be a moment old: that is no reason to fail.
pub(crate) async fn map_seen(cluster: &ClusterNode) {
    let written = cluster.member.map().written();
    let mut views = cluster.member.views();
    let seen = views.wait_for(|view| view.revision >= written);
    let _ = tokio::time::timeout(MAP_SEEN_MAX, seen).await;
}

pub(super) async fn authority_now(cluster: &ClusterNode) -> Result<AuthorityView, ControlError> {
    let progress = cluster.authority().await;
    let progress = progress.map_err(|why| ControlError::new(ErrorKind::Unavailable, why))?;
    Ok(cluster_view::authority(&progress))
}

pub(crate) fn no_cluster() -> ControlError {
    ControlError::new(ErrorKind::NotFound, "this server is not in a cluster")
        .hint("create a cluster with `cairn cluster init`, or join one with `cairn cluster join`")
}

impl ClusterControl for Controller {
    fn cluster(&self) -> Answer<'_, ClusterView> {
        Box::pin(async {
            let cluster = self.inner.cluster.as_ref().ok_or_else(no_cluster)?;
            Ok(self.cluster_now(cluster).await)
        })
    }

    fn cluster_backup(&self) -> Answer<'_, ClusterBackup> {
        Box::pin(async move {
            let copy = self.back_cluster_up().await?;
            Ok(ClusterBackup { copy })
        })
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

    fn cluster_ticket(&self, create: TicketCreate) -> Answer<'_, TicketView> {
        Box::pin(self.make_ticket(create))
    }

    fn node_set(&self, node: NodeName, draining: bool) -> Answer<'_, ClusterView> {
        Box::pin(self.drain_node(node.0, draining))
    }

    fn node_maintenance(&self, node: NodeName, seconds: u64) -> Answer<'_, ClusterView> {
        Box::pin(self.maintain_node(node.0, seconds))
    }

    fn node_weight(&self, node: NodeName, weight: u32) -> Answer<'_, ClusterView> {
        Box::pin(self.weigh_node(node.0, weight))
    }

    fn node_replace(&self, node: NodeName, by: String) -> Answer<'_, ClusterView> {
        Box::pin(self.replace_node(node.0, by))
    }

    fn node_remove(&self, node: NodeName) -> Answer<'_, ()> {
        Box::pin(self.remove_node(node.0))
    }
}

impl BalanceControl for Controller {
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
}
