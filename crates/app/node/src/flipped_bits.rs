//! Flipped bits in the files that a disk, or the pool, cannot be used without, on real folders.

use std::path::Path;

use cairn_base::real;
use cairn_formats::copies::COPY_ALIGN_BYTES;
use cairn_formats::pool_file::decode_pool;
use cairn_formats::shard::identity::{IDENTITY_NAME, decode_identity};
use tokio::runtime::Handle;

use cairn_pool::truth;

use crate::node::tests::{disk_paths, start};

/// The bytes that a corrupt copy counts for.
const COPY_BYTES: u64 = COPY_ALIGN_BYTES as u64;

/// Offset of the version's only digit in a copy of a pool file.
const POOL_VERSION_OFFSET: usize = "cairn-pool ".len();
const IDENTITY_VERSION_OFFSET: usize = 8;

fn flip(path: &Path, copy: usize, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let half = bytes.len() / 2;
    bytes[copy * half + offset] ^= 2;
    std::fs::write(path, bytes).unwrap();
}

/// Flips a bit in a copy of each file of each disk, some of them in the version.
fn flip_everywhere(root: &Path) {
    let places = [(0, None), (1, None), (0, Some(40))];
    for (disk, (copy, offset)) in disk_paths(root).iter().zip(places) {
        let pool = disk.join(truth::POOL_NAME);
        flip(&pool, copy, offset.unwrap_or(POOL_VERSION_OFFSET));
        let identity = disk.join(IDENTITY_NAME);
        flip(&identity, copy, offset.unwrap_or(IDENTITY_VERSION_OFFSET));
    }
}

/// The number of corrupt copies, of identities and of pool files.
fn damaged(root: &Path) -> (usize, usize) {
    let count = |name: &str, is_bad: fn(&[u8]) -> bool| {
        let disks = disk_paths(root).into_iter();
        let files = disks.map(|disk| std::fs::read(disk.join(name)).unwrap());
        files.filter(|file| is_bad(file)).count()
    };
    let identities = count(IDENTITY_NAME, |file| {
        decode_identity(file).unwrap().bad.is_some()
    });
    let pool_files = count(truth::POOL_NAME, |file| {
        decode_pool(file).unwrap().bad.is_some()
    });
    (identities, pool_files)
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bits_in_identity_and_pool_files_cost_no_disk_and_are_repaired() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let inner = start(root, real::env(Handle::current())).await;
    inner.close_volumes().await;
    drop(inner);
    flip_everywhere(root);
    assert_eq!(damaged(root), (3, 3));

    let inner = start(root, real::env(Handle::current())).await;
    assert!(inner.pool.is_whole, "all disks are used");
    assert_eq!(inner.pool.disks().len(), 3);
    assert_eq!(inner.pool.serving_all().len(), 1);
    assert_eq!(damaged(root).0, 0, "a start repairs identities");
    // As a started server does.
    inner.pool.renew().await;
    assert_eq!(damaged(root), (0, 0));

    flip_everywhere(root);
    inner.pool.check_small_files().await;
    assert_eq!(damaged(root), (0, 0), "a scrub repairs both");
    let found = inner.pool.scrub_progress();
    let counted = (found.wrong_bytes, found.repaired_bytes, found.errors);
    assert_eq!(counted, (6 * COPY_BYTES, 6 * COPY_BYTES, 0));
    // Nothing is left to find.
    inner.pool.check_small_files().await;
    assert_eq!(inner.pool.scrub_progress().wrong_bytes, 6 * COPY_BYTES);
    inner.close_volumes().await;
}
