//! The path of an inode, from the root of its volume.
//!
//! Owns: the way up from an inode by the name that it records. Must not know: the caller and its purpose.
//!
//! An inode records its directory and its place in it, so each name is one read of the metadata, whatever the size of
//! the directory. For all names of files that have several, see [`Fs::paths_of`].

use cairn_base::Ino;

use cairn_meta::{CookieRecord, Key};

use crate::hidden::HIDDEN;
use crate::kernel::meta_error;
use crate::types::FsError;
use crate::volume::Fs;

/// Maximum depth of directories; corrupt metadata may have cycles.
const DEPTH_MAX: usize = 4096;

impl Fs {
    /// The path of an inode (`/a/b`); the root's is empty. `None`: the inode is gone, hidden, or its recorded name is
    /// gone.
    pub async fn path_of(&self, ino: Ino) -> Result<Option<Vec<u8>>, FsError> {
        let shared = &self.shared;
        let find = || {
            let (root, hidden) = (self.root(), HIDDEN.in_branch(self.branch()));
            let (mut at, mut names) = (ino, Vec::new());
            while at != root {
                if at == hidden || names.len() >= DEPTH_MAX {
                    return Ok(None);
                }
                let (parent, cookie, is_named) = {
                    let inode = shared.inode(at)?;
                    let state = inode.lock();
                    let record = &state.record;
                    (record.parent, record.cookie, record.nlink > 0)
                };
                let key = Key::cookie(parent, cookie);
                let live = shared.meta.live();
                let stored = live.get(&key).map_err(meta_error)?.filter(|_| is_named);
                let entry = stored.map(|bytes| CookieRecord::decode(&bytes)).transpose();
                let entry = entry.map_err(|error| meta_error(error.into()))?;
                let Some(entry) = entry.filter(|entry| entry.ino == at) else {
                    return Ok(None);
                };
                names.push(entry.name);
                at = parent;
            }
            Ok(Some(names))
        };
        let names = match shared.reading(find).await {
            Ok(Some(names)) => names,
            Ok(None) | Err(FsError::Stale | FsError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name.as_ref());
        }
        Ok(Some(path))
    }
}
