//! Output of fio, IOR and IOzone: what is imported is a result that can be read.
#![no_main]

use std::collections::HashSet;
use std::path::Path;

use libfuzzer_sys::fuzz_target;

// Compiled in: the crate brings clients and servers, which decode nothing of this.
#[allow(dead_code)]
#[path = "../../crates/bench/src"]
mod bench {
    pub mod fio {
        pub mod output;
    }
    pub mod import;
    pub mod latency;
    pub mod plan;
    pub mod result;
    pub mod suite {
        mod words;
        pub use words::rfc3339_utc;
    }
}
use bench::{fio, import, latency, plan, result, suite};

fuzz_target!(|input: &[u8]| {
    let Ok(imported) = import::import(&String::from_utf8_lossy(input), "dir/file.txt") else {
        return;
    };
    let json = serde_json::to_vec(&imported).expect("a result can be written");
    if let Err(error) = result::parse(Path::new("file.json"), &json) {
        panic!("{error}");
    }
    let names: HashSet<&str> = imported.phases.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names.len(),
        imported.phases.len(),
        "each has a name of its own"
    );
    for figure in &imported.summary {
        assert!(figure.value.is_finite() && figure.value >= 0.0);
        assert!(names.contains(figure.phase.as_str()), "{}", figure.phase);
    }
});
