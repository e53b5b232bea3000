//! Seeds of the stored forms. Targets make checksums right themselves, so these leave them out.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_base::{
    Branch, DiskId, Epoch, Generation, Ino, LogPosition, PoolId, SegmentId, TierId, Timestamp,
    VolumeId,
};
use cairn_config::{
    AccessPattern, ClassSpec, Dedupe, ExportRule, PartLimit, Role, TierFilter, Tiering, UserRecord,
    VolumeSettings,
};
use cairn_formats::encryption::{
    Encryption, MasterKeyId, VolumeEncryption, WRAPPED_LEN_BYTES, WrappedKey,
};
use cairn_formats::metadata::descriptor::{Descriptor, FileEntry, RemoteCopy};
use cairn_formats::metadata::log::{FileHeader, FileUse, RECORD_HEAD_BYTES, RecordBuf, Term};
use cairn_formats::metadata::{
    AppliedRecord, ApplyRecord, CloneRecord, CookieRecord, CountersRecord, DirentRecord,
    ExtentPlace, ExtentRecord, Fold, GraceRecord, Group, InodeKind, InodeRecord, JournalEntry, Key,
    LeaseBits, LeaseStyle, LockClientRecord, LockLeaseRecord, LockMode, LockProtocol,
    LockRangeRecord, LockShareRecord, PolicyRecord, Put, QuotaKey, QuotaKind, QuotaLimit,
    QuotaRecord, RangeStyle, RemoteSegment, RequestRecord, SegmentRecord, ShareBits,
    SnapshotRecord, TreeState, UsageRecord,
};
use cairn_formats::metadata::{state_file, versions};
use cairn_formats::pool_file::{
    HandleKey, PoolClone, PoolDisk, PoolState, PoolVolume, Stage, VolumeTiering, encode_pool,
};
use cairn_formats::scrub_file::ScrubStage;
use cairn_formats::scrub_file::{self, Cursor, Damage, ScrubState};
use cairn_formats::shard::footer::{
    CHECKSUM_UNIT_BYTES, FooterStripe, ShardFooter, TRAILER_LEN_BYTES, encode_footer,
};
use cairn_formats::shard::identity::{DiskIdentity, encode_identity};
use cairn_formats::shard::name::ShardName;
use cairn_formats::shard::promise::{Promise, encode_promise};
use cairn_formats::summary::{RecordOwner, SummaryEntry, encode_entries, encode_summary_place};
use cairn_formats::tier_object::{ObjectId, ObjectTrailer, encode_trailer};
use cairn_history::format::{encode_frame, encode_header};
use cairn_history::{Kind, Row, Series};
use cairn_segment::{Compression, Location, RecordPointer, encode_pointer, encode_record};

use super::{Corpus, write};

const CREATED: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanos: 5,
};
/// Fields of a trailer up to the checksum of the body.
const TRAILER_FIELDS_LEN: usize = 56;
/// The length of the summary, after that checksum.
const TRAILER_SUMMARY_LEN: std::ops::Range<usize> = 60..64;
/// Fields of an identity.
const IDENTITY_FIELDS_LEN: usize = 60;
/// Fields of a promise.
const PROMISE_FIELDS_LEN: usize = 24;
/// Magic and version of the files of a state.
const STATE_HEAD_LEN: usize = 12;
/// Fields of [`header`]: the fixed ones, four disks, one term.
const HEADER_FIELDS_LEN: usize = 68 + 4 * 16 + 24;

pub fn write_seeds(corpus: &Corpus) {
    shard(corpus);
    segment(corpus);
    meta(corpus);
    meta_state(corpus);
    pool(corpus);
    scrub(corpus);
    history(corpus);
    wire(corpus)
}

/// A file, and a table and the payload of a frame, which the target gives checksums.
fn history(corpus: &Corpus) {
    let series = |name: &str, kind| Series {
        name: name.to_owned(),
        kind,
        decimals: 3,
    };
    let table = [
        series("nfs_operations_per_second", Kind::Mean),
        series("pool_free_bytes", Kind::Last),
    ];
    let row = |seconds, value| Row {
        seconds: CREATED.seconds + seconds,
        values: vec![value, Some(u64::MAX - 1)],
    };
    let header = encode_header(&table);
    let frame = encode_frame(&[row(0, Some(5)), row(10, None), row(5, Some(0))], 2);
    write(
        corpus,
        "history_file",
        "file",
        &[&header[..], &frame, &frame].concat(),
    );
    write(
        corpus,
        "history_file",
        "frame",
        &[&[2], &frame[8..]].concat(),
    );
    write(
        corpus,
        "history_file",
        "table",
        &[&[0], &header[14..header.len() - 4]].concat(),
    );
}

/// Each message as a frame, and as the kind, id and payload length that the target makes a frame of.
fn wire(corpus: &Corpus) {
    for kind in 0..cairn_wire::testing::MESSAGE_KINDS {
        let (id, message, payload) = cairn_wire::testing::Numbers(kind).message(kind);
        let mut frame = cairn_wire::encode(id, &message, &payload).expect("a short one");
        let body = &frame[cairn_wire::HEADER_LEN_BYTES..];
        let fields = [&frame[6..7], &frame[8..16], &frame[20..24], body].concat();
        write(corpus, "wire_frame", &format!("fields-{kind:02}"), &fields);
        frame.extend_from_slice(&payload.concat());
        write(corpus, "wire_frame", &format!("frame-{kind:02}"), &frame);
    }
}

fn shard(corpus: &Corpus) {
    let stripe = |start_block, unit_blocks| FooterStripe {
        start_block,
        unit_blocks,
    };
    let cases = [
        ("empty", vec![], 0),
        ("one-stripe", vec![stripe(0, 1)], 4096),
        (
            "stripes",
            vec![stripe(0, 16), stripe(20, 29)],
            3 * CHECKSUM_UNIT_BYTES + 4096,
        ),
    ];
    for (name, stripes, data_len_bytes) in cases {
        let checksum_count = data_len_bytes.div_ceil(CHECKSUM_UNIT_BYTES) as u32;
        let footer = ShardFooter {
            name: ShardName {
                volume: VolumeId(3),
                segment: SegmentId(0x1122),
                index: 5,
            },
            data_shards: 4,
            parity_shards: 2,
            epoch: Epoch(9),
            data_len_bytes,
            stripes,
            checksums: (0..checksum_count).collect(),
            summary: name.as_bytes().to_vec(),
        };
        let bytes = encode_footer(&footer).expect("it makes sense");
        let (body, trailer) = bytes.split_at(bytes.len() - TRAILER_LEN_BYTES);
        let body_len = footer.stripes.len() * 8 + footer.checksums.len() * 4 + footer.summary.len();
        let fields = &trailer[..TRAILER_FIELDS_LEN];
        let summary_len = &trailer[TRAILER_SUMMARY_LEN];
        let seed = [fields, summary_len, &body[..body_len]].concat();
        write(corpus, "shard_footer", name, &seed);
    }
    let identity = encode_identity(&DiskIdentity {
        pool: PoolId(7),
        disk: DiskId(8),
        created: CREATED,
    });
    write(
        corpus,
        "shard_footer",
        "identity",
        &identity[..IDENTITY_FIELDS_LEN],
    );
    let promise = encode_promise(&Promise {
        volume: VolumeId(10),
        epoch: Epoch(3),
    });
    write(
        corpus,
        "shard_footer",
        "promise",
        &promise[..PROMISE_FIELDS_LEN],
    );
    let object = encode_trailer(&ObjectTrailer {
        pool: PoolId(7),
        object: ObjectId {
            volume: VolumeId(3),
            segment: SegmentId(0x1122),
            nonce: 9,
        },
        data_shards: 4,
        parity_shards: 2,
        payload_len_bytes: (2 << 20) + 4096,
        summary: vec![1, 0],
        checksums: vec![1, 2, 3],
    });
    let object = object.expect("it makes sense");
    // Its checksum is made by the target.
    let object = &object[..object.len() - 4];
    write(corpus, "shard_footer", "tier-object", object)
}

fn pointer_and_stored(data: &[u8], compression: Compression) -> (RecordPointer, Vec<u8>) {
    let record = encode_record(vec![Bytes::copy_from_slice(data)], compression);
    let pointer = record.pointer(Location {
        segment: SegmentId(300),
        stripe_block: 7,
        unit_blocks: 16,
        offset_bytes: 4096,
        len_bytes: record.stored_len_bytes(),
    });
    (pointer, record.parts().concat())
}

fn segment(corpus: &Corpus) {
    let text = b"all work and no play ".repeat(20);
    let cases: [(&str, &[u8], Compression); 4] = [
        ("empty", b"", Compression::None),
        ("raw", b"stone", Compression::None),
        ("lz4", &text, Compression::Lz4),
        ("zstd", &text, Compression::Zstd(1)),
    ];
    for (name, data, compression) in cases {
        let (pointer, stored) = pointer_and_stored(data, compression);
        let mut seed = Vec::new();
        encode_pointer(&pointer, &mut seed);
        seed.extend_from_slice(&stored);
        write(corpus, "segment_record", &format!("pointer-{name}"), &seed);

        let pointer = RecordPointer {
            encryption: Some(Box::new(Encryption {
                salt: [7; 16],
                tags: vec![[9; 16]; pointer.checksums.len()],
            })),
            ..pointer
        };
        let mut seed = Vec::new();
        encode_pointer(&pointer, &mut seed);
        seed.extend_from_slice(&stored);
        write(
            corpus,
            "segment_record",
            &format!("pointer-encrypted-{name}"),
            &seed,
        );

        let mut seed = vec![pointer.codec as u8];
        seed.extend_from_slice(&pointer.file_len_bytes.to_le_bytes());
        seed.extend_from_slice(&stored);
        write(corpus, "segment_record", &format!("stored-{name}"), &seed);
    }
    let entry = |offset| SummaryEntry {
        owner: RecordOwner { object: 7, offset },
        len_bytes: 4096,
    };
    let entries = encode_entries(&[entry(0), entry(1 << 40)]);
    write(corpus, "segment_record", "summary-entries", &entries);
    let (pointer, _) = pointer_and_stored(&entries, Compression::Lz4);
    let place = encode_summary_place(&[pointer]);
    write(corpus, "segment_record", "summary-place", &place);
}

fn meta(corpus: &Corpus) {
    let seed = |kind: u8, name: &str, bytes: &[u8]| {
        write(corpus, "meta_format", name, &[&[kind], bytes].concat())
    };
    for (name, key) in keys() {
        seed(0, &format!("key-{name}"), key.as_bytes());
    }
    for birth in [1, 300] {
        let version = versions::join(Generation(birth), b"value");
        seed(0, &format!("version-{birth}"), &version);
    }
    for (name, bytes) in records() {
        seed(1, &format!("record-{name}"), &bytes);
    }
    // An extent that is its record but for the first byte, and one that has a byte too much.
    let (record, _) = pointer_and_stored(b"stone", Compression::None);
    let value = ExtentRecord {
        start: 5,
        place: ExtentPlace::Record {
            record,
            offset_in_record: 1,
        },
    };
    for (name, end) in [("pair-extent", 9), ("pair-extent-too-long", 10)] {
        let key = Key::extent(Ino(3), end);
        seed(1, name, &[key.as_bytes(), &value.encode()].concat());
    }
    // The same of one that has its bytes.
    let value = inline_extent();
    for (name, end) in [("pair-inline", 10), ("pair-inline-too-long", 11)] {
        let key = Key::extent(Ino(3), end);
        seed(1, name, &[key.as_bytes(), &value.encode()].concat());
    }
    seed(2, "header", &header().encode()[..HEADER_FIELDS_LEN]);

    let group = group();
    let mut record = group.encode(Epoch(1), 9);
    record.seal(FileUse(5), LogPosition(1));
    let payload_end = RECORD_HEAD_BYTES + record.head.payload_len_bytes as usize;
    seed(3, "log-record", &record.bytes[8..payload_end]);
    let mut empty = RecordBuf::copy_of(&[], (LogPosition(1), LogPosition(2)), Epoch(1), 9);
    empty.seal(FileUse(5), LogPosition(1));
    seed(3, "log-record-empty", &empty.bytes[8..RECORD_HEAD_BYTES]);
    let pieces =
        b"\x00\x00......\x09\x00abcdef\x50\x00......\xff\x03......\x80\x02......\x90\x01......\x01\x00......";
    seed(4, "log-file", pieces);
    seed(5, "group", &record.bytes[RECORD_HEAD_BYTES..payload_end])
}

fn keys() -> Vec<(&'static str, Key)> {
    let quota = QuotaKey {
        tree: Ino(9),
        kind: QuotaKind::User,
        id: 1000,
    };
    vec![
        ("inode", Key::inode(Ino(1))),
        ("dirent", Key::dirent(Ino(2), b"a")),
        ("cookie", Key::cookie(Ino(2), 9)),
        ("extent", Key::extent(Ino(3), 4096)),
        ("xattr", Key::xattr(Ino(3), b"user.x")),
        ("acl", Key::acl(Ino(4))),
        ("orphan", Key::orphan(Ino(5))),
        ("segment", Key::segment(SegmentId(6))),
        (
            "unused-object",
            Key::unused_object(TierId(2), SegmentId(6), 9),
        ),
        ("snapshot", Key::snapshot(Generation(2))),
        ("quota", Key::quota(quota)),
        ("usage", Key::usage(quota)),
        ("grace", Key::grace(quota)),
        ("dedupe", Key::dedupe(&[7; 32])),
        ("history", Key::history(&Key::inode(Ino(1)), Generation(9))),
        (
            "dead",
            Key::dead(&Key::dirent(Ino(2), b"a"), Generation(9), Generation(3)),
        ),
        ("applied", Key::applied()),
        ("counters", Key::counters()),
        ("request", Key::request(258)),
        ("lock-client", Key::lock_client(5)),
        ("lock-range", Key::lock_range(Ino(3), 6)),
        ("lock-share", Key::lock_share(Ino(3), 7)),
        ("lock-lease", Key::lock_lease(Ino(3), 8)),
        ("sharer", Key::sharer(SegmentId(6), Ino(3), 4096, 8192)),
        ("lineage", Key::lineage()),
    ]
}

fn records() -> Vec<(&'static str, Vec<u8>)> {
    let symlink = InodeRecord {
        mode: 0o777,
        mtime: CREATED,
        exclusive_verifier: Some(*b"verifier"),
        symlink_target: Bytes::from_static(b"../x"),
        ..InodeRecord::new(InodeKind::Symlink)
    };
    let dirent = DirentRecord {
        ino: Ino(1),
        kind: InodeKind::Fifo,
        cookie: 2,
    };
    let cookie = CookieRecord {
        ino: Ino(1),
        kind: InodeKind::Regular,
        name: Bytes::from_static(b"name"),
    };
    let request = RequestRecord {
        id: [7; 32],
        sequence: 8,
        ino: Ino(9),
    };
    let extent = |data: &[u8], compression| ExtentRecord {
        start: 5,
        place: ExtentPlace::Record {
            record: pointer_and_stored(data, compression).0,
            offset_in_record: 1,
        },
    };
    let segment = SegmentRecord {
        data: 1,
        parity: 1,
        disks: vec![DiskId(1), DiskId(u128::MAX)],
        shard_len_bytes: 1 << 26,
        sealed: true,
        epoch: Epoch(3),
        live_bytes: 4,
        live_records: 5,
        remote: None,
        used_day: 20_000,
        media: Some(cairn_base::Media::Ssd),
        protection: Some(cairn_config::Protection::Mirror(3)),
    };
    let remote_segment = SegmentRecord {
        disks: Vec::new(),
        remote: Some(RemoteSegment {
            tier: TierId(2),
            nonce: 7,
            object_len_bytes: 1 << 27,
            sent_live_bytes: 1 << 26,
        }),
        ..segment.clone()
    };
    let applied = AppliedRecord {
        position: LogPosition(1),
        epoch: Epoch(2),
        term: 3,
    };
    let counters = CountersRecord {
        generation: Generation::FIRST,
        inodes: 1,
        file_bytes: 2,
        stored_bytes: 3,
        history_bytes: 1,
        ino_reserved: 4,
        segment_reserved: 5,
        branch_next: 2,
    };
    let snapshot = SnapshotRecord {
        name: Bytes::from_static(b"daily.0"),
        taken: CREATED,
        is_locked: true,
        is_deleted: false,
        is_restoring: false,
        schedule: Bytes::from_static(b"daily"),
        inodes: 1,
        file_bytes: 2,
        undecided_group: 9,
        branch: Branch::MAIN,
        clones: vec![CloneRecord {
            branch: Branch(1),
            volume: VolumeId(4),
            is_deleted: false,
            ino_mark: 12,
            nameless_inodes: 1,
            nameless_bytes: 2,
        }],
    };
    let policy = PolicyRecord {
        compression: cairn_config::Compression::zstd(3),
        dedupe: Some(Dedupe::Verify),
        access_pattern: Some(AccessPattern::Random),
        media: Some(cairn_config::MediaChoice::Hdd),
        protection: Some(cairn_config::Protection::Plus(3)),
    };
    let in_tree = InodeRecord {
        stored_bytes: 7,
        tree: Ino(9),
        cookie: 10,
        ..InodeRecord::new(InodeKind::Regular)
    };
    let usage = UsageRecord {
        inodes: 1,
        file_bytes: 2,
        stored_bytes: 3,
    };
    let quota = QuotaRecord {
        bytes: QuotaLimit {
            hard: Some(10 << 40),
            soft: Some(8 << 40),
            advisory: None,
        },
        is_physical: true,
        grace_seconds: 604_800,
        state: TreeState::Counting,
        parent: Ino(9),
        path: Bytes::from_static(b"/home"),
        ..QuotaRecord::default()
    };
    let grace = GraceRecord {
        bytes_since: Some(1_700_000_000),
        files_since: None,
    };
    let lock_client = LockClientRecord {
        protocol: LockProtocol::Nlm,
        verifier: [0; 8],
        lease_ms: 0,
        since: CREATED,
        name: Bytes::from_static(b"host"),
    };
    let lock_range = LockRangeRecord {
        client: 5,
        first: 0,
        last: u64::MAX,
        mode: LockMode::Shared,
        style: RangeStyle::Exact,
        since: CREATED,
        owner: Bytes::from_static(b"77@host"),
    };
    let lock_share = LockShareRecord {
        client: 5,
        access: ShareBits::READ,
        deny: ShareBits::WRITE,
        since: CREATED,
        owner: Bytes::from_static(b"77@host"),
    };
    let lock_lease = LockLeaseRecord {
        client: 5,
        level: LeaseBits::READ,
        style: LeaseStyle::Whole,
        since: CREATED,
        owner: Bytes::new(),
    };
    vec![
        ("lock-client", lock_client.encode()),
        ("lock-range", lock_range.encode()),
        ("lock-share", lock_share.encode()),
        ("lock-lease", lock_lease.encode()),
        ("snapshot", snapshot.encode()),
        ("file-in-tree", in_tree.encode()),
        ("usage", usage.encode()),
        ("quota", quota.encode()),
        ("grace", grace.encode()),
        ("policy", policy.encode()),
        ("apply", ApplyRecord::default().encode()),
        ("file", InodeRecord::new(InodeKind::Regular).encode()),
        ("symlink", symlink.encode()),
        ("dirent", dirent.encode()),
        ("request", request.encode()),
        ("cookie", cookie.encode()),
        ("extent-raw", extent(b"stone", Compression::None).encode()),
        ("extent-lz4", extent(&[7; 4096], Compression::Lz4).encode()),
        ("extent-inline", inline_extent().encode()),
        ("segment", segment.encode()),
        ("segment-in-tier", remote_segment.encode()),
        ("applied", applied.encode()),
        ("counters", counters.encode()),
    ]
}

fn header() -> FileHeader {
    FileHeader {
        volume: VolumeId(3),
        sequence: 4,
        file_use: FileUse(5),
        speaks_as: 4,
        file_len_bytes: 1 << 20,
        retained_from: LogPosition(7),
        copies: 2,
        set: vec![DiskId(1), DiskId(2)],
        members: vec![DiskId(1), DiskId(2)],
        history: vec![Term {
            epoch: Epoch(1),
            nonce: 9,
            start: LogPosition(1),
        }],
    }
}

fn group() -> Group {
    let mut group = Group::new(Generation::FIRST, LogPosition(4), LogPosition(6));
    group.newest_snapshot = Generation::FIRST;
    let value = Some(Bytes::from_static(b"value"));
    group.put(Put::new(Key::inode(Ino(1)), value.clone()));
    group.put(Put::new(Key::dirent(Ino(1), b"name"), None));
    group.put(Put {
        kept_birth: Some(Generation::FIRST),
        ..Put::new(Key::inode(Ino(2)), value)
    });
    group.journal.push(JournalEntry {
        position: LogPosition(5),
        ino: Ino(1),
        offset: 100,
        data: Bytes::from_static(b"data"),
        encryption: None,
        size_bytes: 104,
        mtime: CREATED,
        ctime: CREATED,
        mode: 0o644,
    });
    group.journal.push(JournalEntry {
        encryption: Some(Box::new(Encryption {
            salt: [1; 16],
            tags: vec![[2; 16]],
        })),
        ..group.journal[0].clone()
    });
    group.folds.push(Fold {
        ino: Ino(1),
        start: 0,
        end: u64::MAX,
        through: LogPosition(3),
    });
    group
}

fn meta_state(corpus: &Corpus) {
    let seed = |kind: u8, name: &str, file: &[u8]| {
        let body = &file[STATE_HEAD_LEN..file.len() - 4];
        write(corpus, "meta_state", name, &[&[kind], body].concat())
    };
    let applied = AppliedRecord {
        position: LogPosition(5),
        epoch: Epoch(2),
        term: 3,
    };
    let file = |name: &str| FileEntry {
        name: name.to_owned(),
        len_bytes: 10,
        crc: 11,
    };
    let descriptor = |files| Descriptor {
        volume: VolumeId(1),
        applied,
        lineage: 4,
        files,
    };
    let copy = descriptor(vec![file("000012.sst"), file("MANIFEST-000004")]);
    seed(0, "descriptor", &copy.encode());
    seed(0, "descriptor-empty", &descriptor(Vec::new()).encode());
    seed(
        0,
        "descriptor-parent",
        &descriptor(vec![file("../x")]).encode(),
    );
    let remote = RemoteCopy {
        descriptor: copy,
        firsts: vec![7, 9],
    };
    seed(3, "remote", &remote.encode());
    let mut map = state_file::Map::new();
    seed(1, "state-file-empty", &state_file::encode(&map));
    let position = Key::applied().as_bytes().to_vec();
    map.insert(position, Bytes::from(applied.encode()));
    map.insert(b"key".to_vec(), Bytes::from_static(b"value"));
    seed(1, "state-file", &state_file::encode(&map))
}

fn user() -> UserRecord {
    UserRecord {
        role: Role::Viewer,
        password: "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo"
            .parse()
            .expect("it has the form of a hash"),
        stamp: 7,
        created_seconds: 1_700_000_000,
        changed_seconds: 1_700_000_001,
    }
}

fn pool(corpus: &Corpus) {
    let state = PoolState {
        pool: PoolId(77),
        version: 3,
        created: CREATED,
        stage: Stage::InUse,
        disks: vec![PoolDisk::new(DiskId(1), "/data/1", CREATED)],
        left: Vec::new(),
        volumes: vec![PoolVolume {
            id: VolumeId(1),
            name: "main".parse().expect("it is a name"),
            settings: VolumeSettings::default(),
            created: CREATED,
            exports: ExportRule::this_machine(),
            class: Some("gold".parse().expect("it is a name")),
            limits: vec![PartLimit {
                part: "lun/db".parse().expect("it is a part"),
                throughput: Some(1 << 20),
                read_throughput: None,
                write_throughput: None,
                iops: Some(100),
            }],
            encryption: Some(VolumeEncryption::Key(WrappedKey {
                master_key: MasterKeyId([0x12; 8]),
                wrapped: [0x34; WRAPPED_LEN_BYTES],
            })),
            tiering: None,
            is_deleted: false,
        }],
        users: BTreeMap::from([("alice".parse().expect("it is a name"), user())]),
        classes: BTreeMap::from([("gold".parse().expect("it is a name"), ClassSpec::default())]),
        deleted: Vec::new(),
        volume_next: VolumeId(3),
        handle_key: Some(HandleKey(9).readable()),
        secrets_key: None,
        cluster: None,
        clones: vec![PoolClone {
            store: VolumeId(1),
            volume: PoolVolume {
                id: VolumeId(2),
                name: "test".parse().expect("it is a name"),
                settings: VolumeSettings::default(),
                created: CREATED,
                exports: Vec::new(),
                class: None,
                limits: Vec::new(),
                encryption: None,
                tiering: None,
                is_deleted: false,
            },
        }],
        caches: Vec::new(),
        tiers: Vec::new(),
        tier_last: Default::default(),
        maintenance: Default::default(),
        logouts: Default::default(),
    };
    let file = encode_pool(&state);
    write(corpus, "pool_file", "file", &file);
    write(corpus, "pool_file", "json", json_of(&file));
    let two = PoolState {
        volumes: ["v1", "v2"]
            .into_iter()
            .zip(1..)
            .map(|(name, id)| PoolVolume {
                id: VolumeId(id),
                name: name.parse().expect("it is a name"),
                settings: VolumeSettings::default(),
                created: CREATED,
                exports: Vec::new(),
                class: None,
                limits: Vec::new(),
                encryption: Some(VolumeEncryption::Erased(CREATED)),
                tiering: None,
                is_deleted: false,
            })
            .collect(),
        deleted: Vec::new(),
        volume_next: VolumeId(3),
        ..state.clone()
    };
    let mut tiers = two.clone();
    let added = tiers.add_tier(
        "cold".parse().expect("it is a name"),
        "s3://bucket/prefix?region=eu-west-1".to_owned(),
        Some("/etc/cairn/cold".to_owned()),
        CREATED,
    );
    for volume in &mut tiers.volumes {
        volume.tiering = added.as_ref().ok().map(|tier| VolumeTiering {
            tier: *tier,
            policy: Tiering::Auto,
            cooling_days: Default::default(),
            filter: TierFilter {
                files: "*.mp4,[a-z]?.[!0]*".parse().unwrap_or_default(),
                min_size: Default::default(),
                min_age: "30d".parse().unwrap_or_default(),
            },
        });
    }
    let json = encode_pool(&tiers);
    write(corpus, "pool_file", "json-tiers", json_of(&json));
    write(corpus, "pool_file", "json-two", json_of(&encode_pool(&two)));
    let forming = PoolState {
        stage: Stage::Forming,
        volumes: Vec::new(),
        ..state
    };
    let file = encode_pool(&forming);
    write(corpus, "pool_file", "json-forming", json_of(&file))
}

/// The JSON of the first copy in a file, without its padding.
fn json_of(file: &[u8]) -> &[u8] {
    let (copy, _) = file.split_at(file.len() / 2);
    let mut lines = copy.splitn(2, |byte| *byte == b'\n');
    lines.nth(1).unwrap_or_default().trim_ascii_end()
}

fn scrub(corpus: &Corpus) {
    let state = ScrubState {
        pool: PoolId(77),
        version: 12,
        stage: ScrubStage::Running,
        rate_bytes_per_second: Some(1 << 20),
        started_seconds: CREATED.seconds,
        done_bytes: 1 << 30,
        volumes_done: vec![VolumeId(2)],
        cursor: Some(Cursor {
            volume: VolumeId(1),
            segment: 3,
            segment_last: Some(9),
            records: Some((4, 4096)),
            inode_last: Some(40),
        }),
        shards: 5,
        rewrites: [2, 3].into(),
        damages: vec![Damage {
            volume: VolumeId(1),
            inode: 9,
            start: 0,
            end: 4096,
            segment: 2,
            detail: "two shards are gone".to_owned(),
        }],
        damages_more: 1,
        ..ScrubState::default()
    };
    let file = scrub_file::encode_scrub(&state);
    write(corpus, "scrub_file", "file", &file);
    write(corpus, "scrub_file", "json", json_of(&file));
    let most = ScrubState {
        version: scrub_file::COUNT_MAX,
        done_bytes: scrub_file::COUNT_MAX,
        shards: scrub_file::COUNT_MAX,
        errors: scrub_file::COUNT_MAX,
        ..ScrubState::default()
    };
    let most = scrub_file::encode_scrub(&most);
    write(corpus, "scrub_file", "json-most", json_of(&most));
    let never = scrub_file::encode_scrub(&ScrubState::default());
    write(corpus, "scrub_file", "json-never", json_of(&never));
}

/// One that has its bytes.
fn inline_extent() -> ExtentRecord {
    ExtentRecord {
        start: 5,
        place: ExtentPlace::Inline(Bytes::from_static(b"stone")),
    }
}
