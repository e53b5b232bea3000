//! One shard: a file of fixed capacity, synced in groups, ended by a footer.
//!
//! Owns: who shares a sync, where the footer goes, what may still touch the file.
//! Must not know: the names of other shards, recycling.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::{DiskError, DiskFile};
use cairn_base::planted::{self, Bug};
use cairn_formats::FormatError;
use cairn_formats::shard::footer::{
    ShardFooter, TRAILER_LEN_BYTES, Trailer, capacity_of_file, decode_footer, decode_trailer,
    encode_footer,
};
use cairn_formats::shard::name::ShardName;
use parking_lot::Mutex;

use crate::error::ShardError;
use crate::shard_disk::DiskCore;

const BLOCK_BYTES: u64 = IO_ALIGN_BYTES as u64;
/// A sealed file is cut behind its footer if that frees more than this part of it; otherwise it
/// keeps its size, and is worth recycling.
const CUT_GAIN_PART: u64 = 16;
/// Not found out yet.
const LIMIT_UNKNOWN: u64 = u64::MAX;

/// An open shard. There is at most one per name and disk.
pub struct Shard {
    name: ShardName,
    shared: Arc<DiskCore>,
    file: Arc<dyn DiskFile>,
    /// Where data must end: the capacity, or the footer's start.
    limit_bytes: AtomicU64,
    sync: SyncState,
    /// Folders whose names changed when the shard was made; synced with its first sync.
    unsynced_folders: Mutex<Vec<String>>,
    removed: AtomicBool,
    /// Reads and writes under way; together with `removed` it tells when the file is nobody's.
    in_flight_count: AtomicUsize,
    /// The caller of a write went away, so the write may still be under way.
    write_abandoned: AtomicBool,
}

#[derive(Default)]
struct SyncState {
    /// Callers so far; each takes the next number.
    ticket_last: AtomicU64,
    /// The highest ticket that a finished sync covers. Who holds the lock is the leader.
    ticket_synced: tokio::sync::Mutex<u64>,
    /// Set when a sync failed, or when its leader went away and nobody knows how it ended.
    lost: AtomicBool,
}

impl Shard {
    /// `capacity_bytes`: for a new shard. `unsynced_folders`: what makes its name durable.
    pub(crate) fn new(
        name: ShardName,
        shared: Arc<DiskCore>,
        file: Arc<dyn DiskFile>,
        capacity_bytes: Option<u64>,
        unsynced_folders: Vec<String>,
    ) -> Self {
        Self {
            name,
            shared,
            file,
            limit_bytes: AtomicU64::new(capacity_bytes.unwrap_or(LIMIT_UNKNOWN)),
            sync: SyncState::default(),
            unsynced_folders: Mutex::new(unsynced_folders),
            removed: AtomicBool::new(false),
            in_flight_count: AtomicUsize::new(0),
            write_abandoned: AtomicBool::new(false),
        }
    }

    pub fn name(&self) -> ShardName {
        self.name
    }

    /// Bytes of the file, footer and unused room included.
    pub fn file_len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    /// Writes `parts` one after the other at `offset`, which is a multiple of 4096. They must end
    /// within the capacity (in a sealed shard: before the footer). Durable after a `sync` that is
    /// called when this has returned.
    pub async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), ShardError> {
        let limit_bytes = self.limit_bytes().await?;
        self.write_below(limit_bytes, offset, parts).await
    }

    /// As [`Self::write_at`], for bytes that were there before, by a caller who knows where the data ends: a footer
    /// that is damaged does not tell that, and is no reason to leave what it speaks of damaged as well.
    pub async fn repair_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), ShardError> {
        let file_len_bytes = self.file.len_bytes();
        let footer_len_bytes = match self.read_trailer().await {
            Ok(Some(trailer)) => u64::from(trailer.footer_len_bytes),
            // Its body is before the trailer, and nobody knows how long it is; who repairs seals it again.
            Ok(None)
            | Err(ShardError::DamagedFooter { .. } | ShardError::Disk(DiskError::Io { .. })) => {
                TRAILER_LEN_BYTES as u64
            }
            Err(error) => return Err(error),
        };
        let limit_bytes = file_len_bytes.saturating_sub(footer_len_bytes);
        self.write_below(limit_bytes, offset, parts).await
    }

    async fn write_below(
        &self,
        limit_bytes: u64,
        offset: u64,
        parts: Vec<Bytes>,
    ) -> Result<(), ShardError> {
        let len_bytes = parts.iter().map(|part| part.len() as u64).sum();
        if !offset.is_multiple_of(BLOCK_BYTES) {
            return Err(self.bad_range("an unaligned write", offset, len_bytes));
        }
        if offset
            .checked_add(len_bytes)
            .is_none_or(|end| end > limit_bytes)
        {
            return Err(self.bad_range("a write past the capacity", offset, len_bytes));
        }
        let passage = self.enter(true)?;
        let result = self.file.write_at(offset, parts).await;
        passage.finish();
        Ok(self.shared.health.note_write(result)?)
    }

    /// Makes durable all that was written before this was called (writes that had returned), and
    /// with the first sync the shard's name.
    ///
    /// Callers share syncs: one that comes while a sync runs waits for the next, which serves all
    /// that wait. After a failure every later call fails with `SyncLost`: the kernel has dropped the
    /// dirty bytes, so another try would succeed without them. Who can write them anew opens the shard again.
    pub async fn sync(&self) -> Result<(), ShardError> {
        let ticket = self.sync.ticket_last.fetch_add(1, Ordering::SeqCst) + 1;
        let mut ticket_synced = self.sync.ticket_synced.lock().await;
        if *ticket_synced >= ticket {
            return Ok(());
        }
        if self.sync.lost.load(Ordering::SeqCst) {
            return Err(self.sync_lost());
        }
        let _passage = self.enter(false)?;
        // All with a ticket up to this one wrote before they took it.
        let ticket_covered = self.sync.ticket_last.load(Ordering::SeqCst);
        // Stays set when this future is dropped before the sync's end is known.
        self.sync.lost.store(true, Ordering::SeqCst);
        let (data, names) = match planted::is(Bug::ShardWithoutSync) {
            true => (Ok(()), self.sync_names().await),
            false => tokio::join!(self.file.sync(), self.sync_names()),
        };
        let data = data.or_else(|error| match planted::is(Bug::SyncErrorIgnored) {
            true => Ok(()),
            false => Err(error),
        });
        let health = &self.shared.health;
        health.count_sync(data.as_ref().and(names.as_ref()));
        let names = health.note_write(names);
        health.note_write(data)?;
        self.sync.lost.store(false, Ordering::SeqCst);
        names?;
        *ticket_synced = ticket_covered;
        Ok(())
    }

    /// Whether a sync failed, or has not ended yet.
    pub(crate) fn is_sync_lost(&self) -> bool {
        self.sync.lost.load(Ordering::SeqCst)
    }

    async fn sync_names(&self) -> Result<(), DiskError> {
        if planted::is(Bug::ShardNameWithoutSync) {
            return Ok(());
        }
        let folders = self.unsynced_folders.lock().clone();
        for folder in &folders {
            self.shared.disk.sync_folder(folder).await?;
        }
        if !folders.is_empty() {
            self.unsynced_folders.lock().clear();
        }
        Ok(())
    }

    /// Reads exactly `len_bytes` at `offset`; what was never written reads as anything.
    pub async fn read_at(&self, offset: u64, len_bytes: usize) -> Result<Bytes, ShardError> {
        let passage = self.enter(false)?;
        let result = self.file.read_at(offset, len_bytes).await;
        passage.finish();
        Ok(self.shared.health.note_read(result)?)
    }

    /// Ends the shard: writes `footer` behind its data, durably, data included. A file with much
    /// room left is cut behind the footer. May be called again, with a footer that replaces the old.
    pub async fn seal(&self, footer: ShardFooter) -> Result<(), ShardError> {
        if footer.name != self.name {
            return Err(self.bad_footer(FormatError::Field("shard name")));
        }
        let bytes = encode_footer(&footer)
            .map_err(|reason| self.bad_footer(reason))?
            .freeze();
        let footer_len_bytes = bytes.len() as u64;
        let data_end = footer.data_len_bytes.next_multiple_of(BLOCK_BYTES);
        let file_len_bytes = self.file.len_bytes();
        let needed_bytes = data_end + footer_len_bytes;
        let cut = file_len_bytes.saturating_sub(needed_bytes) > file_len_bytes / CUT_GAIN_PART;
        let end = if cut {
            needed_bytes
        } else {
            needed_bytes.max(file_len_bytes)
        };
        let start = end - footer_len_bytes;
        self.limit_bytes.store(start, Ordering::SeqCst);

        // Body, sync, trailer, cut: at each moment a crash leaves a whole footer or none. The last
        // block of the file only becomes a trailer when all it vouches for is durable, and the cut
        // comes last because what it would bring to the end before that is anybody's bytes.
        let body = bytes.slice(..bytes.len() - TRAILER_LEN_BYTES);
        let trailer = bytes.slice(bytes.len() - TRAILER_LEN_BYTES..);
        let trailer_start = end - TRAILER_LEN_BYTES as u64;
        let passage = self.enter(true)?;
        let health = &self.shared.health;
        if !body.is_empty() {
            health.note_write(self.file.write_at(start, vec![body]).await)?;
        }
        self.sync().await?;
        health.note_durable(
            self.file
                .write_durable_at(trailer_start, vec![trailer])
                .await,
        )?;
        if cut {
            health.note_write(self.file.set_len(end).await)?;
            self.sync().await?;
        }
        passage.finish();
        Ok(())
    }

    /// The footer, or `None` if the shard was not sealed. A footer that is there but cannot be read
    /// is `DamagedFooter`.
    pub async fn read_footer(&self) -> Result<Option<ShardFooter>, ShardError> {
        let Some(trailer) = self.read_trailer().await? else {
            return Ok(None);
        };
        let footer_len_bytes = u64::from(trailer.footer_len_bytes);
        let start = self
            .file
            .len_bytes()
            .checked_sub(footer_len_bytes)
            .ok_or_else(|| self.damaged_footer(FormatError::Truncated))?;
        let bytes = self.read_at(start, footer_len_bytes as usize).await?;
        match decode_footer(&bytes) {
            Ok(footer) => Ok(Some(footer)),
            Err(reason) => Err(self.damaged_footer(reason)),
        }
    }

    /// Whether nothing at the end of the file ever was a footer of this shard: it has the zeros that the file was made
    /// with, or the trailer of a shard that the file was before. Anything else may be a footer that was damaged.
    pub async fn was_never_sealed(&self) -> Result<bool, ShardError> {
        let Some(start) = self.file.len_bytes().checked_sub(TRAILER_LEN_BYTES as u64) else {
            return Ok(false);
        };
        let block = self.read_at(start, TRAILER_LEN_BYTES).await?;
        Ok(match decode_trailer(&block) {
            Ok(Some(trailer)) => trailer.name != self.name,
            Ok(None) => block.iter().all(|byte| *byte == 0),
            Err(_) => false,
        })
    }

    async fn read_trailer(&self) -> Result<Option<Trailer>, ShardError> {
        let Some(start) = self.file.len_bytes().checked_sub(TRAILER_LEN_BYTES as u64) else {
            return Ok(None);
        };
        let block = self.read_at(start, TRAILER_LEN_BYTES).await?;
        let trailer = decode_trailer(&block).map_err(|reason| self.damaged_footer(reason))?;
        // A recycled file can hold the trailer of the shard that it was before.
        let is_own = |trailer: &Trailer| {
            let mut of_trailer = trailer.name;
            if planted::is(Bug::TrailerOfOtherVolumeTaken) {
                of_trailer.volume = self.name.volume;
            }
            of_trailer == self.name
        };
        Ok(trailer.filter(is_own))
    }

    /// Where data must end. A shard that was there before is asked for its footer once.
    async fn limit_bytes(&self) -> Result<u64, ShardError> {
        let known = self.limit_bytes.load(Ordering::SeqCst);
        if known != LIMIT_UNKNOWN {
            return Ok(known);
        }
        let file_len_bytes = self.file.len_bytes();
        let limit_bytes = match self.read_trailer().await {
            Ok(Some(trailer)) => file_len_bytes
                .checked_sub(u64::from(trailer.footer_len_bytes))
                .ok_or_else(|| self.damaged_footer(FormatError::Truncated))?,
            // Not sealed, or damaged: then the file's length tells, unless it was cut.
            Ok(None) => capacity_of_file(file_len_bytes).unwrap_or(0),
            Err(ShardError::DamagedFooter {
                disk,
                shard,
                reason,
            }) => capacity_of_file(file_len_bytes).ok_or(ShardError::DamagedFooter {
                disk,
                shard,
                reason,
            })?,
            Err(error) => return Err(error),
        };
        // A seal that came between knows better.
        let stored = self.limit_bytes.compare_exchange(
            LIMIT_UNKNOWN,
            limit_bytes,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        Ok(stored.map_or_else(|newer| newer, |_| limit_bytes))
    }

    /// The capacity of the file, if it still has the full size of a new shard's.
    pub(crate) fn capacity_bytes(&self) -> Option<u64> {
        capacity_of_file(self.file.len_bytes())
    }

    /// Lets no operation start any more. True if none is under way either, so that the file may be
    /// given to another shard.
    pub(crate) fn retire(&self) -> bool {
        self.removed.store(true, Ordering::SeqCst);
        self.in_flight_count.load(Ordering::SeqCst) == 0
            && !self.write_abandoned.load(Ordering::SeqCst)
    }

    /// Takes back `retire` when the removal failed.
    pub(crate) fn unretire(&self) {
        self.removed.store(false, Ordering::SeqCst);
    }

    fn enter(&self, is_write: bool) -> Result<Passage<'_>, ShardError> {
        // Counted before asking: `retire` sets first and counts after.
        self.in_flight_count.fetch_add(1, Ordering::SeqCst);
        let passage = Passage {
            shard: self,
            is_write,
        };
        if self.removed.load(Ordering::SeqCst) {
            passage.finish();
            return Err(ShardError::NotFound {
                disk: self.shared.label().to_owned(),
                shard: self.name,
            });
        }
        Ok(passage)
    }

    fn bad_range(&self, what: &'static str, offset: u64, len_bytes: u64) -> ShardError {
        ShardError::BadRange {
            disk: self.shared.label().to_owned(),
            shard: self.name,
            what,
            offset,
            len_bytes,
        }
    }

    fn bad_footer(&self, reason: FormatError) -> ShardError {
        ShardError::BadRequest {
            disk: self.shared.label().to_owned(),
            what: format!("the footer for shard {}", self.name),
            reason,
        }
    }

    fn damaged_footer(&self, reason: FormatError) -> ShardError {
        ShardError::DamagedFooter {
            disk: self.shared.label().to_owned(),
            shard: self.name,
            reason,
        }
    }

    fn sync_lost(&self) -> ShardError {
        ShardError::SyncLost {
            disk: self.shared.label().to_owned(),
            shard: self.name,
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // A removed shard's file is gone, or was given on when nothing was under way.
        let tainted = *self.write_abandoned.get_mut() && !*self.removed.get_mut();
        self.shared.forget(self.name, tainted);
    }
}

/// One operation under way.
struct Passage<'a> {
    shard: &'a Shard,
    is_write: bool,
}

impl Passage<'_> {
    fn finish(mut self) {
        self.is_write = false;
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.is_write {
            self.shard.write_abandoned.store(true, Ordering::SeqCst);
        }
        self.shard.in_flight_count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The live handles of a disk, so that there is one per name.
#[derive(Default)]
pub(crate) struct Live {
    shards: std::collections::BTreeMap<ShardName, Weak<Shard>>,
    /// Handles are gone, but a write of theirs may be under way: their files are not recycled.
    tainted: std::collections::BTreeSet<ShardName>,
}

impl Live {
    pub(crate) fn get(&self, name: ShardName) -> Option<Arc<Shard>> {
        self.shards.get(&name)?.upgrade()
    }

    pub(crate) fn insert(&mut self, shard: &Arc<Shard>) {
        self.shards.insert(shard.name, Arc::downgrade(shard));
    }

    /// The shard was removed: a new one of that name is not the old one, though some caller may still hold the old one.
    pub(crate) fn remove(&mut self, name: ShardName) {
        self.shards.remove(&name);
    }

    /// A handle was dropped; another may be there already.
    pub(crate) fn forget(&mut self, name: ShardName, tainted: bool) {
        if self
            .shards
            .get(&name)
            .is_some_and(|shard| shard.strong_count() == 0)
        {
            self.shards.remove(&name);
        }
        if tainted {
            self.tainted.insert(name);
        }
    }

    /// Forgets the taint of a file that is being removed.
    pub(crate) fn take_taint(&mut self, name: ShardName) -> bool {
        self.tainted.remove(&name)
    }
}
