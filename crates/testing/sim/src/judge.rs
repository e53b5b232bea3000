//! Checks the contents of a volume when it is opened, at a start or while clients work.
//!
//! Owns: the order of the check: all operations have ended, everything is read and judged, clients go on. Must not
//! know: why the volume is opened, which data may survive (`model`).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::DiskId;
use cairn_base::env::Env;
use cairn_fs::Fs;
use cairn_meta::Key;
use parking_lot::Mutex;

use crate::check;
use crate::client;
use crate::driver::Progress;
use crate::faults::{Fault, FaultKind};
use crate::model::Judged;
use crate::scenario::{Life, Trouble};
use crate::snapshots::read_all;
use crate::world::{ROOT_INO, World, read_everything};

pub(crate) struct Judge {
    pub life: Life,
    pub env: Env,
    pub shared: Arc<client::Life>,
    pub progress: Arc<Progress>,
    /// Write verifiers of all openings so far.
    pub verifiers: Arc<Mutex<Vec<[u8; 8]>>>,
}

impl Judge {
    /// The volume as it is served now.
    pub fn fs(&self) -> Option<Fs> {
        self.progress
            .fs
            .lock()
            .as_ref()
            .map(|world| world.fs.clone())
    }

    pub fn disks_in_use(&self) -> BTreeMap<u64, Vec<DiskId>> {
        let world = self.progress.fs.lock();
        world.as_ref().map(World::disks_in_use).unwrap_or_default()
    }

    pub fn is_over(&self) -> bool {
        self.shared.has_failed() || self.progress.is_done.load(Ordering::Relaxed)
    }

    /// Runs a change during which the volume may be reopened, with its clients at work. If it is, its contents are
    /// judged as after a start, before the clients go on.
    pub async fn while_reopening<T>(&self, change: impl Future<Output = T>) -> T {
        let serving = &self.shared.serving;
        serving.expect_another().await;
        let result = change.await;
        if let Err(error) = self.look_again().await {
            self.shared.fail(error);
            serving.give_up();
        }
        result
    }

    async fn look_again(&self) -> Result<(), String> {
        let serving = &self.shared.serving;
        let Some(before) = self.progress.fs.lock().clone() else {
            return Ok(());
        };
        let world = match before.again() {
            Ok(world) => world,
            Err(why) if self.is_trouble_excused() => {
                // Like a refused start.
                *self.progress.refused_start.lock() = Some(why);
                self.progress.is_done.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(why) => return Err(format!("while clients work: {why}")),
        };
        let fs = world.fs.clone();
        if fs.write_verifier() == before.fs.write_verifier() {
            serving.put(fs);
            return Ok(());
        }
        drop(before);
        serving.idle().await;
        *self.progress.fs.lock() = Some(world);
        self.progress.reopened.fetch_add(1, Ordering::Relaxed);
        self.check_verifier(&fs)?;
        let verified = self.verify(&fs).await;
        verified.map_err(|error| format!("opened again while clients work: {error}"))?;
        serving.put(fs);
        Ok(())
    }

    /// Whether the volume may have stopped serving.
    pub fn is_trouble_excused(&self) -> bool {
        matches!(
            self.shared.shape.trouble,
            Trouble::Errors | Trouble::Beyond | Trouble::BadDisks
        )
    }

    /// Whether the contents of a file may be unreadable in this life.
    pub fn is_unreadable_allowed(&self) -> bool {
        let reads_fail = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::ReadFails { .. } | FaultKind::WorkReadFails { .. }
            )
        };
        match self.shared.shape.trouble {
            _ if self.shared.may_tier_fail() => true,
            Trouble::Beyond => true,
            Trouble::Errors => self.life.faults.iter().any(reads_fail),
            _ => false,
        }
    }

    /// Reads everything, judges it, and updates the model with it.
    pub async fn verify(&self, fs: &Fs) -> Result<(), String> {
        let is_unreadable_allowed = self.is_unreadable_allowed();
        let read = async {
            let found = read_everything(fs, is_unreadable_allowed).await?;
            Ok((found, read_all(fs, is_unreadable_allowed).await?))
        };
        let (found, of_snapshots) = match read.await {
            Ok(read) => read,
            Err(_) if self.has_stopped(fs) => {
                // Like a refused start: nothing is served.
                *self.progress.refused_start.lock() = None;
                self.progress.is_done.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let judged: Judged = self.shared.model.lock().judge(&found)?;
        let snapshots = {
            let known = self.shared.snapshots.lock();
            known.judge(&self.shared.model.lock(), &of_snapshots)?
        };
        match check::recount(&self.env, fs.meta()).await {
            Err(_) if self.has_stopped(fs) => return Ok(()),
            counted => counted?,
        }
        let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        add(&self.progress.checks, 1);
        add(&self.progress.verified_bytes, found.file_bytes());
        add(&self.progress.lost_changes, judged.lost_changes as u64);
        add(&self.progress.lost_writes, judged.lost_writes as u64);
        self.shared.model.lock().rebase(judged);
        *self.shared.snapshots.lock() = snapshots;
        Ok(())
    }

    /// Whether the metadata gave up, if that is allowed.
    pub fn has_stopped(&self, fs: &Fs) -> bool {
        let key = Key::inode(ROOT_INO);
        self.is_trouble_excused() && fs.meta().live().get(&key).is_err()
    }

    pub fn check_verifier(&self, fs: &Fs) -> Result<(), String> {
        let verifier = fs.write_verifier();
        let mut verifiers = self.verifiers.lock();
        if verifiers.contains(&verifier) {
            return Err("the write verifier is that of an earlier life".to_owned());
        }
        verifiers.push(verifier);
        Ok(())
    }
}
