//! The spread of data over disks: JSON, routes, and what they ask of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, endpoints, get, put};
use crate::server::Table;

/// The stage of the spread of data to emptier disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpreadStage {
    /// All disks of a device class are about equally full.
    #[default]
    Even,
    Moving,
    /// An operator paused it.
    Paused,
    /// The spread waits for the maintenance window.
    Resting,
    /// Disks are missing, or other data has to move first.
    Waiting,
    /// Disks are not equally full, but no shard of the answering node would be as safe elsewhere.
    Settled,
}

/// The spread of data to emptier disks, after disks or nodes were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpreadView {
    pub stage: SpreadStage,
    /// Whether an operator paused the spread, on all nodes of a cluster.
    pub paused: bool,
    /// When the awaited maintenance window opens. Left out: the spread waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until_seconds: Option<i64>,
    /// How full the emptiest and the fullest disk are, in thousandths, for the device class with the largest difference.
    pub least_permille: u64,
    pub most_permille: u64,
    /// Bytes on disks above the mean of their device class.
    pub excess_bytes: u64,
    /// Bytes that the answering node moved since its server started.
    pub moved_bytes: u64,
}

/// A request to pause or resume the spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpreadSet {
    /// Applies to all nodes of a cluster. Moves in progress are completed.
    pub paused: bool,
}

endpoints! {
    /// Shows the progress of the spread of data to emptier disks.
    SPREAD: Endpoint<(), (), SpreadView> = get("/api/v1/spread");

    /// Pauses or resumes the spread of data to emptier disks, on all nodes of a cluster.
    SPREAD_SET: Endpoint<(), SpreadSet, SpreadView> = put("/api/v1/spread");

}

/// What a node does with the spread of data. Changes are durable when they are answered.
pub trait SpreadControl: Send + Sync {
    fn spread(&self) -> Answer<'_, SpreadView>;
    fn spread_set(&self, set: SpreadSet) -> Answer<'_, SpreadView>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn SpreadControl>(|node| Ok(node.spreads()))
        .on(SPREAD, |node, (), ()| node.spread())
        .on(SPREAD_SET, |node, (), set| node.spread_set(set));
}
