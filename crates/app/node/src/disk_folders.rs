//! Turns folders into disks of the pool, and removed disks into folders.
//!
//! Owns: where the admin API may use folders, the conditions for a folder to become a disk, emptying folders, time
//! limits for unresponsive folders. Must not know: the pool's conditions for adding or removing a disk
//! (`cairn_pool`).

use std::future::Future;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cairn_admin::disks::DiskPlace;
use cairn_base::disk::{Disk, DiskDevice, DiskError};
use cairn_base::{DiskId, DiskRole, Media};
use cairn_config::DATA_FOLDERS_MAX;
use cairn_disk::device::{Mount, device_of, mount_of};
use cairn_formats::pool_file::PoolDisk;
use cairn_pool::disk_changes::{Force, Joining, no_answer_of};
use cairn_pool::joining::{Allowed, Readiness, readiness};
use cairn_shard::{DiskIdentity, ShardDisk, ShardErrorKind};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::disks::shard_settings;
use crate::error::NodeError;
use crate::folder::{Folder, Making, is_half_wiped, is_still_there, open_disk, wipe};
use crate::node::{ChangeFailure, NodeCore};
use crate::remembered::{self, RememberedPool};
use crate::state_folder;

/// Maximum time to empty a folder.
const WIPE_MAX: Duration = Duration::from_secs(600);
/// Maximum number of folders that do not answer at a time.
const UNANSWERED_MAX: usize = 4;

fn impossible<T>(why: String) -> Result<T, ChangeFailure> {
    Err(ChangeFailure::Impossible(why))
}

/// The real path of a folder that the admin API names: below one of `roots`, or one of `named`, the data folders of
/// the configuration. Without this limit, a user that may add disks could have files written, and deleted, anywhere
/// on the machine.
///
/// The folder or its parent exists. Links are resolved first, so that none leads out of a root.
pub fn allowed_place(path: &Path, roots: &[PathBuf], named: &[PathBuf]) -> Result<PathBuf, String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("\"{shown}\" is not an absolute path on the server"));
    }
    let refused = || {
        // The path as given: the message must not reveal the targets of links, or existing files.
        let parent = path.parent().unwrap_or(path).display();
        let names: Vec<String> = roots
            .iter()
            .map(|root| root.display().to_string())
            .collect();
        let below = match names.as_slice() {
            [] => "the configuration of this server allows no folder".to_owned(),
            names => format!("it is not below {}", names.join(" or ")),
        };
        format!(
            "{shown} may not be used: {below}; write disk_root = [\"{parent}\"] into the configuration (or --disk-root), and start \
             the server again"
        )
    };
    let place = match path.canonicalize() {
        Ok(place) => place,
        Err(_) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(refused());
            };
            match parent.canonicalize() {
                Ok(parent) => parent.join(name),
                Err(error) => {
                    let has_dots = path.components().any(|part| part == Component::ParentDir);
                    let is_below = roots.iter().any(|root| path.starts_with(root));
                    if has_dots || !is_below {
                        return Err(refused());
                    }
                    return Err(format!(
                        "{shown} cannot be created in {}, which cannot be used ({error}): create that folder, or mount what is to be \
                         there, then try again",
                        parent.display()
                    ));
                }
            }
        }
    };
    let is_below = |root: &PathBuf| {
        let root = root.canonicalize();
        root.is_ok_and(|root| place != root && place.starts_with(root))
    };
    match named.contains(&place) || roots.iter().any(is_below) {
        true => Ok(place),
        false => Err(refused()),
    }
}

/// What goes on with folders that are disks of this server, or are to become some.
#[derive(Default)]
pub struct DiskFolders {
    /// The folder with the list of the pool's disks; set at the start of a server that is in no cluster.
    remembered_in: OnceLock<PathBuf>,
    /// Held while a folder becomes a disk, which may have to be emptied first.
    joining: tokio::sync::Mutex<()>,
    work: FolderWork,
}

impl DiskFolders {
    /// Waits until no folder becomes a disk, and lets none become one as long as this is held.
    pub async fn join(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.joining.lock().await
    }
}

/// Work on folders that are no disks yet. Work on an unresponsive folder is given up, and keeps a thread until the
/// folder answers; the number of these is limited.
#[derive(Default)]
struct FolderWork(Mutex<Vec<(String, Weak<()>)>>);

impl FolderWork {
    /// The guard that work holds until its end. Refused if earlier work has not ended, on this folder or on too many.
    fn begin(&self, folder: &str) -> Result<Arc<()>, ChangeFailure> {
        let mut under_way = self.0.lock();
        under_way.retain(|(_, work)| work.strong_count() > 0);
        let is_same = |(other, _): &(String, Weak<()>)| other == folder;
        let silent = match under_way.iter().find(|work| is_same(work)) {
            None if under_way.len() < UNANSWERED_MAX => {
                let work = Arc::new(());
                under_way.push((folder.to_owned(), Arc::downgrade(&work)));
                return Ok(work);
            }
            None => {
                let folders: Vec<&str> = under_way.iter().map(|(at, _)| at.as_str()).collect();
                folders.join(", ")
            }
            Some(_) => folder.to_owned(),
        };
        Err(ChangeFailure::Impossible(format!(
            "{silent} still does not answer an earlier try: check the disk, then try again"
        )))
    }
}

/// The file system of a folder.
struct FolderMount {
    path: PathBuf,
    exists: bool,
    mount: Mount,
    device: DiskDevice,
    total_bytes: u64,
    free_bytes: u64,
}

impl FolderMount {
    /// Of an existing folder, or of the parent of a new one.
    fn at(path: &Path) -> std::io::Result<Self> {
        let exists = path.try_exists()?;
        let there = match (exists, path.parent()) {
            (false, Some(parent)) => parent,
            (_, _) => path,
        };
        let space = rustix::fs::statvfs(there)?;
        Ok(Self {
            path: path.to_owned(),
            exists,
            mount: mount_of(there)?,
            device: device_of(there)?,
            total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        })
    }
}

fn failed(error: NodeError) -> ChangeFailure {
    let is_full = match &error {
        NodeError::Disk(error) => matches!(error, DiskError::Full { .. }),
        NodeError::Shard(error) => error.kind() == ShardErrorKind::Full,
        _ => false,
    };
    match is_full {
        true => ChangeFailure::NoRoom(error.to_string()),
        false => ChangeFailure::Engine(error.to_string()),
    }
}

impl NodeCore {
    /// Does work on a folder that is no disk yet, outside of everything that would notice an unresponsive folder.
    /// Gives up after a while, because no other change is possible meanwhile.
    pub(crate) async fn answer_of<T: Send + 'static>(
        &self,
        folder: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ChangeFailure> {
        self.work_within(self.config.hang_after, folder, work).await
    }

    async fn work_within<T: Send + 'static>(
        &self,
        time: Duration,
        folder: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ChangeFailure> {
        let under_way = self.folders.work.begin(folder)?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(under_way);
            done
        });
        let done = self.within(time, folder, working).await?;
        done.map_err(|error| {
            ChangeFailure::Engine(format!("work on {folder} was interrupted: {error}"))
        })
    }

    async fn within<T>(
        &self,
        time: Duration,
        folder: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, ChangeFailure> {
        match select(std::pin::pin!(work), self.env.clock.sleep(time)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => impossible(no_answer_of(folder, time)),
        }
    }

    /// The file system of a folder that is to become a disk. Makes nothing.
    pub async fn disk_place(&self, path: &str) -> Result<DiskPlace, ChangeFailure> {
        let at = self.real_path(path).await?;
        let looked = self.answer_of(path, move || FolderMount::at(&at)).await?;
        let seen = looked.map_err(|error| {
            ChangeFailure::Engine(format!(
                "the device of {path} cannot be determined: {error}"
            ))
        })?;
        let is_on_a_drive_of = |disk: &&Arc<ShardDisk>| {
            let device = disk.disk().device();
            device.is_some_and(|device| !device.drives.is_disjoint(&seen.device.drives))
        };
        let disks = self.pool.disks();
        let shares_with = disks.iter().filter(is_on_a_drive_of);
        Ok(DiskPlace {
            path: seen.path.display().to_string(),
            exists: seen.exists,
            device: seen.mount.source,
            file_system: seen.mount.kind,
            mount_point: seen.mount.point.display().to_string(),
            total_bytes: seen.total_bytes,
            free_bytes: seen.free_bytes,
            shares_with: shares_with.map(|disk| disk.label().to_owned()).collect(),
        })
    }

    /// Adds an empty folder to the pool.
    pub async fn disk_add(
        &self,
        path: &str,
        allowed: Allowed,
        role: DiskRole,
        media: Option<Media>,
    ) -> Result<DiskId, ChangeFailure> {
        let _joining = self.folders.join().await;
        let disk = self.make_ready(path, allowed, None).await?;
        let added = self.join(disk, Joining::New(role, media)).await;
        self.remember();
        added
    }

    /// Begins to store the list of the pool's disks in the state folder, so that a start without them makes no new
    /// pool. In a cluster the map has the list.
    pub fn begin_to_remember(&self) {
        if self.cluster.is_some() {
            return;
        }
        match state_folder::make(&self.config) {
            Ok(folder) => {
                // Set only here.
                let _ = self.folders.remembered_in.set(folder);
                self.remember();
            }
            // The pool can be served without it.
            Err(error) => tracing::warn!(
                %error,
                "the pool could not be remembered: a start that finds its folders empty would create a new pool"
            ),
        }
    }

    /// Stores the list of the pool's disks, after a change.
    fn remember(&self) {
        let Some(folder) = self.folders.remembered_in.get() else {
            return;
        };
        let state = self.pool.state();
        let pool = RememberedPool {
            pool: state.pool.to_string(),
            disks: state.disks.iter().map(|disk| disk.label.clone()).collect(),
        };
        if let Err(error) = remembered::keep(folder, &pool, &*self.env.entropy) {
            tracing::warn!(
                folder = %folder.display(),
                %error,
                "the pool's disks could not be remembered: a start that finds their folders empty would create a new pool"
            );
        }
    }

    async fn join(&self, disk: Arc<dyn Disk>, place: Joining) -> Result<DiskId, ChangeFailure> {
        let settings = shard_settings(&self.config, self.pool.state().disks.len() + 1);
        self.pool.join(disk, settings, place).await
    }

    /// The real path of a folder for a read cache: outside of all disks of the pool.
    pub(crate) async fn place_of_cache(&self, path: &str) -> Result<PathBuf, ChangeFailure> {
        let given = self.real_path(path).await?;
        self.require_apart(&given)?;
        Ok(given)
    }

    /// Replaces a disk by a new one; the old one leaves.
    pub async fn disk_replace(
        &self,
        words: &str,
        path: &str,
        allowed: Allowed,
    ) -> Result<DiskId, ChangeFailure> {
        let _joining = self.folders.join().await;
        let old = self.pool.find_disk(words)?;
        let disk = self.make_ready(path, allowed, Some(old.id)).await?;
        let (label, asked) = (disk.label().to_owned(), Arc::clone(&disk));
        let space = self.answer_of(&label, move || asked.space()).await?;
        self.pool.require_room_beside(old.id, || {
            space.map_err(|error| ChangeFailure::Engine(error.to_string()))
        })?;
        let added = self.join(disk, Joining::Replacing(old.id)).await;
        self.remember();
        added
    }

    /// Takes back an unused disk, if it works.
    pub async fn disk_retry(&self, words: &str) -> Result<DiskId, ChangeFailure> {
        // A replacement relies on the disk being unused.
        let _joining = self.folders.join().await;
        let settings = shard_settings(&self.config, self.pool.state().disks.len());
        self.pool.retry(words, settings).await
    }

    /// Takes back disks that were given up because they did not answer, and have proven since that they do.
    pub async fn take_back_proven(&self) {
        for id in self.pool.watch.proven() {
            match self.disk_retry(&id.to_string()).await {
                Ok(_) => {
                    tracing::warn!(%id, "a disk that was out of use answers again, and is back in use")
                }
                Err(error) => {
                    tracing::warn!(%id, %error, "a disk answers again, but cannot be taken back yet");
                    self.pool.watch.note_refused(id);
                }
            }
        }
    }

    /// Opens a folder that is to become a disk, and empties it if needed.
    ///
    /// The caller holds the lock for joining, without which no folder becomes a disk, but not the lock for changes:
    /// emptying takes long, and volumes may have to be reopened meanwhile. The results of the checks stay true: only
    /// the holder of the joining lock takes back an unused disk, and no disk leaves whose data needs this one.
    async fn make_ready(
        &self,
        path: &str,
        allowed: Allowed,
        replaces: Option<DiskId>,
    ) -> Result<Arc<dyn Disk>, ChangeFailure> {
        let given = self.place_of(path).await?;
        self.require_apart(&given)?;
        let (config, runtime) = (self.config.clone(), Handle::current());
        let look = move || runtime.block_on(Folder::look(&given, &config));
        let folder = self.answer_of(path, look).await?.map_err(failed)?;
        let (label, at) = (folder.label(), folder.path.clone());
        let is_half_wiped = is_half_wiped(&at)
            .map_err(|error| ChangeFailure::Engine(format!("{label}: {error}")))?;
        let ready = readiness(&label, folder.content, is_half_wiped, allowed);
        let (config, opened) = (self.config.clone(), folder.path.clone());
        let making = match allowed.create {
            true => Making::Allowed,
            false => Making::Refused,
        };
        let open = move || open_disk(&opened, &config, making);
        match (ready.map_err(ChangeFailure::Impossible)?, folder.disk) {
            (Readiness::Ready, Some(disk)) => Ok(disk),
            (Readiness::Ready, None) => self.answer_of(path, open).await?.map_err(failed),
            (Readiness::Wipe(identity), disk) => {
                self.require_not_needed(&label, identity, replaces).await?;
                self.wipe_held(path, &label, at, disk.clone()).await?;
                drop(disk);
                self.answer_of(path, open).await?.map_err(failed)
            }
        }
    }

    /// The real path of a folder that the operator names.
    async fn place_of(&self, path: &str) -> Result<PathBuf, ChangeFailure> {
        if self.pool.state().disks.len() >= DATA_FOLDERS_MAX {
            return impossible(format!("a pool has at most {DATA_FOLDERS_MAX} disks"));
        }
        let given = self.real_path(path).await?;
        let is_in =
            |folder: &str| given.starts_with(folder) || Path::new(folder).starts_with(&given);
        match self.pool.state().caches.iter().find(|it| is_in(&it.folder)) {
            Some(cache) => impossible(format!(
                "the folder has the read cache at {}: choose another folder, or remove the cache first",
                cache.folder
            )),
            None => Ok(given),
        }
    }

    /// The real path of a folder that the admin API names, if the configuration allows it.
    async fn real_path(&self, path: &str) -> Result<PathBuf, ChangeFailure> {
        let (given, named) = (PathBuf::from(path), self.named.clone());
        let roots = self.config.disk_roots.clone();
        let placed = self
            .answer_of(path, move || allowed_place(&given, &roots, &named))
            .await?;
        placed.map_err(ChangeFailure::Impossible)
    }

    /// Refuses a folder that is a disk of the pool, lies in one, or contains one: emptying it would empty the disk, too.
    fn require_apart(&self, given: &Path) -> Result<(), ChangeFailure> {
        for disk in self.pool.disks() {
            let label = given.display();
            match disk.disk().folder() {
                Some(folder) if folder == given && !disk.health().failed => {
                    return impossible(format!("{label} is already a disk of the pool"));
                }
                Some(folder)
                    if folder != given
                        && (given.starts_with(folder) || folder.starts_with(given)) =>
                {
                    return impossible(format!(
                        "{label} and the folder of disk {} are nested; choose a folder outside of it",
                        folder.display()
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses to empty a former disk that is still needed. The folder of an unused member may have the only copy of
    /// some data.
    async fn require_not_needed(
        &self,
        label: &str,
        identity: Option<DiskIdentity>,
        replaces: Option<DiskId>,
    ) -> Result<(), ChangeFailure> {
        let state = self.pool.state();
        let is_member = |found: &DiskIdentity| {
            let is_it = |disk: &PoolDisk| disk.id == found.disk;
            found.pool == state.pool && state.disks.iter().any(is_it)
        };
        match identity.filter(is_member).map(|member| member.disk) {
            None => Ok(()),
            Some(id) if replaces != Some(id) => impossible(format!(
                "{label} is disk {id} of this pool: restart the server to use it again, or replace it"
            )),
            Some(id) => {
                // No volume is opened meanwhile: the store knows no segments of a volume that is being opened.
                let _changes = self.pool.begin_change().await?;
                self.pool.require_rebuildable(id)
            }
        }
    }

    /// Empties a folder. Holds its lock meanwhile, so that no other process takes it: also if that takes longer than
    /// the caller waits.
    async fn wipe_held(
        &self,
        path: &str,
        label: &str,
        at: PathBuf,
        held: Option<Arc<dyn Disk>>,
    ) -> Result<(), ChangeFailure> {
        let wiping = move || {
            let wiped = wipe(&at);
            drop(held);
            wiped
        };
        match self.work_within(WIPE_MAX, path, wiping).await? {
            Ok(()) => Ok(()),
            Err(error) => impossible(format!("{label} cannot be wiped: {error}")),
        }
    }

    /// Removes a disk from the pool, and empties its folder.
    pub async fn disk_remove(&self, words: &str, force: bool) -> Result<(), ChangeFailure> {
        let force = if force { Force::Yes } else { Force::No };
        let gone = self.pool.leave(words, force).await?;
        self.remember();
        self.pool.after_a_change().await;
        self.empty(gone).await;
        Ok(())
    }

    /// Follows up after a replaced disk has left.
    pub async fn let_go_of(&self, gone: Option<Arc<ShardDisk>>) {
        self.remember();
        self.empty(gone).await;
    }

    /// Empties the folder of a removed disk, so that it counts as empty, and not as a disk of this pool. The disk is
    /// not watched any more, so no other work may wait for this.
    async fn empty(&self, gone: Option<Arc<ShardDisk>>) {
        let Some(gone) = gone else { return };
        let Some(folder) = gone.disk().folder().map(Path::to_owned) else {
            return;
        };
        let label = gone.label();
        if gone.health().failed {
            tracing::warn!(
                disk = label,
                "the removed disk failed and keeps its content: see docs/reference/at-rest.md before you give the disk away"
            );
            return;
        }
        match self
            .within(
                self.config.hang_after,
                label,
                is_still_there(&gone, &folder),
            )
            .await
        {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    disk = label,
                    "the folder now contains something else than the removed disk, and is kept"
                );
                return;
            }
            Err(error) => {
                tracing::warn!(disk = label, %error, "the removed disk keeps its content");
                return;
            }
        }
        // Pending operations there would make new names behind the wiping.
        self.pool.watch.let_go(gone.disk(), "it was removed");
        let wiped = tokio::task::spawn_blocking(move || wipe(&folder)).await;
        if let Ok(Err(error)) = wiped {
            tracing::warn!(disk = label, %error, "the removed disk could not be emptied");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use cairn_base::real;
    use futures_util::future::join;

    use super::*;
    use crate::node::tests::{disk_paths, start};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_that_is_not_there_becomes_no_disk_unless_that_is_wanted() {
        let root = tempfile::tempdir().expect("a folder");
        let inner = start(root.path(), real::env(Handle::current())).await;
        let new = root.path().canonicalize().expect("a folder").join("new");
        let path = new.display().to_string();
        let place = inner.disk_place(&path).await.expect("a place");
        assert!(!place.exists && place.total_bytes >= place.free_bytes);
        assert_eq!(place.shares_with.len(), 3, "all of them are on one drive");
        let add = |create| {
            let allowed = Allowed {
                wipe: false,
                create,
            };
            inner.disk_add(&path, allowed, DiskRole::Data, None)
        };
        let refused = add(false).await.expect_err("it is not there");
        assert!(refused.to_string().contains("--create"), "{refused}");
        assert!(!new.exists());
        add(true).await.expect("it is made");
        assert_eq!(inner.pool.disks().len(), 4);
        assert!(inner.disk_place(&path).await.expect("a place").exists);
        inner.close_volumes().await;
    }

    /// The stop closed the volumes while the removal waited, and then the disk seemed to be empty.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_stays_whose_removal_the_end_of_the_node_overtakes() {
        let root = tempfile::tempdir().expect("a folder");
        let inner = start(root.path(), real::env(Handle::current())).await;
        let id = inner.pool.disks()[2].id().to_string();
        // A move whose new place is not durable yet.
        let moving = inner.pool.rebuild.commits.clone().read_owned().await;
        let removing = Box::pin(inner.disk_remove(&id, true));
        let Either::Right((_, removing)) = select(removing, ready(())).await else {
            panic!("it does not wait");
        };
        let closing = Box::pin(inner.close_volumes());
        let Either::Right((_, closing)) = select(closing, ready(())).await else {
            panic!("it does not wait");
        };
        drop(moving);
        let (removed, ()) = join(removing, closing).await;
        let refused = removed.expect_err("the node stops");
        assert!(refused.to_string().contains("stopping"), "{refused}");
        assert_eq!(inner.pool.state().disks.len(), 3);
        let identity = disk_paths(root.path())[2].join(cairn_shard::IDENTITY_NAME);
        assert!(identity.exists());
        // No other change begins either.
        let drained = inner.pool.drain(&id, true).await;
        assert!(drained.is_err_and(|error| error.to_string().contains("stopping")));
    }

    #[test]
    fn folders_are_used_where_the_configuration_says() {
        let scratch = tempfile::tempdir().expect("a folder");
        let at = |name: &str| scratch.path().join(name);
        for folder in ["roots/one/disk", "elsewhere/disk", "named"] {
            std::fs::create_dir_all(at(folder)).expect("a folder");
        }
        std::os::unix::fs::symlink(at("elsewhere"), at("roots/out")).expect("a link");
        std::os::unix::fs::symlink(at("roots/one"), at("in")).expect("a link");
        std::os::unix::fs::symlink(at("elsewhere/none"), at("roots/dangling")).expect("a link");
        let real = scratch.path().canonicalize().expect("a folder");
        let roots = [at("roots/one"), at("absent"), at("roots")];
        let named = [real.join("named"), real.join("lost")];
        let cases = [
            ("roots/one/disk", Some("roots/one/disk")),
            ("roots/one/new", Some("roots/one/new")),
            ("roots/new", Some("roots/new")),
            ("in/new", Some("roots/one/new")),
            ("elsewhere/../roots/new", Some("roots/new")),
            ("named", Some("named")),
            ("lost", Some("lost")),
            ("roots", None),
            ("named/inside", None),
            ("elsewhere/disk", None),
            ("roots/out/disk", None),
            ("roots/out/new", None),
            ("roots/../elsewhere/new", None),
            ("roots/one/new/deeper", None),
            ("roots/one/new/..", None),
            ("roots-more", None),
        ];
        for (name, want) in cases {
            let found = allowed_place(&at(name), &roots, &named);
            assert_eq!(found.ok(), want.map(|name| real.join(name)), "{name}");
        }
        let relative = allowed_place(Path::new("roots/new"), &roots, &named);
        assert!(relative.is_err_and(|why| why.contains("not an absolute path")));
        let nowhere = allowed_place(&at("roots/new"), &[], &[]);
        assert!(nowhere.is_err_and(|why| why.contains("disk_root = [")));
        // Outside of them a caller learns nothing about files: each refusal shows only the given path.
        for name in [
            "elsewhere/disk",
            "elsewhere/none/deeper",
            "roots-more",
            "roots/../none/x",
        ] {
            let path = at(name);
            let why = allowed_place(&path, &roots, &named).expect_err(name);
            let begins = format!("{} may not be used: it is not below ", path.display());
            assert!(why.starts_with(&begins), "{why}");
        }
        let inside = allowed_place(&at("roots/one/new/deeper"), &roots, &named);
        assert!(inside.is_err_and(|why| why.contains("create that folder")));
        // Nothing is made at the target of a link: mkdir does not follow it.
        let dangling = allowed_place(&at("roots/dangling"), &roots, &named).expect("below a root");
        assert!(std::fs::create_dir(&dangling).is_err());
        assert!(!at("elsewhere/none").exists());
    }

    /// Each attempt took one of the few threads, until there were none for other work.
    #[test]
    fn folders_that_hang_are_few() {
        let work = FolderWork::default();
        let first = work.begin("/a").expect("begins");
        let refused = work.begin("/a").expect_err("it is under way");
        assert!(refused.to_string().contains("/a "), "{refused}");
        let others = ["/b", "/c", "/d"].map(|folder| work.begin(folder).expect("begins"));
        let refused = work.begin("/e").expect_err("there are too many");
        assert!(refused.to_string().contains("/a, /b, /c, /d "), "{refused}");
        drop(first);
        let _fifth = work.begin("/e").expect("one has ended");
        drop(others);
        work.begin("/b").expect("it has ended");
    }
}
