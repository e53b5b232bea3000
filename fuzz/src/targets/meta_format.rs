//! What metadata is made of: keys, records, log files and the groups in them.
//!
//! The first byte of the input says which of them the rest is. Checksums are made right where a
//! format has them, or nothing would ever get past them.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_base::{Epoch, Ino, LogPosition, crc32c, crc32c_append};
use cairn_formats::metadata::log::{
    BLOCK_BYTES, FileHeader, FileUse, RECORD_HEAD_BYTES, RecordBuf, RecordHead, find_records,
};
use cairn_formats::metadata::{
    AppliedRecord, ApplyRecord, CookieRecord, CountersRecord, DirentRecord, ExtentPlace,
    ExtentRecord, GraceRecord, Group, InodeRecord, Key, KeyKind, LockClientRecord, LockLeaseRecord,
    LockRangeRecord, LockShareRecord, PolicyRecord, Put, QuotaRecord, RequestRecord, SegmentRecord,
    SnapshotRecord, UsageRecord, decode_extent, versions,
};

/// What a record in a log file begins with (docs/reference/formats/metadata.md).
const RECORD_MAGIC: [u8; 4] = *b"CREC";
/// Bytes of the input that make one record of a log file, and most of those.
const PIECE_LEN: usize = 8;
const PIECE_COUNT_MAX: usize = 8;
/// What a length in a piece counts; the longest payload takes a second block.
const PAYLOAD_STEP_BYTES: usize = 17;

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 6 {
        0 => key(rest),
        1 => record(rest),
        2 => header(rest),
        3 => record_head(rest),
        4 => log_file(rest),
        _ => group(rest),
    }
}

fn key(bytes: &[u8]) {
    if let Ok(key) = Key::parse(bytes) {
        let kind = key.kind().expect("a parsed key is one");
        if let Some(made) = made_of(kind) {
            assert_eq!(made.as_bytes(), bytes);
        }
        if let Some((from, to)) = range_of(kind) {
            assert!(from <= key);
            assert!(key < to);
        }
        assert!(key < key.successor());
    }
    if let Ok((birth, at)) = versions::split(bytes) {
        assert_eq!(versions::join(birth, &bytes[at..])[..], *bytes);
    }
}

/// The key that its constructor makes of the same fields. The store's own have none to take.
fn made_of(kind: KeyKind<'_>) -> Option<Key> {
    Some(match kind {
        KeyKind::Applied | KeyKind::Counters | KeyKind::Lineage => return None,
        KeyKind::Inode(ino) => Key::inode(ino),
        KeyKind::Dirent { dir, name } => Key::dirent(dir, name),
        KeyKind::Cookie { dir, seq } => Key::cookie(dir, seq),
        KeyKind::Extent { ino, end_offset } => Key::extent(ino, end_offset),
        KeyKind::Xattr { ino, name } => Key::xattr(ino, name),
        KeyKind::Acl(ino) => Key::acl(ino),
        KeyKind::Orphan(ino) => Key::orphan(ino),
        KeyKind::Gone(ino) => Key::gone(ino),
        KeyKind::Segment(id) => Key::segment(id),
        KeyKind::Snapshot(generation) => Key::snapshot(generation),
        KeyKind::Quota(of) => Key::quota(of),
        KeyKind::Usage(of) => Key::usage(of),
        KeyKind::Grace(of) => Key::grace(of),
        KeyKind::Policy(dir) => Key::policy(dir),
        KeyKind::Apply => Key::apply(),
        KeyKind::UnusedObject {
            tier,
            segment,
            nonce,
        } => Key::unused_object(tier, segment, nonce),
        KeyKind::Dedupe(hash) => Key::dedupe(hash),
        KeyKind::Sharer {
            segment,
            ino,
            start,
            end,
        } => Key::sharer(segment, ino, start, end),
        KeyKind::Request(slot) => Key::request(slot),
        KeyKind::LockClient(number) => Key::lock_client(number),
        KeyKind::LockRange { ino, number } => Key::lock_range(ino, number),
        KeyKind::LockShare { ino, number } => Key::lock_share(ino, number),
        KeyKind::LockLease { ino, number } => Key::lock_lease(ino, number),
        KeyKind::History { key, death } => Key::history(&Key::parse(key).ok()?, death),
        KeyKind::Dead { death, birth, key } => Key::dead(&Key::parse(key).ok()?, death, birth),
    })
}

/// The smallest range of those that are offered in which the key must be.
fn range_of(kind: KeyKind<'_>) -> Option<(Key, Key)> {
    match kind {
        KeyKind::Inode(_) => Some(Key::inodes()),
        KeyKind::Dirent { dir, .. } => Some(Key::dirents(dir)),
        KeyKind::Cookie { dir, seq } => Some(Key::cookies_after(dir, seq.checked_sub(1)?)),
        KeyKind::Extent { ino, end_offset } => {
            Some(Key::extents_past(ino, end_offset.checked_sub(1)?))
        }
        KeyKind::Xattr { ino, .. } => Some(Key::xattrs(ino)),
        KeyKind::Orphan(_) => Some(Key::orphans()),
        KeyKind::Segment(_) => Some(Key::all_segments()),
        KeyKind::Snapshot(_) => Some(Key::all_snapshots()),
        KeyKind::Request(_) => Some(Key::requests()),
        KeyKind::Sharer { segment, .. } => Some(Key::sharers(segment)),
        KeyKind::Quota(_) => Some(Key::all_quotas()),
        KeyKind::Usage(_) => Some(Key::all_usages()),
        KeyKind::Grace(_) => Some(Key::all_graces()),
        KeyKind::Policy(_) => Some(Key::all_policies()),
        KeyKind::LockClient(_)
        | KeyKind::LockRange { .. }
        | KeyKind::LockShare { .. }
        | KeyKind::LockLease { .. } => Some(Key::all_locks()),
        KeyKind::History { .. } => Some(Key::all_history()),
        KeyKind::Dead { death, .. } => Some(Key::dead_between(death, death)),
        _ => Some(Key::everything()),
    }
}

/// One value has one encoding, so whatever is decoded encodes to the very bytes.
fn record(bytes: &[u8]) {
    macro_rules! same_bytes {
        ($($record:ty),*) => {$(
            if let Ok(record) = <$record>::decode(bytes) {
                assert_eq!(record.encode(), bytes, "{record:?}");
            }
        )*};
    }
    same_bytes!(
        InodeRecord,
        DirentRecord,
        CookieRecord,
        RequestRecord,
        ExtentRecord,
        SegmentRecord,
        AppliedRecord,
        CountersRecord,
        SnapshotRecord,
        UsageRecord,
        QuotaRecord,
        GraceRecord,
        PolicyRecord,
        ApplyRecord,
        LockClientRecord,
        LockRangeRecord,
        LockShareRecord,
        LockLeaseRecord
    );
    // A key and its value, one behind the other; and a value under the keys that matter to it.
    if let Some((key, value)) = bytes.split_at_checked(Key::extent(Ino(0), 0).as_bytes().len()) {
        pair(key, value);
    }
    if let Ok(ExtentRecord { start, place }) = ExtentRecord::decode(bytes) {
        let len_bytes = match &place {
            ExtentPlace::Record { record, .. } => u64::from(record.file_len_bytes),
            ExtentPlace::Inline(bytes) => bytes.len() as u64,
        };
        for len_bytes in [0, 1, len_bytes, len_bytes + 1, 1 << 32, u64::MAX] {
            let end_offset = start.saturating_add(len_bytes);
            pair(Key::extent(Ino(3), end_offset).as_bytes(), bytes);
        }
    }
}

/// An extent is decoded if and only if it is not empty and lies in its record, or has as many bytes itself.
fn pair(key: &[u8], value: &[u8]) {
    let found = decode_extent(key, value).ok();
    let (Ok(KeyKind::Extent { ino, end_offset }), Ok(extent)) =
        (KeyKind::parse(key), ExtentRecord::decode(value))
    else {
        return assert!(found.is_none());
    };
    let len_bytes = i128::from(end_offset) - i128::from(extent.start);
    let fits = match &extent.place {
        ExtentPlace::Record {
            record,
            offset_in_record,
        } => {
            let room_len_bytes = i128::from(record.file_len_bytes) - i128::from(*offset_in_record);
            len_bytes > 0 && len_bytes <= room_len_bytes
        }
        ExtentPlace::Inline(bytes) => len_bytes == bytes.len() as i128,
    };
    assert_eq!(found, fits.then_some((ino, end_offset, extent)));
}

fn header(bytes: &[u8]) {
    assert!(matches!(FileHeader::decode(bytes), Ok(None)) || bytes.len() == BLOCK_BYTES);
    let mut block = bytes.to_vec();
    block.resize(BLOCK_BYTES - 4, 0);
    let crc = crc32c(&block);
    block.extend_from_slice(&crc.to_be_bytes());
    if let Ok(Some(header)) = FileHeader::decode(&block) {
        assert!(header.term().is_some());
        assert_eq!(FileHeader::decode(&header.encode()), Ok(Some(header)));
    }
}

/// The input is a record in a file, from what its head shows of the file's use on; its payload is what is left.
fn record_head(bytes: &[u8]) {
    let Some((shown, _)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let shown = u64::from_be_bytes(*shown);
    let file_use = FileUse(u128::from(!shown) << 64 | u128::from(shown));
    find_all(bytes, file_use);

    let mut file = RECORD_MAGIC.to_vec();
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(bytes);
    file.resize(file.len().max(RECORD_HEAD_BYTES), 0);
    // The payload may be cut short; then its checksum cannot be right.
    let payload_len = RecordHead::decode(&with_head_crc(file.clone(), file_use), file_use)
        .map_or(0, |head| head.payload_len_bytes as usize);
    let payload = file.get(RECORD_HEAD_BYTES..RECORD_HEAD_BYTES.saturating_add(payload_len));
    let payload_crc = crc32c(payload.unwrap_or_default());
    file[RECORD_HEAD_BYTES - 4..RECORD_HEAD_BYTES].copy_from_slice(&payload_crc.to_be_bytes());
    let file = with_head_crc(file, file_use);
    let is_whole = RecordHead::decode(&file, file_use).is_some_and(|head| {
        assert!(head.first.0 >= 1);
        assert!(head.first <= head.last);
        head.payload_len_bytes as usize <= file.len() - RECORD_HEAD_BYTES
    });
    let first = find_all(&file, file_use);
    // It is no record of another use of the file that shows the same.
    let other = find_all(&file, FileUse(file_use.0 ^ 1 << 64));
    assert_ne!(other, Some(RECORD_HEAD_BYTES));
    assert_eq!(first == Some(RECORD_HEAD_BYTES), is_whole);
}

fn with_head_crc(mut file: Vec<u8>, file_use: FileUse) -> Vec<u8> {
    let crc = crc32c(&file_use.0.to_be_bytes());
    let crc = crc32c_append(crc, &file[8..RECORD_HEAD_BYTES]);
    file[4..8].copy_from_slice(&crc.to_be_bytes());
    file
}

/// What is found is in the file, in order, apart, and of this use of it. Gives where the payload
/// of the first is.
fn find_all(file: &[u8], file_use: FileUse) -> Option<usize> {
    let found = find_records(file, file_use);
    let mut free = 0;
    for record in &found {
        assert!(record.payload.start >= free + RECORD_HEAD_BYTES);
        assert_eq!((record.payload.start - RECORD_HEAD_BYTES) % BLOCK_BYTES, 0);
        assert_eq!(record.payload.len(), record.head.payload_len_bytes as usize);
        assert_eq!(
            crc32c(&file[record.payload.clone()]),
            record.head.payload_crc
        );
        free = record.payload.end;
    }
    found.first().map(|record| record.payload.start)
}

/// A recycled log file: of each piece of the input its first two bytes say how long a payload it
/// repeats to and what happened to that record. Exactly the whole ones of this use are found.
fn log_file(input: &[u8]) {
    // Of the whole input, so that no piece of it can be the head of a record.
    let file_use = FileUse(u128::from(crc32c(input)) << 32 | 1);
    let mut file = Vec::new();
    let mut want = Vec::new();
    for (index, piece) in input.chunks(PIECE_LEN).take(PIECE_COUNT_MAX).enumerate() {
        let [len, fate, pattern @ ..] = piece else {
            break;
        };
        let pattern = pattern.iter().copied().cycle();
        let payload: Vec<u8> = pattern
            .take(usize::from(*len) * PAYLOAD_STEP_BYTES)
            .collect();
        let position = LogPosition(index as u64 + 1);
        let mut record = RecordBuf::copy_of(&payload, (position, position), Epoch(1), 2);
        // Its use before shows the same, or something else.
        let other = [1, 1 << 64][usize::from(fate / 4 % 2)];
        let written_in = match fate % 4 {
            1 => FileUse(file_use.0 ^ other),
            _ => file_use,
        };
        record.seal(written_in, LogPosition(1));
        let start = file.len();
        file.extend_from_slice(&record.bytes);
        match fate % 4 {
            // Of the file's use before.
            1 => {}
            2 => file[start + usize::from(*fate) % RECORD_HEAD_BYTES] ^= 0x40,
            3 if !payload.is_empty() => {
                let at = usize::from(*fate) * PAYLOAD_STEP_BYTES % payload.len();
                file[start + RECORD_HEAD_BYTES + at] ^= 0x01;
            }
            _ => want.push((position, payload)),
        }
    }
    let found: Vec<_> = find_records(&file, file_use)
        .into_iter()
        .map(|record| (record.head.first, file[record.payload].to_vec()))
        .collect();
    assert_eq!(found, want);
}

fn group(payload: &[u8]) {
    let (first, last) = (LogPosition(1), LogPosition(u64::MAX));
    let payload = Bytes::copy_from_slice(payload);
    let Ok(group) = Group::decode(&payload, first, last) else {
        return;
    };
    let record = group.encode(Epoch(1), 2);
    let len = record.head.payload_len_bytes as usize;
    // One value has one encoding here too.
    assert_eq!(record.bytes[RECORD_HEAD_BYTES..][..len], payload[..]);

    // Merging keeps the last change of each key.
    let mut merged = Group::new(group.generation, first, last);
    for put in &group.puts {
        merged.put(put.clone());
    }
    let state: BTreeMap<&Key, &Put> = group.puts.iter().map(|put| (&put.key, put)).collect();
    assert_eq!(merged.puts.len(), state.len());
    for put in &merged.puts {
        assert_eq!(state.get(&put.key), Some(&put));
    }
}
