//! Credentials from a file.
//!
//! Owns: the file's form, who may be able to read it. Must not know: what is signed with them.
//! Invariant: nothing of what is in it is in any message.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

/// A file with credentials is not longer.
const LEN_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("the file with credentials, {path}, cannot be read: {why}")]
    Unreadable { path: String, why: String },
    #[error(
        "the file with credentials, {path}, can be read by others (mode {mode:04o}): chmod 600 {path}"
    )]
    Open { path: String, mode: u32 },
    #[error(
        "the file with credentials, {path}, needs lines \"aws_access_key_id = ...\" and \"aws_secret_access_key = ...\""
    )]
    Content { path: String },
    #[error("a directory needs no credentials")]
    NotNeeded,
}

/// Reads the file anew for each request that is signed: keys are changed without a restart.
pub(crate) struct FileCredentials {
    path: PathBuf,
}

impl fmt::Debug for FileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileCredentials({})", self.path.display())
    }
}

impl FileCredentials {
    pub fn new(path: &str) -> Self {
        Self { path: path.into() }
    }

    pub fn read(&self) -> Result<AwsCredential, CredentialsError> {
        let path = self.path.display().to_string();
        let unreadable = |error: std::io::Error| CredentialsError::Unreadable {
            path: path.clone(),
            why: error.to_string(),
        };
        let mut file = std::fs::File::open(&self.path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let mode = found.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(CredentialsError::Open { path, mode });
        }
        let mut text = String::new();
        let mut limited = (&mut file).take(LEN_BYTES_MAX);
        limited.read_to_string(&mut text).map_err(unreadable)?;
        parse(&text).ok_or(CredentialsError::Content { path })
    }
}

/// The form of AWS's own file, of which only one section is looked at: lines that begin with `[` or `#` are passed over.
fn parse(text: &str) -> Option<AwsCredential> {
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        let (name, value) = line.split_once('=')?;
        let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        match name.trim() {
            "aws_access_key_id" => key_id = value,
            "aws_secret_access_key" => secret_key = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    Some(AwsCredential {
        key_id: key_id?,
        secret_key: secret_key?,
        token,
    })
}

#[async_trait::async_trait]
impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let read = self.read().map(Arc::new);
        read.map_err(|error| object_store::Error::Generic {
            store: "credentials",
            source: Box::new(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_with_credentials_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let file = FileCredentials::new(path.to_str().unwrap());
        let missing = file.read().unwrap_err();
        assert!(matches!(missing, CredentialsError::Unreadable { .. }));
        let good = "[default]\n# mine\naws_access_key_id = AKIA\naws_secret_access_key=s=1\n";
        let cases = [
            (good, 0o600, true),
            (good, 0o400, true),
            (good, 0o640, false),
            (good, 0o604, false),
            ("aws_access_key_id = A", 0o600, false),
            (
                "aws_access_key_id =\naws_secret_access_key = B",
                0o600,
                false,
            ),
            ("nonsense", 0o600, false),
            ("", 0o600, false),
        ];
        for (text, mode, want) in cases {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = file.read();
            assert_eq!(read.is_ok(), want, "{text} {mode:o}");
            if let Ok(read) = read {
                assert_eq!(
                    (read.key_id.as_str(), read.secret_key.as_str()),
                    ("AKIA", "s=1")
                );
            }
        }
    }
}
