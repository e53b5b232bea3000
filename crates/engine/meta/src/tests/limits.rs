//! The log is recycled, queues are bounded, disks are full.

use cairn_base::env::BoxFuture;
use cairn_testkit::Pace;

use super::left_behind::expect_all;
use super::*;

#[test]
fn the_log_is_recycled_and_waits_for_the_journal() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
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
            encryption: None,
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

/// A server ends soon after each of its starts, for example for lack of memory: the log names the starts whose records
/// it still holds, up to a limit.
#[test]
fn starts_that_end_early_do_not_use_up_the_terms() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        create(&world, 2, pool.present()).await.abort().await;
        for round in 0..300u64 {
            let (store, _) = open(&world, 2, pool.present()).await;
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(round + 2)), vec![1; 300]);
            let ticket = store.submit(batch);
            store.durable(ticket).await.expect("durable");
            store.abort().await;
        }
        let (store, _) = open(&world, 2, pool.present()).await;
        for round in 0..300u64 {
            let found = store
                .live()
                .get(&Key::inode(Ino(round + 2)))
                .expect("reads");
            assert!(found.is_some(), "{round}");
        }
        store.abort().await;
    });
}

/// As before, with one small write that is never put into a segment: it has to stay in the log, and retains the whole
/// log since.
#[test]
fn starts_that_end_early_keep_the_journal_and_not_the_terms() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        let entry = |offset, len, byte, ctime, size_bytes| JournalEntry {
            position: LogPosition(0),
            ino: Ino(9),
            offset,
            data: Bytes::from(vec![byte; len]),
            encryption: None,
            size_bytes,
            mtime: Timestamp::new(ctime, 1),
            ctime: Timestamp::new(ctime, 2),
            mode: 0o600 + ctime as u32,
        };
        // More than fits into a batch; overwritten in the middle; truncated before the last one.
        let entries = [
            entry(0, 12_000, 1, 1, 12_000),
            entry(12_000, 12_000, 2, 2, 24_000),
            entry(6_000, 12_000, 3, 2, 24_000),
            entry(30_000, 10, 4, 4, 30_010),
            JournalEntry {
                ino: Ino(10),
                ..entry(5, 20, 5, 1, 25)
            },
        ];
        for entry in entries {
            let mut batch = Batch::new();
            batch.journal(entry);
            let ticket = store.submit(batch);
            store.durable(ticket).await.expect("durable");
        }
        let folded = store.submit({
            let mut batch = Batch::new();
            batch.fold(Fold {
                ino: Ino(9),
                start: 0,
                end: 100,
                through: store.last_ticket().0,
            });
            batch
        });
        store.durable(folded).await.expect("durable");
        store.abort().await;
        let mut first = Vec::new();
        for round in 0..250u64 {
            let (store, recovered) = open(&world, 2, pool.present()).await;
            if round == 60 {
                assert!(recovered.journal[0].position > folded.0);
            }
            assert_eq!(
                store.journal_pressure().oldest,
                recovered.journal.iter().map(|entry| entry.position).min()
            );
            let mut files = BTreeMap::<(Ino, u64), u8>::new();
            for entry in &recovered.journal {
                let bytes = (entry.offset..).zip(entry.data.iter());
                files.extend(bytes.map(|(offset, byte)| ((entry.ino, offset), *byte)));
            }
            if round == 0 {
                first = files.into_iter().collect();
                assert_eq!(first.len(), 24_000 - 100 + 10 + 20);
            } else {
                let same = files.into_iter().eq(first.iter().copied());
                assert!(same, "{round}");
            }
            let last = recovered.journal.iter().rfind(|entry| entry.ino == Ino(9));
            let last = last.expect("an entry");
            assert_eq!((last.size_bytes, last.mode), (30_010, 0o604), "{round}");
            store.abort().await;
        }
    });
}

/// One of two healthy disks never has space for a copy of the state: the log is still cut, and its terms do not run
/// out.
#[test]
fn the_log_is_cut_while_a_disk_has_no_space_for_the_state() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        pool.disks[1].inject(FaultRule {
            kind: Some(OpKind::Create),
            name_part: "state".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Full,
        });
        let settings = || MetaSettings {
            log_bytes_max: 8 * LOG_FILE_BYTES_MIN,
            ..settings(2)
        };
        let created = MetaStore::create(world.env.clone(), settings(), VOLUME, pool.present());
        let store = created.await.expect("creates");
        for number in 1..=50 * LOG_FILE_BYTES_MIN / 4096 {
            store
                .durable(store.submit(put(number)))
                .await
                .expect("durable");
            if number % 40 == 0 {
                store.ship().await.expect("ships");
            }
            let stats = store.stats();
            assert!(stats.log_bytes < 16 * LOG_FILE_BYTES_MIN, "{stats:?}");
        }
        let stats = store.stats();
        assert!(stats.copies_missing && stats.failed_disks.is_empty() && stats.ship_errors > 0);
        store.abort().await;
        for number in 1..=110 {
            let opened = MetaStore::open(world.env.clone(), settings(), VOLUME, pool.present());
            let (store, _) = opened
                .await
                .unwrap_or_else(|error| panic!("{number}: {error}"));
            if number % 2 == 0 {
                store.close().await.expect("closes");
            } else {
                store.ship().await.expect("ships");
                store
                    .durable(store.submit(put(number)))
                    .await
                    .expect("durable");
                store.abort().await;
            }
        }
    });
}

/// A state whose copies never complete.
struct NeverShips;

impl Pace for NeverShips {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let is_copy = kind == OpKind::Create && name.contains("state");
        is_copy.then(|| -> BoxFuture<()> { Box::pin(std::future::pending()) })
    }
}

/// Lives that end before the first copy of the state leave a long log, which is all that another disk has.
#[test]
fn the_log_is_not_cut_before_the_first_copy_of_the_state_was_tried() {
    block_on(async {
        let mut pool = Pool::new(2);
        let settings = || MetaSettings {
            log_bytes_max: 4 * LOG_FILE_BYTES_MIN,
            ..settings(2)
        };
        let mut primary = DiskId(0);
        for number in 1..=20 {
            let world = TestWorld::new(1);
            let (env, disks) = (world.env.clone(), pool.present());
            for ((id, _), disk) in disks.iter().zip(&pool.disks) {
                if number > 1 && *id != primary {
                    disk.pace_with(Arc::new(NeverShips));
                }
            }
            let store = match number {
                1 => MetaStore::create(env, settings(), VOLUME, disks).await,
                _ => {
                    let opened = MetaStore::open(env, settings(), VOLUME, disks).await;
                    opened.map(|(store, _)| store)
                }
            };
            let store = store.unwrap_or_else(|error| panic!("{number}: {error}"));
            primary = store.log().primary_disk();
            let durable = store.durable(store.submit(put(number))).await;
            durable.expect("durable");
            // The disk of the working state has it up to now, and the other one is about to.
            settle(&world).await;
            pool.crash(Crash::LoseUnsynced, number);
        }
        let world = TestWorld::new(1);
        let mut others = pool.present();
        others.retain(|(id, _)| *id != primary);
        let opened = MetaStore::open(world.env.clone(), settings(), VOLUME, others);
        let (store, _) = opened.await.unwrap_or_else(|error| panic!("{error}"));
        expect_all(&store, 1..=20).await;
        store.abort().await;
    });
}

/// As above, for a disk that came later, when others had their copies.
#[test]
fn the_log_is_not_cut_before_a_new_disk_was_asked_for_the_state() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let settings = MetaSettings {
            log_bytes_max: 4 * LOG_FILE_BYTES_MIN,
            ..settings(3)
        };
        let mut disks = pool.present();
        let (id, disk) = disks.pop().unwrap();
        let created = MetaStore::create(world.env.clone(), settings, VOLUME, disks);
        let store = created.await.expect("creates");
        let durable = store.durable(store.submit(put(1))).await;
        durable.expect("durable");
        store.ship().await.expect("ships");
        pool.disks[2].pace_with(Arc::new(NeverShips));
        store.log().add_disk(id, disk, crate::Preference::Last);
        let count = 12 * LOG_FILE_BYTES_MIN / 4096;
        for number in 2..=count {
            let durable = store.durable(store.submit(put(number))).await;
            durable.expect("durable");
        }
        let stats = store.stats();
        assert!(stats.log_bytes > 8 * LOG_FILE_BYTES_MIN, "{stats:?}");
        assert!(!stats.log_is_short, "{stats:?}");
        let crashed = pool.disks[2].crash(Crash::LoseUnsynced, 1);
        let world = TestWorld::new(1);
        let (store, _) = open(&world, 3, vec![(id, crashed)]).await;
        expect_all(&store, 1..=count).await;
        store.abort().await;
    });
}

/// The only other copy of the state is on a draining disk, which cannot be released because no other disk has space for
/// a copy: the copy is kept current until then.
#[test]
fn the_copy_on_a_disk_that_cannot_leave_yet_stays_of_use() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let settings = || MetaSettings {
            log_bytes_max: 8 * LOG_FILE_BYTES_MIN,
            ..settings(2)
        };
        let created = MetaStore::create(world.env.clone(), settings(), VOLUME, pool.present());
        let store = created.await.expect("creates");
        store.ship().await.expect("ships");
        let states = store.stats().states;
        let copy = states.iter().map(|state| state.disk);
        let copies: Vec<DiskId> = copy
            .filter(|disk| *disk != store.log().primary_disk())
            .collect();
        assert_eq!(copies.len(), 1);
        let is_other = |disk: &DiskId| *disk != store.log().primary_disk() && *disk != copies[0];
        let (other, _) = pool
            .present()
            .into_iter()
            .find(|(id, _)| is_other(id))
            .unwrap();
        let index_of = |id: DiskId| pool.present().iter().position(|(at, _)| *at == id).unwrap();
        pool.disks[index_of(other)].inject(FaultRule {
            kind: Some(OpKind::Create),
            name_part: "state".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Full,
        });
        let primary = store.log().primary_disk();
        for number in 1..=50 * LOG_FILE_BYTES_MIN / 4096 {
            let durable = store.durable(store.submit(put(number))).await;
            durable.expect("durable");
            if number % 40 == 0 {
                store.ship().await.expect("ships");
                let left = store.log().retire_disk(copies[0]).await;
                assert!(
                    matches!(left, Err(MetaError::CopiesMissing { .. })),
                    "{left:?}"
                );
            }
            let stats = store.stats();
            assert!(stats.log_bytes < 16 * LOG_FILE_BYTES_MIN, "{stats:?}");
        }
        store.abort().await;
        let mut present = pool.present();
        present.retain(|(id, _)| *id != primary);
        let opened = MetaStore::open(world.env.clone(), settings(), VOLUME, present);
        let (store, _) = opened.await.unwrap_or_else(|error| panic!("{error}"));
        store.abort().await;
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

/// Fills a disk except for `left_bytes`.
pub(super) async fn fill(disk: &Arc<MemDisk>, name: &str, left_bytes: u64) {
    let free_bytes = disk.space().expect("says").free_bytes;
    let len_bytes = free_bytes.saturating_sub(left_bytes);
    let ballast = disk.open(name, OpenMode::CreateNew { len_bytes });
    drop(ballast.await.expect("fits"));
    disk.sync_folder("").await.expect("syncs");
}

pub(super) async fn settle(world: &TestWorld) {
    for _ in 0..3 {
        world.clock.advance(std::time::Duration::from_secs(1));
        for _ in 0..500 {
            tokio::task::yield_now().await;
        }
    }
}

/// The log of an idle volume shrinks to one file on each disk, and loses nothing.
#[test]
fn a_quiet_log_gives_back_what_it_does_not_need() {
    const COUNT: u64 = 200;
    block_on(async {
        let world = TestWorld::new(9);
        let pool = Pool::new(2);
        let files = || -> usize {
            let names = pool.disks.iter().flat_map(|disk| disk.file_names());
            names.filter(|name| name.contains("/log.")).count()
        };
        // The state is never shipped automatically, so that the whole log is retained.
        let settings = || MetaSettings {
            ship_bytes: 1 << 30,
            ..settings(2)
        };
        let created =
            MetaStore::create(world.env.clone(), settings(), VOLUME, pool.present()).await;
        let store = created.expect("creates");
        let mut most = 0;
        for number in 1..=COUNT {
            let ticket = store.submit(put(number));
            store.durable(ticket).await.expect("durable");
            most = most.max(files());
        }
        assert!(most > 10, "{most} files");
        let changed = store.last_ticket();
        for _ in 0..2 {
            store.give_back_log();
            settle(&world).await;
        }
        // The store's own batch does not end the idle time, or the work would repeat for ever.
        for _ in 0..2 {
            assert!(store.last_ticket() > changed);
            assert_eq!(store.last_change(), changed);
            let ticket = store.shared.submit_quiet();
            store.durable(ticket).await.expect("durable");
        }
        // The open file, the prepared one if there is one, and one whose header still counts.
        let left = files();
        assert!(left <= 3 * pool.disks.len(), "{left} files");
        let stats = store.stats();
        assert!(stats.log_bytes <= 2 * LOG_FILE_BYTES_MIN, "{stats:?}");
        for number in COUNT + 1..=2 * COUNT {
            let ticket = store.submit(put(number));
            assert_eq!(store.last_change(), ticket);
            store.durable(ticket).await.expect("durable");
        }
        store.abort().await;
        drop(store);
        let opened = MetaStore::open(world.env.clone(), settings(), VOLUME, pool.present()).await;
        let (store, _) = opened.expect("opens");
        for number in 1..=2 * COUNT {
            let found = store.live().get(&Key::inode(Ino(number))).expect("reads");
            assert!(found.is_some(), "{number}");
        }
        store.abort().await;
    });
}

/// One disk had no room for its copy of the state. The log has all its copies, and no other event requests that one.
#[test]
fn a_copy_of_the_state_that_found_no_room_is_made_when_there_is_some() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        let ticket = store.submit(put(1));
        store.durable(ticket).await.expect("durable");
        fill(&pool.disks[1], "ballast", 0).await;
        store.ship().await.expect("the state itself has room");
        let stats = store.stats();
        assert_eq!(stats.states.len(), 1, "{stats:?}");
        pool.disks[1].remove("ballast").await.expect("removes");
        store.log().set_copies(2).await.expect("two copies");
        let stats = store.stats();
        assert_eq!(stats.states.len(), 2, "{stats:?}");
        store.abort().await;
    });
}

/// Neither the state nor, later, the log finds space: submitted batches stay readable and safe, even over a restart,
/// and complete as soon as there is space.
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
                // Unneeded log files are removed first.
                settle(&world).await;
                fill(&pool.disks[0], &format!("ballast{round}"), 0).await;
                // A start without space to replay has nothing to write either.
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
            // Until the log is full, too: then the batches wait.
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

/// Each start needs a log file of its own, so it gets room for exactly that.
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
