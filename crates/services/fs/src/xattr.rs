//! Extended attributes: small named values that an inode carries beside its data.
//!
//! Owns: which users may see and change them, and their limits, both as on Linux (xattr(7)). Must not know: any
//! protocol. NFSv3 has none; protocols with extended attributes will come here.
//!
//! An encrypted volume encrypts their values before they get into a batch, and nowhere else: services keep digests of
//! file contents in them, and secrets.
//!
//! Only the namespace `user.` is here: the kernel of the client handles the others. The inode's record has the length
//! of the list of names, so that removing a file without attributes costs nothing.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cairn_base::env::Entropy;
use cairn_base::{Generation, Ino, View};
use cairn_keys::VolumeKey;
use cairn_meta::{InodeKind, Key, KeyKind, Ticket};

use crate::kernel::{Change, State, meta_error};
use crate::perm::{MODE_STICKY, READ, WRITE, require};
use crate::room::METADATA_BYTES;
use crate::types::*;
use crate::volume::{Fs, FsView, VolumeCore};

const NAMESPACE: &[u8] = b"user.";
/// First byte of a stored value: the value follows.
const VALUE_VERSION: u8 = 1;
/// First byte of a value in an encrypted volume: the value follows, encrypted for this inode and this name. Such a
/// volume accepts no other version: otherwise an attacker with write access to the disks could replace a secret or a
/// rule.
const VALUE_VERSION_ENCRYPTED: u8 = 2;

impl FsView {
    /// The value of an extended attribute; `NoAttribute` if it does not exist.
    pub async fn xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        check_xattr_name(name)?;
        let found = self
            .shared
            .reading(|| self.shared.xattr_of(who, self.view, ino, name))
            .await;
        self.shared.settle(found).await
    }

    /// The names of all extended attributes, in order. Every user may list them.
    pub async fn xattr_list(&self, _who: &Credentials, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        let found = self
            .shared
            .reading(|| self.shared.xattrs_of(self.view, ino))
            .await;
        self.shared.settle(found).await
    }
}

impl Fs {
    /// Makes or replaces an extended attribute. Durable on return.
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

    /// Removes an extended attribute; `NoAttribute` if it does not exist. Durable on return.
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

/// Checks a name, its namespace first, as Linux does.
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

/// Checks a new extended attribute; returns the size of its name in the list.
pub(crate) fn check_xattr(name: &[u8], value: &[u8]) -> Result<u32, FsError> {
    check_xattr_name(name)?;
    match value.len() > XATTR_VALUE_LEN_BYTES_MAX {
        true => Err(FsError::AttributeTooLarge),
        false => Ok(listed_len_bytes(name)),
    }
}

/// Encodes values of extended attributes for storage.
pub(crate) struct XattrValues {
    key: Option<Arc<VolumeKey>>,
    entropy: Arc<dyn Entropy>,
}

impl XattrValues {
    pub fn new(key: Option<Arc<VolumeKey>>, entropy: Arc<dyn Entropy>) -> Self {
        Self { key, entropy }
    }

    /// The stored form of an attribute's value; inode and name are those of its key.
    pub fn stored(&self, ino: Ino, name: &[u8], value: &[u8]) -> Bytes {
        let (version, value) = match &self.key {
            None => (VALUE_VERSION, Cow::Borrowed(value)),
            Some(key) => {
                let mut salt = [0; 16];
                self.entropy.fill(&mut salt);
                let encrypted = key.encrypt_attribute(salt, ino, name, value);
                (VALUE_VERSION_ENCRYPTED, Cow::Owned(encrypted))
            }
        };
        let mut stored = BytesMut::with_capacity(1 + value.len());
        stored.extend_from_slice(&[version]);
        stored.extend_from_slice(&value);
        stored.freeze()
    }

    /// The value that [`Self::stored`] encoded for this inode and this name.
    pub fn read(&self, ino: Ino, name: &[u8], stored: &Bytes) -> Result<Bytes, FsError> {
        let failed = |why: &str| {
            let name = String::from_utf8_lossy(name);
            Err(FsError::Io(format!(
                "the extended attribute {name} of inode {ino} {why}"
            )))
        };
        match (stored.first(), &self.key) {
            (Some(&VALUE_VERSION), None) => Ok(stored.slice(1..)),
            (Some(&VALUE_VERSION_ENCRYPTED), Some(key)) => {
                match key.decrypt_attribute(ino, name, &stored[1..]) {
                    Ok(value) => Ok(value.into()),
                    Err(error) => failed(&format!("cannot be decrypted: {error}")),
                }
            }
            (Some(&VALUE_VERSION), Some(_)) => {
                failed("is not encrypted, though the volume is: somebody else put it there")
            }
            (Some(&VALUE_VERSION_ENCRYPTED), None) => {
                failed("is encrypted, and the volume has no key")
            }
            _ => failed("was written by a newer version of Cairn"),
        }
    }
}

/// The size of a name in the list.
pub(crate) fn listed_len_bytes(name: &[u8]) -> u32 {
    name.len() as u32 + 1
}

/// Symlinks and special files have none: their permission bits control other things.
fn has_user_attributes(state: &State) -> bool {
    matches!(state.record.kind, InodeKind::Regular | InodeKind::Directory)
}

fn require_xattr_write(who: &Credentials, state: &State) -> Result<(), FsError> {
    state.require_live()?;
    if !has_user_attributes(state) {
        return Err(FsError::NotOwner);
    }
    // Otherwise every user could fill `/tmp` itself with them.
    let record = &state.record;
    let is_sticky = record.kind == InodeKind::Directory && record.mode & MODE_STICKY != 0;
    if is_sticky && !who.is_root() && who.uid != record.uid {
        return Err(FsError::NotOwner);
    }
    require(who, state.guarded(), WRITE)
}

impl VolumeCore {
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
        Ok((stored.ok_or(FsError::NoAttribute)?, state.changed()))
    }

    fn xattrs_of(&self, view: View, ino: Ino) -> Result<(Vec<Bytes>, Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        state.require_live()?;
        let names = match state.record.xattr_names_len_bytes {
            0 => Vec::new(),
            _ => self.xattr_names(view, ino)?,
        };
        Ok((names, state.changed()))
    }

    fn stored_xattr(&self, view: View, ino: Ino, name: &[u8]) -> Result<Option<Bytes>, FsError> {
        let (view, ino) = self.stored_at(view, ino)?;
        let key = Key::xattr(ino, name);
        let stored = self.meta.view(view).and_then(|meta| meta.get(&key));
        let stored = stored.map_err(meta_error)?;
        let read = |stored| self.xattr_values.read(ino, name, &stored);
        stored.map(read).transpose()
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
        let state = inode.lock();
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
        let mut change = self.begin_change(state);
        let stored = self.xattr_values.stored(ino, name, value);
        change.batch().put(Key::xattr(ino, name), stored);
        Ok(self.commit_xattr(change, ino, names_len_bytes))
    }

    fn delete_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<(Attr, Ticket), FsError> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        require_xattr_write(who, &state)?;
        if self.stored_xattr(View::Live, ino, name)?.is_none() {
            return Err(FsError::NoAttribute);
        }
        self.require_serving()?;
        let names_len_bytes = state.record.xattr_names_len_bytes;
        let names_len_bytes = names_len_bytes.saturating_sub(listed_len_bytes(name));
        let mut change = self.begin_change(state);
        change.batch().delete(Key::xattr(ino, name));
        Ok(self.commit_xattr(change, ino, names_len_bytes))
    }

    fn commit_xattr(
        &self,
        mut change: Change<'_>,
        ino: Ino,
        names_len_bytes: u32,
    ) -> (Attr, Ticket) {
        let mut edit = change.edit(ino);
        edit.record().xattr_names_len_bytes = names_len_bytes;
        edit.touch_ctime(self.now());
        let done = change.commit();
        (done.of(ino).attr(ino), done.ticket)
    }

    /// Deletes all extended attributes of a removed inode; their names are few enough for one batch. On an error, the
    /// change has not touched the inode.
    pub(crate) fn drop_xattrs(&self, change: &mut Change<'_>, ino: Ino) -> Result<(), FsError> {
        if change.of(ino).record.xattr_names_len_bytes > 0 {
            for name in self.xattr_names(View::Live, ino)? {
                change.batch().delete(Key::xattr(ino, &name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::VolumeId;
    use cairn_testkit::test_env;

    use super::*;

    #[test]
    fn values_are_read_as_their_volume_keeps_them() {
        let env = test_env();
        let entropy = || Arc::clone(&env.entropy);
        let key = || Some(Arc::new(VolumeKey::random(VolumeId(1), &*env.entropy)));
        let plain = XattrValues::new(None, entropy());
        let (one, other) = (
            XattrValues::new(key(), entropy()),
            XattrValues::new(key(), entropy()),
        );
        let (ino, name, value) = (Ino(7), &b"user.a"[..], &b"a value to look for"[..]);
        let readable = plain.stored(ino, name, value);
        let encrypted = one.stored(ino, name, value);
        assert_eq!(readable.get(1..), Some(value));
        assert!(!encrypted.windows(8).any(|part| part == &value[..8]));
        assert_ne!(one.stored(ino, name, value), encrypted);
        assert_eq!(plain.read(ino, name, &readable).unwrap(), value);
        assert_eq!(one.read(ino, name, &encrypted).unwrap(), value);
        let newer = Bytes::from_static(b"\x03value");
        let refused = [
            ("no key", plain.read(ino, name, &encrypted)),
            ("another key", other.read(ino, name, &encrypted)),
            (
                "readable in an encrypted volume",
                one.read(ino, name, &readable),
            ),
            ("another inode", one.read(Ino(8), name, &encrypted)),
            ("another name", one.read(ino, b"user.b", &encrypted)),
            ("cut", one.read(ino, name, &encrypted.slice(..20))),
            ("nothing", one.read(ino, name, &Bytes::new())),
            ("newer", one.read(ino, name, &newer)),
            ("newer, without a key", plain.read(ino, name, &newer)),
        ];
        for (what, read) in refused {
            assert!(matches!(read, Err(FsError::Io(_))), "{what}: {read:?}");
        }
    }

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
