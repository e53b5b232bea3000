//! Holding back submitted batches of a store.
//!
//! Owns: the rule that no group is cut while a hold exists. Must not know: the purpose of the hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::shared::{Stop, StoreCore};

/// While a hold exists, no submitted batch becomes durable, and so no caller that waits for durability is answered.
///
/// A store that is closed or fails does not wait for the hold: then [`Self::is_kept`] returns false.
pub struct CommitHold(Arc<StoreCore>);

impl CommitHold {
    pub(crate) fn begin(shared: &Arc<StoreCore>) -> Self {
        // Under the lock: a group cut earlier holds only batches submitted earlier.
        let pending = shared.pending.lock();
        shared.held_count.fetch_add(1, Ordering::AcqRel);
        drop(pending);
        Self(Arc::clone(shared))
    }

    /// Whether no batch submitted since the hold began has become durable.
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
