//! Log recovery when a node takes a volume over.
//!
//! Owns: fencing the open ensemble, which records of which disk count, when recovery waits instead of guessing. Must
//! not know: the contents of records, where the log goes on.
//!
//! One member of the open ensemble has to answer: each member has all acknowledged records. Records that only some
//! members have were never acknowledged, and may stay or go. Of a sealed range recovery must find all positions, on any
//! disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, LogPosition};
use cairn_formats::metadata::log::{
    BLOCK_BYTES, FileHeader, FileUse, FoundRecord, RECORD_HEAD_BYTES, RecordHead, Term,
    find_records, record_len_bytes,
};
use cairn_shard::{ShardError, ShardErrorKind, ShardService};
use futures_util::future::{Either, join_all, select};

use super::list::AgreedList;
use super::writer::{self, Stopped};
use super::{Ensemble, Seat};
use crate::error::MetaError;
use crate::log::{FoundLog, History, LogFuture, LogRecord, LogWriter};
use crate::settings::MetaSettings;
use crate::tasks::Tasks;

/// The wait for a disk that was silent before the request is divided by this.
const SILENT_PATIENCE_DIVISOR: u32 = 6;
/// Bytes read from a disk at a time.
const READ_BYTES: usize = 4 << 20;

/// A log as found on the disks.
pub(crate) struct FoundEnsembles {
    pub(super) env: Env,
    pub(super) tasks: Tasks,
    pub(super) settings: MetaSettings,
    pub(super) seat: Seat,
    pub(super) list: Arc<AgreedList>,
    pub(super) history: History,
    /// The parts that the history was read from, all sealed where it ends, with the disks that have the whole part.
    /// They can stay where disks have no room for a copy. Empty if the history has another source.
    pub(super) parts: Vec<Ensemble>,
    pub(super) stopped: Stopped,
}

/// The part of an ensemble that one disk has.
struct Copy {
    disk: DiskId,
    header: FileHeader,
    records: Vec<LogRecord>,
    /// The highest `retained_from` in its records.
    retained_from: LogPosition,
}

/// Reasons for a missing copy.
enum Absent {
    /// The disk did not answer, or answered with an error. A retry may succeed.
    Unread(String),
    /// The file does not exist, or does not belong to this ensemble.
    Without(String),
    /// The volume has another owner.
    Fenced(Epoch),
}

impl FoundEnsembles {
    /// Finds the log of a volume that this owner has taken. Fails with [`MetaError::LogUnreachable`] while disks are
    /// missing that may be the only ones with some record.
    pub async fn find(
        env: &Env,
        tasks: &Tasks,
        settings: &MetaSettings,
        seat: Seat,
        list: Arc<AgreedList>,
    ) -> Result<Self, MetaError> {
        let (history, parts) = match seat.list.ensembles.last() {
            Some(open) => Finder { env, seat: &seat }.history(open).await?,
            None => {
                let history = History {
                    epoch_max: Epoch(seat.epoch.0.saturating_sub(1)),
                    ..History::empty()
                };
                (history, Vec::new())
            }
        };
        Ok(Self {
            env: env.clone(),
            tasks: tasks.clone(),
            settings: settings.clone(),
            seat,
            list,
            history,
            parts,
            stopped: Stopped::default(),
        })
    }

    /// Continues from a log on this server's own disks: the volume had no other log so far.
    pub fn continue_from(&mut self, mirrored: &History) -> Result<(), MetaError> {
        let before = Epoch(self.seat.epoch.0.saturating_sub(1));
        if mirrored.epoch_max > before {
            return Err(MetaError::Fenced {
                volume: self.seat.volume,
                epoch: self.seat.epoch,
                promised: mirrored.epoch_max,
            });
        }
        self.history = History {
            epoch_max: before,
            ..mirrored.clone()
        };
        self.parts.clear();
        Ok(())
    }

    pub fn stopped(&self) -> Stopped {
        self.stopped.clone()
    }
}

impl FoundLog for FoundEnsembles {
    fn history(&self) -> &History {
        &self.history
    }

    fn begin(self: Box<Self>, term: Term) -> LogFuture<'static, (Box<dyn LogWriter>, History)> {
        Box::pin(async move {
            let (writer, history) = writer::begin(*self, term).await?;
            Ok((Box::new(writer) as Box<dyn LogWriter>, history))
        })
    }
}

struct Finder<'a> {
    env: &'a Env,
    seat: &'a Seat,
}

impl Finder<'_> {
    async fn history(&self, open: &Ensemble) -> Result<(History, Vec<Ensemble>), MetaError> {
        let volume = self.seat.volume;
        let (copies, _) = self.copies(open, true).await?;
        let first = copies.first();
        let mut terms = first.map_or_else(Vec::new, |copy| copy.header.history.clone());
        let told = copies.iter().map(|copy| copy.retained_from);
        let mut retained_from = told.max().unwrap_or(LogPosition(1));
        let mut found = union(&copies);
        let end = chain(open.from, &found).ok_or(MetaError::LogDamaged {
            volume,
            position: open.from,
        })?;
        // Only disks that have promised count: requests of an earlier owner may still arrive at the others.
        let mut parts = vec![Ensemble {
            to: Some(end),
            disks: holders(&copies, open.from, end),
            ..open.clone()
        }];
        for ensemble in self.seat.list.ensembles.iter().rev().skip(1) {
            let Some(to) = ensemble.to.filter(|to| *to >= retained_from) else {
                continue;
            };
            let (copies, unread) = self.copies(ensemble, false).await?;
            let told = copies.iter().map(|copy| copy.retained_from);
            retained_from = told.fold(retained_from, LogPosition::max);
            let sealed = union(&copies);
            let mut disks = holders(&copies, ensemble.from, to);
            // A disk named in the list has the whole part, although it does not answer now.
            disks.extend(unread);
            parts.push(Ensemble {
                disks,
                ..ensemble.clone()
            });
            let within = |record: &LogRecord| record.first >= ensemble.from && record.last <= to;
            found.extend(sealed.into_iter().filter(|(_, record)| within(record)));
        }
        let oldest = self.seat.list.ensembles.first().map(|oldest| oldest.from);
        retained_from = retained_from.max(oldest.unwrap_or(LogPosition(1)));
        found.retain(|_, record| record.last >= retained_from);
        let mut records = Vec::with_capacity(found.len());
        let mut next = retained_from;
        for (first, record) in found {
            let is_first = records.is_empty() && first <= retained_from;
            if first != next && !is_first {
                return Err(self.hole(next));
            }
            next = LogPosition(record.last.0 + 1);
            records.push(record);
        }
        if next.0 != end.0 + 1 {
            return Err(self.hole(next));
        }
        let is_needed = |index: usize, terms: &[Term]| {
            let later = terms.get(index + 1);
            later.is_none_or(|later| later.start > retained_from)
        };
        let oldest = (0..terms.len()).find(|index| is_needed(*index, &terms));
        terms.drain(..oldest.unwrap_or(0));
        parts.retain(|part| part.to >= Some(part.from.max(retained_from)));
        parts.reverse();
        let history = History {
            terms,
            epoch_max: Epoch(self.seat.epoch.0.saturating_sub(1)),
            retained_from,
            end,
            records,
        };
        Ok((history, parts))
    }

    fn hole(&self, position: LogPosition) -> MetaError {
        MetaError::LogDamaged {
            volume: self.seat.volume,
            position,
        }
    }

    /// The reachable copies of an ensemble, and the disks that do not answer or answer with an error. For the open
    /// ensemble, only disks count that have promised to refuse earlier owners. Fails if no copy is reachable, or if a
    /// missing disk may have records that the others lack.
    async fn copies(
        &self,
        ensemble: &Ensemble,
        is_open: bool,
    ) -> Result<(Vec<Copy>, Vec<DiskId>), MetaError> {
        let asked = ensemble.disks.iter();
        let asked = asked.map(|disk| self.copy(*disk, ensemble, is_open));
        let mut copies = Vec::new();
        let (mut absent, mut unread) = (Vec::new(), Vec::new());
        for (disk, result) in ensemble.disks.iter().zip(join_all(asked).await) {
            match result {
                Ok(copy) => copies.push(copy),
                Err(Absent::Fenced(promised)) => {
                    return Err(MetaError::Fenced {
                        volume: self.seat.volume,
                        epoch: self.seat.epoch,
                        promised,
                    });
                }
                Err(Absent::Unread(why)) => {
                    absent.push(format!("{disk} ({why})"));
                    unread.push(*disk);
                }
                Err(Absent::Without(why)) => {
                    tracing::warn!(volume = %self.seat.volume, ensemble = ensemble.number, %disk, why, "a disk lacks a part of the log that it should have");
                    absent.push(format!("{disk} ({why})"));
                }
            }
        }
        let is_whole = match ensemble.to {
            None => !copies.is_empty() || planted::is(Bug::TakeoverWithoutAnyMember),
            Some(to) => covers(&copies, ensemble.from, to),
        };
        match is_whole {
            true => Ok((copies, unread)),
            false => Err(MetaError::LogUnreachable {
                volume: self.seat.volume,
                position: ensemble.from,
                disks: absent.join(", "),
            }),
        }
    }

    async fn copy(&self, id: DiskId, ensemble: &Ensemble, is_open: bool) -> Result<Copy, Absent> {
        let Some(disk) = self.seat.disks.disk(id) else {
            return Err(Absent::Unread("it is not there".to_owned()));
        };
        let reading = async {
            if is_open && !planted::is(Bug::TakeoverDoesNotFence) {
                let promise = disk.clone().fence(self.seat.volume, self.seat.epoch);
                promise.await.map_err(absent)?;
            }
            self.read(id, &disk, ensemble).await
        };
        // A disk that has been silent for a while is not expected to answer.
        let patience = match disk.is_silent() {
            true => self.seat.patience / SILENT_PATIENCE_DIVISOR,
            false => self.seat.patience,
        };
        match select(Box::pin(reading), self.env.clock.sleep(patience)).await {
            Either::Left((read, _)) => read,
            Either::Right(_) => Err(Absent::Unread("it does not answer".to_owned())),
        }
    }

    /// Reads a file piece by piece. Only its records stay in memory: most of a file is usually empty, and a node that
    /// takes over many volumes reads several copies of each.
    async fn read(
        &self,
        id: DiskId,
        disk: &Arc<dyn ShardService>,
        ensemble: &Ensemble,
    ) -> Result<Copy, Absent> {
        let name = self.seat.name(ensemble.number);
        let stat = disk.stat(name).await.map_err(absent)?;
        let len_bytes = writer::capacity_of(stat.file_len_bytes);
        let mut offset = 0;
        let mut found: Option<(FileHeader, Records)> = None;
        while offset < len_bytes {
            let piece = READ_BYTES.min(usize::try_from(len_bytes - offset).unwrap_or(READ_BYTES));
            let read = disk.read(name, offset, piece).await.map_err(absent)?;
            if read.is_empty() {
                return Err(Absent::Unread("it gives nothing".to_owned()));
            }
            offset += read.len() as u64;
            match &mut found {
                Some((_, records)) => records.add(&read, offset >= len_bytes),
                None => {
                    let header = self.header(ensemble, &read)?;
                    let mut records = Records::new(header.file_use);
                    records.add(&read[BLOCK_BYTES..], offset >= len_bytes);
                    found = Some((header, records));
                }
            }
        }
        let too_short = || Absent::Without("its file is too short".to_owned());
        let (header, records) = found.ok_or_else(too_short)?;
        Ok(Copy {
            disk: id,
            retained_from: header.retained_from.max(records.retained_from),
            records: records.found,
            header,
        })
    }

    /// The header at the beginning of a file, if it belongs to this ensemble.
    fn header(&self, ensemble: &Ensemble, bytes: &[u8]) -> Result<FileHeader, Absent> {
        let bad = |why: &str| Absent::Without(why.to_owned());
        let block = bytes.get(..BLOCK_BYTES);
        let block = block.ok_or_else(|| bad("its file is too short"))?;
        let header = FileHeader::decode(block).map_err(|error| bad(&error.to_string()))?;
        let header = header.ok_or_else(|| bad("the header of its file is damaged"))?;
        match header.volume == self.seat.volume && header.sequence == ensemble.number {
            true => Ok(header),
            false => Err(bad("its file is of another part")),
        }
    }
}

/// The records of a file that is read piece by piece. They equal those that [`find_records`] finds in the whole file.
struct Records {
    file_use: FileUse,
    found: Vec<LogRecord>,
    /// The highest `retained_from` in the records.
    retained_from: LogPosition,
    /// Bytes from the first block that may begin a record whose end was not read yet.
    rest: BytesMut,
}

impl Records {
    fn new(file_use: FileUse) -> Self {
        Self {
            file_use,
            found: Vec::new(),
            retained_from: LogPosition(0),
            rest: BytesMut::new(),
        }
    }

    /// Adds the next piece of the file. After the last piece, incomplete records are dropped.
    fn add(&mut self, piece: &[u8], is_last: bool) {
        self.rest.extend_from_slice(piece);
        let whole = find_records(&self.rest, self.file_use);
        let end = match is_last {
            true => self.rest.len(),
            false => unfinished(&self.rest, self.file_use, &whole),
        };
        for record in whole {
            if record.payload.start >= end {
                break;
            }
            self.retained_from = self.retained_from.max(record.head.retained_from);
            self.found.push(LogRecord {
                first: record.head.first,
                last: record.head.last,
                epoch: record.head.epoch,
                term: record.head.term,
                // A copy, so that the blocks around it are freed.
                payload: Bytes::copy_from_slice(&self.rest[record.payload]),
            });
        }
        self.rest = BytesMut::from(&self.rest[end..]);
    }
}

/// Offset of the first record that ends beyond these bytes, given the complete records `whole`; the end of the last
/// block, if there is no such record.
fn unfinished(bytes: &[u8], file_use: FileUse, whole: &[FoundRecord]) -> usize {
    let is_unfinished = |offset: usize| {
        let rest = &bytes[offset..];
        let head = RecordHead::decode(rest, file_use);
        head.is_some_and(|head| head.payload_len_bytes as usize > rest.len() - RECORD_HEAD_BYTES)
    };
    let mut offset = 0;
    let ends = whole.iter().map(|record| {
        let start = record.payload.start - RECORD_HEAD_BYTES;
        (start, start + record_len_bytes(record.payload.len()))
    });
    for (start, end) in ends.chain([(bytes.len(), bytes.len())]) {
        let mut between = (offset..start).step_by(BLOCK_BYTES);
        if let Some(found) = between.find(|offset| is_unfinished(*offset)) {
            return found;
        }
        offset = end;
    }
    // The next piece begins at a block boundary.
    bytes.len() / BLOCK_BYTES * BLOCK_BYTES
}

fn absent(error: ShardError) -> Absent {
    match (&error, error.kind()) {
        (ShardError::Fenced { promised, .. }, _) => Absent::Fenced(*promised),
        (_, ShardErrorKind::NotFound) => Absent::Without(error.to_string()),
        _ => Absent::Unread(error.to_string()),
    }
}

/// A sealed range that some disk has complete, with the header of its file; `None` if no such copy can be read now.
pub(super) async fn read_sealed(
    env: &Env,
    seat: &Seat,
    ensemble: &Ensemble,
) -> Option<(FileHeader, Vec<LogRecord>)> {
    let to = ensemble.to?;
    let finder = Finder { env, seat };
    for disk in &ensemble.disks {
        let Ok(copy) = finder.copy(*disk, ensemble, false).await else {
            continue;
        };
        if !covers(std::slice::from_ref(&copy), ensemble.from, to) {
            continue;
        }
        let Copy {
            header,
            mut records,
            ..
        } = copy;
        records.retain(|record| record.first >= ensemble.from && record.last <= to);
        return Some((header, records));
    }
    None
}

/// The records of all copies together, by first position.
fn union(copies: &[Copy]) -> BTreeMap<LogPosition, LogRecord> {
    let records = copies.iter().flat_map(|copy| &copy.records);
    records
        .map(|record| (record.first, record.clone()))
        .collect()
}

/// The disks whose copies are complete for a range by themselves.
fn holders(copies: &[Copy], from: LogPosition, to: LogPosition) -> Vec<DiskId> {
    let whole = copies
        .iter()
        .filter(|copy| covers(std::slice::from_ref(*copy), from, to));
    whole.map(|copy| copy.disk).collect()
}

/// The last position, if the records follow each other from `from` without a gap.
fn chain(from: LogPosition, found: &BTreeMap<LogPosition, LogRecord>) -> Option<LogPosition> {
    let mut next = from;
    for (first, record) in found.iter() {
        if *first != next {
            return None;
        }
        next = LogPosition(record.last.0 + 1);
    }
    Some(LogPosition(next.0.saturating_sub(1)))
}

/// Whether the copies together have all positions of a range.
fn covers(copies: &[Copy], from: LogPosition, to: LogPosition) -> bool {
    let records = copies.iter().flat_map(|copy| &copy.records);
    let found: BTreeMap<LogPosition, LogPosition> =
        records.map(|record| (record.first, record.last)).collect();
    let mut next = from;
    for (first, last) in found {
        if first == next {
            next = LogPosition(last.0 + 1);
        }
    }
    next > to
}

#[cfg(test)]
mod tests {
    use cairn_formats::metadata::log::RecordBuf;

    use super::*;

    const USE: FileUse = FileUse(7);

    fn record(first: u64, payload_len_bytes: usize) -> Vec<u8> {
        let payload: Vec<u8> = (0..payload_len_bytes).map(|at| (at % 251) as u8).collect();
        let positions = (LogPosition(first), LogPosition(first));
        let mut record = RecordBuf::copy_of(&payload, positions, Epoch(1), 9);
        record.seal(USE, LogPosition(first / 2));
        record.bytes.to_vec()
    }

    /// First positions and payloads of the records found, reading this number of blocks at a time.
    fn in_pieces(bytes: &[u8], blocks: usize) -> (Vec<(u64, Vec<u8>)>, usize) {
        let mut records = Records::new(USE);
        let mut most = 0;
        let mut pieces = bytes.chunks(blocks * BLOCK_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            records.add(piece, pieces.peek().is_none());
            most = most.max(records.rest.len());
        }
        let found = records.found.into_iter();
        (
            found.map(|it| (it.first.0, it.payload.to_vec())).collect(),
            most,
        )
    }

    #[test]
    fn pieces_show_the_records_that_the_whole_file_has() {
        let mut bytes = Vec::new();
        for (first, len) in [
            (1, 100),
            (2, 5 * BLOCK_BYTES),
            (3, 0),
            (4, 20 * BLOCK_BYTES),
        ] {
            bytes.extend(record(first, len));
        }
        // A record with a corrupt payload, one with a corrupt head, a complete one, and a torn one at the end of the
        // file.
        let damaged = bytes.len();
        bytes.extend(record(5, 9 * BLOCK_BYTES));
        bytes[damaged + 2 * BLOCK_BYTES] ^= 1;
        let damaged = bytes.len();
        bytes.extend(record(6, 3 * BLOCK_BYTES));
        bytes[damaged + 9] ^= 1;
        bytes.extend(record(7, 2 * BLOCK_BYTES));
        bytes.extend(vec![0; 40 * BLOCK_BYTES]);
        bytes.extend(&record(8, 30 * BLOCK_BYTES)[..8 * BLOCK_BYTES]);
        let want: Vec<(u64, Vec<u8>)> = find_records(&bytes, USE)
            .into_iter()
            .map(|it| (it.head.first.0, bytes[it.payload].to_vec()))
            .collect();
        let firsts: Vec<u64> = want.iter().map(|(first, _)| *first).collect();
        assert_eq!(firsts, [1, 2, 3, 4, 7]);
        for blocks in [1, 2, 3, 7, 16, 100, 1000] {
            let (found, most) = in_pieces(&bytes, blocks);
            assert!(found == want, "in pieces of {blocks} blocks");
            // Only the incomplete record stays in memory.
            assert!(
                most <= 31 * BLOCK_BYTES,
                "{most} bytes of the file are kept"
            );
        }
    }
}
