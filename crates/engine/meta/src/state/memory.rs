//! The state as an ordered map in memory, kept as one checksummed file on each disk.
//!
//! Owns: when that file is written and read. Must not know: its bytes, keys. For disks that are no folder of the host,
//! as in tests and simulations: RocksDB needs a folder.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cairn_base::disk::{DiskError, OpenMode};
use cairn_base::planted::{self, Bug};
use cairn_formats::metadata::AppliedRecord;
use cairn_formats::metadata::state_file::{self, Map, StateFile};
use parking_lot::RwLock;

use super::exported::Exported;
use super::{Pair, ShipResult, StateCursor, StateFuture, StateKey, StateStore, Turn};
use crate::disks::DiskSet;
use crate::error::MetaError;

struct MemoryState {
    disks: DiskSet,
    index: usize,
    /// Shared with cursors, which see the map as of their creation.
    map: RwLock<Arc<Map>>,
    /// Bytes that the last flush lacked, if it found no space. As in RocksDB, nothing is applied until there is space.
    missing_bytes: AtomicU64,
}

pub(super) fn open(disks: &DiskSet, index: usize, state_file: StateFile) -> Arc<dyn StateStore> {
    let len_bytes = state_file::encode(&state_file.map).len() as u64;
    Arc::new(MemoryState {
        disks: disks.clone(),
        index,
        map: RwLock::new(Arc::new(state_file.map)),
        // On a full disk the first flush would fail: treat it as failed.
        missing_bytes: AtomicU64::new(len_bytes),
    })
}

#[cfg(test)]
pub(super) fn empty() -> impl StateStore {
    MemoryState {
        disks: DiskSet::new(cairn_base::VolumeId(1), Vec::new(), 1),
        index: 0,
        map: RwLock::default(),
        missing_bytes: AtomicU64::new(0),
    }
}

/// The file on a disk, if it is intact.
pub(super) async fn discover(disks: &DiskSet, index: usize) -> Option<StateFile> {
    let disk = &disks.get(index).disk.clone();
    let name = snapshot_name(disks);
    let file = disk.open(&name, OpenMode::Existing).await.ok()?;
    let bytes = file.read_at(0, file.len_bytes() as usize).await.ok()?;
    match state_file::decode(&bytes) {
        Ok(state_file) => Some(state_file),
        Err(error) => {
            tracing::warn!(disk = disk.label(), "unreadable {name}: {error}");
            None
        }
    }
}

fn snapshot_name(disks: &DiskSet) -> String {
    format!("{}/state.file", disks.folder())
}

impl MemoryState {
    fn require_space(&self) -> Result<(), MetaError> {
        let missing_bytes = self.missing_bytes.load(Ordering::Acquire);
        if missing_bytes == 0 {
            return Ok(());
        }
        let disk = &self.disks.get(self.index).disk.clone();
        if disk
            .space()
            .is_ok_and(|space| space.free_bytes > missing_bytes)
        {
            self.missing_bytes.store(0, Ordering::Release);
            return Ok(());
        }
        let label = disk.label();
        Err(MetaError::Full(format!(
            "the state on {label} cannot be written"
        )))
    }

    /// Replaces the file on a disk. At every moment one intact file exists.
    async fn write(&self, index: usize, bytes: Bytes) -> Result<(), DiskError> {
        let disk = &self.disks.get(index).disk.clone();
        let name = snapshot_name(&self.disks);
        let temporary = format!("{name}.new");
        match disk.remove(&temporary).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = disk
            .open(&temporary, OpenMode::CreateNew { len_bytes: 0 })
            .await?;
        if let Err(error) = file.write_at(0, vec![bytes]).await {
            drop(file);
            // Half a copy would only take space. This error matters more than one of the removal.
            let _ = disk.remove(&temporary).await;
            return Err(error);
        }
        if !planted::is(Bug::StateRenamedBeforeSync) {
            file.sync().await?;
        }
        disk.rename(&temporary, &name).await?;
        disk.sync_folder(&self.disks.folder()).await
    }
}

impl StateStore for MemoryState {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        Ok(self.map.read().get(key).cloned())
    }

    fn cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a> {
        Box::new(MemoryCursor {
            map: self.map.read().clone(),
            from: Bound::Included(from.to_vec()),
            to: to.to_vec(),
        })
    }

    fn apply(
        &self,
        writes: &mut dyn Iterator<Item = (StateKey, Option<Bytes>)>,
    ) -> Result<(), MetaError> {
        self.require_space()?;
        let mut map = self.map.write();
        let map = Arc::make_mut(&mut map);
        for (key, value) in writes {
            match value {
                // A copy: the value may be a slice of a whole log file.
                Some(value) => map.insert(key.to_vec(), Bytes::copy_from_slice(&value)),
                None => map.remove(key.as_slice()),
            };
        }
        Ok(())
    }

    fn flush(&self) -> StateFuture<'_, Result<(), MetaError>> {
        Box::pin(async {
            let bytes = Bytes::from(state_file::encode(&self.map.read().clone()));
            let len_bytes = bytes.len() as u64;
            match self.write(self.index, bytes).await {
                Ok(()) => {
                    self.missing_bytes.store(0, Ordering::Release);
                    Ok(())
                }
                Err(error @ DiskError::Full { .. }) => {
                    self.missing_bytes.store(len_bytes, Ordering::Release);
                    Err(MetaError::Full(format!("writing the state: {error}")))
                }
                Err(error) => Err(MetaError::State(format!("writing the state: {error}"))),
            }
        })
    }

    fn ship(
        &self,
        disks: Vec<usize>,
        _applied: AppliedRecord,
        turn: Turn,
    ) -> StateFuture<'_, Result<Vec<ShipResult>, MetaError>> {
        Box::pin(async move {
            let _turn = turn;
            let bytes = Bytes::from(state_file::encode(&self.map.read().clone()));
            let mut results = Vec::with_capacity(disks.len());
            for index in disks {
                let written = self.write(index, bytes.clone()).await;
                results.push((index, written.map_err(MetaError::Disk)));
            }
            Ok(results)
        })
    }

    fn export(
        &self,
        _applied: AppliedRecord,
        turn: Turn,
    ) -> StateFuture<'_, Result<Exported, MetaError>> {
        Box::pin(async move {
            let bytes = Bytes::from(state_file::encode(&self.map.read().clone()));
            // Read from the file: it may have more applied than at the time of the request.
            let applied = state_file::decode(&bytes)?.applied;
            Ok(Exported::of_snapshot(
                self.disks.volume,
                applied,
                bytes,
                turn,
            ))
        })
    }

    fn disk(&self) -> usize {
        self.index
    }
}

struct MemoryCursor {
    map: Arc<Map>,
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
}

impl StateCursor for MemoryCursor {
    fn next(&mut self) -> Result<Option<Pair<'_>>, MetaError> {
        let starts_past_end = match &self.from {
            Bound::Included(key) | Bound::Excluded(key) => *key >= self.to,
            Bound::Unbounded => false,
        };
        if starts_past_end {
            return Ok(None);
        }
        let range = (self.from.clone(), Bound::Excluded(self.to.clone()));
        let Some((key, value)) = self.map.range::<Vec<u8>, _>(range).next() else {
            return Ok(None);
        };
        self.from = Bound::Excluded(key.clone());
        Ok(Some((key, value)))
    }
}
