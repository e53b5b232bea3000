//! The JSON of snapshots, and what the API asks of a node for them.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::groups::{GroupAsk, GroupDone};

/// Most volumes of which snapshots are taken at one instant.
pub const GROUP_VOLUMES_MAX: usize = 256;
/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_LEN_BYTES_MAX: usize = 100;

/// Whether people may give a snapshot this name: letters, digits and `.-_:+@`, not beginning with a dot.
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
    /// It cannot be deleted.
    pub locked: bool,
    /// The schedule that took it; `null` for one that was taken by hand.
    pub schedule: Option<String>,
    /// Of the volume when it was taken.
    pub inodes: u64,
    pub file_bytes: u64,
    /// What deleting it alone would free, before parity; `null` in lists that do not ask for it.
    pub frees_bytes: Option<u64>,
    /// Volumes that began from it; it cannot be deleted as long as there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<SnapshotView>,
    /// Bytes, before parity, that snapshots alone hold, together.
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

/// Snapshots of several volumes to take at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSnapshotCreate {
    /// Each once; any node is asked, and several may own them.
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

/// What to change of a snapshot.
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

/// What to make anew from a snapshot.
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
    /// Where it comes; the same path if it is left out. A file takes the place of one that is there; a directory comes where
    /// nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 4096,
        pattern = r"^(/|(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+)$"
    )]
    pub to: Option<String>,
}

/// A whole volume that is to become what a snapshot shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRestore {
    /// The name of the snapshot that keeps what the volume was; `before-restore-` and the time if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub keep: Option<String>,
    /// What the volume was since the newest snapshot is gone, then: no snapshot keeps it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeRestoredView {
    pub volume: String,
    pub snapshot: String,
    /// The snapshot that has what the volume was; none if that was not wanted.
    pub kept: Option<String>,
    /// Files and directories that the volume has now, and bytes in files.
    pub inodes: u64,
    pub file_bytes: u64,
    /// How long the volume was not served.
    pub seconds: f64,
}

/// Asks what changed since a snapshot: for the first page, or for the one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDiffAsk {
    /// A later snapshot; what changed up to now if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub to: Option<String>,
    /// Of the page before this one. That page is given again until this one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 4096)]
    pub next: Option<String>,
    /// Most changes in the page; 1000 if it is left out, at most 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub max: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDiffPage {
    /// In no order.
    pub changes: Vec<ChangeView>,
    /// What to ask with for more, within five minutes; there is no more if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeWhat {
    /// A name that was not there, of a new file or of one that has others.
    Created,
    Deleted,
    /// `from` is where it was. What is in a directory that was renamed is not told for that.
    Renamed,
    Modified,
}

/// What became of one name of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeView {
    pub change: ChangeWhat,
    /// In the later snapshot; of what was deleted, in the earlier one. Absent if none of the file's names is known: it had
    /// several, and the last one that it got is gone. Bytes that are no UTF-8 are shown as U+FFFD.
    pub path: Option<String>,
    /// Of what was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `block_device` or `char_device`.
    pub kind: String,
    pub inode: u64,
    pub size_bytes: u64,
    /// Of what was modified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_before_bytes: Option<u64>,
    /// Of what was modified: `data`, `attributes`, `replaced` (by another file).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modified: Vec<String>,
}

/// A file or directory that is to begin as another is now.
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
    /// Where the clone comes. A file takes the place of one that is there; a directory comes where nothing is.
    #[schema(
        min_length = 1,
        max_length = 4096,
        pattern = r"^(/|(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+)$"
    )]
    pub to: String,
}

/// What was made anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoredView {
    pub path: String,
    /// Files, links and such.
    pub files: u64,
    pub directories: u64,
    /// Of files: they are shared with what they were made from.
    pub bytes: u64,
}

/// When snapshots of a volume come and go by themselves; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulesSet {
    /// `hourly 24, daily 7, six-hourly 10 (0 */6 * * *)`, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub schedules: Option<String>,
    /// With less of the pool free the oldest snapshot is deleted, one after the other: 1 to 90; 0 for never. Locked ones stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 90)]
    pub autodelete_percent: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchedulesView {
    pub volume: String,
    /// As it is set: empty for none.
    pub text: String,
    pub schedules: Vec<ScheduleView>,
    /// With less of the pool free the oldest snapshot is deleted; 0: none is deleted for that.
    #[serde(default)]
    pub autodelete_percent: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleView {
    pub name: String,
    /// When its snapshots are due, in the form of cron, in UTC.
    pub cron: String,
    /// So many of its snapshots stay, and so many there are; locked ones are not deleted, and do not count.
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
