//! The fuzz targets, and what they share.
//!
//! Owns: a function for each target that takes any bytes and fails by a panic; the seeds.
//! Must not know: what drives them. That is libFuzzer (`fuzz_targets/`), or the short form on a stable
//! compiler (`tests/short.rs`).

pub mod seeds;
pub mod targets;

pub use cairn_codec_rpc::{Reader, Writer};

// Compiled in by path: their crates would bring RocksDB, which takes ten minutes to build for the fuzzer,
// servers and runtimes, which decode nothing of this. They find one another at the root, as at home.
#[allow(dead_code)]
#[path = "../../crates/edges/admin/src/api.rs"]
pub mod api;
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/batch.rs"]
mod batch;
#[allow(dead_code, unused_imports)]
#[path = "../../crates/tools/bench/src"]
mod bench {
    pub mod agent {
        mod protocol;
        // A target like the others, but its messages can be named only beside them.
        #[path = "../../../../fuzz/src/targets/bench_agent.rs"]
        pub mod fuzz;
    }
    pub mod fio {
        pub mod output;
    }
    pub mod import;
    pub mod latency;
    pub mod plan;
    pub mod result;
    pub mod suite {
        mod words;
        pub use words::{parse_duration, rfc3339_utc};
    }
}
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/extent.rs"]
mod extent;
#[allow(dead_code)]
#[path = "../../crates/edges/nfs3/src/handle.rs"]
mod handle;
#[allow(dead_code)]
#[path = "../../crates/edges/nfs3/src/intake.rs"]
mod intake;
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/log"]
mod log {
    pub(crate) mod format;
    pub(crate) mod group;
}
// Not part of the interface of its crate.
#[allow(dead_code)]
#[path = "../../crates/engine/shard/src/name.rs"]
mod name;
#[allow(dead_code)]
#[path = "../../crates/services/pool/src/state.rs"]
mod pool;
#[allow(dead_code)]
#[path = "../../crates/edges/admin/src/query.rs"]
mod query;
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/records.rs"]
mod records;
#[allow(dead_code)]
#[path = "../../crates/app/node/src/scrub_file.rs"]
mod scrub_file;
// The generator of the property tests.
#[path = "../../crates/codecs/nfs/src/source.rs"]
mod source;
#[allow(dead_code)]
#[path = "../../crates/engine/meta/src/state"]
mod state {
    pub(crate) mod descriptor;
    pub(crate) mod snapshot;
}
#[allow(dead_code)]
#[path = "../../crates/edges/admin/src/token.rs"]
mod token;
#[allow(dead_code)]
#[path = "../../crates/clients/nfs-client/src/url.rs"]
mod url;

// What the sources above call by these names.
use bench::{fio, latency, plan, result, suite};
use cairn_codec_nfs::{mount, nlm, v3};
extern crate self as cairn_admin;

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
