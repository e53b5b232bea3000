//! One suite, run over every way to the kernel and over direct and buffered files.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::disk::{Disk, DiskError, DiskFile, OpenMode};
use cairn_disk::{DiskSettings, EngineChoice, READ_LEN_BYTES_MAX, RealDisk};
use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use proptest::prelude::*;
use tempfile::TempDir;

const NEW_EMPTY: OpenMode = OpenMode::CreateNew { len_bytes: 0 };

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// In the workspace's target folder: a system's temporary folder may be in memory.
fn temp_dir() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn all_settings() -> Vec<DiskSettings> {
    let mut all = Vec::new();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        for direct in [true, false] {
            all.push(DiskSettings {
                engine,
                direct,
                ..DiskSettings::default()
            });
        }
    }
    all
}

/// Runs `check` on a new disk of each kind.
fn each<F: Future<Output = ()>>(check: impl Fn(Arc<RealDisk>) -> F) {
    for settings in all_settings() {
        println!("{settings:?}");
        let dir = temp_dir();
        block_on(check(RealDisk::open(dir.path(), settings).unwrap()));
    }
}

fn aligned(len_bytes: usize, fill: u8) -> Bytes {
    let mut buf = AlignedBuf::zeroed(len_bytes);
    buf.fill(fill);
    buf.freeze()
}

async fn whole(file: &dyn DiskFile) -> Bytes {
    file.read_at(0, file.len_bytes() as usize).await.unwrap()
}

#[test]
fn the_folder_of_a_disk_is_made() {
    let dir = temp_dir();
    let nested = dir.path().join("a/b/c");
    for _ in 0..2 {
        RealDisk::open(&nested, DiskSettings::default()).unwrap();
        assert!(nested.is_dir());
    }
    std::fs::write(dir.path().join("file"), "").unwrap();
    for name in ["file", "file/x"] {
        let refused = RealDisk::open(dir.path().join(name), DiskSettings::default());
        let refused = refused.err().map(|error| error.to_string());
        assert!(refused.is_some_and(|told| told.contains("making the folder")));
    }
}

#[test]
fn the_folder_of_a_disk_is_not_made_unless_that_is_asked_for() {
    let dir = temp_dir();
    let absent = dir.path().join("typo");
    let settings = DiskSettings {
        make_folder: false,
        ..DiskSettings::default()
    };
    assert!(RealDisk::open(&absent, settings.clone()).is_err());
    assert!(!absent.exists());
    std::fs::create_dir(&absent).unwrap();
    RealDisk::open(&absent, settings).unwrap();
}

#[test]
fn names_come_and_go() {
    each(|disk| async move {
        let missing = |result: Result<(), DiskError>| {
            assert!(
                matches!(result, Err(DiskError::NotFound { .. })),
                "{result:?}"
            );
        };
        let open = |name: &'static str, mode| disk.open(name, mode).map(|file| file.map(|_| ()));
        missing(open("a", OpenMode::Existing).await);
        missing(disk.remove("a").await);
        missing(disk.rename("a", "x/b").await);
        missing(disk.rename("x/a", "b").await);
        assert_eq!(disk.list("x").await, Ok(vec![]));
        assert_eq!(disk.sync_folder("x").await, Ok(()));

        open("x/y/a", NEW_EMPTY).await.unwrap();
        let again = open("x/y/a", NEW_EMPTY).await;
        assert!(matches!(again, Err(DiskError::Exists { .. })), "{again:?}");
        open("x/y/b", NEW_EMPTY).await.unwrap();
        disk.rename("x/y/a", "z/c").await.unwrap();
        disk.sync_folder("x/y").await.unwrap();
        disk.sync_folder("z").await.unwrap();
        disk.sync_folder("").await.unwrap();
        assert_eq!(disk.list("x/y").await, Ok(vec!["b".to_owned()]));
        assert_eq!(disk.list("z").await, Ok(vec!["c".to_owned()]));
        // Neither folders nor our own lock.
        assert_eq!(disk.list("").await, Ok(vec![]));
        assert_eq!(disk.list("x").await, Ok(vec![]));
        disk.rename("x/y/b", "z/c").await.unwrap();
        disk.remove("z/c").await.unwrap();
        missing(open("z/c", OpenMode::Existing).await);
        for name in ["", "/etc/passwd", "../a", "x/../../a", "lock", "A"] {
            let refused = disk.open(name, NEW_EMPTY).await.map(|_| ());
            assert!(
                matches!(refused, Err(DiskError::Io { .. })),
                "{name}: {refused:?}"
            );
            assert!(disk.rename("z", name).await.is_err());
            assert!(disk.remove(name).await.is_err());
        }
        let folder = open("x/y", OpenMode::Existing).await;
        assert!(matches!(folder, Err(DiskError::Io { .. })), "{folder:?}");
        let space = disk.space().unwrap();
        assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes);
    });
}

#[test]
fn new_files_are_zeros_of_the_given_length() {
    each(|disk| async move {
        let lens = [0u64, 1, 4096, 5000, (1 << 20) + 4096 + 1];
        for (index, len_bytes) in lens.into_iter().enumerate() {
            for mode in [
                OpenMode::CreateNew { len_bytes },
                OpenMode::CreateZeroed { len_bytes },
            ] {
                let name = format!("f{index}");
                let file = disk.open(&name, mode).await.unwrap();
                assert_eq!(file.len_bytes(), len_bytes);
                assert!(whole(&*file).await.iter().all(|byte| *byte == 0));
                drop(file);
                let file = disk.open(&name, OpenMode::Existing).await.unwrap();
                assert_eq!(file.len_bytes(), len_bytes);
                disk.remove(&name).await.unwrap();
            }
        }
    });
}

#[test]
fn reads_past_the_end_are_refused() {
    each(|disk| async move {
        let file = disk.open("a", NEW_EMPTY).await.unwrap();
        file.write_at(0, vec![Bytes::from_static(b"hello")])
            .await
            .unwrap();
        let cases: &[(u64, usize, Option<&[u8]>)] = &[
            (0, 5, Some(b"hello")),
            (1, 3, Some(b"ell")),
            (5, 0, Some(b"")),
            (0, 6, None),
            (5, 1, None),
            (1 << 40, 1, None),
            (u64::MAX, 1, None),
            (u64::MAX, 0, None),
            (0, usize::MAX, None),
        ];
        for (offset, len, want) in cases {
            let got = file.read_at(*offset, *len).await;
            assert_eq!(got.as_deref().ok(), *want, "{offset} {len}: {got:?}");
        }
        let short = file.read_at(3, 4).await;
        let is_right = matches!(
            short,
            Err(DiskError::Short {
                len_bytes: 5,
                wanted_bytes: 7,
                ..
            })
        );
        assert!(is_right, "{short:?}");

        // A sparse file can be longer than what one read may ask for.
        file.set_len(READ_LEN_BYTES_MAX as u64 * 2).await.unwrap();
        assert!(file.read_at(0, READ_LEN_BYTES_MAX + 1).await.is_err());
        assert!(
            file.write_at(u64::MAX - 1, vec![Bytes::from_static(b"ab")])
                .await
                .is_err()
        );
        assert!(
            file.write_at(i64::MAX as u64, vec![Bytes::from_static(b"ab")])
                .await
                .is_err()
        );
        assert!(file.set_len(u64::MAX).await.is_err());
    });
}

#[test]
fn aligned_reads_give_aligned_buffers() {
    each(|disk| async move {
        let file = disk
            .open("a", OpenMode::CreateNew { len_bytes: 1 << 20 })
            .await
            .unwrap();
        for (offset, len) in [(0, 4096), (4096, 100), (8192, 65536), (0, 1 << 20)] {
            let bytes = file.read_at(offset, len).await.unwrap();
            assert!(bytes.as_ptr().addr().is_multiple_of(4096));
        }
    });
}

#[test]
fn more_requests_than_slots_are_all_served() {
    for settings in all_settings() {
        let dir = temp_dir();
        let settings = DiskSettings {
            in_flight_max: 3,
            thread_count: 2,
            ..settings
        };
        let disk = RealDisk::open(dir.path(), settings).unwrap();
        // Several threads with a runtime each, so that wake-ups cross threads.
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let disk = disk.clone();
                scope.spawn(move || {
                    block_on(async move {
                        let name = format!("t{thread}");
                        let file = disk.open(&name, NEW_EMPTY).await.unwrap();
                        for round in 0..20u64 {
                            let writes = (0..16u64).map(|index| {
                                let fill = (round + index) as u8 ^ thread;
                                file.write_at(index * 4096, vec![aligned(4096, fill)])
                            });
                            try_join_all(writes).await.unwrap();
                            file.sync().await.unwrap();
                            let reads = (0..16u64).map(|index| file.read_at(index * 4096, 4096));
                            for (index, got) in join_all(reads).await.into_iter().enumerate() {
                                let fill = (round + index as u64) as u8 ^ thread;
                                assert_eq!(got.unwrap(), aligned(4096, fill));
                            }
                        }
                    });
                });
            }
        });
    }
}

#[test]
fn a_started_write_ends_though_its_future_is_dropped() {
    for settings in all_settings() {
        let dir = temp_dir();
        let disk = RealDisk::open(dir.path(), settings.clone()).unwrap();
        block_on(async {
            let file = disk
                .open("a", OpenMode::CreateNew { len_bytes: 1 << 20 })
                .await
                .unwrap();
            for index in 0..16u64 {
                let data = aligned(65536, index as u8 + 1);
                let mut write = file.write_durable_at(index * 65536, vec![data]);
                assert!(
                    (&mut write)
                        .now_or_never()
                        .is_none_or(|result| result.is_ok())
                );
                // An abandoned read: its buffer must outlive its future too.
                let _ = file.read_at(0, 65536).now_or_never();
            }
        });
        // Closing waits for transfers under way, so the folder can be opened again at once.
        drop(disk);
        let disk = RealDisk::open(dir.path(), settings).unwrap();
        block_on(async {
            let file = disk.open("a", OpenMode::Existing).await.unwrap();
            for index in 0..16u64 {
                let got = file.read_at(index * 65536, 65536).await.unwrap();
                assert_eq!(got, aligned(65536, index as u8 + 1));
            }
        });
    }
}

async fn write_here(disk: Arc<RealDisk>) {
    let file = disk.open("a", NEW_EMPTY).await.unwrap();
    file.write_durable_here(0, Bytes::new()).await.unwrap();
    for (index, len) in [4096, 8192, 1001].into_iter().enumerate() {
        let data = aligned(8192, index as u8 + 1).slice(..len);
        let offset = file.len_bytes();
        let written = file.write_durable_here(offset, data.clone()).await;
        assert_eq!(written, Ok(()));
        assert_eq!(file.len_bytes(), offset + len as u64);
        assert_eq!(file.read_at(offset, len).await.unwrap(), data);
    }
    let past = file.write_durable_here(u64::MAX, aligned(4096, 1)).await;
    assert!(matches!(past, Err(DiskError::Io { .. })), "{past:?}");
    assert_eq!(file.len_bytes(), 4096 + 8192 + 1001);
}

#[test]
fn a_write_by_the_polling_thread_is_as_any_other() {
    // Where there is a thread that may be blocked, and where there is none.
    each(write_here);
    each(|disk| async move {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let task = Box::pin(async move {
            write_here(disk).await;
            done.send(()).unwrap();
        });
        assert!(cairn_base::inline_call::spawn("test", task, |run| run()).is_ok());
        is_done.await.unwrap();
    });
}

#[test]
fn many_parts_are_written_in_order() {
    each(|disk| async move {
        let file = disk.open("a", NEW_EMPTY).await.unwrap();
        // More parts than one system call takes.
        let parts: Vec<Bytes> = (0..3000u32)
            .map(|index| aligned(4096, index as u8))
            .collect();
        let want = parts.concat();
        file.write_at(0, parts.clone()).await.unwrap();
        assert!(whole(&*file).await == want);
        // And with odd ones, which are copied or go through the page cache.
        let odd: Vec<Bytes> = parts.iter().map(|part| part.slice(..1001)).collect();
        let want = odd.concat();
        file.set_len(0).await.unwrap();
        file.write_durable_at(0, odd).await.unwrap();
        assert!(whole(&*file).await == want);
    });
}

#[test]
fn a_folder_in_use_is_refused_with_the_holder() {
    let dir = temp_dir();
    let disk = RealDisk::open(dir.path(), DiskSettings::default()).unwrap();
    let refused = RealDisk::open(dir.path(), DiskSettings::default()).map(|_| ());
    let want = DiskError::InUse {
        disk: disk.label().to_owned(),
        pid: Some(std::process::id()),
    };
    assert_eq!(refused, Err(want));
    // An open file holds the disk.
    let file = block_on(disk.open("a", NEW_EMPTY)).unwrap();
    drop(disk);
    assert!(RealDisk::open(dir.path(), DiskSettings::default()).is_err());
    drop(file);
    RealDisk::open(dir.path(), DiskSettings::default()).unwrap();
}

/// Another drive is mounted at the path of a disk that is open, or none is any more.
#[test]
fn another_folder_at_the_same_path_is_left_alone() {
    let dir = temp_dir();
    let place = dir.path().join("disk");
    let disk = RealDisk::open(&place, DiskSettings::default()).unwrap();
    block_on(async {
        disk.open("volumes/a", NEW_EMPTY).await.unwrap();
        std::fs::rename(&place, dir.path().join("pulled")).unwrap();
        for other in [false, true] {
            if other {
                std::fs::create_dir_all(place.join("volumes")).unwrap();
                std::fs::write(place.join("volumes/a"), "mine").unwrap();
            }
            let refused = |what: &str, error: Option<DiskError>| {
                assert!(
                    matches!(error, Some(DiskError::Io { .. })),
                    "{what}: {error:?}"
                );
            };
            refused(
                "open",
                disk.open("volumes/a", OpenMode::Existing).await.err(),
            );
            refused("create", disk.open("b", NEW_EMPTY).await.err());
            refused("remove", disk.remove("volumes/a").await.err());
            refused("rename", disk.rename("volumes/a", "c").await.err());
            refused("list", disk.list("volumes").await.err());
            refused("sync", disk.sync_folder("volumes").await.err());
            refused("space", disk.space().err());
        }
        assert_eq!(std::fs::read(place.join("volumes/a")).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::rename(dir.path().join("pulled"), &place).unwrap();
        disk.remove("volumes/a").await.unwrap();
    });
}

/// The counting thread must not be the one that waits for the end of the counting.
#[test]
fn a_disk_that_is_closed_while_it_counts_gives_its_folder_back() {
    let dir = temp_dir();
    let others = dir.path().join("volumes/1/state");
    std::fs::create_dir_all(&others).unwrap();
    for index in 0..5000 {
        std::fs::write(others.join(index.to_string()), "").unwrap();
    }
    let settings = DiskSettings {
        size_limit_bytes: Some(1 << 30),
        ..DiskSettings::default()
    };
    let disk = RealDisk::open(dir.path(), settings.clone()).unwrap();
    // It takes a moment; where this thread stands still just then, it is over.
    let is_counting = (0..100).any(|_| disk.recount().now_or_never().is_none());
    assert!(is_counting);
    drop(disk);
    RealDisk::open(dir.path(), settings).unwrap();
}

#[test]
fn a_size_limit_is_kept_and_given_back() {
    let dir = temp_dir();
    let settings = DiskSettings {
        size_limit_bytes: Some(64 << 10),
        ..DiskSettings::default()
    };
    let full = |result: Result<(), DiskError>| {
        assert!(matches!(result, Err(DiskError::Full { .. })), "{result:?}");
    };
    block_on(async {
        let disk = RealDisk::open(dir.path(), settings.clone()).unwrap();
        // The lock file takes a block.
        let before = disk.space().unwrap();
        assert_eq!(before.total_bytes, 64 << 10);
        assert!(before.free_bytes >= 60 << 10);
        let mode = OpenMode::CreateNew {
            len_bytes: 32 << 10,
        };
        let file = disk.open("a", mode).await.unwrap();
        full(disk.open("b", mode).await.map(|_| ()));
        assert_eq!(disk.list("").await.unwrap(), ["a"]);
        file.write_at(32 << 10, vec![aligned(16 << 10, 1)])
            .await
            .unwrap();
        full(file.write_at(48 << 10, vec![aligned(16 << 10, 1)]).await);
        full(file.set_len(1 << 20).await);
        file.set_len(4096).await.unwrap();
        assert_eq!(disk.space().unwrap().free_bytes, before.free_bytes - 4096);
        drop(file);
        drop(disk);
        let disk = RealDisk::open(dir.path(), settings).unwrap();
        assert_eq!(disk.space().unwrap().free_bytes, before.free_bytes - 4096);
        disk.remove("a").await.unwrap();
        assert_eq!(disk.space().unwrap().free_bytes, before.free_bytes);
    });
}

#[derive(Clone, Debug)]
enum Step {
    /// Lengths of the parts, and whether each is at an aligned address.
    Write {
        offset: u64,
        parts: Vec<(usize, bool)>,
        durable: bool,
        fill: u8,
    },
    Read {
        offset: u64,
        len: usize,
    },
    SetLen(u64),
    Sync,
    Reopen,
}

/// Often whole blocks, sometimes any number.
fn size(max_blocks: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..=max_blocks).prop_map(|blocks| blocks * 4096),
        2 => 0..=max_blocks * 4096,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let part = (size(4).prop_map(|len| len as usize), any::<bool>());
    prop_oneof![
        6 => (size(12), prop::collection::vec(part, 0..5), any::<bool>(), 1u8..)
            .prop_map(|(offset, parts, durable, fill)| Step::Write { offset, parts, durable, fill }),
        4 => (size(16), size(16)).prop_map(|(offset, len)| Step::Read { offset, len: len as usize }),
        1 => size(16).prop_map(Step::SetLen),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

/// Does the steps on a file and on a `Vec`, which must stay the same.
async fn compare_with_model(disk: &RealDisk, steps: &[Step]) {
    let mut model: Vec<u8> = Vec::new();
    let mut file = disk.open("f", NEW_EMPTY).await.unwrap();
    for step in steps {
        match step {
            Step::Write {
                offset,
                parts,
                durable,
                fill,
            } => {
                let parts: Vec<Bytes> = parts
                    .iter()
                    .map(|(len, at_block)| match at_block {
                        true => aligned(*len, *fill),
                        false => aligned(len + 1, *fill).slice(1..),
                    })
                    .collect();
                let bytes = parts.concat();
                match durable {
                    true => file.write_durable_at(*offset, parts).await.unwrap(),
                    false => file.write_at(*offset, parts).await.unwrap(),
                }
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if !bytes.is_empty() {
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(&bytes);
                }
            }
            Step::Read { offset, len } => {
                let start = *offset as usize;
                let got = file.read_at(*offset, *len).await;
                assert_eq!(got.as_deref().ok(), model.get(start..start + len));
            }
            Step::SetLen(len_bytes) => {
                file.set_len(*len_bytes).await.unwrap();
                model.resize(*len_bytes as usize, 0);
            }
            Step::Sync => file.sync().await.unwrap(),
            Step::Reopen => file = disk.open("f", OpenMode::Existing).await.unwrap(),
        }
        assert_eq!(file.len_bytes(), model.len() as u64);
    }
    assert!(whole(&*file).await == model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn files_behave_as_a_vec_does(steps in prop::collection::vec(step(), 0..30)) {
        each(|disk| {
            let steps = steps.clone();
            async move { compare_with_model(&disk, &steps).await }
        });
    }
}
