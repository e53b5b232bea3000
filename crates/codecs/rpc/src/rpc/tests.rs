use proptest::prelude::*;

use super::*;
use DecodeError::{BadValue, TooMany, Trailing, Truncated};

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// What a Linux client sends first: NULL of NFS version 3.
const NULL_CALL: CallHeader<'static> = CallHeader {
    xid: 0x1234,
    program: 100_003,
    version: 3,
    procedure: 0,
    credential: OpaqueAuth::NONE,
    verifier: OpaqueAuth::NONE,
};

#[test]
fn call_is_decoded_answered_or_dropped() {
    let refused = |rejection| {
        Ok(Incoming::Refused {
            xid: 0x1234,
            rejection,
        })
    };
    let mismatch = Rejection::RpcMismatch { low: 2, high: 2 };
    let not_a_call = |value| {
        Err(BadValue {
            what: "call (msg_type)",
            value,
        })
    };
    let call = [0x1234, 0, 2, 100_003, 3, 0];
    let with = |tail: &[u32]| words(&[&call, tail].concat());
    let cases: &[(&str, Vec<u8>, Result<Incoming, DecodeError>)] = &[
        ("golden", with(&[0, 0, 0, 0]), Ok(Incoming::Call(NULL_CALL))),
        ("a reply", words(&[0x1234, 1, 0, 0, 0, 0]), not_a_call(1)),
        ("neither", words(&[0x1234, 2, 0, 0, 0, 0]), not_a_call(2)),
        ("RPC version 1", words(&[0x1234, 0, 1]), refused(mismatch)),
        (
            "RPC version 3",
            words(&[0x1234, 0, 3, 9, 9, 9]),
            refused(mismatch),
        ),
        ("cut off after the xid", words(&[0x1234]), Err(Truncated)),
        (
            "cut off before the credential",
            words(&call),
            Err(Truncated),
        ),
        ("credential cut off", with(&[1, 8, 0]), Err(Truncated)),
        (
            "credential too long",
            with(&[1, 401]),
            refused(Rejection::Auth(AuthStatus::BadCredential)),
        ),
        (
            "verifier too long",
            with(&[0, 0, 0, 401]),
            refused(Rejection::Auth(AuthStatus::BadVerifier)),
        ),
        ("verifier missing", with(&[0, 0]), Err(Truncated)),
        ("empty", vec![], Err(Truncated)),
    ];
    for (name, input, want) in cases {
        assert_eq!(decode_call(&mut Reader::new(input)), *want, "{name}");
    }
    assert_eq!(encode(&NULL_CALL), with(&[0, 0, 0, 0]));
}

#[test]
fn call_leaves_the_arguments() {
    let mut input = encode(&NULL_CALL);
    input.extend_from_slice(b"arguments");
    let mut from = Reader::new(&input);
    assert!(decode_call(&mut from).is_ok());
    assert_eq!(from.rest(), b"arguments");
}

#[test]
fn longest_header_is_as_long_as_we_say() {
    let body = [7; AUTH_BODY_LEN_BYTES_MAX as usize];
    let auth = OpaqueAuth {
        flavor: 9,
        body: &body,
    };
    let call = CallHeader {
        credential: auth,
        verifier: auth,
        ..NULL_CALL
    };
    let bytes = encode(&call);
    assert_eq!(bytes.len(), CALL_HEADER_LEN_BYTES_MAX);
    assert_eq!(
        decode_call(&mut Reader::new(&bytes)),
        Ok(Incoming::Call(call))
    );
}

#[test]
fn auth_sys_is_decoded_or_refused() {
    let golden =
        b"\0\0\0\x07\0\0\0\x05stone\0\0\0\0\0\x03\xe8\0\0\0\x64\0\0\0\x02\0\0\0\x04\0\0\0\x1b";
    let sys = AuthSys {
        stamp: 7,
        machine_name: "stone".into(),
        uid: 1000,
        gid: 100,
        groups: Groups::new(&[4, 27]).unwrap(),
    };
    let groups = |count: usize| words(&[&[0, 0, 1, 1, count as u32], &vec![5; count][..]].concat());
    let of_groups = |count| AuthSys {
        stamp: 0,
        machine_name: "".into(),
        uid: 1,
        gid: 1,
        groups: Groups::new(&vec![5; count]).unwrap(),
    };
    let name_too_long = DecodeError::TooLong {
        len_bytes: 256,
        len_bytes_max: 255,
    };
    let cases: &[(&str, Vec<u8>, Result<AuthSys, DecodeError>)] = &[
        ("golden", golden.to_vec(), Ok(sys.clone())),
        ("no groups", groups(0), Ok(of_groups(0))),
        ("16 groups", groups(16), Ok(of_groups(16))),
        ("17 groups", groups(17), Err(TooMany { count_max: 16 })),
        (
            "hostile count",
            words(&[0, 0, 1, 1, u32::MAX]),
            Err(TooMany { count_max: 16 }),
        ),
        ("groups cut off", words(&[0, 0, 1, 1, 2, 5]), Err(Truncated)),
        ("name of 256", words(&[0, 256]), Err(name_too_long)),
        (
            "too much",
            [&golden[..], b"\0"].concat(),
            Err(Trailing { len_bytes: 1 }),
        ),
        ("empty", vec![], Err(Truncated)),
    ];
    for (name, body, want) in cases {
        assert_eq!(AuthSys::from_body(body), *want, "{name}");
        if let Ok(sys) = want {
            assert_eq!(sys.to_body(), *body, "{name}");
        }
    }
    assert_eq!(&*sys.groups, [4, 27]);
    assert_eq!(Groups::new(&[1; 17]), None);
}

#[test]
fn credential_is_one_of_three() {
    type Want<'a> = Result<Credential<'a>, AuthStatus>;
    let cases: &[(&str, u32, &[u8], Want)] = &[
        ("none", 0, b"", Ok(Credential::None)),
        ("none with a body", 0, b"abcd", Ok(Credential::None)),
        ("sys cut off", 1, b"\0\0", Err(AuthStatus::BadCredential)),
        ("short", 2, b"", Ok(Credential::Other(2))),
        ("gss", 6, b"anything", Ok(Credential::Other(6))),
    ];
    for (name, flavor, body, want) in cases {
        let auth = OpaqueAuth {
            flavor: *flavor,
            body,
        };
        assert_eq!(auth.credential(), *want, "{name}");
    }
}

#[test]
fn long_machine_name_is_cut() {
    let name = "n".repeat(300);
    let sys = AuthSys {
        stamp: 0,
        machine_name: name.as_str().into(),
        uid: 0,
        gid: 0,
        groups: Groups::new(&[1; 16]).unwrap(),
    };
    let body = sys.to_body();
    assert!(body.len() <= AUTH_BODY_LEN_BYTES_MAX as usize);
    assert_eq!(AuthSys::from_body(&body).unwrap().machine_name.len(), 255);
}

#[test]
fn reply_header_is_golden() {
    let mismatch = AcceptStatus::ProgramMismatch { low: 3, high: 4 };
    let rpc_mismatch = Rejection::RpcMismatch { low: 2, high: 2 };
    let accepted = |status| Ok(ReplyHeader::accepted(9, status));
    let denied = |rejection| Ok(ReplyHeader::denied(9, rejection));
    let bad = |what, value| Err(BadValue { what, value });
    let cases: &[(&str, &[u32], Result<ReplyHeader, DecodeError>)] = &[
        (
            "success",
            &[9, 1, 0, 0, 0, 0],
            accepted(AcceptStatus::Success),
        ),
        (
            "program",
            &[9, 1, 0, 0, 0, 1],
            accepted(AcceptStatus::ProgramUnavailable),
        ),
        ("version", &[9, 1, 0, 0, 0, 2, 3, 4], accepted(mismatch)),
        (
            "procedure",
            &[9, 1, 0, 0, 0, 3],
            accepted(AcceptStatus::ProcedureUnavailable),
        ),
        (
            "arguments",
            &[9, 1, 0, 0, 0, 4],
            accepted(AcceptStatus::GarbageArgs),
        ),
        (
            "system",
            &[9, 1, 0, 0, 0, 5],
            accepted(AcceptStatus::SystemError),
        ),
        ("unknown accept", &[9, 1, 0, 0, 0, 6], bad("accept_stat", 6)),
        ("RPC version", &[9, 1, 1, 0, 2, 2], denied(rpc_mismatch)),
        (
            "too weak",
            &[9, 1, 1, 1, 5],
            denied(Rejection::Auth(AuthStatus::TooWeak)),
        ),
        ("unknown auth", &[9, 1, 1, 1, 99], bad("auth_stat", 99)),
        ("unknown reject", &[9, 1, 1, 2], bad("reject_stat", 2)),
        ("unknown reply", &[9, 1, 2], bad("reply_stat", 2)),
        ("a call", &[9, 0, 2], bad("reply (msg_type)", 0)),
        ("cut off", &[9, 1, 0, 0, 0], Err(Truncated)),
    ];
    for (name, input, want) in cases {
        let input = words(input);
        let mut from = Reader::new(&input);
        assert_eq!(from.get::<ReplyHeader>(), *want, "{name}");
        if let Ok(header) = want {
            assert_eq!(encode(header), input, "{name}");
        }
    }
}

#[test]
fn success_in_one_append_is_the_same() {
    let mut bytes = Vec::new();
    encode_success(&mut Writer::new(&mut bytes), 0xa1b2c3d4);
    assert_eq!(
        bytes,
        encode(&ReplyHeader::accepted(0xa1b2c3d4, AcceptStatus::Success))
    );
    assert_eq!(bytes.len(), SUCCESS_HEADER_LEN_BYTES);
}

fn auth() -> impl Strategy<Value = (u32, Vec<u8>)> {
    (0u32..8, prop::collection::vec(any::<u8>(), 0..=400))
}

fn accept_status() -> impl Strategy<Value = AcceptStatus> {
    prop_oneof![
        Just(AcceptStatus::Success),
        Just(AcceptStatus::ProgramUnavailable),
        any::<(u32, u32)>().prop_map(|(low, high)| AcceptStatus::ProgramMismatch { low, high }),
        Just(AcceptStatus::ProcedureUnavailable),
        Just(AcceptStatus::GarbageArgs),
        Just(AcceptStatus::SystemError),
    ]
}

fn rejection() -> impl Strategy<Value = Rejection> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(low, high)| Rejection::RpcMismatch { low, high }),
        prop::sample::select(AuthStatus::ALL).prop_map(Rejection::Auth),
    ]
}

proptest! {
    #[test]
    fn call_round_trips(numbers: [u32; 4], credential in auth(), verifier in auth()) {
        let [xid, program, version, procedure] = numbers;
        let call = CallHeader {
            xid,
            program,
            version,
            procedure,
            credential: OpaqueAuth { flavor: credential.0, body: &credential.1 },
            verifier: OpaqueAuth { flavor: verifier.0, body: &verifier.1 },
        };
        let bytes = encode(&call);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(decode_call(&mut from), Ok(Incoming::Call(call)));
        prop_assert_eq!(from.finish(), Ok(()));
        for len in 0..bytes.len() {
            prop_assert_eq!(decode_call(&mut Reader::new(&bytes[..len])), Err(Truncated));
        }
    }

    #[test]
    fn reply_round_trips(
        xid: u32,
        verifier in auth(),
        outcome in prop_oneof![accept_status().prop_map(Ok), rejection().prop_map(Err)],
    ) {
        let verifier = OpaqueAuth { flavor: verifier.0, body: &verifier.1 };
        let body = match outcome {
            Ok(status) => ReplyBody::Accepted { verifier, status },
            Err(rejection) => ReplyBody::Denied(rejection),
        };
        let header = ReplyHeader { xid, body };
        let bytes = encode(&header);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(from.get(), Ok(header));
        prop_assert_eq!(from.finish(), Ok(()));
    }

    #[test]
    fn auth_sys_round_trips(
        stamp: u32,
        uid: u32,
        gid: u32,
        name in prop::collection::vec(any::<u8>(), 0..=255),
        gids in prop::collection::vec(any::<u32>(), 0..=16),
    ) {
        let groups = Groups::new(&gids).unwrap();
        let sys = AuthSys { stamp, machine_name: Opaque(&name), uid, gid, groups };
        let body = sys.to_body();
        prop_assert_eq!(OpaqueAuth::sys(&body).credential(), Ok(Credential::Sys(sys)));
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>) {
        let _ = decode_call(&mut Reader::new(&input));
        let _ = Reader::new(&input).get::<ReplyHeader>();
        let _ = AuthSys::from_body(&input);
    }
}
