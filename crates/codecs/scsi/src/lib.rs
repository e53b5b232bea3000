//! SCSI as block devices speak it: commands, parameter lists, replies, sense data (SPC-4, SBC-3).
//!
//! Owns: the bytes, in both directions, and which bits of a command must be zero.
//! Must not know: transports, sessions, what a logical unit keeps where, who may do what.
//! Invariant: no input makes a decoder panic, or allocate more than a small multiple of the input.

#![forbid(unsafe_code)]

mod cdb;
mod copy;
mod initiator;
mod inquiry;
mod lists;
mod mode;
mod opcodes;
mod replies;
mod sense;
#[cfg(test)]
mod tests;
mod token;

pub use cdb::{
    Blocks, CDB_LEN_BYTES, Command, ModeAsked, OpcodesAsked, PersistentIn, PersistentOut,
    PersistentOutAction, Sanitize, ignores_attention, parse,
};
pub use copy::{
    COPY_INLINE_LEN_BYTES_MAX, COPY_SEGMENT_COUNT_MAX, COPY_TARGET_COUNT_MAX, CopyList,
    CopySegment, copy_operating_parameters, copy_status, parse_copy_list,
};
pub use initiator::{
    Capacity, LimitsSeen, SenseSeen, ask_capacity_16, inquiry_of, parse_block_limits,
    parse_capacity_16, parse_sense, read_16, synchronize_cache_16, test_unit_ready, unmap,
    write_16,
};
pub use inquiry::{
    Alua, Identity, Limits, NAA_LEN_BYTES, PRODUCT, PortGroup, VENDOR, VPD_PAGES, block_limits,
    device_characteristics, device_identification, extended_inquiry, logical_block_provisioning,
    mode_page_policy, scsi_ports, standard_inquiry, supported_pages, unit_serial,
};
pub use lists::{
    PersistentParameters, UNMAP_DESCRIPTOR_COUNT_MAX, UnmapRange, parse_persistent_out,
    parse_set_target_port_groups, parse_unmap,
};
pub use mode::{ModeState, Threshold, mode_select, mode_sense};
pub use opcodes::{supported_opcode, supported_opcodes};
pub use replies::{
    LbaStatus, ReservationSeen, SpaceSeen, lba_status, log_sense, lun_bytes, lun_of_bytes,
    read_capacity_10, read_capacity_16, report_capabilities, report_luns,
    report_target_port_groups, report_task_management, reservation_descriptors, reservation_keys,
    reservation_of,
};
pub use sense::{Code, Field, Key, Sense, code};
pub use token::{
    PopulateToken, ROD_TOKEN_LEN_BYTES, RodToken, RodTokenBytes, TOKEN_LIST_LEN_BYTES_MAX,
    TOKEN_RANGE_COUNT_MAX, TokenAction, TokenAsked, TokenLimits, TokenResult, WriteUsingToken,
    parse_populate_token, parse_write_using_token, rod_token_information, rod_type,
    third_party_copy, too_many_tokens, unknown_token,
};

/// How a command ended (SAM-5, section 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Good = 0x00,
    CheckCondition = 0x02,
    ConditionMet = 0x04,
    Busy = 0x08,
    ReservationConflict = 0x18,
    TaskSetFull = 0x28,
    TaskAborted = 0x40,
}

/// Big-endian numbers out of a slice; `None` where it ends before.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*found))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*found))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_be_bytes(*found))
}
