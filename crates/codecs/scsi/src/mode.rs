//! Mode pages: what can be set about a logical unit, and how it is set (SPC-4, section 7.5; SBC-3, 6.5).

use crate::cdb::ModeAsked;
use crate::sense::{Sense, code};

/// A soft threshold on what a thin logical unit may take yet (SBC-4, section 6.5.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threshold {
    pub is_enabled: bool,
    /// In threshold sets, of as many blocks as page B2 says. Initiators are told when no more than these are left.
    pub free_sets: u32,
}

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
    /// Initiators are told of thresholds at all (LBPERE); an initiator may set it.
    pub tells_thresholds: bool,
    /// An initiator may set it.
    pub threshold: Threshold,
    /// The one that the administrator set, which is the default.
    pub threshold_default: Threshold,
    pub block_count: u64,
    pub block_len_bytes: u32,
}

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
const RECOVERY: (u8, u8) = (0x01, 0);
const CACHING: (u8, u8) = (0x08, 0);
const CONTROL: (u8, u8) = (0x0a, 0);
const EXCEPTIONS: (u8, u8) = (0x1c, 0);
const PROVISIONING: (u8, u8) = (0x1c, 0x02);
/// With their subpages.
const PAGES: [(u8, u8); 5] = [RECOVERY, CACHING, CONTROL, EXCEPTIONS, PROVISIONING];
/// Says of a page that it has a subpage, and a longer header.
const SUBPAGE_FORMAT: u8 = 0x40;
/// Where the only descriptor of the page of logical block provisioning begins.
const THRESHOLD_AT: usize = 16;
/// Of a threshold: it is one of available space (as in page 0C of LOG SENSE), reported as that space shrinks.
const AVAILABLE: u8 = 0x01;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Current,
    Changeable,
    Default,
}

fn page(number: (u8, u8), kind: Kind, state: &ModeState) -> Vec<u8> {
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let is_changeable = kind == Kind::Changeable;
    // What an initiator may set.
    let set = |current: bool, default: bool| match kind {
        Kind::Current => current,
        Kind::Changeable => true,
        Kind::Default => default,
    };
    match number {
        RECOVERY => {
            let mut bytes = vec![0; 12];
            (bytes[0], bytes[1]) = (RECOVERY.0, 10);
            // Errors are repaired without being asked: AWRE, ARRE.
            bytes[2] = bit(!is_changeable, 0xc0);
            let tells = set(state.tells_thresholds, state.threshold_default.is_enabled);
            bytes[7] = bit(tells, 0x80);
            bytes
        }
        CACHING => {
            let mut bytes = vec![0; 20];
            (bytes[0], bytes[1]) = (CACHING.0, 18);
            bytes[2] = bit(!is_changeable && state.write_cache, 0x04);
            bytes
        }
        CONTROL => {
            let mut bytes = vec![0; 12];
            (bytes[0], bytes[1]) = (CONTROL.0, 10);
            bytes[2] = bit(set(state.descriptor_sense, false), 0x04);
            // Commands may be reordered.
            bytes[3] = bit(!is_changeable, 0x10);
            bytes[4] = bit(set(state.software_protected, false), 0x08);
            bytes
        }
        PROVISIONING => {
            let mut bytes = vec![0; THRESHOLD_AT + 8];
            let len_bytes = bytes.len() as u8 - 4;
            (bytes[0], bytes[1]) = (SUBPAGE_FORMAT | PROVISIONING.0, PROVISIONING.1);
            bytes[3] = len_bytes;
            let (current, default) = (state.threshold, state.threshold_default);
            // Of type "soft" and armed for decreases, which both are 0. All initiators are told.
            bytes[THRESHOLD_AT] = bit(set(current.is_enabled, default.is_enabled), 0x80);
            bytes[THRESHOLD_AT + 1] = bit(!is_changeable, AVAILABLE);
            let sets = match kind {
                Kind::Current => current.free_sets,
                Kind::Changeable => u32::MAX,
                Kind::Default => default.free_sets,
            };
            bytes[THRESHOLD_AT + 4..].copy_from_slice(&sets.to_be_bytes());
            bytes
        }
        _ => {
            let mut bytes = vec![0; 12];
            (bytes[0], bytes[1]) = (EXCEPTIONS.0, 10);
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
    let mut is_known = false;
    let mut pages = Vec::new();
    for number in PAGES {
        if asked.page != number.0 && asked.page != ALL_PAGES {
            continue;
        }
        is_known = true;
        if asked.subpage == number.1 || asked.subpage == ALL_SUBPAGES {
            pages.extend(page(number, kind, state));
        }
    }
    if pages.is_empty() {
        return Err(match is_known {
            true => Sense::cdb_field(3, None),
            false => Sense::cdb_field(2, Some(5)),
        });
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
        let [first, second, ..] = rest else {
            return Err(too_short());
        };
        let has_subpage = first & SUBPAGE_FORMAT != 0;
        let number = (first & 0x3f, if has_subpage { *second } else { 0 });
        if !PAGES.contains(&number) || has_subpage != (number.1 != 0) {
            return Err(Sense::list_field(at));
        }
        let current = page(number, Kind::Current, state);
        let changeable = page(number, Kind::Changeable, state);
        // All that says which page it is, and how long: it must be as it is, but for the bit that says whether it can be saved.
        let head_len = if has_subpage { 4 } else { 2 };
        let len_at = if has_subpage { 2 } else { 1 };
        if rest.get(len_at..head_len) != current.get(len_at..head_len) {
            return Err(Sense::list_field(at + len_at as u16));
        }
        let given = rest.get(..current.len()).ok_or_else(too_short)?;
        for (index, byte) in given.iter().enumerate().skip(head_len) {
            let (now, mask) = (current[index], changeable[index]);
            if (byte ^ now) & !mask != 0 {
                return Err(Sense::list_field(at + index as u16));
            }
        }
        let has = |at: usize, bit: u8| given.get(at).is_some_and(|byte| byte & bit != 0);
        match number {
            RECOVERY => changed.tells_thresholds = has(7, 0x80),
            CONTROL => {
                changed.descriptor_sense = has(2, 0x04);
                changed.software_protected = has(4, 0x08);
            }
            PROVISIONING => {
                changed.threshold = Threshold {
                    is_enabled: has(THRESHOLD_AT, 0x80),
                    free_sets: crate::u32_at(given, THRESHOLD_AT + 4).unwrap_or(0),
                };
            }
            _ => {}
        }
        rest = rest.get(current.len()..).unwrap_or_default();
    }
    Ok(changed)
}
