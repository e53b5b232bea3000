//! Which code: how many units of which kind, and the coefficients between them.

use std::fmt;

use crate::field;
use crate::kernel::{Coefficients, Kernel};

pub const DATA_COUNT_MAX: u8 = 16;
pub const PARITY_COUNT_MAX: u8 = 4;

/// Why a code or a set of units was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    #[error(
        "there is no code {data}+{parity}: data units are 1 to {DATA_COUNT_MAX}, parity units at most {PARITY_COUNT_MAX}"
    )]
    Unsupported { data: u8, parity: u8 },
    #[error("code {code}: {present} units are not enough to decode, {needed} are needed")]
    TooFew {
        code: Code,
        present: usize,
        needed: usize,
    },
    #[error("code {code} has no unit {index}")]
    NoSuchUnit { code: Code, index: u8 },
    #[error("unit {index} was given twice")]
    Duplicate { index: u8 },
    #[error("unit {index} has {len_bytes} bytes, the others have {len_bytes_others}")]
    Length {
        index: u8,
        len_bytes: usize,
        len_bytes_others: usize,
    },
}

/// N data and M parity units: 1..=16 and 0..=4. Prints as `4+2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    data: u8,
    parity: u8,
}

impl Code {
    pub fn new(data: u8, parity: u8) -> Result<Self, CodeError> {
        if data == 0 || data > DATA_COUNT_MAX || parity > PARITY_COUNT_MAX {
            return Err(CodeError::Unsupported { data, parity });
        }
        Ok(Self { data, parity })
    }

    /// How many data units; any so many units give back all.
    pub const fn data(self) -> u8 {
        self.data
    }

    /// How many parity units; so many may be lost.
    pub const fn parity(self) -> u8 {
        self.parity
    }

    pub const fn total(self) -> u8 {
        self.data + self.parity
    }

    /// What data unit `data_index` is multiplied with to make parity unit `parity_index` (from 0).
    pub(crate) fn coefficient(self, parity_index: u8, data_index: u8) -> u8 {
        if self.data == 1 {
            return 1;
        }
        field::invert((self.data + parity_index) ^ data_index)
    }

    fn coefficients(self) -> Coefficients {
        let mut rows = Coefficients::new(usize::from(self.parity), usize::from(self.data));
        for parity_index in 0..self.parity {
            for data_index in 0..self.data {
                rows.set(
                    usize::from(parity_index),
                    usize::from(data_index),
                    self.coefficient(parity_index, data_index),
                );
            }
        }
        rows
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}+{}", self.data, self.parity)
    }
}

/// Computes the parity units of a row, with the best kernel of this processor.
///
/// Panics unless there are N data and M parity buffers, all of the same length.
pub fn encode(code: Code, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    encode_with(Kernel::best(), code, data, parity);
}

/// As [`encode`], with a kernel of one's choice. Panics also if it is not available here.
pub fn encode_with(kernel: Kernel, code: Code, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    assert_eq!(data.len(), usize::from(code.data), "data units of {code}");
    assert_eq!(
        parity.len(),
        usize::from(code.parity),
        "parity units of {code}"
    );
    if code.data == 1 {
        for copy in parity {
            copy.copy_from_slice(data[0]);
        }
        return;
    }
    kernel.multiply(&code.coefficients(), data, parity);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_made_or_refused() {
        let cases: &[(u8, u8, Option<&str>)] = &[
            (1, 0, Some("1+0")),
            (4, 2, Some("4+2")),
            (16, 4, Some("16+4")),
            (0, 2, None),
            (17, 2, None),
            (4, 5, None),
            (255, 255, None),
        ];
        for (data, parity, want) in cases {
            let code = Code::new(*data, *parity).ok().map(|code| code.to_string());
            assert_eq!(code.as_deref(), *want, "{data}+{parity}");
        }
    }

    /// What makes the code survive any M losses: every square part of the matrix is regular.
    #[test]
    fn every_square_part_of_every_matrix_is_regular() {
        for data in 1..=DATA_COUNT_MAX {
            let code = Code::new(data, PARITY_COUNT_MAX).unwrap();
            // The rows of code N+4 are those of N+1 to N+3 too, and any rows may be lost.
            for rows in subsets(PARITY_COUNT_MAX) {
                for columns in subsets(data).filter(|columns| columns.len() == rows.len()) {
                    let part: Vec<Vec<u8>> = rows
                        .iter()
                        .map(|row| columns.iter().map(|c| code.coefficient(*row, *c)).collect())
                        .collect();
                    assert_ne!(determinant(&part), 0, "{code} rows {rows:?} {columns:?}");
                }
            }
        }
    }

    fn subsets(count: u8) -> impl Iterator<Item = Vec<u8>> {
        (1u32..1 << count)
            .filter(|set| set.count_ones() <= u32::from(PARITY_COUNT_MAX))
            .map(move |set| (0..count).filter(|i| set >> i & 1 == 1).collect())
    }

    /// By expansion along the first row; signs do not matter where 1 = -1.
    fn determinant(matrix: &[Vec<u8>]) -> u8 {
        let [first, rest @ ..] = matrix else {
            return 1;
        };
        let minor = |column: usize| -> Vec<Vec<u8>> {
            rest.iter()
                .map(|row| [&row[..column], &row[column + 1..]].concat())
                .collect()
        };
        (0..first.len()).fold(0, |sum, column| {
            sum ^ field::multiply_slow(first[column], determinant(&minor(column)))
        })
    }
}
