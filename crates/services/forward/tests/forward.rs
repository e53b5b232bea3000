//! No late call of a client is executed after a newer one: each rule, and what happens where it is left out.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Env};
use cairn_base::planted::{Bug, is_noticed_by};
use cairn_base::{NodeId, VolumeId};
use cairn_forward::{
    Accepts, Admission, BEAT_INTERVAL, ConnectError, Door, End, FRESH_MAX, Forward, Incoming,
    MapTerms, Nodes, Refused, Serve, Service, Stamp, Stream, Term,
};
use cairn_testkit::{ManualClock, TestWorld};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const OWNER: NodeId = NodeId(1);
const EDGE: NodeId = NodeId(2);
const VOLUME: VolumeId = VolumeId(7);

/// Ways to other nodes of this process; each can be held up.
struct Ways {
    own: NodeId,
    nodes: Arc<Mutex<BTreeMap<NodeId, Arc<Forward>>>>,
    way: Arc<Way>,
}

/// What lies between the edge and the owner.
#[derive(Default)]
struct Way {
    /// Nothing gets through while it is cut.
    is_cut: tokio::sync::watch::Sender<bool>,
}

impl Nodes for Ways {
    fn own(&self) -> NodeId {
        self.own
    }

    fn others(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn name(&self, node: NodeId) -> String {
        node.to_string()
    }

    fn is_alive(&self, _: NodeId) -> bool {
        true
    }

    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
        Vec::new()
    }

    fn volume_name(&self, volume: VolumeId) -> String {
        volume.to_string()
    }

    fn lost(&self, _: VolumeId, _: NodeId) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }

    fn dial(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        let found = self.nodes.lock().get(&node).cloned();
        let (own, way) = (self.own, Arc::clone(&self.way));
        Box::pin(async move {
            let far = found.ok_or(io::ErrorKind::ConnectionRefused)?;
            let (near, middle_near) = tokio::io::duplex(1 << 16);
            let (middle_far, end) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move { far.serve(own, Box::new(end)).await });
            let (from_near, to_near) = tokio::io::split(middle_near);
            let (from_far, to_far) = tokio::io::split(middle_far);
            tokio::spawn(carry(from_near, to_far, Arc::clone(&way)));
            tokio::spawn(carry(from_far, to_near, way));
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }
}

async fn carry(
    mut from: tokio::io::ReadHalf<DuplexStream>,
    mut to: tokio::io::WriteHalf<DuplexStream>,
    way: Arc<Way>,
) {
    let mut is_cut = way.is_cut.subscribe();
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let _ = is_cut.wait_for(|is_cut| !is_cut).await;
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Notes the executed calls.
#[derive(Default)]
struct Executed(Mutex<Vec<u8>>, Mutex<Vec<Arc<Admission>>>);

impl Serve for Executed {
    fn serve(self: Arc<Self>, mut incoming: Incoming) -> BoxFuture<()> {
        Box::pin(async move {
            self.1.lock().push(Arc::clone(&incoming.admission));
            let ended = incoming.admission.ended();
            let mut ended = pin!(ended);
            loop {
                let call = tokio::select! {
                    biased;
                    _ = &mut ended => return,
                    call = incoming.stream.read_u8() => call,
                };
                let Ok(call) = call else { return };
                if !incoming.admission.is_live() {
                    return;
                }
                self.0.lock().push(call);
            }
        })
    }
}

struct Cluster {
    clock: ManualClock,
    env: Env,
    owner: Arc<Forward>,
    edge: Arc<Forward>,
    executed: Arc<Executed>,
    way: Arc<Way>,
    edge_term: Arc<Mutex<Option<Term>>>,
}

fn terms(revision: u64, edge: Option<u128>) -> MapTerms {
    let edge = edge.map(|term| (EDGE, Term(term)));
    MapTerms {
        revision,
        alive: [(OWNER, Term(1))].into_iter().chain(edge).collect(),
    }
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 9], port))
}

impl Cluster {
    async fn new() -> Self {
        let TestWorld { env, clock } = TestWorld::new(5);
        clock.advance(Duration::from_secs(1000));
        let (nodes, way) = (
            Arc::<Mutex<BTreeMap<_, _>>>::default(),
            Arc::<Way>::default(),
        );
        let ways = |own| {
            Arc::new(Ways {
                own,
                nodes: Arc::clone(&nodes),
                way: Arc::clone(&way),
            })
        };
        let owner = Forward::new(env.clone(), ways(OWNER), || Some(Term(1))).unwrap();
        let edge_term = Arc::new(Mutex::new(Some(Term(2))));
        let term = Arc::clone(&edge_term);
        let edge = Forward::new(env.clone(), ways(EDGE), move || *term.lock()).unwrap();
        nodes.lock().insert(OWNER, Arc::clone(&owner));
        let executed = Arc::new(Executed::default());
        owner.handle(Service::Rpc, Arc::clone(&executed) as _);
        owner.serve_volumes([VOLUME]);
        for forward in [&owner, &edge] {
            forward.learn(terms(1, Some(2))).await;
        }
        Self {
            clock,
            env,
            owner,
            edge,
            executed,
            way,
            edge_term,
        }
    }

    async fn admit(&self, port: u16) -> Arc<Admission> {
        let (now, generation) = (self.edge.now(), self.edge.pulse().generation());
        let registry = self.edge.registry();
        registry
            .admit_client(client(port), now, generation)
            .await
            .unwrap()
    }

    async fn stream(&self, admission: &Arc<Admission>) -> Box<dyn Stream> {
        let connected = self.edge.connect(OWNER, Service::Rpc, admission).await;
        connected.unwrap()
    }

    fn executed(&self) -> Vec<u8> {
        self.executed.0.lock().clone()
    }

    /// Everything that can be done without time is done.
    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    /// Time passes while both processes run.
    async fn pass(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = BEAT_INTERVAL.min(left);
            self.clock.advance(step);
            for forward in [&self.owner, &self.edge] {
                forward.pulse().generation();
            }
            self.settle().await;
            left -= step;
        }
    }

    async fn send(&self, stream: &mut Box<dyn Stream>, call: u8) -> io::Result<()> {
        stream.write_all(&[call]).await?;
        stream.flush().await?;
        self.settle().await;
        Ok(())
    }
}

async fn is_pending(future: impl Future) -> bool {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[tokio::test]
async fn calls_reach_the_owner_for_as_long_as_both_live() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let mut stream = cluster.stream(&admission).await;
    for call in 0..100 {
        cluster.send(&mut stream, call).await.unwrap();
        cluster.pass(Duration::from_millis(90)).await;
    }
    assert_eq!(cluster.executed(), (0..100).collect::<Vec<u8>>());
    // A large write in one piece, and in the smallest.
    let many = vec![7; 3 << 20];
    let executed = Arc::clone(&cluster.executed);
    let writing = async {
        stream.write_all(&many).await.unwrap();
        stream.flush().await.unwrap();
        while executed.0.lock().len() < 100 + many.len() {
            tokio::task::yield_now().await;
        }
    };
    writing.await;
}

#[tokio::test]
async fn the_owner_refuses_a_term_that_it_knows_to_have_ended() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let mut stream = cluster.stream(&admission).await;
    cluster.send(&mut stream, 1).await.unwrap();
    // The end of the term reaches the owner alone. Its streams are ended, and released.
    let learning = cluster.owner.learn(terms(2, None));
    let mut learning = pin!(learning);
    assert!(is_pending(learning.as_mut()).await, "what it began goes on");
    cluster.settle().await;
    cluster.executed.1.lock().clear();
    learning.await;
    let _ = cluster.send(&mut stream, 2).await;
    assert_eq!(cluster.executed(), [1]);
    let again = cluster.edge.connect(OWNER, Service::Rpc, &admission).await;
    assert!(matches!(
        again,
        Err(ConnectError::Ended(Refused::TermEnded))
    ));
    // A later term of the node is another one.
    cluster.owner.learn(terms(3, Some(3))).await;
    let stamp = |term, revision| Stamp {
        node: EDGE,
        term: Term(term),
        revision,
    };
    let registry = cluster.owner.registry();
    assert!(registry.admit(stamp(3, 3), client(1)).await.is_ok());
    let old = registry.admit(stamp(2, 1), client(1)).await;
    assert_eq!(old.err(), Some(Refused::TermEnded));
}

#[tokio::test]
async fn the_owner_learns_the_map_before_it_executes_what_came_with_news() {
    let cluster = Cluster::new().await;
    let registry = cluster.owner.registry();
    let stamp = Stamp {
        node: EDGE,
        term: Term(2),
        revision: 2,
    };
    let admitting = registry.admit(stamp, client(1));
    let mut admitting = pin!(admitting);
    assert!(is_pending(admitting.as_mut()).await);
    cluster.owner.learn(terms(2, Some(2))).await;
    assert!(admitting.await.is_ok());
    // The news never come.
    let far = Stamp {
        revision: 9,
        ..stamp
    };
    let admitting = registry.admit(far, client(1));
    let mut admitting = pin!(admitting);
    assert!(is_pending(admitting.as_mut()).await);
    cluster.pass(Duration::from_secs(5)).await;
    assert_eq!(admitting.await.err(), Some(Refused::Behind));
}

/// The owner does not know yet what the edge knew when it admitted the client.
#[tokio::test]
async fn a_stream_brings_the_news_of_its_admission() {
    let cluster = Cluster::new().await;
    // From then on the edge has beats of the owner.
    let first = cluster.admit(1).await;
    drop(cluster.stream(&first).await);
    cluster.edge.learn(terms(2, Some(2))).await;
    let admission = cluster.admit(2).await;
    let connecting = cluster.edge.connect(OWNER, Service::Rpc, &admission);
    let mut connecting = pin!(connecting);
    assert!(is_pending(connecting.as_mut()).await);
    cluster.settle().await;
    assert!(is_pending(connecting.as_mut()).await, "it is admitted");
    cluster.owner.learn(terms(2, Some(2))).await;
    assert!(connecting.await.is_ok());
}

/// Calls that began under an ended term are finished before any call is executed that came with the news of its end.
#[tokio::test]
async fn news_are_settled_once_what_began_before_is_finished() {
    let cluster = Cluster::new().await;
    let registry = cluster.owner.registry();
    let stamp = |term, revision| Stamp {
        node: EDGE,
        term: Term(term),
        revision,
    };
    let begun = registry.admit(stamp(2, 1), client(1)).await.unwrap();
    assert!(begun.is_live());
    let learning = cluster.owner.learn(terms(2, Some(3)));
    let mut learning = pin!(learning);
    assert!(is_pending(learning.as_mut()).await);
    assert!(!begun.is_live(), "it begins nothing more");
    assert_eq!(begun.ended().await, End::Term);
    let newer = registry.admit(stamp(3, 2), client(1));
    let mut newer = pin!(newer);
    assert!(is_pending(newer.as_mut()).await);
    // A term that goes on, whose stream brings no news: its calls may be older than those.
    let older = registry.admit(
        Stamp {
            node: OWNER,
            term: Term(1),
            revision: 1,
        },
        SocketAddr::from(([10, 0, 0, 8], 1)),
    );
    assert!(older.await.is_ok());
    drop(begun);
    learning.await;
    assert!(newer.await.unwrap().is_live());
}

/// What an older map ended is not finished, and a newer one comes: who is admitted then brings the newer one to owners.
#[tokio::test]
async fn a_newer_map_does_not_wait_for_what_an_older_one_ended() {
    let cluster = Cluster::new().await;
    let registry = Arc::clone(cluster.owner.registry());
    let stamp = Stamp {
        node: EDGE,
        term: Term(2),
        revision: 1,
    };
    let begun = registry.admit(stamp, client(1)).await.unwrap();
    let (news, views) = tokio::sync::watch::channel(terms(1, Some(2)));
    let owner = Arc::downgrade(&cluster.owner);
    tokio::spawn(Forward::follow(owner, views, MapTerms::clone));
    for revision in [2, 3] {
        cluster.settle().await;
        news.send_replace(terms(revision, None));
    }
    cluster.settle().await;
    assert!(!begun.is_live());
    let mut admitting = pin!(registry.admit_own());
    assert!(is_pending(admitting.as_mut()).await);
    drop(begun);
    assert_eq!(admitting.await.unwrap().stamp().revision, 3);
}

/// A client that comes again waits for what its connection before had begun, though no term has ended.
#[tokio::test]
async fn a_client_that_comes_again_waits_for_what_it_had_begun() {
    let cluster = Cluster::new().await;
    let registry = cluster.owner.registry();
    let stamp = Stamp {
        node: EDGE,
        term: Term(2),
        revision: 1,
    };
    let begun = registry.admit(stamp, client(1)).await.unwrap();
    registry.end_streams(EDGE, Term(2));
    assert_eq!(begun.ended().await, End::Silent);
    let again = registry.admit(stamp, client(2));
    let mut again = pin!(again);
    assert!(is_pending(again.as_mut()).await);
    let of_another = SocketAddr::from(([10, 0, 0, 8], 1));
    assert!(registry.admit(stamp, of_another).await.is_ok());
    drop(begun);
    assert!(again.await.is_ok());
}

#[tokio::test]
async fn bytes_that_were_on_their_way_for_long_are_refused() {
    for (delay, want) in [(FRESH_MAX / 2, vec![1, 2]), (FRESH_MAX * 2, vec![1])] {
        let cluster = Cluster::new().await;
        let admission = cluster.admit(1).await;
        let mut stream = cluster.stream(&admission).await;
        cluster.send(&mut stream, 1).await.unwrap();
        cluster.way.is_cut.send_replace(true);
        cluster.send(&mut stream, 2).await.unwrap();
        cluster.pass(delay).await;
        cluster.way.is_cut.send_replace(false);
        cluster.settle().await;
        assert_eq!(cluster.executed(), want, "{delay:?}");
    }
}

/// The edge stands still with a call that it has read; nobody's term ends.
#[tokio::test]
async fn a_process_that_stood_still_passes_nothing_on() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let read_at = admission.now();
    let mut stream = cluster.stream(&admission).await;
    cluster.send(&mut stream, 1).await.unwrap();
    assert!(admission.is_fresh(read_at));
    let before = cluster.edge.pulse().generation();
    // Only the owner's process runs.
    for _ in 0..20 {
        cluster.clock.advance(BEAT_INTERVAL);
        cluster.owner.pulse().generation();
    }
    assert!(!admission.is_fresh(read_at), "the first look notices it");
    assert!(cluster.send(&mut stream, 2).await.is_err());
    assert_eq!(admission.ended().await, End::Standstill);
    assert_eq!(cluster.executed(), [1]);
    assert!(cluster.edge.pulse().generation() > before);
    // A connection that was accepted before is refused, one that comes now is not.
    let registry = cluster.edge.registry();
    let late = registry.admit_client(client(2), read_at, before).await;
    assert_eq!(late.err(), Some(Refused::Late));
    drop((admission, stream));
    // The owner has ended the stream, and what it had begun is released.
    cluster.settle().await;
    cluster.executed.1.lock().clear();
    let admission = cluster.admit(3).await;
    let mut stream = cluster.stream(&admission).await;
    cluster.send(&mut stream, 3).await.unwrap();
    assert_eq!(cluster.executed(), [1, 3]);
}

/// The owner stands still, with calls on its streams.
#[tokio::test]
async fn an_owner_that_stood_still_executes_nothing_that_came_meanwhile() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let mut stream = cluster.stream(&admission).await;
    cluster.send(&mut stream, 1).await.unwrap();
    // Bytes come while it stands still, and it notices when it goes on.
    stream.write_all(&[2]).await.unwrap();
    cluster.clock.advance(FRESH_MAX * 2);
    cluster.settle().await;
    assert_eq!(cluster.executed(), [1]);
}

#[tokio::test]
async fn an_old_change_goes_to_nobody() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let read_at = admission.now();
    cluster.pass(FRESH_MAX).await;
    assert!(admission.is_fresh(read_at));
    cluster.pass(Duration::from_millis(1)).await;
    assert!(!admission.is_fresh(read_at));
    assert!(admission.is_fresh(admission.now()));
    admission.end_late();
    assert!(!admission.is_fresh(admission.now()));
    assert_eq!(admission.ended().await, End::Late);
}

#[tokio::test]
async fn who_is_silent_is_noticed_at_both_ends() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let mut stream = cluster.stream(&admission).await;
    cluster.send(&mut stream, 1).await.unwrap();
    let link = cluster.edge.link(OWNER, &admission).await.unwrap();
    assert!(link.beat().is_some());
    cluster.way.is_cut.send_replace(true);
    cluster.pass(FRESH_MAX * 3).await;
    assert!(link.beat().is_none());
    link.over().await;
    assert!(cluster.send(&mut stream, 2).await.is_err());
    let served = cluster.executed.1.lock()[0].clone();
    assert_eq!(served.ended().now_or_never(), Some(End::Silent));
    drop(served);
    cluster.executed.1.lock().clear();
    // Both go on when the way is there again.
    cluster.way.is_cut.send_replace(false);
    cluster.pass(FRESH_MAX).await;
    let admission = cluster.admit(2).await;
    let mut stream = cluster.stream(&admission).await;
    cluster.send(&mut stream, 3).await.unwrap();
    assert_eq!(cluster.executed(), [1, 3]);
}

#[tokio::test]
async fn an_owner_tells_what_it_serves() {
    let cluster = Cluster::new().await;
    let admission = cluster.admit(1).await;
    let served = cluster.edge.until_served(VOLUME, OWNER, &admission).await;
    served.unwrap();
    let other = VolumeId(8);
    let waiting = cluster.edge.until_served(other, OWNER, &admission);
    let mut waiting = pin!(waiting);
    assert!(is_pending(waiting.as_mut()).await);
    cluster.owner.serve_volumes([VOLUME, other]);
    cluster.settle().await;
    waiting.await.unwrap();
    let gone = cluster
        .edge
        .until_served(VOLUME, NodeId(9), &admission)
        .await;
    assert!(gone.is_err());
}

/// Without a lease nobody is admitted; a connection that waited for one for long is closed.
#[tokio::test]
async fn a_node_without_a_lease_lets_its_clients_wait() {
    for (waits, want) in [(FRESH_MAX / 2, None), (FRESH_MAX * 2, Some(Refused::Late))] {
        let cluster = Cluster::new().await;
        let before = cluster.admit(1).await;
        *cluster.edge_term.lock() = None;
        assert!(!before.is_live());
        assert!(matches!(
            cluster.edge.connect(OWNER, Service::Rpc, &before).await,
            Err(ConnectError::Ended(_))
        ));
        let registry = Arc::clone(cluster.edge.registry());
        let (now, generation) = (cluster.edge.now(), cluster.edge.pulse().generation());
        let admitting =
            tokio::spawn(async move { registry.admit_client(client(2), now, generation).await });
        cluster.settle().await;
        cluster.pass(waits).await;
        assert!(!admitting.is_finished());
        drop(before);
        *cluster.edge_term.lock() = Some(Term(4));
        // The map has to show it, too.
        cluster.pass(BEAT_INTERVAL * 2).await;
        assert!(!admitting.is_finished());
        cluster.edge.learn(terms(2, Some(4))).await;
        cluster.pass(BEAT_INTERVAL * 2).await;
        let admitted = admitting.await.unwrap();
        assert_eq!(admitted.as_ref().err().copied(), want);
        if let Ok(admission) = admitted {
            assert_eq!(admission.stamp().term, Term(4));
            assert_eq!(admission.stamp().revision, 2);
        }
        let _ = &cluster.env;
    }
}

/// Connections that wait in a kernel, by number.
#[derive(Default)]
struct Queue(Mutex<std::collections::VecDeque<u16>>);

impl Accepts for Queue {
    type Stream = ();

    fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<((), SocketAddr)>> {
        match self.0.lock().pop_front() {
            Some(port) => Poll::Ready(Ok(((), client(port)))),
            None => Poll::Pending,
        }
    }

    fn turn_away((): ()) {}

    fn turn_waiting_away(&self) -> io::Result<()> {
        self.0.lock().clear();
        Ok(())
    }
}

/// What waited to be accepted while the process stood still may bring old calls; what comes after does not.
#[tokio::test]
async fn connections_that_waited_in_a_standstill_are_turned_away() {
    let cluster = Cluster::new().await;
    let queue = Queue::default();
    let mut door = Door::new(Some(Arc::clone(&cluster.edge)));
    queue.0.lock().push_back(1);
    let (_, peer, _) = door.accept(&queue).await.unwrap();
    assert_eq!(peer, client(1));
    queue.0.lock().extend([2, 3]);
    cluster.clock.advance(FRESH_MAX * 2);
    {
        let mut accepting = pin!(door.accept(&queue));
        assert!(is_pending(accepting.as_mut()).await, "both are turned away");
        queue.0.lock().push_back(4);
        let (_, peer, entry) = accepting.await.unwrap();
        assert_eq!(peer, client(4));
        assert!(entry.admit(peer).await.unwrap().is_some());
    }
}

/// The runtime hears of what the kernel has only when all tasks wait: until then nothing seems to be there.
#[tokio::test]
async fn connections_that_the_runtime_has_not_heard_of_are_turned_away_as_well() {
    let cluster = Cluster::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut door = Door::new(Some(Arc::clone(&cluster.edge)));
    {
        let mut accepting = pin!(door.accept(&listener));
        assert!(is_pending(accepting.as_mut()).await, "nobody is there");
    }
    // From here on without a pause of this task.
    let mut waited = std::net::TcpStream::connect(address).unwrap();
    waited.write_all(b"an old call").unwrap();
    cluster.clock.advance(FRESH_MAX * 2);
    // Another thread notices it first.
    cluster.edge.pulse().generation();
    let mut accepting = pin!(door.accept(&listener));
    assert!((&mut accepting).now_or_never().is_none());
    let newer = std::net::TcpStream::connect(address).unwrap();
    let (_, peer, _) = accepting.await.unwrap();
    assert_eq!(peer, newer.local_addr().unwrap());
    waited
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let ended = waited.read(&mut [0; 1]);
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// Connections that a kernel has, each with how many standstills there were when it came, and how many of them the runtime has
/// heard of.
#[derive(Default)]
struct Kernel(Mutex<(std::collections::VecDeque<u32>, usize)>);

impl Accepts for Kernel {
    type Stream = u32;

    fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<(u32, SocketAddr)>> {
        let (connections, heard) = &mut *self.0.lock();
        if *heard == 0 {
            return Poll::Pending;
        }
        *heard -= 1;
        let came_in = connections.pop_front().expect("heard of");
        Poll::Ready(Ok((came_in, client(1))))
    }

    fn turn_away(_: u32) {}

    fn turn_waiting_away(&self) -> io::Result<()> {
        *self.0.lock() = Default::default();
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrives,
    /// The runtime hears of all that the kernel has.
    Hears,
    StandsStill,
    /// Somebody asks whether the process ran all the time.
    Notices,
    Accepts,
}

/// Walks through steps: what came before a standstill is not accepted after it, and what comes when all is over is. No task runs
/// meanwhile.
fn walk(cluster: &Cluster, steps: &[Step]) {
    let kernel = Kernel::default();
    let mut door = Door::new(Some(Arc::clone(&cluster.edge)));
    let mut standstills = 0;
    let hears = || {
        let (connections, heard) = &mut *kernel.0.lock();
        *heard = connections.len();
    };
    let mut accepts = || {
        let accepted = door.accept(&kernel).now_or_never()?;
        let (came_in, ..) = accepted.expect("no error");
        Some(came_in)
    };
    for step in steps {
        match step {
            Step::Arrives => kernel.0.lock().0.push_back(standstills),
            Step::Hears => hears(),
            Step::StandsStill => {
                cluster.clock.advance(FRESH_MAX * 2);
                standstills += 1;
            }
            Step::Notices => {
                cluster.edge.pulse().generation();
            }
            Step::Accepts => {
                let came_in = accepts();
                assert_eq!(came_in.unwrap_or(standstills), standstills, "{steps:?}");
            }
        }
    }
    cluster.edge.pulse().generation();
    while let Some(came_in) = accepts() {
        assert_eq!(came_in, standstills, "{steps:?}");
    }
    kernel.0.lock().0.push_back(standstills);
    hears();
    assert_eq!(accepts(), Some(standstills), "{steps:?}");
}

/// Every row of four steps, after somebody has come and before somebody accepts what there is.
#[tokio::test]
async fn of_each_order_of_news_and_standstills_nothing_old_comes_in() {
    const ALL: [Step; 5] = [
        Step::Arrives,
        Step::Hears,
        Step::StandsStill,
        Step::Notices,
        Step::Accepts,
    ];
    const LEN: u32 = 4;
    let cluster = Cluster::new().await;
    for number in 0..ALL.len().pow(LEN) {
        let nth = |place: u32| ALL[number / ALL.len().pow(place) % ALL.len()];
        let mut steps = vec![Step::Arrives];
        steps.extend((0..LEN).map(nth));
        steps.extend([Step::Accepts, Step::Hears, Step::Accepts]);
        walk(&cluster, &steps);
        // The runtime lets a task that never yields look at only so much.
        tokio::task::yield_now().await;
    }
}

/// Each rule is left out once. What the simulation of clusters finds beside these, `crates/testing/sim/src/bugs.rs` says.
#[test]
fn planted_mistakes_are_noticed() {
    let mistakes: [(Bug, fn()); 13] = [
        (
            Bug::ForwardTermIgnored,
            the_owner_refuses_a_term_that_it_knows_to_have_ended,
        ),
        (
            Bug::ForwardNotCaughtUp,
            the_owner_learns_the_map_before_it_executes_what_came_with_news,
        ),
        (
            Bug::ForwardStreamBringsNoNews,
            a_stream_brings_the_news_of_its_admission,
        ),
        (
            Bug::ForwardNotSettled,
            news_are_settled_once_what_began_before_is_finished,
        ),
        (
            Bug::ForwardEndedCallsBegin,
            news_are_settled_once_what_began_before_is_finished,
        ),
        (
            Bug::ForwardClientNotAwaited,
            a_client_that_comes_again_waits_for_what_it_had_begun,
        ),
        (Bug::ForwardLateCall, an_old_change_goes_to_nobody),
        (
            Bug::ForwardOwnTermNotShown,
            a_node_without_a_lease_lets_its_clients_wait,
        ),
        (
            Bug::NewsWaitForOlderOnes,
            a_newer_map_does_not_wait_for_what_an_older_one_ended,
        ),
        (
            Bug::ForwardSilentNodeKeepsStreams,
            who_is_silent_is_noticed_at_both_ends,
        ),
        (
            Bug::WaitingConnectionTaken,
            connections_that_waited_in_a_standstill_are_turned_away,
        ),
        (
            Bug::WaitingConnectionHeardLate,
            connections_that_the_runtime_has_not_heard_of_are_turned_away_as_well,
        ),
        (
            Bug::WaitingConnectionHeardLate,
            of_each_order_of_news_and_standstills_nothing_old_comes_in,
        ),
    ];
    for (bug, test) in mistakes {
        assert!(is_noticed_by(bug, test), "{bug:?}");
    }
}
