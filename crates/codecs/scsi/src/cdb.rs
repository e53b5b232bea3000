//! Command descriptor blocks: what an initiator asks for.
//!
//! Protection information is not kept here, so that a command that asks for it is refused, as SBC-3 wants of devices
//! formatted without it.

use crate::sense::{Sense, code};
use crate::{u16_at, u32_at, u64_at};

/// Longest command that is known. Longer ones are refused by the transport.
pub const CDB_LEN_BYTES: usize = 16;

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub lba: u64,
    pub count: u64,
}

/// What MODE SENSE asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeAsked {
    pub no_block_descriptor: bool,
    pub long_lba: bool,
    /// 0 current, 1 changeable, 2 default, 3 saved.
    pub control: u8,
    pub page: u8,
    pub subpage: u8,
    /// The ten-byte command.
    pub is_long: bool,
}

/// What REPORT SUPPORTED OPERATION CODES asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodesAsked {
    pub with_timeouts: bool,
    /// 0 all, 1 an opcode, 2 an opcode with a service action, 3 either.
    pub options: u8,
    pub opcode: u8,
    pub service_action: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistentIn {
    Keys,
    Reservation,
    Capabilities,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistentOutAction {
    Register,
    Reserve,
    Release,
    Clear,
    Preempt,
    PreemptAndAbort,
    RegisterAndIgnore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistentOut {
    pub action: PersistentOutAction,
    pub scope: u8,
    /// The reservation's type, not checked.
    pub kind: u8,
    pub list_len_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitize {
    Overwrite,
    BlockErase,
    CryptographicErase,
    ExitFailureMode,
}

/// A command that is known. Lengths of lists and allocations are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    TestUnitReady,
    RequestSense {
        descriptor: bool,
        allocation: u32,
    },
    Inquiry {
        page: Option<u8>,
        allocation: u32,
    },
    ReadCapacity10,
    ReadCapacity16 {
        allocation: u32,
    },
    ModeSense {
        asked: ModeAsked,
        allocation: u32,
    },
    ModeSelect {
        save: bool,
        is_long: bool,
        list_len_bytes: u32,
    },
    ReportLuns {
        select: u8,
        allocation: u32,
    },
    ReportOpcodes {
        asked: OpcodesAsked,
        allocation: u32,
    },
    ReportTaskManagement {
        extended: bool,
        allocation: u32,
    },
    ReportTargetPortGroups {
        extended: bool,
        allocation: u32,
    },
    SetTargetPortGroups {
        list_len_bytes: u32,
    },
    LogSense {
        page: u8,
        subpage: u8,
        control: u8,
        /// The first parameter that is asked for.
        pointer: u16,
        allocation: u32,
    },
    StartStop {
        start: bool,
        eject: bool,
        power_condition: u8,
        no_flush: bool,
    },
    PreventAllow {
        prevent: u8,
    },
    Read {
        blocks: Blocks,
        fua: bool,
    },
    Write {
        blocks: Blocks,
        fua: bool,
    },
    /// Write, then read back; with `compare` byte for byte.
    WriteAndVerify {
        blocks: Blocks,
        compare: bool,
    },
    /// `compare`: with the data sent; 3 compares all with one block.
    Verify {
        blocks: Blocks,
        compare: u8,
    },
    WriteSame {
        blocks: Blocks,
        unmap: bool,
        anchor: bool,
        no_data: bool,
    },
    Unmap {
        anchor: bool,
        list_len_bytes: u32,
    },
    CompareAndWrite {
        blocks: Blocks,
        fua: bool,
    },
    OrWrite {
        blocks: Blocks,
        fua: bool,
    },
    Prefetch {
        blocks: Blocks,
    },
    SynchronizeCache {
        blocks: Blocks,
    },
    GetLbaStatus {
        lba: u64,
        allocation: u32,
    },
    ReadDefectData {
        is_long: bool,
        primary: bool,
        grown: bool,
        format: u8,
        allocation: u32,
    },
    Reserve,
    Release,
    PersistentIn {
        action: PersistentIn,
        allocation: u32,
    },
    PersistentOut(PersistentOut),
    Sanitize {
        action: Sanitize,
        immediate: bool,
        list_len_bytes: u32,
    },
    ExtendedCopy {
        list_len_bytes: u32,
    },
    CopyStatus {
        list: u8,
        allocation: u32,
    },
    PopulateToken {
        list: u32,
        list_len_bytes: u32,
    },
    WriteUsingToken {
        list: u32,
        list_len_bytes: u32,
    },
    RodTokenInformation {
        list: u32,
        allocation: u32,
    },
    CopyOperatingParameters {
        allocation: u32,
    },
    SendDiagnostic {
        self_test: bool,
        list_len_bytes: u32,
    },
}

const fn invalid(byte: u16) -> Sense {
    Sense::cdb_field(byte, None)
}

/// The NACA bit of the CONTROL byte (SAM-5, section 5.2).
const NACA: u8 = 0x04;

/// Where the CONTROL byte of a command is, which its group says (SPC-4, section 4.2.5.1). `None`: of a length that is not its
/// group's; there is no such command here.
fn control_at(opcode: u8) -> Option<u16> {
    match opcode >> 5 {
        0 => Some(5),
        1 | 2 => Some(9),
        4 => Some(15),
        5 => Some(11),
        _ => None,
    }
}

/// Takes a command; fails with the sense that the initiator gets. Source: SPC-4 chapter 6, SBC-3 chapter 5 (READ DEFECT DATA).
///
/// An error that would have to wait for the initiator's CLEAR ACA (NACA) cannot be had, as standard INQUIRY says (NORMACA): a
/// command that asks for it is refused, whatever it is (SAM-5, section 5.2).
pub fn parse(cdb: &[u8; CDB_LEN_BYTES]) -> Result<Command, Sense> {
    let taken = parse_fields(cdb);
    if taken == Err(Sense::illegal(code::INVALID_OPCODE)) {
        return taken;
    }
    let [opcode, ..] = cdb;
    let control = control_at(*opcode).and_then(|at| Some((at, cdb.get(usize::from(at))?)));
    match control {
        Some((at, control)) if control & NACA != 0 => Err(Sense::cdb_field(at, Some(2))),
        _ => taken,
    }
}

/// Whether a command is answered although a unit attention waits, and where there is no logical unit: INQUIRY, REPORT LUNS and
/// REQUEST SENSE, also those that are refused (SPC-4, section 4.2; SAM-5, section 5.14).
pub fn ignores_attention(cdb: &[u8; CDB_LEN_BYTES]) -> bool {
    matches!(cdb, [0x03 | 0x12 | 0xa0, ..])
}

fn parse_fields(cdb: &[u8; CDB_LEN_BYTES]) -> Result<Command, Sense> {
    let byte = |at: usize| cdb.get(at).copied().unwrap_or(0);
    let half = |at| u16_at(cdb, at).unwrap_or(0);
    let word = |at| u32_at(cdb, at).unwrap_or(0);
    let long = |at| u64_at(cdb, at).unwrap_or(0);
    let blocks6 = || Blocks {
        lba: u64::from(word(0) & 0x1f_ffff),
        count: match byte(4) {
            0 => 256,
            count => u64::from(count),
        },
    };
    let blocks10 = || Blocks {
        lba: u64::from(word(2)),
        count: u64::from(half(7)),
    };
    let blocks12 = || Blocks {
        lba: u64::from(word(2)),
        count: u64::from(word(6)),
    };
    let blocks16 = || Blocks {
        lba: long(2),
        count: u64::from(word(10)),
    };
    let fua = byte(1) & 0x08 != 0;
    let unprotected = || match byte(1) >> 5 {
        0 => Ok(()),
        _ => Err(Sense::cdb_field(1, Some(7))),
    };
    let command = match byte(0) {
        0x00 => Command::TestUnitReady,
        0x03 => Command::RequestSense {
            descriptor: byte(1) & 1 != 0,
            allocation: byte(4).into(),
        },
        0x08 => Command::Read {
            blocks: blocks6(),
            fua: false,
        },
        0x0a => Command::Write {
            blocks: blocks6(),
            fua: false,
        },
        0x12 => {
            let page = byte(2);
            if byte(1) & 0x02 != 0 {
                return Err(Sense::cdb_field(1, Some(1)));
            }
            let is_vital = byte(1) & 1 != 0;
            if !is_vital && page != 0 {
                return Err(invalid(2));
            }
            Command::Inquiry {
                page: is_vital.then_some(page),
                allocation: half(3).into(),
            }
        }
        0x15 | 0x55 => {
            let is_long = byte(0) == 0x55;
            // Without the page format bit the list is the vendor's own.
            if byte(1) & 0x10 == 0 {
                return Err(Sense::cdb_field(1, Some(4)));
            }
            Command::ModeSelect {
                save: byte(1) & 1 != 0,
                is_long,
                list_len_bytes: if is_long {
                    half(7).into()
                } else {
                    byte(4).into()
                },
            }
        }
        0x16 | 0x56 => Command::Reserve,
        0x17 | 0x57 => Command::Release,
        0x1a | 0x5a => {
            let is_long = byte(0) == 0x5a;
            Command::ModeSense {
                asked: ModeAsked {
                    no_block_descriptor: byte(1) & 0x08 != 0,
                    long_lba: is_long && byte(1) & 0x10 != 0,
                    control: byte(2) >> 6,
                    page: byte(2) & 0x3f,
                    subpage: byte(3),
                    is_long,
                },
                allocation: if is_long {
                    half(7).into()
                } else {
                    byte(4).into()
                },
            }
        }
        0x1b => Command::StartStop {
            start: byte(4) & 0x01 != 0,
            eject: byte(4) & 0x02 != 0,
            no_flush: byte(4) & 0x04 != 0,
            power_condition: byte(4) >> 4,
        },
        0x1d => Command::SendDiagnostic {
            self_test: byte(1) & 0x04 != 0,
            list_len_bytes: half(3).into(),
        },
        0x1e => Command::PreventAllow {
            prevent: byte(4) & 3,
        },
        0x25 => {
            if byte(8) & 1 == 0 && word(2) != 0 {
                return Err(invalid(2));
            }
            Command::ReadCapacity10
        }
        0x28 | 0xa8 | 0x88 => {
            unprotected()?;
            Command::Read {
                blocks: match byte(0) {
                    0x28 => blocks10(),
                    0xa8 => blocks12(),
                    _ => blocks16(),
                },
                fua,
            }
        }
        0x2a | 0xaa | 0x8a => {
            unprotected()?;
            Command::Write {
                blocks: match byte(0) {
                    0x2a => blocks10(),
                    0xaa => blocks12(),
                    _ => blocks16(),
                },
                fua,
            }
        }
        0x2e | 0xae | 0x8e => {
            unprotected()?;
            if byte(1) & 0x04 != 0 {
                return Err(Sense::cdb_field(1, Some(2)));
            }
            Command::WriteAndVerify {
                blocks: match byte(0) {
                    0x2e => blocks10(),
                    0xae => blocks12(),
                    _ => blocks16(),
                },
                compare: byte(1) & 0x02 != 0,
            }
        }
        0x2f | 0xaf | 0x8f => {
            unprotected()?;
            let compare = (byte(1) >> 1) & 3;
            // 2 is reserved.
            if compare == 2 {
                return Err(Sense::cdb_field(1, Some(2)));
            }
            Command::Verify {
                blocks: match byte(0) {
                    0x2f => blocks10(),
                    0xaf => blocks12(),
                    _ => blocks16(),
                },
                compare,
            }
        }
        0x34 => Command::Prefetch { blocks: blocks10() },
        0x90 => Command::Prefetch { blocks: blocks16() },
        0x35 => Command::SynchronizeCache { blocks: blocks10() },
        0x91 => Command::SynchronizeCache { blocks: blocks16() },
        0x41 | 0x93 => {
            unprotected()?;
            let is_long = byte(0) == 0x93;
            // LBDATA and PBDATA are obsolete.
            if byte(1) & 0x06 != 0 {
                return Err(Sense::cdb_field(1, Some(2)));
            }
            let (unmap, anchor) = (byte(1) & 0x08 != 0, byte(1) & 0x10 != 0);
            if anchor {
                return Err(Sense::cdb_field(1, Some(4)));
            }
            let no_data = is_long && byte(1) & 1 != 0;
            if !is_long && byte(1) & 1 != 0 {
                return Err(Sense::cdb_field(1, Some(0)));
            }
            Command::WriteSame {
                blocks: if is_long { blocks16() } else { blocks10() },
                unmap,
                anchor,
                no_data,
            }
        }
        0x42 => {
            if byte(1) & 1 != 0 {
                return Err(Sense::cdb_field(1, Some(0)));
            }
            Command::Unmap {
                anchor: false,
                list_len_bytes: half(7).into(),
            }
        }
        // ZNR, which is for zones, and AUSE.
        0x48 if byte(1) & 0x40 != 0 => return Err(Sense::cdb_field(1, Some(6))),
        0x48 if byte(1) & 0x20 != 0 => return Err(Sense::cdb_field(1, Some(5))),
        0x48 if cdb.get(2..7).is_some_and(|reserved| reserved != [0; 5]) => return Err(invalid(2)),
        0x48 => Command::Sanitize {
            action: match byte(1) & 0x1f {
                1 => Sanitize::Overwrite,
                2 => Sanitize::BlockErase,
                3 => Sanitize::CryptographicErase,
                0x1f => Sanitize::ExitFailureMode,
                _ => return Err(Sense::cdb_field(1, Some(4))),
            },
            immediate: byte(1) & 0x80 != 0,
            list_len_bytes: half(7).into(),
        },
        0x4d => {
            // No counter of these pages lasts.
            if byte(1) & 1 != 0 {
                return Err(Sense::cdb_field(1, Some(0)));
            }
            Command::LogSense {
                page: byte(2) & 0x3f,
                subpage: byte(3),
                control: byte(2) >> 6,
                pointer: half(5),
                allocation: half(7).into(),
            }
        }
        0x5e => Command::PersistentIn {
            action: match byte(1) & 0x1f {
                0 => PersistentIn::Keys,
                1 => PersistentIn::Reservation,
                2 => PersistentIn::Capabilities,
                3 => PersistentIn::Full,
                _ => return Err(Sense::cdb_field(1, Some(4))),
            },
            allocation: half(7).into(),
        },
        0x5f => Command::PersistentOut(PersistentOut {
            action: match byte(1) & 0x1f {
                0 => PersistentOutAction::Register,
                1 => PersistentOutAction::Reserve,
                2 => PersistentOutAction::Release,
                3 => PersistentOutAction::Clear,
                4 => PersistentOutAction::Preempt,
                5 => PersistentOutAction::PreemptAndAbort,
                6 => PersistentOutAction::RegisterAndIgnore,
                _ => return Err(Sense::cdb_field(1, Some(4))),
            },
            scope: byte(2) >> 4,
            kind: byte(2) & 0xf,
            list_len_bytes: word(5),
        }),
        0x83 => match byte(1) & 0x1f {
            0 => Command::ExtendedCopy {
                list_len_bytes: word(10),
            },
            0x10 => Command::PopulateToken {
                list: word(6),
                list_len_bytes: word(10),
            },
            0x11 => Command::WriteUsingToken {
                list: word(6),
                list_len_bytes: word(10),
            },
            _ => return Err(Sense::cdb_field(1, Some(4))),
        },
        0x84 => match byte(1) & 0x1f {
            0 => Command::CopyStatus {
                list: byte(2),
                allocation: word(10),
            },
            3 => Command::CopyOperatingParameters {
                allocation: word(10),
            },
            7 => Command::RodTokenInformation {
                list: word(2),
                allocation: word(10),
            },
            _ => return Err(Sense::cdb_field(1, Some(4))),
        },
        0x89 => {
            unprotected()?;
            Command::CompareAndWrite {
                blocks: Blocks {
                    lba: long(2),
                    count: byte(13).into(),
                },
                fua,
            }
        }
        0x8b => {
            unprotected()?;
            Command::OrWrite {
                blocks: blocks16(),
                fua,
            }
        }
        0x9e => match byte(1) & 0x1f {
            0x10 => {
                if byte(14) & 1 == 0 && long(2) != 0 {
                    return Err(invalid(2));
                }
                Command::ReadCapacity16 {
                    allocation: word(10),
                }
            }
            0x12 => Command::GetLbaStatus {
                lba: long(2),
                allocation: word(10),
            },
            _ => return Err(Sense::cdb_field(1, Some(4))),
        },
        0xa0 => Command::ReportLuns {
            select: byte(2),
            allocation: word(6),
        },
        0xa3 => match byte(1) & 0x1f {
            0x0a => Command::ReportTargetPortGroups {
                extended: byte(1) >> 5 == 1,
                allocation: word(6),
            },
            0x0c => Command::ReportOpcodes {
                asked: OpcodesAsked {
                    with_timeouts: byte(2) & 0x80 != 0,
                    options: byte(2) & 7,
                    opcode: byte(3),
                    service_action: half(4),
                },
                allocation: word(6),
            },
            0x0d => Command::ReportTaskManagement {
                extended: byte(2) & 0x80 != 0,
                allocation: word(6),
            },
            _ => return Err(Sense::cdb_field(1, Some(4))),
        },
        0xa4 => match byte(1) & 0x1f {
            0x0a => Command::SetTargetPortGroups {
                list_len_bytes: word(6),
            },
            _ => return Err(Sense::cdb_field(1, Some(4))),
        },
        0x37 => Command::ReadDefectData {
            is_long: false,
            primary: byte(2) & 0x10 != 0,
            grown: byte(2) & 0x08 != 0,
            format: byte(2) & 7,
            allocation: half(7).into(),
        },
        0xb7 => Command::ReadDefectData {
            is_long: true,
            primary: byte(1) & 0x10 != 0,
            grown: byte(1) & 0x08 != 0,
            format: byte(1) & 7,
            allocation: word(6),
        },
        _ => return Err(Sense::illegal(code::INVALID_OPCODE)),
    };
    Ok(command)
}

impl Command {
    /// Whether it changes what lies on the medium.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteAndVerify { .. }
                | Self::WriteSame { .. }
                | Self::Unmap { .. }
                | Self::CompareAndWrite { .. }
                | Self::OrWrite { .. }
                | Self::Sanitize { .. }
                | Self::WriteUsingToken { .. }
        )
    }
}
