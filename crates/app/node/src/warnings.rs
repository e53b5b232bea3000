//! Texts of warnings.
//!
//! Owns: each warning's message and next step. Must not know: when a warning is raised (`cairn_pool::health`).

use std::time::Duration;

use cairn_admin::events::Severity;
use cairn_admin::warnings::{WarningKind, WarningView};
use cairn_base::units::format_size;
use cairn_pool::warning::{CacheTrouble, DiskLoss, Warning, Weight};

/// Subjects of warnings that name no volume, node or disk.
const POOL: &str = "pool";
const ETCD: &str = "etcd";
const THIS_NODE: &str = "this node";

fn severity(weight: Weight) -> Severity {
    match weight {
        Weight::Notice => Severity::Info,
        Weight::Degraded => Severity::Warning,
        Weight::Failed => Severity::Error,
    }
}

/// Parts of the memory with their sizes, the largest first.
fn parts_of_memory(parts: &[(&'static str, u64)]) -> String {
    let each = parts
        .iter()
        .map(|(name, bytes)| format!("{} {}", name.replace('_', " "), format_size(*bytes)));
    each.collect::<Vec<_>>().join(", ")
}

/// A warning's text, before the fields for programs are added.
struct WarningText {
    kind: WarningKind,
    subject: String,
    message: String,
    next: String,
}

fn told(
    kind: WarningKind,
    subject: impl Into<String>,
    message: impl Into<String>,
    next: impl Into<String>,
) -> WarningText {
    WarningText {
        kind,
        subject: subject.into(),
        message: message.into(),
        next: next.into(),
    }
}

fn segments(count: u64) -> String {
    match count {
        1 => "1 segment".to_owned(),
        count => format!("{count} segments"),
    }
}

fn minutes(left: Duration) -> String {
    match left.as_secs().div_ceil(60) {
        1 => "1 minute".to_owned(),
        minutes => format!("{minutes} minutes"),
    }
}

fn days(late: Duration) -> String {
    match late.as_secs() / (24 * 3600) {
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}

fn of_volume(volume: &str) -> String {
    format!("volume {volume}")
}

fn of_node(node: &str) -> String {
    format!("node {node}")
}

/// A long flat list, so that a warning without a text does not compile.
fn text(warning: &Warning) -> WarningText {
    match warning {
        Warning::EtcdNoQuorum { healthy, members } => told(
            WarningKind::EtcdNoQuorum,
            ETCD,
            format!(
                "{healthy} of {members} etcd members are healthy, fewer than a majority: volumes cannot change owners, and settings cannot change"
            ),
            "start the nodes whose etcd members do not answer; if most members are lost for good: `cairn cluster recover`",
        ),
        Warning::EtcdUnreachable { why } => told(
            WarningKind::EtcdUnreachable,
            ETCD,
            format!("etcd does not answer this node: {why}"),
            "check that a majority of the etcd members runs, and that this node reaches them",
        ),
        Warning::EtcdMemberDown { member, why } => told(
            WarningKind::EtcdMemberDown,
            format!("etcd member {member}"),
            format!("the etcd member on node {member} is not healthy: {why}"),
            format!(
                "check that etcd runs on node {member}, has disk space and can be reached; stop no other node until then"
            ),
        ),
        Warning::EtcdPlain { addresses } => told(
            WarningKind::EtcdPlain,
            ETCD,
            format!(
                "this cluster uses etcd without TLS ({}): anyone on the network path can read and change the cluster map with its passwords and keys",
                addresses.join(", ")
            ),
            "give etcd a certificate; then stop each node and set etcd's https:// addresses (`etcd` in the node's cluster.json)",
        ),
        Warning::NoLease => told(
            WarningKind::NoLease,
            THIS_NODE,
            "etcd does not renew this node's lease: the node serves no volume",
            "check that a majority of the etcd members runs, and that this node reaches them",
        ),
        Warning::MapKeyDamaged { key } => told(
            WarningKind::MapKeyDamaged,
            key.as_str(),
            format!("key {key} in etcd is damaged"),
            "stop all servers and restore the cluster map from a copy: `cairn cluster recover`",
        ),
        Warning::NodeAway { node } => told(
            WarningKind::NodeAway,
            of_node(node),
            format!("node {node} is away: its lease has expired"),
            "start its server or repair its network; if the node is lost for good: `cairn node replace`",
        ),
        Warning::NodeUnreached { node, why } => told(
            WarningKind::NodeUnreached,
            of_node(node),
            match why {
                Some(why) => {
                    format!("this node cannot reach node {node}, which has a lease: {why}")
                }
                None => format!("this node cannot reach node {node}, which has a lease"),
            },
            "check the network between the two nodes, and firewalls on the internal port",
        ),
        Warning::FolderLow { node } => told(
            WarningKind::FolderLow,
            of_node(node),
            format!(
                "the file system with the cluster folder of node {node} is nearly full: etcd stops when it is full"
            ),
            "free space on that file system; it holds no client data",
        ),
        Warning::VolumesMany {
            node,
            volumes,
            most,
        } => told(
            WarningKind::VolumesMany,
            of_node(node),
            format!(
                "node {node} has {volumes} open volumes; its memory_limit has room for {most}, and the node may exceed it"
            ),
            "set a larger memory_limit on that node, or add a node: volumes then move to nodes with room",
        ),
        Warning::Maintenance { node, left } => told(
            WarningKind::Maintenance,
            of_node(node),
            format!(
                "node {node} is in maintenance for {} more: its disks are not rebuilt until then",
                minutes(*left)
            ),
            format!("`cairn node maintenance off {node}` when it is back"),
        ),
        Warning::KeyMissing { node, volume } => told(
            WarningKind::KeyMissing,
            of_node(node),
            format!(
                "node {node} lacks the master key of volume {volume} and cannot take the volume over"
            ),
            "give this node the master keys that the other nodes have (`cairn key list`)",
        ),
        Warning::VolumeNotServed { volume, why } => told(
            WarningKind::VolumeNotServed,
            of_volume(volume),
            format!("volume {volume} is not served: {why}"),
            "bring the missing disks or nodes back; the server's log has details",
        ),
        Warning::VolumeReadOnly { volume, why } => told(
            WarningKind::VolumeReadOnly,
            of_volume(volume),
            format!("volume {volume} is read-only until its disks have room: {why}"),
            "free some MiB in the file systems of the disks, which other programs may have filled; the volume then becomes writable by itself",
        ),
        Warning::VolumeWithoutOwner { volume, tries } => {
            let tries: Vec<String> = tries
                .iter()
                .map(|(node, why)| format!("node {node}: {why}"))
                .collect();
            let why = match tries.len() {
                0 => "a node takes it over in a moment, if enough nodes are up".to_owned(),
                _ => tries.join("; "),
            };
            told(
                WarningKind::VolumeWithoutOwner,
                of_volume(volume),
                format!("no node owns volume {volume}, and it is not served: {why}"),
                "bring missing nodes and disks back; where disks have no room, free space in their file systems or add a disk. A node then takes the volume over by itself",
            )
        }
        Warning::MetadataShort { volume } => told(
            WarningKind::MetadataShort,
            of_volume(volume),
            format!("the metadata of volume {volume} has too few copies"),
            "wait until the copies are made, or bring the missing disks back",
        ),
        Warning::LogCopiesFew {
            volume,
            copies,
            wanted,
        } => told(
            WarningKind::LogCopiesFew,
            of_volume(volume),
            match copies.saturating_sub(1) {
                0 => format!(
                    "the log of volume {volume} has {copies} of {wanted} copies: the loss of that node loses acknowledged writes"
                ),
                1 => format!(
                    "the log of volume {volume} has {copies} of {wanted} copies: it survives the loss of 1 node"
                ),
                losses => format!(
                    "the log of volume {volume} has {copies} of {wanted} copies: it survives the loss of {losses} nodes"
                ),
            },
            "the missing copies are made when enough nodes are up; stop no node until then",
        ),
        Warning::AddressNotHere {
            volume,
            address,
            why,
        } => told(
            WarningKind::AddressNotHere,
            of_volume(volume),
            format!("this node owns volume {volume} but cannot hold its address {address}: {why}"),
            "fix the cause, or move the volume to another node (`cairn volume move`)",
        ),
        Warning::PoolAddressNotHere { pool, address, why } => told(
            WarningKind::AddressNotHere,
            format!("address {address}"),
            format!("address {address} of address pool {pool} is not on its node: {why}"),
            "fix the cause and restart that node's server; until then another node holds the address, if one can",
        ),
        Warning::VolumeUnprotected { volume } => told(
            WarningKind::VolumeUnprotected,
            of_volume(volume),
            format!(
                "volume {volume} has protection none: NO REDUNDANCY, the loss of a disk loses data of the volume"
            ),
            format!("`cairn volume set {volume} --protection default`, unless this is intended"),
        ),
        Warning::DirectoriesUnprotected { volume } => told(
            WarningKind::DirectoriesUnprotected,
            of_volume(volume),
            format!(
                "directories of volume {volume} have protection none: NO REDUNDANCY, the loss of a disk loses data in them"
            ),
            format!("`cairn policy list {volume}` shows them"),
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Missing,
            why,
        } => told(
            WarningKind::DiskMissing,
            format!("disk {disk}"),
            match why.is_empty() {
                true => format!("disk {disk} is missing"),
                false => format!("disk {disk} is missing: {why}"),
            },
            "attach the disk and restart the server; if the disk is lost for good: `cairn disk replace`",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Failed,
            why,
        } => told(
            WarningKind::DiskFailed,
            format!("disk {disk}"),
            format!("disk {disk} failed: {why}"),
            "check the drive: `cairn disk replace` replaces it, `cairn disk retry` takes it back if it works again",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Unresponsive,
            why,
        } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk} is unresponsive and counts as lost until it answers: {why}"),
            "check the drive, its cable and its controller; writes go to other disks",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Failing,
            why,
        } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk} fails writes and counts as lost until it takes them: {why}"),
            "check whether its file system is read-only, and the kernel log for the drive; writes go to other disks",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Returning,
            why,
        } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!(
                "disk {disk} is back and counts as lost until it has the writes that it missed: {why}"
            ),
            "nothing: the disk catches up by itself; if that takes long, check which other disks are missing",
        ),
        Warning::DiskTroubled { disk, why } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk}: {why}"),
            "check the drive, its cable and its controller; have a replacement ready",
        ),
        Warning::OneDisk => told(
            WarningKind::OneDisk,
            POOL,
            "NO REDUNDANCY: the pool has one disk, whose loss loses everything",
            "for redundancy, start a new pool with two or more --data folders on different drives",
        ),
        Warning::SharedDevice {
            disks,
            devices,
            survived,
        } => told(
            WarningKind::SharedDevice,
            POOL,
            match (devices, survived) {
                (1, _) => format!(
                    "{disks} folders are on 1 device: NO REDUNDANCY against its loss, which loses everything"
                ),
                (_, 0) => format!(
                    "{disks} folders are on {devices} devices: the loss of one of them loses data"
                ),
                (_, _) => format!(
                    "{disks} folders are on {devices} devices: the pool survives the loss of {survived} of these devices"
                ),
            },
            "put each folder on a device of its own: `cairn disk replace` moves a folder",
        ),
        Warning::AtTheLimit => told(
            WarningKind::AtTheLimit,
            POOL,
            "the loss of one more disk loses data",
            "bring the missing disks back",
        ),
        Warning::DisksUnnamed { named } => told(
            WarningKind::DisksUnnamed,
            POOL,
            format!(
                "`data` in the configuration (or --data) names only {named} of the pool's disks; if those are lost, the next start does not find the pool"
            ),
            "name more of the pool's disks there",
        ),
        Warning::SpaceLow { percent } => told(
            WarningKind::SpaceLow,
            POOL,
            format!("only {percent}% of the space is free"),
            "delete data and snapshots, or add a disk: `cairn disk add`",
        ),
        Warning::PoolFull => told(
            WarningKind::PoolFull,
            POOL,
            "the pool is full: writes fail in all volumes; reads and deletions work",
            "delete data and snapshots, or add a disk: `cairn disk add`",
        ),
        Warning::VolumeFull {
            volume,
            limit_bytes,
        } => told(
            WarningKind::VolumeFull,
            of_volume(volume),
            format!(
                "volume {volume} is full: less than 1% of its size limit of {} is left, and writes beyond the limit fail",
                format_size(*limit_bytes)
            ),
            format!(
                "delete files in the volume, or raise its limit: `cairn volume set {volume} --size-limit SIZE`"
            ),
        ),
        Warning::VolumeLow {
            volume,
            limit_bytes,
            percent,
        } => told(
            WarningKind::VolumeLow,
            of_volume(volume),
            format!(
                "volume {volume} is nearly full: {percent}% of its size limit of {} is left",
                format_size(*limit_bytes)
            ),
            format!(
                "delete files in the volume, or raise its limit: `cairn volume set {volume} --size-limit SIZE`"
            ),
        ),
        Warning::KeyAway { volume, why } => told(
            WarningKind::KeyAway,
            of_volume(volume),
            format!(
                "volume {volume} is encrypted and cannot be served without its master key: {why}"
            ),
            "give the server the master key (`master_key_file` or `master_key_command`); `cairn key list` shows which one is missing. The server \
            retries by itself",
        ),
        Warning::SecretsUnwrapped { why } => told(
            WarningKind::SecretsUnwrapped,
            POOL,
            format!(
                "secrets (S3 access keys, CHAP secrets of initiators) cannot be set or created, because the master key is not available: {why}"
            ),
            "give the server the master key (`master_key_file` or `master_key_command`), or remove it from the configuration; \
            `cairn key list` has details. The server retries by itself",
        ),
        Warning::TierAway { tier, why } => told(
            WarningKind::TierAway,
            format!("tier {tier}"),
            format!(
                "tier {tier} is not usable: {why}. Data that only the tier holds cannot be read until it is; nothing is lost"
            ),
            format!(
                "check that its address can be reached and its credentials are valid: `cairn tier show {tier}`"
            ),
        ),
        Warning::MemoryOver {
            resident_bytes,
            limit_bytes,
            largest,
        } => told(
            WarningKind::MemoryOver,
            THIS_NODE,
            format!(
                "the server uses {} of memory, more than its limit of {}; largest parts: {}",
                format_size(*resident_bytes),
                format_size(*limit_bytes),
                parts_of_memory(largest)
            ),
            "set a larger `memory_limit` and restart, or let fewer clients connect; `cairn_memory_bytes` in /metrics shows all parts. \
            If memory keeps growing, report it",
        ),
        Warning::ScrubOverdue { late } => told(
            WarningKind::ScrubOverdue,
            POOL,
            format!("a scheduled scrub is overdue by {}", days(*late)),
            "`cairn scrub status` shows what the scrub waits for; widen the maintenance window (`cairn scrub schedule`), or `cairn scrub start`",
        ),
        Warning::ReadCacheUnused {
            cache,
            trouble,
            why,
        } => {
            let subject = format!("read cache {cache}");
            let (message, next) = match trouble {
                CacheTrouble::LetAlone => (
                    format!(
                        "the read cache at {cache} fails and is not used for a minute: reads are slower, nothing is lost"
                    ),
                    "check its disk",
                ),
                CacheTrouble::Opening => (
                    format!(
                        "the read cache at {cache} is being opened: reads are slower until then"
                    ),
                    "wait a moment",
                ),
                CacheTrouble::NotOpen => (
                    format!(
                        "the read cache at {cache} could not be opened and is not used: {}",
                        why.as_deref().unwrap_or_default()
                    ),
                    "`cairn disk remove` removes it",
                ),
            };
            told(WarningKind::ReadCacheUnused, subject, message, next)
        }
        Warning::SegmentsUnreadable { count } => told(
            WarningKind::SegmentsUnreadable,
            POOL,
            format!(
                "{} of data have lost shards, some more than their protection survives",
                segments(*count)
            ),
            "bring the missing disks back; if they are lost for good, `cairn scrub start` finds the damaged files",
        ),
        Warning::SegmentsShort { count } => told(
            WarningKind::SegmentsShort,
            POOL,
            format!(
                "{} of data have lost shards that are not rebuilt yet",
                segments(*count)
            ),
            "`cairn disk list` shows the rebuild's progress",
        ),
        Warning::SegmentsNarrow { count } => told(
            WarningKind::SegmentsNarrow,
            POOL,
            format!(
                "{} of data have less protection than their volumes ask for; they are rewritten as soon as enough disks have room",
                segments(*count)
            ),
            "`cairn disk list` shows the progress",
        ),
        Warning::SegmentsSingle { count } => told(
            WarningKind::SegmentsSingle,
            POOL,
            format!(
                "{} of data have ONE COPY and no parity, because only one disk took writes: the loss of that disk loses acknowledged writes",
                segments(*count)
            ),
            "bring the other disks back: the segments then get their copies",
        ),
        Warning::PlacesDamaged { count } => told(
            WarningKind::PlacesDamaged,
            POOL,
            format!("{count} places in files are damaged beyond repair"),
            "`cairn scrub report` lists the files: restore them from a snapshot or a backup",
        ),
        Warning::BytesLost { bytes } => told(
            WarningKind::BytesLost,
            POOL,
            format!(
                "{} could not be recovered from any disk when data was moved or rebuilt",
                format_size(*bytes)
            ),
            "`cairn scrub start` finds the affected files",
        ),
        Warning::ReadsDamaged { count } => told(
            WarningKind::ReadsDamaged,
            POOL,
            format!("{count} places that clients read are damaged beyond repair"),
            "the log names the files; `cairn scrub start` finds all damaged files. The server checks these places again every half minute",
        ),
    }
}

/// A warning with its text and with its fields for programs.
pub fn view(warning: &Warning) -> WarningView {
    let WarningText {
        kind,
        subject,
        message,
        next,
    } = text(warning);
    let (mut volume, mut node, mut disk) = (None, None, None);
    let (mut count, mut wanted) = (None, None);
    let number = |value: usize| u64::try_from(value).ok();
    match warning {
        Warning::LogCopiesFew {
            volume: name,
            copies,
            wanted: all,
        } => {
            volume = Some(name);
            (count, wanted) = (number(*copies), number(*all));
        }
        Warning::KeyMissing {
            node: name,
            volume: of,
        } => (node, volume) = (Some(name), Some(of)),
        Warning::VolumeNotServed { volume: name, .. }
        | Warning::VolumeReadOnly { volume: name, .. }
        | Warning::VolumeWithoutOwner { volume: name, .. }
        | Warning::MetadataShort { volume: name }
        | Warning::AddressNotHere { volume: name, .. }
        | Warning::VolumeUnprotected { volume: name }
        | Warning::KeyAway { volume: name, .. }
        | Warning::DirectoriesUnprotected { volume: name } => volume = Some(name),
        Warning::VolumeFull { volume: name, .. } => {
            volume = Some(name);
            count = Some(0);
        }
        Warning::VolumeLow {
            volume: name,
            percent,
            ..
        } => {
            volume = Some(name);
            count = Some(*percent);
        }
        Warning::SharedDevice { disks, devices, .. } => {
            (count, wanted) = (number(*devices), number(*disks))
        }
        Warning::MemoryOver {
            resident_bytes,
            limit_bytes,
            ..
        } => (count, wanted) = (Some(*resident_bytes), Some(*limit_bytes)),
        Warning::VolumesMany {
            node: name,
            volumes,
            most,
        } => {
            node = Some(name);
            (count, wanted) = (number(*volumes), number(*most));
        }
        Warning::EtcdMemberDown { member: name, .. }
        | Warning::NodeAway { node: name }
        | Warning::NodeUnreached { node: name, .. }
        | Warning::FolderLow { node: name }
        | Warning::Maintenance { node: name, .. } => node = Some(name),
        Warning::DiskLost { disk: label, .. } | Warning::DiskTroubled { disk: label, .. } => {
            disk = Some(label);
        }
        Warning::EtcdNoQuorum { healthy, members } => {
            (count, wanted) = (number(*healthy), number(members / 2 + 1));
        }
        Warning::SegmentsUnreadable { count: found }
        | Warning::SegmentsShort { count: found }
        | Warning::SegmentsNarrow { count: found }
        | Warning::SegmentsSingle { count: found }
        | Warning::PlacesDamaged { count: found }
        | Warning::BytesLost { bytes: found }
        | Warning::ReadsDamaged { count: found }
        | Warning::SpaceLow { percent: found } => count = Some(*found),
        Warning::DisksUnnamed { named } => count = number(*named),
        Warning::NoLease
        | Warning::EtcdPlain { .. }
        | Warning::EtcdUnreachable { .. }
        | Warning::OneDisk
        | Warning::AtTheLimit
        | Warning::PoolFull
        | Warning::SecretsUnwrapped { .. }
        | Warning::TierAway { .. }
        | Warning::ScrubOverdue { .. }
        | Warning::PoolAddressNotHere { .. }
        | Warning::MapKeyDamaged { .. }
        | Warning::ReadCacheUnused { .. } => {}
    }
    WarningView {
        kind,
        severity: severity(warning.weight()),
        subject,
        volume: volume.cloned(),
        node: node.cloned(),
        disk: disk.cloned(),
        count,
        wanted,
        message,
        next,
    }
}

pub fn views(warnings: &[Warning]) -> Vec<WarningView> {
    warnings.iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each warning has a subject, a severity, a message and the next step.
    #[test]
    fn a_warning_says_what_to_do_next() {
        let text = |text: &str| text.to_owned();
        let cases = [
            (
                Warning::VolumeFull {
                    volume: text("main"),
                    limit_bytes: 1 << 30,
                },
                (WarningKind::VolumeFull, Severity::Warning, "volume main"),
                "volume main is full: less than 1% of its size limit of 1 GiB is left, and writes beyond the limit fail",
                "delete files in the volume, or raise its limit: `cairn volume set main --size-limit SIZE`",
            ),
            (
                Warning::VolumeLow {
                    volume: text("main"),
                    limit_bytes: 1 << 30,
                    percent: 9,
                },
                (WarningKind::VolumeLow, Severity::Info, "volume main"),
                "volume main is nearly full: 9% of its size limit of 1 GiB is left",
                "delete files in the volume, or raise its limit: `cairn volume set main --size-limit SIZE`",
            ),
            (
                Warning::SharedDevice {
                    disks: 6,
                    devices: 1,
                    survived: 0,
                },
                (WarningKind::SharedDevice, Severity::Info, POOL),
                "6 folders are on 1 device: NO REDUNDANCY against its loss, which loses everything",
                "put each folder on a device of its own: `cairn disk replace` moves a folder",
            ),
            (
                Warning::SecretsUnwrapped {
                    why: text("it is not there"),
                },
                (WarningKind::SecretsUnwrapped, Severity::Warning, POOL),
                "secrets (S3 access keys, CHAP secrets of initiators) cannot be set or created, because the master key is not available: it is not there",
                "give the server the master key (`master_key_file` or `master_key_command`), or remove it from the configuration; \
                `cairn key list` has details. The server retries by itself",
            ),
            (
                Warning::TierAway {
                    tier: text("cold"),
                    why: text("it does not answer"),
                },
                (WarningKind::TierAway, Severity::Warning, "tier cold"),
                "tier cold is not usable: it does not answer. Data that only the tier holds cannot be read until it is; nothing is lost",
                "check that its address can be reached and its credentials are valid: `cairn tier show cold`",
            ),
            (
                Warning::ScrubOverdue {
                    late: Duration::from_secs(3 * 24 * 3600),
                },
                (WarningKind::ScrubOverdue, Severity::Info, POOL),
                "a scheduled scrub is overdue by 3 days",
                "`cairn scrub status` shows what the scrub waits for; widen the maintenance window (`cairn scrub schedule`), or `cairn scrub start`",
            ),
        ];
        for (warning, (kind, severity, subject), message, next) in cases {
            let view = view(&warning);
            assert_eq!(
                (view.kind, view.severity, &*view.subject),
                (kind, severity, subject)
            );
            assert_eq!((&*view.message, &*view.next), (message, next));
        }
    }
}
