//! A log of entries that outlives the server: lines of JSON in a file on several disks.
//!
//! Owns: how many entries are kept, on which disks, their durability. Must not know: the contents of an entry, which
//! clients read them.
//!
//! All entries are in memory, and in a file on up to three disks. A start merges the files of all disks. Each file
//! has its own thread, because a disk may hang: an entry is durable when one disk has it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_admin::entries::Entry;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::folder::make_below_disk;
use crate::node::NodeCore;

/// The path in the folder of a log in a data folder. Three levels, as for the history.
const BELOW: &str = "log/v1";
/// Depth below the disk's folder, with the name of the log.
const DEPTH: usize = 3;
const FILE_NAME: &str = "entries";
const FILE_NAME_NEW: &str = "entries.new";

/// Disks with a file.
const COPIES_MAX: usize = 3;
/// Lines that wait for one disk.
const WRITES_MAX: usize = 64;
/// Maximum time that an append waits, also if no disk has the entry yet.
const DURABLE_MAX: Duration = Duration::from_secs(2);
/// Once one disk has the entry, the append waits for the others no longer than this.
const OTHERS_MAX: Duration = Duration::from_millis(500);

type Done = oneshot::Sender<Result<(), String>>;

/// The names of a log, and its size.
#[derive(Debug)]
pub struct LogKind {
    /// The name of the folder in a data folder, and of its threads.
    pub name: &'static str,
    /// Its name in messages: "the audit log".
    pub shown: &'static str,
    /// Maximum size of all entries as lines; above it the oldest are dropped.
    pub lines_len_bytes_max: usize,
}

impl LogKind {
    /// A longer file is rewritten with the kept entries.
    const fn file_len_bytes_max(&self) -> u64 {
        2 * self.lines_len_bytes_max as u64
    }
}

/// A request to a disk's thread.
enum Ask {
    /// Replace the file by these lines.
    Whole(Vec<u8>, Done),
    /// Add lines.
    Lines(Vec<u8>, Done),
}

/// A file on a disk, and its thread.
struct Copy {
    asks: SyncSender<Ask>,
    thread: JoinHandle<()>,
    file_len_bytes: u64,
    /// Whether it lacks lines that had no room in the queue.
    has_gap: bool,
    /// The number of requests that are not done. The queue never has more than one whole file: those are long.
    left: Arc<AtomicUsize>,
}

/// The entries of a log, and their files.
pub struct LogState<E> {
    kind: &'static LogKind,
    entries: VecDeque<(E, usize)>,
    lines_len_bytes: usize,
    id_last: u64,
    copies: BTreeMap<PathBuf, Copy>,
    problem: Option<String>,
}

/// A log of one server.
pub struct EntryLog<E>(Mutex<LogState<E>>);

impl<E: Entry> LogState<E> {
    fn new(kind: &'static LogKind) -> Self {
        Self {
            kind,
            entries: VecDeque::new(),
            lines_len_bytes: 0,
            id_last: 0,
            copies: BTreeMap::new(),
            problem: None,
        }
    }

    pub fn newest_first(&self) -> impl Iterator<Item = &E> {
        self.entries.iter().rev().map(|(entry, _)| entry)
    }

    pub fn first_seconds(&self) -> Option<i64> {
        self.entries.front().map(|(entry, _)| entry.at_seconds())
    }

    /// The reason why entries are not written now, if they are not.
    pub fn problem(&self) -> Option<String> {
        self.problem.clone()
    }

    /// The highest id so far.
    pub fn id_last(&self) -> u64 {
        self.id_last
    }

    fn push(&mut self, entry: E) {
        let len_bytes = entry.to_line().len();
        self.id_last = self.id_last.max(entry.id());
        self.lines_len_bytes = self.lines_len_bytes.saturating_add(len_bytes);
        self.entries.push_back((entry, len_bytes));
        while self.lines_len_bytes > self.kind.lines_len_bytes_max {
            let Some((_, len_bytes)) = self.entries.pop_front() else {
                break;
            };
            self.lines_len_bytes = self.lines_len_bytes.saturating_sub(len_bytes);
        }
    }

    /// The next id. It comes from the time, so that disks which went on separately rarely share an id; and it is
    /// above all earlier ones.
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

    /// Adds entries, which get their ids, and sends them to the threads of these folders; returns the receivers of
    /// the results.
    fn append(
        &mut self,
        entries: Vec<E>,
        folders: &[PathBuf],
    ) -> Vec<oneshot::Receiver<Result<(), String>>> {
        let mut lines = Vec::new();
        for mut entry in entries {
            entry.set_id(self.id_next(entry.at_seconds()));
            lines.extend_from_slice(entry.to_line().as_bytes());
            self.push(entry);
        }
        self.write(&lines, folders)
    }

    fn write(
        &mut self,
        lines: &[u8],
        folders: &[PathBuf],
    ) -> Vec<oneshot::Receiver<Result<(), String>>> {
        self.copies.retain(|folder, copy| {
            // The thread of an unresponsive disk ends when the disk answers; until then there is no second one.
            folders.contains(folder) && !copy.thread.is_finished()
        });
        let mut waiting = Vec::new();
        for folder in folders {
            if !self.copies.contains_key(folder) {
                match begin(self.kind, folder.clone()) {
                    Ok(copy) => drop(self.copies.insert(folder.clone(), copy)),
                    Err(error) => {
                        tracing::warn!(%error, log = self.kind.shown, "cannot start a thread for the log");
                        continue;
                    }
                }
            }
            let copy = self.copies.get(folder);
            let is_late =
                copy.is_some_and(|copy| copy.has_gap && copy.left.load(Ordering::Acquire) > 0);
            if is_late {
                // It gets all of them once it has done its present request.
                continue;
            }
            let len_bytes_max = self.kind.file_len_bytes_max();
            let is_whole =
                copy.is_none_or(|copy| copy.has_gap || copy.file_len_bytes >= len_bytes_max);
            let bytes = if is_whole {
                self.lines()
            } else {
                lines.to_vec()
            };
            let Some(copy) = self.copies.get_mut(folder) else {
                continue;
            };
            let (done, waits) = oneshot::channel();
            let len_bytes = bytes.len() as u64;
            let (ask, file_len_bytes) = match is_whole {
                true => (Ask::Whole(bytes, done), len_bytes),
                false => {
                    let len_bytes = copy.file_len_bytes.saturating_add(len_bytes);
                    (Ask::Lines(bytes, done), len_bytes)
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

/// Starts a thread for a folder, whose file is first written as a whole.
fn begin(kind: &'static LogKind, folder: PathBuf) -> std::io::Result<Copy> {
    let (asks, asked) = sync_channel(WRITES_MAX);
    let left = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&left);
    let thread = std::thread::Builder::new().name(kind.name.to_owned());
    let thread = thread.spawn(move || keep(kind, &folder, &asked, &counted))?;
    Ok(Copy {
        asks,
        thread,
        file_len_bytes: 0,
        has_gap: true,
        left,
    })
}

/// The work of the thread: it ends with the first failure, and when the sender is gone.
fn keep(kind: &LogKind, folder: &Path, asked: &Receiver<Ask>, left: &AtomicUsize) {
    while let Ok(ask) = asked.recv() {
        let (written, done) = match ask {
            Ask::Whole(lines, done) => (write_whole(folder, &lines), done),
            Ask::Lines(lines, done) => (write_lines(folder, &lines), done),
        };
        let written = written.map_err(|error| format!("{}: {error}", folder.display()));
        if let Err(error) = &written {
            tracing::warn!(error, log = kind.shown, "the log cannot be written");
        }
        let has_failed = written.is_err();
        left.fetch_sub(1, Ordering::AcqRel);
        // The receiver may be gone.
        let _ = done.send(written);
        if has_failed {
            return;
        }
    }
}

fn write_whole(folder: &Path, lines: &[u8]) -> std::io::Result<()> {
    make_below_disk(folder, DEPTH)?;
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
    let mut above = folder.ancestors().take(DEPTH + 1);
    above.try_for_each(|folder| std::fs::File::open(folder)?.sync_all())
}

fn write_lines(folder: &Path, lines: &[u8]) -> std::io::Result<()> {
    let path = folder.join(FILE_NAME);
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(lines)?;
    file.sync_data()
}

/// The entries in a folder's file; of one that is too long, the last ones.
fn read<E: Entry>(kind: &LogKind, folder: &Path) -> std::io::Result<Vec<E>> {
    let mut file = match std::fs::File::open(folder.join(FILE_NAME)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let len_bytes_max = kind.file_len_bytes_max() + E::LINE_LEN_BYTES_MAX as u64;
    let len_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(len_bytes.saturating_sub(len_bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(len_bytes_max).read_to_end(&mut bytes)?;
    let (entries, wrong) = E::of_lines(&bytes);
    if wrong > 0 {
        tracing::warn!(folder = %folder.display(), wrong, log = kind.shown, "some lines of the log cannot be read");
    }
    Ok(entries)
}

/// Merges several files: each entry once, in the order of their ids.
fn together<E: Entry>(files: impl Iterator<Item = Vec<E>>) -> Vec<E> {
    let all = files.flatten().map(|entry| {
        let key = (entry.id(), entry.at_seconds(), entry.to_line());
        (key, entry)
    });
    // Disks that went on separately may have given an id twice: their lines differ.
    let all: BTreeMap<_, E> = all.collect();
    all.into_values().collect()
}

impl<E: Entry> EntryLog<E> {
    pub fn new(kind: &'static LogKind) -> Self {
        Self(Mutex::new(LogState::new(kind)))
    }

    /// Calls `look` with the kept entries.
    pub fn look<T>(&self, look: impl FnOnce(&LogState<E>) -> T) -> T {
        look(&self.0.lock())
    }

    fn folders(&self, inner: &NodeCore, with_leaving: bool) -> Vec<PathBuf> {
        let name = self.0.lock().kind.name;
        let folders = inner.working_folders(with_leaving).into_iter();
        folders
            .map(|folder| folder.join(name).join(BELOW))
            .collect()
    }

    /// Loads the entries on the disks of this server. Waits for an unresponsive disk only for a limited time.
    pub async fn load(&self, inner: &NodeCore) {
        let kind = self.0.lock().kind;
        let folders = self.folders(inner, true);
        let reading = folders.iter().map(|folder| {
            let at = folder.clone();
            tokio::task::spawn_blocking(move || read::<E>(kind, &at))
        });
        let waiting = reading.map(|reading| tokio::time::timeout(inner.config.hang_after, reading));
        let read = join_all(waiting).await;
        let mut files = Vec::new();
        for (folder, read) in folders.iter().zip(read) {
            match read {
                Ok(Ok(Ok(entries))) => files.push(entries),
                Ok(Ok(Err(error))) => {
                    tracing::warn!(folder = %folder.display(), %error, log = kind.shown, "the log cannot be read on this disk");
                }
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(folder = %folder.display(), log = kind.shown, "the log is not read on this disk, which does not answer");
                }
            }
        }
        let mut kept = self.0.lock();
        for entry in together(files.into_iter()) {
            kept.push(entry);
        }
    }

    /// Adds entries, which get their ids; they are durable on return. Fails if no disk has them in time: they stay in
    /// memory nevertheless, and are written with the next ones. A disk with little room gets none.
    pub async fn append(&self, inner: &NodeCore, entries: Vec<E>) -> Result<(), String> {
        let mut folders = self.folders(inner, false);
        let is_any = !folders.is_empty();
        folders.retain(|folder| inner.has_room_at(folder));
        folders.truncate(COPIES_MAX);
        let without = match is_any && folders.is_empty() {
            true => {
                "the disks of this server are full: entries stay in memory until there is space"
            }
            false => "no disk of this server works",
        };
        let waiting = self.0.lock().append(entries, &folders);
        let waiting = waiting.into_iter().map(|waits| async move {
            match tokio::time::timeout(DURABLE_MAX, waits).await {
                Ok(Ok(written)) => written,
                Ok(Err(_)) => Err("its disk is too slow".to_owned()),
                Err(_) => Err(format!("no answer within {} s", DURABLE_MAX.as_secs())),
            }
        });
        let mut left: FuturesUnordered<_> = waiting.collect();
        let mut is_durable = false;
        let mut failed: Option<String> = None;
        loop {
            let written = match is_durable {
                false => left.next().await,
                true => match tokio::time::timeout(OTHERS_MAX, left.next()).await {
                    Ok(written) => written,
                    Err(_) => {
                        // It is written there when the disk answers again.
                        failed.get_or_insert_with(|| "a disk does not answer".to_owned());
                        None
                    }
                },
            };
            match written {
                None => break,
                Some(Ok(())) => is_durable = true,
                Some(Err(why)) => {
                    failed.get_or_insert(why);
                }
            }
        }
        let problem = failed.or_else(|| (!is_durable).then(|| without.to_owned()));
        self.0.lock().problem.clone_from(&problem);
        match problem {
            Some(problem) if !is_durable => Err(problem),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_admin::audit::AuditEntry;

    use super::*;
    use crate::audit::AUDIT;

    const LINES_LEN_BYTES_MAX: usize = AUDIT.lines_len_bytes_max;
    const FILE_LEN_BYTES_MAX: u64 = AUDIT.file_len_bytes_max();

    fn state() -> LogState<AuditEntry> {
        LogState::new(&AUDIT)
    }

    fn last(state: &mut LogState<AuditEntry>, folders: &[PathBuf]) -> Vec<bool> {
        let (entry, _) = state.entries.back().unwrap();
        let line = entry.to_line().into_bytes();
        wait(state.write(&line, folders))
    }

    fn read(folder: &Path) -> std::io::Result<Vec<AuditEntry>> {
        super::read(&AUDIT, folder)
    }

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
            count: None,
            node: None,
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
        let disks = ["a", "b"].map(|name| root.path().join(name));
        let folders = disks.each_ref().map(|disk| disk.join("audit/log/v1"));
        // No file is made where the disk is missing.
        let mut without_disk = state();
        without_disk.push(entry(1));
        assert_eq!(last(&mut without_disk, &folders[..1]), [false]);
        assert!(!disks[0].exists());
        for disk in &disks {
            std::fs::create_dir(disk).unwrap();
        }
        let mut state = state();
        for id in 1..=3 {
            state.push(entry(id));
            assert_eq!(last(&mut state, &folders), [true, true]);
        }
        // One disk is gone for a while, and another one is new.
        state.push(entry(4));
        assert_eq!(last(&mut state, &folders[..1]), [true]);
        assert_eq!(read(&folders[1]).unwrap().len(), 3);
        state.push(entry(5));
        assert_eq!(last(&mut state, &folders), [true, true]);
        let all: Vec<AuditEntry> = (1..=5).map(entry).collect();
        for folder in &folders {
            assert_eq!(read(folder).unwrap(), all);
        }
        std::fs::remove_file(folders[0].join(FILE_NAME)).unwrap();
        let found = together(folders.iter().map(|folder| read(folder).unwrap()));
        assert_eq!(found, all);
        // A missing file is an error once, and complete after that.
        state.push(entry(6));
        assert_eq!(last(&mut state, &folders), [false, true]);
        while !state.copies[&folders[0]].thread.is_finished() {
            std::thread::yield_now();
        }
        state.push(entry(7));
        assert_eq!(last(&mut state, &folders), [true, true]);
        assert_eq!(
            read(&folders[0]).unwrap(),
            (1..=7).map(entry).collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let folder = [root.path().join("audit/log/v1")];
        let mut state = state();
        let mut long = entry(0);
        long.path = "x".repeat(512);
        let len_bytes = long.to_line().len();
        for id in 1..=3 * (LINES_LEN_BYTES_MAX / len_bytes) as u64 {
            long.id = id;
            state.push(long.clone());
        }
        assert!(state.lines_len_bytes <= LINES_LEN_BYTES_MAX);
        assert_eq!(state.lines().len(), state.lines_len_bytes);
        assert_eq!(last(&mut state, &folder), [true]);
        // Rewritten when it is too long.
        state.copies.get_mut(&folder[0]).unwrap().file_len_bytes = FILE_LEN_BYTES_MAX;
        assert_eq!(last(&mut state, &folder), [true]);
        let file = folder[0].join(FILE_NAME).metadata().unwrap();
        assert_eq!(file.len(), state.lines_len_bytes as u64);
        assert_eq!(read(&folder[0]).unwrap().len(), state.entries.len());
    }

    #[test]
    fn ids_grow_also_when_the_clock_is_set_back() {
        let mut state = state();
        assert_eq!(state.id_next(5), 5000);
        let at = |at_seconds| AuditEntry {
            at_seconds,
            ..entry(0)
        };
        drop(state.append(vec![at(5), at(5), at(-1), at(6)], &[]));
        let ids = state.newest_first().map(|entry| entry.id);
        assert_eq!(ids.collect::<Vec<_>>(), [6000, 5002, 5001, 5000]);
    }
}
