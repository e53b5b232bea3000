//! Rebuild of shards whose file is gone from a disk that is fine, or ends too soon there.
//!
//! Owns: how a whole shard is computed from the others, and how many at a time.
//! Must not know: how it was found missing.
//! Every unit of a stripe is at the same place in its shard, so a shard is computed from the others byte
//! by byte; stripes matter only to its footer, which the others have, too.

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

/// Shards rebuilt at a time; others wait to be found again.
pub(crate) const REBUILDS_MAX: usize = 1;
/// A rebuild that failed is not tried again for so long.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Bytes of a shard computed at a time.
const PART_BYTES: u64 = 1 << 20;
/// Parts that are under way at a time.
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
    /// Also where a disk that failed may have what would be given up.
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

/// What a shard is made from.
pub(crate) struct Fill<'a> {
    pub index: u8,
    pub sources: &'a [Source],
    /// The shard itself, at the place that it leaves.
    pub own: Option<&'a Source>,
    /// Go on past bytes that cannot be had; else they are an error.
    pub keep_what_is_left: bool,
}

/// The shard that is being made.
#[derive(Clone, Copy)]
struct Target<'a> {
    disk: &'a dyn ShardService,
    hidden: HiddenId,
}

/// What became of a piece of a shard.
enum Piece {
    Good(Bytes),
    /// What the shard held, wrong or of which nothing says whether it is right; zeros where its disk gives nothing.
    Left(Bytes),
}

impl Fill<'_> {
    /// Whether a footer says what any of the shards should hold.
    fn is_vouched(&self) -> bool {
        let mut all = self.own.iter().copied().chain(self.sources);
        all.any(Source::has_footer)
    }

    /// Whether what the shard itself holds may be taken for what was written, once it agrees with its footer if it
    /// has one. Without one it may not where others have theirs: the copy gets a footer then, which says that its
    /// bytes are right.
    fn is_own_trusted(&self) -> bool {
        self.own.is_some_and(Source::has_footer) || !self.is_vouched()
    }

    /// Whether it is footers that are too few to compute the shard, and not shards: a crash came between them.
    fn is_half_sealed(&self, needed: usize) -> bool {
        let sealed = self.sources.iter().filter(|source| source.has_footer());
        let is_own_sealed = self.own.is_some_and(Source::has_footer);
        !is_own_sealed && sealed.count() < needed && self.sources.len() >= needed
    }
}

impl SegmentStore {
    /// Rebuilds a shard whose file is gone, or shorter than `len_bytes_min`, in the background, unless that is under
    /// way or failed a moment ago.
    pub(crate) fn start_rebuild(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        index: u8,
        len_bytes_min: u64,
    ) {
        // Without parity there is nothing to compute it from; an open segment has its files.
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

    /// Rebuilds a shard whose file is gone, or shorter than `len_bytes_min`, in the caller's time; whether it is
    /// there now.
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

    /// False if there is nothing to be rebuilt.
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
        // Whoever asked for bytes behind its end may be wrong, and would have it made anew again and again.
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
        // Not before: a removal should not wait for a whole shard. From here on it finds the shard, and
        // deletes it.
        let _writing = segment.gate.read().await;
        if segment.is_removed() || segment.disk_of(index) != Some(disk.id()) {
            let _ = disk.discard(segment.epoch, hidden).await;
            return Ok(false);
        }
        // One that is too short. Not before: until the new one is whole, what is left of it may be needed.
        if let Err(error) = disk.remove(segment.epoch, name).await {
            let _ = disk.discard(segment.epoch, hidden).await;
            return Err(error.into());
        }
        disk.publish(segment.epoch, hidden).await?;
        Ok(true)
    }

    /// The other shards, without those that cannot be opened now.
    pub(crate) async fn rebuild_sources(&self, segment: &Segment, index: u8) -> Vec<Source> {
        let mut sources = Vec::new();
        for other in (0..segment.code.total()).filter(|other| *other != index) {
            sources.extend(self.rebuild_source(segment, other).await.ok().flatten());
        }
        sources
    }

    /// A shard with its footer; `None` if its disk is away or has no such file. An error says nothing of what the
    /// disk has: it may well give it the next time.
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

    /// The shard itself, at the place that it leaves. What its disk did not give a moment ago is asked for once more:
    /// `None` only if the disk works otherwise and the shard does not open, or if the disk is away or has failed.
    /// One of which only the footer cannot be read is as one without: what it holds is kept.
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

    /// Makes the shard on `disk`, hidden; with it, how many of its bytes could not be had, which is none
    /// unless `fill` keeps what is left. After an error nothing of it is left.
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
        // What is computed from bytes that nothing vouches for would be wrong where they are, and no longer
        // be of use to find that out. As it is a shard may be copied; its records tell.
        if footer.is_none() && fill.own.is_none() {
            return Err(RebuildError::Unsealed);
        }
        let hidden = disk
            .create_hidden(
                segment.epoch,
                name,
                segment.shard_len_bytes,
                // As its choice does: the metadata may need the last bytes.
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
        // Not sealed: a crash came first, and which part of it is in use only the metadata knows. That may have taken the
        // length of the file; of a single copy nothing beyond its end was answered, so nothing is lost with it. Others
        // may have what its disk missed: such a segment is written anew.
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
            // Some are read while others are written: a disk that waits does nothing.
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

    /// Returns the checksums of what is written, and how many bytes could not be had.
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
            // It can be had from the records, which is not for here.
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

    /// Where a part of the shard can be had neither from its old place nor from the others: piece by piece, and for pieces that cannot be had what the shard
    /// held, also if it is wrong: most records of a piece with a wrong bit are right, and have checksums of their own.
    /// With a checksum that is not theirs, so that nobody takes them for what was written: that of what was written,
    /// if it is known, so that they can be made good should it be found after all.
    ///
    /// Fails if it may well be that a piece can be had later: the old shard would be deleted with it.
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

    /// One piece of the shard. That it is lost takes that all disks it could come from work, or are gone: what one
    /// that failed still gives is for those who read the records.
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

    /// What the disk gives of a piece, block by block, with zeros for what it does not; and whether it gave all.
    /// Fails unless the disk works otherwise.
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
                    // Also so that bad blocks in a row do not count as a disk that fails.
                    self.probe_for(segment, source, error).await?;
                }
            }
        }
        Ok((piece.freeze(), is_whole))
    }

    /// A piece for which too few of the other shards were good, from them once more: one that its disk did not give
    /// is lost only if it does not give it again, and works otherwise. `None` if it is lost.
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

    /// Whether the shard itself is not asked because its disk, which is still one of the pool's, has failed or is
    /// missing: it may come back with what is nowhere else.
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

    /// A piece that its disk did not give a moment ago. Fails unless the disk works otherwise: while it hangs or
    /// fails as a whole nothing on it is lost.
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

    /// The disk of a shard that gave `error`, if it works otherwise; else fails.
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
        // One without a footer had a write that failed: nobody knows what it holds.
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

/// The footer of a shard, if it was sealed. One that is damaged is as good as none: records have checksums of their
/// own.
async fn footer_of(
    disk: &dyn ShardService,
    name: ShardName,
    stat: ShardStat,
) -> Result<Option<ShardFooter>, ShardError> {
    let mut footer = stat.footer;
    if is_damaged(&footer) {
        // It may have been damaged on its way here.
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

    /// What the footer says of the piece that begins at `offset`.
    fn checksum_at(&self, offset: u64) -> Option<u32> {
        let index = usize::try_from(offset / CHECKSUM_UNIT_BYTES).ok()?;
        self.footer.as_ref()?.checksums.get(index).copied()
    }

    /// What the footer says of the pieces from `start` on; nothing without a footer.
    fn checksums_from(&self, start: u64) -> &[u32] {
        let skipped = (start / CHECKSUM_UNIT_BYTES) as usize;
        let known = self.footer.as_ref();
        known.map_or(&[], |footer| footer.checksums.get(skipped..).unwrap_or(&[]))
    }

    /// Bytes `range` of this shard; `None` if they are not what its footer says, if it has one.
    async fn read_good(&self, range: Range<u64>) -> Result<Option<Bytes>, ShardError> {
        let known = self.checksums_from(range.start);
        let read = self.disk.read_checked(self.name, range, known).await?;
        Ok(read.damaged.is_empty().then_some(read.bytes))
    }

    /// Whether bytes of this shard are what its footer says, if it has one.
    fn is_good(&self, start: u64, bytes: &[u8]) -> bool {
        let known = self.checksums_from(start);
        let chunks = bytes.chunks(CHECKSUM_UNIT_BYTES as usize);
        chunks
            .zip(known)
            .all(|(chunk, known)| crc32c(chunk) == *known)
    }
}
