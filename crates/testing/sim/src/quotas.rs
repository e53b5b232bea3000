//! Quotas that change beside the clients of a volume, large enough to refuse nothing. Usage is counted again with
//! everything else (`check`).
//!
//! Owns: when quotas are set and removed. Must not know: the operations of clients.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_fs::{Fs, FsError, QuotaKind, QuotaLimit, QuotaLimits, QuotaView, ROOT};
use cairn_testkit::Rng;

use crate::client;
use crate::walk::some_directory;

/// Limit of quotas at a time.
const COUNT_MAX: usize = 6;
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// Users of files are below this.
const UID_MAX: u64 = 3;

/// Sets and removes quotas in one life, like a client.
pub(crate) struct Quoter {
    pub life: Arc<client::Life>,
    pub env: Env,
    pub rng: Rng,
}

impl Quoter {
    pub async fn run(mut self, step_count: u64) {
        for _ in 0..step_count {
            let goes_on = self.life.pause(&self.env, &mut self.rng, PAUSE_MAX);
            if !goes_on.await {
                break;
            }
            let fs = self.life.serving.begin().await;
            match self.step(&fs).await {
                // The directory may be gone by now.
                Ok(()) | Err(FsError::Stale | FsError::NotFound | FsError::TooManyLinks) => {}
                Err(error) if self.life.is_excused(&fs, &error, false) => {}
                Err(error) => self.life.fail(format!("changing quotas: {error}")),
            }
            self.life.serving.end();
        }
        self.life.client_is_done();
    }

    async fn step(&mut self, fs: &Fs) -> Result<(), FsError> {
        let quotas = fs.quotas();
        let is_full = quotas.len() >= COUNT_MAX;
        if !quotas.is_empty() && (is_full || self.rng.below(3) == 0) {
            let pick = self.rng.below(quotas.len() as u64) as usize;
            let QuotaView { key, .. } = quotas[pick];
            let dir = if key.tree == Ino(0) { ROOT } else { key.tree };
            return fs.remove_quota(dir, key.kind, key.id).await;
        }
        let dir = some_directory(fs, &mut self.rng).await?;
        let limits = QuotaLimits {
            bytes: QuotaLimit {
                hard: Some(1 << 50),
                soft: None,
                advisory: Some(1 << 16),
            },
            files: QuotaLimit {
                soft: Some(3),
                ..QuotaLimit::default()
            },
            is_physical: self.rng.coin(),
            grace_seconds: 1 << 40,
        };
        let (kind, id) = match self.rng.below(4) {
            0 => (QuotaKind::User, self.rng.below(UID_MAX) as u32),
            1 => (QuotaKind::DefaultGroup, 0),
            _ => (QuotaKind::Tree, 0),
        };
        fs.set_quota(dir, kind, id, limits, b"").await.map(drop)
    }
}
