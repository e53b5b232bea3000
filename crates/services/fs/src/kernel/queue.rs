//! The flush queue: inodes that differ from the metadata.
//!
//! Owns: the order in which they are flushed. Must not know: when that is.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::inode::Inode;

/// Inodes that differ from the metadata, the oldest first. Being in it keeps them in memory.
#[derive(Default)]
pub(crate) struct FlushQueue {
    inodes: Mutex<VecDeque<Arc<Inode>>>,
    wake: Notify,
}

impl FlushQueue {
    /// Makes the flusher check the queue now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Resolves when somebody wakes the flusher.
    pub fn woken(&self) -> Notified<'_> {
        self.wake.notified()
    }

    pub fn len(&self) -> usize {
        self.inodes.lock().len()
    }

    /// Takes the oldest. The caller flushes it, or puts it back.
    pub fn take(&self) -> Option<Arc<Inode>> {
        self.inodes.lock().pop_front()
    }

    pub fn take_all(&self) -> Vec<Arc<Inode>> {
        self.inodes.lock().drain(..).collect()
    }

    /// Puts an inode to the end.
    pub fn put(&self, inode: Arc<Inode>) {
        self.inodes.lock().push_back(inode);
    }
}
