//! What initiators and targets send: headers, text, secrets' answers.

use cairn_codec_iscsi::{
    HEADER_LEN_BYTES, Header, KEYS_COUNT_MAX, Keys, Negotiated, Offer, binary_of_text,
    is_iscsi_name, text_of_binary,
};

/// Tries one input.
pub fn run(input: &[u8]) {
    if let Some(bytes) = input.first_chunk::<HEADER_LEN_BYTES>() {
        let header = Header(*bytes);
        assert!(header.data_len_bytes() < 1 << 24);
        assert!(header.additional_len_bytes() <= 1020);
        if let Ok(request) = header.request() {
            let again = Header(request.header(header.data_len_bytes(), false, 0));
            assert_eq!(again.request(), Ok(request));
        }
        if let Ok((reply, numbers)) = header.reply() {
            let again = Header(reply.header(0, numbers.status, 0, 0));
            assert_eq!(again.reply().map(|(reply, _)| reply), Ok(reply));
        }
    }
    let text = String::from_utf8_lossy(input);
    let _ = is_iscsi_name(&text);
    if let Some(bytes) = binary_of_text(&text, 64) {
        assert!(bytes.len() <= 64);
        assert_eq!(binary_of_text(&text_of_binary(&bytes), 64), Some(bytes));
    }
    let Ok(keys) = Keys::parse(input) else { return };
    assert!(keys.iter().count() <= KEYS_COUNT_MAX);
    assert_eq!(Keys::parse(&keys.encode()).as_ref(), Ok(&keys));
    let mut negotiated = Negotiated::default();
    for (key, value) in keys.iter() {
        if let Offer::Answer(answer) = negotiated.take(key, value, false) {
            assert!(!answer.is_empty());
        }
    }
    negotiated.settle();
    assert!(negotiated.first_burst_len_bytes <= negotiated.burst_len_bytes);
    assert!(negotiated.send_segment_len_bytes >= 512);
}
