//! The state from its records: at a start, and when a volume gets another owner.
//!
//! Owns: what the records mean, which of them cannot be together. Must not know: where they were read.
//! Invariant: what comes back is what was durable: no lock less, none more, and nothing is answered before all is there.

use std::sync::Arc;

use cairn_base::{Epoch, Ino};
use cairn_formats::metadata::{
    KeyError, KeyKind, LockClientRecord, LockLeaseRecord, LockMode, LockRangeRecord,
    LockShareRecord, RangeStyle, RecordError,
};

use crate::limits::Limits;
use crate::matrix::{modes_conflict, shares_conflict};
use crate::model::{Change, Client, ClientId, ClientIdentity, Lease, Now, Open, Owner};
use crate::range::{ByteRange, Held, find_overlap};
use crate::state::Locks;

/// Numbers that one term of an owner gives out before they run into those of the next.
const EPOCH_NUMBERS: u64 = 1 << 40;

/// Numbers are below it, so that counting on from any of them never ends.
const NUMBER_END: u64 = 1 << 63;

/// Why records are not the locks of a volume. They were written in whole batches, so this is a bug or a newer version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("damaged record of a lock: {0}")]
    Record(#[from] RecordError),
    #[error("damaged key of a lock: {0}")]
    Key(#[from] KeyError),
    #[error("a record that belongs to no lock lies among those of the locks")]
    OtherKey,
    #[error("number {number} of inode {ino} has no client {client}")]
    NoClient { ino: Ino, number: u64, client: u64 },
    #[error("two records name the same client: {0} and {1}")]
    SameClient(u64, u64),
    #[error("number {0} was never given to a lock or client")]
    Number(u64),
    #[error("number {number} of inode {ino} excludes another lock or open there")]
    Conflict { ino: Ino, number: u64 },
}

impl Locks {
    /// The locks of a volume, from all of its records: bytes of keys and values in the order of the keys
    /// (`Key::all_locks` is their range). `epoch` is that of the owner's term.
    ///
    /// Each client's lease begins anew at `now`. Limits do not apply to what is there.
    pub fn restore<'a>(
        limits: Limits,
        epoch: Epoch,
        now: Now,
        records: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, RestoreError> {
        let mut locks = Self::empty(limits, 1);
        let mut number_last = 0;
        for (key, value) in records {
            let number = match KeyKind::parse(key)? {
                KeyKind::LockClient(number) => {
                    let record = LockClientRecord::decode(value)?;
                    locks.restore_client(now, number, record)?;
                    number
                }
                KeyKind::LockRange { ino, number } => {
                    locks.restore_range(ino, number, LockRangeRecord::decode(value)?)?;
                    number
                }
                KeyKind::LockShare { ino, number } => {
                    locks.restore_share(ino, number, LockShareRecord::decode(value)?)?;
                    number
                }
                KeyKind::LockLease { ino, number } => {
                    locks.restore_lease(ino, number, LockLeaseRecord::decode(value)?)?;
                    number
                }
                _ => return Err(RestoreError::OtherKey),
            };
            if !(1..NUMBER_END).contains(&number) {
                return Err(RestoreError::Number(number));
            }
            number_last = number_last.max(number);
        }
        // Above all that are in use; and above those of the last term that have no records, if the epoch is no absurd one.
        let of_epoch = epoch.0.saturating_mul(EPOCH_NUMBERS);
        let of_epoch = if of_epoch < NUMBER_END { of_epoch } else { 0 };
        locks.number_next = of_epoch.max(number_last + 1);
        let leases = locks
            .reclaiming
            .iter()
            .filter_map(|id| locks.clients.get(id));
        let longest_ms = leases.map(|client| u64::from(client.lease_ms)).max();
        locks.reclaim_until_ms = now.ms.saturating_add(longest_ms.unwrap_or(0));
        Ok(locks)
    }

    fn restore_client(
        &mut self,
        now: Now,
        number: u64,
        record: LockClientRecord,
    ) -> Result<(), RestoreError> {
        let id = ClientId(number);
        let identity = ClientIdentity {
            protocol: record.protocol,
            name: record.name,
        };
        if let Some(other) = self.identities.get(&identity) {
            return Err(RestoreError::SameClient(other.0, number));
        }
        // Who need not say that it is there has nothing open but what is recorded.
        if record.lease_ms > 0 {
            self.reclaiming.insert(id);
        }
        self.add_client(
            id,
            Client {
                identity,
                verifier: record.verifier,
                lease_ms: record.lease_ms,
                since: record.since,
                renewed_ms: now.ms,
                files: Default::default(),
                items: 0,
                pending: Vec::new(),
            },
        );
        Ok(())
    }

    fn restored_owner(
        &self,
        (ino, number): (Ino, u64),
        client: u64,
        style: RangeStyle,
        name: bytes::Bytes,
    ) -> Result<Arc<Owner>, RestoreError> {
        let id = ClientId(client);
        if !self.clients.contains_key(&id) {
            return Err(RestoreError::NoClient {
                ino,
                number,
                client,
            });
        }
        let owner = Owner {
            client: id,
            style,
            name,
        };
        let known = self.owner_ranges(ino, &owner);
        Ok(known.map_or_else(|| Arc::new(owner), |of| Arc::clone(&of.owner)))
    }

    fn restore_range(
        &mut self,
        ino: Ino,
        number: u64,
        record: LockRangeRecord,
    ) -> Result<(), RestoreError> {
        let LockRangeRecord {
            client,
            mode,
            style,
            since,
            ..
        } = record;
        let owner = self.restored_owner((ino, number), client, style, record.owner)?;
        let conflict = RestoreError::Conflict { ino, number };
        let range = ByteRange::new(record.first, record.last).ok_or(conflict.clone())?;
        let owners = self.files.get(&ino).map_or(&[][..], |file| &file.owners);
        let excludes = owners.iter().any(|of| {
            let is_own_replaced = of.owner == owner && style == RangeStyle::Replace;
            let conflicts = |other: LockMode| is_own_replaced || modes_conflict(other, mode);
            find_overlap(&of.held, of.owner.style, range, |held| conflicts(held.mode)).is_some()
        });
        if excludes {
            return Err(conflict);
        }
        let mut after = self.held(ino, &owner).to_vec();
        // In the order in which they were locked where they begin together, as the numbers are.
        let at = after
            .partition_point(|held| (held.range.first(), held.number) < (range.first(), number));
        after.insert(
            at,
            Held {
                range,
                mode,
                number,
                since,
            },
        );
        self.set(ino, Change::Ranges { owner, after });
        Ok(())
    }

    fn restore_share(
        &mut self,
        ino: Ino,
        number: u64,
        record: LockShareRecord,
    ) -> Result<(), RestoreError> {
        let LockShareRecord {
            client,
            access,
            deny,
            since,
            ..
        } = record;
        let owner =
            self.restored_owner((ino, number), client, RangeStyle::Replace, record.owner)?;
        let opens = self.files.get(&ino).map_or(&[][..], |file| &file.opens);
        let excludes = opens.iter().any(|open| {
            open.owner == owner || shares_conflict((access, deny), (open.access, open.deny))
        });
        if excludes {
            return Err(RestoreError::Conflict { ino, number });
        }
        let open = Open {
            number,
            owner: Arc::clone(&owner),
            access,
            deny,
            since,
        };
        let after = Some(open);
        self.set(
            ino,
            Change::Open {
                number,
                owner,
                after,
            },
        );
        Ok(())
    }

    fn restore_lease(
        &mut self,
        ino: Ino,
        number: u64,
        record: LockLeaseRecord,
    ) -> Result<(), RestoreError> {
        let LockLeaseRecord {
            client,
            level,
            style,
            since,
            ..
        } = record;
        let owner =
            self.restored_owner((ino, number), client, RangeStyle::Replace, record.owner)?;
        let lease = Lease {
            number,
            owner: Arc::clone(&owner),
            level,
            style,
            since,
            // A request that needs it to give way recalls it again.
            recalled: None,
        };
        let after = Some(lease);
        self.set(
            ino,
            Change::Lease {
                number,
                owner,
                after,
            },
        );
        Ok(())
    }
}
