//! Moving the contents of files.
//!
//! Owns: pieces, how many of them are in flight, holes, making copies stable, what becomes of a
//! copy that fails half way.
//! Must not know: trees and names beyond the one file.

use std::ops::Range;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use cairn_base::buf::BufPool;
use cairn_nfs_client::v3::{FileType, StableHow};
use cairn_nfs_client::{Round, Uncommitted};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use super::meta::Attributes;
use super::progress::Progress;
use super::tree::{Created, FileLocation, FoundFile, Sink, Source};

/// Files up to this length are written with one stable WRITE: one round trip instead of the two of
/// WRITE and COMMIT.
const SMALL_LEN_BYTES_MAX: u64 = 64 << 10;
/// Most bytes of one piece.
const PIECE_LEN_BYTES_MAX: u64 = 1 << 20;
/// Pieces of one file in flight.
const PIECE_COUNT_MAX: usize = 16;
/// Bytes of all files in flight.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Buffers of [`PIECE_LEN_BYTES_MAX`] that are kept for the next piece.
const FREE_BUFFER_COUNT_MAX: usize = 32;
/// Bytes between two COMMITs of one file: what a restart of the server may cost us to send again.
const SPAN_LEN_BYTES: u64 = 256 << 20;
/// Zeros of this length, aligned to it, become a hole where the source has holes.
const HOLE_LEN_BYTES: usize = 64 << 10;

const _: () = assert!(PIECE_LEN_BYTES_MAX <= IN_FLIGHT_BYTES_MAX);
const _: () = assert!(SMALL_LEN_BYTES_MAX <= PIECE_LEN_BYTES_MAX);

pub(super) struct Mover {
    pub progress: Progress,
    /// One permit per KiB in flight.
    budget: Semaphore,
    /// For pieces of local files.
    buffers: BufPool,
}

/// One file on its way.
struct Transfer {
    source: Source,
    sink: Sink,
    /// Look for holes.
    is_sparse: bool,
}

impl Mover {
    pub fn new(progress: Progress) -> Self {
        Self {
            progress,
            budget: Semaphore::new((IN_FLIGHT_BYTES_MAX >> 10) as usize),
            buffers: BufPool::new(PIECE_LEN_BYTES_MAX as usize, FREE_BUFFER_COUNT_MAX),
        }
    }

    /// Copies one regular file to `name` in `to`. A new copy that fails is removed again.
    pub async fn copy_file(
        &self,
        from: &FoundFile,
        to: &FileLocation,
        name: &[u8],
        mode: u32,
        attributes: Attributes,
    ) -> anyhow::Result<FileLocation> {
        // Read first what fits: what cannot be read leaves nothing behind.
        let source = from.place.open().await?;
        let size_bytes = from.meta.size_bytes;
        let small = match size_bytes <= SMALL_LEN_BYTES_MAX && !from.meta.is_sparse() {
            true => {
                let data = source.read(0, size_bytes as usize, &self.buffers).await?;
                require_len(data.len() as u64, size_bytes)?;
                Some(data)
            }
            false => None,
        };
        let is_empty = size_bytes == 0;
        // Times can be set with the first call only if no WRITE follows to change them.
        let at_once = match is_empty {
            true => attributes.without_owner(),
            false => Attributes::default(),
        };
        let created = to.create(name, mode, &at_once, from).await?;
        let is_local = matches!(created.place, FileLocation::Local(_));
        let mut rest = attributes;
        if is_local && rest.mode.is_none() && !created.existed {
            rest.mode = Some(mode);
        }
        let has_mode = attributes.mode.is_none_or(|wanted| wanted == mode);
        if is_empty && !is_local && !created.existed && has_mode && rest.owner.is_none() {
            rest = Attributes::default();
        }
        let Created {
            sink,
            place,
            existed,
        } = created;
        let transfer = Transfer {
            source,
            sink,
            is_sparse: from.meta.is_sparse(),
        };
        let copied = async {
            let end = match small {
                Some(data) => self.write_small(&transfer, data).await?,
                None => self.move_all(&transfer, size_bytes).await?,
            };
            if end < size_bytes {
                // A hole at the end was not written.
                rest.size_bytes = Some(size_bytes);
                require_len(transfer.source.size_bytes().await?, size_bytes)?;
            }
            place.set_attributes(&rest, FileType::Regular).await
        };
        match copied.await {
            Ok(()) => Ok(place),
            Err(error) => Err(self.undo(error, to, name, existed).await),
        }
    }

    async fn undo(
        &self,
        error: anyhow::Error,
        to: &FileLocation,
        name: &[u8],
        existed: bool,
    ) -> anyhow::Error {
        let shown = String::from_utf8_lossy(name);
        if existed {
            return error.context(format!("the existing {shown} is only partly overwritten"));
        }
        match to.remove(name).await {
            Ok(()) => error,
            Err(_) => error.context(format!("an incomplete {shown} is left at the destination")),
        }
    }

    async fn write_small(&self, transfer: &Transfer, data: Bytes) -> anyhow::Result<u64> {
        let len_bytes = data.len() as u64;
        let mut uncommitted = Uncommitted::default();
        if !data.is_empty() {
            transfer
                .sink
                .write(0, data, StableHow::FileSync, &mut uncommitted)
                .await?;
        }
        self.progress.bytes_done(len_bytes);
        Ok(len_bytes)
    }

    /// Copies all data and makes it stable; returns the end of what was written.
    async fn move_all(&self, transfer: &Transfer, size_bytes: u64) -> anyhow::Result<u64> {
        let mut end = 0;
        let mut span_start = 0;
        while span_start < size_bytes {
            let span_end = size_bytes.min(span_start.saturating_add(SPAN_LEN_BYTES));
            end = self
                .move_span(transfer, span_start..span_end)
                .await?
                .max(end);
            span_start = span_end;
        }
        Ok(end)
    }

    async fn move_span(&self, transfer: &Transfer, span: Range<u64>) -> anyhow::Result<u64> {
        let mut uncommitted = Uncommitted::default();
        let mut end = 0;
        let mut to_move = vec![span.clone()];
        let mut is_first = true;
        loop {
            for range in to_move {
                let moved = self.move_range(transfer, range, &mut uncommitted, is_first);
                end = end.max(moved.await?);
            }
            is_first = false;
            let Sink::Remote((client, file)) = &transfer.sink else {
                break;
            };
            match client.commit_all(*file, &mut uncommitted).await? {
                Round::Safe => break,
                Round::Resend(lost) => to_move = lost,
            }
        }
        Ok(end)
    }

    /// Copies the data in `range`, many pieces at a time.
    async fn move_range(
        &self,
        transfer: &Transfer,
        range: Range<u64>,
        uncommitted: &mut Uncommitted,
        counts: bool,
    ) -> anyhow::Result<u64> {
        let mut moving = FuturesUnordered::new();
        let mut next = range.start;
        let mut data = 0..0;
        let mut end = 0;
        loop {
            while moving.len() < PIECE_COUNT_MAX && next < range.end {
                if next >= data.end {
                    data = match transfer.is_sparse {
                        true => match transfer.source.next_data(next, range.end).await? {
                            Some(data) => data,
                            None => range.end..range.end,
                        },
                        false => range.clone(),
                    };
                    if counts {
                        self.progress.bytes_done(data.start.saturating_sub(next));
                    }
                    next = next.max(data.start);
                    continue;
                }
                let piece_end = data
                    .end
                    .min(next.saturating_add(transfer.piece_len_bytes()));
                moving.push(self.move_piece(transfer, next..piece_end));
                next = piece_end;
            }
            let Some(moved) = moving.next().await else {
                return Ok(end);
            };
            let (piece, piece_uncommitted): (Range<u64>, Uncommitted) = moved?;
            uncommitted.merge(piece_uncommitted);
            end = end.max(piece.end);
            if counts {
                self.progress.bytes_done(piece.end - piece.start);
            }
        }
    }

    async fn move_piece(
        &self,
        transfer: &Transfer,
        piece: Range<u64>,
    ) -> anyhow::Result<(Range<u64>, Uncommitted)> {
        let len_bytes = (piece.end - piece.start) as usize;
        let permits = len_bytes.div_ceil(1 << 10) as u32;
        let _in_flight = self.budget.acquire_many(permits).await;
        let reading = transfer.source.read(piece.start, len_bytes, &self.buffers);
        let data = reading.await?;
        require_len(data.len() as u64, piece.end - piece.start)?;
        let runs = match transfer.is_sparse && !transfer.source.tells_holes() {
            true => data_runs(&data, piece.start),
            false => std::iter::once(0..data.len()).collect(),
        };
        let mut uncommitted = Uncommitted::default();
        let mut end = piece.start;
        for run in runs {
            let offset = piece.start + run.start as u64;
            end = piece.start + run.end as u64;
            let part = data.slice(run);
            transfer
                .sink
                .write(offset, part, StableHow::Unstable, &mut uncommitted)
                .await
                .with_context(|| anyhow!("writing at byte {offset}"))?;
        }
        let written = if end == piece.start {
            0..0
        } else {
            piece.start..end
        };
        Ok((written, uncommitted))
    }
}

impl Transfer {
    fn piece_len_bytes(&self) -> u64 {
        self.source
            .read_len_bytes_max()
            .min(self.sink.write_len_bytes_max())
            .min(PIECE_LEN_BYTES_MAX)
    }
}

/// Else what is missing would be taken for a hole at the end.
fn require_len(len_bytes: u64, wanted_bytes: u64) -> anyhow::Result<()> {
    if len_bytes < wanted_bytes {
        bail!("it became shorter while it was copied");
    }
    Ok(())
}

/// The parts of `data` that are worth writing: all but whole blocks of zeros. Blocks are counted
/// from the beginning of the file, where `data` is at `offset`.
fn data_runs(data: &[u8], offset: u64) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let in_block = ((offset + start as u64) % HOLE_LEN_BYTES as u64) as usize;
        let end = data.len().min(start + HOLE_LEN_BYTES - in_block);
        let block = &data[start..end];
        // A part of a block is written: what the rest of it holds is not known here.
        let is_hole = block.len() == HOLE_LEN_BYTES && is_zero(block);
        if !is_hole {
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        start = end;
    }
    runs
}

fn is_zero(bytes: &[u8]) -> bool {
    // Comparing with itself, shifted by one, is a memcmp, which is as fast as it gets.
    match bytes.split_first() {
        Some((first, rest)) => *first == 0 && *rest == bytes[..rest.len()],
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::local;
    use super::*;

    /// Missing data was taken for a hole at the end, and the copy was filled up with zeros.
    #[tokio::test]
    async fn a_file_that_became_shorter_is_not_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        for sparse in [false, true] {
            let mut file = std::fs::File::create(&path).expect("a file");
            std::io::Write::write_all(&mut file, &[7; 10_000]).expect("written");
            if sparse {
                file.set_len(1 << 20).expect("longer");
            }
            let from = local::found(&path).await.expect("found");
            file.set_len(4_000).expect("shorter");
            let to = FileLocation::Local(folder.path().to_owned());
            let mover = Mover::new(Progress::new(false));
            let copied = mover
                .copy_file(&from, &to, b"copy", 0o644, Attributes::default())
                .await;
            let error = copied.err().expect("refused").to_string();
            assert!(error.contains("became shorter"), "{error}");
            assert!(!folder.path().join("copy").exists());
        }
    }

    #[test]
    fn blocks_of_zeros_are_left_out() {
        const B: usize = HOLE_LEN_BYTES;
        let mut data = vec![0; 4 * B + 10];
        data[B] = 1;
        data[3 * B - 1] = 1;
        let runs = |data: &[u8], offset| data_runs(data, offset);
        assert_eq!(runs(&data, 0), [B..3 * B, 4 * B..4 * B + 10]);
        assert_eq!(runs(&data, B as u64 * 7), [B..3 * B, 4 * B..4 * B + 10]);
        // Off by half a block, the same zeros fill whole blocks elsewhere.
        let half = B / 2;
        let want = [0..B + half, 2 * B + half..4 * B + 10];
        assert_eq!(runs(&data, half as u64), want);
        assert_eq!(runs(&[], 5), []);
        assert_eq!(runs(&[0; B], 0), []);
        assert_eq!(
            runs(&[0; B - 1], 0),
            std::iter::once(0..B - 1).collect::<Vec<_>>()
        );
    }
}
