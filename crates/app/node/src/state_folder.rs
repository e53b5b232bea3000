//! The server's own folder, beside its data, for files that must not leave with a disk.
//!
//! Owns: its path, that it is on no data disk, and the copy of the key of file handles. Must not know: tokens and
//! certificates.
//!
//! It has the admin token, the key of a certificate that the server made for itself, and, where a master key wraps
//! the key of file handles, a copy of that: without it NFS of plain volumes would wait for the master key.

use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cairn_base::PoolId;
use cairn_base::env::Entropy;
use cairn_config::Config;
use cairn_formats::pool_file::HandleKey;

use crate::error::NodeError;
use crate::folder::place_unseen;
use crate::token;

/// The state folder of a server that the system, or root, runs.
const SYSTEM_FOLDER: &str = "/var/lib/cairn";
/// Prefix of the id of the pool.
const HANDLE_KEY_PREFIX: &str = "handle-key-";
/// A key and a line feed are shorter.
const HANDLE_KEY_LEN_BYTES_MAX: u64 = 64;

/// The folder by the setting, and by the environment variables.
fn chosen(
    set: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
    is_root: bool,
) -> Option<PathBuf> {
    if let Some(set) = set {
        return Some(set.to_owned());
    }
    // A relative path would depend on the present directory.
    let absolute = |name: &str| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    if let Some(folder) = absolute("CAIRN_STATE_DIR") {
        return Some(folder);
    }
    // systemd makes these folders for the service's user (StateDirectory=), and separates them by colons.
    let made = variable("STATE_DIRECTORY").and_then(|all| all.into_string().ok());
    let first = made.and_then(|all| all.split(':').next().map(PathBuf::from));
    if let Some(folder) = first.filter(|folder| folder.is_absolute()) {
        return Some(folder);
    }
    if is_root {
        return Some(SYSTEM_FOLDER.into());
    }
    // Source: XDG Base Directory Specification, "Environment variables".
    let of_user = absolute("XDG_STATE_HOME");
    let of_user = of_user.or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    of_user.map(|folder| folder.join("cairn"))
}

/// The path of this user's state folder, which may not exist. `set`: by the configuration.
pub fn find(set: Option<&Path>) -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    chosen(set, |name| std::env::var_os(name), is_root)
}

/// Makes the state folder if it does not exist. Makes nothing in the folder of a disk.
pub fn make(config: &Config) -> Result<PathBuf, NodeError> {
    let failed = |path: PathBuf, why: String| NodeError::StateFolder { path, why };
    let Some(folder) = find(config.state_dir.as_deref()) else {
        let why =
            "this user has no home folder: choose a state folder with --state-dir DIR (state_dir)";
        return Err(failed(PathBuf::new(), why.to_owned()));
    };
    require_apart(&folder, &config.data)?;
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| failed(folder.clone(), error.to_string()))?;
    Ok(folder)
}

/// The file of the admin token.
pub fn token_path(config: &Config) -> Result<PathBuf, NodeError> {
    let Some(path) = &config.token_file else {
        return Ok(make(config)?.join(token::TOKEN_NAME));
    };
    require_apart(path, &config.data)?;
    Ok(path.clone())
}

/// Refuses a path for secrets in the folder of a disk: they would leave with the disk.
pub fn require_apart(secrets: &Path, disks: &[PathBuf]) -> Result<(), NodeError> {
    let at = real(secrets);
    // A disk that hangs gets no call.
    match disks.iter().find(|disk| at.starts_with(place_unseen(disk))) {
        None => Ok(()),
        Some(disk) => Err(NodeError::SecretOnDisk {
            secrets: secrets.to_owned(),
            disk: disk.clone(),
        }),
    }
}

/// The real path, also if its last parts do not exist yet.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = path.ancestors().find_map(|part| {
        let real = part.canonicalize().ok()?;
        let rest = path.strip_prefix(part).ok()?;
        Some(real.join(rest))
    });
    there.unwrap_or(path)
}

fn handle_key_path(folder: &Path, pool: PoolId) -> PathBuf {
    folder.join(format!("{HANDLE_KEY_PREFIX}{pool}"))
}

/// Keeps a copy of a pool's key of file handles.
pub fn keep_handle_key(
    folder: &Path,
    pool: PoolId,
    key: HandleKey,
    entropy: &dyn Entropy,
) -> std::io::Result<()> {
    let path = handle_key_path(folder, pool);
    if handle_key(folder, pool)? == Some(key) {
        return Ok(());
    }
    token::write_anew(&path, format!("{}\n", key.to_text()).as_bytes(), entropy)
}

/// The copy of a pool's key of file handles, if there is one.
pub fn handle_key(folder: &Path, pool: PoolId) -> std::io::Result<Option<HandleKey>> {
    let file = match std::fs::File::open(handle_key_path(folder, pool)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = String::new();
    file.take(HANDLE_KEY_LEN_BYTES_MAX)
        .read_to_string(&mut text)?;
    let key = HandleKey::from_text(text.trim_end());
    let damaged = || std::io::Error::new(ErrorKind::InvalidData, "it is not a key");
    key.ok_or_else(damaged).map(Some)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cairn_base::real::OsEntropy;

    use super::*;

    #[test]
    fn the_folder_is_chosen_by_what_is_said_of_it() {
        type Case<'a> = (
            Option<&'a str>,
            &'a [(&'a str, &'a str)],
            bool,
            Option<&'a str>,
        );
        let cases: &[Case<'_>] = &[
            (
                Some("/set"),
                &[("CAIRN_STATE_DIR", "/c")],
                true,
                Some("/set"),
            ),
            (
                None,
                &[("CAIRN_STATE_DIR", "/c"), ("HOME", "/h")],
                true,
                Some("/c"),
            ),
            (
                None,
                &[("CAIRN_STATE_DIR", "c"), ("HOME", "/h")],
                true,
                Some("/var/lib/cairn"),
            ),
            (
                None,
                &[("STATE_DIRECTORY", "/s:/t"), ("HOME", "/h")],
                false,
                Some("/s"),
            ),
            (
                None,
                &[("XDG_STATE_HOME", "/x"), ("HOME", "/h")],
                false,
                Some("/x/cairn"),
            ),
            (
                None,
                &[("XDG_STATE_HOME", "x"), ("HOME", "/h")],
                false,
                Some("/h/.local/state/cairn"),
            ),
            (None, &[("HOME", "h")], false, None),
            (None, &[], false, None),
        ];
        for (set, variables, is_root, want) in cases {
            let variable = |name: &str| {
                let mut all = variables.iter();
                let found = all.find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let found = chosen(set.map(Path::new), variable, *is_root);
            assert_eq!(found, want.map(PathBuf::from), "{set:?} {variables:?}");
        }
    }

    #[test]
    fn no_secret_is_put_on_a_data_disk() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let (disk, state) = (root.join("disk"), root.join("state"));
        for folder in [&disk, &state, &disk.join("inside")] {
            std::fs::create_dir(folder).unwrap();
        }
        std::os::unix::fs::symlink(&disk, root.join("link")).unwrap();
        let disks = [disk.clone()];
        for (file, want) in [
            (state.join("admin-token"), true),
            (root.join("disk-token"), true),
            (disk.join("admin-token"), false),
            (disk.join("inside/admin-token"), false),
            (root.join("link/admin-token"), false),
            (root.join("link/not/there/yet"), false),
            (disk.clone(), false),
            (root.join("not/there/yet"), true),
        ] {
            assert_eq!(
                require_apart(&file, &disks).is_ok(),
                want,
                "{}",
                file.display()
            );
        }
    }

    #[test]
    fn a_handle_key_is_kept_for_each_pool() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (PoolId(1), PoolId(2));
        let of = |pool| handle_key(root.path(), pool).unwrap();
        let keep = |pool, key| {
            keep_handle_key(root.path(), pool, HandleKey(key), &OsEntropy).unwrap();
        };
        assert_eq!(of(one), None);
        keep(one, 7);
        keep(one, 7);
        keep(other, 8);
        assert_eq!(
            (of(one), of(other)),
            (Some(HandleKey(7)), Some(HandleKey(8)))
        );
        keep(one, 9);
        assert_eq!(of(one), Some(HandleKey(9)));
        let path = handle_key_path(root.path(), one);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "no key").unwrap();
        assert!(handle_key(root.path(), one).is_err());
    }
}
