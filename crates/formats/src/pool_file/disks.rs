//! Disks of a pool.
//!
//! Owns: what the pool file says of each, and which of those that left are remembered. Must not know: what a disk holds.

use cairn_base::{DiskId, DiskRole, DomainPath, Media, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{LEFT_MAX, PoolState};

/// A member of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDisk {
    pub id: DiskId,
    /// The node that has it: what fails with it.
    pub node: NodeId,
    /// The folder it was last seen at; only a hint, the identity file in it decides.
    pub label: String,
    pub added: Timestamp,
    /// What it is for. It stays as it was when the disk was added.
    #[serde(default, skip_serializing_if = "DiskRole::is_data")]
    pub role: DiskRole,
    /// What kind of device it is, as far as somebody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<Media>,
    /// Nothing new is put on it, and its data goes to others.
    pub draining: bool,
    /// Another one took its place: it is removed when nothing is on it any more.
    pub replaced: bool,
    /// It is lost, and nothing that was on it is needed: all of it is on others. Such a disk is not missed. Forgotten
    /// before it is used again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_nothing: bool,
    /// It was added to a running server: looked for at its label when it is not among the data folders.
    pub by_label: bool,
    /// The highest version of this file that the disk is known to have had; one that comes with an older
    /// version is an old copy of itself.
    pub seen: u64,
}

impl PoolDisk {
    /// Where it is, from the outside in.
    pub fn domain(&self) -> DomainPath {
        DomainPath {
            node: self.node,
            disk: self.id,
        }
    }

    pub fn new(id: DiskId, label: impl Into<String>, added: Timestamp) -> Self {
        Self {
            id,
            node: NodeId::ONLY,
            label: label.into(),
            added,
            role: DiskRole::Data,
            media: None,
            draining: false,
            replaced: false,
            holds_nothing: false,
            by_label: false,
            seen: 0,
        }
    }
}

impl PoolState {
    pub fn disk_mut(&mut self, id: DiskId) -> Option<&mut PoolDisk> {
        self.disks.iter_mut().find(|disk| disk.id == id)
    }

    /// Takes a disk out of the pool; it is remembered as one that left.
    pub fn remove_disk(&mut self, id: DiskId) {
        let (gone, kept) = std::mem::take(&mut self.disks)
            .into_iter()
            .partition(|disk| disk.id == id);
        self.disks = kept;
        self.left.extend(Vec::<PoolDisk>::into_iter(gone));
        let surplus = self.left.len().saturating_sub(LEFT_MAX);
        self.left.drain(..surplus);
    }
}
