//! Joining with ends that do what no node does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, Timestamp};
use cairn_testkit::TestWorld;
use cairn_trust::frame::{Answer, Ask, FRAME_LEN_BYTES_MAX, encode};
use cairn_trust::{
    Authority, Handler, JoinError, JoinSettings, NodeStream, PeerIdentity, Protocol, Subject,
    Ticket, join,
};
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{CLUSTER, Node, ONE, TWO, authority, start, until, until_sleeps_to};
use crate::joining::{First, TOKEN, admitted, request};
use crate::raw;

async fn stranger(first: &First) -> tokio_rustls::client::TlsStream<TcpStream> {
    let address = first.listener.address();
    let mut stream = raw::connect(address, None, &["cairn-join/1"])
        .await
        .unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 0);
    stream
}

fn ask() -> Ask {
    Ask {
        token: TOKEN.to_owned(),
        now: start(),
        request: request(),
        certificate_request: certificate_request(),
    }
}

/// What somebody says to a question.
type Says = Arc<dyn Fn(Ask) -> Vec<u8> + Send + Sync>;

const VALID_FOR: Duration = Duration::from_secs(24 * 3600);

fn certificate_request() -> String {
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::default().serialize_request(&key);
    request.unwrap().pem().unwrap()
}

fn framed(len: u32, bytes: &[u8]) -> Vec<u8> {
    [&len.to_be_bytes()[..], bytes].concat()
}

#[tokio::test]
async fn what_is_no_question_is_not_answered() {
    let first = First::new().await;
    let good = encode(&ask()).unwrap();
    let json = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = serde_json::to_value(ask()).unwrap();
        change(&mut value);
        let text = value.to_string();
        framed(text.len() as u32, text.as_bytes())
    };
    let deep = "[".repeat(60_000);
    let mut inputs = vec![
        framed(u32::MAX, &[b' '; 100]),
        framed(FRAME_LEN_BYTES_MAX as u32 + 1, &[b' '; 100]),
        framed(0, b""),
        framed(4, b"null"),
        framed(2, &[0xff, 0xfe]),
        framed(deep.len() as u32, deep.as_bytes()),
        framed(FRAME_LEN_BYTES_MAX as u32, &[b' '; FRAME_LEN_BYTES_MAX]),
        json(&|value| value["token"] = json!("")),
        json(&|value| value["token"] = json!("x".repeat(256))),
        json(&|value| value["token"] = json!("a\u{0}b")),
        json(&|value| value["request"]["node_name"] = json!("../..")),
        json(&|value| value["request"]["internal_address"] = json!("nowhere")),
        json(&|value| value["now"] = json!("today")),
    ];
    inputs.extend((0..good.len()).step_by(29).map(|len| good[..len].to_vec()));
    for input in inputs {
        let mut stream = stranger(&first).await;
        // It may be cut off before it has sent all.
        let _ = stream.write_all(&input).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(answer, b"", "{:?}", String::from_utf8_lossy(&input));
    }
    assert_eq!(first.asked(), 0);
    // A newer node may say more.
    let newer = json(&|value| value["planet"] = json!("earth"));
    let mut stream = stranger(&first).await;
    stream.write_all(&newer).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.len() > 100);
    assert_eq!(first.asked(), 1);
}

#[tokio::test]
async fn a_clock_beyond_all_measure_is_refused() {
    let first = First::new().await;
    for seconds in [i64::MIN, i64::MAX, 0] {
        let question = Ask {
            now: Timestamp::new(seconds, 0),
            ..ask()
        };
        let mut stream = stranger(&first).await;
        stream.write_all(&encode(&question).unwrap()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains("differ by more than an hour"), "{answer}");
    }
    assert_eq!(first.asked(), 0);
}

#[tokio::test]
async fn a_slow_question_is_cut_off() {
    let first = First::new().await;
    let mut stream = stranger(&first).await;
    let deadline = JoinSettings::default().frame_deadline;
    // The handshake had the same; past it, only the question is waited for.
    until("it is served", || first.listener.connection_count() == 1).await;
    let good = encode(&ask()).unwrap();
    stream.write_all(&good[..good.len() / 2]).await.unwrap();
    stream.flush().await.unwrap();
    until_sleeps_to(&first.node.clock, deadline).await;
    while first.listener.connection_count() == 1 {
        first.node.clock.advance(deadline / 10);
        tokio::task::yield_now().await;
        assert!(first.node.env.clock.monotonic() < deadline * 1000, "no end");
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert_eq!(answer, b"");
    assert_eq!(first.asked(), 0);
}

/// Takes a question, and answers with whatever it has.
#[derive(Default)]
struct Liar {
    answer: Mutex<Option<Says>>,
    asked: AtomicUsize,
}

impl Handler for Liar {
    fn serve(self: Arc<Self>, _: PeerIdentity, mut stream: NodeStream) -> BoxFuture<()> {
        Box::pin(async move {
            let Ok(len) = stream.read_u32().await else {
                return;
            };
            let mut question = vec![0; len as usize];
            if stream.read_exact(&mut question).await.is_err() {
                return;
            }
            self.asked.fetch_add(1, Ordering::SeqCst);
            let answer = self.answer.lock().clone();
            match answer {
                Some(answer) => {
                    let ask = serde_json::from_slice(&question).expect("a question");
                    let _ = stream.write_all(&answer(ask)).await;
                    let _ = stream.shutdown().await;
                }
                None => std::future::pending().await,
            }
        })
    }
}

#[tokio::test]
async fn what_is_no_answer_admits_nobody() {
    let authority = authority();
    let node = Node::new(&authority, ONE);
    let (listener, _) = node.listen_to_all().await;
    let liar = Arc::new(Liar::default());
    listener.handle(Protocol::Join, liar.clone());
    let addresses = vec![listener.address().to_string()];
    let fingerprint = authority.fingerprint();
    let ticket = Ticket::new(addresses, fingerprint, TOKEN.to_owned()).unwrap();
    let other = Authority::create(CLUSTER, start()).unwrap();
    let answer = |authority_pem: &str, certificate_pem: &str| {
        encode(&Answer::Admitted {
            authority_pem: authority_pem.to_owned(),
            second_authority_pem: None,
            certificate_pem: certificate_pem.to_owned(),
            admitted: Box::new(admitted(TWO)),
        })
        .unwrap()
    };
    let subject = |node: NodeId| Subject {
        node,
        hosts: Vec::new(),
    };
    // Of a key that is not the one that asks.
    let issued = |authority: &Authority| {
        let issued = authority.issue(&subject(TWO), start(), VALID_FOR);
        issued.unwrap().certificate_pem
    };
    let pem = authority.certificate_pem();
    let for_who_asks = |issuer: &Authority, node: NodeId| -> Says {
        let issuer = issuer.with_key(issuer.key_pem().unwrap()).unwrap();
        let (subject, authority_pem) = (subject(node), pem.to_owned());
        Arc::new(move |ask: Ask| {
            let request = ask.certificate_request.parse().unwrap();
            let certificate_pem = issuer.answer(&request, &subject, start(), VALID_FOR);
            let answer = Answer::Admitted {
                authority_pem: authority_pem.clone(),
                second_authority_pem: None,
                certificate_pem: certificate_pem.unwrap(),
                admitted: Box::new(admitted(TWO)),
            };
            encode(&answer).unwrap()
        })
    };
    let says = |bytes: Vec<u8>| -> Says { Arc::new(move |_| bytes.clone()) };
    let fixed = answer(pem, &issued(&authority));
    let nameless = fixed.clone();
    let nameless = String::from_utf8_lossy(&nameless[4..]).replace("the-cluster", "-");
    let refusal = encode(&Answer::Refused {
        reason: "no\u{1b}[2J".to_owned(),
    });
    let wrong = "what the cluster sent is wrong";
    let cases: Vec<(&str, Says, &str)> = vec![
        ("nothing", says(Vec::new()), "cut off"),
        (
            "half of it",
            says(fixed[..fixed.len() / 2].to_vec()),
            "cut off",
        ),
        (
            "a huge length",
            says(framed(u32::MAX, b"x")),
            "4294967295 bytes",
        ),
        ("no JSON", says(framed(1, b"x")), "content is wrong"),
        (
            "another kind",
            says(framed(13, b"{\"maybe\":true")),
            "content is wrong",
        ),
        (
            "a wrong name",
            says(framed(nameless.len() as u32, nameless.as_bytes())),
            "name",
        ),
        (
            "another CA",
            says(answer(other.certificate_pem(), &issued(&other))),
            "not that of the ticket",
        ),
        ("no CA", says(answer("", &issued(&authority))), wrong),
        ("no certificate", says(answer(pem, "")), wrong),
        ("another key", says(fixed), "of another one"),
        (
            "a certificate of another node",
            for_who_asks(&authority, ONE),
            "for another node",
        ),
        ("one of another CA", for_who_asks(&other, TWO), wrong),
        ("a refusal", says(refusal.unwrap()), "no\\u{1b}[2J"),
    ];
    let world = TestWorld::new(2);
    let settings = JoinSettings::default();
    for (name, bytes, want) in cases {
        *liar.answer.lock() = Some(bytes);
        let error = join(&world.env, &ticket, &request(), &settings).await;
        let error = error.expect_err(name);
        assert!(error.to_string().contains(want), "{name}: {error}");
        let is_refused = matches!(error, JoinError::Refused(_));
        assert_eq!(is_refused, name == "a refusal", "{name}");
    }
    *liar.answer.lock() = Some(for_who_asks(&authority, TWO));
    join(&world.env, &ticket, &request(), &settings)
        .await
        .expect("the right one");

    *liar.answer.lock() = None;
    let world = TestWorld::new(2);
    let before = liar.asked.load(Ordering::SeqCst);
    let waiting = async {
        let asked = || liar.asked.load(Ordering::SeqCst) > before;
        until("it is asked", asked).await;
        // The longest that it waits.
        world.clock.advance(std::time::Duration::from_secs(90));
    };
    let question = request();
    let joining = join(&world.env, &ticket, &question, &settings);
    let (joined, ()) = tokio::join!(joining, waiting);
    let lost = joined.expect_err("silence");
    assert!(
        matches!(&lost, JoinError::Lost(text) if text.contains("no answer")),
        "{lost}"
    );
}
