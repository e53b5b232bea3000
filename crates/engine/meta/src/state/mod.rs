//! The state of a volume: its key space at one log position, and its copies on other disks.
//!
//! Owns: the seam to the ordered store, versions of keys, the place of copies and which is newest. Must not know: the
//! log, batches that are not applied, the meaning of values.

mod exported;
mod memory;
mod read_only;
mod readers;
pub(crate) mod remote;
mod rocks;
mod rocks_read;
pub(crate) mod versions;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::env::Env;
use cairn_formats::metadata::AppliedRecord;
use cairn_formats::metadata::descriptor::Descriptor;
use cairn_formats::metadata::state_file::StateFile;
use smallvec::SmallVec;
use tokio::sync::OwnedMutexGuard;

use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::settings::MetaSettings;
pub(crate) use exported::Exported;
use readers::while_it_answers;

pub(crate) use readers::{blocking, without_waiting};

/// A key with its generation, as the state stores it.
pub(crate) type StateKey = SmallVec<[u8; 48]>;
pub(crate) type StateFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An ordered map that keeps flushed writes. It needs no log of its own: after a crash it holds a prefix of the applied
/// writes, and the position of that prefix.
pub(crate) trait StateStore: Send + Sync {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError>;
    /// Entries with `from <= key < to`, as of now.
    fn cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a>;
    /// As `cursor`, for a pass over so many entries that they must not evict the cached entries of other readers. It
    /// may or may not see later changes.
    fn passing_cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a> {
        self.cursor(from, to)
    }
    /// Applies all writes at once; `None` deletes. The position is one of the writes. Fails with [`MetaError::Full`],
    /// without any change, while the disk has no space for a flush.
    fn apply(
        &self,
        writes: &mut dyn Iterator<Item = (StateKey, Option<Bytes>)>,
    ) -> Result<(), MetaError>;
    /// Makes all writes applied so far durable.
    fn flush(&self) -> StateFuture<'_, Result<(), MetaError>>;
    /// Puts a copy, at least as new as `applied`, on each of `disks`, and returns each result. The work continues
    /// without a waiting caller, and keeps `turn` until its end.
    fn ship(
        &self,
        disks: Vec<usize>,
        applied: AppliedRecord,
        turn: Turn,
    ) -> StateFuture<'_, Result<Vec<ShipResult>, MetaError>>;
    /// The files of a state that is at least as new as `applied`. The export keeps `turn` until its end.
    fn export(
        &self,
        applied: AppliedRecord,
        turn: Turn,
    ) -> StateFuture<'_, Result<Exported, MetaError>>;
    /// Memory of entries that are stored nowhere else, in bytes.
    fn memory_bytes(&self) -> u64 {
        0
    }
    /// The disk of the state.
    fn disk(&self) -> usize;
    /// Abandons the state because its disk may never answer: nothing waits for its end.
    fn leave(&self) {}
}

/// Held by the task that flushes or ships a state: one at a time.
pub(crate) type Turn = Arc<OwnedMutexGuard<()>>;
pub(crate) type ShipResult = (usize, Result<(), MetaError>);

/// A key and its value.
pub(crate) type Pair<'a> = (&'a [u8], &'a [u8]);

pub(crate) trait StateCursor {
    /// The next entry, in order; `None` at the end.
    fn next(&mut self) -> Result<Option<Pair<'_>>, MetaError>;
}

/// A copy of the state that was found on a disk.
pub(crate) struct Candidate {
    pub disk: usize,
    pub applied: AppliedRecord,
    /// It is the working state of its disk, and no shipped copy.
    pub is_primary: bool,
    source: Source,
}

enum Source {
    Memory(StateFile),
    Rocks(Box<rocks::OpenState>),
    /// As `Rocks`, closed at the moment.
    Closed(PathBuf),
    Replica(rocks::Replica),
    /// A copy whose closing runs a test's code.
    #[cfg(test)]
    Probe(Probe),
}

impl Source {
    /// Closes it and returns its folder, if it has one.
    fn close(self) -> Option<PathBuf> {
        match self {
            Self::Memory(_) => None,
            Self::Rocks(state) => {
                let path = state.path().to_owned();
                drop(state);
                Some(path)
            }
            Self::Closed(path) => Some(path),
            Self::Replica(replica) => Some(replica.path().to_owned()),
            #[cfg(test)]
            Self::Probe(probe) => {
                drop(probe);
                None
            }
        }
    }
}

#[cfg(test)]
struct Probe(Option<Box<dyn FnOnce() + Send>>);

#[cfg(test)]
impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(closing) = self.0.take() {
            closing();
        }
    }
}

#[cfg(test)]
impl Candidate {
    fn of(disk: usize, source: Source) -> Self {
        Self {
            disk,
            applied: AppliedRecord::default(),
            is_primary: true,
            source,
        }
    }

    /// A closed state at `path`.
    pub fn closed(disk: usize, path: PathBuf) -> Self {
        Self::of(disk, Source::Closed(path))
    }

    /// `closing` runs when it is closed.
    pub fn closing(disk: usize, closing: impl FnOnce() + Send + 'static) -> Self {
        Self::of(disk, Source::Probe(Probe(Some(Box::new(closing)))))
    }
}

impl Candidate {
    /// An unused state at `path`.
    pub fn leftover(disk: usize, path: PathBuf) -> Self {
        Self {
            disk,
            applied: AppliedRecord::default(),
            is_primary: false,
            source: Source::Closed(path),
        }
    }

    /// Folder of the copy, if it was shipped here.
    pub fn replica_path(&self) -> Option<PathBuf> {
        match &self.source {
            Source::Replica(replica) => Some(replica.path().to_owned()),
            _ => None,
        }
    }

    /// Descriptor of the copy that was shipped here, if this is one or was made of one.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        match &self.source {
            Source::Replica(replica) => Some(replica.descriptor()),
            Source::Rocks(state) => state.made_of(),
            _ => None,
        }
    }

    /// Closes it, so that its folder may be replaced. It can still be opened.
    pub fn close(&mut self) {
        if let Source::Rocks(state) = &self.source {
            self.source = Source::Closed(state.path().to_owned());
        }
    }
}

/// Finds copies of the state on all disks. Unreadable ones are logged and skipped: the caller refuses if the others do
/// not reach the log. The second list has leftovers of copies, to be discarded.
pub(crate) async fn discover(
    disks: &DiskSet,
    settings: &MetaSettings,
) -> (Vec<Candidate>, Vec<Candidate>) {
    let (mut candidates, mut leftovers) = (Vec::new(), Vec::new());
    for index in disks.healthy() {
        if disks.get(index).disk.folder().is_some() {
            rocks::discover(disks, index, settings, &mut candidates, &mut leftovers).await;
        } else if let Some(file) = memory::discover(disks, index).await {
            candidates.push(Candidate {
                disk: index,
                applied: file.applied,
                is_primary: false,
                source: Source::Memory(file),
            });
        }
    }
    (candidates, leftovers)
}

/// Finds the copies of the state on all disks, and opens each without a write. Unreadable ones are logged and skipped.
/// Writes applied to a copy stay in memory.
pub(crate) async fn discover_to_read(
    disks: &DiskSet,
    settings: &MetaSettings,
) -> Vec<(AppliedRecord, Arc<dyn StateStore>)> {
    let mut found = Vec::new();
    for index in disks.healthy() {
        if disks.get(index).disk.folder().is_some() {
            found.extend(rocks::discover_to_read(disks, index, settings).await);
        } else if let Some(file) = memory::discover(disks, index).await {
            found.push((file.applied, memory::open(disks, index, file)));
        }
    }
    let over = |base| Arc::new(read_only::ReadOnlyState::new(base)) as Arc<dyn StateStore>;
    found
        .into_iter()
        .map(|(applied, base)| (applied, over(base)))
        .collect()
}

/// An empty state in memory, instead of one on a disk.
pub(crate) fn empty_to_read(disks: &DiskSet, index: usize) -> Arc<dyn StateStore> {
    let base = memory::open(disks, index, StateFile::default());
    Arc::new(read_only::ReadOnlyState::new(base))
}

/// Opens a copy as the working state. Fails if the copy turns out to be corrupt.
pub(crate) async fn take_over(
    candidate: Candidate,
    disks: &DiskSet,
    settings: &MetaSettings,
    env: &Env,
) -> Result<Arc<dyn StateStore>, MetaError> {
    let index = candidate.disk;
    Ok(match candidate.source {
        Source::Memory(file) => memory::open(disks, index, file),
        Source::Rocks(state) => rocks::open(disks, index, *state)?,
        Source::Closed(path) => rocks::reopen(disks, index, path, settings).await?,
        #[cfg(test)]
        Source::Probe(_) => return Err(MetaError::State("a test".to_owned())),
        Source::Replica(replica) => {
            rocks::from_replica(disks, index, replica, settings, env.entropy.u64()).await?
        }
    })
}

/// Whether a disk that is a folder has a state of any kind.
pub(crate) fn is_there(disks: &DiskSet, index: usize) -> bool {
    rocks::is_there(disks, index)
}

/// Makes a copy the state of its disk, to be opened later. The copy must be closed.
pub(crate) async fn install(
    candidate: Candidate,
    disks: &DiskSet,
    settings: &MetaSettings,
    env: &Env,
) -> Result<(), MetaError> {
    match candidate.source {
        Source::Replica(replica) => {
            let lineage = env.entropy.u64();
            rocks::install(disks, candidate.disk, replica, settings, lineage).await
        }
        _ => Ok(()),
    }
}

/// Closes the copies found, on a disk that may be slow.
pub(crate) async fn close(found: Vec<Candidate>) -> Result<(), MetaError> {
    blocking(move || {
        drop(found);
        Ok(())
    })
    .await
}

/// Creates an empty state, replacing an existing one.
pub(crate) async fn create(
    disks: &DiskSet,
    index: usize,
    settings: &MetaSettings,
    env: &Env,
) -> Result<Arc<dyn StateStore>, MetaError> {
    if disks.get(index).disk.folder().is_some() {
        rocks::create(disks, index, settings, env.entropy.u64()).await
    } else {
        Ok(memory::open(disks, index, StateFile::default()))
    }
}

/// Removes useless copies: leftovers of a primary elsewhere, corrupt ones, stale ones. Waits for their disk only until
/// it is faulted.
pub(crate) async fn discard(candidate: Candidate, disks: &DiskSet) {
    let (index, source) = (candidate.disk, candidate.source);
    if matches!(source, Source::Memory(_)) {
        // It is one file, which the next shipment overwrites.
        return;
    }
    let used = disks.clone();
    let work = move || {
        let path = source.close();
        // The disk may have hung for any time. Meanwhile this store may have been abandoned, and the folder may belong
        // to another store that was opened in its place.
        match path.filter(|_| used.takes_copies(index)) {
            Some(path) => rocks::remove_folder(&path),
            None => Ok(()),
        }
    };
    if let Err(error) = blocking_on(disks, index, work).await {
        let label = disks.get(index).disk.label().to_owned();
        tracing::warn!(disk = label, "removing an old copy of the state: {error}");
    }
}

/// Closes copies in the background, because their disks may never answer.
pub(crate) fn leave(candidates: Vec<Candidate>) {
    if candidates.is_empty() {
        return;
    }
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<Candidate>>();
    let thread = std::thread::Builder::new().name("meta-left".to_owned());
    match thread.spawn(move || drop(receiver.recv())) {
        Ok(_) => drop(sender.send(candidates)),
        Err(error) => {
            tracing::error!(%error, "there is no thread to close copies of a state that was left behind");
            std::mem::forget(candidates);
        }
    }
}

/// As [`blocking`], on a disk: fails when the disk is faulted because it hangs.
async fn blocking_on<T: Send + 'static>(
    disks: &DiskSet,
    index: usize,
    work: impl FnOnce() -> Result<T, MetaError> + Send + 'static,
) -> Result<T, MetaError> {
    let disk = disks.get(index).disk.clone();
    blocking(move || while_it_answers(&*disk, work)).await
}
