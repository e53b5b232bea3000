//! Whatever is lost, up to M units, comes back as it was.

use cairn_erasure::{Code, Kernel, encode_with, reconstruct_with};
use proptest::prelude::*;

/// A row of units with its parity, data from `seed`.
fn row(kernel: Kernel, code: Code, len_bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut noise = seed | 1;
    let mut units: Vec<Vec<u8>> = (0..code.total())
        .map(|_| {
            (0..len_bytes)
                .map(|_| {
                    noise = noise
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (noise >> 56) as u8
                })
                .collect()
        })
        .collect();
    let (data, parity) = units.split_at_mut(usize::from(code.data()));
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    encode_with(kernel, code, &data, &mut parity);
    units
}

/// Reconstructs all units of the set `lost` from N of the others, taken from the end if `last`.
fn check(kernel: Kernel, code: Code, units: &[Vec<u8>], lost: u32, last: bool) {
    let all = 0..code.total();
    let mut present: Vec<(u8, &[u8])> = all
        .clone()
        .filter(|index| lost >> index & 1 == 0)
        .map(|index| (index, units[usize::from(index)].as_slice()))
        .collect();
    if last {
        present.reverse();
    }
    present.truncate(usize::from(code.data()));
    let mut outs: Vec<(u8, Vec<u8>)> = all
        .filter(|index| lost >> index & 1 == 1)
        .map(|index| (index, vec![0xee; units[0].len()]))
        .collect();
    let mut wanted: Vec<(u8, &mut [u8])> = outs
        .iter_mut()
        .map(|(index, out)| (*index, out.as_mut_slice()))
        .collect();
    reconstruct_with(kernel, code, &present, &mut wanted).unwrap();
    for (index, out) in outs {
        assert!(
            out == units[usize::from(index)],
            "{kernel} {code} lost {lost:b} unit {index}"
        );
    }
}

fn code(data: u8, parity: u8) -> Code {
    Code::new(data, parity).unwrap()
}

#[test]
fn every_loss_pattern_of_every_code_is_recovered() {
    for data in 1..=16 {
        for parity in 0..=4 {
            let code = code(data, parity);
            let units = row(Kernel::best(), code, 19, 7);
            for lost in 0u32..1 << code.total() {
                if lost.count_ones() <= u32::from(parity) {
                    check(Kernel::best(), code, &units, lost, false);
                    check(Kernel::best(), code, &units, lost, true);
                }
            }
        }
    }
}

#[test]
fn every_kernel_recovers_usual_codes() {
    for kernel in Kernel::available() {
        for code in [code(2, 2), code(3, 2), code(4, 2), code(16, 2), code(1, 2)] {
            let units = row(kernel, code, 1000, 3);
            assert_eq!(
                units,
                row(Kernel::Portable, code, 1000, 3),
                "{kernel} {code}"
            );
            for lost in 0u32..1 << code.total() {
                if lost.count_ones() <= u32::from(code.parity()) {
                    check(kernel, code, &units, lost, false);
                }
            }
        }
    }
}

#[test]
fn mirrors_are_copies() {
    for parity in 0..=4 {
        let units = row(Kernel::best(), code(1, parity), 100, 5);
        assert!(units.iter().all(|unit| *unit == units[0]));
    }
}

/// The bytes are on disk: they never change. Computed by ISA-L 2.30 (gf_gen_cauchy1_matrix and
/// ec_encode_data) of the data units [j * 16 + b for b in 0..8].
#[test]
fn parity_bytes_are_those_of_isal() {
    let cases: &[(u8, u8, &[&[u8]])] = &[
        (
            2,
            2,
            &[
                &[251, 129, 15, 117, 14, 116, 250, 128],
                &[8, 114, 252, 134, 253, 135, 9, 115],
            ],
        ),
        (
            4,
            2,
            &[
                &[232, 200, 168, 136, 104, 72, 40, 8],
                &[210, 242, 146, 178, 82, 114, 18, 50],
            ],
        ),
        (
            3,
            3,
            &[
                &[40, 83, 222, 165, 217, 162, 47, 84],
                &[89, 195, 112, 234, 11, 145, 34, 184],
                &[218, 128, 110, 52, 175, 245, 27, 65],
            ],
        ),
        (
            16,
            4,
            &[
                &[118, 105, 72, 87, 10, 21, 52, 43],
                &[155, 132, 165, 186, 231, 248, 217, 198],
                &[177, 174, 143, 144, 205, 210, 243, 236],
                &[92, 67, 98, 125, 32, 63, 30, 1],
            ],
        ),
    ];
    for (data, parity, want) in cases {
        let units: Vec<Vec<u8>> = (0..*data)
            .map(|j| (0..8).map(|b| j.wrapping_mul(16) + b).collect())
            .collect();
        let data_units: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
        let mut outs = vec![vec![0; 8]; usize::from(*parity)];
        let mut parity_units: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        encode_with(
            Kernel::best(),
            code(*data, *parity),
            &data_units,
            &mut parity_units,
        );
        assert_eq!(outs, *want, "{data}+{parity}");
    }
}

proptest! {
    #[test]
    fn any_data_survives_any_allowed_loss(
        data in 1..=16u8,
        parity in 0..=4u8,
        len_bytes in 0..3000usize,
        seed: u64,
        order: [u8; 4],
        last: bool,
    ) {
        let code = code(data, parity);
        let lost = order[..usize::from(parity)]
            .iter()
            .fold(0u32, |lost, index| lost | 1 << (index % code.total()));
        for kernel in Kernel::available() {
            let units = row(kernel, code, len_bytes, seed);
            check(kernel, code, &units, lost, last);
        }
    }
}
