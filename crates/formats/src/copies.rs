//! A small file that holds its content twice, so that a flipped bit, or a block that cannot be read, costs one copy.
//!
//! Owns: where the copies lie, and which one counts.
//! Must not know: what a copy holds, I/O.
//!
//! ```text
//! 0                   half                length
//! | copy              | copy              |     half: a multiple of 4096
//! ```
//!
//! Such a file is written whole, under another name, and renamed when it is durable: a crash leaves the old file or
//! the new one, each with two good copies. Overwriting the copies in turn would leave just one after a crash.

use std::cmp::Ordering;
use std::ops::Range;

/// Copies begin at multiples of this many bytes: no block of a disk holds parts of both.
pub const COPY_ALIGN_BYTES: usize = 4096;

/// A file of two copies. Panics if `copy` is empty or not whole blocks.
pub fn twice(mut copy: Vec<u8>) -> Vec<u8> {
    assert!(!copy.is_empty());
    assert!(copy.len().is_multiple_of(COPY_ALIGN_BYTES));
    copy.extend_from_within(..);
    copy
}

/// Where the copies are in a file of so many bytes. `None`: no such file has this length.
pub fn places(len_bytes: u64) -> Option<[Range<u64>; 2]> {
    let half = len_bytes / 2;
    let is_whole = half > 0 && len_bytes.is_multiple_of(2 * COPY_ALIGN_BYTES as u64);
    is_whole.then_some([0..half, half..len_bytes])
}

/// The copies in the bytes of a whole file.
pub fn split(file: &[u8]) -> Option<[&[u8]; 2]> {
    places(file.len() as u64)?;
    let (first, second) = file.split_at_checked(file.len() / 2)?;
    Some([first, second])
}

/// A copy that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("copy {number} of 2: {why}")]
pub struct BadCopy<E: std::fmt::Display> {
    /// From 1.
    pub number: u8,
    pub why: E,
}

/// The content of a file of two copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked<T, E: std::fmt::Display> {
    pub value: T,
    /// Why the other copy is bad, if it is. The file should be written again.
    pub bad: Option<BadCopy<E>>,
}

/// Decides between the copies: a good one counts; of two the one of the higher `version`. Good ones of one version are
/// equal, or the file is refused with what `differ` says.
///
/// What `decides` is an error even beside a good copy. With two bad copies it is that error, else the first.
pub fn pick<T: PartialEq, E: std::fmt::Display>(
    copies: [Result<T, E>; 2],
    version: impl Fn(&T) -> u64,
    decides: impl Fn(&E) -> bool,
    differ: impl FnOnce() -> E,
) -> Result<Picked<T, E>, E> {
    let [first, second] = copies;
    match (first, second) {
        (Ok(first), Ok(second)) => {
            let value = match version(&first).cmp(&version(&second)) {
                Ordering::Less => second,
                Ordering::Greater => first,
                Ordering::Equal if first == second => first,
                Ordering::Equal => return Err(differ()),
            };
            Ok(Picked { value, bad: None })
        }
        (_, Err(why)) | (Err(why), _) if decides(&why) => Err(why),
        (Ok(value), Err(why)) => Ok(Picked {
            value,
            bad: Some(BadCopy { number: 2, why }),
        }),
        (Err(why), Ok(value)) => Ok(Picked {
            value,
            bad: Some(BadCopy { number: 1, why }),
        }),
        (Err(why), Err(_)) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_whole_halves_have_two_copies() {
        let cases: &[(u64, Option<[Range<u64>; 2]>)] = &[
            (0, None),
            (4096, None),
            (8191, None),
            (8192, Some([0..4096, 4096..8192])),
            (12288, None),
            (16384, Some([0..8192, 8192..16384])),
            (u64::MAX, None),
        ];
        for (len_bytes, want) in cases {
            assert_eq!(places(*len_bytes), *want, "{len_bytes}");
        }
        let file = twice(vec![7; 4096]);
        assert_eq!(split(&file), Some([&file[..4096], &file[4096..]]));
    }

    #[test]
    fn a_good_copy_counts_unless_the_other_decides() {
        const NEWER: &str = "a newer version";
        const DIFFER: &str = "they differ";
        // A version and content.
        type Value = (u64, char);
        type Copies = [Result<Value, &'static str>; 2];
        type Want = Result<(Value, Option<u8>), &'static str>;
        let (one, other, next) = ((1, 'a'), (1, 'b'), (2, 'c'));
        let cases: &[(Copies, Want)] = &[
            ([Ok(one), Ok(one)], Ok((one, None))),
            ([Ok(one), Ok(next)], Ok((next, None))),
            ([Ok(next), Ok(one)], Ok((next, None))),
            ([Ok(one), Ok(other)], Err(DIFFER)),
            ([Err("damaged"), Ok(one)], Ok((one, Some(1)))),
            ([Ok(one), Err("damaged")], Ok((one, Some(2)))),
            ([Err("damaged"), Err("gone")], Err("damaged")),
            ([Ok(one), Err(NEWER)], Err(NEWER)),
            ([Err(NEWER), Ok(one)], Err(NEWER)),
            ([Err("damaged"), Err(NEWER)], Err(NEWER)),
            ([Err(NEWER), Err("damaged")], Err(NEWER)),
        ];
        for (copies, want) in cases {
            let picked = pick(*copies, |value| value.0, |why| *why == NEWER, || DIFFER);
            let got = picked.map(|picked| (picked.value, picked.bad.map(|bad| bad.number)));
            assert_eq!(got, *want, "{copies:?}");
        }
    }
}
