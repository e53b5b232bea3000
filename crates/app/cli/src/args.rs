//! The flags of all commands.

use std::path::PathBuf;

use cairn_admin::api::VolumeChange;
use cairn_config::{
    ANONYMOUS_ID_DEFAULT, AccessPattern, ClassChoice, ClientNet, Compression, CoolingDays, Dedupe,
    FilePatterns, MaintenanceWindow, MediaChoice, MinAge, Protection, ScrubEvery, Settings, Size,
    SizeLimit, Squash, TierName, Tiering, UserName, VolumeName,
};
use cairn_files::{CatArgs, CpArgs, LsArgs, RmArgs, StatArgs};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::address::AddressCommand;
use crate::audit::AuditCommand;
#[cfg(feature = "bench")]
use crate::bench_args::BenchCommand;
use crate::class::ClassCommand;
use crate::clone::CloneArgs;
use crate::dev_cluster_args::DevClusterArgs;
use crate::events::EventsArgs;
use crate::job::JobCommand;
use crate::key::KeyCommand;
use crate::limit::LimitCommand;
#[cfg(feature = "plan")]
use crate::plan_args::PlanArgs;
use crate::policy::PolicyCommand;
use crate::quota::QuotaCommand;
use crate::s3_args::{BucketCommand, S3Command};
use crate::san_args::{IgroupCommand, InitiatorCommand, IscsiCommand, LunCommand, SanCommand};
use crate::snapshot::SnapshotCommand;
use crate::tier::TierCommand;
use crate::top::TopArgs;
use crate::user::UserCommand;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed; of a benchmark also: the result is partial
  2    wrong usage or configuration
  3    the server cannot be reached
  4    refused: no permission, or not possible in the current state
  130  a second interrupt ended `cairn serve` before its data was on disk, or a benchmark before its files
       were removed";

/// Software-defined file, block and object storage: erasure-coded, checksummed, served over NFS, iSCSI and S3.
///
/// `cairn serve --data DIR` starts a server. Commands such as status, disk, volume and export talk to its admin API; ls, cp,
/// cat, rm and stat talk to any NFS server.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a server
    Serve(Box<ServeArgs>),
    /// Show the state of the server, its disks and its volumes
    Status(ViewArgs),
    /// Show live metrics of one volume or all volumes: the busiest clients and files, operations, latency
    ///
    /// A terminal shows new figures every two seconds until Ctrl-C. A rate after >= is a lower bound: it lacks operations from
    /// before the client or file was among the busiest.
    ///
    /// Example: cairn top main
    Top(TopArgs),
    /// Disks of the pool: list, add, drain, replace, remove
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Scrub: read all data, repair damage, list files that cannot be repaired
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Volumes: create, show, change, delete
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Classes of service: rates and latency objectives of volumes
    #[command(subcommand)]
    Class(ClassCommand),
    /// Tiers: object stores to which cold data is offloaded
    #[command(subcommand)]
    Tier(TierCommand),
    /// Rate limits of single LUNs, buckets and client networks
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Master keys of encrypted volumes
    #[command(subcommand)]
    Key(KeyCommand),
    /// Exports: who may mount which volume
    #[command(subcommand)]
    Export(ExportCommand),
    /// LUNs: block devices that hosts attach over iSCSI
    #[command(subcommand)]
    Lun(LunCommand),
    /// Initiator groups: initiators that see the same LUNs
    #[command(subcommand)]
    Igroup(IgroupCommand),
    /// CHAP secrets of initiators
    #[command(subcommand)]
    Initiator(InitiatorCommand),
    /// iSCSI sessions
    #[command(subcommand)]
    Iscsi(IscsiCommand),
    /// Scripts with which hosts attach LUNs
    #[command(subcommand)]
    San(SanCommand),
    /// Buckets: directories whose files are objects for S3 clients
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Access keys of S3 clients
    #[command(subcommand)]
    S3(S3Command),
    /// Snapshots of volumes
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Clone a file or directory: `cairn clone main /images/base /images/vm7`
    ///
    /// A clone of any size is ready at once. It takes no space until the source or the clone changes.
    Clone(CloneArgs),
    /// Storage policies of directories, and the conversion of existing data
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Quotas of directories, users, groups and volumes
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Clusters: form, join, show, balance, back up, recover
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Nodes of the cluster: list, drain, replace, remove, maintenance, upgrade
    #[command(subcommand)]
    Node(NodeCommand),
    /// Address pools: addresses that the nodes of the cluster share
    #[command(subcommand)]
    Address(AddressCommand),
    /// List files on an NFS server, without a mount
    Ls(LsArgs),
    /// Copy files to, from or between NFS servers, without a mount
    Cp(CpArgs),
    /// Write files of an NFS server to standard output
    Cat(CatArgs),
    /// Remove files on an NFS server
    Rm(RmArgs),
    /// Show everything about files on an NFS server
    Stat(StatArgs),
    /// Benchmarks of a mounted path or a server: four corners, IOzone, IOR, metadata, objects
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(Box<BenchCommand>),
    /// Plan storage: design, size, cost, performance, and a template that deploys it
    #[cfg(feature = "plan")]
    Plan(Box<PlanArgs>),
    /// Run a whole cluster on this machine, for trials and fault tests
    DevCluster(Box<DevClusterArgs>),
    /// End a node's lease when the process that writes to standard input has ended; `cairn serve` runs this in a cluster
    #[command(name = cairn_node::cluster::guardian::COMMAND, hide = true)]
    GuardLease,
    /// Check the config file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Users of the admin API and the console, their roles and passwords
    #[command(subcommand)]
    User(UserCommand),
    /// The audit log: who changed what and when
    #[command(subcommand)]
    Audit(AuditCommand),
    /// List events, newest first: lost and returned disks, damage, starts after a crash
    ///
    /// Example: cairn events --severity warning --since 1d
    Events(EventsArgs),
    /// Background jobs of a server: state, next step, errors
    #[command(subcommand)]
    Job(JobCommand),
    /// Print the OpenAPI document of the admin API
    Openapi,
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a folder
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: Settings,
    /// A TOML file with any of these settings (listen_nfs for --listen-nfs); flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Which server to talk to.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Address of the admin API: https://NAME:PORT (https:// may be left out), or http:// for this machine [default: the
    /// server running on this machine]
    #[arg(long, value_name = "URL", env = "CAIRN_SERVER")]
    pub server: Option<String>,
    /// State folder of the server to use, if several run on this machine
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Allow an http:// address of another machine: anyone on the network path can read the token, passwords and answers
    #[arg(long)]
    pub insecure: bool,
    /// File with the admin token; CAIRN_TOKEN can hold the token itself [default: the token file of the server running on
    /// this machine]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Log in as this user (see `cairn user`) with a password, instead of using the admin token
    #[arg(long, value_name = "USER", conflicts_with = "token_file")]
    pub login: Option<UserName>,
    /// File with that user's password as its only line; CAIRN_PASSWORD can hold the password itself [default: the command asks
    /// for it]
    #[arg(long, value_name = "PATH", requires = "login")]
    pub login_password_file: Option<PathBuf>,
    /// PEM file with the CA certificates to trust for https://, or the server's own certificate [default: the certificate of
    /// the server running on this machine]
    #[arg(long, value_name = "PATH", env = "CAIRN_CA")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ViewArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

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

#[derive(Debug, Subcommand)]
pub enum MaintenanceCommand {
    /// Move a node's volumes to other nodes, and rebuild none of its disks for a while
    ///
    /// This is refused while another node, a disk, an etcd member or a copy of a log is missing; `cairn node upgrade` shows which.
    ///
    /// Example: cairn node maintenance on three --for 2h
    On(MaintenanceOnArgs),
    /// End a node's maintenance: the node takes volumes again
    ///
    /// Example: cairn node maintenance off three
    Off(NodeArgs),
}

#[derive(Debug, Args)]
pub struct ClusterBalanceArgs {
    /// Only show which volumes would move, and why
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeWeightArgs {
    /// The node's name
    pub node: String,
    /// 0 to 1000
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub weight: u32,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct MaintenanceOnArgs {
    /// The node's name
    pub node: String,
    /// How long the node's disks are not rebuilt; at most 7d
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub time: std::time::Duration,
    /// Start maintenance even while something else is missing
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

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

/// Name, addresses and folder of a node.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// The node's name in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address and port at which other nodes reach this node; traffic is encrypted, and only cluster nodes may connect
    #[arg(long, value_name = "ADDR:PORT")]
    pub internal: String,
    /// Address or name at which clients reach this node, with a port if several nodes share the address [default: the host
    /// of --internal]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub external: Option<String>,
    /// Folder in which the node keeps its cluster state and certificates
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: PathBuf,
    /// Client port of this node's etcd member, if it runs one
    #[arg(long, value_name = "PORT", default_value_t = cairn_node::cluster::ETCD_CLIENT_PORT)]
    pub etcd_client_port: u16,
    /// Peer port of this node's etcd member
    #[arg(long, value_name = "PORT", default_value_t = cairn_node::cluster::ETCD_PEER_PORT)]
    pub etcd_peer_port: u16,
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
pub struct ClusterRotateArgs {
    /// Only show the progress, or the time of the last rotation
    #[arg(long)]
    pub status: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ClusterBackupArgs {
    /// The file to write; `-`: standard output
    pub file: std::path::PathBuf,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct ClusterRecoverArgs {
    /// The node's cluster folder
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: std::path::PathBuf,
    /// A disk of this node, on which to look for copies and for logs newer than them; repeat the flag for more
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<std::path::PathBuf>,
    /// Use only this copy, or the newest of several; repeat the flag for more
    #[arg(long = "copy", value_name = "FILE")]
    pub copies: Vec<std::path::PathBuf>,
    /// Carry the plan out
    #[arg(long)]
    pub yes: bool,
    /// Proceed even if disks have logs newer than the copy: writes acknowledged since the copy are lost
    #[arg(long)]
    pub give_up_newer: bool,
}

#[derive(Debug, Args)]
pub struct ClusterAcceptArgs {
    /// The node's cluster folder
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: std::path::PathBuf,
    /// The etcd member that has the recovered map [default: the etcd that this node knows]
    #[arg(long, value_name = "NODE,CLIENT_URL,PEER_URL", value_parser = crate::recover::parse_member, requires = "data")]
    pub member: Option<crate::recover::MemberAt>,
    /// A disk of this node, given once for each disk: the node refuses a map that does not know the disk's logs
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<std::path::PathBuf>,
    /// Proceed even if disks have logs newer than the map: writes acknowledged since the map are lost
    #[arg(long)]
    pub give_up_newer: bool,
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

#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// List the disks, and the data being moved between them
    List(ViewArgs),
    /// Add an empty folder to the pool as a new disk
    Add(DiskAddArgs),
    /// Set a disk's device class
    Set(DiskSetArgs),
    /// Move everything off a disk while clients work
    Drain(DiskDrainArgs),
    /// Remove a disk from the pool
    Remove(DiskRemoveArgs),
    /// Replace a working, failed or lost disk
    Replace(DiskReplaceArgs),
    /// Take back a failed disk that works again
    ///
    ///
    /// The disk must have answered all earlier operations. It gets the writes that it missed, and counts once it has them. A disk
    /// that is UNRESPONSIVE or FAILING, or that failed only because it hung, comes back by itself.
    Retry(DiskRetryArgs),
    /// Show, pause or resume the spread of data to emptier disks
    ///
    ///
    /// After you add disks or nodes, or delete much data, data moves until all disks of a device class are about equally full. The
    /// spread starts when two disks are more than 10 % apart, and ends at 5 %. It is throttled for clients, obeys `rebuild_rate`
    /// and the maintenance window, and waits while other data has to move. In a cluster all nodes take part.
    Spread(DiskSpreadArgs),
}

#[derive(Debug, Args)]
pub struct DiskSpreadArgs {
    /// Pause the spread until it is resumed, on all nodes of a cluster
    #[arg(long, conflicts_with = "resume")]
    pub pause: bool,
    /// Resume the spread
    #[arg(long)]
    pub resume: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// What an added folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Data; also metadata if the pool has too few log devices
    Data,
    /// Log device: only logs and metadata of volumes, for a disk that is faster than the others
    Journal,
    /// Read cache for the pool's disks, on a faster disk; losing it loses no data
    Cache,
}

#[derive(Debug, Args)]
pub struct DiskAddArgs {
    /// The folder, on the server's machine
    pub folder: String,
    /// Role of the new disk
    #[arg(long, value_enum, default_value_t = RoleArg::Data)]
    pub role: RoleArg,
    /// Device class: hdd, ssd or nvme. Volumes and directories can ask for a class: `cairn volume set main --media ssd`,
    /// `cairn policy set main/scratch --media nvme`
    #[arg(long, default_value_t)]
    pub media: MediaChoice,
    /// Size of a read cache in the folder's file system, at least 256MiB
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Accept a folder that was a Cairn disk, and delete its content
    #[arg(long)]
    pub wipe: bool,
    /// Create the folder if it does not exist. Without this flag a missing folder is refused, because of possible typos and
    /// unmounted drives
    #[arg(long, env = "CAIRN_CREATE")]
    pub create: bool,
    /// Do not ask on a terminal to confirm the folder's device
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskSetArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Device class: hdd, ssd, nvme, or any for none. Data whose policy asks for a class moves to disks of that class
    #[arg(long)]
    pub media: MediaChoice,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskDrainArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Stop draining, and let new data go to the disk again
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskRemoveArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Remove the disk although it has data, which is then rebuilt from the other disks. Refused if the other disks lack
    /// some of the data
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskReplaceArgs {
    /// The disk to replace: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// The folder of the new disk, on the server's machine; may be the lost disk's folder
    pub folder: String,
    /// Accept a folder that was a Cairn disk, and delete its content
    #[arg(long)]
    pub wipe: bool,
    /// Create the folder if it does not exist
    #[arg(long, env = "CAIRN_CREATE")]
    pub create: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskRetryArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum ScrubCommand {
    /// Start a scrub, resume a paused scrub, or change its rate
    Start(ScrubStartArgs),
    /// Pause the scrub; it stays paused across restarts
    Pause(ViewArgs),
    /// Show the scrub's progress and findings
    Status(ViewArgs),
    /// List the files with unreadable data
    Report(ViewArgs),
    /// Schedule scrubs, and set a maintenance window: `cairn scrub schedule --every 30d --window sat:22:00-06:00`
    ///
    /// Without --every, --window and --clear, the command shows the schedule and the next start. Each call sets both values: a
    /// flag that you leave out is cleared. In a cluster the schedule applies to all nodes.
    ///
    /// Outside of the maintenance window, no scheduled scrub starts, a running scheduled scrub pauses, and no volume moves to
    /// balance the load. Scrubs that an operator starts, rebuilds and repairs run at any time.
    Schedule(ScrubScheduleArgs),
}

#[derive(Debug, Args)]
pub struct ScrubScheduleArgs {
    /// Time from the start of one scrub to the start of the next, in hours or days, such as 12h or 30d
    #[arg(long, value_name = "TIME")]
    pub every: Option<ScrubEvery>,
    /// Maintenance window: days and times of the week in UTC, such as sat:22:00-06:00, daily:01:00-05:00 or
    /// mon-fri:02:00-04:00,sat,sun:00:00-24:00 [default: none, always open]
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<MaintenanceWindow>,
    /// Clear the schedule and the window
    #[arg(long, conflicts_with_all = ["every", "window"])]
    pub clear: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ScrubStartArgs {
    /// Bytes per second that this scrub reads at most, such as 50MiB; 0 for no limit [default: `scrub_rate` in the
    /// configuration]
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// Start from the beginning, even if a scrub is in progress
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeMoveArgs {
    pub name: VolumeName,
    /// The node that owns the volume from now on, whenever it can [default: the cluster chooses]
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// List all volumes
    List(ViewArgs),
    /// Show one volume
    Show(VolumeShowArgs),
    /// Create a volume; nobody may mount it until `cairn export set`
    Create(VolumeCreateArgs),
    /// Clone a volume or one of its snapshots: `cairn volume clone main@before test`
    ///
    /// A clone of any size is ready at once, and shares its data with the source until either is written. It inherits the source's
    /// settings and otherwise is a volume like any other; nobody may mount it until `cairn export set`. Source and clone can be
    /// deleted in any order.
    Clone(VolumeCloneArgs),
    /// Change settings of a volume
    Set(VolumeSetArgs),
    /// Delete a volume and all its data
    Delete(VolumeDeleteArgs),
    /// Move a volume to another node of the cluster; clients see a short pause
    Move(VolumeMoveArgs),
    /// Erase the key of an encrypted volume, which makes the volume unreadable: `cairn volume erase-key old --yes`
    ///
    /// Erasure cannot be undone. Copies of the wrapped key may remain in freed blocks, on missing disks and in backups of etcd. To
    /// be sure, run `cairn key rotate` to another master key, then destroy the old master key.
    EraseKey(VolumeEraseKeyArgs),
    /// The floating address of a volume, which follows the volume's owner
    #[command(subcommand)]
    Address(VolumeAddressCommand),
}

#[derive(Debug, Subcommand)]
pub enum VolumeAddressCommand {
    /// Give a volume an address that its owner always holds
    ///
    /// The owner puts the address on an interface and announces it to neighbours (ARP, neighbour discovery); `cairn serve` needs
    /// CAP_NET_ADMIN and CAP_NET_RAW for that. Instead, a program can move the address (`--address-hook`). Choose an unused address.
    ///
    /// Example: cairn volume address set main 10.0.0.9/24
    Set(VolumeAddressSetArgs),
    /// Remove the volume's address
    Remove(VolumeAddressRemoveArgs),
}

#[derive(Debug, Args)]
pub struct VolumeAddressSetArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// The address, with the length of its prefix: 10.0.0.9/24
    #[arg(value_name = "ADDR/PREFIX")]
    pub address: String,
    /// The network interface, which has the same name on each node [default: the one with an address in the same network]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeAddressRemoveArgs {
    /// The name of the volume
    pub name: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeShowArgs {
    /// The name of the volume
    pub name: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Settings of a volume.
#[derive(Clone, Debug, Args)]
pub struct VolumeFlags {
    /// default (survives up to two lost disks, as the number of disks allows), none, +1n to +4n (survives that many
    /// lost disks), 2x to 5x (that many copies) [a new volume: default]
    #[arg(long, allow_hyphen_values = true)]
    pub protection: Option<Protection>,
    /// none, or a size such as 500GiB; rates per TiB refer to this size [a new volume: none]
    #[arg(long, value_name = "SIZE", visible_aliases = ["quota", "size"])]
    pub size_limit: Option<SizeLimit>,
    /// none, or the largest size to which the size limit grows automatically as the volume fills [a new volume: none]
    #[arg(long, value_name = "SIZE")]
    pub autogrow: Option<SizeLimit>,
    /// concurrent (many clients, all kinds of files), streaming (large files from end to end) or
    /// random (small accesses in large files) [a new volume: concurrent]
    #[arg(long, value_name = "PATTERN")]
    pub access_pattern: Option<AccessPattern>,
    /// none (or off), lz4, zstd (level 3), zstd:1 to zstd:19, or auto (lz4, or zstd where it saves clearly more) [a new
    /// volume: lz4]
    #[arg(long)]
    pub compression: Option<Compression>,
    /// off, on or verify: deduplication of data written from now on. on trusts a 256-bit hash, verify reads and compares first:
    /// `cairn volume set backups --dedupe on` [a new volume: off]
    #[arg(long)]
    pub dedupe: Option<Dedupe>,
    /// any, hdd, ssd or nvme: device class for data written from now on; `cairn policy apply` moves existing data [a new
    /// volume: any]
    #[arg(long)]
    pub media: Option<MediaChoice>,
    /// none, or a class of service: standard, premium, extreme or another from `cairn class list` [a new volume: none]
    #[arg(long)]
    pub class: Option<ClassChoice>,
    /// The tier to which cold data of an existing volume is offloaded, from `cairn tier list`
    #[arg(long)]
    pub tier: Option<TierName>,
    /// Which data is offloaded: none (data in the tier is promoted back), snapshot-only (cold data that only snapshots have),
    /// auto (all cold data) or all (all data, as soon as its segments are sealed)
    #[arg(long)]
    pub tiering: Option<Tiering>,
    /// Days without use after which data is cold, 2 to 183 [at first: 31]
    #[arg(long, value_name = "DAYS")]
    pub cooling_days: Option<CoolingDays>,
    /// any, or name patterns separated by commas; with auto and all, only data of matching files is offloaded: `cairn volume set
    /// media --tier-files '*.mp4,*.fastq.gz'` [at first: any]
    #[arg(long, value_name = "PATTERNS")]
    pub tier_files: Option<FilePatterns>,
    /// none, or the minimum size of offloaded files, such as 1MiB [at first: none]
    #[arg(long, value_name = "SIZE")]
    pub tier_min_size: Option<SizeLimit>,
    /// none, or the minimum time since offloaded files were changed, such as 12h or 30d [at first: none]
    #[arg(long, value_name = "AGE")]
    pub tier_min_age: Option<MinAge>,
}

impl VolumeFlags {
    pub fn change(&self) -> VolumeChange {
        VolumeChange {
            protection: self.protection,
            size_limit: self.size_limit,
            autogrow: self.autogrow,
            access_pattern: self.access_pattern,
            compression: self.compression,
            dedupe: self.dedupe,
            media: self.media,
            class: self.class.clone(),
            tier: self.tier.clone(),
            tiering: self.tiering,
            cooling_days: self.cooling_days,
            tier_files: self.tier_files.clone(),
            tier_min_size: self.tier_min_size,
            tier_min_age: self.tier_min_age,
        }
    }
}

#[derive(Debug, Args)]
pub struct VolumeCreateArgs {
    /// The name of the volume, which is also the path to mount: 1 to 63 letters, digits, '.', '_'
    /// or '-', starting with a letter or a digit
    pub name: VolumeName,
    /// Encrypt file contents with AES-256-GCM; the server needs a master key (`cairn key generate`). This cannot be changed
    /// later
    #[arg(long)]
    pub encrypt: bool,
    #[command(flatten)]
    pub flags: VolumeFlags,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeCloneArgs {
    /// The volume, or one of its snapshots: main, or main@before
    #[arg(value_name = "SOURCE[@SNAPSHOT]")]
    pub source: String,
    /// The name of the new volume
    pub name: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeSetArgs {
    /// The name of the volume
    pub name: VolumeName,
    #[command(flatten)]
    pub flags: VolumeFlags,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeDeleteArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// Delete the volume although it is exported
    #[arg(long)]
    pub force: bool,
    /// Do not ask for the name again
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeEraseKeyArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// Do not ask for the name again
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// List who may mount which volume
    List(ViewArgs),
    /// Let clients mount a volume, or change their rights
    Set(ExportSetArgs),
    /// Stop clients from mounting a volume
    Remove(ExportRemoveArgs),
}

#[derive(Debug, Args)]
pub struct ExportSetArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// An address or a network such as 10.0.0.0/8; repeat the flag for more. If several rules match a client, the narrowest
    /// one applies
    #[arg(long, required = true, value_name = "CIDR")]
    pub client: Vec<ClientNet>,
    /// Allow reading only
    #[arg(long, conflicts_with = "rw")]
    pub ro: bool,
    /// Allow reading and writing (the default)
    #[arg(long)]
    pub rw: bool,
    /// Which users become the anonymous user: root, all or none
    #[arg(long, default_value = "root")]
    pub squash: Squash,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value_t = ANONYMOUS_ID_DEFAULT)]
    pub anonuid: u32,
    /// The anonymous group
    #[arg(long, value_name = "GID", default_value_t = ANONYMOUS_ID_DEFAULT)]
    pub anongid: u32,
    /// Refuse clients whose port is above 1023
    #[arg(long)]
    pub require_reserved_port: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ExportRemoveArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// The client or network whose rule is removed; repeat the flag for more [default: all rules of the volume]
    #[arg(long, value_name = "CIDR")]
    pub client: Vec<ClientNet>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a config file, and report every mistake with its line
    Check(ConfigCheckArgs),
}

#[derive(Debug, Args)]
pub struct ConfigCheckArgs {
    /// The TOML file
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell; for example `cairn completions bash > /etc/bash_completion.d/cairn`
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write the pages of all commands to this folder; it is created if necessary
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lines_are_taken_or_refused() {
        let cases: &[(&str, bool)] = &[
            (
                "serve --data a --data b --listen-nfs 127.0.0.1:0 --rpcbind",
                true,
            ),
            (
                "serve --data a --rpcbind=false --memory-limit 1GiB --config c.toml",
                true,
            ),
            ("serve --data a --memory-limit lots", false),
            ("serve --data a --listen-nfs 2049", false),
            ("serve --dta a", false),
            ("status --json --server http://127.0.0.1:1", true),
            ("disk list --json", true),
            ("disk add /srv/new --json", true),
            ("disk add /srv/new --create --yes", true),
            ("disk replace /srv/old /srv/new --create", true),
            ("disk add /srv/fast --role journal", true),
            ("disk add /srv/fast --role cache --size 100GiB", true),
            ("disk add /srv/fast --role archive", false),
            ("disk add", false),
            ("disk drain 1234 --cancel", true),
            ("disk remove /srv/old --force", true),
            ("disk replace /srv/old /srv/new --wipe", true),
            ("disk replace /srv/old", false),
            ("disk retry /srv/old", true),
            ("disk retry", false),
            ("scrub start --rate 50MiB --restart", true),
            ("scrub start --rate fast", false),
            ("scrub pause", true),
            ("scrub schedule", true),
            (
                "scrub schedule --every 30d --window sat:22:00-06:00 --json",
                true,
            ),
            ("scrub schedule --every often", false),
            ("scrub schedule --window sat", false),
            ("scrub schedule --clear", true),
            ("scrub schedule --clear --every 30d", false),
            ("scrub status --json", true),
            ("scrub report --json", true),
            (
                "serve --data a --scrub-rate 10MiB --rebuild-rate 0 --rebuild-delay 5",
                true,
            ),
            (
                "volume create v --protection +2n --size-limit 1TiB --compression zstd:5",
                true,
            ),
            (
                "volume create v --protection 3x --access-pattern streaming",
                true,
            ),
            ("volume create v --protection +9n", false),
            ("volume create a/b", false),
            ("volume create", false),
            ("volume set v --size-limit none", true),
            ("volume set v --dedupe on", true),
            ("volume create v --dedupe verify", true),
            ("volume set v --dedupe maybe", false),
            ("volume show v --json", true),
            ("volume delete v --yes --force", true),
            ("export list", true),
            (
                "export set v --client 10.0.0.0/8 --client ::1 --ro --squash all --anonuid 5",
                true,
            ),
            ("export set v", false),
            ("export set v --client 10.0.0.0/8 --ro --rw", false),
            ("export set v --client everyone", false),
            ("export remove v", true),
            ("export remove v --client 10.0.0.0/8", true),
            (
                "lun create main/db --size 5.5TiB --block-size 4096 --json",
                true,
            ),
            ("lun create main/db", false),
            ("lun create db --size 1GiB", false),
            ("lun create main/db --size 1GiB --block-size 520", false),
            ("lun list --json", true),
            ("lun show main/db", true),
            ("lun resize main/db --size 2GiB --shrink", true),
            ("lun set main/db --write-cache on --read-only off", true),
            ("lun set main/db --write-cache maybe", false),
            ("lun online main/db", true),
            ("lun offline main/db", true),
            ("lun delete main/db --yes --force", true),
            ("lun map main/db --igroup hosts --lun-id 3", true),
            ("lun map main/db", false),
            ("lun unmap main/db --igroup hosts", true),
            (
                "igroup create main/hosts --initiator iqn.a:1 --initiator iqn.b:2",
                true,
            ),
            ("igroup create main/hosts", false),
            ("igroup list", true),
            ("igroup remove main/hosts", true),
            ("initiator list", true),
            (
                "initiator set main iqn.a:1 --chap-user u --secret-file f --mutual-user t --mutual-secret-file g",
                true,
            ),
            (
                "initiator set main iqn.a:1 --chap-user u --mutual-secret-file g",
                false,
            ),
            ("initiator set main iqn.a:1 --chap-user u --secret s", false),
            ("initiator remove main iqn.a:1", true),
            ("iscsi sessions --json", true),
            ("lun snapshot main/db before", true),
            ("lun restore main/db --snapshot before", true),
            ("lun restore main/db", false),
            (
                "igroup create main/hosts --initiator iqn.a --os linux",
                true,
            ),
            (
                "igroup create main/hosts --initiator iqn.a --os beos",
                false,
            ),
            ("san plan-host v1/data v2/data --initiator iqn.a", true),
            (
                "san plan-host v1/data --system http://a:8049,/etc/token --system http://b:8049 --initiator iqn.a --fs ext4",
                true,
            ),
            ("san plan-host --initiator iqn.a", false),
            ("snapshot create main before-upgrade", true),
            ("snapshot create main", false),
            ("snapshot create --group data,log before-upgrade", true),
            (
                "snapshot create main before-upgrade --group data,log",
                false,
            ),
            ("snapshot list main --space --json", true),
            ("snapshot show main a", true),
            ("snapshot rename main a b", true),
            ("snapshot rename main a", false),
            ("snapshot lock main a", true),
            ("snapshot unlock main a", true),
            ("snapshot delete main a", true),
            ("clone main /a /b --json", true),
            ("clone main /a", false),
            (
                "quota set main/home --hard 10TiB --soft 8TiB --grace 7d --files 1000",
                true,
            ),
            (
                "quota set main --default-user --advisory 1GiB --physical",
                true,
            ),
            ("quota set main --user 1 --group 2 --hard 1GiB", false),
            ("quota set main --physical --logical", false),
            ("quota set --hard 1GiB", false),
            ("quota list main --users --json", true),
            ("quota show main/a --group staff", true),
            ("quota remove main/a", true),
            (
                "policy set main/a --compression zstd:3 --dedupe on --access-pattern inherit",
                true,
            ),
            ("policy set main/a --compression zip", false),
            ("policy set --dedupe on", false),
            ("policy show main --json", true),
            ("policy list main", true),
            ("policy list main/a", false),
            ("policy clear main/a", true),
            ("policy apply main/a --wait", true),
            ("policy status main", true),
            ("policy cancel main", true),
            ("bucket create photos --path main/pictures --uid 1000", true),
            ("bucket create photos", true),
            ("bucket create", false),
            ("bucket delete photos --keep", true),
            ("bucket list --json", true),
            ("bucket show photos", true),
            (
                "s3 key create --uid 1000 --gid 100 --groups 4,5 --bucket photos/2025/ --read-only --note web",
                true,
            ),
            ("s3 key create --uid 1000", false),
            ("s3 key create --uid 1 --gid 1 --bucket /x", false),
            ("s3 key revoke ABC", true),
            ("s3 key list", true),
            ("config check file.toml", true),
            ("config check --json file.toml", true),
            ("volume delete v --yes --json", true),
            ("completions bash", true),
            ("completions tcsh9", false),
            ("man --out x", true),
            ("openapi", true),
            ("user list --json", true),
            ("user show alice", true),
            ("user create alice --role viewer", true),
            ("user create alice --role viewer --password-file -", true),
            ("user create alice", false),
            ("user create alice --role root", false),
            ("user create token --role admin", false),
            ("user create alice --role admin --password secret", false),
            ("user set alice --role admin", true),
            ("user set alice", false),
            ("user password alice --login alice", true),
            (
                "user delete alice --login root --login-password-file p",
                true,
            ),
            ("user delete alice --login-password-file p", false),
            ("user list --login alice --token-file t", false),
            ("status --server https://h:8049 --ca ca.pem", true),
            ("cluster rotate-ca", true),
            ("cluster rotate-ca --status --json", true),
            ("cluster rotate-ca now", false),
            (
                "audit list --by alice --since 1d --refused --limit 5 --json",
                true,
            ),
            ("audit list --path volumes --method DELETE --follow", true),
            ("audit list --limit 0", false),
            ("audit list --since yesterday", false),
            ("audit export --format csv", true),
            ("audit export --format xml", false),
            ("audit export", false),
            ("ls -l nfs://127.0.0.1:2049/main", true),
            ("cp -r here nfs://127.0.0.1:2049/main/", true),
            ("cat nfs://127.0.0.1/main/file", true),
            ("rm -r nfs://127.0.0.1/main/folder", true),
            ("stat --json nfs://127.0.0.1/main/file", true),
            (
                "bench four-corners nfs://h/main --jobs 2 --working-set 1GiB --runtime 2s --ramp 0s --depths 8,1",
                true,
            ),
            ("bench four-corners", false),
            ("bench four-corners /mnt --runtime soon", false),
            (
                "bench four-corners iscsi://h:3260/iqn.a/0?sessions=4 --sync",
                true,
            ),
            ("bench four-corners iscsi://h/iqn.a", false),
            ("bench four-corners s3://bucket", false),
            (
                "bench objects s3://AK:se/cret@h:9000/bucket --size 4KiB,1MiB -n 100 -c 8 --runtime 5s --operations put,get",
                true,
            ),
            ("bench objects s3://AK@h/bucket", false),
            ("bench objects s3://h/bucket --operations copy", false),
            ("bench four-corners smb://host/share", false),
            (
                "bench iozone /mnt -e -s 120GiB -i 0,1 -r 1MiB -t 8 --clients a,b:7118 --token-file t",
                true,
            ),
            ("bench iozone /mnt -i 0 -i 1 -I", true),
            ("bench iozone /mnt --token-file t", false),
            (
                "bench ior /mnt -t 1MiB -b 1MiB -s 16384 -F -w --direct -i 3",
                true,
            ),
            ("bench ior /mnt -w -r", false),
            (
                "bench metadata nfs://h/m -n 100 --one-directory --keep --allow-files",
                true,
            ),
            (
                "bench all . -o results --compressible 50 --dedupe 20 --seed 7 --json",
                true,
            ),
            ("bench all . --compressible 101", false),
            ("bench all . --agents a,b --token-file t", true),
            ("bench agent --listen 0.0.0.0:7117 --token-file t", true),
            ("bench report a.json b.json -o out.html", true),
            ("bench report", false),
            ("bench import fio.json -o x.json --label old", true),
            ("bench show x.json", true),
            ("dev-cluster", true),
            (
                "dev-cluster --nodes 6 --disks 2 --dir d --base-port 20000 --netns no --external-etcd -- --threads 2",
                true,
            ),
            ("dev-cluster --netns maybe", false),
            ("dev-cluster --threads 2", false),
            ("dev-cluster kill 2 --etcd --dir d", true),
            ("dev-cluster kill node2 node3 --dir d", true),
            ("dev-cluster kill", false),
            ("dev-cluster --nodes 3 kill node2", false),
            ("dev-cluster pause node2 --etcd", false),
            (
                "dev-cluster partition 1 --one-way from --peer 2 --peer 3 --clients",
                true,
            ),
            ("dev-cluster partition 1 --one-way up", false),
            (
                "dev-cluster slow 1 --delay 20ms --rate 10mbit --loss 1%",
                true,
            ),
            ("dev-cluster slow 1 --delay 20", false),
            ("dev-cluster slow 1", false),
            ("dev-cluster heal", true),
            ("dev-cluster start", true),
            ("dev-cluster stop", false),
            ("dev-cluster add --nodes 2", true),
            ("dev-cluster status --json", true),
            ("cp onlyone", false),
            ("", false),
            ("frobnicate", false),
        ];
        for (line, want) in cases {
            let words = std::iter::once("cairn").chain(line.split_whitespace());
            let got = Cli::try_parse_from(words);
            // A program that was built without a part has none of its commands.
            let is_built = match line.split_whitespace().next() {
                Some("bench") => cfg!(feature = "bench"),
                Some("plan") => cfg!(feature = "plan"),
                _ => true,
            };
            assert_eq!(
                got.is_ok(),
                *want && is_built,
                "{line}: {:?}",
                got.err().map(|e| e.to_string())
            );
        }
    }
}
