//! What the process has in memory.
//!
//! Owns: where the system says so. Must not know: what has it.

use std::fs::File;
use std::io::Read;

/// What the process has in memory now, in bytes: `VmRSS` of proc(5), which counts its program as well. 0 where the system does
/// not say.
pub fn resident_bytes() -> u64 {
    let mut text = [0; 128];
    let read = File::open("/proc/self/statm").and_then(|mut file| file.read(&mut text));
    let read = read.unwrap_or(0);
    let pages = text.get(..read).map_or(0, resident_pages);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// The second number of `/proc/self/statm`.
fn resident_pages(text: &[u8]) -> u64 {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1);
    pages.and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(resident_pages(b"8195 1523 1266 9 0 1100 0\n"), 1523);
        for text in [&b""[..], b"8195", b"8195 -3", b"\xff\xff 1"] {
            assert_eq!(resident_pages(text), 0, "{text:?}");
        }
        assert!(resident_bytes() > 0);
    }
}
