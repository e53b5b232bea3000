//! Load on a bucket over S3: no SDK, no mount.
//!
//! Owns: what a phase of objects means, which objects it needs, what is there already.
//! Must not know: suites, other engines, how the requests in flight are kept.

mod client;
mod job;
mod url;

use std::collections::HashMap;

use crate::data::{REPLY_TIMEOUT, Workers, check, course, result, why_not_prepared};
use crate::drive::{self, Connector, Course, DriveError, Outcome};
use crate::engine::{ClientRank, Control, Engine, EngineError, RUN_FOLDER, at_target};
use crate::pattern::Data;
use crate::plan::{DataPattern, End, ObjectsOperation, ObjectsWork, Phase, Work};
use crate::result::PhaseResult;

pub use client::{S3Client, S3Failed};
pub use url::{S3Url, S3UrlError};

use job::{ObjectsJob, ObjectsPlan};

/// One bucket, and what was put into it.
pub struct S3Engine {
    url: S3Url,
    is_prepared: bool,
    phases: u64,
    /// Objects from the first on that are there, by the file set and the worker.
    there: HashMap<(String, u64), u64>,
}

impl Connector for S3Url {
    type Client = S3Client;

    async fn connect(&self, course: &Course) -> Result<S3Client, DriveError> {
        S3Client::new(self, course.reply_timeout).map_err(|error| DriveError::Connect {
            url: self.to_string(),
            error: error.into(),
        })
    }
}

/// Where all objects of a run are.
fn folder() -> String {
    format!("{RUN_FOLDER}/")
}

impl S3Engine {
    /// Nothing is connected before [`Engine::prepare`].
    pub fn new(url: &S3Url) -> Self {
        Self {
            url: url.clone(),
            is_prepared: false,
            phases: 0,
            there: HashMap::new(),
        }
    }

    fn with_client<T>(
        &self,
        action: impl AsyncFnOnce(&S3Client) -> Result<T, S3Failed>,
    ) -> Result<T, EngineError> {
        at_target::<T, S3Failed>(&self.url, async {
            let client = S3Client::new(&self.url, REPLY_TIMEOUT)?;
            action(&client).await
        })
    }

    fn run_objects(
        &mut self,
        phase: &Phase,
        work: &ObjectsWork,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let workers = Workers::new(phase, place);
        let is_there = |engine: &Self, worker| {
            let key = (phase.fileset.clone(), worker);
            engine.there.get(&key).copied().unwrap_or(0) >= work.objects
        };
        let needs = work.operation != ObjectsOperation::Put;
        if needs && !workers.own().all(|worker| is_there(self, worker)) {
            let put = ObjectsWork {
                operation: ObjectsOperation::Put,
                end: End::Whole,
                ..work.clone()
            };
            let quiet = Course {
                quiet: true,
                ..self.course(phase, &put)
            };
            let outcome = self.pass(phase, &put, pattern, &workers, &quiet, control)?;
            if let Some(reason) = why_not_prepared(&outcome, "the objects of this phase")? {
                return Ok(PhaseResult::nothing(phase, reason));
            }
        }
        let course = self.course(phase, work);
        let outcome = self.pass(phase, work, pattern, &workers, &course, control)?;
        Ok(result(phase, place, outcome))
    }

    fn course(&self, phase: &Phase, work: &ObjectsWork) -> Course {
        let course = course(phase, phase.jobs as usize);
        let (ramp_ms, runtime_ms) = match work.end {
            End::Whole => (0, None),
            End::After {
                ramp_ms,
                runtime_ms,
            } => (ramp_ms, Some(runtime_ms)),
        };
        Course {
            // A listing's pages and a deletion's keys come one after the other.
            depth: match work.operation {
                ObjectsOperation::List | ObjectsOperation::DeleteMany => 1,
                _ => course.depth,
            },
            ramp: std::time::Duration::from_millis(ramp_ms),
            runtime: runtime_ms.map(std::time::Duration::from_millis),
            ..course
        }
    }

    fn pass(
        &mut self,
        phase: &Phase,
        work: &ObjectsWork,
        pattern: &DataPattern,
        workers: &Workers,
        course: &Course,
        control: &Control,
    ) -> Result<Outcome<ObjectsJob>, EngineError> {
        self.phases += 1;
        let plan = ObjectsPlan {
            prefix: format!("{}{}/", folder(), phase.fileset),
            work: work.clone(),
            depth: phase.depth,
            data: Data::new(pattern, self.phases),
            workers: workers.own().collect(),
        };
        let outcome = drive::drive(&self.url, &plan, course, control).map_err(EngineError::from)?;
        let is_sure = outcome.tally.error_count == 0 && outcome.partial.is_none();
        for ((_, job), worker) in outcome.jobs.iter().zip(workers.own()) {
            let there = self.there.entry((phase.fileset.clone(), worker));
            let there = there.or_default();
            match work.operation {
                ObjectsOperation::Put if is_sure => *there = (*there).max(job.highest()),
                ObjectsOperation::Delete | ObjectsOperation::DeleteMany => *there = 0,
                _ => {}
            }
        }
        Ok(outcome)
    }
}

impl Engine for S3Engine {
    fn version(&self) -> String {
        concat!("cairn-s3 ", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn prepare(&mut self, _bytes_needed: u64, allow_files: bool) -> Result<(), EngineError> {
        if self.url.credentials().is_none() {
            return Err(EngineError::Setting(
                "there is no access key: s3://KEY:SECRET@HOST:PORT/BUCKET, or AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY in the environment"
                    .to_owned(),
            ));
        }
        let found = self.with_client(async |client| client.list("", None).await)?;
        if let (Some(key), false) = (found.keys.first(), allow_files) {
            return Err(EngineError::Target(format!(
                "{} is not empty, it has `{key}`: choose an empty bucket, or allow files",
                self.url
            )));
        }
        self.is_prepared = true;
        Ok(())
    }

    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        check(phase, place)?;
        match &phase.work {
            Work::Objects(work) => self.run_objects(phase, work, pattern, place, control),
            Work::Data(_) | Work::Names(_) => Err(EngineError::Setting(
                "a bucket has objects only: measure it with `cairn bench objects`".to_owned(),
            )),
        }
    }

    fn drop_caches(&mut self) -> String {
        "Our own client of S3 keeps no cache; what the server keeps in its memory stays there."
            .to_owned()
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        if !self.is_prepared {
            return Ok(());
        }
        self.there.clear();
        let removed = self.with_client(async |client| {
            loop {
                let page = client.list(&folder(), None).await?;
                if page.keys.is_empty() {
                    return Ok(());
                }
                client.delete_many(&page.keys).await?;
            }
        });
        removed.map_err(|error| {
            EngineError::Target(format!(
                "the objects below {} are still there: {error}",
                folder()
            ))
        })
    }
}
