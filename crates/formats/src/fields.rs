//! Little-endian fields of fixed width.

use crate::FormatError;

/// Takes little-endian fields one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN], FormatError> {
        let (head, rest) = self
            .0
            .split_first_chunk::<LEN>()
            .ok_or(FormatError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.take().map(u64::from_le_bytes)
    }
}
