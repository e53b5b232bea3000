//! What a person sees while a benchmark runs.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_base::units::format_size;
use cairn_bench::engine::{Control, Gate};
use cairn_bench::plan::Phase;
use cairn_bench::result::PhaseResult;
use cairn_bench::suite::{Observer, Plan, phase_line, phase_ms, phase_operations};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::print::note;

const TICK: Duration = Duration::from_millis(200);
/// Ticks that the current rate is over.
const RATE_TICKS: usize = 10;
/// Of a bar: finer than any terminal is wide.
const BAR_LEN: u64 = 1000;

/// A bar for the phase that runs when there is a terminal, and a line for each that has ended.
pub struct Progress {
    client_count: u64,
    bar: Option<ProgressBar>,
    ticker: Option<Ticker>,
}

struct Ticker {
    /// Dropped to end it.
    _stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    pub fn new(client_count: u32) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{prefix} [{bar:25}] {wide_msg}";
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(Some(BAR_LEN), target);
            let style = ProgressStyle::with_template(style);
            bar.set_style(
                style
                    .unwrap_or(ProgressStyle::default_bar())
                    .progress_chars("=> "),
            );
            bar
        });
        Self {
            client_count: u64::from(client_count),
            bar,
            ticker: None,
        }
    }

    /// A line above the bar.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note!("{text}")),
            None => note!("{text}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        self.stop_ticking();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn stop_ticking(&mut self) {
        if let Some(Ticker { _stop, thread }) = self.ticker.take() {
            drop(_stop);
            // A ticker that broke has shown nothing for a while; the run goes on.
            let _ = thread.join();
        }
    }
}

impl Observer for Progress {
    fn phase_begins(&mut self, index: usize, plan: &Plan, control: &Control) {
        self.stop_ticking();
        let (Some(bar), Some(step)) = (&self.bar, plan.steps.get(index)) else {
            return;
        };
        bar.set_prefix(format!(
            "{}/{} {}",
            index + 1,
            plan.steps.len(),
            step.phase.name
        ));
        bar.set_position(0);
        let (stop, stopped) = channel::<()>();
        let mut view = View::new(&step.phase, self.client_count, control.clone());
        let bar = bar.clone();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let (share, text) = view.look(Instant::now());
                bar.set_position((share * BAR_LEN as f64) as u64);
                bar.set_message(text);
            }
        });
        self.ticker = Some(Ticker {
            _stop: stop,
            thread,
        });
    }

    fn phase_ends(&mut self, result: &PhaseResult) {
        self.stop_ticking();
        self.line(&phase_line(result));
    }

    fn warn(&mut self, message: &str) {
        self.line(&format!("cairn: {message}"));
    }
}

/// How far a phase is.
struct View {
    control: Control,
    /// Ramp and runtime; 0 when it ends after its work.
    time: Duration,
    operations: Option<u64>,
    /// Of the files that it works on, which may have to be written first.
    file_bytes: Option<u64>,
    /// What had been done when it was first looked at.
    bytes_before: Option<u64>,
    /// When the clock began, and what had been done by then.
    begun: Option<(Instant, u64)>,
    /// Time, operations and bytes of the last ticks.
    last: std::collections::VecDeque<(Instant, u64, u64)>,
}

impl View {
    fn new(phase: &Phase, client_count: u64, control: Control) -> Self {
        Self {
            control,
            time: Duration::from_millis(phase_ms(phase)),
            operations: phase_operations(phase).and_then(|count| count.checked_mul(client_count)),
            file_bytes: phase
                .bytes_per_worker()
                .and_then(|bytes| bytes.checked_mul(u64::from(phase.jobs)))
                .and_then(|bytes| bytes.checked_mul(client_count)),
            bytes_before: None,
            begun: None,
            last: std::collections::VecDeque::with_capacity(RATE_TICKS + 1),
        }
    }

    /// The part that is done, and the current rate in words.
    fn look(&mut self, now: Instant) -> (f64, String) {
        let (operations, bytes) = self.control.so_far();
        if self.begun.is_none() && self.control.gate() == Gate::Begun {
            self.begun = Some((now, operations));
            // The rate of writing files is none of the phase.
            self.last.clear();
        }
        self.last.push_back((now, operations, bytes));
        if self.last.len() > RATE_TICKS {
            self.last.pop_front();
        }
        let rate = self.rate();
        let bytes_before = *self.bytes_before.get_or_insert(bytes);
        let share = match (self.begun, self.operations) {
            (None, _) => return self.preparing(bytes.saturating_sub(bytes_before), &rate),
            (Some((since, _)), _) if self.time > Duration::ZERO => {
                now.duration_since(since).as_secs_f64() / self.time.as_secs_f64()
            }
            (Some((_, before)), Some(all)) if all > 0 => {
                operations.saturating_sub(before) as f64 / all as f64
            }
            (Some(_), _) => 0.0,
        };
        (share.clamp(0.0, 1.0), rate)
    }

    /// Before the clock: files are written that the phase needs.
    fn preparing(&self, bytes: u64, rate: &str) -> (f64, String) {
        match self.file_bytes {
            Some(all) if all > 0 && bytes > 0 => (
                (bytes as f64 / all as f64).clamp(0.0, 1.0),
                format!(
                    "preparing  {} of {}  {rate}",
                    format_size(bytes),
                    format_size(all)
                ),
            ),
            _ => (0.0, "preparing".to_owned()),
        }
    }

    fn rate(&self) -> String {
        let (Some(first), Some(last)) = (self.last.front(), self.last.back()) else {
            return String::new();
        };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        if seconds <= 0.0 {
            return String::new();
        }
        let operations = last.1.saturating_sub(first.1) as f64 / seconds;
        match last.2.saturating_sub(first.2) {
            0 => format!("{operations:.0} ops/s"),
            bytes => format!(
                "{}/s  {operations:.0} ops/s",
                format_size((bytes as f64 / seconds) as u64)
            ),
        }
    }
}

/// Says how long what comes will take, as far as that is known.
pub fn announce(plan: &Plan, target: &str) -> String {
    let seconds = plan.timed_ms() / 1000;
    let time = match seconds {
        0 => String::new(),
        1..=119 => format!(", about {seconds} s"),
        _ => format!(", about {} min", seconds.div_ceil(60)),
    };
    let space = match plan.bytes_needed {
        0 => String::new(),
        bytes => format!(", {} of files", format_size(bytes)),
    };
    format!(
        "{} on {target}: {} phases{space}{time}",
        plan.suite,
        plan.steps.len()
    )
}

#[cfg(test)]
mod tests {
    use cairn_bench::suite::{four_corners, metadata};

    use super::*;

    #[test]
    fn the_share_follows_time_or_work() {
        let control = Control::default();
        let settings = metadata::Settings {
            files: 100,
            jobs: 1,
            one_directory: true,
            iterations: 1,
            depth: 1,
        };
        let plan = metadata::plan(&settings, 1).unwrap();
        let start = Instant::now();
        let mut view = View::new(&plan.steps[0].phase, 1, control.clone());
        assert_eq!(view.look(start).0, 0.0);
        control.begin();
        control.done(0, 0);
        view.look(start);
        control.done(50, 0);
        let (share, text) = view.look(start + Duration::from_secs(1));
        assert_eq!((share, text.as_str()), (0.5, "50 ops/s"));

        let settings = four_corners::Settings {
            jobs: 1,
            working_set_bytes: 1 << 30,
            runtime: Duration::from_secs(9),
            ramp: Duration::from_secs(1),
            depths: vec![1],
            sequential_bytes: 65_536,
            random_bytes: 4096,
            direct: true,
            sync: false,
        };
        let plan = four_corners::plan(&settings, 1).unwrap();
        let mut view = View::new(&plan.steps[0].phase, 1, control.clone());
        view.look(start);
        control.done(1, 5 << 20);
        let (share, text) = view.look(start + Duration::from_secs(5));
        assert_eq!((share, text.as_str()), (0.5, "1 MiB/s  0 ops/s"));
        assert_eq!(view.look(start + Duration::from_secs(50)).0, 1.0);

        control.arm(false);
        let mut view = View::new(&plan.steps[0].phase, 1, control.clone());
        assert_eq!(view.look(start), (0.0, "preparing".to_owned()));
        control.done(256, 256 << 20);
        let (share, text) = view.look(start + Duration::from_secs(1));
        let want = "preparing  256 MiB of 1 GiB  256 MiB/s  256 ops/s";
        assert_eq!((share, text.as_str()), (0.25, want));
        assert_eq!(
            announce(&plan, "/mnt"),
            "four-corners on /mnt: 4 phases, 1 GiB of files, about 40 s"
        );
    }
}
