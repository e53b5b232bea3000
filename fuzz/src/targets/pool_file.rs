//! The pool file: as it is, and as JSON under a head that fits it.

use cairn_formats::pool_file::{
    POOL_FILE_LEN_BYTES_MAX, PoolState, VOLUMES_READ_MAX, decode_pool, decode_pool_copy,
    encode_pool,
};

use super::{copy_of, file_of};

/// Tries one input.
pub fn run(input: &[u8]) {
    if let Ok(picked) = decode_pool(input) {
        check(picked.value);
    }
    let copy = copy_of("cairn-pool 1 ", input);
    let read = decode_pool_copy(&copy);
    let picked = decode_pool(&file_of(&copy));
    assert_eq!(picked.map(|picked| picked.value), read);
    if let Ok(state) = read {
        check(state);
    }
}

fn check(state: PoolState) {
    assert!(!state.disks.is_empty());
    assert!(state.volumes.len() <= VOLUMES_READ_MAX);
    for volume in &state.volumes {
        assert!(volume.id < state.volume_next);
        let found = state.volume(&volume.name).expect("it is in the list");
        assert_eq!(found, volume);
    }
    let again = encode_pool(&state);
    assert!(again.len() as u64 <= POOL_FILE_LEN_BYTES_MAX);
    let picked = decode_pool(&again).expect("what was read can be read again");
    assert_eq!((picked.value, picked.bad), (state, None));
}
