//! Policies of directories that change beside the clients of a volume, and conversions of data to them. The answers to
//! clients must not depend on them, and space is counted again with everything else (`check`).
//!
//! Owns: when policies are set and conversions begin and end. Must not know: the operations of clients.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::Media;
use cairn_base::env::Env;
use cairn_formats::settings::{AccessPattern, Compression, Dedupe, MediaChoice, Protection};
use cairn_fs::{ApplyFailure, Fs, FsError, Policy, PolicyFailure, PolicyRecord, ROOT};
use cairn_pool::{ChangeFailure, Pool};
use cairn_testkit::Rng;

use crate::client;
use crate::walk::some_directory;
use crate::world::VOLUME;

/// Limit of policies at a time.
const COUNT_MAX: usize = 6;
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Sets and clears policies and starts conversions in one life, like a client.
pub(crate) struct Policer {
    pub life: Arc<client::Life>,
    pub pool: Arc<Pool>,
    pub env: Env,
    pub rng: Rng,
}

impl Policer {
    pub async fn run(mut self, step_count: u64) {
        for _ in 0..step_count {
            let goes_on = self.life.pause(&self.env, &mut self.rng, PAUSE_MAX);
            if !goes_on.await {
                break;
            }
            let fs = self.life.serving.begin().await;
            match self.step(&fs).await {
                // The directory may be gone by now.
                Ok(()) | Err(FsError::Stale | FsError::NotFound) => {}
                Err(error) if self.life.is_excused(&fs, &error, false) => {}
                Err(error) => self.life.fail(format!("changing policies: {error}")),
            }
            self.life.serving.end();
        }
        self.life.client_is_done();
    }

    async fn step(&mut self, fs: &Fs) -> Result<(), FsError> {
        let done = match self.rng.below(12) {
            0 => fs.cancel_apply().await.map(drop),
            1..4 => fs.apply_policies(ROOT).await.map(drop),
            4 => {
                let dir = some_directory(fs, &mut self.rng).await?;
                fs.apply_policies(dir).await.map(drop)
            }
            5..8 => return self.change_volume(fs),
            _ => return self.change_policy(fs).await,
        };
        match done {
            Ok(())
            | Err(ApplyFailure::Running | ApplyFailure::NotRunning | ApplyFailure::Clone) => Ok(()),
            Err(ApplyFailure::Fs(error)) => Err(error),
        }
    }

    /// Most files are in directories without a policy.
    fn change_volume(&mut self, fs: &Fs) -> Result<(), FsError> {
        use cairn_segment::Compression::{Auto, Lz4, None, Zstd};
        let compressions = [None, Lz4, Zstd(1), Auto];
        fs.set_policy(Policy {
            compression: compressions[self.rng.below(4) as usize],
            media: self.some_media().and_then(MediaChoice::kind),
            ..fs.policy()
        })
    }

    async fn change_policy(&mut self, fs: &Fs) -> Result<(), FsError> {
        let policies = fs.dir_policies().await?;
        let is_full = policies.len() >= COUNT_MAX;
        let done = if !policies.is_empty() && (is_full || self.rng.below(3) == 0) {
            let pick = self.rng.below(policies.len() as u64) as usize;
            fs.clear_dir_policy(policies[pick].dir).await
        } else {
            let dir = some_directory(fs, &mut self.rng).await?;
            let policy = self.some_policy();
            let policy = self.allowed(policy).await?;
            fs.set_dir_policy(dir, policy).await.map(drop)
        };
        match done {
            Ok(()) | Err(PolicyFailure::Root | PolicyFailure::None) => Ok(()),
            Err(PolicyFailure::Fs(error)) => Err(error),
            Err(error) => Err(FsError::Io(error.to_string())),
        }
    }

    fn some_media(&mut self) -> Option<MediaChoice> {
        let number = self.rng.below(5) as u8;
        Media::of_number(number).map(MediaChoice::from)
    }

    /// Never below the volume's: that determines the allowed losses.
    fn some_protection(&mut self) -> Option<Protection> {
        let tolerated = self.life.shape.tolerated() as u8;
        match self.rng.below(4) {
            0 if (1..=4).contains(&tolerated) => Some(Protection::Plus(tolerated)),
            1 if tolerated < 4 => Some(Protection::Plus(tolerated + 1)),
            2 if tolerated < 4 => Some(Protection::Mirror(tolerated + 2)),
            _ => None,
        }
    }

    /// A policy that the pool accepts: without its protection if there are too few disks for that, or if they have
    /// trouble.
    async fn allowed(&self, mut policy: PolicyRecord) -> Result<PolicyRecord, FsError> {
        let Some(protection) = policy.protection else {
            return Ok(policy);
        };
        let volume = self
            .pool
            .state()
            .volumes
            .iter()
            .find(|it| it.id == VOLUME)
            .map(|it| it.name.clone());
        let Some(volume) = volume else {
            return Err(FsError::Stale);
        };
        match self
            .pool
            .allow_directory_protection(&volume, protection)
            .await
        {
            Ok(()) => {}
            Err(ChangeFailure::Impossible(_) | ChangeFailure::Save(_)) => policy.protection = None,
            Err(error) => return Err(FsError::Io(error.to_string())),
        }
        Ok(policy)
    }

    fn some_policy(&mut self) -> PolicyRecord {
        let compressions = [
            None,
            Some(Compression::None),
            Some(Compression::Lz4),
            Some(Compression::Zstd(1)),
            Some(Compression::Auto),
        ];
        let dedupes = [
            None,
            Some(Dedupe::Off),
            Some(Dedupe::On),
            Some(Dedupe::Verify),
        ];
        let patterns = [
            AccessPattern::Concurrent,
            AccessPattern::Streaming,
            AccessPattern::Random,
        ];
        let (compression, dedupe) = (self.rng.below(5) as usize, self.rng.below(4) as usize);
        let pattern = patterns[self.rng.below(3) as usize];
        PolicyRecord {
            compression: compressions[compression],
            dedupe: dedupes[dedupe],
            // Shards are as small as 64 KiB there, and must have room for a record.
            access_pattern: Some(match self.life.shape.small_records {
                true => AccessPattern::Random,
                false => pattern,
            }),
            media: self.some_media(),
            protection: self.some_protection(),
        }
    }
}
