//! The metadata of a volume as it is stored: keys and values, the log, copies of the state.
//!
//! Owns: these layouts (docs/reference/formats/metadata.md). Integers are big-endian, so that byte order is number
//! order.
//! Must not know: RocksDB, which records of the log count, what POSIX makes of the fields.

#[cfg(test)]
mod check;
pub mod descriptor;
pub mod extent;
mod fields;
pub mod group;
pub mod keys;
pub mod locks;
pub mod log;
pub mod policy;
pub mod quota;
pub mod records;
pub mod state_file;
pub mod versions;

pub use extent::decode_extent;
pub use group::{Fold, Group, JOURNAL_DATA_BYTES_MAX, JournalEntry, Put};
pub use keys::{Key, KeyError, KeyKind};
pub use locks::{
    LOCK_NAME_LEN_BYTES_MAX, LeaseBits, LeaseStyle, LockClientRecord, LockLeaseRecord, LockMode,
    LockProtocol, LockRangeRecord, LockShareRecord, RangeStyle, ShareBits,
};
pub use policy::{ApplyRecord, ApplyState, PolicyRecord};
pub use quota::{
    GraceRecord, QUOTA_PATH_LEN_BYTES_MAX, QuotaKey, QuotaKind, QuotaLimit, QuotaRecord, TreeState,
    UsageRecord,
};
pub use records::{
    AppliedRecord, CLONE_COUNT_MAX, CloneRecord, CookieRecord, CountersRecord, DirentRecord,
    ExtentPlace, ExtentRecord, INLINE_LEN_BYTES_MAX, InodeKind, InodeRecord, RecordError,
    RemoteSegment, RequestRecord, SegmentRecord, SnapshotRecord,
};
