//! Finds inodes: in memory, in the metadata, in the snapshot that a branch began from.
//!
//! Owns: which view and which number an inode is read with. Must not know: how a branch takes over an inode.

use std::sync::Arc;

use cairn_base::{Branch, Generation, Ino, View};
use cairn_meta::{InodeRecord, Key};

use super::Kernel;
use super::errors::meta_error;
use super::extents::ExtentMap;
use super::inode::{Inode, State};
use crate::types::FsError;

impl Kernel {
    /// The inode in a view, for reading; `Stale` if it does not exist (any more). In a clone it may be an inherited
    /// inode: it says where its names, attributes and extents are.
    pub fn inode_in(&self, view: View, ino: Ino) -> Result<Arc<Inode>, FsError> {
        self.branches.require(ino.branch())?;
        match self.stored_at(view, ino)? {
            (View::Live, ino) => self.own_inode(ino),
            (View::Snapshot(generation), ino) => self.inode_of_snapshot(generation, ino),
        }
    }

    pub(crate) fn inode_of_snapshot(
        &self,
        generation: Generation,
        ino: Ino,
    ) -> Result<Arc<Inode>, FsError> {
        let view = View::Snapshot(generation);
        // Also for an inode in memory: the snapshot may be gone.
        let meta = self.meta.view(view).map_err(meta_error)?;
        if let Some(inode) = self.snapshot_inodes.get(&(generation, ino)) {
            return Ok(inode);
        }
        let stored = meta.get(&Key::inode(ino)).map_err(meta_error)?;
        let record = InodeRecord::decode(&stored.ok_or(FsError::Stale)?);
        let record = record.map_err(|error| meta_error(error.into()))?;
        let extents = match record.used_bytes {
            0 => ExtentMap::empty(&self.extent_count),
            _ => ExtentMap::new(&self.extent_count),
        };
        let inode = Inode::in_view(view, ino, State::new(record, extents));
        self.snapshot_inodes
            .insert((generation, ino), inode.clone());
        Ok(inode)
    }

    /// The inode in the live view, for changes; `Stale` if it does not exist (any more). [`FsError::NotOwn`] if a
    /// clone inherited it and has not changed it yet: [`Self::reading`] handles that.
    pub fn inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        loop {
            let branch = ino.branch();
            self.branches.require(branch)?;
            match self.own_inode(ino) {
                Err(FsError::Stale) if !branch.is_main() => {}
                found => return found,
            }
            // Otherwise another task has just taken it over.
            if self.base_inode(ino)?.is_some() {
                return Err(FsError::NotOwn(ino));
            }
        }
    }

    /// As [`Self::inode`], also of a volume that is being deleted; `Stale` for inodes that a clone has not taken over.
    pub fn own_inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        let found = self
            .inodes
            .find_or_load(ino, || {
                let (stored, changed) = self.meta.live().get_with_ticket(&Key::inode(ino))?;
                let Some(bytes) = stored else {
                    return Ok(None);
                };
                let record = InodeRecord::decode(&bytes)?;
                let extents = if record.used_bytes == 0 {
                    ExtentMap::empty(&self.extent_count)
                } else {
                    ExtentMap::new(&self.extent_count)
                };
                let mut state = State::new(record, extents);
                // The state rests on submissions that may not be durable yet.
                state.ticket = self.meta.last_ticket();
                state.changed = changed;
                Ok(Some(state))
            })
            .map_err(meta_error)?;
        found.ok_or(FsError::Stale)
    }

    /// Finds where to read an inode that `view` names: in the view itself, or in the snapshot that its branch began
    /// from. Does not check that the inode exists.
    pub(crate) fn stored_at(&self, view: View, ino: Ino) -> Result<(View, Ino), FsError> {
        let (mut view, mut ino) = (view, ino);
        while !ino.branch().is_main() {
            if view.is_live() && self.inodes.has(ino) {
                break;
            }
            let meta = self.meta.view(view).map_err(meta_error)?;
            let is_there = |key: &Key| meta.get(key).map(|found| found.is_some());
            if is_there(&Key::inode(ino)).map_err(meta_error)? {
                break;
            }
            // Checked after the record: an inode that is removed meanwhile has either its record or this mark.
            if is_there(&Key::gone(ino)).map_err(meta_error)? {
                return Err(FsError::Stale);
            }
            let branch = self.branches.get(ino.branch()).ok_or(FsError::Stale)?;
            view = View::Snapshot(branch.base);
            ino = ino.in_branch(branch.from);
        }
        Ok((view, ino))
    }

    /// The inherited inode, if the branch has not taken it over.
    pub(crate) fn base_inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        let (View::Snapshot(generation), base) = self.stored_at(View::Live, ino)? else {
            return Ok(None);
        };
        let inode = self.inode_of_snapshot(generation, base)?;
        // The inode had lost its last name.
        match inode.lock().removed {
            true => Err(FsError::Stale),
            false => Ok(Some(Arc::clone(&inode))),
        }
    }

    /// A number for a new inode of a branch.
    pub(crate) fn allocate_ino(&self, branch: Branch) -> Ino {
        self.meta.allocate_ino().in_branch(branch)
    }

    /// The directory that the inode names as its parent.
    pub(crate) fn parent_of(&self, ino: Ino) -> Result<Ino, FsError> {
        let inode = self.inode_in(View::Live, ino)?;
        let parent = inode.lock().record.parent;
        Ok(parent.in_branch(ino.branch()))
    }
}
