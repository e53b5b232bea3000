//! The JSON of LUNs, groups, initiators and sessions, and what the API asks of a node for them.

use cairn_config::{OsType, VolumeName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};

use crate::control::Answer;

/// What is set aside for a LUN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LunReserve {
    /// Nothing: it takes space as it is written, if there is any.
    #[default]
    None,
    /// All its size: others get no space that it needs.
    Full,
}

/// Which group sees a LUN, and as which number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunMapView {
    pub igroup: String,
    pub number: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunView {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub name: String,
    pub size_bytes: u64,
    /// What it takes of the volume; a LUN is thin.
    pub used_bytes: u64,
    #[serde(default)]
    pub reserve: LunReserve,
    pub block_bytes: u32,
    /// Writes may be answered before they are stable.
    pub write_cache: bool,
    pub read_only: bool,
    pub online: bool,
    /// Hosts are told when no more than this part of the volume's space is free; 0: they are not.
    #[serde(default)]
    pub soft_threshold_percent: u8,
    /// The identity that hosts see, its NAA: 32 hexadecimal digits.
    pub naa: String,
    /// The target that it is behind.
    pub target: String,
    pub created_seconds: i64,
    pub maps: Vec<LunMapView>,
    /// Where hosts find the target, `ADDRESS:PORT` each, of all nodes; empty where iSCSI is not served yet.
    #[serde(default)]
    pub portals: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunList {
    pub luns: Vec<LunView>,
}

/// A LUN to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunCreate {
    #[schema(value_type = String, example = "main", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volume: VolumeName,
    #[schema(
        min_length = 1,
        max_length = 63,
        pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )]
    pub name: String,
    #[schema(minimum = 4096, maximum = 1125899906842624u64, multiple_of = 4096)]
    pub size_bytes: u64,
    #[serde(default)]
    #[schema(schema_with = block_bytes)]
    pub block_bytes: Option<u32>,
    #[serde(default)]
    pub write_cache: bool,
    /// Refused if there is not so much space, and in a cluster.
    #[serde(default)]
    pub reserve: LunReserve,
}

/// The two sizes that blocks can have; the derived schema knows bounds of numbers only.
fn block_bytes() -> Object {
    let kinds = [Type::Integer, Type::Null].into_iter();
    let sizes = [Value::from(512), Value::from(4096), Value::Null];
    ObjectBuilder::new()
        .schema_type(kinds.collect::<SchemaType>())
        .enum_values(Some(sizes))
        .description(Some("512 (the default) or 4096."))
        .build()
}

/// What to change about a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunSet {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096, maximum = 1125899906842624u64, multiple_of = 4096)]
    pub size_bytes: Option<u64>,
    /// A smaller size is meant: what lies beyond it is gone.
    #[serde(default)]
    pub shrink: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<bool>,
    /// Hosts are told when no more than this part of the volume's space is free, 1 to 99; 0: they are not told any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 99)]
    pub soft_threshold_percent: Option<u8>,
    /// `none` gives free what is set aside for it. Only a new LUN can have space set aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<LunReserve>,
}

/// The clone to make of a LUN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunClone {
    /// Its name, in the same volume.
    #[schema(
        min_length = 1,
        max_length = 63,
        pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )]
    pub name: String,
    /// As the LUN was in this snapshot of the volume; as it is now, if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub snapshot: Option<String>,
}

/// What a LUN is to have again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunRestore {
    /// The snapshot of the volume.
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub snapshot: String,
}

/// How a group is to see a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunMapSet {
    /// The first that is free, if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1023)]
    pub number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IgroupView {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub name: String,
    pub initiators: Vec<String>,
    /// What runs on its hosts, if that was said.
    #[schema(value_type = Option<String>, example = "linux")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsType>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IgroupList {
    pub igroups: Vec<IgroupView>,
}

/// The initiators that a group is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IgroupSet {
    #[schema(
        max_items = 64,
        min_length = 5,
        max_length = 223,
        pattern = r"^(iqn|eui|naa)\.[a-z0-9.:-]+$"
    )]
    pub initiators: Vec<String>,
    /// What runs on its hosts: linux, windows or vmware. LUNs of 512-byte blocks tell them of physical blocks of 4 KiB then, so
    /// that what they make on a LUN is aligned.
    #[schema(value_type = Option<String>, example = "linux", pattern = "^(linux|windows|vmware)$")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsType>,
}

/// What is set for an initiator; secrets are never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorView {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub name: String,
    pub chap_user: String,
    /// What the target calls itself, if it can prove who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorList {
    pub initiators: Vec<InitiatorView>,
}

/// Users and secrets of an initiator.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorSet {
    #[schema(min_length = 1, max_length = 255)]
    pub chap_user: String,
    #[schema(min_length = 12, max_length = 255)]
    pub chap_secret: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub mutual_user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 12, max_length = 255)]
    pub mutual_secret: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    pub initiator: String,
    /// None in a session that only asks which targets there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub address: String,
    /// The number of the target port group through which it came: in a cluster each node has its own.
    pub portal_group: u16,
    /// Connections that it has now; `address` is that of the first one.
    pub connections: u32,
    pub begun_seconds: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<SessionView>,
}

/// A LUN by its volume and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunAt {
    pub volume: VolumeName,
    pub name: String,
}

/// What a node does with LUNs. Changes are durable when they are answered.
pub trait SanControl: Send + Sync {
    fn luns(&self) -> Answer<'_, Vec<LunView>>;
    fn lun(&self, at: LunAt) -> Answer<'_, LunView>;
    fn lun_create(&self, create: LunCreate) -> Answer<'_, LunView>;
    fn lun_clone(&self, at: LunAt, clone: LunClone) -> Answer<'_, LunView>;
    fn lun_restore(&self, at: LunAt, restore: LunRestore) -> Answer<'_, LunView>;
    fn lun_set(&self, at: LunAt, set: LunSet) -> Answer<'_, LunView>;
    fn lun_delete(&self, at: LunAt, force: bool) -> Answer<'_, ()>;
    fn lun_map(&self, at: LunAt, igroup: String, map: LunMapSet) -> Answer<'_, LunView>;
    fn lun_unmap(&self, at: LunAt, igroup: String) -> Answer<'_, LunView>;
    fn igroups(&self) -> Answer<'_, Vec<IgroupView>>;
    fn igroup_set(
        &self,
        volume: VolumeName,
        name: String,
        set: IgroupSet,
    ) -> Answer<'_, IgroupView>;
    fn igroup_remove(&self, volume: VolumeName, name: String) -> Answer<'_, ()>;
    fn initiators(&self) -> Answer<'_, Vec<InitiatorView>>;
    fn initiator_set(
        &self,
        volume: VolumeName,
        name: String,
        set: InitiatorSet,
    ) -> Answer<'_, InitiatorView>;
    fn initiator_remove(&self, volume: VolumeName, name: String) -> Answer<'_, ()>;
    fn sessions(&self) -> Answer<'_, Vec<SessionView>>;
}
