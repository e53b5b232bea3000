//! Which code, which disks, how much room: decided as plain data.
//!
//! Owns: the rules of section 8 of the design and of Rule 5. Must not know: how disks are asked.

use cairn_erasure::Code;

use crate::error::{Result, SegmentError};
use crate::types::{Protection, SegmentSettings};

/// Most data shards of a segment.
const DATA_SHARDS_MAX: usize = 16;
/// The reserve is never more than this share of a disk, so that tiny disks can be used at all.
const RESERVE_DIVISOR_MIN: u64 = 16;

/// A code from counts that are in range by construction.
fn code(data: usize, parity: usize) -> Code {
    Code::new(data as u8, parity as u8).expect("1..=16 data and 0..=4 parity shards")
}

/// What a pool of so many disks uses unless told otherwise.
pub(crate) fn default_code(disk_count: usize) -> Code {
    match disk_count {
        0 | 1 => code(1, 0),
        2 => code(1, 1),
        3 => code(1, 2),
        more => code((more - 2).min(DATA_SHARDS_MAX), 2),
    }
}

/// The code of a protection in a pool of so many disks.
pub(crate) fn code_for(protection: Protection, disk_count: usize) -> Result<Code> {
    let (what, wide, parity) = match protection {
        Protection::Default => return Ok(default_code(disk_count)),
        Protection::None => return Ok(code(1, 0)),
        Protection::Plus(losses @ 1..=4) => (format!("+{losses}n"), true, usize::from(losses)),
        Protection::Plus(losses) => {
            let what = format!("+{losses}n");
            return Err(SegmentError::Protection { what });
        }
        Protection::Mirror(copies @ 2..=5) => {
            (format!("{copies}x"), false, usize::from(copies - 1))
        }
        Protection::Mirror(copies) => {
            let what = format!("{copies}x");
            return Err(SegmentError::Protection { what });
        }
    };
    if disk_count <= parity {
        return Err(SegmentError::TooFewDisks {
            what,
            needed: parity + 1,
            present: disk_count,
        });
    }
    let data = if wide { disk_count - parity } else { 1 };
    Ok(code(data.min(DATA_SHARDS_MAX), parity))
}

/// The code a new segment gets when `wanted` was asked for, `healthy` disks work and `roomy` of them
/// have space. None: no space.
///
/// With disks lost or full, segments get narrower and keep the number of losses they survive; only
/// when too few disks work at all are there fewer copies.
pub(crate) fn fit_code(wanted: Code, healthy: usize, roomy: usize) -> Option<Code> {
    let parity = usize::from(wanted.parity());
    if roomy > parity {
        let data = usize::from(wanted.data()).min(roomy - parity);
        return Some(code(data, parity));
    }
    let no_more_healthy = roomy == healthy && roomy > 0;
    no_more_healthy.then(|| code(1, roomy - 1))
}

/// Picks `count` of the disks, given by their free bytes, at random and weighted by them; returns
/// indexes, in the order of the shards. `random` gives uniform numbers.
pub(crate) fn choose_disks(
    free_bytes: &[u64],
    count: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<usize> {
    // Efraimidis and Spirakis (2006): the largest of u^(1/weight) are a weighted sample without
    // replacement; in logarithms, the smallest of -ln(u) / weight.
    let mut keyed: Vec<(f64, usize)> = free_bytes
        .iter()
        .enumerate()
        .map(|(index, free)| {
            let uniform = (random() >> 11) as f64 / (1_u64 << 53) as f64;
            let key = -(uniform.max(f64::MIN_POSITIVE)).ln() / (*free).max(1) as f64;
            (key, index)
        })
        .collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    keyed
        .into_iter()
        .take(count)
        .map(|(_, index)| index)
        .collect()
}

/// The bytes of a disk that only garbage collection and rebuild may use.
pub(crate) fn reserve_bytes(settings: &SegmentSettings, total_bytes: u64) -> u64 {
    let share = (u128::from(total_bytes) * u128::from(settings.reserve_permille) / 1000) as u64;
    share
        .max(settings.reserve_bytes_min)
        .min(total_bytes / RESERVE_DIVISOR_MIN)
}

/// Most bytes of data that fit disks with so much room each, in segments of `code` on distinct disks. All of them
/// work: one without room is full, which is no reason to protect less.
pub(crate) fn usable_bytes(room_bytes: &[u64], code: Code) -> u64 {
    let roomy = room_bytes.iter().filter(|room| **room > 0).count();
    let Some(code) = fit_code(code, room_bytes.len(), roomy) else {
        return 0;
    };
    let total: u128 = room_bytes.iter().map(|room| u128::from(*room)).sum();
    let width = u128::from(code.total());
    // With x bytes in each shard position, a disk takes at most x: find the largest x for which the
    // disks take width * x in all. The answer is where the largest disks are cut off.
    let mut sorted = room_bytes.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut rest = total;
    let mut each = total / width;
    for (index, room) in sorted
        .iter()
        .enumerate()
        .take(usize::from(code.total()) - 1)
    {
        if u128::from(*room) <= each {
            break;
        }
        rest -= u128::from(*room);
        each = rest / (width - index as u128 - 1);
    }
    u64::try_from(each * u128::from(code.data())).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(code: Code) -> String {
        format!("{}+{}", code.data(), code.parity())
    }

    #[test]
    fn codes_follow_the_disks() {
        use Protection::*;
        let cases: &[(Protection, usize, Option<&str>)] = &[
            (Default, 1, Some("1+0")),
            (Default, 2, Some("1+1")),
            (Default, 3, Some("1+2")),
            (Default, 4, Some("2+2")),
            (Default, 5, Some("3+2")),
            (Default, 6, Some("4+2")),
            (Default, 18, Some("16+2")),
            (Default, 40, Some("16+2")),
            (None, 6, Some("1+0")),
            (Plus(1), 2, Some("1+1")),
            (Plus(1), 1, Option::None),
            (Plus(4), 6, Some("2+4")),
            (Plus(4), 4, Option::None),
            (Plus(0), 6, Option::None),
            (Plus(5), 60, Option::None),
            (Mirror(2), 6, Some("1+1")),
            (Mirror(5), 5, Some("1+4")),
            (Mirror(5), 4, Option::None),
            (Mirror(1), 4, Option::None),
        ];
        for (protection, disks, want) in cases {
            let got = code_for(*protection, *disks).ok().map(text);
            assert_eq!(got.as_deref(), *want, "{protection:?} on {disks}");
        }
    }

    #[test]
    fn codes_narrow_when_disks_are_lost_or_full() {
        type Case<'a> = (&'a str, (u8, u8), usize, usize, Option<&'a str>);
        let cases: &[Case] = &[
            ("all there", (4, 2), 6, 6, Some("4+2")),
            ("more than needed", (2, 2), 6, 5, Some("2+2")),
            ("two lost", (4, 2), 4, 4, Some("2+2")),
            ("two full", (4, 2), 6, 4, Some("2+2")),
            ("three left", (4, 2), 3, 3, Some("1+2")),
            ("two left: copies", (4, 2), 2, 2, Some("1+1")),
            ("one left", (4, 2), 1, 1, Some("1+0")),
            ("none left", (4, 2), 0, 0, None),
            ("full is not a reason to protect less", (4, 2), 6, 2, None),
            ("one disk, full", (1, 0), 1, 0, None),
        ];
        for (name, (data, parity), healthy, roomy, want) in cases {
            let wanted = Code::new(*data, *parity).expect("code");
            let got = fit_code(wanted, *healthy, *roomy).map(text);
            assert_eq!(got.as_deref(), *want, "{name}");
        }
    }

    #[test]
    fn room_counts_distinct_disks() {
        type Case<'a> = (&'a str, (u8, u8), &'a [u64], u64);
        let cases: &[Case] = &[
            ("one disk", (1, 0), &[100], 100),
            ("six equal", (4, 2), &[60; 6], 240),
            ("seven equal", (4, 2), &[60; 7], 280),
            ("one large of two", (1, 1), &[1000, 10], 10),
            ("one large of three", (1, 1), &[1000, 10, 10], 20),
            ("a disk lost", (4, 2), &[60; 5], 180),
            ("nothing", (4, 2), &[0; 6], 0),
            ("no disks", (4, 2), &[], 0),
            ("one full of two", (1, 1), &[0, 1000], 0),
            ("one full of three", (1, 1), &[0, 1000, 1000], 1000),
            ("too few with room", (4, 2), &[0, 0, 0, 0, 60, 60], 0),
            ("huge", (16, 2), &[u64::MAX; 18], u64::MAX),
        ];
        for (name, (data, parity), room, want) in cases {
            let code = Code::new(*data, *parity).expect("code");
            assert_eq!(usable_bytes(room, code), *want, "{name}");
        }
    }

    #[test]
    fn disks_are_distinct_and_weighted() {
        let free = [1_000_000, 1_000_000, 0, 3_000_000];
        let mut firsts = [0; 4];
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..5000 {
            let mut chosen = choose_disks(&free, 3, &mut random);
            firsts[chosen[0]] += 1;
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), 3);
        }
        assert!((800..1200).contains(&firsts[0]), "{firsts:?}");
        assert_eq!(firsts[2], 0, "a full disk comes last");
        assert!((2800..3200).contains(&firsts[3]), "{firsts:?}");
    }

    #[test]
    fn the_reserve_fits_the_disk() {
        let settings = SegmentSettings::default();
        let cases: &[(u64, u64)] = &[
            (0, 0),
            (160 << 20, 10 << 20),
            (2 << 30, 64 << 20),
            (10_000_000_000_000, 200_000_000_000),
        ];
        for (total, want) in cases {
            assert_eq!(reserve_bytes(&settings, *total), *want, "{total}");
        }
    }
}
