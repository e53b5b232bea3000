//! Big-endian fields, taken off the front of a record or put at the end of one.

use cairn_base::{Timestamp, crc32c};

use super::records::{RecordError, VERSION};

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.seconds.to_be_bytes());
    put_u32(out, time.nanos);
}

/// Takes fields off the front of a record, or says which one is wrong.
pub(super) struct Fields<'a> {
    record: &'static str,
    pub(super) rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Starts after the version byte, which must be the known one.
    pub(super) fn new(record: &'static str, bytes: &'a [u8]) -> Result<Self, RecordError> {
        let mut fields = Self::unversioned(record, bytes);
        match fields.u8("version")? {
            VERSION => Ok(fields),
            0 => Err(fields.malformed("version")),
            version => Err(RecordError::Version { record, version }),
        }
    }

    pub(super) fn unversioned(record: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            record,
            rest: bytes,
        }
    }

    /// The fields of a whole file that begins with `magic` and a version, and ends with its CRC32C.
    pub(super) fn of_file(
        record: &'static str,
        bytes: &'a [u8],
        magic: [u8; 8],
        version_known: u32,
    ) -> Result<Self, RecordError> {
        let mut fields = Self::unversioned(record, bytes);
        let (body, crc) = bytes
            .split_last_chunk::<4>()
            .ok_or(fields.malformed("crc"))?;
        if crc32c(body) != u32::from_be_bytes(*crc) {
            return Err(fields.malformed("crc"));
        }
        fields.rest = body;
        if fields.array::<8>("magic")? != magic {
            return Err(fields.malformed("magic"));
        }
        let version = fields.u32("version")?;
        if version != version_known {
            return Err(RecordError::Version {
                record,
                version: version.min(255) as u8,
            });
        }
        Ok(fields)
    }

    pub(super) fn malformed(&self, field: &'static str) -> RecordError {
        RecordError::Malformed {
            record: self.record,
            field,
        }
    }

    pub(super) fn take(
        &mut self,
        len: usize,
        field: &'static str,
    ) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(self.malformed(field))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], RecordError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(self.malformed(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, RecordError> {
        Ok(u8::from_be_bytes(self.array(field)?))
    }

    pub(super) fn bool(&mut self, field: &'static str) -> Result<bool, RecordError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed(field)),
        }
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, RecordError> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, RecordError> {
        Ok(u32::from_be_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, RecordError> {
        Ok(u64::from_be_bytes(self.array(field)?))
    }

    pub(super) fn time(&mut self, field: &'static str) -> Result<Timestamp, RecordError> {
        let seconds = i64::from_be_bytes(self.array(field)?);
        let nanos = self.u32(field)?;
        if nanos >= 1_000_000_000 {
            return Err(self.malformed(field));
        }
        Ok(Timestamp::new(seconds, nanos))
    }

    pub(super) fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.malformed("end"))
        }
    }
}
