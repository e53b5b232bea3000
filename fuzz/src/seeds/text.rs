//! Seeds of what people and programs write as text: config files, URLs, JSON; and of handles.

use cairn_admin::api::{
    AdminView, ErrorBody, ErrorDetail, ErrorKind, Health, MemoryView, NfsReady, NfsView, PoolView,
    ReadyFile, Status,
};
use cairn_admin::disks::{DiskRole, DiskState, DiskView};
use cairn_admin::events::Severity;
use cairn_admin::exports::{ExportList, ExportView};
use cairn_admin::rebuild::RebuildView;
use cairn_admin::scrub::{ScrubDamage, ScrubReport};
use cairn_admin::volumes::{
    DirectoryProtection, MediaBytes, VolumeList, VolumeOrigin, VolumeSettingsView,
    VolumeTieringView, VolumeView,
};
use cairn_admin::warnings::{WarningKind, WarningView};
use cairn_base::{Generation, Ino, View, VolumeId};
use cairn_bench::import;
use cairn_bench::latency;
use cairn_bench::result::Sample;
use cairn_config::{
    AccessPattern, ClassChoice, Compression, Dedupe, ExportRule, MediaChoice, Protection,
    SizeLimit, Tiering,
};
use cairn_formats::file_handle::{HandleSigner, Target};

use super::{Corpus, write};

const SIGNED_LEN_BYTES: usize = 24;

pub fn write_seeds(corpus: &Corpus) {
    config(corpus);
    url(corpus);
    handles(corpus);
    outputs(corpus);
    json(corpus);
    oidc(corpus);
    signed(corpus);
    forms(corpus);
    policies(corpus);
    results(corpus);
    agent(corpus);
    plans(corpus)
}

/// The samples of the importers' tests; fio's long one is left out, as its bins are much of the same.
fn outputs(corpus: &Corpus) {
    macro_rules! samples {
        ($($name:literal),*) => {
            [$(($name, include_str!(concat!("../../../crates/tools/bench/testdata/", $name)))),*]
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
        write(corpus, "bench_import", name, text.as_bytes());
    }
}

fn config(corpus: &Corpus) {
    let full = include_str!("../../../packaging/cairn.toml");
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
        ("word-class", "premium".to_owned()),
        (
            "master-keys",
            format!(
                "# the newest\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n{}\n",
                "0f".repeat(31) + "1e"
            ),
        ),
    ];
    for (name, text) in seeds {
        write(corpus, "config_file", name, text.as_bytes());
    }
}

fn url(corpus: &Corpus) {
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
        write(corpus, "nfs_url", name, text.as_bytes());
    }
}

fn handles(corpus: &Corpus) {
    let key = HandleSigner::new(b"0123456789abcdef");
    let inode = Target::Inode {
        volume: VolumeId(3),
        view: View::Live,
        ino: Ino(77),
    };
    let in_snapshot = Target::Inode {
        volume: VolumeId(3),
        view: View::Snapshot(Generation(5)),
        ino: Ino(77),
    };
    for (name, target) in [
        ("inode", inode),
        ("inode-in-snapshot", in_snapshot),
        ("pseudo-root", Target::PseudoRoot),
        (
            "snapshots",
            Target::Snapshots {
                volume: VolumeId(3),
                dir: Ino(1),
            },
        ),
    ] {
        let seed = [&[0], &key.seal(target).as_bytes()[..SIGNED_LEN_BYTES]].concat();
        write(corpus, "file_handle", name, &seed);
    }
    write(
        corpus,
        "file_handle",
        "shard-file",
        b"\x0100000000000000ff.03",
    );
    write(corpus, "file_handle", "volume-file", b"\x010000000a")
}

/// Tokens, claims, keys and heads, each with the byte that says which it is.
fn oidc(corpus: &Corpus) {
    use crate::targets::oidc_token::{key_set, right_claims, right_token};
    let seed = |kind: u8, name: &str, text: &str| {
        write(
            corpus,
            "oidc_token",
            name,
            &[&[kind], text.as_bytes()].concat(),
        )
    };
    seed(0, "token", &right_token());
    seed(1, "claims", right_claims());
    seed(
        1,
        "claims-of-several",
        r#"{"iss":"https://id.example.org","aud":["cairn","other"],"azp":"cairn","exp":1800000300.5,"iat":1800000000,"nbf":1799999990,"nonce":"n","preferred_username":"bob@example.org","groups":"staff"}"#,
    );
    seed(
        1,
        "claims-at-the-limits",
        r#"{"iss":"https://id.example.org","aud":"cairn","exp":1799999940,"iat":1800000060,"nonce":"n","preferred_username":"token","groups":["storage",1]}"#,
    );
    seed(2, "keys", &key_set());
    seed(
        2,
        "keys-of-all-kinds",
        r#"{"keys":[{"kty":"RSA","kid":"one","use":"sig","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"OKP","crv":"Ed25519","kid":"one","x":"AA"},7]}"#,
    );
    seed(3, "head", r#"{"alg":"EdDSA","kid":"one"}"#);
    seed(3, "head-of-another-algorithm", r#"{"alg":"RS256"}"#)
}

/// Requests that are signed in the header and in the query, and one of nobody.
fn signed(corpus: &Corpus) {
    let seed = |name: &str, text: &str| write(corpus, "s3_signed", name, text.as_bytes());
    seed(
        "header",
        "\nhost: localhost\nx-amz-date: 20261129T000000Z\nauthorization: AWS4-HMAC-SHA256 \
         Credential=AKID/20261129/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=ab",
    );
    seed(
        "query",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20261129%2Fus-east-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20261129T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=ab\nhost: localhost",
    );
    seed("nobody", "versionId=1\nhost: localhost\nx-amz-acl: private");
    seed(
        "version-2",
        "AWSAccessKeyId=AKID&Expires=1&Signature=ab\nhost: localhost",
    )
}

/// Forms as browsers and programs write them, and one without a file.
fn forms(corpus: &Corpus) {
    let seed = |name: &str, text: &str| write(corpus, "s3_form", name, text.as_bytes());
    seed(
        "browser",
        "\u{6}multipart/form-data; boundary=----cut\n------cut\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na/${filename}\r\n------cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"C:\\b.png\"\r\nContent-Type: image/png\r\n\r\n1\r\n----\r\n------cut--\r\n",
    );
    seed(
        "curl",
        "\0Multipart/Form-Data; boundary=\"a b\"\nlines before\r\n--a b \r\ncontent-disposition: form-data; name=key\r\n\r\n\r\n--a b\r\nContent-Disposition: form-data; filename=x; name=file\r\n\r\n\r\r\n-\r\n--a b\r\nmore",
    );
    seed(
        "no-file",
        "\u{7f}multipart/form-data;boundary=x\n--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na\r\n--x--",
    )
}

fn policies(corpus: &Corpus) {
    let seed = |name: &str, text: &str| write(corpus, "bucket_policy", name, text.as_bytes());
    seed(
        "public",
        r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::photos/*"}}"#,
    );
    seed(
        "several",
        r#"{"Id":"a","Statement":[{"Sid":"b","Effect":"Deny","Principal":{"AWS":["arn:aws:iam::1:user/AKIAALICE","*"]},"Action":["s3:Put*","S3:deleteobject?ersion"],"Resource":["arn:aws:s3:::photos/a/?","arn:aws:s3:::photos"]},{"Effect":"Allow","Principal":{"AWS":"AKIAALICE"},"Action":"*","Resource":"arn:aws:s3:::*"}]}"#,
    )
}

fn json(corpus: &Corpus) {
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
        r#"{"name":"two","protection":"+3n","size_limit":"1GiB","access_pattern":"random","compression":"zstd:5","dedupe":"verify"}"#,
    );
    text(0, "volume-change", r#"{"size_limit":"none"}"#);
    text(
        0,
        "export-set",
        r#"{"rules":[{"client":"10.0.0.0/8","access":"ro","squash":"all","anonymous_uid":5,"anonymous_gid":6,"require_reserved_port":true},{"client":"::1"}]}"#,
    );
    text(
        0,
        "tier-add",
        r#"{"name":"cold","url":"s3://archive/one?region=eu-west-1","credentials_file":"/etc/cairn/s3"}"#,
    );
    text(0, "tier-check", r#"{"volume":"main","segment":7}"#);
    text(0, "disk-add", r#"{"path":"/data/7","wipe":true}"#);
    text(0, "disk-change", r#"{"draining":true}"#);
    text(
        0,
        "user-create",
        r#"{"name":"alice","role":"viewer","password":"correct horse"}"#,
    );
    text(
        0,
        "user-set",
        r#"{"role":"admin","password":"correct horse"}"#,
    );
    text(
        0,
        "password-change",
        r#"{"password":"correct horse","new_password":"another horse"}"#,
    );
    text(
        0,
        "log-in",
        r#"{"user":"alice","password":"correct horse"}"#,
    );
    text(0, "log-in-by-token", r#"{"token":"0123456789abcdef"}"#);
    text(
        4,
        "audit-lines",
        "{\"id\":1800000000000,\"at_seconds\":1800000000,\"user\":\"alice\",\"via\":\"session\",\"address\":\"::1\",\
         \"method\":\"POST\",\"path\":\"/api/v1/volumes\",\"status\":201}\n{\"id\":",
    );
    text(
        5,
        "audit-query",
        "user=alice&path=%2Fvolumes&method=post&from=-3600&to=1800000000&refused=true&before=9&after=1&limit=10",
    );
    text(
        6,
        "session",
        "000000006b49d200.000000006b493e00.0000000000000007.0000000000000008.alice.\
         00000000000000000000000000000000000000000000000000000000000000ff",
    );
    text(7, "basic", "Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==");
    text(0, "rate", r#"{"rate_bytes_per_second":5}"#);
    text(
        0,
        "scrub-start",
        r#"{"rate_bytes_per_second":7,"restart":true}"#,
    );
    let answers = [
        (
            "scrub-report",
            serde_json::to_string(&ScrubReport {
                damaged: vec![ScrubDamage {
                    volume: "main".to_owned(),
                    inode: 9,
                    paths: vec!["/a/b".to_owned()],
                    start: 0,
                    end: 4096,
                    detail: "two shards are gone".to_owned(),
                }],
                ..ScrubReport::default()
            }),
        ),
        ("rebuild", serde_json::to_string(&RebuildView::default())),
        ("error", serde_json::to_string(&error())),
        ("status", serde_json::to_string(&status())),
        ("exports", serde_json::to_string(&exports())),
        (
            "volumes",
            serde_json::to_string(&VolumeList {
                volumes: vec![volume()],
                total: 2,
                next_after: Some("main".to_owned()),
            }),
        ),
        ("ready", serde_json::to_string(&ready())),
    ];
    for (name, json) in answers {
        text(1, name, &json.expect("answers can be written"));
    }
    text(2, "query", "client=10.0.0.0%2F8&client=::1&force=true");
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
        role: DiskRole::Journal,
        media: MediaChoice::Nvme,
        logs: 2,
        states: 1,
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
        settings: VolumeSettingsView {
            protection: Protection::Plus(2),
            size_limit: SizeLimit::Bytes(1 << 30),
            autogrow: SizeLimit::None,
            access_pattern: AccessPattern::Random,
            compression: Compression::Zstd(3),
            dedupe: Dedupe::Verify,
            media: MediaChoice::Ssd,
            class: ClassChoice::Class("gold".parse().expect("it is a name")),
        },
        layout: "4+2".to_owned(),
        disk_failures_tolerated: 2,
        node_failures_tolerated: None,
        media_bytes: vec![MediaBytes {
            wanted: MediaChoice::Ssd,
            on: MediaChoice::Any,
            bytes: 7,
        }],
        directory_protections: vec![DirectoryProtection {
            protection: Protection::Mirror(4),
            layout: "4 mirrors".to_owned(),
            disk_failures_tolerated: 3,
        }],
        created_seconds: -1,
        serving: false,
        owner: None,
        clone_of: Some(VolumeOrigin {
            volume: "main".parse().expect("it is a name"),
            snapshot: "daily.0".to_owned(),
            deleted: true,
        }),
        problem: Some("it is being opened".to_owned()),
        used_bytes: 1,
        total_bytes: 2,
        free_bytes: 1,
        inodes: 1,
        snapshots: 2,
        snapshot_bytes: 3,
        garbage_bytes: 5,
        freeing_bytes: 2,
        deduplicated_bytes: 4,
        tiering: Some(VolumeTieringView {
            tier: "cold".to_owned(),
            policy: Tiering::Auto,
            cooling_days: Default::default(),
            files: "*.mp4".parse().unwrap_or_default(),
            min_size: Default::default(),
            min_age: "30d".parse().unwrap_or_default(),
            remote_bytes: 5,
        }),
        rates: None,
        exported: true,
        encryption: Default::default(),
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
        pool: "0123456789abcdef0123456789abcdef".to_owned(),
        state_dir: Some("/var/lib/cairn".to_owned()),
        nfs: NfsReady {
            address: "127.0.0.1".to_owned(),
            port: 2049,
        },
        admin: admin(),
        token_file: "/data/1/admin-token".to_owned(),
        certificate: None,
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
        warnings: vec![WarningView {
            kind: WarningKind::DiskMissing,
            severity: Severity::Warning,
            subject: "disk /data/2".to_owned(),
            volume: None,
            node: None,
            disk: Some("/data/2".to_owned()),
            count: Some(1),
            wanted: Some(2),
            message: "one disk is missing".to_owned(),
            next: "bring it back".to_owned(),
        }],
        pool: PoolView {
            devices: Some(1),
            device_failures_tolerated: Some(0),
            id: "0123".to_owned(),
            created_seconds: 1,
            protection: "1 copy".to_owned(),
            disk_failures_tolerated: 0,
            node_failures_tolerated: None,
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

/// A result, its histogram, and words, each under the byte that tells them apart.
fn results(corpus: &Corpus) {
    let seed = |kind: u8, name: &str, text: &[u8]| {
        write(corpus, "bench_result", name, &[&[kind], text].concat());
    };
    let fio = include_str!("../../../crates/tools/bench/testdata/fio-3.33-json.json");
    let imported = import::import(fio, "fio.json").expect("it is fio's");
    let mut histogram = latency::histogram();
    for value in [1000, 2000, 2000, 5_000_000_000] {
        histogram.saturating_record(value);
    }
    let encoded = latency::encode(&histogram);
    let json = serde_json::to_vec(&imported).expect("a result can be written");
    seed(0, "imported", &json);
    let mut own = imported;
    own.phases.truncate(1);
    for phase in &mut own.phases {
        phase.latency = latency::latency(&histogram);
        phase.samples = vec![Sample {
            at_seconds: 0.0,
            seconds: 1.0,
            operations: phase.operations,
            bytes: phase.bytes,
        }];
    }
    seed(
        0,
        "own",
        &serde_json::to_vec(&own).expect("a result can be written"),
    );
    seed(0, "newer", br#"{"schema":"cairn-bench/2"}"#);
    seed(1, "histogram", encoded.as_bytes());
    // Of four values: the cookie, the length of the counters, offset, digits, lowest, highest, ratio.
    let mut body = 0x1c84_9303_u32.to_be_bytes().to_vec();
    for word in [3_u32, 0, 3] {
        body.extend(word.to_be_bytes());
    }
    for word in [1_u64, 1 << 40, 1.0_f64.to_bits()] {
        body.extend(word.to_be_bytes());
    }
    body.extend([2, 3, 4]);
    seed(2, "counters", &body);
    seed(3, "duration", b"1h30m");
}

fn agent(corpus: &Corpus) {
    let phase = r#"{"name":"seq","fileset":"a","jobs":1,"depth":1,"work":{"kind":"data","direction":"write","order":"sequential","request_bytes":4096,"layout":{"kind":"file-per-worker","bytes":4096},"reorder":0,"end":{"kind":"whole"},"fsync":"none","direct":false}}"#;
    let run = format!(
        r#"{{"number":1,"command":{{"do":"run","phase":{phase},"pattern":{{"seed":1}},"client":0,"client_count":1}}}}"#
    );
    let seeds: [(u8, &str, &str); 11] = [
        (
            0,
            "hello",
            r#"{"protocol":"cairn-bench-agent/1","cairn_version":"0.1.0","machine":{"cpu":"x","cpus":2,"memory_bytes":3,"kernel":"6","os":"y"},"busy":false}"#,
        ),
        (
            1,
            "open",
            r#"{"protocol":"cairn-bench-agent/1","target":"nfs://h/main","keep":false}"#,
        ),
        (2, "opened", r#"{"session":"0123"}"#),
        (
            3,
            "order-prepare",
            r#"{"number":1,"command":{"do":"prepare","bytes_needed":1,"allow_files":true}}"#,
        ),
        (3, "order-run", &run),
        (
            3,
            "order-clean",
            r#"{"number":2,"command":{"do":"clean-up"}}"#,
        ),
        (
            4,
            "state",
            r#"{"number":1,"stage":"done","operations":1,"bytes":2,"outcome":{"outcome":"failed","why":"x"}}"#,
        ),
        (
            4,
            "state-ran",
            r#"{"number":1,"stage":"done","operations":1,"bytes":2,"outcome":{"outcome":"ran","result":{"name":"a","operations":1,"bytes":2,"errors":0,"foreground_seconds":1.5,"drained_seconds":1.5,"workers":[{"client":0,"operations":1,"bytes":2,"seconds":1.5}],"samples":[]},"notes":["n"]}}"#,
        ),
        (
            4,
            "state-prepared",
            r#"{"number":1,"stage":"ready","operations":0,"bytes":0,"outcome":{"outcome":"prepared","engine":"e","mount":null}}"#,
        ),
        (5, "go", r#"{"number":1,"in_ms":100}"#),
        (6, "refusal", r#"{"error":"busy"}"#),
    ];
    for (kind, name, text) in seeds {
        write(
            corpus,
            "bench_agent",
            name,
            &[&[kind], text.as_bytes()].concat(),
        );
    }
}

/// The examples of docs/guide/planner.md, one of each family, and what else the planner reads.
fn plans(corpus: &Corpus) {
    let server = r#"family = "nfs-server"
instance = "d2.8xlarge"
protection = { data = 1, parity = 0 }
storage = { storage = "instance-store", disks = 24, disk_bytes = "2TB" }"#;
    let cluster = r#"family = "cluster"
nodes = 6
instance = "m5dn.12xlarge"
protection = { data = 4, parity = 2 }
storage = { storage = "ebs", volumes = 12, volume = { volume_type = "gp3", size_bytes = "1TiB", mib_s = 145 } }"#;
    let san = r#"family = "san-array"
systems = 10
system = { kind = "ontap", ssd_bytes = "5.3TB", iops = 80000, mb_s = "2GB/s" }"#;
    let lustre = r#"family = "parallel-fs"
kind = "lustre"
level = "persistent-12"
capacity_bytes = "12TiB"
ssd_read_cache = true"#;
    let volumes = r#"family = "cloud-volumes"
kind = "service"
level = "extreme"
volumes = 3
quota_bytes = "10TiB""#;
    // Together more than a cluster may hold, whatever their size.
    let large = cluster.replace("nodes = 6", "nodes = 66");
    let shapes = [
        ("cluster", cluster),
        ("cluster-too-large", &large),
        ("server", server),
        ("san", san),
        ("lustre", lustre),
        ("cloud-volumes", volumes),
    ];
    let seed = |kind: u8, name: &str, text: &str| {
        write(
            corpus,
            "plan_files",
            name,
            &[&[kind], text.as_bytes()].concat(),
        );
    };
    for (name, shape) in shapes {
        for product in ["vendor", "cairn"] {
            let text =
                format!("product = \"{product}\"\nregion = \"us-east-1\"\n[shape]\n{shape}\n");
            seed(0, &format!("config-{name}-{product}"), &text);
        }
    }
    let node = r#"[[node]]
instance = "m5dn.12xlarge"
storage = "instance-store"
disks = 2
disk_bytes = "900GB"
"#;
    let list = format!(
        "product = \"vendor\"\nregion = \"us-east-1\"\n{}",
        node.repeat(4)
    );
    seed(0, "config-nodes", &list);
    let design = r#"{"product":"vendor","region":"us-east-1","shape":{"family":"nfs-server","instance":"d2.8xlarge","protection":{"data":1,"parity":0},"storage":{"storage":"instance-store","disks":24,"disk_bytes":2000000000000}}}"#;
    seed(0, "config-json", design);
    let saved = format!(r#"{{"ranking":{{"fits":[{{"evaluation":{{"design":{design}}}}}]}}}}"#);
    seed(1, "saved", &saved);
    let cheap = r#"version = 1
[[region]]
name = "us-east-1"
date = "2025-03-02"
source = "me"
volume_unit = "GB"
ec2_usd_per_hour = { "m5dn.12xlarge" = 1e-9 }
"#;
    seed(2, "prices-cheap", cheap);
    seed(
        2,
        "prices",
        r#"version = 1
[[region]]
name = "us-east-1"
date = "2025-03-02"
source = "me"
volume_unit = "GB"
ec2_usd_per_hour = { "m5dn.12xlarge" = 3.264 }
[region.ebs.gp3]
usd_per_unit_month = 0.08
usd_per_iops_month = 0.005
[region.reserved."m5dn.12xlarge"]
year_usd = 17000.0
[region.lustre]
usd_per_gb_month = { "persistent-12" = 0.145 }
"#,
    );
    seed(
        3,
        "offer-json",
        r#"{"publicationDate":"2026-02-03T04:05:06Z","products":{"A":{"productFamily":"Compute Instance","attributes":{"regionCode":"us-east-1","instanceType":"m5dn.12xlarge","tenancy":"Shared","operatingSystem":"Linux","preInstalledSw":"NA","capacitystatus":"Used"}},"C":{"productFamily":"Storage","attributes":{"regionCode":"us-east-1","volumeApiName":"gp3"}}},"terms":{"OnDemand":{"A":{"X":{"priceDimensions":{"Y":{"unit":"Hrs","pricePerUnit":{"USD":"3.264"}}}}},"C":{"X":{"priceDimensions":{"Y":{"unit":"GB-Mo","pricePerUnit":{"USD":"0.08"}}}}}},"Reserved":{"A":{"Z":{"termAttributes":{"LeaseContractLength":"1yr","PurchaseOption":"All Upfront","OfferingClass":"standard"},"priceDimensions":{"Y":{"unit":"Quantity","pricePerUnit":{"USD":"17000"}}}}}}}}"#,
    );
    seed(
        3,
        "offer-csv",
        "\"FormatVersion\",\"v1.0\"\n\"Publication Date\",\"2026-02-03T04:05:06Z\"\n\"SKU\",\"TermType\",\"PriceDescription\",\"Unit\",\"PricePerUnit\",\"Currency\",\"LeaseContractLength\",\"PurchaseOption\",\"OfferingClass\",\"Product Family\",\"Instance Type\",\"Tenancy\",\"Operating System\",\"CapacityStatus\",\"Pre Installed S/W\",\"Region Code\",\"Volume API Name\"\n\"A\",\"OnDemand\",\"a \"\"quoted\"\", text\",\"Hrs\",\"3.264\",\"USD\",\"\",\"\",\"\",\"Compute Instance\",\"m5dn.12xlarge\",\"Shared\",\"Linux\",\"Used\",\"NA\",\"us-east-1\",\"\"\n\"C\",\"OnDemand\",\"\",\"GB-Mo\",\"0.08\",\"USD\",\"\",\"\",\"\",\"Storage\",\"\",\"\",\"\",\"\",\"\",\"us-east-1\",\"gp3\"\n",
    );
    for (name, word) in [
        ("word-bytes", "200TiB"),
        ("word-rate", "6GB/s"),
        ("word-money", "3k$/month"),
        ("word-share", "12.5%"),
    ] {
        seed(4, name, word);
    }
}
