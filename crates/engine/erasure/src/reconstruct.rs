//! Gives back lost units.
//!
//! Only the lost data units are unknown, at most M of them, so the matrix to invert is at most
//! 4x4 whatever N is. With known data units K, lost ones L and as many parity units P present:
//!
//! ```text
//! sum over L of c(p, l) d(l)  =  unit(p) + sum over K of c(p, k) d(k)        for each p in P
//! ```

use crate::code::{Code, CodeError, DATA_COUNT_MAX, PARITY_COUNT_MAX};
use crate::field;
use crate::kernel::{Coefficients, Kernel};

const DATA_MAX: usize = DATA_COUNT_MAX as usize;
const PARITY_MAX: usize = PARITY_COUNT_MAX as usize;

/// Square, of the size that goes with it.
type Square = [[u8; PARITY_MAX]; PARITY_MAX];

/// Computes the `wanted` units, data or parity, from at least N `present` ones; units beyond the
/// first N are not read. A unit's index counts data units first, then parity units.
///
/// Fails, with nothing written, if units are too few, unknown or given twice, or if lengths differ.
/// Whether the units are intact cannot be seen here: check their checksums before.
pub fn reconstruct(
    code: Code,
    present: &[(u8, &[u8])],
    wanted: &mut [(u8, &mut [u8])],
) -> Result<(), CodeError> {
    reconstruct_with(Kernel::best(), code, present, wanted)
}

/// As [`reconstruct`], with a kernel of one's choice. Panics if it is not available here.
pub fn reconstruct_with(
    kernel: Kernel,
    code: Code,
    present: &[(u8, &[u8])],
    wanted: &mut [(u8, &mut [u8])],
) -> Result<(), CodeError> {
    let lengths = present
        .iter()
        .map(|(index, unit)| (*index, unit.len()))
        .chain(wanted.iter().map(|(index, unit)| (*index, unit.len())));
    check(code, present.len(), lengths)?;
    let present = &present[..usize::from(code.data())];

    let mut missing = Vec::with_capacity(wanted.len());
    for (index, out) in wanted.iter_mut() {
        // A unit that is there, and any unit of a mirror, is a copy.
        let same = present.iter().find(|(other, _)| other == index);
        match same.or(present.first().filter(|_| code.data() == 1)) {
            Some((_, unit)) => out.copy_from_slice(unit),
            None => missing.push((*index, &mut **out)),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }

    let sources: Vec<&[u8]> = present.iter().map(|(_, unit)| *unit).collect();
    let solver = Solver::new(code, present.iter().map(|(index, _)| *index));
    for group in missing.chunks_mut(PARITY_MAX) {
        let mut rows = Coefficients::new(group.len(), sources.len());
        for (row, (index, _)) in group.iter().enumerate() {
            let coefficients = solver.row(*index);
            for (column, coefficient) in (0..sources.len()).zip(coefficients) {
                rows.set(row, column, coefficient);
            }
        }
        let mut outs: Vec<&mut [u8]> = group.iter_mut().map(|(_, out)| &mut **out).collect();
        kernel.multiply(&rows, &sources, &mut outs);
    }
    Ok(())
}

/// `units` are the index and length of each unit, the `present_count` present ones first.
fn check(
    code: Code,
    present_count: usize,
    units: impl Iterator<Item = (u8, usize)>,
) -> Result<(), CodeError> {
    let needed = usize::from(code.data());
    if present_count < needed {
        return Err(CodeError::TooFew {
            code,
            present: present_count,
            needed,
        });
    }
    let mut seen = 0u32;
    let mut len_bytes_others = None;
    for (position, (index, len_bytes)) in units.enumerate() {
        if index >= code.total() {
            return Err(CodeError::NoSuchUnit { code, index });
        }
        if position == present_count {
            // A present unit may be wanted too.
            seen = 0;
        }
        if seen >> index & 1 == 1 {
            return Err(CodeError::Duplicate { index });
        }
        seen |= 1 << index;
        let len_bytes_others = *len_bytes_others.get_or_insert(len_bytes);
        if len_bytes != len_bytes_others {
            return Err(CodeError::Length {
                index,
                len_bytes,
                len_bytes_others,
            });
        }
    }
    Ok(())
}

/// Expresses any unit by the present ones.
struct Solver {
    code: Code,
    /// Where each data unit is among the present ones, or what it is as a sum of them.
    data: [DataUnit; DATA_MAX],
}

#[derive(Clone, Copy)]
enum DataUnit {
    Present(usize),
    Sum([u8; DATA_MAX]),
}

impl Solver {
    /// `present` are N different units of the code.
    fn new(code: Code, present: impl Iterator<Item = u8>) -> Self {
        let count = usize::from(code.data());
        let mut data = [DataUnit::Sum([0; DATA_MAX]); DATA_MAX];
        // Parity units present: index among the parity units, and among the present ones.
        let mut parity = Vec::with_capacity(PARITY_MAX);
        for (position, index) in present.enumerate() {
            match index.checked_sub(code.data()) {
                None => data[usize::from(index)] = DataUnit::Present(position),
                Some(parity_index) => parity.push((parity_index, position)),
            }
        }
        let lost: Vec<u8> = (0..code.data())
            .filter(|index| matches!(data[usize::from(*index)], DataUnit::Sum(_)))
            .collect();
        assert_eq!(lost.len(), parity.len(), "as many equations as unknowns");

        let mut square: Square = [[0; PARITY_MAX]; PARITY_MAX];
        for (row, (parity_index, _)) in parity.iter().enumerate() {
            for (column, index) in lost.iter().enumerate() {
                square[row][column] = code.coefficient(*parity_index, *index);
            }
        }
        let inverse = invert(square, lost.len());

        for (row, index) in lost.iter().enumerate() {
            let mut sum = [0; DATA_MAX];
            for ((parity_index, position), factor) in parity.iter().zip(inverse[row]) {
                sum[*position] ^= factor;
                for (known, unit) in (0..code.data()).zip(&data[..count]) {
                    if let DataUnit::Present(position) = unit {
                        let coefficient = code.coefficient(*parity_index, known);
                        sum[*position] ^= field::multiply(factor, coefficient);
                    }
                }
            }
            data[usize::from(*index)] = DataUnit::Sum(sum);
            // Units solved so far must not be taken for known ones: the loop above skips `Sum`.
        }
        Self { code, data }
    }

    /// The coefficients of the present units whose sum is unit `index`.
    fn row(&self, index: u8) -> [u8; DATA_MAX] {
        let mut row = [0; DATA_MAX];
        match index.checked_sub(self.code.data()) {
            None => self.add(&mut row, index, 1),
            Some(parity_index) => {
                for data_index in 0..self.code.data() {
                    let coefficient = self.code.coefficient(parity_index, data_index);
                    self.add(&mut row, data_index, coefficient);
                }
            }
        }
        row
    }

    fn add(&self, row: &mut [u8; DATA_MAX], data_index: u8, factor: u8) {
        match &self.data[usize::from(data_index)] {
            DataUnit::Present(position) => row[*position] ^= factor,
            DataUnit::Sum(sum) => {
                for (total, term) in row.iter_mut().zip(sum) {
                    *total ^= field::multiply(factor, *term);
                }
            }
        }
    }
}

/// The inverse of the first `size` rows and columns, by Gauss and Jordan.
///
/// Panics if there is none, which cannot be for parts of our matrices (tested for all of them).
fn invert(mut square: Square, size: usize) -> Square {
    let mut inverse: Square = [[0; PARITY_MAX]; PARITY_MAX];
    for (index, row) in inverse.iter_mut().enumerate() {
        row[index] = 1;
    }
    for column in 0..size {
        let pivot = (column..size).find(|row| square[*row][column] != 0);
        let pivot = pivot.expect("every square part of the coding matrix is regular");
        square.swap(column, pivot);
        inverse.swap(column, pivot);
        let scale = field::invert(square[column][column]);
        for matrix in [&mut square, &mut inverse] {
            for value in &mut matrix[column] {
                *value = field::multiply(*value, scale);
            }
        }
        for row in (0..size).filter(|row| *row != column) {
            let factor = square[row][column];
            for matrix in [&mut square, &mut inverse] {
                let pivot_row = matrix[column];
                for (value, pivot_value) in matrix[row].iter_mut().zip(pivot_row) {
                    *value ^= field::multiply(factor, pivot_value);
                }
            }
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_requests_are_refused() {
        let code = Code::new(2, 1).unwrap();
        let unit: &[u8] = &[1, 2];
        let check = |present: &[(u8, &[u8])], wanted: u8, len_bytes: usize| {
            let mut out = vec![9; len_bytes];
            let result = reconstruct(code, present, &mut [(wanted, &mut out)]);
            let untouched = out.iter().all(|byte| *byte == 9);
            assert_eq!(result.is_err(), untouched);
            result
        };
        assert_eq!(check(&[(0, unit), (1, unit)], 2, 2), Ok(()));
        assert_eq!(check(&[(0, unit), (1, unit), (2, unit)], 1, 2), Ok(()));
        assert_eq!(
            check(&[(0, unit)], 1, 2),
            Err(CodeError::TooFew {
                code,
                present: 1,
                needed: 2
            })
        );
        assert_eq!(
            check(&[(0, unit), (3, unit)], 1, 2),
            Err(CodeError::NoSuchUnit { code, index: 3 })
        );
        assert_eq!(
            check(&[(0, unit), (1, unit)], 255, 2),
            Err(CodeError::NoSuchUnit { code, index: 255 })
        );
        assert_eq!(
            check(&[(2, unit), (2, unit)], 1, 2),
            Err(CodeError::Duplicate { index: 2 })
        );
        assert_eq!(
            check(&[(0, unit), (2, &[1])], 1, 2),
            Err(CodeError::Length {
                index: 2,
                len_bytes: 1,
                len_bytes_others: 2
            })
        );
        assert_eq!(
            check(&[(0, unit), (2, unit)], 1, 3),
            Err(CodeError::Length {
                index: 1,
                len_bytes: 3,
                len_bytes_others: 2
            })
        );
    }
}
