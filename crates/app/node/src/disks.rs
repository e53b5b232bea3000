//! Finds the pool on the data folders.
//!
//! Owns: which folders are looked at, the members' settings.
//! Must not know: volumes, servers; what a start makes of what it finds, and in which order a pool is made
//! (`cairn_pool`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_config::Config;
use cairn_formats::pool_file::Stage;
use cairn_pool::assemble::{Found, Plan, plan};
use cairn_pool::joining::{is_disk, look_next};
use cairn_pool::open::{Member, OpenSettings, Opened, form, new_state, open_members};
use cairn_segment::SegmentSettings;
use cairn_shard::ShardSettings;
use futures_util::future::try_join_all;
use rustix::process::{Resource, getrlimit};

use crate::error::NodeError;
use crate::folder::{Folder, Looks, open_disk};

/// Most files that wait for new shards on one disk.
const SPARES_MAX: usize = 64;

/// The disks of a pool, open.
pub struct PoolDisks {
    pub opened: Opened,
    /// Where the folders are that the configuration names.
    pub named: Vec<PathBuf>,
}

/// Opens the pool on the configured folders; makes it when all of them are empty, unless disks are `known` that should be there:
/// a folder below which nothing is mounted is empty. `looks`: the same for all tries.
pub async fn open_pool(
    env: &Env,
    config: &Config,
    looks: &Looks,
    known: &[String],
) -> Result<PoolDisks, NodeError> {
    let each = config
        .data
        .iter()
        .map(|path| looks.look_in_time(env, path, config));
    let mut folders = try_join_all(each).await?;
    let named = folders.iter().map(|folder| folder.path.clone()).collect();
    look_by_label(env, &mut folders, config, looks).await?;
    let opened = open_folders(env, config, folders, known).await?;
    Ok(PoolDisks { opened, named })
}

fn open_settings(config: &Config, disk_count: usize) -> OpenSettings {
    OpenSettings {
        shards: shard_settings(config, disk_count),
        hang_after: config.hang_after,
    }
}

/// The disk in a folder.
fn disk_in(folder: &Folder, config: &Config) -> Result<Arc<dyn Disk>, NodeError> {
    match &folder.disk {
        Some(disk) => Ok(Arc::clone(disk)),
        None => open_disk(&folder.path, config),
    }
}

async fn open_folders(
    env: &Env,
    config: &Config,
    folders: Vec<Folder>,
    known: &[String],
) -> Result<Opened, NodeError> {
    let (state, present, unformatted, missing) = match plan(&found(&folders))? {
        Plan::Create if !known.is_empty() => {
            let labels: Vec<String> = folders.iter().map(Folder::label).collect();
            return Err(NodeError::EmptyFolders {
                folders: labels.join(", "),
                disks: known.join(", "),
            });
        }
        Plan::Create => {
            let disks = folders.iter().map(|folder| disk_in(folder, config));
            let disks: Vec<Arc<dyn Disk>> = disks.collect::<Result<_, _>>()?;
            let state = new_state(env, &disks);
            let ids = state.disks.iter().map(|disk| disk.id);
            let members: Vec<Member> = disks.into_iter().zip(ids).collect();
            let settings = open_settings(config, members.len());
            return Ok(form(env, settings, state, members.clone(), &members).await?);
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
            (state, present, unformatted, missing)
        }
    };
    // Of the whole pool: most disks may have been added, and one that is missing may be replaced.
    let settings = open_settings(config, state.disks.len());
    let at = |(index, id): &(usize, DiskId)| {
        let disk = folders.get(*index).and_then(|folder| folder.disk.clone());
        disk.map(|disk| (disk, *id))
    };
    let mut members: Vec<Member> = present.iter().filter_map(at).collect();
    if state.stage == Stage::Forming {
        let mut bare = Vec::new();
        for (index, id) in &unformatted {
            bare.push((disk_in(&folders[*index], config)?, *id));
        }
        members.extend(bare.iter().cloned());
        return Ok(form(env, settings, state, members, &bare).await?);
    }
    let own_version = |index: usize| folders.get(index).and_then(Folder::version);
    let all_read = present
        .iter()
        .all(|(index, _)| own_version(*index).is_some());
    let mut opened = open_members(env, settings, state, members, missing).await?;
    opened.is_whole &= all_read;
    Ok(opened)
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

/// Looks for disks that what was found so far tells of. Says whether one was found.
async fn look_once(
    env: &Env,
    folders: &mut Vec<Folder>,
    config: &Config,
    looks: &Looks,
) -> Result<bool, NodeError> {
    let before = folders.len();
    for member in look_next(&found(folders)) {
        let folder = looks.look_in_time(env, Path::new(&member.label), config);
        let folder = folder.await?;
        if is_disk(&folder.content, member.id) {
            folders.push(folder);
        }
    }
    Ok(folders.len() > before)
}

fn found(folders: &[Folder]) -> Vec<Found> {
    let each = folders.iter().map(|folder| Found {
        label: folder.label(),
        content: folder.content.clone(),
    });
    each.collect()
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

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use cairn_base::PoolId;
    use cairn_pool::truth;

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
            truth::save_one(disk.disk(), state).await.unwrap();
        }
        let mut folders = vec![Folder::look(&place(1), &config).await.unwrap()];
        look_by_label(&env, &mut folders, &config, &Looks::default())
            .await
            .unwrap();
        let found: Vec<_> = folders.iter().filter_map(Folder::identity).collect();
        assert_eq!(found, [1, 2, 3, 4].map(DiskId));
    }

    #[tokio::test]
    async fn empty_folders_are_no_pool_where_disks_are_known() {
        let root = tempfile::tempdir().unwrap();
        let settings = cairn_config::Settings {
            data: vec![root.path().join("a"), root.path().join("b")],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let env = cairn_base::real::env(Handle::current());
        let known = ["/srv/a".to_owned()];
        let refused = open_pool(&env, &config, &Looks::default(), &known).await;
        let Err(NodeError::EmptyFolders { folders, disks }) = refused else {
            panic!("a pool was made on empty folders");
        };
        assert!(
            folders.contains("/a, ") && disks == "/srv/a",
            "{folders} {disks}"
        );
        // Nothing was put there.
        let looked = Folder::look(&config.data[0], &config).await.unwrap();
        assert!(looked.identity().is_none());
        open_pool(&env, &config, &Looks::default(), &[])
            .await
            .unwrap();
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
