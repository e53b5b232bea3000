//! Keeping back what is submitted to a store.
//!
//! Owns: that no group is cut as long as somebody holds the store. Must not know: what for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::shared::{Stop, StoreCore};

/// As long as it is there, nothing that is submitted becomes durable, and so nobody who waits for that is answered.
///
/// A store that is closed, or fails, does not wait for it: then [`Self::is_kept`] says no.
pub struct CommitHold(Arc<StoreCore>);

impl CommitHold {
    pub(crate) fn begin(shared: &Arc<StoreCore>) -> Self {
        // Under the lock: what was cut before was submitted before.
        let pending = shared.pending.lock();
        shared.held_count.fetch_add(1, Ordering::AcqRel);
        drop(pending);
        Self(Arc::clone(shared))
    }

    /// Whether nothing that was submitted since it began has become durable.
    pub fn is_kept(&self) -> bool {
        self.0.stop() == Stop::No
    }
}

impl Drop for CommitHold {
    fn drop(&mut self) {
        self.0.held_count.fetch_sub(1, Ordering::AcqRel);
        self.0.work.notify_one();
    }
}
