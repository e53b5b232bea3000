//! Policies of directories: how data below them is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{Bug, plant};
use cairn_fs::*;
use cairn_meta::volume_settings::{
    AccessPattern as Pattern, Compression, Dedupe as DedupeWord, Protection,
};
use cairn_meta::{ExtentPlace, ExtentRecord, InodeKind, Key, decode_extent};
use cairn_segment::Codec;
use cairn_testkit::{Crash, Rng};

use crate::world::*;

/// A policy by number; 0 is empty.
pub fn policy(number: u8) -> PolicyRecord {
    let nothing = PolicyRecord::default();
    match number {
        0 => nothing,
        1 => PolicyRecord {
            compression: Some(Compression::Zstd(1)),
            ..nothing
        },
        2 => PolicyRecord {
            compression: Some(Compression::None),
            ..nothing
        },
        3 => PolicyRecord {
            dedupe: Some(DedupeWord::On),
            ..nothing
        },
        4 => PolicyRecord {
            dedupe: Some(DedupeWord::Verify),
            access_pattern: Some(Pattern::Random),
            ..nothing
        },
        5 => PolicyRecord {
            compression: Some(Compression::Auto),
            dedupe: Some(DedupeWord::Off),
            access_pattern: Some(Pattern::Streaming),
            media: None,
            protection: Some(Protection::Plus(1)),
        },
        6 => PolicyRecord {
            protection: Some(Protection::Mirror(2)),
            ..nothing
        },
        _ => PolicyRecord {
            dedupe: Some(DedupeWord::Off),
            ..nothing
        },
    }
}

/// The policies of directories, as a test knows them.
#[derive(Default)]
pub struct Saying(BTreeMap<Ino, PolicyRecord>);

impl Saying {
    /// Policies of removed directories are removed with them.
    pub fn keep(&mut self, dirs: &[Ino]) {
        self.0.retain(|dir, _| dirs.contains(dir));
    }

    pub async fn set(&mut self, fs: &Fs, dir: Ino, number: u8) {
        let policy = policy(number);
        if policy.is_empty() {
            let cleared = fs.clear_dir_policy(dir).await;
            let was_there = self.0.remove(&dir).is_some();
            assert_eq!(cleared.is_ok(), was_there, "{cleared:?}");
            return;
        }
        match fs.set_dir_policy(dir, policy).await {
            Ok(view) => {
                assert_eq!(view.own, policy);
                self.0.insert(dir, policy);
            }
            Err(error) => assert_eq!((dir, error), (ROOT_INO, PolicyFailure::Root)),
        }
    }

    /// The policy that applies in a directory.
    fn within(&self, dir: Ino, parents: &BTreeMap<Ino, Ino>) -> PolicyRecord {
        let own = self.0.get(&dir).copied().unwrap_or_default();
        match parents.get(&dir) {
            Some(parent) if *parent != dir => own.within(&self.within(*parent, parents)),
            _ => own,
        }
    }

    /// Checks that each directory has its known policy, and inherits from those above it.
    pub async fn check(&mut self, fs: &Fs, parents: &BTreeMap<Ino, Ino>) {
        self.0.retain(|dir, _| parents.contains_key(dir));
        let listed = fs.dir_policies().await.unwrap();
        let listed: BTreeMap<Ino, PolicyRecord> =
            listed.iter().map(|view| (view.dir, view.own)).collect();
        assert_eq!(listed, self.0);
        for dir in parents.keys() {
            let said = fs.dir_policy(*dir).await.unwrap().said;
            assert_eq!(said, self.within(*dir, parents), "{dir}");
        }
    }
}

/// A clone follows the settings of the volume.
pub async fn refuses_policies(fs: &Fs, dir: Ino, number: u8) {
    let view = fs.dir_policy(dir).await.unwrap();
    assert!(view.own.is_empty() && view.said.is_empty());
    assert!(fs.dir_policies().await.unwrap().is_empty());
    let set = fs.set_dir_policy(dir, policy(number)).await;
    assert_eq!(set, Err(PolicyFailure::Clone));
    assert_eq!(fs.clear_dir_policy(dir).await, Err(PolicyFailure::Clone));
    assert_eq!(fs.apply_policies(dir).await, Err(ApplyFailure::Clone));
}

/// Waits until no data is being converted.
pub async fn applied(world: &World) -> ApplyView {
    for _ in 0..10_000 {
        match world.fs.applied_policies() {
            Some(view) if view.record.state == ApplyState::Running => world.run_for(1).await,
            Some(view) => return view,
            None => {
                return ApplyView {
                    record: ApplyRecord::default(),
                    waits_for: None,
                };
            }
        }
    }
    panic!("it does not end: {:?}", world.fs.applied_policies());
}

fn extents_of(fs: &Fs) -> Vec<(Ino, u64, ExtentRecord)> {
    let mut extents = Vec::new();
    let (from, to) = Key::all_extents();
    let scanned = fs.meta().live().scan_with(&from, &to, |key, value, _| {
        extents.push(decode_extent(key, value).unwrap());
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    extents
}

/// The protection that the segment of an extent was made for.
fn protection_of(fs: &Fs, extent: &ExtentRecord) -> Option<Protection> {
    match &extent.place {
        ExtentPlace::Record { record, .. } => {
            let segment = fs.meta().segment(record.location.segment);
            segment.expect("the segment of an extent").protection
        }
        ExtentPlace::Inline(_) => None,
    }
}

fn codec_of(extent: &ExtentRecord) -> Option<Codec> {
    match &extent.place {
        ExtentPlace::Record { record, .. } => Some(record.codec),
        ExtentPlace::Inline(_) => None,
    }
}

/// Checks that no extent of a file with a name differs from the form that its policy gives.
pub fn check_form(fs: &Fs, parents: &BTreeMap<Ino, Ino>, saying: &Saying) {
    for (ino, end, extent) in extents_of(fs) {
        if !ino.branch().is_main() {
            continue;
        }
        let inode = stored(fs, ino);
        if inode.nlink == 0 {
            continue;
        }
        let said = saying.within(inode.parent, parents);
        // Inline bytes have no form.
        let Some(codec) = codec_of(&extent) else {
            continue;
        };
        assert_eq!(
            protection_of(fs, &extent),
            said.protection,
            "{ino} up to {end}"
        );
        let codecs: &[Codec] = match said.compression {
            Some(Compression::None) => &[Codec::Raw],
            Some(Compression::Lz4) | None => &[Codec::Raw, Codec::Lz4],
            Some(Compression::Zstd(_)) => &[Codec::Raw, Codec::Zstd],
            Some(Compression::Auto) => &[Codec::Raw, Codec::Lz4, Codec::Zstd],
        };
        assert!(
            codecs.contains(&codec),
            "{ino} up to {end}: {codec:?}, {said:?}"
        );
        let is_shared = match said.dedupe {
            None => fs.policy().dedupe != Dedupe::Off,
            Some(dedupe) => dedupe != DedupeWord::Off,
        };
        let bytes_max = match said.access_pattern {
            Some(Pattern::Random) => 16 << 10,
            Some(Pattern::Streaming) => 1 << 20,
            Some(Pattern::Concurrent) | None if is_shared => 128 << 10,
            Some(Pattern::Concurrent) | None => 1 << 20,
        };
        let last = (end - 1) / bytes_max;
        assert_eq!(
            extent.start / bytes_max,
            last,
            "{ino} up to {end}: {said:?}"
        );
    }
}

async fn make_dir(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    let made = fs.make_dir(&ROOT_USER, parent, name, SetAttr::default());
    made.await.unwrap().attr.ino
}

async fn make(fs: &Fs, dir: Ino, name: &[u8], bytes: &[u8]) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, dir, name, mode).await.unwrap();
    write_at(fs, made.attr.ino, 0, bytes).await;
    made.attr.ino
}

async fn write_at(fs: &Fs, ino: Ino, at: u64, bytes: &[u8]) {
    for (part, at) in bytes.chunks(1 << 20).zip((at..).step_by(1 << 20)) {
        let data = Bytes::copy_from_slice(part);
        let written = fs.write(&ROOT_USER, ino, at, data, Stability::Unstable);
        written.await.unwrap();
    }
    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
}

fn codecs_of(fs: &Fs, ino: Ino) -> Vec<Codec> {
    let extents = extents_of(fs).into_iter();
    let mut codecs: Vec<Codec> = extents
        .filter(|(of, ..)| *of == ino)
        .filter_map(|(.., extent)| codec_of(&extent))
        .collect();
    codecs.dedup();
    codecs
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

const LEN_BYTES: u32 = 3 << 20;

/// New data follows the nearest directory with a policy, also in files made before the policy was set, and in moved
/// files; a restart changes nothing.
#[test]
fn new_data_follows_its_directory() {
    block_on(async {
        let mut world = World::new(2, 1).await;
        let fs = world.fs.clone();
        let outer = make_dir(&fs, ROOT_INO, b"outer").await;
        let inner = make_dir(&fs, outer, b"inner").await;
        let other = make_dir(&fs, ROOT_INO, b"other").await;
        let bytes = pattern(LEN_BYTES, 7);
        let before = make(&fs, inner, b"before", &bytes).await;
        assert_eq!(codecs_of(&fs, before), [Codec::Lz4]);
        fs.set_dir_policy(outer, policy(1)).await.unwrap();
        let below = make(&fs, inner, b"below", &bytes).await;
        let beside = make(&fs, other, b"beside", &bytes).await;
        assert_eq!(codecs_of(&fs, below), [Codec::Zstd]);
        assert_eq!(codecs_of(&fs, beside), [Codec::Lz4]);
        write_at(&fs, before, 0, &bytes).await;
        assert_eq!(
            codecs_of(&fs, before),
            [Codec::Zstd],
            "what is written again"
        );
        fs.set_dir_policy(inner, policy(2)).await.unwrap();
        let raw = make(&fs, inner, b"raw", &bytes).await;
        assert_eq!(codecs_of(&fs, raw), [Codec::Raw], "the nearest is heard");
        // A moved file, and a moved directory.
        let moved = fs.rename(&ROOT_USER, other, b"beside", outer, b"beside");
        moved.await.unwrap();
        write_at(&fs, beside, 0, &bytes).await;
        assert_eq!(codecs_of(&fs, beside), [Codec::Zstd]);
        fs.clear_dir_policy(inner).await.unwrap();
        let moved = fs.rename(&ROOT_USER, outer, b"inner", other, b"inner");
        moved.await.unwrap();
        write_at(&fs, raw, 0, &bytes).await;
        assert_eq!(codecs_of(&fs, raw), [Codec::Lz4]);
        drop(fs);
        world = world.restart(3).await;
        let fs = &world.fs;
        write_at(fs, beside, 0, &bytes).await;
        assert_eq!(codecs_of(fs, beside), [Codec::Zstd]);
        // A file that is made for a directory has its policy before it has its name there.
        let mut unnamed = fs.make_unnamed_near(&ROOT_USER, outer).await.unwrap();
        unnamed.append(Bytes::from(bytes.clone())).await.unwrap();
        world.run_for(10).await;
        assert_eq!(codecs_of(fs, unnamed.ino()), [Codec::Zstd]);
        recount(fs).await;
    });
}

/// Protections that the segments of a file's extents were made for, and their numbers of copies.
fn protections_of(fs: &Fs, ino: Ino) -> BTreeSet<(Option<Protection>, u8)> {
    let extents = extents_of(fs).into_iter();
    let own = extents.filter(|(of, ..)| *of == ino);
    own.map(|(.., extent)| {
        let ExtentPlace::Record { record, .. } = &extent.place else {
            panic!("it is in the metadata")
        };
        let segment = fs.meta().segment(record.location.segment).unwrap();
        (segment.protection, segment.data + segment.parity)
    })
    .collect()
}

/// Data has the protection of its directory, in segments of its own. Collections keep it, also for data that two
/// directories share and data that only a snapshot has, and a conversion changes it.
#[test]
fn protection_follows_its_directory() {
    block_on(async {
        let world = World::new(30, 4).await;
        let fs = &world.fs;
        let of_volume = BTreeSet::from([(None, 4)]);
        let three = BTreeSet::from([(Some(Protection::Mirror(3)), 3)]);
        let safe = make_dir(fs, ROOT_INO, b"safe").await;
        let plain = make_dir(fs, ROOT_INO, b"plain").await;
        let asks = PolicyRecord {
            protection: Some(Protection::Mirror(3)),
            ..PolicyRecord::default()
        };
        fs.set_dir_policy(safe, asks).await.unwrap();
        let bytes = noise(31, LEN_BYTES as usize);
        let kept = make(fs, safe, b"kept", &bytes).await;
        let gone = make(fs, safe, b"gone", &bytes).await;
        let beside = make(fs, plain, b"beside", &bytes).await;
        assert_eq!(protections_of(fs, kept), three);
        assert_eq!(protections_of(fs, beside), of_volume);
        let snapshot = fs.take_snapshot(b"one", b"").await.unwrap();
        let shown = fs.in_view(snapshot.view()).unwrap();
        let mut shared = fs.make_unnamed_near(&ROOT_USER, plain).await.unwrap();
        let all = 0..u64::from(LEN_BYTES);
        shared.share(&shown, kept, all).await.unwrap();
        let shared = shared.ino();
        fs.remove(&ROOT_USER, safe, b"gone").await.unwrap();
        world.rewrite_all().await;
        world.run_for(10).await;
        recount(fs).await;
        assert_eq!(protections_of(fs, kept), three);
        assert_eq!(protections_of(fs, beside), of_volume);
        assert_eq!(
            protections_of(fs, shared),
            of_volume,
            "its directory says nothing"
        );
        assert!(read_all(&shown, gone).await == bytes);
        // Of the live file, and of the one in the snapshot.
        let asking = segments_asking(fs, Protection::Mirror(3));
        assert_eq!(asking, 2 * u64::from(LEN_BYTES));
        assert_eq!(
            fs.directory_protections()
                .map(|it| it.iter().collect::<Vec<_>>()),
            Some(vec![Protection::Mirror(3)])
        );
        fs.clear_dir_policy(safe).await.unwrap();
        fs.apply_policies(ROOT_INO).await.unwrap();
        assert_eq!(applied(&world).await.record.left, 0);
        assert_eq!(protections_of(fs, kept), of_volume);
        assert!(
            fs.directory_protections().is_some_and(|it| !it.is_empty()),
            "a snapshot has some"
        );
        fs.delete_snapshot(b"one").await.unwrap();
        fs.free_snapshots().await.unwrap();
        world.rewrite_all().await;
        assert!(fs.directory_protections().is_some_and(|it| it.is_empty()));
        recount(fs).await;
    });
}

/// Live bytes of segments that were made for a protection.
fn segments_asking(fs: &Fs, protection: Protection) -> u64 {
    let segments = fs.meta().segments().into_iter();
    let asking = segments.filter(|(_, it)| it.protection == Some(protection));
    asking.map(|(_, it)| it.live_bytes).sum()
}

/// Equal bytes are not shared with a directory that asks for another protection.
#[test]
fn the_same_bytes_are_there_for_each_protection() {
    block_on(async {
        let world = World::deduplicating(33, 4, Dedupe::On).await;
        let fs = &world.fs;
        let safe = make_dir(fs, ROOT_INO, b"safe").await;
        let asks = PolicyRecord {
            protection: Some(Protection::Mirror(3)),
            ..PolicyRecord::default()
        };
        fs.set_dir_policy(safe, asks).await.unwrap();
        let bytes = noise(34, LEN_BYTES as usize);
        make(fs, ROOT_INO, b"first", &bytes).await;
        let second = make(fs, safe, b"second", &bytes).await;
        assert_eq!(fs.stats().deduplicated_bytes, 0);
        assert_eq!(
            protections_of(fs, second),
            BTreeSet::from([(Some(Protection::Mirror(3)), 3)])
        );
        make(fs, safe, b"third", &bytes).await;
        assert_eq!(fs.stats().deduplicated_bytes, u64::from(LEN_BYTES));
    });
}

/// Where there are too few disks for the protection of a directory, its data has that of the volume until there are
/// enough.
#[test]
fn too_few_disks_hold_nothing_up() {
    block_on(async {
        let world = World::new(35, 2).await;
        let fs = &world.fs;
        let safe = make_dir(fs, ROOT_INO, b"safe").await;
        let asks = PolicyRecord {
            protection: Some(Protection::Mirror(5)),
            ..PolicyRecord::default()
        };
        fs.set_dir_policy(safe, asks).await.unwrap();
        let file = make(fs, safe, b"file", &noise(36, LEN_BYTES as usize)).await;
        assert_eq!(
            protections_of(fs, file),
            BTreeSet::from([(Some(Protection::Mirror(5)), 2)])
        );
    });
}

#[test]
fn what_is_no_policy_is_refused() {
    block_on(async {
        let world = World::new(4, 1).await;
        let fs = &world.fs;
        let dir = make_dir(fs, ROOT_INO, b"dir").await;
        let file = make(fs, dir, b"file", b"bytes").await;
        let cases = [
            ("the root", ROOT_INO, 1, PolicyFailure::Root),
            ("nothing", dir, 0, PolicyFailure::Empty),
            ("a file", file, 1, FsError::NotDirectory.into()),
            ("nobody", Ino(1 << 40), 1, FsError::Stale.into()),
        ];
        for (name, ino, number, want) in cases {
            let set = fs.set_dir_policy(ino, policy(number)).await;
            assert_eq!(set.unwrap_err(), want, "{name}");
        }
        assert_eq!(fs.clear_dir_policy(dir).await, Err(PolicyFailure::None));
        assert_eq!(fs.cancel_apply().await, Err(ApplyFailure::NotRunning));
        let on_file = fs.apply_policies(file).await;
        assert_eq!(on_file, Err(FsError::NotDirectory.into()));
        fs.set_dir_policy(dir, policy(1)).await.unwrap();
        fs.remove(&ROOT_USER, dir, b"file").await.unwrap();
        fs.remove_dir(&ROOT_USER, ROOT_INO, b"dir").await.unwrap();
        assert_eq!(fs.dir_policies().await.unwrap(), []);
        let world = world.restart(5).await;
        assert_eq!(world.fs.dir_policy_count(), 0);
    });
}

/// Data below the directory is converted and other data is not; the next conversion finds nothing to do.
#[test]
fn existing_data_is_converted_once() {
    block_on(async {
        for seed in [6, 7] {
            let world = World::new(seed, 3).await;
            let fs = &world.fs;
            let dir = make_dir(fs, ROOT_INO, b"dir").await;
            let deep = make_dir(fs, dir, b"deep").await;
            let bytes = pattern(LEN_BYTES, 1);
            let inside = make(fs, deep, b"inside", &bytes).await;
            let outside = make(fs, ROOT_INO, b"outside", &bytes).await;
            let random = make(fs, deep, b"noise", &noise(seed, LEN_BYTES as usize)).await;
            fs.set_dir_policy(dir, policy(1)).await.unwrap();
            fs.apply_policies(dir).await.unwrap();
            assert_eq!(fs.apply_policies(dir).await, Err(ApplyFailure::Running));
            let record = applied(&world).await.record;
            assert_eq!(record.state, ApplyState::Done);
            assert_eq!((record.files, record.left), (2, 0));
            assert_eq!(record.seen_bytes, 2 * u64::from(LEN_BYTES));
            assert_eq!(
                record.rewritten_bytes,
                u64::from(LEN_BYTES),
                "not what stays raw"
            );
            assert_ne!(record.stored_bytes_after, record.stored_bytes_before);
            assert_eq!(codecs_of(fs, inside), [Codec::Zstd]);
            assert_eq!(codecs_of(fs, outside), [Codec::Lz4]);
            assert_eq!(codecs_of(fs, random), [Codec::Raw]);
            recount(fs).await;
            fs.apply_policies(ROOT_INO).await.unwrap();
            let record = applied(&world).await.record;
            assert_eq!((record.files, record.rewritten_bytes), (3, 0));
            let world = world.restart(seed + 2).await;
            assert!(read_all(&world.fs, inside).await == bytes);
            assert!(read_all(&world.fs, outside).await == bytes);
        }
    });
}

/// A conversion deduplicates data that was written twice: also in smaller records, and after the index forgot it.
#[test]
fn what_was_written_twice_comes_to_be_there_once() {
    block_on(async {
        for (seed, number) in [(8, 3), (9, 4)] {
            let world = World::new(seed, 1).await;
            let fs = &world.fs;
            let dir = make_dir(fs, ROOT_INO, b"dir").await;
            // Records of 1 MiB, and at the end a short one.
            let bytes = noise(seed, LEN_BYTES as usize + 60_000);
            let first = make(fs, dir, b"first", &bytes).await;
            let second = make(fs, dir, b"second", &bytes).await;
            fs.take_snapshot(b"before", b"").await.unwrap();
            let stored_bytes = fs.meta().counters().stored_bytes;
            fs.set_dir_policy(dir, policy(number)).await.unwrap();
            fs.apply_policies(dir).await.unwrap();
            let record = applied(&world).await.record;
            assert_eq!(record.shared_bytes, bytes.len() as u64);
            assert_eq!(record.left, 0);
            recount(fs).await;
            let counters = fs.meta().counters();
            assert_eq!(counters.history_bytes, 0, "snapshots see what there is now");
            assert_eq!(counters.stored_bytes, stored_bytes, "which counts twice");
            // After a restart the index is empty; shared records stay shared, and new ones are found.
            let world = world.restart(seed + 2).await;
            let fs = &world.fs;
            fs.apply_policies(dir).await.unwrap();
            let record = applied(&world).await.record;
            assert_eq!((record.rewritten_bytes, record.left), (0, 0));
            let shared = fs.stats().deduplicated_bytes;
            let third = make(fs, dir, b"third", &bytes).await;
            assert_eq!(fs.stats().deduplicated_bytes - shared, bytes.len() as u64);
            for ino in [first, second, third] {
                assert!(read_all(fs, ino).await == bytes);
            }
            let snapshot = fs.snapshot(b"before").expect("is there");
            let shown = fs.in_view(snapshot.view()).unwrap();
            assert!(read_all(&shown, first).await == bytes);
            recount(fs).await;
        }
    });
}

/// Shared records are converted, too, and stay shared; where two directories want two forms of equal bytes, there are
/// two.
#[test]
fn what_is_shared_gets_another_form_once() {
    block_on(async {
        for dedupe in [Dedupe::On, Dedupe::Verify] {
            let world = World::deduplicating(22, 1, dedupe).await;
            let fs = &world.fs;
            let dir = make_dir(fs, ROOT_INO, b"dir").await;
            let bytes = pattern(LEN_BYTES, 9);
            let outside = make(fs, ROOT_INO, b"outside", &bytes).await;
            let mut inside = Vec::new();
            for number in 0..3u8 {
                inside.push(make(fs, dir, &[b'a' + number], &bytes).await);
            }
            fs.set_dir_policy(dir, policy(1)).await.unwrap();
            fs.apply_policies(ROOT_INO).await.unwrap();
            let record = applied(&world).await.record;
            assert_eq!(record.left, 0);
            // Some pieces of the pattern are equal.
            assert!(record.rewritten_bytes <= u64::from(LEN_BYTES));
            assert!(record.shared_bytes >= 2 * u64::from(LEN_BYTES));
            assert_eq!(codecs_of(fs, outside), [Codec::Lz4]);
            for ino in &inside {
                assert_eq!(codecs_of(fs, *ino), [Codec::Zstd]);
                assert!(read_all(fs, *ino).await == bytes);
            }
            recount(fs).await;
            fs.apply_policies(ROOT_INO).await.unwrap();
            let record = applied(&world).await.record;
            assert_eq!((record.rewritten_bytes, record.shared_bytes), (0, 0));
        }
    });
}

/// Snapshots keep their bytes, in every order of conversions and deletions.
#[test]
fn snapshots_keep_what_they_had() {
    block_on(async {
        for seed in [10, 11] {
            let world = World::new(seed, 1).await;
            let fs = &world.fs;
            let dir = make_dir(fs, ROOT_INO, b"dir").await;
            let old = noise(seed, LEN_BYTES as usize);
            let ino = make(fs, dir, b"file", &old).await;
            fs.take_snapshot(b"one", b"").await.unwrap();
            write_at(fs, ino, 1 << 20, &pattern(1 << 20, 3)).await;
            fs.take_snapshot(b"two", b"").await.unwrap();
            write_at(fs, ino, (1 << 20) + 100_000, b"other").await;
            let now = read_all(fs, ino).await;
            for number in [4, 1, 5, 2] {
                fs.set_dir_policy(dir, policy(number)).await.unwrap();
                fs.apply_policies(ROOT_INO).await.unwrap();
                assert_eq!(applied(&world).await.record.left, 0);
                recount(fs).await;
                assert!(read_all(fs, ino).await == now);
                let shown = fs.in_view(fs.snapshot(b"one").unwrap().view()).unwrap();
                assert!(read_all(&shown, ino).await == old);
            }
            fs.delete_snapshot(b"one").await.unwrap();
            fs.free_snapshots().await.unwrap();
            recount(fs).await;
            let world = world.restart(seed + 2).await;
            world.fs.delete_snapshot(b"two").await.unwrap();
            world.fs.free_snapshots().await.unwrap();
            recount(&world.fs).await;
            assert!(read_all(&world.fs, ino).await == now);
            assert_eq!(world.fs.meta().counters().history_bytes, 0);
        }
    });
}

/// An interrupted conversion continues where it was.
#[test]
fn a_conversion_goes_on_after_a_crash() {
    block_on(async {
        for mode in Crash::ALL {
            let mut world = World::new(12, 3).await;
            let dir = make_dir(&world.fs, ROOT_INO, b"dir").await;
            let mut files = Vec::new();
            for number in 0..8u8 {
                let bytes = pattern(LEN_BYTES, number);
                let ino = make(&world.fs, dir, &[b'a' + number], &bytes).await;
                files.push((ino, bytes));
            }
            world.fs.set_dir_policy(dir, policy(1)).await.unwrap();
            world.fs.apply_policies(dir).await.unwrap();
            let mut crashes = 0;
            let mut files_before = 0;
            loop {
                let record = world.fs.applied_policies().expect("was begun").record;
                if record.state != ApplyState::Running {
                    break;
                }
                assert!(record.files >= files_before, "never back");
                files_before = record.files;
                if record.files < 2 * (crashes + 1) {
                    tokio::task::yield_now().await;
                    continue;
                }
                crashes += 1;
                // Steps that are not durable yet are done again.
                files_before = 0;
                world = world.crash(20 + crashes, mode).await;
            }
            assert!(crashes >= 2, "{crashes}");
            let record = world.fs.applied_policies().unwrap().record;
            assert_eq!((record.state, record.files), (ApplyState::Done, 8));
            for (ino, bytes) in files {
                assert_eq!(codecs_of(&world.fs, ino), [Codec::Zstd]);
                assert!(read_all(&world.fs, ino).await == bytes);
            }
            recount(&world.fs).await;
        }
    });
}

/// Concurrent writes, cuts and removals of clients have their full effect. Pointers to copies of bytes that are gone
/// are dropped.
#[test]
fn nothing_that_is_written_meanwhile_is_lost() {
    block_on(async {
        assert!(write_meanwhile(None).await);
        assert!(!write_meanwhile(Some(Bug::ConversionIgnoresOverwrites)).await);
    });
}

async fn write_meanwhile(bug: Option<Bug>) -> bool {
    let world = World::new(14, 1).await;
    let fs = &world.fs;
    let dir = make_dir(fs, ROOT_INO, b"dir").await;
    let mut files = Vec::new();
    for number in 0..6u8 {
        let bytes = pattern(LEN_BYTES, number);
        files.push((make(fs, dir, &[b'a' + number], &bytes).await, bytes));
    }
    // Reads and writes take time, so that more happens in between.
    for disk in &world.disks {
        disk.yield_at_random(5, 40);
    }
    plant(bug);
    let mut is_right = true;
    for round in 0..12u8 {
        fs.set_dir_policy(dir, policy([1, 4, 2, 3][usize::from(round % 4)]))
            .await
            .unwrap();
        fs.apply_policies(dir).await.unwrap();
        let writers = files.iter_mut().map(|(ino, bytes)| {
            let mut random = Rng::new(ino.0 + u64::from(round));
            async move {
                while fs.applied_policies().unwrap().record.state == ApplyState::Running {
                    let at = random.below(u64::from(LEN_BYTES) - 70_000);
                    let part = noise(random.u64(), 5000 + random.below(60_000) as usize);
                    bytes[at as usize..at as usize + part.len()].copy_from_slice(&part);
                    write_at(fs, *ino, at, &part).await;
                }
            }
        });
        futures_util::future::join_all(writers).await;
        let world_at_rest = applied(&world).await;
        assert_eq!(world_at_rest.record.state, ApplyState::Done);
        for (ino, bytes) in &files {
            is_right &= read_all(fs, *ino).await == *bytes;
        }
        if !is_right {
            break;
        }
        recount(fs).await;
    }
    plant(None);
    is_right
}

/// The conversion finds files by the metadata, and not by the inodes in memory.
#[test]
fn few_inodes_in_memory_are_enough() {
    block_on(async {
        let world = World::with_few_inodes(16).await;
        let fs = &world.fs;
        let dir = make_dir(fs, ROOT_INO, b"dir").await;
        let mut files = Vec::new();
        for number in 0..600u32 {
            let bytes = pattern(5000, number as u8);
            files.push((
                make(fs, dir, number.to_string().as_bytes(), &bytes).await,
                bytes,
            ));
        }
        world.run_for(10).await;
        fs.set_dir_policy(dir, policy(1)).await.unwrap();
        fs.apply_policies(dir).await.unwrap();
        let record = applied(&world).await.record;
        assert_eq!((record.files, record.left), (600, 0));
        let codecs: Vec<Codec> = extents_of(fs)
            .into_iter()
            .filter_map(|(.., extent)| codec_of(&extent))
            .collect();
        assert_eq!(codecs, [Codec::Zstd; 600]);
        for (ino, bytes) in files {
            assert_eq!(stored(fs, ino).kind, InodeKind::Regular);
            assert!(read_all(fs, ino).await == bytes);
        }
        recount(fs).await;
    });
}

/// A cancelled conversion keeps its results, and the next one does the rest.
#[test]
fn a_conversion_can_be_cancelled() {
    block_on(async {
        let world = World::new(18, 1).await;
        let fs = &world.fs;
        for number in 0..6u8 {
            make(fs, ROOT_INO, &[b'a' + number], &pattern(LEN_BYTES, number)).await;
        }
        let policy = Policy {
            compression: cairn_segment::Compression::None,
            ..fs.policy()
        };
        fs.set_policy(policy).unwrap();
        fs.apply_policies(ROOT_INO).await.unwrap();
        let record = fs.cancel_apply().await.unwrap().record;
        assert_eq!(record.state, ApplyState::Cancelled);
        world.run_for(20).await;
        let now = fs.applied_policies().unwrap().record;
        assert_eq!(now, record, "nobody goes on");
        recount(fs).await;
        fs.apply_policies(ROOT_INO).await.unwrap();
        assert_eq!(applied(&world).await.record.state, ApplyState::Done);
        let extents = extents_of(fs);
        assert!(
            extents
                .iter()
                .all(|(.., extent)| codec_of(extent) == Some(Codec::Raw))
        );
        recount(fs).await;
    });
}
