//! The pools that this server served, with their disks.
//!
//! Owns: the file of each pool in the state folder, and the check whether folders belonged to one. Must not know: the
//! contents of folders.
//!
//! The file lies beside the data. Where the drives of a pool are not mounted, their folders are empty or missing,
//! like those of a new pool. This file tells the two apart.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use cairn_base::env::Entropy;
use serde::{Deserialize, Serialize};

use crate::error::NodeError;
use crate::token;

const NAME_PREFIX: &str = "pool-";
const NAME_SUFFIX: &str = ".json";
/// Maximum number of files of pools that are read; more than any server had.
const POOLS_MAX: usize = 1024;
/// Maximum size; a pool with the maximum number of disks and long paths has less.
const LEN_BYTES_MAX: u64 = 4 << 20;

/// The list of a pool's disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RememberedPool {
    pub pool: String,
    /// The folders of its disks. A disk that left is not among them: its folder may become another pool.
    pub disks: Vec<String>,
}

/// The file of a pool in the state folder.
fn path_of(state_folder: &Path, pool: &str) -> PathBuf {
    state_folder.join(format!("{NAME_PREFIX}{pool}{NAME_SUFFIX}"))
}

/// Stores a pool, and replaces its earlier file. Writes nothing if they are equal.
pub fn keep(
    state_folder: &Path,
    pool: &RememberedPool,
    entropy: &dyn Entropy,
) -> std::io::Result<()> {
    let path = path_of(state_folder, &pool.pool);
    // An unreadable file is rewritten.
    if read(&path).is_ok_and(|known| known == *pool) {
        return Ok(());
    }
    let mut text = serde_json::to_vec_pretty(pool).map_err(std::io::Error::other)?;
    text.push(b'\n');
    token::write_anew(&path, &text, entropy)
}

/// Refuses to make a pool in folders of a stored one. `folders`: their real paths.
///
/// An unreadable file is an error, too: it may be of such a pool.
pub fn require_none(state_folder: &Path, folders: &[String]) -> Result<(), NodeError> {
    for (path, pool) in load(state_folder)? {
        if folders.iter().any(|folder| pool.disks.contains(folder)) {
            return Err(NodeError::PoolAway {
                pool: pool.pool,
                disks: pool.disks.join(", "),
                folders: folders.join(", "),
                file: path.display().to_string(),
            });
        }
    }
    Ok(())
}

fn load(state_folder: &Path) -> Result<Vec<(PathBuf, RememberedPool)>, NodeError> {
    let failed = |path: &Path, error: std::io::Error| NodeError::StateFolder {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let entries = match std::fs::read_dir(state_folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| failed(state_folder, error))?,
    };
    let mut pools = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed(state_folder, error))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(NAME_PREFIX) || !name.ends_with(NAME_SUFFIX) {
            continue;
        }
        if pools.len() >= POOLS_MAX {
            let why = format!(
                "it has files of more than {POOLS_MAX} pools; delete those of pools that no longer exist"
            );
            return Err(failed(state_folder, std::io::Error::other(why)));
        }
        let path = entry.path();
        let pool = read(&path).map_err(|error| failed(&path, error))?;
        pools.push((path, pool));
    }
    // Sorted, so that each call reports the same pool.
    pools.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(pools)
}

fn read(path: &Path) -> std::io::Result<RememberedPool> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(LEN_BYTES_MAX).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| {
        let why = format!(
            "the pool that it remembers cannot be read ({error}); delete the file if all pools of this server are present"
        );
        std::io::Error::new(ErrorKind::InvalidData, why)
    })
}

#[cfg(test)]
mod tests {
    use cairn_base::real::OsEntropy;

    use super::*;

    fn pool(name: &str, disks: &[&str]) -> RememberedPool {
        RememberedPool {
            pool: name.to_owned(),
            disks: disks.iter().map(|&folder| folder.to_owned()).collect(),
        }
    }

    #[test]
    fn folders_of_a_remembered_pool_are_no_new_one() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        let refused = |folders: &[&str]| {
            let folders: Vec<String> = folders.iter().map(|&folder| folder.to_owned()).collect();
            match require_none(&state, &folders) {
                Ok(()) => None,
                Err(NodeError::PoolAway { pool, .. }) => Some(pool),
                Err(other) => panic!("{other}"),
            }
        };
        // The folder may be missing.
        assert_eq!(refused(&["/srv/disk1"]), None);
        std::fs::create_dir(&state).unwrap();
        let keep = |pool: &RememberedPool| keep(&state, pool, &OsEntropy).unwrap();
        keep(&pool("aa", &["/srv/disk1", "/srv/added"]));
        keep(&pool("bb", &["/mnt/old", "/mnt/new"]));
        std::fs::write(state.join("admin-token"), "of no pool").unwrap();
        let cases: &[(&[&str], Option<&str>)] = &[
            (&["/srv/disk1"], Some("aa")),
            (&["/srv/fresh", "/srv/added"], Some("aa")),
            (&["/mnt/old"], Some("bb")),
            (&["/mnt/new"], Some("bb")),
            (&["/srv/disk1/data"], None),
            (&["/srv"], None),
            (&[], None),
        ];
        for (folders, want) in cases {
            assert_eq!(refused(folders).as_deref(), *want, "{folders:?}");
        }
        // A disk that left may become another pool.
        keep(&pool("bb", &["/mnt/new"]));
        assert_eq!(refused(&["/mnt/old"]), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_none() {
        let root = tempfile::tempdir().unwrap();
        let own = pool("aa", &["/srv/disk1"]);
        let path = path_of(root.path(), "aa");
        for damaged in [
            "",
            "{",
            "{\"pool\":\"aa\"}",
            "{\"pool\":\"aa\",\"disks\":[],\"more\":1}",
        ] {
            std::fs::write(&path, damaged).unwrap();
            let refused = require_none(root.path(), &["/other".to_owned()]);
            let Err(NodeError::StateFolder { path: told, .. }) = refused else {
                panic!("{damaged:?} was taken");
            };
            assert_eq!(told, path);
        }
        // A server that has its pool rewrites the file.
        keep(root.path(), &own, &OsEntropy).unwrap();
        assert_eq!(read(&path).unwrap(), own);
    }
}
