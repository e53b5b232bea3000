//! How warnings read.
//!
//! Owns: the text of each warning, and of what to do next. Must not know: when there is which (`cairn_pool::health`).

use std::time::Duration;

use cairn_admin::events::Severity;
use cairn_admin::warnings::{WarningKind, WarningView};
use cairn_base::units::format_size;
use cairn_pool::warning::{CacheTrouble, DiskLoss, Warning, Weight};

/// What a warning is about, if it is about all.
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

/// What a text is made of.
struct Told {
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
) -> Told {
    Told {
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
fn text(warning: &Warning) -> Told {
    match warning {
        Warning::EtcdNoQuorum { healthy, members } => told(
            WarningKind::EtcdNoQuorum,
            ETCD,
            format!(
                "{healthy} of {members} members of etcd are well, which is no majority: no volume gets another owner and no setting changes"
            ),
            "start the nodes whose members do not answer. If most of them are lost for good: `cairn cluster restore` with a backup",
        ),
        Warning::EtcdUnreachable { why } => told(
            WarningKind::EtcdUnreachable,
            ETCD,
            format!("etcd does not answer this node: {why}"),
            "see whether etcd runs on enough nodes, and whether this one reaches them",
        ),
        Warning::EtcdMemberDown { member, why } => told(
            WarningKind::EtcdMemberDown,
            format!("etcd member {member}"),
            format!("the member of etcd on {member} does not count: {why}"),
            format!(
                "see on node {member} whether etcd runs, whether it has disk space and whether it is reached; do not stop another node before"
            ),
        ),
        Warning::EtcdPlain { addresses } => told(
            WarningKind::EtcdPlain,
            ETCD,
            format!(
                "etcd is asked without TLS ({}): whoever is on the way reads and changes what the cluster knows, passwords and keys too",
                addresses.join(", ")
            ),
            "give etcd a certificate and the nodes its https:// addresses (`etcd` in cluster.json of each node, while it is stopped)",
        ),
        Warning::NoLease => told(
            WarningKind::NoLease,
            THIS_NODE,
            "this node has no lease and serves no volume: etcd does not renew it",
            "see whether etcd runs on enough nodes, and whether this one reaches it",
        ),
        Warning::MapKeyDamaged { key } => told(
            WarningKind::MapKeyDamaged,
            key.as_str(),
            format!("{key} in etcd cannot be read"),
            "restore etcd from a backup: `cairn cluster restore`",
        ),
        Warning::NodeAway { node } => told(
            WarningKind::NodeAway,
            of_node(node),
            format!("node {node} is away: its lease is over"),
            "start it again, or see why the network does not lead there; if it is lost for good: `cairn node replace`",
        ),
        Warning::NodeUnreached { node, why } => told(
            WarningKind::NodeUnreached,
            of_node(node),
            match why {
                Some(why) => format!("node {node} has a lease and is not reached from here: {why}"),
                None => format!("node {node} has a lease and is not reached from here"),
            },
            "look at the network between the two nodes, and at firewalls on the internal port",
        ),
        Warning::FolderLow { node } => told(
            WarningKind::FolderLow,
            of_node(node),
            format!(
                "the file system with the cluster folder of node {node} is nearly full: its member of etcd stops when it is"
            ),
            "free space there; data of clients is elsewhere",
        ),
        Warning::VolumesMany {
            node,
            volumes,
            most,
        } => told(
            WarningKind::VolumesMany,
            of_node(node),
            format!(
                "node {node} has {volumes} open volumes, and its memory_limit holds {most}: it may use more memory than that"
            ),
            "set a larger memory_limit there, or add a node: volumes move to nodes with room by themselves",
        ),
        Warning::Maintenance { node, left } => told(
            WarningKind::Maintenance,
            of_node(node),
            format!(
                "node {node} is in maintenance for {} more: nothing on it is rebuilt meanwhile",
                minutes(*left)
            ),
            format!("`cairn node maintenance off {node}` when it is back"),
        ),
        Warning::KeyMissing { node, volume } => told(
            WarningKind::KeyMissing,
            of_node(node),
            format!("node {node} has no master key for volume {volume} and cannot take it over"),
            "give it the keys of the others (`cairn key list`)",
        ),
        Warning::VolumeNotServed { volume, why } => told(
            WarningKind::VolumeNotServed,
            of_volume(volume),
            format!("volume {volume} is not served: {why}"),
            "bring back the disks or nodes that are missing; the server's log says more",
        ),
        Warning::VolumeReadOnly { volume, why } => told(
            WarningKind::VolumeReadOnly,
            of_volume(volume),
            format!("volume {volume} is read-only until its disks have room: {why}"),
            "free some MiB in the file systems of the disks, which other programs may have filled: it is opened again by itself",
        ),
        Warning::VolumeWithoutOwner { volume, tries } => {
            let tries: Vec<String> = tries
                .iter()
                .map(|(node, why)| format!("node {node}: {why}"))
                .collect();
            let why = match tries.len() {
                0 => "a node takes it over in a moment, if enough of them are there".to_owned(),
                _ => tries.join("; "),
            };
            told(
                WarningKind::VolumeWithoutOwner,
                of_volume(volume),
                format!("no node owns volume {volume}: it is not served. {why}"),
                "bring back the nodes and disks that are away",
            )
        }
        Warning::MetadataShort { volume } => told(
            WarningKind::MetadataShort,
            of_volume(volume),
            format!("volume {volume}: its metadata has fewer copies than it should have"),
            "wait until they are made, or bring the missing disks back",
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
                    "the log of volume {volume} has {copies} of {wanted} copies: the loss of its node loses what was acknowledged"
                ),
                1 => format!(
                    "the log of volume {volume} has {copies} of {wanted} copies: it survives the loss of 1 node"
                ),
                losses => format!(
                    "the log of volume {volume} has {copies} of {wanted} copies: it survives the loss of {losses} nodes"
                ),
            },
            "it gets its copies by itself when enough nodes are there; stop none before",
        ),
        Warning::AddressNotHere {
            volume,
            address,
            why,
        } => told(
            WarningKind::AddressNotHere,
            of_volume(volume),
            format!("the address {address} of volume {volume} is not here: {why}"),
            "mend that, or move the volume to another node (`cairn volume move`)",
        ),
        Warning::PoolAddressNotHere { pool, address, why } => told(
            WarningKind::AddressNotHere,
            format!("address {address}"),
            format!("the address {address} of pool {pool} is not where it should be: {why}"),
            "mend that and start the server of that node again; until then another node has the address, if one can",
        ),
        Warning::VolumeUnprotected { volume } => told(
            WarningKind::VolumeUnprotected,
            of_volume(volume),
            format!(
                "volume {volume} has protection none: NO REDUNDANCY, a lost disk loses its data"
            ),
            format!("`cairn volume set {volume} --protection default`, unless it is meant so"),
        ),
        Warning::DirectoriesUnprotected { volume } => told(
            WarningKind::DirectoriesUnprotected,
            of_volume(volume),
            format!(
                "directories of volume {volume} have protection none: NO REDUNDANCY, a lost disk loses their data"
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
            "bring it back and start the server again; if it is lost for good: `cairn disk replace`",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Failed,
            why,
        } => told(
            WarningKind::DiskFailed,
            format!("disk {disk}"),
            format!("disk {disk} failed: {why}"),
            "see what is wrong with the drive, then: `cairn disk replace`; if it works again: `cairn disk retry`",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Unresponsive,
            why,
        } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk} does not answer, and counts as lost until it does: {why}"),
            "look at the drive, its cable and its controller; what is written goes to other disks",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Failing,
            why,
        } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk} takes nothing, and counts as lost until it does: {why}"),
            "see whether its file system is read-only, and what the kernel says of the drive; what is written goes to other disks",
        ),
        Warning::DiskLost {
            disk,
            loss: DiskLoss::Returning,
            why,
        } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk} is back, and counts as lost until it has what it missed: {why}"),
            "nothing needs to be done while it is given that; if it lasts, see which other disks are away",
        ),
        Warning::DiskTroubled { disk, why } => told(
            WarningKind::DiskTroubled,
            format!("disk {disk}"),
            format!("disk {disk}: {why}"),
            "look at the drive, its cable and its controller; have another one ready",
        ),
        Warning::OneDisk => told(
            WarningKind::OneDisk,
            POOL,
            "NO REDUNDANCY: there is one disk, and losing it loses everything",
            "start a new pool with two or more --data folders on different disks to be safe",
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
                    "{disks} folders are on {devices} devices, which are lost with all folders on them: {survived} of them may be lost"
                ),
            },
            "put each folder on a device of its own: `cairn disk replace` moves one",
        ),
        Warning::AtTheLimit => told(
            WarningKind::AtTheLimit,
            POOL,
            "no further disk can be lost without losing data",
            "bring the missing disks back",
        ),
        Warning::DisksUnnamed { named } => told(
            WarningKind::DisksUnnamed,
            POOL,
            format!(
                "a start finds the pool by {named} of its disks only, which `data` in the configuration or --data names; if those are lost it does not find the pool"
            ),
            "name more of them",
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
            "the pool is full: writes fail in all volumes. Reads and deletions go on",
            "delete data and snapshots, or add a disk: `cairn disk add`",
        ),
        Warning::VolumeFull {
            volume,
            limit_bytes,
        } => told(
            WarningKind::VolumeFull,
            of_volume(volume),
            format!(
                "volume {volume} is full: less than 1% of its size limit of {} is left, and writes fail beyond that",
                format_size(*limit_bytes)
            ),
            format!("delete files in it, or `cairn volume set {volume} --size-limit SIZE`"),
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
            format!("delete files in it, or `cairn volume set {volume} --size-limit SIZE`"),
        ),
        Warning::KeyAway { volume, why } => told(
            WarningKind::KeyAway,
            of_volume(volume),
            format!("volume {volume} is encrypted and not served: {why}"),
            "give the server its master key (`master_key_file` or `master_key_command`); `cairn key list` says which one is missing. It is \
             tried again by itself",
        ),
        Warning::SecretsUnwrapped { why } => told(
            WarningKind::SecretsUnwrapped,
            POOL,
            format!(
                "no secret is set or made (keys of S3, of initiators): the master key cannot be had: {why}"
            ),
            "give the server its master key (`master_key_file` or `master_key_command`), or take it out of the configuration; \
             `cairn key list` says more. It is tried again by itself",
        ),
        Warning::TierAway { tier, why } => told(
            WarningKind::TierAway,
            format!("tier {tier}"),
            format!(
                "tier {tier} does not do what it should: {why}. What is only there cannot be read meanwhile; nothing is lost"
            ),
            format!(
                "see whether its address can be reached and its credentials hold: `cairn tier show {tier}`"
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
                "the server has {} of memory, and its limit is {}; most of it: {}",
                format_size(*resident_bytes),
                format_size(*limit_bytes),
                parts_of_memory(largest)
            ),
            "set a larger `memory_limit` and restart, or let fewer clients connect; `cairn_memory_bytes` in /metrics shows all parts. \
             Where it grows on, report it",
        ),
        Warning::ScrubOverdue { late } => told(
            WarningKind::ScrubOverdue,
            POOL,
            format!(
                "a scrub that begins by itself has been due for {}",
                days(*late)
            ),
            "`cairn scrub status` says what it waits for; widen the window (`cairn scrub schedule`), or `cairn scrub start`",
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
                        "the read cache at {cache} fails and is let alone for a minute: reads are slower, nothing is lost"
                    ),
                    "look after its disk",
                ),
                CacheTrouble::Opening => (
                    format!(
                        "the read cache at {cache} is being opened; until then reads are slower"
                    ),
                    "wait a moment",
                ),
                CacheTrouble::NotOpen => (
                    format!(
                        "the read cache at {cache} could not be opened, and is not used: {}",
                        why.as_deref().unwrap_or_default()
                    ),
                    "`cairn disk remove` takes it out",
                ),
            };
            told(WarningKind::ReadCacheUnused, subject, message, next)
        }
        Warning::SegmentsUnreadable { count } => told(
            WarningKind::SegmentsUnreadable,
            POOL,
            format!(
                "{} of data have lost shards, some of them more than they may",
                segments(*count)
            ),
            "bring the missing disks back; if they are lost for good, `cairn scrub start` finds the files that are damaged",
        ),
        Warning::SegmentsShort { count } => told(
            WarningKind::SegmentsShort,
            POOL,
            format!(
                "{} of data have lost shards that are not rebuilt yet",
                segments(*count)
            ),
            "`cairn disk list` says how far that is",
        ),
        Warning::SegmentsNarrow { count } => told(
            WarningKind::SegmentsNarrow,
            POOL,
            format!(
                "{} of data have less protection than is asked for, and are written anew as soon as there are disks and room for it",
                segments(*count)
            ),
            "`cairn disk list` says how far that is",
        ),
        Warning::SegmentsSingle { count } => told(
            WarningKind::SegmentsSingle,
            POOL,
            format!(
                "{} of data have ONE COPY and no parity, since one disk alone could be written to: the loss of that disk loses what was acknowledged",
                segments(*count)
            ),
            "bring other disks back: they get their other copies then",
        ),
        Warning::PlacesDamaged { count } => told(
            WarningKind::PlacesDamaged,
            POOL,
            format!("{count} places of files are damaged beyond repair"),
            "`cairn scrub report` names them: restore these files from a snapshot or a backup",
        ),
        Warning::BytesLost { bytes } => told(
            WarningKind::BytesLost,
            POOL,
            format!(
                "{} could not be had from anywhere when data was moved or rebuilt",
                format_size(*bytes)
            ),
            "`cairn scrub start` finds the files",
        ),
        Warning::ReadsDamaged { count } => told(
            WarningKind::ReadsDamaged,
            POOL,
            format!("{count} places that were read are damaged beyond repair"),
            "the log names them; `cairn scrub start` finds all such files. They are looked at again every half minute",
        ),
    }
}

/// A warning as programs and people get it.
pub fn view(warning: &Warning) -> WarningView {
    let Told {
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

    /// What is told where nothing else says what to do: about whom, how bad, and the next step.
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
                "volume main is full: less than 1% of its size limit of 1 GiB is left, and writes fail beyond that",
                "delete files in it, or `cairn volume set main --size-limit SIZE`",
            ),
            (
                Warning::VolumeLow {
                    volume: text("main"),
                    limit_bytes: 1 << 30,
                    percent: 9,
                },
                (WarningKind::VolumeLow, Severity::Info, "volume main"),
                "volume main is nearly full: 9% of its size limit of 1 GiB is left",
                "delete files in it, or `cairn volume set main --size-limit SIZE`",
            ),
            (
                Warning::SharedDevice {
                    disks: 6,
                    devices: 1,
                    survived: 0,
                },
                (WarningKind::SharedDevice, Severity::Info, POOL),
                "6 folders are on 1 device: NO REDUNDANCY against its loss, which loses everything",
                "put each folder on a device of its own: `cairn disk replace` moves one",
            ),
            (
                Warning::SecretsUnwrapped {
                    why: text("it is not there"),
                },
                (WarningKind::SecretsUnwrapped, Severity::Warning, POOL),
                "no secret is set or made (keys of S3, of initiators): the master key cannot be had: it is not there",
                "give the server its master key (`master_key_file` or `master_key_command`), or take it out of the configuration; \
                 `cairn key list` says more. It is tried again by itself",
            ),
            (
                Warning::TierAway {
                    tier: text("cold"),
                    why: text("it does not answer"),
                },
                (WarningKind::TierAway, Severity::Warning, "tier cold"),
                "tier cold does not do what it should: it does not answer. What is only there cannot be read meanwhile; nothing is lost",
                "see whether its address can be reached and its credentials hold: `cairn tier show cold`",
            ),
            (
                Warning::ScrubOverdue {
                    late: Duration::from_secs(3 * 24 * 3600),
                },
                (WarningKind::ScrubOverdue, Severity::Info, POOL),
                "a scrub that begins by itself has been due for 3 days",
                "`cairn scrub status` says what it waits for; widen the window (`cairn scrub schedule`), or `cairn scrub start`",
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
