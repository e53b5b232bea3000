//! Burst: full speed on a volume in a class with bursts, beside the credit that its server says is left.
//!
//! Owns: the phases, the curves made of samples and answers, their figures and text.
//! Must not know: how a server is asked, what the model is made of.
//! Source: the parallel file system paper: a volume of 6 TiB that earns burst credits by what it leaves of its baseline.

use std::time::{Duration, Instant};

use cairn_base::units::format_size;

use super::table::{number, table};
use super::{Plan, Step, SuiteError, file_of_each, parameters, per_worker};
use crate::plan::{DataWork, Direction, End, Fsync, Order, Phase, Work};
use crate::result::{CreditCurve, CreditModel, CreditSample, Figure, RunResult, Sample, Stretch};
use crate::watch::{Ask, LimitNow, ServerSamples};

pub const SUITE: &str = "burst";
/// Full speed is measured for so many times what the credit lasts.
pub const RUNTIME_OF_CREDIT: f64 = 1.5;
/// Longer runs are only made when they are asked for.
pub const RUNTIME_MAX_UNASKED: Duration = Duration::from_secs(1800);
pub const RUNTIME_MIN: Duration = Duration::from_secs(3);
/// Answers of a server in a phase, about.
const ANSWERS_OF_A_PHASE: u32 = 400;
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Of one curve; a run has two of each. Results may come from anybody.
const STRETCHES_SHOWN: usize = 64;
/// Of one result.
const CURVES_SHOWN: usize = 32;
/// Points of a model.
const MODEL_STEPS_MAX: usize = 1000;
/// Samples that are this near to the end of a burst are neither of the burst nor of the baseline.
const EDGE_SECONDS: f64 = 1.0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub directions: Vec<Direction>,
    /// Of each direction, once without a pause, and once after it if there is one.
    pub runtime: Duration,
    /// Nothing is done for so long, and then full speed again.
    pub idle: Option<Duration>,
    /// On each client.
    pub jobs: u32,
    pub depth: u32,
    /// Bytes of all files of all clients together.
    pub working_set_bytes: u64,
    pub request_bytes: u64,
}

/// How long full speed must go on to show the burst and what comes after it: a while longer than the longest credit of these
/// limits lasts. `None`: none of them has a burst.
pub fn runtime(limits: &[LimitNow]) -> Option<Duration> {
    let longest = limits.iter().filter_map(credit_seconds);
    let longest = longest.fold(None, |most: Option<f64>, it| {
        Some(most.map_or(it, |most| most.max(it)))
    })?;
    let wanted = Duration::try_from_secs_f64((longest * RUNTIME_OF_CREDIT).ceil()).ok()?;
    Some(wanted.max(RUNTIME_MIN))
}

/// How long a full credit lasts at the full burst.
fn credit_seconds(limit: &LimitNow) -> Option<f64> {
    let above = limit.burst.checked_sub(limit.baseline)?;
    (above > 0 && limit.credit_max > 0).then(|| limit.credit_max as f64 / above as f64)
}

pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    let workers = u64::from(settings.jobs.max(1)) * u64::from(client_count.max(1));
    let request_bytes = settings.request_bytes.max(1);
    let file_bytes = file_of_each(settings.working_set_bytes, workers, request_bytes)?;
    let mut steps = Vec::new();
    for direction in &settings.directions {
        let again = settings.idle.map(|_| again(*direction));
        for name in std::iter::once(name(*direction).to_owned()).chain(again) {
            steps.push(Step {
                // What limits a class is not where bytes come from.
                cold: false,
                phase: Phase {
                    name,
                    fileset: SUITE.to_owned(),
                    jobs: settings.jobs,
                    depth: settings.depth,
                    work: Work::Data(DataWork {
                        direction: *direction,
                        order: Order::Sequential,
                        request_bytes,
                        layout: per_worker(file_bytes),
                        reorder: 0,
                        end: End::After {
                            ramp_ms: 0,
                            runtime_ms: u64::try_from(settings.runtime.as_millis())
                                .unwrap_or(u64::MAX),
                        },
                        fsync: Fsync::After,
                        direct: true,
                    }),
                },
            });
        }
    }
    let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
    let parameters = parameters([
        ("jobs", settings.jobs.to_string()),
        ("depth", settings.depth.to_string()),
        ("working-set", format_size(settings.working_set_bytes)),
        ("file-size", format_size(file_bytes)),
        ("request", format_size(request_bytes)),
        ("runtime", seconds(settings.runtime)),
        ("idle", settings.idle.map_or("none".to_owned(), seconds)),
    ]);
    Plan::new(SUITE, client_count, steps, parameters, Vec::new())
}

/// What a server is asked during a run with these settings.
pub fn ask(settings: &Settings) -> Ask {
    Ask::Credit {
        every: (settings.runtime / ANSWERS_OF_A_PHASE).max(EVERY_MIN),
        idle: settings.idle.unwrap_or_default(),
        idle_before: settings.directions.iter().map(|it| again(*it)).collect(),
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "write",
        Direction::Read => "read",
    }
}

fn again(direction: Direction) -> String {
    format!("{} after a pause", name(direction))
}

/// What a model is asked: the limit, the part of its credit that is there at first, and when it is used at full speed.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOf<'a> {
    pub limit: &'a LimitNow,
    /// 0 to 1.
    pub part: f64,
    pub stretches: &'a [Stretch],
    pub step_seconds: f64,
    pub steps: usize,
}

/// What should be delivered, and left, over time.
pub type Model<'a> = dyn Fn(&ModelOf<'_>) -> Vec<CreditModel> + 'a;

/// Adds to a result what its server said meanwhile: the curves, their figures, and what is missing.
pub fn add(result: &mut RunResult, class: &str, seen: ServerSamples, model: &Model<'_>) {
    if let Some(problem) = &seen.problem {
        result.notes.push(format!(
            "The server was asked for credits in vain once or more, so the curves lack points; the first answer: {problem}"
        ));
    }
    for direction in [Direction::Write, Direction::Read] {
        let curve = curve(result, class, direction, &seen, model);
        result.credits.extend(curve);
    }
    if result.credits.is_empty() {
        result
            .notes
            .push("The server said nothing of credits, so there are no curves.".to_owned());
    }
    let figures = result
        .credits
        .iter()
        .flat_map(|curve| figures(curve, &delivered(result, curve)));
    result.summary = figures.collect();
}

/// The limit that ends the burst in this direction: that with the lowest burst of those that count it.
fn limit_of(limits: &[LimitNow], direction: Direction) -> Option<&LimitNow> {
    let own = format!("{}-throughput", name(direction));
    let counts = |limit: &&LimitNow| {
        (limit.of == own || limit.of == "throughput") && credit_seconds(limit).is_some()
    };
    limits.iter().filter(counts).min_by_key(|limit| limit.burst)
}

fn curve(
    result: &RunResult,
    class: &str,
    direction: Direction,
    seen: &ServerSamples,
    model: &Model<'_>,
) -> Option<CreditCurve> {
    let names = [name(direction).to_owned(), again(direction)];
    let mut phases = seen.phases.iter().filter(|it| names.contains(&it.name));
    let begun = phases.clone().next()?.begun;
    let from_start = |at: Instant| at.saturating_duration_since(begun).as_secs_f64();
    let stretches: Vec<Stretch> = phases
        .by_ref()
        .filter_map(|it| {
            let phase = result.phases.iter().find(|phase| phase.name == it.name)?;
            Some(Stretch {
                phase: it.name.clone(),
                at_seconds: from_start(it.begun),
                seconds: phase.foreground_seconds,
            })
        })
        .collect();
    let end = stretches.last().map(|it| it.at_seconds + it.seconds)?;
    let of_curve: Vec<(f64, &LimitNow)> = seen
        .limits
        .iter()
        .filter(|(at, _)| *at >= begun)
        .filter_map(|(at, limits)| Some((from_start(*at), limit_of(limits, direction)?)))
        .filter(|(at, _)| *at <= end + EDGE_SECONDS)
        .collect();
    let (_, first) = *of_curve.first()?;
    let steps = MODEL_STEPS_MAX;
    let model = model(&ModelOf {
        limit: first,
        part: (first.credit as f64 / first.credit_max.max(1) as f64).clamp(0.0, 1.0),
        stretches: &stretches,
        step_seconds: end / steps as f64,
        steps,
    });
    let mut curve = CreditCurve {
        title: name(direction).to_owned(),
        limit: first.of.clone(),
        class: class.to_owned(),
        baseline_bytes_per_second: first.baseline,
        burst_bytes_per_second: first.burst,
        credit_max_bytes: first.credit_max,
        stretches,
        samples: of_curve
            .iter()
            .map(|(at_seconds, limit)| CreditSample {
                at_seconds: *at_seconds,
                credit_bytes: limit.credit,
            })
            .collect(),
        model,
        deviation_percent: None,
    };
    curve.deviation_percent = deviation(&curve, &delivered(result, &curve));
    Some(curve)
}

/// The samples of a run, by the clock of a curve.
pub(crate) fn delivered(result: &RunResult, curve: &CreditCurve) -> Vec<Sample> {
    let mut samples = Vec::new();
    for stretch in curve.stretches.iter().take(STRETCHES_SHOWN) {
        let Some(phase) = result.phases.iter().find(|it| it.name == stretch.phase) else {
            continue;
        };
        samples.extend(phase.samples.iter().map(|sample| Sample {
            at_seconds: sample.at_seconds + stretch.at_seconds,
            ..*sample
        }));
    }
    samples
}

/// By how much the sum of what was done differs from that of the model, at most, in percent of all that the model delivers.
fn deviation(curve: &CreditCurve, samples: &[Sample]) -> Option<f64> {
    let modelled = |until: f64| {
        let mut bytes = 0.0;
        for (index, point) in curve.model.iter().enumerate() {
            let end = curve
                .model
                .get(index + 1)
                .map_or(f64::MAX, |next| next.at_seconds);
            let last = curve
                .stretches
                .last()
                .map_or(0.0, |it| it.at_seconds + it.seconds);
            let end = end.min(last).min(until);
            bytes += point.bytes_per_second * (end - point.at_seconds).max(0.0);
        }
        bytes
    };
    let all = modelled(f64::MAX);
    if all <= 0.0 || samples.is_empty() {
        return None;
    }
    let mut done = 0.0;
    let mut most = 0.0_f64;
    for sample in samples {
        done += sample.bytes as f64;
        let difference = done - modelled(sample.at_seconds + sample.seconds);
        most = most.max(difference.abs());
    }
    Some(100.0 * most / all)
}

/// Rates while there was credit, and after it; MB/s.
pub(crate) struct Delivered {
    pub burst: Option<f64>,
    pub baseline: Option<f64>,
    /// When the first burst ended, in seconds; `None`: it did not.
    pub burst_seconds: Option<f64>,
}

/// Reads the figures off a curve: the burst ends where the model's does.
pub(crate) fn read_off(curve: &CreditCurve, samples: &[Sample]) -> Delivered {
    let middle =
        (curve.baseline_bytes_per_second as f64 + curve.burst_bytes_per_second as f64) / 2.0;
    let first = curve.stretches.first();
    let until = first.map_or(0.0, |it| it.at_seconds + it.seconds);
    let model = curve.model.iter();
    let ends = model
        .filter(|it| it.at_seconds < until)
        .find(|it| it.bytes_per_second < middle)
        .map(|it| it.at_seconds);
    let rate = |from: f64, to: f64| {
        let inside = samples
            .iter()
            .filter(|it| it.at_seconds >= from && it.at_seconds + it.seconds <= to);
        let (bytes, seconds) = inside.fold((0.0, 0.0), |(bytes, seconds), it| {
            (bytes + it.bytes as f64, seconds + it.seconds)
        });
        (seconds > 0.0).then(|| bytes / 1e6 / seconds)
    };
    // The end as it was measured: one sample alone may be low for other reasons.
    let is_low = |it: &Sample| {
        it.at_seconds < until && it.seconds > 0.0 && (it.bytes as f64 / it.seconds) < middle
    };
    let ended = samples.windows(2).find(|two| two.iter().all(is_low));
    Delivered {
        burst: rate(0.0, ends.map_or(until, |at| at - EDGE_SECONDS)),
        baseline: ends.and_then(|at| rate(at + EDGE_SECONDS, until)),
        burst_seconds: ended.and_then(|two| Some(two.first()?.at_seconds)),
    }
}

/// The burst and the baseline, as far as they were measured.
fn figures(curve: &CreditCurve, samples: &[Sample]) -> Vec<Figure> {
    let found = read_off(curve, samples);
    let phase = curve.stretches.first().map(|it| it.phase.clone());
    let of = [("burst", found.burst), ("baseline", found.baseline)];
    let figures = of.into_iter().filter_map(|(what, value)| {
        Some(Figure {
            title: format!("{} {what}", curve.title),
            value: value?,
            unit: "MB/s".to_owned(),
            drained: None,
            phase: phase.clone().unwrap_or_default(),
        })
    });
    figures.collect()
}

pub(super) fn text(result: &RunResult) -> String {
    let rows: Vec<Vec<String>> = result
        .credits
        .iter()
        .take(CURVES_SHOWN)
        .map(|curve| {
            let found = read_off(curve, &delivered(result, curve));
            let rate = |bytes: u64| number(bytes as f64 / 1e6);
            let or_none = |value: Option<f64>| value.map_or("-".to_owned(), number);
            vec![
                format!("{} ({}, class {})", curve.title, curve.limit, curve.class),
                rate(curve.burst_bytes_per_second),
                or_none(found.burst),
                rate(curve.baseline_bytes_per_second),
                or_none(found.baseline),
                or_none(found.burst_seconds),
                or_none(curve.deviation_percent),
            ]
        })
        .collect();
    let headings = [
        "BURST",
        "BURST MB/s",
        "MEASURED",
        "BASELINE MB/s",
        "MEASURED",
        "BURST s",
        "FROM MODEL %",
    ];
    table(&headings, &rows)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::Control;
    use crate::plan::DataPattern;
    use crate::result::{PhaseResult, TargetInfo};
    use crate::suite::fake::{FakeEngine, Shared};
    use crate::suite::{Job, Local, Observer, run};
    use crate::watch::{ReadsNow, SeenPhase, Server, Watched};

    fn limit(of: &str, baseline: u64, burst: u64, credit: u64) -> LimitNow {
        LimitNow {
            of: of.to_owned(),
            baseline,
            burst,
            credit,
            credit_max: 1_000_000_000,
        }
    }

    fn settings() -> Settings {
        Settings {
            directions: vec![Direction::Write, Direction::Read],
            runtime: Duration::from_secs(20),
            idle: None,
            jobs: 2,
            depth: 1,
            working_set_bytes: 4 << 20,
            request_bytes: 1 << 20,
        }
    }

    /// A bucket of a gigabyte, spent above the baseline; in steps of the model.
    fn model(of: &ModelOf<'_>) -> Vec<CreditModel> {
        let mut left = of.part * of.limit.credit_max as f64;
        let (baseline, burst) = (of.limit.baseline as f64, of.limit.burst as f64);
        let step = |index: usize| {
            let rate = if left > 0.0 { burst } else { baseline };
            left = (left + (baseline - rate) * of.step_seconds).max(0.0);
            CreditModel {
                at_seconds: index as f64 * of.step_seconds,
                bytes_per_second: rate,
                credit_bytes: left,
            }
        };
        (0..of.steps).map(step).collect()
    }

    /// A write of 20 s at 110 MB/s for so many seconds, and at 10 MB/s after that.
    fn written(burst_seconds: u32) -> (RunResult, ServerSamples) {
        let plan = plan(&settings(), 1).unwrap();
        let samples: Vec<Sample> = (0..20)
            .map(|second| Sample {
                at_seconds: f64::from(second),
                seconds: 1.0,
                operations: 1,
                bytes: if second < burst_seconds {
                    110_000_000
                } else {
                    10_000_000
                },
            })
            .collect();
        let phase = PhaseResult {
            bytes: samples.iter().map(|it| it.bytes).sum(),
            foreground_seconds: 20.0,
            samples,
            ..PhaseResult::nothing(&plan.steps[0].phase, String::new())
        };
        let begun = Instant::now();
        let told = |second: u64| {
            let credit = 1_000_000_000_u64.saturating_sub(100_000_000 * second);
            let limits = vec![
                limit("read-throughput", 1, 2, 0),
                limit("write-throughput", 10_000_000, 110_000_000, credit),
            ];
            (begun + Duration::from_secs(second), limits)
        };
        let seen = ServerSamples {
            limits: (0..20).map(told).collect(),
            phases: vec![SeenPhase {
                name: "write".to_owned(),
                begun,
                reads: None,
            }],
            problem: None,
        };
        (result(vec![phase]), seen)
    }

    fn result(phases: Vec<PhaseResult>) -> RunResult {
        let text = r#"{"schema":"cairn-bench/1","suite":"burst","label":"a","started":"2026-01-01T00:00:00Z","cairn_version":"0.1.0",
            "target":{"kind":"nfs","text":"nfs://a/b"},"clients":[],"cache":"cold","parameters":{},"phases":[],"summary":[]}"#;
        let mut result: RunResult = serde_json::from_str(text).unwrap();
        result.phases = phases;
        result
    }

    #[test]
    fn a_burst_that_ends_with_its_credit_is_the_model_and_one_that_does_not_is_told_apart() {
        for (burst_seconds, want) in [(10, 0.0..5.0), (14, 25.0..60.0), (5, 25.0..60.0)] {
            let (mut result, seen) = written(burst_seconds);
            add(&mut result, "demo", seen, &model);
            let [curve] = result.credits.as_slice() else {
                panic!("{:?}", result.credits)
            };
            assert_eq!(
                (curve.limit.as_str(), curve.samples.len()),
                ("write-throughput", 20)
            );
            let off = curve.deviation_percent.unwrap();
            assert!(want.contains(&off), "{burst_seconds}: {off}");
            let found = read_off(curve, &delivered(&result, curve));
            assert_eq!(found.burst_seconds, Some(f64::from(burst_seconds)));
            if burst_seconds == 10 {
                let titles: Vec<_> = result
                    .summary
                    .iter()
                    .map(|it| (it.title.as_str(), it.value.round()))
                    .collect();
                assert_eq!(titles, [("write burst", 110.0), ("write baseline", 10.0)]);
                assert!(
                    text(&result).contains("write-throughput, class demo"),
                    "{}",
                    text(&result)
                );
            }
        }
    }

    #[test]
    fn the_runtime_shows_the_burst_and_what_comes_after_it() {
        let cases: &[(&[LimitNow], Option<u64>)] = &[
            (&[], None),
            (&[limit("throughput", 10, 10, 0)], None),
            (&[limit("throughput", 0, 100_000_000, 0)], Some(15)),
            (
                &[limit("a", 0, 100_000_000, 0), limit("b", 0, 50_000_000, 0)],
                Some(30),
            ),
            (&[limit("throughput", 0, u64::MAX, 0)], Some(3)),
        ];
        for (limits, want) in cases {
            assert_eq!(runtime(limits), want.map(Duration::from_secs), "{limits:?}");
        }
    }

    #[test]
    fn a_working_set_that_is_no_request_of_each_is_refused() {
        let small = Settings {
            working_set_bytes: 1 << 20,
            ..settings()
        };
        assert!(
            plan(&small, 1)
                .unwrap_err()
                .to_string()
                .contains("choose a larger one")
        );
    }

    struct Quiet;

    impl Observer for Quiet {
        fn phase_begins(&mut self, _: usize, _: &Plan, _: &Control) {}
        fn phase_ends(&mut self, _: &PhaseResult) {}
        fn warn(&mut self, _: &str) {}
    }

    /// Has an answer for the first so many calls.
    struct Answers(usize);

    impl Server for Answers {
        fn limits(&mut self) -> Result<Vec<LimitNow>, String> {
            self.0 = self.0.checked_sub(1).ok_or("the server is away")?;
            Ok(vec![limit("throughput", 1, 1_000_000_000, 1_000_000_000)])
        }

        fn reads(&mut self) -> Result<ReadsNow, String> {
            Err("not asked".to_owned())
        }
    }

    #[test]
    fn a_server_that_stops_answering_costs_points_and_not_the_run() {
        for (answers, curves) in [(1000, 2), (0, 0)] {
            let settings = Settings {
                idle: Some(Duration::from_millis(1)),
                ..settings()
            };
            let world = Shared::default();
            let engine = FakeEngine {
                world: Arc::clone(&world),
            };
            let job = Job {
                label: "a".to_owned(),
                target: TargetInfo {
                    kind: "nfs".to_owned(),
                    text: "nfs://a/b".to_owned(),
                    mount: None,
                },
                pattern: DataPattern {
                    compressible_percent: 0,
                    dedupe_percent: 0,
                    seed: 1,
                },
                allow_files: false,
                keep: false,
                keep_caches: false,
            };
            let plan = plan(&settings, 1).unwrap();
            let mut local = Local::new(Box::new(engine));
            let mut watched = Watched::new(&mut local, Box::new(Answers(answers)), ask(&settings));
            let mut result =
                run(&plan, &job, &mut watched, &Control::default(), &mut Quiet).unwrap();
            let seen = watched.seen;
            assert_eq!(seen.phases.len(), 4);
            add(&mut result, "demo", seen, &model);
            assert_eq!(result.phases.len(), 4);
            assert_eq!(result.credits.len(), curves, "{:?}", result.notes);
            let says_so = result
                .notes
                .iter()
                .any(|note| note.contains("the server is away"));
            assert_eq!(says_so, curves == 0, "{:?}", result.notes);
        }
    }
}
