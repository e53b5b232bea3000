//! iSCSI as bytes: PDU headers, text keys and their negotiation, CHAP (RFC 7143), and what nodes ask one another about targets.
//!
//! Owns: the bytes, in both directions, limits of fields, the arithmetic of serial numbers.
//! Must not know: sockets, clocks, SCSI commands, who may do what.
//! Invariant: no input makes a decoder panic, or allocate more than a small multiple of the input.

#![forbid(unsafe_code)]

mod chap;
mod initiator;
mod keys;
mod negotiation;
mod nodes;
mod pdu;
#[cfg(test)]
mod tests;

pub use chap::{
    CHAP_CHALLENGE_LEN_BYTES_MAX, CHAP_SECRET_LEN_BYTES_MAX, ChapHash, binary_of_text,
    chap_response, same_bytes, text_of_binary,
};
pub use initiator::ReplyNumbers;
pub use keys::{KEYS_COUNT_MAX, KEYS_LEN_BYTES_MAX, KeyError, Keys, is_iscsi_name};
pub use negotiation::{
    BURST_LEN_BYTES_MAX, CONNECTION_COUNT_MAX, DATA_SEGMENT_LEN_BYTES_MAX,
    FIRST_BURST_LEN_BYTES_MAX, Negotiated, OUTSTANDING_R2T_MAX, Offer,
};
pub use nodes::{
    Ask, Caller, Elsewhere, FRAME_LEN_BYTES_MAX, Frame, FrameError, LocateAnswer, Proof, Secret,
    decode_frame, encode_frame, frame_len_bytes,
};
pub use pdu::{
    Attribute, CHECKSUM_LEN_BYTES, CommandHeader, DataIn, HEADER_LEN_BYTES, Header, LoginHeader,
    Numbers, PduError, RejectReason, Reply, Request, Residual, TaskFunction, TaskResponse,
    UNTAGGED, login_status, serial_before,
};
