//! Reading a log file around unreadable sectors.
//!
//! Owns: the size of each read, and when to give up. Must not know: records, which of them are needed.
//!
//! A bad sector is no reason to give up a whole disk. Unreadable blocks are returned as zeros, which are no record. The
//! caller decides whether a needed record may have been there.

use std::ops::Range;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::disk::{DiskError, DiskFile};
use cairn_formats::metadata::log::BLOCK_BYTES;

/// Size of a read after a read of the whole range failed, before reads block by block.
const PIECE_BYTES: usize = 64 * BLOCK_BYTES;

/// With this number of errors among the log files of one volume a disk counts as failed. Each error may take seconds,
/// and too many would have the disk watch fault the disk.
pub(super) const READ_ERROR_COUNT_MAX: u32 = 16;

/// The records of a file, with zeros for unreadable blocks.
pub(super) struct Body {
    pub bytes: Bytes,
    pub unread: Option<Unread>,
}

/// The unreadable blocks among a file's records.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    /// The first error.
    pub error: DiskError,
    /// Offsets from the first record on, in bytes, in order; one block each.
    pub blocks: Vec<Range<usize>>,
}

impl Unread {
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|block| block.start < range.end && range.start < block.end)
    }
}

/// Reads everything after the header of a file that is `len_bytes` long. Each error takes one from `errors_left`; with
/// none left, the error is returned.
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

/// The outer error is final: the disk is bad, or the error does not concern its contents.
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
