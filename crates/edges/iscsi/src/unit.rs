//! A logical unit: a LUN as all sessions share it.
//!
//! Owns: reservations, unit attentions, tasks under way, counters. Must not know: connections, PDUs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_codec_scsi::{Code, ModeState, Threshold, TokenResult, code};
use cairn_qos::{Client, Part};
use cairn_san::{Lun, San, SanError};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::execute::{THRESHOLD_SET_BYTES, threshold_sets};
use crate::reservation::{Effects, Reservations};
use crate::target::PORT_GROUP;

/// Stands before the session in the name of a nexus.
const SESSION: &str = ",i,0x";
/// Stands before our port in the name of a nexus, and in no initiator's.
const TARGET_PORT: &str = ",t,0x";
/// Attentions that wait for one nexus; it has seen none of so many, and misses nothing by fewer.
const ATTENTION_COUNT_MAX: usize = 8;
/// How often it is looked how much space there is yet, where somebody wants to be told.
const SPACE_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Copies by token of one nexus whose results are kept, those under way included.
const TOKEN_COPIES_MAX: usize = 32;

/// An initiator's port together with ours: the initiator's name and session, and the target port group, which has one port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Nexus(Arc<str>);

impl From<String> for Nexus {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Nexus> for String {
    fn from(nexus: Nexus) -> Self {
        nexus.as_str().to_owned()
    }
}

impl Nexus {
    pub fn new(initiator: &str, isid: [u8; 6], group: u16) -> Self {
        let digits: String = isid.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{initiator}{SESSION}{digits}{TARGET_PORT}{group:04x}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the initiator's port (RFC 7143, section 4.2.7.1).
    pub fn initiator_port(&self) -> &str {
        let parts = self.0.rsplit_once(TARGET_PORT);
        parts.map_or(&self.0, |(initiator, _)| initiator)
    }

    /// The initiator's name alone.
    pub fn initiator(&self) -> &str {
        let port = self.initiator_port();
        port.rsplit_once(SESSION).map_or(port, |(name, _)| name)
    }

    /// The relative identifier of ours.
    pub fn target_port(&self) -> u16 {
        let parts = self.0.rsplit_once(TARGET_PORT);
        let port = parts.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        port.unwrap_or(PORT_GROUP)
    }
}

impl std::fmt::Display for Nexus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Default)]
struct OfNexus {
    attentions: VecDeque<Code>,
    /// Of its last EXTENDED COPY: list, whether it went well, segments, bytes.
    copy: Option<(u8, bool, u16, u64)>,
    /// Of its last copies by token, by the numbers that it gave them.
    token_copies: VecDeque<(u32, TokenResult)>,
}

struct Running {
    nexus: Nexus,
    aborted: Arc<std::sync::atomic::AtomicBool>,
    ended: watch::Receiver<()>,
}

#[derive(Default)]
struct State {
    nexuses: BTreeMap<Nexus, OfNexus>,
    reservations: Reservations,
    software_protected: bool,
    descriptor_sense: bool,
    /// What an initiator set in place of the administrator's threshold: whether any is told, and this one.
    threshold: Option<(bool, Threshold)>,
    /// The threshold was reached and told, and there is no more space since.
    is_below: bool,
    /// When it was looked last how much space there is, on the monotonic clock.
    space_looked: Option<Duration>,
    tasks: BTreeMap<u64, Running>,
    task_next: u64,
}

/// Upper bounds of durations, in powers of two of the first: 8 us to 8 s. What took longer is in none.
pub const DURATION_BOUNDS: usize = 21;
pub const DURATION_MIN_MICROS: u64 = 8;

/// How long commands took from when their data was there to their answer.
#[derive(Default)]
pub struct Durations {
    counts: [AtomicU64; DURATION_BOUNDS],
    over: AtomicU64,
    micros: AtomicU64,
}

impl Durations {
    pub fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let steps = micros
            .div_ceil(DURATION_MIN_MICROS)
            .max(1)
            .next_power_of_two();
        let count = self
            .counts
            .get(steps.ilog2() as usize)
            .unwrap_or(&self.over);
        count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// How many took at most as long as each bound, in seconds; how many there are, and the seconds of all.
    pub fn cumulative(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut sum = 0;
        let mut bound = DURATION_MIN_MICROS as f64 / 1e6;
        let mut all = Vec::with_capacity(DURATION_BOUNDS);
        for count in &self.counts {
            sum += count.load(Ordering::Relaxed);
            all.push((bound, sum));
            bound *= 2.0;
        }
        let total = sum + self.over.load(Ordering::Relaxed);
        (all, total, self.micros.load(Ordering::Relaxed) as f64 / 1e6)
    }
}

/// What a logical unit did, for metrics.
#[derive(Default)]
pub struct Counters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub other: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub errors: AtomicU64,
    pub read_durations: Durations,
    pub write_durations: Durations,
}

pub struct Unit {
    pub san: Arc<San>,
    lun: RwLock<Arc<Lun>>,
    state: Mutex<State>,
    /// Writers share it; who reads, decides and writes has it alone.
    pub order: tokio::sync::RwLock<()>,
    /// Reservations outlive this unit whether or not the initiator asked for that.
    keeps_all: bool,
    /// Reservations are written down one change after the other.
    keeping: tokio::sync::Mutex<()>,
    /// Bytes that the volume takes in all, when that was looked at last.
    room_bytes: AtomicU64,
    pub counters: Counters,
}

/// One task under way; it has ended when this is dropped.
pub struct TaskGuard {
    unit: Arc<Unit>,
    id: u64,
    aborted: Arc<std::sync::atomic::AtomicBool>,
    ended: watch::Sender<()>,
}

/// A task, as who may abort it sees it.
pub struct TaskHandle {
    aborted: Arc<std::sync::atomic::AtomicBool>,
    ended: watch::Receiver<()>,
}

impl TaskHandle {
    /// Nobody waits for its answer, nor for its end.
    pub fn cancel(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    pub async fn abort(mut self) {
        self.aborted.store(true, Ordering::Release);
        while self.ended.changed().await.is_ok() {}
    }
}

impl TaskGuard {
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Has it end without an answer; closed when it has ended.
    pub fn handle(&self) -> TaskHandle {
        TaskHandle {
            aborted: Arc::clone(&self.aborted),
            ended: self.ended.subscribe(),
        }
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.unit.state.lock().tasks.remove(&self.id);
    }
}

impl Unit {
    /// A client as one who asks for this unit.
    pub fn client(&self, client: Client) -> Client {
        client.of(Part::lun(&self.lun().name))
    }

    /// Takes up the reservations that were kept.
    pub async fn open(san: Arc<San>, lun: Lun, keeps_all: bool) -> Result<Arc<Self>, SanError> {
        let kept = san.reservations(lun.ino).await?;
        let reservations = match kept {
            None => Reservations::default(),
            Some(kept) => serde_json::from_slice(&kept).map_err(|error| {
                SanError::Damaged(
                    format!("reservations of LUN {}", lun.name),
                    error.to_string(),
                )
            })?,
        };
        let state = State {
            reservations,
            ..State::default()
        };
        let room_bytes = san.fs().space().await?.total_bytes;
        Ok(Arc::new(Self {
            san,
            lun: RwLock::new(Arc::new(lun)),
            state: Mutex::new(state),
            order: tokio::sync::RwLock::default(),
            keeps_all,
            keeping: tokio::sync::Mutex::default(),
            room_bytes: AtomicU64::new(room_bytes),
            counters: Counters::default(),
        }))
    }

    pub fn lun(&self) -> Arc<Lun> {
        Arc::clone(&self.lun.read())
    }

    /// Follows a change by the administrator, and tells initiators.
    pub fn changed(&self, lun: Lun) {
        let before = std::mem::replace(&mut *self.lun.write(), Arc::new(lun.clone()));
        if before.size_bytes != lun.size_bytes {
            self.attention_of_all(None, code::CAPACITY_CHANGED);
        }
        let has_other_threshold = before.soft_threshold_percent != lun.soft_threshold_percent;
        if has_other_threshold {
            let mut state = self.state.lock();
            (state.threshold, state.is_below) = (None, false);
        }
        if before.write_cache != lun.write_cache
            || before.read_only != lun.read_only
            || has_other_threshold
        {
            self.attention_of_all(None, code::MODE_CHANGED);
        }
    }

    pub fn mode(&self) -> ModeState {
        let lun = self.lun();
        let percent = u64::from(lun.soft_threshold_percent);
        let room_sets = self.room_bytes.load(Ordering::Relaxed) / THRESHOLD_SET_BYTES;
        let sets = room_sets.saturating_mul(percent) / 100;
        let threshold_default = Threshold {
            is_enabled: percent > 0,
            free_sets: u32::try_from(sets).unwrap_or(u32::MAX),
        };
        let state = self.state.lock();
        let of_lun = (threshold_default.is_enabled, threshold_default);
        let (tells_thresholds, threshold) = state.threshold.unwrap_or(of_lun);
        ModeState {
            tells_thresholds,
            threshold,
            threshold_default,
            write_cache: lun.write_cache,
            software_protected: state.software_protected,
            read_only: lun.read_only,
            descriptor_sense: state.descriptor_sense,
            block_count: lun.block_count(),
            block_len_bytes: lun.block_len_bytes,
        }
    }

    pub fn set_mode(&self, nexus: &Nexus, mode: &ModeState) {
        let before = self.mode();
        if before == *mode {
            return;
        }
        {
            let mut state = self.state.lock();
            state.software_protected = mode.software_protected;
            state.descriptor_sense = mode.descriptor_sense;
            let asked = (mode.tells_thresholds, mode.threshold);
            if (before.tells_thresholds, before.threshold) != asked {
                state.threshold = Some(asked);
                // It is told of once again, and looked at with the next command.
                (state.is_below, state.space_looked) = (false, None);
            }
        }
        self.attention_of_all(Some(nexus), code::MODE_CHANGED);
    }

    /// Looks how much space there is, once in a while, and tells all initiators when that has come down to the threshold.
    /// They are told again after there was more.
    pub async fn watch_space(&self) {
        let mode = self.mode();
        if !mode.tells_thresholds || !mode.threshold.is_enabled {
            return;
        }
        let now = self.san.env().clock.monotonic();
        {
            let mut state = self.state.lock();
            let is_fresh = |at: Duration| now.saturating_sub(at) < SPACE_LOOK_INTERVAL;
            if state.space_looked.is_some_and(is_fresh) {
                return;
            }
            state.space_looked = Some(now);
        }
        // Whose space cannot be told has not come down.
        let Ok(space) = self.san.fs().space().await else {
            return;
        };
        self.room_bytes.store(space.total_bytes, Ordering::Relaxed);
        let is_below = threshold_sets(space.free_bytes) <= self.mode().threshold.free_sets;
        let was_below = std::mem::replace(&mut self.state.lock().is_below, is_below);
        if is_below && !was_below {
            self.attention_of_all(None, code::SOFT_THRESHOLD_REACHED);
        }
    }

    pub fn has_descriptor_sense(&self) -> bool {
        self.state.lock().descriptor_sense
    }

    /// A session begins to use it.
    pub fn nexus_begins(&self, nexus: &Nexus) {
        let mut state = self.state.lock();
        let of = state.nexuses.entry(nexus.clone()).or_default();
        of.attentions.clear();
        of.attentions.push_back(code::POWER_ON);
    }

    /// A session uses it no more.
    pub fn nexus_ends(&self, nexus: &Nexus) {
        let mut state = self.state.lock();
        state.nexuses.remove(nexus);
        state.reservations.nexus_lost(nexus);
    }

    /// The next attention, which the nexus has then been told of.
    pub fn take_attention(&self, nexus: &Nexus) -> Option<Code> {
        self.state
            .lock()
            .nexuses
            .get_mut(nexus)?
            .attentions
            .pop_front()
    }

    /// REPORT LUNS tells what this attention would.
    pub fn forget_attention(&self, nexus: &Nexus, attention: Code) {
        if let Some(of) = self.state.lock().nexuses.get_mut(nexus) {
            of.attentions.retain(|waiting| *waiting != attention);
        }
    }

    pub fn attention(&self, nexus: &Nexus, attention: Code) {
        if let Some(of) = self.state.lock().nexuses.get_mut(nexus) {
            push(of, attention);
        }
    }

    pub fn attention_of_all(&self, but: Option<&Nexus>, attention: Code) {
        for (nexus, of) in &mut self.state.lock().nexuses {
            if Some(nexus) != but {
                push(of, attention);
            }
        }
    }

    pub fn with_reservations<T>(&self, look: impl FnOnce(&mut Reservations) -> T) -> T {
        look(&mut self.state.lock().reservations)
    }

    /// A change of persistent reservations: durable, where it is to be, before anybody sees it.
    pub async fn change_reservations<E: From<SanError>>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Reservations) -> Result<Effects, E>,
    ) -> Result<Effects, E> {
        let _keeping = self.keeping.lock().await;
        let before = self.state.lock().reservations.clone();
        let mut after = before.clone();
        let effects = change(&mut after)?;
        let is_kept = |reservations: &Reservations| {
            reservations.persists() || (self.keeps_all && !reservations.is_empty())
        };
        if is_kept(&before) || is_kept(&after) {
            let kept = match is_kept(&after) {
                true => serde_json::to_vec(&after).ok(),
                false => None,
            };
            self.san
                .keep_reservations(self.lun().ino, kept.as_deref())
                .await?;
        }
        self.state.lock().reservations = after;
        for (nexus, attention) in &effects.attentions {
            self.attention(nexus, *attention);
        }
        Ok(effects)
    }

    pub fn begin_task(self: &Arc<Self>, nexus: &Nexus) -> TaskGuard {
        let (sender, ended) = watch::channel(());
        let aborted: Arc<std::sync::atomic::AtomicBool> = Arc::default();
        let mut state = self.state.lock();
        let id = state.task_next;
        state.task_next += 1;
        let running = Running {
            nexus: nexus.clone(),
            aborted: Arc::clone(&aborted),
            ended,
        };
        state.tasks.insert(id, running);
        TaskGuard {
            unit: Arc::clone(self),
            id,
            aborted,
            ended: sender,
        }
    }

    pub fn task_count(&self) -> usize {
        self.state.lock().tasks.len()
    }

    /// Aborts the tasks of those nexuses, but one of them, and waits until they have ended.
    pub async fn abort(&self, of: impl Fn(&Nexus) -> bool, but: Option<&TaskGuard>) {
        let waited: Vec<watch::Receiver<()>> = {
            let state = self.state.lock();
            let chosen = state
                .tasks
                .iter()
                .filter(|(id, task)| of(&task.nexus) && but.is_none_or(|but| but.id != **id));
            chosen
                .map(|(_, task)| {
                    task.aborted.store(true, Ordering::Release);
                    task.ended.clone()
                })
                .collect()
        };
        for mut ended in waited {
            // The sender goes with the task.
            while ended.changed().await.is_ok() {}
        }
    }

    /// LOGICAL UNIT RESET, and what resets of the target do to it.
    pub async fn reset(&self, attention: Code) {
        {
            let mut state = self.state.lock();
            state.reservations.reset();
            state.software_protected = false;
            state.descriptor_sense = false;
            state.threshold = None;
        }
        self.abort(|_| true, None).await;
        self.attention_of_all(None, attention);
    }

    pub fn note_copy(&self, nexus: &Nexus, copy: (u8, bool, u16, u64)) {
        if let Some(of) = self.state.lock().nexuses.get_mut(nexus) {
            of.copy = Some(copy);
        }
    }

    /// A copy by token begins; false if the nexus has one under way with this number, or too many.
    pub fn token_copy_begins(&self, nexus: &Nexus, list: u32, begins: TokenResult) -> bool {
        let mut state = self.state.lock();
        let Some(of) = state.nexuses.get_mut(nexus) else {
            return true;
        };
        let copies = &mut of.token_copies;
        if copies
            .iter()
            .any(|(number, copy)| *number == list && !copy.is_done)
        {
            return false;
        }
        copies.retain(|(number, _)| *number != list);
        if copies.len() >= TOKEN_COPIES_MAX {
            // The oldest that is over.
            let Some(index) = copies.iter().position(|(_, copy)| copy.is_done) else {
                return false;
            };
            copies.remove(index);
        }
        copies.push_back((list, begins));
        true
    }

    pub fn token_copy_ends(&self, nexus: &Nexus, list: u32, ends: TokenResult) {
        if let Some(of) = self.state.lock().nexuses.get_mut(nexus)
            && let Some((_, copy)) = of
                .token_copies
                .iter_mut()
                .find(|(number, _)| *number == list)
        {
            *copy = ends;
        }
    }

    pub fn token_copy(&self, nexus: &Nexus, list: u32) -> Option<TokenResult> {
        let state = self.state.lock();
        let copies = &state.nexuses.get(nexus)?.token_copies;
        let found = copies.iter().find(|(number, _)| *number == list);
        found.map(|(_, copy)| copy.clone())
    }

    pub fn last_copy(&self, nexus: &Nexus) -> Option<(u8, bool, u16, u64)> {
        self.state.lock().nexuses.get(nexus)?.copy
    }
}

fn push(of: &mut OfNexus, attention: Code) {
    if !of.attentions.contains(&attention) {
        if of.attentions.len() >= ATTENTION_COUNT_MAX {
            of.attentions.pop_front();
        }
        of.attentions.push_back(attention);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bound_that_it_does_not_exceed() {
        let durations = Durations::default();
        for micros in [0, 8, 9, 16, 17, 8 << 20, (8 << 20) + 1] {
            durations.note(Duration::from_micros(micros));
        }
        let (bounds, total, seconds) = durations.cumulative();
        let counts: Vec<u64> = bounds.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts[..4], [2, 4, 5, 5]);
        assert_eq!(
            (counts.len(), counts[DURATION_BOUNDS - 1], total),
            (DURATION_BOUNDS, 6, 7)
        );
        assert!((bounds[20].0 - 8.388608).abs() < 1e-9 && seconds > 16.7);
    }

    #[test]
    fn a_nexus_has_both_ports() {
        let nexus = Nexus::new("iqn.a", [0x80, 1, 2, 3, 4, 5], 0x1f);
        assert_eq!(nexus.as_str(), "iqn.a,i,0x800102030405,t,0x001f");
        assert_eq!(
            (nexus.initiator_port(), nexus.target_port()),
            ("iqn.a,i,0x800102030405", 0x1f)
        );
        assert_eq!(nexus.initiator(), "iqn.a");
        assert_ne!(nexus, Nexus::new("iqn.a", [0x80, 1, 2, 3, 4, 5], 1));
    }
}
