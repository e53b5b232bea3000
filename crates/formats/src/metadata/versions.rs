//! The newest value of a key that snapshots see: the generation of its birth, then the value.
//!
//! Owns: these bytes. Must not know: which keys have versions, which snapshots there are.
//!
//! The generation is an unsigned LEB128, its shortest form alone.

use bytes::Bytes;
use cairn_base::Generation;

use super::records::RecordError;

/// Most bytes of a generation in front of a value.
const BIRTH_LEN_BYTES_MAX: usize = 10;

/// What the state holds for `value`, born in `birth`.
pub fn join(birth: Generation, value: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(BIRTH_LEN_BYTES_MAX + value.len());
    let mut rest = birth.0;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out.extend_from_slice(value);
    out.into()
}

/// Takes what the state holds apart: the generation of birth, and where the value begins. There is a value.
pub fn split(stored: &[u8]) -> Result<(Generation, usize), RecordError> {
    let malformed = RecordError::Malformed {
        record: "version",
        field: "birth",
    };
    let mut birth = 0u64;
    for (index, byte) in stored.iter().take(BIRTH_LEN_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * index as u32;
        if bits << shift >> shift != bits {
            return Err(malformed);
        }
        birth |= bits << shift;
        if byte & 0x80 == 0 {
            let is_shortest = index == 0 || *byte != 0;
            let has_value = stored.len() > index + 1;
            return match is_shortest && has_value {
                true => Ok((Generation(birth), index + 1)),
                false => Err(malformed),
            };
        }
    }
    Err(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn births_are_read_back_or_refused() {
        for birth in [0, 1, 127, 128, 16383, 16384, u64::MAX] {
            let stored = join(Generation(birth), b"value");
            let (read, at) = split(&stored).expect("a version");
            assert_eq!((read.0, &stored[at..]), (birth, &b"value"[..]));
            for len in 0..=at {
                assert!(split(&stored[..len]).is_err(), "{birth} cut at {len}");
            }
        }
        let cases: &[(&str, &[u8])] = &[
            ("not the shortest", &[0x81, 0x00, 1]),
            ("too long", &[0xff; 11]),
            (
                "too large",
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 1],
            ),
        ];
        for (name, bytes) in cases {
            assert!(split(bytes).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(0u8.., 0..20)) {
            if let Ok((birth, at)) = split(&bytes) {
                prop_assert_eq!(&join(birth, &bytes[at..])[..], &bytes[..]);
            }
        }
    }
}
