use cairn_codec_rpc::Decode;
use proptest::prelude::*;

use super::*;
use crate::source::Source;

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

fn lock(range: Range) -> Lock<'static> {
    Lock {
        client: "host".into(),
        file: "handle".into(),
        owner: "7@host".into(),
        process: 7,
        range,
    }
}

const LOCK: &[u8] = b"\0\0\0\x04host\0\0\0\x06handle\0\0\0\0\0\x067@host\0\0\0\0\0\x07";
const NARROW: Range = Range::Narrow {
    offset: 1,
    len_bytes: 2,
};
const WIDE: Range = Range::Wide {
    offset: 1 << 32,
    len_bytes: 0,
};
const WIDE_BYTES: &[u8] = b"\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn calls_are_golden() {
    let cookie = Opaque(b"1234");
    let args = |lock| LockArgs {
        cookie,
        block: true,
        exclusive: false,
        lock,
        reclaim: true,
        state: 3,
    };
    let cases: &[(u32, u32, &[&[u8]], Call)] = &[
        (1, 0, &[], Call::Null),
        (
            1,
            1,
            &[b"\0\0\0\x041234\0\0\0\x01", LOCK, b"\0\0\0\x01\0\0\0\x02"],
            Call::Test {
                cookie,
                exclusive: true,
                lock: lock(NARROW),
            },
        ),
        (
            4,
            2,
            &[
                b"\0\0\0\x041234\0\0\0\x01\0\0\0\0",
                LOCK,
                WIDE_BYTES,
                b"\0\0\0\x01\0\0\0\x03",
            ],
            Call::Lock(args(lock(WIDE))),
        ),
        (
            4,
            3,
            &[b"\0\0\0\x041234\0\0\0\0\0\0\0\x01", LOCK, WIDE_BYTES],
            Call::Cancel {
                cookie,
                block: false,
                exclusive: true,
                lock: lock(WIDE),
            },
        ),
        (
            3,
            4,
            &[b"\0\0\0\x041234", LOCK, b"\0\0\0\x01\0\0\0\x02"],
            Call::Unlock {
                cookie,
                lock: lock(NARROW),
            },
        ),
        (
            3,
            20,
            &[
                b"\0\0\0\0\0\0\0\x04host\0\0\0\x02fh\0\0\0\0\0\x02me\0\0",
                b"\0\0\0\x02\0\0\0\x03\0\0\0\0",
            ],
            Call::Share(ShareArgs {
                cookie: Opaque(b""),
                client: "host".into(),
                file: "fh".into(),
                owner: "me".into(),
                denied: ShareRight::Write,
                wanted: ShareRight::ReadWrite,
                reclaim: false,
            }),
        ),
        (
            4,
            23,
            &[b"\0\0\0\x04host\0\0\0\x05"],
            Call::FreeAll(Notice {
                client: "host".into(),
                state: 5,
            }),
        ),
    ];
    for (version, number, input, want) in cases {
        let input = input.concat();
        let procedure = Procedure::of_version(*version, *number).unwrap();
        let mut from = Reader::new(&input);
        let call = Call::decode(*version, procedure, &mut from);
        assert_eq!(call.as_ref(), Ok(want), "{number}");
        assert_eq!(from.finish(), Ok(()), "{number}");
        assert_eq!(encode(want), input, "{number}");
    }
}

#[test]
fn lengths_are_limited() {
    let opaque = |len_bytes: usize| encode(&Opaque::<{ u32::MAX }>(&vec![b'x'; len_bytes]));
    let numbers = [0; 4 + 16];
    let cases = [
        ("at the limits", [1024, 1024, 64, 1024], None),
        ("cookie", [1025, 1, 1, 1], Some((1025, 1024))),
        ("client", [1, 1025, 1, 1], Some((1025, 1024))),
        ("file", [1, 1, 65, 1], Some((65, 64))),
        ("owner", [1, 1, 1, 1025], Some((1025, 1024))),
    ];
    for (name, lens, refused) in cases {
        let fields = lens.map(opaque).concat();
        let input = [&fields[..], &numbers].concat();
        let got = Call::decode(4, Procedure::Unlock, &mut Reader::new(&input));
        let want = refused.map(|(len_bytes, len_bytes_max)| DecodeError::TooLong {
            len_bytes,
            len_bytes_max,
        });
        assert_eq!(got.err(), want, "{name}");
    }
}

#[test]
fn outcomes_are_golden() {
    let cookie = Opaque(b"1234");
    let status = Status::DeniedNoLocks;
    let outcome = Outcome { cookie, status };
    assert_eq!(encode(&outcome), b"\0\0\0\x041234\0\0\0\x02");
    let sequence = 0;
    let share = ShareOutcome {
        cookie,
        status,
        sequence,
    };
    assert_eq!(encode(&share), b"\0\0\0\x041234\0\0\0\x02\0\0\0\0");
}

#[test]
fn shares_began_with_version_3() {
    let cases = [
        (1, 4, Some(Procedure::Unlock)),
        (1, 5, None),
        (1, 20, None),
        (3, 19, None),
        (3, 20, Some(Procedure::Share)),
        (4, 23, Some(Procedure::FreeAll)),
        (4, 24, None),
    ];
    for (version, number, want) in cases {
        assert_eq!(Procedure::of_version(version, number), want, "{number}");
    }
}

fn version() -> impl Strategy<Value = u32> {
    prop::sample::select(&[VERSION_1, VERSION_3, VERSION_4])
}

proptest! {
    #[test]
    fn messages_round_trip(choices: Vec<u32>, version in version(), procedure in prop::sample::select(Procedure::ALL)) {
        let call = Source::new(choices).nlm_call(version, procedure);
        let bytes = encode(&call);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(Call::decode(version, procedure, &mut from), Ok(call));
        prop_assert_eq!(from.finish(), Ok(()));
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>, version in version()) {
        for procedure in Procedure::ALL {
            let _ = Call::decode(version, *procedure, &mut Reader::new(&input));
        }
        let _ = ShareOutcome::decode(&mut Reader::new(&input));
    }
}
