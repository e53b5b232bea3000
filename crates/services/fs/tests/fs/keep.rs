//! Previous contents of files, kept before clients change or remove them: a crash leaves both the change and the kept
//! content, or neither.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_fs::*;
use cairn_testkit::Crash;
use proptest::prelude::*;

use crate::world::*;

const DURING: Duration = Duration::from_secs(60);

/// Keeps everything in one folder, by paths and numbers.
struct Folder {
    dir: Ino,
    count: Arc<AtomicU64>,
}

impl Keeper for Folder {
    fn place(
        &self,
        _directory: Ino,
        path: Vec<Arc<[u8]>>,
        _there: Attr,
        removes: bool,
    ) -> BoxFuture<Result<Option<KeptPlace>, FsError>> {
        let (dir, count) = (self.dir, Arc::clone(&self.count));
        Box::pin(async move {
            let path = String::from_utf8(path.join(&b'+')).unwrap();
            let name = |what| {
                let number = count.fetch_add(1, Ordering::Relaxed);
                format!("{path}#{what}{number:08}").into_bytes()
            };
            let marker = removes.then(|| Marker {
                name: name("marker"),
                mtime: cairn_base::Timestamp::new(7, 0),
                xattrs: vec![(b"user.marker".to_vec(), Bytes::from_static(b"1"))],
            });
            Ok(Some(KeptPlace {
                dir,
                name: name("kept"),
                marker,
                turn: Box::new(()),
            }))
        })
    }

    fn give_up(&self, _directory: Ino, _path: Vec<Arc<[u8]>>) -> BoxFuture<()> {
        Box::pin(async {})
    }
}

/// The volume with its keeper.
async fn attach(fs: &Fs, seed: u64) -> Arc<dyn Keeper> {
    let hidden = fs.make_hidden_folder().await.unwrap();
    let dir = match fs.child(&ROOT_USER, hidden, b"kept").await.unwrap() {
        Some((dir, _)) => dir,
        None => mkdir(fs, hidden, b"kept").await,
    };
    let keeper: Arc<dyn Keeper> = Arc::new(Folder {
        dir,
        count: Arc::new(AtomicU64::new(seed * 10_000)),
    });
    fs.set_keeper(Arc::downgrade(&keeper));
    keeper
}

async fn mkdir(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    let set = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    let made = fs.make_dir(&ROOT_USER, parent, name, set).await;
    made.unwrap().attr.ino
}

/// All kept contents, by paths; markers as `None`.
async fn kept(fs: &Fs) -> Vec<(String, Option<Vec<u8>>)> {
    let hidden = fs.hidden_folder().await.unwrap().unwrap();
    let dir = fs.child(&ROOT_USER, hidden, b"kept").await.unwrap();
    let page = fs.names_after(&ROOT_USER, dir.unwrap().0, b"", true, 10_000);
    let mut all = Vec::new();
    for entry in page.await.unwrap().entries {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        let (path, what) = name.split_once('#').unwrap();
        let data = read_all(fs, entry.ino).await;
        match what.starts_with("marker") {
            true => {
                assert!(data.is_empty());
                let marker = fs.xattr(&ROOT_USER, entry.ino, b"user.marker").await;
                assert_eq!(marker.unwrap(), "1");
                all.push((path.to_owned(), None));
            }
            false => {
                let late = Bytes::from_static(b"late");
                let write = fs.write(&ROOT_USER, entry.ino, 0, late, Stability::Stable);
                assert_eq!(write.await.unwrap_err(), FsError::NotOwner);
                all.push((path.to_owned(), Some(data)));
            }
        }
    }
    all.sort();
    all
}

async fn put(fs: &Fs, dir: Ino, name: &[u8], data: &[u8]) -> Ino {
    let mode = CreateMode::Unchecked(SetAttr::default());
    let made = fs.create(&ROOT_USER, dir, name, mode).await.unwrap();
    write(fs, made.attr.ino, 0, data).await;
    made.attr.ino
}

async fn write(fs: &Fs, ino: Ino, at: u64, data: &[u8]) {
    for (index, part) in data.chunks(1 << 20).enumerate() {
        let at = at + (index << 20) as u64;
        let part = Bytes::copy_from_slice(part);
        let done = fs.write(&ROOT_USER, ino, at, part, Stability::Stable);
        done.await.unwrap();
    }
}

#[test]
fn a_change_keeps_what_was_there_once_in_a_while() {
    for len in [0, 5, 64 << 10, (64 << 10) + 1, 3 << 20] {
        block_on(async {
            let world = World::new(71, 1).await;
            let fs = &world.fs;
            let dir = mkdir(fs, ROOT_INO, b"bucket").await;
            let below = mkdir(fs, dir, b"sub").await;
            fs.keep_below(dir, Some(DURING)).await.unwrap();
            let keeper = attach(fs, 1).await;
            // The client that makes a file goes on filling it.
            let before = pattern(len, 1);
            let ino = put(fs, below, b"a", &before).await;
            let value = [(&b"user.a"[..], &b"value"[..])];
            for (name, value) in value {
                let set = fs.set_xattr(&ROOT_USER, ino, name, value, XattrMode::Any);
                set.await.unwrap();
            }
            assert_eq!(kept(fs).await, []);
            world.clock.advance(DURING);
            let attr = fs.attr(ino).await.unwrap();
            write(fs, ino, 2, b"one").await;
            write(fs, ino, 7, b"two").await;
            let want = vec![("sub+a".to_owned(), Some(before))];
            assert_eq!(kept(fs).await, want, "{len}");
            let hidden = fs.hidden_folder().await.unwrap().unwrap();
            let folder = fs.child(&ROOT_USER, hidden, b"kept").await.unwrap();
            let page = fs.names_after(&ROOT_USER, folder.unwrap().0, b"", true, 10);
            let copy = page.await.unwrap().entries[0].ino;
            let of_copy = fs.attr(copy).await.unwrap();
            assert_eq!((of_copy.mtime, of_copy.mode), (attr.mtime, attr.mode));
            let value = fs.xattr(&ROOT_USER, copy, b"user.a").await.unwrap();
            assert_eq!(value, "value");
            // Later it is another change.
            world.clock.advance(DURING);
            let middle = read_all(fs, ino).await;
            let cut = SetAttr {
                size_bytes: Some(0),
                ..SetAttr::default()
            };
            fs.set_attr(&ROOT_USER, ino, cut, None).await.unwrap();
            write(fs, ino, 0, b"three").await;
            let mut want = want;
            want.push(("sub+a".to_owned(), Some(middle)));
            want.sort();
            assert_eq!(kept(fs).await, want);
            recount(fs).await;
            // Keeping ends.
            fs.keep_below(dir, None).await.unwrap();
            world.clock.advance(DURING);
            write(fs, ino, 0, b"four").await;
            assert_eq!(kept(fs).await, want);
            drop(keeper);
            fs.close().await.unwrap();
        });
    }
}

/// A SETATTR that checks the change time is not refused because of the content that was kept before it.
#[test]
fn a_guard_holds_for_what_the_client_saw() {
    block_on(async {
        let world = World::new(72, 1).await;
        let fs = &world.fs;
        fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
        let _keeper = attach(fs, 1).await;
        let ino = put(fs, ROOT_INO, b"a", b"before").await;
        world.clock.advance(DURING);
        let cut = SetAttr {
            size_bytes: Some(1),
            ..SetAttr::default()
        };
        let seen = fs.attr(ino).await.unwrap().ctime;
        let old = Some(cairn_base::Timestamp::new(1, 1));
        let refused = fs.set_attr(&ROOT_USER, ino, cut, old).await;
        assert_eq!(refused.unwrap_err(), FsError::NotSync);
        assert_eq!(kept(fs).await, []);
        fs.set_attr(&ROOT_USER, ino, cut, Some(seen)).await.unwrap();
        assert_eq!(kept(fs).await, [("a".to_owned(), Some(b"before".to_vec()))]);
        fs.close().await.unwrap();
    });
}

/// No change is made before the place of the content is known, not even right after the volume was opened.
#[test]
fn a_change_waits_for_the_keeper() {
    block_on(async {
        let world = World::new(73, 1).await;
        let dir = mkdir(&world.fs, ROOT_INO, b"bucket").await;
        let ino = put(&world.fs, dir, b"a", b"before").await;
        world.fs.keep_below(dir, Some(DURING)).await.unwrap();
        drop(attach(&world.fs, 1).await);
        let world = world.restart(74).await;
        let fs = &world.fs;
        assert_eq!(fs.kept_below(), BTreeMap::from([(dir, DURING)]));
        let remove = fs.remove(&ROOT_USER, dir, b"a");
        let late = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(read_all(fs, ino).await, b"before");
            attach(fs, 2).await
        };
        let (removed, keeper) = futures_util::future::join(remove, late).await;
        removed.unwrap();
        let want = [
            ("a".to_owned(), None),
            ("a".to_owned(), Some(b"before".to_vec())),
        ];
        assert_eq!(kept(fs).await, want);
        drop(keeper);
        // Without a keeper, the client is to try again.
        put(fs, dir, b"b", b"other").await;
        let remove = fs.remove(&ROOT_USER, dir, b"b");
        let (removed, ()) = futures_util::future::join(remove, world.run_for(30)).await;
        assert_eq!(removed.unwrap_err(), FsError::TryLater);
        fs.close().await.unwrap();
    });
}

/// The operations of a kernel's client for a file that is removed while it is open.
#[test]
fn a_removal_of_an_open_file_is_one() {
    block_on(async {
        let world = World::new(75, 1).await;
        let fs = &world.fs;
        fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
        let _keeper = attach(fs, 1).await;
        let silly = b".nfs0000000000a1b2c300000001";
        let ino = put(fs, ROOT_INO, b"a", b"before").await;
        let moved = fs.rename(&ROOT_USER, ROOT_INO, b"a", ROOT_INO, silly);
        moved.await.unwrap();
        let want = [
            ("a".to_owned(), None),
            ("a".to_owned(), Some(b"before".to_vec())),
        ];
        assert_eq!(kept(fs).await, want);
        write(fs, ino, 0, b"for itself").await;
        world.clock.advance(DURING);
        write(fs, ino, 0, b"and again").await;
        fs.remove(&ROOT_USER, ROOT_INO, silly).await.unwrap();
        assert_eq!(kept(fs).await, want);
        recount(fs).await;
        fs.close().await.unwrap();
    });
}

/// A client that may not change a file keeps nothing of it.
#[test]
fn what_is_refused_keeps_nothing() {
    block_on(async {
        let world = World::new(76, 1).await;
        let fs = &world.fs;
        fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
        let _keeper = attach(fs, 1).await;
        let dir = fs.make_dir(&ROOT_USER, ROOT_INO, b"dir", SetAttr::default());
        let dir = dir.await.unwrap().attr.ino;
        let ino = put(fs, dir, b"a", b"before").await;
        world.clock.advance(DURING);
        let other = Credentials {
            uid: 1000,
            gid: 1000,
            ..Credentials::ROOT
        };
        let data = Bytes::from_static(b"x");
        let cut = SetAttr {
            size_bytes: Some(1),
            ..SetAttr::default()
        };
        let denied = Err(FsError::AccessDenied);
        let done = fs.write(&other, ino, 0, data, Stability::Stable).await;
        assert_eq!(done.map(drop), denied);
        let done = fs.set_attr(&other, ino, cut, None).await;
        assert_eq!(done.map(drop), denied);
        let done = fs.remove(&other, dir, b"a").await;
        assert_eq!(done.map(drop), denied);
        put(fs, ROOT_INO, b"b", b"b").await;
        let done = fs.rename(&other, ROOT_INO, b"b", dir, b"a").await;
        assert_eq!(done.map(drop), denied);
        assert_eq!(kept(fs).await, []);
        fs.close().await.unwrap();
    });
}

/// A removed file that is brought back is a version, whatever changes were in progress before.
#[test]
fn a_file_that_is_brought_back_is_not_being_changed() {
    block_on(async {
        let world = World::new(78, 1).await;
        let fs = &world.fs;
        fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
        let _keeper = attach(fs, 1).await;
        let ino = put(fs, ROOT_INO, b"a", b"before").await;
        fs.remove(&ROOT_USER, ROOT_INO, b"a").await.unwrap();
        let hidden = fs.hidden_folder().await.unwrap().unwrap();
        let (folder, _) = fs
            .child(&ROOT_USER, hidden, b"kept")
            .await
            .unwrap()
            .unwrap();
        let page = fs
            .names_after(&ROOT_USER, folder, b"", true, 10)
            .await
            .unwrap();
        let kept_at = page.entries.iter().find(|entry| entry.ino == ino).unwrap();
        let from = (folder, &kept_at.name[..]);
        let back = fs.move_version(&ROOT_USER, from, (ROOT_INO, b"a"), false);
        back.await.unwrap();
        write(fs, ino, 0, b"after!").await;
        let want = [
            ("a".to_owned(), None),
            ("a".to_owned(), Some(b"before".to_vec())),
        ];
        assert_eq!(kept(fs).await, want);
        recount(fs).await;
        fs.close().await.unwrap();
    });
}

/// A file from a snapshot replaces another as a rename does.
#[test]
fn a_file_that_is_put_in_its_place_keeps_what_was_there() {
    block_on(async {
        let world = World::new(77, 1).await;
        let fs = &world.fs;
        fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
        let _keeper = attach(fs, 1).await;
        put(fs, ROOT_INO, b"a", b"before").await;
        for (fs, byte) in [(fs.clone(), b"1"), (fs.without_keeping(), b"2")] {
            let mut file = fs.make_unnamed(&ROOT_USER).unwrap();
            file.append(Bytes::from_static(byte)).await.unwrap();
            let placing = Placing {
                dir: ROOT_INO,
                name: b"a",
                expected: Expected::Anything,
                set: SetAttr::default(),
                xattrs: &[],
            };
            file.place(&ROOT_USER, &placing).await.unwrap();
        }
        assert_eq!(kept(fs).await, [("a".to_owned(), Some(b"before".to_vec()))]);
        recount(fs).await;
        fs.close().await.unwrap();
    });
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Write(usize, u64, usize, u8),
    Cut(usize, u64),
    Remove(usize),
    Rename(usize, usize),
    Link(usize, usize),
    Pass(u64),
    Crash,
    Restart,
}

/// Below the directory whose files are kept, or beside it.
const NAMES: [(bool, &str); 5] = [
    (true, "a"),
    (true, "b"),
    (true, "c"),
    (false, "a"),
    (false, "b"),
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..NAMES.len();
    let step = prop_oneof![
        2 => name().prop_map(Step::Create),
        5 => (name(), 0..200_000u64, 1..100_000usize, any::<u8>())
            .prop_map(|(name, at, len, byte)| Step::Write(name, at, len, byte)),
        2 => (name(), 0..200_000u64).prop_map(|(name, len)| Step::Cut(name, len)),
        3 => name().prop_map(Step::Remove),
        3 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => (name(), name()).prop_map(|(from, to)| Step::Link(from, to)),
        3 => (1..90u64).prop_map(Step::Pass),
        1 => Just(Step::Crash),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

#[derive(Clone, Debug, Default)]
struct File {
    data: Vec<u8>,
    until: u64,
    /// The name that the inode records, and the directory in which it would look for another.
    known: Option<usize>,
    is_below: bool,
}

#[derive(Default)]
struct Model {
    names: BTreeMap<usize, usize>,
    files: Vec<File>,
    kept: Vec<(String, Option<Vec<u8>>)>,
    now: u64,
}

impl Model {
    fn keep(&mut self, name: usize, file: usize) {
        let data = self.files[file].data.clone();
        self.kept.push((NAMES[name].1.to_owned(), Some(data)));
    }

    /// The bytes of a file are about to change.
    fn change(&mut self, file: usize) {
        let of = &self.files[file];
        if of.until > self.now || !of.is_below {
            return;
        }
        let mut others = self
            .names
            .iter()
            .filter(|(name, at)| **at == file && NAMES[**name].0);
        let name = of.known.or_else(|| others.next().map(|(name, _)| *name));
        if let Some(name) = name {
            self.keep(name, file);
            self.files[file].until = self.now + DURING.as_secs();
        }
    }

    fn links(&self, file: usize) -> usize {
        self.names.values().filter(|at| **at == file).count()
    }

    /// A name is removed, and its file is kept.
    fn take(&mut self, name: usize) {
        let Some(file) = self.names.remove(&name) else {
            return;
        };
        if NAMES[name].0 {
            self.keep(name, file);
            if self.links(file) > 0 {
                self.files[file].until = self.now + DURING.as_secs();
            }
        }
        if self.files[file].known == Some(name) {
            self.files[file].known = None;
        }
    }
}

async fn run(seed: u64, steps: Vec<Step>) {
    let mut world = World::new(seed, 1).await;
    let mut model = Model::default();
    let below = mkdir(&world.fs, ROOT_INO, b"below").await;
    let beside = mkdir(&world.fs, ROOT_INO, b"beside").await;
    world.fs.keep_below(below, Some(DURING)).await.unwrap();
    let mut keeper = attach(&world.fs, 1).await;
    let at = |name: usize| match NAMES[name] {
        (true, text) => (below, text.as_bytes()),
        (false, text) => (beside, text.as_bytes()),
    };
    for (number, step) in steps.into_iter().enumerate() {
        let fs = &world.fs;
        let ino_of = async |name: usize| {
            let (dir, text) = at(name);
            let found = fs.child(&ROOT_USER, dir, text).await.unwrap();
            found.map(|(ino, _)| ino)
        };
        match step {
            Step::Create(name) => {
                let (dir, text) = at(name);
                let set = SetAttr {
                    size_bytes: Some(0),
                    ..SetAttr::default()
                };
                let made = fs.create(&ROOT_USER, dir, text, CreateMode::Unchecked(set));
                made.await.unwrap();
                match model.names.get(&name).copied() {
                    Some(file) => {
                        if !model.files[file].data.is_empty() {
                            model.change(file);
                            model.files[file].data.clear();
                        }
                    }
                    None => {
                        model.names.insert(name, model.files.len());
                        let is_below = NAMES[name].0;
                        model.files.push(File {
                            until: if is_below {
                                model.now + DURING.as_secs()
                            } else {
                                0
                            },
                            known: Some(name),
                            is_below,
                            ..File::default()
                        });
                    }
                }
            }
            Step::Write(name, offset, len, byte) => {
                let Some(ino) = ino_of(name).await else {
                    continue;
                };
                write(fs, ino, offset, &vec![byte; len]).await;
                let file = model.names[&name];
                model.change(file);
                let data = &mut model.files[file].data;
                let end = offset as usize + len;
                data.resize(data.len().max(end), 0);
                data[offset as usize..end].fill(byte);
            }
            Step::Cut(name, len) => {
                let Some(ino) = ino_of(name).await else {
                    continue;
                };
                let set = SetAttr {
                    size_bytes: Some(len),
                    ..SetAttr::default()
                };
                fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
                let file = model.names[&name];
                if model.files[file].data.len() as u64 != len {
                    model.change(file);
                    model.files[file].data.resize(len as usize, 0);
                }
            }
            Step::Remove(name) => {
                let (dir, text) = at(name);
                let removed = fs.remove(&ROOT_USER, dir, text).await;
                assert_eq!(removed.is_ok(), model.names.contains_key(&name));
                if removed.is_ok() && NAMES[name].0 {
                    model.kept.push((NAMES[name].1.to_owned(), None));
                }
                model.take(name);
            }
            Step::Rename(from, to) => {
                let (source, target) = (at(from), at(to));
                let moved = fs.rename(&ROOT_USER, source.0, source.1, target.0, target.1);
                assert_eq!(moved.await.is_ok(), model.names.contains_key(&from));
                let Some(file) = model.names.get(&from).copied() else {
                    continue;
                };
                if model.names.get(&to) == Some(&file) {
                    continue;
                }
                model.take(to);
                model.names.remove(&from);
                model.names.insert(to, file);
                (model.files[file].known, model.files[file].is_below) = (Some(to), NAMES[to].0);
            }
            Step::Link(from, to) => {
                let Some(ino) = ino_of(from).await else {
                    continue;
                };
                let (dir, text) = at(to);
                let linked = fs.link(&ROOT_USER, ino, dir, text).await;
                if linked.is_ok() {
                    model.names.insert(to, model.names[&from]);
                }
            }
            Step::Pass(seconds) => {
                world.clock.advance(Duration::from_secs(seconds));
                model.now += seconds;
            }
            Step::Crash | Step::Restart => {
                drop(keeper);
                let seed = seed + 10 * (number as u64 + 1);
                world = match step {
                    Step::Crash => {
                        world
                            .crash(seed, Crash::ALL[number % Crash::ALL.len()])
                            .await
                    }
                    _ => world.restart(seed).await,
                };
                keeper = attach(&world.fs, 2 + number as u64).await;
                // The changes in progress are not known any more.
                for file in &mut model.files {
                    file.until = 0;
                }
            }
        }
        model.kept.sort();
        assert_eq!(
            kept(&world.fs).await.len(),
            model.kept.len(),
            "step {number}"
        );
    }
    let fs = &world.fs;
    assert!(kept(fs).await == model.kept);
    for (name, file) in &model.names {
        let (dir, text) = at(*name);
        let (ino, _) = fs.child(&ROOT_USER, dir, text).await.unwrap().unwrap();
        assert!(read_all(fs, ino).await == model.files[*file].data, "{name}");
    }
    recount(fs).await;
    drop(keeper);
    world.fs.close().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_what_was_there(seed: u64, steps in steps()) {
        block_on(run(seed >> 8, steps));
    }
}

/// A change ends anywhere, with a crash: the content that it replaces is there as a file or is kept, and complete;
/// and it is not both, as one version.
async fn cut_short(seed: u64, polls: usize, kind: usize, len: u32, mode: Crash) -> bool {
    let world = World::new(seed, 1).await;
    let fs = &world.fs;
    fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
    let keeper = attach(fs, 1).await;
    let before = pattern(len, 1);
    let ino = put(fs, ROOT_INO, b"a", &before).await;
    put(fs, ROOT_INO, b"b", b"other").await;
    world.clock.advance(DURING);
    let mtime = fs.attr(ino).await.unwrap().mtime;
    let change: BoxFuture<()> = {
        let fs = fs.clone();
        Box::pin(async move {
            match kind {
                0 => write(&fs, ino, 0, b"after").await,
                1 => drop(fs.remove(&ROOT_USER, ROOT_INO, b"a").await),
                2 => drop(fs.rename(&ROOT_USER, ROOT_INO, b"b", ROOT_INO, b"a").await),
                _ => {
                    let set = SetAttr {
                        size_bytes: Some(1),
                        ..SetAttr::default()
                    };
                    drop(fs.set_attr(&ROOT_USER, ino, set, None).await);
                }
            }
        })
    };
    let mut change = change;
    let mut is_done = false;
    for _ in 0..polls {
        is_done = poll_fn(|context| Poll::Ready(change.as_mut().poll(context).is_ready())).await;
        if is_done {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop((change, keeper));
    let world = world.crash(seed + 5, mode).await;
    let fs = &world.fs;
    let kept = kept(fs).await;
    let there = fs.child(&ROOT_USER, ROOT_INO, b"a").await.unwrap();
    let (live, is_same) = match there {
        Some((found, _)) => {
            let attr = fs.attr(found).await.unwrap();
            (
                Some(read_all(fs, found).await),
                found == ino && attr.mtime == mtime,
            )
        }
        None => (None, false),
    };
    let is_kept = kept.contains(&("a".to_owned(), Some(before.clone())));
    let has_marker = kept.contains(&("a".to_owned(), None));
    assert!(
        is_kept != is_same,
        "{kind} {polls}: kept {is_kept}, there {is_same}"
    );
    assert!(!is_done || is_kept, "{kind} {polls}");
    assert!(is_kept || live == Some(before), "{kind} {polls}");
    assert_eq!(has_marker, kind == 1 && is_kept, "{kind} {polls}");
    assert_eq!(live.is_none(), has_marker, "{kind} {polls}");
    recount(fs).await;
    fs.close().await.unwrap();
    is_done
}

fn cut_everywhere(bug: Option<Bug>) {
    for kind in 0..4 {
        for (len, mode) in [(100, Crash::LoseUnsynced), (100_000, Crash::KeepUnsynced)] {
            let mut polls = 0;
            let mut is_done = false;
            while !is_done {
                planted::plant(bug);
                block_on(async { is_done = cut_short(80, polls, kind, len, mode).await });
                planted::plant(None);
                polls += 1 + polls / 8;
            }
        }
    }
}

/// Unstable bytes of a removed file are kept, whenever the crash comes.
fn unstable(bug: Option<Bug>) {
    for mode in Crash::ALL {
        planted::plant(bug);
        block_on(async {
            let world = World::new(90, 1).await;
            let fs = &world.fs;
            fs.keep_below(ROOT_INO, Some(DURING)).await.unwrap();
            let keeper = attach(fs, 1).await;
            let ino = put(fs, ROOT_INO, b"a", b"").await;
            let data = Bytes::from(pattern(300_000, 3));
            let write = fs.write(&ROOT_USER, ino, 0, data.clone(), Stability::Unstable);
            write.await.unwrap();
            fs.remove(&ROOT_USER, ROOT_INO, b"a").await.unwrap();
            drop(keeper);
            let world = world.crash(91, mode).await;
            let want = [
                ("a".to_owned(), None),
                ("a".to_owned(), Some(data.to_vec())),
            ];
            assert!(kept(&world.fs).await == want, "{mode:?}");
            world.fs.close().await.unwrap();
        });
        planted::plant(None);
    }
}

#[test]
fn a_crash_leaves_what_was_there_or_what_is_kept() {
    cut_everywhere(None);
    unstable(None);
}

/// Checks that the tests find planted bugs.
#[test]
fn planted_bugs_are_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let is_found = |run: &dyn Fn()| catch_unwind(AssertUnwindSafe(run)).is_err();
    let found = [
        is_found(&|| cut_everywhere(Some(Bug::KeptWithoutBeginning))),
        is_found(&|| unstable(Some(Bug::KeptWithoutItsBytes))),
    ];
    planted::plant(None);
    std::panic::set_hook(hook);
    assert_eq!(found, [true; 2]);
}
