//! Copies of the state on other nodes: each file in shards, and one shard that lists these.
//!
//! Owns: the disks of a copy, which of its files need no rewrite, how a new owner fetches a copy, which shards are
//! removed. Must not know: the contents of a state, how the list is kept, the log.
//!
//! A copy counts when the list names it. The list changes when the whole copy is durable on each of its disks, so any
//! of these has all of it. Table files never change: a new copy reuses those of the previous one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::env::{Clock, Env};
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, DiskId, LogPosition, NodeId, crc32c, crc32c_append};
use cairn_formats::metadata::descriptor::{
    Descriptor, FileEntry, RemoteCopy, STATE_PART_BYTES, part_count,
};
use cairn_formats::shard::name::{ShardKind, ShardName};
use cairn_shard::{ShardError, ShardService, ShardWrite};
use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;

use super::exported::{Exported, Receiver};
use super::{Candidate, rocks};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::log::ensemble::list::AgreedList;
use crate::log::ensemble::{Seat, StateCopy, last_room_bytes};

/// Bytes read from a disk at a time.
const READ_BYTES: u64 = 4 << 20;
/// Interval of the check whether a copy could be on more disks.
const LOOK_AFTER: Duration = Duration::from_secs(2);

/// The copies of one volume's state, for one term of its owner.
pub(crate) struct RemoteCopies {
    clock: Arc<dyn Clock>,
    seat: Seat,
    list: Arc<AgreedList>,
    counter: AtomicU64,
    /// Number of copies made: selects the files that the next copy checks.
    made: AtomicU64,
    /// Contents of the copy that the list names, once they were read or made.
    held: Mutex<Option<Arc<HeldCopy>>>,
    /// The copy that the state began as, if it did: files of one name are identical.
    began_as: Mutex<Option<Descriptor>>,
    /// Disks from which a read of a copy failed.
    late: Mutex<BTreeSet<DiskId>>,
    look_at: Mutex<Duration>,
}

struct HeldCopy {
    at: StateCopy,
    copy: RemoteCopy,
}

impl HeldCopy {
    /// Numbers of all shards of the copy.
    fn numbers(&self) -> BTreeSet<u64> {
        let parts = self.copy.files();
        let parts = parts.flat_map(|(file, first)| first..first + part_count(file.len_bytes));
        parts.chain([self.at.number]).collect()
    }
}

impl RemoteCopies {
    pub fn new(env: &Env, seat: &Seat, list: Arc<AgreedList>) -> Self {
        Self {
            clock: env.clock.clone(),
            seat: seat.clone(),
            list,
            counter: AtomicU64::new(0),
            made: AtomicU64::new(0),
            held: Mutex::default(),
            began_as: Mutex::default(),
            late: Mutex::default(),
            look_at: Mutex::default(),
        }
    }

    /// Number of copies of the state wanted, including the owner's.
    pub fn copies_wanted(&self) -> usize {
        self.seat.copies.wanted()
    }

    /// The copy that counts.
    pub fn newest(&self) -> Option<StateCopy> {
        self.list.get().state
    }

    /// Position up to which the state needs no log if this node is lost. Requires as many copies as wanted, unless
    /// `takes_fewer`.
    pub fn through(&self, takes_fewer: bool) -> Option<LogPosition> {
        let newest = self.newest()?;
        let is_enough = takes_fewer || newest.disks.len() >= self.wanted_elsewhere();
        is_enough.then_some(newest.applied)
    }

    /// Whether the volume may be on this node alone.
    pub fn may_be_alone(&self) -> bool {
        self.seat.copies.least() <= 1
    }

    fn wanted_elsewhere(&self) -> usize {
        self.seat.copies.wanted().saturating_sub(1).max(1)
    }

    /// Whether a copy holds everything up to this position and needs no other disks.
    pub fn is_current(&self, position: LogPosition) -> bool {
        let choices = self.choices(&BTreeSet::new());
        self.newest().is_some_and(|copy| {
            let is_on = |disk: &Arc<dyn ShardService>| copy.disks.contains(&disk.id());
            copy.applied >= position && choices.iter().all(is_on)
        })
    }

    /// Whether another copy would be better protected than the present one. Rate-limited.
    pub fn wants_disks(&self) -> bool {
        let now = self.clock.monotonic();
        {
            let mut look_at = self.look_at.lock();
            if now < *look_at {
                return false;
            }
            *look_at = now.saturating_add(LOOK_AFTER);
        }
        self.could_be_better()
    }

    /// Whether a copy could use more of the wanted disks, or some of these hold unnamed leftovers.
    pub fn could_be_better(&self) -> bool {
        let choices = self.choices(&BTreeSet::new());
        let there: BTreeSet<DiskId> = choices.iter().map(|disk| disk.id()).collect();
        let held = self.newest().map_or_else(Vec::new, |copy| copy.disks);
        let good = held.iter().filter(|disk| there.contains(disk)).count();
        good < choices.len() || self.has_unswept()
    }

    fn has_unswept(&self) -> bool {
        let mut disks = self.seat.disks.choices().into_iter();
        disks.any(|(_, disk)| !disk.is_avoided() && self.list.wants_sweep(&disk))
    }

    /// Notes that the state began as a copy.
    pub fn note_began(&self, copy: Descriptor) {
        *self.began_as.lock() = Some(copy);
    }

    fn next_number(&self, count: u64) -> Result<u64, MetaError> {
        let first = self.counter.fetch_add(count.max(1), Ordering::AcqRel) + 1;
        // The last number must be valid, too.
        self.seat.number(first + count)?;
        self.seat.number(first)
    }

    /// Disks for a copy, on distinct nodes other than this one. Disks with most of the copy come first.
    fn choices(&self, without: &BTreeSet<DiskId>) -> Vec<Arc<dyn ShardService>> {
        let held = self.newest().map_or_else(Vec::new, |copy| copy.disks);
        let mut there = self.seat.disks.choices();
        there.retain(|(node, disk)| {
            let is_other = *node != self.seat.node || planted::is(Bug::StateCopiedToOwnNode);
            is_other && !disk.is_avoided() && !without.contains(&disk.id())
        });
        there.sort_by_key(|(_, disk)| !held.contains(&disk.id()));
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut chosen = Vec::new();
        for (node, disk) in there {
            if !nodes.contains(&node) && chosen.len() < self.wanted_elsewhere() {
                nodes.push(node);
                chosen.push(disk);
            }
        }
        chosen
    }

    /// The contents of the copy that counts; read from a disk if they are not known yet.
    async fn held(&self) -> Result<Option<Arc<HeldCopy>>, MetaError> {
        let Some(at) = self.newest() else {
            return Ok(None);
        };
        {
            let held = self.held.lock();
            if let Some(held) = held.as_ref().filter(|held| held.at == at) {
                return Ok(Some(held.clone()));
            }
        }
        let mut absent = Vec::new();
        for id in self.in_order(&at.disks) {
            let read = self.read_copy(id, &at).await;
            match read {
                Ok(copy) => {
                    let held = Arc::new(HeldCopy { at, copy });
                    *self.held.lock() = Some(held.clone());
                    return Ok(Some(held));
                }
                Err(why) => {
                    self.late.lock().insert(id);
                    absent.push(format!("{id} ({why})"));
                }
            }
        }
        Err(self.unreachable(&absent))
    }

    /// The disks of a copy in the order in which they are read: those that did not answer before, and silent ones, come
    /// last. Otherwise each file of the state would wait for a node that is cut off.
    fn in_order(&self, disks: &[DiskId]) -> Vec<DiskId> {
        let late = self.late.lock();
        let mut disks = disks.to_vec();
        let is_doubtful = |id: &DiskId| {
            let disk = self.seat.disks.disk(*id);
            late.contains(id) || disk.is_none_or(|disk| disk.is_silent())
        };
        disks.sort_by_key(is_doubtful);
        disks
    }

    fn unreachable(&self, absent: &[String]) -> MetaError {
        MetaError::StateUnreachable {
            volume: self.seat.volume,
            disks: absent.join(", "),
        }
    }

    async fn read_copy(&self, id: DiskId, at: &StateCopy) -> Result<RemoteCopy, String> {
        let disk = self.seat.disks.disk(id);
        let disk = disk.ok_or_else(|| "it is not there".to_owned())?;
        let bytes = self.read_part(&*disk, at.number, u64::from(at.len_bytes));
        let bytes = bytes.await?;
        let copy = RemoteCopy::decode(&bytes).map_err(|error| error.to_string())?;
        match copy.descriptor.volume == self.seat.volume {
            true => Ok(copy),
            false => Err("it is of another volume".to_owned()),
        }
    }

    fn name(&self, number: u64) -> ShardName {
        ShardName::of_state(self.seat.volume, number)
    }

    /// Reads a shard of the copy. The error says why that is impossible now.
    async fn read_part(
        &self,
        disk: &dyn ShardService,
        number: u64,
        len_bytes: u64,
    ) -> Result<Bytes, String> {
        let name = self.name(number);
        let padded = len_bytes.next_multiple_of(IO_ALIGN_BYTES as u64);
        let mut all = BytesMut::new();
        let mut offset = 0;
        while offset < padded {
            let piece = READ_BYTES.min(padded - offset);
            let reading = disk.read(name, offset, usize::try_from(piece).unwrap_or(0));
            let patience = self.clock.sleep(self.seat.patience);
            let read = match select(reading, patience).await {
                Either::Left((read, _)) => read.map_err(|error| error.to_string())?,
                Either::Right(_) => return Err("it does not answer".to_owned()),
            };
            if read.is_empty() {
                return Err("it gives nothing".to_owned());
            }
            offset += read.len() as u64;
            all.extend_from_slice(&read);
        }
        all.truncate(usize::try_from(len_bytes).unwrap_or(usize::MAX));
        Ok(all.freeze())
    }

    /// Puts a copy of the state on other nodes, as many as are wanted or possible, and has the list name it. Removes
    /// the shards of earlier copies that this one does not use. Fails without a disk for it.
    pub async fn put(&self, files: &Exported) -> Result<(), MetaError> {
        let held = self.held().await.unwrap_or_else(|error| {
            tracing::warn!("{error}; all of the state is copied anew");
            None
        });
        let mut bad = BTreeSet::new();
        loop {
            let disks = self.choices(&bad);
            if disks.is_empty() {
                return Err(MetaError::CopiesMissing {
                    volume: self.seat.volume,
                });
            }
            match self.put_on(files, held.as_deref(), &disks).await {
                Ok(new) => {
                    let at = new.at.clone();
                    self.list.change(|list| list.state = Some(at)).await?;
                    let new = Arc::new(new);
                    *self.held.lock() = Some(new.clone());
                    *self.began_as.lock() = None;
                    self.made.fetch_add(1, Ordering::Relaxed);
                    if let Some(held) = held {
                        self.remove_unneeded(&held, &new).await;
                    }
                    return Ok(());
                }
                Err(PutError::Disk(id, error)) => {
                    if let ShardError::Fenced { promised, .. } = error {
                        return Err(MetaError::Fenced {
                            volume: self.seat.volume,
                            epoch: self.seat.epoch,
                            promised,
                        });
                    }
                    tracing::warn!(volume = %self.seat.volume, disk = %id, "the copy of the metadata's state goes elsewhere: {error}");
                    // The shards on the other disks are of no use either.
                    for disk in &disks {
                        self.list.note_unswept(disk.id());
                    }
                    bad.insert(id);
                }
                Err(PutError::State(error)) => return Err(error),
            }
        }
    }

    async fn put_on(
        &self,
        files: &Exported,
        held: Option<&HeldCopy>,
        disks: &[Arc<dyn ShardService>],
    ) -> Result<HeldCopy, PutError> {
        let descriptor = &files.descriptor;
        let known: BTreeMap<&str, (&FileEntry, u64)> = held
            .filter(|held| self.is_same_line(held, files))
            .into_iter()
            .flat_map(|held| held.copy.files())
            .map(|(file, first)| (file.name.as_str(), (file, first)))
            .collect();
        // Each new copy reads and checks some of the files that it reuses.
        let checked = rocks::in_turn(&descriptor.files, self.made.load(Ordering::Relaxed));
        let mut firsts = Vec::with_capacity(descriptor.files.len());
        for file in &descriptor.files {
            let known = known.get(file.name.as_str());
            let known = known.filter(|(other, _)| *other == file && rocks::is_sst(&file.name));
            let first = match known {
                Some((_, first)) => *first,
                None => self.next_number(part_count(file.len_bytes))?,
            };
            let mut targets = Vec::new();
            for disk in disks {
                let has =
                    known.is_some() && held.is_some_and(|held| held.at.disks.contains(&disk.id()));
                let is_checked = checked.contains(&file);
                if has && (!is_checked || self.is_whole(&**disk, file, first).await) {
                    continue;
                }
                targets.push(disk.clone());
            }
            self.put_file(files, file, first, &targets).await?;
            firsts.push(first);
        }
        let copy = RemoteCopy {
            descriptor: descriptor.clone(),
            firsts,
        };
        let number = self.next_number(1)?;
        let bytes = Bytes::from(copy.encode());
        let len_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.put_part(number, &bytes, disks).await?;
        Ok(HeldCopy {
            at: StateCopy {
                number,
                len_bytes,
                applied: descriptor.applied.position,
                disks: disks.iter().map(|disk| disk.id()).collect(),
            },
            copy,
        })
    }

    fn is_same_line(&self, held: &HeldCopy, files: &Exported) -> bool {
        let lineage = files.descriptor.lineage;
        let is_same = lineage != 0 && held.copy.descriptor.lineage == lineage;
        is_same || self.began_as.lock().as_ref() == Some(&held.copy.descriptor)
    }

    /// Whether a disk returns the expected bytes. Errors of the disk are left to the disk watch.
    async fn is_whole(&self, disk: &dyn ShardService, file: &FileEntry, first: u64) -> bool {
        let mut crc = crc32c(&[]);
        for (number, len_bytes) in parts(file, first) {
            match self.read_part(disk, number, len_bytes).await {
                Ok(bytes) => crc = crc32c_append(crc, &bytes),
                Err(_) => return false,
            }
        }
        let is_whole = crc == file.crc;
        if !is_whole {
            disk.note_checksum_error();
            tracing::warn!(volume = %self.seat.volume, disk = disk.label(), file = file.name, "damaged in a copy of the state; written again");
        }
        is_whole
    }

    async fn put_file(
        &self,
        files: &Exported,
        file: &FileEntry,
        first: u64,
        disks: &[Arc<dyn ShardService>],
    ) -> Result<(), PutError> {
        if disks.is_empty() {
            return Ok(());
        }
        let mut offset = 0;
        let mut crc = crc32c(&[]);
        for (number, len_bytes) in parts(file, first) {
            let bytes = files.read(file, offset, len_bytes).await?;
            crc = crc32c_append(crc, &bytes);
            offset += len_bytes;
            self.put_part(number, &bytes, disks).await?;
        }
        match crc == file.crc {
            true => Ok(()),
            false => Err(PutError::State(MetaError::StateDamaged(format!(
                "{}: its checksum is wrong",
                file.name
            )))),
        }
    }

    async fn put_part(
        &self,
        number: u64,
        bytes: &Bytes,
        disks: &[Arc<dyn ShardService>],
    ) -> Result<(), PutError> {
        let mut aligned = AlignedBuf::zeroed(bytes.len().next_multiple_of(IO_ALIGN_BYTES));
        aligned[..bytes.len()].copy_from_slice(bytes);
        let bytes = aligned.freeze();
        let (epoch, name) = (self.seat.epoch, self.name(number));
        let puts = disks.iter().map(|disk| {
            let bytes = bytes.clone();
            let put = async move {
                let capacity_bytes = bytes.len() as u64;
                let kept_bytes = match planted::is(Bug::StateCopyTakesTheLastRoom) {
                    true => 0,
                    false => last_room_bytes(&**disk),
                };
                let created = disk
                    .clone()
                    .create(epoch, name, capacity_bytes, kept_bytes)
                    .await;
                match created {
                    // The disk already has the shard, from an earlier copy: it was away when that was removed, or the
                    // shard is corrupt.
                    Err(ShardError::Exists { .. }) => {
                        disk.remove(epoch, name).await?;
                        disk.clone()
                            .create(epoch, name, capacity_bytes, kept_bytes)
                            .await?;
                    }
                    created => created?,
                }
                let write = ShardWrite {
                    offset: 0,
                    parts: vec![bytes],
                };
                disk.clone().append(epoch, name, vec![write]).await
            };
            let patience = self.clock.sleep(self.seat.patience);
            async move {
                match select(Box::pin(put), patience).await {
                    Either::Left((result, _)) => {
                        result.map_err(|error| PutError::Disk(disk.id(), error))
                    }
                    Either::Right(_) => Err(PutError::Disk(disk.id(), late(&**disk))),
                }
            }
        });
        let results: Vec<Result<(), PutError>> = join_all(puts).await;
        results.into_iter().collect()
    }

    async fn remove_unneeded(&self, old: &HeldCopy, new: &HeldCopy) {
        let needed = new.numbers();
        for id in &old.at.disks {
            let is_kept = new.at.disks.contains(id);
            let Some(disk) = self.seat.disks.disk(*id) else {
                self.list.note_unswept(*id);
                continue;
            };
            for number in old.numbers() {
                if is_kept && needed.contains(&number) {
                    continue;
                }
                if let Err(error) = disk.remove(self.seat.epoch, self.name(number)).await {
                    tracing::debug!(%error, "a part of an old copy of the state stays");
                    self.list.note_unswept(*id);
                }
            }
        }
    }

    /// Removes files of log and state that the list does not name: of earlier owners, and of failed attempts. Disks
    /// that are away are swept when they are back.
    pub async fn sweep(&self) {
        for (_, disk) in self.seat.disks.choices() {
            if disk.is_avoided() || !self.list.wants_sweep(&disk) {
                continue;
            }
            match self.sweep_disk(&*disk).await {
                Ok(()) => self.list.note_swept(&disk),
                Err(error) => {
                    tracing::debug!(disk = disk.label(), %error, "old files of the metadata stay");
                }
            }
        }
    }

    async fn sweep_disk(&self, disk: &dyn ShardService) -> Result<(), ShardError> {
        let names = disk.list(self.seat.volume).await?.names;
        let held = self.held().await;
        let list = self.list.get();
        let open = list.ensembles.last().map_or(0, |open| open.number);
        let is_log_needed =
            |number: u64| number >= open || list.ensembles.iter().any(|part| part.number == number);
        let needed = match &held {
            Ok(Some(held)) if list.state.as_ref() == Some(&held.at) => Some(held.numbers()),
            Ok(None) if list.state.is_none() => Some(BTreeSet::new()),
            _ => None,
        };
        let newest = list.state.as_ref().map(|copy| copy.number);
        let is_state_needed = |number: u64| match (&needed, newest) {
            (None, _) => true,
            (Some(needed), Some(newest)) => {
                let is_here = list
                    .state
                    .as_ref()
                    .is_some_and(|at| at.disks.contains(&disk.id()));
                // A newer shard may belong to a copy that is being made.
                number > newest || is_here && needed.contains(&number)
            }
            (Some(_), None) => !self.seat.is_of_earlier_owner(number),
        };
        for name in names {
            let is_needed = match name.kind() {
                ShardKind::Segment => true,
                ShardKind::Log(number) => is_log_needed(number),
                ShardKind::State(number) => is_state_needed(number),
            };
            if !is_needed {
                disk.remove(self.seat.epoch, name).await?;
            }
        }
        Ok(())
    }

    /// Fetches the copy that counts to a disk of this node. `None` if there is no copy.
    pub async fn fetch(
        &self,
        disks: &DiskSet,
        index: usize,
    ) -> Result<Option<Candidate>, MetaError> {
        let Some(held) = self.held().await? else {
            return Ok(None);
        };
        let mut receiver = Receiver::begin(disks, index, &held.copy.descriptor).await?;
        match self.fetch_files(&held, &mut receiver).await {
            Ok(()) => Ok(Some(receiver.finish().await?)),
            Err(error) => {
                receiver.discard().await;
                Err(error)
            }
        }
    }

    async fn fetch_files(&self, held: &HeldCopy, receiver: &mut Receiver) -> Result<(), MetaError> {
        for (file, first) in held.copy.files() {
            if receiver.has(file).await? {
                continue;
            }
            let mut absent = Vec::new();
            for id in self.in_order(&held.at.disks) {
                receiver.begin_file(file).await?;
                match self.fetch_file(id, file, first, receiver).await? {
                    None => {
                        absent.clear();
                        break;
                    }
                    Some(why) => {
                        self.late.lock().insert(id);
                        absent.push(format!("{id} ({why})"));
                    }
                }
            }
            if !absent.is_empty() {
                return Err(self.unreachable(&absent));
            }
            receiver.end_file().await?;
        }
        Ok(())
    }

    /// Fetches a file from one disk. The error says why that fails.
    async fn fetch_file(
        &self,
        id: DiskId,
        file: &FileEntry,
        first: u64,
        receiver: &mut Receiver,
    ) -> Result<Option<String>, MetaError> {
        let Some(disk) = self.seat.disks.disk(id) else {
            return Ok(Some("it is not there".to_owned()));
        };
        let mut crc = crc32c(&[]);
        for (number, len_bytes) in parts(file, first) {
            match self.read_part(&*disk, number, len_bytes).await {
                Ok(bytes) => {
                    crc = crc32c_append(crc, &bytes);
                    receiver.write(bytes).await?;
                }
                Err(why) => return Ok(Some(why)),
            }
        }
        if crc == file.crc {
            return Ok(None);
        }
        disk.note_checksum_error();
        Ok(Some(format!("{} is damaged there", file.name)))
    }
}

/// The parts of a file: number and length of each.
fn parts(file: &FileEntry, first: u64) -> impl Iterator<Item = (u64, u64)> {
    let len_bytes = file.len_bytes;
    (0..part_count(len_bytes)).map(move |part| {
        let left = len_bytes - part * STATE_PART_BYTES;
        (first + part, left.min(STATE_PART_BYTES))
    })
}

enum PutError {
    Disk(DiskId, ShardError),
    State(MetaError),
}

impl From<MetaError> for PutError {
    fn from(error: MetaError) -> Self {
        Self::State(error)
    }
}

fn late(disk: &dyn ShardService) -> ShardError {
    ShardError::Late {
        disk: disk.label().to_owned(),
        what: "writing a copy of the state".to_owned(),
    }
}
