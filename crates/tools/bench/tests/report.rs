//! Pages of results that were made up, whole and hostile. The pages stay in the test's folder, where
//! `scripts/bench-page` looks at them in a real browser.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_bench::plan::{
    DataPattern, DataWork, Direction, End, Fsync, Layout, NamesOperation, NamesWork, Order, Phase,
    Work,
};
use cairn_bench::report::{html, markdown};
use cairn_bench::result::{
    ClientInfo, CreditCurve, CreditModel, CreditSample, Figure, Latency, Machine, PhaseResult,
    ReadsOf, ReadsOfPhase, RunResult, SCHEMA, Sample, Stretch, TargetInfo, WorkerResult, parse,
};

const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\">--><!-- \u{202e}|`*_[a](b)\n# x";
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 32, 64, 100, 200];

/// The numbers of made-up results: the same in each run, different enough for a chart.
struct Wobble(u64);

impl Wobble {
    /// Around 1, by up to a tenth.
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        0.9 + (self.0 >> 40) as f64 / (1u64 << 24) as f64 * 0.2
    }
}

fn latency(p50_us: f64, count: u64) -> Latency {
    let percentiles = [
        (0.0, 0.3),
        (25.0, 0.7),
        (50.0, 1.0),
        (75.0, 1.5),
        (90.0, 2.1),
        (95.0, 2.8),
        (99.0, 5.0),
        (99.5, 6.0),
        (99.9, 12.0),
        (99.95, 16.0),
        (99.99, 40.0),
        (99.999, 90.0),
        (100.0, 120.0),
    ];
    Latency {
        count,
        min_us: p50_us * 0.3,
        mean_us: p50_us * 1.2,
        max_us: p50_us * 120.0,
        percentiles_us: percentiles
            .into_iter()
            .map(|(percentile, times)| (percentile, p50_us * times))
            .collect(),
        histogram: None,
    }
}

/// One phase of so many requests a second.
fn phase(
    name: &str,
    phase: Phase,
    rate: f64,
    request_bytes: u64,
    wobble: &mut Wobble,
) -> PhaseResult {
    let seconds = 60;
    let samples: Vec<Sample> = (0..seconds)
        .map(|at| {
            let operations = (rate * wobble.next()) as u64;
            Sample {
                at_seconds: f64::from(at),
                seconds: 1.0,
                operations,
                bytes: operations * request_bytes,
            }
        })
        .collect();
    let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
    let in_flight = f64::from(phase.jobs * phase.depth);
    let is_write = matches!(&phase.work, Work::Data(work) if work.direction == Direction::Write);
    let jobs = phase.jobs;
    PhaseResult {
        name: name.to_string(),
        operations,
        bytes: operations * request_bytes,
        errors: 0,
        first_error: None,
        foreground_seconds: f64::from(seconds),
        drained_seconds: f64::from(seconds) + if is_write { 4.5 } else { 0.0 },
        load_cpu_seconds: Some(31.0),
        workers: (0..jobs)
            .map(|_| WorkerResult {
                client: 0,
                operations: operations / u64::from(jobs),
                bytes: operations / u64::from(jobs) * request_bytes,
                seconds: f64::from(seconds) * wobble.next(),
            })
            .collect(),
        samples,
        latency: Some(latency(in_flight / rate * 1e6 / 1.2, operations)),
        job_file: Some(format!(
            "[global]\nbs={request_bytes}\n[{name}]\niodepth={}\n",
            phase.depth
        )),
        partial: None,
        phase: Some(phase),
    }
}

/// The four corners of a system that is `speed` times as fast as another.
fn four_corners(label: &str, speed: f64, seed: u64) -> RunResult {
    let mut wobble = Wobble(seed);
    let mut result = RunResult {
        schema: SCHEMA.to_string(),
        suite: "four-corners".into(),
        label: label.to_string(),
        started: "2026-11-21T08:00:00Z".into(),
        cairn_version: "0.1.0".into(),
        partial: None,
        target: TargetInfo {
            kind: "nfs".into(),
            text: "nfs://127.0.0.1/main?port=2049".into(),
            mount: None,
        },
        clients: vec![ClientInfo {
            name: "this machine".into(),
            machine: Machine {
                cpu: "a processor that does not exist".into(),
                cpus: 2,
                memory_bytes: 24 << 30,
                kernel: "6.1.0".into(),
                os: "Debian GNU/Linux 12".into(),
            },
            engine: "cairn-nfs 0.1.0".into(),
            failed: None,
        }],
        data: Some(DataPattern {
            compressible_percent: 0,
            dedupe_percent: 0,
            seed,
        }),
        cache: "the server's caches were left alone".into(),
        parameters: BTreeMap::from([
            ("jobs".into(), "4".into()),
            ("working-set".into(), "4GiB".into()),
        ]),
        phases: Vec::new(),
        summary: Vec::new(),
        notes: vec!["These figures are made up, to show what a page looks like.".into()],
        credits: Vec::new(),
        reads: None,
    };
    let corners = [
        (
            "sequential write",
            Direction::Write,
            Order::Sequential,
            64 << 10,
            1.1e9,
        ),
        (
            "sequential read",
            Direction::Read,
            Order::Sequential,
            64 << 10,
            3.2e9,
        ),
        (
            "random write",
            Direction::Write,
            Order::Random,
            4 << 10,
            4.5e8,
        ),
        (
            "random read",
            Direction::Read,
            Order::Random,
            4 << 10,
            7.0e8,
        ),
    ];
    for (title, direction, order, request_bytes, bytes_per_second) in corners {
        let mut best: Option<(f64, usize)> = None;
        for depth in DEPTHS {
            let name = format!("{title} depth {depth}");
            let busy =
                f64::from(depth) / (f64::from(depth) + 6.0) * if depth > 64 { 0.93 } else { 1.0 };
            let rate = bytes_per_second * speed * busy * wobble.next() / request_bytes as f64;
            let work = Work::Data(DataWork {
                direction,
                order,
                request_bytes,
                layout: Layout::PerWorker { bytes: 1 << 30 },
                reorder: 0,
                end: End::After {
                    ramp_ms: 5_000,
                    runtime_ms: 60_000,
                },
                fsync: Fsync::After,
                direct: true,
            });
            let asked = Phase {
                name: name.clone(),
                fileset: "corner".into(),
                jobs: 4,
                depth,
                work,
            };
            result
                .phases
                .push(phase(&name, asked, rate, request_bytes, &mut wobble));
            if best.is_none_or(|(highest, _)| rate > highest) {
                best = Some((rate, result.phases.len() - 1));
            }
        }
        let best = &result.phases[best.unwrap().1];
        let (amount, unit) = match order {
            Order::Sequential => (best.bytes as f64 / 1e6, "MB/s"),
            Order::Random => (best.operations as f64, "ops/s"),
        };
        let figure = Figure {
            title: title.into(),
            value: amount / best.foreground_seconds,
            unit: unit.into(),
            drained: (direction == Direction::Write).then(|| amount / best.drained_seconds),
            phase: best.name.clone(),
        };
        result.summary.push(figure);
    }
    let names = Work::Names(NamesWork {
        operation: NamesOperation::Create,
        files: 10_000,
        one_directory: true,
    });
    let asked = Phase {
        name: "create".into(),
        fileset: "names".into(),
        jobs: 4,
        depth: 1,
        work: names,
    };
    let create = phase("create", asked, 34_000.0 * speed, 0, &mut wobble);
    result.summary.push(Figure {
        title: "create".into(),
        value: create.operations as f64 / create.foreground_seconds,
        unit: "ops/s".into(),
        drained: None,
        phase: "create".into(),
    });
    result.phases.push(create);
    result
}

/// A volume with a tenth of the paper's rates, and a credit of 20 s: a burst, the baseline, a pause, and what that earned.
fn bursts(label: &str) -> RunResult {
    let mut result = RunResult {
        suite: "burst".into(),
        phases: Vec::new(),
        summary: Vec::new(),
        ..four_corners(label, 1.0, 1)
    };
    let mut wobble = Wobble(7);
    for (title, direction, baseline, burst) in [
        ("write", Direction::Write, 7.2e6, 30.0e6),
        ("read", Direction::Read, 24.0e6, 228.0e6),
    ] {
        let credit_max = (burst - baseline) * 20.0;
        let stretch = |phase: &str, at_seconds| Stretch {
            phase: phase.into(),
            at_seconds,
            seconds: 30.0,
        };
        let again = format!("{title} after a pause");
        let stretches = vec![stretch(title, 0.0), stretch(&again, 50.0)];
        let mut left: f64 = credit_max;
        let mut model = Vec::new();
        for step in 0..800 {
            let at_seconds = f64::from(step) / 10.0;
            let is_used = !(30.0..50.0).contains(&at_seconds);
            let rate = match (is_used, left > 0.0) {
                (false, _) => 0.0,
                (true, true) => burst,
                (true, false) => baseline,
            };
            left = (left + (baseline - rate) / 10.0).clamp(0.0, credit_max);
            model.push(CreditModel {
                at_seconds,
                bytes_per_second: rate,
                credit_bytes: left,
            });
        }
        for it in &stretches {
            let asked = Phase {
                name: it.phase.clone(),
                fileset: "burst".into(),
                jobs: 4,
                depth: 4,
                work: Work::Data(DataWork {
                    direction,
                    order: Order::Sequential,
                    request_bytes: 256 << 10,
                    layout: Layout::PerWorker { bytes: 16 << 20 },
                    reorder: 0,
                    end: End::After {
                        ramp_ms: 0,
                        runtime_ms: 30_000,
                    },
                    fsync: Fsync::After,
                    direct: true,
                }),
            };
            let mut phase = phase(&it.phase, asked, 100.0, 1, &mut wobble);
            phase.samples = (0..300)
                .map(|at| {
                    let at_seconds = f64::from(at) / 10.0;
                    let point = &model[((it.at_seconds + at_seconds) * 10.0) as usize];
                    Sample {
                        at_seconds,
                        seconds: 0.1,
                        operations: 1,
                        bytes: (point.bytes_per_second / 10.0 * wobble.next()) as u64,
                    }
                })
                .collect();
            phase.bytes = phase.samples.iter().map(|it| it.bytes).sum();
            phase.foreground_seconds = 30.0;
            result.phases.push(phase);
        }
        let samples = model.iter().step_by(4);
        let samples = samples.map(|it| CreditSample {
            at_seconds: it.at_seconds,
            credit_bytes: it.credit_bytes as u64,
        });
        result.summary.push(Figure {
            title: format!("{title} burst"),
            value: burst / 1e6,
            unit: "MB/s".into(),
            drained: None,
            phase: title.into(),
        });
        result.credits.push(CreditCurve {
            title: title.into(),
            limit: format!("{title}-throughput"),
            class: "paper".into(),
            baseline_bytes_per_second: baseline as u64,
            burst_bytes_per_second: burst as u64,
            credit_max_bytes: credit_max as u64,
            stretches,
            samples: samples.collect(),
            model,
            deviation_percent: Some(1.2),
        });
    }
    result
}

/// Four passes over the same bytes; with a read cache the last two come from it.
fn passes(label: &str, cache_count: u64) -> RunResult {
    let mut result = RunResult {
        suite: "read-cache".into(),
        phases: Vec::new(),
        summary: Vec::new(),
        ..four_corners(label, 1.0, 1)
    };
    let mut reads = ReadsOf {
        cache_count,
        cache_bytes: cache_count << 33,
        memory_bytes: 256 << 20,
        passes: Vec::new(),
    };
    for pass in 1..=4 {
        let has_it = pass > 2 && cache_count > 0;
        let mut phase = four_corners(label, if has_it { 0.4 } else { 0.1 }, 1)
            .phases
            .remove(8);
        phase.name = format!("pass {pass}");
        if let Some(asked) = &mut phase.phase {
            asked.fileset = "read-cache".into();
        }
        let all = phase.bytes;
        let from_cache_bytes = if has_it { all / 10 * 9 } else { 0 };
        reads.passes.push(ReadsOfPhase {
            phase: phase.name.clone(),
            from_cache_bytes,
            from_disks_bytes: all - from_cache_bytes - all / 20,
        });
        result.summary.push(Figure {
            title: phase.name.clone(),
            value: phase.bytes as f64 / 1e6 / phase.foreground_seconds,
            unit: "MB/s".into(),
            drained: None,
            phase: phase.name.clone(),
        });
        result.phases.push(phase);
    }
    result.reads = Some(reads);
    result
}

#[test]
fn bursts_are_charted_beside_the_model_and_the_paper() {
    let results = [bursts("Cairn")];
    let page = html(&results);
    keep("report-bursts.html", &page);
    let drawn = charts(&page);
    // Throughput and credit of each direction, and nothing of it a second time.
    assert_eq!(drawn.len(), 4);
    let labels = |chart: &serde_json::Value| -> Vec<String> {
        let lines = chart["lines"].as_array().unwrap().iter();
        lines
            .map(|line| line["label"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        labels(&drawn[0]),
        [
            "measured",
            "the planner's model",
            "expected by the paper, in proportion",
            "measured by the paper, in proportion"
        ]
    );
    assert_eq!(
        labels(&drawn[1]),
        ["as the server tells", "the planner's model"]
    );
    assert_eq!(
        (drawn[0]["unit"].as_str(), drawn[1]["unit"].as_str()),
        (Some("MB/s"), Some("MB"))
    );
    // The paper's write burst, 300 MB/s of a baseline of 72, of this baseline of 7.2.
    let highest = |chart: &serde_json::Value, line: usize| {
        let y = chart["lines"][line]["y"].as_array().unwrap().iter();
        y.map(|it| it.as_f64().unwrap()).fold(0.0, f64::max)
    };
    assert!((highest(&drawn[0], 2) - 30.0).abs() < 0.1);
    assert!((highest(&drawn[0], 3) - 46.0).abs() < 0.1);
    // In the pause nothing was written, and no line leads through it.
    let at = |second: f64| {
        let line = &drawn[0]["lines"][0];
        let x = line["x"].as_array().unwrap().iter();
        let y = line["y"].as_array().unwrap();
        let last = x.take_while(|it| it.as_f64().unwrap() <= second).count() - 1;
        y[last].as_f64().unwrap()
    };
    assert!(at(35.0) < 1.0 && at(50.0) < 1.0 && at(51.0) > 20.0);
    let ends = drawn[0]["lines"][0]["x"].as_array().unwrap();
    assert!(ends.iter().any(|x| x.as_f64() == Some(50.0)));
    // What classes allow is not compared with what systems can do.
    assert!(!page.contains("Beside published figures"));
    let text = markdown(&results);
    for shown in [
        "class paper, by the planner",
        "the paper: expected",
        "Optimize price and performance",
    ] {
        assert!(page.contains(shown) && text.contains(shown), "{shown}");
    }
    check_tables(&text);
}

#[test]
fn passes_say_what_a_read_cache_had_and_that_there_is_none() {
    let results = [passes("with", 1), passes("without", 0)];
    let page = html(&results);
    keep("report-read-cache.html", &page);
    for shown in [
        "with, read cache of 8 GiB: pass 3",
        "90.0%",
        "without, no read cache: pass 1",
        "3.33 times as fast",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
    let text = markdown(&results);
    assert!(text.contains("without, no read cache: pass 4"), "{text}");
    check_tables(&text);
}

/// Puts `text` wherever a result has text.
fn with_text_everywhere(mut result: RunResult, text: &str) -> RunResult {
    let hostile = || text.to_string();
    for field in [
        &mut result.suite,
        &mut result.label,
        &mut result.started,
        &mut result.cairn_version,
        &mut result.cache,
    ] {
        *field = hostile();
    }
    result.partial = Some(hostile());
    result.target = TargetInfo {
        kind: hostile(),
        text: hostile(),
        mount: Some(hostile()),
    };
    result.parameters = BTreeMap::from([(hostile(), hostile())]);
    result.notes = vec![hostile()];
    for client in &mut result.clients {
        client.name = hostile();
        client.engine = hostile();
        client.failed = Some(hostile());
        client.machine.cpu = hostile();
        client.machine.kernel = hostile();
        client.machine.os = hostile();
    }
    for phase in &mut result.phases {
        phase.name.push_str(text);
        phase.partial = Some(hostile());
        phase.errors = 1;
        phase.first_error = Some(hostile());
        phase.job_file = Some(hostile());
    }
    for curve in &mut result.credits {
        curve.title.push_str(text);
        curve.limit = hostile();
        curve.class = hostile();
        for stretch in &mut curve.stretches {
            stretch.phase.push_str(text);
        }
    }
    for pass in result.reads.iter_mut().flat_map(|reads| &mut reads.passes) {
        pass.phase.push_str(text);
    }
    for figure in &mut result.summary {
        figure.title.push_str(text);
        figure.phase.push_str(text);
        if !figure.title.starts_with("random") {
            figure.unit = hostile();
        }
    }
    result
}

fn keep(name: &str, page: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, page).unwrap();
    path
}

/// The elements of a page by name, without what is in its scripts and styles.
fn elements(page: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let name: String = rest
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "!/-".contains(*c))
            .collect();
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}")).unwrap()..];
        }
        *found.entry(name).or_insert(0) += 1;
    }
    found
}

/// What `page.js` reads.
fn charts(page: &str) -> Vec<serde_json::Value> {
    let data = page.split("type=\"application/json\">").nth(1).unwrap();
    serde_json::from_str(data.split("</script>").next().unwrap()).unwrap()
}

#[test]
fn a_page_has_charts_tables_and_nothing_from_outside() {
    let results = [
        four_corners("System A", 1.0, 1),
        four_corners("System B", 0.6, 2),
    ];
    let page = html(&results);
    keep("report-example.html", &page);
    keep("report-example.md", &markdown(&results));

    let charts = charts(&page);
    // Four corners with depth, time and latency, and creations with the latter two.
    assert_eq!(charts.len(), 4 * 3 + 2);
    assert_eq!(page.matches("class=\"chart\"").count(), charts.len());
    assert_eq!(
        page.matches("<figure>").count(),
        page.matches("<summary>As a table</summary>").count()
    );
    assert!(
        charts
            .iter()
            .all(|chart| chart["lines"].as_array().unwrap().len() == 2)
    );
    for fetched in [
        "<link", "<img", "src=", "@import", "url(", "<iframe", "href=",
    ] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    for shown in [
        "Beside published figures",
        "by depth",
        "System B",
        "drained",
        "m5dn.12xlarge",
        "The MIT License",
        "Content-Security-Policy",
        "incompressible and unique",
    ] {
        assert!(
            page.to_lowercase().contains(&shown.to_lowercase()),
            "{shown}"
        );
    }
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
}

#[test]
fn no_text_of_a_result_becomes_markup() {
    let whole = || RunResult {
        credits: bursts("a").credits,
        reads: passes("a", 1).reads,
        ..four_corners("a", 1.0, 1)
    };
    let tame = html(&[with_text_everywhere(whole(), "text")]);
    let result = with_text_everywhere(whole(), HOSTILE);
    let page = html(std::slice::from_ref(&result));
    keep("report-hostile.html", &page);
    assert!(page.contains("more: all phases are in a table below"));
    assert_eq!(elements(&page), elements(&tame));
    assert!(
        !page.contains("<img") && !page.contains("alert(1)</script>") && !page.contains('\u{202e}')
    );
    assert_eq!(charts(&page).len(), charts(&tame).len());

    let text = markdown(&[result]);
    assert!(
        !text.contains("<script") && !text.contains("<img") && !text.contains("\n# x"),
        "{text}"
    );
    check_tables(&text);
}

/// All rows of a Markdown table have as many cells as its head.
fn check_tables(text: &str) {
    let cells = |line: &str| {
        line.replace("\\\\", "")
            .replace("\\|", "")
            .matches('|')
            .count()
    };
    let mut columns = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            columns = None;
            continue;
        }
        assert_eq!(*columns.get_or_insert(cells(line)), cells(line), "{line}");
    }
}

#[test]
fn what_is_missing_is_said_before_any_figure() {
    let mut result = four_corners("System A", 1.0, 1);
    result.partial = Some("the client lab-2 failed".into());
    result.clients[0].failed = Some("connection refused".into());
    result.phases[3].partial = Some("the server went away".into());
    result.phases[7].errors = 1234;
    result.phases[7].first_error = Some("NFS3ERR_IO".into());
    let results = [result];
    let page = html(&results);
    keep("report-partial.html", &page);
    let text = markdown(&results);
    let said = [
        "the client lab-2 failed",
        "connection refused",
        "the server went away",
        "1,234 failed requests",
        "NFS3ERR",
    ];
    for said in said {
        assert!(
            page.find(said).unwrap() < page.find("<h2>Summary").unwrap(),
            "{said}"
        );
        assert!(
            text.find(said).unwrap() < text.find("## Summary").unwrap(),
            "{said}"
        );
    }
    assert!(!page.contains("more: all phases"));
    assert!(page.find("made up").unwrap() < page.find("<h2>Summary").unwrap());
    check_tables(&text);
}

#[test]
fn published_figures_are_beside_the_same_workload_only() {
    /// A phase as IOzone's report has it: nothing but a name and sums.
    fn imported(name: &str) -> PhaseResult {
        PhaseResult {
            name: name.into(),
            phase: None,
            operations: 0,
            bytes: 5_000_000_000,
            errors: 0,
            first_error: None,
            foreground_seconds: 10.0,
            drained_seconds: 10.0,
            load_cpu_seconds: None,
            workers: Vec::new(),
            samples: Vec::new(),
            latency: None,
            job_file: None,
            partial: None,
        }
    }
    let cases: &[(&str, &str)] = &[
        ("initial writers", "Sequential write"),
        ("readers", "Sequential read"),
        ("rewriters", ""),
        ("re-readers", ""),
        ("random readers", ""), // in MB/s, where the papers have requests
        ("mixed", ""),
    ];
    for (name, want) in cases {
        let mut result = four_corners("a", 1.0, 1);
        result.summary.clear();
        result.phases = vec![imported(name)];
        let page = html(&[result]);
        assert_eq!(
            page.contains("Beside published"),
            !want.is_empty(),
            "{name}"
        );
        assert!(
            page.contains(&format!("<h3>{want}")) || want.is_empty(),
            "{name}"
        );
        assert!(page.contains("500"), "{name}: its rate");
    }
}

#[test]
fn results_of_one_label_are_told_apart() {
    let mut other_suite = four_corners("System A", 1.0, 1);
    other_suite.suite = "ior".into();
    let page = html(&[
        four_corners("System A", 1.0, 1),
        four_corners("System A", 1.0, 2),
        other_suite,
    ]);
    for label in [
        "System A, four-corners",
        "System A, four-corners (2)",
        "System A, ior",
    ] {
        assert!(page.contains(&format!("<b>{label}</b>")), "{label}");
    }
}

#[test]
fn odd_results_make_a_page() {
    let mut odd = four_corners("", 1.0, 1);
    odd.clients.clear();
    odd.data = None;
    for phase in &mut odd.phases {
        phase.foreground_seconds = 0.0;
        phase.drained_seconds = 0.0;
        phase.samples = vec![
            Sample {
                at_seconds: 0.0,
                seconds: 0.0,
                operations: u64::MAX,
                bytes: u64::MAX
            };
            3
        ];
        phase.operations = u64::MAX;
        phase.bytes = u64::MAX;
        phase.latency = Some(Latency {
            count: 0,
            min_us: 0.0,
            mean_us: 0.0,
            max_us: 0.0,
            percentiles_us: vec![(-5.0, -1.0), (400.0, 1e300)],
            histogram: None,
        });
        for worker in &mut phase.workers {
            worker.seconds = 0.0;
        }
    }
    for figure in &mut odd.summary {
        figure.value = -1.0;
        figure.phase = "there is no such phase".into();
    }
    let nothing_but_phases = RunResult {
        summary: Vec::new(),
        ..odd.clone()
    };
    let empty = RunResult {
        phases: Vec::new(),
        summary: Vec::new(),
        ..odd.clone()
    };
    for results in [
        vec![],
        vec![empty],
        vec![nothing_but_phases.clone()],
        vec![odd.clone(), odd, nothing_but_phases],
    ] {
        assert!(html(&results).ends_with("</html>\n"));
        check_tables(&markdown(&results));
    }
}

#[test]
fn an_hour_of_samples_is_a_small_page() {
    let mut result = four_corners("long", 1.0, 1);
    for phase in &mut result.phases {
        phase.samples = (0..36_000)
            .map(|at| Sample {
                at_seconds: f64::from(at) / 10.0,
                seconds: 0.1,
                operations: 1_000,
                bytes: 4_096_000,
            })
            .collect();
    }
    let page = html(&[result]);
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
}

#[test]
fn a_result_is_read_as_it_was_written() {
    let result = four_corners("System A", 1.0, 1);
    let json = serde_json::to_vec(&result).unwrap();
    let read = parse(Path::new("a.json"), &json).unwrap();
    // The last digit of a floating-point number may differ.
    assert!(format!("{read:.6?}") == format!("{result:.6?}"));
}
