use cairn_codec_rpc::{OpaqueAuth, Writer};
use proptest::prelude::*;

use super::*;

/// A program of these tests. Arguments of its call STORE: a word that is 1 if the call is to be refused, the length of
/// the payload, the payload, and maybe a tail.
const PROGRAM: u32 = 7;
const STORE: u32 = 1;
const OTHER: u32 = 2;
const STORE_PREFIX_LEN_BYTES: usize = 8;

/// What the tests' gate answers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Refused(u32),
    Garbage(u32),
}

#[derive(Clone, Copy)]
struct TestGate {
    is_let_in: bool,
}

impl Gate for TestGate {
    type Answer = Answer;
    /// The number of the call, and its arguments up to the payload.
    type Large = (u32, Vec<u8>);

    fn is_let_in(&self) -> bool {
        self.is_let_in
    }

    fn begin_large(
        &mut self,
        call: &CallHeader<'_>,
        args: &[u8],
        args_len_bytes: usize,
    ) -> Verdict<Answer, (u32, Vec<u8>)> {
        if call.procedure != STORE {
            return Verdict::Ordinary;
        }
        let mut from = Reader::new(args);
        let (Ok(refused), Ok(payload_len)) = (from.u32(), from.u32()) else {
            return Verdict::NeedsMore;
        };
        if STORE_PREFIX_LEN_BYTES + xdr::padded_len(payload_len as usize) > args_len_bytes {
            return Verdict::Ordinary;
        }
        if refused == 1 {
            return Verdict::Refused(Answer::Refused(call.xid));
        }
        Verdict::Payload {
            call: (call.xid, args[..STORE_PREFIX_LEN_BYTES].to_vec()),
            payload_start: STORE_PREFIX_LEN_BYTES,
            payload_len_bytes: payload_len as usize,
        }
    }

    fn garbage(&self, xid: u32) -> Answer {
        Answer::Garbage(xid)
    }
}

const FRIEND: TestGate = TestGate { is_let_in: true };
const STRANGER: TestGate = TestGate { is_let_in: false };

/// A record that came, as the tests compare it.
#[derive(Clone, PartialEq, Eq)]
enum Came {
    Whole(Vec<u8>),
    /// Number and arguments up to the payload, the payload, and the tail.
    InPlace((u32, Vec<u8>), Vec<u8>, Vec<u8>),
    Skipped(Answer),
}

// Whole payloads would make failures unreadable.
impl std::fmt::Debug for Came {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(record) => write!(to, "Whole({} bytes)", record.len()),
            Self::InPlace((xid, _), payload, tail) => {
                write!(
                    to,
                    "InPlace({xid}, {} and {} bytes)",
                    payload.len(),
                    tail.len()
                )
            }
            Self::Skipped(answer) => write!(to, "Skipped({answer:?})"),
        }
    }
}

/// What comes of a stream whose reads bring as many bytes as `cuts` say, again and again, or less where
/// there is less room; and why it was refused in the end, if it was.
fn receive(stream: &[u8], cuts: &[usize], mut gate: TestGate) -> (Vec<Came>, Option<DecodeError>) {
    let mut intake: Intake<Answer, (u32, Vec<u8>)> = Intake::default();
    let mut came = Vec::new();
    let mut left = stream;
    let mut cuts = cuts.iter().cycle();
    loop {
        match intake.next(&mut gate) {
            Ok(Step::Starved) => {}
            Ok(Step::Call(record)) => {
                came.push(Came::Whole(record.into_owned()));
                continue;
            }
            Ok(Step::Large {
                call,
                payload,
                tail,
            }) => {
                came.push(Came::InPlace(call, payload.to_vec(), tail.to_vec()));
                continue;
            }
            Ok(Step::Skipped(answer)) => {
                came.push(Came::Skipped(answer));
                continue;
            }
            Err(error) => return (came, Some(error)),
        }
        let held_bytes_max = 2 * RECORD_LEN_BYTES_MAX as usize;
        assert!(intake.held_bytes() <= held_bytes_max);
        if left.is_empty() {
            return (came, None);
        }
        let cut = *cuts.next().expect("there are some");
        let piece = &left[..cut.clamp(1, left.len())];
        let read_bytes = match intake.space() {
            Space::Payload(payload) => payload.fill_from(piece),
            Space::Input(free) => {
                let read_bytes = piece.len().min(free.len());
                free[..read_bytes].copy_from_slice(&piece[..read_bytes]);
                intake.received(read_bytes);
                read_bytes
            }
        };
        assert!(read_bytes > 0, "there is always room");
        left = &left[read_bytes..];
    }
}

fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let header = FragmentHeader {
        last,
        len_bytes: bytes.len() as u32,
    };
    [&header.to_bytes(), bytes].concat()
}

fn call(xid: u32, procedure: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(&CallHeader {
        xid,
        program: PROGRAM,
        version: 1,
        procedure,
        credential: OpaqueAuth {
            flavor: 1,
            body: &[7; 40],
        },
        verifier: OpaqueAuth::NONE,
    });
    bytes
}

/// The arguments of STORE up to its payload.
fn store_prefix(refused: bool, len_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    to.u32(u32::from(refused));
    to.u32(len_bytes as u32);
    bytes
}

/// A record with STORE.
fn store(xid: u32, refused: bool, data: &[u8], tail: &[u8]) -> Vec<u8> {
    let padding = xdr::padding(data.len());
    let prefix = store_prefix(refused, data.len());
    [&call(xid, STORE)[..], &prefix, data, padding, tail].concat()
}

fn payload(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|index| (index * 31 % 251) as u8)
        .collect()
}

const KIND_COUNT: u8 = 7;

/// A record, and what should come of it from a client that is let in.
fn record(kind: u8, xid: u32, len_bytes: usize) -> (Vec<u8>, Came) {
    let data = payload(len_bytes);
    // A record that is too long for the input buffer and has no payload to receive in place.
    let ordinary = |record: Vec<u8>| match record.len() + FragmentHeader::LEN_BYTES {
        ..=INPUT_LEN_BYTES => Came::Whole(record),
        _ => Came::Skipped(Answer::Garbage(xid)),
    };
    let with_tail = |tail: &[u8]| {
        let record = store(xid, false, &data, tail);
        let came = match record.len() >= LARGE_LEN_BYTES_MIN {
            true => {
                let call = (xid, store_prefix(false, len_bytes));
                Came::InPlace(call, data.clone(), tail.to_vec())
            }
            false => Came::Whole(record.clone()),
        };
        (fragment(&record, true), came)
    };
    match kind % KIND_COUNT {
        0 => {
            let record = [call(xid, OTHER), payload(len_bytes % 60_000)].concat();
            (fragment(&record, true), Came::Whole(record))
        }
        1 => with_tail(&[]),
        2 => {
            let record = store(xid, true, &data, &[]);
            let came = match record.len() >= LARGE_LEN_BYTES_MIN {
                true => Came::Skipped(Answer::Refused(xid)),
                false => Came::Whole(record.clone()),
            };
            (fragment(&record, true), came)
        }
        3 => {
            let record = [call(xid, OTHER), data].concat();
            (fragment(&record, true), ordinary(record))
        }
        4 => {
            let record = store(xid, false, &data, &[]);
            let pieces = record.chunks(len_bytes / 7 + 50);
            let fragments = pieces.map(|piece| fragment(piece, false));
            let bytes: Vec<Vec<u8>> = fragments.chain([fragment(&[], true)]).collect();
            (bytes.concat(), Came::Whole(record))
        }
        5 => {
            let tail_len_bytes_max = TAIL_LEN_BYTES_MAX - xdr::padding(len_bytes).len();
            let tail_len_bytes = match len_bytes % 2 {
                0 => tail_len_bytes_max,
                _ => 8,
            };
            let tail_len_bytes =
                tail_len_bytes.min(RECORD_LEN_BYTES_MAX as usize - len_bytes - 200);
            with_tail(&payload(tail_len_bytes))
        }
        _ => {
            // One byte more than a tail may have.
            let data = &data[..len_bytes.min(1 << 19)];
            let tail_len_bytes = TAIL_LEN_BYTES_MAX + 1 - xdr::padding(data.len()).len();
            let record = store(xid, false, data, &payload(tail_len_bytes));
            (fragment(&record, true), ordinary(record))
        }
    }
}

#[test]
fn records_are_received_in_the_way_that_is_theirs() {
    // Around each length at which the way changes.
    let head_len = store(1, false, &[], &[]).len();
    let at = |record_len: usize| record_len - head_len;
    let lens = [
        0,
        1,
        at(LARGE_LEN_BYTES_MIN) - 4,
        at(LARGE_LEN_BYTES_MIN) - 3,
        at(LARGE_LEN_BYTES_MIN),
        at(INPUT_LEN_BYTES) - 4,
        at(INPUT_LEN_BYTES) - 3,
        200_001,
        1 << 20,
    ];
    let mut stream = Vec::new();
    let mut want = Vec::new();
    for (index, len_bytes) in lens.into_iter().enumerate() {
        for kind in 0..KIND_COUNT {
            let xid = (index as u32) << 8 | u32::from(kind);
            let (bytes, came) = record(kind, xid, len_bytes);
            stream.extend(bytes);
            want.push(came);
        }
    }
    for cuts in [&[usize::MAX][..], &[1, 100_000], &[1000], &[4, 100, 512]] {
        assert_eq!(
            receive(&stream, cuts, FRIEND),
            (want.clone(), None),
            "{cuts:?}"
        );
    }
}

#[test]
fn what_goes_beyond_a_limit_ends_the_stream() {
    let head = |last, len_bytes| FragmentHeader { last, len_bytes }.to_bytes().to_vec();
    let too_long = |len_bytes, len_bytes_max| {
        Some(DecodeError::RecordTooLong {
            len_bytes,
            len_bytes_max,
        })
    };
    let max = RECORD_LEN_BYTES_MAX;
    let room = INPUT_LEN_BYTES as u32;
    let half = fragment(&payload(max as usize / 2), false);
    let some = fragment(&payload(40_000), false);
    let cases: Vec<(&str, TestGate, Vec<u8>, Option<DecodeError>)> = vec![
        ("as long as may be", FRIEND, head(true, max), None),
        (
            "one more",
            FRIEND,
            head(true, max + 1),
            too_long(u64::from(max) + 1, max),
        ),
        (
            "a stranger's record of one fragment takes no room",
            STRANGER,
            head(true, max),
            None,
        ),
        (
            "a fragment of a stranger",
            STRANGER,
            head(false, room + 1),
            too_long(u64::from(room) + 1, room),
        ),
        (
            "fragments of a stranger",
            STRANGER,
            [some.clone(), head(false, 30_000)].concat(),
            too_long(70_000, room),
        ),
        (
            "fragments that fit",
            FRIEND,
            [half.clone(), head(false, max / 2)].concat(),
            None,
        ),
        (
            "and one byte more",
            FRIEND,
            [half.clone(), head(false, max / 2 + 1)].concat(),
            too_long(u64::from(max) + 1, max),
        ),
        (
            "as many fragments as may be",
            FRIEND,
            head(false, 0).repeat(FRAGMENT_COUNT_MAX as usize),
            None,
        ),
        (
            "one more fragment",
            FRIEND,
            head(false, 0).repeat(FRAGMENT_COUNT_MAX as usize + 1),
            Some(DecodeError::TooManyFragments {
                count_max: FRAGMENT_COUNT_MAX,
            }),
        ),
        (
            "a long record that is no call",
            FRIEND,
            [head(true, 100_000), vec![0, 0, 0, 1, 0, 0, 0, 5]].concat(),
            Some(DecodeError::BadValue {
                what: "call (msg_type)",
                value: 5,
            }),
        ),
    ];
    for (name, gate, stream, want) in cases {
        for cuts in [&[usize::MAX][..], &[3, 1000]] {
            let (came, end) = receive(&stream, cuts, gate);
            assert_eq!((came, end), (vec![], want), "{name}, {cuts:?}");
        }
    }
}

#[test]
fn nothing_is_held_for_what_is_skipped() {
    let (stream, _) = record(2, 1, 1 << 20);
    let mut intake: Intake<Answer, (u32, Vec<u8>)> = Intake::default();
    let Space::Input(free) = intake.space() else {
        panic!("no payload is awaited");
    };
    let there = free.len();
    free.copy_from_slice(&stream[..there]);
    intake.received(there);
    assert!(intake.is_at_record());
    assert_eq!(intake.next(&mut { FRIEND }), Ok(Step::Starved));
    assert_eq!(intake.held_bytes(), 0);
    assert!(intake.is_in_record() && !intake.is_at_record());
}

#[test]
fn after_a_large_payload_little_is_read_of_the_next() {
    let (stream, _) = record(1, 1, 100_000);
    let mut intake: Intake<Answer, (u32, Vec<u8>)> = Intake::default();
    let mut left = &stream[..];
    while !left.is_empty() {
        let read_bytes = match intake.space() {
            Space::Payload(payload) => payload.fill_from(left),
            Space::Input(free) => {
                let read_bytes = left.len().min(free.len());
                free[..read_bytes].copy_from_slice(&left[..read_bytes]);
                intake.received(read_bytes);
                read_bytes
            }
        };
        left = &left[read_bytes..];
        let step = intake.next(&mut { FRIEND }).expect("it is STORE");
        assert_eq!(step == Step::Starved, !left.is_empty());
    }
    assert!(matches!(intake.space(), Space::Input(free) if free.len() == PEEK_LEN_BYTES));
}

proptest! {
    #[test]
    fn any_cut_gives_the_same(
        records in prop::collection::vec((0..KIND_COUNT, any::<u32>(), 0usize..150_000), 1..6),
        cuts in prop::collection::vec(prop_oneof![1usize..5, 1usize..2000, 1usize..200_000], 1..20),
    ) {
        let mut stream = Vec::new();
        let mut want = Vec::new();
        for (kind, xid, len_bytes) in records {
            let (bytes, came) = record(kind, xid, len_bytes);
            stream.extend(bytes);
            want.push(came);
        }
        prop_assert_eq!(receive(&stream, &cuts, FRIEND), (want, None));
    }

    #[test]
    fn any_cut_of_damaged_streams_gives_the_same(
        records in prop::collection::vec((0..KIND_COUNT, any::<u32>(), 0usize..70_000), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        is_let_in: bool,
        cuts in prop::collection::vec(prop_oneof![1usize..5, 1usize..2000, 1usize..200_000], 1..20),
    ) {
        let gate = TestGate { is_let_in };
        let parts: Vec<Vec<u8>> = records
            .into_iter()
            .map(|(kind, xid, len_bytes)| record(kind, xid, len_bytes).0)
            .collect();
        let mut stream = parts.concat();
        // In the heads, where it matters: behind them are payloads.
        let mut start = 0;
        for ((at, value), part) in damage.iter().zip(parts.iter().cycle()) {
            let at = start + at.index(part.len().min(160));
            if let Some(byte) = stream.get_mut(at) {
                *byte = *value;
            }
            start = (start + part.len()) % stream.len();
        }
        let want = receive(&stream, &[usize::MAX], gate);
        prop_assert_eq!(receive(&stream, &cuts, gate), want);
    }
}
