//! Which commands there are, as REPORT SUPPORTED OPERATION CODES tells (SPC-4, section 6.35).

use crate::cdb::OpcodesAsked;
use crate::sense::Sense;

/// A command: its opcode, its service action if it has one, its length, and which bits of it are looked at.
struct OpcodeEntry {
    opcode: u8,
    action: Option<u16>,
    usage: &'static [u8],
}

const fn known(opcode: u8, action: Option<u16>, usage: &'static [u8]) -> OpcodeEntry {
    OpcodeEntry {
        opcode,
        action,
        usage,
    }
}

const ALL: u8 = 0xff;
/// Of the CONTROL byte NACA is looked at, which must not be set.
const CONTROL: u8 = 0x04;

/// In order of opcode and service action. The first byte of a usage map is the opcode itself, a service action is itself as well.
/// Ignored bits are 0 (SPC-4, section 6.35.3), as group numbers and IMMED of caches are, and so may be bits that are only refused.
static KNOWN: &[OpcodeEntry] = &[
    known(0x00, None, &[0x00, 0, 0, 0, 0, CONTROL]),
    known(0x03, None, &[0x03, 1, 0, 0, ALL, CONTROL]),
    known(0x08, None, &[0x08, 0x1f, ALL, ALL, ALL, CONTROL]),
    known(0x0a, None, &[0x0a, 0x1f, ALL, ALL, ALL, CONTROL]),
    known(0x12, None, &[0x12, 1, ALL, ALL, ALL, CONTROL]),
    known(0x15, None, &[0x15, 0x11, 0, 0, ALL, CONTROL]),
    known(0x16, None, &[0x16, 0, 0, 0, 0, CONTROL]),
    known(0x17, None, &[0x17, 0, 0, 0, 0, CONTROL]),
    known(0x1a, None, &[0x1a, 0x08, ALL, ALL, ALL, CONTROL]),
    known(0x1b, None, &[0x1b, 0, 0, 0, 0xf7, CONTROL]),
    known(0x1d, None, &[0x1d, 0x04, 0, ALL, ALL, CONTROL]),
    known(0x1e, None, &[0x1e, 0, 0, 0, 3, CONTROL]),
    known(0x25, None, &[0x25, 0, ALL, ALL, ALL, ALL, 0, 0, 1, CONTROL]),
    known(
        0x28,
        None,
        &[0x28, 0xf8, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x2a,
        None,
        &[0x2a, 0xf8, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x2e,
        None,
        &[0x2e, 0xf2, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x2f,
        None,
        &[0x2f, 0xf6, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x34,
        None,
        &[0x34, 0, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x35,
        None,
        &[0x35, 0, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(0x37, None, &[0x37, 0, 0x1f, 0, 0, 0, 0, ALL, ALL, CONTROL]),
    known(
        0x41,
        None,
        &[0x41, 0xf8, ALL, ALL, ALL, ALL, 0, ALL, ALL, CONTROL],
    ),
    known(0x42, None, &[0x42, 0, 0, 0, 0, 0, 0, ALL, ALL, CONTROL]),
    known(
        0x48,
        Some(0x02),
        &[0x48, 0x82, 0, 0, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x48,
        Some(0x1f),
        &[0x48, 0x9f, 0, 0, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x4d,
        None,
        &[0x4d, 0, ALL, ALL, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(0x55, None, &[0x55, 0x11, 0, 0, 0, 0, 0, ALL, ALL, CONTROL]),
    known(0x56, None, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, CONTROL]),
    known(0x57, None, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, CONTROL]),
    known(
        0x5a,
        None,
        &[0x5a, 0x18, ALL, ALL, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x5e,
        Some(0),
        &[0x5e, 0x00, 0, 0, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x5e,
        Some(1),
        &[0x5e, 0x01, 0, 0, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x5e,
        Some(2),
        &[0x5e, 0x02, 0, 0, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x5e,
        Some(3),
        &[0x5e, 0x03, 0, 0, 0, 0, 0, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(0),
        &[0x5f, 0x00, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(1),
        &[0x5f, 0x01, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(2),
        &[0x5f, 0x02, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(3),
        &[0x5f, 0x03, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(4),
        &[0x5f, 0x04, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(5),
        &[0x5f, 0x05, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x5f,
        Some(6),
        &[0x5f, 0x06, ALL, 0, 0, ALL, ALL, ALL, ALL, CONTROL],
    ),
    known(
        0x83,
        Some(0),
        &[
            0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x83,
        Some(0x10),
        &[
            0x83, 0x10, 0, 0, 0, 0, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x83,
        Some(0x11),
        &[
            0x83, 0x11, 0, 0, 0, 0, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x84,
        Some(0),
        &[
            0x84, 0x00, ALL, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x84,
        Some(3),
        &[
            0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x84,
        Some(7),
        &[
            0x84, 0x07, ALL, ALL, ALL, ALL, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x88,
        None,
        &[
            0x88, 0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x89,
        None,
        &[
            0x89, 0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, 0, 0, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x8a,
        None,
        &[
            0x8a, 0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x8b,
        None,
        &[
            0x8b, 0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x8e,
        None,
        &[
            0x8e, 0xf2, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x8f,
        None,
        &[
            0x8f, 0xf6, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x90,
        None,
        &[
            0x90, 0, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x91,
        None,
        &[
            0x91, 0, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x93,
        None,
        &[
            0x93, 0xf9, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0x9e,
        Some(0x10),
        &[
            0x9e, 0x10, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 1, CONTROL,
        ],
    ),
    known(
        0x9e,
        Some(0x12),
        &[
            0x9e, 0x12, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0xa0,
        None,
        &[0xa0, 0, ALL, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL],
    ),
    known(
        0xa3,
        Some(0x0a),
        &[0xa3, 0xea, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL],
    ),
    known(
        0xa3,
        Some(0x0c),
        &[
            0xa3, 0x0c, 0x87, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0xa3,
        Some(0x0d),
        &[0xa3, 0x0d, 0x80, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL],
    ),
    known(
        0xa4,
        Some(0x0a),
        &[0xa4, 0x0a, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL],
    ),
    known(
        0xa8,
        None,
        &[
            0xa8, 0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0xaa,
        None,
        &[
            0xaa, 0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0xae,
        None,
        &[
            0xae, 0xf2, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0xaf,
        None,
        &[
            0xaf, 0xf6, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CONTROL,
        ],
    ),
    known(
        0xb7,
        None,
        &[0xb7, 0x1f, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CONTROL],
    ),
];

/// Commands have no timeouts of their own: the descriptor says "no indication".
const TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The list of all commands.
pub fn supported_opcodes(with_timeouts: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for command in KNOWN {
        let mut flags = 0;
        if command.action.is_some() {
            flags |= 1;
        }
        if with_timeouts {
            flags |= 2;
        }
        let [high, low] = command.action.unwrap_or(0).to_be_bytes();
        bytes.extend([
            command.opcode,
            0,
            high,
            low,
            0,
            flags,
            0,
            command.usage.len() as u8,
        ]);
        if with_timeouts {
            bytes.extend(TIMEOUTS);
        }
    }
    let len_bytes = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// The answer to REPORT SUPPORTED OPERATION CODES for one command.
pub fn supported_opcode(asked: &OpcodesAsked) -> Result<Vec<u8>, Sense> {
    let of_opcode = || KNOWN.iter().filter(|known| known.opcode == asked.opcode);
    let has_actions = of_opcode().any(|known| known.action.is_some());
    let with_action = of_opcode().find(|known| known.action == Some(asked.service_action));
    let found = match asked.options {
        1 if has_actions => return Err(Sense::cdb_field(2, Some(2))),
        1 => of_opcode().next(),
        2 if of_opcode().next().is_some() && !has_actions => {
            return Err(Sense::cdb_field(2, Some(2)));
        }
        2 => with_action,
        3 if has_actions => with_action,
        3 if asked.service_action == 0 => of_opcode().next(),
        3 => None,
        _ => return Err(Sense::cdb_field(2, Some(2))),
    };
    let timeouts = if asked.with_timeouts { 0x80 } else { 0 };
    let Some(found) = found else {
        // Not supported.
        return Ok(vec![0, 0x01, 0, 0]);
    };
    let mut bytes = vec![0, timeouts | 0x03, 0, found.usage.len() as u8];
    bytes.extend(found.usage);
    if asked.with_timeouts {
        bytes.extend(TIMEOUTS);
    }
    Ok(bytes)
}
