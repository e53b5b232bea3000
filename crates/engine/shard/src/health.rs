//! What the shards of a disk have met so far.
//!
//! Owns: counts of errors, the suspicion that too many of them in a row raise, at once and in the data path, and the
//! verdict of those who judge disks with a look at the others.
//! Must not know: how a disk is judged.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cairn_base::disk::DiskError;
use tokio::sync::Notify;

/// Counts since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskHealth {
    pub read_errors: u64,
    pub write_errors: u64,
    /// Refused for want of space; no sign of a bad disk.
    pub full_errors: u64,
    /// Wrong bytes, as reported by those who can tell, and bytes that a file ends before: the damage of that file.
    pub checksum_errors: u64,
    /// Many I/O errors came in a row, of whatever kind or of those alone that make bytes durable. Only a suspicion: it
    /// stands until the judge of disks either faults this one or withdraws it.
    pub suspect: bool,
    /// The judge of disks found it unfit. It stays so until the disk is opened again.
    pub failed: bool,
}

/// The state of a disk, known without asking it.
pub struct Health {
    errors_in_a_row_max: u32,
    errors_in_a_row: AtomicU32,
    /// Counted apart: what only reaches the page cache succeeds on a disk that takes nothing any more.
    sync_errors_in_a_row: AtomicU32,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    full_errors: AtomicU64,
    checksum_errors: AtomicU64,
    suspect: AtomicBool,
    failed: AtomicBool,
    writes_answered: AtomicU64,
    silent: AtomicBool,
    failing: AtomicBool,
    fell_silent: Notify,
}

const ORDER: Ordering = Ordering::Relaxed;

impl Health {
    pub(crate) fn new(errors_in_a_row_max: u32) -> Self {
        Self {
            errors_in_a_row_max,
            errors_in_a_row: AtomicU32::new(0),
            sync_errors_in_a_row: AtomicU32::new(0),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            full_errors: AtomicU64::new(0),
            checksum_errors: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            writes_answered: AtomicU64::new(0),
            silent: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            fell_silent: Notify::new(),
        }
    }

    /// Of a disk that is somewhere else, as it is told from there: see [`Self::set`].
    pub fn of_remote() -> Self {
        Self::new(u32::MAX)
    }

    /// Takes over what was told of a disk that is somewhere else.
    pub fn set(&self, health: DiskHealth, writes_answered: u64) {
        self.read_errors.store(health.read_errors, ORDER);
        self.write_errors.store(health.write_errors, ORDER);
        self.full_errors.store(health.full_errors, ORDER);
        self.checksum_errors.store(health.checksum_errors, ORDER);
        self.suspect.store(health.suspect, ORDER);
        self.failed.store(health.failed, ORDER);
        self.writes_answered.store(writes_answered, ORDER);
    }

    pub(crate) fn note_read<T>(&self, result: Result<T, DiskError>) -> Result<T, DiskError> {
        self.note(&self.read_errors, result)
    }

    pub(crate) fn note_write<T>(&self, result: Result<T, DiskError>) -> Result<T, DiskError> {
        self.writes_answered.fetch_add(1, ORDER);
        self.note(&self.write_errors, result)
    }

    /// How many writes and syncs have ended so far, well or not: who waits for one finds out whether others end.
    pub fn writes_answered(&self) -> u64 {
        self.writes_answered.load(ORDER)
    }

    /// Of a write that is durable when it returns.
    pub(crate) fn note_durable<T>(&self, result: Result<T, DiskError>) -> Result<T, DiskError> {
        self.count_sync(result.as_ref());
        self.note_write(result)
    }

    /// How an attempt to make something durable ended, as a whole; its parts are noted one by one.
    pub(crate) fn count_sync<T>(&self, result: Result<T, &DiskError>) {
        match result {
            Ok(_) => reset(&self.sync_errors_in_a_row),
            Err(DiskError::Io { .. }) => self.count_in_a_row(&self.sync_errors_in_a_row),
            Err(_) => {}
        }
    }

    fn count_in_a_row(&self, errors: &AtomicU32) {
        let before = errors.fetch_add(1, ORDER);
        if before.saturating_add(1) >= self.errors_in_a_row_max {
            self.suspect.store(true, ORDER);
        }
    }

    fn note<T>(&self, errors: &AtomicU64, result: Result<T, DiskError>) -> Result<T, DiskError> {
        match &result {
            Ok(_) => reset(&self.errors_in_a_row),
            Err(DiskError::Full { .. }) => {
                self.full_errors.fetch_add(1, ORDER);
            }
            Err(
                DiskError::NotFound { .. }
                | DiskError::Exists { .. }
                | DiskError::InUse { .. }
                | DiskError::NoDescriptor { .. },
            ) => {}
            // One file is damaged; the disk answers as it should, and is not to be judged by it.
            Err(DiskError::Short { .. }) => self.note_checksum_error(),
            Err(DiskError::Io { .. }) => {
                errors.fetch_add(1, ORDER);
                self.count_in_a_row(&self.errors_in_a_row);
            }
        }
        result
    }

    /// Counts wrong bytes read from this disk; only the reader, who has the checksums, can tell.
    pub fn note_checksum_error(&self) {
        self.checksum_errors.fetch_add(1, ORDER);
    }

    /// It counts as failed from now on.
    pub fn fail(&self) {
        self.failed.store(true, ORDER);
    }

    /// Whether nothing new should be put there: it counts as failed, or is suspected to.
    pub fn is_avoided(&self) -> bool {
        self.failed.load(ORDER) || self.suspect.load(ORDER)
    }

    pub(crate) fn clear_suspicion(&self) {
        reset(&self.errors_in_a_row);
        reset(&self.sync_errors_in_a_row);
        self.suspect.store(false, ORDER);
    }

    /// Somebody who watches it has found that changes of it fail, or that it takes them again. Nothing new is put there where
    /// others are enough; what is there is read as before.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, ORDER);
    }

    pub fn is_failing(&self) -> bool {
        self.failing.load(ORDER)
    }

    /// Somebody who watches it has found that it answers nothing at the moment, or that it does again.
    pub fn set_silent(&self, silent: bool) {
        let before = self.silent.swap(silent, Ordering::AcqRel);
        if silent && !before {
            self.fell_silent.notify_waiters();
        }
    }

    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Resolves when the disk answers nothing, see [`Self::set_silent`].
    pub async fn silence(&self) {
        loop {
            let fell_silent = self.fell_silent.notified();
            if self.is_silent() {
                return;
            }
            fell_silent.await;
        }
    }

    pub fn get(&self) -> DiskHealth {
        DiskHealth {
            read_errors: self.read_errors.load(ORDER),
            write_errors: self.write_errors.load(ORDER),
            full_errors: self.full_errors.load(ORDER),
            checksum_errors: self.checksum_errors.load(ORDER),
            suspect: self.suspect.load(ORDER),
            failed: self.failed.load(ORDER),
        }
    }
}

fn reset(errors_in_a_row: &AtomicU32) {
    // Loaded first: a store by every operation would pass the cache line around.
    if errors_in_a_row.load(ORDER) != 0 {
        errors_in_a_row.store(0, ORDER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart() {
        let disk = || "disk".to_owned();
        let io = DiskError::Io {
            disk: disk(),
            what: "reading".to_owned(),
            detail: "for a test".to_owned(),
        };
        let short = DiskError::Short {
            disk: disk(),
            name: "file".to_owned(),
            len_bytes: 10,
            wanted_bytes: 20,
        };
        let full = DiskError::Full {
            disk: disk(),
            what: "writing".to_owned(),
        };
        let none = DiskHealth::default();
        let cases = [
            (
                io,
                DiskHealth {
                    read_errors: 3,
                    suspect: true,
                    ..none
                },
            ),
            (
                short,
                DiskHealth {
                    checksum_errors: 3,
                    ..none
                },
            ),
            (
                full,
                DiskHealth {
                    full_errors: 3,
                    ..none
                },
            ),
        ];
        for (error, want) in cases {
            let health = Health::new(3);
            for _ in 0..3 {
                let _ = health.note_read::<()>(Err(error.clone()));
            }
            assert_eq!(health.get(), want, "{error}");
            assert_eq!(health.is_avoided(), want.suspect, "{error}");
            health.clear_suspicion();
            assert!(!health.is_avoided(), "{error}");
        }
    }
}
