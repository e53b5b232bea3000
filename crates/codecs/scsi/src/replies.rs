//! What commands bring back.

use crate::sense::Sense;

/// READ CAPACITY(10): the last block, or as many as the field can say.
pub fn read_capacity_10(block_count: u64, block_len_bytes: u32) -> Vec<u8> {
    let last = u32::try_from(block_count.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut bytes = last.to_be_bytes().to_vec();
    bytes.extend(block_len_bytes.to_be_bytes());
    bytes
}

/// READ CAPACITY(16). `physical_exponent`: logical blocks in a physical one, as a power of two. Blocks can be unmapped, and read
/// as zeros then.
pub fn read_capacity_16(block_count: u64, block_len_bytes: u32, physical_exponent: u8) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..8].copy_from_slice(&block_count.saturating_sub(1).to_be_bytes());
    bytes[8..12].copy_from_slice(&block_len_bytes.to_be_bytes());
    bytes[13] = physical_exponent & 0x0f;
    bytes[14] = 0xc0;
    bytes
}

/// A LUN as eight bytes, in the simplest form that holds it (SAM-5, section 4.7).
pub fn lun_bytes(lun: u16) -> [u8; 8] {
    let mut bytes = [0; 8];
    let [high, low] = lun.to_be_bytes();
    // Peripheral addressing holds 256, flat space addressing 16384.
    bytes[0] = if high == 0 { 0 } else { 0x40 | (high & 0x3f) };
    bytes[1] = low;
    bytes
}

/// The number of a LUN; `None` if it is none that there can be.
pub fn lun_of_bytes(bytes: &[u8; 8]) -> Option<u16> {
    let [first, second, rest @ ..] = *bytes;
    if rest != [0; 6] {
        return None;
    }
    match first >> 6 {
        // Of bus 0.
        0 if first == 0 => Some(second.into()),
        1 => Some(u16::from_be_bytes([first & 0x3f, second])),
        _ => None,
    }
}

/// REPORT LUNS.
pub fn report_luns(luns: impl IntoIterator<Item = u16>) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    for lun in luns {
        bytes.extend(lun_bytes(lun));
    }
    let len_bytes = (bytes.len() - 8) as u32;
    bytes[..4].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: abort task, abort task set, clear task set, LUN reset; I_T nexus reset is not
/// one of iSCSI's.
pub fn report_task_management(extended: bool) -> Vec<u8> {
    let first = 0x80 | 0x40 | 0x10 | 0x08;
    match extended {
        true => vec![first, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        false => vec![first, 0, 0, 0],
    }
}

/// REPORT TARGET PORT GROUPS of one group, in state `state`, of these ports.
pub fn report_target_port_groups(extended: bool, groups: &[(u16, u8, Vec<u16>)]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    if extended {
        // The format, and no time that a change takes.
        bytes.extend([0x10, 0, 0, 0]);
    }
    for (group, state, ports) in groups {
        let [high, low] = group.to_be_bytes();
        // Supported: active/optimised, active/non-optimised, standby, unavailable, transitioning.
        bytes.extend([*state, 0x8f, high, low, 0, 0x02, 0, ports.len() as u8]);
        for port in ports {
            bytes.extend(u32::from(*port).to_be_bytes());
        }
    }
    let len_bytes = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// A run of blocks and whether they are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatus {
    pub lba: u64,
    pub count: u32,
    pub is_mapped: bool,
}

/// GET LBA STATUS.
pub fn lba_status(runs: &[LbaStatus]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    for run in runs {
        bytes.extend(run.lba.to_be_bytes());
        bytes.extend(run.count.to_be_bytes());
        bytes.extend([if run.is_mapped { 0 } else { 1 }, 0, 0, 0]);
    }
    let len_bytes = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// PERSISTENT RESERVE IN, READ KEYS.
pub fn reservation_keys(generation: u32, keys: &[u64]) -> Vec<u8> {
    let mut bytes = generation.to_be_bytes().to_vec();
    bytes.extend(((keys.len() * 8) as u32).to_be_bytes());
    bytes.extend(keys.iter().flat_map(|key| key.to_be_bytes()));
    bytes
}

/// PERSISTENT RESERVE IN, READ RESERVATION: the holder's key and the type.
pub fn reservation_of(generation: u32, held: Option<(u64, u8)>) -> Vec<u8> {
    let mut bytes = generation.to_be_bytes().to_vec();
    match held {
        None => bytes.extend([0; 4]),
        Some((key, kind)) => {
            bytes.extend(16_u32.to_be_bytes());
            bytes.extend(key.to_be_bytes());
            bytes.extend([0, 0, 0, 0, 0, kind & 0x0f, 0, 0]);
        }
    }
    bytes
}

/// PERSISTENT RESERVE IN, REPORT CAPABILITIES: all types; registrations survive a loss of power if they are asked to. `persists`:
/// they do now.
pub fn report_capabilities(persists: bool) -> Vec<u8> {
    // ATP_C is off: a registration is one port's. PTPL_C is on.
    // Reserve and release of six and ten bytes are handled beside (CRH); the type mask is valid.
    vec![0, 8, 0x11, 0x80 | u8::from(persists), 0xea, 0x01, 0, 0]
}

/// One registration, as READ FULL STATUS tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationSeen {
    pub key: u64,
    pub holds: bool,
    pub kind: u8,
    pub port: u16,
    /// The initiator's name and session.
    pub initiator: String,
}

/// PERSISTENT RESERVE IN, READ FULL STATUS.
pub fn reservation_descriptors(generation: u32, seen: &[ReservationSeen]) -> Vec<u8> {
    let mut bytes = generation.to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    for one in seen {
        // TransportID of iSCSI, with the session (SPC-4, section 7.6.4.6).
        let mut name = one.initiator.as_bytes().to_vec();
        name.push(0);
        name.resize(name.len().next_multiple_of(4).max(20), 0);
        let mut transport = vec![0x45, 0];
        transport.extend((name.len() as u16).to_be_bytes());
        transport.extend(name);
        bytes.extend(one.key.to_be_bytes());
        bytes.extend([0, 0, 0, 0, u8::from(one.holds), one.kind & 0x0f, 0, 0, 0, 0]);
        bytes.extend(one.port.to_be_bytes());
        bytes.extend((transport.len() as u32).to_be_bytes());
        bytes.extend(transport);
    }
    let len_bytes = (bytes.len() - 8) as u32;
    bytes[4..8].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// What LOG SENSE tells of a thin logical unit, in threshold sets: of as many blocks as page B2 says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceSeen {
    /// That it, and others, may take yet.
    pub free_sets: u32,
    /// That it takes.
    pub used_sets: u32,
}

/// LOG SENSE: which pages there are, how much of the thin logical unit is used, no temperature that is known. `pointer`: the
/// parameters from this one on.
pub fn log_sense(page: u8, subpage: u8, pointer: u16, space: SpaceSeen) -> Result<Vec<u8>, Sense> {
    if subpage != 0 {
        return Err(Sense::cdb_field(3, None));
    }
    // May be shared with other logical units, or is this one's (SBC-3, section 6.4.4.2).
    const SHARED: u8 = 0x02;
    const DEDICATED: u8 = 0x01;
    let resource = |sets: u32, scope: u8| {
        let mut value = sets.to_be_bytes().to_vec();
        value.extend([scope, 0, 0, 0]);
        value
    };
    let parameters: Vec<(u16, Vec<u8>)> = match page {
        0x00 => Vec::new(),
        // Available and used resources of logical block provisioning.
        0x0c => vec![
            (1, resource(space.free_sets, SHARED)),
            (2, resource(space.used_sets, DEDICATED)),
        ],
        // No sensor (FFh).
        0x0d => vec![(0, vec![0, 0xff]), (1, vec![0, 0xff])],
        0x2f => vec![(0, vec![0, 0, 0xff, 0])],
        _ => return Err(Sense::cdb_field(2, Some(5))),
    };
    let last = parameters.last().map_or(0, |(code, _)| *code);
    if pointer > last {
        return Err(Sense::cdb_field(5, None));
    }
    let mut body = match page {
        0x00 => vec![0x00, 0x0c, 0x0d, 0x2f],
        _ => Vec::new(),
    };
    for (code, value) in parameters {
        if code >= pointer {
            body.extend(code.to_be_bytes());
            // In binary, of the format that is a list.
            body.extend([0x03, value.len() as u8]);
            body.extend(value);
        }
    }
    let mut bytes = vec![page, 0];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    Ok(bytes)
}
