#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| cairn_fuzz::targets::nfs4_compound::run(input));
