//! A client of one node, and volumes that another one owns.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cairn_base::env::{BoxFuture, Env, Spawner};
use cairn_base::jobs::JobList;
use cairn_base::real::TokioSpawner;
use cairn_base::{NodeId, VolumeId};
use cairn_codec_nfs::v3::{self, Call, ErrorStatus, Reply};
use cairn_codec_rpc::{AcceptStatus, FragmentHeader, OpaqueAuth};
use cairn_exports::{Export, Exports, FailedVolume, HandleSigner, Volume};
use cairn_forward::{
    FRESH_MAX, Forward, Incoming, MapTerms, Nodes, PREAMBLE_LEN_BYTES, Preamble, Serve, Service,
    Stream, Term,
};
use cairn_nfs3::{Nfs3, Nfs3Settings};
use cairn_rpc_server::{ForwardedCalls, Listeners, RpcServer, Running, ServerSettings};
use cairn_testkit::{ManualClock, SeededEntropy};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::common::{Answer, Client, KEY, Server, call_bytes, export, pattern, rule, write_call};

const OWNER: NodeId = NodeId(1);
const EDGE: NodeId = NodeId(2);
const STREAM_LEN_BYTES: usize = 64 << 10;

/// The nodes as the edge reaches them: the owner in this process, through streams that may be cut.
struct Streams {
    owner: Mutex<Option<Arc<Forward>>>,
    /// The next so many streams of calls end after as many bytes towards the owner.
    cuts: Arc<AtomicUsize>,
    cut_after_bytes: usize,
    own: NodeId,
}

impl Nodes for Streams {
    fn own(&self) -> NodeId {
        self.own
    }

    fn others(&self) -> Vec<NodeId> {
        vec![OWNER]
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
        let Some(owner) = self.owner.lock().clone().filter(|_| node == OWNER) else {
            return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
        };
        let (cuts, cut_after_bytes) = (Arc::clone(&self.cuts), self.cut_after_bytes as u64);
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(STREAM_LEN_BYTES);
            let (mut middle, end) = tokio::io::duplex(STREAM_LEN_BYTES);
            tokio::spawn(async move { owner.serve(EDGE, Box::new(end)).await });
            tokio::spawn(async move {
                let (mut from_near, mut to_near) = tokio::io::split(far);
                let mut preamble = [0; PREAMBLE_LEN_BYTES];
                if from_near.read_exact(&mut preamble).await.is_err() {
                    return;
                }
                let is_of_calls = Preamble::decode(&preamble).unwrap().service == Service::Rpc;
                let is_cut = is_of_calls
                    && cuts
                        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |cuts| {
                            cuts.checked_sub(1)
                        })
                        .is_ok();
                let limit = if is_cut { cut_after_bytes } else { u64::MAX };
                let begin = preamble.len().min(usize::try_from(limit).unwrap());
                if middle.write_all(&preamble[..begin]).await.is_err() {
                    return;
                }
                let (mut from_end, mut to_end) = tokio::io::split(middle);
                let mut from_near = from_near.take(limit - begin as u64);
                let there = tokio::io::copy(&mut from_near, &mut to_end);
                let back = tokio::io::copy(&mut from_end, &mut to_near);
                tokio::select! {
                    _ = there => {}
                    _ = back => {}
                }
                // Both directions end with the one.
                let _ = to_end.shutdown().await;
            });
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }
}

struct Rpc(ForwardedCalls);

impl Serve for Rpc {
    fn serve(self: Arc<Self>, incoming: Incoming) -> BoxFuture<()> {
        self.0.serve(incoming);
        Box::pin(std::future::ready(()))
    }
}

/// The map at a revision, with the term of the edge.
fn terms(revision: u64, edge: u128) -> MapTerms {
    MapTerms {
        revision,
        alive: [(OWNER, Term(1)), (EDGE, Term(edge))].into(),
    }
}

/// A node that owns no volume.
struct Edge {
    client: Client,
    address: std::net::SocketAddr,
    exports: Arc<Exports>,
    registry: prometheus::Registry,
    running: Option<Running>,
    streams: Arc<Streams>,
    forward: Arc<Forward>,
    owner_forward: Arc<Forward>,
    /// The clock of both nodes, which stands still: nothing is late because the machine is slow.
    clock: ManualClock,
    runtime: Option<Runtime>,
    /// The node's lease.
    may_answer: Arc<AtomicBool>,
}

/// Both volumes, as the one who has them exports them.
fn served_by(owner: &Server) -> Vec<Export> {
    let rules = || vec![rule("127.0.0.0/8")];
    vec![export(&owner.main, rules()), export(&owner.other, rules())]
}

fn elsewhere(owner: &Server, by: Option<NodeId>) -> Vec<Export> {
    let volume = |fs: &cairn_fs::Fs| Export {
        volume: Volume::Elsewhere(
            FailedVolume {
                volume: fs.volume(),
                name: fs.name().to_owned(),
                root: Some(cairn_fs::ROOT),
            },
            by,
        ),
        rules: vec![rule("127.0.0.0/8")],
        gate: None,
        activity: None,
    };
    vec![volume(&owner.main), volume(&owner.other)]
}

impl Edge {
    fn before(owner: &Server, cuts: usize, cut_after_bytes: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let clock = ManualClock::default();
        let spawner = Arc::new(TokioSpawner::new(runtime.handle().clone())) as Arc<dyn Spawner>;
        let env = |seed| Env {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(seed)),
            spawner: Arc::clone(&spawner),
            jobs: JobList::new(),
        };
        let streams = |own| {
            Arc::new(Streams {
                owner: Mutex::new(None),
                cuts: Arc::new(AtomicUsize::new(cuts)),
                cut_after_bytes,
                own,
            })
        };
        let owner_forward = Forward::new(env(1), streams(OWNER), || Some(Term(1))).unwrap();
        owner_forward.handle(Service::Rpc, Arc::new(Rpc(owner.forwarded())));
        owner_forward.serve_volumes([owner.main.volume(), owner.other.volume()]);
        let streams = streams(EDGE);
        *streams.owner.lock() = Some(Arc::clone(&owner_forward));
        let nodes = Arc::clone(&streams) as Arc<dyn Nodes>;
        let forward = Forward::new(env(2), nodes, || Some(Term(2))).unwrap();
        runtime.block_on(async {
            owner_forward.learn(terms(1, 2)).await;
            forward.learn(terms(1, 2)).await;
        });
        let exports = Arc::new(Exports::new(elsewhere(owner, Some(OWNER))));
        let registry = prometheus::Registry::new();
        let settings = ServerSettings {
            threads: 2,
            ..ServerSettings::default()
        };
        let nfs3_settings = Nfs3Settings::new(HandleSigner::new(&KEY));
        let nfs3 = Nfs3::new(nfs3_settings, Arc::clone(&exports), 2, &registry).unwrap();
        let may_answer = Arc::new(AtomicBool::new(true));
        let lease = Arc::clone(&may_answer);
        nfs3.in_cluster(Arc::clone(&forward), move || lease.load(Ordering::Acquire));
        let server = RpcServer::new("edge", settings, nfs3.programs(), &registry).unwrap();
        let server = server.in_cluster(Arc::clone(&forward));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let running = server.start(Listeners {
            programs: vec![listener],
            ..Listeners::default()
        });
        let running = running.unwrap();
        forward.handle(Service::Rpc, Arc::new(Rpc(running.forwarded())));
        Self {
            client: Client::connect(address),
            address,
            exports,
            registry,
            running: Some(running),
            streams,
            forward,
            owner_forward,
            clock,
            runtime: Some(runtime),
            may_answer,
        }
    }

    /// Time passes, while both processes run.
    fn pass(&self, time: Duration) {
        let step = FRESH_MAX / 2;
        let mut left = time;
        while !left.is_zero() {
            let step = step.min(left);
            self.clock.advance(step);
            self.forward.pulse().generation();
            self.owner_forward.pulse().generation();
            left -= step;
        }
    }

    /// The client connects again, as it does when the server has closed the connection.
    fn connect_again(&mut self) {
        assert!(self.client.is_closed());
        let xid = self.client.xid;
        // After a standstill it may be turned away with those that waited meanwhile.
        loop {
            let mut client = Client::connect(self.address);
            let null = call_bytes(1, (v3::PROGRAM, v3::VERSION, 0), &OpaqueAuth::NONE, &());
            let sent = std::io::Write::write_all(&mut client.stream, &null);
            let mut mark = [0; 4];
            if sent.is_ok() && std::io::Read::read_exact(&mut client.stream, &mut mark).is_ok() {
                let len_bytes = FragmentHeader::from_bytes(mark).len_bytes as usize;
                std::io::Read::read_exact(&mut client.stream, &mut vec![0; len_bytes]).unwrap();
                client.xid = xid;
                self.client = client;
                return;
            }
        }
    }

    fn end(mut self, owner: &Server) {
        let running = self.running.take().unwrap();
        drop(self.client);
        owner.run(running.stop(Duration::from_secs(30)));
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[test]
fn a_volume_of_another_node_is_used_as_one_of_this_node() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let mut direct = owner.connect();
    let root = edge.client.root("/main");
    assert_eq!(root, direct.root("/main"));
    let file = edge.client.create(root, "file");
    // Around the sizes from which payloads are received in place, and with padding.
    for (seed, len_bytes) in [
        1,
        4095,
        (32 << 10) - 1,
        32 << 10,
        100_001,
        (1 << 20) - 3,
        1 << 20,
    ]
    .into_iter()
    .enumerate()
    {
        let data = pattern(seed as u32, len_bytes);
        let written = edge.client.write(file, 0, &data).unwrap();
        assert_eq!(written.count_bytes as usize, len_bytes);
        assert_eq!(
            edge.client.read(file, 0, len_bytes as u32),
            data,
            "{len_bytes}"
        );
        assert_eq!(direct.read(file, 0, len_bytes as u32), data, "{len_bytes}");
    }
    // Whatever is asked, the answers are the same to the byte.
    let dir_op = |name: &'static str| v3::DirOp {
        dir: root,
        name: name.into(),
    };
    let calls: Vec<Call<'_>> = vec![
        Call::GetAttr(file),
        Call::Lookup(dir_op("file")),
        Call::Lookup(dir_op("none")),
        Call::Access(v3::AccessArgs {
            object: root,
            access: 63,
        }),
        Call::ReadLink(file),
        Call::FsStat(root),
        Call::FsInfo(root),
        Call::PathConf(root),
        Call::Read(v3::ReadArgs {
            file,
            offset: 7,
            count_bytes: 1 << 20,
        }),
        Call::ReadDir(v3::ReadDirArgs {
            dir: root,
            cookie: 0,
            cookie_verifier: [0; 8],
            count_bytes: 4096,
        }),
        Call::ReadDirPlus(v3::ReadDirPlusArgs {
            dir: root,
            cookie: 0,
            cookie_verifier: [0; 8],
            dir_count_bytes: 4096,
            max_count_bytes: 32 << 10,
        }),
    ];
    for call in calls {
        let place = (v3::PROGRAM, v3::VERSION, call.procedure().number());
        let here = edge.client.call(place, &call).results;
        assert_eq!(here, direct.call(place, &call).results, "{call:?}");
    }
    // By path below the root, and through the directory of all volumes.
    let made = edge.client.nfs(Call::MkDir(v3::MkDirArgs {
        place: dir_op("dir"),
        attributes: v3::SetAttributes::default(),
    }));
    assert!(matches!(made, Reply::MkDir(Ok(_))), "{made:?}");
    assert_eq!(edge.client.root("/main/dir"), direct.root("/main/dir"));
    let pseudo = edge.client.root("/");
    assert_eq!(edge.client.lookup(pseudo, "main"), Ok(root));
    assert_eq!(edge.client.lookup(pseudo, "none"), Err(ErrorStatus::NoEnt));
    edge.end(&owner);
}

#[test]
fn calls_are_held_until_somebody_owns_the_volume() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let root = edge.client.root("/main");
    edge.exports.replace(elsewhere(&owner, None));
    let calls: Vec<Vec<u8>> = (0..50)
        .map(|_| edge.client.encode(&Call::GetAttr(root)))
        .collect();
    edge.client.send(&calls.concat());
    // The owner says itself that it owns nothing before it does.
    owner.exports.replace(elsewhere(&owner, None));
    edge.exports.replace(elsewhere(&owner, Some(OWNER)));
    owner.exports.replace(served_by(&owner));
    let mut answered: Vec<u32> = (0..50)
        .map(|_| {
            let answer = edge.client.receive();
            assert!(matches!(
                answer.nfs(v3::Procedure::GetAttr),
                Reply::GetAttr(Ok(_))
            ));
            answer.xid
        })
        .collect();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), 50, "each is answered once");
    edge.end(&owner);
}

#[test]
fn a_server_that_ends_keeps_no_call_without_an_owner() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let root = edge.client.root("/main");
    edge.exports.replace(elsewhere(&owner, None));
    let call = edge.client.encode(&Call::GetAttr(root));
    let begun = Instant::now();
    edge.client.send(&call);
    edge.exports.end();
    let answer = edge.client.receive();
    let Reply::GetAttr(Err(failure)) = answer.nfs(v3::Procedure::GetAttr) else {
        panic!("nobody owns it");
    };
    assert_eq!(failure.status, ErrorStatus::JukeBox);
    // It is held for 30 s otherwise.
    assert!(begun.elapsed() < Duration::from_secs(15));
    edge.end(&owner);
}

#[test]
fn wherever_a_stream_breaks_each_change_is_made_once() {
    // In the preamble, in the head of a frame and of a call, in its payload, behind it.
    for cut_after_bytes in [0, 5, 47, 50, 100, 200, 10_000, 60_000, 140_000] {
        let owner = Server::start();
        let mut edge = Edge::before(&owner, 2, cut_after_bytes);
        let root = edge.client.root("/main");
        let file = edge.client.create(root, "file");
        let data = pattern(3, 50_003);
        for offset in (0..8).map(|index| index * 50_003) {
            let bytes = edge.client.encode(&write_call(file, offset, &data));
            edge.client.send(&bytes);
            match edge.client.receive().nfs(v3::Procedure::Write) {
                Reply::Write(Ok(written)) => assert_eq!(written.count_bytes, 50_003),
                other => panic!("{cut_after_bytes}: {other:?}"),
            }
        }
        assert_eq!(
            edge.client.read(file, 50_003, 50_003),
            data,
            "{cut_after_bytes}"
        );
        assert_eq!(
            edge.streams.cuts.load(Ordering::Acquire),
            0,
            "{cut_after_bytes}"
        );
        edge.end(&owner);
    }
}

#[test]
fn what_is_under_way_when_the_lease_ends_is_answered_by_the_next_owner() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    // This node owns the volume first.
    edge.exports.replace(served_by(&owner));
    let root = edge.client.root("/main");
    let file = edge.client.create(root, "file");
    let (small, large) = (pattern(4, 5000), pattern(5, 300_001));
    edge.may_answer.store(false, Ordering::Release);
    let create = Call::Create(v3::CreateArgs {
        place: v3::DirOp {
            dir: root,
            name: "file".into(),
        },
        how: v3::CreateHow::Guarded(v3::SetAttributes::default()),
    });
    let calls = [
        Call::GetAttr(file),
        write_call(file, 0, &small),
        write_call(file, 5000, &large),
        // Refused, which is only true of what was read.
        create,
    ]
    .map(|call| (call.procedure(), edge.client.encode(&call)));
    let bytes: Vec<u8> = calls.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    edge.client.send(&bytes);
    // Nobody tells anything while it is not clear who owns the volume, and not that the client is to come later.
    edge.exports.replace(elsewhere(&owner, None));
    edge.exports.replace(elsewhere(&owner, Some(OWNER)));
    for _ in &calls {
        let answer = edge.client.receive();
        // The transaction id follows the record mark.
        let is_it = |bytes: &[u8]| bytes[4..8] == answer.xid.to_be_bytes();
        let asked = calls.iter().find(|(_, bytes)| is_it(bytes));
        let (procedure, _) = asked.expect("an answer to a call");
        match answer.nfs(*procedure) {
            Reply::GetAttr(Ok(_)) | Reply::Write(Ok(_)) => {}
            Reply::Create(Err(failure)) => assert_eq!(failure.status, ErrorStatus::Exist),
            other => panic!("{other:?}"),
        }
    }
    let mut direct = owner.connect();
    assert_eq!(direct.read(file, 0, 5000), small);
    assert_eq!(direct.read(file, 5000, 300_001), large);
    edge.end(&owner);
}

/// A WRITE of a file of the owner's main volume.
fn a_write(edge: &mut Edge, byte: u8) -> (v3::FileHandle, Vec<u8>) {
    let root = edge.client.root("/main");
    let file = match edge.client.lookup(root, "file") {
        Ok(file) => file,
        Err(_) => edge.client.create(root, "file"),
    };
    let data = [byte; 100];
    (file, edge.client.encode(&write_call(file, 0, &data)))
}

fn assert_written(answer: &Answer) {
    let written = answer.nfs(v3::Procedure::Write);
    assert!(matches!(written, Reply::Write(Ok(_))), "{written:?}");
}

#[test]
fn a_change_that_waited_for_an_owner_for_long_is_sent_again_by_its_client() {
    for (waits, is_sent_again) in [(FRESH_MAX, false), (3 * FRESH_MAX, true)] {
        let owner = Server::start();
        let mut edge = Edge::before(&owner, 0, 0);
        let (file, write) = a_write(&mut edge, 7);
        edge.exports.replace(elsewhere(&owner, None));
        // A look is told whenever it is done.
        let look = edge.client.encode(&Call::GetAttr(file));
        edge.client.send(&write);
        let mut other = Client::connect(edge.address);
        other.send(&look);
        // Both are read before time passes.
        until(|| edge.forward.registry().live_count() == 2);
        let held = "cairn_nfs_held_calls";
        until(|| held_count(&edge, held) == 2);
        edge.pass(waits);
        edge.exports.replace(elsewhere(&owner, Some(OWNER)));
        assert!(matches!(
            other.receive().nfs(v3::Procedure::GetAttr),
            Reply::GetAttr(Ok(_))
        ));
        if is_sent_again {
            edge.connect_again();
            assert_eq!(owner.connect().read(file, 0, 100), b"", "it was not done");
            edge.client.send(&write);
        }
        assert_written(&edge.client.receive());
        assert_eq!(owner.connect().read(file, 0, 100), [7; 100]);
        edge.end(&owner);
    }
}

#[test]
fn a_process_that_stood_still_reads_nothing_that_came_meanwhile() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let (file, old) = a_write(&mut edge, 1);
    let (_, newer) = a_write(&mut edge, 2);
    // It stands still, and its client goes elsewhere with both.
    edge.clock.advance(2 * FRESH_MAX);
    let mut direct = owner.connect();
    for write in [&old, &newer] {
        direct.send(write);
        assert_written(&direct.receive());
    }
    // What lay in its socket comes to nothing. It may be closed before the client has sent it.
    let _ = std::io::Write::write_all(&mut edge.client.stream, &old);
    edge.connect_again();
    assert_eq!(edge.client.read(file, 0, 100), [2; 100]);
    edge.end(&owner);
}

#[test]
fn connections_end_with_the_term_in_which_they_were_accepted() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let (file, old) = a_write(&mut edge, 1);
    // The owner alone knows that the edge has lost its lease: it refuses what comes under that.
    let learnt = edge.owner_forward.learn(terms(2, 3));
    edge.runtime.as_ref().unwrap().block_on(learnt);
    edge.client.send(&old);
    edge.connect_again();
    assert_eq!(owner.connect().read(file, 0, 100), b"");
    // And the edge itself, once it knows.
    let learnt = edge.forward.learn(terms(2, 3));
    edge.runtime.as_ref().unwrap().block_on(learnt);
    assert!(edge.client.is_closed());
    edge.end(&owner);
}

#[test]
fn a_reply_that_says_not_now_is_kept_for_nobody() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    edge.exports.replace(served_by(&owner));
    let (file, write) = a_write(&mut edge, 9);
    let root = edge.client.root("/main");
    // Refused, which is only true of what was read.
    let remove = edge.client.encode(&Call::Remove(v3::DirOp {
        dir: root,
        name: "none".into(),
    }));
    let (forward, lease) = (Arc::clone(&edge.forward), Arc::clone(&edge.may_answer));
    edge.runtime.as_ref().unwrap().block_on(async move {
        // As another node passes the calls of a client on, which may use the export.
        let own = forward.registry().admit_own().await.unwrap();
        let client = ([127, 0, 0, 1], 700).into();
        let admission = forward.registry().admit(own.stamp(), client).await.unwrap();
        let stream = forward.connect(EDGE, Service::Rpc, &admission).await;
        let mut stream = stream.unwrap();
        for (name, call) in [("write", &write), ("remove", &remove)] {
            for has_lease in [false, false, true] {
                lease.store(has_lease, Ordering::Release);
                stream.write_all(call).await.unwrap();
                let mut mark = [0; 4];
                stream.read_exact(&mut mark).await.unwrap();
                let len_bytes = FragmentHeader::from_bytes(mark).len_bytes as usize;
                let mut record = vec![0; len_bytes];
                stream.read_exact(&mut record).await.unwrap();
                let status = Answer::of(record).accepted();
                let want = match has_lease {
                    true => AcceptStatus::Success,
                    false => AcceptStatus::SystemError,
                };
                assert_eq!(status, want, "{name}, with a lease: {has_lease}");
            }
        }
    });
    assert_eq!(owner.connect().read(file, 0, 100), [9; 100]);
    edge.end(&owner);
}

/// What came of a call at the next owner is kept whole, not its mark alone.
#[test]
fn a_relayed_reply_is_told_again_as_it_was() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    edge.exports.replace(served_by(&owner));
    let (_, write) = a_write(&mut edge, 9);
    edge.may_answer.store(false, Ordering::Release);
    edge.client.send(&write);
    edge.exports.replace(elsewhere(&owner, Some(OWNER)));
    assert_written(&edge.client.receive());
    edge.exports.replace(served_by(&owner));
    edge.may_answer.store(true, Ordering::Release);
    edge.client.send(&write);
    assert_written(&edge.client.receive());
    edge.end(&owner);
}

fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never is");
        std::thread::yield_now();
    }
}

/// A gauge of the edge, of all volumes.
fn held_count(edge: &Edge, name: &str) -> u64 {
    let families = edge.registry.gather();
    let family = families.iter().find(|family| family.name() == name);
    let metrics = family.map_or(&[][..], |family| family.get_metric());
    metrics
        .iter()
        .map(|it| it.get_gauge().get_value() as u64)
        .sum()
}
