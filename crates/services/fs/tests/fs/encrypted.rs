//! Encrypted volumes. All other tests show that they behave like plain ones: every second seed makes one.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{DiskId, Ino, View};
use cairn_fs::*;
use cairn_keys::VolumeKey;
use cairn_meta::{MetaCache, MetaError, MetaSettings, MetaStore};
use cairn_segment::Pace;
use cairn_testkit::{Crash, TestWorld};
use rustc_hash::FxHashSet;

use crate::world::*;

/// Bytes that do not compress, and that never repeat.
struct Noise(u64);

impl Noise {
    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut word = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        };
        let words = (0..len.div_ceil(8)).map(|_| word().to_le_bytes());
        let mut bytes: Vec<u8> = words.flatten().collect();
        bytes.truncate(len);
        bytes
    }
}

/// The written data: so many bytes from some places of it.
#[derive(Default)]
struct Needles(FxHashSet<u64>);

impl Needles {
    fn add(&mut self, bytes: &[u8]) {
        let places = (0..bytes.len().saturating_sub(8)).step_by(97);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        self.0.extend(places.map(word));
    }

    /// The number of them in all files of all disks.
    fn found(&self, world: &World) -> usize {
        let mut found = FxHashSet::default();
        for disk in &world.disks {
            for name in disk.file_names() {
                let bytes = disk.file_bytes(&name).unwrap();
                for window in bytes.windows(8) {
                    let word = u64::from_le_bytes(window.try_into().unwrap());
                    if self.0.contains(&word) {
                        found.insert(word);
                    }
                }
            }
        }
        found.len()
    }
}

fn placing(name: &[u8]) -> Placing<'_> {
    Placing {
        dir: ROOT_INO,
        name,
        expected: Expected::Anything,
        set: SetAttr::default(),
        xattrs: &[],
    }
}

async fn create(world: &World, name: &str) -> Ino {
    let how = CreateMode::Guarded(SetAttr::default());
    let made = world
        .fs
        .create(&ROOT_USER, ROOT_INO, name.as_bytes(), how)
        .await;
    made.unwrap().attr.ino
}

async fn write(world: &World, ino: Ino, offset: u64, bytes: &[u8], stability: Stability) {
    let data = Bytes::copy_from_slice(bytes);
    let written = world.fs.write(&ROOT_USER, ino, offset, data, stability);
    written.await.unwrap();
}

/// Sends bytes of files to a disk on every way that exists, and checks that they stay readable. Returns how many of
/// some pieces of them were on the disks, looked for after each step.
async fn on_the_disks(is_encrypted: bool) -> usize {
    let mut world = World::encrypted(3, is_encrypted).await;
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut needles = Needles::default();
    let mut found = 0;
    let mut contents: Vec<(Ino, Vec<u8>)> = Vec::new();

    // Small stable writes: the journal.
    let ino = create(&world, "journal").await;
    let mut content = Vec::new();
    for _ in 0..12 {
        let bytes = noise.take(4096);
        needles.add(&bytes);
        let at = content.len() as u64;
        write(&world, ino, at, &bytes, Stability::Stable).await;
        content.extend(bytes);
    }
    contents.push((ino, content));
    // A file that gets its name when it is complete, with the name in the journal.
    let who = Credentials::ROOT;
    let mut unnamed = world.fs.make_unnamed(&who).unwrap();
    let bytes = noise.take(9000);
    needles.add(&bytes);
    unnamed.append(bytes.clone().into()).await.unwrap();
    let placed = unnamed.place(&who, &placing(b"placed")).await.unwrap();
    contents.push((placed.ino, bytes));
    // Values of extended attributes, of an existing file and of one that is put as a whole.
    let mut attributes: Vec<(Ino, &[u8], Vec<u8>)> = Vec::new();
    for name in [&b"user.one"[..], b"user.two"] {
        for len in [30, 700] {
            let value = noise.take(len);
            needles.add(&value);
            let set = world.fs.set_xattr(&who, ino, name, &value, XattrMode::Any);
            set.await.unwrap();
            attributes.retain(|(_, other, _)| *other != name);
            attributes.push((ino, name, value));
        }
    }
    let value = noise.take(300);
    needles.add(&value);
    let mut unnamed = world.fs.make_unnamed(&who).unwrap();
    unnamed.append(Bytes::from_static(b"x")).await.unwrap();
    let xattrs = [(&b"user.put"[..], Bytes::from(value.clone()))];
    let place = Placing {
        xattrs: &xattrs,
        ..placing(b"with attributes")
    };
    let placed = unnamed.place(&who, &place).await.unwrap();
    attributes.push((placed.ino, b"user.put", value));
    found += needles.found(&world);

    // Larger ones: records, raw, of several granules, and compressed.
    for (name, len, is_text) in [
        ("small", 5000, false),
        ("raw", 300_000, false),
        ("large", 3_000_000, false),
        ("text", 400_000, true),
        ("tiny", 100, false),
    ] {
        let ino = create(&world, name).await;
        let bytes = match is_text {
            false => noise.take(len),
            // Compressed, the beginning of each stays readable.
            true => {
                let texts = (0..len / 2000).map(|_| noise.take(40).repeat(50));
                texts.flatten().collect()
            }
        };
        needles.add(&bytes);
        write(&world, ino, 0, &bytes, Stability::Unstable).await;
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        contents.push((ino, bytes));
    }
    found += needles.found(&world);

    // A snapshot, overwritten and cut files, and moves of records.
    world.fs.take_snapshot(b"before", b"").await.unwrap();
    let (ino, content) = &mut contents[3];
    let bytes = noise.take(100_000);
    needles.add(&bytes);
    content[1000..101_000].copy_from_slice(&bytes);
    let ino = *ino;
    write(&world, ino, 1000, &bytes, Stability::Stable).await;
    world.run_for(5).await;
    let segments: Vec<_> = world.fs.meta().segments().into_iter().collect();
    let segments: Vec<_> = segments.into_iter().map(|(id, _)| id).collect();
    let pace = Pace::new(world.env.clock.clone(), 0);
    world.fs.rewrite_segments(&segments, &pace).await.unwrap();
    found += needles.found(&world);

    // Shared bytes.
    let mut unnamed = world.fs.make_unnamed(&who).unwrap();
    let source = world.fs.in_view(View::Live).unwrap();
    unnamed.share(&source, ino, 500..200_000).await.unwrap();
    let placed = unnamed.place(&who, &placing(b"shared")).await.unwrap();
    contents.push((placed.ino, contents[3].1[500..200_000].to_vec()));

    // More data in the journal, and starts that carry it on.
    let ino = contents[0].0;
    for at in 0..8 {
        let bytes = noise.take(1000);
        needles.add(&bytes);
        contents[0].1[at * 2000..at * 2000 + 1000].copy_from_slice(&bytes);
        write(&world, ino, at as u64 * 2000, &bytes, Stability::Stable).await;
    }
    for seed in 0..4 {
        world = world.crash(seed, Crash::LoseUnsynced).await;
        found += needles.found(&world);
    }
    world = world.restart(9).await;
    found += needles.found(&world);
    for (ino, content) in &contents {
        assert!(read_all(&world.fs, *ino).await == *content, "{ino}");
    }
    for (ino, name, value) in &attributes {
        let read = world.fs.xattr(&who, *ino, name).await.unwrap();
        assert!(read == *value, "{}", String::from_utf8_lossy(name));
    }
    found
}

#[test]
fn nothing_that_was_written_is_on_the_disks_of_an_encrypted_volume() {
    block_on(async {
        assert_eq!(on_the_disks(true).await, 0);
        // On a plain volume, this search finds the bytes.
        let found = on_the_disks(false).await;
        assert!(found > 10_000, "{found}");
    });
}

/// An opening without the key, or with another one, gets an error that says so, and loses nothing.
#[test]
fn an_encrypted_volume_is_refused_without_its_key() {
    block_on(async {
        let world = World::encrypted(1, true).await;
        let ino = create(&world, "file").await;
        let bytes = Noise(5).take(3000);
        write(&world, ino, 0, &bytes, Stability::Stable).await;
        let world = world.crash(1, Crash::LoseUnsynced).await;
        world.fs.abandon();
        let open = |key: Option<Arc<VolumeKey>>| {
            let mut settings = MetaSettings::new(1, MetaCache::new(1 << 20));
            settings.key = key;
            let disk = world.disks[0].crash(Crash::LoseUnsynced, 3);
            let disks = vec![(DiskId(1), disk as Arc<dyn Disk>)];
            MetaStore::open(world.env.clone(), settings, VOLUME, disks)
        };
        match open(None).await {
            Err(MetaError::NoKey { volume: VOLUME }) => {}
            other => panic!("{:?}", other.map(drop)),
        }
        let other = VolumeKey::random(VOLUME, &*TestWorld::new(1).env.entropy);
        match open(Some(Arc::new(other))).await {
            Err(MetaError::NotAuthentic { volume: VOLUME, .. }) => {}
            other => panic!("{:?}", other.map(drop)),
        }
        let disks = world.disks.iter();
        let disks = disks.map(|disk| disk.crash(Crash::LoseUnsynced, 4));
        let world = World::open(8, disks.collect()).await;
        assert!(read_all(&world.fs, ino).await == bytes);
    });
}
