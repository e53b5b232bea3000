//! Encrypted volumes: only the written bytes, and only with the key. Every second seed of the other tests uses one,
//! too.

use bytes::Bytes;
use cairn_base::crc32c;
use cairn_keys::VolumeKey;
use cairn_testkit::{Rng, TestWorld};
use proptest::prelude::*;

use super::world::*;
use crate::*;

/// Seed of an encrypted volume.
const SEED: u64 = 1;

fn location(record: &EncodedRecord) -> Location {
    Location {
        segment: cairn_base::SegmentId(1),
        stripe_block: 0,
        unit_blocks: 256,
        offset_bytes: 0,
        len_bytes: record.stored_len_bytes(),
    }
}

fn key(seed: u64) -> VolumeKey {
    VolumeKey::random(VOLUME, &*TestWorld::new(seed).env.entropy)
}

/// A record in its stored form, and its pointer.
fn stored(data: &Bytes, compression: Compression, salt: u8) -> (RecordPointer, Vec<u8>) {
    let parts = data.chunks(5000).map(Bytes::copy_from_slice).collect();
    let record = encode_encrypted_record(parts, compression, &key(1), [salt; 16]);
    (record.pointer(location(&record)), record.parts().concat())
}

/// The result of a reader if an attacker has made the checksums match.
fn opened(pointer: &RecordPointer, key: &VolumeKey, stored: &[u8]) -> Result<Bytes, RecordError> {
    let encryption = pointer.encryption.as_ref().expect("it is encrypted");
    let parts = [Bytes::copy_from_slice(stored)];
    let plain = decrypt_granules(pointer, encryption, key, 0, &parts)?;
    decode_record(pointer.codec, &plain, pointer.file_len_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_record_comes_back_and_any_flipped_bit_of_it_is_refused(
        seed: u64, len in 1_usize..140_000, is_text: bool, bit in any::<prop::sample::Index>(), granule in any::<prop::sample::Index>(),
    ) {
        let data = data(&mut Rng::new(seed), len, is_text, true);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
            let (pointer, mut stored) = stored(&data, compression, 3);
            prop_assert_eq!(pointer.check(), Ok(()));
            // Places and lengths are as without encryption, and checksums cover the stored bytes.
            let as_plain = encode_record(vec![data.clone()], compression);
            prop_assert_eq!(stored.len(), as_plain.stored_len_bytes() as usize);
            prop_assert_eq!(pointer.codec, as_plain.codec());
            let granules = match pointer.codec {
                Codec::Raw => CHECKSUM_GRANULE_BYTES as usize,
                _ => 1 << 20,
            };
            let checksums: Vec<u32> = stored.chunks(granules).map(crc32c).collect();
            prop_assert_eq!(&pointer.checksums, &checksums);
            prop_assert!(len < 16 || stored != data);
            prop_assert_eq!(opened(&pointer, &key(1), &stored), Ok(data.clone()));
            let refused = Err(RecordError::NotAuthentic(cairn_keys::NotAuthentic));
            prop_assert_eq!(opened(&pointer, &key(2), &stored), refused.clone(), "another key");

            let at = bit.index(stored.len() * 8);
            stored[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(opened(&pointer, &key(1), &stored), refused.clone(), "bytes");
            stored[at / 8] ^= 1 << (at % 8);

            let change = |change: &dyn Fn(&mut RecordPointer, usize)| {
                let mut bad = pointer.clone();
                change(&mut bad, granule.index(pointer.checksums.len()));
                opened(&bad, &key(1), &stored)
            };
            let tag = change(&|bad, granule| {
                bad.encryption.as_mut().unwrap().tags[granule][at % 16] ^= 1 << (at % 8);
            });
            prop_assert_eq!(tag, refused.clone(), "tag");
            let salt = change(&|bad, _| bad.encryption.as_mut().unwrap().salt[at % 16] ^= 1 << (at % 8));
            prop_assert_eq!(salt, refused.clone(), "salt");
            let length = change(&|bad, _| bad.file_len_bytes ^= 1);
            prop_assert_eq!(length, refused.clone(), "length");
        }
    }
}

/// Granules with their tags cannot be swapped within a record or between records.
#[test]
fn granules_have_their_places() {
    let len = 3 * CHECKSUM_GRANULE_BYTES as usize;
    let mut rng = Rng::new(3);
    let data = data(&mut rng, len, false, true);
    let (pointer, stored) = self::stored(&data, Compression::None, 3);
    let (other, other_stored) = self::stored(&data, Compression::None, 4);
    assert_ne!(stored, other_stored, "the salt makes another key");
    let granule = CHECKSUM_GRANULE_BYTES as usize;
    let refused = Err(RecordError::NotAuthentic(cairn_keys::NotAuthentic));

    let mut swapped = pointer.clone();
    swapped.encryption.as_mut().unwrap().tags.swap(0, 1);
    let mut bytes = stored.clone();
    bytes[..2 * granule].rotate_left(granule);
    assert_eq!(opened(&swapped, &key(1), &bytes), refused);

    let mut mixed = pointer.clone();
    let tags = &other.encryption.as_ref().unwrap().tags;
    mixed.encryption.as_mut().unwrap().tags[1] = tags[1];
    let mut bytes = stored.clone();
    bytes[granule..2 * granule].copy_from_slice(&other_stored[granule..2 * granule]);
    assert_eq!(opened(&mixed, &key(1), &bytes), refused);

    let mut short = pointer;
    short.location.len_bytes -= granule as u32;
    short.file_len_bytes -= granule as u32;
    short.checksums.pop();
    short.encryption.as_mut().unwrap().tags.pop();
    assert_eq!(short.check(), Ok(()));
    assert_eq!(opened(&short, &key(1), &stored[..2 * granule]), refused);
}

#[test]
fn a_volume_without_its_key_is_checked_and_not_read() {
    block_on(async {
        let world = World::new(6, SEED).await;
        let mut rng = Rng::new(5);
        let records = [(700_000, false), (40_000, false), (90_000, true)].map(|(len, is_text)| {
            let compression = [Compression::None, Compression::Lz4][usize::from(is_text)];
            (data(&mut rng, len, is_text, true), compression)
        });
        let written = world
            .append(code(4, 2), Stream::Mixed, records.to_vec())
            .await
            .expect("appended");
        let raw = encode_record(vec![records[0].0.clone()], Compression::None);
        let refused = world
            .store
            .append(VOLUME, code(4, 2), Stream::Mixed, vec![raw])
            .await;
        assert_eq!(
            refused.map(|_| ()).unwrap_err(),
            SegmentError::WrongForm { volume: VOLUME }
        );

        let world = world.cold(&[]).await;
        // Single granules, at their ends, and all of them.
        for range in [
            0..1,
            32_767..32_769,
            100_000..100_001,
            699_999..700_000,
            0..700_000,
        ] {
            let read = world.read(&written[0], range.clone()).await.expect("read");
            let (from, to) = (range.start as usize, range.end as usize);
            assert!(read == written[0].data[from..to], "{range:?}");
        }

        let world = world.cold(&[]).await;
        let known = world.store.segments(VOLUME);
        let allocate =
            std::sync::Arc::new(|| -> cairn_base::SegmentId { panic!("nothing is written") });
        world.store.close_volume(VOLUME);
        let opened = world.store.open_volume(VOLUME, EPOCH, allocate, known);
        opened.await.expect("opened");
        // A byte of each record is wrong on a disk.
        let (disk, file) = world.shard_file(written[0].pointer.location.segment, 0);
        let offset = written[0].pointer.location.stripe_offset_bytes();
        world.disks[disk].flip_bit(&file, offset + 100, 3);
        for each in &written {
            let read = world.read_all(each).await;
            assert_eq!(read.unwrap_err(), SegmentError::NoKey { volume: VOLUME });
            world
                .store
                .verify(VOLUME, &each.pointer)
                .await
                .expect("it is as it was written");
        }
        // It was found and repaired without the key.
        let stats = world.store.stats();
        assert!(stats.repairs > 0 && stats.repairs_failed == 0, "{stats:?}");
        let key = Some(std::sync::Arc::new(key(1)));
        let known = world.store.segments(VOLUME);
        let allocate =
            std::sync::Arc::new(|| -> cairn_base::SegmentId { panic!("nothing is written") });
        let opened = world
            .store
            .open_volume_with(VOLUME, EPOCH, key, allocate, known);
        opened.await.expect("opened");
        // With another key there is an error, and never other bytes.
        let read = world.read_all(&written[0]).await.unwrap_err();
        assert_eq!(read.kind(), ErrorKind::Damaged, "{read}");
    });
}
