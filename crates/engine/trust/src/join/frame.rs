//! The question and the answer as bytes: a length (4 bytes, big-endian) and that much JSON.
//!
//! Fields that are not known are skipped, so that a newer node may say more.

use std::fmt;

use cairn_base::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Admitted, JoinRequest};
use crate::ticket::is_token;

/// Of the JSON.
pub const FRAME_LEN_BYTES_MAX: usize = 64 * 1024;
const LEN_LEN_BYTES: usize = 4;
const REASON_LEN_CHARS_MAX: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("it has {len_bytes} bytes, and at most {FRAME_LEN_BYTES_MAX} are allowed")]
    TooLong { len_bytes: u64 },
    #[error("it was cut off")]
    CutOff,
    #[error("its content is wrong: {0}")]
    Content(String),
    #[error("{0}")]
    Io(std::io::Error),
}

/// What a node asks. `Debug` hides the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub token: String,
    /// By the clock of the node that asks.
    pub now: Timestamp,
    pub request: JoinRequest,
    /// For the node's certificate (PKCS #10, PEM): the key stays where it was made.
    pub certificate_request: String,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("now", &self.now)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// What it is answered.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Admitted {
        authority_pem: String,
        /// The CA that is trusted beside it, while one takes the place of the other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        second_authority_pem: Option<String>,
        /// Of the node that asked.
        certificate_pem: String,
        admitted: Box<Admitted>,
    },
    Refused {
        reason: String,
    },
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted { admitted, .. } => f.debug_tuple("Admitted").field(admitted).finish(),
            Self::Refused { reason } => f.debug_tuple("Refused").field(reason).finish(),
        }
    }
}

/// A message that can be sent, with what is checked of one that came.
pub trait Message: Serialize + DeserializeOwned {
    fn check(&self) -> Result<(), String>;
}

impl Message for Ask {
    fn check(&self) -> Result<(), String> {
        if !is_token(self.token.as_bytes()) {
            return Err("the token is not valid".to_owned());
        }
        self.request.check().map_err(|error| error.to_string())
    }
}

impl Message for Answer {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Admitted { admitted, .. } => admitted.check().map_err(|error| error.to_string()),
            Self::Refused { .. } => Ok(()),
        }
    }
}

impl Answer {
    pub(crate) fn refused(reason: &str) -> Self {
        Self::Refused {
            reason: reason.chars().take(REASON_LEN_CHARS_MAX).collect(),
        }
    }
}

/// A whole frame.
pub fn encode(message: &impl Message) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; LEN_LEN_BYTES];
    serde_json::to_writer(&mut frame, message)
        .map_err(|error| FrameError::Content(error.to_string()))?;
    let len_bytes = frame.len() - LEN_LEN_BYTES;
    let len = check_len(len_bytes as u64)? as u32;
    frame[..LEN_LEN_BYTES].copy_from_slice(&len.to_be_bytes());
    Ok(frame)
}

/// The message at the front of `bytes`, and what follows it.
pub fn decode<T: Message>(bytes: &[u8]) -> Result<(T, &[u8]), FrameError> {
    let (len, rest) = bytes
        .split_first_chunk::<LEN_LEN_BYTES>()
        .ok_or(FrameError::CutOff)?;
    let len = check_len(u64::from(u32::from_be_bytes(*len)))?;
    let (json, rest) = rest.split_at_checked(len).ok_or(FrameError::CutOff)?;
    Ok((decode_json(json)?, rest))
}

fn check_len(len_bytes: u64) -> Result<usize, FrameError> {
    match usize::try_from(len_bytes) {
        Ok(len) if len <= FRAME_LEN_BYTES_MAX => Ok(len),
        _ => Err(FrameError::TooLong { len_bytes }),
    }
}

fn decode_json<T: Message>(json: &[u8]) -> Result<T, FrameError> {
    let message: T =
        serde_json::from_slice(json).map_err(|error| FrameError::Content(error.to_string()))?;
    message.check().map_err(FrameError::Content)?;
    Ok(message)
}

pub(crate) async fn read<T: Message>(from: &mut (impl AsyncRead + Unpin)) -> Result<T, FrameError> {
    let told = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => FrameError::CutOff,
        _ => FrameError::Io(error),
    };
    let mut len = [0; LEN_LEN_BYTES];
    from.read_exact(&mut len).await.map_err(told)?;
    let len = check_len(u64::from(u32::from_be_bytes(len)))?;
    let mut json = vec![0; len];
    from.read_exact(&mut json).await.map_err(told)?;
    decode_json(&json)
}

pub(crate) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    message: &impl Message,
) -> Result<(), FrameError> {
    let frame = encode(message)?;
    to.write_all(&frame).await.map_err(FrameError::Io)?;
    to.flush().await.map_err(FrameError::Io)
}
