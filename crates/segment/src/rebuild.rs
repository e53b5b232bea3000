//! Rebuild of shards whose file is gone from a disk that is fine.
//!
//! Owns: how a whole shard is computed from the others, and how many at a time.
//! Must not know: how it was found missing.
//! Every unit of a row is at the same place in its shard, so a shard is computed from the others byte
//! by byte; rows matter only to its footer, which the others have, too.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::crc32c;
use cairn_shard::{CHECKSUM_UNIT_BYTES, Shard, ShardDisk, ShardError, ShardErrorKind, ShardFooter};
use futures_util::future::join_all;

use crate::pointer::BLOCK_BYTES;
use crate::read::decode;
use crate::store::{SegmentStore, count};
use crate::volume::Segment;

/// Shards rebuilt at a time; others wait to be found again.
pub(crate) const REBUILDS_MAX: usize = 1;
/// A rebuild that failed is not tried again for so long.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Bytes of a shard computed at a time.
const PART_BYTES: u64 = 1 << 20;

const _: () = assert!(PART_BYTES.is_multiple_of(CHECKSUM_UNIT_BYTES));

#[derive(Debug, thiserror::Error)]
enum RebuildError {
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error("{good} of the {needed} other shards that it takes are good at byte {offset}")]
    TooFew {
        good: usize,
        needed: usize,
        offset: u64,
    },
}

/// Another shard of the segment, with its footer if it was sealed.
struct Source {
    index: u8,
    shard: Arc<Shard>,
    footer: Option<ShardFooter>,
}

impl SegmentStore {
    /// Rebuilds a shard in the background, unless that is under way or failed a moment ago.
    pub(crate) fn start_rebuild(self: &Arc<Self>, segment: &Arc<Segment>, index: u8) {
        // Without parity there is nothing to compute it from; an open segment has its files.
        if segment.code.parity() == 0 || segment.is_open() || segment.is_removed() {
            return;
        }
        let Ok(permit) = self.rebuilds.clone().try_acquire_owned() else {
            return;
        };
        if !segment.begin_rebuild(index, self.env.clock.monotonic()) {
            return;
        }
        let (store, segment) = (self.clone(), segment.clone());
        let task = async move {
            let result = store.rebuild(&segment, index).await;
            let mut retry_at = None;
            match result {
                Ok(false) => {}
                Ok(true) => {
                    count(&store.counters.rebuilds, 1);
                    tracing::info!(volume = %segment.volume, segment = %segment.id, shard = index, "a shard that was gone is rebuilt");
                }
                Err(error) => {
                    count(&store.counters.rebuilds_failed, 1);
                    tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = index, %error, "a shard is gone and could not be rebuilt");
                    retry_at = Some(store.env.clock.monotonic() + RETRY_AFTER);
                }
            }
            segment.end_rebuild(index, retry_at);
            drop(permit);
        };
        self.env.spawner.spawn("shard rebuild", Box::pin(task));
    }

    /// False if there is nothing to be rebuilt.
    async fn rebuild(&self, segment: &Segment, index: u8) -> Result<bool, RebuildError> {
        // Held to the end: a removal meanwhile must find the shard, and delete it.
        let _writing = segment.gate.read().await;
        let disk = segment.disks.get(usize::from(index));
        let Some(disk) = disk.and_then(|disk| self.healthy_disk(*disk)) else {
            return Ok(false);
        };
        if segment.is_removed() || segment.is_open() {
            return Ok(false);
        }
        match disk.open_shard(segment.shard_name(index)).await {
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ShardErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let sources = self.rebuild_sources(segment, index).await;
        self.rebuild_on(segment, index, disk, &sources).await?;
        Ok(true)
    }

    async fn rebuild_sources(&self, segment: &Segment, index: u8) -> Vec<Source> {
        let mut sources = Vec::new();
        for (other, disk) in (0..).zip(&segment.disks) {
            let Some(disk) = self.healthy_disk(*disk).filter(|_| other != index) else {
                continue;
            };
            let Ok(shard) = disk.open_shard(segment.shard_name(other)).await else {
                continue;
            };
            // A damaged footer is as good as none: records have checksums of their own.
            let footer = shard.read_footer().await.ok().flatten();
            sources.push(Source {
                index: other,
                shard,
                footer,
            });
        }
        sources
    }

    async fn rebuild_on(
        &self,
        segment: &Segment,
        index: u8,
        disk: &ShardDisk,
        sources: &[Source],
    ) -> Result<(), RebuildError> {
        let name = segment.shard_name(index);
        let footer = sources.iter().find_map(|source| source.footer.as_ref());
        // Not sealed: a crash came first, and which part of it is in use only the metadata knows.
        let len_bytes = footer.map_or(segment.shard_len_bytes, |footer| footer.data_len_bytes);
        let len_bytes = len_bytes.next_multiple_of(u64::from(BLOCK_BYTES));
        let hidden = disk.create_hidden(name, segment.shard_len_bytes).await?;
        let mut checksums = Vec::new();
        let mut start = 0;
        while start < len_bytes {
            let end = (start + PART_BYTES).min(len_bytes);
            let part = self
                .rebuild_part(segment, index, sources, start..end)
                .await?;
            checksums.extend(part.chunks(CHECKSUM_UNIT_BYTES as usize).map(crc32c));
            hidden.shard().write_at(start, vec![part]).await?;
            start = end;
        }
        if let Some(footer) = footer {
            let footer = ShardFooter {
                name,
                checksums,
                ..footer.clone()
            };
            hidden.shard().seal(footer).await?;
        }
        disk.publish(hidden).await?;
        Ok(())
    }

    /// Bytes `range` of a shard, computed from the first N others that read well.
    async fn rebuild_part(
        &self,
        segment: &Segment,
        index: u8,
        sources: &[Source],
        range: Range<u64>,
    ) -> Result<Bytes, RebuildError> {
        let needed = usize::from(segment.code.data());
        let len = (range.end - range.start) as usize;
        let mut present: Vec<(u8, Bytes)> = Vec::with_capacity(needed);
        let mut rest = sources;
        while present.len() < needed && !rest.is_empty() {
            let (next, later) = rest.split_at(rest.len().min(needed - present.len()));
            rest = later;
            let reads = next
                .iter()
                .map(|source| source.shard.read_at(range.start, len));
            for (source, read) in next.iter().zip(join_all(reads).await) {
                match read {
                    Ok(bytes) if source.is_good(range.start, &bytes) => {
                        present.push((source.index, bytes));
                    }
                    _ => {}
                }
            }
        }
        let good = present.len();
        let units = (good >= needed).then(|| decode(segment, &present, &[index], len));
        units
            .flatten()
            .and_then(|mut units| units.pop())
            .ok_or(RebuildError::TooFew {
                good,
                needed,
                offset: range.start,
            })
    }
}

impl Source {
    /// Whether bytes of this shard are what its footer says, if it has one.
    fn is_good(&self, start: u64, bytes: &[u8]) -> bool {
        let Some(footer) = &self.footer else {
            return true;
        };
        let known = footer
            .checksums
            .iter()
            .skip((start / CHECKSUM_UNIT_BYTES) as usize);
        let chunks = bytes.chunks(CHECKSUM_UNIT_BYTES as usize);
        chunks
            .zip(known)
            .all(|(chunk, known)| crc32c(chunk) == *known)
    }
}
