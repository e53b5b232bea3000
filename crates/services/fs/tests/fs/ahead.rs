//! Read-ahead: bytes that are read from disks before a client asks for them.

use cairn_fs::*;
use cairn_testkit::Rng;

use crate::world::*;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 32 * MIB;

async fn read(world: &World, ino: cairn_base::Ino, offset: u64, len: u32) -> u64 {
    let before = world.segments.stats().disk_read_bytes;
    let read = world.fs.read(&ROOT_USER, ino, offset, len).await.unwrap();
    assert_eq!(
        read.parts.iter().map(|part| part.len()).sum::<usize>(),
        len as usize
    );
    // Background tasks get their turn.
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    world.segments.stats().disk_read_bytes - before
}

#[test]
fn a_reader_in_order_is_read_ahead_for_and_one_at_random_is_not() {
    block_on(async {
        let world = World::new(1, 1).await;
        let mode = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", mode).await;
        let ino = made.unwrap().attr.ino;
        let mut data = vec![0; FILE_BYTES as usize];
        Rng::new(1).fill(&mut data);
        for (offset, part) in (0..).step_by(MIB as usize).zip(data.chunks(MIB as usize)) {
            let part = part.to_vec().into();
            let written = world
                .fs
                .write(&ROOT_USER, ino, offset, part, Stability::Unstable);
            written.await.unwrap();
        }
        let world = world.restart(2).await;
        // Two of them are near the one before, by chance, and one of those twice in a row.
        for mib in [20, 9, 12, 25, 30, 5, 6, 8, 15] {
            let bytes = read(&world, ino, mib * MIB, 4096).await;
            assert!(bytes <= 64 << 10, "{bytes} bytes at MiB {mib}");
        }
        // Read-ahead starts at the file's start, and elsewhere once the reads are clearly sequential.
        assert!(read(&world, ino, 0, MIB as u32).await >= 4 * MIB);
        let mut bytes = 0;
        for mib in 16..20 {
            bytes += read(&world, ino, mib * MIB, MIB as u32).await;
        }
        assert!(bytes >= 8 * MIB, "{bytes} bytes");

        // Readers may go on while the volume closes, which waits for all background tasks.
        let world = world.restart(3).await;
        let mut closing = std::pin::pin!(world.fs.close());
        assert!(futures_util::poll!(closing.as_mut()).is_pending());
        assert_eq!(read(&world, ino, 0, MIB as u32).await, MIB);
        closing.await.unwrap();
    });
}

/// A file that was overwritten in small pieces, several times around, is read sequentially with far fewer reads than
/// it has extents.
#[test]
fn neighbours_in_small_extents_are_fetched_together() {
    const BLOCK_BYTES: usize = 4096;
    const BLOCKS: usize = 2048;
    const PART_BYTES: usize = 256 << 10;
    block_on(async {
        let world = World::new(1, 1).await;
        let mode = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", mode).await;
        let ino = made.unwrap().attr.ino;
        let mut data = vec![0; BLOCKS * BLOCK_BYTES];
        let mut random = Rng::new(2);
        random.fill(&mut data);
        for (offset, part) in (0..).step_by(MIB as usize).zip(data.chunks(MIB as usize)) {
            let part = part.to_vec().into();
            let written = world
                .fs
                .write(&ROOT_USER, ino, offset, part, Stability::Unstable);
            written.await.unwrap();
        }
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        for number in 0..BLOCKS {
            // Each block once, and those of one flush all over the file.
            let at = number * 1031 % BLOCKS * BLOCK_BYTES;
            let block = &mut data[at..at + BLOCK_BYTES];
            random.fill(block);
            let block = block.to_vec().into();
            let written = world
                .fs
                .write(&ROOT_USER, ino, at as u64, block, Stability::Unstable);
            written.await.unwrap();
            if number % 512 == 511 {
                world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
            }
        }
        let world = world.restart(2).await;
        let before = world.segments.stats();
        for (offset, want) in (0..).step_by(PART_BYTES).zip(data.chunks(PART_BYTES)) {
            let read = world.fs.read(&ROOT_USER, ino, offset, PART_BYTES as u32);
            let read = read.await.unwrap();
            assert!(read.parts.concat() == want, "at {offset}");
        }
        let stats = world.segments.stats();
        let reads = stats.disk_reads - before.disk_reads;
        assert!(reads < BLOCKS as u64 / 2, "{reads} reads");
        assert!(stats.merged_reads - before.merged_reads > BLOCKS as u64 / 2);
    });
}
