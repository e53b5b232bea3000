//! Fences: which owner of a volume may change its shards on this disk.
//!
//! Owns: the promise to refuse owners of lower epochs, where it is kept, and what is under way of whom.
//! Must not know: what the changes are, who owns a volume.
//! Invariant: nothing of an epoch is changed before the promise to it is durable, nor after one to a higher epoch is.
//!
//! A process keeps a promise in memory from the moment it is asked for one, and answers when the disk has it. An owner
//! that is refused in between is refused in vain if the power fails; nobody was told of the promise then.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::disk::{Disk, DiskError, DiskFile, OpenMode};
use cairn_base::planted::{self, Bug};
use cairn_base::{Epoch, VolumeId};
use cairn_formats::FormatError;
use cairn_formats::shard::promise::{
    PROMISE_FILE_LEN_BYTES, PROMISE_LEN_BYTES, PROMISES_FOLDER, Promise, decode_promise_copy,
    encode_promise, pick_promise, promise_path, promise_path_new,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::ShardError;
use crate::health::Health;
use crate::identity_file::CopyError;

/// The promises of one disk.
#[derive(Default)]
pub(crate) struct Fences {
    volumes: Mutex<BTreeMap<VolumeId, Gate>>,
    /// Something of a lower epoch has ended.
    older_ended: Notify,
    /// Held while a promise is written.
    keeping: tokio::sync::Mutex<()>,
}

/// The promise of one volume.
#[derive(Debug)]
struct Gate {
    /// Nothing of a lower epoch begins any more.
    refused_below: Epoch,
    kept: StoredPromise,
    /// Changes under way of `refused_below`, and of lower epochs.
    underway_count: usize,
    older_count: usize,
}

/// What the disk has of a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StoredPromise {
    /// Not known yet.
    NotRead,
    /// It is durable; epoch 0 stands for none.
    At(Epoch),
    /// Both copies are damaged: no owner may change anything before a new one is promised.
    Damaged(FormatError),
}

/// Whether a change may begin.
enum Entry<'a> {
    In(Turn<'a>),
    /// The promise to its epoch comes first.
    NotYet,
    NotRead,
    Refused(Epoch),
    Damaged(FormatError),
}

/// A change under way; it is over when this is dropped.
pub(crate) struct Turn<'a> {
    fences: &'a Fences,
    volume: VolumeId,
    epoch: Epoch,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut volumes = self.fences.volumes.lock();
        let Some(gate) = volumes.get_mut(&self.volume) else {
            return;
        };
        if self.epoch == gate.refused_below {
            gate.underway_count = gate.underway_count.saturating_sub(1);
            return;
        }
        gate.older_count = gate.older_count.saturating_sub(1);
        if gate.older_count == 0 {
            self.fences.older_ended.notify_waiters();
        }
    }
}

/// The disk that the promises are kept on.
pub(crate) struct Keeper<'a> {
    pub disk: &'a Arc<dyn Disk>,
    pub health: &'a Health,
}

impl Fences {
    /// Begins a change of an owner. `None`: nothing is promised to its epoch yet; that comes first.
    pub async fn enter(
        &self,
        keeper: &Keeper<'_>,
        volume: VolumeId,
        epoch: Epoch,
    ) -> Result<Option<Turn<'_>>, ShardError> {
        loop {
            match self.try_enter(volume, epoch) {
                Entry::In(turn) => return Ok(Some(turn)),
                Entry::NotYet => return Ok(None),
                Entry::NotRead => self.load(keeper, volume).await?,
                Entry::Refused(promised) => return Err(keeper.fenced(volume, epoch, promised)),
                Entry::Damaged(reason) => {
                    return Err(ShardError::DamagedPromise {
                        disk: keeper.disk.label().to_owned(),
                        volume,
                        reason,
                    });
                }
            }
        }
    }

    /// A planted bug: a change that nobody is asked for.
    pub fn enter_unasked(&self, volume: VolumeId, epoch: Epoch) -> Turn<'_> {
        Turn {
            fences: self,
            volume,
            epoch,
        }
    }

    fn try_enter(&self, volume: VolumeId, epoch: Epoch) -> Entry<'_> {
        let mut volumes = self.volumes.lock();
        let Some(gate) = volumes.get_mut(&volume) else {
            return Entry::NotRead;
        };
        if epoch < gate.refused_below {
            return Entry::Refused(gate.refused_below);
        }
        match &gate.kept {
            StoredPromise::NotRead => Entry::NotRead,
            StoredPromise::Damaged(reason) => Entry::Damaged(reason.clone()),
            StoredPromise::At(kept) if *kept == epoch && gate.refused_below == epoch => {
                gate.underway_count += 1;
                Entry::In(Turn {
                    fences: self,
                    volume,
                    epoch,
                })
            }
            StoredPromise::At(_) => Entry::NotYet,
        }
    }

    /// Refuses lower epochs from now on, waits for what is under way of them, and returns when the promise is durable.
    pub async fn fence(
        &self,
        keeper: &Keeper<'_>,
        volume: VolumeId,
        epoch: Epoch,
    ) -> Result<(), ShardError> {
        self.load(keeper, volume).await?;
        self.refuse_below(volume, epoch)
            .map_err(|promised| keeper.fenced(volume, epoch, promised))?;
        if !planted::is(Bug::PromiseDoesNotWait) {
            self.older_ended(volume).await;
        }
        let _keeping = self.keeping.lock().await;
        let (refused_below, kept) = self.state(volume);
        if refused_below > epoch {
            return Err(keeper.fenced(volume, epoch, refused_below));
        }
        if kept == StoredPromise::At(epoch) {
            return Ok(());
        }
        keeper.write(Promise { volume, epoch }).await?;
        self.with(volume, |gate| gate.kept = StoredPromise::At(epoch));
        Ok(())
    }

    /// Reads what is kept, once.
    async fn load(&self, keeper: &Keeper<'_>, volume: VolumeId) -> Result<(), ShardError> {
        let _keeping = self.keeping.lock().await;
        if self.state(volume).1 != StoredPromise::NotRead {
            return Ok(());
        }
        let kept = keeper.read(volume).await?;
        if let StoredPromise::Damaged(reason) = &kept {
            tracing::error!(disk = keeper.disk.label(), %volume, %reason, "both copies of a promise are damaged; the volume's shards here do not change before it is opened again");
        }
        self.with(volume, |gate| {
            if let StoredPromise::At(epoch) = kept {
                gate.refused_below = gate.refused_below.max(epoch);
            }
            gate.kept = kept;
        });
        Ok(())
    }

    /// Fails with a higher epoch that was promised before.
    fn refuse_below(&self, volume: VolumeId, epoch: Epoch) -> Result<(), Epoch> {
        self.with(volume, |gate| {
            if epoch < gate.refused_below {
                return Err(gate.refused_below);
            }
            if epoch > gate.refused_below {
                gate.refused_below = epoch;
                gate.older_count += std::mem::take(&mut gate.underway_count);
            }
            Ok(())
        })
    }

    async fn older_ended(&self, volume: VolumeId) {
        loop {
            let mut ended = std::pin::pin!(self.older_ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            if self.with(volume, |gate| gate.older_count) == 0 {
                return;
            }
            ended.await;
            if planted::is(Bug::PromiseWaitsForAnyVolume) {
                return;
            }
        }
    }

    /// Owners of a lower epoch than this are refused.
    pub async fn promised(
        &self,
        keeper: &Keeper<'_>,
        volume: VolumeId,
    ) -> Result<Epoch, ShardError> {
        self.load(keeper, volume).await?;
        Ok(self.state(volume).0)
    }

    /// The volume is deleted, and its promise with it.
    pub fn forget(&self, volume: VolumeId) {
        self.volumes.lock().remove(&volume);
    }

    fn state(&self, volume: VolumeId) -> (Epoch, StoredPromise) {
        self.with(volume, |gate| (gate.refused_below, gate.kept.clone()))
    }

    fn with<T>(&self, volume: VolumeId, run: impl FnOnce(&mut Gate) -> T) -> T {
        let mut volumes = self.volumes.lock();
        run(volumes.entry(volume).or_insert(Gate {
            refused_below: Epoch(0),
            kept: StoredPromise::NotRead,
            underway_count: 0,
            older_count: 0,
        }))
    }
}

impl Keeper<'_> {
    fn fenced(&self, volume: VolumeId, epoch: Epoch, promised: Epoch) -> ShardError {
        ShardError::Fenced {
            disk: self.disk.label().to_owned(),
            volume,
            epoch,
            promised,
        }
    }

    async fn open(&self, volume: VolumeId) -> Result<Option<Arc<dyn DiskFile>>, ShardError> {
        let path = promise_path(volume);
        match self.disk.open(&path, OpenMode::Existing).await {
            Err(DiskError::NotFound { .. }) => Ok(None),
            opened => Ok(Some(self.health.note_read(opened)?)),
        }
    }

    async fn read(&self, volume: VolumeId) -> Result<StoredPromise, ShardError> {
        let Some(file) = self.open(volume).await? else {
            return Ok(StoredPromise::At(Epoch(0)));
        };
        let mut copies = Vec::with_capacity(2);
        for start in [0, PROMISE_LEN_BYTES as u64] {
            let bytes = self
                .health
                .note_read(file.read_at(start, PROMISE_LEN_BYTES).await);
            // Each by itself: a block that cannot be read must not cost both.
            let copy = bytes.map_err(CopyError::Disk).and_then(|bytes| {
                let promise = decode_promise_copy(&bytes)?;
                match promise.volume == volume {
                    true => Ok(promise),
                    false => Err(FormatError::Field("volume").into()),
                }
            });
            copies.push(copy);
        }
        let [first, second]: [Result<Promise, CopyError>; 2] = match copies.try_into() {
            Ok(copies) => copies,
            Err(_) => unreachable!("two were read"),
        };
        let is_version =
            |why: &CopyError| matches!(why, CopyError::Format(FormatError::Version { .. }));
        let both_unread = matches!(
            (&first, &second),
            (
                Err(CopyError::Disk(DiskError::Io { .. })),
                Err(CopyError::Disk(_))
            )
        );
        match pick_promise([first, second], is_version) {
            Ok(picked) => Ok(StoredPromise::At(picked.value.epoch)),
            // It says nothing of what the disk has.
            Err(CopyError::Disk(error)) if both_unread => Err(error.into()),
            Err(CopyError::Disk(_)) => Ok(StoredPromise::Damaged(FormatError::Truncated)),
            Err(CopyError::Format(reason)) => Ok(StoredPromise::Damaged(reason)),
        }
    }

    /// Durable when it returns.
    async fn write(&self, promise: Promise) -> Result<(), ShardError> {
        let bytes = encode_promise(&promise).freeze();
        let health = self.health;
        let is_synced = !planted::is(Bug::PromiseNotSynced);
        if let Some(file) = self.open(promise.volume).await?
            && file.len_bytes() == PROMISE_FILE_LEN_BYTES as u64
        {
            // A good copy goes last: until the other one is there it is the only one.
            let first = file.read_at(0, PROMISE_LEN_BYTES).await;
            let is_first_good = first.is_ok_and(|bytes| decode_promise_copy(&bytes).is_ok());
            let half = PROMISE_LEN_BYTES;
            let order = if is_first_good { [half, 0] } else { [0, half] };
            for start in order {
                let copy = vec![bytes.slice(start..start + half)];
                let written = match is_synced {
                    true => file.write_durable_at(start as u64, copy).await,
                    false => file.write_at(start as u64, copy).await,
                };
                health.note_durable(written)?;
            }
            return Ok(());
        }
        let (path, path_new) = (
            promise_path(promise.volume),
            promise_path_new(promise.volume),
        );
        // A crash may have left one.
        match self.disk.remove(&path_new).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(health.note_write::<()>(Err(error)).unwrap_err().into()),
        }
        let mode = OpenMode::CreateNew {
            len_bytes: bytes.len() as u64,
        };
        let file = health.note_write(self.disk.open(&path_new, mode).await)?;
        health.note_write(file.write_at(0, vec![bytes]).await)?;
        if is_synced {
            health.note_write(file.sync().await)?;
        }
        health.note_write(self.disk.rename(&path_new, &path).await)?;
        if is_synced {
            health.note_write(self.disk.sync_folder(PROMISES_FOLDER).await)?;
        }
        Ok(())
    }
}
