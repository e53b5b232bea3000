//! Clients that talk to any node, and the effects of their calls.
//!
//! Owns: the behaviour of a client without answers, the check that no old call overwrites a newer one, waiting for a
//! moment of a call. Must not know: how nodes forward calls (`edge`).
//!
//! A client sets a register of its volume to 1, waits for the answer, sets it to 2, and so on. The engine is not
//! involved: an owner sets a register as long as no later owner serves, which is the promise of fencing.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::env::{Clock, Env};
use cairn_base::{Epoch, NodeId, VolumeId};
use cairn_forward::Stamp;
use cairn_testkit::{ManualClock, Rng};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::failure::FirstFailure;
use super::net::{CLIENT_FIRST, Port, Stream};
use super::node::node_id;
use super::report::CallsCounted;
use super::run::{Cluster, world_spawn};
use super::volumes::Volume;
use crate::exec::Trace;

/// A client gives up a connection attempt after this time.
const DIAL_MAX: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(40);
/// An owner remembers its answers for this time, which is longer than any call is in flight.
const REMEMBERED: Duration = Duration::from_secs(5);
/// After recovery each client is answered within this time.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Connections that a client leaves open when it turns to another node.
const LEFT_OPEN_MAX: usize = 4;

/// How the clients of a run turn to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turning {
    /// After a second without an answer, and at once when the connection ends. Calls keep their numbers, and an owner
    /// remembers its answers for a while: NFS.
    Numbered,
    /// With its address, as soon as the term of its node has ended. Otherwise only when none of its calls can be in
    /// flight any more. No owner remembers answers: S3, iSCSI.
    WithAddress,
    /// By itself, as soon as none of its calls can begin any more: a call may wait for a second each in its node's
    /// socket, in that node and between the nodes. No owner remembers its answers, and none ends a call after one that
    /// began later (`arrivals` in `objects`): S3 with a short timeout.
    AfterSilence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallPlan {
    pub turning: Turning,
    /// Of each volume.
    pub caller_count: u32,
    pub pause_ms_max: u64,
    /// A client connects from one of two addresses each time, as with two network cards.
    pub has_two_addresses: bool,
    /// Number of calls out of 16 that take long in their owner.
    pub long_in_16: u64,
    /// The runtime of a process hears of connections a turn after its kernel has them, as a real one does.
    pub hears_late: bool,
}

/// Place of a call at which an event can strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// In the socket of the node that the client talks to.
    Sent,
    /// In that node.
    Read,
    /// Between that node and the owner.
    Passed,
    /// In the owner, which began it.
    Begun,
}

impl Moment {
    pub const ALL: [Self; 4] = [Self::Sent, Self::Read, Self::Passed, Self::Begun];
}

/// "Set the register of this client to this number."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub volume: VolumeId,
    pub caller: u32,
    pub number: u32,
}

impl Call {
    pub const LEN_BYTES: usize = 12;

    pub fn encode(self) -> [u8; Self::LEN_BYTES] {
        let mut bytes = [0; Self::LEN_BYTES];
        let words = [self.volume.0, self.caller, self.number];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    pub fn decode(bytes: [u8; Self::LEN_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self {
            volume: VolumeId(u32::from_be_bytes([a, b, c, d])),
            caller: u32::from_be_bytes([e, f, g, h]),
            number: u32::from_be_bytes([i, j, k, l]),
        }
    }
}

/// One byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done = 1,
    /// The node does not own the volume.
    NotOwner = 2,
    /// The client should retry.
    Later = 3,
}

impl Answer {
    pub fn from_byte(byte: u8) -> Option<Self> {
        let all = [Self::Done, Self::NotOwner, Self::Later];
        all.into_iter().find(|answer| *answer as u8 == byte)
    }
}

type Then = Box<dyn FnOnce(usize) + Send>;

struct Waiting {
    moment: Moment,
    volume: Option<VolumeId>,
    skip: u64,
    then: Then,
}

#[derive(Default)]
struct Register {
    /// The value set last.
    now: u32,
    /// The newest value that its client knows to be set.
    known: u32,
}

/// Present or past work of an owner for a call.
enum Memory {
    Running(Vec<oneshot::Sender<Answer>>),
    Done { at: Duration },
}

/// Calls of a client, in the order in which they began in one owner.
#[derive(Default)]
struct Arrivals {
    last: u64,
    /// The latest finished call.
    done: u64,
}

/// Result of beginning a call in an owner.
pub enum Begun {
    /// A new call, with its number among the calls of its client.
    New(u64),
    /// A repeated call that is in progress or done: its answer comes here.
    Again(oneshot::Receiver<Answer>),
}

/// The registers of all clients, and the waiters for moments of calls.
pub struct Calls {
    pub plan: CallPlan,
    clock: ManualClock,
    trace: Trace,
    failure: Arc<FirstFailure>,
    registers: Mutex<BTreeMap<(VolumeId, u32), Register>>,
    memory: Mutex<BTreeMap<(VolumeId, Epoch, u32, u32), Memory>>,
    arrivals: Mutex<BTreeMap<(VolumeId, Epoch, u32), Arrivals>>,
    waiting: Mutex<Vec<Waiting>>,
    /// The term under which each connection was admitted, and the revision of the map.
    stamps: Mutex<BTreeMap<SocketAddr, Stamp>>,
    is_over: AtomicBool,
    running: AtomicU32,
    counts: Mutex<CallsCounted>,
}

impl Calls {
    pub fn new(
        plan: CallPlan,
        clock: ManualClock,
        trace: Trace,
        failure: Arc<FirstFailure>,
    ) -> Arc<Self> {
        Arc::new(Self {
            plan,
            clock,
            trace,
            failure,
            registers: Mutex::default(),
            memory: Mutex::default(),
            arrivals: Mutex::default(),
            waiting: Mutex::default(),
            stamps: Mutex::default(),
            is_over: AtomicBool::new(false),
            running: AtomicU32::new(0),
            counts: Mutex::default(),
        })
    }

    pub fn counted(&self) -> CallsCounted {
        *self.counts.lock()
    }

    /// Whether clients have stopped calling.
    pub fn are_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Calls `then` with the node that has a call of the volume at that moment, after `skip` such calls.
    pub fn when(
        &self,
        moment: Moment,
        volume: Option<VolumeId>,
        skip: u64,
        then: impl FnOnce(usize) + Send + 'static,
    ) {
        let then = Box::new(then);
        self.waiting.lock().push(Waiting {
            moment,
            volume,
            skip,
            then,
        });
    }

    /// Drops all waiters.
    pub fn forget_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }

    /// Notes that a node has admitted a connection.
    pub fn admitted(&self, client: SocketAddr, stamp: Stamp) {
        self.stamps.lock().insert(client, stamp);
    }

    /// Notes that a call has reached a moment.
    pub fn note(&self, moment: Moment, call: Call, node: usize) {
        let words = [
            moment as u64,
            u64::from(call.caller),
            u64::from(call.number),
        ];
        self.trace.note(&words);
        tracing::debug!(?moment, ?call, node, "a call");
        let due: Vec<Waiting> = {
            let mut waiting = self.waiting.lock();
            let is_due = |entry: &mut Waiting| {
                let is_of = entry.volume.is_none_or(|wanted| wanted == call.volume);
                if entry.moment != moment || !is_of {
                    return false;
                }
                let is_due = entry.skip == 0;
                entry.skip = entry.skip.saturating_sub(1);
                is_due
            };
            waiting.extract_if(.., is_due).collect()
        };
        due.into_iter().for_each(|waiting| (waiting.then)(node));
    }

    /// Begins a call in an owner. A call that is in progress, or was done recently, is not repeated.
    pub fn begin(&self, call: Call, epoch: Epoch) -> Begun {
        self.counts.lock().begun += 1;
        if self.plan.turning != Turning::Numbered {
            let mut arrivals = self.arrivals.lock();
            let of_client = arrivals.entry((call.volume, epoch, call.caller));
            let of_client = of_client.or_default();
            of_client.last += 1;
            return Begun::New(of_client.last);
        }
        let now = self.clock.monotonic();
        let mut memory = self.memory.lock();
        memory.retain(|_, memory| match memory {
            Memory::Running(_) => true,
            Memory::Done { at } => now.saturating_sub(*at) < REMEMBERED,
        });
        let key = (call.volume, epoch, call.caller, call.number);
        match memory.get_mut(&key) {
            None => {
                memory.insert(key, Memory::Running(Vec::new()));
                Begun::New(0)
            }
            Some(Memory::Done { .. }) => {
                let (sender, answer) = oneshot::channel();
                // The receiver exists.
                let _ = sender.send(Answer::Done);
                Begun::Again(answer)
            }
            Some(Memory::Running(others)) => {
                let (sender, answer) = oneshot::channel();
                others.push(sender);
                Begun::Again(answer)
            }
        }
    }

    /// Ends a call: the owner has done it, or has not because it lost the volume.
    pub fn end(&self, call: Call, epoch: Epoch, answer: Answer, arrival: u64) {
        let key = (call.volume, epoch, call.caller, call.number);
        if answer == Answer::Done && !self.comes_to_nothing(call, epoch, arrival) {
            self.set(call);
        }
        let others = {
            let mut memory = self.memory.lock();
            let others = memory.remove(&key);
            if answer == Answer::Done && self.plan.turning == Turning::Numbered {
                let at = self.clock.monotonic();
                memory.insert(key, Memory::Done { at });
            }
            others
        };
        if let Some(Memory::Running(others)) = others {
            for other in others {
                // The receiver may be gone.
                let _ = other.send(answer);
            }
        }
    }

    /// Whether a call has no effect because another one that began later is done already.
    fn comes_to_nothing(&self, call: Call, epoch: Epoch, arrival: u64) -> bool {
        if self.plan.turning != Turning::AfterSilence {
            return false;
        }
        let mut arrivals = self.arrivals.lock();
        let of_client = arrivals.entry((call.volume, epoch, call.caller));
        let of_client = of_client.or_default();
        let is_late = of_client.done > arrival;
        of_client.done = of_client.done.max(arrival);
        is_late
    }

    fn set(&self, call: Call) {
        let mut registers = self.registers.lock();
        let register = registers.entry((call.volume, call.caller)).or_default();
        register.now = call.number;
        if call.number < register.known {
            self.failure.note(format!(
                "volume {}: call {} of client {} is done after call {} was answered",
                call.volume, call.number, call.caller, register.known
            ));
        }
    }

    /// Notes that a client knows that its call is done.
    fn is_answered(&self, call: Call) {
        self.counts.lock().answered += 1;
        let mut registers = self.registers.lock();
        let register = registers.entry((call.volume, call.caller)).or_default();
        register.known = call.number;
        if register.now != call.number {
            self.failure.note(format!(
                "volume {}: call {} of client {} is answered, and {} stands there",
                call.volume, call.number, call.caller, register.now
            ));
        }
    }

    fn known(&self) -> BTreeMap<(VolumeId, u32), u32> {
        let registers = self.registers.lock();
        let known = registers.iter();
        known
            .map(|(key, register)| (*key, register.known))
            .collect()
    }
}

/// One client of a volume.
struct Caller {
    cluster: Weak<Cluster>,
    calls: Arc<Calls>,
    volume: Arc<Volume>,
    env: Env,
    rng: Rng,
    number: u32,
    /// Its address, as the nodes see it.
    address: SocketAddr,
    node: usize,
    connection: Option<Stream>,
    /// Abandoned connections, which stay open.
    left: VecDeque<Stream>,
}

/// Reasons for a missing answer.
enum Unanswered {
    Later,
    /// The connection ended.
    Ended,
    Silent,
    /// The client's address moved to another node.
    Moved(usize),
}

impl Cluster {
    /// Starts the clients that talk to any node.
    pub(super) fn start_callers(self: &Arc<Self>) {
        let Some(calls) = &self.calls else { return };
        let mut rng = Rng::new(self.scenario.seed ^ 0xca11_e500);
        for volume in self.volumes.all() {
            for nth in 0..calls.plan.caller_count {
                let caller = volume.nth as u32 * calls.plan.caller_count + nth;
                let [high, low] = (caller as u16).to_be_bytes();
                let ip = Ipv4Addr::new(10, 9, high, low);
                let caller = Caller {
                    cluster: Arc::downgrade(self),
                    calls: Arc::clone(calls),
                    volume: volume.clone(),
                    env: self.env.clone(),
                    rng: Rng::new(rng.u64()),
                    number: caller,
                    address: SocketAddr::new(ip.into(), 700),
                    node: rng.below(self.scenario.node_count as u64) as usize,
                    connection: None,
                    left: VecDeque::new(),
                };
                calls.running.fetch_add(1, Ordering::Relaxed);
                let calls = Arc::clone(calls);
                world_spawn(&self.env, async move {
                    caller.run().await;
                    calls.running.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    }

    /// Waits until each client was answered once more, and ends all of them.
    pub(super) async fn end_callers(&self) -> Result<(), String> {
        let Some(calls) = &self.calls else {
            return Ok(());
        };
        calls.forget_waiting();
        let before = calls.known();
        let since = self.clock.monotonic();
        loop {
            let now = calls.known();
            let there: Vec<VolumeId> = self
                .volumes
                .there()
                .iter()
                .filter_map(|it| it.id())
                .collect();
            let starved = before.iter().find(|((volume, caller), number)| {
                let is_there = there.contains(volume);
                is_there && now.get(&(*volume, *caller)) == Some(number)
            });
            let Some(((volume, caller), number)) = starved else {
                break;
            };
            if self.clock.monotonic().saturating_sub(since) >= ANSWER_MAX {
                return Err(format!(
                    "all is well, and client {caller} of volume {volume} is not answered after call {number}"
                ));
            }
            self.env.clock.sleep(LOOK).await;
        }
        calls.is_over.store(true, Ordering::Relaxed);
        while calls.running.load(Ordering::Relaxed) > 0 {
            self.env.clock.sleep(LOOK).await;
        }
        for index in 0..self.scenario.node_count {
            if let Some(process) = self.process(index) {
                process.end_forwarding();
            }
        }
        self.net.close(Port::Clients);
        self.net.close(Port::Forward);
        Ok(())
    }
}

impl Caller {
    async fn run(mut self) {
        let id = loop {
            match self.volume.id() {
                Some(id) => break id,
                None if self.is_over() => return,
                None => self.env.clock.sleep(LOOK).await,
            }
        };
        let mut number = 0;
        while !self.is_over() {
            number += 1;
            let call = Call {
                volume: id,
                caller: self.number,
                number,
            };
            while !self.is_over() {
                match self.ask(call).await {
                    Ok(()) => {
                        self.calls.is_answered(call);
                        break;
                    }
                    Err(why) => self.turn(why).await,
                }
            }
            let pause_us = self.rng.below(self.calls.plan.pause_ms_max * 1000 + 1);
            self.env.clock.sleep(Duration::from_micros(pause_us)).await;
        }
    }

    fn is_over(&self) -> bool {
        self.calls.are_over() || self.volume.terms.is_over()
    }

    async fn ask(&mut self, call: Call) -> Result<(), Unanswered> {
        if self.connection.is_none() {
            self.connection = Some(self.connect().await?);
        }
        let patience = self.patience();
        let Some(stream) = &mut self.connection else {
            return Err(Unanswered::Ended);
        };
        let (calls, node, address) = (&self.calls, self.node, self.address);
        let asking = async move {
            stream.write_all(&call.encode()).await?;
            stream.flush().await?;
            calls.note(Moment::Sent, call, node);
            let answer = Answer::from_byte(stream.read_u8().await?);
            answer.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        let (cluster, clock) = (self.cluster.clone(), self.env.clock.clone());
        let follows_address = self.calls.plan.turning == Turning::WithAddress;
        let since = clock.monotonic();
        let giving_up = async move {
            loop {
                clock.sleep(LOOK).await;
                if clock.monotonic().saturating_sub(since) >= patience {
                    return Unanswered::Silent;
                }
                let stamp = calls.stamps.lock().get(&address).copied();
                if follows_address
                    && let Some(stamp) = stamp
                    && let Some(to) = new_holder(&cluster, node, stamp)
                {
                    return Unanswered::Moved(to);
                }
            }
        };
        let asking = std::pin::pin!(asking);
        let giving_up = std::pin::pin!(giving_up);
        match select(asking, giving_up).await {
            Either::Left((Ok(Answer::Done), _)) => Ok(()),
            Either::Left((Ok(_), _)) => Err(Unanswered::Later),
            Either::Left((Err(_), _)) => Err(Unanswered::Ended),
            Either::Right((why, _)) => Err(why),
        }
    }

    async fn connect(&mut self) -> Result<Stream, Unanswered> {
        let cluster = self.cluster.upgrade().ok_or(Unanswered::Ended)?;
        self.calls.counts.lock().turns += 1;
        let from = NodeId(CLIENT_FIRST.0 + u128::from(self.number));
        let port = self.address.port().checked_add(1).unwrap_or(700);
        self.address.set_port(port);
        if self.calls.plan.has_two_addresses {
            let card = 9 + self.rng.below(2) as u8;
            let [high, low] = (self.number as u16).to_be_bytes();
            self.address
                .set_ip(Ipv4Addr::new(10, card, high, low).into());
        }
        let dialing = cluster.net.clone();
        let dialing = dialing.dial((from, self.address), node_id(self.node), Port::Clients);
        drop(cluster);
        let dialing = std::pin::pin!(dialing);
        match select(dialing, self.env.clock.sleep(DIAL_MAX)).await {
            Either::Left((Ok(stream), _)) => Ok(stream),
            // Nothing was sent, so the client need not wait for it.
            Either::Left((Err(_), _)) | Either::Right(_) => Err(Unanswered::Later),
        }
    }

    /// Time that it waits for an answer.
    fn patience(&mut self) -> Duration {
        let ms = match self.calls.plan.turning {
            Turning::Numbered => 1200 + self.rng.below(1800),
            Turning::WithAddress => 8000 + self.rng.below(2000),
            Turning::AfterSilence => 3200 + self.rng.below(500),
        };
        Duration::from_millis(ms)
    }

    async fn turn(&mut self, why: Unanswered) {
        let mut wait_ms = self.rng.below(100);
        match why {
            Unanswered::Later => {
                if self.connection.is_none() {
                    self.node = self.other();
                }
            }
            Unanswered::Ended => {
                self.connection = None;
                if self.calls.plan.turning != Turning::Numbered {
                    // Data that its node sent before it died may still arrive.
                    wait_ms += 2500;
                }
                if self.calls.plan.has_two_addresses {
                    // No node waits until it is done if the client comes from elsewhere.
                    wait_ms += 2000;
                }
                if self.rng.coin() {
                    self.node = self.other();
                }
            }
            Unanswered::Silent => {
                let left = self.connection.take();
                if self.rng.coin() {
                    self.left.extend(left);
                }
                if self.left.len() > LEFT_OPEN_MAX {
                    self.left.pop_front();
                }
                self.node = self.other();
            }
            Unanswered::Moved(to) => {
                // The node that had the address believes that the old connection still exists.
                let left = self.connection.take();
                self.left.extend(left);
                self.node = to;
                wait_ms = 0;
            }
        }
        self.env.clock.sleep(Duration::from_millis(wait_ms)).await;
    }

    fn other(&mut self) -> usize {
        let Some(cluster) = self.cluster.upgrade() else {
            return self.node;
        };
        let count = cluster.scenario.node_count;
        let by = 1 + self.rng.below(count as u64 - 1) as usize;
        (self.node + by) % count
    }
}

/// A node that knows that this term of another one has ended, so that it may have the address. A node whose map is
/// older than the connection may not have heard yet that the term began.
fn new_holder(cluster: &Weak<Cluster>, node: usize, stamp: Stamp) -> Option<usize> {
    let cluster = cluster.upgrade()?;
    let count = cluster.scenario.node_count;
    (1..count).map(|by| (node + by) % count).find(|other| {
        let Some(process) = cluster.process(*other) else {
            return false;
        };
        let view = process.member.view();
        let alive = view.alive.get(&node_id(node));
        let has_ended = alive.is_none_or(|alive| alive.value.process.0 != stamp.term.0);
        process.member.lease_is_valid() && view.revision.0 >= stamp.revision && has_ended
    })
}
