//! The file with the admin token.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cairn_admin::{TOKEN_LEN_BYTES_MAX, Token};
use cairn_base::env::Entropy;

use crate::error::NodeError;

/// The token's file in the first data folder that has one.
pub const TOKEN_NAME: &str = "admin-token";

/// Reads the token, or makes one that only this user can read.
///
/// `configured` is the file that the config names; else it is looked for in `folders`, all of
/// them, because the first may be the disk that broke.
pub fn load_or_make(
    configured: Option<&Path>,
    folders: &[PathBuf],
    entropy: &dyn Entropy,
) -> Result<(Token, PathBuf), NodeError> {
    let candidates: Vec<PathBuf> = match configured {
        Some(path) => vec![path.to_owned()],
        None => folders
            .iter()
            .map(|folder| folder.join(TOKEN_NAME))
            .collect(),
    };
    for path in &candidates {
        if path.exists() {
            let token = read(path)?;
            warn_if_open(path);
            return Ok((token, path.clone()));
        }
    }
    let path = candidates.first().cloned().unwrap_or_default();
    let token = Token::from_random(entropy.u128());
    write(&path, &token).map_err(|error| NodeError::Token {
        path: path.clone(),
        why: error.to_string(),
    })?;
    Ok((token, path))
}

/// Reads a token file.
pub fn read(path: &Path) -> Result<Token, NodeError> {
    let fail = |why: String| NodeError::Token {
        path: path.to_owned(),
        why,
    };
    let len_bytes = path
        .metadata()
        .map_err(|error| fail(error.to_string()))?
        .len();
    if len_bytes > 2 * TOKEN_LEN_BYTES_MAX as u64 {
        return Err(fail(format!("it has {len_bytes} bytes, which is no token")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    Token::parse(&text).map_err(|error| fail(error.to_string()))
}

/// The permissions of a file that others than its owner can use, if it is one.
fn open_mode(path: &Path) -> Option<u32> {
    let mode = path.metadata().ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// The file may be the operator's, and how a secret gets to a machine is not ours to decide.
fn warn_if_open(path: &Path) {
    if let Some(mode) = open_mode(path) {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:o}"),
            "other users of this machine can use the file of the admin token"
        );
    }
}

/// Puts the whole file there at once: half a token would keep the next start from going on.
fn write(path: &Path, token: &Token) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    // Of a start that broke off. What another user put there is not followed.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    writeln!(file, "{}", token.as_str())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use cairn_base::real::OsEntropy;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_found_again() {
        let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths: Vec<PathBuf> = folders.iter().map(|dir| dir.path().to_owned()).collect();
        let (made, path) = load_or_make(None, &paths, &OsEntropy).unwrap();
        assert_eq!(path, paths[0].join(TOKEN_NAME));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open_mode(&path), None);
        let turned = [paths[1].clone(), paths[0].clone()];
        let (found, found_path) = load_or_make(None, &turned, &OsEntropy).unwrap();
        assert_eq!(found.as_str(), made.as_str());
        assert_eq!(found_path, path);
        std::fs::write(&path, "short").unwrap();
        assert!(load_or_make(None, &paths, &OsEntropy).is_err());
        assert!(load_or_make(Some(Path::new("/no/such/folder/t")), &paths, &OsEntropy).is_err());
    }

    #[test]
    fn a_start_that_broke_off_leaves_no_half_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKEN_NAME);
        // The next start finds what the last one had begun, or somebody's link to elsewhere.
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("admin-token.new")).unwrap();
        let folders = [folder.path().to_owned()];
        let (made, _) = load_or_make(None, &folders, &OsEntropy).unwrap();
        assert_eq!(read(&path).unwrap().as_str(), made.as_str());
        assert!(!elsewhere.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(open_mode(&path), None);
    }

    #[test]
    fn a_token_that_others_can_read_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKEN_NAME);
        std::fs::write(&path, "0123456789abcdef").unwrap();
        for (mode, want) in [
            (0o600, None),
            (0o400, None),
            (0o640, Some(0o640)),
            (0o604, Some(0o604)),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(open_mode(&path), want, "{mode:o}");
            assert!(load_or_make(None, &[folder.path().to_owned()], &OsEntropy).is_ok());
        }
    }
}
