//! Writes that depend on the present contents (compare and write).
//!
//! Owns: nothing changes between the comparison and the write. Must not know: the purpose (a LUN uses it).

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{self, Bug};

use crate::data::require_file;
use crate::types::{Credentials, FsError, Stability, TRANSFER_LEN_BYTES_MAX, Written};
use crate::volume::Fs;

/// Attempts to compare again after somebody changed the file in between, at any place.
const ATTEMPTS_MAX: u32 = 100;
/// The number of bytes that the planted bug compares.
const BEGIN_LEN_BYTES: usize = 512;

/// The result of a comparison.
#[derive(Clone, Debug)]
pub enum Compared {
    /// All bytes were as expected.
    Written(Written),
    /// The offset of the first byte that differs, from the first byte of `expected` on; nothing was written.
    Differs(u64),
}

impl Fs {
    /// Writes `data` at `offset` if the file has the bytes `expected` there, which has the same length. Otherwise
    /// returns where the file differs. The compared bytes are durable on return, and nobody changes them between the
    /// comparison and the write.
    ///
    /// [`FsError::Invalid`] if the file ends before the range does, [`FsError::TryLater`] if other callers change it
    /// all the time.
    pub async fn compare_and_write(
        &self,
        who: &Credentials,
        ino: Ino,
        offset: u64,
        expected: &[u8],
        data: Bytes,
        stability: Stability,
    ) -> Result<Compared, FsError> {
        let is_one_step = expected.len() <= TRANSFER_LEN_BYTES_MAX as usize;
        if expected.len() != data.len() || !is_one_step {
            return Err(FsError::Invalid);
        }
        self.keep_before_change(who, ino).await?;
        let shared = &self.shared;
        let inode = shared.reading(|| shared.inode(ino)).await?;
        for _ in 0..ATTEMPTS_MAX {
            let since = {
                let state = inode.lock();
                require_file(&state)?;
                let end = offset.saturating_add(data.len() as u64);
                if end > state.record.size_bytes {
                    return Err(FsError::Invalid);
                }
                state.sequence
            };
            if let Some(at) = self.first_difference(who, ino, offset, expected).await? {
                return Ok(Compared::Differs(at));
            }
            let written =
                self.write_unless_changed(who, ino, offset, data.clone(), stability, Some(since));
            if let Some(written) = written.await? {
                return Ok(Compared::Written(written));
            }
        }
        Err(FsError::TryLater)
    }

    async fn first_difference(
        &self,
        who: &Credentials,
        ino: Ino,
        offset: u64,
        expected: &[u8],
    ) -> Result<Option<u64>, FsError> {
        let expected = match planted::is(Bug::CompareBeginOnly) {
            true => &expected[..expected.len().min(BEGIN_LEN_BYTES)],
            false => expected,
        };
        let mut done = 0;
        while done < expected.len() {
            let rest = expected.get(done..).unwrap_or_default();
            let read = self.read(who, ino, offset + done as u64, rest.len() as u32);
            let read = read.await?;
            if read.count_bytes == 0 {
                // The file was cut meanwhile.
                return Err(FsError::Invalid);
            }
            let got = read.parts.iter().flat_map(|part| part.iter());
            if let Some(at) = got.zip(rest).position(|(got, want)| got != want) {
                return Ok(Some((done + at) as u64));
            }
            done += read.count_bytes as usize;
        }
        Ok(None)
    }
}
