//! The initiator's side of PDU headers: requests into bytes, bytes into replies (RFC 7143, chapter 11).

use crate::pdu::{
    DataIn, HEADER_LEN_BYTES, Header, LoginHeader, Numbers, PduError, RejectReason, Reply, Request,
    Residual, TaskFunction, TaskResponse,
};

/// The numbers that replies carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyNumbers {
    /// Of this reply, where it has one; see [`Reply::has_status`].
    pub status: u32,
    /// The command that the target expects next, and the last that it takes.
    pub expected_command: u32,
    pub max_command: u32,
}

fn put(bytes: &mut [u8; HEADER_LEN_BYTES], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn put_word(bytes: &mut [u8; HEADER_LEN_BYTES], at: usize, value: u32) {
    put(bytes, at, &value.to_be_bytes());
}

fn put_numbers(bytes: &mut [u8; HEADER_LEN_BYTES], numbers: &Numbers) {
    put_word(bytes, 24, numbers.command);
    put_word(bytes, 28, numbers.expected_status);
}

impl Request {
    /// The header, with `data_len_bytes` of data behind it. `is_immediate`: it takes no command number of its own.
    ///
    /// Data-Out has no place for numbers of commands; it says `expected_status` only.
    pub fn header(
        &self,
        data_len_bytes: usize,
        is_immediate: bool,
        expected_status: u32,
    ) -> [u8; HEADER_LEN_BYTES] {
        let mut bytes = [0; HEADER_LEN_BYTES];
        put_word(&mut bytes, 4, data_len_bytes as u32 & 0xff_ffff);
        let flag = |is_set: bool, bit: u8| u8::from(is_set) << bit;
        let (opcode, flags) = match self {
            Self::NopOut {
                lun,
                tag,
                target_tag,
                numbers,
            } => {
                put(&mut bytes, 8, lun);
                put_word(&mut bytes, 16, *tag);
                put_word(&mut bytes, 20, *target_tag);
                put_numbers(&mut bytes, numbers);
                (0x00, 0x80)
            }
            Self::Command(command) => {
                put(&mut bytes, 8, &command.lun);
                put_word(&mut bytes, 16, command.tag);
                put_word(&mut bytes, 20, command.expected_len_bytes);
                put_numbers(&mut bytes, &command.numbers);
                put(&mut bytes, 32, &command.cdb);
                let attribute = match command.attribute {
                    crate::Attribute::Simple => 1,
                    crate::Attribute::Ordered => 2,
                    crate::Attribute::HeadOfQueue => 3,
                    crate::Attribute::Aca => 4,
                };
                let flags = flag(command.is_final, 7)
                    | flag(command.reads, 6)
                    | flag(command.writes, 5)
                    | attribute;
                (0x01, flags)
            }
            Self::Task {
                function,
                lun,
                tag,
                referenced_tag,
                numbers,
                referenced_command,
            } => {
                put(&mut bytes, 8, lun);
                put_word(&mut bytes, 16, *tag);
                put_word(&mut bytes, 20, *referenced_tag);
                put_numbers(&mut bytes, numbers);
                put_word(&mut bytes, 32, *referenced_command);
                let function = match function {
                    TaskFunction::AbortTask => 1,
                    TaskFunction::AbortTaskSet => 2,
                    TaskFunction::ClearAca => 3,
                    TaskFunction::ClearTaskSet => 4,
                    TaskFunction::LogicalUnitReset => 5,
                    TaskFunction::TargetWarmReset => 6,
                    TaskFunction::TargetColdReset => 7,
                    TaskFunction::TaskReassign => 8,
                    TaskFunction::Unknown => 0x7f,
                };
                (0x02, 0x80 | function)
            }
            Self::Login(login) => {
                put_login(&mut bytes, login);
                let flags = flag(login.transit, 7)
                    | flag(login.continues, 6)
                    | (login.stage & 3) << 2
                    | login.next_stage & 3;
                (0x03, flags)
            }
            Self::Text {
                is_final,
                continues,
                lun,
                tag,
                target_tag,
                numbers,
            } => {
                put(&mut bytes, 8, lun);
                put_word(&mut bytes, 16, *tag);
                put_word(&mut bytes, 20, *target_tag);
                put_numbers(&mut bytes, numbers);
                (0x04, flag(*is_final, 7) | flag(*continues, 6))
            }
            Self::DataOut {
                is_final,
                tag,
                target_tag,
                data_number,
                offset_bytes,
            } => {
                put_word(&mut bytes, 16, *tag);
                put_word(&mut bytes, 20, *target_tag);
                put_word(&mut bytes, 28, expected_status);
                put_word(&mut bytes, 36, *data_number);
                put_word(&mut bytes, 40, *offset_bytes);
                (0x05, flag(*is_final, 7))
            }
            Self::Logout {
                reason,
                tag,
                connection,
                numbers,
            } => {
                put_word(&mut bytes, 16, *tag);
                put(&mut bytes, 20, &connection.to_be_bytes());
                put_numbers(&mut bytes, numbers);
                (0x06, 0x80 | reason & 0x7f)
            }
            Self::Snack { tag } => {
                put_word(&mut bytes, 16, *tag);
                (0x10, 0x80)
            }
        };
        bytes[0] = opcode | flag(is_immediate, 6);
        bytes[1] = flags;
        bytes
    }
}

fn put_login(bytes: &mut [u8; HEADER_LEN_BYTES], login: &LoginHeader) {
    bytes[3] = login.version_min;
    put(bytes, 8, &login.isid);
    put(bytes, 14, &login.tsih.to_be_bytes());
    put_word(bytes, 16, login.tag);
    put(bytes, 20, &login.connection.to_be_bytes());
    put_numbers(bytes, &login.numbers);
}

impl Header {
    /// What a target says.
    pub fn reply(&self) -> Result<(Reply, ReplyNumbers), PduError> {
        let numbers = ReplyNumbers {
            status: self.word(24),
            expected_command: self.word(28),
            max_command: self.word(32),
        };
        let (lun, tag, flags) = (self.lun(), self.tag(), self.byte(1));
        let is_final = flags & 0x80 != 0;
        let residual = |flags: u8| match (flags & 0x04 != 0, flags & 0x02 != 0) {
            (true, _) => Residual::Overflow(self.word(44)),
            (_, true) => Residual::Underflow(self.word(44)),
            _ => Residual::None,
        };
        let reply = match self.opcode() {
            0x20 => Reply::NopIn {
                lun,
                tag,
                target_tag: self.word(20),
            },
            0x21 => Reply::Response {
                tag,
                response: self.byte(2),
                status: self.byte(3),
                data_count: self.word(36),
                residual: residual(flags),
            },
            0x22 => Reply::Task {
                tag,
                response: match self.byte(2) {
                    0 => TaskResponse::Complete,
                    1 => TaskResponse::NoTask,
                    2 => TaskResponse::NoLun,
                    4 => TaskResponse::ReassignNotSupported,
                    5 => TaskResponse::NotSupported,
                    255 => TaskResponse::Rejected,
                    _ => return Err(PduError::Field(0x22)),
                },
            },
            0x23 => Reply::Login {
                transit: is_final,
                continues: flags & 0x40 != 0,
                stage: (flags >> 2) & 3,
                next_stage: flags & 3,
                isid: std::array::from_fn(|index| self.byte(8 + index)),
                tsih: self.half(14),
                tag,
                status: self.half(36),
            },
            0x24 => Reply::Text {
                is_final,
                continues: flags & 0x40 != 0,
                lun,
                tag,
                target_tag: self.word(20),
            },
            0x25 => Reply::DataIn(DataIn {
                is_final,
                status: (flags & 0x01 != 0).then(|| (self.byte(3), residual(flags))),
                tag,
                number: self.word(36),
                offset_bytes: self.word(40),
            }),
            0x26 => Reply::Logout {
                tag,
                response: self.byte(2),
            },
            0x31 => Reply::ReadyToTransfer {
                lun,
                tag,
                target_tag: self.word(20),
                number: self.word(36),
                offset_bytes: self.word(40),
                len_bytes: self.word(44),
            },
            0x3f => Reply::Reject {
                reason: match self.byte(2) {
                    0x02 => RejectReason::DataDigest,
                    0x03 => RejectReason::Snack,
                    0x05 => RejectReason::NotSupported,
                    0x06 => RejectReason::Immediate,
                    0x09 => RejectReason::InvalidField,
                    0x0a => RejectReason::OutOfResources,
                    // Any other reason: the target does not take the PDU.
                    _ => RejectReason::Protocol,
                },
            },
            0x32 => Reply::Async {
                lun,
                event: self.byte(36),
                parameters: [self.half(38), self.half(40), self.half(42)],
            },
            opcode => return Err(PduError::ReplyOpcode(opcode)),
        };
        Ok((reply, numbers))
    }
}
