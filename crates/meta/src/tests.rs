//! The store as a whole, against a plain model, on disks that crash, tear, fail and go missing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::{Disk, OpenMode};
use cairn_base::{DiskId, Ino, LogPosition, SegmentId, Timestamp, VolumeId};
use cairn_testkit::{Crash, Fault, MemDisk, OpKind, Recorder, Rng, TestWorld};

use crate::settings::LOG_FILE_BYTES_MIN;
use crate::{
    Batch, Fold, JournalEntry, Key, MetaCache, MetaError, MetaSettings, MetaStore, Recovered,
    SegmentRecord, SpaceDelta, Ticket,
};

const VOLUME: VolumeId = VolumeId(7);
/// Holds the number of the last submission, in every batch.
const MARK: Ino = Ino(1_000_000);

fn settings(copies: usize) -> MetaSettings {
    MetaSettings {
        log_file_bytes: LOG_FILE_BYTES_MIN,
        ship_bytes: 3 * LOG_FILE_BYTES_MIN,
        ..MetaSettings::new(copies, MetaCache::new(1 << 20))
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    // Else the test itself would only run after 61 steps of the store's tasks, and never see one of
    // them under way.
    tokio::runtime::Builder::new_current_thread()
        .event_interval(1)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// What the store should hold after some submission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    keys: BTreeMap<Key, Bytes>,
    segments: BTreeMap<SegmentId, (u64, u64)>,
    /// inodes, file bytes, stored bytes
    space: (u64, u64, u64),
    /// position, file, offset, byte
    journal: BTreeSet<(LogPosition, Ino, u64, u8)>,
}

/// Random batches and what they do.
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
            match self.below(4) {
                0 => {
                    batch.put_segment(id, SegmentRecord::default());
                    state.segments.entry(id).or_default();
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

    fn submit(&mut self, store: &MetaStore) -> bool {
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

    /// Waits for a random submission; false if the store has failed.
    async fn wait(&mut self, store: &MetaStore) -> bool {
        let number = self.pick();
        let ok = store.durable(self.tickets[number]).await.is_ok();
        if ok {
            assert!(store.is_durable(self.tickets[number]));
            self.durable = number;
        }
        ok
    }

    /// Compares all that can be read with what was submitted last.
    fn compare(&mut self, store: &MetaStore) {
        let state = self.history.last().expect("never empty").clone();
        let (from, to) = Key::everything();
        assert_eq!(visible(store, &from, &to), state.keys);
        let key = self.key();
        assert_eq!(
            store.get(&key).expect("reads"),
            state.keys.get(&key).cloned()
        );
        let (from, to) = (self.key(), self.key());
        let (from, to) = (
            from.clone().min(to.clone()).successor(),
            from.max(to).successor(),
        );
        let limit = self.below(9) as usize;
        let found = store.scan(&from, &to, limit).expect("scans");
        let want = state.keys.range(from..to).take(limit);
        let want: Vec<_> = want
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(found, want);
        assert_eq!(counted(store), (state.segments, state.space));
    }

    /// Finds the submission that a recovered store stands at, and checks that it is all of that one
    /// and of nothing else. What was submitted later never happened.
    fn recovered(&mut self, store: &MetaStore, recovered: &Recovered) {
        let mark = store.get(&Key::inode(MARK)).expect("reads");
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

/// All that callers may write, without the store's own keys.
fn visible(store: &MetaStore, from: &Key, to: &Key) -> BTreeMap<Key, Bytes> {
    let mut found = BTreeMap::new();
    let mut last = Vec::new();
    let scanned = store.scan_with(from, to, |bytes, value| {
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

fn counted(store: &MetaStore) -> Counted {
    let segments = store.segments().into_iter();
    let segments = segments.map(|(id, record)| (id, (record.live_bytes, record.live_records)));
    let counters = store.counters();
    let space = (counters.inodes, counters.file_bytes, counters.stored_bytes);
    (segments.collect(), space)
}

/// Disks by number, some of them away.
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

/// One life of a volume: work, crashes, restarts, disks that go and come back.
async fn live(seed: u64, disk_count: usize, copies: usize) {
    let world = TestWorld::new(seed);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut pool = Pool::new(disk_count);
    for (index, disk) in pool.disks.iter().enumerate() {
        disk.yield_at_random(seed + index as u64, 3);
    }
    let mut model = Model::new(seed);
    let mut store = MetaStore::create(world.env.clone(), settings(copies), VOLUME, pool.present())
        .await
        .expect("creates");
    let mut ids = BTreeSet::new();
    for _ in 0..60 {
        match rng.below(20) {
            0..=11 => {
                // Now and then more than one group takes.
                let count = if rng.below(6) == 0 { 60 } else { rng.below(6) };
                for _ in 0..count {
                    model.submit(&store);
                }
                assert!(ids.insert((0, store.allocate_ino().0)));
                assert!(ids.insert((1, store.allocate_segment().0)));
                for _ in 0..rng.below(10) {
                    tokio::task::yield_now().await;
                }
                model.compare(&store);
            }
            12..=14 => assert!(model.wait(&store).await),
            15 => store.flush().await.expect("flushes"),
            16 => store.ship().await.expect("ships"),
            17 => {
                store.close().await.expect("closes");
                assert_eq!(store.submit(Batch::new()), Ticket::REFUSED);
                assert!(matches!(
                    store.durable(Ticket::REFUSED).await,
                    Err(MetaError::Closed)
                ));
                model.durable = model.history.len() - 1;
                let (opened, recovered) =
                    MetaStore::open(world.env.clone(), settings(copies), VOLUME, pool.present())
                        .await
                        .expect("opens");
                assert_eq!(recovered.replayed_entries, 0);
                store = opened;
                model.recovered(&store, &recovered);
            }
            _ => {
                let mode = Crash::ALL[rng.below(3) as usize];
                pool.crash(mode, rng.below(1 << 40));
                store.abort().await;
                if !pool.missing.is_empty() {
                    // All are back, some of them stale; redundancy is restored before more go.
                    pool.missing.clear();
                    store = reopen(&world, &pool, &mut model, copies).await;
                    store.ship().await.expect("ships");
                    assert!(!store.stats().degraded, "{:?}", store.stats());
                    pool.crash(mode, rng.below(1 << 40));
                    store.abort().await;
                }
                for _ in 0..rng.below(copies as u64) {
                    pool.missing.insert(rng.below(disk_count as u64) as usize);
                }
                store = reopen(&world, &pool, &mut model, copies).await;
            }
        }
    }
    store.abort().await;
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

#[test]
fn a_volume_lives_through_crashes_and_lost_disks() {
    let first = std::env::var("CAIRN_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(0..40, |seed: u64| seed..seed + 1);
    for seed in seeds {
        for (disks, copies) in [(1, 1), (2, 2), (4, 3), (5, 3), (6, 2)] {
            println!("seed {seed}, {disks} disks, {copies} copies");
            block_on(live(seed, disks, copies));
        }
    }
}

/// On folders, with RocksDB: what a kill leaves is all that was written, but disks may be gone.
#[test]
fn a_volume_on_folders_lives_through_kills_and_lost_disks() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let env = cairn_base::real::env(runtime.handle().clone());
    let mut disks = real_disks(folder.path(), &[]);
    let mut model = Model::new(11);
    let mut rng = Rng::new(11);
    runtime.block_on(async {
        let created = MetaStore::create(env.clone(), settings(3), VOLUME, disks.clone());
        let mut store = created.await.expect("creates");
        for round in 0..12 {
            for step in 0..25 {
                for _ in 0..rng.below(5) {
                    assert!(model.submit(&store));
                }
                model.compare(&store);
                assert!(model.wait(&store).await);
                match (step, rng.below(12)) {
                    (_, 0) => store.flush().await.expect("flushes"),
                    (_, 1) | (24, _) => store.ship().await.expect("ships"),
                    _ => {}
                }
            }
            for _ in 0..rng.below(5) {
                assert!(model.submit(&store));
            }
            if round % 4 == 3 {
                store.close().await.expect("closes");
                assert!(!store.stats().degraded, "{:?}", store.stats());
            } else {
                store.abort().await;
            }
            drop(store);
            // Two disks are replaced by empty ones, or are away and come back stale.
            let lost = [rng.below(4) as usize, rng.below(4) as usize];
            let mut kept = disks.clone();
            kept.retain(|(id, _)| !lost.iter().any(|index| disks[*index].0 == *id));
            if round % 2 == 0 {
                for index in lost {
                    let path = disks[index].1.folder().expect("a folder").to_owned();
                    std::fs::remove_dir_all(path.join("volumes")).ok();
                }
                kept = disks.clone();
            }
            let opened = MetaStore::open(env.clone(), settings(3), VOLUME, kept).await;
            let (opened, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&opened, &recovered);
            assert!(model.submit(&opened));
            model.compare(&opened);
            opened.ship().await.expect("ships");
            opened.abort().await;
            drop(opened);
            model.durable = model.durable.min(model.history.len() - 1);
            disks.rotate_left(1);
            let opened = MetaStore::open(env.clone(), settings(3), VOLUME, disks.clone()).await;
            let (opened, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&opened, &recovered);
            store = opened;
        }
        store.abort().await;
    });
}

const KILLED_FOLDER: &str = "CAIRN_META_TEST_FOLDER";
const KILLED_STEP_COUNT: usize = 400;

fn real_disks(folder: &std::path::Path, missing: &[u64]) -> Vec<(DiskId, Arc<dyn Disk>)> {
    let disk = |index: u64| -> (DiskId, Arc<dyn Disk>) {
        let path = folder.join(format!("disk{index}"));
        let disk = cairn_disk::RealDisk::open(path, Default::default()).expect("a disk");
        (DiskId(u128::from(index) + 1), disk)
    };
    let present = (0..4).filter(|index| !missing.contains(index));
    present.map(disk).collect()
}

/// Small write buffers, so that RocksDB flushes by itself in the middle of things.
fn settings_on_folders() -> MetaSettings {
    MetaSettings {
        write_buffer_bytes: 64 << 10,
        ..settings(3)
    }
}

/// Runs in a process of its own when the test below asks for it; then it works until it is killed.
#[test]
fn the_process_that_is_killed() {
    let Ok(folder) = std::env::var(KILLED_FOLDER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let disks = real_disks(folder.as_ref(), &[]);
        let created = MetaStore::create(env, settings_on_folders(), VOLUME, disks);
        let store = created.await.expect("creates");
        let mut model = Model::new(5);
        println!("\ndurable 0 0");
        for step in 0..KILLED_STEP_COUNT {
            assert!(model.submit(&store));
            assert!(model.submit(&store));
            assert!(model.wait(&store).await);
            println!("\ndurable {} {}", step + 1, model.durable);
        }
    });
    std::process::abort();
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let program = std::env::current_exe().expect("a program");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    for kill_after in [1, 7, 60, 200, KILLED_STEP_COUNT] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = std::process::Command::new(&program)
            .args([
                "--exact",
                "tests::the_process_that_is_killed",
                "--nocapture",
            ])
            .env(KILLED_FOLDER, folder.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("starts");
        let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        let mut acknowledged = (0, 0);
        while acknowledged.0 < kill_after {
            line.clear();
            let count = std::io::BufRead::read_line(&mut output, &mut line).expect("reads");
            assert!(count > 0, "it died by itself after {acknowledged:?}");
            let mut words = line.split_whitespace();
            if words.next() == Some("durable") {
                let mut number = || words.next()?.parse::<usize>().ok();
                acknowledged = (number().expect("a step"), number().expect("a number"));
            }
        }
        child.kill().expect("kills");
        child.wait().expect("ends");
        // The same random choices again: what it had submitted, and more.
        let mut model = Model::new(5);
        for _ in 0..KILLED_STEP_COUNT {
            for _ in 0..2 {
                // The store's own first group took position 1.
                let position = LogPosition(model.history.len() as u64 + 1);
                assert!(model.submit_to(|_| Ticket(position)));
            }
            model.durable = model.pick();
        }
        model.durable = acknowledged.1;
        let missing = [kill_after as u64 % 4, kill_after as u64 % 3];
        let env = cairn_base::real::env(runtime.handle().clone());
        runtime.block_on(async {
            let disks = real_disks(folder.path(), &missing);
            let opened = MetaStore::open(env.clone(), settings_on_folders(), VOLUME, disks).await;
            let (store, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&store, &recovered);
            store.abort().await;
        });
    }
}

/// A workload is recorded once; then the power goes at any operation, and any two disks with it.
#[test]
fn any_two_of_four_disks_may_go_at_any_moment() {
    let pool = Pool::new(4);
    let recorder = Recorder::new(&pool.disks);
    for (index, disk) in pool.disks.iter().enumerate() {
        disk.yield_at_random(index as u64, 3);
    }
    let mut acknowledged = Vec::new();
    let model = block_on(async {
        let world = TestWorld::new(3);
        let mut model = Model::new(3);
        let store = MetaStore::create(world.env.clone(), settings(3), VOLUME, pool.present())
            .await
            .expect("creates");
        acknowledged.push((recorder.op_count(), 0));
        for round in 0..60 {
            for _ in 0..3 {
                assert!(model.submit(&store));
            }
            assert!(model.wait(&store).await);
            acknowledged.push((recorder.op_count(), model.durable));
            if round % 17 == 9 {
                store.ship().await.expect("ships");
            }
        }
        store.close().await.expect("closes");
        let last = model.history.len() - 1;
        acknowledged.push((recorder.op_count(), last));
        model
    });
    let created = acknowledged[0].0;
    let step = ((recorder.op_count() - created) / 150).max(1);
    for index in (created..=recorder.op_count()).step_by(step) {
        let known = acknowledged.iter().rev().find(|(at, _)| *at <= index);
        let durable = known.map_or(0, |(_, number)| *number);
        for (first, second) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            let disks = recorder.crash_at(index, Crash::Random, index as u64);
            let missing = BTreeSet::from([first, second]);
            block_on(async {
                let world = TestWorld::new(index as u64);
                let opened = MetaStore::open(
                    world.env.clone(),
                    settings(3),
                    VOLUME,
                    present(&disks, &missing),
                );
                let (store, recovered) = opened
                    .await
                    .unwrap_or_else(|error| panic!("at {index} without {missing:?}: {error}"));
                let mut check = Model {
                    rng: Rng::new(1),
                    history: model.history.clone(),
                    tickets: model.tickets.clone(),
                    durable,
                };
                check.recovered(&store, &recovered);
                store.abort().await;
            });
        }
    }
}

/// As [`any_two_of_four_disks_may_go_at_any_moment`], from the moment on that more copies are wanted.
#[test]
fn copies_follow_the_setting_while_it_runs() {
    for seed in 0..10 {
        block_on(async {
            let pool = Pool::new(4);
            let recorder = Recorder::new(&pool.disks);
            let world = TestWorld::new(seed);
            let mut model = Model::new(seed);
            let store = MetaStore::create(world.env.clone(), settings(1), VOLUME, pool.present())
                .await
                .expect("creates");
            for (index, disk) in pool.disks.iter().enumerate() {
                disk.yield_at_random(index as u64, 3);
            }
            for _ in 0..=model.below(40) {
                assert!(model.submit(&store));
                if model.below(3) == 0 {
                    assert!(model.wait(&store).await);
                }
            }
            assert_eq!(store.stats().log_disks.len(), 1);
            store.set_copies(3).await.expect("three copies");
            assert!(model.wait(&store).await);
            let stats = store.stats();
            let counts = (
                stats.log_disks.len(),
                stats.states.len(),
                stats.copies_wanted,
            );
            assert_eq!(counts, (3, 3, 3));
            for _ in 0..model.below(5) {
                assert!(model.submit(&store));
                assert!(model.wait(&store).await);
            }
            for (first, second) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
                let disks = recorder.crash_at(recorder.op_count(), Crash::Random, seed);
                let disks = present(&disks, &BTreeSet::from([first, second]));
                let opened = MetaStore::open(world.env.clone(), settings(3), VOLUME, disks);
                let (opened, recovered) = opened.await.expect("opens without two disks");
                let mut check = Model {
                    rng: Rng::new(1),
                    history: model.history.clone(),
                    tickets: model.tickets.clone(),
                    durable: model.durable,
                };
                check.recovered(&opened, &recovered);
                opened.abort().await;
            }
            // Fewer again, which costs nothing that was acknowledged.
            store.set_copies(2).await.expect("two copies");
            assert_eq!(store.stats().log_disks.len(), 2);
            store.abort().await;
            drop(store);
            let store = reopen(&world, &pool, &mut model, 2).await;
            store.abort().await;
        });
    }
}

/// A disk leaves and another one comes while it runs; then any two of those that stay are lost, and the
/// one that left is not there either.
#[test]
fn disks_leave_and_come_while_it_runs() {
    for seed in 0..12 {
        block_on(async {
            let pool = Pool::new(6);
            let recorder = Recorder::new(&pool.disks);
            let world = TestWorld::new(seed);
            let mut model = Model::new(seed);
            let first = present(&pool.disks, &BTreeSet::from([5]));
            let created = MetaStore::create(world.env.clone(), settings(3), VOLUME, first);
            let store = created.await.expect("creates");
            for (index, disk) in pool.disks.iter().enumerate() {
                disk.yield_at_random(index as u64, 3);
            }
            let primary = store.primary_disk();
            assert!(store.retire_disk(primary).await.is_err());
            assert!(store.uses_disk(primary));
            // One that has a copy of the log, or one that has nothing.
            let leaving = if seed % 2 == 0 { 1 } else { 4 };
            let id = DiskId(leaving as u128 + 1);
            for _ in 0..=model.below(30) {
                assert!(model.submit(&store));
            }
            store.retire_disk(id).await.expect("retires");
            assert!(!store.uses_disk(id));
            assert!(model.wait(&store).await);
            let stats = store.stats();
            assert!(!stats.log_disks.contains(&id));
            assert!(stats.states.iter().all(|state| state.disk != id));
            assert_eq!((stats.log_disks.len(), stats.states.len()), (3, 3));
            let new: Arc<dyn Disk> = pool.disks[5].clone();
            store.add_disk(DiskId(6), new);
            for _ in 0..=model.below(10) {
                assert!(model.submit(&store));
                assert!(model.wait(&store).await);
            }
            let staying: Vec<usize> = (0..6).filter(|disk| *disk != leaving).collect();
            for first in 0..staying.len() {
                for second in first + 1..staying.len() {
                    let gone = BTreeSet::from([leaving, staying[first], staying[second]]);
                    let disks = recorder.crash_at(recorder.op_count(), Crash::Random, seed);
                    let disks = present(&disks, &gone);
                    let opened = MetaStore::open(world.env.clone(), settings(3), VOLUME, disks);
                    let (opened, recovered) = opened.await.expect("opens without three disks");
                    let mut check = Model {
                        rng: Rng::new(1),
                        history: model.history.clone(),
                        tickets: model.tickets.clone(),
                        durable: model.durable,
                    };
                    check.recovered(&opened, &recovered);
                    opened.abort().await;
                }
            }
            store.abort().await;
        });
    }
}

#[test]
fn disks_may_fail_while_it_runs() {
    for seed in 0..30 {
        block_on(async {
            let world = TestWorld::new(seed);
            let mut rng = Rng::new(seed);
            let mut pool = Pool::new(5);
            let mut model = Model::new(seed);
            let created =
                MetaStore::create(world.env.clone(), settings(3), VOLUME, pool.present()).await;
            let mut store = created.expect("creates");
            let failing: BTreeSet<usize> = (0..2).map(|_| rng.below(5) as usize).collect();
            for round in 0..40 {
                for disk in &failing {
                    if rng.below(20) == 0 {
                        pool.disks[*disk].fail_all();
                    }
                }
                model.submit(&store);
                let mut alive = model.wait(&store).await;
                if round % 10 == 5 {
                    alive &= store.ship().await.is_ok();
                }
                if !alive {
                    // The disk of the state itself: a restart goes on from another copy.
                    store.abort().await;
                    pool.missing = failing.clone();
                    store = reopen(&world, &pool, &mut model, 3).await;
                }
            }
            store.abort().await;
            pool.crash(Crash::LoseUnsynced, seed);
            pool.missing = failing;
            let store = reopen(&world, &pool, &mut model, 3).await;
            assert!(model.submit(&store));
            assert!(model.wait(&store).await);
        });
    }
}

#[test]
fn a_failed_write_goes_to_another_disk_before_it_is_acknowledged() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(4);
        let created = MetaStore::create(world.env.clone(), settings(3), VOLUME, pool.present());
        let store = created.await.expect("creates");
        pool.disks[1].fail_nth(OpKind::WriteDurable, 0, Fault::Io);
        let mut batch = Batch::new();
        batch.put(Key::inode(Ino(5)), vec![1, 2]);
        let ticket = store.submit(batch);
        store.durable(ticket).await.expect("durable");
        let stats = store.stats();
        assert_eq!(stats.log_disks, [DiskId(1), DiskId(3), DiskId(4)]);
        assert_eq!(stats.failed_disks, [DiskId(2)]);
        store.abort().await;
        let missing = BTreeSet::from([0, 2]);
        let opened = MetaStore::open(
            world.env.clone(),
            settings(3),
            VOLUME,
            present(&pool.disks, &missing),
        );
        let (store, _) = opened.await.expect("opens from the fourth disk");
        assert_eq!(store.epoch().0, 2);
        assert!(store.get(&Key::inode(Ino(5))).expect("reads").is_some());
    });
}

/// A record was on one disk only, as a crash between the writes of a group leaves it. That disk failed
/// while the next term began: what it alone had must be copied all the same, for the log goes on
/// without it.
#[test]
fn a_disk_that_fails_at_the_start_takes_no_record_with_it() {
    block_on(async {
        let world = TestWorld::new(3);
        let mut disks: Vec<_> = (0..2)
            .map(|index| MemDisk::new(format!("disk{index}"), 1 << 30))
            .collect();
        let all = || present(&disks, &BTreeSet::new());
        let store = MetaStore::create(world.env.clone(), settings(2), VOLUME, all())
            .await
            .expect("created");
        let put = |key| {
            let mut batch = Batch::new();
            batch.put(key, Bytes::from_static(b"value"));
            batch
        };
        store
            .durable(store.submit(put(Key::inode(Ino(1)))))
            .await
            .expect("durable");
        disks[1].fail_nth(OpKind::WriteDurable, 0, Fault::LoseWrite);
        store
            .durable(store.submit(put(Key::inode(Ino(2)))))
            .await
            .expect("durable");
        for (index, disk) in disks.iter_mut().enumerate() {
            *disk = disk.crash(Crash::LoseUnsynced, index as u64);
        }
        drop(store);

        disks[0].fail_nth(OpKind::Create, 0, Fault::Io);
        let all = present(&disks, &BTreeSet::new());
        let (store, _) = MetaStore::open(world.env.clone(), settings(2), VOLUME, all)
            .await
            .expect("opens");
        store
            .durable(store.submit(put(Key::inode(Ino(3)))))
            .await
            .expect("durable");
        for (index, disk) in disks.iter_mut().enumerate() {
            *disk = disk.crash(Crash::LoseUnsynced, index as u64);
        }
        drop(store);

        let left = present(&disks, &BTreeSet::from([0]));
        let (store, _) = MetaStore::open(world.env.clone(), settings(2), VOLUME, left)
            .await
            .expect("opens without the disk that failed");
        for number in 1..=3 {
            let found = store.get(&Key::inode(Ino(number))).expect("read");
            assert!(found.is_some(), "{number}");
        }
    });
}

#[test]
fn it_refuses_rather_than_to_guess() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(4);
        let env = || world.env.clone();
        let open = |missing: &[usize]| {
            let missing = missing.iter().copied().collect();
            MetaStore::open(env(), settings(3), VOLUME, present(&pool.disks, &missing))
        };
        assert!(matches!(
            open(&[]).await.err(),
            Some(MetaError::NotFound { disk_count: 4, .. })
        ));
        let store = MetaStore::create(env(), settings(3), VOLUME, pool.present());
        let store = store.await.expect("creates");
        let again = MetaStore::create(env(), settings(3), VOLUME, pool.present()).await;
        assert!(matches!(again.err(), Some(MetaError::Exists { .. })));
        let mut large = Batch::new();
        large.put(Key::inode(Ino(1)), vec![1; 20_000]);
        let ticket = store.submit(large);
        assert_eq!(ticket, Ticket::REFUSED);
        assert!(matches!(
            store.durable(ticket).await,
            Err(MetaError::BatchTooLarge { .. })
        ));
        for number in 0..5 {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(number)), vec![1; 5000]);
            let ticket = store.submit(batch);
            store.durable(ticket).await.expect("durable");
        }
        store.abort().await;
        assert!(matches!(
            open(&[0, 1, 3]).await.err(),
            Some(MetaError::TooManyMissing { missing: 3, .. })
        ));
        // A record in the middle damaged on all copies: later ones show that it is missing.
        let name = pool.disks[0]
            .file_names()
            .into_iter()
            .find(|name| name.contains("log."));
        let name = name.expect("a log file");
        for disk in &pool.disks[..3] {
            disk.flip_bit(&name, 4096 + 4096 + 100, 3);
        }
        assert!(matches!(
            open(&[]).await.err(),
            Some(MetaError::LogDamaged { .. })
        ));
        // With one good copy nothing is lost.
        pool.disks[1].flip_bit(&name, 4096 + 4096 + 100, 3);
        let (store, _) = open(&[]).await.expect("opens");
        assert_eq!(
            store
                .scan(&Key::inodes().0, &Key::inodes().1, 9)
                .expect("scans")
                .len(),
            5
        );
    });
}

#[test]
fn disks_used_apart_are_told_from_stale_ones() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        // Two copies: so one disk of three may be away.
        let open = |missing: &[usize]| {
            let missing = missing.iter().copied().collect();
            let disks = present(&pool.disks, &missing);
            MetaStore::open(world.env.clone(), settings(2), VOLUME, disks)
        };
        let put = |store: Arc<MetaStore>, ino: u64| async move {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(ino)), vec![1]);
            store.durable(store.submit(batch)).await.expect("durable");
            store.abort().await;
        };
        let created = MetaStore::create(world.env.clone(), settings(2), VOLUME, pool.present());
        put(created.await.expect("creates"), 1).await;
        let (store, _) = open(&[0]).await.expect("opens without the first");
        put(store, 2).await;
        let (store, _) = open(&[]).await.expect("opens with a stale first");
        assert!(store.get(&Key::inode(Ino(2))).expect("reads").is_some());
        put(store, 3).await;
        // Twice down to one disk, another each time: both sides have acknowledged on their own.
        let (store, _) = open(&[2]).await.expect("opens");
        store.ship().await.expect("ships");
        put(store, 4).await;
        let (store, _) = open(&[1, 2]).await.expect("members are two, one is away");
        put(store, 5).await;
        let (store, _) = open(&[0, 2]).await.expect("members are two, one is away");
        put(store, 6).await;
        assert!(matches!(
            open(&[]).await.err(),
            Some(MetaError::SplitHistory { .. })
        ));
    });
}

#[test]
fn the_log_is_recycled_and_waits_for_the_journal() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let created = MetaStore::create(world.env.clone(), settings(2), VOLUME, pool.present());
        let store = created.await.expect("creates");
        let write = |journal: Option<JournalEntry>, fold: Option<Fold>| {
            let store = store.clone();
            async move {
                let mut batch = Batch::new();
                batch.put(Key::inode(Ino(1)), vec![1; 3000]);
                journal.map(|entry| batch.journal(entry).len_bytes());
                fold.map(|fold| batch.fold(fold).len_bytes());
                let ticket = store.submit(batch);
                store.durable(ticket).await.expect("durable");
                ticket
            }
        };
        let entry = JournalEntry {
            position: LogPosition(0),
            ino: Ino(9),
            offset: 10,
            data: Bytes::from_static(b"0123456789"),
            size_bytes: 20,
            mtime: Timestamp::new(1, 2),
            ctime: Timestamp::new(3, 4),
            mode: 0o644,
        };
        for _ in 0..300 {
            write(None, None).await;
        }
        assert!(
            store.stats().log_bytes < 8 * LOG_FILE_BYTES_MIN,
            "{:?}",
            store.stats()
        );
        let files = pool.disks[0].file_names().len();
        assert!(files < 12, "{files} files");
        let pinned = write(Some(entry.clone()), None).await;
        for _ in 0..200 {
            write(None, None).await;
        }
        store.ship().await.expect("ships");
        let last = write(None, None).await;
        assert!(store.stats().log_start <= pinned.0);
        assert_eq!(store.journal_pressure().oldest, Some(pinned.0));
        assert_eq!(store.journal_inodes(last.0), [Ino(9)]);
        store.abort().await;
        let opened = MetaStore::open(world.env.clone(), settings(2), VOLUME, pool.present());
        let (store, recovered) = opened.await.expect("opens");
        let position = pinned.0;
        assert_eq!(recovered.journal, [JournalEntry { position, ..entry }]);
        let mut batch = Batch::new();
        batch.fold(Fold {
            ino: Ino(9),
            start: 0,
            end: u64::MAX,
            through: last.0,
        });
        store.durable(store.submit(batch)).await.expect("durable");
        assert_eq!(store.journal_pressure().data_bytes, 0);
        store.ship().await.expect("ships");
        store
            .durable(store.submit(Batch::new()))
            .await
            .expect("durable");
        assert!(store.stats().log_start > last.0);
    });
}

#[test]
fn admission_waits_for_the_queue() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(1);
        let mut settings = settings(1);
        settings.queue_bytes_max = 1000;
        let created = MetaStore::create(world.env.clone(), settings, VOLUME, pool.present());
        let store = created.await.expect("creates");
        store.admit().await;
        let mut batch = Batch::new();
        batch.put(Key::inode(Ino(1)), vec![1; 2000]);
        let ticket = store.submit(batch);
        assert!(!store.is_durable(ticket));
        store.admit().await;
        assert!(store.is_durable(ticket));
    });
}

/// Takes all space of a disk but some.
async fn fill(disk: &Arc<MemDisk>, name: &str, left_bytes: u64) {
    let free_bytes = disk.space().expect("says").free_bytes;
    let len_bytes = free_bytes.saturating_sub(left_bytes);
    let ballast = disk.open(name, OpenMode::CreateNew { len_bytes });
    drop(ballast.await.expect("fits"));
    disk.sync_folder("").await.expect("syncs");
}

async fn settle(world: &TestWorld) {
    for _ in 0..3 {
        world.clock.advance(std::time::Duration::from_secs(1));
        for _ in 0..500 {
            tokio::task::yield_now().await;
        }
    }
}

/// Neither the state nor, later, the log finds space: what was submitted stays readable and safe, also
/// over a restart, and goes on as soon as there is space.
#[test]
fn a_full_disk_delays_and_loses_nothing() {
    let mut unreplayed_count = 0;
    for seed in 0..20 {
        block_on(async {
            let world = TestWorld::new(seed);
            let mut pool = Pool::new(1);
            let mut model = Model::new(seed);
            let created =
                MetaStore::create(world.env.clone(), settings(1), VOLUME, pool.present()).await;
            let mut store = created.expect("creates");
            for _ in 0..100 {
                assert!(model.submit(&store));
            }
            let last = store.last_ticket();
            store.durable(last).await.expect("durable");
            store.ship().await.expect("ships");
            for round in 0..2 {
                assert!(model.submit(&store));
                let last = store.last_ticket();
                store.durable(last).await.expect("the log has room");
                // Log files that are not needed any more go before.
                settle(&world).await;
                fill(&pool.disks[0], &format!("ballast{round}"), 0).await;
                // A start that had no space to replay has nothing to write either.
                let shipped = store.ship().await;
                assert!(shipped.is_err() || store.is_full(), "round {round}");
                for _ in 0..3 {
                    assert!(model.submit(&store));
                    assert!(model.wait(&store).await, "the log has room");
                    model.compare(&store);
                }
                settle(&world).await;
                assert!(store.is_full() && store.stats().full, "round {round}");
                let stats = store.stats();
                assert!(stats.applied < stats.durable, "{stats:?}");
                if round == 0 {
                    pool.crash(Crash::LoseUnsynced, seed);
                    store.abort().await;
                    store = reopen_with_room_for_a_term(&world, &pool, &mut model).await;
                    unreplayed_count += usize::from(store.is_full());
                }
            }
            // Until the log is full, too: now they wait.
            for _ in 0..200 {
                assert!(model.submit(&store));
                settle_once().await;
            }
            let ticket = store.last_ticket();
            settle(&world).await;
            assert!(!store.is_durable(ticket), "there is no room for more");
            model.compare(&store);
            for name in ["ballast1", "ballast"] {
                pool.disks[0].remove(name).await.expect("removes");
            }
            settle(&world).await;
            store.durable(ticket).await.expect("durable");
            settle(&world).await;
            assert!(!store.is_full());
            assert_eq!(store.stats().applied, store.stats().durable);
            model.compare(&store);
            store.close().await.expect("closes");
            model.durable = model.history.len() - 1;
            let store = reopen(&world, &pool, &mut model, 1).await;
            assert!(model.submit(&store));
            store.abort().await;
        });
    }
    assert!(unreplayed_count > 0, "no start was short of space");
}

async fn settle_once() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Each start needs a log file of its own, so it gets room for that and for no more.
async fn reopen_with_room_for_a_term(
    world: &TestWorld,
    pool: &Pool,
    model: &mut Model,
) -> Arc<MetaStore> {
    let disk = &pool.disks[0];
    disk.remove("ballast0").await.expect("removes");
    fill(disk, "ballast", LOG_FILE_BYTES_MIN + 4096).await;
    reopen(world, pool, model, 1).await
}

/// RocksDB itself on a full disk: the files that it makes next are `/dev/full`. It looks by itself, every
/// five seconds, whether it can go on.
#[test]
fn rocksdb_goes_on_after_a_full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime");
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let disks = real_disks(folder.path(), &[1, 2, 3]);
        let settings = MetaSettings {
            log_file_bytes: 1 << 20,
            ..settings_on_folders()
        };
        let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks);
        let store = created.await.expect("creates");
        let mut model = Model::new(1);
        assert!(model.submit(&store));
        store.flush().await.expect("flushes");
        let state = folder.path().join("disk0/volumes/00000007/state");
        let traps: Vec<_> = (0..2000)
            .map(|number| state.join(format!("{number:06}.sst")))
            .filter(|path| std::os::unix::fs::symlink("/dev/full", path).is_ok())
            .collect();
        while !store.is_full() {
            assert!(model.submit(&store));
            let last = store.last_ticket();
            store.durable(last).await.expect("the log has room");
            model.durable = model.history.len() - 1;
        }
        model.compare(&store);
        assert!(model.submit(&store));
        assert!(model.wait(&store).await, "deletions would go on");
        assert!(store.ship().await.is_err());
        for trap in traps {
            // Those that were tried are gone.
            let _ = std::fs::remove_file(trap);
        }
        while store.is_full() {
            env.clock.sleep(std::time::Duration::from_millis(20)).await;
        }
        model.compare(&store);
        store.close().await.expect("closes");
        drop(store);
        model.durable = model.history.len() - 1;
        let disks = real_disks(folder.path(), &[1, 2, 3]);
        let opened = MetaStore::open(env, settings, VOLUME, disks).await;
        let (store, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(recovered.replayed_entries, 0);
        model.recovered(&store, &recovered);
        store.abort().await;
    });
}
