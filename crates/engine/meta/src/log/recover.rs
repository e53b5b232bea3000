//! Recovery of a volume's log from the disks that are present.
//!
//! Owns: which files and records count, in which order, and when to refuse. Must not know: the contents of records, the
//! state beyond its position.
//!
//! Disks may be stale or torn, or may have been used apart from each other. Each file names the ancestors of its term,
//! so the terms found form a tree. One branch of it is the history:
//!
//! - a term that descends from another is newer;
//! - of two terms on separate branches, the one counts that may have acknowledged something: one of its records is on
//!   all of its disks that are present. If both may have, recovery refuses.
//!
//! A term's records count from its start to the start of its successor. Positions must follow each other without a gap,
//! from the last known `retained_from` to the last complete record. Records are written one after the other, so a gap
//! before a complete record is corruption.

mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::{DiskError, OpenMode};
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, LogPosition};
use cairn_formats::metadata::log::{
    BLOCK_BYTES, FILE_LEN_BYTES_MAX, FileHeader, FileUse, FoundRecord, Term, find_records,
};
use futures_util::future::join_all;
use parking_lot::Mutex;

use self::unread::UnreadPart;
use super::files::{file_name, file_sequence};
use super::headers::{Members, NewestHeader};
use super::mirror::{RecordRun, Retained};
use super::read::{READ_ERROR_COUNT_MAX, read_body};
use super::{History, LogRecord, is_in_history};
use crate::disks::DiskSet;
use crate::error::MetaError;

const _: () = assert!(crate::settings::LOG_FILE_BYTES_MAX <= FILE_LEN_BYTES_MAX / 2);

/// Names one record; all copies of a record have one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RecordId {
    first: LogPosition,
    last: LogPosition,
    epoch: Epoch,
    term: u64,
    payload_crc: u32,
}

struct Copies {
    payload: Bytes,
    retained_from: LogPosition,
    /// The disks that have the record, and the sets of its files.
    holders: BTreeSet<usize>,
    sets: Vec<Arc<Vec<DiskId>>>,
}

struct ScannedFile {
    disk: usize,
    sequence: u64,
    /// `None`: not the header of this file; its contents mean nothing.
    header: Option<Arc<FileHeader>>,
    records: Vec<RecordId>,
    unread: Option<UnreadPart>,
}

/// All log files found on the disks.
pub(crate) struct Scan {
    disks: DiskSet,
    files: Vec<ScannedFile>,
    records: BTreeMap<RecordId, Copies>,
    /// The newest header of each term.
    terms: BTreeMap<(Epoch, u64), Arc<FileHeader>>,
    /// The highest sequence of all files, also on unreadable disks.
    sequence_max: u64,
}

/// The history that the disks hold.
pub(crate) struct RecoveredLog {
    pub history: History,
    /// The disks with a complete copy, for each record of the history.
    pub holders: Vec<BTreeSet<usize>>,
    /// The members that the last term names.
    pub members: Members,
    pub sequence_max: u64,
    /// Files that hold needed records.
    pub retained: Vec<Retained>,
    /// Files without needed records: disk and sequence number.
    pub unused: Vec<(usize, u64)>,
    /// Files with unreadable parts, which must not get new records.
    pub unfit: Vec<(usize, u64)>,
    /// The newest header of each disk. A file is not in `unused` if older headers on its disk say less.
    pub headers: Vec<(usize, NewestHeader)>,
}

/// The records of a log in order, from the needed start on.
struct Followed {
    records: Vec<LogRecord>,
    /// The disks that have each record.
    holders: Vec<BTreeSet<usize>>,
    /// The last position.
    end: LogPosition,
}

impl RecoveredLog {
    /// Consecutive records with the disks that have all of them.
    pub fn parts(&self) -> Vec<RecordRun> {
        let mut parts: Vec<RecordRun> = Vec::new();
        for (record, holders) in self.history.records.iter().zip(&self.holders) {
            match parts.last_mut() {
                Some(part) if part.holders.iter().eq(holders) => part.last = record.last,
                _ => parts.push(RecordRun {
                    first: record.first,
                    last: record.last,
                    holders: holders.iter().copied().collect(),
                }),
            }
        }
        parts
    }
}

/// Reads all log files of all disks. A disk that fails is faulted and counts as missing.
///
/// Memory holds the log once, and one file of each disk: second copies of records are dropped file by file.
pub(crate) async fn scan(disks: &DiskSet) -> Result<Scan, MetaError> {
    let scan = Mutex::new(Scan {
        disks: disks.clone(),
        files: Vec::new(),
        records: BTreeMap::new(),
        terms: BTreeMap::new(),
        sequence_max: 0,
    });
    let per_disk = join_all((0..disks.len()).map(|disk| scan_disk(disks, disk, &scan))).await;
    let mut scan = scan.into_inner();
    for (disk, result) in per_disk.into_iter().enumerate() {
        match result {
            Ok(()) => {}
            Err(MetaError::Disk(error)) => {
                disks.mark_failed(disk, &error);
                scan.forget(disk);
            }
            Err(error) => return Err(error),
        }
    }
    scan.find_terms();
    Ok(scan)
}

/// A record with its payload and the log start that it names.
type Content = (RecordId, Bytes, LogPosition);

async fn scan_disk(disks: &DiskSet, index: usize, scan: &Mutex<Scan>) -> Result<(), MetaError> {
    let disk = &disks.get(index).disk.clone();
    let folder = disks.folder();
    let mut sequences: Vec<u64> = disk
        .list(&folder)
        .await?
        .iter()
        .filter_map(|name| file_sequence(name))
        .collect();
    sequences.sort_unstable();
    scan.lock().note_sequence(sequences.last().copied());
    let mut errors_left = READ_ERROR_COUNT_MAX;
    for sequence in sequences {
        let name = file_name(&folder, sequence);
        let file = match disk.open(&name, OpenMode::Existing).await {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let len_bytes = file.len_bytes().min(FILE_LEN_BYTES_MAX);
        let mut scanned = ScannedFile {
            disk: index,
            sequence,
            header: None,
            records: Vec::new(),
            unread: None,
        };
        let mut contents = Vec::new();
        if len_bytes >= BLOCK_BYTES as u64 {
            let block = file.read_at(0, BLOCK_BYTES).await?;
            let header = FileHeader::decode(&block)?.filter(|header| {
                header.sequence == sequence
                    && header.volume == disks.volume
                    && header.set.contains(&disks.get(index).id)
            });
            if let Some(header) = header {
                let body = read_body(&*file, len_bytes, &mut errors_left).await?;
                let found = find_records(&body.bytes, header.file_use);
                if let Some(unread) = &body.unread {
                    let (disk, blocks) = (disk.label(), unread.blocks.len());
                    tracing::error!(disk, name, blocks, "some of the log: {}", unread.error);
                }
                scanned.unread = UnreadPart::of(&body, &found, &header);
                contents = contents_of(&body.bytes, found);
                scanned.records = contents.iter().map(|(id, _, _)| *id).collect();
                scanned.header = Some(Arc::new(header));
            }
        }
        scan.lock().add(scanned, contents);
    }
    Ok(())
}

fn contents_of(body: &Bytes, found: Vec<FoundRecord>) -> Vec<Content> {
    let content = |found: FoundRecord| {
        let id = RecordId {
            first: found.head.first,
            last: found.head.last,
            epoch: found.head.epoch,
            term: found.head.term,
            payload_crc: found.head.payload_crc,
        };
        (id, body.slice(found.payload), found.head.retained_from)
    };
    found.into_iter().map(content).collect()
}

impl Scan {
    /// Whether the disks hold no log of this volume.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn sequence_max(&self) -> u64 {
        self.sequence_max
    }

    fn note_sequence(&mut self, sequence: Option<u64>) {
        self.sequence_max = self.sequence_max.max(sequence.unwrap_or(0));
    }

    /// Files whose contents mean nothing, if there is no history: disk and sequence number.
    pub fn unused_files(&self) -> impl Iterator<Item = (usize, u64)> {
        self.files.iter().map(|file| (file.disk, file.sequence))
    }

    /// All files: disk and sequence number.
    pub fn all_files(&self) -> impl Iterator<Item = (usize, u64)> {
        self.unused_files()
    }

    fn add(&mut self, file: ScannedFile, contents: Vec<Content>) {
        self.note_sequence(Some(file.sequence));
        let Some(header) = file.header.clone() else {
            self.files.push(file);
            return;
        };
        let set = Arc::new(header.set.clone());
        for (id, payload, retained_from) in contents {
            let copies = self.records.entry(id).or_insert_with(|| Copies {
                payload,
                retained_from,
                holders: BTreeSet::new(),
                sets: Vec::new(),
            });
            copies.retained_from = copies.retained_from.max(retained_from);
            copies.holders.insert(file.disk);
            copies.sets.push(set.clone());
        }
        self.files.push(file);
    }

    /// Drops the records of a disk that could not be read to its end.
    fn forget(&mut self, disk: usize) {
        self.files.retain(|file| file.disk != disk);
        self.records.retain(|_, copies| {
            copies.holders.remove(&disk);
            !copies.holders.is_empty()
        });
    }

    fn find_terms(&mut self) {
        // The last header on each disk counts. If it repeats an older one, it tells other disks no more than that one.
        let mut last: BTreeMap<(usize, Epoch, u64), &Arc<FileHeader>> = BTreeMap::new();
        for file in &self.files {
            let Some(header) = &file.header else {
                continue;
            };
            let Some(term) = header.term() else {
                continue;
            };
            let known = last.entry((file.disk, term.epoch, term.nonce));
            let known = known.or_insert(header);
            if known.sequence < header.sequence {
                *known = header;
            }
        }
        for ((_, epoch, nonce), header) in last {
            let known = self.terms.entry((epoch, nonce));
            let known = known.or_insert_with(|| header.clone());
            if known.speaks_as < header.speaks_as {
                *known = header.clone();
            }
        }
    }

    /// Finds the history. Refuses rather than dropping records that may have been acknowledged.
    pub fn recover(&self) -> Result<RecoveredLog, MetaError> {
        let volume = self.disks.volume;
        let mut terms = self.terms.values();
        let Some(mut head) = terms.next() else {
            return Err(MetaError::NotFound {
                volume,
                disk_count: self.disks.len(),
            });
        };
        for other in terms {
            head = self.newer(head, other)?;
        }
        self.check_missing(head)?;
        let mut history = head.history.clone();
        let belongs =
            |id: &&RecordId| is_in_history(&history, id.epoch, id.term, id.first, id.last);
        let valid: Vec<&RecordId> = self.records.keys().filter(belongs).collect();
        let retained_from = valid
            .iter()
            .filter_map(|id| self.records.get(id))
            .map(|copies| copies.retained_from)
            .fold(head.retained_from, LogPosition::max);
        let followed = self.follow(&valid, retained_from);
        let Followed {
            records,
            holders,
            end,
        } = followed.map_err(|error| self.blame(error, &history))?;
        let start = head.term().map_or(LogPosition(1), |term| term.start);
        if end.0 + 1 < start.0 {
            let position = LogPosition(end.0 + 1);
            let damaged = MetaError::LogDamaged { volume, position };
            return Err(self.blame(damaged, &history));
        }
        self.check_unread(head, &valid)?;
        let (retained, mut unused) = self.sort_files(&valid, retained_from);
        let headers = self.newest_headers(&history, &mut unused);
        // A term is needed while a position before its successor's start is.
        let needed_from = history
            .iter()
            .rposition(|term| term.start <= retained_from)
            .unwrap_or(0);
        history.drain(..needed_from);
        Ok(RecoveredLog {
            history: History {
                terms: history,
                epoch_max: self
                    .terms
                    .keys()
                    .map(|(epoch, _)| *epoch)
                    .max()
                    .unwrap_or_default(),
                retained_from,
                end,
                records,
            },
            holders,
            members: Members::of(head),
            sequence_max: self.sequence_max(),
            retained,
            unused,
            unfit: self.unfit(),
            headers,
        })
    }

    /// Finds the newest header of each disk. If an older header on the disk would allow more disks to start, the file
    /// with the newest is taken out of `unused`.
    fn newest_headers(
        &self,
        history: &[Term],
        unused: &mut Vec<(usize, u64)>,
    ) -> Vec<(usize, NewestHeader)> {
        let mut found = Vec::new();
        for disk in 0..self.disks.len() {
            let mut headers: Vec<&FileHeader> = self
                .files
                .iter()
                .filter(|file| file.disk == disk)
                .filter_map(|file| file.header.as_deref())
                .collect();
            headers.sort_by_key(|header| {
                let term = header.term();
                let epoch = term.map(|term| term.epoch);
                let counts = term.is_some_and(|term| history.contains(term));
                (epoch, counts, header.sequence)
            });
            let Some(newest) = headers.last() else {
                if !self.disks.is_usable(disk) {
                    found.push((disk, NewestHeader::unknown()));
                }
                continue;
            };
            let (members, speaks_as) = (Members::of(newest), newest.speaks_as);
            let is_looser = |header: &&FileHeader| Members::of(header).is_looser_than(&members);
            let looser = headers.iter().rposition(is_looser);
            // Any later header that says less will do; the best is one whose file stays anyway.
            let mut as_good = headers.iter().skip(looser.map_or(0, |index| index + 1));
            let stays = as_good.rfind(|header| {
                Members::of(header) == members && !unused.contains(&(disk, header.sequence))
            });
            let is_all = looser.is_some() && stays.is_none();
            let sequence = stays.unwrap_or(newest).sequence;
            if is_all {
                unused.retain(|file| *file != (disk, sequence));
            }
            let newest = NewestHeader {
                sequence,
                speaks_as,
                members,
                is_all,
            };
            found.push((disk, newest));
        }
        found
    }

    /// Orders the valid records, without gaps from `retained_from` on.
    fn follow(
        &self,
        valid: &[&RecordId],
        retained_from: LogPosition,
    ) -> Result<Followed, MetaError> {
        let mut records = Vec::new();
        let mut holders = Vec::new();
        let mut expected = retained_from;
        for id in valid {
            if id.last < expected {
                continue;
            }
            // The first record may begin before the needed start of the log.
            let follows = id.first == expected
                || (records.is_empty() && id.first <= expected)
                || (planted::is(Bug::LogGapOfOneAccepted) && id.first.0 == expected.0 + 1);
            if !follows {
                return Err(MetaError::LogDamaged {
                    volume: self.disks.volume,
                    position: expected,
                });
            }
            let Some(copies) = self.records.get(id) else {
                continue;
            };
            expected = LogPosition(id.last.0.saturating_add(1));
            records.push(LogRecord {
                first: id.first,
                last: id.last,
                epoch: id.epoch,
                term: id.term,
                payload: copies.payload.clone(),
            });
            holders.push(copies.holders.clone());
        }
        Ok(Followed {
            records,
            holders,
            end: LogPosition(expected.0.saturating_sub(1)),
        })
    }

    /// Separates files with needed records from the others.
    fn sort_files(
        &self,
        valid: &[&RecordId],
        retained_from: LogPosition,
    ) -> (Vec<Retained>, Vec<(usize, u64)>) {
        let mut retained: BTreeMap<(u64, FileUse), Retained> = BTreeMap::new();
        let mut unused = Vec::new();
        for file in &self.files {
            let needed = file
                .records
                .iter()
                .filter(|id| id.last >= retained_from && valid.binary_search(id).is_ok());
            let last = needed.map(|id| id.last).max();
            match (last, &file.header) {
                (Some(last), Some(header)) => {
                    let entry = retained
                        .entry((file.sequence, header.file_use))
                        .or_insert_with(|| Retained {
                            sequence: file.sequence,
                            last,
                            disks: Vec::new(),
                            dropped: Vec::new(),
                            len_bytes: header.file_len_bytes,
                            copied: Vec::new(),
                            is_old: true,
                            is_fit: true,
                        });
                    entry.last = entry.last.max(last);
                    entry.disks.push(file.disk);
                    entry.is_fit &= file.unread.is_none();
                }
                _ => unused.push((file.disk, file.sequence)),
            }
        }
        (retained.into_values().collect(), unused)
    }

    /// Refuses if all copies of a newer record may be on the missing disks.
    fn check_missing(&self, head: &FileHeader) -> Result<(), MetaError> {
        let is_missing = |id: &&DiskId| {
            self.disks
                .index_of(**id)
                .is_none_or(|index| !self.disks.is_usable(index))
        };
        let members = head.members.len();
        let missing = head.members.iter().filter(is_missing).count();
        let copies = Members::of(head).copies();
        if missing >= copies {
            return Err(MetaError::TooManyMissing {
                volume: self.disks.volume,
                missing,
                members,
                copies,
            });
        }
        Ok(())
    }

    /// The one of two terms that the history passes through last.
    fn newer<'a>(
        &self,
        a: &'a Arc<FileHeader>,
        b: &'a Arc<FileHeader>,
    ) -> Result<&'a Arc<FileHeader>, MetaError> {
        let (Some(a_term), Some(b_term)) = (a.term(), b.term()) else {
            // Headers without a term are not decoded.
            return Ok(a);
        };
        let has = |history: &[Term], term: &Term| {
            let same = |other: &Term| other.nonce == term.nonce && other.epoch == term.epoch;
            history.iter().any(same)
        };
        let is_before_all = |term: &Term, history: &[Term]| {
            history
                .first()
                .is_some_and(|oldest| term.epoch < oldest.epoch)
        };
        if has(&b.history, a_term) || is_before_all(a_term, &b.history) {
            return Ok(b);
        }
        if has(&a.history, b_term) || is_before_all(b_term, &a.history) {
            return Ok(a);
        }
        let common = a.history.iter().rev().find(|term| has(&b.history, term));
        let fork = common.map_or(Epoch(0), |term| term.epoch);
        let (a_has, a_acknowledged) = self.branch(&a.history, fork);
        let (b_has, b_acknowledged) = self.branch(&b.history, fork);
        let takes_a = match (a_acknowledged, b_acknowledged) {
            (true, true) => {
                return Err(MetaError::SplitHistory {
                    volume: self.disks.volume,
                    first: a_term.epoch.0,
                    second: b_term.epoch.0,
                });
            }
            (true, false) => true,
            (false, true) => false,
            (false, false) if a_has != b_has => a_has,
            (false, false) => (a_term.epoch, a_term.nonce) > (b_term.epoch, b_term.nonce),
        };
        Ok(if takes_a { a } else { b })
    }

    /// Whether the terms of `history` after epoch `fork` have records, and whether any of these may have been
    /// acknowledged.
    fn branch(&self, history: &[Term], fork: Epoch) -> (bool, bool) {
        let terms: Vec<&Term> = history.iter().filter(|term| term.epoch > fork).collect();
        if self.may_hide(&terms) {
            return (true, true);
        }
        let mut has_records = false;
        for (id, copies) in &self.records {
            let is_own = |term: &&Term| term.epoch == id.epoch && term.nonce == id.term;
            if !terms.iter().any(is_own) {
                continue;
            }
            has_records = true;
            // An unreadable disk may have the record.
            let present = |disk: &DiskId| {
                let index = self.disks.index_of(*disk);
                index.filter(|index| self.disks.is_healthy(*index))
            };
            let holds = |disk: &DiskId| match present(disk) {
                Some(index) => copies.holders.contains(&index) || self.may_have(index, id),
                None => true,
            };
            if copies.sets.iter().any(|set| set.iter().all(holds)) {
                return (true, true);
            }
        }
        (has_records, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header of a log file: of the last term in `history`, on the disks of `set`.
    fn header(sequence: u64, history: &[Term], set: &[u128]) -> Arc<FileHeader> {
        let ids = |numbers: &[u128]| numbers.iter().map(|number| DiskId(*number)).collect();
        Arc::new(FileHeader {
            volume: cairn_base::VolumeId(1),
            sequence,
            file_use: FileUse(sequence.into()),
            speaks_as: sequence,
            file_len_bytes: 1 << 16,
            retained_from: LogPosition(1),
            copies: 2,
            set: ids(set),
            members: ids(&[1, 2, 3, 4]),
            history: history.to_vec(),
        })
    }

    /// A disk, the header of a file on it, and position and term of each record in the file.
    type Scanned<'a> = (usize, &'a Arc<FileHeader>, &'a [(u64, u64)]);

    fn scan_of(files: &[Scanned<'_>], failed: &[usize]) -> Scan {
        let disk = |number: u128| -> (DiskId, Arc<dyn cairn_base::disk::Disk>) {
            let disk = cairn_testkit::MemDisk::new(format!("disk{number}"), 1 << 20);
            (DiskId(number), disk)
        };
        let disks = DiskSet::new(cairn_base::VolumeId(1), (1..=4).map(disk).collect(), 2);
        for disk in failed {
            disks.mark_failed(*disk, &"a test");
        }
        let mut scan = Scan {
            disks,
            files: Vec::new(),
            records: BTreeMap::new(),
            terms: BTreeMap::new(),
            sequence_max: 0,
        };
        for (disk, header, records) in files {
            let contents: Vec<Content> = records
                .iter()
                .map(|(position, term)| {
                    let id = RecordId {
                        first: LogPosition(*position),
                        last: LogPosition(*position),
                        epoch: Epoch(*term),
                        term: *term,
                        payload_crc: 0,
                    };
                    (id, Bytes::new(), LogPosition(1))
                })
                .collect();
            let file = ScannedFile {
                disk: *disk,
                sequence: header.sequence,
                header: Some((*header).clone()),
                records: contents.iter().map(|(id, _, _)| *id).collect(),
                unread: None,
            };
            scan.add(file, contents);
        }
        scan.find_terms();
        scan
    }

    /// Two terms began apart from each other. One wrote a record to all of its disks, one of which is unreadable now.
    /// The other has the higher number, and wrote to one of its two disks only.
    #[test]
    fn a_disk_that_cannot_be_read_may_have_what_was_acknowledged() {
        let term = |number: u64, start: u64| Term {
            epoch: Epoch(number),
            nonce: number,
            start: LogPosition(start),
        };
        let root = header(1, &[term(1, 1)], &[1, 2]);
        let older = header(2, &[term(1, 1), term(2, 2)], &[1, 2]);
        let newer = header(3, &[term(1, 1), term(3, 2)], &[3, 4]);
        let files: [Scanned<'_>; 4] = [
            (0, &root, &[(1, 1)]),
            (0, &older, &[(2, 2)]),
            (2, &newer, &[(2, 3)]),
            (3, &newer, &[]),
        ];
        let log = scan_of(&files, &[1]).recover().expect("one of them counts");
        assert_eq!(log.history.terms.last(), Some(&term(2, 2)));
        assert_eq!(log.history.end, LogPosition(2));
    }

    proptest::proptest! {
        /// For any files of any terms, a history is found or refused, and a history that is found has no gap.
        #[test]
        fn any_files_are_judged_without_panic(
            files in proptest::collection::vec(
                (
                    0usize..4,
                    1u64..5,
                    proptest::collection::vec((0u64..4, 0u64..3, 0u64..6), 1..4),
                    proptest::collection::vec(1u128..6, 0..4),
                    proptest::collection::vec((1u64..8, 0u64..4), 0..6),
                ),
                0..8,
            ),
            failed in proptest::collection::vec(0usize..4, 0..2),
        ) {
            let headers: Vec<Arc<FileHeader>> = files
                .iter()
                .map(|(_, sequence, history, set, _)| {
                    let terms = history.iter().map(|(epoch, nonce, start)| Term {
                        epoch: Epoch(*epoch),
                        nonce: *nonce,
                        start: LogPosition(*start),
                    });
                    header(*sequence, &terms.collect::<Vec<_>>(), set)
                })
                .collect();
            let scanned: Vec<Scanned<'_>> = files
                .iter()
                .zip(&headers)
                .map(|((disk, _, _, _, records), header)| (*disk, header, records.as_slice()))
                .collect();
            let scan = scan_of(&scanned, &failed);
            if let Ok(log) = scan.recover() {
                let mut expected = None;
                for record in &log.history.records {
                    proptest::prop_assert!(expected.is_none_or(|position| record.first.0 == position));
                    expected = Some(record.last.0 + 1);
                }
                proptest::prop_assert!(expected.is_none_or(|position| position == log.history.end.0 + 1));
            }
        }
    }
}
