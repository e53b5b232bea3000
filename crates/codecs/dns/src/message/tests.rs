use proptest::prelude::*;

use super::*;

const OPT: &[u8] = &[0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0];

fn labels(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}

fn question(flags: u16, counts: [u16; 4], name: &str, kind: u16, class: u16) -> Vec<u8> {
    let mut bytes = vec![0xab, 0xcd];
    for number in [flags].iter().chain(&counts) {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(labels(name));
    bytes.extend(kind.to_be_bytes());
    bytes.extend(class.to_be_bytes());
    bytes
}

fn plain(name: &str, kind: u16) -> Vec<u8> {
    question(0x0100, [1, 0, 0, 0], name, kind, CLASS_IN)
}

fn names(name: &Name) -> Lookup {
    let text = |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect();
    Lookup::Here(match name.as_str() {
        "files.example" => text(&["10.0.0.2", "fd00::2", "10.0.0.1"]),
        "six.example" => text(&["fd00::1"]),
        "none.example" => Vec::new(),
        "many.example" => (0..40).map(|last| IpAddr::from([10, 0, 0, last])).collect(),
        "unsure.example" => return Lookup::Unsure,
        _ => return Lookup::Elsewhere,
    })
}

fn asked(bytes: &[u8]) -> Option<Answer> {
    let request = Request {
        bytes,
        transport: Transport::Udp,
        is_limited: false,
    };
    answer(request, &names)
}

/// The outcome, the code, the counts of answers, authority and additional records.
fn shape(bytes: &[u8]) -> Option<(Outcome, u16, [u16; 3])> {
    let answer = asked(bytes)?;
    let at = |at: usize| u16::from_be_bytes([answer.bytes[at], answer.bytes[at + 1]]);
    assert_eq!(answer.bytes[..2], bytes[..2], "the id is repeated");
    assert_ne!(at(2) & FLAG_REPLY, 0);
    Some((answer.outcome, at(2) & 15, [at(6), at(8), at(10)]))
}

#[test]
fn questions_get_their_answer() {
    use Outcome::{Answered, Empty, Failed, Malformed, Refused};
    let with_opt = |version: u8| {
        let mut bytes = question(0, [1, 0, 0, 1], "files.example", TYPE_A, CLASS_IN);
        bytes.extend(OPT);
        let at = bytes.len() - 5;
        bytes[at] = version;
        bytes
    };
    let mut two_opts = question(0, [1, 0, 0, 2], "files.example", TYPE_A, CLASS_IN);
    two_opts.extend(OPT);
    two_opts.extend(OPT);
    let mut pointer = plain("", TYPE_A);
    pointer.splice(12..13, [0xc0, 0x0c]);
    let mut cut = plain("files.example", TYPE_A);
    cut.truncate(cut.len() - 1);
    let mut dotted = plain("files", TYPE_A);
    dotted.splice(12.., *b"\x0dfiles.example\0\0\x01\0\x01");
    type Want = Option<(Outcome, u16, [u16; 3])>;
    let cases: Vec<(&str, Vec<u8>, Want)> = vec![
        (
            "addresses of IPv4",
            plain("files.example", TYPE_A),
            Some((Answered, 0, [2, 0, 0])),
        ),
        (
            "of IPv6",
            plain("files.example", TYPE_AAAA),
            Some((Answered, 0, [1, 0, 0])),
        ),
        (
            "letters of any case",
            plain("FiLeS.ExAmPlE", TYPE_A),
            Some((Answered, 0, [2, 0, 0])),
        ),
        (
            "of all types one",
            plain("files.example", TYPE_ANY),
            Some((Answered, 0, [2, 0, 0])),
        ),
        (
            "of all types the one there is",
            plain("six.example", TYPE_ANY),
            Some((Answered, 0, [1, 0, 0])),
        ),
        (
            "at most so many",
            plain("many.example", TYPE_A),
            Some((Answered, 0, [8, 0, 0])),
        ),
        (
            "who has authority",
            plain("files.example", TYPE_SOA),
            Some((Answered, 0, [1, 0, 0])),
        ),
        (
            "another type",
            plain("files.example", 15),
            Some((Empty, 0, [0, 1, 0])),
        ),
        (
            "another family",
            plain("six.example", TYPE_A),
            Some((Empty, 0, [0, 1, 0])),
        ),
        (
            "nobody lives",
            plain("none.example", TYPE_A),
            Some((Empty, 0, [0, 1, 0])),
        ),
        (
            "who cannot tell",
            plain("unsure.example", TYPE_A),
            Some((Failed, 2, [0, 0, 0])),
        ),
        (
            "another name",
            plain("other.example", TYPE_A),
            Some((Refused, 5, [0, 0, 0])),
        ),
        (
            "a name below",
            plain("a.files.example", TYPE_A),
            Some((Refused, 5, [0, 0, 0])),
        ),
        ("the root", plain("", TYPE_A), Some((Refused, 5, [0, 0, 0]))),
        (
            "a dot in a label is no border",
            dotted,
            Some((Refused, 5, [0, 0, 0])),
        ),
        (
            "another class",
            question(0, [1, 0, 0, 0], "files.example", TYPE_A, 3),
            Some((Refused, 5, [0, 0, 0])),
        ),
        ("EDNS", with_opt(0), Some((Answered, 0, [2, 0, 1]))),
        (
            "EDNS of a later version",
            with_opt(1),
            Some((Refused, 0, [0, 0, 1])),
        ),
        ("EDNS twice", two_opts, Some((Malformed, 1, [0, 0, 0]))),
        (
            "a change of the zone",
            question(0x2800, [1, 0, 0, 0], "files.example", TYPE_SOA, CLASS_IN),
            Some((Refused, 4, [0, 0, 0])),
        ),
        (
            "two questions",
            question(0, [2, 0, 0, 0], "files.example", TYPE_A, CLASS_IN),
            Some((Malformed, 1, [0, 0, 0])),
        ),
        (
            "a question with answers",
            question(0, [1, 1, 0, 0], "files.example", TYPE_A, CLASS_IN),
            Some((Malformed, 1, [0, 0, 0])),
        ),
        (
            "a pointer to itself",
            pointer,
            Some((Malformed, 1, [0, 0, 0])),
        ),
        ("cut short", cut, Some((Malformed, 1, [0, 0, 0]))),
        (
            "a header alone",
            plain("files.example", TYPE_A)[..12].to_vec(),
            Some((Malformed, 1, [0, 0, 0])),
        ),
        (
            "less than a header",
            plain("files.example", TYPE_A)[..11].to_vec(),
            None,
        ),
        (
            "a reply",
            question(0x8000, [1, 0, 0, 0], "files.example", TYPE_A, CLASS_IN),
            None,
        ),
    ];
    for (name, bytes, want) in cases {
        assert_eq!(shape(&bytes), want, "{name}");
    }
}

#[test]
fn an_answer_is_these_bytes() {
    let got = asked(&plain("FILES.example", TYPE_A)).unwrap().bytes;
    let mut want = b"\xab\xcd\x85\x00\x00\x01\x00\x02\x00\x00\x00\x00".to_vec();
    want.extend(b"\x05FILES\x07example\x00\x00\x01\x00\x01");
    for last in [2, 1] {
        want.extend(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x0a\x00\x00");
        want.push(last);
    }
    assert_eq!(got, want);
}

#[test]
fn who_asks_too_often_gets_nothing_longer_than_the_question() {
    for edns in [false, true] {
        let mut bytes = question(
            0,
            [1, 0, 0, u16::from(edns)],
            "many.example",
            TYPE_A,
            CLASS_IN,
        );
        bytes.extend(OPT.iter().filter(|_| edns));
        let request = Request {
            bytes: &bytes,
            transport: Transport::Udp,
            is_limited: true,
        };
        let got = answer(request, &names).unwrap();
        assert_eq!(got.outcome, Outcome::Truncated);
        assert_ne!(got.bytes[2] & 0x02, 0, "the client is told to use TCP");
        assert!(got.bytes.len() <= bytes.len());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_not(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Some(answer) = asked(&bytes) {
            prop_assert!(answer.bytes.len() <= UDP_LEN_BYTES_MAX);
        }
    }

    /// Names of others and messages that are no questions make nothing longer.
    #[test]
    fn nothing_grows_that_is_no_name_of_this_server(
        flags in 0_u16..0x8000, counts in [0_u16..3, 0_u16..2, 0_u16..2, 0_u16..4],
        tail in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = question(flags, counts, "other.example", TYPE_A, CLASS_IN);
        bytes.extend(tail);
        let answer = asked(&bytes).unwrap();
        prop_assert!(answer.bytes.len() <= bytes.len());
    }
}
