//! Locks and opens of a volume as they are stored: clients, byte ranges, share denials, leases.
//!
//! Owns: the bytes of these (docs/reference/formats/metadata.md), and the words that they are made of. Pure: no I/O, no
//! clock.
//! Must not know: what conflicts with what, when a lease of a client is over, which protocol asks for what.

use bytes::Bytes;
use cairn_base::Timestamp;

use super::fields::{Fields, put_time, put_u16, put_u32, put_u64};
use super::records::{RecordError, VERSION};

/// Longest string that names a client or an owner, in bytes: `NFS4_OPAQUE_LIMIT` of RFC 8881 and `MAXNETOBJ_SZ` of NLM.
pub const LOCK_NAME_LEN_BYTES_MAX: usize = 1024;

/// Which protocol names a client. Names of two protocols never mean the same client. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockProtocol {
    Nlm = 1,
    Nfs4 = 2,
    Smb = 3,
    /// The server itself, for what it does for clients without locks of their own (S3, copies, restores).
    Server = 4,
}

impl LockProtocol {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Nlm,
            2 => Self::Nfs4,
            3 => Self::Smb,
            4 => Self::Server,
            _ => return None,
        })
    }
}

/// The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockMode {
    Shared = 1,
    Exclusive = 2,
}

impl LockMode {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Shared,
            2 => Self::Exclusive,
            _ => return None,
        })
    }
}

/// How ranges of one owner go together. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RangeStyle {
    /// POSIX: each byte has one mode. A new range replaces older ones, which are split and merged. Advisory.
    Replace = 1,
    /// SMB: each range stands by itself, conflicts with the owner's own, and is released as it was taken. Mandatory.
    Exact = 2,
}

impl RangeStyle {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Replace,
            2 => Self::Exact,
            _ => return None,
        })
    }
}

/// A set of accesses: what an open does, or what it denies to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShareBits(u8);

impl ShareBits {
    pub const NONE: Self = Self(0);
    pub const READ: Self = Self(1);
    pub const WRITE: Self = Self(2);
    pub const DELETE: Self = Self(4);
    const ALL: u8 = 7;

    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of `other` is in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// `None` if a bit is set that has no meaning.
    pub const fn of_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL == 0 {
            Some(Self(bits))
        } else {
            None
        }
    }
}

/// What the holder of a lease may keep in its memory: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseBits(u8);

impl LeaseBits {
    pub const NONE: Self = Self(0);
    /// Data that it read, and that there are locks of its own.
    pub const READ: Self = Self(1);
    /// Data that it wrote, and exclusive locks of its own.
    pub const WRITE: Self = Self(2);
    /// Opens, after its programs closed them.
    pub const HANDLE: Self = Self(4);
    const ALL: u8 = 7;

    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn of_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL == 0 {
            Some(Self(bits))
        } else {
            None
        }
    }
}

/// How a lease gives way. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LeaseStyle {
    /// A delegation of NFSv4: it is returned as a whole.
    Whole = 1,
    /// An oplock or lease of SMB: it goes down to what may remain.
    Levels = 2,
}

impl LeaseStyle {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Whole,
            2 => Self::Levels,
            _ => return None,
        })
    }
}

/// A client that has, or may have, locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockClientRecord {
    pub protocol: LockProtocol,
    /// Tells one life of the client from the next.
    pub verifier: [u8; 8],
    /// How long it may be silent; 0 if it need not say that it is there.
    pub lease_ms: u32,
    /// When it was confirmed.
    pub since: Timestamp,
    /// 1 to [`LOCK_NAME_LEN_BYTES_MAX`] bytes.
    pub name: Bytes,
}

impl LockClientRecord {
    /// Panics on a name that is empty or too long.
    pub fn encode(&self) -> Vec<u8> {
        assert!(!self.name.is_empty());
        let mut out = Vec::with_capacity(28 + self.name.len());
        out.push(VERSION);
        out.push(self.protocol as u8);
        out.extend_from_slice(&self.verifier);
        put_u32(&mut out, self.lease_ms);
        put_time(&mut out, self.since);
        put_name(&mut out, &self.name);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("lock client", bytes)?;
        let protocol = LockProtocol::from_u8(fields.u8("protocol")?);
        let record = Self {
            protocol: protocol.ok_or(fields.malformed("protocol"))?,
            verifier: fields.array("verifier")?,
            lease_ms: fields.u32("lease")?,
            since: fields.time("since")?,
            name: name(&mut fields)?,
        };
        if record.name.is_empty() {
            return Err(fields.malformed("name"));
        }
        fields.end()?;
        Ok(record)
    }
}

/// Bytes `first..=last` of a file are locked; the inode is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRangeRecord {
    /// The number of the client.
    pub client: u64,
    pub first: u64,
    /// Not before `first`; `u64::MAX` is the end of any file.
    pub last: u64,
    pub mode: LockMode,
    pub style: RangeStyle,
    pub since: Timestamp,
    /// The owner within the client, at most [`LOCK_NAME_LEN_BYTES_MAX`] bytes.
    pub owner: Bytes,
}

impl LockRangeRecord {
    /// Panics on a range that ends before it begins, and on an owner that is too long.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.first <= self.last);
        let mut out = Vec::with_capacity(41 + self.owner.len());
        out.push(VERSION);
        out.push(self.mode as u8);
        out.push(self.style as u8);
        put_u64(&mut out, self.client);
        put_u64(&mut out, self.first);
        put_u64(&mut out, self.last);
        put_time(&mut out, self.since);
        put_name(&mut out, &self.owner);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("lock range", bytes)?;
        let mode = LockMode::from_u8(fields.u8("mode")?).ok_or(fields.malformed("mode"))?;
        let style = RangeStyle::from_u8(fields.u8("style")?).ok_or(fields.malformed("style"))?;
        let record = Self {
            client: fields.u64("client")?,
            first: fields.u64("first")?,
            last: fields.u64("last")?,
            mode,
            style,
            since: fields.time("since")?,
            owner: name(&mut fields)?,
        };
        if record.first > record.last {
            return Err(fields.malformed("last"));
        }
        fields.end()?;
        Ok(record)
    }
}

/// An open that denies something; the inode is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockShareRecord {
    /// The number of the client.
    pub client: u64,
    pub access: ShareBits,
    /// Not empty.
    pub deny: ShareBits,
    pub since: Timestamp,
    /// The owner within the client, at most [`LOCK_NAME_LEN_BYTES_MAX`] bytes.
    pub owner: Bytes,
}

impl LockShareRecord {
    /// Panics on an open that denies nothing, and on an owner that is too long.
    pub fn encode(&self) -> Vec<u8> {
        assert!(!self.deny.is_none());
        let mut out = Vec::with_capacity(25 + self.owner.len());
        out.push(VERSION);
        out.push(self.access.0);
        out.push(self.deny.0);
        put_u64(&mut out, self.client);
        put_time(&mut out, self.since);
        put_name(&mut out, &self.owner);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("share denial", bytes)?;
        let access = ShareBits::of_bits(fields.u8("access")?).ok_or(fields.malformed("access"))?;
        let deny = ShareBits::of_bits(fields.u8("deny")?).ok_or(fields.malformed("deny"))?;
        if deny.is_none() {
            return Err(fields.malformed("deny"));
        }
        let record = Self {
            client: fields.u64("client")?,
            access,
            deny,
            since: fields.time("since")?,
            owner: name(&mut fields)?,
        };
        fields.end()?;
        Ok(record)
    }
}

/// A delegation, oplock or lease of a file; the inode is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockLeaseRecord {
    /// The number of the client.
    pub client: u64,
    /// Not empty.
    pub level: LeaseBits,
    pub style: LeaseStyle,
    pub since: Timestamp,
    /// The key of the lease within the client, at most [`LOCK_NAME_LEN_BYTES_MAX`] bytes.
    pub owner: Bytes,
}

impl LockLeaseRecord {
    /// Panics on a lease of nothing, and on an owner that is too long.
    pub fn encode(&self) -> Vec<u8> {
        assert!(!self.level.is_none());
        let mut out = Vec::with_capacity(25 + self.owner.len());
        out.push(VERSION);
        out.push(self.level.0);
        out.push(self.style as u8);
        put_u64(&mut out, self.client);
        put_time(&mut out, self.since);
        put_name(&mut out, &self.owner);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::new("lock lease", bytes)?;
        let level = LeaseBits::of_bits(fields.u8("level")?).ok_or(fields.malformed("level"))?;
        if level.is_none() {
            return Err(fields.malformed("level"));
        }
        let style = LeaseStyle::from_u8(fields.u8("style")?).ok_or(fields.malformed("style"))?;
        let record = Self {
            client: fields.u64("client")?,
            level,
            style,
            since: fields.time("since")?,
            owner: name(&mut fields)?,
        };
        fields.end()?;
        Ok(record)
    }
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    assert!(name.len() <= LOCK_NAME_LEN_BYTES_MAX);
    put_u16(out, name.len() as u16);
    out.extend_from_slice(name);
}

fn name(fields: &mut Fields<'_>) -> Result<Bytes, RecordError> {
    let len = usize::from(fields.u16("name")?);
    if len > LOCK_NAME_LEN_BYTES_MAX {
        return Err(fields.malformed("name"));
    }
    Ok(Bytes::copy_from_slice(fields.take(len, "name")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::check::check;
    use proptest::prelude::*;

    const SINCE: Timestamp = Timestamp::new(1_700_000_000, 5);

    fn client() -> LockClientRecord {
        LockClientRecord {
            protocol: LockProtocol::Nfs4,
            verifier: *b"verifier",
            lease_ms: 90_000,
            since: SINCE,
            name: Bytes::from_static(b"Linux NFSv4.1 one"),
        }
    }

    fn range() -> LockRangeRecord {
        LockRangeRecord {
            client: 7,
            first: 100,
            last: u64::MAX,
            mode: LockMode::Exclusive,
            style: RangeStyle::Replace,
            since: SINCE,
            owner: Bytes::new(),
        }
    }

    fn share() -> LockShareRecord {
        LockShareRecord {
            client: 7,
            access: ShareBits::READ.with(ShareBits::DELETE),
            deny: ShareBits::WRITE,
            since: SINCE,
            owner: Bytes::from(vec![3; LOCK_NAME_LEN_BYTES_MAX]),
        }
    }

    fn lease() -> LockLeaseRecord {
        LockLeaseRecord {
            client: 7,
            level: LeaseBits::READ.with(LeaseBits::HANDLE),
            style: LeaseStyle::Whole,
            since: SINCE,
            owner: Bytes::from_static(b"key"),
        }
    }

    #[test]
    fn records_are_read_back_or_refused() {
        check(&client(), client().encode(), LockClientRecord::decode);
        check(&range(), range().encode(), LockRangeRecord::decode);
        check(&share(), share().encode(), LockShareRecord::decode);
        check(&lease(), lease().encode(), LockLeaseRecord::decode);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let with = |mut bytes: Vec<u8>, at: usize, byte: u8| {
            bytes[at] = byte;
            bytes
        };
        for protocol in [0, 5] {
            assert!(LockClientRecord::decode(&with(client().encode(), 1, protocol)).is_err());
        }
        // The length of the name, and no name.
        let nameless = with(client().encode(), 27, 0)[..28].to_vec();
        assert!(LockClientRecord::decode(&nameless).is_err());
        for (at, byte) in [(1, 0), (1, 3), (2, 0), (2, 3)] {
            assert!(LockRangeRecord::decode(&with(range().encode(), at, byte)).is_err());
        }
        // Its end comes before its beginning.
        assert!(LockRangeRecord::decode(&with(range().encode(), 11, 0xff)).is_ok());
        let backwards = LockRangeRecord {
            last: 100,
            ..range()
        }
        .encode();
        assert!(LockRangeRecord::decode(&with(backwards, 18, 101)).is_err());
        for (at, byte) in [(1, 8), (2, 0), (2, 8)] {
            assert!(LockShareRecord::decode(&with(share().encode(), at, byte)).is_err());
        }
        for (at, byte) in [(1, 0), (1, 8), (2, 0), (2, 3)] {
            assert!(LockLeaseRecord::decode(&with(lease().encode(), at, byte)).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(0u8..4, 0..80), versioned: bool) {
            if let (true, Some(first)) = (versioned, bytes.first_mut()) {
                *first = VERSION;
            }
            macro_rules! same_bytes {
                ($($record:ty),*) => {$(
                    if let Ok(record) = <$record>::decode(&bytes) {
                        prop_assert_eq!(&record.encode(), &bytes);
                    }
                )*};
            }
            same_bytes!(LockClientRecord, LockRangeRecord, LockShareRecord, LockLeaseRecord);
        }
    }
}
