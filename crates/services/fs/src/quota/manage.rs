//! Setting, removing and showing quotas.
//!
//! Owns: which quotas can be set, the change of a directory that gets its first quota. Must not know: names of users.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_meta::{
    Batch, GraceRecord, InodeKind, Key, QUOTA_PATH_LEN_BYTES_MAX, QuotaKey, QuotaKind, QuotaLimit,
    QuotaRecord, Ticket, TreeState, UsageRecord,
};

use super::{VOLUME_TREE, tree_key};
use crate::kernel::{Bare, Limits, owner_of};
use crate::types::{FsError, VolumeSpace};
use crate::volume::{Fs, ROOT, VolumeCore};

/// Maximum number of quotas of a volume; each directory with quotas counts as one more.
pub const QUOTA_COUNT_MAX: usize = 64 << 10;
/// Maximum number of directories with quotas that are nested in one another.
pub const QUOTA_DEPTH_MAX: usize = 16;

/// The limits of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    pub bytes: QuotaLimit,
    pub files: QuotaLimit,
    /// `bytes` limits the stored bytes, after compression and before parity.
    pub is_physical: bool,
    /// How long usage may exceed soft limits.
    pub grace_seconds: u64,
}

/// A quota and its present state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaView {
    pub key: QuotaKey,
    pub limits: QuotaLimits,
    /// It is the default quota of all users, or groups, without their own.
    pub is_default: bool,
    pub used: UsageRecord,
    pub since: GraceRecord,
    /// The inodes from before the quota are still being counted.
    pub is_counting: bool,
    /// Writes, names and other changes that it refused since the volume was opened.
    pub refusals: u64,
}

impl Fs {
    /// Sets a quota on the contents of a directory, or on the usage of a user or group in it; the root is the volume.
    /// The quota applies on return; the background task counts the present contents ([`QuotaView::is_counting`]).
    /// `path` is the present path of the directory, for later readers.
    pub async fn set_quota(
        &self,
        dir: Ino,
        kind: QuotaKind,
        id: u32,
        limits: QuotaLimits,
        path: &[u8],
    ) -> Result<QuotaView, FsError> {
        let shared = &self.shared;
        // A clone has no quotas of its own.
        if !self.branch().is_main() {
            return Err(FsError::NotSupported);
        }
        let _turn = shared.quotas.turn.lock().await;
        let record = QuotaRecord {
            bytes: limits.bytes,
            files: limits.files,
            is_physical: limits.is_physical,
            grace_seconds: limits.grace_seconds,
            ..QuotaRecord::default()
        };
        if path.len() > QUOTA_PATH_LEN_BYTES_MAX || record.is_unlimited() {
            return Err(FsError::Invalid);
        }
        let set = || shared.set_quota(dir, kind, id, record.clone(), path);
        let done = shared.reading(set).await;
        shared.settle(done).await?;
        shared.sync_all_pending();
        self.quota(dir, kind, id).ok_or(FsError::NotFound)
    }

    /// Removes a quota; [`FsError::NotFound`] if there is none.
    pub async fn remove_quota(&self, dir: Ino, kind: QuotaKind, id: u32) -> Result<(), FsError> {
        let shared = &self.shared;
        let _turn = shared.quotas.turn.lock().await;
        let done = shared.remove_quota(key_of(dir, kind, id));
        shared.settle(done).await?;
        shared.sync_all_pending();
        Ok(())
    }

    /// A quota, or the usage where there is none. `None` if the directory never had a quota: then nothing counts its
    /// usage.
    pub fn quota(&self, dir: Ino, kind: QuotaKind, id: u32) -> Option<QuotaView> {
        let key = key_of(dir, kind, id);
        let table = self.shared.quotas.table.read();
        if !table.is_live(key.tree) {
            return None;
        }
        drop(table);
        Some(self.shared.view_of(key))
    }

    /// All quotas, those of one directory together.
    pub fn quotas(&self) -> Vec<QuotaView> {
        if !self.branch().is_main() {
            return Vec::new();
        }
        let keys: Vec<QuotaKey> = {
            let table = self.shared.quotas.table.read();
            let volume = Some(tree_key(VOLUME_TREE)).filter(|_| table.size_limit_bytes.is_some());
            let records = table.records.iter();
            let records = records
                .filter(|(key, record)| !record.is_unlimited() && Some(**key) != volume)
                .filter(|(_, record)| record.state != TreeState::Leaving);
            let records = records.map(|(key, _)| *key);
            volume.into_iter().chain(records).collect()
        };
        keys.into_iter()
            .map(|key| self.shared.view_of(key))
            .collect()
    }

    /// The usage of users, or groups, in a tree: up to `max` of them, in no particular order.
    pub fn usages_in(&self, tree: Ino, kind: QuotaKind, max: usize) -> Vec<QuotaView> {
        let tree = tree_of(tree);
        let wanted = |key: &QuotaKey| key.tree == tree && key.kind == kind;
        let found = self.shared.meta.find_usages(max, wanted);
        found
            .into_iter()
            .map(|(key, _)| self.shared.view_of(key))
            .collect()
    }

    /// Whether all inodes count in their tree.
    pub fn quotas_are_settled(&self) -> bool {
        let table = self.shared.quotas.table.read();
        let mut records = table.records.values();
        records.all(|record| record.state == TreeState::Counted)
    }

    /// The directory of a tree, as a path from the root of the volume; empty for the volume.
    pub async fn quota_path(&self, tree: Ino) -> Result<Vec<u8>, FsError> {
        let shared = &self.shared;
        if tree == VOLUME_TREE {
            return Ok(Vec::new());
        }
        let noted = {
            let table = shared.quotas.table.read();
            table.tree(tree).map(|record| record.path.clone())
        };
        let noted = noted.unwrap_or_default();
        if shared.reading(|| shared.dir_at(&noted)).await? == Some(tree) {
            return Ok(noted.to_vec());
        }
        let path = shared.folder_path(tree, &mut Default::default()).await?;
        Ok(path.unwrap_or_else(|| noted.to_vec()))
    }

    /// The room of an inode: the least of the volume's and that of the directories with quotas around it.
    pub async fn space_at(&self, ino: Ino) -> Result<VolumeSpace, FsError> {
        let mut space = self.space().await?;
        let shared = &self.shared;
        if !shared.quotas.has_limits() || !self.branch().is_main() {
            return Ok(space);
        }
        let inode = shared.reading(|| shared.inode(ino)).await?;
        let owner = owner_of(&inode.lock().record);
        for domain in shared.quotas.domains_of(owner).iter() {
            if domain.key.kind != QuotaKind::Tree {
                continue;
            }
            let view = shared.view_of(domain.key);
            let limit_of = |limit: &QuotaLimit| limit.hard.or(limit.soft);
            if let Some(limit) = limit_of(&view.limits.bytes) {
                let used = view.used_bytes().saturating_add(domain.fresh_bytes());
                space.total_bytes = space.total_bytes.min(limit);
                space.free_bytes = space.free_bytes.min(limit.saturating_sub(used));
            }
            if let Some(limit) = limit_of(&view.limits.files) {
                let free = limit.saturating_sub(view.used.inodes);
                space.total_inodes = space.total_inodes.min(limit);
                space.free_inodes = space.free_inodes.min(free);
            }
        }
        Ok(space)
    }
}

impl QuotaView {
    /// The usage that its limits on bytes are compared with.
    pub fn used_bytes(&self) -> u64 {
        match self.limits.is_physical {
            true => self.used.stored_bytes,
            false => self.used.file_bytes,
        }
    }
}

fn tree_of(dir: Ino) -> Ino {
    match dir {
        ROOT => VOLUME_TREE,
        dir => dir,
    }
}

fn key_of(dir: Ino, kind: QuotaKind, id: u32) -> QuotaKey {
    let tree = tree_of(dir);
    let has_id = matches!(kind, QuotaKind::User | QuotaKind::Group);
    let id = if has_id { id } else { 0 };
    QuotaKey { tree, kind, id }
}

impl VolumeCore {
    pub(super) fn view_of(&self, key: QuotaKey) -> QuotaView {
        let used = self.meta.usages(std::iter::once(key))[0];
        let table = self.quotas.table.read();
        let Limits {
            bytes,
            files,
            is_physical,
            grace_seconds,
        } = match table.records.get(&key) {
            // Those limits belong to other quotas.
            Some(record) if record.state != TreeState::Leaving => {
                let mut limits = Limits::of(record);
                if key == tree_key(VOLUME_TREE) && table.size_limit_bytes.is_some() {
                    limits.bytes.hard = table.size_limit_bytes;
                }
                limits
            }
            _ => table.limits_of(&key),
        };
        let domain = table.domains.get(&key);
        let grace = table.graces.get(&key).copied().unwrap_or_default();
        QuotaView {
            key,
            limits: QuotaLimits {
                bytes,
                files,
                is_physical,
                grace_seconds,
            },
            is_default: matches!(key.kind, QuotaKind::User | QuotaKind::Group)
                && !table.records.contains_key(&key),
            used,
            since: domain.map_or(grace, |domain| domain.grace()),
            is_counting: table.is_counting(key.tree),
            refusals: domain.map_or(0, |domain| domain.refusals.load(Ordering::Relaxed)),
        }
    }

    /// Follows a change of the volume's hard limit.
    pub(crate) fn set_size_limit(&self, size_limit_bytes: Option<u64>) {
        {
            let mut table = self.quotas.table.write();
            if table.size_limit_bytes == size_limit_bytes {
                return;
            }
            table.size_limit_bytes = size_limit_bytes;
            self.quotas.note_change(&self.meta, &mut table);
        }
        self.sync_all_pending();
    }

    /// Makes dirty bytes of all files count in the present domains.
    pub(crate) fn sync_all_pending(&self) {
        self.visit_inodes(|inode| {
            let mut state = inode.lock();
            if state.charged.is_some()
                || state.reserved.is_some()
                || !state.dirty.is_empty()
                || !state.flights.is_empty()
            {
                self.sync_pending(&mut state);
            }
        });
    }

    /// The directory at a path from the root, if there is one.
    fn dir_at(&self, path: &[u8]) -> Result<Option<Ino>, FsError> {
        let mut at = ROOT;
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            if crate::namespace::check_name(name).is_err() {
                return Ok(None);
            }
            match self.dirent(at, name)? {
                Some(entry) if entry.kind == InodeKind::Directory => at = entry.ino,
                _ => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    fn set_quota(
        &self,
        dir: Ino,
        kind: QuotaKind,
        id: u32,
        mut record: QuotaRecord,
        path: &[u8],
    ) -> Result<((), Ticket), FsError> {
        let key = key_of(dir, kind, id);
        // While this directory becomes a tree, no inode is moved into it, or out of it.
        let _moving = self.directory_moves.lock();
        let inode = self.inode(dir)?;
        inode.lock().require_dir()?;
        let known = self.quotas.table.read().tree(key.tree).cloned();
        let is_tree = key.tree == VOLUME_TREE
            || known
                .as_ref()
                .is_some_and(|known| known.state != TreeState::Leaving);
        let mut inner = Vec::new();
        let mut top = known.clone().unwrap_or_default();
        if !is_tree {
            let parent = inode.lock().record.parent;
            top.parent = self.tree_around(parent)?;
            top.state = TreeState::Counting;
            top.path = Bytes::copy_from_slice(path);
            inner = self.trees_below(dir, top.parent)?;
        }
        self.require_serving()?;
        let mut change = self.begin_change(inode.lock());
        change.of(dir).require_dir()?;
        if change.of(dir).record.entry_count == 0 && !is_tree {
            top.state = TreeState::Counted;
        }
        let mut table = self.quotas.table.write();
        if table.records.len() >= QUOTA_COUNT_MAX && !table.records.contains_key(&key) {
            return Err(FsError::TooManyLinks);
        }
        if !is_tree {
            let before = table.records.clone();
            for tree in &inner {
                if let Some(record) = table.records.get_mut(&tree_key(*tree)) {
                    record.parent = dir;
                }
            }
            table.records.insert(tree_key(dir), top.clone());
            let is_deep = |tree: &Ino| table.around(*tree).len() > QUOTA_DEPTH_MAX + 1;
            if inner.iter().chain([&dir]).any(is_deep) {
                table.records = before;
                return Err(FsError::TooManyLinks);
            }
            for tree in &inner {
                let record = &table.records[&tree_key(*tree)];
                change
                    .batch()
                    .put(Key::quota(tree_key(*tree)), record.encode());
            }
        }
        if key.kind == QuotaKind::Tree {
            record.parent = top.parent;
            record.state = top.state;
            record.path = match key.tree {
                VOLUME_TREE => Bytes::new(),
                _ => Bytes::copy_from_slice(path),
            };
        } else if !is_tree {
            change.batch().put(Key::quota(tree_key(dir)), top.encode());
        }
        table.records.insert(key, record.clone());
        change.batch().put(Key::quota(key), record.encode());
        self.quotas.note_change(&self.meta, &mut table);
        drop(table);
        if !is_tree {
            // Before any new inode in it could count elsewhere.
            let mut edit = change.edit_quietly(dir);
            if edit.state.record.tree != dir {
                self.move_to_tree(&mut edit, dir);
            }
        }
        Ok(((), change.commit().ticket))
    }

    /// The trees in `around` whose directories lie below `dir`.
    fn trees_below(&self, dir: Ino, around: Ino) -> Result<Vec<Ino>, FsError> {
        let trees: Vec<Ino> = {
            let table = self.quotas.table.read();
            let parents = table.parents();
            let here = parents.iter();
            let here =
                here.filter(|(tree, parent)| **tree != dir && table.resolve(**parent) == around);
            here.map(|(tree, _)| *tree).collect()
        };
        let mut below = Vec::new();
        for tree in trees {
            let mut at = tree;
            while at != ROOT && at != dir {
                at = match self.inode(at) {
                    Ok(inode) => inode.lock().record.parent,
                    // The directory was removed.
                    Err(FsError::Stale) => ROOT,
                    Err(error) => return Err(error),
                };
            }
            if at == dir {
                below.push(tree);
            }
        }
        Ok(below)
    }

    fn remove_quota(&self, key: QuotaKey) -> Result<((), Ticket), FsError> {
        self.require_serving()?;
        let _moving = self.directory_moves.lock();
        let mut table = self.quotas.table.write();
        let known = table.records.get(&key);
        let is_there =
            known.is_some_and(|known| known.state != TreeState::Leaving && !known.is_unlimited());
        if !is_there {
            return Err(FsError::NotFound);
        }
        let mut batch = Batch::new();
        self.drop_record(&mut table, key, &mut batch);
        let ticket = self.commit_bare(Bare::Quotas, batch);
        self.quotas.note_change(&self.meta, &mut table);
        Ok(((), ticket))
    }

    /// A directory is removed, with its quotas.
    pub(crate) fn drop_tree(&self, dir: Ino, batch: &mut Batch) {
        if !self.quotas.has_trees() {
            return;
        }
        let mut table = self.quotas.table.write();
        let keys = table.records.keys().filter(|key| key.tree == dir);
        let keys: Vec<QuotaKey> = keys.copied().collect();
        if keys.is_empty() {
            return;
        }
        // The record of the tree itself is the first.
        for key in keys.into_iter().rev() {
            self.drop_record(&mut table, key, batch);
        }
        self.quotas.note_change(&self.meta, &mut table);
    }

    /// Removes a quota from the table; a directory without quotas is no longer a tree.
    pub(super) fn drop_record(&self, table: &mut super::Table, key: QuotaKey, batch: &mut Batch) {
        let is_top = key.kind == QuotaKind::Tree;
        if is_top && key.tree != VOLUME_TREE {
            if let Some(record) = table.records.get_mut(&key) {
                (record.bytes, record.files) = (QuotaLimit::default(), QuotaLimit::default());
                batch.put(Key::quota(key), record.encode());
            }
        } else {
            table.records.remove(&key);
            batch.delete(Key::quota(key));
        }
        if table.graces.remove(&key).is_some() {
            batch.delete(Key::grace(key));
        }
        table.domains.remove(&key);
        if key.tree == VOLUME_TREE {
            return;
        }
        let mut of_tree = table.records.iter();
        let is_left =
            of_tree.any(|(other, record)| other.tree == key.tree && !record.is_unlimited());
        if !is_left && let Some(top) = table.records.get_mut(&tree_key(key.tree)) {
            top.state = TreeState::Leaving;
            batch.put(Key::quota(tree_key(key.tree)), top.encode());
        }
    }
}

impl super::Table {
    /// Whether some inode in a tree may still count elsewhere.
    fn is_counting(&self, tree: Ino) -> bool {
        self.tree(tree)
            .is_some_and(|record| record.state == TreeState::Counting)
    }
}
