//! Where the pool's state is kept.
//!
//! Owns: the seam ([`Truth`]), and its one implementation: a file on each disk, its name, the order of writes that
//! leaves the old file or the new one after a crash, and how many disks must have a change before it counts.
//! Must not know: what the change is.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::DiskId;
use cairn_base::disk::{Disk, DiskError, OpenMode};
use cairn_base::planted::{self, Bug};
use cairn_formats::copies::{self, Picked};
use cairn_formats::pool_file::{
    POOL_FILE_LEN_BYTES_MAX, PoolDisk, PoolState, decode_pool_copy, encode_pool,
};
use cairn_formats::text_file::{self, TextFileError};
use cairn_shard::ShardDisk;
use futures_util::future::join_all;

use crate::assemble::{Content, losses_tolerated};

pub const POOL_NAME: &str = "pool";
pub const POOL_NAME_NEW: &str = "pool.new";

/// What came of reading a file: its content, or why it has none.
pub type Loaded<T> = Result<Picked<T, TextFileError>, TextFileError>;

/// The pool file of one disk: `Ok(None)` if there is none, `Ok(Some(Err(..)))` if both its copies are damaged.
pub async fn load(disk: &Arc<dyn Disk>) -> Result<Option<Loaded<PoolState>>, DiskError> {
    let copies = read_copies(disk, POOL_NAME, POOL_FILE_LEN_BYTES_MAX).await?;
    Ok(copies.map(|copies| {
        let copies = copies?.map(|copy| copy.and_then(|bytes| decode_pool_copy(&bytes)));
        text_file::pick(copies, |state| state.version)
    }))
}

/// The two copies in a small file, each read by itself: a block that cannot be read must not cost both.
pub type Copies = Result<[Result<Bytes, TextFileError>; 2], TextFileError>;

/// Reads a small file of a disk: `Ok(None)` if there is none, an error if neither of its copies can be read.
pub async fn read_copies(
    disk: &Arc<dyn Disk>,
    name: &str,
    len_bytes_max: u64,
) -> Result<Option<Copies>, DiskError> {
    let file = match disk.open(name, OpenMode::Existing).await {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let len_bytes = file.len_bytes();
    let places = copies::places(len_bytes).filter(|_| len_bytes <= len_bytes_max);
    let Some([first, second]) = places else {
        return Ok(Some(Err(TextFileError::Length { len_bytes })));
    };
    let half = first.end as usize;
    let read = [
        file.read_at(first.start, half).await,
        file.read_at(second.start, half).await,
    ];
    if let [Err(error), Err(_)] = read {
        return Err(error);
    }
    let unreadable = |error: DiskError| TextFileError::Unreadable(error.to_string());
    Ok(Some(Ok(read.map(|read| read.map_err(unreadable)))))
}

/// Why a change of the pool does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    #[error("saving the pool file: {needed} disks have to have it, {saved} took it: {detail}")]
    Disks {
        needed: usize,
        saved: usize,
        detail: String,
    },
    /// Somebody else changed the same thing first.
    #[error("{0}")]
    Conflict(String),
    #[error("the cluster's map did not take the change: {0}")]
    Map(String),
}

/// Where the pool's state is kept: in a file on each of its disks now; in a cluster, where the nodes agree on it.
///
/// A start reads it together with the disks ([`crate::assemble`]).
pub trait Truth: Send + Sync {
    /// Makes a state that which counts, in the place of the one `before`. Says of each of `disks` whether it has it.
    /// After an error it may be the state on some disks: the next one must have a higher version.
    fn save<'a>(
        &'a self,
        disks: &'a [(DiskId, Arc<dyn Disk>)],
        state: &'a PoolState,
        before: &'a PoolState,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<bool>, SaveError>> + Send + 'a>>;
}

/// The state as a file on each disk of the pool.
pub struct PoolFiles;

impl Truth for PoolFiles {
    fn save<'a>(
        &'a self,
        disks: &'a [(DiskId, Arc<dyn Disk>)],
        state: &'a PoolState,
        before: &'a PoolState,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<bool>, SaveError>> + Send + 'a>> {
        Box::pin(save(disks, state, before))
    }
}

/// Writes the pool file of all `disks`; returns when enough of the pool's members have it.
///
/// Enough means all but those that may be lost: then any start that finds enough disks finds one
/// with the newest file, if the pool has more than four disks or the same ones are missing.
/// A disk that leaves with this change does not count, nor does one that is lost and holds nothing; and one that joins
/// is not enough: a start may find the pool by those that were `before`. Failures of single disks are logged; says
/// which disks have it. After an error some disks may have the new file: the next one must have a higher version.
pub async fn save(
    disks: &[(DiskId, Arc<dyn Disk>)],
    state: &PoolState,
    before: &PoolState,
) -> Result<Vec<bool>, SaveError> {
    let bytes = Bytes::from(encode_pool(state));
    let writes = disks.iter().map(|(_, disk)| write(disk, bytes.clone()));
    let results = join_all(writes).await;
    let errors: Vec<String> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .map(ToString::to_string)
        .collect();
    for error in &errors {
        tracing::error!(%error, "a disk did not take the new pool file");
    }
    let have_it = disks
        .iter()
        .zip(&results)
        .filter(|(_, result)| result.is_ok());
    let have_it: Vec<DiskId> = have_it.map(|((id, _), _)| *id).collect();
    let is_before = |disk: &PoolDisk| before.disks.iter().any(|there| there.id == disk.id);
    let joins = !state.disks.iter().all(is_before);
    // As the new state says: the disks that it says hold nothing may be so many that no change would count.
    let holds_nothing = |id: DiskId| {
        state
            .disks
            .iter()
            .any(|disk| disk.id == id && disk.holds_nothing)
    };
    let lists = [&state.disks]
        .into_iter()
        .chain(joins.then_some(&before.disks));
    for members in lists {
        let counted = members.iter().map(|disk| disk.id);
        let counted: Vec<DiskId> = counted.filter(|id| !holds_nothing(*id)).collect();
        let saved = counted.iter().filter(|id| have_it.contains(id)).count();
        let needed = disks_needed(state, counted.len());
        if saved < needed {
            return Err(SaveError::Disks {
                needed,
                saved,
                detail: errors.join("; "),
            });
        }
    }
    Ok(results.iter().map(Result::is_ok).collect())
}

/// So many of a pool's disks, of these that count, have to have a change before it counts.
pub fn disks_needed(state: &PoolState, members: usize) -> usize {
    let lost = losses_tolerated(state, members);
    members.saturating_sub(lost).max(1)
}

/// What is on a disk with files of ours: its identity and its pool file. An error is a disk that cannot be used.
pub async fn look(disk: &Arc<dyn Disk>) -> Result<Content, String> {
    let loaded = load(disk).await.map_err(|error| error.to_string())?;
    let identity = ShardDisk::identity(disk)
        .await
        .map_err(|error| error.to_string());
    let state = match loaded {
        Some(Ok(Picked { value, bad })) => {
            if let Some(bad) = bad {
                // The start writes the file again.
                tracing::warn!(disk = disk.label(), %bad, "the pool file of this disk is damaged; its other copy counts");
            }
            Some(value)
        }
        // Not a damaged one, which others may take the place of. Such a disk may have an identity of a newer version.
        Some(Err(TextFileError::Version { found, known })) if found > known => {
            return Ok(Content::Newer {
                identity: identity.unwrap_or(None),
                found,
                known,
            });
        }
        Some(Err(error)) => {
            tracing::error!(disk = disk.label(), %error, "the pool file of this disk is not used");
            None
        }
        None => None,
    };
    let identity = identity?;
    Ok(Content::Disk { identity, state })
}

/// Writes the pool file of one disk.
pub async fn save_one(disk: &Arc<dyn Disk>, state: &PoolState) -> Result<(), DiskError> {
    write(disk, Bytes::from(encode_pool(state))).await
}

async fn write(disk: &Arc<dyn Disk>, bytes: Bytes) -> Result<(), DiskError> {
    write_file(disk, POOL_NAME, POOL_NAME_NEW, bytes).await
}

/// Writes a small file whole: a crash leaves the old one or the new one.
pub async fn write_file(
    disk: &Arc<dyn Disk>,
    name: &str,
    name_new: &str,
    bytes: Bytes,
) -> Result<(), DiskError> {
    match disk.remove(name_new).await {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let len_bytes = bytes.len() as u64;
    let file = disk
        .open(name_new, OpenMode::CreateNew { len_bytes })
        .await?;
    file.write_at(0, vec![bytes]).await?;
    if !planted::is(Bug::PoolFileWithoutSync) {
        file.sync().await?;
    }
    drop(file);
    disk.rename(name_new, name).await?;
    disk.sync_folder("").await
}

#[cfg(test)]
mod tests {
    use cairn_testkit::{Crash, Fault, MemDisk, OpKind, Recorder};

    use super::*;
    use cairn_formats::testing::example_pool as example;

    fn disks(count: u128) -> Vec<(DiskId, Arc<dyn Disk>)> {
        (1..=count)
            .map(|id| {
                let disk = MemDisk::new(format!("disk{id}"), 16 << 20);
                (DiskId(id), disk as Arc<dyn Disk>)
            })
            .collect()
    }

    async fn save(
        disks: &[(DiskId, Arc<dyn Disk>)],
        state: &PoolState,
    ) -> Result<Vec<bool>, SaveError> {
        super::save(disks, state, state).await
    }

    /// The pool file of a disk, with two good copies.
    async fn load_good(disk: &Arc<dyn Disk>) -> Option<PoolState> {
        let picked = load(disk).await.unwrap()?.expect("a pool file");
        assert_eq!(picked.bad, None);
        Some(picked.value)
    }

    #[tokio::test]
    async fn what_is_saved_is_loaded() {
        let disks = disks(3);
        assert_eq!(load_good(&disks[0].1).await, None);
        let mut state = example(3);
        save(&disks, &state).await.unwrap();
        state.version += 1;
        save(&disks[..1], &state).await.unwrap();
        assert_eq!(load_good(&disks[0].1).await, Some(state.clone()));
        state.version -= 1;
        assert_eq!(load_good(&disks[2].1).await, Some(state));
    }

    #[tokio::test]
    async fn a_crash_leaves_the_old_file_or_the_new_one() {
        let disk = MemDisk::new("disk", 16 << 20);
        let recorder = Recorder::new(&[Arc::clone(&disk)]);
        let disk = disk as Arc<dyn Disk>;
        let mut state = example(1);
        let mut saved_at = Vec::new();
        for version in 1..=3 {
            state.version = version;
            save(&[(DiskId(1), Arc::clone(&disk))], &state)
                .await
                .unwrap();
            saved_at.push((version, recorder.op_count()));
        }
        for index in 0..=recorder.op_count() {
            let saved = saved_at.iter().filter(|(_, ops)| *ops <= index).count() as u64;
            for seed in 0..8 {
                let crashed = recorder.crash_at(index, Crash::Random, seed);
                let crashed = Arc::clone(&crashed[0]) as Arc<dyn Disk>;
                let version = load_good(&crashed).await.map_or(0, |state| state.version);
                let what = recorder.describe(index);
                assert!(
                    version == saved || version == saved + 1,
                    "{version}, {saved}: {what}"
                );
            }
        }
    }

    /// Three of six are dead, and all that was on them is on the others: else nothing could be changed any more.
    #[tokio::test]
    async fn lost_disks_that_hold_nothing_do_not_count() {
        let disks = disks(3);
        let before = example(6);
        let mut state = before.clone();
        for empty in 1..=3 {
            state.disks[2 + empty].holds_nothing = true;
            let saved = super::save(&disks, &state, &before).await;
            assert!(saved.is_ok(), "{empty}: {saved:?}");
        }
        assert!(super::save(&disks[..1], &state, &before).await.is_ok());
        assert!(super::save(&[], &state, &before).await.is_err());
        let six = super::save(&disks, &before, &before).await;
        assert!(six.is_err());
    }

    #[tokio::test]
    async fn a_block_that_cannot_be_read_costs_one_copy() {
        for copy in 0..2 {
            let disk = MemDisk::new("disk", 16 << 20);
            let state = example(1);
            let dynamic = Arc::clone(&disk) as Arc<dyn Disk>;
            save_one(&dynamic, &state).await.unwrap();
            disk.fail_nth(OpKind::Read, copy, Fault::Io);
            let picked = load(&dynamic).await.unwrap().unwrap().unwrap();
            assert_eq!(picked.value, state);
            let number = picked.bad.map(|bad| u64::from(bad.number));
            assert_eq!(number, Some(copy + 1));
            disk.fail_nth(OpKind::Read, 0, Fault::Io);
            disk.fail_nth(OpKind::Read, 0, Fault::Io);
            assert!(load(&dynamic).await.is_err(), "neither can be read");
        }
    }

    #[tokio::test]
    async fn too_few_disks_are_an_error() {
        let disks = disks(3);
        assert!(save(&disks, &example(6)).await.is_err());
        assert!(save(&disks, &example(5)).await.is_ok());
        assert!(save(&[], &example(1)).await.is_err());
    }

    #[tokio::test]
    async fn a_disk_that_joins_or_leaves_does_not_make_a_change_count() {
        let disks = disks(4);
        // Members before and after, which of the disks can be written to, whether that is enough.
        let cases: &[(u128, u128, &[usize], bool)] = &[
            (1, 2, &[1], false),
            (1, 2, &[0], true),
            (2, 3, &[2], false),
            (2, 3, &[1], true),
            (2, 1, &[1], false),
            (2, 1, &[0], true),
            (3, 2, &[2], false),
            (3, 2, &[1], true),
            (3, 4, &[2, 3], true),
            (3, 4, &[3], false),
            (4, 4, &[2, 3], true),
        ];
        for (before, after, there, want) in cases {
            let there: Vec<_> = there.iter().map(|index| disks[*index].clone()).collect();
            let saved = super::save(&there, &example(*after), &example(*before)).await;
            assert_eq!(saved.is_ok(), *want, "{before} to {after}");
        }
    }
}
