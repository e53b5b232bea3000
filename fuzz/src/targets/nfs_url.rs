//! NFS URLs of the command line.

use cairn_nfs_client::url::{NCONNECT_MAX, NfsUrl, PATH_LEN_BYTES_MAX};

/// Tries one input.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    check(&text);
    check(&format!("nfs://{text}"));
}

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
