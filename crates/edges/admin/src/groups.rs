//! Steps of snapshots of one instant that a node takes of its volumes because another node asks for them.
//!
//! Owns: what nodes say to one another about that. Must not know: what a step does.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};

use crate::snapshots::SnapshotView;

/// Only nodes have this path.
pub(crate) const PATH: &str = "/nodes/v1/snapshot-groups";

/// A step of a group, which a node takes with all of its volumes that are in the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupAsk {
    pub group: u64,
    /// Of each snapshot.
    pub name: String,
    pub volumes: Vec<VolumeName>,
    pub step: GroupStep,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupStep {
    /// Waits until no other snapshot of the volumes is being taken.
    Begin,
    /// Answers no change of the volumes from now on.
    Hold,
    /// Takes the snapshots, which nobody sees yet.
    Take { seconds: i64, nanos: u32 },
    /// Answers again, and makes the snapshots durable.
    End,
    /// Has them seen, or deletes what there is of them.
    Decide { is_whole: bool },
}

/// What became of a step: after [`GroupStep::Decide`] the snapshots of a whole group, in the order of its volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDone {
    pub snapshots: Vec<SnapshotView>,
}
