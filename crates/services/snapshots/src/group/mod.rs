//! Snapshots of a consistency group: of one instant, of volumes that several nodes own.
//!
//! Owns: which node takes which step when, the end of a failed group, what becomes of snapshots that a lost node left.
//! Must not know: how nodes reach one another ([`Coordination`]), where the record of a group is, how a node keeps its
//! snapshots together ([`Part`]).
//!
//! ```text
//!  recorded --> begin --> hold --> take --> end --> recorded as whole --> shown --> record removed
//!      |          |         |        |       |              |
//!      +----------+---------+--------+-------+--------------+---> given up, unless it is whole --> deleted
//! ```
//!
//! The coordinating node lets all owners take each step before any owner takes the next one. It does so with its own
//! volumes, too. Then it records that the group is whole, and makes the snapshots visible. This is safe against the
//! loss of any node: a snapshot of a group becomes visible only if the record says that the group is whole, and is
//! deleted if there is no record. Its volume's owner checks that ([`settle`]). The record of a group that is not whole
//! goes with its coordinator.

mod part;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::future::Future;

use cairn_base::{NodeId, Timestamp, VolumeId};
use futures_util::future::join_all;

pub use part::{BREAK_OFF, Part, Parts, Volumes};

/// A step of a group, which a node takes with all of its volumes that are in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Waits until no other snapshot of the volumes is being taken.
    Begin,
    /// Answers no change of the volumes from now on.
    Hold,
    /// Takes the snapshots, which no client sees yet.
    Take { taken: Timestamp },
    /// Answers again, and makes the snapshots durable.
    End,
    /// Shows the snapshots, or deletes those that exist.
    Decide { is_whole: bool },
}

/// The nodes and the record of groups, as the coordinating node reaches them.
pub trait Coordination: Sync {
    /// A snapshot that clients see.
    type Shown: Send;
    type Error: Display + Send;

    /// Records a new group, as long as this process is there. Returns its number.
    fn begin(&self) -> impl Future<Output = Result<u64, Self::Error>> + Send;
    /// Has a node take a step. Returns the shown snapshots after [`Step::Decide`], with their volumes.
    fn ask(
        &self,
        group: u64,
        node: NodeId,
        step: Step,
    ) -> impl Future<Output = Result<Vec<(VolumeId, Self::Shown)>, Self::Error>> + Send;
    /// Records that a group is whole, for ever. Fails if its record is gone; the outcome of another failure is unknown.
    fn record_whole(&self, group: u64) -> impl Future<Output = Result<(), Self::Error>> + Send;
    /// Removes the record of a group, unless it is whole. Returns whether the record is gone.
    fn give_up(&self, group: u64) -> impl Future<Output = Result<bool, Self::Error>> + Send;
    /// These volumes show the snapshots of the group: the record goes with the last one.
    fn leave(
        &self,
        group: u64,
        volumes: &BTreeSet<VolumeId>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// The end of a group.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<Shown, Error> {
    /// All volumes have their snapshot; `late`: errors of nodes that do not show theirs yet.
    Whole { shown: Vec<Shown>, late: Vec<Error> },
    /// No volume has a snapshot.
    Nothing(Error),
    /// The record decides, and could not be read. The owners find it later.
    Unknown(Error),
}

/// Takes snapshots of one instant of volumes of several nodes: all of them or none.
///
/// `nodes` are the owners. All callers give them in one order: groups with common volumes then do not deadlock.
pub async fn take_group<C: Coordination>(
    io: &C,
    nodes: &BTreeSet<NodeId>,
    taken: Timestamp,
) -> Outcome<C::Shown, C::Error> {
    // Before any node is asked: a snapshot whose group has no record is deleted.
    let group = match io.begin().await {
        Ok(group) => group,
        Err(error) => return Outcome::Nothing(error),
    };
    let prepared = prepare(io, nodes, group, taken).await;
    let recorded = match prepared {
        Ok(()) => io.record_whole(group).await,
        Err(error) => Err(error),
    };
    if let Err(error) = recorded {
        match io.give_up(group).await {
            Ok(true) => {
                let (_, failed) = decide(io, nodes, group, false).await;
                for late in failed {
                    tracing::warn!(group, error = %late, "snapshots of an interrupted consistency group are deleted later");
                }
                return Outcome::Nothing(error);
            }
            // It is whole, and only the reply was lost.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(group, %error, "it is not known yet whether a consistency group is complete");
                return Outcome::Unknown(error);
            }
        }
    }
    let (shown, late) = decide(io, nodes, group, true).await;
    let volumes = shown.iter().map(|(volume, _)| *volume).collect();
    if let Err(error) = io.leave(group, &volumes).await {
        tracing::warn!(group, %error, "a complete consistency group remains in the cluster map");
    }
    let shown = shown.into_iter().map(|(_, shown)| shown).collect();
    Outcome::Whole { shown, late }
}

/// Takes durable, invisible snapshots on all nodes.
async fn prepare<C: Coordination>(
    io: &C,
    nodes: &BTreeSet<NodeId>,
    group: u64,
    taken: Timestamp,
) -> Result<(), C::Error> {
    // One after the other, because a node waits here for the snapshots of other groups.
    for node in nodes {
        io.ask(group, *node, Step::Begin).await?;
    }
    for step in [Step::Hold, Step::Take { taken }, Step::End] {
        let asked: Vec<_> = nodes
            .iter()
            .map(|node| io.ask(group, *node, step))
            .collect();
        // All replies, also after a failure: no node is still at this step when the group is given up.
        for done in join_all(asked).await {
            done?;
        }
    }
    Ok(())
}

/// Returns the snapshots that are visible now, and the errors of nodes that did not take the step.
async fn decide<C: Coordination>(
    io: &C,
    nodes: &BTreeSet<NodeId>,
    group: u64,
    is_whole: bool,
) -> (Vec<(VolumeId, C::Shown)>, Vec<C::Error>) {
    let step = Step::Decide { is_whole };
    let asked: Vec<_> = nodes
        .iter()
        .map(|node| io.ask(group, *node, step))
        .collect();
    let mut shown = Vec::new();
    let mut failed = Vec::new();
    for done in join_all(asked).await {
        match done {
            Ok(done) => shown.extend(done),
            Err(error) => failed.push(error),
        }
    }
    (shown, failed)
}

/// A volume with a snapshot of an unfinished group, and the record of that.
pub trait Undecided: Sync {
    type Error: Send;

    /// Whether the record says that the group is whole; `None`: there is no record.
    fn is_whole(&self) -> impl Future<Output = Result<Option<bool>, Self::Error>> + Send;
    /// Shows the volume's snapshot, or deletes it.
    fn decide(&self, is_whole: bool) -> impl Future<Output = Result<(), Self::Error>> + Send;
    /// The volume shows its snapshot: the record goes with the last volume.
    fn leave(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Decides on a snapshot that is left of an unfinished group. Returns whether the group is whole; `None`: its
/// coordinator is still working on it.
pub async fn settle<U: Undecided>(io: &U) -> Result<Option<bool>, U::Error> {
    match io.is_whole().await? {
        Some(false) => Ok(None),
        Some(true) => {
            io.decide(true).await?;
            io.leave().await?;
            Ok(Some(true))
        }
        None => {
            io.decide(false).await?;
            Ok(Some(false))
        }
    }
}
