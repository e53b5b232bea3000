//! Inodes without a name: found again after a crash, deleted in steps.
//!
//! Owns: which of them are next, and the task that deletes them. Must not know: when segments are deleted (`gc`).
//! Invariant: the batch that deletes an orphan's inode also deletes its mark, so after a crash at any step the next
//! start continues.
//!
//! The metadata has all marks; memory has a limited number. A start reads none of them: a program may have removed
//! millions of files just before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::{Ino, View};
use cairn_meta::{Batch, Fold, Key, KeyKind, SpaceDelta, Ticket, UsageDelta};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::kernel::{
    Bare, Edit, Extent, ExtentChange, Record, Shown, Why, meta_error, of_volume, owner_of,
};
use crate::types::FsError;
use crate::volume::VolumeCore;

/// Orphans in memory; the others are found by their marks when these are gone.
const ORPHANS_MAX: usize = 1 << 16;
/// Marks that are read at a time.
const FIND_MAX: usize = 1024;

const REAP_INTERVAL: Duration = Duration::from_secs(30);
/// Extents that one step removes.
const REAP_EXTENTS_MAX: usize = 1024;
/// Inodes that are deleted before the reaper waits until that is durable. With one at a time, clients that remove
/// many files with one sync of the log would get ever further ahead; with all at a time, clients would wait behind
/// them.
const REAP_INODES_MAX: u64 = 64;
/// Removed files are gathered for so long, or until there are that many. Before, each deletion had its own group of
/// the log, and a client that removes one file after the other waited for that group at each removal.
const REAP_GATHER_TIME: Duration = Duration::from_millis(20);

/// Removed inodes whose extents still exist.
#[derive(Debug)]
struct Orphans {
    next: VecDeque<Ino>,
    /// From this key on, the metadata may have marks of others.
    unseen: Option<Key>,
    /// A task waits until all are gone: the reaper gathers none before that.
    is_urgent: bool,
}

impl Default for Orphans {
    /// For a volume that was just opened: all marks of the metadata are unseen.
    fn default() -> Self {
        Self {
            next: VecDeque::new(),
            unseen: Some(Key::orphans().0),
            is_urgent: false,
        }
    }
}

impl Orphans {
    /// Whether to delete them now.
    fn is_due(&self) -> bool {
        self.is_urgent || self.next.len() as u64 >= REAP_INODES_MAX
    }

    fn add(&mut self, ino: Ino) {
        if self.next.len() < ORPHANS_MAX {
            self.next.push_back(ino);
        } else {
            // The marks are in no order of time: after those in memory, the search begins at the first mark.
            self.unseen = Some(Key::orphans().0);
        }
    }

    /// The number of orphans; at least one more while there may be others.
    fn count(&self) -> u64 {
        self.next.len() as u64 + u64::from(self.unseen.is_some())
    }
}

/// The orphans of a volume, and what wakes the task that deletes them.
#[derive(Default)]
pub(crate) struct OrphanWork {
    list: Mutex<Orphans>,
    wake: Notify,
    /// A task waits until they are gone.
    hurry: Notify,
}

impl OrphanWork {
    /// As [`Orphans::count`].
    pub fn count(&self) -> u64 {
        self.list.lock().count()
    }
}

impl VolumeCore {
    pub(crate) fn add_orphan(&self, ino: Ino) {
        self.orphans.list.lock().add(ino);
        self.orphans.wake.notify_one();
    }

    /// Deletes the present orphans without delay.
    pub(crate) fn hurry_reaper(&self) {
        self.orphans.list.lock().is_urgent = true;
        self.orphans.wake.notify_one();
        self.orphans.hurry.notify_one();
    }

    /// The next orphan. When none is left in memory, searches marks that a crash left, or that exceeded the limit.
    fn next_orphan(&self) -> Result<Option<Ino>, FsError> {
        loop {
            let from = {
                let mut orphans = self.orphans.list.lock();
                match orphans.next.pop_front() {
                    Some(ino) => return Ok(Some(ino)),
                    None => orphans.unseen.take(),
                }
            };
            let Some(from) = from else {
                self.orphans.list.lock().is_urgent = false;
                return Ok(None);
            };
            let (_, to) = Key::orphans();
            let found = match self.meta.live().scan(&from, &to, FIND_MAX) {
                Ok(found) => found,
                Err(error) => {
                    self.orphans.list.lock().unseen = Some(from);
                    return Err(meta_error(error));
                }
            };
            let mut orphans = self.orphans.list.lock();
            // Another task may have reset the search meanwhile.
            if found.len() == FIND_MAX && orphans.unseen.is_none() {
                orphans.unseen = found.last().map(|(key, _)| key.successor());
            }
            for (key, _) in found {
                if let Ok(KeyKind::Orphan(ino)) = key.kind() {
                    orphans.next.push_back(ino);
                }
            }
        }
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
                .pause(REAP_INTERVAL, self.orphans.wake.notified())
                .await
            {
                return;
            }
            if !self.gather_orphans().await {
                return;
            }
        }
    }

    /// Waits for more inodes to delete with one group of the log; false when it is time to stop.
    async fn gather_orphans(&self) -> bool {
        if self.orphans.list.lock().is_due() {
            return !self.tasks.is_stopping();
        }
        self.tasks
            .pause(REAP_GATHER_TIME, self.orphans.hurry.notified())
            .await
    }

    /// Deletes some removed inodes. False if none is left, or one failed.
    async fn reap_some(self: &Arc<Self>) -> bool {
        let mut last = None;
        let mut count = 0;
        let mut goes_on = true;
        while count < REAP_INODES_MAX && goes_on && !self.tasks.is_stopping() {
            let ino = match self.next_orphan() {
                Ok(Some(ino)) => ino,
                Ok(None) => {
                    goes_on = false;
                    break;
                }
                Err(error) => {
                    tracing::error!(volume = %self.volume, %error, "removed files cannot be found; it is tried again");
                    goes_on = false;
                    break;
                }
            };
            self.meta.admit().await;
            match self.reap(ino).await {
                Ok(ticket) => {
                    last = ticket.or(last);
                    count += u64::from(ticket.is_some());
                }
                Err(error) => {
                    tracing::error!(volume = %self.volume, %ino, %error, "deleting a removed file failed; it is tried again");
                    // After all others: its fault must not keep their space.
                    self.orphans.list.lock().add(ino);
                    goes_on = false;
                }
            }
        }
        let Some(last) = last else {
            return goes_on;
        };
        // All earlier batches in the log are durable, too.
        if let Err(error) = self.durable(last).await {
            tracing::error!(volume = %self.volume, %error, "deleting removed files failed; the next start goes on with it");
            return false;
        }
        let reaped = &self.counters.orphans_reaped;
        reaped.fetch_add(count, Ordering::Relaxed);
        self.branches.reaped.notify_one();
        self.gc_wake.notify_one();
        goes_on
    }

    /// Deletes a removed inode: its extents in steps, then the inode. It is gone when the ticket is durable; without
    /// a ticket, the next start continues.
    pub(crate) async fn reap(self: &Arc<Self>, ino: Ino) -> Result<Option<Ticket>, FsError> {
        let mark = Key::orphan(ino);
        let is_marked = || {
            let found = self.meta.live().get(&mark).map_err(meta_error)?;
            Ok::<bool, FsError>(found.is_some())
        };
        let inode = match self.own_inode(ino) {
            Ok(inode) => inode,
            Err(FsError::Stale) => {
                if !is_marked()? {
                    // The inode was found by its mark, added by the task that removed it, and is gone.
                    return Ok(None);
                }
                let mut batch = Batch::new();
                batch.delete(mark);
                return Ok(Some(self.commit_bare(Bare::Orphans, batch)));
            }
            Err(error) => return Err(error),
        };
        // It was found by its mark while another task fills it. A task that removes it is done when the lock is free.
        if !inode.lock().removed || !is_marked()? {
            return Ok(None);
        }
        let mut at = 0;
        loop {
            // On from the end of the last step: a scan from the start would step over the deleted keys.
            let (from, to) = Key::extents_past(ino, at);
            let mut extents: Vec<Extent> = Vec::new();
            self.scan_extents(View::Live, &from, &to, |extent| {
                extents.push(extent);
                extents.len() < REAP_EXTENTS_MAX
            })?;
            let last = extents.len() < REAP_EXTENTS_MAX;
            if !last && self.tasks.is_stopping() {
                return Ok(None);
            }
            at = extents.last().map_or(at, |extent| extent.end);
            let mut map = self.extent_map();
            map.load(0..u64::MAX, extents);
            let mut extents = ExtentChange::default();
            map.clear(0..u64::MAX, &mut extents);
            let ticket = {
                let mut change = self.begin_change(inode.lock());
                if last {
                    self.drop_xattrs(&mut change, ino)?;
                }
                // The record stays as it is until the last step deletes it.
                change.touch(ino, Shown::Quietly, Record::Kept);
                change.put_extents(Why::Changed, ino, extents);
                if last {
                    change.delete_inode(ino, Shown::Quietly);
                }
                let Edit { state, batch, .. } = change.touch(ino, Shown::Quietly, Record::Kept);
                if last {
                    batch.delete(Key::orphan(ino));
                    // An inode that never had a name may still have bytes in the journal.
                    batch.fold(Fold {
                        ino,
                        start: 0,
                        end: u64::MAX,
                        through: self.meta.last_ticket().0,
                    });
                    batch.charge(owner_of(&state.record), -UsageDelta::ONE_INODE);
                    let space = SpaceDelta {
                        inodes: -1,
                        ..SpaceDelta::default()
                    };
                    batch.space(of_volume(ino, space));
                }
                state.extents.forget_from(0);
                change.commit().ticket
            };
            if last {
                return Ok(Some(ticket));
            }
            self.durable(ticket).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_deleted_at_once_and_few_are_gathered_unless_somebody_waits() {
        let mut orphans = Orphans {
            next: VecDeque::new(),
            unseen: None,
            is_urgent: false,
        };
        for ino in 1..=REAP_INODES_MAX {
            assert!(!orphans.is_due(), "{ino}");
            orphans.add(Ino(ino));
        }
        assert!(orphans.is_due());
        orphans.next.truncate(1);
        assert!(!orphans.is_due());
        orphans.is_urgent = true;
        assert!(orphans.is_due());
    }

    #[test]
    fn memory_holds_only_so_many() {
        let mut orphans = Orphans {
            next: VecDeque::new(),
            unseen: None,
            is_urgent: false,
        };
        for ino in 0..ORPHANS_MAX as u64 {
            orphans.add(Ino(ino));
        }
        assert_eq!(orphans.unseen, None);
        for ino in 0..1000 {
            orphans.add(Ino(1 << 20 | ino));
        }
        assert_eq!(orphans.next.len(), ORPHANS_MAX);
        // The others are found by their marks.
        assert_eq!(orphans.unseen, Some(Key::orphans().0));
    }
}
