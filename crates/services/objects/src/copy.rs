//! Bytes that an object takes over from another one, or from its parts.
//!
//! Owns: when they are shared and when copied, what their ETag is. Must not know: requests.

use std::ops::Range;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::{Credentials, FsError, TRANSFER_LEN_BYTES_MAX};
use md5::{Digest as _, Md5};

use crate::bucket::{Bucket, ObjectInfo, hex};
use crate::records::ObjectError;
use crate::staging::Staged;

/// Fewer bytes are copied: they cost less than what refers to them.
const SHARE_LEN_BYTES_MIN: u64 = 256 << 10;
/// Characters of an MD5.
const MD5_LEN: usize = 32;

impl Bucket {
    /// Adds bytes of an object to what is staged, without copying them if they are many. They are those that `source` is
    /// about: [`FsError::TryLater`] if somebody changed the file meanwhile.
    pub async fn take(
        &self,
        who: &Credentials,
        staged: &mut Staged,
        source: &ObjectInfo,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        self.append(who, staged, source.ino, range).await?;
        let now = self.objects().fs().attr(source.ino).await?;
        match (now.size_bytes, now.mtime) == (source.attr.size_bytes, source.attr.mtime) {
            true => Ok(()),
            false => Err(FsError::TryLater.into()),
        }
    }

    /// Adds bytes of a file.
    pub(crate) async fn append(
        &self,
        who: &Credentials,
        staged: &mut Staged,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        if range.end.saturating_sub(range.start) >= SHARE_LEN_BYTES_MIN {
            return match staged.share(self.objects().fs(), ino, range).await {
                Err(ObjectError::Fs(FsError::Invalid)) => Err(shorter()),
                shared => shared,
            };
        }
        let mut at = range.start;
        while at < range.end {
            let len_bytes = (range.end - at).min(u64::from(TRANSFER_LEN_BYTES_MAX));
            let parts: Vec<Bytes> = self.read(who, ino, at, len_bytes).await?;
            let count: u64 = parts.iter().map(|part| part.len() as u64).sum();
            if count == 0 {
                return Err(shorter());
            }
            for part in parts {
                staged.add(part).await?;
            }
            at += count;
        }
        Ok(())
    }
}

impl ObjectInfo {
    /// The ETag of a part that has these bytes of the object. It is their MD5 only if that is known; else it says where
    /// they come from, and changes when that does.
    pub fn etag_of_part(&self, range: &Range<u64>) -> String {
        let etag = self.etag();
        let is_md5 = etag.len() == MD5_LEN && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_md5 && *range == (0..self.size_bytes()) {
            true => etag,
            false => hex(&Md5::digest(format!(
                "{etag}:{}-{}",
                range.start, range.end
            ))),
        }
    }
}

fn shorter() -> ObjectError {
    ObjectError::Invalid("the file became shorter meanwhile".to_owned())
}
