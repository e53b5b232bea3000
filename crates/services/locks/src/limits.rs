//! The limits of one volume's locks.
//!
//! Owns: the numbers, and what one thing takes in memory. Must not know: how anything is counted.

use std::mem::size_of;
use std::sync::Arc;

use cairn_base::Ino;

use crate::model::{Client, File, Lease, Open, Owner, OwnerRanges, Waiter};
use crate::range::Held;

/// What the locks of a volume may grow to, and how long others wait for answers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub clients_max: usize,
    /// Ranges, opens, leases and waiting requests of one client together. A client that goes is one batch of the log with
    /// up to as many deletions of 23 bytes.
    pub client_items_max: usize,
    pub file_ranges_max: usize,
    /// Opens and leases of a file together.
    pub file_opens_max: usize,
    pub file_waiters_max: usize,
    pub volume_waiters_max: usize,
    /// Of everything that is counted by [`crate::Locks::memory_bytes`].
    pub memory_bytes_max: u64,
    /// How long the holder of a lease has until it is revoked.
    pub recall_ms: u64,
    /// How long a client that polls for a lock keeps its place without asking again.
    pub polled_ms: u64,
    /// How long it keeps its place when it could have the lock.
    pub polled_free_ms: u64,
    /// Most owners that the search for a deadlock looks at. A longer chain of waiting owners is not found; a cancellation or the
    /// end of a client's lease ends it.
    pub deadlock_owners_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients_max: 16_384,
            client_items_max: 131_072,
            file_ranges_max: 16_384,
            file_opens_max: 16_384,
            file_waiters_max: 1024,
            volume_waiters_max: 16_384,
            memory_bytes_max: 256 << 20,
            recall_ms: 90_000,
            polled_ms: 40_000,
            polled_free_ms: 5_000,
            deadlock_owners_max: 1024,
        }
    }
}

/// Which limit refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    Clients,
    ClientItems,
    FileRanges,
    FileOpens,
    FileWaiters,
    VolumeWaiters,
    MemoryBytes,
}

impl Limit {
    /// Whether all clients share it.
    pub(crate) fn is_of_volume(self) -> bool {
        match self {
            Self::Clients | Self::VolumeWaiters | Self::MemoryBytes => true,
            Self::ClientItems | Self::FileRanges | Self::FileOpens | Self::FileWaiters => false,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Clients => "clients with locks in the volume",
            Self::ClientItems => "locks, opens and waiting requests of the client",
            Self::FileRanges => "locked ranges of the file",
            Self::FileOpens => "opens and leases of the file",
            Self::FileWaiters => "waiting requests for the file",
            Self::VolumeWaiters => "waiting requests in the volume",
            Self::MemoryBytes => "bytes of memory for locks of the volume",
        })
    }
}

/// Vectors grow by doubling: on average half of what they have more than they need, counted at the worst.
const GROWTH: usize = 2;
/// An entry of a hash map or tree beside its value: its key, its control byte, room that is free.
const ENTRY_LEN_BYTES: usize = 48;

fn owner_len_bytes(owner: &Owner) -> usize {
    // The counts of an `Arc`.
    16 + size_of::<Owner>() + owner.name.len()
}

pub(crate) const RANGE_LEN_BYTES: usize = GROWTH * size_of::<Held>();
pub(crate) const FILE_LEN_BYTES: usize = size_of::<File>() + ENTRY_LEN_BYTES;

/// Of an owner with ranges in a file, beside its ranges.
pub(crate) fn owner_ranges_len_bytes(owner: &Owner) -> usize {
    GROWTH * size_of::<OwnerRanges>() + owner_len_bytes(owner)
}

pub(crate) fn ranges_len_bytes(owner: &Owner, held: &[Held]) -> usize {
    match held.len() {
        0 => 0,
        count => owner_ranges_len_bytes(owner) + count * RANGE_LEN_BYTES,
    }
}

pub(crate) fn open_len_bytes(open: &Open) -> usize {
    GROWTH * size_of::<Open>() + owner_len_bytes(&open.owner)
}

pub(crate) fn lease_len_bytes(lease: &Lease) -> usize {
    GROWTH * size_of::<Lease>() + owner_len_bytes(&lease.owner) + ENTRY_LEN_BYTES
}

pub(crate) fn waiter_len_bytes(waiter: &Waiter) -> usize {
    let waiting = ENTRY_LEN_BYTES + size_of::<(Arc<Owner>, Vec<(Ino, u64)>)>();
    GROWTH * size_of::<Waiter>() + owner_len_bytes(&waiter.owner) + waiting
}

pub(crate) fn client_len_bytes(client: &Client) -> usize {
    // The identity is the key of a second map.
    size_of::<Client>() + 2 * (ENTRY_LEN_BYTES + client.identity.name.len())
}

/// Of each file in which a client has something.
pub(crate) const CLIENT_FILE_LEN_BYTES: usize = ENTRY_LEN_BYTES;
