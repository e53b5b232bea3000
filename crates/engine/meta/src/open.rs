//! Creating and opening a store.
//!
//! Owns: the order of the steps that open a volume. Must not know: the layout of files or of RocksDB.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::Disk;
use cairn_base::env::{Clock, Entropy, Env};
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, Generation, LogPosition, VolumeId};
use cairn_formats::metadata::log::{SET_COUNT_MAX, TERM_COUNT_MAX, Term};
use cairn_formats::metadata::{
    AppliedRecord, CountersRecord, Group, JournalEntry, Key, KeyKind, SegmentRecord,
    SnapshotRecord, UsageRecord,
};
use cairn_keys::VolumeKey;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::batch::Batch;
use crate::committer::{self, Backlog, Committer, GROUP_BYTES_MAX};
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::gathering::Gathering;
use crate::journal::{JournalIndex, JournalReplay};
use crate::journal_encryption::decrypted;
use crate::journal_rewrite::forget_earlier_starts;
use crate::log::begin::{FoundMirror, Mirrored};
use crate::log::ensemble::list::AgreedList;
use crate::log::ensemble::{EnsembleLog, FoundEnsembles, Seat};
use crate::log::{CommitLog, FoundLog, History, LogRecord, LogStatus, LogWriter};
use crate::mirrored_log::MirroredLog;
use crate::progress::Progress;
use crate::replay_budget::ReplayHold;
use crate::segments::Segments;
use crate::settings::{LOG_FILE_BYTES_MAX, LOG_FILE_BYTES_MIN, MetaSettings};
use crate::shared::{
    BackgroundShip, GroupCounts, INO_CHUNK, Overlay, Pending, SEGMENT_CHUNK, StoreCore, Submitted,
};
use crate::snapshots::Snapshots;
use crate::state::remote::RemoteCopies;
use crate::state::{self, Candidate, StateStore};
use crate::store::{MetaStore, Recovered};
use crate::tasks::Tasks;
use crate::usage::Usages;
use crate::volume_log::VolumeLog;

/// Number of terms in the log at which opening ships a checkpoint, so that old terms can be dropped.
const TERM_COUNT_SHIP: usize = 8;
/// Number of terms at which opening also logs a warning.
const TERM_COUNT_WARN: usize = 30;

impl MetaStore {
    /// Creates an empty volume on `disks`, in order of preference: the log on as many as copies are wanted, the state
    /// on the first. Fails if a log of this volume exists.
    pub async fn create(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<Arc<Self>, MetaError> {
        let settings = within_limits(settings);
        let disks = DiskSet::new(volume, disks, settings.copies);
        let tasks = Tasks::new(env.spawner.clone());
        let found = FoundMirror::none(&env, &tasks, &settings, &disks).await?;
        let parts = Parts {
            env,
            settings,
            disks,
            tasks,
            remote: None,
        };
        let log = |shared| VolumeLog::Mirrored(MirroredLog::new(shared));
        parts.create(Box::new(found), log).await
    }

    /// Opens a volume from the disks that are present: the newest state on any of them, then the log. Before this
    /// returns, a new epoch begins on as many disks as copies are wanted; records on fewer disks are copied first.
    ///
    /// Refuses when acknowledged changes may be on missing disks only.
    pub async fn open(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        Self::open_without(env, settings, volume, disks, Vec::new()).await
    }

    /// As [`MetaStore::open`], with draining disks. Their log counts, and they get no new data, and no state. They are
    /// told that the log goes on without them, so that none of them is opened alone later. [`VolumeLog::retire_disk`]
    /// releases them.
    pub async fn open_without(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
        draining: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        let settings = within_limits(settings);
        let disks = DiskSet::new(volume, disks, settings.copies);
        disks.add_draining(draining);
        let tasks = Tasks::new(env.spawner.clone());
        settings.replay.wait(&*env.clock).await;
        let found = FoundMirror::find(&env, &tasks, &settings, &disks).await?;
        let parts = Parts {
            env,
            settings,
            disks,
            tasks,
            remote: None,
        };
        let log = |shared| VolumeLog::Mirrored(MirroredLog::new(shared));
        parts.open(Box::new(found), log).await
    }

    /// As [`Self::open_without`], without any write, for disks that lack the room that opening needs. All views of the
    /// volume can be read, and each batch is refused with [`MetaError::Full`] and `why`. Memory holds the records
    /// beyond the state. Close it with [`Self::abort`] before the volume is opened for writing.
    pub async fn open_to_read(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
        draining: Vec<(DiskId, Arc<dyn Disk>)>,
        why: String,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        let settings = within_limits(settings);
        let disks = DiskSet::new(volume, disks, settings.copies);
        disks.add_draining(draining);
        let tasks = Tasks::new(env.spawner.clone());
        settings.replay.wait(&*env.clock).await;
        let found = FoundMirror::find(&env, &tasks, &settings, &disks).await?;
        let history = found.history();
        let replaying = settings.replay.hold(volume, history.memory_bytes());
        let (state, applied) = choose_state_to_read(&settings, &disks, history).await?;
        let entries = journal_of(history, settings.key.as_deref(), disks.volume)?;
        // The entry stays in memory, and may be a slice of a whole log file.
        let staying_bytes = staying_bytes(history, &applied, &entries);
        let kept = settings.replay.keep(volume, staying_bytes)?;
        let mut journal = JournalIndex::default();
        for entry in &entries {
            journal.insert(entry);
        }
        let replay = replay(&*state, applied, history)?;
        // The bytes of files are dirty data from now on, and are counted as such.
        kept.set(state.memory_bytes());
        let counters = load_counters(&*state, &replay.backlog)?;
        // The term of the last owner: a read needs no promise of the disks.
        let term = Term {
            epoch: history.epoch_max,
            nonce: history.terms.last().map_or(0, |term| term.nonce),
            start: LogPosition(history.end.0 + 1),
        };
        let start = Start {
            clock: env.clock,
            entropy: env.entropy,
            ships: false,
            remote: None,
            term_count: history.terms.len(),
            log_start: history.retained_from,
            position_next: term.start,
            tasks,
            settings,
            disks,
            term,
            state,
            states: Vec::new(),
            superseded: Vec::new(),
            applied: replay.applied,
            flushed: applied.position,
            counters,
            journal,
            backlog: replay.backlog,
        };
        let shared = start.share(found.status(), Some(why), Some(kept)).shared;
        shared.log_start.fetch_max(1, Ordering::AcqRel);
        let store = Arc::new(MetaStore {
            log: VolumeLog::Mirrored(MirroredLog::new(shared.clone())),
            shared,
        });
        let recovered = Recovered {
            epoch: term.epoch,
            replayed_entries: replay.entries,
            journal: entries,
        };
        drop((found, replaying));
        Ok((store, recovered))
    }

    /// Opens a volume of a cluster that this node has taken over, or creates it if it is new. Does not wait for disks:
    /// fails with [`MetaError::LogUnreachable`] while disks are missing that may hold acknowledged changes.
    pub async fn take_over(
        env: Env,
        settings: MetaSettings,
        seat: Seat,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        let mut settings = within_limits(settings);
        settings.copies = 1;
        let disks = DiskSet::new(seat.volume, disks, settings.copies);
        let tasks = Tasks::new(env.spawner.clone());
        let (epoch, is_new) = (seat.epoch, seat.list.ensembles.is_empty());
        let list = Arc::new(AgreedList::new(&seat));
        let remote = Arc::new(RemoteCopies::new(&env, &seat, list.clone()));
        let mirrored = match is_new {
            true => Mirrored::find(&disks).await?,
            false => None,
        };
        settings.replay.wait(&*env.clock).await;
        let mut found = FoundEnsembles::find(&env, &tasks, &settings, seat, list).await?;
        if let Some(mirrored) = &mirrored {
            found.continue_from(&mirrored.history)?;
        }
        let log = EnsembleLog::of(&found);
        let found = Box::new(found);
        let parts = Parts {
            env,
            settings,
            disks,
            tasks,
            remote: Some(remote),
        };
        if let Some(mirrored) = mirrored {
            let (tasks, disks) = (parts.tasks.clone(), parts.disks.clone());
            let log = |shared| VolumeLog::Ensembles(log(shared));
            let opened = parts.open(found, log).await?;
            mirrored.remove(&tasks, &disks);
            return Ok(opened);
        }
        if !is_new {
            return parts
                .open(found, |shared| VolumeLog::Ensembles(log(shared)))
                .await;
        }
        let store = parts
            .create(found, |shared| VolumeLog::Ensembles(log(shared)))
            .await?;
        let recovered = Recovered {
            epoch,
            replayed_entries: 0,
            journal: Vec::new(),
        };
        Ok((store, recovered))
    }

    /// Prepares the takeover of a volume that another node owns and is about to release: the copy of the state that
    /// `seat`'s list names becomes the state on the first of `disks`, so that the takeover only opens it. Changes
    /// nothing elsewhere. The volume must not be open in this process before this ends.
    pub async fn prepare(
        env: Env,
        settings: MetaSettings,
        seat: Seat,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(), MetaError> {
        let settings = within_limits(settings);
        let Some(counts) = seat.list.state.clone() else {
            return Ok(());
        };
        let disks = DiskSet::new(seat.volume, disks, 1);
        let first = disks.healthy().first().copied();
        let Some(first) = first.filter(|index| disks.get(*index).disk.folder().is_some()) else {
            return Ok(());
        };
        let (found, _) = state::discover(&disks, &settings).await;
        let is_new =
            |found: &Candidate| found.is_primary && found.applied.position >= counts.applied;
        let is_there = found.iter().any(is_new);
        let is_free = found.iter().any(|it| it.is_primary && it.disk == first);
        state::close(found).await?;
        if is_there {
            return Ok(());
        }
        if !is_free && state::is_there(&disks, first) {
            let why = "the state on this disk is damaged, or still open".to_owned();
            return Err(MetaError::State(why));
        }
        let list = Arc::new(AgreedList::new(&seat));
        let remote = RemoteCopies::new(&env, &seat, list);
        match remote.fetch(&disks, first).await? {
            Some(copy) => state::install(copy, &disks, &settings, &env).await,
            None => Ok(()),
        }
    }

    /// The last epoch of a volume whose log is on the disks of this server alone, if it has one. The first owner of the
    /// volume in a cluster needs a later epoch; [`Self::take_over`] goes on with that log.
    pub async fn mirrored_epoch(
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<Option<Epoch>, MetaError> {
        let found = Mirrored::find(&DiskSet::new(volume, disks, 1)).await?;
        Ok(found.map(|found| found.history.epoch_max))
    }
}

/// The parts of a store beside its log.
pub(crate) struct Parts {
    pub env: Env,
    pub settings: MetaSettings,
    /// Disks of the state and its copies.
    pub disks: DiskSet,
    pub tasks: Tasks,
    /// Copies of the state on other nodes, if the volume is in a cluster.
    pub remote: Option<Arc<RemoteCopies>>,
}

impl Parts {
    /// Creates an empty volume with the log of a new one. `handle` makes the callers' handle of the log.
    pub async fn create<L: CommitLog>(
        self,
        found: Box<dyn FoundLog>,
        handle: impl FnOnce(Arc<StoreCore>) -> L,
    ) -> Result<Arc<MetaStore<L>>, MetaError> {
        let Self {
            env,
            settings,
            disks,
            tasks,
            remote,
        } = self;
        let volume = disks.volume;
        let first = disks.healthy().first().copied();
        let first = first.ok_or(MetaError::NoDisk { volume })?;
        let state = state::create(&disks, first, &settings, &env).await?;
        let term = Term {
            epoch: Epoch(found.history().epoch_max.0 + 1),
            nonce: env.entropy.u64(),
            start: LogPosition(1),
        };
        let (log, _) = found.begin(term).await?;
        let start = Start {
            clock: env.clock,
            entropy: env.entropy,
            tasks,
            settings,
            disks,
            term,
            term_count: 1,
            state,
            states: Vec::new(),
            superseded: Vec::new(),
            applied: AppliedRecord::default(),
            flushed: LogPosition(0),
            counters: empty_counters(),
            journal: JournalIndex::default(),
            backlog: Backlog::default(),
            position_next: LogPosition(1),
            log_start: LogPosition(1),
            ships: remote.is_some(),
            remote,
        };
        start.run(log, handle).await
    }

    /// Opens a volume with the log that was found.
    pub async fn open<L: CommitLog>(
        self,
        found: Box<dyn FoundLog>,
        handle: impl FnOnce(Arc<StoreCore>) -> L,
    ) -> Result<(Arc<MetaStore<L>>, Recovered), MetaError> {
        let Self {
            env,
            settings,
            disks,
            tasks,
            remote,
        } = self;
        let history = found.history();
        let replaying = settings.replay.hold(disks.volume, history.memory_bytes());
        let chosen = choose_state(&env, &settings, &disks, history, remote.as_deref()).await?;
        let term = Term {
            epoch: Epoch(history.epoch_max.0 + 1),
            nonce: env.entropy.u64(),
            start: LogPosition(history.end.0 + 1),
        };
        // The step with the highest memory use precedes the term: a process killed for lack of memory here has not used
        // up a term.
        let entries = journal_of(history, settings.key.as_deref(), disks.volume)?;
        let mut journal = JournalIndex::default();
        for entry in &entries {
            journal.insert(entry);
        }
        let (log, history) = found.begin(term).await?;
        if let Some(succession) = &settings.succession {
            succession.settle(&history.terms);
        }
        let replay = replay(&*chosen.state, chosen.applied, &history)?;
        let counters = load_counters(&*chosen.state, &replay.backlog)?;
        let start = Start {
            clock: env.clock.clone(),
            entropy: env.entropy.clone(),
            ships: history.terms.len() > TERM_COUNT_SHIP || remote.is_some(),
            remote,
            term_count: history.terms.len(),
            log_start: history.retained_from,
            position_next: term.start,
            tasks,
            settings,
            disks,
            term,
            state: chosen.state,
            states: chosen.states,
            superseded: chosen.superseded,
            applied: replay.applied,
            flushed: chosen.applied.position,
            counters,
            journal,
            backlog: replay.backlog,
        };
        drop((history, replaying));
        let store = start.run(log, handle).await?;
        let entries = if store.shared.names_too_many_starts() {
            forget_earlier_starts(&store, entries).await?
        } else {
            entries
        };
        let recovery = Recovered {
            epoch: term.epoch,
            replayed_entries: replay.entries,
            journal: entries,
        };
        Ok((store, recovery))
    }
}

/// Clamps settings to the limits of the formats.
fn within_limits(mut settings: MetaSettings) -> MetaSettings {
    let align = IO_ALIGN_BYTES as u64;
    settings.copies = settings.copies.clamp(1, SET_COUNT_MAX);
    settings.starts_named_max = settings.starts_named_max.min(TERM_COUNT_MAX / 2);
    settings.log_file_bytes = settings
        .log_file_bytes
        .clamp(LOG_FILE_BYTES_MIN, LOG_FILE_BYTES_MAX)
        .next_multiple_of(align);
    settings
}

fn empty_counters() -> Counters {
    Counters {
        record: CountersRecord {
            generation: Generation::FIRST,
            inodes: 0,
            file_bytes: 0,
            stored_bytes: 0,
            history_bytes: 0,
            // 0 is no inode, 1 is the root.
            ino_reserved: 2,
            segment_reserved: 1,
            branch_next: 1,
        },
        segments: Segments::default(),
        snapshots: Snapshots::default(),
        usages: Usages::default(),
        errors: 0,
    }
}

struct ChosenState {
    state: Arc<dyn StateStore>,
    applied: AppliedRecord,
    /// Other durable copies that the log continues.
    states: Vec<(usize, LogPosition)>,
    superseded: Vec<Candidate>,
}

/// Chooses the newest copy of the state that is intact and part of the history.
async fn choose_state(
    env: &Env,
    settings: &MetaSettings,
    disks: &DiskSet,
    recovered: &History,
    remote: Option<&RemoteCopies>,
) -> Result<ChosenState, MetaError> {
    let (candidates, leftovers) = state::discover(disks, settings).await;
    let (mut fit, mut superseded): (Vec<Candidate>, Vec<Candidate>) =
        candidates.into_iter().partition(|candidate| {
            let applied = &candidate.applied;
            let is_fit = recovered.continues(applied) || planted::is(Bug::OldStateTaken);
            tracing::debug!(volume = %disks.volume, disk = disks.get(candidate.disk).disk.label(), ?applied, retained_from = recovered.retained_from.0, end = recovered.end.0, is_fit, "a copy of the state");
            is_fit
        });
    // Best last: the newest; among equals the one that needs no work; then the one on the disk named first.
    fit.sort_by_key(|candidate| {
        let at = std::cmp::Reverse(candidate.disk);
        (candidate.applied.position, candidate.is_primary, at)
    });
    let mut damage = None;
    // If no state here can be used, fetch the copy of other nodes.
    let mut elsewhere = remote;
    loop {
        let (candidate, source) = match (fit.pop(), elsewhere) {
            (Some(candidate), _) => (candidate, None),
            (None, Some(remote)) => {
                elsewhere = None;
                match fetch(remote, disks).await {
                    Ok(Some(candidate)) => (candidate, Some(remote)),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!("{error}");
                        damage = Some(error);
                        break;
                    }
                }
            }
            (None, None) => break,
        };
        let disk = candidate.disk;
        if !candidate.is_primary {
            // The candidate replaces the state of this disk, which must not be open then.
            let others = fit.iter_mut().chain(&mut superseded);
            for other in others.filter(|other| other.disk == disk) {
                other.close();
            }
        }
        let was_primary = candidate.is_primary;
        let replica = candidate.replica_path();
        let copy = candidate.descriptor().cloned();
        let taken = state::take_over(candidate, disks, settings, env).await;
        let read = taken.and_then(|state| Ok((read_for_start(&*state)?, state)));
        match read {
            Ok((applied, state))
                if recovered.continues(&applied) || planted::is(Bug::OldStateTaken) =>
            {
                if source.is_some() {
                    // From now on it counts as one of the copies.
                    state.flush().await?;
                }
                if let (Some(remote), Some(copy)) = (remote, copy) {
                    remote.note_began(copy);
                }
                // The replaced state is gone, and must not be removed by its name.
                let is_replaced =
                    |other: &Candidate| !was_primary && other.disk == disk && other.is_primary;
                superseded.retain(|other| !is_replaced(other));
                superseded.extend(leftovers);
                // The files of the replica belong to the state now, too.
                superseded.extend(replica.map(|path| Candidate::leftover(disk, path)));
                let mut states = Vec::new();
                for other in fit.into_iter().filter(|other| !is_replaced(other)) {
                    if other.disk == disk || other.is_primary {
                        superseded.push(other);
                    } else {
                        states.push((other.disk, other.applied.position));
                    }
                }
                return Ok(ChosenState {
                    state,
                    applied,
                    states,
                    superseded,
                });
            }
            Ok(_) => tracing::error!(
                disk = disks.get(disk).disk.label(),
                "this copy of the state is not part of the log's history; trying another"
            ),
            Err(error) => {
                tracing::error!("{error}; trying another copy of the state");
                damage = Some(error);
            }
        }
    }
    let first = disks.healthy().first().copied();
    match first {
        // The log is complete: it can be replayed from an empty state.
        Some(first) if recovered.retained_from.0 <= 1 => {
            // The state on this disk is replaced, so it must not be open; the leftovers on other disks are of no use.
            superseded.retain(|candidate| candidate.disk != first);
            superseded.extend(leftovers);
            Ok(ChosenState {
                state: state::create(disks, first, settings, env).await?,
                applied: AppliedRecord::default(),
                states: Vec::new(),
                superseded,
            })
        }
        _ => Err(damage.unwrap_or(MetaError::StateMissing {
            volume: disks.volume,
            position: recovered.retained_from,
        })),
    }
}

/// As [`choose_state`], without writes.
async fn choose_state_to_read(
    settings: &MetaSettings,
    disks: &DiskSet,
    history: &History,
) -> Result<(Arc<dyn StateStore>, AppliedRecord), MetaError> {
    let mut found = state::discover_to_read(disks, settings).await;
    found.retain(|(applied, _)| history.continues(applied));
    found.sort_by_key(|(applied, _)| applied.position);
    let mut damage = None;
    while let Some((_, state)) = found.pop() {
        match read_for_start(&*state) {
            Ok(applied) if history.continues(&applied) => return Ok((state, applied)),
            Ok(_) => {}
            Err(error) => {
                tracing::error!("{error}; trying another copy of the state");
                damage = Some(error);
            }
        }
    }
    match disks.healthy().first() {
        // The log is complete: it can be replayed from an empty state.
        Some(first) if history.retained_from.0 <= 1 => Ok((
            state::empty_to_read(disks, *first),
            AppliedRecord::default(),
        )),
        _ => Err(damage.unwrap_or(MetaError::StateMissing {
            volume: disks.volume,
            position: history.retained_from,
        })),
    }
}

/// Fetches the state from other nodes to the first disk that accepts it.
pub(crate) async fn fetch(
    remote: &RemoteCopies,
    disks: &DiskSet,
) -> Result<Option<Candidate>, MetaError> {
    let mut last = None;
    for index in disks.healthy() {
        match remote.fetch(disks, index).await {
            Ok(found) => return Ok(found),
            Err(error) => last = Some(error),
        }
    }
    last.map_or(Ok(None), Err)
}

/// Reads everything in a state that the metadata itself needs at every start. This precedes the term: if the read
/// fails, another copy may be intact, and the number of terms is limited.
fn read_for_start(state: &dyn StateStore) -> Result<AppliedRecord, MetaError> {
    let applied = read_applied(state)?;
    load_counters(state, &Backlog::default())?;
    Ok(applied)
}

fn read_applied(state: &dyn StateStore) -> Result<AppliedRecord, MetaError> {
    let value = state.get(Key::applied().as_bytes())?;
    Ok(match value {
        Some(value) => AppliedRecord::decode(&value)?,
        None => AppliedRecord::default(),
    })
}

struct Replay {
    entries: u64,
    applied: AppliedRecord,
    /// Groups that the state had no space for.
    backlog: Backlog,
}

/// The journal entries in the log that are not folded.
fn journal_of(
    recovered: &History,
    key: Option<&VolumeKey>,
    volume: VolumeId,
) -> Result<Vec<JournalEntry>, MetaError> {
    let mut journal = JournalReplay::default();
    if planted::is(Bug::JournalNotReplayed) {
        return Ok(Vec::new());
    }
    for record in replayed(recovered) {
        let group = Group::decode(&record.payload, record.first, record.last)?;
        for entry in group.journal {
            journal.insert(decrypted(key, volume, entry)?);
        }
        for fold in &group.folds {
            if !planted::is(Bug::JournalFoldIgnored) {
                journal.fold(fold);
            }
        }
    }
    Ok(journal.finish())
}

/// Bytes of memory that what a log has beside a state takes, at the most: records that the state does not have yet, and bytes of
/// files that are in the log alone.
fn staying_bytes(history: &History, applied: &AppliedRecord, journal: &[JournalEntry]) -> u64 {
    let of_files = journal.iter().map(|entry| entry.data.len() as u64);
    let staying = history.memory_bytes_after(applied.position) + of_files.sum::<u64>();
    // The newest records have bytes of files as well.
    staying.min(history.memory_bytes())
}

fn replayed(recovered: &History) -> impl Iterator<Item = &LogRecord> {
    let skipped = usize::from(planted::is(Bug::LogLastRecordNotReplayed));
    let count = recovered.records.len().saturating_sub(skipped);
    recovered.records.iter().take(count)
}

fn replay(
    state: &dyn StateStore,
    applied: AppliedRecord,
    recovered: &History,
) -> Result<Replay, MetaError> {
    let mut replay = Replay {
        entries: 0,
        applied,
        backlog: Backlog::default(),
    };
    for record in replayed(recovered) {
        if record.last > replay.applied.position {
            let group = Group::decode(&record.payload, record.first, record.last)?;
            replay.entries += group.puts.len() as u64;
            let applied = AppliedRecord {
                position: record.last,
                epoch: record.epoch,
                term: record.term,
            };
            if replay.backlog.is_empty() {
                match committer::apply(state, &group, applied) {
                    Err(MetaError::Full(why)) => {
                        tracing::error!("no space to replay all of the log: {why}");
                        replay.backlog.push(group, applied);
                    }
                    result => {
                        result?;
                        replay.applied = applied;
                    }
                }
            } else {
                replay.backlog.push(group, applied);
            }
        }
    }
    Ok(replay)
}

/// Loads the counters as of the last group, which may not be in the state yet.
fn load_counters(state: &dyn StateStore, backlog: &Backlog) -> Result<Counters, MetaError> {
    let mut counters = empty_counters();
    if let Some(value) = state.get(Key::counters().as_bytes())? {
        load(&mut counters, Key::counters().as_bytes(), Some(&value))?;
    }
    for (from, to) in [Key::all_segments(), Key::all_snapshots(), Key::all_usages()] {
        let mut cursor = state.cursor(from.as_bytes(), to.as_bytes());
        while let Some((key, value)) = cursor.next()? {
            load(&mut counters, key, Some(value))?;
        }
    }
    for put in backlog.groups().flat_map(|group| &group.puts) {
        load(&mut counters, put.key.as_bytes(), put.value.as_deref())?;
    }
    Ok(counters)
}

/// Loads one entry of the state into the counters, if it is a counter.
fn load(counters: &mut Counters, key: &[u8], value: Option<&[u8]>) -> Result<(), MetaError> {
    match (KeyKind::parse(key)?, value) {
        (KeyKind::Counters, Some(value)) => counters.record = CountersRecord::decode(value)?,
        (KeyKind::Segment(id), Some(value)) => {
            counters.segments.insert(id, SegmentRecord::decode(value)?);
        }
        (KeyKind::Segment(id), None) => {
            counters.segments.remove(&id);
        }
        (KeyKind::Snapshot(generation), Some(value)) => {
            let record = SnapshotRecord::decode(value)?;
            counters.snapshots.insert(generation, record);
        }
        (KeyKind::Snapshot(generation), None) => {
            counters.snapshots.remove(generation);
        }
        (KeyKind::Usage(key), value) => {
            counters
                .usages
                .load(key, value.map(UsageRecord::decode).transpose()?);
        }
        _ => {}
    }
    Ok(())
}

/// Everything that a store starts with.
struct Start {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    tasks: Tasks,
    settings: MetaSettings,
    disks: DiskSet,
    term: Term,
    term_count: usize,
    state: Arc<dyn StateStore>,
    states: Vec<(usize, LogPosition)>,
    superseded: Vec<Candidate>,
    applied: AppliedRecord,
    /// Position up to which the state is durable: the groups replayed since are not.
    flushed: LogPosition,
    counters: Counters,
    journal: JournalIndex,
    backlog: Backlog,
    position_next: LogPosition,
    log_start: LogPosition,
    ships: bool,
    remote: Option<Arc<RemoteCopies>>,
}

/// The shared part of a store, and the initial values of its committer.
struct Started {
    shared: Arc<StoreCore>,
    backlog: Backlog,
    counters: Counters,
    /// Copies of the state are to be made at once.
    ships: bool,
}

impl Start {
    /// `read_only`: the reason if the store refuses changes. `kept`: memory of its log in that case.
    fn share(self, log: LogStatus, read_only: Option<String>, kept: Option<ReplayHold>) -> Started {
        let batch_bytes_max = self.settings.batch_bytes_max();
        let mut visible = self.counters.clone();
        let mut ino_next = visible.record.ino_reserved;
        if planted::is(Bug::InoUsedAgain) {
            ino_next = ino_next.saturating_sub(INO_CHUNK).max(2);
        }
        let mut segment_next = visible.record.segment_reserved;
        if planted::is(Bug::SegmentIdUsedAgain) {
            segment_next = segment_next.saturating_sub(SEGMENT_CHUNK).max(1);
        }
        visible.record.ino_reserved += INO_CHUNK;
        visible.record.segment_reserved += SEGMENT_CHUNK;
        let primary = self.state.disk();
        let mut states = vec![(primary, self.flushed)];
        states.extend(self.states);
        let is_short = states.len() < self.disks.copies_possible();
        let ships = self.ships || is_short && self.position_next.0 > 1;
        let mut overlay = Overlay::new();
        for group in self.backlog.groups() {
            for put in &group.puts {
                let submitted = Submitted {
                    value: put.value.clone(),
                    birth: put.kept_birth.unwrap_or(group.generation),
                    position: group.last,
                };
                overlay.insert(put.key.clone(), submitted);
            }
        }
        // Groups that the state has no space for may hold snapshots.
        let last = self.backlog.groups().last().map(|group| group.last);
        let generations = self.counters.snapshots.keys();
        let taken = generations.filter_map(|at| Some((*at, last?))).collect();
        let progress = Arc::new(Progress::default());
        progress.advance(LogPosition(self.position_next.0.saturating_sub(1)));
        let is_full = !self.backlog.is_empty() || read_only.is_some();
        let shared = Arc::new(StoreCore {
            clock: self.clock,
            entropy: self.entropy,
            ship: Mutex::new(BackgroundShip {
                healthy_count: self.disks.healthy().len(),
                ..BackgroundShip::default()
            }),
            pending: Mutex::new(Pending {
                position_next: self.position_next,
                queue: VecDeque::new(),
                counters: visible,
                ino_next,
                segment_next,
            }),
            group_bytes_max: batch_bytes_max.min(GROUP_BYTES_MAX),
            log_status: Mutex::new(log),
            tasks: self.tasks,
            settings: self.settings,
            disks: self.disks,
            term: self.term,
            term_count: self.term_count,
            state: self.state,
            remote: self.remote,
            overlay: RwLock::new(overlay),
            journal: Mutex::new(self.journal),
            progress,
            work: Notify::new(),
            groups: GroupCounts::default(),
            refused_len_bytes: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            admission: Notify::new(),
            applied: Mutex::new(self.applied),
            applied_more: Notify::new(),
            taken: Mutex::new(taken),
            states: Mutex::new(states),
            superseded: Mutex::new(self.superseded),
            stop: AtomicU8::new(0),
            held_count: AtomicUsize::new(0),
            log_start: AtomicU64::new(self.log_start.0),
            shipping: Arc::default(),
            is_ship_running: AtomicBool::new(false),
            is_ship_wanted: AtomicBool::new(false),
            refused_states: Mutex::default(),
            is_full: AtomicBool::new(is_full),
            are_spares_unwanted: AtomicBool::new(false),
            quiet: Mutex::default(),
            read_only,
            _kept: kept,
        });
        Started {
            shared,
            backlog: self.backlog,
            counters: self.counters,
            ships,
        }
    }

    /// Starts the committer, and returns when the reserved ids are durable.
    async fn run<L: CommitLog>(
        self,
        log: Box<dyn LogWriter>,
        handle: impl FnOnce(Arc<StoreCore>) -> L,
    ) -> Result<Arc<MetaStore<L>>, MetaError> {
        let Started {
            shared,
            backlog,
            counters,
            ships,
        } = self.share(log.status(), None, None);
        if let Some(succession) = &shared.settings.succession {
            succession.enter(shared.term, &shared.progress);
        }
        let committer = Committer {
            shared: shared.clone(),
            clock: shared.clock.clone(),
            backlog,
            log,
            counters,
            is_first: true,
            gathering: Gathering::default(),
        };
        shared.tasks.spawn_thread("meta-commit", committer.run());
        let store = Arc::new(MetaStore {
            log: handle(shared.clone()),
            shared: shared.clone(),
        });
        let ticket = store.submit(Batch::new());
        store.durable(ticket).await?;
        if shared.term_count > TERM_COUNT_WARN {
            tracing::warn!(
                volume = %shared.disks.volume,
                starts = shared.term_count,
                starts_max = TERM_COUNT_MAX,
                "many starts have ended before the copies of the metadata's state were made; see why the server ends"
            );
        }
        if ships && !shared.names_too_many_starts() {
            shared.ship_in_background();
        }
        shared.log_start.fetch_max(1, Ordering::AcqRel);
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Pair, ShipResult, StateCursor, StateFuture, StateKey, Turn};
    use bytes::Bytes;

    /// A state whose disk is full.
    struct FullState;

    impl StateStore for FullState {
        fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, MetaError> {
            Ok(None)
        }

        fn cursor<'a>(&'a self, _from: &[u8], _to: &[u8]) -> Box<dyn StateCursor + 'a> {
            struct Nothing;
            impl StateCursor for Nothing {
                fn next(&mut self) -> Result<Option<Pair<'_>>, MetaError> {
                    Ok(None)
                }
            }
            Box::new(Nothing)
        }

        fn apply(
            &self,
            _writes: &mut dyn Iterator<Item = (StateKey, Option<Bytes>)>,
        ) -> Result<(), MetaError> {
            Err(MetaError::Full("a test".to_owned()))
        }

        fn flush(&self) -> StateFuture<'_, Result<(), MetaError>> {
            Box::pin(async { Ok(()) })
        }

        fn ship(
            &self,
            _disks: Vec<usize>,
            _applied: AppliedRecord,
            _turn: Turn,
        ) -> StateFuture<'_, Result<Vec<ShipResult>, MetaError>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn export(
            &self,
            _applied: AppliedRecord,
            _turn: Turn,
        ) -> StateFuture<'_, Result<crate::state::Exported, MetaError>> {
            Box::pin(async { Err(MetaError::State("a test".to_owned())) })
        }

        fn disk(&self) -> usize {
            0
        }
    }

    /// Groups that are applied later, when there is space, keep the term that wrote them. A state with another term is
    /// not part of the history, and the next start would refuse it.
    #[test]
    fn what_is_replayed_later_keeps_its_term() {
        let record = |position: u64, term: u64| {
            let mut group = Group::new(
                Generation::FIRST,
                LogPosition(position),
                LogPosition(position),
            );
            group.put(cairn_formats::metadata::Put::new(
                Key::inode(cairn_base::Ino(1)),
                Some(Bytes::from_static(b"value")),
            ));
            let record = group.encode(Epoch(term), term);
            let len = record.head.payload_len_bytes as usize;
            let payload = &record.bytes[cairn_formats::metadata::log::RECORD_HEAD_BYTES..][..len];
            LogRecord {
                first: LogPosition(position),
                last: LogPosition(position),
                epoch: Epoch(term),
                term,
                payload: Bytes::copy_from_slice(payload),
            }
        };
        let term = |number: u64, start: u64| Term {
            epoch: Epoch(number),
            nonce: number,
            start: LogPosition(start),
        };
        let recovered = History {
            // The last term is the one of the start itself.
            terms: vec![term(1, 1), term(2, 3), term(3, 4)],
            epoch_max: Epoch(2),
            retained_from: LogPosition(1),
            end: LogPosition(3),
            records: vec![record(1, 1), record(2, 1), record(3, 2)],
        };
        let replayed = replay(&FullState, AppliedRecord::default(), &recovered).expect("replays");
        let applied: Vec<AppliedRecord> = replayed.backlog.applied().collect();
        assert_eq!(applied.len(), 3);
        for applied in applied {
            assert!(recovered.continues(&applied), "{applied:?}");
        }
    }

    /// A log that is long because of what the state has already, or of what files have already, leaves little in memory.
    #[test]
    fn what_a_state_has_does_not_stay_in_memory() {
        let record = |first: u64, last: u64, len_bytes: usize| LogRecord {
            first: LogPosition(first),
            last: LogPosition(last),
            epoch: Epoch(1),
            term: 1,
            payload: Bytes::from(vec![0; len_bytes]),
        };
        let history = History {
            records: vec![record(1, 2, 5000), record(3, 3, 700), record(4, 6, 300)],
            end: LogPosition(6),
            ..History::empty()
        };
        let entry = |len_bytes: usize| JournalEntry {
            position: LogPosition(1),
            ino: cairn_base::Ino(1),
            offset: 0,
            data: Bytes::from(vec![0; len_bytes]),
            encryption: None,
            size_bytes: len_bytes as u64,
            mtime: cairn_base::Timestamp::default(),
            ctime: cairn_base::Timestamp::default(),
            mode: 0,
        };
        let staying = |position: u64, journal: &[JournalEntry]| {
            let applied = AppliedRecord {
                position: LogPosition(position),
                ..AppliedRecord::default()
            };
            staying_bytes(&history, &applied, journal)
        };
        assert_eq!(staying(6, &[]), 0);
        let newest = staying(3, &[]);
        assert!((300..700).contains(&newest), "{newest}");
        assert_eq!(staying(3, &[entry(20), entry(30)]), newest + 50);
        // A record counts until the state has all of it.
        assert_eq!(staying(4, &[]), newest);
        let whole = history.memory_bytes();
        assert!(whole > 6000, "{whole}");
        assert_eq!(staying(0, &[]), whole);
        assert_eq!(staying(0, &[entry(1000)]), whole);
    }
}
