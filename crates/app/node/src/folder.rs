//! The state of a data folder: examined, opened, emptied.
//!
//! Owns: the names in a data folder, the disk's lock, time limits for unresponsive folders. Must not know: the pool's
//! use of it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cairn_base::disk::{Disk, DiskError};
use cairn_base::env::Env;
use cairn_config::{Config, DiskIo};
use cairn_disk::{DiskSettings, EngineChoice, ReadBuffers, RealDisk};
use cairn_shard::ShardDisk;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::NodeError;
use cairn_pool::assemble::Content;
use cairn_pool::truth;
use cairn_pool::watch::no_answer;

/// Names in a data folder that do not make it a used one.
const HARMLESS: &[&str] = &[
    "lock",
    "probe.tmp",
    "lost+found",
    truth::POOL_NAME_NEW,
    "cairn-disk.new",
    cairn_pool::scrub::SCRUB_NAME_NEW,
    crate::cluster::ON_DISK,
    crate::cluster::ON_DISK_NEW,
];
/// Names that only a disk of a pool has.
const OURS: &[&str] = &[
    truth::POOL_NAME,
    cairn_shard::IDENTITY_NAME,
    "shards",
    "shard-volumes",
    cairn_formats::shard::promise::PROMISES_FOLDER,
    "volumes",
    "free",
    cairn_pool::BALLAST_FOLDER,
    "rebuild",
    WIPED_NAME,
    cairn_shard::PROBE_NAME,
    cairn_pool::scrub::SCRUB_NAME,
    crate::history::HISTORY_NAME,
    crate::audit::AUDIT_NAME,
    crate::events::EVENTS_NAME,
    crate::benchmarks::BENCHMARKS_NAME,
];

/// The name of the identity while a folder is being emptied. The identity is deleted last, so that the remains after
/// a crash are known to be ours. It is renamed first, so that no start uses the folder as a disk.
const WIPED_NAME: &str = "cairn-disk.wiped";

/// Maximum length of the process number in a lock file.
const PID_LEN_BYTES_MAX: u64 = 20;
/// Maximum number of links to resolve on the way to a folder, as on Linux.
const LINKS_MAX: usize = 40;

/// Unfinished examinations of folders: each keeps a thread, and perhaps the folder's lock.
#[derive(Default)]
pub struct Looks(Mutex<BTreeMap<PathBuf, FolderLook>>);

/// An examination of a folder.
struct FolderLook {
    since: Duration,
    place: PathBuf,
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
}

impl Looks {
    /// Examines a folder on another thread. A folder that does not answer cannot be used; the others are. Waits for
    /// an unfinished examination of an earlier attempt, up to the time limit of a folder: it would be in the way of
    /// another one, and many of them would take all threads.
    pub async fn look_in_time(
        &self,
        env: &Env,
        path: &Path,
        config: &Config,
    ) -> Result<Folder, NodeError> {
        if let Some(silent) = self.wait_for_earlier(env, path, config.hang_after).await {
            return Ok(Folder::unusable(silent, no_answer(config.hang_after)));
        }
        let running = self.begin(path, env.clock.monotonic());
        let (at, kept) = (path.to_owned(), Arc::clone(&running));
        let placing = tokio::task::spawn_blocking(move || {
            let place = place_unseen(&at);
            drop(kept);
            place
        });
        let place = match select(placing, env.clock.sleep(config.hang_after)).await {
            Either::Left((Ok(place), _)) => place,
            Either::Left((Err(_), _)) | Either::Right(_) => path.to_owned(),
        };
        if let Some(look) = self.0.lock().get_mut(path) {
            look.place.clone_from(&place);
        }
        let hang_after = config.hang_after;
        let (at, config, runtime) = (place.clone(), config.clone(), Handle::current());
        let looking = tokio::task::spawn_blocking(move || {
            let looked = runtime.block_on(Folder::look(&at, &config));
            drop(running);
            looked
        });
        match select(looking, env.clock.sleep(hang_after)).await {
            Either::Left((Ok(folder), _)) => folder,
            Either::Left((Err(error), _)) => {
                let why = format!("checking the folder was interrupted: {error}");
                Ok(Folder::unusable(place, why))
            }
            Either::Right(_) => Ok(Folder::unusable(place, no_answer(hang_after))),
        }
    }

    /// Notes that an examination begins; it ends when all copies of the returned value are dropped.
    fn begin(&self, path: &Path, since: Duration) -> Arc<watch::Sender<()>> {
        let (running, ended) = watch::channel(());
        let place = path.to_owned();
        let look = FolderLook {
            since,
            place,
            ended,
        };
        self.0.lock().insert(path.to_owned(), look);
        Arc::new(running)
    }

    /// Waits for the end of an earlier examination of a folder. Returns the folder's path if that does not end in time.
    async fn wait_for_earlier(
        &self,
        env: &Env,
        path: &Path,
        hang_after: Duration,
    ) -> Option<PathBuf> {
        let (since, mut ended) = {
            let looks = self.0.lock();
            let look = looks.get(path)?;
            (look.since, look.ended.clone())
        };
        let waited = env.clock.monotonic().saturating_sub(since);
        let rest = env.clock.sleep(hang_after.saturating_sub(waited));
        match select(pin!(ended.changed()), rest).await {
            Either::Left(_) => None,
            Either::Right(_) => Some(self.0.lock().get(path)?.place.clone()),
        }
    }
}

/// As [`place`], without a call on the folder itself, which may not answer: only on those above it.
pub fn place_unseen(path: &Path) -> PathBuf {
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

/// The real path of a data folder that the operator named.
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
        let disk = match open_disk(&path, config, Making::Refused) {
            Ok(disk) => disk,
            Err(error @ NodeError::InUse { .. }) => return Err(error),
            Err(error) => return with(Content::Unusable(error.to_string()), None),
        };
        if !matches!(content, Content::Disk { .. }) {
            return with(content, Some(disk));
        }
        match truth::look(&disk).await {
            Ok(content) => with(content, Some(disk)),
            Err(why) => with(Content::Unusable(why), None),
        }
    }

    pub fn label(&self) -> String {
        self.path.display().to_string()
    }

    #[cfg(test)]
    pub fn identity(&self) -> Option<cairn_base::DiskId> {
        match &self.content {
            Content::Disk { identity, .. } | Content::Newer { identity, .. } => {
                identity.as_ref().map(|identity| identity.disk)
            }
            _ => None,
        }
    }

    /// The version of its pool file.
    pub fn version(&self) -> Option<u64> {
        match &self.content {
            Content::Disk { state, .. } => state.as_ref().map(|state| state.version),
            _ => None,
        }
    }
}

/// Examines the names in a folder: `Blank`, `Foreign`, or `Disk` without further facts.
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

/// Whether the emptying of this folder was broken off.
pub fn is_half_wiped(folder: &Path) -> std::io::Result<bool> {
    match std::fs::symlink_metadata(folder.join(WIPED_NAME)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Deletes the files of a Cairn disk in its folder. The caller knows that it is one: other folders may have names
/// like ours.
pub fn wipe(folder: &Path) -> std::io::Result<()> {
    let (identity, wiped) = (
        folder.join(cairn_shard::IDENTITY_NAME),
        folder.join(WIPED_NAME),
    );
    match std::fs::rename(&identity, &wiped) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // The folder was never formatted, or was emptied halfway before.
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
    let made_meanwhile = [
        truth::POOL_NAME_NEW,
        cairn_pool::scrub::SCRUB_NAME_NEW,
        crate::cluster::ON_DISK,
        crate::cluster::ON_DISK_NEW,
    ];
    let ours = OURS.iter().copied().filter(|name| *name != WIPED_NAME);
    for name in ours.chain(made_meanwhile) {
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

/// Whether a folder still has the disk that this process opened there: since then, another drive may have been
/// mounted, with a disk of another pool, a copy of this one, or anything else.
pub async fn is_still_there(disk: &ShardDisk, folder: &Path) -> bool {
    let identity = ShardDisk::identity(disk.disk()).await;
    let is_same = matches!(&identity, Ok(Some(found)) if found.disk == disk.id() && found.pool == disk.pool());
    let folder = folder.to_owned();
    is_same
        && tokio::task::spawn_blocking(move || holds_lock(&folder))
            .await
            .unwrap_or(false)
}

/// Whether this process holds the lock in a folder.
fn holds_lock(folder: &Path) -> bool {
    let Ok(lock) = std::fs::File::open(folder.join(cairn_disk::LOCK_NAME)) else {
        return false;
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {}
        // No process holds it: this is not the folder that we opened.
        Ok(()) | Err(_) => return false,
    }
    let mut pid = String::new();
    let read = std::io::Read::take(lock, PID_LEN_BYTES_MAX).read_to_string(&mut pid);
    read.is_ok() && pid.trim().parse() == Ok(std::process::id())
}

/// Makes a folder at `depth` below that of a disk, which has to exist: if its drive is not mounted, the folder would
/// be made on another one.
pub fn make_below_disk(folder: &Path, depth: usize) -> std::io::Result<()> {
    match folder.ancestors().nth(depth) {
        Some(disk) if disk.is_dir() => std::fs::create_dir_all(folder),
        _ => Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "the folder of the disk no longer exists",
        )),
    }
}

/// The read buffers of all disks of this process: so their memory does not grow with the number of disks.
pub fn read_buffers() -> ReadBuffers {
    static SHARED: LazyLock<ReadBuffers> = LazyLock::new(ReadBuffers::default);
    SHARED.clone()
}

/// Whether a missing folder of a disk is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    Allowed,
    Refused,
}

pub fn open_disk(path: &Path, config: &Config, making: Making) -> Result<Arc<dyn Disk>, NodeError> {
    let settings = DiskSettings {
        engine: match config.disk_io {
            DiskIo::Auto => EngineChoice::Auto,
            DiskIo::Uring => EngineChoice::IoUring,
            DiskIo::Threads => EngineChoice::Threads,
        },
        size_limit_bytes: config.disk_size_limit_bytes,
        make_folder: making == Making::Allowed,
        buffers: read_buffers(),
        ..DiskSettings::default()
    };
    match RealDisk::open(path, settings) {
        Ok(disk) => Ok(disk),
        Err(DiskError::InUse { disk, pid }) => Err(NodeError::InUse { disk, pid }),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use cairn_base::{DiskId, PoolId, Timestamp};
    use cairn_formats::testing::example_pool as example;
    use cairn_shard::ShardSettings;

    use super::*;

    fn real(path: &Path) -> Arc<dyn Disk> {
        RealDisk::open(path, DiskSettings::default()).unwrap()
    }

    pub async fn member(path: &Path, id: u128) -> Arc<ShardDisk> {
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
        // Another drive is mounted there: an empty one, one with other files, another disk, or a copy.
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

    /// A copy of a pool file as a newer program would write it, with the checksum.
    fn with_version_9(copy: &[u8]) -> Vec<u8> {
        let body_offset = 1 + copy.iter().position(|byte| *byte == b'\n').unwrap();
        let name = "cairn-pool 9 ";
        let body = &copy[body_offset..];
        let checksum = cairn_base::crc32c_append(cairn_base::crc32c(name.as_bytes()), body);
        [format!("{name}{checksum:08x}\n").as_bytes(), body].concat()
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
        truth::save_one(disk.disk(), &example(3)).await.unwrap();
        drop(disk);
        let file = place.join(truth::POOL_NAME);
        let bytes = std::fs::read(&file).unwrap();
        let newer = bytes.chunks(bytes.len() / 2).flat_map(with_version_9);
        std::fs::write(&file, newer.collect::<Vec<u8>>()).unwrap();
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Newer { found: 9, .. }));
        assert_eq!(look.identity(), Some(DiskId(5)));
        drop(look);
        // In both copies, without matching checksums.
        for (what, from, to) in [
            ("the content", "main", "mail"),
            ("the version", "cairn-pool 1", "cairn-pool 9"),
        ] {
            let text = String::from_utf8(bytes.clone()).unwrap();
            let damaged = text.replace(from, to);
            assert_ne!(damaged, text, "{what}");
            std::fs::write(&file, damaged).unwrap();
            let look = Folder::look(&place, &config).await.unwrap();
            let is_damage = matches!(look.content, Content::Disk { state: None, .. });
            assert!(is_damage, "{what}");
        }
    }

    /// A folder with an unfinished examination is not examined again until that ends; one whose examination has ended is.
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
        world.clock.advance(config.hang_after);
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
        // Names like ours, in a folder of other files.
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
        assert!(!is_half_wiped(&foreign).unwrap());
        // A folder that cannot be read does not count as missing.
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(is_half_wiped(&file).is_err());
        let place = root.path().join("disk");
        drop(member(&place, 5).await);
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(
            matches!(&look.content, Content::Disk { identity: Some(found), .. } if found.disk == DiskId(5))
        );
        drop(look);
        // A cluster's map, with the hashes of its secrets.
        let copy = place.join(crate::cluster::ON_DISK);
        std::fs::write(&copy, "a map").unwrap();
        wipe(&place).unwrap();
        assert!(!copy.exists());
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Blank));
        drop(look);
        // Broken off at its beginning, and repeated.
        drop(member(&place, 5).await);
        std::fs::create_dir_all(place.join("shards/00000001")).unwrap();
        std::fs::rename(
            place.join(cairn_shard::IDENTITY_NAME),
            place.join(WIPED_NAME),
        )
        .unwrap();
        assert!(is_half_wiped(&place).unwrap());
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Disk { identity: None, .. }));
        drop(look);
        wipe(&place).unwrap();
        let look = Folder::look(&place, &config).await.unwrap();
        assert!(matches!(look.content, Content::Blank));
    }
}
