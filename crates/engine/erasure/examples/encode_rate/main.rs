//! Measures the coding kernels: `cargo run --release -p cairn-erasure --example encode_rate -- --help`.
//!
//! `benches-peers/isal-compare` has this program with ISA-L beside it.

mod measure;

fn main() {
    measure::main(&[]);
}
