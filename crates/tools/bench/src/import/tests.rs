//! Importing: real and documented samples, and anything that is not them.

use proptest::prelude::*;

use super::*;

const FIO_JSON_PLUS: &str = include_str!("../../testdata/fio-3.33-json-plus.json");
const FIO_JSON: &str = include_str!("../../testdata/fio-3.33-json.json");
const IOR_TEXT: &str = include_str!("../../testdata/ior-4.0.txt");
const IOR_TEXT_OLD: &str = include_str!("../../testdata/ior-3.0.txt");
const IOR_JSON: &str = include_str!("../../testdata/ior-4.0.json");
const IOZONE: &str = include_str!("../../testdata/iozone-3.420.txt");
const IOR_TEXT_OLDEST: &str = include_str!("../../testdata/ior-2.10.txt");
const IOR_JSON_OLD: &str = include_str!("../../testdata/ior-3.2.json");
const IOZONE_OLD: &str = include_str!("../../testdata/iozone-3.242.txt");
const IOZONE_OPERATIONS: &str = include_str!("../../testdata/iozone-3.507-ops.txt");
const ALL: [&str; 10] = [
    FIO_JSON_PLUS,
    FIO_JSON,
    IOR_TEXT,
    IOR_TEXT_OLD,
    IOR_JSON,
    IOZONE,
    IOR_TEXT_OLDEST,
    IOR_JSON_OLD,
    IOZONE_OLD,
    IOZONE_OPERATIONS,
];
const MIB: u64 = 1024 * 1024;

/// Name, operations, bytes and milliseconds of each phase.
fn check(text: &str, suite: &str, want: &[(&str, u64, u64, u64)]) -> RunResult {
    let result = import(text, "dir/sample.txt").expect("a sample");
    assert_eq!(
        (result.suite.as_str(), result.label.as_str()),
        (suite, "sample")
    );
    assert_eq!(result.partial, None);
    let found: Vec<(&str, u64, u64, u64)> = result
        .phases
        .iter()
        .map(|it| {
            let milliseconds = (it.foreground_seconds * 1e3).round() as u64;
            (it.name.as_str(), it.operations, it.bytes, milliseconds)
        })
        .collect();
    assert_eq!(found, want, "{suite}");
    result
}

fn figure(result: &RunResult, title: &str) -> u64 {
    let found = result.summary.iter().find(|figure| figure.title == title);
    found.expect("a figure of that title").value.round() as u64
}

#[test]
fn fio_with_bins() {
    let want = [
        ("mixed write", 33_257, 33_257 * 4096, 1004),
        ("mixed read", 33_191, 33_191 * 4096, 1004),
        ("seq read", 19_528, 19_528 * 65_536, 1002),
    ];
    let result = check(FIO_JSON_PLUS, "fio", &want);
    assert_eq!(result.clients[0].engine, "fio-3.33");
    assert_eq!(result.target.text, "/mnt/test");
    assert!(result.started.starts_with("2026-"), "{}", result.started);
    let read = &result.phases[2];
    assert_eq!(read.workers.len(), 2);
    let plan = read.phase.as_ref().expect("the options tell it");
    assert_eq!((plan.jobs, plan.depth), (2, 8));
    // A mix of reads and writes is none of our phases.
    assert_eq!(result.phases[0].phase, None);
    for phase in &result.phases {
        let latency = phase.latency.as_ref().expect("fio measures it");
        assert_eq!(latency.count, phase.operations);
        let histogram = latency.histogram.as_deref().expect("bins make one");
        let histogram = crate::latency::decode(histogram).expect("it is ours");
        assert_eq!(histogram.len(), phase.operations);
        // The bins of fio are 1.6 % wide.
        let error = histogram.mean() / 1e3 / latency.mean_us;
        assert!((0.97..1.03).contains(&error), "{}: {error}", phase.name);
        assert!(
            latency
                .percentiles_us
                .windows(2)
                .all(|pair| pair[0].1 <= pair[1].1)
        );
    }
}

#[test]
fn fio_without_bins() {
    let want = [
        ("mixed write", 28_195, 28_195 * 4096, 1001),
        ("mixed read", 28_192, 28_192 * 4096, 1001),
        ("seq read", 17_795, 17_795 * 65_536, 1001),
    ];
    let result = check(FIO_JSON, "fio", &want);
    let read = &result.phases[2];
    assert!(
        read.workers.is_empty(),
        "group_reporting tells only the sum"
    );
    let latency = read.latency.as_ref().expect("fio measures it");
    assert_eq!(latency.histogram, None);
    assert!(
        latency.percentiles_us.len() > 10
            && latency
                .percentiles_us
                .windows(2)
                .all(|pair| pair[0].1 <= pair[1].1)
    );
}

#[test]
fn fio_in_ticks_is_its_last_document() {
    let noisy = format!("note: both\n{FIO_JSON}fio: terminating on signal 2\n{FIO_JSON_PLUS}");
    let result = import(&noisy, "x").expect("two documents");
    assert_eq!(result.phases[0].operations, 33_257);
    let compact: serde_json::Value = serde_json::from_str(FIO_JSON).expect("it is JSON");
    import(&compact.to_string(), "x").expect("formatted by somebody else");
}

#[test]
fn ior() {
    let want = [
        ("write iteration 0", 512, 512 * MIB, 500),
        ("read iteration 0", 512, 512 * MIB, 250),
        ("write iteration 1", 512, 512 * MIB, 400),
        ("read iteration 1", 512, 512 * MIB, 320),
    ];
    let result = check(IOR_TEXT, "IOR", &want);
    assert_eq!(
        (figure(&result, "write"), figure(&result, "read")),
        (1342, 2147)
    );
    assert_eq!(result.clients[0].name, "client01");
    assert_eq!(result.clients[0].engine, "IOR-4.0.0");
    assert_eq!(result.started, "2023-03-30T16:09:19Z");
    assert_eq!(result.target.text, "/mnt/test/ior.data");
    assert_eq!(
        result.parameters.get("tasks").map(String::as_str),
        Some("4")
    );

    let want = [
        ("write iteration 0", 256, 256 * MIB, 500),
        ("read iteration 0", 256, 256 * MIB, 250),
    ];
    let old = check(IOR_TEXT_OLD, "IOR", &want);
    assert_eq!(figure(&old, "read"), 1074);
    let json = check(IOR_JSON, "IOR", &want);
    assert_eq!(figure(&json, "write"), 537);
    assert_eq!(json.clients[0].engine, "IOR-4.0.0");
    assert_eq!(json.target.text, "/mnt/test/ior.data");
}

#[test]
fn ior_with_only_its_summary() {
    let short: Vec<&str> = IOR_TEXT
        .lines()
        .filter(|line| !line.starts_with("access ") || line.contains(" : "))
        .collect();
    let want = [
        ("write mean of 2", 518, 543_581_798, 450),
        ("read mean of 2", 520, 545_091_748, 285),
    ];
    check(&short.join("\n"), "IOR", &want);
}

#[test]
fn ior_2() {
    let without = |dropped: &[&str]| {
        let kept = |line: &&str| !dropped.iter().any(|start| line.starts_with(start));
        let lines: Vec<&str> = IOR_TEXT_OLDEST.lines().filter(kept).collect();
        lines.join("\n")
    };
    let want = [
        ("write iteration 0", 256, 256 * MIB, 500),
        ("read iteration 0", 256, 256 * MIB, 250),
        ("write iteration 1", 256, 256 * MIB, 1000),
        ("read iteration 1", 256, 256 * MIB, 125),
    ];
    let result = check(IOR_TEXT_OLDEST, "IOR", &want);
    assert_eq!(figure(&result, "read"), 2147);
    assert_eq!(result.clients[0].engine, "IOR-2.10.3");
    assert_eq!(result.started, "2010-02-08T09:10:11Z");

    // Without -vv there is no table of iterations.
    let want = [
        ("write mean", 288, 288 * MIB, 750),
        ("read mean", 288, 288 * MIB, 188),
    ];
    let short = without(&["access ", "Commencing"]);
    check(&short, "IOR", &want);

    // Older ones have no column for the whole time.
    let untimed = IOR_TEXT_OLDEST.replace("close(s) total(s)", "close(s)");
    let untimed = untimed.replace(" 0.500000   0 ", " 0 ");
    let untimed: Vec<&str> = untimed
        .lines()
        .filter(|line| !line.contains("1.00       1") && !line.starts_with("read "))
        .collect();
    let want = [("write iteration 0", 256, 256 * MIB, 500)];
    check(&untimed.join("\n"), "IOR", &want);

    let shortest = without(&["access ", "Operation", "write ", "read "]);
    let want = [
        ("write best", 256, 256 * MIB, 500),
        ("read best", 256, 256 * MIB, 125),
    ];
    check(&shortest, "IOR", &want);
}

#[test]
fn ior_json_of_lists_and_with_noise() {
    let want = [
        ("write iteration 0", 16, 4 * MIB, 2),
        // Too short for the four digits of its time: from the size.
        ("read iteration 0", 16, 4 * MIB, 0),
        ("write iteration 1", 16, 4 * MIB, 4),
    ];
    let result = check(IOR_JSON_OLD, "IOR", &want);
    assert_eq!(result.clients[0].engine, "IOR-3.2.1");
    assert_eq!(figure(&result, "write"), 2097);
    assert!(result.phases[1].foreground_seconds > 0.0);
}

#[test]
fn ior_with_two_tests_has_names_for_both() {
    let twice = IOR_JSON_OLD.replace(
        "\n], \n  \"summary\"",
        ", {\"Results\": [{\"access\": \"read\", \"bwMiB\": 1, \"xferKiB\": 1024, \"totalTime\": 2}]}\n], \n  \"summary\"",
    );
    let result = import(&twice, "x").expect("two tests");
    let names: Vec<&str> = result.phases.iter().map(|it| it.name.as_str()).collect();
    let want = "read iteration 0 of test 2";
    assert_eq!((names.len(), names.last()), (4, Some(&want)));
}

#[test]
fn iozone_of_several_counts_and_in_kb() {
    let want = [
        ("1 initial writers", 64, 8 * MIB, 500),
        ("1 rewriters", 64, 8 * MIB, 250),
        ("2 initial writers", 128, 16 * MIB, 500),
        ("2 rewriters", 128, 16 * MIB, 250),
    ];
    let result = check(IOZONE_OLD, "IOzone", &want);
    assert_eq!(figure(&result, "2 rewriters"), 67);
    assert_eq!(result.started, "2004-01-14T21:32:08Z");
}

/// Found by fuzzing: the numbering of one title gave what another is called.
#[test]
fn names_that_differ_by_a_number_stay_apart() {
    let line = |title: &str| format!("Children see throughput for {title} = 8.00 kB/sec\n");
    let titles = ["2 readers 2", "2 readers", "2 readers", "2 readers 2"];
    let text: String = titles.map(line).concat();
    let result = import(&text, "x").expect("four tests");
    let names: Vec<&str> = result.phases.iter().map(|it| it.name.as_str()).collect();
    let want = ["2 readers 2", "2 readers", "2 readers 3", "2 readers 2 2"];
    assert_eq!(names, want);
}

/// A title that another begins with is not a second of that one.
#[test]
fn names_that_begin_alike_are_not_numbered() {
    let line = |title: &str| format!("Children see throughput for {title} = 8.00 kB/sec\n");
    let text: String = ["2 readers of all", "2 readers"].map(line).concat();
    let result = import(&text, "x").expect("two tests");
    assert_eq!(result.phases[1].name, "2 readers");
}

#[test]
fn iozone_in_operations() {
    let want = [
        ("2 initial writers", 512, 2 * MIB, 500),
        ("2 random readers", 512, 2 * MIB, 250),
    ];
    let result = check(IOZONE_OPERATIONS, "IOzone", &want);
    assert_eq!(figure(&result, "2 random readers"), 2048);
    assert!(result.summary.iter().all(|figure| figure.unit == "ops/s"));
    assert_eq!(result.phases[0].workers.len(), 2);
}

#[test]
fn iozone() {
    let want = [
        ("2 initial writers", 256, 256 * MIB, 1000),
        ("2 rewriters", 254, 254 * MIB, 864),
        ("2 readers", 256, 256 * MIB, 222),
    ];
    let result = check(IOZONE, "IOzone", &want);
    assert_eq!(figure(&result, "2 initial writers"), 268);
    assert_eq!(figure(&result, "2 readers, min per process"), 603);
    assert_eq!(result.phases[0].workers.len(), 2);
    assert_eq!(result.phases[1].workers.len(), 0);
    assert_eq!(result.clients[0].engine, "IOzone 3.420");
    assert!(
        result
            .parameters
            .contains_key("Include fsync in write timing")
    );
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let without = |text: &str, from: &str, to: &str| text.replacen(from, to, 1);
    let cases: &[(&str, String, &[&str])] = &[
        ("nothing", String::new(), &["not a result that can be read"]),
        (
            "noise",
            "hello\nworld\n".to_owned(),
            &["fio's JSON", "IOzone's text"],
        ),
        ("other JSON", "{\"a\": 1}".to_owned(), &["not a result"]),
        (
            "ours",
            "{\"schema\": \"cairn-bench/1\"}".to_owned(),
            &["cairn bench report"],
        ),
        (
            "fio for people",
            "fio-3.33\nStarting 1 process\n".to_owned(),
            &["--output-format=json+"],
        ),
        (
            "an old fio",
            without(FIO_JSON, "fio-3.33", "fio-2.2.10"),
            &["line 1", "fio 3.0"],
        ),
        (
            "a broken fio",
            without(FIO_JSON, "\"jobname\" : \"mixed\"", "\"jobname\" : 7"),
            &["line 18", "JSON"],
        ),
        (
            "fio with no jobs",
            "{\"fio version\": \"fio-3.33\", \"jobs\": []}".to_owned(),
            &["no results"],
        ),
        (
            "a short line of IOR",
            without(IOR_TEXT, "0.002011   0.497041", "0.497041"),
            &["line 39", "11 columns"],
        ),
        (
            "no number of IOR",
            without(IOR_TEXT, "1024.00    1030.10", "fast       1030.10"),
            &["line 39", "bw(MiB/s)", "fast"],
        ),
        (
            "IOR without results",
            IOR_TEXT.lines().take(30).collect::<Vec<_>>().join("\n"),
            &["no results", "access bw"],
        ),
        (
            "no number in IOR's JSON",
            without(IOR_JSON, "\"bwMiB\": 512.0", "\"bwMiB\": \"x\""),
            &["bwMiB", "tests[0].Results[0]"],
        ),
        (
            "broken JSON of IOR",
            without(IOR_JSON, "\"TestID\": 0", "\"TestID\" 0"),
            &["line 8", "JSON"],
        ),
        (
            "other units of IOzone",
            without(IOZONE, "262144.00 kB/sec", "262144.00 MB/sec"),
            &["line 20", "kB/sec", "ops/sec", "MB/sec"],
        ),
        (
            "IOzone without an equals sign",
            without(IOZONE, "initial writers \t=", "initial writers"),
            &["line 20"],
        ),
        (
            "operations of IOzone of no known size",
            IOZONE_OPERATIONS
                .lines()
                .filter(|line| !line.contains("Record Size") && !line.contains("records"))
                .collect::<Vec<_>>()
                .join("\n"),
            &["Record Size", "ops/sec"],
        ),
        (
            "no number after Max Write",
            without(IOR_TEXT, "Max Write: 1280.00", "Max Write: much"),
            &["line 48", "much"],
        ),
        (
            "IOzone of no process",
            without(IOZONE, "for  2 initial", "for  0 initial"),
            &["line 20"],
        ),
        (
            "IOzone not in throughput mode",
            "Iozone: Performance Test of File I/O\n".to_owned(),
            &["-t"],
        ),
        (
            "a child too many",
            without(
                IOZONE,
                "\tChild[0]",
                "\tChild[7] xfer count =  1.00 kB, Throughput =  1.00 kB/sec\n\tChild[0]",
            ),
            &["line 28", "2 children"],
        ),
    ];
    for (name, text, words) in cases {
        let error = import(text, "file.txt").expect_err(name).to_string();
        for word in *words {
            assert!(error.contains(word), "{name}: {word:?} is not in {error}");
        }
    }
}

#[test]
fn sizes_are_read_or_refused() {
    let cases = [
        ("4k", Some(4096)),
        ("1 MiB", Some(MIB)),
        ("128 kB", Some(131_072)),
        ("1.5g", Some(1_610_612_736)),
        ("512", Some(512)),
        ("512 bytes", Some(512)),
        ("4096 b", Some(4096)),
        ("9999999t", None),
        ("k", None),
        ("", None),
        ("4k-8k", None),
    ];
    for (text, want) in cases {
        assert_eq!(size(text), want, "{text}");
    }
}

/// 1e308 MiB/s: in bytes, or times some seconds, that was more than a number can be, and the result
/// could not be read again.
#[test]
fn numbers_that_nothing_measures_are_refused() {
    let (json, text) = (
        IOR_JSON.replacen("\"bwMiB\": ", "\"bwMiB\": 1e308, \"was\": ", 1),
        IOR_TEXT_OLD.replacen("read      1024.00 ", "read      1e308 ", 1),
    );
    for (damaged, whole) in [(json, IOR_JSON), (text, IOR_TEXT_OLD)] {
        assert_ne!(damaged, whole);
        let refused = import(&damaged, "damaged")
            .expect_err("refused")
            .to_string();
        assert!(refused.contains("a number for"), "{refused}");
    }
}

proptest! {
    #[test]
    fn damaged_files_are_results_or_errors(
        which in 0usize..ALL.len(),
        cut in 0.0f64..1.0,
        damage in prop::collection::vec((0.0f64..1.0, ".{0,6}"), 0..6),
    ) {
        let mut chars: Vec<char> = ALL[which].chars().collect();
        for (at, text) in damage {
            let at = (chars.len() as f64 * at) as usize;
            let end = (at + text.chars().count()).min(chars.len());
            chars.splice(at..end, text.chars());
        }
        if cut > 0.3 {
            chars.truncate((chars.len() as f64 * cut) as usize);
        }
        let text: String = chars.into_iter().collect();
        let _ = import(&text, "damaged");
    }

    #[test]
    fn anything_is_a_result_or_an_error(text in "(Iozone:|IOR-|access bw\\(MiB/s\\) |write |Children see throughput for |[0-9]+ |= |kB/sec|\n|.){0,60}") {
        let _ = import(&text, "anything");
    }
}
