//! What the API asks of a node.

use std::future::Future;
use std::pin::Pin;

use cairn_base::NodeId;

use crate::api::{ErrorBody, ErrorDetail, ErrorKind, Status};

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

/// A node, as the API needs it: what gives the features, each of which is asked by itself. Changes are durable when they are
/// answered; each runs to its end even when the client that asked for it has gone.
pub trait Control: Send + Sync + 'static {
    fn status(&self) -> Answer<'_, Status>;
    /// The metrics in Prometheus's text format.
    fn metrics(&self) -> Answer<'_, String>;
    fn volumes(&self) -> &(dyn crate::volumes::VolumeControl + 'static);
    fn exports(&self) -> &(dyn crate::exports::ExportControl + 'static);
    fn disks(&self) -> &(dyn crate::disks::DiskControl + 'static);
    fn caches(&self) -> &(dyn crate::caches::CacheControl + 'static);
    fn rebuilds(&self) -> &(dyn crate::rebuild::RebuildControl + 'static);
    fn spreads(&self) -> &(dyn crate::spread::SpreadControl + 'static);
    fn scrubs(&self) -> &(dyn crate::scrub::ScrubControl + 'static);
    fn cluster(&self) -> &(dyn crate::cluster::ClusterControl + 'static);
    fn balances(&self) -> &(dyn crate::balance::BalanceControl + 'static);
    /// What the node does with LUNs, if it has any.
    fn san(&self) -> Option<&(dyn crate::san::SanControl + 'static)> {
        None
    }
    /// What the node does with buckets, if it has any.
    fn s3(&self) -> Option<&(dyn crate::s3::S3Control + 'static)> {
        None
    }
    /// What the node does with master keys, if it has any.
    fn keys(&self) -> Option<&(dyn crate::keys::KeyControl + 'static)> {
        None
    }
    /// What the node does with snapshots, if it has any.
    fn snapshots(&self) -> Option<&(dyn crate::snapshots::SnapshotControl + 'static)> {
        None
    }
    /// What the node does with policies of directories, if it has any.
    fn policies(&self) -> Option<&(dyn crate::policies::PolicyControl + 'static)> {
        None
    }
    /// What the node does with quotas, if it has any.
    fn quotas(&self) -> Option<&(dyn crate::quotas::QuotaControl + 'static)> {
        None
    }
    /// The node's background jobs, if it has any.
    fn jobs(&self) -> Option<&(dyn crate::jobs::JobControl + 'static)> {
        None
    }
    /// What the node knows of what clients do, if it counts that.
    fn activity(&self) -> Option<&(dyn crate::activity::ActivityControl + 'static)> {
        None
    }
    /// What the node does with classes of service, if it has any.
    fn classes(&self) -> Option<&(dyn crate::classes::ClassControl + 'static)> {
        None
    }
    /// What the node does with address pools, if it is in a cluster.
    fn address_pools(&self) -> Option<&(dyn crate::address_pools::AddressPoolControl + 'static)> {
        None
    }
    /// What the node does with tiers, if it has any.
    fn tiers(&self) -> Option<&(dyn crate::tiers::TierControl + 'static)> {
        None
    }
    /// What the node does with the planner, if it has it.
    fn plans(&self) -> Option<&(dyn crate::plans::PlanControl + 'static)> {
        None
    }
    /// What the node does about users, if it has any.
    fn users(&self) -> Option<&(dyn crate::users::UserControl + 'static)> {
        None
    }
    /// What the node does about the audit log, if it keeps one.
    fn audit(&self) -> Option<&(dyn crate::audit::AuditControl + 'static)> {
        None
    }
    /// What the node does about benchmarks of itself, if it runs any.
    fn benchmarks(&self) -> Option<&(dyn crate::benchmarks::BenchmarkControl + 'static)> {
        None
    }
    /// What the node tells about what happened, if it keeps that.
    fn events(&self) -> Option<&(dyn crate::events::EventControl + 'static)> {
        None
    }
    /// What the node tells about numbers over time, if it keeps any.
    fn live(&self) -> Option<&(dyn crate::live::LiveControl + 'static)> {
        None
    }
}
