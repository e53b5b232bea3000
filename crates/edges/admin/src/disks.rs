//! Disks of the pool: JSON, routes, and what they ask of a node.

use cairn_config::MediaChoice;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Force, Parameters, Url, UrlParts, act, create, delete, endpoints, get,
    patch, text, texts_in_path,
};
use crate::server::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    Ok,
    /// Operations get no answer, now or a moment ago. The disk gets no new data if other disks are enough, and counts as lost.
    Unresponsive,
    /// Writes fail, now or a moment ago, as on a read-only file system. The disk counts as lost; its data is still read.
    Failing,
    /// The disk works again and receives the writes that it missed. It counts as lost until it has them.
    Returning,
    /// The disk was not found at the start.
    Missing,
    /// The disk is out of use: it failed too often, hung, or was too slow.
    Failed,
    /// Its data is being moved to other disks, so that it can be removed.
    Draining,
    /// The disk is empty, and can be removed.
    Drained,
}

impl DiskState {
    /// Whether protection counts the disk as lost.
    pub fn is_lost(self) -> bool {
        match self {
            Self::Ok | Self::Draining | Self::Drained => false,
            Self::Unresponsive | Self::Failing | Self::Returning | Self::Missing | Self::Failed => {
                true
            }
        }
    }
}

impl std::fmt::Display for DiskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unresponsive => "UNRESPONSIVE",
            Self::Failing => "FAILING",
            Self::Returning => "returning",
            Self::Missing => "MISSING",
            Self::Failed => "FAILED",
            Self::Draining => "draining",
            Self::Drained => "drained",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskView {
    pub id: String,
    /// Its folder.
    pub label: String,
    pub role: DiskRole,
    /// Device class: hdd, ssd or nvme; any if none is set.
    #[schema(value_type = String, example = "nvme")]
    #[serde(default)]
    pub media: MediaChoice,
    pub state: DiskState,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub full_errors: u64,
    pub checksum_errors: u64,
    /// Shards of all volumes on it.
    pub shards: u64,
    /// Volumes of this server whose log is written to it.
    pub logs: u64,
    /// Volumes of this server whose metadata state is in use on it.
    pub states: u64,
    /// The problem of the disk, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The role of a disk in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskRole {
    /// Data; also metadata if the pool has too few log devices.
    #[default]
    Data,
    /// Log device: only logs and metadata of volumes, for a disk that is faster than the others.
    Journal,
}

impl std::fmt::Display for DiskRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Journal => "journal",
        })
    }
}

/// A disk to add: an empty folder, by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskAdd {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    #[serde(default)]
    pub role: DiskRole,
    /// Device class: hdd, ssd, nvme, or any for none.
    #[schema(value_type = String, example = "nvme", pattern = "^(any|hdd|ssd|nvme)$")]
    #[serde(default)]
    pub media: MediaChoice,
    /// Accept a folder that was a Cairn disk, and delete its content.
    #[serde(default)]
    pub wipe: bool,
    /// Create the folder if it does not exist. Its parent folder must exist.
    #[serde(default)]
    pub create: bool,
}

/// The device of a folder on the server, for a check before the folder becomes a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskPlace {
    /// The path, with links resolved.
    pub path: String,
    /// Whether the folder exists. If not, the other fields describe its parent folder.
    pub exists: bool,
    /// The mounted device: "/dev/sdb1".
    pub device: String,
    /// The type of the file system: "xfs".
    pub file_system: String,
    /// The mount point; "/" is the root file system of the machine.
    pub mount_point: String,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Disks of this server on the same drive, which are lost together.
    pub shares_with: Vec<String>,
}

/// The replacement of a disk, with the same role and device class: an empty folder, by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskReplace {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    /// Accept a folder that was a Cairn disk, and delete its content.
    #[serde(default)]
    pub wipe: bool,
    /// Create the folder if it does not exist. Its parent folder must exist.
    #[serde(default)]
    pub create: bool,
}

/// Changes of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// Drain the disk, or cancel its drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// Device class: hdd, ssd, nvme, or any for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "nvme", pattern = "^(any|hdd|ssd|nvme)$")]
    pub media: Option<MediaChoice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    pub disks: Vec<DiskView>,
}

endpoints! {
    /// Lists the disks of the pool.
    DISK_LIST: Endpoint<(), (), DiskList> = get("/api/v1/disks").list("disks", &["label", "id"]);

    /// Shows the device of a folder on the server, for a check before the folder becomes a disk. Creates nothing.
    DISK_PLACE: Endpoint<PlacePath, (), DiskPlace> = get("/api/v1/disk-place");

    /// Adds an empty folder on the server to the pool, as a new disk.
    DISK_ADD: Endpoint<(), DiskAdd, DiskView> = create("/api/v1/disks");

    /// Starts or cancels the drain of a disk, or sets its device class. `disk` is its id, or the beginning of its id.
    DISK_SET: Endpoint<DiskName, DiskChange, DiskView> = patch("/api/v1/disks/{disk}");

    /// Removes a disk from the pool. A disk with data is removed only with `force=true`, and only if that data can be rebuilt from
    /// the other disks.
    DISK_REMOVE: Endpoint<(DiskName, Force), (), ()> = delete("/api/v1/disks/{disk}");

    /// Replaces a present or lost disk by a new one; the old disk leaves the pool once all its data is on other disks.
    DISK_REPLACE: Endpoint<DiskName, DiskReplace, DiskView> = create("/api/v1/disks/{disk}/replace");

    /// Takes a failed disk back without a restart, if reads and writes work again. The disk gets the writes that it missed, and counts
    /// once it has them. In a cluster any node takes the request; the disk's node must be up.
    DISK_RETRY: Endpoint<DiskName, (), DiskView> = act("/api/v1/disks/{disk}/retry");

}

texts_in_path! {
    /// A disk, by its id, or by as much of the beginning of that as is its alone.
    DiskName, text(1, 64), "there is no disk with that name";
}

/// A folder of the server's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacePath(pub String);

impl Argument for PlacePath {
    fn describe(to: &mut Parameters) {
        to.required("path", text(1, 4096).pattern(Some("^/")));
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(&["path"])?;
        let path = query.values("path").last().map(str::to_owned);
        let path = path.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "path is missing"))?;
        Ok(Self(path))
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask("path", &self.0);
        Ok(())
    }
}

/// What a node does with the disks of its pool. Changes are durable when they are answered.
pub trait DiskControl: Send + Sync {
    fn disk_list(&self) -> Answer<'_, DiskList>;
    /// What a folder is on that is to become a disk.
    fn disk_place(&self, path: String) -> Answer<'_, DiskPlace>;
    /// Takes a folder into the pool as a new disk.
    fn disk_add(&self, add: DiskAdd) -> Answer<'_, DiskView>;
    /// Moves the data of a disk to others, or stops that.
    fn disk_drain(&self, disk: DiskName, draining: bool) -> Answer<'_, DiskView>;
    /// Says what kind of device a disk is.
    fn disk_media(&self, disk: DiskName, media: MediaChoice) -> Answer<'_, DiskView>;
    /// Takes a disk out of the pool: one with nothing on it, or with `force` one whose data the others have.
    fn disk_remove(&self, disk: DiskName, force: bool) -> Answer<'_, ()>;
    /// Puts a new disk into the place of one, which is drained, or rebuilt if it is lost, and removed.
    fn disk_replace(&self, disk: DiskName, by: DiskReplace) -> Answer<'_, DiskView>;
    /// Takes a disk back that is not used any more, if it works.
    fn disk_retry(&self, disk: DiskName) -> Answer<'_, DiskView>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn DiskControl>(|node| Ok(node.disks()))
        .on(DISK_LIST, |node, (), ()| node.disk_list())
        .on(DISK_PLACE, |node, PlacePath(path), ()| {
            node.disk_place(path)
        })
        .on(DISK_ADD, |node, (), add| node.disk_add(add))
        .on(DISK_SET, |node, disk, change| {
            Box::pin(changed(node, disk, change))
        })
        .on(DISK_REMOVE, |node, (disk, Force(force)), ()| {
            node.disk_remove(disk, force)
        })
        .on(DISK_REPLACE, |node, disk, by| node.disk_replace(disk, by))
        .on(DISK_RETRY, |node, disk, ()| node.disk_retry(disk));
}

async fn changed(
    node: &dyn DiskControl,
    disk: DiskName,
    change: DiskChange,
) -> Result<DiskView, ControlError> {
    let mut view = None;
    if let Some(media) = change.media {
        view = Some(node.disk_media(disk.clone(), media).await?);
    }
    if let Some(draining) = change.draining {
        view = Some(node.disk_drain(disk, draining).await?);
    }
    view.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "the request changes nothing"))
}
