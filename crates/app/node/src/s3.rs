//! Answers the admin API about buckets and access keys, and starts the S3 server when there is one.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::s3::{
    AccessKeyCreate, AccessKeyView, BucketCreate, BucketSet, BucketView, NOTE_CHARS_MAX,
    PREFIX_CHARS_MAX, PermissionView, S3Control,
};
use cairn_admin::{Answer, ControlError};
use cairn_config::{LISTEN_S3_DEFAULT, VolumeName};
use cairn_fs::{Credentials, FsError};
use cairn_objects::{
    AccessKey, BucketRecord, Facet, KeySpec, NFS_VERSIONS_SECONDS, NFS_VERSIONS_SECONDS_DEFAULT,
    ObjectError, Objects, Permission, Versioning,
};
use cairn_pool::ChangeFailure;
use cairn_s3::{Certificate, PeerServer, Running, ServerCore};
use parking_lot::Mutex;

use crate::certificate::of_files;
use crate::control::{Controller, no_room, refusal};
use crate::node::NodeCore;

/// The S3 server, running or waiting for the first bucket or access key.
#[derive(Default)]
pub struct S3Server(Mutex<Option<Running>>);

impl S3Server {
    /// Serves on a bound socket, or binds the usual one as soon as it is needed. A node of a cluster always serves
    /// forwarded requests, and needs the socket when any node does.
    pub fn tend(
        self: &Arc<Self>,
        inner: &Arc<NodeCore>,
        shared: Arc<ServerCore>,
        bound: Option<TcpListener>,
    ) {
        let server = Arc::clone(self);
        let forward = inner.cluster.as_ref();
        let forward = forward.map(|cluster| Arc::clone(&cluster.forward));
        if let Some(cluster) = &inner.cluster
            && let Some(passed) = server.start(Arc::clone(&shared))
        {
            cluster.serve_s3(passed);
        }
        if let Some(listener) = bound {
            server.start(shared);
            server.listen(listener);
            return;
        }
        let mut is_used = inner.stores.is_used.subscribe();
        let clock = Arc::clone(&inner.env.clock);
        let task = async move {
            let used_here = async move { is_used.wait_for(|used| *used).await.is_ok() };
            let used_elsewhere = async move {
                let Some(forward) = forward else {
                    return std::future::pending().await;
                };
                while !cairn_s3::is_used_elsewhere(&forward).await {
                    clock.sleep(NEEDED_INTERVAL).await;
                }
                true
            };
            let is_needed = tokio::select! {
                used = used_here => used,
                used = used_elsewhere => used,
            };
            if !is_needed {
                return;
            }
            match TcpListener::bind(LISTEN_S3_DEFAULT) {
                Ok(listener) => {
                    server.start(shared);
                    server.listen(listener);
                }
                Err(error) => tracing::error!(
                    address = %LISTEN_S3_DEFAULT,
                    %error,
                    "buckets exist, but S3 is not served: free the port, or start with --listen-s3 ADDR:PORT"
                ),
            }
        };
        inner.env.spawner.spawn("S3 start", Box::pin(task));
    }

    /// Begins to serve, unless it does already.
    fn start(&self, shared: Arc<ServerCore>) -> Option<PeerServer> {
        let mut running = self.0.lock();
        if running.is_none() {
            match Running::start(shared) {
                Ok(started) => *running = Some(started),
                Err(error) => tracing::error!(%error, "S3 is not served"),
            }
        }
        running.as_ref()?.passed()
    }

    fn listen(&self, listener: TcpListener) {
        let address = listener.local_addr().ok();
        let address = address.map(|address| address.to_string());
        match self
            .0
            .lock()
            .as_ref()
            .map(|running| running.listen(listener))
        {
            Some(Ok(())) => tracing::info!(address, "S3 is served"),
            Some(Err(error)) => tracing::error!(address, %error, "S3 is not served"),
            None => {}
        }
    }

    pub async fn stop(&self, grace: std::time::Duration) {
        let running = self.0.lock().take();
        if let Some(running) = running {
            running.stop(grace).await;
        }
    }
}

/// Interval at which other nodes are asked whether they have buckets, until one has.
const NEEDED_INTERVAL: Duration = Duration::from_secs(5);
/// The certificate of HTTPS, if it is configured.
fn certificate(inner: &Arc<NodeCore>) -> Result<Option<Arc<Certificate>>, String> {
    let paths = inner.config.s3_certificate.clone();
    let found = paths
        .map(|paths| of_files(&inner.env, "S3", paths))
        .transpose()?;
    Ok(found.map(|(certificate, _)| certificate))
}

/// The shared parts of the server.
pub fn shared(inner: &Arc<NodeCore>) -> Result<Arc<ServerCore>, String> {
    let held = usize::try_from(inner.budget.s3_bytes()).unwrap_or(usize::MAX);
    let settings = cairn_s3::Settings {
        threads: inner.config.threads,
        held_bytes_max: held,
        domains: inner.config.s3_domains.clone(),
        audit: inner.config.s3_audit,
        certificate: certificate(inner)?,
        ..cairn_s3::Settings::default()
    };
    let settings = match inner.config.s3_region.clone() {
        Some(region) => cairn_s3::Settings { region, ..settings },
        None => settings,
    };
    let cluster = inner.cluster.as_ref();
    let member = cluster.map(|cluster| Arc::clone(&cluster.member));
    let forward = cluster.map(|cluster| Arc::clone(&cluster.forward));
    let may_answer = move || member.as_ref().is_none_or(|member| member.lease_is_valid());
    Ok(ServerCore::new(
        Arc::clone(&inner.stores),
        settings,
        forward,
        may_answer,
    ))
}

pub(crate) fn refused(error: ObjectError) -> ControlError {
    let message = error.to_string();
    let (kind, hint) = match &error {
        ObjectError::NoBucket(_) => (ErrorKind::NotFound, "`cairn bucket list` shows all buckets"),
        ObjectError::NoAccessKey(_) => (
            ErrorKind::NotFound,
            "`cairn s3 key list` shows all access keys",
        ),
        ObjectError::NoVersioning(_) => (
            ErrorKind::Conflict,
            "enable versioning first: aws s3api put-bucket-versioning --bucket BUCKET --versioning-configuration Status=Enabled",
        ),
        ObjectError::BucketExists(_) => (ErrorKind::Conflict, "choose another name"),
        ObjectError::BucketNotEmpty(_) => (
            ErrorKind::Conflict,
            "delete its objects first, or use --keep, which keeps the directory",
        ),
        ObjectError::InTheWay => {
            let message = "a part of the path is a file";
            return ControlError::new(ErrorKind::Conflict, message).hint("choose another --path");
        }
        ObjectError::Path(_) | ObjectError::Invalid(_) => (ErrorKind::Invalid, ""),
        ObjectError::Secret { .. } => (
            ErrorKind::Unavailable,
            "`cairn key list` shows which master key is missing",
        ),
        ObjectError::Fs(FsError::Fenced | FsError::TryLater | FsError::Unreachable(_)) => {
            (ErrorKind::Unavailable, "")
        }
        ObjectError::Fs(FsError::NoSpace | FsError::QuotaExceeded) => return no_room(message),
        ObjectError::RevokedHere { error, .. } => {
            let kind = match error {
                FsError::NoSpace | FsError::QuotaExceeded => ErrorKind::Conflict,
                _ => ErrorKind::Unavailable,
            };
            let hint = "repeat `cairn s3 key revoke` until it succeeds: free space first, if the volume has none (`cairn status`)";
            (kind, hint)
        }
        _ => {
            tracing::error!(%message, "a change of buckets failed");
            (ErrorKind::Internal, "the server's log has details")
        }
    };
    let error = ControlError::new(kind, message);
    match hint {
        "" => error,
        hint => error.hint(hint),
    }
}

fn volume_of(objects: &Objects) -> Result<VolumeName, ControlError> {
    let nameless = |_| ControlError::new(ErrorKind::Internal, "the volume has no name");
    objects.fs().name().parse().map_err(nameless)
}

fn bucket_view(
    objects: &Objects,
    name: String,
    record: BucketRecord,
) -> Result<BucketView, ControlError> {
    Ok(BucketView {
        name,
        volume: volume_of(objects)?,
        path: record.path,
        created_seconds: record.created_seconds,
        versioning: record.settings.versioning.map(|versioning| {
            match versioning {
                Versioning::Enabled => "enabled",
                Versioning::Suspended => "suspended",
            }
            .to_owned()
        }),
        nfs_versions_seconds: record.settings.nfs_versions_seconds,
    })
}

/// The description of a key is kept for ever, and shown in lists.
fn check_lengths(create: &AccessKeyCreate) -> Result<(), ControlError> {
    let refuse = |message| Err(ControlError::new(ErrorKind::Invalid, message));
    if create.note.chars().count() > NOTE_CHARS_MAX {
        return refuse(format!(
            "the note has more than {NOTE_CHARS_MAX} characters"
        ));
    }
    let is_long = |only: &PermissionView| only.prefix.chars().count() > PREFIX_CHARS_MAX;
    if create.only.iter().any(is_long) {
        return refuse(format!(
            "a prefix has more than {PREFIX_CHARS_MAX} characters"
        ));
    }
    Ok(())
}

fn key_view(objects: &Objects, id: String, key: AccessKey) -> Result<AccessKeyView, ControlError> {
    let only = key.only.into_iter().map(|only| PermissionView {
        bucket: only.bucket,
        prefix: only.prefix,
    });
    Ok(AccessKeyView {
        id,
        volume: volume_of(objects)?,
        uid: key.uid,
        gid: key.gid,
        groups: key.groups,
        read_only: key.read_only,
        only: only.collect(),
        note: key.note,
        created_seconds: key.created_seconds,
        secret: None,
    })
}

impl Controller {
    fn objects(&self, name: &VolumeName) -> Result<Arc<Objects>, ControlError> {
        let state = self.inner.pool.state();
        let volume = state
            .volume(name)
            .map_err(|error| refusal(ChangeFailure::from(error)))?;
        if let Some(objects) = self.inner.stores.of_volume(volume.id) {
            return Ok(objects);
        }
        Err(self.not_here(volume.id, name))
    }

    fn with_bucket(&self, name: &str) -> Result<Arc<Objects>, ControlError> {
        let all = self.inner.stores.all();
        let mut has_it = all
            .into_iter()
            .filter(|objects| objects.bucket(name).is_ok());
        let absent = || refused(ObjectError::NoBucket(name.to_owned()));
        has_it.next().ok_or_else(absent)
    }
}

impl S3Control for Controller {
    fn buckets(&self) -> Answer<'_, Vec<BucketView>> {
        Box::pin(async move {
            let mut views = Vec::new();
            for objects in self.inner.stores.all() {
                for (name, record) in objects.buckets() {
                    views.push(bucket_view(&objects, name, record)?);
                }
            }
            views.sort_by(|left, right| left.name.cmp(&right.name));
            Ok(views)
        })
    }

    fn bucket_create(&self, create: BucketCreate) -> Answer<'_, BucketView> {
        Box::pin(async move {
            if self.with_bucket(&create.name).is_ok() {
                return Err(refused(ObjectError::BucketExists(create.name)));
            }
            let objects = self.objects(&create.volume)?;
            let who = Credentials {
                uid: create.uid,
                gid: create.gid,
                groups: Vec::new(),
                request: None,
            };
            let made = objects.create_bucket(&who, &create.name, create.path.as_deref());
            let made = made.await.map_err(refused)?;
            self.inner.stores.is_used.send_replace(true);
            bucket_view(&objects, made.name, made.record)
        })
    }

    fn bucket_set(&self, name: String, set: BucketSet) -> Answer<'_, BucketView> {
        Box::pin(async move {
            // Checked also for keys without NFS: a request that is not understood is refused.
            let fits = |seconds: u32| NFS_VERSIONS_SECONDS.contains(&seconds);
            if !set.nfs_versions_seconds.is_none_or(fits) {
                let most = NFS_VERSIONS_SECONDS.end();
                let message = format!("nfs_versions_seconds is 1 to {most}");
                return Err(ControlError::new(ErrorKind::Invalid, message));
            }
            let objects = self.with_bucket(&name)?;
            let now = objects.bucket(&name).map_err(refused)?;
            let now = now.record.settings.nfs_versions_seconds;
            let seconds = set.nfs_versions.then(|| {
                let given = set.nfs_versions_seconds.or(now);
                given.unwrap_or(NFS_VERSIONS_SECONDS_DEFAULT)
            });
            let set = objects.set_nfs_versions(&name, seconds).await;
            let bucket = set.map_err(refused)?;
            bucket_view(&objects, bucket.name, bucket.record)
        })
    }

    fn bucket_delete(&self, name: String, keep: bool) -> Answer<'_, ()> {
        Box::pin(async move {
            let objects = self.with_bucket(&name)?;
            let begun = objects.arrive_bucket(&name, Facet::Whole);
            let root = Credentials::ROOT;
            let deleted = objects.delete_bucket(&root, &name, keep, &begun);
            deleted.await.map_err(refused)
        })
    }

    fn access_keys(&self) -> Answer<'_, Vec<AccessKeyView>> {
        Box::pin(async move {
            let mut views = Vec::new();
            for objects in self.inner.stores.all() {
                for (id, key) in objects.access_keys() {
                    views.push(key_view(&objects, id, key)?);
                }
            }
            Ok(views)
        })
    }

    fn access_key_create(&self, create: AccessKeyCreate) -> Answer<'_, AccessKeyView> {
        Box::pin(async move {
            check_lengths(&create)?;
            let objects = self.objects(&create.volume)?;
            let only = create.only.into_iter().map(|only| Permission {
                bucket: only.bucket,
                prefix: only.prefix,
            });
            let spec = KeySpec {
                uid: create.uid,
                gid: create.gid,
                groups: create.groups,
                read_only: create.read_only,
                only: only.collect(),
                note: create.note,
            };
            let (id, key, secret) = objects.create_key(spec).await.map_err(refused)?;
            self.inner.stores.is_used.send_replace(true);
            Ok(AccessKeyView {
                secret: Some(secret),
                ..key_view(&objects, id, key)?
            })
        })
    }

    fn access_key_revoke(&self, id: String) -> Answer<'_, ()> {
        Box::pin(async move {
            // Also a key that is refused already, and that its volume has not forgotten yet.
            let mut all = self.inner.stores.all().into_iter();
            let found = all.find(|objects| objects.keeps_access_key(&id));
            let absent = || refused(ObjectError::NoAccessKey(id.clone()));
            let objects = found.ok_or_else(absent)?;
            objects.revoke_key(&id).await.map_err(refused)
        })
    }
}
