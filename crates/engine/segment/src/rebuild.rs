//! Rebuild of shards whose file is missing or too short on a working disk.
//!
//! Owns: computing a whole shard from the others, and the number of parallel rebuilds. Must not know: how the loss was
//! found. Every unit of a stripe has one place in all shards, so a shard is computed from the others byte by byte.
//! Stripes matter only to its footer, and the other shards have it, too.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::DiskError;
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, crc32c};
use cairn_formats::pointer::BLOCK_BYTES;
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, Copied, HiddenId, ShardError, ShardErrorKind, ShardFooter, ShardName,
    ShardService, ShardStat, ShardWrite, TRAILER_LEN_BYTES,
};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesOrdered;

use crate::life::Segment;
use crate::pace::Pace;
use crate::read::decode;
use crate::store::{SegmentStore, count};

/// Parallel rebuilds of shards; further shards wait to be found again.
pub(crate) const REBUILDS_MAX: usize = 1;
/// Pause before another try after a failed rebuild.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Bytes of a shard computed at a time.
const PART_BYTES: u64 = 1 << 20;
/// Parallel parts.
const PARTS_MAX: usize = 4;

const _: () = assert!(PART_BYTES.is_multiple_of(CHECKSUM_UNIT_BYTES));

#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error("{good} of the {needed} other shards that it takes are good at byte {offset}")]
    TooFew {
        good: usize,
        needed: usize,
        offset: u64,
    },
    /// Also if a faulted disk may have the bytes that would be given up.
    #[error("no shard of the segment says what it should hold")]
    Unsealed,
    #[error("the segment is removed")]
    Removed,
}

/// Another shard of the segment, with its footer if it was sealed.
pub(crate) struct Source {
    index: u8,
    name: ShardName,
    disk: Arc<dyn ShardService>,
    file_len_bytes: u64,
    footer: Option<ShardFooter>,
}

/// The inputs of a shard that is made.
pub(crate) struct Fill<'a> {
    pub index: u8,
    pub sources: &'a [Source],
    /// The shard itself, at its old place.
    pub own: Option<&'a Source>,
    /// Whether to go on past unrecoverable bytes; otherwise they are an error.
    pub keep_what_is_left: bool,
}

/// The new shard.
#[derive(Clone, Copy)]
struct Target<'a> {
    disk: &'a dyn ShardService,
    hidden: HiddenId,
}

/// Result for a piece of a shard.
enum Piece {
    Good(Bytes),
    /// The old bytes of the shard, wrong or not verifiable; zeros where its disk cannot read them.
    Left(Bytes),
}

impl Fill<'_> {
    /// Whether any shard has a footer, which says what the shards should hold.
    fn is_vouched(&self) -> bool {
        let mut all = self.own.iter().copied().chain(self.sources);
        all.any(Source::has_footer)
    }

    /// Whether the shard's own bytes may count as the written ones, if they agree with its footer where it has one. A
    /// shard without a footer may not if others have theirs: the copy then gets a footer, which says that its bytes are
    /// right.
    fn is_own_trusted(&self) -> bool {
        self.own.is_some_and(Source::has_footer) || !self.is_vouched()
    }

    /// Whether there are enough shards to compute this one, but too few with footers: a crash came during sealing.
    fn is_half_sealed(&self, needed: usize) -> bool {
        let sealed = self.sources.iter().filter(|source| source.has_footer());
        let is_own_sealed = self.own.is_some_and(Source::has_footer);
        !is_own_sealed && sealed.count() < needed && self.sources.len() >= needed
    }
}

impl SegmentStore {
    /// Rebuilds a shard whose file is missing, or shorter than `len_bytes_min`, in the background, unless a rebuild is
    /// in progress or failed recently.
    pub(crate) fn start_rebuild(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        index: u8,
        len_bytes_min: u64,
    ) {
        // Without parity there is no source; the shards of an open segment exist.
        if segment.code.parity() == 0 || segment.is_open() || segment.is_removed() {
            return;
        }
        if self.is_read_only(segment.volume) {
            return;
        }
        let Some(turn) = self.rebuilds.begin() else {
            return;
        };
        if !segment.begin_rebuild(index, self.env.clock.monotonic()) {
            return;
        }
        let (store, segment) = (self.clone(), segment.clone());
        let task = async move {
            store.rebuild_and_tell(&segment, index, len_bytes_min).await;
            drop(turn);
        };
        self.env.spawner.spawn("shard rebuild", Box::pin(task));
    }

    /// Rebuilds a shard whose file is missing, or shorter than `len_bytes_min`, and waits for it. Returns whether the
    /// shard exists now.
    pub(crate) async fn rebuild_now(
        &self,
        segment: &Segment,
        index: u8,
        len_bytes_min: u64,
    ) -> bool {
        if segment.code.parity() == 0 || segment.is_open() || segment.is_removed() {
            return false;
        }
        segment.begin_rebuild(index, self.env.clock.monotonic())
            && self.rebuild_and_tell(segment, index, len_bytes_min).await
    }

    async fn rebuild_and_tell(&self, segment: &Segment, index: u8, len_bytes_min: u64) -> bool {
        let store = self;
        let result = store.rebuild(segment, index, len_bytes_min).await;
        let mut retry_at = None;
        let done = matches!(result, Ok(true));
        {
            match result {
                Ok(false) => {}
                Ok(true) => {
                    count(&store.counters.rebuilds, 1);
                    tracing::info!(volume = %segment.volume, segment = %segment.id, shard = index, "a shard that was gone or cut short is rebuilt");
                }
                Err(error) => {
                    if let RebuildError::Shard(error) = &error {
                        store.note_fenced(error);
                    }
                    count(&store.counters.rebuilds_failed, 1);
                    tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = index, %error, "a shard is gone or cut short and could not be rebuilt");
                    retry_at = Some(store.env.clock.monotonic() + RETRY_AFTER);
                }
            }
        }
        segment.end_rebuild(index, retry_at);
        done
    }

    /// False if no rebuild is needed.
    async fn rebuild(
        &self,
        segment: &Segment,
        index: u8,
        len_bytes_min: u64,
    ) -> Result<bool, RebuildError> {
        let disk = segment.disk_of(index);
        let Some(disk) = disk.and_then(|disk| self.healthy_disk(disk)) else {
            return Ok(false);
        };
        if segment.is_removed() || segment.is_open() {
            return Ok(false);
        }
        let name = segment.shard_name(index);
        let short_len_bytes = match disk.stat(name).await {
            Ok(stat) if stat.file_len_bytes < len_bytes_min => Some(stat.file_len_bytes),
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ShardErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let sources = self.rebuild_sources(segment, index).await;
        // A reader beyond its end may be wrong, and would cause rebuild after rebuild.
        let footer = sources.iter().find_map(|source| source.footer.as_ref());
        let is_whole = |footer: &ShardFooter, len_bytes: u64| {
            let data_end = footer
                .data_len_bytes
                .next_multiple_of(u64::from(BLOCK_BYTES));
            len_bytes >= data_end + TRAILER_LEN_BYTES as u64
        };
        if let (Some(footer), Some(len_bytes)) = (footer, short_len_bytes)
            && is_whole(footer, len_bytes)
        {
            return Ok(false);
        }
        let fill = Fill {
            index,
            sources: &sources,
            own: None,
            keep_what_is_left: false,
        };
        let hidden = match self.rebuild_on(segment, &fill, &*disk, None).await {
            Ok((hidden, _)) => hidden,
            Err(RebuildError::Removed) => return Ok(false),
            Err(error) => return Err(error),
        };
        // Not earlier: a removal should not wait for a whole shard. From here on the removal finds the shard, and
        // deletes it.
        let _writing = segment.gate.read().await;
        if segment.is_removed() || segment.disk_of(index) != Some(disk.id()) {
            let _ = disk.discard(segment.epoch, hidden).await;
            return Ok(false);
        }
        // Removes a shard that is too short. Not earlier: until the new one is complete, the rest of it may be needed.
        if let Err(error) = disk.remove(segment.epoch, name).await {
            let _ = disk.discard(segment.epoch, hidden).await;
            return Err(error.into());
        }
        disk.publish(segment.epoch, hidden).await?;
        Ok(true)
    }

    /// The other shards that can be opened now.
    pub(crate) async fn rebuild_sources(&self, segment: &Segment, index: u8) -> Vec<Source> {
        let mut sources = Vec::new();
        for other in (0..segment.code.total()).filter(|other| *other != index) {
            sources.extend(self.rebuild_source(segment, other).await.ok().flatten());
        }
        sources
    }

    /// A shard with its footer; `None` if its disk is away or has no such file. An error tells nothing about the
    /// contents of the disk: a retry may succeed.
    pub(crate) async fn rebuild_source(
        &self,
        segment: &Segment,
        index: u8,
    ) -> Result<Option<Source>, ShardError> {
        let disk = segment.disk_of(index);
        let Some(disk) = disk.and_then(|disk| self.healthy_disk(disk)) else {
            return Ok(None);
        };
        let name = segment.shard_name(index);
        let stat = match disk.stat(name).await {
            Ok(stat) => stat,
            Err(error) if error.kind() == ShardErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let file_len_bytes = stat.file_len_bytes;
        let footer = footer_of(&*disk, name, stat).await?;
        Ok(Some(Source {
            index,
            name,
            disk,
            file_len_bytes,
            footer,
        }))
    }

    /// The shard itself, at its old place. If its disk failed to open it a moment ago, this tries once more. `None`
    /// only if the disk otherwise works and the shard does not open, or if the disk is missing or faulted. If only the
    /// footer is unreadable, the shard counts as one without a footer, and its bytes are kept.
    pub(crate) async fn own_source(
        &self,
        segment: &Segment,
        index: u8,
    ) -> Result<Option<Source>, ShardError> {
        let error = match self.rebuild_source(segment, index).await {
            Ok(source) => return Ok(source),
            Err(error) => error,
        };
        let disk = segment.disk_of(index);
        let Some(disk) = disk.and_then(|disk| self.healthy_disk(disk)) else {
            return Err(error);
        };
        disk.probe().await?;
        let name = segment.shard_name(index);
        let stat = match disk.stat(name).await {
            Ok(stat) => stat,
            Err(error @ ShardError::Disk(DiskError::NoDescriptor { .. })) => return Err(error),
            Err(error) if disk.is_avoided() => return Err(error),
            Err(_) => return Ok(None),
        };
        let file_len_bytes = stat.file_len_bytes;
        let footer = match footer_of(&*disk, name, stat).await {
            Err(error) if disk.is_avoided() => return Err(error),
            footer => footer.unwrap_or(None),
        };
        Ok(Some(Source {
            index,
            name,
            disk,
            file_len_bytes,
            footer,
        }))
    }

    /// Makes the shard on `disk`, hidden. Also returns the number of unrecoverable bytes, which is 0 unless `fill`
    /// keeps what is left. After an error nothing of it remains.
    pub(crate) async fn rebuild_on(
        &self,
        segment: &Segment,
        fill: &Fill<'_>,
        disk: &dyn ShardService,
        pace: Option<&Pace>,
    ) -> Result<(HiddenId, u64), RebuildError> {
        let name = segment.shard_name(fill.index);
        let mut footers = fill.own.iter().copied().chain(fill.sources);
        let footer = footers.find_map(|source| source.footer.as_ref());
        // A shard computed from unverified bytes may be wrong, and could not help any more to find that out. The shard
        // itself may be copied unchanged: its records have checksums.
        if footer.is_none() && fill.own.is_none() {
            return Err(RebuildError::Unsealed);
        }
        let hidden = disk
            .create_hidden(
                segment.epoch,
                name,
                segment.shard_len_bytes,
                // As for the choice of the disk: the metadata may need its last bytes.
                segment.shard_len_bytes,
            )
            .await?;
        let target = Target { disk, hidden };
        match self.fill(segment, fill, footer, target, pace).await {
            Ok(lost_bytes) => Ok((hidden, lost_bytes)),
            Err(error) => {
                let _ = disk.discard(segment.epoch, hidden).await;
                Err(error)
            }
        }
    }

    async fn fill(
        &self,
        segment: &Segment,
        fill: &Fill<'_>,
        footer: Option<&ShardFooter>,
        target: Target<'_>,
        pace: Option<&Pace>,
    ) -> Result<u64, RebuildError> {
        // Not sealed: a crash came first, and only the metadata knows which part of it is in use. The crash may have
        // lost the length of the file. Of a single copy nothing beyond that length was acknowledged, so nothing is lost
        // with it. Other shards may have bytes that this disk missed: such a segment is rewritten.
        let block_bytes = u64::from(BLOCK_BYTES);
        let own_blocks = fill.own.map_or(0, |own| own.file_len_bytes / block_bytes);
        let len_bytes = match footer {
            Some(footer) => footer.data_len_bytes.next_multiple_of(block_bytes),
            None if segment.code.parity() == 0 => {
                segment.shard_len_bytes.min(own_blocks * block_bytes)
            }
            None => segment.shard_len_bytes,
        };
        let mut checksums = Vec::new();
        let mut lost_bytes = 0;
        let mut start = 0;
        let mut parts = FuturesOrdered::new();
        loop {
            // Reads and writes overlap, so that no disk is idle.
            while start < len_bytes && parts.len() < PARTS_MAX {
                let end = (start + PART_BYTES).min(len_bytes);
                parts.push_back(self.fill_and_write(segment, fill, start..end, target, pace));
                start = end;
            }
            let Some(part) = parts.next().await else {
                break;
            };
            let (sums, lost) = part?;
            checksums.extend(sums);
            lost_bytes += lost;
        }
        drop(parts);
        if let Some(footer) = footer.filter(|_| !planted::is(Bug::MovedShardWithoutFooter)) {
            let footer = ShardFooter {
                name: target.hidden.name,
                checksums,
                ..footer.clone()
            };
            let Target { disk, hidden } = target;
            disk.seal_hidden(segment.epoch, hidden, footer).await?;
        }
        Ok(lost_bytes)
    }

    /// Returns the checksums of the written bytes, and the number of unrecoverable bytes.
    async fn fill_and_write(
        &self,
        segment: &Segment,
        fill: &Fill<'_>,
        range: Range<u64>,
        target: Target<'_>,
        pace: Option<&Pace>,
    ) -> Result<(Vec<u32>, u64), RebuildError> {
        let _turn = match pace {
            Some(pace) => Some(pace.spend(range.end - range.start).await),
            None => None,
        };
        if segment.is_removed() {
            return Err(RebuildError::Removed);
        }
        let start = range.start;
        let Target { disk, hidden } = target;
        if let Some(own) = fill.own.filter(|_| fill.is_own_trusted()) {
            let known = own.checksums_from(start);
            let copied = disk.copy_from(segment.epoch, hidden, &*own.disk, range.clone(), known);
            if let Copied::Whole(checksums) = copied.await? {
                return Ok((checksums, 0));
            }
        }
        let rebuilt = self
            .rebuild_part(segment, fill.index, fill.sources, range.clone())
            .await;
        let (part, checksums, lost_bytes) = match rebuilt {
            Ok(part) => {
                let checksums = part.chunks(CHECKSUM_UNIT_BYTES as usize).map(crc32c);
                let checksums = checksums.collect();
                (part, checksums, 0)
            }
            // The records can provide them, but not this rebuild.
            Err(RebuildError::TooFew { needed, .. })
                if segment.code.parity() > 0
                    && (!fill.is_vouched() || fill.is_half_sealed(needed)) =>
            {
                return Err(RebuildError::Unsealed);
            }
            Err(RebuildError::TooFew { .. }) if fill.keep_what_is_left => {
                self.fill_what_is_left(segment, fill, range).await?
            }
            Err(error) => return Err(error),
        };
        let write = ShardWrite {
            offset: start,
            parts: vec![part],
        };
        disk.fill(segment.epoch, hidden, write).await?;
        Ok((checksums, lost_bytes))
    }

    /// Fills a part of the shard that neither its old place nor the other shards provide, piece by piece. A piece that
    /// cannot be recovered keeps the old bytes of the shard, even if they are wrong: most records of a piece with a
    /// wrong bit are right, and have checksums of their own. Its checksum does not match these bytes, so that they do
    /// not count as the written ones. It is the checksum of the written bytes, if that is known, so that they can be
    /// repaired if they are found later.
    ///
    /// Fails if a later try may recover a piece: the old shard would be deleted with it.
    async fn fill_what_is_left(
        &self,
        segment: &Segment,
        fill: &Fill<'_>,
        range: Range<u64>,
    ) -> Result<(Bytes, Vec<u32>, u64), RebuildError> {
        let mut part = AlignedBuf::zeroed((range.end - range.start) as usize);
        let mut checksums = Vec::new();
        let mut lost_bytes = 0;
        let mut start = range.start;
        while start < range.end {
            let end = (start + CHECKSUM_UNIT_BYTES).min(range.end);
            let into = (start - range.start) as usize..(end - range.start) as usize;
            match self.fill_piece(segment, fill, start..end).await? {
                Piece::Good(piece) => {
                    checksums.push(crc32c(&piece));
                    part[into].copy_from_slice(&piece);
                }
                Piece::Left(piece) => {
                    let held = crc32c(&piece);
                    let known = fill.own.and_then(|own| own.checksum_at(start));
                    checksums.push(known.filter(|known| *known != held).unwrap_or(!held));
                    part[into].copy_from_slice(&piece);
                    lost_bytes += end - start;
                }
            }
            start = end;
        }
        Ok((part.freeze(), checksums, lost_bytes))
    }

    /// One piece of the shard. It is lost only if all disks that it could come from work, or are gone. Bytes on a
    /// faulted disk are left to the readers of the records.
    async fn fill_piece(
        &self,
        segment: &Segment,
        fill: &Fill<'_>,
        range: Range<u64>,
    ) -> Result<Piece, RebuildError> {
        let own = match fill.own {
            Some(own) => own.read_good(range.clone()).await,
            None => Ok(None),
        };
        if fill.is_own_trusted()
            && let Ok(Some(bytes)) = own
        {
            return Ok(Piece::Good(bytes));
        }
        let rebuilt = self.rebuild_part(segment, fill.index, fill.sources, range.clone());
        let too_few = match rebuilt.await {
            Ok(bytes) => return Ok(Piece::Good(bytes)),
            Err(error) => error,
        };
        let is_there = |source: &Source| {
            let disk = segment.disk_of(source.index);
            disk.is_some_and(|disk| self.healthy_disk(disk).is_some())
        };
        if !fill.sources.iter().all(is_there) {
            return Err(too_few);
        }
        if let Some(bytes) = self
            .rebuild_piece_again(segment, fill, range.clone())
            .await?
        {
            return Ok(Piece::Good(bytes));
        }
        if self.is_own_away(segment, fill) {
            return Err(RebuildError::Unsealed);
        }
        let Some(source) = fill.own else {
            let len = (range.end - range.start) as usize;
            return Ok(Piece::Left(AlignedBuf::zeroed(len).freeze()));
        };
        let own = match own {
            Err(error) => {
                let again = self.read_again(segment, source, range.clone(), error);
                again.await?
            }
            Ok(own) => own,
        };
        let (bytes, is_whole) = match own {
            Some(bytes) => (bytes, true),
            None => self.read_blocks(segment, source, range.clone()).await?,
        };
        let is_good = fill.is_own_trusted() && is_whole && source.is_good(range.start, &bytes);
        Ok(match is_good {
            true => Piece::Good(bytes),
            false => Piece::Left(bytes),
        })
    }

    /// The bytes of a piece that the disk can read, block by block, with zeros for the others, and whether it read all
    /// of them. Fails unless the disk otherwise works.
    async fn read_blocks(
        &self,
        segment: &Segment,
        source: &Source,
        range: Range<u64>,
    ) -> Result<(Bytes, bool), RebuildError> {
        let mut piece = AlignedBuf::zeroed((range.end - range.start) as usize);
        let mut is_whole = true;
        let starts = (range.start..).step_by(BLOCK_BYTES as usize);
        for (start, into) in starts.zip(piece.chunks_mut(BLOCK_BYTES as usize)) {
            match source.disk.read(source.name, start, into.len()).await {
                Ok(bytes) => into.copy_from_slice(&bytes),
                Err(error) => {
                    is_whole = false;
                    // The probe also keeps consecutive bad blocks from faulting the disk.
                    self.probe_for(segment, source, error).await?;
                }
            }
        }
        Ok((piece.freeze(), is_whole))
    }

    /// Tries a piece once more from the other shards, if too few of them were good. A piece that its disk failed to
    /// read is lost only if the disk fails again and otherwise works. `None` if it is lost.
    async fn rebuild_piece_again(
        &self,
        segment: &Segment,
        fill: &Fill<'_>,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, RebuildError> {
        let needed = usize::from(segment.code.data());
        let mut present: Vec<(u8, Bytes)> = Vec::with_capacity(needed);
        for source in fill.sources.iter().filter(|source| source.has_footer()) {
            let read = match source.read_good(range.clone()).await {
                Err(error) => {
                    let again = self.read_again(segment, source, range.clone(), error);
                    again.await?
                }
                Ok(read) => read,
            };
            present.extend(read.map(|bytes| (source.index, bytes)));
            if present.len() == needed {
                let len = (range.end - range.start) as usize;
                let units = decode(segment, &present, &[fill.index], len);
                return Ok(units.and_then(|mut units| units.pop()));
            }
        }
        Ok(None)
    }

    /// Whether the shard itself is skipped because its disk, which still belongs to the pool, is faulted or missing:
    /// the disk may come back with the only copy of some bytes.
    fn is_own_away(&self, segment: &Segment, fill: &Fill<'_>) -> bool {
        let Some(id) = segment.disk_of(fill.index) else {
            return false;
        };
        let members = self.members();
        let is_away = match members.disk(id) {
            Some(disk) => disk.is_avoided() || self.unfenced.has(id),
            None => members.missing().contains(&id),
        };
        fill.own.is_none() && is_away
    }

    /// A second read of a piece after an error. Fails unless the disk otherwise works: while it hangs or fails as a
    /// whole, nothing on it counts as lost.
    async fn read_again(
        &self,
        segment: &Segment,
        source: &Source,
        range: Range<u64>,
        error: ShardError,
    ) -> Result<Option<Bytes>, RebuildError> {
        let disk = self.probe_for(segment, source, error).await?;
        match source.read_good(range).await {
            Err(error) if disk.is_avoided() => Err(error.into()),
            read => Ok(read.unwrap_or(None)),
        }
    }

    /// The disk of a shard that returned `error`, if it otherwise works; fails if it does not.
    async fn probe_for(
        &self,
        segment: &Segment,
        source: &Source,
        error: ShardError,
    ) -> Result<Arc<dyn ShardService>, RebuildError> {
        let disk = segment.disk_of(source.index);
        let disk = disk.and_then(|disk| self.healthy_disk(disk));
        let disk = match disk {
            Some(disk) if error.kind() != ShardErrorKind::NotFound => disk,
            _ => return Err(error.into()),
        };
        disk.probe().await?;
        Ok(disk)
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
        // A shard without a footer had a failed write: its contents are unknown.
        let vouched: Vec<&Source> = sources
            .iter()
            .filter(|source| source.footer.is_some())
            .collect();
        let mut rest = vouched.as_slice();
        while present.len() < needed && !rest.is_empty() {
            let (next, later) = rest.split_at(rest.len().min(needed - present.len()));
            rest = later;
            let reads = next.iter().map(|source| source.read_good(range.clone()));
            for (source, read) in next.iter().zip(join_all(reads).await) {
                match read {
                    Ok(Some(bytes)) => present.push((source.index, bytes)),
                    Err(_) if planted::is(Bug::RebuildTakesZeros) => {
                        present.push((source.index, AlignedBuf::zeroed(len).freeze()));
                    }
                    _ => {}
                }
            }
        }
        if planted::is(Bug::RebuildTakesNeighbour)
            && let Some((_, bytes)) = present.first().filter(|_| present.len() >= needed)
        {
            return Ok(bytes.clone());
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

/// The footer of a shard, if it was sealed. A corrupt footer counts as none: records have checksums of their own.
async fn footer_of(
    disk: &dyn ShardService,
    name: ShardName,
    stat: ShardStat,
) -> Result<Option<ShardFooter>, ShardError> {
    let mut footer = stat.footer;
    if is_damaged(&footer) {
        // The footer may have been corrupted in transit.
        footer = disk.stat(name).await?.footer;
    }
    if is_damaged(&footer) {
        return Ok(None);
    }
    footer
}

fn is_damaged(footer: &Result<Option<ShardFooter>, ShardError>) -> bool {
    matches!(footer, Err(error) if error.kind() == ShardErrorKind::Damaged)
}

impl Source {
    pub(crate) fn footer(&self) -> Option<&ShardFooter> {
        self.footer.as_ref()
    }

    pub(crate) fn has_footer(&self) -> bool {
        self.footer.is_some()
    }

    /// Checksum in the footer for the piece that begins at `offset`.
    fn checksum_at(&self, offset: u64) -> Option<u32> {
        let index = usize::try_from(offset / CHECKSUM_UNIT_BYTES).ok()?;
        self.footer.as_ref()?.checksums.get(index).copied()
    }

    /// Checksums in the footer for the pieces from `start` on; none without a footer.
    fn checksums_from(&self, start: u64) -> &[u32] {
        let skipped = (start / CHECKSUM_UNIT_BYTES) as usize;
        let known = self.footer.as_ref();
        known.map_or(&[], |footer| footer.checksums.get(skipped..).unwrap_or(&[]))
    }

    /// Bytes `range` of this shard; `None` if they do not match its footer, if it has one.
    async fn read_good(&self, range: Range<u64>) -> Result<Option<Bytes>, ShardError> {
        let known = self.checksums_from(range.start);
        let read = self.disk.read_checked(self.name, range, known).await?;
        Ok(read.damaged.is_empty().then_some(read.bytes))
    }

    /// Whether bytes of this shard match its footer, if it has one.
    fn is_good(&self, start: u64, bytes: &[u8]) -> bool {
        let known = self.checksums_from(start);
        let chunks = bytes.chunks(CHECKSUM_UNIT_BYTES as usize);
        chunks
            .zip(known)
            .all(|(chunk, known)| crc32c(chunk) == *known)
    }
}
