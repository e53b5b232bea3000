//! Beginning a term of the log on the disks of one server.
//!
//! Owns: the order in which found records are copied and the term's first file is made. Must not know: the state, the
//! contents of records.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::env::Env;
use cairn_formats::metadata::log::{RecordBuf, TERM_COUNT_MAX, Term, record_len_bytes};

use super::files::{FileMaker, Spares, TermInfo, file_name, remove_later};
use super::headers::{Headers, Members};
use super::mirror::MirrorWriter;
use super::recover::{self, RecoveredLog};
use super::{FoundLog, History, LogFuture, LogStatus, LogWriter};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::settings::MetaSettings;
use crate::tasks::Tasks;

/// A log as found on the disks.
pub(crate) struct FoundMirror {
    env: Env,
    tasks: Tasks,
    settings: MetaSettings,
    disks: DiskSet,
    recovered: RecoveredLog,
}

/// The log of a volume that one server served before the volume joined a cluster.
pub(crate) struct Mirrored {
    pub history: History,
    /// Its files: disk and sequence number.
    files: Vec<(usize, u64)>,
}

impl Mirrored {
    /// Returns `None` if these disks hold no log of the volume.
    pub async fn find(disks: &DiskSet) -> Result<Option<Self>, MetaError> {
        let scan = recover::scan(disks).await?;
        if scan.is_empty() {
            return Ok(None);
        }
        let files = scan.all_files().collect();
        let history = scan.recover()?.history;
        Ok(Some(Self { history, files }))
    }

    /// Removes the files, once another log has all of their records.
    pub fn remove(self, tasks: &Tasks, disks: &DiskSet) {
        let folder = disks.folder();
        for (disk, sequence) in self.files {
            remove_later(tasks, disks, disk, file_name(&folder, sequence));
        }
    }
}

impl FoundMirror {
    /// Finds the log of a volume; see [`recover`] for when it is refused.
    pub async fn find(
        env: &Env,
        tasks: &Tasks,
        settings: &MetaSettings,
        disks: &DiskSet,
    ) -> Result<Self, MetaError> {
        let recovered = {
            let scan = recover::scan(disks).await?;
            scan.recover()?
        };
        Ok(Self::of(env, tasks, settings, disks, recovered))
    }

    /// The log of a new volume. Fails if a log of it exists.
    pub async fn none(
        env: &Env,
        tasks: &Tasks,
        settings: &MetaSettings,
        disks: &DiskSet,
    ) -> Result<Self, MetaError> {
        let scan = recover::scan(disks).await?;
        if !scan.is_empty() {
            let volume = disks.volume;
            let disk = disks.iter().next();
            let disk = disk.map(|(_, member)| member.disk.label().to_owned());
            let disk = disk.unwrap_or_default();
            return Err(MetaError::Exists { volume, disk });
        }
        let unused: Vec<(usize, u64)> = scan.unused_files().collect();
        let recovered = RecoveredLog {
            history: History::empty(),
            holders: Vec::new(),
            members: Members {
                disks: Vec::new(),
                copies: 1,
            },
            sequence_max: scan.sequence_max(),
            retained: Vec::new(),
            unfit: unused.clone(),
            unused,
            headers: Vec::new(),
        };
        Ok(Self::of(env, tasks, settings, disks, recovered))
    }

    fn of(
        env: &Env,
        tasks: &Tasks,
        settings: &MetaSettings,
        disks: &DiskSet,
        recovered: RecoveredLog,
    ) -> Self {
        Self {
            env: env.clone(),
            tasks: tasks.clone(),
            settings: settings.clone(),
            disks: disks.clone(),
            recovered,
        }
    }

    /// Status of the log as found.
    pub fn status(&self) -> LogStatus {
        let recovered = &self.recovered;
        let last = recovered.holders.last().into_iter().flatten();
        LogStatus {
            retained_bytes: recovered.retained.iter().map(|file| file.len_bytes).sum(),
            disks: last.map(|disk| self.disks.get(*disk).id).collect(),
            start: recovered.history.retained_from,
            ..LogStatus::default()
        }
    }

    /// Everything that is served must have full protection. So records on fewer disks than possible are copied first.
    async fn begin_term(self, term: Term) -> Result<(MirrorWriter, History), MetaError> {
        let Self {
            env,
            tasks,
            settings,
            disks,
            mut recovered,
        } = self;
        let term_count = recovered.history.terms.len();
        if term_count + 1 > TERM_COUNT_MAX {
            return Err(MetaError::TooManyTerms {
                volume: disks.volume,
                count: term_count,
            });
        }
        let largest = largest_record(&recovered).next_multiple_of(IO_ALIGN_BYTES as u64);
        let log_file_bytes = settings.log_file_bytes.max(largest);
        let headers = Arc::new(Headers::new(std::mem::take(&mut recovered.headers)));
        let mut files = FileMaker {
            env,
            tasks: tasks.clone(),
            disks: disks.clone(),
            info: TermInfo {
                log_file_bytes,
                history: recovered.history.terms.clone(),
                members: Some(recovered.members.clone()),
            },
            spares: Arc::<Spares>::default(),
            headers,
            stays_on: Vec::new(),
            retained_from: recovered.history.retained_from,
            write_wait: settings.log_write_wait,
            may_shorten: term_count > 0,
            leaves_room: false,
        };
        copy_short(&files, &mut recovered).await?;
        recovered.history.terms.push(term);
        files.info = TermInfo {
            log_file_bytes,
            history: recovered.history.terms.clone(),
            members: None,
        };
        let folder = disks.folder();
        for (disk, sequence) in std::mem::take(&mut recovered.unused) {
            let name = file_name(&folder, sequence);
            let is_fit = !recovered.unfit.contains(&(disk, sequence));
            if disks.is_healthy(disk) && !(is_fit && files.spares.offer(disk, name.clone())) {
                remove_later(&tasks, &disks, disk, name);
            }
        }
        let retained = std::mem::take(&mut recovered.retained);
        let (sequence_next, old) = (recovered.sequence_max + 1, recovered.parts());
        let mut log = MirrorWriter::start(files, sequence_next, retained.into(), old).await?;
        // The copies of a disk that failed meanwhile do not count any more: its records are copied once more.
        append_short(&mut log, &disks, &mut recovered).await?;
        log.set_old(recovered.parts());
        Ok((log, recovered.history))
    }
}

impl FoundLog for FoundMirror {
    fn history(&self) -> &History {
        &self.recovered.history
    }

    fn begin(self: Box<Self>, term: Term) -> LogFuture<'static, (Box<dyn LogWriter>, History)> {
        Box::pin(async move {
            let (writer, history) = self.begin_term(term).await?;
            Ok((Box::new(writer) as Box<dyn LogWriter>, history))
        })
    }
}

/// Copies records that are on fewer disks than possible, before any file names the new term. The header of such a file
/// says that everything before its start exists, and a start refuses if it does not. So a crash during the copy leaves
/// no broken promise. The copies go to files of the previous term.
async fn copy_short(files: &FileMaker, recovered: &mut RecoveredLog) -> Result<(), MetaError> {
    let disks = files.disks.clone();
    let short = first_short(&disks, &recovered.holders);
    let Some(short) = short.and_then(|first| recovered.history.records.get(first..)) else {
        return Ok(());
    };
    let lens = short
        .iter()
        .map(|record| record_len_bytes(record.payload.len()) as u64);
    // The files are as small as possible, for a disk with little space. But each fits any record: if a disk fails here,
    // further records need a copy.
    let file_bytes = (IO_ALIGN_BYTES as u64)
        .saturating_add(lens.sum())
        .max(largest_record(recovered).next_multiple_of(IO_ALIGN_BYTES as u64))
        .min(files.info.log_file_bytes);
    let mut files = files.clone();
    files.info.log_file_bytes = file_bytes;
    let (sequence_next, old) = (recovered.sequence_max + 1, recovered.parts());
    let mut log = MirrorWriter::start(files, sequence_next, VecDeque::new(), old).await?;
    append_short(&mut log, &disks, recovered).await?;
    let (files, sequence_next) = log.into_retained();
    recovered.retained.extend(files);
    recovered.sequence_max = sequence_next.saturating_sub(1);
    Ok(())
}

/// Appends the records from the first one on that is on fewer disks than possible. Skips records that all of the log's
/// own disks have: then the other disks have no space for more copies.
async fn append_short(
    log: &mut MirrorWriter,
    disks: &DiskSet,
    recovered: &mut RecoveredLog,
) -> Result<(), MetaError> {
    let Some(first) = first_short(disks, &recovered.holders) else {
        return Ok(());
    };
    let history = &recovered.history;
    let records = history.records.iter().zip(&mut recovered.holders);
    for (record, holders) in records.skip(first) {
        if log.disks().all(|disk| holders.contains(&disk)) {
            continue;
        }
        let positions = (record.first, record.last);
        let copy = RecordBuf::copy_of(&record.payload, positions, record.epoch, record.term);
        log.append(copy, history.retained_from, false).await?;
        holders.extend(log.disks());
    }
    Ok(())
}

/// Index of the first record that is on fewer disks than possible.
fn first_short(disks: &DiskSet, holders: &[BTreeSet<usize>]) -> Option<usize> {
    let possible = disks.copies_possible();
    let is_short = |holders: &BTreeSet<usize>| {
        let holders = holders.iter();
        holders.filter(|disk| disks.is_healthy(**disk)).count() < possible
    };
    holders.iter().position(is_short)
}

/// Length of a file that fits the largest record found. The setting may have become smaller since.
fn largest_record(recovered: &RecoveredLog) -> u64 {
    let records = recovered.history.records.iter();
    let lens = records.map(|record| record.payload.len());
    lens.max().unwrap_or(0) as u64 + 2 * IO_ALIGN_BYTES as u64
}
