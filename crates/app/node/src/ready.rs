//! The files that tell others the server's addresses.
//!
//! `server.json` in the runtime folder is how `cairn` commands of the same user find the server; the ready file has
//! equal contents at a path of the operator's choice.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairn_admin::api::ReadyFile;
use rustix::fs::{Mode, OFlags};

/// Name of the file in the runtime folder.
pub const SERVER_FILE_NAME: &str = "server.json";

/// The names of the files of further servers on this machine: these two parts around the process number.
const SERVER_FILE_PREFIX: &str = "server-";
const SERVER_FILE_SUFFIX: &str = ".json";
/// Maximum number of servers on one machine that are looked for.
const SERVER_FILES_MAX: usize = 256;

/// The runtime folder of a server that the system runs.
pub const SYSTEM_RUNTIME_FOLDER: &str = "/run/cairn";

/// The folder of `server.json`: `$CAIRN_RUNTIME_DIR`, `/run/cairn` for root and under systemd, otherwise
/// `$XDG_RUNTIME_DIR/cairn`, otherwise the user's state folder; none without any of them.
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
    let of_user = absolute(std::env::var_os("XDG_RUNTIME_DIR"));
    let of_user = of_user.map(|folder| folder.join("cairn"));
    of_user.or_else(|| crate::state_folder::find(None))
}

/// The folder in a variable. A relative or empty path would depend on the present directory, which another user may
/// control. Source: XDG Base Directory Specification, "Basics".
fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The kernel's name for processes of this program.
const PROGRAM_NAME: &str = "cairn";

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Writes the file atomically: a waiting reader never sees half of it. Its folder must exist: a reader would not find
/// the file in a misspelt one.
pub fn write(path: &Path, ready: &ReadyFile) -> std::io::Result<()> {
    let parent = folder_of(path);
    let mut file = tempfile::Builder::new()
        .prefix(".cairn-ready")
        .tempfile_in(parent)?;
    serde_json::to_writer_pretty(&mut file, ready)?;
    file.write_all(b"\n")?;
    let made = file.persist(path).map_err(|error| error.error)?;
    // It has only the addresses: other users may ask for them.
    made.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
}

/// The file of this process in a folder that several servers may use: the usual one, unless another running server
/// has that.
pub fn server_file(folder: &Path) -> PathBuf {
    let usual = folder.join(SERVER_FILE_NAME);
    let own = std::process::id();
    match read_with_owner(&usual) {
        Some((other, owner)) if other.pid != own && runs(other.pid, owner) => {
            folder.join(format!("{SERVER_FILE_PREFIX}{own}{SERVER_FILE_SUFFIX}"))
        }
        _ => usual,
    }
}

/// All readable files of servers in a folder, with the users that own them: the usual one first.
pub fn read_all(folder: &Path) -> Vec<(ReadyFile, u32)> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_another =
        |name: &String| name.starts_with(SERVER_FILE_PREFIX) && name.ends_with(SERVER_FILE_SUFFIX);
    let mut names: Vec<String> = names.filter(is_another).take(SERVER_FILES_MAX).collect();
    names.sort();
    names.insert(0, SERVER_FILE_NAME.to_owned());
    let files = names.iter().map(|name| folder.join(name));
    files.filter_map(|path| read_with_owner(&path)).collect()
}

/// Whether the process that wrote a file of this user runs. Another process may have its number by now; the user
/// tells them apart. The number of a process in a container is different here, or unknown, and so is the way to the
/// address in its file: such a server has to be named.
pub fn runs(pid: u32, owner: u32) -> bool {
    let process = |pid: &str| Path::new("/proc").join(pid);
    let program = |pid: &str| std::fs::read_to_string(process(pid).join("comm"));
    let pid = pid.to_string();
    let is_owners = process(&pid)
        .metadata()
        .is_ok_and(|process| process.uid() == owner);
    // Root has many other processes. This program may have another name, which the server has then, too.
    let is_ours =
        |name: &str| name.starts_with(PROGRAM_NAME) || program("self").is_ok_and(|own| own == name);
    is_owners && program(&pid).is_ok_and(|name| is_ours(&name))
}

/// Removes the file if it still belongs to this process.
pub fn remove(path: &Path) {
    let ours = read(path).is_some_and(|ready| ready.pid == std::process::id());
    if ours {
        let _ = std::fs::remove_file(path);
    }
}

/// Reads the file; `None` if it does not exist or has other contents.
pub fn read(path: &Path) -> Option<ReadyFile> {
    read_with_owner(path).map(|(ready, _)| ready)
}

/// As [`read`], with the owner of the file that was read: another file may be at the path before or after.
pub fn read_with_owner(path: &Path) -> Option<(ReadyFile, u32)> {
    /// Longer files are not ours, in bytes.
    const LEN_BYTES_MAX: u64 = 1 << 20;
    // Neither a link to another place, nor a pipe that waits for its writer.
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
            pool: "ab".to_owned(),
            state_dir: Some("/var/lib/cairn".to_owned()),
            nfs: NfsReady {
                address: "127.0.0.1".to_owned(),
                port: 2049,
            },
            admin: AdminView {
                url: "http://127.0.0.1:8049".to_owned(),
            },
            token_file: "/data/admin-token".to_owned(),
            certificate: None,
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

    fn ready(pid: u32) -> ReadyFile {
        ReadyFile {
            pid,
            pool: "ab".to_owned(),
            state_dir: None,
            nfs: NfsReady {
                address: "127.0.0.1".to_owned(),
                port: 2049,
            },
            admin: AdminView {
                url: "http://127.0.0.1:8049".to_owned(),
            },
            token_file: "/data/admin-token".to_owned(),
            certificate: None,
            volumes: Vec::new(),
        }
    }

    /// The second server overwrote the file of the first, whose commands then found the second.
    #[test]
    fn servers_on_one_machine_have_a_file_each() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let usual = folder.join(SERVER_FILE_NAME);
        assert_eq!(server_file(folder), usual, "the only one");
        // Another program of this user with our name, which waits for its end.
        let other = folder.join("cairn-other");
        std::os::unix::fs::symlink("/bin/sh", &other).unwrap();
        let mut other = std::process::Command::new(other)
            .args(["-c", "echo; read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It has our name only when it runs, which may be after its start.
        let mut line = String::new();
        let runs = other.stdout.take().map(std::io::BufReader::new);
        std::io::BufRead::read_line(&mut runs.unwrap(), &mut line).unwrap();
        let own = std::process::id();
        let (first, second) = (ready(other.id()), ready(own));
        write(&usual, &first).unwrap();
        let own_file = server_file(folder);
        assert_eq!(own_file, folder.join(format!("server-{own}.json")));
        write(&own_file, &second).unwrap();
        let all = read_all(folder).into_iter().map(|(ready, _)| ready.pid);
        assert_eq!(all.collect::<Vec<u32>>(), [first.pid, own]);
        remove(&own_file);
        remove(&usual);
        assert_eq!(read(&usual), Some(first), "that of the other stays");
        // It ends and leaves its file behind.
        drop(other.stdin.take());
        other.wait().unwrap();
        assert_eq!(server_file(folder), usual);
        write(&usual, &ready(1)).unwrap();
        assert_eq!(
            server_file(folder),
            usual,
            "its number is another program's"
        );
        write(&usual, &ready(own)).unwrap();
        assert_eq!(server_file(folder), usual, "its own");
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
