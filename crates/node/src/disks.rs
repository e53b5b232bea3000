//! Looks at the data folders, forms or opens the pool on them.
//!
//! Owns: opening disks and taking their locks, reading what they are, the order of writes of a
//! first start.
//! Must not know: volumes, servers. What to do is decided in `assemble`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::disk::{Disk, DiskError};
use cairn_base::env::Env;
use cairn_base::{DiskId, PoolId, VolumeId};
use cairn_config::{Config, DiskIo};
use cairn_disk::{DiskSettings, EngineChoice, RealDisk};
use cairn_segment::SegmentSettings;
use cairn_shard::{ShardDisk, ShardError, ShardErrorKind, ShardSettings};
use futures_util::future::{Either, join_all, select, try_join_all};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::assemble::{Content, Found, Missing, Plan, plan};
use crate::error::NodeError;
use crate::pool::{HandleKey, PoolDisk, PoolFileError, PoolState, Stage};
use crate::pool_store;
use crate::watch::{HANG_AFTER, Watch};

/// Names in a data folder that do not make it a used one.
const HARMLESS: &[&str] = &[
    "lock",
    "probe.tmp",
    "lost+found",
    pool_store::POOL_NAME_NEW,
    "cairn-disk.new",
    crate::scrub::SCRUB_NAME_NEW,
    crate::token::TOKEN_NAME,
    crate::token::TOKEN_NAME_NEW,
    crate::ready::SERVER_FILE_NAME,
];
/// What a disk has for the sake of the admin token.
const TOKEN_NAMES: &[&str] = &[
    crate::token::TOKEN_NAME,
    crate::token::TOKEN_NAME_NEW,
    crate::ready::SERVER_FILE_NAME,
];
/// Names that only a disk of a pool has.
const OURS: &[&str] = &[
    pool_store::POOL_NAME,
    cairn_shard::IDENTITY_NAME,
    "shards",
    "shard-volumes",
    "volumes",
    "free",
    "rebuild",
    WIPED_NAME,
    cairn_shard::PROBE_NAME,
    crate::scrub::SCRUB_NAME,
];

/// What the identity is called while a folder is being emptied: it goes last, so that what a crash leaves is
/// known for ours, and first has another name, so that nobody takes it for a disk.
const WIPED_NAME: &str = "cairn-disk.wiped";

/// A lock file says which process holds it in so many bytes at most.
const PID_LEN_BYTES_MAX: u64 = 20;
/// Links are followed so often to where a folder is, as Linux does.
const LINKS_MAX: usize = 40;
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

/// Looks at folders that have not come back: each keeps a thread, and perhaps the folder's lock.
#[derive(Default)]
pub struct Looks(Mutex<BTreeMap<PathBuf, UnderWay>>);

/// A look at a folder.
struct UnderWay {
    since: Duration,
    place: PathBuf,
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
}

impl Looks {
    /// Looks at a folder on another thread. One that does not answer cannot be used; the others are. A look of an
    /// earlier try that is still under way is waited for, as long as a folder may take: it would be in the way of
    /// another one, and many of them would take all threads.
    async fn look_in_time(
        &self,
        env: &Env,
        path: &Path,
        config: &Config,
    ) -> Result<Folder, NodeError> {
        if let Some(silent) = self.wait_for_earlier(env, path).await {
            return Ok(Folder::unusable(silent, no_answer()));
        }
        let running = self.begin(path, env.clock.monotonic());
        let (at, kept) = (path.to_owned(), Arc::clone(&running));
        let placing = tokio::task::spawn_blocking(move || {
            let place = place_unseen(&at);
            drop(kept);
            place
        });
        let place = match select(placing, env.clock.sleep(HANG_AFTER)).await {
            Either::Left((Ok(place), _)) => place,
            Either::Left((Err(_), _)) | Either::Right(_) => path.to_owned(),
        };
        if let Some(look) = self.0.lock().get_mut(path) {
            look.place.clone_from(&place);
        }
        let (at, config, runtime) = (place.clone(), config.clone(), Handle::current());
        let looking = tokio::task::spawn_blocking(move || {
            let looked = runtime.block_on(Folder::look(&at, &config));
            drop(running);
            looked
        });
        match select(looking, env.clock.sleep(HANG_AFTER)).await {
            Either::Left((Ok(folder), _)) => folder,
            Either::Left((Err(error), _)) => {
                let why = format!("looking at it broke off: {error}");
                Ok(Folder::unusable(place, why))
            }
            Either::Right(_) => Ok(Folder::unusable(place, no_answer())),
        }
    }

    /// Notes that a look begins; it ends when all copies of what this returns are dropped.
    fn begin(&self, path: &Path, since: Duration) -> Arc<watch::Sender<()>> {
        let (running, ended) = watch::channel(());
        let place = path.to_owned();
        let look = UnderWay {
            since,
            place,
            ended,
        };
        self.0.lock().insert(path.to_owned(), look);
        Arc::new(running)
    }

    /// Waits for the end of an earlier look at a folder; where that is if it does not end in time.
    async fn wait_for_earlier(&self, env: &Env, path: &Path) -> Option<PathBuf> {
        let (since, mut ended) = {
            let looks = self.0.lock();
            let look = looks.get(path)?;
            (look.since, look.ended.clone())
        };
        let waited = env.clock.monotonic().saturating_sub(since);
        let rest = env.clock.sleep(HANG_AFTER.saturating_sub(waited));
        match select(pin!(ended.changed()), rest).await {
            Either::Left(_) => None,
            Either::Right(_) => Some(self.0.lock().get(path)?.place.clone()),
        }
    }
}

/// As [`place`], without asking the folder itself, which may not answer: only those that it is in.
fn place_unseen(path: &Path) -> PathBuf {
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..LINKS_MAX {
        // Without a slash at the end, which would follow a link.
        path = path.components().collect();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path;
        };
        let Ok(parent) = parent.canonicalize() else {
            return path;
        };
        match std::fs::read_link(parent.join(name)) {
            Ok(target) => path = parent.join(target),
            Err(_) => return parent.join(name),
        }
    }
    path
}

fn no_answer() -> String {
    format!("it did not answer within {} s", HANG_AFTER.as_secs())
}

/// Where a data folder that the operator named is.
pub fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or(path)
}

/// A data folder as it was found.
pub struct Folder {
    pub path: PathBuf,
    pub disk: Option<Arc<dyn Disk>>,
    pub content: Content,
}

impl Folder {
    fn unusable(path: PathBuf, why: String) -> Self {
        Self {
            path,
            disk: None,
            content: Content::Unusable(why),
        }
    }

    pub async fn look(path: &Path, config: &Config) -> Result<Self, NodeError> {
        let path = place(path);
        let with = |content, disk| {
            Ok(Self {
                path: path.clone(),
                disk,
                content,
            })
        };
        let content = match scan(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return with(Content::Absent, None);
            }
            Err(error) => return with(Content::Unusable(error.to_string()), None),
        };
        if matches!(content, Content::Foreign { .. }) {
            return with(content, None);
        }
        let disk = match open_disk(&path, config) {
            Ok(disk) => disk,
            Err(error @ NodeError::InUse { .. }) => return Err(error),
            Err(error) => return with(Content::Unusable(error.to_string()), None),
        };
        match read(&disk, content).await {
            Ok(content) => with(content, Some(disk)),
            Err(why) => with(Content::Unusable(why), None),
        }
    }

    pub fn label(&self) -> String {
        self.path.display().to_string()
    }

    fn identity(&self) -> Option<DiskId> {
        match &self.content {
            Content::Disk { identity, .. } | Content::Newer { identity, .. } => {
                identity.as_ref().map(|identity| identity.disk)
            }
            _ => None,
        }
    }

    /// That of its pool file.
    fn version(&self) -> Option<u64> {
        match &self.content {
            Content::Disk { state, .. } => state.as_ref().map(|state| state.version),
            _ => None,
        }
    }
}

/// Looks at the names in a folder: `Blank`, `Foreign`, or `Disk` with nothing known yet.
fn scan(path: &Path) -> std::io::Result<Content> {
    let mut foreign = None;
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if OURS.contains(&&*name) {
            return Ok(Content::Disk {
                identity: None,
                state: None,
            });
        }
        if !HARMLESS.contains(&&*name) {
            foreign = Some(name.into_owned());
        }
    }
    Ok(foreign.map_or(Content::Blank, |example| Content::Foreign { example }))
}

/// Reads identity and pool file; an error is a disk that cannot be used.
async fn read(disk: &Arc<dyn Disk>, content: Content) -> Result<Content, String> {
    if !matches!(content, Content::Disk { .. }) {
        return Ok(content);
    }
    let loaded = pool_store::load(disk).await.map_err(|e| e.to_string())?;
    let identity = ShardDisk::identity(disk).await.map_err(|e| e.to_string());
    let state = match loaded {
        Some(Ok(state)) => Some(state),
        // Not a damaged one, which others may take the place of. Such a disk may have an identity of a newer version.
        Some(Err(PoolFileError::Version { found, known })) if found > known => {
            return Ok(Content::Newer {
                identity: identity.unwrap_or(None),
                found,
                known,
            });
        }
        Some(Err(error)) => {
            tracing::error!(disk = disk.label(), %error, "the pool file of this disk is not used");
            None
        }
        None => None,
    };
    let identity = identity?;
    Ok(Content::Disk { identity, state })
}

/// Whether the emptying of this folder was broken off.
pub fn is_half_wiped(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder.join(WIPED_NAME)).is_ok()
}

/// Deletes what a disk of Cairn's has in its folder. The caller knows that it is one: folders have names like
/// ours for many reasons. `with_token`: also the admin token, which may be the operator's file otherwise.
pub fn wipe(folder: &Path, with_token: bool) -> std::io::Result<()> {
    let (identity, wiped) = (
        folder.join(cairn_shard::IDENTITY_NAME),
        folder.join(WIPED_NAME),
    );
    match std::fs::rename(&identity, &wiped) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Never formatted, or emptied halfway before.
            drop(
                std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(&wiped)?,
            );
        }
        renamed => renamed?,
    }
    let sync = || std::fs::File::open(folder)?.sync_all();
    sync()?;
    let made_meanwhile = [pool_store::POOL_NAME_NEW, crate::scrub::SCRUB_NAME_NEW];
    let ours = OURS.iter().copied().filter(|name| *name != WIPED_NAME);
    // First: whoever gets the disk if this breaks off must not get the token with it.
    let tokens = TOKEN_NAMES.iter().copied().filter(|_| with_token);
    for name in tokens.chain(ours).chain(made_meanwhile) {
        let path = folder.join(name);
        let removed = match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    sync()?;
    std::fs::remove_file(&wiped)?;
    sync()
}

/// Whether a disk that this process has open is what is in its folder now: another drive may be mounted there
/// since, with a disk of another pool, with a copy of this one, or with anything else.
pub async fn is_still_there(disk: &ShardDisk, folder: &Path) -> bool {
    let identity = ShardDisk::identity(disk.disk()).await;
    let is_same = matches!(&identity, Ok(Some(found)) if found.disk == disk.id() && found.pool == disk.pool());
    let folder = folder.to_owned();
    is_same
        && tokio::task::spawn_blocking(move || holds_lock(&folder))
            .await
            .unwrap_or(false)
}

/// Whether the lock in a folder is held, and by this process.
fn holds_lock(folder: &Path) -> bool {
    let Ok(lock) = std::fs::File::open(folder.join(cairn_disk::LOCK_NAME)) else {
        return false;
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {}
        // Nobody holds it: not what we opened.
        Ok(()) | Err(_) => return false,
    }
    let mut pid = String::new();
    let read = std::io::Read::take(lock, PID_LEN_BYTES_MAX).read_to_string(&mut pid);
    read.is_ok() && pid.trim().parse() == Ok(std::process::id())
}

pub fn open_disk(path: &Path, config: &Config) -> Result<Arc<dyn Disk>, NodeError> {
    let settings = DiskSettings {
        engine: match config.disk_io {
            DiskIo::Auto => EngineChoice::Auto,
            DiskIo::Uring => EngineChoice::IoUring,
            DiskIo::Threads => EngineChoice::Threads,
        },
        size_limit_bytes: config.disk_size_limit_bytes,
        ..DiskSettings::default()
    };
    match RealDisk::open(path, settings) {
        Ok(disk) => Ok(disk),
        Err(DiskError::InUse { disk, pid }) => Err(NodeError::InUse { disk, pid }),
        Err(error) => Err(error.into()),
    }
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
    use cairn_base::Timestamp;

    use super::*;
    use crate::pool::tests::example;

    fn real(path: &Path) -> Arc<dyn Disk> {
        RealDisk::open(path, DiskSettings::default()).unwrap()
    }

    async fn member(path: &Path, id: u128) -> Arc<ShardDisk> {
        let disk = real(path);
        let now = Timestamp::default();
        ShardDisk::format(Arc::clone(&disk), PoolId(1), DiskId(id), now)
            .await
            .unwrap();
        let settings = ShardSettings::default();
        ShardDisk::open(disk, PoolId(1), settings).await.unwrap()
    }

    #[tokio::test]
    async fn another_drive_at_the_same_place_is_told_from_the_disk() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("disk");
        let disk = member(&place, 5).await;
        assert!(is_still_there(&disk, &place).await);
        // Another drive is mounted there: nothing on it, something else, another disk, or a copy.
        std::fs::rename(&place, root.path().join("old")).unwrap();
        assert!(!is_still_there(&disk, &place).await, "nothing there");
        std::fs::create_dir(&place).unwrap();
        assert!(!is_still_there(&disk, &place).await, "an empty folder");
        std::fs::create_dir(place.join("volumes")).unwrap();
        assert!(!is_still_there(&disk, &place).await, "something else");
        std::fs::remove_dir_all(&place).unwrap();
        drop(member(&place, 6).await);
        assert!(!is_still_there(&disk, &place).await, "another disk");
        let other = member(&root.path().join("other"), 7).await;
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::rename(root.path().join("other"), &place).unwrap();
        assert!(!is_still_there(&disk, &place).await, "another open disk");
        drop(other);
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        for entry in std::fs::read_dir(root.path().join("old")).unwrap() {
            let from = entry.unwrap();
            if from.file_type().unwrap().is_file() {
                std::fs::copy(from.path(), place.join(from.file_name())).unwrap();
            }
        }
        assert!(
            !is_still_there(&disk, &place).await,
            "a copy, lock file and all"
        );
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::rename(root.path().join("old"), &place).unwrap();
        assert!(is_still_there(&disk, &place).await, "it is back");
    }

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

    #[tokio::test]
    async fn a_pool_file_of_a_newer_program_is_told_from_a_damaged_one() {
        let root = tempfile::tempdir().unwrap();
        let settings = cairn_config::Settings {
            data: vec![root.path().to_owned()],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let place = root.path().join("disk");
        let disk = member(&place, 5).await;
        pool_store::save_one(disk.disk(), &example(3))
            .await
            .unwrap();
        drop(disk);
        let file = place.join(pool_store::POOL_NAME);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replacen("cairn-pool 3", "cairn-pool 9", 1)).unwrap();
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Newer { found: 9, .. }));
        assert_eq!(look.identity(), Some(DiskId(5)));
        drop(look);
        std::fs::write(&file, text.replacen("main", "mail", 1)).unwrap();
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Disk { state: None, .. }));
    }

    /// A folder with a look that hangs is not looked at again until that ends; one whose look has ended is.
    #[tokio::test]
    async fn a_folder_is_looked_at_once_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let settings = cairn_config::Settings {
            data: vec![root.path().to_owned()],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let world = cairn_testkit::TestWorld::new(1);
        let looks = Looks::default();
        let running = looks.begin(root.path(), world.env.clock.monotonic());
        world.clock.advance(HANG_AFTER);
        let look = || looks.look_in_time(&world.env, root.path(), &config);
        for _ in 0..2 * crate::running::BLOCKING_THREADS_MAX {
            let folder = look().await.unwrap();
            assert!(matches!(folder.content, Content::Unusable(_)));
            assert_eq!(folder.path, root.path());
        }
        drop(running);
        let folder = look().await.unwrap();
        assert!(matches!(folder.content, Content::Blank));
        drop(folder);
        let folder = look().await.unwrap();
        assert!(matches!(folder.content, Content::Blank));
    }

    #[test]
    fn the_place_of_a_folder_is_found_without_looking_into_it() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("mounts/disk")).unwrap();
        std::os::unix::fs::symlink("mounts", at("relative")).unwrap();
        std::os::unix::fs::symlink(at("relative/disk"), at("link")).unwrap();
        std::os::unix::fs::symlink("link", at("link to a link")).unwrap();
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        let names = [
            "mounts/disk",
            "mounts/disk/",
            "mounts/./disk//",
            "mounts/../mounts/disk",
            "relative/disk/",
            "link",
            "link/",
            "link to a link/",
            "mounts/absent",
            "relative/absent/",
        ];
        for name in names {
            let found = place_unseen(&at(name));
            let wanted = match name.ends_with("absent/") || name.ends_with("absent") {
                true => place(&at("mounts")).join("absent"),
                false => place(&at(name)),
            };
            assert_eq!(found.as_os_str(), wanted.as_os_str(), "{name}");
        }
        assert!(place_unseen(&at("circle")).starts_with(root.path()));
        assert_eq!(place_unseen(Path::new("/")), Path::new("/"));
    }

    #[tokio::test]
    async fn only_what_was_a_disk_is_known_for_one() {
        let root = tempfile::tempdir().unwrap();
        let settings = cairn_config::Settings {
            data: vec![root.path().to_owned()],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        // Names like ours, in a folder of somebody else's.
        let foreign = root.path().join("foreign");
        std::fs::create_dir_all(foreign.join("volumes/precious")).unwrap();
        let look = Folder::look(&foreign, &config).await.unwrap();
        assert!(matches!(
            look.content,
            Content::Disk {
                identity: None,
                state: None
            }
        ));
        assert!(!is_half_wiped(&foreign));
        let place = root.path().join("disk");
        drop(member(&place, 5).await);
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(
            matches!(&look.content, Content::Disk { identity: Some(found), .. } if found.disk == DiskId(5))
        );
        drop(look);
        for name in TOKEN_NAMES {
            std::fs::write(place.join(name), "of this server").unwrap();
        }
        wipe(&place, false).unwrap();
        assert!(TOKEN_NAMES.iter().all(|name| place.join(name).exists()));
        wipe(&place, true).unwrap();
        assert!(!TOKEN_NAMES.iter().any(|name| place.join(name).exists()));
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Blank));
        drop(look);
        // Broken off at its begin, and done again.
        drop(member(&place, 5).await);
        std::fs::create_dir_all(place.join("shards/00000001")).unwrap();
        std::fs::rename(
            place.join(cairn_shard::IDENTITY_NAME),
            place.join(WIPED_NAME),
        )
        .unwrap();
        assert!(is_half_wiped(&place));
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Disk { identity: None, .. }));
        drop(look);
        wipe(&place, true).unwrap();
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Blank));
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
