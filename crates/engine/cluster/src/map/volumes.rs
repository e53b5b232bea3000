//! Volumes: their records, who owns them in which epoch, and which disks have their log.
//!
//! Owns: taking over, changing the log and giving up, each as one transaction (section 8 of the design, steps 1, 2, 7, 8).
//! Must not know: what a log holds, fences at disks.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::planted::{self, Bug};
use cairn_base::{Epoch, NodeId, VolumeId};

use super::keys::{NameKind, is_name};
use super::values::{
    AddressRecord, ChangeNonce, ClassesRecord, DiskRecord, EnsembleId, EpochRecord, LeftRecord,
    LogRecord, LogoutsRecord, MaintenanceRecord, NameRecord, NextVolume, Opaque, OwnerRecord,
    PreferredRecord, ProcessNonce, ReservedRecord, SecretsKeyRecord, TiersRecord, UsageRecord,
    UsersRecord, Value, Versioned, VolumeLog, VolumeRecord, decode, encode,
};
use super::{ClusterMap, MapError, Written};
use crate::coordinator::{Compare, Entry, Key, KeyRange, LeaseId, Op, Revision, Txn, TxnReply};
use crate::settle::{Mark, Settled};

const NEXT_VOLUME: &str = "the next volume's number";

/// How values are read and replaced of which there is one for all of their kind: the key is called as what reads it.
macro_rules! wholes {
    ($($(#[$what:meta])* $read:ident, $replace:ident: $record:ty;)*) => {
        $(
            $(#[$what])*
            pub async fn $read(&self) -> Result<Option<Versioned<$record>>, MapError> {
                self.read_one(self.keys().$read()).await
            }

            #[doc = concat!("Replaces all of it; `replaced` as [`Self::", stringify!($read), "`] returned it.")]
            pub async fn $replace(
                &self,
                replaced: Option<&Versioned<$record>>,
                record: &$record,
            ) -> Result<(), MapError> {
                self.replace(self.keys().$read(), replaced, record).await
            }
        )*
    };
}

/// A process of a node, and the lease that it keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub node: NodeId,
    pub nonce: ProcessNonce,
    pub lease: LeaseId,
}

/// The log of a volume, as it was at a revision. The next change compares that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogAt {
    pub revision: Revision,
    pub log: VolumeLog,
}

/// A volume that this process has taken over.
///
/// It is no proof of ownership by itself: that ends with the lease, and with the first change that is refused.
#[derive(Debug)]
pub struct Owned {
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub log: LogAt,
    /// Of the key that holds the epoch: to compare it is to compare the epoch.
    epoch_revision: Revision,
    process: Process,
    next_counter: u32,
    /// A change of the log whose outcome is not known.
    pending: Option<LogRecord>,
}

impl Owned {
    pub fn process(&self) -> Process {
        self.process
    }

    /// A number for a new ensemble. Never the same twice, also if no change of the log with it was made: files may have
    /// been.
    pub fn new_ensemble_id(&mut self) -> EnsembleId {
        let counter = self.next_counter;
        self.next_counter += 1;
        EnsembleId {
            epoch: self.epoch,
            counter,
        }
    }
}

/// All that the map has of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    pub record: Versioned<VolumeRecord>,
    pub owner: Option<Versioned<OwnerRecord>>,
    pub epoch: Versioned<EpochRecord>,
    pub log: LogAt,
    pub left: Option<Versioned<LeftRecord>>,
    pub usage: Option<Versioned<UsageRecord>>,
    pub reserved: Option<Versioned<ReservedRecord>>,
    pub address: Option<Versioned<AddressRecord>>,
    pub preferred: Option<NodeId>,
}

impl VolumeState {
    /// What its owner said when it had nothing on a draining disk any more; nothing, if it has.
    pub(super) fn left_of(&self, disk: &Versioned<DiskRecord>) -> Option<&Versioned<LeftRecord>> {
        let left = self.left.as_ref()?;
        let at = left.value.disks.get(&disk.value.id);
        (at == Some(&disk.revision.0)).then_some(left)
    }
}

impl ClusterMap {
    /// Makes a volume without an owner and without a log. Its first owner opens the log at position 1.
    pub async fn create_volume(
        &self,
        name: &str,
        settings: Opaque,
        exports: Opaque,
    ) -> Result<VolumeId, MapError> {
        let name_key = self.keys().name(NameKind::Volume, name);
        if !is_name(name) {
            return Err(MapError::Invalid {
                key: name_key,
                what: "a volume's name",
                problem: "a name has letters, digits, '-', '_' and '.', 63 at most".to_owned(),
            });
        }
        loop {
            let volume = self.next_volume().await?;
            let record = VolumeRecord {
                id: volume,
                name: name.to_owned(),
                settings: settings.clone(),
                exports: exports.clone(),
                clones: Vec::new(),
                is_deleted: false,
            };
            match self.add_volume(&record).await {
                Ok(()) => return Ok(volume),
                Err(MapError::Changed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    wholes! {
        /// The classes of service, if there ever were any.
        classes, set_classes: ClassesRecord;
        /// The users of the admin API, if there ever were any.
        users, set_users: UsersRecord;
        /// The sessions of the admin API that were ended, if there ever were any.
        logouts, set_logouts: LogoutsRecord;
        /// When the cluster's own work is done, if somebody ever set it.
        maintenance, set_maintenance: MaintenanceRecord;
        /// The key of the cluster's secrets, if there ever was a master key.
        secrets_key, set_secrets_key: SecretsKeyRecord;
        /// The tiers, if there ever were any.
        tiers, set_tiers: TiersRecord;
    }

    /// Writes a value that stands for all of its kind, in place of the one that was read, if that is still there.
    async fn replace<T: Value>(
        &self,
        key: Key,
        replaced: Option<&Versioned<T>>,
        record: &T,
    ) -> Result<(), MapError> {
        let replaced = replaced.map_or(Revision::ABSENT, |there| there.revision);
        let written = self.write(key.clone(), replaced, record, Txn::default());
        written.await?.or_changed(key, T::WHAT)
    }

    /// The number that the next volume gets.
    pub async fn next_volume(&self) -> Result<VolumeId, MapError> {
        let counter = self.read_one::<NextVolume>(self.keys().next_volume());
        let counter = counter.await?;
        Ok(counter.map_or(VolumeId(1), |counter| counter.value.next))
    }

    /// Says which draining disks have nothing of a volume any more; refused unless this process owns it in this epoch.
    pub async fn set_left(
        &self,
        volume: VolumeId,
        process: Process,
        epoch: Epoch,
        left: &LeftRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().left(volume);
        self.set_as_owner(volume, process, epoch, key, left).await
    }

    /// Says what each node has of a volume; refused unless this process owns it in this epoch.
    pub async fn set_usage(
        &self,
        volume: VolumeId,
        process: Process,
        epoch: Epoch,
        usage: &UsageRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().usage(volume);
        self.set_as_owner(volume, process, epoch, key, usage).await
    }

    /// Says what is set aside for files of a volume; refused unless this process owns it in this epoch.
    pub async fn set_reserved(
        &self,
        volume: VolumeId,
        process: Process,
        epoch: Epoch,
        reserved: &ReservedRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().reserved(volume);
        self.set_as_owner(volume, process, epoch, key, reserved)
            .await
    }

    async fn set_as_owner<T: Value>(
        &self,
        volume: VolumeId,
        process: Process,
        epoch: Epoch,
        key: Key,
        value: &T,
    ) -> Result<(), MapError> {
        let owner_key = self.keys().owner(volume);
        let owner = OwnerRecord {
            node: process.node,
            process: process.nonce,
            epoch,
        };
        let txn = Txn {
            when: vec![Compare::Value(
                owner_key.clone(),
                encode(&owner_key, &owner)?,
            )],
            ..Txn::default()
        };
        let before = self.read_one::<T>(key.clone()).await?;
        let replaced = before.map_or(Revision::ABSENT, |before| before.revision);
        self.write(key.clone(), replaced, value, txn)
            .await?
            .or_changed(key, "the owner of a volume")
    }

    /// Has a node own a volume while it can; `None`: whichever.
    pub async fn set_preferred(
        &self,
        volume: VolumeId,
        node: Option<NodeId>,
    ) -> Result<(), MapError> {
        let key = self.keys().preferred(volume);
        loop {
            let before = self.read_one::<PreferredRecord>(key.clone()).await?;
            let replaced = before.map_or(Revision::ABSENT, |before| before.revision);
            let Some(node) = node else {
                if replaced == Revision::ABSENT {
                    return Ok(());
                }
                return self
                    .delete_one(key, replaced, "a volume's preferred node")
                    .await;
            };
            let record = PreferredRecord { node };
            let written = self.write(key.clone(), replaced, &record, Txn::default());
            if let Written::Done = written.await? {
                return Ok(());
            }
        }
    }

    /// The key that says who has an address.
    fn claim_of(&self, address: &AddressRecord) -> Key {
        self.claim_of_address(address.address)
    }

    /// Has an address follow a volume's owner; `None`: none any more. Refused if something else has it, or a node still does for a
    /// pool that it was of.
    pub async fn set_address(
        &self,
        volume: VolumeId,
        address: Option<&AddressRecord>,
    ) -> Result<(), MapError> {
        const WHAT: &str = "a volume's address";
        let keys = self.keys();
        let key = keys.volume_address(volume);
        let state = self.volume(volume).await?;
        let before = state.address;
        let replaced = before
            .as_ref()
            .map_or(Revision::ABSENT, |before| before.revision);
        let claimed = before.map(|before| self.claim_of(&before.value));
        let mut txn = Txn {
            // The volume is not deleted meanwhile.
            when: vec![Compare::Modified(
                keys.volume(volume),
                state.record.revision,
            )],
            ..Txn::default()
        };
        let Some(address) = address else {
            let Some(claimed) = claimed else {
                return Ok(());
            };
            txn.when.push(Compare::Modified(key.clone(), replaced));
            txn.then = vec![Op::delete(key.clone()), Op::delete(claimed)];
            return self.delete(txn, key, WHAT).await;
        };
        let (claim, holder) = (self.claim_of(address), keys.address_holder(address.address));
        if claimed.as_ref() != Some(&claim) {
            let name = NameRecord {
                of: volume.to_string(),
            };
            for taken in [&claim, &holder] {
                txn.when.push(Compare::absent(taken.clone()));
                txn.otherwise.push(KeyRange::One(taken.clone()));
            }
            txn.then
                .push(Op::put(claim.clone(), encode(&claim, &name)?));
            txn.then.extend(claimed.map(Op::delete));
        }
        match self.write(key.clone(), replaced, address, txn).await? {
            Written::Done => Ok(()),
            Written::Refused(reply) => {
                let is_there = |key: &Key| reply.reads.iter().flatten().any(|it| it.key == *key);
                let taken = [claim, holder].into_iter().find(is_there);
                Err(match taken {
                    Some(key) => MapError::Exists {
                        key,
                        what: "this address",
                    },
                    None => MapError::Changed { key, what: WHAT },
                })
            }
        }
    }

    /// Removes a draining disk that all volumes have left. An error names a volume that has not.
    pub async fn remove_left_disk(&self, disk: cairn_base::DiskId) -> Result<(), MapError> {
        let key = self.keys().disk(disk);
        let record = self.disk(disk).await?;
        let invalid = |problem: String| MapError::Invalid {
            key: key.clone(),
            what: "the removal of a disk",
            problem,
        };
        if !record.value.draining {
            return Err(invalid(
                "it does not drain: `cairn disk drain` moves what is on it to others".to_owned(),
            ));
        }
        let (volumes, _) = self.volumes().await?;
        let counter_key = self.keys().next_volume();
        let counter = self.read_one::<NextVolume>(counter_key.clone()).await?;
        let mut when = vec![
            Compare::Modified(key.clone(), record.revision),
            // A volume that is made meanwhile has not left it.
            Compare::Modified(
                counter_key,
                counter.map_or(Revision::ABSENT, |counter| counter.revision),
            ),
        ];
        for volume in &volumes {
            let id = volume.record.value.id;
            let Some(left) = volume.left_of(&record) else {
                return Err(invalid(format!(
                    "volume {} still has data or metadata on it; see `cairn status`, and try again when it is moved",
                    volume.record.value.name
                )));
            };
            when.push(Compare::Modified(self.keys().left(id), left.revision));
        }
        let txn = Txn {
            when,
            then: vec![Op::delete(key.clone())],
            otherwise: Vec::new(),
        };
        self.delete(txn, key, "a disk, or an owner of a volume")
            .await
    }

    /// Whether a volume was in this very map and is not any more: what is left of it may be deleted.
    pub async fn is_deleted(&self, volume: VolumeId) -> Result<bool, MapError> {
        if volume >= self.next_volume().await? {
            return Ok(false);
        }
        let keys = self.keys();
        let cluster = &self.shared.cluster;
        let parts = [keys.volume(volume), keys.epoch(volume), keys.log(volume)];
        let absent = parts.into_iter().map(Compare::absent);
        let is_same = Compare::Modified(keys.cluster(), cluster.revision);
        let txn = Txn {
            when: absent.chain([is_same]).collect(),
            then: vec![Op::get(keys.cluster())],
            otherwise: Vec::new(),
        };
        let floor = self.floor();
        match self.shared.coordinator.transact(txn).await {
            crate::Outcome::Done(reply) => {
                self.saw(floor, reply.revision)?;
                Ok(true)
            }
            crate::Outcome::Refused(_) => Ok(false),
            crate::Outcome::Unknown(error) | crate::Outcome::Failed(error) => Err(error.into()),
        }
    }

    /// Uses up all numbers below this one.
    pub async fn reserve_volumes(&self, next: VolumeId) -> Result<(), MapError> {
        let key = self.keys().next_volume();
        loop {
            let counter = self.read_one::<NextVolume>(key.clone()).await?;
            let (revision, first) = match &counter {
                Some(counter) => (counter.revision, counter.value.next),
                None => (Revision::ABSENT, VolumeId(1)),
            };
            if next <= first {
                return Ok(());
            }
            let change = self.nonce();
            let counter = NextVolume { next, change };
            let written = self.write(key.clone(), revision, &counter, Txn::default());
            if let Written::Done = written.await? {
                return Ok(());
            }
        }
    }

    /// As [`Self::create_volume`], with a number that nobody had: [`MapError::Changed`] if the next one is higher. All
    /// below it are used up.
    pub async fn add_volume(&self, record: &VolumeRecord) -> Result<(), MapError> {
        let (revision, counter) = self.next_after(record.numbers()).await?;
        self.put_volume(record, revision, counter).await
    }

    /// Puts a volume with its clones into a map that is made just now, under the numbers that they have.
    pub async fn import_volume(&self, record: &VolumeRecord) -> Result<(), MapError> {
        let (revision, _, counter) = self.counter_after(record.numbers()).await?;
        self.put_volume(record, revision, counter).await
    }

    async fn put_volume(
        &self,
        record: &VolumeRecord,
        revision: Revision,
        counter: NextVolume,
    ) -> Result<(), MapError> {
        let counter_key = self.keys().next_volume();
        let txn = self.new_volume_txn(record, counter.change)?;
        match self
            .write(counter_key.clone(), revision, &counter, txn)
            .await?
        {
            Written::Done => Ok(()),
            Written::Refused(reply) => {
                let changed = MapError::Changed {
                    key: counter_key,
                    what: NEXT_VOLUME,
                };
                Err(self.name_taken(record, &reply).unwrap_or(changed))
            }
        }
    }

    /// If a name that was claimed for a volume in this store is somebody's.
    fn name_taken(&self, record: &VolumeRecord, reply: &TxnReply) -> Option<MapError> {
        let keys = self.keys();
        let claims = record
            .names()
            .map(|(_, name)| keys.name(NameKind::Volume, name));
        let claims: BTreeSet<Key> = claims.collect();
        let mut read = reply.reads.iter().flatten();
        let taken = read.find(|entry| claims.contains(&entry.key))?;
        Some(MapError::Exists {
            key: taken.key.clone(),
            what: "a volume of this name",
        })
    }

    /// As [`Self::counter_after`], if nobody had one of the numbers: [`MapError::Changed`] if the next one is higher.
    async fn next_after(
        &self,
        numbers: impl Iterator<Item = VolumeId> + Clone,
    ) -> Result<(Revision, NextVolume), MapError> {
        let (revision, first, counter) = self.counter_after(numbers.clone()).await?;
        match numbers.clone().any(|number| number < first) {
            true => Err(MapError::Changed {
                key: self.keys().next_volume(),
                what: NEXT_VOLUME,
            }),
            false => Ok((revision, counter)),
        }
    }

    /// The counter once all numbers up to these are used up, and the revision and the next number of the one that it replaces.
    async fn counter_after(
        &self,
        numbers: impl Iterator<Item = VolumeId>,
    ) -> Result<(Revision, VolumeId, NextVolume), MapError> {
        let key = self.keys().next_volume();
        let counter = self.read_one::<NextVolume>(key.clone()).await?;
        let (revision, first) = match &counter {
            Some(counter) => (counter.revision, counter.value.next),
            None => (Revision::ABSENT, VolumeId(1)),
        };
        let mut next = first;
        for number in numbers {
            let after = number.0.checked_add(1).ok_or_else(|| MapError::Invalid {
                key: key.clone(),
                what: NEXT_VOLUME,
                problem: "all numbers are used".to_owned(),
            })?;
            next = next.max(VolumeId(after));
        }
        let change = self.nonce();
        Ok((revision, first, NextVolume { next, change }))
    }

    /// Deletes a volume with all that the map has of it: its owner changes nothing of it any more.
    pub async fn delete_volume(&self, volume: VolumeId) -> Result<(), MapError> {
        let keys = self.keys();
        let state = self.volume(volume).await?;
        let before = state.record;
        let key = keys.volume(volume);
        let claim = state.address.map(|address| self.claim_of(&address.value));
        let gone = [
            key.clone(),
            keys.owner(volume),
            keys.epoch(volume),
            keys.log(volume),
            keys.left(volume),
            keys.usage(volume),
            keys.reserved(volume),
            keys.volume_address(volume),
            keys.preferred(volume),
        ];
        let names = before.value.names();
        let names = names.map(|(_, name)| keys.name(NameKind::Volume, name));
        let gone = gone.into_iter().chain(names).chain(claim);
        let txn = Txn {
            when: vec![Compare::Modified(key.clone(), before.revision)],
            then: gone.map(Op::delete).collect(),
            otherwise: Vec::new(),
        };
        self.delete(txn, key, "a volume").await
    }

    fn new_volume_txn(&self, record: &VolumeRecord, change: ChangeNonce) -> Result<Txn, MapError> {
        let keys = self.keys();
        let volume = record.id;
        let epoch = EpochRecord {
            epoch: Epoch(0),
            change,
        };
        let log = LogRecord {
            log: VolumeLog::default(),
            change,
        };
        let (record_key, epoch_key, log_key) =
            (keys.volume(volume), keys.epoch(volume), keys.log(volume));
        let mut txn = Txn {
            when: vec![Compare::absent(record_key.clone())],
            then: vec![
                Op::put(record_key.clone(), encode(&record_key, record)?),
                Op::put(epoch_key.clone(), encode(&epoch_key, &epoch)?),
                Op::put(log_key.clone(), encode(&log_key, &log)?),
            ],
            otherwise: Vec::new(),
        };
        for (volume, name) in record.names() {
            self.claim_name(volume, name, &mut txn)?;
        }
        Ok(txn)
    }

    fn claim_name(&self, volume: VolumeId, name: &str, txn: &mut Txn) -> Result<(), MapError> {
        let key = self.keys().name(NameKind::Volume, name);
        if !is_name(name) {
            return Err(MapError::Invalid {
                key,
                what: "a volume's name",
                problem: "a name has letters, digits, '-', '_' and '.', 63 at most".to_owned(),
            });
        }
        let claim = NameRecord {
            of: volume.to_string(),
        };
        txn.when.push(Compare::absent(key.clone()));
        txn.then.push(Op::put(key.clone(), encode(&key, &claim)?));
        txn.otherwise.push(KeyRange::One(key));
        Ok(())
    }

    /// Replaces what is said of a volume, and of the clones in its store. Those that come need numbers that nobody had, and
    /// names that nobody has; the names of those that go are free.
    pub async fn change_volume(
        &self,
        before: &Versioned<VolumeRecord>,
        record: &VolumeRecord,
    ) -> Result<(), MapError> {
        self.change_volume_beside(before, record, None).await
    }

    /// Changes a volume that begins to name one of these `tiers`; refused if the tiers changed meanwhile. The tiers are written
    /// again unchanged, so that a removal of a tier that read the volumes earlier is refused in turn.
    pub async fn change_volume_beside(
        &self,
        before: &Versioned<VolumeRecord>,
        record: &VolumeRecord,
        tiers: Option<&Versioned<TiersRecord>>,
    ) -> Result<(), MapError> {
        let keys = self.keys();
        let key = keys.volume(record.id);
        let mut txn = Txn::default();
        if let Some(tiers) = tiers {
            let key = keys.tiers();
            let same = encode(&key, &tiers.value)?;
            txn.when
                .push(Compare::Modified(key.clone(), tiers.revision));
            txn.then.push(Op::put(key, same));
        }
        let had: BTreeMap<&str, VolumeId> =
            before.value.names().map(|(id, name)| (name, id)).collect();
        let mut has: BTreeMap<&str, VolumeId> = BTreeMap::new();
        for (volume, name) in record.names() {
            if has.insert(name, volume).is_some() {
                return Err(MapError::Exists {
                    key: keys.name(NameKind::Volume, name),
                    what: "a volume of this name",
                });
            }
        }
        for (name, volume) in &has {
            if !had.contains_key(name) {
                self.claim_name(*volume, name, &mut txn)?;
            }
        }
        let gone = had.keys().filter(|name| !has.contains_key(*name));
        let gone = gone.map(|name| Op::delete(keys.name(NameKind::Volume, name)));
        txn.then.extend(gone);
        let known: BTreeSet<VolumeId> = before.value.numbers().collect();
        let new = record.numbers().filter(|number| !known.contains(number));
        let new: Vec<VolumeId> = new.collect();
        if !new.is_empty() {
            let counter_key = keys.next_volume();
            let (revision, counter) = self.next_after(new.into_iter()).await?;
            let counter = encode(&counter_key, &counter)?;
            txn.when
                .push(Compare::Modified(counter_key.clone(), revision));
            txn.then.push(Op::put(counter_key, counter));
        }
        match self
            .write(key.clone(), before.revision, record, txn)
            .await?
        {
            Written::Done => Ok(()),
            Written::Refused(reply) => {
                let changed = MapError::Changed {
                    key,
                    what: "a volume",
                };
                Err(self.name_taken(record, &reply).unwrap_or(changed))
            }
        }
    }

    /// Which of these volumes in a store are deleted, for certain; of the one that it was made for, whether that is.
    pub async fn deleted_in_store(
        &self,
        store: VolumeId,
        volumes: &[VolumeId],
    ) -> Result<Vec<VolumeId>, MapError> {
        let record = self.volume(store).await?.record.value;
        let next = self.next_volume().await?;
        let is_deleted = |volume: &VolumeId| match *volume == store {
            true => record.is_deleted,
            // A number that was not given yet is one that this map does not know.
            false => *volume < next && record.numbers().all(|there| there != *volume),
        };
        Ok(volumes.iter().copied().filter(is_deleted).collect())
    }

    pub async fn volume(&self, volume: VolumeId) -> Result<VolumeState, MapError> {
        let (volumes, _) = self
            .volumes_in(volume_range(&self.keys().volume(volume)))
            .await?;
        volumes
            .into_iter()
            .next()
            .ok_or_else(|| MapError::NotFound {
                key: self.keys().volume(volume),
                what: "the volume",
            })
    }

    /// All volumes, and the revision that a watch on [`super::Keys::volumes`] goes on from.
    pub async fn volumes(&self) -> Result<(Vec<VolumeState>, Revision), MapError> {
        self.volumes_in(self.keys().volumes()).await
    }

    async fn volumes_in(&self, range: KeyRange) -> Result<(Vec<VolumeState>, Revision), MapError> {
        let reply = self.read(range).await?;
        let mut states = Vec::new();
        let mut entries = reply.entries.as_slice();
        while let Some(first) = entries.first() {
            let folder = volume_range(&first.key);
            let count = entries
                .iter()
                .take_while(|entry| folder.contains(&entry.key))
                .count();
            let (of_volume, rest) = entries.split_at(count.max(1));
            states.push(self.state_of(of_volume)?);
            entries = rest;
        }
        Ok((states, reply.revision))
    }

    /// Puts together what several keys say of one volume.
    pub(super) fn state_of(&self, entries: &[Entry]) -> Result<VolumeState, MapError> {
        let first = &entries[0].key;
        let missing = |what| MapError::Damaged {
            key: first.clone(),
            what,
            problem: "it is missing".to_owned(),
        };
        let field = |name: &str| {
            let is_it = |entry: &&Entry| {
                self.keys()
                    .parse_volume(&entry.key)
                    .is_some_and(|(_, field)| field == name)
            };
            entries.iter().find(is_it)
        };
        Ok(VolumeState {
            record: decode(field("record").ok_or_else(|| missing("a volume"))?)?,
            owner: field("owner").map(decode).transpose()?,
            epoch: decode(field("epoch").ok_or_else(|| missing("a volume's epoch"))?)?,
            log: log_at(field("log").ok_or_else(|| missing("a volume's log"))?)?,
            left: field("left").map(decode).transpose()?,
            usage: field("usage").map(decode).transpose()?,
            reserved: field("reserved").map(decode).transpose()?,
            address: field("address").map(decode).transpose()?,
            preferred: field("preferred")
                .map(decode::<PreferredRecord>)
                .transpose()?
                .map(|preferred| preferred.value.node),
        })
    }

    /// Takes over a volume: its owner key is free, or an earlier process of the same node has it. From here on no change
    /// by an earlier owner succeeds.
    ///
    /// The new epoch is one more than the map's, and more than `above`: disks may have promised to obey an epoch that a
    /// restored map has forgotten. Disks are to be fenced with it before anything is read from them.
    pub async fn take_over(
        &self,
        volume: VolumeId,
        process: Process,
        above: Epoch,
    ) -> Result<Owned, MapError> {
        loop {
            let before = self.volume(volume).await?;
            if let Some(owner) = &before.owner
                && owner.value.node != process.node
            {
                return Err(MapError::Owned {
                    volume,
                    owner: owner.value.clone(),
                });
            }
            if let Some(owned) = self.take_over_from(&before, process, above).await? {
                self.remember()?;
                return Ok(owned);
            }
        }
    }

    /// One attempt; `None` if something was changed since `before` was read.
    async fn take_over_from(
        &self,
        before: &VolumeState,
        process: Process,
        above: Epoch,
    ) -> Result<Option<Owned>, MapError> {
        let keys = self.keys();
        let volume = before.record.value.id;
        let (owner_key, epoch_key, log_key) =
            (keys.owner(volume), keys.epoch(volume), keys.log(volume));
        let keeps_epoch = before.owner.is_some() && planted::is(Bug::EpochKeptAtOwnTakeover);
        let epoch = if keeps_epoch {
            before.epoch.value.epoch
        } else {
            Epoch(before.epoch.value.epoch.max(above).0 + 1)
        };
        let epoch_record = EpochRecord {
            epoch,
            change: self.nonce(),
        };
        let owner = OwnerRecord {
            node: process.node,
            process: process.nonce,
            epoch,
        };
        let owner_revision = before
            .owner
            .as_ref()
            .map_or(Revision::ABSENT, |owner| owner.revision);
        let mark = Mark {
            key: epoch_key.clone(),
            value: encode(&epoch_key, &epoch_record)?,
        };
        let txn = Txn {
            when: vec![
                Compare::Modified(owner_key.clone(), owner_revision),
                Compare::Modified(epoch_key, before.epoch.revision),
            ],
            then: vec![
                Op::put_leased(
                    owner_key.clone(),
                    encode(&owner_key, &owner)?,
                    process.lease,
                ),
                Op::put(mark.key.clone(), mark.value.clone()),
                // The log as read before the takeover does not count.
                Op::get(log_key.clone()),
            ],
            otherwise: Vec::new(),
        };
        let (epoch_revision, log) = match self.change(txn, &mark).await? {
            Settled::Refused(_) => return Ok(None),
            Settled::Done(reply) => {
                let entry = reply.read_one(0);
                let mut log = log_at(super::found(entry, &log_key, "a volume's log")?)?;
                if planted::is(Bug::LogOfBeforeTheTakeover) {
                    log.log = before.log.log.clone();
                }
                (reply.revision, log)
            }
            // The takeover holds, so that only this process can have changed the log since, and it has not.
            Settled::DoneUnseen(entry) => {
                let state = self.volume(volume).await?;
                if state.epoch.value != epoch_record {
                    return Ok(None);
                }
                (entry.modified, state.log)
            }
        };
        Ok(Some(Owned {
            volume,
            epoch,
            log,
            epoch_revision,
            process,
            next_counter: 1,
            pending: None,
        }))
    }

    /// Replaces the log of a volume: seals, opens, names holders, trims. Refused if another epoch was given since the
    /// takeover, or if the log is not the one that is replaced. After [`MapError::Unknown`] nothing may be acknowledged
    /// that rests on the new log; the same call settles it.
    pub async fn change_log(&self, owned: &mut Owned, new: VolumeLog) -> Result<(), MapError> {
        let key = self.keys().log(owned.volume);
        if let Some(problem) = owned.log.log.problem_with(&new, owned.epoch) {
            return Err(MapError::Invalid {
                key,
                what: "a volume's log",
                problem,
            });
        }
        let record = match owned.pending.take() {
            // The outcome of this very change is not known yet.
            Some(pending) if pending.log == new => pending,
            Some(pending) => {
                // It is settled first: if it was made, what follows has to begin from there.
                self.write_log(owned, pending).await?;
                return Err(MapError::Changed {
                    key,
                    what: "a volume's log",
                });
            }
            None => LogRecord {
                log: new,
                change: self.nonce(),
            },
        };
        self.write_log(owned, record).await
    }

    async fn write_log(&self, owned: &mut Owned, record: LogRecord) -> Result<(), MapError> {
        let keys = self.keys();
        let (epoch_key, key) = (keys.epoch(owned.volume), keys.log(owned.volume));
        let mut when = Vec::new();
        if !planted::is(Bug::EpochNotComparedInLogChange) {
            when.push(Compare::Modified(epoch_key.clone(), owned.epoch_revision));
        }
        if !planted::is(Bug::LogChangeComparesEpochOnly) {
            when.push(Compare::Modified(key.clone(), owned.log.revision));
        }
        let mark = Mark {
            value: encode(&key, &record)?,
            key,
        };
        let txn = Txn {
            when,
            then: vec![Op::put(mark.key.clone(), mark.value.clone())],
            otherwise: vec![KeyRange::One(epoch_key)],
        };
        let revision = match self.change(txn, &mark).await {
            Ok(Settled::Done(reply)) => reply.revision,
            Ok(Settled::DoneUnseen(entry)) => entry.modified,
            Ok(Settled::Refused(reply)) => {
                let epoch = reply.read_one(0).map(decode::<EpochRecord>).transpose()?;
                return Err(MapError::Fenced {
                    volume: owned.volume,
                    epoch: owned.epoch,
                    found: epoch.map_or(Epoch(0), |epoch| epoch.value.epoch),
                });
            }
            Err(error @ MapError::Unknown(_)) => {
                owned.pending = Some(record);
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        owned.log = LogAt {
            revision,
            log: record.log,
        };
        self.remember()
    }

    /// Frees the owner key after a clean stop, so that the next owner need not wait for the lease. The epoch stays.
    /// Nothing happens if somebody else has the volume by now.
    pub async fn give_up(&self, owned: Owned) -> Result<(), MapError> {
        self.give_up_as(owned.volume, owned.process, owned.epoch)
            .await
    }

    /// As [`Self::give_up`], for who does not have [`Owned`] any more.
    pub async fn give_up_as(
        &self,
        volume: VolumeId,
        process: Process,
        epoch: Epoch,
    ) -> Result<(), MapError> {
        let owner_key = self.keys().owner(volume);
        let owner = OwnerRecord {
            node: process.node,
            process: process.nonce,
            epoch,
        };
        let value = encode(&owner_key, &owner)?;
        let txn = Txn {
            when: match planted::is(Bug::GivenUpForWhoeverOwnsIt) {
                true => Vec::new(),
                false => vec![Compare::Value(owner_key.clone(), value)],
            },
            then: vec![Op::delete(owner_key)],
            otherwise: Vec::new(),
        };
        // Of unknown outcome is fine: at the latest the lease frees the key. A late deletion compares this very epoch.
        match self.shared.coordinator.transact(txn).await {
            crate::Outcome::Done(_) | crate::Outcome::Refused(_) => Ok(()),
            crate::Outcome::Unknown(error) => Err(MapError::Unknown(error)),
            crate::Outcome::Failed(error) => Err(MapError::Coordinator(error)),
        }
    }
}

fn log_at(entry: &Entry) -> Result<LogAt, MapError> {
    let record = decode::<LogRecord>(entry)?;
    Ok(LogAt {
        revision: record.revision,
        log: record.value.log,
    })
}

/// The keys of the volume that a key is of.
fn volume_range(key: &Key) -> KeyRange {
    let text = key.as_str();
    let end = text.rfind('/').map_or(text.len(), |slash| slash + 1);
    KeyRange::Prefix(text[..end].to_owned())
}
