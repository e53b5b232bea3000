//! Rollback: a whole volume gets the contents of a snapshot again.
//!
//! Owns: no client ever sees a part of it, it continues after a crash, space and quotas are right afterwards. Must
//! not know: the caller, how a volume is closed and opened again.
//!
//! One commit decides it: the snapshot is marked when nothing of the volume is served any more, and all changes are
//! in the metadata. The next opening of the volume finds the mark, and does the rollback before any client sees the
//! volume; the cost is in proportion to the changes since the snapshot. Its steps are ordinary changes. So if another
//! snapshot sees the former contents, they go to the history, and a restored file shares its records with the
//! snapshot.
//!
//! First new entries are removed, and the names that lead to them last. Then entries that the volume lost or changed
//! are put back, by their marks in the history. Each step can be repeated: a crash leaves the first steps done.

use std::ops::ControlFlow;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, Ino, Timestamp, View};
use cairn_meta::{
    Batch, CookieRecord, DeadVersion, DirentRecord, Fold, InodeKind, InodeRecord, JournalEntry,
    Key, KeyKind, NewSnapshot, QuotaRecord, SnapshotError, SpaceDelta, Ticket, TreeState,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::hidden::HIDDEN;
use crate::kernel::{Extent, Metadata, meta_error, owner_of, parse_extent, usage_of};
use crate::namespace::COOKIE_FIRST;
use crate::quota::{VOLUME_TREE, tree_key};
use crate::snapshots::SnapshotFailure;
use crate::tasks::let_others_run;
use crate::types::{FsError, XATTR_ACCESS_PREFIX};
use crate::volume::{Fs, ROOT};
use crate::xattr::listed_len_bytes;

/// Marks, or keys, that are read at a time.
const READ_MAX: usize = 1024;
/// A batch is submitted when it has so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum depth of directories.
const DEPTH_MAX: usize = 64 << 10;

/// The result of a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reverted {
    /// Keys of the metadata that were removed or put back.
    pub keys: u64,
    /// Files and directories that were new, and were removed.
    pub removed_inodes: u64,
    /// Files and directories that were changed or removed, and were put back.
    pub restored_inodes: u64,
}

impl Fs {
    /// Closes the volume, so that its next opening rolls it back to the snapshot of this generation. If `keep` is
    /// given, its present contents are kept as a snapshot of that name.
    ///
    /// After an error the volume is closed, too, and keeps its contents.
    pub async fn close_to_restore(
        &self,
        generation: Generation,
        keep: Option<&[u8]>,
    ) -> Result<(), SnapshotFailure> {
        let decided = async {
            self.shared.end_work().await?;
            self.decide(generation, keep).await
        };
        let decided = decided.await;
        let closed = self.close().await;
        decided?;
        if let Err(error) = closed {
            tracing::warn!(volume = self.name(), %error, "the volume that is to be restored did not close cleanly; it is recovered first");
        }
        Ok(())
    }

    /// Nothing of the volume is served any more, and all changes are in the metadata.
    async fn decide(
        &self,
        generation: Generation,
        keep: Option<&[u8]>,
    ) -> Result<(), SnapshotFailure> {
        let meta = &self.shared.meta;
        let view = View::Snapshot(generation);
        meta.view(view).map_err(|_| SnapshotError::NotFound)?;
        if let Some(name) = keep {
            let new = NewSnapshot {
                name: Bytes::copy_from_slice(name),
                taken: self.shared.now(),
                schedule: Bytes::new(),
                undecided_group: 0,
            };
            let (_, ticket) = meta.take_snapshot(new)?;
            self.shared.durable(ticket).await?;
        }
        let decided = meta.change_snapshot(generation, |record| record.is_restoring = true)?;
        self.shared.durable(decided).await?;
        Ok(())
    }
}

/// Does the decided rollback of a volume, before any other read of it. `None` if none was decided.
pub(crate) async fn carry_out(
    meta: &Metadata,
    now: Timestamp,
    journal: &mut Vec<JournalEntry>,
) -> Result<Option<Reverted>, FsError> {
    let Some((seen, record)) = meta.restoring() else {
        return Ok(None);
    };
    let snapshot = record.name.escape_ascii().to_string();
    tracing::info!(
        snapshot,
        "the volume is being restored; it is served when that is done"
    );
    // The remaining journal entries are of removed files: they must not reach the restored ones.
    let mut left: Vec<Ino> = journal.drain(..).map(|entry| entry.ino).collect();
    left.sort_unstable();
    left.dedup();
    let mut batch = Batch::new();
    for ino in left {
        batch.fold(Fold {
            ino,
            start: 0,
            end: u64::MAX,
            through: meta.last_ticket().0,
        });
    }
    meta.commit_unopened(batch);
    require_applied(meta).await?;
    let mut reverting = Reverting {
        meta: meta.clone(),
        seen,
        up_to: meta.generation(),
        now,
        batch: Batch::new(),
        last: Ticket::NONE,
        kept: FxHashSet::default(),
        kept_new: FxHashSet::default(),
        limited: FxHashSet::default(),
        cookies_next: FxHashMap::default(),
        done: Reverted::default(),
    };
    reverting.find_kept().await?;
    reverting.remove_new().await?;
    reverting.put_back().await?;
    reverting.settle_quotas().await?;
    reverting.end(record.inodes, record.file_bytes).await?;
    let done = reverting.done;
    let (keys, removed, restored) = (done.keys, done.removed_inodes, done.restored_inodes);
    tracing::info!(snapshot, keys, removed, restored, "the volume is restored");
    Ok(Some(done))
}

async fn require_applied(meta: &Metadata) -> Result<(), FsError> {
    let last = meta.last_ticket();
    meta.applied(last).await.map_err(meta_error)
}

struct Reverting {
    meta: Metadata,
    seen: Generation,
    up_to: Generation,
    now: Timestamp,
    batch: Batch,
    last: Ticket,
    /// Directories that users do not see: their attributes stay.
    kept: FxHashSet<Ino>,
    /// Such directories in the hidden folder that the snapshot does not have. They stay, and are emptied.
    kept_new: FxHashSet<Ino>,
    /// Directories with quotas.
    limited: FxHashSet<Ino>,
    /// The next sequence numbers of directories that get names back.
    cookies_next: FxHashMap<Ino, u64>,
    done: Reverted,
}

/// A directory whose names are being removed.
struct Emptying {
    dir: Ino,
    /// The sequence number of its next name to check.
    next: u64,
    /// Whether the directory is removed, too.
    goes: bool,
}

impl Reverting {
    /// Finds the hidden folder and the folders in it: schedules, clients that may use LUNs, permissions of buckets.
    /// Also those that the snapshot does not have: a rollback must not return to a time when the volume asked for no
    /// secrets.
    async fn find_kept(&mut self) -> Result<(), FsError> {
        self.kept.insert(HIDDEN);
        let (from, to) = Key::cookies_after(HIDDEN, 0);
        for (_, value) in self.scan(&from, &to, usize::MAX).await? {
            let entry = decode_cookie(&value)?;
            if entry.kind != InodeKind::Directory {
                continue;
            }
            self.kept.insert(entry.ino);
            if self.shown_inode(entry.ino).await?.is_none() {
                self.kept_new.insert(entry.ino);
            }
        }
        let (from, to) = Key::all_quotas();
        for (key, _) in self.scan(&from, &to, usize::MAX).await? {
            if let Ok(KeyKind::Quota(of)) = key.kind() {
                self.limited.insert(of.tree);
            }
        }
        Ok(())
    }

    /// Removes the entries that the snapshot does not have.
    async fn remove_new(&mut self) -> Result<(), FsError> {
        self.empty_new_hidden().await?;
        let mut at = None;
        while let Some(page) = self.gone(Key::inodes(), &mut at).await? {
            for version in page {
                self.remove_new_of(&version).await?;
            }
        }
        let mut at = None;
        while let Some(page) = self.gone(Key::all_cookies(), &mut at).await? {
            for version in page {
                self.remove_other_name(&version).await?;
            }
        }
        // Removed entries must not be found, and freed, a second time.
        self.store().await?;
        self.remove_other_extents().await?;
        // Inodes without a name.
        let (from, to) = Key::orphans();
        for key in self.new_keys(&from, &to).await? {
            let Ok(KeyKind::Orphan(ino)) = key.kind() else {
                continue;
            };
            match self.shown_inode(ino).await? {
                Some(_) => {
                    self.delete(key);
                    // The reaper had not reached it yet: it comes back as an orphan.
                    let (from, to) = Key::xattrs(ino);
                    for (key, _) in self.scan(&from, &to, usize::MAX).await? {
                        if is_access(&key) {
                            self.delete(key);
                        }
                    }
                }
                None => self.remove(ino).await?,
            }
        }
        self.store().await
    }

    /// Empties the hidden folder, and folders in it, that the snapshot does not have; these folders stay.
    async fn empty_new_hidden(&mut self) -> Result<(), FsError> {
        if self.shown_inode(HIDDEN).await?.is_none() {
            self.empty_kept(HIDDEN).await?;
        }
        let mut new: Vec<Ino> = self.kept_new.iter().copied().collect();
        new.sort_unstable();
        for dir in new {
            self.empty_kept(dir).await?;
        }
        Ok(())
    }

    async fn empty_kept(&mut self, dir: Ino) -> Result<(), FsError> {
        let Some(mut record) = self.live_inode(dir).await? else {
            return Ok(());
        };
        self.empty(Emptying {
            dir,
            next: COOKIE_FIRST,
            goes: false,
        })
        .await?;
        let folders = self.kept_new_in(dir);
        (record.entry_count, record.nlink) = (u64::from(folders), 2 + folders);
        self.put(Key::inode(dir), record.encode());
        Ok(())
    }

    /// The number of folders that stay in a directory although the snapshot does not have them.
    fn kept_new_in(&self, dir: Ino) -> u32 {
        match dir == HIDDEN {
            // Not more than there are kinds of services.
            true => self.kept_new.len() as u32,
            false => 0,
        }
    }

    /// Removes the new parts of an inode that the snapshot has in another state.
    async fn remove_new_of(&mut self, version: &DeadVersion) -> Result<(), FsError> {
        let (Ok(KeyKind::Inode(ino)), Some(value)) = (version.key.kind(), &version.value) else {
            return Ok(());
        };
        let shown = decode_inode(value)?;
        if self.live_inode(ino).await?.is_none() {
            return Ok(());
        }
        if !self.kept.contains(&ino) {
            let (from, to) = Key::xattrs(ino);
            for key in self.new_keys(&from, &to).await? {
                if !is_access(&key) {
                    self.delete(key);
                }
            }
        }
        match shown.kind {
            InodeKind::Directory => {
                self.empty(Emptying {
                    dir: ino,
                    next: shown.cookie_next,
                    goes: false,
                })
                .await
            }
            _ => self.remove_extents(ino, true).await,
        }
    }

    /// The sequence number of a changed name now has another name, perhaps of a new file.
    async fn remove_other_name(&mut self, version: &DeadVersion) -> Result<(), FsError> {
        let Ok(KeyKind::Cookie { dir, .. }) = version.key.kind() else {
            return Ok(());
        };
        let Some(value) = self.live(&version.key).await? else {
            return Ok(());
        };
        let entry = decode_cookie(&value)?;
        if self.kept.contains(&entry.ino) {
            return Ok(());
        }
        if self.shown_inode(entry.ino).await?.is_none() {
            self.remove(entry.ino).await?;
        }
        self.delete_new(Key::dirent(dir, &entry.name)).await
    }

    /// A file with an unchanged record may have extents with other boundaries: a move of its bytes into other records
    /// changes nothing else of it.
    async fn remove_other_extents(&mut self) -> Result<(), FsError> {
        let (mut at, mut last) = (None, None);
        while let Some(page) = self.gone(Key::all_extents(), &mut at).await? {
            for version in page {
                let Ok(KeyKind::Extent { ino, .. }) = version.key.kind() else {
                    continue;
                };
                if last.replace(ino) == Some(ino)
                    || self.live_inode(ino).await?.is_none()
                    || self.shown_inode(ino).await?.is_none()
                {
                    continue;
                }
                self.remove_extents(ino, true).await?;
            }
        }
        self.store().await
    }

    /// Removes a new inode, with all new inodes in it.
    async fn remove(&mut self, ino: Ino) -> Result<(), FsError> {
        match self.live_inode(ino).await? {
            Some(record) if record.kind == InodeKind::Directory => {
                self.empty(Emptying {
                    dir: ino,
                    next: COOKIE_FIRST,
                    goes: true,
                })
                .await
            }
            Some(record) => self.remove_inode(ino, &record).await,
            // It was removed by another of its names.
            None => Ok(()),
        }
    }

    async fn empty(&mut self, first: Emptying) -> Result<(), FsError> {
        let mut dirs = vec![first];
        'dirs: while let Some(mut emptying) = dirs.pop() {
            if planted::is(Bug::RestoreKeepsNewFiles) && !emptying.goes {
                continue;
            }
            loop {
                let (from, to) = Key::cookies_after(emptying.dir, emptying.next.saturating_sub(1));
                let page = self.scan(&from, &to, READ_MAX).await?;
                let is_last = page.len() < READ_MAX;
                for (key, value) in page {
                    let entry = decode_cookie(&value)?;
                    if self.kept.contains(&entry.ino) {
                        if let Ok(KeyKind::Cookie { seq, .. }) = key.kind() {
                            emptying.next = seq.saturating_add(1);
                        }
                        continue;
                    }
                    if self.shown_inode(entry.ino).await?.is_none()
                        && let Some(record) = self.live_inode(entry.ino).await?
                    {
                        if record.kind == InodeKind::Directory {
                            if dirs.len() >= DEPTH_MAX {
                                let dir = emptying.dir;
                                let why = format!("directory {dir} lies too deep to be removed");
                                return Err(FsError::Io(why));
                            }
                            // The directory is empty, and is removed when its name is visited again.
                            dirs.push(emptying);
                            dirs.push(Emptying {
                                dir: entry.ino,
                                next: COOKIE_FIRST,
                                goes: true,
                            });
                            continue 'dirs;
                        }
                        self.remove_inode(entry.ino, &record).await?;
                    }
                    if let Ok(KeyKind::Cookie { seq, .. }) = key.kind() {
                        emptying.next = seq.saturating_add(1);
                    }
                    self.delete_new(Key::dirent(emptying.dir, &entry.name))
                        .await?;
                    self.delete(key);
                    self.store_if_long().await?;
                }
                if is_last {
                    break;
                }
            }
            if emptying.goes
                && let Some(record) = self.live_inode(emptying.dir).await?
            {
                self.remove_inode(emptying.dir, &record).await?;
            }
            // The next lookup finds it gone.
            self.store().await?;
        }
        Ok(())
    }

    async fn remove_inode(&mut self, ino: Ino, record: &InodeRecord) -> Result<(), FsError> {
        let (from, to) = Key::xattrs(ino);
        for (key, _) in self.scan(&from, &to, usize::MAX).await? {
            self.delete(key);
        }
        if record.kind == InodeKind::Regular {
            self.remove_extents(ino, false).await?;
        }
        self.delete(Key::orphan(ino));
        self.delete(Key::inode(ino));
        if self.limited.contains(&ino) {
            self.delete_quotas_of(ino).await?;
        }
        self.batch.charge(owner_of(record), -usage_of(record));
        self.batch.space(SpaceDelta {
            inodes: -1,
            ..SpaceDelta::default()
        });
        self.done.removed_inodes += 1;
        self.store().await
    }

    /// Removes the extents of a file; of a file in the snapshot, only those that the snapshot does not have.
    async fn remove_extents(&mut self, ino: Ino, is_shown: bool) -> Result<(), FsError> {
        let (mut from, to) = Key::extents_past(ino, 0);
        loop {
            let meta = self.meta.clone();
            let read = || {
                let mut page: Vec<(Key, Extent)> = Vec::new();
                let mut damage = None;
                let scanned = meta.live().scan_with(&from, &to, |key, value, birth| {
                    match (Key::parse(key), parse_extent(key, value, birth)) {
                        (Ok(key), Ok((_, extent))) => page.push((key, extent)),
                        (Err(error), _) => damage = Some(error.into()),
                        (_, Err(error)) => damage = Some(error),
                    }
                    match damage.is_some() || page.len() == READ_MAX {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
                match scanned.err().or(damage) {
                    Some(error) => Err(meta_error(error)),
                    None => Ok(page),
                }
            };
            let page = self.meta.reading(read).await?;
            for (key, extent) in &page {
                let stays =
                    is_shown && (extent.birth <= self.seen || self.shown(key).await?.is_some());
                if stays {
                    continue;
                }
                self.delete(key.clone());
                self.release(extent);
                self.store_if_long().await?;
            }
            match page.last() {
                Some((last, _)) if page.len() == READ_MAX => from = last.successor(),
                _ => return Ok(()),
            }
        }
    }

    fn release(&mut self, extent: &Extent) {
        let bytes = extent.live_bytes().unsigned_abs();
        self.batch
            .release(Branch::MAIN, extent.segment(), extent.birth, bytes, 1);
        self.batch.space(SpaceDelta {
            file_bytes: -(extent.len_bytes() as i64),
            ..SpaceDelta::default()
        });
    }

    /// Puts back the entries that the volume lost or changed since the snapshot.
    async fn put_back(&mut self) -> Result<(), FsError> {
        // Removed entries are in none of the marks, but may be in the way.
        require_applied(&self.meta).await?;
        let mut at = None;
        while let Some(page) = self.gone(Key::all_cookies(), &mut at).await? {
            for version in page {
                self.put_name(&version).await?;
                self.store_if_long().await?;
            }
        }
        self.store().await?;
        let all = (Key::inodes().0, Key::all_segments().0);
        let mut at = None;
        while let Some(page) = self.gone(all.clone(), &mut at).await? {
            for version in page {
                let Some(value) = &version.value else {
                    continue;
                };
                match version.key.kind() {
                    Ok(KeyKind::Inode(ino)) => self.put_inode(ino, value).await?,
                    Ok(KeyKind::Extent { .. }) => self.put_extent(&version, value).await?,
                    Ok(KeyKind::Xattr { ino, .. })
                        if self.kept.contains(&ino) || is_access(&version.key) => {}
                    // Handled where inodes get their names.
                    Ok(KeyKind::Cookie { .. } | KeyKind::Dirent { .. }) => {}
                    _ => {
                        if self.live(&version.key).await?.as_ref() != Some(value) {
                            self.put(version.key.clone(), value.clone());
                        }
                    }
                }
                self.store_if_long().await?;
            }
        }
        self.store().await
    }

    /// Puts back a name, or points it at its former file. A free sequence number is not used again: a snapshot may
    /// have it for another name, and later snapshots find new names by their numbers.
    async fn put_name(&mut self, version: &DeadVersion) -> Result<(), FsError> {
        let (Ok(KeyKind::Cookie { dir, seq }), Some(value)) = (version.key.kind(), &version.value)
        else {
            return Ok(());
        };
        let entry = decode_cookie(value)?;
        let mut cookie = seq;
        match self.live(&version.key).await? {
            Some(live) if live == value => {}
            Some(_) => self.put(version.key.clone(), value.clone()),
            None => {
                cookie = self.next_cookie(dir).await?;
                self.put(Key::cookie(dir, cookie), value.clone());
            }
        }
        let dirent = DirentRecord {
            ino: entry.ino,
            kind: entry.kind,
            cookie,
        };
        let (key, dirent) = (Key::dirent(dir, &entry.name), Bytes::from(dirent.encode()));
        if self.live(&key).await?.as_ref() != Some(&dirent) {
            self.put(key, dirent);
        }
        Ok(())
    }

    async fn next_cookie(&mut self, dir: Ino) -> Result<u64, FsError> {
        let next = match self.cookies_next.get(&dir) {
            Some(next) => *next,
            None => self.cookie_next(dir).await?,
        };
        self.cookies_next.insert(dir, next.saturating_add(1));
        Ok(next)
    }

    /// Whether bytes or extended attributes differ from those in the snapshot.
    async fn is_other_inside(&self, ino: Ino) -> Result<bool, FsError> {
        let xattrs = (!self.kept.contains(&ino)).then(|| Key::xattrs(ino));
        for range in xattrs.into_iter().chain([Key::extents_past(ino, 0)]) {
            if self.gone(range, &mut None).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The present sequence number of the entry of an inode in the snapshot.
    async fn cookie_of(&self, ino: Ino, record: &InodeRecord) -> Result<u64, FsError> {
        let key = Key::cookie(record.parent, record.cookie);
        if let Some(entry) = self.shown(&key).await? {
            let entry = decode_cookie(&entry)?;
            let key = Key::dirent(record.parent, &entry.name);
            if let Some(dirent) = self.live(&key).await? {
                let dirent = DirentRecord::decode(&dirent);
                let dirent = dirent.map_err(|error| meta_error(error.into()))?;
                if dirent.ino == ino {
                    return Ok(dirent.cookie);
                }
            }
        }
        Ok(record.cookie)
    }

    async fn put_inode(&mut self, ino: Ino, value: &[u8]) -> Result<(), FsError> {
        let mut record = decode_inode(value)?;
        let live = self.live_inode(ino).await?;
        if record.kind == InodeKind::Directory {
            record.cookie_next = match self.cookies_next.get(&ino) {
                Some(next) => *next,
                None => self.cookie_next(ino).await?,
            };
        }
        if record.cookie > 0 {
            record.cookie = self.cookie_of(ino, &record).await?;
        }
        if self.kept.contains(&record.parent) {
            record.xattr_names_len_bytes = self.xattr_names_len(ino).await?;
        }
        if ino == HIDDEN {
            let folders = self.kept_new_in(ino);
            record.entry_count += u64::from(folders);
            record.nlink += folders;
        }
        if record.used_bytes > 0 {
            record.stored_bytes = self.shown_stored_bytes(ino).await?;
        }
        if let Some(live) = &live {
            if self.kept.contains(&ino) {
                record.xattr_names_len_bytes = live.xattr_names_len_bytes;
            }
            let same = InodeRecord {
                ctime: record.ctime,
                atime: record.atime,
                ..live.clone()
            };
            // A change that restores the file's time, and changes no time by an attribute, does not show in its record.
            if same == record && !self.is_other_inside(ino).await? {
                return Ok(());
            }
        }
        // So that clients know that their caches are outdated.
        record.ctime = live
            .as_ref()
            .map_or(self.now, |live| self.now.max(live.ctime.successor()));
        if let Some(live) = &live {
            self.batch.charge(owner_of(live), -usage_of(live));
        }
        if !planted::is(Bug::RestoreCountsNothing) {
            self.batch.charge(owner_of(&record), usage_of(&record));
        }
        self.batch.space(SpaceDelta {
            inodes: i64::from(live.is_none()),
            ..SpaceDelta::default()
        });
        self.put(Key::inode(ino), record.encode());
        self.done.restored_inodes += 1;
        Ok(())
    }

    /// The size of the names of a restored hidden file's extended attributes: those of the snapshot, but for the
    /// access rules, which stay as they are now.
    async fn xattr_names_len(&self, ino: Ino) -> Result<u32, FsError> {
        let (from, to) = Key::xattrs(ino);
        let view = View::Snapshot(self.seen);
        let shown = || {
            let found = self.meta.view(view);
            let found = found.and_then(|meta| meta.scan(&from, &to, usize::MAX));
            found.map_err(meta_error)
        };
        let shown = self.meta.reading(shown).await?;
        let live = self.scan(&from, &to, usize::MAX).await?;
        let stay = live.iter().filter(|(key, _)| is_access(key));
        let come = shown.iter().filter(|(key, _)| !is_access(key));
        let len = |(key, _): &(Key, Bytes)| match key.kind() {
            Ok(KeyKind::Xattr { name, .. }) => listed_len_bytes(name),
            _ => 0,
        };
        Ok(stay.chain(come).map(len).sum())
    }

    /// The stored bytes of the extents that the snapshot has. Records that a collection moved since may take more or
    /// less than the file's old record says.
    async fn shown_stored_bytes(&self, ino: Ino) -> Result<u64, FsError> {
        let (from, to) = Key::extents_past(ino, 0);
        let view = View::Snapshot(self.seen);
        let read = || {
            let mut sum = 0u64;
            let mut damage = None;
            let meta = self.meta.view(view).map_err(meta_error)?;
            let scanned = meta.scan_with(&from, &to, |key, value, birth| {
                match parse_extent(key, value, birth) {
                    Ok((_, extent)) => {
                        sum = sum.saturating_add(extent.live_bytes().unsigned_abs());
                        ControlFlow::Continue(())
                    }
                    Err(error) => {
                        damage = Some(error);
                        ControlFlow::Break(())
                    }
                }
            });
            match scanned.err().or(damage) {
                Some(error) => Err(meta_error(error)),
                None => Ok(sum),
            }
        };
        self.meta.reading(read).await
    }

    /// No sequence number is used twice, whichever snapshots have the directory.
    async fn cookie_next(&self, ino: Ino) -> Result<u64, FsError> {
        let key = Key::inode(ino);
        let meta = self.meta.clone();
        let read = || {
            let found = meta.history(&key, &key.successor(), None, usize::MAX);
            found.map_err(meta_error)
        };
        let live = self.live_inode(ino).await?;
        let mut next = live.map_or(COOKIE_FIRST, |live| live.cookie_next);
        for version in self.meta.reading(read).await? {
            if let Some(value) = &version.value {
                next = next.max(decode_inode(value)?.cookie_next);
            }
        }
        Ok(next)
    }

    async fn put_extent(&mut self, version: &DeadVersion, value: &Bytes) -> Result<(), FsError> {
        let key = version.key.as_bytes();
        let extent = |value: &[u8], birth| {
            let parsed = parse_extent(key, value, birth);
            parsed.map(|(_, extent)| extent).map_err(meta_error)
        };
        if let Some((live, birth)) = self.live_with_birth(&version.key).await? {
            if live == value {
                return Ok(());
            }
            self.release(&extent(&live, birth)?);
        }
        let shown = extent(value, version.birth)?;
        let bytes = shown.live_bytes();
        // The version in the history counts in the segment, so the segment is not dead.
        if let Some(segment) = shown.segment() {
            self.batch.segment_delta(segment, bytes, 1);
        }
        self.batch.space(SpaceDelta {
            file_bytes: shown.len_bytes() as i64,
            stored_bytes: bytes,
            ..SpaceDelta::default()
        });
        self.put(version.key.clone(), value.clone());
        Ok(())
    }

    /// Limits stay as they are now. The contents of each directory with limits are counted again. Limits of
    /// directories that are gone are deleted. Inodes that count for a directory without limits now count for the tree
    /// around it.
    async fn settle_quotas(&mut self) -> Result<(), FsError> {
        require_applied(&self.meta).await?;
        let (from, to) = Key::all_quotas();
        let mut trees: FxHashMap<Ino, QuotaRecord> = FxHashMap::default();
        for (key, value) in self.scan(&from, &to, usize::MAX).await? {
            if let Ok(KeyKind::Quota(of)) = key.kind()
                && of.tree != VOLUME_TREE
                && of == tree_key(of.tree)
            {
                let record = QuotaRecord::decode(&value);
                trees.insert(of.tree, record.map_err(|error| meta_error(error.into()))?);
            }
        }
        let mut used: Vec<Ino> = self
            .meta
            .own_usages()
            .iter()
            .map(|(key, _)| key.tree)
            .collect();
        used.sort_unstable();
        used.dedup();
        for tree in used {
            if tree != VOLUME_TREE && !trees.contains_key(&tree) {
                let record = QuotaRecord {
                    state: TreeState::Leaving,
                    ..QuotaRecord::default()
                };
                trees.insert(tree, record);
            }
        }
        let mut is_there = FxHashSet::default();
        for tree in trees.keys() {
            if self
                .live_inode(*tree)
                .await?
                .is_some_and(|record| record.nlink > 0)
            {
                is_there.insert(*tree);
            }
        }
        let mut inos: Vec<Ino> = trees.keys().copied().collect();
        inos.sort_unstable();
        for tree in inos {
            let Some(mut record) = trees.get(&tree).cloned() else {
                continue;
            };
            let before = record.clone();
            match (is_there.contains(&tree), record.state) {
                (true, TreeState::Counted) => record.state = TreeState::Counting,
                (true, _) => {}
                (false, _) => record.state = TreeState::Leaving,
            }
            record.parent = match is_there.contains(&tree) {
                true => self.tree_above(tree, &trees).await?,
                false => VOLUME_TREE,
            };
            if record != before || !self.has(&Key::quota(tree_key(tree))).await? {
                self.put(Key::quota(tree_key(tree)), record.encode());
            }
        }
        self.store().await
    }

    /// The nearest directory above that has limits.
    async fn tree_above(
        &self,
        tree: Ino,
        trees: &FxHashMap<Ino, QuotaRecord>,
    ) -> Result<Ino, FsError> {
        let mut at = tree;
        for _ in 0..DEPTH_MAX {
            let Some(record) = self.live_inode(at).await? else {
                break;
            };
            if at == ROOT || record.parent == at {
                break;
            }
            at = record.parent;
            let is_live = |record: &QuotaRecord| record.state != TreeState::Leaving;
            if trees.get(&at).is_some_and(is_live) {
                return Ok(at);
            }
        }
        Ok(VOLUME_TREE)
    }

    /// Limits on users and groups in a directory are deleted with it.
    async fn delete_quotas_of(&mut self, dir: Ino) -> Result<(), FsError> {
        for (from, to) in [Key::all_quotas(), Key::all_graces()] {
            for (key, _) in self.scan(&from, &to, usize::MAX).await? {
                if let Ok(KeyKind::Quota(of) | KeyKind::Grace(of)) = key.kind()
                    && of.tree == dir
                {
                    self.delete(key);
                }
            }
        }
        Ok(())
    }

    async fn end(&mut self, inodes: u64, file_bytes: u64) -> Result<(), FsError> {
        require_applied(&self.meta).await?;
        let counters = self.meta.counters();
        let has_new_hidden =
            self.shown_inode(HIDDEN).await?.is_none() && self.live_inode(HIDDEN).await?.is_some();
        let stay = self.kept_new.len() as u64 + u64::from(has_new_hidden);
        let want = (inodes + stay, file_bytes);
        let has = (counters.inodes, counters.file_bytes);
        if has != want {
            tracing::error!(
                ?has,
                ?want,
                "the restored volume does not count as many files and bytes as its snapshot did; run a scrub, and report this"
            );
        }
        let ended = self
            .meta
            .change_snapshot(self.seen, |record| record.is_restoring = false);
        let ended = ended.map_err(|error| FsError::Io(error.to_string()))?;
        self.meta.applied(ended).await.map_err(meta_error)
    }

    /// The next versions that the snapshot shows and the volume lacked when the rollback began.
    async fn gone(
        &self,
        (from, to): (Key, Key),
        at: &mut Option<Key>,
    ) -> Result<Option<Vec<DeadVersion>>, FsError> {
        let meta = self.meta.clone();
        let (seen, up_to, begin) = (self.seen, self.up_to, at.clone());
        let read = || {
            let found = meta.gone_since(seen, up_to, (&from, &to), begin.as_ref(), READ_MAX);
            found.map_err(meta_error)
        };
        let found = self.meta.reading(read).await?.versions;
        *at = found.last().map(|last| last.mark().successor());
        let_others_run().await;
        Ok(Some(found).filter(|found| !found.is_empty()))
    }

    /// Keys of the volume that the snapshot does not have.
    async fn new_keys(&self, from: &Key, to: &Key) -> Result<Vec<Key>, FsError> {
        let mut new = Vec::new();
        for (key, _) in self.scan(from, to, usize::MAX).await? {
            if self.shown(&key).await?.is_none() {
                new.push(key);
            }
        }
        Ok(new)
    }

    async fn delete_new(&mut self, key: Key) -> Result<(), FsError> {
        if self.shown(&key).await?.is_none() {
            self.delete(key);
        }
        Ok(())
    }

    async fn scan(&self, from: &Key, to: &Key, max: usize) -> Result<Vec<(Key, Bytes)>, FsError> {
        let read = || self.meta.live().scan(from, to, max).map_err(meta_error);
        self.meta.reading(read).await
    }

    async fn live(&self, key: &Key) -> Result<Option<Bytes>, FsError> {
        let read = || self.meta.live().get(key).map_err(meta_error);
        self.meta.reading(read).await
    }

    async fn has(&self, key: &Key) -> Result<bool, FsError> {
        Ok(self.live(key).await?.is_some())
    }

    async fn live_with_birth(&self, key: &Key) -> Result<Option<(Bytes, Generation)>, FsError> {
        let read = || {
            let mut found = None;
            let scanned = self
                .meta
                .live()
                .scan_with(key, &key.successor(), |_, value, birth| {
                    found = Some((Bytes::copy_from_slice(value), birth));
                    ControlFlow::Break(())
                });
            scanned.map_err(meta_error)?;
            Ok(found)
        };
        self.meta.reading(read).await
    }

    async fn shown(&self, key: &Key) -> Result<Option<Bytes>, FsError> {
        let view = View::Snapshot(self.seen);
        let read = || {
            let found = self.meta.view(view).and_then(|meta| meta.get(key));
            found.map_err(meta_error)
        };
        self.meta.reading(read).await
    }

    async fn live_inode(&self, ino: Ino) -> Result<Option<InodeRecord>, FsError> {
        let stored = self.live(&Key::inode(ino)).await?;
        stored.map(|stored| decode_inode(&stored)).transpose()
    }

    async fn shown_inode(&self, ino: Ino) -> Result<Option<InodeRecord>, FsError> {
        let stored = self.shown(&Key::inode(ino)).await?;
        stored.map(|stored| decode_inode(&stored)).transpose()
    }

    fn put(&mut self, key: Key, value: impl Into<Bytes>) {
        self.batch.put(key, value);
        self.done.keys += 1;
    }

    fn delete(&mut self, key: Key) {
        self.batch.delete(key);
        self.done.keys += 1;
    }

    async fn store_if_long(&mut self) -> Result<(), FsError> {
        match self.batch.len_bytes() >= BATCH_BYTES.min(self.meta.batch_bytes_max() / 2) {
            true => self.store().await,
            false => Ok(()),
        }
    }

    /// After this, the contents of the batch are visible, and on their way into the log.
    async fn store(&mut self) -> Result<(), FsError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.meta.admit().await;
        self.last = self.meta.commit_unopened(std::mem::take(&mut self.batch));
        if self.last == Ticket::REFUSED {
            self.meta.durable(self.last).await.map_err(meta_error)?;
        }
        Ok(())
    }
}

/// Whether the key is an extended attribute with access rules of a file.
fn is_access(key: &Key) -> bool {
    matches!(key.kind(), Ok(KeyKind::Xattr { name, .. }) if name.starts_with(XATTR_ACCESS_PREFIX))
}

fn decode_inode(stored: &[u8]) -> Result<InodeRecord, FsError> {
    InodeRecord::decode(stored).map_err(|error| meta_error(error.into()))
}

fn decode_cookie(stored: &[u8]) -> Result<CookieRecord, FsError> {
    CookieRecord::decode(stored).map_err(|error| meta_error(error.into()))
}
