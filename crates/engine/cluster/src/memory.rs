//! A consensus store in memory, with etcd's semantics, for tests and simulations in one thread.
//!
//! Owns: the store with its history, leases by the simulated clock, and what a test can do to requests on their way.
//! Must not know: what the keys mean.
//!
//! Each client has a name, so that faults can be planted for one of them. A request has two steps: it is done, and its
//! reply arrives. Normally both happen at once. A test can hold the requests of a client and make each step itself.

mod store;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::{BoxFuture, Env};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::coordinator::{
    Coordinator, CoordinatorError, KeyRange, LeaseGrant, LeaseId, Outcome, RangeReply, Revision,
    Txn, WatchEvent, Watcher,
};
pub use store::Backup;
use store::{Store, WatchEvents};

/// How long a client waits for a reply, as [`crate::Etcd`] does.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

const TRANSACTION: &str = "a transaction";

/// What happens to the next request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is done, and the client never learns it.
    LoseReply,
    /// It is lost, and the client knows no better than with a lost reply.
    LoseRequest,
    /// It is refused before anything is done, and the client knows.
    Refuse,
    /// None, for this time.
    Spare,
}

/// A request that a test holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRequest {
    pub id: u64,
    pub client: String,
    /// Whether the store has done it already; then only the reply is on its way.
    pub done: bool,
}

/// The store itself; cheap to clone.
#[derive(Clone)]
pub struct MemoryCoordinator {
    shared: Arc<MemoryCore>,
}

struct MemoryCore {
    env: Env,
    state: Mutex<State>,
    /// Grows with everything that may concern a watcher.
    ticks: watch::Sender<u64>,
}

struct State {
    store: Store,
    clients: BTreeMap<String, ClientState>,
    held: BTreeMap<u64, HeldStep>,
    next_request: u64,
    /// Watchers see nothing beyond this, if it is set.
    delivered: Option<Revision>,
    /// Too few members are there: nothing is done or told, and no lease ends.
    is_without_quorum: bool,
}

impl State {
    fn expire(&mut self, now: Duration) {
        // Ending a lease is a change like any other.
        if !self.is_without_quorum {
            self.store.expire(now);
        }
    }
}

#[derive(Default)]
struct ClientState {
    holds: bool,
    unreachable: bool,
    faults: VecDeque<Fault>,
    faults_of_transactions: VecDeque<Fault>,
}

struct HeldStep {
    client: String,
    step: Step,
}

enum Step {
    Do(Box<dyn FnOnce(&mut Store) -> Reply + Send>),
    Reply(Reply),
}

type Reply = Box<dyn FnOnce() + Send>;

/// Why a request brought no reply.
enum Lost {
    Refused,
    Unknown(CoordinatorError),
}

impl MemoryCoordinator {
    pub fn new(env: Env) -> Self {
        Self {
            shared: Arc::new(MemoryCore {
                env,
                state: Mutex::new(State {
                    store: Store::default(),
                    clients: BTreeMap::new(),
                    held: BTreeMap::new(),
                    next_request: 0,
                    delivered: None,
                    is_without_quorum: false,
                }),
                ticks: watch::Sender::new(0),
            }),
        }
    }

    /// The store as the client of this name sees it.
    pub fn client(&self, name: impl Into<String>) -> Arc<dyn Coordinator> {
        Arc::new(MemoryClient {
            shared: Arc::clone(&self.shared),
            name: name.into(),
        })
    }

    /// Plants a fault for the next request of a client; several are used up in their order.
    pub fn plant(&self, client: &str, fault: Fault) {
        let mut state = self.shared.state.lock();
        let client = state.clients.entry(client.to_owned()).or_default();
        client.faults.push_back(fault);
    }

    /// Plants a fault for the next transaction of a client; its other requests do not use it up.
    pub fn plant_for_transaction(&self, client: &str, fault: Fault) {
        let mut state = self.shared.state.lock();
        let client = state.clients.entry(client.to_owned()).or_default();
        client.faults_of_transactions.push_back(fault);
    }

    /// From now on the requests of a client stay where they are until [`Self::step`] moves them, or pass again.
    pub fn hold(&self, client: &str, holds: bool) {
        let mut state = self.shared.state.lock();
        state.clients.entry(client.to_owned()).or_default().holds = holds;
    }

    /// From now on a client reaches the store, or does not and knows it.
    pub fn set_reachable(&self, client: &str, reachable: bool) {
        let mut state = self.shared.state.lock();
        let client = state.clients.entry(client.to_owned()).or_default();
        client.unreachable = !reachable;
    }

    pub fn held(&self) -> Vec<HeldRequest> {
        let state = self.shared.state.lock();
        let describe = |(id, held): (&u64, &HeldStep)| HeldRequest {
            id: *id,
            client: held.client.clone(),
            done: matches!(held.step, Step::Reply(_)),
        };
        state.held.iter().map(describe).collect()
    }

    /// Moves a held request by one step: does it, or delivers its reply.
    pub fn step(&self, id: u64) {
        self.shared.step(id);
    }

    /// Loses a held request, or its reply if it was done.
    pub fn lose(&self, id: u64) {
        let held = self.shared.state.lock().held.remove(&id);
        drop(held);
    }

    /// Lets all held requests go on to their end.
    pub fn step_all(&self) {
        loop {
            let first = self.shared.state.lock().held.keys().next().copied();
            let Some(id) = first else { return };
            self.step(id);
        }
    }

    /// Ends a lease, though its holder keeps it alive.
    pub fn lose_lease(&self, lease: LeaseId) {
        self.shared.with_store(|store| store.revoke(lease));
    }

    /// Most members are gone: from now on requests stay where they are, watchers hear nothing, and no lease ends.
    pub fn lose_quorum(&self) {
        self.shared.state.lock().is_without_quorum = true;
    }

    /// Enough members are back. Requests that came meanwhile are held still, for [`Self::step`] or [`Self::lose`]. With
    /// `keeps_leases` each lease begins anew, as etcd does it under a new leader; else those whose time has passed end now.
    pub fn regain_quorum(&self, keeps_leases: bool) {
        let now = self.shared.env.clock.monotonic();
        {
            let mut state = self.shared.state.lock();
            state.is_without_quorum = false;
            if keeps_leases {
                state.store.begin_leases_anew(now);
            }
            state.expire(now);
        }
        self.shared.tick();
    }

    /// Forgets the history before `revision`.
    pub fn compact(&self, revision: Revision) {
        self.shared.with_store(|store| store.compact(revision));
    }

    /// Watchers see changes up to this revision only; `None`: all.
    pub fn deliver_up_to(&self, revision: Option<Revision>) {
        self.shared.state.lock().delivered = revision;
        self.shared.tick();
    }

    pub fn revision(&self) -> Revision {
        self.shared.with_store(|store| store.revision())
    }

    /// What an operator would save.
    pub fn backup(&self) -> Backup {
        self.shared.with_store(|store| store.backup())
    }

    /// Puts an older state in place of this one, as an operator does who restores a backup: revisions go back.
    pub fn restore(&self, backup: &Backup) {
        let now = self.shared.env.clock.monotonic();
        self.shared.with_store(|store| store.restore(backup, now));
    }
}

impl MemoryCore {
    fn tick(&self) {
        self.ticks.send_modify(|ticks| *ticks += 1);
    }

    /// Works on the store as it is now: leases that are over have ended.
    fn with_store<T>(&self, work: impl FnOnce(&mut Store) -> T) -> T {
        let now = self.env.clock.monotonic();
        let result = {
            let mut state = self.state.lock();
            state.expire(now);
            work(&mut state.store)
        };
        self.tick();
        result
    }

    fn step(&self, id: u64) {
        let held = {
            let mut state = self.state.lock();
            let is_to_do = |held: &HeldStep| matches!(held.step, Step::Do(_));
            if state.is_without_quorum && state.held.get(&id).is_some_and(is_to_do) {
                return;
            }
            state.held.remove(&id)
        };
        match held {
            None => {}
            Some(HeldStep {
                step: Step::Reply(reply),
                ..
            }) => reply(),
            Some(HeldStep {
                client,
                step: Step::Do(work),
            }) => {
                let reply = self.with_store(work);
                let step = Step::Reply(reply);
                self.state.lock().held.insert(id, HeldStep { client, step });
            }
        }
    }
}

struct MemoryClient {
    shared: Arc<MemoryCore>,
    name: String,
}

impl MemoryClient {
    /// Sends a request; the future waits for its reply.
    fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&mut Store, Duration) -> T + Send + 'static,
    ) -> BoxFuture<Result<T, Lost>> {
        let (sender, receiver) = oneshot::channel();
        let clock = Arc::clone(&self.shared.env.clock);
        let store_clock = Arc::clone(&clock);
        let work = Box::new(move |store: &mut Store| {
            let result = work(store, store_clock.monotonic());
            Box::new(move || drop(sender.send(result))) as Reply
        });
        if !self.send(what, work) {
            return Box::pin(async { Err(Lost::Refused) });
        }
        // The time counts from the sending, whenever somebody begins to wait.
        let timeout = clock.sleep(REQUEST_TIMEOUT);
        Box::pin(async move {
            match select(receiver, timeout).await {
                Either::Left((Ok(reply), _)) => Ok(reply),
                Either::Left((Err(_), _)) => Err(Lost::Unknown(CoordinatorError::Unreachable(
                    format!("the connection was lost ({what})"),
                ))),
                Either::Right(_) => Err(Lost::Unknown(CoordinatorError::TimedOut {
                    what: what.to_owned(),
                    after: REQUEST_TIMEOUT,
                })),
            }
        })
    }

    /// Puts a request on its way, unless it is refused.
    fn send(&self, what: &str, work: Box<dyn FnOnce(&mut Store) -> Reply + Send>) -> bool {
        let mut state = self.shared.state.lock();
        let client = state.clients.entry(self.name.clone()).or_default();
        if client.unreachable {
            return false;
        }
        let fault = match client.faults.pop_front() {
            None if what == TRANSACTION => client.faults_of_transactions.pop_front(),
            fault => fault,
        };
        let holds = client.holds;
        match fault {
            Some(Fault::Refuse) => return false,
            Some(Fault::LoseRequest) => return true,
            Some(Fault::LoseReply) if !state.is_without_quorum => {
                drop(state);
                drop(self.shared.with_store(work));
                return true;
            }
            Some(Fault::LoseReply) => return true,
            Some(Fault::Spare) | None => {}
        }
        let id = state.next_request;
        state.next_request += 1;
        let client = self.name.clone();
        let step = Step::Do(work);
        state.held.insert(id, HeldStep { client, step });
        drop(state);
        if !holds {
            self.shared.step(id);
            self.shared.step(id);
        }
        true
    }
}

fn refused() -> CoordinatorError {
    CoordinatorError::Unreachable("the connection was refused".to_owned())
}

impl From<Lost> for CoordinatorError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Refused => refused(),
            Lost::Unknown(error) => error,
        }
    }
}

impl Coordinator for MemoryClient {
    fn range(&self, range: KeyRange) -> BoxFuture<Result<RangeReply, CoordinatorError>> {
        let call = self.call("reading", move |store, _| store.range(&range));
        Box::pin(async move { Ok(call.await?) })
    }

    fn transact(&self, txn: Txn) -> BoxFuture<Outcome> {
        if let Err(error) = txn.check() {
            return Box::pin(async { Outcome::Failed(error) });
        }
        let call = self.call(TRANSACTION, move |store, _| store.transact(txn));
        Box::pin(async move {
            match call.await {
                Ok(outcome) => outcome,
                Err(Lost::Refused) => Outcome::Failed(refused()),
                Err(Lost::Unknown(error)) => Outcome::Unknown(error),
            }
        })
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<Result<LeaseGrant, CoordinatorError>> {
        let call = self.call("granting a lease", move |store, now| store.grant(ttl, now));
        Box::pin(async move { Ok(call.await?) })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<Result<LeaseGrant, CoordinatorError>> {
        let call = self.call("renewing a lease", move |store, now| {
            store.keep_alive(lease, now)
        });
        Box::pin(async move { call.await? })
    }

    fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<Result<(), CoordinatorError>> {
        let call = self.call("ending a lease", move |store, _| store.revoke(lease));
        Box::pin(async move { Ok(call.await?) })
    }

    fn watch(&self, range: KeyRange, from: Revision) -> Box<dyn Watcher> {
        let mut ticks = self.shared.ticks.subscribe();
        ticks.mark_changed();
        Box::new(MemoryWatcher {
            shared: Arc::clone(&self.shared),
            client: self.name.clone(),
            range,
            from,
            incarnation: self.shared.with_store(|store| store.incarnation()),
            ticks,
        })
    }
}

struct MemoryWatcher {
    shared: Arc<MemoryCore>,
    client: String,
    range: KeyRange,
    /// The revision that comes next.
    from: Revision,
    /// Of the store; a restored backup is another one.
    incarnation: u64,
    ticks: watch::Receiver<u64>,
}

impl MemoryWatcher {
    /// What there is to deliver now, and else when a lease will end.
    fn poll_store(&mut self) -> Result<WatchEvent, Option<Duration>> {
        let now = self.shared.env.clock.monotonic();
        let mut state = self.shared.state.lock();
        if state.is_without_quorum {
            return Err(None);
        }
        state.expire(now);
        let wait = state.store.next_expiry().map(|at| at.saturating_sub(now));
        let limit = state.delivered.unwrap_or(Revision(u64::MAX));
        if state
            .clients
            .get(&self.client)
            .is_some_and(|c| c.unreachable)
        {
            return Err(wait);
        }
        let restored = self.incarnation != state.store.incarnation();
        let seen = if restored {
            WatchEvents::Compacted
        } else {
            state.store.changes(&self.range, self.from, limit)
        };
        match seen {
            WatchEvents::Nothing => Err(wait),
            WatchEvents::Compacted => {
                let reply = state.store.range(&self.range);
                self.incarnation = state.store.incarnation();
                self.from = reply.revision.next();
                Ok(WatchEvent::Reset(reply))
            }
            WatchEvents::Changes { revision, changes } => {
                self.from = revision.next();
                Ok(WatchEvent::Changes { revision, changes })
            }
        }
    }
}

impl Watcher for MemoryWatcher {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = WatchEvent> + Send + '_>> {
        Box::pin(async move {
            loop {
                self.ticks.mark_unchanged();
                let wait = match self.poll_store() {
                    Ok(event) => return event,
                    Err(wait) => wait.unwrap_or(Duration::from_secs(3600)),
                };
                let clock = Arc::clone(&self.shared.env.clock);
                let changed = std::pin::pin!(self.ticks.changed());
                let _ = select(changed, clock.sleep(wait)).await;
            }
        })
    }
}
