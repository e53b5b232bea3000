//! Rename: a name moves, and may replace another.
//!
//! Owns: the order of checks (which error wins), the order of locks, that no directory comes to lie
//! below itself. Every rename submits one batch under the locks of all inodes it touches.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, View};
use cairn_meta::{DirentRecord, InodeKind, Owner, Ticket};

use crate::hidden::HIDDEN;
use crate::keep::{Changed, Keep, KeepPlan, KeepRequest, is_silly};
use crate::kernel::{Bare, Inode, Locked, owner_of};
use crate::namespace::{
    DirChange, NAME_ATTEMPTS_MAX, Unchanged, check_name, check_new_name, is_dot,
};
use crate::perm::{EXECUTE, WRITE, granted, require, require_unsticky};
use crate::types::*;
use crate::volume::{Fs, ROOT, VolumeCore};

/// The directories that a name moves from and to, which may be one.
type Both = (Wcc, Wcc);

/// The mover of a name, and the effect on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mover {
    /// Retained files stay in their places.
    Client,
    /// The keeper of previous versions: the file becomes a version, or stops being one.
    Versions { is_frozen: bool },
}

impl Fs {
    /// Moves the name of a file to the place of previous versions, or back, and replaces a file there. With
    /// `is_frozen`, nobody can change the file from then on. A retained file can be moved so, but not replaced.
    pub async fn move_version(
        &self,
        who: &Credentials,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        is_frozen: bool,
    ) -> Result<(), FsError> {
        self.move_version_if(who, from, to, is_frozen, None).await
    }

    /// Moves a version as [`Self::move_version`] does; with `only`, only a file that has not changed since the caller
    /// read its state: otherwise fails with [`FsError::NotSync`].
    pub async fn move_version_if(
        &self,
        who: &Credentials,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        is_frozen: bool,
        only: Option<Unchanged>,
    ) -> Result<(), FsError> {
        check_name(from.1)?;
        check_new_name(to.1)?;
        let mover = Mover::Versions { is_frozen };
        let rename = |keep: Keep<'_>| self.shared.rename(who, mover, from, to, keep, only);
        let done = self.shared.change_keeping(false, rename).await;
        self.shared.settle(done).await.map(|_| ())
    }

    /// Moves a name, and replaces the target if that is allowed (POSIX rename).
    pub async fn rename(
        &self,
        who: &Credentials,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
    ) -> Result<(Wcc, Wcc), FsError> {
        check_name(from_name)?;
        check_name(to_name)?;
        if is_dot(from_name) || is_dot(to_name) {
            return Err(FsError::Invalid);
        }
        check_new_name(to_name)?;
        let (from, to) = ((from_dir, from_name), (to_dir, to_name));
        let rename = |keep: Keep<'_>| self.shared.rename(who, Mover::Client, from, to, keep, None);
        let done = self.shared.change_keeping(self.is_keeping(), rename).await;
        self.shared.settle(done).await
    }
}

impl VolumeCore {
    fn rename(
        self: &Arc<Self>,
        who: &Credentials,
        mover: Mover,
        (from_dir, from_name): (Ino, &[u8]),
        (to_dir, to_name): (Ino, &[u8]),
        keep: Keep<'_>,
        only: Option<Unchanged>,
    ) -> Result<Changed<(Both, Ticket)>, FsError> {
        let from_parent = self.inode(from_dir)?;
        let to_parent = self.inode(to_dir)?;
        let is_removed = is_silly(to_name);
        let is_wanted = match (keep, is_removed) {
            (Keep::No, _) => false,
            (_, true) => !is_silly(from_name) && self.kept_directory(from_dir)?.is_some(),
            (_, false) => self.kept_directory(to_dir)?.is_some(),
        };
        let folder = self.folder_of(keep)?;
        for _ in 0..NAME_ATTEMPTS_MAX {
            for parent in [&from_parent, &to_parent] {
                let state = parent.lock();
                state.require_dir()?;
                require(who, state.guarded(), EXECUTE)?;
            }
            let source = self.dirent(from_dir, from_name)?.ok_or(FsError::NotFound)?;
            let target = self.dirent(to_dir, to_name)?;
            let Some(moved) = self.named(&source)? else {
                continue;
            };
            let replaced = match &target {
                Some(entry) => match self.named(entry)? {
                    Some(inode) => Some(inode),
                    None => continue,
                },
                None => None,
            };
            // Only one directory moves between parents at a time: the directories above the target cannot change
            // during the check.
            let is_dir = source.kind == InodeKind::Directory;
            if is_dir {
                self.require_loose(from_dir)?;
            }
            let moves_dir = is_dir && from_dir != to_dir;
            let _moving = moves_dir.then(|| self.directory_moves.lock());
            if moves_dir {
                self.require_not_above(moved.ino, to_dir)?;
                self.require_same_tree(from_dir, to_dir)?;
            }
            let is_other_tree = !moves_dir && self.is_other_tree(from_dir, to_dir)?;
            let mut inodes = vec![&from_parent, &to_parent, &moved];
            inodes.extend(replaced.as_ref());
            inodes.extend(folder.as_ref());
            let locked = Locked::all(&inodes);
            if self.dirent(from_dir, from_name)?.as_ref() != Some(&source)
                || self.dirent(to_dir, to_name)? != target
            {
                continue;
            }
            if only.is_some_and(|only| !only.is(moved.ino, locked.of(moved.ino).record.ctime)) {
                return Err(FsError::NotSync);
            }
            let move_ = Move {
                mover,
                from_dir,
                from_name,
                to_dir,
                to_name,
                source: &source,
                target: target.as_ref(),
                moved: &moved,
                replaced: replaced.as_ref(),
                is_other_tree,
                keep,
                is_wanted,
                is_removed,
                folder: folder.as_ref(),
            };
            return self.rename_locked(who, &move_, locked);
        }
        Err(FsError::TryLater)
    }

    fn rename_locked(
        self: &Arc<Self>,
        who: &Credentials,
        m: &Move<'_>,
        locked: Locked<'_>,
    ) -> Result<Changed<(Both, Ticket)>, FsError> {
        locked.of(m.from_dir).require_dir()?;
        locked.of(m.to_dir).require_dir()?;
        for dir in [m.from_dir, m.to_dir] {
            require(who, locked.of(dir).guarded(), WRITE | EXECUTE)?;
        }
        let moved_guard = locked.of(m.moved.ino).guarded();
        require_unsticky(who, locked.of(m.from_dir).guarded(), moved_guard)?;
        if m.mover == Mover::Client {
            locked.of(m.moved.ino).require_unretained(self.now())?;
        }
        let is_dir = moved_guard.kind == FileKind::Directory;
        if is_dir && m.mover != Mover::Client {
            return Err(FsError::IsDirectory);
        }
        let across = m.from_dir != m.to_dir;
        if let Some(replaced) = m.replaced {
            // Two names of one inode: nothing happens (POSIX).
            if replaced.ino == m.moved.ino {
                let involved = [m.from_dir, m.to_dir, m.moved.ino];
                let tickets = involved.map(|ino| locked.of(ino).ticket());
                let ticket = tickets.into_iter().fold(Ticket::NONE, Ticket::max);
                let wcc = |dir| {
                    let state = locked.of(dir);
                    state.wcc(dir, state.pre_attr())
                };
                let both = (wcc(m.from_dir), wcc(m.to_dir));
                return Ok(Changed::Done((both, ticket)));
            }
            let guard = locked.of(replaced.ino).guarded();
            require_unsticky(who, locked.of(m.to_dir).guarded(), guard)?;
            locked.of(replaced.ino).require_unretained(self.now())?;
            match (is_dir, guard.kind == FileKind::Directory) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if locked.of(replaced.ino).record.entry_count > 0 => {
                    return Err(FsError::NotEmpty);
                }
                _ => {}
            }
        }
        if is_dir && across {
            // The directory's `..` changes, which is a write to it.
            if granted(who, moved_guard) & WRITE == 0 {
                return Err(FsError::AccessDenied);
            }
            if m.replaced.is_none() {
                locked.of(m.to_dir).require_room_for_link()?;
            }
        }

        let tree = self.tree_of_moved(m, &locked, is_dir)?;
        self.require_serving()?;
        let (of, plan) = match self.plan_of_move(m, &locked)? {
            MovePlan::PrepareFirst(wanted) => return Ok(Changed::Keep(wanted)),
            MovePlan::Keep(of, plan) => (of, plan),
        };
        let now = self.now();
        let before_from = locked.of(m.from_dir).pre_attr();
        let before_to = locked.of(m.to_dir).pre_attr();
        let mut change = self.begin_change(locked);
        if let Some(replaced) = m.replaced
            && !plan.moves()
        {
            // This can fail, so it comes before any change.
            self.drop_link(&mut change, replaced.ino, now)?;
        }
        self.carry_out(&plan, of, &mut change);
        DirChange {
            dir: m.from_dir,
            change: &mut change,
        }
        .remove(m.from_name, m.source.cookie);
        let is_split = planted::is(Bug::RenameInTwoSteps);
        let first = is_split.then(|| change.commit_first_half());
        if is_dir {
            let mut edit = change.edit(m.from_dir);
            let record = edit.record();
            record.nlink = record.nlink.saturating_sub(1);
        }
        let mut into = DirChange {
            dir: m.to_dir,
            change: &mut change,
        };
        let cookie = match m.target {
            Some(entry) => {
                into.replace(m.to_name, m.moved.ino, m.source.kind, entry.cookie);
                entry.cookie
            }
            None if across => into.add(m.to_name, m.moved.ino, m.source.kind),
            // The entry keeps its place in the directory: otherwise a client that renames each listed entry would
            // never reach the end.
            None => {
                into.replace(m.to_name, m.moved.ino, m.source.kind, m.source.cookie);
                change.edit(m.to_dir).record().entry_count += 1;
                m.source.cookie
            }
        };
        // A directory that arrives adds a link; one that it replaces removes its own.
        if is_dir && m.replaced.is_none() {
            change.edit(m.to_dir).record().nlink += 1;
        }
        let mut edit = change.edit(m.moved.ino);
        match tree {
            Some(tree) if planted::is(Bug::RenameNotCharged) => edit.record().tree = tree,
            Some(tree) => {
                self.move_to_tree(&mut edit, tree);
                self.sync_pending(edit.state);
            }
            None if is_dir && across => self.quotas.note_moved(m.moved.ino),
            None => {}
        }
        let record = edit.record();
        (record.parent, record.cookie) = (m.to_dir, cookie);
        if let Mover::Versions { is_frozen } = m.mover {
            edit.record().is_frozen = is_frozen;
            edit.state.change_until = Duration::ZERO;
        }
        edit.touch_ctime(now);
        change.edit(m.from_dir).touch_mtime(now);
        if across {
            change.edit(m.to_dir).touch_mtime(now);
        }
        change.answer(who, m.moved.ino);
        if is_dir && across {
            self.policies.note_moved();
        }
        let done = match first {
            None => change.commit(),
            Some(first) => {
                let (done, rest) = change.commit_second_half(first);
                let shared = self.clone();
                let later = async move {
                    let _ = shared.commit_bare(Bare::Planted, rest);
                };
                self.tasks.spawn("second step", later);
                done
            }
        };
        let from = done.of(m.from_dir).wcc(m.from_dir, before_from);
        let to = done.of(m.to_dir).wcc(m.to_dir, before_to);
        Ok(Changed::Done(((from, to), done.ticket)))
    }

    /// What becomes of the file that a move keeps: the replaced one, or the moved one if its client removes it so.
    fn plan_of_move<'a>(&self, m: &Move<'a>, locked: &Locked<'_>) -> Result<MovePlan<'a>, FsError> {
        let of = match m.is_removed {
            true => Some((m.moved, m.from_dir, m.from_name)),
            false => m.replaced.map(|replaced| (replaced, m.to_dir, m.to_name)),
        };
        let Some((inode, dir, name)) = of.filter(|_| m.is_wanted) else {
            return Ok(MovePlan::Keep(m.moved.ino, KeepPlan::KeepNothing));
        };
        match self.plan_keeping(m.keep, true, inode, m.folder, locked)? {
            KeepPlan::PrepareFirst => Ok(MovePlan::PrepareFirst(KeepRequest {
                inode: inode.clone(),
                dir,
                name: name.to_vec(),
                removes: m.is_removed,
                stays: m.is_removed,
            })),
            plan => Ok(MovePlan::Keep(inode.ino, plan)),
        }
    }

    /// The new tree of the moved inode, if it changes trees. A directory stays in its tree.
    fn tree_of_moved(
        &self,
        m: &Move<'_>,
        locked: &Locked<'_>,
        is_dir: bool,
    ) -> Result<Option<Ino>, FsError> {
        if is_dir || !self.quotas.has_trees() {
            return Ok(None);
        }
        let tree = self.quotas.inherited(&locked.of(m.to_dir).record);
        let record = &locked.of(m.moved.ino).record;
        if record.tree == tree {
            return Ok(None);
        }
        if record.nlink > 1 {
            // The file would have names in two trees.
            if m.is_other_tree {
                return Err(FsError::CrossTree);
            }
            // The inode counts in the tree of another name.
            if !self.quotas.is_counting() {
                return Ok(None);
            }
        }
        let owner = owner_of(record);
        let new_owner = Owner { tree, ..owner };
        self.require_quota(new_owner, Some(owner), 1, record.used_bytes)?;
        Ok(Some(tree))
    }

    /// Fails if directories of `dir` must keep their places. The caller checks the moved directory itself.
    fn require_loose(&self, dir: Ino) -> Result<(), FsError> {
        let (root, hidden) = (ROOT.in_branch(dir.branch()), HIDDEN.in_branch(dir.branch()));
        let mut at = dir;
        while at != hidden {
            let inode = self.inode_in(View::Live, at)?;
            inode.lock().require_unretained(self.now())?;
            if at == root {
                break;
            }
            at = self.parent_of(at)?;
        }
        Ok(())
    }

    /// Fails when `dir` is `moved` or below it: moving `moved` there would cut off a cycle.
    fn require_not_above(&self, moved: Ino, dir: Ino) -> Result<(), FsError> {
        let mut at = dir;
        let root = ROOT.in_branch(dir.branch());
        while at != root {
            if at == moved {
                return Err(FsError::Invalid);
            }
            at = self.parent_of(at)?;
        }
        if moved == root {
            return Err(FsError::Invalid);
        }
        Ok(())
    }
}

/// What a move does before it moves.
enum MovePlan<'a> {
    /// This inode is kept as planned, or nothing is.
    Keep(Ino, KeepPlan<'a>),
    /// The place of the kept file has to be prepared first.
    PrepareFirst(KeepRequest),
}

struct Move<'a> {
    mover: Mover,
    from_dir: Ino,
    from_name: &'a [u8],
    to_dir: Ino,
    to_name: &'a [u8],
    source: &'a DirentRecord,
    target: Option<&'a DirentRecord>,
    moved: &'a Arc<Inode>,
    replaced: Option<&'a Arc<Inode>>,
    /// The directories are in two trees.
    is_other_tree: bool,
    keep: Keep<'a>,
    /// The replaced or removed file may have to be kept.
    is_wanted: bool,
    /// The client removes the moved file.
    is_removed: bool,
    /// The folder that keeps the file.
    folder: Option<&'a Arc<Inode>>,
}
