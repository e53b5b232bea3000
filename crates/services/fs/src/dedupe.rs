//! Deduplication: finds records that already hold given bytes.
//!
//! Owns: the index from hashes of records to the places of such records, and the check whether a record is still
//! there and may be shared. Must not know: how files are cut into records, how extents are submitted (`flight`).
//!
//! The index is a hint. It is bounded, in memory only, and may forget anything at any time. A record that it names is
//! shared only if an extent of a live file still refers to that very place: segment numbers are never reused, and a
//! place in a segment is written once, so an equal place is an equal record. A record that moved, was overwritten or
//! was collected is in no such extent. One risk remains between this check and the batch that shares: the last
//! reference to the record may go. So the batch checks its segment under the lock that orders batches
//! (`submit_sharing`). A segment with any live record stays, and so do all bytes in it.

use std::mem::size_of;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cairn_base::env::{Entropy, Env};
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, SegmentId, VolumeId};
pub use cairn_meta::volume_settings::Dedupe;
use cairn_meta::{ExtentPlace, ExtentRecord, Key};
use cairn_segment::{Location, RecordPointer};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::kernel::meta_error;
use crate::types::FsError;
use crate::volume::{Policy, VolumeCore};

/// Shorter records are written without a lookup: a sharer needs a key, and an extent that is as long.
pub(crate) const DEDUPE_LEN_BYTES_MIN: u64 = 4096;
/// The index gives out one record so often; then the bytes are written again. Without a limit, one corrupt record
/// could corrupt very many files, and the keys of its sharers would grow without end.
const SHARES_MAX: u16 = 4096;
/// Slots for a hash; the least recently used one is replaced.
const WAYS: usize = 8;
/// Shards of the index, each with its own lock.
const PARTS: usize = 64;
/// The default size of an index.
pub(crate) const INDEX_BYTES_DEFAULT: u64 = 16 << 20;

/// The hash of the bytes of a record, keyed with a secret of the open volume.
pub(crate) type Hash = [u8; 32];

/// A record that was found, and the part of a file that referred to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownRecord {
    pub location: Location,
    pub ino: Ino,
    pub start: u64,
    /// Length of the file's bytes in the record, which are the whole record.
    pub len_bytes: u32,
}

#[derive(Clone, Debug)]
struct Slot {
    volume: VolumeId,
    hash: Hash,
    known: KnownRecord,
    /// The time of the last use, by the clock of its part of the index.
    used: u32,
    shares: u16,
}

/// Maps hashes to records, for all volumes of a process that deduplicate, within a fixed amount of memory.
pub struct DedupeIndex {
    buckets_per_part: usize,
    parts: Vec<Mutex<IndexPartition>>,
}

#[derive(Default)]
struct IndexPartition {
    /// Empty until the first entry.
    slots: Vec<Option<Slot>>,
    clock: u32,
}

impl DedupeIndex {
    /// Takes at most about `bytes_max` of memory, and none before the first entry.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        let bucket_bytes = (size_of::<Option<Slot>>() * WAYS) as u64;
        let buckets = bytes_max / PARTS as u64 / bucket_bytes;
        Arc::new(Self {
            buckets_per_part: usize::try_from(buckets).unwrap_or(usize::MAX).max(1),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
        })
    }

    fn part(&self, hash: &Hash) -> &Mutex<IndexPartition> {
        &self.parts[usize::from(hash[0]) % PARTS]
    }

    /// The slots that may hold a hash.
    fn bucket<'a>(&self, part: &'a mut IndexPartition, hash: &Hash) -> &'a mut [Option<Slot>] {
        if part.slots.is_empty() {
            return &mut [];
        }
        // The first byte selected the part.
        let number = hash[1..8]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        let index = (number % self.buckets_per_part as u64) as usize;
        &mut part.slots[index * WAYS..(index + 1) * WAYS]
    }

    /// The volume's record with this hash and length, and the part of a file that has it. `None` once too many share it.
    pub(crate) fn find(
        &self,
        volume: VolumeId,
        hash: &Hash,
        len_bytes: u64,
    ) -> Option<KnownRecord> {
        let mut part = self.part(hash).lock();
        part.clock = part.clock.wrapping_add(1);
        let clock = part.clock;
        let is_it = |slot: &Slot| {
            slot.volume == volume
                && slot.hash == *hash
                && u64::from(slot.known.len_bytes) == len_bytes
        };
        for place in self.bucket(&mut part, hash) {
            if let Some(slot) = place.as_mut().filter(|slot| is_it(slot)) {
                if slot.shares >= SHARES_MAX {
                    *place = None;
                    return None;
                }
                slot.used = clock;
                slot.shares += 1;
                return Some(slot.known);
            }
        }
        None
    }

    /// Remembers the place of a record. If that place was known, another part of a file now refers to it, too.
    pub(crate) fn put(&self, volume: VolumeId, hash: &Hash, known: KnownRecord) {
        let mut part = self.part(hash).lock();
        if part.slots.is_empty() {
            part.slots = vec![None; self.buckets_per_part * WAYS];
        }
        part.clock = part.clock.wrapping_add(1);
        let clock = part.clock;
        let bucket = self.bucket(&mut part, hash);
        let is_same = |slot: &Slot| slot.volume == volume && slot.hash == *hash;
        let age = |slot: &Option<Slot>| match slot {
            None => (2, 0),
            Some(slot) if is_same(slot) => (3, 0),
            Some(slot) => (1, clock.wrapping_sub(slot.used)),
        };
        let Some(place) = bucket.iter_mut().max_by_key(|slot| age(slot)) else {
            return;
        };
        let before = place.as_ref().filter(|slot| is_same(slot));
        let shares = before
            .filter(|slot| slot.known.location == known.location)
            .map_or(0, |slot| slot.shares);
        *place = Some(Slot {
            volume,
            hash: *hash,
            known,
            used: clock,
            shares,
        });
    }

    /// Forgets a found record, unless its slot holds another one by now.
    pub(crate) fn forget(&self, volume: VolumeId, hash: &Hash, known: &KnownRecord) {
        let mut part = self.part(hash).lock();
        for place in self.bucket(&mut part, hash) {
            let is_it =
                |slot: &Slot| slot.volume == volume && slot.hash == *hash && slot.known == *known;
            if place.as_ref().is_some_and(is_it) {
                *place = None;
            }
        }
    }
}

/// Deduplication of one volume that is open.
pub(crate) struct Deduping {
    index: Arc<DedupeIndex>,
    volume: VolumeId,
    /// Made at the first use.
    key: OnceLock<[u8; 32]>,
    entropy: Arc<dyn Entropy>,
    /// Segments that are being emptied, with the number of tasks that empty each: a new sharer of a record in them
    /// might come too late to be found.
    emptied: Mutex<FxHashMap<SegmentId, u32>>,
    /// Filled by a planted bug only.
    seen: Mutex<FxHashMap<Location, Arc<RecordPointer>>>,
}

/// While this exists, no new sharer gets records of some segments.
pub(crate) struct Emptying<'a> {
    of: &'a Deduping,
    segments: Vec<SegmentId>,
}

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        let mut emptied = self.of.emptied.lock();
        for id in &self.segments {
            if let Some(count) = emptied.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    emptied.remove(id);
                }
            }
        }
    }
}

impl Deduping {
    pub fn new(index: Arc<DedupeIndex>, env: &Env, volume: VolumeId) -> Self {
        Self {
            index,
            volume,
            key: OnceLock::new(),
            entropy: Arc::clone(&env.entropy),
            emptied: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// The hash of bytes given in parts.
    pub fn hash(&self, parts: &[Bytes]) -> Hash {
        // Without a key, a hash would tell the contents of a file to a client that can guess them. The key also keeps
        // entries from an earlier time that the volume was open from being found.
        let key = self.key.get_or_init(|| {
            let mut key = [0; 32];
            self.entropy.fill(&mut key);
            key
        });
        let mut hasher = blake3::Hasher::new_keyed(key);
        for part in parts {
            hasher.update(part);
        }
        let mut hash = *hasher.finalize().as_bytes();
        if planted::is(Bug::DedupeHashPrefix) {
            hash[1..].fill(0);
        }
        hash
    }

    pub fn find(&self, hash: &Hash, len_bytes: u64) -> Option<KnownRecord> {
        self.index.find(self.volume, hash, len_bytes)
    }

    pub fn put(&self, hash: &Hash, known: KnownRecord, record: &Arc<RecordPointer>) {
        if planted::is(Bug::DedupeTakesDead) {
            self.seen.lock().insert(known.location, record.clone());
        }
        self.index.put(self.volume, hash, known);
    }

    pub fn forget(&self, hash: &Hash, known: &KnownRecord) {
        self.index.forget(self.volume, hash, known);
    }

    /// Called before the search for the sharers of records in these segments; the result is held until they are empty
    /// or given up.
    pub fn emptying(&self, segments: &FxHashSet<SegmentId>) -> Emptying<'_> {
        let mut emptied = self.emptied.lock();
        for id in segments {
            *emptied.entry(*id).or_default() += 1;
        }
        Emptying {
            of: self,
            segments: segments.iter().copied().collect(),
        }
    }

    fn is_emptied(&self, segment: SegmentId) -> bool {
        self.emptied.lock().contains_key(&segment)
    }
}

impl VolumeCore {
    /// The hash of bytes that are a record which may be shared: one that begins at a record boundary of the file.
    pub(crate) fn hash_of(&self, start: u64, parts: &[Bytes], policy: &Policy) -> Option<Hash> {
        let len_bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let may_be = policy.dedupe != Dedupe::Off
            && len_bytes >= DEDUPE_LEN_BYTES_MIN
            && start.is_multiple_of(policy.record_bytes(len_bytes));
        may_be.then(|| self.dedupe.hash(parts))
    }

    /// The record that the index named, if a live file still has all of it at that place. Its segment must be
    /// protected as a new one would be, on disks that work, so a sharer gets as much protection as a writer.
    pub(crate) fn record_there(
        &self,
        known: &KnownRecord,
    ) -> Result<Option<Arc<RecordPointer>>, FsError> {
        if planted::is(Bug::DedupeTakesDead) {
            return Ok(self.dedupe.seen.lock().get(&known.location).cloned());
        }
        let segment = known.location.segment;
        let Some(info) = self.segments.segment(self.volume, segment) else {
            return Ok(None);
        };
        let is_sound = info.remote.is_none()
            && self
                .code_of(info.protection)
                .is_ok_and(|code| info.code.parity() >= code.parity())
            && info
                .disks
                .iter()
                .all(|disk| self.segments.takes_shards(*disk));
        if !is_sound || self.dedupe.is_emptied(segment) {
            return Ok(None);
        }
        let end = known.start + u64::from(known.len_bytes);
        let stored = self
            .meta
            .live()
            .get(&Key::extent(known.ino, end))
            .map_err(meta_error)?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let Ok(extent) = ExtentRecord::decode(&stored) else {
            return Ok(None);
        };
        let ExtentPlace::Record {
            record,
            offset_in_record,
        } = extent.place
        else {
            return Ok(None);
        };
        let is_whole = extent.start == known.start
            && offset_in_record == 0
            && record.file_len_bytes == known.len_bytes;
        let is_it = record.location == known.location || planted::is(Bug::DedupeTakesOther);
        Ok((is_whole && is_it).then(|| Arc::new(record)))
    }
}

/// Whether two lists of parts hold the same bytes.
pub(crate) fn are_same_bytes(left: &[Bytes], right: &[Bytes]) -> bool {
    let mut left = left.iter().filter(|part| !part.is_empty());
    let mut right = right.iter().filter(|part| !part.is_empty());
    let (mut a, mut b): (&[u8], &[u8]) = (&[], &[]);
    loop {
        if a.is_empty() {
            a = left.next().map_or(&[], |part| part);
        }
        if b.is_empty() {
            b = right.next().map_or(&[], |part| part);
        }
        if a.is_empty() || b.is_empty() {
            return a.is_empty() && b.is_empty();
        }
        let len = a.len().min(b.len());
        let ((now_a, later_a), (now_b, later_b)) = (a.split_at(len), b.split_at(len));
        if now_a != now_b {
            return false;
        }
        (a, b) = (later_a, later_b);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    fn hash(number: u64) -> Hash {
        *blake3::hash(&number.to_le_bytes()).as_bytes()
    }

    fn known(number: u64, len_bytes: u32) -> KnownRecord {
        KnownRecord {
            location: Location {
                segment: SegmentId(number),
                stripe_block: 0,
                unit_blocks: 1,
                offset_bytes: 0,
                len_bytes,
            },
            ino: Ino(number),
            start: 0,
            len_bytes,
        }
    }

    #[test]
    fn only_the_same_hash_length_and_volume_is_found() {
        let index = DedupeIndex::new(1 << 20);
        index.put(VOLUME, &hash(1), known(1, 4096));
        let mut near = hash(1);
        near[31] ^= 1;
        let cases = [
            ("it", VOLUME, hash(1), 4096, true),
            ("another length", VOLUME, hash(1), 4097, false),
            ("another volume", VolumeId(2), hash(1), 4096, false),
            ("another last bit", VOLUME, near, 4096, false),
            ("another", VOLUME, hash(2), 4096, false),
        ];
        for (name, volume, hash, len, is_there) in cases {
            let found = index.find(volume, &hash, len);
            assert_eq!(found.is_some(), is_there, "{name}");
        }
        index.forget(VOLUME, &hash(1), &known(2, 4096));
        assert!(index.find(VOLUME, &hash(1), 4096).is_some(), "not that one");
        index.forget(VOLUME, &hash(1), &known(1, 4096));
        assert_eq!(index.find(VOLUME, &hash(1), 4096), None);
    }

    #[test]
    fn a_record_is_not_shared_without_end() {
        let index = DedupeIndex::new(1 << 20);
        index.put(VOLUME, &hash(1), known(1, 4096));
        for nth in 0..SHARES_MAX {
            assert!(index.find(VOLUME, &hash(1), 4096).is_some(), "{nth}");
            // The sharer refers to it, too; it is one record.
            index.put(VOLUME, &hash(1), known(1, 4096));
        }
        assert_eq!(index.find(VOLUME, &hash(1), 4096), None);
        index.put(VOLUME, &hash(1), known(2, 4096));
        assert_eq!(index.find(VOLUME, &hash(1), 4096), Some(known(2, 4096)));
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let bytes = 256 << 10;
        let index = DedupeIndex::new(bytes);
        for number in 0..20_000 {
            index.put(VOLUME, &hash(number), known(number, 4096));
            assert!(number % 16 != 0 || index.find(VOLUME, &hash(0), 4096).is_some());
        }
        let slots: usize = index.parts.iter().map(|part| part.lock().slots.len()).sum();
        assert!((slots * size_of::<Option<Slot>>()) as u64 <= bytes);
        let there =
            |number: &u64| index.find(VOLUME, &hash(*number), 4096) == Some(known(*number, 4096));
        assert!((19_900..20_000).filter(there).count() > 90);
        assert_eq!((1..100).filter(there).count(), 0);
    }

    proptest! {
        #[test]
        fn bytes_are_compared_however_they_are_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(1..50usize, 2),
            change in prop::option::of(any::<prop::sample::Index>()),
            more in any::<bool>(),
        ) {
            let parts = |bytes: &[u8], len: usize| -> Vec<Bytes> {
                bytes.chunks(len).map(Bytes::copy_from_slice).collect()
            };
            let mut other = bytes.clone();
            let mut is_same = true;
            if let Some(change) = change.filter(|_| !bytes.is_empty()) {
                other[change.index(bytes.len())] ^= 1;
                is_same = false;
            }
            if more {
                other.push(0);
                is_same = false;
            }
            prop_assert_eq!(are_same_bytes(&parts(&bytes, cuts[0]), &parts(&other, cuts[1])), is_same);
        }
    }
}
