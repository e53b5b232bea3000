//! The state as an ordered map in memory, kept as one checked snapshot file on each disk.
//!
//! Owns: the snapshot file. Must not know: keys. For disks that are no folder of the host, as in
//! tests and simulations, where RocksDB has nowhere to be.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::crc32c;
use cairn_base::disk::{DiskError, OpenMode};
use parking_lot::RwLock;

use super::{Pair, ShipResult, StateCursor, StateFuture, StateKey, StateStore};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::keys::Key;
use crate::records::{AppliedRecord, Fields, RecordError};

const MAGIC: [u8; 8] = *b"CAIRNMEM";
const VERSION: u32 = 1;

type Map = BTreeMap<Vec<u8>, Bytes>;

/// What a snapshot file holds.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub applied: AppliedRecord,
    map: Map,
}

struct MemoryState {
    disks: DiskSet,
    index: usize,
    /// Shared with cursors, which see it as it was when they were made.
    map: RwLock<Arc<Map>>,
}

pub(super) fn open(disks: &DiskSet, index: usize, snapshot: Snapshot) -> Arc<dyn StateStore> {
    Arc::new(MemoryState {
        disks: disks.clone(),
        index,
        map: RwLock::new(Arc::new(snapshot.map)),
    })
}

#[cfg(test)]
pub(super) fn empty() -> impl StateStore {
    MemoryState {
        disks: DiskSet::new(cairn_base::VolumeId(1), Vec::new()),
        index: 0,
        map: RwLock::default(),
    }
}

/// The snapshot on a disk, if there is a whole one.
pub(super) async fn discover(disks: &DiskSet, index: usize) -> Option<Snapshot> {
    let disk = &disks.get(index).disk;
    let name = snapshot_name(disks);
    let file = disk.open(&name, OpenMode::Existing).await.ok()?;
    let bytes = file.read_at(0, file.len_bytes() as usize).await.ok()?;
    match decode(&bytes) {
        Ok(snapshot) => Some(snapshot),
        Err(error) => {
            tracing::warn!(disk = disk.label(), "unreadable {name}: {error}");
            None
        }
    }
}

fn snapshot_name(disks: &DiskSet) -> String {
    format!("{}/state.snapshot", disks.folder())
}

fn encode(map: &Map) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&(map.len() as u64).to_be_bytes());
    for (key, value) in map {
        out.extend_from_slice(&(key.len() as u32).to_be_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

fn decode(bytes: &[u8]) -> Result<Snapshot, RecordError> {
    let mut fields = Fields::unversioned("state snapshot", bytes);
    let (body, crc) = bytes
        .split_last_chunk::<4>()
        .ok_or(fields.malformed("crc"))?;
    if crc32c(body) != u32::from_be_bytes(*crc) {
        return Err(fields.malformed("crc"));
    }
    fields.rest = body;
    if fields.array::<8>("magic")? != MAGIC {
        return Err(fields.malformed("magic"));
    }
    let version = fields.u32("version")?;
    if version != VERSION {
        return Err(RecordError::Version {
            record: "state snapshot",
            version: version.min(255) as u8,
        });
    }
    let count = fields.u64("count")?;
    let mut map = Map::new();
    for _ in 0..count {
        let key_len = fields.u32("key")? as usize;
        let value_len = fields.u32("value")? as usize;
        let key = fields.take(key_len, "key")?.to_vec();
        let value = Bytes::copy_from_slice(fields.take(value_len, "value")?);
        map.insert(key, value);
    }
    fields.end()?;
    let applied = match map.get(Key::applied().at(Default::default()).as_slice()) {
        Some(value) => AppliedRecord::decode(value)?,
        None => AppliedRecord::default(),
    };
    Ok(Snapshot { applied, map })
}

pub(super) fn decode_anything(bytes: &[u8]) {
    let _ = decode(bytes);
}

impl MemoryState {
    /// Replaces the snapshot on a disk: there always is a whole one.
    async fn write(&self, index: usize, bytes: Bytes) -> Result<(), DiskError> {
        let disk = &self.disks.get(index).disk;
        let name = snapshot_name(&self.disks);
        let temporary = format!("{name}.new");
        match disk.remove(&temporary).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = disk
            .open(&temporary, OpenMode::CreateNew { len_bytes: 0 })
            .await?;
        file.write_at(0, vec![bytes]).await?;
        file.sync().await?;
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
            let bytes = Bytes::from(encode(&self.map.read().clone()));
            let written = self.write(self.index, bytes).await;
            written.map_err(|error| MetaError::State(format!("writing the state: {error}")))
        })
    }

    fn ship(
        &self,
        disks: Vec<usize>,
        _applied: AppliedRecord,
    ) -> StateFuture<'_, Result<Vec<ShipResult>, MetaError>> {
        Box::pin(async move {
            let bytes = Bytes::from(encode(&self.map.read().clone()));
            let mut results = Vec::with_capacity(disks.len());
            for index in disks {
                let written = self.write(index, bytes.clone()).await;
                results.push((index, written.map_err(MetaError::Disk)));
            }
            Ok(results)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_read_back_or_refused() {
        let mut map = Map::new();
        map.insert(b"key".to_vec(), Bytes::from_static(b"value"));
        let applied = AppliedRecord {
            position: cairn_base::LogPosition(7),
            ..AppliedRecord::default()
        };
        let key = Key::applied().at(Default::default()).to_vec();
        map.insert(key, Bytes::from(applied.encode()));
        let bytes = encode(&map);
        let read = decode(&bytes).expect("decodes");
        assert_eq!((read.applied, read.map), (applied, map));
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 4;
            assert!(decode(&damaged).is_err(), "byte {index}");
            assert!(decode(&bytes[..index]).is_err(), "cut at {index}");
        }
    }
}
