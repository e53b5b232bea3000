//! Keeps who changed what and when.
//!
//! Owns: how many entries are kept, on which disks, that they are durable. Must not know: what an entry says, who asks for
//! them (`cairn_admin::audit`).
//!
//! All entries are in memory, and in a file of up to three disks (docs/reference/formats/audit.md). A start puts together what
//! the files of all disks have. Each file has a thread of its own, for a disk may hang: an entry is durable when one has it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::audit::{
    AUDIT_LINE_LEN_BYTES_MAX, AuditControl, AuditEntry, AuditPage, AuditQuery,
};
use cairn_admin::{Answer, ControlError};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::control::Controller;
use crate::node::Inner;

/// The folder in a data folder. Three levels, as that of the history has.
pub const AUDIT_NAME: &str = "audit";
const BELOW: &str = "log/v1";
const FILE_NAME: &str = "entries";
const FILE_NAME_NEW: &str = "entries.new";

/// What entries take as lines, all together; above it the oldest are forgotten. About 40,000 usual ones.
const LINES_LEN_BYTES_MAX: usize = 8 << 20;
/// A file that is longer is written anew with what is kept.
const FILE_LEN_BYTES_MAX: u64 = 2 * LINES_LEN_BYTES_MAX as u64;
/// Disks that have a file.
const COPIES_MAX: usize = 3;
/// Lines that wait for one disk.
const WRITES_MAX: usize = 64;
/// A change is answered after so long also if no disk has its entry yet.
const DURABLE_MAX: Duration = Duration::from_secs(2);

type Done = oneshot::Sender<Result<(), String>>;

/// What a disk's thread is to do.
enum Ask {
    /// Replace the file by these lines.
    Whole(Vec<u8>, Done),
    /// Add a line.
    Line(Vec<u8>, Done),
}

/// A file on a disk, and the thread that has it.
struct Copy {
    asks: SyncSender<Ask>,
    thread: JoinHandle<()>,
    file_len_bytes: u64,
    /// It has not got all lines: there was no room for one.
    has_gap: bool,
    /// What it was asked and has not done. Its queue never has more than one file as a whole: those are long.
    left: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<(AuditEntry, usize)>,
    lines_len_bytes: usize,
    id_last: u64,
    copies: BTreeMap<PathBuf, Copy>,
    problem: Option<String>,
}

/// The log of changes of one server.
#[derive(Default)]
pub struct AuditLog(Mutex<State>);

impl State {
    fn push(&mut self, entry: AuditEntry) {
        let len_bytes = entry.to_line().len();
        self.id_last = self.id_last.max(entry.id);
        self.lines_len_bytes = self.lines_len_bytes.saturating_add(len_bytes);
        self.entries.push_back((entry, len_bytes));
        while self.lines_len_bytes > LINES_LEN_BYTES_MAX {
            let Some((_, len_bytes)) = self.entries.pop_front() else {
                break;
            };
            self.lines_len_bytes = self.lines_len_bytes.saturating_sub(len_bytes);
        }
    }

    /// The next id: of the time, so that disks which went on without one another have no id twice; above all that were.
    fn id_next(&self, now_seconds: i64) -> u64 {
        let of_time = u64::try_from(now_seconds).unwrap_or(0).saturating_mul(1000);
        of_time.max(self.id_last.saturating_add(1))
    }

    fn lines(&self) -> Vec<u8> {
        let mut lines = Vec::with_capacity(self.lines_len_bytes);
        for (entry, _) in &self.entries {
            lines.extend_from_slice(entry.to_line().as_bytes());
        }
        lines
    }

    /// Has the last entry written to these folders; gives back what tells when that is done.
    fn write(&mut self, folders: &[PathBuf]) -> Vec<oneshot::Receiver<Result<(), String>>> {
        self.copies.retain(|folder, copy| {
            // The thread of a disk that hangs ends when it does not hang any more; until then there is no second one.
            folders.contains(folder) && !copy.thread.is_finished()
        });
        let line = self.entries.back().map(|(entry, _)| entry.to_line());
        let line = line.unwrap_or_default().into_bytes();
        let mut waiting = Vec::new();
        for folder in folders {
            if !self.copies.contains_key(folder) {
                match begin(folder.clone()) {
                    Ok(copy) => drop(self.copies.insert(folder.clone(), copy)),
                    Err(error) => {
                        tracing::warn!(%error, "a thread for the log of changes");
                        continue;
                    }
                }
            }
            let copy = self.copies.get(folder);
            let is_late =
                copy.is_some_and(|copy| copy.has_gap && copy.left.load(Ordering::Acquire) > 0);
            if is_late {
                // It gets all of them once it has done what it was asked.
                continue;
            }
            let is_whole =
                copy.is_none_or(|copy| copy.has_gap || copy.file_len_bytes >= FILE_LEN_BYTES_MAX);
            let bytes = if is_whole { self.lines() } else { line.clone() };
            let Some(copy) = self.copies.get_mut(folder) else {
                continue;
            };
            let (done, waits) = oneshot::channel();
            let len_bytes = bytes.len() as u64;
            let (ask, file_len_bytes) = match is_whole {
                true => (Ask::Whole(bytes, done), len_bytes),
                false => {
                    let len_bytes = copy.file_len_bytes.saturating_add(len_bytes);
                    (Ask::Line(bytes, done), len_bytes)
                }
            };
            copy.left.fetch_add(1, Ordering::AcqRel);
            copy.has_gap = copy.asks.try_send(ask).is_err();
            if copy.has_gap {
                copy.left.fetch_sub(1, Ordering::AcqRel);
            }
            copy.file_len_bytes = file_len_bytes;
            waiting.push(waits);
        }
        waiting
    }
}

/// A new thread for a folder, whose file is to be written whole first.
fn begin(folder: PathBuf) -> std::io::Result<Copy> {
    let (asks, asked) = sync_channel(WRITES_MAX);
    let left = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&left);
    let thread = std::thread::Builder::new().name("audit".to_owned());
    let thread = thread.spawn(move || keep(&folder, &asked, &counted))?;
    Ok(Copy {
        asks,
        thread,
        file_len_bytes: 0,
        has_gap: true,
        left,
    })
}

/// What the thread does: it ends with the first failure, and when nobody asks any more.
fn keep(folder: &Path, asked: &Receiver<Ask>, left: &AtomicUsize) {
    while let Ok(ask) = asked.recv() {
        let (written, done) = match ask {
            Ask::Whole(lines, done) => (write_whole(folder, &lines), done),
            Ask::Line(line, done) => (write_line(folder, &line), done),
        };
        let written = written.map_err(|error| format!("{}: {error}", folder.display()));
        if let Err(error) = &written {
            tracing::warn!(error, "the log of changes cannot be written");
        }
        let has_failed = written.is_err();
        left.fetch_sub(1, Ordering::AcqRel);
        // Nobody may be waiting any more.
        let _ = done.send(written);
        if has_failed {
            return;
        }
    }
}

fn write_whole(folder: &Path, lines: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let new = folder.join(FILE_NAME_NEW);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(lines)?;
    file.sync_all()?;
    std::fs::rename(&new, folder.join(FILE_NAME))?;
    // Each level may be new.
    let mut above = folder.ancestors().take(4);
    above.try_for_each(|folder| std::fs::File::open(folder)?.sync_all())
}

fn write_line(folder: &Path, line: &[u8]) -> std::io::Result<()> {
    let path = folder.join(FILE_NAME);
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(line)?;
    file.sync_data()
}

/// The entries in a folder's file; of one that is too long, the last ones.
fn read(folder: &Path) -> std::io::Result<Vec<AuditEntry>> {
    let mut file = match std::fs::File::open(folder.join(FILE_NAME)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let len_bytes_max = FILE_LEN_BYTES_MAX + AUDIT_LINE_LEN_BYTES_MAX as u64;
    let len_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(len_bytes.saturating_sub(len_bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(len_bytes_max).read_to_end(&mut bytes)?;
    let (entries, wrong) = AuditEntry::of_lines(&bytes);
    if wrong > 0 {
        tracing::warn!(folder = %folder.display(), wrong, "lines of the log of changes cannot be read");
    }
    Ok(entries)
}

/// What several files have together, each entry once, in the order of their ids.
fn together(files: impl Iterator<Item = Vec<AuditEntry>>) -> Vec<AuditEntry> {
    let mut all: Vec<AuditEntry> = files.flatten().collect();
    all.sort_by(|left, right| {
        let key = |entry: &AuditEntry| (entry.id, entry.at_seconds);
        key(left)
            .cmp(&key(right))
            .then_with(|| left.path.cmp(&right.path))
    });
    all.dedup();
    all
}

/// Reads what is kept on the disks of this server. One that hangs is not waited for longer than it may hang.
pub async fn load(inner: &Arc<Inner>) {
    let folders = inner.audit_folders(true);
    let reading = folders.iter().map(|folder| {
        let at = folder.clone();
        tokio::task::spawn_blocking(move || read(&at))
    });
    let waiting = reading.map(|reading| tokio::time::timeout(inner.config.hang_after, reading));
    let read = join_all(waiting).await;
    let mut files = Vec::new();
    for (folder, read) in folders.iter().zip(read) {
        match read {
            Ok(Ok(Ok(entries))) => files.push(entries),
            Ok(Ok(Err(error))) => {
                tracing::warn!(folder = %folder.display(), %error, "the log of changes of a disk cannot be read");
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(folder = %folder.display(), "the log of changes of a disk is not read");
            }
        }
    }
    let mut state = inner.audit.0.lock();
    for entry in together(files.into_iter()) {
        state.push(entry);
    }
}

impl Inner {
    fn audit_folders(&self, with_leaving: bool) -> Vec<PathBuf> {
        let folders = self.working_folders(with_leaving).into_iter();
        folders
            .map(|folder| folder.join(AUDIT_NAME).join(BELOW))
            .collect()
    }
}

impl AuditControl for Controller {
    fn note(&self, mut entry: AuditEntry) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut folders = self.inner.audit_folders(false);
            folders.truncate(COPIES_MAX);
            let waiting = {
                let mut state = self.inner.audit.0.lock();
                entry.id = state.id_next(entry.at_seconds);
                state.push(entry);
                state.write(&folders)
            };
            let waiting = waiting.into_iter().map(|waits| async move {
                match tokio::time::timeout(DURABLE_MAX, waits).await {
                    Ok(Ok(written)) => written,
                    Ok(Err(_)) => Err("its disk does not keep up".to_owned()),
                    Err(_) => Err(format!("no answer within {} s", DURABLE_MAX.as_secs())),
                }
            });
            let written = join_all(waiting).await;
            let is_durable = written.iter().any(Result::is_ok);
            let failed = written.into_iter().find_map(Result::err);
            let problem = failed.or_else(|| {
                let none = "no disk of this server works".to_owned();
                (!is_durable).then_some(none)
            });
            let mut state = self.inner.audit.0.lock();
            state.problem.clone_from(&problem);
            match problem {
                Some(problem) if !is_durable => {
                    Err(ControlError::new(ErrorKind::Unavailable, problem))
                }
                _ => Ok(()),
            }
        })
    }

    fn audit(&self, query: AuditQuery) -> Answer<'_, AuditPage> {
        Box::pin(async move {
            let state = self.inner.audit.0.lock();
            let newest_first = state.entries.iter().rev().map(|(entry, _)| entry);
            Ok(AuditPage {
                first_seconds: state.entries.front().map(|(entry, _)| entry.at_seconds),
                problem: state.problem.clone(),
                ..query.page(newest_first)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> AuditEntry {
        AuditEntry {
            id,
            at_seconds: 1000,
            user: "alice".to_owned(),
            via: "session".to_owned(),
            address: "::1".to_owned(),
            method: "POST".to_owned(),
            path: format!("/{id}"),
            status: 200,
        }
    }

    fn wait(waiting: Vec<oneshot::Receiver<Result<(), String>>>) -> Vec<bool> {
        let waiting = waiting.into_iter();
        waiting
            .map(|waits| waits.blocking_recv().is_ok_and(|written| written.is_ok()))
            .collect()
    }

    #[test]
    fn entries_are_in_all_files_and_a_lost_one_costs_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| root.path().join(name).join("audit/log/v1"));
        let mut state = State::default();
        for id in 1..=3 {
            state.push(entry(id));
            assert_eq!(wait(state.write(&folders)), [true, true]);
        }
        // One disk is gone for a while, and another one is new.
        state.push(entry(4));
        assert_eq!(wait(state.write(&folders[..1])), [true]);
        assert_eq!(read(&folders[1]).unwrap().len(), 3);
        state.push(entry(5));
        assert_eq!(wait(state.write(&folders)), [true, true]);
        let all: Vec<AuditEntry> = (1..=5).map(entry).collect();
        for folder in &folders {
            assert_eq!(read(folder).unwrap(), all);
        }
        std::fs::remove_file(folders[0].join(FILE_NAME)).unwrap();
        let found = together(folders.iter().map(|folder| read(folder).unwrap()));
        assert_eq!(found, all);
        // A file that is gone is an error once, and whole after that.
        state.push(entry(6));
        assert_eq!(wait(state.write(&folders)), [false, true]);
        while !state.copies[&folders[0]].thread.is_finished() {
            std::thread::yield_now();
        }
        state.push(entry(7));
        assert_eq!(wait(state.write(&folders)), [true, true]);
        assert_eq!(
            read(&folders[0]).unwrap(),
            (1..=7).map(entry).collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let folder = [root.path().join("audit/log/v1")];
        let mut state = State::default();
        let mut long = entry(0);
        long.path = "x".repeat(512);
        let len_bytes = long.to_line().len();
        for id in 1..=3 * (LINES_LEN_BYTES_MAX / len_bytes) as u64 {
            long.id = id;
            state.push(long.clone());
        }
        assert!(state.lines_len_bytes <= LINES_LEN_BYTES_MAX);
        assert_eq!(state.lines().len(), state.lines_len_bytes);
        assert_eq!(wait(state.write(&folder)), [true]);
        // Written anew when it is too long.
        state.copies.get_mut(&folder[0]).unwrap().file_len_bytes = FILE_LEN_BYTES_MAX;
        assert_eq!(wait(state.write(&folder)), [true]);
        let file = folder[0].join(FILE_NAME).metadata().unwrap();
        assert_eq!(file.len(), state.lines_len_bytes as u64);
        assert_eq!(read(&folder[0]).unwrap().len(), state.entries.len());
    }

    #[test]
    fn ids_grow_also_when_the_clock_is_set_back() {
        let mut state = State::default();
        assert_eq!(state.id_next(5), 5000);
        state.push(entry(5000));
        assert_eq!(state.id_next(5), 5001);
        assert_eq!(state.id_next(-1), 5001);
        assert_eq!(state.id_next(6), 6000);
    }
}
