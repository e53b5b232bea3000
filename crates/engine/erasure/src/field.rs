//! Arithmetic in GF(2^8) modulo 0x11d, and the tables that the kernels multiply with.

/// x^8 + x^4 + x^3 + x^2 + 1, without its x^8.
const POLYNOMIAL_LOW: u8 = 0x1d;

/// `a * b`, bit by bit: for tables and as the reference in tests.
pub const fn multiply_slow(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut power = a;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            product ^= power;
        }
        power = double(power);
        bit += 1;
    }
    product
}

const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 == 0 { 0 } else { POLYNOMIAL_LOW })
}

/// The products of `c` with 0..16, then with 0x00, 0x10, ... 0xf0: `c * x` is the sum of two lookups.
pub type NibbleTable = [u8; 32];

pub static NIBBLES: [NibbleTable; 256] = nibble_tables();

const fn nibble_tables() -> [NibbleTable; 256] {
    let mut tables = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut x = 0;
        while x < 16 {
            tables[c][x] = multiply_slow(c as u8, x as u8);
            tables[c][16 + x] = multiply_slow(c as u8, (x as u8) << 4);
            x += 1;
        }
        c += 1;
    }
    tables
}

/// Multiplication by `c` as an 8x8 bit matrix in the layout of GF2P8AFFINEQB: byte 7-i has the
/// bits of the input that output bit i is the parity of.
/// Source: Intel SDM volume 2, GF2P8AFFINEQB, function affine_byte.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub static AFFINE: [u64; 256] = affine_tables();

const fn affine_tables() -> [u64; 256] {
    let mut tables = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut matrix = 0u64;
        let mut input = 0;
        while input < 8 {
            let image = multiply_slow(c as u8, 1 << input);
            let mut output = 0;
            while output < 8 {
                let bit = (image >> output & 1) as u64;
                matrix |= bit << (8 * (7 - output) + input);
                output += 1;
            }
            input += 1;
        }
        tables[c] = matrix;
        c += 1;
    }
    tables
}

/// 1 / a, and 0 for 0.
static INVERSES: [u8; 256] = inverses();

const fn inverses() -> [u8; 256] {
    // 2 generates the field, so 2^i and 2^(255-i) are inverse to one another.
    let mut powers = [1u8; 256];
    let mut i = 1;
    while i < 256 {
        powers[i] = double(powers[i - 1]);
        i += 1;
    }
    let mut inverses = [0; 256];
    let mut i = 0;
    while i < 256 {
        inverses[powers[i] as usize] = powers[255 - i];
        i += 1;
    }
    inverses
}

pub fn multiply(a: u8, b: u8) -> u8 {
    let table = &NIBBLES[usize::from(a)];
    table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)]
}

/// 1 / a. `a` must not be 0.
pub fn invert(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    INVERSES[usize::from(a)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree_with_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply_slow(a, b));
                assert_eq!(multiply_slow(a, b), multiply_slow(b, a));
            }
            if a != 0 {
                assert_eq!(multiply_slow(a, invert(a)), 1);
            }
        }
    }

    #[test]
    fn affine_matrices_multiply() {
        let apply = |matrix: u64, x: u8| {
            (0..8).fold(0, |byte, i| {
                let row = matrix.to_le_bytes()[7 - i];
                byte | (((row & x).count_ones() & 1) as u8) << i
            })
        };
        for c in 0..=255u8 {
            for x in 0..=255 {
                assert_eq!(apply(AFFINE[usize::from(c)], x), multiply_slow(c, x));
            }
        }
    }
}
