//! Master keys: JSON, routes, and what they ask of a node.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, absent, act, delete, endpoints, get};
use crate::server::Table;

/// The master keys of a server. Only their ids are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MasterKeysView {
    /// Their source: `file PATH` or `command LINE`; `null` if the server has none.
    pub source: Option<String>,
    /// Why the source could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The first key wraps keys of new volumes. Missing keys that volumes need are last.
    pub keys: Vec<MasterKeyView>,
}

/// A master key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MasterKeyView {
    /// 16 hexadecimal digits, derived from the key.
    #[schema(example = "1f0c9b6e52d3a874")]
    pub id: String,
    /// Whether it wraps keys of new volumes.
    pub current: bool,
    /// Whether the server has the key. Otherwise the key's volumes are not served.
    pub present: bool,
    /// Volumes whose keys it wraps: keep the master key while there are any.
    #[schema(value_type = Vec<String>)]
    pub volumes: Vec<VolumeName>,
    /// Whether it wraps the key of the pool's secrets (access keys, initiators, file handles): keep the master key while it does.
    #[serde(default)]
    pub secrets: bool,
}

/// The result of a key rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyRotationView {
    /// Volumes whose keys were rewrapped with the current master key.
    #[schema(value_type = Vec<String>)]
    pub wrapped: Vec<VolumeName>,
    /// Volumes whose keys could not be unwrapped.
    pub failed: Vec<KeyFailureView>,
    /// Whether the key of the pool's secrets was rewrapped with the current master key.
    #[serde(default)]
    pub secrets: bool,
    pub keys: MasterKeysView,
}

/// A volume whose key could not be rewrapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyFailureView {
    #[schema(value_type = String)]
    pub volume: VolumeName,
    pub why: String,
}

/// The encryption state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncryptionState {
    /// The volume is not encrypted.
    None,
    Encrypted,
    /// The volume is encrypted and not served, because its master key is missing.
    Locked,
    /// The volume's key was erased: the volume is unreadable for ever.
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

/// The encryption state of a volume, and its master key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EncryptionView {
    pub state: EncryptionState,
    /// The id of the master key that wraps the volume's key.
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

endpoints! {
    /// Rereads the server's master keys from their source, and lists their ids; never the keys themselves.
    MASTER_KEY_LIST: Endpoint<(), (), MasterKeysView> = get("/api/v1/master-keys");

    /// Wraps the keys of all encrypted volumes with the first master key, without reading or writing data.
    MASTER_KEY_ROTATE: Endpoint<(), (), KeyRotationView> = act("/api/v1/master-keys/rotate");

    /// Erases the key of a volume. The volume is unreadable for ever once this answers; it still has to be deleted.
    VOLUME_KEY_ERASE: Endpoint<VolumeName, (), ()> = delete("/api/v1/volumes/{name}/key");

}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn KeyControl>(|node| {
            node.keys().ok_or_else(|| absent("this server has no keys"))
        })
        .on(MASTER_KEY_LIST, |node, (), ()| node.master_keys())
        .on(MASTER_KEY_ROTATE, |node, (), ()| node.rotate_keys())
        .on(VOLUME_KEY_ERASE, |node, volume, ()| node.erase_key(volume));
}
