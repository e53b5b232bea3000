//! The engine on a directory of this machine, with the real fio.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::plan::{DataWork, Direction, End, Fsync, Layout, NamesOperation, NamesWork, Order};

const KIB: u64 = 1024;
const ALONE: ClientRank = ClientRank {
    client: 0,
    client_count: 1,
};
const UNIQUE: DataPattern = DataPattern {
    compressible_percent: 0,
    dedupe_percent: 0,
    seed: 7,
};

fn engine() -> (TempDir, PathEngine) {
    let target = tempfile::tempdir().expect("a temporary directory");
    let mut engine = PathEngine::new(target.path()).expect("the directory is there");
    engine.prepare(0, false).expect("it is empty");
    (target, engine)
}

fn data(direction: Direction, order: Order, layout: Layout) -> DataWork {
    DataWork {
        direction,
        order,
        request_bytes: 16 * KIB,
        layout,
        reorder: 0,
        end: End::Whole,
        fsync: Fsync::After,
        direct: true,
    }
}

fn phase(name: &str, jobs: u32, work: Work) -> Phase {
    Phase {
        name: name.to_owned(),
        fileset: "set".to_owned(),
        jobs,
        depth: 4,
        work,
    }
}

/// What must hold for each result.
fn check(result: &PhaseResult) {
    let name = &result.name;
    assert_eq!(
        result.samples.iter().map(|it| it.operations).sum::<u64>(),
        result.operations,
        "{name}"
    );
    assert_eq!(
        result.samples.iter().map(|it| it.bytes).sum::<u64>(),
        result.bytes,
        "{name}"
    );
    assert_eq!(
        result.workers.iter().map(|it| it.operations).sum::<u64>(),
        result.operations,
        "{name}"
    );
    assert!(
        result.drained_seconds >= result.foreground_seconds,
        "{name}"
    );
}

fn run(engine: &mut PathEngine, phase: &Phase) -> PhaseResult {
    let result = engine
        .run(phase, &UNIQUE, ALONE, &Control::default())
        .expect("the phase is in order");
    check(&result);
    assert_eq!(
        (result.partial.as_deref(), result.errors),
        (None, 0),
        "{:?}",
        result.first_error
    );
    result
}

#[test]
fn files_are_written_whole_and_read() {
    let (target, mut engine) = engine();
    let per_worker = Layout::PerWorker { bytes: 1024 * KIB };
    for (name, order) in [("seq", Order::Sequential), ("random", Order::Random)] {
        let write = phase(
            name,
            2,
            Work::Data(data(Direction::Write, order, per_worker.clone())),
        );
        let result = run(&mut engine, &write);
        assert_eq!((result.operations, result.bytes), (128, 2048 * KIB));
        assert_eq!(result.workers.len(), 2);
        let latency = result.latency.as_ref().expect("it is measured");
        assert_eq!(latency.count, 128);
        assert!(latency.histogram.is_some());
        let read = phase(
            name,
            2,
            Work::Data(data(Direction::Read, order, per_worker.clone())),
        );
        let result = run(&mut engine, &read);
        assert_eq!((result.operations, result.bytes), (128, 2048 * KIB));
        assert_eq!(result.drained_seconds, result.foreground_seconds);
        let job_file = result.job_file.expect("it is kept");
        let folder = target.path().join(RUN_FOLDER);
        assert!(
            job_file.contains(&format!("directory={}", folder.display())),
            "{job_file}"
        );
    }
    // Unique blocks: of both files, none is like another.
    let mut blocks = HashSet::new();
    for worker in ["w00000", "w00001"] {
        let file = fs::read(target.path().join(RUN_FOLDER).join("set").join(worker))
            .expect("it was written");
        assert_eq!(file.len() as u64, 1024 * KIB);
        blocks.extend(file.chunks(4096).map(<[u8]>::to_vec));
    }
    assert_eq!(blocks.len(), 512);
    let said = place::drop_caches(&engine.data_files(), false);
    assert!(said.starts_with("2 of 2 files"), "{said}");
    assert!(engine.version().starts_with("fio-"));
    assert!(engine.mount().is_some());
    engine.clean_up().expect("the files are ours");
    assert_eq!(
        fs::read_dir(target.path())
            .expect("the target stays")
            .count(),
        0
    );
}

#[test]
fn the_job_file_is_enough_to_run_again() {
    let (_target, mut engine) = engine();
    let write = phase(
        "write",
        1,
        Work::Data(data(
            Direction::Write,
            Order::Sequential,
            Layout::PerWorker { bytes: 256 * KIB },
        )),
    );
    let job_file = run(&mut engine, &write).job_file.expect("it is kept");
    let path = engine.folder.join("again.fio");
    fs::write(&path, job_file).expect("the folder is there");
    let fio = engine.fio.clone().expect("fio is there");
    let output = fio.command().arg(&path).output().expect("fio starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_shared_file_is_laid_out_as_ior_does() {
    let layout = Layout::Shared {
        block_bytes: 64 * KIB,
        segments: 3,
    };
    for order in [Order::Sequential, Order::Random] {
        let (target, mut engine) = engine();
        // Two clients with two workers each, one after the other.
        let write = phase(
            "write",
            2,
            Work::Data(data(Direction::Write, order, layout.clone())),
        );
        for client in 0..2 {
            let place = ClientRank {
                client,
                client_count: 2,
            };
            let result = engine
                .run(&write, &UNIQUE, place, &Control::default())
                .expect("the phase is in order");
            check(&result);
            assert_eq!(result.bytes, 2 * 3 * 64 * KIB);
            assert!(
                result
                    .workers
                    .iter()
                    .all(|worker| worker.client == client as usize)
            );
        }
        let file = target.path().join(RUN_FOLDER).join("set/shared");
        let bytes = fs::read(&file).expect("it was written");
        assert_eq!(bytes.len() as u64, 4 * 3 * 64 * KIB);
        let empty = bytes
            .chunks(4096)
            .filter(|block| block.iter().all(|byte| *byte == 0))
            .count();
        assert_eq!(empty, 0, "{order:?} leaves blocks out");
        // Everybody reads what the next client wrote.
        let mut work = data(Direction::Read, order, layout.clone());
        work.reorder = 2;
        let read = phase("read", 2, Work::Data(work));
        let place = ClientRank {
            client: 1,
            client_count: 2,
        };
        let result = engine
            .run(&read, &UNIQUE, place, &Control::default())
            .expect("the phase is in order");
        check(&result);
        assert_eq!(result.bytes, 2 * 3 * 64 * KIB);
        let job_file = result.job_file.expect("it is kept");
        assert!(
            job_file.contains("offset=0\n") && job_file.contains("offset=65536\n"),
            "{job_file}"
        );
    }
}

#[test]
fn what_is_read_first_is_written_outside_of_the_clock() {
    let (target, mut engine) = engine();
    let layout = Layout::PerWorker { bytes: 1024 * KIB };
    let mut work = data(Direction::Read, Order::Random, layout);
    work.end = End::After {
        ramp_ms: 200,
        runtime_ms: 600,
    };
    let control = Control::default();
    let read = phase("read", 2, Work::Data(work));
    let result = engine
        .run(&read, &UNIQUE, ALONE, &control)
        .expect("the phase is in order");
    check(&result);
    assert!(result.operations > 0);
    assert!(
        (0.5..60.0).contains(&result.foreground_seconds),
        "{}",
        result.foreground_seconds
    );
    let blocks = fs::metadata(target.path().join(RUN_FOLDER).join("set/w00001"))
        .expect("it was filled")
        .blocks();
    assert!(blocks >= 2048, "the file has holes");
    let progress = control.so_far();
    assert!(progress.0 >= result.operations, "{progress:?}");
}

#[test]
fn time_and_fsync_modes_end_as_they_should() {
    let (_target, mut engine) = engine();
    let layout = Layout::PerWorker { bytes: 1024 * KIB };
    for (order, fsync, ramp_ms) in [
        (Order::Sequential, Fsync::After, 1200),
        (Order::Random, Fsync::InClock, 0),
        (Order::Sequential, Fsync::EachRequest, 0),
    ] {
        let mut work = data(Direction::Write, order, layout.clone());
        work.fsync = fsync;
        work.direct = false;
        work.end = End::After {
            ramp_ms,
            runtime_ms: 1300,
        };
        let result = run(&mut engine, &phase("timed", 1, Work::Data(work)));
        assert!(result.operations > 0, "{fsync:?}");
        let expected = 1.25..60.0;
        assert!(
            expected.contains(&result.foreground_seconds),
            "{fsync:?}: {}",
            result.foreground_seconds
        );
        if fsync != Fsync::After {
            assert_eq!(result.drained_seconds, result.foreground_seconds);
        }
        let sampled: f64 = result.samples.iter().map(|it| it.seconds).sum();
        assert!(
            (sampled - result.foreground_seconds).abs() < 0.2,
            "{sampled} of {}",
            result.foreground_seconds
        );
    }
}

#[test]
fn data_compresses_and_repeats_as_asked() {
    let (target, mut engine) = engine();
    let layout = Layout::PerWorker { bytes: 8192 * KIB };
    let pattern = DataPattern {
        compressible_percent: 50,
        dedupe_percent: 30,
        seed: 3,
    };
    let work = data(Direction::Write, Order::Sequential, layout);
    let result = engine.run(
        &phase("write", 1, Work::Data(work)),
        &pattern,
        ALONE,
        &Control::default(),
    );
    check(&result.expect("the phase is in order"));
    let file = fs::read(target.path().join(RUN_FOLDER).join("set/w00000")).expect("it was written");
    let requests: Vec<&[u8]> = file.chunks(16 * KIB as usize).collect();
    let unique = requests.iter().collect::<HashSet<_>>().len() as f64 / requests.len() as f64;
    assert!(
        (0.55..0.85).contains(&unique),
        "{unique} of the requests are unique"
    );
    let zeros = file.iter().filter(|byte| **byte == 0).count() as f64 / file.len() as f64;
    assert!(
        (0.4..0.6).contains(&zeros),
        "{zeros} of the bytes are zeros"
    );
}

#[test]
fn stopping_keeps_what_there_is() {
    let (_target, mut engine) = engine();
    let mut work = data(
        Direction::Write,
        Order::Sequential,
        Layout::PerWorker { bytes: 1024 * KIB },
    );
    work.end = End::After {
        ramp_ms: 0,
        runtime_ms: 600_000,
    };
    let control = Control::default();
    let stopper = control.clone();
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            // The first tick has come.
            while stopper.so_far().0 == 0 {
                thread::yield_now();
            }
            stopper.stop();
        });
        engine.run(
            &phase("long", 2, Work::Data(work)),
            &UNIQUE,
            ALONE,
            &control,
        )
    });
    let result = result.expect("a partial result is one");
    check(&result);
    assert_eq!(result.partial.as_deref(), Some("stopped by the user"));
    assert!(result.operations > 0 && result.foreground_seconds < 60.0);
    // Stopped before it began.
    let work = data(
        Direction::Read,
        Order::Sequential,
        Layout::PerWorker { bytes: 64 * KIB },
    );
    let result = engine.run(
        &phase("late", 1, Work::Data(work)),
        &UNIQUE,
        ALONE,
        &control,
    );
    let result = result.expect("a partial result is one");
    assert!(result.partial.is_some() && result.operations == 0);
}

#[test]
fn an_error_of_fio_is_told() {
    let (_target, mut engine) = engine();
    let layout = Layout::PerWorker { bytes: 256 * KIB };
    let write = phase(
        "write",
        1,
        Work::Data(data(Direction::Write, Order::Sequential, layout.clone())),
    );
    run(&mut engine, &write);
    // A directory in the place of the file, as no disk that fails can be had here.
    let file = engine.folder.join("set/w00000");
    fs::remove_file(&file).expect("it was written");
    fs::create_dir(&file).expect("its place is free");
    let result = engine.run(&write, &UNIQUE, ALONE, &Control::default());
    let said = match result {
        Ok(result) => result.partial.expect("it is not whole"),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("directory"), "{said}");
}

#[test]
fn names_are_made_looked_at_and_removed() {
    use NamesOperation::{Create, Readdir, Rename, Stat, Unlink};
    for one_directory in [true, false] {
        let (target, mut engine) = engine();
        for (operation, operations) in [
            (Create, 300),
            (Stat, 300),
            (Readdir, if one_directory { 900 } else { 300 }),
            (Rename, 300),
            (Stat, 300),
            (Rename, 300),
            (Unlink, 300),
            // Missing files are made outside of the clock.
            (Rename, 300),
            (Create, 300),
            (Unlink, 300),
        ] {
            let work = NamesWork {
                operation,
                files: 100,
                one_directory,
            };
            let result = run(&mut engine, &phase("names", 3, Work::Names(work)));
            assert_eq!(result.operations, operations, "{operation:?}");
            let latencies = result.latency.expect("they are measured").count;
            assert_eq!(
                latencies,
                if operation == Readdir { 3 } else { 300 },
                "{operation:?}"
            );
        }
        let set = target.path().join(RUN_FOLDER).join("set");
        for directory in fs::read_dir(set).expect("it was made") {
            let directory = directory.expect("it was made").path();
            assert_eq!(fs::read_dir(directory).expect("it was made").count(), 0);
        }
    }
}

#[test]
fn names_that_cannot_be_made_are_errors() {
    let (_target, mut engine) = engine();
    let work = NamesWork {
        operation: NamesOperation::Create,
        files: 800,
        one_directory: false,
    };
    let create = phase("names", 1, Work::Names(work));
    let all = engine.folder.join("set/d00000");
    fs::create_dir_all(&all).expect("the folder is ours");
    for file in 0..800 {
        fs::write(all.join(format!("f00000-{file:08}")), "").expect("the folder is ours");
    }
    let result = engine
        .run(&create, &UNIQUE, ALONE, &Control::default())
        .expect("errors are counted");
    check(&result);
    assert!(result.errors >= 100 && result.first_error.is_some());
    assert!(result.partial.expect("it gave up").contains("gave up"));
    // The next phase puts it right.
    let result = engine
        .run(&create, &UNIQUE, ALONE, &Control::default())
        .expect("it is in order");
    assert_eq!(
        (result.operations, result.errors, result.partial),
        (800, 0, None)
    );
}

#[test]
fn phases_that_cannot_be_are_refused() {
    let (_target, mut engine) = engine();
    let layout = Layout::PerWorker { bytes: 64 * KIB };
    let good = phase(
        "good",
        1,
        Work::Data(data(Direction::Write, Order::Sequential, layout)),
    );
    let changed = |change: fn(&mut Phase, &mut DataWork)| {
        let mut phase = good.clone();
        let Work::Data(mut work) = phase.work.clone() else {
            unreachable!("it is data")
        };
        change(&mut phase, &mut work);
        phase.work = Work::Data(work);
        phase
    };
    let cases: &[(&str, Phase, &str)] = &[
        (
            "a path as file set",
            changed(|phase, _| phase.fileset = "../x".to_owned()),
            "file set",
        ),
        (
            "no file set",
            changed(|phase, _| phase.fileset.clear()),
            "file set",
        ),
        ("no workers", changed(|phase, _| phase.jobs = 0), "workers"),
        (
            "too many workers",
            changed(|phase, _| phase.jobs = JOB_COUNT_MAX + 1),
            "workers",
        ),
        ("no depth", changed(|phase, _| phase.depth = 0), "depth"),
        (
            "no request",
            changed(|_, work| work.request_bytes = 0),
            "requests of 0",
        ),
        (
            "a request longer than the file",
            changed(|_, work| work.request_bytes = 128 * KIB),
            "at least one",
        ),
        (
            "a block that is no multiple",
            changed(|_, work| {
                work.layout = Layout::Shared {
                    block_bytes: 40 * KIB,
                    segments: 1,
                }
            }),
            "no multiple",
        ),
        (
            "longer than any file",
            changed(|_, work| {
                work.layout = Layout::Shared {
                    block_bytes: 1 << 60,
                    segments: 1 << 10,
                }
            }),
            "too long",
        ),
    ];
    for (name, phase, word) in cases {
        let error = engine
            .run(phase, &UNIQUE, ALONE, &Control::default())
            .expect_err(name)
            .to_string();
        assert!(error.contains(word), "{name}: {error}");
    }
    let outside = ClientRank {
        client: 2,
        client_count: 2,
    };
    engine
        .run(&good, &UNIQUE, outside, &Control::default())
        .expect_err("no such client");
    let many = NamesWork {
        operation: NamesOperation::Create,
        files: 1,
        one_directory: true,
    };
    let mut many = phase("many", 1024, Work::Names(many));
    many.depth = 1024;
    engine
        .run(&many, &UNIQUE, ALONE, &Control::default())
        .expect_err("too many threads");
}

#[test]
fn without_fio_names_work_and_data_says_what_to_do() {
    let target = tempfile::tempdir().expect("a temporary directory");
    let fio = Fio::at(Path::new("/nowhere/fio")).map_err(|error| error.to_string());
    let mut engine = PathEngine::with_fio(target.path(), fio).expect("the directory is there");
    let work = NamesWork {
        operation: NamesOperation::Create,
        files: 10,
        one_directory: true,
    };
    let names = phase("names", 1, Work::Names(work));
    engine
        .run(&names, &UNIQUE, ALONE, &Control::default())
        .expect_err("not prepared");
    engine.prepare(0, false).expect("it is empty");
    run(&mut engine, &names);
    let work = data(
        Direction::Write,
        Order::Sequential,
        Layout::PerWorker { bytes: 64 * KIB },
    );
    let error = engine.run(
        &phase("data", 1, Work::Data(work)),
        &UNIQUE,
        ALONE,
        &Control::default(),
    );
    let error = error.expect_err("there is no fio").to_string();
    assert!(error.contains("apt-get install fio"), "{error}");
}
