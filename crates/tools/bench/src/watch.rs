//! What the server says of itself while phases run: credit that is left, where reads came from.
//!
//! Owns: asking in intervals, the clock that answers and phases have in common.
//! Must not know: how a server is asked, what a class or a cache is for.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::engine::{Control, EngineError, Gate};
use crate::plan::{DataPattern, Phase};
use crate::result::{ClientInfo, PhaseResult};
use crate::suite::Driver;

/// How soon the start of a phase's clock is seen.
const LOOK: Duration = Duration::from_millis(10);
/// Answers that are kept of a run: what comes after them is not.
const SEEN_COUNT_MAX: usize = 20_000;

/// A limit of a volume, as the server tells it. Bytes, and bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitNow {
    /// `throughput`, `read-throughput` or `write-throughput`.
    pub of: String,
    pub baseline: u64,
    pub burst: u64,
    pub credit: u64,
    pub credit_max: u64,
}

/// What reads of all volumes of the server came from, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadsNow {
    /// From read caches.
    pub cache_bytes: u64,
    /// From disks of the pool.
    pub disk_bytes: u64,
}

/// Answers of a server. Calls block.
pub trait Server: Send {
    /// The limits of the volume that have bytes.
    fn limits(&mut self) -> Result<Vec<LimitNow>, String>;
    fn reads(&mut self) -> Result<ReadsNow, String>;
}

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The credit, in this interval and while nothing is done for so long before the phases that are named.
    Credit {
        every: Duration,
        idle: Duration,
        idle_before: Vec<String>,
    },
    /// What reads came from, before and after each phase.
    Reads,
}

/// The server's answers, by the clock of the run.
#[derive(Debug, Default)]
pub struct ServerSamples {
    pub limits: Vec<(Instant, Vec<LimitNow>)>,
    pub phases: Vec<SeenPhase>,
    /// The first answer that was none.
    pub problem: Option<String>,
}

#[derive(Debug)]
pub struct SeenPhase {
    pub name: String,
    /// When its clock began.
    pub begun: Instant,
    /// The sources of reads during it, files that it needed included.
    pub reads: Option<ReadsNow>,
}

/// A driver whose server is asked meanwhile.
pub struct Watched<'a> {
    driver: &'a mut dyn Driver,
    server: Box<dyn Server + 'a>,
    ask: Ask,
    pub seen: ServerSamples,
}

impl<'a> Watched<'a> {
    pub fn new(driver: &'a mut dyn Driver, server: Box<dyn Server + 'a>, ask: Ask) -> Self {
        Self {
            driver,
            server,
            ask,
            seen: ServerSamples::default(),
        }
    }

    /// Does nothing for a while, and looks at the credit that is earned.
    fn idle(&mut self, time: Duration, every: Duration, control: &Control) {
        let begun = Instant::now();
        while begun.elapsed() < time && !control.is_stopped() {
            look(&mut *self.server, &mut self.seen);
            std::thread::sleep(every.min(time.saturating_sub(begun.elapsed())));
        }
    }

    fn reads(&mut self) -> Option<ReadsNow> {
        if self.ask != Ask::Reads {
            return None;
        }
        let answer = self.server.reads();
        answer
            .map_err(|problem| self.seen.problem.get_or_insert(problem).clone())
            .ok()
    }
}

impl Driver for Watched<'_> {
    fn prepare(
        &mut self,
        bytes_needed: u64,
        allow_files: bool,
        control: &Control,
    ) -> Result<(), EngineError> {
        self.driver.prepare(bytes_needed, allow_files, control)
    }

    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let mut every = Duration::MAX;
        if let Ask::Credit {
            every: wanted,
            idle,
            idle_before,
        } = self.ask.clone()
        {
            every = wanted;
            if idle_before.contains(&phase.name) {
                self.idle(idle, wanted, control);
            }
        }
        // The clock of the phase before has stopped.
        control.arm(false);
        let before = self.reads();
        let (driver, server, seen) = (&mut *self.driver, &mut *self.server, &mut self.seen);
        let (over, is_over) = channel::<()>();
        let (result, begun) = std::thread::scope(|scope| {
            let watcher = scope.spawn(move || watch(server, seen, every, control, &is_over));
            let result = driver.run(phase, pattern, control);
            drop(over);
            // One that broke has seen nothing; the run goes on.
            (result, watcher.join().ok().flatten())
        });
        let after = self.reads();
        if let Some(begun) = begun {
            let reads = after.zip(before).map(|(after, before)| ReadsNow {
                cache_bytes: after.cache_bytes.saturating_sub(before.cache_bytes),
                disk_bytes: after.disk_bytes.saturating_sub(before.disk_bytes),
            });
            self.seen.phases.push(SeenPhase {
                name: phase.name.clone(),
                begun,
                reads,
            });
        }
        result
    }

    fn drop_caches(&mut self, control: &Control) -> String {
        self.driver.drop_caches(control)
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        self.driver.clean_up()
    }

    fn clients(&self) -> Vec<ClientInfo> {
        self.driver.clients()
    }

    fn mount(&self) -> Option<String> {
        self.driver.mount()
    }

    fn notes(&mut self) -> Vec<String> {
        self.driver.notes()
    }
}

/// Looks from the start of the clock until the phase is over; says when the clock began.
fn watch(
    server: &mut dyn Server,
    seen: &mut ServerSamples,
    every: Duration,
    control: &Control,
    is_over: &Receiver<()>,
) -> Option<Instant> {
    let mut begun = None;
    let mut due = None;
    loop {
        let is_over = match is_over.recv_timeout(LOOK.min(every)) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
        };
        let now = Instant::now();
        if begun.is_none() && control.gate() == Gate::Begun {
            (begun, due) = (Some(now), Some(now));
        }
        if due.is_some_and(|due| due <= now || is_over) && every < Duration::MAX {
            look(server, seen);
            due = now.checked_add(every);
        }
        if is_over {
            return begun;
        }
    }
}

fn look(server: &mut dyn Server, seen: &mut ServerSamples) {
    if seen.limits.len() >= SEEN_COUNT_MAX {
        return;
    }
    let asked = Instant::now();
    match server.limits() {
        // Half of the way there and back is before the answer.
        Ok(limits) => seen.limits.push((asked + asked.elapsed() / 2, limits)),
        Err(problem) => {
            seen.problem.get_or_insert(problem);
        }
    }
}
