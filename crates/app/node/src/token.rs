//! The admin token: in a file of the server's state folder, or of the configuration's choice. Never on a data disk.
//!
//! Owns: reading and making it. Must not know: the path of the file (`state_folder`).

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cairn_admin::{TOKEN_LEN_BYTES_MAX, Token};
use cairn_base::env::Entropy;

use crate::error::NodeError;
use crate::ready::folder_of;

/// The token's file in the state folder.
pub const TOKEN_NAME: &str = "admin-token";

/// Reads the token, or makes one that only this user can read.
pub fn load_or_make(path: &Path, entropy: &dyn Entropy) -> Result<Token, NodeError> {
    if let Some(token) = find(path)? {
        return Ok(token);
    }
    let token = Token::from_random(entropy.u128());
    let text = format!("{}\n", token.as_str());
    match write_first(path, text.as_bytes(), entropy) {
        Ok(()) => Ok(token),
        // Another server of this user was first: both use the one token in the file.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read(path),
        Err(error) => Err(failed(path, &error)),
    }
}

/// An error that an operator has to correct, or one that another attempt may not have.
fn failed(path: &Path, error: &std::io::Error) -> NodeError {
    let (path, why) = (path.to_owned(), error.to_string());
    match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory
        | ErrorKind::InvalidData => NodeError::Token { path, why },
        _ => NodeError::TokenDisk { path, why },
    }
}

/// The token in a file, if there is one.
fn find(path: &Path) -> Result<Option<Token>, NodeError> {
    if !path.try_exists().map_err(|error| failed(path, &error))? {
        return Ok(None);
    }
    let token = read(path)?;
    warn_if_open(path);
    Ok(Some(token))
}

/// Reads a token file.
pub fn read(path: &Path) -> Result<Token, NodeError> {
    let len_bytes_max = 2 * TOKEN_LEN_BYTES_MAX;
    let mut text = String::new();
    // Bounds the read bytes, and not the reported size: pipes and devices have none.
    let read = std::fs::File::open(path).and_then(|file| {
        file.take(len_bytes_max as u64 + 1)
            .read_to_string(&mut text)
    });
    let len_bytes = read.map_err(|error| failed(path, &error))?;
    let wrong = |why: String| NodeError::Token {
        path: path.to_owned(),
        why,
    };
    if len_bytes > len_bytes_max {
        let why = format!("it has more than {len_bytes_max} bytes, so it is not a token");
        return Err(wrong(why));
    }
    Token::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// The permissions of a file that others than its owner can use, if it is one.
fn open_mode(path: &Path) -> Option<u32> {
    let mode = path.metadata().ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Only warns: the file may be the operator's, who decides how a secret gets to a machine.
fn warn_if_open(path: &Path) {
    if let Some(mode) = open_mode(path) {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:o}"),
            "other users of this machine can access the admin token file"
        );
    }
}

/// Writes a file atomically and for this user alone, unless it exists: half a secret would keep the next start from
/// going on.
pub fn write_first(path: &Path, bytes: &[u8], entropy: &dyn Entropy) -> std::io::Result<()> {
    let new = write_beside(path, bytes, entropy)?;
    // A rename would replace a file that another server has just put there.
    let made = std::fs::hard_link(&new, path);
    std::fs::remove_file(&new)?;
    made?;
    std::fs::File::open(folder_of(path))?.sync_all()
}

/// As [`write_first`], also over an existing file.
pub fn write_anew(path: &Path, bytes: &[u8], entropy: &dyn Entropy) -> std::io::Result<()> {
    let new = write_beside(path, bytes, entropy)?;
    std::fs::rename(&new, path)?;
    std::fs::File::open(folder_of(path))?.sync_all()
}

fn write_beside(path: &Path, bytes: &[u8], entropy: &dyn Entropy) -> std::io::Result<PathBuf> {
    let mut new = path.as_os_str().to_owned();
    // A name that no other server and no broken-off start uses. A link that another user put there is not followed.
    new.push(format!(".{:016x}.new", entropy.u64()));
    let new = PathBuf::from(new);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use cairn_base::real::OsEntropy;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKEN_NAME);
        let made = load_or_make(&path, &OsEntropy).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open_mode(&path), None);
        let found = load_or_make(&path, &OsEntropy).unwrap();
        assert_eq!(found.as_str(), made.as_str());
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "nothing half written stays");
        let put = "a-token-of-the-operator";
        std::fs::write(&path, put).unwrap();
        assert_eq!(load_or_make(&path, &OsEntropy).unwrap().as_str(), put);
        // The intended token is not guessed.
        std::fs::write(&path, "short").unwrap();
        assert!(load_or_make(&path, &OsEntropy).is_err());
        assert!(load_or_make(Path::new("/no/such/folder/t"), &OsEntropy).is_err());
    }

    #[test]
    fn who_comes_second_takes_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKEN_NAME);
        write_first(&path, b"one-0123456789abcdef\n", &OsEntropy).unwrap();
        let second = write_first(&path, b"other-0123456789abcdef\n", &OsEntropy);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(read(&path).unwrap().as_str(), "one-0123456789abcdef");
        write_anew(&path, b"other-0123456789abcdef\n", &OsEntropy).unwrap();
        assert_eq!(read(&path).unwrap().as_str(), "other-0123456789abcdef");
        assert_eq!(open_mode(&path), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
