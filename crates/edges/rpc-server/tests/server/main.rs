//! The server with a program that is no NFS: what any program may rely on, NFSv4 among them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_codec_rpc::{
    AcceptStatus, CallHeader, FragmentHeader, OpaqueAuth, Reader, ReplyBody, ReplyHeader, Writer,
    portmap, xdr,
};
use cairn_rpc_server::intake::Verdict;
use cairn_rpc_server::{
    Answered, Delay, Handler, LargeRecord, Listeners, Peer, Program, Reply, RpcServer, Running,
    ServerSettings, Started, StartedCall,
};

const PROGRAM: u32 = 400_000;
const VERSIONS: [u32; 2] = [2, 4];
/// Counts the calls of this connection.
const COUNT: u32 = 1;
/// Adds up the bytes of a payload, and of the words that follow it, as the operations after a WRITE in a COMPOUND do.
const ADD: u32 = 2;
/// As ADD, but refused when its head has come.
const REFUSED: u32 = 3;
/// Answers when the next call has come.
const LATE: u32 = 4;
/// A change that is delayed until RELEASE comes, and holds so many KiB meanwhile as its argument says.
const DELAYED: u32 = 5;
const RELEASE: u32 = 6;
const GRACE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Adder {
    lets_in: AtomicBool,
    rights_version: AtomicU64,
    in_place: AtomicU64,
    answered: AtomicU64,
    /// Delayed calls that have begun.
    begun: AtomicU64,
    released: tokio::sync::watch::Sender<bool>,
}

struct AdderProgram(Arc<Adder>);

impl Program for AdderProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> &[u32] {
        &VERSIONS
    }

    fn lets_in(&self, _client: SocketAddr) -> bool {
        self.0.lets_in.load(Ordering::SeqCst)
    }

    fn rights_version(&self) -> u64 {
        self.0.rights_version.load(Ordering::SeqCst)
    }

    fn connect(&self, peer: &Arc<Peer>) -> Box<dyn Handler> {
        Box::new(AdderHandler {
            adder: Arc::clone(&self.0),
            peer: Arc::clone(peer),
            count: 0,
            late: None,
        })
    }

    fn answered(&self, answered: &Answered<'_>) {
        assert_eq!(answered.procedure, ADD);
        self.0.answered.fetch_add(1, Ordering::SeqCst);
    }
}

struct AdderHandler {
    adder: Arc<Adder>,
    peer: Arc<Peer>,
    count: u32,
    late: Option<tokio::sync::oneshot::Sender<()>>,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().map(|byte| u32::from(*byte)).sum()
}

impl Handler for AdderHandler {
    fn begin(&mut self, call: &CallHeader<'_>, mut args: Reader<'_>) -> StartedCall {
        self.count += 1;
        self.late.take();
        let xid = call.xid;
        StartedCall::ready(match call.procedure {
            COUNT => Reply::success(xid, &self.count),
            ADD => match args.opaque(u32::MAX).map(sum) {
                Ok(data) => Reply::success(xid, &(data + sum(args.rest()))),
                Err(_) => self.peer.garbage(xid),
            },
            LATE => {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                self.late = Some(sender);
                return StartedCall::new(Started::Running(Box::pin(async move {
                    let _ = receiver.await;
                    Reply::success(xid, &LATE)
                })));
            }
            DELAYED => {
                let kib = args.u32().unwrap_or(0) as usize;
                let adder = Arc::clone(&self.adder);
                let mut released = self.adder.released.subscribe();
                let until = async move {
                    let _ = released.wait_for(|released| *released).await;
                };
                let change = async move {
                    adder.begun.fetch_add(1, Ordering::SeqCst);
                    Reply::success(xid, &DELAYED)
                };
                return StartedCall {
                    delay: Some(Delay {
                        until: Box::pin(until),
                        held_bytes: kib << 10,
                    }),
                    ..StartedCall::new(Started::Changing(Box::pin(change)))
                };
            }
            RELEASE => {
                self.adder.released.send_replace(true);
                Reply::success(xid, &RELEASE)
            }
            _ => self.peer.unknown(xid, AcceptStatus::ProcedureUnavailable),
        })
    }

    fn begin_large(&mut self, call: &CallHeader<'_>, args: &[u8], _: usize) -> LargeRecord {
        let Ok(len_bytes) = Reader::new(args).u32() else {
            return Verdict::NeedsMore;
        };
        let (xid, adder) = (call.xid, Arc::clone(&self.adder));
        match call.procedure {
            ADD => Verdict::Payload {
                call: Box::new(move |payload: Bytes, tail: &[u8]| {
                    adder.in_place.fetch_add(1, Ordering::SeqCst);
                    let reply = Reply::success(xid, &(sum(&payload) + sum(tail)));
                    StartedCall::ready(reply).measured(ADD)
                }),
                payload_start: 4,
                payload_len_bytes: len_bytes as usize,
            },
            REFUSED => Verdict::Refused(Reply::success(xid, &REFUSED)),
            _ => Verdict::Ordinary,
        }
    }
}

struct Server {
    adder: Arc<Adder>,
    address: SocketAddr,
    udp: SocketAddr,
    registry: prometheus::Registry,
    running: Option<Running>,
}

impl Server {
    fn start() -> Self {
        Self::with(ServerSettings::default())
    }

    fn with(settings: ServerSettings) -> Self {
        let adder = Arc::new(Adder::default());
        adder.lets_in.store(true, Ordering::SeqCst);
        let registry = prometheus::Registry::new();
        let program: Arc<dyn Program> = Arc::new(AdderProgram(Arc::clone(&adder)));
        let server = RpcServer::new("test", settings, vec![program], &registry).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        Self {
            adder,
            address: listener.local_addr().unwrap(),
            udp: udp.local_addr().unwrap(),
            registry,
            running: Some(
                server
                    .start(Listeners {
                        programs: vec![listener],
                        rpcbind: Vec::new(),
                        rpcbind_udp: vec![udp],
                    })
                    .unwrap(),
            ),
        }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        // A test that would hang fails.
        stream.set_read_timeout(Some(2 * GRACE)).unwrap();
        Client(stream)
    }

    fn metric(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metric = &family.unwrap().get_metric()[0];
        (metric.get_counter().get_value() + metric.get_gauge().get_value()) as u64
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        if let Some(running) = self.running.take() {
            runtime.block_on(running.stop(GRACE));
        }
    }
}

/// A call without its record mark.
fn call(xid: u32, (program, version, procedure): (u32, u32, u32), args: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(&CallHeader {
        xid,
        program,
        version,
        procedure,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    });
    bytes.extend_from_slice(args);
    bytes
}

/// Arguments of ADD.
fn data(payload: &[u8], tail: &[u8]) -> Vec<u8> {
    let len_bytes = (payload.len() as u32).to_be_bytes();
    [&len_bytes, payload, xdr::padding(payload.len()), tail].concat()
}

#[derive(Debug, PartialEq)]
enum Answer {
    Result(u32),
    Status(AcceptStatus),
}

fn answer(record: &[u8]) -> (u32, Answer) {
    let mut from = Reader::new(record);
    let header: ReplyHeader<'_> = from.get().unwrap();
    let answer = match header.body {
        ReplyBody::Accepted {
            status: AcceptStatus::Success,
            ..
        } => Answer::Result(from.u32().unwrap()),
        ReplyBody::Accepted { status, .. } => Answer::Status(status),
        ReplyBody::Denied(rejection) => panic!("denied: {rejection:?}"),
    };
    (header.xid, answer)
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, record: &[u8]) {
        let header = FragmentHeader {
            last: true,
            len_bytes: record.len() as u32,
        };
        self.0.write_all(&header.to_bytes()).unwrap();
        self.0.write_all(record).unwrap();
    }

    fn receive(&mut self) -> (u32, Answer) {
        let mut header = [0; 4];
        self.0.read_exact(&mut header).unwrap();
        let mut record = vec![0; FragmentHeader::from_bytes(header).len_bytes as usize];
        self.0.read_exact(&mut record).unwrap();
        answer(&record)
    }

    fn call(&mut self, place: (u32, u32, u32), args: &[u8]) -> Answer {
        self.send(&call(7, place, args));
        let (xid, answer) = self.receive();
        assert_eq!(xid, 7);
        answer
    }
}

#[test]
fn calls_reach_the_version_and_the_handler_of_their_connection() {
    let server = Server::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    for count in 1..4 {
        assert_eq!(one.call((PROGRAM, 2, COUNT), &[]), Answer::Result(count));
    }
    assert_eq!(one.call((PROGRAM, 4, COUNT), &[]), Answer::Result(4));
    assert_eq!(other.call((PROGRAM, 4, COUNT), &[]), Answer::Result(1));
    let mismatch = Answer::Status(AcceptStatus::ProgramMismatch { low: 2, high: 4 });
    assert_eq!(one.call((PROGRAM, 3, COUNT), &[]), mismatch);
    let unknown = Answer::Status(AcceptStatus::ProgramUnavailable);
    assert_eq!(one.call((PROGRAM + 1, 2, COUNT), &[]), unknown);
    let unknown = Answer::Status(AcceptStatus::ProcedureUnavailable);
    assert_eq!(one.call((PROGRAM, 2, 99), &[]), unknown);
    assert_eq!(server.metric("cairn_test_requests_unknown_total"), 3);
    // A call that is not served leaves the handler alone.
    assert_eq!(one.call((PROGRAM, 4, COUNT), &[]), Answer::Result(6));
}

#[test]
fn a_large_payload_is_received_in_place_with_what_follows_it() {
    let server = Server::start();
    let mut client = server.connect();
    let add = (PROGRAM, 4, ADD);
    // Whole, in place, in place with a tail, and with more behind the payload than a tail may be.
    let cases = [
        (100, 8, true, 0),
        (100_001, 0, true, 1),
        (100_001, 4000, true, 2),
        (1 << 20, 8, true, 3),
        (40_000, 5000, true, 3),
        (100_000, 5000, false, 3),
    ];
    for (payload_len, tail_len, is_answered, in_place) in cases {
        let args = data(&vec![3; payload_len], &vec![1; tail_len]);
        let want = match is_answered {
            true => Answer::Result(3 * payload_len as u32 + tail_len as u32),
            false => Answer::Status(AcceptStatus::GarbageArgs),
        };
        let got = client.call(add, &args);
        assert_eq!(got, want, "{payload_len} and {tail_len}");
        assert_eq!(server.adder.in_place.load(Ordering::SeqCst), in_place);
    }
    assert_eq!(server.adder.answered.load(Ordering::SeqCst), 3);
    let refused = client.call((PROGRAM, 4, REFUSED), &data(&vec![3; 500_000], &[]));
    assert_eq!(refused, Answer::Result(REFUSED));
}

/// More delayed calls than may run at a time hold up nobody else on their connection, and none begins before its time. Those
/// for which there is no room to wait begin, and their replies wait.
#[test]
fn delayed_calls_hold_up_no_others() {
    for (kib, count, begun) in [(1, 600, 0), (1024, 40, 8)] {
        let server = Server::start();
        let mut client = server.connect();
        for xid in 0..count {
            let args = u32::to_be_bytes(kib);
            client.send(&call(100 + xid, (PROGRAM, 4, DELAYED), &args));
        }
        // Answers come while all of those are delayed: what is counted are all calls of the connection.
        let counted = client.call((PROGRAM, 4, COUNT), &[]);
        assert_eq!(counted, Answer::Result(count + 1), "{kib} KiB each");
        assert_eq!(server.adder.begun.load(Ordering::SeqCst), begun);
        client.send(&call(1, (PROGRAM, 4, RELEASE), &[]));
        assert_eq!(client.receive(), (1, Answer::Result(RELEASE)));
        let mut xids: Vec<u32> = (0..count)
            .map(|_| {
                let (xid, answer) = client.receive();
                assert_eq!(answer, Answer::Result(DELAYED));
                xid
            })
            .collect();
        xids.sort_unstable();
        assert_eq!(xids, (100..100 + count).collect::<Vec<_>>());
        assert_eq!(server.adder.begun.load(Ordering::SeqCst), u64::from(count));
    }
}

/// A call that is delayed when its connection is lost, or the server stops, never begins: its client sends it again.
#[test]
fn delayed_calls_end_with_their_connection() {
    let server = Server::start();
    let mut client = server.connect();
    client.send(&call(1, (PROGRAM, 4, DELAYED), &[0; 4]));
    assert_eq!(client.call((PROGRAM, 4, COUNT), &[]), Answer::Result(2));
    let socket = socket2::SockRef::from(&client.0);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    while server.metric("cairn_test_connections") > 0 {
        std::thread::yield_now();
    }
    let mut other = server.connect();
    other.send(&call(1, (PROGRAM, 4, DELAYED), &[0; 4]));
    assert_eq!(other.call((PROGRAM, 4, COUNT), &[]), Answer::Result(2));
    let adder = Arc::clone(&server.adder);
    let begun = std::time::Instant::now();
    drop(server);
    assert!(begun.elapsed() < GRACE, "the stop did not wait for it");
    assert_eq!(adder.begun.load(Ordering::SeqCst), 0);
}

#[test]
fn replies_leave_when_they_are_ready() {
    let server = Server::start();
    let mut client = server.connect();
    for (xid, procedure) in [(1, LATE), (2, COUNT)] {
        client.send(&call(xid, (PROGRAM, 4, procedure), &[]));
    }
    let mut answers = [client.receive(), client.receive()];
    answers.sort_by_key(|(xid, _)| *xid);
    assert_eq!(answers, [(1, Answer::Result(LATE)), (2, Answer::Result(2))]);
    // A call that changes nothing is dropped when its connection is lost.
    client.send(&call(3, (PROGRAM, 4, LATE), &[]));
    let socket = socket2::SockRef::from(&client.0);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    while server.metric("cairn_test_connections") > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn the_port_mapper_knows_each_version() {
    let server = Server::start();
    let mut client = server.connect();
    let mut port_of = |program, version, protocol| {
        let mut args = Vec::new();
        Writer::new(&mut args).put(&portmap::Mapping {
            program,
            version,
            protocol,
            port: 0,
        });
        let procedure = portmap::Procedure::GetPort.number();
        client.call((portmap::PROGRAM, portmap::VERSION, procedure), &args)
    };
    let port = Answer::Result(u32::from(server.address.port()));
    for version in VERSIONS {
        assert_eq!(port_of(PROGRAM, version, portmap::PROTOCOL_TCP), port);
    }
    assert_eq!(port_of(portmap::PROGRAM, 4, portmap::PROTOCOL_TCP), port);
    for (program, version, protocol) in [
        (PROGRAM, 3, portmap::PROTOCOL_TCP),
        (PROGRAM, 2, portmap::PROTOCOL_UDP),
        (PROGRAM + 1, 2, portmap::PROTOCOL_TCP),
    ] {
        assert_eq!(port_of(program, version, protocol), Answer::Result(0));
    }
    assert_eq!(server.metric("cairn_test_requests_other_total"), 6);
}

#[test]
fn a_datagram_has_a_handler_of_its_own() {
    let server = Server::start();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(2 * GRACE)).unwrap();
    for xid in 1..3 {
        let call = call(xid, (PROGRAM, 2, COUNT), &[]);
        socket.send_to(&call, server.udp).unwrap();
        let mut datagram = [0; 200];
        let (len_bytes, _) = socket.recv_from(&mut datagram).unwrap();
        assert_eq!(answer(&datagram[..len_bytes]), (xid, Answer::Result(1)));
    }
}

#[test]
fn a_client_that_no_program_lets_in_is_a_stranger_at_once() {
    let server = Server::start();
    let mut client = server.connect();
    let pieces = |client: &mut Client| {
        let record = call(9, (PROGRAM, 4, ADD), &data(&vec![1; 80_000], &[]));
        let header = |last, len_bytes| FragmentHeader { last, len_bytes }.to_bytes();
        let half = record.len() / 2;
        let bytes = [
            &header(false, half as u32)[..],
            &record[..half],
            &header(true, (record.len() - half) as u32),
            &record[half..],
        ]
        .concat();
        // The server may close the connection before it has all.
        let _ = client.0.write_all(&bytes);
    };
    pieces(&mut client);
    assert_eq!(client.receive(), (9, Answer::Result(80_000)));
    server.adder.lets_in.store(false, Ordering::SeqCst);
    server.adder.rights_version.fetch_add(1, Ordering::SeqCst);
    pieces(&mut client);
    let mut byte = [0];
    assert!(!matches!(client.0.read(&mut byte), Ok(1)));
    assert_eq!(server.metric("cairn_test_connections_broken_total"), 1);
}

#[test]
fn strangers_leave_room_for_others() {
    let server = Server::with(ServerSettings {
        connection_count_max: 4,
        ..ServerSettings::default()
    });
    server.adder.lets_in.store(false, Ordering::SeqCst);
    let mut strangers: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    let served = strangers.iter_mut().filter_map(|client| {
        let record = call(1, (PROGRAM, 2, COUNT), &[]);
        let header = FragmentHeader {
            last: true,
            len_bytes: record.len() as u32,
        };
        let sent = client
            .0
            .write_all(&[&header.to_bytes(), &record[..]].concat());
        let mut byte = [0];
        (sent.is_ok() && matches!(client.0.read(&mut byte), Ok(1))).then_some(())
    });
    assert_eq!(served.count(), 2);
    server.adder.lets_in.store(true, Ordering::SeqCst);
    let mut friend = server.connect();
    assert_eq!(friend.call((PROGRAM, 2, COUNT), &[]), Answer::Result(1));
}
