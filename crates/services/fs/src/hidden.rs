//! The hidden folder of a volume: the place of data beside the files that clients see.
//!
//! Owns: one folder that no name leads to, made at the first use. Must not know: its contents. LUNs are in it
//! (`cairn_san`).
//!
//! Its inode is an ordinary directory, so its contents have protection, space, crash safety and takeover like the
//! rest of the volume. It has no entry in any directory: no lookup finds it, and the server gives out no signed
//! handle to it.

use cairn_base::{Branch, Ino, View};
use cairn_meta::{Batch, InodeKind, InodeRecord, Key, SpaceDelta, Ticket, UsageDelta, root_tree};

use crate::kernel::{Bare, of_volume, owner_of};
use crate::types::FsError;
use crate::volume::{Fs, ROOT, VolumeCore};

/// The hidden folder's inode. Other inodes are numbered from below, and never reach this number.
pub(crate) const HIDDEN: Ino = Ino(u64::MAX - 1);

impl Fs {
    /// The hidden folder; `None` if nothing was ever put there.
    pub async fn hidden_folder(&self) -> Result<Option<Ino>, FsError> {
        let shared = &self.shared;
        let hidden = HIDDEN.in_branch(self.branch());
        match shared.reading(|| shared.inode_in(View::Live, hidden)).await {
            Ok(_) => Ok(Some(hidden)),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The hidden folder; makes it if there is none. Durable on return.
    pub async fn make_hidden_folder(&self) -> Result<Ino, FsError> {
        let shared = &self.shared;
        let made = shared.reading(|| shared.make_hidden(self.branch())).await;
        shared.settle(made).await
    }
}

impl VolumeCore {
    fn make_hidden(&self, branch: Branch) -> Result<(Ino, Ticket), FsError> {
        let hidden = HIDDEN.in_branch(branch);
        // Of two concurrent callers, the second finds the folder of the first.
        let _turn = self.directory_moves.lock();
        match self.inode(hidden) {
            Ok(found) => return Ok((hidden, found.lock().shown())),
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
        self.require_serving()?;
        let now = self.now();
        let mut record = InodeRecord::new(InodeKind::Directory);
        record.mode = 0o700;
        record.nlink = 2;
        record.parent = ROOT.in_branch(branch);
        if !branch.is_main() {
            record.tree = root_tree(branch);
        }
        record.cookie_next = crate::namespace::COOKIE_FIRST;
        (record.atime, record.mtime, record.ctime) = (now, now, now);
        let mut batch = Batch::new();
        batch.put(Key::inode(hidden), record.encode());
        batch.charge(owner_of(&record), UsageDelta::ONE_INODE);
        let space = SpaceDelta {
            inodes: 1,
            ..SpaceDelta::default()
        };
        batch.space(of_volume(hidden, space));
        let make = || self.commit_bare(Bare::Hidden, batch);
        Ok((hidden, self.branches.within(branch, make)?))
    }
}
