//! Forms the pool on the data folders, or opens it.
//!
//! Owns: which folders are looked at, the order of writes of a first start, the members' settings.
//! Must not know: volumes, servers. What to do is decided in `assemble`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{DiskId, PoolId, VolumeId};
use cairn_config::Config;
use cairn_formats::pool_file::{HandleKey, PoolDisk, PoolState, Stage};
use cairn_segment::SegmentSettings;
use cairn_shard::{ShardDisk, ShardError, ShardErrorKind, ShardSettings};
use futures_util::future::{Either, join_all, select, try_join_all};
use rustix::process::{Resource, getrlimit};

use crate::assemble::{Content, Found, Missing, Plan, plan};
use crate::error::NodeError;
use crate::folder::{Folder, Looks, no_answer, open_disk};
use crate::pool_store;
use crate::watch::{HANG_AFTER, Watch};

/// Most files that wait for new shards on one disk.
const SPARES_MAX: usize = 64;

/// The disks of a pool, open.
pub struct PoolDisks {
    pub state: PoolState,
    pub disks: Vec<Arc<ShardDisk>>,
    pub missing: Vec<Missing>,
    /// Whether all disks are there, each with a pool file that could be read: no other can list a volume then.
    pub is_whole: bool,
    /// Disks that others went on without, by their pool files: what else they have may be old, too.
    pub behind: Vec<DiskId>,
    /// Where the folders are that the configuration names.
    pub named: Vec<PathBuf>,
    pub watch: Watch,
    /// Whether the pool was made just now.
    pub created: bool,
}

/// Opens the pool on the configured folders; makes it when all of them are empty. `looks`: the same for all tries.
pub async fn open_pool(env: &Env, config: &Config, looks: &Looks) -> Result<PoolDisks, NodeError> {
    let each = config
        .data
        .iter()
        .map(|path| looks.look_in_time(env, path, config));
    let mut folders = try_join_all(each).await?;
    let named = folders.iter().map(|folder| folder.path.clone()).collect();
    look_by_label(env, &mut folders, config, looks).await?;
    let opened = open_folders(env, config, folders).await?;
    Ok(PoolDisks { named, ..opened })
}

async fn open_folders(
    env: &Env,
    config: &Config,
    folders: Vec<Folder>,
) -> Result<PoolDisks, NodeError> {
    let found: Vec<Found> = folders
        .iter()
        .map(|folder| Found {
            label: folder.label(),
            content: folder.content.clone(),
        })
        .collect();
    match plan(&found)? {
        Plan::Create => {
            let mut disks: Vec<Arc<dyn Disk>> = Vec::with_capacity(folders.len());
            for folder in folders {
                disks.push(match folder.disk {
                    Some(disk) => disk,
                    None => open_disk(&folder.path, config)?,
                });
            }
            let state = new_state(env, &disks);
            let members = disks
                .into_iter()
                .zip(state.disks.iter().map(|disk| disk.id));
            let members: Vec<_> = members.collect();
            form(env, config, state, members.clone(), &members).await
        }
        Plan::Open {
            state,
            present,
            unformatted,
            missing,
            brought_back,
        } => {
            for volume in brought_back {
                tracing::error!(
                    volume,
                    "the newest pool file does not list this volume, but that of another disk does: it is back"
                );
            }
            let at = |(index, id): &(usize, DiskId)| {
                let disk = folders.get(*index).and_then(|folder| folder.disk.clone());
                disk.map(|disk| (disk, *id))
            };
            let mut members: Vec<_> = present.iter().filter_map(at).collect();
            if state.stage == Stage::Forming {
                let mut bare = Vec::new();
                for entry in &unformatted {
                    let folder = &folders[entry.0];
                    let disk = match &folder.disk {
                        Some(disk) => Arc::clone(disk),
                        None => open_disk(&folder.path, config)?,
                    };
                    bare.push((disk, entry.1));
                }
                members.extend(bare.iter().cloned());
                return form(env, config, state, members, &bare).await;
            }
            let is_behind = |(index, _): &&(usize, DiskId)| {
                let own = folders.get(*index).and_then(Folder::version);
                own.is_none_or(|own| own < state.version)
            };
            let behind = present.iter().filter(is_behind).map(|(_, id)| *id);
            let behind = behind.collect();
            let has_file = |(index, _): &(usize, DiskId)| {
                folders.get(*index).and_then(Folder::version).is_some()
            };
            let all_read = present.iter().all(has_file);
            let opened = open_members(env, config, state, members, missing).await?;
            let is_whole = opened.is_whole && all_read;
            Ok(PoolDisks {
                behind,
                is_whole,
                ..opened
            })
        }
    }
}

/// Looks for disks that were added to a running server where they were then.
async fn look_by_label(
    env: &Env,
    folders: &mut Vec<Folder>,
    config: &Config,
    looks: &Looks,
) -> Result<(), NodeError> {
    // What is found may know of more: those that were added while the others were away.
    while look_once(env, folders, config, looks).await? {}
    Ok(())
}

/// Looks for the disks of the newest pool file that was found so far. Says whether one was found.
async fn look_once(
    env: &Env,
    folders: &mut Vec<Folder>,
    config: &Config,
    looks: &Looks,
) -> Result<bool, NodeError> {
    let states = folders.iter().filter_map(|folder| match &folder.content {
        Content::Disk { state, .. } => state.as_ref(),
        _ => None,
    });
    let Some(newest) = states.max_by_key(|state| state.version).cloned() else {
        return Ok(false);
    };
    let before = folders.len();
    for member in newest.disks.iter().filter(|member| member.by_label) {
        let is_there = folders.iter().any(|folder| {
            let by_id = folder.identity() == Some(member.id);
            by_id || folder.label() == member.label
        });
        if is_there {
            continue;
        }
        let folder = looks.look_in_time(env, Path::new(&member.label), config);
        let folder = folder.await?;
        // Anything else there is none of the operator's words: the disk is missing then.
        if folder.identity() == Some(member.id) {
            folders.push(folder);
        }
    }
    Ok(folders.len() > before)
}

fn new_state(env: &Env, disks: &[Arc<dyn Disk>]) -> PoolState {
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
        handle_key: HandleKey(env.entropy.u128()),
    }
}

type Member = (Arc<dyn Disk>, DiskId);

/// Makes a pool, or finishes making it: pool file, identities, pool file that says it is formed.
///
/// The pool file comes first, so that disks with an identity and none without it can only be a
/// pool whose files were lost, never one whose making broke off.
async fn form(
    env: &Env,
    config: &Config,
    mut state: PoolState,
    members: Vec<Member>,
    bare: &[Member],
) -> Result<PoolDisks, NodeError> {
    let disks: Vec<Arc<dyn Disk>> = members.iter().map(|(disk, _)| Arc::clone(disk)).collect();
    save_on_all(&disks, &state).await?;
    let now = env.clock.now();
    for (disk, id) in bare {
        ShardDisk::format(Arc::clone(disk), state.pool, *id, now).await?;
    }
    state.stage = Stage::Empty;
    state.version += 1;
    save_on_all(&disks, &state).await?;
    let mut opened = open_members(env, config, state, members, Vec::new()).await?;
    opened.created = true;
    Ok(opened)
}

async fn save_on_all(disks: &[Arc<dyn Disk>], state: &PoolState) -> Result<(), NodeError> {
    for disk in disks {
        // A pool begins whole, or not at all.
        pool_store::save_one(disk, state).await?;
    }
    Ok(())
}

/// Of each of `disk_count` disks.
pub fn shard_settings(config: &Config, disk_count: usize) -> ShardSettings {
    let mut settings = ShardSettings::default();
    let spares = config.disk_spare_bytes / SegmentSettings::default().shard_len_bytes;
    let spares = usize::try_from(spares);
    let spares = spares.unwrap_or(usize::MAX).min(SPARES_MAX);
    settings.recycled_files_max = settings.recycled_files_max.max(spares);
    settings.open_shards_max = open_shards_max(descriptors_max(), disk_count);
    settings
}

/// File descriptors that this process may have.
pub fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Of each disk, so that all disks together take at most three eighths of the file descriptors. A shard can
/// take two, one of them for transfers that are not aligned.
pub fn open_shards_max(descriptors_max: u64, disk_count: usize) -> usize {
    let all = usize::try_from(descriptors_max / 8 * 3 / 2).unwrap_or(usize::MAX);
    let each = all / disk_count.max(1);
    each.min(ShardSettings::default().open_shards_max)
}

/// Opens the members' shards. A disk that fails now joins the missing ones.
async fn open_members(
    env: &Env,
    config: &Config,
    mut state: PoolState,
    members: Vec<Member>,
    mut missing: Vec<Missing>,
) -> Result<PoolDisks, NodeError> {
    // Of the whole pool: most disks may have been added, and one that is missing may be replaced.
    let settings = shard_settings(config, state.disks.len());
    let watch = Watch::new(env.clock.clone());
    let mut disks = Vec::with_capacity(members.len());
    for (disk, id) in &members {
        if let Some(entry) = state.disks.iter_mut().find(|entry| entry.id == *id) {
            // Written with the next change; until then the old place is only an outdated hint.
            disk.label().clone_into(&mut entry.label);
        }
    }
    let opening = members.into_iter().map(|(disk, id)| {
        let (label, disk) = (disk.label().to_owned(), watch.over(disk));
        let opening = Box::pin(ShardDisk::open(disk, state.pool, settings.clone()));
        async move {
            // Nobody watches it yet.
            let opened = match select(opening, env.clock.sleep(HANG_AFTER)).await {
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
            Some(Err(error)) if refused(&error) => return Err(error.into()),
            Some(Err(error)) => error.to_string(),
            None => no_answer(),
        };
        tracing::error!(disk = label, why, "this disk is not used");
        let entry = state.disks.iter().find(|entry| entry.id == id);
        missing.extend(entry.map(|disk| Missing {
            disk: disk.clone(),
            why,
        }));
    }
    crate::assemble::require_enough(&state, disks.len(), &missing)?;
    Ok(PoolDisks {
        state,
        disks,
        is_whole: missing.is_empty(),
        missing,
        behind: Vec::new(),
        named: Vec::new(),
        watch,
        created: false,
    })
}

fn refused(error: &ShardError) -> bool {
    error.kind() == ShardErrorKind::Refused
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::folder::tests::member;
    use cairn_formats::testing::example_pool as example;

    #[tokio::test]
    async fn disks_that_only_an_added_disk_knows_of_are_found() {
        let root = tempfile::tempdir().unwrap();
        let place = |id: u128| root.path().join(id.to_string());
        let settings = cairn_config::Settings {
            data: vec![place(1)],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let env = cairn_base::real::env(Handle::current());
        let mut newest = example(4);
        newest.pool = PoolId(1);
        newest.version = 9;
        for disk in &mut newest.disks {
            disk.label = place(disk.id.0).display().to_string();
            disk.by_label = disk.id.0 > 1;
        }
        // The one that is named missed the adding of the last two.
        let mut older = newest.clone();
        older.version = 5;
        older.disks.truncate(2);
        for disk in &newest.disks {
            let state = if disk.id.0 == 1 { &older } else { &newest };
            let disk = member(&place(disk.id.0), disk.id.0).await;
            pool_store::save_one(disk.disk(), state).await.unwrap();
        }
        let mut folders = vec![Folder::look(&place(1), &config).await.unwrap()];
        look_by_label(&env, &mut folders, &config, &Looks::default())
            .await
            .unwrap();
        let found: Vec<_> = folders.iter().filter_map(Folder::identity).collect();
        assert_eq!(found, [1, 2, 3, 4].map(DiskId));
    }

    #[test]
    fn the_descriptors_of_a_node_suffice() {
        // Shards with two each, all connections, and RocksDB.
        for (limit, disks) in [(1024, 1), (1024, 6), (4096, 6), (65_536, 64), (1 << 30, 6)] {
            let shards = open_shards_max(limit, disks);
            assert!((8..=1024).contains(&shards), "{limit} {disks}: {shards}");
            assert!((shards * disks * 2) as u64 <= limit * 3 / 8);
        }
        // It is the disks of the pool that share them, however few folders are named.
        let settings = cairn_config::Settings {
            data: vec![PathBuf::from("/data")],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let shards = shard_settings(&config, 64).open_shards_max;
        assert_eq!(shards, open_shards_max(descriptors_max(), 64));
    }
}
