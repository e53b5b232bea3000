//! The disks of one store, which of them failed or are late, and on how many of them things are kept.
//!
//! Owns: names of the volume's folder, what is wrong with each disk, the number of copies.
//! Must not know: what is in the files.
//!
//! A disk that is late has failed nothing, and its copy of the state counts as before. But each group would wait for it, so
//! the log goes on without it, as without one that failed, until it has answered everything and a rest is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode};
use cairn_base::{DiskId, VolumeId};
use parking_lot::{Mutex, RwLock};

/// A disk that was late rests so long once it has answered, and twice as long each time after that: whenever it goes and
/// comes back, the log begins another file.
const LATE_REST: Duration = Duration::from_secs(5);
const LATE_REST_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Member {
    pub id: DiskId,
    pub disk: Arc<dyn Disk>,
    failed: AtomicBool,
    late: Mutex<Lateness>,
    /// Log and state are put here before all others.
    is_first: bool,
    /// It leaves, or left: nothing is to be kept there.
    retired: AtomicBool,
    /// It left: nothing of it is needed any more.
    released: bool,
}

#[derive(Default)]
struct Lateness {
    is_late: bool,
    /// What it has not answered yet.
    open_count: u32,
    /// When it has rested, on the monotonic clock.
    rested_at: Duration,
    /// How often it was late.
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

/// Where a disk that is added comes in the order in which disks are chosen.
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

/// The disks that were present at open, in the caller's order of preference, and those added since.
/// A disk is named by its index here, for as long as the store is open.
#[derive(Clone)]
pub(crate) struct DiskSet {
    pub volume: VolumeId,
    members: Arc<RwLock<Vec<Arc<Member>>>>,
    copies: Arc<AtomicUsize>,
    /// Some disk is late.
    any_late: Arc<AtomicBool>,
    /// A disk came or left since the log began its file, whose header names the members.
    changed: Arc<AtomicBool>,
    /// The store is over: another one may be on these disks.
    ended: Arc<AtomicBool>,
    /// Nothing at all is written any more.
    given_up: Arc<AtomicBool>,
}

impl DiskSet {
    /// `copies`: on how many disks log and state are wanted.
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

    /// Disks that leave from the beginning: what they have is read, and they are told that the log goes on without
    /// them.
    pub fn add_draining(&self, disks: Vec<(DiskId, Arc<dyn Disk>)>) {
        let mut members = self.members.write();
        for (id, disk) in disks {
            let draining = Member::new(id, disk, Preference::Last);
            draining.retired.store(true, Ordering::Release);
            members.push(draining);
        }
    }

    /// Copies of log and state that are wanted.
    pub fn copies_wanted(&self) -> usize {
        self.copies.load(Ordering::Acquire)
    }

    /// Copies that can be had with the disks that are healthy.
    pub fn copies_possible(&self) -> usize {
        self.copies_wanted().min(self.healthy().len())
    }

    /// Returns how many were wanted before.
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
            // Who has the old handle goes on with it.
            Some(index) => members[index] = member,
            None => members.push(member),
        }
        drop(members);
        self.changed.store(true, Ordering::Release);
    }

    /// Has the log make the copies that it could not make before.
    pub fn ask_for_copies(&self) {
        self.changed.store(true, Ordering::Release);
    }

    /// Whether a disk was added or retired since this was asked last.
    pub fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) && self.changed.swap(false, Ordering::AcqRel)
    }

    /// Keeps nothing new on a disk, and names it as a member no more. Says whether that is new: then the log begins
    /// another file, which is not to be had again and again.
    pub fn retire(&self, index: usize) -> bool {
        let is_new = !self.get(index).retired.swap(true, Ordering::AcqRel);
        if is_new {
            self.changed.store(true, Ordering::Release);
        }
        is_new
    }

    /// Lets go of a disk that was retired, so that it can be closed.
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

    /// Those that stay.
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

    /// Whether anything may be read from it and written to it, be it that it leaves.
    pub fn is_usable(&self, index: usize) -> bool {
        !self.get(index).failed.load(Ordering::Acquire)
    }

    /// From now on nothing is written to it but how the log goes on without it; a restart tries it again.
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

    /// The log goes on without a disk that does not answer, until [`Self::note_answer`] was called as often as this.
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

    /// A disk that was late has answered.
    pub fn note_answer(&self, index: usize, now: Duration) {
        let member = self.get(index);
        let mut late = member.late.lock();
        // Another handle may have taken the place of the one that was late.
        late.open_count = late.open_count.saturating_sub(1);
        late.rested_at = now.saturating_add(late.rest());
    }

    /// Whether the log goes on without some disk because that is late.
    pub fn is_any_late(&self) -> bool {
        self.any_late.load(Ordering::Acquire)
    }

    /// Whether some of them could have the log again.
    pub fn has_rested(&self, now: Duration) -> bool {
        let members = self.members.read();
        let mut late = members.iter().map(|member| member.late.lock());
        late.any(|late| late.is_late && late.is_rested(now))
    }

    /// Has the log go back to disks that were late and have rested, which begins another file.
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

    /// Disks that the log can be written to. Where all that work are late, they are waited for.
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

    /// Whether a copy of the log that is there goes on.
    pub fn takes_log(&self, index: usize) -> bool {
        self.is_healthy(index) && !self.is_late(index)
    }

    /// From now on no copies are put on them, whoever is still about to.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether copies may be put on a disk, or taken away there; on one that leaves, until it is let go.
    pub fn takes_copies(&self, index: usize) -> bool {
        self.may_be_needed(index) && !self.ended.load(Ordering::Acquire)
    }

    /// Whether a disk that works may have the only copy of something: also one that leaves, until it is let go.
    pub fn may_be_needed(&self, index: usize) -> bool {
        self.is_usable(index) && !self.is_released(index)
    }

    /// From now on nothing is written to any of them.
    pub fn give_all_up(&self) {
        self.given_up.store(true, Ordering::Release);
        for member in self.members.read().iter() {
            member.failed.store(true, Ordering::Release);
        }
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// In the order in which they are chosen.
    pub fn healthy(&self) -> Vec<usize> {
        let members = self.members.read();
        let healthy = members.iter().enumerate();
        let healthy = healthy.filter(|(_, member)| member.is_healthy());
        let (first, others): (Vec<_>, Vec<_>) = healthy.partition(|(_, member)| member.is_first);
        let all = first.into_iter().chain(others);
        all.map(|(index, _)| index).collect()
    }

    /// Whether log and state are put on a disk before all others.
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

/// In the place of a disk that left: its index stays taken.
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
