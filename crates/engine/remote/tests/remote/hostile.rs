//! Peers that do not keep to the protocol.

use bytes::Bytes;
use cairn_base::{DiskId, NodeId, PoolId};
use cairn_remote::{Connection, Ended, ServeSettings};
use cairn_shard::ShardService;
use cairn_wire::testing::{MESSAGE_KINDS, Numbers};
use cairn_wire::{Hello, Message, PROTOCOL_VERSION, Request, ShardRange, encode};
use tokio::io::AsyncWriteExt;

use crate::common::{CLIENT, POOL, Pair, SERVER, block_on, name};

fn hello() -> Message {
    Message::Hello(Hello {
        version_min: 1,
        version_max: PROTOCOL_VERSION,
        cluster: POOL,
        from: CLIENT,
        to: SERVER,
    })
}

fn frame(id: u64, message: &Message, payload: &[Bytes]) -> Vec<u8> {
    let mut bytes = encode(id, message, payload).unwrap();
    bytes.extend_from_slice(&payload.concat());
    bytes
}

/// Sends bytes and closes that direction; gives how the server ended.
async fn sent(pair: &Pair, bytes: &[u8]) -> Ended {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let serving = tokio::spawn(pair.wire.server.clone().serve(Connection::new(far)));
    let _ = near.write_all(bytes).await;
    let _ = near.shutdown().await;
    let ended = serving.await.expect("no panic");
    drop(near);
    ended
}

#[test]
fn strangers_are_told_why_they_are_refused() {
    block_on(async {
        let pair = Pair::new().await;
        let Message::Hello(good) = hello() else {
            unreachable!();
        };
        let cases = [
            (
                Hello {
                    version_min: 9,
                    version_max: 10,
                    ..good.clone()
                },
                "use the same version",
            ),
            (
                Hello {
                    cluster: PoolId(1),
                    ..good.clone()
                },
                "check the addresses",
            ),
            (
                Hello {
                    to: NodeId(7),
                    ..good.clone()
                },
                "check the addresses",
            ),
        ];
        for (hello, why) in cases {
            let ended = sent(&pair, &frame(0, &Message::Hello(hello), &[])).await;
            assert!(ended.reason.contains(why), "{ended:?}");
            assert_eq!(ended.peer, None);
        }
        let ended = sent(
            &pair,
            b"GET / HTTP/1.1\r\nHost: somebody-who-is-lost\r\n\r\n",
        )
        .await;
        assert!(
            ended.is_misbehaviour && ended.reason.contains("magic"),
            "{ended:?}"
        );
    });
}

#[test]
fn a_peer_is_the_node_that_its_connection_proves() {
    block_on(async {
        let pair = Pair::new().await;
        for (proved, is_served) in [(CLIENT, true), (NodeId(7), false)] {
            let (mut near, far) = tokio::io::duplex(1 << 20);
            let connection = Connection::new(far).of_node(proved);
            let serving = tokio::spawn(pair.wire.server.clone().serve(connection));
            let _ = near.write_all(&frame(0, &hello(), &[])).await;
            let _ = near.shutdown().await;
            let ended = serving.await.expect("no panic");
            drop(near);
            assert_eq!(ended.peer.is_some(), is_served, "{ended:?}");
            let is_told = ended.reason.contains("its certificate is that of");
            assert_eq!(is_told, !is_served, "{ended:?}");
        }
    });
}

#[test]
fn whoever_breaks_the_rules_is_cut_off() {
    block_on(async {
        let settings = ServeSettings {
            requests_max: 4,
            ..ServeSettings::default()
        };
        let pair = Pair::with(settings, std::sync::Arc::new(())).await;
        let read = |len_bytes| Message::Request {
            disk: DiskId(9),
            request: Request::Read {
                name: name(1),
                place: ShardRange {
                    offset: 0,
                    len_bytes,
                },
            },
        };
        let mut many = Vec::new();
        for id in 1..=5 {
            many.extend(frame(id, &read(4096), &[]));
        }
        let mut damaged = frame(
            1,
            &Message::Request {
                disk: DiskId(9),
                request: Request::Append {
                    epoch: cairn_base::Epoch(1),
                    name: name(1),
                    places: vec![ShardRange {
                        offset: 0,
                        len_bytes: 4,
                    }],
                },
            },
            &[Bytes::from_static(b"data")],
        );
        *damaged.last_mut().unwrap() ^= 1;
        let cases = [
            ("more than it may", many),
            ("more than a reply has", frame(1, &read(u32::MAX), &[])),
            ("only who serves", frame(0, &hello(), &[])),
            ("payload", damaged),
        ];
        for (why, bytes) in cases {
            let ended = sent(&pair, &[frame(0, &hello(), &[]), bytes].concat()).await;
            assert!(
                ended.is_misbehaviour && ended.reason.contains(why),
                "{why}: {ended:?}"
            );
        }
        // The others are served on.
        pair.remote().probe().await.expect("served");
    });
}

#[test]
fn nothing_that_is_sent_panics_or_hangs() {
    block_on(async {
        let pair = Pair::new().await;
        for seed in 0..400 {
            let mut bytes = frame(0, &hello(), &[]);
            let mut numbers = Numbers(seed);
            for _ in 0..3 {
                let kind = 4 + numbers.word() % (MESSAGE_KINDS - 4);
                let (id, message, payload) = numbers.message(kind);
                let message = match message {
                    Message::Request { request, .. } => Message::Request {
                        disk: DiskId(9),
                        request,
                    },
                    other => other,
                };
                bytes.extend(frame(id, &message, &payload));
            }
            if seed % 4 == 0 {
                let at = numbers.word() as usize % bytes.len();
                bytes[at] ^= 1 << (seed % 8);
            }
            sent(&pair, &bytes).await;
        }
        pair.remote().probe().await.expect("served");
    });
}
