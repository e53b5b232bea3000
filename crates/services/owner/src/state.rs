//! The pool's state as the cluster's map has it.
//!
//! Owns: which fields of the state are in which value of the map. Must not know: how the map is kept, what follows from it.

use std::collections::BTreeMap;

use cairn_base::{NodeId, TierId, Timestamp, VolumeId};
use cairn_cluster::map::{
    ClassesRecord, CloneRecord, DiskRecord, LogoutsRecord, MaintenanceRecord, MapView, Opaque,
    SecretsKeyRecord, TiersRecord, UsersRecord, VolumeRecord,
};
use cairn_formats::encryption::{VolumeEncryption, WrappedKey};
use cairn_formats::pool_file::{
    PoolClone, PoolDisk, PoolState, PoolTier, PoolVolume, Stage, VolumeTiering,
};
use cairn_formats::settings::{
    ClassName, ClassSpec, ExportRule, Logouts, Maintenance, PartLimit, UserName, UserRecord,
    VolumeSettings,
};
use serde::{Deserialize, Serialize};

/// What a volume's record holds beside its name and exports.
#[derive(Serialize, Deserialize)]
struct VolumeFields {
    settings: VolumeSettings,
    created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<ClassName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<PartLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<VolumeEncryption>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tiering: Option<VolumeTiering>,
}

/// A volume with its store, and the clones that live in it: what one record of the map says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreState {
    pub volume: PoolVolume,
    pub clones: Vec<PoolVolume>,
}

impl StoreState {
    pub fn of(state: &PoolState, volume: &PoolVolume) -> Self {
        let clones = state.clones.iter();
        let own = clones.filter(|clone| clone.store == volume.id);
        Self {
            volume: volume.clone(),
            clones: own.map(|clone| clone.volume.clone()).collect(),
        }
    }
}

pub(crate) fn store_record(store: &StoreState) -> Result<VolumeRecord, String> {
    let clones = store.clones.iter().map(|clone| {
        let (settings, exports) = opaque(clone)?;
        Ok(CloneRecord {
            id: clone.id,
            name: clone.name.to_string(),
            settings,
            exports,
        })
    });
    let (settings, exports) = opaque(&store.volume)?;
    Ok(VolumeRecord {
        id: store.volume.id,
        name: store.volume.name.to_string(),
        settings,
        exports,
        clones: clones.collect::<Result<_, String>>()?,
        is_deleted: store.volume.is_deleted,
    })
}

/// What a record says of a volume beside its name, and of its exports.
fn opaque(volume: &PoolVolume) -> Result<(Opaque, Opaque), String> {
    let kept = VolumeFields {
        settings: volume.settings,
        created: volume.created,
        class: volume.class.clone(),
        limits: volume.limits.clone(),
        encryption: volume.encryption,
        tiering: volume.tiering.clone(),
    };
    let json = |error: serde_json::Error| format!("volume {}: {error}", volume.name);
    Ok((
        Opaque(serde_json::to_vec(&kept).map_err(json)?),
        Opaque(serde_json::to_vec(&volume.exports).map_err(json)?),
    ))
}

pub(crate) fn store_state(record: &VolumeRecord) -> Result<StoreState, String> {
    let clones = record.clones.iter().map(|clone| {
        pool_volume(
            clone.id,
            &clone.name,
            (&clone.settings, &clone.exports),
            false,
        )
    });
    let said = (&record.settings, &record.exports);
    Ok(StoreState {
        volume: pool_volume(record.id, &record.name, said, record.is_deleted)?,
        clones: clones.collect::<Result<_, String>>()?,
    })
}

fn pool_volume(
    id: VolumeId,
    name: &str,
    (settings, exports): (&Opaque, &Opaque),
    is_deleted: bool,
) -> Result<PoolVolume, String> {
    let bad = |what: &str, error: &dyn std::fmt::Display| {
        format!("the {what} of volume {name} in the cluster's map: {error}")
    };
    let kept: VolumeFields =
        serde_json::from_slice(&settings.0).map_err(|error| bad("settings", &error))?;
    let exports: Vec<ExportRule> =
        serde_json::from_slice(&exports.0).map_err(|error| bad("exports", &error))?;
    Ok(PoolVolume {
        id,
        name: name.parse().map_err(|error| bad("name", &error))?,
        settings: kept.settings,
        created: kept.created,
        exports,
        class: kept.class,
        limits: kept.limits,
        encryption: kept.encryption,
        tiering: kept.tiering,
        is_deleted,
    })
}

pub(crate) type Classes = BTreeMap<ClassName, ClassSpec>;

pub(crate) fn classes_record(classes: &Classes) -> Result<ClassesRecord, String> {
    let json = serde_json::to_vec(classes).map_err(|error| format!("classes: {error}"))?;
    Ok(ClassesRecord {
        classes: Opaque(json),
    })
}

pub(crate) fn classes_of(record: &ClassesRecord) -> Result<Classes, String> {
    serde_json::from_slice(&record.classes.0)
        .map_err(|error| format!("the classes of service in the cluster's map: {error}"))
}

pub(crate) fn maintenance_record(maintenance: &Maintenance) -> Result<MaintenanceRecord, String> {
    let json = serde_json::to_vec(maintenance).map_err(|error| format!("maintenance: {error}"))?;
    Ok(MaintenanceRecord {
        maintenance: Opaque(json),
    })
}

/// When the cluster's own work is done, as the map has it.
pub(crate) fn maintenance_of(record: &MaintenanceRecord) -> Result<Maintenance, String> {
    serde_json::from_slice(&record.maintenance.0)
        .map_err(|error| format!("the maintenance window in the cluster's map: {error}"))
}

pub(crate) fn secrets_key_record(key: &WrappedKey) -> Result<SecretsKeyRecord, String> {
    let json = serde_json::to_vec(key).map_err(|error| format!("the key of secrets: {error}"))?;
    Ok(SecretsKeyRecord {
        secrets_key: Opaque(json),
    })
}

pub(crate) fn secrets_key_of(record: &SecretsKeyRecord) -> Result<WrappedKey, String> {
    serde_json::from_slice(&record.secrets_key.0)
        .map_err(|error| format!("the key of secrets in the cluster's map: {error}"))
}

pub(crate) type Users = BTreeMap<UserName, UserRecord>;

pub(crate) fn users_record(users: &Users) -> Result<UsersRecord, String> {
    let json = serde_json::to_vec(users).map_err(|error| format!("users: {error}"))?;
    Ok(UsersRecord {
        users: Opaque(json),
    })
}

pub(crate) fn users_of(record: &UsersRecord) -> Result<Users, String> {
    serde_json::from_slice(&record.users.0)
        .map_err(|error| format!("the users of the admin API in the cluster's map: {error}"))
}

pub(crate) fn logouts_record(logouts: &Logouts) -> Result<LogoutsRecord, String> {
    let json = serde_json::to_vec(logouts).map_err(|error| format!("ended sessions: {error}"))?;
    Ok(LogoutsRecord {
        logouts: Opaque(json),
    })
}

pub(crate) fn logouts_of(record: &LogoutsRecord) -> Result<Logouts, String> {
    serde_json::from_slice(&record.logouts.0)
        .map_err(|error| format!("the ended sessions in the cluster's map: {error}"))
}

/// Tiers, and the last id that was given to one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tiers {
    pub tiers: Vec<PoolTier>,
    pub last: TierId,
}

impl Tiers {
    pub fn of(state: &PoolState) -> Self {
        Self {
            tiers: state.tiers.clone(),
            last: state.tier_last,
        }
    }
}

pub(crate) fn tiers_record(tiers: &Tiers) -> Result<TiersRecord, String> {
    let json = serde_json::to_vec(tiers).map_err(|error| format!("tiers: {error}"))?;
    Ok(TiersRecord {
        tiers: Opaque(json),
    })
}

pub(crate) fn tiers_of(record: &TiersRecord) -> Result<Tiers, String> {
    serde_json::from_slice(&record.tiers.0)
        .map_err(|error| format!("the tiers in the cluster's map: {error}"))
}

/// A disk of the pool's state as the cluster's map has it.
pub fn disk_record(disk: &PoolDisk) -> DiskRecord {
    DiskRecord {
        id: disk.id,
        node: disk.node,
        label: disk.label.clone(),
        role: disk.role,
        media: disk.media,
        draining: disk.draining,
        replaced: disk.replaced,
        added: disk.added,
    }
}

/// The state that the map has, in the place of `before`, which has what only this node knows of its disks. A volume that
/// is there and cannot be read, as one that a newer program wrote, stays as it was known: it is not gone.
pub(crate) fn pool_state(view: &MapView, before: &PoolState, own: NodeId) -> PoolState {
    let name = |node: NodeId| match view.nodes.get(&node) {
        Some(node) => node.value.name.clone(),
        None => node.to_string(),
    };
    let disks = view.disks.values().map(|record| {
        let record = &record.value;
        let known = before.disks.iter().find(|disk| disk.id == record.id);
        let label = match record.node == own {
            true => record.label.clone(),
            false => format!("{}:{}", name(record.node), record.label),
        };
        PoolDisk {
            node: record.node,
            role: record.role,
            media: record.media,
            draining: record.draining,
            replaced: record.replaced,
            by_label: known.is_some_and(|disk| disk.by_label),
            seen: known.map_or(0, |disk| disk.seen),
            ..PoolDisk::new(record.id, label, record.added)
        }
    });
    let mut disks: Vec<PoolDisk> = disks.collect();
    // A disk that is no member any more is emptied. While values cannot be read, one of them may be its record.
    if !view.damaged.is_empty() {
        let is_unlisted = |disk: &&PoolDisk| !view.disks.contains_key(&disk.id);
        disks.extend(before.disks.iter().filter(is_unlisted).cloned());
    }
    let mut stores = Vec::new();
    for state in view.volumes.values() {
        match store_state(&state.record.value) {
            Ok(store) => stores.push(store),
            Err(error) => {
                tracing::error!(error, "a volume of the cluster map cannot be read");
                let id = state.record.value.id;
                let known = before.volumes.iter().find(|known| known.id == id);
                stores.extend(known.map(|known| StoreState::of(before, known)));
            }
        }
    }
    let is_unreadable = |volume: &&PoolVolume| view.unreadable.contains(&volume.id);
    let unreadable = before.volumes.iter().filter(is_unreadable);
    stores.extend(unreadable.map(|known| StoreState::of(before, known)));
    let mut volumes = Vec::new();
    let mut clones = Vec::new();
    for store in stores {
        let id = store.volume.id;
        let own = store.clones.into_iter();
        clones.extend(own.map(|volume| PoolClone { store: id, volume }));
        volumes.push(store.volume);
    }
    clones.sort_by_key(|clone| clone.volume.id);
    volumes.sort_by_key(|volume| volume.id);
    let classes = match &view.classes {
        // One of the values that cannot be read may be theirs.
        None if !view.damaged.is_empty() => before.classes.clone(),
        None => Classes::new(),
        Some(record) => classes_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(
                error,
                "the classes in the cluster map cannot be read; the known ones stay in use"
            );
            before.classes.clone()
        }),
    };
    let users = match &view.users {
        None if !view.damaged.is_empty() => before.users.clone(),
        None => Users::new(),
        Some(record) => users_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(
                error,
                "the users in the cluster map cannot be read; the known ones stay in use"
            );
            before.users.clone()
        }),
    };
    let logouts = match &view.logouts {
        None if !view.damaged.is_empty() => before.logouts.clone(),
        None => Logouts::default(),
        Some(record) => logouts_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(
                error,
                "the ended sessions in the cluster map cannot be read; the known ones stay in use"
            );
            before.logouts.clone()
        }),
    };
    let tiers = match &view.tiers {
        None if !view.damaged.is_empty() => Tiers::of(before),
        None => Tiers::default(),
        Some(record) => tiers_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(
                error,
                "the tiers in the cluster map cannot be read; the known ones stay in use"
            );
            Tiers::of(before)
        }),
    };
    let maintenance = match &view.maintenance {
        None if !view.damaged.is_empty() => before.maintenance.clone(),
        None => Maintenance::default(),
        Some(record) => maintenance_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(error, "the maintenance window in the cluster map cannot be read; the known one stays in use");
            before.maintenance.clone()
        }),
    };
    // It never goes: what is wrapped with it could not be read any more.
    let secrets_key = match &view.secrets_key {
        None => before.secrets_key,
        Some(record) => match secrets_key_of(&record.value) {
            Ok(key) => Some(key),
            Err(error) => {
                tracing::error!(
                    error,
                    "the key of secrets in the cluster map cannot be read; the known one stays in use"
                );
                before.secrets_key
            }
        },
    };
    PoolState {
        classes,
        users,
        logouts,
        maintenance,
        secrets_key,
        tiers: tiers.tiers,
        tier_last: tiers.last,
        stage: match view.volume_next {
            Some(_) => Stage::InUse,
            None => Stage::Empty,
        },
        disks,
        volumes,
        clones,
        volume_next: view.volume_next.unwrap_or(before.volume_next),
        ..before.clone()
    }
}
