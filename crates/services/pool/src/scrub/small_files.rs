//! The files without which a disk, or the pool, could not be used: identity and pool file of each disk.
//!
//! Owns: that a scrub reads both copies of each, and has damaged ones written again.
//! Must not know: how these files are written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_base::disk::Disk;
use cairn_formats::copies::{COPY_ALIGN_BYTES, Picked};

use crate::pool::Pool;
use crate::truth;

/// What a damaged copy counts for, in bytes: one block of it is wrong, as far as anybody can tell.
const COPY_BYTES: u64 = COPY_ALIGN_BYTES as u64;

#[derive(Default)]
struct ScrubCounts {
    wrong: u64,
    repaired: u64,
    errors: u64,
}

/// Checks and repairs the small files of all disks that can be used, for the current run.
pub async fn check(pool: &Pool) {
    let run = pool.scrub.run.load(Ordering::Acquire);
    let mut found = ScrubCounts::default();
    let mut damaged = Vec::new();
    for disk in pool.disks() {
        // The next scrub looks at what does not answer now.
        if disk.health().failed || disk.is_silent() {
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
        pool.renew().await;
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
    pool.scrub.note(run, |state| {
        state.wrong_bytes += found.wrong * COPY_BYTES;
        state.repaired_bytes += found.repaired * COPY_BYTES;
        state.errors += found.errors;
    });
}

/// Why the pool file of a disk is bad; `None`: it is good.
async fn pool_file_problem(disk: &Arc<dyn Disk>) -> Option<String> {
    match truth::load(disk).await {
        Ok(Some(Ok(Picked { bad, .. }))) => bad.map(|bad| bad.to_string()),
        Ok(Some(Err(error))) => Some(error.to_string()),
        Ok(None) => Some("there is none".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}
