//! Writing what the journal holds into the log once more, at its end.
//!
//! Owns: what is written anew, in which order, and when that is worth it.
//! Must not know: what the bytes are.
//!
//! The log names the starts that it still has something of, and only so many. One small write that is not in a segment
//! yet keeps all of the log since, so a server that ends soon after each of its starts would use them up, and the volume
//! could not be opened any more. Here the log lets go of the earlier starts before the volume is served, with no more
//! memory than the start needed so far, and no space in segments.

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

/// Has the log forget the earlier starts: the states are brought up to date, and `journal`, all that there is of it, is
/// written anew. Returns it with its new positions.
///
/// Where there is no space for it, the log stays as it is.
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

/// The new entries do not overlap, and have what their file ends up with, so a replay of the old ones and any of the new
/// ones comes to the same: nothing is lost, or mixed, if the process dies in between.
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

/// What forgets all entries of the files up to `through`, in batches of about `len_bytes_max`.
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

/// What the entries of a file, one after the other, leave of its attributes.
#[derive(Clone, Copy)]
struct Attributes {
    size_bytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    mode: u32,
}

/// Entries that come to the same as these ones, without overlaps, of at most `data_bytes_max` each.
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
        // With one change time the larger size is the later.
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

/// Whether enough disks have space for all of it once more, and two log files.
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
