//! A disk in memory that counts operations, fails, loses power and is recorded, as a test requests.
//!
//! Owns: handles, limits, faults and the order of operations. `state` decides which data survives a crash.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use cairn_base::AlignedBuf;
use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode};
use parking_lot::Mutex;

use crate::record::Recorder;
use crate::rng::Rng;
use crate::state::{
    BLOCK_BYTES, Crash, FileId, Op, SECTOR_BYTES, State, allocated_bytes, folder_of,
};

/// Longest possible file: the maximum of `off_t`.
const FILE_LEN_BYTES_MAX: u64 = i64::MAX as u64;

/// Kinds of operations, to select those that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Opening an existing file.
    Open,
    Create,
    Remove,
    Rename,
    List,
    SyncFolder,
    Read,
    Write,
    WriteDurable,
    Sync,
    SetLen,
}

/// Faults of an operation. A failed operation has changed nothing, except that a failed sync has dropped the dirty
/// bytes, and a torn write has written a part. The other faults are silent: the operation succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Io,
    Full,
    /// A write fails after a random part of its sectors was written.
    Torn {
        seed: u64,
    },
    /// A read returns its bytes with one bit flipped, at this place modulo its length.
    FlipRead {
        bit: u64,
    },
    /// A write is written with one bit flipped, at this place modulo its length.
    FlipWrite {
        bit: u64,
    },
    /// A read returns the bytes that are this many blocks further on, around the end of the file.
    MisdirectRead {
        blocks: u64,
    },
    /// A read returns the contents at the time of [`MemDisk::remember`].
    StaleRead,
    /// A write succeeds, and writes nothing.
    LoseWrite,
    /// A write goes this many blocks further on, around the end of the file.
    MisdirectWrite {
        blocks: u64,
    },
}

impl Fault {
    /// Whether an operation of this kind can have this fault.
    fn fits(self, kind: OpKind) -> bool {
        match self {
            Fault::Io => true,
            Fault::Full => true,
            Fault::FlipRead { .. } | Fault::MisdirectRead { .. } | Fault::StaleRead => {
                kind == OpKind::Read
            }
            Fault::Torn { .. }
            | Fault::LoseWrite
            | Fault::FlipWrite { .. }
            | Fault::MisdirectWrite { .. } => {
                matches!(kind, OpKind::Write | OpKind::WriteDurable)
            }
        }
    }

    fn is_silent(self) -> bool {
        !matches!(self, Fault::Io | Fault::Full | Fault::Torn { .. })
    }
}

/// Decides the duration of operations: the returned future is awaited before an operation takes effect, and again
/// before it is answered. `None` goes on at once.
pub trait Pace: Send + Sync + 'static {
    fn pause(&self, kind: OpKind, name: &str) -> Option<cairn_base::env::BoxFuture<()>>;

    /// Is called when an operation is issued, with its place in the file and the bytes of a write.
    fn touch(&self, _offset: u64, _len_bytes: u64, _written: &[u8]) {}
}

/// Selects failing operations: of those that match, `skip` succeed, then `times` fail.
#[derive(Clone, Debug)]
pub struct FaultRule {
    /// `None` matches all kinds.
    pub kind: Option<OpKind>,
    /// Matches names that contain this; "" matches all.
    pub name_part: String,
    pub skip: u64,
    pub times: u64,
    pub fault: Fault,
}

/// Operations of a disk so far, without failed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub opens: u64,
    pub creates: u64,
    pub reads: u64,
    pub read_bytes: u64,
    /// Plain and durable writes.
    pub writes: u64,
    pub write_bytes: u64,
    pub writes_durable: u64,
    pub syncs: u64,
    pub folder_syncs: u64,
}

/// An in-memory disk. Its futures are ready at once, unless [`MemDisk::yield_at_random`] was called.
///
/// The rules of durability are listed in the crate's `state` module.
pub struct MemDisk {
    shared: Arc<DiskCore>,
}

/// A copy of a disk's content, to bring a stale disk back later.
#[derive(Clone)]
pub struct DiskSnapshot {
    label: String,
    capacity_bytes: u64,
    state: State,
}

struct DiskCore {
    label: String,
    capacity_bytes: u64,
    inner: Mutex<DiskState>,
}

struct DiskState {
    state: State,
    stats: DiskStats,
    /// With the counter of strikes of each rule.
    faults: Vec<(FaultRule, Arc<AtomicU64>)>,
    /// Reason why all operations fail, if they do.
    dead: Option<&'static str>,
    yields: Option<Yields>,
    pace: Option<Arc<dyn Pace>>,
    recorder: Option<(Arc<Recorder>, usize)>,
    /// Requested writes that have not taken effect: a power loss may leave a part of each.
    under_way: BTreeMap<u64, Op>,
    under_way_next: u64,
    /// The contents for stale reads.
    remembered: Option<State>,
    silent_faults: u64,
    /// Bytes of other data on the file system of this disk's folder.
    others_bytes: u64,
}

struct Yields {
    rng: Rng,
    count_max: u64,
}

struct MemFile {
    shared: Arc<DiskCore>,
    id: FileId,
    name: String,
}

impl MemDisk {
    /// An empty disk; `label` names it in messages.
    pub fn new(label: impl Into<String>, capacity_bytes: u64) -> Arc<MemDisk> {
        Self::from_state(label.into(), capacity_bytes, State::default())
    }

    pub fn from_snapshot(snapshot: &DiskSnapshot) -> Arc<MemDisk> {
        Self::from_state(
            snapshot.label.clone(),
            snapshot.capacity_bytes,
            snapshot.state.clone(),
        )
    }

    pub(crate) fn from_state(label: String, capacity_bytes: u64, state: State) -> Arc<MemDisk> {
        let inner = DiskState {
            state,
            stats: DiskStats::default(),
            faults: Vec::new(),
            dead: None,
            yields: None,
            pace: None,
            recorder: None,
            under_way: BTreeMap::new(),
            under_way_next: 0,
            remembered: None,
            silent_faults: 0,
            others_bytes: 0,
        };
        let shared = DiskCore {
            label,
            capacity_bytes,
            inner: Mutex::new(inner),
        };
        Arc::new(MemDisk {
            shared: Arc::new(shared),
        })
    }

    /// Cuts the power: all operations of this disk and its handles fail from now on. Returns the disk as the next start
    /// finds it.
    pub fn crash(&self, mode: Crash, seed: u64) -> Arc<MemDisk> {
        let mut rng = Rng::new(seed);
        let (state, others_bytes) = {
            let mut inner = self.shared.inner.lock();
            inner.dead = Some("the power was cut");
            inner.recorder = None;
            inner.pace = None;
            let mut state = inner.state.clone();
            if mode == Crash::Random {
                for op in std::mem::take(&mut inner.under_way).values() {
                    if rng.coin() {
                        state.apply_unfinished(op);
                    }
                }
            }
            (state, inner.others_bytes)
        };
        let next = Self::from_state(
            self.shared.label.clone(),
            self.shared.capacity_bytes,
            state.crash(
                mode,
                self.shared.capacity_bytes.saturating_sub(others_bytes),
                &mut rng,
            ),
        );
        next.fill(others_bytes);
        next
    }

    /// Sets the size of other data on the file system of this disk's folder; it survives a power cut.
    pub fn fill(&self, others_bytes: u64) {
        self.shared.inner.lock().others_bytes = others_bytes;
    }

    /// Bytes that its own files take.
    pub fn used_bytes(&self) -> u64 {
        self.shared.inner.lock().state.used_bytes()
    }

    /// The contents if the disk were unplugged cleanly now: nothing is lost.
    pub fn snapshot(&self) -> DiskSnapshot {
        let state = self.shared.inner.lock().state.clone();
        let capacity_bytes = self.shared.capacity_bytes;
        DiskSnapshot {
            label: self.shared.label.clone(),
            capacity_bytes,
            state: state.crash(Crash::KeepUnsynced, capacity_bytes, &mut Rng::new(0)),
        }
    }

    /// Adds a rule; of several that match an operation the first wins.
    pub fn inject(&self, rule: FaultRule) {
        self.inject_counted(rule, Arc::default());
    }

    /// As [`MemDisk::inject`]; `fired` grows with each strike.
    pub fn inject_counted(&self, rule: FaultRule, fired: Arc<AtomicU64>) {
        self.shared.inner.lock().faults.push((rule, fired));
    }

    /// Lets one operation of a kind fail, after `skip` more that succeed.
    pub fn fail_nth(&self, kind: OpKind, skip: u64, fault: Fault) {
        self.inject(FaultRule {
            kind: Some(kind),
            name_part: String::new(),
            skip,
            times: 1,
            fault,
        });
    }

    /// Fails all operations with an I/O error from now on, until [`MemDisk::clear_faults`].
    pub fn fail_all(&self) {
        self.inject(FaultRule {
            kind: None,
            name_part: String::new(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Io,
        });
    }

    pub fn clear_faults(&self) {
        self.shared.inner.lock().faults.clear();
    }

    /// Flips bit `bit` (0..8) of the byte at `offset`, silently. Panics if there is no such byte.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) {
        let mut inner = self.shared.inner.lock();
        let found = inner.state.corrupt(name, offset, |byte| *byte ^= 1 << bit);
        assert!(found, "{name} has a byte {offset}");
    }

    /// The names of all files, in order.
    pub fn file_names(&self) -> Vec<String> {
        let inner = self.shared.inner.lock();
        inner.state.names().map(str::to_owned).collect()
    }

    /// All files with the space that they take, in order.
    pub fn file_sizes(&self) -> Vec<(String, u64)> {
        let inner = self.shared.inner.lock();
        let state = &inner.state;
        let size = |name: &str| {
            let content = state.content(state.lookup(name)?)?;
            Some((name.to_owned(), allocated_bytes(content.len_bytes())))
        };
        state.names().filter_map(size).collect()
    }

    /// The bytes of a file, without faults and counters.
    pub fn file_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.shared.inner.lock();
        let content = inner.state.content(inner.state.lookup(name)?)?;
        Some(content.to_vec())
    }

    pub fn stats(&self) -> DiskStats {
        self.shared.inner.lock().stats
    }

    /// Lets every operation yield to other tasks up to `count_max` times before it takes effect and as often before it
    /// is answered, so that operations overlap and overtake one another.
    pub fn yield_at_random(&self, seed: u64, count_max: u64) {
        self.shared.inner.lock().yields = Some(Yields {
            rng: Rng::new(seed),
            count_max,
        });
    }

    /// As [`MemDisk::yield_at_random`], with pauses that the caller decides.
    pub fn pace_with(&self, pace: Arc<dyn Pace>) {
        self.shared.inner.lock().pace = Some(pace);
    }

    /// Keeps the present contents for [`Fault::StaleRead`].
    pub fn remember(&self) {
        let mut inner = self.shared.inner.lock();
        inner.remembered = Some(inner.state.clone());
    }

    /// Number of silent faults so far.
    pub fn silent_faults(&self) -> u64 {
        self.shared.inner.lock().silent_faults
    }

    /// Flips one bit in the written bytes of some file whose name contains `name_part`; `pick` decides where. Returns
    /// the file and the offset in it, or `None` if there is no such byte.
    pub fn flip_some_bit(&self, name_part: &str, pick: u64) -> Option<(String, u64)> {
        let mut rng = Rng::new(pick);
        let mut inner = self.shared.inner.lock();
        let state = &inner.state;
        let written: Vec<(String, Vec<u64>)> = state
            .names()
            .filter(|name| name.contains(name_part))
            .filter_map(|name| {
                let pages = state.content(state.lookup(name)?)?.page_offsets();
                (!pages.is_empty()).then(|| (name.to_owned(), pages))
            })
            .collect();
        let (name, pages) = written.get(rng.below(written.len() as u64) as usize)?;
        let page = pages.get(rng.below(pages.len() as u64) as usize)?;
        let (offset, bit) = (page + rng.below(BLOCK_BYTES), rng.below(8));
        let flipped = inner.state.corrupt(name, offset, |byte| *byte ^= 1 << bit);
        flipped.then(|| (name.clone(), offset))
    }

    pub(crate) fn record_to(&self, recorder: Arc<Recorder>, disk_index: usize) {
        let mut inner = self.shared.inner.lock();
        assert!(inner.recorder.is_none(), "a disk has one recorder");
        inner.recorder = Some((recorder, disk_index));
    }

    pub(crate) fn label_and_capacity(&self) -> (String, u64) {
        (self.shared.label.clone(), self.shared.capacity_bytes)
    }

    pub(crate) fn state(&self) -> State {
        self.shared.inner.lock().state.clone()
    }
}

impl DiskCore {
    fn io_error(&self, what: String, detail: impl Into<String>) -> DiskError {
        DiskError::Io {
            disk: self.label.clone(),
            what,
            detail: detail.into(),
        }
    }

    fn full(&self, what: String) -> DiskError {
        DiskError::Full {
            disk: self.label.clone(),
            what,
        }
    }

    fn not_found(&self, name: &str) -> DiskError {
        DiskError::NotFound {
            disk: self.label.clone(),
            name: name.to_owned(),
        }
    }

    /// Runs one operation: `act` checks and acts at one instant. Its argument is the number of operations recorded when
    /// this one was issued.
    async fn run<T>(
        &self,
        kind: OpKind,
        name: &str,
        act: impl FnOnce(&mut DiskState, usize) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        self.run_with(kind, name, |inner, issued, _| act(inner, issued))
            .await
    }

    /// As `run`; `act` also gets the silent fault that strikes it.
    async fn run_with<T>(
        &self,
        kind: OpKind,
        name: &str,
        act: impl FnOnce(&mut DiskState, usize, Option<Fault>) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let issued = {
            let inner = self.inner.lock();
            inner
                .recorder
                .as_ref()
                .map_or(0, |(recorder, _)| recorder.op_count())
        };
        self.pause(kind, name).await;
        let result = {
            let mut inner = self.inner.lock();
            match self.admit(&mut inner, kind, name) {
                Ok(Some(fault @ Fault::Torn { .. })) => {
                    let torn = act(&mut inner, issued, Some(fault));
                    let what = format!("{kind:?} {name}");
                    torn.and(Err(self.io_error(what, "an injected fault")))
                }
                Ok(fault) => act(&mut inner, issued, fault),
                Err(error) => Err(error),
            }
        };
        self.pause(kind, name).await;
        // An answer never arrives after the power was cut.
        match self.inner.lock().dead {
            Some(reason) => Err(self.io_error(format!("{kind:?} {name}"), reason)),
            None => result,
        }
    }

    async fn pause(&self, kind: OpKind, name: &str) {
        let pace = self.inner.lock().pace.clone();
        if let Some(pause) = pace.and_then(|pace| pace.pause(kind, name)) {
            pause.await;
        }
        let count = match &mut self.inner.lock().yields {
            Some(yields) => {
                let bound = yields.count_max.saturating_add(1);
                yields.rng.below(bound)
            }
            None => 0,
        };
        for _ in 0..count {
            YieldOnce::default().await;
        }
    }

    /// Refuses an operation for a dead disk, a bad name or a fault rule; returns the fault that the operation has to
    /// play itself.
    fn admit(
        &self,
        inner: &mut DiskState,
        kind: OpKind,
        name: &str,
    ) -> Result<Option<Fault>, DiskError> {
        let what = || format!("{kind:?} {name}");
        if let Some(reason) = inner.dead {
            return Err(self.io_error(what(), reason));
        }
        for (rule, fired) in &mut inner.faults {
            let matches = rule.kind.is_none_or(|wanted| wanted == kind)
                && name.contains(rule.name_part.as_str())
                && rule.fault.fits(kind)
                && rule.times > 0;
            if !matches {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times -= 1;
            fired.fetch_add(1, Ordering::Relaxed);
            return match rule.fault {
                Fault::Io => Err(self.io_error(what(), "an injected fault")),
                Fault::Full => Err(self.full(what())),
                fault => {
                    inner.silent_faults += u64::from(fault.is_silent());
                    Ok(Some(fault))
                }
            };
        }
        Ok(None)
    }

    fn apply(&self, inner: &mut DiskState, issued: usize, name: &str, op: Op) {
        inner.state.apply(&op);
        if let Some((recorder, disk_index)) = &inner.recorder {
            recorder.push(*disk_index, issued, name, op);
        }
    }

    /// Fails if growing a file from one length to another does not fit the disk.
    fn reserve(
        &self,
        inner: &DiskState,
        what: &str,
        len_bytes: u64,
        len_bytes_new: u64,
    ) -> Result<(), DiskError> {
        if len_bytes_new > FILE_LEN_BYTES_MAX {
            return Err(self.io_error(what.to_owned(), "the file would be too long"));
        }
        let more = allocated_bytes(len_bytes_new).saturating_sub(allocated_bytes(len_bytes));
        let used = inner.state.used_bytes() + inner.others_bytes;
        let free = self.capacity_bytes.saturating_sub(used);
        if more > free {
            return Err(self.full(what.to_owned()));
        }
        Ok(())
    }

    fn check_name(&self, name: &str) -> Result<(), DiskError> {
        let good_byte = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        let good_part = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(good_byte)
        };
        if name.split('/').all(good_part) {
            Ok(())
        } else {
            Err(self.io_error(format!("using the name {name:?}"), "it is not allowed"))
        }
    }
}

impl Disk for MemDisk {
    fn label(&self) -> &str {
        &self.shared.label
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        let shared = &self.shared;
        let kind = match mode {
            OpenMode::Existing => OpKind::Open,
            OpenMode::CreateNew { .. } | OpenMode::CreateZeroed { .. } => OpKind::Create,
        };
        Box::pin(async move {
            shared.check_name(name)?;
            let file = shared.run(kind, name, |inner, issued| {
                match (mode, inner.state.lookup(name)) {
                    (OpenMode::Existing, Some(_)) => inner.stats.opens += 1,
                    (OpenMode::Existing, None) => return Err(shared.not_found(name)),
                    (OpenMode::CreateNew { .. } | OpenMode::CreateZeroed { .. }, Some(_)) => {
                        return Err(DiskError::Exists {
                            disk: shared.label.clone(),
                            name: name.to_owned(),
                        });
                    }
                    (
                        OpenMode::CreateNew { len_bytes } | OpenMode::CreateZeroed { len_bytes },
                        None,
                    ) => {
                        shared.reserve(inner, &format!("creating {name}"), 0, len_bytes)?;
                        inner.stats.creates += 1;
                        let op = Op::Create {
                            name: name.to_owned(),
                            len_bytes,
                        };
                        shared.apply(inner, issued, name, op);
                    }
                }
                let id = inner
                    .state
                    .lookup(name)
                    .ok_or_else(|| shared.not_found(name))?;
                inner.state.open(id);
                // Made here, so that the handle is closed even if the caller goes away.
                Ok(MemFile {
                    shared: Arc::clone(shared),
                    id,
                    name: name.to_owned(),
                })
            });
            let file: Arc<dyn DiskFile> = Arc::new(file.await?);
            Ok(file)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        let shared = &self.shared;
        Box::pin(shared.run(OpKind::Remove, name, move |inner, issued| {
            if inner.state.lookup(name).is_none() {
                return Err(shared.not_found(name));
            }
            let op = Op::Remove {
                name: name.to_owned(),
            };
            shared.apply(inner, issued, name, op);
            Ok(())
        }))
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        let shared = &self.shared;
        Box::pin(async move {
            shared.check_name(to)?;
            let act = |inner: &mut DiskState, issued| {
                if inner.state.lookup(from).is_none() {
                    return Err(shared.not_found(from));
                }
                let op = Op::Rename {
                    from: from.to_owned(),
                    to: to.to_owned(),
                };
                shared.apply(inner, issued, from, op);
                Ok(())
            };
            shared.run(OpKind::Rename, from, act).await
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        Box::pin(self.shared.run(OpKind::List, folder, move |inner, _| {
            let names = inner.state.names().filter(|name| folder_of(name) == folder);
            let last_part = |name: &str| match name.rsplit_once('/') {
                Some((_, last)) => last.to_owned(),
                None => name.to_owned(),
            };
            Ok(names.map(last_part).collect())
        }))
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        let shared = &self.shared;
        Box::pin(
            shared.run(OpKind::SyncFolder, folder, move |inner, issued| {
                inner.stats.folder_syncs += 1;
                let op = Op::SyncFolder {
                    folder: folder.to_owned(),
                };
                shared.apply(inner, issued, folder, op);
                Ok(())
            }),
        )
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        let inner = self.shared.inner.lock();
        if let Some(reason) = inner.dead {
            return Err(self
                .shared
                .io_error("asking for its space".to_owned(), reason));
        }
        Ok(DiskSpace {
            total_bytes: self.shared.capacity_bytes,
            free_bytes: self
                .shared
                .capacity_bytes
                .saturating_sub(inner.state.used_bytes() + inner.others_bytes),
        })
    }
}

impl MemFile {
    async fn write(&self, offset: u64, parts: Vec<Bytes>, durable: bool) -> Result<(), DiskError> {
        let kind = match durable {
            false => OpKind::Write,
            true => OpKind::WriteDurable,
        };
        let bytes = join(parts);
        let what = format!("writing {}", self.name);
        let Some(end) = offset.checked_add(bytes.len() as u64) else {
            return Err(self.shared.io_error(what, "the offset is too large"));
        };
        let op = Op::Write {
            file: self.id,
            offset,
            bytes: bytes.clone(),
            durable,
        };
        self.touch(offset, bytes.len() as u64, &bytes);
        let under_way = PendingWrite::new(&self.shared, op);
        let act = |inner: &mut DiskState, issued, fault| {
            inner.under_way.remove(&under_way.number);
            let len_bytes = self.content(inner)?.len_bytes();
            if end > len_bytes && !bytes.is_empty() {
                self.shared.reserve(inner, &what, len_bytes, end)?;
            }
            inner.stats.writes += 1;
            inner.stats.writes_durable += u64::from(durable);
            inner.stats.write_bytes += bytes.len() as u64;
            if bytes.is_empty() {
                return Ok(());
            }
            let write = |offset, bytes| Op::Write {
                file: self.id,
                offset,
                bytes,
                durable,
            };
            match fault {
                Some(Fault::LoseWrite) => {}
                Some(Fault::FlipWrite { bit }) => {
                    let mut flipped = BytesMut::from(&bytes[..]);
                    let at = (bit / 8) % flipped.len() as u64;
                    flipped[at as usize] ^= 1 << (bit % 8);
                    self.shared
                        .apply(inner, issued, &self.name, write(offset, flipped.freeze()));
                }
                Some(Fault::Torn { seed }) => {
                    for (offset, part) in torn_parts(offset, &bytes, seed) {
                        self.shared
                            .apply(inner, issued, &self.name, write(offset, part));
                    }
                }
                Some(Fault::MisdirectWrite { blocks }) if end <= len_bytes => {
                    let room = (len_bytes - bytes.len() as u64) / BLOCK_BYTES + 1;
                    let offset = (offset / BLOCK_BYTES + blocks) % room * BLOCK_BYTES;
                    self.shared
                        .apply(inner, issued, &self.name, write(offset, bytes));
                }
                _ => {
                    self.shared
                        .apply(inner, issued, &self.name, write(offset, bytes));
                }
            }
            Ok(())
        };
        self.shared.run_with(kind, &self.name, act).await
    }

    fn touch(&self, offset: u64, len_bytes: u64, written: &[u8]) {
        let pace = self.shared.inner.lock().pace.clone();
        if let Some(pace) = pace {
            pace.touch(offset, len_bytes, written);
        }
    }

    fn content<'a>(&self, inner: &'a DiskState) -> Result<&'a crate::content::Content, DiskError> {
        let content = inner.state.content(self.id);
        content.ok_or_else(|| self.shared.not_found(&self.name))
    }
}

impl DiskFile for MemFile {
    fn len_bytes(&self) -> u64 {
        let inner = self.shared.inner.lock();
        self.content(&inner)
            .map_or(0, |content| content.len_bytes())
    }

    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        Box::pin(self.write(offset, parts, false))
    }

    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        Box::pin(self.write(offset, parts, true))
    }

    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes> {
        let act = move |inner: &mut DiskState, _, fault| {
            let content = self.content(inner)?;
            let end = offset.checked_add(len_bytes as u64);
            if end.is_none_or(|end| end > content.len_bytes()) {
                return Err(DiskError::Short {
                    disk: self.shared.label.clone(),
                    name: self.name.clone(),
                    len_bytes: content.len_bytes(),
                    wanted_bytes: end.unwrap_or(u64::MAX),
                });
            }
            let mut buf = AlignedBuf::zeroed(len_bytes);
            let mut offset = offset;
            if let Some(Fault::MisdirectRead { blocks }) = fault {
                let room = (content.len_bytes() - len_bytes as u64) / BLOCK_BYTES + 1;
                offset = (offset / BLOCK_BYTES + blocks) % room * BLOCK_BYTES;
            }
            let old = inner
                .remembered
                .as_ref()
                .and_then(|state| state.content(self.id));
            match (fault, old) {
                (Some(Fault::StaleRead), Some(old)) => old.read(offset, &mut buf),
                _ => content.read(offset, &mut buf),
            }
            if let (Some(Fault::FlipRead { bit }), false) = (fault, buf.is_empty()) {
                let at = (bit / 8) % buf.len() as u64;
                buf[at as usize] ^= 1 << (bit % 8);
            }
            inner.stats.reads += 1;
            inner.stats.read_bytes += len_bytes as u64;
            Ok(buf.freeze())
        };
        Box::pin(async move {
            self.touch(offset, len_bytes as u64, &[]);
            self.shared.run_with(OpKind::Read, &self.name, act).await
        })
    }

    fn sync<'a>(&'a self) -> IoFuture<'a, ()> {
        Box::pin(async move {
            let act = |inner: &mut DiskState, issued| {
                inner.stats.syncs += 1;
                let op = Op::Sync { file: self.id };
                self.shared.apply(inner, issued, &self.name, op);
                Ok(())
            };
            let result = self.shared.run(OpKind::Sync, &self.name, act).await;
            if result.is_err() {
                let mut inner = self.shared.inner.lock();
                if inner.dead.is_none() {
                    let op = Op::SyncFailed { file: self.id };
                    let issued = usize::MAX;
                    self.shared.apply(&mut inner, issued, &self.name, op);
                }
            }
            result
        })
    }

    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()> {
        Box::pin(async move {
            self.touch(len_bytes, 0, &[]);
            let act = |inner: &mut DiskState, issued| {
                let len_bytes_now = self.content(inner)?.len_bytes();
                let what = format!("resizing {}", self.name);
                self.shared
                    .reserve(inner, &what, len_bytes_now, len_bytes)?;
                let op = Op::SetLen {
                    file: self.id,
                    len_bytes,
                };
                self.shared.apply(inner, issued, &self.name, op);
                Ok(())
            };
            self.shared.run(OpKind::SetLen, &self.name, act).await
        })
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.shared.inner.lock().state.close(self.id);
    }
}

/// A requested write. Dropped when its caller goes away, because then it never takes effect.
struct PendingWrite<'a> {
    shared: &'a DiskCore,
    number: u64,
}

impl<'a> PendingWrite<'a> {
    fn new(shared: &'a DiskCore, op: Op) -> Self {
        let mut inner = shared.inner.lock();
        let number = inner.under_way_next;
        inner.under_way_next += 1;
        inner.under_way.insert(number, op);
        Self { shared, number }
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        self.shared.inner.lock().under_way.remove(&self.number);
    }
}

/// A random part of the sectors of a write, each with its offset.
fn torn_parts(offset: u64, bytes: &Bytes, seed: u64) -> Vec<(u64, Bytes)> {
    let mut rng = Rng::new(seed);
    let mut parts = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let left_in_sector = SECTOR_BYTES - (offset + at as u64) % SECTOR_BYTES;
        let end = bytes.len().min(at + left_in_sector as usize);
        if rng.coin() {
            parts.push((offset + at as u64, bytes.slice(at..end)));
        }
        at = end;
    }
    parts
}

fn join(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    for part in &parts {
        joined.extend_from_slice(part);
    }
    joined.freeze()
}

/// Lets other tasks run once.
#[derive(Default)]
struct YieldOnce {
    yielded: bool,
}

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
