//! The files without which a disk, or the pool, could not be used: identity and pool file of each disk.
//!
//! Owns: that a scrub reads both copies of each, and has damaged ones written again.
//! Must not know: how these files are written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_base::disk::Disk;
use cairn_formats::copies::{COPY_ALIGN_BYTES, Picked};

use crate::node::Inner;
use cairn_pool::truth;

/// What a damaged copy counts for, in bytes: one block of it is wrong, as far as anybody can tell.
const COPY_BYTES: u64 = COPY_ALIGN_BYTES as u64;

#[derive(Default)]
struct Found {
    wrong: u64,
    repaired: u64,
    errors: u64,
}

/// Checks and repairs the small files of all disks that can be used, for the current run.
pub(super) async fn check(inner: &Inner) {
    let run = inner.scrub.run.load(Ordering::Acquire);
    let mut found = Found::default();
    let mut damaged = Vec::new();
    for disk in inner.pool.disks() {
        if disk.health().failed {
            continue;
        }
        match disk.check_identity().await {
            Ok(false) => {}
            Ok(true) => {
                found.wrong += 1;
                found.repaired += 1;
            }
            Err(error) => {
                found.errors += 1;
                tracing::error!(%error, "the identity of a disk is not as it should be; replace the disk before the server stops");
            }
        }
        match pool_file_problem(disk.disk()).await {
            None => {}
            Some(why) => {
                found.wrong += 1;
                disk.note_checksum_error();
                tracing::warn!(
                    disk = disk.label(),
                    why,
                    "the pool file of this disk is damaged"
                );
                damaged.push(disk);
            }
        }
    }
    if !damaged.is_empty() {
        inner.pool.renew().await;
    }
    for disk in damaged {
        match pool_file_problem(disk.disk()).await {
            None => found.repaired += 1,
            Some(why) => {
                found.errors += 1;
                tracing::error!(
                    disk = disk.label(),
                    why,
                    "the pool file of this disk is still damaged; replace the disk"
                );
            }
        }
    }
    inner.scrub.note(run, |state| {
        state.wrong_bytes += found.wrong * COPY_BYTES;
        state.repaired_bytes += found.repaired * COPY_BYTES;
        state.errors += found.errors;
    });
}

/// What is wrong with the pool file of a disk.
async fn pool_file_problem(disk: &Arc<dyn Disk>) -> Option<String> {
    match truth::load(disk).await {
        Ok(Some(Ok(Picked { bad, .. }))) => bad.map(|bad| bad.to_string()),
        Ok(Some(Err(error))) => Some(error.to_string()),
        Ok(None) => Some("there is none".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cairn_base::real;
    use cairn_formats::pool_file::decode_pool;
    use cairn_formats::shard::identity::{IDENTITY_NAME, decode_identity};
    use tokio::runtime::Handle;

    use super::*;
    use crate::node::tests::{disk_paths, start};

    /// Where the version's only digit is in a copy of a pool file.
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

    /// How many copies are damaged, of identities and of pool files.
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
        // As a started server does it.
        inner.pool.renew().await;
        assert_eq!(damaged(root), (0, 0));

        flip_everywhere(root);
        check(&inner).await;
        assert_eq!(damaged(root), (0, 0), "a scrub repairs both");
        {
            let state = inner.scrub.state.lock();
            let counted = (state.wrong_bytes, state.repaired_bytes, state.errors);
            assert_eq!(counted, (6 * COPY_BYTES, 6 * COPY_BYTES, 0));
        }
        // Nothing is left to find.
        check(&inner).await;
        assert_eq!(inner.scrub.state.lock().wrong_bytes, 6 * COPY_BYTES);
        inner.close_volumes().await;
    }
}
