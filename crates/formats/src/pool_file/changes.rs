//! Why a change of a pool is refused.

use super::{POOL_FILE_LEN_BYTES_MAX, VOLUMES_MAX};
use crate::settings::{
    CLASSES_MAX, CLIENTS_PER_EXPORT_MAX, ClassName, ClientNet, PART_LIMITS_MAX, TIERS_MAX,
    TierName, USERS_MAX, UserName, VolumeName, VolumePart,
};

/// Why a change of the pool's volumes was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("there is no volume \"{0}\"")]
    NotFound(VolumeName),
    #[error("there is a volume \"{0}\" already")]
    Exists(VolumeName),
    #[error("the key of volume \"{volume}\" is that of others, too: {}", volumes_in(.others))]
    SharesKey {
        volume: VolumeName,
        others: Vec<VolumeName>,
    },
    #[error("a pool has at most {VOLUMES_MAX} volumes")]
    TooManyVolumes,
    #[error("an export has at most {CLIENTS_PER_EXPORT_MAX} rules")]
    TooManyRules,
    #[error("volume \"{volume}\" has no limit of {part}")]
    NoLimit {
        volume: VolumeName,
        part: VolumePart,
    },
    #[error("the limit of {part} makes no sense: {problem}")]
    LimitProblem { part: VolumePart, problem: String },
    #[error("a volume has limits of at most {PART_LIMITS_MAX} parts")]
    TooManyLimits,
    #[error("there is no class \"{0}\"")]
    NoClass(ClassName),
    #[error("there is a class \"{0}\" already")]
    ClassExists(ClassName),
    #[error("class \"{0}\" is built in, and stays as it is")]
    ClassBuiltIn(ClassName),
    #[error("class \"{class}\" is in use: by {}", volumes_in(.volumes))]
    ClassInUse {
        class: ClassName,
        volumes: Vec<VolumeName>,
    },
    #[error("a pool has at most {CLASSES_MAX} classes")]
    TooManyClasses,
    #[error("there is no tier \"{0}\"")]
    NoTier(TierName),
    #[error("there is a tier \"{0}\" already")]
    TierExists(TierName),
    #[error("a pool has at most {TIERS_MAX} tiers")]
    TooManyTiers,
    #[error("class \"{class}\": {problem}")]
    ClassProblem { class: ClassName, problem: String },
    #[error("volume \"{volume}\" in class \"{class}\": {problem}")]
    ClassOfVolume {
        volume: VolumeName,
        class: ClassName,
        problem: String,
    },
    #[error("there is no user \"{0}\"")]
    NoUser(UserName),
    #[error("there is a user \"{0}\" already")]
    UserExists(UserName),
    #[error("user \"{0}\" was changed by somebody else meanwhile")]
    UserChanged(UserName),
    #[error("a pool has at most {USERS_MAX} users")]
    TooManyUsers,
    #[error(
        "all volumes and rules together take {len_bytes} bytes in the pool file, which has at most \
         {POOL_FILE_LEN_BYTES_MAX}"
    )]
    TooLong { len_bytes: u64 },
    #[error("the export of \"{volume}\" has no rule for {client}")]
    NoRule {
        volume: VolumeName,
        client: ClientNet,
    },
}

fn volumes_in(volumes: &[VolumeName]) -> String {
    let names: Vec<&str> = volumes.iter().map(VolumeName::as_str).collect();
    names.join(", ")
}
