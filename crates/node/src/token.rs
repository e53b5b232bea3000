//! The file with the admin token.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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
            return read(path).map(|token| (token, path.clone()));
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

fn write(path: &Path, token: &Token) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{}", token.as_str())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cairn_base::real::OsEntropy;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_found_again() {
        let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths: Vec<PathBuf> = folders.iter().map(|dir| dir.path().to_owned()).collect();
        let (made, path) = load_or_make(None, &paths, &OsEntropy).unwrap();
        assert_eq!(path, paths[0].join(TOKEN_NAME));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let turned = [paths[1].clone(), paths[0].clone()];
        let (found, found_path) = load_or_make(None, &turned, &OsEntropy).unwrap();
        assert_eq!(found.as_str(), made.as_str());
        assert_eq!(found_path, path);
        std::fs::write(&path, "short").unwrap();
        assert!(load_or_make(None, &paths, &OsEntropy).is_err());
        assert!(load_or_make(Some(Path::new("/no/such/folder/t")), &paths, &OsEntropy).is_err());
    }
}
