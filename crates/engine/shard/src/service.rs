//! The shards of a disk as those use them who own volumes, wherever the disk is.
//!
//! Owns: the verbs. Each is a whole step, one round trip where the disk is on another node, and names what it is about:
//! no open file, no guard and no closure crosses it. Each that changes something says for which epoch of the volume.
//! Must not know: stripes, erasure coding, which disks hold a segment.
//!
//! [`ShardDisk`] is a disk of this process; `cairn-remote` has one that is on another node.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::{DiskError, DiskSpace};
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, NodeId, VolumeId, crc32c};
use cairn_formats::shard::footer::{CHECKSUM_UNIT_BYTES, ShardFooter};
use cairn_formats::shard::name::ShardName;
use futures_util::future::join_all;

use crate::error::ShardError;
use crate::health::{DiskHealth, Health};
use crate::shard::Shard;
use crate::shard_disk::ShardDisk;

/// What every verb returns: boxed, because where a disk is turns out at run time. It is the one allocation of a step.
pub type ShardFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ShardError>> + Send + 'a>>;

/// Bytes for one place of a shard; the parts follow one another.
#[derive(Clone, Debug)]
pub struct ShardWrite {
    /// A multiple of 4096.
    pub offset: u64,
    pub parts: Vec<Bytes>,
}

/// The state of a shard that is there.
#[derive(Clone, Debug)]
pub struct ShardStat {
    /// Footer and unused room included.
    pub file_len_bytes: u64,
    /// `None`: it was not sealed.
    pub footer: Result<Option<ShardFooter>, ShardError>,
    /// It never had a footer: a write to it failed, or a crash came first.
    pub is_unsealed: bool,
}

/// Bytes of a shard that were compared with checksums where they are.
#[derive(Clone, Debug)]
pub struct CheckedRead {
    pub bytes: Bytes,
    /// In order: the checked pieces that are not what they should be.
    pub damaged: Vec<Range<u64>>,
}

/// Names a shard that is being filled, and that nobody finds before it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HiddenId {
    pub name: ShardName,
    /// Tells those of one shard apart, on one disk since it was opened.
    pub number: u64,
}

/// What became of a copy from another disk.
#[derive(Clone, Debug)]
pub enum Copied {
    /// It is written. With the checksum of each piece.
    Whole(Vec<u32>),
    /// Some pieces are not what they should be; nothing is written.
    Damaged(Vec<Range<u64>>),
    /// The other disk did not give it; nothing is written.
    Unread(ShardError),
}

/// The shards of a volume on a disk, as of some moment.
#[derive(Clone, Debug)]
pub struct ShardList {
    /// In order.
    pub names: Vec<ShardName>,
    /// When that was, for [`ShardService::sweep`].
    pub mark: u64,
    /// What the disk has promised: the epoch of the volume's last owner.
    pub promised: Epoch,
}

/// What a sweep of one disk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptShards {
    pub removed: u64,
    /// Not removed: it may have been published since the list was made.
    pub kept: u64,
    pub errors: u64,
}

/// The shards of one disk.
///
/// Verbs that change something fail with `Fenced` once the disk has promised a higher epoch of the volume to somebody.
/// Their own epoch is promised before anything changes, if it was not before. Futures without a lifetime go on by
/// themselves wherever they are polled, so that a caller that does not want to wait any more may leave them to a task.
pub trait ShardService: Send + Sync + 'static {
    fn id(&self) -> DiskId;
    /// The node that serves it to this process; `None`: it is this process's own.
    fn node(&self) -> Option<NodeId> {
        None
    }
    /// A name for messages.
    fn label(&self) -> &str;
    /// The health of the disk, known without asking it.
    fn state(&self) -> &Health;
    /// As it was told last; files kept for new shards count as free.
    fn space(&self) -> Result<DiskSpace, ShardError>;
    /// Bytes in files kept for new shards.
    fn recycled_bytes(&self) -> u64;
    /// How many files are kept for new shards, by capacity.
    fn recycled(&self) -> BTreeMap<u64, usize>;
    /// How many files are kept for shards of this capacity.
    fn recycled_count(&self, capacity_bytes: u64) -> usize {
        self.recycled().get(&capacity_bytes).copied().unwrap_or(0)
    }

    fn health(&self) -> DiskHealth {
        self.state().get()
    }
    fn is_silent(&self) -> bool {
        self.state().is_silent()
    }
    /// Whether nothing new should be put there: it counts as failed, or is suspected to.
    fn is_avoided(&self) -> bool {
        self.state().is_avoided()
    }
    /// How many writes and syncs have ended so far, well or not.
    fn writes_answered(&self) -> u64 {
        self.state().writes_answered()
    }
    /// Counts wrong bytes read from this disk.
    fn note_checksum_error(&self) {
        self.state().note_checksum_error();
    }

    /// Asks the disk to write something durably and to read it back.
    fn probe(&self) -> ShardFuture<'_, ()>;
    /// Makes files for new shards until `count` of this capacity are there.
    fn prepare_recycled(&self, count: usize, capacity_bytes: u64) -> ShardFuture<'_, ()>;
    /// Gives the space of files kept for new shards back.
    fn release_recycled(&self) -> ShardFuture<'_, ()>;

    /// Promises to refuse lower epochs of a volume. When it answers, nothing of them is under way any more and the
    /// promise is durable. Fails with `Fenced` if a higher one was promised.
    fn fence(self: Arc<Self>, volume: VolumeId, epoch: Epoch) -> ShardFuture<'static, ()>;

    /// Makes a shard with room for `capacity_bytes`, allocated at once, so that a lack of space is known before
    /// anything is placed in it. Its name becomes durable with its first append. Fails with `Full` unless `kept_bytes`
    /// stay free beside it: owners of several nodes look at the same space, and the disk alone sees what all of them take.
    fn create(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'static, ()>;
    /// Writes all of `writes`, and answers when they are durable, and the shard's name with them. Appends to one shard
    /// share syncs. After an error none of them is under way any more.
    fn append(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'static, ()>;
    /// Ends the shard that the footer names, durably, and gives the length of its file, which may be cut behind the
    /// footer. May be repeated, with another footer.
    fn seal(self: Arc<Self>, epoch: Epoch, footer: ShardFooter) -> ShardFuture<'static, u64>;

    /// Fails with `NotFound` if there is no such shard.
    fn stat(&self, name: ShardName) -> ShardFuture<'_, ShardStat>;
    /// Exactly `len_bytes` at `offset`; what was never written reads as anything.
    fn read(&self, name: ShardName, offset: u64, len_bytes: usize) -> ShardFuture<'_, Bytes>;
    /// As [`Self::read`], compared with `checksums` where the disk is: of each piece of [`CHECKSUM_UNIT_BYTES`] from
    /// `range.start` on, which is a multiple of these. Pieces beyond the checksums are not checked.
    fn read_checked<'a>(
        &'a self,
        name: ShardName,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, CheckedRead>;

    /// Writes bytes anew that were there before, durably; a footer that is damaged is no hindrance.
    fn repair(&self, epoch: Epoch, name: ShardName, writes: Vec<ShardWrite>)
    -> ShardFuture<'_, ()>;

    /// Makes a shard that nobody finds before [`Self::publish`]. A crash before that leaves none. `kept_bytes`: as of
    /// [`Self::create`].
    fn create_hidden(
        &self,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'_, HiddenId>;
    /// Writes to a hidden shard.
    fn fill(&self, epoch: Epoch, hidden: HiddenId, write: ShardWrite) -> ShardFuture<'_, ()>;
    /// Pulls bytes of a shard of the same name from another disk into a hidden shard: all of it, or, for who paces
    /// that, range by range. They are checked as by [`Self::read_checked`] before they are written.
    fn copy_from<'a>(
        &'a self,
        epoch: Epoch,
        hidden: HiddenId,
        from: &'a dyn ShardService,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, Copied>;
    /// Ends a hidden shard.
    fn seal_hidden(
        &self,
        epoch: Epoch,
        hidden: HiddenId,
        footer: ShardFooter,
    ) -> ShardFuture<'_, ()>;
    /// Makes a hidden shard one that is found, durably. Fails with `Exists` if there is one of its name. After an
    /// error it is gone.
    fn publish(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()>;
    /// Deletes a hidden shard. What cannot be deleted is at the next start.
    fn discard(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()>;

    /// Removes a shard; one that is not there is no error. A crash can bring it back for a while.
    fn remove(&self, epoch: Epoch, name: ShardName) -> ShardFuture<'_, ()>;
    /// The shards of a volume that are there.
    fn list(&self, volume: VolumeId) -> ShardFuture<'_, ShardList>;
    /// Removes shards, all of one volume, but for those that were published since `mark`, or may have been: a move
    /// may have brought them.
    fn sweep(
        &self,
        epoch: Epoch,
        volume: VolumeId,
        names: Vec<ShardName>,
        mark: u64,
    ) -> ShardFuture<'_, SweptShards>;
}

impl ShardDisk {
    /// A planted bug: numbers of segments are unique within a volume only.
    async fn of_first_volume(&self, names: &[ShardName]) -> Result<Vec<ShardName>, ShardError> {
        let mut found = ShardDisk::list(self, VolumeId(1)).await?;
        found.retain(|found| names.iter().any(|name| name.segment == found.segment));
        Ok(found)
    }
}

impl ShardService for ShardDisk {
    fn id(&self) -> DiskId {
        Self::id(self)
    }

    fn label(&self) -> &str {
        Self::label(self)
    }

    fn state(&self) -> &Health {
        Self::state(self)
    }

    fn space(&self) -> Result<DiskSpace, ShardError> {
        Self::space(self)
    }

    fn recycled_bytes(&self) -> u64 {
        Self::recycled_bytes(self)
    }

    fn recycled(&self) -> BTreeMap<u64, usize> {
        Self::recycled(self)
    }

    fn recycled_count(&self, capacity_bytes: u64) -> usize {
        Self::recycled_count(self, capacity_bytes)
    }

    fn probe(&self) -> ShardFuture<'_, ()> {
        Box::pin(Self::probe(self))
    }

    fn prepare_recycled(&self, count: usize, capacity_bytes: u64) -> ShardFuture<'_, ()> {
        Box::pin(Self::prepare_recycled(self, count, capacity_bytes))
    }

    fn release_recycled(&self) -> ShardFuture<'_, ()> {
        Box::pin(Self::release_recycled(self))
    }

    fn fence(self: Arc<Self>, volume: VolumeId, epoch: Epoch) -> ShardFuture<'static, ()> {
        Box::pin(async move { self.promise(volume, epoch).await })
    }

    fn create(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            let _turn = match planted::is(Bug::EpochIgnoredInCreate) {
                true => self.enter_unasked(name.volume, epoch),
                false => self.enter(name.volume, epoch).await?,
            };
            let _claim = self.claim(name, capacity_bytes, kept_bytes)?;
            ShardDisk::create(&self, name, capacity_bytes).await?;
            Ok(())
        })
    }

    fn append(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            let _turn = match planted::is(Bug::EpochIgnoredInAppend) {
                true => self.enter_unasked(name.volume, epoch),
                false => self.enter(name.volume, epoch).await?,
            };
            let shard = self.open_shard(name).await?;
            let writes = writes
                .into_iter()
                .map(|write| shard.write_at(write.offset, write.parts));
            // All are waited for, also after a failure: none may still be under way when this returns.
            for result in join_all(writes).await {
                result?;
            }
            shard.sync().await
        })
    }

    fn seal(self: Arc<Self>, epoch: Epoch, footer: ShardFooter) -> ShardFuture<'static, u64> {
        Box::pin(async move {
            let _turn = self.enter(footer.name.volume, epoch).await?;
            let shard = self.open_shard(footer.name).await?;
            shard.seal(footer).await?;
            Ok(shard.file_len_bytes())
        })
    }

    fn stat(&self, name: ShardName) -> ShardFuture<'_, ShardStat> {
        Box::pin(async move {
            let shard = self.open_shard(name).await?;
            let footer = shard.read_footer().await;
            let is_unsealed =
                matches!(footer, Ok(None)) && shard.was_never_sealed().await.unwrap_or(false);
            Ok(ShardStat {
                file_len_bytes: shard.file_len_bytes(),
                footer,
                is_unsealed,
            })
        })
    }

    fn read(&self, name: ShardName, offset: u64, len_bytes: usize) -> ShardFuture<'_, Bytes> {
        Box::pin(async move {
            let shard = self.open_shard(name).await?;
            shard.read_at(offset, len_bytes).await
        })
    }

    fn read_checked<'a>(
        &'a self,
        name: ShardName,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, CheckedRead> {
        Box::pin(async move {
            let shard = self.open_shard(name).await?;
            let len_bytes = (range.end - range.start) as usize;
            let bytes = shard.read_at(range.start, len_bytes).await?;
            let damaged = damaged_pieces(range.start, &bytes, checksums);
            Ok(CheckedRead { bytes, damaged })
        })
    }

    fn repair(
        &self,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let _turn = match planted::is(Bug::EpochIgnoredInRepair) {
                true => self.enter_unasked(name.volume, epoch),
                false => self.enter(name.volume, epoch).await?,
            };
            let shard = self.open_shard(name).await?;
            for write in writes {
                shard.repair_at(write.offset, write.parts).await?;
            }
            shard.sync().await
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
            let _turn = self.enter(name.volume, epoch).await?;
            let _claim = self.claim(name, capacity_bytes, kept_bytes)?;
            let hidden = Self::create_hidden(self, name, capacity_bytes).await?;
            Ok(self.keep_hidden(hidden, epoch))
        })
    }

    fn fill(&self, epoch: Epoch, hidden: HiddenId, write: ShardWrite) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let _turn = self.enter(hidden.name.volume, epoch).await?;
            let shard = self.hidden(hidden)?;
            shard.write_at(write.offset, write.parts).await
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
            let _turn = self.enter(hidden.name.volume, epoch).await?;
            let shard = self.hidden(hidden)?;
            let start = range.start;
            let read = match from.read_checked(hidden.name, range, checksums).await {
                Ok(read) => read,
                Err(error) => return Ok(Copied::Unread(error)),
            };
            if !read.damaged.is_empty() {
                return Ok(Copied::Damaged(read.damaged));
            }
            let pieces = read.bytes.chunks(CHECKSUM_UNIT_BYTES as usize);
            let sums = pieces.map(crc32c).collect();
            shard.write_at(start, vec![read.bytes]).await?;
            Ok(Copied::Whole(sums))
        })
    }

    fn seal_hidden(
        &self,
        epoch: Epoch,
        hidden: HiddenId,
        footer: ShardFooter,
    ) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let _turn = self.enter(hidden.name.volume, epoch).await?;
            self.hidden(hidden)?.seal(footer).await
        })
    }

    fn publish(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let _turn = self.enter(hidden.name.volume, epoch).await?;
            let hidden = self.take_hidden(hidden)?;
            Self::publish(self, hidden).await.map(drop)
        })
    }

    fn discard(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let _turn = self.enter(hidden.name.volume, epoch).await?;
            let hidden = self.take_hidden(hidden)?;
            Self::discard(self, hidden).await;
            Ok(())
        })
    }

    fn remove(&self, epoch: Epoch, name: ShardName) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let _turn = match planted::is(Bug::EpochIgnoredInRemove) {
                true => self.enter_unasked(name.volume, epoch),
                false => self.enter(name.volume, epoch).await?,
            };
            Self::remove(self, name).await
        })
    }

    fn list(&self, volume: VolumeId) -> ShardFuture<'_, ShardList> {
        Box::pin(async move {
            // Before the names: what comes in between may be among them, and is not swept.
            let mark = self.published_mark();
            let names = Self::list(self, volume).await?;
            let promised = self.promised(volume).await?;
            Ok(ShardList {
                names,
                mark,
                promised,
            })
        })
    }

    fn sweep(
        &self,
        epoch: Epoch,
        volume: VolumeId,
        names: Vec<ShardName>,
        mark: u64,
    ) -> ShardFuture<'_, SweptShards> {
        Box::pin(async move {
            let mut swept = SweptShards::default();
            let names = match planted::is(Bug::SweepTakesOtherVolume) {
                true => self.of_first_volume(&names).await?,
                false => names
                    .into_iter()
                    .filter(|name| name.volume == volume)
                    .collect(),
            };
            for name in names {
                // One after the other: a fence must not wait for all of them.
                let _turn = match planted::is(Bug::EpochIgnoredInSweep) {
                    true => self.enter_unasked(volume, epoch),
                    false => self.enter(volume, epoch).await?,
                };
                let is_wanted = || self.is_published_since(name, mark);
                match self.remove_unless(name, is_wanted).await {
                    Ok(true) => swept.removed += 1,
                    Ok(false) => swept.kept += 1,
                    Err(error) => {
                        tracing::debug!(shard = %name, %error, "a shard was not swept");
                        swept.errors += 1;
                    }
                }
            }
            Ok(swept)
        })
    }
}

/// The pieces of `bytes`, which begin at `start` of a shard, that are not what `checksums` say.
fn damaged_pieces(start: u64, bytes: &[u8], checksums: &[u32]) -> Vec<Range<u64>> {
    let pieces = bytes.chunks(CHECKSUM_UNIT_BYTES as usize).zip(checksums);
    let starts = (start..).step_by(CHECKSUM_UNIT_BYTES as usize);
    let wrong = starts
        .zip(pieces)
        .filter(|(_, (piece, checksum))| crc32c(piece) != **checksum);
    wrong
        .map(|(start, (piece, _))| start..start + piece.len() as u64)
        .collect()
}

/// Hidden shards by their names, and whose they are.
pub(crate) type HiddenShards = BTreeMap<HiddenId, (Epoch, crate::shard_disk::HiddenShard)>;

impl ShardDisk {
    fn hidden(&self, id: HiddenId) -> Result<Arc<Shard>, ShardError> {
        let hidden = self.hidden_shards().lock();
        let found = hidden.get(&id).map(|(_, hidden)| hidden.shard().clone());
        found.ok_or_else(|| self.no_shard(id.name))
    }

    fn take_hidden(&self, id: HiddenId) -> Result<crate::shard_disk::HiddenShard, ShardError> {
        let taken = self.hidden_shards().lock().remove(&id);
        taken
            .map(|(_, hidden)| hidden)
            .ok_or_else(|| self.no_shard(id.name))
    }

    fn no_shard(&self, name: ShardName) -> ShardError {
        ShardError::Disk(DiskError::NotFound {
            disk: Self::label(self).to_owned(),
            name: format!("hidden {name}"),
        })
    }
}
