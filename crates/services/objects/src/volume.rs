//! The buckets and access keys of one volume, in memory as they are in the volume.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_fs::{
    Credentials, FileKind, Fs, FsError, Keeper, KeptSecret, ROOT, SecretError, SetAttr, XattrMode,
};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::arrivals::{Arrival, Arrivals, Facet, Ticket};
use crate::barred::Barred;
use crate::bucket::Bucket;
use crate::keeper::BucketKeeper;
use crate::path::KeyPath;
use crate::records::{
    AccessKey, BucketRecord, ObjectError, Permission, VERSION, check_bucket_name, decode, encode,
};
use crate::settings::BucketSettings;
use crate::version_listing::VersionsWanted;
use crate::{ACCESS_KEY_COUNT_MAX, BUCKET_COUNT_MAX};

const FOLDER: &[u8] = b"objects";
/// Uploads in parts.
const STAGING: &[u8] = b"staging";
/// The folder of replaced and deleted versions.
const VERSIONS: &[u8] = b"versions";
const OF_BUCKET: &str = "user.bucket.";
const OF_ACCESS_KEY: &str = "user.access-key.";
const WHO: Credentials = Credentials::ROOT;
/// Changes of objects that go on side by side, by their keys.
const TURNS_COUNT: usize = 256;
/// Uploads that are completed side by side, by their numbers.
const COMPLETIONS_COUNT: usize = 64;
const ACCESS_KEY_LEN: usize = 20;
const SECRET_LEN: usize = 40;
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const SECRET_LETTERS: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Where the secret of an access key lies, in its volume.
fn place_of(id: &str) -> String {
    format!("access key {id}")
}

fn secret_error(id: &str, error: SecretError) -> ObjectError {
    ObjectError::Secret {
        id: id.to_owned(),
        error,
    }
}

/// What a new access key is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub read_only: bool,
    pub only: Vec<Permission>,
    pub note: String,
}

/// Held while an object is changed.
pub(crate) enum Turn<'a> {
    Alone(#[expect(dead_code, reason = "held")] tokio::sync::RwLockWriteGuard<'a, ()>),
    Together(#[expect(dead_code, reason = "held")] tokio::sync::RwLockReadGuard<'a, ()>),
}

#[derive(Default)]
struct State {
    folder: Option<Ino>,
    staging: Option<Ino>,
    versions: Option<Ino>,
    buckets: BTreeMap<String, BucketRecord>,
    keys: BTreeMap<String, AccessKey>,
}

/// Buckets and access keys of one volume that is open. Changes are durable when they are answered.
pub struct Objects {
    pub(crate) fs: Fs,
    pub(crate) env: Env,
    state: RwLock<State>,
    /// Held by who changes buckets or keys.
    turn: tokio::sync::Mutex<()>,
    /// Held alone by who looks at an object and changes it then, together by all others that change one.
    turns: Vec<Arc<tokio::sync::RwLock<()>>>,
    /// Held by who completes an upload, by its number; within it other turns are taken, and never the other way round.
    completions: Vec<tokio::sync::Mutex<()>>,
    hash: std::hash::RandomState,
    /// In which order changes of objects came.
    pub(crate) arrivals: Arc<Arrivals>,
    /// Told when a bucket is set to something else.
    pub(crate) changed: watch::Sender<()>,
    /// Asked for the places of what others change.
    keeper: OnceLock<Arc<BucketKeeper>>,
    /// Keys that are refused although the volume has them.
    barred: Arc<Barred>,
}

impl Objects {
    /// Reads what the volume keeps. Keys that are `barred` are removed from it, if it takes changes.
    pub async fn open(fs: Fs, env: Env, barred: Arc<Barred>) -> Result<Arc<Self>, ObjectError> {
        let objects = Self {
            // What S3 replaces or deletes is kept here.
            fs: fs.without_keeping(),
            env,
            state: RwLock::default(),
            turn: tokio::sync::Mutex::default(),
            turns: (0..TURNS_COUNT).map(|_| Arc::default()).collect(),
            completions: (0..COMPLETIONS_COUNT).map(|_| Default::default()).collect(),
            hash: std::hash::RandomState::new(),
            arrivals: Arc::default(),
            changed: watch::Sender::new(()),
            keeper: OnceLock::new(),
            barred,
        };
        let mut state = State::default();
        if let Some(hidden) = objects.fs.hidden_folder().await?
            && let Some(folder) = objects.folder_in(hidden, FOLDER).await?
        {
            state.folder = Some(folder);
            state.staging = objects.folder_in(folder, STAGING).await?;
            state.versions = objects.folder_in(folder, VERSIONS).await?;
            objects.load(folder, &mut state).await?;
        }
        *objects.state.write() = state;
        let objects = Arc::new(objects);
        // In a volume that is only read there is nothing to hold directories or to keep contents for.
        let takes_changes = objects.fs.read_only().is_none();
        if takes_changes {
            for record in objects.buckets().into_values() {
                objects.hold_directories(&record).await?;
            }
            objects.follow_keeping().await?;
        }
        let keeper = objects
            .keeper
            .get_or_init(|| BucketKeeper::new(&objects))
            .clone();
        let keeper: Arc<dyn Keeper> = keeper;
        objects.fs.set_keeper(Arc::downgrade(&keeper));
        if takes_changes {
            objects.finish_revocations().await;
            objects.tend_lifecycles();
        }
        Ok(objects)
    }

    async fn folder_in(&self, folder: Ino, name: &[u8]) -> Result<Option<Ino>, ObjectError> {
        match self.fs.lookup(&WHO, folder, name).await {
            Ok((attr, _)) => Ok(Some(attr.ino)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn load(&self, folder: Ino, state: &mut State) -> Result<(), ObjectError> {
        for name in self.fs.xattr_list(&WHO, folder).await? {
            let value = self.fs.xattr(&WHO, folder, &name).await?;
            let text = String::from_utf8_lossy(&name).into_owned();
            if let Some(bucket) = text.strip_prefix(OF_BUCKET) {
                let record = decode(&text, &value)?;
                state.buckets.insert(bucket.to_owned(), record);
            } else if let Some(id) = text.strip_prefix(OF_ACCESS_KEY) {
                let mut key: AccessKey = decode(&text, &value)?;
                if !key.secret.is_wrapped() && self.fs.wraps_secrets() {
                    self.wrap(folder, id, &mut key).await?;
                }
                state.keys.insert(id.to_owned(), key);
            }
        }
        let mut secrets = state.keys.iter();
        let trouble = secrets.find_map(|(id, key)| self.secret_of(id, key).err());
        if let Some(error) = trouble {
            // The others, or all once the master key is here, can be used without an opening.
            tracing::error!(volume = self.fs.name(), %error, "requests that are signed with it are answered with 503");
        }
        Ok(())
    }

    /// Wraps a secret from before there was a master key. One that the volume does not take, which may be full, is used as it
    /// is until the next start.
    async fn wrap(&self, folder: Ino, id: &str, key: &mut AccessKey) -> Result<(), ObjectError> {
        let secret = self.secret_of(id, key)?;
        let wrapped = AccessKey {
            secret: self.keep_secret(id, &secret)?,
            ..key.clone()
        };
        let name = format!("{OF_ACCESS_KEY}{id}");
        match self.put_at(folder, &name, &encode(&wrapped)?).await {
            Ok(()) => *key = wrapped,
            Err(error) => {
                let volume = self.fs.name();
                tracing::warn!(volume, id, %error, "the secret of this access key stays readable on the disks");
            }
        }
        Ok(())
    }

    /// The secret of an access key, for signatures.
    pub fn secret_of(&self, id: &str, key: &AccessKey) -> Result<String, ObjectError> {
        let secret = self.fs.secret(&place_of(id), &key.secret);
        secret.map_err(|error| secret_error(id, error))
    }

    fn keep_secret(&self, id: &str, secret: &str) -> Result<KeptSecret, ObjectError> {
        let kept = self.fs.keep_secret(&place_of(id), secret);
        kept.map_err(|error| secret_error(id, error))
    }

    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Whether there is anything that S3 could serve.
    pub fn is_used(&self) -> bool {
        let state = self.state.read();
        !(state.buckets.is_empty() && state.keys.is_empty())
    }

    pub fn buckets(&self) -> BTreeMap<String, BucketRecord> {
        self.state.read().buckets.clone()
    }

    pub fn bucket(self: &Arc<Self>, name: &str) -> Result<Bucket, ObjectError> {
        let state = self.state.read();
        let record = state.buckets.get(name).cloned();
        let record = record.ok_or_else(|| ObjectError::NoBucket(name.to_owned()))?;
        Ok(Bucket {
            objects: Arc::clone(self),
            name: name.to_owned(),
            record,
        })
    }

    /// All that the volume has, those that are refused included.
    pub fn access_keys(&self) -> BTreeMap<String, AccessKey> {
        self.state.read().keys.clone()
    }

    /// A key that requests may be signed with.
    pub fn access_key(&self, id: &str) -> Option<AccessKey> {
        let key = self.state.read().keys.get(id).cloned()?;
        (!self.barred.has(id)).then_some(key)
    }

    /// Whether the volume has a key of that name, which may be refused.
    pub fn keeps_access_key(&self, id: &str) -> bool {
        self.state.read().keys.contains_key(id)
    }

    /// Whether requests may be signed with a key of that name. Names are never given again, and nothing of a key changes but how its secret is kept.
    pub fn has_access_key(&self, id: &str) -> bool {
        self.keeps_access_key(id) && !self.barred.has(id)
    }

    /// A change of a bucket or of its settings begins: its request counts as older than those that come later, also if it waits.
    pub fn arrive_bucket(&self, name: &str, facet: Facet) -> Arc<Arrival> {
        Arc::new(self.arrivals.of_bucket(name, facet))
    }

    /// The arrival of a request for a part of an upload.
    pub fn arrive_part(&self, upload: &str, number: u32) -> Arrival {
        self.arrivals.of_part(upload, number)
    }

    /// The ticket of a request that names later what it changes.
    pub fn ticket(&self) -> Ticket {
        self.arrivals.ticket()
    }

    /// The turn of an object. `alone`: what is found there must stay so until it is changed.
    pub(crate) async fn turn_of(&self, directory: Ino, key: &str, alone: bool) -> Turn<'_> {
        let turn = &self.turns[self.turn_index(directory, key)];
        match alone {
            true => Turn::Alone(turn.write().await),
            false => Turn::Together(turn.read().await),
        }
    }

    /// The exclusive turn of an object, owned by a caller that outlives this reference.
    pub(crate) async fn owned_turn_of(
        &self,
        directory: Ino,
        key: &str,
    ) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        let turn = &self.turns[self.turn_index(directory, key)];
        Arc::clone(turn).write_owned().await
    }

    fn turn_index(&self, directory: Ino, key: &str) -> usize {
        let mut hasher = self.hash.build_hasher();
        hasher.write_u64(directory.0);
        hasher.write(key.as_bytes());
        hasher.finish() as usize % TURNS_COUNT
    }

    /// The turn of an upload that is completed: a client that had no answer sends the request again, also while the first goes on.
    pub(crate) async fn completion_turn(&self, id: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = self.hash.build_hasher();
        hasher.write(id.as_bytes());
        let index = hasher.finish() as usize % COMPLETIONS_COUNT;
        self.completions[index].lock().await
    }

    pub(crate) async fn make_folder(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Ino, ObjectError> {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        match self.fs.make_dir(&WHO, parent, name, set).await {
            Ok(made) => Ok(made.attr.ino),
            Err(FsError::Exists) => Ok(self.fs.lookup(&WHO, parent, name).await?.0.ino),
            Err(error) => Err(error.into()),
        }
    }

    async fn folder(&self) -> Result<Ino, ObjectError> {
        if let Some(folder) = self.state.read().folder {
            return Ok(folder);
        }
        let hidden = self.fs.make_hidden_folder().await?;
        let folder = self.make_folder(hidden, FOLDER, 0o700).await?;
        self.state.write().folder = Some(folder);
        Ok(folder)
    }

    pub(crate) fn staging_if_there(&self) -> Option<Ino> {
        self.state.read().staging
    }

    /// Where uploads in parts are. No name leads there, so that everybody may write: each key acts as its user.
    pub(crate) async fn staging(&self) -> Result<Ino, ObjectError> {
        if let Some(staging) = self.state.read().staging {
            return Ok(staging);
        }
        let folder = self.folder().await?;
        let staging = self.make_folder(folder, STAGING, 0o777).await?;
        self.state.write().staging = Some(staging);
        Ok(staging)
    }

    /// Where versions are that were replaced or deleted.
    pub(crate) async fn versions(&self, make: bool) -> Result<Option<Ino>, ObjectError> {
        let there = self.state.read().versions;
        if there.is_some() || !make {
            return Ok(there);
        }
        let folder = self.folder().await?;
        let versions = self.make_folder(folder, VERSIONS, 0o777).await?;
        self.state.write().versions = Some(versions);
        Ok(Some(versions))
    }

    /// Held by who changes a bucket.
    pub(crate) async fn change_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(crate) fn settings_changed(&self) {
        self.changed.send_replace(());
    }

    /// Keeps what a bucket is from now on; its turn is held.
    pub(crate) async fn keep_bucket(
        &self,
        name: &str,
        record: BucketRecord,
    ) -> Result<(), ObjectError> {
        // Nothing is locked before it stays in its place.
        self.hold_directories(&record).await?;
        self.put(&format!("{OF_BUCKET}{name}"), &encode(&record)?)
            .await?;
        self.state.write().buckets.insert(name.to_owned(), record);
        Ok(self.follow_keeping().await?)
    }

    /// In a bucket with object lock no directory is renamed or moved, nor the bucket's own: what is locked below it would be at
    /// another key, or in no bucket, and something else could be put in its place.
    async fn hold_directories(&self, record: &BucketRecord) -> Result<(), FsError> {
        if record.settings.lock.is_none() {
            return Ok(());
        }
        match self.fs.hold_directories(record.directory, true).await {
            // The directory of the bucket is gone.
            Err(FsError::Stale) => Ok(()),
            held => held,
        }
    }

    /// Lets the directory of a bucket go that is empty and no bucket any more.
    async fn let_directories_go(&self, directory: Ino) -> Result<(), FsError> {
        let is_held =
            |other: &BucketRecord| other.directory == directory && other.settings.lock.is_some();
        if self.buckets().values().any(is_held) {
            return Ok(());
        }
        match self.fs.hold_directories(directory, false).await {
            Err(FsError::Stale) => Ok(()),
            freed => freed,
        }
    }

    async fn put(&self, name: &str, value: &[u8]) -> Result<(), ObjectError> {
        let folder = self.folder().await?;
        self.put_at(folder, name, value).await
    }

    async fn put_at(&self, folder: Ino, name: &str, value: &[u8]) -> Result<(), ObjectError> {
        self.fs
            .set_xattr(&WHO, folder, name.as_bytes(), value, XattrMode::Any)
            .await?;
        Ok(())
    }

    async fn forget(&self, name: &str) -> Result<(), ObjectError> {
        let folder = self.folder().await?;
        match self.fs.remove_xattr(&WHO, folder, name.as_bytes()).await {
            Ok(_) | Err(FsError::NoAttribute) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a bucket of the directory at `path` below the volume's root, or of one of the bucket's name. Directories are
    /// made if they are not there, and belong to `owner` then: who may make buckets needs no right above them.
    pub async fn create_bucket(
        self: &Arc<Self>,
        owner: &Credentials,
        name: &str,
        path: Option<&str>,
    ) -> Result<Bucket, ObjectError> {
        let arrival = self.arrive_bucket(name, Facet::Whole);
        let settings = BucketSettings::default();
        let due = arrival.due().await?;
        let made = self.make_bucket(owner, name, path, settings, false).await?;
        due.done();
        Ok(made)
    }

    /// Creates a bucket for a user, who cannot take another user's directory for it. `settings`: what it has from its beginning;
    /// they are given the server's time, in seconds since 1970.
    pub async fn create_own_bucket(
        self: &Arc<Self>,
        owner: &Credentials,
        name: &str,
        settings: impl FnOnce(i64) -> BucketSettings + Send,
        arrival: &Arrival,
    ) -> Result<Bucket, ObjectError> {
        let due = arrival.due().await?;
        let settings = settings(self.env.clock.now().seconds);
        let made = self.make_bucket(owner, name, None, settings, true).await?;
        due.done();
        self.settings_changed();
        Ok(made)
    }

    async fn make_bucket(
        self: &Arc<Self>,
        owner: &Credentials,
        name: &str,
        path: Option<&str>,
        settings: BucketSettings,
        only_own: bool,
    ) -> Result<Bucket, ObjectError> {
        let _turn = self.turn.lock().await;
        check_bucket_name(name)?;
        {
            let state = self.state.read();
            if state.buckets.contains_key(name) {
                return Err(ObjectError::BucketExists(name.to_owned()));
            }
            if state.buckets.len() >= BUCKET_COUNT_MAX {
                return Err(ObjectError::Invalid(format!(
                    "the volume has {BUCKET_COUNT_MAX} buckets, which is the limit"
                )));
            }
        }
        let path = path.unwrap_or(name).trim_matches('/');
        let mut directory = ROOT;
        if !path.is_empty() {
            let parsed = KeyPath::parse(path.as_bytes())?;
            for part in parsed.parts() {
                let (entered, was_made) = self.enter_or_make(&WHO, directory, part, &[]).await?;
                directory = entered;
                if was_made {
                    let owned = SetAttr {
                        uid: Some(owner.uid),
                        gid: Some(owner.gid),
                        ..SetAttr::default()
                    };
                    self.fs.set_attr(&WHO, directory, owned, None).await?;
                }
            }
        }
        let attr = self.fs.attr(directory).await?;
        if only_own && !owner.is_root() && attr.uid != owner.uid {
            return Err(ObjectError::NotOwner(name.to_owned()));
        }
        let record = BucketRecord {
            version: VERSION,
            directory,
            path: format!("/{path}"),
            created_seconds: self.env.clock.now().seconds,
            settings,
        };
        self.keep_bucket(name, record.clone()).await?;
        Ok(Bucket {
            objects: Arc::clone(self),
            name: name.to_owned(),
            record,
        })
    }

    /// A directory by its name, made with extended attributes if it is not there; and whether it was made.
    pub(crate) async fn enter_or_make(
        &self,
        who: &Credentials,
        parent: Ino,
        name: &[u8],
        xattrs: &[(&[u8], Bytes)],
    ) -> Result<(Ino, bool), ObjectError> {
        match self.fs.child(who, parent, name).await? {
            Some((ino, FileKind::Directory)) => return Ok((ino, false)),
            Some(_) => return Err(ObjectError::InTheWay),
            None => {}
        }
        let set = SetAttr {
            mode: Some(0o755),
            ..SetAttr::default()
        };
        let made = self.fs.make_dir_with(who, parent, name, set, xattrs);
        match made.await {
            Ok(made) => Ok((made.attr.ino, true)),
            Err(FsError::Exists) => match self.fs.child(who, parent, name).await? {
                Some((ino, FileKind::Directory)) => Ok((ino, false)),
                Some(_) => Err(ObjectError::InTheWay),
                // It went again.
                None => Err(FsError::Stale.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets a bucket. With `keep_directory` the directory stays as it is; else it must be empty, and goes.
    pub async fn delete_bucket(
        self: &Arc<Self>,
        who: &Credentials,
        name: &str,
        keep_directory: bool,
        arrival: &Arrival,
    ) -> Result<(), ObjectError> {
        let due = arrival.due().await?;
        let _turn = self.turn.lock().await;
        let record = self.state.read().buckets.get(name).cloned();
        let record = record.ok_or_else(|| ObjectError::NoBucket(name.to_owned()))?;
        if !keep_directory {
            let page = self
                .fs
                .names_after(who, record.directory, b"", true, 1)
                .await;
            match page {
                Ok(page) if !page.entries.is_empty() => {
                    return Err(ObjectError::BucketNotEmpty(name.to_owned()));
                }
                Ok(_) | Err(FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
            let wanted = VersionsWanted {
                limit: 1,
                ..VersionsWanted::default()
            };
            let versions = self.bucket(name)?.list_versions(&WHO, wanted).await?;
            if !versions.entries.is_empty() {
                return Err(ObjectError::BucketNotEmpty(name.to_owned()));
            }
        }
        self.forget(&format!("{OF_BUCKET}{name}")).await?;
        self.state.write().buckets.remove(name);
        due.done();
        self.follow_keeping().await?;
        if !keep_directory {
            self.let_directories_go(record.directory).await?;
        }
        if !keep_directory
            && let Ok(path) = KeyPath::parse(record.path.trim_matches('/').as_bytes())
        {
            // What stands at that path now may be another directory, or one that is in use: then it stays.
            self.remove_directory(&path, record.directory).await;
        }
        Ok(())
    }

    async fn remove_directory(&self, path: &KeyPath, directory: Ino) {
        let who = &WHO;
        let mut parent = ROOT;
        for part in path.parents() {
            match self.fs.lookup(who, parent, part).await {
                Ok((attr, _)) => parent = attr.ino,
                Err(_) => return,
            }
        }
        let found = self.fs.lookup(who, parent, path.name()).await;
        if found.is_ok_and(|(attr, _)| attr.ino == directory)
            && let Err(error) = self.fs.remove_dir(who, parent, path.name()).await
        {
            tracing::debug!(%error, "the directory of a bucket stays");
        }
    }

    /// Makes an access key: its name, what is kept of it, its secret.
    pub async fn create_key(
        &self,
        spec: KeySpec,
    ) -> Result<(String, AccessKey, String), ObjectError> {
        let _turn = self.turn.lock().await;
        if self.state.read().keys.len() >= ACCESS_KEY_COUNT_MAX {
            return Err(ObjectError::Invalid(format!(
                "the volume has {ACCESS_KEY_COUNT_MAX} access keys, which is the limit"
            )));
        }
        for only in &spec.only {
            check_bucket_name(&only.bucket)?;
        }
        let id: String = self.random(ACCESS_KEY_LEN, LETTERS);
        let secret = self.random(SECRET_LEN, SECRET_LETTERS);
        let key = AccessKey {
            version: VERSION,
            secret: self.keep_secret(&id, &secret)?,
            uid: spec.uid,
            gid: spec.gid,
            groups: spec.groups,
            read_only: spec.read_only,
            only: spec.only,
            note: spec.note,
            created_seconds: self.env.clock.now().seconds,
        };
        self.put(&format!("{OF_ACCESS_KEY}{id}"), &encode(&key)?)
            .await?;
        self.state.write().keys.insert(id.clone(), key.clone());
        Ok((id, key, secret))
    }

    /// Revokes an access key. If the volume does not take that change now, the key is refused by this process all the same, and the
    /// answer is [`ObjectError::RevokedHere`]: the removal is durable only once this is answered without an error.
    pub async fn revoke_key(&self, id: &str) -> Result<(), ObjectError> {
        let _turn = self.turn.lock().await;
        if !self.keeps_access_key(id) {
            return Err(ObjectError::NoAccessKey(id.to_owned()));
        }
        match self.forget(&format!("{OF_ACCESS_KEY}{id}")).await {
            Ok(()) => {}
            // The volume goes to another owner, or is reopened: nothing of it is decided here.
            Err(ObjectError::Fs(FsError::Fenced)) => return Err(FsError::Fenced.into()),
            Err(ObjectError::Fs(error)) => {
                self.barred.add(id);
                let id = id.to_owned();
                return Err(ObjectError::RevokedHere { id, error });
            }
            Err(error) => return Err(error),
        }
        self.state.write().keys.remove(id);
        self.barred.remove(id);
        Ok(())
    }

    /// Removes keys that were revoked while the volume took no changes.
    async fn finish_revocations(&self) {
        let ids: Vec<String> = {
            let state = self.state.read();
            let ids = state.keys.keys();
            ids.filter(|id| self.barred.has(id)).cloned().collect()
        };
        for id in ids {
            let volume = self.fs.name();
            match self.revoke_key(&id).await {
                Ok(()) => tracing::info!(volume, %id, "an access key that was revoked is removed"),
                Err(error) => {
                    tracing::warn!(volume, %error, "an access key that was revoked cannot be removed yet")
                }
            }
        }
    }

    /// Letters of an alphabet whose length is a power of two.
    fn random(&self, len: usize, letters: &[u8]) -> String {
        let mut bytes = vec![0; len];
        self.env.entropy.fill(&mut bytes);
        let letter = |byte: u8| char::from(letters[usize::from(byte) % letters.len()]);
        bytes.into_iter().map(letter).collect()
    }

    /// A name that nothing has.
    pub(crate) fn unique(&self) -> String {
        format!(
            "{:016x}{:016x}",
            self.env.entropy.u64(),
            self.env.entropy.u64()
        )
    }
}
