use std::time::Duration;

use super::fake::{FakeEngine, Shared};
use super::*;
use crate::engine::Control;
use crate::plan::DataPattern;
use crate::result::{PhaseResult, RunResult};

fn corners() -> four_corners::Settings {
    four_corners::Settings {
        jobs: 4,
        working_set_bytes: 1 << 30,
        runtime: Duration::from_secs(10),
        ramp: Duration::from_secs(1),
        depths: vec![8, 1],
        sequential_bytes: 64 << 10,
        random_bytes: 4 << 10,
        direct: true,
        sync: false,
    }
}

fn iozone() -> iozone::Settings {
    iozone::Settings {
        tests: vec![0, 1, 2],
        record_bytes: 1 << 20,
        file_bytes: 64 << 20,
        threads: 2,
        fsync: true,
        direct: false,
        depth: 1,
    }
}

fn ior() -> ior::Settings {
    ior::Settings {
        transfer_bytes: 1 << 20,
        block_bytes: 4 << 20,
        segments: 8,
        tasks: 4,
        file_per_process: false,
        write: true,
        read: true,
        random: false,
        reorder: true,
        fsync: false,
        iterations: 2,
        direct: false,
        depth: 1,
    }
}

fn metadata() -> metadata::Settings {
    metadata::Settings {
        files: 1000,
        jobs: 2,
        one_directory: true,
        iterations: 1,
        depth: 1,
    }
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.steps
        .iter()
        .map(|step| step.phase.name.as_str())
        .collect()
}

#[test]
fn four_corners_are_planned() {
    let plan = four_corners::plan(&corners(), 2).unwrap();
    let want = [
        "sequential read depth 8",
        "sequential read depth 1",
        "random read depth 8",
        "random read depth 1",
        "sequential write depth 8",
        "sequential write depth 1",
        "random write depth 8",
        "random write depth 1",
    ];
    assert_eq!(names(&plan), want);
    assert_eq!(plan.bytes_needed, 1 << 30);
    assert_eq!(plan.timed_ms(), 8 * 11_000);
    assert_eq!(plan.steps[0].phase.bytes_per_worker(), Some((1 << 30) / 8));
    let cold: Vec<bool> = plan.steps.iter().map(|step| step.cold).collect();
    assert_eq!(
        cold,
        [false, false, true, false, false, false, false, false]
    );
}

#[test]
fn iozone_is_planned() {
    let plan = iozone::plan(&iozone(), 1).unwrap();
    let want = [
        "write",
        "rewrite",
        "read",
        "reread",
        "random read",
        "random write",
    ];
    assert_eq!(names(&plan), want);
    assert_eq!(plan.bytes_needed, 128 << 20);
    let plan = iozone::plan(
        &iozone::Settings {
            tests: vec![1],
            ..iozone()
        },
        1,
    )
    .unwrap();
    assert_eq!(names(&plan), ["read", "reread"]);
}

#[test]
fn ior_is_planned() {
    let plan = ior::plan(&ior(), 3).unwrap();
    let want = [
        "write iteration 1",
        "read iteration 1",
        "write iteration 2",
        "read iteration 2",
    ];
    assert_eq!(names(&plan), want);
    assert_eq!(plan.bytes_needed, 2 * 3 * 4 * (32 << 20));
    let reorder = |plan: &Plan, step: usize| match &plan.steps[step].phase.work {
        Work::Data(data) => data.reorder,
        Work::Names(_) | Work::Objects(_) => panic!("IOR has data"),
    };
    assert_eq!((reorder(&plan, 0), reorder(&plan, 1)), (0, 4));
    assert_eq!(reorder(&ior::plan(&ior(), 1).unwrap(), 1), 1);
    let plain = ior::Settings {
        reorder: false,
        ..ior()
    };
    assert_eq!(reorder(&ior::plan(&plain, 3).unwrap(), 1), 0);
}

#[test]
fn metadata_is_planned() {
    let plan = super::metadata::plan(&metadata(), 1).unwrap();
    assert_eq!(
        names(&plan),
        ["create", "stat", "readdir", "rename", "unlink"]
    );
    assert_eq!(plan.bytes_needed, 0);
    assert_eq!(phase_operations(&plan.steps[0].phase), Some(2000));
}

#[test]
fn settings_out_of_bounds_are_refused() {
    let corners_with = |change: fn(&mut four_corners::Settings)| {
        let mut settings = corners();
        change(&mut settings);
        four_corners::plan(&settings, 1)
    };
    let ior_with = |change: fn(&mut ior::Settings)| {
        let mut settings = ior();
        change(&mut settings);
        super::ior::plan(&settings, 1)
    };
    let iozone_with = |change: fn(&mut iozone::Settings)| {
        let mut settings = iozone();
        change(&mut settings);
        super::iozone::plan(&settings, 1)
    };
    let cases = [
        ("multiple", corners_with(|s| s.random_bytes = 3000)),
        ("multiple", corners_with(|s| s.random_bytes = 0)),
        ("too small", corners_with(|s| s.working_set_bytes = 100_000)),
        ("depth must be", corners_with(|s| s.depths = vec![0])),
        ("depth must be", corners_with(|s| s.depths = vec![1025])),
        ("0 phases", corners_with(|s| s.depths.clear())),
        ("time to run", corners_with(|s| s.runtime = Duration::ZERO)),
        ("jobs", corners_with(|s| s.jobs = 0)),
        ("jobs", corners_with(|s| s.jobs = 5000)),
        ("clients", four_corners::plan(&corners(), 0)),
        ("clients", four_corners::plan(&corners(), 65)),
        ("no test 3", iozone_with(|s| s.tests = vec![0, 3])),
        ("0 phases", iozone_with(|s| s.tests.clear())),
        ("whole number", iozone_with(|s| s.file_bytes += 1)),
        ("a request must", iozone_with(|s| s.record_bytes = 0)),
        ("a request must", iozone_with(|s| s.record_bytes = 1 << 40)),
        ("iterations", ior_with(|s| s.iterations = 0)),
        ("neither", ior_with(|s| (s.read, s.write) = (false, false))),
        ("segment", ior_with(|s| s.segments = 0)),
        ("whole number", ior_with(|s| s.transfer_bytes = 3 << 20)),
        ("segment", ior_with(|s| s.segments = u64::MAX)),
        ("2^64", ior_with(|s| s.segments = u64::MAX >> 23)),
    ];
    for (part, got) in cases {
        let error = got.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[derive(Default)]
struct Told {
    begun: usize,
    ended: usize,
    warnings: Vec<String>,
    stop_at: Option<usize>,
}

impl Observer for Told {
    fn phase_begins(&mut self, index: usize, _: &Plan, control: &Control) {
        self.begun += 1;
        if self.stop_at == Some(index) {
            control.stop();
        }
    }

    fn phase_ends(&mut self, _: &PhaseResult) {
        self.ended += 1;
    }

    fn warn(&mut self, message: &str) {
        self.warnings.push(message.to_owned());
    }
}

fn job() -> Job {
    Job {
        label: "here".to_owned(),
        target: "/somewhere".parse::<Target>().unwrap().info(),
        pattern: DataPattern {
            compressible_percent: 0,
            dedupe_percent: 0,
            seed: 1,
        },
        allow_files: false,
        keep: false,
        keep_caches: false,
    }
}

fn run_fake(
    plan: &Plan,
    job: &Job,
    world: &Shared,
    told: &mut Told,
) -> Result<RunResult, crate::engine::EngineError> {
    let engine = FakeEngine {
        world: world.clone(),
    };
    run(
        plan,
        job,
        &mut Local::new(Box::new(engine)),
        &Control::default(),
        told,
    )
}

/// Whether a report has this line or part of a line, however wide its columns are.
#[track_caller]
fn check_shows(text: &str, part: &str) {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeeze(text).contains(&squeeze(part)), "{part}: {text}");
}

#[test]
fn a_run_does_all_phases_and_cleans_up() {
    let plan = four_corners::plan(&corners(), 1).unwrap();
    let (world, mut told) = (Shared::default(), Told::default());
    let result = run_fake(&plan, &job(), &world, &mut told).unwrap();
    assert_eq!(result.partial, None);
    assert_eq!(result.phases.len(), 8);
    assert_eq!((told.begun, told.ended), (8, 8));
    assert!(told.warnings.is_empty());
    let world = world.lock();
    assert!(world.files.is_empty());
    let drops = world
        .log
        .iter()
        .filter(|line| *line == "drop caches")
        .count();
    assert_eq!(drops, 1);
    assert_eq!(result.cache, "dropped nothing, this is a test");
    // Depth 8 does eight times as much as depth 1 in the fake's two seconds.
    let figures: Vec<_> = result
        .summary
        .iter()
        .map(|figure| (figure.title.as_str(), figure.value, figure.phase.as_str()))
        .collect();
    let sequential = 8000.0 * 65_536.0 / 1e6 / 2.0;
    let want = [
        ("sequential read", sequential, "sequential read depth 8"),
        ("random read", 4000.0, "random read depth 8"),
        ("sequential write", sequential, "sequential write depth 8"),
        ("random write", 4000.0, "random write depth 8"),
    ];
    assert_eq!(figures, want);
    assert_eq!(result.summary[0].drained, None);
    assert_eq!(result.summary[2].drained, Some(sequential / 2.0));
    let text = text(&result);
    for part in [
        "sequential read * 8 262.1 4000 131.1 0.50 0.40 2.00 5.00",
        "sequential read 1 32.8 500.0 16.4 0.50",
        "SUMMARY",
        "data        0% compressible, 0% duplicate, seed 1",
        "depths=8,1",
    ] {
        check_shows(&text, part);
    }
}

#[test]
fn what_was_measured_is_kept() {
    let plan = super::metadata::plan(&metadata(), 1).unwrap();
    let stop_at = Told {
        stop_at: Some(2),
        ..Told::default()
    };
    let name = |name: &str| Some(name.to_owned());
    type Change = Box<dyn Fn(&mut fake::World)>;
    let cases: Vec<(&str, Told, Change, Option<usize>, &str)> = vec![
        (
            "stopped",
            stop_at,
            Box::new(|_| {}),
            Some(3),
            "2 phases were not run",
        ),
        (
            "failed",
            Told::default(),
            Box::new(move |world| world.fail = name("readdir")),
            Some(2),
            "phase \"readdir\": it broke; 2 phases",
        ),
        (
            "cut",
            Told::default(),
            Box::new(|world| world.cut = Some("stat".to_owned())),
            Some(2),
            "phase \"stat\": it ended early; 3 phases",
        ),
        (
            "nothing",
            Told::default(),
            Box::new(|world| world.fail = Some("create".to_owned())),
            None,
            "it broke",
        ),
        (
            "refused",
            Told::default(),
            Box::new(|world| world.refuse_prepare = true),
            None,
            "not empty",
        ),
    ];
    for (case, mut told, change, want, part) in cases {
        let world = Shared::default();
        change(&mut world.lock());
        match (run_fake(&plan, &job(), &world, &mut told), want) {
            (Ok(result), Some(phases)) => {
                assert_eq!(result.phases.len(), phases, "{case}");
                let why = result.partial.clone().unwrap_or_default();
                assert!(why.contains(part), "{case}: {why}");
                assert!(text(&result).contains("PARTIAL: "), "{case}");
                assert_eq!(result.summary.len(), phases, "{case}");
            }
            (Err(error), None) => assert!(error.to_string().contains(part), "{case}: {error}"),
            (got, want) => panic!("{case}: {got:?}, not {want:?}"),
        }
        assert!(world.lock().files.is_empty(), "{case}");
    }
}

#[test]
fn files_are_kept_when_wanted() {
    let plan = super::metadata::plan(&metadata(), 1).unwrap();
    let (world, mut told) = (Shared::default(), Told::default());
    let keep = Job {
        keep: true,
        keep_caches: true,
        ..job()
    };
    let result = run_fake(&plan, &keep, &world, &mut told).unwrap();
    assert_eq!(result.cache, "nothing was done about caches");
    let world = world.lock();
    assert!(world.files.contains("folder"));
    assert!(!world.log.iter().any(|line| line == "drop caches"));
}

#[test]
fn iozone_reports_as_iozone_does() {
    let plan = super::iozone::plan(&iozone(), 1).unwrap();
    let result = run_fake(&plan, &job(), &Shared::default(), &mut Told::default()).unwrap();
    let text = text(&result);
    // Two files of 64 MiB: 65536 kB in 1.0 s, and in 1.1 s.
    for part in [
        "Children see throughput for 2 initial writers = 125114.18 kB/sec",
        "Parent sees throughput for 2 initial writers = 65536.00 kB/sec",
        "Drained throughput for 2 initial writers = 32768.00 kB/sec",
        "Min throughput per process = 59578.18 kB/sec",
        "Max throughput per process = 65536.00 kB/sec",
        "Avg throughput per process = 62557.09 kB/sec",
        "Min xfer = 65536.00 kB",
        // One of them ran when the other was done: the sum of their rates is not what was moved.
        "The children did not all run at the same time",
        "2 rewriters",
        "2 readers",
        "2 re-readers",
        "2 random readers",
        "2 random writers",
    ] {
        check_shows(&text, part);
    }
    let summary = super::iozone::summary(&result.phases);
    assert_eq!(
        summary[0].value,
        134.217728 / 2.0,
        "MB/s while any of them ran"
    );
}

#[test]
fn ior_and_metadata_report() {
    let world = Shared::default();
    let plan = super::ior::plan(&ior(), 1).unwrap();
    let result = run_fake(&plan, &job(), &world, &mut Told::default()).unwrap();
    let shown = text(&result);
    for part in [
        "Max Write: 64.00 MiB/sec (67.11 MB/sec)",
        "Max Read : 64.00 MiB/sec (67.11 MB/sec)",
        "write 64.0 32.0 64.0 4096 1024 2.000 1",
    ] {
        check_shows(&shown, part);
    }
    let plan = super::metadata::plan(&metadata(), 1).unwrap();
    let result = run_fake(&plan, &job(), &world, &mut Told::default()).unwrap();
    let shown = text(&result);
    check_shows(&shown, "(of 1 iterations)");
    check_shows(&shown, "File creation 1000 1000 1000 0");
}

#[test]
fn only_paths_have_notes_of_a_client_cache() {
    let buffered = four_corners::Settings {
        direct: false,
        ..corners()
    };
    let plans = [
        super::ior::plan(&ior(), 1).unwrap(),
        four_corners::plan(&buffered, 1).unwrap(),
    ];
    for (target, want) in [("/somewhere", true), ("nfs://host/main", false)] {
        let job = Job {
            target: target.parse::<Target>().unwrap().info(),
            ..job()
        };
        for plan in &plans {
            let result = run_fake(plan, &job, &Shared::default(), &mut Told::default()).unwrap();
            let has_note = result.notes.iter().any(|note| note.contains("cache"));
            assert_eq!(has_note, want, "{} on {target}", plan.suite);
        }
    }
}

#[test]
fn results_cannot_move_the_cursor() {
    let plan = super::metadata::plan(&metadata(), 1).unwrap();
    let hostile = Job {
        label: "\x1b[2Jgone\rx".to_owned(),
        ..job()
    };
    let result = run_fake(&plan, &hostile, &Shared::default(), &mut Told::default()).unwrap();
    assert!(!text(&result).contains(['\x1b', '\r']));
}
