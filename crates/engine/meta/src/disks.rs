//! The disks of one store: which of them failed or are late, and how many copies they hold.
//!
//! Owns: names of the volume's folder, the condition of each disk, the number of copies. Must not know: the contents of
//! files.
//!
//! A late disk has not failed, and its copy of the state counts as before. But each group would wait for it. So the log
//! goes on without the disk, as without a failed one, until the disk has answered every open request and a rest has
//! passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode};
use cairn_base::{DiskId, VolumeId};
use parking_lot::{Mutex, RwLock};

/// First rest of a late disk after its last answer; each further one is twice as long. The log begins another file
/// whenever the disk leaves or returns.
const LATE_REST: Duration = Duration::from_secs(5);
const LATE_REST_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Member {
    pub id: DiskId,
    pub disk: Arc<dyn Disk>,
    failed: AtomicBool,
    late: Mutex<Lateness>,
    /// The disk is chosen for log and state before all others.
    is_first: bool,
    /// The disk is being retired or is retired: it gets nothing new.
    retired: AtomicBool,
    /// The disk is retired, and nothing on it is needed any more.
    released: bool,
}

#[derive(Default)]
struct Lateness {
    is_late: bool,
    /// Requests that the disk has not answered yet.
    open_count: u32,
    /// End of the rest, on the monotonic clock.
    rested_at: Duration,
    /// How often the disk was late.
    times: u32,
}

impl Lateness {
    fn rest(&self) -> Duration {
        let doublings = self.times.saturating_sub(1).min(16);
        LATE_REST.saturating_mul(1 << doublings).min(LATE_REST_MAX)
    }

    fn is_rested(&self, now: Duration) -> bool {
        self.open_count == 0 && self.rested_at <= now
    }
}

/// Rank of an added disk in the order of choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    First,
    Last,
}

impl Member {
    fn new(id: DiskId, disk: Arc<dyn Disk>, preference: Preference) -> Arc<Self> {
        Arc::new(Self {
            id,
            disk,
            failed: AtomicBool::new(false),
            late: Mutex::default(),
            is_first: preference == Preference::First,
            retired: AtomicBool::new(false),
            released: false,
        })
    }

    fn is_late(&self) -> bool {
        self.late.lock().is_late
    }

    fn is_healthy(&self) -> bool {
        !self.failed.load(Ordering::Acquire) && !self.is_retired()
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}

/// The disks that were present at open, in the caller's order of preference, and those added since. A disk keeps its
/// index here for as long as the store is open.
#[derive(Clone)]
pub(crate) struct DiskSet {
    pub volume: VolumeId,
    members: Arc<RwLock<Vec<Arc<Member>>>>,
    copies: Arc<AtomicUsize>,
    /// At least one disk is late.
    any_late: Arc<AtomicBool>,
    /// A disk was added or retired since the log began its file, whose header names the members.
    changed: Arc<AtomicBool>,
    /// The store has ended: another store may use these disks.
    ended: Arc<AtomicBool>,
    /// All writes are refused from now on.
    given_up: Arc<AtomicBool>,
}

impl DiskSet {
    /// `copies`: number of disks wanted for log and state.
    pub fn new(volume: VolumeId, disks: Vec<(DiskId, Arc<dyn Disk>)>, copies: usize) -> Self {
        let members = disks
            .into_iter()
            .map(|(id, disk)| Member::new(id, disk, Preference::Last))
            .collect();
        Self {
            volume,
            members: Arc::new(RwLock::new(members)),
            copies: Arc::new(AtomicUsize::new(copies)),
            any_late: Arc::default(),
            changed: Arc::default(),
            ended: Arc::default(),
            given_up: Arc::default(),
        }
    }

    /// Adds disks that are draining from the start: the store reads their contents, and tells them that the log goes on
    /// without them.
    pub fn add_draining(&self, disks: Vec<(DiskId, Arc<dyn Disk>)>) {
        let mut members = self.members.write();
        for (id, disk) in disks {
            let draining = Member::new(id, disk, Preference::Last);
            draining.retired.store(true, Ordering::Release);
            members.push(draining);
        }
    }

    /// Number of copies of log and state that are wanted.
    pub fn copies_wanted(&self) -> usize {
        self.copies.load(Ordering::Acquire)
    }

    /// Number of copies that the healthy disks can hold.
    pub fn copies_possible(&self) -> usize {
        self.copies_wanted().min(self.healthy().len())
    }

    /// Sets the number of copies wanted, and returns the previous one.
    pub fn want_copies(&self, copies: usize) -> usize {
        self.copies.swap(copies, Ordering::AcqRel)
    }

    pub fn len(&self) -> usize {
        self.members.read().len()
    }

    pub fn get(&self, index: usize) -> Arc<Member> {
        self.members.read()[index].clone()
    }

    /// Adds a disk, or takes one back that was retired or had failed.
    pub fn add(&self, id: DiskId, disk: Arc<dyn Disk>, preference: Preference) {
        let mut members = self.members.write();
        let member = Member::new(id, disk, preference);
        match members.iter().position(|member| member.id == id) {
            // Owners of the old handle keep it.
            Some(index) => members[index] = member,
            None => members.push(member),
        }
        drop(members);
        self.changed.store(true, Ordering::Release);
    }

    /// Has the log retry copies that failed before.
    pub fn ask_for_copies(&self) {
        self.changed.store(true, Ordering::Release);
    }

    /// Whether a disk was added or retired since the last call.
    pub fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) && self.changed.swap(false, Ordering::AcqRel)
    }

    /// Stops placing data on a disk, and removes it from the members. Returns whether the disk was in use until now:
    /// the log then begins another file, which must not happen repeatedly.
    pub fn retire(&self, index: usize) -> bool {
        let is_new = !self.get(index).retired.swap(true, Ordering::AcqRel);
        if is_new {
            self.changed.store(true, Ordering::Release);
        }
        is_new
    }

    /// Drops the handle of a retired disk, so that the disk can be closed.
    pub fn release(&self, index: usize) {
        let mut members = self.members.write();
        if let Some(member) = members.get_mut(index).filter(|member| member.is_retired()) {
            *member = Arc::new(Member {
                id: member.id,
                disk: Arc::new(Gone(member.disk.label().to_owned())),
                failed: AtomicBool::new(false),
                late: Mutex::default(),
                is_first: false,
                retired: AtomicBool::new(true),
                released: true,
            });
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, Arc<Member>)> {
        let members = self.members.read().clone();
        members.into_iter().enumerate()
    }

    /// The disks that stay.
    pub fn ids(&self) -> Vec<DiskId> {
        let members = self.members.read();
        let staying = members.iter().filter(|member| !member.is_retired());
        staying.map(|member| member.id).collect()
    }

    pub fn index_of(&self, id: DiskId) -> Option<usize> {
        let members = self.members.read();
        members.iter().position(|member| member.id == id)
    }

    pub fn is_retired(&self, index: usize) -> bool {
        self.get(index).is_retired()
    }

    pub fn is_released(&self, index: usize) -> bool {
        self.get(index).released
    }

    pub fn is_healthy(&self, index: usize) -> bool {
        self.get(index).is_healthy()
    }

    /// Whether a disk may be read and written. A draining disk may.
    pub fn is_usable(&self, index: usize) -> bool {
        !self.get(index).failed.load(Ordering::Acquire)
    }

    /// Faults a disk: from now on it gets only the headers that say that the log goes on without it. A restart tries it
    /// again.
    pub fn mark_failed(&self, index: usize, why: &dyn std::fmt::Display) {
        let member = self.get(index);
        if !member.failed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                volume = self.volume.0,
                disk = member.disk.label(),
                "metadata is not written to this disk any more: {why}"
            );
        }
    }

    /// Takes a late disk out of the log, until [`Self::note_answer`] was called as often as this.
    pub fn note_late(&self, index: usize) {
        let member = self.get(index);
        let mut late = member.late.lock();
        if !late.is_late {
            late.is_late = true;
            late.times += 1;
            tracing::warn!(
                volume = self.volume.0,
                disk = member.disk.label(),
                "this disk does not answer; the metadata's log goes on without it"
            );
        }
        late.open_count += 1;
        self.any_late.store(true, Ordering::Release);
    }

    /// Notes an answer of a late disk.
    pub fn note_answer(&self, index: usize, now: Duration) {
        let member = self.get(index);
        let mut late = member.late.lock();
        // Another handle may have replaced the late one.
        late.open_count = late.open_count.saturating_sub(1);
        late.rested_at = now.saturating_add(late.rest());
    }

    /// Whether the log goes on without some disk because that disk is late.
    pub fn is_any_late(&self) -> bool {
        self.any_late.load(Ordering::Acquire)
    }

    /// Whether a late disk has rested long enough for the log to use it again.
    pub fn has_rested(&self, now: Duration) -> bool {
        let members = self.members.read();
        let mut late = members.iter().map(|member| member.late.lock());
        late.any(|late| late.is_late && late.is_rested(now))
    }

    /// Returns late disks that have rested to the log, which begins another file.
    pub fn take_back_rested(&self, now: impl FnOnce() -> Duration) {
        if self.is_any_late() {
            let now = now();
            self.take_back_late(|late| late.is_rested(now));
        }
    }

    fn take_back_late(&self, is_wanted: impl Fn(&Lateness) -> bool) {
        self.any_late.store(false, Ordering::Release);
        for member in self.members.read().iter() {
            let mut late = member.late.lock();
            if late.is_late && is_wanted(&late) {
                late.is_late = false;
                self.changed.store(true, Ordering::Release);
            } else if late.is_late {
                self.any_late.store(true, Ordering::Release);
            }
        }
    }

    /// Disks that the log can be written to. If all working disks are late, the log waits for them.
    pub fn log_disks(&self) -> Vec<usize> {
        let healthy = self.healthy();
        let mut prompt = healthy.clone();
        prompt.retain(|disk| !self.is_late(*disk));
        if !prompt.is_empty() || healthy.is_empty() {
            return prompt;
        }
        self.take_back_late(|_| true);
        healthy
    }

    pub fn is_late(&self, index: usize) -> bool {
        self.is_any_late() && self.get(index).is_late()
    }

    /// Whether an existing copy of the log on a disk is still written.
    pub fn takes_log(&self, index: usize) -> bool {
        self.is_healthy(index) && !self.is_late(index)
    }

    /// Refuses new copies on all disks from now on, also those whose task is already running.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether copies may be put on a disk or removed from it. A draining disk allows that until it is released.
    pub fn takes_copies(&self, index: usize) -> bool {
        self.may_be_needed(index) && !self.ended.load(Ordering::Acquire)
    }

    /// Whether a working disk may hold the only copy of something. That includes a draining disk until it is released.
    pub fn may_be_needed(&self, index: usize) -> bool {
        self.is_usable(index) && !self.is_released(index)
    }

    /// Refuses all writes to all disks from now on.
    pub fn give_all_up(&self) {
        self.given_up.store(true, Ordering::Release);
        for member in self.members.read().iter() {
            member.failed.store(true, Ordering::Release);
        }
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Healthy disks, in the order of choice.
    pub fn healthy(&self) -> Vec<usize> {
        let members = self.members.read();
        let healthy = members.iter().enumerate();
        let healthy = healthy.filter(|(_, member)| member.is_healthy());
        let (first, others): (Vec<_>, Vec<_>) = healthy.partition(|(_, member)| member.is_first);
        let all = first.into_iter().chain(others);
        all.map(|(index, _)| index).collect()
    }

    /// Whether a disk is chosen for log and state before all others.
    pub fn is_first(&self, index: usize) -> bool {
        self.get(index).is_first
    }

    pub fn failed_ids(&self) -> Vec<DiskId> {
        self.iter()
            .filter(|(_, member)| member.failed.load(Ordering::Acquire))
            .map(|(_, member)| member.id)
            .collect()
    }

    /// The folder of the volume's metadata on each disk.
    pub fn folder(&self) -> String {
        format!("volumes/{:08x}", self.volume.0)
    }
}

/// Stands in for a retired disk, so that its index stays taken.
struct Gone(String);

impl Gone {
    fn error(&self) -> DiskError {
        DiskError::Io {
            disk: self.0.clone(),
            what: "keeping metadata".to_owned(),
            detail: "the disk has left".to_owned(),
        }
    }

    fn refuse<T: Send>(&self) -> IoFuture<'_, T> {
        Box::pin(async { Err(self.error()) })
    }
}

impl Disk for Gone {
    fn label(&self) -> &str {
        &self.0
    }

    fn open<'a>(&'a self, _: &'a str, _: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        self.refuse()
    }

    fn remove<'a>(&'a self, _: &'a str) -> IoFuture<'a, ()> {
        self.refuse()
    }

    fn rename<'a>(&'a self, _: &'a str, _: &'a str) -> IoFuture<'a, ()> {
        self.refuse()
    }

    fn list<'a>(&'a self, _: &'a str) -> IoFuture<'a, Vec<String>> {
        self.refuse()
    }

    fn sync_folder<'a>(&'a self, _: &'a str) -> IoFuture<'a, ()> {
        self.refuse()
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        Err(self.error())
    }
}
