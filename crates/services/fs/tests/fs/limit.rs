//! Volumes with a size limit.

use std::pin::pin;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::*;
use cairn_testkit::Rng;
use futures_util::future::{Either, select};

use crate::world::*;

const MIB: u64 = 1 << 20;
const LIMIT_BYTES: u64 = 8 * MIB;

async fn limited(seed: u64) -> (World, Ino) {
    let world = World::new(seed, 1).await;
    let policy = Policy {
        size_limit_bytes: Some(LIMIT_BYTES),
        ..world.fs.policy()
    };
    world.fs.set_policy(policy).unwrap();
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", mode).await;
    (world, made.unwrap().attr.ino)
}

async fn write(world: &World, ino: Ino, offset: u64, len: u64) -> Result<(), FsError> {
    let data = Bytes::from(vec![offset as u8 + 1; len as usize]);
    let fs = &world.fs;
    let written = fs.write(&ROOT_USER, ino, offset, data, Stability::Unstable);
    written.await.map(|_| ())
}

async fn commit(world: &World, ino: Ino) {
    world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
}

/// Overwrites make nothing larger, in memory or in segments.
#[test]
fn a_full_volume_takes_overwrites() {
    block_on(async {
        let (world, ino) = limited(1).await;
        for mib in 0..8 {
            write(&world, ino, mib * MIB, MIB).await.unwrap();
        }
        for round in 0..2 {
            write(&world, ino, 3 * MIB + 5, 2 * MIB).await.unwrap();
            let more = write(&world, ino, LIMIT_BYTES - 10, 11).await;
            assert_eq!(more, Err(FsError::QuotaExceeded), "{round}");
            commit(&world, ino).await;
        }
        let set = SetAttr {
            size_bytes: Some(LIMIT_BYTES - MIB),
            ..SetAttr::default()
        };
        world.fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
        // A hole holds nothing.
        write(&world, ino, 20 * MIB, MIB).await.unwrap();
        let more = write(&world, ino, 10 * MIB, 1).await;
        assert_eq!(more, Err(FsError::QuotaExceeded));
    });
}

/// Dirty bytes may replace others, and those in flights count twice for a moment: a writer that adds to them waits
/// until the true usage is known.
#[test]
fn dirty_bytes_are_not_counted_as_more_than_they_come_to() {
    block_on(async {
        let (world, ino) = limited(2).await;
        write(&world, ino, 0, 6 * MIB).await.unwrap();
        commit(&world, ino).await;
        write(&world, ino, MIB, 4 * MIB).await.unwrap();
        write(&world, ino, 6 * MIB, 2 * MIB).await.unwrap();
        let more = write(&world, ino, 8 * MIB, 1).await;
        assert_eq!(more, Err(FsError::QuotaExceeded));
    });
}

/// After each step of a random history, the shown usage is the usage after all data is stored: bytes that replace
/// others count once, in memory, on their way and in flights alike. After a cut or a hole it is unknown for some
/// bytes whether they replace others; then the shown usage may be less for a while, and never more.
#[test]
fn what_is_shown_as_used_is_what_will_be_there() {
    const BLOCK_BYTES: u64 = 4096;
    const BLOCKS: usize = 512;
    block_on(async {
        for seed in 0..12 {
            let (world, ino) = limited(100 + seed).await;
            let fs = &world.fs;
            let mut rng = Rng::new(seed);
            let mut model = [false; BLOCKS];
            let only_writes = seed % 2 == 0;
            for step in 0..120_u8 {
                let from = rng.below(BLOCKS as u64);
                let to = (from + 1 + rng.below(40)).min(BLOCKS as u64);
                let range = from * BLOCK_BYTES..to * BLOCK_BYTES;
                let blocks = from as usize..to as usize;
                match rng.below(if only_writes { 8 } else { 10 }) {
                    0..=5 => {
                        let stability = match rng.coin() {
                            true => Stability::Stable,
                            false => Stability::Unstable,
                        };
                        let len = (range.end - range.start) as usize;
                        let data = Bytes::from(vec![step + 1; len]);
                        let written = fs.write(&ROOT_USER, ino, range.start, data, stability);
                        written.await.unwrap();
                        model[blocks].fill(true);
                    }
                    6 => commit(&world, ino).await,
                    7 => world.run_for(1).await,
                    8 => {
                        let set = SetAttr {
                            size_bytes: Some(range.start),
                            ..SetAttr::default()
                        };
                        fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
                        model[blocks.start..].fill(false);
                    }
                    _ => {
                        fs.punch(&ROOT_USER, ino, range).await.unwrap();
                        model[blocks].fill(false);
                    }
                }
                let want = model.iter().filter(|is_in| **is_in).count() as u64 * BLOCK_BYTES;
                let shown = [
                    fs.attr(ino).await.unwrap().used_bytes,
                    LIMIT_BYTES - fs.space().await.unwrap().free_bytes,
                    LIMIT_BYTES - fs.space_at(ino).await.unwrap().free_bytes,
                ];
                for used in shown {
                    assert!(used <= want, "seed {seed}, step {step}: {shown:?} {want}");
                    assert!(
                        !only_writes || used == want,
                        "seed {seed}, step {step}: {shown:?} {want}"
                    );
                }
            }
            world.run_for(30).await;
            let want = model.iter().filter(|is_in| **is_in).count() as u64 * BLOCK_BYTES;
            assert_eq!(fs.attr(ino).await.unwrap().used_bytes, want, "seed {seed}");
            assert_eq!(fs.counts().file_bytes, want, "seed {seed}");
            fs.close().await.unwrap();
        }
    });
}

/// A name adds nothing to the bytes of files, whatever is dirty.
#[test]
fn a_file_is_made_while_others_are_overwritten() {
    block_on(async {
        let (world, ino) = limited(3).await;
        write(&world, ino, 0, 6 * MIB).await.unwrap();
        commit(&world, ino).await;
        write(&world, ino, MIB, 4 * MIB).await.unwrap();
        let make = |name: &'static [u8]| {
            let mode = CreateMode::Guarded(SetAttr::default());
            world.fs.create(&ROOT_USER, ROOT_INO, name, mode)
        };
        make(b"another").await.unwrap();
        write(&world, ino, 6 * MIB, 2 * MIB).await.unwrap();
        commit(&world, ino).await;
        make(b"a third").await.unwrap();
    });
}

/// A write that fits is admitted although other clients overwrite all the time, so that there is always as much dirty
/// data as there is room.
#[test]
fn what_fits_is_let_in_while_others_overwrite() {
    block_on(async {
        let (world, ino) = limited(4).await;
        write(&world, ino, 0, 6 * MIB).await.unwrap();
        commit(&world, ino).await;
        let overwriting = async {
            while let Ok(()) = write(&world, ino, MIB, 4 * MIB).await {
                tokio::task::yield_now().await;
            }
        };
        let adding = async {
            for mib in [6, 7] {
                write(&world, ino, mib * MIB, MIB).await.unwrap();
            }
            let more = write(&world, ino, 8 * MIB, 1).await;
            assert_eq!(more, Err(FsError::QuotaExceeded));
        };
        let (overwriting, adding) = (pin!(overwriting), pin!(adding));
        let first = select(overwriting, adding).await;
        assert!(
            matches!(first, Either::Right(_)),
            "an overwrite was refused"
        );
    });
}
