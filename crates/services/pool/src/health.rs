//! Says how the pool is, what may be lost now, and what an operator should know.
//!
//! Owns: the judgement, a pure function of what was observed, of a single server as of a cluster.
//! Must not know: how a warning reads.

use std::time::Duration;

use cairn_base::domain::{Losses, Survives};

use crate::warning::{DiskLoss, Warning, Weight};

/// How the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All disks serve and data is protected as set.
    Healthy,
    /// All is well, but a lost device would be lost data: there is only one, or one copy.
    NoRedundancy,
    /// Everything can be read; some protection is lost, or writes fail for want of room.
    Degraded,
    /// Something cannot be served.
    Failed,
}

/// What there is to judge.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub disk_count: usize,
    /// Missing at start, failed since, or not counted on now.
    pub disks_lost: Vec<LostDisk>,
    /// How many of them hold nothing that anybody needs: all that was on them is on others.
    pub disks_lost_empty: usize,
    /// Labels of disks that are used in spite of what is wrong with them, each with what that is.
    pub disks_troubled: Vec<(String, String)>,
    /// Disks that data of the default protection can lose.
    pub tolerated: usize,
    /// How many nodes the disks are on.
    pub node_count: usize,
    /// Nodes that data of the default protection can lose; none if there is one.
    pub nodes_tolerated: usize,
    /// How many nodes have a lost disk that holds something that is needed.
    pub nodes_lost: usize,
    /// How that data is laid out.
    pub layout: String,
    /// Volumes that are not served, each with why.
    pub volumes_failed: Vec<(String, String)>,
    /// Volumes that are only read until their disks have room, each with what found none.
    pub volumes_read_only: Vec<(String, String)>,
    /// Volumes whose metadata has fewer copies than it should.
    pub volumes_degraded: Vec<String>,
    /// Volumes that one lost disk would damage although the pool could protect them.
    pub volumes_unprotected: Vec<String>,
    /// Volumes with directories that ask for no protection.
    pub directories_unprotected: Vec<String>,
    /// Parts of the data that have less protection than is asked for.
    pub narrow_segments: u64,
    /// Of these, those that survive no loss.
    pub single_segments: u64,
    /// Parts of the data with shards that are lost and not rebuilt yet, and how many more the worst of them may lose.
    pub segments_short: Option<(u64, i16)>,
    /// Places of files that the last scrub found damaged beyond repair.
    pub damaged_places: u64,
    /// Bytes that were given up while data was moved or rebuilt, since the start, and that no scrub has looked for.
    pub lost_bytes: u64,
    /// Places at which readers met damage and that still cannot be read, without those before the last scrub that read all.
    pub damaged_reads: u64,
    /// Disks that work and that the configuration names; `None` if it names all that work.
    pub disks_named: Option<usize>,
    /// How many data disks that work each drive of this server bears. Empty: not known, or of a cluster.
    pub disks_by_drive: Vec<usize>,
    /// Free space left, in percent.
    pub free_percent: Option<u64>,
    /// Nothing more can be written.
    pub is_full: bool,
    /// Volumes of which little is left to their size limit.
    pub volumes_low: Vec<LowVolume>,
    /// Encrypted volumes that wait for their key, each with why it cannot be had. They are in no other list.
    pub keys_away: Vec<(String, String)>,
    /// Why no secret is set or made, if that is so.
    pub secrets_unwrapped: Option<String>,
    /// Tiers that do not do what they should, each with why.
    pub tiers_away: Vec<(String, String)>,
    /// `None`: not known.
    pub memory: Option<MemoryUse>,
    /// For how long a scrub that is to begin by itself has not.
    pub scrub_overdue: Option<Duration>,
    /// Read caches that are not used, as warnings.
    pub caches: Vec<Warning>,
    /// If the server is a node of a cluster.
    pub cluster: Option<ObservedCluster>,
}

/// Memory that the process has, and its limit, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub resident_bytes: u64,
    pub limit_bytes: u64,
    /// What has most of it, the largest first.
    pub largest: Vec<(&'static str, u64)>,
}

impl MemoryUse {
    fn is_over(&self) -> bool {
        u128::from(self.resident_bytes) * 100 > u128::from(self.limit_bytes) * MEMORY_PERCENT_MAX
    }
}

/// A volume with little left to its size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowVolume {
    pub volume: String,
    pub limit_bytes: u64,
    /// Of the limit, rounded down.
    pub free_percent: u64,
}

/// A disk that does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDisk {
    pub label: String,
    pub loss: DiskLoss,
    pub why: String,
}

/// What there is to judge of a cluster, as one of its nodes sees it.
#[derive(Clone, Debug, Default)]
pub struct ObservedCluster {
    pub has_lease: bool,
    pub nodes: Vec<ObservedNode>,
    pub etcd: ObservedEtcd,
    pub logs: Vec<ObservedLog>,
    /// Volumes that nobody owns, each with the nodes that tried to take it over and why they could not.
    pub without_owner: Vec<(String, Vec<(String, String)>)>,
    /// Volumes with an address that is not on this node, which owns them: volume, address, and why.
    pub addresses: Vec<(String, String, String)>,
    /// Addresses of pools that a node which should have them has not: pool, address, and why.
    pub pool_addresses: Vec<(String, String, String)>,
    /// Nodes that are there and have no key for a volume: node, volume.
    pub keys_missing: Vec<(String, String)>,
    /// So many nodes that are there can open the encrypted volume that the fewest can open. `None`: no volume is encrypted.
    pub openers_least: Option<usize>,
    /// Keys of the map that cannot be read.
    pub damaged_keys: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNode {
    pub name: String,
    /// Its lease lives.
    pub is_alive: bool,
    pub is_reached: bool,
    pub problem: Option<String>,
    /// How much longer it is meant to be away.
    pub maintenance: Option<std::time::Duration>,
    /// The file system with its cluster folder is nearly full.
    pub folder_is_low: bool,
    /// Volumes that it owns.
    pub volumes: usize,
    /// Open volumes that its memory limit holds, if that is known.
    pub volumes_max: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedEtcd {
    /// Whether nodes of the cluster run it.
    pub is_own: bool,
    pub members: Vec<ObservedMember>,
    /// Why nothing is known of the members.
    pub problem: Option<String>,
    /// Addresses beyond this machine at which it is asked without TLS.
    pub plain: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMember {
    pub name: String,
    /// Why it does not count: it does not answer, or says that it is not well.
    pub problem: Option<String>,
}

/// The log of a volume of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLog {
    pub volume: String,
    /// Copies on nodes that are there.
    pub copies: usize,
    /// Copies that it should have.
    pub wanted: usize,
}

impl ObservedEtcd {
    fn healthy(&self) -> usize {
        let members = self.members.iter();
        members.filter(|member| member.problem.is_none()).count()
    }

    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    fn has_quorum(&self) -> bool {
        self.problem.is_none() && self.healthy() >= self.quorum()
    }

    /// Nodes that may go so that etcd goes on, whichever they are.
    fn survives_nodes(&self) -> usize {
        match (self.has_quorum(), self.is_own) {
            (false, _) => 0,
            (true, true) => self.healthy() - self.quorum(),
            (true, false) => usize::MAX,
        }
    }
}

/// Nodes of a cluster that may go next, whichever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodesSurvived {
    /// So that no data is lost.
    pub data: usize,
    /// So that the others go on serving all volumes.
    pub service: usize,
}

/// Below this many percent of free space there is a warning.
pub const FREE_PERCENT_LOW: u64 = 10;
/// A process that has more than so many percent of its memory limit is told of: measuring and shrinking take a moment.
const MEMORY_PERCENT_MAX: u128 = 105;
/// A scrub that is due waits for its window, and for other nodes. One that waits for longer does not come to its turn.
const SCRUB_OVERDUE_MIN: Duration = Duration::from_secs(24 * 3600);

/// What may be lost next, whichever it is, so that no data of the default protection is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossesSurvived {
    pub disks: usize,
    /// Where several disks are on one drive: drives that there are, and those that may be lost.
    pub devices: Option<(usize, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub health: Health,
    pub summary: String,
    pub protection: LossesSurvived,
    /// The worst first.
    pub warnings: Vec<Warning>,
    /// In a cluster.
    pub survives: Option<NodesSurvived>,
}

impl Observed {
    /// Lost disks that hold something: what was on the others can be had without them.
    fn needed(&self) -> usize {
        self.disks_lost.len().saturating_sub(self.disks_lost_empty)
    }

    /// Whether more is lost than data survives: neither are the lost disks few, nor are they on few nodes.
    fn is_beyond(&self) -> bool {
        let survives = Survives {
            disks: self.tolerated,
            nodes: self.nodes_tolerated,
        };
        let lost = Losses {
            disks: self.needed(),
            // With one node it is either there or nothing is.
            nodes: match self.node_count > 1 {
                true => self.nodes_lost,
                false => self.needed(),
            },
        };
        !survives.covers(lost)
    }

    /// Whether data may be lost with the next disk, whichever it is.
    fn is_at_the_limit(&self) -> bool {
        let next_node_may_go = self.node_count > 1 && self.nodes_lost < self.nodes_tolerated;
        self.needed() > 0 && self.needed() >= self.tolerated && !next_node_may_go
    }

    /// Of these many that are survived when all is well, what is left with what is lost and short now.
    fn left_of(&self, tolerated: usize, lost: usize) -> usize {
        let left = tolerated.saturating_sub(lost);
        let of_short = self.segments_short.map(|(_, spare)| spare.max(0));
        let of_short = of_short.map_or(left, |spare| usize::try_from(spare).unwrap_or(0));
        // Which protection narrow data has is not counted. That which survives nothing is counted apart.
        let of_narrow = match (self.single_segments, self.narrow_segments) {
            (0, 0) => left,
            (0, _) => 1,
            (_, _) => 0,
        };
        left.min(of_short).min(of_narrow)
    }

    fn nodes_left(&self) -> usize {
        self.left_of(self.nodes_tolerated, self.nodes_lost)
    }

    fn protection(&self) -> LossesSurvived {
        let disks = self.left_of(self.tolerated, self.needed());
        let disks = match self.node_count > 1 {
            // As many disks are on as many nodes at most.
            true => disks.max(self.nodes_left()),
            false => disks,
        };
        let is_shared = self.disks_by_drive.iter().any(|disks| *disks > 1);
        let devices = is_shared.then(|| {
            let mut by_drive = self.disks_by_drive.clone();
            by_drive.sort_unstable_by_key(|disks| std::cmp::Reverse(*disks));
            // The worst that may go at a time. One disk on several drives counts with each: that is the safe side.
            let lost = by_drive.iter().scan(0, |lost: &mut usize, disks| {
                *lost = lost.saturating_add(*disks);
                Some(*lost)
            });
            let survived = lost.take_while(|lost| *lost <= disks).count();
            (by_drive.len(), survived)
        });
        LossesSurvived { disks, devices }
    }
}

pub fn judge(observed: &Observed) -> Judgement {
    let mut warnings = Vec::new();
    if let Some(cluster) = &observed.cluster {
        judge_cluster(cluster, &mut warnings);
    }
    judge_pool(observed, &mut warnings);
    warnings.sort_by_key(|warning| std::cmp::Reverse(warning.weight()));
    let least_spare = observed.segments_short.map(|(_, spare)| spare);
    let is_beyond = observed.is_beyond() || least_spare.is_some_and(|spare| spare < 0);
    let worst = warnings.iter().map(Warning::weight).max();
    let protection = observed.protection();
    let health = match worst {
        _ if is_beyond => Health::Failed,
        Some(Weight::Failed) => Health::Failed,
        Some(Weight::Degraded) => Health::Degraded,
        _ if observed.tolerated == 0 => Health::NoRedundancy,
        _ if matches!(protection.devices, Some((_, 0))) => Health::NoRedundancy,
        _ => Health::Healthy,
    };
    Judgement {
        health,
        summary: summary(observed, protection, is_beyond),
        protection,
        survives: observed
            .cluster
            .as_ref()
            .map(|cluster| survives(observed, cluster)),
        warnings,
    }
}

fn survives(observed: &Observed, cluster: &ObservedCluster) -> NodesSurvived {
    let of_data = match observed.single_segments {
        0 => observed.nodes_tolerated,
        _ => 0,
    };
    let lost = cluster.nodes.iter().filter(|node| !node.is_alive).count();
    // A loss that happened already was survived. The copies of a log are those that are there.
    let of_data = of_data.saturating_sub(lost);
    let of_logs = cluster.logs.iter().map(|log| log.copies).min();
    let of_logs = of_logs.map_or(of_data, |copies| copies.saturating_sub(1));
    let data = of_data.min(of_logs);
    let of_keys = cluster
        .openers_least
        .map_or(usize::MAX, |nodes| nodes.saturating_sub(1));
    let is_served = cluster.without_owner.is_empty()
        && observed.volumes_failed.is_empty()
        && observed.keys_away.is_empty();
    let service = match is_served {
        true => data.min(cluster.etcd.survives_nodes()).min(of_keys),
        false => 0,
    };
    NodesSurvived { data, service }
}

fn judge_cluster(cluster: &ObservedCluster, warnings: &mut Vec<Warning>) {
    if !cluster.has_lease {
        warnings.push(Warning::NoLease);
    }
    for (volume, tries) in &cluster.without_owner {
        warnings.push(Warning::VolumeWithoutOwner {
            volume: volume.clone(),
            tries: tries.clone(),
        });
    }
    let etcd = &cluster.etcd;
    match &etcd.problem {
        Some(why) => warnings.push(Warning::EtcdUnreachable { why: why.clone() }),
        None if !etcd.has_quorum() => warnings.push(Warning::EtcdNoQuorum {
            healthy: etcd.healthy(),
            members: etcd.members.len(),
        }),
        None => {}
    }
    for member in &etcd.members {
        if let Some(why) = &member.problem {
            warnings.push(Warning::EtcdMemberDown {
                member: member.name.clone(),
                why: why.clone(),
            });
        }
    }
    if !etcd.plain.is_empty() {
        warnings.push(Warning::EtcdPlain {
            addresses: etcd.plain.clone(),
        });
    }
    for node in &cluster.nodes {
        let name = || node.name.clone();
        match (node.maintenance, node.is_alive, node.is_reached) {
            (Some(left), _, _) => warnings.push(Warning::Maintenance { node: name(), left }),
            (None, false, _) => warnings.push(Warning::NodeAway { node: name() }),
            (None, true, false) => warnings.push(Warning::NodeUnreached {
                node: name(),
                why: node.problem.clone(),
            }),
            (None, true, true) => {}
        }
        if node.folder_is_low {
            warnings.push(Warning::FolderLow { node: name() });
        }
        if let Some(most) = node.volumes_max.filter(|most| node.volumes > *most) {
            warnings.push(Warning::VolumesMany {
                node: name(),
                volumes: node.volumes,
                most,
            });
        }
    }
    for log in cluster.logs.iter().filter(|log| log.copies < log.wanted) {
        warnings.push(Warning::LogCopiesFew {
            volume: log.volume.clone(),
            copies: log.copies,
            wanted: log.wanted,
        });
    }
    for (volume, address, why) in &cluster.addresses {
        warnings.push(Warning::AddressNotHere {
            volume: volume.clone(),
            address: address.clone(),
            why: why.clone(),
        });
    }
    for (pool, address, why) in &cluster.pool_addresses {
        warnings.push(Warning::PoolAddressNotHere {
            pool: pool.clone(),
            address: address.clone(),
            why: why.clone(),
        });
    }
    for (node, volume) in &cluster.keys_missing {
        warnings.push(Warning::KeyMissing {
            node: node.clone(),
            volume: volume.clone(),
        });
    }
    for key in &cluster.damaged_keys {
        warnings.push(Warning::MapKeyDamaged { key: key.clone() });
    }
}

/// The warning of so many.
type OfCount = fn(u64) -> Warning;

fn judge_pool(observed: &Observed, warnings: &mut Vec<Warning>) {
    if observed.disk_count > 0 && observed.tolerated == 0 {
        warnings.push(Warning::OneDisk);
    } else if let Some((devices, survived)) = observed.protection().devices {
        warnings.push(Warning::SharedDevice {
            disks: observed.disk_count,
            devices,
            survived,
        });
    }
    for disk in &observed.disks_lost {
        warnings.push(Warning::DiskLost {
            disk: disk.label.clone(),
            loss: disk.loss,
            why: disk.why.clone(),
        });
    }
    for (disk, why) in &observed.disks_troubled {
        warnings.push(Warning::DiskTroubled {
            disk: disk.clone(),
            why: why.clone(),
        });
    }
    let least_spare = observed.segments_short.map(|(_, spare)| spare);
    if observed.is_at_the_limit() || least_spare == Some(0) {
        warnings.push(Warning::AtTheLimit);
    }
    match observed.segments_short {
        Some((count, spare)) if spare < 0 => warnings.push(Warning::SegmentsUnreadable { count }),
        Some((count, _)) => warnings.push(Warning::SegmentsShort { count }),
        None => {}
    }
    for (volume, why) in &observed.volumes_failed {
        warnings.push(Warning::VolumeNotServed {
            volume: volume.clone(),
            why: why.clone(),
        });
    }
    for (volume, why) in &observed.volumes_read_only {
        warnings.push(Warning::VolumeReadOnly {
            volume: volume.clone(),
            why: why.clone(),
        });
    }
    for (volume, why) in &observed.keys_away {
        warnings.push(Warning::KeyAway {
            volume: volume.clone(),
            why: why.clone(),
        });
    }
    if let Some(why) = &observed.secrets_unwrapped {
        warnings.push(Warning::SecretsUnwrapped { why: why.clone() });
    }
    for (tier, why) in &observed.tiers_away {
        warnings.push(Warning::TierAway {
            tier: tier.clone(),
            why: why.clone(),
        });
    }
    let named = |volumes: &[String], warning: fn(String) -> Warning| -> Vec<Warning> {
        volumes.iter().cloned().map(warning).collect()
    };
    warnings.extend(named(&observed.volumes_degraded, |volume| {
        Warning::MetadataShort { volume }
    }));
    warnings.extend(named(&observed.volumes_unprotected, |volume| {
        Warning::VolumeUnprotected { volume }
    }));
    warnings.extend(named(&observed.directories_unprotected, |volume| {
        Warning::DirectoriesUnprotected { volume }
    }));
    if let Some(named) = observed
        .disks_named
        .filter(|named| *named <= observed.tolerated)
    {
        warnings.push(Warning::DisksUnnamed { named });
    }
    let counted: [(u64, OfCount); 5] = [
        (observed.narrow_segments, |count| Warning::SegmentsNarrow {
            count,
        }),
        (observed.single_segments, |count| Warning::SegmentsSingle {
            count,
        }),
        (observed.damaged_places, |count| Warning::PlacesDamaged {
            count,
        }),
        (observed.lost_bytes, |bytes| Warning::BytesLost { bytes }),
        (observed.damaged_reads, |count| Warning::ReadsDamaged {
            count,
        }),
    ];
    let seen = counted.into_iter().filter(|(count, _)| *count > 0);
    warnings.extend(seen.map(|(count, warning)| warning(count)));
    let is_low = |percent: &u64| *percent < FREE_PERCENT_LOW;
    match observed.free_percent.filter(is_low) {
        _ if observed.is_full => warnings.push(Warning::PoolFull),
        Some(percent) => warnings.push(Warning::SpaceLow { percent }),
        None => {}
    }
    for low in &observed.volumes_low {
        let (volume, limit_bytes) = (low.volume.clone(), low.limit_bytes);
        warnings.push(match low.free_percent {
            0 => Warning::VolumeFull {
                volume,
                limit_bytes,
            },
            percent => Warning::VolumeLow {
                volume,
                limit_bytes,
                percent,
            },
        });
    }
    if let Some(memory) = observed.memory.as_ref().filter(|memory| memory.is_over()) {
        warnings.push(Warning::MemoryOver {
            resident_bytes: memory.resident_bytes,
            limit_bytes: memory.limit_bytes,
            largest: memory.largest.clone(),
        });
    }
    if let Some(late) = observed
        .scrub_overdue
        .filter(|late| *late >= SCRUB_OVERDUE_MIN)
    {
        warnings.push(Warning::ScrubOverdue { late });
    }
    warnings.extend(observed.caches.iter().cloned());
}

/// What there is, what of it is lost, and what may be lost next.
fn summary(observed: &Observed, left: LossesSurvived, is_beyond: bool) -> String {
    let mut disks = match left.devices {
        Some((devices, _)) => format!(
            "{} on {}",
            counted(observed.disk_count, "folder"),
            counted(devices, "device")
        ),
        None => counted(observed.disk_count, "disk"),
    };
    if observed.node_count > 1 {
        disks = format!("{disks} on {} nodes", observed.node_count);
    }
    let lost = observed.disks_lost.len();
    if lost > 0 {
        disks.push_str(&format!(", {lost} of them LOST"));
    }
    let more = match lost {
        0 => "",
        _ => " more",
    };
    let survives = match left.devices {
        _ if is_beyond => ": more is lost than data survives".to_owned(),
        Some((_, 0)) => ": survives no loss of a device".to_owned(),
        Some((_, survived)) => {
            format!(
                ": survives the loss of any {}{more}",
                counted(survived, "device")
            )
        }
        None if observed.node_count > 1 => match (left.disks, observed.nodes_left()) {
            (0, _) => format!(", survives the loss of no disk{more}"),
            (disks, 0) => format!(
                ", survives the loss of any {}, of no node{more}",
                counted(disks, "disk")
            ),
            (disks, nodes) => format!(
                ", survives the loss of any {} or any {}{more}",
                counted(disks, "disk"),
                counted(nodes, "node")
            ),
        },
        // The layout of one copy says it already.
        None if observed.tolerated == 0 => String::new(),
        None if left.disks == 0 => ", survives the loss of no disk".to_owned() + more,
        None => format!(", survives the loss of any {}{more}", left.disks),
    };
    format!("{disks}, {}{survives}", observed.layout)
}

fn counted(count: usize, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_disk(label: &str) -> LostDisk {
        LostDisk {
            label: label.to_owned(),
            loss: DiskLoss::Missing,
            why: "the folder is empty".to_owned(),
        }
    }

    /// Four disks on each of three nodes, of which so many are lost, on so many nodes.
    fn on_three_nodes(disks_lost: usize, nodes_lost: usize) -> Observed {
        Observed {
            disk_count: 12,
            disks_lost: vec![lost_disk("/d"); disks_lost],
            tolerated: 2,
            node_count: 3,
            nodes_tolerated: 2,
            nodes_lost,
            layout: "3 mirrors".to_owned(),
            free_percent: Some(50),
            ..Observed::default()
        }
    }

    #[test]
    fn disks_of_one_node_are_lost_with_it() {
        // Disks and nodes lost, health, and whether it is said that no further disk may be lost.
        let cases = [
            ((0, 0), Health::Healthy, false),
            ((2, 1), Health::Degraded, false),
            ((4, 1), Health::Degraded, false),
            ((8, 2), Health::Degraded, true),
            ((2, 2), Health::Degraded, true),
            ((3, 3), Health::Failed, true),
        ];
        for ((disks, nodes), health, is_at_the_limit) in cases {
            let got = judge(&on_three_nodes(disks, nodes));
            assert_eq!(got.health, health, "{disks} on {nodes}");
            let mut warnings = got.warnings.iter();
            let is_told = warnings.any(|warning| *warning == Warning::AtTheLimit);
            assert_eq!(is_told, is_at_the_limit, "{disks} on {nodes}");
        }
    }

    #[test]
    fn it_is_said_how_many_nodes_are_survived() {
        let with = |tolerated, nodes_tolerated| Observed {
            tolerated,
            nodes_tolerated,
            ..on_three_nodes(0, 0)
        };
        let cases = [
            (2, 2, "any 2 disks or any 2 nodes"),
            (2, 1, "any 2 disks or any 1 node"),
            (1, 0, "any 1 disk, of no node"),
            (0, 0, "no disk"),
        ];
        for (tolerated, nodes_tolerated, want) in cases {
            let summary = judge(&with(tolerated, nodes_tolerated)).summary;
            let want = format!("12 disks on 3 nodes, 3 mirrors, survives the loss of {want}");
            assert_eq!(summary, want);
        }
    }

    fn six() -> Observed {
        Observed {
            disk_count: 6,
            tolerated: 2,
            layout: "4+2".to_owned(),
            free_percent: Some(50),
            ..Observed::default()
        }
    }

    #[test]
    fn the_worst_counts() {
        let lost = |count: usize| Observed {
            disks_lost: (0..count).map(|i| lost_disk(&format!("/d{i}"))).collect(),
            ..six()
        };
        let cases: Vec<(&str, Observed, Health, usize)> = vec![
            ("well", six(), Health::Healthy, 0),
            ("one lost", lost(1), Health::Degraded, 1),
            ("two lost", lost(2), Health::Degraded, 3),
            ("three lost", lost(3), Health::Failed, 4),
            (
                "three lost, and all that was on two of them is on others",
                Observed {
                    disks_lost_empty: 2,
                    ..lost(3)
                },
                Health::Degraded,
                3,
            ),
            (
                "one disk",
                Observed {
                    disk_count: 1,
                    tolerated: 0,
                    layout: "1 copy, NO REDUNDANCY".to_owned(),
                    ..Observed::default()
                },
                Health::NoRedundancy,
                1,
            ),
            (
                "volume read-only",
                Observed {
                    volumes_read_only: vec![("main".to_owned(), "no room".to_owned())],
                    ..six()
                },
                Health::Degraded,
                1,
            ),
            (
                "volume down",
                Observed {
                    volumes_failed: vec![("main".to_owned(), "damaged".to_owned())],
                    ..six()
                },
                Health::Failed,
                1,
            ),
            (
                "nearly full",
                Observed {
                    free_percent: Some(9),
                    ..six()
                },
                Health::Healthy,
                1,
            ),
            (
                "metadata failed on a disk",
                Observed {
                    disks_troubled: vec![("/d1".to_owned(), "metadata failed there".to_owned())],
                    ..six()
                },
                Health::Degraded,
                1,
            ),
            (
                "data with too few copies",
                Observed {
                    narrow_segments: 3,
                    ..six()
                },
                Health::Degraded,
                1,
            ),
            (
                "data with one copy",
                Observed {
                    narrow_segments: 3,
                    single_segments: 1,
                    ..six()
                },
                Health::Degraded,
                2,
            ),
            (
                "a disk was taken out, and what was on it is not rebuilt",
                Observed {
                    segments_short: Some((7, 1)),
                    ..six()
                },
                Health::Degraded,
                1,
            ),
            (
                "two disks were",
                Observed {
                    segments_short: Some((7, 0)),
                    ..six()
                },
                Health::Degraded,
                2,
            ),
            (
                "a volume may lose less than the others",
                Observed {
                    segments_short: Some((7, -1)),
                    ..lost(2)
                },
                Health::Failed,
                4,
            ),
            (
                "files are damaged",
                Observed {
                    damaged_places: 3,
                    ..six()
                },
                Health::Degraded,
                1,
            ),
            (
                "bytes were given up",
                Observed {
                    lost_bytes: 65_536,
                    ..six()
                },
                Health::Degraded,
                1,
            ),
            (
                "found by too few",
                Observed {
                    disks_named: Some(2),
                    ..six()
                },
                Health::Healthy,
                1,
            ),
            (
                "found by enough",
                Observed {
                    disks_named: Some(3),
                    ..six()
                },
                Health::Healthy,
                0,
            ),
            (
                "unprotected volume",
                Observed {
                    volumes_unprotected: vec!["scratch".to_owned()],
                    ..six()
                },
                Health::Healthy,
                1,
            ),
            (
                "unprotected directory",
                Observed {
                    directories_unprotected: vec!["main".to_owned()],
                    ..six()
                },
                Health::Healthy,
                1,
            ),
        ];
        for (name, observed, health, warnings) in cases {
            let got = judge(&observed);
            assert_eq!(got.health, health, "{name}");
            assert_eq!(got.warnings.len(), warnings, "{name}: {:?}", got.warnings);
        }
        assert_eq!(
            judge(&lost(1)).summary,
            "6 disks, 1 of them LOST, 4+2, survives the loss of any 1 more"
        );
    }

    /// What an operator is told in a situation: how the pool is, in words, what may be lost next, and of what they are warned.
    struct Told<'a> {
        situation: &'a str,
        observed: Observed,
        health: Health,
        summary: &'a str,
        /// Disks, and where they share drives how many there are and how many may be lost.
        protection: (usize, Option<(usize, usize)>),
        warnings: Vec<Warning>,
    }

    #[test]
    fn the_verdict_of_each_situation_is_exact() {
        let lost = |labels: &[&str], loss| Observed {
            disks_lost: labels
                .iter()
                .map(|label| LostDisk {
                    loss,
                    ..lost_disk(label)
                })
                .collect(),
            ..six()
        };
        let disk_lost = |label: &str, loss| Warning::DiskLost {
            disk: label.to_owned(),
            loss,
            why: "the folder is empty".to_owned(),
        };
        let low = |free_percent| Observed {
            volumes_low: vec![LowVolume {
                volume: "main".to_owned(),
                limit_bytes: 1 << 30,
                free_percent,
            }],
            ..six()
        };
        let on_drives = |disks_by_drive: &[usize]| Observed {
            disks_by_drive: disks_by_drive.to_vec(),
            ..six()
        };
        let shared = |devices, survived| Warning::SharedDevice {
            disks: 6,
            devices,
            survived,
        };
        let (missing, failed) = (DiskLoss::Missing, DiskLoss::Failed);
        let well = "6 disks, 4+2, survives the loss of any 2";
        let why = || "it does not answer".to_owned();
        let memory = |resident_bytes| {
            Some(MemoryUse {
                resident_bytes,
                limit_bytes: 1000 << 20,
                largest: vec![("dirty", 700 << 20), ("other", 200 << 20)],
            })
        };
        let cases = vec![
            Told {
                situation: "all is well",
                observed: on_drives(&[1; 6]),
                health: Health::Healthy,
                summary: well,
                protection: (2, None),
                warnings: vec![],
            },
            Told {
                situation: "a full volume",
                observed: low(0),
                health: Health::Degraded,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::VolumeFull {
                    volume: "main".to_owned(),
                    limit_bytes: 1 << 30,
                }],
            },
            Told {
                situation: "a volume that is nearly full",
                observed: low(9),
                health: Health::Healthy,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::VolumeLow {
                    volume: "main".to_owned(),
                    limit_bytes: 1 << 30,
                    percent: 9,
                }],
            },
            Told {
                situation: "a full pool",
                observed: Observed {
                    free_percent: Some(1),
                    is_full: true,
                    ..six()
                },
                health: Health::Degraded,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::PoolFull],
            },
            Told {
                situation: "a lost disk",
                observed: lost(&["/d1"], missing),
                health: Health::Degraded,
                summary: "6 disks, 1 of them LOST, 4+2, survives the loss of any 1 more",
                protection: (1, None),
                warnings: vec![disk_lost("/d1", missing)],
            },
            Told {
                situation: "two lost disks",
                observed: lost(&["/d1", "/d2"], missing),
                health: Health::Degraded,
                summary: "6 disks, 2 of them LOST, 4+2, survives the loss of no disk more",
                protection: (0, None),
                warnings: vec![
                    disk_lost("/d1", missing),
                    disk_lost("/d2", missing),
                    Warning::AtTheLimit,
                ],
            },
            Told {
                situation: "three lost disks",
                observed: lost(&["/d1", "/d2", "/d3"], missing),
                health: Health::Failed,
                summary: "6 disks, 3 of them LOST, 4+2: more is lost than data survives",
                protection: (0, None),
                warnings: vec![
                    disk_lost("/d1", missing),
                    disk_lost("/d2", missing),
                    disk_lost("/d3", missing),
                    Warning::AtTheLimit,
                ],
            },
            Told {
                situation: "a lost disk whose data is on others again",
                observed: Observed {
                    disks_lost_empty: 1,
                    ..lost(&["/d1"], missing)
                },
                health: Health::Degraded,
                summary: "6 disks, 1 of them LOST, 4+2, survives the loss of any 2 more",
                protection: (2, None),
                warnings: vec![disk_lost("/d1", missing)],
            },
            Told {
                situation: "a disk that takes no writes any more",
                observed: lost(&["/d1"], failed),
                health: Health::Degraded,
                summary: "6 disks, 1 of them LOST, 4+2, survives the loss of any 1 more",
                protection: (1, None),
                warnings: vec![disk_lost("/d1", failed)],
            },
            Told {
                situation: "segments that are not rebuilt yet",
                observed: Observed {
                    segments_short: Some((7, 1)),
                    ..six()
                },
                health: Health::Degraded,
                summary: "6 disks, 4+2, survives the loss of any 1",
                protection: (1, None),
                warnings: vec![Warning::SegmentsShort { count: 7 }],
            },
            Told {
                situation: "segments of one copy",
                observed: Observed {
                    narrow_segments: 3,
                    single_segments: 1,
                    ..six()
                },
                health: Health::Degraded,
                summary: "6 disks, 4+2, survives the loss of no disk",
                protection: (0, None),
                warnings: vec![
                    Warning::SegmentsNarrow { count: 3 },
                    Warning::SegmentsSingle { count: 1 },
                ],
            },
            Told {
                situation: "six folders on one device",
                observed: on_drives(&[6]),
                health: Health::NoRedundancy,
                summary: "6 folders on 1 device, 4+2: survives no loss of a device",
                protection: (2, Some((1, 0))),
                warnings: vec![shared(1, 0)],
            },
            Told {
                situation: "six folders on two devices",
                observed: on_drives(&[3, 3]),
                health: Health::NoRedundancy,
                summary: "6 folders on 2 devices, 4+2: survives no loss of a device",
                protection: (2, Some((2, 0))),
                warnings: vec![shared(2, 0)],
            },
            Told {
                situation: "six folders on three devices",
                observed: on_drives(&[2, 2, 2]),
                health: Health::Healthy,
                summary: "6 folders on 3 devices, 4+2: survives the loss of any 1 device",
                protection: (2, Some((3, 1))),
                warnings: vec![shared(3, 1)],
            },
            Told {
                situation: "five devices, one of them with two folders",
                observed: on_drives(&[1, 1, 2, 1, 1]),
                health: Health::Healthy,
                summary: "6 folders on 5 devices, 4+2: survives the loss of any 1 device",
                protection: (2, Some((5, 1))),
                warnings: vec![shared(5, 1)],
            },
            Told {
                situation: "a folder that is lost beside five on three devices",
                observed: Observed {
                    disks_by_drive: vec![2, 2, 1],
                    ..lost(&["/d1"], failed)
                },
                health: Health::Degraded,
                summary: "6 folders on 3 devices, 1 of them LOST, 4+2: survives no loss of a device",
                protection: (1, Some((3, 0))),
                warnings: vec![disk_lost("/d1", failed), shared(3, 0)],
            },
            Told {
                situation: "one disk",
                observed: Observed {
                    disk_count: 1,
                    tolerated: 0,
                    layout: "1 copy, NO REDUNDANCY".to_owned(),
                    disks_by_drive: vec![1],
                    ..Observed::default()
                },
                health: Health::NoRedundancy,
                summary: "1 disk, 1 copy, NO REDUNDANCY",
                protection: (0, None),
                warnings: vec![Warning::OneDisk],
            },
            Told {
                situation: "a tier that is absent",
                observed: Observed {
                    tiers_away: vec![("cold".to_owned(), why())],
                    ..six()
                },
                health: Health::Degraded,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::TierAway {
                    tier: "cold".to_owned(),
                    why: why(),
                }],
            },
            Told {
                situation: "a memory limit that is exceeded",
                observed: Observed {
                    memory: memory((1050 << 20) + 1),
                    ..six()
                },
                health: Health::Degraded,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::MemoryOver {
                    resident_bytes: (1050 << 20) + 1,
                    limit_bytes: 1000 << 20,
                    largest: vec![("dirty", 700 << 20), ("other", 200 << 20)],
                }],
            },
            Told {
                situation: "a memory limit that is reached",
                observed: Observed {
                    memory: memory(1050 << 20),
                    ..six()
                },
                health: Health::Healthy,
                summary: well,
                protection: (2, None),
                warnings: vec![],
            },
            Told {
                situation: "an encrypted volume whose key is away",
                observed: Observed {
                    keys_away: vec![("main".to_owned(), why())],
                    ..six()
                },
                health: Health::Failed,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::KeyAway {
                    volume: "main".to_owned(),
                    why: why(),
                }],
            },
            Told {
                situation: "secrets that cannot be wrapped",
                observed: Observed {
                    secrets_unwrapped: Some(why()),
                    ..six()
                },
                health: Health::Degraded,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::SecretsUnwrapped { why: why() }],
            },
            Told {
                situation: "a scrub that waits for its window",
                observed: Observed {
                    scrub_overdue: Some(SCRUB_OVERDUE_MIN - Duration::from_secs(1)),
                    ..six()
                },
                health: Health::Healthy,
                summary: well,
                protection: (2, None),
                warnings: vec![],
            },
            Told {
                situation: "a scrub that does not come to its turn",
                observed: Observed {
                    scrub_overdue: Some(SCRUB_OVERDUE_MIN),
                    ..six()
                },
                health: Health::Healthy,
                summary: well,
                protection: (2, None),
                warnings: vec![Warning::ScrubOverdue {
                    late: SCRUB_OVERDUE_MIN,
                }],
            },
        ];
        for case in cases {
            let got = judge(&case.observed);
            let (disks, devices) = case.protection;
            let want = Judgement {
                health: case.health,
                summary: case.summary.to_owned(),
                protection: LossesSurvived { disks, devices },
                warnings: case.warnings,
                survives: None,
            };
            assert_eq!(got, want, "{}", case.situation);
        }
    }

    /// However folders are spread over drives: as many as are said to be survived can go, and one more could be too many.
    #[test]
    fn the_drives_that_may_be_lost_are_never_too_many() {
        for by_drive in [
            vec![6],
            vec![5, 1],
            vec![4, 2],
            vec![3, 2, 1],
            vec![2, 2, 1, 1],
            vec![2, 1, 1, 1, 1],
        ] {
            for tolerated in 1..=4 {
                let observed = Observed {
                    disks_by_drive: by_drive.clone(),
                    tolerated,
                    ..six()
                };
                let (devices, survived) = observed.protection().devices.expect("they share");
                assert_eq!(devices, by_drive.len());
                // They are in the order of the worst.
                let worst = |count: usize| by_drive.iter().take(count).sum::<usize>();
                assert!(worst(survived) <= tolerated, "{by_drive:?} {tolerated}");
                assert!(worst(survived + 1) > tolerated, "{by_drive:?} {tolerated}");
            }
        }
    }

    /// Five nodes with a member of etcd each, a volume with three copies of its log; all is well.
    fn cluster() -> Observed {
        let names = || (1..=5).map(|number| format!("node{number}"));
        let node = |name: String| ObservedNode {
            name,
            is_alive: true,
            is_reached: true,
            ..ObservedNode::default()
        };
        let member = |name: String| ObservedMember {
            name,
            problem: None,
        };
        Observed {
            disk_count: 5,
            tolerated: 2,
            node_count: 5,
            nodes_tolerated: 2,
            cluster: Some(ObservedCluster {
                has_lease: true,
                nodes: names().map(node).collect(),
                etcd: ObservedEtcd {
                    is_own: true,
                    members: names().map(member).collect(),
                    problem: None,
                    plain: Vec::new(),
                },
                logs: vec![ObservedLog {
                    volume: "main".to_owned(),
                    copies: 3,
                    wanted: 3,
                }],
                ..ObservedCluster::default()
            }),
            ..six()
        }
    }

    #[test]
    fn of_a_cluster_it_is_said_what_may_be_lost_next() {
        type Harm = fn(&mut ObservedCluster);
        // Without loss, and with service.
        type Survived = (usize, usize);
        // The fault, how bad it is, how many warnings, and the nodes that may go without loss and with service.
        let cases: [(&str, Harm, Health, usize, Survived); 16] = [
            ("well", |_| {}, Health::Healthy, 0, (2, 2)),
            (
                "a member of etcd hangs",
                |it| it.etcd.members[0].problem = Some("does not answer".to_owned()),
                Health::Degraded,
                1,
                (2, 1),
            ),
            (
                "so many that none may go",
                |it| {
                    for member in &mut it.etcd.members[..2] {
                        member.problem = Some("does not answer".to_owned());
                    }
                },
                Health::Degraded,
                2,
                (2, 0),
            ),
            (
                "too many",
                |it| {
                    for member in &mut it.etcd.members[..3] {
                        member.problem = Some("does not answer".to_owned());
                    }
                },
                Health::Degraded,
                4,
                (2, 0),
            ),
            (
                "etcd does not say who is a member",
                |it| it.etcd.problem = Some("no answer".to_owned()),
                Health::Degraded,
                1,
                (2, 0),
            ),
            (
                "somebody else's etcd",
                |it| it.etcd.is_own = false,
                Health::Healthy,
                0,
                (2, 2),
            ),
            (
                "somebody else's etcd without TLS",
                |it| {
                    it.etcd.is_own = false;
                    it.etcd.plain = vec!["http://etcd.example:2379".to_owned()];
                },
                Health::Healthy,
                1,
                (2, 2),
            ),
            (
                "a node is away",
                |it| it.nodes[4].is_alive = false,
                Health::Degraded,
                1,
                (1, 1),
            ),
            (
                "a node is meant to be away",
                |it| {
                    it.nodes[4].is_alive = false;
                    it.nodes[4].maintenance = Some(std::time::Duration::from_secs(60));
                },
                Health::Healthy,
                1,
                (1, 1),
            ),
            (
                "too few copies of a log",
                |it| it.logs[0].copies = 2,
                Health::Degraded,
                1,
                (1, 1),
            ),
            (
                "a volume nobody owns",
                |it| it.without_owner.push(("main".to_owned(), Vec::new())),
                Health::Failed,
                1,
                (2, 0),
            ),
            (
                "no lease",
                |it| it.has_lease = false,
                Health::Failed,
                1,
                (2, 2),
            ),
            (
                "a full file system below etcd",
                |it| it.nodes[1].folder_is_low = true,
                Health::Degraded,
                1,
                (2, 2),
            ),
            (
                "more volumes than memory",
                |it| (it.nodes[1].volumes, it.nodes[1].volumes_max) = (5, Some(4)),
                Health::Degraded,
                1,
                (2, 2),
            ),
            (
                "as many volumes as memory",
                |it| (it.nodes[1].volumes, it.nodes[1].volumes_max) = (4, Some(4)),
                Health::Healthy,
                0,
                (2, 2),
            ),
            (
                "one node alone has a key",
                |it| it.openers_least = Some(1),
                Health::Healthy,
                0,
                (2, 0),
            ),
        ];
        for (name, harm, health, warnings, (data, service)) in cases {
            let mut observed = cluster();
            if let Some(cluster) = &mut observed.cluster {
                harm(cluster);
            }
            let got = judge(&observed);
            assert_eq!(got.health, health, "{name}");
            assert_eq!(got.warnings.len(), warnings, "{name}: {:?}", got.warnings);
            let want = NodesSurvived { data, service };
            assert_eq!(got.survives, Some(want), "{name}");
        }
    }
}
