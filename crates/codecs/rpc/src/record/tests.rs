use proptest::prelude::*;

use super::*;
use DecodeError::{RecordTooLong, TooManyFragments};

const LEN_BYTES_MAX: u32 = 16;

fn too_long(len_bytes: u64) -> DecodeError {
    RecordTooLong {
        len_bytes,
        len_bytes_max: LEN_BYTES_MAX,
    }
}

/// All records of a stream that arrives in pieces of `piece_len` bytes.
fn records(stream: &[u8], piece_len: usize) -> Result<Vec<Vec<u8>>, DecodeError> {
    let mut assembler = RecordAssembler::new(LEN_BYTES_MAX);
    let mut input = BytesMut::new();
    let mut records = Vec::new();
    for piece in stream.chunks(piece_len) {
        input.extend_from_slice(piece);
        while let Some(record) = assembler.next_record(&mut input)? {
            records.push(record.to_vec());
        }
        assert!(
            assembler.missing_len_bytes(&input) > 0,
            "a whole record was left"
        );
    }
    Ok(records)
}

#[test]
fn stream_is_cut_into_records() {
    type Want<'a> = Result<&'a [&'a [u8]], DecodeError>;
    let cases: &[(&str, &[u8], Want)] = &[
        ("nothing", b"", Ok(&[])),
        ("header cut off", b"\x80\0\0", Ok(&[])),
        ("one", b"\x80\0\0\x03abc", Ok(&[b"abc"])),
        ("body cut off", b"\x80\0\0\x03ab", Ok(&[])),
        ("two", b"\x80\0\0\x01a\x80\0\0\x02bc", Ok(&[b"a", b"bc"])),
        ("empty record", b"\x80\0\0\0\x80\0\0\x01a", Ok(&[b"", b"a"])),
        ("two fragments", b"\0\0\0\x01a\x80\0\0\x02bc", Ok(&[b"abc"])),
        (
            "empty fragments",
            b"\0\0\0\0\0\0\0\x01a\x80\0\0\0",
            Ok(&[b"a"]),
        ),
        ("last fragment missing", b"\0\0\0\x01a", Ok(&[])),
        (
            "fragments, then one",
            b"\0\0\0\x01a\x80\0\0\x01b\x80\0\0\x01c",
            Ok(&[b"ab", b"c"]),
        ),
        (
            "at the limit",
            b"\x80\0\0\x100123456789abcdef",
            Ok(&[b"0123456789abcdef"]),
        ),
        ("past the limit", b"\x80\0\0\x11", Err(too_long(17))),
        ("far past the limit", &[0xff; 4], Err(too_long(0x7fff_ffff))),
        (
            "sum past the limit",
            b"\0\0\0\x020\x30\x80\0\0\x0f",
            Err(too_long(17)),
        ),
        (
            "not RPC at all",
            b"GET / HTTP/1.1\r\n",
            Err(too_long(0x47455420)),
        ),
    ];
    for (name, stream, want) in cases {
        for piece_len in [1, 2, 3, 5, 100] {
            let want = want.map(|it| it.iter().map(|it| it.to_vec()).collect());
            assert_eq!(
                records(stream, piece_len),
                want,
                "{name}, pieces of {piece_len}"
            );
        }
    }
}

#[test]
fn endless_empty_fragments_are_refused() {
    let stream = [0; 4].repeat(FRAGMENT_COUNT_MAX as usize + 1);
    let count_max = FRAGMENT_COUNT_MAX;
    assert_eq!(records(&stream, 1000), Err(TooManyFragments { count_max }));
}

#[test]
fn record_can_be_looked_at_before_it_is_whole() {
    let partial = |len_bytes, bytes| Ok(Some(PartialRecord { len_bytes, bytes }));
    type Want<'a> = Result<Option<PartialRecord<'a>>, DecodeError>;
    let cases: &[(&str, &[u8], Want)] = &[
        ("no header", b"\x80\0\0", Ok(None)),
        ("header", b"\x80\0\0\x03", partial(3, b"")),
        ("some", b"\x80\0\0\x03ab", partial(3, b"ab")),
        ("whole", b"\x80\0\0\x03abc", partial(3, b"abc")),
        (
            "the next is not shown",
            b"\x80\0\0\x03abc\x80\0",
            partial(3, b"abc"),
        ),
        ("several fragments", b"\0\0\0\x03abc", Ok(None)),
        ("too long", b"\x80\0\0\x11", Err(too_long(17))),
    ];
    for (name, input, want) in cases {
        let assembler = RecordAssembler::new(LEN_BYTES_MAX);
        assert_eq!(assembler.peek(input), *want, "{name}");
    }
    let mut assembler = RecordAssembler::new(LEN_BYTES_MAX);
    let mut input = BytesMut::from(&b"\0\0\0\x01a\x80\0\0\x03b"[..]);
    assert_eq!(assembler.next_record(&mut input), Ok(None));
    assert_eq!(
        assembler.peek(&input),
        Ok(None),
        "the last of several fragments"
    );
}

#[test]
fn missing_bytes_are_counted() {
    let assembler = RecordAssembler::new(LEN_BYTES_MAX);
    let cases: &[(&[u8], usize)] = &[
        (b"", 4),
        (b"\x80\0\0", 1),
        (b"\x80\0\0\x03", 3),
        (b"\x80\0\0\x03ab", 1),
        (b"\x80\0\0\x03abc", 0),
        (b"\x80\0\0\x03abcd", 0),
    ];
    for (input, want) in cases {
        assert_eq!(assembler.missing_len_bytes(input), *want, "{input:?}");
    }
}

#[test]
fn record_is_written_around_its_body() {
    let mut bytes = b"before".to_vec();
    let mut to = Writer::new(&mut bytes);
    let start = to.begin_record();
    to.u32(7);
    to.finish_record(start, 0);
    let start = to.begin_record();
    to.u32(8);
    to.finish_record(start, 1000);
    assert_eq!(
        bytes,
        b"before\x80\0\0\x04\0\0\0\x07\x80\0\x03\xec\0\0\0\x08"
    );
}

proptest! {
    /// However records are cut into fragments and pieces, they come out as they went in.
    #[test]
    fn records_survive_any_cutting(
        sent in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 1..4), 0..6),
        piece_len in 1usize..20,
    ) {
        let mut stream = Vec::new();
        for fragments in &sent {
            for (index, fragment) in fragments.iter().enumerate() {
                let header = FragmentHeader {
                    last: index + 1 == fragments.len(),
                    len_bytes: fragment.len() as u32,
                };
                prop_assert_eq!(FragmentHeader::from_bytes(header.to_bytes()), header);
                stream.extend_from_slice(&header.to_bytes());
                stream.extend_from_slice(fragment);
            }
        }
        let want: Vec<Vec<u8>> = sent.iter().map(|fragments| fragments.concat()).collect();
        prop_assert_eq!(records(&stream, piece_len), Ok(want));
    }

    #[test]
    fn any_bytes_are_cut_or_refused(stream: Vec<u8>, piece_len in 1usize..20) {
        let _ = records(&stream, piece_len);
    }
}
