//! How memory is divided among what shares it.
//!
//! Owns: the arithmetic. Must not know: what the shares are for.

/// What one of several may have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// However little there is.
    pub least_bytes: u64,
    /// However much there is.
    pub full_bytes: u64,
}

/// Divides `bytes` among shares: each has its least, and what is left goes to them in proportion to what they lack. Together they
/// have `bytes` at the most, unless their least is more.
pub fn divide<const COUNT: usize>(bytes: u64, shares: [Share; COUNT]) -> [u64; COUNT] {
    let lacks = |share: &Share| share.full_bytes.saturating_sub(share.least_bytes);
    let least: u64 = shares.iter().map(|share| share.least_bytes).sum();
    let lacking: u64 = shares.iter().map(lacks).sum();
    let left = bytes.saturating_sub(least).min(lacking);
    shares.map(|share| {
        let part = u128::from(left) * u128::from(lacks(&share));
        let part = part.checked_div(u128::from(lacking)).unwrap_or(0);
        share.least_bytes + u64::try_from(part).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(least_bytes: u64, full_bytes: u64) -> Share {
        Share {
            least_bytes,
            full_bytes,
        }
    }

    #[test]
    fn each_has_its_least_and_none_more_than_its_full_size() {
        let shares = [share(10, 90), share(20, 60)];
        let cases = [
            (0, [10, 20]),
            (30, [10, 20]),
            (90, [50, 40]),
            (150, [90, 60]),
            (u64::MAX, [90, 60]),
        ];
        for (bytes, want) in cases {
            assert_eq!(divide(bytes, shares), want, "{bytes}");
        }
        assert_eq!(divide(7, [share(3, 3), share(5, 0)]), [3, 5]);
    }

    proptest! {
        #[test]
        fn what_is_there_is_handed_out_and_no_more(
            bytes in 0_u64..1 << 40,
            of in [(0_u64..1 << 38, 0_u64..1 << 38), (0_u64..1 << 38, 0_u64..1 << 38)],
        ) {
            let shares = of.map(|(least, more)| share(least, least + more));
            let got = divide(bytes, shares);
            for (share, got) in shares.iter().zip(got) {
                prop_assert!((share.least_bytes..=share.full_bytes).contains(&got));
            }
            let least: u64 = shares.iter().map(|share| share.least_bytes).sum();
            let full: u64 = shares.iter().map(|share| share.full_bytes).sum();
            let sum: u64 = got.iter().sum();
            let want = bytes.clamp(least, full);
            prop_assert!(sum <= want && sum + 2 >= want, "{sum} {want}");
        }
    }
}
