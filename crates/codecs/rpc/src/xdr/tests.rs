use proptest::prelude::*;

use super::*;
use DecodeError::{BadValue, TooLong, TooMany, Trailing, Truncated};

/// Reads all of `input` as one value.
fn decode<'a, T: Decode<'a>>(input: &'a [u8]) -> Result<T, DecodeError> {
    let mut from = Reader::new(input);
    let value = from.get()?;
    from.finish().map(|()| value)
}

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

/// `Ok` cases must also encode to the same bytes.
fn check<'a, T>(cases: &[(&str, &'a [u8], Result<T, DecodeError>)])
where
    T: Decode<'a> + Encode + PartialEq + fmt::Debug,
{
    for (name, input, want) in cases {
        assert_eq!(decode::<T>(input), *want, "{name}");
        if let Ok(value) = want {
            assert_eq!(encode(value), *input, "{name}");
        }
    }
}

#[test]
fn numbers_are_big_endian() {
    check::<u32>(&[
        ("small", b"\0\0\0\x05", Ok(5)),
        ("largest", &[0xff; 4], Ok(u32::MAX)),
        ("cut off", b"\0\0\0", Err(Truncated)),
        ("empty", b"", Err(Truncated)),
        ("too much", b"\0\0\0\x01\0", Err(Trailing { len_bytes: 1 })),
    ]);
    check::<u64>(&[
        (
            "all bytes",
            b"\x01\x02\x03\x04\x05\x06\x07\x08",
            Ok(0x0102030405060708),
        ),
        ("cut off", b"\x01\x02\x03\x04\x05\x06\x07", Err(Truncated)),
    ]);
}

#[test]
fn booleans_are_zero_or_one() {
    let bad = |value| {
        Err(BadValue {
            what: "bool",
            value,
        })
    };
    check::<bool>(&[
        ("false", b"\0\0\0\0", Ok(false)),
        ("true", b"\0\0\0\x01", Ok(true)),
        ("two", b"\0\0\0\x02", bad(2)),
        ("minus one", &[0xff; 4], bad(u32::MAX)),
    ]);
}

#[test]
fn opaque_is_decoded_or_refused() {
    let too_long = |len_bytes| {
        Err(TooLong {
            len_bytes,
            len_bytes_max: 4,
        })
    };
    check::<Opaque<'_, 4>>(&[
        ("empty", b"\0\0\0\0", Ok(Opaque(b""))),
        ("padded to four", b"\0\0\0\x01a\0\0\0", Ok(Opaque(b"a"))),
        ("at the limit", b"\0\0\0\x04abcd", Ok(Opaque(b"abcd"))),
        ("one past the limit", b"\0\0\0\x05", too_long(5)),
        ("longest length there is", &[0xff; 4], too_long(u32::MAX)),
        ("padding missing", b"\0\0\0\x01a", Err(Truncated)),
        ("padding cut off", b"\0\0\0\x01a\0\0", Err(Truncated)),
        ("body cut off", b"\0\0\0\x03ab", Err(Truncated)),
    ]);
    assert_eq!(
        decode(b"\0\0\0\x01a\x01\x02\x03"),
        Ok(Opaque::<'_, 4>(b"a")),
        "what the padding says does not matter"
    );
}

#[test]
fn fixed_opaque_is_padded() {
    check::<[u8; 3]>(&[
        ("padded", b"abc\0", Ok(*b"abc")),
        ("padding missing", b"abc", Err(Truncated)),
    ]);
    check::<[u8; 8]>(&[
        ("no padding", b"verifier", Ok(*b"verifier")),
        ("cut off", b"verifie", Err(Truncated)),
    ]);
}

#[test]
fn optional_data_follows_a_boolean() {
    check::<Option<u32>>(&[
        ("absent", b"\0\0\0\0", Ok(None)),
        ("present", b"\0\0\0\x01\0\0\0\x07", Ok(Some(7))),
        ("promised, not there", b"\0\0\0\x01", Err(Truncated)),
        (
            "no boolean",
            b"\0\0\0\x02\0\0\0\x07",
            Err(BadValue {
                what: "bool",
                value: 2,
            }),
        ),
    ]);
}

xdr_enum! {
    /// For the tests.
    pub enum Fault: "fault" {
        Small = 1 => "small",
        Large = 70_000 => "large",
    }
}

#[test]
fn status_union_is_a_result() {
    check::<Result<u32, Fault>>(&[
        ("success", b"\0\0\0\0\0\0\0\x09", Ok(Ok(9))),
        ("failure", b"\0\0\0\x01", Ok(Err(Fault::Small))),
        ("other failure", b"\0\x01\x11\x70", Ok(Err(Fault::Large))),
        (
            "unknown status",
            b"\0\0\0\x02",
            Err(BadValue {
                what: "fault",
                value: 2,
            }),
        ),
        ("no result", b"\0\0\0\0", Err(Truncated)),
        ("empty", b"", Err(Truncated)),
    ]);
}

#[test]
fn enum_knows_its_numbers_and_names() {
    assert_eq!(Fault::ALL, [Fault::Small, Fault::Large]);
    assert_eq!(Fault::from_u32(70_000), Some(Fault::Large));
    assert_eq!(Fault::from_u32(0), None);
    assert_eq!(Fault::Large.name(), "large");
}

#[test]
fn lists_and_arrays_have_limits() {
    check::<List<u32>>(&[
        ("empty", b"\0\0\0\0", Ok(List(vec![]))),
        ("one", b"\0\0\0\x01\0\0\0\x07\0\0\0\0", Ok(List(vec![7]))),
        ("no end", b"\0\0\0\x01\0\0\0\x07", Err(Truncated)),
    ]);
    check::<Array<u32, 2>>(&[
        ("empty", b"\0\0\0\0", Ok(Array(vec![]))),
        (
            "full",
            b"\0\0\0\x02\0\0\0\x07\0\0\0\x08",
            Ok(Array(vec![7, 8])),
        ),
        ("one too many", b"\0\0\0\x03", Err(TooMany { count_max: 2 })),
        (
            "fewer than promised",
            b"\0\0\0\x02\0\0\0\x07",
            Err(Truncated),
        ),
    ]);
    let endless = b"\0\0\0\x01".repeat(LIST_COUNT_MAX as usize + 1);
    assert_eq!(
        decode::<List<()>>(&endless),
        Err(TooMany {
            count_max: LIST_COUNT_MAX
        })
    );
}

#[test]
fn padding_makes_multiples_of_four() {
    for (len_bytes, want) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (5, 3)] {
        assert_eq!(padding(len_bytes).len(), want, "{len_bytes}");
        assert_eq!(padded_len(len_bytes), len_bytes + want, "{len_bytes}");
    }
}

proptest! {
    #[test]
    fn opaque_round_trips(body: Vec<u8>) {
        let value = Opaque::<'_, 100>(&body);
        let bytes = encode(&value);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(decode(&bytes), if body.len() <= 100 {
            Ok(value)
        } else {
            Err(TooLong { len_bytes: body.len() as u32, len_bytes_max: 100 })
        });
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>) {
        let _ = decode::<List<Opaque<'_, 8>>>(&input);
        let _ = decode::<Array<Option<u64>, 8>>(&input);
        let _ = decode::<Result<[u8; 5], Fault>>(&input);
    }
}
