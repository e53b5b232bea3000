//! Addresses that nodes share: which there are, and which node has which now.
//!
//! Owns: changing a pool, taking and leaving an address, each as one transaction.
//! Must not know: which node should have which address, how one is put on an interface.
//!
//! An address has one holder at a time. It is a key that is created only where there is none, on the lease of the holder, so that
//! the store deletes it when that lease ends, and nobody else takes the address before.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::keys::{NameKind, is_name};
use super::values::{AddressHolder, AddressPoolRecord, NameRecord, Versioned, encode};
use super::{ClusterMap, MapError, Process, Written};
use crate::coordinator::{Compare, Key, KeyRange, Op, Outcome, Revision, TXN_OPS_MAX, Txn};

const WHAT: &str = "an address pool";
/// Addresses that come and go in one transaction, which writes the pool beside.
const ADDRESS_CHANGES_MAX: usize = TXN_OPS_MAX - 1;

impl ClusterMap {
    /// Makes a pool, or replaces one; `replaced` as it was read. [`MapError::Exists`]: a volume, another pool or a node has one
    /// of its addresses, or a pool has its name. [`MapError::Changed`]: somebody changed it meanwhile. Of more changes than one
    /// transaction takes, some of what goes has gone then.
    pub async fn set_address_pool(
        &self,
        replaced: Option<&Versioned<AddressPoolRecord>>,
        record: &AddressPoolRecord,
    ) -> Result<(), MapError> {
        let Some(first) = replaced.and_then(|before| part_of_change(&before.value, record)) else {
            return self.set_address_pool_at_once(replaced, record).await;
        };
        self.set_address_pool_at_once(replaced, &first).await?;
        let key = self.keys().address_pool(&first.name);
        let now = self.read_one::<AddressPoolRecord>(key.clone()).await?;
        let now = now.filter(|now| now.value == first);
        let now = now.ok_or(MapError::Changed { key, what: WHAT })?;
        self.set_address_pool_at_once(Some(&now), record).await
    }

    async fn set_address_pool_at_once(
        &self,
        replaced: Option<&Versioned<AddressPoolRecord>>,
        record: &AddressPoolRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().address_pool(&record.name);
        if !is_name(&record.name) {
            return Err(MapError::Invalid {
                key,
                what: "the name of an address pool",
                problem: "a name has letters, digits, '-', '_' and '.', 63 at most".to_owned(),
            });
        }
        let before: BTreeSet<IpAddr> = replaced
            .iter()
            .flat_map(|pool| pool.value.addresses.iter().copied())
            .collect();
        let after: BTreeSet<IpAddr> = record.addresses.iter().copied().collect();
        let mut txn = Txn::default();
        let name = NameRecord {
            of: format!("address pool {}", record.name),
        };
        for address in after.difference(&before) {
            let claim = self.claim_of_address(*address);
            txn.when.push(Compare::absent(claim.clone()));
            txn.then
                .push(Op::put(claim.clone(), encode(&claim, &name)?));
            txn.otherwise.push(KeyRange::One(claim));
        }
        for address in before.difference(&after) {
            txn.then.push(Op::delete(self.claim_of_address(*address)));
        }
        let revision = replaced.map_or(Revision::ABSENT, |pool| pool.revision);
        match self.write(key.clone(), revision, record, txn).await? {
            Written::Done => Ok(()),
            Written::Refused(reply) => {
                let found = reply.reads.iter().flatten().next();
                Err(match found.filter(|entry| entry.key != key) {
                    Some(taken) => MapError::Exists {
                        key: taken.key.clone(),
                        what: "this address",
                    },
                    None if replaced.is_none() => MapError::Exists { key, what: WHAT },
                    None => MapError::Changed { key, what: WHAT },
                })
            }
        }
    }

    /// Removes a pool. Who holds one of its addresses leaves it when the change is seen.
    pub async fn remove_address_pool(
        &self,
        pool: &Versioned<AddressPoolRecord>,
    ) -> Result<(), MapError> {
        let key = self.keys().address_pool(&pool.value.name);
        let claims = pool.value.addresses.iter();
        let claims = claims.map(|address| self.claim_of_address(*address));
        let gone: Vec<Op> = std::iter::once(key.clone())
            .chain(claims)
            .map(Op::delete)
            .collect();
        let txn = Txn {
            when: vec![Compare::Modified(key.clone(), pool.revision)],
            then: gone,
            otherwise: Vec::new(),
        };
        self.delete(txn, key, WHAT).await
    }

    /// Has this process hold an address of a pool for as long as its lease lives; fine if it does. [`MapError::Changed`]: another one holds it, or
    /// the pool was changed since it was read.
    pub async fn take_address(
        &self,
        process: Process,
        pool: &Versioned<AddressPoolRecord>,
        address: IpAddr,
    ) -> Result<(), MapError> {
        assert!(pool.value.addresses.contains(&address));
        let key = self.keys().address_holder(address);
        let holder = holder_of(process, address);
        let pool_key = self.keys().address_pool(&pool.value.name);
        let txn = Txn {
            when: vec![Compare::Modified(pool_key, pool.revision)],
            ..Txn::default()
        };
        let lease = Some(process.lease);
        let written = self.write_leased(key.clone(), Revision::ABSENT, &holder, lease, txn);
        written.await?.or_changed(key, "who holds an address")
    }

    /// Lets others hold an address that this process holds; fine if it does not. To be called when the address has left the
    /// machine. Of an unknown outcome: at the latest the lease frees it.
    pub async fn leave_address(&self, process: Process, address: IpAddr) -> Result<(), MapError> {
        let key = self.keys().address_holder(address);
        let value = encode(&key, &holder_of(process, address))?;
        // A copy that is done late compares this very process: after a deletion it takes another address only from a holder that
        // is this process again, and that one sees it as lost and takes it anew.
        let txn = Txn {
            when: vec![Compare::Value(key.clone(), value)],
            then: vec![Op::delete(key)],
            otherwise: Vec::new(),
        };
        match self.shared.coordinator.transact(txn).await {
            Outcome::Done(reply) => {
                self.wrote(reply.revision);
                Ok(())
            }
            Outcome::Refused(_) => Ok(()),
            Outcome::Unknown(error) => Err(MapError::Unknown(error)),
            Outcome::Failed(error) => Err(MapError::Coordinator(error)),
        }
    }

    /// The key that says what has an address.
    pub(super) fn claim_of_address(&self, address: IpAddr) -> Key {
        self.keys().name(NameKind::Address, &address.to_string())
    }
}

/// The first part of a change that is too large for one transaction: some of the addresses to remove.
fn part_of_change(
    before: &AddressPoolRecord,
    after: &AddressPoolRecord,
) -> Option<AddressPoolRecord> {
    let is_gone = |address: &&IpAddr| !after.addresses.contains(address);
    let is_new = |address: &&IpAddr| !before.addresses.contains(address);
    let gone: Vec<IpAddr> = before.addresses.iter().filter(is_gone).copied().collect();
    let count = gone.len() + after.addresses.iter().filter(is_new).count();
    let excess = count
        .checked_sub(ADDRESS_CHANGES_MAX)
        .filter(|it| *it > 0)?;
    let first = gone.get(..excess)?;
    let mut part = before.clone();
    part.addresses.retain(|address| !first.contains(address));
    Some(part)
}

fn holder_of(process: Process, address: IpAddr) -> AddressHolder {
    AddressHolder {
        address,
        node: process.node,
        process: process.nonce,
    }
}
