//! A file of the history: as it is, and its parts under checksums that fit them. The first byte says how many series a
//! frame is read with.

use cairn_base::crc32c;
use cairn_history::format::{
    FRAME_ROWS_MAX, Frame, decode_frame, decode_header, encode_frame, encode_header, is_table,
};

/// Magic, version, length of the table.
const HEAD_LEN_BYTES: usize = 14;

/// Tries one input.
pub fn run(input: &[u8]) {
    file(input);
    let Some((series_count, rest)) = input.split_first() else {
        return;
    };
    let mut sealed = (rest.len() as u32).to_le_bytes().to_vec();
    sealed.extend(crc32c(rest).to_le_bytes());
    sealed.extend(rest);
    if let Ok((frame, after)) = decode_frame(&sealed) {
        assert!(after.is_empty());
        check(&frame, usize::from(*series_count));
    }
    let mut head = encode_header(&[]);
    head.truncate(HEAD_LEN_BYTES - 4);
    head.extend((rest.len() as u32).to_le_bytes());
    head.extend(rest);
    head.extend(crc32c(&head).to_le_bytes());
    file(&head);
}

fn file(input: &[u8]) {
    let Ok((table, mut rest)) = decode_header(input) else {
        return;
    };
    assert!(is_table(&table));
    let again = encode_header(&table);
    assert_eq!(again, input[..input.len() - rest.len()]);
    while let Ok((frame, after)) = decode_frame(rest) {
        check(&frame, table.len());
        rest = after;
    }
}

fn check(frame: &Frame<'_>, series_count: usize) {
    let Ok(rows) = frame.rows(series_count) else {
        return;
    };
    assert!(rows.len() == frame.rows_count && rows.len() <= FRAME_ROWS_MAX);
    let times = frame.first_seconds..=frame.last_seconds;
    assert!(rows.iter().all(|row| times.contains(&row.seconds)));
    let again = encode_frame(&rows, series_count);
    let (again, _) = decode_frame(&again).expect("what was read can be read again");
    assert_eq!(again.rows(series_count), Ok(rows));
}
