//! What changed from a snapshot to a later one, or to now, told page by page to who asks for one page after the other.
//!
//! Owns: the lists that are being read, how many and for how long, and the snapshot that stands for now, which goes with its
//! list, also if the server ended meanwhile. Must not know: how changes are found (`fs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_fs::{FileChange, Fs, FsError, SnapshotDiff, SnapshotFailure};
use parking_lot::Mutex;

use crate::clone::opening;

/// Where other snapshots name their schedule.
pub(crate) const DIFFING: &str = ".diff";
/// Lists that may be read at a time.
pub const DIFFS_MAX: usize = 16;
/// A list of which nobody asked for more for so long is given up.
pub const DIFF_IDLE_MAX: Duration = Duration::from_secs(300);
/// Most changes in a page.
pub const DIFF_PAGE_MAX: usize = 10_000;

/// Why a list of changes is not there, or not there any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffFailure {
    #[error("there is no snapshot {0}")]
    NoSnapshot(String),
    #[error("snapshot {later} is not later than {earlier}: give the older snapshot first")]
    NotLater { earlier: String, later: String },
    #[error(
        "{DIFFS_MAX} lists of changes are already being read; try again when one of them is complete"
    )]
    TooMany,
    #[error(
        "this list of changes is not there any more: it was read to its end, or for {} minutes nobody asked for more; begin again",
        DIFF_IDLE_MAX.as_secs() / 60
    )]
    Gone,
    #[error(
        "a snapshot was deleted while its changes were listed, or the volume was opened again; start again"
    )]
    Stale,
    #[error("the snapshot of the current state: {0}")]
    Snapshot(#[from] SnapshotFailure),
    #[error(transparent)]
    Fs(FsError),
}

/// Some of the changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffPage {
    pub changes: Vec<FileChange>,
    /// What to ask with for the next page; `None` if there is none.
    pub next: Option<String>,
}

/// A list that is being read.
struct Reading {
    fs: Fs,
    diff: SnapshotDiff,
    /// The snapshot that stands for now, if one does.
    temporary: Option<String>,
    /// The page that was given last, and its number: a client that did not get the answer asks for it again.
    page: u64,
    last: Vec<FileChange>,
    asked: Duration,
}

impl Reading {
    async fn end(self) {
        delete_temporary(&self.fs, self.temporary).await;
    }
}

/// Deletes the snapshot that stood for now, if one did.
async fn delete_temporary(fs: &Fs, temporary: Option<String>) {
    if let Some(name) = temporary
        && let Err(error) = fs.delete_snapshot(name.as_bytes()).await
    {
        tracing::warn!(volume = fs.name(), name, %error, "the snapshot of a list of changes stays for now");
    }
}

/// All lists that are being read on this node.
#[derive(Default)]
pub struct Diffs {
    reading: Mutex<BTreeMap<u64, Reading>>,
    next: AtomicU64,
}

impl Diffs {
    /// Begins a list of what changed from one snapshot to a later one; to now if none is named: then as of this call.
    pub async fn begin(
        &self,
        fs: &Fs,
        earlier: &str,
        later: Option<&str>,
        max: usize,
        now: Duration,
    ) -> Result<DiffPage, DiffFailure> {
        self.end_idle(now).await;
        if self.reading.lock().len() >= DIFFS_MAX {
            return Err(DiffFailure::TooMany);
        }
        let find = |name: &str| {
            let found = fs.snapshot(name.as_bytes());
            found.ok_or_else(|| DiffFailure::NoSnapshot(name.to_owned()))
        };
        let from = find(earlier)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (to, temporary) = match later {
            Some(later) => (find(later)?, None),
            None => {
                let opening = opening(fs);
                let name = format!("diff.{opening}.{id}");
                let label = format!("{DIFFING}.{opening}");
                let taken = fs.take_snapshot(name.as_bytes(), label.as_bytes()).await?;
                (taken, Some(name))
            }
        };
        let diff = match fs.diff(from.generation, to.generation) {
            Ok(diff) => diff,
            Err(error) => {
                delete_temporary(fs, temporary).await;
                return Err(match error {
                    FsError::Invalid => DiffFailure::NotLater {
                        earlier: earlier.to_owned(),
                        later: later.unwrap_or("now").to_owned(),
                    },
                    error => failed(error),
                });
            }
        };
        let reading = Reading {
            fs: fs.clone(),
            diff,
            temporary,
            page: 0,
            last: Vec::new(),
            asked: now,
        };
        self.read(id, reading, max, now).await
    }

    /// The page that `next` of the one before it names.
    pub async fn next(
        &self,
        fs: &Fs,
        next: &str,
        max: usize,
        now: Duration,
    ) -> Result<DiffPage, DiffFailure> {
        let parsed = next.split_once('.').and_then(|(opening_of, rest)| {
            let (id, page) = rest.split_once('.')?;
            let is_same = opening_of == opening(fs);
            is_same.then(|| Some((id.parse::<u64>().ok()?, page.parse::<u64>().ok()?)))?
        });
        let (id, page) = parsed.ok_or(DiffFailure::Gone)?;
        // It is given to one who asks at a time.
        let reading = self.reading.lock().remove(&id).ok_or(DiffFailure::Gone)?;
        if reading.fs.volume() != fs.volume() {
            self.reading.lock().insert(id, reading);
            return Err(DiffFailure::Gone);
        }
        if page == reading.page {
            let changes = reading.last.clone();
            return Ok(self.keep(id, reading, changes, now));
        }
        if page != reading.page + 1 {
            self.reading.lock().insert(id, reading);
            return Err(DiffFailure::Gone);
        }
        self.read(id, reading, max, now).await
    }

    async fn read(
        &self,
        id: u64,
        mut reading: Reading,
        max: usize,
        now: Duration,
    ) -> Result<DiffPage, DiffFailure> {
        let max = max.clamp(1, DIFF_PAGE_MAX);
        match reading.diff.page(max).await {
            Ok(changes) if changes.len() < max => {
                reading.end().await;
                Ok(DiffPage {
                    changes,
                    next: None,
                })
            }
            Ok(changes) => {
                reading.page += 1;
                reading.last.clone_from(&changes);
                Ok(self.keep(id, reading, changes, now))
            }
            Err(error) => {
                reading.end().await;
                Err(failed(error))
            }
        }
    }

    fn keep(&self, id: u64, reading: Reading, changes: Vec<FileChange>, now: Duration) -> DiffPage {
        let next = format!("{}.{id}.{}", opening(&reading.fs), reading.page + 1);
        let reading = Reading {
            asked: now,
            ..reading
        };
        self.reading.lock().insert(id, reading);
        DiffPage {
            changes,
            next: Some(next),
        }
    }

    /// Gives up those that nobody reads on.
    pub async fn end_idle(&self, now: Duration) {
        let is_idle = |reading: &Reading| now.saturating_sub(reading.asked) > DIFF_IDLE_MAX;
        self.end_those(is_idle).await;
    }

    /// Gives up those of a volume, which is to be closed.
    pub async fn end_of(&self, volume: VolumeId) {
        self.end_those(|reading| reading.fs.volume() == volume)
            .await;
    }

    async fn end_those(&self, is_it: impl Fn(&Reading) -> bool) {
        let ended: Vec<Reading> = {
            let mut reading = self.reading.lock();
            let found = reading.iter().filter(|(_, one)| is_it(one));
            let ids: Vec<u64> = found.map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| reading.remove(id)).collect()
        };
        for reading in ended {
            reading.end().await;
        }
    }
}

fn failed(error: FsError) -> DiffFailure {
    match error {
        FsError::Stale => DiffFailure::Stale,
        error => DiffFailure::Fs(error),
    }
}
