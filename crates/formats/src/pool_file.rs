//! The pool file: which disks and volumes there are. Layout: docs/reference/formats/pool.md.
//!
//! Owns: the state as plain data, its limits, its encoding. What the state consists of, and how it changes, is in a file for each
//! subject.
//! Must not know: I/O, and when the state changes.

mod changes;
mod classes;
mod disks;
mod handle_key;
mod rules;
#[cfg(test)]
mod tests;
mod tiers;
mod users;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{DiskId, NodeId, PoolId, TierId, Timestamp, VolumeId};
use serde::{Deserialize, Serialize};

use crate::copies::Picked;
use crate::encryption::{KeptSecret, WrappedKey};
use crate::settings::{
    CLASSES_MAX, CLIENTS_PER_EXPORT_MAX, ClassName, ClassSpec, Logouts, Maintenance,
    PART_LIMITS_MAX, TIER_URL_LEN_BYTES_MAX, TIERS_MAX, USERS_MAX, UserName, UserRecord,
};
use crate::text_file::{TextFileError, decode_copy, decode_file, encode_file, json_of};

pub use changes::ChangeError;
pub use disks::PoolDisk;
pub use handle_key::HandleKey;
pub use tiers::{PoolTier, VolumeTiering};
pub use volumes::{DeletedVolume, Deletion, PoolClone, PoolVolume};

/// A pool file, which is two copies of the state, is not longer than this, in bytes.
pub const POOL_FILE_LEN_BYTES_MAX: u64 = 16 << 20;
/// Most disks of a pool.
pub const DISKS_MAX: usize = 64;
/// Most read caches of a server.
pub const CACHES_MAX: usize = 8;
/// Most volumes of a pool.
pub const VOLUMES_MAX: usize = 128;
/// Of the format.
const FORMAT_VERSION: u32 = 1;
/// Most disks that left which are remembered; above it the oldest are forgotten.
const LEFT_MAX: usize = 256;
/// Most deleted volumes that are remembered; above it the oldest are forgotten.
const DELETED_MAX: usize = 1024;
/// Volumes of two copies that went on without one another may come together.
pub const VOLUMES_READ_MAX: usize = 2 * VOLUMES_MAX;
const MAGIC: &str = "cairn-pool";
/// No version that was counted up to comes near this, and one can be added to any below.
const VERSION_MAX: u64 = 1 << 62;

/// A folder on a faster disk that keeps records of the pool's disks. Nothing is lost with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCache {
    pub id: DiskId,
    pub folder: String,
    /// What it takes of its disk at most.
    pub size_bytes: u64,
    pub added: Timestamp,
}

/// How far the making of a pool has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Not every disk has its identity. Such a pool never served anything.
    Forming,
    /// The first volume is not there yet.
    Empty,
    InUse,
}

/// Everything that is kept about a pool outside of its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolState {
    pub pool: PoolId,
    /// Grows by one with every change; of several copies the one with the highest counts.
    pub version: u64,
    pub created: Timestamp,
    pub stage: Stage,
    pub disks: Vec<PoolDisk>,
    /// Disks that were removed: their folders are no mistake, and not used.
    pub left: Vec<PoolDisk>,
    pub volumes: Vec<PoolVolume>,
    /// Volumes that were deleted: one that another copy of this file still lists is known for it.
    pub deleted: Vec<DeletedVolume>,
    /// The next volume's id; ids are never reused.
    pub volume_next: VolumeId,
    /// Signs file handles: with another one no client could use what it has open.
    /// `None` on the disks of a cluster's node, whose folder has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_key: Option<KeptSecret>,
    /// What secrets are wrapped with, itself wrapped with a master key; `None`: there never was one. It stays the same for
    /// ever, and is wrapped anew with other master keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_key: Option<WrappedKey>,
    /// The cluster that the disks belong to. Then the file lists the disks of one node, and the cluster's map has the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterMark>,
    /// Classes of service, beside those that are built in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<ClassName, ClassSpec>,
    /// Who may use the admin API, beside holders of the token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub users: BTreeMap<UserName, UserRecord>,
    /// Sessions of the admin API that were ended before their time.
    #[serde(default, skip_serializing_if = "Logouts::is_none")]
    pub logouts: Logouts,
    /// Volumes without a store of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<PoolClone>,
    /// Read caches; in a cluster those of one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<PoolCache>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<PoolTier>,
    /// The id of the last tier that was added; ids are never reused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier_last: TierId,
    /// When work is done that can wait, and how often a scrub begins; changed by operators.
    #[serde(default, skip_serializing_if = "Maintenance::is_none")]
    pub maintenance: Maintenance,
}

fn is_zero(id: &TierId) -> bool {
    id.0 == 0
}

/// A place in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterMark {
    pub cluster: PoolId,
    pub node: NodeId,
}

impl PoolState {
    /// Whether this can be saved, and read again.
    pub fn check_len(&self) -> Result<(), ChangeError> {
        match encode_pool(self).len() as u64 {
            len_bytes if len_bytes > POOL_FILE_LEN_BYTES_MAX => {
                Err(ChangeError::TooLong { len_bytes })
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), TextFileError> {
        let refuse = |what: &str| Err(TextFileError::Content(what.to_owned()));
        if self.version > VERSION_MAX {
            return refuse("its version");
        }
        if self.disks.is_empty() || self.disks.len() > DISKS_MAX {
            return refuse("the number of disks");
        }
        if !distinct(self.disks.iter().map(|disk| disk.id)) {
            return refuse("two disks have one id");
        }
        if self.left.len() > LEFT_MAX {
            return refuse("the number of disks that left");
        }
        if let Some(KeptSecret::Readable(text)) = &self.handle_key
            && HandleKey::from_text(text).is_none()
        {
            return refuse("the key of file handles");
        }
        if self.caches.len() > CACHES_MAX {
            return refuse("the number of read caches");
        }
        if !distinct(self.caches.iter().map(|cache| cache.folder.as_str()))
            || !distinct(self.caches.iter().map(|cache| cache.id))
        {
            return refuse("two read caches have one folder or id");
        }
        if self.classes.len() > CLASSES_MAX {
            return refuse("the number of classes");
        }
        let tiers = &self.tiers;
        let is_long = |text: &String| text.len() > TIER_URL_LEN_BYTES_MAX;
        let are_long =
            |tier: &PoolTier| is_long(&tier.url) || tier.credentials_file.iter().any(is_long);
        if tiers.len() > TIERS_MAX || tiers.iter().any(are_long) {
            return refuse("the number of tiers, or the length of an address");
        }
        if !distinct(tiers.iter().map(|tier| tier.id))
            || !distinct(tiers.iter().map(|tier| tier.name.as_str()))
            || tiers.iter().any(|tier| tier.id > self.tier_last)
        {
            return refuse("two tiers have one id or name, or an id that was not given yet");
        }
        if self.users.len() > USERS_MAX {
            return refuse("the number of users");
        }
        if !self.logouts.fits() {
            return refuse("the number of sessions that were ended");
        }
        if self.deleted.len() > DELETED_MAX {
            return refuse("the number of deleted volumes");
        }
        let clones = self.clones.iter().map(|clone| &clone.volume);
        let listed = self.volumes.iter().chain(clones);
        if self.volumes.len() + self.clones.len() > VOLUMES_READ_MAX {
            return refuse("the number of volumes");
        }
        if self.clones.iter().any(|clone| clone.volume.is_deleted) {
            return refuse("a clone that is deleted is listed");
        }
        if !distinct(listed.clone().map(|volume| volume.id))
            || !distinct(self.all_volumes().map(|volume| volume.name.as_str()))
        {
            return refuse("two volumes have one id or name");
        }
        if listed.clone().any(|volume| volume.id >= self.volume_next) {
            return refuse("a volume has an id that was not given yet");
        }
        let rules_max = self.all_volumes().map(|volume| volume.exports.len()).max();
        if rules_max.unwrap_or(0) > CLIENTS_PER_EXPORT_MAX {
            return refuse("the number of rules of an export");
        }
        let mut exports = self.all_volumes().map(|volume| &volume.exports);
        if !exports.all(|rules| distinct(rules.iter().map(|rule| rule.client))) {
            return refuse("two rules of an export are for the same clients");
        }
        let mut limits = self.all_volumes().map(|volume| &volume.limits);
        if limits.any(|limits| limits.len() > PART_LIMITS_MAX) {
            return refuse("the number of limits of parts of a volume");
        }
        let mut limits = self.all_volumes().map(|volume| &volume.limits);
        if !limits.all(|limits| distinct(limits.iter().map(|limit| &limit.part))) {
            return refuse("two limits are of the same part of a volume");
        }
        Ok(())
    }
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    let mut items = items;
    items.all(|item| seen.insert(item))
}

/// The bytes of a pool file: two copies of the state.
pub fn encode_pool(state: &PoolState) -> Vec<u8> {
    encode_file(MAGIC, FORMAT_VERSION, &json_of(state, true))
}

/// Reads one of the two copies in a pool file.
pub fn decode_pool_copy(copy: &[u8]) -> Result<PoolState, TextFileError> {
    let state: PoolState = decode_copy(copy, MAGIC, FORMAT_VERSION)?;
    state.check()?;
    Ok(state)
}

/// Reads a whole pool file.
pub fn decode_pool(file: &[u8]) -> Result<Picked<PoolState, TextFileError>, TextFileError> {
    decode_file(file, decode_pool_copy, |state| state.version)
}
