//! What every record is tested for.

use std::fmt::Debug;

use super::records::{RecordError, VERSION};

/// Round trip; and every cut, every added byte and every newer version is refused.
#[track_caller]
pub fn check<T: PartialEq + Debug>(
    record: &T,
    bytes: Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, RecordError>,
) {
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(decode(&longer).is_err());
    check_open(record, bytes, decode);
}

/// Checks a record whose last field takes the rest, so that a cut or longer record is another record.
#[track_caller]
pub fn check_open<T: PartialEq + Debug>(
    record: &T,
    mut bytes: Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, RecordError>,
) {
    assert_eq!(decode(&bytes).as_ref(), Ok(record));
    bytes[0] = VERSION + 1;
    assert!(matches!(decode(&bytes), Err(RecordError::Version { .. })));
}
