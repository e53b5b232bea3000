//! Frames: a header of fixed length, a body, which is one message, and a payload, which is bytes of shards.
//!
//! The receiver of a frame reads the header, checks it, and only then makes room for the rest.

use bytes::Bytes;
use cairn_base::{crc32c, crc32c_append};

use crate::WireError;
use crate::fields::{Fields, Part};
use crate::message::Message;

pub const HEADER_LEN_BYTES: usize = 36;
/// The version of the header; that of messages is agreed on in the first frames.
pub const FRAME_VERSION: u16 = 1;
/// Most bytes of a message: room for the footer of the largest shard.
pub const BODY_LEN_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a payload. A sender with more sends several requests.
pub const PAYLOAD_LEN_BYTES_MAX: usize = 16 << 20;

const MAGIC: [u8; 4] = *b"CRNW";
/// The checksum of the header follows its other fields.
const HEADER_CRC_OFFSET: usize = HEADER_LEN_BYTES - 4;

/// What a frame says before its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub(crate) kind: u8,
    /// Of a request, and of the reply to it; 0 in other messages.
    pub id: u64,
    pub body_len_bytes: u32,
    pub payload_len_bytes: u32,
    body_crc: u32,
    payload_crc: u32,
}

impl Header {
    /// Reads the front of a frame. The lengths of what comes back are within their limits.
    pub fn decode(bytes: &[u8; HEADER_LEN_BYTES]) -> Result<Self, WireError> {
        let (covered, crc) = bytes.split_at(HEADER_CRC_OFFSET);
        let mut fields = Fields(covered);
        if u32::take(&mut fields)? != u32::from_le_bytes(MAGIC) {
            return Err(WireError::Magic);
        }
        if u32::take(&mut Fields(crc))? != crc32c(covered) {
            return Err(WireError::Checksum("header"));
        }
        let version = u16::take(&mut fields)?;
        if version != FRAME_VERSION {
            return Err(WireError::Version {
                found: version,
                known: FRAME_VERSION,
            });
        }
        let kind = u8::take(&mut fields)?;
        if u8::take(&mut fields)? != 0 {
            return Err(WireError::Field("reserved byte"));
        }
        let header = Self {
            kind,
            id: u64::take(&mut fields)?,
            body_len_bytes: u32::take(&mut fields)?,
            payload_len_bytes: u32::take(&mut fields)?,
            body_crc: u32::take(&mut fields)?,
            payload_crc: u32::take(&mut fields)?,
        };
        check_len("body", header.body_len_bytes.into(), BODY_LEN_BYTES_MAX)?;
        check_len(
            "payload",
            header.payload_len_bytes.into(),
            PAYLOAD_LEN_BYTES_MAX,
        )?;
        Ok(header)
    }

    /// Reads the body, which must be all of it. The payload is as long as the message says.
    pub fn message(&self, body: &[u8]) -> Result<Message, WireError> {
        if body.len() != self.body_len_bytes as usize {
            return Err(WireError::Truncated);
        }
        if crc32c(body) != self.body_crc {
            return Err(WireError::Checksum("body"));
        }
        let mut fields = Fields(body);
        let message = Message::take(self.kind, &mut fields)?;
        fields.finish()?;
        if message.payload_len_bytes() != Some(self.payload_len_bytes.into()) {
            return Err(WireError::Field("payload length"));
        }
        if (self.id == 0) == message.has_id() {
            return Err(WireError::Field("request id"));
        }
        Ok(message)
    }

    /// Compares the payload with its checksum.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), WireError> {
        match crc32c(payload) == self.payload_crc {
            true => Ok(()),
            false => Err(WireError::Checksum("payload")),
        }
    }
}

/// The CRC32C of a payload whose parts follow one another.
pub fn payload_crc(parts: &[Bytes]) -> u32 {
    match parts {
        [one] => crc32c(one),
        parts => parts
            .iter()
            .fold(crc32c(b""), |crc, part| crc32c_append(crc, part)),
    }
}

/// Header and body of a frame; the payload's parts are to follow as they are.
///
/// Fails if the message is longer than any frame, or speaks of another payload.
pub fn encode(id: u64, message: &Message, payload: &[Bytes]) -> Result<Vec<u8>, WireError> {
    let mut frame = vec![0; HEADER_LEN_BYTES];
    message.put(&mut frame);
    let (header, body) = frame.split_at_mut(HEADER_LEN_BYTES);
    let payload_len_bytes = payload.iter().map(|part| part.len() as u64).sum();
    check_len("body", body.len() as u64, BODY_LEN_BYTES_MAX)?;
    check_len("payload", payload_len_bytes, PAYLOAD_LEN_BYTES_MAX)?;
    if message.payload_len_bytes() != Some(payload_len_bytes) {
        return Err(WireError::Field("payload length"));
    }
    let mut fields = Vec::with_capacity(HEADER_LEN_BYTES);
    fields.extend_from_slice(&MAGIC);
    FRAME_VERSION.put(&mut fields);
    message.kind().put(&mut fields);
    0u8.put(&mut fields);
    id.put(&mut fields);
    // Both are within their limits.
    (body.len() as u32).put(&mut fields);
    (payload_len_bytes as u32).put(&mut fields);
    crc32c(body).put(&mut fields);
    payload_crc(payload).put(&mut fields);
    let crc = crc32c(&fields);
    crc.put(&mut fields);
    header.copy_from_slice(&fields);
    Ok(frame)
}

fn check_len(what: &'static str, len_bytes: u64, len_bytes_max: usize) -> Result<(), WireError> {
    let len_bytes_max = len_bytes_max as u64;
    match len_bytes <= len_bytes_max {
        true => Ok(()),
        false => Err(WireError::TooLong {
            what,
            len_bytes,
            len_bytes_max,
        }),
    }
}
