//! The fuzz targets, and what they share.
//!
//! Owns: a function for each target that takes any bytes and fails by a panic; the seeds.
//! Must not know: what drives them. That is libFuzzer (`fuzz_targets/`), or the short form on a stable
//! compiler (`tests/short.rs`).

pub mod seeds;
pub mod targets;

pub use cairn_codec_rpc::{Reader, Writer};

/// Decodes the front of `input` twice: as it is, and as the value that came out encodes. Both must
/// be equal, and as long. Gives the value if there was one.
#[macro_export]
macro_rules! round_trip {
    ($input:expr, |$from:ident| $decode:expr) => {{
        let input: &[u8] = $input;
        let mut reader = $crate::Reader::new(input);
        let $from = &mut reader;
        $decode.ok().map(|value| {
            let mut bytes = Vec::new();
            $crate::Writer::new(&mut bytes).put(&value);
            assert_eq!(bytes.len(), input.len() - reader.rest().len(), "{value:?}");
            let mut reader = $crate::Reader::new(&bytes);
            let $from = &mut reader;
            assert_eq!($decode.as_ref(), Ok(&value));
            value
        })
    }};
}
