//! The settings of volumes and exports, as the pool file stores them and the command line and the admin API
//! write them.
//!
//! Owns: the words, their limits, their defaults.
//! Must not know: what a setting does, or where it comes from.

mod class;
mod export;
mod volume;

pub use class::{
    BYTES_PER_SECOND_MIN, CLASS_NAME_LEN_BYTES_MAX, CLASSES_MAX, CREDIT_SECONDS_DEFAULT,
    ClassChoice, ClassName, ClassSpec, NO_CLASS, OPERATIONS_PER_SECOND_MIN, RATE_MAX, RateSpec,
    built_in,
};
pub use export::{
    ANONYMOUS_ID_DEFAULT, Access, CLIENTS_PER_EXPORT_MAX, ClientNet, ExportRule, Squash,
};
pub use volume::{
    AccessPattern, Compression, Protection, SizeLimit, VOLUME_NAME_LEN_BYTES_MAX, VolumeName,
    VolumeSettings,
};
