//! The store as a whole, against a plain model, on disks that crash, tear, fail and go missing.

mod copies;
mod ensembles;
mod folders;
mod full;
mod left_behind;
mod limits;
mod lives;
mod memory_log;
mod refusals;
mod several_volumes;
mod silent;
mod snapshots;
mod starts;
mod state_copies;
mod succession;
mod superseded;
mod to_read;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::{Disk, OpenMode};
use cairn_base::{DiskId, Ino, LogPosition, SegmentId, Timestamp, VolumeId};
use cairn_testkit::{Crash, Fault, FaultRule, MemDisk, OpKind, Recorder, Rng, TestWorld};

use crate::log::CommitLog;
use crate::settings::LOG_FILE_BYTES_MIN;
use crate::{
    Batch, Fold, JournalEntry, Key, MetaCache, MetaError, MetaSettings, MetaStore, Recovered,
    SegmentRecord, SpaceDelta, Ticket,
};

const VOLUME: VolumeId = VolumeId(7);
/// Every batch sets this inode to the number of its submission.
const MARK: Ino = Ino(1_000_000);

fn settings(copies: usize) -> MetaSettings {
    MetaSettings {
        log_file_bytes: LOG_FILE_BYTES_MIN,
        ship_bytes: 3 * LOG_FILE_BYTES_MIN,
        ..MetaSettings::new(copies, MetaCache::new(1 << 20))
    }
}

/// Wait for a disk or a node in real time: a busy machine may not run a thread for seconds, and no test may fail for
/// that.
const REAL_PATIENCE: Duration = Duration::from_secs(60);

/// As [`settings`], for real time.
fn real_settings(copies: usize) -> MetaSettings {
    MetaSettings {
        log_write_wait: REAL_PATIENCE,
        ..settings(copies)
    }
}

/// For tests on real folders: threads, and a clock that runs.
fn runtime(worker_count: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_count)
        .enable_time()
        .build()
        .expect("a runtime")
}

type Disks = Vec<(DiskId, Arc<dyn Disk>)>;

async fn create(world: &TestWorld, copies: usize, disks: Disks) -> Arc<MetaStore> {
    let created = MetaStore::create(world.env.clone(), settings(copies), VOLUME, disks).await;
    created.unwrap_or_else(|error| panic!("{error}"))
}

async fn open(world: &TestWorld, copies: usize, disks: Disks) -> (Arc<MetaStore>, Recovered) {
    let opened = MetaStore::open(world.env.clone(), settings(copies), VOLUME, disks).await;
    opened.unwrap_or_else(|error| panic!("{error}"))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    // Otherwise the test would only run after 61 steps of the store's tasks, and would never see one of them in
    // progress.
    tokio::runtime::Builder::new_current_thread()
        .event_interval(1)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// The expected contents of the store after a submission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    keys: BTreeMap<Key, Bytes>,
    segments: BTreeMap<SegmentId, (u64, u64)>,
    /// inodes, file bytes, stored bytes
    space: (u64, u64, u64),
    /// position, file, offset, byte
    journal: BTreeSet<(LogPosition, Ino, u64, u8)>,
}

/// Random batches and their effects.
struct Model {
    rng: Rng,
    /// By number of submission; 0 is empty.
    history: Vec<State>,
    tickets: Vec<Ticket>,
    /// The last submission known to be durable.
    durable: usize,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            history: vec![State::default()],
            tickets: vec![Ticket(LogPosition(0))],
            durable: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn key(&mut self) -> Key {
        let ino = Ino(self.below(6));
        match self.below(5) {
            0 => Key::inode(ino),
            1 => Key::dirent(ino, format!("n{}", self.below(12)).as_bytes()),
            2 => Key::cookie(ino, self.below(8)),
            3 => Key::extent(ino, self.below(9)),
            _ => Key::orphan(ino),
        }
    }

    /// Makes a random batch and the state after it.
    fn batch(&mut self) -> (Batch, State, Vec<(Ino, u64, Bytes)>) {
        let mut state = self.history.last().expect("never empty").clone();
        let mut batch = Batch::new();
        for _ in 0..self.below(8) {
            let key = self.key();
            if self.below(3) == 0 {
                batch.delete(key.clone());
                state.keys.remove(&key);
            } else {
                let len_max = if self.below(20) == 0 { 4000 } else { 60 };
                let len = 1 + self.below(len_max);
                let value = Bytes::from(vec![self.below(255) as u8; len as usize]);
                batch.put(key.clone(), value.clone());
                state.keys.insert(key, value);
            }
        }
        for _ in 0..self.below(3) {
            let id = SegmentId(1 + self.below(4));
            match self.below(5) {
                0 => {
                    batch.put_segment(id, SegmentRecord::default());
                    state.segments.entry(id).or_default();
                }
                // A delta makes no segment that does not exist, and changes no counters.
                4 => {
                    batch.place_segment(id, vec![DiskId(u128::from(self.below(9)))]);
                }
                1 => {
                    batch.remove_segment(id);
                    state.segments.remove(&id);
                }
                _ => {
                    let live = state.segments.get(&id).copied().unwrap_or_default();
                    let bytes = self.below(1000) as i64 - (live.0 as i64).min(300);
                    batch.segment_delta(id, bytes, 1);
                    if let Some(live) = state.segments.get_mut(&id) {
                        live.0 = live.0.saturating_add_signed(bytes);
                        live.1 += 1;
                    }
                }
            }
        }
        if self.below(2) == 0 {
            let (a, b, c) = (self.below(10), self.below(1000), self.below(1000));
            let delta = SpaceDelta {
                inodes: a as i64,
                file_bytes: b as i64 - (state.space.1 as i64).min(500),
                stored_bytes: c as i64,
                history_bytes: 0,
            };
            batch.space(delta);
            state.space.0 += a;
            state.space.1 = state.space.1.saturating_add_signed(delta.file_bytes);
            state.space.2 += c;
        }
        if self.below(4) == 0 {
            let number = self.below(self.tickets.len() as u64) as usize;
            let fold = Fold {
                ino: Ino(self.below(3)),
                start: self.below(30),
                end: 20 + self.below(200),
                through: self.tickets[number].0,
            };
            batch.fold(fold);
            state.journal.retain(|(position, ino, offset, _)| {
                *ino != fold.ino
                    || *position > fold.through
                    || !(fold.start..fold.end).contains(offset)
            });
        }
        let mut entries = Vec::new();
        if self.below(3) == 0 {
            let data = Bytes::from(vec![self.below(255) as u8; self.below(40) as usize]);
            let (ino, offset) = (Ino(self.below(3)), self.below(100));
            batch.journal(JournalEntry {
                position: LogPosition(0),
                ino,
                offset,
                data: data.clone(),
                encryption: None,
                size_bytes: offset,
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
                mode: 0o600,
            });
            entries.push((ino, offset, data));
        }
        let mark = Bytes::from((self.history.len() as u64).to_be_bytes().to_vec());
        batch.put(Key::inode(MARK), mark.clone());
        state.keys.insert(Key::inode(MARK), mark);
        (batch, state, entries)
    }

    fn submit<L: CommitLog>(&mut self, store: &MetaStore<L>) -> bool {
        self.submit_to(|batch| store.submit(batch))
    }

    fn submit_to(&mut self, submit: impl FnOnce(Batch) -> Ticket) -> bool {
        let (batch, mut state, entries) = self.batch();
        let ticket = submit(batch);
        if ticket == Ticket::REFUSED {
            return false;
        }
        for (ino, offset, data) in entries {
            for (at, byte) in data.iter().enumerate() {
                state
                    .journal
                    .insert((ticket.0, ino, offset + at as u64, *byte));
            }
        }
        self.history.push(state);
        self.tickets.push(ticket);
        true
    }

    /// Picks a submission to wait for.
    fn pick(&mut self) -> usize {
        let span = (self.history.len() - self.durable) as u64;
        self.durable + self.below(span) as usize
    }

    /// Waits for a random submission; false if the store has failed. Later submissions may not be durable.
    async fn wait<L: CommitLog>(&mut self, store: &MetaStore<L>) -> bool {
        let number = self.pick();
        self.wait_for(store, number).await
    }

    /// Waits for all submissions; false if the store has failed.
    async fn wait_for_all<L: CommitLog>(&mut self, store: &MetaStore<L>) -> bool {
        self.wait_for(store, self.tickets.len() - 1).await
    }

    async fn wait_for<L: CommitLog>(&mut self, store: &MetaStore<L>, number: usize) -> bool {
        let ok = store.durable(self.tickets[number]).await.is_ok();
        if ok {
            assert!(store.is_durable(self.tickets[number]));
            self.durable = number;
        }
        ok
    }

    /// Compares everything readable with the last submission.
    fn compare<L: CommitLog>(&mut self, store: &MetaStore<L>) {
        let state = self.history.last().expect("never empty").clone();
        let (from, to) = Key::everything();
        assert_eq!(visible(store, &from, &to), state.keys);
        let key = self.key();
        assert_eq!(
            store.live().get(&key).expect("reads"),
            state.keys.get(&key).cloned()
        );
        let (from, to) = (self.key(), self.key());
        let (from, to) = (
            from.clone().min(to.clone()).successor(),
            from.max(to).successor(),
        );
        let limit = self.below(9) as usize;
        let found = store.live().scan(&from, &to, limit).expect("scans");
        let want = state.keys.range(from..to).take(limit);
        let want: Vec<_> = want
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(found, want);
        assert_eq!(counted(store), (state.segments, state.space));
    }

    /// Finds the submission that a recovered store reflects, and checks that the store has all of it and nothing else.
    /// The model drops later submissions.
    fn recovered<L: CommitLog>(&mut self, store: &MetaStore<L>, recovered: &Recovered) {
        let mark = store.live().get(&Key::inode(MARK)).expect("reads");
        let number = mark.map_or(0, |mark| {
            u64::from_be_bytes(mark.as_ref().try_into().expect("eight bytes")) as usize
        });
        assert!(
            number >= self.durable,
            "acknowledged {} but recovered {number}",
            self.durable
        );
        self.history.truncate(number + 1);
        self.tickets.truncate(number + 1);
        self.durable = number;
        let state = self.history.last().expect("never empty");
        let mut journal = BTreeSet::new();
        for entry in &recovered.journal {
            for (at, byte) in entry.data.iter().enumerate() {
                journal.insert((entry.position, entry.ino, entry.offset + at as u64, *byte));
            }
        }
        assert_eq!(journal, state.journal);
        self.compare(store);
    }
}

/// All keys that callers may write, without the store's own.
fn visible<L: CommitLog>(store: &MetaStore<L>, from: &Key, to: &Key) -> BTreeMap<Key, Bytes> {
    let mut found = BTreeMap::new();
    let mut last = Vec::new();
    let scanned = store.live().scan_with(from, to, |bytes, value, _| {
        assert!(last.as_slice() < bytes, "in order, each once");
        last = bytes.to_vec();
        let key = Key::parse(bytes).expect("a key");
        if !key.is_internal() {
            found.insert(key, Bytes::copy_from_slice(value));
        }
        ControlFlow::Continue(())
    });
    scanned.expect("scans");
    found
}

type Counted = (BTreeMap<SegmentId, (u64, u64)>, (u64, u64, u64));

fn counted<L: CommitLog>(store: &MetaStore<L>) -> Counted {
    let segments = store.segments().into_iter();
    let segments = segments.map(|(id, record)| (id, (record.live_bytes, record.live_records)));
    let counters = store.counters();
    let space = (counters.inodes, counters.file_bytes, counters.stored_bytes);
    (segments.collect(), space)
}

/// Disks by number, some of them missing.
struct Pool {
    disks: Vec<Arc<MemDisk>>,
    missing: BTreeSet<usize>,
}

impl Pool {
    fn new(count: usize) -> Self {
        let disk = |index| MemDisk::new(format!("disk{index}"), 64 << 20);
        Self {
            disks: (0..count).map(disk).collect(),
            missing: BTreeSet::new(),
        }
    }

    fn present(&self) -> Vec<(DiskId, Arc<dyn Disk>)> {
        present(&self.disks, &self.missing)
    }

    /// Cuts the power of all disks.
    fn crash(&mut self, mode: Crash, seed: u64) {
        for (index, disk) in self.disks.iter_mut().enumerate() {
            *disk = disk.crash(mode, seed + index as u64);
        }
    }
}

fn present(disks: &[Arc<MemDisk>], missing: &BTreeSet<usize>) -> Vec<(DiskId, Arc<dyn Disk>)> {
    disks
        .iter()
        .enumerate()
        .filter(|(index, _)| !missing.contains(index))
        .map(|(index, disk)| {
            let disk: Arc<dyn Disk> = disk.clone();
            (DiskId(index as u128 + 1), disk)
        })
        .collect()
}

async fn reopen(
    world: &TestWorld,
    pool: &Pool,
    model: &mut Model,
    copies: usize,
) -> Arc<MetaStore> {
    for disk in &pool.disks {
        disk.yield_at_random(model.below(1 << 40), 3);
    }
    let opened = MetaStore::open(world.env.clone(), settings(copies), VOLUME, pool.present()).await;
    let (store, recovered) = opened.unwrap_or_else(|error| panic!("opens: {error}"));
    model.recovered(&store, &recovered);
    store
}

fn put(number: u64) -> Batch {
    let mut batch = Batch::new();
    batch.put(Key::inode(Ino(number)), Bytes::from_static(b"value"));
    batch
}
