//! Seeds of what people and programs write as text: config files, URLs, JSON; and of handles.

use std::path::Path;

use cairn_base::{Ino, VolumeId};
use cairn_config::{AccessPattern, Compression, ExportRule, Protection, SizeLimit};

use crate::api::{
    AdminView, DiskState, DiskView, ErrorBody, ErrorDetail, ErrorKind, ExportList, ExportView,
    Health, MemoryView, NfsReady, NfsView, PoolView, ReadyFile, Status, VolumeList, VolumeView,
};
use crate::handle::{HandleKey, Target};
use crate::write;

const SIGNED_LEN_BYTES: usize = 24;

pub fn write_seeds(corpus: &Path) -> std::io::Result<()> {
    config(corpus)?;
    url(corpus)?;
    handles(corpus)?;
    outputs(corpus)?;
    json(corpus)
}

/// The samples of the importers' tests; fio's long one is left out, as its bins are much of the same.
fn outputs(corpus: &Path) -> std::io::Result<()> {
    macro_rules! samples {
        ($($name:literal),*) => {
            [$(($name, include_str!(concat!("../../../../crates/bench/testdata/", $name)))),*]
        };
    }
    let seeds = samples![
        "fio-3.33-json.json",
        "ior-2.10.txt",
        "ior-3.0.txt",
        "ior-4.0.txt",
        "ior-3.2.json",
        "ior-4.0.json",
        "iozone-3.242.txt",
        "iozone-3.420.txt",
        "iozone-3.507-ops.txt"
    ];
    for (name, text) in seeds {
        write(corpus, "bench_import", name, text.as_bytes())?;
    }
    Ok(())
}

fn config(corpus: &Path) -> std::io::Result<()> {
    let full = include_str!("../../../../packaging/cairn.toml");
    // Its settings are commented out, as it shows what there is.
    let set: Vec<&str> = full
        .lines()
        .map(|line| line.strip_prefix('#').unwrap_or(line))
        .filter(|line| line.contains(" = ") && !line.starts_with(' '))
        .collect();
    let seeds = [
        ("packaged", full.to_owned()),
        ("all-set", set.join("\n")),
        (
            "at-the-limits",
            "data=[\"a\"]\nmemory_limit=\"256MiB\"\nthreads=256\n".to_owned(),
        ),
        ("unknown-key", "listen_nsf = \"127.0.0.1:0\"\n".to_owned()),
        (
            "wrong-kinds",
            "data = 1\nrpcbind = \"yes\"\nthreads = -1\n".to_owned(),
        ),
        (
            "table",
            "[nfs]\nlisten = { a = [1, 2.5, 1979-05-27] }\n".to_owned(),
        ),
        ("word-net", "fd00::/8".to_owned()),
        ("word-compression", "zstd:19".to_owned()),
        ("word-size", "12.5GiB".to_owned()),
        ("word-protection", "+2n".to_owned()),
    ];
    for (name, text) in seeds {
        write(corpus, "config_file", name, text.as_bytes())?;
    }
    Ok(())
}

fn url(corpus: &Path) -> std::io::Result<()> {
    let seeds = [
        ("root", "nfs://host"),
        ("path", "nfs://[::1]:2050//a/./b%20c%3F/"),
        (
            "options",
            "nfs://10.0.0.1/x?port=7&mountport=8&version=3&uid=0&gid=100&nconnect=16",
        ),
        ("escapes", "h/%2e%2E/%00%ff"),
        ("bad-option", "h/?soft"),
    ];
    for (name, text) in seeds {
        write(corpus, "nfs_url", name, text.as_bytes())?;
    }
    Ok(())
}

fn handles(corpus: &Path) -> std::io::Result<()> {
    let key = HandleKey::new(b"0123456789abcdef");
    let inode = Target::Inode {
        volume: VolumeId(3),
        ino: Ino(77),
    };
    for (name, target) in [("inode", inode), ("pseudo-root", Target::PseudoRoot)] {
        let seed = [&[0], &key.seal(target).as_bytes()[..SIGNED_LEN_BYTES]].concat();
        write(corpus, "file_handle", name, &seed)?;
    }
    write(
        corpus,
        "file_handle",
        "shard-file",
        b"\x0100000000000000ff.03",
    )?;
    write(corpus, "file_handle", "volume-file", b"\x010000000a")
}

fn json(corpus: &Path) -> std::io::Result<()> {
    let text = |kind: u8, name: &str, text: &str| {
        write(
            corpus,
            "admin_json",
            name,
            &[&[kind], text.as_bytes()].concat(),
        )
    };
    text(
        0,
        "volume-create",
        r#"{"name":"two","protection":"+3n","size_limit":"1GiB","access_pattern":"random","compression":"zstd:5"}"#,
    )?;
    text(0, "volume-change", r#"{"size_limit":"none"}"#)?;
    text(
        0,
        "export-set",
        r#"{"rules":[{"client":"10.0.0.0/8","access":"ro","squash":"all","anonymous_uid":5,"anonymous_gid":6,"require_reserved_port":true},{"client":"::1"}]}"#,
    )?;
    let answers = [
        ("error", serde_json::to_string(&error())),
        ("status", serde_json::to_string(&status())),
        ("exports", serde_json::to_string(&exports())),
        (
            "volumes",
            serde_json::to_string(&VolumeList {
                volumes: vec![volume()],
            }),
        ),
        ("ready", serde_json::to_string(&ready())),
    ];
    for (name, json) in answers {
        text(1, name, &json.map_err(std::io::Error::other)?)?;
    }
    text(2, "query", "client=10.0.0.0%2F8&client=::1&force=true")?;
    text(3, "token", "Bearer 0123456789abcdef")
}

fn error() -> ErrorBody {
    ErrorBody {
        error: ErrorDetail {
            kind: ErrorKind::Conflict,
            message: "main is there".to_owned(),
            hint: Some("choose another name".to_owned()),
        },
    }
}

fn disk() -> DiskView {
    DiskView {
        id: "0123".to_owned(),
        label: "/data/1".to_owned(),
        state: DiskState::Ok,
        total_bytes: 2,
        free_bytes: 1,
        read_errors: 0,
        write_errors: 0,
        full_errors: 0,
        checksum_errors: 0,
        shards: 3,
        problem: Some("it hangs".to_owned()),
    }
}

fn volume() -> VolumeView {
    VolumeView {
        id: 1,
        name: "main".parse().expect("it is a name"),
        protection: Protection::Plus(2),
        layout: "4+2".to_owned(),
        disk_failures_tolerated: 2,
        size_limit: SizeLimit::Bytes(1 << 30),
        access_pattern: AccessPattern::Random,
        compression: Compression::Zstd(3),
        created_seconds: -1,
        serving: false,
        problem: Some("it is being opened".to_owned()),
        used_bytes: 1,
        total_bytes: 2,
        free_bytes: 1,
        inodes: 1,
        exported: true,
    }
}

fn exports() -> ExportList {
    ExportList {
        exports: vec![ExportView {
            volume: "main".parse().expect("it is a name"),
            rules: ExportRule::this_machine(),
        }],
    }
}

fn admin() -> AdminView {
    AdminView {
        url: "http://127.0.0.1:8049".to_owned(),
    }
}

fn ready() -> ReadyFile {
    ReadyFile {
        pid: 7,
        nfs: NfsReady {
            address: "127.0.0.1".to_owned(),
            port: 2049,
        },
        admin: admin(),
        token_file: "/data/1/admin-token".to_owned(),
        volumes: vec!["main".parse().expect("it is a name")],
    }
}

fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        pid: 7,
        uptime_seconds: 8,
        health: Health::NoRedundancy,
        summary: "1 copy".to_owned(),
        warnings: vec!["one".to_owned()],
        pool: PoolView {
            id: "0123".to_owned(),
            created_seconds: 1,
            protection: "1 copy".to_owned(),
            disk_failures_tolerated: 0,
            total_bytes: 2,
            free_bytes: 1,
            reserve_bytes: 1,
        },
        nfs: NfsView {
            address: "127.0.0.1".to_owned(),
            port: 2049,
            rpcbind: false,
        },
        admin: admin(),
        memory: MemoryView {
            limit_bytes: 1,
            resident_bytes: 2,
            record_cache_limit_bytes: 3,
            record_cache_bytes: 4,
            dirty_limit_bytes: 5,
            dirty_bytes: 6,
            metadata_limit_bytes: 7,
            rest_bytes: 8,
        },
        disks: vec![disk()],
        volumes: vec![volume()],
    }
}
