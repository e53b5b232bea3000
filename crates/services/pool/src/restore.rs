//! A whole volume that becomes what a snapshot of it shows.
//!
//! Owns: that it is closed for that, and opened again whatever comes of it. Must not know: what is done to it (`fs`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_fs::{FsError, SnapshotError, SnapshotFailure};
use cairn_meta::MetaStore;

use crate::pool::{ChangeFailure, Pool, VolumeService};

/// Why a volume is not served meanwhile, as users read it.
const RESTORING: &str = "it is being restored from a snapshot";
/// Who still works with the closed volume is done in so long; it is looked so often.
const HANDLES_WAIT_MAX: Duration = Duration::from_secs(30);
const HANDLES_LOOK_PAUSE: Duration = Duration::from_millis(10);

/// While it is there nobody else opens the volume.
struct Restoring<'a>(&'a Pool, VolumeId);

impl<'a> Restoring<'a> {
    fn begin(pool: &'a Pool, id: VolumeId) -> Self {
        pool.restoring.lock().insert(id);
        Self(pool, id)
    }
}

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.0.restoring.lock().remove(&self.1);
    }
}

/// Why a volume is not restored, or not served since.
#[derive(Debug, thiserror::Error)]
pub enum RestoreVolumeFailure {
    #[error(transparent)]
    Change(#[from] ChangeFailure),
    #[error("this node does not serve the volume now")]
    NotServed,
    #[error("the volume is a clone, and cannot be restored in place")]
    IsClone,
    /// It is as it was.
    #[error(transparent)]
    Snapshot(#[from] SnapshotFailure),
    #[error(
        "the volume does not close, because a disk does not answer or its log finds no space; check its content once it is served again"
    )]
    DoesNotClose,
    /// It is restored when it can be opened.
    #[error("{0}; it is restored as soon as it can be opened")]
    NotOpened(String),
}

impl Pool {
    /// Closes a volume and opens it again as a snapshot shows it; what it was is kept as a snapshot named `keep`, if that is
    /// given. Clients wait meanwhile: they are told to try again later.
    pub async fn restore_volume(
        &self,
        id: VolumeId,
        snapshot: &[u8],
        keep: Option<&[u8]>,
    ) -> Result<(), RestoreVolumeFailure> {
        let _changes = self.begin_change().await?;
        let Some(VolumeService::Serving(fs)) = self.service(id) else {
            return Err(RestoreVolumeFailure::NotServed);
        };
        // What can be refused is before anybody has to wait.
        if fs.read_only().is_some() {
            return Err(SnapshotFailure::from(FsError::NoSpace).into());
        }
        if !fs.branch().is_main() {
            return Err(RestoreVolumeFailure::IsClone);
        }
        if fs.has_clones() {
            return Err(SnapshotFailure::from(SnapshotError::HasClones).into());
        }
        let found = fs.snapshot(snapshot).ok_or(SnapshotError::NotFound);
        let generation = found.map_err(SnapshotFailure::from)?.generation;
        if keep.is_some_and(|name| fs.snapshot(name).is_some()) {
            return Err(SnapshotFailure::from(SnapshotError::Exists).into());
        }
        let name = fs.name().to_owned();
        tracing::info!(volume = name, snapshot = %snapshot.escape_ascii(), "closing the volume to restore it");
        let closed = self.while_it_works(&fs, fs.close_to_restore(generation, keep));
        let decided = match closed.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                tracing::warn!(volume = name, %error, "the volume could not be restored");
                Err(error.into())
            }
            None => {
                fs.abandon();
                self.wait_until_idle().await;
                Err(RestoreVolumeFailure::DoesNotClose)
            }
        };
        // Nobody gets it any more, and nobody else opens it.
        let _restoring = Restoring::begin(self, id);
        let why = VolumeService::Failed(RESTORING.to_owned());
        self.set_service(id, Some(why));
        self.publish();
        let store = Arc::downgrade(fs.meta());
        drop(fs);
        self.wait_until_dropped(&name, &store).await;
        let opened = self.open_restored(id).await;
        decided?;
        opened.map_err(RestoreVolumeFailure::NotOpened)
    }

    /// Waits while a volume is closed and opened again to be restored; says whether it was.
    pub(crate) async fn wait_until_restored(&self, id: VolumeId) -> bool {
        let mut has_waited = false;
        while self.restoring.lock().contains(&id) {
            has_waited = true;
            self.env.clock.sleep(HANDLES_LOOK_PAUSE).await;
        }
        has_waited
    }

    /// The state on a disk is open as long as anybody has the volume as it was, and can be opened once at a time.
    async fn wait_until_dropped(&self, name: &str, store: &Weak<MetaStore>) {
        let since = self.env.clock.monotonic();
        while store.strong_count() > 0 {
            if self.env.clock.monotonic().saturating_sub(since) > HANDLES_WAIT_MAX {
                tracing::warn!(
                    volume = name,
                    "the closed volume is still in use; the server opens it anyway, and retries if that fails"
                );
                return;
            }
            self.env.clock.sleep(HANDLES_LOOK_PAUSE).await;
        }
    }

    async fn open_restored(&self, id: VolumeId) -> Result<(), String> {
        let pool = self.state();
        let Some(volume) = pool.volumes.iter().find(|volume| volume.id == id) else {
            return Ok(());
        };
        let disks = self.all_meta_disks(Some(id));
        let opened = self
            .open_volume(volume, pool.volumes.len(), disks, Vec::new())
            .await;
        let (service, result) = match opened {
            Ok(fs) => (VolumeService::Serving(fs), Ok(())),
            Err(why) => {
                tracing::error!(volume = %volume.name, %why, "this volume is not served; the server retries");
                (VolumeService::Failed(why.clone()), Err(why))
            }
        };
        self.set_service(id, Some(service));
        self.follow_listed(volume).await;
        self.publish();
        result
    }
}
