//! Golden files: known bytes of each format, in `golden/`. They decode to known values, and these encode to the same
//! bytes.
//!
//! A change of a format changes these files: `GOLDEN=write cargo test -p cairn-formats golden` writes them, and the
//! pages in docs/reference/formats change with them. After the first release each version keeps its own.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cairn_base::{
    Branch, DiskId, DiskRole, Epoch, Generation, Ino, LogPosition, Media, PoolId, SegmentId,
    TierId, Timestamp, View, VolumeId,
};

use crate::encryption::{Encryption, MasterKeyId, VolumeEncryption, WRAPPED_LEN_BYTES, WrappedKey};
use crate::file_handle::{HandleSigner, Target};
use crate::metadata::descriptor::{Descriptor, FileEntry, RemoteCopy};
use crate::metadata::log::{FileHeader, FileUse, RECORD_HEAD_BYTES, RecordBuf, Term, find_records};
use crate::metadata::{
    AppliedRecord, ApplyRecord, ApplyState, CloneRecord, CookieRecord, CountersRecord,
    DirentRecord, ExtentPlace, ExtentRecord, Fold, GraceRecord, Group, InodeKind, InodeRecord,
    JournalEntry, Key, KeyKind, LeaseBits, LeaseStyle, LockClientRecord, LockLeaseRecord, LockMode,
    LockProtocol, LockRangeRecord, LockShareRecord, PolicyRecord, Put, QuotaKey, QuotaKind,
    QuotaLimit, QuotaRecord, RangeStyle, RemoteSegment, RequestRecord, SegmentRecord, ShareBits,
    SnapshotRecord, TreeState, UsageRecord, state_file, versions,
};
use crate::pointer::{Codec, Location, RecordPointer, decode_pointer, encode_pointer};
use crate::pool_file::{
    DeletedVolume, PoolCache, PoolClone, PoolDisk, PoolVolume, VolumeTiering, decode_pool,
    encode_pool,
};
use crate::scrub_file::{Cursor, Damage, ScrubStage, ScrubState, decode_scrub, encode_scrub};
use crate::settings::{
    Compression, Dedupe, Maintenance, MediaChoice, Protection, SizeLimit, TierFilter, Tiering,
};
use crate::shard::footer::{FooterStripe, ShardFooter, decode_footer, encode_footer};
use crate::shard::identity::{DiskIdentity, decode_identity, encode_identity};
use crate::shard::name::{ShardName, hidden_path, parse_shard, shard_path, volume_path};
use crate::shard::promise::{Promise, decode_promise, encode_promise, promise_path};
use crate::summary::{
    RecordOwner, SummaryEntry, decode_entries, decode_summary_place, encode_entries,
    encode_summary_place,
};
use crate::testing::example_pool;
use crate::tier_object::{ObjectId, ObjectTrailer, decode_trailer, encode_trailer};

const TIME: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanos: 123_456_789,
};

fn folder() -> PathBuf {
    // Asked at run time: tests compiled in one clone may run in another.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&package).join("golden")
}

/// The content of a golden file, after writing it if that is wanted.
fn kept(file: &str, bytes: &[u8]) -> Vec<u8> {
    let path = folder().join(file);
    if std::env::var_os("GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, bytes).expect("a golden file is written");
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A golden file of its own, for a format that is a file on a disk, or a block of one.
fn check<T: PartialEq + Debug>(file: &str, value: &T, encoded: &[u8], decode: impl Fn(&[u8]) -> T) {
    let golden = kept(file, encoded);
    assert_eq!(&decode(&golden), value, "{file} decodes");
    assert!(
        golden == encoded,
        "{file}: the value encodes to other bytes"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// Short values: a line each, in one file.
#[derive(Default)]
struct Lines(Vec<(String, Vec<u8>)>);

impl Lines {
    fn add(&mut self, name: &str, bytes: impl Into<Vec<u8>>) {
        self.0.push((name.to_owned(), bytes.into()));
    }

    /// The bytes that the file has, in the order of the lines; they are those that were added.
    fn check(&self, file: &str) -> Vec<Vec<u8>> {
        let line = |(name, bytes): &(String, Vec<u8>)| format!("{name}: {}\n", hex(bytes));
        let text: String = self.0.iter().map(line).collect();
        let golden = String::from_utf8(kept(file, text.as_bytes())).expect("text");
        let golden = golden.lines().zip(&self.0).map(|(line, (name, bytes))| {
            let (kept_name, digits) = line.split_once(": ").expect("a name and digits");
            assert_eq!(kept_name, name, "{file}");
            assert_eq!(digits, hex(bytes), "{file}: {name} encodes to other bytes");
            from_hex(digits)
        });
        let golden: Vec<Vec<u8>> = golden.collect();
        assert_eq!(golden.len(), self.0.len(), "{file}: lines");
        golden
    }
}

fn pointer(codec: Codec, len_bytes: u32, file_len_bytes: u32, checksums: &[u32]) -> RecordPointer {
    RecordPointer {
        location: Location {
            segment: SegmentId(300),
            stripe_block: 7,
            unit_blocks: 256,
            offset_bytes: 8192,
            len_bytes,
        },
        codec,
        file_len_bytes,
        checksums: checksums.to_vec(),
        encryption: None,
    }
}

fn pointers() -> [RecordPointer; 3] {
    [
        pointer(Codec::Raw, 40_000, 40_000, &[0x0102_0304, 0xaabb_ccdd]),
        pointer(Codec::Lz4, 500, 4096, &[1]),
        pointer(Codec::Zstd, 1, 1 << 20, &[u32::MAX]),
    ]
}

/// The first two as they are of an encrypted volume.
fn encrypted_pointers() -> [RecordPointer; 2] {
    let [raw, lz4, _] = pointers();
    [raw, lz4].map(|pointer| RecordPointer {
        encryption: Some(Box::new(encryption(pointer.checksums.len()))),
        ..pointer
    })
}

fn encryption(tag_count: usize) -> Encryption {
    Encryption {
        salt: [0x5a; 16],
        tags: (0..tag_count).map(|at| [0xa0 + at as u8; 16]).collect(),
    }
}

#[test]
fn pointers_are_golden() {
    let mut lines = Lines::default();
    let all = || pointers().into_iter().chain(encrypted_pointers());
    for pointer in all() {
        let mut bytes = Vec::new();
        encode_pointer(&pointer, &mut bytes);
        let encrypted = pointer.encryption.map_or("", |_| "-encrypted");
        let name = format!("{:?}{encrypted}", pointer.codec).to_lowercase();
        lines.add(&name, bytes);
    }
    for (bytes, pointer) in lines.check("pointers.hex").iter().zip(all()) {
        assert_eq!(decode_pointer(bytes), Ok((pointer, &[][..])));
    }
}

#[test]
fn keys_are_golden() {
    let (ino, name) = (Ino(0x0102_0304_0506_0708), &b"name"[..]);
    let hash = [0xab; 32];
    let inode = Key::inode(ino);
    let quota = QuotaKey {
        tree: ino,
        kind: QuotaKind::User,
        id: 1000,
    };
    let keys = [
        ("applied", Key::applied(), KeyKind::Applied),
        ("counters", Key::counters(), KeyKind::Counters),
        ("lineage", Key::lineage(), KeyKind::Lineage),
        ("inode", Key::inode(ino), KeyKind::Inode(ino)),
        (
            "dirent",
            Key::dirent(ino, name),
            KeyKind::Dirent { dir: ino, name },
        ),
        (
            "cookie",
            Key::cookie(ino, 9),
            KeyKind::Cookie { dir: ino, seq: 9 },
        ),
        (
            "extent",
            Key::extent(ino, 4096),
            KeyKind::Extent {
                ino,
                end_offset: 4096,
            },
        ),
        ("xattr", Key::xattr(ino, name), KeyKind::Xattr { ino, name }),
        ("acl", Key::acl(ino), KeyKind::Acl(ino)),
        ("orphan", Key::orphan(ino), KeyKind::Orphan(ino)),
        ("gone", Key::gone(ino), KeyKind::Gone(ino)),
        (
            "segment",
            Key::segment(SegmentId(300)),
            KeyKind::Segment(SegmentId(300)),
        ),
        (
            "snapshot",
            Key::snapshot(Generation(2)),
            KeyKind::Snapshot(Generation(2)),
        ),
        ("quota", Key::quota(quota), KeyKind::Quota(quota)),
        ("usage", Key::usage(quota), KeyKind::Usage(quota)),
        ("grace", Key::grace(quota), KeyKind::Grace(quota)),
        ("policy", Key::policy(ino), KeyKind::Policy(ino)),
        ("apply", Key::apply(), KeyKind::Apply),
        (
            "unused object",
            Key::unused_object(TierId(2), SegmentId(6), 0x0a0b),
            KeyKind::UnusedObject {
                tier: TierId(2),
                segment: SegmentId(6),
                nonce: 0x0a0b,
            },
        ),
        ("dedupe", Key::dedupe(&hash), KeyKind::Dedupe(&hash)),
        ("request", Key::request(258), KeyKind::Request(258)),
        ("lock client", Key::lock_client(5), KeyKind::LockClient(5)),
        (
            "lock range",
            Key::lock_range(ino, 6),
            KeyKind::LockRange { ino, number: 6 },
        ),
        (
            "share denial",
            Key::lock_share(ino, 7),
            KeyKind::LockShare { ino, number: 7 },
        ),
        (
            "lock lease",
            Key::lock_lease(ino, 8),
            KeyKind::LockLease { ino, number: 8 },
        ),
        (
            "sharer",
            Key::sharer(SegmentId(6), Ino(3), 4096, 8192),
            KeyKind::Sharer {
                segment: SegmentId(6),
                ino: Ino(3),
                start: 4096,
                end: 8192,
            },
        ),
        (
            "history",
            Key::history(&inode, Generation(9)),
            KeyKind::History {
                key: inode.as_bytes(),
                death: Generation(9),
            },
        ),
        (
            "dead",
            Key::dead(&inode, Generation(9), Generation(3)),
            KeyKind::Dead {
                death: Generation(9),
                birth: Generation(3),
                key: inode.as_bytes(),
            },
        ),
    ];
    let mut lines = Lines::default();
    for (name, key, _) in &keys {
        lines.add(name, key.as_bytes());
    }
    let golden = lines.check("keys.hex");
    for (bytes, (name, _, kind)) in golden.iter().zip(&keys) {
        assert_eq!(KeyKind::parse(bytes).as_ref(), Ok(kind), "{name}");
    }
}

fn inode() -> InodeRecord {
    InodeRecord {
        mode: 0o4755,
        nlink: 2,
        uid: 1000,
        gid: 1001,
        size_bytes: 123_456_789_012,
        used_bytes: 4096,
        device_major: 8,
        device_minor: 1,
        atime: TIME,
        mtime: Timestamp::new(-1, 999_999_999),
        ctime: TIME,
        parent: Ino(1),
        entry_count: 3,
        cookie_next: 4,
        generation: 5,
        exclusive_verifier: Some(*b"verifier"),
        symlink_target: Bytes::from_static(b"target"),
        policy: 6,
        xattr_names_len_bytes: 7,
        stored_bytes: 2048,
        tree: Ino(8),
        is_frozen: true,
        retained_until_seconds: 2_000_000_000,
        cookie: 9,
        ..InodeRecord::new(InodeKind::Symlink)
    }
}

#[test]
fn values_are_golden() {
    let plain = InodeRecord::new(InodeKind::Regular);
    let dirent = DirentRecord {
        ino: Ino(9),
        kind: InodeKind::Directory,
        cookie: 3,
    };
    let cookie = CookieRecord {
        ino: Ino(9),
        kind: InodeKind::Fifo,
        name: Bytes::from_static(b"name"),
    };
    let extent = ExtentRecord {
        start: 1 << 40,
        place: ExtentPlace::Record {
            record: pointers()[0].clone(),
            offset_in_record: 4096,
        },
    };
    let inline = ExtentRecord {
        start: 3,
        place: ExtentPlace::Inline(Bytes::from_static(b"few bytes")),
    };
    let segment = SegmentRecord {
        data: 4,
        parity: 2,
        disks: (1..=6).map(DiskId).collect(),
        shard_len_bytes: 64 << 20,
        sealed: true,
        epoch: Epoch(5),
        live_bytes: 1 << 20,
        live_records: 17,
        remote: None,
        used_day: 20_000,
        media: Some(Media::Ssd),
        protection: Some(Protection::Mirror(3)),
    };
    let remote_segment = SegmentRecord {
        disks: Vec::new(),
        remote: Some(RemoteSegment {
            tier: TierId(2),
            nonce: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            object_len_bytes: (256 << 20) + 4000,
            sent_live_bytes: 255 << 20,
        }),
        ..segment.clone()
    };
    let applied = AppliedRecord {
        position: LogPosition(1000),
        epoch: Epoch(5),
        term: 0x1122_3344_5566_7788,
    };
    let counters = CountersRecord {
        generation: Generation(1),
        inodes: 2,
        file_bytes: 3,
        stored_bytes: 4,
        history_bytes: 1,
        ino_reserved: 5,
        segment_reserved: 6,
        branch_next: 2,
    };
    let snapshot = SnapshotRecord {
        name: Bytes::from_static(b"before-upgrade"),
        taken: TIME,
        is_locked: true,
        is_deleted: false,
        is_restoring: false,
        schedule: Bytes::from_static(b"daily"),
        inodes: 2,
        file_bytes: 3,
        undecided_group: 7,
        branch: Branch(0),
        clones: vec![CloneRecord {
            branch: Branch(1),
            volume: VolumeId(3),
            is_deleted: false,
            ino_mark: 5,
            nameless_inodes: 1,
            nameless_bytes: 4096,
        }],
    };
    let request = RequestRecord {
        id: std::array::from_fn(|at| at as u8),
        sequence: 1 << 33,
        ino: Ino(9),
    };
    let version = versions::join(Generation(300), b"value");
    let usage = UsageRecord {
        inodes: 3,
        file_bytes: 8192,
        stored_bytes: 4000,
    };
    let quota = QuotaRecord {
        bytes: QuotaLimit {
            hard: Some(10 << 40),
            soft: Some(8 << 40),
            advisory: None,
        },
        files: QuotaLimit {
            advisory: Some(1_000_000),
            ..QuotaLimit::default()
        },
        is_physical: true,
        grace_seconds: 604_800,
        state: TreeState::Counting,
        parent: Ino(9),
        path: Bytes::from_static(b"/home/anna"),
    };
    let grace = GraceRecord {
        bytes_since: Some(1_700_000_000),
        files_since: None,
    };
    let policy = PolicyRecord {
        compression: Some(Compression::Zstd(3)),
        dedupe: Some(Dedupe::On),
        access_pattern: None,
        media: Some(MediaChoice::Nvme),
        protection: Some(Protection::Plus(3)),
    };
    let apply = ApplyRecord {
        state: ApplyState::Running,
        dir: Ino(9),
        at: Ino(300),
        at_offset: 1 << 20,
        end: Ino(1000),
        began_seconds: 1_700_000_000,
        files: 20,
        seen_bytes: 4 << 20,
        rewritten_bytes: 2 << 20,
        ..ApplyRecord::default()
    };
    let lock_client = LockClientRecord {
        protocol: LockProtocol::Nfs4,
        verifier: *b"verifier",
        lease_ms: 90_000,
        since: TIME,
        name: Bytes::from_static(b"client"),
    };
    let lock_range = LockRangeRecord {
        client: 5,
        first: 4096,
        last: u64::MAX,
        mode: LockMode::Exclusive,
        style: RangeStyle::Replace,
        since: TIME,
        owner: Bytes::from_static(b"owner"),
    };
    let lock_share = LockShareRecord {
        client: 5,
        access: ShareBits::READ.with(ShareBits::WRITE),
        deny: ShareBits::WRITE.with(ShareBits::DELETE),
        since: TIME,
        owner: Bytes::from_static(b"owner"),
    };
    let lock_lease = LockLeaseRecord {
        client: 5,
        level: LeaseBits::READ.with(LeaseBits::HANDLE),
        style: LeaseStyle::Levels,
        since: TIME,
        owner: Bytes::from_static(b"key"),
    };
    let mut lines = Lines::default();
    lines.add("inode", inode().encode());
    lines.add("inode, plain", plain.encode());
    lines.add("dirent", dirent.encode());
    lines.add("cookie", cookie.encode());
    lines.add("extent", extent.encode());
    lines.add("segment", segment.encode());
    lines.add("applied", applied.encode());
    lines.add("counters", counters.encode());
    lines.add("snapshot", snapshot.encode());
    lines.add("version of generation 300", &version[..]);
    lines.add("request", request.encode());
    lines.add("usage", usage.encode());
    lines.add("quota", quota.encode());
    lines.add("grace", grace.encode());
    lines.add("policy", policy.encode());
    lines.add("apply", apply.encode());
    lines.add("segment in a tier", remote_segment.encode());
    lines.add("extent with its bytes", inline.encode());
    lines.add("lock client", lock_client.encode());
    lines.add("lock range", lock_range.encode());
    lines.add("share denial", lock_share.encode());
    lines.add("lock lease", lock_lease.encode());
    let golden = lines.check("values.hex");
    assert_eq!(InodeRecord::decode(&golden[0]), Ok(inode()));
    assert_eq!(InodeRecord::decode(&golden[1]), Ok(plain));
    assert_eq!(DirentRecord::decode(&golden[2]), Ok(dirent));
    assert_eq!(CookieRecord::decode(&golden[3]), Ok(cookie));
    assert_eq!(ExtentRecord::decode(&golden[4]), Ok(extent));
    assert_eq!(SegmentRecord::decode(&golden[5]), Ok(segment));
    assert_eq!(AppliedRecord::decode(&golden[6]), Ok(applied));
    assert_eq!(CountersRecord::decode(&golden[7]), Ok(counters));
    assert_eq!(SnapshotRecord::decode(&golden[8]), Ok(snapshot));
    assert_eq!(versions::split(&golden[9]), Ok((Generation(300), 2)));
    assert_eq!(RequestRecord::decode(&golden[10]), Ok(request));
    assert_eq!(UsageRecord::decode(&golden[11]), Ok(usage));
    assert_eq!(QuotaRecord::decode(&golden[12]), Ok(quota));
    assert_eq!(GraceRecord::decode(&golden[13]), Ok(grace));
    assert_eq!(PolicyRecord::decode(&golden[14]), Ok(policy));
    assert_eq!(ApplyRecord::decode(&golden[15]), Ok(apply));
    assert_eq!(SegmentRecord::decode(&golden[16]), Ok(remote_segment));
    assert_eq!(ExtentRecord::decode(&golden[17]), Ok(inline));
    assert_eq!(LockClientRecord::decode(&golden[18]), Ok(lock_client));
    assert_eq!(LockRangeRecord::decode(&golden[19]), Ok(lock_range));
    assert_eq!(LockShareRecord::decode(&golden[20]), Ok(lock_share));
    assert_eq!(LockLeaseRecord::decode(&golden[21]), Ok(lock_lease));
}

#[test]
fn the_log_is_golden() {
    let header = FileHeader {
        volume: VolumeId(3),
        sequence: 4,
        file_use: FileUse(5 << 64 | 6),
        speaks_as: 3,
        file_len_bytes: 32 << 20,
        retained_from: LogPosition(7),
        copies: 2,
        set: vec![DiskId(1), DiskId(2)],
        members: vec![DiskId(1), DiskId(2), DiskId(3)],
        history: vec![Term {
            epoch: Epoch(8),
            nonce: 9,
            start: LogPosition(10),
        }],
    };
    check("log-header.bin", &header, &header.encode(), |bytes| {
        FileHeader::decode(bytes).unwrap().unwrap()
    });
    let mut group = Group::new(Generation(2), LogPosition(10), LogPosition(12));
    group.newest_snapshot = Generation(1);
    group.newest_of_branches = vec![(Branch(1), Generation(1))];
    let inode = Some(Bytes::from(inode().encode()));
    group.put(Put::new(Key::inode(Ino(1)), inode));
    group.put(Put::new(Key::dirent(Ino(1), b"gone"), None));
    group.put(Put {
        kept_birth: Some(Generation(1)),
        ..Put::new(
            Key::xattr(Ino(1), b"moved"),
            Some(Bytes::from_static(b"\x01value")),
        )
    });
    group.journal.push(JournalEntry {
        position: LogPosition(11),
        ino: Ino(2),
        offset: 100,
        data: Bytes::from_static(b"written"),
        encryption: None,
        size_bytes: 107,
        mtime: TIME,
        ctime: TIME,
        mode: 0o644,
    });
    group.journal.push(JournalEntry {
        offset: 107,
        data: Bytes::from_static(b"*******"),
        encryption: Some(Box::new(encryption(1))),
        size_bytes: 114,
        ..group.journal[0].clone()
    });
    group.folds.push(Fold {
        ino: Ino(2),
        start: 0,
        end: 100,
        through: LogPosition(9),
    });
    let mut record: RecordBuf = group.encode(Epoch(8), 9);
    record.seal(header.file_use, LogPosition(7));
    let golden = kept("log-record.bin", &record.bytes);
    assert!(golden == record.bytes[..], "log-record.bin: other bytes");
    let found = find_records(&golden, header.file_use);
    let [found] = &found[..] else {
        panic!("one record, not {}", found.len());
    };
    assert_eq!(found.head, record.head);
    assert_eq!(found.payload.start, RECORD_HEAD_BYTES);
    let payload = Bytes::copy_from_slice(&golden[found.payload.clone()]);
    let read = Group::decode(&payload, found.head.first, found.head.last).expect("a group");
    assert_eq!(read.generation, group.generation);
    assert_eq!(read.newest_snapshot, group.newest_snapshot);
    assert_eq!(read.newest_of_branches, group.newest_of_branches);
    assert_eq!((read.first, read.last), (group.first, group.last));
    assert_eq!(read.puts, group.puts);
    assert_eq!((read.journal, read.folds), (group.journal, group.folds));
}

#[test]
fn copies_of_the_state_are_golden() {
    let applied = AppliedRecord {
        position: LogPosition(5),
        epoch: Epoch(2),
        term: 3,
    };
    let descriptor = Descriptor {
        volume: VolumeId(1),
        applied,
        lineage: 4,
        files: vec![FileEntry {
            name: "000012.sst".to_owned(),
            len_bytes: 1000,
            crc: 0x0102_0304,
        }],
    };
    check(
        "checkpoint.bin",
        &descriptor,
        &descriptor.encode(),
        |bytes| Descriptor::decode(bytes).unwrap(),
    );
    let remote = RemoteCopy {
        descriptor,
        firsts: vec![0x0000_0002_0000_0007],
    };
    check("state-copy.bin", &remote, &remote.encode(), |bytes| {
        RemoteCopy::decode(bytes).unwrap()
    });
    let map = state_file::Map::from([
        (
            Key::applied().as_bytes().to_vec(),
            Bytes::from(applied.encode()),
        ),
        (
            Key::inode(Ino(1)).as_bytes().to_vec(),
            versions::join(Generation(1), &inode().encode()),
        ),
    ]);
    let value = (applied, map);
    check(
        "state-file.bin",
        &value,
        &state_file::encode(&value.1),
        |bytes| {
            let read = state_file::decode(bytes).unwrap();
            (read.applied, read.map)
        },
    );
}

#[test]
fn a_shard_is_golden() {
    let name = ShardName {
        volume: VolumeId(10),
        segment: SegmentId(255),
        index: 3,
    };
    let footer = ShardFooter {
        name,
        data_shards: 4,
        parity_shards: 2,
        epoch: Epoch(9),
        data_len_bytes: 65536 + 4096,
        stripes: vec![
            FooterStripe {
                start_block: 0,
                unit_blocks: 16,
            },
            FooterStripe {
                start_block: 16,
                unit_blocks: 1,
            },
        ],
        checksums: vec![0x0102_0304, 0xaabb_ccdd],
        summary: vec![1, 2, 3],
    };
    let encoded = encode_footer(&footer).expect("a footer");
    check("shard-footer.bin", &footer, &encoded, |bytes| {
        decode_footer(bytes).unwrap()
    });
    let mut lines = Lines::default();
    lines.add("shard", shard_path(name));
    lines.add("being rebuilt", hidden_path(name, 17));
    lines.add("volume", volume_path(name.volume));
    let golden = lines.check("names.hex");
    let path = std::str::from_utf8(&golden[0]).expect("a path");
    let file_name = path.rsplit('/').next().expect("a name");
    assert_eq!(parse_shard(name.volume, file_name), Some(name));
}

#[test]
fn file_handles_are_golden() {
    let key = HandleSigner::new(b"0123456789abcdef");
    let inode = Target::Inode {
        volume: VolumeId(3),
        view: View::Live,
        ino: Ino(0x0102_0304_0506_0708),
    };
    let in_snapshot = Target::Inode {
        volume: VolumeId(3),
        view: View::Snapshot(Generation(0x1112_1314_1516_1718)),
        ino: Ino(0x0102_0304_0506_0708),
    };
    let mut lines = Lines::default();
    lines.add("inode", key.seal(inode).as_bytes());
    lines.add("all volumes", key.seal(Target::PseudoRoot).as_bytes());
    lines.add("inode in a snapshot", key.seal(in_snapshot).as_bytes());
    let golden = lines.check("handles.hex");
    assert_eq!(key.open(&golden[0]), Ok(inode));
    assert_eq!(key.open(&golden[1]), Ok(Target::PseudoRoot));
    assert_eq!(key.open(&golden[2]), Ok(in_snapshot));
}

#[test]
fn an_identity_is_golden() {
    let identity = DiskIdentity {
        pool: PoolId(7),
        disk: DiskId(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00),
        created: TIME,
    };
    check(
        "identity.bin",
        &identity,
        &encode_identity(&identity),
        |bytes| {
            let picked = decode_identity(bytes).unwrap();
            assert_eq!(picked.bad, None);
            picked.value
        },
    );
}

#[test]
fn a_promise_is_golden() {
    let promise = Promise {
        volume: VolumeId(10),
        epoch: Epoch(0x1122_3344_5566_7788),
    };
    check(
        "promise.bin",
        &promise,
        &encode_promise(&promise),
        |bytes| {
            let picked = decode_promise(bytes).unwrap();
            assert_eq!(picked.bad, None);
            picked.value
        },
    );
    assert_eq!(promise_path(promise.volume), "shard-promises/0000000a");
}

#[test]
fn a_summary_is_golden() {
    let entry = |object, offset, len_bytes| SummaryEntry {
        owner: RecordOwner { object, offset },
        len_bytes,
    };
    let entries = vec![
        entry(1, 0, 4096),
        entry(0x1122_3344_5566_7788, u64::MAX, u32::MAX),
    ];
    let [raw, lz4, _] = pointers();
    let places = vec![raw, lz4];
    let mut lines = Lines::default();
    lines.add("entries", encode_entries(&entries));
    lines.add("place", encode_summary_place(&places));
    let golden = lines.check("summary.hex");
    let mut decoded = Vec::new();
    decode_entries(&golden[0], &mut decoded).expect("entries");
    assert_eq!(decoded, entries);
    let place = decode_summary_place(SegmentId(300), &golden[1]);
    assert_eq!(place, Some(places));
}

#[test]
fn a_pool_file_is_golden() {
    let mut state = example_pool(2);
    state.disks[0].draining = true;
    state.disks[1].seen = 2;
    let mut volume = PoolVolume {
        id: VolumeId(2),
        name: "safe".parse().expect("it is a name"),
        encryption: Some(VolumeEncryption::Key(WrappedKey {
            master_key: MasterKeyId([0x12; 8]),
            wrapped: [0x34; WRAPPED_LEN_BYTES],
        })),
        ..state.volumes[0].clone()
    };
    state.volumes.push(volume.clone());
    (volume.id, volume.name) = (VolumeId(3), "erased".parse().expect("it is a name"));
    volume.encryption = Some(VolumeEncryption::Erased(TIME));
    state.volumes.push(volume);
    let mut clone = PoolVolume {
        id: VolumeId(5),
        name: "clone".parse().expect("it is a name"),
        ..state.volumes[0].clone()
    };
    let store = VolumeId(4);
    state.volumes.push(PoolVolume {
        id: store,
        is_deleted: true,
        ..state.volumes[0].clone()
    });
    clone.exports.clear();
    state.clones.push(PoolClone {
        store,
        volume: clone,
    });
    state.volume_next = VolumeId(6);
    let tier = state.add_tier(
        "cold".parse().expect("it is a name"),
        "s3://bucket/prefix?region=eu-west-1".to_owned(),
        Some("/etc/cairn/cold".to_owned()),
        TIME,
    );
    let tier = tier.expect("it is the first");
    state.tiers[0].deleting.push(VolumeId(0));
    state.volumes[0].tiering = Some(VolumeTiering {
        tier,
        policy: Tiering::Auto,
        cooling_days: Default::default(),
        filter: TierFilter {
            files: "*.mp4,*.fastq.gz".parse().expect("they are patterns"),
            min_size: SizeLimit::Bytes(1 << 20),
            min_age: "30d".parse().expect("it is an age"),
        },
    });
    state.caches.push(PoolCache {
        id: DiskId(10),
        folder: "/nvme/cache".to_owned(),
        size_bytes: 100 << 30,
        added: TIME,
    });
    let mut journal = PoolDisk::new(DiskId(9), "/data/9", TIME);
    journal.role = DiskRole::Journal;
    journal.media = Some(Media::Nvme);
    state.left.push(journal);
    state.deleted.push(DeletedVolume {
        id: VolumeId(0),
        created: TIME,
        name: Some("gone".parse().expect("it is a name")),
    });
    state.maintenance = Maintenance {
        scrub_every: Some("30d".parse().expect("it is a time")),
        window: Some("sat,sun:22:00-06:00".parse().expect("it is a window")),
        spread_paused: true,
    };
    check("pool.txt", &state, &encode_pool(&state), |bytes| {
        let picked = decode_pool(bytes).unwrap();
        assert_eq!(picked.bad, None);
        picked.value
    });
}

#[test]
fn a_scrub_file_is_golden() {
    let state = ScrubState {
        pool: PoolId(77),
        version: 5,
        stage: ScrubStage::Running,
        rate_bytes_per_second: Some(1 << 20),
        by_schedule: true,
        started_seconds: TIME.seconds,
        done_bytes: 6,
        volumes_done: vec![VolumeId(1)],
        cursor: Some(Cursor {
            volume: VolumeId(2),
            segment: 3,
            segment_last: Some(4),
            records: Some((5, 6)),
            inode_last: Some(7),
        }),
        shards: 8,
        rewrites: BTreeSet::from([9]),
        damages: vec![Damage {
            volume: VolumeId(1),
            inode: 10,
            start: 0,
            end: 4096,
            segment: 11,
            detail: "no shard of it can be read".to_owned(),
        }],
        ..ScrubState::default()
    };
    check("scrub.txt", &state, &encode_scrub(&state), |bytes| {
        let picked = decode_scrub(bytes).unwrap();
        assert_eq!(picked.bad, None);
        picked.value
    });
}

#[test]
fn object_trailers_stay_as_they_are() {
    let trailer = ObjectTrailer {
        pool: PoolId(0x1112),
        object: ObjectId {
            volume: VolumeId(3),
            segment: SegmentId(4),
            nonce: 5,
        },
        data_shards: 2,
        parity_shards: 1,
        payload_len_bytes: (2 << 20) + 8192,
        summary: vec![1, 0],
        checksums: vec![6, 7, 8],
    };
    let bytes = encode_trailer(&trailer).expect("it fits");
    let golden = kept("tier-object-trailer.bin", &bytes);
    assert_eq!(golden, bytes);
    assert_eq!(decode_trailer(&golden), Ok(trailer));
}
