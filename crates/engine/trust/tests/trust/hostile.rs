//! A client without a right certificate reaches no handler.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_base::{PoolId, Timestamp};
use cairn_trust::{Authority, Protocol, Subject};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{CLUSTER, DAY, Node, ONE, TWO, authority, echoes, start};
use crate::raw::{Pair, outcome};

const SHARDS: &str = "cairn-shards/1";

fn issued(authority: &Authority, now: Timestamp) -> Pair {
    let subject = Subject {
        node: ONE,
        hosts: Vec::new(),
    };
    let valid_for = Duration::from_secs(DAY as u64);
    authority.issue(&subject, now, valid_for).unwrap().into()
}

/// A certificate of the CA with other names or purposes than it gives.
fn crafted(authority: &Authority, names: &[&str], purpose: ExtendedKeyUsagePurpose) -> Pair {
    let ca_key = KeyPair::from_pem(authority.key_pem().unwrap()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(authority.certificate_pem(), ca_key).unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.extended_key_usages = vec![purpose];
    let key = KeyPair::generate().unwrap();
    Pair {
        certificate: params.signed_by(&key, &issuer).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

#[tokio::test]
async fn a_certificate_of_this_cluster_is_demanded() {
    let authority = authority();
    let two = Node::new(&authority, TWO);
    let (listener, echo) = two.listen_to_all().await;
    let address = listener.address();

    let now = start();
    let at = |seconds: i64| Timestamp::new(now.seconds + seconds, 0);
    let good = issued(&authority, now);
    let other = issued(&Authority::create(CLUSTER, now).unwrap(), now);
    let expired = issued(&authority, at(-DAY - 1));
    let not_begun = issued(&authority, at(DAY + 1));
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    let name = |cluster: PoolId| format!("{ONE}.node.{cluster}.cairn.internal");
    let (own, foreign) = (name(CLUSTER), name(PoolId(8)));
    let second = own.replace(&ONE.to_string(), &TWO.to_string());
    let nameless = crafted(&authority, &["localhost"], client.clone());
    let two_nodes = crafted(&authority, &[&own, &second], client.clone());
    let abroad = crafted(&authority, &[&foreign], client);
    let server_only = crafted(&authority, &[&own], server);
    // What the client hears; nothing but the end of the connection where it was wrong after the handshake.
    let ended = "tls handshake eof|peer closed connection without sending TLS close_notify|Connection reset";
    let cases: &[(&str, Option<&Pair>, &[&str], &str)] = &[
        ("a node", Some(&good), &[SHARDS], "welcome"),
        ("none", None, &[SHARDS], "CertificateRequired"),
        (
            "none, for calls",
            None,
            &["cairn-forward/1"],
            "CertificateRequired",
        ),
        ("none, to join", None, &["cairn-join/1"], "welcome"),
        // Who offers both cannot choose the one without a certificate.
        (
            "none, both",
            None,
            &["cairn-join/1", SHARDS],
            "CertificateRequired",
        ),
        (
            "of another CA",
            Some(&other),
            &[SHARDS],
            "UnknownCA|DecryptError",
        ),
        ("expired", Some(&expired), &[SHARDS], "CertificateExpired"),
        (
            "not begun",
            Some(&not_begun),
            &[SHARDS],
            "CertificateExpired",
        ),
        (
            "for servers",
            Some(&server_only),
            &[SHARDS],
            "UnsupportedCertificate",
        ),
        ("of no node", Some(&nameless), &[SHARDS], ended),
        ("of two nodes", Some(&two_nodes), &[SHARDS], ended),
        ("of another cluster", Some(&abroad), &[SHARDS], ended),
        (
            "speaks HTTP/2",
            Some(&good),
            &["h2"],
            "NoApplicationProtocol",
        ),
        (
            "a later version",
            Some(&good),
            &["cairn-shards/2"],
            "NoApplicationProtocol",
        ),
        ("says nothing", Some(&good), &[], ended),
        ("says nothing", None, &[], "CertificateRequired"),
    ];
    let mut welcome_count = 0;
    for (name, certificate, speaks, want) in cases {
        let found = outcome(address, *certificate, speaks).await;
        let is_right = want.split('|').any(|want| found.contains(want));
        assert!(is_right, "{name}: {found}, not {want}");
        welcome_count += usize::from(*want == "welcome");
        assert_eq!(echo.peers.lock().len(), welcome_count, "{name}");
    }
}

/// Sends bytes, closes that direction, and waits for the end of the connection.
async fn send(address: SocketAddr, bytes: &[u8]) {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    // The other end may have closed it already.
    let _ = tcp.write_all(bytes).await;
    let _ = tcp.shutdown().await;
    let _ = tcp.read_to_end(&mut Vec::new()).await;
}

/// The first bytes that a node sends.
async fn client_hello(node: &Node) -> Vec<u8> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taking = async {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut head = [0; 5];
        tcp.read_exact(&mut head).await.unwrap();
        let mut record = head.to_vec();
        record.resize(5 + usize::from(u16::from_be_bytes([head[3], head[4]])), 0);
        tcp.read_exact(&mut record[5..]).await.unwrap();
        record
    };
    let (record, _) = tokio::join!(taking, node.connect(address, TWO, Protocol::Forward));
    record
}

#[tokio::test]
async fn whatever_bytes_come_the_listener_goes_on() {
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let (listener, echo) = two.listen_to_all().await;
    let address = listener.address();
    let hello = client_hello(&one).await;
    let mut inputs = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 100_000],
        vec![0xff; 100_000],
        // A record of the greatest length, and one beyond it.
        [&[22, 3, 1, 0x40, 0x00][..], &[1; 0x4000]].concat(),
        [&[22, 3, 1, 0xff, 0xff][..], &[1; 0xffff]].concat(),
        // A handshake message of 16 MiB, in records.
        [
            &[22, 3, 1, 0x40, 0x00, 1, 0xff, 0xff, 0xff][..],
            &[0; 0x3ffc],
        ]
        .concat()
        .repeat(8),
        hello.repeat(3),
    ];
    inputs.extend((0..hello.len()).step_by(7).map(|len| hello[..len].to_vec()));
    inputs.extend((0..hello.len()).step_by(5).map(|at| {
        let mut changed = hello.clone();
        changed[at] ^= 0x55;
        changed
    }));
    for input in inputs {
        send(address, &input).await;
    }
    assert_eq!(echo.peers.lock().len(), 0);
    let mut stream = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    assert!(echoes(&mut stream, b"still there").await);
}

#[tokio::test]
async fn an_unknown_protocol_is_named() {
    // A listener that only knows how to join others: as an older node would.
    let authority = authority();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    let listener = two.listen(cairn_trust::ListenerSettings::default()).await;
    let wrong = one.refused(listener.address(), TWO).await;
    assert!(wrong.contains("it does not serve this yet"), "{wrong}");
}
