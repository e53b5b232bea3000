//! Writes that depend on what is there.
//!
//! Owns: that nothing changes between the comparison and the write. Must not know: who wants that (a LUN does).

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{self, Bug};

use crate::data::require_file;
use crate::types::{Credentials, FsError, Stability, TRANSFER_LEN_BYTES_MAX, Written};
use crate::volume::Fs;

/// How often it is compared again because somebody changed the file in between, anywhere.
const ATTEMPTS_MAX: u32 = 100;
/// What the planted mistake compares.
const BEGIN_LEN_BYTES: usize = 512;

/// What a comparison came to.
#[derive(Clone, Debug)]
pub enum Compared {
    /// All was as expected.
    Written(Written),
    /// This byte, counted from the first one, is the first that is not; nothing was written.
    Differs(u64),
}

impl Fs {
    /// Writes `data` at `offset` if the file has `expected` there, which has the same length, and says where it differs
    /// otherwise. What it compares with is durable when it is answered; nobody changes it between comparing and writing.
    ///
    /// [`FsError::Invalid`] if the file ends before the range does, [`FsError::TryLater`] if it is changed all the time.
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
                // It was cut meanwhile.
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
