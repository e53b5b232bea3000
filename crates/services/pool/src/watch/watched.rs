//! A disk whose answers are watched.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::{
    Disk, DiskDevice, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode, write_zeros,
};

use super::answers::{Answers, patiently, patiently_changing, patiently_untimed};

pub struct WatchedDisk {
    pub inner: Arc<dyn Disk>,
    pub answers: Arc<Answers>,
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    answers: Arc<Answers>,
}

impl WatchedDisk {
    fn watch<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently(&self.answers, ask))
    }

    fn change<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently_changing(&self.answers, ask))
    }

    async fn open_file(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let ask = || self.inner.open(name, mode);
        let inner = match mode {
            OpenMode::Existing => patiently(&self.answers, ask).await?,
            OpenMode::CreateNew { .. } | OpenMode::CreateZeroed { .. } => {
                patiently_changing(&self.answers, ask).await?
            }
        };
        let answers = Arc::clone(&self.answers);
        Ok(Arc::new(WatchedFile { inner, answers }))
    }

    /// Makes a file of zeros write by write: a disk that is busy answers each of them in time, and not all of a large
    /// file.
    async fn create_zeroed(
        &self,
        name: &str,
        len_bytes: u64,
    ) -> Result<Arc<dyn DiskFile>, DiskError> {
        let _work = self.answers.begin_work();
        let file = self
            .open_file(name, OpenMode::CreateNew { len_bytes })
            .await?;
        if let Err(error) = write_zeros(&*file, len_bytes).await {
            // Half a file must not look like a whole one; the first error is the one to tell.
            let _ = self.remove(name).await;
            return Err(error);
        }
        Ok(file)
    }
}

impl Disk for WatchedDisk {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        Box::pin(async move {
            match mode {
                OpenMode::CreateZeroed { len_bytes } => self.create_zeroed(name, len_bytes).await,
                mode => self.open_file(name, mode).await,
            }
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        self.change(move || self.inner.remove(name))
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        self.change(move || self.inner.rename(from, to))
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        self.watch(move || self.inner.list(folder))
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.sync_folder(folder))
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        if self.answers.is_given_up() {
            return Err(self.answers.refusal());
        }
        self.inner.space()
    }

    fn recount<'a>(&'a self) -> IoFuture<'a, ()> {
        // A walk over all folders.
        Box::pin(patiently_untimed(&self.answers, || self.inner.recount()))
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    fn folder(&self) -> Option<&Path> {
        self.inner.folder()
    }

    fn device(&self) -> Option<&DiskDevice> {
        self.inner.device()
    }

    fn share_file_system(&self, disks: usize) {
        self.inner.share_file_system(disks);
    }
}

impl WatchedFile {
    fn watch<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently(&self.answers, ask))
    }

    fn change<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently_changing(&self.answers, ask))
    }
}

impl DiskFile for WatchedFile {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.change(move || self.inner.write_at(offset, parts.clone()))
    }

    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.change(move || self.inner.write_durable_at(offset, parts.clone()))
    }

    fn write_durable_here<'a>(&'a self, offset: u64, part: Bytes) -> IoFuture<'a, ()> {
        self.change(move || self.inner.write_durable_here(offset, part.clone()))
    }

    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes> {
        self.watch(move || self.inner.read_at(offset, len_bytes))
    }

    fn sync<'a>(&'a self) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.sync())
    }

    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()> {
        self.change(move || self.inner.set_len(len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use cairn_base::env::{BoxFuture, Clock};
    use cairn_testkit::{Fault, FaultRule, MemDisk, OpKind, Pace, TestWorld};
    use parking_lot::Mutex;

    use super::*;

    const HANG_AFTER: Duration = Duration::from_secs(30);
    const ZEROED_LEN_BYTES: u64 = 64 << 20;
    /// As many as there are mebibytes.
    const WRITES: u64 = 64;

    /// Writes that take a second each; of them, those from `writes_max` on never end.
    struct SlowWrites {
        clock: Arc<dyn Clock>,
        /// Each write is asked for twice: before and after it takes effect.
        halves: Mutex<u64>,
        writes_max: u64,
    }

    impl Pace for SlowWrites {
        fn pause(&self, kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
            if kind != OpKind::Write {
                return None;
            }
            let mut halves = self.halves.lock();
            *halves += 1;
            match *halves <= 2 * self.writes_max {
                true => Some(self.clock.sleep(Duration::from_millis(500))),
                false => Some(Box::pin(std::future::pending())),
            }
        }
    }

    /// Writes the zeros by itself, as a real disk does, and takes a second for each folder in a walk over them.
    struct Slow {
        inner: Arc<MemDisk>,
        clock: Arc<dyn Clock>,
    }

    impl Disk for Slow {
        fn label(&self) -> &str {
            self.inner.label()
        }

        fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
            Box::pin(async move {
                let OpenMode::CreateZeroed { len_bytes } = mode else {
                    return self.inner.open(name, mode).await;
                };
                let made = self.inner.open(name, OpenMode::CreateNew { len_bytes });
                let file = made.await?;
                write_zeros(&*file, len_bytes).await?;
                Ok(file)
            })
        }

        fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
            self.inner.remove(name)
        }

        fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
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

        fn recount<'a>(&'a self) -> IoFuture<'a, ()> {
            Box::pin(async move {
                for _ in 0..2 * HANG_AFTER.as_secs() {
                    self.clock.sleep(Duration::from_secs(1)).await;
                }
                Ok(())
            })
        }
    }

    /// A disk whose writes take a second each; of them, those from `writes_max` on never end.
    fn slow(world: &TestWorld, writes_max: u64) -> (Arc<MemDisk>, WatchedDisk) {
        let clock = Arc::clone(&world.env.clock);
        let inner = MemDisk::new("disk", 1 << 30);
        inner.pace_with(Arc::new(SlowWrites {
            clock: Arc::clone(&clock),
            halves: Mutex::new(0),
            writes_max,
        }));
        let slow = Slow {
            inner: Arc::clone(&inner),
            clock: Arc::clone(&clock),
        };
        let watched = WatchedDisk {
            inner: Arc::new(slow),
            answers: Arc::new(Answers::new(clock, "disk".to_owned(), HANG_AFTER)),
        };
        (inner, watched)
    }

    /// What becomes of `asked` within so many seconds, and how many of them `disk` was found to hang in.
    fn after<T>(
        world: &TestWorld,
        disk: &WatchedDisk,
        mut asked: impl Future<Output = Result<T, DiskError>> + Unpin,
        seconds: u64,
    ) -> (Option<Result<T, DiskError>>, u64) {
        let mut context = Context::from_waker(Waker::noop());
        let mut hung = 0;
        for _ in 0..2 * seconds {
            if let Poll::Ready(result) = Pin::new(&mut asked).poll(&mut context) {
                return (Some(result), hung / 2);
            }
            world.clock.advance(Duration::from_millis(500));
            let now = world.clock.monotonic();
            hung += u64::from(disk.answers.hangs(now, Duration::ZERO));
        }
        (None, hung / 2)
    }

    #[test]
    fn zeros_are_timed_write_by_write() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let (_, disk) = slow(&world, WRITES);
        let mode = OpenMode::CreateZeroed {
            len_bytes: ZEROED_LEN_BYTES,
        };
        let asked_at = world.clock.monotonic();
        let mut asked = disk.open("file", mode);
        let (opened, hung) = after(&world, &disk, asked.as_mut(), 50);
        assert!(opened.is_none() && hung == 0, "{hung} s");
        // No write is under way that began then, and more are to come.
        assert!(!disk.answers.is_idle(asked_at));
        let (opened, hung) = after(&world, &disk, asked, 20);
        let file = opened.expect("ends").expect("made");
        assert_eq!((file.len_bytes(), hung), (ZEROED_LEN_BYTES, 0));
        // The creation, the writes, the sync.
        assert_eq!(disk.answers.counts().ops, WRITES + 2);
        assert!(disk.answers.is_idle(world.clock.monotonic()));
    }

    #[test]
    fn one_write_of_zeros_that_does_not_end_hangs() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let (_, disk) = slow(&world, 40);
        let mode = OpenMode::CreateZeroed {
            len_bytes: ZEROED_LEN_BYTES,
        };
        let mut asked = disk.open("file", mode);
        let (opened, hung) = after(&world, &disk, asked.as_mut(), 65);
        assert!(opened.is_none() && hung == 0, "{hung} s");
        let (opened, hung) = after(&world, &disk, asked.as_mut(), 100);
        assert!(opened.is_none() && hung > 90, "{hung} s");
        disk.answers.give_up("for a test".to_owned());
        let (opened, _) = after(&world, &disk, asked, 1);
        assert!(matches!(opened, Some(Err(DiskError::Io { .. }))));
    }

    /// As the disk itself does it.
    #[test]
    fn a_file_without_its_zeros_is_removed() {
        for (fault, kind) in [
            (Fault::Io, OpKind::Write),
            (Fault::Full, OpKind::Write),
            (Fault::Io, OpKind::Sync),
        ] {
            let world = TestWorld::new(1);
            let (inner, disk) = slow(&world, WRITES);
            inner.inject(FaultRule {
                kind: Some(kind),
                name_part: "file".to_owned(),
                skip: 0,
                times: 1,
                fault,
            });
            let mode = OpenMode::CreateZeroed { len_bytes: 4096 };
            let (opened, _) = after(&world, &disk, disk.open("file", mode), 2);
            let error = opened.expect("ends").map(drop).expect_err("fails");
            let is_full = matches!(error, DiskError::Full { .. });
            assert_eq!(is_full, fault == Fault::Full, "{error}");
            assert!(inner.file_names().is_empty(), "{kind:?}");
            // One that is there is not touched.
            let mode = OpenMode::CreateZeroed { len_bytes: 4096 };
            let (opened, _) = after(&world, &disk, disk.open("file", mode), 2);
            assert!(matches!(opened, Some(Ok(_))));
            let (opened, _) = after(&world, &disk, disk.open("file", mode), 2);
            assert!(matches!(opened, Some(Err(DiskError::Exists { .. }))));
            assert_eq!(inner.file_names(), ["file"]);
        }
    }

    #[test]
    fn a_walk_over_all_folders_is_not_timed() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let (_, disk) = slow(&world, 0);
        let walk = 2 * HANG_AFTER.as_secs() + 1;
        let (counted, hung) = after(&world, &disk, disk.recount(), walk);
        assert_eq!((counted, hung), (Some(Ok(())), 0));
        assert_eq!(disk.answers.counts().ops, 0, "no sign of life either");
        let mut asked = disk.recount();
        let (counted, _) = after(&world, &disk, asked.as_mut(), 10);
        assert_eq!(counted, None);
        disk.answers.give_up("for a test".to_owned());
        let (counted, _) = after(&world, &disk, asked, 1);
        assert!(matches!(counted, Some(Err(DiskError::Io { .. }))));
    }
}
