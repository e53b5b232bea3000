//! The settings of volumes and exports, as the pool file stores them and the command line and the admin API
//! write them.
//!
//! Owns: the words, their limits, their defaults.
//! Must not know: what a setting does, or where it comes from.

mod class;
mod export;
mod host;
mod hours;
mod limit;
mod logouts;
mod maintenance;
mod pattern;
mod tier;
mod user;
mod volume;

pub use class::{
    BYTES_PER_SECOND_MIN, CLASS_NAME_LEN_BYTES_MAX, CLASSES_MAX, CREDIT_SECONDS_DEFAULT,
    ClassChoice, ClassName, ClassSpec, LATENCY_GOAL_US_MAX, LATENCY_GOAL_US_MIN, NO_CLASS,
    OPERATIONS_PER_SECOND_MIN, RATE_MAX, RateSpec, built_in,
};
pub use export::{
    ANONYMOUS_ID_DEFAULT, Access, CLIENTS_PER_EXPORT_MAX, ClientNet, ExportRule, Squash,
};
pub use host::OsType;
pub use limit::{PART_LIMITS_MAX, PartLimit, VolumePart};
pub use logouts::{LOGOUTS_MAX, Logout, Logouts};
pub use maintenance::{
    Maintenance, MaintenanceWindow, SCRUB_EVERY_HOURS_MAX, ScrubEvery, WINDOW_SPANS_MAX,
};
pub use pattern::{FILE_PATTERNS_LEN_BYTES_MAX, FILE_PATTERNS_MAX, FilePatterns};
pub use tier::{
    COOLING_DAYS_DEFAULT, COOLING_DAYS_MAX, COOLING_DAYS_MIN, CoolingDays, MinAge,
    TIER_NAME_LEN_BYTES_MAX, TIER_URL_LEN_BYTES_MAX, TIERS_MAX, TierFilter, TierName, Tiering,
};
pub use user::{
    PASSWORD_HASH_LEN_BYTES_MAX, PasswordHash, Role, TOKEN_USER, USER_NAME_LEN_BYTES_MAX,
    USERS_MAX, UserName, UserRecord,
};
pub use volume::{
    AccessPattern, Compression, Dedupe, MediaChoice, Protection, Protections, SizeLimit,
    VOLUME_NAME_LEN_BYTES_MAX, VolumeName, VolumeSettings,
};

/// Letters, digits, '.', '_' and '-', starting with a letter or digit: the rule for names of volumes, classes and users.
fn is_plain_name(text: &str, len_bytes_max: usize) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    begins && text.len() <= len_bytes_max && text.bytes().all(is_plain)
}
