use proptest::prelude::*;

use super::*;

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

const NFS_TCP: Mapping<'static> = Mapping {
    program: 100_003,
    version: 3,
    netid: Opaque(b"tcp"),
    uaddr: Opaque(b"0.0.0.0.8.1"),
    owner: Opaque(b""),
};
const NFS_TCP_BYTES: &[u8] =
    b"\0\x01\x86\xa3\0\0\0\x03\0\0\0\x03tcp\0\0\0\0\x0b0.0.0.0.8.1\0\0\0\0\0";

#[test]
fn calls_are_golden() {
    let cases: &[(u32, &[u8], Result<Call, DecodeError>)] = &[
        (0, b"", Ok(Call::Null)),
        (1, NFS_TCP_BYTES, Ok(Call::Set(NFS_TCP))),
        (2, NFS_TCP_BYTES, Ok(Call::Unset(NFS_TCP))),
        (3, NFS_TCP_BYTES, Ok(Call::GetAddr(NFS_TCP))),
        (3, &NFS_TCP_BYTES[..12], Err(DecodeError::Truncated)),
        (4, b"", Ok(Call::Dump)),
        (6, b"", Ok(Call::GetTime)),
        (9, NFS_TCP_BYTES, Ok(Call::GetVersAddr(NFS_TCP))),
    ];
    for (number, input, want) in cases {
        let procedure = Procedure::of_version(4, *number).unwrap();
        assert_eq!(Call::decode(procedure, &mut Reader::new(input)), *want);
        if let Ok(call) = want {
            assert_eq!(encode(call), *input);
            assert_eq!(call.procedure(), procedure);
        }
    }
    assert_eq!(Procedure::of_version(3, 9), None, "version 4 only");
    assert_eq!(Procedure::of_version(4, 5), None, "BCAST is not there");
    assert_eq!(Procedure::of_version(3, 3), Some(Procedure::GetAddr));
}

#[test]
fn replies_are_golden() {
    let dump = [b"\0\0\0\x01", NFS_TCP_BYTES, b"\0\0\0\0"].concat();
    let cases: &[(Procedure, &[u8], Reply)] = &[
        (Procedure::Null, b"", Reply::Null),
        (Procedure::Set, b"\0\0\0\x01", Reply::Set(true)),
        (Procedure::Unset, b"\0\0\0\0", Reply::Unset(false)),
        (Procedure::GetAddr, b"\0\0\0\0", Reply::GetAddr(Opaque(b""))),
        (Procedure::Dump, &dump, Reply::Dump(List(vec![NFS_TCP]))),
        (Procedure::GetTime, b"\0\0\0\x2a", Reply::GetTime(42)),
        (
            Procedure::GetVersAddr,
            b"\0\0\0\x04::.1",
            Reply::GetVersAddr(Opaque(b"::.1")),
        ),
    ];
    for (procedure, input, want) in cases {
        let mut from = Reader::new(input);
        assert_eq!(Reply::decode(*procedure, &mut from).as_ref(), Ok(want));
        assert_eq!(encode(want), *input);
    }
}

#[test]
fn universal_addresses_are_parsed_or_refused() {
    let cases: &[(&str, Option<&str>)] = &[
        ("0.0.0.0.8.1", Some("0.0.0.0:2049")),
        ("127.0.0.1.0.111", Some("127.0.0.1:111")),
        ("10.1.2.3.255.255", Some("10.1.2.3:65535")),
        ("::.8.1", Some("[::]:2049")),
        ("fe80::1.3.255", Some("[fe80::1]:1023")),
        ("::ffff:10.0.0.1.8.1", Some("[::ffff:10.0.0.1]:2049")),
        ("10.1.2.3.256.0", None),
        ("10.1.2.3.+1.0", None),
        ("10.1.2.3..1", None),
        ("10.1.2.3.8", None),
        ("10.1.2.3", None),
        ("8.1", None),
        (".8.1", None),
        ("fe80::1%eth0.8.1", None),
        ("", None),
        ("\u{661}.0.0.1.8.1", None),
    ];
    for (text, want) in cases {
        let want = want.map(|it| it.parse::<SocketAddr>().unwrap());
        assert_eq!(parse_uaddr(text.as_bytes()), want, "{text}");
        if let Some(address) = want {
            assert_eq!(format_uaddr(address), *text);
        }
    }
    assert_eq!(parse_uaddr(&[0xff, b'.', b'1', b'.', b'1']), None);
}

proptest! {
    #[test]
    fn universal_addresses_round_trip(ip: IpAddr, port: u16) {
        let address = SocketAddr::new(ip, port);
        prop_assert_eq!(parse_uaddr(format_uaddr(address).as_bytes()), Some(address));
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>) {
        let _ = parse_uaddr(&input);
        for procedure in Procedure::ALL {
            let _ = Call::decode(*procedure, &mut Reader::new(&input));
            let _ = Reply::decode(*procedure, &mut Reader::new(&input));
        }
    }

    #[test]
    fn dump_round_trips(
        entries in prop::collection::vec(any::<(u32, u32, [Vec<u8>; 3])>(), 0..5),
    ) {
        let mappings = entries
            .iter()
            .map(|(program, version, [netid, uaddr, owner])| Mapping {
                program: *program,
                version: *version,
                netid: Opaque(netid),
                uaddr: Opaque(uaddr),
                owner: Opaque(owner),
            })
            .collect();
        let reply = Reply::Dump(List(mappings));
        let bytes = encode(&reply);
        prop_assert_eq!(Reply::decode(Procedure::Dump, &mut Reader::new(&bytes)), Ok(reply));
    }
}
