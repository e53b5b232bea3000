//! The hidden folder of a volume: what it keeps beside the files that clients see.
//!
//! Owns: that there is one place which no name leads to, made when it is first needed.
//! Must not know: what is kept there. LUNs are (`cairn_san`).
//!
//! It is a folder like any other, so that what lies in it has protection, space, crash safety and a next owner like the rest
//! of the volume. Only its own entry is missing: no lookup finds it, and a signed handle to it is never given out.

use cairn_base::Ino;
use cairn_meta::{Batch, InodeKind, InodeRecord, Key, SpaceDelta, Ticket, UsageDelta};

use crate::quota::owner_of;
use crate::types::FsError;
use crate::volume::{Fs, ROOT, Shared};

/// The hidden folder's inode. Others are numbered from below, and never come so far.
pub(crate) const HIDDEN: Ino = Ino(u64::MAX - 1);

impl Fs {
    /// The hidden folder; `None` if nothing was ever put there.
    pub async fn hidden_folder(&self) -> Result<Option<Ino>, FsError> {
        let shared = &self.shared;
        match shared.reading(|| shared.inode(HIDDEN)).await {
            Ok(_) => Ok(Some(HIDDEN)),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The hidden folder, made if there is none yet. Durable when answered.
    pub async fn make_hidden_folder(&self) -> Result<Ino, FsError> {
        let shared = &self.shared;
        let made = shared.reading(|| shared.make_hidden()).await;
        shared.settle(made).await
    }
}

impl Shared {
    fn make_hidden(&self) -> Result<(Ino, Ticket), FsError> {
        // Of two who make it at the same time, one finds it.
        let _turn = self.directory_moves.lock();
        match self.inode(HIDDEN) {
            Ok(found) => return Ok((HIDDEN, found.lock().shown())),
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
        self.require_serving()?;
        let now = self.now();
        let mut record = InodeRecord::new(InodeKind::Directory);
        record.mode = 0o700;
        record.nlink = 2;
        record.parent = ROOT;
        record.cookie_next = crate::namespace::COOKIE_FIRST;
        (record.atime, record.mtime, record.ctime) = (now, now, now);
        let mut batch = Batch::new();
        batch.put(Key::inode(HIDDEN), record.encode());
        batch.charge(owner_of(&record), UsageDelta::ONE_INODE);
        batch.space(SpaceDelta {
            inodes: 1,
            ..SpaceDelta::default()
        });
        Ok((HIDDEN, self.meta.submit(batch)))
    }
}
