//! The successive owners of one volume, and whether the contents and answers of each are right.
//!
//! Owns: which opening of the volume is the newest, the model at its beginning, the judgement of its contents, its
//! clients, and the check of earlier owners' answers. Must not know: why the volume changed its owner, events at nodes,
//! other volumes.
//!
//! A new owner has the contents that a crash of the previous one may leave: all acknowledged changes, in order, each
//! one complete. The previous owner and its clients go on with their own model. Every change that it still acknowledges
//! must be in the contents that the new one found. From the moment on when another owner serves, it may not answer
//! lookups.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, Epoch};
use cairn_fs::Fs;
use cairn_meta::Key;
use cairn_testkit::Rng;
use parking_lot::Mutex;

use super::failure::FirstFailure;
use crate::check;
use crate::client::{self, Client};
use crate::model::{Model, Tag};
use crate::object_store::LifeStore;
use crate::scenario::Shape;
use crate::serving::Serving;
use crate::tree::FoundTree;
use crate::world::{ROOT_INO, read_everything};

/// Pause before unreadable data is read again, while too many nodes are away.
const READ_PAUSE: Duration = Duration::from_millis(700);
/// Longest pause between two reads of the root.
const GLANCE_PAUSE_MS_MAX: u64 = 60;

/// How busy clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub client_count: u32,
    /// Operations of each client, of each owner.
    pub op_count: u32,
    pub pause_ms_max: u64,
}

#[derive(Default)]
pub struct TermCounts {
    pub openings: AtomicU64,
    /// The part of these that were served when a later one already was.
    pub late_openings: AtomicU64,
    pub judged: AtomicU64,
    pub verified_bytes: AtomicU64,
    pub lost_changes: AtomicU64,
    pub lost_writes: AtomicU64,
    pub ops: AtomicU64,
    pub ops_refused: AtomicU64,
    /// Operations that earlier owners acknowledged while a later one served, and that the later one has.
    pub late_answers: AtomicU64,
    /// Segments that went to the object store.
    pub segments_sent: AtomicU64,
}

pub struct Terms {
    /// The volume's name, for messages.
    name: String,
    shape: Shape,
    objects: Option<Arc<LifeStore>>,
    load: Load,
    /// First tag of this volume's clients.
    tag_first: Tag,
    first_failure: Arc<FirstFailure>,
    state: Mutex<State>,
    is_over: AtomicBool,
    is_deleted: AtomicBool,
    pub counts: TermCounts,
}

struct State {
    terms: Vec<Arc<OneTerm>>,
    epoch_last: Epoch,
    verifiers: Vec<[u8; 8]>,
    /// Reason why the newest opening is unreadable.
    problem: String,
    rng: Rng,
}

/// One opening of the volume.
pub struct OneTerm {
    pub number: usize,
    pub node: usize,
    pub fs: Fs,
    pub epoch: Epoch,
    may_answer: Box<dyn Fn() -> bool + Send + Sync>,
    terms: Weak<Terms>,
    life: OnceLock<Arc<client::Life>>,
    /// Another opening serves.
    has_successor: AtomicBool,
    /// etcd ended its lease early: until it hears of that, its lookups may be outdated.
    lost_its_lease: AtomicBool,
    /// The contents that its successor found.
    found_after: Mutex<Option<Arc<FoundTree>>>,
    is_judged: AtomicBool,
}

impl Terms {
    pub fn new(
        name: String,
        shape: Shape,
        load: Load,
        objects: Option<Arc<LifeStore>>,
        tag_first: Tag,
        first_failure: Arc<FirstFailure>,
        seed: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            shape,
            objects,
            load,
            tag_first,
            first_failure,
            state: Mutex::new(State {
                terms: Vec::new(),
                epoch_last: Epoch(0),
                verifiers: Vec::new(),
                problem: String::new(),
                rng: Rng::new(seed),
            }),
            is_over: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
            counts: TermCounts::default(),
        })
    }

    fn fail(&self, what: impl std::fmt::Display) {
        self.first_failure.note(format!("{}: {what}", self.name));
    }

    /// A wrong answer that a client of the volume saw.
    pub fn failure_of_clients(&self) -> Option<String> {
        let terms = self.state.lock().terms.clone();
        terms.iter().find_map(|term| {
            let failure = term.life.get()?.failure.lock().clone()?;
            Some(format!("{}: {}: {failure}", self.name, term.name()))
        })
    }

    /// Clients begin nothing any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Notes that the volume is being deleted: a node that still serves it may find less of it from now on, or nothing.
    pub fn delete(&self) {
        self.is_deleted.store(true, Ordering::Relaxed);
        self.end();
    }

    fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed)
    }

    /// The newest opening, after its contents were judged.
    pub fn current(&self) -> Option<Arc<OneTerm>> {
        let state = self.state.lock();
        let newest = state.terms.last()?;
        newest
            .is_judged
            .load(Ordering::Relaxed)
            .then(|| newest.clone())
    }

    /// Notes that etcd ends the lease of a node early, against its promise.
    pub fn lease_ends_early(&self, node: usize) {
        for term in &self.state.lock().terms {
            if term.node == node {
                term.lost_its_lease.store(true, Ordering::Relaxed);
            }
        }
    }

    pub fn note_ops(&self) {
        for term in &self.state.lock().terms {
            let Some(life) = term.life.get() else {
                continue;
            };
            let begun = u64::from(life.ops_begun.load(Ordering::Relaxed));
            let sent = term.fs.tiering_status().sent_segments;
            self.counts.segments_sent.fetch_add(sent, Ordering::Relaxed);
            let refused = life.ops_refused.load(Ordering::Relaxed);
            self.counts.ops.fetch_add(begun, Ordering::Relaxed);
            self.counts
                .ops_refused
                .fetch_add(refused, Ordering::Relaxed);
        }
    }

    /// Notes that a node serves the volume from now on.
    pub fn opened(
        self: &Arc<Self>,
        node: usize,
        env: &Env,
        fs: Fs,
        may_answer: Box<dyn Fn() -> bool + Send + Sync>,
    ) {
        let epoch = fs.meta().epoch();
        self.counts.openings.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        tracing::info!(volume = self.name, node, %epoch, "OPENED");
        if state.verifiers.contains(&fs.write_verifier()) {
            self.fail(format_args!(
                "node {node} serves with the write verifier of an earlier opening"
            ));
        }
        state.verifiers.push(fs.write_verifier());
        if epoch == state.epoch_last {
            self.fail(format_args!(
                "node {node} serves in {epoch}, as another did"
            ));
            return;
        }
        if epoch < state.epoch_last {
            self.counts.late_openings.fetch_add(1, Ordering::Relaxed);
            drop(state);
            if may_answer() {
                self.fail(format_args!(
                    "node {node} answers in {epoch}, after a later owner"
                ));
            }
            return;
        }
        state.epoch_last = epoch;
        let model = match state.terms.last().and_then(|term| term.life.get()) {
            Some(life) => life.model.lock().clone(),
            None => Model::with_tags_from(self.tag_first),
        };
        for term in &state.terms {
            term.has_successor.store(true, Ordering::Relaxed);
        }
        let term = Arc::new(OneTerm {
            number: state.terms.len(),
            node,
            fs,
            epoch,
            may_answer,
            terms: Arc::downgrade(self),
            life: OnceLock::new(),
            has_successor: AtomicBool::new(false),
            lost_its_lease: AtomicBool::new(false),
            found_after: Mutex::default(),
            is_judged: AtomicBool::new(false),
        });
        let life = Arc::new(client::Life {
            model: Arc::new(Mutex::new(model)),
            serving: Serving::default(),
            shape: self.shape.clone(),
            failure: Mutex::default(),
            ops_begun: AtomicU32::new(0),
            ops_refused: AtomicU64::new(0),
            changes_refused: AtomicU64::new(0),
            clients_left: AtomicU32::new(self.load.client_count),
            snapshots: Arc::default(),
            waiting: Mutex::default(),
            op_waiting: Mutex::default(),
            store: self.objects.clone(),
            term: Some(Arc::new(TermOf(Arc::downgrade(&term)))),
        });
        // The only place that sets it.
        let _ = term.life.set(life);
        state.terms.push(term.clone());
        let seed = state.rng.u64();
        drop(state);
        let glances = Arc::clone(self).glance(term.clone(), env.clone(), seed ^ 0x61a2_ce00);
        env.spawner.spawn("glances", Box::pin(glances));
        let work = Arc::clone(self).run(term, env.clone(), seed);
        env.spawner.spawn("term", Box::pin(work));
    }

    async fn run(self: Arc<Self>, term: Arc<OneTerm>, env: Env, seed: u64) {
        match self.judge(&term, &env).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.fail(format_args!("{}: {error}", term.name())),
        }
        let Some(life) = term.life.get() else { return };
        life.serving.put(term.fs.clone());
        let mut rng = Rng::new(seed);
        for _ in 0..self.load.client_count {
            let seed = rng.u64();
            let client = Client {
                life: life.clone(),
                fs: term.fs.clone(),
                env: env.clone(),
                rng: Rng::new(seed),
                more: Rng::new(seed ^ 0x3c9b_11f7),
            };
            let work = client.run(self.load.op_count, self.load.pause_ms_max);
            env.spawner.spawn("client", Box::pin(work));
        }
    }

    /// A client that changes nothing: only the lease tells an owner that the others have left behind that its answers
    /// are outdated.
    async fn glance(self: Arc<Self>, term: Arc<OneTerm>, env: Env, seed: u64) {
        let mut rng = Rng::new(seed);
        while !term.has_stopped() && !self.is_over.load(Ordering::Relaxed) {
            let pause = 1 + rng.below(GLANCE_PAUSE_MS_MAX);
            env.clock.sleep(Duration::from_millis(pause)).await;
            if term.fs.attr(ROOT_INO).await.is_ok() {
                term.may_tell();
            }
        }
    }

    fn is_to_be_judged(&self, term: &OneTerm) -> bool {
        term.is_newest() && !term.has_stopped() && !self.is_deleted()
    }

    /// Reads everything that a new owner has; false if it owns the volume no more.
    async fn judge(&self, term: &Arc<OneTerm>, env: &Env) -> Result<bool, String> {
        let Some(life) = term.life.get() else {
            return Ok(false);
        };
        let found = loop {
            if !self.is_to_be_judged(term) {
                return Ok(false);
            }
            match read_everything(&term.fs, false).await {
                Ok(found) => break found,
                // More nodes may be away than a volume survives; at the end of a run none is.
                Err(error) => self.state.lock().problem = error,
            }
            env.clock.sleep(READ_PAUSE).await;
        };
        let counted = check::recount(env, term.fs.meta()).await;
        if !self.is_to_be_judged(term) {
            return Ok(false);
        }
        counted?;
        {
            let mut model = life.model.lock();
            let judged = model.judge(&found)?;
            let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
            add(&self.counts.judged, 1);
            add(&self.counts.verified_bytes, found.file_bytes());
            add(&self.counts.lost_changes, judged.lost_changes as u64);
            add(&self.counts.lost_writes, judged.lost_writes as u64);
            model.rebase(judged);
        }
        let found = Arc::new(found);
        let earlier: Vec<Arc<OneTerm>> = self.state.lock().terms[..term.number].to_vec();
        for earlier in earlier {
            earlier.followed_by(&found)?;
        }
        term.is_judged.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Resolves when the clients of the newest owner are done.
    pub async fn idle(&self, term: &OneTerm) {
        let Some(life) = term.life.get() else { return };
        life.clients_done().await;
    }

    pub fn count(&self) -> usize {
        self.state.lock().terms.len()
    }

    pub fn epoch_last(&self) -> Epoch {
        self.state.lock().epoch_last
    }

    /// The node of the newest opening.
    pub fn newest_node(&self) -> Option<usize> {
        self.state.lock().terms.last().map(|term| term.node)
    }

    /// The disks that the newest opening writes its log to.
    pub fn log_disks(&self) -> Vec<DiskId> {
        let newest = self.state.lock().terms.last().cloned();
        newest.map_or_else(Vec::new, |term| term.fs.meta().stats().log_disks)
    }

    /// Reason why the contents of the newest opening are not judged.
    pub fn problem(&self) -> String {
        self.state.lock().problem.clone()
    }

    /// Drops all openings.
    pub fn forget(&self) {
        let terms = std::mem::take(&mut self.state.lock().terms);
        drop(terms);
    }
}

impl OneTerm {
    fn name(&self) -> String {
        format!("owner {} (node {}, {})", self.number, self.node, self.epoch)
    }

    pub fn is_newest(&self) -> bool {
        !self.has_successor.load(Ordering::Relaxed)
    }

    pub fn answers(&self) -> bool {
        self.is_newest() && (self.may_answer)() && !self.has_stopped()
    }

    fn has_stopped(&self) -> bool {
        let key = Key::inode(ROOT_INO);
        self.fs.meta().live().get(&key).is_err()
    }

    /// Notes the contents that a later owner began with. Only the first one counts: later ones build on it.
    fn followed_by(&self, found: &Arc<FoundTree>) -> Result<(), String> {
        {
            let mut found_after = self.found_after.lock();
            if found_after.is_some() {
                return Ok(());
            }
            *found_after = Some(found.clone());
        }
        self.check_answers()
    }

    /// Checks that the next owner has everything that this one acknowledged.
    fn check_answers(&self) -> Result<(), String> {
        let Some(found) = self.found_after.lock().clone() else {
            return Ok(());
        };
        let Some(life) = self.life.get() else {
            return Ok(());
        };
        let judged = life.model.lock().judge(&found);
        judged.map(drop).map_err(|error| {
            format!(
                "{} answered what the next owner does not have: {error}",
                self.name()
            )
        })
    }
}

/// The term as its clients hold it, without keeping it alive.
struct TermOf(Weak<OneTerm>);

impl client::Term for TermOf {
    fn may_answer(&self) -> bool {
        self.0.upgrade().is_some_and(|term| term.may_tell())
    }

    fn answered(&self) {
        if let Some(term) = self.0.upgrade() {
            term.answered();
        }
    }

    fn is_over(&self) -> bool {
        let terms = self.0.upgrade().and_then(|term| term.terms.upgrade());
        terms.is_none_or(|terms| terms.is_over.load(Ordering::Relaxed))
    }
}

impl OneTerm {
    fn may_tell(&self) -> bool {
        let may = (self.may_answer)();
        if may
            && !self.is_newest()
            && !self.lost_its_lease.load(Ordering::Relaxed)
            && let Some(terms) = self.terms.upgrade()
        {
            terms.fail(format_args!("{} answers after a later one", self.name()));
        }
        may
    }

    fn answered(&self) {
        if self.is_newest() {
            return;
        }
        let Some(terms) = self.terms.upgrade() else {
            return;
        };
        terms.counts.late_answers.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.check_answers()
            && !terms.is_deleted()
        {
            terms.fail(error);
        }
    }
}
