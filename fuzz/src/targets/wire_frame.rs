//! Frames between nodes: a header with a message and a payload.
//!
//! The input is read as it is, and as the kind of a message with its body; then the header is made to fit, or nothing
//! would ever get past the checksums.

use cairn_base::crc32c;
use cairn_wire::{BODY_LEN_BYTES_MAX, HEADER_LEN_BYTES, Header, PAYLOAD_LEN_BYTES_MAX, encode};

/// Places of fields in a header (docs/reference/wire.md).
const KIND_OFFSET: usize = 6;
const HEADER_CRC_OFFSET: usize = 32;

/// Tries one input.
pub fn run(input: &[u8]) {
    if let Some((head, rest)) = input.split_first_chunk() {
        frame(head, rest);
    }
    if let Some((head, body)) = input.split_first_chunk::<13>() {
        // The kind, the id and the length of the payload.
        let mut header = Vec::from(*b"CRNW\x01\0");
        header.extend_from_slice(&[head[0], 0]);
        assert_eq!(header.len(), KIND_OFFSET + 2);
        header.extend_from_slice(&head[1..9]);
        header.extend_from_slice(&(body.len() as u32).to_le_bytes());
        header.extend_from_slice(&head[9..13]);
        header.extend_from_slice(&crc32c(body).to_le_bytes());
        header.extend_from_slice(&crc32c(b"").to_le_bytes());
        assert_eq!(header.len(), HEADER_CRC_OFFSET);
        let crc = crc32c(&header);
        header.extend_from_slice(&crc.to_le_bytes());
        if let Some(header) = header.first_chunk() {
            frame(header, body);
        }
    }
}

fn frame(head: &[u8; HEADER_LEN_BYTES], rest: &[u8]) {
    let Ok(header) = Header::decode(head) else {
        return;
    };
    let body_len = header.body_len_bytes as usize;
    let payload_len = header.payload_len_bytes as usize;
    assert!(body_len <= BODY_LEN_BYTES_MAX && payload_len <= PAYLOAD_LEN_BYTES_MAX);
    let Some((body, payload)) = rest.split_at_checked(body_len) else {
        return;
    };
    let Ok(message) = header.message(body) else {
        return;
    };
    // A short payload tells as much as a long one.
    let Some(payload) = payload.get(..payload_len) else {
        return;
    };
    let is_whole = header.check_payload(payload).is_ok();
    let parts = [bytes::Bytes::copy_from_slice(payload)];
    let again = encode(header.id, &message, &parts).expect("what was decoded can be sent");
    let (again_head, again_body) = again.split_first_chunk().expect("a header");
    assert_eq!(again_body, body, "{message:?}");
    let again = Header::decode(again_head).expect("our own");
    assert_eq!(again == header, is_whole);
    assert_eq!(again.message(again_body), Ok(message));
    assert_eq!(again.check_payload(payload), Ok(()));
}
