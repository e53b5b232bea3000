//! What features keep with an inode in memory: plain data, whose meaning the features know.
//!
//! Owns: nothing but the types. `quota` counts with domains, `reserve` with reservations, `policy` with the policy that
//! it found last; they are here because each inode in memory has one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use cairn_base::Ino;
use cairn_meta::{PolicyRecord, QuotaKey, QuotaLimit};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

/// The policy that was found for an inode, the state in which it was found, and the inode's directory at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CachedPolicy {
    pub said: PolicyRecord,
    pub at: u64,
    pub parent: Ino,
}

/// The reservation of one file.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// Its size; the file needs the part that it does not have.
    pub bytes: AtomicU64,
    /// The part of the size that the file does not have; changed under the file's lock.
    pub left: AtomicU64,
    /// The amount for this file at the last report to the budget.
    pub told: AtomicU64,
}

/// The limits of a quota, and their unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub bytes: QuotaLimit,
    pub files: QuotaLimit,
    pub is_physical: bool,
    pub grace_seconds: u64,
}

/// The events of a quota that were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaNotices {
    pub advisory: bool,
    pub soft: bool,
    pub hard: bool,
    pub refusals: u64,
}

/// The scope of one quota, with its present state.
#[derive(Debug)]
pub(crate) struct Domain {
    pub key: QuotaKey,
    pub limits: RwLock<Limits>,
    /// Bytes in memory, or admitted, that may add to the usage.
    pub pending_bytes: AtomicI64,
    /// The part of the pending bytes that is reserved for files, which no flush reduces.
    pub reserved_bytes: AtomicI64,
    /// Bytes in memory that will add to the usage: without those that are known to replace others.
    pub fresh_bytes: AtomicI64,
    /// When soft limits were passed, in seconds since 1970; 0: they are not.
    pub bytes_since: AtomicU64,
    pub files_since: AtomicU64,
    /// Held by a writer that waits near the limit; no other writer adds dirty bytes meanwhile.
    pub near: Semaphore,
    pub refusals: AtomicU64,
    /// The reported events: each is reported once, until it is over.
    pub told: Mutex<QuotaNotices>,
}

/// The domains that an owner counts for, from the tree to the volume.
pub(crate) type Domains = Arc<[Arc<Domain>]>;

/// Bytes of an inode in memory that are pending in some domains.
#[derive(Debug)]
pub(crate) struct Charged {
    pub domains: Domains,
    pub bytes: u64,
    /// The part of these bytes that does not replace stored ones.
    pub fresh_bytes: u64,
    /// The part of these bytes that is reserved for the file.
    pub reserved_bytes: u64,
}
