//! Finds the pool on the data folders.
//!
//! Owns: which folders are visited, the members' settings. Must not know: volumes, servers; the decision about the
//! found folders, and the order of making a pool (`cairn_pool`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_config::Config;
use cairn_formats::pool_file::Stage;
use cairn_pool::assemble::{Content, FoundFolder, Plan, plan};
use cairn_pool::joining::{is_disk, look_next};
use cairn_pool::open::{Member, OpenSettings, OpenedPool, form, new_state, open_members};
use cairn_segment::SegmentSettings;
use cairn_shard::{ShardDisk, ShardSettings};
use futures_util::future::try_join_all;
use rustix::process::{Resource, getrlimit};

use crate::error::NodeError;
use crate::folder::{Folder, Looks, Making, open_disk};
use crate::remembered;

/// Maximum number of files that are ready for new shards on one disk.
const SPARES_MAX: usize = 64;

/// The disks of a pool, open.
pub struct PoolDisks {
    pub opened: OpenedPool,
    /// The real paths of the folders that the configuration names.
    pub named: Vec<PathBuf>,
}

/// Known disks, before any folder is visited. A folder without its mount is empty, or missing: it is no place for a
/// new pool where an old one is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskHints<'a> {
    /// The disks that this node has, by the cluster's map.
    pub disks: &'a [String],
    /// The folder with the lists of this server's pools; `None`: there are none.
    pub state_folder: Option<&'a Path>,
    /// The reason why the configured master keys cannot be read. A pool that is made then stores its secrets in clear
    /// text, also after the keys can be read.
    pub keys_problem: Option<&'a str>,
}

/// Opens the pool on the configured folders. Makes one if all of them are empty, unless `known` disks should be
/// there. Makes missing folders if the configuration says so. `looks`: one value for all attempts.
pub async fn open_pool(
    env: &Env,
    config: &Config,
    looks: &Looks,
    known: DiskHints<'_>,
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
        None if config.create => open_disk(&folder.path, config, Making::Allowed),
        None => open_disk(&folder.path, config, Making::Refused),
    }
}

async fn open_folders(
    env: &Env,
    config: &Config,
    folders: Vec<Folder>,
    known: DiskHints<'_>,
) -> Result<OpenedPool, NodeError> {
    let (state, present, unformatted, missing) = match plan(&found(&folders))? {
        Plan::Create => {
            require_new(&folders, config, known)?;
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
                    "the newest pool file does not list this volume, but another disk's pool file does: the volume is back"
                );
            }
            (state, present, unformatted, missing)
        }
    };
    // Of the whole pool: most disks may have been added later, and a missing one may be replaced.
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

/// Refuses to make a pool in folders that had one, and in missing folders that the configuration does not ask to make.
fn require_new(folders: &[Folder], config: &Config, known: DiskHints<'_>) -> Result<(), NodeError> {
    if let Some(why) = known.keys_problem {
        return Err(NodeError::NoMasterKey(why.to_owned()));
    }
    let labels: Vec<String> = folders.iter().map(Folder::label).collect();
    if !known.disks.is_empty() {
        return Err(NodeError::EmptyFolders {
            folders: labels.join(", "),
            disks: known.disks.join(", "),
        });
    }
    if let Some(state_folder) = known.state_folder {
        remembered::require_none(state_folder, &labels)?;
    }
    let absent = folders
        .iter()
        .filter(|folder| matches!(folder.content, Content::Absent));
    let absent: Vec<String> = absent.map(Folder::label).collect();
    match config.create || absent.is_empty() {
        true => Ok(()),
        false => Err(NodeError::NoFolder {
            folders: absent.join(", "),
        }),
    }
}

/// Looks for disks that were added to a running server, at their paths of that time.
async fn look_by_label(
    env: &Env,
    folders: &mut Vec<Folder>,
    config: &Config,
    looks: &Looks,
) -> Result<(), NodeError> {
    // Found disks may know of more: those that were added while the others were away.
    while look_once(env, folders, config, looks).await? {}
    Ok(())
}

/// Looks for disks that the found ones know of. Returns whether one was found.
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

fn found(folders: &[Folder]) -> Vec<FoundFolder> {
    let each = folders.iter().map(|folder| FoundFolder {
        label: folder.label(),
        content: folder.content.clone(),
    });
    each.collect()
}

/// The settings of each of `disk_count` disks.
pub fn shard_settings(config: &Config, disk_count: usize) -> ShardSettings {
    let mut settings = ShardSettings::default();
    let spares = config.disk_spare_bytes / SegmentSettings::default().shard_len_bytes;
    let spares = usize::try_from(spares);
    let spares = spares.unwrap_or(usize::MAX).min(SPARES_MAX);
    settings.recycled_files_max = settings.recycled_files_max.max(spares);
    settings.open_shards_max = open_shards_max(descriptors_max(), disk_count);
    settings
}

/// Tells disks how many of them are on one file system: each counts on its part of the space.
pub fn share_file_systems(disks: &[Arc<ShardDisk>]) {
    let file_system = |disk: &Arc<ShardDisk>| {
        let device = disk.disk().device()?;
        Some(device.file_system.clone())
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in disks.iter().filter_map(file_system) {
        *counts.entry(name).or_default() += 1;
    }
    for disk in disks {
        let count = file_system(disk).and_then(|name| counts.get(&name).copied());
        disk.disk().share_file_system(count.unwrap_or(1));
    }
}

/// The limit of file descriptors of this process.
pub fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The limit for each disk, so that all disks together take at most three eighths of the file descriptors. A shard
/// can take two, one of them for unaligned transfers.
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
    use crate::lock_wait::open_pool_in_time;
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
        // The named one missed the adding of the last two.
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
            create: Some(true),
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let env = cairn_base::real::env(Handle::current());
        let disks = ["/srv/a".to_owned()];
        let known = DiskHints {
            disks: &disks,
            ..DiskHints::default()
        };
        let refused = open_pool(&env, &config, &Looks::default(), known).await;
        let Err(NodeError::EmptyFolders { folders, disks }) = refused else {
            panic!("a pool was made on empty folders");
        };
        assert!(
            folders.contains("/a, ") && disks == "/srv/a",
            "{folders} {disks}"
        );
        // Nor while its secrets would be readable on the disks.
        let known = DiskHints {
            keys_problem: Some("no key"),
            ..DiskHints::default()
        };
        let refused = open_pool(&env, &config, &Looks::default(), known).await;
        assert!(matches!(refused, Err(NodeError::NoMasterKey(_))));
        // The start wrote nothing there.
        let looked = Folder::look(&config.data[0], &config).await.unwrap();
        assert!(looked.identity().is_none());
        open_pool(&env, &config, &Looks::default(), DiskHints::default())
            .await
            .unwrap();
    }

    /// The drives of a pool are not mounted: their folders are missing, or the mount points are empty. And a path has
    /// a typo.
    #[tokio::test]
    async fn a_pool_is_made_only_where_none_was_and_where_folders_are() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let place = |name: &str| root.path().canonicalize().unwrap().join(name);
        let config = |create| {
            let settings = cairn_config::Settings {
                data: vec![place("a"), place("b")],
                create,
                ..cairn_config::Settings::default()
            };
            settings.resolve(1).unwrap()
        };
        let env = cairn_base::real::env(Handle::current());
        let known = DiskHints {
            state_folder: Some(&state),
            ..DiskHints::default()
        };
        let open = async |create| {
            // An earlier node of this process may need a moment to end its background work.
            let opened = open_pool_in_time(&env, &config(create), known).await;
            opened.map(|pool| pool.opened.state.pool)
        };
        std::fs::create_dir(place("a")).unwrap();
        for create in [None, Some(false)] {
            let Err(NodeError::NoFolder { folders }) = open(create).await else {
                panic!("a folder was made that nobody asked for");
            };
            assert_eq!(folders, place("b").display().to_string());
            assert!(!place("b").exists());
        }
        let pool = open(Some(true)).await.unwrap();
        // The pool exists: it opens, whether folders may be made or not.
        assert_eq!(open(None).await.unwrap(), pool);
        let label = |name: &str| place(name).display().to_string();
        let kept = remembered::RememberedPool {
            pool: pool.to_string(),
            disks: vec![label("a"), label("b")],
        };
        remembered::keep(&state, &kept, &cairn_base::real::OsEntropy).unwrap();
        for name in ["a", "b"] {
            std::fs::rename(place(name), place(&format!("{name}-away"))).unwrap();
        }
        let away = async |create| {
            let Err(NodeError::PoolAway {
                pool: told, disks, ..
            }) = open(create).await
            else {
                panic!("a pool was made in the place of one that is away");
            };
            assert_eq!(told, pool.to_string());
            assert!(disks.contains(&label("a")) && disks.contains(&label("b")));
        };
        away(None).await;
        away(Some(true)).await;
        for name in ["a", "b"] {
            assert!(!place(name).exists());
            std::fs::create_dir(place(name)).unwrap();
        }
        away(None).await;
        for name in ["a", "b"] {
            std::fs::remove_dir_all(place(name)).unwrap();
            std::fs::rename(place(&format!("{name}-away")), place(name)).unwrap();
        }
        assert_eq!(open(None).await.unwrap(), pool);
    }

    #[tokio::test]
    async fn folders_of_one_file_system_have_its_space_once() {
        let root = tempfile::tempdir().unwrap();
        let place = |id: u128| root.path().join(id.to_string());
        let mut disks = Vec::new();
        for id in 1..=3 {
            disks.push(member(&place(id), id).await);
        }
        let total = |disk: &Arc<ShardDisk>| disk.disk().space().unwrap().total_bytes;
        let alone = total(&disks[0]);
        share_file_systems(&disks);
        let all: u64 = disks.iter().map(total).sum();
        assert!((alone - 2..=alone).contains(&all), "{all} of {alone}");
        // A disk that leaves gives its part to the others.
        disks.pop();
        share_file_systems(&disks);
        let all: u64 = disks.iter().map(total).sum();
        assert!((alone - 1..=alone).contains(&all), "{all} of {alone}");
    }

    #[test]
    fn the_descriptors_of_a_node_suffice() {
        // Shards with two each, all connections, and RocksDB.
        for (limit, disks) in [(1024, 1), (1024, 6), (4096, 6), (65_536, 64), (1 << 30, 6)] {
            let shards = open_shards_max(limit, disks);
            assert!((8..=1024).contains(&shards), "{limit} {disks}: {shards}");
            assert!((shards * disks * 2) as u64 <= limit * 3 / 8);
        }
        // All disks of the pool share them, however few folders are named.
        let settings = cairn_config::Settings {
            data: vec![PathBuf::from("/data")],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let shards = shard_settings(&config, 64).open_shards_max;
        assert_eq!(shards, open_shards_max(descriptors_max(), 64));
    }
}
