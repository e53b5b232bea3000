//! Answers the admin API about snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::groups::{GroupAsk, GroupDone};
use cairn_admin::snapshots::{
    CloneCreate, GROUP_VOLUMES_MAX, GroupSnapshotCreate, GroupSnapshotView, RestoredView,
    SNAPSHOT_NAME_LEN_BYTES_MAX, ScheduleView, SchedulesSet, SchedulesView, SnapshotControl,
    SnapshotCreate, SnapshotDiffAsk, SnapshotDiffPage, SnapshotList, SnapshotRestore, SnapshotSet,
    SnapshotView, VolumeRestore, VolumeRestoredView, is_snapshot_name,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::VolumeId;
use cairn_config::VolumeName;
use cairn_fs::{Fs, FsError, Snapshot, SnapshotError, SnapshotFailure, take_snapshots};
use cairn_pool::{ChangeFailure, VolumeService};
use cairn_snapshots::{CloneFailure, Diffs, RestoreFailure, ScheduleFailure, Schedules};
use parking_lot::Mutex;

use crate::control::{Controller, no_room, refusal};
use crate::node::NodeCore;
use crate::snapshot_groups::{self, ByOwner, Groups};

/// Maximum number of a snapshot's versions that one reply counts.
const COUNTED_VERSIONS_MAX: u64 = 10_000_000;
/// Interval of the check whether a snapshot is due.
const SCHEDULE_INTERVAL: Duration = Duration::from_secs(5);

/// Takes snapshots of the volumes that are served here when they are due, until the node ends.
pub(crate) fn tend(inner: &Arc<NodeCore>) {
    inner.every(
        "snapshot-schedules",
        SCHEDULE_INTERVAL,
        |inner| async move {
            keep_all(&inner).await;
        },
    );
}

/// What this node does about snapshots of its volumes.
#[derive(Default)]
pub struct SnapshotWork {
    /// Schedules that are not kept.
    pub schedules: ScheduleTroubles,
    /// Snapshots of one instant that are being taken of volumes of several nodes.
    pub groups: Groups,
    /// Lists of changes since a snapshot that are being read.
    pub diffs: Diffs,
}

/// The last faults in the schedules of each volume, so that not each check logs them again.
#[derive(Default)]
pub struct ScheduleTroubles(Mutex<BTreeMap<VolumeId, Vec<String>>>);

impl ScheduleTroubles {
    /// Volumes by name, each with its fault, if there is one.
    pub fn troubles(&self, inner: &NodeCore) -> Vec<(String, Option<String>)> {
        let state = inner.pool.state();
        let of_volumes = self.0.lock();
        let troubles = of_volumes.iter().filter_map(|(id, troubles)| {
            let mut volumes = state.all_volumes();
            let volume = volumes.find(|volume| volume.id == *id)?;
            let trouble = (!troubles.is_empty()).then(|| troubles.join("; "));
            Some((volume.name.to_string(), trouble))
        });
        troubles.collect()
    }
}

async fn keep_all(inner: &NodeCore) {
    let told = &inner.snapshots.schedules;
    let diffs = &inner.snapshots.diffs;
    diffs.end_idle(inner.env.clock.monotonic()).await;
    snapshot_groups::settle(inner).await;
    let services = inner.pool.services_with_clones();
    told.0.lock().retain(|id, _| services.contains_key(id));
    for (id, service) in &services {
        let VolumeService::Serving(fs) = service else {
            continue;
        };
        let volume = fs.name();
        let failed = match cairn_snapshots::keep(fs, inner.env.clock.now()).await {
            Ok(done) => {
                for snapshot in done.taken {
                    tracing::info!(volume, snapshot, "scheduled snapshot taken");
                }
                for snapshot in done.left_by_clones {
                    tracing::info!(
                        volume,
                        snapshot,
                        "deleted a snapshot that an interrupted clone had left"
                    );
                }
                for snapshot in done.deleted {
                    tracing::info!(
                        volume,
                        snapshot,
                        "deleted a snapshot, as its schedule keeps newer ones"
                    );
                }
                if let Some(snapshot) = done.deleted_for_space {
                    tracing::warn!(
                        volume,
                        snapshot,
                        "the pool is short of space: deleted the volume's oldest snapshot, as configured"
                    );
                }
                let failed = done.failed.into_iter();
                let failed = failed.filter(|(_, error)| !is_elsewhere(error));
                failed
                    .map(|(snapshot, error)| format!("snapshot {snapshot}: {error}"))
                    .collect()
            }
            Err(ScheduleFailure::Fs(error)) if is_elsewhere(&error.clone().into()) => Vec::new(),
            Err(error) => vec![error.to_string()],
        };
        if told.0.lock().insert(*id, failed.clone()).as_ref() == Some(&failed) {
            continue;
        }
        for error in failed {
            tracing::warn!(
                volume,
                error,
                "a snapshot schedule fails; the server retries"
            );
        }
    }
}

/// The volume is moving to another node, or is being reopened.
fn is_elsewhere(error: &SnapshotFailure) -> bool {
    matches!(
        error,
        SnapshotFailure::Fs(FsError::Fenced | FsError::TryLater)
            | SnapshotFailure::Refused(SnapshotError::Closed)
    )
}

fn restore_refused(error: RestoreFailure) -> ControlError {
    let message = error.to_string();
    let refuse = |kind| ControlError::new(kind, message);
    match error {
        RestoreFailure::NoSnapshot(_) => {
            refuse(ErrorKind::NotFound).hint("`cairn snapshot list VOLUME` shows all snapshots")
        }
        RestoreFailure::NotThere { .. } => {
            refuse(ErrorKind::NotFound).hint("look in .snapshot/NAME of a mounted directory")
        }
        RestoreFailure::Path(_) => refuse(ErrorKind::Invalid),
        RestoreFailure::Place { .. } => refuse(ErrorKind::Conflict)
            .hint("create the parent directories first, or choose another path with --to"),
        RestoreFailure::DirectoryExists(_) | RestoreFailure::IsDirectory(_) => {
            refuse(ErrorKind::Conflict).hint("choose another path with --to")
        }
        RestoreFailure::Fs { error, .. } => match error {
            FsError::Exists => refuse(ErrorKind::Conflict),
            FsError::NoSpace | FsError::QuotaExceeded => {
                no_room(refuse(ErrorKind::Conflict).message)
            }
            FsError::NameTooLong => refuse(ErrorKind::Invalid),
            FsError::Fenced | FsError::TryLater | FsError::Unreachable(_) => {
                refuse(ErrorKind::Unavailable)
            }
            _ => refuse(ErrorKind::Internal).hint("the server's log has details"),
        },
    }
}

fn clone_refused(from: &str, error: CloneFailure) -> ControlError {
    match error {
        CloneFailure::Snapshot(error) => refused("of a clone", error),
        CloneFailure::Restore(RestoreFailure::NotThere { .. }) => {
            ControlError::new(ErrorKind::NotFound, format!("the volume has no {from}"))
        }
        CloneFailure::Restore(error @ RestoreFailure::Place { .. }) => {
            ControlError::new(ErrorKind::Conflict, error.to_string())
                .hint("create the parent directories first")
        }
        CloneFailure::Restore(
            error @ (RestoreFailure::DirectoryExists(_) | RestoreFailure::IsDirectory(_)),
        ) => ControlError::new(ErrorKind::Conflict, error.to_string())
            .hint("choose an unused path for the clone of a directory"),
        CloneFailure::Restore(error) => restore_refused(error),
    }
}

pub(crate) fn schedules_refused(error: ScheduleFailure) -> ControlError {
    match error {
        ScheduleFailure::Refused(error) => ControlError::new(ErrorKind::Invalid, error.to_string()),
        ScheduleFailure::Fs(
            error @ (FsError::Fenced | FsError::TryLater | FsError::Unreachable(_)),
        ) => ControlError::new(ErrorKind::Unavailable, error.to_string()),
        ScheduleFailure::Fs(error @ (FsError::NoSpace | FsError::QuotaExceeded)) => {
            no_room(error.to_string())
        }
        error => {
            tracing::error!(%error, "snapshot schedules cannot be used");
            ControlError::new(ErrorKind::Internal, error.to_string())
                .hint("`cairn snapshot schedule VOLUME none`, then set them again; the server's log has details")
        }
    }
}

pub(crate) fn refused(name: &str, error: SnapshotFailure) -> ControlError {
    let message = format!("snapshot {name}: {error}");
    match error {
        SnapshotFailure::Refused(SnapshotError::NotFound) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn snapshot list VOLUME` shows all snapshots")
        }
        SnapshotFailure::Refused(SnapshotError::Locked) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("unlock the snapshot first: `cairn snapshot unlock VOLUME NAME`")
        }
        SnapshotFailure::Refused(
            SnapshotError::Exists
            | SnapshotError::TooMany
            | SnapshotError::TooManyClones
            | SnapshotError::SameStore
            | SnapshotError::Restoring,
        ) => ControlError::new(ErrorKind::Conflict, message),
        SnapshotFailure::Refused(SnapshotError::HasClones) => {
            ControlError::new(ErrorKind::Conflict, message).hint(
                "`cairn volume list` shows which volumes are clones; if you just deleted the clone, try again in a moment",
            )
        }
        SnapshotFailure::Refused(SnapshotError::BadName) => {
            ControlError::new(ErrorKind::Invalid, message)
        }
        SnapshotFailure::Refused(SnapshotError::Closed)
        | SnapshotFailure::Fs(FsError::Fenced | FsError::TryLater | FsError::Unreachable(_)) => {
            ControlError::new(ErrorKind::Unavailable, message)
        }
        SnapshotFailure::Fs(FsError::NoSpace | FsError::QuotaExceeded) => {
            no_room(message)
        }
        SnapshotFailure::Fs(_) => {
            tracing::error!(%message, "a change of snapshots failed");
            ControlError::new(ErrorKind::Internal, message).hint("the server's log has details")
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), ControlError> {
    let message = || {
        format!(
            "{name:?} is not a snapshot name: 1 to {SNAPSHOT_NAME_LEN_BYTES_MAX} letters, digits and .-_:+@, not beginning with a dot"
        )
    };
    let bad = || ControlError::new(ErrorKind::Invalid, message());
    is_snapshot_name(name).then_some(()).ok_or_else(bad)
}

fn view_of(
    fs: &Fs,
    snapshot: &Snapshot,
    now_seconds: i64,
    frees: Option<u64>,
    clones: Vec<String>,
) -> SnapshotView {
    let age_seconds = now_seconds.saturating_sub(snapshot.taken.seconds);
    SnapshotView {
        volume: fs.name().to_owned(),
        name: String::from_utf8_lossy(&snapshot.name).into_owned(),
        taken_seconds: snapshot.taken.seconds,
        age_seconds: u64::try_from(age_seconds).unwrap_or(0),
        locked: snapshot.is_locked,
        schedule: (!snapshot.schedule.is_empty())
            .then(|| String::from_utf8_lossy(&snapshot.schedule).into_owned()),
        inodes: snapshot.counts.inodes,
        file_bytes: snapshot.counts.file_bytes,
        frees_bytes: frees,
        clones,
    }
}

impl Controller {
    pub(crate) fn fs_of(&self, name: &VolumeName) -> Result<Fs, ControlError> {
        let state = self.inner.pool.state();
        let volume = state
            .volume(name)
            .map_err(|error| refusal(ChangeFailure::from(error)))?;
        if let Some(VolumeService::Serving(fs)) = self.inner.pool.service(volume.id) {
            return Ok(fs);
        }
        Err(self.not_here(volume.id, name))
    }

    pub(crate) async fn snapshot_view(
        &self,
        fs: &Fs,
        snapshot: &Snapshot,
        with_space: bool,
    ) -> Result<SnapshotView, ControlError> {
        let frees = match with_space {
            true => {
                let holds = fs.snapshot_holds(snapshot.generation, COUNTED_VERSIONS_MAX);
                let name = String::from_utf8_lossy(&snapshot.name);
                let holds = holds.await;
                let holds = holds.map_err(|error| refused(&name, SnapshotFailure::Fs(error)))?;
                Some(holds.stored_bytes)
            }
            false => None,
        };
        let now = self.inner.env.clock.now().seconds;
        let clones = self.inner.pool.clones_of_snapshot(&snapshot.clones);
        Ok(view_of(fs, snapshot, now, frees, clones))
    }

    fn schedules_view(&self, fs: &Fs, schedules: &Schedules) -> SchedulesView {
        let now = self.inner.env.clock.now();
        let snapshots = fs.snapshots();
        let views = schedules.all.iter().map(|schedule| {
            let took = |snapshot: &&Snapshot| snapshot.schedule == schedule.name.as_bytes();
            let of_schedule: Vec<&Snapshot> = snapshots.iter().filter(took).collect();
            ScheduleView {
                name: schedule.name.clone(),
                cron: schedule.cron().to_owned(),
                keep: schedule.keep,
                snapshots: of_schedule.len() as u64,
                newest_seconds: of_schedule.last().map(|newest| newest.taken.seconds),
                next_seconds: schedule.next_due_seconds(now),
            }
        });
        SchedulesView {
            volume: fs.name().to_owned(),
            text: cairn_snapshots::text(&schedules.all),
            schedules: views.collect(),
            autodelete_percent: schedules.autodelete_percent,
        }
    }

    async fn shown(&self, fs: &Fs, name: &str) -> Result<SnapshotView, ControlError> {
        let absent = || refused(name, SnapshotError::NotFound.into());
        let snapshot = fs.snapshot(name.as_bytes()).ok_or_else(absent)?;
        self.snapshot_view(fs, &snapshot, true).await
    }
}

impl SnapshotControl for Controller {
    fn snapshots(&self, volume: VolumeName, with_space: bool) -> Answer<'_, SnapshotList> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let mut snapshots = Vec::new();
            for snapshot in fs.snapshots() {
                snapshots.push(self.snapshot_view(&fs, &snapshot, with_space).await?);
            }
            Ok(SnapshotList {
                snapshots,
                held_bytes: fs.meta().counters().history_bytes,
                freeing: fs.snapshot_freeing().snapshots,
            })
        })
    }

    fn snapshot(&self, volume: VolumeName, name: String) -> Answer<'_, SnapshotView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            self.shown(&fs, &name).await
        })
    }

    fn snapshot_create(
        &self,
        volume: VolumeName,
        create: SnapshotCreate,
    ) -> Answer<'_, SnapshotView> {
        Box::pin(async move {
            check_name(&create.name)?;
            let fs = self.fs_of(&volume)?;
            let taken = fs.take_snapshot(create.name.as_bytes(), b"").await;
            let taken = taken.map_err(|error| refused(&create.name, error))?;
            self.snapshot_view(&fs, &taken, false).await
        })
    }

    fn snapshot_create_group(&self, create: GroupSnapshotCreate) -> Answer<'_, GroupSnapshotView> {
        Box::pin(async move {
            check_name(&create.name)?;
            let count = create.volumes.len();
            let invalid = |message| Err(ControlError::new(ErrorKind::Invalid, message));
            if !(1..=GROUP_VOLUMES_MAX).contains(&count) {
                return invalid(format!(
                    "a group has 1 to {GROUP_VOLUMES_MAX} volumes, not {count}"
                ));
            }
            let volumes = create.volumes.iter().enumerate();
            for (index, volume) in volumes {
                let mut before = create.volumes.iter().take(index);
                if before.any(|before| before == volume) {
                    return invalid(format!("volume {volume} is given twice"));
                }
            }
            let all = match self.by_owner(&create.volumes)? {
                ByOwner::Here(all) => all,
                ByOwner::Of(owners) => return self.take_group(create, owners).await,
            };
            let taken =
                take_snapshots(&all.iter().collect::<Vec<_>>(), create.name.as_bytes(), b"").await;
            let taken = taken.map_err(|(index, error)| {
                let volume = create
                    .volumes
                    .get(index)
                    .map(|name| name.as_str())
                    .unwrap_or("?");
                refused(&format!("{} of volume {volume}", create.name), error)
            })?;
            let mut snapshots = Vec::with_capacity(count);
            for (fs, snapshot) in all.iter().zip(&taken) {
                snapshots.push(self.snapshot_view(fs, snapshot, false).await?);
            }
            Ok(GroupSnapshotView { snapshots })
        })
    }

    fn snapshot_group_step(&self, ask: GroupAsk) -> Answer<'_, GroupDone> {
        Box::pin(async move { self.group_step(ask).await })
    }

    fn snapshot_set(
        &self,
        volume: VolumeName,
        name: String,
        set: SnapshotSet,
    ) -> Answer<'_, SnapshotView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let refuse = |error| refused(&name, error);
            if let Some(locked) = set.locked {
                let locked = fs.lock_snapshot(name.as_bytes(), locked).await;
                locked.map_err(refuse)?;
            }
            let Some(to) = set.name else {
                return self.shown(&fs, &name).await;
            };
            check_name(&to)?;
            let renamed = fs.rename_snapshot(name.as_bytes(), to.as_bytes()).await;
            renamed.map_err(refuse)?;
            self.shown(&fs, &to).await
        })
    }

    fn snapshot_delete(&self, volume: VolumeName, name: String) -> Answer<'_, ()> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let deleted = fs.delete_snapshot(name.as_bytes()).await;
            deleted.map_err(|error| refused(&name, error))
        })
    }

    fn snapshot_restore(
        &self,
        volume: VolumeName,
        name: String,
        restore: SnapshotRestore,
    ) -> Answer<'_, RestoredView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let to = restore.to.as_deref().unwrap_or(&restore.path);
            let restored = cairn_snapshots::restore(&fs, &name, &restore.path, to).await;
            let restored = restored.map_err(restore_refused)?;
            Ok(RestoredView {
                path: to.to_owned(),
                files: restored.files,
                directories: restored.directories,
                bytes: restored.bytes,
            })
        })
    }

    fn volume_restore(
        &self,
        volume: VolumeName,
        name: String,
        restore: VolumeRestore,
    ) -> Answer<'_, VolumeRestoredView> {
        Box::pin(self.restore_whole(volume, name, restore))
    }

    fn snapshot_diff(
        &self,
        volume: VolumeName,
        name: String,
        ask: SnapshotDiffAsk,
    ) -> Answer<'_, SnapshotDiffPage> {
        Box::pin(self.list_changes(volume, name, ask))
    }

    fn clone_path(&self, volume: VolumeName, create: CloneCreate) -> Answer<'_, RestoredView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let CloneCreate { from, to } = create;
            let made = cairn_snapshots::clone(&fs, &from, &to).await;
            let made = made.map_err(|error| clone_refused(&from, error))?;
            Ok(RestoredView {
                path: to,
                files: made.files,
                directories: made.directories,
                bytes: made.bytes,
            })
        })
    }

    fn schedules(&self, volume: VolumeName) -> Answer<'_, SchedulesView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let schedules = cairn_snapshots::schedules(&fs).await;
            Ok(self.schedules_view(&fs, &schedules.map_err(schedules_refused)?))
        })
    }

    fn schedules_set(&self, volume: VolumeName, set: SchedulesSet) -> Answer<'_, SchedulesView> {
        Box::pin(async move {
            let all = set.schedules.as_deref().map(cairn_snapshots::parse);
            let all = all.transpose();
            let all = all.map_err(|error| schedules_refused(error.into()))?;
            let fs = self.fs_of(&volume)?;
            if let Some(percent) = set.autodelete_percent {
                let set = cairn_snapshots::set_autodelete(&fs, percent).await;
                set.map_err(schedules_refused)?;
            }
            let now = self.inner.env.clock.now();
            let schedules = match all {
                Some(all) => cairn_snapshots::set_schedules(&fs, all, now).await,
                None => cairn_snapshots::schedules(&fs).await,
            };
            Ok(self.schedules_view(&fs, &schedules.map_err(schedules_refused)?))
        })
    }
}
