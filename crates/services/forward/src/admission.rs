//! Clients' connections and streams between nodes, admitted under a term, and what ends them.
//!
//! Owns: which terms are known to have ended, who is admitted, waiting until what began under an ended term is finished.
//! Must not know: what comes over connections and streams, how the map is followed.
//!
//! ```text
//!            admit                  term ended, node silent, standstill, late call
//!  refused <------- (asks) ------> admitted ---------------------------------------> ended ----> released
//!                                                  begins no more calls;                 the last holder of the
//!                                                  what it began goes on                 `Admission` has dropped it
//! ```
//!
//! A map revision is *settled* when this node knows it and everything that began under terms which it ended is released.
//! A call that brings a revision along waits until that is settled: its client may have been told of the end.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::NodeId;
use cairn_base::planted::{self, Bug};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::preamble::{Stamp, Term};
use crate::pulse::Pulse;
use crate::{BEAT_INTERVAL, FRESH_MAX};

/// A stream that brings a revision which this node does not learn in so long is refused. Its sender tries again: it waits a
/// second longer for an answer.
const LEARN_MAX: Duration = Duration::from_secs(4);
/// A connection that this node accepted without a lease is closed after so long.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(10);
/// After so long it is logged who holds up a revision.
const SETTLE_WARN: Duration = Duration::from_secs(10);

/// The nodes that are alive at one revision of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapTerms {
    pub revision: u64,
    pub alive: BTreeMap<NodeId, Term>,
}

/// Why an admission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The term of the node that accepted the client's connection.
    Term,
    /// Its node did not answer for [`FRESH_MAX`].
    Silent,
    /// This process stood still for [`FRESH_MAX`].
    Standstill,
    /// A change waited so long in this node that its client may have sent it elsewhere.
    Late,
}

/// Why nobody is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the term under which the client's connection was accepted has ended")]
    TermEnded,
    #[error("this node does not know the map that the stream was opened with")]
    Behind,
    #[error("this node stood still or had no lease while the connection waited")]
    Late,
}

/// Who is admitted at this node.
pub struct Registry {
    own: NodeId,
    /// The term of this node while its lease is valid.
    own_term: Box<dyn Fn() -> Option<Term> + Send + Sync>,
    pulse: Arc<Pulse>,
    state: Mutex<State>,
    known: watch::Sender<u64>,
    settled: watch::Sender<u64>,
    released: Notify,
}

#[derive(Default)]
struct State {
    terms: MapTerms,
    number_next: u64,
    admitted: BTreeMap<u64, Arc<AdmissionCore>>,
}

struct AdmissionCore {
    stamp: Stamp,
    client: SocketAddr,
    /// The pulse's generation when it was admitted.
    generation: u64,
    is_ended: AtomicBool,
    end: watch::Sender<Option<End>>,
}

impl AdmissionCore {
    fn end(&self, why: End) {
        self.is_ended.store(true, Ordering::Release);
        self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            if is_first {
                *end = Some(why);
            }
            is_first
        });
    }

    fn is_ended(&self, generation: u64) -> bool {
        self.is_ended.load(Ordering::Acquire) || self.generation != generation
    }
}

/// A client's connection, or a stream of another node for one. As long as somebody holds it, calls that came over it may
/// still change something.
pub struct Admission {
    registry: Arc<Registry>,
    number: u64,
    held: Arc<AdmissionCore>,
}

impl Registry {
    pub fn new(
        own: NodeId,
        pulse: Arc<Pulse>,
        own_term: impl Fn() -> Option<Term> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            own,
            own_term: Box::new(own_term),
            pulse,
            state: Mutex::default(),
            known: watch::Sender::new(0),
            settled: watch::Sender::new(0),
            released: Notify::new(),
        })
    }

    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Takes in a newer map. Ready when it is settled; until then no call that came with it is executed.
    pub async fn learn(self: &Arc<Self>, terms: MapTerms) {
        let revision = terms.revision;
        {
            let mut state = self.state.lock();
            if revision < state.terms.revision {
                return;
            }
            for held in state.admitted.values() {
                let alive = terms.alive.get(&held.stamp.node);
                let goes_on = planted::is(Bug::ForwardTermOfNow) && held.stamp.node == self.own;
                let has_ended = alive != Some(&held.stamp.term) && !goes_on;
                // One that came with a newer map is of a term that this map may not have yet.
                if has_ended && held.stamp.revision <= revision {
                    held.end(End::Term);
                }
            }
            state.terms = terms;
        }
        self.known.send_replace(revision);
        if !planted::is(Bug::ForwardNotSettled) {
            let is_over =
                |held: &AdmissionCore| held.end.borrow().is_some_and(|end| end == End::Term);
            self.wait_released(is_over, "a change of the cluster's map")
                .await;
        }
        self.settled.send_replace(revision);
    }

    /// Waits until all that `which` names is released.
    async fn wait_released(&self, which: impl Fn(&AdmissionCore) -> bool, what: &'static str) {
        let clock = Arc::clone(self.pulse.clock());
        let begun = clock.monotonic();
        let mut warned = false;
        loop {
            let released = self.released.notified();
            let mut released = std::pin::pin!(released);
            released.as_mut().enable();
            let left = {
                let state = self.state.lock();
                let mut left = state.admitted.values().filter(|held| which(held));
                left.next().map(|held| (held.client, left.count() + 1))
            };
            let Some((client, count)) = left else { return };
            if !warned && clock.monotonic().saturating_sub(begun) >= SETTLE_WARN {
                warned = true;
                tracing::warn!(
                    %client,
                    count,
                    "{what} waits until calls of connections that ended are finished"
                );
            }
            tokio::select! {
                biased;
                () = released => {}
                () = clock.sleep(SETTLE_WARN) => {}
            }
        }
    }

    /// Admits a connection of a client that this node accepted at `accepted_at` (by the clock that counts suspended time),
    /// while the pulse had `generation`. Waits for a lease; a connection that waited for long is refused, because what it
    /// sent may be old.
    pub async fn admit_client(
        self: &Arc<Self>,
        client: SocketAddr,
        accepted_at: Duration,
        generation: u64,
    ) -> Result<Arc<Admission>, Refused> {
        let clock = Arc::clone(self.pulse.clock());
        let mut known = self.known.subscribe();
        let stamp = loop {
            known.borrow_and_update();
            if let Some(stamp) = self.own_stamp() {
                break stamp;
            }
            if clock.boottime().saturating_sub(accepted_at) > LEASE_WAIT_MAX {
                return Err(Refused::Late);
            }
            tokio::select! {
                biased;
                _ = known.changed() => {}
                () = clock.sleep(BEAT_INTERVAL) => {}
            }
        };
        let waited = clock.boottime().saturating_sub(accepted_at);
        if waited > FRESH_MAX || self.pulse.generation() != generation {
            return Err(Refused::Late);
        }
        self.admit(stamp, client).await
    }

    /// Admits what this node asks others by itself, for no client.
    pub async fn admit_own(self: &Arc<Self>) -> Result<Arc<Admission>, Refused> {
        let stamp = self.own_stamp().ok_or(Refused::Late)?;
        let nobody = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
        self.admit(stamp, nobody).await
    }

    /// The stamp of a connection that this node accepts now; `None` without a lease that the map shows.
    pub(crate) fn own_stamp(&self) -> Option<Stamp> {
        let term = (self.own_term)()?;
        let state = self.state.lock();
        let is_known = state.terms.alive.get(&self.own) == Some(&term)
            || planted::is(Bug::ForwardOwnTermNotShown);
        is_known.then_some(Stamp {
            node: self.own,
            term,
            revision: state.terms.revision,
        })
    }

    /// Admits calls with this stamp, once the map is known up to its revision and earlier calls are finished.
    pub async fn admit(
        self: &Arc<Self>,
        stamp: Stamp,
        client: SocketAddr,
    ) -> Result<Arc<Admission>, Refused> {
        let clock = Arc::clone(self.pulse.clock());
        let mut settled = self.settled.subscribe();
        let learnt = async {
            let is_learnt = |settled: &u64| *settled >= stamp.revision;
            // The sender is in `self`.
            let _ = settled.wait_for(is_learnt).await;
            // This client's earlier connections: what they began comes before what this one brings.
            let is_of_client = |held: &AdmissionCore| {
                held.client.ip() == client.ip()
                    && !client.ip().is_unspecified()
                    && held.is_ended(self.pulse.generation())
            };
            if !planted::is(Bug::ForwardClientNotAwaited) {
                self.wait_released(is_of_client, "a client").await;
            }
        };
        if !planted::is(Bug::ForwardNotCaughtUp) {
            tokio::select! {
                biased;
                () = learnt => {}
                () = clock.sleep(LEARN_MAX) => return Err(Refused::Behind),
            }
        }
        let generation = self.pulse.generation();
        let mut state = self.state.lock();
        let is_alive = state.terms.alive.get(&stamp.node) == Some(&stamp.term);
        if !is_alive && !planted::is(Bug::ForwardTermIgnored) {
            return Err(Refused::TermEnded);
        }
        let number = state.number_next;
        state.number_next += 1;
        let held = Arc::new(AdmissionCore {
            stamp,
            client,
            generation,
            is_ended: AtomicBool::new(false),
            end: watch::Sender::new(None),
        });
        state.admitted.insert(number, Arc::clone(&held));
        Ok(Arc::new(Admission {
            registry: Arc::clone(self),
            number,
            held,
        }))
    }

    /// Ends the streams of a node that gives no sign of life.
    pub fn end_streams(&self, node: NodeId, term: Term) {
        let state = self.state.lock();
        for held in state.admitted.values() {
            if (held.stamp.node, held.stamp.term) == (node, term) {
                held.end(End::Silent);
            }
        }
    }

    /// How many are admitted and have not ended.
    pub fn live_count(&self) -> usize {
        let generation = self.pulse.generation();
        let state = self.state.lock();
        let live = state.admitted.values();
        live.filter(|held| !held.is_ended(generation)).count()
    }
}

impl Admission {
    pub fn stamp(&self) -> Stamp {
        self.held.stamp
    }

    pub fn client(&self) -> SocketAddr {
        self.held.client
    }

    /// Whether a call may begin that came over this connection. Asked after the call was read.
    pub fn is_live(&self) -> bool {
        let registry = &self.registry;
        let is_of_term = || {
            self.held.stamp.node != registry.own
                || (registry.own_term)() == Some(self.held.stamp.term)
                || planted::is(Bug::ForwardTermOfNow)
        };
        // The pulse first: the first to ask notices a standstill.
        let runs = registry.pulse.generation() == self.held.generation;
        let runs = runs || planted::is(Bug::ForwardStandstillIgnored);
        let is_ended = self.held.is_ended.load(Ordering::Acquire);
        runs && (!is_ended || planted::is(Bug::ForwardEndedCallsBegin)) && is_of_term()
    }

    /// Whether a change may go to the owner that this node read at `read_at` (by the clock that counts suspended time).
    pub fn is_fresh(&self, read_at: Duration) -> bool {
        let now = self.registry.pulse.clock().boottime();
        let is_young = now.saturating_sub(read_at) <= FRESH_MAX;
        (is_young || planted::is(Bug::ForwardLateCall)) && self.is_live()
    }

    /// The time that [`Self::is_fresh`] wants to know.
    pub fn now(&self) -> Duration {
        self.registry.pulse.clock().boottime()
    }

    /// Ends this connection, so that its client connects again and sends what it still wants.
    pub fn end_late(&self) {
        self.held.end(End::Late);
    }

    /// Ready when the connection has to end.
    pub fn ended(&self) -> impl Future<Output = End> + Send + 'static {
        let mut end = self.held.end.subscribe();
        let mut pulse = self.registry.pulse.subscribe();
        let generation = self.held.generation;
        let clock = Arc::clone(self.registry.pulse.clock());
        let registry = Arc::clone(&self.registry);
        let stamp = self.held.stamp;
        async move {
            let told = async {
                match end.wait_for(Option::is_some).await {
                    Ok(end) => end.unwrap_or(End::Term),
                    // The registry is gone, which does not happen while it is admitted.
                    Err(_) => End::Term,
                }
            };
            let stood_still = async {
                if planted::is(Bug::ForwardStandstillIgnored) {
                    return std::future::pending().await;
                }
                let _ = pulse.wait_for(|now| *now != generation).await;
                End::Standstill
            };
            // A lease that ends tells nobody at once.
            let lost_lease = async {
                if stamp.node != registry.own || planted::is(Bug::ForwardTermOfNow) {
                    return std::future::pending().await;
                }
                while (registry.own_term)() == Some(stamp.term) {
                    clock.sleep(BEAT_INTERVAL * 2).await;
                }
                End::Term
            };
            tokio::select! {
                biased;
                end = told => end,
                end = stood_still => end,
                end = lost_lease => end,
            }
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let removed = self.registry.state.lock().admitted.remove(&self.number);
        assert!(removed.is_some(), "an admission is released once");
        self.registry.released.notify_waiters();
    }
}
