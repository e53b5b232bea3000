//! The disks of one store, which of them failed, and on how many of them things are kept.
//!
//! Owns: names of the volume's folder, the failed flags, the number of copies. Must not know: what is in the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cairn_base::disk::Disk;
use cairn_base::{DiskId, VolumeId};

pub(crate) struct Member {
    pub id: DiskId,
    pub disk: Arc<dyn Disk>,
    failed: AtomicBool,
}

/// The disks that were present at open, in the caller's order of preference. A disk is named by
/// its index here.
#[derive(Clone)]
pub(crate) struct DiskSet {
    pub volume: VolumeId,
    members: Arc<Vec<Member>>,
    copies: Arc<AtomicUsize>,
}

impl DiskSet {
    /// `copies`: on how many disks log and state are wanted.
    pub fn new(volume: VolumeId, disks: Vec<(DiskId, Arc<dyn Disk>)>, copies: usize) -> Self {
        let members = disks
            .into_iter()
            .map(|(id, disk)| Member {
                id,
                disk,
                failed: AtomicBool::new(false),
            })
            .collect();
        Self {
            volume,
            members: Arc::new(members),
            copies: Arc::new(AtomicUsize::new(copies)),
        }
    }

    /// Copies of log and state that are wanted.
    pub fn copies_wanted(&self) -> usize {
        self.copies.load(Ordering::Acquire)
    }

    /// Copies that can be had with the disks that are healthy.
    pub fn copies_possible(&self) -> usize {
        self.copies_wanted().min(self.healthy().len())
    }

    /// Returns how many were wanted before.
    pub fn want_copies(&self, copies: usize) -> usize {
        self.copies.swap(copies, Ordering::AcqRel)
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn get(&self, index: usize) -> &Member {
        &self.members[index]
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate()
    }

    pub fn ids(&self) -> Vec<DiskId> {
        self.members.iter().map(|member| member.id).collect()
    }

    pub fn index_of(&self, id: DiskId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    pub fn is_healthy(&self, index: usize) -> bool {
        !self.members[index].failed.load(Ordering::Acquire)
    }

    /// From now on nothing is written to it; a restart tries it again.
    pub fn mark_failed(&self, index: usize, why: &dyn std::fmt::Display) {
        let member = &self.members[index];
        if !member.failed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                volume = self.volume.0,
                disk = member.disk.label(),
                "metadata is not written to this disk any more: {why}"
            );
        }
    }

    pub fn healthy(&self) -> Vec<usize> {
        (0..self.members.len())
            .filter(|index| self.is_healthy(*index))
            .collect()
    }

    pub fn failed_ids(&self) -> Vec<DiskId> {
        self.iter()
            .filter(|(index, _)| !self.is_healthy(*index))
            .map(|(_, member)| member.id)
            .collect()
    }

    /// The folder of the volume's metadata on each disk.
    pub fn folder(&self) -> String {
        format!("volumes/{:08x}", self.volume.0)
    }
}
