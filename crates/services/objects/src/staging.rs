//! Bytes on their way into an object: a file that no name leads to until all of it is there.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cairn_base::Ino;
use cairn_fs::{Credentials, FsView, TRANSFER_LEN_BYTES_MAX, Unnamed};
use md5::{Digest as _, Md5};

use crate::arrivals::Arrival;
use crate::records::ObjectError;
use crate::volume::Objects;

/// Bytes that are written at once.
const STEP_LEN_BYTES: usize = TRANSFER_LEN_BYTES_MAX as usize;
/// Up to this length the end of an object is copied out of a buffer that has grown beyond it by more than this part. The record cache
/// keeps what was written as it is, and takes its length for what that has in memory.
const COPIED_LEN_BYTES_MAX: usize = 128 << 10;
const KEPT_BEYOND_PART: usize = 4;

/// A file that is being filled. It goes again when it is dropped.
pub struct Staged {
    who: Credentials,
    file: Unnamed,
    buffer: BytesMut,
    /// `None`: who fills it knows what its ETag is.
    md5: Option<Md5>,
    arrival: Arc<Arrival>,
}

impl Staged {
    /// It counts for the quotas of `dir`, where it is to come, from its first byte on. `arrival`: of the request that brings it.
    pub(crate) async fn begin(
        objects: &Objects,
        who: &Credentials,
        dir: Ino,
        arrival: Arc<Arrival>,
    ) -> Result<Self, ObjectError> {
        Ok(Self {
            arrival,
            who: who.clone(),
            file: objects.fs().make_unnamed_near(who, dir).await?,
            buffer: BytesMut::new(),
            md5: Some(Md5::new()),
        })
    }

    /// Without an MD5 of its bytes.
    pub(crate) fn unhashed(self) -> Self {
        Self { md5: None, ..self }
    }

    /// Adds bytes to its end.
    pub async fn add(&mut self, mut data: Bytes) -> Result<(), ObjectError> {
        if let Some(md5) = &mut self.md5 {
            md5.update(&data);
        }
        // Large pieces are written from where they lie.
        if self.buffer.is_empty() {
            while data.len() >= STEP_LEN_BYTES {
                let step = data.split_to(STEP_LEN_BYTES);
                self.file.append(step).await?;
            }
        }
        while !data.is_empty() {
            let room = STEP_LEN_BYTES - self.buffer.len();
            let step = data.split_to(room.min(data.len()));
            self.buffer.extend_from_slice(&step);
            if self.buffer.len() == STEP_LEN_BYTES {
                let step = std::mem::take(&mut self.buffer).freeze();
                self.file.append(step).await?;
            }
        }
        Ok(())
    }

    /// Adds bytes of a file to its end, without copying them; nobody knows the MD5 then.
    pub(crate) async fn share(
        &mut self,
        from: &FsView,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        self.md5 = None;
        let before = fitting(std::mem::take(&mut self.buffer));
        self.file.append(before).await?;
        Ok(self.file.share(from, ino, range).await?)
    }

    /// Bytes so far.
    pub fn len_bytes(&self) -> u64 {
        self.file.len_bytes() + self.buffer.len() as u64
    }

    /// The MD5 of all of it, unless nobody wants it.
    pub fn md5(&self) -> Option<[u8; 16]> {
        let md5 = self.md5.clone()?;
        Some(md5.finalize().into())
    }

    pub(crate) fn arrival(&self) -> Arc<Arrival> {
        Arc::clone(&self.arrival)
    }

    pub(crate) fn who(&self) -> &Credentials {
        &self.who
    }

    /// All of it has come: the file, which needs its name.
    pub(crate) async fn whole(mut self) -> Result<Unnamed, ObjectError> {
        self.file.append(fitting(self.buffer)).await?;
        Ok(self.file)
    }
}

/// The bytes of a buffer, which has twice their length when it has just grown.
fn fitting(buffer: BytesMut) -> Bytes {
    let is_small = buffer.len() <= COPIED_LEN_BYTES_MAX;
    let kept_max = buffer.len() + buffer.len() / KEPT_BEYOND_PART;
    match is_small && buffer.capacity() > kept_max {
        true => Bytes::copy_from_slice(&buffer),
        false => buffer.freeze(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_keeps_little_more_in_memory_than_it_has() {
        // Bytes, the capacity of the buffer that they are in, and whether they stay there.
        let cases = [
            (1000, 1250, true),
            (1000, 1251, false),
            (1000, 16_384, false),
            (COPIED_LEN_BYTES_MAX, 2 * COPIED_LEN_BYTES_MAX, false),
            (COPIED_LEN_BYTES_MAX + 1, 2 * COPIED_LEN_BYTES_MAX, true),
        ];
        for (len, capacity, stays) in cases {
            let mut buffer = BytesMut::with_capacity(capacity);
            buffer.resize(len, 7);
            assert_eq!(buffer.capacity(), capacity, "{len}");
            let before = buffer.as_ptr();
            let bytes = fitting(buffer);
            assert!(bytes == vec![7; len], "{len} {capacity}");
            assert_eq!(bytes.as_ptr() == before, stays, "{len} {capacity}");
        }
    }
}
