//! Snapshots, schedules and clones of files: JSON, routes, and what they ask of a node.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, Control, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Parameters, Url, UrlParts, absent, create, delete, endpoints, get, patch,
    post, put, switches, text,
};
use crate::groups::{GroupAsk, GroupDone};
use crate::server::Table;

/// Maximum number of volumes in a consistency group.
pub const GROUP_VOLUMES_MAX: usize = 256;
/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_LEN_BYTES_MAX: usize = 100;

/// Whether users may give a snapshot this name: letters, digits and `.-_:+@`, not beginning with a dot.
pub fn is_snapshot_name(name: &str) -> bool {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || ".-_:+@".contains(letter);
    (1..=SNAPSHOT_NAME_LEN_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.chars().all(is_good)
}

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotView {
    pub volume: String,
    pub name: String,
    /// Seconds since 1970.
    pub taken_seconds: i64,
    pub age_seconds: u64,
    /// Whether it is protected against deletion.
    pub locked: bool,
    /// The schedule that took it; `null` for a manual snapshot.
    pub schedule: Option<String>,
    /// Of the volume when it was taken.
    pub inodes: u64,
    pub file_bytes: u64,
    /// Bytes, before parity, that deleting only this snapshot would free; `null` in lists without `space`.
    pub frees_bytes: Option<u64>,
    /// Clones of it; it cannot be deleted while there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<SnapshotView>,
    /// Total bytes, before parity, that only snapshots hold.
    pub held_bytes: u64,
    /// Deleted snapshots whose space is still being freed.
    pub freeing: u64,
}

/// A snapshot to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub name: String,
}

/// Snapshots of a consistency group to take at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSnapshotCreate {
    /// The volumes, each once. Any node takes the request, and several nodes may own the volumes.
    #[schema(value_type = Vec<String>, example = json!(["data", "log"]), min_items = 1, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volumes: Vec<VolumeName>,
    /// Of each snapshot.
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupSnapshotView {
    /// In the order in which their volumes were given.
    pub snapshots: Vec<SnapshotView>,
}

/// Changes of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSet {
    /// Its new name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
}

/// A file or directory to restore from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRestore {
    /// In the volume, from its root: `/projects/report.odt`.
    #[schema(
        min_length = 1,
        max_length = 4096,
        pattern = r"^(/|(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+)$"
    )]
    pub path: String,
    /// The path to restore to; by default the original path. A restored file replaces an existing file; a restored directory needs an
    /// unused path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 4096,
        pattern = r"^(/|(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+)$"
    )]
    pub to: Option<String>,
}

/// The rollback of a whole volume to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRestore {
    /// Name of the snapshot that keeps the earlier content of the volume; by default `before-restore-` and the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub keep: Option<String>,
    /// Keep no such snapshot: changes since the newest snapshot are lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeRestoredView {
    pub volume: String,
    pub snapshot: String,
    /// The snapshot that keeps the earlier content; left out if it was discarded.
    pub kept: Option<String>,
    /// Files and directories of the volume after the rollback, and bytes in files.
    pub inodes: u64,
    pub file_bytes: u64,
    /// How long clients waited.
    pub seconds: f64,
}

/// A request for changes since a snapshot: the first page or a following one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDiffAsk {
    /// The later snapshot; left out: the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub to: Option<String>,
    /// `next` of the previous page. That page can be requested again until this one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 4096)]
    pub next: Option<String>,
    /// Maximum number of changes in the page; by default 1000, at most 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub max: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDiffPage {
    /// In no order.
    pub changes: Vec<ChangeView>,
    /// Parameter for the next page, valid for five minutes; left out on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeWhat {
    /// A new name, of a new file or of a file with further names.
    Created,
    Deleted,
    /// `from` is the earlier path. Content of a renamed directory is listed only if it changed.
    Renamed,
    Modified,
}

/// The change of one name of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeView {
    pub change: ChangeWhat,
    /// Path in the later snapshot; for deletions, in the earlier one. Left out if no name of the file is known: the file had several
    /// names, and its latest one was removed. Bytes that are not UTF-8 are shown as U+FFFD.
    pub path: Option<String>,
    /// For renames: the earlier path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `block_device` or `char_device`.
    pub kind: String,
    pub inode: u64,
    pub size_bytes: u64,
    /// For modified files: the earlier size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_before_bytes: Option<u64>,
    /// For modified files: `data`, `attributes`, `replaced` (by another file).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modified: Vec<String>,
}

/// A file or directory to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneCreate {
    /// In the volume, from its root: `/projects/report.odt`.
    #[schema(
        min_length = 1,
        max_length = 4096,
        pattern = r"^(/|(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+)$"
    )]
    pub from: String,
    /// The clone's path. A cloned file replaces an existing file; a cloned directory needs an unused path.
    #[schema(
        min_length = 1,
        max_length = 4096,
        pattern = r"^(/|(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+)$"
    )]
    pub to: String,
}

/// The result of a restore or clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoredView {
    pub path: String,
    /// Files, links and other non-directories.
    pub files: u64,
    pub directories: u64,
    /// Bytes of files, which are shared with the source.
    pub bytes: u64,
}

/// Snapshot schedules and automatic deletion of a volume; a field that is left out stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulesSet {
    /// `hourly 24, daily 7, six-hourly 10 (0 */6 * * *)`, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub schedules: Option<String>,
    /// Percentage of free space in the pool below which the oldest snapshots are deleted one by one: 1 to 90; 0 for never. Locked
    /// snapshots are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 90)]
    pub autodelete_percent: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchedulesView {
    pub volume: String,
    /// The schedules as text; empty for none.
    pub text: String,
    pub schedules: Vec<ScheduleView>,
    /// Percentage of free space in the pool below which the oldest snapshots are deleted; 0: never.
    #[serde(default)]
    pub autodelete_percent: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleView {
    pub name: String,
    /// Cron expression, in UTC.
    pub cron: String,
    /// Number of snapshots to keep, and current number; locked snapshots are kept, and do not count.
    pub keep: u32,
    pub snapshots: u64,
    /// Seconds since 1970.
    pub newest_seconds: Option<i64>,
    pub next_seconds: Option<i64>,
}

/// What a node does with snapshots.
pub trait SnapshotControl: Send + Sync {
    /// With what each would free if `with_space`.
    fn snapshots(&self, volume: VolumeName, with_space: bool) -> Answer<'_, SnapshotList>;
    fn snapshot(&self, volume: VolumeName, name: String) -> Answer<'_, SnapshotView>;
    fn snapshot_create(
        &self,
        volume: VolumeName,
        create: SnapshotCreate,
    ) -> Answer<'_, SnapshotView>;
    /// The volumes may be of several nodes, whichever is asked.
    fn snapshot_create_group(&self, create: GroupSnapshotCreate) -> Answer<'_, GroupSnapshotView>;
    /// A step of such a group, for the node that was asked.
    fn snapshot_group_step(&self, ask: GroupAsk) -> Answer<'_, GroupDone>;
    fn snapshot_set(
        &self,
        volume: VolumeName,
        name: String,
        set: SnapshotSet,
    ) -> Answer<'_, SnapshotView>;
    fn snapshot_delete(&self, volume: VolumeName, name: String) -> Answer<'_, ()>;
    fn snapshot_restore(
        &self,
        volume: VolumeName,
        name: String,
        restore: SnapshotRestore,
    ) -> Answer<'_, RestoredView>;
    fn volume_restore(
        &self,
        volume: VolumeName,
        name: String,
        restore: VolumeRestore,
    ) -> Answer<'_, VolumeRestoredView>;
    /// What changed since the snapshot `name`, page by page.
    fn snapshot_diff(
        &self,
        volume: VolumeName,
        name: String,
        ask: SnapshotDiffAsk,
    ) -> Answer<'_, SnapshotDiffPage>;
    fn clone_path(&self, volume: VolumeName, create: CloneCreate) -> Answer<'_, RestoredView>;
    fn schedules(&self, volume: VolumeName) -> Answer<'_, SchedulesView>;
    fn schedules_set(&self, volume: VolumeName, set: SchedulesSet) -> Answer<'_, SchedulesView>;
}

endpoints! {
    /// Lists the snapshots of a volume, oldest first; with `space=true`, with the space that deleting each one alone would free.
    SNAPSHOT_LIST: Endpoint<(VolumeName, Space), (), SnapshotList> = get("/api/v1/volumes/{name}/snapshots").list("snapshots", &["name"]).ordered("taken_seconds");

    /// Takes a snapshot of a volume. The snapshot is visible and durable once this answers.
    SNAPSHOT_CREATE: Endpoint<VolumeName, SnapshotCreate, SnapshotView> = create("/api/v1/volumes/{name}/snapshots");

    /// Takes snapshots of a consistency group of volumes at one instant: all or none. They are visible and durable once this answers.
    SNAPSHOT_CREATE_GROUP: Endpoint<(), GroupSnapshotCreate, GroupSnapshotView> = create("/api/v1/snapshots");

    /// Shows a snapshot, with the space that deleting only it would free.
    SNAPSHOT_SHOW: Endpoint<(VolumeName, SnapshotName), (), SnapshotView> = get("/api/v1/volumes/{name}/snapshots/{snapshot}");

    /// Renames a snapshot, locks it, or unlocks it.
    SNAPSHOT_SET: Endpoint<(VolumeName, SnapshotName), SnapshotSet, SnapshotView> = patch("/api/v1/volumes/{name}/snapshots/{snapshot}");

    /// Deletes a snapshot. It is invisible once this answers; its space is freed in the background.
    SNAPSHOT_DELETE: Endpoint<(VolumeName, SnapshotName), (), ()> = delete("/api/v1/volumes/{name}/snapshots/{snapshot}");

    /// Shows the snapshot schedules of a volume.
    SCHEDULES: Endpoint<VolumeName, (), SchedulesView> = get("/api/v1/volumes/{name}/schedules");

    /// Sets all snapshot schedules of a volume. Snapshots of earlier schedules stay.
    SCHEDULES_SET: Endpoint<VolumeName, SchedulesSet, SchedulesView> = put("/api/v1/volumes/{name}/schedules");

    /// Restores a file or directory from a snapshot. A file is complete and durable once this answers; a directory is restored entry
    /// by entry.
    SNAPSHOT_RESTORE: Endpoint<(VolumeName, SnapshotName), SnapshotRestore, RestoredView> = post("/api/v1/volumes/{name}/snapshots/{snapshot}/restore");

    /// Rolls a whole volume back to a snapshot. Clients wait until all later changes are undone. Another snapshot keeps the earlier
    /// content of the volume, unless `discard` is set.
    VOLUME_RESTORE: Endpoint<(VolumeName, SnapshotName), VolumeRestore, VolumeRestoredView> = post("/api/v1/volumes/{name}/snapshots/{snapshot}/restore-volume");

    /// Lists changes from a snapshot to a later one, or to now: created, deleted and renamed names, and modified files. The cost grows
    /// with the number of changes. Each page has the parameter for the next page.
    SNAPSHOT_DIFF: Endpoint<(VolumeName, SnapshotName), SnapshotDiffAsk, SnapshotDiffPage> = post("/api/v1/volumes/{name}/snapshots/{snapshot}/diff");

    /// Clones a file or directory at one instant; source and clone share their data. A file is complete and durable once this answers;
    /// a directory is cloned entry by entry.
    CLONE_CREATE: Endpoint<VolumeName, CloneCreate, RestoredView> = create("/api/v1/volumes/{name}/clones");

}

/// A snapshot of a volume, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName(pub String);

impl Argument for SnapshotName {
    fn describe(to: &mut Parameters) {
        to.in_path(text(1, 100).pattern(Some("^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")));
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        from.in_path(|| absent("no snapshot has the name in the path"))
            .map(Self)
    }

    /// A name that none can have is not put into a path.
    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        if !is_snapshot_name(&self.0) {
            return Err(ErrorDetail {
                kind: ErrorKind::NotFound,
                message: format!("there is no snapshot {:?}", self.0),
                hint: None,
            });
        }
        to.fill(&self.0);
        Ok(())
    }
}

switches! {
    /// Also say how much space each snapshot alone holds.
    Space = "space";
}

pub(crate) fn control(
    node: &dyn Control,
) -> Result<&(dyn SnapshotControl + 'static), ControlError> {
    node.snapshots()
        .ok_or_else(|| absent("this server has no snapshots"))
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn SnapshotControl>(control)
        .on(SNAPSHOT_LIST, |node, (volume, Space(space)), ()| {
            node.snapshots(volume, space)
        })
        .on(SNAPSHOT_CREATE, |node, volume, create| {
            node.snapshot_create(volume, create)
        })
        .on(SNAPSHOT_CREATE_GROUP, |node, (), create| {
            node.snapshot_create_group(create)
        })
        .on(SNAPSHOT_SHOW, |node, (volume, SnapshotName(name)), ()| {
            node.snapshot(volume, name)
        })
        .on(SNAPSHOT_SET, |node, (volume, SnapshotName(name)), set| {
            node.snapshot_set(volume, name, set)
        })
        .on(SNAPSHOT_DELETE, |node, (volume, SnapshotName(name)), ()| {
            node.snapshot_delete(volume, name)
        })
        .on(
            SNAPSHOT_RESTORE,
            |node, (volume, SnapshotName(name)), restore| {
                node.snapshot_restore(volume, name, restore)
            },
        )
        .on(
            VOLUME_RESTORE,
            |node, (volume, SnapshotName(name)), restore| {
                node.volume_restore(volume, name, restore)
            },
        )
        // To its end also if nobody waits for it any more: the page is asked for again then.
        .on(SNAPSHOT_DIFF, |node, (volume, SnapshotName(name)), ask| {
            node.snapshot_diff(volume, name, ask)
        })
        .on(CLONE_CREATE, |node, volume, create| {
            node.clone_path(volume, create)
        })
        .on(SCHEDULES, |node, volume, ()| node.schedules(volume))
        .on(SCHEDULES_SET, |node, volume, set| {
            node.schedules_set(volume, set)
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots() {
        let long = "a".repeat(SNAPSHOT_NAME_LEN_BYTES_MAX + 1);
        for name in ["", ".", "..", ".a", "a/b", "a b", "ä", "a%2f", &long] {
            assert!(!is_snapshot_name(name), "{name}");
        }
        for name in [
            "a",
            "before-upgrade",
            "2026-01-01T00:00:00+01:00",
            "a.b_c@d",
        ] {
            assert!(is_snapshot_name(name), "{name}");
        }
    }
}
