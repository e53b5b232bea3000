//! READDIR and READDIRPLUS results, and writing them within the bytes the client asked for
//! (RFC 1813, sections 3.3.16 and 3.3.17).
//!
//! Owns: the size of entries and of the reply around them, and which entry no longer fits.
//! Must not know: directories.

use cairn_codec_rpc::{List, Writer, xdr::padded_len, xdr_struct};

use super::types::*;

xdr_struct! {
    #[derive(Copy)]
    pub struct Entry<'a> {
        pub fileid: u64,
        pub name: Name<'a>,
        /// Names the place after this entry.
        pub cookie: u64,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct EntryPlus<'a> {
        pub fileid: u64,
        pub name: Name<'a>,
        /// Names the place after this entry.
        pub cookie: u64,
        pub attributes: PostOpAttr,
        pub handle: PostOpHandle,
    }
}

xdr_struct! {
    pub struct ReadDirOk<'a> {
        pub attributes: PostOpAttr,
        pub cookie_verifier: CookieVerifier,
        pub entries: List<Entry<'a>>,
        pub eof: bool,
    }
}

xdr_struct! {
    pub struct ReadDirPlusOk<'a> {
        pub attributes: PostOpAttr,
        pub cookie_verifier: CookieVerifier,
        pub entries: List<EntryPlus<'a>>,
        pub eof: bool,
    }
}

/// Bytes of a reply without entries: attributes, verifier, the end of the list, end of directory.
/// This is what `count` and `maxcount` limit; the status is not part of it.
pub const fn head_len(attributes: &PostOpAttr) -> usize {
    attr_len(attributes) + 8 + 4 + 4
}

/// Bytes of one READDIR entry with the boolean before it.
pub const fn entry_len(name_len_bytes: usize) -> usize {
    4 + dir_info_len(name_len_bytes)
}

/// Bytes of one READDIRPLUS entry with the boolean before it.
pub const fn entryplus_len(
    name_len_bytes: usize,
    attributes: &PostOpAttr,
    handle_len_bytes: Option<usize>,
) -> usize {
    let handle_len = match handle_len_bytes {
        Some(len_bytes) => 4 + 4 + padded_len(len_bytes),
        None => 4,
    };
    entry_len(name_len_bytes) + attr_len(attributes) + handle_len
}

/// Bytes of an entry that READDIRPLUS's `dircount` limits: id, name, cookie.
pub const fn dir_info_len(name_len_bytes: usize) -> usize {
    8 + 4 + padded_len(name_len_bytes) + 8
}

const fn attr_len(attributes: &PostOpAttr) -> usize {
    match attributes {
        Some(_) => 4 + FILE_ATTR_LEN_BYTES,
        None => 4,
    }
}

/// Writes a successful READDIR or READDIRPLUS reply, status included, entry by entry, for as long
/// as they fit.
#[derive(Debug)]
pub struct DirWriter<'w, 'b> {
    to: &'w mut Writer<'b>,
    /// Of `count` or `maxcount`.
    left_bytes: usize,
    /// Of `dircount`.
    dir_left_bytes: usize,
    entry_count: usize,
}

impl<'w, 'b> DirWriter<'w, 'b> {
    /// Begins a READDIR reply of at most `count_bytes`.
    ///
    /// `None` if not even an empty reply fits: the answer is `TooSmall`, and nothing was written.
    pub fn readdir(
        to: &'w mut Writer<'b>,
        attributes: &PostOpAttr,
        cookie_verifier: CookieVerifier,
        count_bytes: u32,
    ) -> Option<Self> {
        Self::readdirplus(to, attributes, cookie_verifier, u32::MAX, count_bytes)
    }

    /// Begins a READDIRPLUS reply of at most `max_count_bytes` in all and `dir_count_bytes` of ids,
    /// names and cookies. `None` as for `readdir`.
    pub fn readdirplus(
        to: &'w mut Writer<'b>,
        attributes: &PostOpAttr,
        cookie_verifier: CookieVerifier,
        dir_count_bytes: u32,
        max_count_bytes: u32,
    ) -> Option<Self> {
        let left_bytes = (max_count_bytes as usize).checked_sub(head_len(attributes))?;
        to.u32(0);
        to.put(attributes);
        to.put(&cookie_verifier);
        Some(Self {
            to,
            left_bytes,
            dir_left_bytes: dir_count_bytes as usize,
            entry_count: 0,
        })
    }

    /// Writes the next READDIR entry; `false` and nothing written if it does not fit.
    #[must_use = "an entry that does not fit ends the reply"]
    pub fn push(&mut self, entry: &Entry<'_>) -> bool {
        let fits = self.take(entry_len(entry.name.len()), 0);
        if fits {
            self.to.bool(true);
            self.to.put(entry);
        }
        fits
    }

    /// Writes the next READDIRPLUS entry; `false` and nothing written if it does not fit.
    ///
    /// The first entry goes in whatever `dircount` says: some clients send a `dircount` that no
    /// entry fits, and an empty reply would make them ask again for ever.
    #[must_use = "an entry that does not fit ends the reply"]
    pub fn push_plus(&mut self, entry: &EntryPlus<'_>) -> bool {
        let handle_len_bytes = entry.handle.as_ref().map(|it| it.as_bytes().len());
        let len_bytes = entryplus_len(entry.name.len(), &entry.attributes, handle_len_bytes);
        let fits = self.take(len_bytes, dir_info_len(entry.name.len()));
        if fits {
            self.to.bool(true);
            self.to.put(entry);
        }
        fits
    }

    /// Entries written. If it is 0 and there was one, the answer is `TooSmall` and the caller cuts
    /// its buffer back to where the reply began.
    pub fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// Ends the reply; `eof` if the last entry of the directory is in it or was before.
    pub fn finish(self, eof: bool) {
        self.to.bool(false);
        self.to.bool(eof);
    }

    fn take(&mut self, len_bytes: usize, dir_len_bytes: usize) -> bool {
        let Some(left_bytes) = self.left_bytes.checked_sub(len_bytes) else {
            return false;
        };
        let dir_left_bytes = self.dir_left_bytes.checked_sub(dir_len_bytes);
        if dir_left_bytes.is_none() && self.entry_count > 0 {
            return false;
        }
        self.left_bytes = left_bytes;
        self.dir_left_bytes = dir_left_bytes.unwrap_or(0);
        self.entry_count += 1;
        true
    }
}
