//! Seeds of what nodes of a cluster say before they trust one another.

use cairn_base::{NodeId, Timestamp};
use cairn_forward::{Preamble, Service, Term};
use cairn_trust::frame::{Answer, Ask, Message, encode};
use cairn_trust::{
    Admitted, EtcdMemberEntry, EtcdSource, Fingerprint, HandleKey, IssueAnswer, IssueAsk,
    JoinRequest, Ticket, VersionRange,
};
use serde_json::{Value, json};

use super::{Corpus, write};

const LEN_LEN_BYTES: usize = 4;
/// A CA, once made with `Authority::create` for this, and a request for a certificate; keys are never the same twice.
const AUTHORITY_PEM: &str = include_str!("cluster-ca.pem");
const REQUEST_PEM: &str = include_str!("cluster-request.pem");

pub fn write_seeds(corpus: &Corpus) {
    tickets(corpus);
    frames(corpus);
    streams(corpus);
    questions(corpus);
}

/// Questions to the DNS responder; the target knows names of three letters.
fn questions(corpus: &Corpus) {
    let question = |name: &[u8], kind: u8| [name, &[0, 0, kind, 0, 1]].concat();
    let header = |additional: u8| vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, additional];
    let opt = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    for (name, kind) in [("a", 1), ("aaaa", 28), ("any", 255), ("soa", 6), ("mx", 15)] {
        let message = [header(0), question(b"\x01n\x01s", kind)].concat();
        write(corpus, "dns_question", name, &message);
        let edns = [header(1), question(b"\x03FiL", kind), opt.to_vec()].concat();
        write(corpus, "dns_question", &format!("{name}-edns"), &edns);
    }
    let long = [&[63][..], &[b'a'; 63]].concat().repeat(3);
    let message = [header(0), question(&long, 1)].concat();
    write(corpus, "dns_question", "long", &message);
    let pointer = [header(0), vec![0xc0, 12, 0, 1, 0, 1]].concat();
    write(corpus, "dns_question", "pointer", &pointer);
    // What follows a header that the target makes.
    write(
        corpus,
        "dns_question",
        "rest",
        &[question(b"\x02ab", 1), opt.to_vec()].concat(),
    );
}

/// Beginnings of streams for clients, of each service, and what follows.
fn streams(corpus: &Corpus) {
    let frame = |bytes: &[u8]| {
        let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
        frame.extend([0, 0, 0, 0, 0, 0, 3, 232]);
        frame.extend(bytes);
        frame
    };
    for service in Service::ALL {
        let preamble = Preamble {
            service,
            term: Term(0x5e5e_5e5e),
            revision: 77,
            client: ([10, 0, 0, 9], 1023).into(),
        };
        let mut stream = preamble.encode().to_vec();
        stream.extend(frame(b"a call"));
        stream.extend(frame(&[7; 300]));
        write(corpus, "forward_stream", service.name(), &stream);
    }
    let mut beats = Vec::new();
    for (beat, volumes) in [(1000_u64, Some([1_u32, 7, 9])), (1100, None)] {
        beats.extend(beat.to_be_bytes());
        beats.extend(
            volumes
                .map_or(u32::MAX, |all| all.len() as u32)
                .to_be_bytes(),
        );
        beats.extend(volumes.into_iter().flatten().flat_map(u32::to_be_bytes));
    }
    write(corpus, "forward_stream", "beats-told", &beats);
}

fn tickets(corpus: &Corpus) {
    let token = format!("cairn-{:016x}-{}", 7, "5e".repeat(32));
    let all = [
        "10.0.0.1:7700",
        "node-2.example:7700",
        "[fd00::3]:7700",
        "a:1",
        "b:65535",
    ];
    for count in [1, 3, 5] {
        let addresses = all.iter().take(count).map(|address| (*address).to_owned());
        let ticket = Ticket::new(addresses.collect(), Fingerprint([0xc4; 32]), token.clone());
        let text = ticket.map_or_else(|error| error.to_string(), |ticket| ticket.to_string());
        write(
            corpus,
            "ticket_text",
            &format!("addresses-{count}"),
            text.as_bytes(),
        );
        // As a terminal breaks it.
        let lines: Vec<&[u8]> = text.as_bytes().chunks(80).collect();
        write(
            corpus,
            "ticket_text",
            &format!("lines-{count}"),
            &lines.join(&b'\n'),
        );
    }
    write(corpus, "ticket_text", "newer", b"cairn2-AAAA");
    write(corpus, "ticket_text", "token", token.as_bytes());
    // Content whose length and checksum the target makes fit.
    let mut content = vec![1, 3];
    content.extend_from_slice(b"a:1");
    content.extend_from_slice(&[9; 32]);
    content.push(1);
    content.push(b'x');
    write(corpus, "ticket_text", "content", &content);
}

fn frames(corpus: &Corpus) {
    let ask = |extra: Value| Ask {
        token: "cairn-0000000000000007-5e".to_owned(),
        now: Timestamp::new(1_767_225_600, 5),
        request: JoinRequest {
            node_name: "n2".to_owned(),
            internal_address: "10.0.0.2:7700".to_owned(),
            external_address: "files.example".to_owned(),
            versions: VersionRange {
                oldest: 1,
                newest: 2,
            },
            program: "0.1.0".to_owned(),
            extra,
        },
        certificate_request: REQUEST_PEM.to_owned(),
    };
    frame(corpus, "ask", &ask(Value::Null));
    frame(
        corpus,
        "ask-extra",
        &ask(json!({"disks": [1, 2.5, "x"], "deep": {"er": null}})),
    );
    let admitted = |etcd: EtcdSource| Answer::Admitted {
        authority_pem: AUTHORITY_PEM.to_owned(),
        second_authority_pem: Some(AUTHORITY_PEM.to_owned()),
        certificate_pem: AUTHORITY_PEM.to_owned(),
        admitted: Box::new(Admitted {
            node: NodeId(2),
            cluster_name: "c".to_owned(),
            handle_key: HandleKey(3),
            etcd,
            extra: Value::Null,
        }),
    };
    let given = EtcdSource::Given {
        endpoints: vec!["http://etcd.example:2379".to_owned()],
        insecure: true,
    };
    let own = EtcdSource::Own {
        client_port: 2379,
        peer_port: 2380,
        members: vec![EtcdMemberEntry {
            node_name: "n1".to_owned(),
            client_url: "https://10.0.0.1:2379".to_owned(),
            peer_url: "https://10.0.0.1:2380".to_owned(),
        }],
        runs_member: true,
        joins: true,
        made_anew: Some(1_790_000_000),
    };
    frame(corpus, "admitted-given", &admitted(given));
    frame(corpus, "admitted-own", &admitted(own));
    let reason = "this cluster does not know the token".to_owned();
    frame(corpus, "refused", &Answer::Refused { reason });
    let request = REQUEST_PEM.to_owned();
    let authority = Fingerprint([7; 32]);
    frame(
        corpus,
        "certificate",
        &IssueAsk::Certificate { request, authority },
    );
    frame(corpus, "key", &IssueAsk::Key { authority });
    let certificate_pem = AUTHORITY_PEM.to_owned();
    let answer = IssueAnswer::Certificate { certificate_pem };
    frame(corpus, "certificate-issued", &answer);
}

/// As a frame, and as its JSON alone.
fn frame(corpus: &Corpus, name: &str, message: &impl Message) {
    let frame = encode(message).unwrap_or_default();
    write(corpus, "join_frame", name, &frame);
    let json = frame.get(LEN_LEN_BYTES..).unwrap_or_default();
    write(corpus, "join_frame", &format!("{name}-json"), json);
}
