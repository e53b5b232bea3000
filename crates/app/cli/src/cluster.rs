//! `cairn cluster ...`.

use std::io::Read;
use std::time::Duration;

use cairn_admin::cluster::{
    CLUSTER, CLUSTER_TICKET, ClusterNodeView, ClusterView, NODE_REMOVE, NODE_REPLACE, NODE_SET,
    NodeChange, NodeDrainView, NodeName, NodeReplace, TicketCreate,
};
use cairn_base::units::format_size;
use cairn_node::cluster::offline::{self, GivenEtcd, NodeAddresses};
use clap::{Args, Subcommand};

use crate::args::{PlaceArgs, ViewArgs};
use crate::balance::{ClusterBalanceArgs, NodeWeightArgs};
use crate::exit::Failure;
use crate::maintenance::MaintenanceCommand;
use crate::print::{self, Align, Column};
use crate::recover::{ClusterAcceptArgs, ClusterBackupArgs, ClusterRecoverArgs};
use crate::rotate::ClusterRotateArgs;
use crate::status::{duration, warning_lines};
use crate::upgrade::NodeUpgradeArgs;
use crate::{access, balance, maintenance, recover, rotate, upgrade};

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Prepare the first node of a cluster; its next `cairn serve` forms the cluster
    ///
    /// Example: cairn cluster init --name lab --internal 10.0.0.1:7400 && cairn serve --data /disk1
    Init(ClusterInitArgs),
    /// Print a ticket with which one node can join
    Token(ClusterTokenArgs),
    /// Join a cluster with a ticket; the next `cairn serve` on this node serves in the cluster
    Join(ClusterJoinArgs),
    /// Show nodes, disks, owners of volumes, and which failures the cluster survives
    Status(ViewArgs),
    /// Move volumes one by one until the load is balanced over the nodes
    ///
    /// The load of a volume is a fixed part for being open, and the work of its clients over the last minutes. Nodes balance by
    /// themselves, slowly, and only some minutes after a change; this command balances now, and as evenly as possible. Clients of a
    /// volume that moves see a short pause. Volumes that `cairn volume move --to` placed stay.
    ///
    /// Example: cairn cluster balance --dry-run
    Balance(ClusterBalanceArgs),
    /// Write a copy of the cluster map to a file: nodes, disks, volumes and their settings, without client data
    ///
    /// Each node keeps the newest copy and daily copies in its cluster folder and on its disks. Use this command for a copy
    /// elsewhere. The file contains password hashes: keep it private.
    ///
    /// Example: cairn cluster backup /backup/lab.json
    Backup(ClusterBackupArgs),
    /// Rebuild etcd from a copy of the cluster map, after most etcd members were lost for good
    ///
    /// Run this on one node while no server of the cluster runs. Without --yes, the command only prints its plan. It uses the newest
    /// copy in the cluster folder and on the disks (--data), or the copies given with --copy.
    ///
    /// Example: cairn cluster recover --data /disk1 --data /disk2
    Recover(ClusterRecoverArgs),
    /// Replace the cluster's certificate authority while clients work
    ///
    /// Use this if the authority's key may have leaked, for example with a removed node. All nodes first trust a new authority
    /// beside the old one, then get certificates from it, then drop the old one; older certificates and tickets become invalid.
    /// The nodes do this by themselves: the command starts the rotation and shows its progress, and may be interrupted or run
    /// again. The rotation waits for a node that is away until it is back or removed.
    ///
    /// Example: cairn cluster rotate-ca
    RotateCa(ClusterRotateArgs),
    /// Make this node follow a cluster map that was recovered on another node, or restored in your own etcd
    ///
    /// Run this while the node's server is stopped. `cairn cluster recover` prints this command for the other nodes.
    ///
    /// Example: cairn cluster accept-restored --member one,https://10.0.0.1:2379,https://10.0.0.1:2380 --data /disk1
    AcceptRestored(ClusterAcceptArgs),
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes
    List(ViewArgs),
    /// Move everything from a node to other nodes while clients work: data, logs, volumes, its etcd member
    ///
    /// The drain is refused if too little redundancy or space would remain. `cairn node list` shows its progress.
    ///
    /// Example: cairn node drain three && cairn node list
    Drain(NodeDrainArgs),
    /// Remove a drained node from the cluster: the other nodes refuse it from then on, and its server stops
    ///
    /// Example: cairn node remove three
    Remove(NodeArgs),
    /// Replace a working or lost node by a node that has joined
    ///
    /// The old node's data moves, or is rebuilt, to other nodes at once, without waiting for a lost node to return. The cluster
    /// then removes the old node by itself. `cairn node drain OLD --cancel` stops the replacement.
    ///
    /// Example: cairn node replace three seven
    Replace(NodeReplaceArgs),
    /// Put a node into maintenance, or end it
    ///
    /// Use this for a restart, an upgrade or work on the machine. The node's volumes move to other nodes, with a short pause for
    /// their clients. Until the time is over or maintenance ends, the node takes no volumes and its disks are not rebuilt. The node
    /// and its data stay in the cluster; to remove a node for good, use `cairn node drain`.
    ///
    /// Example: cairn node maintenance on three --for 2h
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Set a node's share of the load
    ///
    /// The default is 100; a node with 200 gets twice as much load. A node with 0 gives its volumes away at once and takes none;
    /// its disks stay in use.
    ///
    /// Example: cairn node weight three 50
    Weight(NodeWeightArgs),
    /// Show whether a node may stop now, and in which order to upgrade nodes
    ///
    /// Nodes of neighbouring versions work together: upgrade them one by one while clients work. With --wait, the command waits
    /// until redundancy is complete again and the next node may stop.
    ///
    /// Example: cairn node upgrade --wait
    Upgrade(NodeUpgradeArgs),
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The node's name
    pub node: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeReplaceArgs {
    /// The name of the node to replace
    pub old: String,
    /// The name of the replacement, a node with disks that has joined
    pub new: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeDrainArgs {
    /// The node's name
    pub node: String,
    /// Stop draining, and let new data go to the node again
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ClusterInitArgs {
    /// The cluster's name
    #[arg(long, value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Addresses of your own etcd, separated by commas [default: nodes of the cluster run etcd]
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Allow http:// for an etcd on other machines: anyone on the network path can read and change the cluster map
    #[arg(long, requires = "etcd")]
    pub insecure_etcd: bool,
}

#[derive(Debug, Args)]
pub struct ClusterTokenArgs {
    /// How long the ticket is valid, such as 30m, 1h, 12h; at most 24h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub valid: std::time::Duration,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ClusterJoinArgs {
    /// The ticket that `cairn cluster token` printed; `-` reads it from standard input
    pub ticket: String,
    /// Take over as this node, which is away and whose disks this machine has
    #[arg(long, value_name = "NODE", conflicts_with = "node")]
    pub takes_over: Option<String>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Does what is asked about the cluster.
pub fn cluster(command: &ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Token(args) => token(args),
        ClusterCommand::Join(args) => join(args),
        ClusterCommand::Status(args) => status(args),
        ClusterCommand::Balance(args) => balance::balance(args),
        ClusterCommand::RotateCa(args) => rotate::rotate(args),
        ClusterCommand::Backup(args) => recover::backup(args),
        ClusterCommand::Recover(args) => recover::recover(args),
        ClusterCommand::AcceptRestored(args) => recover::accept_restored(args),
    }
}

/// Does what is asked about nodes.
pub fn node(command: &NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::List(args) => node_list(args),
        NodeCommand::Drain(args) => node_drain(args),
        NodeCommand::Maintenance(MaintenanceCommand::On(args)) => maintenance::on(args),
        NodeCommand::Maintenance(MaintenanceCommand::Off(args)) => maintenance::off(args),
        NodeCommand::Weight(args) => balance::weight(args),
        NodeCommand::Replace(args) => node_replace(args),
        NodeCommand::Upgrade(args) => upgrade::node_upgrade(args),
        NodeCommand::Remove(args) => node_remove(args),
    }
}

/// Longest ticket that is read from standard input.
const TICKET_LEN_BYTES_MAX: u64 = 64 << 10;

/// Reads `90s`, `30m`, `1h` or `2d`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("\"{text}\" is not a time: write 30m, 1h or 2d");
    let split = text.find(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = text.split_at(split.ok_or_else(bad)?);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(bad()),
    };
    match number.checked_mul(seconds) {
        Some(0) | None => Err(bad()),
        Some(seconds) => Ok(Duration::from_secs(seconds)),
    }
}

fn place(args: &PlaceArgs) -> Result<NodeAddresses, Failure> {
    let host_name = || {
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    let external = match &args.external {
        Some(external) => external.clone(),
        None => {
            let host = args.internal.rsplit_once(':').map(|(host, _)| host);
            host.unwrap_or(&args.internal).to_owned()
        }
    };
    Ok(NodeAddresses {
        node_name: args.node.clone().unwrap_or_else(host_name),
        internal_address: args.internal.clone(),
        external_address: external,
        etcd_client_port: args.etcd_client_port,
        etcd_peer_port: args.etcd_peer_port,
    })
}

pub fn init(args: &ClusterInitArgs) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let place = place(&args.place)?;
    let etcd = (!args.etcd.is_empty()).then(|| GivenEtcd {
        endpoints: args.etcd.clone(),
        insecure: args.insecure_etcd,
    });
    let folder = &args.place.cluster_dir;
    let made = offline::init(folder, &args.name, &place, etcd);
    let made = made.map_err(|error| Failure::refused(error.to_string()))?;
    print::text(&format!(
        "cluster {} is prepared in {}, with this node as {}\nnext: cairn serve --cluster-dir {} --data DIR ...\nthen, for \
         each other node: cairn cluster token",
        made.cluster_name,
        folder.display(),
        made.node_name,
        folder.display()
    ))
}

pub fn token(args: &ClusterTokenArgs) -> Result<(), Failure> {
    let create = TicketCreate {
        valid_seconds: args.valid.as_secs(),
    };
    let made = access::client(&args.view.server)?.tell(CLUSTER_TICKET, &(), &create)?;
    if args.view.json {
        return print::json(&made);
    }
    print::text(&made.ticket)
}

pub fn join(args: &ClusterJoinArgs) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let mut text = args.ticket.clone();
    if text == "-" {
        text.clear();
        let stdin = std::io::stdin().lock();
        let mut stdin = stdin.take(TICKET_LEN_BYTES_MAX);
        let read = stdin.read_to_string(&mut text);
        read.map_err(|error| Failure::usage(format!("reading the ticket: {error}")))?;
    }
    let ticket = text.trim().parse();
    let ticket =
        ticket.map_err(|error: cairn_trust::TicketError| Failure::usage(error.to_string()))?;
    let mut place = place(&args.place)?;
    if let Some(node) = &args.takes_over {
        place.node_name.clone_from(node);
    }
    let folder = &args.place.cluster_dir;
    let joined = offline::join_with(folder, &ticket, &place, args.takes_over.is_some());
    let joined = joined.map_err(|error| Failure::refused(error.to_string()))?;
    print::text(&format!(
        "this node is {} of cluster {}\nnext: cairn serve --cluster-dir {} --data DIR ...",
        joined.node_name,
        joined.cluster_name,
        folder.display()
    ))
}

pub fn status(args: &ViewArgs) -> Result<(), Failure> {
    let view = access::client(&args.server)?.ask(CLUSTER, &())?;
    if args.json {
        return print::json(&view);
    }
    print::text(&text(&view))
}

pub fn node_list(args: &ViewArgs) -> Result<(), Failure> {
    let view = access::client(&args.server)?.ask(CLUSTER, &())?;
    if args.json {
        return print::json(&view.nodes);
    }
    print::text(&node_table(&view))
}

pub fn node_drain(args: &NodeDrainArgs) -> Result<(), Failure> {
    let change = NodeChange {
        draining: !args.cancel,
    };
    let view =
        access::client(&args.view.server)?.tell(NODE_SET, &NodeName(args.node.clone()), &change)?;
    if args.view.json {
        return print::json(&view.nodes);
    }
    print::text(&node_table(&view))
}

pub fn node_replace(args: &NodeReplaceArgs) -> Result<(), Failure> {
    let replace = NodeReplace {
        by: args.new.clone(),
    };
    let view = access::client(&args.view.server)?.tell(
        NODE_REPLACE,
        &NodeName(args.old.clone()),
        &replace,
    )?;
    if args.view.json {
        return print::json(&view.nodes);
    }
    print::text(&node_table(&view))
}

pub fn node_remove(args: &NodeArgs) -> Result<(), Failure> {
    access::client(&args.view.server)?.ask(NODE_REMOVE, &NodeName(args.node.clone()))?;
    print::text(&format!("node {} is no longer in the cluster", args.node))
}

fn text(view: &ClusterView) -> String {
    let mut lines = vec![
        format!("cluster   {} ({})", view.cluster, view.id),
        format!(
            "answers   {}{}",
            view.node,
            if view.has_lease {
                ""
            } else {
                " (has no lease)"
            }
        ),
        format!(
            "survives  the loss of {} more: no data lost; of {} more: all volumes served",
            nodes(view.survives.data_nodes),
            nodes(view.survives.service_nodes)
        ),
        match (&view.etcd.problem, view.etcd.own) {
            (Some(problem), _) => format!("etcd      {problem}"),
            (None, own) => {
                let names: Vec<&str> = view
                    .etcd
                    .members
                    .iter()
                    .map(|it| it.name.as_str())
                    .collect();
                let whose = if own { "on" } else { "given:" };
                let well = view.etcd.members.iter();
                let well = well.filter(|member| member.problem.is_none()).count();
                format!(
                    "etcd      {well} of {} members healthy, {whose} {}",
                    names.len(),
                    names.join(", ")
                )
            }
        },
        String::new(),
    ];
    lines.push(node_table(view));
    lines.push(String::new());
    let columns: [Column; 6] = [
        ("VOLUME", Align::Left),
        ("OWNER", Align::Left),
        ("EPOCH", Align::Right),
        ("LOG COPIES", Align::Right),
        ("STATE COPIES", Align::Right),
        ("ADDRESS", Align::Left),
    ];
    let rows = view.volumes.iter().map(|volume| {
        vec![
            volume.name.clone(),
            volume.owner.clone().unwrap_or_else(|| "nobody".to_owned()),
            volume.epoch.to_string(),
            match volume.log_copies < volume.log_copies_wanted {
                true => format!("{} of {}", volume.log_copies, volume.log_copies_wanted),
                false => volume.log_copies.to_string(),
            },
            volume.state_copies.to_string(),
            volume
                .address
                .as_ref()
                .map_or(String::new(), |it| it.address.clone()),
        ]
    });
    lines.push(print::table(&columns, rows.collect()));
    lines.extend(warning_lines(&view.warnings));
    lines.join("\n")
}

fn node_table(view: &ClusterView) -> String {
    let columns: [Column; 5] = [
        ("NODE", Align::Left),
        ("STATE", Align::Left),
        ("INTERNAL", Align::Left),
        ("CLIENTS", Align::Left),
        ("DISKS", Align::Left),
    ];
    let rows = view.nodes.iter().map(|node| {
        let state = match (node.alive, node.connected) {
            (true, true) => "alive",
            (true, false) => "alive, unreachable",
            (false, true) => "reachable, no lease",
            (false, false) => "away",
        };
        let maintenance = match node.maintenance_seconds {
            Some(left) => format!(", in maintenance for {}", duration(left)),
            None => String::new(),
        };
        let leaves = node.drain.as_ref().map_or("", |drain| match drain.done {
            true => ", drained",
            false => ", draining",
        });
        let weight = match node.weight {
            Some(weight) => format!(", weight {weight}"),
            None => String::new(),
        };
        let disks: Vec<String> = node
            .disks
            .iter()
            .map(|disk| format!("{} ({})", disk.label, disk.state))
            .collect();
        vec![
            node.name.clone(),
            format!("{state}{leaves}{maintenance}{weight}"),
            node.internal.clone(),
            node.external.clone(),
            disks.join(", "),
        ]
    });
    let table = print::table(&columns, rows.collect());
    let leaving = view.nodes.iter().filter_map(|node| {
        let drain = node.drain.as_ref()?;
        Some(drain_lines(node, drain))
    });
    let mut lines: Vec<String> = std::iter::once(table).chain(leaving.flatten()).collect();
    lines.extend(clear_line(view));
    lines.join("\n")
}

/// Between which nodes nothing is encrypted, if there are any.
fn clear_line(view: &ClusterView) -> Option<String> {
    let clear = view.nodes.iter().filter(|node| !node.internal_encryption);
    let names: Vec<&str> = clear.map(|node| node.name.as_str()).collect();
    (names.len() > 1).then(|| {
        let names = names.join(", ");
        format!(
            "not encrypted on the internal network: between {names} (internal_encryption = false)"
        )
    })
}

/// How far a node that is to leave is, and what keeps it.
fn drain_lines(node: &ClusterNodeView, drain: &NodeDrainView) -> Vec<String> {
    let name = &node.name;
    let way = match &drain.replaced_by {
        Some(by) => format!("{name} is replaced by {by}"),
        None => format!("{name} drains"),
    };
    if drain.done {
        return vec![match &drain.replaced_by {
            Some(_) => format!("{way}: it is empty, and is removed in a moment"),
            None => format!("{way}: it is empty; `cairn node remove {name}`"),
        }];
    }
    let mut left = Vec::new();
    if drain.segments_left > 0 {
        let estimate = drain.seconds_left.map_or(String::new(), |seconds| {
            format!(", about {} left", duration(seconds))
        });
        left.push(format!(
            "{} in {} segments to move{estimate}",
            format_size(drain.bytes_left),
            drain.segments_left
        ));
    } else if !drain.volumes_left.is_empty() {
        left.push(format!(
            "logs or metadata of {} to move",
            drain.volumes_left.join(", ")
        ));
    }
    if !drain.volumes_owned.is_empty() {
        left.push(format!("it owns {}", drain.volumes_owned.join(", ")));
    }
    if drain.etcd_member {
        left.push("it runs an etcd member".to_owned());
    }
    let mut lines = vec![format!("{way}: {}", left.join("; "))];
    lines.extend(drain.problems.iter().map(|why| format!("  {why}")));
    lines
}

fn nodes(count: usize) -> String {
    match count {
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_or_refused() {
        let seconds = |text: &str| parse_time(text).ok().map(|time| time.as_secs());
        let cases = [
            ("90s", Some(90)),
            ("30m", Some(1800)),
            ("1h", Some(3600)),
            ("2d", Some(172_800)),
            ("0h", None),
            ("1", None),
            ("h", None),
            ("1w", None),
            ("99999999999999999999h", None),
            ("18446744073709551615d", None),
        ];
        for (text, want) in cases {
            assert_eq!(seconds(text), want, "{text}");
        }
    }
}
