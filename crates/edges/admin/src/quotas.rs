//! Quotas: JSON, routes, and what they ask of a node.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, DIRECTORY, DIRECTORY_CHARS_MAX, Endpoint, Parameters, Url, UrlParts, absent,
    any_text, delete, endpoints, get, number, put,
};
use crate::server::Table;

/// Users, or groups, that one answer lists.
pub const QUOTA_USAGES_MAX: usize = 100_000;

/// The subject of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaOf {
    /// Everything in the directory.
    All,
    User,
    Group,
    /// Each user without an own quota there, except root.
    DefaultUser,
    DefaultGroup,
}

impl QuotaOf {
    /// The word for a query.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::User => "user",
            Self::Group => "group",
            Self::DefaultUser => "default-user",
            Self::DefaultGroup => "default-group",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::All,
            Self::User,
            Self::Group,
            Self::DefaultUser,
            Self::DefaultGroup,
        ];
        all.into_iter().find(|of| of.name() == name)
    }

    /// Whether the subject is one user or group.
    pub fn has_id(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

/// The identity of a quota: its subject and directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaAt {
    /// From the root of the volume, which is `/`.
    pub path: String,
    pub of: QuotaOf,
    /// Id of the user or group.
    pub id: Option<u32>,
}

/// Limits on one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaLimitView {
    /// Hard limit: never exceeded.
    #[serde(default)]
    pub hard: Option<u64>,
    /// Soft limit: may be exceeded for the grace time.
    #[serde(default)]
    pub soft: Option<u64>,
    /// Advisory limit: only reported when exceeded.
    #[serde(default)]
    pub advisory: Option<u64>,
}

/// A quota to set; it replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaSet {
    /// From the root of the volume, which is `/`.
    #[schema(
        max_length = 4096,
        pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"
    )]
    pub path: String,
    pub of: QuotaOf,
    /// Of the user or group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    #[serde(default)]
    pub bytes: QuotaLimitView,
    #[serde(default)]
    pub files: QuotaLimitView,
    /// Whether `bytes` counts stored bytes (after compression, before parity) instead of bytes of files.
    #[serde(default)]
    pub physical: bool,
    /// Grace time: how long soft limits may be exceeded; by default a week.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// A quota with its usage, or the usage if there is no quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaView {
    pub volume: String,
    /// From the root of the volume, which is `/`.
    pub path: String,
    pub of: QuotaOf,
    pub id: Option<u32>,
    pub bytes: QuotaLimitView,
    pub files: QuotaLimitView,
    pub physical: bool,
    pub grace_seconds: u64,
    /// Whether these are the default limits of users, or groups, without own limits.
    pub inherited: bool,
    /// The usage to which limits on bytes apply.
    pub used_bytes: u64,
    /// Bytes of files, without holes.
    pub logical_bytes: u64,
    /// Stored bytes of these: after compression, before parity.
    pub physical_bytes: u64,
    /// Inodes: files, directories, links and others.
    pub used_files: u64,
    /// End of the grace time, in seconds since 1970; `null` while usage is below the soft limit.
    pub bytes_grace_ends_seconds: Option<u64>,
    pub files_grace_ends_seconds: Option<u64>,
    /// Whether earlier content of the directory is still being counted: the usage is higher than shown.
    pub counting: bool,
    /// Writes and creations that the quota refused since the volume was opened.
    pub refusals: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaList {
    pub quotas: Vec<QuotaView>,
}

/// What a node does with quotas.
pub trait QuotaControl: Send + Sync {
    fn quotas(&self, volume: VolumeName) -> Answer<'_, QuotaList>;
    /// What users, or groups, use in a directory with a quota, or in the volume, whether it limits them or not.
    fn quota_usages(&self, volume: VolumeName, at: QuotaAt) -> Answer<'_, QuotaList>;
    fn quota(&self, volume: VolumeName, at: QuotaAt) -> Answer<'_, QuotaView>;
    fn quota_set(&self, volume: VolumeName, set: QuotaSet) -> Answer<'_, QuotaView>;
    fn quota_remove(&self, volume: VolumeName, at: QuotaAt) -> Answer<'_, ()>;
}

endpoints! {
    /// Lists all quotas of a volume.
    QUOTA_LIST: Endpoint<VolumeName, (), QuotaList> = get("/api/v1/volumes/{name}/quotas").list("quotas", &["path", "of", "id"]);

    /// Sets or replaces a quota. The quota applies once this answers. The existing usage of a directory is counted in the background,
    /// and the quota says so meanwhile.
    QUOTA_SET: Endpoint<VolumeName, QuotaSet, QuotaView> = put("/api/v1/volumes/{name}/quotas");

    /// Shows one quota, or the usage if there is no quota.
    QUOTA_SHOW: Endpoint<(VolumeName, QuotaAt), (), QuotaView> = get("/api/v1/volumes/{name}/quota");

    /// Removes a quota.
    QUOTA_REMOVE: Endpoint<(VolumeName, QuotaAt), (), ()> = delete("/api/v1/volumes/{name}/quota");

    /// Lists the usage of each user, or group (`of=group`), in a directory with a quota, or in the volume.
    QUOTA_USAGES: Endpoint<(VolumeName, UsagesAt), (), QuotaList> = get("/api/v1/volumes/{name}/quota/usages");

}

impl Argument for QuotaAt {
    fn describe(to: &mut Parameters) {
        let path = any_text().max_length(Some(DIRECTORY_CHARS_MAX));
        to.in_query("path", path.pattern(Some(DIRECTORY)));
        let of = any_text().pattern(Some("^(all|user|group|default-user|default-group)$"));
        to.in_query("of", of);
        to.in_query("id", number::<u32>());
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let invalid = |message: String| ControlError::new(ErrorKind::Invalid, message);
        let query = from.query(&["path", "of", "id"])?;
        let one = |key: &str| query.values(key).last().map(str::to_owned);
        let of = one("of").unwrap_or_else(|| "all".to_owned());
        let of = QuotaOf::from_name(&of).ok_or_else(|| {
            invalid(format!(
                "{of:?} is not one of all, user, group, default-user or default-group"
            ))
        })?;
        let id = one("id")
            .map(|id| id.parse::<u32>())
            .transpose()
            .map_err(|_| invalid("the id of a user or group is a number".to_owned()))?;
        Ok(Self {
            path: one("path").unwrap_or_else(|| "/".to_owned()),
            of,
            id,
        })
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask("path", &self.path);
        to.ask("of", self.of.name());
        if let Some(id) = self.id {
            to.ask("id", &id.to_string());
        }
        Ok(())
    }
}

/// Whose usages are listed, users' or groups', and of which directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagesAt(pub QuotaAt);

impl Argument for UsagesAt {
    fn describe(to: &mut Parameters) {
        let path = any_text().max_length(Some(DIRECTORY_CHARS_MAX));
        to.in_query("path", path.pattern(Some(DIRECTORY)));
        to.required("of", any_text().pattern(Some("^(user|group)$")));
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        QuotaAt::read(from).map(Self)
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        self.0.write(to)
    }
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn QuotaControl>(|node| {
            node.quotas()
                .ok_or_else(|| absent("this server has no quotas"))
        })
        .on(QUOTA_LIST, |node, volume, ()| node.quotas(volume))
        .on(QUOTA_SET, |node, volume, set| node.quota_set(volume, set))
        .on(QUOTA_SHOW, |node, (volume, at), ()| node.quota(volume, at))
        .on(QUOTA_REMOVE, |node, (volume, at), ()| {
            node.quota_remove(volume, at)
        })
        .on(QUOTA_USAGES, |node, (volume, UsagesAt(at)), ()| {
            node.quota_usages(volume, at)
        });
}
