//! Moves and rebuilds of what is on draining and lost disks: JSON, routes, and what they ask of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, endpoints, get, patch};
use crate::server::Table;

/// Moves and rebuilds of shards of draining and lost disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebuildView {
    /// Whether data is being moved or rebuilt now.
    pub running: bool,
    /// Rate limit in bytes per second; 0: no limit.
    pub rate_bytes_per_second: u64,
    /// Shards still to be moved from draining disks, or rebuilt from disks that are given up.
    pub shards_left: u64,
    pub bytes_left: u64,
    /// Work done since the server started.
    pub shards_moved: u64,
    pub segments_rewritten: u64,
    pub moved_bytes: u64,
    /// Processed bytes, including those of shards that are incomplete or being rebuilt.
    #[serde(default)]
    pub worked_bytes: u64,
    /// Bytes that could not be recovered from any disk.
    pub lost_bytes: u64,
    pub errors: u64,
    /// Estimate at the rate of the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Shards that are missing from their disks. Those whose segments survive the fewest further losses are rebuilt first.
    pub shards_missing: u64,
    /// Why there is no progress.
    pub problems: Vec<String>,
}

/// The rate limit of moves and rebuilds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildRate {
    /// 0: no limit.
    pub rate_bytes_per_second: u64,
}

endpoints! {
    /// Shows the progress of moves and rebuilds of shards.
    REBUILD: Endpoint<(), (), RebuildView> = get("/api/v1/rebuild");

    /// Changes the rate limit of moves and rebuilds, until the next start.
    REBUILD_SET: Endpoint<(), RebuildRate, RebuildView> = patch("/api/v1/rebuild");

}

/// What a node tells of moves and rebuilds of shards.
pub trait RebuildControl: Send + Sync {
    fn rebuild(&self) -> Answer<'_, RebuildView>;
    /// Bytes per second; 0 for no limit.
    fn rebuild_set(&self, rate_bytes_per_second: u64) -> Answer<'_, RebuildView>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn RebuildControl>(|node| Ok(node.rebuilds()))
        .on(REBUILD, |node, (), ()| node.rebuild())
        .on(REBUILD_SET, |node, (), set| {
            node.rebuild_set(set.rate_bytes_per_second)
        });
}
