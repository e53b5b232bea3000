//! Turns the words of the config into those of the engine and of the exports, each in one place.

use cairn_config::{
    Access, AccessPattern, Compression, ExportRule, Protection, Squash, VolumeSettings,
};
use cairn_erasure::Code;
use cairn_exports::ClientRule;
use cairn_fs::Policy;

pub fn policy(settings: &VolumeSettings) -> Policy {
    Policy {
        protection: protection(settings.protection),
        access_pattern: match settings.access_pattern {
            AccessPattern::Concurrent => cairn_fs::AccessPattern::Concurrent,
            AccessPattern::Streaming => cairn_fs::AccessPattern::Streaming,
            AccessPattern::Random => cairn_fs::AccessPattern::Random,
        },
        compression: match settings.compression {
            Compression::None => cairn_segment::Compression::None,
            Compression::Lz4 => cairn_segment::Compression::Lz4,
            Compression::Zstd(level) => cairn_segment::Compression::Zstd(i32::from(level)),
        },
        size_limit_bytes: settings.size_limit.bytes(),
        relatime: true,
    }
}

pub fn protection(protection: Protection) -> cairn_segment::Protection {
    match protection {
        Protection::Default => cairn_segment::Protection::Default,
        Protection::None => cairn_segment::Protection::None,
        Protection::Plus(parity) => cairn_segment::Protection::Plus(parity),
        Protection::Mirror(copies) => cairn_segment::Protection::Mirror(copies),
    }
}

pub fn client_rule(rule: &ExportRule) -> ClientRule {
    ClientRule {
        clients: rule.client.net(),
        read_only: match rule.access {
            Access::ReadOnly => true,
            Access::ReadWrite => false,
        },
        squash: match rule.squash {
            Squash::Root => cairn_exports::Squash::Root,
            Squash::All => cairn_exports::Squash::All,
            Squash::None => cairn_exports::Squash::None,
        },
        anonymous_uid: rule.anonymous_uid,
        anonymous_gid: rule.anonymous_gid,
        require_reserved_port: rule.require_reserved_port,
    }
}

/// What a code means to people.
pub fn layout(code: Code) -> String {
    match (code.data(), code.parity()) {
        (_, 0) => "1 copy, NO REDUNDANCY".to_owned(),
        (1, parity) => format!("{} mirrors", u16::from(parity) + 1),
        (data, parity) => format!("{data}+{parity}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named() {
        let cases: &[(u8, u8, &str)] = &[
            (1, 0, "1 copy, NO REDUNDANCY"),
            (1, 1, "2 mirrors"),
            (1, 2, "3 mirrors"),
            (2, 2, "2+2"),
            (16, 2, "16+2"),
        ];
        for (data, parity, want) in cases {
            assert_eq!(layout(Code::new(*data, *parity).unwrap()), *want);
        }
    }
}
