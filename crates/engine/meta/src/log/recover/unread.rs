//! The effect of unreadable log blocks on the history.
//!
//! Owns: whether an unreadable block may hold a record that no other disk has. Must not know: how files are read.
//!
//! Corrupt bytes at the end of the log count as a record that a crash cut off. An unreadable block may just as well
//! hold an acknowledged record. So a start is refused there, unless the log cannot have gone on in that block, or
//! another disk shows how it did.

use std::collections::BTreeSet;

use cairn_base::LogPosition;
use cairn_formats::metadata::log::{
    FileHeader, FoundRecord, RECORD_HEAD_BYTES, RecordHead, TOLD_FILE_BYTES, Term, record_len_bytes,
};

use super::{RecordId, Scan, ScannedFile};
use crate::error::MetaError;
use crate::log::files::file_name;
use crate::log::read::{Body, Unread};

/// The unreadable part of a scanned file.
pub(super) struct UnreadPart {
    what: Unread,
    /// The part covers the offset of the next record of the file. Records follow each other, so without a record there,
    /// none follows.
    is_next: bool,
}

impl UnreadPart {
    /// `found`: the records found in the body.
    pub fn of(body: &Body, found: &[FoundRecord], header: &FileHeader) -> Option<Self> {
        let what = body.unread.clone()?;
        let end_of = |record: &FoundRecord| {
            record.payload.start - RECORD_HEAD_BYTES + record_len_bytes(record.payload.len())
        };
        let next = found.last().map_or(0, end_of);
        let rest = body.bytes.get(next..).unwrap_or_default();
        let head = RecordHead::decode(rest, header.file_use);
        let len = head.map_or(0, |head| head.payload_len_bytes as usize);
        let record = next..next.saturating_add(record_len_bytes(len));
        // A header-only file never has a record.
        let is_next = header.file_len_bytes > TOLD_FILE_BYTES && what.overlaps(&record);
        Some(Self { what, is_next })
    }
}

impl Scan {
    /// Refuses if the log may have gone on in an unreadable part.
    pub(super) fn check_unread(
        &self,
        head: &FileHeader,
        valid: &[&RecordId],
    ) -> Result<(), MetaError> {
        for file in &self.files {
            let (Some(part), Some(header)) = (&file.unread, &file.header) else {
                continue;
            };
            // The next term names the end of the previous one.
            let is_last = header.term() == head.term();
            if is_last && part.is_next && !self.has_twin(file) && !self.is_over(file, valid) {
                return Err(self.unreadable(file, part));
            }
        }
        Ok(())
    }

    /// Files that must not be reused as they are: the end of the log would be ambiguous.
    pub(super) fn unfit(&self) -> Vec<(usize, u64)> {
        let files = self.files.iter().filter(|file| file.unread.is_some());
        files.map(|file| (file.disk, file.sequence)).collect()
    }

    /// Names the unreadable part in an error, if it may be the cause of a missing record.
    pub(super) fn blame(&self, error: MetaError, history: &[Term]) -> MetaError {
        let is_of = |file: &&ScannedFile| {
            let term = file.header.as_ref().and_then(|header| header.term());
            term.is_some_and(|term| history.contains(term))
        };
        let mut files = self.files.iter().filter(is_of);
        let found = files.find_map(|file| Some(self.unreadable(file, file.unread.as_ref()?)));
        found.unwrap_or(error)
    }

    fn unreadable(&self, file: &ScannedFile, part: &UnreadPart) -> MetaError {
        MetaError::LogUnreadable {
            volume: self.disks.volume,
            disk: self.disks.get(file.disk).disk.label().to_owned(),
            name: file_name(&self.disks.folder(), file.sequence),
            error: Box::new(part.what.error.clone()),
        }
    }

    /// Whether another disk has this file and shows how it ends.
    fn has_twin(&self, file: &ScannedFile) -> bool {
        let file_use = |file: &ScannedFile| file.header.as_ref().map(|header| header.file_use);
        self.files.iter().any(|other| {
            let says = other.unread.as_ref().is_none_or(|part| !part.is_next);
            other.disk != file.disk
                && other.sequence == file.sequence
                && file_use(other) == file_use(file)
                && says
        })
    }

    /// Whether the log went on after this file, in a later file on the same disks with later records. Files on other
    /// disks do not show that: they may hold copies of an incomplete prefix of this file. Records that all its disks
    /// have are not copied.
    fn is_over(&self, file: &ScannedFile, valid: &[&RecordId]) -> bool {
        let is_valid = |id: &&RecordId| valid.binary_search(id).is_ok();
        let disks = |header: &FileHeader| header.set.iter().copied().collect::<BTreeSet<_>>();
        let set = file.header.as_deref().map(disks);
        let so_far = self
            .files
            .iter()
            .filter(|other| other.sequence <= file.sequence)
            .flat_map(|other| other.records.iter().filter(is_valid))
            .map(|id| id.last)
            .fold(LogPosition(0), LogPosition::max);
        self.files
            .iter()
            .filter(|other| other.sequence > file.sequence)
            .filter(|other| other.header.as_deref().map(disks) == set)
            .flat_map(|other| other.records.iter().filter(is_valid))
            .any(|id| id.first > so_far)
    }

    /// Whether the unreadable part of a disk may hold a record of a term.
    pub(super) fn may_have(&self, disk: usize, id: &RecordId) -> bool {
        let mut files = self.files.iter().filter(|file| file.disk == disk);
        files.any(|file| file.is_unread_of(|term| term.epoch == id.epoch && term.nonce == id.term))
    }

    /// Whether unreadable parts may hide records of these terms.
    pub(super) fn may_hide(&self, terms: &[&Term]) -> bool {
        let is_of = |term: &Term| terms.contains(&term);
        let mut files = self.files.iter();
        files.any(|file| file.is_unread_of(is_of) && !self.has_twin(file))
    }
}

impl ScannedFile {
    fn is_unread_of(&self, is_of: impl Fn(&Term) -> bool) -> bool {
        let term = self.header.as_ref().and_then(|header| header.term());
        self.unread.is_some() && term.is_some_and(is_of)
    }
}
