//! The state of metadata at rest: the descriptor of a shipped RocksDB copy, that of one in shards, and the file of a
//! state in memory. The first byte says which; checksums and what comes before are made right.

use cairn_base::crc32c;
use cairn_formats::metadata::descriptor::{Descriptor, RemoteCopy};
use cairn_formats::metadata::state_file;
use cairn_formats::metadata::{AppliedRecord, Key};

/// Magic and version of these files (docs/reference/formats/metadata.md).
const DESCRIPTOR_HEAD: &[u8] = b"CAIRNCKP\0\0\0\x01";
const REMOTE_HEAD: &[u8] = b"CAIRNCKR\0\0\0\x01";
const STATE_FILE_HEAD: &[u8] = b"CAIRNMEM\0\0\0\x01";

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 | 2 => {
            check_descriptor(rest);
            check_descriptor(&sealed(DESCRIPTOR_HEAD, rest));
        }
        1 => {
            check_state_file(rest);
            check_state_file(&sealed(STATE_FILE_HEAD, rest));
        }
        _ => {
            check_remote(rest);
            check_remote(&sealed(REMOTE_HEAD, rest));
        }
    }
}

fn sealed(head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut file = [head, body].concat();
    let crc = crc32c(&file);
    file.extend_from_slice(&crc.to_be_bytes());
    file
}

fn check_descriptor(bytes: &[u8]) {
    let Ok(descriptor) = Descriptor::decode(bytes) else {
        return;
    };
    // One value has one encoding.
    assert_eq!(descriptor.encode(), bytes);
    for file in &descriptor.files {
        // They become paths in a folder of the copy.
        assert!(!file.name.is_empty() && !file.name.starts_with('.'));
        assert!(!file.name.contains(['/', '\\', '\0']));
    }
}

fn check_remote(bytes: &[u8]) {
    let Ok(copy) = RemoteCopy::decode(bytes) else {
        return;
    };
    assert_eq!(copy.encode(), bytes);
    assert_eq!(copy.files().count(), copy.descriptor.files.len());
}

fn check_state_file(bytes: &[u8]) {
    let Ok(read) = state_file::decode(bytes) else {
        return;
    };
    assert_eq!(state_file::encode(&read.map), bytes);
    let key = Key::applied();
    let applied = read.map.get(key.as_bytes()).map(|value| {
        AppliedRecord::decode(value).expect("a file that is read has a readable position")
    });
    assert_eq!(read.applied, applied.unwrap_or_default());
}
