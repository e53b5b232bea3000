//! Parameter lists that come with commands.

use crate::sense::{Sense, code};
use crate::{u16_at, u32_at, u64_at};

/// Ranges that one UNMAP has at most.
pub const UNMAP_DESCRIPTOR_COUNT_MAX: usize = 256;
const UNMAP_DESCRIPTOR_LEN_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapRange {
    pub lba: u64,
    pub count: u32,
}

/// Takes UNMAP's list (SBC-3, section 5.28.2). A list that ends within a descriptor loses that one, as it says.
pub fn parse_unmap(list: &[u8]) -> Result<Vec<UnmapRange>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    if list.len() < 8 {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH));
    }
    let len_bytes = usize::from(u16_at(list, 2).unwrap_or(0));
    let rest = list.get(8..).unwrap_or_default();
    let rest = rest.get(..len_bytes.min(rest.len())).unwrap_or_default();
    if rest.len() / UNMAP_DESCRIPTOR_LEN_BYTES > UNMAP_DESCRIPTOR_COUNT_MAX {
        return Err(Sense::list_field(2));
    }
    let descriptors = rest.chunks_exact(UNMAP_DESCRIPTOR_LEN_BYTES);
    let range = |bytes: &[u8]| {
        Some(UnmapRange {
            lba: u64_at(bytes, 0)?,
            count: u32_at(bytes, 8)?,
        })
    };
    Ok(descriptors.filter_map(range).collect())
}

/// The list of PERSISTENT RESERVE OUT (SPC-4, section 6.16.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistentParameters {
    pub key: u64,
    pub action_key: u64,
    /// Names of other initiators follow.
    pub specifies_initiators: bool,
    pub all_ports: bool,
    /// Registrations are to survive a loss of power.
    pub persists: bool,
}

pub fn parse_persistent_out(list: &[u8]) -> Result<PersistentParameters, Sense> {
    let wrong = || Sense::illegal(code::PARAMETER_LIST_LENGTH);
    let flags = *list.get(20).ok_or_else(wrong)?;
    let parameters = PersistentParameters {
        key: u64_at(list, 0).ok_or_else(wrong)?,
        action_key: u64_at(list, 8).ok_or_else(wrong)?,
        specifies_initiators: flags & 0x08 != 0,
        all_ports: flags & 0x04 != 0,
        persists: flags & 0x01 != 0,
    };
    // Without names of initiators the list has exactly this length.
    match list.len() {
        24 => Ok(parameters),
        _ if parameters.specifies_initiators => Ok(parameters),
        _ => Err(wrong()),
    }
}

/// Asymmetric access states that are asked for, with the groups that are to have them (SPC-4, section 6.45).
pub fn parse_set_target_port_groups(list: &[u8]) -> Result<Vec<(u8, u16)>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let rest = list.get(4..);
    let rest = rest.ok_or(Sense::illegal(code::PARAMETER_LIST_LENGTH))?;
    let descriptors = rest.chunks_exact(4);
    if !descriptors.remainder().is_empty() {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH));
    }
    let parsed = descriptors.filter_map(|bytes| Some((bytes.first()? & 0x0f, u16_at(bytes, 2)?)));
    Ok(parsed.collect())
}
