//! The JSON of quotas, and what the API asks of a node for them.

use cairn_config::VolumeName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// Users, or groups, that one answer lists.
pub const QUOTA_USAGES_MAX: usize = 100_000;

/// Whose usage a quota is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaOf {
    /// Everything that is in the directory.
    All,
    User,
    Group,
    /// Each user without a quota of their own there; not root.
    DefaultUser,
    DefaultGroup,
}

impl QuotaOf {
    /// As it is written in a query.
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

    /// Whether it is about one user or group.
    pub fn has_id(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

/// Which quota: of whom, in which directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaAt {
    /// From the root of the volume, which is `/`.
    pub path: String,
    pub of: QuotaOf,
    /// Of the user or group.
    pub id: Option<u32>,
}

/// Limits on one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaLimitView {
    /// Never passed.
    #[serde(default)]
    pub hard: Option<u64>,
    /// Passed for the time of grace at most.
    #[serde(default)]
    pub soft: Option<u64>,
    /// Passing it is reported, and nothing else.
    #[serde(default)]
    pub advisory: Option<u64>,
}

/// A quota to set, in the place of one that is there.
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
    /// `bytes` are those stored, after compression and before parity, instead of those of files.
    #[serde(default)]
    pub physical: bool,
    /// For how long soft limits may be passed; a week if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// A quota as it stands, or what is used where there is none.
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
    /// These limits are those of all users, or groups, without any of their own.
    pub inherited: bool,
    /// What the limits on bytes are compared with.
    pub used_bytes: u64,
    /// Bytes of files, without holes.
    pub logical_bytes: u64,
    /// What these take after compression, before parity.
    pub physical_bytes: u64,
    /// Files, directories, links and all else that has an inode.
    pub used_files: u64,
    /// When the grace ends, in seconds since 1970; `null` while the soft limit is not passed.
    pub bytes_grace_ends_seconds: Option<u64>,
    pub files_grace_ends_seconds: Option<u64>,
    /// What was in the directory before it had a quota is still being counted: it uses more than is said here.
    pub counting: bool,
    /// Writes, names and such that it refused since the volume was opened.
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
