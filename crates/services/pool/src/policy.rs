//! What a volume's settings ask of the engine.

use cairn_formats::settings::{AccessPattern, Compression, Dedupe, VolumeSettings};
use cairn_fs::Policy;

pub fn policy(settings: &VolumeSettings) -> Policy {
    Policy {
        protection: settings.protection,
        own_protection: None,
        access_pattern: match settings.access_pattern {
            AccessPattern::Concurrent => cairn_fs::AccessPattern::Concurrent,
            AccessPattern::Streaming => cairn_fs::AccessPattern::Streaming,
            AccessPattern::Random => cairn_fs::AccessPattern::Random,
        },
        compression: match settings.compression {
            Compression::None => cairn_segment::Compression::None,
            Compression::Lz4 => cairn_segment::Compression::Lz4,
            Compression::Auto => cairn_segment::Compression::Auto,
            Compression::Zstd(level) => cairn_segment::Compression::Zstd(i32::from(level)),
        },
        dedupe: match settings.dedupe {
            Dedupe::Off => cairn_fs::Dedupe::Off,
            Dedupe::On => cairn_fs::Dedupe::On,
            Dedupe::Verify => cairn_fs::Dedupe::Verify,
        },
        media: settings.media.kind(),
        size_limit_bytes: settings.size_limit.bytes(),
        relatime: true,
    }
}
