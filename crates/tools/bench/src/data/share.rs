//! Which bytes of which file are a worker's, and in which order it goes through them.
//!
//! Owns: layouts as offsets. Must not know: servers, time.

use crate::pattern::{COPY_LEN_BYTES, mix};
use crate::plan::Layout;

/// The part of the files that one worker goes through: so many runs of bytes, equally far apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    pub file: File,
    first_offset: u64,
    stride_bytes: u64,
    run_bytes: u64,
    run_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum File {
    OfWorker(u64),
    Shared,
}

impl File {
    pub fn name(self) -> String {
        match self {
            Self::OfWorker(worker) => format!("data.{worker:05}"),
            Self::Shared => "data.shared".to_owned(),
        }
    }

    /// Different for each file.
    pub fn number(self) -> u64 {
        match self {
            Self::OfWorker(worker) => worker,
            Self::Shared => u64::MAX,
        }
    }
}

impl Share {
    /// That of one worker among all of all clients; `None` when a file would be larger than 2^63.
    pub fn new(layout: &Layout, worker: u64, worker_count: u64) -> Option<Self> {
        let share = match *layout {
            Layout::PerWorker { bytes } => Self {
                file: File::OfWorker(worker),
                first_offset: 0,
                stride_bytes: bytes,
                run_bytes: bytes,
                run_count: 1,
            },
            Layout::Shared {
                block_bytes,
                segments,
            } => Self {
                file: File::Shared,
                first_offset: worker.checked_mul(block_bytes)?,
                stride_bytes: worker_count.checked_mul(block_bytes)?,
                run_bytes: block_bytes,
                run_count: segments,
            },
        };
        let end = share.stride_bytes.checked_mul(share.run_count)?;
        // All files together are numbered by extents, so their sum must fit as well.
        let all = end.checked_mul(worker_count)?;
        (all <= 1 << 63).then_some(share)
    }

    pub fn len_bytes(&self) -> u64 {
        self.run_bytes * self.run_count
    }

    /// The number of the file's first extent among those of all files.
    pub fn first_extent(&self) -> u64 {
        match self.file {
            File::OfWorker(worker) => worker * self.run_bytes.div_ceil(COPY_LEN_BYTES),
            File::Shared => 0,
        }
    }

    /// What names these bytes whatever part of the file is used: a shorter file of a worker is the
    /// front of a longer one, but another shared layout is in other places.
    pub fn place(&self) -> Self {
        match self.file {
            File::OfWorker(_) => Self {
                stride_bytes: 0,
                run_bytes: 0,
                ..self.clone()
            },
            File::Shared => self.clone(),
        }
    }

    /// The requests that go through it. `with_rest`: also what is shorter than a request at the end of
    /// each run.
    pub fn blocks(&self, request_bytes: u64, with_rest: bool) -> Blocks {
        let per_run = match with_rest {
            true => self.run_bytes.div_ceil(request_bytes),
            false => self.run_bytes / request_bytes,
        };
        Blocks {
            share: self.clone(),
            request_bytes,
            per_run,
        }
    }
}

/// A share cut into requests.
#[derive(Clone, Debug)]
pub struct Blocks {
    share: Share,
    request_bytes: u64,
    per_run: u64,
}

impl Blocks {
    pub fn count(&self) -> u64 {
        self.per_run * self.share.run_count
    }

    /// Offset in the file and length in bytes of a block below [`Self::count`].
    pub fn at(&self, block: u64) -> (u64, u64) {
        let (run, within) = (block / self.per_run, block % self.per_run);
        let within_bytes = within * self.request_bytes;
        let offset = self.share.first_offset + run * self.share.stride_bytes + within_bytes;
        (
            offset,
            self.request_bytes.min(self.share.run_bytes - within_bytes),
        )
    }

    /// Bytes from the front of the share to a block; all of it if there is no such block.
    pub fn bytes_before(&self, block: u64) -> u64 {
        if block >= self.count() {
            return self.share.len_bytes();
        }
        let (run, within) = (block / self.per_run, block % self.per_run);
        run * self.share.run_bytes + within * self.request_bytes
    }

    /// The first block that is not whole in so many bytes at the front of the share.
    pub fn first_after(&self, bytes: u64) -> u64 {
        let (run, within) = (bytes / self.share.run_bytes, bytes % self.share.run_bytes);
        (run * self.per_run + within / self.request_bytes).min(self.count())
    }
}

/// The numbers below `count` in an order that looks random, each once, without memory for it: a Feistel
/// network on the next power of four, walked until it is back in range.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    const ROUND_COUNT: u64 = 4;

    pub fn new(count: u64, seed: u64) -> Self {
        let bits = count.max(2).next_power_of_two().ilog2();
        Self {
            count,
            half_bits: bits.div_ceil(2),
            seed,
        }
    }

    /// `index` must be below the count.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.count);
        let mask = (1 << self.half_bits) - 1;
        let mut number = index;
        loop {
            let (mut left, mut right) = (number >> self.half_bits, number & mask);
            for round in 0..Self::ROUND_COUNT {
                let key = self.seed.wrapping_add(round << 32).wrapping_add(right + 1);
                (left, right) = (right, left ^ (mix(key) >> 32 & mask));
            }
            number = left << self.half_bits | right;
            if number < self.count {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_shared_file_is_laid_out_as_ior_does() {
        let layout = Layout::Shared {
            block_bytes: 100,
            segments: 2,
        };
        let offsets = |worker| {
            let blocks = Share::new(&layout, worker, 3)
                .expect("small")
                .blocks(50, false);
            let at = (0..blocks.count()).map(|block| blocks.at(block));
            at.collect::<Vec<_>>()
        };
        assert_eq!(offsets(0), [(0, 50), (50, 50), (300, 50), (350, 50)]);
        assert_eq!(offsets(2), [(200, 50), (250, 50), (500, 50), (550, 50)]);
    }

    #[test]
    fn a_file_of_a_worker_may_have_a_rest() {
        let layout = Layout::PerWorker { bytes: 110 };
        let share = Share::new(&layout, 1, 2).expect("small");
        assert_eq!(share.blocks(50, false).count(), 2);
        let blocks = share.blocks(50, true);
        assert_eq!((blocks.count(), blocks.at(2)), (3, (100, 10)));
        let before: Vec<u64> = (0..5).map(|block| blocks.bytes_before(block)).collect();
        assert_eq!(before, [0, 50, 100, 110, 110]);
        let after: Vec<u64> = [0, 49, 50, 109, 110]
            .map(|it| blocks.first_after(it))
            .to_vec();
        assert_eq!(after, [0, 0, 1, 2, 3]);
        let shorter = Share::new(&Layout::PerWorker { bytes: 10 }, 1, 2).expect("small");
        assert_eq!(share.place(), shorter.place());
    }

    #[test]
    fn what_is_too_large_is_refused() {
        for (layout, workers) in [
            (Layout::PerWorker { bytes: u64::MAX }, 1),
            (Layout::PerWorker { bytes: 1 << 62 }, 4),
            (
                Layout::Shared {
                    block_bytes: 1 << 60,
                    segments: 1 << 10,
                },
                1,
            ),
        ] {
            assert_eq!(Share::new(&layout, 0, workers), None, "{layout:?}");
        }
    }

    proptest! {
        #[test]
        fn a_shuffle_has_each_number_once(count in 1..3000u64, seed: u64) {
            let shuffle = Shuffle::new(count, seed);
            let mut seen = vec![false; count as usize];
            for index in 0..count {
                let number = shuffle.at(index) as usize;
                prop_assert!(!seen[number]);
                seen[number] = true;
            }
        }
    }

    #[test]
    fn a_shuffle_jumps() {
        let shuffle = Shuffle::new(1000, 1);
        let near = (1..1000).filter(|at| shuffle.at(*at).abs_diff(shuffle.at(at - 1)) < 10);
        assert!(near.count() < 60);
    }
}
