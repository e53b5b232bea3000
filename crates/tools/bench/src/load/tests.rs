//! Workloads against a server in memory.

use cairn_codec_nfs::v3::{ErrorStatus, Procedure};
use cairn_nfs_client::testing::{Action, FakeServer};

use super::*;

/// A server on a runtime of its own, because `run` blocks.
struct Fixture {
    _runtime: tokio::runtime::Runtime,
    server: FakeServer,
    url: NfsUrl,
}

impl Fixture {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(FakeServer::start());
        let url = server.url("").parse().expect("a URL");
        Self {
            _runtime: runtime,
            server,
            url,
        }
    }

    fn run(&self, settings: &LoadSettings) -> Report {
        run(&self.url, settings).expect("it runs")
    }

    fn call_count(&self, procedure: Procedure) -> usize {
        let calls = self.server.calls();
        calls.iter().filter(|(_, it)| *it == procedure).count()
    }
}

/// 3 connections with 4 requests in flight; 10 blocks of 4 KiB and a bit, 5 files.
fn small(workload: Workload) -> LoadSettings {
    LoadSettings {
        connection_count: 3,
        depth: 4,
        block_len_bytes: 4096,
        file_len_bytes: 10 * 4096 + 1,
        file_count: 5,
        time: Duration::from_millis(20),
        verify: true,
        ..LoadSettings::new(workload)
    }
}

#[track_caller]
fn check(report: &Report, operation_count: u64, bytes: u64) {
    assert_eq!(report.first_error, None);
    assert_eq!(report.error_count, 0);
    assert_eq!(
        (report.operation_count, report.bytes),
        (operation_count, bytes)
    );
    assert_eq!(report.latency_ns.len(), operation_count);
    assert!(!report.elapsed.is_zero());
}

#[test]
fn what_is_written_is_read_back() {
    let fixture = Fixture::new();
    check(&fixture.run(&small(Workload::SeqWrite)), 30, 30 * 4096);
    assert_eq!(fixture.call_count(Procedure::Write), 30);
    assert_eq!(fixture.call_count(Procedure::Commit), 3);
    for name in ["/nfsload-f0", "/nfsload-f1", "/nfsload-f2"] {
        let stable = fixture.server.stable(name).expect(name);
        assert_eq!(stable.len(), 10 * 4096, "{name}");
    }
    check(&fixture.run(&small(Workload::SeqRead)), 30, 30 * 4096);
    // Other bytes than the pattern are noticed.
    let unlike = LoadSettings {
        verify: false,
        ..small(Workload::SeqWrite)
    };
    check(&fixture.run(&unlike), 30, 30 * 4096);
    let report = fixture.run(&small(Workload::SeqRead));
    assert!(report.error_count > 0);
    assert!(report.first_error.expect("an error").contains("wrong data"));
}

#[test]
fn random_workloads_end_by_time() {
    let fixture = Fixture::new();
    fixture.run(&small(Workload::SeqWrite));
    for workload in [Workload::RandWrite, Workload::RandRead] {
        let mut settings = small(workload);
        let mut report = fixture.run(&settings);
        // On a busy machine no thread may run in so short a time.
        while report.operation_count == 0 {
            settings.time *= 2;
            assert!(settings.time < Duration::from_secs(60), "{workload}");
            report = fixture.run(&settings);
        }
        check(
            &report,
            report.operation_count,
            report.operation_count * 4096,
        );
        assert!(report.elapsed >= settings.time);
    }
}

#[test]
fn sync_writes_need_no_commit() {
    let fixture = Fixture::new();
    let settings = LoadSettings {
        sync: true,
        ..small(Workload::SeqWrite)
    };
    check(&fixture.run(&settings), 30, 30 * 4096);
    assert_eq!(fixture.call_count(Procedure::Commit), 0);
}

#[test]
fn names_are_made_found_and_removed() {
    for (walk, calls_of_create) in [(true, 2), (false, 0)] {
        let fixture = Fixture::new();
        let small = |workload| LoadSettings {
            walk,
            ..super::tests::small(workload)
        };
        check(&fixture.run(&small(Workload::Create)), 15, 0);
        // One to see whether the directory is there, then those for each file.
        let lookups = 3 + 15 * calls_of_create;
        assert_eq!(fixture.call_count(Procedure::Lookup), lookups);
        let names = fixture.server.names("/nfsload-d2");
        assert_eq!(names.len(), 5);
        assert_eq!(names[4], "f0000004");
        check(&fixture.run(&small(Workload::Stat)), 15, 0);
        check(&fixture.run(&small(Workload::Unlink)), 15, 0);
        assert!(fixture.server.names("/nfsload-d2").is_empty());
        // Again: there is nothing to remove, which is counted and goes on.
        let report = fixture.run(&small(Workload::Unlink));
        assert_eq!((report.error_count, report.operation_count), (15, 0));
    }
}

#[test]
fn small_files_are_written_and_read_in_any_order() {
    let fixture = Fixture::new();
    check(&fixture.run(&small(Workload::FileWrite)), 15, 15 * 4096);
    assert_eq!(fixture.call_count(Procedure::Commit), 0);
    let names = fixture.server.names("/nfsload-s1");
    assert_eq!(names.len(), 5);
    let stable = fixture.server.stable("/nfsload-s1/f0000003");
    assert_eq!(stable.expect("a file").len(), 4096);
    for shuffle in [false, true] {
        let settings = LoadSettings {
            shuffle,
            ..small(Workload::FileRead)
        };
        check(&fixture.run(&settings), 15, 15 * 4096);
    }
    assert_eq!(fixture.call_count(Procedure::Read), 30);
}

#[test]
fn failures_are_counted_and_a_silent_server_ends_it() {
    let fixture = Fixture::new();
    let mut count = 0;
    fixture.server.script(move |procedure| {
        count += usize::from(procedure == Procedure::Write);
        match procedure == Procedure::Write && count % 3 == 0 {
            true => Action::Fail(ErrorStatus::NoSpc),
            false => Action::Answer,
        }
    });
    let report = fixture.run(&small(Workload::SeqWrite));
    assert_eq!((report.error_count, report.operation_count), (10, 20));
    fixture.server.script(|procedure| match procedure {
        Procedure::Write => Action::CloseBefore,
        _ => Action::Answer,
    });
    let report = fixture.run(&small(Workload::SeqWrite));
    assert_eq!(report.operation_count, 0);
    assert!(report.error_count >= 3);
}

#[test]
fn a_restart_that_loses_data_is_an_error() {
    let fixture = Fixture::new();
    fixture.server.script(|procedure| match procedure {
        Procedure::Commit => Action::RestartBefore,
        _ => Action::Answer,
    });
    let report = fixture.run(&small(Workload::SeqWrite));
    assert_eq!(report.operation_count, 30);
    assert!(report.first_error.expect("an error").contains("restarted"));
}

#[test]
fn wrong_settings_and_servers_are_refused() {
    type Change<'a> = &'a dyn Fn(&mut LoadSettings);
    let fixture = Fixture::new();
    let base = small(Workload::SeqWrite);
    let refusal = |change: Change<'_>| {
        let mut settings = base.clone();
        change(&mut settings);
        run(&fixture.url, &settings)
            .expect_err("refused")
            .to_string()
    };
    let cases: &[(Change<'_>, &str)] = &[
        (
            &|it| it.connection_count = 0,
            "the number of connections must be from 1 to 64",
        ),
        (
            &|it| it.connection_count = 65,
            "the number of connections must be from 1 to 64",
        ),
        (&|it| it.depth = 257, "the depth must be from 1 to 256"),
        (&|it| it.block_len_bytes = 7, "must be from 8 to 40961"),
        (&|it| it.block_len_bytes = 40962, "must be from 8 to 40961"),
        (&|it| it.block_len_bytes = 4097, "a multiple of 8 bytes"),
        (
            &|it| (it.block_len_bytes, it.file_len_bytes) = (2 << 20, 2 << 20),
            "the server takes at most",
        ),
        (&|it| it.workload = Workload::SeqRead, "preparing nfsload-f"),
        (&|it| it.workload = Workload::Stat, "preparing nfsload-d"),
    ];
    for (change, want) in cases {
        let message = refusal(change);
        assert!(message.contains(want), "`{message}` has `{want}`");
    }
    assert!("seqwrites".parse::<Workload>().is_err());
    for workload in Workload::ALL {
        assert_eq!(
            workload.name().parse::<Workload>().expect("its name"),
            workload
        );
    }
    let nobody: NfsUrl = "nfs://127.0.0.1:1/main".parse().expect("a URL");
    let refused = run(&nobody, &base).expect_err("nobody is there");
    assert!(matches!(refused, LoadError::Connect { .. }), "{refused}");
}
