//! The data that benchmarks write.
//!
//! Owns: pseudo-random bytes that anyone can make again, and what of them can be compressed or
//! deduplicated.
//! Must not know: files, requests, engines.
//!
//! Making fresh noise for each request would cost as much as sending it. Buffers are filled with noise
//! once, and each block of 4 KiB that is sent is made unlike all others by a stamp of 16 bytes, as fio's
//! `scramble_buffers` does. Buffers take turns, so that the same noise comes again only after some MiB,
//! farther than compressors look back.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::plan::DataPattern;

/// The smallest unit any server deduplicates or compresses by: each such block is stamped, and has its
/// own share of compressible bytes.
pub const BLOCK_LEN_BYTES: usize = 4096;
pub const STAMP_LEN_BYTES: usize = 16;
/// Copies are made of whole, aligned extents of a file, so that a server finds them whatever unit up to
/// this it deduplicates by.
pub const COPY_LEN_BYTES: u64 = 1 << 20;
/// 2^64 divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// xorshift64*.
pub fn mix(mut word: u64) -> u64 {
    word ^= word >> 12;
    word ^= word << 25;
    word ^= word >> 27;
    word.wrapping_mul(0x2545_F491_4F6C_DD1D)
}

/// Fills whole words of `buffer` with what follows from `seed`; up to 7 bytes at the end stay. The
/// sequence is that of the C program `nfsload`.
pub fn fill(buffer: &mut [u8], seed: u64) {
    let mut state = seed | 1;
    for word in buffer.chunks_exact_mut(8) {
        state = mix(state.wrapping_add(STEP));
        word.copy_from_slice(&state.to_le_bytes());
    }
}

/// Whether `buffer` is what [`fill`] makes of `seed`.
pub fn is_filled(buffer: &[u8], seed: u64) -> bool {
    let mut state = seed | 1;
    buffer.chunks_exact(8).all(|word| {
        state = mix(state.wrapping_add(STEP));
        word == state.to_le_bytes()
    })
}

/// Makes a block unlike all others by a few bytes here and there, so that the load spends its time
/// sending.
pub fn stamp(buffer: &mut [u8], place: u64, turn: u64) {
    for (chunk, index) in buffer.chunks_mut(BLOCK_LEN_BYTES).zip(0u64..) {
        let Some(stamp) = chunk.get_mut(..STAMP_LEN_BYTES) else {
            return;
        };
        let offset = index * BLOCK_LEN_BYTES as u64;
        let (first, second) = stamp.split_at_mut(STAMP_LEN_BYTES / 2);
        let place = place.wrapping_add(offset).wrapping_add(1);
        first.copy_from_slice(&mix(place).to_le_bytes());
        second.copy_from_slice(&mix(turn.wrapping_add(1)).to_le_bytes());
    }
}

/// The bytes of one phase of one run, as a [`DataPattern`] wants them. Cheap to clone.
#[derive(Clone)]
pub struct Data {
    pattern: DataPattern,
    /// Different for each phase: what is written again must not be what is there already.
    salt: u64,
    /// What all copies are copies of; empty when there are none.
    original: Arc<[u8]>,
}

impl Data {
    /// `phase` counts the phases of a run. Percentages above 100 count as 100.
    pub fn new(pattern: &DataPattern, phase: u64) -> Self {
        let pattern = DataPattern {
            compressible_percent: pattern.compressible_percent.min(100),
            dedupe_percent: pattern.dedupe_percent.min(100),
            seed: pattern.seed,
        };
        let salt = mix(pattern.seed.wrapping_add(phase.wrapping_mul(STEP)) | 1);
        let mut data = Self {
            pattern,
            salt,
            original: Arc::default(),
        };
        if pattern.dedupe_percent > 0 {
            let mut original = vec![0; COPY_LEN_BYTES as usize];
            data.fill(&mut original, u64::MAX);
            data.original = original.into();
        }
        data
    }

    /// Fills a buffer that will be used for many requests. `index` counts the buffers of all clients.
    pub fn fill(&self, buffer: &mut [u8], index: u64) {
        fill(buffer, mix(self.pattern.seed ^ index.wrapping_mul(STEP)));
        let percent = usize::from(100 - self.pattern.compressible_percent);
        let noise_len_bytes = (BLOCK_LEN_BYTES * percent / 100).max(STAMP_LEN_BYTES);
        for block in buffer.chunks_mut(BLOCK_LEN_BYTES) {
            if let Some(rest) = block.get_mut(noise_len_bytes..) {
                rest.fill(0);
            }
        }
    }

    /// Makes `buffer`, filled before, what is to be at `offset` of the file number `file`, in the
    /// request number `turn` of the phase. `extent` is the number of the file's first extent of
    /// [`COPY_LEN_BYTES`] among those of all files.
    pub fn stamp(&self, buffer: &mut [u8], file: u64, extent: u64, offset: u64, turn: u64) {
        let place = mix(self.salt ^ file.wrapping_add(1).wrapping_mul(STEP)).wrapping_add(offset);
        if self.pattern.dedupe_percent == 0 {
            return stamp(buffer, place, turn);
        }
        let (mut rest, mut done) = (buffer, 0);
        while !rest.is_empty() {
            let at = offset.wrapping_add(done);
            let within = at % COPY_LEN_BYTES;
            let len = rest.len().min((COPY_LEN_BYTES - within) as usize);
            let (piece, after) = rest.split_at_mut(len);
            let within = within as usize;
            match self.original.get(within..within + len) {
                Some(original) if self.is_copy(extent.wrapping_add(at / COPY_LEN_BYTES)) => {
                    piece.copy_from_slice(original);
                }
                _ => stamp(piece, place.wrapping_add(done), turn),
            }
            (rest, done) = (after, done + len as u64);
        }
    }

    /// Spreads the copies evenly: of any 100 extents in a row as many are copies as was asked for.
    fn is_copy(&self, extent: u64) -> bool {
        let percent = u64::from(self.pattern.dedupe_percent);
        let place = extent % 100;
        (place + 1) * percent / 100 > place * percent / 100
    }
}

/// The buffers that one worker writes from, in turns.
#[derive(Clone)]
pub struct Buffers(Arc<BuffersInner>);

struct BuffersInner {
    data: Data,
    len_bytes: usize,
    count: usize,
    /// Which of the buffers of all workers the first one is.
    first_index: u64,
    free: Mutex<VecDeque<Vec<u8>>>,
}

/// A buffer in use; it goes to the end of the queue when it is dropped.
pub struct Buffer {
    bytes: Vec<u8>,
    home: Buffers,
}

impl Buffers {
    /// `count` filled buffers of `len_bytes`, with noise unlike that of other workers.
    pub fn new(data: &Data, len_bytes: usize, count: usize, worker: u64) -> Self {
        let first_index = worker << 32;
        let filled = (first_index..).take(count).map(|index| {
            let mut bytes = vec![0; len_bytes];
            data.fill(&mut bytes, index);
            bytes
        });
        Self(Arc::new(BuffersInner {
            data: data.clone(),
            len_bytes,
            count,
            first_index,
            free: Mutex::new(filled.collect()),
        }))
    }

    /// The buffer that was not used for the longest time. A new one when all are still on their way,
    /// which is at most once for each request in flight.
    pub fn take(&self) -> Buffer {
        let free = self.0.free.lock().pop_front();
        let bytes = free.unwrap_or_else(|| {
            let mut bytes = vec![0; self.0.len_bytes];
            self.0.data.fill(&mut bytes, self.0.first_index);
            bytes
        });
        Buffer {
            bytes,
            home: self.clone(),
        }
    }
}

impl Buffer {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// To be sent from where it is.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.home.0.free.lock();
        if free.len() < self.home.0.count {
            free.push_back(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Computed with `nfsload`'s `fill`.
    #[test]
    fn is_the_sequence_of_nfsload() {
        let mut buffer = [0; 24];
        let seed = 3 << 40 | 1 << 20;
        fill(&mut buffer, seed);
        let words: Vec<u64> = buffer
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let want = [
            0xf95c_f861_3b52_8a3f,
            0x1aea_8628_0312_693e,
            0xaa92_d644_2bb5_0141,
        ];
        assert_eq!(words, want);
        assert!(is_filled(&buffer, seed));
        assert!(!is_filled(&buffer, seed + 2));
        buffer[23] ^= 1;
        assert!(!is_filled(&buffer, seed));
    }

    #[test]
    fn stamps_differ_by_place_and_turn() {
        let stamped = |place, turn| {
            let mut block = vec![0u8; 8192];
            stamp(&mut block, place, turn);
            block
        };
        assert_ne!(stamped(0, 0), stamped(1, 0));
        assert_ne!(stamped(0, 0), stamped(0, 1));
        let block = stamped(0, 0);
        assert_ne!(block[..4096], block[4096..]);
        // Too short for one: left alone.
        stamp(&mut [0; 15], 0, 0);
    }

    const FILE_COUNT: u64 = 2;
    const FILE_LEN_BYTES: u64 = 20 << 20;

    /// All files of a phase, each written through 4 MiB of buffers.
    fn written(pattern: &DataPattern, phase: u64, request_bytes: usize) -> Vec<u8> {
        let data = Data::new(pattern, phase);
        let mut written = Vec::new();
        for file in 0..FILE_COUNT {
            let count = (4 << 20) / request_bytes;
            let buffers = Buffers::new(&data, request_bytes, count, file);
            let extent = file * FILE_LEN_BYTES / COPY_LEN_BYTES;
            for turn in 0..FILE_LEN_BYTES / request_bytes as u64 {
                let mut buffer = buffers.take();
                let offset = turn * request_bytes as u64;
                data.stamp(buffer.bytes_mut(), file, extent, offset, turn);
                written.extend_from_slice(&buffer.freeze());
            }
        }
        written
    }

    fn unique_percent(data: &[u8], unit: usize) -> f64 {
        let units = data.chunks(unit);
        let all = units.len();
        units.collect::<HashSet<_>>().len() as f64 * 100.0 / all as f64
    }

    fn pattern(compressible_percent: u8, dedupe_percent: u8) -> DataPattern {
        DataPattern {
            compressible_percent,
            dedupe_percent,
            seed: 7,
        }
    }

    #[test]
    fn compresses_as_asked_for() {
        for (percent, request_bytes) in [(0, 1 << 20), (30, 64 << 10), (50, 4096), (100, 1 << 20)] {
            let data = written(&pattern(percent, 0), 1, request_bytes);
            let left = f64::from(100 - percent);
            // A record of Cairn, and all that zstd sees at once.
            for (name, unit) in [("lz4", 128 << 10), ("zstd", 1 << 20)] {
                let compressed: usize = data
                    .chunks(unit)
                    .map(|unit| match name {
                        "lz4" => lz4_flex::compress(unit).len(),
                        _ => zstd::bulk::compress(unit, 1).expect("it compresses").len(),
                    })
                    .sum();
                let got = compressed as f64 * 100.0 / data.len() as f64;
                assert!((got - left).abs() < 2.0, "{name} of {percent}: {got} left");
            }
            assert_eq!(unique_percent(&data, BLOCK_LEN_BYTES), 100.0);
        }
    }

    #[test]
    fn has_as_many_copies_as_asked_for() {
        for (percent, request_bytes) in [(25, 4096), (50, 1 << 20), (50, 4 << 20), (100, 64 << 10)]
        {
            let data = written(&pattern(0, percent), 1, request_bytes);
            for unit in [BLOCK_LEN_BYTES, 128 << 10, 1 << 20] {
                let unique = unique_percent(&data, unit);
                // The original itself is unique, and one of 40 extents.
                let want = f64::from(100 - percent) + 2.5;
                assert!((unique - want).abs() < 0.1, "{percent} by {unit}: {unique}");
            }
        }
        // Copies compress like the rest.
        let data = written(&pattern(50, 50), 1, 1 << 20);
        let compressed: usize = data
            .chunks(4096)
            .map(|it| lz4_flex::compress(it).len())
            .sum();
        let left = compressed as f64 / data.len() as f64;
        assert!((left - 0.5).abs() < 0.03, "{left} left");
    }

    #[test]
    fn writing_again_writes_something_else() {
        let first = written(&pattern(0, 0), 1, 1 << 20);
        let second = written(&pattern(0, 0), 2, 1 << 20);
        let both = [first.as_slice(), second.as_slice()].concat();
        assert_eq!(unique_percent(&both, BLOCK_LEN_BYTES), 100.0);
        assert!(first == written(&pattern(0, 0), 1, 1 << 20));
    }
}
