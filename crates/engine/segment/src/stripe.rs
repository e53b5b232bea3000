//! The buffers of one stripe: data units, without copies where alignment allows, and parity.
//!
//! Owns: turning placed records into the writes of each shard. Must not know: disks, segments.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, crc32c_append};
use cairn_erasure::Code;
use cairn_formats::pointer::BLOCK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Padding at the end of a stripe is less than one block per unit of the widest code, plus one.
const ZERO_BLOCKS: usize = 17;

static ZEROS: LazyLock<Bytes> = LazyLock::new(|| AlignedBuf::zeroed(ZERO_BLOCKS * BLOCK).freeze());

/// The bytes that each of the N+M shards writes for one stripe; all have one length.
#[derive(Debug)]
pub(crate) struct StripeBuffers {
    pub shards: Vec<Vec<Bytes>>,
}

impl StripeBuffers {
    /// Builds the stripe from `records`, each with its start offset, in ascending order.
    pub fn build(code: Code, unit_len_bytes: usize, records: &[(usize, &[Bytes])]) -> Self {
        let stripe_len = unit_len_bytes * usize::from(code.data());
        let runs = aligned_runs(stripe_len, records);
        let mut shards: Vec<Vec<Bytes>> = (0..usize::from(code.data()))
            .map(|unit| slice_runs(&runs, unit * unit_len_bytes..(unit + 1) * unit_len_bytes))
            .collect();
        if code.data() == 1 {
            // Mirrors write the buffers of the data.
            for _ in 0..code.parity() {
                shards.push(shards[0].clone());
            }
        } else {
            let mut parity = parity(code, unit_len_bytes, &shards);
            if planted::is(Bug::ParityNotComputed)
                && let Some(last) = parity.last_mut()
            {
                *last = vec![0; unit_len_bytes].into();
            }
            shards.extend(parity.into_iter().map(|unit| vec![unit]));
        }
        Self { shards }
    }

    /// CRC32C of each shard's bytes, cut at multiples of `chunk_bytes` of the shard.
    pub fn checksums(&self, shard_offset: u64, chunk_bytes: u64) -> Vec<Vec<u32>> {
        let first = (chunk_bytes - shard_offset % chunk_bytes) as usize;
        self.shards
            .iter()
            .map(|parts| chunk_checksums(parts, first, chunk_bytes as usize))
            .collect()
    }
}

fn chunk_checksums(parts: &[Bytes], first: usize, chunk_bytes: usize) -> Vec<u32> {
    let mut checksums = Vec::new();
    let (mut crc, mut left, mut any) = (0, first, false);
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(left));
            crc = crc32c_append(crc, now);
            left -= now.len();
            any = true;
            rest = later;
            if left == 0 {
                checksums.push(crc);
                (crc, left, any) = (0, chunk_bytes, false);
            }
        }
    }
    if any {
        checksums.push(crc);
    }
    checksums
}

/// The stripe as consecutive buffers of whole blocks at aligned addresses.
///
/// Blocks that lie in one part of a record at an aligned address are slices of it; all others are copied into fresh
/// buffers.
fn aligned_runs(stripe_len: usize, records: &[(usize, &[Bytes])]) -> Vec<Bytes> {
    let mut placed: Vec<(usize, &Bytes)> = Vec::new();
    for (start, parts) in records {
        let mut at = *start;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            placed.push((at, part));
            at += part.len();
        }
    }
    let mut runs = Vec::new();
    let mut done = 0;
    // Parts before `gathered` are entirely in `runs`.
    let mut gathered = 0;
    for (index, (start, part)) in placed.iter().enumerate() {
        let Some(direct) = direct_blocks(*start, part) else {
            continue;
        };
        if direct.start > done {
            runs.push(gather(done..direct.start, &placed[gathered..=index]));
        }
        runs.push(part.slice(direct.start - start..direct.end - start));
        done = direct.end;
        gathered = index;
    }
    if stripe_len > done {
        runs.push(gather(done..stripe_len, &placed[gathered..]));
    }
    runs
}

/// The bytes of the stripe that `part`, lying at `start`, provides as whole aligned blocks.
fn direct_blocks(start: usize, part: &Bytes) -> Option<Range<usize>> {
    let first = start.next_multiple_of(BLOCK);
    let end = (start + part.len()) / BLOCK * BLOCK;
    let address = part.as_ptr().addr() + (first - start);
    (first < end && address.is_multiple_of(BLOCK)).then_some(first..end)
}

/// A fresh buffer for `range` of the stripe: the bytes of the parts there, zeros elsewhere.
fn gather(range: Range<usize>, placed: &[(usize, &Bytes)]) -> Bytes {
    let overlaps =
        |(start, part): &&(usize, &Bytes)| *start < range.end && start + part.len() > range.start;
    if !placed.iter().any(|each| overlaps(&each)) && range.len() <= ZEROS.len() {
        return ZEROS.slice(..range.len());
    }
    let mut buf = AlignedBuf::zeroed(range.len());
    for (start, part) in placed.iter().filter(overlaps) {
        let from = range.start.max(*start);
        let to = range.end.min(start + part.len());
        buf[from - range.start..to - range.start].copy_from_slice(&part[from - start..to - start]);
    }
    buf.freeze()
}

/// The part of a list of buffers in `range`, without a copy.
fn slice_runs(runs: &[Bytes], range: Range<usize>) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let mut start = 0;
    for run in runs {
        let end = start + run.len();
        let from = range.start.max(start);
        let to = range.end.min(end);
        if from < to {
            parts.push(run.slice(from - start..to - start));
        }
        start = end;
    }
    parts
}

/// Parity over units given in parts, encoded in ranges in which no unit has a seam.
fn parity(code: Code, unit_len_bytes: usize, units: &[Vec<Bytes>]) -> Vec<Bytes> {
    let mut out: Vec<AlignedBuf> = (0..code.parity())
        .map(|_| AlignedBuf::zeroed(unit_len_bytes))
        .collect();
    let mut seams: Vec<usize> = units.iter().flat_map(|parts| seams_of(parts)).collect();
    seams.sort_unstable();
    seams.dedup();
    // For each unit: the current part, and its start in the unit.
    let mut cursors = vec![(0, 0); units.len()];
    let mut from = 0;
    for to in seams {
        let data: Vec<&[u8]> = units
            .iter()
            .zip(&mut cursors)
            .map(|(parts, (index, start))| {
                while *start + parts[*index].len() <= from {
                    *start += parts[*index].len();
                    *index += 1;
                }
                &parts[*index][from - *start..to - *start]
            })
            .collect();
        let mut parity: Vec<&mut [u8]> = out.iter_mut().map(|unit| &mut unit[from..to]).collect();
        if code.parity() > 0 {
            cairn_erasure::encode(code, &data, &mut parity);
        }
        from = to;
    }
    out.into_iter().map(AlignedBuf::freeze).collect()
}

/// Ends of the parts, counted from the start of the unit.
fn seams_of(parts: &[Bytes]) -> impl Iterator<Item = usize> {
    parts.iter().scan(0, |end, part| {
        *end += part.len();
        Some(*end)
    })
}

#[cfg(test)]
mod tests {
    use cairn_base::buf::is_io_aligned;
    use cairn_base::crc32c;
    use proptest::prelude::*;

    use super::*;

    /// Bytes of a record, in an aligned buffer or shifted by one.
    fn part(len: usize, seed: usize, aligned: bool) -> Bytes {
        let shift = usize::from(!aligned);
        let mut buf = AlignedBuf::zeroed(len + shift);
        for (index, byte) in buf.iter_mut().enumerate() {
            *byte = (index * 7 + index / 251 + seed * 13) as u8;
        }
        buf.freeze().slice(shift..)
    }

    fn check(code: Code, unit_len: usize, records: &[(usize, Vec<Bytes>)]) -> StripeBuffers {
        let placed: Vec<(usize, &[Bytes])> = records
            .iter()
            .map(|(at, parts)| (*at, &parts[..]))
            .collect();
        let stripe = StripeBuffers::build(code, unit_len, &placed);
        let mut want = vec![0; unit_len * usize::from(code.data())];
        for (at, parts) in records {
            let bytes = parts.concat();
            want[*at..*at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(stripe.shards.len(), usize::from(code.total()));
        let units: Vec<Vec<u8>> = stripe.shards.iter().map(|parts| parts.concat()).collect();
        assert!(units[..usize::from(code.data())].concat() == want);
        let mut parity = vec![vec![0; unit_len]; usize::from(code.parity())];
        if code.parity() > 0 {
            let data: Vec<&[u8]> = want.chunks(unit_len).collect();
            let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(|unit| &mut unit[..]).collect();
            cairn_erasure::encode(code, &data, &mut parity);
        }
        assert!(units[usize::from(code.data())..] == parity);
        for parts in &stripe.shards {
            assert!(
                parts.iter().all(|part| is_io_aligned(part)),
                "goes to O_DIRECT as it is"
            );
        }
        stripe
    }

    #[test]
    fn aligned_records_are_not_copied() {
        let code = Code::new(4, 2).expect("code");
        let records: Vec<(usize, Vec<Bytes>)> = (0..4)
            .map(|i| (i << 20, vec![part(1 << 20, i, true)]))
            .collect();
        let stripe = check(code, 1 << 20, &records);
        for (unit, (_, parts)) in records.iter().enumerate() {
            assert_eq!(stripe.shards[unit].len(), 1);
            assert_eq!(stripe.shards[unit][0].as_ptr(), parts[0].as_ptr());
        }
    }

    #[test]
    fn checksums_are_cut_at_chunks_of_the_shard() {
        let code = Code::new(1, 0).expect("code");
        let stripe = check(code, 5 * BLOCK, &[(0, vec![part(5 * BLOCK, 3, false)])]);
        let bytes = stripe.shards[0].concat();
        let chunk = 2 * BLOCK as u64;
        let want = |cuts: &[Range<usize>]| -> Vec<u32> {
            cuts.iter()
                .map(|cut| crc32c(&bytes[cut.start * BLOCK..cut.end * BLOCK]))
                .collect()
        };
        assert_eq!(stripe.checksums(0, chunk), [want(&[0..2, 2..4, 4..5])]);
        assert_eq!(
            stripe.checksums(3 * BLOCK as u64, chunk),
            [want(&[0..1, 1..3, 3..5])]
        );
    }

    proptest! {
        #[test]
        fn any_parts_make_the_stripe(
            data in 1_u8..=5, parity in 0_u8..=2,
            records in proptest::collection::vec((0_usize..20_000, 1_usize..4, any::<bool>(), any::<bool>()), 0..12),
        ) {
            let mut at = 0;
            let mut placed = Vec::new();
            for (seed, (len, cuts, aligned, block)) in records.into_iter().enumerate() {
                let start = usize::next_multiple_of(at, if block { BLOCK } else { 8 });
                let parts: Vec<Bytes> = (0..cuts).map(|cut| part(len / cuts, seed + cut, aligned)).collect();
                at = start + len / cuts * cuts;
                placed.push((start, parts));
            }
            let unit = at.div_ceil(usize::from(data)).next_multiple_of(BLOCK).max(BLOCK);
            check(Code::new(data, parity).expect("code"), unit, &placed);
        }
    }
}
