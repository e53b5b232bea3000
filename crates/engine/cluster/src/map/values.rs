//! The values of the cluster's map: docs/reference/cluster-map.md.
//!
//! Owns: what each value holds, its JSON form, and what makes one invalid.
//! Must not know: keys, transactions.
//!
//! A value is one JSON object. `format` is its version; a reader refuses a higher one, and ignores fields that it does
//! not know. Nodes of neighbouring versions can so share a map as long as the older one does not rewrite what the newer
//! one wrote: a field that must survive that raises `format`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cairn_base::{DiskId, DiskRole, Epoch, LogPosition, Media, NodeId, Timestamp, VolumeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::MapError;
use crate::coordinator::{Entry, Key, Revision};

/// The format of all values so far.
pub const FORMAT: u32 = 1;

/// A kind of value.
pub trait Value: Serialize + DeserializeOwned {
    /// For messages.
    const WHAT: &'static str;

    /// Why a value that was read or is about to be written is refused; `None`: it is not.
    fn problem(&self) -> Option<String> {
        None
    }
}

#[derive(Serialize)]
struct Written<'v, T> {
    format: u32,
    #[serde(flatten)]
    value: &'v T,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The JSON of a value.
pub fn encode<T: Value>(key: &Key, value: &T) -> Result<Vec<u8>, MapError> {
    let invalid = |problem: String| MapError::Invalid {
        key: key.clone(),
        what: T::WHAT,
        problem,
    };
    if let Some(problem) = value.problem() {
        return Err(invalid(problem));
    }
    let format = FORMAT;
    serde_json::to_vec(&Written { format, value }).map_err(|error| invalid(error.to_string()))
}

/// A value of the map, with the revision that the next change has to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    pub revision: Revision,
    pub value: T,
}

pub fn decode<T: Value>(entry: &Entry) -> Result<Versioned<T>, MapError> {
    let damaged = |problem: String| MapError::Damaged {
        key: entry.key.clone(),
        what: T::WHAT,
        problem,
    };
    let json = |error: serde_json::Error| damaged(error.to_string());
    let Format { format } = serde_json::from_slice(&entry.value).map_err(json)?;
    if format > FORMAT {
        return Err(MapError::TooNew {
            key: entry.key.clone(),
            what: T::WHAT,
            format,
        });
    }
    let value: T = serde_json::from_slice(&entry.value).map_err(json)?;
    if let Some(problem) = value.problem() {
        return Err(damaged(problem));
    }
    Ok(Versioned {
        revision: entry.modified,
        value,
    })
}

/// Bytes that the map does not look into.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Opaque(pub Vec<u8>);

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opaque({} bytes)", self.0.len())
    }
}

impl Serialize for Opaque {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Opaque {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = BASE64_STANDARD
            .decode(text)
            .map_err(serde::de::Error::custom)?;
        Ok(Self(bytes))
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                u128::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
            }
        }
    };
}

random_id!(
    /// Names one cluster for ever.
    ClusterId
);
random_id!(
    /// Names one run of a node's process: drawn at its start.
    ProcessNonce
);
random_id!(
    /// Names one attempt at a change, so that it can be found again: drawn for each.
    ChangeNonce
);

/// How often a cluster's map was replaced by a restored backup, plus one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MapGeneration(pub u64);

impl fmt::Display for MapGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub id: ClusterId,
    pub name: String,
    pub created: Timestamp,
    pub generation: MapGeneration,
}

impl Value for ClusterRecord {
    const WHAT: &'static str = "the cluster's record";
}

/// The versions of Cairn's internal protocol that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    pub oldest: u32,
    pub newest: u32,
}

/// A node as a portal of iSCSI targets, as it says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IscsiPortals {
    pub node: NodeId,
    /// Its target port group: no two nodes have the same.
    pub group: u16,
    /// What hosts are told.
    pub addresses: Vec<SocketAddr>,
}

impl Value for IscsiPortals {
    const WHAT: &'static str = "a node's iSCSI portals";
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    pub name: String,
    /// `HOST:PORT` for other nodes.
    pub internal_address: String,
    /// `HOST:PORT` or `HOST` for clients.
    pub external_address: String,
    pub versions: VersionRange,
    /// When it came into the map.
    pub joined: Timestamp,
    /// It is to leave: all its disks drain, it owns nothing, runs no member of etcd, and gets no new disks.
    #[serde(default)]
    pub draining: bool,
    /// The node that takes its place. It is removed by itself once it is drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<NodeId>,
    /// Until then it is meant to be away: it owns nothing, and nothing on its disks is rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_until: Option<Timestamp>,
    /// Its part of the load beside other nodes. With 0 it owns no volume.
    #[serde(default = "weight_normal", skip_serializing_if = "is_weight_normal")]
    pub weight: u32,
}

/// The weight of a node of which nobody said one.
pub const WEIGHT_NORMAL: u32 = 100;
pub const WEIGHT_MAX: u32 = 1000;

fn weight_normal() -> u32 {
    WEIGHT_NORMAL
}

fn is_weight_normal(weight: &u32) -> bool {
    *weight == WEIGHT_NORMAL
}

impl NodeRecord {
    /// How much longer it is meant to be away.
    pub fn maintenance_left(&self, now: Timestamp) -> Option<Duration> {
        let left = self.maintenance_until?.seconds.checked_sub(now.seconds)?;
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        Some(Duration::from_secs(left))
    }
}

impl Value for NodeRecord {
    const WHAT: &'static str = "a node";

    fn problem(&self) -> Option<String> {
        let VersionRange { oldest, newest } = self.versions;
        if oldest > newest {
            return Some(format!("its versions are from {oldest} to {newest}"));
        }
        if self.weight > WEIGHT_MAX {
            return Some(format!(
                "its weight is {}, at most {WEIGHT_MAX}",
                self.weight
            ));
        }
        if self.replaced_by == Some(self.id) {
            return Some("it replaces itself".to_owned());
        }
        (self.replaced_by.is_some() && !self.draining)
            .then(|| "another node replaces it, but it is not draining".to_owned())
    }
}

/// A node's sign of life, on its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveRecord {
    pub node: NodeId,
    pub process: ProcessNonce,
    pub since: Timestamp,
    /// Volumes that it cannot open, for want of their keys.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub locked: BTreeSet<VolumeId>,
    /// Nodes with a sign of life of which it hears nothing.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unreached: BTreeSet<NodeId>,
    /// Volumes that it tried to take over last and could not, each with why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<VolumeId, String>,
    /// The file system with its cluster folder is nearly full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub folder_is_low: bool,
    /// Where it runs, by which two that started as the same node are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRecord>,
    /// Open volumes that its memory limit holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_max: Option<u32>,
    /// It does without encryption towards nodes that say the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allows_clear: bool,
    /// It stops: addresses of pools leave it, and it takes none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_addresses: bool,
    /// Addresses of pools that it could not put on an interface, each with why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unfit_addresses: BTreeMap<IpAddr, String>,
    /// Volumes that are about to come to it, each with how far the state goes that it has of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prepared: BTreeMap<VolumeId, LogPosition>,
    /// The revision of the newest [`ReservedRecord`] that it heeds: it leaves that much free. 0: of none.
    #[serde(default)]
    pub reserved_seen: u64,
    /// Bytes that it may have acknowledged and not written to disks yet, at most.
    #[serde(default)]
    pub unflushed_bytes_max: u64,
}

impl AliveRecord {
    /// A process of which nothing else is to be said.
    pub fn new(node: NodeId, process: ProcessNonce, since: Timestamp) -> Self {
        Self {
            node,
            process,
            since,
            locked: BTreeSet::new(),
            unreached: BTreeSet::new(),
            failed: BTreeMap::new(),
            folder_is_low: false,
            host: None,
            volumes_max: None,
            allows_clear: false,
            leaves_addresses: false,
            unfit_addresses: BTreeMap::new(),
            prepared: BTreeMap::new(),
            reserved_seen: 0,
            unflushed_bytes_max: 0,
        }
    }
}

/// Where a process of a node runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Drawn once by each process. A process draws a nonce ([`ProcessNonce`]) for each lease beside.
    pub instance: ProcessNonce,
    /// Of the machine.
    pub name: String,
    pub pid: u32,
    /// Of the kernel's start: a process of an earlier one is gone.
    pub boot: String,
    /// The cluster folder that it was started with.
    pub folder: String,
}

impl std::fmt::Display for HostRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "process {} on host {} with cluster folder {}",
            self.pid, self.name, self.folder
        )
    }
}

/// What a node says of itself beside that it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sign {
    pub locked: BTreeSet<VolumeId>,
    pub unreached: BTreeSet<NodeId>,
    pub failed: BTreeMap<VolumeId, String>,
    pub folder_is_low: bool,
    pub host: Option<HostRecord>,
    pub volumes_max: Option<u32>,
    pub allows_clear: bool,
    pub leaves_addresses: bool,
    pub unfit_addresses: BTreeMap<IpAddr, String>,
    pub prepared: BTreeMap<VolumeId, LogPosition>,
    pub reserved_seen: u64,
    pub unflushed_bytes_max: u64,
}

impl Value for AliveRecord {
    const WHAT: &'static str = "a node's sign of life";
}

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedRecord {
    pub node: NodeId,
    /// For people: another node may have it by now.
    pub name: String,
    pub at: Timestamp,
}

impl Value for RemovedRecord {
    const WHAT: &'static str = "a removed node";
}

/// The logs of the copy that a map was restored from: a node with newer logs on its disks must not follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredRecord {
    pub at: Timestamp,
    /// The number of the newest file of each volume's log that the copy knew: epoch, and 32 bits that count.
    pub logs: BTreeMap<VolumeId, u64>,
}

impl Value for RecoveredRecord {
    const WHAT: &'static str = "the origin of a recovered map";
}

/// Volumes of which snapshots of one instant are being taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// All have theirs.
    pub is_whole: bool,
    /// Those that have not noted that yet.
    pub volumes: BTreeSet<VolumeId>,
}

impl Value for GroupRecord {
    const WHAT: &'static str = "a consistency group";
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    pub id: DiskId,
    pub node: NodeId,
    pub label: String,
    pub role: DiskRole,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<Media>,
    /// Whether what it holds is being moved to other disks.
    pub draining: bool,
    /// Another one took its place.
    #[serde(default)]
    pub replaced: bool,
    pub added: Timestamp,
}

impl Value for DiskRecord {
    const WHAT: &'static str = "a disk";
}

/// A volume with a store, and the clones that live in it: they have its owner, its epoch and its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub name: String,
    pub settings: Opaque,
    pub exports: Opaque,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<CloneRecord>,
    /// It is deleted, and its store is there for its clones. Its name is free.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
}

/// A volume in the store of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneRecord {
    pub id: VolumeId,
    pub name: String,
    pub settings: Opaque,
    pub exports: Opaque,
}

impl VolumeRecord {
    /// The volumes in the store, by number and name; no other volume has one of these names.
    pub fn names(&self) -> impl Iterator<Item = (VolumeId, &str)> {
        let own = (!self.is_deleted).then_some((self.id, self.name.as_str()));
        let clones = self.clones.iter();
        own.into_iter()
            .chain(clones.map(|clone| (clone.id, clone.name.as_str())))
    }

    /// What the volume that speaks for the store is called: the one that it was made for, or the earliest of its clones.
    pub fn head(&self) -> &str {
        let own = (!self.is_deleted).then_some(self.name.as_str());
        let earliest = || self.clones.iter().min_by_key(|clone| clone.id);
        own.or_else(|| Some(earliest()?.name.as_str()))
            .unwrap_or(&self.name)
    }

    /// The numbers of all volumes that are in the store, or for which it was made.
    pub fn numbers(&self) -> impl Iterator<Item = VolumeId> + Clone {
        let clones = self.clones.iter().map(|clone| clone.id);
        std::iter::once(self.id).chain(clones)
    }
}

impl Value for VolumeRecord {
    const WHAT: &'static str = "a volume";
}

/// Who owns a volume, on the lease of the owner's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    pub node: NodeId,
    pub process: ProcessNonce,
    pub epoch: Epoch,
}

impl Value for OwnerRecord {
    const WHAT: &'static str = "a volume's owner";
}

/// How often a volume was taken over. It stays when the owner goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochRecord {
    pub epoch: Epoch,
    /// Of the takeover that made it.
    pub change: ChangeNonce,
}

impl Value for EpochRecord {
    const WHAT: &'static str = "a volume's epoch";
}

/// Disks that drain and have nothing of a volume any more, each with the revision of its record that says that it drains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftRecord {
    pub disks: BTreeMap<DiskId, u64>,
}

impl Value for LeftRecord {
    const WHAT: &'static str = "the disks that a volume has left";
}

/// What a node has of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnNodeRecord {
    pub shards: u64,
    pub bytes: u64,
}

/// What each node has of a volume, as its owner told last: for who wants to know what a node that leaves has still. It is
/// told seldom while no node drains, so that it may be behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    pub nodes: BTreeMap<NodeId, OnNodeRecord>,
    /// How fast the owner moves data, of all its volumes together; 0 while it moves none.
    pub bytes_per_second: u64,
    /// Why it does not go on with moving, if it does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// What clients did with the volume over the last minutes, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkRecord>,
}

/// What clients do with a volume, on average over some minutes. It is told in powers of two, so that it seldom changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkRecord {
    pub operations_per_second: u64,
    pub bytes_per_second: u64,
}

impl Value for UsageRecord {
    const WHAT: &'static str = "the usage of a volume";
}

/// The space set aside for files of a volume, as its owner told last. It stays when the owner goes: all nodes leave it free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedRecord {
    /// What these files may take yet, on all disks of the pool together.
    pub bytes: u64,
}

impl Value for ReservedRecord {
    const WHAT: &'static str = "the reserved space of a volume";
}

/// The address that follows a volume's owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRecord {
    pub address: IpAddr,
    pub prefix_len: u8,
    /// The interface that it is put on, the same on all nodes. Without one, that in the address's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

impl Value for AddressRecord {
    const WHAT: &'static str = "a volume's address";

    fn problem(&self) -> Option<String> {
        let prefix_len_max = if self.address.is_ipv4() { 32 } else { 128 };
        (self.prefix_len > prefix_len_max)
            .then(|| format!("its prefix is {} bits long", self.prefix_len))
    }
}

/// The most addresses of one pool. A change of a pool is one transaction, and etcd takes 128 steps in one.
pub const POOL_ADDRESSES_MAX: usize = 64;
/// The most pools of a cluster.
pub const ADDRESS_POOLS_MAX: usize = 64;

/// Addresses of one network that the nodes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressPoolRecord {
    pub name: String,
    /// In the order in which nodes get them; each once, all of one family.
    pub addresses: Vec<IpAddr>,
    /// In bits.
    pub prefix_len: u8,
    /// The interface that they are put on, the same on all nodes. Without one, that in their network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The name by which DNS tells of those that nodes have now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_name: Option<String>,
}

impl Value for AddressPoolRecord {
    const WHAT: &'static str = "an address pool";

    fn problem(&self) -> Option<String> {
        let distinct: BTreeSet<_> = self.addresses.iter().collect();
        let is_v4 = self.addresses.iter().all(IpAddr::is_ipv4);
        let is_v6 = self.addresses.iter().all(IpAddr::is_ipv6);
        if !(1..=POOL_ADDRESSES_MAX).contains(&self.addresses.len()) {
            return Some(format!(
                "it has {} addresses, and may have 1 to {POOL_ADDRESSES_MAX}",
                self.addresses.len()
            ));
        }
        if distinct.len() < self.addresses.len() {
            return Some("it names an address twice".to_owned());
        }
        if !is_v4 && !is_v6 {
            return Some("it has addresses of IPv4 and of IPv6".to_owned());
        }
        let prefix_len_max = if is_v4 { 32 } else { 128 };
        (self.prefix_len > prefix_len_max)
            .then(|| format!("its prefix is {} bits long", self.prefix_len))
    }
}

/// The process that has an address of a pool, on its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressHolder {
    pub address: IpAddr,
    pub node: NodeId,
    pub process: ProcessNonce,
}

impl Value for AddressHolder {
    const WHAT: &'static str = "the holder of an address";
}

/// The node that should own a volume while it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreferredRecord {
    pub node: NodeId,
}

impl Value for PreferredRecord {
    const WHAT: &'static str = "a volume's preferred node";
}

/// Names the log files of one membership for ever: the epoch that it was opened in, and a counter within that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EnsembleId {
    pub epoch: Epoch,
    pub counter: u32,
}

impl fmt::Display for EnsembleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

/// A stretch of a volume's log and the disks that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ensemble {
    pub id: EnsembleId,
    /// The first position.
    pub from: LogPosition,
    /// The first position after it; `None` while it is open.
    pub to: Option<LogPosition>,
    pub disks: Vec<DiskId>,
}

/// A copy of a volume's state, and the disks that have all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateAt {
    /// Names the shard that says which others there are.
    pub id: EnsembleId,
    /// Of what is in that shard.
    pub len_bytes: u32,
    /// The last position of the log that is in the state.
    pub applied: LogPosition,
    pub disks: Vec<DiskId>,
}

impl StateAt {
    fn problem(&self) -> Option<String> {
        let distinct: BTreeSet<_> = self.disks.iter().collect();
        if self.disks.is_empty() {
            return Some(format!("state {} has no disks", self.id));
        }
        if distinct.len() < self.disks.len() {
            return Some(format!("state {} names a disk twice", self.id));
        }
        None
    }
}

/// Which disks have which positions of a volume's log: sealed ensembles, and at the end an open one. And which have a copy
/// of the state that the log goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLog {
    pub ensembles: Vec<Ensemble>,
    #[serde(default)]
    pub state: Option<StateAt>,
}

/// Bits of a file's number below its epoch.
const COUNTER_BITS: u32 = 32;

impl VolumeLog {
    /// The number of its newest file: epoch, and 32 bits that count.
    pub fn newest_number(&self) -> Option<u64> {
        let numbers = self.ensembles.iter().map(|part| {
            let epoch = part.id.epoch.0 << COUNTER_BITS;
            epoch | u64::from(part.id.counter)
        });
        numbers.max()
    }

    /// The one that takes what is appended. None in a new volume, before its first owner opens one.
    pub fn open(&self) -> Option<&Ensemble> {
        self.ensembles.last().filter(|last| last.to.is_none())
    }

    /// Why this log cannot be right in itself; `None`: it can.
    pub fn problem(&self) -> Option<String> {
        if let Some(problem) = self.state.as_ref().and_then(StateAt::problem) {
            return Some(problem);
        }
        let last = self.ensembles.last()?;
        if last.to.is_some() {
            return Some(format!("its last ensemble, {}, is sealed", last.id));
        }
        for ensemble in &self.ensembles {
            let distinct: BTreeSet<_> = ensemble.disks.iter().collect();
            if ensemble.disks.is_empty() {
                return Some(format!("ensemble {} has no disks", ensemble.id));
            }
            if distinct.len() < ensemble.disks.len() {
                return Some(format!("ensemble {} names a disk twice", ensemble.id));
            }
            if ensemble.from == LogPosition(0) {
                return Some(format!("ensemble {} begins at 0", ensemble.id));
            }
            if ensemble.to.is_some_and(|to| to < ensemble.from) {
                return Some(format!("ensemble {} ends before it begins", ensemble.id));
            }
        }
        self.ensembles.windows(2).find_map(|pair| {
            let [before, after] = pair else { return None };
            if before.id >= after.id {
                Some(format!("ensemble {} follows {}", after.id, before.id))
            } else if before.to != Some(after.from) {
                Some(format!(
                    "ensemble {} does not begin where {} ends",
                    after.id, before.id
                ))
            } else {
                None
            }
        })
    }

    /// What would be wrong with replacing this log by `new` in `epoch`.
    pub fn problem_with(&self, new: &Self, epoch: Epoch) -> Option<String> {
        if let Some(problem) = new.problem() {
            return Some(problem);
        }
        let Some(open) = new.open() else {
            return Some("it has no open ensemble".to_owned());
        };
        let newest = self.ensembles.last().map(|last| last.id);
        let known = |id: EnsembleId| self.ensembles.iter().find(|ensemble| ensemble.id == id);
        for ensemble in &new.ensembles {
            match known(ensemble.id) {
                None if ensemble.id.epoch != epoch => {
                    return Some(format!(
                        "ensemble {} is new, but not of epoch {epoch}",
                        ensemble.id
                    ));
                }
                None if newest.is_some_and(|newest| ensemble.id <= newest) => {
                    return Some(format!(
                        "ensemble {} is new, but its number is not",
                        ensemble.id
                    ));
                }
                Some(old) if ensemble.from < old.from => {
                    return Some(format!(
                        "ensemble {} begins earlier than before",
                        ensemble.id
                    ));
                }
                Some(old)
                    if old.to.is_none() && ensemble.to.is_none() && old.disks != ensemble.disks =>
                {
                    return Some(format!(
                        "ensemble {} is open and has other disks",
                        ensemble.id
                    ));
                }
                Some(old) if old.to.is_some() && old.to != ensemble.to => {
                    return Some(format!("ensemble {} was sealed elsewhere", ensemble.id));
                }
                _ => {}
            }
        }
        if open.id.epoch > epoch {
            return Some(format!("ensemble {} is of a later epoch", open.id));
        }
        match (&self.state, &new.state) {
            (Some(_), None) => return Some("it names no copy of the state any more".to_owned()),
            (before, Some(after)) if before.as_ref() != Some(after) => {
                if after.id.epoch != epoch {
                    return Some(format!(
                        "state {} is new, but not of epoch {epoch}",
                        after.id
                    ));
                }
                if let Some(before) = before
                    && (after.id <= before.id || after.applied < before.applied)
                {
                    return Some(format!("state {} is older than {}", after.id, before.id));
                }
            }
            _ => {}
        }
        // Trimming moves the beginning on, but never past what is known to be there.
        let first = |log: &Self| log.ensembles.first().map(|ensemble| ensemble.from);
        if let (Some(before), Some(after)) = (first(self), first(new))
            && after < before
        {
            return Some(format!("it begins at {after}, before it began at {before}"));
        }
        None
    }
}

/// What the key of a log holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    #[serde(flatten)]
    pub log: VolumeLog,
    /// Of the change that made it.
    pub change: ChangeNonce,
}

impl Value for LogRecord {
    const WHAT: &'static str = "a volume's log";

    fn problem(&self) -> Option<String> {
        self.log.problem()
    }
}

/// The classes of service that volumes can be in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassesRecord {
    pub classes: Opaque,
}

impl Value for ClassesRecord {
    const WHAT: &'static str = "the classes of service";
}

/// The users of the admin API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsersRecord {
    pub users: Opaque,
}

impl Value for UsersRecord {
    const WHAT: &'static str = "the users of the admin API";
}

/// Sessions of the admin API that were ended before their time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogoutsRecord {
    pub logouts: Opaque,
}

impl Value for LogoutsRecord {
    const WHAT: &'static str = "the sessions that were ended";
}

/// The tiers that cold data goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TiersRecord {
    pub tiers: Opaque,
}

impl Value for TiersRecord {
    const WHAT: &'static str = "the tiers";
}

/// When the cluster's own work is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceRecord {
    pub maintenance: Opaque,
}

impl Value for MaintenanceRecord {
    const WHAT: &'static str = "the maintenance window";
}

/// The key of the cluster's secrets, wrapped with a master key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretsKeyRecord {
    pub secrets_key: Opaque,
}

impl Value for SecretsKeyRecord {
    const WHAT: &'static str = "the key of secrets";
}

/// The number that the next volume gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextVolume {
    pub next: VolumeId,
    pub change: ChangeNonce,
}

impl Value for NextVolume {
    const WHAT: &'static str = "the next volume's number";
}

/// Who has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    /// The id of what has it, as its key has it.
    pub of: String,
}

impl Value for NameRecord {
    const WHAT: &'static str = "a name";
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// SHA-256 of the secret part, as hexadecimal digits. The secret itself is nowhere.
    pub sha256: String,
    pub made: Timestamp,
    /// When that one is removed nobody joins with it any more.
    pub made_by: NodeId,
    /// [`TOKEN_SECONDS_MAX`] after `made` at most.
    pub expires: Timestamp,
    /// The node that used it.
    pub used_by: Option<NodeId>,
}

/// How long a token can be used at most.
pub const TOKEN_SECONDS_MAX: u64 = 24 * 3600;

impl Value for TokenRecord {
    const WHAT: &'static str = "a token";

    fn problem(&self) -> Option<String> {
        let seconds = self.expires.seconds.saturating_sub(self.made.seconds);
        let is_right = i64::try_from(TOKEN_SECONDS_MAX).is_ok_and(|max| seconds <= max);
        (!is_right)
            .then(|| format!("it could be used for {seconds} s, at most {TOKEN_SECONDS_MAX} s"))
    }
}
