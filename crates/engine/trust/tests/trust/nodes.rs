//! Nodes of one cluster know one another.

use std::sync::Arc;

use cairn_base::disk::Disk;
use cairn_base::env::BoxFuture;
use cairn_base::{DiskId, Timestamp};
use cairn_remote::{Connection, Identity, Peer, PeerSettings, ServeSettings, Server};
use cairn_shard::{ShardDisk, ShardService, ShardSettings};
use cairn_testkit::MemDisk;
use cairn_trust::{
    Authority, Handler, ListenerSettings, NodeStream, PeerIdentity, Protocol, TrustDial,
    TrustSettings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{CLUSTER, DAY, HOUR, Node, ONE, TWO, authority, echoes, start, until};

#[tokio::test]
async fn nodes_talk_and_know_each_other() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let (listener, echo) = two.listen_to_all().await;
    for protocol in Protocol::ALL {
        let connected = one.connect(listener.address(), TWO, protocol).await;
        let mut stream = connected.expect("a connection");
        let long: Vec<u8> = (0..300_000_u32).map(|i| i as u8).collect();
        let (mut from, mut to) = tokio::io::split(stream);
        let writing = async {
            to.write_all(&long).await.unwrap();
            to.flush().await.unwrap();
        };
        let mut back = vec![0; long.len()];
        let (_, read) = tokio::join!(writing, from.read_exact(&mut back));
        read.unwrap();
        assert_eq!(back, long);
        stream = from.unsplit(to);
        assert!(echoes(&mut stream, b"short").await);
        // No certificate is asked of those that join.
        let peer = echo.peers.lock().pop().expect("a peer");
        let known = protocol.needs_certificate().then_some(ONE);
        assert_eq!(peer.node, known);
        assert!(peer.address.ip().is_loopback());
    }
    assert_eq!(echo.peers.lock().len(), 0);
}

#[tokio::test]
async fn a_connection_is_to_a_certain_node_or_an_error() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let (listener, echo) = two.listen_to_all().await;
    let wrong = one.refused(listener.address(), ONE).await;
    assert!(wrong.contains("it is another node"), "{wrong}");
    assert!(wrong.contains(&ONE.to_string()), "{wrong}");
    assert!(wrong.contains(&listener.address().to_string()), "{wrong}");

    // Equal ids, with a CA of their own.
    let other = Authority::create(CLUSTER, start()).unwrap();
    let stranger = Node::new(&other, ONE);
    let wrong = stranger.refused(listener.address(), TWO).await;
    assert!(wrong.contains("not of this cluster"), "{wrong}");
    assert_eq!(echo.peers.lock().len(), 0);
}

#[tokio::test]
async fn clocks_may_differ_by_an_hour_and_not_by_months() {
    let authority = authority();
    let short = || TrustSettings {
        valid_for: std::time::Duration::from_secs(6 * HOUR as u64),
        ..TrustSettings::default()
    };
    let cases = [
        (HOUR, None),
        (-HOUR, None),
        (-2 * DAY, Some("begins in")),
        (2 * DAY, Some("expired")),
    ];
    for (skew, want) in cases {
        let (server, client) = (
            Node::with(&authority, TWO, short()),
            Node::at(&authority, ONE, short(), skew),
        );
        let (listener, _) = server.listen_to_all().await;
        let (address, protocol) = (listener.address(), Protocol::Forward);
        let connected = client.connect(address, TWO, protocol).await;
        match (connected, want) {
            (Ok(mut stream), None) => assert!(echoes(&mut stream, b"x").await),
            (Err(error), Some(want)) => {
                let text = error.to_string();
                assert!(
                    text.contains(want) && text.contains("clocks"),
                    "{skew}: {text}"
                );
            }
            (connected, _) => panic!("{skew}: {connected:?}"),
        }
    }
}

#[tokio::test]
async fn who_is_refused_for_its_clock_is_told_so() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let (listener, echo) = two.listen_to_all().await;
    two.settled().await;
    // To this node all certificates are old, its own too; but the other one only looks at this one's.
    two.clock.step_wall(100 * DAY);
    let wrong = one.refused(listener.address(), TWO).await;
    let told = "takes the certificate of this node for expired or not begun; check the clocks";
    assert!(wrong.contains(told), "{wrong}");
    assert_eq!(echo.peers.lock().len(), 0);
}

#[tokio::test]
async fn errors_say_what_is_wrong_with_the_other_end() {
    let node = Node::new(&authority(), ONE);
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let wrong = node.refused(closed, TWO).await;
    assert!(wrong.contains("refused"), "{wrong}");
    assert!(wrong.contains(&closed.to_string()), "{wrong}");

    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    let answer = async |text: &'static [u8]| {
        let (mut tcp, _) = plain.accept().await.unwrap();
        let mut hello = [0; 64];
        tcp.read_exact(&mut hello).await.unwrap();
        tcp.write_all(text).await.unwrap();
        tcp.shutdown().await.unwrap();
        // The rest of the question, or the system would take the answer back.
        let _ = tcp.read_to_end(&mut Vec::new()).await;
    };
    let http = answer(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let (wrong, ()) = tokio::join!(node.refused(address, TWO), http);
    assert!(wrong.contains("it does not speak TLS"), "{wrong}");
    let (wrong, ()) = tokio::join!(node.refused(address, TWO), answer(b""));
    assert!(wrong.contains("it closed the connection"), "{wrong}");

    for address in ["127.0.0.1", "0.0.0.0:7", ""] {
        let connected = node.trust.connect(address, TWO, Protocol::Forward).await;
        let error = connected.expect_err("no address");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{address}");
    }
}

#[tokio::test]
async fn who_does_not_answer_is_given_up() {
    let node = Node::new(&authority(), ONE);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = node.refused(silent.local_addr().unwrap(), TWO);
    let waiting = async {
        let accepted = silent.accept().await.unwrap();
        let deadline = TrustSettings::default().connect_deadline;
        crate::common::until_sleeps_to(&node.clock, deadline).await;
        node.clock.advance(deadline);
        accepted
    };
    let (wrong, _accepted) = tokio::join!(connecting, waiting);
    assert!(wrong.contains("did not answer within 5 s"), "{wrong}");
}

#[tokio::test]
async fn a_closed_listener_has_ended_its_connections() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let (listener, _) = two.listen_to_all().await;
    let address = listener.address();
    let mut stream = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    assert!(echoes(&mut stream, b"before").await);
    assert_eq!(listener.connection_count(), 1);
    let _half_way = tokio::net::TcpStream::connect(address).await.unwrap();
    listener.close().await;
    assert_eq!(listener.connection_count(), 0);
    assert!(!echoes(&mut stream, b"after").await);
    assert!(one.connect(address, TWO, Protocol::Forward).await.is_err());

    let (listener, _) = two.listen_to_all().await;
    let address = listener.address();
    let mut stream = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    drop(listener);
    assert!(!echoes(&mut stream, b"after").await);
}

/// Its certificate is as good as ever. What it had open ends, and it is told why it gets nothing new.
#[tokio::test]
async fn a_removed_node_is_refused_whatever_it_shows() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let (listener, _) = two.listen_to_all().await;
    let address = listener.address();
    listener.set_nodes([ONE, TWO].into());
    let mut stream = one.connect(address, TWO, Protocol::Shards).await.unwrap();
    assert!(echoes(&mut stream, b"before").await);
    listener.set_nodes([TWO].into());
    assert!(!echoes(&mut stream, b"after").await);
    let wrong = one.refused(address, TWO).await;
    assert!(wrong.contains("it was removed"), "{wrong}");
    // Who joins has no certificate yet.
    let mut joining = one.connect(address, TWO, Protocol::Join).await.unwrap();
    assert!(echoes(&mut joining, b"joins").await);
    listener.set_nodes([ONE, TWO].into());
    let mut again = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    assert!(echoes(&mut again, b"again").await);
}

/// Serves disks on the connections of a listener, as a node does.
struct Disks(Arc<Server>);

impl Handler for Disks {
    fn serve(self: Arc<Self>, _peer: PeerIdentity, stream: NodeStream) -> BoxFuture<()> {
        let serving = self.0.clone().serve(Connection::new(stream));
        Box::pin(async move {
            serving.await;
        })
    }
}

#[tokio::test]
async fn disks_of_another_node_are_used_over_it() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let disk: Arc<dyn Disk> = MemDisk::new("mem", 64 << 20);
    ShardDisk::format(disk.clone(), CLUSTER, DiskId(9), Timestamp::new(1, 0))
        .await
        .unwrap();
    let disk = ShardDisk::open(disk, CLUSTER, ShardSettings::default()).await;
    let served: Vec<Arc<dyn ShardService>> = vec![disk.unwrap()];
    let identity = |node| Identity {
        cluster: CLUSTER,
        node,
    };
    let settings = ServeSettings::default();
    let own = identity(TWO);
    let server = Server::new(
        two.env.clone(),
        own,
        settings,
        Arc::new(served),
        Arc::new(()),
    );
    let listener = two.listen(ListenerSettings::default()).await;
    listener.handle(Protocol::Shards, Arc::new(Disks(server)));

    let dial = TrustDial {
        trust: one.trust.clone(),
        address: listener.address().to_string(),
        node: TWO,
    };
    let settings = PeerSettings::default();
    let peer = Peer::start(
        one.env.clone(),
        identity(ONE),
        TWO,
        "two",
        Arc::new(dial),
        settings,
    );
    assert_eq!(peer.tried().await, None);
    peer.connected().await;
    until("its disk is known", || peer.disk(DiskId(9)).is_some()).await;
    let remote = peer.disk(DiskId(9)).unwrap();
    remote.probe().await.expect("the disk answers");
}
