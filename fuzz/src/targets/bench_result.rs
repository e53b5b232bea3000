//! Results of the benchmark as they are kept in files, the histograms in them, and words of flags.
//!
//! The first byte says which of them the rest is. The deflate and base64 around a histogram are made from
//! the input, or nothing would ever get past them.

use std::io::Write;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::targets::is_same_json;
use cairn_base::time::rfc3339_utc;
use cairn_bench::result::{self, RunResult};
use cairn_bench::{latency, suite};

/// What the outer form of a histogram begins with (HDR's V2 with deflate).
const COOKIE_DEFLATED: u32 = 0x1c84_9304;

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => file(rest),
        1 => histogram(&String::from_utf8_lossy(rest)),
        2 => histogram(&wrapped(rest)),
        _ => duration(&String::from_utf8_lossy(rest)),
    }
}

/// A result is read as it was written, and says nothing against itself.
fn file(bytes: &[u8]) {
    let path = Path::new("result.json");
    let Ok(found) = result::parse(path, bytes) else {
        return;
    };
    assert_eq!(found.schema, result::SCHEMA);
    for phase in &found.phases {
        assert!(phase.foreground_seconds >= 0.0 && phase.drained_seconds >= 0.0);
        for worker in &phase.workers {
            assert!(worker.client < found.clients.len());
        }
        if let Some(text) = phase
            .latency
            .as_ref()
            .and_then(|it| it.histogram.as_deref())
        {
            histogram(text);
        }
        let latencies: Vec<_> = phase.latency.iter().collect();
        let _ = latency::merge(latencies);
    }
    let json = serde_json::to_vec(&found).expect("a result can be written");
    let again: RunResult = result::parse(path, &json).expect("what is written can be read");
    let json_again = serde_json::to_vec(&again).expect("a result can be written");
    assert!(is_same_json(&json, &json_again));
}

/// A histogram that is read is within its limits, and stays what it is when it is written.
fn histogram(text: &str) {
    let Ok(found) = latency::decode(text) else {
        return;
    };
    // Longer ones were counted as the longest, in a histogram of our limits.
    assert_eq!(found.high(), latency::LATENCY_NS_MAX);
    assert!(found.max() <= found.highest_equivalent(found.high()));
    let again = latency::decode(&latency::encode(&found)).expect("it is ours");
    assert_eq!(again.len(), found.len());
    assert_eq!(
        (again.max(), again.value_at_quantile(0.5)),
        (found.max(), found.value_at_quantile(0.5))
    );
}

/// The text of a histogram with this body.
fn wrapped(body: &[u8]) -> String {
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::fast());
    deflate.write_all(body).expect("a vector takes all bytes");
    let deflated = deflate.finish().expect("a vector takes all bytes");
    let mut bytes = COOKIE_DEFLATED.to_be_bytes().to_vec();
    bytes.extend((deflated.len() as u32).to_be_bytes());
    bytes.extend(deflated);
    BASE64.encode(bytes)
}

fn duration(text: &str) {
    if let Ok(duration) = suite::parse_duration(text) {
        // It is added to times of the clock.
        let now = std::time::UNIX_EPOCH;
        if let Some(then) = now.checked_add(duration) {
            let _ = rfc3339_utc(then);
        }
    }
}
