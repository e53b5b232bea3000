//! What nodes ask one another about targets, and what they answer.
//!
//! The input is read as frames, and as the JSON of one.

use cairn_codec_iscsi::{
    Ask, Elsewhere, FRAME_LEN_BYTES_MAX, Frame, Keys, LocateAnswer, decode_frame, encode_frame,
    frame_len_bytes,
};

/// Tries one input.
pub fn run(input: &[u8]) {
    every(input);
    if let Some((head, rest)) = input.split_first_chunk()
        && let Ok(len_bytes) = frame_len_bytes(*head)
    {
        assert!(len_bytes <= FRAME_LEN_BYTES_MAX);
        every(rest.get(..len_bytes).unwrap_or(rest));
    }
}

fn every(text: &[u8]) {
    again::<Ask>(text);
    again::<LocateAnswer>(text);
    again::<bool>(text);
    if let Some(elsewhere) = again::<Elsewhere>(text) {
        // Initiators are sent these names: each is one value of one key.
        let mut keys = Keys::default();
        for name in &elsewhere.targets {
            keys.push("TargetName", name.as_str());
        }
        let told = keys.encode();
        if let Ok(read) = Keys::parse(&told) {
            let names: Vec<&str> = read.iter().map(|(_, name)| name).collect();
            assert_eq!(names, elsewhere.targets);
            assert!(read.iter().all(|(key, _)| key == "TargetName"));
        }
    }
}

/// What is taken is written as what is taken again.
fn again<T: Frame + PartialEq + std::fmt::Debug>(text: &[u8]) -> Option<T> {
    let value: T = decode_frame(text).ok()?;
    // JSON may be longer than it was: a frame that was short enough may not be any more.
    let Ok(frame) = encode_frame(&value) else {
        return Some(value);
    };
    let (head, text) = frame.split_first_chunk().expect("a frame has a length");
    assert_eq!(frame_len_bytes(*head), Ok(text.len()));
    assert_eq!(decode_frame::<T>(text).as_ref(), Ok(&value));
    Some(value)
}
