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
use object_store::azure::{AzureAccessKey, AzureCredential, split_sas};
use object_store::client::SpawnedReqwestConnector;
use object_store::gcp::{GcpCredential, GcpCredentialProvider, GoogleCloudStorageBuilder};
use parking_lot::Mutex;

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
    #[error("the file with credentials, {path}, needs {needed}")]
    Content { path: String, needed: &'static str },
    #[error("a directory needs no credentials")]
    NotNeeded,
}

const OF_AWS: &str = "lines \"aws_access_key_id = ...\" and \"aws_secret_access_key = ...\"";
const OF_AZURE: &str =
    "a line \"azure_storage_account_key = ...\" (Base64), or \"azure_storage_sas_token = ...\"";
const OF_GOOGLE: &str =
    "the JSON of a service account's key, as Google gives it (`private_key`, `client_email`)";

/// A file that is read anew for each request that is signed: keys are changed without a restart.
#[derive(Clone)]
struct SecretFile {
    path: PathBuf,
}

impl SecretFile {
    fn new(path: &str) -> Self {
        Self { path: path.into() }
    }

    fn read(&self) -> Result<String, CredentialsError> {
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
        Ok(text)
    }

    fn content(&self, needed: &'static str) -> CredentialsError {
        let path = self.path.display().to_string();
        CredentialsError::Content { path, needed }
    }

    /// What one line each gives; of another form is none of them.
    fn lines(&self, needed: &'static str) -> Result<Vec<(String, String)>, CredentialsError> {
        parse(&self.read()?).ok_or_else(|| self.content(needed))
    }
}

fn provided<T>(read: Result<T, CredentialsError>) -> object_store::Result<T> {
    read.map_err(|error| object_store::Error::Generic {
        store: "credentials",
        source: Box::new(error),
    })
}

/// The value of the last line with such a name, if it has one.
fn value_of(lines: &[(String, String)], names: &[&str]) -> Option<String> {
    let mut lines = lines.iter().rev();
    let found = lines.find(|(name, _)| names.contains(&name.as_str()));
    found
        .map(|(_, value)| value.clone())
        .filter(|value| !value.is_empty())
}

/// Keys of AWS.
pub(crate) struct AwsFile(SecretFile);

impl AwsFile {
    pub fn new(path: &str) -> Self {
        Self(SecretFile::new(path))
    }

    pub fn read(&self) -> Result<AwsCredential, CredentialsError> {
        let lines = self.0.lines(OF_AWS)?;
        let missing = || self.0.content(OF_AWS);
        Ok(AwsCredential {
            key_id: value_of(&lines, &["aws_access_key_id"]).ok_or_else(missing)?,
            secret_key: value_of(&lines, &["aws_secret_access_key"]).ok_or_else(missing)?,
            token: value_of(&lines, &["aws_session_token"]),
        })
    }
}

/// A key of a storage account of Azure, or a shared access signature.
pub(crate) struct AzureFile(SecretFile);

impl AzureFile {
    pub fn new(path: &str) -> Self {
        Self(SecretFile::new(path))
    }

    pub fn read(&self) -> Result<AzureCredential, CredentialsError> {
        let lines = self.0.lines(OF_AZURE)?;
        let wrong = || self.0.content(OF_AZURE);
        let key = value_of(
            &lines,
            &["azure_storage_account_key", "azure_storage_access_key"],
        );
        if let Some(key) = key {
            let key = AzureAccessKey::try_new(&key).map_err(|_| wrong())?;
            return Ok(AzureCredential::AccessKey(key));
        }
        let names = ["azure_storage_sas_token", "azure_storage_sas_key"];
        let token = value_of(&lines, &names).ok_or_else(wrong)?;
        let pairs = split_sas(&token).map_err(|_| wrong())?;
        Ok(AzureCredential::SASToken(pairs))
    }
}

/// The key of a service account of Google. What is got for it lasts an hour, or until the file changes.
pub(crate) struct GoogleFile {
    file: SecretFile,
    runtime: tokio::runtime::Handle,
    /// Of which text of the file, and who gets tokens for it.
    current: Mutex<Option<(String, GcpCredentialProvider)>>,
}

impl GoogleFile {
    pub fn new(path: &str, runtime: tokio::runtime::Handle) -> Self {
        Self {
            file: SecretFile::new(path),
            runtime,
            current: Mutex::default(),
        }
    }

    /// Who gets tokens for what is in the file now.
    pub fn read(&self) -> Result<GcpCredentialProvider, CredentialsError> {
        let text = self.file.read()?;
        let mut current = self.current.lock();
        if let Some((known, provider)) = &*current
            && *known == text
        {
            return Ok(Arc::clone(provider));
        }
        // Its error may have what is in the file in it.
        let wrong = |_| self.file.content(OF_GOOGLE);
        let made = GoogleCloudStorageBuilder::new()
            .with_bucket_name("none")
            .with_service_account_key(&text)
            .with_http_connector(SpawnedReqwestConnector::new(self.runtime.clone()))
            .build();
        let provider = Arc::clone(made.map_err(wrong)?.credentials());
        *current = Some((text, Arc::clone(&provider)));
        Ok(provider)
    }
}

/// The form of AWS's own file, of which only one section is looked at: lines that begin with `[` or `#` are passed over.
fn parse(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        let (name, value) = line.split_once('=')?;
        found.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    Some(found)
}

/// Shows the path, and nothing of what is there.
macro_rules! shown_by_path {
    ($name:ident, $path:expr) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let path: fn(&Self) -> &PathBuf = $path;
                write!(f, "{}({})", stringify!($name), path(self).display())
            }
        }
    };
}

shown_by_path!(AwsFile, |it| &it.0.path);
shown_by_path!(AzureFile, |it| &it.0.path);
shown_by_path!(GoogleFile, |it| &it.file.path);

#[async_trait::async_trait]
impl CredentialProvider for AwsFile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        provided(self.read().map(Arc::new))
    }
}

#[async_trait::async_trait]
impl CredentialProvider for AzureFile {
    type Credential = AzureCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AzureCredential>> {
        provided(self.read().map(Arc::new))
    }
}

#[async_trait::async_trait]
impl CredentialProvider for GoogleFile {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        let provider = provided(self.read())?;
        provider.get_credential().await
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
        let file = AwsFile::new(path.to_str().unwrap());
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

    #[tokio::test]
    async fn credentials_of_other_clouds_are_read_anew_or_refused() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        let azure = AzureFile::new(path.to_str().unwrap());
        let cases = [
            ("azure_storage_account_key = a2V5", Some("key")),
            ("AZURE_STORAGE_ACCOUNT_KEY=a2V5\n", Some("key")),
            ("azure_storage_sas_token = ?sv=1&sig=a%2Fb", Some("token")),
            ("azure_storage_account_key = not Base64!", None),
            ("azure_storage_account_key =", None),
            ("aws_access_key_id = A", None),
            ("", None),
        ];
        for (text, want) in cases {
            write(text);
            let read = match azure.read() {
                Ok(AzureCredential::AccessKey(_)) => Some("key"),
                Ok(AzureCredential::SASToken(_)) => Some("token"),
                Ok(AzureCredential::BearerToken(_)) => Some("bearer"),
                Err(error) => {
                    assert!(
                        error
                            .to_string()
                            .contains("azure_storage_account_key = ...")
                    );
                    None
                }
            };
            assert_eq!(read, want, "{text}");
        }
        let google = GoogleFile::new(path.to_str().unwrap(), tokio::runtime::Handle::current());
        for text in [
            "",
            "{}",
            "azure_storage_account_key = a2V5",
            "{\"private_key\": \"secret\"}",
        ] {
            write(text);
            let refused = google.read().unwrap_err().to_string();
            assert!(
                refused.contains("service account") && !refused.contains("\"secret"),
                "{refused}"
            );
        }
        let of = |id: &str| {
            format!(
                "{{\"private_key\": \"none\", \"private_key_id\": \"{id}\", \"client_email\": \"a@b\", \"disable_oauth\": true}}"
            )
        };
        write(&of("one"));
        let first = google.read().unwrap();
        assert!(Arc::ptr_eq(&first, &google.read().unwrap()));
        assert_eq!(google.get_credential().await.unwrap().bearer, "");
        write(&of("two"));
        assert!(
            !Arc::ptr_eq(&first, &google.read().unwrap()),
            "it was rotated"
        );
    }
}
