//! Sense data: why a command did not end well (SPC-4, section 4.5).

/// Sense keys (SPC-4, table 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Key {
    NoSense = 0x0,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    Miscompare = 0xe,
}

/// Additional sense code and its qualifier (SPC-4, annex F).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u8, pub u8);

/// The codes that are in use here.
pub mod code {
    use super::Code;

    pub const NONE: Code = Code(0x00, 0x00);
    pub const OPERATION_IN_PROGRESS: Code = Code(0x00, 0x16);
    pub const BECOMING_READY: Code = Code(0x04, 0x01);
    pub const OFFLINE: Code = Code(0x04, 0x12);
    pub const DATA_PHASE_ERROR: Code = Code(0x4b, 0x00);
    pub const WRITE_ERROR: Code = Code(0x0c, 0x00);
    pub const UNRECOVERED_READ: Code = Code(0x11, 0x00);
    pub const PARAMETER_LIST_LENGTH: Code = Code(0x1a, 0x00);
    pub const MISCOMPARE: Code = Code(0x1d, 0x00);
    pub const INVALID_OPCODE: Code = Code(0x20, 0x00);
    pub const LBA_OUT_OF_RANGE: Code = Code(0x21, 0x00);
    pub const TOKEN_TYPE: Code = Code(0x23, 0x01);
    pub const TOKEN_UNKNOWN: Code = Code(0x23, 0x04);
    pub const TOKEN_LENGTH: Code = Code(0x23, 0x0a);
    pub const INVALID_FIELD_IN_CDB: Code = Code(0x24, 0x00);
    pub const LUN_NOT_SUPPORTED: Code = Code(0x25, 0x00);
    pub const INVALID_FIELD_IN_LIST: Code = Code(0x26, 0x00);
    pub const INVALID_RELEASE: Code = Code(0x26, 0x04);
    pub const TOO_MANY_TARGETS: Code = Code(0x26, 0x06);
    pub const UNSUPPORTED_TARGET_TYPE: Code = Code(0x26, 0x07);
    pub const TOO_MANY_SEGMENTS: Code = Code(0x26, 0x08);
    pub const UNSUPPORTED_SEGMENT_TYPE: Code = Code(0x26, 0x09);
    pub const INLINE_DATA_EXCEEDED: Code = Code(0x26, 0x0b);
    pub const WRITE_PROTECTED: Code = Code(0x27, 0x00);
    pub const SOFTWARE_WRITE_PROTECTED: Code = Code(0x27, 0x02);
    pub const SPACE_ALLOCATION_FAILED: Code = Code(0x27, 0x07);
    pub const POWER_ON: Code = Code(0x29, 0x00);
    pub const MODE_CHANGED: Code = Code(0x2a, 0x01);
    pub const RESERVATIONS_PREEMPTED: Code = Code(0x2a, 0x03);
    pub const RESERVATIONS_RELEASED: Code = Code(0x2a, 0x04);
    pub const REGISTRATIONS_PREEMPTED: Code = Code(0x2a, 0x05);
    pub const CAPACITY_CHANGED: Code = Code(0x2a, 0x09);
    pub const COMMANDS_CLEARED: Code = Code(0x2f, 0x00);
    pub const SOFT_THRESHOLD_REACHED: Code = Code(0x38, 0x07);
    pub const SAVING_NOT_SUPPORTED: Code = Code(0x39, 0x00);
    pub const REPORTED_LUNS_CHANGED: Code = Code(0x3f, 0x0e);
    pub const INTERNAL_FAILURE: Code = Code(0x44, 0x00);
    pub const INSUFFICIENT_REGISTRATIONS: Code = Code(0x55, 0x04);
    pub const NO_ROOM_FOR_TOKEN: Code = Code(0x55, 0x0d);
    pub const COPY_TARGET_UNREACHABLE: Code = Code(0x0d, 0x02);
    pub const COPY_SEGMENT_FAILED: Code = Code(0x0d, 0x01);
}

/// Which field is wrong (SPC-4, section 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// In the command; else in the parameter list.
    pub in_cdb: bool,
    pub byte: u16,
    /// The most significant bit of the field, where it is not the whole byte.
    pub bit: Option<u8>,
}

/// Why a command did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key:?} {:02x}/{:02x}", code.0, code.1)]
pub struct Sense {
    pub key: Key,
    pub code: Code,
    /// An LBA, or the offset of the byte that differs.
    pub information: Option<u64>,
    pub field: Option<Field>,
}

impl Sense {
    pub const fn new(key: Key, code: Code) -> Self {
        Self {
            key,
            code,
            information: None,
            field: None,
        }
    }

    pub const fn illegal(code: Code) -> Self {
        Self::new(Key::IllegalRequest, code)
    }

    pub const fn attention(code: Code) -> Self {
        Self::new(Key::UnitAttention, code)
    }

    /// A field of the command that must not be so.
    pub const fn cdb_field(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::illegal(code::INVALID_FIELD_IN_CDB);
        sense.field = Some(Field {
            in_cdb: true,
            byte,
            bit,
        });
        sense
    }

    /// A field of the parameter list that must not be so.
    pub const fn list_field(byte: u16) -> Self {
        let mut sense = Self::illegal(code::INVALID_FIELD_IN_LIST);
        sense.field = Some(Field {
            in_cdb: false,
            byte,
            bit: None,
        });
        sense
    }

    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    fn field_bytes(&self) -> Option<[u8; 3]> {
        let field = self.field?;
        let [high, low] = field.byte.to_be_bytes();
        let mut first = 0x80;
        if field.in_cdb {
            first |= 0x40;
        }
        if let Some(bit) = field.bit {
            first |= 0x08 | (bit & 7);
        }
        Some([first, high, low])
    }

    /// Fixed format, 18 bytes (SPC-4, section 4.5.3); an information of more than 32 bits is left out, as it says.
    pub fn fixed(&self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        bytes[7] = 10;
        bytes[12] = self.code.0;
        bytes[13] = self.code.1;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        if let Some(field) = self.field_bytes() {
            bytes[15..18].copy_from_slice(&field);
        }
        bytes
    }

    /// Descriptor format (SPC-4, section 4.5.2).
    pub fn descriptor(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key as u8, self.code.0, self.code.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0x00]);
            bytes.extend(information.to_be_bytes());
        }
        if let Some([first, high, low]) = self.field_bytes() {
            bytes.extend([0x02, 0x06, 0, 0, first, high, low, 0]);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }
}
