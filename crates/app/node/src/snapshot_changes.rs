//! Answers the admin API about changes since a snapshot, and rolls whole volumes back.

use cairn_admin::ControlError;
use cairn_admin::api::ErrorKind;
use cairn_admin::snapshots::{
    ChangeView, ChangeWhat, SnapshotDiffAsk, SnapshotDiffPage, VolumeRestore, VolumeRestoredView,
};
use cairn_config::VolumeName;
use cairn_fs::{ChangeKind, FileChange, FileKind, FsError};
use cairn_pool::RestoreVolumeFailure;
use cairn_snapshots::DiffFailure;

use crate::control::{Controller, refusal};
use crate::snapshots::{check_name, refused};

/// Changes in a page, by default.
const PAGE_COUNT: u32 = 1000;

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::BlockDevice => "block_device",
        FileKind::CharDevice => "char_device",
    }
}

fn change_view(change: FileChange) -> ChangeView {
    let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
    let mut from = None;
    let mut modified = Vec::new();
    let what = match change.change {
        ChangeKind::Created => ChangeWhat::Created,
        ChangeKind::Deleted => ChangeWhat::Deleted,
        ChangeKind::Renamed { from: path } => {
            from = Some(text(path));
            ChangeWhat::Renamed
        }
        ChangeKind::Modified {
            data,
            attributes,
            replaced,
        } => {
            let all = [
                (data, "data"),
                (attributes, "attributes"),
                (replaced, "replaced"),
            ];
            let told = all.iter().filter(|(is_so, _)| *is_so);
            modified.extend(told.map(|(_, name)| (*name).to_owned()));
            ChangeWhat::Modified
        }
    };
    ChangeView {
        change: what,
        path: change.path.map(text),
        from,
        kind: kind_name(change.kind).to_owned(),
        inode: change.ino.0,
        size_bytes: change.size_bytes,
        size_before_bytes: change.size_before_bytes,
        modified,
    }
}

fn diff_refused(failure: DiffFailure) -> ControlError {
    let message = failure.to_string();
    let refuse = |kind| ControlError::new(kind, message);
    match failure {
        DiffFailure::NoSnapshot(_) => {
            refuse(ErrorKind::NotFound).hint("`cairn snapshot list VOLUME` shows all snapshots")
        }
        DiffFailure::NotLater { .. } => refuse(ErrorKind::Invalid),
        DiffFailure::TooMany => refuse(ErrorKind::Conflict),
        DiffFailure::Gone => refuse(ErrorKind::NotFound),
        DiffFailure::Stale => refuse(ErrorKind::Conflict),
        DiffFailure::Snapshot(error) => refused("of now", error),
        DiffFailure::Fs(FsError::Fenced | FsError::TryLater | FsError::Unreachable(_)) => {
            refuse(ErrorKind::Unavailable)
        }
        DiffFailure::Fs(error) => {
            tracing::error!(%error, "cannot list the changes since a snapshot");
            refuse(ErrorKind::Internal).hint("the server's log has details")
        }
    }
}

fn restore_refused(name: &str, failure: RestoreVolumeFailure) -> ControlError {
    let message = failure.to_string();
    match failure {
        RestoreVolumeFailure::Change(error) => refusal(error),
        RestoreVolumeFailure::NotServed => ControlError::new(ErrorKind::Unavailable, message),
        RestoreVolumeFailure::IsClone => ControlError::new(ErrorKind::Conflict, message)
            .hint("restore single files and directories, or clone the volume again"),
        RestoreVolumeFailure::Snapshot(error) => refused(name, error),
        RestoreVolumeFailure::DoesNotClose | RestoreVolumeFailure::NotOpened(_) => {
            ControlError::new(ErrorKind::Internal, message)
                .hint("`cairn status` shows the problem; the server retries by itself")
        }
    }
}

impl Controller {
    pub(crate) async fn list_changes(
        &self,
        volume: VolumeName,
        name: String,
        ask: SnapshotDiffAsk,
    ) -> Result<SnapshotDiffPage, ControlError> {
        let fs = self.fs_of(&volume)?;
        self.require_own_store(
            &fs,
            "changes since a snapshot of a clone cannot be listed yet",
        )?;
        let max = ask.max.unwrap_or(PAGE_COUNT) as usize;
        let now = self.inner.env.clock.monotonic();
        let diffs = &self.inner.snapshots.diffs;
        let page = match ask.next {
            Some(next) => diffs.next(&fs, &next, max, now).await,
            None => diffs.begin(&fs, &name, ask.to.as_deref(), max, now).await,
        };
        let page = page.map_err(diff_refused)?;
        Ok(SnapshotDiffPage {
            changes: page.changes.into_iter().map(change_view).collect(),
            next: page.next,
        })
    }

    pub(crate) async fn restore_whole(
        &self,
        volume: VolumeName,
        name: String,
        restore: VolumeRestore,
    ) -> Result<VolumeRestoredView, ControlError> {
        if restore.discard && restore.keep.is_some() {
            let message = "the volume's earlier content is either kept or discarded, not both";
            return Err(ControlError::new(ErrorKind::Invalid, message));
        }
        let id = self.fs_of(&volume)?.volume();
        let kept = match (restore.discard, restore.keep) {
            (true, _) => None,
            (false, Some(keep)) => Some(keep),
            (false, None) => Some(cairn_snapshots::kept_name(self.inner.env.clock.now())),
        };
        if let Some(kept) = &kept {
            check_name(kept)?;
        }
        self.inner.snapshots.diffs.end_of(id).await;
        let clock = &self.inner.env.clock;
        let begun = clock.monotonic();
        let keep = kept.as_ref().map(|kept| kept.as_bytes());
        let pool = &self.inner.pool;
        let restored = pool.restore_volume(id, name.as_bytes(), keep).await;
        restored.map_err(|error| restore_refused(&name, error))?;
        let took = clock.monotonic().saturating_sub(begun);
        let fs = self.fs_of(&volume)?;
        let counters = fs.meta().counters();
        Ok(VolumeRestoredView {
            volume: volume.to_string(),
            snapshot: name,
            kept,
            inodes: counters.inodes,
            file_bytes: counters.file_bytes,
            seconds: took.as_secs_f64(),
        })
    }
}
