//! The flags of `cairn dev-cluster`.

use std::path::PathBuf;

use cairn_dev_cluster::faults::{Delay, Loss, Rate};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use ipnet::Ipv4Net;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Without a command it runs the cluster in the foreground, until Ctrl-C; a second start with the same \
                  folder goes on with the same cluster. The commands act on a cluster that runs. NODE is node2 or 2; \
                  with --external-etcd also etcd1."
)]
pub struct DevClusterArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// The cluster's folder; it is created if necessary
    #[arg(
        long,
        value_name = "DIR",
        default_value = "cluster-data",
        global = true
    )]
    pub dir: PathBuf,
    #[command(subcommand)]
    pub command: Option<DevClusterCommand>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Number of nodes; an existing cluster can grow [default: 6, or as many as exist]
    #[arg(long, value_name = "COUNT")]
    pub nodes: Option<u16>,
    /// Disks of each node [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub disks: Option<u16>,
    /// First port on 127.0.0.1. This port leads to any node that serves, port + 10 and following to node 1, and so on
    /// [default: 12000]
    #[arg(long, value_name = "PORT")]
    pub base_port: Option<u16>,
    /// Whether each node has a network namespace with an address of its own; auto: if root allows it
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub netns: When,
    /// The network of the namespaces [default: a free one of 10.213.0.0/16]
    #[arg(long, value_name = "CIDR")]
    pub network: Option<Ipv4Net>,
    /// Run three members of etcd apart from the nodes
    #[arg(long)]
    pub external_etcd: bool,
    /// The program of the nodes [default: this one]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Flags for `cairn serve` on each node
    #[arg(last = true, value_name = "FLAG")]
    pub serve_flags: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    Auto,
    Yes,
    No,
}

/// Towards nodes, or from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OneWay {
    To,
    From,
}

#[derive(Debug, Subcommand)]
pub enum DevClusterCommand {
    /// Kill all processes of nodes (kill -9)
    Kill(KillArgs),
    /// Pause all processes of nodes (SIGSTOP)
    Pause(NodesArgs),
    /// Resume paused nodes (SIGCONT)
    Resume(NodesArgs),
    /// Cut nodes off: packets are dropped silently. Needs network namespaces
    Partition(PartitionArgs),
    /// Slow the network of nodes down in both directions. Needs network namespaces
    Slow(SlowArgs),
    /// Undo all faults, and start everything that is down
    Heal(AnyNodesArgs),
    /// Start stopped nodes, and wait until they serve
    Start(AnyNodesArgs),
    /// Stop nodes cleanly (SIGTERM)
    Stop(NodesArgs),
    /// Add nodes to a running cluster
    Add(AddArgs),
    /// Show the nodes, their processes and their faults
    Status(StatusArgs),
}

#[derive(Debug, Args)]
pub struct NodesArgs {
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
}

#[derive(Debug, Args)]
pub struct AnyNodesArgs {
    /// [default: all]
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
}

#[derive(Debug, Args)]
pub struct KillArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Kill only the node's etcd member
    #[arg(long)]
    pub etcd: bool,
}

#[derive(Debug, Args)]
pub struct PartitionArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Drop only packets to the nodes, or only packets from them
    #[arg(long, value_name = "WAY")]
    pub one_way: Option<OneWay>,
    /// Cut off from this node only; repeat the flag for more [default: from all]
    #[arg(long, value_name = "NODE")]
    pub peer: Vec<String>,
    /// Also cut the nodes off from clients on this machine
    #[arg(long)]
    pub clients: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("how").required(true).multiple(true).args(["delay", "rate", "loss"]))]
pub struct SlowArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Delay of each packet, such as 20ms
    #[arg(long, value_name = "TIME")]
    pub delay: Option<Delay>,
    /// Bandwidth, such as 10mbit
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Packet loss, such as 1%
    #[arg(long, value_name = "PERCENT")]
    pub loss: Option<Loss>,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Number of nodes to add
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub nodes: u16,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
