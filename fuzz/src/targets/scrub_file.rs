//! The scrub file of a disk: as it is, and as JSON under a head that fits it.

use cairn_base::crc32c;
use cairn_formats::scrub_file::{DAMAGES_MAX, REWRITES_MAX, decode, encode};

/// Longest true count, and what is added to one is far less: nothing may overflow.
const COUNT_MAX: u64 = u64::MAX / 2;

/// Tries one input.
pub fn run(input: &[u8]) {
    check(input);
    let mut file = format!("cairn-scrub 2 {:08x}\n", crc32c(input)).into_bytes();
    file.extend_from_slice(input);
    check(&file);
}

fn check(file: &[u8]) {
    let Ok(state) = decode(file) else {
        return;
    };
    assert!(state.damages.len() <= DAMAGES_MAX);
    assert!(state.rewrites.len() <= REWRITES_MAX);
    for damage in &state.damages {
        assert!(damage.start <= damage.end);
    }
    for count in [state.version, state.done_bytes, state.shards, state.errors] {
        assert!(count < COUNT_MAX);
    }
    assert_eq!(decode(&encode(&state)), Ok(state));
}
