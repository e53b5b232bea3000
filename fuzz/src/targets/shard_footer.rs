//! The end of a shard's file, the identity file of a disk, its promise to the owner of a volume, and the end of an object in
//! a tier.
//!
//! The input is read as it is, as trailer fields and a body, and as the fields of an identity or of a promise; in
//! all but the first its checksums are made right, or nothing would ever get past them.

use cairn_base::crc32c;
use cairn_formats::FormatError;
use cairn_formats::copies::{self, COPY_ALIGN_BYTES};
use cairn_formats::shard::footer::{
    TRAILER_LEN_BYTES, decode_footer, decode_trailer, encode_footer,
};
use cairn_formats::shard::identity::{decode_identity, encode_identity};
use cairn_formats::shard::promise::{decode_promise, encode_promise};
use cairn_formats::tier_object;

/// Blocks of a shard's file and of its footer.
const BLOCK_BYTES: usize = 4096;
/// Places of fields in a trailer (docs/reference/formats/shard.md).
const STRIPE_COUNT_OFFSET: usize = 48;
const CHECKSUM_COUNT_OFFSET: usize = 52;
const BODY_CRC_OFFSET: usize = 56;
const TRAILER_CRC_OFFSET: usize = 64;

/// Tries one input.
pub fn run(input: &[u8]) {
    footer(input);
    identity(input);
    promise(input);
    object(input);
    object(&[input, &crc32c(input).to_le_bytes()].concat());
    if let Some(file) = sealed(input) {
        footer(&file);
    }
    identity(&signed(input));
    promise(&signed(input));
}

fn footer(file: &[u8]) {
    let footer = decode_footer(file);
    let block = &file[file.len().saturating_sub(TRAILER_LEN_BYTES)..];
    let trailer = decode_trailer(block);
    if block.len() == TRAILER_LEN_BYTES {
        match &trailer {
            Ok(Some(_)) => {}
            Ok(None) => assert_eq!(footer, Err(FormatError::Magic)),
            Err(error) => assert_eq!(footer.as_ref(), Err(error)),
        }
    }
    let Ok(footer) = footer else {
        return;
    };
    let trailer = trailer.ok().flatten().expect("a footer has a trailer");
    assert_eq!(trailer.name, footer.name);
    assert!(trailer.footer_len_bytes as usize <= file.len());
    let body_len = footer.stripes.len() * 8 + footer.checksums.len() * 4 + footer.summary.len();
    assert!(body_len <= file.len());
    let again = encode_footer(&footer).expect("what was decoded makes sense");
    assert_eq!(again.len() % BLOCK_BYTES, 0);
    assert_eq!(decode_footer(&again), Ok(footer));
}

fn identity(file: &[u8]) {
    if let Ok(picked) = decode_identity(file) {
        let again = decode_identity(&encode_identity(&picked.value)).expect("an identity");
        assert_eq!((again.value, again.bad), (picked.value, None));
    }
}

fn promise(file: &[u8]) {
    if let Ok(picked) = decode_promise(file) {
        let again = decode_promise(&encode_promise(&picked.value)).expect("a promise");
        assert_eq!((again.value, again.bad), (picked.value, None));
    }
}

fn object(bytes: &[u8]) {
    if let Ok(trailer) = tier_object::decode_trailer(bytes) {
        let again = tier_object::encode_trailer(&trailer).expect("what was decoded makes sense");
        assert_eq!(again, bytes);
    }
}

/// A file that ends with the trailer at the front of `input`, which leaves the checksums out, after the body that
/// follows there.
fn sealed(input: &[u8]) -> Option<Vec<u8>> {
    let (fields, rest) = input.split_at_checked(BODY_CRC_OFFSET)?;
    let (summary_len, body) = rest.split_first_chunk::<4>()?;
    let count = |offset: usize| {
        let bytes = fields.get(offset..)?.first_chunk::<4>()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    let mut file = body.to_vec();
    file.resize(body.len().next_multiple_of(BLOCK_BYTES), 0);
    let body_len = count(STRIPE_COUNT_OFFSET)? * 8
        + count(CHECKSUM_COUNT_OFFSET)? * 4
        + u32::from_le_bytes(*summary_len) as usize;
    let body_crc = crc32c(file.get(..body_len).unwrap_or_default());
    let start = file.len();
    file.extend_from_slice(fields);
    file.extend_from_slice(&body_crc.to_le_bytes());
    file.extend_from_slice(summary_len);
    let trailer_crc = crc32c(&file[start..]);
    assert_eq!(file.len() - start, TRAILER_CRC_OFFSET);
    file.extend_from_slice(&trailer_crc.to_le_bytes());
    file.resize(start + TRAILER_LEN_BYTES, 0);
    Some(file)
}

/// A file of two copies, each of which begins with `input`.
fn signed(input: &[u8]) -> Vec<u8> {
    let mut copy = input.to_vec();
    copy.resize(COPY_ALIGN_BYTES - 4, 0);
    let crc = crc32c(&copy);
    copy.extend_from_slice(&crc.to_le_bytes());
    copies::twice(copy)
}
