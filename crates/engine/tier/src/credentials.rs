//! Credentials from a file, and which stores get those of the machine.
//!
//! Owns: the file's form, who may be able to read it, to which hosts the machine's own credentials go. Must not know: what is
//! signed with them.
//! Invariants: nothing of what is in a file is in any message, and the mode of none that has no credentials. An administrator
//! names files and hosts, but gets no identity of the machine sent to a host that the configuration does not name, and
//! no usable content of a file sent to a host that the file does not name. Nor does the administrator learn which files there are.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::LogLimit;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::azure::{AzureAccessKey, AzureCredential, split_sas};
use object_store::gcp::{GcpCredential, GcpCredentialProvider, GoogleCloudStorageBuilder};
use parking_lot::Mutex;
use url::Url;

use crate::address::TierAddress;
use crate::guarded::Connector;

/// A file with credentials is not longer.
const LEN_BYTES_MAX: u64 = 64 << 10;

/// Lines in the log that say what is wrong with a file, in an interval.
const LINES_MAX: u32 = 10;
/// The error tells nothing of the file to the user who named it; a reader of this server's log may know.
static UNUSABLE_LOGGED: LogLimit = LogLimit::new(LINES_MAX);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// One error for every cause, so that an administrator who adds tiers does not learn which files exist.
    #[error(
        "the credentials file {path} cannot be used: it needs {needed}, and must be readable only by the server's user \
        (chmod 600 {path}){host}; the server's log has details"
    )]
    Unusable {
        path: String,
        needed: &'static str,
        /// The advice for a host that is not the provider's own.
        host: String,
    },
    #[error("a directory needs no credentials")]
    NotNeeded,
    #[error(
        "{host} does not get the credentials of this machine, which go only to the cloud's own hosts over TLS: give the tier a file \
         of its own (--credentials-file), or name the host in the server's configuration: credential_host = [\"{host}\"]"
    )]
    Host { host: String },
}

/// Files in the environment that have credentials of the machine.
const MACHINE_FILES: [&str; 4] = [
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];
/// More of them, which are paths as well.
const MACHINE_FILES_OF_GOOGLE: [&str; 2] =
    ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"];
/// Folders of the clouds' own programs in the home directory.
const MACHINE_FOLDERS: [&str; 3] = [".aws", ".azure", ".config/gcloud"];

/// Whether a host is the provider's own, where nobody else answers.
///
/// Sources: "Amazon S3 endpoints and quotas" of AWS; Azure, "Storage account overview"; Google, "Cloud Storage request
/// endpoints".
fn is_providers(address: &TierAddress, host: &str) -> bool {
    let is_label = |text: &str| {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !text.is_empty() && text.bytes().all(is_plain)
    };
    match address {
        TierAddress::Directory(_) => false,
        TierAddress::S3 { .. } => {
            let rest = host
                .strip_suffix(".amazonaws.com")
                .or_else(|| host.strip_suffix(".amazonaws.com.cn"));
            let labels: Vec<&str> = rest.unwrap_or_default().split('.').collect();
            match labels.as_slice() {
                ["s3" | "s3-fips"] => true,
                ["s3" | "s3-fips", region] | ["s3" | "s3-fips", "dualstack", region] => {
                    is_label(region)
                }
                _ => false,
            }
        }
        TierAddress::Azure { .. } => {
            let clouds = [
                ".blob.core.windows.net",
                ".blob.core.usgovcloudapi.net",
                ".blob.core.chinacloudapi.cn",
            ];
            let mut accounts = clouds.iter().filter_map(|cloud| host.strip_suffix(cloud));
            accounts.any(is_label)
        }
        TierAddress::Gcs { .. } => host == "storage.googleapis.com",
    }
}

/// Fails unless the store at an address may get credentials of the machine: it is the provider's own, over TLS, or one of
/// `hosts`, each `HOST` or `HOST:PORT`.
pub(crate) fn require_trusted(
    address: &TierAddress,
    hosts: &[String],
) -> Result<(), CredentialsError> {
    let endpoint = match address {
        TierAddress::Directory(_) => None,
        TierAddress::S3 { endpoint, .. }
        | TierAddress::Azure { endpoint, .. }
        | TierAddress::Gcs { endpoint, .. } => endpoint.as_ref(),
    };
    // Without one, it is the provider's own, or what the environment of this process says.
    let Some(endpoint) = endpoint else {
        return Ok(());
    };
    let url = Url::parse(endpoint).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    let port = url.as_ref().and_then(Url::port_or_known_default);
    let is_named = |named: &String| {
        let named = named.to_ascii_lowercase();
        let with_port = port.map(|port| format!("{host}:{port}"));
        named == host || Some(&named) == with_port.as_ref() || format!("[{named}]") == host
    };
    let is_tls = url.as_ref().is_some_and(|url| url.scheme() == "https");
    let is_own = is_tls && port == Some(443) && is_providers(address, host);
    match is_own || hosts.iter().any(is_named) {
        true => Ok(()),
        false => Err(CredentialsError::Host {
            host: host.to_owned(),
        }),
    }
}

/// Whether a file has the machine's own credentials.
fn is_machines(file: &Path) -> bool {
    let variable = |name: &&str| std::env::var_os(name).map(PathBuf::from);
    let named = MACHINE_FILES.iter().chain(&MACHINE_FILES_OF_GOOGLE);
    let mut machines: Vec<PathBuf> = named.filter_map(variable).collect();
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from) {
        machines.extend(MACHINE_FOLDERS.iter().map(|folder| home.join(folder)));
    }
    is_in(file, &machines)
}

/// For which store a file is used.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    address: TierAddress,
    /// `HOST` or `HOST:PORT` of stores that the configuration names.
    hosts: Vec<String>,
}

impl Bound {
    pub fn new(address: &TierAddress, hosts: &[String]) -> Self {
        Self {
            address: address.clone(),
            hosts: hosts.to_vec(),
        }
    }

    fn endpoint(&self) -> Option<Url> {
        match &self.address {
            TierAddress::Directory(_) => None,
            TierAddress::S3 { endpoint, .. }
            | TierAddress::Azure { endpoint, .. }
            | TierAddress::Gcs { endpoint, .. } => Url::parse(endpoint.as_deref()?).ok(),
        }
    }

    /// Whether credentials of a file may go to the store. Those that are sent themselves, as a password is, go to the provider's own
    /// hosts, or to one that the file or the configuration names: a user who adds tiers names any file, also one of another
    /// tier, and any host. A key that only signs goes to any host over TLS. Of the machine's own the configuration alone says.
    fn allows(&self, is_shown: bool, is_machines: bool, of_file: &[String]) -> bool {
        let is_trusted = |hosts: &[String]| require_trusted(&self.address, hosts).is_ok();
        let is_tls = || {
            self.endpoint()
                .is_some_and(|endpoint| endpoint.scheme() == "https")
        };
        is_trusted(&self.hosts) || !is_machines && (is_trusted(of_file) || !is_shown && is_tls())
    }

    /// The advice for the store's host, for any content of the file.
    fn advice(&self) -> String {
        if require_trusted(&self.address, &self.hosts).is_ok() {
            return String::new();
        }
        let endpoint = self.endpoint();
        let host = endpoint.as_ref().and_then(Url::host_str);
        let host = host.unwrap_or_default();
        let port = endpoint.as_ref().and_then(Url::port);
        let host = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        format!(
            ", and to name {host}, which is not the provider's own: credential_host = {host} (in JSON \
             \"credential_host\": [\"{host}\"]), unless the server's configuration does, or it has a key that only signs and the \
             endpoint is https://"
        )
    }
}

/// Whether a file is one of these, or in one of these, whatever links lead there.
fn is_in(file: &Path, places: &[PathBuf]) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let file = real(file);
    let mut places = places.iter().filter(|place| !place.as_os_str().is_empty());
    places.any(|place| file.starts_with(real(place)))
}

/// What names a host to which the credentials of a file may go.
const CREDENTIAL_HOST: &str = "credential_host";
const OF_AWS: &str = "lines \"aws_access_key_id = ...\" and \"aws_secret_access_key = ...\"";
const OF_AZURE: &str =
    "a line \"azure_storage_account_key = ...\" (Base64), or \"azure_storage_sas_token = ...\"";
const OF_GOOGLE: &str =
    "the JSON of a service account's key, as Google gives it (`private_key`, `client_email`)";

/// The content of a file of credentials.
struct CredentialFile<T> {
    credential: T,
    /// It is sent itself, and not only what it signs.
    is_shown: bool,
    /// To which hosts it may go, as the file says.
    hosts: Vec<String>,
}

/// A file that is read again for each request that is signed: keys are changed without a restart.
#[derive(Clone)]
struct SecretFile {
    path: PathBuf,
    needed: &'static str,
    bound: Bound,
}

impl SecretFile {
    fn new(path: &str, needed: &'static str, bound: Bound) -> Self {
        Self {
            path: path.into(),
            needed,
            bound,
        }
    }

    /// What `parse` finds in the file, if nobody else can read it and it may go to the store.
    fn read<T>(
        &self,
        parse: impl FnOnce(&str) -> Option<CredentialFile<T>>,
    ) -> Result<T, CredentialsError> {
        self.try_read(parse).map_err(|why| {
            let path = self.path.display().to_string();
            if let Some(more) = UNUSABLE_LOGGED.admitted() {
                tracing::warn!(
                    path,
                    why,
                    more,
                    "the credentials file of a tier cannot be used"
                );
            }
            CredentialsError::Unusable {
                path,
                needed: self.needed,
                host: self.bound.advice(),
            }
        })
    }

    /// The error is for the log, and has nothing of what is in the file.
    fn try_read<T>(
        &self,
        parse: impl FnOnce(&str) -> Option<CredentialFile<T>>,
    ) -> Result<T, String> {
        let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
        // Before it is opened: to open a pipe takes until somebody writes.
        if !std::fs::metadata(&self.path).map_err(unreadable)?.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let mut file = std::fs::File::open(&self.path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let mut text = String::new();
        let mut limited = (&mut file).take(LEN_BYTES_MAX);
        let read = limited.read_to_string(&mut text);
        let parsed = read.ok().and_then(|_| parse(&text));
        let parsed = parsed.ok_or("what is in it is something else")?;
        match found.mode() & 0o7777 {
            mode if mode & 0o077 != 0 => Err(format!("others can read it (mode {mode:04o})")),
            _ if !self
                .bound
                .allows(parsed.is_shown, is_machines(&self.path), &parsed.hosts) =>
            {
                Err("neither the file nor the configuration names the host of the store".to_owned())
            }
            _ => Ok(parsed.credential),
        }
    }
}

/// Hosts that lines name.
fn hosts_of(lines: &[(String, String)]) -> Vec<String> {
    let hosts = lines.iter().filter(|(name, _)| name == CREDENTIAL_HOST);
    hosts.map(|(_, host)| host.clone()).collect()
}

/// Hosts that a key in JSON names.
fn hosts_in_json(text: &str) -> Vec<String> {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let hosts = value
        .as_ref()
        .and_then(|value| value.get(CREDENTIAL_HOST)?.as_array());
    let hosts = hosts.into_iter().flatten().filter_map(|host| host.as_str());
    hosts.map(str::to_owned).collect()
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
    pub fn new(path: &str, bound: Bound) -> Self {
        Self(SecretFile::new(path, OF_AWS, bound))
    }

    pub fn read(&self) -> Result<AwsCredential, CredentialsError> {
        self.0.read(|text| {
            let lines = parse(text)?;
            let credential = AwsCredential {
                key_id: value_of(&lines, &["aws_access_key_id"])?,
                secret_key: value_of(&lines, &["aws_secret_access_key"])?,
                token: value_of(&lines, &["aws_session_token"]),
            };
            Some(CredentialFile {
                is_shown: credential.token.is_some(),
                credential,
                hosts: hosts_of(&lines),
            })
        })
    }
}

/// A key of a storage account of Azure, or a shared access signature.
pub(crate) struct AzureFile(SecretFile);

impl AzureFile {
    pub fn new(path: &str, bound: Bound) -> Self {
        Self(SecretFile::new(path, OF_AZURE, bound))
    }

    pub fn read(&self) -> Result<AzureCredential, CredentialsError> {
        self.0.read(|text| {
            let lines = parse(text)?;
            let hosts = hosts_of(&lines);
            let key = value_of(
                &lines,
                &["azure_storage_account_key", "azure_storage_access_key"],
            );
            if let Some(key) = key {
                let key = AzureAccessKey::try_new(&key).ok()?;
                return Some(CredentialFile {
                    credential: AzureCredential::AccessKey(key),
                    is_shown: false,
                    hosts,
                });
            }
            let names = ["azure_storage_sas_token", "azure_storage_sas_key"];
            let token = value_of(&lines, &names)?;
            Some(CredentialFile {
                credential: AzureCredential::SASToken(split_sas(&token).ok()?),
                is_shown: true,
                hosts,
            })
        })
    }
}

/// The key of a service account of Google. The token that it buys lasts an hour, or until the file changes.
pub(crate) struct GoogleFile {
    file: SecretFile,
    runtime: tokio::runtime::Handle,
    /// Of which text of the file, and who gets tokens for it.
    current: Mutex<Option<(String, GcpCredentialProvider)>>,
}

impl GoogleFile {
    pub fn new(path: &str, bound: Bound, runtime: tokio::runtime::Handle) -> Self {
        Self {
            file: SecretFile::new(path, OF_GOOGLE, bound),
            runtime,
            current: Mutex::default(),
        }
    }

    /// Who gets tokens for what is in the file now.
    pub fn read(&self) -> Result<GcpCredentialProvider, CredentialsError> {
        self.file.read(|text| {
            // A bearer token.
            let found = |credential| CredentialFile {
                credential,
                is_shown: true,
                hosts: hosts_in_json(text),
            };
            let mut current = self.current.lock();
            if let Some((known, provider)) = &*current
                && known == text
            {
                return Some(found(Arc::clone(provider)));
            }
            let made = GoogleCloudStorageBuilder::new()
                .with_bucket_name("none")
                .with_service_account_key(text)
                // Google's own, where tokens are got. No metadata service is asked for what is in a file.
                .with_http_connector(Connector {
                    runtime: self.runtime.clone(),
                    allow_http: false,
                })
                .build();
            // Its error may have what is in the file in it.
            let provider = Arc::clone(made.ok()?.credentials());
            *current = Some((text.to_owned(), Arc::clone(&provider)));
            Some(found(provider))
        })
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

    fn bound(address: &str) -> Bound {
        let named = ["named.example".to_owned()];
        Bound::new(&address.parse().unwrap(), &named)
    }

    #[tokio::test]
    async fn what_is_shown_goes_to_the_provider_and_to_hosts_that_are_named() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let key = "aws_access_key_id = A\naws_secret_access_key = B\n";
        let session = format!("{key}aws_session_token = C\n");
        let aws = |text: &str, host: &str| match host {
            "" => text.to_owned(),
            host => format!("{text}credential_host = {host}\n"),
        };
        let shared = "azure_storage_account_key = a2V5\n";
        let sas = "azure_storage_sas_token = ?sv=1&sig=a\n";
        let google = |hosts: &str| {
            format!(
                "{{\"private_key\": \"n\", \"private_key_id\": \"n\", \"client_email\": \"a@b\", \"disable_oauth\": true, \"credential_host\": [{hosts}]}}"
            )
        };
        let to_http = "endpoint=http://10.0.0.1:9000";
        let to_tls = "endpoint=https://evil.example";
        let to_named = "endpoint=http://named.example:9000";
        let cases = [
            (format!("s3://bucket?{to_tls}"), aws(key, ""), true),
            (format!("s3://bucket?{to_http}"), aws(key, ""), false),
            (
                format!("s3://bucket?{to_http}"),
                aws(key, "10.0.0.1:9000"),
                true,
            ),
            (
                format!("s3://bucket?{to_http}"),
                aws(key, "10.0.0.1:9001"),
                false,
            ),
            (format!("s3://bucket?{to_named}"), aws(key, ""), true),
            ("s3://bucket?region=a".to_owned(), aws(&session, ""), true),
            (format!("s3://bucket?{to_tls}"), aws(&session, ""), false),
            (
                format!("s3://bucket?{to_tls}"),
                aws(&session, "evil.example"),
                true,
            ),
            (format!("s3://bucket?{to_named}"), aws(&session, ""), true),
            (
                format!("az://cold?account=a123&{to_tls}/a123"),
                shared.to_owned(),
                true,
            ),
            (
                format!("az://cold?account=a123&{to_http}/a123"),
                shared.to_owned(),
                false,
            ),
            ("az://cold?account=a123".to_owned(), sas.to_owned(), true),
            (
                format!("az://cold?account=a123&{to_tls}/a123"),
                sas.to_owned(),
                false,
            ),
            (
                format!("az://cold?account=a123&{to_http}/a123"),
                aws(sas, "10.0.0.1"),
                true,
            ),
            ("gs://bucket".to_owned(), google(""), true),
            (format!("gs://bucket?{to_tls}"), google(""), false),
            (format!("gs://bucket?{to_http}"), google(""), false),
            (
                format!("gs://bucket?{to_http}"),
                google("\"10.0.0.1:9000\""),
                true,
            ),
        ];
        for (address, text, want) in cases {
            std::fs::write(&path, &text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let read = || {
                let (file, bound) = (path.to_str().unwrap(), bound(&address));
                match bound.address.clone() {
                    TierAddress::Azure { .. } => AzureFile::new(file, bound).read().map(drop),
                    TierAddress::Gcs { .. } => {
                        let runtime = tokio::runtime::Handle::current();
                        GoogleFile::new(file, bound, runtime).read().map(drop)
                    }
                    _ => AwsFile::new(file, bound).read().map(drop),
                }
            };
            let before = read();
            assert_eq!(before.is_ok(), want, "{address} {text}");
            // A file that is not there gets an equal message.
            if before.is_err() {
                std::fs::remove_file(&path).unwrap();
                assert_eq!(read(), before, "{address}");
            }
        }
    }

    #[test]
    fn the_machines_own_go_where_the_configuration_says_alone() {
        let of_file = ["evil.example".to_owned()];
        let evil = bound("s3://bucket?endpoint=https://evil.example");
        assert!(!evil.allows(false, true, &of_file));
        assert!(evil.allows(true, false, &of_file));
        let named = bound("s3://bucket?endpoint=https://named.example");
        assert!(named.allows(true, true, &[]));
    }

    #[test]
    fn files_with_credentials_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let file = AwsFile::new(path.to_str().unwrap(), bound("s3://bucket"));
        let missing = file.read().unwrap_err();
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
            ("root:x:0:0", 0o644, false),
        ];
        for (text, mode, want) in cases {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = file.read();
            assert_eq!(read.is_ok(), want, "{text} {mode:o}");
            match read {
                Ok(read) => assert_eq!(
                    (read.key_id.as_str(), read.secret_key.as_str()),
                    ("AKIA", "s=1")
                ),
                // Neither that it is there nor what is wrong is told.
                Err(refused) => assert_eq!(refused, missing, "{text}"),
            }
        }
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let file = AwsFile::new(folder.path().to_str().unwrap(), bound("s3://bucket"));
        assert!(file.read().is_err());
    }

    #[test]
    fn credentials_of_the_machine_go_to_the_provider_or_to_named_hosts() {
        let named = ["minio.example".to_owned(), "10.0.0.1:9000".to_owned()];
        let cases = [
            ("s3://bucket", true),
            ("s3://bucket?region=eu-west-1", true),
            (
                "s3://bucket?endpoint=https://s3.eu-west-1.amazonaws.com",
                true,
            ),
            (
                "s3://bucket?endpoint=https://s3.dualstack.eu-west-1.amazonaws.com",
                true,
            ),
            (
                "s3://bucket?endpoint=https://s3.cn-north-1.amazonaws.com.cn",
                true,
            ),
            (
                "s3://bucket?endpoint=http://s3.eu-west-1.amazonaws.com",
                false,
            ),
            (
                "s3://bucket?endpoint=https://s3.eu-west-1.amazonaws.com:8443",
                false,
            ),
            (
                "s3://bucket?endpoint=https://ec2-1-2-3-4.compute.amazonaws.com",
                false,
            ),
            (
                "s3://bucket?endpoint=https://s3.a.execute-api.eu-west-1.amazonaws.com",
                false,
            ),
            ("s3://bucket?endpoint=https://amazonaws.com", false),
            (
                "s3://bucket?endpoint=https://s3.amazonaws.com.example.org",
                false,
            ),
            ("s3://bucket?endpoint=https://storage.googleapis.com", false),
            ("s3://bucket?endpoint=http://127.0.0.1:9000", false),
            ("s3://bucket?endpoint=http://minio.example:9000", true),
            ("s3://bucket?endpoint=https://MINIO.example", true),
            ("s3://bucket?endpoint=http://10.0.0.1:9000", true),
            ("s3://bucket?endpoint=http://10.0.0.1:9001", false),
            ("az://cold?account=store1", true),
            (
                "az://cold?account=store1&endpoint=https://store1.blob.core.windows.net",
                true,
            ),
            (
                "az://cold?account=store1&endpoint=https://a.b.blob.core.windows.net",
                false,
            ),
            (
                "az://cold?account=store1&endpoint=https://store1.example.org",
                false,
            ),
            ("gs://bucket", true),
            ("gs://bucket?endpoint=https://storage.googleapis.com", true),
            (
                "gs://bucket?endpoint=https://a.storage.googleapis.com",
                false,
            ),
        ];
        for (text, want) in cases {
            let address: TierAddress = text.parse().unwrap();
            let trusted = require_trusted(&address, &named);
            assert_eq!(trusted.is_ok(), want, "{text}");
        }
    }

    #[test]
    fn the_machines_own_files_are_known_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at(".aws")).unwrap();
        std::fs::write(at(".aws/credentials"), "").unwrap();
        std::fs::write(at("own"), "").unwrap();
        std::os::unix::fs::symlink(at(".aws"), at("link")).unwrap();
        let places = [at(".aws"), at("absent"), PathBuf::new()];
        let cases = [
            (".aws/credentials", true),
            ("link/credentials", true),
            ("link/../.aws/credentials", true),
            ("absent", true),
            ("own", false),
            (".aws-more", false),
        ];
        for (name, want) in cases {
            assert_eq!(is_in(&at(name), &places), want, "{name}");
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
        let azure = AzureFile::new(path.to_str().unwrap(), bound("az://cold?account=store1"));
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
        let runtime = tokio::runtime::Handle::current();
        let google = GoogleFile::new(path.to_str().unwrap(), bound("gs://bucket"), runtime);
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
