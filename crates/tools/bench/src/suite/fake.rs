//! An engine that moves nothing and counts exactly, for tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::phase_operations;
use crate::engine::{ClientRank, Control, Engine, EngineError};
use crate::plan::{DataPattern, Phase, Work};
use crate::result::{Latency, PhaseResult, Sample, WorkerResult};

/// What the engines of one test have done, and what they are to do wrong.
#[derive(Default)]
pub(crate) struct World {
    pub log: Vec<String>,
    pub files: BTreeSet<String>,
    pub refuse_prepare: bool,
    /// The phase with this name fails altogether.
    pub fail: Option<String>,
    /// The phase with this name ends early.
    pub cut: Option<String>,
    /// The phase with this name goes on until it is stopped.
    pub hang: Option<String>,
    /// The phase with this name panics.
    pub panic: Option<String>,
}

pub(crate) type Shared = Arc<Mutex<World>>;

pub(crate) struct FakeEngine {
    pub world: Shared,
}

impl Engine for FakeEngine {
    fn version(&self) -> String {
        "fake 1".to_owned()
    }

    fn prepare(&mut self, bytes_needed: u64, allow_files: bool) -> Result<(), EngineError> {
        let mut world = self.world.lock();
        if world.refuse_prepare && !allow_files {
            return Err(EngineError::Target("the target is not empty".to_owned()));
        }
        world.log.push(format!("prepare {bytes_needed}"));
        world.files.insert("folder".to_owned());
        Ok(())
    }

    fn run(
        &mut self,
        phase: &Phase,
        _: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let is = |name: &Option<String>| name.as_ref() == Some(&phase.name);
        {
            let mut world = self.world.lock();
            world.log.push(format!(
                "{} {}/{}",
                phase.name, place.client, place.client_count
            ));
            if is(&world.fail) {
                return Err(EngineError::Engine("it broke".to_owned()));
            }
            assert!(!is(&world.panic), "as the test wants");
        }
        control.begin();
        let hangs = is(&self.world.lock().hang);
        while hangs && !control.is_stopped() {
            std::thread::yield_now();
        }
        let is_cut = hangs || is(&self.world.lock().cut);
        let operations = phase_operations(phase).unwrap_or(1000 * u64::from(phase.depth));
        let operations = if is_cut { operations / 2 } else { operations };
        let request = match &phase.work {
            Work::Data(data) => data.request_bytes,
            Work::Names(_) => 0,
            Work::Objects(work) => work.object_bytes,
        };
        control.done(operations, operations * request);
        let share = operations / u64::from(phase.jobs);
        let worker = |index: u32| WorkerResult {
            client: place.client as usize,
            operations: share,
            bytes: share * request,
            seconds: 1.0 + f64::from(index) / 10.0,
        };
        Ok(PhaseResult {
            name: phase.name.clone(),
            phase: Some(phase.clone()),
            operations,
            bytes: operations * request,
            errors: 0,
            first_error: None,
            foreground_seconds: 2.0,
            drained_seconds: 4.0,
            load_cpu_seconds: None,
            workers: (0..phase.jobs).map(worker).collect(),
            samples: vec![Sample {
                at_seconds: 0.0,
                seconds: 1.0,
                operations,
                bytes: operations * request,
            }],
            latency: Some(Latency {
                count: operations,
                min_us: 100.0,
                mean_us: 500.0,
                max_us: 5000.0,
                percentiles_us: vec![(0.0, 100.0), (50.0, 400.0), (99.0, 2000.0), (100.0, 5000.0)],
                histogram: None,
            }),
            job_file: None,
            partial: is_cut.then(|| "it ended early".to_owned()),
        })
    }

    fn drop_caches(&mut self) -> String {
        self.world.lock().log.push("drop caches".to_owned());
        "dropped nothing, this is a test".to_owned()
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        let mut world = self.world.lock();
        world.log.push("clean up".to_owned());
        world.files.clear();
        Ok(())
    }
}
