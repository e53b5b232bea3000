use proptest::prelude::*;

use super::*;

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

const NFS_TCP: Mapping = Mapping {
    program: 100_003,
    version: 3,
    protocol: PROTOCOL_TCP,
    port: 2049,
};
const NFS_TCP_BYTES: &[u8] = b"\0\x01\x86\xa3\0\0\0\x03\0\0\0\x06\0\0\x08\x01";

#[test]
fn calls_are_golden() {
    let cases: &[(u32, &[u8], Result<Call, DecodeError>)] = &[
        (0, b"", Ok(Call::Null)),
        (1, NFS_TCP_BYTES, Ok(Call::Set(NFS_TCP))),
        (2, NFS_TCP_BYTES, Ok(Call::Unset(NFS_TCP))),
        (3, NFS_TCP_BYTES, Ok(Call::GetPort(NFS_TCP))),
        (3, &NFS_TCP_BYTES[..12], Err(DecodeError::Truncated)),
        (4, b"", Ok(Call::Dump)),
    ];
    for (number, input, want) in cases {
        let procedure = Procedure::from_u32(*number).unwrap();
        assert_eq!(Call::decode(procedure, &mut Reader::new(input)), *want);
        if let Ok(call) = want {
            assert_eq!(encode(call), *input);
            assert_eq!(call.procedure(), procedure);
        }
    }
    assert_eq!(Procedure::from_u32(5), None, "CALLIT is not there");
}

#[test]
fn replies_are_golden() {
    let dump = [b"\0\0\0\x01", NFS_TCP_BYTES, b"\0\0\0\0"].concat();
    let cases: &[(Procedure, &[u8], Reply)] = &[
        (Procedure::Null, b"", Reply::Null),
        (Procedure::Set, b"\0\0\0\0", Reply::Set(false)),
        (Procedure::Unset, b"\0\0\0\x01", Reply::Unset(true)),
        (Procedure::GetPort, b"\0\0\x08\x01", Reply::GetPort(2049)),
        (Procedure::Dump, &dump, Reply::Dump(List(vec![NFS_TCP]))),
    ];
    for (procedure, input, want) in cases {
        let mut from = Reader::new(input);
        assert_eq!(Reply::decode(*procedure, &mut from).as_ref(), Ok(want));
        assert_eq!(encode(want), *input);
    }
}

proptest! {
    #[test]
    fn dump_round_trips(numbers: Vec<[u32; 4]>) {
        let mappings = numbers
            .into_iter()
            .map(|[program, version, protocol, port]| Mapping { program, version, protocol, port })
            .collect();
        let reply = Reply::Dump(List(mappings));
        let bytes = encode(&reply);
        prop_assert_eq!(Reply::decode(Procedure::Dump, &mut Reader::new(&bytes)), Ok(reply));
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>) {
        for procedure in Procedure::ALL {
            let _ = Call::decode(*procedure, &mut Reader::new(&input));
            let _ = Reply::decode(*procedure, &mut Reader::new(&input));
        }
    }
}
