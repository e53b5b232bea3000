//! Reads wait for disks that are away, and count nothing there as corrupt.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use cairn_fs::{CreateMode, FsError, SetAttr, Stability};
use cairn_segment::Pace;

use crate::world::*;

const LEN: u32 = 1 << 20;

/// A file on four disks that is not in memory.
async fn cold_file(seed: u64) -> (World, cairn_base::Ino) {
    let world = World::new(seed, 4).await;
    let made = CreateMode::Guarded(SetAttr::default());
    let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", made).await;
    let ino = made.unwrap().attr.ino;
    let bytes = Bytes::from(pattern(LEN, 7));
    let written = world
        .fs
        .write(&ROOT_USER, ino, 0, bytes, Stability::Unstable)
        .await;
    written.unwrap();
    world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
    world.segments.seal_all(VOLUME).await;
    (world.restart(seed + 2).await, ino)
}

/// Polls until it is done, or so many seconds have passed.
async fn within<T>(
    world: &World,
    seconds: u64,
    mut waiting: std::pin::Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    for _ in 0..=seconds {
        let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context)));
        if let Poll::Ready(done) = polled.await {
            return Some(done);
        }
        world.run_for(1).await;
    }
    None
}

#[test]
fn a_read_waits_for_disks_that_are_away() {
    block_on(async {
        // The disks come back so many seconds after the read began; or they do not.
        let cases = [(Some(0), true), (Some(5), true), (None, false)];
        for (seed, (seconds, is_read)) in (500..).step_by(10).zip(cases) {
            let (world, ino) = cold_file(seed).await;
            world.set_away(&[0, 1, 2]).await;
            let mut read = std::pin::pin!(world.fs.read(&ROOT_USER, ino, 0, LEN));
            if let Some(seconds) = seconds {
                let early = within(&world, seconds, read.as_mut()).await;
                assert!(early.is_none(), "it is held: {early:?}");
                world.set_away(&[]).await;
            }
            let done = within(&world, 20, read.as_mut()).await;
            match done.expect("it is not held for ever") {
                Ok(read) => {
                    assert!(is_read);
                    assert!(read.parts.concat() == pattern(LEN, 7));
                }
                Err(error) => {
                    assert!(!is_read, "{error}");
                    assert!(matches!(error, FsError::Unreachable(_)), "{error}");
                }
            }
            world.set_away(&[]).await;
            let read = world.fs.read(&ROOT_USER, ino, 0, LEN).await.unwrap();
            assert!(read.parts.concat() == pattern(LEN, 7));
            assert_eq!(world.segments.stats().damaged_reads, 0);
        }
    });
}

/// A scrub counts such data, and nothing is corrupt. When the disks are gone for good, it is.
#[test]
fn a_scrub_takes_nothing_for_damaged_whose_disks_may_come_back() {
    block_on(async {
        let (world, _) = cold_file(600).await;
        let pace = Pace::new(world.env.clock.clone(), 0);
        world.set_away(&[0, 1, 2]).await;
        let found = world.fs.scrub_records(None, &pace).await.unwrap();
        assert!(
            found.unreachable > 0 && found.damaged.is_empty(),
            "{found:?}"
        );
        world.set_away(&[]).await;
        let found = world.fs.scrub_records(None, &pace).await.unwrap();
        assert_eq!((found.unreachable, found.damaged.len()), (0, 0));
        world.set_away(&[0, 1, 2]).await;
        (1..=3).for_each(|id| world.segments.disk_forget(cairn_base::DiskId(id)));
        let found = world.fs.scrub_records(None, &pace).await.unwrap();
        assert!(
            found.unreachable == 0 && !found.damaged.is_empty(),
            "{found:?}"
        );
        let damaged = &found.damaged[0];
        assert!(world.fs.is_still_damaged(damaged).await.unwrap());
    });
}
