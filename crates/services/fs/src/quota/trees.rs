//! Moves inodes between trees when a directory gets a quota, or loses it.
//!
//! Owns: the tasks that find the inodes of such a directory while clients work; the check whether a move or link
//! would cross from one tree to another. Must not know: limits.
//!
//! A directory gets its tree before its entries are visited: new entries have the tree from the start. No directory
//! comes from another tree, and an inode that moves between visited directories and others is visited again. After a
//! crash the task begins again; inodes that it had moved are quick to pass.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{self, Bug};
use cairn_meta::{
    Batch, CookieRecord, InodeKind, InodeRecord, Key, KeyKind, QuotaRecord, Ticket, TreeState,
    root_tree,
};

use super::{VOLUME_TREE, tree_key};
use crate::kernel::{Bare, Edit, Inode, meta_error, owner_of, usage_of};
use crate::types::FsError;
use crate::volume::{ROOT, VolumeCore};

/// Entries, or inodes, that are visited before that is made durable and the task yields.
const PAGE_MAX: usize = 1024;
/// Pause after an error, or while removed inodes still exist.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const IDLE_PAUSE: Duration = Duration::from_secs(60);

/// The result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// The quota was changed meanwhile, or the volume closes.
    NotWanted,
    /// Some inodes are left that cannot be reached now.
    Left,
}

impl VolumeCore {
    /// Moves an inode that a change touches to another tree.
    pub(crate) fn move_to_tree(&self, edit: &mut Edit<'_>, tree: Ino) {
        let usage = usage_of(&edit.state.record);
        let before = owner_of(&edit.state.record);
        edit.record().tree = tree;
        edit.batch.charge(before, -usage);
        edit.batch.charge(owner_of(&edit.state.record), usage);
    }

    /// The tree that a directory is in. Its inode may record another one while the tree is being counted.
    pub(crate) fn tree_around(&self, dir: Ino) -> Result<Ino, FsError> {
        let mut at = dir;
        if !dir.branch().is_main() {
            return Ok(root_tree(dir.branch()));
        }
        loop {
            if at == ROOT {
                return Ok(VOLUME_TREE);
            }
            if self.quotas.table.read().is_live(at) {
                return Ok(at);
            }
            let parent = self.inode(at)?.lock().record.parent;
            if parent == at {
                return Ok(VOLUME_TREE);
            }
            at = parent;
        }
    }

    /// Whether a name in one directory and a name in the other are in different trees. While a tree is being counted,
    /// the records of its inodes do not tell. Directories stay in their trees, so the answer stays true.
    pub(crate) fn is_other_tree(&self, dir: Ino, other: Ino) -> Result<bool, FsError> {
        match self.quotas.is_counting() {
            true => Ok(self.tree_around(dir)? != self.tree_around(other)?),
            false => {
                let tree_of = |dir| {
                    let inode = self.inode(dir)?;
                    let state = inode.lock();
                    Ok::<Ino, FsError>(self.quotas.inherited(&state.record))
                };
                Ok(self.quotas.has_trees() && tree_of(dir)? != tree_of(other)?)
            }
        }
    }

    /// Refuses to move a directory into another tree: all its contents would have to be counted elsewhere. The caller
    /// holds the lock of such moves.
    pub(crate) fn require_same_tree(&self, from_dir: Ino, to_dir: Ino) -> Result<(), FsError> {
        if !self.quotas.has_trees() || self.tree_around(from_dir)? == self.tree_around(to_dir)? {
            return Ok(());
        }
        Err(FsError::CrossTree)
    }

    pub(crate) async fn run_trees(self: Arc<Self>) {
        loop {
            let work = {
                let table = self.quotas.table.read();
                let trees = table.records.iter();
                let mut trees = trees.filter(|(_, record)| record.state != TreeState::Counted);
                trees.next().map(|(key, record)| (key.tree, record.state))
            };
            let mut pause = IDLE_PAUSE;
            if let Some((tree, state)) = work {
                let done = match state {
                    TreeState::Counting => self.count_tree(tree).await,
                    TreeState::Leaving | TreeState::Counted => self.leave_tree(tree).await,
                };
                match done {
                    Ok(End::Done | End::NotWanted) if !self.tasks.is_stopping() => continue,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!(volume = %self.volume, %tree, %error, "counting what is in a directory with a quota failed; it is tried again");
                    }
                }
                pause = RETRY_PAUSE;
            }
            let wake = self.quotas.trees_wake.notified();
            if !self.tasks.pause(pause, wake).await {
                return;
            }
        }
    }

    fn is_in_state(&self, tree: Ino, state: TreeState) -> bool {
        let table = self.quotas.table.read();
        let record = table.tree(tree);
        !self.tasks.is_stopping() && record.is_some_and(|record| record.state == state)
    }

    /// An inode; `None` if it is gone.
    async fn inode_if_there(&self, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        match self.reading(|| self.inode(ino)).await {
            Ok(inode) => Ok(Some(inode)),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next records of a range, at most [`PAGE_MAX`].
    async fn next_page(&self, from: &Key, to: &Key) -> Result<Vec<(Key, Bytes)>, FsError> {
        let page = || {
            let page = self.meta.live().scan(from, to, PAGE_MAX);
            page.map_err(meta_error)
        };
        self.reading(page).await
    }

    /// Finds all inodes below the directory of a tree.
    async fn count_tree(self: &Arc<Self>, tree: Ino) -> Result<End, FsError> {
        let mut dirs = vec![tree];
        loop {
            let Some(dir) = dirs.pop() else {
                let ended = self.reading(|| self.end_counting(tree, &mut dirs)).await?;
                match ended {
                    Some(ticket) => {
                        self.durable(ticket).await?;
                        tracing::info!(volume = %self.volume, %tree, "all that is in a directory with a quota is counted");
                        return Ok(End::Done);
                    }
                    None if self.is_in_state(tree, TreeState::Counting) => continue,
                    None => return Ok(End::NotWanted),
                }
            };
            if !self.is_in_state(tree, TreeState::Counting) {
                return Ok(End::NotWanted);
            }
            if dir != tree && self.quotas.table.read().is_live(dir) {
                continue;
            }
            let Some(inode) = self.inode_if_there(dir).await? else {
                continue;
            };
            let is_first = !planted::is(Bug::CountingMissesCreates);
            if is_first {
                self.adopt(&inode, tree, None)?;
            }
            let (mut from, to) = Key::cookies_after(dir, 0);
            loop {
                let page = self.next_page(&from, &to).await?;
                let mut last = Ticket::NONE;
                for (_, value) in &page {
                    let entry = CookieRecord::decode(value);
                    let entry = entry.map_err(|error| meta_error(error.into()))?;
                    if entry.kind == InodeKind::Directory {
                        dirs.push(entry.ino);
                        continue;
                    }
                    let Some(inode) = self.inode_if_there(entry.ino).await? else {
                        continue;
                    };
                    let place = Some((dir, &entry.name[..]));
                    let adopted = self.reading(|| self.adopt(&inode, tree, place)).await?;
                    last = last.max(adopted.unwrap_or(Ticket::NONE));
                }
                self.durable(last).await?;
                self.meta.admit().await;
                if page.len() < PAGE_MAX {
                    break;
                }
                if !self.is_in_state(tree, TreeState::Counting) {
                    return Ok(End::NotWanted);
                }
                from = page.last().map_or(from, |(key, _)| key.successor());
            }
            if !is_first {
                self.adopt(&inode, tree, None)?;
            }
        }
    }

    /// Makes an inode count in a tree. With `place`: checks that the inode still has that name.
    fn adopt(
        &self,
        inode: &Inode,
        tree: Ino,
        place: Option<(Ino, &[u8])>,
    ) -> Result<Option<Ticket>, FsError> {
        let state = inode.lock();
        if state.removed || state.record.tree == tree {
            return Ok(None);
        }
        if let Some((dir, name)) = place
            && state.record.parent != dir
        {
            // While its lock is held, the directory gets and loses no name.
            let entry = self.dirent(dir, name)?;
            if entry.is_none_or(|entry| entry.ino != inode.ino) {
                return Ok(None);
            }
        }
        self.require_serving()?;
        let mut change = self.begin_change(state);
        self.move_to_tree(&mut change.edit_quietly(inode.ino), tree);
        let done = change.commit();
        let ticket = done.ticket;
        self.sync_pending(&mut done.into_one());
        Ok(Some(ticket))
    }

    /// Ends the counting of a tree, unless directories moved meanwhile: those are added to `dirs`.
    fn end_counting(&self, tree: Ino, dirs: &mut Vec<Ino>) -> Result<Option<Ticket>, FsError> {
        let _moving = self.directory_moves.lock();
        let moved = self.quotas.moved.lock().clone();
        let mut found = Vec::new();
        for dir in &moved {
            match self.tree_around(*dir) {
                Ok(around) if around == tree => found.push(*dir),
                Ok(_) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        // Directories of other trees that are still to be counted are found with those trees.
        self.quotas.moved.lock().clear();
        if !found.is_empty() {
            dirs.append(&mut found);
            return Ok(None);
        }
        let changed = self.put_tree_state(tree, TreeState::Counting, TreeState::Counted)?;
        Ok(changed)
    }

    /// Changes the state of a tree, if it is `from` now.
    fn put_tree_state(
        &self,
        tree: Ino,
        from: TreeState,
        to: TreeState,
    ) -> Result<Option<Ticket>, FsError> {
        self.require_serving()?;
        let mut table = self.quotas.table.write();
        let Some(record) = table.records.get_mut(&tree_key(tree)) else {
            return Ok(None);
        };
        if record.state != from {
            return Ok(None);
        }
        record.state = to;
        let mut batch = Batch::new();
        batch.put(Key::quota(tree_key(tree)), record.encode());
        let ticket = self.commit_bare(Bare::Quotas, batch);
        self.quotas.note_change(&self.meta, &mut table);
        Ok(Some(ticket))
    }

    /// Makes all inodes of a tree count in the tree around it, and drops the tree.
    async fn leave_tree(self: &Arc<Self>, tree: Ino) -> Result<End, FsError> {
        if !self.meta.is_tree_used(tree) {
            return self.forget_tree(tree);
        }
        let (all, to) = Key::inodes();
        let mut from = all;
        let mut is_left = false;
        loop {
            if !self.is_in_state(tree, TreeState::Leaving) {
                return Ok(End::NotWanted);
            }
            let page = self.next_page(&from, &to).await?;
            let mut last = Ticket::NONE;
            for (key, value) in &page {
                let record = InodeRecord::decode(value);
                let record = record.map_err(|error| meta_error(error.into()))?;
                let Ok(KeyKind::Inode(ino)) = key.kind() else {
                    continue;
                };
                if record.tree != tree {
                    continue;
                }
                let Some(inode) = self.inode_if_there(ino).await? else {
                    continue;
                };
                // The inode is gone soon.
                is_left |= inode.lock().removed;
                let around = self.quotas.table.read().resolve(tree);
                let adopted = self.adopt(&inode, around, None)?;
                last = last.max(adopted.unwrap_or(Ticket::NONE));
            }
            self.durable(last).await?;
            self.meta.admit().await;
            tokio::task::yield_now().await;
            if page.len() < PAGE_MAX {
                break;
            }
            from = page.last().map_or(from, |(key, _)| key.successor());
        }
        // For example, files without a name yet.
        if is_left || self.meta.is_tree_used(tree) {
            return Ok(End::Left);
        }
        self.forget_tree(tree)
    }

    fn forget_tree(&self, tree: Ino) -> Result<End, FsError> {
        self.require_serving()?;
        let _moving = self.directory_moves.lock();
        let mut table = self.quotas.table.write();
        let is_leaving = |record: &&QuotaRecord| record.state == TreeState::Leaving;
        let Some(parent) = table.tree(tree).filter(is_leaving).map(|tree| tree.parent) else {
            return Ok(End::NotWanted);
        };
        let mut batch = Batch::new();
        // The trees in it are in the tree around it now.
        for (key, record) in &mut table.records {
            if key.kind == tree_key(tree).kind && record.parent == tree {
                record.parent = parent;
                batch.put(Key::quota(*key), record.encode());
            }
        }
        table.records.remove(&tree_key(tree));
        batch.delete(Key::quota(tree_key(tree)));
        self.commit_bare(Bare::Quotas, batch);
        self.quotas.note_change(&self.meta, &mut table);
        drop(table);
        tracing::info!(volume = %self.volume, %tree, "a directory without a quota any more is counted in what is around it");
        Ok(End::Done)
    }
}
