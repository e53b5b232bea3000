//! Changes of the number of copies; disks that drain, come and fail while the store runs.

use std::collections::VecDeque;

use cairn_base::Epoch;
use cairn_formats::metadata::log::{RecordBuf, Term};

use super::left_behind::expect_all;
use super::*;
use crate::disks::DiskSet;
use crate::log::LogWriter;
use crate::log::files::{FileMaker, TermInfo, file_name};
use crate::log::mirror::MirrorWriter;
use crate::tasks::Tasks;

/// As [`any_two_of_four_disks_may_go_at_any_moment`], from the moment on at which more copies are wanted.
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
            store.log().set_copies(3).await.expect("three copies");
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
            // Fewer again, which loses nothing acknowledged.
            store.log().set_copies(2).await.expect("two copies");
            assert_eq!(store.stats().log_disks.len(), 2);
            store.abort().await;
            drop(store);
            let store = reopen(&world, &pool, &mut model, 2).await;
            store.abort().await;
        });
    }
}

/// A disk drains and another one comes while the store runs. Then any two of the remaining disks are lost, and the
/// drained one is not there either.
#[test]
fn disks_leave_and_come_while_it_runs() {
    for seed in 0..12 {
        block_on(async {
            let pool = Pool::new(6);
            let recorder = Recorder::new(&pool.disks);
            let world = TestWorld::new(seed);
            let mut model = Model::new(seed);
            let first = present(&pool.disks, &BTreeSet::from([5]));
            let store = create(&world, 3, first).await;
            for (index, disk) in pool.disks.iter().enumerate() {
                disk.yield_at_random(index as u64, 3);
            }
            let primary = store.log().primary_disk();
            assert!(store.log().retire_disk(primary).await.is_err());
            assert!(store.log().uses_disk(primary));
            // A disk with a copy of the log, or one without.
            let draining = if seed % 2 == 0 { 1 } else { 4 };
            let id = DiskId(draining as u128 + 1);
            for _ in 0..=model.below(30) {
                assert!(model.submit(&store));
            }
            store.log().retire_disk(id).await.expect("retires");
            assert!(!store.log().uses_disk(id) && !store.log().keeps_on_disk(id));
            assert!(model.wait(&store).await);
            let stats = store.stats();
            assert!(!stats.log_disks.contains(&id));
            assert!(stats.states.iter().all(|state| state.disk != id));
            assert_eq!((stats.log_disks.len(), stats.states.len()), (3, 3));
            let new: Arc<dyn Disk> = pool.disks[5].clone();
            store
                .log()
                .add_disk(DiskId(6), new, crate::Preference::Last);
            for _ in 0..=model.below(10) {
                assert!(model.submit(&store));
                assert!(model.wait(&store).await);
            }
            let staying: Vec<usize> = (0..6).filter(|disk| *disk != draining).collect();
            for first in 0..staying.len() {
                for second in first + 1..staying.len() {
                    let gone = BTreeSet::from([draining, staying[first], staying[second]]);
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

/// Three preferred disks come one after the other, and log and copies move there. Then any two are lost.
#[test]
fn log_and_copies_go_to_the_disks_that_are_preferred() {
    for seed in 0..12 {
        block_on(async {
            let pool = Pool::new(6);
            let recorder = Recorder::new(&pool.disks);
            let world = TestWorld::new(seed);
            let mut model = Model::new(seed);
            let others = present(&pool.disks, &BTreeSet::from([3, 4, 5]));
            let store = create(&world, 3, others).await;
            for (index, disk) in pool.disks.iter().enumerate() {
                disk.yield_at_random(index as u64, 3);
            }
            for index in [3, 4, 5] {
                for _ in 0..=model.below(20) {
                    assert!(model.submit(&store));
                }
                let id = DiskId(index as u128 + 1);
                let disk: Arc<dyn Disk> = pool.disks[index].clone();
                store.log().add_disk(id, disk, crate::Preference::First);
                assert!(model.submit(&store));
                let last = store.last_ticket();
                store.durable(last).await.expect("the last group");
                let on_it = store.stats().log_disks.contains(&id);
                assert!(on_it, "the log has disk {index} at once");
            }
            store.ship().await.expect("ships");
            let stats = store.stats();
            let preferred = BTreeSet::from([4, 5, 6].map(DiskId));
            let log: BTreeSet<DiskId> = stats.log_disks.iter().copied().collect();
            assert_eq!(log, preferred);
            let fresh = stats
                .states
                .iter()
                .filter(|it| it.position == stats.applied);
            let on_preferred = fresh.filter(|it| preferred.contains(&it.disk)).count();
            // The third copy is on the disk of the working state.
            assert_eq!(on_preferred, 2);
            assert!(stats.is_all_on(&[DiskId(4), DiskId(5)]));
            for first in 0..6 {
                for second in first + 1..6 {
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
                    // The disk of the working state: a restart goes on from another copy.
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
        let store = create(&world, 3, pool.present()).await;
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
        assert!(
            store
                .live()
                .get(&Key::inode(Ino(5)))
                .expect("reads")
                .is_some()
        );
    });
}

/// A record is on one disk only, as a crash between the writes of a group leaves it. That disk fails while the next
/// term begins. Its records must still be copied: the log goes on without the disk.
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
            let found = store.live().get(&Key::inode(Ino(number))).expect("read");
            assert!(found.is_some(), "{number}");
        }
    });
}

/// As above, but the disk takes the copy of an older record with it, which is much larger than the record for which a
/// file was made.
#[test]
fn a_disk_that_fails_at_the_start_may_have_large_records() {
    block_on(async {
        let world = TestWorld::new(4);
        let mut pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
        let mut batch = Batch::new();
        batch.put(Key::inode(Ino(1)), vec![7; 12_000]);
        store.durable(store.submit(batch)).await.expect("durable");
        pool.disks[1].fail_nth(OpKind::WriteDurable, 0, Fault::LoseWrite);
        store.durable(store.submit(put(2))).await.expect("durable");
        pool.crash(Crash::LoseUnsynced, 0);
        store.abort().await;

        pool.disks[0].fail_nth(OpKind::Create, 0, Fault::Io);
        for missing in [BTreeSet::new(), BTreeSet::from([0])] {
            let disks = present(&pool.disks, &missing);
            let opened = MetaStore::open(world.env.clone(), settings(2), VOLUME, disks).await;
            let (store, _) = opened.unwrap_or_else(|error| panic!("{missing:?}: {error}"));
            for number in 1..=2 {
                let found = store.live().get(&Key::inode(Ino(number))).expect("read");
                assert!(found.is_some(), "{number}, {missing:?}");
            }
            pool.crash(Crash::LoseUnsynced, 1);
            store.abort().await;
        }
    });
}

fn journal_of(ino: Ino, position: u64) -> JournalEntry {
    JournalEntry {
        position: LogPosition(position),
        ino,
        offset: 10,
        data: Bytes::from_static(b"0123456789"),
        encryption: None,
        size_bytes: 20,
        mtime: Timestamp::new(1, 2),
        ctime: Timestamp::new(3, 4),
        mode: 0o644,
    }
}

/// An entry that only the log has, until it is folded.
async fn write_journal(store: &MetaStore) -> JournalEntry {
    write_journal_of(store, Ino(9)).await
}

async fn write_journal_of(store: &MetaStore, ino: Ino) -> JournalEntry {
    let mut batch = Batch::new();
    batch.journal(journal_of(ino, 0));
    let ticket = store.submit(batch);
    store.durable(ticket).await.expect("durable");
    journal_of(ino, ticket.0.0)
}

/// A copy that has lost a record is no source for more copies.
#[test]
fn copies_are_made_of_what_is_whole() {
    // The record itself, and the last one.
    for (later, damaged) in [(1, 8192 + 70), (0, 8192 + 70), (1, 10)] {
        block_on(async {
            let world = TestWorld::new(1);
            let pool = Pool::new(3);
            let store = create(&world, 2, pool.present()).await;
            let entry = write_journal(&store).await;
            for number in 0..later {
                let ticket = store.submit(put(number + 1));
                store.durable(ticket).await.expect("durable");
            }
            let names = pool.disks[0].file_names();
            let name = names
                .iter()
                .find(|name| name.contains("log."))
                .expect("a log file");
            pool.disks[0].flip_bit(name, damaged, 3);
            store.log().set_copies(3).await.expect("three copies");
            store.abort().await;
            let disks = present(&pool.disks, &BTreeSet::from([1]));
            let (store, recovered) = open(&world, 3, disks).await;
            assert_eq!(recovered.journal, [entry]);
            store.abort().await;
        });
    }
}

/// With one copy the log may be on another disk than the state. When that disk drains, its records are copied first.
#[test]
fn the_only_copy_of_the_log_leaves_with_nothing() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let second = present(&pool.disks, &BTreeSet::from([0]));
        let created = MetaStore::create(world.env.clone(), settings(1), VOLUME, second).await;
        created.expect("creates").close().await.expect("closes");
        let (store, _) = open(&world, 1, pool.present()).await;
        assert_eq!(store.log().primary_disk(), DiskId(2));
        assert_eq!(store.stats().log_disks, [DiskId(1)]);
        let entry = write_journal(&store).await;
        store.log().retire_disk(DiskId(1)).await.expect("retires");
        store.abort().await;
        let left = present(&pool.disks, &BTreeSet::from([0]));
        let (store, recovered) = open(&world, 1, left).await;
        assert_eq!(recovered.journal, [entry]);
        store.abort().await;
    });
}

/// The fold of a journal entry goes into the log together with the request for more copies, after the copies of older
/// records. If that is cut short in between, the entry still exists and the fold does not.
#[test]
fn copies_of_older_records_do_not_count_on_what_comes_after_them() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let third = present(&pool.disks, &BTreeSet::from([0, 1]));
        create(&world, 1, third)
            .await
            .close()
            .await
            .expect("closes");
        let (store, _) = open(&world, 2, pool.present()).await;
        assert_eq!(store.log().primary_disk(), DiskId(3));
        assert_eq!(store.stats().log_disks, [DiskId(1), DiskId(2)]);
        let entry = write_journal(&store).await;
        let later = write_journal_of(&store, Ino(10)).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        while store.stats().applied < later.position {
            tokio::task::yield_now().await;
        }
        // Now the journal alone holds the log back.
        store.ship().await.expect("ships");
        let recorder = Recorder::new(&pool.disks);
        let mut batch = put(99);
        batch.fold(Fold {
            ino: entry.ino,
            start: 0,
            end: u64::MAX,
            through: entry.position,
        });
        // Both are in one group: there is no await in between.
        store.submit(batch);
        store.log().retire_disk(DiskId(2)).await.expect("retires");
        let count = recorder.op_count();
        store.abort().await;
        for index in 0..=count {
            for mode in Crash::ALL {
                let disks = recorder.crash_at(index, mode, index as u64);
                let disks = present(&disks, &BTreeSet::new());
                let (store, recovered) = open(&world, 2, disks).await;
                let is_folded = store
                    .live()
                    .get(&Key::inode(Ino(99)))
                    .expect("reads")
                    .is_some();
                assert!(
                    is_folded || recovered.journal.contains(&entry),
                    "cut before {}",
                    recorder.describe(index)
                );
                store.abort().await;
            }
        }
    });
}

fn first_term() -> Term {
    Term {
        epoch: Epoch(1),
        nonce: 1,
        start: LogPosition(1),
    }
}

/// A maker of log files in which all records are still needed.
fn file_maker(world: &TestWorld, disks: DiskSet, term: Term) -> FileMaker {
    FileMaker {
        env: world.env.clone(),
        tasks: Tasks::new(world.env.spawner.clone()),
        disks,
        info: TermInfo {
            log_file_bytes: LOG_FILE_BYTES_MIN,
            history: vec![term],
            members: None,
        },
        spares: Arc::default(),
        headers: Arc::default(),
        stays_on: Vec::new(),
        retained_from: LogPosition(1),
        write_wait: std::time::Duration::from_millis(500),
        may_shorten: true,
        leaves_room: false,
    }
}

/// Disks have no room for a whole log file, and a second one gets copies. The copies and the next record do not fit
/// into one short file.
#[test]
fn no_record_is_written_past_the_end_of_a_short_file_with_copies() {
    const FILE_BYTES: u64 = 4 * LOG_FILE_BYTES_MIN;
    const RECORD_BYTES: usize = 40 << 10;
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let disks = DiskSet::new(VOLUME, pool.present(), 1);
        let term = first_term();
        let mut files = file_maker(&world, disks.clone(), term);
        files.info.log_file_bytes = FILE_BYTES;
        let started = MirrorWriter::start(files, 1, VecDeque::new(), Vec::new()).await;
        let mut log = started.expect("starts");
        for disk in &pool.disks {
            limits::fill(disk, "ballast", FILE_BYTES - (56 << 10)).await;
        }
        for position in 1..=2 {
            let positions = (LogPosition(position), LogPosition(position));
            let payload = vec![position as u8; RECORD_BYTES];
            let record = RecordBuf::copy_of(&payload, positions, term.epoch, term.nonce);
            let appended = log.append(record, LogPosition(1), false).await;
            appended.expect("appends");
            disks.want_copies(2);
        }
        let (retained, _) = log.into_retained();
        let short = retained.iter().filter(|file| file.len_bytes < FILE_BYTES);
        assert_eq!(short.count(), 2);
        let last = retained.back().expect("not empty");
        assert_eq!((last.last, last.disks.len()), (LogPosition(2), 2));
        for file in &retained {
            for disk in &file.disks {
                let name = file_name(&disks.folder(), file.sequence);
                let found = pool.disks[*disk].open(&name, OpenMode::Existing).await;
                assert_eq!(found.expect("opens").len_bytes(), file.len_bytes);
            }
        }
    });
}

/// Older records are copied behind newer ones when the copied files overlap. A file is needed as long as any of its
/// records is.
#[test]
fn a_copy_of_an_older_record_hides_no_newer_one() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(1);
        let term = first_term();
        let files = file_maker(&world, DiskSet::new(VOLUME, pool.present(), 1), term);
        let started = MirrorWriter::start(files, 1, VecDeque::new(), Vec::new()).await;
        let mut log = started.expect("starts");
        for position in [4, 5, 3] {
            let positions = (LogPosition(position), LogPosition(position));
            let record = RecordBuf::copy_of(b"payload", positions, term.epoch, term.nonce);
            let appended = log.append(record, LogPosition(1), false).await;
            appended.expect("appends");
        }
        let (retained, _) = log.into_retained();
        let last: Vec<LogPosition> = retained.iter().map(|file| file.last).collect();
        assert_eq!(last, [LogPosition(5)]);
    });
}

/// The disk of the log drains, and no other disk has space for a file. New writes then wait, and at no time are they on
/// no disk. With space again, the disk is released.
#[test]
fn nothing_is_acknowledged_while_no_disk_has_space_for_the_log() {
    for gets_space in [false, true] {
        block_on(async {
            let world = TestWorld::new(1);
            let mut pool = Pool::new(2);
            let second = present(&pool.disks, &BTreeSet::from([0]));
            create(&world, 1, second)
                .await
                .close()
                .await
                .expect("closes");
            let (store, _) = open(&world, 1, pool.present()).await;
            assert_eq!(store.log().primary_disk(), DiskId(2));
            assert_eq!(store.stats().log_disks, [DiskId(1)]);
            let entry = write_journal(&store).await;
            limits::fill(&pool.disks[1], "ballast", 0).await;
            pool.disks[1].inject(FaultRule {
                kind: Some(OpKind::Rename),
                name_part: String::new(),
                skip: 0,
                times: u64::MAX,
                fault: Fault::Full,
            });
            let retiring = {
                let store = store.clone();
                tokio::spawn(async move { store.log().retire_disk(DiskId(1)).await })
            };
            limits::settle(&world).await;
            let ticket = store.submit(put(5));
            limits::settle(&world).await;
            assert!(!retiring.is_finished());
            let is_durable = store.is_durable(ticket);
            if gets_space {
                pool.disks[1].clear_faults();
                pool.disks[1].remove("ballast").await.expect("removes");
                limits::settle(&world).await;
                store.durable(ticket).await.expect("durable");
                let retired = retiring.await.expect("ends");
                assert!(
                    matches!(retired, Err(MetaError::CopiesMissing { .. })),
                    "{retired:?}"
                );
                store.log().retire_disk(DiskId(1)).await.expect("retires");
                pool.missing = BTreeSet::from([0]);
            }
            pool.crash(Crash::LoseUnsynced, 1);
            store.abort().await;
            let (store, recovered) = open(&world, 1, pool.present()).await;
            let found = store
                .live()
                .get(&Key::inode(Ino(5)))
                .expect("reads")
                .is_some();
            assert!(found || !is_durable, "acknowledged, and gone");
            assert!(found || !gets_space);
            assert_eq!(recovered.journal, [entry]);
            store.abort().await;
        });
    }
}

/// Copies that find no space are reported as missing until they are made: the draining disk has one of them.
#[test]
fn a_disk_does_not_leave_while_its_copies_find_no_space() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
        let entry = write_journal(&store).await;
        limits::fill(&pool.disks[2], "ballast", 0).await;
        for _ in 0..2 {
            let retired = store.log().retire_disk(DiskId(2)).await;
            assert!(
                matches!(retired, Err(MetaError::CopiesMissing { .. })),
                "{retired:?}"
            );
            let copies = store.log().set_copies(2).await;
            assert!(
                matches!(copies, Err(MetaError::CopiesMissing { .. })),
                "{copies:?}"
            );
            assert!(store.stats().log_is_short);
            assert!(store.log().uses_disk(DiskId(2)) && !store.log().keeps_on_disk(DiskId(2)));
        }
        pool.disks[2].remove("ballast").await.expect("removes");
        store.log().retire_disk(DiskId(2)).await.expect("retires");
        assert!(!store.log().uses_disk(DiskId(2)));
        assert!(!store.stats().log_is_short);
        store.abort().await;
        let left = present(&pool.disks, &BTreeSet::from([0, 1]));
        let (store, recovered) = open(&world, 2, left).await;
        assert_eq!(recovered.journal, [entry]);
        store.abort().await;
    });
}

/// Failed attempts leave no files behind, however many there are.
#[test]
fn a_disk_that_cannot_leave_does_not_fill_the_others_with_log() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
        limits::fill(&pool.disks[2], "ballast", 0).await;
        for number in 0..50 {
            let retired = store.log().retire_disk(DiskId(2)).await;
            assert!(
                matches!(retired, Err(MetaError::CopiesMissing { .. })),
                "{retired:?}"
            );
            let stats = store.stats();
            assert!(
                stats.log_bytes <= 4 * LOG_FILE_BYTES_MIN,
                "{number}: {stats:?}"
            );
        }
        pool.disks[2].remove("ballast").await.expect("removes");
        store.log().retire_disk(DiskId(2)).await.expect("retires");
        assert!(!store.stats().log_is_short);
        store.abort().await;
    });
}

/// Disks with less free space than a log file: the volume still opens with all copies, and goes on.
#[test]
fn a_volume_opens_where_no_disk_has_room_for_a_whole_log_file() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        store.abort().await;
        for disk in &pool.disks {
            limits::fill(disk, "ballast", LOG_FILE_BYTES_MIN * 3 / 4).await;
        }
        let (store, _) = open(&world, 2, pool.present()).await;
        assert!(!store.stats().log_is_short);
        store.durable(store.submit(put(2))).await.expect("durable");
        store.abort().await;
        // With room again, files have their full length.
        for disk in &pool.disks {
            disk.remove("ballast").await.expect("removes");
        }
        let (store, _) = open(&world, 2, pool.present()).await;
        for number in 3..=4 * LOG_FILE_BYTES_MIN / 4096 {
            let ticket = store.submit(put(number));
            store.durable(ticket).await.expect("durable");
        }
        store.abort().await;
        let (store, _) = open(&world, 2, pool.present()).await;
        for number in 1..=4 * LOG_FILE_BYTES_MIN / 4096 {
            let found = store.live().get(&Key::inode(Ino(number)));
            assert!(found.expect("reads").is_some(), "{number}");
        }
        store.abort().await;
    });
}

/// A log file that runs out of space in the middle (on a thin device) does not fault its disk.
#[test]
fn an_append_without_space_does_not_lose_the_disk() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        pool.disks[0].fail_nth(OpKind::WriteDurable, 0, Fault::Full);
        store.durable(store.submit(put(1))).await.expect("durable");
        assert_eq!(store.stats().failed_disks, []);
        store.abort().await;
        let (store, _) = open(&world, 1, pool.present()).await;
        assert!(
            store
                .live()
                .get(&Key::inode(Ino(1)))
                .expect("reads")
                .is_some()
        );
        store.abort().await;
    });
}

/// A disk with a copy of the state drains only when another copy exists.
#[test]
fn a_disk_does_not_leave_while_the_copies_of_the_state_find_no_space() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        store.ship().await.expect("ships");
        store.durable(store.submit(put(2))).await.expect("durable");
        pool.disks[2].inject(FaultRule {
            kind: None,
            name_part: "state".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Full,
        });
        for _ in 0..2 {
            let retired = store.log().retire_disk(DiskId(2)).await;
            assert!(
                matches!(retired, Err(MetaError::CopiesMissing { .. })),
                "{retired:?}"
            );
            assert!(store.log().uses_disk(DiskId(2)));
        }
        pool.disks[2].clear_faults();
        store.log().retire_disk(DiskId(2)).await.expect("retires");
        store.abort().await;
        let (store, _) = open(&world, 2, present(&pool.disks, &BTreeSet::from([0, 1]))).await;
        expect_all(&store, 1..=2).await;
        store.abort().await;
    });
}

/// With fewer copies the log stays on its disks, though a start would choose another one.
#[test]
fn fewer_copies_are_kept_where_the_log_is() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        limits::fill(&pool.disks[0], "ballast", 0).await;
        let third = present(&pool.disks, &BTreeSet::from([0, 1]));
        let created = MetaStore::create(world.env.clone(), settings(1), VOLUME, third).await;
        created.expect("creates").close().await.expect("closes");
        let (store, _) = open(&world, 2, pool.present()).await;
        assert_eq!(store.stats().log_disks, [DiskId(2), DiskId(3)]);
        pool.disks[0].remove("ballast").await.expect("removes");
        store.log().set_copies(1).await.expect("one copy");
        assert_eq!(store.stats().log_disks, [DiskId(2)]);
        for number in 1..200 {
            store
                .durable(store.submit(put(number)))
                .await
                .expect("durable");
        }
        assert_eq!(store.stats().log_disks, [DiskId(2)]);
        store.abort().await;
    });
}
