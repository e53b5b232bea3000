//! The file service against a small model of a POSIX file system, over restarts and crashes.
//!
//! One list of steps runs on both; after each step the results are equal, and from time to time the whole trees are.
//! Only stable writes before a crash, so that all of them must be there.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Branch, Ino, Timestamp, View, VolumeId};
use cairn_fs::*;
use cairn_testkit::Crash;
use proptest::prelude::*;

use crate::diff::check_diff;
use crate::policy::{Saying, applied, check_form, refuses_policies};
use crate::revert::check_same;
use crate::world::*;

#[derive(Clone, Debug)]
enum Step {
    Create(u8, u8),
    MakeDir(u8, u8),
    Symlink(u8, u8),
    Write {
        file: u8,
        offset: u32,
        len: u32,
        byte: u8,
        stable: bool,
    },
    Truncate(u8, u32),
    Punch(u8, u32, u32),
    /// Shares bytes of a file over those of another, or over its own.
    ShareOver {
        from: u8,
        into: u8,
        start: u32,
        at: u32,
        len: u32,
    },
    /// Writes if the file has the given bytes, which are its own, or others.
    CompareAndWrite {
        file: u8,
        offset: u32,
        len: u32,
        byte: u8,
        differs: Option<u32>,
    },
    Read {
        file: u8,
        offset: u32,
        len: u32,
    },
    Commit(u8),
    Remove(u8, u8),
    RemoveDir(u8, u8),
    Rename(u8, u8, u8, u8),
    /// A file that gets its name when it is complete.
    Place {
        dir: u8,
        name: u8,
        len: u32,
        byte: u8,
        expected: u8,
    },
    /// A file that never gets a name.
    Forget(u32),
    Link(u8, u8, u8),
    Chmod(u8, u16),
    SetXattr {
        of: u8,
        name: u8,
        len: u32,
        mode: XattrMode,
    },
    RemoveXattr(u8, u8),
    /// Sets the policy of a directory, or removes it.
    Policy(u8, u8),
    /// Converts data below a directory to its policy, concurrently with all later steps.
    Apply(u8),
    CancelApply,
    /// Waits until all data is converted: no data is left in another form.
    Applied,
    Compare,
    Restart,
    Crash(u8),
    Snapshot(u8),
    DropSnapshot(u8),
    /// Makes a new file with some bytes, then bytes of a file in a snapshot, once or twice; of a live file if there
    /// is no such snapshot.
    Share {
        snapshot: u8,
        file: u8,
        dir: u8,
        name: u8,
        before: u8,
        skip: u8,
        but: u8,
        twice: bool,
    },
    /// Rolls the whole volume back to a snapshot, and keeps the former contents or not. In runs with crashes, one
    /// comes after so many steps.
    Restore {
        snapshot: u8,
        keep: bool,
        cut: u8,
    },
    /// Makes a volume that begins as this one is, or as a snapshot shows it.
    Clone(Option<u8>),
    /// The following steps use another of the volumes.
    Switch(u8),
    /// Deletes another volume than the one in use, and perhaps waits until its data is freed.
    DropVolume(u8, bool),
    /// Checks the reported differences of any two snapshots.
    Diff,
    /// Waits for the end of freeing, and counts all space again.
    Count,
    /// Moves the records of all possible segments.
    Rewrite,
}

fn step() -> impl Strategy<Value = Step> {
    let xattr_len = prop_oneof![0..100u32, Just(64 << 10), Just((64 << 10) + 1)];
    let xattr_mode = prop_oneof![
        Just(XattrMode::Any),
        Just(XattrMode::Create),
        Just(XattrMode::Replace)
    ];
    let dir = 0..4u8;
    let name = 0..6u8;
    let offset = prop_oneof![
        0..10_000u32,
        0..3_000_000u32,
        Just(0),
        Just(65_536),
        0..140u32
    ];
    let len = prop_oneof![
        0..5_000u32,
        Just(4096),
        60_000..140_000u32,
        Just(1 << 20),
        0..140u32
    ];
    prop_oneof![
        4 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Create(d, n)),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::MakeDir(d, n)),
        1 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Symlink(d, n)),
        8 => (any::<u8>(), offset.clone(), len.clone(), any::<u8>(), any::<bool>())
            .prop_map(|(file, offset, len, byte, stable)| Step::Write { file, offset, len, byte, stable }),
        3 => (any::<u8>(), offset.clone()).prop_map(|(f, s)| Step::Truncate(f, s)),
        3 => (any::<u8>(), offset.clone(), len.clone()).prop_map(|(f, o, l)| Step::Punch(f, o, l)),
        3 => (any::<[u8; 2]>(), offset.clone(), offset.clone(), len.clone()).prop_map(|([from, into], start, at, len)| {
            Step::ShareOver { from, into, start, at, len }
        }),
        2 => (any::<u8>(), offset.clone(), len.clone(), any::<u8>(), prop::option::of(0..140_000u32))
            .prop_map(|(file, offset, len, byte, differs)| Step::CompareAndWrite { file, offset, len, byte, differs }),
        4 => (any::<u8>(), offset, len.clone()).prop_map(|(file, offset, len)| Step::Read { file, offset, len }),
        3 => any::<u8>().prop_map(Step::Commit),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Remove(d, n)),
        1 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::RemoveDir(d, n)),
        3 => (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        4 => (dir.clone(), name.clone(), len.clone(), any::<u8>(), 0..4u8)
            .prop_map(|(dir, name, len, byte, expected)| Step::Place { dir, name, len, byte, expected }),
        1 => len.clone().prop_map(Step::Forget),
        2 => (any::<u8>(), dir, name).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        1 => (any::<u8>(), 0..0o7777u16).prop_map(|(f, m)| Step::Chmod(f, m)),
        2 => (any::<u8>(), 0..4u8, xattr_len, xattr_mode)
            .prop_map(|(of, name, len, mode)| Step::SetXattr { of, name, len, mode }),
        1 => (any::<u8>(), 0..4u8).prop_map(|(of, name)| Step::RemoveXattr(of, name)),
        3 => (any::<u8>(), 0..8u8).prop_map(|(dir, policy)| Step::Policy(dir, policy)),
        2 => any::<u8>().prop_map(Step::Apply),
        1 => Just(Step::CancelApply),
        2 => Just(Step::Applied),
        2 => Just(Step::Compare),
        1 => Just(Step::Restart),
        1 => any::<u8>().prop_map(Step::Crash),
    ]
}

/// As [`step`], with snapshots, and with moves of data below them.
fn step_with_snapshots() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => step(),
        2 => (0..4u8).prop_map(Step::Snapshot),
        1 => (0..4u8).prop_map(Step::DropSnapshot),
        3 => (0..8u8, any::<u8>(), 0..4u8, 0..6u8, any::<[u8; 3]>(), any::<bool>())
            .prop_map(|(snapshot, file, dir, name, [before, skip, but], twice)| {
                Step::Share { snapshot, file, dir, name, before, skip, but, twice }
            }),
        1 => (0..4u8, any::<bool>(), any::<u8>())
            .prop_map(|(snapshot, keep, cut)| Step::Restore { snapshot, keep, cut }),
        1 => Just(Step::Diff),
        1 => Just(Step::Count),
        1 => Just(Step::Rewrite),
    ]
}

/// As [`step_with_snapshots`], with clones, which are written, cloned and deleted.
fn step_with_clones() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => step_with_snapshots(),
        2 => prop::option::of(0..4u8).prop_map(Step::Clone),
        3 => any::<u8>().prop_map(Step::Switch),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(of, free)| Step::DropVolume(of, free)),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, Ino>),
    Symlink(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Entry {
    node: Node,
    nlink: u32,
    mode: u32,
    parent: Ino,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Maps each inode to its contents. The numbers are those of the file system.
#[derive(Clone)]
struct Model {
    inodes: BTreeMap<Ino, Entry>,
}

impl Model {
    fn new() -> Self {
        let root = Entry {
            node: Node::Dir(BTreeMap::new()),
            nlink: 2,
            mode: 0o755,
            parent: Ino(1),
            xattrs: BTreeMap::new(),
        };
        Self {
            inodes: BTreeMap::from([(Ino(1), root)]),
        }
    }

    /// The contents of a new clone.
    fn in_branch(&self, branch: Branch) -> Self {
        let of = |ino: Ino| ino.in_branch(branch);
        let inodes = self.inodes.iter().map(|(ino, entry)| {
            let node = match &entry.node {
                Node::Dir(entries) => {
                    let entries = entries.iter();
                    Node::Dir(
                        entries
                            .map(|(name, ino)| (name.clone(), of(*ino)))
                            .collect(),
                    )
                }
                node => node.clone(),
            };
            let entry = Entry {
                node,
                parent: of(entry.parent),
                ..entry.clone()
            };
            (of(*ino), entry)
        });
        Self {
            inodes: inodes.collect(),
        }
    }

    fn dirs(&self) -> Vec<Ino> {
        self.of(|node| matches!(node, Node::Dir(_)))
    }

    fn files(&self) -> Vec<Ino> {
        self.of(|node| matches!(node, Node::File(_)))
    }

    /// The parent of each directory.
    fn parents(&self) -> BTreeMap<Ino, Ino> {
        let dirs = self.dirs().into_iter();
        dirs.map(|dir| (dir, self.inodes[&dir].parent)).collect()
    }

    fn of(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Ino> {
        self.inodes
            .iter()
            .filter(|(_, entry)| wanted(&entry.node))
            .map(|(ino, _)| *ino)
            .collect()
    }

    fn entries(&mut self, dir: Ino) -> &mut BTreeMap<Vec<u8>, Ino> {
        match &mut self.inodes.get_mut(&dir).unwrap().node {
            Node::Dir(entries) => entries,
            other => panic!("not a directory: {other:?}"),
        }
    }

    fn data(&mut self, file: Ino) -> &mut Vec<u8> {
        match &mut self.inodes.get_mut(&file).unwrap().node {
            Node::File(data) => data,
            other => panic!("not a file: {other:?}"),
        }
    }

    fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.inodes[&ino].node, Node::Dir(_))
    }

    fn add(&mut self, dir: Ino, name: Vec<u8>, ino: Ino, node: Node, mode: u32) {
        let nlink = if matches!(node, Node::Dir(_)) { 2 } else { 1 };
        if nlink == 2 {
            self.inodes.get_mut(&dir).unwrap().nlink += 1;
        }
        self.entries(dir).insert(name, ino);
        let entry = Entry {
            node,
            nlink,
            mode,
            parent: dir,
            xattrs: BTreeMap::new(),
        };
        assert!(
            self.inodes.insert(ino, entry).is_none(),
            "an inode number was used again"
        );
    }

    fn unlink(&mut self, ino: Ino) {
        let entry = self.inodes.get_mut(&ino).unwrap();
        entry.nlink -= 1;
        if entry.nlink == 0 || matches!(entry.node, Node::Dir(_)) {
            self.inodes.remove(&ino);
        }
    }

    fn set_xattr(
        &mut self,
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), FsError> {
        let entry = self.inodes.get_mut(&ino).unwrap();
        if value.len() > XATTR_VALUE_LEN_BYTES_MAX {
            return Err(FsError::AttributeTooLarge);
        }
        if matches!(entry.node, Node::Symlink(_)) {
            return Err(FsError::NotOwner);
        }
        match (mode, entry.xattrs.contains_key(&name)) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        entry.xattrs.insert(name, value);
        Ok(())
    }

    fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let entry = self.inodes.get_mut(&ino).unwrap();
        if matches!(entry.node, Node::Symlink(_)) {
            return Err(FsError::NotOwner);
        }
        let removed = entry.xattrs.remove(name);
        removed.map(|_| ()).ok_or(FsError::NoAttribute)
    }

    fn is_below(&self, mut ino: Ino, above: Ino) -> bool {
        loop {
            if ino == above {
                return true;
            }
            if ino == Ino(1).in_branch(ino.branch()) {
                return false;
            }
            ino = self.inodes[&ino].parent;
        }
    }

    fn rename(
        &mut self,
        from: Ino,
        from_name: &[u8],
        to: Ino,
        to_name: &[u8],
    ) -> Result<(), FsError> {
        let moved = *self.entries(from).get(from_name).ok_or(FsError::NotFound)?;
        let target = self.entries(to).get(to_name).copied();
        let is_dir = self.is_dir(moved);
        if is_dir && from != to && self.is_below(to, moved) {
            return Err(FsError::Invalid);
        }
        if target == Some(moved) {
            return Ok(());
        }
        if let Some(target) = target {
            match (is_dir, self.is_dir(target)) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !self.entries(target).is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
            self.unlink(target);
        }
        self.entries(from).remove(from_name);
        self.entries(to).insert(to_name.to_vec(), moved);
        if is_dir {
            self.inodes.get_mut(&from).unwrap().nlink -= 1;
            if target.is_none() {
                self.inodes.get_mut(&to).unwrap().nlink += 1;
            }
        }
        self.inodes.get_mut(&moved).unwrap().parent = to;
        Ok(())
    }
}

fn name(number: u8) -> Vec<u8> {
    format!("name{number}").into_bytes()
}

fn xattr_name(number: u8) -> Vec<u8> {
    format!("user.name{number}").into_bytes()
}

fn pick(list: &[Ino], number: u8) -> Ino {
    list[number as usize % list.len()]
}

async fn list_all(fs: &FsView, dir: Ino) -> BTreeMap<Vec<u8>, Ino> {
    let mut entries = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let page = fs.read_dir(&ROOT_USER, dir, cookie, 3, true).await.unwrap();
        for entry in &page.entries {
            cookie = entry.cookie;
            let attr = entry.attr.expect("the entry has attributes");
            assert_eq!(attr.ino, entry.ino);
            if entry.name.as_ref() != b"." && entry.name.as_ref() != b".." {
                assert!(entries.insert(entry.name.to_vec(), entry.ino).is_none());
            }
        }
        if page.eof {
            return entries;
        }
    }
}

/// Compares the volume and each snapshot.
async fn compare_all(fs: &Fs, model: &Model, snapshots: &BTreeMap<u8, Model>) {
    compare(fs, model).await;
    assert_eq!(fs.stats().flush_errors, 0);
    let own = fs.snapshots().into_iter();
    let own = own.filter(|snapshot| snapshot.schedule.is_empty());
    assert_eq!(own.count(), snapshots.len());
    for (number, model) in snapshots {
        let snapshot = fs.snapshot(&name(*number)).expect("is there");
        let shown = fs.in_view(snapshot.view()).expect("can be seen");
        compare(&shown, model).await;
    }
}

/// A volume that the steps do not use now.
struct Other {
    model: Model,
    snapshots: BTreeMap<u8, Model>,
}

/// The volume that the store was made for.
const MAIN: u32 = 0;
/// Volumes of one store.
const VOLUMES_MAX: usize = 5;

/// One of the volumes in the world's store.
fn fs_of(world: &World, volume: u32) -> Fs {
    match volume {
        MAIN => world.fs.clone(),
        volume => world
            .fs
            .open_clone(VolumeId(volume), "clone")
            .expect("a clone"),
    }
}

/// Compares the counts of a clone with a walk over it.
async fn check_counts(world: &World, fs: &Fs, model: &Model) {
    // Bytes that are only in the journal count when they are flushed.
    fs.take_snapshot(b"counted", b"").await.unwrap();
    fs.delete_snapshot(b"counted").await.unwrap();
    let mut want = VolumeCounts::default();
    for ino in model.inodes.keys() {
        want.inodes += 1;
        want.file_bytes += fs.attr(*ino).await.unwrap().used_bytes;
    }
    // Removed files are deleted in the background, a moment later.
    for turn in 0..100_000 {
        if fs.counts() == want {
            break;
        }
        if turn % 1000 == 0 {
            world.clock.advance(Duration::from_millis(50));
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(fs.counts(), want);
}

async fn diff_all(fs: &Fs) {
    if !fs.branch().is_main() {
        return;
    }
    // Snapshots that were taken for clones go with the last clone.
    let mut all = fs.snapshots();
    all.retain(|snapshot| snapshot.schedule.is_empty());
    for (at, earlier) in all.iter().enumerate() {
        for later in &all[at + 1..] {
            check_diff(fs, earlier, later).await;
        }
    }
}

async fn compare(fs: &FsView, model: &Model) {
    for (ino, entry) in &model.inodes {
        let attr = fs.attr(*ino).await.unwrap();
        assert_eq!(attr.nlink, entry.nlink, "links of {ino}");
        assert_eq!(attr.mode, entry.mode, "mode of {ino}");
        let names = fs.xattr_list(&ROOT_USER, *ino).await.unwrap();
        assert!(names.iter().eq(entry.xattrs.keys()), "xattrs of {ino}");
        for (name, value) in &entry.xattrs {
            let got = fs.xattr(&ROOT_USER, *ino, name).await.unwrap();
            assert!(got == *value, "xattr of {ino}");
        }
        match &entry.node {
            Node::File(data) => {
                assert_eq!(attr.size_bytes, data.len() as u64, "size of {ino}");
                assert!(read_all(fs, *ino).await == *data, "data of {ino}");
            }
            Node::Dir(entries) => assert_eq!(list_all(fs, *ino).await, *entries),
            Node::Symlink(target) => {
                let (read, _) = fs.read_link(&ROOT_USER, *ino).await.unwrap();
                assert_eq!(read, target[..]);
            }
        }
    }
}

async fn run(seed: u64, disk_count: usize, steps: Vec<Step>, crashes: bool) {
    let dedupe = [Dedupe::Off, Dedupe::On, Dedupe::Off, Dedupe::Verify];
    let dedupe = dedupe[(seed / 2 % 4) as usize];
    let mut world = World::deduplicating(seed, disk_count, dedupe).await;
    // Few different bytes, so that they come again.
    let pattern = |len: u32, byte: u8| match dedupe {
        Dedupe::Off => pattern(len, byte),
        Dedupe::On | Dedupe::Verify => pattern(len, byte % 3),
    };
    let mut model = Model::new();
    let mut snapshots: BTreeMap<u8, Model> = BTreeMap::new();
    let mut volume = MAIN;
    let mut others: BTreeMap<u32, Other> = BTreeMap::new();
    // The snapshot that each clone began from.
    let mut bases: BTreeMap<u32, (u32, Option<u8>)> = BTreeMap::new();
    let mut saying = Saying::default();
    let who = &ROOT_USER;
    let set = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    for (index, step) in steps.into_iter().enumerate() {
        let fs = fs_of(&world, volume);
        let dirs = model.dirs();
        let files = model.files();
        if volume == MAIN {
            saying.keep(&dirs);
        }
        match step {
            Step::Create(dir, number) => {
                let (dir, name) = (pick(&dirs, dir), name(number));
                let got = fs
                    .create(who, dir, &name, CreateMode::Guarded(set(0o640)))
                    .await;
                match model.entries(dir).get(&name) {
                    Some(_) => assert_eq!(got.unwrap_err(), FsError::Exists),
                    None => model.add(
                        dir,
                        name,
                        got.unwrap().attr.ino,
                        Node::File(Vec::new()),
                        0o640,
                    ),
                }
            }
            Step::MakeDir(dir, number) => {
                let (dir, name) = (pick(&dirs, dir), name(number));
                let got = fs.make_dir(who, dir, &name, set(0o750)).await;
                match model.entries(dir).get(&name) {
                    Some(_) => assert_eq!(got.unwrap_err(), FsError::Exists),
                    None => model.add(
                        dir,
                        name,
                        got.unwrap().attr.ino,
                        Node::Dir(BTreeMap::new()),
                        0o750,
                    ),
                }
            }
            Step::Symlink(dir, number) => {
                let (dir, name) = (pick(&dirs, dir), name(number));
                let got = fs
                    .make_symlink(who, dir, &name, b"some/where", set(0o777))
                    .await;
                match model.entries(dir).get(&name) {
                    Some(_) => assert_eq!(got.unwrap_err(), FsError::Exists),
                    None => {
                        let node = Node::Symlink(b"some/where".to_vec());
                        model.add(dir, name, got.unwrap().attr.ino, node, 0o777);
                    }
                }
            }
            Step::Write {
                file,
                offset,
                len,
                byte,
                stable,
            } if !files.is_empty() => {
                let ino = pick(&files, file);
                let bytes = pattern(len, byte);
                let stability = if stable || crashes {
                    Stability::Stable
                } else {
                    Stability::Unstable
                };
                let data = Bytes::from(bytes.clone());
                let written = fs
                    .write(who, ino, u64::from(offset), data, stability)
                    .await
                    .unwrap();
                assert_eq!(written.count_bytes, len);
                let model_data = model.data(ino);
                let end = offset as usize + bytes.len();
                if len > 0 {
                    if model_data.len() < end {
                        model_data.resize(end, 0);
                    }
                    model_data[offset as usize..end].copy_from_slice(&bytes);
                }
                assert_eq!(written.wcc.after.size_bytes, model_data.len() as u64);
            }
            Step::Truncate(file, size) if !files.is_empty() => {
                let ino = pick(&files, file);
                let cut = SetAttr {
                    size_bytes: Some(u64::from(size)),
                    ..SetAttr::default()
                };
                fs.set_attr(who, ino, cut, None).await.unwrap();
                model.data(ino).resize(size as usize, 0);
            }
            Step::Punch(file, offset, len) if !files.is_empty() => {
                let ino = pick(&files, file);
                let range = u64::from(offset)..u64::from(offset) + u64::from(len);
                fs.punch(who, ino, range.clone()).await.unwrap();
                let data = model.data(ino);
                let start = (offset as usize).min(data.len());
                let end = (start + len as usize).min(data.len());
                data[start..end].fill(0);
                // A hole is reported as one.
                let told = fs.allocation(who, ino, range.clone()).await.unwrap();
                assert!(told.iter().all(|part| !part.is_allocated), "step {index}");
                assert_eq!(
                    told.last().map(|part| part.range.end),
                    Some(range.end).filter(|_| len > 0)
                );
            }
            Step::ShareOver {
                from,
                into,
                start,
                at,
                len,
            } if !files.is_empty() => {
                let (from, into) = (pick(&files, from), pick(&files, into));
                let source = model.data(from).clone();
                let there = model.data(into).len();
                // Mostly a matching size; sometimes a little more.
                let start = start as usize % (source.len() + 1);
                let at = at as usize % (there + 1);
                let fits = (source.len() - start).min(there - at);
                let len = match len % 8 {
                    0 => fits + 1,
                    _ => fits.min(len as usize),
                };
                let range = start as u64..(start + len) as u64;
                let shared = fs.share_over(who, from, range, into, at as u64).await;
                let overlaps = from == into && start < at + len && at < start + len;
                if len > fits || (overlaps && len > 0) {
                    assert_eq!(shared, Err(FsError::Invalid), "step {index}");
                } else {
                    assert_eq!(shared, Ok(()), "step {index}");
                    let bytes = &source[start..start + len];
                    model.data(into)[at..at + len].copy_from_slice(bytes);
                }
            }
            Step::CompareAndWrite {
                file,
                offset,
                len,
                byte,
                differs,
            } if !files.is_empty() => {
                let ino = pick(&files, file);
                let data = model.data(ino);
                let start = (offset as usize).min(data.len());
                let end = (start + len as usize).min(data.len());
                let mut expected = data[start..end].to_vec();
                let differs = differs
                    .map(|at| at as usize)
                    .filter(|at| *at < expected.len());
                if let Some(at) = differs {
                    expected[at] ^= 1;
                }
                let new = pattern(expected.len() as u32, byte);
                let (offset, bytes) = (start as u64, Bytes::from(new.clone()));
                let compared =
                    fs.compare_and_write(who, ino, offset, &expected, bytes, Stability::Stable);
                match (compared.await.unwrap(), differs) {
                    (Compared::Differs(got), Some(want)) => assert_eq!(got, want as u64),
                    (Compared::Written(_), None) => {
                        model.data(ino)[start..end].copy_from_slice(&new);
                    }
                    (got, want) => panic!("step {index}: {got:?}, want {want:?}"),
                }
            }
            Step::Read { file, offset, len } if !files.is_empty() => {
                let ino = pick(&files, file);
                let got = fs.read(who, ino, u64::from(offset), len).await.unwrap();
                let data = model.data(ino);
                let start = (offset as usize).min(data.len());
                let end = (start + len as usize).min(data.len());
                assert_eq!(got.parts.concat(), data[start..end], "step {index}");
                assert_eq!(got.eof, end == data.len());
            }
            Step::Commit(file) if !files.is_empty() => {
                fs.commit(who, pick(&files, file), 0, 0).await.unwrap();
            }
            Step::Remove(dir, number) => {
                let (dir, name) = (pick(&dirs, dir), name(number));
                let got = fs.remove(who, dir, &name).await;
                match model.entries(dir).get(&name).copied() {
                    None => assert_eq!(got.unwrap_err(), FsError::NotFound),
                    Some(ino) if model.is_dir(ino) => {
                        assert_eq!(got.unwrap_err(), FsError::IsDirectory)
                    }
                    Some(ino) => {
                        got.unwrap();
                        model.entries(dir).remove(&name);
                        model.unlink(ino);
                        if !model.inodes.contains_key(&ino) {
                            assert_eq!(fs.attr(ino).await.unwrap_err(), FsError::Stale);
                        }
                    }
                }
            }
            Step::RemoveDir(dir, number) => {
                let (dir, name) = (pick(&dirs, dir), name(number));
                let got = fs.remove_dir(who, dir, &name).await;
                match model.entries(dir).get(&name).copied() {
                    None => assert_eq!(got.unwrap_err(), FsError::NotFound),
                    Some(ino) if !model.is_dir(ino) => {
                        assert_eq!(got.unwrap_err(), FsError::NotDirectory)
                    }
                    Some(ino) if !model.entries(ino).is_empty() => {
                        assert_eq!(got.unwrap_err(), FsError::NotEmpty)
                    }
                    Some(ino) => {
                        got.unwrap();
                        model.entries(dir).remove(&name);
                        model.inodes.get_mut(&dir).unwrap().nlink -= 1;
                        model.unlink(ino);
                    }
                }
            }
            Step::Rename(a, b, c, d) => {
                let (from, to) = (pick(&dirs, a), pick(&dirs, c));
                let got = fs.rename(who, from, &name(b), to, &name(d)).await;
                let want = model.rename(from, &name(b), to, &name(d));
                assert_eq!(got.map(|_| ()), want, "step {index}");
            }
            Step::Share {
                snapshot,
                file,
                dir,
                name: number,
                before,
                skip,
                but,
                twice,
            } => {
                let (dir, new) = (pick(&dirs, dir), name(number));
                let of_snapshot = snapshots.get(&snapshot);
                let mut shown_model = of_snapshot.unwrap_or(&model).clone();
                let files = shown_model.files();
                let Some(source) = files.get(usize::from(file) % files.len().max(1)) else {
                    continue;
                };
                let all = shown_model.data(*source).clone();
                let there = model.entries(dir).get(&new).copied();
                let start = all.len() * usize::from(skip % 4) / 8;
                let end = all.len() - (all.len() - start) * usize::from(but % 4) / 8;
                let shown = match of_snapshot {
                    Some(_) => {
                        let shown = fs.snapshot(&name(snapshot)).expect("is there");
                        fs.in_view(shown.view()).expect("can be seen")
                    }
                    None => fs.in_view(View::Live).expect("can be seen"),
                };
                let mut file = fs.make_unnamed(who).unwrap();
                let mut bytes = pattern(u32::from(before % 3) * 3000, before);
                file.append(Bytes::copy_from_slice(&bytes)).await.unwrap();
                let range = start as u64..end as u64;
                for _ in 0..if twice { 2 } else { 1 } {
                    let shared = file.share(&shown, *source, range.clone());
                    shared.await.unwrap();
                    bytes.extend_from_slice(&all[start..end]);
                }
                let too_much = 0..all.len() as u64 + 1;
                let got = file.share(&shown, *source, too_much).await;
                assert_eq!(got, Err(FsError::Invalid));
                let placing = Placing {
                    dir,
                    name: &new,
                    expected: Expected::Anything,
                    set: set(0o644),
                    xattrs: &[],
                };
                let got = file.place(who, &placing).await;
                if there.is_some_and(|there| model.is_dir(there)) {
                    assert_eq!(got.unwrap_err(), FsError::IsDirectory);
                    continue;
                }
                let attr = got.unwrap();
                assert_eq!(attr.size_bytes, bytes.len() as u64);
                if let Some(there) = there {
                    model.entries(dir).remove(&new);
                    model.unlink(there);
                }
                model.add(dir, new, attr.ino, Node::File(bytes), 0o644);
            }
            Step::Place {
                dir,
                name: number,
                len,
                byte,
                expected,
            } => {
                let (dir, name) = (pick(&dirs, dir), name(number));
                let there = model.entries(dir).get(&name).copied();
                let expected = match (expected, there) {
                    (1, _) => Expected::Nothing,
                    (2, Some(ino)) => Expected::This {
                        ino,
                        ctime: fs.attr(ino).await.unwrap().ctime,
                    },
                    (3, Some(ino)) => Expected::This {
                        ino,
                        ctime: Timestamp::new(0, 7),
                    },
                    _ => Expected::Anything,
                };
                let (bytes, value) = (pattern(len, byte), pattern(100, byte));
                let mut file = fs.make_unnamed(who).unwrap();
                // In two pieces, if it is large.
                let mut data = Bytes::from(bytes.clone());
                let rest = data.split_off(data.len().min(700_000));
                file.append(data).await.unwrap();
                file.append(rest).await.unwrap();
                let placing = Placing {
                    dir,
                    name: &name,
                    expected,
                    set: set(0o604),
                    xattrs: &[(b"user.name1", Bytes::from(value.clone()))],
                };
                let got = file.place(who, &placing).await;
                let want = match (expected, there) {
                    (Expected::Nothing, Some(_)) => Err(FsError::Exists),
                    (Expected::This { ctime, .. }, _) if ctime == Timestamp::new(0, 7) => {
                        Err(FsError::NotSync)
                    }
                    (_, Some(ino)) if model.is_dir(ino) => Err(FsError::IsDirectory),
                    _ => Ok(()),
                };
                assert_eq!(got.map(|_| ()), want, "step {index}");
                if want.is_ok() {
                    if let Some(there) = there {
                        model.unlink(there);
                    }
                    let ino = file.ino();
                    model.add(dir, name, ino, Node::File(bytes), 0o604);
                    let made = model.set_xattr(ino, xattr_name(1), value, XattrMode::Any);
                    made.unwrap();
                }
            }
            Step::Forget(len) => {
                let mut file = fs.make_unnamed(who).unwrap();
                file.append(pattern(len, 1).into()).await.unwrap();
                let ino = file.ino();
                drop(file);
                assert_eq!(fs.attr(ino).await.unwrap_err(), FsError::Stale);
            }
            Step::Link(file, dir, number) if !files.is_empty() => {
                let (ino, dir, name) = (pick(&files, file), pick(&dirs, dir), name(number));
                let got = fs.link(who, ino, dir, &name).await;
                match model.entries(dir).entry(name) {
                    Slot::Occupied(_) => assert_eq!(got.unwrap_err(), FsError::Exists),
                    Slot::Vacant(slot) => {
                        got.unwrap();
                        slot.insert(ino);
                        model.inodes.get_mut(&ino).unwrap().nlink += 1;
                    }
                }
            }
            Step::Chmod(file, mode) if !files.is_empty() => {
                let ino = pick(&files, file);
                fs.set_attr(who, ino, set(u32::from(mode)), None)
                    .await
                    .unwrap();
                model.inodes.get_mut(&ino).unwrap().mode = u32::from(mode);
            }
            Step::SetXattr {
                of,
                name,
                len,
                mode,
            } => {
                let ino = pick(&model.of(|_| true), of);
                let (name, value) = (xattr_name(name), pattern(len, of));
                let got = fs.set_xattr(who, ino, &name, &value, mode).await;
                let want = model.set_xattr(ino, name, value, mode);
                assert_eq!(got.map(|_| ()), want, "step {index}");
            }
            Step::RemoveXattr(of, name) => {
                let ino = pick(&model.of(|_| true), of);
                let name = xattr_name(name);
                let got = fs.remove_xattr(who, ino, &name).await;
                let want = model.remove_xattr(ino, &name);
                assert_eq!(got.map(|_| ()), want, "step {index}");
            }
            Step::Snapshot(number) => {
                if !crashes {
                    // Bytes that clients may lose are in no comparison.
                    for ino in &files {
                        fs.commit(who, *ino, 0, 0).await.unwrap();
                    }
                }
                let taken = fs.take_snapshot(&name(number), b"").await;
                match snapshots.entry(number) {
                    Slot::Occupied(_) => {
                        assert_eq!(taken.unwrap_err(), SnapshotError::Exists.into())
                    }
                    Slot::Vacant(slot) => {
                        let taken = taken.unwrap();
                        assert_eq!(taken.name, name(number));
                        slot.insert(model.clone());
                    }
                }
            }
            Step::DropSnapshot(number) => {
                let before = fs.snapshot(&name(number));
                let mut deleted = fs.delete_snapshot(&name(number)).await;
                if deleted == Err(SnapshotError::HasClones.into()) {
                    // Perhaps of a volume that is deleted and not freed.
                    fs.free_snapshots().await.unwrap();
                    deleted = fs.delete_snapshot(&name(number)).await;
                }
                let clones = clones_of(&bases, &others, volume, (volume, Some(number)));
                if !clones.is_empty() {
                    assert_eq!(deleted, Err(SnapshotError::HasClones.into()));
                    let mut told = fs.snapshot(&name(number)).expect("is there").clones;
                    told.sort();
                    assert_eq!(told, clones, "step {index}");
                    continue;
                }
                match snapshots.remove(&number) {
                    None => assert_eq!(deleted.unwrap_err(), SnapshotError::NotFound.into()),
                    Some(_) => {
                        deleted.unwrap();
                        let gone = fs.in_view(before.unwrap().view());
                        assert_eq!(gone.map(drop).unwrap_err(), FsError::Stale);
                    }
                }
            }
            // A clone has no policies of its own.
            Step::Policy(dir, policy) if volume != MAIN => {
                refuses_policies(&fs, pick(&dirs, dir), policy).await;
            }
            Step::Apply(_) | Step::CancelApply | Step::Applied if volume != MAIN => {}
            Step::Policy(dir, policy) => {
                saying.set(&fs, pick(&dirs, dir), policy).await;
            }
            Step::Apply(dir) => match fs.apply_policies(pick(&dirs, dir)).await {
                // With little to do it has ended by then.
                Ok(begun) => assert_ne!(begun.record.state, ApplyState::Cancelled),
                Err(error) => assert_eq!(error, ApplyFailure::Running),
            },
            Step::CancelApply => match fs.cancel_apply().await {
                Ok(ended) => assert_eq!(ended.record.state, ApplyState::Cancelled),
                Err(error) => assert_eq!(error, ApplyFailure::NotRunning),
            },
            Step::Applied => {
                applied(&world).await;
                for ino in &files {
                    fs.commit(who, *ino, 0, 0).await.unwrap();
                }
                fs.apply_policies(ROOT_INO).await.unwrap();
                if applied(&world).await.record.left == 0 {
                    check_form(&fs, &model.parents(), &saying);
                }
                recount(&fs).await;
            }
            Step::Count => {
                fs.free_snapshots().await.unwrap();
                recount(&fs).await;
            }
            Step::Clone(number) if others.len() + 1 < VOLUMES_MAX => {
                if !crashes {
                    for ino in &files {
                        fs.commit(who, *ino, 0, 0).await.unwrap();
                    }
                }
                let id = 100 + index as u32;
                let of = number.map(name);
                let made = fs.clone_volume(of.as_deref(), VolumeId(id)).await;
                let shown = match number {
                    None => &model,
                    Some(number) => match snapshots.get(&number) {
                        Some(shown) => shown,
                        None => {
                            assert_eq!(made.unwrap_err(), SnapshotError::NotFound.into());
                            continue;
                        }
                    },
                };
                let made = made.unwrap();
                bases.insert(id, (volume, number));
                let other = Other {
                    model: shown.in_branch(made.branch),
                    snapshots: BTreeMap::new(),
                };
                compare_all(&fs_of(&world, id), &other.model, &other.snapshots).await;
                others.insert(id, other);
            }
            Step::Switch(to) if !others.is_empty() => {
                let to = *others.keys().nth(usize::from(to) % others.len()).unwrap();
                let other = others.remove(&to).unwrap();
                let before = Other {
                    model: std::mem::replace(&mut model, other.model),
                    snapshots: std::mem::replace(&mut snapshots, other.snapshots),
                };
                others.insert(volume, before);
                volume = to;
            }
            Step::DropVolume(of, is_freed) if !others.is_empty() => {
                let at = usize::from(of) % others.len();
                let id = *others.keys().nth(at).expect("one of them");
                drop_volume(&world, id).await;
                others.remove(&id);
                if is_freed {
                    fs.free_snapshots().await.unwrap();
                    recount(&fs).await;
                    assert_eq!(fs.volumes_freeing(), 0);
                }
            }
            Step::Rewrite => {
                fs.free_snapshots().await.unwrap();
                let ids: Vec<_> = fs.meta().segments().into_iter().map(|(id, _)| id).collect();
                let pace = cairn_segment::Pace::new(world.env.clock.clone(), 0);
                fs.rewrite_segments(&ids, &pace).await.unwrap();
                recount(&fs).await;
            }
            Step::Restore {
                snapshot,
                keep,
                cut,
            } => {
                let Some(shown) = snapshots.get(&snapshot).cloned() else {
                    continue;
                };
                fs.free_snapshots().await.unwrap();
                if fs.has_clones() {
                    continue;
                }
                let restored = fs.snapshot(&name(snapshot)).expect("is there");
                drop(fs);
                // No step takes or deletes one of that name.
                let number = 10 + index as u8;
                let kept = keep.then(|| String::from_utf8(name(number)).unwrap());
                let mode = Crash::ALL[usize::from(cut) % Crash::ALL.len()];
                let cuts = [(usize::from(cut), mode)];
                let cuts = if crashes { &cuts[..] } else { &[] };
                let seed = seed + index as u64;
                let generation = restored.generation;
                world = world.restore(seed, generation, kept.as_deref(), cuts).await;
                let before = std::mem::replace(&mut model, shown);
                if keep {
                    snapshots.insert(number, before);
                }
                check_same(&world.fs, generation);
                compare_all(&world.fs, &model, &snapshots).await;
            }
            Step::Diff => diff_all(&fs).await,
            Step::Compare => {
                compare_all(&fs, &model, &snapshots).await;
                if volume == MAIN {
                    saying.check(&fs, &model.parents()).await;
                }
            }
            Step::Restart => {
                drop(fs);
                world = world.restart(seed + index as u64).await;
                compare_all(&fs_of(&world, volume), &model, &snapshots).await;
                if volume == MAIN {
                    saying.check(&world.fs, &model.parents()).await;
                }
            }
            Step::Crash(mode) if crashes => {
                drop(fs);
                let mode = Crash::ALL[mode as usize % Crash::ALL.len()];
                world = world.crash(seed + index as u64, mode).await;
                compare_all(&fs_of(&world, volume), &model, &snapshots).await;
                if volume == MAIN {
                    saying.check(&world.fs, &model.parents()).await;
                }
            }
            _ => {}
        }
    }
    others.insert(volume, Other { model, snapshots });
    for (volume, other) in &others {
        let fs = fs_of(&world, *volume);
        compare_all(&fs, &other.model, &other.snapshots).await;
        diff_all(&fs).await;
        for ino in other.model.files() {
            fs.commit(who, ino, 0, 0).await.unwrap();
        }
        check_counts(&world, &fs, &other.model).await;
        for number in other.snapshots.keys().step_by(2) {
            let base = (*volume, Some(*number));
            if clones_of(&bases, &others, *volume, base).is_empty() {
                let deleted = fs.delete_snapshot(&name(*number)).await;
                let may_fail = deleted == Err(SnapshotError::HasClones.into());
                assert!(deleted.is_ok() || may_fail, "{deleted:?}");
            }
        }
    }
    world.fs.free_snapshots().await.unwrap();
    recount(&world.fs).await;
    // In any order; in half of all cases, one of them is the store's own volume.
    let mut left: Vec<u32> = others.into_keys().collect();
    left.retain(|id| *id != MAIN || seed.is_multiple_of(2));
    while !left.is_empty() {
        let id = left.swap_remove((seed % 7919) as usize % left.len());
        drop_volume(&world, id).await;
        if id.is_multiple_of(2) {
            world.fs.free_snapshots().await.unwrap();
            recount(&world.fs).await;
        }
    }
    world.fs.free_snapshots().await.unwrap();
    recount(&world.fs).await;
    assert_eq!(world.fs.volumes_freeing(), 0);
    check_nothing_is_left(&world.fs);
    world.fs.close().await.unwrap();
}

/// Deletes a volume of the world's store; nobody can open it after that.
async fn drop_volume(world: &World, id: u32) {
    let fs = fs_of(world, id);
    match id {
        MAIN => world.fs.delete_own_volume().await.unwrap(),
        id => world.fs.delete_clone(VolumeId(id)).await.unwrap(),
    }
    assert!(fs.is_deleted());
    assert_eq!(fs.attr(fs.root()).await.unwrap_err(), FsError::Stale);
    let made = fs.create(
        &ROOT_USER,
        fs.root(),
        b"late",
        CreateMode::Exclusive([0; 8]),
    );
    assert_eq!(made.await.unwrap_err(), FsError::Stale);
    let taken = fs.take_snapshot(b"late", b"").await;
    assert_eq!(taken.unwrap_err(), FsError::Stale.into());
}

/// The volumes that began from a snapshot, directly or through a deleted volume. `bases`: the base of each clone;
/// `others` and `volume` are the existing ones.
fn clones_of(
    bases: &BTreeMap<u32, (u32, Option<u8>)>,
    others: &BTreeMap<u32, Other>,
    volume: u32,
    base: (u32, Option<u8>),
) -> Vec<VolumeId> {
    let mut found = Vec::new();
    for (id, _) in bases.iter().filter(|(_, from)| **from == base) {
        if *id == volume || others.contains_key(id) {
            found.push(VolumeId(*id));
            continue;
        }
        let of_it = bases.values().filter(|(from, _)| from == id);
        let of_it: BTreeSet<(u32, Option<u8>)> = of_it.copied().collect();
        for base in of_it {
            found.extend(clones_of(bases, others, volume, base));
        }
    }
    found.sort();
    found
}

/// A journal entry whose bytes were overwritten in memory came back at the restart: the flush that put the newer
/// bytes into a segment did not fold it.
#[test]
fn overwritten_journal_entry_stays_overwritten() {
    let write = |len, byte, stable| Step::Write {
        file: 0,
        offset: 0,
        len,
        byte,
        stable,
    };
    let steps = vec![
        Step::Create(0, 0),
        write(3552, 0, true),
        write(65_537, 1, false),
        Step::Restart,
    ];
    block_on(run(0, 1, steps, false));
}

/// Names, attributes and data, small (journal) and large (segments), with any two of six disks gone.
#[test]
fn any_two_of_six_disks_may_go() {
    block_on(async {
        let world = World::new(11, 6).await;
        let fs = world.fs.clone();
        let dir = fs
            .make_dir(&ROOT_USER, ROOT_INO, b"dir", SetAttr::default())
            .await
            .unwrap();
        let mut files = Vec::new();
        for (number, len) in [0u32, 1, 4096, 60_000, 200_000, 1 << 20]
            .into_iter()
            .enumerate()
        {
            let name = name(number as u8);
            let made = fs
                .create(
                    &ROOT_USER,
                    dir.attr.ino,
                    &name,
                    CreateMode::Guarded(SetAttr::default()),
                )
                .await
                .unwrap();
            let data = pattern(len, number as u8);
            fs.write(
                &ROOT_USER,
                made.attr.ino,
                0,
                Bytes::from(data.clone()),
                Stability::Stable,
            )
            .await
            .unwrap();
            files.push((name, data));
        }
        drop(fs);
        for first in 0..6 {
            for second in first + 1..6 {
                let disks = world
                    .disks
                    .iter()
                    .map(|disk| disk.crash(Crash::LoseUnsynced, 1));
                let left: Vec<_> = disks
                    .enumerate()
                    .filter(|(index, _)| *index != first && *index != second)
                    .collect();
                let world = World::open_degraded(12, left).await;
                let (dir, _) = world.fs.lookup(&ROOT_USER, ROOT_INO, b"dir").await.unwrap();
                for (name, data) in &files {
                    let (attr, _) = world.fs.lookup(&ROOT_USER, dir.ino, name).await.unwrap();
                    assert!(
                        read_all(&world.fs, attr.ino).await == *data,
                        "without {first} and {second}"
                    );
                }
                // It also takes new data.
                world
                    .fs
                    .create(
                        &ROOT_USER,
                        ROOT_INO,
                        b"new",
                        CreateMode::Guarded(SetAttr::default()),
                    )
                    .await
                    .unwrap();
                world.fs.close().await.unwrap();
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        block_on(run(seed >> 1, 1, steps, false));
    }

    #[test]
    fn behaves_as_the_model_on_six_disks(seed: u64, steps in prop::collection::vec(step(), 1..40)) {
        block_on(run(seed >> 1, 6, steps, false));
    }

    #[test]
    fn snapshots_behave_as_copies(seed: u64, steps in prop::collection::vec(step_with_snapshots(), 1..80)) {
        block_on(run(seed >> 1, 1, steps, false));
    }

    #[test]
    fn snapshots_survive_crashes(seed: u64, steps in prop::collection::vec(step_with_snapshots(), 1..60)) {
        block_on(run(seed >> 1, 4, steps, true));
    }

    #[test]
    fn clones_behave_as_copies(seed: u64, steps in prop::collection::vec(step_with_clones(), 1..100)) {
        block_on(run(seed >> 1, 1, steps, false));
    }

    #[test]
    fn clones_survive_crashes(seed: u64, steps in prop::collection::vec(step_with_clones(), 1..80)) {
        block_on(run(seed >> 1, 4, steps, true));
    }

    #[test]
    fn what_was_stable_survives_crashes(seed: u64, steps in prop::collection::vec(step(), 1..40)) {
        block_on(run(seed >> 1, 4, steps, true));
    }
}
