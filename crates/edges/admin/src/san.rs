//! LUNs, groups, initiators and their sessions: JSON, routes, and what they ask of a node.

use cairn_config::{OsType, VolumeName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};

use crate::api::ErrorDetail;
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Force, Parameters, Url, UrlParts, absent, create, delete, endpoints, get,
    patch, plain_name, post, put, remove, text, texts_in_path,
};
use crate::server::Table;

/// Space reservation of a LUN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LunReserve {
    /// Thin: the LUN takes space as it is written, while the pool has space.
    #[default]
    None,
    /// Thick: the whole size is reserved for the LUN.
    Full,
}

/// A group that sees a LUN, and the LUN's number for it.
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
    /// Space that the LUN uses.
    pub used_bytes: u64,
    #[serde(default)]
    pub reserve: LunReserve,
    pub block_bytes: u32,
    /// Writeback: writes may be acknowledged before they are stable.
    pub write_cache: bool,
    pub read_only: bool,
    pub online: bool,
    /// Free space of the volume, in percent, at which hosts get a unit attention; 0: never.
    #[serde(default)]
    pub soft_threshold_percent: u8,
    /// NAA identifier of the LUN: 32 hexadecimal digits.
    pub naa: String,
    /// The IQN of its target.
    pub target: String,
    pub created_seconds: i64,
    pub maps: Vec<LunMapView>,
    /// Portals of the target on all nodes, `ADDRESS:PORT` each; empty while iSCSI is not served.
    #[serde(default)]
    pub portals: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunList {
    pub luns: Vec<LunView>,
}

/// A LUN to create.
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
    /// `full` is refused if the pool has too little space, and in a cluster.
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

/// Changes of a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunSet {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096, maximum = 1125899906842624u64, multiple_of = 4096)]
    pub size_bytes: Option<u64>,
    /// Allow a smaller size; data beyond it is lost.
    #[serde(default)]
    pub shrink: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<bool>,
    /// Free space of the volume, in percent, at which hosts get a unit attention, 1 to 99; 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 99)]
    pub soft_threshold_percent: Option<u8>,
    /// `none` releases the reserved space. Only a new LUN can reserve space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<LunReserve>,
}

/// The clone of a LUN to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunClone {
    /// The clone's name, in the same volume.
    #[schema(
        min_length = 1,
        max_length = 63,
        pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )]
    pub name: String,
    /// The snapshot of the volume to clone from; left out: the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub snapshot: Option<String>,
}

/// The state to which a LUN is rolled back.
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

/// The map of a LUN to a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunMapSet {
    /// The LUN's number for the group; by default the lowest free number.
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
    /// Operating system of the hosts, if set.
    #[schema(value_type = Option<String>, example = "linux")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsType>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IgroupList {
    pub igroups: Vec<IgroupView>,
}

/// The initiators of a group.
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
    /// Operating system of the hosts: linux, windows or vmware. LUNs with 512-byte blocks then report physical blocks of 4 KiB, so
    /// that partitions and file systems are aligned.
    #[schema(value_type = Option<String>, example = "linux", pattern = "^(linux|windows|vmware)$")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsType>,
}

/// CHAP settings of an initiator; secrets are never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorView {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub name: String,
    pub chap_user: String,
    /// The target's user for mutual CHAP, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorList {
    pub initiators: Vec<InitiatorView>,
}

/// CHAP users and secrets of an initiator.
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
    /// Left out for a discovery session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub address: String,
    /// The target port group of the session; in a cluster each node has its own.
    pub portal_group: u16,
    /// Number of connections; `address` is that of the first one.
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

endpoints! {
    /// Lists all LUNs of all volumes.
    LUN_LIST: Endpoint<(), (), LunList> = get("/api/v1/luns").list("luns", &["volume", "name"]).of_all_nodes();

    /// Creates a LUN. No host sees it until it is mapped.
    LUN_CREATE: Endpoint<(), LunCreate, LunView> = create("/api/v1/luns");

    /// Shows one LUN.
    LUN_SHOW: Endpoint<LunAt, (), LunView> = get("/api/v1/luns/{volume}/{lun}");

    /// Changes a LUN: size, online, read-only, writeback.
    LUN_SET: Endpoint<LunAt, LunSet, LunView> = patch("/api/v1/luns/{volume}/{lun}");

    /// Clones a LUN at once, without copying its blocks. No host sees the clone until it is mapped.
    LUN_CLONE: Endpoint<LunAt, LunClone, LunView> = create("/api/v1/luns/{volume}/{lun}/clone");

    /// Rolls an offline LUN back to a snapshot of its volume at once, with its size, without copying blocks.
    LUN_RESTORE: Endpoint<LunAt, LunRestore, LunView> = post("/api/v1/luns/{volume}/{lun}/restore");

    /// Deletes a LUN and all its data. A mapped LUN is deleted only with `force=true`.
    LUN_DELETE: Endpoint<(LunAt, Force), (), ()> = delete("/api/v1/luns/{volume}/{lun}");

    /// Maps a LUN to an initiator group.
    LUN_MAP: Endpoint<(LunAt, IgroupName), LunMapSet, LunView> = put("/api/v1/luns/{volume}/{lun}/maps/{igroup}");

    /// Unmaps a LUN from an initiator group.
    LUN_UNMAP: Endpoint<(LunAt, IgroupName), (), LunView> = remove("/api/v1/luns/{volume}/{lun}/maps/{igroup}");

    /// Lists all initiator groups.
    IGROUP_LIST: Endpoint<(), (), IgroupList> = get("/api/v1/igroups").list("igroups", &["volume", "name"]).of_all_nodes();

    /// Creates a group, or replaces its initiators.
    IGROUP_SET: Endpoint<(VolumeName, IgroupName), IgroupSet, IgroupView> = put("/api/v1/igroups/{volume}/{igroup}");

    /// Removes a group without mapped LUNs.
    IGROUP_REMOVE: Endpoint<(VolumeName, IgroupName), (), ()> = delete("/api/v1/igroups/{volume}/{igroup}");

    /// Lists the initiators with a CHAP secret.
    INITIATOR_LIST: Endpoint<(), (), InitiatorList> = get("/api/v1/initiators").list("initiators", &["volume", "name"]).of_all_nodes();

    /// Sets the CHAP user and secret of an initiator, and those of the target for mutual CHAP.
    INITIATOR_SET: Endpoint<(VolumeName, InitiatorName), InitiatorSet, InitiatorView> = put("/api/v1/initiators/{volume}/{initiator}");

    /// Removes the CHAP user and secret of an initiator: its name alone then admits it.
    INITIATOR_REMOVE: Endpoint<(VolumeName, InitiatorName), (), ()> = delete("/api/v1/initiators/{volume}/{initiator}");

    /// Lists the connected initiators.
    SESSION_LIST: Endpoint<(), (), SessionList> = get("/api/v1/iscsi/sessions").list("sessions", &["initiator", "target", "address"]).of_all_nodes();

}

texts_in_path! {
    /// An initiator group of a volume, by its name.
    IgroupName, plain_name(), "no group has the name in the path";
    /// An initiator with a secret in a volume, by its name.
    InitiatorName, text(5, 223).pattern(Some(r"^(iqn|eui|naa)\.[a-z0-9.:-]+$")), "no initiator has the name in the path";
}

impl Argument for LunAt {
    fn describe(to: &mut Parameters) {
        to.in_path(plain_name());
        to.in_path(plain_name());
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let volume = VolumeName::read(from)?;
        let name = from.in_path(|| absent("no LUN has the name in the path"))?;
        Ok(Self { volume, name })
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        self.volume.write(to)?;
        to.fill(&self.name);
        Ok(())
    }
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn SanControl>(|node| node.san().ok_or_else(|| absent("this server has no LUNs")))
        .on(LUN_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(LunList {
                    luns: node.luns().await?,
                })
            })
        })
        .on(LUN_CREATE, |node, (), create| node.lun_create(create))
        .on(LUN_SHOW, |node, at, ()| node.lun(at))
        .on(LUN_SET, |node, at, set| node.lun_set(at, set))
        .on(LUN_CLONE, |node, at, clone| node.lun_clone(at, clone))
        .on(LUN_RESTORE, |node, at, restore| {
            node.lun_restore(at, restore)
        })
        .on(LUN_DELETE, |node, (at, Force(force)), ()| {
            node.lun_delete(at, force)
        })
        .on(LUN_MAP, |node, (at, IgroupName(igroup)), map| {
            node.lun_map(at, igroup, map)
        })
        .on(LUN_UNMAP, |node, (at, IgroupName(igroup)), ()| {
            node.lun_unmap(at, igroup)
        })
        .on(IGROUP_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(IgroupList {
                    igroups: node.igroups().await?,
                })
            })
        })
        .on(IGROUP_SET, |node, (volume, IgroupName(name)), set| {
            node.igroup_set(volume, name, set)
        })
        .on(IGROUP_REMOVE, |node, (volume, IgroupName(name)), ()| {
            node.igroup_remove(volume, name)
        })
        .on(INITIATOR_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(InitiatorList {
                    initiators: node.initiators().await?,
                })
            })
        })
        .on(INITIATOR_SET, |node, (volume, InitiatorName(name)), set| {
            node.initiator_set(volume, name, set)
        })
        .on(
            INITIATOR_REMOVE,
            |node, (volume, InitiatorName(name)), ()| node.initiator_remove(volume, name),
        )
        .on(SESSION_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(SessionList {
                    sessions: node.sessions().await?,
                })
            })
        });
}
