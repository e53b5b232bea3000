//! NFS URLs of the command line.
#![no_main]

use libfuzzer_sys::fuzz_target;

// Compiled in: its crate brings an asynchronous runtime, of which the fuzzer has no use.
#[allow(dead_code)]
#[path = "../../crates/nfs-client/src/url.rs"]
mod url;
use url::{NCONNECT_MAX, NfsUrl, PATH_LEN_BYTES_MAX};

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    check(&text);
    check(&format!("nfs://{text}"));
});

fn check(text: &str) {
    let Ok(url) = text.parse::<NfsUrl>() else {
        return;
    };
    assert!(NfsUrl::looks_like(text));
    assert!(!url.host.is_empty());
    assert!(url.path.starts_with(b"/"));
    assert!(url.path.len() <= PATH_LEN_BYTES_MAX);
    assert!(!url.path.contains(&0));
    assert!(url.components().all(|name| name != b"." && name != b".."));
    assert_ne!(url.port, Some(0));
    assert!(
        url.nconnect
            .is_none_or(|count| (1..=NCONNECT_MAX).contains(&count))
    );
    let again = url.to_string();
    assert_eq!(again.parse::<NfsUrl>().as_ref(), Ok(&url), "{again}");
}
