//! Clients: their requests, and their checks of the answers.
//!
//! Owns: the choice of operations, the moment at which the model follows, which errors are excusable. Must not know:
//! when the power goes.
//!
//! An operation takes effect in one poll of its future: when the log got a batch (changes of names and attributes), or
//! when the file's change time moved (writes). The model follows in that poll, so its order is the engine's, with any
//! number of clients.

mod luns;
mod objects;
mod tiny;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_fs::{CreateMode, Fs, FsError, SetAttr, Stability, XattrMode};
use cairn_meta::Key;
use cairn_testkit::Rng;
use parking_lot::Mutex;

use crate::model::{self, FILE_LEN_BYTES_MAX, Model, Tag, WORD_BYTES};
use crate::object_store::LifeStore;
use crate::scenario::{Dedupes, Shape, Trouble};
use crate::serving::Serving;
use crate::snapshots::Snapshots;
use crate::tree::{Change, Kind, NodeId};
use crate::world::{ROOT_INO, WHO};

/// Names that clients use in each directory; few, so that clients collide.
const NAME_COUNT: u64 = 6;
const DIR_COUNT_MAX: usize = 5;
/// One in this many operations is followed by a hole.
const HOLE_EVERY: u64 = 8;
/// One in this many is followed by a write that depends on present contents, if clients do that.
const COMPARE_EVERY: u64 = 4;
/// One in this many is followed by putting an object, if clients do that.
const PUT_EVERY: u64 = 6;

/// State that the clients of one life share with its driver.
pub struct Life {
    pub model: Arc<Mutex<Model>>,
    pub(crate) snapshots: Arc<Mutex<Snapshots>>,
    pub(crate) serving: Serving,
    pub shape: Shape,
    pub failure: Mutex<Option<String>>,
    pub ops_begun: AtomicU32,
    pub ops_refused: AtomicU64,
    /// Changes that took effect and were answered with "come again later".
    pub changes_refused: AtomicU64,
    pub clients_left: AtomicU32,
    pub waiting: Mutex<Option<Waker>>,
    /// Tasks that wait until clients have begun a number of operations.
    pub op_waiting: Mutex<Option<Waker>>,
    /// The object store that cold data goes to.
    pub(crate) store: Option<Arc<LifeStore>>,
    /// In a cluster: the owner that answers.
    pub term: Option<Arc<dyn Term>>,
}

/// One owner of the volume, as its clients see it.
pub trait Term: Send + Sync + 'static {
    /// Whether clients may get answers from lookups or from memory; checked when the answer is ready.
    fn may_answer(&self) -> bool;
    /// Notes that a change, a stable write or a commit was answered as done, and the model has it.
    fn answered(&self);
    /// Whether operations may not begin any more.
    fn is_over(&self) -> bool;
}

impl Life {
    pub fn fail(&self, what: impl Into<String>) {
        self.failure.lock().get_or_insert(what.into());
    }

    pub fn has_failed(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// Waits for a random time, `longest` at most. Returns whether nothing has failed by then.
    pub(crate) async fn pause(&self, env: &Env, rng: &mut Rng, longest: Duration) -> bool {
        let pause = rng.below(longest.as_micros() as u64);
        env.clock.sleep(Duration::from_micros(pause)).await;
        !self.has_failed()
    }

    /// Resolves when all clients are done.
    pub async fn clients_done(&self) {
        poll_fn(|context| {
            if self.clients_left.load(Ordering::Relaxed) == 0 {
                return Poll::Ready(());
            }
            *self.waiting.lock() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Resolves when clients have begun `wanted` operations, or are done.
    pub async fn ops_begun(&self, wanted: u32) {
        poll_fn(|context| {
            let are_done = self.clients_left.load(Ordering::Relaxed) == 0;
            if are_done || self.ops_begun.load(Ordering::Relaxed) >= wanted {
                return Poll::Ready(());
            }
            *self.op_waiting.lock() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn op_begins(&self) {
        self.ops_begun.fetch_add(1, Ordering::Relaxed);
        if let Some(waker) = self.op_waiting.lock().take() {
            waker.wake();
        }
    }

    /// Whether the volume is being reopened: meanwhile it answers "come again later".
    pub(crate) fn is_reopening(&self) -> bool {
        self.serving.is_reopening()
    }

    /// Whether an error is allowed for an operation that took effect and then failed, or that was refused without a
    /// reason in the model.
    pub(crate) fn is_excused(&self, fs: &Fs, error: &FsError, took_effect: bool) -> bool {
        let shape = &self.shape;
        let is_small = shape.disk_mib < 512;
        match error {
            FsError::NoSpace | FsError::QuotaExceeded => {
                (shape.trouble != Trouble::Crashes || is_small) && !took_effect
            }
            // Directories with quotas come and go.
            FsError::CrossTree => shape.sets_quotas && !took_effect,
            FsError::Fenced if self.is_reopening() => {
                self.serving.come_later();
                true
            }
            FsError::Io(text) | FsError::Unreachable(text) if self.is_tier_away(text) => true,
            FsError::Io(_) | FsError::Unreachable(_) | FsError::Fenced => match shape.trouble {
                Trouble::Crashes | Trouble::Full => false,
                Trouble::Errors | Trouble::Beyond => true,
                // The disk of the metadata's state may be the bad one; then nothing is served.
                Trouble::BadDisks => has_stopped(fs),
            },
            _ => false,
        }
    }

    /// Whether this is an error of an object store that may have errors now.
    pub(crate) fn is_tier_away(&self, text: &str) -> bool {
        self.may_tier_fail() && text.contains("tier")
    }

    pub(crate) fn may_tier_fail(&self) -> bool {
        let store = self.store.as_ref();
        store.is_some_and(|seen| seen.store.is_armed())
    }

    fn may_answer(&self) -> bool {
        self.term.as_ref().is_none_or(|term| term.may_answer())
    }

    fn answered(&self) {
        if let Some(term) = &self.term {
            term.answered();
        }
    }

    fn is_over(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.is_over())
    }

    pub(crate) fn client_is_done(&self) {
        self.clients_left.fetch_sub(1, Ordering::Relaxed);
        for waiting in [&self.waiting, &self.op_waiting] {
            if let Some(waker) = waiting.lock().take() {
                waker.wake();
            }
        }
    }
}

/// One client.
pub struct Client {
    pub life: Arc<Life>,
    /// The opening that the current operation uses.
    pub fs: Fs,
    pub env: Env,
    pub rng: Rng,
    /// Random numbers for additions, so that seeds keep their other behaviour.
    pub more: Rng,
}

/// Calls `on_effect` in the poll in which `mark` moves for the first time.
async fn observe<T>(
    future: impl Future<Output = T>,
    mark: impl Fn() -> u128,
    mut on_effect: impl FnMut(),
) -> T {
    let mut future = pin!(future);
    let mut was_seen = false;
    poll_fn(|context| {
        let before = mark();
        let polled = future.as_mut().poll(context);
        if !was_seen && mark() != before {
            was_seen = true;
            on_effect();
        }
        polled
    })
    .await
}

impl Client {
    pub async fn run(mut self, op_count: u32, pause_ms_max: u64) {
        for _ in 0..op_count {
            let is_over = self.life.has_failed() || self.life.is_over();
            if is_over || (self.has_stopped() && !self.is_reopening()) {
                break;
            }
            if pause_ms_max > 0 {
                let pause = self.rng.below(pause_ms_max * 1000);
                self.env.clock.sleep(Duration::from_micros(pause)).await;
            }
            self.life.op_begins();
            self.fs = self.life.serving.begin().await;
            self.step().await;
            if self.more.below(HOLE_EVERY) == 0 {
                self.punch().await;
            }
            if self.life.shape.compares && self.more.below(COMPARE_EVERY) == 0 {
                self.compare_and_write().await;
            }
            if self.life.shape.has_tiny_files && self.more.coin() {
                self.change_tiny_file().await;
            }
            if self.life.shape.puts && self.more.below(PUT_EVERY) == 0 {
                self.put().await;
            }
            self.life.serving.end();
        }
        self.life.client_is_done();
    }

    async fn step(&mut self) {
        let is_data = self.life.shape.is_data_heavy && self.rng.coin();
        let is_overwriting = self.life.shape.space.is_overwriting && self.rng.coin();
        match self.rng.below(100) {
            0..60 if is_overwriting => self.write().await,
            60..80 if is_overwriting => self.read().await,
            80..90 if is_overwriting => self.commit().await,
            0..60 if is_data => self.write().await,
            60..90 if is_data => self.commit().await,
            0..10 => self.create().await,
            10..14 => self.make_dir().await,
            14..16 => self.make_symlink().await,
            16..41 => self.write().await,
            41..47 => self.cut().await,
            47..57 => self.read().await,
            57..64 => self.commit().await,
            64..70 => self.remove().await,
            70..72 => self.remove_dir().await,
            72..80 => self.rename().await,
            80..84 => self.link().await,
            84..86 => self.chmod().await,
            86..89 => self.set_xattr().await,
            89..90 => self.remove_xattr().await,
            90..95 => self.list().await,
            _ => self.look().await,
        }
    }

    fn pick(&mut self, wanted: impl Fn(&Kind) -> bool) -> Option<(NodeId, Ino)> {
        let model = self.life.model.lock();
        let known = model.known(wanted);
        let node = *known.get(self.rng.below(known.len() as u64) as usize)?;
        Some((node, Ino(model.ino(node)?)))
    }

    fn pick_dir(&mut self) -> Option<(NodeId, Ino)> {
        self.pick(|kind| matches!(kind, Kind::Dir(_)))
    }

    /// A directory, picked by the random numbers for additions.
    fn pick_any_dir(&mut self) -> Option<(NodeId, Ino)> {
        let model = self.life.model.lock();
        let known = model.known(|kind| matches!(kind, Kind::Dir(_)));
        let node = *known.get(self.more.below(known.len() as u64) as usize)?;
        Some((node, Ino(model.ino(node)?)))
    }

    fn pick_file(&mut self) -> Option<(NodeId, Ino)> {
        if self.life.shape.is_data_heavy && self.rng.below(4) != 0 {
            let model = self.life.model.lock();
            let node = *model.known(|kind| matches!(kind, Kind::File)).first()?;
            return Some((node, Ino(model.ino(node)?)));
        }
        self.pick(|kind| matches!(kind, Kind::File))
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.below(NAME_COUNT)).into_bytes()
    }

    fn has_stopped(&self) -> bool {
        has_stopped(&self.fs)
    }

    fn is_reopening(&self) -> bool {
        self.life.is_reopening()
    }

    fn is_excused(&self, error: &FsError, took_effect: bool) -> bool {
        self.life.is_excused(&self.fs, error, took_effect)
    }

    /// Runs a change of names or attributes against the model.
    async fn change<T>(
        &mut self,
        change: Change,
        future: impl Future<Output = Result<T, FsError>>,
    ) -> Option<T> {
        let life = self.life.clone();
        let expected = life.model.lock().tree.expect(&change);
        let effect = Mutex::new(None);
        let fs = self.fs.clone();
        let result = observe(
            future,
            || u128::from(fs.meta().last_ticket().0.0),
            || match life.model.lock().apply(&change) {
                Ok(seq) => {
                    tracing::debug!(?change, seq, "takes effect");
                    *effect.lock() = Some(seq);
                }
                Err(error) => life.fail(format!("{change:?} took effect, want: {error}")),
            },
        )
        .await;
        let effect = effect.into_inner();
        tracing::debug!(?change, effect, error = ?result.as_ref().err(), "changed");
        match (expected, result) {
            (Ok(is_change), Ok(value)) => {
                match effect {
                    Some(seq) => {
                        life.model.lock().change_is_durable(seq);
                        life.answered();
                    }
                    None if is_change => life.fail(format!("{change:?} succeeded without effect")),
                    None => {}
                }
                return Some(value);
            }
            (Err(want), Err(error)) if want == error => {}
            (_, Err(error)) if self.is_excused(&error, effect.is_some()) => {
                life.ops_refused.fetch_add(1, Ordering::Relaxed);
                // A log that forgets its starts does not tell the outcome of a change.
                let is_told = error == FsError::Fenced && !life.shape.forgets_starts;
                if let Some(seq) = effect.filter(|_| is_told && self.is_reopening()) {
                    // The call is repeated, so the change must not have happened.
                    life.model.lock().change_is_refused(seq);
                    life.changes_refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            (expected, result) => {
                let result = result.map(|_| "success");
                life.fail(format!("{change:?}: {result:?}, want {expected:?}"));
            }
        }
        None
    }

    fn learn(&self, node: NodeId, ino: Ino) {
        if let Err(error) = self.life.model.lock().learn_ino(node, ino.0) {
            self.life.fail(error);
        }
    }

    async fn create(&mut self) {
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        let (name, mode) = (self.name(), 0o600 + self.rng.below(64) as u32);
        let node = self.life.model.lock().new_node();
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let fs = self.fs.clone();
        let future = fs.create(&WHO, ino, &name, CreateMode::Guarded(set));
        let change = Change::Create {
            dir,
            name: name.clone(),
            node,
            mode,
        };
        if let Some(made) = self.change(change, future).await {
            self.learn(node, made.attr.ino);
        }
    }

    async fn make_dir(&mut self) {
        let dir_count = self
            .life
            .model
            .lock()
            .known(|kind| matches!(kind, Kind::Dir(_)))
            .len();
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        if dir_count >= DIR_COUNT_MAX {
            return;
        }
        let name = self.name();
        let node = self.life.model.lock().new_node();
        let set = SetAttr {
            mode: Some(0o750),
            ..SetAttr::default()
        };
        let fs = self.fs.clone();
        let future = fs.make_dir(&WHO, ino, &name, set);
        let change = Change::MakeDir {
            dir,
            name: name.clone(),
            node,
            mode: 0o750,
        };
        if let Some(made) = self.change(change, future).await {
            self.learn(node, made.attr.ino);
        }
    }

    async fn make_symlink(&mut self) {
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        let name = self.name();
        let target = format!("to/{}", self.rng.below(1000)).into_bytes();
        let node = self.life.model.lock().new_node();
        let fs = self.fs.clone();
        let future = fs.make_symlink(&WHO, ino, &name, &target, SetAttr::default());
        let change = Change::Symlink {
            dir,
            name: name.clone(),
            node,
            target: target.clone(),
        };
        if let Some(made) = self.change(change, future).await {
            self.learn(node, made.attr.ino);
        }
    }

    async fn remove(&mut self) {
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        let name = self.name();
        let fs = self.fs.clone();
        let future = fs.remove(&WHO, ino, &name);
        self.change(
            Change::Remove {
                dir,
                name: name.clone(),
            },
            future,
        )
        .await;
    }

    async fn remove_dir(&mut self) {
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        let name = self.name();
        let fs = self.fs.clone();
        let future = fs.remove_dir(&WHO, ino, &name);
        self.change(
            Change::RemoveDir {
                dir,
                name: name.clone(),
            },
            future,
        )
        .await;
    }

    async fn rename(&mut self) {
        let (Some((from, from_ino)), Some((to, to_ino))) = (self.pick_dir(), self.pick_dir())
        else {
            return;
        };
        let (from_name, to_name) = (self.name(), self.name());
        let fs = self.fs.clone();
        let future = fs.rename(&WHO, from_ino, &from_name, to_ino, &to_name);
        let change = Change::Rename {
            from,
            from_name: from_name.clone(),
            to,
            to_name: to_name.clone(),
        };
        self.change(change, future).await;
    }

    async fn link(&mut self) {
        let (Some((node, ino)), Some((dir, dir_ino))) = (self.pick(|_| true), self.pick_dir())
        else {
            return;
        };
        let name = self.name();
        let fs = self.fs.clone();
        let future = fs.link(&WHO, ino, dir_ino, &name);
        self.change(
            Change::Link {
                node,
                dir,
                name: name.clone(),
            },
            future,
        )
        .await;
    }

    async fn chmod(&mut self) {
        let Some((node, ino)) = self.pick_file() else {
            return;
        };
        if self.life.shape.has_owners && self.more.coin() {
            return self.chown(node, ino).await;
        }
        let mode = self.rng.below(0o1000) as u32;
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let fs = self.fs.clone();
        let future = fs.set_attr(&WHO, ino, set, None);
        self.change(Change::Chmod { node, mode }, future).await;
    }

    async fn chown(&mut self, node: NodeId, ino: Ino) {
        let mut id = || (self.more.below(3) != 0).then(|| self.more.below(5) as u32);
        let (uid, gid) = (id(), id());
        if uid.is_none() && gid.is_none() {
            return;
        }
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        let fs = self.fs.clone();
        let future = fs.set_attr(&WHO, ino, set, None);
        self.change(Change::Chown { node, uid, gid }, future).await;
    }

    async fn cut(&mut self) {
        let Some((node, ino)) = self.pick_file() else {
            return;
        };
        let now = self.life.model.lock().size_bytes(node);
        let size_bytes = match self.rng.below(4) {
            0 => 0,
            1 => now / 2,
            2 => self.rng.below(now + 1),
            _ => (now + self.rng.below(40_000)).min(FILE_LEN_BYTES_MAX),
        };
        self.cut_to(node, ino, size_bytes - size_bytes % WORD_BYTES)
            .await;
    }

    async fn cut_to(&mut self, node: NodeId, ino: Ino, size_bytes: u64) {
        let set = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        let fs = self.fs.clone();
        let future = fs.set_attr(&WHO, ino, set, None);
        self.change(Change::Cut { node, size_bytes }, future).await;
    }

    async fn set_xattr(&mut self) {
        let Some((node, ino)) = self.pick(|_| true) else {
            return;
        };
        let name = format!("user.x{}", self.rng.below(3)).into_bytes();
        let len = if self.rng.below(8) == 0 { 20_000 } else { 40 };
        let len = self.rng.below(len) as usize;
        let value = self.rng.bytes(len);
        let fs = self.fs.clone();
        let future = fs.set_xattr(&WHO, ino, &name, &value, XattrMode::Any);
        let change = Change::SetXattr {
            node,
            name: name.clone(),
            value: value.clone(),
        };
        self.change(change, future).await;
    }

    async fn remove_xattr(&mut self) {
        let Some((node, ino)) = self.pick(|_| true) else {
            return;
        };
        let name = format!("user.x{}", self.rng.below(3)).into_bytes();
        let fs = self.fs.clone();
        let future = fs.remove_xattr(&WHO, ino, &name);
        self.change(
            Change::RemoveXattr {
                node,
                name: name.clone(),
            },
            future,
        )
        .await;
    }

    async fn write(&mut self) {
        let Some((node, ino)) = self.pick_file() else {
            return;
        };
        let stability = if self.rng.below(3) == 0 {
            Stability::Stable
        } else {
            Stability::Unstable
        };
        let (first, count, tag) = match self.repeats() {
            true => self.pick_block(node),
            false => {
                let (first, count) = self.pick_words(node);
                (first, count, self.life.model.lock().new_tag())
            }
        };
        self.write_words(node, ino, (first, count), tag, stability)
            .await;
    }

    async fn write_words(
        &mut self,
        node: NodeId,
        ino: Ino,
        (first, count): (u64, u64),
        tag: Tag,
        stability: Stability,
    ) {
        let data = Bytes::from(model::content(tag, first, count));
        let len = data.len() as u32;
        let life = self.life.clone();
        let fs = self.fs.clone();
        let effect = Mutex::new(None);
        let result = observe(
            fs.write(&WHO, ino, first * WORD_BYTES, data, stability),
            || change_time(&fs, ino),
            || {
                let seq = life.model.lock().write(node, first, count, tag);
                tracing::debug!(node = node.0, first, count, tag, seq, "write takes effect");
                *effect.lock() = Some(seq);
            },
        )
        .await;
        let effect = effect.into_inner();
        let error = result.as_ref().err();
        tracing::debug!(node = node.0, %ino, first, count, tag, ?stability, effect, ?error, "written");
        match (result, effect) {
            (Ok(written), Some(seq)) => {
                if written.count_bytes != len {
                    life.fail(format!(
                        "a write of {len} bytes took {}",
                        written.count_bytes
                    ));
                }
                if stability == Stability::Stable && !written.stable {
                    life.fail("a stable write was answered as unstable");
                }
                if written.stable {
                    life.model.lock().write_is_durable(node, seq);
                    life.answered();
                }
            }
            (Ok(_), None) => life.fail("a write succeeded without effect"),
            (Err(error), effect) => {
                let is_gone = error == FsError::Stale && self.is_gone(node);
                // A write that took effect stays in memory if it cannot be made stable.
                let is_full = error == FsError::NoSpace && self.is_excused(&error, false);
                if is_gone || is_full || self.is_excused(&error, effect.is_some()) {
                    life.ops_refused.fetch_add(1, Ordering::Relaxed);
                } else {
                    life.fail(format!("a write to node {} failed: {error}", node.0));
                }
            }
        }
    }

    fn repeats(&mut self) -> bool {
        self.life.shape.dedupes != Dedupes::Off && self.more.coin()
    }

    /// Whole records that other files may have at this place, with equal bytes.
    fn pick_block(&mut self, node: NodeId) -> (u64, u64, Tag) {
        let record_bytes = match self.life.shape.small_records {
            true => 16 << 10,
            false => 128 << 10,
        };
        let record_words = record_bytes / WORD_BYTES;
        // Near the beginning, where files overlap.
        let first = self.more.below(3) * record_words;
        let count = (1 + self.more.below(3)) * record_words;
        let pick = self.more.below(1 << 16);
        let tag = self.life.model.lock().repeated_tag(node, pick);
        (first, count, tag)
    }

    /// The range of a write: mostly small and near existing data, sometimes large.
    fn pick_words(&mut self, node: NodeId) -> (u64, u64) {
        let words = self.life.model.lock().size_bytes(node) / WORD_BYTES;
        let words_max = FILE_LEN_BYTES_MAX / WORD_BYTES;
        let small = if self.life.shape.is_data_heavy { 4 } else { 16 };
        let count = match self.rng.below(small) {
            0 => 1 + self.rng.below(40_000),
            1 => 1 + self.rng.below(12_000),
            2..6 => 512 * (1 + self.rng.below(4)),
            _ => 1 + self.rng.below(700),
        };
        let first = match self.rng.below(4) {
            0 | 1 if self.life.shape.space.is_overwriting => self.rng.below(words + 1),
            0 => words,
            1 => words / 512 * 512,
            2 => self.rng.below(words + 1),
            _ => self.rng.below(words + 3000),
        };
        let first = first.min(words_max - 1);
        (first, count.min(words_max - first))
    }

    fn is_gone(&self, node: NodeId) -> bool {
        !self.life.model.lock().tree.nodes.contains_key(&node)
    }

    async fn commit(&mut self) {
        let Some((node, ino)) = self.pick_file() else {
            return;
        };
        let begun = self.life.model.lock().seq();
        tracing::debug!(node = node.0, begun, "commit begins");
        let committed = self.fs.commit(&WHO, ino, 0, 0).await;
        let error = committed.as_ref().err();
        tracing::debug!(node = node.0, %ino, begun, ?error, "committed");
        match committed {
            Ok(_) => {
                self.life.model.lock().committed(node, begun);
                self.life.answered();
            }
            Err(FsError::Stale) if self.is_gone(node) => {}
            Err(error) if self.is_excused(&error, false) => {
                self.life.ops_refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.life
                    .fail(format!("a commit of node {} failed: {error}", node.0));
            }
        }
    }

    async fn read(&mut self) {
        let Some((node, ino)) = self.pick_file() else {
            return;
        };
        let (offset, len, expected, begun) = {
            let model = self.life.model.lock();
            let size = model.size_bytes(node);
            let (offset, len) = match self.rng.below(4) {
                0 => (0, FILE_LEN_BYTES_MAX),
                1 => (self.rng.below(size + 8), 4096),
                2 => (self.rng.below(size + 8) / 4096 * 4096, 65_536),
                _ => (self.rng.below(size + 8), 8 + self.rng.below(4000)),
            };
            let (offset, len) = (offset - offset % WORD_BYTES, len - len % WORD_BYTES);
            (
                offset,
                len,
                model.expected_read(node, offset, len),
                model.seq(),
            )
        };
        let read = self.fs.read(&WHO, ino, offset, len as u32).await;
        if !self.life.may_answer() {
            return;
        }
        match read {
            Ok(_) if self.has_stopped() => {}
            Ok(read) => {
                let bytes = read.parts.concat();
                let model = self.life.model.lock();
                if let Err(error) = model.check_read(node, (offset, len), &bytes, &expected, begun)
                {
                    self.life.fail(error);
                }
            }
            Err(FsError::Stale) if self.is_gone(node) => {}
            Err(error) if self.is_excused(&error, false) => {
                self.life.ops_refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self
                .life
                .fail(format!("a read of node {} failed: {error}", node.0)),
        }
    }

    /// Lists a whole directory in one page.
    async fn list(&mut self) {
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        let want: Vec<Vec<u8>> = {
            let model = self.life.model.lock();
            let entries = model.tree.entries(dir);
            entries
                .map(|entries| entries.keys().cloned().collect())
                .unwrap_or_default()
        };
        let listed = self.fs.read_dir(&WHO, ino, 0, 1000, true).await;
        if !self.life.may_answer() {
            return;
        }
        match listed {
            Ok(page) => {
                let mut names: Vec<Vec<u8>> = page
                    .entries
                    .iter()
                    .skip(2)
                    .map(|entry| entry.name.to_vec())
                    .collect();
                names.sort_unstable();
                if names != want {
                    self.life
                        .fail(format!("a listing gave {names:?}, want {want:?}"));
                }
            }
            Err(error) if self.is_excused(&error, false) => {}
            Err(error) => self.life.fail(format!("a listing failed: {error}")),
        }
    }

    /// Looks up a name, or reads attributes.
    async fn look(&mut self) {
        let Some((dir, ino)) = self.pick_dir() else {
            return;
        };
        let name = self.name();
        let (want, want_ino, node) = {
            let model = self.life.model.lock();
            let node = model.tree.lookup(dir, &name);
            let found = node
                .clone()
                .ok()
                .and_then(|node| model.tree.nodes.get(&node).cloned());
            let ino = node.clone().ok().and_then(|node| model.ino(node));
            (found, ino, node)
        };
        let is_sure = node
            .clone()
            .is_ok_and(|node| self.life.model.lock().is_sure(node));
        let size = node
            .clone()
            .map(|node| self.life.model.lock().size_bytes(node));
        let looked_up = self.fs.lookup(&WHO, ino, &name).await;
        if !self.life.may_answer() {
            return;
        }
        match (looked_up, node) {
            (Ok((attr, _)), Ok(node)) => {
                let is_ino = want_ino.is_none_or(|want| want == attr.ino.0);
                let is_node = want.is_some_and(|want| {
                    want.nlink == attr.nlink
                        && want.mode == attr.mode
                        && (want.uid, want.gid) == (attr.uid, attr.gid)
                        && (want.kind != Kind::File || !is_sure || Ok(attr.size_bytes) == size)
                });
                if !is_ino || !is_node {
                    self.life
                        .fail(format!("node {} has attributes {attr:?}", node.0));
                }
            }
            (Err(error), Err(want)) if error == want => {}
            (Err(error), _) if self.is_excused(&error, false) => {}
            (got, want) => {
                self.life
                    .fail(format!("a lookup gave {got:?}, want {want:?}"));
            }
        }
    }
}

/// The metadata gave up: nothing is served until the next start, and memory contents are meaningless.
fn has_stopped(fs: &Fs) -> bool {
    fs.meta().live().get(&Key::inode(ROOT_INO)).is_err()
}

/// The change time of an inode now, as a number; 0 if it does not exist.
fn change_time(fs: &Fs, ino: Ino) -> u128 {
    match fs.attr_under_way(ino) {
        Ok(attr) => (attr.ctime.seconds as u64 as u128) << 32 | u128::from(attr.ctime.nanos),
        Err(_) => 0,
    }
}
