//! Extended attributes: small named values that an inode carries beside its data.
//!
//! Owns: who may see and change them, and their limits, both as Linux has them (xattr(7)).
//! Must not know: any protocol. NFSv3 has none; those that do will come here.
//!
//! Only the namespace `user.` is here: the others are the client's kernel's own business. The inode's
//! record says how long the list of names is, so that removing a file without any costs nothing.

use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use cairn_base::{Generation, Ino, View};
use cairn_meta::{Batch, InodeKind, Key, KeyKind, Ticket};

use crate::inode::State;
use crate::perm::{MODE_STICKY, READ, WRITE, require};
use crate::room::METADATA_BYTES;
use crate::types::*;
use crate::volume::{Fs, FsView, Shared, meta_error};

const NAMESPACE: &[u8] = b"user.";
/// First byte of a stored value.
const VALUE_VERSION: u8 = 1;

impl FsView {
    /// The value of an extended attribute; `NoAttribute` if it is not there.
    pub async fn xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        check_xattr_name(name)?;
        let found = self
            .shared
            .reading(|| self.shared.xattr_of(who, self.view, ino, name))
            .await;
        self.shared.settle(found).await
    }

    /// The names of all extended attributes, in order. Anybody may ask.
    pub async fn xattr_list(&self, _who: &Credentials, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        let found = self
            .shared
            .reading(|| self.shared.xattrs_of(self.view, ino))
            .await;
        self.shared.settle(found).await
    }
}

impl Fs {
    /// Makes or replaces an extended attribute. Durable when answered.
    pub async fn set_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr, FsError> {
        check_xattr(name, value)?;
        let shared = &self.shared;
        shared.require_pool_space(METADATA_BYTES + value.len() as u64)?;
        shared.meta.admit().await;
        let put = || shared.put_xattr(who, ino, name, value, mode);
        let done = shared.reading(put).await;
        shared.settle(done).await
    }

    /// Removes an extended attribute; `NoAttribute` if it is not there. Durable when answered.
    pub async fn remove_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<Attr, FsError> {
        check_xattr_name(name)?;
        let done = self
            .shared
            .reading(|| self.shared.delete_xattr(who, ino, name))
            .await;
        self.shared.settle(done).await
    }
}

/// Checks a name, its namespace first: that is what Linux does.
fn check_xattr_name(name: &[u8]) -> Result<(), FsError> {
    if name.is_empty() || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    if name.len() > XATTR_NAME_LEN_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    match name.strip_prefix(NAMESPACE) {
        None => Err(FsError::NotSupported),
        Some([]) => Err(FsError::Invalid),
        Some(_) => Ok(()),
    }
}

/// Checks an extended attribute that is to be made; returns what its name takes in the list.
pub(crate) fn check_xattr(name: &[u8], value: &[u8]) -> Result<u32, FsError> {
    check_xattr_name(name)?;
    match value.len() > XATTR_VALUE_LEN_BYTES_MAX {
        true => Err(FsError::AttributeTooLarge),
        false => Ok(listed_len_bytes(name)),
    }
}

/// A value as it is stored.
pub(crate) fn stored(value: &[u8]) -> Bytes {
    let mut stored = BytesMut::with_capacity(1 + value.len());
    stored.extend_from_slice(&[VALUE_VERSION]);
    stored.extend_from_slice(value);
    stored.freeze()
}

/// What a name takes in the list.
pub(crate) fn listed_len_bytes(name: &[u8]) -> u32 {
    name.len() as u32 + 1
}

/// Symlinks and special files have none: their permission bits guard something else.
fn has_user_attributes(state: &State) -> bool {
    matches!(state.record.kind, InodeKind::Regular | InodeKind::Directory)
}

fn require_xattr_write(who: &Credentials, state: &State) -> Result<(), FsError> {
    state.require_live()?;
    if !has_user_attributes(state) {
        return Err(FsError::NotOwner);
    }
    // Else everybody could fill up `/tmp` itself with them.
    let record = &state.record;
    let is_sticky = record.kind == InodeKind::Directory && record.mode & MODE_STICKY != 0;
    if is_sticky && !who.is_root() && who.uid != record.uid {
        return Err(FsError::NotOwner);
    }
    require(who, state.guarded(), WRITE)
}

impl Shared {
    fn xattr_of(
        &self,
        who: &Credentials,
        view: View,
        ino: Ino,
        name: &[u8],
    ) -> Result<(Bytes, Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        state.require_live()?;
        if !has_user_attributes(&state) {
            return Err(FsError::NoAttribute);
        }
        require(who, state.guarded(), READ)?;
        let stored = self.stored_xattr(view, ino, name)?;
        Ok((stored.ok_or(FsError::NoAttribute)?, state.changed))
    }

    fn xattrs_of(&self, view: View, ino: Ino) -> Result<(Vec<Bytes>, Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        state.require_live()?;
        let names = match state.record.xattr_names_len_bytes {
            0 => Vec::new(),
            _ => self.xattr_names(view, ino)?,
        };
        Ok((names, state.changed))
    }

    fn stored_xattr(&self, view: View, ino: Ino, name: &[u8]) -> Result<Option<Bytes>, FsError> {
        let (view, ino) = self.stored_at(view, ino)?;
        let key = Key::xattr(ino, name);
        let stored = self.meta.view(view).and_then(|meta| meta.get(&key));
        let stored = stored.map_err(meta_error)?;
        match stored {
            None => Ok(None),
            Some(stored) if stored.first() == Some(&VALUE_VERSION) => Ok(Some(stored.slice(1..))),
            Some(_) => Err(FsError::Io(format!(
                "an extended attribute of inode {ino} was written by a newer version of Cairn"
            ))),
        }
    }

    fn xattr_names(&self, view: View, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        let (view, ino) = self.stored_at(view, ino)?;
        let (from, to) = Key::xattrs(ino);
        let mut names = Vec::new();
        let visit = |key: &[u8], _: &[u8], _: Generation| {
            if let Ok(KeyKind::Xattr { name, .. }) = KeyKind::parse(key) {
                names.push(Bytes::copy_from_slice(name));
            }
            ControlFlow::Continue(())
        };
        let scanned = self.meta.view(view);
        let scanned = scanned.and_then(|meta| meta.scan_with(&from, &to, visit));
        scanned.map_err(meta_error)?;
        Ok(names)
    }

    fn put_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(Attr, Ticket), FsError> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        require_xattr_write(who, &state)?;
        let is_there = self.stored_xattr(View::Live, ino, name)?.is_some();
        match (mode, is_there) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let mut names_len_bytes = state.record.xattr_names_len_bytes;
        if !is_there {
            names_len_bytes += listed_len_bytes(name);
            if names_len_bytes as usize > XATTR_LIST_LEN_BYTES_MAX {
                return Err(FsError::NoSpace);
            }
        }
        self.require_serving()?;
        let mut batch = Batch::new();
        batch.put(Key::xattr(ino, name), stored(value));
        Ok(self.submit_xattr(ino, &mut state, names_len_bytes, batch))
    }

    fn delete_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<(Attr, Ticket), FsError> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        require_xattr_write(who, &state)?;
        if self.stored_xattr(View::Live, ino, name)?.is_none() {
            return Err(FsError::NoAttribute);
        }
        self.require_serving()?;
        let names_len_bytes = state.record.xattr_names_len_bytes;
        let names_len_bytes = names_len_bytes.saturating_sub(listed_len_bytes(name));
        let mut batch = Batch::new();
        batch.delete(Key::xattr(ino, name));
        Ok(self.submit_xattr(ino, &mut state, names_len_bytes, batch))
    }

    fn submit_xattr(
        &self,
        ino: Ino,
        state: &mut State,
        names_len_bytes: u32,
        mut batch: Batch,
    ) -> (Attr, Ticket) {
        state.record.xattr_names_len_bytes = names_len_bytes;
        state.touch_ctime(self.now());
        batch.put(Key::inode(ino), state.stored_record().encode());
        state.note_change(self.meta.submit(batch));
        (state.attr(ino), state.ticket)
    }

    /// Takes all extended attributes of a removed inode along; their names are few enough for one
    /// batch.
    pub(crate) fn drop_xattrs(
        &self,
        ino: Ino,
        state: &State,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        if state.record.xattr_names_len_bytes > 0 {
            for name in self.xattr_names(View::Live, ino)? {
                batch.delete(Key::xattr(ino, &name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_or_refused() {
        let long = |len: usize| [NAMESPACE, &vec![b'x'; len - NAMESPACE.len()]].concat();
        let cases: &[(&str, Vec<u8>, Result<(), FsError>)] = &[
            ("plain", b"user.a".to_vec(), Ok(())),
            ("any byte but NUL", b"user./\xff".to_vec(), Ok(())),
            ("at the limit", long(255), Ok(())),
            ("one past the limit", long(256), Err(FsError::NameTooLong)),
            ("empty", Vec::new(), Err(FsError::Invalid)),
            ("NUL", b"user.a\0b".to_vec(), Err(FsError::Invalid)),
            ("namespace only", b"user.".to_vec(), Err(FsError::Invalid)),
            (
                "another namespace",
                b"trusted.a".to_vec(),
                Err(FsError::NotSupported),
            ),
            ("no namespace", b"user".to_vec(), Err(FsError::NotSupported)),
        ];
        for (name, input, want) in cases {
            assert_eq!(check_xattr_name(input), *want, "{name}");
        }
    }
}
