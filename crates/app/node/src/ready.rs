//! The files that tell others where the server is.
//!
//! `server.json` in the runtime folder is how `cairn` commands of the same user find the server;
//! the ready file is the same content at a place of the operator's choice.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairn_admin::api::ReadyFile;
use rustix::fs::{Mode, OFlags};

/// Name of the file in the runtime folder.
pub const SERVER_FILE_NAME: &str = "server.json";

/// Where a server that the system runs says where it is.
pub const SYSTEM_RUNTIME_FOLDER: &str = "/run/cairn";

/// Where `server.json` is written and looked for: `$CAIRN_RUNTIME_DIR`, `/run/cairn` for root and
/// under systemd, else `$XDG_RUNTIME_DIR/cairn`; none without any of them.
pub fn runtime_folder() -> Option<PathBuf> {
    if let Some(folder) = absolute(std::env::var_os("CAIRN_RUNTIME_DIR")) {
        return Some(folder);
    }
    if rustix::process::geteuid().is_root() {
        return Some(SYSTEM_RUNTIME_FOLDER.into());
    }
    // systemd makes this folder for the service's user (RuntimeDirectory=).
    if let Some(folder) = absolute(std::env::var_os("RUNTIME_DIRECTORY")) {
        return Some(folder);
    }
    absolute(std::env::var_os("XDG_RUNTIME_DIR")).map(|folder| folder.join("cairn"))
}

/// The folder that a variable names. A relative path, or nothing, would mean what is below whatever folder one happens
/// to be in, which may be anybody's. Source: XDG Base Directory Specification, "Basics".
fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Writes the file whole or not at all: who waits for it never sees half of it. Its folder must be
/// there: one that was misspelt would not be found by who waits.
pub fn write(path: &Path, ready: &ReadyFile) -> std::io::Result<()> {
    let parent = folder_of(path);
    let mut file = tempfile::Builder::new()
        .prefix(".cairn-ready")
        .tempfile_in(parent)?;
    serde_json::to_writer_pretty(&mut file, ready)?;
    file.write_all(b"\n")?;
    let made = file.persist(path).map_err(|error| error.error)?;
    // Only the addresses are in it: other users may ask where the server is.
    made.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
}

/// Removes the file if it is still this process's.
pub fn remove(path: &Path) {
    let ours = read(path).is_some_and(|ready| ready.pid == std::process::id());
    if ours {
        let _ = std::fs::remove_file(path);
    }
}

/// Reads the file; none if it is not there or is something else.
pub fn read(path: &Path) -> Option<ReadyFile> {
    read_with_owner(path).map(|(ready, _)| ready)
}

/// As [`read`], with the user whose file it is: that of what was read, for another file may be at the path before or
/// after.
pub fn read_with_owner(path: &Path) -> Option<(ReadyFile, u32)> {
    /// Longer ones are not ours, in bytes.
    const LEN_BYTES_MAX: u64 = 1 << 20;
    // Neither a link to somewhere else, nor a pipe that waits for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > LEN_BYTES_MAX {
        return None;
    }
    let mut content = Vec::new();
    file.take(LEN_BYTES_MAX).read_to_end(&mut content).ok()?;
    let ready = serde_json::from_slice(&content).ok()?;
    Some((ready, metadata.uid()))
}

#[cfg(test)]
mod tests {
    use cairn_admin::api::{AdminView, NfsReady};

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        let mut ready = ReadyFile {
            pid: std::process::id(),
            nfs: NfsReady {
                address: "127.0.0.1".to_owned(),
                port: 2049,
            },
            admin: AdminView {
                url: "http://127.0.0.1:8049".to_owned(),
            },
            token_file: "/data/admin-token".to_owned(),
            volumes: vec!["main".parse().unwrap()],
        };
        let missing = write(&folder.path().join("new/ready.json"), &ready);
        assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
        write(&path, &ready).unwrap();
        assert_eq!(read(&path), Some(ready.clone()));
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1
        );
        remove(&path);
        assert!(!path.exists());
        ready.pid = 1;
        write(&path, &ready).unwrap();
        remove(&path);
        assert!(path.exists(), "another server's file stays");
        assert_eq!(read(Path::new("/no/such/file")), None);
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read(&link), None);
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(read_with_owner(&path), Some((ready, user)));
    }

    #[test]
    fn only_absolute_folders_count() {
        for (value, want) in [
            (Some("/run/user/7"), Some("/run/user/7")),
            (Some("run"), None),
            (Some("./run"), None),
            (Some(""), None),
            (None, None),
        ] {
            let found = absolute(value.map(OsString::from));
            assert_eq!(found, want.map(PathBuf::from), "{value:?}");
        }
    }
}
