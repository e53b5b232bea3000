//! Reading a log file around what its disk cannot read.
//!
//! Owns: in which pieces it is tried, when that is given up. Must not know: records, which of them are needed.
//!
//! A bad sector is no reason to do without a whole disk. What cannot be read is taken for zeros, which are no record;
//! whether it may have held one that is needed is for the caller to say.

use std::ops::Range;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::disk::{DiskError, DiskFile};
use cairn_formats::metadata::log::BLOCK_BYTES;

/// What is read at once where reading all at once failed, before it is tried block by block.
const PIECE_BYTES: usize = 64 * BLOCK_BYTES;

/// With so many errors among the log files of one volume a disk counts as failed: each may take seconds, and too many
/// have it put out by who watches it.
pub(super) const READ_ERROR_COUNT_MAX: u32 = 16;

/// The records of a file, with zeros for what cannot be read.
pub(super) struct Body {
    pub bytes: Bytes,
    pub unread: Option<Unread>,
}

/// What of a file's records cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    /// The first of the errors.
    pub error: DiskError,
    /// In bytes from the first record on, in order; one block each.
    pub blocks: Vec<Range<usize>>,
}

impl Unread {
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|block| block.start < range.end && range.start < block.end)
    }
}

/// Reads all after the header of a file that is `len_bytes` long. Each error takes one from `errors_left`; with none
/// left, it is returned.
pub(super) async fn read_body(
    file: &dyn DiskFile,
    len_bytes: u64,
    errors_left: &mut u32,
) -> Result<Body, DiskError> {
    let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
    let len = len.saturating_sub(BLOCK_BYTES);
    let error = match read_range(file, 0..len, errors_left).await? {
        Ok(bytes) => {
            let unread = None;
            return Ok(Body { bytes, unread });
        }
        Err(error) => error,
    };
    let mut bytes = AlignedBuf::zeroed(len);
    let mut blocks = Vec::new();
    for piece in parts(0..len, PIECE_BYTES) {
        if let Ok(found) = read_range(file, piece.clone(), errors_left).await? {
            bytes[piece].copy_from_slice(&found);
            continue;
        }
        for block in parts(piece, BLOCK_BYTES) {
            match read_range(file, block.clone(), errors_left).await? {
                Ok(found) => bytes[block].copy_from_slice(&found),
                Err(_) => blocks.push(block),
            }
        }
    }
    let unread = (!blocks.is_empty()).then_some(Unread { error, blocks });
    let bytes = bytes.freeze();
    Ok(Body { bytes, unread })
}

/// The outer error is final: the disk is bad, or it is something else than what it holds there.
async fn read_range(
    file: &dyn DiskFile,
    range: Range<usize>,
    errors_left: &mut u32,
) -> Result<Result<Bytes, DiskError>, DiskError> {
    let offset = (BLOCK_BYTES + range.start) as u64;
    match file.read_at(offset, range.len()).await {
        Ok(bytes) => Ok(Ok(bytes)),
        Err(error @ DiskError::Io { .. }) if *errors_left > 0 => {
            *errors_left -= 1;
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

fn parts(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |at| at..end.min(at + len))
}
