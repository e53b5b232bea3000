//! Data moves to disks that are emptier, after disks or nodes were added: in the background, when nothing else has to move.
//!
//! Owns: when that is wanted, how much of it this node does, how far it is.
//! Must not know: which shard should move (`segment`), how one moves (`executor`).
//!
//! Each owner of volumes moves shards of its own. All see how full the same disks are, so each moves its part of what is
//! too much before it looks again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cairn_base::NodeId;
use cairn_formats::pool_file::PoolState;
use cairn_formats::settings::Maintenance;
use cairn_segment::Unevenness;

use crate::planner::{STEP_SHARDS_MAX, work::Work};
use crate::pool::{ChangeFailure, Pool};

/// What there is to tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpreadStage {
    /// All disks are about equally full.
    Even,
    Moving,
    /// An operator paused it.
    Paused,
    /// It waits for the maintenance window, which opens then: seconds since 1970 UTC.
    Resting {
        until_seconds: i64,
    },
    /// Disks are away, or data has to move for other reasons first.
    Waiting,
    /// Disks are not equally full, and this node has no shard whose segment would survive as much elsewhere.
    Settled,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct SpreadStatus {
    pub stage: SpreadStage,
    pub is_paused: bool,
    pub unevenness: Unevenness,
    /// Since this process started, by the volumes that it served.
    pub moved_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Spreading {
    moved_bytes: AtomicU64,
    /// Looks so far: each begins with other segments.
    turn: AtomicUsize,
    /// Disks were uneven, and are not even yet.
    is_begun: AtomicBool,
    /// The last look found a shard to move.
    has_found: AtomicBool,
}

impl Spreading {
    pub fn note_moved(&self, len_bytes: u64) {
        self.moved_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    /// Whether there is something to do with disks so far apart: it begins late, and ends when there is little to gain.
    fn is_wanted(&self, unevenness: Unevenness) -> bool {
        let was_begun = self.is_begun.load(Ordering::Relaxed);
        let is_begun = match was_begun {
            true => !unevenness.is_small(),
            false => unevenness.is_great(),
        };
        if is_begun && !was_begun {
            tracing::info!(
                least_permille = unevenness.least_permille,
                most_permille = unevenness.most_permille,
                excess_bytes = unevenness.excess_bytes,
                "disks are not equally full: data moves to emptier disks"
            );
        }
        self.is_begun.store(is_begun, Ordering::Relaxed);
        is_begun
    }
}

impl Pool {
    /// Whether an operator and the maintenance window allow it now.
    pub(crate) fn may_spread(&self) -> bool {
        let maintenance = &self.state().maintenance;
        !maintenance.spread_paused && maintenance.is_open(self.env.clock.now())
    }

    /// Shards of the volumes that are served here which move to emptier disks next, where nothing else is to be done.
    pub(crate) fn work_to_spread(&self) -> Vec<Work> {
        if !self.may_spread() {
            return Vec::new();
        }
        let spread = self.store.spread();
        if !self.spreading.is_wanted(spread.unevenness()) {
            return Vec::new();
        }
        let state = self.state();
        let nodes: BTreeSet<NodeId> = state.disks.iter().map(|disk| disk.node).collect();
        let mut spread = spread.for_one_of(nodes.len());
        let turn = self.spreading.turn.fetch_add(1, Ordering::Relaxed);
        let mut work = Vec::new();
        for fs in self.serving_all() {
            let left = STEP_SHARDS_MAX - work.len();
            let found = self
                .store
                .shards_to_spread(fs.volume(), &mut spread, left, turn);
            let found = found.iter();
            work.extend(
                found.map(|(info, index, to)| Work::spreading(fs.volume(), info, *index, *to)),
            );
            if work.len() >= STEP_SHARDS_MAX {
                break;
            }
        }
        self.spreading
            .has_found
            .store(!work.is_empty(), Ordering::Relaxed);
        work
    }

    pub fn spread_status(&self) -> SpreadStatus {
        let maintenance = self.state().maintenance.clone();
        let now = self.env.clock.now();
        let unevenness = self.store.spread().unevenness();
        let is_begun = self.spreading.is_begun.load(Ordering::Relaxed);
        let is_uneven = unevenness.is_great() || (is_begun && !unevenness.is_small());
        let window = maintenance.window.as_ref();
        let opens = window.filter(|window| !window.is_open(now));
        let stage = match opens.map(|window| window.next_open(now)) {
            _ if maintenance.spread_paused => SpreadStage::Paused,
            _ if !is_uneven => SpreadStage::Even,
            Some(until) => SpreadStage::Resting {
                until_seconds: until.seconds,
            },
            None if !self.rebuild.planner.lock().is_at_rest() => SpreadStage::Waiting,
            None if is_begun && !self.spreading.has_found.load(Ordering::Relaxed) => {
                SpreadStage::Settled
            }
            None => SpreadStage::Moving,
        };
        SpreadStatus {
            stage,
            is_paused: maintenance.spread_paused,
            unevenness,
            moved_bytes: self.spreading.moved_bytes.load(Ordering::Relaxed),
        }
    }

    /// Pauses it on this server, or on all nodes of the cluster, or lets it go on. Fails as any change of the pool's state
    /// does. Shards that move just now are moved to their end.
    pub async fn set_spread_paused(&self, spread_paused: bool) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        state.maintenance = Maintenance {
            spread_paused,
            ..state.maintenance
        };
        self.save(&mut tried, &mut state).await?;
        self.rebuild.wake();
        Ok(())
    }
}
