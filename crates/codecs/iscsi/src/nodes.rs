//! What nodes of a cluster ask one another about targets, and what they answer.
//!
//! A frame is its length in bytes, four of them, big-endian, and JSON. A node is trusted with the volumes that it owns, and with
//! nothing else: what it says is checked as what an initiator says is.

use std::net::SocketAddr;

use cairn_base::VolumeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::is_iscsi_name;

/// The longest frame: a volume has one target, and a name is short.
pub const FRAME_LEN_BYTES_MAX: usize = 1 << 20;
/// Longest user and secret of CHAP.
const SECRET_LEN_BYTES_MAX: usize = 255;

/// Why a frame is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes, where {FRAME_LEN_BYTES_MAX} are the most")]
    TooLong(u32),
    #[error("a frame that cannot be read: {0}")]
    Malformed(String),
    #[error("a frame with {0} that cannot be")]
    Invalid(&'static str),
}

/// What a node asks another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Answered with [`Elsewhere`].
    Targets { initiator: String },
    /// Answered with [`LocateAnswer`].
    Find {
        target: String,
        /// That the node owns, as far as the one that asks knows.
        volumes: Vec<VolumeId>,
    },
    /// Answered with whether that is done; the bytes of the connection follow.
    Serve(Caller),
}

/// Whose connection it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    pub volume: VolumeId,
    /// Where the client came in.
    pub local: SocketAddr,
    /// The target port group of that place; never 0.
    pub group: u16,
    /// Of the next answer.
    pub status_number: u32,
}

/// A user and its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    pub user: String,
    pub secret: String,
}

/// Secrets get into no log.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// What an initiator has to prove, and what the target answers with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    pub chap: Secret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<Secret>,
}

/// The targets and secrets that another node has for an initiator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// Names of the targets that it sees.
    pub targets: Vec<String>,
    pub initiator: Option<Proof>,
}

/// Where a target is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocateAnswer {
    pub volume: Option<VolumeId>,
    /// The node serves all volumes that it was asked about, and knows their targets.
    pub is_sure: bool,
}

/// What can be in a frame.
pub trait Frame: Serialize + DeserializeOwned {
    /// Whether it is what a node may say.
    fn check(&self) -> Result<(), FrameError>;
}

impl Frame for Ask {
    fn check(&self) -> Result<(), FrameError> {
        match self {
            Self::Targets { initiator: name } | Self::Find { target: name, .. } => {
                require_name(name)
            }
            Self::Serve(Caller { group: 0, .. }) => Err(FrameError::Invalid("a group")),
            Self::Serve(_) => Ok(()),
        }
    }
}

impl Frame for Elsewhere {
    fn check(&self) -> Result<(), FrameError> {
        self.targets
            .iter()
            .try_for_each(|name| require_name(name))?;
        let proofs = self.initiator.iter();
        let secrets = proofs.flat_map(|proof| [Some(&proof.chap), proof.mutual.as_ref()]);
        let is_plain = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        let is_right = |secret: &Secret| {
            let lens = [secret.user.len(), secret.secret.len()];
            lens.iter()
                .all(|len| (1..=SECRET_LEN_BYTES_MAX).contains(len))
                && is_plain(&secret.user)
        };
        match secrets.flatten().all(is_right) {
            true => Ok(()),
            false => Err(FrameError::Invalid("a secret")),
        }
    }
}

impl Frame for LocateAnswer {
    fn check(&self) -> Result<(), FrameError> {
        Ok(())
    }
}

impl Frame for bool {
    fn check(&self) -> Result<(), FrameError> {
        Ok(())
    }
}

/// Names come into the text that initiators are sent, where other bytes would be keys of their own.
fn require_name(name: &str) -> Result<(), FrameError> {
    match is_iscsi_name(name) {
        true => Ok(()),
        false => Err(FrameError::Invalid("a name")),
    }
}

/// How long the text is that follows, by the first bytes of a frame.
pub fn frame_len_bytes(head: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_be_bytes(head);
    match usize::try_from(len) {
        Ok(len_bytes) if len_bytes <= FRAME_LEN_BYTES_MAX => Ok(len_bytes),
        _ => Err(FrameError::TooLong(len)),
    }
}

/// Takes the text of a frame.
pub fn decode_frame<T: Frame>(text: &[u8]) -> Result<T, FrameError> {
    let value: T =
        serde_json::from_slice(text).map_err(|error| FrameError::Malformed(error.to_string()))?;
    value.check()?;
    Ok(value)
}

/// A frame with its length.
pub fn encode_frame(value: &impl Frame) -> Result<Vec<u8>, FrameError> {
    let text =
        serde_json::to_vec(value).map_err(|error| FrameError::Malformed(error.to_string()))?;
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    frame_len_bytes(len.to_be_bytes())?;
    let mut frame = len.to_be_bytes().to_vec();
    frame.extend(text);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        Caller {
            volume: VolumeId(7),
            local: "[fe80::1]:3260".parse().unwrap(),
            group: 3,
            status_number: 2,
        }
    }

    #[test]
    fn frames_are_read_as_they_are_written_or_refused() {
        let ask = Ask::Serve(caller());
        let frame = encode_frame(&ask).unwrap();
        let (head, text) = frame.split_first_chunk().unwrap();
        assert_eq!(frame_len_bytes(*head), Ok(text.len()));
        assert_eq!(decode_frame::<Ask>(text), Ok(ask));
        for len in 0..text.len() {
            assert!(decode_frame::<Ask>(&text[..len]).is_err(), "{len}");
        }
        // A length that nobody sends costs nothing.
        assert_eq!(
            frame_len_bytes([0xff; 4]),
            Err(FrameError::TooLong(u32::MAX))
        );
        assert_eq!(frame_len_bytes([0, 0x10, 0, 0]), Ok(1 << 20));
        assert!(frame_len_bytes([0, 0x10, 0, 1]).is_err());
    }

    #[test]
    fn what_no_node_says_is_refused() {
        let group = Ask::Serve(Caller {
            group: 0,
            ..caller()
        });
        assert_eq!(group.check(), Err(FrameError::Invalid("a group")));
        let name = "iqn.2025-11.test:host";
        // A second key in a name.
        for (name, want) in [
            (name, true),
            ("", false),
            ("iqn.2025-11.a\0TargetAddress=x", false),
        ] {
            let asks = [
                Ask::Targets {
                    initiator: name.to_owned(),
                },
                Ask::Find {
                    target: name.to_owned(),
                    volumes: vec![VolumeId(7)],
                },
            ];
            for ask in asks {
                assert_eq!(ask.check().is_ok(), want, "{name}");
            }
            let told = Elsewhere {
                targets: vec![name.to_owned()],
                initiator: None,
            };
            assert_eq!(told.check().is_ok(), want, "{name}");
        }
        let proof = |user: &str, secret: &str| Elsewhere {
            targets: Vec::new(),
            initiator: Some(Proof {
                chap: Secret {
                    user: user.to_owned(),
                    secret: secret.to_owned(),
                },
                mutual: None,
            }),
        };
        let long = "x".repeat(256);
        for (user, secret, want) in [
            ("host", "a secret of a host", true),
            ("", "a secret of a host", false),
            ("host", "", false),
            ("host", &*long, false),
            ("a\nb", "a secret of a host", false),
        ] {
            assert_eq!(proof(user, secret).check().is_ok(), want, "{user} {secret}");
        }
        assert!(!format!("{:?}", proof("host", "very secret")).contains("very"));
        for text in [&b"{\"forget\": {}}"[..], b"{\"find\": {}}", b"[]", b"\xff"] {
            assert!(decode_frame::<Ask>(text).is_err());
        }
        let more = br#"{"targets":[],"initiator":null,"more":1}"#;
        assert!(decode_frame::<Elsewhere>(more).is_err());
    }
}
