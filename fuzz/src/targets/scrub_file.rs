//! The scrub file of a disk: as it is, and as JSON under a head that fits it.

use cairn_formats::scrub_file::{
    DAMAGES_MAX, REWRITES_MAX, ScrubState, decode_scrub, decode_scrub_copy, encode_scrub,
};

use super::{copy_of, file_of};

/// Longest true count, and what is added to one is far less: nothing may overflow.
const COUNT_MAX: u64 = u64::MAX / 2;

/// Tries one input.
pub fn run(input: &[u8]) {
    if let Ok(picked) = decode_scrub(input) {
        check(picked.value);
    }
    let copy = copy_of("cairn-scrub 1 ", input);
    let read = decode_scrub_copy(&copy);
    let picked = decode_scrub(&file_of(&copy));
    assert_eq!(picked.map(|picked| picked.value), read);
    if let Ok(state) = read {
        check(state);
    }
}

fn check(state: ScrubState) {
    assert!(state.damages.len() <= DAMAGES_MAX);
    assert!(state.rewrites.len() <= REWRITES_MAX);
    for damage in &state.damages {
        assert!(damage.start <= damage.end);
    }
    for count in [state.version, state.done_bytes, state.shards, state.errors] {
        assert!(count < COUNT_MAX);
    }
    let picked = decode_scrub(&encode_scrub(&state)).expect("what was read can be read again");
    assert_eq!((picked.value, picked.bad), (state, None));
}
