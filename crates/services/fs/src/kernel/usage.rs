//! What an inode counts for: its owner, its usage, and the sums of the volume.
//!
//! Owns: which part of a change of space counts for the main volume. Must not know: which quotas there are.

use cairn_base::Ino;
use cairn_meta::{InodeRecord, Owner, SpaceDelta, UsageDelta};

/// The owner that is charged for an inode.
pub(crate) fn owner_of(record: &InodeRecord) -> Owner {
    Owner {
        tree: record.tree,
        uid: record.uid,
        gid: record.gid,
    }
}

/// The usage that a stored inode is charged with.
pub(crate) fn usage_of(record: &InodeRecord) -> UsageDelta {
    UsageDelta {
        inodes: 1,
        file_bytes: record.used_bytes as i64,
        stored_bytes: record.stored_bytes as i64,
    }
}

/// Inodes and bytes of files count in the main volume alone: each branch has its own sums.
pub(crate) fn of_volume(ino: Ino, delta: SpaceDelta) -> SpaceDelta {
    match ino.branch().is_main() {
        true => delta,
        false => SpaceDelta {
            inodes: 0,
            file_bytes: 0,
            ..delta
        },
    }
}
