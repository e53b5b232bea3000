//! `cairn node upgrade`: whether a node may stop now, and which one next.
//!
//! Owns: the order of nodes, and what has to be so before one of them stops. Must not know: how a package is installed.

use std::time::{Duration, Instant};

use cairn_admin::cluster::{CLUSTER, ClusterView};
use cairn_admin::warnings::WarningKind;
use clap::Args;

use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::{access, print};

#[derive(Debug, Args)]
pub struct NodeUpgradeArgs {
    /// Wait until a node may stop
    #[arg(long)]
    pub wait: bool,
    /// Longest time to wait
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub wait_max: std::time::Duration,
    #[command(flatten)]
    pub view: ViewArgs,
}

const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Reasons against stopping a node now; empty: one may stop.
pub fn in_the_way(view: &ClusterView) -> Vec<String> {
    let mut found = Vec::new();
    for node in &view.nodes {
        if !node.alive {
            found.push(format!("node {} is down", node.name));
        } else if !node.connected {
            found.push(format!(
                "node {} cannot be reached from {}",
                node.name, view.node
            ));
        }
        if node.drain.is_some() {
            found.push(format!("node {} drains", node.name));
        }
        if node.maintenance_seconds.is_some() {
            found.push(format!(
                "node {0} is in maintenance: `cairn node maintenance off {0}` when it is back",
                node.name
            ));
        }
        for disk in node.disks.iter().filter(|disk| disk.state != "ok") {
            found.push(format!(
                "disk {} of node {} is {}",
                disk.label, node.name, disk.state
            ));
        }
    }
    for volume in &view.volumes {
        if volume.owner.is_none() {
            found.push(format!("volume {} is being taken over", volume.name));
        } else if volume.log_copies < 2 {
            found.push(format!(
                "the newest changes of volume {} are only on one node",
                volume.name
            ));
        } else if volume.log_copies < volume.log_copies_wanted {
            found.push(format!(
                "the log of volume {} has {} of {} copies",
                volume.name, volume.log_copies, volume.log_copies_wanted
            ));
        }
    }
    if view.survives.data_nodes == 0 {
        found.push("the loss of one more node would lose data".to_owned());
    }
    if view.survives.service_nodes == 0 {
        found.push(
            "the loss of one more node would stop service: etcd or the volumes need all remaining nodes"
                .to_owned(),
        );
    }
    for member in &view.etcd.members {
        if let Some(why) = &member.problem {
            found.push(format!(
                "the etcd member on {} is not healthy: {why}",
                member.name
            ));
        }
    }
    found.extend(view.etcd.problem.clone());
    // What else there is to mend first. Those above say more of their own.
    let others = view.warnings.iter();
    let others = others.filter(|warning| keeps_from_stopping(warning.kind));
    found.extend(others.map(|warning| warning.message.clone()));
    found
}

/// Whether a warning keeps nodes from being stopped, beside what is told of nodes, disks, volumes and etcd.
fn keeps_from_stopping(kind: WarningKind) -> bool {
    match kind {
        WarningKind::VolumeNotServed
        | WarningKind::VolumeReadOnly
        | WarningKind::NoLease
        | WarningKind::SegmentsUnreadable
        | WarningKind::SegmentsShort
        | WarningKind::SegmentsSingle
        | WarningKind::AtTheLimit
        | WarningKind::MetadataShort
        | WarningKind::FolderLow
        | WarningKind::KeyAway
        | WarningKind::MapKeyDamaged => true,
        WarningKind::VolumeWithoutOwner
        | WarningKind::EtcdNoQuorum
        | WarningKind::EtcdUnreachable
        | WarningKind::EtcdMemberDown
        | WarningKind::EtcdPlain
        | WarningKind::NodeAway
        | WarningKind::NodeUnreached
        | WarningKind::DiskMissing
        | WarningKind::DiskFailed
        | WarningKind::DiskTroubled
        | WarningKind::OneDisk
        | WarningKind::SharedDevice
        | WarningKind::PoolFull
        | WarningKind::VolumeFull
        | WarningKind::VolumeLow
        | WarningKind::TierAway
        | WarningKind::MemoryOver
        | WarningKind::ScrubOverdue
        | WarningKind::SegmentsNarrow
        | WarningKind::PlacesDamaged
        | WarningKind::BytesLost
        | WarningKind::ReadsDamaged
        | WarningKind::LogCopiesFew
        | WarningKind::AddressNotHere
        | WarningKind::KeyMissing
        | WarningKind::SecretsUnwrapped
        | WarningKind::VolumesMany
        | WarningKind::Maintenance
        | WarningKind::VolumeUnprotected
        | WarningKind::DirectoriesUnprotected
        | WarningKind::DisksUnnamed
        | WarningKind::SpaceLow
        | WarningKind::ReadCacheUnused => false,
    }
}

/// The nodes, each with the volumes that it owns: those with few of them first, so that volumes move seldom.
fn order(view: &ClusterView) -> Vec<(&str, Vec<&str>)> {
    let owned = |name: &str| {
        let volumes = view.volumes.iter();
        let owned = volumes.filter(|volume| volume.owner.as_deref() == Some(name));
        owned.map(|volume| volume.name.as_str()).collect()
    };
    let nodes = view.nodes.iter().map(|node| node.name.as_str());
    let mut order: Vec<(&str, Vec<&str>)> = nodes.map(|name| (name, owned(name))).collect();
    order.sort_by_key(|(_, volumes)| volumes.len());
    order
}

fn plan(view: &ClusterView) -> String {
    let mut text = "One node may stop now. One at a time, in this order:\n".to_owned();
    for (name, volumes) in order(view) {
        let has = match volumes.len() {
            0 => "owns no volume: no client waits".to_owned(),
            _ => format!(
                "owns {}: its clients see a short pause as it moves",
                volumes.join(", ")
            ),
        };
        text += &format!("  {name}: {has}\n");
    }
    text += "For each: cairn node maintenance on NODE    (moves its volumes first)\n";
    text += "On it, for example: sudo apt install ./cairn_VERSION.deb   (it restarts the server)\n";
    text += "Then: cairn node maintenance off NODE && cairn node upgrade --wait";
    text
}

pub fn node_upgrade(args: &NodeUpgradeArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let until = args.wait.then(|| Instant::now() + args.wait_max);
    loop {
        let view = client.ask(CLUSTER, &());
        let left = match &view {
            Ok(view) => in_the_way(view),
            // The server that is asked may be the one that restarts.
            Err(error) if until.is_some() => vec![error.to_string()],
            Err(_) => Vec::new(),
        };
        if left.is_empty() {
            let view = view?;
            if args.view.json {
                return print::json(&order(&view));
            }
            return print::text(&plan(&view));
        }
        if until.is_none_or(|until| Instant::now() >= until) {
            return Err(Failure::refused(format!("no node may stop now: {}", left.join("; "))).hint(
                "`cairn node upgrade --wait` waits until one may stop; `cairn cluster status` shows details",
            ));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use cairn_admin::cluster::{
        ClusterDiskView, ClusterEtcdMember, ClusterNodeView, ClusterSurvives, ClusterVolumeView,
    };

    use super::*;

    fn view() -> ClusterView {
        let node = |name: &str| ClusterNodeView {
            name: name.to_owned(),
            alive: true,
            connected: true,
            disks: vec![ClusterDiskView {
                state: "ok".to_owned(),
                ..ClusterDiskView::default()
            }],
            ..ClusterNodeView::default()
        };
        let volume = |name: &str, owner: &str| ClusterVolumeView {
            name: name.to_owned(),
            owner: Some(owner.to_owned()),
            log_copies: 3,
            ..ClusterVolumeView::default()
        };
        ClusterView {
            nodes: ["one", "two", "three"].map(node).into(),
            volumes: vec![
                volume("main", "one"),
                volume("more", "one"),
                volume("last", "three"),
            ],
            survives: ClusterSurvives {
                data_nodes: 2,
                service_nodes: 1,
            },
            ..ClusterView::default()
        }
    }

    #[test]
    fn nodes_with_few_volumes_come_first() {
        let view = view();
        assert_eq!(in_the_way(&view), Vec::<String>::new());
        let names: Vec<&str> = order(&view).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["two", "three", "one"]);
        let text = plan(&view);
        assert!(
            text.contains("two: owns no volume") && text.contains("one: owns main, more"),
            "{text}"
        );
    }

    #[test]
    fn no_node_stops_while_another_one_is_missed() {
        type Harm = fn(&mut ClusterView);
        let cases: [(&str, Harm); 8] = [
            ("node two is down", |view| view.nodes[1].alive = false),
            ("cannot be reached", |view| view.nodes[1].connected = false),
            ("is failed", |view| {
                view.nodes[0].disks[0].state = "failed".to_owned()
            }),
            ("volume main is being taken over", |view| {
                view.volumes[0].owner = None
            }),
            ("only on one node", |view| view.volumes[1].log_copies = 1),
            ("would stop service", |view| view.survives.service_nodes = 0),
            ("log of volume more has 2 of 3", |view| {
                (
                    view.volumes[1].log_copies,
                    view.volumes[1].log_copies_wanted,
                ) = (2, 3);
            }),
            ("etcd member on two", |view| {
                view.etcd.members.push(ClusterEtcdMember {
                    name: "two".to_owned(),
                    problem: Some("does not answer".to_owned()),
                    ..ClusterEtcdMember::default()
                });
            }),
        ];
        for (what, harm) in cases {
            let mut view = view();
            harm(&mut view);
            let left = in_the_way(&view);
            assert!(
                left.len() == 1 && left[0].contains(what),
                "{what}: {left:?}"
            );
        }
    }
}
