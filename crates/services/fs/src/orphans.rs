//! Inodes without a name: found again after a crash, deleted in steps.
//!
//! Owns: the list of them and its task. Must not know: when segments go (`gc`). Invariant: the mark of an
//! orphan goes in the batch that deletes its inode, so a crash at any step leaves it to the next start.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::Ino;
use cairn_meta::{Batch, Key, SpaceDelta, Ticket};

use crate::extents::{Change, Extent, ExtentMap};
use crate::types::FsError;
use crate::volume::{Shared, meta_error};

const REAP_INTERVAL: Duration = Duration::from_secs(30);
/// Extents that one step removes.
const REAP_EXTENTS_MAX: usize = 1024;
/// Inodes that are deleted at a time, before it is waited until that is durable. With one at a time clients, who remove
/// many files with one sync of the log, would be ahead by ever more; with all of them they would wait behind them.
const REAP_INODES_MAX: u64 = 64;

impl Shared {
    pub(crate) fn add_orphan(&self, ino: Ino) {
        self.orphans.lock().push(ino);
        self.orphan_wake.notify_one();
    }

    /// Finds inodes whose removal a crash interrupted.
    pub(crate) fn find_orphans(&self) -> Result<(), FsError> {
        let (from, to) = Key::orphans();
        let found = self.meta.scan(&from, &to, usize::MAX).map_err(meta_error)?;
        for (key, _) in found {
            if let Ok(cairn_meta::KeyKind::Orphan(ino)) = key.kind() {
                self.add_orphan(ino);
            }
        }
        Ok(())
    }

    pub(crate) async fn run_reaper(self: Arc<Self>) {
        loop {
            while self.reap_some().await {
                if self.tasks.is_stopping() {
                    return;
                }
            }
            if !self
                .tasks
                .pause(REAP_INTERVAL, self.orphan_wake.notified())
                .await
            {
                return;
            }
        }
    }

    /// Deletes some removed inodes. False if there is none left, or one failed.
    async fn reap_some(self: &Arc<Self>) -> bool {
        let mut last = None;
        let mut count = 0;
        let mut goes_on = true;
        while count < REAP_INODES_MAX && goes_on && !self.tasks.is_stopping() {
            let Some(ino) = self.orphans.lock().pop() else {
                goes_on = false;
                break;
            };
            self.meta.admit().await;
            match self.reap(ino).await {
                Ok(ticket) => {
                    last = ticket.or(last);
                    count += u64::from(ticket.is_some());
                }
                Err(error) => {
                    tracing::error!(volume = %self.volume, %ino, %error, "deleting a removed file failed; it is tried again");
                    // After all others: whatever is wrong with it must not keep their space.
                    self.orphans.lock().insert(0, ino);
                    goes_on = false;
                }
            }
        }
        let Some(last) = last else {
            return goes_on;
        };
        // What comes before it in the log is durable, too.
        if let Err(error) = self.durable(last).await {
            tracing::error!(volume = %self.volume, %error, "deleting removed files failed; the next start goes on with it");
            return false;
        }
        let reaped = &self.counters.orphans_reaped;
        reaped.fetch_add(count, Ordering::Relaxed);
        self.gc_wake.notify_one();
        goes_on
    }

    /// Deletes a removed inode: its extents in steps, then itself. It is gone when the ticket is durable; without one
    /// the next start goes on with it.
    async fn reap(self: &Arc<Self>, ino: Ino) -> Result<Option<Ticket>, FsError> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(FsError::Stale) => {
                let mut batch = Batch::new();
                batch.delete(Key::orphan(ino));
                return Ok(Some(self.meta.submit(batch)));
            }
            Err(error) => return Err(error),
        };
        let mut at = 0;
        loop {
            // On from where the last step ended: what it deleted is still to be stepped over there.
            let (from, to) = Key::extents_past(ino, at);
            let mut extents: Vec<Extent> = Vec::new();
            self.scan_extents(&from, &to, |extent| {
                extents.push(extent);
                extents.len() < REAP_EXTENTS_MAX
            })?;
            let last = extents.len() < REAP_EXTENTS_MAX;
            if !last && self.tasks.is_stopping() {
                return Ok(None);
            }
            at = extents.last().map_or(at, |extent| extent.end);
            let mut map = ExtentMap::new(&self.extent_count);
            map.load(0..u64::MAX, extents);
            let mut change = Change::default();
            map.clear(0..u64::MAX, &mut change);
            let mut batch = Batch::new();
            let ticket = {
                let mut state = inode.lock();
                if last {
                    self.drop_xattrs(ino, &state, &mut batch)?;
                }
                self.change_extents(ino, &mut state, &change, &mut batch);
                if last {
                    batch.delete(Key::inode(ino));
                    batch.delete(Key::orphan(ino));
                    batch.space(SpaceDelta {
                        inodes: -1,
                        ..SpaceDelta::default()
                    });
                }
                state.extents.forget_from(0);
                state.ticket = self.meta.submit(batch);
                state.ticket
            };
            if last {
                return Ok(Some(ticket));
            }
            self.durable(ticket).await?;
        }
    }
}
