//! Load on an NFS server by our own client: no mount, no root, no kernel.
//!
//! Owns: what a phase means on an NFS server, which files it needs, what is there already.
//! Must not know: suites, other engines, how the requests in flight are kept.

mod files;
mod names;
mod space;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use cairn_base::units::format_size;
use cairn_nfs_client::v3::FileHandle;
use cairn_nfs_client::{Client, Error, NfsUrl, Node};

use crate::data::{
    CALLS_MAX, Ground, Passes, REPLY_TIMEOUT, Workers, check, course, result, why_not_prepared,
};
use crate::drive::{self, Course, Outcome};
use crate::engine::{ClientRank, Control, Engine, EngineError, RUN_FOLDER, at_target};
use crate::plan::{DataPattern, DataWork, Fsync, NamesOperation, NamesWork, Phase, Work};
use crate::result::PhaseResult;

use names::{NamesPlan, NamesSpec};
use space::Folder;

/// Connections of one client, unless the URL says how many; more jobs share them.
pub const CONNECTION_COUNT_MAX: usize = 64;
/// Names that an empty directory may have.
const IGNORED_NAMES: [&[u8]; 2] = [b"lost+found", b".snapshot"];

/// One target, and what was written to it.
pub struct NfsEngine {
    url: NfsUrl,
    is_prepared: bool,
    passes: Passes,
    /// By the file set, whether all are in one directory, and the worker.
    names: HashMap<(String, bool, u64), NamesThere>,
}

/// The names of one worker.
#[derive(Clone, Copy, Default)]
struct NamesThere {
    created: u64,
    /// How often all of them were renamed.
    generation: u64,
    /// Only a part was removed or renamed, or something failed.
    is_unclear: bool,
}

impl NfsEngine {
    /// Nothing is connected before [`Engine::prepare`].
    pub fn new(url: &NfsUrl) -> Result<Self, EngineError> {
        Ok(Self {
            url: url.clone(),
            is_prepared: false,
            passes: Passes::default(),
            names: HashMap::new(),
        })
    }

    /// Connects, and does something in the directory that the URL names.
    fn in_target<T>(
        &self,
        action: impl AsyncFnOnce(&Client, Node) -> Result<T, Error>,
    ) -> Result<T, EngineError> {
        at_target::<T, Error>(&self.url, async {
            let settings = drive::client_settings(CALLS_MAX, REPLY_TIMEOUT);
            let client = Client::connect(&self.url, settings).await?;
            let target = client.resolve_url(true).await?;
            action(&client, target).await
        })
    }

    /// The folder of a file set, made if it is not there.
    fn folder(&self, fileset: &str) -> Result<FileHandle, EngineError> {
        self.in_target(async |client, target| {
            let run = files::directory(client, target.handle, RUN_FOLDER).await?;
            files::directory(client, run, fileset).await
        })
    }

    fn connection_count(&self, jobs: u32) -> usize {
        let most = self.url.nconnect.map_or(CONNECTION_COUNT_MAX, usize::from);
        (jobs as usize).clamp(1, most.max(1))
    }

    fn run_data(
        &mut self,
        phase: &Phase,
        work: &DataWork,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let space = Folder {
            folder: self.folder(&phase.fileset)?,
            is_stable: work.fsync == Fsync::EachRequest,
        };
        let ground = Ground {
            connector: &self.url,
            space: &space,
            connection_count: self.connection_count(phase.jobs),
        };
        self.passes
            .run(&ground, phase, work, pattern, place, control)
    }

    fn run_names(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let workers = Workers::new(phase, place);
        let folder = self.folder(&phase.fileset)?;
        let there: Vec<NamesThere> = workers
            .own()
            .map(|worker| self.names.get(&names_key(phase, work, worker)))
            .map(|there| there.copied().unwrap_or_default())
            .collect();
        let is_create = work.operation == NamesOperation::Create;
        let is_ready = |it: &NamesThere| match is_create {
            true => it.created == 0 && !it.is_unclear,
            false => it.created >= work.files && !it.is_unclear,
        };
        if !there.iter().all(is_ready) {
            self.remove_names(phase, work, folder, &workers)?;
            if !is_create {
                let create = NamesWork {
                    operation: NamesOperation::Create,
                    ..work.clone()
                };
                let quiet = Course {
                    quiet: true,
                    ..course(phase, self.connection_count(phase.jobs))
                };
                let outcome = self.names_pass(phase, &create, folder, &workers, &quiet, control)?;
                if let Some(reason) = why_not_prepared(&outcome, "the names of this phase")? {
                    return Ok(PhaseResult::nothing(phase, reason));
                }
            }
        }
        let mut course = course(phase, self.connection_count(phase.jobs));
        if work.operation == NamesOperation::Readdir {
            // Each page says where the next one begins.
            course.depth = 1;
        }
        let outcome = self.names_pass(phase, work, folder, &workers, &course, control)?;
        Ok(result(phase, place, outcome))
    }

    fn names_pass(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        folder: FileHandle,
        workers: &Workers,
        course: &Course,
        control: &Control,
    ) -> Result<Outcome<names::NamesJob>, EngineError> {
        let specs = workers.own().map(|worker| {
            let there = self.names.get(&names_key(phase, work, worker)).copied();
            let there = there.unwrap_or_default();
            NamesSpec {
                worker,
                files: work.files,
                generation: there.generation,
            }
        });
        let plan = NamesPlan {
            folder,
            operation: work.operation,
            one_directory: work.one_directory,
            specs: specs.collect(),
        };
        let outcome = drive::drive(&self.url, &plan, course, control).map_err(EngineError::from)?;
        let is_sure = outcome.tally.error_count == 0 && outcome.partial.is_none();
        for ((_, job), worker) in outcome.jobs.iter().zip(workers.own()) {
            let there = self
                .names
                .entry(names_key(phase, work, worker))
                .or_default();
            there.changed(work.operation, job.begun(), is_sure);
        }
        Ok(outcome)
    }

    /// Removes all names of this client's workers in a file set.
    fn remove_names(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        folder: FileHandle,
        workers: &Workers,
    ) -> Result<(), EngineError> {
        let own = workers.own();
        self.in_target(async |client, _| {
            let dirs = match work.one_directory {
                true => vec![files::names_dir(None)],
                false => own.clone().map(|it| files::names_dir(Some(it))).collect(),
            };
            for dir in dirs {
                let Some(dir) = client.child_if_there(folder, dir.as_bytes()).await? else {
                    continue;
                };
                let is_own = |name: &[u8]| {
                    files::worker_of(name).is_some_and(|worker| own.contains(&worker))
                };
                files::remove_names(client, dir.handle, is_own).await?;
            }
            Ok(())
        })?;
        for worker in workers.own() {
            self.names.remove(&names_key(phase, work, worker));
        }
        Ok(())
    }
}

impl NamesThere {
    /// After an operation on the first `count` names.
    fn changed(&mut self, operation: NamesOperation, count: u64, is_sure: bool) {
        match operation {
            NamesOperation::Stat | NamesOperation::Readdir => return,
            NamesOperation::Create => self.created = count,
            NamesOperation::Rename if count == self.created => self.generation += 1,
            NamesOperation::Unlink if count == self.created => *self = Self::default(),
            NamesOperation::Rename | NamesOperation::Unlink => self.is_unclear = true,
        }
        self.is_unclear |= !is_sure;
    }
}

impl Engine for NfsEngine {
    fn version(&self) -> String {
        concat!("cairn-nfs ", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn prepare(&mut self, bytes_needed: u64, allow_files: bool) -> Result<(), EngineError> {
        enum Problem {
            NotDirectory,
            NotEmpty(String),
            OldFiles(String),
            NoSpace(u64),
        }
        let problem = self.in_target(async |client, target| {
            if !target.is_directory() {
                return Ok(Some(Problem::NotDirectory));
            }
            if !allow_files {
                let is_ignored =
                    |name: &[u8]| name == RUN_FOLDER.as_bytes() || IGNORED_NAMES.contains(&name);
                if let Some(name) = files::first_name(client, target.handle, is_ignored).await? {
                    return Ok(Some(Problem::NotEmpty(name)));
                }
                let run = client
                    .child_if_there(target.handle, RUN_FOLDER.as_bytes())
                    .await?;
                if let Some(run) = run
                    && let Some(name) = files::first_name(client, run.handle, |_| false).await?
                {
                    return Ok(Some(Problem::OldFiles(name)));
                }
            }
            let available_bytes = client.fs_stat(target.handle).await?.available_bytes;
            if available_bytes < bytes_needed {
                return Ok(Some(Problem::NoSpace(available_bytes)));
            }
            files::directory(client, target.handle, RUN_FOLDER).await?;
            Ok(None)
        })?;
        let url = &self.url;
        let problem = problem.map(|problem| match problem {
            Problem::NotDirectory => format!("{url} is not a directory; name one to write into"),
            Problem::NotEmpty(name) => format!(
                "{url} is not empty, it has `{name}`: choose an empty directory, or allow files"
            ),
            Problem::OldFiles(name) => format!(
                "{url} has files of another run in {RUN_FOLDER}/{name}: remove them, or allow files"
            ),
            Problem::NoSpace(available_bytes) => format!(
                "{url} has {} free, and this needs {}: make it smaller, or make room",
                format_size(available_bytes),
                format_size(bytes_needed)
            ),
        });
        match problem {
            Some(problem) => Err(EngineError::Target(problem)),
            None => {
                self.is_prepared = true;
                Ok(())
            }
        }
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
            Work::Data(work) => self.run_data(phase, work, pattern, place, control),
            Work::Names(work) => self.run_names(phase, work, place, control),
            Work::Objects(_) => Err(EngineError::Setting(
                "objects are measured on a bucket: s3://KEY:SECRET@HOST:PORT/BUCKET".to_owned(),
            )),
        }
    }

    fn drop_caches(&mut self) -> String {
        "Our own NFS client keeps no cache; what the server keeps in its memory stays there."
            .to_owned()
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        if !self.is_prepared {
            return Ok(());
        }
        self.passes.forget();
        self.names.clear();
        let removed = self.in_target(async |client, target| {
            files::remove_run(client, target.handle, RUN_FOLDER).await
        });
        removed.map_err(|error| {
            EngineError::Target(format!(
                "the files in {RUN_FOLDER} are still there: {error}"
            ))
        })
    }
}

fn names_key(phase: &Phase, work: &NamesWork, worker: u64) -> (String, bool, u64) {
    (phase.fileset.clone(), work.one_directory, worker)
}
