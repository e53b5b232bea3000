//! The pool's state as the cluster's map has it.
//!
//! Owns: which fields of the state are in which value of the map. Must not know: how the map is kept, what follows from it.

use std::collections::BTreeMap;

use cairn_base::{NodeId, Timestamp};
use cairn_cluster::map::{
    ClassesRecord, DiskRecord, DiskRole, MapView, Opaque, UsersRecord, VolumeRecord,
};
use cairn_formats::encryption::VolumeEncryption;
use cairn_formats::pool_file::{PoolDisk, PoolState, PoolVolume, Stage};
use cairn_formats::settings::{
    ClassName, ClassSpec, ExportRule, PartLimit, UserName, UserRecord, VolumeSettings,
};
use serde::{Deserialize, Serialize};

/// What a volume's record holds beside its name and exports.
#[derive(Serialize, Deserialize)]
struct Kept {
    settings: VolumeSettings,
    created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<ClassName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<PartLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<VolumeEncryption>,
}

pub(crate) fn volume_record(volume: &PoolVolume) -> Result<VolumeRecord, String> {
    let kept = Kept {
        settings: volume.settings,
        created: volume.created,
        class: volume.class.clone(),
        limits: volume.limits.clone(),
        encryption: volume.encryption,
    };
    let json = |error: serde_json::Error| format!("volume {}: {error}", volume.name);
    Ok(VolumeRecord {
        id: volume.id,
        name: volume.name.to_string(),
        settings: Opaque(serde_json::to_vec(&kept).map_err(json)?),
        exports: Opaque(serde_json::to_vec(&volume.exports).map_err(json)?),
    })
}

pub(crate) fn pool_volume(record: &VolumeRecord) -> Result<PoolVolume, String> {
    let bad = |what: &str, error: &dyn std::fmt::Display| {
        format!(
            "the {what} of volume {} in the cluster's map: {error}",
            record.name
        )
    };
    let kept: Kept =
        serde_json::from_slice(&record.settings.0).map_err(|error| bad("settings", &error))?;
    let exports: Vec<ExportRule> =
        serde_json::from_slice(&record.exports.0).map_err(|error| bad("exports", &error))?;
    Ok(PoolVolume {
        id: record.id,
        name: record.name.parse().map_err(|error| bad("name", &error))?,
        settings: kept.settings,
        created: kept.created,
        exports,
        class: kept.class,
        limits: kept.limits,
        encryption: kept.encryption,
        tiering: None,
        is_deleted: false,
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

pub(crate) fn disk_record(disk: &PoolDisk) -> DiskRecord {
    DiskRecord {
        id: disk.id,
        node: disk.node,
        label: disk.label.clone(),
        role: DiskRole::Both,
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
    let mut volumes = Vec::new();
    for state in view.volumes.values() {
        match pool_volume(&state.record.value) {
            Ok(volume) => volumes.push(volume),
            Err(error) => {
                tracing::error!(error, "a volume of the cluster's map cannot be read");
                let id = state.record.value.id;
                volumes.extend(before.volumes.iter().find(|known| known.id == id).cloned());
            }
        }
    }
    let is_unreadable = |volume: &&PoolVolume| view.unreadable.contains(&volume.id);
    volumes.extend(before.volumes.iter().filter(is_unreadable).cloned());
    volumes.sort_by_key(|volume| volume.id);
    let classes = match &view.classes {
        // One of the values that cannot be read may be theirs.
        None if !view.damaged.is_empty() => before.classes.clone(),
        None => Classes::new(),
        Some(record) => classes_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(error, "the classes stay as they were known");
            before.classes.clone()
        }),
    };
    let users = match &view.users {
        None if !view.damaged.is_empty() => before.users.clone(),
        None => Users::new(),
        Some(record) => users_of(&record.value).unwrap_or_else(|error| {
            tracing::error!(error, "the users stay as they were known");
            before.users.clone()
        }),
    };
    PoolState {
        classes,
        users,
        stage: match view.volume_next {
            Some(_) => Stage::InUse,
            None => Stage::Empty,
        },
        disks,
        volumes,
        volume_next: view.volume_next.unwrap_or(before.volume_next),
        ..before.clone()
    }
}
