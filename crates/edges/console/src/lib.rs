//! The files of the console, compressed.
//!
//! Owns: which file a path means, the tag by which a browser knows that it has a file already.
//! Must not know: HTTP, who may see the console (`cairn_admin`), what the pages say (`console/`).

#![forbid(unsafe_code)]

use std::io::Read;

use flate2::read::GzDecoder;

/// Where the console begins.
pub const ROOT: &str = "/console/";

/// One file of the bundle.
#[derive(Debug)]
pub struct File {
    pub name: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// A strong entity tag, in quotes: another content has another one.
    pub tag: &'static str,
    pub len_bytes: usize,
    pub gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

impl File {
    /// For the few clients that do not take gzip.
    pub fn plain(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len_bytes);
        // Of what the build compressed nothing can fail.
        let _ = GzDecoder::new(self.gzip).read_to_end(&mut bytes);
        bytes
    }
}

/// The file that a path below [`ROOT`] means. A path that is no file of the bundle is the address of a page, which the one
/// HTML file shows; a name with a dot in its last part is a file that there is not.
pub fn file(path: &str) -> Option<&'static File> {
    let named = |name: &str| FILES.iter().find(|file| file.name == name);
    let last = path.rsplit('/').next().unwrap_or_default();
    match named(path) {
        Some(file) => Some(file),
        // Names of volumes and disks, which pages are about, may have dots; nothing else of ours ends so.
        None if [".js", ".css", ".map", ".ico"]
            .iter()
            .any(|end| last.ends_with(end)) =>
        {
            None
        }
        None => named("index.html"),
    }
}

/// All files, for callers that need the size of the bundle.
pub fn files() -> &'static [File] {
    FILES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first page costs on the wire at most.
    const FIRST_PAGE_BYTES_MAX: usize = 500 << 10;

    #[test]
    fn paths_mean_files() {
        let cases = [
            ("", Some("index.html")),
            ("index.html", Some("index.html")),
            ("volumes/main", Some("index.html")),
            ("volumes/v1.2", Some("index.html")),
            ("console.js", Some("console.js")),
            ("console.css", Some("console.css")),
            ("old.js", None),
            ("../console.css", None),
        ];
        for (path, want) in cases {
            assert_eq!(file(path).map(|file| file.name), want, "{path}");
        }
    }

    #[test]
    fn the_bundle_is_whole_and_small() {
        let mut sum = 0;
        for file in files() {
            assert_eq!(file.plain().len(), file.len_bytes, "{}", file.name);
            assert!(file.tag.starts_with('"') && file.tag.ends_with('"'));
            sum += file.gzip.len();
        }
        assert!(sum <= FIRST_PAGE_BYTES_MAX, "{sum} bytes");
    }

    /// What the Content-Security-Policy would refuse, nobody should write.
    #[test]
    fn the_page_has_neither_scripts_nor_styles_in_it_and_asks_nobody_else() {
        let page = String::from_utf8(file("").unwrap().plain()).unwrap();
        for script in page.split("<script").skip(1) {
            let (head, rest) = script.split_once('>').unwrap();
            assert!(head.contains("src=") && rest.starts_with("</script>"));
        }
        for forbidden in ["<style", " style=", "http://", "https://", " onload="] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }
}
