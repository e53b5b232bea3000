//! Space that is set aside for files, on disks that all nodes fill.
//!
//! Owns: what the map says of it, and that all nodes have heard of a claim before anything is promised. Must not know: which files
//! these are, what is free.
//!
//! A claim is a record of the volume in the map. Each node that follows the map leaves free what the records say, and tells in its
//! sign of life which record it heeds. Once all signs of life name the claim, nobody lets in what would take it; what was let in
//! before is in the memory of nodes, which is bounded and told as well.

use std::pin::pin;
use std::time::Duration;

use cairn_base::{NodeId, VolumeId};
use cairn_cluster::MapError;
use cairn_cluster::map::{MapView, ReservedRecord};
use futures_util::future::{Either, select};
use thiserror::Error;

use crate::member::ClusterMember;

/// Nodes have so long to hear of a claim: as long as one that hears nothing may keep its lease, and some more.
const HEARD_MAX: Duration = Duration::from_secs(10);
/// A told need is a multiple of this.
const STEP_BYTES: u64 = 64 << 20;
/// Less than before is told when it is less by more than one part in so many: until then others leave too much free.
const SHARE: u64 = 16;

/// Why nothing was set aside.
#[derive(Debug, Error)]
pub enum ClaimError {
    #[error("this node no longer owns the volume")]
    NotOwned,
    #[error("the cluster map could not be changed: {0}")]
    Map(#[from] MapError),
    #[error("{0} did not learn of the reservation within {seconds} s", seconds = HEARD_MAX.as_secs())]
    NotHeard(String),
}

/// What a node leaves free for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// What volumes need that are not served here, in bytes on disks.
    pub reserved_bytes: u64,
    /// What other nodes may have acknowledged and not written yet, in bytes of files; 0 while nothing is set aside at all.
    pub unflushed_bytes: u64,
    /// The revision of the newest record that is in this.
    pub seen: u64,
}

/// What the map has `own` leave free. `is_here`: this node serves the volume, and knows by itself what that needs.
pub fn elsewhere(view: &MapView, own: NodeId, is_here: impl Fn(VolumeId) -> bool) -> Elsewhere {
    let mut found = Elsewhere::default();
    let mut is_any = false;
    for (volume, state) in &view.volumes {
        let Some(reserved) = &state.reserved else {
            continue;
        };
        found.seen = found.seen.max(reserved.revision.0);
        is_any |= reserved.value.bytes > 0;
        if !is_here(*volume) {
            found.reserved_bytes = found.reserved_bytes.saturating_add(reserved.value.bytes);
        }
    }
    if is_any {
        let others = view.alive.iter().filter(|(node, _)| **node != own);
        let most = others.map(|(_, alive)| alive.value.unflushed_bytes_max);
        found.unflushed_bytes = most.fold(0, u64::saturating_add);
    }
    found
}

/// Which nodes have not heard of a claim of so many bytes yet, as people call them; `None`: the map does not have the claim.
fn deaf(view: &MapView, own: NodeId, volume: VolumeId, bytes: u64) -> Option<Vec<String>> {
    let claim = view.volumes.get(&volume)?.reserved.as_ref()?;
    if claim.value.bytes < bytes {
        return None;
    }
    // Without a sign of life of its own this node may let in nothing, and promise nothing.
    let is_away = !view.alive.contains_key(&own);
    let others = view.alive.iter();
    let others = others.filter(|(_, alive)| alive.value.reserved_seen < claim.revision.0);
    let nodes = others.map(|(node, _)| *node).chain(is_away.then_some(own));
    let named = nodes.map(|node| match view.nodes.get(&node) {
        Some(record) => format!("node {}", record.value.name),
        None => format!("node {node}"),
    });
    Some(named.collect())
}

/// The need as it is told: rounded up.
fn rounded(needed_bytes: u64) -> u64 {
    needed_bytes
        .checked_next_multiple_of(STEP_BYTES)
        .unwrap_or(u64::MAX)
}

/// The need to tell in place of the one told before, if it changed enough.
fn news(told_bytes: u64, needed_bytes: u64) -> Option<u64> {
    let wanted = rounded(needed_bytes);
    let is_much_less = wanted == 0 || told_bytes.saturating_sub(wanted) > told_bytes / SHARE;
    (wanted > told_bytes || wanted < told_bytes && is_much_less).then_some(wanted)
}

impl ClusterMember {
    /// Tells the map what files of a volume of this node need, if that is much else than what it says.
    pub async fn tell_reserved(
        &self,
        volume: VolumeId,
        needed_bytes: u64,
    ) -> Result<(), ClaimError> {
        let view = self.view();
        let Some(state) = view.volumes.get(&volume) else {
            // A clone, which has nothing set aside.
            return Ok(());
        };
        let told = state.reserved.as_ref();
        let told_bytes = told.map_or(0, |reserved| reserved.value.bytes);
        match news(told_bytes, needed_bytes) {
            Some(bytes) => self.set_reserved(volume, bytes).await,
            None => Ok(()),
        }
    }

    /// Tells the map what files of a volume of this node come to need, and waits until all nodes leave that free.
    ///
    /// It is told until it is told otherwise, also if this fails.
    pub async fn claim_reserved(
        &self,
        volume: VolumeId,
        needed_bytes: u64,
    ) -> Result<(), ClaimError> {
        let bytes = rounded(needed_bytes);
        let mut views = self.views();
        let own = self.node();
        if deaf(&self.view(), own, volume, bytes).is_none() {
            self.set_reserved(volume, bytes).await?;
        }
        let heard = async {
            loop {
                let view = views.borrow_and_update().clone();
                if deaf(&view, own, volume, bytes).is_some_and(|deaf| deaf.is_empty()) {
                    return;
                }
                // The sender is in `self`.
                if views.changed().await.is_err() {
                    return;
                }
            }
        };
        match select(pin!(heard), self.env.clock.sleep(HEARD_MAX)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => {
                let deaf = deaf(&self.view(), own, volume, bytes).unwrap_or_default();
                Err(ClaimError::NotHeard(match deaf.is_empty() {
                    true => "this node".to_owned(),
                    false => deaf.join(", "),
                }))
            }
        }
    }

    async fn set_reserved(&self, volume: VolumeId, bytes: u64) -> Result<(), ClaimError> {
        let (process, epoch) = self.epoch_of(volume).ok_or(ClaimError::NotOwned)?;
        let reserved = ReservedRecord { bytes };
        self.map
            .set_reserved(volume, process, epoch, &reserved)
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{Epoch, Timestamp};
    use cairn_cluster::Revision;
    use cairn_cluster::map::{
        AliveRecord, ChangeNonce, EpochRecord, LogAt, Opaque, ProcessNonce, Versioned, VolumeLog,
        VolumeRecord, VolumeState,
    };

    use super::*;

    const GIB: u64 = 1 << 30;
    const OWN: NodeId = NodeId(1);

    fn known<T>(revision: u64, value: T) -> Versioned<T> {
        Versioned {
            revision: Revision(revision),
            value,
        }
    }

    /// A volume for which so much is set aside, by a record of a revision.
    fn volume(id: u32, reserved: Option<(u64, u64)>) -> VolumeState {
        VolumeState {
            record: known(
                1,
                VolumeRecord {
                    id: VolumeId(id),
                    name: format!("v{id}"),
                    settings: Opaque(Vec::new()),
                    exports: Opaque(Vec::new()),
                    clones: Vec::new(),
                    is_deleted: false,
                },
            ),
            owner: None,
            epoch: known(
                1,
                EpochRecord {
                    epoch: Epoch(1),
                    change: ChangeNonce(1),
                },
            ),
            log: LogAt {
                revision: Revision::ABSENT,
                log: VolumeLog {
                    ensembles: Vec::new(),
                    state: None,
                },
            },
            left: None,
            usage: None,
            reserved: reserved.map(|(revision, bytes)| known(revision, ReservedRecord { bytes })),
            address: None,
            preferred: None,
        }
    }

    /// Nodes 1 to 3, each of which may have a GiB in memory and heeds what its number in `seen` says.
    fn view(volumes: &[(u32, Option<(u64, u64)>)], seen: [u64; 3]) -> MapView {
        let mut view = MapView::default();
        for (number, seen) in (1..).zip(seen) {
            let node = NodeId(number);
            let alive = AliveRecord {
                reserved_seen: seen,
                unflushed_bytes_max: GIB,
                ..AliveRecord::new(node, ProcessNonce(number), Timestamp::new(1, 0))
            };
            view.alive.insert(node, known(1, alive));
        }
        for (id, reserved) in volumes {
            view.volumes
                .insert(VolumeId(*id), volume(*id, *reserved).into());
        }
        view
    }

    #[test]
    fn what_others_need_is_left_free() {
        let here = |id| id == VolumeId(1);
        let none = view(&[(1, None), (2, None)], [0; 3]);
        assert_eq!(elsewhere(&none, OWN, here), Elsewhere::default());
        let some = view(
            &[(1, Some((7, GIB))), (2, Some((5, 2 * GIB))), (3, None)],
            [0; 3],
        );
        let want = Elsewhere {
            reserved_bytes: 2 * GIB,
            unflushed_bytes: 2 * GIB,
            seen: 7,
        };
        assert_eq!(elsewhere(&some, OWN, here), want);
        // It may be that of a volume that is here alone: what others have in memory would take it as well.
        let own = view(&[(1, Some((7, GIB)))], [0; 3]);
        let want = Elsewhere {
            reserved_bytes: 0,
            unflushed_bytes: 2 * GIB,
            seen: 7,
        };
        assert_eq!(elsewhere(&own, OWN, here), want);
        let gone = view(&[(2, Some((9, 0)))], [0; 3]);
        let want = Elsewhere {
            seen: 9,
            ..Elsewhere::default()
        };
        assert_eq!(elsewhere(&gone, OWN, here), want);
    }

    #[test]
    fn a_claim_is_heard_when_all_that_are_alive_heed_it() {
        let id = VolumeId(1);
        let claimed = |seen| view(&[(1, Some((7, GIB)))], seen);
        let names = |view: &MapView, bytes| deaf(view, OWN, id, bytes).map(|deaf| deaf.len());
        assert_eq!(names(&view(&[(1, None)], [9; 3]), GIB), None);
        assert_eq!(names(&claimed([9; 3]), 2 * GIB), None, "that is another");
        assert_eq!(names(&claimed([7, 6, 0]), GIB), Some(2));
        assert_eq!(names(&claimed([6, 7, 8]), GIB), Some(1), "this node too");
        assert_eq!(names(&claimed([7, 8, 9]), GIB), Some(0));
        let mut alone = claimed([7, 7, 7]);
        alone.alive.remove(&NodeId(3));
        assert_eq!(names(&alone, GIB), Some(0), "who is away serves nothing");
        alone.alive.remove(&OWN);
        assert_eq!(names(&alone, GIB), Some(1), "nor does this node then");
    }

    #[test]
    fn more_is_told_at_once_and_less_when_it_is_much() {
        let step = STEP_BYTES;
        for (told, needed, want) in [
            (0, 0, None),
            (0, 1, Some(step)),
            (step, step, None),
            (step, step + 1, Some(2 * step)),
            (100 * step, 95 * step, None),
            (100 * step, 90 * step, Some(90 * step)),
            (100 * step, 0, Some(0)),
            (step, 0, Some(0)),
            (0, u64::MAX, Some(u64::MAX)),
        ] {
            assert_eq!(news(told, needed), want, "{told} {needed}");
        }
    }
}
