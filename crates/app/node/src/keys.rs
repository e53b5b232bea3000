//! Master keys of encrypted volumes: their source, and their view in the admin API.
//!
//! Owns: reading them from a file or from the output of a command, looking again while one is missing. Must not know:
//! the use of a key (`cairn_keys`), which keys are wrapped with it (the pool). Nothing here puts any part of a key
//! into a message.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cairn_admin::api::ErrorKind;
use cairn_admin::keys::{
    EncryptionState, EncryptionView, KeyControl, KeyFailureView, KeyRotationView, MasterKeyView,
    MasterKeysView,
};
use cairn_admin::{Answer, ControlError};
use cairn_config::{KeySource, VolumeName};
use cairn_formats::encryption::{KeptSecret, MasterKeyId, VolumeEncryption};
use cairn_formats::pool_file::{HandleKey, PoolVolume};
use cairn_keys::{MasterKey, MasterKeys};
use cairn_pool::wrapped_keys;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::control::{Controller, refusal};
use crate::error::NodeError;
use crate::node::NodeCore;
use crate::state_folder;

/// Maximum length of a file of keys, and of a command's output, in bytes.
const TEXT_LEN_BYTES_MAX: u64 = 64 << 10;
/// A command's error message is cut to so many characters.
const COMPLAINT_CHARS_MAX: usize = 300;
/// A command that takes longer is killed.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(30);
/// A request for the list of keys runs the command again if the last run is older than this.
const SHOWN_MAX: Duration = Duration::from_secs(1);
/// Interval of the search for keys that volumes wait for.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The known master keys.
pub(crate) struct KeyHolder {
    source: Option<KeySource>,
    known: Mutex<LoadedKeys>,
    /// Held during the reading, so that only one command runs at a time.
    reading: Arc<tokio::sync::Mutex<()>>,
    read_at: Mutex<Option<Instant>>,
    /// The reason why secrets could not be wrapped at the last attempt; empty: they are wrapped.
    told: Mutex<String>,
}

#[derive(Default)]
struct LoadedKeys {
    keys: MasterKeys,
    /// The reason why the last reading failed.
    problem: Option<String>,
}

impl KeyHolder {
    pub fn new(source: Option<KeySource>) -> Arc<Self> {
        Arc::new(Self {
            source,
            known: Mutex::default(),
            reading: Arc::default(),
            read_at: Mutex::default(),
            told: Mutex::default(),
        })
    }

    pub fn known(&self) -> MasterKeys {
        self.known.lock().keys.clone()
    }

    /// The reason why the last reading of the configured keys failed; `None` without configured keys.
    pub fn problem(&self) -> Option<String> {
        self.known.lock().problem.clone()
    }

    /// The reason why secrets are not wrapped although the configuration has master keys, in a pool whose secrets are
    /// not wrapped yet.
    pub fn why_unwrapped(&self) -> Option<String> {
        self.source.as_ref()?;
        let told = self.told.lock().clone();
        let of_pool = Some(told).filter(|told| !told.is_empty());
        let waits = || "the pool has no key for secrets yet".to_owned();
        Some(self.problem().or(of_pool).unwrap_or_else(waits))
    }

    /// Reads the keys again; returns whether there is a new one. Keys that are gone stay known until this program
    /// ends: served volumes may have to be reopened.
    pub async fn look(&self) -> bool {
        let Some(source) = self.source.clone() else {
            return false;
        };
        let alone = Arc::clone(&self.reading).lock_owned().await;
        let told = source.to_string();
        // Held also if the caller is gone: a command may be slow.
        let read = tokio::task::spawn_blocking(move || {
            let _alone = alone;
            read(&source)
        })
        .await;
        *self.read_at.lock() = Some(Instant::now());
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        let mut known = self.known.lock();
        match read {
            Ok(newest) => {
                let is_new = newest.iter().any(|key| !known.keys.has(key.id()));
                if known.problem.take().is_some() || is_new {
                    let ids: Vec<String> = newest.iter().map(|key| key.id().to_string()).collect();
                    tracing::info!(source = told, ids = ids.join(", "), "master keys read");
                }
                known.keys = known.keys.with(newest);
                is_new
            }
            Err(why) => {
                if known.problem.as_ref() != Some(&why) {
                    tracing::error!(source = told, why, "master keys cannot be read");
                }
                known.problem = Some(why);
                false
            }
        }
    }
}

/// Looks for keys that volumes or secrets wait for, until the node ends.
pub(crate) fn tend(inner: &Arc<NodeCore>) {
    inner.every("master-keys", LOOK_INTERVAL, |inner| async move {
        let state = inner.pool.state();
        let keys = inner.keys.known();
        let of_volumes = wrapped_keys(&state).map(|(_, key)| key.master_key);
        let mut needed = of_volumes.chain(inner.pool.secrets_master_key());
        if needed.any(|key| !keys.has(key)) && inner.keys.look().await {
            inner.pool.keys_came().await;
        }
        // Another node may have been first, or a disk may have been away.
        wrap_secrets(&inner, false).await;
    });
}

/// Wraps secrets from now on, if there is a master key. After a failure they stay as they are, and a later attempt
/// follows. `is_new`: this start made the pool.
pub(crate) async fn wrap_secrets(inner: &NodeCore, is_new: bool) {
    if inner.pool.secrets_master_key().is_none() {
        // The newest key: an operator may delete an earlier one after a rotation, without knowing of this use.
        inner.keys.look().await;
    }
    let told = match inner.pool.wrap_secrets(is_new).await {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    let mut before = inner.keys.told.lock();
    if !told.is_empty() && *before != told {
        tracing::warn!(
            error = told,
            "the secrets on the disks are not yet wrapped with the master key"
        );
    }
    *before = told;
}

/// The key that signs file handles. If the master key that wraps it is missing, the copy in the state folder serves:
/// NFS of plain volumes goes on.
pub(crate) fn handle_key(inner: &NodeCore) -> Result<HandleKey, NodeError> {
    if let Some(cluster) = &inner.cluster {
        return Ok(cluster.membership.lock().handle_key);
    }
    let state = inner.pool.state();
    let is_wrapped = state
        .handle_key
        .as_ref()
        .is_some_and(KeptSecret::is_wrapped);
    match inner.pool.handle_key() {
        Ok(Some(key)) => {
            if is_wrapped && let Err(error) = keep_copy(inner, key) {
                tracing::warn!(%error, "the state folder has no copy of the key that signs file handles: a start without the master key could not serve NFS");
            }
            Ok(key)
        }
        Ok(None) => {
            let why = "the pool file has none, because its disks were part of a cluster";
            Err(NodeError::HandleKey(why.to_owned()))
        }
        Err(error) => {
            let folder = state_folder::find(inner.config.state_dir.as_deref());
            let copy = folder.map(|folder| state_folder::handle_key(&folder, state.pool));
            match copy {
                Some(Ok(Some(key))) => {
                    tracing::warn!(%error, "file handles are signed with the key in the state folder");
                    Ok(key)
                }
                None | Some(Ok(None)) => Err(NodeError::HandleKey(error.to_string())),
                Some(Err(copy)) => {
                    let why = format!("{error}; and the copy in the state folder: {copy}");
                    Err(NodeError::HandleKey(why))
                }
            }
        }
    }
}

fn keep_copy(inner: &NodeCore, key: HandleKey) -> Result<(), NodeError> {
    let folder = state_folder::make(&inner.config)?;
    let pool = inner.pool.state().pool;
    let kept = state_folder::keep_handle_key(&folder, pool, key, &*inner.env.entropy);
    kept.map_err(|error| NodeError::StateFolder {
        path: folder,
        why: error.to_string(),
    })
}

fn read(source: &KeySource) -> Result<Vec<MasterKey>, String> {
    let text = match source {
        KeySource::File(path) => read_file(path)?,
        KeySource::Command(line) => run(line, COMMAND_TIME_MAX)?,
    };
    MasterKey::parse_all(&text).map_err(|error| error.to_string())
}

fn read_file(path: &Path) -> Result<Zeroizing<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "other users may read or change {} (mode {mode:03o}, owner {}): run chmod 600, and consider a new key",
            path.display(),
            found.uid()
        ));
    }
    let file = std::fs::File::open(path).map_err(failed)?;
    text_of(file).map_err(|why| format!("{}: {why}", path.display()))
}

/// All of the input, if it is text and not too long.
fn text_of(from: impl Read) -> Result<Zeroizing<String>, String> {
    // At full size from the start: a string that grows leaves copies of its contents in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(TEXT_LEN_BYTES_MAX as usize + 1));
    let read = from.take(TEXT_LEN_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > TEXT_LEN_BYTES_MAX {
        return Err(format!("it is longer than {TEXT_LEN_BYTES_MAX} bytes"));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => {
            Err("it is not text: keys are 32 bytes as hexadecimal digits or base64".to_owned())
        }
    }
}

/// The output of a command, if it succeeds in time.
fn run(line: &str, time_max: Duration) -> Result<Zeroizing<String>, String> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // So that its children end with it.
    command.process_group(0);
    let mut child = command
        .spawn()
        .map_err(|error| format!("/bin/sh cannot be started: {error}"))?;
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send((true, text_of(output))));
    }
    if let Some(output) = child.stderr.take() {
        std::thread::spawn(move || sender.send((false, text_of(output))));
    }
    let mut printed = Err("it printed nothing".to_owned());
    let mut complaint = String::new();
    // One message from each pipe, when the command and all its children have closed it.
    let deadline = std::time::Instant::now() + time_max;
    for _ in 0..2 {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        match receiver.recv_timeout(left) {
            Ok((true, text)) => printed = text,
            Ok((false, text)) => complaint = text.map_or_else(|why| why, |text| text.to_string()),
            Err(_) => {
                end(&mut child);
                return Err(format!(
                    "it did not end within {} s, and was killed",
                    time_max.as_secs()
                ));
            }
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    // Output that is too long is not read to its end, and fails for that alone.
    let pipe = rustix::process::Signal::PIPE.as_raw();
    let is_cut_off = status.signal() == Some(pipe) || status.code() == Some(128 + pipe);
    if status.success() || (is_cut_off && printed.is_err()) {
        return printed;
    }
    let complaint: String = complaint.trim().chars().take(COMPLAINT_CHARS_MAX).collect();
    let complaint = match complaint.is_empty() {
        true => "it said nothing".to_owned(),
        false => complaint,
    };
    Err(format!("it failed ({status}): {complaint}"))
}

fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// The encryption of a volume.
pub(crate) fn encryption_view(volume: &PoolVolume, keys: &MasterKeys) -> EncryptionView {
    let wrapped = match &volume.encryption {
        None => return EncryptionView::default(),
        Some(VolumeEncryption::Erased(_)) => {
            return EncryptionView {
                state: EncryptionState::Erased,
                master_key: None,
            };
        }
        Some(VolumeEncryption::Key(wrapped)) => wrapped,
    };
    EncryptionView {
        state: match keys.has(wrapped.master_key) {
            true => EncryptionState::Encrypted,
            false => EncryptionState::Locked,
        },
        master_key: Some(wrapped.master_key.to_string()),
    }
}

impl Controller {
    /// The known master keys, and the needed ones.
    fn master_keys_view(&self) -> MasterKeysView {
        let holder = &self.inner.keys;
        let state = self.inner.pool.state();
        let known = holder.known();
        let mut used: BTreeMap<MasterKeyId, Vec<VolumeName>> = BTreeMap::new();
        for (volume, key) in wrapped_keys(&state) {
            used.entry(key.master_key)
                .or_default()
                .push(state.head_of(volume).name.clone());
        }
        let of_secrets = state.secrets_key.map(|key| key.master_key);
        if let Some(id) = of_secrets {
            used.entry(id).or_default();
        }
        let mut view = |id: MasterKeyId, present| MasterKeyView {
            id: id.to_string(),
            current: known.current() == Some(id),
            present,
            volumes: used.remove(&id).unwrap_or_default(),
            secrets: of_secrets == Some(id),
        };
        let mut keys: Vec<MasterKeyView> = known.ids().map(|id| view(id, true)).collect();
        let missing: Vec<MasterKeyId> = used.keys().copied().collect();
        let mut view = |id: MasterKeyId| MasterKeyView {
            id: id.to_string(),
            current: false,
            present: false,
            volumes: used.remove(&id).unwrap_or_default(),
            secrets: of_secrets == Some(id),
        };
        keys.extend(missing.into_iter().map(&mut view));
        MasterKeysView {
            source: holder.source.as_ref().map(KeySource::to_string),
            problem: holder.known.lock().problem.clone(),
            keys,
        }
    }

    async fn look_for_keys(&self) {
        if self.inner.keys.look().await {
            self.inner.pool.keys_came().await;
        }
    }
}

impl KeyControl for Controller {
    fn master_keys(&self) -> Answer<'_, MasterKeysView> {
        Box::pin(async {
            let holder = &self.inner.keys;
            let read_at = *holder.read_at.lock();
            let is_costly = matches!(holder.source, Some(KeySource::Command(_)));
            let is_fresh = read_at.is_some_and(|at| at.elapsed() < SHOWN_MAX);
            if !(is_costly && is_fresh) {
                self.look_for_keys().await;
            }
            Ok(self.master_keys_view())
        })
    }

    fn rotate_keys(&self) -> Answer<'_, KeyRotationView> {
        Box::pin(async {
            self.look_for_keys().await;
            // With a key that is not the newest, the rotation would be useless.
            if let Some(why) = self.inner.keys.known.lock().problem.clone() {
                let error = ControlError::new(
                    ErrorKind::Conflict,
                    format!("the master keys cannot be read: {why}"),
                );
                return Err(error.hint("nothing was changed"));
            }
            let rotation = self.inner.pool.rotate_keys().await.map_err(refusal)?;
            let failed = rotation.failed.into_iter();
            let failed = failed.map(|(volume, why)| KeyFailureView { volume, why });
            Ok(KeyRotationView {
                wrapped: rotation.wrapped,
                secrets: rotation.secrets,
                failed: failed.collect(),
                keys: self.master_keys_view(),
            })
        })
    }

    fn erase_key(&self, volume: VolumeName) -> Answer<'_, ()> {
        Box::pin(async move {
            let erased = self.inner.pool.erase_key(&volume).await;
            erased.map_err(refusal)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let source = KeySource::File(path.clone());
        let why = read(&source).unwrap_err();
        assert!(why.contains("No such file"), "{why}");
        std::fs::write(&path, format!("{KEY}\n")).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        for (bits, is_good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            mode(bits);
            let keys = read(&source);
            assert_eq!(keys.is_ok(), is_good, "{bits:o}: {keys:?}");
        }
        let why = read(&KeySource::File(folder.path().to_owned())).unwrap_err();
        assert!(why.contains("not a regular file"), "{why}");
        mode(0o600);
        for text in [vec![0xff; 32], vec![b'a'; 70_000], b"no key".to_vec()] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&source).is_err());
        }
    }

    #[tokio::test]
    async fn secrets_wait_for_keys_that_the_configuration_has() {
        assert_eq!(KeyHolder::new(None).why_unwrapped(), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let holder = KeyHolder::new(Some(KeySource::File(path.clone())));
        assert!(!holder.look().await);
        let why = holder.why_unwrapped().unwrap();
        assert!(why.contains("No such file"), "{why}");
        assert_eq!(holder.problem(), Some(why));
        std::fs::write(&path, format!("{KEY}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(holder.look().await);
        assert_eq!(holder.problem(), None);
        // The pool has not wrapped its secrets yet.
        assert!(holder.why_unwrapped().is_some());
    }

    #[test]
    fn a_command_gives_keys_or_an_error_without_them() {
        let run = |line: &str| super::run(line, Duration::from_secs(20));
        assert_eq!(run(&format!("echo {KEY}")).unwrap().trim(), KEY);
        let why = run(&format!("echo {KEY}; echo oh dear >&2; exit 3")).unwrap_err();
        assert!(why.contains("oh dear") && why.contains('3'), "{why}");
        assert!(!why.contains(KEY), "{why}");
        assert!(run("exit 1").unwrap_err().contains("said nothing"));
        assert!(
            run("head -c 100000 /dev/zero")
                .unwrap_err()
                .contains("longer")
        );
        let why = run("printf '\\377'").unwrap_err();
        assert!(why.contains("not text"), "{why}");
        // Its background children are killed, too.
        let why = super::run("sleep 100 & sleep 100", Duration::from_millis(50)).unwrap_err();
        assert!(why.contains("was killed"), "{why}");
    }
}
