//! Setting, removing and showing policies of directories.
//!
//! Owns: which directories can have a policy. Must not know: paths as an operator types them.

use cairn_base::Ino;
use cairn_meta::volume_settings::Protections;
use cairn_meta::{Batch, Key, PolicyRecord, Ticket};

use crate::kernel::Bare;
use crate::types::FsError;
use crate::volume::{Fs, ROOT, VolumeCore};

/// Maximum number of directories of a volume with a policy.
pub const POLICY_COUNT_MAX: usize = 16 << 10;

pub(crate) const OF_CLONE: &str = "directories of a clone have no policies: all of it follows the settings of the volume that it is a clone of";

/// The policy of a directory, and the policy that applies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyView {
    pub dir: Ino,
    /// Its own policy; empty if it has none.
    pub own: PolicyRecord,
    /// Its policy together with those of the directories above it; empty settings follow the volume.
    pub said: PolicyRecord,
}

/// The reason why a policy was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFailure {
    /// The root follows the settings of the volume.
    #[error("the root of a volume has the volume's settings and no policy of its own")]
    Root,
    #[error("{OF_CLONE}")]
    Clone,
    #[error("a policy that says nothing is none")]
    Empty,
    #[error(
        "{POLICY_COUNT_MAX} directories of the volume have policies already, which is the most"
    )]
    TooMany,
    #[error("the directory has no policy of its own")]
    None,
    #[error(transparent)]
    Fs(#[from] FsError),
}

impl Fs {
    /// Sets the policy of a directory, for data that is written below it from now on. Replaces its present policy.
    pub async fn set_dir_policy(
        &self,
        dir: Ino,
        policy: PolicyRecord,
    ) -> Result<PolicyView, PolicyFailure> {
        if !self.branch().is_main() {
            return Err(PolicyFailure::Clone);
        }
        if dir == ROOT {
            return Err(PolicyFailure::Root);
        }
        if policy.is_empty() {
            return Err(PolicyFailure::Empty);
        }
        let shared = &self.shared;
        let _turn = shared.policies.turn.lock().await;
        let is_known = shared.policies.table.read().of.contains_key(&dir);
        if !is_known && shared.policies.table.read().of.len() >= POLICY_COUNT_MAX {
            return Err(PolicyFailure::TooMany);
        }
        let set = || shared.set_dir_policy(dir, policy);
        let done = shared.reading(set).await;
        shared.settle(done).await?;
        Ok(self.dir_policy(dir).await?)
    }

    /// Removes the policy of a directory; data below it keeps its form until it is written or converted again.
    pub async fn clear_dir_policy(&self, dir: Ino) -> Result<(), PolicyFailure> {
        if !self.branch().is_main() {
            return Err(PolicyFailure::Clone);
        }
        let shared = &self.shared;
        let _turn = shared.policies.turn.lock().await;
        shared.require_serving()?;
        let mut batch = Batch::new();
        if shared.policies.table.write().remove(dir).is_none() {
            return Err(PolicyFailure::None);
        }
        batch.delete(Key::policy(dir));
        let ticket = shared.commit_bare(Bare::Policies, batch);
        shared.policies.note_change();
        Ok(shared.settle(Ok(((), ticket))).await?)
    }

    /// The policy of a directory, and the policy that applies in it.
    pub async fn dir_policy(&self, dir: Ino) -> Result<PolicyView, FsError> {
        let shared = &self.shared;
        let said = || {
            let inode = shared.inode(dir)?;
            inode.lock().require_dir()?;
            shared.said_of(&inode)
        };
        let said = shared.reading(said).await?;
        let own = shared.policies.of(dir);
        Ok(PolicyView { dir, own, said })
    }

    /// All directories with a policy.
    pub async fn dir_policies(&self) -> Result<Vec<PolicyView>, FsError> {
        if !self.branch().is_main() {
            return Ok(Vec::new());
        }
        let dirs: Vec<Ino> = self
            .shared
            .policies
            .table
            .read()
            .of
            .keys()
            .copied()
            .collect();
        let mut views = Vec::with_capacity(dirs.len());
        for dir in dirs {
            match self.dir_policy(dir).await {
                Ok(view) => views.push(view),
                // The directory was just removed.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(views)
    }

    /// The number of directories with a policy.
    pub fn dir_policy_count(&self) -> usize {
        if !self.branch().is_main() {
            return 0;
        }
        self.shared.policies.table.read().of.len()
    }

    /// The protections that policies of directories ask for now, and those of data that was written under earlier
    /// policies. `None` if that is unknown now.
    pub fn directory_protections(&self) -> Option<Protections> {
        let shared = &self.shared;
        let by_data = shared.segments.protections(shared.volume)?;
        let asked = shared.policies.protections();
        Some(by_data.iter().chain(asked.iter()).collect())
    }

    /// The path of a directory from the root of the volume: empty for the root, `None` if the directory is gone.
    pub async fn dir_path(&self, dir: Ino) -> Result<Option<Vec<u8>>, FsError> {
        let mut known = Default::default();
        self.shared.folder_path(dir, &mut known).await
    }
}

impl VolumeCore {
    fn set_dir_policy(&self, dir: Ino, policy: PolicyRecord) -> Result<((), Ticket), FsError> {
        let inode = self.inode(dir)?;
        // While its lock is held, the directory stays.
        let state = inode.lock();
        state.require_dir()?;
        self.require_serving()?;
        let mut batch = Batch::new();
        batch.put(Key::policy(dir), policy.encode());
        self.policies.table.write().insert(dir, policy);
        let ticket = self.commit_bare(Bare::Policies, batch);
        drop(state);
        self.policies.note_change();
        Ok(((), ticket))
    }
}
