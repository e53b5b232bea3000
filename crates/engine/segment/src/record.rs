//! Records: compression, encryption and checksums. Pure.
//!
//! Owns: the conversion between file bytes and stored bytes. Must not know: where they are stored.

use std::cell::RefCell;

use bytes::Bytes;
use cairn_base::buf::AlignedFill;
use cairn_base::{AlignedBuf, crc32c, crc32c_append};
use cairn_formats::encryption::{Encryption, Salt};
use cairn_formats::pointer::{
    CHECKSUM_GRANULE_BYTES, Codec, Location, RECORD_LEN_BYTES_MAX, RecordPointer,
};
use cairn_formats::summary::RecordOwner;
use cairn_keys::{NotAuthentic, RecordForm, VolumeKey};

/// Shorter records are not compressed: they would save less than their checksum costs.
const COMPRESS_LEN_BYTES_MIN: usize = 256;
/// The compressed form is kept only if it saves at least 1/this, so that decoding pays.
const SAVING_DIVISOR: usize = 8;
/// Size of one sample of the probe.
const SAMPLE_BYTES: usize = 4096;
/// Shorter records are compressed without a probe, which would cost as much.
const PROBE_LEN_BYTES_MIN: usize = 8 * SAMPLE_BYTES;

/// Size of the sample of a record for `Auto`.
const AUTO_SAMPLE_BYTES: usize = 16 << 10;
/// `Auto` uses zstd if that saves 1/this of the result of lz4.
const AUTO_SAVING_DIVISOR: usize = 8;
const AUTO_ZSTD_LEVEL: i32 = 3;

/// The compression of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    #[default]
    None,
    Lz4,
    /// The level of zstd: 1 is fast, 3 its default.
    Zstd(i32),
    /// lz4, or zstd if a sample of the record shows a clear advantage.
    Auto,
}

/// A record in its stored form, with its checksums.
#[derive(Clone, Debug)]
pub struct EncodedRecord {
    parts: Vec<Bytes>,
    stored_len_bytes: u32,
    file_len_bytes: u32,
    codec: Codec,
    checksums: Vec<u32>,
    encryption: Option<Box<Encryption>>,
    owner: Option<RecordOwner>,
}

impl EncodedRecord {
    /// Sets the owner of the record, for the summary of its segment. A segment with a record without an owner has no
    /// summary.
    pub fn owned_by(self, owner: RecordOwner) -> Self {
        Self {
            owner: Some(owner),
            ..self
        }
    }

    pub fn owner(&self) -> Option<RecordOwner> {
        self.owner
    }

    /// The stored bytes, in order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    pub fn stored_len_bytes(&self) -> u32 {
        self.stored_len_bytes
    }

    pub fn file_len_bytes(&self) -> u32 {
        self.file_len_bytes
    }

    pub fn codec(&self) -> Codec {
        self.codec
    }

    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    pub fn is_encrypted(&self) -> bool {
        self.encryption.is_some()
    }

    /// The pointer to this record, after an append has given it a place.
    pub fn pointer(&self, location: Location) -> RecordPointer {
        assert_eq!(location.len_bytes, self.stored_len_bytes);
        RecordPointer {
            location,
            codec: self.codec,
            file_len_bytes: self.file_len_bytes,
            checksums: self.checksums.clone(),
            encryption: self.encryption.clone(),
        }
    }
}

/// Reasons why stored bytes with right checksums are no valid record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the compressed bytes do not decode: {detail}")]
    Compressed { detail: String },
    #[error("the record decodes to {len_bytes} bytes instead of {wanted_bytes}")]
    Length { len_bytes: usize, wanted_bytes: u32 },
    #[error(transparent)]
    NotAuthentic(#[from] NotAuthentic),
}

/// Makes a record of file bytes given in parts; compresses them if that saves at least an eighth.
///
/// Panics above [`RECORD_LEN_BYTES_MAX`]: the caller cuts records.
pub fn encode_record(data: Vec<Bytes>, compression: Compression) -> EncodedRecord {
    let len: usize = data.iter().map(Bytes::len).sum();
    assert!(len <= RECORD_LEN_BYTES_MAX as usize);
    let file_len_bytes = len as u32;
    if let Some((codec, stored)) = compress(&data, len, compression) {
        return EncodedRecord {
            stored_len_bytes: stored.len() as u32,
            file_len_bytes,
            codec,
            checksums: vec![crc32c(&stored)],
            parts: vec![stored],
            encryption: None,
            owner: None,
        };
    }
    EncodedRecord {
        stored_len_bytes: file_len_bytes,
        file_len_bytes,
        codec: Codec::Raw,
        checksums: granule_checksums(&data),
        parts: data,
        encryption: None,
        owner: None,
    }
}

/// As [`encode_record`], encrypted with the key of a volume. `salt` must be random: two records with one salt reveal
/// each other. The checksums cover the encrypted bytes, so that a check needs no key.
pub fn encode_encrypted_record(
    data: Vec<Bytes>,
    compression: Compression,
    key: &VolumeKey,
    salt: Salt,
) -> EncodedRecord {
    let len: usize = data.iter().map(Bytes::len).sum();
    assert!(len <= RECORD_LEN_BYTES_MAX as usize);
    let (codec, mut stored) = match compress(&data, len, compression) {
        Some((codec, stored)) => (codec, copy_of(&[stored])),
        // Other tasks read the input buffers meanwhile.
        None => (Codec::Raw, copy_of(&data)),
    };
    let form = RecordForm {
        codec,
        file_len_bytes: len as u32,
        stored_len_bytes: stored.len() as u32,
    };
    let cipher = key.record_cipher(&salt, form);
    let mut checksums = Vec::new();
    let mut tags = Vec::new();
    for (granule, bytes) in (0..).zip(stored.chunks_mut(granule_len(codec))) {
        tags.push(cipher.encrypt(granule, bytes));
        checksums.push(crc32c(bytes));
    }
    EncodedRecord {
        stored_len_bytes: form.stored_len_bytes,
        file_len_bytes: form.file_len_bytes,
        codec,
        checksums,
        parts: vec![stored.freeze()],
        encryption: Some(Box::new(Encryption { salt, tags })),
        owner: None,
    }
}

/// The decrypted stored bytes of some granules of an encrypted record, from number `first` on, given as `stored`; for a
/// compressed record all of it.
pub fn decrypt_granules(
    pointer: &RecordPointer,
    encryption: &Encryption,
    key: &VolumeKey,
    first: u32,
    stored: &[Bytes],
) -> Result<Bytes, NotAuthentic> {
    let form = RecordForm {
        codec: pointer.codec,
        file_len_bytes: pointer.file_len_bytes,
        stored_len_bytes: pointer.location.len_bytes,
    };
    let cipher = key.record_cipher(&encryption.salt, form);
    let mut plain = copy_of(stored);
    let granules = plain.chunks_mut(granule_len(pointer.codec));
    for (granule, bytes) in (first..).zip(granules) {
        let tag = encryption.tags.get(granule as usize).ok_or(NotAuthentic)?;
        cipher.decrypt(granule, bytes, tag)?;
    }
    Ok(plain.freeze())
}

/// Length of the unit with its own checksum and tag: a compressed record is one unit.
fn granule_len(codec: Codec) -> usize {
    match codec {
        Codec::Raw => CHECKSUM_GRANULE_BYTES as usize,
        Codec::Lz4 | Codec::Zstd => RECORD_LEN_BYTES_MAX as usize,
    }
}

fn copy_of(parts: &[Bytes]) -> AlignedBuf {
    let mut buf = AlignedFill::new(parts.iter().map(Bytes::len).sum());
    for part in parts {
        buf.fill_from(part);
    }
    buf.finish()
}

/// Turns the stored bytes of a compressed record into file bytes. Allocates at most `file_len_bytes` (which the caller
/// has checked), for any input.
pub fn decode_record(
    codec: Codec,
    stored: &[u8],
    file_len_bytes: u32,
) -> Result<Bytes, RecordError> {
    let mut out = vec![0; file_len_bytes.min(RECORD_LEN_BYTES_MAX) as usize];
    let len_bytes = match codec {
        Codec::Raw => return Ok(Bytes::copy_from_slice(stored)),
        Codec::Lz4 => lz4_flex::block::decompress_into(stored, &mut out).map_err(refuse)?,
        Codec::Zstd => zstd_decompress(stored, &mut out).map_err(refuse)?,
    };
    if len_bytes != file_len_bytes as usize {
        return Err(RecordError::Length {
            len_bytes,
            wanted_bytes: file_len_bytes,
        });
    }
    Ok(out.into())
}

fn refuse(error: impl std::fmt::Display) -> RecordError {
    RecordError::Compressed {
        detail: error.to_string(),
    }
}

/// One CRC32C per granule over bytes given in parts.
pub(crate) fn granule_checksums(parts: &[Bytes]) -> Vec<u32> {
    let granule = CHECKSUM_GRANULE_BYTES as usize;
    let mut checksums = Vec::new();
    let (mut crc, mut filled) = (0, 0);
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(granule - filled));
            crc = crc32c_append(crc, now);
            filled += now.len();
            rest = later;
            if filled == granule {
                checksums.push(crc);
                (crc, filled) = (0, 0);
            }
        }
    }
    if filled > 0 {
        checksums.push(crc);
    }
    checksums
}

/// The CRC32C of bytes given in parts.
pub(crate) fn checksum_of(parts: &[Bytes]) -> u32 {
    parts.iter().fold(0, |crc, part| crc32c_append(crc, part))
}

fn compress(data: &[Bytes], len: usize, compression: Compression) -> Option<(Codec, Bytes)> {
    if compression == Compression::None || len < COMPRESS_LEN_BYTES_MIN {
        return None;
    }
    let joined;
    let input: &[u8] = match data {
        [one] => one,
        parts => {
            if !probe_parts(parts, len) {
                return None;
            }
            joined = parts.concat();
            &joined
        }
    };
    if data.len() == 1 && !probe(input) {
        return None;
    }
    let room = len - len.div_ceil(SAVING_DIVISOR);
    let (codec, stored) = match compression {
        Compression::None => return None,
        Compression::Lz4 => (Codec::Lz4, lz4_compress(input)?),
        Compression::Zstd(level) => (Codec::Zstd, zstd_compress(input, room, level)?),
        Compression::Auto if zstd_pays(input) => {
            (Codec::Zstd, zstd_compress(input, room, AUTO_ZSTD_LEVEL)?)
        }
        Compression::Auto => (Codec::Lz4, lz4_compress(input)?),
    };
    // `shrink_to_fit` so that the record does not hold the worst case's memory until it is written.
    let mut stored = stored;
    stored.shrink_to_fit();
    (stored.len() <= room).then(|| (codec, stored.into()))
}

/// Whether either of two samples saves enough; data that fails both is not compressed.
fn probe(input: &[u8]) -> bool {
    if input.len() < PROBE_LEN_BYTES_MIN {
        return true;
    }
    [input.len() / 3, input.len() / 3 * 2]
        .into_iter()
        .filter_map(|start| input.get(start..start + SAMPLE_BYTES))
        .any(sample_saves)
}

/// As [`probe`], before parts are joined: the probe may save the join.
fn probe_parts(parts: &[Bytes], len: usize) -> bool {
    if len < PROBE_LEN_BYTES_MIN {
        return true;
    }
    let pick = |share: usize| parts.get(parts.len() * share / 3);
    [pick(1), pick(2)].into_iter().flatten().any(|part| {
        let start = (part.len() / 2).saturating_sub(SAMPLE_BYTES / 2);
        let end = part.len().min(start + SAMPLE_BYTES);
        part.get(start..end).is_none_or(sample_saves)
    })
}

fn sample_saves(sample: &[u8]) -> bool {
    let room = sample.len() - sample.len().div_ceil(SAVING_DIVISOR);
    lz4_compress(sample).is_some_and(|packed| packed.len() <= room)
}

/// Whether zstd makes a sample from the middle so much smaller than lz4 does that its time is worth it.
fn zstd_pays(input: &[u8]) -> bool {
    let start = (input.len() / 2).saturating_sub(AUTO_SAMPLE_BYTES / 2);
    let end = input.len().min(start + AUTO_SAMPLE_BYTES);
    let Some(sample) = input.get(start..end) else {
        return false;
    };
    let Some(packed) = lz4_compress(sample) else {
        return false;
    };
    let packed_len = packed.len().min(sample.len());
    let room = packed_len - packed_len.div_ceil(AUTO_SAVING_DIVISOR);
    zstd_compress(sample, room, AUTO_ZSTD_LEVEL).is_some()
}

fn lz4_compress(input: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; lz4_flex::block::get_maximum_output_size(input.len())];
    let len = lz4_flex::block::compress_into(input, &mut out).ok()?;
    out.truncate(len);
    Some(out)
}

// Setting up a zstd context of some hundred KiB is expensive, so each thread keeps one of each kind.
thread_local! {
    static ZSTD_COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static ZSTD_DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// None if the result does not fit into `room` bytes, or if zstd fails: the record then stays raw.
fn zstd_compress(input: &[u8], room: usize, level: i32) -> Option<Vec<u8>> {
    ZSTD_COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(compressor) => compressor,
            None => slot.insert(zstd::bulk::Compressor::new(level).ok()?),
        };
        // A record that did not fit left its frame unfinished, and zstd would refuse the next one.
        let reset = compressor
            .context_mut()
            .reset(zstd::zstd_safe::ResetDirective::SessionOnly);
        reset.ok()?;
        compressor.set_compression_level(level).ok()?;
        let mut out = vec![0; room];
        let len = compressor
            .compress_to_buffer(input, out.as_mut_slice())
            .ok()?;
        out.truncate(len);
        Some(out)
    })
}

fn zstd_decompress(stored: &[u8], out: &mut [u8]) -> std::io::Result<usize> {
    ZSTD_DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        decompressor.decompress_to_buffer(stored, out)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect()
    }

    #[test]
    fn only_what_saves_an_eighth_is_compressed() {
        let text = b"all work and no play ".repeat(6000);
        let mut half = noise(60_000);
        half.extend(vec![0; 60_000]);
        let cases: &[(&str, &[u8], Compression, Codec)] = &[
            ("text, off", &text, Compression::None, Codec::Raw),
            ("text", &text, Compression::Lz4, Codec::Lz4),
            ("text", &text, Compression::Zstd(1), Codec::Zstd),
            ("short text", &text[..300], Compression::Lz4, Codec::Lz4),
            ("too short", &text[..100], Compression::Lz4, Codec::Raw),
            ("empty", b"", Compression::Zstd(3), Codec::Raw),
            ("noise", &noise(100_000), Compression::Lz4, Codec::Raw),
            ("noise", &noise(5_000), Compression::Zstd(1), Codec::Raw),
            ("half noise", &half, Compression::Lz4, Codec::Lz4),
            ("text", &text, Compression::Auto, Codec::Zstd),
            ("noise", &noise(100_000), Compression::Auto, Codec::Raw),
            ("empty", b"", Compression::Auto, Codec::Raw),
            ("zeros", &[0; 1 << 20], Compression::Zstd(1), Codec::Zstd),
        ];
        for (name, data, compression, want) in cases {
            for part_len in [data.len().max(1), 4096] {
                let parts = data.chunks(part_len).map(Bytes::copy_from_slice).collect();
                let record = encode_record(parts, *compression);
                assert_eq!(record.codec(), *want, "{name} {compression:?} {part_len}");
                assert_eq!(record.file_len_bytes() as usize, data.len());
                let stored = record.parts().concat();
                assert_eq!(stored.len(), record.stored_len_bytes() as usize);
                let back = decode_record(*want, &stored, data.len() as u32).expect(name);
                assert!(back[..] == data[..], "{name}");
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for compression in [Compression::Lz4, Compression::Zstd(1)] {
            let record = encode_record(vec![vec![7; 10_000].into()], compression);
            let stored = record.parts().concat();
            for (file_len_bytes, fits) in [
                (9_999, false),
                (10_000, true),
                (10_001, false),
                (0, false),
                (10_000, true),
            ] {
                let got = decode_record(record.codec(), &stored, file_len_bytes);
                assert_eq!(got.is_ok(), fits, "{compression:?} {file_len_bytes}");
            }
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic_nor_grow(stored in proptest::collection::vec(any::<u8>(), 0..400), file_len_bytes in 0_u32..5000, zstd in any::<bool>(), frame in any::<bool>()) {
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            let mut bytes = if frame && zstd { vec![0x28, 0xb5, 0x2f, 0xfd] } else { Vec::new() };
            bytes.extend(stored);
            if let Ok(out) = decode_record(codec, &bytes, file_len_bytes) {
                prop_assert_eq!(out.len(), file_len_bytes as usize);
            }
        }

        #[test]
        fn flipped_bytes_never_panic(at in any::<prop::sample::Index>(), bit in 0..8, zstd in any::<bool>()) {
            let compression = if zstd { Compression::Zstd(3) } else { Compression::Lz4 };
            let text = (0..3000_u32).flat_map(|i| (i / 7).to_le_bytes()).collect::<Vec<_>>();
            let record = encode_record(vec![text.into()], compression);
            let mut stored = record.parts().concat();
            let at = at.index(stored.len());
            stored[at] ^= 1_u8 << bit;
            if let Ok(out) = decode_record(record.codec(), &stored, record.file_len_bytes()) {
                prop_assert_eq!(out.len(), record.file_len_bytes() as usize);
            }
        }

        #[test]
        fn checksums_do_not_depend_on_parts(len in 0_usize..100_000, part_len in 1_usize..50_000) {
            let data = noise(len);
            let parts: Vec<Bytes> = data.chunks(part_len).map(Bytes::copy_from_slice).collect();
            let want: Vec<u32> = data.chunks(CHECKSUM_GRANULE_BYTES as usize).map(crc32c).collect();
            prop_assert_eq!(granule_checksums(&parts), want);
        }
    }
}
