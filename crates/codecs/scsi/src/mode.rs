//! Mode pages: what can be set about a logical unit, and how it is set (SPC-4, section 7.5; SBC-3, 6.5).

use crate::cdb::ModeAsked;
use crate::sense::{Sense, code};

/// What the pages say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeState {
    /// Written data may be in memory alone until a SYNCHRONIZE CACHE. Set by the administrator.
    pub write_cache: bool,
    /// Writes are refused; an initiator may set it.
    pub software_protected: bool,
    /// The whole logical unit is read-only; set by the administrator.
    pub read_only: bool,
    /// Sense data has the descriptor format; an initiator may set it.
    pub descriptor_sense: bool,
    pub block_count: u64,
    pub block_len_bytes: u32,
}

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
const RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const PAGES: [u8; 4] = [RECOVERY, CACHING, CONTROL, EXCEPTIONS];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Current,
    Changeable,
    Default,
}

fn page(number: u8, kind: Kind, state: &ModeState) -> Vec<u8> {
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let is_changeable = kind == Kind::Changeable;
    let swp = match kind {
        Kind::Current => state.software_protected,
        Kind::Changeable => true,
        Kind::Default => false,
    };
    let descriptor = match kind {
        Kind::Current => state.descriptor_sense,
        Kind::Changeable => true,
        Kind::Default => false,
    };
    match number {
        RECOVERY => {
            let mut bytes = vec![0; 12];
            (bytes[0], bytes[1]) = (RECOVERY, 10);
            // Errors are repaired without being asked: AWRE, ARRE.
            bytes[2] = bit(!is_changeable, 0xc0);
            bytes
        }
        CACHING => {
            let mut bytes = vec![0; 20];
            (bytes[0], bytes[1]) = (CACHING, 18);
            bytes[2] = bit(!is_changeable && state.write_cache, 0x04);
            bytes
        }
        CONTROL => {
            let mut bytes = vec![0; 12];
            (bytes[0], bytes[1]) = (CONTROL, 10);
            bytes[2] = bit(descriptor, 0x04);
            // Commands may be reordered.
            bytes[3] = bit(!is_changeable, 0x10);
            bytes[4] = bit(swp, 0x08);
            bytes
        }
        _ => {
            let mut bytes = vec![0; 12];
            (bytes[0], bytes[1]) = (EXCEPTIONS, 10);
            bytes
        }
    }
}

/// The answer to MODE SENSE.
pub fn mode_sense(asked: &ModeAsked, state: &ModeState) -> Result<Vec<u8>, Sense> {
    let kind = match asked.control {
        0 => Kind::Current,
        1 => Kind::Changeable,
        2 => Kind::Default,
        _ => return Err(Sense::illegal(code::SAVING_NOT_SUPPORTED)),
    };
    if asked.subpage != 0 && asked.subpage != ALL_SUBPAGES {
        return Err(Sense::cdb_field(3, None));
    }
    let mut pages = Vec::new();
    for number in PAGES {
        if asked.page == number || asked.page == ALL_PAGES {
            pages.extend(page(number, kind, state));
        }
    }
    if pages.is_empty() {
        return Err(Sense::cdb_field(2, Some(5)));
    }
    let mut descriptor = Vec::new();
    if !asked.no_block_descriptor {
        if asked.long_lba {
            descriptor.extend(state.block_count.to_be_bytes());
            descriptor.extend([0; 4]);
            descriptor.extend(state.block_len_bytes.to_be_bytes());
        } else {
            let count = u32::try_from(state.block_count).unwrap_or(u32::MAX);
            descriptor.extend(count.to_be_bytes());
            descriptor.extend(state.block_len_bytes.to_be_bytes());
        }
    }
    // Write-protected; DPO and FUA are understood.
    let protected = state.read_only || state.software_protected;
    let specific = if protected { 0x90 } else { 0x10 };
    let len_bytes = descriptor.len() + pages.len();
    let mut bytes = Vec::new();
    if asked.is_long {
        bytes.extend(((len_bytes + 6) as u16).to_be_bytes());
        bytes.extend([0, specific, u8::from(asked.long_lba), 0]);
        bytes.extend((descriptor.len() as u16).to_be_bytes());
    } else {
        bytes.extend([(len_bytes + 3) as u8, 0, specific, descriptor.len() as u8]);
    }
    bytes.extend(descriptor);
    bytes.extend(pages);
    Ok(bytes)
}

/// What MODE SELECT's `list` makes of `state`. All or nothing: a bit that cannot be changed must be as it is.
pub fn mode_select(list: &[u8], is_long: bool, state: &ModeState) -> Result<ModeState, Sense> {
    if list.is_empty() {
        return Ok(*state);
    }
    let too_short = || Sense::illegal(code::PARAMETER_LIST_LENGTH);
    let header_len = if is_long { 8 } else { 4 };
    let header = list.get(..header_len).ok_or_else(too_short)?;
    let descriptor_len = match header {
        [.., high, low] if is_long => usize::from(u16::from_be_bytes([*high, *low])),
        [.., len] => usize::from(*len),
        [] => 0,
    };
    let mut rest = list.get(header_len..).unwrap_or_default();
    if descriptor_len > 0 {
        let descriptor = rest.get(..descriptor_len).ok_or_else(too_short)?;
        let len_bytes = match descriptor_len {
            8 => crate::u32_at(descriptor, 4).map(|word| word & 0xff_ffff),
            16 => crate::u32_at(descriptor, 12),
            _ => None,
        };
        if len_bytes != Some(state.block_len_bytes) {
            return Err(Sense::list_field(header_len as u16));
        }
        rest = rest.get(descriptor_len..).unwrap_or_default();
    }
    let mut changed = *state;
    while !rest.is_empty() {
        let at = (list.len() - rest.len()) as u16;
        let [first, len, ..] = rest else {
            return Err(too_short());
        };
        let number = first & 0x3f;
        if first & 0x40 != 0 || !PAGES.contains(&number) {
            return Err(Sense::list_field(at));
        }
        let current = page(number, Kind::Current, state);
        let changeable = page(number, Kind::Changeable, state);
        if usize::from(*len) + 2 != current.len() {
            return Err(Sense::list_field(at + 1));
        }
        let given = rest.get(..current.len()).ok_or_else(too_short)?;
        for (index, byte) in given.iter().enumerate().skip(2) {
            let (now, mask) = (current[index], changeable[index]);
            if (byte ^ now) & !mask != 0 {
                return Err(Sense::list_field(at + index as u16));
            }
        }
        if number == CONTROL {
            changed.descriptor_sense = given.get(2).is_some_and(|byte| byte & 0x04 != 0);
            changed.software_protected = given.get(4).is_some_and(|byte| byte & 0x08 != 0);
        }
        rest = rest.get(current.len()..).unwrap_or_default();
    }
    Ok(changed)
}
