//! The JSON of master keys, and what the API asks of a node for them.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// The master keys that a server knows. Nothing here tells anything of a key but its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MasterKeysView {
    /// Where they come from: `file PATH`, `command LINE`; `null` if the server was given none.
    pub source: Option<String>,
    /// Why they could not be read from there just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The first wraps keys of new volumes. Those that are needed and missing are last.
    pub keys: Vec<MasterKeyView>,
}

/// A master key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MasterKeyView {
    /// 16 hexadecimal digits that follow from the key.
    #[schema(example = "1f0c9b6e52d3a874")]
    pub id: String,
    /// It wraps keys of new volumes.
    pub current: bool,
    /// Whether the server has it. If not, its volumes are not served.
    pub present: bool,
    /// Volumes whose keys are wrapped with it: it must not be thrown away before there are none.
    #[schema(value_type = Vec<String>)]
    pub volumes: Vec<VolumeName>,
    /// The key that secrets are wrapped with (of access keys, of initiators, of file handles) is wrapped with it: nor must it
    /// then.
    #[serde(default)]
    pub secrets: bool,
}

/// What became of the keys of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyRotationView {
    /// Volumes whose keys are wrapped with the current master key now, and were not before.
    #[schema(value_type = Vec<String>)]
    pub wrapped: Vec<VolumeName>,
    /// Volumes whose keys could not be unwrapped.
    pub failed: Vec<KeyFailureView>,
    /// The key that secrets are wrapped with is wrapped with the current master key now, and was not before.
    #[serde(default)]
    pub secrets: bool,
    pub keys: MasterKeysView,
}

/// A volume whose key could not be wrapped anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyFailureView {
    #[schema(value_type = String)]
    pub volume: VolumeName,
    pub why: String,
}

/// How a volume is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncryptionState {
    /// Its bytes are stored as they are.
    None,
    Encrypted,
    /// It is encrypted, and its master key is not there: it is not served.
    Locked,
    /// Its key was erased: nobody can read it any more.
    Erased,
}

impl EncryptionState {
    /// As in JSON; `None` of a volume that is not encrypted.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Encrypted => Some("encrypted"),
            Self::Locked => Some("locked"),
            Self::Erased => Some("erased"),
        }
    }
}

/// How a volume is encrypted, and with the help of which master key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EncryptionView {
    pub state: EncryptionState,
    /// The id of the master key that its key is wrapped with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_key: Option<String>,
}

impl Default for EncryptionView {
    fn default() -> Self {
        Self {
            state: EncryptionState::None,
            master_key: None,
        }
    }
}

/// What a node does with keys.
pub trait KeyControl: Send + Sync {
    /// Reads the master keys anew from where they come from, and lists them.
    fn master_keys(&self) -> Answer<'_, MasterKeysView>;
    /// Reads the master keys anew, and wraps the keys of all volumes with the first.
    fn rotate_keys(&self) -> Answer<'_, KeyRotationView>;
    /// Erases the key of a volume, so that nobody can read that any more.
    fn erase_key(&self, volume: VolumeName) -> Answer<'_, ()>;
}
