//! The line that sums up a pool.

use super::losses::LossesSurvived;
use super::observed::Observed;

/// What there is, what of it is lost, and what may be lost next.
pub(super) fn summary(observed: &Observed, left: LossesSurvived, is_beyond: bool) -> String {
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
