//! Volumes and clones of a pool: which there are, which store each is in, and which were deleted.
//!
//! Owns: ids and names of volumes, which are given once. Must not know: who may mount a volume (`rules`), and its class (`classes`).

use cairn_base::{Timestamp, VolumeId};
use serde::{Deserialize, Serialize};

use super::{
    ChangeError, DELETED_MAX, PoolState, Stage, VOLUMES_MAX, VOLUMES_READ_MAX, VolumeTiering,
};
use crate::encryption::VolumeEncryption;
use crate::settings::{ClassName, ExportRule, PartLimit, SizeLimit, VolumeName, VolumeSettings};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolVolume {
    pub id: VolumeId,
    pub name: VolumeName,
    pub settings: VolumeSettings,
    pub created: Timestamp,
    /// Who may mount it; empty: nobody.
    pub exports: Vec<ExportRule>,
    /// The class whose rates it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassName>,
    /// Parts of it that have rates of their own, by part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<PartLimit>,
    /// `None`: it is not encrypted. That is for ever as it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<VolumeEncryption>,
    /// `None`: its data was never in a tier, or is in none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiering: Option<VolumeTiering>,
    /// It is deleted, and its store is there for the clones that live in it. Never so of a clone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
}

/// A volume that began as a clone of another, and lives in the store of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolClone {
    /// The volume that the store was made for, which is no clone itself.
    pub store: VolumeId,
    /// Its settings and its encryption are those of the store.
    pub volume: PoolVolume,
}

impl PoolVolume {
    /// The entry that remembers it after its deletion.
    pub fn deleted(&self) -> DeletedVolume {
        DeletedVolume {
            id: self.id,
            created: self.created,
            name: Some(self.name.clone()),
        }
    }
}

/// A volume that was deleted. Two disks that went on without one another may have given one id to two volumes, so
/// when it was made belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedVolume {
    pub id: VolumeId,
    pub created: Timestamp,
    /// What it was called; `None` where that was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VolumeName>,
}

/// What a deletion took out of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A volume with its store.
    Store(VolumeId),
    /// A clone; others are in its store.
    Clone { store: VolumeId },
    /// The volume that a store was made for; clones are in the store.
    OwnVolume { store: VolumeId },
}

impl PoolState {
    /// Those that have a store of their own, then clones. [`Self::volumes`] are the stores: some for their clones alone.
    pub fn all_volumes(&self) -> impl Iterator<Item = &PoolVolume> {
        let clones = self.clones.iter().map(|clone| &clone.volume);
        let own = self.volumes.iter().filter(|volume| !volume.is_deleted);
        own.chain(clones)
    }

    /// All volumes that are in a store.
    pub fn volumes_in_store(&self, store: VolumeId) -> impl Iterator<Item = &PoolVolume> {
        self.all_volumes().filter(move |volume| {
            let clone = self.clone_of(volume.id);
            clone.map_or(volume.id, |clone| clone.store) == store
        })
    }

    /// The volume that speaks for a store: the one that it was made for, or once that is deleted the earliest of its clones.
    pub fn head_of<'a>(&'a self, store: &'a PoolVolume) -> &'a PoolVolume {
        if !store.is_deleted {
            return store;
        }
        let head = self.volumes_in_store(store.id).min_by_key(|it| it.id);
        head.unwrap_or(store)
    }

    /// The store that a volume speaks for, if it does.
    pub fn headed_by(&self, volume: VolumeId) -> Option<&PoolVolume> {
        let mut stores = self.volumes.iter();
        stores.find(|store| self.head_of(store).id == volume)
    }

    /// The clone with this id, if it is one.
    pub fn clone_of(&self, id: VolumeId) -> Option<&PoolClone> {
        self.clones.iter().find(|clone| clone.volume.id == id)
    }

    /// The volume in whose store one is: itself, but for a clone.
    pub fn store_of<'a>(&'a self, volume: &'a PoolVolume) -> &'a PoolVolume {
        let clone = self.clone_of(volume.id);
        let store = clone.and_then(|clone| self.volumes.iter().find(|it| it.id == clone.store));
        store.unwrap_or(volume)
    }

    pub fn volume(&self, name: &VolumeName) -> Result<&PoolVolume, ChangeError> {
        self.all_volumes()
            .find(|volume| volume.name == *name)
            .ok_or_else(|| ChangeError::NotFound(name.clone()))
    }

    pub fn volume_mut(&mut self, name: &VolumeName) -> Result<&mut PoolVolume, ChangeError> {
        let clones = self.clones.iter_mut().map(|clone| &mut clone.volume);
        let own = self.volumes.iter_mut();
        own.filter(|volume| !volume.is_deleted)
            .chain(clones)
            .find(|volume| volume.name == *name)
            .ok_or_else(|| ChangeError::NotFound(name.clone()))
    }

    /// The store with this id, whether its own volume is deleted or not.
    pub fn store_mut(&mut self, id: VolumeId) -> Option<&mut PoolVolume> {
        self.volumes.iter_mut().find(|volume| volume.id == id)
    }

    /// Whether a volume of this name could be added.
    pub fn check_new(&self, name: &VolumeName) -> Result<(), ChangeError> {
        if self.volume(name).is_ok() {
            return Err(ChangeError::Exists(name.clone()));
        }
        if self.all_volumes().count() >= VOLUMES_MAX {
            return Err(ChangeError::TooManyVolumes);
        }
        Ok(())
    }

    /// Takes the next volume id; the state must be saved before the id is used.
    pub fn take_volume_id(&mut self) -> VolumeId {
        let id = self.volume_next;
        self.volume_next = VolumeId(id.0.saturating_add(1));
        id
    }

    /// Takes a volume out; it is remembered as deleted. Its store goes with the last volume in it.
    pub fn delete_volume(&mut self, id: VolumeId) -> Deletion {
        let mut clones = self.clones.extract_if(.., |clone| clone.volume.id == id);
        let clone = clones.next();
        drop(clones);
        if let Some(clone) = clone {
            self.deleted.push(clone.volume.deleted());
            let store = clone.store;
            let mut own = self.volumes.iter();
            let is_left = own.any(|volume| volume.id == store && volume.is_deleted)
                && self.volumes_in_store(store).next().is_none();
            if !is_left {
                self.forget_oldest_deleted();
                return Deletion::Clone { store };
            }
            self.delete_store(store);
            return Deletion::Store(store);
        }
        let has_clones = self.clones.iter().any(|clone| clone.store == id);
        match self.store_mut(id) {
            Some(volume) if has_clones => {
                volume.is_deleted = true;
                volume.exports.clear();
                volume.limits.clear();
                volume.class = None;
                // It was for the files of this volume alone.
                volume.settings.size_limit = SizeLimit::None;
                Deletion::OwnVolume { store: id }
            }
            _ => {
                self.delete_store(id);
                Deletion::Store(id)
            }
        }
    }

    fn delete_store(&mut self, id: VolumeId) {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.volumes)
            .into_iter()
            .partition(|volume| volume.id == id);
        self.volumes = kept;
        for volume in &gone {
            let id = volume.tiering.as_ref().map(|tiering| tiering.tier);
            let tier = self.tiers.iter_mut().find(|tier| Some(tier.id) == id);
            if let Some(tier) = tier
                && !tier.deleting.contains(&volume.id)
            {
                tier.deleting.push(volume.id);
            }
        }
        self.deleted.extend(gone.iter().map(PoolVolume::deleted));
        self.forget_oldest_deleted();
    }

    fn forget_oldest_deleted(&mut self) {
        let surplus = self.deleted.len().saturating_sub(DELETED_MAX);
        self.deleted.drain(..surplus);
    }

    /// Whether a volume is known to be deleted.
    pub fn was_deleted(&self, volume: &PoolVolume) -> bool {
        let mut deleted = self.deleted.iter();
        deleted.any(|gone| (gone.id, gone.created) == (volume.id, volume.created))
    }

    /// What a volume is called, or was when it was deleted; not known of all that are deleted.
    pub fn name_of(&self, id: VolumeId) -> Option<&VolumeName> {
        let clones = self.clones.iter().map(|clone| &clone.volume);
        let mut all = self.volumes.iter().chain(clones);
        let listed = all.find(|volume| volume.id == id);
        let deleted = || self.deleted.iter().find(|gone| gone.id == id);
        match listed {
            Some(volume) => Some(&volume.name),
            None => deleted()?.name.as_ref(),
        }
    }

    /// Takes in a volume that another copy lists and this one does not, under another name if there is one of its
    /// name by now. Says under which.
    pub fn bring_back(&mut self, volume: &PoolVolume) -> Option<VolumeName> {
        if self.volumes.len() >= VOLUMES_READ_MAX {
            return None;
        }
        let name = self.free_name(volume)?;
        self.deleted.retain(|deleted| deleted.id != volume.id);
        for tier in &mut self.tiers {
            tier.deleting.retain(|deleting| *deleting != volume.id);
        }
        let after = VolumeId(volume.id.0.saturating_add(1));
        self.volume_next = self.volume_next.max(after);
        self.stage = Stage::InUse;
        // It may be there for its clones alone.
        self.volumes.retain(|there| there.id != volume.id);
        self.volumes.push(PoolVolume {
            name: name.clone(),
            ..volume.clone()
        });
        Some(name)
    }

    /// Brings a deleted clone back, under a free name. Returns the name.
    pub fn bring_back_clone(&mut self, clone: &PoolClone) -> Option<VolumeName> {
        let volume = &clone.volume;
        if self.volumes.len() + self.clones.len() >= VOLUMES_READ_MAX {
            return None;
        }
        let name = self.free_name(volume)?;
        self.deleted.retain(|deleted| deleted.id != volume.id);
        let after = VolumeId(volume.id.0.saturating_add(1));
        self.volume_next = self.volume_next.max(after);
        let volume = PoolVolume {
            name: name.clone(),
            ..volume.clone()
        };
        let store = clone.store;
        self.clones.push(PoolClone { store, volume });
        Some(name)
    }

    /// What to call a volume that comes back.
    fn free_name(&self, volume: &PoolVolume) -> Option<VolumeName> {
        let (name, id) = (&volume.name, volume.id.0);
        let short: String = name.as_str().chars().take(40).collect();
        let others = (1..=VOLUMES_READ_MAX).map(|count| format!("{short}-{id}-{count}"));
        let mut names = [name.to_string(), format!("{short}-{id}")]
            .into_iter()
            .chain(others)
            .filter_map(|name| name.parse::<VolumeName>().ok());
        names.find(|name| self.volume(name).is_err())
    }
}
