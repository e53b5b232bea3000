//! Random walks through a volume, by the seed.

use cairn_base::Ino;
use cairn_fs::{Credentials, FileKind, Fs, FsError, ROOT};
use cairn_testkit::Rng;

/// Names of one directory that are considered.
const ENTRIES_MAX: usize = 1000;

/// The root, or the end of a walk from there.
pub(crate) async fn some_directory(fs: &Fs, rng: &mut Rng) -> Result<Ino, FsError> {
    let mut at = ROOT;
    while rng.below(4) > 0 {
        let who = Credentials::ROOT;
        let page = fs.names_after(&who, at, b"", true, ENTRIES_MAX).await?;
        let names = page.entries.into_iter();
        let dirs: Vec<Ino> = names
            .filter(|entry| entry.kind == FileKind::Directory)
            .map(|entry| entry.ino)
            .collect();
        if dirs.is_empty() {
            break;
        }
        at = dirs[rng.below(dirs.len() as u64) as usize];
    }
    Ok(at)
}
