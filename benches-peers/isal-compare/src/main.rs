//! Measures cairn-erasure and ISA-L in one run, and checks first that both make the same bytes.
//!
//! `apt-get install libisal-dev`, then `cargo run --release --manifest-path
//! benches-peers/isal-compare/Cargo.toml -- --help`.

#[path = "../../../crates/engine/erasure/examples/encode_rate/measure.rs"]
mod measure;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;

use cairn_erasure::{Code, encode};

// Source: isa-l/erasure_code.h, version 2.30.
#[link(name = "isal")]
unsafe extern "C" {
    fn gf_gen_cauchy1_matrix(matrix: *mut u8, rows: c_int, columns: c_int);
    fn gf_invert_matrix(input: *mut u8, output: *mut u8, size: c_int) -> c_int;
    fn ec_init_tables(columns: c_int, rows: c_int, matrix: *mut u8, tables: *mut u8);
    fn ec_encode_data(
        len: c_int,
        source_count: c_int,
        out_count: c_int,
        tables: *mut u8,
        sources: *mut *mut u8,
        outs: *mut *mut u8,
    );
}

fn main() {
    same_bytes();
    measure::main(&[measure::Peer {
        name: "isa-l",
        encode: isal_encode,
        rebuild_first: isal_rebuild_first,
    }]);
}

fn same_bytes() {
    for data_count in 2..=16u8 {
        for parity_count in 0..=4u8 {
            let code = Code::new(data_count, parity_count).expect("a code");
            let units: Vec<Vec<u8>> = (0..data_count)
                .map(|unit| {
                    (0..1021u32)
                        .map(|byte| (byte * 31 + u32::from(unit) * 101) as u8)
                        .collect()
                })
                .collect();
            let data: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
            let run = |encode: measure::Coding| {
                let mut parity = vec![vec![0; 1021]; usize::from(parity_count)];
                let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                encode(code, &data, &mut outs);
                parity
            };
            assert!(
                run(encode) == run(isal_encode),
                "{code}: the bytes are those of ISA-L"
            );
        }
    }
}

fn cauchy(code: Code) -> Vec<u8> {
    let (total, data) = (c_int::from(code.total()), c_int::from(code.data()));
    let mut matrix = vec![0; (total * data) as usize];
    // SAFETY: the matrix has total * data bytes.
    unsafe { gf_gen_cauchy1_matrix(matrix.as_mut_ptr(), total, data) };
    matrix
}

/// What `ec_encode_data` multiplies with, 32 bytes for each coefficient.
fn tables(mut rows: Vec<u8>, source_count: usize) -> Vec<u8> {
    let row_count = rows.len() / source_count;
    let mut tables = vec![0u8; 32 * rows.len()];
    // SAFETY: `rows` has a coefficient for each pair, `tables` 32 bytes for each.
    unsafe {
        ec_init_tables(
            source_count as c_int,
            row_count as c_int,
            rows.as_mut_ptr(),
            tables.as_mut_ptr(),
        );
    }
    tables
}

fn multiply(tables: &[u8], sources: &[&[u8]], outs: &mut [&mut [u8]]) {
    let (source_count, out_count) = (sources.len() as c_int, outs.len() as c_int);
    let len_bytes = sources[0].len();
    assert!(sources.iter().all(|source| source.len() == len_bytes));
    assert!(outs.iter().all(|out| out.len() == len_bytes));
    assert_eq!(tables.len(), 32 * sources.len() * outs.len());
    // ISA-L only reads tables and sources, though its declaration does not say so.
    let mut sources: Vec<*mut u8> = sources
        .iter()
        .map(|unit| unit.as_ptr().cast_mut())
        .collect();
    let mut outs: Vec<*mut u8> = outs.iter_mut().map(|unit| unit.as_mut_ptr()).collect();
    // SAFETY: 32 bytes of table per coefficient; all units have `len_bytes` bytes.
    unsafe {
        ec_encode_data(
            len_bytes as c_int,
            source_count,
            out_count,
            tables.as_ptr().cast_mut(),
            sources.as_mut_ptr(),
            outs.as_mut_ptr(),
        );
    }
}

fn isal_encode(code: Code, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    thread_local! {
        /// As a careful user of ISA-L would, tables are made once for each code.
        static TABLES: RefCell<HashMap<Code, Vec<u8>>> = RefCell::default();
    }
    if parity.is_empty() {
        return;
    }
    TABLES.with_borrow_mut(|cache| {
        let tables = cache.entry(code).or_insert_with(|| {
            let data_count = usize::from(code.data());
            tables(cauchy(code).split_off(data_count * data_count), data_count)
        });
        multiply(tables, data, parity);
    });
}

/// `present` are the units after the lost ones.
fn isal_rebuild_first(code: Code, present: &[&[u8]], lost: &mut [&mut [u8]]) {
    let data_count = usize::from(code.data());
    let matrix = cauchy(code);
    let mut part = matrix[lost.len() * data_count..][..data_count * data_count].to_vec();
    let mut inverse = vec![0; data_count * data_count];
    // SAFETY: both have data_count * data_count bytes.
    let result = unsafe {
        gf_invert_matrix(
            part.as_mut_ptr(),
            inverse.as_mut_ptr(),
            c_int::from(code.data()),
        )
    };
    assert_eq!(result, 0, "the matrix is regular");
    inverse.truncate(lost.len() * data_count);
    multiply(&tables(inverse, data_count), &present[..data_count], lost);
}
