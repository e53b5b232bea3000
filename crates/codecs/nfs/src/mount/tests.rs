use proptest::prelude::*;

use super::*;
use crate::source::Source;

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

fn procedure() -> impl Strategy<Value = Procedure> {
    prop::sample::select(Procedure::ALL)
}

#[test]
fn calls_are_golden() {
    let path_at_limit = [&b"\0\0\x04\0"[..], &[b'x'; 1024]].concat();
    let too_long = DecodeError::TooLong {
        len_bytes: 1025,
        len_bytes_max: 1024,
    };
    type Want<'a> = Result<Call<'a>, DecodeError>;
    let cases: &[(&str, u32, &[u8], Want)] = &[
        ("null", 0, b"", Ok(Call::Null)),
        (
            "mnt",
            1,
            b"\0\0\0\x05/main\0\0\0",
            Ok(Call::Mount("/main".into())),
        ),
        ("empty path", 1, b"\0\0\0\0", Ok(Call::Mount("".into()))),
        (
            "at the limit",
            1,
            &path_at_limit,
            Ok(Call::Mount(Opaque(&[b'x'; 1024]))),
        ),
        ("past the limit", 1, b"\0\0\x04\x01", Err(too_long)),
        ("path missing", 1, b"", Err(DecodeError::Truncated)),
        ("dump", 2, b"", Ok(Call::Dump)),
        (
            "umnt",
            3,
            b"\0\0\0\x04/vol",
            Ok(Call::Unmount("/vol".into())),
        ),
        ("umntall", 4, b"", Ok(Call::UnmountAll)),
        ("export", 5, b"", Ok(Call::Export)),
    ];
    for (name, number, input, want) in cases {
        let procedure = Procedure::from_u32(*number).unwrap();
        assert_eq!(
            Call::decode(procedure, &mut Reader::new(input)),
            *want,
            "{name}"
        );
        if let Ok(call) = want {
            assert_eq!(encode(call), *input, "{name}");
        }
    }
    assert_eq!(Procedure::from_u32(6), None);
}

#[test]
fn replies_are_golden() {
    let mounted = Reply::Mount(Ok(MountOk {
        handle: FileHandle::new(b"stone").unwrap(),
        auth_flavors: Array(vec![1, 0]),
    }));
    let mounts = Reply::Dump(List(vec![MountEntry {
        host: "10.0.0.1".into(),
        path: "/a".into(),
    }]));
    let exports = Reply::Export(List(vec![
        ExportEntry {
            path: "/a".into(),
            groups: List(vec!["h1".into(), "h2".into()]),
        },
        ExportEntry {
            path: "/b".into(),
            groups: List(vec![]),
        },
    ]));
    let handle_v1 = [&[0; 4][..], &[7; 32]].concat();
    let cases: &[(u32, Procedure, &[u8], Reply)] = &[
        (
            3,
            Procedure::Mount,
            b"\0\0\0\0\0\0\0\x05stone\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0",
            mounted,
        ),
        (
            3,
            Procedure::Mount,
            b"\0\0\0\x0d",
            Reply::Mount(Err(MountError::Access)),
        ),
        (1, Procedure::Mount, &handle_v1, Reply::MountV1(Ok([7; 32]))),
        (
            1,
            Procedure::Mount,
            b"\0\0\0\x02",
            Reply::MountV1(Err(MountError::NoEnt.into())),
        ),
        (
            3,
            Procedure::Dump,
            b"\0\0\0\x01\0\0\0\x0810.0.0.1\0\0\0\x02/a\0\0\0\0\0\0",
            mounts,
        ),
        (
            3,
            Procedure::Export,
            b"\0\0\0\x01\0\0\0\x02/a\0\0\
              \0\0\0\x01\0\0\0\x02h1\0\0\0\0\0\x01\0\0\0\x02h2\0\0\0\0\0\0\
              \0\0\0\x01\0\0\0\x02/b\0\0\0\0\0\0\
              \0\0\0\0",
            exports,
        ),
        (1, Procedure::UnmountAll, b"", Reply::UnmountAll),
    ];
    for (version, procedure, input, want) in cases {
        let mut from = Reader::new(input);
        assert_eq!(
            Reply::decode(*version, *procedure, &mut from).as_ref(),
            Ok(want)
        );
        assert_eq!(from.finish(), Ok(()));
        assert_eq!(encode(want), *input);
    }
    let unknown = Reply::decode(3, Procedure::Mount, &mut Reader::new(b"\0\0\0\x03"));
    let (what, value) = ("mountstat3", 3);
    assert_eq!(unknown, Err(DecodeError::BadValue { what, value }));
}

proptest! {
    #[test]
    fn messages_round_trip(choices: Vec<u32>, version in prop::sample::select(&[1u32, 3]), procedure in procedure()) {
        let mut source = Source::new(choices);
        let call = source.mount_call(procedure);
        let bytes = encode(&call);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(call.procedure(), procedure);
        prop_assert_eq!(Call::decode(procedure, &mut from), Ok(call));
        prop_assert_eq!(from.finish(), Ok(()));

        let reply = source.mount_reply(version, procedure);
        let bytes = encode(&reply);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(reply.procedure(), procedure);
        prop_assert_eq!(Reply::decode(version, procedure, &mut from), Ok(reply));
        prop_assert_eq!(from.finish(), Ok(()));
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>, version: u32) {
        for procedure in Procedure::ALL {
            let _ = Call::decode(*procedure, &mut Reader::new(&input));
            let _ = Reply::decode(version, *procedure, &mut Reader::new(&input));
        }
    }
}
