//! Load on a LUN by our own initiator: no kernel, no root.
//!
//! Owns: what a phase means on a LUN, which part of it is a worker's, what is given back at the end.
//! Must not know: suites, other engines, how the requests in flight are kept.
//!
//! A LUN has no files. Each worker of a phase has an equal part of it, one after the other; the file that all share begins
//! at its front. So one file set overwrites another.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::units::format_size;
use cairn_iscsi_client::{Error, IscsiUrl, Limits, Session, SessionSettings};

use crate::data::share::File;
use crate::data::{Ground, Object, PassError, Passes, REPLY_TIMEOUT, Space, Spec, Workers, check};
use crate::drive::{Connector, Course, DriveError, Failed};
use crate::engine::{ClientRank, Control, Engine, EngineError, at_target};
use crate::plan::{DataPattern, DataWork, Direction, Fsync, Layout, Phase, Work};
use crate::result::PhaseResult;

/// Sessions of one client, unless the URL says how many; more jobs share them.
const SESSIONS_COUNT_DEFAULT: usize = 16;
/// Parts of workers begin at multiples of it.
const PART_ALIGN_BYTES: u64 = 1 << 20;
/// At either end of a LUN that is looked at: partition tables and file systems leave something there.
const PROBE_LEN_BYTES: u64 = 1 << 20;

/// One LUN, and what was written to it.
pub struct IscsiEngine {
    url: IscsiUrl,
    limits: Option<Limits>,
    passes: Passes,
    /// What the bytes that are there belong to: the file set, and the part of a worker.
    layout: Option<(String, Option<u64>)>,
    /// Ranges that phases wrote to.
    written: BTreeSet<(u64, u64)>,
}

/// What one phase sees of a LUN.
struct Parts {
    part_bytes: u64,
    is_stable: bool,
}

pub struct LunRange {
    session: Session,
    first_byte: u64,
    is_stable: bool,
}

impl Connector for IscsiUrl {
    type Client = Session;

    async fn connect(&self, course: &Course) -> Result<Session, DriveError> {
        let settings = SessionSettings {
            reply_timeout: course.reply_timeout,
            ..SessionSettings::default()
        };
        let session = Session::login(self, &settings).await;
        session.map_err(|error| DriveError::Connect {
            url: self.to_string(),
            error: error.into(),
        })
    }
}

impl Space for Parts {
    type Client = Session;
    type Object = LunRange;

    async fn open(
        &self,
        client: &Session,
        spec: &Spec,
        _direction: Direction,
    ) -> Result<LunRange, PassError> {
        Ok(LunRange {
            session: client.clone(),
            first_byte: match spec.share.file {
                File::OfWorker(worker) => worker * self.part_bytes,
                File::Shared => 0,
            },
            is_stable: self.is_stable,
        })
    }
}

impl Object for LunRange {
    fn len_bytes_max(&self, _direction: Direction) -> usize {
        self.session.limits().transfer_len_bytes_max as usize
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), Failed> {
        let at = self.first_byte + offset;
        Ok(self.session.write(at, data, self.is_stable).await?)
    }

    async fn read(&self, offset: u64, buffer: AlignedBuf) -> Result<u64, Failed> {
        let read = self.session.read(self.first_byte + offset, buffer).await?;
        Ok(read.len() as u64)
    }

    async fn settle(&self) -> Result<(), Failed> {
        Ok(self.session.synchronize().await?)
    }
}

impl IscsiEngine {
    /// Nothing is connected before [`Engine::prepare`].
    pub fn new(url: &IscsiUrl) -> Self {
        Self {
            url: url.clone(),
            limits: None,
            passes: Passes::default(),
            layout: None,
            written: BTreeSet::new(),
        }
    }

    /// Logs in, and does something.
    fn in_session<T>(
        &self,
        action: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, EngineError> {
        at_target::<T, Error>(&self.url, async {
            let settings = SessionSettings {
                reply_timeout: REPLY_TIMEOUT,
                ..SessionSettings::default()
            };
            let session = Session::login(&self.url, &settings).await?;
            action(&session).await
        })
    }

    fn limits(&mut self) -> Result<Limits, EngineError> {
        if let Some(limits) = self.limits {
            return Ok(limits);
        }
        let limits = self.in_session(async |session| Ok(session.limits()))?;
        self.limits = Some(limits);
        Ok(limits)
    }

    fn sessions_count(&self, jobs: u32) -> usize {
        let most = self
            .url
            .sessions
            .map_or(SESSIONS_COUNT_DEFAULT, usize::from);
        (jobs as usize).clamp(1, most)
    }

    fn run_data(
        &mut self,
        phase: &Phase,
        work: &DataWork,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let limits = self.limits()?;
        let workers = Workers::new(phase, place);
        let parts = parts(&limits, work, workers.count())?;
        let (part_bytes, is_shared) = match work.layout {
            Layout::PerWorker { .. } => (parts, false),
            Layout::Shared { .. } => (0, true),
        };
        let layout = Some((phase.fileset.clone(), (!is_shared).then_some(part_bytes)));
        if self.layout != layout {
            self.passes.forget();
            self.layout = layout;
        }
        match work.layout {
            Layout::PerWorker { bytes } => self.written.extend(
                workers
                    .own()
                    .map(|worker| (worker * part_bytes, worker * part_bytes + bytes)),
            ),
            Layout::Shared { .. } => {
                self.written.insert((0, parts));
            }
        }
        let space = Parts {
            part_bytes,
            is_stable: work.fsync == Fsync::EachRequest,
        };
        let ground = Ground {
            connector: &self.url,
            space: &space,
            connection_count: self.sessions_count(phase.jobs),
        };
        self.passes
            .run(&ground, phase, work, pattern, place, control)
    }
}

/// Bytes of the part of each worker, or of what all share; an error if the LUN is too small, or requests are no whole
/// blocks.
fn parts(limits: &Limits, work: &DataWork, worker_count: u64) -> Result<u64, EngineError> {
    let block = u64::from(limits.capacity.block_len_bytes);
    let too_small = |bytes: Option<u64>| {
        let needed = bytes.map_or("more than that".to_owned(), format_size);
        EngineError::Target(format!(
            "the LUN has {}, and this needs {needed}: make it smaller, or the LUN larger",
            format_size(limits.len_bytes())
        ))
    };
    let (one, unit) = match work.layout {
        Layout::PerWorker { bytes } => (bytes, bytes),
        Layout::Shared {
            block_bytes,
            segments,
        } => (block_bytes.saturating_mul(segments), block_bytes),
    };
    if !work.request_bytes.is_multiple_of(block) || !unit.is_multiple_of(block) {
        return Err(EngineError::Setting(format!(
            "requests of {} bytes are not whole blocks of the LUN, which have {block} bytes",
            work.request_bytes
        )));
    }
    match work.layout {
        Layout::PerWorker { .. } => {
            let part =
                limits.len_bytes() / worker_count.max(1) / PART_ALIGN_BYTES * PART_ALIGN_BYTES;
            match part >= one {
                true => Ok(part),
                false => Err(too_small(one.checked_mul(worker_count))),
            }
        }
        Layout::Shared { .. } => {
            let all = one.checked_mul(worker_count);
            all.filter(|all| *all <= limits.len_bytes())
                .ok_or_else(|| too_small(all))
        }
    }
}

/// Ranges of a LUN that are read before anything is written to it.
fn probes(limits: &Limits) -> [Range<u64>; 2] {
    let len_bytes = limits.len_bytes();
    let probe = PROBE_LEN_BYTES
        .min(limits.transfer_len_bytes_max)
        .min(len_bytes);
    [0..probe, len_bytes - probe..len_bytes]
}

impl Engine for IscsiEngine {
    fn version(&self) -> String {
        concat!("cairn-iscsi ", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn prepare(&mut self, bytes_needed: u64, allow_files: bool) -> Result<(), EngineError> {
        let limits = self.limits()?;
        let len_bytes = limits.len_bytes();
        if len_bytes < bytes_needed {
            return Err(EngineError::Target(format!(
                "{} has {}, and this needs {}: make it smaller, or the LUN larger",
                self.url,
                format_size(len_bytes),
                format_size(bytes_needed)
            )));
        }
        if allow_files {
            return Ok(());
        }
        let is_blank = self.in_session(async |session| {
            for range in probes(&limits) {
                let buffer = AlignedBuf::zeroed((range.end - range.start) as usize);
                let read = session.read(range.start, buffer).await?;
                if read.iter().any(|byte| *byte != 0) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        match is_blank {
            true => Ok(()),
            false => Err(EngineError::Target(format!(
                "{} holds data, which a benchmark would overwrite: choose an empty LUN, or allow files",
                self.url
            ))),
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
            Work::Names(_) | Work::Objects(_) => Err(EngineError::Setting(
                "a LUN has no names and objects: measure it with four-corners, ior or iozone"
                    .to_owned(),
            )),
        }
    }

    fn drop_caches(&mut self) -> String {
        "Our own initiator keeps no cache; what the target keeps in its memory stays there."
            .to_owned()
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        let Some(limits) = self.limits else {
            return Ok(());
        };
        self.passes.forget();
        let written = std::mem::take(&mut self.written);
        if written.is_empty() || !limits.capacity.is_thin {
            return Ok(());
        }
        let given_back = self.in_session(async |session| {
            for (start, end) in written {
                let mut at = start;
                while at < end {
                    let len_bytes = (end - at).min(limits.unmap_len_bytes_max);
                    session.unmap(at, len_bytes as usize).await?;
                    at += len_bytes;
                }
            }
            Ok(())
        });
        given_back.map_err(|error| {
            EngineError::Target(format!(
                "what was written to the LUN is still there: {error}"
            ))
        })
    }

    fn notes(&mut self) -> Vec<String> {
        match self.limits {
            Some(limits) if !limits.capacity.is_thin => vec![
                "The LUN takes no blocks back (UNMAP); what was written to it is still there."
                    .to_owned(),
            ],
            _ => Vec::new(),
        }
    }
}
