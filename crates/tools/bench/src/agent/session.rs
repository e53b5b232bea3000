//! One run on an agent: a thread that has the engine and does one order after the other.
//!
//! Owns: the engine, the state of the last order. Must not know: HTTP.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;

use super::EngineFactory;
use super::protocol::{Command, Order, Outcome, Stage, State};
use crate::engine::{ClientRank, Control, Engine, EngineError, Gate};
use crate::suite::{CLIENT_COUNT_MAX, Target};

pub(super) struct Session {
    pub id: String,
    pub heard_at: Instant,
    control: Control,
    progress: Arc<Mutex<Progress>>,
    orders: SyncSender<Command>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Progress {
    number: u64,
    is_working: bool,
    is_phase: bool,
    outcome: Option<Outcome>,
}

impl Session {
    pub fn start(id: String, target: Target, keep: bool, factory: EngineFactory) -> Self {
        let control = Control::default();
        let progress = Arc::new(Mutex::new(Progress::default()));
        // One order at a time is taken, so sending never waits.
        let (orders, received) = sync_channel(1);
        let worker = Worker {
            target,
            keep,
            factory,
            control: control.clone(),
            progress: Arc::clone(&progress),
            engine: None,
            holds_files: false,
        };
        let thread = std::thread::spawn(move || worker.work(&received));
        Self {
            id,
            heard_at: Instant::now(),
            control,
            progress,
            orders,
            thread,
        }
    }

    /// Begins an order, or does nothing when it is the last one again.
    pub fn order(&self, order: Order) -> Result<(), String> {
        check(&order.command)?;
        let mut progress = self.progress.lock();
        if order.number == progress.number && order.number > 0 {
            return Ok(());
        }
        if progress.is_working || Some(order.number) != progress.number.checked_add(1) {
            return Err(format!(
                "order {} does not come after order {}",
                order.number, progress.number
            ));
        }
        self.control
            .arm(matches!(&order.command, Command::Run { client_count, .. } if *client_count > 1));
        *progress = Progress {
            number: order.number,
            is_working: true,
            is_phase: matches!(order.command, Command::Run { .. }),
            outcome: None,
        };
        self.orders
            .try_send(order.command)
            .map_err(|_| "the run has ended".to_owned())
    }

    pub fn state(&self) -> State {
        let progress = self.progress.lock();
        let (operations, bytes) = self.control.so_far();
        let stage = match (progress.is_working, progress.is_phase, self.control.gate()) {
            (false, ..) if progress.number == 0 => Stage::Idle,
            (false, ..) => Stage::Done,
            (true, true, Gate::Ready) => Stage::Ready,
            (true, true, Gate::Begun) => Stage::Begun,
            (true, ..) => Stage::Working,
        };
        State {
            number: progress.number,
            stage,
            operations,
            bytes,
            outcome: progress.outcome.clone(),
        }
    }

    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Ends the run; the thread removes what is there and ends too.
    pub fn end(self) -> JoinHandle<()> {
        self.control.stop();
        self.thread
    }
}

fn check(command: &Command) -> Result<(), String> {
    let Command::Run {
        phase,
        pattern,
        client,
        client_count,
    } = command
    else {
        return Ok(());
    };
    phase.check().map_err(|error| error.to_string())?;
    if pattern.compressible_percent > 100 || pattern.dedupe_percent > 100 {
        return Err("a percentage is above 100".to_owned());
    }
    if !(1..=CLIENT_COUNT_MAX).contains(client_count) || client >= client_count {
        return Err(format!("there is no client {client} of {client_count}"));
    }
    Ok(())
}

struct Worker {
    target: Target,
    keep: bool,
    factory: EngineFactory,
    control: Control,
    progress: Arc<Mutex<Progress>>,
    engine: Option<Box<dyn Engine>>,
    /// There are files that nobody else will remove.
    holds_files: bool,
}

impl Worker {
    fn work(mut self, orders: &Receiver<Command>) {
        for command in orders {
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| self.perform(command)));
            let outcome = match done {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => Outcome::Failed {
                    why: error.to_string(),
                },
                Err(_) => Outcome::Failed {
                    why: "the engine broke; the agent's output says more".to_owned(),
                },
            };
            let mut progress = self.progress.lock();
            progress.is_working = false;
            progress.outcome = Some(outcome);
        }
        if self.holds_files && !self.keep {
            let cleaned = self.engine.as_mut().map(|engine| engine.clean_up());
            if let Some(Err(error)) = cleaned {
                tracing::warn!(%error, "the files of the run were not all removed");
            }
        }
    }

    fn perform(&mut self, command: Command) -> Result<Outcome, EngineError> {
        let unprepared = || EngineError::Engine("prepare comes first".to_owned());
        match command {
            Command::Prepare {
                bytes_needed,
                allow_files,
            } => {
                let mut engine = (self.factory)(&self.target)?;
                engine.prepare(bytes_needed, allow_files)?;
                let prepared = Outcome::Prepared {
                    engine: engine.version(),
                    mount: engine.mount(),
                };
                self.engine = Some(engine);
                self.holds_files = true;
                Ok(prepared)
            }
            Command::Run {
                phase,
                pattern,
                client,
                client_count,
            } => {
                // The others may still be at work on the same files when this client is given up;
                // a client that the coordinator still has removes them.
                self.holds_files = client_count == 1;
                let place = ClientRank {
                    client,
                    client_count,
                };
                let engine = self.engine.as_mut().ok_or_else(unprepared)?;
                let result = engine.run(&phase, &pattern, place, &self.control)?;
                Ok(Outcome::Ran {
                    result: Box::new(result),
                    notes: engine.notes(),
                })
            }
            Command::DropCaches => {
                let engine = self.engine.as_mut().ok_or_else(unprepared)?;
                Ok(Outcome::Dropped {
                    how: engine.drop_caches(),
                })
            }
            Command::CleanUp => {
                let engine = self.engine.as_mut().ok_or_else(unprepared)?;
                engine.clean_up()?;
                self.holds_files = false;
                Ok(Outcome::CleanedUp)
            }
        }
    }
}
