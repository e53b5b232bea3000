//! Beginning a term of the log on the disks of one server.
//!
//! Owns: the order in which what was found is copied and the term's first file made.
//! Must not know: the state, what is in records.

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

/// What the disks hold of a log.
pub(crate) struct FoundMirror {
    env: Env,
    tasks: Tasks,
    settings: MetaSettings,
    disks: DiskSet,
    recovered: RecoveredLog,
}

/// The log of a volume that one server had before it was in a cluster.
pub(crate) struct Mirrored {
    pub history: History,
    /// Its files: disk and sequence number.
    files: Vec<(usize, u64)>,
}

impl Mirrored {
    /// `None` if there is none on these disks.
    pub async fn find(disks: &DiskSet) -> Result<Option<Self>, MetaError> {
        let scan = recover::scan(disks).await?;
        if scan.is_empty() {
            return Ok(None);
        }
        let files = scan.all_files().collect();
        let history = scan.recover()?.history;
        Ok(Some(Self { history, files }))
    }

    /// Removes its files, once another log has all that was in them.
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

    /// The log of a new volume: refused where there is one.
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

    /// How the log is as it was found.
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

    /// Nothing that is served may depend on a record with less than full protection, so what is on fewer disks than can
    /// be is copied first.
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
        // A disk that failed meanwhile does not count any more: what it had is copied once more.
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

/// Copies what is on fewer disks than can be, before any file names the new term: its header says that
/// everything before its start is there, and a start refuses when it is not. So a crash in here leaves
/// nothing that is promised and not kept. The files are of the term that is over.
async fn copy_short(files: &FileMaker, recovered: &mut RecoveredLog) -> Result<(), MetaError> {
    let disks = files.disks.clone();
    let short = first_short(&disks, &recovered.holders);
    let Some(short) = short.and_then(|first| recovered.history.records.get(first..)) else {
        return Ok(());
    };
    let lens = short
        .iter()
        .map(|record| record_len_bytes(record.payload.len()) as u64);
    // No larger than needed: this may be a disk with little space. But any record fits: when a disk fails
    // in here, others are to be copied, too.
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

/// Appends the records from the first on that is on fewer disks than can be, unless the log's own are
/// among those that have it: where others have no space that is all there is.
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

/// The first record that is on fewer disks than can be.
fn first_short(disks: &DiskSet, holders: &[BTreeSet<usize>]) -> Option<usize> {
    let possible = disks.copies_possible();
    let is_short = |holders: &BTreeSet<usize>| {
        let holders = holders.iter();
        holders.filter(|disk| disks.is_healthy(**disk)).count() < possible
    };
    holders.iter().position(is_short)
}

/// Bytes of a file that the largest record found fits in, should the setting have shrunk.
fn largest_record(recovered: &RecoveredLog) -> u64 {
    let records = recovered.history.records.iter();
    let lens = records.map(|record| record.payload.len());
    lens.max().unwrap_or(0) as u64 + 2 * IO_ALIGN_BYTES as u64
}
