//! A kernel without any feature on it: what a change leaves behind, however it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use cairn_base::disk::Disk;
use cairn_base::{DiskId, PoolId};
use cairn_meta::{InodeKind, Key, MetaCache, MetaSettings, MetaStore, UsageDelta};
use cairn_segment::SegmentSettings;
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{MemDisk, test_env};

use super::*;

const POOL: PoolId = PoolId(7);
const FILE: Ino = Ino(2);
const NOW: Timestamp = Timestamp::new(100, 0);

/// A kernel of a volume with a root directory and a file.
async fn kernel() -> Kernel {
    let env = test_env();
    let id = DiskId(1);
    let disk: Arc<dyn Disk> = MemDisk::new("disk", 1 << 30);
    let made = ShardDisk::format(disk.clone(), POOL, id, Timestamp::new(1, 0));
    made.await.unwrap();
    let shards = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
    let shards = vec![shards.await.unwrap()];
    let segments = SegmentStore::new(env.clone(), SegmentSettings::default(), shards, Vec::new());
    let settings = MetaSettings::new(1, MetaCache::new(1 << 20));
    let store = MetaStore::create(env.clone(), settings, VolumeId(1), vec![(id, disk)]);
    let meta = Metadata::new(store.await.unwrap());
    let mut batch = Batch::new();
    for (ino, kind) in [(ROOT, InodeKind::Directory), (FILE, InodeKind::Regular)] {
        let mut record = InodeRecord::new(kind);
        record.nlink = 1;
        batch.put(Key::inode(ino), record.encode());
    }
    meta.commit_unopened(batch);
    let limits = MemoryLimits {
        inodes_max: 1000,
        extents_max: 1000,
    };
    let dirty = DirtyBudget::new(1 << 20);
    Kernel::open(env, VolumeId(1), meta, segments, dirty, limits).unwrap()
}

/// Runs a test with a kernel.
fn with_kernel(test: impl FnOnce(&Kernel)) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(async {
        let kernel = kernel().await;
        test(&kernel);
        kernel.meta.abort().await;
    });
}

fn stored(kernel: &Kernel, ino: Ino) -> InodeRecord {
    let stored = kernel.meta.live().get(&Key::inode(ino)).unwrap();
    InodeRecord::decode(&stored.unwrap()).unwrap()
}

#[test]
fn a_commit_stores_what_it_touched_and_tells_who_waits() {
    with_kernel(|kernel| {
        let [root, file] = [ROOT, FILE].map(|ino| kernel.own_inode(ino).unwrap());
        let mut change = kernel.begin_change(Locked::all(&[&file, &root]));
        change.edit(FILE).record().mode = 0o600;
        change.edit_quietly(ROOT).record().mode = 0o700;
        let done = change.commit();
        assert_eq!(done.of(FILE).changed(), done.ticket);
        assert_eq!(done.of(ROOT).ticket(), done.ticket);
        assert!(done.of(ROOT).changed() < done.ticket);
        assert_eq!(stored(kernel, FILE).mode, 0o600);
        assert_eq!(stored(kernel, ROOT).mode, 0o700);
    });
}

#[test]
fn a_refused_change_leaves_everything_as_it_was() {
    with_kernel(|kernel| {
        let file = kernel.own_inode(FILE).unwrap();
        let ticket = file.lock().ticket();
        let ctime = file.lock().record.ctime;
        let mut change = kernel.begin_change(file.lock());
        change.edit(FILE).touch_mtime(NOW);
        change.edit(FILE).state.stable_size_bytes = 9;
        // No such segment has a live record.
        let end = change.commit_sharing(&[SegmentId(999)], UndoWhen::Gone);
        assert!(matches!(end, Commit::Gone));
        let state = file.lock();
        assert_eq!((state.ticket(), state.record.ctime), (ticket, ctime));
        assert_eq!(state.stable_size_bytes, 0);
        assert_eq!(stored(kernel, FILE).ctime, ctime);
    });
}

#[test]
fn wrong_changes_do_not_pass() {
    type Case = (&'static str, fn(&Kernel, &Arc<Inode>), Option<&'static str>);
    let cases: &[Case] = &[
        (
            "dropped untouched",
            |kernel, file| drop(kernel.begin_change(file.lock())),
            None,
        ),
        (
            "dropped",
            |kernel, file| {
                kernel.begin_change(file.lock()).edit(FILE).touch_ctime(NOW);
            },
            Some("was not committed"),
        ),
        (
            "charged for nothing",
            |kernel, file| {
                let mut change = kernel.begin_change(file.lock());
                let edit = change.edit(FILE);
                let owner = owner_of(&edit.state.record);
                edit.batch.charge(owner, UsageDelta::ONE_INODE);
                change.commit();
            },
            Some("charges differ"),
        ),
        (
            "given away for nothing",
            |kernel, file| {
                let mut change = kernel.begin_change(file.lock());
                change.edit(FILE).record().uid = 7;
                change.commit();
            },
            Some("charges differ"),
        ),
        (
            "a name in a directory that is not touched",
            |kernel, file| {
                let mut change = kernel.begin_change(file.lock());
                change.edit(FILE).batch.delete(Key::dirent(ROOT, b"a"));
                change.commit();
            },
            Some("not touched"),
        ),
        (
            "a record put by hand",
            |kernel, file| {
                let mut change = kernel.begin_change(file.lock());
                let edit = change.edit(FILE);
                let record = edit.state.record.encode();
                edit.batch.put(Key::inode(FILE), record);
                change.commit();
            },
            Some("not touched"),
        ),
        (
            "an inode that is not locked",
            |kernel, file| {
                kernel.begin_change(file.lock()).edit(ROOT);
            },
            Some("was locked"),
        ),
        (
            "bare, of an inode in memory",
            |kernel, _| {
                let mut batch = Batch::new();
                batch.delete(Key::inode(FILE));
                kernel.commit_bare(Bare::Segments, batch);
            },
            Some("Segments"),
        ),
        (
            "as if the volume were closed",
            |kernel, _| {
                kernel.meta.commit_unopened(Batch::new());
            },
            Some("is_open"),
        ),
    ];
    with_kernel(|kernel| {
        let file = kernel.own_inode(FILE).unwrap();
        for (name, change, want) in cases {
            let done = catch_unwind(AssertUnwindSafe(|| change(kernel, &file)));
            let text = done.err().map(|payload| {
                let text = payload
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned());
                text.or_else(|| payload.downcast_ref::<String>().cloned())
                    .unwrap_or_default()
            });
            match want {
                None => assert_eq!(text, None, "{name}"),
                Some(want) => {
                    let text = text.unwrap_or_else(|| panic!("{name}: passes"));
                    assert!(text.contains(want), "{name}: {text}");
                }
            }
        }
    });
}

/// The sources below a folder.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.append(&mut sources(&path)),
            false => found.push((path.clone(), std::fs::read_to_string(&path).unwrap())),
        }
    }
    found
}

/// Privacy keeps others from the store, but for two doors: the raw store that `Fs::meta` returns to other crates,
/// and an import of a feature.
#[test]
fn only_the_kernel_submits_and_it_knows_no_feature() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let below = source.join("kernel");
    // These know no feature either.
    let plain = ["kernel", "perm", "tasks", "types"];
    let all = sources(&source);
    assert!(all.iter().any(|(path, _)| path.starts_with(&below)));
    for (path, text) in all {
        let is_kernel = path.starts_with(&below);
        let name = path.display();
        if !is_kernel {
            assert!(!text.contains(".submit"), "{name} submits");
            let may_have_store = path.ends_with("volume.rs");
            let has_store = text.contains(".for_other_crates()") || text.contains(".meta().");
            assert!(may_have_store || !has_store, "{name} has the store");
            continue;
        }
        if path.ends_with("tests.rs") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for import in code.split("crate::").skip(1) {
            let module = import
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next();
            let module = module.unwrap();
            let is_own = module.starts_with(char::is_uppercase) || plain.contains(&module);
            assert!(is_own, "{name} imports {module}");
        }
    }
}
