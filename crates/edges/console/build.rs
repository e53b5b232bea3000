//! Compresses the committed bundle in `console/dist`, so that the program carries it as it is sent.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

/// All files of the bundle, and what they are.
const FILES: &[(&str, &str)] = &[
    ("index.html", "text/html; charset=utf-8"),
    ("console.js", "text/javascript; charset=utf-8"),
    ("console.css", "text/css; charset=utf-8"),
    ("icon.svg", "image/svg+xml"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Asked when it runs: a build script that was compiled in another clone may run here.
    let dist = std::env::var("CARGO_MANIFEST_DIR")?;
    let dist = Path::new(&dist).join("../../../console/dist");
    let out = std::env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let mut table = String::from("const FILES: &[File] = &[\n");
    for (name, kind) in FILES {
        let path = dist.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let bytes = std::fs::read(&path)
            .map_err(|error| format!("{}: {error}; `make console` makes it", path.display()))?;
        let digest = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes)?;
        let packed = out.join(format!("{name}.gz"));
        std::fs::write(&packed, encoder.finish()?)?;
        writeln!(
            table,
            "    File {{ name: {name:?}, kind: {kind:?}, tag: \"\\\"{digest:016x}\\\"\", len_bytes: {}, gzip: include_bytes!({packed:?}) }},",
            bytes.len()
        )?;
    }
    table.push_str("];\n");
    std::fs::write(out.join("files.rs"), table)?;
    Ok(())
}
