//! The folder in which a node keeps what makes it a member: the CA, its certificate, the cluster's name.
//!
//! Owns: names and modes of the files, that a crash leaves each as it was or as it is to be, that one process uses it.
//! Must not know: what follows from its content.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::authorities::Authorities;
use crate::authority::{Authority, revoked_numbers};
use crate::certificate::NodeCertificate;
use crate::error::TrustError;
use crate::membership::{FORMAT, Membership, MembershipError};

const MEMBERSHIP_NAME: &str = "cluster.json";
const AUTHORITY_NAME: &str = "ca.pem";
const AUTHORITY_KEY_NAME: &str = "ca.key";
const CERTIFICATE_NAME: &str = "node.pem";
const KEY_NAME: &str = "node.key";
/// The key of a certificate that is being written, from before that is there until after.
const NEXT_KEY_NAME: &str = "node.key.next";
const LOCK_NAME: &str = "lock";
const REVOKED_NAME: &str = "revoked.crl";
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Whatever belongs to others.
const OTHERS: u32 = 0o077;
/// No file of the folder comes near it: the longest is the list of what is revoked, with 4 KiB for each node that was removed
/// within a quarter of a year.
const FILE_LEN_BYTES_MAX: u64 = 4 << 20;
const PID_LEN_BYTES_MAX: u64 = 20;

/// The folder of one node, locked for this process until it is dropped.
#[derive(Debug)]
pub struct ClusterFolder {
    path: PathBuf,
    lock: File,
}

impl Drop for ClusterFolder {
    fn drop(&mut self) {
        // A program that is just being started has a copy of the file, which would keep the lock for a while.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

impl ClusterFolder {
    /// Whether this is the folder of a member. An error if that cannot be seen: a process that may not look into it must not go on
    /// as if there were none.
    pub fn is_one(path: &Path) -> Result<bool, TrustError> {
        let file = path.join(MEMBERSHIP_NAME);
        match fs::symlink_metadata(&file) {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(TrustError::file(&file, error)),
        }
    }

    /// A folder for a node that becomes a member; [`Self::establish`] makes it one.
    pub fn create(path: &Path) -> Result<Self, TrustError> {
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(path)
            .map_err(|error| TrustError::file(path, error))?;
        let folder = Self::lock(path)?;
        match Self::is_one(path)? {
            true => Err(TrustError::Exists {
                path: path.to_owned(),
            }),
            false => Ok(folder),
        }
    }

    /// The folder of a member.
    pub fn open(path: &Path) -> Result<Self, TrustError> {
        let file = path.join(MEMBERSHIP_NAME);
        if !Self::is_one(path)? {
            return Err(missing(
                &file,
                "this node is in no cluster: cairn cluster init or join",
            ));
        }
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, TrustError> {
        let found = fs::metadata(path).map_err(|error| TrustError::file(path, error))?;
        if found.mode() & OTHERS != 0 {
            repair_mode(path, FOLDER_MODE, |mode| fs::set_permissions(path, mode))?;
        }
        let lock_path = path.join(LOCK_NAME);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&lock_path)
            .map_err(|error| TrustError::file(&lock_path, error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                // For the message alone.
                let _ = lock.take(PID_LEN_BYTES_MAX).read_to_string(&mut pid);
                let pid = pid.trim().parse::<u32>();
                return Err(TrustError::Busy {
                    path: path.to_owned(),
                    pid: pid.map_or_else(|_| "?".to_owned(), |pid| pid.to_string()),
                });
            }
            Err(error) => return Err(TrustError::file(&lock_path, io::Error::from(error))),
        }
        let write_pid = lock
            .set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        write_pid.map_err(|error| TrustError::file(&lock_path, error))?;
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For etcd, which reads files.
    pub fn authority_path(&self) -> PathBuf {
        self.path.join(AUTHORITY_NAME)
    }

    pub fn certificate_path(&self) -> PathBuf {
        self.path.join(CERTIFICATE_NAME)
    }

    pub fn key_path(&self) -> PathBuf {
        self.path.join(KEY_NAME)
    }

    /// For etcd, which reads it at each connection, and takes none without it.
    pub fn revoked_path(&self) -> PathBuf {
        self.path.join(REVOKED_NAME)
    }

    /// Keeps the list of revoked certificates; whether it revokes something that was not.
    pub fn save_revoked(&self, list: &[u8]) -> Result<bool, TrustError> {
        let new = revoked_numbers(list)?;
        let before = self.read(REVOKED_NAME, "").ok();
        let before = before.and_then(|before| revoked_numbers(&before).ok());
        let is_more = match &before {
            Some(before) => !new.is_subset(before),
            None => !new.is_empty(),
        };
        // Also if it says the same: another CA may have signed it.
        self.write(REVOKED_NAME, list)?;
        Ok(is_more)
    }

    /// Makes this the folder of a member: it is one as soon as the membership is written, which comes last. The node's
    /// certificate is made when the folder is first used ([`crate::Trust::open`]).
    pub fn establish(
        &self,
        membership: &Membership,
        authority: &Authority,
    ) -> Result<(), TrustError> {
        self.establish_as(membership, authority.certificate_pem(), authority.key_pem())
    }

    /// Establishes the folder of a node that joins during a rotation of the CA.
    pub(crate) fn establish_with(
        &self,
        membership: &Membership,
        authorities: &Authorities,
    ) -> Result<(), TrustError> {
        let keys = authorities.keys_pem();
        self.establish_as(membership, &authorities.certificates_pem(), keys.as_deref())
    }

    fn establish_as(
        &self,
        membership: &Membership,
        certificates: &str,
        keys: Option<&str>,
    ) -> Result<(), TrustError> {
        membership.check()?;
        self.write(AUTHORITY_NAME, certificates.as_bytes())?;
        self.save_authority_keys(keys)?;
        self.save_membership(membership)
    }

    /// Keeps which CAs are trusted, and the keys that this node has of them. `before`: what the folder has. After each step that a crash
    /// comes after, every key is of a CA that is trusted, or is left out by the next start: keys that go go first, and those that
    /// come come last.
    pub(crate) fn save_authorities(
        &self,
        before: &Authorities,
        next: &Authorities,
    ) -> Result<(), TrustError> {
        let is_there = |authority: &Authority| {
            let known = before.of(authority.fingerprint());
            known.is_some_and(|known| known.has_key())
        };
        self.save_authority_keys(next.keys_pem_of(is_there).as_deref())?;
        let certificates = next.certificates_pem();
        if self.read(AUTHORITY_NAME, "").ok().as_deref() != Some(certificates.as_bytes()) {
            self.write(AUTHORITY_NAME, certificates.as_bytes())?;
        }
        self.save_authority_keys(next.keys_pem().as_deref())
    }

    /// Keeps keys of CAs, or lets them go where the node has none any more.
    fn save_authority_keys(&self, keys: Option<&str>) -> Result<(), TrustError> {
        if let Some(keys) = keys {
            return match self.read(AUTHORITY_KEY_NAME, "") {
                Ok(before) if before == keys.as_bytes() => Ok(()),
                _ => self.write(AUTHORITY_KEY_NAME, keys.as_bytes()),
            };
        }
        let path = self.path.join(AUTHORITY_KEY_NAME);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(&self.path).and_then(|folder| folder.sync_all()),
        };
        removed.map_err(|error| TrustError::file(&path, error))
    }

    pub fn membership(&self) -> Result<Membership, TrustError> {
        let path = self.path.join(MEMBERSHIP_NAME);
        let text = self.read(
            MEMBERSHIP_NAME,
            "without it this node does not know its cluster",
        )?;
        Membership::decode(&text).map_err(|error| match error {
            MembershipError::Format(found) => TrustError::Format {
                path,
                found,
                known: FORMAT,
            },
            MembershipError::Damaged(problem) => TrustError::Damaged { path, problem },
        })
    }

    pub fn save_membership(&self, membership: &Membership) -> Result<(), TrustError> {
        membership.check()?;
        self.write(MEMBERSHIP_NAME, membership.encode().as_bytes())
    }

    /// The CAs that the node trusts, with their keys as far as the folder has them.
    pub fn authorities(&self) -> Result<Authorities, TrustError> {
        let hint = "copy it from another node of the cluster, all have the same";
        let certificate = self.read_text(AUTHORITY_NAME, hint)?;
        let key = match self.read_text(AUTHORITY_KEY_NAME, hint) {
            Ok(key) => Some(key),
            Err(TrustError::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        let loaded = Authorities::decode(&certificate, key.as_deref());
        loaded.map_err(|error| TrustError::damaged(&self.authority_path(), error))
    }

    /// The node's certificate. If it is missing or damaged, it can be issued anew.
    pub fn certificate(&self) -> Result<NodeCertificate, TrustError> {
        let hint = "the next start makes another one";
        let certificate = self.read_text(CERTIFICATE_NAME, hint)?;
        // A crash may have come between a certificate and its key.
        if let Ok(next) = self.read_text(NEXT_KEY_NAME, hint)
            && let Ok(found) = NodeCertificate::load(&certificate, &next)
        {
            self.place_next_key()?;
            return Ok(found);
        }
        let key = self.read_text(KEY_NAME, hint)?;
        NodeCertificate::load(&certificate, &key)
            .map_err(|error| TrustError::damaged(&self.certificate_path(), error))
    }

    pub fn save_certificate(&self, certificate: &NodeCertificate) -> Result<(), TrustError> {
        let key = certificate.key_pem.as_bytes();
        let pem = certificate.certificate_pem.as_bytes();
        // A renewed certificate has the same key, unless it is of another CA.
        if self.read(KEY_NAME, "").ok().as_deref() == Some(key) {
            return self.write(CERTIFICATE_NAME, pem);
        }
        // After each step the certificate that is there has its key in one of the two files. etcd, which looks at one of them, takes no
        // connection between the second and the third, and is asked again.
        self.write(NEXT_KEY_NAME, key)?;
        self.write(CERTIFICATE_NAME, pem)?;
        self.place_next_key()
    }

    fn place_next_key(&self) -> Result<(), TrustError> {
        let path = self.key_path();
        let placed = fs::rename(self.path.join(NEXT_KEY_NAME), &path)
            .and_then(|()| File::open(&self.path)?.sync_all());
        placed.map_err(|error| TrustError::file(&path, error))
    }

    fn read_text(&self, name: &str, hint: &'static str) -> Result<String, TrustError> {
        let bytes = self.read(name, hint)?;
        String::from_utf8(bytes)
            .map_err(|_| TrustError::damaged(&self.path.join(name), "it is no text"))
    }

    fn read(&self, name: &str, hint: &'static str) -> Result<Vec<u8>, TrustError> {
        let path = self.path.join(name);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(missing(&path, hint));
            }
            Err(error) => return Err(TrustError::file(&path, error)),
        };
        let found = file
            .metadata()
            .map_err(|error| TrustError::file(&path, error))?;
        if !found.is_file() {
            return Err(TrustError::Unsafe {
                path,
                problem: "this is no file".to_owned(),
            });
        }
        if found.mode() & OTHERS != 0 {
            repair_mode(&path, FILE_MODE, |mode| file.set_permissions(mode))?;
        }
        let mut bytes = Vec::new();
        file.take(FILE_LEN_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| TrustError::file(&path, error))?;
        match bytes.len() as u64 > FILE_LEN_BYTES_MAX {
            true => Err(TrustError::damaged(&path, "it is far too long")),
            false => Ok(bytes),
        }
    }

    /// Writes a file so that a crash leaves the old or the new one.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), TrustError> {
        let path = self.path.join(name);
        let new_path = self.path.join(format!("{name}.new"));
        let written = (|| {
            // What a crash left behind may have any mode.
            match fs::remove_file(&new_path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(FILE_MODE)
                .open(&new_path)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new_path, &path)?;
            File::open(&self.path)?.sync_all()
        })();
        written.map_err(|error| TrustError::file(&path, error))
    }
}

fn missing(path: &Path, hint: &'static str) -> TrustError {
    TrustError::Missing {
        path: path.to_owned(),
        hint,
    }
}

/// Takes from others what they could read; who already has is not known.
fn repair_mode(
    path: &Path,
    mode: u32,
    set: impl FnOnce(Permissions) -> io::Result<()>,
) -> Result<(), TrustError> {
    set(Permissions::from_mode(mode)).map_err(|error| TrustError::Unsafe {
        path: path.to_owned(),
        problem: format!("other users can read or change it, and its mode cannot be set: {error}"),
    })?;
    tracing::warn!(
        path = %path.display(),
        "other users could read or change this; its mode is {mode:o} now"
    );
    Ok(())
}
