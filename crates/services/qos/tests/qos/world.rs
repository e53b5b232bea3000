//! Clients that ask again as soon as they were let through, in time that only the scheduler's own waits let pass.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_formats::settings::{ClassName, ClassSpec, RateSpec};
use cairn_qos::{Client, Limits, Operation, Scheduler, Waiter};

/// The shell looks no more often.
const LOOK: Duration = Duration::from_millis(1);

/// A request that waits, of the client of a number.
pub struct Ask {
    load: usize,
    gone: Rc<Cell<bool>>,
}

impl Waiter for Ask {
    fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

/// One client of one volume.
pub struct Load {
    pub volume: VolumeId,
    pub client: Client,
    pub operation: Operation,
    /// Requests that it has under way at a time.
    pub window: usize,
    under_way: usize,
    /// Bytes that were let through.
    pub bytes: u64,
    pub operations: u64,
    gone: Rc<Cell<bool>>,
}

#[derive(Default)]
pub struct World {
    pub scheduler: Scheduler<Ask>,
    pub now: Duration,
    pub loads: Vec<Load>,
    /// The task that looks is late by so much, each time.
    pub late: Duration,
}

pub fn class(name: &str) -> ClassName {
    name.parse().unwrap()
}

/// A class with a fixed rate of reads and writes together.
pub fn steady(bytes_per_second: u64) -> ClassSpec {
    ClassSpec {
        throughput: Some(RateSpec {
            fixed: bytes_per_second,
            ..RateSpec::per_tib(0)
        }),
        ..ClassSpec::default()
    }
}

impl World {
    /// Volumes numbered from 1, each with its class.
    pub fn set(&mut self, classes: &[(&str, ClassSpec)]) {
        let limits = classes.iter().enumerate();
        let limits = limits.map(|(index, (name, spec))| {
            let volume = VolumeId(index as u32 + 1);
            (volume, Limits::of(&class(name), spec, None))
        });
        self.set_limits(limits.collect());
    }

    pub fn set_limits(&mut self, limits: BTreeMap<VolumeId, Limits>) {
        let mut granted = Vec::new();
        self.scheduler.set(limits, self.now, &mut granted);
        self.granted(granted);
    }

    pub fn load(
        &mut self,
        volume: u32,
        client: &str,
        operation: Operation,
        window: usize,
    ) -> usize {
        self.loads.push(Load {
            volume: VolumeId(volume),
            client: Client::named(client),
            operation,
            window,
            under_way: 0,
            bytes: 0,
            operations: 0,
            gone: Rc::default(),
        });
        self.loads.len() - 1
    }

    fn granted(&mut self, granted: Vec<Ask>) {
        for ask in granted {
            let load = &mut self.loads[ask.load];
            load.under_way -= 1;
            load.bytes += load.operation.len_bytes;
            load.operations += 1;
        }
    }

    /// All clients ask for as much as they may have under way. What needs no waiting is done at once, and that is bounded by
    /// what there is to be had in no time.
    fn ask(&mut self) {
        for index in 0..self.loads.len() {
            let load = &self.loads[index];
            let (volume, client, operation) = (load.volume, load.client, load.operation);
            while self.loads[index].under_way < self.loads[index].window {
                let is_let = self.scheduler.admit(volume, client, operation, self.now);
                let load = &mut self.loads[index];
                if is_let {
                    load.bytes += operation.len_bytes;
                    load.operations += 1;
                    continue;
                }
                load.under_way += 1;
                let ask = Ask {
                    load: index,
                    gone: Rc::clone(&load.gone),
                };
                let queued = self
                    .scheduler
                    .queue(volume, client, operation, ask, self.now);
                assert!(queued.is_ok());
            }
        }
    }

    /// The client goes, with all that it waits for.
    pub fn leave(&mut self, load: usize) {
        self.loads[load].gone.set(true);
        self.loads[load].window = 0;
        self.loads[load].under_way = 0;
    }

    /// Lets time pass; says what each client got in it, in bytes.
    pub fn run(&mut self, time: Duration) -> Vec<u64> {
        let before: Vec<u64> = self.loads.iter().map(|load| load.bytes).collect();
        let end = self.now + time;
        while self.now < end {
            self.ask();
            let mut granted = Vec::new();
            let due = self.scheduler.pump(self.now, &mut granted);
            let is_none = granted.is_empty();
            self.granted(granted);
            // Those who were let through ask again at once, so somebody waits.
            let due = due.unwrap_or(LOOK);
            if is_none || !due.is_zero() {
                self.now += due.max(LOOK) + self.late;
            }
        }
        let loads = self.loads.iter().zip(before);
        loads.map(|(load, before)| load.bytes - before).collect()
    }
}

/// Whether a number is another within some percent.
#[track_caller]
pub fn near(got: f64, want: f64, percent: f64) {
    let off = (got - want).abs() / want * 100.0;
    assert!(
        off <= percent,
        "{got} is not {want} within {percent} %, but {off} % off"
    );
}
