//! Nobody takes what others need.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_trust::{ListenerSettings, Protocol};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::common::{Node, ONE, PATIENCE, TWO, authority, echoes, until, until_sleeps_to};
use crate::raw::outcome;

const DEADLINE: Duration = Duration::from_secs(10);

/// A connection on which nothing is said.
async fn silent(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

async fn is_closed(tcp: &mut TcpStream) -> bool {
    let mut byte = [0];
    // A limit that does not hold would keep the test for ever.
    let read = tokio::time::timeout(PATIENCE, tcp.read(&mut byte)).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn a_handshake_ends_in_time() {
    let two = Node::new(&authority(), TWO);
    let listener = two.listen(ListenerSettings::default()).await;
    let mut stranger = silent(listener.address()).await;
    until_sleeps_to(&two.clock, DEADLINE).await;
    two.clock.advance(DEADLINE - Duration::from_millis(1));
    let mut byte = [0];
    let early = futures_util::poll!(std::pin::pin!(stranger.read(&mut byte)));
    assert!(early.is_pending());
    two.clock.advance(Duration::from_millis(1));
    assert!(is_closed(&mut stranger).await);
}

#[tokio::test]
async fn handshakes_at_a_time_are_limited() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let settings = ListenerSettings {
        handshake_count_max: 2,
        ..ListenerSettings::default()
    };
    let listener = two.listen(settings).await;
    listener.handle(
        Protocol::Forward,
        std::sync::Arc::new(crate::common::Echo::default()),
    );
    let address = listener.address();
    let [mut first, mut second] = [silent(address).await, silent(address).await];
    // Nobody waits for those who say nothing: the oldest makes way.
    let mut stream = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    assert!(echoes(&mut stream, b"x").await);
    assert!(is_closed(&mut first).await);
    let mut byte = [0];
    let later = futures_util::poll!(std::pin::pin!(second.read(&mut byte)));
    assert!(later.is_pending());
    until_sleeps_to(&two.clock, DEADLINE).await;
    two.clock.advance(DEADLINE);
    assert!(is_closed(&mut second).await);
}

#[tokio::test]
async fn strangers_take_nothing_from_addresses_of_nodes() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let settings = ListenerSettings {
        handshake_count_max: 1,
        stranger_count_max: 3,
        ..ListenerSettings::default()
    };
    let listener = two.listen(settings).await;
    listener.handle(
        Protocol::Forward,
        std::sync::Arc::new(crate::common::Echo::default()),
    );
    let address = listener.address();
    listener.set_addresses([address.ip()].into());
    // A half handshake from such an address makes way for nobody.
    let mut halves = [silent(address).await, silent(address).await];
    let from_elsewhere = tokio::net::TcpSocket::new_v4().unwrap();
    from_elsewhere
        .bind(SocketAddr::from(([127, 0, 0, 2], 0)))
        .unwrap();
    let stranger = from_elsewhere.connect(address).await.unwrap();
    let mut stream = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    assert!(echoes(&mut stream, b"x").await);
    for half in &mut halves {
        let mut byte = [0];
        let later = futures_util::poll!(std::pin::pin!(half.read(&mut byte)));
        assert!(later.is_pending());
    }
    drop(stranger);
}

#[tokio::test]
async fn strangers_of_one_address_are_limited() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let settings = ListenerSettings {
        stranger_count_max: 3,
        ..ListenerSettings::default()
    };
    let listener = two.listen(settings).await;
    listener.handle(
        Protocol::Forward,
        std::sync::Arc::new(crate::common::Echo::default()),
    );
    let address = listener.address();
    // Those that have shown a certificate are none.
    let mut nodes = Vec::new();
    for _ in 0..5 {
        nodes.push(one.connect(address, TWO, Protocol::Forward).await.unwrap());
    }
    let mut strangers = Vec::new();
    for _ in 0..3 {
        strangers.push(silent(address).await);
    }
    let mut fourth = silent(address).await;
    assert!(is_closed(&mut fourth).await);
    drop(strangers);
    let mut connected = one.connect(address, TWO, Protocol::Forward).await;
    while connected.is_err() {
        // Their end is not noticed at once.
        tokio::task::yield_now().await;
        connected = one.connect(address, TWO, Protocol::Forward).await;
    }
    assert!(echoes(&mut connected.unwrap(), b"x").await);
    for node in &mut nodes {
        assert!(echoes(node, b"x").await);
    }
}

#[tokio::test]
async fn connections_are_limited_and_those_that_join_apart() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let settings = ListenerSettings {
        connection_count_max: 2,
        join_count_max: 1,
        ..ListenerSettings::default()
    };
    let listener = two.listen(settings).await;
    for protocol in Protocol::ALL {
        listener.handle(
            protocol,
            std::sync::Arc::new(crate::common::Echo::default()),
        );
    }
    let address = listener.address();
    let joins = crate::raw::connect(address, None, &["cairn-join/1"])
        .await
        .unwrap();
    until("it joins", || listener.connection_count() == 1).await;
    let busy = "it has as many connections as it may";
    let second = outcome(address, None, &["cairn-join/1"]).await;
    assert!(second.contains(busy), "{second}");

    let first = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    let mut second = one.connect(address, TWO, Protocol::Shards).await.unwrap();
    let third = one.refused(address, TWO).await;
    assert!(third.contains(busy), "{third}");
    assert_eq!(listener.connection_count(), 3);
    drop((first, joins));
    until("two have ended", || listener.connection_count() == 1).await;
    let mut third = one.connect(address, TWO, Protocol::Shards).await.unwrap();
    assert!(echoes(&mut second, b"x").await && echoes(&mut third, b"x").await);
}
