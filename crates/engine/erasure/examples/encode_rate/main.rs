//! Measures the coding kernels: `cargo run --release -p cairn-erasure --example encode_rate -- --help`.
//!
//! The same program with ISA-L beside it is in `benches-peers/isal-compare`.

mod measure;

fn main() {
    measure::main(&[]);
}
