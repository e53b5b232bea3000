//! A store over a log without disks: the log's interface is all that a store needs.

use cairn_base::Epoch;
use cairn_base::env::Spawner;
use cairn_formats::metadata::log::{RECORD_HEAD_BYTES, RecordBuf, Term};
use parking_lot::Mutex;

use super::*;
use crate::disks::DiskSet;
use crate::log::{FoundLog, History, LogFuture, LogRecord, LogStatus, LogWriter};
use crate::open::Parts;
use crate::tasks::Tasks;

/// Survives every crash, except for records that were not acknowledged.
#[derive(Default)]
struct Kept {
    terms: Vec<Term>,
    records: Vec<LogRecord>,
    retained_from: LogPosition,
    acknowledged: LogPosition,
    is_stopped: bool,
}

#[derive(Clone, Default)]
struct MemoryLog(Arc<Mutex<Kept>>);

impl CommitLog for MemoryLog {
    fn stop(&self) {
        self.0.lock().is_stopped = true;
    }
}

impl MemoryLog {
    /// Ends the process: some unacknowledged records are lost.
    fn crash(&self, rng: &mut Rng) {
        let mut kept = self.0.lock();
        let acknowledged = kept.acknowledged;
        let sure = kept.records.iter();
        let sure = sure.filter(|record| record.last <= acknowledged).count();
        let unsure = kept.records.len() - sure;
        kept.records
            .truncate(sure + rng.below(unsure as u64 + 1) as usize);
    }
}

struct Found {
    log: MemoryLog,
    history: History,
}

impl Found {
    fn of(log: &MemoryLog) -> Box<Self> {
        let kept = log.0.lock();
        let retained_from = kept.retained_from.max(LogPosition(1));
        let copy = |record: &LogRecord| LogRecord {
            payload: record.payload.clone(),
            ..*record
        };
        let needed = kept.records.iter();
        let needed = needed.filter(|record| record.last >= retained_from);
        let records: Vec<LogRecord> = needed.map(copy).collect();
        let end = kept.records.last().map(|record| record.last);
        let history = History {
            terms: kept.terms.clone(),
            epoch_max: kept.terms.last().map_or(Epoch(0), |term| term.epoch),
            retained_from,
            end: end.unwrap_or(LogPosition(retained_from.0 - 1)),
            records,
        };
        drop(kept);
        Box::new(Self {
            log: log.clone(),
            history,
        })
    }
}

impl FoundLog for Found {
    fn history(&self) -> &History {
        &self.history
    }

    fn begin(mut self: Box<Self>, term: Term) -> LogFuture<'static, (Box<dyn LogWriter>, History)> {
        Box::pin(async move {
            let mut kept = self.log.0.lock();
            kept.terms.push(term);
            kept.is_stopped = false;
            drop(kept);
            self.history.terms.push(term);
            let writer = Writer {
                log: self.log,
                term,
                appended: 0,
            };
            Ok((Box::new(writer) as Box<dyn LogWriter>, self.history))
        })
    }
}

struct Writer {
    log: MemoryLog,
    term: Term,
    appended: u64,
}

impl LogWriter for Writer {
    fn append(
        &mut self,
        record: RecordBuf,
        retained_from: LogPosition,
        _may_block: bool,
    ) -> LogFuture<'_, ()> {
        Box::pin(async move {
            let head = record.head;
            let len_bytes = head.payload_len_bytes as usize;
            let payload = &record.bytes[RECORD_HEAD_BYTES..][..len_bytes];
            {
                let mut kept = self.log.0.lock();
                let is_ours = kept.terms.last() == Some(&self.term);
                if !is_ours || kept.is_stopped {
                    return Err(MetaError::Closed);
                }
                kept.records.push(LogRecord {
                    first: head.first,
                    last: head.last,
                    epoch: head.epoch,
                    term: head.term,
                    payload: Bytes::copy_from_slice(payload),
                });
            }
            self.appended += 1;
            for _ in 0..self.appended % 4 {
                tokio::task::yield_now().await;
            }
            let mut kept = self.log.0.lock();
            kept.acknowledged = kept.acknowledged.max(head.last);
            kept.retained_from = kept.retained_from.max(retained_from);
            Ok(())
        })
    }

    fn trim(&mut self) {
        let mut kept = self.log.0.lock();
        let retained_from = kept.retained_from;
        kept.records.retain(|record| record.last >= retained_from);
        let oldest = kept
            .terms
            .iter()
            .rposition(|term| term.start <= retained_from);
        kept.terms.drain(..oldest.unwrap_or(0));
    }

    fn status(&self) -> LogStatus {
        let kept = self.log.0.lock();
        let len = |record: &LogRecord| record.payload.len() as u64;
        LogStatus {
            retained_bytes: kept.records.iter().map(len).sum(),
            syncs: self.appended,
            disks: Vec::new(),
            start: kept.retained_from,
            is_short: false,
            short_file_count: 0,
            room_bytes: None,
        }
    }
}

fn parts(world: &TestWorld, pool: &Pool) -> Parts {
    let spawner: Arc<dyn Spawner> = world.env.spawner.clone();
    Parts {
        env: world.env.clone(),
        settings: settings(1),
        disks: DiskSet::new(VOLUME, pool.present(), 1),
        tasks: Tasks::new(spawner),
        remote: None,
    }
}

async fn reopen(
    world: &TestWorld,
    pool: &Pool,
    log: &MemoryLog,
    model: &mut Model,
) -> Arc<MetaStore<MemoryLog>> {
    let found = Found::of(log);
    let opened = parts(world, pool).open(found, |_| log.clone()).await;
    let (store, recovered) = opened.unwrap_or_else(|error| panic!("opens: {error}"));
    model.recovered(&store, &recovered);
    store
}

async fn live(seed: u64) {
    let world = TestWorld::new(seed);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut pool = Pool::new(1);
    let mut model = Model::new(seed);
    let log = MemoryLog::default();
    let created = parts(&world, &pool).create(Found::of(&log), |_| log.clone());
    let mut store = created.await.expect("creates");
    for _ in 0..60 {
        match rng.below(20) {
            0..=11 => {
                for _ in 0..rng.below(6) {
                    model.submit(&store);
                }
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
                model.durable = model.history.len() - 1;
                store = reopen(&world, &pool, &log, &mut model).await;
            }
            18 => {
                // Late work is ignored.
                store.abandon();
                let next = reopen(&world, &pool, &log, &mut model).await;
                assert_eq!(store.submit(Batch::new()), Ticket::REFUSED);
                store = next;
            }
            _ => {
                pool.crash(Crash::ALL[rng.below(3) as usize], rng.below(1 << 40));
                store.abort().await;
                log.crash(&mut rng);
                store = reopen(&world, &pool, &log, &mut model).await;
            }
        }
    }
    assert!(store.stats().durable > LogPosition(0));
    store.abort().await;
}

#[test]
fn a_volume_lives_on_a_log_of_another_kind() {
    for seed in 0..40 {
        println!("seed {seed}");
        block_on(live(seed));
    }
}

/// An owner that lost its volume adds nothing to the log any more.
#[test]
fn an_earlier_term_writes_nothing_after_a_later_one_began() {
    block_on(async {
        let (world, pool) = (TestWorld::new(1), Pool::new(1));
        let log = MemoryLog::default();
        let created = parts(&world, &pool).create(Found::of(&log), |_| log.clone());
        let first = created.await.expect("creates");
        first.durable(first.submit(put(10))).await.expect("durable");
        let opened = parts(&world, &pool).open(Found::of(&log), |_| log.clone());
        let (second, _) = opened.await.expect("opens");
        let refused = first.durable(first.submit(put(11))).await;
        assert!(refused.is_err(), "another term began");
        assert_eq!(
            second.live().get(&Key::inode(Ino(11))).expect("reads"),
            None
        );
        let ticket = second.submit(put(12));
        second.durable(ticket).await.expect("durable");
        second.abort().await;
    });
}
