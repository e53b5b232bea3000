use bytes::Bytes;
use cairn_base::{DiskId, Epoch, NodeId, PoolId, SegmentId, VolumeId};
use cairn_formats::shard::name::ShardName;
use proptest::prelude::*;

use crate::testing::{FAULT_KINDS, MESSAGE_KINDS, Numbers};
use crate::*;

/// Reads a frame that is all of `bytes`: its id, message and payload.
fn decode(bytes: &[u8]) -> Result<(u64, Message, Vec<u8>), WireError> {
    let (head, rest) = bytes
        .split_first_chunk::<HEADER_LEN_BYTES>()
        .ok_or(WireError::Truncated)?;
    let header = Header::decode(head)?;
    let (body, payload) = rest
        .split_at_checked(header.body_len_bytes as usize)
        .ok_or(WireError::Truncated)?;
    let message = header.message(body)?;
    if payload.len() != header.payload_len_bytes as usize {
        return Err(WireError::Truncated);
    }
    header.check_payload(payload)?;
    Ok((header.id, message, payload.to_vec()))
}

fn frame(id: u64, message: &Message, payload: &[Bytes]) -> Vec<u8> {
    let mut bytes = encode(id, message, payload).expect("it fits");
    for part in payload {
        bytes.extend_from_slice(part);
    }
    bytes
}

#[test]
fn every_kind_comes_back_and_no_damage_passes() {
    for kind in 0..MESSAGE_KINDS {
        let (id, message, payload) = Numbers(kind).message(kind);
        let bytes = frame(id, &message, &payload);
        let want = (id, message, payload.concat());
        assert_eq!(decode(&bytes), Ok(want));
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "kind {kind}, {len} bytes");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                assert!(
                    decode(&bad).is_err(),
                    "kind {kind}, byte {at} of {}",
                    bytes.len()
                );
            }
        }
    }
}

#[test]
fn every_error_comes_back() {
    for kind in 0..FAULT_KINDS {
        for seed in 0..8 {
            let fault = Numbers(seed).fault(kind);
            let message = Message::Reply(Reply::Failed { fault });
            assert_eq!(
                decode(&frame(7, &message, &[])),
                Ok((7, message, Vec::new()))
            );
        }
    }
}

proptest! {
    #[test]
    fn messages_come_back(kind in 0..MESSAGE_KINDS, seed: u64) {
        let (id, message, payload) = Numbers(seed).message(kind);
        let bytes = frame(id, &message, &payload);
        prop_assert_eq!(decode(&bytes), Ok((id, message, payload.concat())));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }
}

#[test]
fn long_texts_are_cut_at_a_letter() {
    let reason = "ü".repeat(TEXT_LEN_BYTES_MAX);
    let sent = Message::Goodbye {
        reason: format!("a{reason}"),
    };
    let (_, message, _) = decode(&frame(0, &sent, &[])).expect("whole");
    let Message::Goodbye { reason } = message else {
        panic!("{message:?}");
    };
    assert_eq!(reason.len(), TEXT_LEN_BYTES_MAX - 1);
    assert!(reason.starts_with("aüü"));
}

fn name() -> ShardName {
    ShardName {
        volume: VolumeId(3),
        segment: SegmentId(0x1122_3344),
        index: 5,
    }
}

fn append(places: Vec<ShardRange>) -> Message {
    Message::Request {
        disk: DiskId(9),
        request: Request::Append {
            epoch: Epoch(4),
            name: name(),
            places,
        },
    }
}

#[test]
fn what_is_too_long_is_refused_on_both_sides() {
    let place = |len_bytes| ShardRange {
        offset: 0,
        len_bytes,
    };
    let payload = Bytes::from(vec![0; PAYLOAD_LEN_BYTES_MAX + 1]);
    let at_the_limit = payload.slice(1..);
    let message = append(vec![place(PAYLOAD_LEN_BYTES_MAX as u32)]);
    assert!(encode(1, &message, &[at_the_limit]).is_ok());
    let message = append(vec![place(PAYLOAD_LEN_BYTES_MAX as u32 + 1)]);
    let too_long = |result| matches!(result, Err(WireError::TooLong { .. }));
    assert!(too_long(encode(1, &message, &[payload]).map(drop)));
    let list = Message::Request {
        disk: DiskId(9),
        request: Request::Sweep {
            epoch: Epoch(4),
            volume: VolumeId(3),
            names: vec![name(); BODY_LEN_BYTES_MAX / 13 + 1],
            mark: 0,
        },
    };
    assert!(too_long(encode(1, &list, &[]).map(drop)));
    let wrong = append(vec![place(5)]);
    assert_eq!(
        encode(1, &wrong, &[Bytes::from_static(b"four")]),
        Err(WireError::Field("payload length"))
    );

    // Longer ones from a sender that ignores the limit.
    for (offset, what) in [(16, "body"), (20, "payload")] {
        let mut bytes = frame(0, &Message::Ping {}, &[]);
        bytes[offset..offset + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = cairn_base::crc32c(&bytes[..HEADER_LEN_BYTES - 4]);
        bytes[HEADER_LEN_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        let refused = decode(&bytes).unwrap_err();
        let WireError::TooLong { what: found, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(found, what);
    }
}

#[test]
fn a_list_claims_no_more_than_is_there() {
    let mut fields = crate::fields::Fields(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
    let list = <Vec<ShardName> as crate::fields::Part>::take(&mut fields);
    assert_eq!(list, Err(WireError::Truncated));
}

/// If this fails, the protocol has changed: its page must say so, and after the first release its version must grow.
#[test]
fn bytes_of_version_1_do_not_change() {
    let hex = |bytes: &[u8]| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    let hello = Message::Hello(Hello {
        version_min: 1,
        version_max: 1,
        cluster: PoolId(0xabc),
        from: NodeId(1),
        to: NodeId(2),
    });
    let append = append(vec![ShardRange {
        offset: 8192,
        len_bytes: 4,
    }]);
    let fenced = Message::Reply(Reply::Failed {
        fault: Fault::Fenced {
            disk: "a".to_owned(),
            volume: VolumeId(3),
            epoch: Epoch(4),
            promised: Epoch(5),
        },
    });
    let cases = [
        (0, hello, vec![], GOLDEN_HELLO),
        (7, append, vec![Bytes::from_static(b"data")], GOLDEN_APPEND),
        (7, fenced, vec![], GOLDEN_FENCED),
    ];
    for (id, message, payload, want) in cases {
        assert_eq!(hex(&frame(id, &message, &payload)), want, "{message:?}");
    }
}

const GOLDEN_HELLO: &str = "43524e570100010000000000000000003400000000000000e9ee2ce500000000058edaa901000100bc0a00000000000000000000000000000100000000000000000000000000000002000000000000000000000000000000";
const GOLDEN_APPEND: &str = "43524e57010007000700000000000000360000000400000028fe5637d17dd8ae87e46ad409000000000000000000000000000000060400000000000000030000004433221100000000050100000000200000000000000400000064617461";
const GOLDEN_FENCED: &str = "43524e5701000800070000000000000019000000000000008a11aa5f0000000088b4dfdf010b0100610300000004000000000000000500000000000000";
