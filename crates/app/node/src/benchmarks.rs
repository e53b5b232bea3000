//! What a server gives its benchmarks ([`crate::NodeExtras`]): facts of the pool, and a log for their notes.
//!
//! Must not know: how load is made and measured, when a run begins, the contents of its result.

use std::sync::Arc;

use cairn_admin::ControlError;
use cairn_admin::api::NfsView;
use cairn_admin::benchmarks::{BenchmarkEntry, BenchmarkHost, BenchmarkRoom};
use cairn_base::env::{BoxFuture, Env};
use cairn_config::VolumeName;

use crate::control::refusal;
use crate::entry_log::{EntryLog, LogKind};
use crate::node::{ChangeFailure, NodeCore};

/// The folder in a data folder. Servers without benchmarks know this name: a disk may come from another server.
pub const BENCHMARKS_NAME: &str = "benchmarks";

/// Some dozens of runs.
const BENCHMARKS: LogKind = LogKind {
    name: BENCHMARKS_NAME,
    shown: "the log of benchmarks",
    lines_len_bytes_max: 4 << 20,
};

/// A node, as its benchmarks see it.
pub struct Measured(Arc<Inner>);

struct Inner {
    node: Arc<NodeCore>,
    nfs: NfsView,
    notes: EntryLog<BenchmarkEntry>,
}

impl Measured {
    pub fn new(node: &Arc<NodeCore>, nfs: &NfsView) -> Self {
        Self(Arc::new(Inner {
            node: Arc::clone(node),
            nfs: nfs.clone(),
            notes: EntryLog::new(&BENCHMARKS),
        }))
    }
}

impl BenchmarkHost for Measured {
    fn env(&self) -> &Env {
        &self.0.node.env
    }

    fn is_stopping(&self) -> bool {
        self.0.node.pool.is_stopping()
    }

    fn room(&self) -> BenchmarkRoom {
        let space = self.0.node.pool.store.space();
        BenchmarkRoom {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes,
            reserve_bytes: space.reserve_bytes,
        }
    }

    fn require_volume(&self, volume: &VolumeName) -> Result<(), ControlError> {
        let state = self.0.node.pool.state();
        let found = state.volume(volume).map(drop);
        found.map_err(|error| refusal(ChangeFailure::from(error)))
    }

    fn nfs(&self) -> (String, u16) {
        (self.0.nfs.address.clone(), self.0.nfs.port)
    }

    fn load_notes(&self) -> BoxFuture<()> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.notes.load(&inner.node).await })
    }

    fn note(&self, note: BenchmarkEntry) -> BoxFuture<Result<(), String>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.notes.append(&inner.node, vec![note]).await })
    }

    fn look_at_notes(&self, look: &mut dyn FnMut(&BenchmarkEntry) -> bool) {
        self.0.notes.look(|kept| {
            for note in kept.newest_first() {
                if !look(note) {
                    return;
                }
            }
        });
    }

    fn notes_problem(&self) -> Option<String> {
        self.0.notes.look(|kept| kept.problem())
    }
}
