//! Rewriting the journal: its entries go to the end of the log once more.
//!
//! Owns: which entries are rewritten, in which order, and when that pays. Must not know: the meaning of the bytes.
//!
//! The log names each start whose records it still holds, and the number of names is limited. One small write that is
//! not in a segment yet retains the whole log since then. So a server that ends soon after each start would use up the
//! names, and the volume could not be opened any more. This module lets the log forget the earlier starts before the
//! volume is served. It needs no more memory than the start has needed so far, and no space in segments.

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, LogPosition, Timestamp};
use cairn_formats::metadata::{Fold, JOURNAL_DATA_BYTES_MAX, JournalEntry};
use rustc_hash::FxHashMap;

use crate::batch::{Batch, JOURNAL_ENTRY_BYTES};
use crate::error::MetaError;
use crate::journal::JournalReplay;
use crate::log::CommitLog;
use crate::shared::StoreCore;
use crate::store::MetaStore;

/// Has the log forget the earlier starts: brings the states up to date and rewrites `journal`, the complete journal.
/// Returns the entries with their new positions.
///
/// Without space for the rewrite, the log stays unchanged.
pub(crate) async fn forget_earlier_starts<L: CommitLog>(
    store: &MetaStore<L>,
    journal: Vec<JournalEntry>,
) -> Result<Vec<JournalEntry>, MetaError> {
    let journal = if journal.is_empty() || !has_room(&store.shared, &journal) {
        journal
    } else {
        rewrite_journal(store, journal).await?
    };
    if let Err(error) = store.ship().await {
        tracing::warn!("shipping a checkpoint: {error}");
    }
    store.durable(store.submit(Batch::new())).await?;
    Ok(journal)
}

/// The new entries do not overlap, and hold the final contents of their file. A replay of all old and some new entries
/// gives the same file, so a crash in between neither loses nor mixes data.
async fn rewrite_journal<L: CommitLog>(
    store: &MetaStore<L>,
    journal: Vec<JournalEntry>,
) -> Result<Vec<JournalEntry>, MetaError> {
    let through = store.last_ticket().0;
    let batch_bytes_max = store.shared.settings.batch_bytes_max();
    let folds = folds(&journal, through, batch_bytes_max / 2);
    if planted::is(Bug::CarriedJournalFoldedFirst) {
        for batch in folds.clone() {
            store.durable(store.submit(batch)).await?;
        }
    }
    let mut carried = without_overlaps(journal, JOURNAL_DATA_BYTES_MAX.min(batch_bytes_max / 2));
    let mut first = 0;
    while first < carried.len() {
        let mut batch = Batch::new();
        let mut next = first;
        while let Some(entry) = carried.get(next)
            && (next == first || batch.len_bytes() + entry.data.len() <= batch_bytes_max / 2)
        {
            batch.journal(entry.clone());
            next += 1;
        }
        let ticket = store.submit(batch);
        store.durable(ticket).await?;
        for entry in carried.iter_mut().take(next).skip(first) {
            entry.position = ticket.0;
        }
        first = next;
    }
    for batch in folds {
        store.durable(store.submit(batch)).await?;
    }
    Ok(carried)
}

/// Batches of about `len_bytes_max` that fold all entries of these files up to `through`.
fn folds(journal: &[JournalEntry], through: LogPosition, len_bytes_max: usize) -> Vec<Batch> {
    let mut files: Vec<Ino> = journal.iter().map(|entry| entry.ino).collect();
    files.sort_unstable();
    files.dedup();
    let mut batches = vec![Batch::new()];
    for ino in files {
        if let Some(batch) = batches.last_mut() {
            batch.fold(Fold {
                ino,
                start: 0,
                end: u64::MAX,
                through,
            });
            if batch.len_bytes() > len_bytes_max {
                batches.push(Batch::new());
            }
        }
    }
    batches
}

/// The file attributes that result from consecutive entries.
#[derive(Clone, Copy)]
struct Attributes {
    size_bytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    mode: u32,
}

/// Equivalent entries without overlaps, each of at most `data_bytes_max`.
fn without_overlaps(journal: Vec<JournalEntry>, data_bytes_max: usize) -> Vec<JournalEntry> {
    let mut files: FxHashMap<Ino, Attributes> = FxHashMap::default();
    let mut replay = JournalReplay::default();
    for entry in journal {
        let of_entry = Attributes {
            size_bytes: entry.size_bytes,
            mtime: entry.mtime,
            ctime: entry.ctime,
            mode: entry.mode,
        };
        // Of two entries with one change time, the one with the larger size is later.
        let attributes = files.entry(entry.ino).or_insert(of_entry);
        if entry.ctime > attributes.ctime {
            *attributes = of_entry;
        } else if entry.ctime == attributes.ctime {
            attributes.size_bytes = attributes.size_bytes.max(entry.size_bytes);
        }
        replay.fold(&Fold {
            ino: entry.ino,
            start: entry.offset,
            end: entry.offset.saturating_add(entry.data.len() as u64),
            through: LogPosition(u64::MAX),
        });
        replay.insert(entry);
    }
    let mut carried = Vec::new();
    for entry in replay.finish() {
        let Some(attributes) = files.get(&entry.ino) else {
            continue;
        };
        let mut rest: Bytes = entry.data;
        let mut offset = entry.offset;
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(data_bytes_max.max(1)));
            let len_bytes = data.len() as u64;
            carried.push(JournalEntry {
                position: entry.position,
                ino: entry.ino,
                offset,
                data,
                encryption: None,
                size_bytes: attributes.size_bytes,
                mtime: attributes.mtime,
                ctime: attributes.ctime,
                mode: attributes.mode,
            });
            offset += len_bytes;
        }
    }
    carried
}

/// Whether enough disks have space for a second copy of the journal and two log files.
fn has_room(shared: &StoreCore, journal: &[JournalEntry]) -> bool {
    let lens = journal
        .iter()
        .map(|entry| (entry.data.len() + JOURNAL_ENTRY_BYTES) as u64);
    let wanted_bytes = lens.sum::<u64>() + 2 * shared.settings.log_file_bytes;
    let disks = shared.disks.healthy().into_iter();
    let with_room = disks.filter(|disk| {
        let space = shared.disks.get(*disk).disk.space();
        space.is_ok_and(|space| space.free_bytes >= wanted_bytes)
    });
    let has_room = with_room.count() >= shared.disks.copies_possible();
    if !has_room {
        tracing::warn!(
            volume = %shared.disks.volume,
            wanted_bytes,
            "no space to write anew what the metadata's log must keep, so it cannot forget the earlier starts"
        );
    }
    has_room
}
