//! Forms of browsers: the same fields and the same file, however the body is cut.
//!
//! The first byte of an input says how long the pieces are, the rest of its first line is the content type, all else the body.

use cairn_codec_s3::form::{
    AFTER_LEN_BYTES_MAX, FIELDS_LEN_BYTES_MAX, boundary, is_form, read_pieces,
};

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((len, rest)) = input.split_first() else {
        return;
    };
    let mut lines = rest.splitn(2, |byte| *byte == b'\n');
    let kind = lines.next().unwrap_or_default();
    let body = lines.next().unwrap_or_default();
    let Ok(kind) = std::str::from_utf8(kind) else {
        return;
    };
    if !is_form(kind.as_bytes()) {
        return;
    }
    let Ok(boundary) = boundary(kind) else {
        return;
    };
    let whole = read_pieces(&boundary, [body]).ok();
    let cut = read_pieces(&boundary, body.chunks(usize::from(*len) + 1)).ok();
    assert_eq!(whole, cut, "{boundary:?}");
    let Some((fields, file)) = whole else {
        return;
    };
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    let has = |text: &[u8]| text.windows(delimiter.len()).any(|it| it == delimiter);
    assert!(!has(&file), "the file goes beyond its end");
    // What was read of the body is in it as it is.
    let end = [&file[..], &delimiter].concat();
    let found = body.windows(end.len()).position(|it| it == end);
    assert!(
        found.is_some(),
        "the file is in the body, and its delimiter follows"
    );
    let lengths = fields
        .fields
        .iter()
        .map(|(name, value)| name.len() + value.len());
    assert!(lengths.sum::<usize>() <= FIELDS_LEN_BYTES_MAX);
    assert!(body.len() <= FIELDS_LEN_BYTES_MAX + end.len() + AFTER_LEN_BYTES_MAX);
    for (index, (name, _)) in fields.fields.iter().enumerate() {
        assert_eq!(name.to_ascii_lowercase(), *name);
        let is_again = fields.fields[..index]
            .iter()
            .any(|(other, _)| other == name);
        assert!(
            !is_again || name.starts_with("x-ignore-"),
            "{name} is there twice"
        );
    }
    assert!(!fields.named("${filename}").contains(['/', '\\']));
}
