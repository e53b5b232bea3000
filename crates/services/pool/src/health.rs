//! Says how the pool is, what may be lost now, and what an operator should know.
//!
//! Owns: the judgement, a pure function of what was observed, of a single server as of a cluster.
//! Must not know: how a warning reads.

use cairn_base::domain::{Losses, Survives};

use crate::warning::{DiskLoss, Warning, Weight};

/// How the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All disks serve and data is protected as set.
    Healthy,
    /// All is well, but a lost disk would be lost data: there is only one, or one copy.
    NoRedundancy,
    /// Everything is served; some protection is lost.
    Degraded,
    /// Something cannot be served.
    Failed,
}

/// What there is to judge.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub disk_count: usize,
    /// Missing at start, or failed since.
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
    /// Reads that failed for good since the start, without those before the last scrub that read all.
    pub damaged_reads: u64,
    /// Disks that work and that the configuration names; `None` if it names all that work.
    pub disks_named: Option<usize>,
    /// Free space left, in percent.
    pub free_percent: Option<u64>,
    /// Read caches that are not used, as warnings.
    pub caches: Vec<Warning>,
    /// If the server is a node of a cluster.
    pub cluster: Option<ObservedCluster>,
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
const FREE_PERCENT_LOW: u64 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub health: Health,
    pub summary: String,
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
    let health = match worst {
        _ if is_beyond => Health::Failed,
        Some(Weight::Failed) => Health::Failed,
        Some(Weight::Degraded) => Health::Degraded,
        _ if observed.tolerated == 0 => Health::NoRedundancy,
        _ => Health::Healthy,
    };
    Judgement {
        health,
        summary: summary(observed),
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
    // What is lost already was survived. The copies of a log are those that are there.
    let of_data = of_data.saturating_sub(lost);
    let of_logs = cluster.logs.iter().map(|log| log.copies).min();
    let of_logs = of_logs.map_or(of_data, |copies| copies.saturating_sub(1));
    let data = of_data.min(of_logs);
    let of_keys = cluster
        .openers_least
        .map_or(usize::MAX, |nodes| nodes.saturating_sub(1));
    let is_served = cluster.without_owner.is_empty() && observed.volumes_failed.is_empty();
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
    if let Some(percent) = observed
        .free_percent
        .filter(|percent| *percent < FREE_PERCENT_LOW)
    {
        warnings.push(Warning::SpaceLow { percent });
    }
    warnings.extend(observed.caches.iter().cloned());
}

fn summary(observed: &Observed) -> String {
    let mut disks = match observed.disk_count {
        1 => "1 disk".to_owned(),
        count => format!("{count} disks"),
    };
    let mut survives = match observed.tolerated {
        0 => String::new(),
        1 => ", survives the loss of any 1".to_owned(),
        count => format!(", survives the loss of any {count}"),
    };
    if observed.node_count > 1 {
        disks = format!("{disks} on {} nodes", observed.node_count);
        survives = match (observed.tolerated, observed.nodes_tolerated) {
            (0, _) => ", survives the loss of no disk".to_owned(),
            (disks, 0) => format!(
                ", survives the loss of any {}, of no node",
                counted(disks, "disk")
            ),
            (disks, nodes) => format!(
                ", survives the loss of any {} or any {}",
                counted(disks, "disk"),
                counted(nodes, "node")
            ),
        };
    }
    let lost = match observed.disks_lost.len() {
        0 => String::new(),
        count => format!("; {count} of them LOST"),
    };
    format!("{disks}, {}{survives}{lost}", observed.layout)
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
            "6 disks, 4+2, survives the loss of any 2; 1 of them LOST"
        );
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
        // What is wrong, how bad that is, how many warnings, and the nodes that may go without loss and with service.
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
