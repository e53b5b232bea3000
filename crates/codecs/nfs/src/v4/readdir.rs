//! READDIR results within the bytes that the client asked for (RFC 8881, section 18.23).
//!
//! Owns: the size of entries and of the reply around them, and which entry no longer fits.
//! Must not know: directories.

use cairn_codec_rpc::Writer;
use cairn_codec_rpc::xdr::padded_len;

use super::attr::{Attr, AttrValue, encode_fattr};
use super::bitmap::Bitmap;
use super::types::{Name, Verifier};

/// Bytes of [`super::ReadDirOk`] without entries: verifier, the end of the list, end of directory.
pub const EMPTY_LEN_BYTES: usize = 8 + 4 + 4;

/// Bytes of an entry that `dircount` limits: cookie and name.
pub const fn dir_info_len(name_len_bytes: usize) -> usize {
    8 + 4 + padded_len(name_len_bytes)
}

/// Writes the body of a successful READDIR, entry by entry, for as long as they fit.
#[derive(Debug)]
pub struct DirWriter<'w, 'b> {
    to: &'w mut Writer<'b>,
    /// Of `maxcount`.
    left_bytes: usize,
    /// Of `dircount`.
    dir_left_bytes: usize,
    entry_count: usize,
}

impl<'w, 'b> DirWriter<'w, 'b> {
    /// Begins a body of at most `max_count_bytes` in all, and of `dir_count_bytes` of cookies and names unless that
    /// is 0.
    ///
    /// `None` if not even an empty body fits: the answer is `TooSmall`, and nothing was written.
    pub fn new(
        to: &'w mut Writer<'b>,
        cookie_verifier: Verifier,
        dir_count_bytes: u32,
        max_count_bytes: u32,
    ) -> Option<Self> {
        let left_bytes = (max_count_bytes as usize).checked_sub(EMPTY_LEN_BYTES)?;
        to.put(&cookie_verifier);
        let dir_left_bytes = match dir_count_bytes {
            0 => usize::MAX,
            count_bytes => count_bytes as usize,
        };
        Some(Self {
            to,
            left_bytes,
            dir_left_bytes,
            entry_count: 0,
        })
    }

    /// Writes the next entry with the attributes of `mask`; `false` and nothing written if it does not fit.
    ///
    /// The first entry goes in whatever `dircount` says: it is a hint, and an empty reply would make the client ask
    /// again for ever. `value_of` is as for [`encode_fattr`].
    #[must_use = "an entry that does not fit ends the reply"]
    pub fn push<'v>(
        &mut self,
        cookie: u64,
        name: Name<'_>,
        mask: &Bitmap,
        value_of: impl FnMut(Attr) -> AttrValue<'v>,
    ) -> bool {
        let dir_left_bytes = self.dir_left_bytes.checked_sub(dir_info_len(name.len()));
        if dir_left_bytes.is_none() && self.entry_count > 0 {
            return false;
        }
        let start = self.to.len_bytes();
        self.to.bool(true);
        self.to.u64(cookie);
        self.to.put(&name);
        encode_fattr(self.to, mask, value_of);
        let len_bytes = self.to.len_bytes() - start;
        let Some(left_bytes) = self.left_bytes.checked_sub(len_bytes) else {
            self.to.truncate(start);
            return false;
        };
        self.left_bytes = left_bytes;
        self.dir_left_bytes = dir_left_bytes.unwrap_or(0);
        self.entry_count += 1;
        true
    }

    /// Entries written. If it is 0 and there was one, the answer is `TooSmall`.
    pub fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// Ends the body; `eof` if the last entry of the directory is in it or was before.
    pub fn finish(self, eof: bool) {
        self.to.bool(false);
        self.to.bool(eof);
    }
}
