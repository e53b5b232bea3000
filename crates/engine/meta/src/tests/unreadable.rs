//! Log files on disks with unreadable sectors.

use cairn_base::disk::{DiskError, DiskFile, DiskSpace, IoFuture};
use parking_lot::Mutex;

use super::left_behind::expect_all;
use super::*;

const BLOCK_BYTES: u64 = 4096;

/// A disk with bad blocks: reads of those fail.
struct BadDisk {
    inner: Arc<MemDisk>,
    /// Names of files, and offsets in them.
    bad: Arc<Mutex<Vec<(String, u64)>>>,
}

struct BadFile {
    inner: Arc<dyn DiskFile>,
    name: String,
    bad: Arc<Mutex<Vec<(String, u64)>>>,
}

impl BadDisk {
    /// A disk with the contents of another one.
    fn copy_of(disk: &Arc<MemDisk>, bad: &[(String, u64)]) -> Arc<Self> {
        Arc::new(Self {
            inner: MemDisk::from_snapshot(&disk.snapshot()),
            bad: Arc::new(Mutex::new(bad.to_vec())),
        })
    }
}

impl Disk for BadDisk {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        Box::pin(async move {
            let file: Arc<dyn DiskFile> = Arc::new(BadFile {
                inner: self.inner.open(name, mode).await?,
                name: name.to_owned(),
                bad: self.bad.clone(),
            });
            Ok(file)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        self.inner.remove(name)
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        // The blocks keep their place under any file name.
        for (name, _) in self.bad.lock().iter_mut().filter(|(name, _)| name == from) {
            to.clone_into(name);
        }
        self.inner.rename(from, to)
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        self.inner.list(folder)
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        self.inner.sync_folder(folder)
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        self.inner.space()
    }
}

impl DiskFile for BadFile {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.inner.write_at(offset, parts)
    }

    /// Written blocks become readable.
    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        let len: usize = parts.iter().map(Bytes::len).sum();
        let range = offset..offset + len as u64;
        let is_written = |(name, at): &(String, u64)| *name == self.name && range.contains(at);
        self.bad.lock().retain(|bad| !is_written(bad));
        self.inner.write_durable_at(offset, parts)
    }

    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes> {
        let range = offset..offset + len_bytes as u64;
        let is_bad = |(name, at): &(String, u64)| *name == self.name && range.contains(at);
        if self.bad.lock().iter().any(is_bad) {
            let error = DiskError::Io {
                disk: "bad".to_owned(),
                what: format!("reading {}", self.name),
                detail: "a bad sector".to_owned(),
            };
            return Box::pin(async { Err(error) });
        }
        self.inner.read_at(offset, len_bytes)
    }

    fn sync<'a>(&'a self) -> IoFuture<'a, ()> {
        self.inner.sync()
    }

    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()> {
        self.inner.set_len(len_bytes)
    }
}

const PUT_COUNT: u64 = 70;

/// Disks with a log of several files, of which only some is needed, and the number of needed records.
async fn used_disks(world: &TestWorld, count: usize) -> (Pool, u64) {
    let pool = Pool::new(count);
    let store = create(world, count, pool.present()).await;
    for number in 1..=PUT_COUNT {
        store
            .durable(store.submit(put(number)))
            .await
            .expect("durable");
        if number == 50 {
            store.ship().await.expect("ships");
        }
    }
    limits::settle(world).await;
    let stats = store.stats();
    store.abort().await;
    (pool, stats.durable.0 - stats.log_start.0 + 1)
}

/// All blocks of log files except their headers.
fn log_blocks(disk: &MemDisk) -> Vec<(String, u64)> {
    let logs = disk.file_sizes().into_iter();
    let logs = logs.filter(|(name, _)| name.contains("/log."));
    let blocks = |(name, len_bytes): (String, u64)| {
        let offsets = (BLOCK_BYTES..len_bytes).step_by(BLOCK_BYTES as usize);
        offsets
            .map(move |at| (name.clone(), at))
            .collect::<Vec<_>>()
    };
    logs.flat_map(blocks).collect()
}

fn all_of(disks: &[Arc<BadDisk>]) -> Disks {
    let disk = |(index, disk): (usize, &Arc<BadDisk>)| -> (DiskId, Arc<dyn Disk>) {
        (DiskId(index as u128 + 1), disk.clone())
    };
    disks.iter().enumerate().map(disk).collect()
}

/// Opens twice, with a write in between; false if the start is refused.
async fn opens_with_all(world: &TestWorld, disks: &[Arc<BadDisk>]) -> bool {
    let copies = disks.len();
    let opened = MetaStore::open(world.env.clone(), settings(copies), VOLUME, all_of(disks)).await;
    let store = match opened {
        Ok((store, _)) => store,
        Err(MetaError::LogUnreadable { name, .. }) => {
            assert!(name.contains("/log."));
            return false;
        }
        Err(error) => panic!("{error}"),
    };
    expect_all(&store, 1..=PUT_COUNT).await;
    assert_eq!(store.stats().failed_disks, []);
    store
        .durable(store.submit(put(PUT_COUNT + 1)))
        .await
        .expect("durable");
    store.abort().await;
    let (store, _) = open(world, copies, all_of(disks)).await;
    expect_all(&store, 1..=PUT_COUNT + 1).await;
    store.abort().await;
    true
}

/// One unreadable block anywhere in the log of the only disk: the start is refused if the block is needed, or if the
/// log may go on there, and otherwise succeeds.
#[test]
fn a_bad_sector_costs_only_what_is_in_it() {
    block_on(async {
        let world = TestWorld::new(1);
        let (pool, needed) = used_disks(&world, 1).await;
        let blocks = log_blocks(&pool.disks[0]);
        let mut refused = 0;
        for bad in &blocks {
            let disk = BadDisk::copy_of(&pool.disks[0], std::slice::from_ref(bad));
            refused += u64::from(!opens_with_all(&world, &[disk]).await);
        }
        // The block where the next record would be, and the first block of the prepared file.
        assert!(
            (needed..=needed + 2).contains(&refused) && needed < blocks.len() as u64 / 2,
            "{refused} of {} refused, {needed} needed",
            blocks.len()
        );
    });
}

/// With a second disk that has a copy, nothing is missing.
#[test]
fn a_bad_sector_on_one_of_two_disks_costs_nothing() {
    block_on(async {
        let world = TestWorld::new(1);
        let (pool, _) = used_disks(&world, 2).await;
        for bad in log_blocks(&pool.disks[0]) {
            let disks = [
                BadDisk::copy_of(&pool.disks[0], std::slice::from_ref(&bad)),
                BadDisk::copy_of(&pool.disks[1], &[]),
            ];
            assert!(opens_with_all(&world, &disks).await, "{bad:?}");
        }
    });
}

/// A disk that cannot read most of its log counts as failed.
#[test]
fn a_disk_with_many_bad_sectors_is_not_used() {
    block_on(async {
        let world = TestWorld::new(1);
        let (pool, _) = used_disks(&world, 2).await;
        let disks = [
            BadDisk::copy_of(&pool.disks[0], &[]),
            BadDisk::copy_of(&pool.disks[1], &log_blocks(&pool.disks[1])),
        ];
        let (store, _) = open(&world, 2, all_of(&disks)).await;
        expect_all(&store, 1..=PUT_COUNT).await;
        assert_eq!(store.stats().failed_disks, [DiskId(2)]);
        store.abort().await;
    });
}
