//! The pool file: as it is, and as JSON under a head that fits it.

use cairn_base::crc32c;
use cairn_formats::pool_file::{
    POOL_FILE_LEN_BYTES_MAX, VOLUMES_READ_MAX, decode_pool, encode_pool,
};

/// Tries one input.
pub fn run(input: &[u8]) {
    check(input);
    let mut file = format!("cairn-pool 3 {:08x}\n", crc32c(input)).into_bytes();
    file.extend_from_slice(input);
    check(&file);
}

fn check(file: &[u8]) {
    let Ok(state) = decode_pool(file) else {
        return;
    };
    assert!(!state.disks.is_empty());
    assert!(state.volumes.len() <= VOLUMES_READ_MAX);
    for volume in &state.volumes {
        assert!(volume.id < state.volume_next);
        let found = state.volume(&volume.name).expect("it is in the list");
        assert_eq!(found, volume);
    }
    let again = encode_pool(&state);
    assert!(again.len() as u64 <= POOL_FILE_LEN_BYTES_MAX);
    assert_eq!(decode_pool(&again), Ok(state));
}
