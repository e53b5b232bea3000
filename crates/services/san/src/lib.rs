//! LUNs of a volume: which there are, for whom, and where all of that is kept.
//!
//! Owns: names, sizes, identities, initiator groups, maps and CHAP secrets, and that they lie in the volume itself: a folder
//! that no name leads to has a file for each LUN, and extended attributes for the rest. The next owner of the volume, this
//! node or another, finds all of it, and so does a copy of the volume.
//! Must not know: any protocol, who is connected, what is in a LUN.

#![forbid(unsafe_code)]

mod records;
mod volume;

pub use cairn_formats::settings::OsType;
pub use records::{Chap, Igroup, Initiator, KeptChap, KeptInitiator, Lun, SanError, Seen};
pub use volume::{LunChange, LunSpec, San};

/// LUNs of one volume.
pub const LUN_COUNT_MAX: usize = 1024;
/// Numbers that a LUN can have for an initiator: 0 to 1023, which every host finds.
pub const LUN_NUMBER_MAX: u16 = 1023;
/// With more of a volume's space free nobody wants to be told of it.
pub const SOFT_THRESHOLD_PERCENT_MAX: u8 = 99;
pub const IGROUP_COUNT_MAX: usize = 256;
pub const INITIATORS_PER_IGROUP_MAX: usize = 64;
/// Initiators with secrets.
pub const INITIATOR_COUNT_MAX: usize = 128;
/// Longest name of a LUN or a group, in bytes.
pub const NAME_LEN_BYTES_MAX: usize = 63;
/// Largest LUN: 1 PiB.
pub const LUN_LEN_BYTES_MAX: u64 = 1 << 50;
/// Shortest CHAP secret, in bytes: RFC 7143, section 9.2.1 wants 96 bits.
pub const CHAP_SECRET_LEN_BYTES_MIN: usize = 12;
pub const CHAP_SECRET_LEN_BYTES_MAX: usize = 255;
