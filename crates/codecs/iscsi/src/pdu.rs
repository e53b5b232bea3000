//! PDU headers (RFC 7143, chapter 11).
//!
//! A PDU is a basic header segment of 48 bytes, additional header segments, a digest of both if there is one, data, padded
//! to a multiple of four, and a digest of that.

pub const HEADER_LEN_BYTES: usize = 48;
pub const CHECKSUM_LEN_BYTES: usize = 4;
/// "No tag".
pub const UNTAGGED: u32 = u32::MAX;

/// Why a header is none that the other side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    #[error("opcode {0:#04x} is not one of an initiator")]
    Opcode(u8),
    #[error("opcode {0:#04x} is not one of a target")]
    ReplyOpcode(u8),
    #[error("the header of opcode {0:#04x} has a field that cannot be so")]
    Field(u8),
}

/// Whether `left` comes before `right` (RFC 1982, as RFC 7143 section 4.2.2.1 uses it).
pub fn serial_before(left: u32, right: u32) -> bool {
    left != right && right.wrapping_sub(left) < 1 << 31
}

/// The first 48 bytes of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER_LEN_BYTES]);

/// The numbers that most requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub command: u32,
    pub expected_status: u32,
}

/// How a task is to be ordered (RFC 7143, section 11.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    Simple,
    Ordered,
    HeadOfQueue,
    Aca,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandHeader {
    /// No unsolicited data follows after this PDU.
    pub is_final: bool,
    pub reads: bool,
    pub writes: bool,
    pub attribute: Attribute,
    pub lun: [u8; 8],
    pub tag: u32,
    pub expected_len_bytes: u32,
    pub numbers: Numbers,
    pub cdb: [u8; 16],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginHeader {
    pub transit: bool,
    pub continues: bool,
    pub stage: u8,
    pub next_stage: u8,
    pub version_min: u8,
    pub isid: [u8; 6],
    pub tsih: u16,
    pub tag: u32,
    pub connection: u16,
    pub numbers: Numbers,
}

/// Task management functions (RFC 7143, section 11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFunction {
    AbortTask,
    AbortTaskSet,
    ClearAca,
    ClearTaskSet,
    LogicalUnitReset,
    TargetWarmReset,
    TargetColdReset,
    TaskReassign,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskResponse {
    Complete = 0,
    NoTask = 1,
    NoLun = 2,
    ReassignNotSupported = 4,
    NotSupported = 5,
    Rejected = 255,
}

/// What an initiator sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    NopOut {
        lun: [u8; 8],
        tag: u32,
        target_tag: u32,
        numbers: Numbers,
    },
    Command(CommandHeader),
    Task {
        function: TaskFunction,
        lun: [u8; 8],
        tag: u32,
        referenced_tag: u32,
        numbers: Numbers,
        referenced_command: u32,
    },
    Login(LoginHeader),
    Text {
        is_final: bool,
        continues: bool,
        lun: [u8; 8],
        tag: u32,
        target_tag: u32,
        numbers: Numbers,
    },
    DataOut {
        is_final: bool,
        tag: u32,
        target_tag: u32,
        data_number: u32,
        offset_bytes: u32,
    },
    Logout {
        reason: u8,
        tag: u32,
        connection: u16,
        numbers: Numbers,
    },
    /// Asks for something again; only with recovery levels that are not negotiated.
    Snack {
        tag: u32,
    },
}

impl Request {
    /// The numbers by which a request has its place among the commands of its session, if it has one.
    pub fn numbers(&self) -> Option<Numbers> {
        match self {
            Self::Command(header) => Some(header.numbers),
            Self::NopOut { tag, .. } if *tag == UNTAGGED => None,
            Self::NopOut { numbers, .. }
            | Self::Task { numbers, .. }
            | Self::Text { numbers, .. }
            | Self::Logout { numbers, .. } => Some(*numbers),
            Self::Login(_) | Self::DataOut { .. } | Self::Snack { .. } => None,
        }
    }
}

impl Header {
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(crate) fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.byte(at), self.byte(at + 1)])
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([
            self.byte(at),
            self.byte(at + 1),
            self.byte(at + 2),
            self.byte(at + 3),
        ])
    }

    pub(crate) fn lun(&self) -> [u8; 8] {
        std::array::from_fn(|index| self.byte(8 + index))
    }

    pub fn opcode(&self) -> u8 {
        self.byte(0) & 0x3f
    }

    pub fn is_immediate(&self) -> bool {
        self.byte(0) & 0x40 != 0
    }

    /// Bytes of additional header segments: at most 1020.
    pub fn additional_len_bytes(&self) -> usize {
        usize::from(self.byte(4)) * 4
    }

    /// Bytes of data, without padding: less than 16 MiB.
    pub fn data_len_bytes(&self) -> usize {
        (self.word(4) & 0xff_ffff) as usize
    }

    pub fn tag(&self) -> u32 {
        self.word(16)
    }

    /// What the header asks for.
    pub fn request(&self) -> Result<Request, PduError> {
        let numbers = Numbers {
            command: self.word(24),
            expected_status: self.word(28),
        };
        let is_final = self.byte(1) & 0x80 != 0;
        let (lun, tag) = (self.lun(), self.tag());
        let request = match self.opcode() {
            0x00 => Request::NopOut {
                lun,
                tag,
                target_tag: self.word(20),
                numbers,
            },
            0x01 => Request::Command(CommandHeader {
                is_final,
                reads: self.byte(1) & 0x40 != 0,
                writes: self.byte(1) & 0x20 != 0,
                attribute: match self.byte(1) & 7 {
                    0 | 1 => Attribute::Simple,
                    2 => Attribute::Ordered,
                    3 => Attribute::HeadOfQueue,
                    4 => Attribute::Aca,
                    _ => return Err(PduError::Field(0x01)),
                },
                lun,
                tag,
                expected_len_bytes: self.word(20),
                numbers,
                cdb: std::array::from_fn(|index| self.byte(32 + index)),
            }),
            0x02 => Request::Task {
                function: match self.byte(1) & 0x7f {
                    1 => TaskFunction::AbortTask,
                    2 => TaskFunction::AbortTaskSet,
                    3 => TaskFunction::ClearAca,
                    4 => TaskFunction::ClearTaskSet,
                    5 => TaskFunction::LogicalUnitReset,
                    6 => TaskFunction::TargetWarmReset,
                    7 => TaskFunction::TargetColdReset,
                    8 => TaskFunction::TaskReassign,
                    _ => TaskFunction::Unknown,
                },
                lun,
                tag,
                referenced_tag: self.word(20),
                numbers,
                referenced_command: self.word(32),
            },
            0x03 => Request::Login(LoginHeader {
                transit: is_final,
                continues: self.byte(1) & 0x40 != 0,
                stage: (self.byte(1) >> 2) & 3,
                next_stage: self.byte(1) & 3,
                version_min: self.byte(3),
                isid: std::array::from_fn(|index| self.byte(8 + index)),
                tsih: self.half(14),
                tag,
                connection: self.half(20),
                numbers,
            }),
            0x04 => Request::Text {
                is_final,
                continues: self.byte(1) & 0x40 != 0,
                lun,
                tag,
                target_tag: self.word(20),
                numbers,
            },
            0x05 => Request::DataOut {
                is_final,
                tag,
                target_tag: self.word(20),
                data_number: self.word(36),
                offset_bytes: self.word(40),
            },
            0x06 => Request::Logout {
                reason: self.byte(1) & 0x7f,
                tag,
                connection: self.half(20),
                numbers,
            },
            0x10 => Request::Snack { tag },
            opcode => return Err(PduError::Opcode(opcode)),
        };
        Ok(request)
    }
}

/// How many expected bytes were not transferred, or how many more there would have been (RFC 7143, section 11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    #[default]
    None,
    Underflow(u32),
    Overflow(u32),
}

impl Residual {
    /// Of a transfer of `had` bytes where `expected` were.
    pub fn of(expected: u64, had: u64) -> Self {
        let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        match expected.cmp(&had) {
            std::cmp::Ordering::Equal => Self::None,
            std::cmp::Ordering::Greater => Self::Underflow(count(expected - had)),
            std::cmp::Ordering::Less => Self::Overflow(count(had - expected)),
        }
    }

    fn flags(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Underflow(_) => 0x02,
            Self::Overflow(_) => 0x04,
        }
    }

    fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Underflow(count) | Self::Overflow(count) => count,
        }
    }
}

/// Why a PDU is not taken (RFC 7143, section 11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    DataDigest = 0x02,
    Snack = 0x03,
    Protocol = 0x04,
    NotSupported = 0x05,
    Immediate = 0x06,
    InvalidField = 0x09,
    OutOfResources = 0x0a,
}

/// Status class and detail of a login (RFC 7143, section 11.13.5).
pub mod login_status {
    pub const SUCCESS: u16 = 0x0000;
    pub const INITIATOR_ERROR: u16 = 0x0200;
    pub const AUTHENTICATION_FAILED: u16 = 0x0201;
    pub const FORBIDDEN: u16 = 0x0202;
    pub const NOT_FOUND: u16 = 0x0203;
    pub const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    pub const MISSING_PARAMETER: u16 = 0x0207;
    pub const SESSION_TYPE: u16 = 0x0209;
    pub const NO_SESSION: u16 = 0x020a;
    pub const INVALID_DURING_LOGIN: u16 = 0x020b;
    pub const VERSION: u16 = 0x0205;
    pub const UNAVAILABLE: u16 = 0x0301;
    pub const OUT_OF_RESOURCES: u16 = 0x0302;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// The last of a burst.
    pub is_final: bool,
    /// The command's status, in its last PDU.
    pub status: Option<(u8, Residual)>,
    pub tag: u32,
    pub number: u32,
    pub offset_bytes: u32,
}

/// What a target sends. The header's lengths and numbers are filled in by [`Reply::header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    NopIn {
        lun: [u8; 8],
        tag: u32,
        target_tag: u32,
    },
    Response {
        tag: u32,
        /// 0: the command was completed, and `status` is its.
        response: u8,
        status: u8,
        data_count: u32,
        residual: Residual,
    },
    Task {
        tag: u32,
        response: TaskResponse,
    },
    Login {
        transit: bool,
        continues: bool,
        stage: u8,
        next_stage: u8,
        isid: [u8; 6],
        tsih: u16,
        tag: u32,
        status: u16,
    },
    Text {
        is_final: bool,
        continues: bool,
        lun: [u8; 8],
        tag: u32,
        target_tag: u32,
    },
    DataIn(DataIn),
    Logout {
        tag: u32,
        response: u8,
    },
    ReadyToTransfer {
        lun: [u8; 8],
        tag: u32,
        target_tag: u32,
        number: u32,
        offset_bytes: u32,
        len_bytes: u32,
    },
    Reject {
        reason: RejectReason,
    },
    Async {
        lun: [u8; 8],
        event: u8,
        parameters: [u16; 3],
    },
}

impl Reply {
    /// Whether a status number belongs to it.
    pub fn has_status(&self) -> bool {
        match self {
            Self::DataIn(data) => data.status.is_some(),
            Self::ReadyToTransfer { .. } => false,
            // One that asks has none of its own.
            Self::NopIn { tag, .. } => *tag != UNTAGGED,
            _ => true,
        }
    }

    /// The header, with `data_len_bytes` of data behind it; `status_number` is that of this reply, or the next one's where it
    /// has none; `expected` and `max` are the window of commands.
    pub fn header(
        &self,
        data_len_bytes: usize,
        status_number: u32,
        expected: u32,
        max: u32,
    ) -> [u8; HEADER_LEN_BYTES] {
        let mut bytes = [0; HEADER_LEN_BYTES];
        fn put(bytes: &mut [u8; HEADER_LEN_BYTES], at: usize, value: &[u8]) {
            bytes[at..at + value.len()].copy_from_slice(value);
        }
        let mut word = |at: usize, value: u32| put(&mut bytes, at, &value.to_be_bytes());
        word(4, data_len_bytes as u32 & 0xff_ffff);
        word(24, status_number);
        word(28, expected);
        word(32, max);
        match *self {
            Self::NopIn {
                lun,
                tag,
                target_tag,
            } => {
                word(16, tag);
                word(20, target_tag);
                put(&mut bytes, 0, &[0x20, 0x80]);
                put(&mut bytes, 8, &lun);
            }
            Self::Response {
                tag,
                response,
                status,
                data_count,
                residual,
            } => {
                word(16, tag);
                word(36, data_count);
                word(44, residual.count());
                put(
                    &mut bytes,
                    0,
                    &[0x21, 0x80 | residual.flags(), response, status],
                );
            }
            Self::Task { tag, response } => {
                word(16, tag);
                put(&mut bytes, 0, &[0x22, 0x80, response as u8]);
            }
            Self::Login {
                transit,
                continues,
                stage,
                next_stage,
                isid,
                tsih,
                tag,
                status,
            } => {
                word(16, tag);
                let flags = u8::from(transit) << 7
                    | u8::from(continues) << 6
                    | (stage & 3) << 2
                    | next_stage & 3;
                put(&mut bytes, 0, &[0x23, flags]);
                put(&mut bytes, 8, &isid);
                put(&mut bytes, 14, &tsih.to_be_bytes());
                put(&mut bytes, 36, &status.to_be_bytes());
            }
            Self::Text {
                is_final,
                continues,
                lun,
                tag,
                target_tag,
            } => {
                word(16, tag);
                word(20, target_tag);
                put(
                    &mut bytes,
                    0,
                    &[0x24, u8::from(is_final) << 7 | u8::from(continues) << 6],
                );
                put(&mut bytes, 8, &lun);
            }
            Self::DataIn(data) => {
                word(16, data.tag);
                word(20, UNTAGGED);
                word(36, data.number);
                word(40, data.offset_bytes);
                let mut flags = u8::from(data.is_final) << 7;
                let mut status_byte = 0;
                match data.status {
                    Some((status, residual)) => {
                        flags |= 0x01 | residual.flags();
                        status_byte = status;
                        word(44, residual.count());
                    }
                    // Reserved without a status.
                    None => word(24, 0),
                }
                put(&mut bytes, 0, &[0x25, flags, 0, status_byte]);
            }
            Self::Logout { tag, response } => {
                word(16, tag);
                put(&mut bytes, 0, &[0x26, 0x80, response]);
            }
            Self::ReadyToTransfer {
                lun,
                tag,
                target_tag,
                number,
                offset_bytes,
                len_bytes,
            } => {
                word(16, tag);
                word(20, target_tag);
                word(36, number);
                word(40, offset_bytes);
                word(44, len_bytes);
                put(&mut bytes, 0, &[0x31, 0x80]);
                put(&mut bytes, 8, &lun);
            }
            Self::Reject { reason } => {
                word(16, UNTAGGED);
                put(&mut bytes, 0, &[0x3f, 0x80, reason as u8]);
            }
            Self::Async {
                lun,
                event,
                parameters: [first, second, third],
            } => {
                word(16, UNTAGGED);
                put(&mut bytes, 0, &[0x32, 0x80]);
                put(&mut bytes, 8, &lun);
                put(&mut bytes, 36, &[event, 0]);
                put(&mut bytes, 38, &first.to_be_bytes());
                put(&mut bytes, 40, &second.to_be_bytes());
                put(&mut bytes, 42, &third.to_be_bytes());
            }
        }
        bytes
    }
}
