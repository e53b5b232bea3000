//! Disks as other nodes see them: their promises, and their operations for each owner.
//!
//! Owns: the check that a disk does nothing for an owner that lost its volume; callbacks for the beginning of an
//! operation. Must not know: how a disk keeps its promises, whether any node noticed a broken one.
//!
//! Another rule may keep a change of an earlier owner from doing harm today. It is still wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::DiskSpace;
use cairn_base::{DiskId, Epoch, VolumeId};
use cairn_shard::{
    CheckedRead, Copied, Health, HiddenId, ShardDisk, ShardError, ShardFooter, ShardFuture,
    ShardKind, ShardList, ShardName, ShardService, ShardStat, ShardWrite, SweptShards,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::failure::FirstFailure;

/// Operations of a disk for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Fence,
    Create,
    /// On a file of the log.
    AppendLog,
    AppendData,
    Seal,
    Repair,
    CreateHidden,
    Fill,
    CopyFrom,
    SealHidden,
    Publish,
    Discard,
    Remove,
    Sweep,
}

/// Is called once, with the disk.
type Then = Box<dyn FnOnce(DiskId) + Send>;

impl Verb {
    pub const ALL: [Verb; 14] = [
        Verb::Fence,
        Verb::Create,
        Verb::AppendLog,
        Verb::AppendData,
        Verb::Seal,
        Verb::Repair,
        Verb::CreateHidden,
        Verb::Fill,
        Verb::CopyFrom,
        Verb::SealHidden,
        Verb::Publish,
        Verb::Discard,
        Verb::Remove,
        Verb::Sweep,
    ];
}

/// A callback for the moment when a disk begins an operation.
struct Waiting {
    verb: Verb,
    /// For this volume.
    volume: Option<VolumeId>,
    /// Number of matches to skip.
    skip: u64,
    then: Then,
}

/// The promises of all disks; they outlive processes and power.
pub struct Promises {
    failure: Arc<FirstFailure>,
    answered: Mutex<BTreeMap<(DiskId, VolumeId), Epoch>>,
    /// Deleted volumes: each disk forgets its promise for them when nothing of them is left there.
    deleted: Mutex<BTreeSet<VolumeId>>,
    waiting: Mutex<Vec<Waiting>>,
}

impl Promises {
    pub fn new(failure: Arc<FirstFailure>) -> Arc<Self> {
        Arc::new(Self {
            failure,
            answered: Mutex::default(),
            deleted: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    /// Wraps a disk of this process, as other nodes see it.
    pub fn watched(self: &Arc<Self>, disk: Arc<ShardDisk>) -> Arc<dyn ShardService> {
        Arc::new(Watched {
            disk,
            promises: self.clone(),
        })
    }

    /// Calls `then` when some disk begins this operation of a volume for another node, after `skip` matches; of any
    /// volume, if none is named.
    pub fn when(
        &self,
        verb: Verb,
        volume: Option<VolumeId>,
        skip: u64,
        then: impl FnOnce(DiskId) + Send + 'static,
    ) {
        let then = Box::new(then);
        self.waiting.lock().push(Waiting {
            verb,
            volume,
            skip,
            then,
        });
    }

    /// Notes that the volume is being deleted.
    pub fn forget(&self, volume: VolumeId) {
        self.deleted.lock().insert(volume);
    }

    /// Drops all callbacks.
    pub fn forget_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }

    fn begins(&self, disk: DiskId, volume: VolumeId, verb: Verb) {
        let due: Vec<Waiting> = {
            let mut waiting = self.waiting.lock();
            let is_due = |entry: &mut Waiting| {
                if entry.verb != verb || entry.volume.is_some_and(|wanted| wanted != volume) {
                    return false;
                }
                let is_due = entry.skip == 0;
                entry.skip = entry.skip.saturating_sub(1);
                is_due
            };
            waiting.extract_if(.., is_due).collect()
        };
        due.into_iter().for_each(|waiting| (waiting.then)(disk));
    }

    /// Checks an operation for the owner of this epoch: from now on the disk may do nothing for lower epochs.
    fn ended(&self, disk: &ShardDisk, volume: VolumeId, epoch: Epoch, verb: Verb) {
        let promised = {
            let mut answered = self.answered.lock();
            let promised = answered.entry((disk.id(), volume)).or_insert(epoch);
            *promised = epoch.max(*promised);
            *promised
        };
        if epoch < promised && !self.deleted.lock().contains(&volume) {
            let disk = disk.label();
            self.failure.note(format!(
                "disk {disk} did {verb:?} of volume {volume} for the owner of {epoch} after it had answered that of {promised}"
            ));
        }
    }
}

struct Watched {
    disk: Arc<ShardDisk>,
    promises: Arc<Promises>,
}

impl Watched {
    async fn watch<T>(
        &self,
        (volume, epoch, verb): (VolumeId, Epoch, Verb),
        work: impl Future<Output = Result<T, ShardError>>,
    ) -> Result<T, ShardError> {
        self.promises.begins(self.disk.id(), volume, verb);
        let done = work.await?;
        self.promises.ended(&self.disk, volume, epoch, verb);
        Ok(done)
    }
}

impl ShardService for Watched {
    fn id(&self) -> DiskId {
        self.disk.id()
    }

    fn label(&self) -> &str {
        self.disk.label()
    }

    fn state(&self) -> &Health {
        self.disk.state()
    }

    fn space(&self) -> Result<DiskSpace, ShardError> {
        ShardService::space(&*self.disk)
    }

    fn recycled_bytes(&self) -> u64 {
        ShardService::recycled_bytes(&*self.disk)
    }

    fn recycled(&self) -> BTreeMap<u64, usize> {
        ShardService::recycled(&*self.disk)
    }

    fn probe(&self) -> ShardFuture<'_, ()> {
        ShardService::probe(&*self.disk)
    }

    fn prepare_recycled(&self, count: usize, capacity_bytes: u64) -> ShardFuture<'_, ()> {
        ShardService::prepare_recycled(&*self.disk, count, capacity_bytes)
    }

    fn release_recycled(&self) -> ShardFuture<'_, ()> {
        ShardService::release_recycled(&*self.disk)
    }

    fn fence(self: Arc<Self>, volume: VolumeId, epoch: Epoch) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            let work = self.disk.clone().fence(volume, epoch);
            self.watch((volume, epoch, Verb::Fence), work).await
        })
    }

    fn create(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            let disk = self.disk.clone();
            let work = ShardService::create(disk, epoch, name, capacity_bytes, kept_bytes);
            self.watch((name.volume, epoch, Verb::Create), work).await
        })
    }

    fn append(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            let verb = match name.kind() {
                ShardKind::Log(_) => Verb::AppendLog,
                _ => Verb::AppendData,
            };
            let work = self.disk.clone().append(epoch, name, writes);
            self.watch((name.volume, epoch, verb), work).await
        })
    }

    fn seal(self: Arc<Self>, epoch: Epoch, footer: ShardFooter) -> ShardFuture<'static, u64> {
        Box::pin(async move {
            let what = (footer.name.volume, epoch, Verb::Seal);
            let work = self.disk.clone().seal(epoch, footer);
            self.watch(what, work).await
        })
    }

    fn stat(&self, name: ShardName) -> ShardFuture<'_, ShardStat> {
        ShardService::stat(&*self.disk, name)
    }

    fn read(&self, name: ShardName, offset: u64, len_bytes: usize) -> ShardFuture<'_, Bytes> {
        ShardService::read(&*self.disk, name, offset, len_bytes)
    }

    fn read_checked<'a>(
        &'a self,
        name: ShardName,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, CheckedRead> {
        ShardService::read_checked(&*self.disk, name, range, checksums)
    }

    fn repair(
        &self,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let work = ShardService::repair(&*self.disk, epoch, name, writes);
            self.watch((name.volume, epoch, Verb::Repair), work).await
        })
    }

    fn create_hidden(
        &self,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'_, HiddenId> {
        Box::pin(async move {
            let what = (name.volume, epoch, Verb::CreateHidden);
            let disk = &*self.disk;
            let work = ShardService::create_hidden(disk, epoch, name, capacity_bytes, kept_bytes);
            self.watch(what, work).await
        })
    }

    fn fill(&self, epoch: Epoch, hidden: HiddenId, write: ShardWrite) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let what = (hidden.name.volume, epoch, Verb::Fill);
            let work = self.disk.fill(epoch, hidden, write);
            self.watch(what, work).await
        })
    }

    fn copy_from<'a>(
        &'a self,
        epoch: Epoch,
        hidden: HiddenId,
        from: &'a dyn ShardService,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, Copied> {
        Box::pin(async move {
            let what = (hidden.name.volume, epoch, Verb::CopyFrom);
            let work = self.disk.copy_from(epoch, hidden, from, range, checksums);
            self.watch(what, work).await
        })
    }

    fn seal_hidden(
        &self,
        epoch: Epoch,
        hidden: HiddenId,
        footer: ShardFooter,
    ) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let what = (hidden.name.volume, epoch, Verb::SealHidden);
            let work = self.disk.seal_hidden(epoch, hidden, footer);
            self.watch(what, work).await
        })
    }

    fn publish(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let what = (hidden.name.volume, epoch, Verb::Publish);
            let work = ShardService::publish(&*self.disk, epoch, hidden);
            self.watch(what, work).await
        })
    }

    fn discard(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let what = (hidden.name.volume, epoch, Verb::Discard);
            let work = ShardService::discard(&*self.disk, epoch, hidden);
            self.watch(what, work).await
        })
    }

    fn remove(&self, epoch: Epoch, name: ShardName) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let work = ShardService::remove(&*self.disk, epoch, name);
            self.watch((name.volume, epoch, Verb::Remove), work).await
        })
    }

    fn list(&self, volume: VolumeId) -> ShardFuture<'_, ShardList> {
        ShardService::list(&*self.disk, volume)
    }

    fn sweep(
        &self,
        epoch: Epoch,
        volume: VolumeId,
        names: Vec<ShardName>,
        mark: u64,
    ) -> ShardFuture<'_, SweptShards> {
        Box::pin(async move {
            let work = ShardService::sweep(&*self.disk, epoch, volume, names, mark);
            self.watch((volume, epoch, Verb::Sweep), work).await
        })
    }
}
