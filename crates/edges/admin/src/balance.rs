//! The load of nodes, and which volumes should move: JSON, routes, and what they ask of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, act, endpoints, get};
use crate::server::Table;

/// The load of each node, and the moves that balance it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceView {
    pub nodes: Vec<BalanceNode>,
    /// Moves in the order in which they would be made. Empty: the load is balanced.
    pub moves: Vec<BalanceMove>,
    /// The move that was just made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<BalanceMove>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceNode {
    pub name: String,
    pub weight: u32,
    /// Whether the node takes volumes now: it is up, not draining, not in maintenance, and has disks and a weight above 0.
    pub takes: bool,
    /// Volumes that it owns.
    pub volumes: usize,
    /// How many open volumes the node's memory limit has room for, if the node reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_max: Option<u32>,
    /// The node's load, in percent of its share by weight. Open volumes and the work of clients are load.
    pub load_percent: u64,
    /// Work of clients on the node's volumes, averaged over some minutes.
    pub operations_per_second: u64,
    pub bytes_per_second: u64,
}

/// Why a volume should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BalanceReason {
    /// Its owner has more open volumes than its memory limit holds.
    Memory,
    /// Its owner has more volumes, by the nodes' weights.
    Count,
    /// Its owner has more work of clients.
    Work,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceShare {
    pub volumes: usize,
    /// The node's load, in percent of its share by weight.
    pub load_percent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceMove {
    pub volume: String,
    /// The nodes' names.
    pub from: String,
    pub to: String,
    pub reason: BalanceReason,
    /// Work of clients on the volume.
    pub operations_per_second: u64,
    pub bytes_per_second: u64,
    pub from_before: BalanceShare,
    pub from_after: BalanceShare,
    pub to_before: BalanceShare,
    pub to_after: BalanceShare,
}

endpoints! {
    /// Shows the load of each node, and the moves of volumes that would balance it. Changes nothing.
    BALANCE: Endpoint<(), (), BalanceView> = get("/api/v1/cluster/balance");

    /// Makes the first of these moves, waits until the new owner serves the volume, and shows the next moves. Clients of that volume
    /// see a short pause.
    BALANCE_STEP: Endpoint<(), (), BalanceView> = act("/api/v1/cluster/balance");

}

/// What a node tells of the load of all nodes.
pub trait BalanceControl: Send + Sync {
    /// Who owns how much of the load, and which volumes should move.
    fn balance(&self) -> Answer<'_, BalanceView>;
    /// Makes the first of these moves.
    fn balance_step(&self) -> Answer<'_, BalanceView>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn BalanceControl>(|node| Ok(node.balances()))
        .on(BALANCE, |node, (), ()| node.balance())
        .on(BALANCE_STEP, |node, (), ()| node.balance_step());
}
