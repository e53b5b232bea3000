//! A stream that arrives in pieces gives the records that it gives at once, and those are what a
//! plain reading of the RFC gives.

use bytes::BytesMut;
use cairn_codec_rpc::{FragmentHeader, RecordAssembler, Writer};

const LEN_BYTES_MAX: u32 = 4096;

/// Records of the stream, and whether it was then refused.
fn assemble(stream: &[u8], piece_len: usize) -> (Vec<Vec<u8>>, bool) {
    let mut assembler = RecordAssembler::new(LEN_BYTES_MAX);
    let mut input = BytesMut::new();
    let mut records = Vec::new();
    for piece in stream.chunks(piece_len) {
        input.extend_from_slice(piece);
        loop {
            let peeked = assembler
                .peek(&input)
                .map(|it| it.map(|it| it.bytes.to_vec()));
            let missing = assembler.missing_len_bytes(&input);
            match assembler.next_record(&mut input) {
                Ok(Some(record)) => {
                    if let Ok(Some(bytes)) = peeked {
                        assert!(record.starts_with(&bytes));
                    }
                    records.push(record.to_vec());
                }
                Ok(None) => break,
                Err(_) => return (records, true),
            }
            assert_eq!(missing, 0);
        }
    }
    (records, false)
}

/// The same from the whole stream, with no thought of speed.
fn model(mut stream: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut records = Vec::new();
    let mut record = Vec::new();
    let mut fragment_count = 0;
    while let Some((header, rest)) = FragmentHeader::split(stream) {
        let len = header.len_bytes as usize;
        fragment_count += 1;
        if record.len() + len > LEN_BYTES_MAX as usize
            || fragment_count > cairn_codec_rpc::record::FRAGMENT_COUNT_MAX
        {
            return (records, true);
        }
        let Some((fragment, rest)) = rest.split_at_checked(len) else {
            break;
        };
        record.extend_from_slice(fragment);
        stream = rest;
        if header.last {
            records.push(std::mem::take(&mut record));
            fragment_count = 0;
        }
    }
    (records, false)
}

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((piece_len, stream)) = input.split_first() else {
        return;
    };
    let want = model(stream);
    assert_eq!(assemble(stream, usize::from(*piece_len) + 1), want);
    assert_eq!(assemble(stream, stream.len().max(1)), want);

    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    for record in &want.0 {
        let start = to.begin_record();
        to.raw(record);
        to.finish_record(start, 0);
    }
    assert_eq!(assemble(&bytes, bytes.len().max(1)), (want.0, false));
}
