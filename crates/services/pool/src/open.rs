//! Makes a pool of disks, or opens the one that is on them.
//!
//! Owns: the order of writes of a first start, opening the members' shards.
//! Must not know: where the disks are and how they were found; what a start makes of them (`assemble`).

use std::sync::Arc;
use std::time::Duration;

use cairn_base::disk::{Disk, DiskError};
use cairn_base::env::Env;
use cairn_base::{DiskId, NodeId, PoolId, VolumeId};
use cairn_shard::{ShardDisk, ShardError, ShardErrorKind, ShardSettings};
use futures_util::future::{Either, join_all, select};

use crate::assemble::{AssembleError, Missing, require_enough};
use crate::truth;
use crate::watch::{Watch, no_answer};
use cairn_formats::pool_file::{HandleKey, PoolDisk, PoolState, Stage};

/// The disks of a pool, open.
pub struct OpenedPool {
    pub state: PoolState,
    pub disks: Vec<Arc<ShardDisk>>,
    pub missing: Vec<Missing>,
    /// Whether all disks are there, each with a pool file that could be read: no other can list a volume then.
    pub is_whole: bool,
    pub watch: Watch,
    /// Whether the pool was made just now.
    pub created: bool,
}

impl OpenedPool {
    /// Uses the cluster's state as that of the pool. Releases disks of the node `own` that are no longer members; members
    /// that it did not find count as missing, for the reason `why`.
    pub fn keep_members(&mut self, state: PoolState, own: NodeId, why: &str) {
        let is_member = |id: DiskId| state.disks.iter().any(|disk| disk.id == id);
        self.disks.retain(|disk| is_member(disk.id()));
        self.missing.retain(|missing| is_member(missing.disk.id));
        for disk in state.disks.iter().filter(|disk| disk.node == own) {
            let is_known = self.disks.iter().any(|found| found.id() == disk.id)
                || self
                    .missing
                    .iter()
                    .any(|missing| missing.disk.id == disk.id);
            if !is_known {
                self.missing.push(Missing {
                    disk: disk.clone(),
                    why: why.to_owned(),
                });
            }
        }
        self.state = state;
        // The map lists the volumes, however many disks this node found.
        self.is_whole = true;
    }
}

/// A disk, and which member it is.
pub type Member = (Arc<dyn Disk>, DiskId);

/// How members are opened.
pub struct OpenSettings {
    pub shards: ShardSettings,
    /// A disk that does not answer for so long is not used.
    pub hang_after: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error("{0}")]
    Disk(#[from] DiskError),
    #[error("{0}")]
    Shard(#[from] ShardError),
}

/// The state of a pool that is made on these disks.
pub fn new_state(env: &Env, disks: &[Arc<dyn Disk>]) -> PoolState {
    let now = env.clock.now();
    PoolState {
        pool: PoolId(env.entropy.u128()),
        version: 1,
        created: now,
        stage: Stage::Forming,
        disks: disks
            .iter()
            .map(|disk| PoolDisk::new(DiskId(env.entropy.u128()), disk.label(), now))
            .collect(),
        left: Vec::new(),
        volumes: Vec::new(),
        deleted: Vec::new(),
        volume_next: VolumeId(1),
        handle_key: Some(HandleKey(env.entropy.u128()).readable()),
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

/// Makes a pool, or finishes making it: pool file, identities, pool file that says it is formed.
///
/// The pool file comes first, so that disks with an identity and none without it can only be a
/// pool whose files were lost, never one whose making broke off.
pub async fn form(
    env: &Env,
    settings: OpenSettings,
    mut state: PoolState,
    members: Vec<Member>,
    bare: &[Member],
) -> Result<OpenedPool, OpenError> {
    let disks: Vec<Arc<dyn Disk>> = members.iter().map(|(disk, _)| Arc::clone(disk)).collect();
    save_on_all(&disks, &state).await?;
    let now = env.clock.now();
    for (disk, id) in bare {
        ShardDisk::format(Arc::clone(disk), state.pool, *id, now).await?;
    }
    state.stage = Stage::Empty;
    state.version += 1;
    save_on_all(&disks, &state).await?;
    let mut opened = open_members(env, settings, state, members, Vec::new()).await?;
    opened.created = true;
    Ok(opened)
}

async fn save_on_all(disks: &[Arc<dyn Disk>], state: &PoolState) -> Result<(), DiskError> {
    for disk in disks {
        // A pool begins whole, or not at all.
        truth::save_one(disk, state).await?;
    }
    Ok(())
}

/// Opens the members' shards. A disk that fails now joins the missing ones.
pub async fn open_members(
    env: &Env,
    settings: OpenSettings,
    mut state: PoolState,
    members: Vec<Member>,
    mut missing: Vec<Missing>,
) -> Result<OpenedPool, OpenError> {
    let watch = Watch::new(env.clock.clone(), settings.hang_after);
    let mut disks = Vec::with_capacity(members.len());
    for (disk, id) in &members {
        if let Some(entry) = state.disk_mut(*id) {
            // Written with the next change; until then the old place is only an outdated hint.
            disk.label().clone_into(&mut entry.label);
        }
    }
    let opening = members.into_iter().map(|(disk, id)| {
        let (label, disk) = (disk.label().to_owned(), watch.over(disk));
        let opening = Box::pin(ShardDisk::open(disk, state.pool, settings.shards.clone()));
        async move {
            // Nobody watches it yet.
            let opened = match select(opening, env.clock.sleep(settings.hang_after)).await {
                Either::Left((opened, _)) => Some(opened),
                Either::Right(_) => None,
            };
            (label, id, opened)
        }
    });
    for (label, id, opened) in join_all(opening).await {
        let why = match opened {
            Some(Ok(disk)) => {
                disks.push(disk);
                continue;
            }
            Some(Err(error)) if error.kind() == ShardErrorKind::Refused => return Err(error.into()),
            Some(Err(error)) => error.to_string(),
            None => no_answer(settings.hang_after),
        };
        tracing::error!(disk = label, why, "this disk is out of use");
        let entry = state.disks.iter().find(|entry| entry.id == id);
        missing.extend(entry.map(|disk| Missing {
            disk: disk.clone(),
            why,
        }));
    }
    require_enough(&state, disks.len(), &missing)?;
    Ok(OpenedPool {
        state,
        disks,
        is_whole: missing.is_empty(),
        missing,
        watch,
        created: false,
    })
}
