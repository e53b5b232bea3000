//! What the fuzz targets share: the round trip that every decoded value must survive.
//!
//! Seeds in `corpus/TARGET/` are small and committed; `cargo run --bin seeds` writes them.
//! A run adds what it finds to the first folder it is given, so give it a scratch one:
//! `cargo +nightly fuzz run rpc_call /tmp/rpc_call corpus/rpc_call`.

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
