//! Documents of S3 requests: nothing that is not read can be put into one that is taken.

use cairn_codec_s3::document::check;

/// Tries one input.
pub fn run(input: &[u8]) {
    if check(input).is_err() {
        return;
    }
    let has = |wanted: &[u8]| input.windows(wanted.len()).any(|part| part == wanted);
    // The end of the root. In comments and attributes anything may be.
    let Some(at) = input.windows(2).rposition(|part| part == b"</") else {
        return;
    };
    if has(b"<!--") || input[at..].contains(&b'"') || input[at..].contains(&b'\'') {
        return;
    }
    for more in [
        &b"<Unread/>"[..],
        b"unread",
        b"<![CDATA[unread]]>",
        b"<?unread?>",
    ] {
        let changed = [&input[..at], more, &input[at..]].concat();
        assert!(check(&changed).is_err(), "{}", changed.escape_ascii());
    }
    let twice = [input, b"<Tagging/>"].concat();
    assert!(check(&twice).is_err(), "two documents");
}
