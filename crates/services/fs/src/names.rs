//! The names of a directory in byte order, from any name on.
//!
//! Owns: a page of names by one seek, and a lookup of one name without attributes. Must not know: the caller (S3
//! lists so; NFS has cookies).

use std::ops::ControlFlow;
use std::sync::Arc;

use cairn_base::{Generation, Ino, View};
use cairn_meta::{DirentRecord, Key, KeyKind, Ticket};

use crate::kernel::{kind_of, meta_error};
use crate::namespace::check_name;
use crate::perm::{EXECUTE, READ, require};
use crate::types::*;
use crate::volume::{FsView, VolumeCore};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEntry {
    pub name: Arc<[u8]>,
    pub ino: Ino,
    pub kind: FileKind,
}

/// Names in byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamesPage {
    pub entries: Vec<NamedEntry>,
    /// No names come after these.
    pub eof: bool,
}

impl FsView {
    /// At most `limit` names of `dir` that come after `after` in byte order, or from it on if `inclusive`. `after` is
    /// any sequence of bytes without NUL: it need not be an existing name.
    pub async fn names_after(
        &self,
        who: &Credentials,
        dir: Ino,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<NamesPage, FsError> {
        if after.contains(&0) {
            return Err(FsError::Invalid);
        }
        let shared = &self.shared;
        let page = || shared.names_after(who, self.view(), dir, after, inclusive, limit);
        let done = shared.reading(page).await;
        shared.settle(done).await
    }
}

impl FsView {
    /// The inode of a name, without its attributes: so this waits for changes of the name alone, and not for changes
    /// of the inode. Otherwise each client that makes names in a directory would wait for all others.
    pub async fn child(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<(Ino, FileKind)>, FsError> {
        check_name(name)?;
        let shared = &self.shared;
        let find = || {
            let inode = shared.inode_in(self.view(), dir)?;
            {
                let state = inode.lock();
                state.require_dir()?;
                require(who, state.guarded(), EXECUTE)?;
            }
            shared.dirent_with_ticket(self.view(), dir, name)
        };
        let found = shared.reading(find).await;
        let entry = shared.settle(found).await?;
        Ok(entry.map(|entry| (entry.ino, kind_of(entry.kind))))
    }
}

impl VolumeCore {
    fn names_after(
        &self,
        who: &Credentials,
        view: View,
        dir: Ino,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<(NamesPage, Ticket), FsError> {
        let inode = self.inode_in(view, dir)?;
        {
            let state = inode.lock();
            state.require_dir()?;
            require(who, state.guarded(), READ)?;
            require(who, state.guarded(), EXECUTE)?;
        }
        let (view, stored_dir) = self.stored_at(view, dir)?;
        let (from, to) = Key::dirents_after(stored_dir, after, inclusive);
        let mut entries = Vec::new();
        let mut problem = None;
        let mut eof = true;
        let visit = |key: &[u8], value: &[u8], _: Generation| {
            if entries.len() == limit {
                eof = false;
                return ControlFlow::Break(());
            }
            match (KeyKind::parse(key), DirentRecord::decode(value)) {
                (Ok(KeyKind::Dirent { name, .. }), Ok(record)) => entries.push(NamedEntry {
                    name: name.into(),
                    ino: record.ino.in_branch(dir.branch()),
                    kind: kind_of(record.kind),
                }),
                (Err(error), _) => problem = Some(meta_error(error.into())),
                (_, Err(error)) => problem = Some(meta_error(error.into())),
                (Ok(_), Ok(_)) => {
                    problem = Some(FsError::Io(format!(
                        "directory {dir}: a key that is no entry"
                    )));
                }
            }
            match problem {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let scanned = self.meta.view(view);
        let scanned = scanned.and_then(|meta| meta.scan_with(&from, &to, visit));
        scanned.map_err(meta_error)?;
        if let Some(problem) = problem {
            return Err(problem);
        }
        // After the entries were read: by then the ticket covers all changes in them.
        let ticket = inode.lock().shown();
        Ok((NamesPage { entries, eof }, ticket))
    }
}
