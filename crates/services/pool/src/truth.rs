//! Where the pool's state is kept.
//!
//! Owns: the seam ([`Truth`]), and its one implementation: a file on each disk, its name, the order of writes that
//! leaves the old file or the new one after a crash, and how many disks must have a change before it counts.
//! Must not know: what the change is.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::DiskId;
use cairn_base::disk::{Disk, DiskError, OpenMode};
use cairn_base::env::{BoxFuture, Spawner};
use cairn_base::planted::{self, Bug};
use cairn_formats::copies::{self, Picked};
use cairn_formats::pool_file::{
    POOL_FILE_LEN_BYTES_MAX, PoolDisk, PoolState, decode_pool_copy, encode_pool,
};
use cairn_formats::text_file::{self, TextFileError};
use cairn_shard::ShardDisk;
use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;

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
    #[error("saving the pool file: {needed} disks must store it, {saved} did: {detail}")]
    Disks {
        needed: usize,
        saved: usize,
        detail: String,
        /// A disk that did not store it had no room.
        is_full: bool,
    },
    /// Somebody else changed the same thing first.
    #[error("{0}")]
    Conflict(String),
    #[error("the cluster map refused the change: {0}")]
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
        disks: &'a [Holder],
        state: &'a PoolState,
        before: &'a PoolState,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<bool>, SaveError>> + Send + 'a>>;
}

/// Disks that still have to answer to a write of the pool file that was not waited for.
pub type Unanswered = Arc<Mutex<BTreeSet<DiskId>>>;

/// A disk that is to have the pool's state.
pub struct Holder {
    pub id: DiskId,
    disk: Arc<dyn Disk>,
    watched: Option<Watched>,
}

/// What it takes not to wait for a disk.
struct Watched {
    shards: Arc<ShardDisk>,
    spawner: Arc<dyn Spawner>,
    unanswered: Unanswered,
}

/// What became of a write of the pool file.
enum Written {
    Over(Result<(), DiskError>),
    /// The disk answers nothing at the moment. This is the rest of the write.
    Late(BoxFuture<Result<(), DiskError>>),
}

/// A write of the pool file under way on one disk, until it is dropped.
struct Turn {
    unanswered: Unanswered,
    id: DiskId,
}

impl Turn {
    /// `None`: one is under way already.
    fn begin(unanswered: &Unanswered, id: DiskId) -> Option<Self> {
        let is_first = unanswered.lock().insert(id);
        is_first.then(|| Self {
            unanswered: Arc::clone(unanswered),
            id,
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.unanswered.lock().remove(&self.id);
    }
}

impl Holder {
    /// A disk that is waited for, however long.
    pub fn new(id: DiskId, disk: Arc<dyn Disk>) -> Self {
        Self {
            id,
            disk,
            watched: None,
        }
    }

    /// A disk that is not waited for while it answers nothing, if others are enough.
    pub fn watched(
        shards: &Arc<ShardDisk>,
        spawner: &Arc<dyn Spawner>,
        unanswered: &Unanswered,
    ) -> Self {
        Self {
            id: shards.id(),
            disk: Arc::clone(shards.disk()),
            watched: Some(Watched {
                shards: Arc::clone(shards),
                spawner: Arc::clone(spawner),
                unanswered: Arc::clone(unanswered),
            }),
        }
    }

    async fn write(&self, bytes: Bytes) -> Written {
        let Some(watched) = &self.watched else {
            return Written::Over(write(&self.disk, bytes).await);
        };
        let Some(turn) = Turn::begin(&watched.unanswered, self.id) else {
            // Of two files on their way to a disk the older one could come last.
            return Written::Over(Err(self.no_answer()));
        };
        let disk = Arc::clone(&self.disk);
        let work: BoxFuture<Result<(), DiskError>> = Box::pin(async move {
            let written = write(&disk, bytes).await;
            drop(turn);
            written
        });
        match select(work, pin!(watched.shards.silence())).await {
            Either::Left((written, _)) => Written::Over(written),
            Either::Right((_, work)) => Written::Late(work),
        }
    }

    /// Lets a write go on that is not waited for any longer.
    fn leave(&self, written: Written) {
        if let (Written::Late(work), Some(watched)) = (written, &self.watched) {
            let rest = async move { drop(work.await) };
            watched.spawner.spawn("pool file", Box::pin(rest));
        }
    }

    fn no_answer(&self) -> DiskError {
        DiskError::Io {
            disk: self.disk.label().to_owned(),
            what: "writing the pool file".to_owned(),
            detail: "the disk does not answer".to_owned(),
        }
    }
}

impl Written {
    fn is_done(&self) -> bool {
        matches!(self, Self::Over(Ok(())))
    }

    fn lacks_room(&self) -> bool {
        matches!(self, Self::Over(Err(DiskError::Full { .. })))
    }

    fn is_late(&self) -> bool {
        matches!(self, Self::Late(_))
    }

    /// Waits for it, however long.
    async fn over(self) -> Self {
        match self {
            Self::Over(result) => Self::Over(result),
            Self::Late(work) => Self::Over(work.await),
        }
    }
}

/// The state as a file on each disk of the pool.
pub struct PoolFiles;

impl Truth for PoolFiles {
    fn save<'a>(
        &'a self,
        disks: &'a [Holder],
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
///
/// A disk that answers nothing is waited for only where the others are not enough; the file comes there when it answers again.
pub async fn save(
    disks: &[Holder],
    state: &PoolState,
    before: &PoolState,
) -> Result<Vec<bool>, SaveError> {
    let bytes = Bytes::from(encode_pool(state));
    let writes = disks.iter().map(|holder| holder.write(bytes.clone()));
    let mut written = join_all(writes).await;
    let mut saved = require_enough(disks, &written, state, before);
    if saved.is_err() && written.iter().any(Written::is_late) {
        written = join_all(written.into_iter().map(Written::over)).await;
        saved = require_enough(disks, &written, state, before);
    }
    for error in errors_of(disks, &written) {
        tracing::error!(%error, "a disk could not store the new pool file");
    }
    let have_it: Vec<bool> = written.iter().map(Written::is_done).collect();
    for (holder, written) in disks.iter().zip(written) {
        holder.leave(written);
    }
    saved.map(|()| have_it)
}

fn errors_of(disks: &[Holder], written: &[Written]) -> Vec<String> {
    let each = disks.iter().zip(written);
    let errors = each.filter_map(|(holder, written)| match written {
        Written::Over(result) => result.as_ref().err().map(ToString::to_string),
        Written::Late(_) => Some(holder.no_answer().to_string()),
    });
    errors.collect()
}

/// Whether those that have the file are enough for the change to count.
fn require_enough(
    disks: &[Holder],
    written: &[Written],
    state: &PoolState,
    before: &PoolState,
) -> Result<(), SaveError> {
    let have_it = disks
        .iter()
        .zip(written)
        .filter(|(_, written)| written.is_done());
    let have_it: Vec<DiskId> = have_it.map(|(holder, _)| holder.id).collect();
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
                detail: errors_of(disks, written).join("; "),
                is_full: written.iter().any(Written::lacks_room),
            });
        }
    }
    Ok(())
}

/// So many of a pool's disks, of these that count, have to have a change before it counts.
pub fn disks_needed(state: &PoolState, members: usize) -> usize {
    let lost = losses_tolerated(state, members);
    members.saturating_sub(lost).max(1)
}

/// The content of a disk with files of ours: its identity and its pool file. An error is a disk that cannot be used.
pub async fn look(disk: &Arc<dyn Disk>) -> Result<Content, String> {
    let loaded = load(disk).await.map_err(|error| error.to_string())?;
    let identity = ShardDisk::identity(disk)
        .await
        .map_err(|error| error.to_string());
    let state = match loaded {
        Some(Ok(Picked { value, bad })) => {
            if let Some(bad) = bad {
                // The start writes the file again.
                tracing::warn!(disk = disk.label(), %bad, "a copy of this disk's pool file is damaged; its other copy is used");
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
    use cairn_base::Timestamp;
    use cairn_shard::ShardSettings;
    use cairn_testkit::{Crash, Fault, MemDisk, OpKind, Pace, Recorder, test_env};
    use futures_util::FutureExt;
    use tokio::sync::Semaphore;

    use super::*;
    use cairn_formats::testing::example_pool as example;

    fn disks(count: u128) -> Vec<Holder> {
        (1..=count)
            .map(|id| Holder::new(DiskId(id), MemDisk::new(format!("disk{id}"), 16 << 20)))
            .collect()
    }

    /// A second holder of the disk.
    fn same(holder: &Holder) -> Holder {
        Holder::new(holder.id, Arc::clone(&holder.disk))
    }

    async fn save(disks: &[Holder], state: &PoolState) -> Result<Vec<bool>, SaveError> {
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
        assert_eq!(load_good(&disks[0].disk).await, None);
        let mut state = example(3);
        save(&disks, &state).await.unwrap();
        state.version += 1;
        save(&disks[..1], &state).await.unwrap();
        assert_eq!(load_good(&disks[0].disk).await, Some(state.clone()));
        state.version -= 1;
        assert_eq!(load_good(&disks[2].disk).await, Some(state));
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
            save(&[Holder::new(DiskId(1), Arc::clone(&disk))], &state)
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

    /// Lets nothing through before it has a permit.
    struct Gate(Arc<Semaphore>);

    impl Pace for Gate {
        fn pause(&self, _kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
            let gate = Arc::clone(&self.0);
            Some(Box::pin(async move { drop(gate.acquire().await) }))
        }
    }

    /// Disks of a pool, the first of which answers nothing before the gate opens, and is known not to.
    async fn hanging(count: u128) -> (Vec<Arc<ShardDisk>>, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let mut disks = Vec::new();
        for id in 1..=count {
            let memory = MemDisk::new(format!("disk{id}"), 16 << 20);
            let disk: Arc<dyn Disk> = Arc::clone(&memory) as Arc<dyn Disk>;
            let pool = example(count).pool;
            let made = ShardDisk::format(Arc::clone(&disk), pool, DiskId(id), Timestamp::default());
            made.await.unwrap();
            let opened = ShardDisk::open(disk, pool, ShardSettings::default()).await;
            disks.push(opened.unwrap());
            if id == 1 {
                memory.pace_with(Arc::new(Gate(Arc::clone(&gate))));
            }
        }
        disks[0].set_silent(true);
        (disks, gate)
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_gets_the_file_later() {
        let env = test_env();
        let unanswered = Unanswered::default();
        let (disks, gate) = hanging(3).await;
        let holder = |disk: &Arc<ShardDisk>| Holder::watched(disk, &env.spawner, &unanswered);
        let holders: Vec<Holder> = disks.iter().map(holder).collect();
        let mut state = example(3);
        let first = state.version;
        assert_eq!(save(&holders, &state).await, Ok(vec![false, true, true]));
        assert_eq!(unanswered.lock().len(), 1);
        state.version += 1;
        // Nothing more is asked of it before it has answered.
        assert_eq!(save(&holders, &state).await, Ok(vec![false, true, true]));
        gate.add_permits(1);
        while !unanswered.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let has = load_good(disks[0].disk()).await.map(|state| state.version);
        assert_eq!(has, Some(first));
        disks[0].set_silent(false);
        assert_eq!(save(&holders, &state).await, Ok(vec![true; 3]));
        let has = load_good(disks[0].disk()).await.map(|state| state.version);
        assert_eq!(has, Some(state.version));
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_waited_for_where_the_others_are_not_enough() {
        let env = test_env();
        let unanswered = Unanswered::default();
        let (disks, gate) = hanging(1).await;
        let holders = [Holder::watched(&disks[0], &env.spawner, &unanswered)];
        let state = example(1);
        let mut saving = Box::pin(save(&holders, &state));
        assert!(saving.as_mut().now_or_never().is_none());
        gate.add_permits(1);
        assert_eq!(saving.await, Ok(vec![true]));
        assert!(unanswered.lock().is_empty());
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
            let there: Vec<_> = there.iter().map(|index| same(&disks[*index])).collect();
            let saved = super::save(&there, &example(*after), &example(*before)).await;
            assert_eq!(saved.is_ok(), *want, "{before} to {after}");
        }
    }
}
