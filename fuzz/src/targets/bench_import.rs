//! Output of fio, IOR and IOzone: what is imported is a result that can be read.

use std::collections::HashSet;
use std::path::Path;

use cairn_bench::{import, result};

/// Tries one input.
pub fn run(input: &[u8]) {
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
}
