//! Policies of directories: how data of files below them is compressed, deduplicated and cut into records.
//!
//! Owns: which directories have a policy, the policy that applies to an inode, the conversion of existing data to it.
//! Must not know: how data becomes records (`flight`), the input of an operator.
//!
//! The present place of a file decides its policy: each setting comes from the nearest directory above it that has
//! this setting, otherwise from the volume. An inode caches the result, with the number of the policy state that it
//! was found in, and its directory. That number changes with each change of a policy and each move of a directory. So
//! a flush compares two numbers, and asks the directory, which has a cache, too, only after such a change. Only the
//! policies are stored: a crash, a rollback to a snapshot or a takeover leaves no stale cache behind. Why:
//! docs/design/policies.md.

mod apply;
mod convert;
mod manage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::Ino;
use cairn_meta::volume_settings as settings;
use cairn_meta::volume_settings::{Protection, Protections};
use cairn_meta::{Batch, Key, KeyKind, MetaError, PolicyRecord};
use cairn_segment::Compression;
use parking_lot::RwLock;
use tokio::sync::Notify;

pub use apply::{ApplyFailure, ApplyView};
pub use manage::{POLICY_COUNT_MAX, PolicyFailure, PolicyView};

use crate::kernel::{CachedPolicy, Inode, Metadata};
use crate::types::FsError;
use crate::volume::{Policy, ROOT, VolumeCore};

/// No directory has a policy.
const NOBODY: u64 = 0;

/// The policy of each directory.
#[derive(Default)]
struct Table {
    of: BTreeMap<Ino, PolicyRecord>,
    /// The number of directories that ask for each protection.
    protections: BTreeMap<Protection, usize>,
}

impl Table {
    fn insert(&mut self, dir: Ino, policy: PolicyRecord) {
        self.remove(dir);
        if let Some(asked) = policy.protection {
            *self.protections.entry(asked).or_default() += 1;
        }
        self.of.insert(dir, policy);
    }

    fn remove(&mut self, dir: Ino) -> Option<PolicyRecord> {
        let removed = self.of.remove(&dir)?;
        if let Some(asked) = removed.protection
            && let Some(count) = self.protections.get_mut(&asked)
        {
            *count -= 1;
            if *count == 0 {
                self.protections.remove(&asked);
            }
        }
        Some(removed)
    }
}

/// The policies of a volume's directories.
pub(crate) struct Policies {
    table: RwLock<Table>,
    /// [`NOBODY`], or a number that grows with each change of a policy and each move of a directory.
    state: AtomicU64,
    state_last: AtomicU64,
    /// Held by one change of policies, or of the conversion, at a time.
    turn: tokio::sync::Mutex<()>,
    apply: apply::Applying,
    pub wake: Notify,
}

impl Policies {
    /// Loads the policies of a volume, and drops those of directories that are gone: a rollback may have removed some.
    pub fn open(meta: &Metadata) -> Result<Self, MetaError> {
        let mut table = Table::default();
        let live = meta.live();
        let (from, to) = Key::all_policies();
        let mut gone = Batch::new();
        for (key, value) in live.scan(&from, &to, usize::MAX)? {
            let KeyKind::Policy(dir) = key.kind()? else {
                continue;
            };
            match live.get(&Key::inode(dir))? {
                Some(_) => {
                    table.insert(dir, PolicyRecord::decode(&value)?);
                }
                None => {
                    gone.delete(key);
                }
            }
        }
        if !gone.is_empty() {
            meta.commit_unopened(gone);
        }
        let policies = Self {
            table: RwLock::new(table),
            state: AtomicU64::new(NOBODY),
            state_last: AtomicU64::new(NOBODY),
            turn: tokio::sync::Mutex::new(()),
            apply: apply::Applying::open(meta)?,
            wake: Notify::new(),
        };
        policies.note_change();
        Ok(policies)
    }

    /// Invalidates all cached policies, after a change of a policy or a move of a directory.
    ///
    /// Called when the change is visible. A lookup reads the number first, so its result is either current or cached
    /// under an outdated number.
    pub fn note_change(&self) {
        let table = self.table.write();
        let next = self.state_last.fetch_add(1, Ordering::AcqRel) + 1;
        let state = if table.of.is_empty() { NOBODY } else { next };
        self.state.store(state, Ordering::Release);
    }

    /// A directory got another parent.
    pub fn note_moved(&self) {
        if self.state.load(Ordering::Acquire) != NOBODY {
            self.note_change();
        }
    }

    /// A directory is removed, with its policy.
    pub fn drop_dir(&self, dir: Ino, batch: &mut Batch) {
        if self.state.load(Ordering::Acquire) == NOBODY {
            return;
        }
        // The directory is empty, so no inode has cached its policy.
        if self.table.write().remove(dir).is_some() {
            batch.delete(Key::policy(dir));
        }
    }

    fn of(&self, dir: Ino) -> PolicyRecord {
        self.table.read().of.get(&dir).copied().unwrap_or_default()
    }

    /// The protections that directories ask for.
    pub fn protections(&self) -> Protections {
        self.table.read().protections.keys().copied().collect()
    }
}

impl VolumeCore {
    /// The policies of directories for data of an inode: for each setting, the nearest directory wins.
    pub(crate) fn said_of(&self, inode: &Arc<Inode>) -> Result<PolicyRecord, FsError> {
        let state = self.policies.state.load(Ordering::Acquire);
        // A clone follows the volume: otherwise it would have to take over its directories to ask them.
        if state == NOBODY || !inode.ino.branch().is_main() {
            return Ok(PolicyRecord::default());
        }
        let mut below = Vec::new();
        let mut at = inode.clone();
        let mut said = loop {
            let (found, parent) = {
                let state = at.lock();
                (state.policy_found, state.policy_parent())
            };
            if found.at == state && found.parent == parent {
                break found.said;
            }
            let ino = at.ino;
            below.push((at, parent));
            if ino == ROOT || parent == ino || parent == Ino(0) {
                break PolicyRecord::default();
            }
            at = match self.inode(parent) {
                Ok(inode) => inode,
                // The directory was removed, and the inodes below it have no name any more.
                Err(FsError::Stale) => break PolicyRecord::default(),
                Err(error) => return Err(error),
            };
        };
        for (inode, parent) in below.into_iter().rev() {
            said = self.policies.of(inode.ino).within(&said);
            inode.lock().policy_found = CachedPolicy {
                said,
                at: state,
                parent,
            };
        }
        Ok(said)
    }

    /// The policy by which data of a file becomes records now.
    pub(crate) async fn policy_of(&self, inode: &Arc<Inode>) -> Policy {
        if self.policies.state.load(Ordering::Acquire) == NOBODY {
            return self.policy.read().clone();
        }
        let said = self.reading(|| self.said_of(inode)).await;
        // A failed lookup does not delay data: any policy is allowed, and a conversion corrects it later.
        let said = said.unwrap_or_default();
        self.policy_saying(&said)
    }

    /// The policy of an inode that may be gone; `None` if it is.
    pub(crate) async fn policy_of_ino(&self, ino: Ino) -> Option<Policy> {
        let has_policies = self.policies.state.load(Ordering::Acquire) != NOBODY;
        if !ino.branch().is_main() {
            // A clone follows the volume.
            return Some(self.policy.read().clone());
        }
        let by_data = || self.segments.protections(self.volume).unwrap_or_default();
        if !has_policies && by_data().is_empty() {
            return Some(self.policy.read().clone());
        }
        match self.reading(|| self.inode(ino)).await {
            Ok(inode) => Some(self.policy_of(&inode).await),
            Err(_) => None,
        }
    }

    /// The volume's policy, overridden by the policies of directories.
    pub(crate) fn policy_saying(&self, said: &PolicyRecord) -> Policy {
        let volume = self.policy.read().clone();
        Policy {
            compression: said.compression.map_or(volume.compression, compression_of),
            dedupe: said.dedupe.unwrap_or(volume.dedupe),
            access_pattern: said.access_pattern.unwrap_or(volume.access_pattern),
            media: said.media.map_or(volume.media, |choice| choice.kind()),
            own_protection: said.protection,
            ..volume
        }
    }
}

pub(crate) fn compression_of(word: settings::Compression) -> Compression {
    match word {
        settings::Compression::None => Compression::None,
        settings::Compression::Lz4 => Compression::Lz4,
        settings::Compression::Zstd(level) => Compression::Zstd(i32::from(level)),
        settings::Compression::Auto => Compression::Auto,
    }
}
