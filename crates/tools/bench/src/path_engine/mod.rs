//! Load on a mounted path: data by the real fio, names by own threads.
//!
//! Owns: the files of a run on a path, what is written before a phase needs it, the two clocks.
//! Must not know: options of fio, suites, other machines' part of a phase.

mod data;
mod names;
mod place;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::engine::{ClientRank, Control, Engine, EngineError, RUN_FOLDER};
use crate::fio::find::{Fio, Mode};
use crate::plan::{DEPTH_MAX, DataPattern, JOB_COUNT_MAX, Phase, Work};
use crate::result::PhaseResult;

/// Of the name of a file set.
const FILESET_LEN_BYTES_MAX: usize = 32;

/// The engine of a directory.
pub struct PathEngine {
    target: PathBuf,
    /// [`RUN_FOLDER`] in the target.
    folder: PathBuf,
    /// Why there is none, until data is asked for: names need no fio.
    fio: Result<Fio, String>,
    /// The mode that works, by whether O_DIRECT was asked for.
    modes: HashMap<bool, Mode>,
    /// Parts of files that are known to be whole: file, offset, bytes.
    written: HashSet<(String, u64, u64)>,
    names: HashMap<String, names::State>,
    prepared: bool,
    /// Phases so far: no two write the same data.
    phase_count: u64,
    notes: Vec<String>,
    notes_told: HashSet<String>,
}

impl PathEngine {
    /// The engine for a directory that is there. Writes nothing yet.
    pub fn new(path: &Path) -> Result<Self, EngineError> {
        let fio = Fio::find().map_err(|error| error.to_string());
        Self::with_fio(path, fio)
    }

    fn with_fio(path: &Path, fio: Result<Fio, String>) -> Result<Self, EngineError> {
        let target = place::directory(path)?;
        Ok(Self {
            folder: target.join(RUN_FOLDER),
            target,
            fio,
            modes: HashMap::new(),
            written: HashSet::new(),
            names: HashMap::new(),
            prepared: false,
            phase_count: 0,
            notes: Vec::new(),
            notes_told: HashSet::new(),
        })
    }

    /// Keeps a sentence for the result, once.
    fn note(&mut self, sentence: String) {
        if self.notes_told.insert(sentence.clone()) {
            self.notes.push(sentence);
        }
    }
}

impl Engine for PathEngine {
    fn version(&self) -> String {
        let own = concat!("names by cairn ", env!("CARGO_PKG_VERSION"));
        match &self.fio {
            Ok(fio) => format!("{}, {own}", fio.version()),
            Err(_) => own.to_owned(),
        }
    }

    fn prepare(&mut self, bytes_needed: u64, allow_files: bool) -> Result<(), EngineError> {
        place::check_space(&self.target, bytes_needed)?;
        place::check_empty(&self.target, allow_files)?;
        place::make_run_folder(&self.folder)?;
        self.written.clear();
        self.names.clear();
        self.prepared = true;
        Ok(())
    }

    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        check_phase(phase, place)?;
        if !self.prepared {
            return Err(EngineError::Setting(format!(
                "{} was not prepared for a run",
                self.target.display()
            )));
        }
        self.phase_count += 1;
        place::make_folder(&self.folder.join(&phase.fileset))?;
        match &phase.work {
            Work::Data(work) => self.run_data(phase, work, pattern, place, control),
            Work::Names(work) => self.run_names(phase, work, place, control),
            Work::Objects(_) => Err(EngineError::Setting(
                "objects are measured on a bucket: s3://KEY:SECRET@HOST:PORT/BUCKET".to_owned(),
            )),
        }
    }

    fn drop_caches(&mut self) -> String {
        place::drop_caches(&self.data_files(), true)
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        self.written.clear();
        self.names.clear();
        self.prepared = false;
        place::remove_run_folder(&self.folder)
    }

    fn mount(&self) -> Option<String> {
        place::mount(&self.target)
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

/// What would make file names or numbers of a phase dangerous.
fn check_phase(phase: &Phase, place: ClientRank) -> Result<(), EngineError> {
    let refuse = |why: String| {
        Err(EngineError::Setting(format!(
            "the phase {:?} {why}",
            phase.name
        )))
    };
    let in_name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let fileset = phase.fileset.as_bytes();
    if fileset.is_empty()
        || fileset.len() > FILESET_LEN_BYTES_MAX
        || !fileset.iter().all(|&c| in_name(c))
    {
        return refuse(format!(
            "has the file set {:?}; it takes 1 to {FILESET_LEN_BYTES_MAX} of a-z, 0-9 and -",
            phase.fileset
        ));
    }
    if !(1..=JOB_COUNT_MAX).contains(&phase.jobs) {
        return refuse(format!(
            "has {} workers; it takes 1 to {JOB_COUNT_MAX}",
            phase.jobs
        ));
    }
    if !(1..=DEPTH_MAX).contains(&phase.depth) {
        return refuse(format!(
            "has a depth of {}; it takes 1 to {DEPTH_MAX}",
            phase.depth
        ));
    }
    if place.client >= place.client_count || place.client_count.checked_mul(phase.jobs).is_none() {
        return refuse(format!(
            "is for client {} of {}",
            place.client, place.client_count
        ));
    }
    Ok(())
}
