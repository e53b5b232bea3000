//! The folders with volumes' metadata, as files of the host.
//!
//! Owns: which volumes have such a folder on a disk, deleting it. Must not know: which volumes are to be deleted
//! (`cairn_pool`), the contents of the folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use futures_util::future::{Either, select};

/// Volumes with a folder on a disk; `None` if the disk does not answer within `time_max`. Goes past the disk, so that
/// a hang does not count as the disk's.
pub async fn volumes_on(
    env: &Env,
    disk: Arc<dyn Disk>,
    time_max: Duration,
) -> Option<Vec<VolumeId>> {
    let looking = tokio::task::spawn_blocking(move || meta_folders(&disk));
    match select(looking, env.clock.sleep(time_max)).await {
        Either::Left((folders, _)) => {
            let folders = folders.unwrap_or_default().into_iter();
            Some(folders.map(|(id, _)| id).collect())
        }
        Either::Right(_) => None,
    }
}

/// Deletes the metadata of a volume on these disks. Waits for up to `time_max`; then the deletion goes on in the
/// background.
pub async fn remove_metadata(
    env: Env,
    disks: Vec<Arc<dyn Disk>>,
    id: VolumeId,
    time_max: Duration,
) {
    let runtime = tokio::runtime::Handle::current();
    let removing = tokio::task::spawn_blocking(move || {
        for disk in &disks {
            let folders = meta_folders(disk).into_iter();
            for (_, folder) in folders.filter(|(there, _)| *there == id) {
                runtime.block_on(remove_log(disk, &folder));
                if let Err(error) = std::fs::remove_dir_all(&folder) {
                    tracing::warn!(folder = %folder.display(), %error, "the folder remains until the next start");
                }
            }
        }
    });
    // An unresponsive disk may never end it.
    match select(removing, env.clock.sleep(time_max)).await {
        Either::Left((Ok(()), _)) => {}
        Either::Left((Err(error), _)) => {
            tracing::error!(%id, %error, "the removal of metadata was interrupted");
        }
        Either::Right(_) => {
            tracing::warn!(%id, "the removal of metadata takes long, and continues in the background");
        }
    }
}

/// The folders with the metadata of volumes on a disk that is a folder itself.
fn meta_folders(disk: &Arc<dyn Disk>) -> Vec<(VolumeId, PathBuf)> {
    let Some(root) = disk.folder() else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir(root.join("volumes")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let name = entry.file_name();
            let id = VolumeId(u32::from_str_radix(name.to_str()?, 16).ok()?);
            Some((id, entry.path()))
        })
        .collect()
}

/// Deletes the files of a volume's log through the disk, as they were made: with a `disk_size_limit`, a deletion past
/// the disk would leave them counted as used. Files that stay after an error are deleted with the folder.
async fn remove_log(disk: &Arc<dyn Disk>, folder: &Path) {
    let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
        return;
    };
    let folder = format!("volumes/{name}");
    for file in disk.list(&folder).await.unwrap_or_default() {
        let _ = disk.remove(&format!("{folder}/{file}")).await;
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::env::{BoxFuture, Spawner};
    use cairn_base::real;
    use cairn_formats::pool_file::PoolState;
    use parking_lot::Mutex;
    use tokio::runtime::Handle;

    use super::*;
    use crate::node::NodeCore;
    use crate::node::tests::{disk_paths, start};
    use cairn_pool::truth;

    /// Delays the tasks that delete removed volumes.
    struct Later {
        now: Arc<dyn Spawner>,
        kept: Mutex<Vec<BoxFuture<()>>>,
    }

    impl Spawner for Later {
        fn spawn(&self, name: &'static str, task: BoxFuture<()>) {
            match name {
                "deleted volumes" => self.kept.lock().push(task),
                name => self.now.spawn(name, task),
            }
        }

        fn spawn_thread(&self, name: &'static str, task: BoxFuture<()>) {
            self.now.spawn_thread(name, task);
        }

        fn has_threads(&self) -> bool {
            self.now.has_threads()
        }
    }

    /// Starts a node. Returns the number of served volumes before deleted ones are looked for, which is done then.
    async fn start_and_clean(root: &Path) -> (Arc<NodeCore>, usize) {
        let mut env = real::env(Handle::current());
        let later = Arc::new(Later {
            now: Arc::clone(&env.spawner),
            kept: Mutex::default(),
        });
        env.spawner = Arc::clone(&later) as Arc<dyn Spawner>;
        let inner = start(root, env).await;
        let served = inner.pool.serving_all().len();
        let kept = std::mem::take(&mut *later.kept.lock());
        assert_eq!(kept.len(), 1);
        futures_util::future::join_all(kept).await;
        (inner, served)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn leftovers_go_while_volumes_are_served_and_only_if_no_pool_file_may_list_them() {
        let root = tempfile::tempdir().unwrap();
        let inner = start(root.path(), real::env(Handle::current())).await;
        let mut state = PoolState::clone(&inner.pool.state());
        let id = state.take_volume_id();
        let mut tried = inner.pool.begin_change().await.unwrap();
        inner.pool.save(&mut tried, &mut state).await.unwrap();
        drop(tried);
        inner.close_volumes().await;
        drop(inner);
        let disks = disk_paths(root.path());
        let folder = disks[0].join(format!("volumes/{:08x}", id.0));
        std::fs::create_dir(&folder).unwrap();

        std::fs::write(disks[2].join(truth::POOL_NAME), "damaged").unwrap();
        let (inner, served) = start_and_clean(root.path()).await;
        assert_eq!(inner.pool.disks().len(), 3);
        assert_eq!(served, 1);
        assert!(folder.exists(), "the damaged pool file may list it");
        inner.pool.renew().await;
        inner.close_volumes().await;
        drop(inner);

        let (inner, served) = start_and_clean(root.path()).await;
        assert_eq!(served, 1);
        assert!(!folder.exists(), "no pool file lists it");
        inner.close_volumes().await;
    }
}
