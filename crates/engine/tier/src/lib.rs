//! Tiers: objects of segments in S3, Azure Blob Storage or Google Cloud Storage, or in a directory.
//!
//! Owns: addresses of tiers, credentials, the mark that says whose a place is, what a request of `cairn_segment` is at the
//! object store. Must not know: what is in an object, which segments go there, when a read is tried again (`cairn_segment`
//! does). The crate `object_store` speaks the protocols, signs, and retries what a store refused for the moment.

#![forbid(unsafe_code)]

mod address;
mod credentials;
mod guarded;
mod owner;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_base::env::Env;
use cairn_base::{PoolId, TierId, VolumeId};
use cairn_formats::tier_object::{object_key, volume_prefix};
use cairn_segment::{ObjectId, TierError, TierStore, TierUpload};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::azure::{AzureCredentialProvider, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, RetryConfig,
};
use parking_lot::Mutex;

pub use self::address::{AddressError, TierAddress};
pub use self::credentials::CredentialsError;
pub use self::owner::ClaimError;

use self::credentials::{AwsFile, AzureFile, Bound, GoogleFile, require_trusted};
use self::guarded::{Connector, MachineConnector, told};

/// A connection is waited for so long,
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// the next bytes of an answer so long,
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// and all of it so long. The caller gives up sooner where it asks for less.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(110);
/// What a store refuses for the moment is asked for again, so often and for so long.
const RETRIES_MAX: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(15);
/// That a place is still this pool's is looked up again after so long, where that costs a request.
const OWNER_LOOK_INTERVAL: Duration = Duration::from_secs(600);
/// Objects of a deleted volume that are deleted at a time.
const DELETES_MAX: usize = 16;

/// Why a tier cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{path} is not a usable directory ({why}); create it, or mount what is to be there")]
    Directory { path: String, why: String },
    #[error("the object store cannot be used: {0}")]
    Store(String),
}

/// A tier of a pool.
#[derive(Clone)]
pub struct ObjectTier {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    pool: PoolId,
    tier: TierId,
    env: Env,
    /// The directory, if it is one: a look whether the place is still this pool's costs nothing there.
    directory: Option<PathBuf>,
    /// When it was seen last that it is, by the monotonic clock.
    seen_at: Arc<Mutex<Option<Duration>>>,
}

impl ObjectTier {
    /// Makes ready to use a tier; nothing is asked of it yet. Call within the runtime whose tasks are to serve its
    /// connections for as long as the tier is used.
    pub fn open(
        env: Env,
        (pool, tier): (PoolId, TierId),
        address: &TierAddress,
        credentials: Credentials<'_>,
    ) -> Result<Self, OpenError> {
        let (store, prefix, directory): (Arc<dyn ObjectStore>, _, _) = match address {
            TierAddress::Directory(path) => {
                if credentials.file.is_some() {
                    return Err(CredentialsError::NotNeeded.into());
                }
                let directory = |why: String| OpenError::Directory {
                    path: path.clone(),
                    why,
                };
                let found = std::fs::metadata(path);
                let found = found.map_err(|error| directory(error.to_string()))?;
                if !found.is_dir() {
                    return Err(directory("it is something else".to_owned()));
                }
                let store = LocalFileSystem::new_with_prefix(path)
                    .map_err(|error| directory(error.to_string()))?
                    .with_fsync(true);
                (Arc::new(store), Path::default(), Some(PathBuf::from(path)))
            }
            TierAddress::S3 { .. } => (s3(address, credentials)?, address.prefix(), None),
            TierAddress::Azure { .. } => (azure(address, credentials)?, address.prefix(), None),
            TierAddress::Gcs { .. } => (gcs(address, credentials)?, address.prefix(), None),
        };
        Ok(Self {
            store,
            prefix,
            pool,
            tier,
            env,
            directory,
            seen_at: Arc::default(),
        })
    }

    #[cfg(test)]
    fn on(store: Arc<dyn ObjectStore>, env: Env, pool: PoolId) -> Self {
        Self {
            store,
            prefix: Path::from("a/b"),
            pool,
            tier: TierId(1),
            env,
            directory: None,
            seen_at: Arc::default(),
        }
    }

    fn at(&self, key: &str) -> Path {
        self.prefix.clone().join_all(key)
    }

    fn path(&self, object: &ObjectId) -> Path {
        self.at(&object_key(self.pool, object))
    }

    /// Fails unless the place was this pool's not long ago: a caller with much to write need not begin.
    async fn expect_own(&self) -> Result<(), TierError> {
        let now = self.env.clock.monotonic();
        let seen_at = *self.seen_at.lock();
        match seen_at {
            Some(at)
                if self.directory.is_none() && now.saturating_sub(at) < OWNER_LOOK_INTERVAL =>
            {
                Ok(())
            }
            _ => self.require_own().await,
        }
    }

    /// Fails unless the place is this pool's now. A directory whose disk is not mounted is not, nor is a bucket of that
    /// name elsewhere.
    async fn require_own(&self) -> Result<(), TierError> {
        let now = self.env.clock.monotonic();
        self.check_owner()
            .await
            .map_err(|error| TierError::Failed(error.to_string()))?;
        *self.seen_at.lock() = Some(now);
        Ok(())
    }

    /// Deletes what is at a path; that nothing is there is no error.
    async fn delete_at(&self, path: &Path) -> Result<(), TierError> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

/// A store may list more than it was asked for, and all else is somebody's.
fn require_below(prefix: &Path, location: &Path) -> Result<(), TierError> {
    match location.prefix_matches(prefix) && location != prefix {
        true => Ok(()),
        false => Err(TierError::Failed(format!(
            "it lists an object that is not below {prefix}"
        ))),
    }
}

/// Removes what an upload to a file left beside it, and makes the removals durable. `object_store` gathers an upload in
/// `FILE#1`, or with the next number that is free.
fn tidy(file: &std::path::Path) -> std::io::Result<()> {
    for number in 1.. {
        let mut left = file.as_os_str().to_owned();
        left.push(format!("#{number}"));
        match std::fs::remove_file(&left) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    sync_above(file)
}

/// Makes durable what is in the folder of a file or folder, if that is there.
fn sync_above(path: &std::path::Path) -> std::io::Result<()> {
    match path.parent().map(std::fs::File::open) {
        Some(Ok(folder)) => folder.sync_all(),
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a folder with all that is in it, durably.
fn remove_folder(folder: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => sync_above(folder),
    }
}

/// What work with the directory of a tier came to, on a thread that may wait.
async fn of_directory(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> Result<(), TierError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| TierError::Failed(error.to_string()))?;
    done.map_err(|error| TierError::Failed(error.to_string()))
}

/// Puts the parts of a key behind a path.
trait JoinAll {
    fn join_all(self, key: &str) -> Self;
}

impl JoinAll for Path {
    fn join_all(self, key: &str) -> Self {
        key.split('/').fold(self, |path, part| path.join(part))
    }
}

/// Whose credentials requests are signed with, and where the machine's own may go.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The tier's own; `None`: those of the machine.
    pub file: Option<&'a str>,
    /// `HOST` or `HOST:PORT` of stores that get the machine's own, and those of any file, beside the provider's.
    pub machine_hosts: &'a [String],
}

/// How a store is reached over the network.
struct Reach {
    retry: RetryConfig,
    runtime: tokio::runtime::Handle,
    allow_http: bool,
}

impl Reach {
    fn new(endpoint: Option<&String>) -> Result<Self, OpenError> {
        // Where nobody chose one before: the one that everything else here has.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| OpenError::Store(error.to_string()))?;
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            },
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIMEOUT,
        };
        Ok(Self {
            retry,
            runtime,
            allow_http: endpoint.is_some_and(|url| url.starts_with("http://")),
        })
    }

    fn connector(&self) -> Connector {
        Connector {
            runtime: self.runtime.clone(),
            allow_http: self.allow_http,
        }
    }

    fn machine(&self) -> MachineConnector {
        MachineConnector {
            runtime: self.runtime.clone(),
        }
    }
}

type Built = Result<Arc<dyn ObjectStore>, OpenError>;

fn built<T>(store: object_store::Result<T>) -> Result<T, OpenError> {
    store.map_err(|error| OpenError::Store(told(&error)))
}

fn s3(address: &TierAddress, credentials: Credentials<'_>) -> Built {
    let TierAddress::S3 {
        bucket,
        endpoint,
        region,
        ..
    } = address
    else {
        return Err(OpenError::Store("it is no S3 address".to_owned()));
    };
    let reach = Reach::new(endpoint.as_ref())?;
    let base = || {
        let builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_retry(reach.retry.clone());
        match region {
            Some(region) => builder.with_region(region),
            None => builder,
        }
    };
    let provider: AwsCredentialProvider = match credentials.file {
        Some(file) => {
            let bound = Bound::new(address, credentials.machine_hosts);
            let file = AwsFile::new(file, bound);
            // A bad file fails here, and not with the first request.
            file.read()?;
            Arc::new(file)
        }
        None => {
            require_trusted(address, credentials.machine_hosts)?;
            let machine = base().with_http_connector(reach.machine()).build();
            Arc::clone(built(machine)?.credentials())
        }
    };
    let mut builder = base()
        .with_http_connector(reach.connector())
        .with_credentials(provider);
    if let Some(endpoint) = endpoint {
        // Other services than AWS mostly have no host name for each bucket.
        builder = builder
            .with_endpoint(endpoint)
            .with_virtual_hosted_style_request(false);
    }
    Ok(Arc::new(built(builder.build())?))
}

fn azure(address: &TierAddress, credentials: Credentials<'_>) -> Built {
    let TierAddress::Azure {
        container,
        account,
        endpoint,
        ..
    } = address
    else {
        return Err(OpenError::Store("it is no address of Azure".to_owned()));
    };
    let reach = Reach::new(endpoint.as_ref())?;
    let base = || {
        MicrosoftAzureBuilder::from_env()
            .with_use_emulator(false)
            .with_account(account)
            .with_container_name(container)
            .with_retry(reach.retry.clone())
    };
    let provider: AzureCredentialProvider = match credentials.file {
        Some(file) => {
            let bound = Bound::new(address, credentials.machine_hosts);
            let file = AzureFile::new(file, bound);
            file.read()?;
            Arc::new(file)
        }
        None => {
            require_trusted(address, credentials.machine_hosts)?;
            let machine = base().with_http_connector(reach.machine()).build();
            Arc::clone(built(machine)?.credentials())
        }
    };
    let mut builder = base()
        .with_http_connector(reach.connector())
        .with_credentials(provider);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok(Arc::new(built(builder.build())?))
}

fn gcs(address: &TierAddress, credentials: Credentials<'_>) -> Built {
    let TierAddress::Gcs {
        bucket, endpoint, ..
    } = address
    else {
        return Err(OpenError::Store(
            "it is no address of Google's storage".to_owned(),
        ));
    };
    let reach = Reach::new(endpoint.as_ref())?;
    let provider: GcpCredentialProvider = match credentials.file {
        Some(file) => {
            let bound = Bound::new(address, credentials.machine_hosts);
            let file = GoogleFile::new(file, bound, reach.runtime.clone());
            file.read()?;
            Arc::new(file)
        }
        None => {
            require_trusted(address, credentials.machine_hosts)?;
            let machine = GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_http_connector(reach.machine())
                .with_retry(reach.retry.clone());
            Arc::clone(built(machine.build())?.credentials())
        }
    };
    let builder = match credentials.file {
        // Not what the environment says beside it.
        Some(_) => GoogleCloudStorageBuilder::new(),
        None => GoogleCloudStorageBuilder::from_env(),
    };
    let mut builder = builder
        .with_bucket_name(bucket)
        .with_http_connector(reach.connector())
        .with_retry(reach.retry)
        .with_credentials(provider);
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint);
    }
    Ok(Arc::new(built(builder.build())?))
}

fn failed(error: object_store::Error) -> TierError {
    match error {
        object_store::Error::NotFound { path, .. } => TierError::NotFound(path),
        error => TierError::Failed(told(&error)),
    }
}

impl TierStore for ObjectTier {
    fn check(&self) -> BoxFuture<'_, Result<(), TierError>> {
        Box::pin(self.require_own())
    }

    fn begin(&self, object: ObjectId) -> BoxFuture<'_, Result<Box<dyn TierUpload>, TierError>> {
        Box::pin(async move {
            self.expect_own().await?;
            let upload = Upload {
                tier: self.clone(),
                path: self.path(&object),
                first: None,
                parts: None,
            };
            Ok(Box::new(upload) as Box<dyn TierUpload>)
        })
    }

    fn get(&self, object: ObjectId, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, TierError>> {
        Box::pin(async move {
            let path = self.path(&object);
            let wanted = range.end.saturating_sub(range.start);
            let options = || GetOptions::new().with_range(Some(range.clone()));
            let got = match self.store.get_opts(&path, options()).await {
                // An object is lost only where the tier is there: not below a mount that is away, nor in another bucket of that
                // name. It may have come back in between.
                Err(object_store::Error::NotFound { .. }) => {
                    self.require_own().await?;
                    self.store.get_opts(&path, options()).await
                }
                got => got,
            };
            let got = got.map_err(failed)?;
            let mut parts = got.into_stream();
            let mut bytes = BytesMut::new();
            while let Some(part) = parts.next().await {
                bytes.extend_from_slice(&part.map_err(failed)?);
                if bytes.len() as u64 > wanted {
                    let problem = format!("more than the {wanted} bytes came that were asked for");
                    return Err(TierError::Failed(problem));
                }
            }
            Ok(bytes.freeze())
        })
    }

    fn delete(&self, object: ObjectId) -> BoxFuture<'_, Result<(), TierError>> {
        Box::pin(async move {
            self.require_own().await?;
            let path = self.path(&object);
            self.delete_at(&path).await?;
            let Some(directory) = &self.directory else {
                return Ok(());
            };
            let file = directory.join(path.as_ref());
            of_directory(move || tidy(&file)).await
        })
    }

    fn may_be_late(&self) -> bool {
        self.directory.is_none()
    }

    fn delete_volume(&self, volume: VolumeId) -> BoxFuture<'_, Result<u64, TierError>> {
        Box::pin(async move {
            self.require_own().await?;
            let prefix = self.at(&volume_prefix(self.pool, volume));
            let found = self.store.list(Some(&prefix));
            let deleting = found.map_err(failed).map(|found| async {
                let location = found?.location;
                require_below(&prefix, &location)?;
                self.delete_at(&location).await
            });
            let mut deleted = deleting.buffer_unordered(DELETES_MAX);
            let mut count = 0;
            while let Some(done) = deleted.next().await {
                done?;
                count += 1;
            }
            // What unfinished uploads left is in no list.
            if let Some(directory) = &self.directory {
                let folder = directory.join(prefix.as_ref());
                of_directory(move || remove_folder(&folder)).await?;
            }
            Ok(count)
        })
    }
}

/// An object that is being written: as one if it is of one part.
struct Upload {
    tier: ObjectTier,
    path: Path,
    first: Option<Bytes>,
    parts: Option<Box<dyn MultipartUpload>>,
}

impl TierUpload for Upload {
    fn part(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), TierError>> {
        Box::pin(async move {
            if self.parts.is_none() {
                let Some(first) = self.first.take() else {
                    self.first = Some(bytes);
                    return Ok(());
                };
                let upload = self.tier.store.put_multipart(&self.path).await;
                let upload = self.parts.insert(upload.map_err(failed)?);
                upload.put_part(first.into()).await.map_err(failed)?;
            }
            match &mut self.parts {
                Some(upload) => upload.put_part(bytes.into()).await.map_err(failed),
                None => Ok(()),
            }
        })
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<(), TierError>> {
        Box::pin(async move {
            let done = match (&mut self.parts, self.first.take()) {
                (Some(upload), _) => upload.complete().await.map(drop),
                (None, first) => {
                    let bytes = first.unwrap_or_default();
                    let put = self.tier.store.put(&self.path, bytes.into());
                    put.await.map(drop)
                }
            };
            done.map_err(failed)?;
            // The mount from its beginning may be gone, and the read may come from elsewhere.
            self.tier.require_own().await
        })
    }

    fn abort(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(upload) = &mut self.parts
                && let Err(error) = upload.abort().await
            {
                tracing::debug!(%error, "an upload was not aborted; the store's own rules end it");
            }
        })
    }
}

#[cfg(test)]
mod tests;
