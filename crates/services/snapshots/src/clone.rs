//! Files and directories that begin as what others are now.
//!
//! Owns: the snapshot that a clone is made from, which is there for as long as that takes, and goes also if the server ended
//! meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_fs::{Fs, SnapshotError, SnapshotFailure};

use crate::diff::DIFFING;
use crate::restore::{RestoreFailure, Restored, restore};

/// Where other snapshots name their schedule.
const CLONING: &str = ".clone";

/// Why a clone was not made, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloneFailure {
    #[error("its snapshot: {0}")]
    Snapshot(#[from] SnapshotFailure),
    #[error(transparent)]
    Restore(#[from] RestoreFailure),
}

/// Makes at path `to` what is at path `from` at one instant. They share their bytes.
///
/// A file takes the place of one that is there, in one step; a directory is made entry by entry where nothing is.
pub async fn clone(fs: &Fs, from: &str, to: &str) -> Result<Restored, CloneFailure> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let opening = opening(fs);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("clone.{opening}.{number}");
    let label = format!("{CLONING}.{opening}");
    fs.take_snapshot(name.as_bytes(), label.as_bytes()).await?;
    let made = restore(fs, &name, from, to).await;
    let deleted = fs.delete_snapshot(name.as_bytes()).await;
    // The caller gets the volume's error; that the snapshot stays for a while is no reason to make the clone again.
    if let Err(error) = deleted {
        tracing::warn!(volume = fs.name(), name, %error, "the snapshot of a clone stays for now");
    }
    Ok(made?)
}

/// Deletes the snapshots of clones that were being made, and of changes that were being listed, when the volume was closed;
/// their names.
pub(crate) async fn remove_leftovers(fs: &Fs) -> Result<Vec<String>, SnapshotFailure> {
    let opening = opening(fs);
    let own = [CLONING, DIFFING].map(|label| format!("{label}.{opening}"));
    let mut deleted = Vec::new();
    for snapshot in fs.snapshots() {
        let is_of = |label: &&str| snapshot.schedule.starts_with(label.as_bytes());
        let is_leftover = [CLONING, DIFFING].iter().any(is_of)
            && !own.iter().any(|own| snapshot.schedule == own.as_bytes());
        if !is_leftover {
            continue;
        }
        match fs.delete_snapshot(&snapshot.name).await {
            Ok(()) => deleted.push(String::from_utf8_lossy(&snapshot.name).into_owned()),
            Err(SnapshotFailure::Refused(SnapshotError::NotFound | SnapshotError::Locked)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

/// Another each time the volume is opened.
pub(crate) fn opening(fs: &Fs) -> String {
    let verifier = fs.write_verifier();
    verifier.iter().map(|byte| format!("{byte:02x}")).collect()
}
