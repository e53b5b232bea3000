//! Inodes without a name: found again after a crash, deleted in steps.
//!
//! Owns: which of them are next, and the task that deletes them. Must not know: when segments go (`gc`). Invariant:
//! the mark of an orphan goes in the batch that deletes its inode, so a crash at any step leaves it to the next start.
//!
//! The metadata has the marks; in memory there are only so many. A start looks at none of them: a program may have
//! removed millions of files just before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::{Ino, View};
use cairn_meta::{Batch, Fold, Key, KeyKind, SpaceDelta, Ticket, UsageDelta};

use crate::branches::of_volume;
use crate::extents::{Change, Extent, ExtentMap};
use crate::quota::owner_of;
use crate::types::FsError;
use crate::volume::{VolumeCore, meta_error};

/// Orphans in memory; others are found by their marks when these are gone.
const ORPHANS_MAX: usize = 1 << 16;
/// Marks that are read at a time.
const FIND_MAX: usize = 1024;

const REAP_INTERVAL: Duration = Duration::from_secs(30);
/// Extents that one step removes.
const REAP_EXTENTS_MAX: usize = 1024;
/// Inodes that are deleted at a time, before it is waited until that is durable. With one at a time clients, who remove
/// many files with one sync of the log, would be ahead by ever more; with all of them they would wait behind them.
const REAP_INODES_MAX: u64 = 64;
/// Removed files are gathered for so long, unless there are that many before. Deleted at once, each had a group of the log for
/// itself, which the next removal of a client waited for that removes one file after the other.
const REAP_GATHER_TIME: Duration = Duration::from_millis(20);

/// Removed inodes whose extents are still there.
#[derive(Debug)]
pub(crate) struct Orphans {
    next: VecDeque<Ino>,
    /// From here on the metadata may have marks of others.
    unseen: Option<Key>,
    /// Somebody waits until all are gone: nothing is gathered before that.
    is_urgent: bool,
}

impl Default for Orphans {
    /// Of a volume that was just opened: whatever the metadata has.
    fn default() -> Self {
        Self {
            next: VecDeque::new(),
            unseen: Some(Key::orphans().0),
            is_urgent: false,
        }
    }
}

impl Orphans {
    /// Whether they are to be deleted now.
    fn is_due(&self) -> bool {
        self.is_urgent || self.next.len() as u64 >= REAP_INODES_MAX
    }

    fn add(&mut self, ino: Ino) {
        if self.next.len() < ORPHANS_MAX {
            self.next.push_back(ino);
        } else {
            // Their marks are all over: after those in memory they are looked for from the beginning.
            self.unseen = Some(Key::orphans().0);
        }
    }

    /// How many there are; at least one more while there may be others.
    pub fn count(&self) -> u64 {
        self.next.len() as u64 + u64::from(self.unseen.is_some())
    }
}

impl VolumeCore {
    pub(crate) fn add_orphan(&self, ino: Ino) {
        self.orphans.lock().add(ino);
        self.orphan_wake.notify_one();
    }

    /// Has those that there are deleted without delay.
    pub(crate) fn hurry_reaper(&self) {
        self.orphans.lock().is_urgent = true;
        self.orphan_wake.notify_one();
        self.orphan_hurry.notify_one();
    }

    /// The next orphan; when none is left in memory, some of those are found that a crash left, or that were too many.
    fn next_orphan(&self) -> Result<Option<Ino>, FsError> {
        loop {
            let from = {
                let mut orphans = self.orphans.lock();
                match orphans.next.pop_front() {
                    Some(ino) => return Ok(Some(ino)),
                    None => orphans.unseen.take(),
                }
            };
            let Some(from) = from else {
                self.orphans.lock().is_urgent = false;
                return Ok(None);
            };
            let (_, to) = Key::orphans();
            let found = match self.meta.live().scan(&from, &to, FIND_MAX) {
                Ok(found) => found,
                Err(error) => {
                    self.orphans.lock().unseen = Some(from);
                    return Err(meta_error(error));
                }
            };
            let mut orphans = self.orphans.lock();
            // Somebody may want to begin again meanwhile.
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
                .pause(REAP_INTERVAL, self.orphan_wake.notified())
                .await
            {
                return;
            }
            if !self.gather_orphans().await {
                return;
            }
        }
    }

    /// Waits for more to delete with one group of the log; false when it is time to stop.
    async fn gather_orphans(&self) -> bool {
        if self.orphans.lock().is_due() {
            return !self.tasks.is_stopping();
        }
        self.tasks
            .pause(REAP_GATHER_TIME, self.orphan_hurry.notified())
            .await
    }

    /// Deletes some removed inodes. False if there is none left, or one failed.
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
                    // After all others: whatever is wrong with it must not keep their space.
                    self.orphans.lock().add(ino);
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
        self.branches.reaped.notify_one();
        self.gc_wake.notify_one();
        goes_on
    }

    /// Deletes a removed inode: its extents in steps, then itself. It is gone when the ticket is durable; without one
    /// the next start goes on with it.
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
                    // It was found by its mark and named by who removed it, and is gone.
                    return Ok(None);
                }
                let mut batch = Batch::new();
                batch.delete(mark);
                return Ok(Some(self.meta.submit(batch)));
            }
            Err(error) => return Err(error),
        };
        // Found by its mark while somebody fills it. Who removes it is done when it can be locked.
        if !inode.lock().removed || !is_marked()? {
            return Ok(None);
        }
        let mut at = 0;
        loop {
            // On from where the last step ended: what it deleted is still to be stepped over there.
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
                    self.delete_inode(ino, &mut batch);
                    batch.delete(Key::orphan(ino));
                    // Of one that never had a name there may be bytes in the journal still.
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
                state.ticket = self.submit_change(&mut state, &change, batch);
                state.ticket
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
