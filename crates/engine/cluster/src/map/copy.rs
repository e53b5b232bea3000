//! Copies of the whole map, outside of the store: docs/reference/cluster-map.md#copies.
//!
//! Owns: what is in a copy, its bytes, and how a map is made of one.
//! Must not know: where copies are kept, which one is to be taken.
//!
//! A copy has no keys that are on a lease: who is alive and who owns what is over when a map is made of it. Disks may have
//! promised to obey owners that the copy does not know, so that each volume goes on with a much higher epoch.

use std::fmt;
use std::sync::Arc;

use cairn_base::env::Env;
use cairn_base::{Epoch, Timestamp, VolumeId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::keys::Keys;
use super::values::{
    ClusterId, ClusterRecord, EpochRecord, LogRecord, MapGeneration, NodeRecord, RecoveredRecord,
    VolumeLog, decode, encode,
};
use super::{ClusterMap, MapError};
use crate::coordinator::{Coordinator, Entry, Key, KeyRange, Op, Outcome, Revision, Txn};

/// The format of copies so far.
const FORMAT: u32 = 1;
/// Longest copy that is read.
pub const COPY_LEN_BYTES_MAX: u64 = 256 << 20;
/// Epochs between the highest that a copy or a disk knows of a volume and the one that the restored map begins with: more owners
/// than a volume gets while nobody copies the map.
pub const EPOCHS_SKIPPED: u64 = 1 << 16;
/// etcd takes 128 steps in one transaction.
const STEPS_MAX: usize = 100;

/// A map at one revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapCopy {
    format: u32,
    pub cluster: ClusterId,
    pub name: String,
    pub generation: MapGeneration,
    pub revision: u64,
    /// When it was made, by the clock of the node that made it.
    pub taken: Timestamp,
    /// Of the program that made it.
    pub version: String,
    entries: Vec<CopyEntry>,
    /// SHA-256 of all that stands above, in hexadecimal digits.
    digest: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CopyEntry {
    /// Without what all keys of a cluster begin with.
    key: String,
    /// Values of the map are JSON.
    value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    #[error("it is not a copy of a cluster map: {0}")]
    NoCopy(String),
    #[error("it has format {found}, and this program knows {FORMAT}: use a newer version")]
    Format { found: u32 },
    #[error("it is damaged: its checksum is wrong. Use another copy")]
    Damaged,
}

/// What a copy says of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedVolume {
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub log: Option<VolumeLog>,
}

impl fmt::Display for MapCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MapCopy {
            name,
            generation,
            revision,
            ..
        } = self;
        write!(
            f,
            "cluster {name}, generation {generation}, revision {revision}"
        )
    }
}

impl MapCopy {
    fn digest_of(&self) -> String {
        let mut hash = Sha256::new();
        let head = format!(
            "{} {} {} {} {} {}.{} {}",
            self.format,
            self.cluster,
            self.name,
            self.generation,
            self.revision,
            self.taken.seconds,
            self.taken.nanos,
            self.version
        );
        // Lengths, so that no byte can change its field.
        let parts = std::iter::once(head.as_str()).chain(
            self.entries
                .iter()
                .flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]),
        );
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let bytes = hash.finalize();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A later state than another one of the same cluster has a higher generation, or the same and a higher revision.
    pub fn order(&self) -> (MapGeneration, u64) {
        (self.generation, self.revision)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        assert!(!text.is_empty(), "numbers and texts are always JSON");
        text.push(b'\n');
        text
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, CopyError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let told = |error: serde_json::Error| CopyError::NoCopy(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(told)?;
        if head.format != FORMAT {
            return Err(CopyError::Format { found: head.format });
        }
        let copy: Self = serde_json::from_slice(bytes).map_err(told)?;
        match copy.digest == copy.digest_of() {
            true => Ok(copy),
            false => Err(CopyError::Damaged),
        }
    }

    fn entries_of<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = Entry> + 'a {
        let of_folder = self
            .entries
            .iter()
            .filter(move |entry| entry.key.starts_with(folder));
        of_folder.map(|entry| entry_of(&entry.key, &entry.value))
    }

    /// The nodes that it knows; what cannot be read is left out.
    pub fn nodes(&self) -> Vec<NodeRecord> {
        let records = self
            .entries_of("nodes/")
            .filter_map(|entry| decode::<NodeRecord>(&entry).ok());
        records.map(|record| record.value).collect()
    }

    /// The volumes that it knows, by number; what cannot be read is left out.
    pub fn volumes(&self) -> Vec<CopiedVolume> {
        let keys = Keys::new("");
        let find = |key: Key| {
            let key = relative(&keys, &key)?.to_owned();
            let entry = self.entries.iter().find(|entry| entry.key == key)?;
            Some(entry_of(&entry.key, &entry.value))
        };
        let epochs = self.entries.iter().filter_map(|entry| {
            let rest = entry.key.strip_prefix("volumes/")?;
            let (number, field) = rest.split_once('/')?;
            (field == "epoch").then_some(())?;
            Some(VolumeId(number.parse().ok()?))
        });
        let volumes = epochs.filter_map(|volume| {
            let epoch = decode::<EpochRecord>(&find(keys.epoch(volume))?).ok()?;
            let log = find(keys.log(volume));
            let log = log.and_then(|entry| decode::<LogRecord>(&entry).ok());
            Some(CopiedVolume {
                volume,
                epoch: epoch.value.epoch,
                log: log.map(|log| log.value.log),
            })
        });
        volumes.collect()
    }

    /// Makes this the map in a store: what the store has of the cluster goes. `above`: the highest generation that anybody has
    /// seen. `promised`: epochs that disks are known to have promised to obey. Begun again it does all of it again.
    pub async fn write_to(
        &self,
        coordinator: &Arc<dyn Coordinator>,
        env: &Env,
        above: MapGeneration,
        promised: impl Fn(VolumeId) -> Epoch,
    ) -> Result<MapGeneration, MapError> {
        let keys = Keys::new(&self.name);
        let generation = MapGeneration(self.generation.max(above).0 + 1);
        put(
            coordinator,
            vec![Op::Delete(KeyRange::Prefix(keys.prefix().to_owned()))],
        )
        .await?;
        let mut steps = Vec::new();
        for entry in &self.entries {
            // The record comes last: without it there is no map yet. What disks have left is told by revisions of this store's past.
            let is_of_before = entry.key == "recovered" || entry.key.ends_with("/left");
            if entry.key == "cluster" || is_of_before {
                continue;
            }
            let key = Key::new(format!("{}{}", keys.prefix(), entry.key));
            let mut value = entry.value.clone().into_bytes();
            if let Some((volume, "epoch")) = keys.parse_volume(&key) {
                let known: EpochRecord = decode(&entry_of(key.as_str(), &entry.value))?.value;
                let highest = known.epoch.max(promised(volume));
                let epoch = Epoch(highest.0.saturating_add(EPOCHS_SKIPPED));
                value = encode(&key, &EpochRecord { epoch, ..known })?;
            }
            steps.push(Op::put(key, value));
            if steps.len() >= STEPS_MAX {
                put(coordinator, std::mem::take(&mut steps)).await?;
            }
        }
        let key = keys.recovered();
        let logs = self.volumes().into_iter();
        let logs = logs.filter_map(|volume| Some((volume.volume, volume.log?.newest_number()?)));
        let recovered = RecoveredRecord {
            at: env.clock.now(),
            logs: logs.collect(),
        };
        steps.push(Op::put(key.clone(), encode(&key, &recovered)?));
        put(coordinator, steps).await?;
        let key = keys.cluster();
        let found = self.entries.iter().find(|entry| entry.key == "cluster");
        let record = match found {
            Some(found) => decode::<ClusterRecord>(&entry_of(&found.key, &found.value))?.value,
            None => ClusterRecord {
                id: self.cluster,
                name: self.name.clone(),
                created: env.clock.now(),
                generation,
            },
        };
        let record = ClusterRecord {
            generation,
            ..record
        };
        let value = encode(&key, &record)?;
        put(coordinator, vec![Op::put(key, value)]).await?;
        Ok(generation)
    }
}

fn relative<'k>(keys: &Keys, key: &'k Key) -> Option<&'k str> {
    key.as_str().strip_prefix(keys.prefix())
}

fn entry_of(key: &str, value: &str) -> Entry {
    Entry {
        key: Key::new(key),
        value: value.as_bytes().to_vec(),
        created: Revision::ABSENT,
        modified: Revision::ABSENT,
        version: 0,
        lease: None,
    }
}

async fn put(coordinator: &Arc<dyn Coordinator>, steps: Vec<Op>) -> Result<(), MapError> {
    if steps.is_empty() {
        return Ok(());
    }
    let txn = Txn {
        when: Vec::new(),
        then: steps,
        otherwise: Vec::new(),
    };
    match coordinator.transact(txn).await {
        Outcome::Done(_) => Ok(()),
        // Nothing was compared.
        Outcome::Refused(_) => unreachable!("a transaction without a condition is not refused"),
        Outcome::Unknown(error) => Err(MapError::Unknown(error)),
        Outcome::Failed(error) => Err(MapError::Coordinator(error)),
    }
}

impl ClusterMap {
    /// The copy that the map was last restored from, if it ever was.
    pub async fn recovered(&self) -> Result<Option<RecoveredRecord>, MapError> {
        let found = self.read_one::<RecoveredRecord>(self.keys().recovered());
        Ok(found.await?.map(|found| found.value))
    }

    /// A copy of the map as it is now. `version`: of this program.
    pub async fn copy(&self, version: &str) -> Result<MapCopy, MapError> {
        let reply = self.read(self.keys().all()).await?;
        let kept = reply.entries.iter().filter(|entry| entry.lease.is_none());
        let entries = kept.filter_map(|entry| {
            Some(CopyEntry {
                key: relative(self.keys(), &entry.key)?.to_owned(),
                value: String::from_utf8(entry.value.clone()).ok()?,
            })
        });
        let record = self.cluster();
        let mut copy = MapCopy {
            format: FORMAT,
            cluster: record.id,
            name: record.name.clone(),
            generation: record.generation,
            revision: reply.revision.0,
            taken: self.shared.env.clock.now(),
            version: version.to_owned(),
            entries: entries.collect(),
            digest: String::new(),
        };
        copy.digest = copy.digest_of();
        Ok(copy)
    }
}
