//! Deleting the files of volumes: of one that goes, and of those that are no more.
//!
//! Owns: which volumes' files may be deleted, their shards, logs and folders.
//! Must not know: how a volume is served.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use futures_util::future::{Either, select};

use crate::node::Inner;
use cairn_formats::pool_file::PoolState;

/// How often work that may take very long looks whether the node stops.
const STOP_LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Inner {
    /// Starts to delete what deleted or half-made volumes left; ends with the node. It may take very long, and no volume
    /// waits for it: their ids are never given again. `state`: that of the start, so that volumes which come and go
    /// meanwhile are none of these.
    pub(crate) fn remove_deleted_volumes_later(self: &Arc<Self>, state: Arc<PoolState>) {
        let inner = Arc::clone(self);
        let task = async move {
            let stopping = async {
                while !inner.pool.is_stopping() {
                    inner.env.clock.sleep(STOP_LOOK_INTERVAL).await;
                }
            };
            // What is left then the next start removes.
            select(pin!(inner.remove_deleted_volumes(&state)), pin!(stopping)).await;
        };
        self.env.spawner.spawn("deleted volumes", Box::pin(task));
    }

    /// Deletes what deleted or half-made volumes left.
    ///
    /// Only ids that this pool file gave are looked at: volumes that it does not know yet may be
    /// there if it is an old copy, and those must not be touched. Nor is anything of which another disk, that was not
    /// there at the start or had no readable pool file, may say that it is a volume.
    async fn remove_deleted_volumes(&self, state: &PoolState) {
        let mut deleted = BTreeSet::new();
        for disk in self.pool.disks() {
            match disk.volumes().await {
                Ok(volumes) => deleted.extend(volumes),
                Err(error) => tracing::warn!(%error, "looking for deleted volumes failed"),
            }
            let at = Arc::clone(disk.disk());
            let looking = tokio::task::spawn_blocking(move || meta_folders(&at));
            // Past the disk, so that nobody else notices if it hangs.
            match select(looking, self.env.clock.sleep(self.config.hang_after)).await {
                Either::Left((folders, _)) => {
                    deleted.extend(folders.unwrap_or_default().into_iter().map(|(id, _)| id));
                }
                Either::Right(_) => {
                    tracing::warn!(
                        disk = disk.label(),
                        "looking for deleted volumes: no answer"
                    );
                }
            }
        }
        for id in deleted {
            let known = state.volumes.iter().any(|volume| volume.id == id);
            if known || id >= state.volume_next {
                continue;
            }
            if !self.pool.is_whole && !state.deleted.iter().any(|deleted| deleted.id == id) {
                tracing::warn!(%id, "no pool file here lists a volume with this id; its files stay until a start with all disks and their pool files");
                continue;
            }
            tracing::info!(%id, "removing what is left of a deleted volume");
            self.pool.remove_files(id).await;
        }
    }
}

/// Deletes the metadata of a volume on these disks; waits for it for `time_max`, and it goes on by itself then.
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
                    tracing::warn!(folder = %folder.display(), %error, "the folder stays until the next start");
                }
            }
        }
    });
    // One that hangs may never end it.
    match select(removing, env.clock.sleep(time_max)).await {
        Either::Left((Ok(()), _)) => {}
        Either::Left((Err(error), _)) => {
            tracing::error!(%id, %error, "removing metadata broke off");
        }
        Either::Right(_) => {
            tracing::warn!(%id, "removing metadata takes long, and goes on by itself");
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

/// Deletes the files of a volume's log through the disk, as they were made: below a `disk_size_limit` what is deleted
/// past it counts as used. What stays after an error goes with the folder.
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
    use parking_lot::Mutex;
    use tokio::runtime::Handle;

    use super::*;
    use crate::node::tests::{disk_paths, start};
    use cairn_pool::truth;

    /// Keeps back what removes deleted.
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

    /// Starts a node and says how many volumes are served before deleted are looked for, which is done then.
    async fn start_and_clean(root: &Path) -> (Arc<Inner>, usize) {
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
