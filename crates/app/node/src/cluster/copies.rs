//! Copies of the cluster's map that a node keeps beside etcd.
//!
//! Owns: when a copy is made, where copies are, how many are kept. Must not know: the contents of a copy
//! (`cairn_cluster::map::copy`), how a map is made of one (`recover`).
//!
//! Each node keeps the newest map that it saw, in its cluster folder and on each of its disks: most of etcd may be
//! lost for good at any time, and one disk may be the only remainder of a node. It also keeps one copy of each day,
//! and the last one that another version of the program made.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::Backoff;
use cairn_base::env::{Clock, Env};
use cairn_base::jobs::{Job, Next, Step, StepResult};
use cairn_cluster::map::MapView;
use cairn_cluster::map::copy::{COPY_LEN_BYTES_MAX, MapCopy};
use cairn_owner::ClusterMember;
use cairn_pool::Pool;
use parking_lot::Mutex;

/// In the cluster folder.
pub const FOLDER: &str = "map-copies";
/// The newest map that the node saw.
pub const NEWEST: &str = "newest.json";
/// The newest map on each of the node's disks.
pub const ON_DISK: &str = "cluster-map.json";
/// Its name while it is being written.
pub const ON_DISK_NEW: &str = "cluster-map.json.new";
const KEPT_PREFIX: &str = "kept-";
const SUFFIX: &str = ".json";
/// Copies that are kept beside the newest: one a day for two weeks, and those of earlier versions.
const KEPT_MAX: usize = 14;
/// A copy is kept if the last kept one is older than this.
const KEPT_EVERY_SECONDS: i64 = 24 * 3600;
/// Interval of the check for changes of the map. A volume's log may have moved with a change that is not copied yet.
const LOOK: Duration = Duration::from_millis(500);
/// The longest pause until a copy that failed is made again.
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// Interval of the check whether to keep a copy.
const LOOK_AT_KEPT: Duration = Duration::from_secs(60);
/// A copy has hashes of secrets.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writes a file so that after a crash it is the old or the new one.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads a copy of the map.
pub fn read_file(path: &Path) -> Result<MapCopy, String> {
    let told = |why: String| format!("{}: {why}", path.display());
    let len_bytes = fs::metadata(path)
        .map_err(|error| told(error.to_string()))?
        .len();
    if len_bytes > COPY_LEN_BYTES_MAX {
        return Err(told(format!("a copy of {len_bytes} bytes is too large")));
    }
    let bytes = fs::read(path).map_err(|error| told(error.to_string()))?;
    MapCopy::decode(&bytes).map_err(|error| told(error.to_string()))
}

/// The copies in a cluster folder.
pub struct CopiesFolder(PathBuf);

impl CopiesFolder {
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join(FOLDER))
    }

    pub fn newest(&self) -> PathBuf {
        self.0.join(NEWEST)
    }

    /// The kept copies, the oldest first.
    pub fn kept(&self) -> Vec<PathBuf> {
        let Ok(listed) = fs::read_dir(&self.0) else {
            return Vec::new();
        };
        let paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
        let is_kept = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(KEPT_PREFIX) && name.ends_with(SUFFIX))
        };
        let mut paths: Vec<PathBuf> = paths.filter(is_kept).collect();
        // Their names begin with their time, with a fixed number of digits.
        paths.sort();
        paths
    }

    /// Stores a copy as the newest. Keeps the one before if that is due, or if another version made it.
    pub fn take(&self, copy: &MapCopy) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(&self.0)?;
        if let Ok(before) = read_file(&self.newest())
            && (before.version != copy.version || self.is_due(copy.taken.seconds))
        {
            self.keep(&before)?;
        }
        write_file(&self.newest(), &copy.encode())
    }

    fn is_due(&self, now_seconds: i64) -> bool {
        let kept = self.kept();
        let last = kept.last().and_then(|path| seconds_of(path));
        last.is_none_or(|last| now_seconds.saturating_sub(last) >= KEPT_EVERY_SECONDS)
    }

    /// Keeps a copy beside the newest; deletes the oldest when there are too many.
    pub fn keep(&self, copy: &MapCopy) -> io::Result<PathBuf> {
        let version: String = copy
            .version
            .chars()
            .filter(|one| one.is_ascii_alphanumeric() || *one == '.')
            .collect();
        let name = format!(
            "{KEPT_PREFIX}{:012}-v{version}-r{}{SUFFIX}",
            copy.taken.seconds.max(0),
            copy.revision
        );
        let path = self.0.join(name);
        write_file(&path, &copy.encode())?;
        let kept = self.kept();
        for oldest in kept.iter().take(kept.len().saturating_sub(KEPT_MAX)) {
            fs::remove_file(oldest)?;
        }
        Ok(path)
    }
}

/// The time of a kept copy, from its name.
fn seconds_of(path: &Path) -> Option<i64> {
    let name = path.file_name()?.to_str()?;
    let (seconds, _) = name.strip_prefix(KEPT_PREFIX)?.split_once('-')?;
    seconds.parse().ok()
}

/// A hash of the parts of a map that a copy must have: all but the owners' reports of used space, and of disks that
/// have been emptied.
fn mark_of(view: &MapView) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (id, node) in &view.nodes {
        (id.0, node.revision.0).hash(&mut hasher);
    }
    for (id, disk) in &view.disks {
        (id.0, disk.revision.0).hash(&mut hasher);
    }
    for (id, volume) in &view.volumes {
        let revisions = [
            volume.record.revision.0,
            volume.epoch.revision.0,
            volume.log.revision.0,
        ];
        (id.0, revisions, volume.preferred.map(|node| node.0)).hash(&mut hasher);
        let address = volume.address.as_ref();
        address.map(|address| address.revision.0).hash(&mut hasher);
    }
    let settings = [
        view.classes.as_ref().map(|it| it.revision.0),
        view.users.as_ref().map(|it| it.revision.0),
        view.tiers.as_ref().map(|it| it.revision.0),
        view.maintenance.as_ref().map(|it| it.revision.0),
        view.secrets_key.as_ref().map(|it| it.revision.0),
    ];
    (settings, view.volume_next.map(|id| id.0)).hash(&mut hasher);
    hasher.finish()
}

/// The state of the map on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDisk {
    /// A copy is being written. On an unresponsive disk another one would not be faster.
    Writing,
    /// The disk has the map with this mark, or refused it.
    Done(u64),
}

/// The state of each disk, by its folder.
type OnDisks = Mutex<BTreeMap<PathBuf, OnDisk>>;

/// The disks that need the map with this mark now.
fn lacking(places: Vec<PathBuf>, has: &BTreeMap<PathBuf, OnDisk>, mark: u64) -> Vec<PathBuf> {
    let lacks = |place: &PathBuf| match has.get(place) {
        None => true,
        Some(OnDisk::Writing) => false,
        Some(OnDisk::Done(has)) => *has != mark,
    };
    places.into_iter().filter(lacks).collect()
}

/// Writes a copy to each of these disks, each on its own: an unresponsive disk delays no other.
fn copy_to_disks(places: Vec<PathBuf>, copy: &MapCopy, mark: u64, on_disks: &Arc<OnDisks>) {
    let bytes: Arc<[u8]> = copy.encode().into();
    for folder in places {
        on_disks.lock().insert(folder.clone(), OnDisk::Writing);
        let (bytes, on_disks) = (Arc::clone(&bytes), Arc::clone(on_disks));
        tokio::task::spawn_blocking(move || {
            // A disk that was removed and emptied meanwhile gets no copy.
            let is_disk = fs::symlink_metadata(folder.join(cairn_shard::IDENTITY_NAME)).is_ok();
            let place = folder.join(ON_DISK);
            if is_disk && let Err(error) = write_file(&place, &bytes) {
                tracing::debug!(place = %place.display(), %error, "cannot copy the cluster map to this disk");
            }
            on_disks.lock().insert(folder, OnDisk::Done(mark));
        });
    }
}

/// Starts the job that copies the map after each change, until the node stops.
pub fn tend(
    env: &Env,
    member: &Arc<ClusterMember>,
    pool: &Arc<Pool>,
    folder: &Path,
    is_stopping: &Arc<AtomicBool>,
) {
    let copies = Copies {
        member: Arc::clone(member),
        pool: Arc::downgrade(pool),
        folder: Arc::new(CopiesFolder::in_folder(folder)),
        clock: Arc::clone(&env.clock),
        is_stopping: Arc::clone(is_stopping),
        on_disks: Arc::default(),
        copied: None,
        looked_at: None,
    };
    Job::every("cluster-map-copies", LOOK)
        .retry(Backoff::new(LOOK, RETRY_LONGEST))
        .start(env, copies);
}

struct Copies {
    member: Arc<ClusterMember>,
    pool: Weak<Pool>,
    folder: Arc<CopiesFolder>,
    clock: Arc<dyn Clock>,
    is_stopping: Arc<AtomicBool>,
    on_disks: Arc<OnDisks>,
    /// The mark of the map that the folder has.
    copied: Option<u64>,
    /// When the list of copies was read, by the monotonic clock.
    looked_at: Option<Duration>,
}

impl Step for Copies {
    async fn step(&mut self) -> StepResult {
        if self.is_stopping.load(Ordering::Acquire) {
            return Ok(Next::End);
        }
        let mark = mark_of(&self.member.view());
        // The list of copies is not read each time.
        let now = self.clock.monotonic();
        let passed = |at: Duration| now.saturating_sub(at);
        let is_look_due = self.looked_at.is_none_or(|at| passed(at) >= LOOK_AT_KEPT);
        if is_look_due {
            self.looked_at = Some(now);
        }
        let is_due = is_look_due && self.folder.is_due(self.clock.now().seconds);
        let is_copied = self.copied == Some(mark) && !is_due;
        let Some(places) = self.pool.upgrade().map(|pool| answering_places(&pool)) else {
            return Ok(Next::End);
        };
        let places = lacking(places, &self.on_disks.lock(), mark);
        if is_copied && places.is_empty() {
            return Ok(Next::Period);
        }
        let copy = match self.member.map().copy(VERSION).await {
            Ok(copy) => copy,
            // Etcd does not answer, which the status of the cluster shows.
            Err(error) => {
                tracing::debug!(%error, "cannot copy the cluster map");
                return Ok(Next::Period);
            }
        };
        copy_to_disks(places, &copy, mark, &self.on_disks);
        if is_copied {
            return Ok(Next::Period);
        }
        let in_folder = Arc::clone(&self.folder);
        let taken = tokio::task::spawn_blocking(move || in_folder.take(&copy)).await;
        let taken = match taken {
            Ok(taken) => taken.map_err(|error| error.to_string()),
            Err(_) => Err("the copy was interrupted".to_owned()),
        };
        // After a failure the next step does it again.
        self.copied = taken.is_ok().then_some(mark);
        taken.map_err(|why| {
            format!(
                "the cluster map cannot be copied, so if etcd were lost it could not be recovered: {why}"
            )
        })?;
        Ok(Next::Period)
    }
}

/// The folders of the disks that accept writes now.
fn answering_places(pool: &Pool) -> Vec<PathBuf> {
    let disks = pool.disks();
    let answering = disks
        .iter()
        .filter(|disk| !disk.health().failed && !disk.is_silent());
    answering
        .filter_map(|disk| Some(disk.disk().folder()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use cairn_base::env::Env;
    use cairn_cluster::map::ClusterId;
    use cairn_cluster::{ClusterMap, Coordinator, MemoryCoordinator};

    use super::*;
    use crate::cluster::recover::Forgetful;

    /// A map in memory, by the clock of the machine.
    async fn map(env: &Env) -> ClusterMap {
        let store: Arc<dyn Coordinator> = MemoryCoordinator::new(env.clone()).client("test");
        let id = ClusterId(7);
        let made = ClusterMap::create_cluster(store, env.clone(), id, "home", Arc::new(Forgetful));
        made.await.unwrap()
    }

    #[test]
    fn a_disk_gets_a_map_that_it_lacks_one_at_a_time() {
        let place = |name: &str| PathBuf::from(name);
        let has = BTreeMap::from([
            (place("has it"), OnDisk::Done(7)),
            (place("has an older one"), OnDisk::Done(6)),
            (place("hangs"), OnDisk::Writing),
        ]);
        let all = ["new", "has it", "has an older one", "hangs"].map(place);
        let want = ["new", "has an older one"].map(place);
        assert_eq!(lacking(all.to_vec(), &has, 7), want);
    }

    #[tokio::test]
    async fn copies_of_days_and_versions_are_kept_and_no_more() {
        let root = tempfile::tempdir().unwrap();
        let folder = CopiesFolder::in_folder(root.path());
        let env = cairn_base::real::env(tokio::runtime::Handle::current());
        let map = map(&env).await;
        let mut copy = map.copy("1.0").await.unwrap();
        folder.take(&copy).unwrap();
        assert_eq!(read_file(&folder.newest()).as_ref(), Ok(&copy));
        assert_eq!(folder.kept().len(), 0, "the newest one is there");
        // It is kept with the next, since there is none of the day, and then not again.
        folder.take(&copy).unwrap();
        folder.take(&copy).unwrap();
        assert_eq!(folder.kept().len(), 1);
        // Before a newer version overwrites it.
        copy = map.copy("1.1").await.unwrap();
        folder.take(&copy).unwrap();
        let kept = folder.kept();
        assert_eq!(
            kept.len(),
            1,
            "of the same second and revision it is the same"
        );
        assert_eq!(read_file(&kept[0]).unwrap().version, "1.0");
        for day in 1..=20 {
            let mut later = map.copy("1.1").await.unwrap();
            later.taken.seconds += day * KEPT_EVERY_SECONDS;
            folder.keep(&later).unwrap();
        }
        let kept = folder.kept();
        assert_eq!(kept.len(), KEPT_MAX);
        let days: Vec<i64> = kept.iter().filter_map(|path| seconds_of(path)).collect();
        assert!(days.is_sorted() && days[0] > copy.taken.seconds + 5 * KEPT_EVERY_SECONDS);
    }
}
