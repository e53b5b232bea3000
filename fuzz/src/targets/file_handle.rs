//! What names something by itself: NFS file handles, and the names of files on a disk.
//!
//! The first byte says which; the signature of a handle is made right, too.

use cairn_base::VolumeId;
use cairn_formats::shard::name;

use cairn_formats::file_handle::{self, HANDLE_LEN_BYTES, HandleSigner};

const KEY: &[u8; 16] = b"0123456789abcdef";
const SIGNED_LEN_BYTES: usize = HANDLE_LEN_BYTES - 8;

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    if kind % 2 == 0 {
        // Nobody guesses a signature; and what we signed is what we wrote.
        assert!(HandleSigner::new(KEY).open(rest).is_err());
        if let Some(signed) = rest.get(..SIGNED_LEN_BYTES) {
            signed_handle(signed);
        }
    } else if let Ok(text) = std::str::from_utf8(rest) {
        file_name(text);
    }
}

fn signed_handle(signed: &[u8]) {
    let key = HandleSigner::new(KEY);
    let signature = key.digest(signed).to_le_bytes();
    let bytes = [signed, &signature].concat();
    let Ok(target) = key.open(&bytes) else {
        return;
    };
    let again = key.seal(target);
    assert_eq!(key.open(again.as_bytes()), Ok(target));
    if matches!(target, file_handle::Target::Inode { .. }) {
        assert_eq!(again.as_bytes(), bytes);
    }
}

fn file_name(text: &str) {
    if let Some(shard) = name::parse_shard(VolumeId(7), text) {
        assert!(name::shard_path(shard).ends_with(text));
    }
    if let Some(volume) = name::parse_volume(text) {
        assert!(name::volume_path(volume).ends_with(text));
    }
}
