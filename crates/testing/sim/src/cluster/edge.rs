//! A node as its clients see it: it reads their calls, forwards them to the owner of a volume, and does those for its
//! own volumes.
//!
//! Owns: the parts that `cairn-node` and the edges play around [`Forward`], for a protocol of one call. Must not know:
//! the caller, the faults.

use std::collections::VecDeque;
use std::collections::btree_map::{self, BTreeMap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Env};
use cairn_base::{Epoch, NodeId, VolumeId};
use cairn_cluster::map::MapView;
use cairn_forward::{
    Accepts, Admission, ConnectError, Door, Entry, Forward, Incoming, MapTerms, Nodes, Serve,
    Service, Term,
};
use cairn_owner::ClusterMember;
use cairn_pool::{Pool, VolumeService};
use cairn_testkit::Rng;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::calls::{Answer, Begun, Call, Calls, Moment};
use super::net::{Net, Port, Stream};
use super::node::node_id;
use super::volumes::Volumes;

/// A call waits this long for an owner that answers it.
const HOLD_MAX: Duration = Duration::from_secs(12);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The cluster as a node knows it.
struct SimNodes {
    net: Net,
    member: Arc<ClusterMember>,
}

impl Nodes for SimNodes {
    fn own(&self) -> NodeId {
        self.member.node()
    }

    fn others(&self) -> Vec<NodeId> {
        let (own, view) = (self.member.node(), self.member.view());
        let nodes = view.nodes.keys().copied();
        nodes.filter(|node| *node != own).collect()
    }

    fn name(&self, node: NodeId) -> String {
        node.to_string()
    }

    fn is_alive(&self, node: NodeId) -> bool {
        self.member.view().alive.contains_key(&node)
    }

    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
        let view = self.member.view();
        let ids = view.volumes.keys();
        ids.map(|id| (*id, self.member.owner(*id))).collect()
    }

    fn volume_name(&self, volume: VolumeId) -> String {
        volume.to_string()
    }

    fn lost(&self, volume: VolumeId, owner: NodeId) -> BoxFuture<()> {
        let (mut views, member) = (self.member.views(), Arc::clone(&self.member));
        Box::pin(async move {
            while member.owner(volume) == Some(owner) {
                if views.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    fn dial(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn cairn_forward::Stream>>> {
        let dialing = self.net.clone();
        let dialing = dialing.dial_node(self.member.node(), node, Port::Forward);
        Box::pin(async move {
            let stream = dialing.await?;
            Ok(Box::new(stream) as Box<dyn cairn_forward::Stream>)
        })
    }
}

fn terms_of(view: &MapView) -> MapTerms {
    let alive = view.alive.iter();
    MapTerms {
        revision: view.revision.0,
        alive: alive
            .map(|(node, record)| (*node, Term(record.value.process.0)))
            .collect(),
    }
}

/// This node's side of asking owners and of being asked.
pub fn forward(env: &Env, net: &Net, member: &Arc<ClusterMember>) -> Result<Arc<Forward>, String> {
    let nodes = SimNodes {
        net: net.clone(),
        member: Arc::clone(member),
    };
    let own = Arc::clone(member);
    let own_term = move || {
        let process = own.process().filter(|_| own.lease_is_valid())?;
        Some(Term(process.nonce.0))
    };
    let forward = Forward::new(env.clone(), Arc::new(nodes), own_term);
    forward.map_err(|error| error.to_string())
}

/// A node, for its clients and for other nodes that forward calls.
pub struct Edge {
    index: usize,
    env: Env,
    forward: Arc<Forward>,
    member: Arc<ClusterMember>,
    calls: Arc<Calls>,
}

impl Edge {
    /// Accepts connections of clients and of other nodes from now on.
    pub fn start(
        index: usize,
        env: &Env,
        net: &Net,
        forward: &Arc<Forward>,
        member: &Arc<ClusterMember>,
        owned: Owned,
    ) {
        let calls = Arc::clone(&owned.calls);
        forward.handle(Service::Rpc, Arc::new(owned));
        let weak = Arc::downgrade(forward);
        let learning = Forward::follow(weak, member.views(), |view| terms_of(view));
        env.spawner.spawn("terms of nodes", Box::pin(learning));

        let (serving, spawner) = (Arc::downgrade(forward), Arc::clone(&env.spawner));
        let listener = Arc::new(move |(from, _), stream| {
            if let Some(forward) = serving.upgrade() {
                let serve = async move { forward.serve(from, Box::new(stream)).await };
                spawner.spawn("forwarded", Box::pin(serve));
            }
        });
        net.listen(node_id(index), Port::Forward, listener);

        let queue = Arc::new(Queue::new(calls.plan.hears_late));
        let kernel = Arc::clone(&queue);
        let listener = Arc::new(move |(_, client), stream| kernel.push(stream, client));
        net.listen(node_id(index), Port::Clients, listener);
        let edge = Arc::new(Self {
            index,
            env: env.clone(),
            forward: Arc::clone(forward),
            member: Arc::clone(member),
            calls,
        });
        let accepting = async move {
            let mut door = Door::new(Some(Arc::clone(&edge.forward)));
            while let Ok((stream, client, entry)) = door.accept(&*queue).await {
                let serving = Arc::clone(&edge).serve(stream, client, entry);
                edge.env.spawner.spawn("client", Box::pin(serving));
            }
        };
        env.spawner.spawn("accepting", Box::pin(accepting));
    }

    /// Serves a client until its connection ends.
    async fn serve(self: Arc<Self>, mut stream: Stream, client: SocketAddr, entry: Entry) {
        let Ok(Some(admission)) = entry.admit(client).await else {
            return;
        };
        self.calls.admitted(client, admission.stamp());
        let ended = admission.ended();
        let serving = async {
            let mut ways = BTreeMap::new();
            loop {
                let mut call = [0; Call::LEN_BYTES];
                if stream.read_exact(&mut call).await.is_err() || !admission.is_live() {
                    return;
                }
                let (call, read_at) = (Call::decode(call), admission.now());
                self.calls.note(Moment::Read, call, self.index);
                let Some(answer) = self.pass(&mut ways, &admission, call, read_at).await else {
                    return;
                };
                let told = async {
                    stream.write_u8(answer as u8).await?;
                    stream.flush().await
                };
                if told.await.is_err() {
                    return;
                }
            }
        };
        let (ended, serving) = (std::pin::pin!(ended), std::pin::pin!(serving));
        let _ = select(ended, serving).await;
    }

    /// Has the owner do a call. `None`: the client's connection must end.
    async fn pass(
        &self,
        ways: &mut BTreeMap<NodeId, Box<dyn cairn_forward::Stream>>,
        admission: &Arc<Admission>,
        call: Call,
        read_at: Duration,
    ) -> Option<Answer> {
        let clock = &self.env.clock;
        let mut was_sent = false;
        let since = clock.monotonic();
        loop {
            let held = clock.monotonic().saturating_sub(since);
            let left = HOLD_MAX.saturating_sub(held);
            if left.is_zero() && !was_sent {
                return Some(Answer::Later);
            }
            if left.is_zero() {
                admission.end_late();
                return None;
            }
            let Some(owner) = self.member.owner(call.volume) else {
                clock.sleep(ASK_AGAIN / 2).await;
                continue;
            };
            let asked = {
                let asking = self.ask(ways, owner, admission, call, read_at, &mut was_sent);
                let lost = async {
                    let lost = self.forward.nodes().lost(call.volume, owner);
                    let _ = select(lost, clock.sleep(left)).await;
                };
                let (asking, lost) = (std::pin::pin!(asking), std::pin::pin!(lost));
                match select(asking, lost).await {
                    Either::Left((asked, _)) => Some(asked),
                    Either::Right(_) => None,
                }
            };
            match asked {
                Some(Ok(Answer::NotOwner)) | None => {}
                Some(Ok(answer)) => return Some(answer),
                Some(Err(ConnectError::Ended(_))) => {
                    admission.end_late();
                    return None;
                }
                Some(Err(ConnectError::NotServed | ConnectError::Io(_))) => {}
            }
            // A late answer would be taken for the answer to another call.
            ways.remove(&owner);
            clock.sleep(ASK_AGAIN).await;
        }
    }

    async fn ask(
        &self,
        ways: &mut BTreeMap<NodeId, Box<dyn cairn_forward::Stream>>,
        owner: NodeId,
        admission: &Arc<Admission>,
        call: Call,
        read_at: Duration,
        was_sent: &mut bool,
    ) -> Result<Answer, ConnectError> {
        let served = self.forward.until_served(call.volume, owner, admission);
        served.await?;
        let way = match ways.entry(owner) {
            btree_map::Entry::Occupied(way) => way.into_mut(),
            btree_map::Entry::Vacant(way) => {
                let made = self.forward.connect(owner, Service::Rpc, admission);
                way.insert(made.await?)
            }
        };
        if !admission.is_fresh(read_at) {
            return Err(ConnectError::Ended(cairn_forward::Refused::Late));
        }
        *was_sent = true;
        way.write_all(&call.encode()).await?;
        way.flush().await?;
        self.calls.note(Moment::Passed, call, self.index);
        let answer = Answer::from_byte(way.read_u8().await?);
        answer.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData).into())
    }
}

/// Connections that were not accepted yet, as a kernel keeps them for a suspended process.
struct Queue {
    hears_late: bool,
    queued: Mutex<Queued>,
}

#[derive(Default)]
struct Queued {
    connections: VecDeque<(Stream, SocketAddr)>,
    /// Number of these that the runtime of the process has heard of, if it hears late.
    heard: usize,
    waiting: Option<Waker>,
}

impl Queue {
    fn new(hears_late: bool) -> Self {
        Self {
            hears_late,
            queued: Mutex::default(),
        }
    }

    fn push(&self, stream: Stream, client: SocketAddr) {
        let mut queued = self.queued.lock();
        queued.connections.push_back((stream, client));
        if let Some(waker) = queued.waiting.take() {
            waker.wake();
        }
    }
}

impl Accepts for Queue {
    type Stream = Stream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let mut queued = self.queued.lock();
        if (!self.hears_late || queued.heard > 0)
            && let Some(connection) = queued.connections.pop_front()
        {
            queued.heard = queued.heard.saturating_sub(1);
            return Poll::Ready(Ok(connection));
        }
        // The runtime hears of these connections in this turn, and reports them in the next one.
        queued.heard = queued.connections.len();
        match queued.heard {
            0 => queued.waiting = Some(cx.waker().clone()),
            _ => cx.waker().wake_by_ref(),
        }
        Poll::Pending
    }

    fn turn_away(stream: Stream) {
        drop(stream);
    }

    fn turn_waiting_away(&self) -> io::Result<()> {
        let waiting = {
            let mut queued = self.queued.lock();
            queued.heard = 0;
            std::mem::take(&mut queued.connections)
        };
        waiting.into_iter().for_each(|(stream, _)| drop(stream));
        Ok(())
    }
}

/// Does the calls for the volumes that this node owns.
pub struct Owned {
    pub index: usize,
    pub env: Env,
    pub member: Arc<ClusterMember>,
    pub pool: Weak<Pool>,
    pub volumes: Arc<Volumes>,
    pub calls: Arc<Calls>,
    pub rng: Arc<Mutex<Rng>>,
}

impl Serve for Owned {
    fn serve(self: Arc<Self>, mut incoming: Incoming) -> BoxFuture<()> {
        Box::pin(async move {
            let admission = Arc::clone(&incoming.admission);
            let ended = admission.ended();
            let serving = async {
                loop {
                    let mut call = [0; Call::LEN_BYTES];
                    let read = incoming.stream.read_exact(&mut call).await;
                    // Between reading and doing.
                    if read.is_err() || !incoming.admission.is_live() {
                        return;
                    }
                    let answer = self.begin(Call::decode(call), &incoming.admission);
                    let answer = answer.await.unwrap_or(Answer::NotOwner);
                    let told = async {
                        incoming.stream.write_u8(answer as u8).await?;
                        incoming.stream.flush().await
                    };
                    if told.await.is_err() {
                        return;
                    }
                }
            };
            let (ended, serving) = (std::pin::pin!(ended), std::pin::pin!(serving));
            let _ = select(ended, serving).await;
        })
    }
}

impl Owned {
    /// The epoch in which this node serves the volume.
    fn served_in(&self, volume: VolumeId) -> Option<Epoch> {
        let service = self.pool.upgrade()?.service(volume)?;
        let VolumeService::Serving(fs) = service else {
            return None;
        };
        self.member.lease_is_valid().then(|| fs.meta().epoch())
    }

    /// A begun call goes on when its connection ends, and holds its admission.
    fn begin(&self, call: Call, admission: &Arc<Admission>) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let Some(epoch) = self.served_in(call.volume) else {
            // The receiver exists.
            let _ = sender.send(Answer::NotOwner);
            return answer;
        };
        self.calls.note(Moment::Begun, call, self.index);
        let arrival = match self.calls.begin(call, epoch) {
            Begun::Again(answer) => return answer,
            Begun::New(arrival) => arrival,
        };
        let took_us = {
            let mut rng = self.rng.lock();
            match rng.below(16) {
                long if long < self.calls.plan.long_in_16 => 200_000 + rng.below(1_300_000),
                0..6 => 1000 + rng.below(30_000),
                _ => rng.below(1000),
            }
        };
        let (admission, clock) = (Arc::clone(admission), Arc::clone(&self.env.clock));
        let (calls, volumes) = (Arc::clone(&self.calls), Arc::clone(&self.volumes));
        let doing = async move {
            clock.sleep(Duration::from_micros(took_us)).await;
            // Otherwise the log refuses it.
            let is_last = volumes.epoch_last(call.volume) == Some(epoch);
            let answer = match is_last {
                true => Answer::Done,
                false => Answer::NotOwner,
            };
            calls.end(call, epoch, answer, arrival);
            drop(admission);
            // The connection may have ended.
            let _ = sender.send(answer);
        };
        self.env.spawner.spawn("a call", Box::pin(doing));
        answer
    }
}
