//! Connections without encryption: only where both ends say so, between nodes that have proved who they are, and with
//! every change noticed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_trust::{Authority, Encryption, NodeStream, Protocol, TrustSettings};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{CLUSTER, Node, ONE, TWO, authority, echoes, start};

const SAID: &[u8] = b"nobody else is to change these bytes, and all may read them";

fn node(authority: &Authority, node: cairn_base::NodeId, encryption: Encryption) -> Node {
    let settings = TrustSettings {
        encryption,
        ..TrustSettings::default()
    };
    Node::with(authority, node, settings)
}

/// Between two nodes: keeps what it passes on, and changes a bit of it when it is told to.
struct Between {
    address: SocketAddr,
    passed: Arc<Mutex<Vec<u8>>>,
    changes: Arc<AtomicBool>,
}

impl Between {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let between = Self {
            address: listener.local_addr().unwrap(),
            passed: Arc::default(),
            changes: Arc::default(),
        };
        let (passed, changes) = (between.passed.clone(), between.changes.clone());
        tokio::spawn(async move {
            let (from, _) = listener.accept().await.unwrap();
            let to = TcpStream::connect(to).await.unwrap();
            let (mut from_read, mut from_write) = from.into_split();
            let (mut to_read, mut to_write) = to.into_split();
            let back = tokio::spawn(async move {
                let _ = tokio::io::copy(&mut to_read, &mut from_write).await;
            });
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from_read.read(&mut bytes).await {
                let bytes = &mut bytes[..count];
                if changes.load(Ordering::Acquire) {
                    bytes[count / 2] ^= 1;
                }
                passed.lock().extend_from_slice(bytes);
                if to_write.write_all(bytes).await.is_err() {
                    break;
                }
            }
            back.abort();
        });
        between
    }

    fn has_passed(&self, bytes: &[u8]) -> bool {
        self.passed
            .lock()
            .windows(bytes.len())
            .any(|window| window == bytes)
    }
}

async fn connected(one: &Node, between: &Between, protocol: Protocol) -> NodeStream {
    let connected = one.connect(between.address, TWO, protocol).await;
    connected.expect("a connection")
}

#[tokio::test]
async fn it_is_without_encryption_where_both_ends_say_so() {
    use Encryption::{Off, On};
    let authority = authority();
    for (of_one, of_two, protocol, is_clear) in [
        (Off, Off, Protocol::Shards, true),
        (Off, Off, Protocol::Forward, true),
        (Off, Off, Protocol::Join, false),
        (Off, On, Protocol::Shards, false),
        (On, Off, Protocol::Shards, false),
        (On, Off, Protocol::Forward, false),
        (On, On, Protocol::Forward, false),
    ] {
        let (one, two) = (node(&authority, ONE, of_one), node(&authority, TWO, of_two));
        let (listener, echo) = two.listen_to_all().await;
        let between = Between::start(listener.address()).await;
        let mut stream = connected(&one, &between, protocol).await;
        let case = format!("{of_one:?} {of_two:?} {protocol}");
        assert!(echoes(&mut stream, SAID).await, "{case}");
        assert_eq!(stream.is_encrypted(), !is_clear, "{case}");
        assert_eq!(between.has_passed(SAID), is_clear, "{case}");
        let known = protocol.needs_certificate().then_some(ONE);
        assert_eq!(echo.peers.lock().pop().expect("a peer").node, known);
        let long: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 3) as u8).collect();
        let (mut from, mut to) = tokio::io::split(stream);
        let writing = async {
            to.write_all(&long).await.unwrap();
            to.flush().await.unwrap();
        };
        let mut back = vec![0; long.len()];
        let (_, read) = tokio::join!(writing, from.read_exact(&mut back));
        read.unwrap();
        assert!(back == long, "{case}");
    }
}

#[tokio::test]
async fn what_is_changed_on_the_way_ends_the_connection() {
    let authority = authority();
    for encryption in [Encryption::On, Encryption::Off] {
        let (one, two) = (
            node(&authority, ONE, encryption),
            node(&authority, TWO, encryption),
        );
        let (listener, _echo) = two.listen_to_all().await;
        let between = Between::start(listener.address()).await;
        let mut stream = connected(&one, &between, Protocol::Shards).await;
        assert!(echoes(&mut stream, SAID).await);
        between.changes.store(true, Ordering::Release);
        stream.write_all(SAID).await.unwrap();
        stream.flush().await.unwrap();
        let mut back = Vec::new();
        let read = stream.read_to_end(&mut back).await;
        assert!(back.is_empty(), "{encryption:?}: {read:?}");
    }
}

#[tokio::test]
async fn strangers_are_refused_without_encryption_as_with_it() {
    let (one, two) = {
        let authority = authority();
        let other = Authority::create(CLUSTER, start()).unwrap();
        (
            node(&other, ONE, Encryption::Off),
            node(&authority, TWO, Encryption::Off),
        )
    };
    let (listener, echo) = two.listen_to_all().await;
    let refused = one.refused(listener.address(), TWO).await;
    assert!(refused.contains("not of this cluster"), "{refused}");
    assert!(echo.peers.lock().is_empty());
}
