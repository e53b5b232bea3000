//! The background conversion of existing data to the present policies.
//!
//! Owns: which files are visited and in which order, the progress, the continuation after a restart. Must not know:
//! how data is converted (`convert`).
//!
//! Inodes are visited in the order of their numbers, which are never reused. So a number and an offset in that file
//! are the progress, whatever clients make, move and remove meanwhile. They are stored after each step. Files made
//! after the beginning follow their policy anyway. A volume has one conversion at a time.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::Ino;
use cairn_meta::{
    ApplyRecord, ApplyState, Batch, InodeKind, InodeRecord, Key, KeyKind, MetaError, Ticket,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::convert::{Converted, STEP_BYTES, Step};
use crate::kernel::{Bare, Metadata, meta_error};
use crate::policy::manage::OF_CLONE;
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{Fs, ROOT, VolumeCore};

/// Inodes that are read at once.
const PAGE_MAX: usize = 256;
/// Files that are visited before the progress is stored.
const UNSTORED_INODES_MAX: u64 = 16 << 10;
/// Pause after an error, such as no space, or an unresponsive disk.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
const IDLE_PAUSE: Duration = Duration::from_secs(60);

/// The present conversion, or the last one.
pub(super) struct Applying {
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    record: Option<ApplyRecord>,
    /// The error that the conversion waits for.
    waits_for: Option<FsError>,
}

/// The state of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyView {
    pub record: ApplyRecord,
    /// The error that the conversion waits for; it is retried.
    pub waits_for: Option<FsError>,
}

/// The reason why a conversion was not begun, or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyFailure {
    #[error("data of the volume is being converted already")]
    Running,
    #[error("no data of the volume is being converted")]
    NotRunning,
    #[error("{OF_CLONE}")]
    Clone,
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// The place where a visit of inodes ended.
struct Looked {
    at: Ino,
    at_offset: u64,
    inodes: u64,
    files: u64,
    seen_bytes: u64,
    is_over: bool,
}

impl Applying {
    pub fn open(meta: &Metadata) -> Result<Self, MetaError> {
        let stored = meta.live().get(&Key::apply())?;
        let record = stored
            .map(|value| ApplyRecord::decode(&value))
            .transpose()?;
        let now = Now {
            record,
            waits_for: None,
        };
        Ok(Self {
            now: Mutex::new(now),
        })
    }

    fn running(&self) -> Option<ApplyRecord> {
        let record = self.now.lock().record;
        record.filter(|record| record.state == ApplyState::Running)
    }
}

impl Fs {
    /// Begins to convert the data of files below a directory to their policies; the root is the whole volume. Durable
    /// on return: a restart continues.
    pub async fn apply_policies(&self, dir: Ino) -> Result<ApplyView, ApplyFailure> {
        if !self.branch().is_main() {
            return Err(ApplyFailure::Clone);
        }
        let shared = &self.shared;
        let _turn = shared.policies.turn.lock().await;
        if shared.policies.apply.running().is_some() {
            return Err(ApplyFailure::Running);
        }
        let is_dir = || shared.inode(dir)?.lock().require_dir();
        shared.reading(is_dir).await?;
        shared.require_serving()?;
        let record = ApplyRecord {
            state: ApplyState::Running,
            dir,
            end: shared.meta.allocate_ino(),
            began_seconds: shared.now_seconds(),
            inodes_all: shared.meta.counters().inodes,
            ..ApplyRecord::default()
        };
        let ticket = shared.put_apply(record);
        shared.settle(Ok(((), ticket))).await?;
        shared.policies.wake.notify_one();
        tracing::info!(volume = %shared.volume, %dir, "data is being converted to what policies say");
        self.applied_policies().ok_or(ApplyFailure::NotRunning)
    }

    /// Ends the present conversion; data that was converted stays so.
    pub async fn cancel_apply(&self) -> Result<ApplyView, ApplyFailure> {
        if !self.branch().is_main() {
            return Err(ApplyFailure::Clone);
        }
        let shared = &self.shared;
        let _turn = shared.policies.turn.lock().await;
        let running = shared.policies.apply.running();
        let running = running.ok_or(ApplyFailure::NotRunning)?;
        shared.require_serving()?;
        let Some(ticket) = shared.note_progress(running.end, |record| {
            record.state = ApplyState::Cancelled;
            record.ended_seconds = shared.now_seconds();
        }) else {
            return Err(ApplyFailure::NotRunning);
        };
        shared.settle(Ok(((), ticket))).await?;
        tracing::info!(volume = %shared.volume, "the conversion of data is cancelled");
        self.applied_policies().ok_or(ApplyFailure::NotRunning)
    }

    /// The state of the present conversion, or the result of the last one.
    pub fn applied_policies(&self) -> Option<ApplyView> {
        if !self.branch().is_main() {
            return None;
        }
        let now = self.shared.policies.apply.now.lock();
        Some(ApplyView {
            record: now.record?,
            waits_for: now.waits_for.clone(),
        })
    }
}

impl VolumeCore {
    fn put_apply(&self, record: ApplyRecord) -> Ticket {
        let mut now = self.policies.apply.now.lock();
        now.record = Some(record);
        now.waits_for = None;
        let mut batch = Batch::new();
        batch.put(Key::apply(), record.encode());
        self.commit_bare(Bare::Policies, batch)
    }

    /// Changes the progress of the conversion that ends at `end`, if it is the present one.
    fn note_progress(&self, end: Ino, change: impl FnOnce(&mut ApplyRecord)) -> Option<Ticket> {
        let mut now = self.policies.apply.now.lock();
        let record = now.record.as_mut();
        let record =
            record.filter(|record| record.state == ApplyState::Running && record.end == end)?;
        change(record);
        let mut batch = Batch::new();
        batch.put(Key::apply(), record.encode());
        now.waits_for = None;
        Some(self.commit_bare(Bare::Policies, batch))
    }

    pub(crate) async fn run_apply(self: Arc<Self>) {
        loop {
            let mut pause = IDLE_PAUSE;
            if let Some(running) = self.policies.apply.running() {
                match self.apply_some(running).await {
                    Ok(()) if !self.tasks.is_stopping() => {
                        let_others_run().await;
                        continue;
                    }
                    Ok(()) | Err(FsError::Fenced) => {}
                    Err(error) => {
                        tracing::warn!(volume = %self.volume, %error, "the conversion of data waits, and is tried again");
                        self.policies.apply.now.lock().waits_for = Some(error);
                    }
                }
                pause = RETRY_PAUSE;
            }
            let wake = self.policies.wake.notified();
            if !self.tasks.pause(pause, wake).await {
                return;
            }
        }
    }

    /// One step of a conversion: visits inodes until there is enough to convert, converts that, and stores the progress.
    async fn apply_some(self: &Arc<Self>, running: ApplyRecord) -> Result<(), FsError> {
        let mut step = Step::default();
        let looked = self.look_for_differing(&running, &mut step).await?;
        let mut done = Converted::default();
        if !step.victims.is_empty() {
            self.require_pool_space(2 * STEP_BYTES)?;
            self.meta.admit().await;
            let is_wanted = || {
                let now = self.policies.apply.running();
                !self.tasks.is_stopping() && now.is_some_and(|now| now.end == running.end)
            };
            let _turn = match &self.pace {
                Some(pace) => match pace.spend_if(step.len_bytes, is_wanted).await {
                    Some(turn) => Some(turn),
                    None => return Ok(()),
                },
                None => None,
            };
            done = self.convert(step).await?;
        }
        let ended_seconds = self.now_seconds();
        let ticket = self.note_progress(running.end, |record| {
            record.at = looked.at;
            record.at_offset = looked.at_offset;
            record.inodes += looked.inodes;
            record.files += looked.files;
            record.seen_bytes += looked.seen_bytes;
            record.rewritten_bytes += done.rewritten_bytes;
            record.shared_bytes += done.shared_bytes;
            record.stored_bytes_before += done.stored_bytes_before;
            record.stored_bytes_after += done.stored_bytes_after;
            record.left += done.left;
            if looked.is_over {
                record.state = ApplyState::Done;
                record.ended_seconds = ended_seconds;
            }
        });
        let Some(ticket) = ticket else {
            // The conversion was cancelled.
            return Ok(());
        };
        self.durable(ticket).await?;
        if looked.is_over {
            tracing::info!(volume = %self.volume, "data is what policies say");
        }
        Ok(())
    }

    /// Visits inodes from the progress of a conversion on, until a step is full.
    async fn look_for_differing(
        self: &Arc<Self>,
        running: &ApplyRecord,
        step: &mut Step,
    ) -> Result<Looked, FsError> {
        let mut looked = Looked {
            at: running.at,
            at_offset: running.at_offset,
            inodes: 0,
            files: 0,
            seen_bytes: 0,
            is_over: false,
        };
        while !step.is_full() && looked.inodes < UNSTORED_INODES_MAX {
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            let from = Key::inode(looked.at);
            let to = Key::inode(running.end);
            let scan = || {
                let page = self.meta.live().scan(&from, &to, PAGE_MAX);
                page.map_err(meta_error)
            };
            let page = self.reading(scan).await?;
            if page.is_empty() {
                looked.is_over = true;
                break;
            }
            let mut below = FxHashMap::default();
            for (key, value) in &page {
                let Ok(KeyKind::Inode(ino)) = key.kind() else {
                    continue;
                };
                let record = InodeRecord::decode(value);
                let record = record.map_err(|error| meta_error(error.into()))?;
                if ino != looked.at {
                    looked.at_offset = 0;
                }
                looked.at = ino;
                self.look_at(ino, &record, running.dir, &mut below, step, &mut looked)
                    .await?;
                if looked.at == ino {
                    // The next step continues in this file.
                    return Ok(looked);
                }
                if step.is_full() {
                    break;
                }
            }
            let_others_run().await;
        }
        Ok(looked)
    }

    /// Visits one inode. Moves `looked` past it, or into it if a step was full before its end.
    async fn look_at(
        self: &Arc<Self>,
        ino: Ino,
        record: &InodeRecord,
        dir: Ino,
        below: &mut FxHashMap<Ino, bool>,
        step: &mut Step,
        looked: &mut Looked,
    ) -> Result<(), FsError> {
        let is_begun = looked.at_offset > 0;
        let has_bytes = record.kind == InodeKind::Regular && record.used_bytes > 0;
        let mut next = None;
        if has_bytes && self.is_below(record.parent, dir, below).await? {
            let inode = match self.reading(|| self.inode(ino)).await {
                Ok(inode) => Some(inode),
                Err(FsError::Stale) => None,
                Err(error) => return Err(error),
            };
            if let Some(inode) = inode {
                let policy = Arc::new(self.policy_of(&inode).await);
                let from = looked.at_offset;
                // A failed read begins again, and must not add its findings twice.
                let before = (step.victims.len(), step.len_bytes);
                let find = || {
                    step.victims.truncate(before.0);
                    step.len_bytes = before.1;
                    self.find_differing(ino, &policy, from, step)
                };
                let (go_on, seen_bytes) = self.reading(find).await?;
                looked.seen_bytes += seen_bytes;
                looked.files += u64::from(!is_begun);
                next = go_on;
            }
        }
        match next {
            Some(offset) => looked.at_offset = offset,
            None => {
                looked.inodes += 1;
                (looked.at, looked.at_offset) = (Ino(ino.0.saturating_add(1)), 0);
            }
        }
        Ok(())
    }

    /// Whether a directory is the converted one, or lies below it.
    async fn is_below(
        self: &Arc<Self>,
        parent: Ino,
        dir: Ino,
        known: &mut FxHashMap<Ino, bool>,
    ) -> Result<bool, FsError> {
        if dir == ROOT {
            return Ok(true);
        }
        let mut between = Vec::new();
        let mut at = parent;
        let is_below = loop {
            if at == dir {
                break true;
            }
            if let Some(is_below) = known.get(&at) {
                break *is_below;
            }
            if at == ROOT || at == Ino(0) {
                break false;
            }
            between.push(at);
            at = match self.reading(|| self.inode(at)).await {
                Ok(inode) => inode.lock().record.parent,
                Err(FsError::Stale) => break false,
                Err(error) => return Err(error),
            };
        };
        known.extend(between.into_iter().map(|dir| (dir, is_below)));
        Ok(is_below)
    }
}
