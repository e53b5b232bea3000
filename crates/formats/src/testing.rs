//! For tests: values that could be stored.

use cairn_base::{DiskId, PoolId, Timestamp, VolumeId};

use crate::pool_file::{HandleKey, PoolDisk, PoolState, PoolVolume, Stage};
use crate::settings::{ExportRule, Role, UserRecord, VolumeSettings};

/// A user whose password nobody knows.
pub fn example_user() -> UserRecord {
    UserRecord {
        role: Role::Admin,
        password: "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo"
            .parse()
            .expect("it has the form of a hash"),
        stamp: 7,
        created_seconds: 1_700_000_000,
        changed_seconds: 1_700_000_001,
    }
}

/// A pool of so many disks, with one volume.
pub fn example_pool(disk_count: u128) -> PoolState {
    let created = Timestamp::new(1_700_000_000, 5);
    PoolState {
        pool: PoolId(77),
        version: 3,
        created,
        stage: Stage::InUse,
        disks: (1..=disk_count)
            .map(|id| PoolDisk::new(DiskId(id), format!("/data/{id}"), created))
            .collect(),
        left: Vec::new(),
        volumes: vec![PoolVolume {
            id: VolumeId(1),
            name: "main".parse().expect("it is a name"),
            settings: VolumeSettings::default(),
            created,
            exports: ExportRule::this_machine(),
            class: None,
            limits: Vec::new(),
            encryption: None,
            tiering: None,
            is_deleted: false,
        }],
        deleted: Vec::new(),
        volume_next: VolumeId(2),
        handle_key: Some(HandleKey(u128::MAX - 1).readable()),
        secrets_key: None,
        cluster: None,
        classes: Default::default(),
        users: Default::default(),
        logouts: Default::default(),
        clones: Vec::new(),
        caches: Vec::new(),
        tiers: Vec::new(),
        tier_last: Default::default(),
        maintenance: Default::default(),
    }
}
