//! Phases against a server in memory.

use std::time::{Duration, Instant};

use cairn_nfs_client::testing::{Action, FakeServer};
use cairn_nfs_client::v3::{ErrorStatus, Procedure};

use super::*;
use crate::merge::merge_phase;
use crate::plan::{Direction, End, Layout, Order};
use crate::result::WorkerResult;

/// A server on a runtime of its own, because engines block.
struct Fixture {
    runtime: tokio::runtime::Runtime,
    server: FakeServer,
}

const BLOCK: u64 = 8192;
const ALONE: ClientRank = ClientRank {
    client: 0,
    client_count: 1,
};
/// Times of phases that end by time, one after the other: on a busy machine nothing may run in the shortest.
const TIMES_MS: [u64; 4] = [30, 300, 3000, 30_000];
const PATTERN: DataPattern = DataPattern {
    compressible_percent: 0,
    dedupe_percent: 0,
    seed: 1,
};

impl Fixture {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(FakeServer::start());
        Self { runtime, server }
    }

    fn url(&self, path: &str) -> NfsUrl {
        self.server.url(path).parse().expect("a URL")
    }

    fn engine(&self) -> NfsEngine {
        let mut engine = NfsEngine::new(&self.url("")).expect("a URL");
        engine.prepare(1 << 20, false).expect("it is empty");
        engine
    }

    fn call_count(&self, procedure: Procedure) -> usize {
        let calls = self.server.calls();
        calls.iter().filter(|(_, it)| *it == procedure).count()
    }

    /// Makes a file that is not of a benchmark, or a directory.
    fn make(&self, path: &str, name: &str, is_directory: bool) {
        let url = self.url(path);
        let made = self.runtime.block_on(async {
            let client = Client::connect(&url, Default::default()).await?;
            let dir = client.resolve_url(true).await?.handle;
            let attributes = files::with_mode(0o755);
            match is_directory {
                true => client.mkdir(dir, name.as_bytes(), attributes).await,
                false => {
                    let how = cairn_nfs_client::v3::CreateHow::Guarded(attributes);
                    client.create(dir, name.as_bytes(), how).await
                }
            }
        });
        made.expect("it is made");
    }
}

/// 3 workers with 4 requests of 8 KiB in flight on files of 10 blocks.
fn data(direction: Direction) -> DataWork {
    DataWork {
        direction,
        order: Order::Sequential,
        request_bytes: BLOCK,
        layout: Layout::PerWorker { bytes: 10 * BLOCK },
        reorder: 0,
        end: End::Whole,
        fsync: Fsync::InClock,
        direct: false,
    }
}

fn phase(work: Work) -> Phase {
    Phase {
        name: "a phase".to_owned(),
        fileset: "set".to_owned(),
        jobs: 3,
        depth: 4,
        work,
    }
}

fn run_on(engine: &mut NfsEngine, work: Work, place: ClientRank, control: &Control) -> PhaseResult {
    let phase = phase(work);
    let result = engine.run(&phase, &PATTERN, place, control);
    let result = result.expect("it runs");
    // What holds of any result.
    let sum = |of: fn(&crate::result::Sample) -> u64| result.samples.iter().map(of).sum::<u64>();
    assert_eq!(sum(|it| it.operations), result.operations);
    assert_eq!(sum(|it| it.bytes), result.bytes);
    let sum = |of: fn(&WorkerResult) -> u64| result.workers.iter().map(of).sum::<u64>();
    assert_eq!(sum(|it| it.operations), result.operations);
    assert_eq!(sum(|it| it.bytes), result.bytes);
    assert!(result.drained_seconds >= result.foreground_seconds);
    assert!(
        result
            .workers
            .iter()
            .all(|it| it.seconds <= result.foreground_seconds)
    );
    if result.operations > 0 {
        assert!(result.foreground_seconds > 0.0);
        let latency = result.latency.as_ref().expect("requests");
        assert!(latency.min_us <= latency.mean_us && latency.mean_us <= latency.max_us * 1.001);
    }
    result
}

fn run(engine: &mut NfsEngine, work: DataWork) -> PhaseResult {
    run_on(engine, Work::Data(work), ALONE, &Control::default())
}

#[track_caller]
fn check(result: &PhaseResult, operations: u64) {
    assert_eq!(result.partial, None);
    assert_eq!(result.first_error, None);
    assert_eq!(result.errors, 0);
    assert_eq!(result.operations, operations);
}

#[test]
fn what_is_written_can_be_read_in_any_order() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let written = run(&mut engine, data(Direction::Write));
    check(&written, 30);
    assert_eq!(written.bytes, 30 * BLOCK);
    assert_eq!(written.foreground_seconds, written.drained_seconds);
    assert_eq!(written.latency.expect("requests").count, 30);
    assert!(written.load_cpu_seconds.expect("it is known") > 0.0);
    assert_eq!(fixture.call_count(Procedure::Commit), 3);
    let read_as = |order, reorder, request_bytes| DataWork {
        order,
        reorder,
        request_bytes,
        ..data(Direction::Read)
    };
    check(&run(&mut engine, read_as(Order::Sequential, 0, BLOCK)), 30);
    check(&run(&mut engine, read_as(Order::Random, 0, BLOCK)), 30);
    check(
        &run(&mut engine, read_as(Order::Sequential, 2, 2 * BLOCK)),
        15,
    );
    // All was there, so nothing was written for them.
    assert_eq!(fixture.call_count(Procedure::Write), 30);
    let first = fixture
        .server
        .stable("/cairn-bench/set/data.00000")
        .expect("it is there");
    assert_eq!(first.len() as u64, 10 * BLOCK);
    // A rewrite leaves nothing as it was.
    check(&run(&mut engine, data(Direction::Write)), 30);
    let second = fixture
        .server
        .stable("/cairn-bench/set/data.00000")
        .expect("it is there");
    let blocks = first.chunks(4096).zip(second.chunks(4096));
    assert_eq!(blocks.filter(|(old, new)| old == new).count(), 0);
    engine.clean_up().expect("it is removed");
    assert!(fixture.server.names("").is_empty());
}

#[test]
fn files_that_are_missing_are_written_before_the_clock_starts() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let control = Control::default();
    // Requests larger than the server takes, and a file that is no multiple of them.
    let work = DataWork {
        request_bytes: 300 << 10,
        layout: Layout::PerWorker { bytes: 1 << 20 },
        ..data(Direction::Read)
    };
    let read = run_on(&mut engine, Work::Data(work), ALONE, &control);
    check(&read, 9);
    assert_eq!(control.so_far(), (9, 9 * (300 << 10)));
    let stable = fixture
        .server
        .stable("/cairn-bench/set/data.00002")
        .expect("it is there");
    assert_eq!(stable.len(), 1 << 20);
    assert!(
        stable
            .chunks(4096)
            .all(|block| block.iter().any(|byte| *byte != 0))
    );
    // Random writes for a time are on whole files, and a longer file is only extended.
    let writes = fixture.call_count(Procedure::Write);
    let random = |runtime_ms| DataWork {
        layout: Layout::PerWorker { bytes: 2 << 20 },
        order: Order::Random,
        end: End::After {
            ramp_ms: 0,
            runtime_ms,
        },
        ..data(Direction::Write)
    };
    let result = TIMES_MS.into_iter().find_map(|runtime_ms| {
        let result = run(&mut engine, random(runtime_ms));
        (result.operations > 0).then_some(result)
    });
    let result = result.expect("something is written");
    // 1 MiB more of each file, in calls of 128 KiB.
    let filled = 3 * 8;
    let random_writes = fixture.call_count(Procedure::Write) - writes - filled;
    assert_eq!(random_writes as u64, result.operations);
    for worker in 0..3 {
        let path = format!("/cairn-bench/set/data.{worker:05}");
        assert_eq!(
            fixture.server.stable(&path).expect("it is there").len(),
            2 << 20
        );
    }
}

#[test]
fn a_shared_file_has_each_byte_once() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let shared = |direction, reorder| DataWork {
        layout: Layout::Shared {
            block_bytes: 2 * BLOCK,
            segments: 4,
        },
        reorder,
        ..data(direction)
    };
    check(&run(&mut engine, shared(Direction::Write, 0)), 24);
    let stable = fixture
        .server
        .stable("/cairn-bench/set/data.shared")
        .expect("it is there");
    assert_eq!(stable.len() as u64, 24 * BLOCK);
    let blocks: std::collections::HashSet<&[u8]> = stable.chunks(4096).collect();
    assert_eq!(blocks.len() as u64, 24 * BLOCK / 4096);
    check(&run(&mut engine, shared(Direction::Read, 1)), 24);
}

#[test]
fn data_is_made_stable_when_it_should_be() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let with = |fsync| DataWork {
        fsync,
        ..data(Direction::Write)
    };
    let after = run(&mut engine, with(Fsync::After));
    check(&after, 30);
    assert!(after.drained_seconds > after.foreground_seconds);
    let calls = fixture.server.calls();
    let mut data_calls = calls
        .iter()
        .map(|(_, procedure)| *procedure)
        .filter(|it| matches!(it, Procedure::Write | Procedure::Commit));
    assert!(
        data_calls
            .by_ref()
            .take(30)
            .all(|it| it == Procedure::Write)
    );
    assert!(data_calls.eq([Procedure::Commit; 3]));
    let each = run(&mut engine, with(Fsync::EachRequest));
    check(&each, 30);
    assert_eq!(each.drained_seconds, each.foreground_seconds);
    assert_eq!(fixture.call_count(Procedure::Commit), 3);
}

#[test]
fn what_is_done_in_the_ramp_does_not_count() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    for (direction, order) in [
        (Direction::Write, Order::Sequential),
        (Direction::Read, Order::Sequential),
        (Direction::Read, Order::Random),
    ] {
        // Something was done in the ramp, and something after it.
        let was_apart = TIMES_MS.into_iter().any(|ms| {
            let control = Control::default();
            let work = DataWork {
                order,
                end: End::After {
                    ramp_ms: ms,
                    runtime_ms: ms,
                },
                ..data(direction)
            };
            let result = run_on(&mut engine, Work::Data(work), ALONE, &control);
            assert_eq!((result.errors, &result.partial), (0, &None));
            let counted = result.latency.map_or(0, |latency| latency.count);
            assert_eq!(counted, result.operations);
            let (all, longest) = (control.so_far().0, ms as f64 / 1e3 + 1.0);
            assert!(result.operations <= all, "{direction:?}");
            result.operations > 0 && result.operations < all && result.foreground_seconds < longest
        });
        assert!(was_apart, "{direction:?}");
    }
}

#[test]
fn names_are_made_found_renamed_and_removed() {
    use NamesOperation::*;
    for one_directory in [false, true] {
        let fixture = Fixture::new();
        let mut engine = fixture.engine();
        let mut run = |operation| {
            let work = NamesWork {
                operation,
                files: 20,
                one_directory,
            };
            run_on(&mut engine, Work::Names(work), ALONE, &Control::default())
        };
        let dir = match one_directory {
            true => "/cairn-bench/set/names.all",
            false => "/cairn-bench/set/names.00002",
        };
        let count = if one_directory { 60 } else { 20 };
        check(&run(Create), 60);
        assert_eq!(fixture.server.names(dir).len(), count);
        check(&run(Stat), 60);
        check(&run(Readdir), 3 * count as u64);
        check(&run(Rename), 60);
        check(&run(Rename), 60);
        let names = fixture.server.names(dir);
        assert_eq!(names.last().map(String::as_str), Some("00002-00000019.2"));
        check(&run(Stat), 60);
        check(&run(Unlink), 60);
        assert!(fixture.server.names(dir).is_empty());
        // Missing files are made, surplus ones are removed.
        check(&run(Stat), 60);
        check(&run(Create), 60);
        assert_eq!(fixture.server.names(dir).len(), count);
        engine.clean_up().expect("it is removed");
        assert!(fixture.server.names("").is_empty());
    }
}

#[test]
fn clients_work_on_each_others_files() {
    let fixture = Fixture::new();
    let mut engines = [fixture.engine(), fixture.engine()];
    let place = |client| ClientRank {
        client,
        client_count: 2,
    };
    let mut run = |work: &DataWork| {
        let parts = engines.iter_mut().zip(0..).map(|(engine, client)| {
            let work = Work::Data(work.clone());
            run_on(engine, work, place(client), &Control::default())
        });
        merge_phase(parts.collect())
    };
    let written = run(&data(Direction::Write));
    check(&written, 60);
    assert_eq!(written.workers.len(), 6);
    assert_eq!(written.workers[5].client, 1);
    assert_eq!(written.latency.expect("requests").count, 60);
    assert_eq!(fixture.server.names("/cairn-bench/set").len(), 6);
    let other = DataWork {
        reorder: 3,
        ..data(Direction::Read)
    };
    check(&run(&other), 60);
    let [first, second] = &mut engines;
    first.clean_up().expect("it is removed");
    second.clean_up().expect("it is gone already");
    assert!(fixture.server.names("").is_empty());
}

#[test]
fn jobs_share_connections() {
    let fixture = Fixture::new();
    let url = format!("{}?nconnect=2", fixture.server.url(""));
    let mut engine = NfsEngine::new(&url.parse().expect("a URL")).expect("a URL");
    engine.prepare(0, false).expect("it is empty");
    let mut phase = phase(Work::Data(data(Direction::Write)));
    phase.jobs = 9;
    let result = engine.run(&phase, &PATTERN, ALONE, &Control::default());
    check(&result.expect("it runs"), 90);
    assert_eq!(fixture.server.names("/cairn-bench/set").len(), 9);
}

#[test]
fn a_server_that_vanishes_ends_a_phase_with_what_there_is() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let mut count = 0;
    fixture.server.script(move |procedure| {
        count += usize::from(procedure == Procedure::Write);
        match count > 12 {
            true => Action::CloseBefore,
            false => Action::Answer,
        }
    });
    let result = run(&mut engine, data(Direction::Write));
    assert!(
        (1..=12).contains(&result.operations),
        "{}",
        result.operations
    );
    let partial = result.partial.expect("it is partial");
    assert!(partial.contains("the server was lost"), "{partial}");
    // It is still away: a sentence, not a result.
    let again = engine.run(
        &phase(Work::Data(data(Direction::Write))),
        &PATTERN,
        ALONE,
        &Control::default(),
    );
    let again = again.expect_err("nobody answers").to_string();
    assert!(again.contains("nfs://"), "{again}");
    let left = engine.clean_up().expect_err("nobody answers").to_string();
    assert!(left.contains("still there"), "{left}");
}

#[test]
fn a_stopped_phase_does_not_wait_for_a_silent_server() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let control = Control::default();
    let stopping = control.clone();
    let mut count = 0;
    fixture.server.script(move |procedure| {
        count += usize::from(procedure == Procedure::Write);
        if count > 6 {
            stopping.stop();
            return Action::Ignore;
        }
        Action::Answer
    });
    let begin = Instant::now();
    let result = run_on(
        &mut engine,
        Work::Data(data(Direction::Write)),
        ALONE,
        &control,
    );
    assert_eq!(result.operations, 6);
    assert!(result.foreground_seconds > 0.0);
    assert_eq!(result.partial.as_deref(), Some(drive::STOPPED));
    assert!(begin.elapsed() < Duration::from_secs(20));
    // A phase that is told to stop before it begins does nothing.
    fixture.server.script(|_| Action::Answer);
    let result = run_on(
        &mut engine,
        Work::Data(data(Direction::Read)),
        ALONE,
        &control,
    );
    assert_eq!(result.operations, 0);
    assert_eq!(result.partial.as_deref(), Some(drive::STOPPED));
}

#[test]
fn failures_are_counted_and_many_in_a_row_end_it() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    let mut count = 0;
    fixture.server.script(move |procedure| {
        count += usize::from(procedure == Procedure::Write);
        match procedure == Procedure::Write && count % 3 == 0 {
            true => Action::Fail(ErrorStatus::NoSpc),
            false => Action::Answer,
        }
    });
    let result = run(&mut engine, data(Direction::Write));
    assert_eq!((result.errors, result.operations), (10, 20));
    assert_eq!(result.partial, None);
    fixture.server.script(|procedure| match procedure {
        Procedure::Write => Action::Fail(ErrorStatus::NoSpc),
        _ => Action::Answer,
    });
    let forever = DataWork {
        end: End::After {
            ramp_ms: 0,
            runtime_ms: 3_600_000,
        },
        ..data(Direction::Write)
    };
    let result = run(&mut engine, forever);
    assert_eq!(result.operations, 0);
    let partial = result.partial.expect("it is partial");
    assert!(partial.contains("in a row failed"), "{partial}");
    // Files that cannot be written are no files to read.
    let read = phase(Work::Data(data(Direction::Read)));
    let refused = engine.run(&read, &PATTERN, ALONE, &Control::default());
    let refused = refused.expect_err("no files").to_string();
    assert!(
        refused.starts_with("writing the files of this phase"),
        "{refused}"
    );
    fixture.server.script(|procedure| match procedure {
        Procedure::Commit => Action::RestartBefore,
        _ => Action::Answer,
    });
    let result = run(&mut engine, data(Direction::Write));
    assert_eq!(result.operations, 30);
    assert!(result.first_error.expect("an error").contains("restarted"));
    assert!(result.partial.is_some());
}

#[test]
fn targets_are_looked_at_first() {
    let fixture = Fixture::new();
    let prepare = |path: &str, bytes, allow_files| {
        let mut engine = NfsEngine::new(&fixture.url(path)).expect("a URL");
        engine
            .prepare(bytes, allow_files)
            .map_err(|error| error.to_string())
    };
    fixture.make("", "dir", true);
    fixture.make("/dir", "file", false);
    for (path, bytes, allow_files, want) in [
        ("/none", 0, false, "no such"),
        ("/dir/file", 0, false, "is not a directory"),
        ("/dir", 0, false, "is not empty, it has `file`"),
        ("", 0, false, "is not empty, it has `dir`"),
        (
            "/dir",
            1 << 40,
            true,
            "has 512 MiB free, and this needs 1 TiB",
        ),
    ] {
        let error = prepare(path, bytes, allow_files).expect_err(want);
        assert!(error.contains(want), "`{error}` has `{want}`");
    }
    assert_eq!(prepare("/dir", 1 << 20, true), Ok(()));
    fixture.make("", "other", true);
    assert_eq!(prepare("/other", 0, false), Ok(()));
    // Another client of this run, then another run.
    assert_eq!(prepare("/other", 0, false), Ok(()));
    fixture.make("/other/cairn-bench", "set", true);
    let error = prepare("/other", 0, false).expect_err("old files");
    assert!(
        error.contains("files of another run in cairn-bench/set"),
        "{error}"
    );
    let nobody: NfsUrl = "nfs://127.0.0.1:1/main".parse().expect("a URL");
    let error = NfsEngine::new(&nobody).expect("a URL").prepare(0, false);
    assert!(matches!(error, Err(EngineError::Target(_))), "{error:?}");
}

#[test]
fn only_what_is_ours_is_removed() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine();
    check(&run(&mut engine, data(Direction::Write)), 30);
    fixture.make("/cairn-bench", "holiday", true);
    fixture.make("/cairn-bench/holiday", "beach.jpg", false);
    fixture.make("/cairn-bench/set", "notes.txt", false);
    engine.clean_up().expect("it is removed");
    assert_eq!(fixture.server.names("/cairn-bench/set"), ["notes.txt"]);
    assert_eq!(fixture.server.names("/cairn-bench/holiday"), ["beach.jpg"]);
    // Nothing was made, so nothing is removed.
    let mut other = NfsEngine::new(&fixture.url("/none")).expect("a URL");
    other.clean_up().expect("there is nothing to do");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    type Change<'a> = &'a dyn Fn(&mut Phase, &mut ClientRank);
    fn of(phase: &mut Phase) -> &mut DataWork {
        match &mut phase.work {
            Work::Data(work) => work,
            Work::Names(_) | Work::Objects(_) => unreachable!("the phases here are about data"),
        }
    }
    let shared = |block_bytes, segments| Layout::Shared {
        block_bytes,
        segments,
    };
    let cases: &[(Change<'_>, &str)] = &[
        (
            &|it, _| it.fileset = "../up".to_owned(),
            "no name of a file set",
        ),
        (
            &|it, _| it.jobs = 0,
            "number of jobs must be from 1 to 1024",
        ),
        (&|it, _| it.depth = 1025, "depth must be from 1 to 1024"),
        (
            &|it, _| (it.jobs, it.depth) = (1024, 65),
            "jobs times the depth",
        ),
        (
            &|it, _| of(it).request_bytes = 15,
            "bytes of a request must be from 16",
        ),
        (
            &|it, _| of(it).request_bytes = 1 << 29,
            "bytes of a request",
        ),
        (
            &|it, _| of(it).layout = Layout::PerWorker { bytes: 100 },
            "bytes of a file",
        ),
        (
            &|it, _| of(it).layout = shared(BLOCK + 1, 1),
            "not a multiple",
        ),
        (
            &|it, _| of(it).layout = shared(BLOCK, 0),
            "number of segments",
        ),
        (
            &|it, _| of(it).layout = Layout::PerWorker { bytes: 1 << 62 },
            "larger than 8 EiB",
        ),
        (
            &|it, _| {
                of(it).end = End::After {
                    ramp_ms: u64::MAX,
                    runtime_ms: 1,
                };
            },
            "milliseconds of the ramp",
        ),
        (
            &|it, _| {
                it.work = Work::Names(NamesWork {
                    operation: NamesOperation::Create,
                    files: 0,
                    one_directory: false,
                });
            },
            "number of files",
        ),
        (&|_, it| it.client = 1, "no client 1 among 1"),
    ];
    let nobody: NfsUrl = "nfs://127.0.0.1:1/main".parse().expect("a URL");
    let mut engine = NfsEngine::new(&nobody).expect("a URL");
    for (change, want) in cases {
        let (mut phase, mut place) = (phase(Work::Data(data(Direction::Write))), ALONE);
        change(&mut phase, &mut place);
        let refused = engine.run(&phase, &PATTERN, place, &Control::default());
        let refused = refused.expect_err(want);
        assert!(matches!(refused, EngineError::Setting(_)), "{refused}");
        assert!(
            refused.to_string().contains(want),
            "`{refused}` has `{want}`"
        );
    }
}
